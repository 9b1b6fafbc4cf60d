//! What was learnt of a text, as JSON files that outlast the process.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What was stored there; `None` if nothing was, or it is damaged: then it is made again.
pub(super) fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Keeps a value for the next run. What cannot be written is work for that run, not an error of this one.
pub(super) fn store(path: &Path, value: &impl Serialize) {
    rustyflow_base::cache::store(path, &serde_json::to_vec(value).expect("plain values serialize"));
}
