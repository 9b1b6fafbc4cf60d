//! The state of one device: the whole model, its optimizer, and its share of every step's sequences.

use super::carried;
use super::micro_batch::{Forward, OfStep};
use super::ranks::{Piece, Place, Sequences, Share};
use crate::config::Config;
use crate::data::{Batch, Loader, Order, Position, Tokens};
use crate::models::{Cache, LanguageModel, ModelKind};
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::optim::{Moment, Optimizer, ParameterArena};
use crate::profile::Span;
use crate::step::{self, GradientSync, Losses, Outcome, Rehearsal, SingleDevice, Training};
use crate::train::evaluation::preference::{Counts, Preference, count_predicted};
use crate::train::setup::reference::preference;
use crate::{Device, Error, Result, Tensor};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The training criterion. Evaluations use the plain loss.
pub(in crate::train) fn criterion(config: &Config) -> Criterion<'static> {
    Criterion { label_smoothing: config.train.label_smoothing as f32, class_weights: None }
}

/// The dropout of pass `pass` of a run.
pub(in crate::train) fn pass_dropout(config: &Config, pass: u64) -> Dropout {
    let (model, adapters) = (&config.model, config.lora.dropout as f32);
    let dropout = Dropout::new(model.dropout as f32, config.run.seed, pass);
    dropout.of_embeddings(model.embd_dropout as f32).of_adapters(adapters)
}

/// The loader of a run, from a position on.
///
/// # Errors
/// If the text is too short or has no such place, or a recurrent model cannot read it.
pub(in crate::train) fn loader(config: &Config, kind: ModelKind, tokens: Tokens, from: Position) -> Result<Loader> {
    let order = if kind.is_recurrent() { Order::Continued } else { Order::Shuffled };
    Loader::new(tokens, order, config.train.batch_size, config.model.block_size, config.run.seed, from)
}

/// The batches of one step.
pub(in crate::train) fn next_batches(loader: &mut Loader, accum: usize) -> Vec<Batch> {
    (0..accum).map(|_| loader.next_batch()).collect()
}

/// How many tokens batches have to predict.
fn predicted(batches: &[Batch]) -> usize {
    batches.iter().map(|batch| count_predicted(&batch.targets)).sum()
}

/// What the losses of these batches are divided by.
pub(in crate::train) fn counts(batches: &[Batch]) -> Counts {
    batches.iter().map(|batch| Counts::of(&batch.answers, &batch.targets, 0..batch.targets.len())).sum()
}

/// The state of one device in a run.
pub(in crate::train) struct Replica {
    pub config: Arc<Config>,
    pub device: Device,
    pub model: Box<dyn LanguageModel>,
    pub parameters: ParameterArena,
    pub optimizer: Optimizer,
    /// Tokens of the training split.
    pub tokens: Tokens,
    pub loader: Loader,
    pub place: Place,
    /// The sequences of each step that this device computes.
    pub share: Share,
    /// Number of micro-batches per batch; more than one if memory is short.
    pub micro_batches: usize,
    /// Recurrent states after the last batch, for this device's sequences.
    pub carried: Option<Cache>,
    pub sync: Box<dyn GradientSync>,
    /// The objective, if it is one of preferences.
    pub preference: Option<Preference>,
    /// Pending notes for the user.
    pub notes: Vec<String>,
}

/// An update whose metrics may be pending.
pub(in crate::train) struct Update {
    /// Mean loss over all targets of the step: on all devices, or on this one with local steps.
    pub loss: Tensor,
    /// The first element is the sum of the squared gradients.
    pub squares: Tensor,
    /// Position of the loader after it.
    pub position: Position,
    /// Tokens trained on, on all devices.
    pub tokens: u64,
    /// Sums of preferences of this device's micro-batches.
    pub totals: Vec<Tensor>,
}

impl Replica {
    /// The optimizer's moments, if checkpoints hold them.
    pub fn saved_moments(&self) -> Option<Vec<(Moment, &Tensor)>> {
        self.config.checkpoint.optimizer.then(|| self.optimizer.moments())
    }

    /// A replica that computes whole steps, as on a single device.
    ///
    /// # Errors
    /// If the reference of its objective cannot be loaded.
    pub fn new(
        config: Arc<Config>,
        device: Device,
        trained: (Box<dyn LanguageModel>, ParameterArena, Optimizer),
        tokens: Tokens,
        loader: Loader,
        place: Place,
    ) -> Result<Replica> {
        let preference = preference(&config, trained.0.config(), &device)?;
        let share = Share::whole(Sequences::new(&config, trained.0.config().kind));
        let (model, parameters, optimizer) = trained;
        Ok(Replica {
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
            preference,
            notes: Vec::new(),
        })
    }

