//! Memory of a Vulkan device that the card's own API (CUDA, HIP) imports, so that libraries such as NCCL read and write
//! it. Vulkan and that API see each other's writes once the host has waited for them.

use super::Gpu;
use super::memory::{Memory, next_id};
use super::pool::GpuSlice;
use crate::{Error, Result};
use ash::{khr, vk};
use std::os::fd::{FromRawFd, OwnedFd};
use wgpu::hal::api::Vulkan;

const OPAQUE: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

/// Memory, and what another API imports it by: a handle, and how many bytes it is of.
type Exported = (GpuSlice, OwnedFd, u64);

impl Gpu {
    /// Memory of `size` bytes that another API can import. `None` if the driver exports none.
    ///
    /// # Errors
    /// If the device has no memory left, or the driver refuses.
    pub(crate) fn alloc_exported(&self, size: usize) -> Result<Option<Exported>> {
        self.check()?;
        let size = (size.max(1) as u64).next_multiple_of(256);
        let made = || match self.export(size) {
            None => Ok(None),
            Some(Ok(exported)) => Ok(Some(exported)),
            Some(Err(
                vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
                | vk::Result::ERROR_OUT_OF_HOST_MEMORY
                | vk::Result::ERROR_TOO_MANY_OBJECTS,
            )) => Err(self.out_of_memory(size as usize)),
            Some(Err(error)) => Err(Error::Gpu(format!("memory for another API: {error}"))),
        };
        self.retry_after_trim(made)
    }

    fn export(&self, size: u64) -> Option<std::result::Result<Exported, vk::Result>> {
        // SAFETY: the handles are this device's, which the guard keeps.
        unsafe {
            let vulkan = self.0.device.as_hal::<Vulkan>()?;
            let instance = vulkan.shared_instance().raw_instance();
            let usage = vk::BufferUsageFlags::STORAGE_BUFFER
                | vk::BufferUsageFlags::TRANSFER_SRC
                | vk::BufferUsageFlags::TRANSFER_DST;
            let asked = vk::PhysicalDeviceExternalBufferInfo::default().usage(usage).handle_type(OPAQUE);
            let mut answer = vk::ExternalBufferProperties::default();
            let physical = vulkan.raw_physical_device();
            instance.get_physical_device_external_buffer_properties(physical, &asked, &mut answer);
            let features = answer.external_memory_properties.external_memory_features;
            let has_extension = vulkan.enabled_device_extensions().contains(&khr::external_memory_fd::NAME);
            let is_exportable = features.contains(vk::ExternalMemoryFeatureFlags::EXPORTABLE)
                && !features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY);
            if !has_extension || !is_exportable {
                return None;
            }
            let memory = instance.get_physical_device_memory_properties(physical);
            let raw = vulkan.raw_device();
            let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(OPAQUE);
            let info = vk::BufferCreateInfo::default().size(size).usage(usage).push_next(&mut external);
            let exporter = khr::external_memory_fd::Device::new(instance, raw);
            Some(allocate(raw, &exporter, &info, &memory).map(|(buffer, memory, allocated, handle)| {
                let handle = OwnedFd::from_raw_fd(handle);
                (self.slice_of(buffer, memory, size), handle, allocated)
            }))
        }
    }

    /// Hands a buffer and its memory to wgpu.
    ///
    /// # Safety
    /// They are this device's, have this size, and are nobody else's to free.
    unsafe fn slice_of(&self, buffer: vk::Buffer, memory: vk::DeviceMemory, size: u64) -> GpuSlice {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let label = Some("for another API too");
        let descriptor = wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false };
        // SAFETY: as the caller promises; nobody reads what was not written.
        let buffer = unsafe {
            let buffer = wgpu::hal::vulkan::Buffer::from_raw_managed(buffer, memory, 0, size);
            self.0.device.create_buffer_from_hal::<Vulkan>(buffer, &descriptor)
        };
        self.0.pool.adopt(Memory::of_one_buffer(next_id(), buffer))
    }
}

/// A buffer with memory of its own on the card, of so many bytes, and its handle.
///
/// # Safety
/// All are of one device.
unsafe fn allocate(
    raw: &ash::Device,
    exporter: &khr::external_memory_fd::Device,
    info: &vk::BufferCreateInfo,
    memory: &vk::PhysicalDeviceMemoryProperties,
) -> std::result::Result<(vk::Buffer, vk::DeviceMemory, u64, i32), vk::Result> {
    // SAFETY: what is made is destroyed again if what follows fails.
    unsafe {
        let buffer = raw.create_buffer(info, None)?;
        let needed = raw.get_buffer_memory_requirements(buffer);
        let is_local = |i: &usize| {
            needed.memory_type_bits & (1 << i) != 0
                && memory.memory_types[*i].property_flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL)
        };
        let kind = (0..memory.memory_type_count as usize).find(is_local);
        let allocated = kind.ok_or(vk::Result::ERROR_FEATURE_NOT_PRESENT).and_then(|kind| {
            let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(OPAQUE);
            let info = vk::MemoryAllocateInfo::default().allocation_size(needed.size).memory_type_index(kind as u32);
            raw.allocate_memory(&info.push_next(&mut export), None)
        });
        let memory = allocated.inspect_err(|_| raw.destroy_buffer(buffer, None))?;
        let handle = raw.bind_buffer_memory(buffer, memory, 0).and_then(|()| {
            let info = vk::MemoryGetFdInfoKHR::default().memory(memory).handle_type(OPAQUE);
            exporter.get_memory_fd(&info)
        });
        let handle = handle.inspect_err(|_| {
            raw.destroy_buffer(buffer, None);
            raw.free_memory(memory, None);
        })?;
        Ok((buffer, memory, needed.size, handle))
    }
}

#[cfg(test)]
mod tests {
    use crate::gpu::submit::tests::fill;
    use crate::profile::Cost;
    use std::fs::File;

    /// Where the driver's handles are files, as Mesa's for the CPU are, the host sees what kernels write.
    #[test]
    fn what_a_kernel_writes_to_exported_memory_is_seen_through_its_handle() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let Some((slice, handle, allocated)) = gpu.alloc_exported(1000).unwrap() else { return };
        assert!(allocated >= 1000);
        assert_eq!(gpu.memory().used_bytes, 1024);
        gpu.run("fill", Cost::default(), fill(250, 3.0), &[], &[&slice]).unwrap();
        gpu.synchronize().unwrap();
        assert_eq!(gpu.download(&slice).unwrap()[..4], 3f32.to_le_bytes());
        // SAFETY: nobody writes to the memory while it is mapped.
        if let Ok(mapped) = unsafe { memmap2::Mmap::map(&File::from(handle)) } {
            let bytes: Vec<u8> = bytemuck::cast_slice(&[3f32; 250]).to_vec();
            assert!(mapped.windows(1000).any(|window| window == bytes), "{} bytes lack it", mapped.len());
        }
        drop(slice);
        assert_eq!((gpu.memory().used_bytes, gpu.memory().reserved_bytes), (0, 0));
    }
}
