//! What happens before the first step. What is to fail should fail here.

use super::Trainer;
use super::sizes::{check_device, memory_of, passes, settle};
use crate::config::{self, Config, DeviceBatch, Resolved, TrainLength};
use crate::data::{
    ChatSpec, ChatTemplate, Corpus, DeclaredIds, Packing, Prepared, Progress, TextConventions, Tokenizer, Tokens,
};
use crate::generate::check_prompt;
use crate::models::{LanguageModel, ModelConfig, hf};
use crate::optim::{LearningRate, Optimizer, ParameterArena, Schedule};
use crate::profile::{Phase, Span, WallClock};
use crate::shell_words::quoted;
use crate::train::adapters::lora;
use crate::train::checkpoint::{CONFIG, Checkpoint, DataHash, TOKENIZER, TrainerState, Writer};
use crate::train::data_spec::{chat_spec, data_spec, packing};
use crate::train::events::{Adapters, Event, Start};
use crate::train::guard::Monitor;
use crate::train::init::{check_tokenizer, first_model, model_at, vocabulary_note};
use crate::train::init_sizes;
use crate::train::log;
use crate::train::model_shape::model_config;
use crate::train::options::TrainOptions;
use crate::train::precision::describe_precision;
use crate::train::precompile::Precompile;
use crate::train::prompt::prompt_ids;
use crate::train::ranks::{Leader, Place, Team, named};
use crate::train::record;
use crate::train::replica::{Replica, loader};
use crate::train::resume::{Resumed, restore};
use crate::train::run_folder::RunFolder;
use crate::train::sinks::{self, Sink};
use crate::train::throughput::Throughput;
use crate::train::trace::RunTrace;
use crate::train::update_rules::{divides_weights, on_device};
use crate::{Device, Error, Result, Tensor};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The text that a run learns from, as tokens.
struct Data {
    corpus: Corpus,
    prepared: Prepared,
    chat_template: Option<ChatTemplate>,
    ids: DeclaredIds,
    hash: DataHash,
}

impl Data {
    /// `on_tokenizer` sees the tokenizer before the text becomes tokens, and may refuse it.
    ///
    /// # Errors
    /// If a resumed run has learnt from another text.
    fn load(
        resolved: &Resolved,
        options: &mut TrainOptions,
        checkpoint: Option<&Checkpoint>,
        on_tokenizer: &mut dyn FnMut(&Tokenizer) -> Result<()>,
    ) -> Result<Data> {
        let data = &resolved.config.data;
        let changed = |key: &str, what: &str, checkpoint: &Checkpoint| Error::Config {
            place: resolved.origin(key).to_string(),
            key: key.into(),
            message: format!(
                "{what} not what the run in {} has learnt from; restore that, or train a new run on from its weights: \
                 {}",
                checkpoint.path.display(),
                continuation(options.resume, &data.corpus)
            ),
        };
        let mut spec = data_spec(data, options.data_dir, options.cache_dir);
        if let Some(checkpoint) = checkpoint
            && !spec.corpus.chat.is_there()
        {
            // The folder that the run began with may be gone.
            spec.corpus.chat = ChatSpec { template: "", folder: Some(&checkpoint.path) };
        }
        let mut last_shown = None;
        let mut show = |progress: Progress| {
            // Whoever watches a bar sees no more than ten steps a second.
            if last_shown.is_none_or(|at: Instant| at.elapsed() >= Duration::from_millis(100)) {
                last_shown = Some(Instant::now());
                (options.on_event)(&Event::Preparing(progress));
            }
        };
        let corpus = Corpus::open(&spec.corpus, &mut |done| show(Progress { task: "reading", done, total: None }))?;
        let tokenizer = match checkpoint {
            Some(checkpoint) if checkpoint.state.data.text_sha256 != corpus.sha256 => {
                return Err(changed("data.corpus", "the text is", checkpoint));
            }
            // The one that the run has: training another takes time, and its file may be gone.
            Some(c) => Some(Tokenizer::from_file(&c.path.join(TOKENIZER))?.with_name(&data.tokenizer)),
            None => None,
        };
        let prepared = spec.prepare(&corpus, tokenizer, on_tokenizer, &mut show)?;
        let hash = DataHash {
            text_sha256: prepared.meta.text_sha256.clone(),
            tokens_sha256: prepared.meta.tokens_sha256.clone(),
        };
        if let Some(checkpoint) = checkpoint
            && checkpoint.state.data != hash
        {
            return Err(changed("data.tokenizer", "the tokens that it makes of the text are", checkpoint));
        }
        let ids = match checkpoint {
            Some(checkpoint) => DeclaredIds::read(&[&checkpoint.path])?,
            None => declared_ids(&resolved.config)?,
        };
        Ok(Data { corpus, prepared, chat_template: ChatTemplate::find(&spec.corpus.chat)?, ids, hash })
    }
}

