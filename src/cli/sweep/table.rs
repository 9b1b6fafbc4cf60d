//! What the runs of a sweep came to: rows, a table with bars, and `sweep.json`.

use crate::cache::replace;
use crate::cli::output;
use crate::units;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The file that keeps the rows, in the folder of the sweep.
const FILE: &str = "sweep.json";

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Finished,
    /// Its numbers were no numbers any more.
    Diverged,
    Failed,
}

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    /// What it was told, by key.
    pub set: BTreeMap<String, String>,
    pub status: Status,
    /// Of the best evaluation.
    pub validation_loss: Option<f64>,
    pub best_step: Option<u64>,
    /// Of the last logged step.
    pub train_loss: Option<f64>,
    pub steps: u64,
    pub tokens_per_s: Option<f64>,
    pub folder: PathBuf,
    /// Why it is not finished.
    pub message: Option<String>,
}

impl Row {
    /// Of the run in `folder`, whose numbers are in its metrics.
    pub fn read(name: &str, set: BTreeMap<String, String>, folder: &Path, ended: (Status, Option<String>)) -> Row {
        let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap_or_default();
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of = |kind: &'static str| lines.iter().filter(move |line| line["kind"] == kind);
        let evaluations = of("eval").filter_map(|line| Some((line["loss"].as_f64()?, line["step"].as_u64()?)));
        let best = evaluations.min_by(|a, b| a.0.total_cmp(&b.0));
        let last = of("train").next_back();
        let mut speeds: Vec<f64> = of("train").filter_map(|line| line["tokens_per_s"].as_f64()).collect();
        speeds.sort_by(f64::total_cmp);
        Row {
            name: name.into(),
            set,
            status: ended.0,
            validation_loss: best.map(|best| best.0),
            best_step: best.map(|best| best.1),
            train_loss: last.and_then(|line| line["loss"].as_f64()),
            steps: last.and_then(|line| line["step"].as_u64()).unwrap_or(0),
            tokens_per_s: speeds.get(speeds.len() / 2).copied(),
            folder: folder.to_path_buf(),
            message: ended.1,
        }
    }

    /// "validation loss 1.2345 at step 200", or why there is none.
    pub fn outcome(&self) -> String {
        match (&self.status, self.validation_loss, self.best_step) {
            (Status::Finished, Some(loss), Some(step)) => {
                format!("validation loss {} at step {step}", units::loss(loss))
            }
            (Status::Finished, ..) => "finished, without a validation loss".into(),
            (Status::Diverged, ..) => format!("diverged after step {}", self.steps),
            (Status::Failed, ..) => format!("failed: {}", self.message.as_deref().unwrap_or_default()),
        }
    }
}

/// Whether the runs learned from different text: their losses cannot be compared.
fn differ_in_data(rows: &[Row]) -> bool {
    const KEYS: [&str; 4] = ["data.corpus", "data.tokenizer", "data.vocab_size", "data.validation_fraction"];
    rows.windows(2).any(|pair| KEYS.iter().any(|key| pair[0].set.get(*key) != pair[1].set.get(*key)))
}

/// The best first; those without a loss, or that did not finish, at the end. Runs whose losses cannot be compared are
/// in the order of their names.
pub fn sort(rows: &mut [Row]) {
    if differ_in_data(rows) {
        return rows.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let key = |row: &Row| row.validation_loss.filter(|_| row.status == Status::Finished).unwrap_or(f64::INFINITY);
    rows.sort_by(|a, b| key(a).total_cmp(&key(b)).then(a.name.cmp(&b.name)));
}

/// The rows of a sweep that was begun before; none of a new one.
///
/// # Errors
/// If the file is there and cannot be read.
pub fn load(dir: &Path) -> Result<Vec<Row>> {
    let path = dir.join(FILE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    serde_json::from_slice(&bytes).map_err(|e| {
        Error::Invalid(format!("{} is not a list of runs ({e}); remove it, or name another --dir", path.display()))
    })
}

/// Writes the rows, whole or not at all.
///
/// # Errors
/// If the file cannot be written.
pub fn save(dir: &Path, rows: &[Row]) -> Result<()> {
    let path = dir.join(FILE);
    let bytes = serde_json::to_vec_pretty(rows).expect("plain values serialize");
    replace(&path, &bytes).map_err(|e| Error::io("write", &path, e))
}

/// The table, with a bar for each loss: the longer, the worse.
///
/// # Errors
/// If standard output is closed.
pub fn print(rows: &[Row]) -> std::io::Result<()> {
    const BAR: f64 = 30.0;
    let name_width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(3);
    output::line(format_args!(
        "\n{:<name_width$}  {:>10}  {:>7}  {:>10}  {:>8}",
        "run", "validation", "at step", "train loss", "tokens/s"
    ))?;
    let worst = rows.iter().filter_map(|row| row.validation_loss).fold(0.0, f64::max);
    for row in rows {
        let number = |loss: Option<f64>| loss.map_or("-".to_string(), units::loss);
        let end = match (&row.status, row.validation_loss) {
            (Status::Finished, Some(_)) if differ_in_data(rows) => String::new(),
            (Status::Finished, Some(loss)) => "█".repeat((BAR * loss / worst.max(1e-9)).round().max(1.0) as usize),
            _ => row.outcome(),
        };
        output::line(format_args!(
            "{:<name_width$}  {:>10}  {:>7}  {:>10}  {:>8}  {end}",
            row.name,
            number(row.validation_loss),
            row.best_step.map_or("-".to_string(), |step| step.to_string()),
            number(row.train_loss),
            row.tokens_per_s.map_or("-".to_string(), units::count),
        ))?;
    }
    if differ_in_data(rows) {
        let text = "the runs have different texts or tokenizers: their losses cannot be compared";
        output::line(format_args!("\n{text}"))?;
    }
    Ok(())
}
