//! The checkpoints of a run, and the names `last` and `best` that point to them.

use super::checkpoint::{Snapshot, verify_model};
use super::files;
use super::run_folder::METRICS;
use crate::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The checkpoints of a run that is being written. Another thread may write them than the one that trains.
#[derive(Clone)]
pub(super) struct Checkpoints {
    /// The run's folder.
    run: PathBuf,
}

/// A checkpoint to be written.
pub(super) struct Request {
    pub(super) snapshot: Snapshot,
    /// `metrics.jsonl`: the disk must have the lines that the snapshot counts.
    pub(super) metrics: fs::File,
    /// Whether it becomes the `best`.
    pub(super) best: bool,
    /// How many of the newest stay.
    pub(super) keep_last: usize,
}

impl Checkpoints {
    pub(super) fn of(run: &Path) -> Checkpoints {
        Checkpoints { run: run.to_path_buf() }
    }

    /// Writes `checkpoints/step-N` and makes it the `last`, and the `best` if so told. Of the others only `best` and the
    /// newest `keep_last` stay.
    ///
    /// # Errors
    /// If a file cannot be written, with the checkpoints from before as they were; or if one that is not to stay cannot be
    /// removed.
    pub(super) fn save(&self, request: Request) -> Result<PathBuf> {
        let Request { snapshot, metrics, best, keep_last } = request;
        let step = snapshot.state.step;
        let target = checkpoint_folder(&self.run, step);
        let flushed = metrics.sync_all().map_err(|e| Error::io("write", self.run.join(METRICS), e));
        let saved = flushed.and_then(|()| snapshot.write(&target)).and_then(|()| {
            self.point("last", step)?;
            if best {
                self.point("best", step)?;
            }
            Ok(())
        });
        saved.map_err(|error| {
            let kept = match checkpoints(&self.run).last() {
                Some((step, _)) => format!("the checkpoint of step {step} is untouched"),
                None => "there is no checkpoint from before".into(),
            };
            let what = format!("the checkpoint of step {step} could not be saved: {error}; {kept}");
            self.failed(&what, "Make room or make the folder writable")
        })?;
        self.prune(step, keep_last).map_err(|error| {
            let what = format!("the checkpoint of step {step} is saved, but an old one is still there: {error}");
            self.failed(&what, "Make the folder writable")
        })?;
        Ok(target)
    }

    fn failed(&self, what: &str, advice: &str) -> Error {
        let message = format!("{what}. {advice}, then go on with `rustyflow train --resume {}`", self.run.display());
        Error::Checkpoint { path: self.run.clone(), message }
    }

    /// Goes back to the checkpoint of a step: it becomes the `last`, and the `best` is the one that was the best then.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn go_back(&self, step: usize, best: Option<usize>) -> Result<()> {
        self.point("last", step)?;
        match best {
            Some(best) if checkpoint_folder(&self.run, best).is_dir() => self.point("best", best),
            _ => files::remove(&self.run.join("best")),
        }
    }

    /// Makes the checkpoint of a step the `last` or the `best`.
    fn point(&self, pointer: &str, step: usize) -> Result<()> {
        files::replace(&self.run.join(pointer), format!("{}\n", checkpoint_name(step)).as_bytes())
    }

    /// Removes what is older than the newest `keep_last` up to `step`, other than `best`; and what is newer than `step`,
    /// which is left from before the run went back to an older checkpoint.
    fn prune(&self, step: usize, keep_last: usize) -> Result<()> {
        let best = pointed(&self.run, "best");
        let (newer, old): (Vec<_>, Vec<_>) = checkpoints(&self.run).into_iter().partition(|(at, _)| *at > step);
        let old_count = old.len().saturating_sub(keep_last.max(1));
        let old = old.into_iter().take(old_count).filter(|(_, path)| Some(path) != best.as_ref());
        for (_, path) in old.chain(newer) {
            files::remove_folder(&path)?;
        }
        Ok(())
    }
}

fn checkpoint_name(step: usize) -> String {
    format!("step-{step:06}")
}

