//! SwiGLU (Shazeer 2020): the activation of a gated feed-forward layer. Shapes: u (..., 2F), gates then values -> h
//! (..., F). f32 or f16.
//!
//! ```text
//! h_i = silu(u_i) u_(F+i)      silu(x) = x s(x), s(x) = 1 / (1 + e^-x)
//! du_i = dh_i u_(F+i) s (1 + u_i (1 - s))      du_(F+i) = dh_i silu(u_i)
//! ```

use super::*;
use crate::cpu::{math, vectorized};
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

struct Swiglu;

/// du. Inputs: u, dh.
struct SwigluBackward;

/// One pass over rows of F elements of each half of u.
fn plan(pass: &'static str, u: &Spec, operands: &[(&'static str, Operand)]) -> Plan {
    let f = u.shape.last_dim() / 2;
    let vector = if f.is_multiple_of(4) { 4 } else { 1 };
    let len = u.shape.elements() / 2;
    Plan::one(Launch {
        shader: shader!(swiglu),
        values: vec![("pass", pass.into()), ("T", u.dtype.name().into()), ("vector", vector.into())],
        buffers: operands.iter().map(|&(name, operand)| buffer(name, u.dtype.wgsl(vector), operand)).collect(),
        params: vec![param("len", len), param("width", f / vector)],
        workgroups: len.div_ceil(256 * vector),
    })
}

impl Kernel for Swiglu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let u = inputs[0];
        if u.dtype == DType::U32 {
            expect_f32(self.name(), inputs)?;
        }
        if u.shape.is_empty() || !u.shape.last_dim().is_multiple_of(2) {
            return Err(shape_error(self.name(), "an even number of columns (..., 2F)", u));
        }
        Ok(vec![Spec::new(u.shape.with_last_dim(u.shape.last_dim() / 2), u.dtype)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // Negation, exponential, sum, quotient, two products.
        streaming_cost(6 * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let f = outputs[0].spec.shape.last_dim().max(1);
        let rows = outputs[0].f32().par_chunks_mut(f).zip(inputs[0].f32().par_chunks(2 * f));
        rows.for_each(|(h, u)| {
            let (gates, values) = u.split_at(f);
            vectorized(
                #[inline(always)]
                || {
                    for ((h, gate), value) in h.iter_mut().zip(gates).zip(values) {
                        *h = gate * math::sigmoid(*gate) * value;
                    }
                },
            );
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        plan("forward", inputs[0], &[("u", Operand::Input(0)), ("result", Operand::Output(0))])
    }
}

impl Op for Swiglu {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dh) = &grad_output[0] else { return Ok(()) };
        grads.accumulate(0, grads.run_one(&SwigluBackward, &[saved.input(0)?, dh])?)
    }
}

impl Kernel for SwigluBackward {
    fn name(&self) -> &'static str {
        "swiglu_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(12 * inputs[1].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let f = inputs[1].spec.shape.last_dim().max(1);
        let rows = outputs[0].f32().par_chunks_mut(2 * f).zip(inputs[0].f32().par_chunks(2 * f));
        rows.zip(inputs[1].f32().par_chunks(f)).for_each(|((du, u), dh)| {
            let ((dgates, dvalues), (gates, values)) = (du.split_at_mut(f), u.split_at(f));
            vectorized(
                #[inline(always)]
                || {
                    let gradients = dgates.iter_mut().zip(dvalues);
                    for (((dgate, dvalue), (gate, value)), dh) in gradients.zip(gates.iter().zip(values)).zip(dh) {
                        let s = math::sigmoid(*gate);
                        *dgate = dh * value * s * (1.0 + gate * (1.0 - s));
                        *dvalue = dh * gate * s;
                    }
                },
            );
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let operands = [("u", Operand::Input(0)), ("grad_output", Operand::Input(1)), ("result", Operand::Output(0))];
        plan("backward", inputs[0], &operands)
    }
}

impl Tensor {
    /// `silu(gates) * values` of the halves of the last dimension, gates first: (..., 2F) -> (..., F).
    ///
    /// # Errors
    /// If the tensor is u32 or its last dimension is odd.
    pub fn swiglu(&self) -> Result<Tensor> {
        apply_one(Swiglu, &[self])
    }
}
