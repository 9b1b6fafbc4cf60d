//! One checkpoint: a folder that is complete as soon as it has its name, with a manifest that tells whether it still is.
//!
//! ```text
//! step-000500/
//!   config.json model.safetensors tokenizer.json   the model, in Hugging Face's GPT-2 layout
//!   optimizer.safetensors trainer_state.json       what training needs to go on
//!   config.toml                                    the run's configuration at that step
//!   manifest.json                                  size and SHA-256 of each of these
//! ```

use super::files;
use super::manifest::Manifest;
use super::state::TrainerState;
use crate::nn::checkpoint::Weights;
use crate::optim::Moments;
use crate::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// What using a model takes.
const MODEL_FILES: [&str; 3] = ["config.json", "model.safetensors", TOKENIZER];
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
pub(super) const STATE: &str = "trainer_state.json";
pub(super) const CONFIG: &str = "config.toml";

/// Everything that a checkpoint holds, off the device: it is written on another thread while training goes on.
pub(super) struct Snapshot {
    pub(super) weights: Weights,
    pub(super) moments: Moments,
    /// `tokenizer.json`.
    pub(super) tokenizer: String,
    pub(super) state: TrainerState,
    /// `config.toml`.
    pub(super) config: String,
}

impl Snapshot {
    /// Writes it as the folder `target`, in place of one that may be there. Until all of it is on the disk the folder
    /// has another name, and the one that may be there is untouched.
    ///
    /// # Errors
    /// If a file cannot be written; nothing of it is left then.
    pub(super) fn write(self, target: &Path) -> Result<()> {
        let unfinished = beside(target, "unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        let result = self.write_files(&unfinished).and_then(|()| put_in_place(&unfinished, target));
        if result.is_err() {
            // A full disk needs the space; what cannot be removed does no harm.
            let _ = fs::remove_dir_all(&unfinished);
        }
        result
    }

    fn write_files(self, folder: &Path) -> Result<()> {
        files::create_folder(folder)?;
        let mut manifest = Manifest::default();
        let mut add = |name: &str, bytes: &[u8]| {
            manifest.add(name, bytes);
            files::write(&folder.join(name), bytes)
        };
        for (name, bytes) in self.weights.encode()? {
            add(name, &bytes)?;
        }
        add(TOKENIZER, self.tokenizer.as_bytes())?;
        add(OPTIMIZER, &self.moments.encode()?)?;
        let state = serde_json::to_string_pretty(&self.state).expect("plain values serialize");
        add(STATE, state.as_bytes())?;
        add(CONFIG, self.config.as_bytes())?;
        manifest.write(folder)?;
        files::sync_folder(folder)
    }
}

fn put_in_place(unfinished: &Path, target: &Path) -> Result<()> {
    if !target.exists() {
        return files::rename(unfinished, target);
    }
    // A folder cannot be replaced at once: see `recover` for a process that ends between these two.
    let replaced = beside(target, "replaced");
    files::rename(target, &replaced)?;
    files::rename(unfinished, target)?;
    files::remove_folder(&replaced)
}

/// Puts in order what a process left behind that was killed while it wrote one of the checkpoints in `folder`.
///
/// # Errors
/// If a name cannot be changed.
pub(super) fn recover(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((step, rest)) = name.strip_prefix('.').and_then(|name| name.rsplit_once('.')) else { continue };
        let target = folder.join(step);
        if rest == "replaced" && !target.exists() {
            files::rename(&path, &target)?;
        } else if rest == "replaced" || rest == "unfinished" {
            files::remove_folder(&path)?;
        }
    }
    Ok(())
}

/// `.step-000500.unfinished`
fn beside(target: &Path, what: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{what}"))
}

/// Checks the model's files against the manifest. A model from elsewhere has none: reading it will show what it is worth.
///
/// # Errors
/// If a file is damaged or missing.
pub(super) fn verify_model(folder: &Path) -> Result<()> {
    match Manifest::read(folder)? {
        Some(manifest) => MODEL_FILES.iter().try_for_each(|name| manifest.check(folder, name)),
        None => Ok(()),
    }
}

/// The state that a checkpoint holds, every file of which was checked against the manifest.
///
/// # Errors
/// If a file is damaged or missing, or the checkpoint is of a version that saved no state.
pub(super) fn read_state(folder: &Path) -> Result<TrainerState> {
    let wrong = |message: String| Error::Checkpoint { path: folder.to_path_buf(), message };
    let Some(manifest) = Manifest::read(folder)? else {
        return Err(wrong("cannot be resumed: it has no manifest.json, as those of older versions".into()));
    };
    manifest.check_all(folder)?;
    let path = folder.join(STATE);
    let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    serde_json::from_slice(&bytes).map_err(|e| wrong(format!("{STATE} is of another version of rustyflow: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_process_left_is_put_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, text: &str| {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("a"), text).unwrap();
        };
        // Killed while writing 3, between the two renames of 2, and before the old 1 was removed.
        make(".step-000003.unfinished", "");
        make(".step-000002.replaced", "old 2");
        make(".step-000002.unfinished", "new 2");
        make("step-000001", "new 1");
        make(".step-000001.replaced", "old 1");
        recover(dir.path()).unwrap();
        assert_eq!(folders(dir.path()), ["step-000001", "step-000002"]);
        assert_eq!(fs::read_to_string(dir.path().join("step-000001/a")).unwrap(), "new 1");
        assert_eq!(fs::read_to_string(dir.path().join("step-000002/a")).unwrap(), "old 2");
    }

    #[test]
    fn a_folder_is_replaced_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (unfinished, target) = (dir.path().join(".step-000001.unfinished"), dir.path().join("step-000001"));
        for text in ["old", "new"] {
            fs::create_dir(&unfinished).unwrap();
            fs::write(unfinished.join("a"), text).unwrap();
            put_in_place(&unfinished, &target).unwrap();
        }
        assert_eq!(folders(dir.path()), ["step-000001"]);
        assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "new");
    }
}
