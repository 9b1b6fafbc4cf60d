//! Opens an adapter with transfer queues.

use super::CopyQueues;
use crate::{Error, Result};
use ash::vk;
use wgpu::hal::api::Vulkan;
use wgpu::hal::vulkan::CreateDeviceCallback;

/// Opens an adapter with transfer queues. `None` if it has none, or is not a Vulkan adapter.
pub fn open(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor,
) -> Option<Result<(wgpu::Device, wgpu::Queue, CopyQueues)>> {
    let family = {
        // SAFETY: the handles are only read from, while the guard keeps the adapter alive.
        let vulkan = unsafe { adapter.as_hal::<Vulkan>()? };
        copy_family(&vulkan)?
    };
    Some(open_with_family(adapter, descriptor, family))
}

/// The family of queues that copy and do nothing else, and how many of them to take, where there are the semaphores
/// that this needs.
fn copy_family(adapter: &wgpu::hal::vulkan::Adapter) -> Option<(u32, u32)> {
    let (instance, physical) = (adapter.shared_instance().raw_instance(), adapter.raw_physical_device());
    let mut timeline = vk::PhysicalDeviceTimelineSemaphoreFeatures::default();
    // SAFETY: the physical device is one of this instance, which the adapter keeps alive.
    let families = unsafe {
        if instance.get_physical_device_properties(physical).api_version < vk::API_VERSION_1_2 {
            return None;
        }
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut timeline);
        instance.get_physical_device_features2(physical, &mut features);
        instance.get_physical_device_queue_family_properties(physical)
    };
    if timeline.timeline_semaphore == vk::FALSE {
        return None;
    }
    let beside = vk::QueueFlags::SPARSE_BINDING | vk::QueueFlags::PROTECTED;
    let only_copies = |family: &vk::QueueFamilyProperties| {
        family.queue_flags & !beside == vk::QueueFlags::TRANSFER && family.queue_count > 0
    };
    let (family, properties) = (0..).zip(&families).find(|(_, family)| only_copies(family))?;
    Some((family, properties.queue_count.min(2)))
}

fn open_with_family(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor,
    (family, count): (u32, u32),
) -> Result<(wgpu::Device, wgpu::Queue, CopyQueues)> {
    let failed = |error: &dyn std::fmt::Display| Error::Gpu(error.to_string());
    // SAFETY: the family is one of this adapter's, and has as many queues. wgpu opens the device with the features and
    // limits of the descriptor, which are the adapter's, as it does without them.
    let (device, queue) = unsafe {
        let vulkan = adapter.as_hal::<Vulkan>().expect("asked before");
        let (features, limits) = (descriptor.required_features, &descriptor.required_limits);
        // The barriers that wgpu adds for a buffer of both families name family 0 as source and destination: valid only
        // with this feature (VUID-VkBufferMemoryBarrier-None-09050). Whoever has the extension has the feature.
        let synchronization2 = ash::khr::synchronization2::NAME;
        let has_it = vulkan.physical_device_capabilities().supports_extension(synchronization2);
        let mut with_it = vk::PhysicalDeviceSynchronization2Features::default().synchronization2(true);
        let with_it = &mut with_it;
        let also: Box<CreateDeviceCallback> = Box::new(move |args| {
            let info = vk::DeviceQueueCreateInfo::default().queue_family_index(family);
            args.queue_create_infos.push(info.queue_priorities(&[1.0; 2][..count as usize]));
            if has_it {
                args.extensions.push(synchronization2);
                *args.create_info = std::mem::take(args.create_info).push_next(with_it);
            }
        });
        let opened = vulkan.open_with_callback(features, limits, &descriptor.memory_hints, Some(also));
        let opened = opened.map_err(|e| failed(&e))?;
        drop(vulkan);
        adapter.create_device_from_hal::<Vulkan>(opened, descriptor).map_err(|e| failed(&e))?
    };
    // SAFETY: the device was opened with so many queues of this family.
    let queues = unsafe {
        let vulkan = device.as_hal::<Vulkan>().expect("opened by Vulkan");
        [0, count - 1].map(|i| vulkan.raw_device().get_device_queue(family, i))
    };
    let copy_queues = CopyQueues::new(&device, [0, family], queues)?;
    Ok((device, queue, copy_queues))
}
