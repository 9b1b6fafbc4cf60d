//! What a run needs besides its configuration.

use super::events::Event;
use crate::comm::Launch;
use crate::{Device, Result};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// What a run needs besides its configuration.
pub struct TrainOptions<'a> {
    pub device: Device,
    /// The devices of the other ranks of this process, which share the sequences of each step with it.
    pub others: &'a [Device],
    /// Where this process is one of several that a launcher of MPI programs has started.
    pub launch: Option<Launch>,
    /// When the command began, from where the report counts.
    pub started: Instant,
    /// Opens the device again if it is lost; without it, that ends the run.
    pub reopen: Option<&'a dyn Fn() -> Result<Device>>,
    /// Where data sets are kept.
    pub data_dir: &'a Path,
    /// Where token files are kept for the next run; `None` makes them anew for each.
    pub cache_dir: Option<&'a Path>,
    /// The folder of the run to resume; `None` starts a new one.
    pub resume: Option<&'a Path>,
    /// Set to end the run after the step under way, saved and reported as usual.
    pub stop: &'a AtomicBool,
    /// The file that gets a block with the run's timings at its end: see `log.file`.
    pub training_log: Option<&'a Path>,
    /// Writes a trace of the run to this file, or to `trace.pftrace` in its folder.
    pub trace: Option<Option<&'a Path>>,
    /// Receives everything that happens.
    pub on_event: &'a mut dyn FnMut(&Event),
}
