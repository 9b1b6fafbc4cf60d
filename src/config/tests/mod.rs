//! One behaviour of the configuration per test, named by it.

mod agreement;
mod damaged_files;
mod env_files;
mod explaining;
mod groups;
mod layering;
mod recipes;
mod reference;
mod refuses;
mod renamed;

use super::*;
use crate::error::Result;

fn load(text: &str) -> Result<Resolved> {
    Layers::new().toml_str("a.toml", text)?.build()
}

fn load_env(text: &str) -> Result<Resolved> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.env");
    std::fs::write(&path, text).unwrap();
    Layers::new().file(&path)?.build()
}

/// What the user reads.
fn error_of(result: Result<Resolved>) -> String {
    result.expect_err("the configuration should be refused").to_string()
}

fn variables(pairs: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect::<Vec<_>>().into_iter()
}

#[track_caller]
fn assert_has(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} should contain {part:?}");
    }
}
