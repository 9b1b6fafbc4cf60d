//! Number of steps of a run, and its learning-rate schedule.

use crate::Result;
use crate::config::{self, Config, Resolved, TrainLength};
use crate::data::Loader;
use crate::optim::{LearningRate, Schedule};

/// Updates of a run over the loader's batches, and updates per epoch. Resolves what depends on their number.
///
/// # Errors
/// If the schedule does not fit in so many updates.
pub(in crate::train) fn settle_length(resolved: &mut Resolved, loader: &Loader) -> Result<(usize, f64)> {
    let train = &resolved.config.train;
    let steps_per_epoch = loader.batches_per_epoch() / train.grad_accum_steps as f64;
    let steps = total_steps(train.length(), steps_per_epoch);
    resolved.fit_length(steps)?;
    Ok((steps, steps_per_epoch))
}

fn total_steps(length: TrainLength, steps_per_epoch: f64) -> usize {
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
