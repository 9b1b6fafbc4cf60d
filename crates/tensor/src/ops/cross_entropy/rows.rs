//! Rows of logits on the CPU: their losses and gradients.

use super::{IGNORED, Weighing};
use crate::cpu::{CHUNK, map_and_sum, math, maximum, sum_of, vectorized};
use crate::tensor::{View, ViewMut};
use rayon::prelude::*;

/// How classes are weighed.
#[derive(Clone, Copy)]
pub(super) struct Classes<'a> {
    weighing: Weighing,
    /// (V) and their sum, if they are weighted.
    weights: Option<(&'a [f32], f32)>,
}

/// The factors of one row's loss and gradient: `total`, `own` and `share` of the formulas.
#[derive(Clone, Copy)]
struct Factors {
    total: f32,
    own: f32,
    share: f32,
}

impl<'a> Classes<'a> {
    /// From the inputs that follow a kernel's others.
    pub fn new(weighing: Weighing, inputs: &[View<'a>]) -> Classes<'a> {
        let weights = weighing.weighted.then(|| (inputs[0].f32(), inputs[1].f32()[0]));
        Classes { weighing, weights }
    }

    fn factors(&self, target: u32, vocab: usize) -> Factors {
        let (kept, share) = self.weighing.shares(vocab);
        match self.weights {
            None => Factors { total: 1.0, own: kept, share },
            Some((weights, sum)) => {
                let own = kept * weights.get(target as usize).copied().unwrap_or(0.0);
                Factors { total: own + share * sum, own, share }
            }
        }
    }

    /// Factor and offset of a row's loss, given the logit of its target.
    #[inline(always)]
    fn of_loss(&self, x: &[f32], target: u32, target_logit: f32) -> (f32, f32) {
        let Factors { total, share, .. } = self.factors(target, x.len());
        if share == 0.0 {
            return (total, 0.0);
        }
        let spread = match self.weights {
            None => sum_of(
                [x],
                #[inline(always)]
                |[x]| target_logit - x,
            ),
            Some((weights, _)) => sum_of(
                [x, weights],
                #[inline(always)]
                |[x, weight]| weight * (target_logit - x),
            ),
        };
        (total, share * spread)
    }

    /// x = (total * e / s - share * weight - own * onehot) * factor, where x holds e = e^(x - m).
    #[inline(always)]
    fn gradient(&self, x: &mut [f32], target: u32, sum: f32, factor: f32) {
        if target == IGNORED {
            return x.fill(0.0);
        }
        let factor = if (target as usize) < x.len() { factor } else { f32::NAN };
        let Factors { total, own, share } = self.factors(target, x.len());
        let inv_sum = total / sum;
        let weight_of_target = self.weights.map_or(Some(1.0), |(weights, _)| weights.get(target as usize).copied());
        // Rounded once: where the target is likely, its terms nearly cancel.
        let of_target = x.get(target as usize).zip(weight_of_target);
        let of_target = of_target.map(|(e, weight)| (e * inv_sum - (own + share * weight)) * factor);
        match self.weights {
            Some((weights, _)) if share > 0.0 => {
                for (x, weight) in x.iter_mut().zip(weights) {
                    *x = (*x * inv_sum - share * weight) * factor;
                }
            }
            _ => {
                for x in x.iter_mut() {
                    *x = (*x * inv_sum - share) * factor;
                }
            }
        }
        if let (Some(x), Some(of_target)) = (x.get_mut(target as usize), of_target) {
            *x = of_target;
        }
    }
}

/// A row's m, which is finite even if all of the row is -infinity.
#[inline(always)]
fn finite_max(x: &[f32]) -> f32 {
    maximum(x).max(f32::MIN)
}

/// A row's m and s.
#[inline(always)]
fn max_and_sum_of(x: &[f32]) -> [f32; 2] {
    let row_max = finite_max(x);
    let sum = sum_of(
        [x],
        #[inline(always)]
        |[x]| math::exp(x - row_max),
    );
    [row_max, sum]
}

/// x = e^(x - m); m and s.
#[inline(always)]
fn exponentiate(x: &mut [f32]) -> [f32; 2] {
    let row_max = finite_max(x);
    let sum = map_and_sum(
        x,
        #[inline(always)]
        |x| math::exp(x - row_max),
    );
    [row_max, sum]
}

/// The plain loss of a row whose target has the logit `target_logit`, if there is such a logit.
fn row_loss(target_logit: Option<f32>, target: u32, [row_max, sum]: [f32; 2]) -> f32 {
    match (target, target_logit) {
        (IGNORED, _) => 0.0,
        (_, Some(x)) => row_max - x + sum.ln(),
        (_, None) => f32::NAN,
    }
}

/// x = (e / s - onehot) * factor, where x holds e = e^(x - m).
#[inline(always)]
fn row_gradient(x: &mut [f32], target: u32, sum: f32, factor: f32) {
    if target == IGNORED {
        return x.fill(0.0);
    }
    let factor = if (target as usize) < x.len() { factor } else { f32::NAN };
    let inv_sum = 1.0 / sum;
    let target_grad = x.get(target as usize).map(|e| (e * inv_sum - 1.0) * factor);
    for x in x.iter_mut() {
        *x = *x * inv_sum * factor;
    }
    if let (Some(x), Some(target_grad)) = (x.get_mut(target as usize), target_grad) {
        *x = target_grad;
    }
}

/// The n of the formulas.
pub(super) fn count_valid(targets: &[u32], class_weights: Option<&[f32]>) -> f32 {
    match class_weights {
        None => targets.iter().filter(|&&t| t != IGNORED).count() as f32,
        Some(weights) => {
            let weights = targets.iter().filter_map(|&t| weights.get(t as usize));
            weights.map(|&weight| f64::from(weight)).sum::<f64>() as f32
        }
    }
}

/// x / n; 0 if n = 0.
pub(super) fn over_valid(x: f64, valid: f32, weighted: bool) -> f64 {
    match (weighted, valid) {
        (false, _) => x / f64::from(valid.max(1.0)),
        (true, 0.0) => x * 0.0,
        (true, _) => x / f64::from(valid),
    }
}

pub(super) fn mean_loss(losses: &[f32], valid: f32, weighted: bool) -> f32 {
    over_valid(losses.iter().map(|&x| f64::from(x)).sum(), valid, weighted) as f32
}

/// The loss of each row, and its m and s; of its columns the first `vocab` are classes.
pub(super) fn row_losses(
    logits: &[f32],
    vocab: usize,
    targets: &[u32],
    losses: &mut [f32],
    max_and_sum: &mut [f32],
    classes: Option<Classes>,
) {
    let columns = logits.len() / targets.len().max(1);
    let rows = losses.par_iter_mut().zip(max_and_sum.par_chunks_mut(2)).zip(targets).enumerate();
    rows.with_min_len(CHUNK.div_ceil(vocab.max(1))).for_each(|(row, ((loss, max_and_sum), &target))| {
        let x = &logits[row * columns..][..vocab];
        let of_row = vectorized(
            #[inline(always)]
            || max_and_sum_of(x),
        );
        let target_logit = x.get(target as usize).copied();
        *loss = row_loss(target_logit, target, of_row);
        if let (Some(classes), Some(target_logit)) = (classes, target_logit) {
            let (total, spread) = vectorized(
                #[inline(always)]
                || classes.of_loss(x, target, target_logit),
            );
            *loss = total * *loss + spread;
        }
        max_and_sum.copy_from_slice(&of_row);
    });
}

/// dx (rows, V), given m and s of each row and what its gradient is multiplied by.
pub(super) fn gradients(
    logits: &[f32],
    targets: &[u32],
    max_and_sum: &[f32],
    factor: impl Fn(usize) -> f32 + Sync,
    classes: Option<Classes>,
    dlogits: &mut ViewMut,
) {
    let vocab = dlogits.spec.shape.last_dim();
    let dlogits = dlogits.f32();
    let rows = dlogits.par_chunks_mut(vocab).zip(logits.par_chunks(vocab)).enumerate();
    rows.with_min_len(CHUNK.div_ceil(vocab)).for_each(|(row, (dx, x))| {
        let factor = factor(row);
        let (row_max, sum) = (max_and_sum[2 * row], max_and_sum[2 * row + 1]);
        vectorized(
            #[inline(always)]
            || {
                for (dx, x) in dx.iter_mut().zip(x) {
                    *dx = math::exp(x - row_max);
                }
                match classes {
                    None => row_gradient(dx, targets[row], sum, factor),
                    Some(classes) => classes.gradient(dx, targets[row], sum, factor),
                }
            },
        );
    });
}

/// The loss of each row, and the gradient of its logits, times what `factor` says of the row, in their place; 0 in
/// columns that are no classes.
pub(super) fn classify(
    logits: &mut [f32],
    [vocab, columns]: [usize; 2],
    targets: &[u32],
    losses: &mut [f32],
    factor: impl Fn(usize) -> f32 + Sync,
    classes: Option<Classes>,
) {
    let rows = logits.par_chunks_mut(columns).zip(losses).zip(targets).enumerate();
    rows.with_min_len(CHUNK.div_ceil(columns)).for_each(|(row, ((x, loss), &target))| {
        let factor = factor(row);
        let (x, others) = x.split_at_mut(vocab);
        others.fill(0.0);
        let target_logit = x.get(target as usize).copied();
        vectorized(
            #[inline(always)]
            || match (classes, target_logit) {
                (Some(classes), Some(logit)) => {
                    let (total, spread) = classes.of_loss(x, target, logit);
                    let max_and_sum = exponentiate(x);
                    *loss = total * row_loss(target_logit, target, max_and_sum) + spread;
                    classes.gradient(x, target, max_and_sum[1], factor);
                }
                _ => {
                    let max_and_sum = exponentiate(x);
                    *loss = row_loss(target_logit, target, max_and_sum);
                    row_gradient(x, target, max_and_sum[1], factor);
                }
            },
        );
    });
}
