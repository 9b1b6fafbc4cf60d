//! GPU memory pool: slices of buffers that return to the pool when their last tensor is dropped.
//!
//! Commands run in recorded order, so a free buffer can be reused at once, while the GPU still runs earlier commands.

use super::copy_queues::PendingCopy;
use super::memory::{Allocation, Memory};
use crate::Result;
use crate::pool::{ALIGN, Blocks, size_class_within};
use crate::profile::{MemoryKind, MemoryStats};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A part of a buffer.
#[derive(Clone)]
pub struct GpuSlice {
    pub(super) buffer: Arc<Pooled>,
    pub(super) offset: usize,
    pub(super) size: usize,
}

impl GpuSlice {
    /// The part that starts at `offset` bytes (a multiple of 256) and has `size` bytes.
    pub(crate) fn slice(&self, offset: usize, size: usize) -> GpuSlice {
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.size);
        assert!(offset.is_multiple_of(ALIGN) && fits, "slice {offset}+{size} of {}", self.size);
        GpuSlice { buffer: self.buffer.clone(), offset: self.offset + offset, size }
    }

    /// The first `size` bytes of a transfer-queue buffer.
    pub(super) fn of_copy(copy: Arc<PendingCopy>, size: usize) -> GpuSlice {
        let (buffer, id) = copy.shared();
        let allocation = Arc::new(Allocation::new(Arc::new(Memory::of_one_buffer(id, buffer.clone()))));
        let buffer = Arc::new(Pooled { allocation, home: Home::PendingCopy(copy) });
        GpuSlice { buffer, offset: 0, size }
    }

    /// The copy that this memory is of.
    pub(super) fn copy(&self) -> Option<&Arc<PendingCopy>> {
        match &self.buffer.home {
            Home::PendingCopy(copy) => Some(copy),
            _ => None,
        }
    }

    /// Whether no other slice shares the buffer.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }

    /// Whether two slices share memory.
    pub fn overlaps(&self, other: &GpuSlice) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
            && self.offset < other.offset + other.size
            && other.offset < self.offset + self.size
    }
}

impl fmt::Debug for GpuSlice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?} [{}..+{}]", self.buffer.allocation, self.offset, self.size)
    }
}

/// Memory that returns to its pool when dropped.
pub(super) struct Pooled {
    pub allocation: Arc<Allocation>,
    home: Home,
}

/// Where memory goes back to.
enum Home {
    Pool(Weak<Pool>, MemoryKind),
    /// Returns to the transfer queues when the copy is dropped.
    PendingCopy(Arc<PendingCopy>),
    /// Is counted by its pool, and returns to the driver.
    #[cfg(target_os = "linux")]
    Driver(Weak<Pool>),
}

impl Drop for Pooled {
    fn drop(&mut self) {
        match &self.home {
            Home::Pool(pool, kind) => {
                let Some(pool) = pool.upgrade() else { return };
                pool.give_back(self.allocation.memory.clone(), *kind);
            }
            #[cfg(target_os = "linux")]
            Home::Driver(pool) => {
                let Some(pool) = pool.upgrade() else { return };
                pool.blocks().destroyed(self.allocation.memory.size(), MemoryKind::Other);
            }
            Home::PendingCopy(_) => {}
        }
    }
}

/// So many free bytes are kept in any case. A driver takes longer to make a buffer than the CPU's allocator, so they
/// are more than there: trainings of small models that alternate between shapes keep the buffers of all of them.
const LEAST_FREE_BYTES: usize = 256 << 20;

/// Free memory by id. The lowest is reused first, so that a training step gets the memory of the previous one, whose
/// bind groups are cached.
type Free = (u64, Arc<Memory>);

/// The memory of a device, within the bound of [`Blocks`].
pub(super) struct Pool(Mutex<Blocks<Free>>);

impl Default for Pool {
    fn default() -> Pool {
        Pool(Mutex::new(Blocks::new(LEAST_FREE_BYTES, |(_, memory)| memory.size())))
    }
}

