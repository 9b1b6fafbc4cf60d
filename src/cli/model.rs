//! Finds and loads a trained model for a command.

use super::output;
use crate::config::WeightDtype;
use crate::data::Tokenizer;
use crate::models::LanguageModel;
use crate::train::{find_model, load_model, newest_run};
use crate::{Device, Result};
use std::path::{Path, PathBuf};

/// As [`find_model`]; without a path that of the newest run.
pub fn find(path: Option<&Path>) -> Result<PathBuf> {
    let path = path.map_or_else(|| newest_run(Path::new("runs")), |path| Ok(path.to_path_buf()))?;
    find_model(&path, &|text| output::note(text))
}

/// The model in a checkpoint's folder, on `device`.
pub fn load(folder: &Path, device: &Device) -> Result<(Box<dyn LanguageModel>, Tokenizer)> {
    load_model(WeightDtype::F32, folder, device)
}
