//! Multiple processes, each with several ranks as threads.
//!
//! The ranks of a process communicate within it; its first rank also communicates with the other processes. One thread
//! per process makes the calls between processes.
//!
//! A sum is that of the processes' sums in the order of the processes, each of which is added in the order of its
//! ranks: `(r0 + r1) + (r2 + r3)` for two processes of two ranks. These are the same bits on all ranks and in every
//! run, but others than `((r0 + r1) + r2) + r3`, which as many ranks in one process give. With
//! [`Wire::F16`](super::Wire::F16) the processes' sums are rounded too.

use super::{Communicator, Encoded, Memory, Sums, ThreadComm};
use crate::{Error, Result};
use std::sync::Arc;

/// One rank of a multi-process job. Its number is `process * ranks per process + rank in the process`.
///
/// A failing rank makes its process fail, and then the others, as soon as the first rank of the process joins a call:
/// it forwards failures in both directions.
pub struct Hierarchy {
    inner: ThreadComm,
    /// The first rank's alone; `None` there too if there is but one process.
    outer: Option<Box<dyn Communicator>>,
    process: usize,
    processes: usize,
}

impl Hierarchy {
    /// A rank that communicates within its process by `inner` and, if it is the first, between processes by `outer`. It
    /// waits until all ranks are created, so create each on its own thread.
    ///
    /// The timeout of `inner` must be longer than that of `outer`, so that the first rank can report to its process
    /// which other process timed out.
    ///
    /// # Errors
    /// If the processes have different numbers of ranks, if another than the first rank brings `outer`, or if a call
    /// fails.
    pub fn new(inner: ThreadComm, outer: Option<Box<dyn Communicator>>) -> Result<Hierarchy> {
        let mut rank = Hierarchy { inner, outer, process: 0, processes: 1 };
        if rank.inner.rank() != 0 && rank.outer.is_some() {
            let reason = "only the first rank of a process communicates with other processes".to_string();
            rank.inner.end(reason.clone());
            return Err(Error::Invalid(reason));
        }
        let local = rank.inner.size();
        let mut place = Vec::new();
        rank.across(|outer| {
            check_equal(&outer.all_gather(Arc::new((local as u64).to_le_bytes().to_vec()))?)?;
            place = encode(&[(outer.rank() as u64).to_le_bytes(), (outer.size() as u64).to_le_bytes()]);
            Ok(())
        })?;
        rank.inside(|inner| inner.broadcast(&mut place))?;
        // Without other processes the first rank has nothing to tell.
        if let [process, processes] = &decode(&place)?[..] {
            (rank.process, rank.processes) = (number(process)?, number(processes)?);
        }
        rank.inner.number_from(rank.process * local);
        Ok(rank)
    }

    /// Makes a call inside the process. If it fails, the first rank ends the other processes.
    fn inside<T>(&mut self, call: impl FnOnce(&mut ThreadComm) -> Result<T>) -> Result<T> {
        let result = call(&mut self.inner);
        if let (Err(error), Some(outer)) = (&result, &mut self.outer) {
            outer.abort(&error.to_string());
        }
        result
    }

    /// Makes a call among the processes, if this is the first rank of one. If it fails, so do the others of it.
    fn across(&mut self, call: impl FnOnce(&mut dyn Communicator) -> Result<()>) -> Result<()> {
        let Some(outer) = &mut self.outer else { return Ok(()) };
        call(&mut **outer).inspect_err(|error| self.inner.end(error.to_string()))
    }
}

impl Communicator for Hierarchy {
    fn rank(&self) -> usize {
        self.process * self.inner.size() + self.inner.rank()
    }

    fn size(&self) -> usize {
        self.processes * self.inner.size()
    }

    fn all_reduce(&mut self, values: Encoded) -> Result<Sums> {
        let wire = values.wire();
        let sums = self.inside(|inner| inner.all_reduce(values))?;
        if self.processes == 1 {
            return Ok(sums);
        }
        let mut total = None;
        self.across(|outer| {
            total = Some(outer.all_reduce(sums.into_encoded())?);
            Ok(())
        })?;
        self.inside(|inner| inner.share(total, wire))
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        self.across(|outer| outer.broadcast(bytes))?;
        self.inside(|inner| inner.broadcast(bytes))
    }