impl Pool {
    fn blocks(&self) -> MutexGuard<'_, Blocks<Free>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At least `size` bytes, in a buffer of at most `largest`: free memory, or new memory from `create`.
    ///
    /// # Errors
    /// Those of `create`.
    pub fn take(
        self: &Arc<Pool>,
        size: usize,
        largest: u64,
        kind: MemoryKind,
        create: impl FnOnce(usize) -> Result<Memory>,
    ) -> Result<GpuSlice> {
        let class = size_class_within(size, largest);
        let recycled = self.blocks().take_lowest(class, kind, |(number, _)| *number);
        let memory = match recycled {
            Some((_, memory)) => memory,
            None => {
                let removed = self.blocks().make_room(class);
                drop(removed);
                // Not under the lock: whoever creates asks what is in use.
                let created = create(class)?;
                self.blocks().created(class, kind);
                Arc::new(created)
            }
        };
        let home = Home::Pool(Arc::downgrade(self), kind);
        let buffer = Arc::new(Pooled { allocation: Arc::new(Allocation::new(memory)), home });
        Ok(GpuSlice { buffer, offset: 0, size })
    }

    /// All of a memory that another API may use too, which is not given to anybody else.
    #[cfg(target_os = "linux")]
    pub fn adopt(self: &Arc<Pool>, memory: Memory) -> GpuSlice {
        let size = memory.size();
        self.blocks().created(size, MemoryKind::Other);
        let (allocation, home) = (Arc::new(Allocation::new(Arc::new(memory))), Home::Driver(Arc::downgrade(self)));
        GpuSlice { buffer: Arc::new(Pooled { allocation, home }), offset: 0, size }
    }

    /// Returns free memory to the driver, once the GPU has finished with it.
    pub fn release_free(&self) {
        let removed = self.blocks().remove_free();
        drop(removed);
    }

    /// Caches memory that is no longer in use, and returns any excess to the driver.
    fn give_back(&self, memory: Arc<Memory>, kind: MemoryKind) {
        let removed = self.blocks().give_back((memory.id, memory), kind);
        drop(removed);
    }

    #[cfg(feature = "testing")]
    pub fn created(&self) -> usize {
        self.blocks().all_created()
    }

    #[cfg(feature = "testing")]
    pub fn keep_least(&self, bytes: usize) {
        self.blocks().keep_least(bytes);
    }

    pub fn reset_peak(&self) {
        self.blocks().reset_peak();
    }

    pub fn stats(&self) -> MemoryStats {
        self.blocks().stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::size_class;
    use crate::profile::BytesByKind;

    #[test]
    fn the_lowest_numbered_memory_goes_first() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let alloc = || gpu.alloc(5_000, MemoryKind::Other).unwrap();
        let number = |slice: &GpuSlice| slice.buffer.allocation.memory.id;
        let (first, second) = (alloc(), alloc());
        let numbers = [number(&first), number(&second)];
        // The second comes back last.
        drop(first);
        drop(second);
        let again = [alloc(), alloc()];
        assert_eq!(again.each_ref().map(number), numbers);
    }

    #[test]
    fn kinds_add_up_to_the_peak() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let alloc = |kind, size| gpu.alloc(size, kind).unwrap();
        let _parameters = alloc(MemoryKind::Parameters, 1_000);
        let activation = alloc(MemoryKind::Activations, 5_000);
        drop(activation);
        // The same buffer as before, for something else.
        let _scratch = alloc(MemoryKind::Scratch, 5_000);
        let _other = alloc(MemoryKind::Other, 1);
        let stats = gpu.memory();
        let mut expected = BytesByKind::default();
        for (kind, size) in [(MemoryKind::Parameters, 1_000), (MemoryKind::Scratch, 5_000), (MemoryKind::Other, 1)] {
            expected[kind] = size_class(size);
        }
        assert_eq!(stats.peak_by_kind, expected);
        assert_eq!((stats.peak_bytes, stats.used_bytes), (expected.total(), expected.total()));
        assert_eq!((stats.reserved_bytes, stats.buffers), (expected.total(), 3));
    }
}
