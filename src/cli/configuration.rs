//! The flags that say what to train, and the configuration they make with the layers below them.

use super::argument::{self, Argument};
use super::{complete, device, named, output};
use crate::Error;
use crate::cache;
use crate::config::{Config, Layers, Objective, Precision, QUICKSTART, Resolved, process_environment};
use crate::train::find_init;
use anyhow::Result;
use std::path::{Path, PathBuf};

#[derive(Clone, clap::Args)]
pub struct RunFlags {
    /// A configuration (TOML, or a flat .env file), or a text to train on: a file or folder [default: a small model on
    /// the sample corpus]
    #[arg(value_name = "CONFIG|CORPUS", add = complete::configs_and_corpora())]
    given: Option<PathBuf>,
    /// Configuration file, same as the positional CONFIG
    #[arg(long, short, value_name = "FILE", add = complete::configs())]
    config: Option<PathBuf>,
    /// Set any key, as in --set train.learning_rate=3e-4; may be repeated
    #[arg(long, short, value_name = "KEY=VALUE", add = complete::assignments())]
    pub set: Vec<String>,
    /// What to train on: sample, wikitext-2, tinyshakespeare, a file or folder, or - for standard input (data.corpus)
    #[arg(long, add = complete::corpora())]
    corpus: Option<String>,
    /// char, word, bpe, gpt2, or the path of a tokenizer.json (data.tokenizer)
    #[arg(long, add = complete::tokenizers())]
    tokenizer: Option<String>,
    /// One document per row, instead of as many as fit (data.packing = "off")
    #[arg(long)]
    no_pack: bool,
    /// Start from a model's weights, shape and tokenizer: a run (folder or name), a model's folder, a GGUF
    /// file, or the name of a fetched model (model.init)
    #[arg(long, value_name = "DIR", add = complete::runs())]
    init: Option<String>,
    /// Replace the tokenizer of --init: shared tokens keep their embeddings, others are random (model.new_tokenizer)
    #[arg(long)]
    new_tokenizer: bool,
    /// Learn preferences instead of each next token: dpo, ipo, orpo, kto or simpo (train.objective)
    #[arg(long, value_name = "OBJECTIVE", add = complete::objectives())]
    objective: Option<Objective>,
    /// Number of layers (model.n_layer)
    #[arg(long, value_name = "N")]
    n_layer: Option<String>,
    /// Attention heads per layer (model.n_head)
    #[arg(long, value_name = "N")]
    n_head: Option<String>,
    /// Width of the embedding (model.n_embd)
    #[arg(long, value_name = "N")]
    n_embd: Option<String>,
    /// Tokens per training row; with --init, by default the 99th percentile of document lengths (model.block_size)
    #[arg(long, value_name = "N")]
    block_size: Option<String>,
    /// Sequences per batch; with --init, by default the largest of 16, 8, 4, 2, 1 that fits (train.batch_size)
    #[arg(long, value_name = "N")]
    batch_size: Option<String>,
    /// Peak learning rate (train.learning_rate)
    #[arg(long, value_name = "LR")]
    learning_rate: Option<String>,
    /// Seed: the same one repeats a run on the same device (run.seed)
    #[arg(long)]
    seed: Option<u64>,
    /// The folder of downloaded data sets
    #[arg(long, default_value = "data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// f32, or mixed: f16 matmuls with f32 master weights, on a GPU (device.precision)
    #[arg(long, value_name = "PRECISION", help_heading = device::HEADING, add = complete::precisions())]
    precision: Option<Precision>,
    #[command(flatten)]
    device: device::Flags,
}

/// All flags that say how a run is to be: those, and the ones of its length and its name.
#[derive(Clone, clap::Args)]
pub struct TrainFlags {
    #[command(flatten)]
    pub run: RunFlags,
    /// Steps to train (train.max_steps)
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    max_steps: Option<u64>,
    /// Epochs to train, instead of steps (train.epochs)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    epochs: Option<f64>,
    /// The name of the run's folder (run.name)
    #[arg(long)]
    name: Option<String>,
}

impl TrainFlags {
    /// As [`RunFlags::resolve`].
    pub fn resolve(&self, otherwise: Option<&Path>) -> Result<Resolved> {
        let more = [
            ("--max-steps", "train.max_steps", text(self.max_steps)),
            ("--epochs", "train.epochs", text(self.epochs)),
            ("--name", "run.name", self.name.clone()),
        ];
        self.run.resolve(otherwise, &more)
    }
}

/// A flag, the key that it sets, and its value if it was given.
pub type Flag = (&'static str, &'static str, Option<String>);

impl RunFlags {
    /// The argument without a name.
    fn argument(&self) -> Result<Option<Argument>> {
        self.given.as_deref().map(Argument::read).transpose()
    }

    /// Whether nothing was named that another shape comes from.
    pub fn is_quickstart(&self) -> Result<bool> {
        let names_config = self.config.is_some() || matches!(self.argument()?, Some(Argument::Config(_)));
        Ok(!names_config && self.init.is_none())
    }

    /// The folder of runs, before anything else is known.
    pub fn run_dir(&self) -> Result<PathBuf> {
        Ok(self.layers(None, &[])?.run_dir().into())
    }

