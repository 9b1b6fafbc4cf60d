//! The additions that gradients are collected with.

use super::{DType, Kernel, Spec, View, ViewMut};
use crate::cpu::CHUNK;
use crate::gpu::{Launch, Limits, Operand, Plan, buffer, param};
use crate::profile::Cost;
use crate::{Error, Result, shader};
use rayon::prelude::*;

/// output = output + input, the one kernel whose output is also read.
pub(crate) struct AddInto {
    /// The type of the output.
    pub into: DType,
}

/// output = a + b, for shapes that hold equally many elements.
pub(super) struct Sum {
    /// The type of the output.
    pub into: DType,
}

fn plan(input: &Spec, into: DType, two_inputs: bool) -> Plan {
    let elements = input.shape.elements();
    let element = input.dtype.wgsl(4);
    let mut buffers = vec![buffer("a", element, Operand::Input(0))];
    buffers.extend(two_inputs.then_some(buffer("b", element, Operand::Input(1))));
    buffers.push(buffer("sum", into.wgsl(4), Operand::Output(0)));
    Plan::one(Launch {
        shader: shader!(accumulate),
        values: vec![
            ("two_inputs", two_inputs.into()),
            ("T_in", input.dtype.name().into()),
            ("T_sum", into.name().into()),
        ],
        buffers,
        params: vec![param("len", elements)],
        workgroups: elements.div_ceil(1024),
    })
}

impl Kernel for AddInto {
    fn name(&self) -> &'static str {
        "add_gradient"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(inputs[0].shape.clone(), self.into)])
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        Cost { flops: inputs[0].shape.elements() as f64, bytes: 3.0 * inputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let x = inputs[0].f32();
        outputs[0].f32().par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(sum, x)| {
            for (sum, x) in sum.iter_mut().zip(x) {
                *sum += x;
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        plan(inputs[0], self.into, false)
    }
}

impl Kernel for Sum {
    fn name(&self) -> &'static str {
        "add_gradient"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        if inputs[0].shape.elements() != inputs[1].shape.elements() || inputs[0].dtype != inputs[1].dtype {
            let (expected, got) = (inputs[0].to_string(), inputs[1].to_string());
            return Err(Error::Shape { op: self.name(), expected, got });
        }
        Ok(vec![Spec::new(inputs[0].shape.clone(), self.into)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let bytes = 2 * inputs[0].size_bytes() + outputs[0].size_bytes();
        Cost { flops: inputs[0].shape.elements() as f64, bytes: bytes as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (a, b) = (inputs[0].f32(), inputs[1].f32());
        let chunks = outputs[0].f32().par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK));
        chunks.for_each(|((sum, a), b)| {
            for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
                *sum = a + b;
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        plan(inputs[0], self.into, true)
    }
}
