//! The trace of a run: recorded by its device's profiler, written at its end.

use super::options::TrainOptions;
use crate::profile::Trace;
use crate::{Device, Error, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The trace's name in a run's folder.
const TRACE: &str = "trace.json";

/// A trace under way, until it is dropped.
pub(super) struct RunTrace {
    trace: Arc<Trace>,
    device: Device,
    /// `None`: into the run's folder.
    file: Option<PathBuf>,
}

impl RunTrace {
    /// Begins the trace that is asked for, if one is.
    ///
    /// # Errors
    /// If its file cannot be written.
    pub(super) fn begin(options: &TrainOptions) -> Result<Option<RunTrace>> {
        let Some(file) = options.trace else { return Ok(None) };
        file.map_or(Ok(()), |file| create(file).map(drop))?;
        let trace = Arc::new(Trace::new(options.started));
        let device = options.device.clone();
        device.profiler().set_trace(Some(trace.clone()));
        Ok(Some(RunTrace { trace, device, file: file.map(Path::to_path_buf) }))
    }

    pub(super) fn recorder(&self) -> Arc<Trace> {
        self.trace.clone()
    }

    /// Writes it, of the run in this folder. Returns what should be said about it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(&self, folder: &Path) -> Result<String> {
        let file = self.file.clone().unwrap_or_else(|| folder.join(TRACE));
        let mut out = BufWriter::new(create(&file)?);
        let written = self.trace.write(&self.device.describe(), &mut out).and_then(|()| out.flush());
        written.map_err(|e| Error::io("write", &file, e))?;
        let ends = self.trace.full().map_or(String::new(), |(at, events)| {
            format!("; it ends {:.1} s after the start, where it had {events} events", at.as_secs_f64())
        });
        Ok(format!("the trace is in {}{ends}", file.display()))
    }
}

impl Drop for RunTrace {
    fn drop(&mut self) {
        self.device.profiler().set_trace(None);
    }
}

fn create(file: &Path) -> Result<File> {
    File::create(file).map_err(|e| Error::io("create", file, e))
}
