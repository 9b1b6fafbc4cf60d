//! Tensors with autograd on a GPU (Vulkan, Metal or DirectX 12, through wgpu) or the CPU: kernels, layers, optimizers,
//! and the training step.
//!
//! Modules import only from modules to their left:
//! `profile <- gpu, cpu <- tensor <- ops <- opcheck, nn, optim <- step <- fit`.

// rustdoc needs this depth to decide whether wgpu's nested types are `Send` and `Sync`.
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
