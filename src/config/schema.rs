//! The typed configuration: one struct per section, one field per key.
//!
//! Real numbers are `f64` so that `0.001` is written back as `0.001`; whoever computes with them narrows them.
//! A `Config` is made by [`Layers`](super::Layers), which checks it; `Config::default()` passes those checks.

mod model;

pub use model::{LoraConfig, ModelConfig};

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::choice::{
    AdjustLr, MatmulF32, NonFinite, OptimizerKind, Packing, Precision, Recompute, Schedule, WeightDtype,
};
use super::device_batch::DeviceBatch;
use super::devices::Devices;

/// Everything that a run can be told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where a run is written, and its seed.
    pub run: RunConfig,
    /// What it computes on.
    pub device: DeviceConfig,
    /// The text and how it becomes tokens.
    pub data: DataConfig,
    /// The shape of the model.
    pub model: ModelConfig,
    /// Adapters of low rank, which are trained instead of the model's weights.
    pub lora: LoraConfig,
    /// How long and how fast to train.
    pub train: TrainConfig,
    /// The update rule.
    pub optimizer: OptimizerConfig,
    /// What is saved and kept.
    pub checkpoint: CheckpointConfig,
    /// What is done when a run goes bad.
    pub guard: GuardConfig,
    /// What is reported.
    pub log: LogConfig,
    /// How text is sampled from the model.
    pub generate: GenerateConfig,
}

impl Config {
    /// The name of the run's folder: `run.name`, or `<corpus>-L2-H4-E128-<device>` where that is empty.
    /// `device` is the word for what is computed on, such as `gpu`.
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

/// `[run]`: where a run is written, and its seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The folder that holds the folders of runs. Default `runs`.
    pub dir: String,
    /// The name of this run's folder in `dir`. Default empty: see [`Config::run_name`].
    pub name: String,
    /// Seeds the initial weights, the order of batches and dropout. Default 1337.
    pub seed: u64,
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig { dir: "runs".into(), name: String::new(), seed: 1337 }
    }
}

/// `[device]`: what a run computes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// `auto`, `cpu`, `gpu`, `gpu:N`, or several, which train together: `gpu:all`, `gpu:0,1`. Default `auto`.
    pub kind: Devices,
    /// `f32` or `mixed`. Default `f32`.
    pub precision: Precision,
    /// `auto`, `fma` or `split-fp16`. Default `auto`; a run writes down what it came to.
    pub matmul_f32: MatmulF32,
    /// Threads of the CPU path. Default 0: one per physical core.
    pub threads: usize,
    /// Whether to go on with the CPU when the GPU that was asked for is not there. Default false: that is an error.
    pub allow_fallback: bool,
    /// Whether an adapter that emulates a GPU on the CPU may be chosen. Default false.
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

/// `[data]`: the text and how it becomes tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// `sample`, `wikitext-2`, `tinyshakespeare`, or the path of a file or folder. Default `sample`.
    pub corpus: String,
    /// Which files of a folder, as in a `.gitignore`: `["*.md", "!drafts/**"]`. Default empty: all texts.
    pub files: Vec<String>,
    /// `char`, `word`, `bpe`, `gpt2`, or the path of a `tokenizer.json` or of a folder with `vocab.json` and
    /// `merges.txt`. Default `bpe`.
    pub tokenizer: String,
    /// Tokens of the vocabulary that `bpe` trains; other tokenizers do not use it. Default 2048.
    pub vocab_size: usize,
    /// The share of a corpus without a validation split of its own that is held out, in (0, 1). Default 0.1.
    pub validation_fraction: f64,
    /// How conversations are written: `chatml`, or the path of a template in Jinja. Default empty: the template in the
    /// tokenizer's folder.
    pub chat_template: String,
    /// `auto`, `stream`, `documents` or `off`: how documents become rows of a batch. Default `auto`.
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

/// How long to train: in optimizer steps, or in passes over the training split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrainLength {
    /// Optimizer steps.
    Steps(usize),
    /// Passes over the training split; a fraction is fine.
    Epochs(f64),
}

