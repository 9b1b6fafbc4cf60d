//! Reads from the GPU that do not wait: the copy is recorded now, the bytes are taken when they have arrived.

use super::Gpu;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const WAITING: u8 = 0;
const READY: u8 = 1;
const FAILED: u8 = 2;

/// A mappable buffer and whether its mapping has arrived.
#[derive(Clone)]
pub(super) struct Staging {
    pub buffer: wgpu::Buffer,
    state: Arc<AtomicU8>,
}

impl Staging {
    pub fn new(device: &wgpu::Device, size: usize) -> Staging {
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("staging"),
            size: size.next_multiple_of(4) as u64,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Staging { buffer, state: Arc::new(AtomicU8::new(WAITING)) }
    }

    /// Asks for the mapping; call after the copy into the buffer was submitted.
    pub fn map(&self) {
        let state = self.state.clone();
        state.store(WAITING, Ordering::Release);
        self.buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            state.store(if result.is_ok() { READY } else { FAILED }, Ordering::Release);
        });
    }

    /// The first `size` bytes if they have arrived; unmaps the buffer, so it can be used again.
    pub fn take(&self, size: usize) -> Result<Option<Vec<u8>>> {
        match self.state.load(Ordering::Acquire) {
            WAITING => Ok(None),
            READY => {
                let range = self.buffer.get_mapped_range(..).map_err(|e| Error::Gpu(e.to_string()))?;
                let bytes = range[..size].to_vec();
                drop(range);
                self.buffer.unmap();
                self.state.store(WAITING, Ordering::Release);
                Ok(Some(bytes))
            }
            _ => Err(Error::Gpu("a buffer could not be read back; the device may be lost".into())),
        }
    }
}

/// Bytes on their way from the GPU.
pub struct Pending {
    pub(super) gpu: Gpu,
    pub(super) staging: Staging,
    pub(super) size: usize,
}

impl Pending {
    /// The bytes if they have arrived. Never waits.
    ///
    /// # Errors
    /// If the GPU reported an error.
    pub fn try_take(&self) -> Result<Option<Vec<u8>>> {
        self.gpu.poll()?;
        self.staging.take(self.size)
    }

    /// Submits what is recorded and waits for the bytes.
    ///
    /// # Errors
    /// If the GPU reported an error.
    pub fn wait(self) -> Result<Vec<u8>> {
        self.gpu.synchronize()?;
        self.staging.take(self.size)?.ok_or_else(|| Error::Gpu("a read-back did not arrive".into()))
    }
}
