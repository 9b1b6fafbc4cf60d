//! Options of cross-entropy: label smoothing (Szegedy et al. 2016) and class weights.

use crate::ops::{expect_dtype, shape_error};
use crate::tensor::{DType, Edge, no_grad};
use crate::{Error, Result, Tensor};

/// The arguments `label_smoothing` and `weight` of PyTorch's `cross_entropy` with `reduction="mean"`. The default is
/// the plain loss.
#[derive(Debug, Clone, Copy, Default)]
pub struct Criterion<'a> {
    /// In 0..=1: the share of each target's probability that is spread evenly over all V classes.
    pub label_smoothing: f32,
    /// (V), f32, nonnegative: the weight of each class. The mean divides by the sum of the targets' weights.
    pub class_weights: Option<&'a Tensor>,
}

/// A criterion as kernel parameters. If `weighted`, two more inputs follow: the class weights (V) and their sum ().
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::ops) struct Weighing {
    pub smoothing: f32,
    pub weighted: bool,
}

impl Criterion<'_> {
    /// Kernel parameters, and the additional inputs.
    ///
    /// # Errors
    /// If the smoothing is not in 0..=1, or the weights are not (V) of f32, or are to be differentiated.
    pub(in crate::ops) fn prepare(&self, op: &'static str, vocab: usize) -> Result<(Weighing, Vec<Tensor>)> {
        let &Criterion { label_smoothing: smoothing, class_weights } = self;
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(Error::Invalid(format!("{op}: label smoothing must be from 0 to 1, not {smoothing}")));
        }
        let weighing = Weighing { smoothing, weighted: class_weights.is_some() };
        let Some(weights) = class_weights else { return Ok((weighing, Vec::new())) };
        expect_dtype(op, DType::F32, &[weights.spec()])?;
        if weights.shape()[..] != [vocab] {
            return Err(shape_error(op, format!("class weights ({vocab})"), weights.spec()));
        }
        if !matches!(weights.edge(), Edge::None) {
            let message = format!("{op}: class weights have no gradient; detach them");
            return Err(Error::Autograd(message));
        }
        Ok((weighing, vec![weights.clone(), no_grad(|| weights.sum(0))?]))
    }
}

impl Weighing {
    /// Whether it differs from the plain loss.
    pub fn is_plain(self) -> bool {
        self == Weighing::default()
    }

    /// The share of the target's class, and the share of every class.
    pub fn shares(self, vocab: usize) -> (f32, f32) {
        (1.0 - self.smoothing, self.smoothing / vocab as f32)
    }
}