/// `[train]`: how long and how fast to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Sequences per forward pass. Default 16.
    pub batch_size: usize,
    /// Forward and backward passes per optimizer step. Default 1.
    pub grad_accum_steps: usize,
    /// Optimizer steps to train. Default 1000, unless `epochs` is set. Exactly one of the two is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<usize>,
    /// Passes over the training split; a fraction is fine. Default unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// The highest learning rate, reached after the warm-up. Default 1e-3.
    pub learning_rate: f64,
    /// The learning rate that the schedule falls to. Default `learning_rate / 10`, of `wsd` and `plateau` 0.
    pub min_learning_rate: f64,
    /// Optimizer steps in which the learning rate rises from 0. Default 100, or a tenth of the run's if that is less.
    pub warmup_steps: usize,
    /// `cosine`, `linear`, `constant`, `wsd` or `plateau`. Default `cosine`.
    pub schedule: Schedule,
    /// Of `wsd`: the last optimizer steps, in which the learning rate falls. Default 0: a fifth of the run's.
    pub decay_steps: usize,
    /// Of `plateau`: what the learning rate is multiplied by, between 0 and 1. Default 0.25.
    pub plateau_factor: f64,
    /// Of `plateau`: evaluations without a new best validation loss before that. Default 1.
    pub plateau_patience: usize,
    /// Optimizer steps between evaluations. Default 200, or a fifth of the run's if that is less; 0 evaluates only at
    /// the end.
    pub eval_every: usize,
    /// Batches per evaluation. Default 0: the whole validation split.
    pub eval_batches: usize,
    /// The largest norm of all gradients together; a larger one is scaled down to it. Default 1; 0 turns it off.
    pub grad_clip: f64,
    /// How much of each target's probability is spread evenly over the vocabulary, in [0, 1). Default 0.
    pub label_smoothing: f64,
    /// The decay of an average of the weights that is evaluated and saved instead of them, in [0, 1). Default 0: none.
    pub ema_decay: f64,
    /// `none` or `block`. Default `none`.
    pub recompute: Recompute,
    /// In what proportion the devices share the sequences of a step: a number for each, or `auto`. Default empty: all
    /// the same.
    pub device_batch: DeviceBatch,
    /// What gradients are sent as between devices, `f32` or `f16`. Default `f32`.
    pub reduce_dtype: WeightDtype,
    /// Whether the devices divide what the optimizer remembers among them, and in mixed precision the master weights.
    /// Default false.
    pub shard_optimizer: bool,
    /// Optimizer steps that the devices make apart before they meet. Default 0: they make each step together.
    pub sync_every: usize,
    /// Seconds that a device waits for another one, before the job ends. Default 60.
    pub comm_timeout: f64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
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
            device_batch: DeviceBatch::default(),
            reduce_dtype: WeightDtype::F32,
            shard_optimizer: false,
            sync_every: 0,
            comm_timeout: 60.0,
        }
    }
}

impl TrainConfig {
    /// How long to train. `epochs` counts where both are set, which [`Layers`](super::Layers) never lets through.
    pub fn length(&self) -> TrainLength {
        match (self.epochs, self.max_steps) {
            (Some(epochs), _) => TrainLength::Epochs(epochs),
            (None, Some(steps)) => TrainLength::Steps(steps),
            (None, None) => TrainLength::Steps(1000),
        }
    }
}