    fn all_gather(&mut self, bytes: Memory) -> Result<Vec<Memory>> {
        let local = self.inside(|inner| inner.all_gather(bytes))?;
        if self.processes == 1 {
            return Ok(local);
        }
        let mut all = Vec::new();
        self.across(|outer| {
            // Each process's bytes are parts with their lengths, which stay so when they are joined.
            let local: Vec<&[u8]> = local.iter().map(|bytes| &***bytes).collect();
            let processes = outer.all_gather(Arc::new(encode(&local)))?;
            all = processes.iter().flat_map(|bytes| bytes.iter().copied()).collect();
            Ok(())
        })?;
        self.inside(|inner| inner.broadcast(&mut all))?;
        Ok(decode(&all)?.into_iter().map(|bytes| Arc::new(bytes) as Memory).collect())
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = self.inside(|inner| inner.gather(bytes))?;
        if self.processes > 1 {
            self.across(|outer| {
                // As in `all_gather`.
                all = decode(&outer.gather(&encode(&all))?.concat())?;
                Ok(())
            })?;
        }
        Ok(all)
    }

    fn barrier(&mut self) -> Result<()> {
        self.inside(ThreadComm::barrier)?;
        self.across(|outer| outer.barrier())?;
        self.inside(ThreadComm::barrier)
    }

    fn abort(&mut self, reason: &str) {
        self.inner.abort(reason);
        // This fails now, of which the first rank tells the other processes.
        let _ = self.inside(ThreadComm::barrier);
    }
}

/// Checks that every process has as many ranks as the first.
fn check_equal(counts: &[Memory]) -> Result<()> {
    let counts = counts.iter().map(|bytes| number(bytes)).collect::<Result<Vec<usize>>>()?;
    if counts.iter().all(|count| *count == counts[0]) {
        return Ok(());
    }
    Err(Error::Communication(format!("every process must have the same number of ranks, but they have {counts:?}")))
}

/// Each part after its length, 8 bytes in little endian.
fn encode(parts: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

fn decode(mut bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_at_checked(8).ok_or_else(malformed)?;
        let (part, rest) = rest.split_at_checked(number(length)?).ok_or_else(malformed)?;
        parts.push(part.to_vec());
        bytes = rest;
    }
    Ok(parts)
}

fn number(bytes: &[u8]) -> Result<usize> {
    let number = u64::from_le_bytes(bytes.try_into().map_err(|_| malformed())?);
    usize::try_from(number).map_err(|_| malformed())
}

