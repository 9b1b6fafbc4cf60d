//! Staging buffers of copies: one on the device, one on the host.

use super::{Direction, Inner};
use crate::gpu::memory::next_id;
use ash::prelude::VkResult;
use ash::vk;
use wgpu::hal::api::Vulkan;

#[derive(Default)]
pub(super) struct StagingBuffers {
    /// Unused buffers, whose last copy may still be running.
    pub(super) free: Vec<StagingBuffer>,
    /// The memory of all of them, by direction.
    pub(super) bytes: [u64; 2],
    /// Submitted uploads, and those that wgpu's queue has waited for.
    pub(super) uploads: u64,
    pub(super) known: u64,
}

/// A buffer on the device, one on the host, and the commands that copy from one to the other, to be used again.
pub(super) struct StagingBuffer {
    pub(super) size: u64,
    pub(super) direction: Direction,
    /// The buffer that both kinds of queues use, owned by wgpu.
    pub(super) shared: wgpu::Buffer,
    pub(super) id: u64,
    pub(super) host: vk::Buffer,
    pub(super) host_memory: vk::DeviceMemory,
    pub(super) mapped: *mut u8,
    pub(super) commands: vk::CommandBuffer,
    /// Signaled unless the copy is submitted and not done.
    pub(super) done: vk::Fence,
    /// The submit of wgpu's queue after which the buffer is unused.
    pub(super) after: u64,
}

// SAFETY: the pointer is to memory that belongs to whoever has the buffer.
unsafe impl Send for StagingBuffer {}
// SAFETY: as above; it is written to through a mutable reference alone.
unsafe impl Sync for StagingBuffer {}

impl Inner {
    /// A buffer of memory that has these properties.
    pub(super) fn buffer(
        &self,
        info: &vk::BufferCreateInfo,
        properties: &[vk::MemoryPropertyFlags],
    ) -> VkResult<(vk::Buffer, vk::DeviceMemory)> {
        // SAFETY: what is made is destroyed again if what follows fails.
        unsafe {
            let buffer = self.raw.create_buffer(info, None)?;
            let needed = self.raw.get_buffer_memory_requirements(buffer);
            let types = self.memory.memory_types_as_slice();
            let allowed = |i: usize| needed.memory_type_bits & (1 << i) != 0;
            let of = |wanted: &vk::MemoryPropertyFlags| {
                (0..types.len()).find(|&i| allowed(i) && types[i].property_flags.contains(*wanted))
            };
            let memory = properties.iter().find_map(of).ok_or(vk::Result::ERROR_FEATURE_NOT_PRESENT).and_then(|i| {
                let info = vk::MemoryAllocateInfo::default().allocation_size(needed.size).memory_type_index(i as u32);
                self.raw.allocate_memory(&info, None)
            });
            let memory = memory.inspect_err(|_| self.raw.destroy_buffer(buffer, None))?;
            let bound = self.raw.bind_buffer_memory(buffer, memory, 0).inspect_err(|_| {
                self.raw.destroy_buffer(buffer, None);
                self.raw.free_memory(memory, None);
            });
            bound.map(|()| (buffer, memory))
        }
    }

