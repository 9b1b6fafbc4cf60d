//! What each device has of a run: the whole model, its optimizer, and a share of the sequences of every step.

use super::carried;
use super::forward::{Forward, predicted};
use super::ranks::{Piece, Place, Sequences, Share};
use crate::config::Config;
use crate::data::{Batch, Loader, Order, Position, Tokens};
use crate::models::{Cache, LanguageModel, ModelKind};
use crate::optim::{Optimizer, ParameterArena};
use crate::profile::Span;
use crate::step::{GradientSync, SingleDevice, Stepped, gradients, step};
use crate::{Device, Error, Result, Tensor};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The loader of a run, from a position on.
///
/// # Errors
/// If the text is too short or has no such place, or a recurrent model cannot read it.
pub(in crate::train) fn loader(config: &Config, kind: ModelKind, tokens: Tokens, from: Position) -> Result<Loader> {
    let order = if kind.is_recurrent() { Order::Continued } else { Order::Shuffled };
    Loader::new(tokens, order, config.train.batch_size, config.model.block_size, config.run.seed, from)
}

/// The batches of one step.
pub(super) fn next_batches(loader: &mut Loader, accum: usize) -> Vec<Batch> {
    (0..accum).map(|_| loader.next_batch()).collect()
}

/// How the gradients of a replica become those of a step.
pub(super) trait ReplicaSync: GradientSync {
    /// The batches of the next step, of all devices; every attempt at it is made with these.
    fn read(&mut self, batches: &[Batch]);
}

impl ReplicaSync for SingleDevice {
    fn read(&mut self, _: &[Batch]) {}
}

/// What one device has of a run.
pub(super) struct Replica {
    pub config: Arc<Config>,
    pub device: Device,
    pub model: Box<dyn LanguageModel>,
    pub parameters: ParameterArena,
    pub optimizer: Optimizer,
    /// Of the training split.
    pub tokens: Tokens,
    pub loader: Loader,
    pub place: Place,
    /// The sequences of each step that this device computes.
    pub share: Share,
    /// Passes that its part of a batch is computed in: more than one where the memory does not suffice.
    pub micro_batches: usize,
    /// What a recurrent model knows of the text after the last batch, for each of this device's sequences.
    pub carried: Option<Cache>,
    pub sync: Box<dyn ReplicaSync>,
    /// What a user should know and has not been told.
    pub notes: Vec<String>,
}

/// An update, whose numbers are still being computed.
pub(super) struct Update {
    /// The mean over all tokens of the step that are predicted: on all devices, or where they train apart on this one.
    pub loss: Tensor,
    /// The first element is the sum of the squared gradients.
    pub squares: Tensor,
    /// Where the loader stands after it.
    pub position: Position,
    /// Tokens that it learned from, on all devices.
    pub tokens: u64,
}

impl Replica {
    /// One that computes all of a step, as a device alone does.
    pub fn new(
        config: Arc<Config>,
        device: Device,
        trained: (Box<dyn LanguageModel>, ParameterArena, Optimizer),
        tokens: Tokens,
        loader: Loader,
        place: Place,
    ) -> Replica {
        let share = Share::whole(Sequences::new(&config, trained.0.config().kind));
        let (model, parameters, optimizer) = trained;
        Replica {
            config,
            device,
            model,
            parameters,
            optimizer,
            tokens,
            loader,
            place,
            share,
            micro_batches: 1,
            carried: None,
            sync: Box::new(SingleDevice),
            notes: Vec::new(),
        }
    }

    /// How long forward and backward of so many sequences take: the least of a few times, the first of which prepares
    /// the device. Updates nothing.
    ///
    /// # Errors
    /// If the device reported an error, or has no memory for a single sequence.
    pub fn seconds_of(&mut self, sequences: usize) -> Result<f64> {
        let (config, kind, tokens) = (&self.config, self.model.config().kind, self.tokens.clone());
        let mut loader = loader(config, kind, tokens, Position::default())?;
        let batches = next_batches(&mut loader, config.train.grad_accum_steps);
        let own = std::mem::replace(&mut self.share, Share::first(sequences, Sequences::new(config, kind)));
        let splits = self.micro_batches;
        let (mut least, mut times, began) = (f64::INFINITY, 0, Instant::now());
        while times < 2 || (times < 4 && began.elapsed() < Duration::from_secs(4)) {
            let started = Instant::now();
            match self.time_gradients(&batches) {
                Err(error @ Error::OutOfMemory { .. }) => self.split_micro_batches(error)?,
                loss => {
                    loss?.to_bytes()?;
                    self.device.synchronize()?;
                    least = least.min(started.elapsed().as_secs_f64());
                    times += 1;
                }
            }
        }
        self.share = own;
        (self.micro_batches, self.notes) = (splits, Vec::new());
        self.device.reset_peak_memory();
        self.device.profiler().take();
        Ok(least)
    }

