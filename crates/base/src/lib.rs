//! The base of all rustyflow crates: the error type, readable units, device names, and caches on disk.

pub mod cache;
pub mod copy;
pub mod device_kind;
pub mod error;
pub mod hub_cache;
pub mod shell_words;
pub mod units;

pub use error::{Error, Result};
