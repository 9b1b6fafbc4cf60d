//! Gradient synchronization: what a step does so that several devices make the same update.

use crate::optim::{Optimizer, ParameterArena};
use crate::{Result, Tensor};

/// How a step's gradients become those of all devices. [`step`](super::step) alone calls it, and ends each attempt that
/// began with `begin` once: by `vote`, by `abort`, or by a `synchronize` that returns `None`.
///
/// ```text
/// begin -> last_backward -> synchronize -> vote: true  -> (optimizer) -> gather
///   |           |               |          false: another device aborts, begin again
///   +-----------+---------------+-> abort
/// ```
pub trait GradientSync {
    /// Begins an attempt; `ids` are the tokens of the batches of all devices, if the step reads tokens.
    ///
    /// # Errors
    /// If the device runs out of memory.
    fn begin(&mut self, ids: &[&[u32]]) -> Result<()>;

    /// Runs the last backward pass of a step, after which the gradients of all its passes are accumulated. It may send
    /// gradients as they are completed.
    ///
    /// # Errors
    /// Those of `backward`, and whatever ends the run.
    fn last_backward(&mut self, parameters: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Completes the gradients, and the loss of the step, of which this device has computed a part; `None` where
    /// another device has aborted the attempt, which begins again.
    ///
    /// # Errors
    /// If the device runs out of memory, and whatever ends the run.
    fn synchronize(&mut self, parameters: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>>;

    /// Votes for an update for which all memory is allocated. False where another device has aborted it.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn vote(&mut self) -> Result<bool>;

    /// Ends an attempt that this device cannot complete, whichever call it failed in: completes what the others wait
    /// for, votes against the update, and discards what has been exchanged.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn abort(&mut self) -> Result<()>;

    /// Completes the parameters, of which the optimizer of this device may have updated a part.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn gather(&mut self, parameters: &ParameterArena, optimizer: &Optimizer) -> Result<()>;
}

/// One device, or one that trains apart from others: its gradients are those of the step.
pub struct SingleDevice;

impl GradientSync for SingleDevice {
    fn begin(&mut self, _: &[&[u32]]) -> Result<()> {
        Ok(())
    }

    fn last_backward(&mut self, _: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        backward()
    }

    fn synchronize(&mut self, _: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>> {
        Ok(Some(loss))
    }

    fn vote(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn abort(&mut self) -> Result<()> {
        Ok(())
    }

    fn gather(&mut self, _: &ParameterArena, _: &Optimizer) -> Result<()> {
        Ok(())
    }
}

/// Takes a step as far as its gradients, and aborts it: a measurement that updates nothing.
#[derive(Default)]
pub struct Rehearsal {
    /// That of the step.
    pub loss: Option<Tensor>,
}

impl GradientSync for Rehearsal {
    fn begin(&mut self, _: &[&[u32]]) -> Result<()> {
        Ok(())
    }

    fn last_backward(&mut self, _: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        backward()
    }

    fn synchronize(&mut self, _: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>> {
        self.loss = Some(loss);
        Ok(None)
    }

    fn vote(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn abort(&mut self) -> Result<()> {
        Ok(())
    }

    fn gather(&mut self, _: &ParameterArena, _: &Optimizer) -> Result<()> {
        Ok(())
    }
}
