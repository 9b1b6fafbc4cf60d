//! The typed configuration: one struct per section, one field per key.
//!
//! Real numbers are `f64`, so that `0.001` is written back as `0.001`; computations convert them to f32.
//! [`Layers`](super::Layers) creates and validates a `Config`; `Config::default()` is valid.

mod model;
mod preference;

pub use model::{LoraConfig, ModelConfig};
pub use preference::PreferenceConfig;

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::choice::{
    AdjustLr, Comm, MatmulF32, NonFinite, Objective, Offload, OptimizerKind, Packing, Precision, Recompute, Schedule,
    StateDtype, UpdateTime, WireDtype,
};
use super::device_batch::DeviceBatch;
use super::devices::Devices;

/// The configuration of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Output folder and seed.
    pub run: RunConfig,
    /// Devices and precision.
    pub device: DeviceConfig,
    /// The text and its tokenizer.
    pub data: DataConfig,
    /// The shape of the model.
    pub model: ModelConfig,
    /// LoRA adapters, which are trained instead of the model's weights.
    pub lora: LoraConfig,
    /// Length, batch size and learning rate.
    pub train: TrainConfig,
    /// Losses of preferences.
    pub preference: PreferenceConfig,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Reactions to anomalies.
    pub guard: GuardConfig,
    /// Logs and reports.
    pub log: LogConfig,
    /// Sampling settings.
    pub generate: GenerateConfig,
}

impl Config {
    /// The name of the run's folder: `run.name`, or `<corpus>-L2-H4-E128-<device>` if that is empty. `device` is a word
    /// such as `gpu`.
    pub fn run_name(&self, device: &str) -> String {
        if !self.run.name.is_empty() {
            return self.run.name.clone();
        }
        let stem = Path::new(&self.data.corpus).file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
        let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        let corpus: String = stem.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
        let corpus = if corpus.is_empty() { "corpus" } else { &corpus };
        let ModelConfig { n_layer, n_head, n_embd, .. } = self.model;
        format!("{corpus}-L{n_layer}-H{n_head}-E{n_embd}-{device}")
    }
}

/// `[run]`: output folder and seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The folder of all runs. Default `runs`.
    pub dir: String,
    /// The name of this run's folder in `dir`. Default empty: see [`Config::run_name`].
    pub name: String,
    /// Seed of initial weights, batch order and dropout. Default 1337.
    pub seed: u64,
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig { dir: "runs".into(), name: String::new(), seed: 1337 }
    }
}

/// `[device]`: devices and precision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// `auto`, `cpu`, `gpu`, `gpu:N`, or several, which train together: `gpu:all`, `gpu:0,1`. Default `auto`.
    pub kind: Devices,
    /// `f32` or `mixed`. Default `f32`.
    pub precision: Precision,
    /// `auto`, `fma` or `split-fp16`. Default `auto`; a run stores the resolved value.
    pub matmul_f32: MatmulF32,
    /// Threads of the CPU path. Default 0: one per physical core.
    pub threads: usize,
    /// Whether to fall back to the CPU if the requested GPU does not exist. Default false: that is an error.
    pub allow_fallback: bool,
    /// Whether a software GPU may be chosen. Default false.
    pub allow_software: bool,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            kind: Devices::default(),
            precision: Precision::F32,
            matmul_f32: MatmulF32::Auto,
            threads: 0,
            allow_fallback: false,
            allow_software: false,
        }
    }
}

/// `[data]`: the text and its tokenizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// `sample`, `wikitext-2`, `tinyshakespeare`, or the path of a file or folder. Default `sample`.
    pub corpus: String,
    /// Patterns of the files of a folder, as in a `.gitignore`: `["*.md", "!drafts/**"]`. Default empty: all texts.
    pub files: Vec<String>,
    /// `char`, `word`, `bpe`, `gpt2`, or the path of a `tokenizer.json` or of a folder with `vocab.json` and
    /// `merges.txt`. Default `bpe`.
    pub tokenizer: String,
    /// Size of the trained BPE vocabulary; other tokenizers ignore it. Default 2048.
    pub vocab_size: usize,
    /// The fraction held out for validation from a corpus without a validation split, in (0, 1). Default 0.1.
    pub validation_fraction: f64,
    /// Chat template: `chatml`, or the path of a Jinja template. Default empty: the template in the tokenizer's folder.
    pub chat_template: String,
    /// Packing of documents into rows: `auto`, `stream`, `documents` or `off`. Default `auto`.
    pub packing: Packing,
}

