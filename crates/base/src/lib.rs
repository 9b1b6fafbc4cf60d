//! What every crate of rustyflow stands on: the error type, units for people, and files that outlast a process.

pub mod cache;
pub mod copy;
pub mod device_kind;
pub mod error;
pub mod hub_cache;
pub mod shell_words;
pub mod units;

pub use error::{Error, Result};
