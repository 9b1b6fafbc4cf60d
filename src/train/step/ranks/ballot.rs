//! What the ranks of a step agree on by way of the host: whether it is an update, and who updates what.

use crate::comm::{Background, Encoded, Memory, Wire};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A rank's ballot.
pub(super) struct Ballot {
    pub comm: Arc<Background>,
    /// How long the rank has waited for others.
    waited: Arc<Mutex<Duration>>,
}

impl Ballot {
    pub fn new(comm: Arc<Background>, waited: Arc<Mutex<Duration>>) -> Ballot {
        Ballot { comm, waited }
    }

    /// Whether no rank votes against the update, as this one does if it `failed`.
    ///
    /// # Errors
    /// If a rank failed otherwise.
    pub fn vote(&self, failed: bool) -> Result<bool> {
        let started = Instant::now();
        let own = vec![f32::from(u8::from(failed))];
        let failures = self.comm.begin_all_reduce(move || Ok(Encoded::new(own, Wire::F32))).wait()?;
        self.add_waited(started);
        Ok(failures.to_f32() == [0.0])
    }

    /// The part of the parameters that each rank updates, of which this one's is `own`.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn parts(&self, own: &Range<usize>) -> Result<Vec<Range<usize>>> {
        let words = [own.start as u64, own.end as u64];
        let all = self.comm.all_gather(bytemuck::cast_slice(&words).into())?;
        let part = |bytes: Memory| match bytemuck::pod_collect_to_vec::<u8, u64>(&bytes)[..] {
            [start, end] => Ok(start as usize..end as usize),
            _ => Err(Error::Communication("a rank sent a malformed part of the parameters".into())),
        };
        all.into_iter().map(part).collect()
    }

    pub fn add_waited(&self, since: Instant) {
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += since.elapsed();
    }
}
