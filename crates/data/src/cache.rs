//! Cached facts about texts, as JSON files.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The stored value; `None` if there is none or it is damaged, and must be recomputed.
pub(super) fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Stores a value for the next run. A failure to write is no error: the next run recomputes the value.
pub(super) fn store(path: &Path, value: &impl Serialize) {
    rustyflow_base::cache::store(path, &serde_json::to_vec(value).expect("plain values serialize"));
}
