//! Queues for copies alone: bytes go between a GPU and the host while the GPU computes.
//!
//! wgpu has one queue, in which a copy and the kernels after it take turns. Many Vulkan drivers offer queues that only
//! copy (the DMA engines of NVIDIA's and AMD's GPUs); a device that does is opened with two of them, of which wgpu does
//! not know:
//!
//! ```text
//! a kernel -> memory for both kinds of queues -> a copy -> the host reads
//! the host writes -> a copy -> memory for both kinds of queues -> a kernel
//! ```
//! The copy to the host waits for wgpu's queue by a semaphore, and whoever reads or writes on the host for the copy, by
//! a fence.

use super::memory::next_id;
use crate::{Error, Result};
use ash::prelude::VkResult;
use ash::vk;
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wgpu::hal::api::Vulkan;
use wgpu::hal::vulkan::CreateDeviceCallback;

/// Bytes that a thread copies at a time.
const TASK: usize = 1 << 21;

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
    routes: Mutex<Routes>,
    /// Lasts as long as what was made of it. The last field.
    device: wgpu::Device,
}

#[derive(Default)]
struct Routes {
    /// What nobody has; the last copy may not be done.
    free: Vec<Route>,
    /// The memory of all of them, by direction.
    bytes: [u64; 2],
    /// Copies to the device that were submitted, and those of them that wgpu's queue knows to be done.
    uploads: u64,
    known: u64,
}

/// A buffer on the device, one on the host, and the commands that copy from one to the other, to be used again.
struct Route {
    size: u64,
    direction: Direction,
    /// What both kinds of queues use. wgpu owns it.
    shared: wgpu::Buffer,
    id: u64,
    host: vk::Buffer,
    host_memory: vk::DeviceMemory,
    mapped: *mut u8,
    commands: vk::CommandBuffer,
    /// Signaled unless the copy is submitted and not done.
    done: vk::Fence,
    /// What wgpu's queue must have come to before it has no more use for it.
    after: u64,
}

// SAFETY: the pointer is to memory that belongs to whoever has the route.
unsafe impl Send for Route {}
// SAFETY: as above; it is written to through a mutable reference alone.
unsafe impl Sync for Route {}

/// One copy, from being recorded until what it copies is no longer needed.
pub(super) struct Transit {
    /// `None` only while it is dropped.
    route: Option<Route>,
    /// Whether the copy is submitted; an error if it could not be.
    submitted: Mutex<Option<VkResult<()>>>,
    /// Whether it is known to be done.
    arrived: AtomicBool,
    queues: Arc<Inner>,
}

fn gpu_error(result: vk::Result) -> Error {
    match result {
        vk::Result::ERROR_DEVICE_LOST => Error::DeviceLost("it stopped while it copied".into()),
        other => Error::Gpu(format!("a copy between the host and the GPU: {other}")),
    }
}