impl<'a> Trainer<'a> {
    /// Loads or creates all that a run needs. A run that is resumed is changed only if all of it succeeds.
    ///
    /// # Errors
    /// Those of [`train`](crate::train::train) that can be known before the first step.
    pub(in crate::train) fn prepare(resolved: &Resolved, mut options: TrainOptions<'a>) -> Result<Trainer<'a>> {
        options.device.reset_peak_memory();
        let mut trace = RunTrace::begin(&options)?;
        let mut clock = WallClock::new(options.started, Phase::Device, trace.as_ref().map(RunTrace::recorder));
        let device = options.device.clone();
        let devices: Vec<&Device> = [&device].into_iter().chain(options.others).collect();
        clock.set_apart(Phase::Autotuning, autotuning(&devices));
        let training_log = training_log(&resolved.config, &mut options)?;
        let names = named(&device, options.others, Device::name);
        let mut resolved = resolved.clone();
        let place = Place::of_first(options.launch, devices.len());
        let resumed = options.resume.map(|run| Resumed::open(run, &mut resolved, &names, place.ranks)).transpose()?;
        let checkpoint = resumed.as_ref().and_then(|resumed| resumed.checkpoint.as_ref());
        clock.enter(Phase::Text);
        let mut precompile = Precompile::default();
        let mut on_tokenizer = |tokenizer: &Tokenizer| {
            if checkpoint.is_none() {
                check_tokenizer(&resolved, tokenizer)?;
            }
            precompile_for(&mut precompile, &resolved, tokenizer, &devices, place);
            Ok(())
        };
        let data = Data::load(&resolved, &mut options, checkpoint, &mut on_tokenizer)?;
        let prepared = &data.prepared;
        let memory = memory_of(&devices, options.launch)?;
        let (model_config, sizes_note) = settle(&mut resolved, prepared, &device, options.launch.is_some(), &memory)?;
        let is_new = resumed.is_none() && resolved.config.model.new_tokenizer;
        let tokenizer_note = is_new.then(|| vocabulary_note(&resolved.config, &prepared.tokenizer)).transpose()?;
        let t = &resolved.config.train;
        let position = checkpoint.map(|c| c.state.position).unwrap_or_default();
        let loader = loader(&resolved.config, model_config.kind, prepared.train.clone(), position)?;
        let steps_per_epoch = loader.batches_per_epoch() / t.grad_accum_steps as f64;
        let total_steps = total_steps(t.length(), steps_per_epoch);
        resolved.fit_length(total_steps)?;
        check_prompt(&model_config, &prompt_ids(&prepared.tokenizer, &resolved.config.generate.prompt)?)?;
        check_validation(&resolved, &prepared.validation)?;
        let in_documents = loader.is_in_documents();
        let passes = passes(&resolved, &model_config, in_documents, &devices, place, &memory)?;
        if in_documents != precompile.is_in_documents() || !precompile.has_begun() {
            // Only the text says that it has prompts, and how long they are.
            precompile.begin(&resolved.config, &model_config, in_documents, &devices, place);
        }
        let state = initial_state(checkpoint, names, data.hash.clone(), total_steps);
        let saved = checkpoint.map(|checkpoint| checkpoint.state.comparable());
        let checkpoint_path = checkpoint.map(|checkpoint| checkpoint.path.clone());
        if let Some(resumed) = &resumed {
            check_length(&resolved, resumed, &state)?;
        }
        let are_several = place.ranks > 1;
        if are_several {
            clock.enter(Phase::Ranks);
        }
        let config = Arc::new(resolved.config.clone());
        let tokens = (&prepared.train, &prepared.validation);
        let mut leader = Leader::begin(&team(&config, &model_config, &data.hash, tokens, passes.splits, &options))?;
        clock.enter(Phase::Model);
        let opened = match resumed {
            Some(resumed) => {
                let tokenizer = &data.prepared.tokenizer;
                let on = (&device, place);
                resume(&resolved, resumed, (&model_config, tokenizer), &state, &mut *options.on_event, on)
            }
            None => create(&resolved, &model_config, &data.prepared.tokenizer, &device, place),
        };
        let mut opened_in = |opened: &Opened| trace.as_mut().map_or(Ok(()), |t| t.open_in(opened.folder.path()));
        let opened = opened.and_then(|opened| opened_in(&opened).map(|()| opened));
        let opened = opened.inspect_err(|error| leader.stop(Some(&error.to_string())))?;
        clock.enter(Phase::Unaccounted);
        let described = named(&device, options.others, Device::describe);
        let start = start(&resolved.config, &data, &opened, &state, steps_per_epoch, (&device, described));
        if let tokens @ 0..2 = data.prepared.validation.len() {
            let text =
                format!("the validation split has {tokens} token(s): nothing is evaluated, and no checkpoint is best");
            (options.on_event)(&Event::Note(text));
        }
        let text = TextConventions::new(data.prepared.tokenizer, data.chat_template, data.ids);
        let notes = data
            .prepared
            .meta
            .notes
            .iter()
            .cloned()
            .chain(sizes_note)
            .chain(tokenizer_note)
            .chain(loader.note())
            .chain(passes.note)
            .chain(text.note.clone())
            .chain(text.warning_of_end());
        notes.for_each(|note| (options.on_event)(&Event::Note(note)));
        let record = record::begin(&opened.folder, &start);
        let record = record.inspect_err(|error| leader.stop(Some(&error.to_string())))?;
        (options.on_event)(&Event::Started(Box::new(start)));
        device.profiler().take();
        let Opened { folder, sinks, mut config_text, model, parameters, optimizer, undivided } = opened;
        let learning_rate = learning_rate(&config, total_steps);
        let tokens = data.prepared.train;
        let room = resolved.config.model.block_size;
        let question = data.prepared.validation.first_prompt(room).or_else(|| tokens.first_prompt(room));
        let began_at = (state.step, loader.epochs_at(position));
        let trained = (model, parameters, optimizer);
        let mut replica = Replica::new(config.clone(), device, trained, tokens.clone(), loader, place);
        replica.micro_batches = passes.splits;
        if are_several {
            clock.enter(Phase::Ranks);
        }
        leader.join(&mut replica)?;
        let config = replica.config.clone();
        if let DeviceBatch::Parts(parts) = &config.train.device_batch
            && resolved.config.train.device_batch == DeviceBatch::AUTO
        {
            resolved.resolve_device_batch(parts.clone(), "by the speed of each device, measured at the start");
            config_text = resolved.to_toml();
            folder.write(CONFIG, &config_text)?;
            let shares = format!("the devices compute {parts:?} of the sequences of a step, as fast as each is");
            (options.on_event)(&Event::Note(shares));
        }
        leader.load(&mut replica, &undivided, position, state.step as u64, checkpoint_path.as_deref())?;
        drop(undivided);
        clock.enter(Phase::Unaccounted);
        Ok(Trainer {
            config_text,
            folder,
            sinks,
            record,
            text,
            question,
            validation: data.prepared.validation,
            coverage: data.prepared.meta.coverage,
            replica,
            leader,
            learning_rate,
            config,
            saved,
            began_at,
            epoch_seconds: Vec::new(),
            epoch_began: (began_at.1.fract() == 0.0).then_some(Duration::ZERO),
            in_flight: VecDeque::new(),
            monitor: Monitor::default(),
            unconfirmed: VecDeque::new(),
            training_log,
            out_of_patience: false,
            precompile: Some(precompile),
            start_up: None,
            writer: Writer::default(),
            throughput: Throughput::default(),
            tokens: 0,
            unfinished_at: Duration::ZERO,
            stalled: Duration::ZERO,
            clock,
            trace,
            state,
            options,
        })
    }
}

/// What the model that a run begins with says of its special tokens, if it begins with that model's tokenizer.
fn declared_ids(config: &Config) -> Result<DeclaredIds> {
    let Some(folder) = chat_spec(&config.data).folder else { return Ok(DeclaredIds::default()) };
    let init = Path::new(&config.model.init);
    let base = match config.model.init.is_empty() || hf::tokenizer_folder(init)? != folder {
        true => folder.to_path_buf(),
        false => hf::weights_folder(init)?,
    };
    DeclaredIds::read(&[folder, &base])
}

/// The file that gets the run's block: see [`log::place`].
fn training_log(config: &Config, options: &mut TrainOptions) -> Result<Option<PathBuf>> {
    let Some(wanted) = options.training_log else { return Ok(None) };
    let run = options.resume.map(|run| std::path::absolute(run).unwrap_or_else(|_| run.to_path_buf()));
    let runs = run.as_deref().and_then(Path::parent).unwrap_or(Path::new(&config.run.dir));
    let (path, note) = log::place(wanted, runs)?;
    note.into_iter().for_each(|note| (options.on_event)(&Event::Note(note)));
    Ok(Some(path))
}

/// The command that trains a new run on this text, from the weights of this one.
fn continuation(run: Option<&Path>, corpus: &str) -> String {
    let [run, corpus] = [run.unwrap_or(Path::new("RUN")), Path::new(corpus)].map(quoted);
    format!("rustyflow train --init {run} --corpus {corpus}")
}

/// The ranks of this process.
fn team<'a>(
    config: &'a Arc<Config>,
    shape: &'a ModelConfig,
    data: &'a DataHash,
    (tokens, validation): (&'a Tokens, &'a Tokens),
    splits: usize,
    options: &'a TrainOptions,
) -> Team<'a> {
    let TrainOptions { device, others, launch, .. } = options;
    Team { config, shape, data, tokens, validation, splits, device, others, launch: *launch }
}

