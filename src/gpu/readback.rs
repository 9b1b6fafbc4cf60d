//! Reads from the GPU that do not wait: the copy is recorded now, the bytes are taken when they have arrived.

use super::Gpu;
use super::copy_queues::Transit;
use crate::{Error, Result};
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

const WAITING: u8 = 0;
const READY: u8 = 1;
const FAILED: u8 = 2;

/// Buffers that are kept for the next read of that size: to make a small one takes longer than to fill it, and to pin
/// gigabytes of memory a large part of a second.
#[derive(Clone, Default)]
pub(super) struct StagingPool(Arc<Mutex<Vec<wgpu::Buffer>>>);

impl StagingPool {
    /// Smaller ones are kept while there are fewer than this, whatever their sizes.
    const LARGE: u64 = 1 << 20;
    const MOST: usize = 32;

    fn take(&self, size: u64) -> Option<wgpu::Buffer> {
        let mut buffers = self.0.lock().unwrap_or_else(|p| p.into_inner());
        let place = buffers.iter().position(|buffer| buffer.size() == size)?;
        Some(buffers.swap_remove(place))
    }

    /// Gives back what is kept.
    pub fn release(&self) {
        self.0.lock().unwrap_or_else(|p| p.into_inner()).clear();
    }

    /// Keeps a buffer that is not mapped.
    fn keep(&self, buffer: wgpu::Buffer) {
        let mut buffers = self.0.lock().unwrap_or_else(|p| p.into_inner());
        if buffer.size() >= StagingPool::LARGE || buffers.len() < StagingPool::MOST {
            buffers.push(buffer);
        }
    }
}

/// Buffers to write from, which are mapped again once the GPU has read them: the memory of new ones is slow at first.
#[derive(Clone, Default)]
pub(super) struct UploadPool(Arc<Mutex<Vec<wgpu::Buffer>>>);

impl UploadPool {
    /// Smaller ones are not kept.
    pub const LARGE: u64 = 1 << 20;
    /// The most bytes that are kept.
    const MOST: u64 = 1 << 30;

    /// A mapped buffer of this size, if there is one.
    pub fn take(&self, size: u64) -> Option<wgpu::Buffer> {
        let mut buffers = self.0.lock().unwrap_or_else(|p| p.into_inner());
        let place = buffers.iter().position(|buffer| buffer.size() == size)?;
        Some(buffers.swap_remove(place))
    }

    /// Maps a buffer again, whose copy was submitted, and keeps it then.
    pub fn map_again(&self, buffer: wgpu::Buffer) {
        let (pool, kept) = (self.clone(), buffer.clone());
        buffer.map_async(wgpu::MapMode::Write, .., move |result| {
            let mut buffers = pool.0.lock().unwrap_or_else(|p| p.into_inner());
            let bytes: u64 = buffers.iter().map(wgpu::Buffer::size).sum();
            if result.is_ok() && bytes + kept.size() <= UploadPool::MOST {
                buffers.push(kept);
            }
        });
    }

    /// Gives back what is kept.
    pub fn release(&self) {
        self.0.lock().unwrap_or_else(|p| p.into_inner()).clear();
    }
}

/// A mappable buffer and whether its mapping has arrived.
#[derive(Clone)]
pub(super) struct Staging {
    pub buffer: wgpu::Buffer,
    state: Arc<AtomicU8>,
    /// What the copy into it was submitted with.
    submission: Arc<OnceLock<wgpu::SubmissionIndex>>,
}

impl Staging {
    pub fn new(device: &wgpu::Device, size: usize, staging_pool: &StagingPool) -> Staging {
        let size = size.next_multiple_of(4) as u64;
        let buffer = staging_pool.take(size).unwrap_or_else(|| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("staging"),
                size,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        Staging { buffer, state: Arc::new(AtomicU8::new(WAITING)), submission: Arc::default() }
    }

    /// Asks for the mapping; call after the copy into the buffer was submitted.
    pub fn map(&self) {
        let state = self.state.clone();
        state.store(WAITING, Ordering::Release);
        self.buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            state.store(if result.is_ok() { READY } else { FAILED }, Ordering::Release);
        });
    }

    /// Tells what the copy into it was submitted with.
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

/// Bytes on their way from the GPU.
pub struct PendingReadback {
    pub(super) gpu: Gpu,
    pub(super) way: Way,
    pub(super) size: usize,
}

/// How bytes come from the GPU.
pub(super) enum Way {
    /// By wgpu's queue, to a buffer that is mapped then.
    Mapped(Staging, StagingPool),
    /// By a queue of copies.
    Aside(Arc<Transit>),
}

/// Bytes that have arrived from the GPU, in the memory where they arrived. Another thread may read them.
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
    Aside(Arc<Transit>),
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes: &[u8] = match &self.memory {
            Memory::Mapped { view, .. } => view.as_ref().expect("the view is there until drop"),
            Memory::Aside(transit) => transit.bytes(),
        };
        &bytes[..self.size]
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        if let Memory::Mapped { view, buffer, staging_pool } = &mut self.memory {
            *view = None; // before the buffer is unmapped
            buffer.unmap();
            staging_pool.keep(buffer.clone());
        }
    }
}

impl PendingReadback {
    /// The bytes where they arrived, once they have. Never waits, never copies; to be called until it gives them.
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
            Way::Aside(transit) => transit.wait(Duration::ZERO)?.then(|| Memory::Aside(transit.clone())),
        };
        Ok(memory.map(|memory| MappedBytes { memory, size: self.size }))
    }

    /// Waits for the bytes, and not for what was submitted after them; submits what is recorded if they are of that.
    ///
    /// # Errors
    /// If the GPU reported an error.
    pub fn wait(self) -> Result<Vec<u8>> {
        self.wait_mapped().map(|bytes| bytes.to_vec())
    }

    /// [`PendingReadback::wait`], with the bytes where they arrived.
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
            Way::Aside(transit) => self.gpu.wait_aside(transit)?,
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
