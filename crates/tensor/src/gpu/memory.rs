//! Device memory, and its wgpu buffers.
//!
//! wgpu tracks hazards per buffer: a launch that writes a buffer which an earlier one has read or written waits for
//! everything before it. The pool reuses memory constantly, so nearly every launch would wait, although
//! [`Barriers`](super::barriers::Barriers) knows that the memory is no longer used. Therefore the same memory has
//! several aliases: a launch that writes to an alias that wgpu has not seen in this pass does not wait.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The number of new memory.
pub(super) fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Memory that the pool has released.
#[derive(Clone, Default)]
pub(super) struct Released {
    /// Buffers whose last alias was dropped, after the last submit that used them. wgpu drops an alias while holding
    /// locks that dropping a buffer takes, so the buffer waits here.
    buffers: Arc<Mutex<Vec<wgpu::Buffer>>>,
    /// The numbers of memory that no command uses any more, and no bind group need keep.
    numbers: Arc<Mutex<Vec<u64>>>,
}

impl Released {
    fn lock(&self) -> MutexGuard<'_, Vec<wgpu::Buffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ids of memory released since the last call.
    pub fn take_numbers(&self) -> Vec<u64> {
        std::mem::take(&mut *self.numbers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns their memory to the driver. Must not be called from within wgpu.
    pub fn clear(&self) {
        let buffers = std::mem::take(&mut *self.lock());
        drop(buffers);
    }

    /// Handles that wait.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.lock().len()
    }
}

/// A memory allocation. wgpu keeps it alive for submits that use it, so it may be dropped at any time.
pub(super) struct Memory {
    /// Never given to other memory: bind groups are cached under it.
    pub id: u64,
    /// By number.
    aliases: Mutex<Vec<wgpu::Buffer>>,
    buffer: wgpu::Buffer,
    /// Creates aliases and receives the buffer after the last one; `None` for a single buffer.
    maker: Option<(wgpu::Device, Released)>,
    /// Where its number goes; `None` of memory that is no pool's.
    released: Option<Released>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(released) = &self.released {
            released.numbers.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
        }
    }
}

impl Memory {
    /// The memory of a new buffer.
    pub fn new(device: &wgpu::Device, buffer: wgpu::Buffer, released: &Released) -> Memory {
        let first = alias(device, &buffer, released);
        let maker = first.is_some().then(|| (device.clone(), released.clone()));
        let aliases = Mutex::new(first.into_iter().collect());
        Memory { id: next_id(), aliases, buffer, maker, released: Some(released.clone()) }
    }

    /// The memory of a buffer that others keep track of.
    pub fn of_one_buffer(id: u64, buffer: wgpu::Buffer) -> Memory {
        Memory { id, aliases: Mutex::default(), buffer, maker: None, released: None }
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.buffer.size() as usize
    }

    /// Whether it may have more than one buffer.
    pub fn has_aliases(&self) -> bool {
        self.maker.is_some()
    }

    /// The buffer of this number, which is made if nobody has asked for it before.
    fn alias(&self, number: usize) -> wgpu::Buffer {
        let Some((device, released)) = &self.maker else { return self.buffer.clone() };
        let mut aliases = self.aliases.lock().unwrap_or_else(PoisonError::into_inner);
        while aliases.len() <= number {
            aliases.push(alias(device, &self.buffer, released).expect("there is one already"));
        }
        aliases[number].clone()
    }
}

/// Memory from when the pool hands it out until it goes back. In between wgpu knows it by one buffer.
pub(super) struct Allocation {
    pub memory: Arc<Memory>,
    /// Which of the memory's buffers it is; decided when its first command is encoded.
    pub alias: OnceLock<usize>,
}

impl Allocation {
    pub fn new(memory: Arc<Memory>) -> Allocation {
        Allocation { memory, alias: OnceLock::new() }
    }

    /// Its buffer, once it is decided which.
    pub fn buffer(&self) -> wgpu::Buffer {
        self.memory.alias(*self.alias.get().expect("decided before it is used"))
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "gpu memory {}", self.memory.id)
    }
}

/// Another buffer of the same memory, which it keeps until it is dropped itself; `None` if the device is not Vulkan's.
#[cfg(not(target_vendor = "apple"))]
fn alias(device: &wgpu::Device, buffer: &wgpu::Buffer, released: &Released) -> Option<wgpu::Buffer> {
    use wgpu::hal::{api::Vulkan, vulkan};
    let (size, usage) = (buffer.size(), buffer.usage());
    let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    let (kept, released) = (buffer.clone(), released.clone());
    let release = Box::new(move || released.lock().push(kept));
    // SAFETY: the handle is that of a buffer of this device, of this size and usage, which the alias keeps. Nobody
    // reads what was not written.
    unsafe {
        let raw = buffer.as_hal::<Vulkan>()?.raw_handle();
        let alias = vulkan::Buffer::from_raw_externally_owned(raw, release);
        Some(device.create_buffer_from_hal::<Vulkan>(alias, &descriptor))
    }
}

#[cfg(target_vendor = "apple")]
fn alias(_: &wgpu::Device, _: &wgpu::Buffer, _: &Released) -> Option<wgpu::Buffer> {
    None
}
