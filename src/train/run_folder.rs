//! The folder that a run leaves behind.
//!
//! ```text
//! runs/sample-L4-H4-E128-gpu/
//!   config.toml        every value in force, and where each came from
//!   metrics.jsonl      one line per logged step and per evaluation
//!   checkpoints/step-000500/   see checkpoint.rs
//!   best, last         the names of checkpoints
//!   samples.txt        what the model wrote at the end
//!   profile.txt        the profiling report
//!   finished           is there once all steps are done
//!   .lock              see lock.rs
//! ```

use super::checkpoint::{CONFIG, Snapshot, verify_model};
use super::files;
use super::lock::Lock;
use crate::{Error, Result};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

pub(super) const METRICS: &str = "metrics.jsonl";
const FINISHED: &str = "finished";

/// A run's folder.
pub struct RunFolder {
    path: PathBuf,
    metrics: fs::File,
    _lock: Lock,
}

impl RunFolder {
    /// Creates `dir/name`, or `dir/name-2`, `-3`, ... if there is a run of that name already: nothing is overwritten.
    ///
    /// # Errors
    /// If the folder cannot be created or written to.
    pub fn create(dir: &Path, name: &str) -> Result<RunFolder> {
        fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
        let names = std::iter::once(name.to_string()).chain((2..).map(|i| format!("{name}-{i}")));
        for name in names {
            let path = dir.join(name);
            match fs::create_dir(&path) {
                Ok(()) => return RunFolder::open(&path),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(Error::io("create", &path, e)),
            }
        }
        unreachable!("there is always a next number")
    }

    /// Opens the folder of a run to add to it.
    ///
    /// # Errors
    /// If it cannot be written to, or another process writes there.
    pub fn open(path: &Path) -> Result<RunFolder> {
        let lock = Lock::take(path)?;
        let file = path.join(METRICS);
        let metrics = OpenOptions::new().create(true).append(true).open(&file);
        let metrics = metrics.map_err(|e| Error::io("open", &file, e))?;
        Ok(RunFolder { path: path.to_path_buf(), metrics, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it: for a run that ended before it began.
    pub fn discard(self) {
        let path = self.path.clone();
        // Windows removes no file that is open.
        drop(self);
        // What cannot be removed does no harm.
        let _ = fs::remove_dir_all(path);
    }

    /// Writes a text file, whole or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        files::replace(&self.path.join(name), text.as_bytes())
    }

    /// Appends a line to `metrics.jsonl`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add_metrics(&mut self, line: &Value) -> Result<()> {
        // One write: whoever reads meanwhile sees whole lines.
        let written = self.metrics.write_all(format!("{line}\n").as_bytes());
        written.map_err(|e| Error::io("write", self.path.join(METRICS), e))
    }

    /// Waits until the disk has `metrics.jsonl`, and tells its length in bytes.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn sync_metrics(&self) -> Result<u64> {
        let length = self.metrics.sync_all().and_then(|()| self.metrics.metadata()).map(|data| data.len());
        length.map_err(|e| Error::io("write", self.path.join(METRICS), e))
    }

