//! One training step, of any model, on one device or on several:
//!
//! ```text
//! for each micro-batch x_i   gradients += d(w_i loss(x_i)) / d(parameters)
//! reduce                     gradients and loss become their sums over the ranks
//! prepare                    the norm of the gradients, and all memory that the update needs
//! commit                     the ranks agree; from here on nothing allocates
//! update                     clip, moments, parameters; the ranks gather what each has updated; moving averages
//! ```
//! A step is a transaction. A rank that runs out of memory before the commit aborts: parameters, moments, averages and
//! the loss scale stay as they were, what it has sent is completed with zeros and discarded, and every rank computes the
//! step again. [`step`] makes these calls in this order, and nothing else makes them.

use crate::optim::{Optimizer, ParameterArena, PreparedUpdate};
use crate::{Error, Result, Tensor};

/// How the gradients of one device become those of a step. An attempt at a step begins with [`begin`] and ends on every
/// rank with [`commit`] or [`abort`].
///
/// [`begin`]: GradientSync::begin
/// [`commit`]: GradientSync::commit
/// [`abort`]: GradientSync::abort
pub trait GradientSync {
    /// Begins an attempt.
    ///
    /// # Errors
    /// If the device has no memory left.
    fn begin(&mut self) -> Result<()>;

    /// Runs the last backward pass, after which the gradients of all micro-batches are accumulated. It may send
    /// gradients as soon as they are complete.
    ///
    /// # Errors
    /// Those of `backward`, and whatever ends the job.
    fn last_backward(&mut self, parameters: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Completes the gradients, and the loss, of which this device has computed a part. `None` where another rank has
    /// aborted the attempt.
    ///
    /// # Errors
    /// If the device has no memory left, and whatever ends the job.
    fn reduce(&mut self, parameters: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>>;

    /// Votes for the update. False where another rank has aborted the attempt.
    ///
    /// # Errors
    /// Whatever ends the job.
    fn commit(&mut self) -> Result<bool>;

    /// Ends an attempt for which this device has no memory, whichever call it failed in: completes what the other ranks
    /// wait for, votes against the update, and discards what was exchanged.
    ///
    /// # Errors
    /// Whatever ends the job.
    fn abort(&mut self) -> Result<()>;

    /// Completes the parameters, of which the optimizer of this rank may have updated a part.
    ///
    /// # Errors
    /// Whatever ends the job.
    fn gather(&mut self, parameters: &ParameterArena, optimizer: &Optimizer) -> Result<()>;
}

/// A device alone: its gradients are those of the step.
pub struct SingleDevice;

impl GradientSync for SingleDevice {
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn last_backward(&mut self, _: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        backward()
    }

    fn reduce(&mut self, _: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>> {
        Ok(Some(loss))
    }

    fn commit(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn abort(&mut self) -> Result<()> {
        Ok(())
    }

    fn gather(&mut self, _: &ParameterArena, _: &Optimizer) -> Result<()> {
        Ok(())
    }
}

/// The loss of a micro-batch, one f32, and what its gradient is multiplied by: 1 without a seed.
pub struct Loss {
    pub value: Tensor,
    pub seed: Option<Tensor>,
}

impl From<Tensor> for Loss {
    fn from(value: Tensor) -> Loss {
        Loss { value, seed: None }
    }
}

impl Loss {
    fn backward(&self) -> Result<()> {
        self.seed.as_ref().map_or_else(|| self.value.backward(), |seed| self.value.backward_with(seed))
    }
}

/// What a step has computed; on a GPU it may still be computing it.
pub struct Stepped {
    /// The sum of the losses of all micro-batches, of all ranks.
    pub loss: Tensor,
    /// The first element is the sum of the squared gradients before clipping.
    pub squares: Tensor,
}

/// One step, at this learning rate, over micro-batches whose losses `forward` computes. `None` where another rank has
/// aborted the attempt: then it is to be made again, with the same micro-batches.
///
/// # Errors
/// [`Error::OutOfMemory`] if this device has no memory for the attempt, which may be made again in smaller
/// micro-batches; if there are none; those of `forward`; and whatever ends the job.
pub fn step<M>(
    parameters: &ParameterArena,
    optimizer: &mut Optimizer,
    sync: &mut dyn GradientSync,
    learning_rate: f64,
    micro_batches: impl IntoIterator<Item = M, IntoIter: ExactSizeIterator>,
    forward: impl FnMut(M) -> Result<Loss>,
) -> Result<Option<Stepped>> {
    let (loss, prepared) = match attempt(parameters, optimizer, sync, micro_batches, forward) {
        Ok(Some(ready)) if sync.commit()? => ready,
        Ok(_) => return Ok(None),
        Err(error @ Error::OutOfMemory { .. }) => return sync.abort().and(Err(error)),
        Err(error) => return Err(error),
    };
    let squares = optimizer.apply(parameters, learning_rate, prepared)?;
    sync.gather(parameters, optimizer)?;
    optimizer.average(parameters, &squares)?;
    Ok(Some(Stepped { loss, squares }))
}

/// All of a step that may find too little memory.
fn attempt<M>(
    parameters: &ParameterArena,
    optimizer: &Optimizer,
    sync: &mut dyn GradientSync,
    micro_batches: impl IntoIterator<Item = M, IntoIter: ExactSizeIterator>,
    forward: impl FnMut(M) -> Result<Loss>,
) -> Result<Option<(Tensor, PreparedUpdate)>> {
    let loss = gradients(parameters, sync, micro_batches, forward)?;
    let Some(loss) = sync.reduce(parameters, loss)? else { return Ok(None) };
    Ok(Some((loss, optimizer.prepare(parameters)?)))
}

/// Forward and backward over all micro-batches: their gradients are in the arena, and the sum of their losses is
/// returned. A step without its update, for measurements.
///
/// # Errors
/// If there are no micro-batches, and those of `forward` and of the device.
pub fn gradients<M>(
    parameters: &ParameterArena,
    sync: &mut dyn GradientSync,
    micro_batches: impl IntoIterator<Item = M, IntoIter: ExactSizeIterator>,
    mut forward: impl FnMut(M) -> Result<Loss>,
) -> Result<Tensor> {
    let micro_batches = micro_batches.into_iter();
    let (count, mut total) = (micro_batches.len(), None::<Tensor>);
    parameters.zero_gradients();
    sync.begin()?;
    for (i, micro_batch) in micro_batches.enumerate() {
        let loss = forward(micro_batch)?;
        if i + 1 < count {
            loss.backward()?;
        } else {
            sync.last_backward(parameters, &mut || loss.backward())?;
        }
        let value = loss.value.detach();
        total = Some(match total {
            None => value,
            Some(total) => total.add(&value)?,
        });
    }
    total.ok_or_else(|| Error::Invalid("an update needs at least one micro-batch".into()))
}

#[cfg(test)]
mod tests;
