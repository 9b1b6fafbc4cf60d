//! CPU memory: slices of shared, 64-byte aligned buffers, recycled by size so that training steps do not allocate.
//!
//! Handles are `Send` and `Sync`. Only [`CpuSlice::with_slices`] accesses the bytes; it borrows whole buffers like a
//! `RefCell`: any number of readers, or one writer.

use super::pool::{Block, pool};
use crate::profile::{MemoryKind, MemoryStats};
use crate::{Error, Result};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Memory that several slices share.
struct Buffer {
    /// Reached only by whoever has borrowed the buffer ([`Borrow`]). `None` only while it is dropped.
    block: Option<Block>,
    /// How many hold it to read, or [`EXCLUSIVE`].
    borrows: AtomicIsize,
    kind: MemoryKind,
}

/// [`Buffer::borrows`] during an exclusive borrow.
const EXCLUSIVE: isize = -1;

/// Memory statistics of the pool.
pub fn memory() -> MemoryStats {
    pool().stats()
}

/// Resets the peak to the memory in use.
pub fn reset_peak_memory() {
    pool().reset_peak();
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            pool().give_back(block, self.kind);
        }
    }
}

thread_local! {
    /// How many calls of `with_slices` this thread is within: whoever holds memory must not wait for more.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A buffer that is borrowed until this is dropped.
struct Borrow<'a> {
    buffer: &'a Buffer,
    exclusive: bool,
}

impl<'a> Borrow<'a> {
    /// Waits while another thread holds the buffer, unless this thread holds memory itself: two that wait for each
    /// other would never end.
    ///
    /// # Errors
    /// If this is called within a borrow that excludes it, or may.
    fn take(buffer: &'a Buffer, exclusive: bool) -> Result<Borrow<'a>> {
        let next = |borrows: isize| match (borrows, exclusive) {
            (0, true) => Some(EXCLUSIVE),
            (0.., false) => borrows.checked_add(1),
            _ => None,
        };
        while buffer.borrows.fetch_update(Ordering::Acquire, Ordering::Relaxed, next).is_err() {
            if DEPTH.get() > 0 {
                return Err(Error::Aliasing("memory is borrowed again within a borrow that excludes it".into()));
            }
            std::thread::yield_now();
        }
        DEPTH.set(DEPTH.get() + 1);
        Ok(Borrow { buffer, exclusive })
    }
}

impl Drop for Borrow<'_> {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        match self.exclusive {
            true => self.buffer.borrows.store(0, Ordering::Release),
            false => drop(self.buffer.borrows.fetch_sub(1, Ordering::Release)),
        }
    }
}

/// A part of a buffer.
#[derive(Clone)]
pub struct CpuSlice {
    buffer: Arc<Buffer>,
    offset: usize,
    size: usize,
}

impl CpuSlice {
    /// Allocates `size` bytes with unspecified (but initialized) contents, accounted under `kind`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if memory runs out.
    pub fn alloc(size: usize, kind: MemoryKind) -> Result<CpuSlice> {
        let out_of_memory = || Error::OutOfMemory {
            adapter: "the machine".into(),
            needed_bytes: size,
            used_bytes: memory().used_bytes,
            is_cpu: true,
        };
        #[cfg(feature = "testing")]
        if crate::testing::faults::fails() {
            return Err(out_of_memory());
        }
        let block = pool().take(size, kind).ok_or_else(out_of_memory)?;
        let buffer = Buffer { block: Some(block), borrows: AtomicIsize::new(0), kind };
        Ok(CpuSlice { buffer: Arc::new(buffer), offset: 0, size })
    }

