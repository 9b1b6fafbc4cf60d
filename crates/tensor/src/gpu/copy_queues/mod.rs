//! Transfer queues: copies between GPU and host that run concurrently with kernels.
//!
//! wgpu has one queue, in which copies and kernels alternate. Many Vulkan drivers offer transfer queues (the DMA
//! engines of NVIDIA's and AMD's GPUs). On such a device, two are opened besides wgpu's queue:
//!
//! ```text
//! a kernel -> memory for both kinds of queues -> a copy -> the host reads
//! the host writes -> a copy -> memory for both kinds of queues -> a kernel
//! ```
//! The copy to the host waits for wgpu's queue by a semaphore; the host waits for copies by a fence.

mod open;
mod pending;
mod staging;
#[cfg(test)]
mod tests;

pub(super) use open::open;
pub(super) use pending::PendingCopy;

use crate::{Error, Result};
use ash::prelude::VkResult;
use ash::vk;
use staging::{StagingBuffer, StagingBuffers};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wgpu::hal::api::Vulkan;

/// A copy of at most 1 GiB that was submitted is done by then: even PCIe 1.0 takes a second for it, after the kernels
/// that it waits for.
const LONGEST_COPY: Duration = Duration::from_secs(10);

/// Beside wgpu's queue.
#[derive(Clone)]
pub(super) struct CopyQueues(Arc<Inner>);

/// Where copies go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToHost,
    ToDevice,
}

struct Inner {
    raw: ash::Device,
    /// By direction; one if the device has no more.
    queues: [vk::Queue; 2],
    /// wgpu's and that of these queues.
    families: [u32; 2],
    memory: vk::PhysicalDeviceMemoryProperties,
    commands: vk::CommandPool,
    /// Its value is the number of the last [`CopyQueues::announce`] that wgpu's queue has come to.
    reached: vk::Semaphore,
    /// Its value is the number of copies to the device that are done.
    uploaded: vk::Semaphore,
    announced: AtomicU64,
    staging: Mutex<StagingBuffers>,
    /// Lasts as long as what was made of it. The last field.
    device: wgpu::Device,
}

fn gpu_error(result: vk::Result) -> Error {
    match result {
        vk::Result::ERROR_DEVICE_LOST => Error::DeviceLost("it stopped while it copied".into()),
        other => Error::Gpu(format!("a copy between the host and the GPU: {other}")),
    }
}

impl CopyQueues {
    /// The most memory that copies of one direction take at once, on the device and on the host. What is beyond goes
    /// through wgpu's queue.
    const MOST: u64 = 1 << 30;

    /// Those that submit to wgpu's own queue: software adapters have no other, and shall run this code too.
    #[cfg(test)]
    pub fn of_the_only_queue(device: &wgpu::Device) -> Option<CopyQueues> {
        // SAFETY: the handle is copied; whoever uses it does so while nobody submits to wgpu's queue.
        let (family, queue) = unsafe {
            let vulkan = device.as_hal::<Vulkan>()?;
            (vulkan.queue_family_index(), vulkan.raw_queue())
        };
        CopyQueues::new(device, [family; 2], [queue; 2]).ok()
    }

