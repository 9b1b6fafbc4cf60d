//! What happens around backward, between it and the optimizer, and after that.

use crate::data::Batch;
use crate::optim::{Optimizer, ParameterArena};
use crate::{Result, Tensor};

/// Runs around the last backward pass of each update, and before the optimizer uses the gradients: several devices sum
/// theirs here (`ranks/reduce.rs`).
pub(super) trait StepHook {
    /// Prepares for the backward passes of an update, whose batches, those of all devices, are these.
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

    /// Completes the gradients, and the loss of the update, of which this device has computed a part.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn after_backward(&mut self, parameters: &ParameterArena, loss: Tensor) -> Result<Tensor>;

    /// Completes the parameters, of which the optimizer of this device may have updated a part.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn after_update(&mut self, parameters: &ParameterArena, optimizer: &Optimizer) -> Result<()>;

    /// Whether no other device takes part, so that a step can be computed again.
    fn is_alone(&self) -> bool;
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

    fn after_backward(&mut self, _: &ParameterArena, loss: Tensor) -> Result<Tensor> {
        Ok(loss)
    }

    fn after_update(&mut self, _: &ParameterArena, _: &Optimizer) -> Result<()> {
        Ok(())
    }

    fn is_alone(&self) -> bool {
        true
    }
}