    /// Forgets what was added to `metrics.jsonl` beyond this length. Returns how many bytes are missing from it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn truncate_metrics(&self, length: u64) -> Result<u64> {
        let present = self.metrics.metadata().map(|data| data.len()).and_then(|present| {
            self.metrics.set_len(present.min(length))?;
            Ok(present)
        });
        let present = present.map_err(|e| Error::io("shorten", self.path.join(METRICS), e))?;
        Ok(length.saturating_sub(present))
    }

    /// Notes that all steps are done, or takes that back.
    ///
    /// # Errors
    /// If the note cannot be written or removed.
    pub(super) fn mark_finished(&self, finished: bool) -> Result<()> {
        if finished { self.write(FINISHED, "") } else { self.remove(FINISHED) }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.path.join(FINISHED).exists()
    }

    /// Goes back to the checkpoint of a step: it becomes the `last`, and the `best` is the one that was the best then.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn go_back(&self, step: usize, best: Option<usize>) -> Result<()> {
        self.point("last", step)?;
        match best {
            Some(best) if checkpoint_folder(&self.path, best).is_dir() => self.point("best", best),
            _ => self.remove("best"),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", &path, e)),
            _ => Ok(()),
        }
    }

    /// Saves a checkpoint as `checkpoints/step-N` and makes it the `last`, and the `best` if so told. Of the others only
    /// `best` and the newest `keep_last` stay.
    ///
    /// # Errors
    /// If a file cannot be written. The checkpoints from before are then as they were.
    pub(super) fn save_checkpoint(&self, snapshot: Snapshot, best: bool, keep_last: usize) -> Result<PathBuf> {
        let step = snapshot.state.step;
        let target = checkpoint_folder(&self.path, step);
        let saved = snapshot.write(&target).and_then(|()| {
            self.point("last", step)?;
            if best {
                self.point("best", step)?;
            }
            self.prune(step, keep_last)
        });
        match saved {
            Ok(()) => Ok(target),
            Err(error) => Err(self.explain(error, step)),
        }
    }

    /// Makes the checkpoint of a step the `last` or the `best`.
    fn point(&self, pointer: &str, step: usize) -> Result<()> {
        self.write(pointer, &format!("{}\n", checkpoint_name(step)))
    }

    /// What to do about a checkpoint that could not be saved.
    fn explain(&self, error: Error, step: usize) -> Error {
        let kept = match checkpoints(&self.path).last() {
            Some((step, _)) => format!("the checkpoint of step {step} is untouched"),
            None => "there is no checkpoint from before".into(),
        };
        let message = format!(
            "the checkpoint of step {step} could not be saved: {error}; {kept}. Make room or make the folder writable, \
             then go on with `rustyflow train --resume {}`",
            self.path.display()
        );
        Error::Checkpoint { path: self.path.clone(), message }
    }

    /// Removes what is older than the newest `keep_last` up to `step`, other than `best`; and what is newer than `step`,
    /// which is left from before the run went back to an older checkpoint.
    fn prune(&self, step: usize, keep_last: usize) -> Result<()> {
        let best = self.pointed("best");
        let (newer, old): (Vec<_>, Vec<_>) = checkpoints(&self.path).into_iter().partition(|(at, _)| *at > step);
        let old_count = old.len().saturating_sub(keep_last.max(1));
        let old = old.into_iter().take(old_count).filter(|(_, path)| Some(path) != best.as_ref());
        for (_, path) in old.chain(newer) {
            fs::remove_dir_all(&path).map_err(|e| Error::io("remove", &path, e))?;
        }
        Ok(())
    }

    fn pointed(&self, pointer: &str) -> Option<PathBuf> {
        pointed(&self.path, pointer)
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

/// The folder with `model.safetensors` that `path` means: itself; or of the run that it is the best checkpoint, or else
/// the last, or else the newest that is not damaged.
///
/// # Errors
/// If there is no model, or none that is not damaged.
pub fn find_checkpoint(path: &Path) -> Result<Found> {
    let missing = |message: String| Error::Checkpoint { path: path.to_path_buf(), message };
    if path.join("model.safetensors").exists() {
        verify_model(path)?;
        return Ok(Found { folder: path.to_path_buf(), damaged: Vec::new() });
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
fn models(run: &Path) -> Vec<PathBuf> {
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

/// The run in `dir` that was changed last.
///
/// # Errors
/// If there is none.
pub fn newest_run(dir: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let runs = entries.filter(|e| !models(&e.path()).is_empty());
    runs.max_by_key(|e| fs::metadata(e.path().join("last")).and_then(|m| m.modified()).ok())
        .map(|e| e.path())
        .ok_or_else(|| Error::Checkpoint {
            path: dir.to_path_buf(),
            message: "holds no finished run; train one with `rustyflow train`, or name a model with --model".into(),
        })
}

/// The run in `dir` to go on with: of those with steps left to do, the one that was begun or saved last.
///
/// # Errors
/// If there is none.
pub fn newest_unfinished_run(dir: &Path) -> Result<PathBuf> {
    let changed = |path: &Path| {
        let times = ["last", CONFIG].iter().filter_map(|name| fs::metadata(path.join(name)).ok()?.modified().ok());
        times.max()
    };
    // A run of an older version cannot be resumed; that it holds a checkpoint without a manifest tells.
    let can_be_resumed = |path: &Path| {
        path.join(CONFIG).is_file()
            && !path.join(FINISHED).exists()
            && checkpoints(path).last().is_none_or(|(_, folder)| folder.join("manifest.json").exists())
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| can_be_resumed(path)).max_by_key(|path| changed(path)).ok_or_else(|| Error::Checkpoint {
        path: dir.to_path_buf(),
        message: "holds no unfinished run; begin one with `rustyflow train`, or name a run with --resume".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_of_the_same_name_gets_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunFolder::create(dir.path(), "a").unwrap();
        let second = RunFolder::create(dir.path(), "a").unwrap();
        assert_eq!(first.path(), dir.path().join("a"));
        assert_eq!(second.path(), dir.path().join("a-2"));
    }

    #[test]
    fn a_pointer_does_not_lead_out_of_the_run() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("elsewhere")).unwrap();
        fs::write(dir.path().join("elsewhere/model.safetensors"), "").unwrap();
        let run = dir.path().join("run");
        fs::create_dir_all(run.join("checkpoints/step-")).unwrap();
        fs::write(run.join("last"), "step-/../../../elsewhere").unwrap();
        assert!(find_checkpoint(&run).is_err());
    }

    #[test]
    fn pruning_keeps_the_newest_by_number_and_the_best() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFolder::create(dir.path(), "a").unwrap();
        for step in [999_998, 999_999, 1_000_000, 1_000_001] {
            fs::create_dir_all(checkpoint_folder(run.path(), step)).unwrap();
        }
        run.point("best", 999_998).unwrap();
        run.prune(1_000_000, 1).unwrap();
        let steps: Vec<usize> = checkpoints(run.path()).into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [999_998, 1_000_000]);
    }
}