    /// The configuration in force: defaults < file < environment < --set < flags. Where no file was named it is
    /// `otherwise`, or else the built-in quickstart. `more` are flags that one command alone has.
    pub fn resolve(&self, otherwise: Option<&Path>, more: &[Flag]) -> Result<Resolved> {
        build(self.layers(otherwise, more)?)
    }

    fn layers(&self, otherwise: Option<&Path>, more: &[Flag]) -> Result<Layers> {
        let given = self.argument()?;
        let config = match (&given, &self.config) {
            (Some(Argument::Config(path)), Some(flag)) => {
                let (path, flag) = (path.display(), flag.display());
                anyhow::bail!("--config {flag} cannot be used with {path}: give one configuration");
            }
            (Some(Argument::Config(path)), None) => Some(path.as_path()),
            (_, flag) => flag.as_deref(),
        };
        let mut layers = match config.or(otherwise) {
            Some(path) => Layers::new().file(path)?,
            // The quickstart has a shape of its own.
            None if self.init.is_some() => Layers::new(),
            None => Layers::new().toml_str("the built-in quickstart", QUICKSTART)?,
        };
        layers = layers.environment(process_environment())?;
        for assignment in &self.set {
            layers = layers.set(assignment)?;
        }
        let flags = [
            argument::corpus(given.as_ref(), self.corpus.as_ref())?,
            ("--tokenizer", "data.tokenizer", self.tokenizer.clone()),
            ("--no-pack", "data.packing", self.no_pack.then(|| "off".to_string())),
            ("--init", "model.init", self.init.clone()),
            ("--new-tokenizer", "model.new_tokenizer", self.new_tokenizer.then(|| "true".to_string())),
            ("--objective", "train.objective", text(self.objective)),
            ("--n-layer", "model.n_layer", self.n_layer.clone()),
            ("--n-head", "model.n_head", self.n_head.clone()),
            ("--n-embd", "model.n_embd", self.n_embd.clone()),
            ("--block-size", "model.block_size", self.block_size.clone()),
            ("--batch-size", "train.batch_size", self.batch_size.clone()),
            ("--learning-rate", "train.learning_rate", self.learning_rate.clone()),
            ("--seed", "run.seed", text(self.seed)),
            ("--precision", "device.precision", text(self.precision)),
        ];
        Ok(with_flags(with_device(layers, &self.device)?, flags.iter().chain(more))?)
    }
}

/// The configuration of these layers. If the corpus is standard input, its text is kept in a file.
pub fn build(layers: Layers) -> Result<Resolved> {
    let mut resolved = layers.build()?;
    let Config { model, run, .. } = &mut resolved.config;
    // A run that has begun needs it no more, and has a vocabulary.
    if !model.init.is_empty() && model.vocab_size == 0 {
        model.init = named::model_or_run(Path::new(&model.init), Path::new(&run.dir)).display().to_string();
    }
    find_init(&mut resolved)?;
    if resolved.config.data.corpus == "-" {
        resolved.config.data.corpus = kept_standard_input()?;
    }
    Ok(resolved)
}

/// Keeps the text of standard input, which can be read only once, in a file, and says where.
fn kept_standard_input() -> Result<String> {
    let folder = cache::user_folder().unwrap_or_else(std::env::temp_dir).join("texts");
    std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, error))?;
    let failed = |error| Error::io("write", &folder, error);
    let mut file = tempfile::Builder::new().prefix("stdin-").suffix(".txt").tempfile_in(&folder).map_err(failed)?;
    std::io::copy(&mut std::io::stdin().lock(), &mut file).map_err(failed)?;
    let path = file.into_temp_path().keep().map_err(|error| failed(error.error))?;
    output::note(format_args!("note: the text of standard input is kept in {}", path.display()));
    let path = std::path::absolute(&path).unwrap_or(path);
    Ok(path.display().to_string())
}

/// These layers with what the flags about the device set.
pub fn with_device(layers: Layers, device: &device::Flags) -> crate::Result<Layers> {
    let flags = [
        ("--device", "device.kind", text(device.device.clone())),
        ("--matmul-f32", "device.matmul_f32", text(device.matmul_f32())),
        ("--threads", "device.threads", text(device.threads)),
        ("--allow-fallback", "device.allow_fallback", text(device.allow_fallback.then_some(true))),
        ("--allow-software-gpu", "device.allow_software", text(device.allow_software_gpu.then_some(true))),
    ];
    with_flags(layers, flags.iter())
}

/// These layers with what further flags set.
pub fn with_flags<'a>(mut layers: Layers, flags: impl Iterator<Item = &'a Flag>) -> crate::Result<Layers> {
    for (flag, key, value) in flags {
        if let Some(value) = value {
            layers = layers.flag(flag, key, value)?;
        }
    }
    Ok(layers)
}

/// The defaults with the environment over them.
pub fn of_environment() -> Result<Config> {
    let resolved = Layers::new().environment(process_environment())?.build()?;
    warn(&resolved);
    Ok(resolved.config)
}

/// The folder of runs that the environment means.
pub fn run_dir() -> Result<PathBuf> {
    Ok(Layers::new().environment(process_environment())?.run_dir().into())
}

/// Says what should be written in another way.
pub fn warn(resolved: &Resolved) {
    for warning in &resolved.warnings {
        output::note(format_args!("warning: {warning}"));
    }
}

/// The value of a flag, as it would be written.
pub fn text(value: Option<impl std::fmt::Display>) -> Option<String> {
    value.map(|value| value.to_string())
}
