//! The events of a run, for its observer. The trainer prints nothing itself.

use crate::data::{Progress, Summary as Text};
pub use crate::fit::LossScale;
use crate::models::ModelConfig;
use crate::profile::Report;
use crate::train::evaluation::evaluate::Evaluation;
pub use crate::train::evaluation::preference::Rewards;
use crate::train::step::ranks::RankTimes;
use crate::units;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;

/// An event of a run.
#[derive(Debug, Clone)]
pub enum Event {
    /// A message for the user.
    Note(String),
    /// The text is being read or tokenized.
    Preparing(Progress),
    /// Everything is prepared; the first step follows.
    Started(Box<Start>),
    /// A step's metrics arrived, on a GPU possibly a few steps later.
    Step(Step),
    /// A step was submitted to the device.
    Progress {
        step: usize,
    },
    Evaluated {
        step: usize,
        split: &'static str,
        result: Evaluation,
        best: bool,
    },
    /// A checkpoint was written.
    Saved {
        step: usize,
        path: PathBuf,
    },
    /// The run was rolled back from `from_step` to the checkpoint of `step`.
    RolledBack {
        from_step: usize,
        step: usize,
        cause: String,
        /// New factor of the schedule's learning rate.
        learning_rate_factor: f64,
    },
    /// An epoch was completed, with its training time.
    Epoch {
        epoch: usize,
        seconds: f64,
    },
    /// A sample after an evaluation.
    EarlySample {
        step: usize,
        text: String,
    },
    /// The sample at the end.
    Sample(String),
    /// The run is over.
    Finished(Box<Summary>),
}

/// Facts known before the first step.
#[derive(Debug, Clone)]
pub struct Start {
    pub folder: PathBuf,
    pub device: String,
    /// Description of GEMM precision.
    pub precision: String,
    pub corpus: String,
    /// Description of the corpus.
    pub text: Text,
    pub tokenizer: String,
    /// Its tokens.
    pub tokens: usize,
    pub model: ModelConfig,
    pub parameters: usize,
    /// LoRA adapters; `None` if all parameters are trained.
    pub adapters: Option<Adapters>,
    pub train_tokens: usize,
    pub validation_tokens: usize,
    pub tokens_per_step: usize,
    /// Completed steps of a resumed run.
    pub first_step: usize,
    pub total_steps: usize,
    pub epochs: f64,
    /// Warm-up steps.
    pub warmup_steps: usize,
}

/// LoRA adapters beside a frozen model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Adapters {
    /// Number of trained parameters.
    pub parameters: usize,
    pub rank: usize,
    /// Of B A.
    pub scale: f32,
    pub dora: bool,
    pub targets: Vec<String>,
    /// Modules that are trained in full.
    pub modules_to_save: Vec<String>,
    /// Storage type of the frozen weights of matmuls.
    pub base: &'static str,
}

/// The numbers of a logged step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Updates done, this one included.
    pub step: usize,
    pub epoch: f64,
    /// Nats per token, over the step's batches.
    pub loss: f64,
    pub learning_rate: f64,
    /// Before clipping.
    pub grad_norm: f64,
    /// Tokens trained on since the start of the run: targets, without prompts and padding. `None` for a run of an
    /// earlier version.
    pub tokens: Option<u64>,
    /// Training throughput since the previous logged step, without evaluations, samples and waits for checkpoints.
    /// `None` for the first step of a process.
    pub tokens_per_s: Option<f64>,
    /// In mixed precision.
    pub loss_scale: Option<LossScale>,
    /// Of preferences, on the first device.
    pub rewards: Option<Rewards>,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Summary {
    pub folder: PathBuf,
    pub device: String,
    /// Description of GEMM precision.
    pub precision: String,
    pub model: ModelConfig,
    pub parameters: usize,
    /// LoRA adapters; `None` if all parameters are trained.
    pub adapters: Option<Adapters>,
    pub steps: usize,
    pub total_steps: usize,
    pub epochs: f64,
    /// Whether a signal stopped the run before all steps were done.
    pub interrupted: bool,
    pub train_loss: Option<f64>,
    pub validation: Option<Evaluation>,
    pub best_loss: Option<f64>,
    /// Step of the checkpoint `best`; `None` if there is none.
    pub best_step: Option<usize>,
    /// Advice for an overfitting run.
    pub overfitting: Option<String>,
    /// Training throughput over all steps of this process.
    pub tokens_per_s: Option<f64>,
    /// Training seconds of all processes of a resumed run.
    pub seconds_in_all: Option<f64>,
    /// Whether its last checkpoint holds all that resuming takes.
    pub can_resume: bool,
    /// Whether the model has a chat template, so that its sample is an answer.
    pub is_chat: bool,
    /// Peak memory of tensors on the device, bytes.
    pub peak_memory_bytes: usize,
    /// Training seconds of every complete epoch in this process, by its number.
    pub epoch_seconds: Vec<(usize, f64)>,
    /// Time by activity of each rank, if there are several.
    pub ranks: Vec<RankTimes>,
    pub report: Report,
}

