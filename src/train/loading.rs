//! Loads trained models with their tokenizers, from a run, a checkpoint, or a fetched model.

use super::checkpoint::{FoundCheckpoint, find_checkpoint};
use super::plan::check_size;
use super::setup::adapters::storage;
use crate::config::{DataConfig, GenerateConfig, Layers, WeightDtype, process_environment};
use crate::data::{ChatSpec, Corpus, CorpusSpec, TextConventions};
use crate::hub_cache::folder_of;
use crate::models::gguf::unpacked;
use crate::models::{self, LanguageModel, hf};
use crate::{DType, Device, Error, Result};
use std::path::{Path, PathBuf};

/// The folder of the checkpoint at `path` (a checkpoint, a run or a GGUF file), or of a fetched model of that name.
/// `note` receives messages about damaged checkpoints.
///
/// # Errors
/// If there is no such folder, or no intact checkpoint in it.
pub fn find_model(path: &Path, note: &dyn Fn(&str)) -> Result<PathBuf> {
    let run = folder_of(path).or_else(|advice| {
        let Some(advice) = advice else { return Ok(path.to_path_buf()) };
        let message = "is not a folder; give a run's folder or a checkpoint's, as in runs/<name>";
        Err(Error::Checkpoint { path: path.to_path_buf(), message: format!("{message}; {advice}") })
    })?;
    let FoundCheckpoint { folder, damaged } = find_checkpoint(&unpacked(&run)?)?;
    for error in damaged {
        note(&format!("warning: {error}; using {}", folder.display()));
    }
    Ok(folder)
}

/// The configuration that a checkpoint was trained with, if it has one.
///
/// # Errors
/// If its config.toml cannot be read.
pub fn trained_with(folder: &Path) -> Result<Option<Layers>> {
    let path = folder.join("config.toml");
    path.exists().then(|| Layers::new().file(&path)).transpose()
}

/// Tokens per training row of this checkpoint's run, if known; at most the model's context.
///
/// # Errors
/// If its config.toml cannot be read.
pub fn trained_rows(folder: &Path) -> Result<Option<usize>> {
    let Some(layers) = trained_with(folder)? else { return Ok(None) };
    Ok(Some(layers.build()?.config.model.block_size))
}

/// The data of this checkpoint's run, if known.
///
/// # Errors
/// If its config.toml cannot be read.
pub fn trained_on(folder: &Path) -> Result<Option<DataConfig>> {
    let Some(layers) = trained_with(folder)? else { return Ok(None) };
    Ok(Some(layers.build()?.config.data))
}

/// The `[generate]` settings of this checkpoint's run, if known, with those of the environment.
///
/// # Errors
/// If its config.toml or the environment cannot be read.
pub fn generates_with(folder: &Path) -> Result<Option<GenerateConfig>> {
    let Some(layers) = trained_with(folder)? else { return Ok(None) };
    let about_this = process_environment().filter(|(name, _)| name.starts_with("RUSTYFLOW_GENERATE__"));
    Ok(Some(layers.environment(about_this)?.build()?.config.generate))
}

/// Loads the model of a checkpoint's folder to `device`, with GEMM operands of this type, and its text conventions.
///
/// # Errors
/// If a file is missing or damaged, model and tokenizer do not match, or the device runs out of memory.
pub fn load_model(
    dtype: WeightDtype,
    folder: &Path,
    device: &Device,
) -> Result<(Box<dyn LanguageModel>, TextConventions)> {
    if dtype == WeightDtype::F16 {
        check_f16_weights(device)?;
    }
    let text = TextConventions::load(&hf::tokenizer_folder(folder)?, &hf::weights_folder(folder)?)?;
    let tokens = text.tokenizer.vocab_size();
    let mut model = hf::open(folder, usize::MAX)?;
    if tokens > model.config().vocab_size {
        return Err(Error::Checkpoint {
            path: folder.to_path_buf(),
            message: format!(
                "tokenizer.json has {tokens} tokens, the model {}: they do not match",
                model.config().vocab_size
            ),
        });
    }
    // How long a text will be is not known yet, and few fill the context. What is too large is refused when it comes.
    check_size(model.config(), 1, DType::F32, device)?;
    move_model(&mut *model, dtype, device)?;
    Ok((model, text))
}

/// Moves a model to a device for inference.
///
/// # Errors
/// If the device runs out of memory.
pub fn move_model(model: &mut dyn LanguageModel, dtype: WeightDtype, device: &Device) -> Result<()> {
    match dtype {
        WeightDtype::F32 => model.to_device(device),
        WeightDtype::F16 => models::to_device_as_f16(model, "--dtype", device),
        quantized => models::to_device_quantized(model, storage(quantized), "--dtype", device),
    }
}

/// Checks that a device supports f16 weights.
///
/// # Errors
/// If it does not.
pub fn check_f16_weights(device: &Device) -> Result<()> {
    let why = match device.adapter() {
        None => "the CPU computes with 32-bit floats alone; use f32, or --device gpu".to_string(),
        Some(adapter) if !device.has_f16() => format!("{} does not support f16; use f32", adapter.name),
        Some(_) => return Ok(()),
    };
    Err(Error::Invalid(format!("--dtype f16: {why}")))
}

/// Opens the configured text with this validation fraction, for the model in `folder`, whose chat template is the
/// default.
///
/// # Errors
/// If there is no such text, or it cannot be read.
pub fn corpus_for_model(
    data: &DataConfig,
    validation_fraction: f64,
    data_dir: &Path,
    cache: Option<&Path>,
    folder: &Path,
) -> Result<Corpus> {
    let spec = super::data_spec(data, data_dir, cache);
    let mut chat = spec.corpus.chat;
    if chat.template.is_empty() || !chat.is_there() {
        chat = ChatSpec { template: "", folder: Some(folder) };
    }
    Corpus::open(&CorpusSpec { validation_fraction, chat, ..spec.corpus }, &mut |_| {})
}
