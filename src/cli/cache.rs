//! The folder that keeps what the command compiled and measured for its next run.

use std::env;
use std::path::PathBuf;

/// `RUSTYFLOW_CACHE_DIR`, or `rustyflow` in the user's folder of caches. It need not exist.
pub fn folder() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let users = || {
        if cfg!(windows) {
            set("LOCALAPPDATA")
        } else if cfg!(target_vendor = "apple") {
            env::home_dir().map(|home| home.join("Library/Caches"))
        } else {
            // The XDG specification has relative paths ignored.
            let given = set("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
            given.or_else(|| Some(env::home_dir()?.join(".cache")))
        }
    };
    let folder = set("RUSTYFLOW_CACHE_DIR").or_else(|| Some(users()?.join("rustyflow")));
    if folder.is_none() {
        tracing::warn!(
            "this user has no folder for caches, so every run compiles its shaders anew; name one in RUSTYFLOW_CACHE_DIR"
        );
    }
    folder
}