    /// The part that starts at `offset` bytes (a multiple of 64) and has `size` bytes.
    ///
    /// # Panics
    /// If it is out of range.
    pub fn slice(&self, offset: usize, size: usize) -> CpuSlice {
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.size);
        assert!(offset.is_multiple_of(64) && fits, "slice {offset}+{size} of {}", self.size);
        CpuSlice { buffer: self.buffer.clone(), offset: self.offset + offset, size }
    }

    /// Whether no other slice shares the buffer.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }

    fn same_buffer(&self, other: &CpuSlice) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
    }

    /// Whether two slices share memory.
    pub fn overlaps(&self, other: &CpuSlice) -> bool {
        self.same_buffer(other) && self.offset < other.offset + other.size && other.offset < self.offset + self.size
    }

    fn pointer(&self) -> *mut u8 {
        // SAFETY: the offset lies within the buffer (`alloc` and `slice` see to it).
        unsafe { self.buffer.block.as_ref().expect("there until drop").start().add(self.offset) }
    }

    /// Runs `body` on the bytes of `inputs` (read) and `outputs` (write), and borrows their buffers for its duration.
    ///
    /// # Errors
    /// [`Error::Aliasing`] if an output overlaps another operand, or an enclosing `body` has borrowed one of the
    /// buffers.
    pub fn with_slices<T>(
        inputs: &[&CpuSlice],
        outputs: &[&CpuSlice],
        body: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> T,
    ) -> Result<T> {
        for (i, output) in outputs.iter().enumerate() {
            if inputs.iter().chain(&outputs[i + 1..]).any(|other| other.overlaps(output)) {
                return Err(Error::Aliasing("an output overlaps another operand".into()));
            }
        }
        // Outputs first: a buffer that has one is borrowed exclusively, for its other parts too.
        let operands: Vec<&CpuSlice> = outputs.iter().chain(inputs).copied().collect();
        let mut borrows = Vec::with_capacity(operands.len());
        for (i, operand) in operands.iter().enumerate() {
            if !operands[..i].iter().any(|before| before.same_buffer(operand)) {
                borrows.push(Borrow::take(&operand.buffer, i < outputs.len())?);
            }
        }
        // SAFETY: every buffer is borrowed until the end of this function, those with an output exclusively, and within
        // a buffer no output overlaps anything else (checked above). The slices live as long as `body` runs.
        let read: Vec<&[u8]> =
            inputs.iter().map(|s| unsafe { std::slice::from_raw_parts(s.pointer(), s.size) }).collect();
        let mut write: Vec<&mut [u8]> =
            outputs.iter().map(|s| unsafe { std::slice::from_raw_parts_mut(s.pointer(), s.size) }).collect();
        Ok(body(&read, &mut write))
    }
}

impl fmt::Debug for CpuSlice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "cpu memory [{}..+{}]", self.offset, self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_overlaps_another_operand_is_refused() {
        let whole = CpuSlice::alloc(256, MemoryKind::Other).unwrap();
        let part = whole.slice(64, 64);
        for (inputs, outputs) in [(&[&part][..], &[&whole][..]), (&[], &[&part, &whole])] {
            assert!(matches!(CpuSlice::with_slices(inputs, outputs, |_, _| ()), Err(Error::Aliasing(_))));
        }
    }

    #[test]
    fn disjoint_parts_of_one_buffer_are_borrowed_together() {
        let whole = CpuSlice::alloc(256, MemoryKind::Other).unwrap();
        let (a, b) = (whole.slice(0, 4), whole.slice(64, 4));
        CpuSlice::with_slices(&[], &[&a, &b], |_, out| {
            out[0].copy_from_slice(&[1; 4]);
            out[1].copy_from_slice(&[2; 4]);
        })
        .unwrap();
        CpuSlice::with_slices(&[&a, &b], &[], |read, _| assert_eq!(read, [&[1; 4], &[2; 4]])).unwrap();
    }

    #[test]
    fn a_nested_borrow_fails_unless_both_read() {
        let whole = CpuSlice::alloc(256, MemoryKind::Other).unwrap();
        let (a, other) = (whole.slice(0, 64), CpuSlice::alloc(64, MemoryKind::Other).unwrap());
        let read = || CpuSlice::with_slices(&[&whole], &[], |_, _| ());
        let write = || CpuSlice::with_slices(&[], &[&whole.slice(128, 64)], |_, _| ());
        CpuSlice::with_slices(&[], &[&a], |_, _| {
            assert!(matches!(read(), Err(Error::Aliasing(_))), "reading what is written");
            assert!(matches!(write(), Err(Error::Aliasing(_))), "writing beside what is written");
            CpuSlice::with_slices(&[], &[&other], |_, _| ()).unwrap();
        })
        .unwrap();
        CpuSlice::with_slices(&[&a], &[], |_, _| {
            assert!(matches!(write(), Err(Error::Aliasing(_))), "writing what is read");
            read().unwrap();
        })
        .unwrap();
        write().unwrap(); // all is given back, after failures too
    }

    #[test]
    fn another_thread_waits_for_its_turn() {
        let slice = CpuSlice::alloc(8, MemoryKind::Other).unwrap();
        let add = || {
            CpuSlice::with_slices(&[], &[&slice], |_, out| {
                let value = u64::from_ne_bytes(out[0][..8].try_into().unwrap());
                std::thread::yield_now();
                out[0].copy_from_slice(&(value + 1).to_ne_bytes());
            })
            .unwrap();
        };
        CpuSlice::with_slices(&[], &[&slice], |_, out| out[0].fill(0)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| add()));
            }
        });
        CpuSlice::with_slices(&[&slice], &[], |read, _| assert_eq!(read[0], 4000u64.to_ne_bytes())).unwrap();
    }

    #[test]
    fn more_than_there_can_be_is_an_error() {
        for size in [usize::MAX / 2, usize::MAX - 1, usize::MAX] {
            let error = CpuSlice::alloc(size, MemoryKind::Other).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. }), "{size}: {error}");
            let advice = error.to_string();
            assert!(advice.contains("train.batch_size") && !advice.contains("--device cpu"), "{advice}");
        }
    }
}
