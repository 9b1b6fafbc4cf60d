//! Reads from the device that are in flight: the numbers of logged steps, and snapshots for checkpoints. The device
//! copies both in the order of its queue, so they do not contain later steps. The host takes them once they have
//! arrived and never waits.

use crate::fit::{Numbers, PendingNumbers};
use crate::models::{Cache, Weights};
use crate::optim::{Moment, Moments, Optimizer, ParameterArena};
use crate::tensor::{Bytes, Preparing, Readback};
use crate::train::checkpoint::{Snapshot, TrainerState};
use crate::train::evaluation::preference::Totals;
use crate::train::run::events::Step;
use crate::train::step::carried;
use crate::train::step::ranks::Further;
use crate::train::step::replica::Replica;
use crate::{Error, Result, Shape, Tensor};
use std::time::Instant;

/// Something on its way from the device.
pub(in crate::train) enum InFlight {
    Step(Box<PendingStep>),
    Snapshot(Box<PendingSnapshot>),
}

impl InFlight {
    /// The logged step that it is, if it is one.
    pub(in crate::train) fn step(&self) -> Option<&PendingStep> {
        match self {
            InFlight::Step(pending) => Some(pending),
            InFlight::Snapshot(_) => None,
        }
    }

    /// Whether all of it is there. Never waits.
    pub(in crate::train) fn has_arrived(&mut self) -> Result<bool> {
        match self {
            InFlight::Step(step) => step.numbers.has_arrived(),
            InFlight::Snapshot(snapshot) => {
                let moments = snapshot.moments.iter_mut().flatten().map(|(_, arena)| arena);
                let states = snapshot.carried.iter_mut().map(|(_, state)| state);
                let mut arenas = snapshot.values.iter_mut().chain(moments).chain(states).chain(&mut snapshot.averages);
                arenas.try_fold(true, |all, arena| Ok(all & arena.has_arrived()?))
            }
        }
    }
}

/// Begins to read a tensor. That there is no memory for it is no reason to compute the step again in smaller batches:
/// the update is made, and its memory is free again.
fn read_back(tensor: &Tensor) -> Result<Readback> {
    unless_no_memory(tensor.read_later())
}

fn unless_no_memory<T>(read: Result<T>) -> Result<T> {
    read.map_err(|error| match error {
        Error::OutOfMemory { .. } => {
            let text = error.to_string();
            let why = text.lines().next().unwrap_or_default();
            Error::Gpu(format!("the numbers of a step or a checkpoint could not be read from it: {why}"))
        }
        error => error,
    })
}

/// A logged step without the numbers that are still being computed.
pub(in crate::train) struct PendingStep {
    step: Step,
    /// Tokens that this process has trained on, including this step.
    pub(in crate::train) tokens: u64,
    numbers: PendingNumbers,
    /// Sums of preferences.
    totals: Vec<Readback>,
}

impl PendingStep {
    pub(in crate::train) fn new(
        step: Step,
        tokens: u64,
        (loss, squares, totals): (&Tensor, &Tensor, &[Tensor]),
        optimizer: &Optimizer,
    ) -> Result<PendingStep> {
        let totals = totals.iter().map(read_back).collect::<Result<_>>()?;
        let numbers = unless_no_memory(PendingNumbers::new(loss, squares, optimizer))?;
        Ok(PendingStep { step, tokens, numbers, totals })
    }

    /// When its numbers arrived; `None` until they are seen to have.
    pub(in crate::train) fn arrived_at(&self) -> Option<Instant> {
        self.numbers.arrived_at()
    }

    /// The step with its loss and norm, and the count of skipped updates, once they have arrived.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub(in crate::train) fn numbers(self) -> Result<(Step, u32)> {
        let Numbers { loss, grad_norm, skipped, loss_scale } = self.numbers.wait()?;
        let mut totals = Totals::default();
        let has_rewards = !self.totals.is_empty();
        for read in self.totals {
            totals.add_bytes(&read.wait()?);
        }
        let rewards = has_rewards.then(|| totals.rewards());
        Ok((Step { loss, grad_norm, loss_scale, rewards, ..self.step }, skipped))
    }
}

/// The trained contents of a checkpoint.
#[derive(Clone, Copy)]
pub(in crate::train) enum Contents {
    Model,
    /// LoRA adapters of a frozen model.
    Adapters,
}

