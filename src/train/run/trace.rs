//! The trace of a run: recorded by its device's profiler, and written during the run.

use super::options::TrainOptions;
use crate::profile::Trace;
use crate::{Device, Error, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The trace's name in a run's folder.
const TRACE: &str = "trace.pftrace";

/// A trace under way, until it is dropped.
pub(in crate::train) struct RunTrace {
    trace: Arc<Trace>,
    device: Device,
    /// `None` until the run's folder is there.
    file: Option<PathBuf>,
}

impl RunTrace {
    /// Starts the requested trace, if any.
    ///
    /// # Errors
    /// If its file cannot be created.
    pub(in crate::train) fn begin(options: &TrainOptions) -> Result<Option<RunTrace>> {
        let Some(file) = options.trace else { return Ok(None) };
        let device = options.device.clone();
        let trace = Arc::new(Trace::new(options.started, &device.describe()));
        let mut trace = RunTrace { trace, device, file: None };
        file.map_or(Ok(()), |file| trace.open(file.to_path_buf()))?;
        trace.device.profiler().set_trace(Some(trace.trace.clone()));
        Ok(Some(trace))
    }

    /// Writes it into the run's folder if it has no other place.
    ///
    /// # Errors
    /// If its file cannot be created.
    pub(in crate::train) fn open_in(&mut self, folder: &Path) -> Result<()> {
        if self.file.is_none() { self.open(folder.join(TRACE)) } else { Ok(()) }
    }

    fn open(&mut self, file: PathBuf) -> Result<()> {
        let out = File::create(&file).map_err(|e| Error::io("create", &file, e))?;
        self.trace.write_to(Box::new(out));
        self.file = Some(file);
        Ok(())
    }

    pub(in crate::train) fn recorder(&self) -> Arc<Trace> {
        self.trace.clone()
    }

    /// Writes the rest of the trace; returns a note for the user.
    ///
    /// # Errors
    /// If any of it could not be written.
    pub(in crate::train) fn finish(&self) -> Result<String> {
        let file = self.file.as_deref().unwrap_or(Path::new(TRACE));
        self.trace.finish().map_err(|e| Error::io("write", file, e))?;
        let ends = self.trace.full().map_or(String::new(), |(at, events)| {
            format!("; it ends {:.1} s after the start, where it had {events} events", at.as_secs_f64())
        });
        Ok(format!("the trace is in {}{ends}", file.display()))
    }
}

impl Drop for RunTrace {
    fn drop(&mut self) {
        self.device.profiler().set_trace(None);
        // Of a run that failed too, whose own error is what is told.
        let _ = self.trace.finish();
    }
}
