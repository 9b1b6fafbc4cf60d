//! The barrier between the threads of a process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::call::Call;
use crate::{Error, Result};

/// A barrier that identifies its ranks, and fails for all of them with one reason if one does not arrive.
pub(super) struct Meeting {
    names: Vec<String>,
    /// The number of the first rank, which errors count from.
    first: AtomicUsize,
    /// How long a rank waits for the others; `None` is without end.
    timeout: Option<Duration>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Grows when all ranks have met.
    round: u64,
    /// The call of each rank that has arrived in this round.
    arrived: Vec<Option<Call>>,
    /// How each rank went that will not come again.
    gone: Vec<Option<&'static str>>,
    failure: Option<String>,
}

impl Meeting {
    /// A meeting of `size` ranks, of which those past the end of `names` are known by number alone.
    pub fn new(size: usize, timeout: Option<Duration>, names: &[String]) -> Meeting {
        let state = State { round: 0, arrived: vec![None; size], gone: vec![None; size], failure: None };
        Meeting {
            names: names.to_vec(),
            first: AtomicUsize::new(0),
            timeout,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Makes errors count the ranks from `first`.
    pub fn number_from(&self, first: usize) {
        self.first.store(first, Ordering::Relaxed);
    }

    /// A rank as errors call it.
    pub fn name(&self, rank: usize) -> String {
        let number = self.first.load(Ordering::Relaxed) + rank;
        match self.names.get(rank) {
            Some(name) => format!("rank {number} ({name})"),
            None => format!("rank {number}"),
        }
    }

    /// Waits until every rank has arrived with a matching call.
    ///
    /// # Errors
    /// If a rank ended, aborted, made another call or timed out, now or earlier.
    pub fn meet(&self, rank: usize, call: Call) -> Result<()> {
        let mut state = self.lock();
        state.check()?;
        state.arrived[rank] = Some(call);
        if let Some((rank, how)) = state.gone.iter().enumerate().find_map(|(rank, how)| Some((rank, (*how)?))) {
            return self.fail(&mut state, format!("{} {how}", self.name(rank)));
        }
        if let Some(calls) = state.arrived.iter().copied().collect::<Option<Vec<Call>>>() {
            if let Some(reason) = Call::disagreement(&calls, |rank| self.name(rank)) {
                return self.fail(&mut state, reason);
            }
            state.arrived.fill(None);
            state.round += 1;
            self.changed.notify_all();
            return Ok(());
        }
        self.wait(state, call)
    }

    /// Fails the barrier for all ranks with this reason, unless it has failed before.
    pub fn end(&self, reason: String) {
        let _ = self.fail::<()>(&mut self.lock(), reason);
    }

    /// Marks `rank` as gone, with the reason. It becomes an error only when the others need it.
    pub fn leave(&self, rank: usize, how: &'static str) {
        let mut state = self.lock();
        state.gone[rank] = Some(how);
        if state.arrived.iter().any(Option::is_some) {
            let _ = self.fail::<()>(&mut state, format!("{} {how}", self.name(rank)));
        }
    }

    /// # Errors
    /// If the meeting has failed.
    pub fn check(&self) -> Result<()> {
        self.lock().check()
    }

    /// Waits for the end of the round that `state` is in.
    fn wait(&self, state: MutexGuard<State>, call: Call) -> Result<()> {
        let round = state.round;
        let waits = |state: &mut State| state.round == round && state.failure.is_none();
        let mut state = match self.timeout {
            None => self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                self.changed.wait_timeout_while(state, timeout, waits).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        // A failure after the round was complete is one of the next.
        if state.round != round {
            return Ok(());
        }
        state.check()?;
        let missing: Vec<String> = (0..state.arrived.len())
            .filter(|&rank| state.arrived[rank].is_none())
            .map(|rank| self.name(rank))
            .collect();
        let waited = self.timeout.unwrap_or_default().as_secs_f64();
        self.fail(&mut state, format!("{} did not reach {} within {waited} s", missing.join(", "), call.kind))
    }

    /// Fails for all ranks, for the reason that was first.
    fn fail<T>(&self, state: &mut State, reason: String) -> Result<T> {
        let reason = state.failure.get_or_insert(reason).clone();
        self.changed.notify_all();
        Err(Error::Communication(reason))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check(&self) -> Result<()> {
        match &self.failure {
            Some(reason) => Err(Error::Communication(reason.clone())),
            None => Ok(()),
        }
    }
}
