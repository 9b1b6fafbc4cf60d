//! A worker thread, which prepares every n-th batch.

use super::loader::{Batch, Plan, Todo};
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The thread, which ends when this is dropped.
pub(super) struct Worker {
    /// `None` only while dropping: the thread ends when this end of the queue is gone.
    batches: Option<Receiver<Result<Batch>>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread that prepares the next batch of `todo` and then every `every`-th one.
    ///
    /// # Errors
    /// If the thread could not be started.
    pub fn start(plan: Arc<Plan>, todo: Todo, every: u64) -> Result<Worker> {
        let (sender, batches) = sync_channel(plan.options.prefetch);
        let thread = std::thread::Builder::new()
            .name("batches".into())
            .spawn(move || produce(&plan, todo, every, &sender))
            .map_err(|error| Error::Invalid(format!("cannot start a loader thread: {error}")))?;
        Ok(Worker { batches: Some(batches), thread: Some(thread) })
    }

    /// Waits for its next batch.
    pub fn next_batch(&mut self) -> Result<Batch> {
        let next = self.batches.as_ref().and_then(|batches| batches.recv().ok());
        next.unwrap_or_else(|| Err(Error::Invalid("the loader thread has ended".into())))
    }
}

fn produce(plan: &Plan, mut todo: Todo, every: u64, batches: &SyncSender<Result<Batch>>) {
    let mut order = None;
    while !todo.is_empty() {
        let batch = plan.make(&todo, &mut order);
        let is_last = batch.is_err();
        if batches.send(batch).is_err() || is_last {
            return;
        }
        todo.next += every;
    }
}

impl Worker {
    /// Stops the thread after its current batch, without waiting for it.
    pub fn close(&mut self) {
        self.batches = None;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // It catches panics of the data set, and there is nobody left to tell of others.
            let _ = thread.join();
        }
    }
}
