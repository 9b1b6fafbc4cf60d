//! Verifies resuming: trains a run uninterrupted and in two halves, and compares all bytes.

use super::run::train;
use crate::config::Resolved;
use crate::train::checkpoint::{ADAPTERS, METRICS, MODEL, OPTIMIZER};
use crate::train::run::events::{Event, Summary};
use crate::train::run::options::TrainOptions;
use crate::{Device, Error, Result};
use safetensors::SafeTensors;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Result of the comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Verified {
    /// Steps of each half.
    pub steps: usize,
    /// Of `model.safetensors` and `optimizer.safetensors`.
    pub weights_bytes: usize,
    pub optimizer_bytes: usize,
    pub metrics_lines: usize,
    /// The differences; empty if resuming works.
    pub differences: Vec<String>,
    /// Folder of both runs, if they differ; otherwise they are removed.
    pub folder: Option<PathBuf>,
}

/// Trains `2 * steps` steps uninterrupted, and `steps` plus `steps` resumed, in a separate folder in `run.dir`, and
/// compares weights, optimizer state and metrics. Model, data, batches and optimizer are those of `resolved`.
///
/// # Errors
/// If there is no step or no device, or a run fails or is stopped.
pub fn verify_resume(
    resolved: &Resolved,
    steps: usize,
    devices: &[Device],
    data_dir: &Path,
    cache_dir: Option<&Path>,
    stop: &AtomicBool,
) -> Result<Verified> {
    if !(1..=usize::MAX / 2).contains(&steps) || devices.is_empty() {
        let devices = devices.len();
        let got = format!("got {steps} and {devices}");
        return Err(Error::Invalid(format!("verify-resume needs at least one step and one device, {got}")));
    }
    let folder = Path::new(&resolved.config.run.dir).join(format!("verify-resume-{}", std::process::id()));
    let result = compare(resolved, steps, devices, data_dir, cache_dir, stop, &folder);
    if result.as_ref().is_ok_and(|verified| !verified.differences.is_empty()) {
        return result.map(|verified| Verified { folder: Some(folder), ..verified });
    }
    // Gone already if a run could not be begun; and what cannot be removed does no harm.
    let _ = fs::remove_dir_all(&folder);
    result
}

fn compare(
    resolved: &Resolved,
    steps: usize,
    devices: &[Device],
    data_dir: &Path,
    cache_dir: Option<&Path>,
    stop: &AtomicBool,
    folder: &Path,
) -> Result<Verified> {
    let run = |name: &str, until: usize, resume: bool| -> Result<PathBuf> {
        let resolved = shortened(resolved, steps, folder, name)?;
        let path = folder.join(name);
        let halt = AtomicBool::new(false);
        let options = TrainOptions {
            device: devices[0].clone(),
            others: &devices[1..],
            launch: None,
            started: Instant::now(),
            reopen: None,
            data_dir,
            cache_dir,
            resume: resume.then_some(&*path),
            stop: &halt,
            training_log: None,
            trace: None,
            on_event: &mut |event| {
                // At its end a run stops by itself, after the last evaluation.
                let reached = matches!(event, Event::Progress { step } if *step == until && until < 2 * steps);
                if reached || stop.load(Ordering::Relaxed) {
                    halt.store(true, Ordering::Relaxed);
                }
            },
        };
        let Summary { steps: done, .. } = train(&resolved, options)?;
        if done != until {
            return Err(Error::Invalid(format!("stopped after {done} of {until} steps: nothing was compared")));
        }
        Ok(path)
    };
    let whole = run("whole", 2 * steps, false)?;
    run("resumed", steps, false)?;
    let resumed = run("resumed", 2 * steps, true)?;

    let mut differences = Vec::new();
    let mut both = |name: &str| -> Result<usize> {
        let file = format!("checkpoints/step-{:06}/{name}", 2 * steps);
        let [left, right] = [read(&whole.join(&file))?, read(&resumed.join(&file))?];
        differences.extend(tensors_that_differ(&left, &right).into_iter().map(|tensor| format!("{name}: {tensor}")));
        Ok(left.len())
    };
    let weights_bytes = both(if resolved.config.lora.rank > 0 { ADAPTERS } else { MODEL })?;
    let optimizer_bytes = both(OPTIMIZER)?;
    let [left, right] = [timeless_metrics(&whole)?, timeless_metrics(&resumed)?];
    if left != right {
        let at = left.iter().zip(&right).take_while(|(left, right)| left == right).count();
        differences.push(format!("{METRICS}: line {}", at + 1));
    }
    Ok(Verified { steps, weights_bytes, optimizer_bytes, metrics_lines: left.len(), differences, folder: None })
}