    fn new(device: &wgpu::Device, families: [u32; 2], queues: [vk::Queue; 2]) -> Result<CopyQueues> {
        // SAFETY: what is made here is destroyed with `Inner`, which keeps the device.
        unsafe {
            let vulkan = device.as_hal::<Vulkan>().expect("opened by Vulkan");
            let raw = vulkan.raw_device().clone();
            let instance = vulkan.shared_instance().raw_instance();
            let memory = instance.get_physical_device_memory_properties(vulkan.raw_physical_device());
            let semaphore = || {
                let mut timeline =
                    vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE).initial_value(0);
                let info = vk::SemaphoreCreateInfo::default().push_next(&mut timeline);
                raw.create_semaphore(&info, None).map_err(gpu_error)
            };
            let destroy = |semaphore| raw.destroy_semaphore(semaphore, None);
            let reached = semaphore()?;
            let uploaded = semaphore().inspect_err(|_| destroy(reached))?;
            let info = vk::CommandPoolCreateInfo::default().queue_family_index(families[1]);
            let commands = raw.create_command_pool(&info, None).map_err(|error| {
                [reached, uploaded].into_iter().for_each(destroy);
                gpu_error(error)
            })?;
            let (announced, staging, device) = (AtomicU64::new(0), Mutex::default(), device.clone());
            let inner =
                Inner { raw, queues, families, memory, commands, reached, uploaded, announced, staging, device };
            Ok(CopyQueues(Arc::new(inner)))
        }
    }

    /// Memory of so many bytes, here and there; `None` if there is no more to be had.
    ///
    /// # Errors
    /// If the driver has other reasons not to make it.
    pub fn take(&self, size: usize, direction: Direction) -> Result<Option<PendingCopy>> {
        // Bindings are multiples of it.
        let size = (size.max(1) as u64).next_multiple_of(16);
        let mut staging = self.0.staging();
        let ready =
            |buffer: &StagingBuffer| (buffer.size, buffer.direction) == (size, direction) && self.0.is_unused(buffer);
        let buffer = match staging.free.iter().position(ready) {
            Some(place) => staging.free.swap_remove(place),
            None => {
                if staging.bytes[direction as usize] + size > CopyQueues::MOST {
                    self.0.release(&mut staging);
                }
                if staging.bytes[direction as usize] + size > CopyQueues::MOST {
                    return Ok(None);
                }
                // Under the lock, which guards the pool of commands.
                match self.0.create_staging(size, direction) {
                    Err(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY) => {
                        return Ok(None);
                    }
                    buffer => {
                        let buffer = buffer.map_err(gpu_error)?;
                        staging.bytes[direction as usize] += size;
                        buffer
                    }
                }
            }
        };
        drop(staging);
        let (submitted, arrived, queues) = (Mutex::default(), AtomicBool::default(), self.0.clone());
        Ok(Some(PendingCopy { buffer: Some(buffer), submitted, arrived, queues }))
    }

    /// Gives the driver back the memory of what is not in use; waits for copies that are under way.
    pub fn release(&self) {
        // Nobody takes them meanwhile.
        let free = std::mem::take(&mut self.0.staging().free);
        let fences: Vec<vk::Fence> = free.iter().map(|buffer| buffer.done).collect();
        if !fences.is_empty() {
            // What is not done by then stays until it is; so does all of a lost device, whose copies nobody can wait
            // for.
            // SAFETY: the fences are this device's.
            let _ = unsafe { self.0.raw.wait_for_fences(&fences, true, LONGEST_COPY.as_nanos() as u64) };
        }
        let mut staging = self.0.staging();
        staging.free.extend(free);
        self.0.release(&mut staging);
    }

    /// Whether there is memory for copies: who exchanges nothing announces nothing.
    pub fn are_in_use(&self) -> bool {
        self.0.staging().bytes != [0; 2]
    }

    /// Lets the next submit to wgpu's queue tell when it is done, and begin after the copies to the device that are
    /// done.
    pub fn announce(&self, queue: &wgpu::Queue) -> Announced {
        let value = self.0.announced.fetch_add(1, Ordering::Relaxed) + 1;
        // SAFETY: wgpu keeps the handles until its submit; the semaphores last as long as the device.
        if let Some(queue) = unsafe { queue.as_hal::<Vulkan>() } {
            queue.add_signal_semaphore(self.0.reached, Some(value));
            // SAFETY: the semaphore is this device's.
            let done = unsafe { self.0.raw.get_semaphore_counter_value(self.0.uploaded) }.unwrap_or_default();
            let known = std::mem::replace(&mut self.0.staging().known, done);
            if done > known {
                let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
                queue.add_wait_semaphore(self.0.uploaded, Some(done), stages);
            }
        }
        Announced(value)
    }

    /// Submits copies to the host of what is written by the submit to wgpu's queue that was announced. To be called
    /// while nobody else submits.
    pub fn copy_to_host(&self, queue: &wgpu::Queue, after: Announced, copies: &[Arc<PendingCopy>]) {
        // SAFETY: as in `announce`.
        let refused = unsafe { queue.as_hal::<Vulkan>() }.is_none_or(|queue| {
            queue.remove_wait_semaphore(self.0.uploaded);
            queue.remove_signal_semaphore(self.0.reached)
        });
        for copy in copies {
            // What waits for a submit that is not made waits forever.
            let result = if refused {
                Err(vk::Result::ERROR_DEVICE_LOST)
            } else {
                self.0.submit(copy.buffer(), Some(after.0), None)
            };
            *copy.submitted() = Some(result);
        }
    }

    /// Submits the copy to the device of what was written to a copy. To be called while nobody else submits.
    pub fn copy_to_device(&self, copy: &PendingCopy) {
        let uploads = {
            let mut staging = self.0.staging();
            staging.uploads += 1;
            staging.uploads
        };
        *copy.submitted() = Some(self.0.submit(copy.buffer(), None, Some(uploads)));
    }
}

