//! Classification losses of log-probabilities or logits (..., C) against targets (..., u32), which are class ids or
//! [`IGNORED`]. Class weights w (C) default to 1.
//!
//! ```text
//! nll_loss: loss_r = -w[t_r] x_r[t_r]    dx_rj = -w[t_r] dloss_r [j = t_r]
//! ```
//! The mean divides by the sum of the targets' weights; it is 0 if that is 0. Ignored rows have no loss and no
//! gradient; an invalid target makes the loss and its row of the gradient NaN. The mean cross-entropy is in
//! `ops/cross_entropy`; its sum and its losses by row are here.

use super::*;
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::ops::cross_entropy::{Criterion, MeanLoss, RowLosses, expect_targets};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

/// Losses (rows). Inputs: x (..., C), targets (...), and if they are `weighted` the class weights (C).
struct NllLoss {
    weighted: bool,
    /// That of x.
    shape: Shape,
}

/// dx (..., C). Inputs: dlosses (rows), targets, and the class weights if there are any.
struct NllLossBackward {
    shape: Shape,
}

/// Weight of a target's log-probability; `None` if it is ignored.
fn factor(target: u32, classes: usize, weights: Option<&[f32]>) -> Option<f32> {
    match weights.and_then(|weights| weights.get(target as usize)) {
        _ if target == IGNORED => None,
        _ if target as usize >= classes => Some(f32::NAN),
        weight => Some(-weight.copied().unwrap_or(1.0)),
    }
}

fn plan(shape: &Shape, weighted: bool, backward: bool) -> Plan {
    let (rows, classes) = (shape.rows(), shape.last_dim());
    let given = if backward { "grad_output" } else { "x" };
    let mut buffers = vec![buffer(given, "f32", Operand::Input(0)), buffer("targets", "u32", Operand::Input(1))];
    buffers.extend(weighted.then_some(buffer("class_weights", "f32", Operand::Input(2))));
    buffers.push(buffer("result", "f32", Operand::Output(0)));
    let len = if backward { rows * classes } else { rows };
    Plan::one(Launch {
        shader: shader!(nll_loss),
        values: vec![("weighted", weighted.into()), ("backward", backward.into())],
        buffers,
        // As bits, because a WGSL constant may not be a NaN.
        params: vec![param("len", len), param("classes", classes), param("nan", f32::NAN.to_bits())],
        workgroups: len.div_ceil(256),
    })
}

impl Kernel for NllLoss {
    fn name(&self) -> &'static str {
        "nll_loss"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_targets(self.name(), self.shape.rows(), inputs[1])?;
        Ok(vec![Spec::new([self.shape.rows()], DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // Of each row one element is read.
        streaming_cost(outputs[0].shape.elements(), &[&inputs[1..], outputs].concat(), outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (x, targets, weights) = (inputs[0].f32(), inputs[1].u32(), inputs.get(2).map(View::f32));
        let classes = self.shape.last_dim();
        for (row, (loss, &target)) in outputs[0].f32().iter_mut().zip(targets).enumerate() {
            let log_probability = x[row * classes..][..classes].get(target as usize).copied().unwrap_or(1.0);
            *loss = factor(target, classes, weights).map_or(0.0, |factor| factor * log_probability);
        }
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        plan(&self.shape, self.weighted, false)
    }
}

impl Op for NllLoss {
    fn saves(&self) -> Saves {
        Saves { inputs: &[1, 2], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dlosses) = &grad_output[0] else { return Ok(()) };
        let weights = self.weighted.then(|| saved.input(2)).transpose()?;
        let inputs: Vec<&Tensor> = [dlosses, saved.input(1)?].into_iter().chain(weights).collect();
        grads.accumulate(0, grads.run_one(&NllLossBackward { shape: self.shape.clone() }, &inputs)?)
    }
}

impl Kernel for NllLossBackward {
    fn name(&self) -> &'static str {
        "nll_loss_backward"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(self.shape.clone(), DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(self.shape.rows(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (dlosses, targets, weights) = (inputs[0].f32(), inputs[1].u32(), inputs.get(2).map(View::f32));
        let classes = self.shape.last_dim();
        let rows = outputs[0].f32().par_chunks_mut(classes).zip(dlosses).zip(targets);
        rows.with_min_len(CHUNK.div_ceil(classes)).for_each(|((dx, dloss), &target)| {
            let factor = factor(target, classes, weights);
            match (dx.get_mut(target as usize), factor) {
                (Some(_), Some(factor)) => {
                    dx.fill(0.0);
                    dx[target as usize] = factor * dloss;
                }
                _ => dx.fill(factor.unwrap_or(0.0)), // NaN where there is no such class
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        plan(&self.shape, inputs.len() > 2, true)
    }
}

/// Fails unless x is f32 (..., C) of at least one class.
fn expect_rows(op: &'static str, x: &Tensor) -> Result<()> {
    expect_f32(op, &[x.spec()])?;
    if x.shape().is_empty() || x.shape().last_dim() == 0 {
        return Err(shape_error(op, "rows of classes (..., C)", x.shape()));
    }
    Ok(())
}

impl Tensor {
    /// Negative log-likelihood of these log-probabilities (..., C) against `targets` (..., u32), which are class ids or
    /// [`IGNORED`]: the losses (...), their sum, or their mean weighted by class. `class_weights` (C) are f32 and get
    /// no gradient.
    ///
    /// # Errors
    /// If a shape or type does not fit, or the class weights require a gradient.
    pub fn nll_loss(&self, targets: &Tensor, class_weights: Option<&Tensor>, reduction: Reduction) -> Result<Tensor> {
        const OP: &str = "nll_loss";
        expect_rows(OP, self)?;
        let (_, weights) = Criterion { class_weights, ..Criterion::default() }.prepare(OP, self.shape().last_dim())?;
        let weights = weights.first();
        let op = NllLoss { weighted: weights.is_some(), shape: self.shape().clone() };
        let inputs: Vec<&Tensor> = [self, targets].into_iter().chain(weights).collect();
        let losses = apply_one(op, &inputs)?;
        match reduction {
            Reduction::Mean => apply_one(MeanLoss, &[[&losses].as_slice(), &inputs[1..]].concat()),
            Reduction::Sum => losses.sum(..),
            Reduction::None => losses.reshape(targets.shape().clone()),
        }
    }

    /// Cross-entropy of these logits (..., C) against `targets` (..., u32), which are class ids or [`IGNORED`]: the
    /// losses (...) or their sum. For the mean use [`Tensor::cross_entropy`].
    ///
    /// # Errors
    /// If the logits are not f32, the targets not u32, there are not as many targets as rows of logits, or the
    /// criterion does not fit.
    pub fn cross_entropy_loss(&self, targets: &Tensor, criterion: Criterion, reduction: Reduction) -> Result<Tensor> {
        const OP: &str = "cross_entropy_loss";
        if reduction == Reduction::Mean {
            return self.cross_entropy(targets, criterion);
        }
        expect_rows(OP, self)?;
        let vocab = self.shape().last_dim();
        let (weighing, weights) = criterion.prepare(OP, vocab)?;
        let inputs = [self, targets].into_iter().chain(&weights).collect::<Vec<_>>();
        let losses = apply_one(RowLosses { vocab, weighing }, &inputs)?;
        if reduction == Reduction::Sum { losses.sum(..) } else { losses.reshape(targets.shape().clone()) }
    }
}
