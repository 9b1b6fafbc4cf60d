//! Communication between the ranks of a job, whether they are threads, processes or both.
//!
//! A [`Communicator`] makes the calls of one rank: [`threads`] makes those of one process, `MpiComm` (feature `mpi`) is
//! for one rank per process, and [`Hierarchy`] for processes of several ranks each. [`Background`] makes the calls in a
//! thread of its own, so that the rank continues to compute.
//!
//! Sums are the same bits on every rank and in every run: each element is summed in f32, in rank order starting with
//! rank 0. [`ThreadComm`] and `MpiComm` therefore agree for the same number of ranks.

mod background;
mod call;
#[cfg(target_os = "linux")]
mod cards;
mod encoded;
mod hierarchy;
mod launch;
mod meeting;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(any(feature = "mpi", all(feature = "testing", target_os = "linux")))]
mod shared_memory;
mod threads;
mod wire;
mod worker;

pub use background::{Background, Pending};
#[cfg(target_os = "linux")]
pub use cards::{Card, CardGroup, CardLibraries, CardMemory, GroupId};
pub use encoded::{Encoded, Memory, Sums};
pub use hierarchy::Hierarchy;
pub use launch::Launch;
#[cfg(feature = "mpi")]
pub use mpi::MpiComm;
pub use threads::{ThreadComm, threads};
pub use wire::Wire;

pub use rustyflow_base::{Error, Result};

/// Collective calls of the ranks of a job. Every rank must make the same calls in the same order.
///
/// Each call waits for the other ranks and fails if one ended, aborted, made another call or timed out. After a
/// failure, every later call fails with the same reason.
pub trait Communicator: Send {
    /// The number of this rank, below [`size`](Communicator::size).
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// The sums of the ranks' values, added in f32 in the order of the ranks: the same bits on all of them, whatever
    /// the timing. With [`Wire::F16`] the values and the sums are rounded to f16.
    ///
    /// # Errors
    /// If the ranks did not all make this call with as many values of one wire.
    fn all_reduce(&mut self, values: Encoded) -> Result<Sums>;

    /// Replaces `bytes` by those of rank 0, which may be of another length.
    ///
    /// # Errors
    /// If the ranks did not all make this call.
    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<()>;

    /// The bytes of every rank, in the order of the ranks, on every rank. Their lengths may differ.
    ///
    /// # Errors
    /// If the ranks did not all make this call.
    fn all_gather(&mut self, bytes: Memory) -> Result<Vec<Memory>>;

    /// The bytes of every rank, in the order of the ranks, on rank 0; nothing on the others. Their lengths may differ.
    ///
    /// # Errors
    /// If the ranks did not all make this call.
    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// If the ranks did not all make this call.
    fn barrier(&mut self) -> Result<()>;

    /// Ends the job for all ranks: whoever waits for this rank, or will, gets an error that names the rank and the
    /// reason.
    fn abort(&mut self, reason: &str);
}

impl Communicator for Box<dyn Communicator> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn size(&self) -> usize {
        (**self).size()
    }

    fn all_reduce(&mut self, values: Encoded) -> Result<Sums> {
        (**self).all_reduce(values)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        (**self).broadcast(bytes)
    }

    fn all_gather(&mut self, bytes: Memory) -> Result<Vec<Memory>> {
        (**self).all_gather(bytes)
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        (**self).gather(bytes)
    }

    fn barrier(&mut self) -> Result<()> {
        (**self).barrier()
    }

    fn abort(&mut self, reason: &str) {
        (**self).abort(reason);
    }
}

#[cfg(feature = "testing")]
pub mod testing;
