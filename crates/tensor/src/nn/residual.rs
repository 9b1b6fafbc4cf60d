//! The residual stream of a Transformer (Vaswani et al. 2017, pre-norm): every layer reads its norm and adds a branch
//! to it.
//!
//! x + dropout(branch) and the norm of that sum are one kernel ([`Norm::forward_add`]). `add` therefore defers the
//! branch, and the next `norm` adds it, whichever layer calls it.
//!
//! Shapes: all tensors are (..., C).

use super::{Dropout, Linear, Norm};
use crate::ops::random::Key;
use crate::tensor::recompute;
use crate::{DType, Result, Tensor};

/// x and a pending branch.
pub struct ResidualStream {
    /// f32
    x: Tensor,
    pending: Option<Branch>,
    /// Output type of norms, which is the type of GEMM operands.
    operand: DType,
}

/// A layer's output, and the probability and key of its dropout.
struct Branch {
    value: Tensor,
    dropout: Option<(f32, Key)>,
}

impl ResidualStream {
    /// A stream that starts with x (f32). Its norms return type `operand`.
    pub fn new(x: Tensor, operand: DType) -> ResidualStream {
        ResidualStream { x, pending: None, operand }
    }

    /// Adds dropout(branch), f32 or f16. The sum is deferred to the next norm.
    ///
    /// # Errors
    /// If adding a branch that is still pending fails.
    pub fn add(&mut self, branch: Tensor, dropout: &Dropout) -> Result<()> {
        self.materialize()?;
        self.pending = Some(Branch { value: branch, dropout: dropout.next() });
        Ok(())
    }

    /// The normalized stream, of the type of GEMM operands.
    ///
    /// # Errors
    /// If the shapes of stream, branch and norm differ.
    pub fn norm(&mut self, norm: &impl Norm) -> Result<Tensor> {
        let Some(Branch { value, dropout }) = self.pending.take() else { return norm.forward(&self.x, self.operand) };
        let (x, normal) = norm.forward_add(&self.x, &value, dropout, self.operand)?;
        self.x = x;
        Ok(normal)
    }

    /// `linear(norm(stream))`.
    ///
    /// # Errors
    /// If the shapes of stream, branch, norm and layer differ.
    pub fn norm_linear(&mut self, norm: &impl Norm, linear: &Linear, dropout: &Dropout) -> Result<Tensor> {
        match self.fused(norm, linear, false)? {
            Some(y) => Ok(y),
            None => linear.forward(&self.norm(norm)?, dropout),
        }
    }

    /// GELU of [`ResidualStream::norm_linear`] if one kernel computes both, as in a generation step; else `None`.
    ///
    /// # Errors
    /// Those of [`ResidualStream::norm_linear`].
    pub fn norm_linear_gelu(&mut self, norm: &impl Norm, linear: &Linear) -> Result<Option<Tensor>> {
        self.fused(norm, linear, true)
    }

    /// Norm and layer as one launch, where that is faster.
    fn fused(&mut self, norm: &impl Norm, linear: &Linear, gelu: bool) -> Result<Option<Tensor>> {
        let drops = self.pending.as_ref().is_some_and(|branch| branch.dropout.is_some());
        let Some(parts) = linear.parts(gelu).filter(|_| !drops && self.x.prefers_norm_linear()) else {
            return Ok(None);
        };
        let branch = self.pending.take().map(|branch| branch.value);
        let (x, y) = self.x.norm_linear(branch.as_ref(), norm.parts(), parts, self.operand)?;
        self.x = x;
        Ok(Some(y))
    }

    /// The stream after a block with activation recomputation: only the stream before the block is kept, and backward
    /// recomputes the block's activations (`tensor::recompute`).
    ///
    /// # Errors
    /// Those of the block.
    pub fn recomputed(
        self,
        dropout: &Dropout,
        block: impl Fn(ResidualStream, &Dropout) -> Result<ResidualStream> + Send + Sync + 'static,
    ) -> Result<ResidualStream> {
        let ResidualStream { x, pending, operand } = self;
        let (branch, dropped) = pending.map(|Branch { value, dropout }| (value, dropout)).unzip();
        let inputs: Vec<&Tensor> = [&x].into_iter().chain(&branch).collect();
        let segment = move |inputs: &[Tensor], dropout: &Dropout| {
            let pending = inputs.get(1).zip(dropped).map(|(value, dropout)| Branch { value: value.clone(), dropout });
            let after = block(ResidualStream { x: inputs[0].clone(), pending, operand }, dropout)?;
            let (branch, dropped) = after.pending.map(|Branch { value, dropout }| (value, dropout)).unzip();
            Ok(([after.x].into_iter().chain(branch).collect(), dropped))
        };
        let (mut outputs, dropped) = with_dropout(&inputs, dropout, segment)?;
        let pending = dropped.map(|dropout| Branch { value: outputs.remove(1), dropout });
        Ok(ResidualStream { x: outputs.remove(0), pending, operand })
    }

