//! An attempt at a step, which ends exactly once: by `commit`, by `abort`, or by an abort when it is dropped.

use super::{GradientSync, Losses, Training, empty};
use crate::optim::{LayerwiseStep, Optimizer, ParameterArena, PreparedUpdate};
use crate::{DType, Error, Result, Tensor};

/// An attempt at a step, from its first gradient to the vote.
#[must_use = "an attempt that is dropped is aborted"]
pub(super) struct Attempt<'a> {
    parameters: &'a ParameterArena,
    optimizer: &'a mut Optimizer,
    sync: &'a mut dyn GradientSync,
    /// The sum of the losses so far.
    loss: Option<Tensor>,
    /// Whether the synchronization has begun and not ended.
    is_open: bool,
    /// Where parameters are updated while backward runs.
    layerwise: Option<LayerwiseStep>,
}

impl<'a> Attempt<'a> {
    pub fn new(Training { parameters, optimizer, sync }: Training<'a>) -> Attempt<'a> {
        Attempt { parameters, optimizer, sync, loss: None, is_open: false, layerwise: None }
    }

    /// Marks the gradients as stale and starts the synchronization, of a step of `count` micro-batches.
    pub fn begin(&mut self, ids: &[&[u32]], count: usize, learning_rate: f64) -> Result<()> {
        self.parameters.zero_gradients();
        if self.optimizer.is_layerwise() && self.sync.updates() {
            if count > 1 {
                let what = "layerwise updates need the gradients of a step in one pass";
                return Err(Error::Invalid(format!("{what}; this step has {count} micro-batches")));
            }
            self.layerwise = Some(self.optimizer.begin_layerwise(self.parameters, learning_rate)?);
        }
        self.is_open = true;
        self.sync.begin(ids)
    }

    pub fn loss_scale(&self) -> Option<&Tensor> {
        self.optimizer.loss_scale()
    }

    /// The gradient of a loss, unless it is 1: for one of `count` means, S / count.
    pub fn seed(&self, loss: &Tensor, losses: Losses, count: usize) -> Result<Option<Tensor>> {
        if loss.dtype() != DType::F32 {
            return Err(Error::DType { op: "loss", expected: "f32", got: loss.dtype().name() });
        }
        if loss.len() != 1 {
            return Err(Error::Shape { op: "loss", expected: "one element".into(), got: loss.spec().to_string() });
        }
        let (weight, shape) = (1.0 / count as f32, loss.shape().clone());
        Ok(match self.optimizer.loss_scale().filter(|_| losses == Losses::Means) {
            Some(state) => Some(state.slice_flat(0, shape).scale(weight)?.to_device(&loss.device())?),
            None if losses == Losses::Parts || weight == 1.0 => None,
            None => Some(Tensor::full(weight, shape, &loss.device())?),
        })
    }

    /// Accumulates the gradients and the loss of a micro-batch.
    pub fn backward(&mut self, loss: &Tensor, seed: Option<&Tensor>, is_last: bool) -> Result<()> {
        let (optimizer, parameters, layerwise) = (&*self.optimizer, self.parameters, &mut self.layerwise);
        let mut update = || layerwise.as_mut().map_or(Ok(()), |step| optimizer.update_complete(parameters, step));
        let mut backward = || loss.backward_each(seed, &mut update);
        if is_last {
            self.sync.last_backward(self.parameters, &mut backward)?
        } else {
            backward()?
        }
        self.loss = Some(match self.loss.take() {
            None => loss.detach(),
            Some(sum) => sum.add(&loss.detach())?,
        });
        Ok(())
    }

    /// Sums gradients and loss over all ranks; returns the loss, or `None` if another rank aborts the attempt.
    pub fn synchronize(&mut self, losses: Losses, count: usize) -> Result<Option<Tensor>> {
        let sum = self.loss.take().ok_or_else(empty)?;
        let loss = if losses == Losses::Parts || count == 1 { sum } else { sum.scale(1.0 / count as f32)? };
        let loss = self.sync.synchronize(self.parameters, loss)?;
        self.is_open = loss.is_some();
        Ok(loss)
    }

    /// Allocates the memory of the update and computes the gradient norm; with layerwise updates, makes those that
    /// backward has left.
    pub fn prepare(&mut self) -> Result<Option<PreparedUpdate>> {
        match &mut self.layerwise {
            Some(step) => self.optimizer.update_rest(self.parameters, step).map(|()| None),
            None => self.optimizer.prepare(self.parameters).map(Some),
        }
    }

    /// Updates the parameters if every rank votes for it; returns the sum of the squared gradients, or `None` if
    /// another rank aborts it.
    pub fn commit(mut self, prepared: Option<PreparedUpdate>, learning_rate: f64) -> Result<Option<Tensor>> {
        // Whatever the vote says, it ends what the ranks have to do together.
        self.is_open = false;
        if !self.sync.vote()? {
            return Ok(None);
        }
        let squares = match (self.layerwise.take(), prepared) {
            // It may have to copy the loss scale to the device.
            (Some(step), _) => self.optimizer.finish_layerwise(step).map_err(|error| match error {
                Error::OutOfMemory { .. } => half_updated(&error),
                error => error,
            })?,
            (None, Some(prepared)) => self.optimizer.apply(self.parameters, learning_rate, prepared)?,
            (None, None) => unreachable!("`prepare` prepares an update or ends a layerwise one"),
        };
        self.sync.gather(self.parameters, self.optimizer)?;
        self.optimizer.average(self.parameters, &squares)?;
        Ok(Some(squares))
    }

    /// Drains pending transfers. Returns the error to report: `error`, or, if the step could have been retried, the
    /// error of the abort, which ends the run.
    pub fn abort(mut self, error: Error) -> Error {
        match &error {
            // There is nobody to drain with.
            Error::Communication(_) | Error::DeviceLost(_) => self.is_open = false,
            Error::OutOfMemory { .. } => {
                let is_begun = self.layerwise.take().is_some_and(|step| step.has_updated());
                let error = if is_begun { half_updated(&error) } else { error };
                return self.close().err().unwrap_or(error);
            }
            _ => drop(self.close()),
        }
        error
    }

    fn close(&mut self) -> Result<()> {
        if self.optimizer.is_layerwise() {
            // Those of an attempt that failed would be kept until the next.
            self.parameters.zero_gradients();
        }
        if std::mem::take(&mut self.is_open) { self.sync.abort() } else { Ok(()) }
    }
}

/// The error of a layerwise step that has updated some parameters and cannot be retried.
fn half_updated(error: &Error) -> Error {
    let (error, what) = (error.to_string(), "some layers were updated before, which cannot be undone");
    let remedy = "resume from the last checkpoint, with train.recompute = \"block\", \
                  optimizer.state_dtype = \"int8\" or train.update = \"step\"";
    Error::Invalid(format!("{}: {what}; {remedy}", error.lines().next().unwrap_or_default()))
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // A rank that panics is gone, and its communicator says so to the others.
        if !std::thread::panicking() {
            // A communicator that failed fails the next step too.
            let _ = self.close();
        }
    }
}
