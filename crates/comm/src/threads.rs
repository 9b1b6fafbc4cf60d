//! Ranks that are threads of one process.
//!
//! In an all-reduce, each rank publishes its values, sums its own slice over all ranks, and reads the slices of the
//! others, all in place: nothing is copied between threads.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::call::{Call, Kind};
use super::encoded::{Memory, Reused};
use super::meeting::Meeting;
use super::{Communicator, Encoded, Sums, Wire};
use crate::{Error, Result};

/// More threads than any process is given.
const MOST_RANKS: usize = 1 << 16;

/// One rank of several in a process; see [`threads`].
///
/// Dropping it marks the rank as ended, which is an error for the others only if they need it again.
pub struct ThreadComm {
    rank: usize,
    shared: Arc<Shared>,
    sums: Reused,
}

struct Shared {
    meeting: Meeting,
    slots: Vec<Slot>,
}

/// Data that one rank publishes to the others. Locks are uncontended: between two barriers, a rank either writes to its
/// own slot or reads all slots.
#[derive(Default)]
struct Slot {
    handed_in: RwLock<Option<Memory>>,
    /// The sums of this rank's slice.
    sums: RwLock<Option<Memory>>,
}

/// Creates `size` connected ranks, one per thread.
///
/// Ranks that wait for another for longer than `timeout` fail; `None` waits without a limit. Errors name ranks by
/// number and by `names`, such as `gpu:1`.
///
/// # Errors
/// If there are more than 65,536.
pub fn threads(size: usize, timeout: Option<Duration>, names: &[String]) -> Result<Vec<ThreadComm>> {
    if size > MOST_RANKS {
        return Err(Error::Invalid(format!("threads: {size} ranks, and a process has at most {MOST_RANKS}")));
    }
    let slots = (0..size).map(|_| Slot::default()).collect();
    let shared = Arc::new(Shared { meeting: Meeting::new(size, timeout, names), slots });
    Ok((0..size).map(|rank| ThreadComm { rank, shared: shared.clone(), sums: Reused::default() }).collect())
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

    /// The sums that rank 0 brings; the others bring none.
    ///
    /// # Errors
    /// If the ranks did not all make this call.
    pub(super) fn share(&mut self, sums: Option<Sums>, wire: Wire) -> Result<Sums> {
        let handed_in = sums.map(|sums| sums.into_encoded().memory());
        self.exchange(Kind::Share, handed_in, |slots| Sums::new(wire, vec![taken(&slots[0].handed_in)]))
    }

    /// Hands in bytes, and takes of all ranks' what `take` does.
    fn exchange<T>(&self, kind: Kind, own: Option<Memory>, take: impl FnOnce(&[Slot]) -> T) -> Result<T> {
        self.shared.meeting.check()?;
        let call = Call { kind, length: own.as_ref().map_or(0, |own| own.len()) };
        hand(&self.shared.slots[self.rank].handed_in, own);
        self.meet(call)?;
        let result = take(&self.shared.slots);
        self.meet(call)?;
        hand(&self.shared.slots[self.rank].handed_in, None);
        Ok(result)
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

    fn all_reduce(&mut self, values: Encoded) -> Result<Sums> {
        let (size, slots, wire) = (self.size(), &self.shared.slots, values.wire());
        let (call, length) = (Call::all_reduce(&values), values.values());
        self.shared.meeting.check()?;
        hand(&slots[self.rank].handed_in, Some(values.memory()));
        self.meet(call)?;
        let Range { start, end } = slice(length, self.rank, size);
        let bytes = start * wire.width()..end * wire.width();
        let handed_in: Vec<Memory> = slots.iter().map(|slot| taken(&slot.handed_in)).collect();
        let parts: Vec<&[u8]> = handed_in.iter().map(|values| &values[bytes.clone()]).collect();
        let sums = self.sums.filled(bytes.len(), |sums| wire.sum(&parts, sums));
        drop(handed_in);
        hand(&slots[self.rank].sums, Some(sums));
        self.meet(call)?;
        // All have added up what this rank handed in. Its sums they may still have to take.
        hand(&slots[self.rank].handed_in, None);
        Ok(Sums::new(wire, slots.iter().map(|slot| taken(&slot.sums)).collect()))
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let own: Option<Memory> = (self.rank == 0).then(|| Arc::new(std::mem::take(bytes)) as Memory);
        *bytes = self.exchange(Kind::Broadcast, own, |slots| taken(&slots[0].handed_in).to_vec())?;
        Ok(())
    }

    fn all_gather(&mut self, bytes: Memory) -> Result<Vec<Memory>> {
        let all = |slots: &[Slot]| slots.iter().map(|slot| taken(&slot.handed_in)).collect();
        self.exchange(Kind::AllGather, Some(bytes), all)
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let leads = self.rank == 0;
        let all = |slots: &[Slot]| slots.iter().filter(|_| leads).map(|slot| taken(&slot.handed_in).to_vec()).collect();
        self.exchange(Kind::Gather, Some(Arc::new(bytes.to_vec())), all)
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

fn hand(place: &RwLock<Option<Memory>>, memory: Option<Memory>) {
    *place.write().unwrap_or_else(PoisonError::into_inner) = memory;
}

/// A rank's published data, without a copy.
fn taken(place: &RwLock<Option<Memory>>) -> Memory {
    let memory = place.read().unwrap_or_else(PoisonError::into_inner).clone();
    memory.unwrap_or_else(|| Arc::new(Vec::new()))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::testing::{bits, gathered, input, on_all, reduced, sums_in_order};

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
            let values = input(comm.rank(), length, 0);
            bits(&reduced(comm, values, wire).unwrap())
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
    fn sums_of_rank_0_are_shared() {
        let (length, expected) = (10_003, bits(&sums_in_order(3, 10_003, Wire::F32)));
        let shared = on_all(ranks(3), |comm| {
            let sums = comm.all_reduce(Encoded::new(input(comm.rank(), length, 0), Wire::F32)).unwrap();
            assert_eq!(sums.parts().len(), 3);
            let own = (comm.rank() == 0).then_some(sums);
            bits(&comm.share(own, Wire::F32).unwrap().to_f32())
        });
        assert!(shared.iter().all(|sums| *sums == expected));
    }

    /// Sums that nobody has taken yet stay as they are while others are made.
    #[test]
    fn memory_is_used_again_once_it_is_free() {
        on_all(ranks(2), |comm| {
            let mut reduce = |value: f32| comm.all_reduce(Encoded::new(vec![value; 1000], Wire::F32)).unwrap();
            let kept: Vec<_> = (0..3).map(|i| reduce(i as f32)).collect();
            for (i, sums) in kept.iter().enumerate() {
                assert_eq!(sums.to_f32(), [2.0 * i as f32; 1000]);
            }
            drop(kept);
            for i in 0..20 {
                assert_eq!(reduce(i as f32).to_f32(), [2.0 * i as f32; 1000]);
            }
            // Another rank may still be taking one.
            assert!(comm.sums.len() <= 5, "{}", comm.sums.len());
        });
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
                let sums = reduced(comm, input(comm.rank(), length, 0), wire).unwrap();
                assert_eq!(bits(&sums), bits(&sums_in_order(3, length, wire)), "{length} values");
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
        let all = on_all(ranks(4), |comm| gathered(comm, &expected[comm.rank()]).unwrap());
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
                        let first = reduced(&mut comm, vec![1.0; 10], Wire::F32).unwrap_err().to_string();
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
        let expected = "rank 1 (cpu:1) did not reach all_reduce (f32) within 0.2 s";
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
        let errors = errors_without_rank_1(|mut comm| drop(reduced(&mut comm, vec![0.0; 11], Wire::F32)));
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
