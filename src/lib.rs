//! Train GPT-style language models on any GPU through wgpu, or on the CPU.
//!
//! Modules import only from those to their left:
//! `error, profile <- gpu, cpu <- tensor <- ops <- nn, optim <- train, generate <- cli`;
//! `config` and `data` import only `error`. `docs/design.md` is the map.

pub mod data;
pub mod error;

pub use error::{Error, Result};
