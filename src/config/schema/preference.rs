//! `[preference]`: losses of preferences.

use super::Config;
use crate::config::Objective;
use serde::{Deserialize, Serialize};

/// `[preference]`: how strongly preferences are learned, with a `train.objective` other than `next_token`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreferenceConfig {
    /// β, which multiplies log-probabilities: the higher, the closer the model stays to its reference. Default 0: 0.1,
    /// of `simpo` 2.
    pub beta: f64,
    /// γ of `simpo`, by how much the chosen answer is to be better. Default 1.
    pub gamma: f64,
    /// Share of pairs in which the rejected answer is assumed to be the better one, in [0, 0.5). Default 0.
    pub label_smoothing: f64,
    /// Weight of the mean cross-entropy of chosen answers in the loss. Default 0; `orpo` always has 1.
    pub sft_weight: f64,
    /// `kto`: weight of desirable answers. Default 1.
    pub desirable_weight: f64,
    /// `kto`: weight of undesirable answers. Default 1.
    pub undesirable_weight: f64,
}

impl Default for PreferenceConfig {
    fn default() -> Self {
        PreferenceConfig {
            beta: 0.0,
            gamma: 1.0,
            label_smoothing: 0.0,
            sft_weight: 0.0,
            desirable_weight: 1.0,
            undesirable_weight: 1.0,
        }
    }
}

impl Config {
    /// β: `preference.beta`, or the objective's default.
    pub fn beta(&self) -> f64 {
        match self.preference.beta {
            0.0 if self.train.objective == Objective::Simpo => 2.0,
            0.0 => 0.1,
            beta => beta,
        }
    }
}
