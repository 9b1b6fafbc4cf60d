//! Asynchronous reads from the GPU: the copy is recorded now, and the bytes are available when they have arrived.

use super::Gpu;
use super::copy_queues::PendingCopy;
use crate::pool::{FreeList, size_class_within};
use crate::{Error, Result};
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const WAITING: u8 = 0;
const READY: u8 = 1;
const FAILED: u8 = 2;

/// The most bytes that each pool of mapped buffers keeps: as much as [`CopyQueues`](super::copy_queues::CopyQueues)
/// take for a direction. Gradients and moments of a training step fit, and a machine can spare it.
const MOST_FREE_BYTES: usize = 1 << 30;

/// Free mapped buffers by size class, for reads or writes. Excess returns to the driver, least recently used first.
#[derive(Clone, Default)]
pub(super) struct Buffers {
    free: Arc<Mutex<FreeList<wgpu::Buffer>>>,
    /// Bytes that are known to be used again, where those are more.
    expected: Arc<AtomicUsize>,
}

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, FreeList<wgpu::Buffer>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, class: usize) -> Option<wgpu::Buffer> {
        self.lock().take(class)
    }

    /// The most free bytes.
    fn most(&self) -> usize {
        MOST_FREE_BYTES.max(self.expected.load(Ordering::Relaxed))
    }

    pub(super) fn keep(&self, buffer: wgpu::Buffer) {
        let mut list = self.lock();
        list.insert(buffer.size() as usize, buffer);
        let removed = list.shrink(self.most());
        drop(list);
        drop(removed);
    }

    fn release(&self) {
        let removed = self.lock().shrink(0);
        drop(removed);
    }
}

/// Buffers that are kept for the next read of about that size: to make a small one takes longer than to fill it, and to
/// pin gigabytes of memory a large part of a second.
#[derive(Clone, Default)]
pub(super) struct StagingPool(pub Buffers);

impl StagingPool {
    /// The buffer size for this number of bytes.
    pub fn size(device: &wgpu::Device, bytes: usize) -> usize {
        size_class_within(bytes, device.limits().max_buffer_size)
    }

    /// Keeps at least as many bytes between reads.
    pub fn expect(&self, bytes: usize) {
        self.0.expected.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Releases all cached buffers.
    pub fn release(&self) {
        self.0.release();
    }
}

/// Buffers to write from, which are mapped again once the GPU has read them: the memory of new ones is slow at first.
#[derive(Clone, Default)]
pub(super) struct UploadPool {
    pub buffers: Buffers,
    /// Bytes of those that the GPU may still read.
    pending: Arc<AtomicUsize>,
}

impl UploadPool {
    /// Smaller uploads use buffers that are not cached.
    pub const LARGE: usize = 1 << 20;

    /// The buffer size for this number of bytes.
    fn size(device: &wgpu::Device, bytes: usize) -> usize {
        if bytes < UploadPool::LARGE {
            return bytes.next_multiple_of(4);
        }
        size_class_within(bytes, device.limits().max_buffer_size)
    }

    /// A new mapped buffer for this number of bytes.
    pub fn create(device: &wgpu::Device, bytes: usize) -> wgpu::Buffer {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("upload"),
            size: UploadPool::size(device, bytes) as u64,
            usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        })
    }

    /// A cached mapped buffer for this number of bytes, if any.
    pub fn take(&self, device: &wgpu::Device, bytes: usize) -> Option<wgpu::Buffer> {
        self.buffers.take(UploadPool::size(device, bytes))
    }

    /// Counts a buffer that the GPU is to read until [`UploadPool::map_again`] has mapped it.
    pub fn is_pending(&self, buffer: &wgpu::Buffer) {
        self.pending.fetch_add(buffer.size() as usize, Ordering::Relaxed);
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Maps a buffer again after its copy was submitted, and caches it.
    pub fn map_again(&self, buffer: wgpu::Buffer) {
        let (pool, kept) = (self.clone(), buffer.clone());
        buffer.map_async(wgpu::MapMode::Write, .., move |result| {
            pool.pending.fetch_sub(kept.size() as usize, Ordering::Relaxed);
            if result.is_ok() {
                pool.buffers.keep(kept);
            }
        });
    }

    /// Releases all cached buffers.
    pub fn release(&self) {
        self.buffers.release();
    }
}

