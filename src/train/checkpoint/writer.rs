//! Writes checkpoints on a separate thread, one at a time, so that training does not wait for the disk: it hashes,
//! writes, flushes, renames and removes old ones.

use super::store::{Checkpoints, Request};
use crate::{Error, Result};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

/// At most one checkpoint being written. Dropping it waits for that.
#[derive(Default)]
pub struct Writer {
    under_way: Option<(usize, JoinHandle<Result<PathBuf>>)>,
}

impl Writer {
    /// Starts writing a checkpoint; the result of the previous one must have been taken.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn begin(&mut self, checkpoints: Checkpoints, request: Request) -> Result<()> {
        assert!(self.under_way.is_none(), "one at a time");
        let step = request.snapshot.state.step;
        let thread = thread::Builder::new().name("checkpoint".into()).spawn(move || checkpoints.save(request));
        let thread = thread.map_err(|e| Error::Invalid(format!("cannot start the checkpoint thread: {e}")))?;
        self.under_way = Some((step, thread));
        Ok(())
    }

    /// Whether a checkpoint is still being written.
    pub fn is_busy(&self) -> bool {
        self.under_way.as_ref().is_some_and(|(_, thread)| !thread.is_finished())
    }

    /// Step and folder of a written checkpoint, once; `None` while it is being written, unless `wait` is set.
    ///
    /// # Errors
    /// If it could not be written.
    pub fn take_written(&mut self, wait: bool) -> Result<Option<(usize, PathBuf)>> {
        match self.under_way.take() {
            Some((step, thread)) if wait || thread.is_finished() => match thread.join() {
                Ok(path) => path.map(|path| Some((step, path))),
                Err(panic) => std::panic::resume_unwind(panic),
            },
            under_way => {
                self.under_way = under_way;
                Ok(None)
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The run's folder is locked as long as someone writes there. What went wrong here is not what ended the run.
        let _ = self.take_written(true);
    }
}
