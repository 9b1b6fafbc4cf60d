//! Cosine embedding loss of pairs of vectors that should be similar or dissimilar. Shapes: a and b (..., C), target
//! (...) of 1 and -1 -> (...).
//!
//! cos = a . b / sqrt((|a|^2 + eps) (|b|^2 + eps)), and the loss is 1 - cos where the target is 1, and max(0, cos -
//! margin) where it is -1. Composed of other ops; only a few of their passes are over (..., C).

use super::pointwise::expect_same_shape;
use super::*;

/// Added to squared lengths, as PyTorch does.
const EPS: f32 = 1e-12;

impl Tensor {
    /// Cosine embedding loss of the rows of this tensor (..., C) and of `other` (..., C), by `target` (..., f32): 1 -
    /// cos where it is 1, max(0, cos - margin) where it is -1, else 0.
    ///
    /// # Errors
    /// If the shapes do not fit, or a tensor is not f32.
    pub fn cosine_embedding_loss(
        &self,
        other: &Tensor,
        target: &Tensor,
        margin: f32,
        reduction: Reduction,
    ) -> Result<Tensor> {
        const OP: &str = "cosine_embedding_loss";
        expect_f32(OP, &[self.spec(), other.spec(), target.spec()])?;
        expect_same_shape(OP, self, other)?;
        let Some((last, rows)) = self.shape().len().checked_sub(1).map(|last| (last, &self.shape()[..last])) else {
            return Err(shape_error(OP, "rows (..., C)", self.shape()));
        };
        if target.shape()[..] != *rows {
            return Err(shape_error(OP, format!("targets {}", Shape::from(rows)), target.shape()));
        }
        let device = self.device();
        let number = |value| Tensor::full(value, [], &device);
        let dot = |a: &Tensor, b: &Tensor| a.mul(b)?.sum(last);
        let squares = |x: &Tensor| dot(x, x)?.add(&number(EPS)?);
        let cosine = dot(self, other)?.div(&squares(self)?.mul(&squares(other)?)?.sqrt()?)?;
        let (one, zero) = (number(1.0)?, number(0.0)?);
        let (same, apart) = (target.eq(&one)?, target.eq(&number(-1.0)?)?);
        let beyond = cosine.sub(&number(margin)?)?.relu()?;
        let losses = same.where_cond(&one.sub(&cosine)?, &apart.where_cond(&beyond, &zero)?)?;
        reduction.apply(losses)
    }
}
