//! The folder that keeps what the command compiled and measured for its next run.

use etcetera::base_strategy::{BaseStrategy, choose_native_strategy};
use std::env;
use std::path::PathBuf;

/// `RUSTYFLOW_CACHE_DIR`, or `rustyflow` in the user's folder of caches. It need not exist.
pub fn folder() -> Option<PathBuf> {
    let set = env::var_os("RUSTYFLOW_CACHE_DIR").filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set.or_else(|| Some(choose_native_strategy().ok()?.cache_dir().join("rustyflow")));
    if folder.is_none() {
        tracing::warn!(
            "this user has no folder for caches, so every run compiles its shaders anew; name one in \
            RUSTYFLOW_CACHE_DIR"
        );
    }
    folder
}