fn checkpoint_folder(run: &Path, step: usize) -> PathBuf {
    run.join("checkpoints").join(checkpoint_name(step))
}

/// Step and folder of every checkpoint of a run, the oldest first.
pub(super) fn checkpoints(run: &Path) -> Vec<(usize, PathBuf)> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let step = |entry: &fs::DirEntry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok();
    let mut all: Vec<(usize, PathBuf)> = entries.filter_map(|entry| Some((step(&entry)?, entry.path()))).collect();
    all.sort();
    all
}

/// The checkpoint that `best` or `last` names, if there is such a folder.
fn pointed(run: &Path, pointer: &str) -> Option<PathBuf> {
    let name = fs::read_to_string(run.join(pointer)).ok()?;
    let name = name.trim();
    // A name, not a path: what a damaged or foreign file says must not lead elsewhere.
    let is_name = name.starts_with("step-") && !name.contains(['/', '\\']);
    Some(run.join("checkpoints").join(name)).filter(|path| is_name && path.is_dir())
}

/// A folder with a model.
#[derive(Debug)]
pub struct Found {
    pub folder: PathBuf,
    /// What is wrong with the checkpoints that would have been taken before it.
    pub damaged: Vec<Error>,
}

/// The folder with `model.safetensors` that `path` means: itself; of the run that it is the best checkpoint, or else
/// the last, or else the newest that is not damaged; or the one that `best` or `last` in a run's folder names.
///
/// # Errors
/// If there is no model, or none that is not damaged.
pub fn find_checkpoint(path: &Path) -> Result<Found> {
    let missing = |message: String| Error::Checkpoint { path: path.to_path_buf(), message };
    if path.join("model.safetensors").exists() {
        verify_model(path)?;
        return Ok(Found { folder: path.to_path_buf(), damaged: Vec::new() });
    }
    if let Some(pointer @ ("best" | "last")) = path.file_name().and_then(|name| name.to_str())
        && path.is_file()
    {
        let pointed = pointed(path.parent().unwrap_or(Path::new("")), pointer);
        let folder =
            pointed.ok_or_else(|| missing("names no checkpoint that is there; give the run's folder".into()))?;
        verify_model(&folder)?;
        return Ok(Found { folder, damaged: Vec::new() });
    }
    if !path.is_dir() {
        return Err(missing("is not a folder; give a run's folder or a checkpoint's, as in runs/<name>".into()));
    }
    let mut damaged = Vec::new();
    for folder in models(path) {
        match verify_model(&folder) {
            Ok(()) => return Ok(Found { folder, damaged }),
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

/// The checkpoints of a run, those to be preferred first.
pub(super) fn models(run: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = ["best", "last"].into_iter().filter_map(|p| pointed(run, p)).collect();
    for (_, path) in checkpoints(run).into_iter().rev() {
        if !folders.contains(&path) {
            folders.push(path);
        }
    }
    folders.dedup();
    // One with a manifest and without a model is damaged, and that is to be said.
    folders.retain(|folder| ["model.safetensors", "manifest.json"].iter().any(|name| folder.join(name).exists()));
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_does_not_lead_out_of_the_run() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("elsewhere")).unwrap();
        fs::write(dir.path().join("elsewhere/model.safetensors"), "").unwrap();
        let run = dir.path().join("run");
        fs::create_dir_all(run.join("checkpoints/step-")).unwrap();
        fs::write(run.join("last"), "step-/../../../elsewhere").unwrap();
        assert!(find_checkpoint(&run).is_err());
        assert!(find_checkpoint(&run.join("last")).is_err());
    }

    #[test]
    fn pruning_keeps_the_newest_by_number_and_the_best() {
        let dir = tempfile::tempdir().unwrap();
        let run = Checkpoints::of(dir.path());
        for step in [999_998, 999_999, 1_000_000, 1_000_001] {
            fs::create_dir_all(checkpoint_folder(dir.path(), step)).unwrap();
        }
        run.point("best", 999_998).unwrap();
        run.prune(1_000_000, 1).unwrap();
        let steps: Vec<usize> = checkpoints(dir.path()).into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [999_998, 1_000_000]);
    }
}
