//! Trains a model: prepares corpus, tokenizer and parameters, runs the steps, evaluates, saves, and reports.
//!
//! The host only hands out work. A step's loss is read back when it is to be logged, and then without waiting: its
//! number arrives while later steps are being computed.

mod evaluate;
mod events;
mod log;
mod run_folder;
mod size;

pub use evaluate::{Evaluation, Windows, evaluate};
pub use events::{Event, Start, Step, Summary};
pub use log::TRAINING_LOG;
pub use run_folder::{RunFolder, find_checkpoint, newest_run};
pub use size::check_size;

use crate::config::{self, Config, OptimizerKind, Precision, Resolved, TrainLength};
use crate::data::{Corpus, Loader, Position, Tokenizer, TokenizerSpec};
use crate::generate::{Sampling, check_prompt, generate};
use crate::nn::{Dropout, Gpt, GptConfig};
use crate::optim::{Kind, LearningRate, Optimizer, Parameters, Schedule};
use crate::profile::{self, Report, Span};
use crate::tensor::Reading;
use crate::{Device, Error, Result, Tensor};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Submits that may wait for the GPU: enough that it never runs dry, few enough that Ctrl-C acts at once.
const SUBMITS_IN_FLIGHT: usize = 6;
/// Of so many steps one gets a timestamp around every kernel.
const PROFILE_EVERY: usize = 50;

/// What a run needs besides its configuration.
pub struct Setting<'a> {
    pub device: Device,
    /// Where data sets are kept.
    pub data_dir: &'a Path,
    /// Set to end the run after the step under way, saved and reported as usual.
    pub stop: &'a AtomicBool,
    /// Told everything that happens.
    pub on_event: &'a mut dyn FnMut(&Event),
}

/// Trains as `resolved` says.
///
/// # Errors
/// If the corpus, the tokenizer, the model or the run's folder cannot be made, if the device reports an error, or if the
/// loss stops being a number.
pub fn train<'a>(resolved: &'a Resolved, setting: Setting<'a>) -> Result<Summary> {
    let mut trainer = Trainer::prepare(resolved, setting)?;
    trainer.run()?;
    trainer.finish()
}

/// A run under way.
struct Trainer<'a> {
    config: &'a Config,
    setting: Setting<'a>,
    folder: RunFolder,
    tokenizer: Tokenizer,
    validation: Vec<u32>,
    /// Bytes of the validation text.
    validation_bytes: usize,
    model: Gpt,
    parameters: Parameters,
    optimizer: Optimizer,
    learning_rate: LearningRate,
    loader: Loader,
    position: Position,
    /// Updates done.
    step: usize,
    total_steps: usize,
    /// Logged steps whose numbers are on their way.
    readings: VecDeque<PendingStep>,
    /// Time spent in steps: without evaluation and saving.
    training_time: Duration,
    last_logged: (usize, Duration),
    train_loss: Option<f64>,
    evaluated: Option<Evaluation>,
    best_loss: Option<f64>,
}

/// A logged step without the numbers that are still being computed.
struct PendingStep {
    step: Step,
    /// The loss, and the sum of squared gradients.
    numbers: [Reading; 2],
}

impl<'a> Trainer<'a> {
    fn prepare(resolved: &'a Resolved, setting: Setting<'a>) -> Result<Trainer<'a>> {
        let config = &resolved.config;
        if config.device.precision == Precision::Mixed {
            return Err(Error::Config {
                place: resolved.origin("device.precision").to_string(),
                key: "device.precision".into(),
                message: "\"mixed\" is not available yet; use \"f32\"".into(),
            });
        }
        let corpus = Corpus::load(&config.data.corpus, setting.data_dir, config.data.validation_fraction)?;
        let spec = TokenizerSpec::parse(&config.data.tokenizer)?;
        let tokenizer = Tokenizer::build(&spec, config.data.vocab_size, &corpus, setting.data_dir)?;
        let train_tokens: Arc<[u32]> = tokenizer.encode(&corpus.train)?.into();
        let validation = tokenizer.encode(&corpus.validation)?;

        let t = &config.train;
        let loader = Loader::new(
            train_tokens.clone(),
            t.batch_size,
            config.model.block_size,
            config.run.seed,
            Position::default(),
        )?;
        let steps_per_epoch = loader.batches_per_epoch() / t.grad_accum_steps as f64;
        let total_steps = match t.length() {
            TrainLength::Steps(steps) => steps,
            TrainLength::Epochs(epochs) => ((epochs * steps_per_epoch).round() as usize).max(1),
        };