impl Default for DataConfig {
    fn default() -> Self {
        DataConfig {
            corpus: "sample".into(),
            files: Vec::new(),
            tokenizer: "bpe".into(),
            vocab_size: 2048,
            validation_fraction: 0.1,
            chat_template: String::new(),
            packing: Packing::Auto,
        }
    }
}

/// Length of the training: optimizer steps, or passes over the training split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrainLength {
    /// Optimizer steps.
    Steps(usize),
    /// Passes over the training split, possibly fractional.
    Epochs(f64),
}

/// `[train]`: length, batch size and learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// What is learned: `next_token`, or the preferences of `dpo`, `ipo`, `orpo`, `kto` or `simpo`. Default
    /// `next_token`.
    pub objective: Objective,
    /// Sequences per forward pass. Default 16.
    pub batch_size: usize,
    /// Forward and backward passes per optimizer step. Default 1.
    pub grad_accum_steps: usize,
    /// Optimizer steps to train. Default 1000, unless `epochs` is set. Exactly one of the two is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<usize>,
    /// Passes over the training split, possibly fractional. Default unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// The highest learning rate, reached after the warm-up. Default 1e-3.
    pub learning_rate: f64,
    /// The final learning rate of the schedule. Default `learning_rate / 10`; 0 for `wsd` and `plateau`.
    pub min_learning_rate: f64,
    /// Optimizer steps of the linear warm-up from 0. Default 100, at most a tenth of the run's.
    pub warmup_steps: usize,
    /// `cosine`, `linear`, `constant`, `wsd` or `plateau`. Default `cosine`.
    pub schedule: Schedule,
    /// `wsd`: optimizer steps of the final decay. Default 0: a fifth of the run's.
    pub decay_steps: usize,
    /// `plateau`: factor of the learning rate, between 0 and 1. Default 0.25.
    pub plateau_factor: f64,
    /// `plateau`: evaluations without a new best validation loss before the reduction. Default 1.
    pub plateau_patience: usize,
    /// Optimizer steps between evaluations. Default 200, at most a fifth of the run's; 0 evaluates only at the end.
    pub eval_every: usize,
    /// Batches per evaluation. Default 0: the whole validation split.
    pub eval_batches: usize,
    /// Largest global gradient norm; larger gradients are scaled down. Default 1; 0 disables clipping.
    pub grad_clip: f64,
    /// The share of each target's probability that is spread evenly over the vocabulary, in [0, 1). Default 0.
    pub label_smoothing: f64,
    /// Decay of the exponential moving average of the weights, which is evaluated and saved instead of them, in [0, 1).
    /// Default 0: none.
    pub ema_decay: f64,
    /// `none`, `attention`, `block` or `auto`. Default `none`.
    pub recompute: Recompute,
    /// With `block`, how many blocks are recomputed, from the first one on. Default 0: all.
    pub recompute_blocks: usize,
    /// `step`, or `layerwise`: while backward runs, so that gradients take the memory of a few layers. Default `step`.
    pub update: UpdateTime,
    /// `none`, or `optimizer`: weights in f32 and moments in host memory, updated by the CPU while backward runs.
    /// Default `none`.
    pub offload: Offload,
    /// The proportion in which devices share the sequences of a step: a number for each, or `auto`. Default empty:
    /// equal shares.
    pub device_batch: DeviceBatch,
    /// How devices exchange gradients: `nccl` (NCCL, or RCCL on AMD's cards), `host`, or `auto`: by NCCL where every
    /// device has it. Default `auto`.
    pub comm: Comm,
    /// Type of gradients in transfers between devices, `f32` or `f16`. Default `f32`.
    pub reduce_dtype: WireDtype,
    /// Whether to shard optimizer state among the devices (ZeRO-1), and in mixed precision the master weights. Default
    /// false.
    pub shard_optimizer: bool,
    /// Local optimizer steps between synchronizations (DiLoCo). Default 0: synchronize every step.
    pub sync_every: usize,
    /// Timeout of communication between devices, seconds. Default 60.
    pub comm_timeout: f64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            objective: Objective::NextToken,
            batch_size: 16,
            grad_accum_steps: 1,
            max_steps: Some(1000),
            epochs: None,
            learning_rate: 1e-3,
            min_learning_rate: 1e-4,
            warmup_steps: 100,
            schedule: Schedule::Cosine,
            decay_steps: 0,
            plateau_factor: 0.25,
            plateau_patience: 1,
            eval_every: 200,
            eval_batches: 0,
            grad_clip: 1.0,
            label_smoothing: 0.0,
            ema_decay: 0.0,
            recompute: Recompute::None,
            recompute_blocks: 0,
            update: UpdateTime::Step,
            offload: Offload::None,
            device_batch: DeviceBatch::default(),
            comm: Comm::Auto,
            reduce_dtype: WireDtype::F32,
            shard_optimizer: false,
            sync_every: 0,
            comm_timeout: 60.0,
        }
    }
}

