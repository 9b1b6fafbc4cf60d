//! Dropout (Srivastava et al. 2014; inverted, so evaluation is the identity). Shapes: (...) -> (...).
//!
//! y_i = x_i / (1 - p) with probability 1 - p, else 0; dx_i is the same function of dy_i. Whether element i is kept
//! depends only on the key and i, so backward and fused kernels ([`Mask`]) draw again instead of storing a mask. In a
//! slice, i counts from its position in the whole tensor ([`Key::slice`]).

use super::random::{Key, drop_threshold};
use super::*;
use crate::cpu::vectorized;
use crate::gpu::{Limits, Operand, Param, Plan, buffer, param};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

/// The dropout mask of a tensor, and the scale of kept elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mask {
    /// An element is kept if its random number is at least this.
    threshold: u32,
    scale: f32,
    key: Key,
    /// The position of the tensor's first element: above 0 for a slice.
    first: u32,
}

impl Mask {
    /// The mask of `key` for a tensor of this shape in `op`.
    ///
    /// # Errors
    /// If `p` is not in 0..1.
    pub fn new(op: &'static str, p: f32, key: Key, shape: &Shape) -> Result<Mask> {
        if !(0.0..1.0).contains(&p) {
            return Err(Error::Invalid(format!("{op}: the probability must be at least 0 and below 1, not {p}")));
        }
        let each = shape.iter().skip(1).product();
        Ok(Mask { threshold: drop_threshold(p), scale: 1.0 / (1.0 - p), key, first: key.first_position(each) })
    }

    /// y = x after dropout, for the tensor's elements `begin` and up. Positions count modulo 2^32, as in kernels.
    #[inline(always)]
    pub fn apply_to(&self, begin: u32, x: &[f32], y: &mut [f32]) {
        let Mask { threshold, scale, key, first } = *self;
        let first = first.wrapping_add(begin);
        for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
            *y = if key.mask_bits(first.wrapping_add(i as u32)) >= threshold { x * scale } else { 0.0 };
        }
    }

    /// Shader parameters.
    pub fn params(&self) -> [Param; 5] {
        let [key0, key1] = self.key.words;
        let (threshold, scale) = (param("threshold", self.threshold), param("scale", self.scale));
        [param("key0", key0), param("key1", key1), threshold, scale, param("first", self.first)]
    }
}

/// `name` tells forward from backward, which compute the same.
struct Dropout {
    mask: Mask,
    name: &'static str,
}

/// dx, given dy.
pub(super) fn input_gradient(grads: &Grads, mask: Mask, dy: &Tensor) -> Result<Tensor> {
    grads.run_one(&Dropout { mask, name: "dropout_backward" }, &[dy])
}

impl Kernel for Dropout {
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name, inputs)?;
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // The product; the sixteen or so integer operations of a random number are not counted.
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let x = inputs[0].f32();
        outputs[0].f32().par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).enumerate().for_each(|(chunk, (y, x))| {
            let begin = (chunk * CHUNK) as u32;
            vectorized(
                #[inline(always)]
                || self.mask.apply_to(begin, x, y),
            );
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = inputs[0].shape.elements();
        Plan::one(Launch {
            shader: shader!(dropout),
            values: vec![],
            buffers: vec![
                buffer("x", "vec4<f32>", Operand::Input(0)),
                buffer("result", "vec4<f32>", Operand::Output(0)),
            ],
            params: [param("len", len)].into_iter().chain(self.mask.params()).collect(),
            workgroups: len.div_ceil(1024),
        })
    }
}

impl Op for Dropout {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let dx = input_gradient(grads, self.mask, dy)?;
        grads.accumulate(0, dx)
    }
}

impl Tensor {
    /// Zeroes each element with probability `p` and divides the others by `1 - p`. The same key drops the same elements
    /// on every device. `p` = 0 is the identity.
    ///
    /// # Errors
    /// If `p` is not in 0..1 or the tensor is neither f32 nor f16.
    pub fn dropout(&self, p: f32, key: Key) -> Result<Tensor> {
        let mask = Mask::new("dropout", p, key, self.shape())?;
        expect_float("dropout", &[self.spec()])?;
        if p == 0.0 {
            return Ok(self.clone());
        }
        in_f32(self, |x| apply_one(Dropout { mask, name: "dropout" }, &[x]))
    }
}
