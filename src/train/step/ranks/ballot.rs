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
    /// The part of the parameters that each rank updates, once known; empty where each updates all.
    parts: Option<Vec<Range<usize>>>,
}

impl Ballot {
    pub fn new(comm: Arc<Background>, waited: Arc<Mutex<Duration>>) -> Ballot {
        Ballot { comm, waited, parts: None }
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

    /// The part of the parameters that each rank updates, of which this one's is `own`, of so many in all; nothing
    /// where each updates all. All ranks must call it.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn parts(&mut self, own: &Range<usize>, all: usize) -> Result<&[Range<usize>]> {
        if self.parts.is_none() {
            let words = [own.start as u64, own.end as u64];
            let ranges = self.comm.all_gather(bytemuck::cast_slice(&words).into())?;
            let part = |bytes: Memory| match bytemuck::pod_collect_to_vec::<u8, u64>(&bytes)[..] {
                [start, end] => Ok(start as usize..end as usize),
                _ => Err(Error::Communication("a rank sent a malformed part of the parameters".into())),
            };
            let mut parts = ranges.into_iter().map(part).collect::<Result<Vec<_>>>()?;
            if parts.iter().all(|part| part.len() == all) {
                parts.clear();
            }
            self.parts = Some(parts);
        }
        Ok(self.parts.as_deref().unwrap_or_default())
    }

    pub fn add_waited(&self, since: Instant) {
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += since.elapsed();
    }
}
