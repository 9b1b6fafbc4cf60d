//! Texts that wait for a slot, in the order of their arrival.

use super::job::Job;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A bounded queue between connections and the model.
pub(super) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
    /// Most texts that wait.
    pub limit: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    closed: bool,
}

/// Why texts were not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    /// The server is stopping.
    Closed,
}

impl Queue {
    pub fn new(limit: usize) -> Queue {
        Queue { state: Mutex::default(), arrived: Condvar::new(), limit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the texts of a request, all or none. Those whose client is gone make room.
    pub fn push(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        let mut state = self.state();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.waiting.len() + jobs.len() > self.limit {
            state.waiting.retain(|job| !job.events.is_closed());
        }
        if state.waiting.len() + jobs.len() > self.limit {
            return Err(Refused::Full);
        }
        state.waiting.extend(jobs);
        self.arrived.notify_one();
        Ok(())
    }

    /// The next text whose client still waits.
    pub fn pop(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            let job = state.waiting.pop_front()?;
            if !job.events.is_closed() {
                return Some(job);
            }
        }
    }

    /// Waits until a text arrives, or for this long.
    pub fn wait(&self, timeout: Duration) {
        let state = self.state();
        if state.waiting.is_empty() {
            drop(self.arrived.wait_timeout(state, timeout));
        }
    }

    pub fn len(&self) -> usize {
        self.state().waiting.len()
    }

    /// Takes no further texts.
    pub fn close(&self) {
        self.state().closed = true;
    }

    pub fn is_closed(&self) -> bool {
        self.state().closed
    }
}