impl TrainConfig {
    /// Length of the training. If both are set, which [`Layers`](super::Layers) refuses, `epochs` wins.
    pub fn length(&self) -> TrainLength {
        match (self.epochs, self.max_steps) {
            (Some(epochs), _) => TrainLength::Epochs(epochs),
            (None, Some(steps)) => TrainLength::Steps(steps),
            (None, None) => TrainLength::Steps(1000),
        }
    }

    /// Whether parameters are updated while backward runs.
    pub fn is_layerwise(&self) -> bool {
        self.update == UpdateTime::Layerwise || self.offloads_optimizer()
    }

    /// Whether weights in f32 and moments lie in host memory.
    pub fn offloads_optimizer(&self) -> bool {
        self.offload == Offload::Optimizer
    }

    /// The setting for which [`TrainConfig::is_layerwise`], as a configuration file has it.
    pub fn why_layerwise(&self) -> &'static str {
        if self.offloads_optimizer() { "train.offload = \"optimizer\"" } else { "train.update = \"layerwise\"" }
    }

    /// How many of so many blocks are recomputed; all where `auto` is not resolved.
    pub fn recomputed_blocks(&self, blocks: usize) -> usize {
        match (self.recompute, self.recompute_blocks) {
            (Recompute::None | Recompute::Attention, _) => 0,
            (Recompute::Block, some) if some > 0 => some.min(blocks),
            (Recompute::Block | Recompute::Auto, _) => blocks,
        }
    }
}

/// `[optimizer]`: the optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// `adamw`, `adam`, `sgd`, `nag`, `rmsprop`, `lion` or `muon`. Default `adamw`.
    pub kind: OptimizerKind,
    /// Decay of Adam's mean of gradients, in [0, 1); for `lion`, the weight of the momentum in an update. Default 0.9.
    pub beta1: f64,
    /// Decay of Adam's mean of squared gradients, and of the momentum of `lion`, in [0, 1). Default 0.95; 0.99 for
    /// `lion`.
    pub beta2: f64,
    /// Added to the denominator of Adam and of `rmsprop`. Default 1e-8.
    pub eps: f64,
    /// Weight decay of parameters with two or more dimensions. Default 0.1.
    pub weight_decay: f64,
    /// Momentum of `sgd`, `nag`, `rmsprop` and `muon`, in [0, 1). Default 0.9; 0.95 for `muon`, 0 for `rmsprop`.
    pub momentum: f64,
    /// Decay of the mean of squared gradients of `rmsprop`, in [0, 1). Default 0.99.
    pub alpha: f64,
    /// Whether `rmsprop` divides by the standard deviation of gradients. Default false.
    pub centered: bool,
    /// Whether `muon` uses Nesterov momentum. Default true.
    pub nesterov: bool,
    /// Newton-Schulz iterations of `muon`, 1 to 99. Default 5.
    pub ns_steps: usize,
    /// `match_rms_adamw` or `original`. Default `match_rms_adamw`.
    pub adjust_lr: AdjustLr,
    /// The highest learning rate of `muon`'s matrices, with the same schedule. Default 0: `train.learning_rate`.
    pub muon_learning_rate: f64,
    /// Storage type of the moments: `f32` or `int8`, block-wise dynamic quantization. Default `f32`.
    pub state_dtype: StateDtype,
    /// Parameter groups. Default none.
    pub group: Vec<GroupConfig>,
}

