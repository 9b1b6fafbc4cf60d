//! A run under way: steps, evaluations, checkpoints, and the end.

use super::checkpoint::Snapshot;
use super::events::{Event, Step, Summary};
use super::run_folder::{METRICS, RunFolder};
use super::state::{Best, Evaluated, TrainerState};
use super::{Setting, Windows, describe, evaluate, log, prompt_ids};
use crate::config::Config;
use crate::data::{Loader, Tokenizer};
use crate::generate::{Sampling, generate};
use crate::nn::checkpoint::Weights;
use crate::nn::{Dropout, Gpt};
use crate::optim::{LearningRate, Optimizer, Parameters};
use crate::profile::{self, Report, Span};
use crate::tensor::Reading;
use crate::{Device, Error, Result, Tensor};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Submits that may wait for the GPU: enough that it never runs dry, few enough that Ctrl-C acts at once.
const SUBMITS_IN_FLIGHT: usize = 6;
/// Of so many steps one gets a timestamp around every kernel.
const PROFILE_EVERY: usize = 50;

/// A run under way.
pub(super) struct Trainer<'a> {
    pub(super) config: &'a Config,
    /// `config.toml`
    pub(super) config_text: String,
    pub(super) setting: Setting<'a>,
    pub(super) folder: RunFolder,
    pub(super) tokenizer: Tokenizer,
    pub(super) validation: Vec<u32>,
    /// Bytes of the validation text.
    pub(super) validation_bytes: usize,
    pub(super) model: Gpt,
    pub(super) parameters: Parameters,
    pub(super) optimizer: Optimizer,
    pub(super) learning_rate: LearningRate,
    pub(super) loader: Loader,
    pub(super) state: TrainerState,
    /// The state that the last checkpoint holds.
    pub(super) saved: Option<TrainerState>,
    /// Logged steps whose numbers are on their way.
    pub(super) readings: VecDeque<PendingStep>,
    /// Time spent in steps: without evaluation and saving.
    pub(super) training_time: Duration,
    pub(super) last_logged: (usize, Duration),
    /// The steps and epochs that were done when this process took up the run.
    pub(super) began_at: (usize, f64),
}

/// A logged step without the numbers that are still being computed.
pub(super) struct PendingStep {
    step: Step,
    /// The loss, and the sum of squared gradients.
    numbers: [Reading; 2],
}

