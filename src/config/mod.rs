//! The configuration: a typed schema, the layers its values come from, and the text that explains them.
//!
//! The highest layer that sets a value wins: defaults < file (TOML or `.env`) < environment `RUSTYFLOW_SECTION__KEY` <
//! `--set section.key=value` < flag. Every value has its [`Origin`], so that an error can name the line and a run's
//! `config.toml` the source of each number. `docs/configuration.md` lists every key.
//!
//! ```
//! use rustyflow::config::Layers;
//!
//! let resolved = Layers::new()
//!     .toml_str("tiny.toml", "[model]\nn_layer = 2\n")?
//!     .set("train.learning_rate=3e-4")?
//!     .flag("--steps", "train.max_steps", 20)?
//!     .build()?;
//! assert_eq!(resolved.config.model.n_layer, 2);
//! assert_eq!(resolved.config.train.max_steps, Some(20));
//! assert_eq!(resolved.origins["model.n_layer"].to_string(), "tiny.toml:2");
//! # Ok::<(), rustyflow::Error>(())
//! ```

mod changes;
mod choice;
mod device_batch;
mod devices;
mod env_file;
mod explain;
mod key_table;
mod keys;
mod layers;
mod origin;
mod range;
mod recipe;
mod reference;
mod schema;
mod synonyms;
mod toml_file;
mod validate;

#[cfg(test)]
mod tests;

use std::fmt::Display;

use crate::error::Error;

pub use changes::Change;
pub use choice::{
    AdjustLr, Comm, MatmulF32, NonFinite, Objective, Offload, OptimizerKind, Packing, Precision, Recompute,
    RopeScaling, Schedule, StateDtype, UpdateTime, WeightDtype, WireDtype,
};
pub use device_batch::DeviceBatch;
pub use devices::{DeviceKind, Devices};
pub use keys::current_word;
#[cfg(feature = "cli")]
pub(crate) use keys::{completions_of_set, key_for_flag, nearest};
#[cfg(feature = "cli")]
pub(crate) use layers::is_configuration;
pub use layers::{Layers, Resolved, process_environment};
pub use origin::Origin;
pub use recipe::{RECIPES, Recipe, RecipeTime};
pub use reference::{json_schema, template};
pub use schema::{
    CheckpointConfig, Config, DataConfig, DeviceConfig, GenerateConfig, GroupConfig, GuardConfig, LogConfig,
    LoraConfig, ModelConfig, OptimizerConfig, RunConfig, TrainConfig, TrainLength,
};

/// The configuration that is used when none is named: it trains on the sample corpus that ships.
pub const QUICKSTART: &str = include_str!("../../configs/quickstart.toml");

/// An error about one key; `place` is the file and line, the variable or the flag that gave the value.
fn wrong(place: impl Display, key: impl Into<String>, message: impl Into<String>) -> Error {
    Error::Config { place: place.to_string(), key: key.into(), message: message.into() }
}