    /// Makes a buffer. To be called under the lock.
    pub(super) fn create_staging(&self, size: u64, direction: Direction) -> VkResult<StagingBuffer> {
        use vk::{BufferUsageFlags as Usage, MemoryPropertyFlags as Memory};
        let copied = match direction {
            Direction::ToHost => [Usage::TRANSFER_DST, Usage::TRANSFER_SRC],
            Direction::ToDevice => [Usage::TRANSFER_SRC, Usage::TRANSFER_DST],
        };
        let coherent = Memory::HOST_VISIBLE | Memory::HOST_COHERENT;
        let info = vk::BufferCreateInfo::default().size(size).usage(copied[0]);
        let (host, host_memory) = self.buffer(&info, &[coherent | Memory::HOST_CACHED, coherent])?;
        // SAFETY: what is made is destroyed again if what follows fails. The memory is mapped until it is freed.
        unsafe {
            let rest = || {
                let mapped = self.raw.map_memory(host_memory, 0, size, vk::MemoryMapFlags::empty())?;
                let info = vk::CommandBufferAllocateInfo::default().command_pool(self.commands).command_buffer_count(1);
                let commands = self.raw.allocate_command_buffers(&info)?[0];
                let undo_commands = || self.raw.free_command_buffers(self.commands, &[commands]);
                let info = vk::FenceCreateInfo::default().flags(vk::FenceCreateFlags::SIGNALED);
                let done = self.raw.create_fence(&info, None).inspect_err(|_| undo_commands())?;
                let undo = || {
                    self.raw.destroy_fence(done, None);
                    undo_commands();
                };
                let mut info = vk::BufferCreateInfo::default().size(size).usage(Usage::STORAGE_BUFFER | copied[1]);
                if self.families[0] != self.families[1] {
                    info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&self.families);
                }
                let (shared, memory) = self.buffer(&info, &[Memory::DEVICE_LOCAL]).inspect_err(|_| undo())?;
                let (from, to) = if direction == Direction::ToHost { (shared, host) } else { (host, shared) };
                self.record(commands, (from, to), size).inspect_err(|_| {
                    self.raw.destroy_buffer(shared, None);
                    self.raw.free_memory(memory, None);
                    undo();
                })?;
                let (shared, id, after) = (self.import(shared, memory, size), next_id(), 0);
                let mapped = mapped.cast();
                Ok(StagingBuffer { size, direction, shared, id, host, host_memory, mapped, commands, done, after })
            };
            rest().inspect_err(|_| {
                self.raw.destroy_buffer(host, None);
                self.raw.free_memory(host_memory, None);
            })
        }
    }

    /// Records the copy from one buffer to the other, with a barrier for host reads.
    pub(super) unsafe fn record(
        &self,
        commands: vk::CommandBuffer,
        (from, to): (vk::Buffer, vk::Buffer),
        size: u64,
    ) -> VkResult<()> {
        let barrier = vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ);
        // SAFETY: the caller's buffers have `size` bytes, and its commands are new.
        unsafe {
            self.raw.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default())?;
            self.raw.cmd_copy_buffer(commands, from, to, &[vk::BufferCopy::default().size(size)]);
            let (transfer, host) = (vk::PipelineStageFlags::TRANSFER, vk::PipelineStageFlags::HOST);
            let none = vk::DependencyFlags::empty();
            self.raw.cmd_pipeline_barrier(commands, transfer, host, none, &[barrier], &[], &[]);
            self.raw.end_command_buffer(commands)
        }
    }

    /// Hands a buffer and its memory to wgpu, for kernels.
    pub(super) unsafe fn import(&self, buffer: vk::Buffer, memory: vk::DeviceMemory, size: u64) -> wgpu::Buffer {
        let usage = wgpu::BufferUsages::STORAGE;
        let descriptor =
            wgpu::BufferDescriptor { label: Some("for both queues"), size, usage, mapped_at_creation: false };
        // SAFETY: the buffer is this device's and has this size and usage. Nobody reads what was not written to it.
        unsafe {
            let buffer = wgpu::hal::vulkan::Buffer::from_raw_managed(buffer, memory, 0, size);
            self.device.create_buffer_from_hal::<Vulkan>(buffer, &descriptor)
        }
    }

    pub(super) fn release(&self, staging: &mut StagingBuffers) {
        let StagingBuffers { free, bytes, .. } = staging;
        // wgpu keeps what it owns of them as long as its queue reads it.
        for buffer in free.extract_if(.., |buffer| self.is_done(buffer)) {
            bytes[buffer.direction as usize] -= buffer.size;
            // SAFETY: its copy is done, and nobody has it.
            unsafe { self.destroy(&buffer) };
        }
    }

    /// Destroys the Vulkan objects that wgpu does not own.
    pub(super) unsafe fn destroy(&self, buffer: &StagingBuffer) {
        // SAFETY: the caller knows that it is not in use.
        unsafe {
            self.raw.destroy_fence(buffer.done, None);
            self.raw.free_command_buffers(self.commands, &[buffer.commands]);
            self.raw.destroy_buffer(buffer.host, None);
            self.raw.free_memory(buffer.host_memory, None);
        }
    }
}
