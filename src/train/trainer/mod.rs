//! A running training: steps, evaluations, checkpoints, and the end.

mod finish;
mod guard;
mod in_flight;
mod prepare;
mod recovery;
mod resume;
pub(super) mod run;
mod sizes;
mod step;
#[cfg(test)]
mod tests;
pub(super) mod verify;

use crate::Result;
use crate::config::{self, Config, GenerateConfig};
use crate::data::{Coverage, Position, TextConventions, Tokens};
use crate::models::{AdapterWeights, ModelWeights, Weights, hf};
use crate::optim::LearningRate;
use crate::profile::{Phase, StartUp, WallClock};
use crate::tensor::{Bytes, Preparing};
use crate::train::checkpoint::{Best, CHAT_TEMPLATE, Evaluated, GENERATION, Request, TrainerState, Writer};
use crate::train::evaluation::evaluate::{Windows, evaluate_objective};
use crate::train::plan::precompile::Precompile;
use crate::train::run::events::Event;
use crate::train::run::folder::RunFolder;
use crate::train::run::options::TrainOptions;
use crate::train::run::sinks::{Record, Sink};
use crate::train::run::throughput::{Completion, Throughput};
use crate::train::run::trace::RunTrace;
use crate::train::setup::adapters::lora;
use crate::train::step::ranks::Leader;
use crate::train::step::replica::Replica;
use crate::units;
use guard::{Anomaly, Monitor};
use in_flight::{Contents, InFlight, PendingSnapshot, PendingStep};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A run under way.
pub(super) struct Trainer<'a> {
    config: Arc<Config>,
    /// `config.toml`
    config_text: String,
    options: TrainOptions<'a>,
    /// The file that gets a block with the run's timings.
    training_log: Option<PathBuf>,
    // Before the folder, whose lock it needs: fields are dropped in their order.
    writer: Writer,
    folder: RunFolder,
    sinks: Vec<Box<dyn Sink>>,
    /// `run.json`
    record: Value,
    text: TextConventions,
    /// What a sample continues if the configuration names nothing: the first question of the validation text.
    question: Option<Vec<u32>>,
    validation: Tokens,
    /// Bytes of the validation text.
    coverage: Coverage,
    /// Of this device, which leads the others.
    replica: Replica,
    leader: Leader,
    learning_rate: LearningRate,
    state: TrainerState,
    /// The state that the last checkpoint holds, or will.
    saved: Option<TrainerState>,
    monitor: Monitor,
    /// Steps that the guard has not seen to be good yet, and the position of the loader before each.
    unconfirmed: VecDeque<(usize, Position)>,
    /// Whether the validation loss has not fallen for so long that the run is at its end.
    out_of_patience: bool,
    /// What is on its way from the device, in its order.
    in_flight: VecDeque<InFlight>,
    /// The memory that checkpoints are read into.
    preparing: Option<Preparing>,
    /// What compiles ahead of the first step, until that is done.
    precompile: Option<Precompile>,
    start_up: Option<StartUp>,
    clock: WallClock,
    trace: Option<RunTrace>,
    throughput: Throughput,
    /// Tokens that this process has learned from, in steps that were undone as well.
    tokens: u64,
    /// When the next logged step was last seen unfinished: see [`Trainer::busy_time`].
    unfinished_at: Duration,
    /// How long a device that had nothing left to do waited for the writer.
    stalled: Duration,
    /// The seconds of training of every epoch that began and ended in this process, by its number.
    epoch_seconds: Vec<(usize, f64)>,
    /// The time spent in training when the epoch began that is under way; `None` of one that began in another process.
    epoch_began: Option<Duration>,
    /// The steps and epochs that were done when this process started or resumed the run.
    began_at: (usize, f64),
}

