//! Compares an export with its model.

use crate::data::{IGNORE_INDEX, Row, Tokens, eval_windows};
use crate::models::LanguageModel;
use crate::tensor::no_grad;
use crate::{Device, Error, Result, Tensor};
use serde::Serialize;

/// Tokens of a window, at most.
const CONTEXT: usize = 256;

/// How far the logits of the same numbers may be apart, as a share of the largest: a vocabulary with one row more may
/// be added up in another order.
const EXACT: f32 = 1e-4;

/// Comparison of two models on the same text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Tokens predicted.
    pub tokens: usize,
    /// Mean cross-entropy of the model, nats per token, and of the export.
    pub loss_before: f64,
    pub loss_after: f64,
    /// Largest difference between logits of the same token.
    pub largest_difference: f32,
    /// Fraction of positions with the same most likely token.
    pub same_top_token: f64,
}

/// Logits (T, V) of a window, row by row.
fn logits(model: &dyn LanguageModel, ids: &[u32], device: &Device) -> Result<(Vec<f32>, usize)> {
    let logits = no_grad(|| model.logits(&Tensor::from_u32(ids, [1, ids.len()], device)?))?;
    Ok((logits.to_f32()?, logits.shape().last_dim()))
}

/// The first of the largest.
fn top(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// -ln of the probability of this token.
fn cross_entropy(row: &[f32], target: u32) -> f64 {
    let max = f64::from(row[top(row)]);
    let sum: f64 = row.iter().map(|x| (f64::from(*x) - max).exp()).sum();
    max + sum.ln() - f64::from(row[target as usize])
}

/// Compares two models on `tokens`, in their common vocabulary rows: `after` may have more, which are never sampled.
///
/// # Errors
/// If a logit is not finite, or `is_exact` and logits differ; or the device reported an error.
pub fn compare(
    mut before: Box<dyn LanguageModel>,
    mut after: Box<dyn LanguageModel>,
    tokens: &Tokens,
    device: &Device,
    is_exact: bool,
) -> Result<Comparison> {
    before.to_device(device)?;
    after.to_device(device)?;
    let context = before.config().block_size.min(CONTEXT);
    let (mut count, mut losses, mut same, mut largest, mut magnitude) = (0, [0.0; 2], 0, 0.0_f32, 1.0_f32);
    for Row { ids, targets, .. } in eval_windows(tokens, context, context)? {
        let (x, x_row) = logits(&*before, &ids, device)?;
        let (y, y_row) = logits(&*after, &ids, device)?;
        for (i, target) in targets.into_iter().enumerate().filter(|(_, target)| *target != IGNORE_INDEX) {
            let (x, y) = (&x[i * x_row..][..x_row], &y[i * y_row..][..x_row]);
            for (whose, logits) in [("the model", x), ("the exported model", y)] {
                if let Some(wrong) = logits.iter().find(|logit| !logit.is_finite()) {
                    return Err(Error::Invalid(format!("{whose} returns {wrong}; nothing was written")));
                }
            }
            losses[0] += cross_entropy(x, target);
            losses[1] += cross_entropy(y, target);
            largest = x.iter().zip(y).fold(largest, |most, (x, y)| most.max((x - y).abs()));
            magnitude = x.iter().fold(magnitude, |most, x| most.max(x.abs()));
            same += usize::from(top(x) == top(y));
            count += 1;
        }
    }
    if is_exact && largest > EXACT * magnitude {
        return Err(Error::Invalid(format!(
            "what was exported differs from the model by {largest} in its logits, in f32: it was not written; this is \
             an error of rustyflow"
        )));
    }
    let mean = |sum: f64| sum / count.max(1) as f64;
    let [loss_before, loss_after] = losses.map(mean);
    let same_top_token = mean(same as f64);
    Ok(Comparison { tokens: count, loss_before, loss_after, largest_difference: largest, same_top_token })
}

/// The token that the model finds least likely in the first window, on the mean of logits.
pub(super) fn least_likely(model: &dyn LanguageModel, tokens: &Tokens) -> Result<usize> {
    let mut ids = vec![0; tokens.len().min(CONTEXT).min(model.config().block_size)];
    tokens.copy(0, &mut ids);
    let (logits, row) = logits(model, &ids, &model.device())?;
    let mean = |token: usize| logits[token..].iter().step_by(row).map(|x| f64::from(*x)).sum::<f64>();
    Ok((0..row).map(mean).enumerate().min_by(|(_, x), (_, y)| x.total_cmp(y)).map_or(0, |(token, _)| token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::build;
    use crate::models::testing::small;

    fn tokens() -> Tokens {
        (0..60u32).map(|i| i * 7 % 11).collect::<Vec<u32>>().into()
    }

    fn compared(change: f32, is_exact: bool) -> Result<Comparison> {
        let config = small(11, 8, 2, 8);
        let (before, mut after) = (build(&config, 1)?, build(&config, 1)?);
        // The largest parameter of all: the embedding, which is the head.
        let (_, tensor) = after.parameters().remove(0);
        let mut values = tensor.to_f32()?;
        values[0] += change;
        tensor.write_bytes(bytemuck::cast_slice(&values))?;
        compare(before, after, &tokens(), &Device::Cpu, is_exact)
    }

    #[test]
    fn the_same_model_has_no_difference_and_another_one_has() {
        let same = compared(0.0, true).unwrap();
        assert_eq!((same.tokens, same.largest_difference, same.same_top_token), (59, 0.0, 1.0));
        assert_eq!(same.loss_before, same.loss_after);
        // ln 11, before anything is learned.
        assert!((same.loss_before - 2.4).abs() < 0.1, "{same:?}");
        let other = compared(0.5, false).unwrap();
        assert!(other.largest_difference > 0.1 && other.loss_before != other.loss_after, "{other:?}");
    }

    #[test]
    fn a_difference_where_there_must_be_none_is_an_error() {
        assert!(compared(0.5, true).unwrap_err().to_string().contains("differs from the model by"));
        let error = compared(f32::NAN, false).unwrap_err().to_string();
        assert!(error.contains("the exported model returns NaN"), "{error}");
        let config = small(11, 8, 2, 8);
        let (mut broken, good) = (build(&config, 1).unwrap(), build(&config, 1).unwrap());
        let (_, tensor) = broken.parameters().remove(0);
        tensor.write_bytes(bytemuck::cast_slice(&vec![f32::NAN; tensor.len()])).unwrap();
        let error = compare(broken, good, &tokens(), &Device::Cpu, false).unwrap_err().to_string();
        assert!(error.contains("the model returns NaN"), "{error}");
    }
}
