//! A recorded or submitted copy, and its buffers.

use super::staging::StagingBuffer;
use super::{Inner, gpu_error};
use crate::Result;
use ash::prelude::VkResult;
use ash::vk;
use rustyflow_base::copy::copy;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A recorded or submitted copy, which owns its buffers.
pub struct PendingCopy {
    /// `None` only while it is dropped.
    pub(super) buffer: Option<StagingBuffer>,
    /// Whether the copy is submitted; an error if it could not be.
    pub(super) submitted: Mutex<Option<VkResult<()>>>,
    /// Whether it is known to be done.
    pub(super) arrived: AtomicBool,
    pub(super) queues: Arc<Inner>,
}

impl PendingCopy {
    pub(super) fn buffer(&self) -> &StagingBuffer {
        self.buffer.as_ref().expect("the buffer is there until drop")
    }

    pub(super) fn submitted(&self) -> MutexGuard<'_, Option<VkResult<()>>> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device buffer, and its memory id.
    pub fn shared(&self) -> (&wgpu::Buffer, u64) {
        (&self.buffer().shared, self.buffer().id)
    }

    /// Whether the copy was submitted.
    pub fn is_submitted(&self) -> bool {
        self.submitted().is_some()
    }

    /// Whether the copy is done; waits for a submitted copy up to `at_most`.
    ///
    /// # Errors
    /// If the copy failed.
    pub fn wait(&self, at_most: Duration) -> Result<bool> {
        match *self.submitted() {
            None => return Ok(false),
            Some(result) => result.map_err(gpu_error)?,
        }
        // SAFETY: the fence is this device's.
        match unsafe { self.queues.raw.wait_for_fences(&[self.buffer().done], true, at_most.as_nanos() as u64) } {
            Ok(()) => {
                self.arrived.store(true, Ordering::Release);
                Ok(true)
            }
            Err(vk::Result::TIMEOUT) => Ok(false),
            Err(error) => Err(gpu_error(error)),
        }
    }

    /// The copied bytes.
    ///
    /// # Panics
    /// If `wait` has not returned true.
    pub fn bytes(&self) -> &[u8] {
        assert!(self.arrived.load(Ordering::Acquire), "bytes are read before they are there");
        let buffer = self.buffer();
        // SAFETY: so many bytes are mapped until the buffer is destroyed, and nothing is copied to them while it is
        // this copy's, after the copy that was waited for.
        unsafe { std::slice::from_raw_parts(buffer.mapped, buffer.size as usize) }
    }

    /// Sets the bytes to copy to the device, at most the allocated size.
    ///
    /// # Panics
    /// If there are more bytes, or the copy was submitted.
    pub fn fill(&mut self, bytes: &[u8]) {
        assert!(!self.is_submitted(), "bytes are written after they were copied");
        let buffer = self.buffer.as_mut().expect("the buffer is there until drop");
        assert!(bytes.len() as u64 <= buffer.size, "{} bytes for a copy of {}", bytes.len(), buffer.size);
        // SAFETY: the memory has as many bytes, which the bytes given cannot overlap; nothing else reads or writes
        // them, because the copy of whoever had the buffer is done.
        let to = unsafe { std::slice::from_raw_parts_mut(buffer.mapped, bytes.len()) };
        // One thread takes several times as long as the copy to the device.
        copy(bytes, to);
    }
}

impl Drop for PendingCopy {
    fn drop(&mut self) {
        let Some(mut buffer) = self.buffer.take() else { return };
        let failed = matches!(*self.submitted(), Some(Err(_)));
        if failed {
            // Its fence will never be signaled, so that nobody could wait for it or use it again.
            let mut staging = self.queues.staging();
            staging.bytes[buffer.direction as usize] -= buffer.size;
            // SAFETY: the copy was not submitted, and nobody has it.
            unsafe { self.queues.destroy(&buffer) };
            return;
        }
        // What reads it in wgpu's queue is recorded, and at the latest in the next submit.
        buffer.after = self.queues.announced.load(Ordering::Acquire) + 1;
        self.queues.staging().free.push(buffer);
    }
}