    /// Update number `number`, from 0: forward and backward over this device's share of the next batches, then the
    /// optimizer. On a GPU this only records and submits. Where a device runs out of memory, all devices compute the
    /// step again, that one in smaller batches.
    ///
    /// # Errors
    /// If the device reported an error, has no memory for a single sequence, or the ranks cannot go on together.
    pub fn update(&mut self, number: usize, learning_rate: f64) -> Result<Update> {
        let accum = self.config.train.grad_accum_steps;
        let batches = self.device.profiler().span(Span::Data, || next_batches(&mut self.loader, accum));
        let position = batches.last().expect("there is at least one").position;
        let tokens = predicted(&batches) as u64;
        self.sync.read(&batches);
        loop {
            // What a step changes is replaced only when it is made: the attempt may fail.
            let mut carried = self.carried.clone();
            match self.attempt(&batches, number, learning_rate, &mut carried) {
                Ok(Some(Stepped { loss, squares })) => {
                    self.carried = carried;
                    return Ok(Update { loss, squares, position, tokens });
                }
                // Another device has no memory for it.
                Ok(None) => {}
                Err(error @ Error::OutOfMemory { .. }) => self.split_micro_batches(error)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// One attempt at a step over this device's share of the batches.
    fn attempt(
        &mut self,
        batches: &[Batch],
        number: usize,
        learning_rate: f64,
        carried: &mut Option<Cache>,
    ) -> Result<Option<Stepped>> {
        let Replica { config, device, model, share, parameters, optimizer, sync, .. } = self;
        let (loss_scale, accum) = (optimizer.loss_scale().cloned(), config.train.grad_accum_steps);
        let forward = Forward { config, device, model: &**model, share, loss_scale: loss_scale.as_ref() };
        let pieces = share.pieces(self.micro_batches);
        let predicted = forward.predicted(batches, &pieces);
        let loss = |piece: &Piece| {
            let pass = (number * accum + piece.batch) as u64;
            forward.carried_loss(carried, &batches[piece.batch], piece, pass, predicted).map(Into::into)
        };
        step(parameters, optimizer, &mut **sync, learning_rate, &pieces, loss)
    }

    /// Forward and backward of a step, without its update.
    fn time_gradients(&self, batches: &[Batch]) -> Result<Tensor> {
        let forward = self.forward();
        let pieces = self.share.pieces(self.micro_batches);
        let predicted = forward.predicted(batches, &pieces);
        let loss = |piece: &Piece| forward.loss(&batches[piece.batch], piece, None, 0, predicted).map(Into::into);
        gradients(&self.parameters, &mut SingleDevice, &pieces, loss)
    }

    /// The forward pass of this replica.
    pub fn forward(&self) -> Forward<'_> {
        let Replica { config, device, model, share, optimizer, .. } = self;
        Forward { config, device, model: &**model, share, loss_scale: optimizer.loss_scale() }
    }

    /// After a step that found too little memory: from now on each part of a batch in twice as many passes.
    ///
    /// # Errors
    /// That of the step, if a pass is one sequence already.
    fn split_micro_batches(&mut self, error: Error) -> Result<()> {
        let passes = |splits| self.share.pieces(splits).len();
        let (before, splits) = (passes(self.micro_batches), (2 * self.micro_batches).min(self.config.train.batch_size));
        if passes(splits) == before {
            return Err(error);
        }
        self.micro_batches = splits;
        let pieces = self.share.pieces(splits);
        let (rows, passes) = (pieces.iter().map(|piece| piece.rows.len()).max().unwrap_or(1), pieces.len());
        let first = error.to_string();
        let first = first.lines().next().unwrap_or_default();
        self.notes.push(format!(
            "{first}: going on with batches of {rows}, accumulated over {passes} passes; a step is of as many tokens \
             as before"
        ));
        Ok(())
    }

    /// Lets a recurrent model know what a checkpoint's file at `path` says of the text before this device's sequences:
    /// nothing if it is empty.
    ///
    /// # Errors
    /// If it is of another model, or the device has no memory left.
    pub fn carry_on_from(&mut self, path: &Path, file: &[u8]) -> Result<()> {
        let Some(rows) = self.share.continued() else { return Ok(()) };
        self.carried = Some(match file {
            [] => self.model.cache(rows.len(), 0)?,
            file => {
                let all = self.config.train.batch_size;
                carried::decode(path, file, self.model.config(), all, &self.device)?.rows(rows)?
            }
        });
        Ok(())
    }

    /// Lets batches start at this position.
    ///
    /// # Errors
    /// If the text has no such place.
    pub fn start_loader(&mut self, position: Position) -> Result<()> {
        self.loader = loader(&self.config, self.model.config().kind, self.tokens.clone(), position)?;
        Ok(())
    }
}
