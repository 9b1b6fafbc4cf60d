//! Ranks that are threads of one process.
//!
//! An all-reduce goes through its values in chunks. Each rank hands in its values of a chunk, adds up its own slice of
//! it over all ranks, and takes the slices of the others. So the work is shared, and the memory is bounded and reused.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use super::call::{Call, Kind};
use super::meeting::Meeting;
use super::{Communicator, Wire};
use crate::{Error, Result};

/// Values of a chunk, 16 MiB in f32: the ranks meet twice for each, which takes ten microseconds, or a hundred where
/// threads wake up slowly, and should be little beside the time to add them.
const CHUNK: usize = 1 << 22;

/// More threads than any process is given.
const MOST_RANKS: usize = 1 << 16;

/// One rank of several in a process; see [`threads`].
///
/// Dropping it says that its rank has ended. That is an error for the others only if they need it again.
pub struct ThreadComm {
    rank: usize,
    shared: Arc<Shared>,
}

struct Shared {
    meeting: Meeting,
    slots: Vec<Slot>,
}

/// What one rank shows to the others. Locks are never waited for: between two meetings a rank either writes to its own
/// slot or reads those of all.
#[derive(Default)]
struct Slot {
    handed_in: RwLock<Vec<u8>>,
    /// The sums of this rank's slice of a chunk.
    sums: RwLock<Vec<u8>>,
}

/// Makes `size` ranks that communicate with each other, one for each of as many threads.
///
/// A rank that lets the others wait for longer than `timeout` makes them fail; `None` waits without end. Errors call
/// the ranks by their number and by `names`, such as `gpu:1`.
///
/// # Errors
/// If there are more than 65,536.
pub fn threads(size: usize, timeout: Option<Duration>, names: &[String]) -> Result<Vec<ThreadComm>> {
    if size > MOST_RANKS {
        return Err(Error::Invalid(format!("threads: {size} ranks, and a process has at most {MOST_RANKS}")));
    }
    let slots = (0..size).map(|_| Slot::default()).collect();
    let shared = Arc::new(Shared { meeting: Meeting::new(size, timeout, names), slots });
    Ok((0..size).map(|rank| ThreadComm { rank, shared: shared.clone() }).collect())
}

impl ThreadComm {
    /// Makes the errors of all ranks count from `first`.
    pub(super) fn number_from(&self, first: usize) {
        self.shared.meeting.number_from(first);
    }

    /// Makes all ranks fail for a reason that comes from outside.
    pub(super) fn end(&self, reason: String) {
        self.shared.meeting.end(reason);
    }

    /// Replaces `values` by those of rank 0, of as many.
    ///
    /// # Errors
    /// If the ranks did not all make this call with as many values.
    pub(super) fn share(&mut self, values: &mut [f32]) -> Result<()> {
        let call = Call { kind: Kind::Share, length: values.len() };
        self.begin(values, call)?;
        for chunk in values.chunks_mut(CHUNK) {
            if self.rank == 0 {
                self.hand_in(bytemuck::cast_slice(chunk));
            }
            self.meet(call)?;
            if self.rank != 0 {
                Wire::F32.decode(&read(&self.shared.slots[0].handed_in), chunk);
            }
            self.meet(call)?;
        }
        Ok(())
    }

    fn all_reduce_chunk(&mut self, values: &mut [f32], wire: Wire, call: Call) -> Result<()> {
        let (size, length, slots) = (self.size(), values.len(), &self.shared.slots);
        {
            let mut own = write(&slots[self.rank].handed_in);
            own.resize(length * wire.width(), 0);
            wire.encode(values, &mut own);
        }
        self.meet(call)?;
        {
            let Range { start, end } = slice(length, self.rank, size);
            let bytes = start * wire.width()..end * wire.width();
            let mut sums = write(&slots[self.rank].sums);
            sums.resize(bytes.len(), 0);
            let handed_in: Vec<_> = slots.iter().map(|slot| read(&slot.handed_in)).collect();
            let parts: Vec<&[u8]> = handed_in.iter().map(|values| &values[bytes.clone()]).collect();
            wire.sum(&parts, &mut sums);
        }
        self.meet(call)?;
        for (rank, slot) in slots.iter().enumerate() {
            wire.decode(&read(&slot.sums), &mut values[slice(length, rank, size)]);
        }
        Ok(())
    }

    /// Checks that nothing has failed, for after that others may still be reading what this rank handed in. Without
    /// values there is no chunk to meet for, so the ranks meet here.
    fn begin(&self, values: &[f32], call: Call) -> Result<()> {
        self.shared.meeting.check()?;
        if values.is_empty() { self.meet(call) } else { Ok(()) }
    }

