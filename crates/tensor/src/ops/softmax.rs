//! Softmax over the last dimension, and its logarithm. Shapes: (..., n) -> (..., n).
//!
//! y = e^(x - m) / sum e^(x - m) with m the row maximum, so exponents are at most 0 and nothing overflows. dx = y (dy -
//! sum(dy y)).
//!
//! The logarithm: y = x - m - log sum e^(x - m), dx = dy - e^y sum(dy). f16 is computed in f32.

use super::*;
use crate::cpu::{map_and_sum, math, maximum, sum_of, vectorized};
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

struct Softmax {
    log: bool,
}

/// dx. Inputs: y, dy.
pub(super) struct SoftmaxBackward {
    pub log: bool,
}

fn plan(spec: &Spec, log: bool, derivative: bool) -> Plan {
    let (rows, n) = (spec.shape.rows(), spec.shape.last_dim());
    // Four elements or more per thread.
    let lanes = n.div_ceil(4).next_power_of_two().min(256);
    let element = spec.dtype.name();
    let mut buffers = vec![buffer(if derivative { "y" } else { "x" }, element, Operand::Input(0))];
    buffers.extend(derivative.then_some(buffer("grad_output", element, Operand::Input(1))));
    buffers.push(buffer("result", element, Operand::Output(0)));
    Plan::one(Launch {
        shader: shader!(softmax),
        values: vec![
            ("lanes", (lanes as u32).into()),
            ("log", log.into()),
            ("derivative", derivative.into()),
            ("T", element.into()),
        ],
        buffers,
        params: vec![param("rows", rows), param("n", n)],
        workgroups: rows.div_ceil(256 / lanes),
    })
}

impl Kernel for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_float(self.name(), inputs)?;
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // Maximum, subtraction, exponential, sum, product.
        streaming_cost(5 * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let n = inputs[0].spec.shape.last_dim().max(1);
        let x = inputs[0].f32();
        outputs[0].f32().par_chunks_mut(n).zip(x.par_chunks(n)).for_each(|(y, x)| {
            y.copy_from_slice(x);
            vectorized(
                #[inline(always)]
                || {
                    let largest = maximum(y);
                    if self.log {
                        let log_sum = sum_of([&*y], |[x]| math::exp(x - largest)).ln();
                        for y in y.iter_mut() {
                            *y = (*y - largest) - log_sum;
                        }
                        return;
                    }
                    let sum = map_and_sum(
                        y,
                        #[inline(always)]
                        |x| math::exp(x - largest),
                    );
                    let share = 1.0 / sum;
                    for y in y.iter_mut() {
                        *y *= share;
                    }
                },
            );
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        plan(inputs[0], self.log, false)
    }
}

impl Op for Softmax {
    fn saves(&self) -> Saves {
        Saves { inputs: &[], outputs: &[0] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        grads.accumulate(0, grads.run_one(&SoftmaxBackward { log: self.log }, &[saved.output(0)?, dy])?)
    }
}

impl Kernel for SoftmaxBackward {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax_backward" } else { "softmax_backward" }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(4 * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let n = inputs[0].spec.shape.last_dim().max(1);
        let (y, dy) = (inputs[0].f32(), inputs[1].f32());
        outputs[0].f32().par_chunks_mut(n).zip(y.par_chunks(n)).zip(dy.par_chunks(n)).for_each(|((dx, y), dy)| {
            vectorized(
                #[inline(always)]
                || {
                    if self.log {
                        let sum = sum_of([dy], |[dy]| dy);
                        for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                            *dx = dy - math::exp(*y) * sum;
                        }
                        return;
                    }
                    let dot = sum_of([y, dy], |[y, dy]| y * dy);
                    for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                        *dx = y * (dy - dot);
                    }
                },
            );
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        plan(inputs[0], self.log, true)
    }
}

impl Tensor {
    /// Softmax over the last dimension.
    ///
    /// # Errors
    /// If the tensor is neither f32 nor f16.
    pub fn softmax(&self) -> Result<Tensor> {
        apply_one(Softmax { log: false }, &[self])
    }

    /// Log-softmax over the last dimension, precise for small probabilities.
    ///
    /// # Errors
    /// If the tensor is neither f32 nor f16.
    pub fn log_softmax(&self) -> Result<Tensor> {
        apply_one(Softmax { log: true }, &[self])
    }
}
