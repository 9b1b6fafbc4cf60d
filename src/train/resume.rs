//! Finds where a run left off, and whether it may go on as it is told to.

use super::checkpoint::{self, read_state, recover};
use super::checkpoints::checkpoints;
use super::run_folder::RunFolder;
use super::state::TrainerState;
use crate::config::{Config, Layers, Resolved};
use crate::{Device, Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A run that goes on.
pub(super) struct Resumed {
    pub(super) folder: RunFolder,
    /// `None` if the run ended before its first checkpoint.
    pub(super) checkpoint: Option<Checkpoint>,
    /// What whoever watches should know.
    pub(super) notes: Vec<String>,
    /// `config.toml` of the run.
    pub(super) config_text: String,
}

/// A checkpoint, every file of which is as it was written.
pub(super) struct Checkpoint {
    pub(super) path: PathBuf,
    pub(super) state: TrainerState,
}

/// The configuration file in a run's folder.
///
/// # Errors
/// If `run` is no run's folder.
pub fn run_config(run: &Path) -> Result<PathBuf> {
    let wrong = |message: &str| Error::Checkpoint { path: run.to_path_buf(), message: message.into() };
    if run.join(checkpoint::STATE).exists() {
        return Err(wrong("is a checkpoint; --resume takes the folder of its run"));
    }
    let config = run.join(checkpoint::CONFIG);
    if !config.is_file() {
        return Err(wrong("is no run's folder (it has no config.toml); give one, as in --resume runs/<name>, or auto"));
    }
    Ok(config)
}

impl Resumed {
    /// Opens the run at `path`, finds its newest checkpoint that is not damaged, and checks that it may go on as
    /// `resolved` says.
    ///
    /// # Errors
    /// If it may not, if there is nothing to go on from, or if the folder cannot be written to.
    pub(super) fn open(path: &Path, resolved: &Resolved, device: &Device) -> Result<Resumed> {
        let config = run_config(path)?;
        let folder = RunFolder::open(path)?;
        recover(&path.join("checkpoints"))?;
        let mut notes = Vec::new();
        let checkpoint = newest_good(path, &mut notes)?;
        match &checkpoint {
            Some(Checkpoint { path, state }) => {
                let before = Layers::new().file(&path.join(checkpoint::CONFIG))?.build()?.config;
                notes.extend(changes(&before, resolved, path)?);
                if state.device != device.name() {
                    notes.push(format!(
                        "the run was computed on {}, it goes on on {}: its numbers may differ in the last digits from \
                         those of a run on one device",
                        state.device,
                        device.name()
                    ));
                }
                let version = env!("CARGO_PKG_VERSION");
                if state.version != version {
                    notes.push(format!("the checkpoint is of rustyflow {}, this is {version}", state.version));
                }
            }
            None => notes.push(format!("{} has no checkpoint yet: it begins with the first step", path.display())),
        }
        let config_text = fs::read_to_string(&config).map_err(|e| Error::io("read", &config, e))?;
        Ok(Resumed { folder, checkpoint, notes, config_text })
    }

    /// The text of `config.toml`: the one that is there, which knows where each value first came from, if it still holds.
    pub(super) fn config_text(&self, resolved: &Resolved) -> String {
        let there = Layers::new().toml_str("config.toml", &self.config_text).and_then(Layers::build);
        match there {
            Ok(there) if there.config == resolved.config => self.config_text.clone(),
            _ => resolved.to_toml(),
        }
    }
}

/// The newest checkpoint of a run that is not damaged; `None` if the run has none at all.
pub(super) fn newest_good(run: &Path, notes: &mut Vec<String>) -> Result<Option<Checkpoint>> {
    let mut first_error = None;
    for (step, path) in checkpoints(run).into_iter().rev() {
        match read_state(&path) {
            Ok(state) => {
                if !notes.is_empty() {
                    notes.push(format!("going on from the checkpoint before, of step {step}"));
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

/// What to tell about values that are not those of the checkpoint at `path`.
fn changes(before: &Config, resolved: &Resolved, path: &Path) -> Result<Vec<String>> {
    let mut changes = before.changes(&resolved.config);
    // A warm-up that nobody set follows from the number of steps, which is not known yet.
    changes.retain(|change| change.key != "train.warmup_steps" || !resolved.origin(change.key).is_default());
    let refused: Vec<_> = changes.iter().filter(|change| !change.is_allowed_on_resume()).collect();
    if let Some(first) = refused.first() {
        let others: Vec<&str> = refused[1..].iter().map(|change| change.key).collect();
        let others = if others.is_empty() { String::new() } else { format!(" (nor may {})", others.join(", ")) };
        return Err(Error::Config {
            place: resolved.origin(first.key).to_string(),
            key: first.key.into(),
            message: format!(
                "is {}, but {} in {}: it may not change within a run{others}; leave it out, or begin a new run without \
                 --resume",
                first.after,
                first.before,
                path.display()
            ),
        });
    }
    let tell = |change: &crate::config::Change| {
        let origin = resolved.origin(change.key);
        format!("{} changes from {} to {} ({origin})", change.key, change.before, change.after)
    };
    Ok(changes.iter().map(tell).collect())
}
