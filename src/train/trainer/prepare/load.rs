//! Loads the inputs of a run: the tokenized text, the tokenizer and, for a resumed run, its checkpoint.

use super::{Process, devices};
use crate::config::{Config, Resolved};
use crate::data::{ChatSpec, ChatTemplate, Corpus, DeclaredIds, NO_TEMPLATE, Packing, Prepared, Progress, Tokenizer};
use crate::models::hf;
use crate::profile::Phase;
use crate::shell_words::quoted;
use crate::train::checkpoint::{Checkpoint, DataHash, TOKENIZER};
use crate::train::plan::init_sizes;
use crate::train::plan::precompile::Precompile;
use crate::train::run::events::Event;
use crate::train::run::options::TrainOptions;
use crate::train::setup::data_spec::{chat_spec, data_spec, packing};
use crate::train::setup::init::check_tokenizer;
use crate::train::setup::model_shape::model_config;
use crate::train::step::ranks::{Place, named};
use crate::train::trainer::resume::Resumed;
use crate::train::trainer::sizes::check_device;
use crate::{Device, Error, Result};
use std::path::Path;
use std::time::{Duration, Instant};

/// Inputs of a run.
pub(super) struct Loaded {
    /// With resolved values of a resumed run.
    pub resolved: Resolved,
    pub resumed: Option<Resumed>,
    pub data: Data,
    /// Compiles for the sizes that the tokenizer implies.
    pub precompile: Precompile,
}

/// # Errors
/// If there is no such text, tokenizer or run, or the run may not continue with this configuration.
pub(super) fn load(resolved: &Resolved, process: &mut Process) -> Result<Loaded> {
    let Process { options, clock, place, .. } = process;
    let mut resolved = resolved.clone();
    let names = named(&options.device, options.others, Device::name);
    let resumed = options.resume.map(|run| Resumed::open(run, &mut resolved, &names, place.ranks)).transpose()?;
    clock.enter(Phase::Text);
    let checkpoint = resumed.as_ref().and_then(|resumed| resumed.checkpoint.as_ref());
    let (data, precompile) = tokenize(&resolved, options, checkpoint, *place)?;
    Ok(Loaded { resolved, resumed, data, precompile })
}

/// Tokenizes the text; precompilation starts as soon as there is a tokenizer.
///
/// # Errors
/// Those of [`Data::load`], or if the tokenizer is not one for the model that the run begins with.
pub(super) fn tokenize(
    resolved: &Resolved,
    options: &mut TrainOptions,
    checkpoint: Option<&Checkpoint>,
    place: Place,
) -> Result<(Data, Precompile)> {
    let device = options.device.clone();
    let devices = devices(&device, options.others);
    let mut precompile = Precompile::default();
    let mut on_tokenizer = |tokenizer: &Tokenizer| {
        if checkpoint.is_none() {
            check_tokenizer(resolved, tokenizer)?;
        }
        precompile_for(&mut precompile, resolved, tokenizer, &devices, place);
        Ok(())
    };
    let data = Data::load(resolved, options, checkpoint, &mut on_tokenizer)?;
    Ok((data, precompile))
}

/// The tokenized text of a run.
pub(super) struct Data {
    pub corpus: Corpus,
    pub prepared: Prepared,
    pub chat_template: Option<ChatTemplate>,
    pub ids: DeclaredIds,
    pub hash: DataHash,
}

impl Data {
    /// `on_tokenizer` is called before the text is tokenized, and may return an error.
    ///
    /// # Errors
    /// If a resumed run was trained on another text.
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
                "{what} not what the run in {} was trained on; restore that, or fine-tune its weights in a new run: {}",
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
        let opened = Corpus::open(&spec.corpus, &mut |done| show(Progress { task: "reading", done, total: None }));
        let corpus = opened.map_err(|error| with_template_of_init(error, resolved))?;
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

/// The error of a text without a chat template, if the model that the run begins with has one: another tokenizer
/// replaces both.
fn with_template_of_init(error: Error, resolved: &Resolved) -> Error {
    let init = &resolved.config.model.init;
    let folder = hf::tokenizer_folder(Path::new(init)).ok().filter(|_| !init.is_empty());
    let its = folder.and_then(|folder| ChatTemplate::find(&ChatSpec { template: "", folder: Some(&folder) }).ok()?);
    match error {
        Error::Corpus { path, message } if its.is_some() && message.contains(NO_TEMPLATE) => {
            let message = format!(
                "{message}; the model in {init} has one, beside the tokenizer that data.tokenizer replaces: leave \
                 data.tokenizer out to use both"
            );
            Error::Corpus { path, message }
        }
        error => error,
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

/// The command that trains a new run on this text, from the weights of this one.
fn continuation(run: Option<&Path>, corpus: &str) -> String {
    let [run, corpus] = [run.unwrap_or(Path::new("RUN")), Path::new(corpus)].map(quoted);
    format!("rustyflow train --init {run} --corpus {corpus}")
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
    if init_sizes::are_open(resolved) {
        return;
    }
    let Ok(shape) = model_config(resolved, tokenizer.vocab_size()) else { return };
    if devices.iter().all(|device| check_device(resolved, &shape, device, place.ranks).is_ok()) {
        let in_documents = packing(&resolved.config.data).is_some_and(|packing| packing != Packing::Stream);
        precompile.begin(&resolved.config, &shape, in_documents, devices, place);
    }
}
