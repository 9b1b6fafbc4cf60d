//! Train GPT-style language models on any GPU through wgpu, or on the CPU.
//!
//! The floors of the house are crates: `rustyflow-base` <- `rustyflow-tensor`, `rustyflow-data`, `rustyflow-comm` <- this
//! one, which assembles them: models, generation, runs and the command. Modules of this crate import only from those to
//! their left: `config, report <- models <- generate <- train <- bench <- cli`. `docs/design.md` is the map.

// Of rustdoc, which asks whether threads may share each type of wgpu's that lies in ours.
#![recursion_limit = "256"]

pub mod bench;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod generate;
pub mod models;
pub mod report;
pub mod train;

pub use rustyflow_base::cache::user_folder as user_cache_folder;
pub use rustyflow_base::{Error, Result, error, hub_cache};
pub use rustyflow_comm as comm;
pub use rustyflow_data as data;
#[cfg(feature = "testing")]
pub use rustyflow_tensor::testing;
pub use rustyflow_tensor::{DType, Device, Shape, Tensor, set_threads};
pub use rustyflow_tensor::{fit, gpu, nn, opcheck, ops, optim, profile, step, tensor};

use rustyflow_base::{cache, device_kind, shell_words, units};
use rustyflow_tensor::cpu;
#[cfg(not(feature = "testing"))]
use rustyflow_tensor::testing;

/// The examples of README.md, which run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Those of docs/library.md.
#[cfg(doctest)]
#[doc = include_str!("../docs/library.md")]
struct Library;
