//! Dropout layers, which count their own passes. Language models receive a [`Dropout`] per pass instead.

use super::{Dropout, Module, Parameter, join};
use crate::ops::random::Key;
use crate::{Error, Result, Tensor};
use std::sync::atomic::{AtomicU64, Ordering};

/// The random stream of each training pass; none in evaluation.
#[derive(Debug)]
struct Passes {
    probability: f32,
    seed: u64,
    passed: AtomicU64,
    training: bool,
}

impl Passes {
    fn new(probability: f32, seed: u64) -> Passes {
        Passes { probability, seed, passed: AtomicU64::new(0), training: true }
    }

    /// The probability and the stream of the next pass, `None` if nothing is dropped.
    fn next(&self) -> Option<(f32, Key)> {
        if !self.training {
            return None;
        }
        Dropout::new(self.probability, self.seed, self.passed.fetch_add(1, Ordering::Relaxed)).next()
    }
}

/// `torch.nn.Dropout`: in training, zeroes each element with probability p and divides the others by 1 - p (Srivastava
/// et al. 2014); the identity in evaluation. The mask depends only on the seed and the number of passes so far, so each
/// layer needs its own seed.
#[derive(Debug)]
pub struct DropoutLayer(Passes);

impl DropoutLayer {
    /// A layer in training mode. The probability, in 0..1, is checked in `forward`.
    pub fn new(probability: f32, seed: u64) -> DropoutLayer {
        DropoutLayer(Passes::new(probability, seed))
    }

    /// The probability and the stream of the next pass, `None` if nothing is dropped. For ops with built-in dropout,
    /// such as attention.
    pub fn next(&self) -> Option<(f32, Key)> {
        self.0.next()
    }

    /// (...) -> (...).
    ///
    /// # Errors
    /// If x is not f32, or the probability not in 0..1.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.next().map_or(Ok(x.clone()), |(probability, key)| x.dropout(probability, key))
    }
}

impl Module for DropoutLayer {
    fn visit_parameters(&mut self, _: &str, _: &mut dyn FnMut(&str, &mut Parameter)) {}

    fn visit_counts(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut u64)) {
        visit(&join(prefix, "passes"), self.0.passed.get_mut());
    }

    fn set_training(&mut self, training: bool) {
        self.0.training = training;
    }
}

/// `torch.nn.Dropout2d`: drops whole channels of (N, C, ...) where [`DropoutLayer`] drops elements (Tompson et al.
/// 2015).
#[derive(Debug)]
pub struct Dropout2d(Passes);

impl Dropout2d {
    /// A layer in training mode. The probability, in 0..1, is checked in `forward`.
    pub fn new(probability: f32, seed: u64) -> Dropout2d {
        Dropout2d(Passes::new(probability, seed))
    }

    /// (N, C, ...) -> (N, C, ...).
    ///
    /// # Errors
    /// If x is not f32 or has no channel dimension, or the probability is not in 0..1.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let &[images, channels, ..] = &x.shape()[..] else {
            let got = x.shape().to_string();
            return Err(Error::Shape { op: "dropout2d", expected: "channels (N, C, ...)".into(), got });
        };
        let Some((probability, key)) = self.0.next() else { return Ok(x.clone()) };
        let ones = Tensor::full(1.0, [images, channels], &x.device())?;
        let shape = [&[images, channels], &vec![1; x.shape().len() - 2][..]].concat();
        x.mul(&ones.dropout(probability, key)?.reshape(shape)?)
    }
}

impl Module for Dropout2d {
    fn visit_parameters(&mut self, _: &str, _: &mut dyn FnMut(&str, &mut Parameter)) {}

    fn visit_counts(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut u64)) {
        visit(&join(prefix, "passes"), self.0.passed.get_mut());
    }

    fn set_training(&mut self, training: bool) {
        self.0.training = training;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    fn ones(shape: &[usize], device: &Device) -> Tensor {
        Tensor::full(1.0, shape, device).unwrap().requires_grad().unwrap()
    }

    #[test]
    fn elements_are_dropped_in_training_alone_and_others_in_each_pass() {
        for device in Device::for_tests() {
            let mut layer = DropoutLayer::new(0.25, 3);
            let x = ones(&[4000], &device);
            let [first, second] = [0, 1].map(|_| layer.forward(&x).unwrap().to_f32().unwrap());
            // A standard error of 27 elements.
            let dropped = first.iter().filter(|value| **value == 0.0).count();
            assert!((850..1150).contains(&dropped), "{device}: {dropped}");
            assert!(first.iter().all(|value| *value == 0.0 || (value - 4.0 / 3.0).abs() < 1e-6), "{device}");
            assert_ne!(first, second, "{device}");
            assert_eq!(first, DropoutLayer::new(0.25, 3).forward(&x).unwrap().to_f32().unwrap(), "{device}");
            layer.set_training(false);
            assert_eq!(layer.forward(&x).unwrap().to_f32().unwrap(), [1.0; 4000], "{device}");
            layer.set_training(true);
            assert_ne!(layer.forward(&x).unwrap().to_f32().unwrap(), [1.0; 4000], "{device}");
        }
    }

    #[test]
    fn channels_are_dropped_whole_with_their_gradients() {
        for device in Device::for_tests() {
            let mut layer = Dropout2d::new(0.5, 3);
            let x = ones(&[20, 15, 3, 2], &device);
            let y = layer.forward(&x).unwrap();
            y.backward_with(&Tensor::full(1.0, [20, 15, 3, 2], &device).unwrap()).unwrap();
            let values = y.to_f32().unwrap();
            let channels: Vec<&[f32]> = values.chunks(6).collect();
            assert!(channels.iter().all(|channel| *channel == [0.0; 6] || *channel == [2.0; 6]), "{device}");
            // A standard error of 9 channels.
            let dropped = channels.iter().filter(|channel| channel[0] == 0.0).count();
            assert!((100..200).contains(&dropped), "{device}: {dropped}");
            assert_eq!(x.grad().unwrap().to_f32().unwrap(), values, "{device}");
            layer.set_training(false);
            assert_eq!(layer.forward(&x).unwrap().to_f32().unwrap(), [1.0; 1800], "{device}");
            assert!(matches!(layer.forward(&ones(&[3], &device)), Err(Error::Shape { op: "dropout2d", .. })));
        }
    }

    #[test]
    fn a_probability_that_is_none_is_refused() {
        let x = ones(&[2, 3], &Device::Cpu);
        for probability in [-0.1, 1.0, f32::NAN] {
            assert!(matches!(DropoutLayer::new(probability, 1).forward(&x), Err(Error::Invalid(_))), "{probability}");
            assert!(matches!(Dropout2d::new(probability, 1).forward(&x), Err(Error::Invalid(_))), "{probability}");
        }
    }
}
