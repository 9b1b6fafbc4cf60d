//! An opened GPU: allocates, records launches and copies, decides when they are submitted, reads back.

use super::copy_queues::{CopyQueues, Direction, Transit};
use super::encoder::Encoder;
use super::memory::{Memory, Released};
use super::pipeline_cache::PipelineCache;
use super::pipelines::Pipelines;
use super::plan::{ChoiceCache, Launch, Limits, Operand, Plan};
use super::pool::{GpuSlice, Pool};
use super::readback::{PendingReadback, Staging, StagingPool, UploadPool, Way};
use super::recorder::Recorder;
use super::submitter::Submitter;
use super::timestamps::Timestamps;
use super::{AdapterChoice, AdapterInfo, adapter};
use crate::profile::{Cost, MemoryKind, MemoryStats, Profiler, Span};
use crate::{Error, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Operations recorded before a submit happens by itself, as long as the device's speed is not known: a few tens of
/// milliseconds of a mid-range GPU.
const FLOPS_PER_SUBMIT: f64 = 4e11;
/// Then as many as it does in this time: between submits a GPU pauses for some 50 us, and Windows and macOS take one
/// for hung that is busy for a second or two.
const SECONDS_PER_SUBMIT: f64 = 0.1;
/// Kernels recorded before a submit happens by itself, so that the GPU starts early on what is there.
const KERNELS_PER_SUBMIT: usize = 512;
/// And as many after the host has waited for all that was submitted, because the GPU has nothing to do then; after each
/// submit a quarter more. With twice as many a GPU is done before the next are recorded, where kernels are short. Not
/// while there is something to compile, which is faster all at once.
const KERNELS_WHEN_IDLE: usize = 16;
// Each has two timestamps at most, and so has its pass.
const _: () = assert!(4 * KERNELS_PER_SUBMIT <= Timestamps::CAPACITY as usize);
/// Submits that [`Gpu::flush_if_idle`] sees to it that the GPU has before it.
const SUBMITS_AHEAD: usize = 2;
/// Uploads of so many bytes are submitted: until then they are in the host's memory twice.
const LARGE_UPLOAD: usize = 16 << 20;

/// A handle to an opened GPU, and what kernels that are run through it may use; clones share both.
#[derive(Clone)]
pub struct Gpu(Arc<Context>, Arc<Limits>);

struct Context {
    info: AdapterInfo,
    device: wgpu::Device,
    profiler: Arc<Profiler>,
    pool: Arc<Pool>,
    pipelines: Arc<Pipelines>,
    /// Locked before what the submitter has, where both are.
    recorder: Mutex<Recorder>,
    submitter: Submitter,
    has_timestamps: bool,
    /// Kernels recorded before the next submit happens by itself.
    kernels_per_submit: AtomicUsize,
    /// Kernels recorded and batches of them handed over, ever.
    counts: [AtomicU64; 2],
    staging_pool: StagingPool,
    upload_pool: UploadPool,
    copy_queues: Option<CopyQueues>,
    /// The first error that the driver reported outside a call.
    fault: Arc<Mutex<Option<Fault>>>,
    /// The most memory that is taken, bytes.
    memory_bytes: usize,
    /// The last field: wgpu's queue, which the submitter has, waits when it is dropped until the GPU is done, or lost,
    /// and only then lets go of what submits use.
    released: Released,
}

impl Drop for Context {
    fn drop(&mut self) {
        self.submitter.finish();
    }
}

/// What a driver reports outside a call.
enum Fault {
    Lost(String),
    Reported(String),
}

impl Gpu {
    /// Opens the adapter that `choice` asks for.
    ///
    /// # Errors
    /// [`Error::NoAdapter`], which lists what was found and says what to do.
    pub fn open(choice: &AdapterChoice) -> Result<Gpu> {
        let adapter::Opened { info, device, queue, copy_queues, coop_matrix, pipeline_cache_key } =
            adapter::open(choice)?;
        let granted = device.limits();
        let subgroup_size = match info.subgroup_size {
            [min, max] if min == max && device.features().contains(wgpu::Features::SUBGROUP) => min,
            _ => 0,
        };
        // Their kernels must know how many threads hold a matrix together.
        let coop_matrix = if subgroup_size > 0 { coop_matrix } else { 0 };
        let limits = Limits {
            binding_bytes: granted.max_storage_buffer_binding_size,
            buffer_bytes: granted.max_buffer_size,
            workgroup_bytes: granted.max_compute_workgroup_storage_size,
            workgroup_threads: granted.max_compute_invocations_per_workgroup,
            immediates: device.features().contains(wgpu::Features::IMMEDIATES),
            f16: device.features().contains(wgpu::Features::SHADER_F16),
            subgroup_size,
            coop_matrix,
            split_fp16: coop_matrix > 0 && adapter::known_for_fast_tensor_cores(&info.name),
            gpu_model: adapter::gpu_model(&info.name),
            matmul_throughput: None,
            choices: ChoiceCache::new(),
        };
        let fault = Arc::new(Mutex::new(None));
        let sink = fault.clone();
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            let fault = Fault::Reported(e.to_string());
            sink.lock().unwrap_or_else(|p| p.into_inner()).get_or_insert(fault);
        }));
        // It explains whatever else was reported.
        let sink = fault.clone();
        let lose = move |message| *sink.lock().unwrap_or_else(|p| p.into_inner()) = Some(Fault::Lost(message));
        let lose_device = lose.clone();
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                lose_device(message);
            }
        });
        let kept = choice.cache.as_deref().zip(pipeline_cache_key);
        let cache = kept.and_then(|(folder, key)| PipelineCache::open(&device, folder, key));
        let pipelines = Arc::new(Pipelines::new(device.clone(), limits.clone(), cache));
        let profiler = Arc::new(Profiler::new());
        let recorder = Recorder::new(pipelines.clone(), profiler.clone());
        let encoder = Encoder::new(device.clone(), queue, copy_queues.clone(), pipelines.clone(), profiler.clone());
        let has_timestamps = encoder.has_timestamps();
        let (pool, staging_pool) = (Arc::default(), StagingPool::default());
        let kernels_per_submit = AtomicUsize::new(KERNELS_WHEN_IDLE);
        let memory_bytes = choice.memory_bytes.unwrap_or(usize::MAX);
        let context = Context {
            info,
            device,
            profiler,
            pool,
            pipelines,
            recorder: Mutex::new(recorder),
            submitter: Submitter::new(encoder, lose),
            has_timestamps,
            kernels_per_submit,
            counts: Default::default(),
            staging_pool,
            upload_pool: UploadPool::default(),
            copy_queues,
            fault,
            memory_bytes,
            released: Released::default(),
        };
        Ok(Gpu(Arc::new(context), Arc::new(limits)))
    }

    /// The adapter that was opened.
    pub fn info(&self) -> &AdapterInfo {
        &self.0.info
    }

    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.0.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What kernels may use.
    pub fn limits(&self) -> &Limits {
        &self.1
    }

    /// The same GPU, for kernels that are chosen by this throughput: [`Limits::matmul_throughput`].
    pub fn with_matmul_throughput(self, gflops: Arc<[[u32; 4]]>) -> Gpu {
        let limits = Limits { matmul_throughput: Some(gflops), ..Limits::clone(&self.1) };
        Gpu(self.0, Arc::new(limits))
    }

    /// The same GPU, with f32 GEMMs as split-fp16 or not, if it has cooperative matrices: [`Limits::split_fp16`].
    pub fn with_split_fp16(self, on: bool) -> Gpu {
        let limits = Limits { split_fp16: on && self.1.coop_matrix > 0, ..Limits::clone(&self.1) };
        Gpu(self.0, Arc::new(limits))
    }

    /// Kernels recorded, and batches of them handed over to be submitted, since it was opened.
    pub fn counts(&self) -> (u64, u64) {
        let [kernels, submits] = self.0.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        (kernels, submits)
    }

    /// Variants of shaders that were compiled since it was opened.
    pub fn compiled(&self) -> usize {
        self.0.pipelines.compiled()
    }

    /// Compiles what these launches run, on all cores, and returns when all of it is there, or soon once `stop` is set.
    /// Meanwhile other threads may record and submit: what they need they compile too, or wait for where it is under
    /// way.
    pub fn precompile(&self, launches: &[Launch], stop: &AtomicBool) {
        self.0.pipelines.compile_all(launches.iter().filter(|launch| launch.workgroups > 0), stop);
    }

    /// Where its kernels' times are booked.
    pub fn profiler(&self) -> &Profiler {
        &self.0.profiler
    }

    /// What the pool holds.
    pub fn memory(&self) -> MemoryStats {
        self.0.pool.stats()
    }

    /// Lets the peak of [`Gpu::memory`] begin anew.
    pub fn reset_peak_memory(&self) {
        self.0.pool.reset_peak();
    }

    /// The most memory that there is, or that may be taken, bytes; `None` where neither is known.
    pub fn memory_bytes(&self) -> Option<u64> {
        let allowed = Some(self.0.memory_bytes as u64).filter(|&bytes| bytes < usize::MAX as u64);
        self.0.info.memory_bytes.into_iter().chain(allowed).min()
    }

    /// Whether two handles mean the same opened GPU.
    pub fn same(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Memory of `size` bytes with unspecified contents, which counts as of this kind.
    ///
    /// # Errors
    /// [`Error::GpuLimit`] if no buffer can be so large, [`Error::OutOfMemory`] if the memory is used up.
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
        self.retry_after_trim(|| self.0.pool.take(size, kind, |size| self.create_memory(size)))
    }

    /// Fails where a test wants an allocation to fail.
    #[cfg(feature = "testing")]
    fn fail_for_tests(&self, size: usize) -> Result<()> {
        if crate::testing::faults::fails() { Err(self.out_of_memory(size)) } else { Ok(()) }
    }

    /// What `make` makes. If there is no memory for it, once more without what the pool keeps for other sizes.
    fn retry_after_trim<T>(&self, make: impl Fn() -> Result<T>) -> Result<T> {
        match make() {
            Err(Error::OutOfMemory { .. }) => {
                self.trim()?;
                make()
            }
            result => result,
        }
    }

    /// Gives the driver back what the pool keeps for sizes to come. Waits.
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

    fn create_memory(&self, size: usize) -> Result<Memory> {
        if self.0.pool.stats().reserved_bytes + size > self.0.memory_bytes {
            return Err(self.out_of_memory(size));
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size: size as u64, usage, mapped_at_creation: false };
        let buffer = self.made(size, || self.0.device.create_buffer(&descriptor))?;
        Ok(Memory::new(&self.0.device, buffer, &self.0.released))
    }

    fn out_of_memory(&self, needed_bytes: usize) -> Error {
        let used_bytes = self.0.pool.stats().used_bytes;
        Error::OutOfMemory { adapter: self.0.info.name.clone(), needed_bytes, used_bytes, is_cpu: false }
    }

    /// The buffer of `size` bytes that `make` asks for. Whether there is memory for it is reported at once.
    fn made<T>(&self, size: usize, make: impl FnOnce() -> T) -> Result<T> {
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

    /// Makes the device one that is lost, as if its driver had ended.
    #[cfg(feature = "testing")]
    pub fn lose_for_tests(&self) {
        *self.0.fault.lock().unwrap_or_else(|p| p.into_inner()) = Some(Fault::Lost("by a test".into()));
        self.0.device.destroy();
    }

    /// Lets the thread that submits panic over the commands recorded so far.
    #[cfg(test)]
    fn panic_in_submit_for_tests(&self) {
        self.recorder().batch.panics = true;
    }

    /// What reads and uploads have mapped and do not use now.
    #[cfg(test)]
    pub(super) fn host_pools(&self) -> [&super::readback::Buffers; 2] {
        [&self.0.staging_pool.0, &self.0.upload_pool.0]
    }

    #[cfg(test)]
    pub(super) fn copy_queues(&self) -> Option<&CopyQueues> {
        self.0.copy_queues.as_ref()
    }

    /// Records a kernel's launches. `name` is what the profile calls it, `cost` what it must compute and move.
    ///
    /// # Errors
    /// If the plan binds what is not there, scratch memory is not to be had, or the driver reported an error.
    pub fn run(
        &self,
        name: &'static str,
        cost: Cost,
        plan: Plan,
        inputs: &[&GpuSlice],
        outputs: &[&GpuSlice],
    ) -> Result<()> {
        let started = Instant::now();
        plan.check_operands(name, inputs.len(), outputs.len())?;
        let scratch = plan.scratch.iter().map(|&size| self.alloc(size, MemoryKind::Scratch));
        let scratch = scratch.collect::<Result<Vec<_>>>()?;
        let range = |binding: &Operand| match *binding {
            Operand::Input(i) => inputs[i].into(),
            Operand::Output(i) => outputs[i].into(),
            Operand::Scratch(i) | Operand::ReadScratch(i) => (&scratch[i]).into(),
        };
        let launches = plan.launches.into_iter().filter(|launch| launch.workgroups > 0).map(|launch| {
            let ranges = launch.buffers.iter().map(|buffer| range(&buffer.operand)).collect();
            (launch, ranges)
        });
        let mut recorder = self.recorder();
        recorder.kernel(name, cost, launches);
        self.0.counts[0].fetch_add(1, Ordering::Relaxed);
        let batch = &recorder.batch;
        let flops = self.0.submitter.flops_per_second().map_or(FLOPS_PER_SUBMIT, |rate| rate * SECONDS_PER_SUBMIT);
        let enough =
            if batch.must_compile { KERNELS_PER_SUBMIT } else { self.0.kernels_per_submit.load(Ordering::Relaxed) };
        let due = batch.kernels >= enough || batch.flops >= flops;
        self.0.profiler.add_span(Span::Encode, started, started.elapsed());
        if due { self.submit_recorded(&mut recorder) } else { Ok(()) }
    }

    /// Records replacing the contents of `slice` by the bytes of all parts: what was recorded before still sees the old
    /// ones.
    ///
    /// # Errors
    /// If they are not as many bytes, there is no memory to write from, or the driver reported an error.
    pub fn upload(&self, slice: &GpuSlice, parts: &[&[u8]]) -> Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes != slice.size {
            let size = slice.size;
            return Err(Error::Invalid(format!("upload: a slice of {size} bytes takes as many, not {bytes}")));
        }
        if bytes == 0 {
            return Ok(());
        }
        #[cfg(feature = "testing")]
        self.fail_for_tests(bytes)?;
        let from = match self.0.upload_pool.take(bytes) {
            Some(mapped) => mapped,
            None => self.retry_after_trim(|| self.made(bytes, || UploadPool::create(&self.0.device, bytes)))?,
        };
        let mut mapped = from.get_mapped_range_mut(..).map_err(|e| Error::Gpu(e.to_string()))?;
        write(mapped.slice(..bytes), parts);
        drop(mapped);
        from.unmap();
        let mut recorder = self.recorder();
        recorder.write(&from, slice.into());
        if bytes >= UploadPool::LARGE {
            recorder.batch.to_map_again.push((from, self.0.upload_pool.clone()));
        }
        if recorder.batch.uploaded >= LARGE_UPLOAD { self.submit_recorded(&mut recorder) } else { Ok(()) }
    }

    /// Records setting all bytes of `slice` to zero.
    pub fn fill_zero(&self, slice: &GpuSlice) {
        self.recorder().clear(slice.into());
    }

    /// Records a read-back of `slice` whose bytes are taken later.
    ///
    /// # Errors
    /// If there is no memory to read into, or the driver reported an error.
    pub fn download_later(&self, slice: &GpuSlice) -> Result<PendingReadback> {
        #[cfg(feature = "testing")]
        self.fail_for_tests(slice.size)?;
        let make = || Staging::new(&self.0.device, slice.size, &self.0.staging_pool);
        let staging = self.retry_after_trim(|| self.made(slice.size, make))?;
        self.recorder().read(slice.into(), &staging);
        let way = Way::Mapped(staging, self.0.staging_pool.clone());
        Ok(PendingReadback { gpu: self.clone(), way, size: slice.size })
    }

    /// Memory that a kernel is to write, and [`Gpu::download_aside`] to read. `None` where the device has no queues for
    /// copies, or copies have as much memory as they may.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn alloc_for_host(&self, size: usize) -> Result<Option<GpuSlice>> {
        let Some(copies) = &self.0.copy_queues else { return Ok(None) };
        let transit = copies.take(size, Direction::ToHost)?;
        Ok(transit.map(|transit| GpuSlice::in_transit(Arc::new(transit), size)))
    }

    /// [`Gpu::download_later`], beside the kernels that follow, if the memory is of [`Gpu::alloc_for_host`]. What is
    /// recorded later must not write to it.
    ///
    /// # Errors
    /// If there is no memory to read into, or the driver reported an error.
    pub fn download_aside(&self, slice: &GpuSlice) -> Result<PendingReadback> {
        let Some(transit) = slice.transit() else { return self.download_later(slice) };
        self.recorder().read_aside(transit.clone());
        Ok(PendingReadback { gpu: self.clone(), way: Way::Aside(transit.clone()), size: slice.size })
    }

    /// Memory with these bytes, brought there beside the kernels that run; waits for it. It is for kernels to read.
    /// `None` as for [`Gpu::alloc_for_host`].
    ///
    /// # Errors
    /// If the driver refuses it, or reported an error.
    pub fn upload_aside(&self, bytes: &[u8]) -> Result<Option<GpuSlice>> {
        let Some(copies) = &self.0.copy_queues else { return Ok(None) };
        let Some(mut transit) = copies.take(bytes.len(), Direction::ToDevice)? else { return Ok(None) };
        transit.fill(bytes);
        {
            let _nobody_else_submits = self.recorder();
            self.0.submitter.drain()?;
            copies.copy_to_device(&transit);
        }
        self.wait_aside(&transit)?;
        Ok(Some(GpuSlice::in_transit(Arc::new(transit), bytes.len())))
    }

    /// The contents of `slice`, after everything recorded so far has run. Waits.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn download(&self, slice: &GpuSlice) -> Result<Vec<u8>> {
        self.download_later(slice)?.wait()
    }

    /// Hands what is recorded to the GPU if it will soon have nothing left to do, as at the end of a training step. If
    /// it has enough, more is recorded first: between submits it pauses.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn flush_if_idle(&self) -> Result<()> {
        self.check()?;
        let ahead = self.0.submitter.ahead(|| self.poll())?;
        if ahead == 0 {
            // As after `synchronize`: what is recorded next is waited for.
            self.0.kernels_per_submit.store(KERNELS_WHEN_IDLE, Ordering::Relaxed);
        }
        if ahead < SUBMITS_AHEAD { self.submit() } else { Ok(()) }
    }

    /// Hands what is recorded to the GPU, by way of a thread: what fails then is an error of a later call.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn submit(&self) -> Result<()> {
        self.submit_recorded(&mut self.recorder())
    }

    fn submit_recorded(&self, recorder: &mut Recorder) -> Result<()> {
        if let Some(mut batch) = recorder.take() {
            self.0.counts[1].fetch_add(1, Ordering::Relaxed);
            let kernels = &self.0.kernels_per_submit;
            let submitted = kernels.load(Ordering::Relaxed);
            kernels.store((submitted + submitted / 4).min(KERNELS_PER_SUBMIT), Ordering::Relaxed);
            batch.is_announced = self.0.copy_queues.as_ref().is_some_and(CopyQueues::are_in_use);
            self.0.submitter.hand_over(batch)?;
        }
        self.check()
    }

    /// Lets callbacks run. Never waits.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn poll(&self) -> Result<()> {
        self.check()?;
        self.0.device.poll(wgpu::PollType::Poll).map_err(|e| Error::Gpu(e.to_string()))?;
        self.0.released.clear();
        self.check()
    }

    /// Waits until at most `in_flight` submits are unfinished, so that the host does not run far ahead.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn throttle(&self, in_flight: usize) -> Result<()> {
        self.0.submitter.throttle(in_flight, |last| self.wait(Some(last)))
    }

    /// Submits what is recorded and waits until all of it is done; timestamps are then in the profile.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn synchronize(&self) -> Result<()> {
        self.submit()?;
        self.finish_submits()?;
        self.wait(None)?;
        self.0.submitter.all_done();
        self.0.kernels_per_submit.store(KERNELS_WHEN_IDLE, Ordering::Relaxed);
        self.0.submitter.encoder().collect()
    }

    /// Waits until everything that was handed over is submitted.
    ///
    /// # Errors
    /// If the device is lost.
    pub(super) fn finish_submits(&self) -> Result<()> {
        self.0.submitter.drain()
    }

    /// Waits for a copy beside the kernels; submits what is recorded if that is among it.
    pub(super) fn wait_aside(&self, transit: &Transit) -> Result<()> {
        if !transit.is_submitted() {
            self.submit()?;
        }
        self.0.profiler.span(Span::Wait, || {
            // So often it looks whether the device is lost.
            while !transit.wait(Duration::from_millis(100))? {
                self.check()?;
            }
            Ok(())
        })
    }

    pub(super) fn wait(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<()> {
        // Of a submit that failed: a poll would panic, or not know it.
        self.check()?;
        let poll = || self.0.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
        let polled = self.0.profiler.span(Span::Wait, poll);
        self.0.released.clear();
        self.check()?;
        polled.map(drop).map_err(|e| Error::Gpu(e.to_string()))
    }

    /// Puts timestamps around every kernel from now on (or only around passes). False if the device has none.
    pub fn time_kernels(&self, on: bool) -> bool {
        self.recorder().times_kernels = on && self.0.has_timestamps;
        self.0.has_timestamps
    }

    /// The first error that the driver reported, if any.
    fn check(&self) -> Result<()> {
        match &*self.0.fault.lock().unwrap_or_else(|p| p.into_inner()) {
            Some(Fault::Lost(message)) => Err(Error::DeviceLost(message.clone())),
            Some(Fault::Reported(message)) => Err(Error::Gpu(message.clone())),
            None => Ok(()),
        }
    }
}

