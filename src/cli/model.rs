//! Finds and loads a trained model for a command.

use super::{configuration, named, output};
use crate::config::WeightDtype;
use crate::data::TextConventions;
use crate::models::LanguageModel;
use crate::train::{find_model, load_model, newest_run};
use crate::{Device, Error, Result};
use std::path::{Path, PathBuf};

/// How often a model is found anew whose folder was deleted while it was read.
const MOST_TRIES: usize = 10;

/// Reads from the folder of the model of this name. A run that trains deletes its older checkpoints: if one is deleted
/// meanwhile, the next is read.
pub fn read<T>(name: Option<&Path>, read: impl Fn(&Path) -> anyhow::Result<T>) -> anyhow::Result<(PathBuf, T)> {
    for _ in 1..MOST_TRIES {
        let folder = find(name)?;
        match read(&folder) {
            Err(_) if !folder.exists() => {}
            result => return Ok((folder, result?)),
        }
    }
    let folder = find(name)?;
    let result = read(&folder)?;
    Ok((folder, result))
}

/// As [`find_model`], of a run by its name too; without a name that of the newest run.
pub fn find(name: Option<&Path>) -> anyhow::Result<PathBuf> {
    let dir = configuration::run_dir()?;
    let path = name.map_or_else(|| newest_run(&dir), |name| Ok(named::model_or_run(name, &dir)))?;
    find_model(&path, &|text| output::note(text)).map_err(|error| {
        let near = name.filter(|name| !name.exists()).and_then(|name| named::nearest_run(name, &dir));
        match (error, near) {
            (Error::Checkpoint { path, message }, Some(near)) => {
                let message = format!("{message}; did you mean the run {near}?");
                Error::Checkpoint { path, message }.into()
            }
            (error, _) => error.into(),
        }
    })
}

/// The model in a checkpoint's folder, on `device`, with its text conventions; a note says what of them is not used.
pub fn load(dtype: WeightDtype, folder: &Path, device: &Device) -> Result<(Box<dyn LanguageModel>, TextConventions)> {
    let (model, text) = load_model(dtype, folder, device)?;
    text.note.iter().for_each(|note| output::note(format_args!("warning: {note}")));
    Ok((model, text))
}
