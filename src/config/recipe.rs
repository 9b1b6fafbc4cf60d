//! Recipes: configurations with the expected result of their run, in a table `[recipe]` that training ignores.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{QUICKSTART, wrong};
use crate::error::{Error, Result};

/// The name of the table.
pub(super) const RECIPE: &str = "recipe";

/// The built-in recipes by name: the files in `configs/` with a measured loss.
pub const RECIPES: &[(&str, &str)] = &[
    ("quickstart", QUICKSTART),
    ("shakespeare-char", include_str!("../../configs/shakespeare-char.toml")),
    ("shakespeare-char-cpu", include_str!("../../configs/shakespeare-char-cpu.toml")),
    ("shakespeare-modern-cpu", include_str!("../../configs/shakespeare-modern-cpu.toml")),
    ("qwen3-tiny", include_str!("../../configs/qwen3-tiny.toml")),
];

/// The expected result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Description of the model and the data.
    pub about: String,
    /// The best validation loss, in nats per token.
    pub validation_loss: f64,
    /// Tolerance of the validation loss.
    pub tolerance: f64,
    /// Measured times of the run, with their hardware.
    #[serde(default)]
    pub expected: Vec<RecipeTime>,
}

/// The time of a run on named hardware.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeTime {
    pub device: String,
    pub minutes: f64,
}

impl Recipe {
    /// Reads the recipe of a configuration file.
    ///
    /// # Errors
    /// If it cannot be read or has none.
    pub fn of_file(path: &Path) -> Result<Recipe> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::io("read", path, source))?;
        Recipe::of_text(&path.display().to_string(), &text)
    }

    /// Parses the recipe of a configuration file; `place` is its name in errors.
    ///
    /// # Errors
    /// If it has none, or an incomplete one.
    pub fn of_text(place: &str, text: &str) -> Result<Recipe> {
        #[derive(Deserialize)]
        struct File {
            recipe: Option<Recipe>,
        }
        let file: File = toml::from_str(text).map_err(|e| wrong(place, RECIPE, e.message().replace('\n', "; ")))?;
        let recipe = file.recipe.ok_or_else(|| {
            let message = "is missing: a recipe is a configuration with a table [recipe] that has about, \
                           validation_loss and tolerance";
            wrong(place, RECIPE, message)
        })?;
        match recipe.validation_loss.is_finite() && recipe.tolerance > 0.0 {
            true => Ok(recipe),
            false => Err(wrong(place, RECIPE, "needs a finite validation_loss and a tolerance above 0")),
        }
    }

    /// Whether this loss is within the tolerance.
    pub fn is_met_by(&self, validation_loss: f64) -> bool {
        (validation_loss - self.validation_loss).abs() <= self.tolerance
    }
}
