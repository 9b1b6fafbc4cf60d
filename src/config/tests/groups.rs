//! `[[optimizer.group]]`, the one key that takes tables.

use super::*;

const TWO: &str = "[optimizer]\nkind = \"muon\"\n\n[[optimizer.group]]\nmatch = \"*.wte*\"\nlr_scale = 2\n\n\
                   [[optimizer.group]]\nmatch = \"*.bias\"\nweight_decay = 0.0\n";

fn group(pattern: &str, lr_scale: f64, weight_decay: Option<f64>) -> GroupConfig {
    GroupConfig { pattern: pattern.into(), lr_scale, weight_decay }
}

#[test]
fn tables_become_groups_with_their_defaults() {
    let resolved = load(TWO).unwrap();
    assert_eq!(resolved.config.optimizer.group, [group("*.wte*", 2.0, None), group("*.bias", 1.0, Some(0.0))]);
    assert_eq!(resolved.origin("optimizer.group").to_string(), "a.toml:4");
}

#[test]
fn what_is_written_of_groups_loads_as_the_same_groups() {
    let resolved = load(TWO).unwrap();
    assert_eq!(load(&resolved.to_toml()).unwrap().config, resolved.config);
}

#[test]
fn a_higher_layer_replaces_all_groups() {
    let text = "[{ match = '*', lr_scale = 0.5 }]";
    let want = [group("*", 0.5, None)];
    let set = Layers::new().toml_str("a.toml", TWO).unwrap().set(&format!("optimizer.group={text}")).unwrap();
    assert_eq!(set.build().unwrap().config.optimizer.group, want);
    let variable = [("RUSTYFLOW_OPTIMIZER__GROUP", text)];
    let environment = Layers::new().toml_str("a.toml", TWO).unwrap().environment(variables(&variable)).unwrap();
    assert_eq!(environment.build().unwrap().config.optimizer.group, want);
    assert_eq!(load_env(&format!("optimizer.group={text}")).unwrap().config.optimizer.group, want);
}

#[test]
fn groups_that_are_none_are_refused_with_their_number() {
    for (groups, parts) in [
        ("[[optimizer.group]]\nlr_scale = 1.0", ["number 1", "match is missing"]),
        ("[[optimizer.group]]\nmatch = 1", ["number 1", "expected a quoted string, got 1"]),
        (
            "[[optimizer.group]]\nmatch = \"*\"\n[[optimizer.group]]\nmatch = \"[\"",
            ["number 2", "\"[\" is not a valid pattern"],
        ),
        ("[[optimizer.group]]\nmatch = \"*\"\nlr = 1.0", ["unknown key lr", "match, lr_scale, weight_decay"]),
        ("[[optimizer.group]]\nmatch = \"*\"\nlr_scale = -1", ["lr_scale", "at least 0, got -1.0"]),
        ("[[optimizer.group]]\nmatch = \"*\"\nweight_decay = -0.5", ["weight_decay", "at least 0, got -0.5"]),
        ("[[optimizer.group]]\nmatch = \"*\"\nweight_decay = \"x\"", ["weight_decay", "expected a number"]),
        ("[optimizer.group]\nmatch = \"*\"", ["got a table", "[[optimizer.group]]"]),
        ("[optimizer]\ngroup = [\"*\"]", ["number 1", "expected a table"]),
    ] {
        let message = error_of(load(groups));
        assert_has(&message, &["a.toml:", "optimizer.group"]);
        assert_has(&message, &parts);
    }
}
