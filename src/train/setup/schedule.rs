//! Number of steps of a run, and its learning-rate schedule.

use crate::config::{self, Config, TrainLength};
use crate::optim::{LearningRate, Schedule};

/// The updates that a run makes.
pub(in crate::train) fn total_steps(length: TrainLength, steps_per_epoch: f64) -> usize {
    match length {
        TrainLength::Steps(steps) => steps,
        TrainLength::Epochs(epochs) => ((epochs * steps_per_epoch).round() as usize).max(1),
    }
}

/// The learning-rate schedule over `total_steps`.
pub(in crate::train) fn learning_rate(config: &Config, total_steps: usize) -> LearningRate {
    let t = &config.train;
    LearningRate {
        schedule: match t.schedule {
            config::Schedule::Cosine => Schedule::Cosine,
            config::Schedule::Linear => Schedule::Linear,
            config::Schedule::Constant => Schedule::Constant,
            config::Schedule::Wsd if t.decay_steps == 0 => Schedule::Wsd { decay_steps: (total_steps / 5).max(1) },
            config::Schedule::Wsd => Schedule::Wsd { decay_steps: t.decay_steps },
            config::Schedule::Plateau => Schedule::Plateau,
        },
        peak: t.learning_rate,
        minimum: t.min_learning_rate,
        warmup_steps: t.warmup_steps,
        total_steps,
    }
}
