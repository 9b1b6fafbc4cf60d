//! Checks the configuration against what was loaded: sizes, memory, prompt and length. Nothing is allocated before.

use super::load::{Data, Loaded};
use super::{Process, devices};
use crate::config::{self, Config, Objective, Resolved};
use crate::data::{Corpus, Coverage, Labels, Loader, Prepared, TextConventions, Tokens};
use crate::generate::check_prompt;
use crate::models::ModelConfig;
use crate::train::checkpoint::{Checkpoint, DataHash, TrainerState};
use crate::train::evaluation::prompt::prompt_ids;
use crate::train::plan::precompile::Precompile;
use crate::train::plan::{Memory, init_sizes};
use crate::train::run::options::TrainOptions;
use crate::train::setup::init::vocabulary_note;
use crate::train::setup::schedule::settle_length;
use crate::train::step::ranks::{Team, named};
use crate::train::step::replica::loader;
use crate::train::trainer::resume::Resumed;
use crate::train::trainer::sizes::{memory_of, passes};
use crate::{Device, Error, Result};
use std::sync::Arc;

/// A run with resolved sizes that fit.
pub(super) struct Checked {
    pub resolved: Resolved,
    /// That of `resolved`.
    pub config: Arc<Config>,
    pub shape: ModelConfig,
    pub corpus: Corpus,
    pub text: TextConventions,
    pub train: Tokens,
    pub validation: Tokens,
    /// Bytes of the validation text.
    pub coverage: Coverage,
    pub hash: DataHash,
    /// At the state's position.
    pub loader: Loader,
    pub steps_per_epoch: f64,
    /// In how many passes each rank computes a batch at first.
    pub splits: usize,
    /// Before the first step of this process.
    pub state: TrainerState,
    pub precompile: Precompile,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Checked {
    /// The ranks of this process.
    pub fn team<'a>(&'a self, process: &'a Process) -> Team<'a> {
        let Checked { config, shape, hash: data, train: tokens, validation, splits, .. } = self;
        let TrainOptions { device, others, launch, .. } = &process.options;
        Team { config, shape, data, tokens, validation, splits: *splits, device, others, launch: *launch }
    }
}

/// # Errors
/// If the run does not fit its devices, its prompt or its text do not suit it, or it has nothing left to do.
pub(super) fn check(loaded: Loaded, process: &Process) -> Result<(Checked, Option<Resumed>)> {
    let Loaded { mut resolved, resumed, data, mut precompile } = loaded;
    let Data { corpus, prepared, chat_template, ids, hash } = data;
    let TrainOptions { device, others, launch, .. } = &process.options;
    let (devices, place) = (devices(device, others), process.place);
    check_ranks(&resolved, place.ranks)?;
    let memory = memory_of(&devices, *launch)?;
    let (shape, shape_notes) = settle_shape(&mut resolved, &prepared, resumed.is_none(), process, &memory)?;
    let checkpoint = resumed.as_ref().and_then(|resumed| resumed.checkpoint.as_ref());
    let position = checkpoint.map(|c| c.state.position).unwrap_or_default();
    let loader = loader(&resolved.config, shape.kind, prepared.train.clone(), position)?;
    check_answers(&resolved, [&prepared.train, &prepared.validation])?;
    let (total_steps, steps_per_epoch) = settle_length(&mut resolved, &loader)?;
    check_prompt(&shape, &prompt_ids(&prepared.tokenizer, &resolved.config.generate.prompt)?)?;
    check_validation(&resolved, &prepared.validation)?;
    let in_documents = loader.is_in_documents();
    let passes = passes(&resolved, &shape, in_documents, &devices, place, &memory)?;
    if in_documents != precompile.is_in_documents() || !precompile.has_begun() {
        // Only the text says that it has prompts, and how long they are.
        precompile.begin(&resolved.config, &shape, in_documents, &devices, place);
    }
    let names = named(device, others, Device::name);
    let state = initial_state(checkpoint, names, hash.clone(), total_steps);
    if let Some(resumed) = &resumed {
        check_length(&resolved, resumed, &state)?;
    }
    let Prepared { tokenizer, train, validation, meta, .. } = prepared;
    let text = TextConventions::new(tokenizer, chat_template, ids);
    let notes = validation_note(&validation)
        .into_iter()
        .chain(meta.notes)
        .chain(shape_notes)
        .chain(loader.note())
        .chain(passes.note)
        .chain(text.note.clone())
        .chain(text.warning_of_end())
        .collect();
    let (config, coverage, splits) = (Arc::new(resolved.config.clone()), meta.coverage, passes.splits);
    let checked = Checked {
        resolved,
        config,
        shape,
        corpus,
        text,
        train,
        validation,
        coverage,
        hash,
        loader,
        steps_per_epoch,
        splits,
        state,
        precompile,
        notes,
    };
    Ok((checked, resumed))
}

/// Fills in the sizes that depend on text and memory. Returns the model's shape, and notes on these sizes and on a new
/// tokenizer.
///
/// # Errors
/// Those of [`init_sizes::settle`], or if the model's tokenizer cannot be read.
fn settle_shape(
    resolved: &mut Resolved,
    prepared: &Prepared,
    is_new: bool,
    process: &Process,
    memory: &Memory,
) -> Result<(ModelConfig, Vec<String>)> {
    let TrainOptions { device, others, launch, .. } = &process.options;
    let devices = 1 + others.len();
    let (shape, sizes_note) = init_sizes::settle(resolved, prepared, (device, devices), launch.is_some(), memory)?;
    let is_new = is_new && resolved.config.model.new_tokenizer;
    let tokenizer_note = is_new.then(|| vocabulary_note(&resolved.config, &prepared.tokenizer)).transpose()?;
    Ok((shape, sizes_note.into_iter().chain(tokenizer_note).collect()))
}

fn validation_note(validation: &Tokens) -> Option<String> {
    let tokens = validation.len();
    (tokens < 2)
        .then(|| format!("the validation split has {tokens} token(s): nothing is evaluated, and no checkpoint is best"))
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

/// KTO requires a single device.
fn check_ranks(resolved: &Resolved, ranks: usize) -> Result<()> {
    if resolved.config.train.objective != Objective::Kto || ranks <= 1 {
        return Ok(());
    }
    let message = format!("is kto, which needs one device, not {ranks}: its KL spans the whole step");
    Err(objective_error(resolved, message))
}

/// An error of the key `train.objective`.
fn objective_error(resolved: &Resolved, message: String) -> Error {
    let key = "train.objective";
    Error::Config { place: resolved.origin(key).to_string(), key: key.into(), message }
}

/// Whether the text has what the objective learns from.
fn check_answers(resolved: &Resolved, splits: [&Tokens; 2]) -> Result<()> {
    let objective = resolved.config.train.objective;
    let refused = |message: String| Err(objective_error(resolved, message));
    for labels in splits.map(Tokens::labels) {
        let Labels { texts, pairs, desirable, undesirable } = labels;
        let (answers, documents) = (desirable + undesirable, texts + pairs + desirable + undesirable);
        let (learned, needed) = match objective {
            Objective::NextToken if pairs + undesirable == 0 => continue,
            Objective::NextToken => (texts, ""),
            Objective::Kto => (answers, "\"prompt\", \"completion\" and a boolean \"label\""),
            _ => (pairs, "\"prompt\", \"chosen\" and \"rejected\""),
        };
        if learned == documents {
            continue;
        }
        if objective.is_preference() {
            let other = documents - learned;
            return refused(format!(
                "is {objective}, which learns from rows with {needed}; {other} of {documents} rows \
                                    of data.corpus are others"
            ));
        }
        let (advice, otherwise) = match pairs {
            0 => ("kto", "or leave out the keys \"label\" to learn all answers"),
            _ => ("dpo, ipo, orpo or simpo", "or leave out the key \"rejected\""),
        };
        return refused(format!(
            "is next_token, and {} of {documents} rows of data.corpus are preferences: set it to {advice}, {otherwise}",
            documents - texts
        ));
    }
    Ok(())
}

/// Settings that depend on the validation loss require a validation split.
fn check_validation(resolved: &Resolved, validation: &Tokens) -> Result<()> {
    if resolved.config.train.schedule != config::Schedule::Plateau || validation.len() >= 2 {
        return Ok(());
    }
    let message = "plateau follows the validation loss, and there is no validation split: set data.validation_fraction";
    let place = resolved.origin("train.schedule").to_string();
    Err(Error::Config { place, key: "train.schedule".into(), message: message.into() })
}
