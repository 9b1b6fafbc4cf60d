//! One update: micro-batches forward and backward, the hook, the optimizer.

use super::Trainer;
use crate::config::Config;
use crate::data::{Batch, IGNORE_INDEX, Loader, Position};
use crate::models::Documents;
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::profile::Span;
use crate::train::events::{Event, Step};
use crate::train::in_flight::{InFlight, PendingStep};
use crate::{Error, Result, Tensor};
use std::time::Instant;

/// What a run minimizes. Evaluations measure the plain loss instead.
pub(in crate::train) fn criterion(config: &Config) -> Criterion<'static> {
    Criterion { label_smoothing: config.train.label_smoothing as f32, class_weights: None }
}

/// What pass number `pass` of a run drops.
pub(in crate::train) fn pass_dropout(config: &Config, pass: u64) -> Dropout {
    let (model, adapters) = (&config.model, config.lora.dropout as f32);
    let dropout = Dropout::new(model.dropout as f32, config.run.seed, pass);
    dropout.of_embeddings(model.embd_dropout as f32).of_adapters(adapters)
}

/// The batches of one step.
pub(super) fn next_batches(loader: &mut Loader, accum: usize) -> Vec<Batch> {
    (0..accum).map(|_| loader.next_batch()).collect()
}

/// How many tokens batches have to predict.
pub(super) fn predicted(batches: &[Batch]) -> usize {
    batches.iter().map(|batch| count_predicted(&batch.targets)).sum()
}

fn count_predicted(targets: &[u32]) -> usize {
    targets.iter().filter(|&&target| target != IGNORE_INDEX).count()
}

/// Of so many steps one gets a timestamp around every kernel.
const PROFILE_EVERY: usize = 50;

impl Trainer<'_> {
    /// One update: forward and backward over the batches, then the optimizer. On a GPU this only records and submits.
    pub(super) fn train_step(&mut self) -> Result<()> {
        let (device, started) = (self.options.device.clone(), Instant::now());
        device.begin_step(self.state.step % PROFILE_EVERY == 5);
        let accum = self.config.train.grad_accum_steps;
        self.unconfirmed.push_back((self.state.step + 1, self.state.position));
        let batches = device.profiler().span(Span::Data, || next_batches(&mut self.loader, accum));
        self.state.position = batches.last().expect("there is at least one").position;
        let targets = predicted(&batches);
        self.parameters.zero_gradients();
        let mut total_loss: Option<Tensor> = None;
        for (micro, batch) in batches.iter().enumerate() {
            let pass = (self.state.step * accum + micro) as u64;
            for part in 0..self.micro_batches {
                let loss = self.loss(batch, part, pass, targets)?;
                loss.backward()?;
                total_loss = Some(match total_loss {
                    None => loss.detach(),
                    Some(total) => total.add(&loss.detach())?,
                });
            }
        }
        self.step_hook.after_backward(&self.parameters)?;
        let learning_rate =
            self.learning_rate.at(self.state.step, self.state.plateau.factor) * self.state.guard.learning_rate_factor;
        let squares = self.optimizer.step(&self.parameters, learning_rate)?;
        self.state.step += 1;
        if self.is_logged() {
            let loss = total_loss.expect("there is at least one batch");
            let step = Step {
                step: self.state.step,
                epoch: self.loader.epochs_at(self.state.position),
                loss: f64::NAN,
                learning_rate,
                grad_norm: f64::NAN,
                tokens_per_s: 0.0,
                loss_scale: None,
            };
            let pending = PendingStep::new(step, &loss, &squares, &self.optimizer)?;
            self.in_flight.push_back(InFlight::Step(Box::new(pending)));
        }
        let ended = device.end_step();
        if let Some(trace) = device.profiler().trace() {
            trace.add_step(self.state.step, started);
        }
        ended
    }

    /// Whether the numbers of the step just done are to be reported.
    fn is_logged(&self) -> bool {
        self.state.step == 1
            || self.is_step_of(self.config.log.every)
            || self.is_step_of(self.config.checkpoint.every)
            || self.state.step == self.state.total_steps
    }

    /// What micro-batch number `part` of a batch contributes to the mean loss over the `predicted` tokens of a step,
    /// with the dropout masks that its sequences have in the whole batch.
    pub(super) fn loss(&self, batch: &Batch, part: usize, pass: u64, predicted: usize) -> Result<Tensor> {
        let (c, device) = (&self.config, &self.options.device);
        let (rows, t) = (c.train.batch_size, c.model.block_size);
        let (start, end) = (part * rows / self.micro_batches, (part + 1) * rows / self.micro_batches);
        let (tokens, shape) = (start * t..end * t, [end - start, t]);
        let ids = Tensor::from_u32(&batch.ids[tokens.clone()], shape, device)?; // (B, T)
        let targets = Tensor::from_u32(&batch.targets[tokens.clone()], shape, device)?; // (B, T)
        let starts = batch.starts.as_ref().map(|starts| Documents::new(&starts[tokens.clone()], shape, device));
        let dropout = pass_dropout(c, pass).from_sequence(start);
        let loss_scale = self.optimizer.loss_scale();
        let loss = self.model.loss(&ids, &targets, starts.transpose()?.as_ref(), &dropout, criterion(c), loss_scale)?;
        // The mean over a micro-batch counts by the number of its tokens, of which short documents and prompts leave
        // more or fewer.
        let weight = count_predicted(&batch.targets[tokens]) as f32 / predicted.max(1) as f32;
        if weight == 1.0 { Ok(loss) } else { loss.scale(weight) }
    }

    /// After a step that found too little memory: prepares to compute it again, each batch in twice as many
    /// micro-batches.
    ///
    /// # Errors
    /// That of the step, if a micro-batch is one sequence already.
    pub(super) fn split_micro_batches(&mut self, error: Error) -> Result<()> {
        let (batch_size, accum) = (self.config.train.batch_size, self.config.train.grad_accum_steps);
        if self.micro_batches >= batch_size {
            return Err(error);
        }
        self.micro_batches = (2 * self.micro_batches).min(batch_size);
        let (_, position) = self.unconfirmed.pop_back().expect("the step that failed");
        self.start_loader(position)?;
        self.state.position = position;
        let (rows, passes) = (batch_size.div_ceil(self.micro_batches), accum * self.micro_batches);
        let first = error.to_string();
        let first = first.lines().next().unwrap_or_default();
        self.report(Event::Note(format!(
            "{first}: going on with batches of {rows}, accumulated over {passes} passes; a step is of as many tokens \
             as before"
        )))
    }

    /// Lets batches start at this position.
    pub(super) fn start_loader(&mut self, position: Position) -> Result<()> {
        let (t, block_size) = (&self.config.train, self.config.model.block_size);
        self.loader = Loader::new(self.tokens.clone(), t.batch_size, block_size, self.config.run.seed, position)?;
        Ok(())
    }
}
