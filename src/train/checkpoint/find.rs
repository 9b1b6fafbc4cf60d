//! Finds the checkpoint of a path, and the one from which a run resumes.

use super::layout::{
    ADAPTER_CONFIG, ADAPTERS, CONFIG, MANIFEST, MODEL, OPTIMIZER, STATE, TOKENIZER, checkpoints, resolve_ref,
};
use super::manifest::Manifest;
use super::state::TrainerState;
use crate::shell_words::quoted;
use crate::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The files that using a model takes.
const MODEL_FILES: [&str; 3] = ["config.json", MODEL, TOKENIZER];
/// Files of an adapter, whose base model is in another folder.
const ADAPTER_FILES: [&str; 3] = [ADAPTER_CONFIG, ADAPTERS, TOKENIZER];

/// A folder with a model.
#[derive(Debug)]
pub struct FoundCheckpoint {
    pub folder: PathBuf,
    /// Errors of the damaged checkpoints with higher preference.
    pub damaged: Vec<Error>,
}

/// The model folder of `path`: the path itself; for a run its best checkpoint, else the last, else the newest intact
/// one; for `best` or `last` in a run's folder, the checkpoint named there.
///
/// # Errors
/// If there is no model, or all are damaged.
pub fn find_checkpoint(path: &Path) -> Result<FoundCheckpoint> {
    let missing = |message: String| Error::Checkpoint { path: path.to_path_buf(), message };
    // One of Hugging Face's may be in parts, or in a form that loading it refuses.
    if [MODEL, "config.json", ADAPTER_CONFIG].iter().any(|name| path.join(name).exists()) {
        verify_model(path)?;
        return Ok(FoundCheckpoint { folder: path.to_path_buf(), damaged: Vec::new() });
    }
    if let Some(name @ ("best" | "last")) = path.file_name().and_then(|name| name.to_str())
        && path.is_file()
    {
        let folder = resolve_ref(path.parent().unwrap_or(Path::new("")), name);
        let folder =
            folder.ok_or_else(|| missing("names a checkpoint that does not exist; give the run's folder".into()))?;
        verify_model(&folder)?;
        return Ok(FoundCheckpoint { folder, damaged: Vec::new() });
    }
    if !path.is_dir() {
        return Err(missing("is not a folder; give a run's folder or a checkpoint's, as in runs/<name>".into()));
    }
    let mut damaged = Vec::new();
    for folder in models(path) {
        match verify_model(&folder) {
            Ok(()) => return Ok(FoundCheckpoint { folder, damaged }),
            Err(error) => damaged.push(error),
        }
    }
    Err(damaged.into_iter().next().unwrap_or_else(|| {
        missing(
            "holds no model: neither model.safetensors nor a run's checkpoints; train one with `rustyflow train`"
                .into(),
        )
    }))
}

/// The checkpoints of a run in the order of preference.
pub fn models(run: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = ["best", "last"].into_iter().filter_map(|name| resolve_ref(run, name)).collect();
    for (_, path) in checkpoints(run).into_iter().rev() {
        if !folders.contains(&path) {
            folders.push(path);
        }
    }
    folders.dedup();
    // One with a manifest and without a model is damaged, which must be reported.
    folders.retain(|folder| [MODEL, MANIFEST].iter().any(|name| folder.join(name).exists()));
    folders
}

/// Checks the model's files against the manifest. A model from elsewhere has none: loading it checks what can be
/// checked.
fn verify_model(folder: &Path) -> Result<()> {
    match Manifest::read(folder)? {
        Some(manifest) => {
            let files = if folder.join(ADAPTER_CONFIG).exists() { ADAPTER_FILES } else { MODEL_FILES };
            files.iter().try_for_each(|name| manifest.check(folder, name))
        }
        None => Ok(()),
    }
}

/// An intact checkpoint: all files match their hashes.
pub struct Checkpoint {
    pub path: PathBuf,
    pub state: TrainerState,
}

/// The newest intact checkpoint of a run; `None` if the run has no checkpoints. `notes` receives a message for each
/// damaged one.
pub fn newest_good(run: &Path, notes: &mut Vec<String>) -> Result<Option<Checkpoint>> {
    let mut first_error = None;
    for (step, path) in checkpoints(run).into_iter().rev() {
        match read_state(&path) {
            Ok(state) => {
                if !notes.is_empty() {
                    notes.push(format!("resuming from the previous checkpoint, of step {step}"));
                }
                return Ok(Some(Checkpoint { path, state }));
            }
            Err(error) => {
                notes.push(error.to_string());
                first_error.get_or_insert(error);
            }
        }
    }
    first_error.map_or(Ok(None), Err)
}

/// The state in a checkpoint, after every file was checked against the manifest.
///
/// # Errors
/// If a file is damaged or missing, or the checkpoint is of a version that saved no state.
fn read_state(folder: &Path) -> Result<TrainerState> {
    let wrong = |message: String| Error::Checkpoint { path: folder.to_path_buf(), message };
    let Some(manifest) = Manifest::read(folder)? else {
        return Err(wrong("cannot be resumed: it has no manifest.json, as those of older versions".into()));
    };
    // Before gigabytes are hashed.
    if !manifest.lists(OPTIMIZER) {
        return Err(wrong(format!(
            "cannot be resumed: checkpoint.optimizer was false, so it has no {OPTIMIZER}; train its model further in a \
             new run by --init {}",
            quoted(folder)
        )));
    }
    manifest.check_all(folder)?;
    let path = folder.join(STATE);
    let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    serde_json::from_slice(&bytes).map_err(|e| wrong(format!("{STATE} is of another version of rustyflow: {e}")))
}

/// The configuration file in a run's folder.
///
/// # Errors
/// If `run` is not the folder of a run.
pub fn run_config(run: &Path) -> Result<PathBuf> {
    let wrong = |message: &str| Error::Checkpoint { path: run.to_path_buf(), message: message.into() };
    if run.join(STATE).exists() {
        return Err(wrong("is a checkpoint; --resume takes the folder of its run"));
    }
    let config = run.join(CONFIG);
    if !config.is_file() {
        return Err(wrong(
            "is not the folder of a run (it has no config.toml); give one, as in --resume runs/<name>, \
                          or auto",
        ));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_does_not_lead_out_of_the_run() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("elsewhere")).unwrap();
        fs::write(dir.path().join("elsewhere/model.safetensors"), "").unwrap();
        let run = dir.path().join("run");
        fs::create_dir_all(run.join("checkpoints/step-")).unwrap();
        fs::write(run.join("last"), "step-/../../../elsewhere").unwrap();
        assert!(find_checkpoint(&run).is_err());
        assert!(find_checkpoint(&run.join("last")).is_err());
    }
}
