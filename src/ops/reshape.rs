//! The same elements under another shape. Shapes: any -> any of as many elements. Nothing is copied: tensors are always
//! contiguous, so y is a view of x's memory, and the gradient of x is a view of y's.

use super::*;
use crate::gpu::{Limits, Plan};
use crate::tensor::{Grads, Shape};

struct Reshape {
    from: Shape,
    to: Shape,
}

impl Kernel for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        if self.to.elements() != inputs[0].shape.elements() {
            return Err(shape_error(
                self.name(),
                format!("a shape of {} elements", inputs[0].shape.elements()),
                &self.to,
            ));
        }
        Ok(vec![Spec::new(self.to.clone(), inputs[0].dtype)])
    }

    fn cost(&self, _: &[&Spec], _: &[&Spec]) -> Cost {
        Cost::default()
    }

    fn cpu(&self, _: &[View], _: &mut [ViewMut]) {
        unreachable!("a view is recorded, never computed");
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        unreachable!("a view is recorded, never computed");
    }
}

impl Op for Reshape {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, upstream: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &upstream[0] else { return Ok(()) };
        grads.give(0, dy.view(self.from.clone(), crate::tensor::Edge::None))
    }
}

impl Tensor {
    /// The same elements in the same order under another shape. Shares the memory.
    ///
    /// # Errors
    /// If the shape does not hold as many elements.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let op = Reshape { from: self.shape().clone(), to: shape.into() };
        op.output_specs(&[self.spec()])?;
        let to = op.to.clone();
        Ok(self.record_view(op, to))
    }
}
