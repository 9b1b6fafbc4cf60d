//! What happens around backward, between it and the optimizer, and after that.
//!
//! An update is a transaction of all devices. An attempt begins with `before_backward`; it ends on every device with
//! `commit`, after which the optimizer updates, or with `abort`:
//!
//! ```text
//! before_backward -> last_backward -> after_backward -> commit: true  -> (optimizer) -> after_update
//!        |                 |                |              false: another device aborts, begin again
//!        +-----------------+----------------+-> abort: begin again
//! ```

use crate::data::Batch;
use crate::optim::{Optimizer, ParameterArena};
use crate::{Result, Tensor};

/// Runs around the last backward pass of each update, and before the optimizer uses the gradients: several devices sum
/// theirs here (`ranks/reduce.rs`).
pub(super) trait StepHook {
    /// Begins an attempt at an update, whose batches, those of all devices, are these.
    ///
    /// # Errors
    /// If the device has no memory left.
    fn before_backward(&mut self, batches: &[Batch]) -> Result<()>;

    /// Runs the last backward pass of an update, after which the gradients of all its passes are accumulated. It may
    /// look at them as they are completed.
    ///
    /// # Errors
    /// Those of `backward`, and whatever ends the run.
    fn last_backward(&mut self, parameters: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Completes the gradients, and the loss of the update, of which this device has computed a part; `None` where
    /// another device has aborted the attempt, which begins again.
    ///
    /// # Errors
    /// If the device has no memory left, and whatever ends the run.
    fn after_backward(&mut self, parameters: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>>;

    /// Ends an attempt for which all memory of the update is allocated. False where another device has aborted it: then
    /// it begins again, with the parameters as they were.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn commit(&mut self) -> Result<bool>;

    /// Ends an attempt that this device cannot complete, whichever call it failed in: completes what the others wait
    /// for, has them begin again, and discards what has been exchanged. Called once for each attempt that failed with
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    ///
    /// # Errors
    /// Whatever ends the run.
    fn abort(&mut self) -> Result<()>;

    /// Completes the parameters, of which the optimizer of this device may have updated a part.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn after_update(&mut self, parameters: &ParameterArena, optimizer: &Optimizer) -> Result<()>;
}

/// One device, or one that trains apart from others: its gradients are those of its step.
pub(super) struct SingleDevice;

impl StepHook for SingleDevice {
    fn before_backward(&mut self, _: &[Batch]) -> Result<()> {
        Ok(())
    }

    fn last_backward(&mut self, _: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        backward()
    }

    fn after_backward(&mut self, _: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>> {
        Ok(Some(loss))
    }

    fn commit(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn abort(&mut self) -> Result<()> {
        Ok(())
    }

    fn after_update(&mut self, _: &ParameterArena, _: &Optimizer) -> Result<()> {
        Ok(())
    }
}