    fn forward(&self) -> Forward<'_> {
        let Replica { config, device, model, preference, .. } = self;
        Forward { config, device, model: &**model, preference: preference.as_ref() }
    }

    /// Seconds of forward and backward of `sequences` sequences: the minimum of a few runs, after a warm-up. Updates
    /// nothing.
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
            match self.rehearse(&batches) {
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

    /// The loss of a step that is aborted after its gradients.
    fn rehearse(&mut self, batches: &[Batch]) -> Result<Tensor> {
        let (pieces, mut rehearsal, carried) = (self.share.pieces(self.micro_batches), Rehearsal::default(), &mut None);
        let Replica { config, device, model, preference, share, parameters, optimizer, .. } = self;
        let forward = Forward { config, device, model: &**model, preference: preference.as_ref() };
        let mut totals = Vec::new();
        let loss = forward.losses(share, (batches, &pieces), 0, carried, &mut totals)?;
        let sync = &mut rehearsal;
        step::step(Training { parameters, optimizer, sync }, &[], Losses::Parts, pieces.iter(), loss, 0.0)?;
        Ok(rehearsal.loss.expect("every device has a sequence"))
    }

    /// Update number `step`, from 0: forward and backward over this device's share of the next batches, then the
    /// optimizer. On a GPU this only records and submits. Where a device runs out of memory, all devices compute the
    /// step again, that one in smaller batches.
    ///
    /// # Errors
    /// If the device reported an error, has no memory for a single sequence, or the ranks cannot go on together. The
    /// loader then stands where it stood.
    pub fn update(&mut self, step: usize, learning_rate: f64) -> Result<Update> {
        let (accum, before) = (self.config.train.grad_accum_steps, self.loader.position());
        let batches = self.device.profiler().span(Span::Data, || next_batches(&mut self.loader, accum));
        match self.update_from(&batches, step, learning_rate) {
            Ok((step::Update { loss, squares }, totals)) => {
                let tokens = predicted(&batches) as u64;
                Ok(Update { loss, squares, position: self.loader.position(), tokens, totals })
            }
            Err(error) => {
                self.start_loader(before)?;
                Err(error)
            }
        }
    }

    /// Attempts at an update until one is made, or fails for good.
    fn update_from(
        &mut self,
        batches: &[Batch],
        step: usize,
        learning_rate: f64,
    ) -> Result<(step::Update, Vec<Tensor>)> {
        loop {
            // What an update changes is replaced only when it is made: the attempt may fail.
            let (mut carried, mut totals) = (self.carried.clone(), Vec::new());
            match self.attempt(batches, step, (&mut carried, &mut totals), learning_rate) {
                Ok(Outcome::Committed(update)) => {
                    self.carried = carried;
                    return Ok((update, totals));
                }
                // Another device has no memory for it.
                Ok(Outcome::Aborted) => {}
                Err(error @ Error::OutOfMemory { .. }) => self.split_micro_batches(error)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// One attempt: forward and backward over this device's share of the batches, and the update.
    fn attempt(
        &mut self,
        batches: &[Batch],
        step: usize,
        (carried, totals): (&mut Option<Cache>, &mut Vec<Tensor>),
        learning_rate: f64,
    ) -> Result<Outcome> {
        let pieces = self.share.pieces(self.micro_batches);
        let ids: Vec<&[u32]> = batches.iter().map(|batch| &*batch.ids).collect();
        let Replica { config, device, model, preference, share, parameters, optimizer, sync, .. } = self;
        let forward = Forward { config, device, model: &**model, preference: preference.as_ref() };
        let loss = forward.losses(share, (batches, &pieces), step, carried, totals)?;
        let training = Training { parameters, optimizer, sync: &mut **sync };
        step::step(training, &ids, Losses::Parts, pieces.iter(), loss, learning_rate)
    }

    /// See [`Forward::loss`].
    pub fn loss(
        &self,
        batch: &Batch,
        piece: &Piece,
        carried: Option<&mut Cache>,
        pass: u64,
        counts: Counts,
    ) -> Result<Tensor> {
        let of_step = OfStep { pass, counts, kl: None, loss_scale: self.optimizer.loss_scale() };
        Ok(self.forward().loss(batch, piece, carried, of_step)?.0)
    }

    /// After a step that found too little memory: from now on each part of a batch in twice as many passes.
    ///
    /// # Errors
    /// That of the step, if a pass is one sequence already, or updates are layerwise.
    fn split_micro_batches(&mut self, error: Error) -> Result<()> {
        let passes = |splits| self.share.pieces(splits).len();
        let (before, splits) = (passes(self.micro_batches), (2 * self.micro_batches).min(self.config.train.batch_size));
        if passes(splits) == before || self.config.train.is_layerwise() {
            return Err(error);
        }
        self.micro_batches = splits;
        let pieces = self.share.pieces(splits);
        let (rows, passes) = (pieces.iter().map(|piece| piece.rows.len()).max().unwrap_or(1), pieces.len());
        let first = error.to_string();
        let first = first.lines().next().unwrap_or_default();
        self.notes.push(format!(
            "{first}: continuing with micro-batches of {rows}, accumulated over {passes} passes; a step has as many \
             tokens as before"
        ));
        Ok(())
    }

    /// Lets a recurrent model know what a checkpoint's file at `path` says of the text before this device's sequences:
    /// nothing if it is empty.
    ///
    /// # Errors
    /// If it is of another model, or the device runs out of memory.
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

    /// Starts batches at this position.
    ///
    /// # Errors
    /// If the position is not in the text.
    pub fn start_loader(&mut self, position: Position) -> Result<()> {
        self.loader = loader(&self.config, self.model.config().kind, self.tokens.clone(), position)?;
        Ok(())
    }
}
