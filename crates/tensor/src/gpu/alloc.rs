//! GPU memory allocation: from the pool or the driver. Cached memory is returned to the driver when memory runs out.

use super::Gpu;
use super::memory::Memory;
use super::pool::GpuSlice;
use crate::profile::{MemoryKind, MemoryStats};
use crate::{Error, Result};

impl Gpu {
    /// Memory statistics of the pool.
    pub fn memory(&self) -> MemoryStats {
        self.0.pool.stats()
    }

    /// Resets the peaks of [`Gpu::memory`].
    pub fn reset_peak_memory(&self) {
        self.0.pool.reset_peak();
    }

    /// Available memory or its configured limit, bytes; `None` if neither is known.
    pub fn memory_bytes(&self) -> Option<u64> {
        let allowed = Some(self.0.memory_bytes as u64).filter(|&bytes| bytes < usize::MAX as u64);
        self.0.info.memory_bytes.into_iter().chain(allowed).min()
    }

    /// Allocates `size` bytes with unspecified contents, accounted under `kind`.
    ///
    /// # Errors
    /// [`Error::GpuLimit`] if a buffer cannot be that large, [`Error::OutOfMemory`] if the memory runs out.
    pub fn alloc(&self, size: usize, kind: MemoryKind) -> Result<GpuSlice> {
        if size as u64 > self.1.buffer_bytes {
            return Err(Error::GpuLimit {
                what: "one buffer".into(),
                needed: format!("{size} bytes"),
                adapter: self.0.info.name.clone(),
                limit: format!("{} bytes", self.1.buffer_bytes),
                hint: "use a smaller model or batch, or --device cpu".into(),
            });
        }
        #[cfg(feature = "testing")]
        self.fail_for_tests(size)?;
        let largest = self.1.buffer_bytes;
        self.retry_after_trim(|| self.0.pool.take(size, largest, kind, |size| self.create_memory(size)))
    }

    /// Fails where a test wants an allocation to fail.
    #[cfg(feature = "testing")]
    pub(super) fn fail_for_tests(&self, size: usize) -> Result<()> {
        if crate::testing::faults::fails() { Err(self.out_of_memory(size)) } else { Ok(()) }
    }

    /// Calls `make`; if memory runs out, frees the pool's cached memory and retries once.
    pub(super) fn retry_after_trim<T>(&self, make: impl Fn() -> Result<T>) -> Result<T> {
        match make() {
            Err(Error::OutOfMemory { .. }) => {
                self.trim()?;
                make()
            }
            result => result,
        }
    }

