//! A run under way: steps, evaluations, checkpoints, and the end.

use super::awaited::{Awaited, PendingSnapshot, PendingStep};
use super::checkpoints::Request;
use super::events::{Event, Step, Summary};
use super::guard::{Trouble, Watch};
use super::run_folder::{METRICS, RunFolder};
use super::state::{Best, Evaluated, TrainerState};
use super::writer::Writer;
use super::{Setting, Windows, describe_precision, evaluate, log, prompt_ids};
use crate::config::Config;
use crate::data::{Batch, IGNORE_INDEX, Loader, Position, Tokenizer};
use crate::generate::{Sampling, generate, printable};
use crate::nn::{Dropout, Gpt};
use crate::optim::{LearningRate, Optimizer, Parameters};
use crate::profile::{Report, Span};
use crate::{Error, Result, Tensor};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Of so many steps one gets a timestamp around every kernel.
const PROFILE_EVERY: usize = 50;

/// A run under way.
pub(super) struct Trainer<'a> {
    pub(super) config: &'a Config,
    /// `config.toml`
    pub(super) config_text: String,
    pub(super) setting: Setting<'a>,
    // Before the folder, whose lock it needs: fields are dropped in their order.
    pub(super) writer: Writer,
    pub(super) folder: RunFolder,
    pub(super) tokenizer: Tokenizer,
    /// What is learnt from.
    pub(super) tokens: Arc<[u32]>,
    pub(super) validation: Vec<u32>,
    /// Bytes of the validation text.
    pub(super) validation_bytes: usize,
    pub(super) model: Gpt,
    pub(super) parameters: Parameters,
    pub(super) optimizer: Optimizer,
    pub(super) learning_rate: LearningRate,
    pub(super) loader: Loader,
    pub(super) state: TrainerState,
    /// The moment that the last checkpoint holds, or will.
    pub(super) saved: Option<TrainerState>,
    pub(super) watch: Watch,
    /// Passes that a batch is computed in: more than one where the device's memory does not suffice.
    pub(super) parts: usize,
    /// Whether the validation loss has not fallen for so long that the run is at its end.
    pub(super) out_of_patience: bool,
    /// What is on its way from the device, in its order.
    pub(super) awaited: VecDeque<Awaited>,
    /// Time spent in steps: without evaluation and saving.
    pub(super) training_time: Duration,
    pub(super) last_logged: (usize, Duration),
    /// The steps and epochs that were done when this process took up the run.
    pub(super) began_at: (usize, f64),
}

