//! Log-probabilities of targets, without the tensor of all logits. Shapes: h (..., C), weight (V, C), bias (V),
//! targets (...) -> y (...).
//!
//! ```text
//! x = h weight^T [+ bias]    y_r = log softmax(x_r)[t_r]    dx_rj = ([j = t_r] - softmax(x_r)_j) dy_r
//! ```
//! Losses of whole texts, such as DPO's, know dy only when y is known. So backward computes the logits again, as many
//! at a time as [`Tensor::linear_cross_entropy`].

use super::{Classifier, in_chunks};
use crate::ops::cross_entropy::Criterion;
use crate::tensor::{Edge, Grads, Op, Saved, Saves, Shape, no_grad, record};
use crate::{Result, Tensor};

/// Inputs: h, the weight by the rows in each of its buffers, the bias if there is one.
struct LinearLogProbs {
    classifier: Classifier,
    /// (R)
    targets: Tensor,
    loss_scale: Option<Tensor>,
    /// Which inputs need a gradient: h, weight, bias.
    needs: [bool; 3],
}

impl Op for LinearLogProbs {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        // Of losses, which are -y.
        let factors = no_grad(|| {
            let dy = dy.reshape([self.targets.len()])?.scale(-1.0)?;
            self.loss_scale.as_ref().map_or(Ok(dy.clone()), |scale| dy.mul(&scale.reshape([scale.len()])?.rows(0, 1)))
        })?;
        let (_, gradients) = in_chunks(&self.classifier, saved.input(0)?, &self.targets, self.needs, &[&factors])?;
        gradients.give(None, grads)
    }
}

impl Tensor {
    /// The log-probability of each of the u32 `targets` (...), in nats, f32 (...), for this tensor (..., C), `weight`
    /// (V, C) and an f32 bias (V): 0 where the target is [`IGNORED`](super::IGNORED). Gradients are multiplied by the
    /// first element of `loss_scale` (f32), if given.
    ///
    /// # Errors
    /// If shapes or types do not fit, or there are no rows.
    pub fn linear_log_probs(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        targets: &Tensor,
        loss_scale: Option<&Tensor>,
    ) -> Result<Tensor> {
        let criterion = Criterion::default();
        let classifier = Classifier::new("linear_log_probs", self, (weight, bias), targets, criterion, loss_scale)?;
        let rows = targets.view(Shape::from([self.shape().rows()]), Edge::None); // (R)
        let (losses, _) = in_chunks(&classifier, self, &rows, [false; 3], &[])?;
        let y = no_grad(|| losses.scale(-1.0)?.reshape(targets.shape().clone()))?;
        let Classifier { weight, bias, .. } = &classifier;
        let needs = [self.needs_grad(), weight.needs_grad(), bias.as_ref().is_some_and(Tensor::needs_grad)];
        let inputs = classifier.inputs(self);
        let op = LinearLogProbs { classifier, targets: rows, loss_scale: loss_scale.cloned(), needs };
        Ok(record(Box::new(op), &inputs.iter().collect::<Vec<_>>(), vec![y]).remove(0))
    }
}
