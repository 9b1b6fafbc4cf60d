//! Finds and loads a trained model for a command.

use super::output;
use crate::config::WeightDtype;
use crate::data::TextConventions;
use crate::models::LanguageModel;
use crate::train::{find_model, load_model, newest_run};
use crate::{Device, Result};
use std::path::{Path, PathBuf};

/// As [`find_model`]; without a path that of the newest run.
pub fn find(path: Option<&Path>) -> Result<PathBuf> {
    let path = path.map_or_else(|| newest_run(Path::new("runs")), |path| Ok(path.to_path_buf()))?;
    find_model(&path, &|text| output::note(text))
}

/// The model in a checkpoint's folder, on `device`, with its text conventions; a note says what of them is not used.
pub fn load(dtype: WeightDtype, folder: &Path, device: &Device) -> Result<(Box<dyn LanguageModel>, TextConventions)> {
    let (model, text) = load_model(dtype, folder, device)?;
    text.note.iter().for_each(|note| output::note(format_args!("warning: {note}")));
    Ok((model, text))
}
