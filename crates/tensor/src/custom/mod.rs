//! Ops that an application brings along: a formula in WGSL, the same formula for the CPU, and its derivative.
//!
//! An op made here is an op like any other: it checks its operands, runs on every device, is recorded on the tape, and
//! stands in the profile under its name. [`check`] puts it to the tests that the library's own ops go through.
//!
//! ```
//! use rustyflow_tensor::custom::{self, CustomOp};
//! use rustyflow_tensor::{Device, Result, Tensor};
//!
//! /// y = x + sin(a x)^2 / a, dy/dx = 1 + sin(2 a x).
//! fn snake(a: f32) -> Result<CustomOp> {
//!     let slope = CustomOp::elementwise("snake_backward", &["x", "dy"], "dx")
//!         .param("a", a)
//!         .wgsl("dx[i] = dy[i] * (1.0 + sin(2.0 * params.a * x[i]));")
//!         .cpu(move |inputs, outputs| {
//!             let slope = |(x, dy): (&f32, &f32)| dy * (1.0 + (2.0 * a * x).sin());
//!             let slopes = inputs[0].f32().iter().zip(inputs[1].f32()).map(slope);
//!             outputs[0].f32().iter_mut().zip(slopes).for_each(|(dx, slope)| *dx = slope);
//!         })
//!         .build()?;
//!     CustomOp::elementwise("snake", &["x"], "y")
//!         .param("a", a)
//!         .wgsl("let s = sin(params.a * x[i]);\ny[i] = x[i] + s * s / params.a;")
//!         .cpu(move |inputs, outputs| {
//!             for (y, x) in outputs[0].f32().iter_mut().zip(inputs[0].f32()) {
//!                 *y = x + (a * x).sin().powi(2) / a;
//!             }
//!         })
//!         .backward(move |grads| Ok(vec![Some(slope.apply_one(&[grads.input(0)?, grads.output_grad(0)?])?)]))
//!         .build()
//! }
//!
//! fn main() -> Result<()> {
//!     let snake = snake(0.5)?;
//!     let x = Tensor::from_f32(&[-1.0, 0.3, 2.0], [3], &Device::Cpu)?;
//!     custom::check(&snake, &[[x.clone()]])?.into_result()?;
//!     let x = x.requires_grad()?;
//!     snake.apply_one(&[&x])?.sum(..)?.backward()?;
//!     assert!((x.grad().unwrap().to_f32()?[1] - (1.0 + 0.3f32.sin())).abs() < 1e-6);
//!     Ok(())
//! }
//! ```

mod backward;
mod builder;
mod check;
mod compare;
mod op;
mod report;
#[cfg(test)]
mod tests;

pub use backward::OutputGrads;
pub use builder::Builder;
pub use check::check;
pub use op::CustomOp;
pub use report::{Check, Report};

pub use crate::tensor::{Spec, View, ViewMut};