/// Opens an adapter with queues for copies. `None` if it has none, or is not Vulkan's.
pub(super) fn open(
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
            let (announced, routes, device) = (AtomicU64::new(0), Mutex::default(), device.clone());
            let inner = Inner { raw, queues, families, memory, commands, reached, uploaded, announced, routes, device };
            Ok(CopyQueues(Arc::new(inner)))
        }
    }

    /// Memory of so many bytes, here and there; `None` if there is no more to be had.
    ///
    /// # Errors
    /// If the driver has other reasons not to make it.
    pub fn take(&self, size: usize, direction: Direction) -> Result<Option<Transit>> {
        // Bindings are multiples of it.
        let size = (size.max(1) as u64).next_multiple_of(16);
        let mut routes = self.0.routes();
        let ready = |route: &Route| (route.size, route.direction) == (size, direction) && self.0.is_unused(route);
        let route = match routes.free.iter().position(ready) {
            Some(place) => routes.free.swap_remove(place),
            None => {
                if routes.bytes[direction as usize] + size > CopyQueues::MOST {
                    self.0.release(&mut routes);
                }
                if routes.bytes[direction as usize] + size > CopyQueues::MOST {
                    return Ok(None);
                }
                // Under the lock, which guards the pool of commands.
                match self.0.new_route(size, direction) {
                    Err(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY) => {
                        return Ok(None);
                    }
                    route => {
                        let route = route.map_err(gpu_error)?;
                        routes.bytes[direction as usize] += size;
                        route
                    }
                }
            }
        };
        drop(routes);
        let (submitted, arrived, queues) = (Mutex::default(), AtomicBool::default(), self.0.clone());
        Ok(Some(Transit { route: Some(route), submitted, arrived, queues }))
    }

    /// Gives the driver back the memory of what is not in use; waits for copies that are under way.
    pub fn release(&self) {
        // Nobody takes them meanwhile.
        let free = std::mem::take(&mut self.0.routes().free);
        let fences: Vec<vk::Fence> = free.iter().map(|route| route.done).collect();
        if !fences.is_empty() {
            // What is not done by then stays until it is; so does all of a lost device, whose copies nobody can wait
            // for.
            // SAFETY: the fences are this device's.
            let _ = unsafe { self.0.raw.wait_for_fences(&fences, true, LONGEST_COPY.as_nanos() as u64) };
        }
        let mut routes = self.0.routes();
        routes.free.extend(free);
        self.0.release(&mut routes);
    }

    /// Whether there is memory for copies: who exchanges nothing announces nothing.
    pub fn are_in_use(&self) -> bool {
        self.0.routes().bytes != [0; 2]
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
            let known = std::mem::replace(&mut self.0.routes().known, done);
            if done > known {
                let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
                queue.add_wait_semaphore(self.0.uploaded, Some(done), stages);
            }
        }
        Announced(value)
    }

    /// Submits copies to the host of what is written by the submit to wgpu's queue that was announced. To be called
    /// while nobody else submits.
    pub fn copy_to_host(&self, queue: &wgpu::Queue, after: Announced, transits: &[Arc<Transit>]) {
        // SAFETY: as in `announce`.
        let refused = unsafe { queue.as_hal::<Vulkan>() }.is_none_or(|queue| {
            queue.remove_wait_semaphore(self.0.uploaded);
            queue.remove_signal_semaphore(self.0.reached)
        });
        for transit in transits {
            // What waits for a submit that is not made waits forever.
            let result = if refused {
                Err(vk::Result::ERROR_DEVICE_LOST)
            } else {
                self.0.submit(transit.route(), Some(after.0), None)
            };
            *transit.submitted() = Some(result);
        }
    }

    /// Submits the copy to the device of what was written to a transit. To be called while nobody else submits.
    pub fn copy_to_device(&self, transit: &Transit) {
        let uploads = {
            let mut routes = self.0.routes();
            routes.uploads += 1;
            routes.uploads
        };
        *transit.submitted() = Some(self.0.submit(transit.route(), None, Some(uploads)));
    }
}

/// The number of a submit to wgpu's queue.
pub(super) struct Announced(u64);

impl Inner {
    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its last copy is done.
    fn is_done(&self, route: &Route) -> bool {
        // SAFETY: the fence is this device's.
        unsafe { self.raw.get_fence_status(route.done) }.is_ok_and(|done| done)
    }

    /// Whether no queue will read or write what nobody has, so that it can be written again.
    fn is_unused(&self, route: &Route) -> bool {
        // wgpu's queue, which writes there next in the other direction, keeps the order by itself.
        let has_been_read = || {
            // SAFETY: the semaphore is this device's.
            let reached = unsafe { self.raw.get_semaphore_counter_value(self.reached) };
            reached.is_ok_and(|reached| reached >= route.after)
        };
        self.is_done(route) && (route.direction == Direction::ToHost || has_been_read())
    }

    fn submit(&self, route: &Route, after: Option<u64>, number: Option<u64>) -> VkResult<()> {
        let (waits, wait_values) = ([self.reached], [after.unwrap_or_default()]);
        let (signals, signal_values) = ([self.uploaded], [number.unwrap_or_default()]);
        let (waits, wait_values) = if after.is_some() { (&waits[..], &wait_values[..]) } else { Default::default() };
        let (signals, signal_values) =
            if number.is_some() { (&signals[..], &signal_values[..]) } else { Default::default() };
        let commands = [route.commands];
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(wait_values)
            .signal_semaphore_values(signal_values);
        let info = vk::SubmitInfo::default()
            .wait_semaphores(waits)
            .wait_dst_stage_mask(&[vk::PipelineStageFlags::TRANSFER][..waits.len()])
            .signal_semaphores(signals)
            .command_buffers(&commands)
            .push_next(&mut timeline);
        // SAFETY: the route's last copy is done, so neither its fence nor its commands are in use. Nobody else submits.
        unsafe {
            self.raw.reset_fences(&[route.done])?;
            self.raw.queue_submit(self.queues[route.direction as usize], &[info], route.done)
        }
    }

