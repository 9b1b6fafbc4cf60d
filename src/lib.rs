//! Train GPT-2, Llama, Qwen and LSTM models on a GPU (Vulkan, Metal or DirectX 12, through wgpu) or the CPU.
//!
//! The crate order is `rustyflow-base` <- `rustyflow-tensor`, `rustyflow-data`, `rustyflow-comm` <- `rustyflow`. This
//! crate adds models, generation, training runs and the command. Its modules import only from modules to their left:
//! `config, report <- models <- generate <- train <- bench, serve <- cli`. `docs/design.md` is the map.

// rustdoc needs this depth to decide whether wgpu's nested types are `Send` and `Sync`.
#![recursion_limit = "256"]

pub mod bench;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod generate;
pub mod models;
pub mod report;
#[cfg(feature = "serve")]
pub mod serve;
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

/// Runs the examples of README.md as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the examples of docs/library.md as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/library.md")]
struct Library;
