//! The blocks of a pool, in use and free, within a bound.

use super::FreeList;
use crate::profile::{MemoryCount, MemoryKind, MemoryStats};

/// All blocks, in use and free, are at most this many times the largest sum of those in use. A training step takes
/// blocks of the same sizes as the step before, which add up to 1.05 to 1.2 times its peak, because not all sizes are
/// in use when the peak is; prompts of ever new lengths leave blocks that nobody takes again.
const MOST_OF_PEAK: f64 = 1.5;

/// Accounting of a pool's blocks. Removed blocks are returned, to be dropped outside the pool's lock.
#[derive(Debug)]
pub(crate) struct Blocks<T> {
    free: FreeList<T>,
    count: MemoryCount,
    /// Free bytes that are kept in any case.
    least_free_bytes: usize,
    size: fn(&T) -> usize,
    #[cfg(all(feature = "testing", feature = "gpu"))]
    created: usize,
}

impl<T> Blocks<T> {
    /// An empty pool with this floor of free bytes; `size` returns the bytes of a block.
    pub fn new(least_free_bytes: usize, size: fn(&T) -> usize) -> Blocks<T> {
        Blocks {
            free: FreeList::default(),
            count: MemoryCount::default(),
            least_free_bytes,
            size,
            #[cfg(all(feature = "testing", feature = "gpu"))]
            created: 0,
        }
    }

    /// The most recently freed block of this size, which may still be in the CPU's caches.
    pub fn take(&mut self, size: usize, kind: MemoryKind) -> Option<T> {
        let block = self.free.take(size)?;
        self.count.take(size, kind, false);
        Some(block)
    }

    /// The free block of this size with the lowest number.
    #[cfg(feature = "gpu")]
    pub fn take_lowest(&mut self, size: usize, kind: MemoryKind, number: impl Fn(&T) -> u64) -> Option<T> {
        let block = self.free.take_lowest(size, number)?;
        self.count.take(size, kind, false);
        Some(block)
    }

    /// Removes free blocks, so that the sum stays within the bound with a new block of this size.
    pub fn make_room(&mut self, size: usize) -> Vec<T> {
        self.shrink_to_bound(size)
    }

    /// A new block is in use.
    pub fn created(&mut self, size: usize, kind: MemoryKind) {
        self.count.take(size, kind, true);
        #[cfg(all(feature = "testing", feature = "gpu"))]
        {
            self.created += 1;
        }
    }

    /// A block that is in use is not to be cached but gone.
    #[cfg(feature = "gpu")]
    pub fn destroyed(&mut self, size: usize, kind: MemoryKind) {
        self.count.give_back(size, kind);
        self.count.release(size);
    }

    /// Number of blocks created so far.
    #[cfg(all(feature = "testing", feature = "gpu"))]
    pub fn all_created(&self) -> usize {
        self.created
    }

    #[cfg(all(feature = "testing", feature = "gpu"))]
    pub fn keep_least(&mut self, bytes: usize) {
        self.least_free_bytes = bytes;
    }

    /// Caches a block that is no longer in use, and removes any excess.
    pub fn give_back(&mut self, block: T, kind: MemoryKind) -> Vec<T> {
        let size = (self.size)(&block);
        self.count.give_back(size, kind);
        self.free.insert(size, block);
        self.shrink_to_bound(0)
    }

    /// Removes all free blocks.
    pub fn remove_free(&mut self) -> Vec<T> {
        self.shrink(0)
    }

    pub fn reset_peak(&mut self) {
        self.count.reset_peak();
    }

    pub fn stats(&self) -> MemoryStats {
        self.count.stats()
    }

    /// Removes free blocks until at most `bytes` are left.
    fn shrink(&mut self, bytes: usize) -> Vec<T> {
        let removed = self.free.shrink(bytes);
        removed.iter().for_each(|block| self.count.release((self.size)(block)));
        removed
    }

    /// Removes the excess when `added` more bytes are in use.
    fn shrink_to_bound(&mut self, added: usize) -> Vec<T> {
        let stats = self.count.stats();
        let used = stats.used_bytes.saturating_add(added);
        let most = (stats.peak_bytes.max(used) as f64 * MOST_OF_PEAK) as usize;
        self.shrink(most.saturating_sub(used).max(self.least_free_bytes))
    }
}