impl fmt::Display for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Adapters { parameters, rank, scale: _, dora, targets, modules_to_save, base } = self;
        let (count, targets) = (units::count(*parameters as f64), targets.join(", "));
        let method = if *dora { ", DoRA" } else { "" };
        let (in_full, frozen) = match &modules_to_save[..] {
            [] => (String::new(), "the model"),
            modules => (format!(" and all of {}", modules.join(", ")), "the rest"),
        };
        write!(f, "{count} parameters of rank {rank} ({targets}{method}){in_full}; {frozen} is frozen, in {base}")
    }
}

impl Event {
    /// The event as a JSON line; `None` for events of every step.
    pub fn json(&self) -> Option<Value> {
        Some(match self {
            Event::Progress { .. } | Event::Preparing(_) => return None,
            Event::Note(text) => json!({ "kind": "note", "text": text }),
            Event::Started(s) => json!({
                "kind": "start", "folder": s.folder, "device": s.device, "precision": s.precision, "corpus": s.corpus,
                "text": { "files": s.text.files, "bytes": s.text.bytes, "documents": s.text.documents,
                    "held_out": s.text.held_out, "skipped": s.text.skipped },
                "tokenizer": s.tokenizer, "model": s.model, "parameters": s.parameters, "adapters": s.adapters,
                "train_tokens": s.train_tokens, "validation_tokens": s.validation_tokens,
                "tokens_per_step": s.tokens_per_step, "first_step": s.first_step, "total_steps": s.total_steps,
                "epochs": s.epochs, "warmup_steps": s.warmup_steps,
            }),
            Event::Step(s) => {
                let mut line = json!({
                    "kind": "train", "step": s.step, "epoch": round(s.epoch, 4), "loss": s.loss,
                    "learning_rate": s.learning_rate, "grad_norm": s.grad_norm, "tokens": s.tokens,
                    "tokens_per_s": s.tokens_per_s,
                });
                if let Some(LossScale { scale, overflows }) = s.loss_scale {
                    line["loss_scale"] = scale.into();
                    line["overflows"] = overflows.into();
                }
                add_rewards(&mut line, s.rewards);
                line
            }
            Event::Evaluated { step, split, result, .. } => {
                let mut line = json!({ "kind": "eval", "split": split, "step": step, "loss": result.loss });
                // The loss of a preference is of no token.
                if result.rewards.is_none() {
                    line["perplexity"] = result.perplexity.into();
                    line["bits_per_byte"] = result.bits_per_byte.into();
                }
                line["lossless"] = result.lossless.into();
                line["unknown_share"] = result.unknown_share.into();
                line["tokens"] = result.tokens.into();
                line["context"] = result.context.into();
                line["stride"] = result.stride.into();
                add_rewards(&mut line, result.rewards);
                line
            }
            Event::Epoch { epoch, seconds } => json!({ "kind": "epoch", "epoch": epoch, "seconds": seconds }),
            Event::Saved { step, path } => json!({ "kind": "checkpoint", "step": step, "path": path }),
            Event::RolledBack { from_step, step, cause, learning_rate_factor } => json!({
                "kind": "rollback", "from_step": from_step, "step": step, "cause": cause,
                "learning_rate_factor": learning_rate_factor,
            }),
            Event::EarlySample { step, text } => json!({ "kind": "early_sample", "step": step, "text": text }),
            Event::Sample(text) => json!({ "kind": "sample", "text": text }),
            Event::Finished(s) => json!({
                "kind": "end", "folder": s.folder, "precision": s.precision, "steps": s.steps,
                "interrupted": s.interrupted, "train_loss": s.train_loss, "validation": s.validation,
                "best_loss": s.best_loss, "best_step": s.best_step, "overfitting": s.overfitting,
                "tokens_per_s": s.tokens_per_s, "training_seconds": s.report.training_seconds,
                "training_seconds_in_all": s.seconds_in_all.unwrap_or(s.report.training_seconds),
                "peak_memory_bytes": s.peak_memory_bytes,
                "profile": s.report, "ranks": s.ranks,
            }),
        })
    }
}

fn add_rewards(line: &mut Value, rewards: Option<Rewards>) {
    let Some(rewards) = rewards else { return };
    let Rewards { chosen, rejected, accuracy } = rewards;
    let margin = rewards.margin();
    for (name, value) in [
        ("reward_chosen", chosen),
        ("reward_rejected", rejected),
        ("reward_accuracy", accuracy),
        ("reward_margin", margin),
    ] {
        if let Some(value) = value {
            line[name] = value.into();
        }
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let factor = 10f64.powi(digits);
    (value * factor).round() / factor
}
