//! The speed of an earlier run of the same model.

use super::run_plan::Rates;
use crate::Device;
use crate::config::{Config, Layers};
use crate::train::checkpoint::{CONFIG, FINISHED, METRICS, STATE, TrainerState, resolve_ref};
use std::fs;
use std::path::{Path, PathBuf};

/// The speed of the newest finished run in `run.dir` with this model, adapters, batch and device. Unreadable runs are
/// skipped.
pub(super) fn rates(config: &Config, positions_per_step: usize, device: &Device) -> Option<Rates> {
    let entries = fs::read_dir(&config.run.dir).ok()?.flatten().map(|entry| entry.path());
    let finished = |run: &Path| fs::metadata(run.join(FINISHED)).and_then(|file| file.modified()).ok();
    let mut runs: Vec<(_, PathBuf)> = entries.filter_map(|run| Some((finished(&run)?, run))).collect();
    runs.sort();
    let same = |run: &Path| {
        let Ok(earlier) = Layers::new().file(&run.join(CONFIG)).and_then(Layers::build) else { return false };
        let of = |c: &Config| {
            let t = &c.train;
            let recomputed = (t.recompute, t.recomputed_blocks(c.model.n_layer));
            let kernels = (c.device.precision, c.device.matmul_f32, recomputed, c.optimizer.state_dtype, t.update);
            (c.model.clone(), c.lora.clone(), c.data.clone(), t.batch_size, t.grad_accum_steps, kernels)
        };
        of(&earlier.config) == of(config) && computed_on(run).is_some_and(|name| name == device.name())
    };
    let (_, run) = runs.into_iter().rev().find(|(_, run)| same(run))?;
    Some(Rates::Earlier { tokens_per_s: positions_per_s(&run, positions_per_step)?, run })
}

/// The name of the device that a run was computed on.
fn computed_on(run: &Path) -> Option<String> {
    let state = fs::read(resolve_ref(run, "last")?.join(STATE)).ok()?;
    Some(serde_json::from_slice::<TrainerState>(&state).ok()?.device)
}

/// The median speed over the logged steps, in positions per second, including padding and prompts, which cost as much.
fn positions_per_s(run: &Path, positions_per_step: usize) -> Option<f64> {
    let text = fs::read_to_string(run.join(METRICS)).ok()?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let of_step = |line: serde_json::Value| {
        let (speed, step) = (line["tokens_per_s"].as_f64()?, line["step"].as_f64()?);
        // A run of an earlier version counted positions.
        let learned = line["tokens"].as_f64().map(|tokens| tokens / step / positions_per_step as f64);
        Some(speed / learned.unwrap_or(1.0))
    };
    let mut speeds: Vec<f64> = lines.filter(|line| line["kind"] == "train").filter_map(of_step).collect();
    speeds.sort_by(f64::total_cmp);
    speeds.get(speeds.len() / 2).copied().filter(|speed| *speed > 0.0)
}
