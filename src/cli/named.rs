//! What a name on the command line leads to: a run, by its folder or by its name in the folder of runs, or a model.

use crate::Error;
use crate::config::nearest;
use crate::report::is_run;
use anyhow::Result;
use std::path::{Path, PathBuf};

/// The folder of the run that a path, or a name in `dir`, means.
pub fn run_of(name: &Path, dir: &Path) -> Option<PathBuf> {
    [name.to_path_buf(), dir.join(name)].into_iter().find(|path| is_run(path))
}

/// As [`run_of`].
///
/// # Errors
/// If there is no such run.
pub fn find_run(name: &Path, dir: &Path) -> Result<PathBuf> {
    if let Some(folder) = run_of(name, dir) {
        return Ok(folder);
    }
    if let Some(path) = [name.to_path_buf(), dir.join(name)].into_iter().find(|path| path.exists()) {
        let message = "is not the folder of a run: a run has config.toml and metrics.jsonl".into();
        return Err(Error::Checkpoint { path, message }.into());
    }
    let hint = match nearest_run(name, dir) {
        Some(near) => format!("did you mean {near}?"),
        None => "`rustyflow runs list` lists the runs".into(),
    };
    Err(Error::Invalid(format!("there is no run {} in {}; {hint}", name.display(), dir.display())).into())
}

/// The run whose name a misspelt one is near to.
pub fn nearest_run(name: &Path, dir: &Path) -> Option<String> {
    let names: Vec<String> = runs_in(dir).iter().map(|path| last_part(path)).collect();
    nearest(&name.to_string_lossy(), names.iter().map(String::as_str)).map(str::to_string)
}

/// The folder of the run to resume: [`find_run`], and any other folder, of which resuming says what it lacks.
///
/// # Errors
/// If there is no such run.
pub fn run_to_resume(name: &Path, dir: &Path) -> Result<PathBuf> {
    match run_of(name, dir) {
        None if name.is_dir() => Ok(name.to_path_buf()),
        Some(folder) => Ok(folder),
        None => find_run(name, dir),
    }
}

/// A model's folder as it was given; the folder of a run by its path or its name in `dir`; else the name as it is,
/// which may be that of a fetched model.
pub fn model_or_run(name: &Path, dir: &Path) -> PathBuf {
    // A folder of that name which holds something else, such as a text, does not hide a run.
    let holds_model = name.is_file()
        || ["config.json", "model.safetensors", "adapter_config.json"].iter().any(|file| name.join(file).is_file());
    if holds_model { name.to_path_buf() } else { run_of(name, dir).unwrap_or_else(|| name.to_path_buf()) }
}

/// The folders of runs in a folder.
pub fn runs_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| is_run(path)).collect()
}

pub fn last_part(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
