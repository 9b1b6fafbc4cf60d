//! Tensors with autograd on any GPU through wgpu, or on the CPU: kernels, layers, optimizers, and one training step.
//!
//! Modules import only from those to their left:
//! `profile <- gpu, cpu <- tensor <- ops <- opcheck, nn, optim <- step <- fit`.

// Of rustdoc, which asks whether threads may share each type of wgpu's that lies in ours.
#![recursion_limit = "256"]

#[doc(hidden)]
pub mod cpu;
pub mod fit;
pub mod gpu;
pub mod nn;
pub mod opcheck;
pub mod ops;
pub mod optim;
mod pool;
pub mod profile;
pub mod step;
pub mod tensor;
#[doc(hidden)]
pub mod testing;

pub use cpu::set_threads;
pub use rustyflow_base::{Error, Result};
pub use tensor::{DType, Device, Shape, Tensor};

use rustyflow_base::{cache, device_kind, error, units};
