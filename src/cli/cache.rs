//! The folder that keeps what the command compiled and measured for its next run.

pub use crate::cache::user_folder as folder;
