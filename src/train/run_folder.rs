//! The folder that a run leaves behind.
//!
//! ```text
//! runs/sample-L4-H4-E128-gpu/
//!   config.toml        every value in force, and where each came from
//!   metrics.jsonl      one line per logged step and per evaluation
//!   checkpoints/step-000500/   config.json model.safetensors tokenizer.json (Hugging Face GPT-2 layout)
//!   best, last         the names of checkpoints
//!   samples.txt        what the model wrote at the end
//!   profile.txt        the profiling report
//! ```

use crate::data::Tokenizer;
use crate::nn::{Gpt, checkpoint};
use crate::{Error, Result};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A run's folder.
pub struct RunFolder {
    path: PathBuf,
    metrics: fs::File,
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
                Ok(()) => {
                    let file = path.join("metrics.jsonl");
                    let metrics = fs::File::create(&file).map_err(|e| Error::io("create", &file, e))?;
                    return Ok(RunFolder { path, metrics });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(Error::io("create", &path, e)),
            }
        }
        unreachable!("there is always a next number")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it: for a run that ended before it began.
    pub fn discard(self) {
        // What cannot be removed does no harm.
        let _ = fs::remove_dir_all(&self.path);
    }

    /// Writes a text file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        fs::write(&path, text).map_err(|e| Error::io("write", &path, e))
    }

    /// Appends a line to `metrics.jsonl`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add_metrics(&mut self, line: &Value) -> Result<()> {
        writeln!(self.metrics, "{line}").map_err(|e| Error::io("write", self.path.join("metrics.jsonl"), e))
    }

    /// Saves model and tokenizer as `checkpoints/step-N` and makes that the `last`, and the `best` if so told.
    /// Of the others only `best` and the newest `keep_last` stay.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save_checkpoint(
        &self,
        step: usize,
        model: &mut Gpt,
        tokenizer: &Tokenizer,
        best: bool,
        keep_last: usize,
    ) -> Result<PathBuf> {
        let name = format!("step-{step:06}");
        let checkpoints = self.path.join("checkpoints");
        let target = checkpoints.join(&name);
        if !target.exists() {
            // Under another name first: a folder called step-N is always complete.
            let unfinished = checkpoints.join(format!(".{name}.unfinished"));
            let _ = fs::remove_dir_all(&unfinished);
            fs::create_dir_all(&unfinished).map_err(|e| Error::io("create", &unfinished, e))?;
            checkpoint::save(model, &unfinished)?;
            tokenizer.save(&unfinished.join("tokenizer.json"))?;
            fs::rename(&unfinished, &target).map_err(|e| Error::io("rename", &unfinished, e))?;
        }
        self.write("last", &format!("{name}\n"))?;
        if best {
            self.write("best", &format!("{name}\n"))?;
        }
        self.prune(keep_last)?;
        Ok(target)
    }

    fn prune(&self, keep_last: usize) -> Result<()> {
        let best = fs::read_to_string(self.path.join("best")).unwrap_or_default();
        let checkpoints = self.path.join("checkpoints");
        let entries = fs::read_dir(&checkpoints).map_err(|e| Error::io("read", &checkpoints, e))?;
        let mut names: Vec<String> = entries
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("step-"))
            .collect();
        names.sort();
        let old = names.len().saturating_sub(keep_last.max(1));
        for name in names[..old].iter().filter(|name| *name != best.trim()) {
            let path = checkpoints.join(name);
            fs::remove_dir_all(&path).map_err(|e| Error::io("remove", &path, e))?;
        }
        Ok(())
    }
}

/// The folder with `model.safetensors` that `path` means: itself, or the best checkpoint of the run that it is, or else
/// the last.
///
/// # Errors
/// If there is no model.
pub fn find_checkpoint(path: &Path) -> Result<PathBuf> {
    let missing = |message: String| Error::Checkpoint { path: path.to_path_buf(), message };
    if path.join("model.safetensors").exists() {
        return Ok(path.to_path_buf());
    }
    if !path.is_dir() {
        return Err(missing("is not a folder; give a run's folder or a checkpoint's, as in runs/<name>".into()));
    }
    for pointer in ["best", "last"] {
        let Ok(name) = fs::read_to_string(path.join(pointer)) else { continue };
        let name = name.trim();
        // A name, not a path: what a damaged or foreign file says must not lead elsewhere.
        if name.starts_with("step-") && !name.contains(['/', '\\']) {
            let checkpoint = path.join("checkpoints").join(name);
            if checkpoint.join("model.safetensors").exists() {
                return Ok(checkpoint);
            }
        }
    }
    Err(missing(
        "holds no model: neither model.safetensors nor a run's checkpoints; train one with `rustyflow train`".into(),
    ))
}

/// The run in `dir` that was changed last.
///
/// # Errors
/// If there is none.
pub fn newest_run(dir: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let runs = entries.filter(|e| find_checkpoint(&e.path()).is_ok());
    runs.max_by_key(|e| fs::metadata(e.path().join("last")).and_then(|m| m.modified()).ok())
        .map(|e| e.path())
        .ok_or_else(|| Error::Checkpoint {
            path: dir.to_path_buf(),
            message: "holds no finished run; train one with `rustyflow train`, or name a model with --model".into(),
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
        fs::create_dir_all(run.join("checkpoints")).unwrap();
        fs::write(run.join("last"), "step-/../../../elsewhere").unwrap();
        assert!(find_checkpoint(&run).is_err());
    }
}
