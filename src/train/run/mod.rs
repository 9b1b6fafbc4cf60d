//! A run's folder and everything that reports to it: events, lines, records, timings.

pub(super) mod events;
pub(super) mod folder;
pub(super) mod line_files;
pub(super) mod lock;
pub(super) mod log;
pub(super) mod options;
pub(super) mod overfitting;
pub(super) mod record;
pub(super) mod sinks;
pub(super) mod throughput;
pub(super) mod trace;
