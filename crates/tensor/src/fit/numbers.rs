//! Loss and gradient norm of an update, read asynchronously.

use crate::optim::Optimizer;
use crate::tensor::Readback;
use crate::{Error, Result, Tensor};
use std::time::Instant;

/// Metrics of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Numbers {
    pub loss: f64,
    /// Global gradient norm before clipping; not finite if the update was skipped.
    pub grad_norm: f64,
    /// Updates skipped so far because the norm was not finite.
    pub skipped: u32,
    /// The loss scale in mixed precision.
    pub loss_scale: Option<LossScale>,
}

/// The loss scale in mixed precision, and the updates skipped so far because it overflowed, which [`Numbers::skipped`]
/// does not count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScale {
    pub scale: f64,
    pub overflows: u64,
}

/// A pending read of [`Numbers`].
pub struct PendingNumbers {
    /// The loss, the sum of the squared gradients, and the count of skipped updates: the first element of each.
    words: [Readback; 3],
    loss_scale: Option<Readback>,
}

impl PendingNumbers {
    /// Starts reading the numbers of an update; `squares` is the result of [`Optimizer::step`].
    ///
    /// # Errors
    /// If host memory runs out, or the driver reported an error.
    #[doc(hidden)]
    pub fn new(loss: &Tensor, squares: &Tensor, optimizer: &Optimizer) -> Result<PendingNumbers> {
        PendingNumbers::of([loss, squares, optimizer.skipped()], optimizer.loss_scale())
    }

    pub(super) fn of(words: [&Tensor; 3], loss_scale: Option<&Tensor>) -> Result<PendingNumbers> {
        let [loss, squares, skipped] = words;
        let words = [loss.read_later()?, squares.read_later()?, skipped.read_later()?];
        Ok(PendingNumbers { words, loss_scale: loss_scale.map(Tensor::read_later).transpose()? })
    }

    /// Whether all numbers have arrived. Does not wait; call it repeatedly to make progress.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn has_arrived(&mut self) -> Result<bool> {
        let mut numbers = self.words.iter_mut().chain(&mut self.loss_scale);
        numbers.try_fold(true, |all, number| Ok(all & number.has_arrived()?))
    }

    /// When the last of them arrived; `None` until [`PendingNumbers::has_arrived`] returns true.
    pub fn arrived_at(&self) -> Option<Instant> {
        let mut numbers = self.words.iter().chain(&self.loss_scale).map(Readback::arrived_at);
        numbers.try_fold(None, |latest, at| at.map(|at| latest.max(Some(at)))).flatten()
    }

    /// Waits for the numbers.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn wait(self) -> Result<Numbers> {
        let word = |number: Readback| Ok::<u32, Error>(bytemuck::pod_read_unaligned(&number.wait()?[..4]));
        let [loss, squares, skipped] = self.words.map(word);
        let [loss, squares] = [loss?, squares?].map(|bits| f64::from(f32::from_bits(bits)));
        let loss_scale = self.loss_scale.map(Readback::wait).transpose()?.map(|state| {
            let [scale, _, overflows]: [f32; 3] = bytemuck::pod_read_unaligned(&state);
            LossScale { scale: f64::from(scale), overflows: overflows as u64 }
        });
        Ok(Numbers { loss, grad_norm: squares.sqrt(), skipped: skipped?, loss_scale })
    }
}
