//! The checkpoints of a run, and the names `last` and `best` that point to them.

use super::files::Files;
use super::layout::{checkpoint_folder, checkpoint_name, checkpoints, resolve_ref};
use super::snapshot::Snapshot;
use crate::shell_words::quoted;
use crate::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The checkpoints of a running training. The writing thread may differ from the training thread.
#[derive(Clone)]
pub struct Checkpoints {
    /// The run's folder.
    run: PathBuf,
    files: Files,
}

/// A checkpoint to write.
pub struct Request {
    pub snapshot: Snapshot,
    /// The line files, whose lines up to the snapshot must be flushed.
    pub appended: Vec<(PathBuf, fs::File)>,
    /// Whether it becomes the `best`.
    pub best: bool,
    /// Number of newest checkpoints to keep.
    pub keep_last: usize,
}

impl Checkpoints {
    pub fn of(run: &Path, files: Files) -> Checkpoints {
        Checkpoints { run: run.to_path_buf(), files }
    }

    /// Writes `checkpoints/step-N` and makes it the `last`, and the `best` if requested. Keeps only `best` and the
    /// newest `keep_last`.
    ///
    /// # Errors
    /// If a file cannot be written (previous checkpoints are unchanged), or an old checkpoint cannot be removed.
    pub fn save(&self, request: Request) -> Result<PathBuf> {
        let Request { snapshot, appended, best, keep_last } = request;
        let step = snapshot.state.step;
        let target = checkpoint_folder(&self.run, step);
        let flush = |(path, file): &(PathBuf, fs::File)| file.sync_all().map_err(|e| Error::io("write", path, e));
        let saved =
            appended.iter().try_for_each(flush).and_then(|()| snapshot.write(&self.files, &target)).and_then(|()| {
                self.set_ref("last", step)?;
                if best {
                    self.set_ref("best", step)?;
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
        let message = format!("{what}. {advice}, then resume with `rustyflow train --resume {}`", quoted(&self.run));
        Error::Checkpoint { path: self.run.clone(), message }
    }

    /// Rolls back to the checkpoint of a step, which becomes `last`; `best` is the best checkpoint at that step.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn roll_back(&self, step: usize, best: Option<usize>) -> Result<()> {
        self.set_ref("last", step)?;
        match best {
            Some(best) if checkpoint_folder(&self.run, best).is_dir() => self.set_ref("best", best),
            _ => self.files.remove(&self.run.join("best")),
        }
    }

    /// Makes the checkpoint of a step the `last` or the `best`.
    fn set_ref(&self, name: &str, step: usize) -> Result<()> {
        self.files.replace(&self.run.join(name), format!("{}\n", checkpoint_name(step)).as_bytes())
    }

    /// Removes checkpoints older than the newest `keep_last` up to `step`, except `best`, and those newer than `step`,
    /// which remain from before a rollback.
    fn prune(&self, step: usize, keep_last: usize) -> Result<()> {
        let best = resolve_ref(&self.run, "best");
        let (newer, old): (Vec<_>, Vec<_>) = checkpoints(&self.run).into_iter().partition(|(at, _)| *at > step);
        let old_count = old.len().saturating_sub(keep_last.max(1));
        let old = old.into_iter().take(old_count).filter(|(_, path)| Some(path) != best.as_ref());
        for (_, path) in old.chain(newer) {
            self.files.remove_folder(&path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pruning_keeps_the_newest_by_number_and_the_best() {
        let dir = tempfile::tempdir().unwrap();
        let run = Checkpoints::of(dir.path(), Files::default());
        for step in [999_998, 999_999, 1_000_000, 1_000_001] {
            fs::create_dir_all(checkpoint_folder(dir.path(), step)).unwrap();
        }
        run.set_ref("best", 999_998).unwrap();
        run.prune(1_000_000, 1).unwrap();
        let steps: Vec<usize> = checkpoints(dir.path()).into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [999_998, 1_000_000]);
    }
}