/// `[[optimizer.group]]`: a parameter group with its own learning rate or weight decay. A parameter belongs to the
/// first group that matches its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// A pattern of names, in which `*` matches any text.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Multiplies the learning rate. Default 1.
    pub lr_scale: f64,
    /// Weight decay of all matching parameters, including biases and norms. Default unset: as for other parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        OptimizerConfig {
            kind: OptimizerKind::AdamW,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            momentum: 0.9,
            alpha: 0.99,
            centered: false,
            nesterov: true,
            ns_steps: 5,
            adjust_lr: AdjustLr::MatchRmsAdamW,
            muon_learning_rate: 0.0,
            state_dtype: StateDtype::F32,
            group: Vec::new(),
        }
    }
}

/// `[checkpoint]`: checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Optimizer steps between checkpoints. Default 0: only at the end.
    pub every: usize,
    /// Number of newest checkpoints to keep. Default 2.
    pub keep_last: usize,
    /// Whether to also keep the checkpoint with the lowest validation loss. Default true.
    pub keep_best: bool,
    /// Whether checkpoints hold the state of the optimizer, which resuming takes. Default true.
    pub optimizer: bool,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        CheckpointConfig { every: 0, keep_last: 2, keep_best: true, optimizer: true }
    }
}

/// `[guard]`: reactions to anomalies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardConfig {
    /// Reaction to a non-finite loss or gradient: `skip`, `rollback` or `stop`. Default `rollback`.
    pub non_finite: NonFinite,
    /// Most consecutive skipped updates without a good logged step. Default 10.
    pub max_skips: usize,
    /// Roll back if a logged loss is this many standard deviations above the previous ones. Default 0: off.
    pub spike_z: f64,
    /// Number of previous logged losses for spike detection, at least 2. Default 50.
    pub spike_window: usize,
    /// Most rollbacks of a run. Default 3.
    pub max_rollbacks: usize,
    /// Factor of the learning rate after a rollback, in (0, 1]. Default 0.5.
    pub learning_rate_factor: f64,
    /// Early stopping: evaluations without a new lowest validation loss. Default 0: off.
    pub patience: usize,
}

impl Default for GuardConfig {
    fn default() -> Self {
        GuardConfig {
            non_finite: NonFinite::Rollback,
            max_skips: 10,
            spike_z: 0.0,
            spike_window: 50,
            max_rollbacks: 3,
            learning_rate_factor: 0.5,
            patience: 0,
        }
    }
}

/// `[log]`: logs and reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Optimizer steps between reported losses. Default 10.
    pub every: usize,
    /// Whether to store a short sample after each evaluation. Default true.
    pub samples: bool,
    /// Whether to write TensorBoard's event files besides `metrics.jsonl`. Default false.
    pub tensorboard: bool,
    /// Whether to write `metrics.csv` besides `metrics.jsonl`. Default false.
    pub csv: bool,
    /// The file to which each run appends its timings. Default `training_log.txt`; empty for none.
    pub file: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { every: 10, samples: true, tensorboard: false, csv: false, file: "training_log.txt".into() }
    }
}

/// `[generate]`: sampling settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateConfig {
    /// The text to continue. Default empty.
    pub prompt: String,
    /// Tokens to sample. Default 200.
    pub max_new_tokens: usize,
    /// Divides the logits; 0 selects the most likely token. Default 0.8.
    pub temperature: f64,
    /// Sample among this many most likely tokens. Default 0: off.
    pub top_k: usize,
    /// Sample among the most likely tokens with this total probability, in (0, 1]. Default 1: off.
    pub top_p: f64,
    /// Sample among tokens with at least this fraction of the highest probability, in [0, 1]. Default 0: off.
    pub min_p: f64,
    /// Divides positive logits of tokens in the text, and multiplies negative ones. Default 1: off.
    pub repetition_penalty: f64,
    /// Stop strings: the text ends before the first of them. Default none.
    pub stop: Vec<String>,
    /// Seed of the sampling. Default 1337.
    pub seed: u64,
}

impl Default for GenerateConfig {
    fn default() -> Self {
        GenerateConfig {
            prompt: String::new(),
            max_new_tokens: 200,
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            stop: Vec::new(),
            seed: 1337,
        }
    }
}
