//! Losses with PyTorch's names and definitions, elementwise or by row, then reduced to their mean, to their sum, or not
//! at all ([`Reduction`]). x is the prediction, t the target.
//!
//! | op | loss of an element |
//! |---|---|
//! | mse_loss | (x - t)^2 |
//! | l1_loss | abs(x - t) |
//! | huber_loss | (x - t)^2 / 2, beyond delta: delta (abs(x - t) - delta / 2) (Huber 1964) |
//! | smooth_l1_loss | huber_loss / beta of delta = beta (Girshick 2015); with beta = 0 l1_loss |
//! | binary_cross_entropy_with_logits | (1 - t) x + (1 + (w - 1) t) log(1 + e^-x) with the weight w of positives |
//! | kl_div | t (log t - x), or e^t (t - x) of log t: x is a log-probability |
//!
//! These are rows of a table (`pointwise.rs`), differentiable with respect to x and t. `classes.rs` has classification
//! losses, `cosine.rs` the cosine embedding loss.

mod classes;
mod cosine;
mod pointwise;
mod weighted_bce;

pub use pointwise::METHODS;

use super::*;

/// The reduction of losses, as in PyTorch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Mean (), NaN of no elements; weighted if there are class weights.
    #[default]
    Mean,
    /// Sum ().
    Sum,
    /// No reduction.
    None,
}

impl Reduction {
    fn apply(self, losses: Tensor) -> Result<Tensor> {
        match self {
            Reduction::Mean => losses.mean(..),
            Reduction::Sum => losses.sum(..),
            Reduction::None => Ok(losses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn losses_of_nothing_are_as_in_pytorch() {
        for device in Device::for_tests() {
            let x = Tensor::zeros([2, 0, 3], DType::F32, &device).unwrap().requires_grad().unwrap();
            for (name, loss) in METHODS {
                let value = |by| loss(&x, &x, by).unwrap().to_f32().unwrap();
                assert!(value(Reduction::Mean)[0].is_nan(), "{device}: {name}");
                assert_eq!((value(Reduction::Sum), value(Reduction::None)), (vec![0.0], vec![]), "{device}: {name}");
                loss(&x, &x, Reduction::Mean).unwrap().backward().unwrap();
            }
            let targets = Tensor::zeros([2, 0], DType::F32, &device).unwrap();
            let sum = x.cosine_embedding_loss(&x, &targets, 0.5, Reduction::Sum).unwrap();
            assert_eq!(sum.item().unwrap(), 0.0, "{device}");
            let ids = Tensor::zeros([2, 0], DType::U32, &device).unwrap();
            for by in [Reduction::Mean, Reduction::Sum] {
                let rows = [x.nll_loss(&ids, None, by), x.cross_entropy_loss(&ids, Criterion::default(), by)];
                for loss in rows {
                    let loss = loss.unwrap();
                    assert_eq!(loss.item().unwrap(), 0.0, "{device}: {by:?}");
                    loss.backward().unwrap();
                }
            }
        }
    }

    /// Class 1 counts nothing, and of four targets one is ignored and one is no class.
    #[test]
    fn rows_without_a_class_have_no_loss_and_bad_ones_show() {
        for device in Device::for_tests() {
            let weights = Tensor::from_f32(&[1.0, 0.0, 2.0], [3], &device).unwrap();
            let check = |targets: &[u32], by, want: &[f32], want_gradient: &[f32]| {
                let n = targets.len();
                let x = Tensor::from_f32(&[-1.0, -2.0, -3.0].repeat(n), [n, 3], &device).unwrap();
                let x = x.requires_grad().unwrap();
                let ids = Tensor::from_u32(targets, [n], &device).unwrap();
                let loss = x.nll_loss(&ids, Some(&weights), by).unwrap();
                loss.backward_with(&Tensor::full(1.0, loss.shape().clone(), &device).unwrap()).unwrap();
                let same = |got: &[f32], want: &[f32]| {
                    got.len() == want.len()
                        && got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6 || a.is_nan() && b.is_nan())
                };
                let (loss, gradient) = (loss.to_f32().unwrap(), x.grad().unwrap().to_f32().unwrap());
                assert!(same(&loss, want) && same(&gradient, want_gradient), "{device}: {loss:?} {gradient:?}");
            };
            let nan = f32::NAN;
            check(&[2, IGNORED], Reduction::None, &[6.0, 0.0], &[0.0, 0.0, -2.0, 0.0, 0.0, 0.0]);
            check(&[7, 0], Reduction::None, &[nan, 1.0], &[nan, nan, nan, -1.0, 0.0, 0.0]);
            check(
                &[2, IGNORED, 0],
                Reduction::Mean,
                &[7.0 / 3.0],
                &[0.0, 0.0, -2.0 / 3.0, 0.0, 0.0, 0.0, -1.0 / 3.0, 0.0, 0.0],
            );
            // Nothing that counts: no loss, where PyTorch divides by 0.
            check(&[1, IGNORED], Reduction::Mean, &[0.0], &[0.0; 6]);
        }
    }
}