/// Takes part in a job that rank 0, in another process, leads.
///
/// # Errors
/// What can be known before the first step, and whatever ends the job.
pub(in crate::train) fn follow(resolved: &Resolved, mut options: TrainOptions) -> Result<()> {
    let device = options.device.clone();
    let devices: Vec<&Device> = [&device].into_iter().chain(options.others).collect();
    let place = Place::of_first(options.launch, devices.len());
    let mut precompile = Precompile::default();
    let mut on_tokenizer = |tokenizer: &Tokenizer| {
        check_tokenizer(resolved, tokenizer)?;
        precompile_for(&mut precompile, resolved, tokenizer, &devices, place);
        Ok(())
    };
    let data = Data::load(resolved, &mut options, None, &mut on_tokenizer)?;
    let (mut resolved, memory) = (resolved.clone(), memory_of(&devices, options.launch)?);
    let (shape, _) = settle(&mut resolved, &data.prepared, &device, true, &memory)?;
    let in_documents = data.prepared.train.is_in_documents() && !shape.is_recurrent();
    let passes = passes(&resolved, &shape, in_documents, &devices, place, &memory)?;
    let config = Arc::new(resolved.config.clone());
    let Prepared { train, validation, .. } = &data.prepared;
    team(&config, &shape, &data.hash, (train, validation), passes.splits, &options).follow()
}

