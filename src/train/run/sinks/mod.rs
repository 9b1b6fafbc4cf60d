//! Sinks of a run's metrics: always `metrics.jsonl`, optionally CSV and TensorBoard's event files.

mod csv;
mod tensorboard;

use super::events::Event;
use super::folder::RunFolder;
use crate::Result;
use crate::config::LogConfig;
use crate::train::checkpoint::{METRICS, SAMPLES};
use jiff::Timestamp;
use serde_json::Value;

/// Receives the records of a run in order.
pub(in crate::train) trait Sink {
    /// # Errors
    /// If it cannot be written.
    fn add(&mut self, record: &Record, folder: &mut RunFolder) -> Result<()>;
}

/// Opens the configured sinks of a run, to continue after `step` steps; later records are removed.
///
/// # Errors
/// If a file cannot be created.
pub(in crate::train) fn open(log: &LogConfig, folder: &mut RunFolder, step: usize) -> Result<Vec<Box<dyn Sink>>> {
    folder.lines().create(METRICS)?;
    if log.samples {
        folder.lines().create(SAMPLES)?;
    }
    let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(JsonLines)];
    if log.csv {
        sinks.push(Box::new(csv::Csv::open(folder)?));
    }
    if log.tensorboard {
        sinks.push(Box::new(tensorboard::TensorBoard::open(folder.path(), step)?));
    }
    Ok(sinks)
}

/// Numbers of a step that are kept, or that the run went back.
pub(in crate::train) struct Record {
    time: Timestamp,
    step: usize,
    /// Whether the run went back to `step`: what sinks hold of later steps is void.
    went_back: bool,
    /// As `metrics.jsonl` has it.
    line: Value,
}

/// A number of a record.
struct Scalar {
    /// Of which lines of `metrics.jsonl` it is, and its name there.
    kind: &'static str,
    key: &'static str,
    /// Its names in TensorBoard and in the CSV file.
    tag: &'static str,
    column: &'static str,
}

const fn scalar(kind: &'static str, key: &'static str, tag: &'static str, column: &'static str) -> Scalar {
    Scalar { kind, key, tag, column }
}

/// All of them, in the order of the CSV file's columns.
const SCALARS: [Scalar; 19] = [
    scalar("train", "epoch", "train/epoch", "epoch"),
    scalar("train", "loss", "train/loss", "train_loss"),
    scalar("train", "learning_rate", "train/learning_rate", "learning_rate"),
    scalar("train", "grad_norm", "train/grad_norm", "grad_norm"),
    scalar("train", "tokens", "train/tokens", "tokens"),
    scalar("train", "tokens_per_s", "train/tokens_per_s", "tokens_per_s"),
    scalar("train", "loss_scale", "train/loss_scale", "loss_scale"),
    scalar("train", "overflows", "train/overflows", "overflows"),
    scalar("eval", "loss", "validation/loss", "validation_loss"),
    scalar("eval", "perplexity", "validation/perplexity", "perplexity"),
    scalar("eval", "bits_per_byte", "validation/bits_per_byte", "bits_per_byte"),
    scalar("train", "reward_chosen", "train/reward_chosen", "reward_chosen"),
    scalar("train", "reward_rejected", "train/reward_rejected", "reward_rejected"),
    scalar("train", "reward_accuracy", "train/reward_accuracy", "reward_accuracy"),
    scalar("train", "reward_margin", "train/reward_margin", "reward_margin"),
    scalar("eval", "reward_chosen", "validation/reward_chosen", "validation_reward_chosen"),
    scalar("eval", "reward_rejected", "validation/reward_rejected", "validation_reward_rejected"),
    scalar("eval", "reward_accuracy", "validation/reward_accuracy", "validation_reward_accuracy"),
    scalar("eval", "reward_margin", "validation/reward_margin", "validation_reward_margin"),
];

impl Record {
    /// The record of an event, if it is recorded.
    pub(in crate::train) fn new(event: &Event) -> Option<Record> {
        let (step, went_back) = match event {
            Event::Step(numbers) => (numbers.step, false),
            Event::Evaluated { step, .. } => (*step, false),
            Event::RolledBack { step, .. } => (*step, true),
            _ => return None,
        };
        let (time, mut line) = (Timestamp::now(), event.json()?);
        line["time"] = time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string().into();
        Some(Record { time, step, went_back, line })
    }

    /// Its numbers as in `metrics.jsonl`: null means not finite, or an unknown speed.
    fn scalars(&self) -> impl Iterator<Item = (&'static Scalar, &Value)> {
        let of_kind = SCALARS.iter().filter(|scalar| self.line["kind"] == scalar.kind);
        let numbers = of_kind.filter_map(|scalar| Some((scalar, self.line.get(scalar.key)?)));
        numbers.filter(|(scalar, number)| scalar.key != "tokens_per_s" || !number.is_null())
    }
}

/// `metrics.jsonl`
struct JsonLines;

impl Sink for JsonLines {
    fn add(&mut self, record: &Record, folder: &mut RunFolder) -> Result<()> {
        folder.lines().add(METRICS, None, &record.line.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::{LossScale, Rewards, Step};

    /// A step of a run in mixed precision whose loss is no number.
    pub(in crate::train) fn step_without_loss(step: usize) -> Event {
        let loss_scale = Some(LossScale { scale: 65536.0, overflows: 2 });
        let rewards = Some(Rewards { chosen: Some(0.5), rejected: Some(0.25), accuracy: Some(1.0) });
        let (tokens, tokens_per_s) = (Some(4096), Some(1234.5));
        let (epoch, loss, learning_rate, grad_norm) = (0.5, f64::NAN, 0.1, 0.25);
        Event::Step(Step { step, epoch, loss, learning_rate, grad_norm, tokens, tokens_per_s, loss_scale, rewards })
    }

    #[test]
    fn every_number_of_a_step_is_a_scalar() {
        let record = Record::new(&step_without_loss(3)).unwrap();
        let (mut keys, lines): (Vec<&str>, _) = (record.scalars().map(|(s, _)| s.key).collect(), &record.line);
        keys.extend(["kind", "step", "time"]);
        let mut expected: Vec<&str> = lines.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort();
        expected.sort();
        assert_eq!(keys, expected);
    }
}
