//! Reads `metrics.jsonl`, and skips damaged lines.

use jiff::Timestamp;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};

/// A logged step. Missing and non-finite values are NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepPoint {
    pub step: u64,
    pub epoch: f64,
    pub loss: f64,
    pub learning_rate: f64,
    pub grad_norm: f64,
    /// Tokens trained on since the start of the run.
    pub tokens: f64,
    pub tokens_per_s: f64,
    /// How much higher the mean reward of chosen answers is, with an objective of preferences.
    pub reward_margin: f64,
}

/// An evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvaluationPoint {
    pub step: u64,
    pub loss: f64,
    pub perplexity: f64,
    pub bits_per_byte: f64,
    /// Whether decoding restores the text exactly.
    pub lossless: bool,
    /// With an objective of preferences: the fraction of pairs in the right order, and the margin of the rewards.
    pub reward_accuracy: f64,
    pub reward_margin: f64,
}

/// A rollback to a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollback {
    pub from_step: u64,
    pub step: u64,
    pub cause: String,
}

/// The lines by kind, in ascending order of steps: after a rollback, later lines replace earlier ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    pub steps: Vec<StepPoint>,
    pub evaluations: Vec<EvaluationPoint>,
    pub rollbacks: Vec<Rollback>,
    /// Number of complete lines that cannot be parsed. An incomplete last line does not count.
    pub damaged_lines: usize,
    /// Times of the first and the last line.
    pub times: Option<(Timestamp, Timestamp)>,
}

impl Metrics {
    /// # Errors
    /// If the file cannot be read.
    pub fn read(file: impl Read) -> std::io::Result<Metrics> {
        let mut metrics = Metrics::default();
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            let is_whole = line.ends_with(b"\n");
            if !line.trim_ascii().is_empty() && metrics.add(&line).is_none() && is_whole {
                metrics.damaged_lines += 1;
            }
            line.clear();
        }
        Ok(metrics)
    }

    /// `None` if it cannot be read.
    fn add(&mut self, line: &[u8]) -> Option<()> {
        let line: Value = serde_json::from_slice(line).ok()?;
        let step = line.get("step")?.as_u64()?;
        let number = |key: &str| line.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN);
        match line.get("kind")?.as_str()? {
            "train" => {
                self.steps.truncate(self.steps.partition_point(|point| point.step < step));
                self.evaluations.truncate(self.evaluations.partition_point(|point| point.step < step));
                self.steps.push(StepPoint {
                    step,
                    epoch: number("epoch"),
                    loss: number("loss"),
                    learning_rate: number("learning_rate"),
                    grad_norm: number("grad_norm"),
                    tokens: number("tokens"),
                    tokens_per_s: number("tokens_per_s"),
                    reward_margin: number("reward_margin"),
                });
            }
            "eval" => {
                self.go_back(step);
                self.evaluations.truncate(self.evaluations.partition_point(|point| point.step < step));
                self.evaluations.push(EvaluationPoint {
                    step,
                    loss: number("loss"),
                    perplexity: number("perplexity"),
                    bits_per_byte: number("bits_per_byte"),
                    lossless: line.get("lossless").and_then(Value::as_bool).unwrap_or(true),
                    reward_accuracy: number("reward_accuracy"),
                    reward_margin: number("reward_margin"),
                });
            }
            "rollback" => {
                self.go_back(step);
                let cause = line.get("cause").and_then(Value::as_str).unwrap_or_default().to_string();
                let from_step = line.get("from_step").and_then(Value::as_u64).unwrap_or(step);
                self.rollbacks.push(Rollback { from_step, step, cause });
            }
            // Of a later version.
            _ => {}
        }
        let time = line.get("time").and_then(Value::as_str).and_then(|time| time.parse::<Timestamp>().ok());
        if let Some(time) = time {
            self.times = Some((self.times.map_or(time, |(first, _)| first), time));
        }
        Some(())
    }

    /// Forgets what came after a step.
    fn go_back(&mut self, step: u64) {
        self.steps.truncate(self.steps.partition_point(|point| point.step <= step));
        self.evaluations.truncate(self.evaluations.partition_point(|point| point.step <= step));
    }

    /// The lowest validation loss.
    pub fn best(&self) -> Option<EvaluationPoint> {
        let finite = self.evaluations.iter().filter(|point| point.loss.is_finite());
        finite.min_by(|a, b| a.loss.total_cmp(&b.loss)).copied()
    }

    /// The last finite training loss.
    pub fn last_loss(&self) -> Option<f64> {
        self.steps.iter().rev().map(|point| point.loss).find(|loss| loss.is_finite())
    }

    /// Tokens trained on after each of `steps`; `tokens_per_step` is for lines of an earlier version, which lack them.
    pub fn tokens(&self, tokens_per_step: f64) -> Vec<f64> {
        let of =
            |point: &StepPoint| if point.tokens.is_nan() { point.step as f64 * tokens_per_step } else { point.tokens };
        self.steps.iter().map(of).collect()
    }

    /// Tokens per second over all steps with a known speed.
    pub fn average_speed(&self, tokens_per_step: f64) -> Option<f64> {
        let (tokens, seconds) = (self.tokens(tokens_per_step), self.training_seconds(tokens_per_step));
        let unknown = self.steps.iter().zip(&tokens).scan(0.0, |before, (point, tokens)| {
            let more = tokens - std::mem::replace(before, *tokens);
            Some(if point.tokens_per_s > 0.0 { 0.0 } else { more })
        });
        let known = tokens.last()? - unknown.sum::<f64>();
        seconds
            .last()
            .filter(|seconds| **seconds > 0.0)
            .map(|seconds| known / seconds)
            .filter(|speed| speed.is_finite())
    }

    /// Training seconds after each of `steps`, from the logged speeds, without pauses and evaluations.
    pub fn training_seconds(&self, tokens_per_step: f64) -> Vec<f64> {
        let (mut seconds, mut before) = (0.0, 0.0);
        let tokens = self.tokens(tokens_per_step);
        let spent = |(point, tokens): (&StepPoint, &f64)| {
            let more = (tokens - std::mem::replace(&mut before, *tokens)) / point.tokens_per_s;
            seconds += if more.is_finite() && more > 0.0 { more } else { 0.0 };
            seconds
        };
        self.steps.iter().zip(&tokens).map(spent).collect()
    }

    /// [`training_seconds`](Metrics::training_seconds) of the steps up to this one.
    pub fn training_seconds_until(&self, step: u64, tokens_per_step: f64) -> f64 {
        let count = self.steps.iter().take_while(|point| point.step <= step).count();
        self.training_seconds(tokens_per_step)[..count].last().copied().unwrap_or(0.0)
    }
}