impl Trainer<'_> {
    /// Steps until all are done or someone says stop.
    pub(super) fn run(&mut self) -> Result<()> {
        loop {
            if self.evaluation_is_due() {
                self.evaluate()?;
            }
            let done = self.state.step >= self.state.total_steps;
            if !done && self.is_step_of(self.config.checkpoint.every) {
                // Weights that are no numbers must not push out the checkpoints from before.
                self.take_readings(true)?;
                self.save(false)?;
            }
            if done || self.setting.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let started = Instant::now();
            self.train_step()?;
            self.training_time += started.elapsed();
            self.take_readings(false)?;
            (self.setting.on_event)(&Event::Progress { step: self.state.step });
        }
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
        let (t, device) = (&self.config.train, self.setting.device.clone());
        if let Device::Gpu(gpu) = &device {
            gpu.time_kernels(self.state.step % PROFILE_EVERY == 5);
        }
        let accum = t.grad_accum_steps;
        let mut total_loss: Option<Tensor> = None;
        for micro in 0..accum {
            let batch = profile::span(Span::Data, || self.loader.next_batch());
            let shape = [t.batch_size, self.config.model.block_size];
            let ids = Tensor::from_u32(&batch.ids, shape, &device)?; // (B, T)
            let targets = Tensor::from_u32(&batch.targets, shape, &device)?; // (B, T)
            self.state.position = batch.position;
            if micro == 0 {
                self.parameters.zero_gradients();
            }
            let pass = (self.state.step * accum + micro) as u64;
            let dropout = Dropout::new(self.config.model.dropout as f32, self.config.run.seed, pass);
            let loss =
                self.model.loss(&ids, &targets, &dropout, self.optimizer.loss_scale())?.scale(1.0 / accum as f32)?;
            loss.backward()?;
            total_loss = Some(match total_loss {
                None => loss.detach(),
                Some(total) => total.add(&loss.detach())?,
            });
        }
        let learning_rate = self.learning_rate.at(self.state.step);
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
            };
            self.readings.push_back(PendingStep { step, numbers: [loss.read_later()?, squares.read_later()?] });
        }
        if let Device::Gpu(gpu) = &device {
            gpu.submit()?;
            gpu.throttle(SUBMITS_IN_FLIGHT)?;
        }
        Ok(())
    }

    /// Reports the logged steps whose numbers have arrived; all of them if told to wait.
    fn take_readings(&mut self, wait: bool) -> Result<()> {
        if wait {
            let started = Instant::now();
            self.setting.device.synchronize()?;
            self.training_time += started.elapsed();
        }
        while let Some(pending) = self.readings.front_mut() {
            let [Some(loss), Some(squares)] = take_both(&mut pending.numbers)? else { break };
            let mut step = self.readings.pop_front().expect("front was there").step;
            step.loss = f64::from(loss);
            step.grad_norm = f64::from(squares).sqrt();
            let (before, at) = self.last_logged;
            let tokens = (step.step - before) * self.tokens_per_step();
            step.tokens_per_s = tokens as f64 / (self.training_time - at).as_secs_f64().max(1e-9);
            self.last_logged = (step.step, self.training_time);
            self.state.train_loss = Some(step.loss);
            self.report(Event::Step(step))?;
            self.check_loss("loss", step.loss, step.step)?;
        }
        Ok(())
    }

    /// An error if a loss is not a number any more: nothing after it is worth computing or keeping.
    fn check_loss(&self, what: &str, loss: f64, step: usize) -> Result<()> {
        if loss.is_finite() {
            return Ok(());
        }
        let folder = self.folder.path();
        let kept = match folder.join("last").exists() {
            true => format!("; {} holds the checkpoints from before", folder.display()),
            false => String::new(),
        };
        Err(Error::Invalid(format!(
            "the {what} is {loss} at step {step}: training diverged. Lower train.learning_rate or set \
             train.grad_clip{kept}"
        )))
    }

    fn tokens_per_step(&self) -> usize {
        self.config.train.batch_size * self.config.train.grad_accum_steps * self.config.model.block_size
    }

    /// Tells the observer, and `metrics.jsonl` if it belongs there.
    fn report(&mut self, event: Event) -> Result<()> {
        if matches!(event, Event::Step(_) | Event::Evaluated { .. })
            && let Some(line) = event.json()
        {
            self.folder.add_metrics(&line)?;
        }
        (self.setting.on_event)(&event);
        Ok(())
    }

    /// Evaluates on the validation split; a new best is saved.
    fn evaluate(&mut self) -> Result<()> {
        self.take_readings(true)?;
        // Training's measurements are put aside: they are about training.
        let measured = profile::take();
        let context = self.config.model.block_size;
        let windows = Windows {
            context,
            stride: context,
            batch_size: self.config.train.batch_size,
            max_batches: self.config.train.eval_batches,
        };
        let result = evaluate(&self.model, &self.validation, self.validation_bytes, windows, self.setting.stop);
        profile::restore(measured);
        let Some(result) = result? else { return Ok(()) };
        self.check_loss("validation loss", result.loss, self.state.step)?;
        let best = self.state.best.is_none_or(|best| result.loss < best.loss);
        if best {
            self.state.best = Some(Best { step: self.state.step, loss: result.loss });
        }
        self.state.evaluated = Some(Evaluated { step: self.state.step, result: result.clone() });
        self.report(Event::Evaluated { step: self.state.step, split: "validation", result, best })?;
        if best && self.config.checkpoint.keep_best {
            self.save(true)?;
        }
        Ok(())
    }

    /// Saves a checkpoint, unless the last one holds just this.
    fn save(&mut self, best: bool) -> Result<()> {
        self.state.appended = [(METRICS.to_string(), self.folder.sync_metrics()?)].into();
        if self.saved.as_ref() == Some(&self.state) {
            return Ok(());
        }
        let snapshot = Snapshot {
            weights: Weights::of(&mut self.model)?,
            moments: self.optimizer.moments(&self.parameters)?,
            tokenizer: self.tokenizer.to_json()?,
            state: self.state.clone(),
            config: self.config_text.clone(),
        };
        let path = self.folder.save_checkpoint(snapshot, best, self.config.checkpoint.keep_last)?;
        self.saved = Some(self.state.clone());
        self.report(Event::Saved { step: self.state.step, path })
    }

    /// Saves the last state, writes a sample, and sums up.
    pub(super) fn finish(mut self) -> Result<Summary> {
        self.take_readings(true)?;
        let epochs = self.loader.epochs_at(self.state.position);
        let seconds = self.training_time.as_secs_f64();
        let (first_step, first_epoch) = self.began_at;
        let report = Report::new(&profile::take(), seconds, epochs - first_epoch, self.setting.device.memory());
        let interrupted = self.state.step < self.state.total_steps || self.evaluation_is_due();
        self.save(false)?;
        let sample = self.sample()?;
        self.folder.write("samples.txt", &format!("{sample}\n"))?;
        self.report(Event::Sample(sample))?;
        self.folder.write("profile.txt", &report.text())?;
        let peak_memory_bytes = self.setting.device.memory().map(|memory| memory.peak_bytes);
        let summary = Summary {
            folder: self.folder.path().to_path_buf(),
            device: describe(&self.setting.device),
            parameters: self.model.config.parameter_count(),
            model: self.model.config.clone(),
            steps: self.state.step,
            total_steps: self.state.total_steps,
            epochs,
            interrupted,
            train_loss: self.state.train_loss,
            validation: self.state.evaluated.as_ref().map(|e| e.result.clone()),
            best_loss: self.state.best.map(|best| best.loss),
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
        let sampling = Sampling { temperature: g.temperature, top_k: g.top_k, top_p: g.top_p, seed: g.seed };
        let mut ids = prompt.clone();
        generate(&self.model, &prompt, g.max_new_tokens, &sampling, &mut |id| {
            ids.push(id);
            let stop = self.setting.stop.load(Ordering::Relaxed);
            Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(self.tokenizer.decode(&ids)?.trim_start_matches('\n').to_string())
    }
}

/// Both numbers, if both have arrived.
fn take_both(numbers: &mut [Reading; 2]) -> Result<[Option<f32>; 2]> {
    let mut taken = [None; 2];
    for (number, taken) in numbers.iter_mut().zip(&mut taken) {
        match number.try_take()? {
            // Taken values stay here for the time the other one needs.
            Some(values) => {
                *taken = Some(values[0]);
                *number = Reading::Here(values);
            }
            None => break,
        }
    }
    Ok(taken)
}
