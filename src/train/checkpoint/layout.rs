//! The names of files in a run's folder and in its checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

pub const METRICS: &str = "metrics.jsonl";
pub const CSV: &str = "metrics.csv";
/// Samples after each evaluation.
pub const SAMPLES: &str = "samples.jsonl";
/// The configuration, of a run and of a checkpoint.
pub const CONFIG: &str = "config.toml";
pub const TOKENIZER: &str = "tokenizer.json";
/// The chat template.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// transformers' sampling settings.
pub const GENERATION: &str = "generation_config.json";
pub const OPTIMIZER: &str = "optimizer.safetensors";
/// The states of a recurrent model.
pub const CARRIED: &str = "recurrent_state.safetensors";
pub const STATE: &str = "trainer_state.json";
pub const MANIFEST: &str = "manifest.json";
pub const MODEL: &str = "model.safetensors";
/// LoRA adapters in PEFT's format, instead of the model.
pub const ADAPTERS: &str = "adapter_model.safetensors";
pub(super) const ADAPTER_CONFIG: &str = "adapter_config.json";

/// `step-000500`
pub(super) fn checkpoint_name(step: usize) -> String {
    format!("step-{step:06}")
}

/// The folder that holds the checkpoints of a run.
pub fn checkpoints_folder(run: &Path) -> PathBuf {
    run.join("checkpoints")
}

pub(super) fn checkpoint_folder(run: &Path, step: usize) -> PathBuf {
    checkpoints_folder(run).join(checkpoint_name(step))
}

/// Step and folder of every checkpoint of a run, the oldest first.
pub fn checkpoints(run: &Path) -> Vec<(usize, PathBuf)> {
    let entries = fs::read_dir(checkpoints_folder(run)).into_iter().flatten().flatten();
    let step = |entry: &fs::DirEntry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok();
    let mut all: Vec<(usize, PathBuf)> = entries.filter_map(|entry| Some((step(&entry)?, entry.path()))).collect();
    all.sort();
    all
}

/// The checkpoint that a ref of a run (`best` or `last`) names, if there is such a folder.
pub(in crate::train) fn resolve_ref(run: &Path, name: &str) -> Option<PathBuf> {
    let target = fs::read_to_string(run.join(name)).ok()?;
    let target = target.trim();
    // A name, not a path: a damaged or foreign file must not lead elsewhere.
    let is_name = target.starts_with("step-") && !target.contains(['/', '\\']);
    Some(checkpoints_folder(run).join(target)).filter(|path| is_name && path.is_dir())
}

/// Written when the run completes.
pub(in crate::train) const FINISHED: &str = "finished";
