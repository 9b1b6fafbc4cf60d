//! The proportion in which devices share the sequences of a step: `[16, 4]`, or `auto`.

use serde::{Deserialize, Serialize};

/// What `train.device_batch` expects.
pub(super) const EXPECTED: &str = "auto, or a list of integers above 0, as in [16, 4]";

/// The proportion in which devices share the sequences of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeviceBatch {
    /// Given proportions, one number per device. Empty: equal shares.
    Parts(Vec<usize>),
    /// By measured speed at the start.
    Measured(Auto),
}

/// The word `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    Auto,
}

impl DeviceBatch {
    pub const AUTO: DeviceBatch = DeviceBatch::Measured(Auto::Auto);
}

impl Default for DeviceBatch {
    fn default() -> DeviceBatch {
        DeviceBatch::Parts(Vec::new())
    }
}
