//! The numbers of an update: its loss and the norm of its gradients, which the device may still be computing.

use crate::optim::Optimizer;
use crate::tensor::Readback;
use crate::{Error, Result, Tensor};
use std::time::Instant;

/// What an update reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Numbers {
    pub loss: f64,
    /// The global norm of the gradients before clipping. Not finite if the update was skipped.
    pub grad_norm: f64,
    /// How many updates the optimizer has skipped so far, because the norm was not finite.
    pub skipped: u32,
    /// In mixed precision the scale of the loss.
    pub loss_scale: Option<LossScale>,
}

/// The scale of the loss in mixed precision, and how many updates were skipped so far because it was too large. These
/// are not among [`Numbers::skipped`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScale {
    pub scale: f64,
    pub overflows: u64,
}

/// [`Numbers`] on their way from the device.
pub struct PendingNumbers {
    /// The loss, the sum of the squared gradients, and the count of skipped updates: the first element of each.
    words: [Readback; 3],
    loss_scale: Option<Readback>,
}

impl PendingNumbers {
    /// Begins to read the numbers of an update: `squares` is what [`Optimizer::step`] returned.
    ///
    /// # Errors
    /// If there is no memory to read into, or the driver reported an error.
    #[doc(hidden)]
    pub fn new(loss: &Tensor, squares: &Tensor, optimizer: &Optimizer) -> Result<PendingNumbers> {
        PendingNumbers::of([loss, squares, optimizer.skipped()], optimizer.loss_scale())
    }

    pub(super) fn of(words: [&Tensor; 3], loss_scale: Option<&Tensor>) -> Result<PendingNumbers> {
        let [loss, squares, skipped] = words;
        let words = [loss.read_later()?, squares.read_later()?, skipped.read_later()?];
        Ok(PendingNumbers { words, loss_scale: loss_scale.map(Tensor::read_later).transpose()? })
    }

    /// Whether all numbers are there. Never waits; it has to be called for them to arrive.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn has_arrived(&mut self) -> Result<bool> {
        let mut numbers = self.words.iter_mut().chain(&mut self.loss_scale);
        numbers.try_fold(true, |all, number| Ok(all & number.has_arrived()?))
    }

    /// When the last of them arrived; `None` until [`PendingNumbers::has_arrived`] says so.
    pub fn arrived_at(&self) -> Option<Instant> {
        let mut numbers = self.words.iter().chain(&self.loss_scale).map(Readback::arrived_at);
        numbers.try_fold(None, |latest, at| at.map(|at| latest.max(Some(at)))).flatten()
    }

    /// The numbers, waiting for them if they have not arrived.
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