    /// A buffer of memory that has these properties.
    fn buffer(
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

    /// Makes a route. To be called under the lock.
    fn new_route(&self, size: u64, direction: Direction) -> VkResult<Route> {
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
                Ok(Route { size, direction, shared, id, host, host_memory, mapped, commands, done, after })
            };
            rest().inspect_err(|_| {
                self.raw.destroy_buffer(host, None);
                self.raw.free_memory(host_memory, None);
            })
        }
    }

    /// Records the copy from one buffer to the other, whose memory the host may read then.
    unsafe fn record(
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
    unsafe fn import(&self, buffer: vk::Buffer, memory: vk::DeviceMemory, size: u64) -> wgpu::Buffer {
        let usage = wgpu::BufferUsages::STORAGE;
        let descriptor =
            wgpu::BufferDescriptor { label: Some("for both queues"), size, usage, mapped_at_creation: false };
        // SAFETY: the buffer is this device's and has this size and usage. Nobody reads what was not written to it.
        unsafe {
            let buffer = wgpu::hal::vulkan::Buffer::from_raw_managed(buffer, memory, 0, size);
            self.device.create_buffer_from_hal::<Vulkan>(buffer, &descriptor)
        }
    }

    fn release(&self, routes: &mut Routes) {
        let Routes { free, bytes, .. } = routes;
        // wgpu keeps what it owns of them as long as its queue reads it.
        for route in free.extract_if(.., |route| self.is_done(route)) {
            bytes[route.direction as usize] -= route.size;
            // SAFETY: its copy is done, and nobody has it.
            unsafe { self.destroy(&route) };
        }
    }

    /// Destroys what is not wgpu's.
    unsafe fn destroy(&self, route: &Route) {
        // SAFETY: the caller knows that it is not in use.
        unsafe {
            self.raw.destroy_fence(route.done, None);
            self.raw.free_command_buffers(self.commands, &[route.commands]);
            self.raw.destroy_buffer(route.host, None);
            self.raw.free_memory(route.host_memory, None);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let free = std::mem::take(&mut self.routes.get_mut().unwrap_or_else(PoisonError::into_inner).free);
        // SAFETY: no transit is left, or it would keep this; what the queues have is waited for. A lost device has
        // nothing.
        unsafe {
            for queue in self.queues {
                let _ = self.raw.queue_wait_idle(queue);
            }
            for route in &free {
                self.destroy(route);
            }
            self.raw.destroy_command_pool(self.commands, None);
            self.raw.destroy_semaphore(self.reached, None);
            self.raw.destroy_semaphore(self.uploaded, None);
        }
    }
}

impl Transit {
    fn route(&self) -> &Route {
        self.route.as_ref().expect("the route is there until drop")
    }

    fn submitted(&self) -> MutexGuard<'_, Option<VkResult<()>>> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory on the device, and its number.
    pub fn shared(&self) -> (&wgpu::Buffer, u64) {
        (&self.route().shared, self.route().id)
    }

    /// Whether the copy was submitted.
    pub fn is_submitted(&self) -> bool {
        self.submitted().is_some()
    }

    /// Whether the copy is done; waits so long for it at most, if it is submitted.
    ///
    /// # Errors
    /// If it could not be made.
    pub fn wait(&self, at_most: Duration) -> Result<bool> {
        match *self.submitted() {
            None => return Ok(false),
            Some(result) => result.map_err(gpu_error)?,
        }
        // SAFETY: the fence is this device's.
        match unsafe { self.queues.raw.wait_for_fences(&[self.route().done], true, at_most.as_nanos() as u64) } {
            Ok(()) => {
                self.arrived.store(true, Ordering::Release);
                Ok(true)
            }
            Err(vk::Result::TIMEOUT) => Ok(false),
            Err(error) => Err(gpu_error(error)),
        }
    }

    /// What was copied to the host.
    ///
    /// # Panics
    /// If nobody has waited for it.
    pub fn bytes(&self) -> &[u8] {
        assert!(self.arrived.load(Ordering::Acquire), "bytes are read before they are there");
        let route = self.route();
        // SAFETY: so many bytes are mapped until the route is destroyed, and nothing is copied to them while it is
        // this transit's, after the copy that was waited for.
        unsafe { std::slice::from_raw_parts(route.mapped, route.size as usize) }
    }

    /// Sets what will be copied to the device: so many bytes as were asked for, or fewer.
    ///
    /// # Panics
    /// If there are more, or the copy was submitted.
    pub fn fill(&mut self, bytes: &[u8]) {
        assert!(!self.is_submitted(), "bytes are written after they were copied");
        let route = self.route.as_mut().expect("the route is there until drop");
        assert!(bytes.len() as u64 <= route.size, "{} bytes for a copy of {}", bytes.len(), route.size);
        // SAFETY: the memory has as many bytes, which the bytes given cannot overlap; nothing else reads or writes
        // them, because the copy of whoever had the route is done.
        let to = unsafe { std::slice::from_raw_parts_mut(route.mapped, bytes.len()) };
        // One thread takes several times as long as the copy to the device.
        to.par_chunks_mut(TASK).zip(bytes.par_chunks(TASK)).for_each(|(to, bytes)| to.copy_from_slice(bytes));
    }
}

impl Drop for Transit {
    fn drop(&mut self) {
        let Some(mut route) = self.route.take() else { return };
        let failed = matches!(*self.submitted(), Some(Err(_)));
        if failed {
            // Its fence will never be signaled, so that nobody could wait for it or use it again.
            let mut routes = self.queues.routes();
            routes.bytes[route.direction as usize] -= route.size;
            // SAFETY: the copy was not submitted, and nobody has it.
            unsafe { self.queues.destroy(&route) };
            return;
        }
        // What reads it in wgpu's queue is recorded, and at the latest in the next submit.
        route.after = self.queues.announced.load(Ordering::Acquire) + 1;
        self.queues.routes().free.push(route);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Gpu, Launch, Operand, PendingReadback, Plan, buffer, param};
    use crate::profile::Cost;

    const LEN: usize = 10_003;

    /// A read of as many words of f32, which a kernel sets to this value.
    fn read(gpu: &Gpu, value: f32) -> PendingReadback {
        let slice = gpu.alloc_for_host(LEN * size_of::<f32>()).unwrap().expect("there is memory for it");
        let fill = Plan::one(Launch {
            shader: crate::shader!(fill),
            values: vec![],
            buffers: vec![buffer("x", "f32", Operand::Output(0))],
            params: vec![param("len", LEN), param("value", value)],
            workgroups: LEN.div_ceil(256),
        });
        gpu.run("fill", Cost::default(), fill, &[], &[&slice]).unwrap();
        gpu.download_aside(&slice).unwrap()
    }

    #[test]
    fn reads_have_buffers_of_their_own_until_they_are_dropped() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let Some(queues) = gpu.copy_queues() else { return };
        for _ in 0..3 {
            // One that nobody waits for, but for those after it.
            drop(read(&gpu, 7.0));
            let reads: Vec<_> = (1..=3).map(|value| read(&gpu, value as f32)).collect();
            assert!(reads[0].try_read().unwrap().is_none(), "it is not submitted");
            let bytes: Vec<_> = reads.into_iter().map(|read| read.wait_mapped().unwrap()).collect();
            for (bytes, value) in bytes.iter().zip(1..) {
                assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(bytes), vec![value as f32; LEN]);
            }
        }
        let made = queues.0.routes().free.len();
        assert!((4..=6).contains(&made), "{made} for 12 reads: they are used again, once their copies are done");
        gpu.trim().unwrap();
        assert_eq!(queues.0.routes().bytes, [0; 2], "their memory is given back");
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&read(&gpu, 2.0).wait().unwrap()), vec![2.0; LEN]);
    }

    #[test]
    fn memory_is_given_back_once_copies_under_way_are_done() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let Some(queues) = gpu.copy_queues() else { return };
        // To the device: nothing is submitted to wgpu's queue after it.
        drop(gpu.upload_aside(&[1; 1000]).unwrap().expect("there is memory for it"));
        gpu.trim().unwrap();
        assert_eq!(queues.0.routes().bytes, [0; 2]);
        // To the host: a copy that takes until another thread says that it is done.
        let transit = queues.take(1000, Direction::ToHost).unwrap().expect("there is memory for it");
        let (raw, done) = (&queues.0.raw, transit.route().done);
        // SAFETY: nobody uses the fence.
        unsafe { raw.reset_fences(&[done]) }.unwrap();
        drop(transit);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                // SAFETY: nobody else submits.
                unsafe { raw.queue_submit(queues.0.queues[0], &[], done) }.unwrap();
            });
            queues.release();
            assert_eq!(queues.0.routes().bytes, [0; 2]);
        });
    }

    #[test]
    fn a_lost_device_ends_reads() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        if gpu.copy_queues().is_some() {
            let read = read(&gpu, 1.0);
            gpu.lose_for_tests();
            assert!(read.wait().is_err());
        }
    }
}