impl Contents {
    fn values(&self, replica: &Replica) -> Result<Vec<Tensor>> {
        match self {
            Contents::Model => Ok(replica.parameters.stored().cloned().collect()),
            Contents::Adapters => Ok(vec![replica.parameters.trained()?]),
        }
    }

    /// Makes the memory in which a snapshot reads, so that training does not wait for it at the first one.
    pub(in crate::train) fn prepare(&self, replica: &Replica) -> Result<Option<Preparing>> {
        let (values, moments) = (self.values(replica)?, replica.saved_moments());
        let of_moments = moments.iter().flatten().map(|(_, tensor)| *tensor);
        Ok(Tensor::prepare_reads(values.iter().chain(of_moments).chain(replica.optimizer.averages())))
    }
}

/// A snapshot with pending reads of weights and moments.
pub(in crate::train) struct PendingSnapshot {
    /// Without the values that follow from the numbers of steps in flight.
    state: TrainerState,
    values: Vec<Readback>,
    /// `None` if they are not to be saved.
    moments: Option<Vec<(Moment, Readback)>>,
    /// Of other ranks, and of their outer step.
    further: Further,
    /// The averages of the weights, if the run keeps any: they are the model's weights then.
    averages: Option<Readback>,
    /// Recurrent states of this rank's sequences.
    carried: Vec<(Shape, Readback)>,
    /// Whether it is to be the `best`.
    pub(in crate::train) best: bool,
}

impl PendingSnapshot {
    /// Asks the device for weights, moments and states as they are now, beside which those are saved that others have.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub(in crate::train) fn new(
        state: TrainerState,
        replica: &Replica,
        further: Further,
        contents: Contents,
        best: bool,
    ) -> Result<PendingSnapshot> {
        let Replica { optimizer, carried, .. } = replica;
        let (values, moments) = (contents.values(replica)?, replica.saved_moments());
        let read = |(moment, tensor)| Ok((moment, read_back(tensor)?));
        let moments = moments.map(|all| all.into_iter().map(read).collect::<Result<_>>()).transpose()?;
        let values = values.iter().map(read_back).collect::<Result<_>>()?;
        let averages = optimizer.averages().map(read_back).transpose()?;
        let states = carried.iter().flat_map(Cache::states);
        let carried = states.map(|state| Ok((state.shape().clone(), read_back(state)?))).collect::<Result<_>>()?;
        Ok(PendingSnapshot { state, values, moments, further, averages, carried, best })
    }

    /// Completes the snapshot after all reads; `weights` creates the saved weights from the arenas' bytes.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub(in crate::train) fn snapshot(
        self,
        parameters: &ParameterArena,
        weights: impl FnOnce(Vec<Bytes>) -> Weights,
        pretrained: Vec<(&'static str, String)>,
        config_text: String,
    ) -> Result<Snapshot> {
        let mut values = self.values.into_iter().map(Readback::wait).collect::<Result<Vec<_>>>()?;
        let own = values.remove(0);
        values.insert(0, parameters.joined_values(own, &self.further.values)?);
        let wait = |moments: Vec<(Moment, Readback)>| {
            moments.into_iter().map(|(moment, bytes)| Ok((moment, bytes.wait()?))).collect::<Result<Vec<_>>>()
        };
        let mut moments = self.moments.map(wait).transpose()?;
        if let Some(averages) = self.averages {
            let averages = with_frozen(averages.wait()?, &values[0]);
            let trained = std::mem::replace(&mut values[0], averages);
            if let Some(moments) = &mut moments {
                moments.push((Moment::trained(parameters), trained));
            }
        }
        let carried = self.carried.into_iter().map(|(shape, state)| Ok((shape, state.wait()?)));
        let carried = carried.collect::<Result<Vec<_>>>()?;
        let of_all = |own: Vec<u8>| carried::join(&[vec![own], self.further.carried].concat());
        Ok(Snapshot {
            carried: (!carried.is_empty()).then(|| carried::encode(&carried).and_then(of_all)).transpose()?,
            weights: weights(values),
            moments: moments.map(|moments| {
                let further = self.further.moments;
                Moments::new(parameters, moments.into_iter().chain(further).collect())
            }),
            pretrained,
            state: self.state,
            config: config_text,
        })
    }
}

/// Averages of what is trained, with what is frozen after them as it is in the arena of the values.
fn with_frozen(averages: Bytes, values: &Bytes) -> Bytes {
    match &values[averages.len()..] {
        [] => averages,
        frozen => Bytes::owned([&averages[..], frozen].concat()),
    }
}
