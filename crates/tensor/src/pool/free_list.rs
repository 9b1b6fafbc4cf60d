//! The free blocks of a pool, within a bound in bytes.

use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Free blocks by size, bounded in bytes, with LRU eviction.
#[derive(Debug)]
pub(crate) struct FreeList<T> {
    /// By size in bytes: blocks and when they came back, the earliest in front.
    by_size: FxHashMap<usize, VecDeque<(u64, T)>>,
    bytes: usize,
    /// How many blocks ever came back.
    returned: u64,
}

impl<T> Default for FreeList<T> {
    fn default() -> FreeList<T> {
        FreeList { by_size: FxHashMap::default(), bytes: 0, returned: 0 }
    }
}

impl<T> FreeList<T> {
    /// Of all free blocks.
    #[cfg(all(test, feature = "gpu"))]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most recently freed block of this size.
    pub fn take(&mut self, size: usize) -> Option<T> {
        let (_, block) = self.by_size.get_mut(&size)?.pop_back()?;
        self.bytes -= size;
        Some(block)
    }

    /// The free block of this size with the lowest number.
    #[cfg(feature = "gpu")]
    pub fn take_lowest(&mut self, size: usize, number: impl Fn(&T) -> u64) -> Option<T> {
        let blocks = self.by_size.get_mut(&size)?;
        let (index, _) = blocks.iter().enumerate().min_by_key(|(_, (_, block))| number(block))?;
        let (_, block) = blocks.remove(index)?;
        self.bytes -= size;
        Some(block)
    }

    /// Caches a block that is no longer in use.
    pub fn insert(&mut self, size: usize, block: T) {
        self.bytes += size;
        self.returned += 1;
        self.by_size.entry(size).or_default().push_back((self.returned, block));
    }

    /// Removes blocks until at most `bytes` are left. Drop them outside the pool's lock, because that may be slow.
    pub fn shrink(&mut self, bytes: usize) -> Vec<T> {
        let mut removed = Vec::new();
        while self.bytes > bytes {
            let earliest = |(size, blocks): (&usize, &VecDeque<(u64, T)>)| Some((blocks.front()?.0, *size));
            let (_, size) = self.by_size.iter().filter_map(earliest).min().expect("free bytes are those of blocks");
            let (_, block) = self.by_size.get_mut(&size).and_then(VecDeque::pop_front).expect("it was just there");
            self.bytes -= size;
            removed.push(block);
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_block_is_taken_and_the_earliest_removed() {
        let mut list = FreeList::default();
        [(8, 'a'), (8, 'b'), (4, 'c'), (8, 'd')].into_iter().for_each(|(size, block)| list.insert(size, block));
        assert_eq!((list.take(8), list.take(16)), (Some('d'), None));
        assert_eq!(list.shrink(20), []);
        assert_eq!(list.shrink(12), ['a']);
        list.insert(8, 'a');
        assert_eq!(list.shrink(9), ['b', 'c']);
        assert_eq!((list.shrink(0), list.take(8)), (vec!['a'], None));
    }

    #[test]
    #[cfg(feature = "gpu")]
    fn the_lowest_block_is_taken_and_the_earliest_removed() {
        let mut list = FreeList::default();
        [(8, 3), (8, 1), (8, 2), (4, 0)].into_iter().for_each(|(size, block)| list.insert(size, block));
        assert_eq!((list.take_lowest(8, |block| *block), list.take_lowest(16, |block| *block)), (Some(1), None));
        assert_eq!((list.bytes(), list.shrink(12)), (20, vec![3]));
        assert_eq!((list.take_lowest(8, |block| *block), list.bytes()), (Some(2), 4));
    }
}