    /// The bytes of every rank, if this one `takes` them.
    fn collect(&self, bytes: &[u8], kind: Kind, takes: bool) -> Result<Vec<Vec<u8>>> {
        self.shared.meeting.check()?;
        let call = Call { kind, length: bytes.len() };
        self.hand_in(bytes);
        self.meet(call)?;
        let slots = self.shared.slots.iter().filter(|_| takes);
        let all = slots.map(|slot| read(&slot.handed_in).clone()).collect();
        self.meet(call)?;
        Ok(all)
    }

    fn hand_in(&self, bytes: &[u8]) {
        let mut own = write(&self.shared.slots[self.rank].handed_in);
        own.clear();
        own.extend_from_slice(bytes);
    }

    fn meet(&self, call: Call) -> Result<()> {
        self.shared.meeting.meet(self.rank, call)
    }
}

impl Communicator for ThreadComm {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.slots.len()
    }

    fn all_reduce(&mut self, values: &mut [f32], wire: Wire) -> Result<()> {
        let call = Call::all_reduce(values, wire);
        self.begin(values, call)?;
        values.chunks_mut(CHUNK).try_for_each(|chunk| self.all_reduce_chunk(chunk, wire, call))
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        self.shared.meeting.check()?;
        let call = Call { kind: Kind::Broadcast, length: bytes.len() };
        if self.rank == 0 {
            self.hand_in(bytes);
        }
        self.meet(call)?;
        if self.rank != 0 {
            bytes.clear();
            bytes.extend_from_slice(&read(&self.shared.slots[0].handed_in));
        }
        self.meet(call)
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.collect(bytes, Kind::AllGather, true)
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.collect(bytes, Kind::Gather, self.rank == 0)
    }

    fn barrier(&mut self) -> Result<()> {
        self.meet(Call { kind: Kind::Barrier, length: 0 })
    }

    fn abort(&mut self, reason: &str) {
        let meeting = &self.shared.meeting;
        meeting.end(format!("{} aborted: {reason}", meeting.name(self.rank)));
    }
}

impl Drop for ThreadComm {
    fn drop(&mut self) {
        let how = if std::thread::panicking() { "panicked" } else { "ended" };
        self.shared.meeting.leave(self.rank, how);
    }
}

