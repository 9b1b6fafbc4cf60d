//! Sums over the rows of (R, len): the gradient of one or two operands that were broadcast over rows.

use super::kernel::{ReduceDims, ReduceKind, reduce_cpu, reduce_plan};
use super::*;
use crate::cpu::with_scratch;
use crate::gpu::{Limits, Plan};

/// (R, outputs * len) -> outputs of (len): sums over the rows of anything whose elements are a multiple of that, of one
/// output's columns after the other's. Adds to the outputs instead of replacing them if `accumulate`.
pub(in crate::ops) struct SumRows {
    pub accumulate: bool,
    pub len: usize,
    /// One or two.
    pub outputs: usize,
}

impl Kernel for SumRows {
    fn name(&self) -> &'static str {
        "sum_rows"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        if inputs[0].dtype == DType::U32 {
            expect_f32(self.name(), inputs)?;
        }
        let inner = self.outputs * self.len;
        if inner == 0 || !inputs[0].shape.elements().is_multiple_of(inner) {
            return Err(shape_error(self.name(), format!("rows of {inner} elements"), inputs[0]));
        }
        Ok(vec![Spec::new([self.len], DType::F32); self.outputs])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let dims = self.dims(inputs[0].spec);
        let x = inputs[0].f32();
        if let [output] = outputs {
            return reduce_cpu(ReduceKind::Sum, dims, 1.0, self.accumulate, x, &[], output.f32());
        }
        with_scratch(dims.inner, |sums| {
            reduce_cpu(ReduceKind::Sum, dims, 1.0, false, x, &[], sums);
            for (output, sums) in outputs.iter_mut().zip(sums.chunks_exact(self.len)) {
                for (y, sum) in output.f32().iter_mut().zip(sums) {
                    *y = if self.accumulate { *y + sum } else { *sum };
                }
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        reduce_plan(ReduceKind::Sum, self.dims(inputs[0]), 1.0, inputs[0].dtype, self.accumulate, self.outputs)
    }
}

impl SumRows {
    fn dims(&self, input: &Spec) -> ReduceDims {
        let inner = self.outputs * self.len;
        ReduceDims { outer: 1, n: input.shape.elements() / inner, inner }
    }
}
