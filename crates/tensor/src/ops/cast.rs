//! Conversion between f32 and f16. Shapes: (...) -> (...).
//!
//! f16 has 11 significant bits between 6e-5 and 65504, fewer down to 6e-8; larger values become infinity. The gradient
//! is converted back to the input's type.

use super::*;
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::profile::MemoryKind;
use crate::shader;
use crate::tensor::{Grads, run_into};

pub(super) struct Cast {
    pub from: DType,
    pub to: DType,
}

impl Kernel for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_dtype(self.name(), self.from, inputs)?;
        Ok(vec![Spec::new(inputs[0].shape.clone(), self.to)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(0, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        // Both are f32 here, and rounded to f16 afterwards where they are not.
        outputs[0].f32().copy_from_slice(inputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = inputs[0].shape.elements();
        Plan::one(Launch {
            shader: shader!(cast),
            values: vec![("from", self.from.name().into()), ("to", self.to.name().into())],
            buffers: vec![
                buffer("x", self.from.wgsl(4), Operand::Input(0)),
                buffer("result", self.to.wgsl(4), Operand::Output(0)),
            ],
            params: vec![param("len", len)],
            workgroups: len.div_ceil(1024),
        })
    }
}

impl Op for Cast {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        grads.accumulate(0, dy.to_dtype(self.from)?)
    }
}

impl Tensor {
    /// Converts to f32, f16 or, a matrix whose rows are whole blocks, to a quantized type; returns the same tensor if
    /// it already has the type. The tape does not notice quantized types: such weights are frozen.
    ///
    /// # Errors
    /// If a type is u32, a matrix has no whole blocks, or the GPU does not support f16.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        if self.dtype() == DType::U32 || dtype == DType::U32 {
            return Err(Error::DType { op: "cast", expected: "f32 or f16", got: DType::U32.name() });
        }
        if dtype.is_quantized() {
            return self.quantized(dtype);
        }
        if self.dtype().is_quantized() {
            return self.dequantized(dtype);
        }
        if let Some(unread) = self.unread_as(dtype) {
            return Ok(unread);
        }
        if self.is_in_parts() && !self.needs_grad() {
            return self.parts_cast(dtype);
        }
        apply_one(Cast { from: self.dtype(), to: dtype }, &[self])
    }

    /// [`Tensor::to_dtype`] of a matrix in several buffers, to as many.
    fn parts_cast(&self, dtype: DType) -> Result<Tensor> {
        let cast = self.empty_beside(dtype, MemoryKind::Parameters)?;
        let parts = self.row_parts().into_iter().zip(cast.row_parts());
        for ((_, from), (_, to)) in parts {
            from.cast_into(&to)?;
        }
        Ok(cast)
    }

    /// Overwrites `out` (f32 or f16, of equal length) with these f32 or f16 elements.
    pub fn cast_into(&self, out: &Tensor) -> Result<()> {
        run_into(&Cast { from: self.dtype(), to: out.dtype() }, &[self], &[out])
    }
}
