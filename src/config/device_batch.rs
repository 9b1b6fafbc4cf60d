//! In what proportion devices share the sequences of a step, as users write it: `[16, 4]`, or `auto`.

use serde::{Deserialize, Serialize};

/// What `train.device_batch` expects.
pub(super) const EXPECTED: &str = "auto, or a list of whole numbers above 0, as in [16, 4]";

/// In what proportion the devices share the sequences of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeviceBatch {
    /// As they are told, a number for each. None: all the same.
    Parts(Vec<usize>),
    /// By how fast each computes, which is measured at the start.
    Measured(Auto),
}

/// The word for what is measured.
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
