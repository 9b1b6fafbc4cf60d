//! Shared memory between the processes of one machine: MPI messages would copy every byte several times, on one thread.
//!
//! ```text
//! | values of rank 0 | rank 1 | .. | sums |     a place: values are written by their rank, of the sums each rank
//! | values of rank 0 | rank 1 | .. | sums |     writes its slice, and all read
//! ```
//! Results are returned in place, and calls use the slots in turn. Before the barrier at the start of a call, each rank
//! waits until it has released the slot, so after the barrier all ranks have.
//!
//! The memory is a file that is unlinked once all ranks have opened it, so that nothing remains after the job, however
//! it ends.

use super::{Memory, Wire};
use crate::{Error, Result};
use memmap2::{MmapOptions, MmapRaw};
use rustyflow_base::copy::copy;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Where files are in memory.
const FOLDER: &str = "/dev/shm";

/// Calls whose results may be in use at the same time.
const PLACES: usize = 4;

/// A rank's handle to the memory.
pub(super) struct SharedMemory {
    region: Arc<Region>,
    rank: usize,
    size: usize,
    /// Bytes of each part of the memory.
    chunk: usize,
    /// Results in use, by slot.
    handed_out: Vec<Vec<Arc<Part>>>,
    /// The place of the next call.
    next: usize,
}

struct Region(MmapRaw);

/// A part of the memory that nobody writes to while there is one.
struct Part {
    region: Arc<Region>,
    range: Range<usize>,
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.region.read(self.range.clone())
    }
}

impl Region {
    fn read(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.0.len());
        // SAFETY: the range lies within the memory, which is mapped as long as `self` is there. Whoever calls this has
        // met the ranks that have written it, and they write it again only when all have let go of it (see the module).
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(range.start), range.len()) }
    }

    /// # Safety
    /// Nobody else may use the range meanwhile.
    #[expect(clippy::mut_from_ref, reason = "it is memory of other processes too: borrows cannot tell who uses it")]
    unsafe fn write(&self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.0.len());
        // SAFETY: the range lies within the memory, which is mapped and writable as long as `self` is there; the rest
        // is for the caller to see to.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().add(range.start), range.len()) }
    }
}

/// A file in memory, and where others find it until it is [removed](NewFile::remove).
pub(super) struct NewFile(tempfile::NamedTempFile);

impl NewFile {
    /// Creates and reserves memory for `size` ranks, which exchange at most `chunk` bytes at a time.
    pub fn new(size: usize, chunk: usize) -> std::io::Result<NewFile> {
        let mut file = tempfile::Builder::new().prefix("rustyflow-").tempfile_in(FOLDER)?;
        // Written, for where there is too little memory that fails; a use of memory that is not there ends a process.
        std::io::copy(&mut std::io::repeat(0).take(bytes(size, chunk) as u64), &mut file)?;
        file.flush()?;
        Ok(NewFile(file))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Unlinks the file, once all ranks have opened it.
    pub fn remove(self) -> std::io::Result<()> {
        self.0.close()
    }
}

impl SharedMemory {
    /// Opens the memory of a file created with the same `size` and `chunk`.
    pub fn open(path: &Path, rank: usize, size: usize, chunk: usize) -> std::io::Result<SharedMemory> {
        let file = File::options().read(true).write(true).open(path)?;
        let map = MmapOptions::new().len(bytes(size, chunk)).map_raw(&file)?;
        let handed_out = vec![Vec::new(); PLACES];
        Ok(SharedMemory { region: Arc::new(Region(map)), rank, size, chunk, handed_out, next: 0 })
    }

