//! Batch normalization (Ioffe and Szegedy 2015) and group normalization (Wu and He 2018). Shapes: x (N, C, ...) -> (N,
//! C, ...); weight and bias (C).
//!
//! ```text
//! n = (x - mean) rstd, rstd = 1 / sqrt(variance + eps), y = n weight + bias
//! dx = rstd (g - average(g) - n average(g n)), g = dy weight;  dweight = sum dy n;  dbias = sum dy
//! ```
//! A plane is the elements of one N and one C. Mean, variance and averages are over a set of planes: all of a channel
//! in a batch norm, a group of channels of one N in a group norm. Each plane is reduced alone, its squares around its
//! own mean, and then combined (Chan, Golub, LeVeque 1983): no cancellation, and an order that depends on the shape
//! alone.
//!
//! In evaluation, a batch norm uses running averages; dx = rstd g.

mod kernel;

use super::reduce::SumRows;
use super::*;
use crate::tensor::{Grads, record, run, run_into};
use kernel::{InputGradient, Moments, Normalize, PlaneSums, Planes, UpdateRunning};

/// Inputs: x, weight, bias.
struct ChannelNorm {
    planes: Planes,
    eps: f32,
    /// Mean and variance of each set.
    statistics: [Tensor; 2],
    /// Whether the statistics are computed from x and so depend on it.
    of_x: bool,
}

impl Op for ChannelNorm {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0, 1], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let &ChannelNorm { planes, eps, of_x, .. } = self;
        let ([mean, variance], x) = (&self.statistics, saved.input(0)?);
        // (N, 2 C): what each plane adds to the gradients of the weight and of the bias.
        let sums = grads.run_one(&PlaneSums { planes, eps }, &[dy, x, mean, variance])?;
        let parameters = |accumulate| SumRows { accumulate, len: planes.channels, outputs: 2 };
        grads.accumulate_all_with(&[1, 2], &[&sums], parameters)?;
        if !grads.needs_grad(0) {
            return Ok(());
        }
        let kernel = InputGradient { planes, eps, of_x };
        let dx = grads.run_one(&kernel, &[dy, x, mean, variance, saved.input(1)?, &sums])?;
        grads.accumulate(0, dx)
    }
}

/// The planes and sets of x; an error if weight or bias has another shape.
fn planes(op: &'static str, x: &Tensor, parameters: &[&Tensor], groups: Option<usize>) -> Result<Planes> {
    let all: Vec<&Spec> = [x].iter().chain(parameters).map(|tensor| tensor.spec()).collect();
    expect_f32(op, &all)?;
    let &[batch, channels, ref rest @ ..] = &x.shape()[..] else {
        return Err(shape_error(op, "x (N, C, ...)", x.shape()));
    };
    if let Some(other) = parameters.iter().find(|parameter| parameter.shape()[..] != [channels]) {
        return Err(shape_error(op, format!("a tensor of shape ({channels})"), other.shape()));
    }
    let size: usize = rest.iter().product();
    if channels == 0 || size == 0 || groups.is_some_and(|groups| groups == 0 || !channels.is_multiple_of(groups)) {
        let expected = format!("channels and elements of each, which groups divide ({groups:?})");
        return Err(shape_error(op, expected, x.shape()));
    }
    Ok(Planes { batch, channels, size, groups })
}

/// Normalizes x with these statistics, as an op.
fn normalize(op: ChannelNorm, [x, weight, bias]: [&Tensor; 3]) -> Result<Tensor> {
    let [mean, variance] = &op.statistics;
    let y = run(&Normalize { planes: op.planes, eps: op.eps }, &[x, mean, variance, weight, bias])?;
    Ok(record(Box::new(op), &[x, weight, bias], y).remove(0))
}

fn moments(planes: Planes, x: &Tensor) -> Result<[Tensor; 2]> {
    let mut outputs = run(&Moments { planes }, &[x])?;
    Ok([outputs.remove(0), outputs.remove(0)])
}

impl Tensor {
    /// Batch normalization of (N, C, ...) with a weight and a bias (C). With a `momentum` (training), normalizes by
    /// each channel's mean and variance, and updates the running ones (C) with that weight; the running variance has
    /// Bessel's correction. Without (evaluation), normalizes by the running ones.
    ///
    /// # Errors
    /// If this tensor is neither f32 nor f16, another is not f32, a shape does not fit, there are no channels, or, in
    /// training, a channel has fewer than two elements.
    pub fn batch_norm(
        &self,
        running: [&Tensor; 2],
        weight: &Tensor,
        bias: &Tensor,
        momentum: Option<f32>,
        eps: f32,
    ) -> Result<Tensor> {
        in_f32(self, |x| x.batch_norm_f32(running, weight, bias, momentum, eps))
    }

