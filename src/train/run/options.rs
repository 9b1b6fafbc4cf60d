//! Options of a run besides its configuration.

use super::events::Event;
use crate::comm::Launch;
use crate::{Device, Result};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Options of a run besides its configuration.
pub struct TrainOptions<'a> {
    pub device: Device,
    /// The devices of the other ranks of this process, which share the sequences of each step with it.
    pub others: &'a [Device],
    /// Placement of this process, if an MPI launcher started several.
    pub launch: Option<Launch>,
    /// Start of the command, from which the report counts.
    pub started: Instant,
    /// Reopens a lost device; without it, a lost device ends the run.
    pub reopen: Option<&'a dyn Fn() -> Result<Device>>,
    /// Folder of data sets.
    pub data_dir: &'a Path,
    /// Folder of cached token files; `None` disables the cache.
    pub cache_dir: Option<&'a Path>,
    /// The folder of the run to resume; `None` starts a new one.
    pub resume: Option<&'a Path>,
    /// Set it to stop the run after the current step, with a checkpoint and reports.
    pub stop: &'a AtomicBool,
    /// The file to which the run appends its timings: see `log.file`.
    pub training_log: Option<&'a Path>,
    /// Writes a trace of the run to this file, or to `trace.pftrace` in its folder.
    pub trace: Option<Option<&'a Path>>,
    /// Receives all events.
    pub on_event: &'a mut dyn FnMut(&Event),
}