/// Copies the bytes of all parts to mapped memory, which may be a card's, seen through the bus: four threads fill that,
/// once they are awake.
fn write(mut to: wgpu::WriteOnly<[u8]>, parts: &[&[u8]]) {
    const TASK: usize = 1 << 24;
    rayon::in_place_scope(|scope| {
        for part in parts {
            let (whole, rest) = std::mem::take(&mut to).split_at(part.len());
            to = rest;
            let (tasks, mut last) = whole.into_chunks::<TASK>();
            let own = part.chunks_exact(TASK);
            for (to, own) in tasks.into_iter().zip(own.clone()) {
                scope.spawn(move |_| wgpu::WriteOnly::<[u8]>::from(to).copy_from_slice(own));
            }
            last.copy_from_slice(own.remainder());
        }
    });
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "gpu:{}", self.0.info.index)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Allocation;
    use super::*;
    use crate::gpu::{buffer, param};

    fn fill(len: usize, value: f32) -> Plan {
        Plan::one(Launch {
            shader: crate::shader!(fill),
            values: vec![],
            buffers: vec![buffer("x", "f32", Operand::Output(0))],
            params: vec![param("len", len), param("value", value)],
            workgroups: len.div_ceil(256),
        })
    }

    #[test]
    fn a_panic_of_the_submitting_thread_is_a_lost_device_for_every_caller() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let slice = gpu.alloc(1024, MemoryKind::Other).unwrap();
        let reads = [0; 2].map(|_| gpu.download_later(&slice).unwrap());
        gpu.panic_in_submit_for_tests();
        let calls: [(&str, &(dyn Fn() -> Result<()> + Sync)); 8] = [
            ("synchronize", &|| gpu.synchronize()),
            ("submit", &|| {
                gpu.fill_zero(&slice);
                gpu.submit()
            }),
            ("throttle", &|| gpu.throttle(0)),
            ("flush_if_idle", &|| gpu.flush_if_idle()),
            ("download", &|| gpu.download(&slice).map(drop)),
            ("trim", &|| gpu.trim()),
            ("poll", &|| gpu.poll()),
            ("alloc", &|| gpu.alloc(12_345_678, MemoryKind::Other).map(drop)),
        ];
        let check = |name: &str, result: Result<()>| {
            let is_lost = |error: &Error| matches!(error, Error::DeviceLost(why) if why.contains("out of luck"));
            assert!(result.as_ref().is_err_and(is_lost), "{name}: {result:?}");
        };
        // The first waits for the thread, which panics meanwhile.
        check("synchronize", gpu.synchronize());
        std::thread::scope(|scope| {
            let threads = calls.map(|(name, call)| (name, scope.spawn(call)));
            threads.into_iter().for_each(|(name, thread)| check(name, thread.join().expect(name)));
        });
        reads.into_iter().for_each(|read| check("wait", read.wait().map(drop)));
    }

    #[test]
    fn an_idle_gpu_gets_work_early_and_a_busy_one_more_at_once() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let out = gpu.alloc(4, MemoryKind::Other).unwrap();
        // The first time there is a shader to compile.
        for expected in [&[][..], &[16, 36, 61, 92], &[16, 36, 61, 92]] {
            gpu.synchronize().unwrap();
            let mut submits = Vec::new();
            for kernels in 1..=112 {
                let before = gpu.counts().1;
                gpu.run("fill", Cost::default(), fill(1, 0.0), &[], &[&out]).unwrap();
                if gpu.counts().1 > before {
                    submits.push(kernels);
                }
            }
            assert_eq!(submits, expected);
        }
    }

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

    #[test]
    fn a_gpu_that_is_dropped_in_the_middle_of_work_waits_for_it() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        const LEN: usize = 1 << 22;
        for _ in 0..20 {
            let out = gpu.alloc(4 * LEN, MemoryKind::Other).unwrap();
            gpu.run("fill", Cost::default(), fill(LEN, 1.0), &[], &[&out]).unwrap();
        }
        gpu.submit().unwrap();
        // The submit keeps the aliases, and each of those the memory.
        let released = gpu.0.released.clone();
        let has_aliases = gpu.alloc(4, MemoryKind::Other).unwrap().buffer.allocation.memory.has_aliases();
        drop(gpu);
        assert_eq!(released.count() > 0, has_aliases);
    }
}