    fn batch_norm_f32(
        &self,
        running: [&Tensor; 2],
        weight: &Tensor,
        bias: &Tensor,
        momentum: Option<f32>,
        eps: f32,
    ) -> Result<Tensor> {
        let op = "batch_norm";
        let parameters = [running[0], running[1], weight, bias];
        let planes = planes(op, self, &parameters, None)?;
        crate::tensor::common_device(op, &[&[self], &parameters[..]].concat())?;
        let statistics = match momentum {
            None => {
                // A copy, because they may change before backward.
                let copy = |running: &Tensor| running.detach().scale(1.0);
                [copy(running[0])?, copy(running[1])?]
            }
            Some(momentum) => {
                let count = planes.batch * planes.size;
                if count < 2 {
                    return Err(shape_error(op, "at least two elements per channel", self.shape()));
                }
                let statistics = moments(planes, self)?;
                let update = UpdateRunning { channels: planes.channels, momentum, count };
                run_into(&update, &[&statistics[0], &statistics[1]], &running)?;
                statistics
            }
        };
        let op = ChannelNorm { planes, eps, statistics, of_x: momentum.is_some() };
        normalize(op, [self, weight, bias])
    }

    /// Group normalization of (N, C, ...): normalizes each of `groups` equal channel groups of each N by its mean and
    /// variance, then applies a weight and a bias (C).
    ///
    /// # Errors
    /// If this tensor is neither f32 nor f16, another is not f32, a shape does not fit, or the channels are not a
    /// positive multiple of `groups`.
    pub fn group_norm(&self, groups: usize, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        in_f32(self, |x| x.group_norm_f32(groups, weight, bias, eps))
    }

    fn group_norm_f32(&self, groups: usize, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        let planes = planes("group_norm", self, &[weight, bias], Some(groups))?;
        crate::tensor::common_device("group_norm", &[self, weight, bias])?;
        let op = ChannelNorm { planes, eps, statistics: moments(planes, self)?, of_x: true };
        normalize(op, [self, weight, bias])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::assert_close;

    #[test]
    fn running_statistics_follow_those_of_the_batches() {
        for device in Device::for_tests() {
            let of = |values: &[f32]| Tensor::from_f32(values, [values.len()], &device).unwrap();
            let x = Tensor::from_f32(&[1.0, 10.0, 3.0, 30.0, 5.0, 80.0], [3, 2], &device).unwrap();
            let (mean, variance, one, zero) = (of(&[1.0, 2.0]), of(&[1.0, 4.0]), of(&[1.0; 2]), of(&[0.0; 2]));
            x.batch_norm([&mean, &variance], &one, &zero, Some(0.25), 0.0).unwrap();
            // Means 3 and 40, variances 4 and 1300 with n - 1.
            assert_close(&device, &mean.to_f32().unwrap(), &[1.5, 11.5f32], 1e-5, 0.0);
            assert_close(&device, &variance.to_f32().unwrap(), &[1.75, 328.0f32], 1e-4, 0.0);
            let y = x.batch_norm([&mean, &variance], &one, &zero, None, 0.0).unwrap();
            assert_eq!(mean.to_f32().unwrap()[0], 1.5, "evaluation changes nothing");
            let want = |x: f32, channel: usize| (x - [1.5, 11.5][channel]) / [1.75f32, 328.0][channel].sqrt();
            let want: Vec<f32> = x.to_f32().unwrap().iter().enumerate().map(|(i, x)| want(*x, i % 2)).collect();
            assert_close(&device, &y.to_f32().unwrap(), &want, 1e-5, 1e-5);
        }
    }

    #[test]
    fn a_mean_far_from_zero_costs_no_digits_of_the_variance() {
        for device in Device::for_tests() {
            let values: Vec<f32> = (0..600).map(|i| 4096.0 + (i % 7) as f32).collect();
            let x = Tensor::from_f32(&values, [2, 1, 300], &device).unwrap();
            let [one, zero] = [1.0, 0.0].map(|value| Tensor::full(value, [1], &device).unwrap());
            let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / 600.0;
            let variance = values.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / 600.0;
            let want: Vec<f64> = values.iter().map(|x| (f64::from(*x) - mean) / variance.sqrt()).collect();
            let running = [&zero.detach(), &one.scale(1.0).unwrap()].map(Tensor::clone);
            let y = x.batch_norm([&running[0], &running[1]], &one, &zero.scale(1.0).unwrap(), Some(0.1), 0.0).unwrap();
            // Rounding of the mean alone: 2.4e-4 of values whose deviation is 2.
            assert_close(&device, &y.to_f32().unwrap(), &want, 3e-4, 0.0);
        }
    }
}