/// Begins to compile what the steps of a run with this tokenizer launch, if there can be one: what is wrong with it is
/// said elsewhere.
fn precompile_for(
    precompile: &mut Precompile,
    resolved: &Resolved,
    tokenizer: &Tokenizer,
    devices: &[&Device],
    place: Place,
) {
    if init_sizes::depend_on_text(resolved) {
        return;
    }
    let Ok(shape) = model_config(resolved, tokenizer.vocab_size()) else { return };
    if devices.iter().all(|device| check_device(resolved, &shape, device, place.ranks).is_ok()) {
        let in_documents = packing(&resolved.config.data).is_some_and(|packing| packing != Packing::Stream);
        precompile.begin(&resolved.config, &shape, in_documents, devices, place);
    }
}

/// How long autotuning these devices took before the run. Their profiles are taken.
fn autotuning(devices: &[&Device]) -> Duration {
    let seconds = devices.iter().filter_map(|device| device.profiler().take().spans.get(&Span::Autotune).copied());
    Duration::from_secs_f64(seconds.sum())
}

/// The state of the checkpoint, but of this version and this device; or that of a new run.
fn initial_state(checkpoint: Option<&Checkpoint>, device: String, data: DataHash, total_steps: usize) -> TrainerState {
    let new = TrainerState::new(device, data, total_steps);
    match checkpoint {
        Some(Checkpoint { state, .. }) => {
            TrainerState { version: new.version, device: new.device, total_steps, ..state.clone() }
        }
        None => new,
    }
}

