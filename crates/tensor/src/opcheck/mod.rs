//! Checks for custom ops, as the library's own ops pass them.
//!
//! A custom op is written like the library's: a [`Kernel`] computes it on the CPU and plans its GPU launches, an
//! [`Op`](crate::tensor::Op) defines its derivative, and [`apply`](crate::tensor::apply) runs and records it.
//!
//! ```
//! use rustyflow_tensor::gpu::{Launch, Limits, Operand, Plan, Shader, buffer, param};
//! use rustyflow_tensor::profile::Cost;
//! use rustyflow_tensor::tensor::{Grads, Kernel, Op, Saved, Saves, Spec, View, ViewMut, apply};
//! use rustyflow_tensor::{DType, Device, Error, Result, Tensor, opcheck};
//!
//! const WGSL: &str = "{{ interface }}\n{{ for_each(1) }}\ny[i] = params.a * x[i] * x[i];\n}";
//!
//! /// y = a x^2, dx = 2 a x dy. Of f32 of any shape.
//! #[derive(Clone)]
//! struct Parabola {
//!     a: f32,
//! }
//!
//! impl Kernel for Parabola {
//!     fn name(&self) -> &'static str {
//!         "parabola"
//!     }
//!
//!     fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
//!         match inputs[0].dtype {
//!             DType::F32 => Ok(vec![inputs[0].clone()]),
//!             other => Err(Error::DType { op: "parabola", expected: "f32", got: other.name() }),
//!         }
//!     }
//!
//!     fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
//!         Cost { flops: 2.0 * inputs[0].shape.elements() as f64, bytes: 2.0 * inputs[0].size_bytes() as f64 }
//!     }
//!
//!     fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
//!         outputs[0].f32().iter_mut().zip(inputs[0].f32()).for_each(|(y, x)| *y = self.a * x * x);
//!     }
//!
//!     fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
//!         let len = inputs[0].shape.elements();
//!         Plan::one(Launch {
//!             shader: Shader::checked("parabola", WGSL),
//!             values: Vec::new(),
//!             buffers: vec![buffer("x", "f32", Operand::Input(0)), buffer("y", "f32", Operand::Output(0))],
//!             params: vec![param("len", len), param("a", self.a)],
//!             workgroups: len.div_ceil(256),
//!         })
//!     }
//! }
//!
//! impl Op for Parabola {
//!     fn saves(&self) -> Saves {
//!         Saves { inputs: &[0], outputs: &[] }
//!     }
//!
//!     fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
//!         let Some(dy) = &grad_output[0] else { return Ok(()) };
//!         grads.accumulate(0, saved.input(0)?.mul(dy)?.scale(2.0 * self.a)?)
//!     }
//! }
//!
//! fn main() -> Result<()> {
//!     let x = Tensor::from_f32(&[-1.0, 0.3, 2.0], [3], &Device::Cpu)?;
//!     opcheck::check(&Parabola { a: 0.5 }, &[[x.clone()]], [1e-5; 2])?.into_result()?;
//!     let x = x.requires_grad()?;
//!     apply(Parabola { a: 0.5 }, &[&x])?[0].sum(..)?.backward()?;
//!     assert_eq!(x.grad().unwrap().to_f32()?, [-1.0, 0.3, 2.0]);
//!     Ok(())
//! }
//! ```

mod check;
mod compare;
mod report;
#[cfg(test)]
mod tests;

pub use check::check;
pub use report::{Check, Report};

use crate::tensor::{Kernel, Tensor};

/// An op that is checked.
struct Subject<'a> {
    kernel: &'a dyn Kernel,
    apply: &'a dyn Fn(&[&Tensor]) -> crate::Result<Vec<Tensor>>,
    /// What rounding explains of a difference between devices: absolute and relative.
    tolerance: [f64; 2],
}
