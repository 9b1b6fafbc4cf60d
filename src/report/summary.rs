//! Summary figures of a run.

use super::record::{RunRecord, State};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;

/// The evaluation with the lowest validation loss.
#[derive(Debug, Clone, Serialize)]
pub struct Best {
    pub step: u64,
    pub loss: f64,
    pub perplexity: Option<f64>,
    pub bits_per_byte: Option<f64>,
    /// Whether decoding restores the text exactly; if not, bits are per decodable byte.
    pub lossless: bool,
    /// With an objective of preferences: the fraction of pairs in the right order, and the margin of the rewards.
    pub reward_accuracy: Option<f64>,
    pub reward_margin: Option<f64>,
}

/// A row of the list of runs. Unknown values are `None`.
#[derive(Debug, Clone, Serialize)]
pub struct RunSummary {
    pub name: String,
    pub folder: PathBuf,
    pub state: State,
    pub began: Option<Timestamp>,
    /// Completed steps.
    pub steps: u64,
    pub total_steps: Option<u64>,
    pub epochs: Option<f64>,
    pub best: Option<Best>,
    /// Validation loss of the last evaluation.
    pub validation_loss: Option<f64>,
    /// Training loss of the last logged step.
    pub train_loss: Option<f64>,
    pub tokens: Option<f64>,
    pub tokens_per_s: Option<f64>,
    /// Training time without evaluations and pauses, over all processes of a resumed run.
    pub training_seconds: Option<f64>,
    pub parameters: Option<u64>,
    /// Number of trained parameters; fewer with LoRA.
    pub trained_parameters: Option<u64>,
    pub device: Option<String>,
    pub precision: Option<String>,
    pub corpus: Option<String>,
    pub tokenizer: Option<String>,
}

impl RunSummary {
    pub fn new(run: &RunRecord) -> RunSummary {
        let (metrics, start) = (&run.metrics, &run.start["start"]);
        let finite = |x: f64| Some(x).filter(|x| x.is_finite());
        let last = metrics.steps.last();
        let logged = last.map_or(0, |point| point.step);
        // One that was stopped has done a few more than it has logged.
        let steps = run.start["end"]["steps"].as_u64().unwrap_or(logged).max(logged);
        let tokens = |steps: u64| finite(steps as f64 * run.tokens_per_step());
        // The logged speeds lack the first step of each process.
        let by_speeds = || metrics.training_seconds(run.tokens_per_step()).last().copied();
        let training_seconds = run.start["end"]["training_seconds_in_all"].as_f64().or_else(by_speeds);
        let training_seconds = training_seconds.filter(|seconds| *seconds > 0.0);
        let of_config = |section: &str, key: &str| run.config.get(section).and_then(|s| s.get(key));
        let text = |value: &Value, section: &str, key: &str| {
            let configured = || of_config(section, key)?.as_str().map(str::to_string);
            value.as_str().map(str::to_string).or_else(configured)
        };
        let steps_to_do = || of_config("train", "max_steps")?.as_integer()?.try_into().ok();
        RunSummary {
            name: run.name.clone(),
            folder: run.folder.clone(),
            state: run.state,
            began: metrics.times.map(|(first, _)| first).or_else(|| run.start["began"].as_str()?.parse().ok()),
            steps,
            total_steps: start["total_steps"].as_u64().or_else(steps_to_do),
            epochs: last.and_then(|point| finite(point.epoch)),
            best: metrics.best().map(|best| Best {
                step: best.step,
                loss: best.loss,
                perplexity: finite(best.perplexity),
                bits_per_byte: finite(best.bits_per_byte),
                lossless: best.lossless,
                reward_accuracy: finite(best.reward_accuracy),
                reward_margin: finite(best.reward_margin),
            }),
            validation_loss: metrics.evaluations.last().and_then(|point| finite(point.loss)),
            train_loss: metrics.last_loss(),
            tokens: tokens(steps),
            tokens_per_s: metrics.average_speed(run.tokens_per_step()),
            training_seconds,
            parameters: start["parameters"].as_u64(),
            trained_parameters: start["adapters"]["parameters"].as_u64().or_else(|| start["parameters"].as_u64()),
            device: text(&start["device"], "device", "kind"),
            precision: text(&start["precision"], "device", "precision"),
            corpus: text(&start["corpus"], "data", "corpus"),
            tokenizer: text(&start["tokenizer"], "data", "tokenizer"),
        }
    }
}