    /// The most bytes exchanged at a time.
    #[cfg(any(test, feature = "mpi"))]
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Waits until this rank has released the slot of the next call. Each call must start with this, followed by a
    /// barrier.
    ///
    /// # Errors
    /// If results of earlier calls are in use for longer than `timeout`.
    pub fn wait_for_place(&mut self, timeout: Option<Duration>) -> Result<()> {
        let started = Instant::now();
        let handed_out = &mut self.handed_out[self.next];
        while handed_out.iter().any(|part| Arc::strong_count(part) > 1) {
            if timeout.is_some_and(|timeout| started.elapsed() > timeout) {
                let text = format!("the result of a call is still in use {PLACES} calls later");
                return Err(Error::Communication(text));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        handed_out.clear();
        Ok(())
    }

    /// Sums encoded values of equal length over all ranks. `meet` is the barrier.
    ///
    /// # Errors
    /// Those of [`SharedMemory::wait_for_place`].
    pub fn all_reduce(
        &mut self,
        values: &[u8],
        wire: Wire,
        timeout: Option<Duration>,
        meet: &dyn Fn(),
    ) -> Result<Memory> {
        let (width, mut all) = (wire.width(), Vec::new());
        let chunk = self.chunk / width * width;
        for (i, part) in values.chunks(chunk).enumerate() {
            let place = self.write(i, part, timeout, meet)?;
            let inputs = (0..self.size).map(|rank| self.region.read(self.range(place, rank, part.len())));
            let slice = |rank: usize| part.len() / width * rank / self.size * width;
            let own = slice(self.rank)..slice(self.rank + 1);
            let slices: Vec<&[u8]> = inputs.map(|input| &input[own.clone()]).collect();
            let sums = self.range(place, self.size, part.len());
            // SAFETY: the slice of this rank. All had let go of this place before they met, and read it after they
            // meet again.
            wire.sum(&slices, unsafe { self.region.write(sums.start + own.start..sums.start + own.end) });
            self.meet(meet);
            if values.len() <= chunk {
                return Ok(self.hand_out(place, sums));
            }
            // A call that kept a place for each part would wait for itself.
            all.extend_from_slice(self.region.read(sums));
        }
        Ok(Arc::new(all))
    }

    /// Gathers the bytes of every rank, with these lengths.
    ///
    /// # Errors
    /// Those of [`SharedMemory::wait_for_place`].
    pub fn all_gather(
        &mut self,
        own: &[u8],
        lengths: &[usize],
        timeout: Option<Duration>,
        meet: &dyn Fn(),
    ) -> Result<Vec<Memory>> {
        let (longest, chunk) = (lengths.iter().copied().max().unwrap_or_default(), self.chunk);
        if longest <= chunk {
            let place = self.write(0, own, timeout, meet)?;
            let parts = lengths.iter().enumerate();
            return Ok(parts.map(|(rank, length)| self.hand_out(place, self.range(place, rank, *length))).collect());
        }
        let mut all: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; *length]).collect();
        for (i, start) in (0..longest).step_by(chunk).enumerate() {
            let part = |length: usize| start.min(length)..(start + chunk).min(length);
            let place = self.write(i, &own[part(own.len())], timeout, meet)?;
            for (rank, all) in all.iter_mut().enumerate() {
                let part = part(all.len());
                copy(self.region.read(self.range(place, rank, part.len())), &mut all[part]);
            }
        }
        Ok(all.into_iter().map(|bytes| Arc::new(bytes) as Memory).collect())
    }

    /// Writes this rank's part number `i` of a call to the next place, where then those of all ranks are.
    fn write(&mut self, i: usize, values: &[u8], timeout: Option<Duration>, meet: &dyn Fn()) -> Result<usize> {
        if i > 0 {
            self.wait_for_place(timeout)?;
            self.meet(meet);
        }
        let place = self.next;
        self.next = (place + 1) % PLACES;
        // SAFETY: the part of this rank. All had let go of this place before they met, and read it after they meet
        // again.
        copy(values, unsafe { self.region.write(self.range(place, self.rank, values.len())) });
        self.meet(meet);
        Ok(place)
    }

    fn hand_out(&mut self, place: usize, range: Range<usize>) -> Memory {
        let part = Arc::new(Part { region: self.region.clone(), range });
        self.handed_out[place].push(part.clone());
        part
    }

    /// Where in a place the values of a rank lie, or after those of the last rank the sums.
    fn range(&self, place: usize, rank: usize, length: usize) -> Range<usize> {
        let start = (place * (self.size + 1) + rank) * self.chunk;
        start..start + length
    }

