//! One training step: forward, backward, gradient synchronization, clipping, update. With micro-batch losses l_i,
//! their weights w_i, the loss scale S, the ranks r, the gradient norm limit c and the learning rate η:
//!
//! ```text
//! begin         g = 0
//! backward      g += S w_i dl_i/dθ,  L += l_i      for each micro-batch i
//! synchronize   g = Σ_r g,  L = Σ_r L
//! prepare       |g|², and all memory that the update needs
//! vote          every rank is ready, or none updates
//! commit        θ, moments, S <- optimizer(θ, min(1, c / |g|) g / S, η)
//!               gather the parts that other ranks updated; EMA <- EMA + (1 - d)(θ - EMA)
//! ```
//!
//! A step is a transaction. Before `commit`, only gradients change, which the next step zeroes; after the vote, nothing
//! is allocated. A step that fails before the vote is aborted before the error reaches the caller: pending transfers to
//! other ranks are drained, and parameters, moments, averages and the loss scale are unchanged. An attempt borrows the
//! synchronization, so attempts cannot overlap.
//!
//! Layerwise updates ([`Optimizer::is_layerwise`]) are the exception: backward updates a part of the parameters as soon
//! as their gradients are complete, so that these need the memory of a part only. A step that fails after the first
//! cannot be retried. There is one device and one micro-batch.
//!
//! The caller does the pacing ([`Device::begin_step`](crate::Device::begin_step), `end_step`), because it may have
//! reads to record first.

mod attempt;
#[cfg(test)]
mod layerwise_tests;
#[cfg(test)]
mod rows_tests;
mod sync;
#[cfg(test)]
mod tests;

use crate::optim::{Optimizer, ParameterArena};
use crate::{Error, Result, Tensor};
use attempt::Attempt;
pub use sync::{GradientSync, Rehearsal, SingleDevice};

/// What a step trains, and with whom.
pub struct Training<'a> {
    pub parameters: &'a ParameterArena,
    pub optimizer: &'a mut Optimizer,
    pub sync: &'a mut dyn GradientSync,
}

/// How the losses of micro-batches make up that of the step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Losses {
    /// It is their sum: each is weighted already, and multiplies its own gradients by the loss scale.
    Parts,
    /// It is their mean, and the step multiplies by the loss scale.
    Means,
}

/// What became of a step.
pub enum Outcome {
    Committed(Update),
    /// Another rank aborted it: nothing is changed; begin again.
    Aborted,
}

/// An update that was made, whose numbers may still be being computed.
pub struct Update {
    pub loss: Tensor,
    /// The first element is the sum of the squared gradients before clipping.
    pub squares: Tensor,
}

/// One step. `ids` are the tokens that the batches of all ranks read, if they read tokens; `loss` computes that of a
/// micro-batch, with the loss scale where it scales its own gradients.
///
/// # Errors
/// Those of the losses, if there is no micro-batch or a loss is no f32 tensor of one element, if the device has no
/// memory left, and whatever ends the run. Unless it is the driver's or the communicator's, the step is aborted.
pub fn step<B>(
    training: Training,
    ids: &[&[u32]],
    losses: Losses,
    micro_batches: impl ExactSizeIterator<Item = B>,
    mut loss: impl FnMut(B, Option<&Tensor>) -> Result<Tensor>,
    learning_rate: f64,
) -> Result<Outcome> {
    let (mut attempt, count) = (Attempt::new(training), micro_batches.len());
    let ready = attempt.begin(ids, count, learning_rate).and_then(|()| {
        for (i, micro_batch) in micro_batches.enumerate() {
            let loss = loss(micro_batch, attempt.loss_scale())?;
            let seed = attempt.seed(&loss, losses, count)?;
            attempt.backward(&loss, seed.as_ref(), i + 1 == count)?;
        }
        let Some(loss) = attempt.synchronize(losses, count)? else { return Ok(None) };
        Ok(Some((loss, attempt.prepare()?)))
    });
    match ready {
        Ok(Some((loss, prepared))) => {
            let squares = attempt.commit(prepared, learning_rate)?;
            Ok(squares.map_or(Outcome::Aborted, |squares| Outcome::Committed(Update { loss, squares })))
        }
        Ok(None) => Ok(Outcome::Aborted),
        Err(error) => Err(attempt.abort(error)),
    }
}

/// [`step`] on one device, which no other can abort.
///
/// # Errors
/// Those of [`step`].
pub fn step_alone<B>(
    (parameters, optimizer): (&ParameterArena, &mut Optimizer),
    losses: Losses,
    micro_batches: impl ExactSizeIterator<Item = B>,
    loss: impl FnMut(B, Option<&Tensor>) -> Result<Tensor>,
    learning_rate: f64,
) -> Result<Update> {
    let training = Training { parameters, optimizer, sync: &mut SingleDevice };
    match step(training, &[], losses, micro_batches, loss, learning_rate)? {
        Outcome::Committed(update) => Ok(update),
        Outcome::Aborted => unreachable!("a device alone votes alone"),
    }
}

/// The end of a step, prepare to commit, on gradients that backward passes of the caller's own have accumulated:
/// PyTorch's `optimizer.step()`. Returns a tensor whose first element is the sum of the squared gradients before
/// clipping.
///
/// # Errors
/// If the optimizer was made for other parameters, the device runs out of memory, or the driver reported an error.
pub fn apply_gradients(parameters: &ParameterArena, optimizer: &mut Optimizer, learning_rate: f64) -> Result<Tensor> {
    let mut sync = SingleDevice;
    let mut attempt = Attempt::new(Training { parameters, optimizer, sync: &mut sync });
    match attempt.prepare() {
        Ok(prepared) => {
            let squares = attempt.commit(prepared, learning_rate)?;
            Ok(squares.unwrap_or_else(|| unreachable!("a device alone votes alone")))
        }
        Err(error) => Err(attempt.abort(error)),
    }
}

/// The error of a step without micro-batches.
fn empty() -> Error {
    Error::Invalid("an update needs at least one micro-batch".into())
}
