//! The CPU's memory pool: zeroed, 64-byte aligned blocks by size class, within a bound.

use crate::pool::{Blocks, size_class};
use crate::profile::{MemoryKind, MemoryStats};
use bytemuck::Zeroable;
use memmap2::{MmapMut, MmapRaw};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// So many free bytes are kept in any case.
const LEAST_FREE_BYTES: usize = 16 << 20;

/// Blocks from this size on are mapped, so that the system gets them back when they are dropped; malloc would keep
/// them. Their pages use no memory until they are written.
const MAPPED_BYTES: usize = 1 << 20;

/// One cache line: rows that start on it load fastest.
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

/// Memory from the system, whose size is its class.
pub(super) enum Block {
    /// Made by `Box::into_raw`.
    Lines(*mut [Line]),
    Mapped(MmapRaw),
}

// SAFETY: a block owns its memory, and who reaches that is up to whoever has the block.
unsafe impl Send for Block {}
// SAFETY: as above; the block itself only tells where the memory is.
unsafe impl Sync for Block {}

impl Block {
    fn new(size: usize) -> Option<Block> {
        if size >= MAPPED_BYTES {
            return MmapMut::map_anon(size).ok().map(|memory| Block::Mapped(memory.into()));
        }
        let lines = bytemuck::allocation::try_zeroed_slice_box(size / size_of::<Line>()).ok()?;
        Some(Block::Lines(Box::into_raw(lines)))
    }

    fn size(&self) -> usize {
        match self {
            Block::Lines(lines) => lines.len() * size_of::<Line>(),
            Block::Mapped(memory) => memory.len(),
        }
    }

    /// Its first byte.
    pub fn start(&self) -> *mut u8 {
        match self {
            Block::Lines(lines) => lines.cast(),
            Block::Mapped(memory) => memory.as_mut_ptr(),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Block::Lines(lines) = self {
            // SAFETY: the pointer is of a box, and nobody else makes one of it.
            drop(unsafe { Box::from_raw(*lines) });
        }
    }
}

pub(super) struct Pool(Mutex<Blocks<Block>>);

impl Default for Pool {
    fn default() -> Pool {
        Pool(Mutex::new(Blocks::new(LEAST_FREE_BYTES, Block::size)))
    }
}

/// That of the process.
pub(super) fn pool() -> &'static Pool {
    static POOL: LazyLock<Pool> = LazyLock::new(Pool::default);
    &POOL
}

impl Pool {
    fn blocks(&self) -> MutexGuard<'_, Blocks<Block>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of at least `size` bytes: a free one, or one from the system. If that fails, returns all free blocks to
    /// the system and retries. `None` if memory runs out.
    pub fn take(&self, size: usize, kind: MemoryKind) -> Option<Block> {
        self.take_from(size, kind, Block::new)
    }

    fn take_from(&self, size: usize, kind: MemoryKind, system: impl Fn(usize) -> Option<Block>) -> Option<Block> {
        let class = size_class(size);
        let mut blocks = self.blocks();
        if let Some(block) = blocks.take(class, kind) {
            return Some(block);
        }
        let removed = blocks.make_room(class);
        drop(blocks);
        drop(removed);
        let block = system(class).or_else(|| {
            self.trim();
            system(class)
        })?;
        self.blocks().created(class, kind);
        Some(block)
    }

    /// Caches a block that is no longer in use, and returns any excess to the system.
    pub fn give_back(&self, block: Block, kind: MemoryKind) {
        let removed = self.blocks().give_back(block, kind);
        drop(removed);
    }

    /// Gives the system back all free blocks.
    fn trim(&self) {
        let removed = self.blocks().remove_free();
        drop(removed);
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

    const KIND: MemoryKind = MemoryKind::Activations;

    #[test]
    fn work_of_ever_new_sizes_keeps_the_pool_within_its_bound() {
        let pool = Pool::default();
        // As a prompt has activations: some by its length, logits by the vocabulary, scores by the square.
        let sizes = |length: usize| [length * 4_096, length * 16_384, length * 100_000, length * length * 16];
        // Of the longest one, and of all at any time.
        let most: usize = sizes(1_009).map(size_class).iter().sum();
        for i in 0..5_000 {
            let length = 1 + i * 37 % 1_009;
            let blocks = sizes(length).map(|size| {
                let block = pool.take(size, KIND).unwrap();
                assert!(pool.stats().reserved_bytes <= most * 3 / 2 + LEAST_FREE_BYTES, "{:?}", pool.stats());
                block
            });
            blocks.into_iter().for_each(|block| pool.give_back(block, KIND));
        }
        let stats = pool.stats();
        assert_eq!((stats.peak_bytes, stats.used_bytes), (most, 0));
        assert!(stats.buffers < 250, "{stats:?}");
    }

    #[test]
    fn steps_of_the_same_sizes_ask_the_system_once() {
        let pool = Pool::default();
        for _ in 0..10 {
            let forward = [9_000_000, 100, 40_000_000].map(|size| pool.take(size, KIND).unwrap());
            let backward = [5_000_000, 70_000_000].map(|size| pool.take(size, KIND).unwrap());
            forward.into_iter().chain(backward).for_each(|block| pool.give_back(block, KIND));
        }
        let stats = pool.stats();
        assert_eq!((stats.buffers, stats.allocations), (5, 50));
    }

    #[test]
    fn an_allocation_that_fails_gives_the_free_blocks_back_and_is_made_again() {
        let pool = Pool::default();
        pool.give_back(pool.take(30_000, KIND).unwrap(), KIND);
        let kept = pool.take(1_000, KIND).unwrap();
        let full = |size| (pool.stats().buffers == 1).then(|| Block::new(size)).flatten();
        let block = pool.take_from(50_000, KIND, full).unwrap();
        assert_eq!((pool.stats().buffers, pool.stats().cached_bytes()), (2, 0));
        assert!(pool.take_from(60_000, KIND, full).is_none());
        [block, kept].into_iter().for_each(|block| pool.give_back(block, KIND));
        assert_eq!(pool.stats().used_bytes, 0);
    }

    #[test]
    fn blocks_begin_as_zeros_on_a_cache_line() {
        for size in [1, 1_000, MAPPED_BYTES - 1, MAPPED_BYTES + 1, 3 * MAPPED_BYTES] {
            let block = Block::new(size_class(size)).unwrap();
            assert!(block.start().addr().is_multiple_of(64) && block.size() >= size);
            // SAFETY: the block has as many bytes and nobody else reaches them.
            let bytes = unsafe { std::slice::from_raw_parts(block.start(), block.size()) };
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
