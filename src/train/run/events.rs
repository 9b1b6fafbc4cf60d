//! The events of a run, for its observer. The trainer prints nothing itself.

use crate::data::{Progress, Summary as Text};
pub use crate::fit::LossScale;
use crate::models::ModelConfig;
use crate::profile::Report;
use crate::train::evaluation::evaluate::Evaluation;
use crate::train::step::ranks::RankTimes;
use crate::units;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A message for the user.
    Note(String),
    /// The text is read or made into tokens.
    Preparing(Progress),
    /// Everything is prepared; the first step follows.
    Started(Box<Start>),
    /// A step's numbers arrived. On a GPU that may be a few steps after it was computed.
    Step(Step),
    /// A step was handed to the device.
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
    /// The run went bad at `from_step` and goes on from the checkpoint of `step`.
    RolledBack {
        from_step: usize,
        step: usize,
        cause: String,
        /// What the schedule's learning rate is multiplied by from now on.
        learning_rate_factor: f64,
    },
    /// A whole pass over the text was trained on, in so many seconds.
    Epoch {
        epoch: usize,
        seconds: f64,
    },
    /// What the model writes after an evaluation, if that is kept.
    EarlySample {
        step: usize,
        text: String,
    },
    /// What the model writes at the end.
    Sample(String),
    /// The run is over.
    Finished(Box<Summary>),
}

/// What is known before the first step.
#[derive(Debug, Clone)]
pub struct Start {
    pub folder: PathBuf,
    pub device: String,
    /// What matmuls are computed in.
    pub precision: String,
    pub corpus: String,
    /// What the corpus is made of.
    pub text: Text,
    pub tokenizer: String,
    /// Its tokens.
    pub tokens: usize,
    pub model: ModelConfig,
    pub parameters: usize,
    /// `None` where all parameters are trained.
    pub adapters: Option<Adapters>,
    pub train_tokens: usize,
    pub validation_tokens: usize,
    pub tokens_per_step: usize,
    /// Steps that were done before, of a run that goes on.
    pub first_step: usize,
    pub total_steps: usize,
    pub epochs: f64,
    /// Steps in which the learning rate rises.
    pub warmup_steps: usize,
}

/// Adapters of low rank that are trained beside a model that is not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Adapters {
    /// How many numbers are trained.
    pub parameters: usize,
    pub rank: usize,
    pub targets: Vec<String>,
    /// What the frozen weights of linear layers are stored as.
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
    /// Learned from since the run began: targets, without prompts and padding. `None` of a run of an earlier version.
    pub tokens: Option<u64>,
    /// Tokens learned from since the step logged before, by the time between the two being finished, without
    /// evaluations, samples and waits for checkpoints. `None` of the first step of a process.
    pub tokens_per_s: Option<f64>,
    /// In mixed precision.
    pub loss_scale: Option<LossScale>,
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Summary {
    pub folder: PathBuf,
    pub device: String,
    /// What matmuls are computed in.
    pub precision: String,
    pub model: ModelConfig,
    pub parameters: usize,
    /// `None` where all parameters are trained.
    pub adapters: Option<Adapters>,
    pub steps: usize,
    pub total_steps: usize,
    pub epochs: f64,
    /// Steps in this run that were stopped by a signal before all were done.
    pub interrupted: bool,
    pub train_loss: Option<f64>,
    pub validation: Option<Evaluation>,
    pub best_loss: Option<f64>,
    /// Where the checkpoint named `best` is of; `None` if there is none.
    pub best_step: Option<usize>,
    /// What to do about it, of a run whose validation loss lies far above the training loss, or rises.
    pub overfitting: Option<String>,
    /// As of a [`Step`], over all steps of this process.
    pub tokens_per_s: Option<f64>,
    /// Of a run that was resumed: of training in all its processes.
    pub seconds_in_all: Option<f64>,
    /// Whether the model has a chat template, so that its sample is an answer.
    pub is_chat: bool,
    /// The most memory that tensors took on the device, bytes.
    pub peak_memory_bytes: usize,
    /// Seconds of training of every epoch that began and ended in this run, by its number.
    pub epoch_seconds: Vec<(usize, f64)>,
    /// What the time of each rank went into, if there are several.
    pub ranks: Vec<RankTimes>,
    pub report: Report,
}

impl fmt::Display for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Adapters { parameters, rank, targets, base } = self;
        let (count, targets) = (units::count(*parameters as f64), targets.join(", "));
        write!(f, "{count} parameters of rank {rank} ({targets}); the model is frozen, in {base}")
    }
}

impl Event {
    /// The event as a line for machines; those that happen at every step have none.
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
                line
            }
            Event::Evaluated { step, split, result, .. } => json!({
                "kind": "eval", "split": split, "step": step, "loss": result.loss,
                "perplexity": result.perplexity, "bits_per_byte": result.bits_per_byte,
                "lossless": result.lossless, "unknown_share": result.unknown_share,
                "tokens": result.tokens, "context": result.context, "stride": result.stride,
            }),
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

fn round(value: f64, digits: i32) -> f64 {
    let factor = 10f64.powi(digits);
    (value * factor).round() / factor
}
