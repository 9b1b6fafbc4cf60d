//! Opens the run: connects the ranks, and creates its folder, sinks and model, or restores them from the checkpoint of
//! a resumed run.

use super::Process;
use super::check::Checked;
use crate::config::Config;
use crate::models::LanguageModel;
use crate::optim::{Optimizer, ParameterArena};
use crate::profile::Phase;
use crate::train::checkpoint::{CONFIG, Checkpoint};
use crate::train::run::events::{Adapters, Event, Start};
use crate::train::run::folder::RunFolder;
use crate::train::run::record;
use crate::train::run::sinks::{self, Sink};
use crate::train::setup::adapters::lora;
use crate::train::setup::init::{first_model, model_at};
use crate::train::setup::precision::describe_precision;
use crate::train::step::ranks::{Leader, Place, named};
use crate::train::step::update_rules::{divides_weights, on_device};
use crate::train::trainer::resume::{Resumed, restore};
use crate::{Device, Error, Result, Tensor};
use serde_json::Value;
use std::path::Path;

/// A run that has begun.
pub(super) struct Opened {
    pub leader: Leader,
    /// `run.json`
    pub record: Value,
    pub run: Run,
}

/// The run's folder and its training state.
pub(super) struct Run {
    pub folder: RunFolder,
    pub sinks: Vec<Box<dyn Sink>>,
    pub config_text: String,
    pub model: Box<dyn LanguageModel>,
    pub parameters: ParameterArena,
    pub optimizer: Optimizer,
    /// Where ranks divide the weights, those that all begin with, on the host.
    pub undivided: Vec<(String, Tensor)>,
    /// From which it continues.
    pub checkpoint: Option<Checkpoint>,
}

/// The other ranks are told if this fails.
///
/// # Errors
/// If ranks differ in what they train, or the model or the folder cannot be made or read.
pub(super) fn open(checked: &Checked, resumed: Option<Resumed>, process: &mut Process) -> Result<Opened> {
    if process.place.ranks > 1 {
        process.clock.enter(Phase::Ranks);
    }
    let mut leader = Leader::begin(&checked.team(process))?;
    process.clock.enter(Phase::Model);
    let opened = open_run(checked, resumed, process).and_then(|run| Ok((announce(checked, &run, process)?, run)));
    let (record, run) = opened.inspect_err(|error| leader.stop(Some(&error.to_string())))?;
    Ok(Opened { leader, record, run })
}

fn open_run(checked: &Checked, resumed: Option<Resumed>, process: &mut Process) -> Result<Run> {
    let run = match resumed {
        Some(resumed) => resume(checked, resumed, process)?,
        None => create(checked, &process.options.device, process.place)?,
    };
    process.trace.as_mut().map_or(Ok(()), |trace| trace.open_in(run.folder.path()))?;
    process.clock.enter(Phase::Unaccounted);
    Ok(run)
}

/// Reports the facts before the first step. Returns the content of `run.json`.
fn announce(checked: &Checked, run: &Run, process: &mut Process) -> Result<Value> {
    let start = start(checked, run, process);
    checked.notes.iter().for_each(|note| process.note(note.clone()));
    let record = record::begin(&run.folder, &start, checked.state.step)?;
    (process.options.on_event)(&Event::Started(Box::new(start)));
    Ok(record)
}

fn start(checked: &Checked, run: &Run, process: &Process) -> Start {
    let Checked { config, state, text, .. } = checked;
    let (device, model) = (&process.options.device, run.model.config().clone());
    Start {
        folder: run.folder.path().to_path_buf(),
        device: named(device, process.options.others, Device::describe),
        precision: describe_precision(config.device.precision, device, &model),
        corpus: checked.corpus.name.clone(),
        text: checked.corpus.summary.clone(),
        tokenizer: text.tokenizer.name().to_string(),
        tokens: text.tokenizer.vocab_size(),
        parameters: model.parameter_count(),
        adapters: adapters(config, &run.parameters),
        model,
        train_tokens: checked.train.len(),
        validation_tokens: checked.validation.len(),
        tokens_per_step: config.train.batch_size * config.train.grad_accum_steps * config.model.block_size,
        first_step: state.step,
        total_steps: state.total_steps,
        epochs: state.total_steps as f64 / checked.steps_per_epoch,
        warmup_steps: config.train.warmup_steps,
    }
}

/// The adapters that are trained, if the model itself is not.
pub(in crate::train::trainer) fn adapters(config: &Config, parameters: &ParameterArena) -> Option<Adapters> {
    let trained = parameters.entries.iter().filter(|entry| entry.trainable);
    lora(config).map(|lora| Adapters {
        parameters: trained.map(|entry| entry.shape.elements()).sum(),
        rank: lora.rank,
        scale: lora.scale(),
        dora: lora.dora,
        targets: lora.targets,
        modules_to_save: lora.modules_to_save,
        base: lora.base.name(),
    })
}

/// A new run.
fn create(checked: &Checked, device: &Device, place: Place) -> Result<Run> {
    let config = &*checked.config;
    let kind = if device.is_gpu() { "gpu" } else { "cpu" };
    let mut folder = RunFolder::create(Path::new(&config.run.dir), &config.run_name(kind))?;
    let config_text = checked.resolved.to_toml();
    folder.write(CONFIG, &config_text)?;
    let made = sinks::open(&config.log, &mut folder, 0).and_then(|sinks| {
        let mut model = first_model(config, &checked.shape, Some(&checked.text.tokenizer))?;
        Ok((sinks, undivided(&mut *model, config, place), on_device(model, config, device, place)?))
    });
    match made {
        Ok((sinks, undivided, (model, parameters, optimizer))) => {
            Ok(Run { folder, sinks, config_text, model, parameters, optimizer, undivided, checkpoint: None })
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
fn resume(checked: &Checked, resumed: Resumed, process: &mut Process) -> Result<Run> {
    let Checked { shape, state, .. } = checked;
    let (config, place) = (&*checked.config, process.place);
    let config_text = resumed.config_text(&checked.resolved);
    let Resumed { mut folder, checkpoint, mut notes, .. } = resumed;
    let mut model = match &checkpoint {
        Some(checkpoint) => model_at(&checkpoint.path, config, shape)?,
        None => first_model(config, shape, Some(&checked.text.tokenizer))?,
    };
    if model.config() != shape {
        let message = format!("its model is {:?}, the run's configuration implies {shape:?}", model.config());
        return Err(Error::Checkpoint { path: folder.path().to_path_buf(), message });
    }
    let undivided = undivided(&mut *model, config, place);
    let (model, parameters, mut optimizer) = on_device(model, config, &process.options.device, place)?;
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
        format!("{name} is {missing} bytes shorter than at step {}: lines are lost", state.step)
    }));
    if checkpoint.is_some() {
        folder
            .checkpoints()
            .roll_back(state.step, state.best.filter(|_| config.checkpoint.keep_best).map(|best| best.step))?;
    }
    let sinks = sinks::open(&config.log, &mut folder, state.step)?;
    notes.into_iter().for_each(|note| process.note(note));
    Ok(Run { folder, sinks, config_text, model, parameters, optimizer, undivided, checkpoint })
}
