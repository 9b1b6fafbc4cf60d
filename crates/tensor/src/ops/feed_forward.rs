//! The feed-forward half of a Transformer block (Vaswani et al. 2017) with GELU, in one op.
//! Shapes: x (..., C), w1 (C, F), b1 (F) or none, w2 (F, D), b2 (D) or none -> y (..., D).
//!
//! ```text
//! u = x w1 + b1    h = gelu(u)    y = h w2 + b2
//! du = (dy w2^T) gelu'(u)    dx = du w1^T    dw1 = x^T du    dw2 = h^T dy    db1, db2 = sums of the rows of du, dy
//! ```
//! With x, w1 and w2 in f16, so are h, gelu'(u), y and the gradients.
//!
//! Fusion saves two passes over the widest tensors in each direction: the GEMM of u stores h and gelu'(u) instead of u,
//! and the GEMM of dy w2^T stores du.

use super::matmul::{Epilogue, MatMul, linear_gradients};
use super::reduce::SumRows;
use super::*;
use crate::tensor::{Grads, record, run};

/// Inputs on the tape: x, w1, w2, then b1 and b2 if there are any.
struct FeedForward {
    /// gelu'(u).
    derivative: Tensor,
    /// `None` where the gradient of w2 is not wanted.
    h: Option<Tensor>,
    bias: bool,
}

impl Op for FeedForward {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0, 1, 2], outputs: &[] }
    }

    fn saves_for(&self, wanted: &dyn Fn(usize) -> bool) -> Saves {
        if wanted(1) { self.saves() } else { Saves { inputs: &[1, 2], outputs: &[] } }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let (w1, w2, dy) = (saved.input(1)?, saved.input(2)?, &dy.as_rows());
        // All operands are of one type.
        let out = [0, 1, 2].map(|i| grads.dtype(i, w1));
        // Input `weight + 2` is the bias of input `weight`, if there are biases. Without x the weight is frozen.
        let parameters = |grads: &mut Grads, weight: usize, x: Option<&Tensor>, dy: &Tensor| match x {
            Some(x) if self.bias => linear_gradients(grads, [weight, weight + 2], &x.as_rows(), dy, out[weight]),
            Some(x) => {
                let product = |accumulate| MatMul { trans_a: true, accumulate, out: out[weight], ..MatMul::default() };
                grads.accumulate_with(weight, &[&x.as_rows(), dy], product)
            }
            None if self.bias => {
                let len = dy.shape().last_dim();
                grads.accumulate_with(weight + 2, &[dy], |accumulate| SumRows { accumulate, len, outputs: 1 })
            }
            None => Ok(()),
        };
        // That of an input before that of the weight, which runs beside it on a GPU.
        let product =
            MatMul { trans_b: true, epilogue: Epilogue::Multiply, out: self.derivative.dtype(), ..MatMul::default() };
        let du = &grads.run_one(&product, &[dy, w2, &self.derivative])?;
        parameters(grads, 2, self.h.as_ref(), dy)?;
        let input_gradient = |accumulate| MatMul { trans_b: true, accumulate, out: out[0], ..MatMul::default() };
        grads.accumulate_with(0, &[du, w1], input_gradient)?;
        parameters(grads, 1, saved.has_input(0).then(|| saved.input(0)).transpose()?, du)
    }
}

impl Tensor {
    /// `gelu(self w1 + b1) w2 + b2`: (..., C) -> (..., D), with w1 (C, F), w2 (F, D), and `biases` b1 (F) and b2 (D).
    ///
    /// # Errors
    /// If the shapes do not fit, or x, w1 and w2 are not all f32 or all f16, or a bias is not f32.
    pub fn feed_forward(&self, w1: &Tensor, w2: &Tensor, biases: Option<(&Tensor, &Tensor)>) -> Result<Tensor> {
        let widths = (self.shape().last_dim(), &w1.shape()[..], &w2.shape()[..]);
        if !matches!(widths, (c, [c1, f], [f2, _]) if c == *c1 && f == f2) || self.shape().len() < 2 {
            let got = format!("{}, {} and {}", self.shape(), w1.shape(), w2.shape());
            return Err(shape_error("feed_forward", "x (..., C), w1 (C, F) and w2 (F, D)", got));
        }
        let first = MatMul { bias: biases.is_some(), epilogue: Epilogue::Gelu, out: self.dtype(), ..MatMul::default() };
        let mut hidden = run(&first, &[&[self, w1], &biases.map_or(vec![], |(b1, _)| vec![b1])[..]].concat())?;
        let (h, derivative) = (hidden.remove(1), hidden.remove(0));
        let second = MatMul { bias: biases.is_some(), out: self.dtype(), ..MatMul::default() };
        let y = run(&second, &[&[&h, w2], &biases.map_or(vec![], |(_, b2)| vec![b2])[..]].concat())?;
        let inputs = [&[self, w1, w2], &biases.map_or(vec![], |(b1, b2)| vec![b1, b2])[..]].concat();
        let op = FeedForward { derivative, h: w2.needs_grad().then_some(h), bias: biases.is_some() };
        Ok(record(Box::new(op), &inputs, y).remove(0))
    }
}