        let shape = GptConfig {
            vocab_size: tokenizer.vocab_size(),
            block_size: config.model.block_size,
            n_layer: config.model.n_layer,
            n_head: config.model.n_head,
            n_embd: config.model.n_embd,
            bias: config.model.bias,
            tie_embeddings: config.model.tie_embeddings,
        };
        // Before the expensive part: what is to fail should fail now.
        check_prompt(&shape, &prompt_ids(&tokenizer, &config.generate.prompt)?)?;
        check_size(&shape, t.batch_size * config.model.block_size, &setting.device)?;
        size::check_memory(&shape, &setting.device)?;
        let kind = if matches!(setting.device, Device::Cpu) { "cpu" } else { "gpu" };
        let folder = RunFolder::create(Path::new(&config.run.dir), &config.run_name(kind))?;
        folder.write("config.toml", &resolved.to_toml())?;
        let (model, parameters, optimizer) = match build(config, &shape, &setting.device) {
            Ok(built) => built,
            Err(error) => {
                folder.discard();
                return Err(error);
            }
        };
        let learning_rate = LearningRate {
            schedule: match t.schedule {
                config::Schedule::Cosine => Schedule::Cosine,
                config::Schedule::Linear => Schedule::Linear,
                config::Schedule::Constant => Schedule::Constant,
            },
            peak: t.learning_rate,
            minimum: t.min_learning_rate,
            warmup_steps: t.warmup_steps.min(total_steps.saturating_sub(1)),
            total_steps,
        };
        (setting.on_event)(&Event::Started(Box::new(Start {
            folder: folder.path().to_path_buf(),
            device: describe(&setting.device),
            corpus: corpus.name.clone(),
            tokenizer: tokenizer.name().to_string(),
            parameters: shape.parameter_count(),
            model: shape,
            train_tokens: train_tokens.len(),
            validation_tokens: validation.len(),
            tokens_per_step: t.batch_size * t.grad_accum_steps * config.model.block_size,
            total_steps,
            epochs: total_steps as f64 / steps_per_epoch,
        })));
        profile::reset();
        Ok(Trainer {
            config,
            setting,
            folder,
            tokenizer,
            validation,
            validation_bytes: corpus.validation.len(),
            model,
            parameters,
            optimizer,
            learning_rate,
            loader,
            position: Position::default(),
            step: 0,
            total_steps,
            readings: VecDeque::new(),
            training_time: Duration::ZERO,
            last_logged: (0, Duration::ZERO),
            train_loss: None,
            evaluated: None,
            best_loss: None,
        })
    }

    fn run(&mut self) -> Result<()> {
        let (eval_every, save_every) = (self.config.train.eval_every, self.config.checkpoint.every);
        while self.step < self.total_steps && !self.setting.stop.load(Ordering::Relaxed) {
            let started = Instant::now();
            self.train_step()?;
            self.training_time += started.elapsed();
            self.take_readings(false)?;
            (self.setting.on_event)(&Event::Progress { step: self.step });
            let due = |every: usize| every > 0 && self.step.is_multiple_of(every) && self.step < self.total_steps;
            let (evaluate, save) = (due(eval_every), due(save_every));
            if evaluate {
                self.evaluate()?;
            }
            if save {
                // Weights that are no numbers must not push out the checkpoints from before.
                self.take_readings(true)?;
                self.save(false)?;
            }
        }
        Ok(())
    }

    /// One update: forward and backward over the batches, then the optimizer. On a GPU this only records and submits.
    fn train_step(&mut self) -> Result<()> {
        let (t, device) = (&self.config.train, self.setting.device.clone());
        if let Device::Gpu(gpu) = &device {
            gpu.time_kernels(self.step % PROFILE_EVERY == 5);
        }
        let accum = t.grad_accum_steps;
        let mut total_loss: Option<Tensor> = None;
        for micro in 0..accum {
            let batch = profile::span(Span::Data, || self.loader.next_batch());
            let shape = [t.batch_size, self.config.model.block_size];
            let ids = Tensor::from_u32(&batch.ids, shape, &device)?; // (B, T)
            let targets = Tensor::from_u32(&batch.targets, shape, &device)?; // (B, T)
            self.position = batch.position;
            if micro == 0 {
                self.parameters.zero_gradients();
            }
            let pass = (self.step * accum + micro) as u64;
            let dropout = Dropout::new(self.config.model.dropout as f32, self.config.run.seed, pass);
            let loss = self.model.loss(&ids, &targets, &dropout)?.scale(1.0 / accum as f32)?;
            loss.backward()?;
            total_loss = Some(match total_loss {
                None => loss.detach(),
                Some(total) => total.add(&loss.detach())?,
            });
        }
        let learning_rate = self.learning_rate.at(self.step);
        let squares = self.optimizer.step(&self.parameters, learning_rate)?;
        self.step += 1;
        let every = self.config.checkpoint.every;
        let logged = self.step == 1
            || self.step.is_multiple_of(self.config.log.every)
            || (every > 0 && self.step.is_multiple_of(every))
            || self.step == self.total_steps;
        if logged {
            let loss = total_loss.expect("there is at least one batch");
            let step = Step {
                step: self.step,
                epoch: self.loader.epochs_at(self.position),
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
            self.train_loss = Some(step.loss);
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
        if self.validation.len() < 2 {
            return Ok(());
        }
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
        self.check_loss("validation loss", result.loss, self.step)?;
        let best = self.best_loss.is_none_or(|loss| result.loss < loss);
        if best {
            self.best_loss = Some(result.loss);
        }
        self.evaluated = Some(result.clone());
        self.report(Event::Evaluated { step: self.step, split: "validation", result, best })?;
        if best && self.config.checkpoint.keep_best {
            self.save(true)?;
        }
        Ok(())
    }

    fn save(&mut self, best: bool) -> Result<()> {
        let keep = self.config.checkpoint.keep_last;
        let path = self.folder.save_checkpoint(self.step, &mut self.model, &self.tokenizer, best, keep)?;
        self.report(Event::Saved { step: self.step, path })
    }

    /// Evaluates and saves the last state, writes a sample, and sums up.
    fn finish(mut self) -> Result<Summary> {
        self.take_readings(true)?;
        let epochs = self.loader.epochs_at(self.position);
        let seconds = self.training_time.as_secs_f64();
        let report = Report::new(&profile::take(), seconds, epochs, self.setting.device.memory());
        let interrupted = self.step < self.total_steps;
        if !interrupted {
            self.evaluate()?;
        }
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
            steps: self.step,
            total_steps: self.total_steps,
            epochs,
            interrupted,
            train_loss: self.train_loss,
            validation: self.evaluated.clone(),
            best_loss: self.best_loss,
            tokens_per_s: (self.step * self.tokens_per_step()) as f64 / seconds.max(1e-9),
            peak_memory_bytes,
            report,
        };
        log::append(Path::new(TRAINING_LOG), &summary)?;
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

/// The model, its parameters on the device, and their optimizer.
fn build(config: &Config, shape: &GptConfig, device: &Device) -> Result<(Gpt, Parameters, Optimizer)> {
    let mut model = Gpt::new(shape.clone(), config.run.seed)?;
    let parameters = Parameters::gather(&mut model, device)?;
    let o = &config.optimizer;
    let kind = match o.kind {
        OptimizerKind::AdamW => Kind::AdamW { beta1: o.beta1, beta2: o.beta2, eps: o.eps },
        OptimizerKind::Adam => Kind::Adam { beta1: o.beta1, beta2: o.beta2, eps: o.eps },
        OptimizerKind::Sgd => Kind::Sgd { momentum: o.momentum },
    };
    let optimizer = Optimizer::new(&parameters, kind, o.weight_decay, config.train.grad_clip)?;
    Ok((model, parameters, optimizer))
}

/// The tokens of a prompt; an empty one means the start of a line, or the tokenizer's first token if it has no line
/// breaks.
///
/// # Errors
/// If the prompt has characters that the tokenizer does not know.
pub fn prompt_ids(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    if !prompt.is_empty() {
        return tokenizer.encode(prompt);
    }
    match tokenizer.encode("\n") {
        Ok(ids) if !ids.is_empty() => Ok(ids),
        _ => Ok(vec![0]),
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

/// "cpu (2 threads)" or "gpu:0 NVIDIA H200 (vulkan)".
pub fn describe(device: &Device) -> String {
    match device {
        Device::Cpu => format!("cpu ({} threads)", crate::cpu::threads()),
        Device::Gpu(gpu) => format!("gpu:{} {} ({})", gpu.info().index, gpu.info().name, gpu.info().backend),
    }
}
