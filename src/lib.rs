//! Train GPT-style language models on any GPU through wgpu, or on the CPU.
//!
//! Modules import only from those to their left:
//! `error, profile, report, comm <- gpu, cpu <- tensor <- ops <- custom, nn, optim <- models, fit <- generate <- train
//! <- bench <- cli`; `config` and `data` import only `error`, the caches and the names of devices, `testing` and
//! `protobuf` nothing. `docs/design.md` is the map.

// Of rustdoc, which asks whether threads may share each type of wgpu's that lies in ours.
#![recursion_limit = "256"]

pub mod bench;
mod cache;
#[cfg(feature = "cli")]
pub mod cli;
pub mod comm;
pub mod config;
mod cpu;
pub mod custom;
pub mod data;
mod device_kind;
pub mod error;
pub mod fit;
pub mod generate;
pub mod gpu;
// The command writes it too.
#[cfg_attr(not(feature = "cli"), allow(dead_code))]
pub mod hub_cache;
pub mod models;
pub mod nn;
pub mod ops;
pub mod optim;
mod pool;
pub mod profile;
mod protobuf;
pub mod report;
mod shell_words;
pub mod tensor;
#[cfg(not(feature = "testing"))]
mod testing;
#[cfg(feature = "testing")]
pub mod testing;
pub mod train;
mod units;

pub use cache::user_folder as user_cache_folder;
pub use cpu::set_threads;
pub use error::{Error, Result};
pub use tensor::{DType, Device, Shape, Tensor};

/// The examples of README.md, which run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Those of docs/library.md.
#[cfg(doctest)]
#[doc = include_str!("../docs/library.md")]
struct Library;
