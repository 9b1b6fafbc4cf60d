//! `[recipe]`, which states what a run comes to.

use super::*;

const TABLE: &str = "[recipe]\nabout = \"a\"\nvalidation_loss = 2.0\ntolerance = 0.1\n";

#[test]
fn a_recipe_changes_nothing_in_the_configuration() {
    assert_eq!(load(TABLE).unwrap(), load("").unwrap());
}

#[test]
fn a_loss_within_the_tolerance_meets_it_and_no_other_does() {
    let recipe = Recipe::of_text("a.toml", TABLE).unwrap();
    let met = [1.89, 1.91, 2.0, 2.09, 2.11, f64::NAN, f64::INFINITY].map(|loss| recipe.is_met_by(loss));
    assert_eq!(met, [false, true, true, true, false, false, false]);
}

#[test]
fn a_file_that_is_no_recipe_is_told_what_it_lacks() {
    let error = |text: &str| Recipe::of_text("a.toml", text).unwrap_err().to_string();
    assert_has(&error("[model]\nn_layer = 1"), &["a.toml", "recipe", "is missing", "validation_loss"]);
    assert_has(&error("[recipe]\nabout = \"a\""), &["missing field"]);
    assert_has(&error(&TABLE.replace("0.1", "0")), &["tolerance above 0"]);
    assert_has(&error(&TABLE.replace("about", "abuot")), &["abuot"]);
}

#[test]
fn every_recipe_that_ships_is_one() {
    for (name, text) in RECIPES {
        Recipe::of_text(name, text).unwrap();
        load(text).unwrap();
    }
}