/// A mappable buffer and whether its mapping has arrived.
#[derive(Clone)]
pub(super) struct Staging {
    pub buffer: wgpu::Buffer,
    state: Arc<AtomicU8>,
    /// The submission of the copy into it.
    submission: Arc<OnceLock<wgpu::SubmissionIndex>>,
    /// When the first mapping arrived.
    arrived: Arc<OnceLock<Instant>>,
}

impl Staging {
    pub fn new(device: &wgpu::Device, size: usize, staging_pool: &StagingPool) -> Staging {
        let class = StagingPool::size(device, size);
        let buffer = staging_pool.0.take(class).unwrap_or_else(|| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("staging"),
                size: class as u64,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        let state = Arc::new(AtomicU8::new(WAITING));
        Staging { buffer, state, submission: Arc::default(), arrived: Arc::default() }
    }

    /// Requests the mapping; call after the copy into the buffer was submitted.
    pub fn map(&self) {
        let (state, arrived) = (self.state.clone(), self.arrived.clone());
        state.store(WAITING, Ordering::Release);
        self.buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            arrived.get_or_init(Instant::now);
            state.store(if result.is_ok() { READY } else { FAILED }, Ordering::Release);
        });
    }

    /// Sets the submission of the copy into it.
    pub fn submitted(&self, index: wgpu::SubmissionIndex) {
        // One that is used again, as those of timestamps, is not waited for by itself.
        let _ = self.submission.set(index);
    }

    /// The first `size` bytes if they have arrived; unmaps the buffer, so it can be used again.
    pub fn take(&self, size: usize) -> Result<Option<Vec<u8>>> {
        let Some(range) = self.mapped()? else { return Ok(None) };
        let bytes = range[..size].to_vec();
        drop(range);
        self.buffer.unmap();
        self.state.store(WAITING, Ordering::Release);
        Ok(Some(bytes))
    }

    /// The mapped memory, if the bytes are there.
    fn mapped(&self) -> Result<Option<wgpu::BufferView>> {
        match self.state.load(Ordering::Acquire) {
            WAITING => Ok(None),
            READY => self.buffer.get_mapped_range(..).map(Some).map_err(|e| Error::Gpu(e.to_string())),
            _ => Err(Error::Gpu("a buffer could not be read back; the device may be lost".into())),
        }
    }
}

/// A pending read from the GPU.
pub struct PendingReadback {
    pub(super) gpu: Gpu,
    pub(super) way: Way,
    pub(super) size: usize,
}

/// The path of a read.
pub enum Way {
    /// wgpu's queue, into a mapped buffer.
    Mapped(Staging, StagingPool),
    /// A transfer queue.
    CopyQueue(Arc<PendingCopy>),
}

/// Bytes read from the GPU, without a copy from the mapped memory. Another thread may read them.
pub struct MappedBytes {
    memory: Memory,
    size: usize,
}

enum Memory {
    Mapped {
        /// `None` only while it is dropped.
        view: Option<wgpu::BufferView>,
        buffer: wgpu::Buffer,
        staging_pool: StagingPool,
    },
    CopyQueue(Arc<PendingCopy>),
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes: &[u8] = match &self.memory {
            Memory::Mapped { view, .. } => view.as_ref().expect("the view is there until drop"),
            Memory::CopyQueue(copy) => copy.bytes(),
        };
        &bytes[..self.size]
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        if let Memory::Mapped { view, buffer, staging_pool } = &mut self.memory {
            *view = None; // before the buffer is unmapped
            buffer.unmap();
            staging_pool.0.keep(buffer.clone());
        }
    }
}

impl PendingReadback {
    /// The bytes if they have arrived, without waiting or copying. Call it until it returns `Some`.
    ///
    /// # Errors
    /// If the GPU reported an error.
    pub fn try_read(&self) -> Result<Option<MappedBytes>> {
        self.gpu.poll()?;
        let memory = match &self.way {
            Way::Mapped(staging, staging_pool) => staging.mapped()?.map(|view| Memory::Mapped {
                view: Some(view),
                buffer: staging.buffer.clone(),
                staging_pool: staging_pool.clone(),
            }),
            Way::CopyQueue(copy) => copy.wait(Duration::ZERO)?.then(|| Memory::CopyQueue(copy.clone())),
        };
        Ok(memory.map(|memory| MappedBytes { memory, size: self.size }))
    }