/// The number of a submit to wgpu's queue.
pub(super) struct Announced(u64);

impl Inner {
    fn staging(&self) -> MutexGuard<'_, StagingBuffers> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its last copy is done.
    fn is_done(&self, buffer: &StagingBuffer) -> bool {
        // SAFETY: the fence is this device's.
        unsafe { self.raw.get_fence_status(buffer.done) }.is_ok_and(|done| done)
    }

    /// Whether no queue will read or write what nobody has, so that it can be written again.
    fn is_unused(&self, buffer: &StagingBuffer) -> bool {
        // wgpu's queue, which writes there next in the other direction, keeps the order by itself.
        let has_been_read = || {
            // SAFETY: the semaphore is this device's.
            let reached = unsafe { self.raw.get_semaphore_counter_value(self.reached) };
            reached.is_ok_and(|reached| reached >= buffer.after)
        };
        self.is_done(buffer) && (buffer.direction == Direction::ToHost || has_been_read())
    }

    fn submit(&self, buffer: &StagingBuffer, after: Option<u64>, number: Option<u64>) -> VkResult<()> {
        let (waits, wait_values) = ([self.reached], [after.unwrap_or_default()]);
        let (signals, signal_values) = ([self.uploaded], [number.unwrap_or_default()]);
        let (waits, wait_values) = if after.is_some() { (&waits[..], &wait_values[..]) } else { Default::default() };
        let (signals, signal_values) =
            if number.is_some() { (&signals[..], &signal_values[..]) } else { Default::default() };
        let commands = [buffer.commands];
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(wait_values)
            .signal_semaphore_values(signal_values);
        let info = vk::SubmitInfo::default()
            .wait_semaphores(waits)
            .wait_dst_stage_mask(&[vk::PipelineStageFlags::TRANSFER][..waits.len()])
            .signal_semaphores(signals)
            .command_buffers(&commands)
            .push_next(&mut timeline);
        // SAFETY: the buffer's last copy is done, so its fence and commands are not in use. Nobody else submits.
        unsafe {
            self.raw.reset_fences(&[buffer.done])?;
            self.raw.queue_submit(self.queues[buffer.direction as usize], &[info], buffer.done)
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let free = std::mem::take(&mut self.staging.get_mut().unwrap_or_else(PoisonError::into_inner).free);
        // SAFETY: no copy is left, or it would keep this; what the queues have is waited for. A lost device has
        // nothing.
        unsafe {
            for queue in self.queues {
                let _ = self.raw.queue_wait_idle(queue);
            }
            for buffer in &free {
                self.destroy(buffer);
            }
            self.raw.destroy_command_pool(self.commands, None);
            self.raw.destroy_semaphore(self.reached, None);
            self.raw.destroy_semaphore(self.uploaded, None);
        }
    }
}
