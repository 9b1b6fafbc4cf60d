//! What happens between backward and the optimizer.

use crate::Result;
use crate::optim::ParameterArena;

/// Runs once for each update, after the gradients of all its micro-batches are accumulated and before the optimizer
/// uses them. Several devices would average their gradients here.
pub(super) trait StepHook {
    /// # Errors
    /// Whatever ends the run.
    fn after_backward(&mut self, parameters: &ParameterArena) -> Result<()>;
}

/// One device: its gradients are those of the step.
pub(super) struct SingleDevice;

impl StepHook for SingleDevice {
    fn after_backward(&mut self, _: &ParameterArena) -> Result<()> {
        Ok(())
    }
}
