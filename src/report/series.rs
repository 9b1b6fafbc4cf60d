//! Curves of a run: smoothed, and downsampled for display.

use super::record::RunRecord;
use serde_json::{Value, json};

/// Columns of a chart: a series of more than eight points for each is thinned.
const COLUMNS: usize = 400;
/// The half-life of smoothing, as a part of the run.
const HALF_LIFE: f64 = 0.005;

/// A quantity over steps, in ascending order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub steps: Vec<f64>,
    /// Training seconds.
    pub seconds: Vec<f64>,
    /// Values; NaN if not finite.
    pub values: Vec<f64>,
}

/// Indices of the points needed for a chart with this number of columns, on a linear or logarithmic axis: of each
/// column the first, last, lowest and highest, and the first non-finite one.
pub fn thin(x: &[f64], y: &[f64], columns: usize) -> Vec<usize> {
    let (count, columns) = (x.len().min(y.len()), columns.max(1));
    if count <= columns.saturating_mul(8) {
        return (0..count).collect();
    }
    let mut kept = vec![false; count];
    for scale in [|x: f64| x, |x: f64| x.max(1.0).ln()] {
        let (low, high) = (scale(x[0]), scale(x[count - 1]));
        let width = (high - low).max(f64::MIN_POSITIVE);
        let column = |i: usize| (((scale(x[i]) - low) / width * columns as f64) as usize).min(columns - 1);
        let mut start = 0;
        while start < count {
            let end = (start..count).find(|&i| column(i) != column(start)).unwrap_or(count);
            let numbers = || (start..end).filter(|&i| !y[i].is_nan());
            let lowest = numbers().min_by(|&a, &b| y[a].total_cmp(&y[b]));
            let highest = numbers().max_by(|&a, &b| y[a].total_cmp(&y[b]));
            let none = (start..end).find(|&i| y[i].is_nan());
            for i in [Some(start), Some(end - 1), lowest, highest, none].into_iter().flatten() {
                kept[i] = true;
            }
            start = end;
        }
    }
    (0..count).filter(|&i| kept[i]).collect()
}

impl Series {
    fn new(steps: &[f64], seconds: &[f64], values: impl Iterator<Item = f64>) -> Series {
        Series { steps: steps.to_vec(), seconds: seconds.to_vec(), values: values.collect() }
    }

    /// A bias-corrected exponential moving average, with a half-life proportional to the run.
    pub(super) fn smoothed(&self) -> Series {
        let span = self.steps.last().copied().unwrap_or(0.0) - self.steps.first().copied().unwrap_or(0.0);
        let half_life = (HALF_LIFE * span).max(1.0);
        let (mut sum, mut weight, mut before) = (0.0, 0.0, None);
        let points = self.steps.iter().zip(&self.values).map(|(&step, &value)| {
            let kept = 0.5f64.powf((step - before.replace(step).unwrap_or(step - 1.0)) / half_life);
            if value.is_finite() {
                sum = kept * sum + (1.0 - kept) * value;
                weight = kept * weight + (1.0 - kept);
            }
            if weight > 0.0 { sum / weight } else { f64::NAN }
        });
        Series::new(&self.steps, &self.seconds, points)
    }

    /// As a page takes it: thinned, with the number of points that there were.
    pub(super) fn json(&self) -> Value {
        let kept = thin(&self.steps, &self.values, COLUMNS);
        let pick = |values: &[f64]| kept.iter().map(|&i| values[i]).collect::<Vec<_>>();
        // A millisecond is finer than a screen shows; what is no number becomes null.
        let seconds: Vec<f64> = pick(&self.seconds).iter().map(|s| (1e3 * s).round() / 1e3).collect();
        let steps: Vec<u64> = pick(&self.steps).iter().map(|&step| step as u64).collect();
        json!({ "steps": steps, "seconds": seconds, "values": pick(&self.values), "of": self.steps.len() })
    }
}

/// The curves of one run.
pub(super) struct Curves {
    pub train: Series,
    pub validation: Series,
    pub learning_rate: Series,
    pub grad_norm: Series,
    pub tokens_per_s: Series,
    pub reward_margin: Series,
}

impl Curves {
    pub(super) fn of(run: &RunRecord) -> Curves {
        let metrics = &run.metrics;
        let steps: Vec<f64> = metrics.steps.iter().map(|point| point.step as f64).collect();
        let seconds = metrics.training_seconds(run.tokens_per_step());
        let of = |value: fn(&super::StepPoint) -> f64| Series::new(&steps, &seconds, metrics.steps.iter().map(value));
        let at: Vec<f64> = metrics.evaluations.iter().map(|point| point.step as f64).collect();
        let at_seconds: Vec<f64> = at.iter().map(|&step| interpolate(&steps, &seconds, step).unwrap_or(0.0)).collect();
        Curves {
            train: of(|point| point.loss),
            validation: Series::new(&at, &at_seconds, metrics.evaluations.iter().map(|point| point.loss)),
            learning_rate: of(|point| point.learning_rate),
            grad_norm: of(|point| point.grad_norm),
            tokens_per_s: of(|point| point.tokens_per_s),
            reward_margin: of(|point| point.reward_margin),
        }
    }
}

/// Training loss (smoothed) and validation loss by step.
pub fn loss_curves(run: &RunRecord) -> [Vec<(f64, f64)>; 2] {
    let Curves { train, validation, .. } = Curves::of(run);
    let points = |s: Series| s.steps.into_iter().zip(s.values).filter(|(_, value)| value.is_finite()).collect();
    [points(train.smoothed()), points(validation)]
}

/// The value at `at` on the line through the points, which ascend in `x`; `None` outside of them.
pub(super) fn interpolate(x: &[f64], y: &[f64], at: f64) -> Option<f64> {
    let after = x.partition_point(|&x| x < at);
    let right = *x.get(after)?;
    if right == at {
        return Some(y[after]).filter(|y| y.is_finite());
    }
    let before = after.checked_sub(1)?;
    let part = (at - x[before]) / (right - x[before]);
    Some(y[before] + part * (y[after] - y[before])).filter(|y| y.is_finite())
}
