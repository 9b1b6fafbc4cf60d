//! The folder of a run.
//!
//! ```text
//! runs/sample-L4-H4-E128-gpu/
//!   config.toml        every value in force, and where each came from
//!   run.json           what was known before the first step, and what the run came to
//!   metrics.jsonl      one line per logged step and per evaluation
//!   metrics.csv, tensorboard/  the same numbers in other forms, if they are asked for: see sinks/mod.rs
//!   samples.jsonl      what the model wrote after each evaluation
//!   checkpoints/step-000500/   see checkpoint/mod.rs
//!   best, last         the names of checkpoints
//!   samples.txt        what the model wrote at the end
//!   profile.txt        the profiling report; profile.json is the same for machines
//!   report.html        all of this as a page: see crate::report
//!   trace.pftrace      when everything ran, if it is asked for: see trace.rs
//!   finished           is there once all steps are done
//!   .lock              see lock.rs
//! ```

use super::line_files::LineFiles;
use super::lock::Lock;
use crate::report::is_run;
use crate::train::checkpoint::{CONFIG, Checkpoints, FINISHED, Files, MANIFEST, checkpoints, models};
use crate::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A run's folder.
pub struct RunFolder {
    path: PathBuf,
    lines: LineFiles,
    files: Files,
    _lock: Lock,
}

impl RunFolder {
    /// Creates `dir/name`, or `dir/name-2`, `-3`, ... if that run exists: nothing is overwritten.
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
        let lines = LineFiles::open(path)?;
        Ok(RunFolder { path: path.to_path_buf(), lines, files: Files::default(), _lock: lock })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its checkpoints.
    pub(in crate::train) fn checkpoints(&self) -> Checkpoints {
        Checkpoints::of(&self.path, self.files.clone())
    }

    /// Removes the folder of a run that failed to start.
    pub fn discard(self) {
        let path = self.path.clone();
        // Windows removes no file that is open.
        drop(self);
        // What cannot be removed does no harm.
        let _ = fs::remove_dir_all(path);
    }

    /// Writes a text file atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        self.files.replace(&self.path.join(name), text.as_bytes())
    }

    /// Its files that grow by lines.
    pub(in crate::train) fn lines(&mut self) -> &mut LineFiles {
        &mut self.lines
    }

    /// Notes that all steps are done, or takes that back.
    ///
    /// # Errors
    /// If the note cannot be written or removed.
    pub(in crate::train) fn mark_finished(&self, finished: bool) -> Result<()> {
        if finished { self.write(FINISHED, "") } else { self.files.remove(&self.path.join(FINISHED)) }
    }

    pub(in crate::train) fn is_finished(&self) -> bool {
        self.path.join(FINISHED).exists()
    }
}

/// Removes a run with its whole folder; returns the freed bytes.
///
/// # Errors
/// If it is not the folder of a run, a process writes to it, or it cannot be removed.
pub fn remove_run(path: &Path) -> Result<u64> {
    if path.is_symlink() || !is_run(path) {
        let message = "is not the folder of a run, which has config.toml and metrics.jsonl: nothing is removed".into();
        return Err(Error::Checkpoint { path: path.to_path_buf(), message });
    }
    let lock = Lock::take(path)?;
    let bytes = bytes_in(path);
    if cfg!(windows) {
        // It removes no file that is open.
        drop(lock);
    }
    fs::remove_dir_all(path).map_err(|e| Error::io("remove", path, e))?;
    Ok(bytes)
}

/// Of all files in a folder and those below it.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_in(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

/// The most recently changed run in `dir`.
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

/// The run in `dir` to resume: the most recently started or saved one with remaining steps.
///
/// # Errors
/// If there is none.
pub fn newest_unfinished_run(dir: &Path) -> Result<PathBuf> {
    let changed = |path: &Path| {
        let times = ["last", CONFIG].iter().filter_map(|name| fs::metadata(path.join(name)).ok()?.modified().ok());
        times.max()
    };
    // A checkpoint without a manifest is of an older version, which cannot be resumed.
    let can_be_resumed = |path: &Path| {
        path.join(CONFIG).is_file()
            && !path.join(FINISHED).exists()
            && checkpoints(path).last().is_none_or(|(_, folder)| folder.join(MANIFEST).exists())
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| can_be_resumed(path)).max_by_key(|path| changed(path)).ok_or_else(|| Error::Checkpoint {
        path: dir.to_path_buf(),
        message: "holds no unfinished run; start one with `rustyflow train`, or name a run with --resume".into(),
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
}
