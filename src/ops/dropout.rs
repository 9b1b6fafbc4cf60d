//! Dropout (Srivastava et al. 2014, in the inverted form that leaves evaluation untouched). Shapes: any -> the same.
//!
//! y_i = x_i / (1 - p) with probability 1 - p, else 0; dx_i is the same function of dy_i. Whether element i is kept is a
//! function of the key and i alone, so backward draws again instead of keeping a mask.

use super::random::{Key, drop_threshold};
use super::*;
use crate::gpu::{Limits, Operand, Plan};
use crate::shader;
use crate::tensor::{Grads, run};
use rayon::prelude::*;

#[derive(Clone, Copy)]
struct Dropout {
    p: f32,
    key: Key,
    name: &'static str,
}

impl Dropout {
    fn scale(&self) -> f32 {
        1.0 / (1.0 - self.p)
    }
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
        let (threshold, scale) = (drop_threshold(self.p), self.scale());
        let x = inputs[0].f32();
        outputs[0].f32().par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).enumerate().for_each(|(chunk, (y, x))| {
            let first = (chunk * CHUNK) as u32;
            for ((i, y), x) in (first..).zip(y).zip(x) {
                *y = if self.key.bits(i) >= threshold { x * scale } else { 0.0 };
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = inputs[0].shape.elements();
        let Key([key0, key1]) = self.key;
        Plan::one(Launch {
            shader: shader!("dropout"),
            values: vec![],
            bindings: vec![Operand::Input(0), Operand::Output(0)],
            params: vec![len as u32, key0, key1, drop_threshold(self.p), self.scale().to_bits()],
            workgroups: len.div_ceil(1024),
        })
    }
}

impl Op for Dropout {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, upstream: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &upstream[0] else { return Ok(()) };
        grads.give(0, run(&Dropout { name: "dropout_backward", ..*self }, &[dy])?.remove(0))
    }
}

impl Tensor {
    /// Sets each element to 0 with probability `p` and divides the others by `1 - p`. The same key drops the same
    /// elements, on every device. With `p` = 0 it is the tensor itself.
    ///
    /// # Errors
    /// If `p` is not in 0..1 or the tensor is not f32.
    pub fn dropout(&self, p: f32, key: Key) -> Result<Tensor> {
        if !(0.0..1.0).contains(&p) {
            return Err(Error::Invalid(format!("dropout: the probability must be at least 0 and below 1, not {p}")));
        }
        self.expect_dtype("dropout", DType::F32)?;
        if p == 0.0 {
            return Ok(self.clone());
        }
        apply_one(Dropout { p, key, name: "dropout" }, &[self])
    }
}
