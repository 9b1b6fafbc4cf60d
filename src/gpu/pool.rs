//! GPU memory: slices of buffers that go back to a pool when the last tensor lets go of them.
//!
//! Commands run in the order in which they were recorded, so a buffer may be handed out again as soon as it is free,
//! while the GPU still works on what was recorded before.

use super::copy_queues::Transit;
use super::size_class::{ALIGN, size_class};
use crate::Result;
use crate::profile::{MemoryCount, MemoryKind, MemoryStats};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
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

    /// The first `size` bytes of what the queues of copies use too.
    pub(super) fn in_transit(transit: Arc<Transit>, size: usize) -> GpuSlice {
        let (raw, id) = transit.shared();
        let (id, raw) = (id, Some(raw.clone()));
        let buffer = Arc::new(Pooled { id, raw, home: Home::Transit(transit) });
        GpuSlice { buffer, offset: 0, size }
    }

    /// The copy that this memory is of.
    pub(super) fn transit(&self) -> Option<&Arc<Transit>> {
        match &self.buffer.home {
            Home::Transit(transit) => Some(transit),
            Home::Pool(..) => None,
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
        write!(f, "gpu buffer {} [{}..+{}]", self.buffer.id, self.offset, self.size)
    }
}

/// A buffer that returns to its pool when dropped.
pub(super) struct Pooled {
    /// Never given to another buffer: bind groups are cached under it.
    pub id: u64,
    /// Taken only by `drop`.
    raw: Option<wgpu::Buffer>,
    home: Home,
}

/// Where a buffer goes back to.
enum Home {
    Pool(Weak<Pool>, MemoryKind),
    /// To the queues of copies, once nobody has the copy.
    Transit(Arc<Transit>),
}

/// The number of a new buffer.
pub(super) fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Pooled {
    pub fn raw(&self) -> &wgpu::Buffer {
        self.raw.as_ref().expect("the buffer is there until drop")
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let (Some(raw), Home::Pool(pool, kind)) = (self.raw.take(), &self.home)
            && let Some(pool) = pool.upgrade()
        {
            pool.give_back(self.id, raw, *kind);
        }
    }
}

/// Free buffers by size.
#[derive(Default)]
pub(super) struct Pool(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    free: HashMap<usize, Vec<(u64, wgpu::Buffer)>>,
    count: MemoryCount,
}

impl Pool {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of at least `size` bytes: one that is free, or one that `create` makes.
    ///
    /// # Errors
    /// Those of `create`.
    pub fn take(
        self: &Arc<Pool>,
        size: usize,
        kind: MemoryKind,
        create: impl FnOnce(usize) -> Result<wgpu::Buffer>,
    ) -> Result<GpuSlice> {
        let class = size_class(size);
        let recycled = self.inner().free.get_mut(&class).and_then(Vec::pop);
        // Not under the lock: whoever creates asks what is in use.
        let created = if recycled.is_none() { Some(create(class)?) } else { None };
        let mut inner = self.inner();
        inner.count.take(class, kind, created.is_some());
        drop(inner);
        let (id, raw) = recycled.or(created.map(|raw| (next_id(), raw))).expect("recycled or created");
        let home = Home::Pool(Arc::downgrade(self), kind);
        let buffer = Arc::new(Pooled { id, raw: Some(raw), home });
        Ok(GpuSlice { buffer, offset: 0, size })
    }

    /// Gives the free buffers back to the driver, once the GPU is done with them.
    pub fn release_free(&self) {
        let mut inner = self.inner();
        let free = std::mem::take(&mut inner.free);
        for (_, raw) in free.into_values().flatten() {
            inner.count.release(raw.size() as usize);
        }
    }

    fn give_back(&self, id: u64, raw: wgpu::Buffer, kind: MemoryKind) {
        let class = raw.size() as usize;
        let mut inner = self.inner();
        inner.count.give_back(class, kind);
        inner.free.entry(class).or_default().push((id, raw));
    }

    pub fn reset_peak(&self) {
        self.inner().count.reset_peak();
    }

    pub fn stats(&self) -> MemoryStats {
        self.inner().count.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::BytesByKind;

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