fn malformed() -> Error {
    Error::Communication("another process sent a malformed message; run the same version everywhere".into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::{bits, gathered, input, reduced};
    use crate::{Wire, threads};

    /// What `run` gives for each rank of processes with these numbers of ranks, in their order.
    fn on_processes<T: Send>(locals: &[usize], run: impl Fn(Result<Hierarchy>) -> T + Sync) -> Vec<T> {
        let timeout = |seconds| Some(Duration::from_secs(seconds));
        let names: Vec<String> = (0..locals.len()).map(|process| format!("process {process}")).collect();
        let outer = threads(locals.len(), timeout(10), &names).unwrap();
        let run = &run;
        std::thread::scope(|scope| {
            let mut handles = Vec::new();
            for (outer, &local) in outer.into_iter().zip(locals) {
                let names: Vec<String> = (0..local).map(|rank| format!("cpu:{rank}")).collect();
                let mut outer = Some(Box::new(outer) as Box<dyn Communicator>);
                for inner in threads(local, timeout(20), &names).unwrap() {
                    let outer = outer.take();
                    handles.push(scope.spawn(move || run(Hierarchy::new(inner, outer))));
                }
            }
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_are_numbered_through_the_processes() {
        let places = on_processes(&[3, 3], |rank| rank.map(|rank| (rank.rank(), rank.size())).unwrap());
        assert_eq!(places, (0..6).map(|rank| (rank, 6)).collect::<Vec<_>>());
    }

    #[test]
    fn sums_are_those_of_the_processes_sums() {
        for length in [0, 1, 5, 100_003] {
            let add = |left: Vec<f32>, right: Vec<f32>| left.iter().zip(&right).map(|(x, y)| x + y).collect::<Vec<_>>();
            let of = |rank| input(rank, length, 0);
            let expected = bits(&add(add(of(0), of(1)), add(of(2), of(3))));
            let all = on_processes(&[2, 2], |rank| {
                let mut rank = rank.unwrap();
                let own = of(rank.rank());
                bits(&reduced(&mut rank, own, Wire::F32).unwrap())
            });
            assert!(all.iter().all(|sums| *sums == expected), "{length} values");
        }
    }

    #[test]
    fn sums_by_f16_are_the_same_on_all() {
        let all = on_processes(&[2, 2], |rank| {
            let mut rank = rank.unwrap();
            let own = input(rank.rank(), 1000, 0);
            bits(&reduced(&mut rank, own, Wire::F16).unwrap())
        });
        assert!(all.iter().all(|sums| *sums == all[0]));
    }

    #[test]
    fn bytes_go_to_all_ranks_and_come_from_all() {
        on_processes(&[2, 2], |rank| {
            let mut rank = rank.unwrap();
            let number = rank.rank();
            let mut bytes = vec![number as u8; 5 - number];
            rank.broadcast(&mut bytes).unwrap();
            assert_eq!(bytes, [0; 5]);
            let all = gathered(&mut rank, &vec![number as u8; number]).unwrap();
            assert_eq!(all, [vec![], vec![1; 1], vec![2; 2], vec![3; 3]]);
            let gathered = rank.gather(&vec![number as u8; number]).unwrap();
            assert!(if number == 0 { gathered == all } else { gathered.is_empty() }, "{gathered:?}");
            rank.barrier().unwrap();
        });
    }

    #[test]
    fn one_process_needs_no_outer() {
        std::thread::scope(|scope| {
            for inner in threads(2, None, &[]).unwrap() {
                scope.spawn(move || {
                    let mut rank = Hierarchy::new(inner, None).unwrap();
                    assert_eq!((reduced(&mut rank, vec![1.0], Wire::F32).unwrap(), rank.size()), (vec![2.0], 2));
                    assert_eq!(gathered(&mut rank, &[7]).unwrap(), [[7], [7]]);
                    assert_eq!(rank.gather(&[7]).unwrap().len(), if rank.rank() == 0 { 2 } else { 0 });
                    rank.barrier().unwrap();
                });
            }
        });
    }

    #[test]
    fn processes_of_different_sizes_are_refused() {
        let errors = on_processes(&[2, 3], |rank| rank.err().unwrap().to_string());
        assert_eq!(errors, ["every process must have the same number of ranks, but they have [2, 3]"; 5]);
    }

    #[test]
    fn an_abort_reaches_all_processes_and_names_the_rank() {
        let errors = on_processes(&[2, 2], |rank| {
            let mut rank = rank.unwrap();
            if rank.rank() == 3 {
                rank.abort("no memory");
            }
            rank.barrier().unwrap_err().to_string()
        });
        let inside = "rank 3 (cpu:1) aborted: no memory";
        let outside = format!("rank 1 (process 1) aborted: {inside}");
        assert_eq!(errors, [&outside, &outside, inside, inside]);
    }

    #[test]
    fn the_end_of_a_rank_reaches_all_processes() {
        let errors = on_processes(&[2, 2], |rank| {
            let mut rank = rank.unwrap();
            if rank.rank() == 1 {
                return String::new();
            }
            reduced(&mut rank, vec![1.0; 5], Wire::F32).unwrap_err().to_string()
        });
        let inside = "rank 1 (cpu:1) ended";
        let outside = format!("rank 0 (process 0) aborted: {inside}");
        assert_eq!(errors, [inside, "", &outside, &outside]);
    }
}