/// What is known before the first step.
fn start(
    config: &Config,
    data: &Data,
    opened: &Opened,
    state: &TrainerState,
    steps_per_epoch: f64,
    (device, described): (&Device, String),
) -> Start {
    let model = opened.model.config().clone();
    Start {
        folder: opened.folder.path().to_path_buf(),
        device: described,
        precision: describe_precision(config.device.precision, device, &model),
        corpus: data.corpus.name.clone(),
        text: data.corpus.summary.clone(),
        tokenizer: data.prepared.tokenizer.name().to_string(),
        tokens: data.prepared.tokenizer.vocab_size(),
        parameters: model.parameter_count(),
        adapters: adapters(config, &opened.parameters),
        model,
        train_tokens: data.prepared.train.len(),
        validation_tokens: data.prepared.validation.len(),
        tokens_per_step: config.train.batch_size * config.train.grad_accum_steps * config.model.block_size,
        first_step: state.step,
        total_steps: state.total_steps,
        epochs: state.total_steps as f64 / steps_per_epoch,
        warmup_steps: config.train.warmup_steps,
    }
}

/// The adapters that are trained, if the model itself is not.
pub(super) fn adapters(config: &Config, parameters: &ParameterArena) -> Option<Adapters> {
    let trained = parameters.entries.iter().filter(|entry| entry.trainable);
    lora(config).map(|lora| Adapters {
        parameters: trained.map(|entry| entry.shape.elements()).sum(),
        rank: lora.rank,
        targets: lora.targets,
        base: lora.base.name(),
    })
}

/// The run's folder, and what is trained in it.
struct Opened {
    folder: RunFolder,
    sinks: Vec<Box<dyn Sink>>,
    config_text: String,
    model: Box<dyn LanguageModel>,
    parameters: ParameterArena,
    optimizer: Optimizer,
    /// Where ranks divide the weights, those that all begin with, on the host.
    undivided: Vec<(String, Tensor)>,
}

/// A new run.
fn create(
    resolved: &Resolved,
    shape: &ModelConfig,
    tokenizer: &Tokenizer,
    device: &Device,
    place: Place,
) -> Result<Opened> {
    let config = &resolved.config;
    let kind = if device.is_gpu() { "gpu" } else { "cpu" };
    let mut folder = RunFolder::create(Path::new(&config.run.dir), &config.run_name(kind))?;
    let config_text = resolved.to_toml();
    folder.write(CONFIG, &config_text)?;
    let made = sinks::open(&config.log, &mut folder, 0).and_then(|sinks| {
        let mut model = first_model(config, shape, Some(tokenizer))?;
        Ok((sinks, undivided(&mut *model, config, place), on_device(model, config, device, place)?))
    });
    match made {
        Ok((sinks, undivided, (model, parameters, optimizer))) => {
            Ok(Opened { folder, sinks, config_text, model, parameters, optimizer, undivided })
        }
        Err(error) => {
            folder.discard();
            Err(error)
        }
    }
}

/// The weights of a model on the host, if ranks are to divide them: this one is about to keep its part.
fn undivided(model: &mut dyn LanguageModel, config: &Config, place: Place) -> Vec<(String, Tensor)> {
    if divides_weights(config, place.ranks) { model.parameters() } else { Vec::new() }
}

