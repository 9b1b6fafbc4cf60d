//! `trainer_state.json` of a checkpoint: the state for resuming, besides weights, moments and configuration.

use crate::config::TrainConfig;
use crate::data::Position;
use crate::train::evaluation::evaluate::Evaluation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// State of a run.
///
/// There is no state of a random number generator: dropout masks depend on the seed and the pass, batches on the seed
/// and the loader's position, and the learning rate on the step and the factors of `plateau` and the guard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Version of rustyflow that saved it.
    pub version: String,
    /// All devices of the run: bit-identical resuming requires the same devices.
    pub device: String,
    pub data: DataHash,
    /// Updates done.
    pub step: usize,
    /// Total updates of the run.
    pub total_steps: usize,
    /// Tokens trained on: targets, without prompts and padding. `None` in a checkpoint of an earlier version.
    #[serde(default)]
    pub tokens: Option<u64>,
    /// Position of the loader.
    pub position: Position,
    /// Training loss of the last logged step.
    pub train_loss: Option<f64>,
    pub evaluated: Option<Evaluated>,
    pub best: Option<Best>,
    #[serde(default)]
    pub guard: GuardState,
    #[serde(default)]
    pub plateau: Plateau,
    /// Lengths of the run's line files, bytes by name; later lines were written after this checkpoint.
    pub appended: BTreeMap<String, u64>,
}

/// State of the guard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuardState {
    /// Number of rollbacks.
    pub rollbacks: usize,
    /// Factor of the schedule's learning rate.
    pub learning_rate_factor: f64,
    /// The last logged losses, oldest first, for spike detection.
    pub losses: Vec<f64>,
    /// Evaluations since the best.
    pub stale_evaluations: usize,
}

impl Default for GuardState {
    fn default() -> GuardState {
        GuardState { rollbacks: 0, learning_rate_factor: 1.0, losses: Vec::new(), stale_evaluations: 0 }
    }
}

/// State of `train.schedule = "plateau"`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Plateau {
    /// Factor of the peak learning rate.
    pub factor: f64,
    /// Evaluations since the best one or the last reduction of the learning rate.
    pub stale_evaluations: usize,
}

impl Default for Plateau {
    fn default() -> Plateau {
        Plateau { factor: 1.0, stale_evaluations: 0 }
    }
}

impl Plateau {
    /// After an evaluation that was the best so far, or not.
    pub(in crate::train) fn after(self, best: bool, train: &TrainConfig) -> Plateau {
        let stale_evaluations = if best { 0 } else { self.stale_evaluations + 1 };
        match stale_evaluations >= train.plateau_patience {
            true => Plateau { factor: self.factor * train.plateau_factor, stale_evaluations: 0 },
            false => Plateau { stale_evaluations, ..self },
        }
    }
}

/// The last evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    pub step: usize,
    pub result: Evaluation,
}

/// The evaluation with the lowest validation loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub step: usize,
    pub loss: f64,
}

/// Hashes of the training data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataHash {
    /// Hash of the documents and their split.
    pub text_sha256: String,
    /// Hash of the token files of both splits.
    pub tokens_sha256: String,
}

impl TrainerState {
    /// The state without values that are known only later, so that two states of the same moment are equal.
    pub(in crate::train) fn comparable(&self) -> TrainerState {
        let guard = GuardState { losses: Vec::new(), ..self.guard.clone() };
        TrainerState { train_loss: None, appended: BTreeMap::new(), guard, ..self.clone() }
    }

    /// That of a run which has not begun.
    pub(in crate::train) fn new(device: String, data: DataHash, total_steps: usize) -> TrainerState {
        TrainerState {
            version: env!("CARGO_PKG_VERSION").into(),
            device,
            data,
            step: 0,
            total_steps,
            tokens: Some(0),
            position: Position::default(),
            train_loss: None,
            evaluated: None,
            best: None,
            guard: GuardState::default(),
            plateau: Plateau::default(),
            appended: BTreeMap::new(),
        }
    }
}