    /// A barrier, after which earlier writes of any rank are visible to all.
    fn meet(&self, meet: &dyn Fn()) {
        fence(Ordering::SeqCst);
        meet();
        fence(Ordering::SeqCst);
    }
}

/// Those of all places.
fn bytes(size: usize, chunk: usize) -> usize {
    PLACES * (size + 1) * chunk
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bits, input, sums_in_order};
    use crate::{Encoded, Sums};
    use std::sync::Barrier;

    /// What `run` gives for each of so many ranks, which are threads here.
    fn on_all<T: Send>(
        size: usize,
        chunk: usize,
        run: impl Fn(usize, &mut SharedMemory, &dyn Fn()) -> T + Sync,
    ) -> Vec<T> {
        let file = NewFile::new(size, chunk).unwrap();
        let (path, barrier, run) = (file.path().to_path_buf(), Barrier::new(size), &run);
        let meet = &|| {
            barrier.wait();
        };
        let ranks: Vec<_> = (0..size).map(|rank| SharedMemory::open(&path, rank, size, chunk).unwrap()).collect();
        file.remove().unwrap();
        assert!(!path.exists() && ranks.iter().all(|rank| rank.chunk() == chunk));
        std::thread::scope(|scope| {
            let start = |(rank, mut memory)| scope.spawn(move || run(rank, &mut memory, meet));
            let threads: Vec<_> = ranks.into_iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn sums_are_those_in_the_order_of_the_ranks_to_the_bit() {
        for size in [1, 2, 3] {
            // Less and more than a part of the memory, and one that is no whole number of values.
            for (length, chunk) in [(0, 64), (1, 64), (16, 64), (1003, 512), (1003, 510)] {
                for wire in [Wire::F32, Wire::F16] {
                    let expected = bits(&sums_in_order(size, length, wire));
                    let all = on_all(size, chunk, |rank, memory, meet| {
                        let values = Encoded::new(input(rank, length, 0), wire).memory();
                        let mut reduce = || {
                            memory.wait_for_place(None).unwrap();
                            meet();
                            Sums::new(wire, vec![memory.all_reduce(&values, wire, None, meet).unwrap()]).to_f32()
                        };
                        (0..6).map(|_| bits(&reduce())).collect::<Vec<_>>()
                    });
                    assert!(all.iter().flatten().all(|sums| *sums == expected), "{size}, {length}, {chunk}, {wire:?}");
                }
            }
        }
    }

    #[test]
    fn bytes_of_any_lengths_are_gathered() {
        let expected: Vec<Vec<u8>> = [0, 5, 1000, 130].map(|length| (0..length).map(|i| i as u8).collect()).into();
        let lengths: Vec<usize> = expected.iter().map(Vec::len).collect();
        for chunk in [64, 1024] {
            let all = on_all(4, chunk, |rank, memory, meet| {
                let mut gather = || {
                    memory.wait_for_place(None).unwrap();
                    meet();
                    let all = memory.all_gather(&expected[rank], &lengths, None, meet).unwrap();
                    all.iter().map(|bytes| bytes.to_vec()).collect::<Vec<_>>()
                };
                (0..6).map(|_| gather()).collect::<Vec<_>>()
            });
            assert!(all.iter().flatten().all(|gathered| *gathered == expected), "{chunk}");
        }
    }

    /// What is handed out stays as it is; a place that is still in use is waited for, and not for ever.
    #[test]
    fn what_is_kept_is_not_overwritten() {
        let errors = on_all(2, 64, |rank, memory, meet| {
            let mut sum = |value: f32| {
                memory.wait_for_place(Some(Duration::from_millis(50)))?;
                meet();
                let values = Encoded::new(vec![value * (rank + 1) as f32; 4], Wire::F32).memory();
                memory.all_reduce(&values, Wire::F32, None, meet).map(|sums| Sums::new(Wire::F32, vec![sums]))
            };
            let kept: Vec<Sums> = (0..PLACES).map(|i| sum(i as f32).unwrap()).collect();
            for (i, sums) in kept.iter().enumerate() {
                assert_eq!(sums.to_f32(), [3.0 * i as f32; 4]);
            }
            sum(0.0).map(drop).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains("still in use 4 calls later")), "{errors:?}");
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        assert!(SharedMemory::open("/dev/shm/rustyflow-none".as_ref(), 0, 2, 64).is_err());
    }
}
