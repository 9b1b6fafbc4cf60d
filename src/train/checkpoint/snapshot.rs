//! The contents of a checkpoint, and writing them to a folder.

use super::files::Files;
use super::layout::{CARRIED, CONFIG, OPTIMIZER, STATE, checkpoints_folder};
use super::manifest::{Digest, Manifest};
use super::state::TrainerState;
use crate::Result;
use crate::models::Weights;
use crate::models::hf::Encoded;
use crate::optim::Moments;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

/// The contents of a checkpoint on the host, written on another thread while training continues.
pub struct Snapshot {
    pub weights: Weights,
    /// Of the optimizer; `None` if the checkpoint is not to resume from.
    pub moments: Option<Moments>,
    /// The contents of `recurrent_state.safetensors`, for recurrent models.
    pub carried: Option<Vec<u8>>,
    /// The names and texts of the tokenizer's files, and of others that transformers reads.
    pub pretrained: Vec<(&'static str, String)>,
    pub state: TrainerState,
    /// `config.toml`.
    pub config: String,
}

impl Snapshot {
    /// Writes it as the folder `target`, in place of one that may be there. Until all of it is on the disk the folder
    /// has another name, and the one that may be there is untouched.
    ///
    /// # Errors
    /// If a file cannot be written; nothing of it is left then.
    pub(super) fn write(self, files: &Files, target: &Path) -> Result<()> {
        let unfinished = beside(target, "unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        let result = self.write_files(files, &unfinished).and_then(|()| put_in_place(files, &unfinished, target));
        if result.is_err() {
            // A full disk needs the space; what cannot be removed does no harm.
            let _ = fs::remove_dir_all(&unfinished);
        }
        result
    }

    fn write_files(self, files: &Files, folder: &Path) -> Result<()> {
        files.create_folder(folder)?;
        let mut manifest = Manifest::default();
        let Encoded { config, weights } = self.weights.encode()?;
        let moments = self.moments.as_ref().map(Moments::views).transpose()?;
        let tensors = |name: &str, tensors, metadata| {
            let mut digest = Digest::default();
            files.write_tensors(&folder.join(name), tensors, metadata, |bytes| digest.update(bytes)).map(|()| digest)
        };
        // The two that are large at a time.
        let (weights_name, weights) = weights;
        let (of_weights, of_moments) = thread::scope(|scope| {
            let weights = scope.spawn(|| tensors(weights_name, weights, Some(Encoded::metadata())));
            let of_moments = moments.map(|moments| tensors(OPTIMIZER, moments, None));
            (weights.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), of_moments)
        });
        manifest.add(weights_name, of_weights?);
        if let Some(of_moments) = of_moments {
            manifest.add(OPTIMIZER, of_moments?);
        }
        let mut add = |name: &str, bytes: &[u8]| {
            manifest.add(name, Digest::of(bytes));
            files.write(&folder.join(name), bytes)
        };
        add(config.0, config.1.as_bytes())?;
        for (name, text) in &self.pretrained {
            add(name, text.as_bytes())?;
        }
        self.carried.iter().try_for_each(|bytes| add(CARRIED, bytes))?;
        let state = serde_json::to_string_pretty(&self.state).expect("plain values serialize");
        add(STATE, state.as_bytes())?;
        add(CONFIG, self.config.as_bytes())?;
        manifest.write(files, folder)?;
        files.sync_folder(folder)
    }
}

/// Renames a complete folder to its final name, replacing an existing one.
///
/// # Errors
/// If a folder cannot be renamed.
pub fn put_in_place(files: &Files, unfinished: &Path, target: &Path) -> Result<()> {
    if !target.exists() {
        return files.rename(unfinished, target);
    }
    // A folder cannot be replaced at once: see `recover` for a process that ends between these two.
    let replaced = beside(target, "replaced");
    files.rename(target, &replaced)?;
    files.rename(unfinished, target)?;
    files.remove_folder(&replaced)
}

/// Completes or removes the unfinished folders of a killed process in a run.
///
/// # Errors
/// If a folder cannot be renamed.
pub fn recover(files: &Files, run: &Path) -> Result<()> {
    files.remove_unfinished(run)?;
    let folder = &checkpoints_folder(run);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((step, rest)) = name.strip_prefix('.').and_then(|name| name.rsplit_once('.')) else { continue };
        let target = folder.join(step);
        if rest == "replaced" && !target.exists() {
            files.rename(&path, &target)?;
        } else if rest == "replaced" || rest == "unfinished" {
            files.remove_folder(&path)?;
        }
    }
    Ok(())
}

/// `.step-000500.unfinished`
pub fn beside(target: &Path, what: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{what}"))
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
        let checkpoints = checkpoints_folder(dir.path());
        let make = |name: &str, text: &str| {
            fs::create_dir_all(checkpoints.join(name)).unwrap();
            fs::write(checkpoints.join(name).join("a"), text).unwrap();
        };
        // Killed while writing 3, between the two renames of 2, and before the old 1 was removed.
        make(".step-000003.unfinished", "");
        make(".step-000002.replaced", "old 2");
        make(".step-000002.unfinished", "new 2");
        make("step-000001", "new 1");
        make(".step-000001.replaced", "old 1");
        recover(&Files::default(), dir.path()).unwrap();
        assert_eq!(folders(&checkpoints), ["step-000001", "step-000002"]);
        assert_eq!(fs::read_to_string(checkpoints.join("step-000001/a")).unwrap(), "new 1");
        assert_eq!(fs::read_to_string(checkpoints.join("step-000002/a")).unwrap(), "old 2");
    }

    #[test]
    fn a_folder_is_replaced_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (unfinished, target) = (dir.path().join(".step-000001.unfinished"), dir.path().join("step-000001"));
        for text in ["old", "new"] {
            fs::create_dir(&unfinished).unwrap();
            fs::write(unfinished.join("a"), text).unwrap();
            put_in_place(&Files::default(), &unfinished, &target).unwrap();
        }
        assert_eq!(folders(dir.path()), ["step-000001"]);
        assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "new");
    }
}
