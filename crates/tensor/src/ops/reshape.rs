//! Reshape. Shapes: any -> any with the same number of elements. Nothing is copied: tensors are always contiguous, so y
//! is a view of x's memory, and the gradient of x is a view of y's.

use super::*;
use crate::tensor::{Edge, Grads, Shape};

struct Reshape {
    from: Shape,
}

impl Op for Reshape {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        grads.accumulate(0, dy.view(self.from.clone(), Edge::None))
    }
}

impl Tensor {
    /// The same elements in row-major order with another shape. Shares the memory.
    ///
    /// # Errors
    /// If the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let (from, to) = (self.shape().clone(), shape.into());
        if to.elements() != from.elements() {
            return Err(shape_error("reshape", format!("a shape of {} elements", from.elements()), to));
        }
        Ok(self.record_view(Reshape { from }, to))
    }
}
