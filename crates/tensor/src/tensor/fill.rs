//! Sets every element to one value.

use super::{DType, Device, Kernel, Shape, Spec, Tensor, View, ViewMut, run_into};
use crate::gpu::{Launch, Limits, Operand, Plan, buffer, param};
use crate::profile::{Cost, MemoryKind};
use crate::{Result, shader};

struct Fill {
    value: f32,
    spec: Spec,
}

impl Kernel for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![self.spec.clone()])
    }

    fn cost(&self, _: &[&Spec], outputs: &[&Spec]) -> Cost {
        Cost { flops: 0.0, bytes: outputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, _: &[View], outputs: &mut [ViewMut]) {
        outputs[0].f32().fill(self.value);
    }

    fn gpu(&self, _: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let len = outputs[0].shape.elements();
        Plan::one(Launch {
            shader: shader!(fill),
            values: vec![],
            buffers: vec![buffer("x", "f32", Operand::Output(0))],
            params: vec![param("len", len), param("value", self.value)],
            workgroups: len.div_ceil(256),
        })
    }
}

impl Tensor {
    /// All elements `value`. Unlike an upload, this only records a command.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn full(value: f32, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        let spec = Spec::new(shape, DType::F32);
        let tensor = Tensor::empty(spec.clone(), device, MemoryKind::Other)?;
        run_into(&Fill { value, spec }, &[], &[&tensor])?;
        Ok(tensor)
    }
}
