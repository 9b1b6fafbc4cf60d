//! Loads a trained model with its tokenizer.

use super::{hub, output};
use crate::config::{Layers, WeightDtype};
use crate::data::Tokenizer;
use crate::models::{self, LanguageModel};
use crate::train::{FoundCheckpoint, check_size, find_checkpoint, newest_run};
use crate::{DType, Device, Error};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// The folder of the checkpoint in `path` (itself one, or a run's), of the model that was fetched by that name, or of
/// the newest run.
pub fn find(path: Option<&Path>) -> Result<PathBuf> {
    let run = match path {
        Some(path) => hub::folder_of(path).or_else(|advice| {
            let Some(advice) = advice else { return Ok(path.to_path_buf()) };
            let message = "is not a folder; give a run's folder or a checkpoint's, as in runs/<name>";
            Err(Error::Checkpoint { path: path.to_path_buf(), message: format!("{message}; {advice}") })
        })?,
        None => newest_run(Path::new("runs"))?,
    };
    let FoundCheckpoint { folder, damaged } = find_checkpoint(&run)?;
    for error in damaged {
        output::note(format_args!("warning: {error}; using {}", folder.display()));
    }
    Ok(folder)
}

/// The configuration that a checkpoint was trained with, if it has one.
pub fn trained_with(folder: &Path) -> crate::Result<Option<Layers>> {
    let path = folder.join("config.toml");
    path.exists().then(|| Layers::new().file(&path)).transpose()
}

/// The model in a checkpoint's folder, on `device`.
pub fn load(folder: &Path, device: &Device) -> Result<(Box<dyn LanguageModel>, Tokenizer)> {
    load_as(WeightDtype::F32, folder, device)
}

/// The same with the operands of its matmuls as `--dtype` says.
pub fn load_as(dtype: WeightDtype, folder: &Path, device: &Device) -> Result<(Box<dyn LanguageModel>, Tokenizer)> {
    if dtype == WeightDtype::F16 {
        check_f16(device)?;
    }
    let tokenizer = Tokenizer::from_folder(&models::hf::tokenizer_folder(folder)?)?;
    let mut model = models::load(folder)?;
    if tokenizer.vocab_size() > model.config().vocab_size {
        return Err(Error::Checkpoint {
            path: folder.to_path_buf(),
            message: format!(
                "tokenizer.json has {} tokens, the model {}: they do not belong together",
                tokenizer.vocab_size(),
                model.config().vocab_size
            ),
        }
        .into());
    }
    check_size(model.config(), model.config().block_size, DType::F32, device)?;
    to_device(&mut *model, dtype, device)?;
    Ok((model, tokenizer))
}

/// Moves a model that is only used to a device.
pub fn to_device(model: &mut dyn LanguageModel, dtype: WeightDtype, device: &Device) -> crate::Result<()> {
    match dtype {
        WeightDtype::F32 => model.to_device(device),
        WeightDtype::F16 => models::to_device_as_f16(model, "--dtype", device),
    }
}

/// Whether a device gains anything by weights of 16 bits.
pub fn check_f16(device: &Device) -> Result<()> {
    match device.adapter() {
        None => bail!("--dtype f16: the CPU computes with 32-bit floats alone; use f32, or --device gpu"),
        Some(adapter) if !device.has_f16() => {
            bail!("--dtype f16: {} does not store 16-bit floats; use f32", adapter.name)
        }
        Some(_) => Ok(()),
    }
}
