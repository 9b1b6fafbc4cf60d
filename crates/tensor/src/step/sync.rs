//! Gradient synchronization, which makes several devices compute the same update.

use crate::optim::{Optimizer, ParameterArena};
use crate::{Result, Tensor};

/// Synchronizes a step's gradients among devices. Only [`step`](super::step) calls it, and ends each attempt started by
/// `begin` exactly once: by `vote`, by `abort`, or by a `synchronize` that returns `None`.
///
/// ```text
/// begin -> last_backward -> synchronize -> vote: true  -> (optimizer) -> gather
///   |           |               |          false: another device aborts, begin again
///   +-----------+---------------+-> abort
/// ```
pub trait GradientSync {
    /// Whether steps end with an update.
    fn updates(&self) -> bool {
        true
    }

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

    /// Sums gradients and loss over all devices; `None` if another device aborted the attempt, which is then retried.
    ///
    /// # Errors
    /// If the device runs out of memory, or on a failure that ends the run.
    fn synchronize(&mut self, parameters: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>>;

    /// Votes for an update for which all memory is allocated. False where another device has aborted it.
    ///
    /// # Errors
    /// On a failure that ends the run.
    fn vote(&mut self) -> Result<bool>;

    /// Aborts an attempt that failed in any call on this device: completes the calls that the others wait for, votes
    /// against the update, and discards exchanged data.
    ///
    /// # Errors
    /// On a failure that ends the run.
    fn abort(&mut self) -> Result<()>;

    /// Gathers the parameters, of which this device's optimizer may have updated only a part.
    ///
    /// # Errors
    /// On a failure that ends the run.
    fn gather(&mut self, parameters: &ParameterArena, optimizer: &Optimizer) -> Result<()>;
}

/// A single device, or one that trains independently: its gradients are those of the step.
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

/// Computes the gradients of a step and aborts it: for measurements without an update.
#[derive(Default)]
pub struct Rehearsal {
    /// Loss of the step.
    pub loss: Option<Tensor>,
}

impl GradientSync for Rehearsal {
    fn updates(&self) -> bool {
        false
    }

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