impl Trainer<'_> {
    /// Steps until all are done or someone says stop.
    pub(super) fn run(&mut self) -> Result<()> {
        loop {
            if self.evaluation_is_due() {
                self.evaluate()?;
            }
            if !self.is_done() && self.is_step_of(self.config.checkpoint.every) {
                self.save(false)?;
            }
            let stop = self.setting.stop.load(Ordering::Relaxed);
            // At the end, what is still on its way may lead back to a checkpoint.
            if stop || (self.is_done() && !self.take_awaited(true)?) {
                return Ok(());
            }
            if self.is_done() {
                continue;
            }
            let started = Instant::now();
            match self.train_step() {
                Err(error @ Error::OutOfMemory { .. }) => self.halve(error)?,
                result => result?,
            }
            self.training_time += started.elapsed();
            self.take_awaited(false)?;
            (self.setting.on_event)(&Event::Progress { step: self.state.step });
        }
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

    /// One update: forward and backward over the batches, then the optimizer. On a GPU this only records and submits.
    fn train_step(&mut self) -> Result<()> {
        let device = self.setting.device.clone();
        device.begin_step(self.state.step % PROFILE_EVERY == 5);
        let accum = self.config.train.grad_accum_steps;
        self.watch.unconfirmed.push_back((self.state.step + 1, self.state.position));
        let mut total_loss: Option<Tensor> = None;
        for micro in 0..accum {
            let batch = device.profiler().span(Span::Data, || self.loader.next_batch());
            self.state.position = batch.position;
            if micro == 0 {
                self.parameters.zero_gradients();
            }
            let pass = (self.state.step * accum + micro) as u64;
            for part in 0..self.parts {
                let loss = self.loss(&batch, part, pass)?;
                loss.backward()?;
                total_loss = Some(match total_loss {
                    None => loss.detach(),
                    Some(total) => total.add(&loss.detach())?,
                });
            }
        }
        let learning_rate = self.learning_rate.at(self.state.step) * self.state.guard.learning_rate_factor;
        let squares = self.optimizer.step(&self.parameters, learning_rate)?;
        self.state.step += 1;
        let logged = self.state.step == 1
            || self.is_step_of(self.config.log.every)
            || self.is_step_of(self.config.checkpoint.every)
            || self.state.step == self.state.total_steps;
        if logged {
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
            self.awaited.push_back(Awaited::Step(Box::new(pending)));
        }
        device.end_step()
    }

    /// What a part of a batch contributes to the mean loss of a step, with dropout's masks for this pass.
    pub(super) fn loss(&self, batch: &Batch, part: usize, pass: u64) -> Result<Tensor> {
        let c = self.config;
        let (rows, t) = (c.train.batch_size, c.model.block_size);
        let (start, end) = (part * rows / self.parts, (part + 1) * rows / self.parts);
        let targets = &batch.targets[start * t..end * t];
        let ids = Tensor::from_u32(&batch.ids[start * t..end * t], [end - start, t], &self.setting.device)?; // (B, T)
        let dropout = Dropout::new(c.model.dropout as f32, c.run.seed, pass).from_sequence(start);
        let predicted = |targets: &[u32]| targets.iter().filter(|&&target| target != IGNORE_INDEX).count() as f32;
        // A part's mean counts by the tokens that it is of.
        let share = if self.parts == 1 { 1.0 } else { predicted(targets) / predicted(&batch.targets).max(1.0) };
        let targets = Tensor::from_u32(targets, [end - start, t], &self.setting.device)?; // (B, T)
        let loss = self.model.loss(&ids, &targets, &dropout, self.optimizer.loss_scale())?;
        let share = share / c.train.grad_accum_steps as f32;
        if share == 1.0 { Ok(loss) } else { loss.scale(share) }
    }

    /// Prepares to compute the step anew that found too little memory, each batch in twice as many parts.
    fn halve(&mut self, error: Error) -> Result<()> {
        let t = &self.config.train;
        if self.parts >= t.batch_size {
            return Err(error);
        }
        self.parts = (2 * self.parts).min(t.batch_size);
        let (_, position) = self.watch.unconfirmed.pop_back().expect("the step that failed");
        self.start_loader(position)?;
        self.state.position = position;
        let (rows, accum) = (t.batch_size.div_ceil(self.parts), t.grad_accum_steps * self.parts);
        let first = error.to_string();
        let first = first.lines().next().unwrap_or_default();
        self.report(Event::Note(format!(
            "{first}: going on with batches of {rows}, accumulated over {accum} passes; a step is of as many tokens as before"
        )))
    }

    /// Lets batches begin at this position.
    pub(super) fn start_loader(&mut self, position: Position) -> Result<()> {
        let (t, block_size) = (&self.config.train, self.config.model.block_size);
        self.loader = Loader::new(self.tokens.clone(), t.batch_size, block_size, self.config.run.seed, position)?;
        Ok(())
    }

    /// Takes what has arrived from the device, in its order: reports the numbers of logged steps, hands snapshots to the
    /// writer. All of it if told to wait. True if the guard went back to a checkpoint.
    pub(super) fn take_awaited(&mut self, wait: bool) -> Result<bool> {
        if wait {
            let started = Instant::now();
            self.setting.device.synchronize()?;
            self.training_time += started.elapsed();
        }
        let (mut arrived, mut newest, mut tokens_per_s) = (0, None, 0.0);
        for awaited in &mut self.awaited {
            if !awaited.has_arrived()? {
                break;
            }
            arrived += 1;
            newest = awaited.step().or(newest);
        }
        if let Some(newest) = newest {
            // Steps that arrive together share a speed.
            let (before, at) = self.last_logged;
            let tokens = (newest - before) * self.tokens_per_step();
            tokens_per_s = tokens as f64 / (self.training_time - at).as_secs_f64().max(1e-9);
            self.last_logged = (newest, self.training_time);
        }
        for _ in 0..arrived {
            match self.awaited.pop_front().expect("front was there") {
                Awaited::Step(pending) => {
                    if self.take_step(*pending, tokens_per_s)? {
                        return Ok(true);
                    }
                }
                // Only after the loss of its step: weights that are no numbers must not push out older checkpoints.
                Awaited::Snapshot(pending) => self.write(*pending)?,
            }
        }
        self.take_written(false)?;
        Ok(false)
    }

    /// Reports a logged step. True if the guard went back to a checkpoint.
    fn take_step(&mut self, pending: PendingStep, tokens_per_s: f64) -> Result<bool> {
        let (mut step, skipped) = pending.numbers();
        step.tokens_per_s = tokens_per_s;
        self.state.train_loss = Some(step.loss).filter(|loss| loss.is_finite());
        self.report(Event::Step(step))?;
        self.judge(&step, skipped)
    }

    fn tokens_per_step(&self) -> usize {
        self.config.train.batch_size * self.config.train.grad_accum_steps * self.config.model.block_size
    }

    /// Tells the observer, and `metrics.jsonl` if it belongs there.
    pub(super) fn report(&mut self, event: Event) -> Result<()> {
        if matches!(event, Event::Step(_) | Event::Evaluated { .. } | Event::RolledBack { .. })
            && let Some(line) = event.json()
        {
            self.folder.add_metrics(&line)?;
        }
        (self.setting.on_event)(&event);
        Ok(())
    }

    /// Evaluates on the validation split; a new best is saved.
    fn evaluate(&mut self) -> Result<()> {
        if self.take_awaited(true)? {
            return Ok(());
        }
        // Training's measurements are put aside: they are about training.
        let measured = self.setting.device.profiler().take();
        let context = self.config.model.block_size;
        let windows = Windows {
            context,
            stride: context,
            // In as many parts as training, where memory is short: the same windows if the parts are equal.
            batch_size: self.config.train.batch_size.div_ceil(self.parts),
            max_batches: self.config.train.eval_batches * self.parts,
        };
        let result = evaluate(&self.model, &self.validation, self.validation_bytes, windows, self.setting.stop);
        self.setting.device.profiler().restore(measured);
        let Some(result) = result? else { return Ok(()) };
        if !result.loss.is_finite() {
            let (value, step) = (result.loss, self.state.step);
            return self.meet(Trouble::NotFinite { what: "validation loss", value, step }).map(drop);
        }
        let best = self.state.best.is_none_or(|best| result.loss < best.loss);
        if best {
            self.state.best = Some(Best { step: self.state.step, loss: result.loss });
        }
        self.state.evaluated = Some(Evaluated { step: self.state.step, result: result.clone() });
        self.report(Event::Evaluated { step: self.state.step, split: "validation", result, best })?;
        if self.is_out_of_patience(best) {
            self.out_of_patience = true;
            let Best { step, loss } = self.state.best.expect("there was an evaluation");
            let text = format!("the validation loss has not fallen since {loss:.4} at step {step}: the run ends here");
            self.report(Event::Note(text))?;
        }
        if best && self.config.checkpoint.keep_best {
            self.save(true)?;
        }
        Ok(())
    }

    /// Saves a checkpoint, unless the last one holds just this moment. Training goes on meanwhile; only if the one before
    /// is not written yet does it wait.
    pub(super) fn save(&mut self, best: bool) -> Result<()> {
        let moment = self.state.moment();
        if self.saved.as_ref() == Some(&moment) {
            return Ok(());
        }
        if self.finish_saving()? {
            return Ok(());
        }
        let pending = PendingSnapshot::new(self.state.clone(), &self.parameters, &self.optimizer, best)?;
        self.awaited.push_back(Awaited::Snapshot(Box::new(pending)));
        self.saved = Some(moment);
        self.take_awaited(false).map(drop)
    }

    /// Hands a snapshot to the writer.
    fn write(&mut self, pending: PendingSnapshot) -> Result<()> {
        let best = pending.best;
        let (length, metrics) = self.folder.metrics_so_far()?;
        let (tokenizer, config) = (self.tokenizer.to_json()?, self.config_text.clone());
        let mut snapshot = pending.snapshot(&self.model.config, &self.parameters, tokenizer, config);
        // Every step up to the snapshot's has been reported, and none after it.
        snapshot.state.train_loss = self.state.train_loss;
        snapshot.state.guard.losses.clone_from(&self.state.guard.losses);
        snapshot.state.appended = [(METRICS.to_string(), length)].into();
        let request = Request { snapshot, metrics, best, keep_last: self.config.checkpoint.keep_last };
        self.writer.begin(self.folder.checkpoints(), request)
    }

    /// Waits until every checkpoint that was begun is on the disk. True if the guard went back to one instead.
    fn finish_saving(&mut self) -> Result<bool> {
        let is_coming = self.awaited.iter().any(|awaited| matches!(awaited, Awaited::Snapshot(_)));
        let went_back = is_coming && self.take_awaited(true)?;
        self.take_written(true)?;
        Ok(went_back)
    }

    pub(super) fn take_written(&mut self, wait: bool) -> Result<()> {
        match self.writer.take_written(wait)? {
            Some((step, path)) => self.report(Event::Saved { step, path }),
            None => Ok(()),
        }
    }

    /// Saves the last state, writes a sample, and sums up.
    pub(super) fn finish(mut self) -> Result<Summary> {
        self.take_awaited(true)?;
        let epochs = self.loader.epochs_at(self.state.position);
        let seconds = self.training_time.as_secs_f64();
        let (first_step, first_epoch) = self.began_at;
        let report = Report::new(
            &self.setting.device.profiler().take(),
            seconds,
            epochs - first_epoch,
            self.setting.device.memory(),
        );
        let interrupted = !self.is_done() || (!self.out_of_patience && self.evaluation_is_due());
        self.save(false)?;
        self.finish_saving()?;
        if !interrupted {
            let sample = self.sample()?;
            self.folder.write("samples.txt", &format!("{}\n", printable(&sample)))?;
            self.report(Event::Sample(sample))?;
        }
        self.folder.write("profile.txt", &report.text())?;
        let peak_memory_bytes = self.setting.device.memory().map(|memory| memory.peak_bytes);
        let summary = Summary {
            folder: self.folder.path().to_path_buf(),
            device: self.setting.device.describe(),
            precision: describe_precision(self.config.device.precision, &self.setting.device, &self.model.config),
            parameters: self.model.config.parameter_count(),
            model: self.model.config.clone(),
            steps: self.state.step,
            total_steps: self.state.total_steps,
            epochs,
            interrupted,
            train_loss: self.state.train_loss,
            validation: self.state.evaluated.as_ref().map(|e| e.result.clone()),
            best_loss: self.state.best.map(|best| best.loss),
            best_step: self.state.best.filter(|_| self.config.checkpoint.keep_best).map(|best| best.step),
            tokens_per_s: ((self.state.step - first_step) * self.tokens_per_step()) as f64 / seconds.max(1e-9),
            peak_memory_bytes,
            report,
        };
        if let Some(path) = self.setting.training_log {
            log::append(path, &summary)?;
        }
        self.folder.mark_finished(!interrupted)?;
        self.report(Event::Finished(Box::new(summary.clone())))?;
        Ok(summary)
    }

    /// What the model writes, from the configured prompt or the start of a line.
    fn sample(&self) -> Result<String> {
        let g = &self.config.generate;
        let prompt = prompt_ids(&self.tokenizer, &g.prompt)?;
        let tokens = self.tokenizer.vocab_size();
        let sampling = Sampling { tokens, temperature: g.temperature, top_k: g.top_k, top_p: g.top_p, seed: g.seed };
        let mut ids = prompt.clone();
        generate(&self.model, &prompt, g.max_new_tokens, &sampling, &mut |id| {
            ids.push(id);
            let stop = self.setting.stop.load(Ordering::Relaxed);
            Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(self.tokenizer.decode(&ids)?.trim_start_matches('\n').to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::config::{Layers, Resolved};
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    fn configuration(dir: &Path, settings: &[&str]) -> Resolved {
        let text = format!(
            "[run]\ndir = {dir:?}\n[data]\ntokenizer = \"char\"\n[model]\nn_layer = 2\nn_head = 2\nn_embd = 16\n\
             block_size = 16\ndropout = 0.3\n[train]\nbatch_size = 5\nmax_steps = 4\n"
        );
        let layers = Layers::new().toml_str("test.toml", &text).unwrap();
        settings.iter().fold(layers, |layers, setting| layers.set(setting).unwrap()).build().unwrap()
    }

    /// The loss of a batch and its gradients, computed in so many parts.
    fn loss_and_gradients(trainer: &mut Trainer, batch: &Batch, parts: usize) -> (f32, Vec<f32>) {
        trainer.parts = parts;
        trainer.parameters.zero_gradients();
        let mut total = 0.0;
        for part in 0..parts {
            let loss = trainer.loss(batch, part, 7).unwrap();
            loss.backward().unwrap();
            total += loss.to_f32().unwrap()[0];
        }
        (total, trainer.parameters.gradients().to_f32().unwrap())
    }

    #[test]
    fn a_batch_in_parts_has_the_loss_and_gradients_of_the_whole_with_dropout() {
        let mixed = crate::gpu::gpu_for_tests().map(|gpu| (Device::Gpu(gpu), "mixed", 2e-3));
        let in_f32 = Device::for_tests().into_iter().map(|device| (device, "f32", 1e-5));
        // In f32 sums in another order; in mixed precision gradients of f16 that are scaled by a part's share.
        for (device, precision, tolerance) in in_f32.chain(mixed) {
            let dir = tempfile::tempdir().unwrap();
            let resolved = configuration(dir.path(), &[&format!("device.precision={precision}")]);
            let (stop, on_event) = (AtomicBool::new(false), &mut |_: &Event| {});
            let (data_dir, training_log, resume, reopen) = (Path::new("data"), None, None, None);
            let setting =
                Setting { device: device.clone(), reopen, data_dir, resume, stop: &stop, training_log, on_event };
            let mut trainer = Trainer::prepare(&resolved, setting).unwrap();
            let batch = trainer.loader.next_batch();
            let (whole_loss, whole) = loss_and_gradients(&mut trainer, &batch, 1);
            let largest = whole.iter().fold(0.0, |largest: f32, g| largest.max(g.abs()));
            assert!(largest > 0.01, "{largest}");
            for parts in [2, 3] {
                let (loss, gradients) = loss_and_gradients(&mut trainer, &batch, parts);
                assert!((loss - whole_loss).abs() < tolerance * whole_loss, "{device}: {loss}, whole {whole_loss}");
                for (i, (split, whole)) in gradients.iter().zip(&whole).enumerate() {
                    let close = (split - whole).abs() < tolerance * largest;
                    assert!(close, "{device} {precision}, {parts} parts, gradient {i}: {split}, whole {whole}");
                }
            }
        }
    }
}
