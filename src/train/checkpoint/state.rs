//! `trainer_state.json` of a checkpoint: all that a run must know to go on, besides weights, moments and configuration.

use crate::config::TrainConfig;
use crate::data::Position;
use crate::train::evaluation::evaluate::Evaluation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a run stands.
///
/// There is no state of a random number generator: dropout's masks follow from the seed and the number of the pass, the
/// batches from the seed and the loader's position, and the learning rate from the step, but for what `plateau` and the
/// guard multiply it by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// The rustyflow that saved it.
    pub version: String,
    /// What it computed on, all of it: the same bits are promised on the same devices only.
    pub device: String,
    pub data: DataHash,
    /// Updates done.
    pub step: usize,
    /// Updates that the run is to have.
    pub total_steps: usize,
    /// Tokens learned from: targets, without prompts and padding. `None` of a checkpoint of an earlier version.
    #[serde(default)]
    pub tokens: Option<u64>,
    /// Where the loader stands.
    pub position: Position,
    /// Of the last logged step.
    pub train_loss: Option<f64>,
    pub evaluated: Option<Evaluated>,
    pub best: Option<Best>,
    #[serde(default)]
    pub guard: GuardState,
    #[serde(default)]
    pub plateau: Plateau,
    /// Bytes of the run's files that grow by lines, by name: what lies beyond was written after this moment.
    pub appended: BTreeMap<String, u64>,
}

/// What the guard knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuardState {
    /// How often the run went back to a checkpoint.
    pub rollbacks: usize,
    /// What the schedule's learning rate is multiplied by.
    pub learning_rate_factor: f64,
    /// The last logged losses, oldest first, if spikes are looked for.
    pub losses: Vec<f64>,
    /// Evaluations since the best.
    pub stale_evaluations: usize,
}

impl Default for GuardState {
    fn default() -> GuardState {
        GuardState { rollbacks: 0, learning_rate_factor: 1.0, losses: Vec::new(), stale_evaluations: 0 }
    }
}

/// What `train.schedule = "plateau"` has come to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Plateau {
    /// What the peak of the learning rate is multiplied by.
    pub factor: f64,
    /// Evaluations since the best, or since the learning rate fell.
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

/// What was learnt from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataHash {
    /// Of its documents, and of how they are split.
    pub text_sha256: String,
    /// Of the token files of both splits.
    pub tokens_sha256: String,
}

impl TrainerState {
    /// The same without what only comes to be known later: two states of one moment are equal.
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