/// A run that continues from its checkpoint, or from the start if it has none: its folder is put back to that moment.
fn resume(
    resolved: &Resolved,
    resumed: Resumed,
    (shape, tokenizer): (&ModelConfig, &Tokenizer),
    state: &TrainerState,
    on_event: &mut dyn FnMut(&Event),
    (device, place): (&Device, Place),
) -> Result<Opened> {
    let config = &resolved.config;
    let config_text = resumed.config_text(resolved);
    let Resumed { mut folder, checkpoint, mut notes, .. } = resumed;
    let mut model = match &checkpoint {
        Some(checkpoint) => model_at(&checkpoint.path, config, shape)?,
        None => first_model(config, shape, Some(tokenizer))?,
    };
    if model.config() != shape {
        let message = format!("its model is {:?}, the run's configuration implies {shape:?}", model.config());
        return Err(Error::Checkpoint { path: folder.path().to_path_buf(), message });
    }
    let undivided = undivided(&mut *model, config, place);
    let (model, parameters, mut optimizer) = on_device(model, config, device, place)?;
    if let Some(checkpoint) = &checkpoint {
        let there = restore(&mut optimizer, &parameters, checkpoint, place.of_moments(config))?;
        if there > 1 && there != place.ranks {
            notes.push(format!(
                "the checkpoint has moments of {there} devices that trained apart: on {} each begins with their mean",
                place.ranks
            ));
        }
    }
    // All that can fail has succeeded: from here on the folder is changed.
    folder.mark_finished(false)?;
    folder.write(CONFIG, &config_text)?;
    let shorter = folder.lines().truncate(&state.appended)?;
    notes.extend(shorter.into_iter().map(|(name, missing)| {
        format!("{name} lacks {missing} bytes that it had at step {}: lines are lost", state.step)
    }));
    if checkpoint.is_some() {
        folder
            .checkpoints()
            .roll_back(state.step, state.best.filter(|_| config.checkpoint.keep_best).map(|best| best.step))?;
    }
    let sinks = sinks::open(&config.log, &mut folder, state.step)?;
    notes.into_iter().for_each(|note| on_event(&Event::Note(note)));
    Ok(Opened { folder, sinks, config_text, model, parameters, optimizer, undivided })
}

/// Refuses a run that has nothing left to do.
fn check_length(resolved: &Resolved, resumed: &Resumed, state: &TrainerState) -> Result<()> {
    let TrainerState { step, total_steps, .. } = *state;
    if step < total_steps || (step == total_steps && !resumed.folder.is_finished()) {
        return Ok(());
    }
    let key = if resolved.config.train.epochs.is_some() { "train.epochs" } else { "train.max_steps" };
    Err(Error::Config {
        place: resolved.origin(key).to_string(),
        key: key.into(),
        message: format!(
            "makes {total_steps} steps, and {} has done {step}: there is nothing left to do; set it higher to train on",
            resumed.folder.path().display()
        ),
    })
}

/// What follows the validation loss needs one.
fn check_validation(resolved: &Resolved, validation: &Tokens) -> Result<()> {
    if resolved.config.train.schedule != config::Schedule::Plateau || validation.len() >= 2 {
        return Ok(());
    }
    let message = "plateau follows the validation loss, and there is no validation split: set data.validation_fraction";
    let place = resolved.origin("train.schedule").to_string();
    Err(Error::Config { place, key: "train.schedule".into(), message: message.into() })
}

fn learning_rate(config: &Config, total_steps: usize) -> LearningRate {
    let t = &config.train;
    LearningRate {
        schedule: match t.schedule {
            config::Schedule::Cosine => Schedule::Cosine,
            config::Schedule::Linear => Schedule::Linear,
            config::Schedule::Constant => Schedule::Constant,
            config::Schedule::Wsd if t.decay_steps == 0 => Schedule::Wsd { decay_steps: (total_steps / 5).max(1) },
            config::Schedule::Wsd => Schedule::Wsd { decay_steps: t.decay_steps },
            config::Schedule::Plateau => Schedule::Plateau,
        },
        peak: t.learning_rate,
        minimum: t.min_learning_rate,
        warmup_steps: t.warmup_steps,
        total_steps,
    }
}

pub(in crate::train) fn total_steps(length: TrainLength, steps_per_epoch: f64) -> usize {
    match length {
        TrainLength::Steps(steps) => steps,
        TrainLength::Epochs(epochs) => ((epochs * steps_per_epoch).round() as usize).max(1),
    }
}
