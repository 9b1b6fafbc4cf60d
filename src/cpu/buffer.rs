//! CPU memory: slices of shared, 64-byte aligned buffers, recycled by size so that training steps do not allocate.

use std::cell::{RefCell, UnsafeCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// One cache line: rows that start on it load fastest.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory that several slices share. Not `Sync`: one thread owns all tensors and lends plain slices to others.
struct Buffer(UnsafeCell<Box<[Line]>>);

thread_local! {
    /// Freed allocations by their number of lines.
    static FREE: RefCell<HashMap<usize, Vec<Box<[Line]>>>> = RefCell::default();
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let lines = std::mem::take(self.0.get_mut());
        // The thread's list may already be gone while the thread ends; then the memory is simply freed.
        let _ = FREE.try_with(|free| free.borrow_mut().entry(lines.len()).or_default().push(lines));
    }
}

/// A part of a buffer.
#[derive(Clone)]
pub struct CpuSlice {
    buffer: Rc<Buffer>,
    offset: usize,
    size: usize,
}

impl CpuSlice {
    /// Memory of `size` bytes with unspecified (but initialised) contents.
    pub fn alloc(size: usize) -> CpuSlice {
        let lines = size.div_ceil(64);
        let recycled = FREE.with_borrow_mut(|free| free.get_mut(&lines).and_then(Vec::pop));
        let lines = recycled.unwrap_or_else(|| vec![Line([0; 64]); lines].into_boxed_slice());
        CpuSlice { buffer: Rc::new(Buffer(UnsafeCell::new(lines))), offset: 0, size }
    }

    /// Its length in bytes.
    pub fn size_bytes(&self) -> usize {
        self.size
    }

    /// The part that starts at `offset` bytes (a multiple of 64) and has `size` bytes.
    pub fn slice(&self, offset: usize, size: usize) -> CpuSlice {
        assert!(offset.is_multiple_of(64) && offset + size <= self.size, "slice {offset}+{size} of {}", self.size);
        CpuSlice { buffer: self.buffer.clone(), offset: self.offset + offset, size }
    }

    /// Whether no other slice shares the buffer.
    pub fn is_unique(&self) -> bool {
        Rc::strong_count(&self.buffer) == 1
    }

    /// Whether two slices share memory.
    pub fn overlaps(&self, other: &CpuSlice) -> bool {
        Rc::ptr_eq(&self.buffer, &other.buffer)
            && self.offset < other.offset + other.size
            && other.offset < self.offset + self.size
    }

    fn pointer(&self) -> *mut u8 {
        // SAFETY: the offset lies within the buffer (`alloc` and `slice` see to it).
        unsafe { (*self.buffer.0.get()).as_mut_ptr().cast::<u8>().add(self.offset) }
    }

    /// Lends `inputs` for reading and `outputs` for writing.
    ///
    /// # Panics
    /// If an output overlaps anything else that is lent: a kernel must not read what it writes under another name.
    pub fn lend<T>(
        inputs: &[&CpuSlice],
        outputs: &[&CpuSlice],
        body: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> T,
    ) -> T {
        for (i, output) in outputs.iter().enumerate() {
            let others = inputs.iter().chain(&outputs[i + 1..]);
            assert!(!others.into_iter().any(|o| o.overlaps(output)), "an output overlaps another operand");
        }
        // SAFETY: no output overlaps anything else (checked above), tensors stay on this thread, and `body` cannot
        // reach these buffers except through what is lent, because it would have to come through here.
        let read: Vec<&[u8]> =
            inputs.iter().map(|s| unsafe { std::slice::from_raw_parts(s.pointer(), s.size) }).collect();
        let mut write: Vec<&mut [u8]> =
            outputs.iter().map(|s| unsafe { std::slice::from_raw_parts_mut(s.pointer(), s.size) }).collect();
        body(&read, &mut write)
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
    #[should_panic(expected = "overlaps")]
    fn refuses_to_lend_what_overlaps() {
        let whole = CpuSlice::alloc(256);
        let part = whole.slice(64, 64);
        CpuSlice::lend(&[&part], &[&whole], |_, _| ());
    }

    #[test]
    fn lends_disjoint_parts_of_one_buffer() {
        let whole = CpuSlice::alloc(256);
        let (a, b) = (whole.slice(0, 4), whole.slice(64, 4));
        CpuSlice::lend(&[], &[&a, &b], |_, out| {
            out[0].copy_from_slice(&[1; 4]);
            out[1].copy_from_slice(&[2; 4]);
        });
        CpuSlice::lend(&[&a, &b], &[], |read, _| assert_eq!(read, [&[1; 4], &[2; 4]]));
    }
}
