//! Loads a trained model with its tokenizer.

use super::output;
use crate::data::Tokenizer;
use crate::nn::{Gpt, Module, checkpoint};
use crate::train::{Found, check_size, find_checkpoint, newest_run};
use crate::{DType, Device, Error};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// The model in `path` (a run's folder or a checkpoint's), or of the newest run, on `device`; and where it was found.
pub fn load(path: Option<&Path>, device: &Device) -> Result<(Gpt, Tokenizer, PathBuf)> {
    let run = match path {
        Some(path) => path.to_path_buf(),
        None => newest_run(Path::new("runs"))?,
    };
    let Found { folder, damaged } = find_checkpoint(&run)?;
    for error in damaged {
        output::note(format_args!("warning: {error}; using {}", folder.display()));
    }
    let tokenizer = Tokenizer::from_file(&folder.join("tokenizer.json"))?;
    let mut model = checkpoint::load(&folder)?;
    if tokenizer.vocab_size() > model.config.vocab_size {
        return Err(Error::Checkpoint {
            path: folder,
            message: format!(
                "tokenizer.json has {} tokens, the model {}: they do not belong together",
                tokenizer.vocab_size(),
                model.config.vocab_size
            ),
        }
        .into());
    }
    check_size(&model.config, model.config.block_size, DType::F32, device)?;
    model.to_device(device)?;
    Ok((model, tokenizer, folder))
}