impl Trainer<'_> {
    /// Steps until all are done or `stop` is set.
    pub(super) fn run(&mut self) -> Result<()> {
        loop {
            if self.evaluation_is_due() {
                self.timed(Phase::Evaluation, Trainer::evaluate)?;
            }
            if !self.is_done() && self.is_step_of(self.config.checkpoint.every) {
                self.save(false)?;
            }
            let stop = self.options.stop.load(Ordering::Relaxed);
            // At the end, what is still in flight may cause a rollback.
            if (stop && self.leader.is_between_rounds()) || (self.is_done() && !self.take_arrived(true)?) {
                return Ok(());
            }
            if self.is_done() {
                continue;
            }
            let epoch = self.epoch();
            self.timed(Phase::Training, Trainer::train_step)?;
            if let Some(precompile) = self.precompile.take() {
                self.timed(Phase::Training, |trainer| trainer.end_start_up(precompile))?;
                self.preparing = self.contents().prepare(&self.replica)?;
            }
            if self.epoch() > epoch {
                self.end_epoch(self.epoch())?;
            }
            self.take_arrived(false)?;
            (self.options.on_event)(&Event::Progress { step: self.state.step });
        }
    }

    /// Waits for the first step, to tell how long it took to come so far.
    fn end_start_up(&mut self, mut precompile: Precompile) -> Result<()> {
        self.options.device.synchronize()?;
        let start_up = StartUp { wall: self.clock.times(), ahead: precompile.finish().pop() };
        tracing::info!("{start_up}");
        self.start_up = Some(start_up);
        Ok(())
    }

    /// Whole passes over the text so far.
    fn epoch(&self) -> usize {
        self.replica.loader.epochs_at(self.state.position) as usize
    }

    /// Books and reports the time of an epoch that has just ended. A GPU may be a few steps behind.
    fn end_epoch(&mut self, epoch: usize) -> Result<()> {
        let now = self.clock.spent(Phase::Training);
        let Some(began) = self.epoch_began.replace(now) else { return Ok(()) };
        let seconds = (now - began).as_secs_f64();
        self.epoch_seconds.push((epoch, seconds));
        self.report(Event::Epoch { epoch, seconds })
    }

    fn is_done(&self) -> bool {
        self.state.step >= self.state.total_steps || self.out_of_patience
    }

    /// Whether this step is one of those that come after every `every` steps.
    fn is_step_of(&self, every: usize) -> bool {
        every > 0 && self.state.step > 0 && self.state.step.is_multiple_of(every)
    }

    /// Whether the validation loss of this step is wanted and not known yet.
    fn evaluation_is_due(&self) -> bool {
        let state = &self.state;
        let wanted = self.is_step_of(self.config.train.eval_every) || state.step >= state.total_steps;
        wanted && self.validation.len() >= 2 && state.evaluated.as_ref().is_none_or(|e| e.step != state.step)
    }

    /// Takes what has arrived from the device, in its order: reports the numbers of logged steps, hands snapshots to
    /// the writer. With `wait`, waits for all of it. True if the run was rolled back.
    fn take_arrived(&mut self, wait: bool) -> Result<bool> {
        if wait {
            self.timed(Phase::Training, |trainer| trainer.options.device.synchronize())?;
        }
        let (mut arrived, mut finished) = (0, Vec::new());
        let mut unfinished = None;
        for in_flight in &mut self.in_flight {
            let now = Instant::now();
            if !in_flight.has_arrived()? {
                unfinished = in_flight.step().map(|_| now);
                break;
            }
            arrived += 1;
            finished.extend(in_flight.step().and_then(|step| Some((step.tokens, step.arrived_at()?))));
        }
        let tokens_per_s = self.speed(&finished);
        self.unfinished_at = unfinished.map_or(self.unfinished_at, |at| self.busy_time_at(at));
        for _ in 0..arrived {
            match self.in_flight.pop_front().expect("front was there") {
                InFlight::Step(pending) => {
                    if self.take_step(*pending, tokens_per_s)? {
                        return Ok(true);
                    }
                }
                // Only after the loss of its step: weights that are no numbers must not push out older checkpoints.
                InFlight::Snapshot(pending) => self.timed(Phase::Checkpoints, |trainer| trainer.write(*pending))?,
            }
        }
        self.take_written(false)?;
        Ok(false)
    }

    /// Reports a logged step. True if the run was rolled back.
    fn take_step(&mut self, pending: PendingStep, tokens_per_s: Option<f64>) -> Result<bool> {
        let (mut step, skipped) = pending.numbers()?;
        step.tokens_per_s = tokens_per_s;
        self.state.train_loss = Some(step.loss).filter(|loss| loss.is_finite());
        self.report(Event::Step(step))?;
        self.check(&step, skipped)
    }

    /// The speed of steps that were finished after so many tokens, at these moments.
    fn speed(&mut self, finished: &[(u64, Instant)]) -> Option<f64> {
        let completion = |&(tokens, at): &(u64, Instant)| {
            let at = self.busy_time_at(at);
            Completion { tokens, at, unfinished_at: at.min(self.unfinished_at) }
        };
        let completions: Vec<Completion> = finished.iter().map(completion).collect();
        self.throughput.add(&completions)
    }

    /// Passes an event to the observer, and to `metrics.jsonl` and its like if it belongs there.
    fn report(&mut self, event: Event) -> Result<()> {
        if let Some(record) = Record::new(&event) {
            self.sinks.iter_mut().try_for_each(|sink| sink.add(&record, &mut self.folder))?;
        }
        (self.options.on_event)(&event);
        Ok(())
    }

    /// Evaluates on the validation split; a new best is saved.
    fn evaluate(&mut self) -> Result<()> {
        if self.take_arrived(true)? {
            return Ok(());
        }
        // The profile is of training alone.
        let measured = self.options.device.profiler().take();
        let context = self.config.model.block_size;
        let windows = Windows {
            context,
            stride: context,
            // In as many parts as training, where memory is short: the same windows if the parts are equal.
            batch_size: self.config.train.batch_size.div_ceil(self.replica.micro_batches),
            max_batches: self.config.train.eval_batches * self.replica.micro_batches,
        };
        let result = if self.leader.evaluates_together(&self.replica) {
            let total = self.leader.evaluate(&self.replica, &self.validation, self.options.stop);
            let preference = self.replica.preference.as_ref();
            total.map(|total| Some(total?.evaluation(&self.validation, &self.coverage, windows, preference)))
        } else {
            self.with_averages(|run| {
                let (model, preference) = (&*run.replica.model, run.replica.preference.as_ref());
                evaluate_objective(model, &run.validation, &run.coverage, windows, preference, run.options.stop)
            })
        };
        self.options.device.profiler().restore(measured);
        let Some(result) = result? else { return Ok(()) };
        if !result.loss.is_finite() {
            let (value, step) = (result.loss, self.state.step);
            let anomaly = Anomaly::NotFinite { what: "validation loss", value, step };
            let verdict = guard::decide(&self.config.guard, &self.state.guard, anomaly);
            return self.act(verdict).map(drop);
        }
        let best = self.state.best.is_none_or(|best| result.loss < best.loss);
        if best {
            self.state.best = Some(Best { step: self.state.step, loss: result.loss });
        }
        self.state.evaluated = Some(Evaluated { step: self.state.step, result: result.clone() });
        self.report(Event::Evaluated { step: self.state.step, split: "validation", result, best })?;
        if self.config.log.samples {
            self.timed(Phase::Sampling, Trainer::add_sample)?;
        }
        (self.out_of_patience, self.state.guard) =
            guard::is_out_of_patience(&self.config.guard, &self.state.guard, best);
        if self.out_of_patience {
            let Best { step, loss } = self.state.best.expect("there was an evaluation");
            let text = format!(
                "the validation loss has not fallen since {} at step {step}: the run ends here",
                units::loss(loss)
            );
            self.report(Event::Note(text))?;
        }
        self.divide_on_plateau(best)?;
        if best && self.config.checkpoint.keep_best {
            self.save(true)?;
        }
        Ok(())
    }

    /// Does something with the averages of the weights in their place, if the run keeps any.
    fn with_averages<T>(&self, body: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.replica.optimizer.swap_averages(&self.replica.parameters)?;
        let result = body(self);
        let swapped = self.replica.optimizer.swap_averages(&self.replica.parameters);
        result.and_then(|value| swapped.map(|()| value))
    }

    /// Lets the learning rate of `train.schedule = "plateau"` fall where the validation loss has not for long enough.
    fn divide_on_plateau(&mut self, best: bool) -> Result<()> {
        if self.config.train.schedule != config::Schedule::Plateau {
            return Ok(());
        }
        let before = self.state.plateau;
        self.state.plateau = before.after(best, &self.config.train);
        let learning_rate = self.learning_rate.at(self.state.step, self.state.plateau.factor);
        if self.learning_rate.at(self.state.step, before.factor) == learning_rate || self.is_done() {
            return Ok(());
        }
        let rate = units::number(learning_rate);
        let text = format!("the validation loss has not fallen: the learning rate does, to {rate}");
        self.report(Event::Note(text))
    }

    /// Does something that counts as of a phase of the run.
    fn timed<T>(&mut self, phase: Phase, body: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.clock.enter(phase);
        let value = body(self);
        self.clock.enter(before);
        value
    }

    /// How long the device has had steps to do. A GPU computes on while a checkpoint is made, the CPU does not; neither
    /// does in an evaluation.
    fn busy_time(&self) -> Duration {
        let steps = self.clock.spent(Phase::Training) + self.clock.spent(Phase::Unaccounted);
        match self.options.device.is_gpu() {
            true => steps + self.clock.spent(Phase::Checkpoints) - self.stalled,
            false => steps,
        }
    }

    /// [`Trainer::busy_time`] at a moment since which the device has had steps to do.
    fn busy_time_at(&self, at: Instant) -> Duration {
        self.busy_time().saturating_sub(at.elapsed())
    }

    /// Saves a checkpoint, unless the last one holds the same state. Training continues meanwhile; it waits only if the
    /// previous one is not written yet.
    fn save(&mut self, best: bool) -> Result<()> {
        self.timed(Phase::Checkpoints, |trainer| trainer.request_checkpoint(best))
    }

    /// What checkpoints have of the model.
    fn contents(&self) -> Contents {
        if self.config.lora.rank > 0 { Contents::Adapters } else { Contents::Model }
    }

    fn request_checkpoint(&mut self, best: bool) -> Result<()> {
        let now = self.state.comparable();
        if self.saved.as_ref() == Some(&now) {
            return Ok(());
        }
        if self.finish_saving()? {
            return Ok(());
        }
        self.leader.align(&self.replica)?;
        let further = self.leader.further(&self.replica)?;
        // It would be made twice.
        self.preparing = None;
        let pending = PendingSnapshot::new(self.state.clone(), &self.replica, further, self.contents(), best)?;
        self.in_flight.push_back(InFlight::Snapshot(Box::new(pending)));
        self.saved = Some(now);
        self.take_arrived(false).map(drop)
    }

    /// Hands a snapshot to the writer.
    fn write(&mut self, pending: PendingSnapshot) -> Result<()> {
        let best = pending.best;
        let appended = self.folder.lines().so_far()?;
        let (pretrained, config) = (self.pretrained_files()?, self.config_text.clone());
        let mut snapshot =
            pending.snapshot(&self.replica.parameters, |values| self.weights(values), pretrained, config)?;
        // Every step up to the snapshot's has been reported, and none after it.
        snapshot.state.train_loss = self.state.train_loss;
        snapshot.state.guard.losses.clone_from(&self.state.guard.losses);
        snapshot.state.appended = appended.lengths;
        let appended = appended.handles;
        let request = Request { snapshot, appended, best, keep_last: self.config.checkpoint.keep_last };
        self.writer.begin(self.folder.checkpoints(), request)
    }

    /// What a checkpoint keeps of the model, of the bytes of its values: all of them, or the adapters that are trained.
    fn weights(&self, mut values: Vec<Bytes>) -> Weights {
        let shape = self.replica.model.config();
        match lora(&self.config) {
            None => {
                let weights = ModelWeights::new(shape.clone(), &self.replica.parameters, values);
                Weights::Model(weights.with_special_ids(self.text.ids()))
            }
            Some(lora) => {
                // So that it is found from everywhere.
                let init = Path::new(&self.config.model.init);
                let base = init.canonicalize().unwrap_or_else(|_| init.to_path_buf()).display().to_string();
                let values = values.swap_remove(0);
                Weights::Adapters(AdapterWeights::new(lora, base, shape, &self.replica.parameters, values))
            }
        }
    }

    /// What transformers reads beside the model: the tokenizer, and how `[generate]` samples.
    fn pretrained_files(&self) -> Result<Vec<(&'static str, String)>> {
        let &GenerateConfig { temperature, top_k, top_p, min_p, repetition_penalty, max_new_tokens, .. } =
            &self.config.generate;
        let context = self.replica.model.config().block_size;
        let model_type = hf::model_type(self.replica.model.config());
        let mut files = self.text.tokenizer.pretrained_files(context, &model_type)?;
        files.extend(self.text.template.as_ref().map(|template| (CHAT_TEMPLATE, template.source().to_string())));
        // A temperature of 0 takes the likeliest token.
        let mut generation = json!({ "max_new_tokens": max_new_tokens, "do_sample": temperature > 0.0 });
        if temperature > 0.0 {
            generation["temperature"] = temperature.into();
            generation["top_k"] = top_k.into();
            generation["top_p"] = top_p.into();
            if min_p > 0.0 {
                generation["min_p"] = min_p.into();
            }
        }
        if repetition_penalty != 1.0 {
            generation["repetition_penalty"] = repetition_penalty.into();
        }
        generation.as_object_mut().expect("it is an object").extend(self.text.ids());
        files.push((GENERATION, serde_json::to_string_pretty(&generation).expect("plain values serialize")));
        Ok(files)
    }

    /// Waits until every checkpoint that was requested is on the disk. True if the run was rolled back instead.
    fn finish_saving(&mut self) -> Result<bool> {
        let is_pending = self.in_flight.iter().any(|pending| matches!(pending, InFlight::Snapshot(_)));
        // What waits for the writer has no steps left to do, so that none is finished while it waits.
        let rolled_back = (is_pending || self.writer.is_busy()) && self.take_arrived(true)?;
        let started = Instant::now();
        self.take_written(true)?;
        self.stalled += started.elapsed();
        Ok(rolled_back)
    }

    fn take_written(&mut self, wait: bool) -> Result<()> {
        match self.writer.take_written(wait)? {
            Some((step, path)) => self.report(Event::Saved { step, path }),
            None => Ok(()),
        }
    }
}