    /// Returns the pool's cached memory to the driver. Waits for the GPU.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn trim(&self) -> Result<()> {
        // The GPU must be done with it first. What other threads submit meanwhile keeps its memory.
        self.synchronize()?;
        {
            // Or another thread's submit would bring back bind groups of what is released.
            let mut encoder = self.0.submitter.encoder();
            encoder.forget();
            self.0.pool.release_free();
        }
        self.0.staging_pool.release();
        self.0.upload_pool.release();
        if let Some(copies) = &self.0.copy_queues {
            copies.release();
        }
        self.poll()
    }

    pub(super) fn create_memory(&self, size: usize) -> Result<Memory> {
        if self.0.pool.stats().reserved_bytes + size > self.0.memory_bytes {
            return Err(self.out_of_memory(size));
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size: size as u64, usage, mapped_at_creation: false };
        let buffer = self.made(size, || self.0.device.create_buffer(&descriptor))?;
        Ok(Memory::new(&self.0.device, buffer, &self.0.released))
    }

    pub(super) fn out_of_memory(&self, needed_bytes: usize) -> Error {
        let used_bytes = self.0.pool.stats().used_bytes;
        Error::OutOfMemory { adapter: self.0.info.name.clone(), needed_bytes, used_bytes, is_cpu: false }
    }

    /// The buffer of `size` bytes that `make` asks for. Whether there is memory for it is reported at once.
    pub(super) fn made<T>(&self, size: usize, make: impl FnOnce() -> T) -> Result<T> {
        self.check()?;
        // It sees this thread's errors alone. They are over as soon as they are known: a smaller buffer may fit. Memory
        // that runs out elsewhere is an error like any other.
        let scope = self.0.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = make();
        if pollster::block_on(scope.pop()).is_some() {
            return Err(self.out_of_memory(size));
        }
        self.check()?;
        Ok(buffer)
    }

    /// Number of buffers created so far.
    #[cfg(feature = "testing")]
    pub fn created_buffers(&self) -> usize {
        self.0.pool.created()
    }

    /// Sets the floor of free bytes that the pool may keep.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn keep_least_free_bytes(&self, bytes: usize) {
        self.0.pool.keep_least(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::Fault;
    use super::super::memory::{Allocation, Released};
    use super::super::submit::tests::fill;
    use super::*;
    use crate::profile::Cost;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// Asks for more memory than any device has.
    fn run_out(gpu: &Gpu) {
        let limits = gpu.0.device.limits();
        let (width, layers) = (limits.max_texture_dimension_2d, limits.max_texture_array_layers);
        drop(gpu.0.device.create_texture(&wgpu::TextureDescriptor {
            label: None,
            size: wgpu::Extent3d { width, height: width, depth_or_array_layers: layers },
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: wgpu::TextureFormat::Rgba32Float,
            usage: wgpu::TextureUsages::COPY_DST,
            view_formats: &[],
        }));
    }

    #[test]
    fn a_buffer_without_memory_is_made_once_the_pool_has_given_its_own_back() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        drop(gpu.alloc(1000, MemoryKind::Other).unwrap());
        let made = gpu.retry_after_trim(|| {
            gpu.made(7, || {
                if gpu.memory().reserved_bytes > 0 {
                    run_out(&gpu);
                }
            })
        });
        assert!(made.is_ok(), "{made:?}");
        let made = gpu.retry_after_trim(|| gpu.made(7, || run_out(&gpu)));
        assert!(matches!(made, Err(Error::OutOfMemory { needed_bytes: 7, .. })), "{made:?}");
        // It is over then.
        gpu.alloc(1000, MemoryKind::Other).unwrap();
        let report = || *gpu.0.fault.lock().unwrap() = Some(Fault::Reported("a test".into()));
        let made = gpu.retry_after_trim(|| gpu.made(7, report));
        assert!(matches!(&made, Err(Error::Gpu(message)) if message == "a test"), "{made:?}");
    }

    #[test]
    fn threads_that_allocate_at_once_have_errors_of_their_own() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let [has_run_out, is_made] = [(); 2].map(|()| std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let fails = scope.spawn(|| {
                gpu.made(8, || {
                    run_out(&gpu);
                    has_run_out.wait();
                    is_made.wait();
                })
            });
            has_run_out.wait();
            let made = gpu.made(7, || ());
            is_made.wait();
            assert!(made.is_ok(), "{made:?}");
            let failed = fails.join().unwrap();
            assert!(matches!(failed, Err(Error::OutOfMemory { needed_bytes: 8, .. })), "{failed:?}");
            assert!(failed.unwrap_err().to_string().ends_with("or --device cpu"));
        });
    }

    #[test]
    fn memory_lasts_as_long_as_its_last_alias() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let released = Released::default();
        let usage = wgpu::BufferUsages::STORAGE;
        let descriptor = wgpu::BufferDescriptor { label: None, size: 256, usage, mapped_at_creation: false };
        let memory = Memory::new(&gpu.0.device, gpu.0.device.create_buffer(&descriptor), &released);
        if !memory.has_aliases() {
            return;
        }
        let allocation = Allocation { memory: Arc::new(memory), alias: 3.into() };
        let alias = allocation.buffer();
        drop(allocation);
        // Three other aliases are gone; each kept the memory.
        assert_eq!(released.count(), 3);
        drop(alias);
        assert_eq!(released.count(), 4);
        released.clear();
    }

    #[test]
    fn memory_of_ever_new_sizes_stays_within_the_bound() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        const LEAST: usize = 8 << 20;
        gpu.keep_least_free_bytes(LEAST);
        let fill_new = |size: usize| {
            let slice = gpu.alloc(size, MemoryKind::Activations).unwrap();
            gpu.run("fill", Cost::default(), fill(64, 1.0), &[], &[&slice]).unwrap();
            gpu.submit().unwrap();
        };
        // No size comes twice.
        for i in 0..40 {
            fill_new((1 << 20) + i * (256 << 10));
            let stats = gpu.memory();
            let most = LEAST.max(stats.peak_bytes * 3 / 2);
            assert!(stats.cached_bytes() <= most, "{stats:?}");
        }
        // The submit after the last use lets bind groups go of what the pool gave back; then the driver has it.
        gpu.synchronize().unwrap();
        fill_new(256);
        gpu.synchronize().unwrap();
        let bound = gpu.0.submitter.encoder().bound_memories();
        assert!(bound <= gpu.memory().buffers, "{bound} of {:?}", gpu.memory());
        assert_eq!(gpu.0.released.count(), 0);
    }

    #[test]
    fn memory_that_another_thread_trims_lasts_until_the_gpu_is_done() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        const LEN: usize = 1 << 16;
        let end = Instant::now() + Duration::from_millis(800);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while Instant::now() < end {
                    gpu.trim().unwrap();
                }
            });
            for round in 0.. {
                let value = round as f32;
                let slices = [0; 4].map(|_| gpu.alloc(4 * LEN, MemoryKind::Other).unwrap());
                for slice in &slices {
                    gpu.run("fill", Cost::default(), fill(LEN, value), &[], &[slice]).unwrap();
                }
                let read = gpu.download_later(&slices[3]).unwrap();
                gpu.submit().unwrap();
                drop(slices);
                let words = bytemuck::pod_collect_to_vec::<u8, f32>(&read.wait().unwrap());
                assert!(words == vec![value; LEN], "round {round}");
                if Instant::now() > end {
                    break;
                }
            }
        });
    }
}