/// `[optimizer]`: the update rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// `adamw`, `adam`, `sgd`, `nag`, `rmsprop`, `lion` or `muon`. Default `adamw`.
    pub kind: OptimizerKind,
    /// Decay of Adam's mean of gradients, in [0, 1); of `lion` the part of the momentum in an update. Default 0.9.
    pub beta1: f64,
    /// Decay of Adam's mean of squared gradients, and of the momentum of `lion`, in [0, 1). Default 0.95, of `lion`
    /// 0.99.
    pub beta2: f64,
    /// Added to the denominator of Adam and of `rmsprop`. Default 1e-8.
    pub eps: f64,
    /// Weight decay of parameters with two or more dimensions. Default 0.1.
    pub weight_decay: f64,
    /// Momentum of `sgd`, `nag`, `rmsprop` and `muon`, in [0, 1). Default 0.9, of `muon` 0.95, of `rmsprop` 0.
    pub momentum: f64,
    /// Decay of the mean of squared gradients of `rmsprop`, in [0, 1). Default 0.99.
    pub alpha: f64,
    /// Whether `rmsprop` divides by the deviation of gradients from their mean. Default false.
    pub centered: bool,
    /// Whether `muon` looks ahead by Nesterov's momentum. Default true.
    pub nesterov: bool,
    /// Iterations that make the matrices of `muon` orthogonal, 1 to 99. Default 5.
    pub ns_steps: usize,
    /// `match_rms_adamw` or `original`. Default `match_rms_adamw`.
    pub adjust_lr: AdjustLr,
    /// The highest learning rate of the matrices of `muon`; the schedule is the same. Default 0: `train.learning_rate`.
    pub muon_learning_rate: f64,
    /// Parameters with a learning rate or weight decay of their own. Default none.
    pub group: Vec<GroupConfig>,
}

/// `[[optimizer.group]]`: parameters with a learning rate or weight decay of their own. The first group that a name
/// matches is the parameter's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// A pattern of names, in which `*` stands for any text.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Multiplies the learning rate. Default 1.
    pub lr_scale: f64,
    /// Weight decay of every parameter that matches, biases and norms too. Default unset: that of the others.
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
            group: Vec::new(),
        }
    }
}

/// `[checkpoint]`: what is saved and kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Optimizer steps between checkpoints. Default 0: only at the end.
    pub every: usize,
    /// How many of the newest checkpoints to keep. Default 2.
    pub keep_last: usize,
    /// Whether to keep the checkpoint with the lowest validation loss as well. Default true.
    pub keep_best: bool,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        CheckpointConfig { every: 0, keep_last: 2, keep_best: true }
    }
}

/// `[guard]`: what is done when a run goes bad.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardConfig {
    /// `skip`, `rollback` or `stop`: about a loss or gradient that is not finite. Default `rollback`.
    pub non_finite: NonFinite,
    /// How many updates may be skipped before a logged step is good again. Default 10.
    pub max_skips: usize,
    /// Roll back where a logged loss lies so many standard deviations above those before it. Default 0: off.
    pub spike_z: f64,
    /// The logged losses that a spike is compared with, at least 2. Default 50.
    pub spike_window: usize,
    /// How often a run may go back to a checkpoint. Default 3.
    pub max_rollbacks: usize,
    /// The learning rate after going back, as a part of the one before, in (0, 1]. Default 0.5.
    pub learning_rate_factor: f64,
    /// Evaluations without a new lowest validation loss after which training ends. Default 0: it does not.
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

/// `[log]`: what is reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Optimizer steps between reported losses. Default 10.
    pub every: usize,
    /// Whether a short sample is kept after each evaluation. Default true.
    pub samples: bool,
    /// Whether to write TensorBoard's event files besides `metrics.jsonl`. Default false.
    pub tensorboard: bool,
    /// Whether to write `metrics.csv` besides `metrics.jsonl`. Default false.
    pub csv: bool,
    /// The file that gets a block with the timings of each run. Default `training_log.txt`; empty is none.
    pub file: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { every: 10, samples: true, tensorboard: false, csv: false, file: "training_log.txt".into() }
    }
}

/// `[generate]`: how text is sampled from the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateConfig {
    /// The text to continue. Default empty.
    pub prompt: String,
    /// Tokens to sample. Default 200.
    pub max_new_tokens: usize,
    /// Divides the logits; 0 always takes the likeliest token. Default 0.8.
    pub temperature: f64,
    /// Sample among this many likeliest tokens. Default 0: off.
    pub top_k: usize,
    /// Sample among the likeliest tokens that together have this probability, in (0, 1]. Default 1: off.
    pub top_p: f64,
    /// Sample among tokens at least this part as likely as the likeliest, in [0, 1]. Default 0: off.
    pub min_p: f64,
    /// Divides the logits above 0 of tokens that are in the text, and multiplies those below. Default 1: off.
    pub repetition_penalty: f64,
    /// The text ends where one of these begins. Default none.
    pub stop: Vec<String>,
    /// Seeds the sampling. Default 1337.
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
