//! The thread of a `Background`; `background.rs` explains conversations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Communicator;
use crate::{Error, Result};

/// First byte of a message of rank 0.
const HEARTBEAT: u8 = 0;
const COMMAND: u8 = 1;

pub(super) type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// State shared by the thread and its rank.
#[derive(Default)]
pub(super) struct Shared {
    busy_nanoseconds: AtomicU64,
    /// Why the job is to be aborted, until the thread has done so.
    abort: Mutex<Option<String>>,
}

impl Shared {
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy_nanoseconds.load(Ordering::Relaxed))
    }

    /// Makes the thread abort before any other job; the first reason is kept.
    pub fn ask_abort(&self, reason: &str) {
        self.lock_abort().get_or_insert_with(|| reason.to_string());
    }

    fn lock_abort(&self) -> MutexGuard<'_, Option<String>> {
        self.abort.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of the thread.
pub(super) struct Worker {
    communicator: Box<dyn Communicator>,
    shared: Arc<Shared>,
    in_conversation: bool,
    idle: Option<Duration>,
}

impl Worker {
    /// A worker that starts in a conversation; for `idle` see `Background::start`.
    pub fn new(communicator: Box<dyn Communicator>, shared: Arc<Shared>, idle: Option<Duration>) -> Worker {
        Worker { communicator, shared, in_conversation: true, idle }
    }

    /// Does the jobs of the queue until it is closed.
    pub fn run(mut self, queue: &Receiver<Job>) {
        let leads = self.communicator.rank() == 0;
        loop {
            let job = match self.idle.filter(|_| leads && !self.in_conversation) {
                Some(idle) => queue.recv_timeout(idle),
                None => queue.recv().map_err(RecvTimeoutError::from),
            };
            match job {
                Ok(job) => job(&mut self),
                Err(RecvTimeoutError::Timeout) => self.send_heartbeat(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Makes a call of a conversation.
    pub fn call<T>(&mut self, call: impl FnOnce(&mut dyn Communicator) -> Result<T>) -> Result<T> {
        self.heed_abort();
        if self.communicator.rank() == 0 && !self.in_conversation {
            return Err(Error::Invalid(
                "rank 0 made a call after the end of a conversation: it has to send first".into(),
            ));
        }
        let start = Instant::now();
        let result = call(&mut *self.communicator);
        let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.shared.busy_nanoseconds.fetch_add(spent, Ordering::Relaxed);
        result
    }

    /// Sends a command, which begins a conversation.
    pub fn send(&mut self, mut command: Vec<u8>) -> Result<()> {
        self.in_conversation = true;
        command.insert(0, COMMAND);
        self.call(|communicator| communicator.broadcast(&mut command))
    }

    /// Ends a conversation.
    pub fn end(&mut self) {
        self.in_conversation = false;
    }

    fn send_heartbeat(&mut self) {
        self.heed_abort();
        if self.communicator.broadcast(&mut vec![HEARTBEAT]).is_err() {
            // The next call of this rank fails for the same reason.
            self.idle = None;
        }
    }

    /// Waits for a command.
    pub fn receive(&mut self) -> Result<Vec<u8>> {
        let mut message = Vec::new();
        loop {
            self.heed_abort();
            self.communicator.broadcast(&mut message)?;
            match message.first() {
                Some(&HEARTBEAT) => {}
                Some(&COMMAND) => return Ok(message.split_off(1)),
                _ => return Err(Error::Communication("rank 0 made a broadcast where it had to send a command".into())),
            }
        }
    }

    /// Aborts the job, because this rank cannot make a call.
    pub fn abort(&mut self, error: &Error) {
        self.heed_abort();
        self.communicator.abort(&error.to_string());
    }

    /// Aborts the job if that was asked for.
    pub fn heed_abort(&mut self) {
        let reason = self.shared.lock_abort().take();
        if let Some(reason) = reason {
            self.communicator.abort(&reason);
        }
    }
}