/// The run in `2 * steps` steps, with evaluations in both halves.
fn shortened(resolved: &Resolved, steps: usize, folder: &Path, name: &str) -> Result<Resolved> {
    let mut resolved = resolved.clone();
    let config = &mut resolved.config;
    config.run.dir = folder.display().to_string();
    config.run.name = name.into();
    config.train.epochs = None;
    config.train.max_steps = Some(2 * steps);
    config.train.warmup_steps = config.train.warmup_steps.min(steps);
    config.train.decay_steps = config.train.decay_steps.min(steps);
    config.train.eval_every = (2 * steps / 3).max(1);
    config.train.eval_batches = 1;
    config.log.every = 1;
    config.generate.max_new_tokens = 1;
    resolved.fit_length(2 * steps)?;
    Ok(resolved)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Error::io("read", path, e))
}

/// The names of tensors that the files do not both hold with the same bytes; "its header" if that alone differs.
fn tensors_that_differ(left: &[u8], right: &[u8]) -> Vec<String> {
    if left == right {
        return Vec::new();
    }
    let (Ok(left), Ok(right)) = (SafeTensors::deserialize(left), SafeTensors::deserialize(right)) else {
        return vec!["its header".into()];
    };
    let differs = |name: &&str| {
        let [left, right] = [&left, &right].map(|file| file.tensor(name).map(|view| view.data().to_vec()).ok());
        left != right
    };
    let mut names: Vec<String> = left.names().into_iter().filter(differs).map(String::from).collect();
    names.sort();
    if names.is_empty() { vec!["its header".into()] } else { names }
}

/// The lines of a run's metrics without the one number that depends on the clock.
fn timeless_metrics(run: &Path) -> Result<Vec<String>> {
    let path = run.join(METRICS);
    let text = fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
    let lines = text.lines().map(|line| {
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|_| line.into());
        if let Some(object) = value.as_object_mut() {
            object.shift_remove("tokens_per_s");
            object.shift_remove("time");
        }
        value.to_string()
    });
    Ok(lines.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{Dtype, TensorView};

    fn file(values: &[(&str, &[u8])]) -> Vec<u8> {
        let views =
            values.iter().map(|(name, bytes)| (*name, TensorView::new(Dtype::U8, vec![bytes.len()], bytes).unwrap()));
        safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()
    }

    #[test]
    fn what_differs_is_named() {
        let left = file(&[("a", &[1, 2]), ("b", &[3]), ("c", &[4])]);
        assert_eq!(tensors_that_differ(&left, &left), [""; 0]);
        let right = file(&[("a", &[1, 3]), ("b", &[3]), ("d", &[4])]);
        assert_eq!(tensors_that_differ(&left, &right), ["a", "c"]);
        assert_eq!(tensors_that_differ(&left, b"short"), ["its header"]);
    }

    #[test]
    fn metrics_are_compared_without_times() {
        let dir = tempfile::tempdir().unwrap();
        let lines = "{\"step\":1,\"tokens_per_s\":5.0,\"loss\":0.1,\"time\":\"now\"}\nhalf a line";
        fs::write(dir.path().join(METRICS), lines).unwrap();
        assert_eq!(timeless_metrics(dir.path()).unwrap(), ["{\"step\":1,\"loss\":0.1}", "\"half a line\""]);
    }
}
