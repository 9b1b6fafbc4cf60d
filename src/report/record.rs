//! A run's folder, read into memory.

use super::metrics::Metrics;
use crate::units;
use crate::{Error, Result};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Display;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.toml";
const METRICS: &str = "metrics.jsonl";

/// Whether a folder is the folder of a run.
pub fn is_run(folder: &Path) -> bool {
    [CONFIG, METRICS].iter().all(|name| folder.join(name).is_file())
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    /// All steps are done.
    Finished,
    /// It was stopped, or its process ended.
    Interrupted,
    /// An error ended it.
    Failed,
}

impl Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            State::Running => "running",
            State::Finished => "finished",
            State::Interrupted => "interrupted",
            State::Failed => "failed",
        })
    }
}

/// A sample after an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    pub step: u64,
    pub text: String,
}

/// The contents of a run's folder, without checkpoints.
#[derive(Debug, Clone)]
pub struct RunRecord {
    pub folder: PathBuf,
    /// The last part of the folder's path.
    pub name: String,
    pub state: State,
    /// The text of `config.toml`, and its values: none if it cannot be parsed.
    pub config_text: String,
    pub config: toml::Table,
    pub metrics: Metrics,
    /// `run.json`; null if there is none.
    pub start: Value,
    /// `profile.json`; null if there is none.
    pub profile: Value,
    /// `profile.txt`
    pub profile_text: Option<String>,
    pub samples: Vec<Sample>,
    /// `samples.txt`
    pub last_sample: Option<String>,
    /// Files that could not be read, and problems reported by the run.
    pub notes: Vec<String>,
}

impl RunRecord {
    /// Reads a run, assuming that no process writes to it; the caller sets the `state` of a running one.
    ///
    /// # Errors
    /// If it is not the folder of a run, or its metrics cannot be read.
    pub fn read(folder: &Path) -> Result<RunRecord> {
        if !is_run(folder) {
            let message = format!("is not the folder of a run: it lacks {CONFIG} or {METRICS}");
            return Err(Error::Checkpoint { path: folder.to_path_buf(), message });
        }
        let mut files = Reader { folder, notes: Vec::new() };
        let config_text = files.text(CONFIG).unwrap_or_default();
        let config = config_text.parse().unwrap_or_else(|error| files.damaged(CONFIG, error));
        let path = folder.join(METRICS);
        let metrics = File::open(&path).and_then(Metrics::read).map_err(|e| Error::io("read", &path, e))?;
        files.damaged_lines(METRICS, metrics.damaged_lines);
        let start = files.json("run.json");
        files.notes.extend(start["end"]["overfitting"].as_str().map(str::to_string));
        let state = match folder.join("finished").exists() {
            true => State::Finished,
            false if start["error"].is_string() => State::Failed,
            false => State::Interrupted,
        };
        let (profile, profile_text) = (files.json("profile.json"), files.text("profile.txt"));
        let (samples, last_sample) = (files.samples("samples.jsonl"), files.text("samples.txt"));
        Ok(RunRecord {
            folder: folder.to_path_buf(),
            name: name_of(folder),
            state,
            config_text,
            config,
            metrics,
            start,
            profile,
            profile_text,
            samples,
            last_sample,
            notes: files.notes,
        })
    }

    /// Every configuration key with its value as TOML, real numbers with nine digits.
    pub fn config_values(&self) -> impl Iterator<Item = (String, String)> {
        let of_section = |(section, keys): (&String, &toml::Value)| {
            let keys = keys.as_table().cloned().unwrap_or_default();
            let section = section.clone();
            keys.into_iter().map(move |(key, value)| (format!("{section}.{key}"), written(&value)))
        };
        self.config.iter().flat_map(of_section).collect::<Vec<_>>().into_iter()
    }

    /// Whether `config.toml` marks a key as default.
    pub fn is_default(&self, key: &str) -> bool {
        let mut section = "";
        self.config_text.lines().any(|line| {
            section = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(section);
            let is_key = || key.strip_prefix(section)?.strip_prefix('.')?.eq(line.split_once(" =")?.0).then_some(());
            is_key().is_some() && line.rsplit_once("  # ").is_some_and(|(_, origin)| origin.starts_with("default"))
        })
    }

    /// Average tokens per update; NaN if unknown.
    pub fn tokens_per_step(&self) -> f64 {
        if let Some(last) = self.metrics.steps.iter().rev().find(|point| point.tokens > 0.0 && point.step > 0) {
            return last.tokens / last.step as f64;
        }
        let of_config = |section: &str, key: &str| self.config.get(section)?.get(key)?.as_integer();
        let product = || {
            let factors = [("train", "batch_size"), ("train", "grad_accum_steps"), ("model", "block_size")];
            factors.iter().try_fold(1.0, |product, (section, key)| Some(product * of_config(section, key)? as f64))
        };
        self.start["start"]["tokens_per_step"].as_f64().or_else(product).unwrap_or(f64::NAN)
    }
}

/// The value as TOML; 3e-4 instead of the 3.0000000000000003e-4 of a division.
pub(crate) fn written(value: &toml::Value) -> String {
    value.as_float().map_or_else(|| value.to_string(), |x| units::toml_float(units::decimal(x)))
}

/// The last part of a folder's path, also of `.`.
fn name_of(folder: &Path) -> String {
    let whole = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
    whole.file_name().map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Reads files that may be missing, and collects notes on problems.
struct Reader<'a> {
    folder: &'a Path,
    notes: Vec<String>,
}

impl Reader<'_> {
    fn damaged<T: Default>(&mut self, name: &str, why: impl Display) -> T {
        let why = why.to_string();
        self.notes.push(format!("{name} cannot be read: {}", why.lines().next().unwrap_or_default()));
        T::default()
    }

    fn damaged_lines(&mut self, name: &str, count: usize) {
        if count > 0 {
            self.notes
                .push(format!("{name} has {count} line{} that cannot be read", if count == 1 { "" } else { "s" }));
        }
    }

    fn text(&mut self, name: &str) -> Option<String> {
        match fs::read(self.folder.join(name)) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => self.damaged(name, e),
        }
    }

    fn json(&mut self, name: &str) -> Value {
        let Some(text) = self.text(name) else { return Value::Null };
        serde_json::from_str(&text).unwrap_or_else(|error| self.damaged(name, error))
    }

    /// One sample per step; after a rollback, later ones replace earlier ones.
    fn samples(&mut self, name: &str) -> Vec<Sample> {
        let mut samples: Vec<Sample> = Vec::new();
        let text = self.text(name).unwrap_or_default();
        let mut damaged = 0;
        for line in text.split_inclusive('\n') {
            let read = || {
                let line: Value = serde_json::from_str(line).ok()?;
                Some(Sample { step: line.get("step")?.as_u64()?, text: line.get("text")?.as_str()?.to_string() })
            };
            match read() {
                Some(sample) => {
                    samples.truncate(samples.partition_point(|before| before.step < sample.step));
                    samples.push(sample);
                }
                None if line.ends_with('\n') => damaged += 1,
                None => {}
            }
        }
        self.damaged_lines(name, damaged);
        samples
    }
}
