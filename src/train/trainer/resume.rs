//! Finds the checkpoint to resume from, and checks that the run may continue with this configuration.

use crate::config::{Config, DeviceBatch, Layers, Resolved};
use crate::optim::{Optimizer, ParameterArena, SavedMoments};
use crate::train::checkpoint::{CONFIG, Checkpoint, Files, OPTIMIZER, newest_good, recover, run_config};
use crate::train::run::folder::RunFolder;
use crate::train::step::ranks::Place;
use crate::{Error, Result};
use std::fs;
use std::path::Path;

/// A run that continues.
pub(in crate::train) struct Resumed {
    pub(in crate::train) folder: RunFolder,
    /// `None` if the run ended before its first checkpoint.
    pub(in crate::train) checkpoint: Option<Checkpoint>,
    /// Messages for the user.
    pub(in crate::train) notes: Vec<String>,
    /// `config.toml` of the run.
    pub(in crate::train) config_text: String,
}

const BATCH_SIZE: &str = "train.batch_size";

impl Resumed {
    /// Opens the run at `path`, finds its newest checkpoint that is not damaged, and checks that it may continue as
    /// `resolved` says. What was measured of so many ranks stays.
    ///
    /// # Errors
    /// If it may not, if all its checkpoints are damaged, or if the folder cannot be written to.
    pub(in crate::train) fn open(path: &Path, resolved: &mut Resolved, device: &str, ranks: usize) -> Result<Resumed> {
        let config = run_config(path)?;
        let folder = RunFolder::open(path)?;
        recover(&Files::default(), path)?;
        let mut notes = Vec::new();
        let checkpoint = newest_good(path, &mut notes)?;
        match &checkpoint {
            Some(Checkpoint { path, state }) => {
                let before = Layers::new().file(&path.join(CONFIG))?.build()?.config;
                if let DeviceBatch::Parts(parts) = &before.train.device_batch
                    && parts.len() == ranks
                {
                    resolved.resolve_device_batch(parts.clone(), "as the run began");
                }
                if resolved.is_auto(BATCH_SIZE) {
                    resolved.settle(BATCH_SIZE, "as the run began", |config| {
                        config.train.batch_size = before.train.batch_size;
                    });
                }
                notes.extend(changes(&before, resolved, path)?);
                if state.device != device {
                    notes.push(format!(
                        "the run was computed on {} and continues on {}: its numbers may differ in the last digits \
                         from those of a run on one device",
                        state.device, device
                    ));
                }
                let version = env!("CARGO_PKG_VERSION");
                if state.version != version {
                    notes.push(format!("the checkpoint is of rustyflow {}, this is {version}", state.version));
                }
            }
            None => notes.push(format!("{} has no checkpoint yet: it starts with the first step", path.display())),
        }
        let config_text = fs::read_to_string(&config).map_err(|e| Error::io("read", &config, e))?;
        Ok(Resumed { folder, checkpoint, notes, config_text })
    }

    /// The text of `config.toml`: the one that is there, which knows where each value first came from, if it still
    /// holds.
    pub(in crate::train) fn config_text(&self, resolved: &Resolved) -> String {
        let there = Layers::new().toml_str("config.toml", &self.config_text).and_then(Layers::build);
        match there {
            Ok(there) if there.config == resolved.config => self.config_text.clone(),
            _ => resolved.to_toml(),
        }
    }
}

/// Takes up where the optimizer was that the rank at this place had at a checkpoint. Gives how many ranks had moments
/// of their own.
///
/// # Errors
/// If it has not exactly the moments that these parameters and this rule have.
pub(in crate::train) fn restore(
    optimizer: &mut Optimizer,
    parameters: &ParameterArena,
    checkpoint: &Checkpoint,
    Place { rank, ranks }: Place,
) -> Result<usize> {
    let path = checkpoint.path.join(OPTIMIZER);
    let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let saved = SavedMoments::new(&path, &bytes)?;
    optimizer.restore(parameters, &saved, checkpoint.state.step as u64, rank, ranks)?;
    Ok(saved.ranks())
}

/// Messages about values that are not those of the checkpoint at `path`.
fn changes(before: &Config, resolved: &Resolved, path: &Path) -> Result<Vec<String>> {
    let mut changes = before.changes(&resolved.config)?;
    // What nobody set and follows from the number of steps, which is not known yet.
    let follows = ["train.warmup_steps", "train.eval_every"];
    changes.retain(|change| !follows.contains(&change.key) || !resolved.origin(change.key).is_default());
    // Nor is one told that only follows from another.
    if changes.iter().any(|change| change.key == "model.dropout") {
        changes.retain(|change| change.key != "model.embd_dropout" || !resolved.origin(change.key).is_default());
    }
    let refused: Vec<_> = changes.iter().filter(|change| !change.is_allowed_on_resume()).collect();
    if let Some(first) = refused.first() {
        let others: Vec<&str> = refused[1..].iter().map(|change| change.key).collect();
        let others = if others.is_empty() { String::new() } else { format!(" (nor may {})", others.join(", ")) };
        return Err(Error::Config {
            place: resolved.origin(first.key).to_string(),
            key: first.key.into(),
            message: format!(
                "is {}, but {} in {}: it must not change on resume{others}; leave it out, or start a new run without \
                 --resume",
                first.after,
                first.before,
                path.display()
            ),
        });
    }
    let message = |change: &crate::config::Change| {
        let origin = resolved.origin(change.key);
        format!("{} changes from {} to {} ({origin})", change.key, change.before, change.after)
    };
    Ok(changes.iter().map(message).collect())
}