    /// When the bytes arrived, if known; they may be read later.
    pub fn arrived_at(&self) -> Option<Instant> {
        match &self.way {
            Way::Mapped(staging, _) => staging.arrived.get().copied(),
            Way::CopyQueue(_) => None,
        }
    }

    /// Waits for the bytes, but not for later submits. Submits recorded commands if the read is among them.
    ///
    /// # Errors
    /// If the GPU reported an error.
    pub fn wait(self) -> Result<Vec<u8>> {
        self.wait_mapped().map(|bytes| bytes.to_vec())
    }

    /// [`PendingReadback::wait`] without a copy from the mapped memory.
    ///
    /// # Errors
    /// If the GPU reported an error.
    pub fn wait_mapped(self) -> Result<MappedBytes> {
        match &self.way {
            Way::Mapped(staging, _) => {
                if staging.submission.get().is_none() {
                    self.gpu.finish_submits()?;
                }
                match staging.submission.get() {
                    Some(index) => self.gpu.wait(Some(index.clone()))?,
                    None => self.gpu.synchronize()?,
                }
            }
            Way::CopyQueue(copy) => self.gpu.wait_for_copy(copy)?,
        }
        loop {
            if let Some(bytes) = self.try_read()? {
                return Ok(bytes);
            }
            // Another thread that waited has been told of it first.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::size_class;
    use crate::profile::MemoryKind;
    use crate::{DType, Device, Tensor};

    /// Bytes of the pools of reads and uploads.
    fn kept(gpu: &Gpu) -> [usize; 2] {
        gpu.host_pools().map(|pool| pool.lock().bytes())
    }

    #[test]
    fn as_much_is_kept_as_is_known_to_be_read_again() {
        let pool = StagingPool::default();
        for (expected, most) in [(1000, MOST_FREE_BYTES), (3 << 30, 3 << 30), (2 << 30, 3 << 30)] {
            pool.expect(expected);
            assert_eq!(pool.0.most(), most);
        }
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let device = Device::Gpu(gpu.clone());
        let whole = Tensor::zeros([5000], DType::F32, &device).unwrap();
        let parts = Tensor::zeros_in_segments(&[1024], 4096, DType::F16, &device, MemoryKind::Other).unwrap();
        let reads = || [whole.read_later().unwrap(), parts.read_later().unwrap()].map(|read| read.wait().unwrap());
        gpu.trim().unwrap();
        drop(Tensor::prepare_reads([&whole, &parts]));
        let sum = [20_000, 2048, 6144].map(|bytes| StagingPool::size(&gpu.0.device, bytes)).iter().sum::<usize>();
        assert_eq!(gpu.0.staging_pool.0.expected.load(Ordering::Relaxed), sum);
        assert_eq!(kept(&gpu)[0], sum, "made before they are read");
        drop(reads());
        assert_eq!(kept(&gpu)[0], sum, "and used by the reads");
    }

    #[test]
    fn reads_and_uploads_of_any_length_share_buffers() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let large = UploadPool::LARGE;
        let slice = gpu.alloc(2 * large, MemoryKind::Other).unwrap();
        for size in (large..large + 40 * 1_000).step_by(1_000).chain([5, 999_999, 1_000_001]) {
            let bytes: Vec<u8> = (0..size).map(|i| (i * 7 + size) as u8).collect();
            let part = slice.slice(0, size);
            gpu.upload(&part, &[&bytes]).unwrap();
            assert_eq!(gpu.download(&part).unwrap(), bytes, "{size} bytes");
        }
        gpu.synchronize().unwrap();
        // One buffer of each class; small uploads are not kept.
        let [small, least, next] = [5, large, large + 1].map(size_class);
        assert_eq!(kept(&gpu), [small + least + next, least + next]);
        gpu.trim().unwrap();
        assert_eq!(kept(&gpu), [0, 0]);
    }
}