/// The elements of `length` that `rank` adds up.
fn slice(length: usize, rank: usize, size: usize) -> Range<usize> {
    length * rank / size..length * (rank + 1) / size
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::comm::testing::{bits, input, on_all, sums_in_order};

    const SHORT: Option<Duration> = Some(Duration::from_millis(200));

    fn names(size: usize) -> Vec<String> {
        (0..size).map(|rank| format!("cpu:{rank}")).collect()
    }

    fn ranks(size: usize) -> Vec<ThreadComm> {
        threads(size, Some(Duration::from_secs(20)), &names(size)).unwrap()
    }

    /// The bits of what each rank gets from an all-reduce of its input, delayed at random by up to 2 ms if `seed`.
    fn reduce(size: usize, length: usize, wire: Wire, seed: Option<u64>) -> Vec<Vec<u32>> {
        on_all(ranks(size), |comm| {
            if let Some(seed) = seed {
                let random = input(comm.rank(), 1, seed)[0].to_bits() >> 8;
                std::thread::sleep(Duration::from_micros(u64::from(random % 2000)));
            }
            let mut values = input(comm.rank(), length, 0);
            comm.all_reduce(&mut values, wire).unwrap();
            bits(&values)
        })
    }

    #[test]
    fn sums_are_those_in_the_order_of_the_ranks_to_the_bit() {
        for size in [1, 2, 3, 4, 7] {
            for length in [0, 1, 2, 5, 1000, 100_003] {
                for wire in [Wire::F32, Wire::F16] {
                    let expected = bits(&sums_in_order(size, length, wire));
                    for (rank, sums) in reduce(size, length, wire, None).into_iter().enumerate() {
                        assert!(sums == expected, "rank {rank} of {size}, {length} values, {wire:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn more_than_a_chunk_is_summed_and_shared() {
        let length = 2 * CHUNK + 3;
        let expected = bits(&sums_in_order(3, length, Wire::F32));
        assert!(reduce(3, length, Wire::F32, None).iter().all(|sums| *sums == expected));
        let shared = on_all(ranks(3), |comm| {
            let mut values = input(comm.rank(), length, 0);
            comm.share(&mut values).unwrap();
            bits(&values)
        });
        assert!(shared.iter().all(|values| *values == bits(&input(0, length, 0))));
    }

    #[test]
    fn timing_changes_nothing() {
        let first = reduce(4, 5000, Wire::F32, Some(1));
        for seed in 2..20 {
            assert!(reduce(4, 5000, Wire::F32, Some(seed)) == first);
        }
    }

    #[test]
    fn buffers_serve_calls_of_any_length_and_wire() {
        on_all(ranks(3), |comm| {
            for (length, wire) in [(7, Wire::F32), (1000, Wire::F16), (2, Wire::F32), (0, Wire::F16), (999, Wire::F32)]
            {
                let mut values = input(comm.rank(), length, 0);
                comm.all_reduce(&mut values, wire).unwrap();
                assert_eq!(bits(&values), bits(&sums_in_order(3, length, wire)), "{length} values");
                comm.barrier().unwrap();
            }
        });
    }

    #[test]
    fn bytes_of_any_length_are_broadcast() {
        for length in [0, 1, 1000] {
            let expected = vec![7; length];
            let all = on_all(ranks(3), |comm| {
                let mut bytes = if comm.rank() == 0 { vec![7; length] } else { vec![1; comm.rank()] };
                comm.broadcast(&mut bytes).unwrap();
                bytes
            });
            assert_eq!(all, [expected.clone(), expected.clone(), expected]);
        }
    }

    #[test]
    fn bytes_of_different_lengths_are_gathered() {
        let expected = vec![vec![0; 2], vec![], vec![2; 5], vec![3; 1]];
        let all = on_all(ranks(4), |comm| comm.all_gather(&expected[comm.rank()]).unwrap());
        assert!(all.iter().all(|gathered| *gathered == expected), "{all:?}");
        let all = on_all(ranks(4), |comm| comm.gather(&expected[comm.rank()]).unwrap());
        assert!(all[0] == expected && all[1..].iter().all(Vec::is_empty), "{all:?}");
    }

    /// The errors of ranks 0 and 2 in an all-reduce, and in a call after it, while rank 1 does something else.
    fn errors_without_rank_1(rank_1: impl Fn(ThreadComm) + Sync) -> Vec<String> {
        let start = Instant::now();
        let errors = std::thread::scope(|scope| {
            let handles: Vec<_> = threads(3, SHORT, &names(3))
                .unwrap()
                .into_iter()
                .map(|mut comm| {
                    let rank_1 = &rank_1;
                    scope.spawn(move || {
                        if comm.rank() == 1 {
                            rank_1(comm);
                            return None;
                        }
                        let first = comm.all_reduce(&mut [1.0; 10], Wire::F32).unwrap_err().to_string();
                        assert_eq!(comm.barrier().unwrap_err().to_string(), first, "the first reason stays");
                        Some(first)
                    })
                })
                .collect();
            handles.into_iter().filter_map(|handle| handle.join().unwrap_or_default()).collect()
        });
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        errors
    }

    #[test]
    fn a_rank_that_ends_makes_the_others_fail() {
        assert_eq!(errors_without_rank_1(drop), ["rank 1 (cpu:1) ended"; 2]);
        let later = |comm| {
            std::thread::sleep(Duration::from_millis(50));
            drop(comm);
        };
        assert_eq!(errors_without_rank_1(later), ["rank 1 (cpu:1) ended"; 2]);
    }

    #[test]
    fn a_rank_that_panics_makes_the_others_fail() {
        let panics = |comm: ThreadComm| panic!("rank {} panics, as this test wants", comm.rank());
        assert_eq!(errors_without_rank_1(panics), ["rank 1 (cpu:1) panicked"; 2]);
    }

    #[test]
    fn a_rank_that_aborts_makes_the_others_fail_with_its_reason() {
        let errors = errors_without_rank_1(|mut comm| {
            comm.abort("out of memory");
            assert_eq!(comm.barrier().unwrap_err().to_string(), "rank 1 (cpu:1) aborted: out of memory");
        });
        assert_eq!(errors, ["rank 1 (cpu:1) aborted: out of memory"; 2]);
    }

    #[test]
    fn a_rank_that_does_not_come_makes_all_fail_when_the_time_is_up() {
        let expected = "rank 1 (cpu:1) did not come to all_reduce (f32) within 0.2 s";
        let errors = errors_without_rank_1(|mut comm| {
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(comm.barrier().unwrap_err().to_string(), expected);
        });
        assert_eq!(errors, [expected; 2]);
    }

    #[test]
    fn ranks_that_make_different_calls_fail() {
        let errors = errors_without_rank_1(|mut comm| drop(comm.barrier()));
        let expected = "the ranks are out of step: rank 0 (cpu:0) calls all_reduce (f32) of 10 values, \
                        rank 1 (cpu:1) calls barrier";
        assert_eq!(errors, [expected; 2]);
        let errors = errors_without_rank_1(|mut comm| drop(comm.all_reduce(&mut [0.0; 11], Wire::F32)));
        assert!(errors[0].contains("of 10 values") && errors[0].contains("of 11 values"), "{errors:?}");
    }

    #[test]
    fn a_rank_may_end_once_nobody_needs_it() {
        on_all(ranks(3), |comm| comm.barrier().unwrap());
        // Ranks that are dropped one by one.
        drop(ranks(3));
    }

    #[test]
    fn without_a_timeout_a_late_rank_is_waited_for() {
        on_all(threads(2, None, &[]).unwrap(), |comm| {
            std::thread::sleep(Duration::from_millis(300 * comm.rank() as u64));
            comm.barrier().unwrap();
        });
    }
}