    /// Adds the pending branch without a norm.
    fn materialize(&mut self) -> Result<()> {
        let Some(Branch { value, dropout }) = self.pending.take() else { return Ok(()) };
        let branch = value.to_dtype(DType::F32)?;
        let branch = dropout.map_or(Ok(branch.clone()), |(probability, key)| branch.dropout(probability, key))?;
        self.x = self.x.add(&branch)?;
        Ok(())
    }
}

/// `layer(x)`, of which backward keeps only x and recomputes the rest.
///
/// # Errors
/// Those of the layer.
pub fn recomputed(
    x: &Tensor,
    dropout: &Dropout,
    layer: impl Fn(&Tensor, &Dropout) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let segment = move |inputs: &[Tensor], dropout: &Dropout| Ok((vec![layer(&inputs[0], dropout)?], ()));
    Ok(with_dropout(&[x], dropout, segment)?.0.remove(0))
}

/// [`recompute`] of a segment with dropout: each run drops the same elements.
fn with_dropout<T>(
    inputs: &[&Tensor],
    dropout: &Dropout,
    segment: impl Fn(&[Tensor], &Dropout) -> Result<(Vec<Tensor>, T)> + Send + Sync + 'static,
) -> Result<(Vec<Tensor>, T)> {
    let before = dropout.clone();
    let (outputs, (told, after)) = recompute(inputs, move |inputs| {
        let dropout = before.clone();
        let (outputs, told) = segment(inputs, &dropout)?;
        Ok((outputs, (told, dropout)))
    })?;
    dropout.go_on_from(&after);
    Ok((outputs, told))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::nn::LayerNorm;

    /// Two branches, as of blocks whose attention and feed-forward layer run side by side: one of them is added by the
    /// norm.
    #[test]
    fn branches_that_follow_each_other_are_all_added() {
        for device in Device::for_tests() {
            let leaf = |values: [f32; 4]| Tensor::from_f32(&values, [2, 2], &device).unwrap().requires_grad().unwrap();
            let [x, a, b] = [[1.0, -2.0, 0.5, 4.0], [3.0, 1.0, -1.0, 2.0], [0.25, 2.0, 1.0, -5.0]].map(leaf);
            let mut norm = LayerNorm::new(2, true).unwrap();
            norm.weight = Tensor::from_f32(&[2.0, 0.5], [2], &device).unwrap().into();
            norm.bias = Some(Tensor::from_f32(&[1.0, -1.0], [2], &device).unwrap().into());
            // Half of each branch is dropped: which, both ways draw in the same order.
            let (dropout, same) = (Dropout::new(0.5, 3, 1), Dropout::new(0.5, 3, 1));
            let mut stream = ResidualStream::new(x.clone(), DType::F32);
            stream.add(a.clone(), &dropout).unwrap();
            stream.add(b.clone(), &dropout).unwrap();
            let got = stream.norm(&norm).unwrap();
            let (probability, key) = same.next().unwrap();
            let sum = x.add(&a.dropout(probability, key).unwrap()).unwrap();
            let (_, want) = norm.forward_add(&sum, &b, same.next(), DType::F32).unwrap();
            assert_eq!(got.to_f32().unwrap(), want.to_f32().unwrap(), "{device}");
            // A second norm sees the same sum; nothing is added twice.
            assert_eq!(stream.norm(&norm).unwrap().to_f32().unwrap(), want.to_f32().unwrap(), "{device}");
            got.sum(0).unwrap().sum(0).unwrap().backward().unwrap();
            for tensor in [&x, &a, &b] {
                assert!(tensor.grad().unwrap().to_f32().unwrap().iter().any(|g| *g != 0.0), "{device}");
            }
        }
    }
}
