//! Compiles, encodes and submits recorded batches.
//!
//! Missing shaders are compiled together at submission, on all threads, so a submit waits for the slowest and not for
//! their sum. Shaders compiled by [`Gpu::precompile`](super::Gpu::precompile) cost nothing here.

use super::barriers::{Access, Barriers, Uses};
use super::bind_groups::BindGroups;
use super::copy_queues::CopyQueues;
use super::memory::Released;
use super::params::{Uniforms, words};
use super::pipelines::Pipelines;
use super::plan::grid;
use super::recorder::{Batch, BufferRange, Command, RecordedDispatch};
use super::timestamps::Timestamps;
use crate::Result;
use crate::profile::{Cost, Profiler, Span};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A launch of a pass.
struct Step<'a> {
    dispatch: &'a RecordedDispatch,
    /// The scope of the timestamps that start before it, and whether they end after it.
    timed_from: Option<(&'static str, Cost)>,
    timed_to: bool,
}

/// What makes wgpu put a buffer into this state.
fn transition(
    buffer: &wgpu::Buffer,
    state: wgpu::BufferUses,
) -> impl Iterator<Item = wgpu::BufferTransition<&wgpu::Buffer>> {
    std::iter::once(wgpu::BufferTransition { buffer, state })
}

/// Who submits to wgpu's queue.
pub(super) struct Encoder {
    device: wgpu::Device,
    queue: wgpu::Queue,
    profiler: Arc<Profiler>,
    pipelines: Arc<Pipelines>,
    bind_groups: BindGroups,
    released: Released,
    barriers: Barriers,
    /// A barrier is one for everything: this has no other use than to be what wgpu adds one for.
    fence: wgpu::Buffer,
    /// Where parameters are no immediates.
    uniforms: Option<Uniforms>,
    timestamps: Option<Timestamps>,
    copy_queues: Option<CopyQueues>,
}

impl Encoder {
    pub fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        copy_queues: Option<CopyQueues>,
        pipelines: Arc<Pipelines>,
        profiler: Arc<Profiler>,
        released: Released,
    ) -> Encoder {
        let timestamps = Timestamps::new(&device, &queue, profiler.clone());
        let uniforms = pipelines.params_layout.as_ref().map(|layout| Uniforms::new(&device, layout));
        let bind_groups = BindGroups::new(device.clone());
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let fence = wgpu::BufferDescriptor { label: Some("fence"), size: 16, usage, mapped_at_creation: false };
        let fence = device.create_buffer(&fence);
        let barriers = Barriers::default();
        Encoder {
            device,
            queue,
            profiler,
            pipelines,
            bind_groups,
            released,
            barriers,
            fence,
            uniforms,
            timestamps,
            copy_queues,
        }
    }

    /// Whether the device has timestamps.
    pub fn has_timestamps(&self) -> bool {
        self.timestamps.is_some()
    }

    /// FLOP/s of the last large submit whose timestamps have arrived.
    pub fn flops_per_second(&self) -> Option<f64> {
        self.timestamps.as_ref().and_then(|timestamps| timestamps.flops_per_second)
    }

    /// Adds arrived timestamps to the profile.
    ///
    /// # Errors
    /// If they could not be read back.
    pub fn collect(&mut self) -> Result<()> {
        self.timestamps.as_mut().map_or(Ok(()), Timestamps::collect)
    }

    /// Drops all used buffers once the device has finished.
    pub fn forget(&mut self) {
        self.bind_groups.clear();
        self.barriers.clear();
    }

    /// Lets go of memory that the pool has given back, which bind groups would keep.
    fn forget_released(&mut self) {
        let numbers = self.released.take_numbers();
        if !numbers.is_empty() {
            numbers.iter().for_each(|memory| self.barriers.forget(*memory));
            self.bind_groups.forget(&numbers.into_iter().collect());
        }
    }

    /// Number of memories with bind groups.
    #[cfg(test)]
    pub fn bound_memories(&self) -> usize {
        self.bind_groups.memories()
    }

    /// Encodes and submits a batch.
    pub fn submit(&mut self, batch: &mut Batch) -> wgpu::SubmissionIndex {
        #[cfg(test)]
        assert!(!batch.panics, "out of luck, as this test wants");
        let started = Instant::now();
        self.forget_released();
        let compile_time = self.compile(batch);
        let mut encoder = self.encode(&batch.commands);
        let timed = self.timestamps.as_ref().is_some_and(Timestamps::any);
        if let Some(timestamps) = &mut self.timestamps {
            timestamps.resolve(&self.device, &mut encoder, batch.flops);
        }
        if let Some(uniforms) = &mut self.uniforms {
            uniforms.write(&self.queue);
        }
        let copies = self.copy_queues.as_ref().filter(|_| batch.is_announced);
        let announced = copies.map(|copies| (copies, copies.announce(&self.queue)));
        let index = self.queue.submit([encoder.finish()]);
        if let Some((copies, announced)) = announced {
            copies.copy_to_host(&self.queue, announced, &std::mem::take(&mut batch.to_copy));
        }
        for staging in batch.to_map.drain(..) {
            staging.map();
            staging.submitted(index.clone());
        }
        for (buffer, pool) in batch.to_map_again.drain(..) {
            pool.map_again(buffer);
        }
        if let Some(timestamps) = &mut self.timestamps {
            timestamps.submitted(timed);
        }
        if !compile_time.is_zero() {
            self.profiler.add_submit(Span::Compile, started, compile_time);
        }
        self.profiler.add_submit(Span::Encode, started + compile_time, started.elapsed() - compile_time);
        index
    }

    /// Calls `callback` when everything submitted so far is done.
    pub fn when_done(&self, callback: impl FnOnce() + Send + 'static) {
        self.queue.on_submitted_work_done(callback);
    }

    /// Compiles missing shaders; returns the time it took.
    fn compile(&self, batch: &Batch) -> Duration {
        if !batch.must_compile {
            return Duration::ZERO;
        }
        let started = Instant::now();
        let launches = batch.commands.iter().filter_map(|command| match command {
            Command::Kernel { launches, .. } => Some(launches),
            _ => None,
        });
        let missing = launches.flatten().filter(|dispatch| dispatch.pipeline.is_none());
        self.pipelines.compile_all(missing.map(|dispatch| &dispatch.launch), &AtomicBool::new(false));
        started.elapsed()
    }

    fn encode(&mut self, commands: &[Command]) -> wgpu::CommandEncoder {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        if let Some(uniforms) = &mut self.uniforms {
            uniforms.reserve(commands.iter().map(Command::launches).sum());
        }
        // Kernels that follow each other share a pass.
        let kernels = |a: &Command, b: &Command| matches!((a, b), (Command::Kernel { .. }, Command::Kernel { .. }));
        for group in commands.chunk_by(kernels) {
            if !matches!(&group[0], Command::Kernel { .. }) {
                // Copies come after all kernels before them, as they do before all after them.
                encoder.transition_resources(transition(&self.fence, wgpu::BufferUses::COPY_DST), std::iter::empty());
            }
            match &group[0] {
                Command::Kernel { .. } => self.encode_pass(&mut encoder, group),
                Command::Clear(range) => {
                    let size = range.size.next_multiple_of(4);
                    self.barriers.copy(&range.access(size, true));
                    encoder.clear_buffer(&range.allocation.buffer(), range.offset, Some(size));
                }
                Command::Write { from, to, size } => {
                    self.barriers.copy(&to.access(*size, true));
                    encoder.copy_buffer_to_buffer(from, 0, &to.allocation.buffer(), to.offset, Some(*size));
                }
                Command::Read { from, to, size } => {
                    self.barriers.copy(&from.access(*size, false));
                    encoder.copy_buffer_to_buffer(&from.allocation.buffer(), from.offset, to, 0, Some(*size));
                }
            }
        }
        encoder
    }

    fn encode_pass(&mut self, encoder: &mut wgpu::CommandEncoder, kernels: &[Command]) {
        let timestamp_writes = self.timestamps.as_mut().map(Timestamps::pass);
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
        // The barrier that the pass begins with.
        pass.transition_resources(transition(&self.fence, wgpu::BufferUses::STORAGE_READ_WRITE), std::iter::empty());
        let mut steps: Vec<Step> = Vec::new();
        let (mut accesses, mut uses): (Vec<Access>, Vec<Uses>) = Default::default();
        let mut after_timed = false;
        for kernel in kernels {
            let Command::Kernel { name, cost, timed, launches } = kernel else {
                unreachable!("one of a group of kernels")
            };
            for (i, dispatch) in launches.iter().enumerate() {
                let timed_from = (*timed && i == 0).then_some((*name, *cost));
                steps.push(Step { dispatch, timed_from, timed_to: *timed && i + 1 == launches.len() });
                let first = accesses.len();
                accesses.extend(dispatch.accesses());
                // What is timed runs alone.
                uses.push(Uses { accesses: first..accesses.len(), waits: *timed || after_timed });
            }
            after_timed = *timed;
        }
        let ranges: Vec<&BufferRange> = steps.iter().flat_map(|step| &step.dispatch.ranges).collect();
        let mut mark = None;
        for group in self.barriers.pass(&accesses, &uses) {
            let reads: Vec<wgpu::Buffer> = group.reads.iter().map(|&i| ranges[i].allocation.buffer()).collect();
            let reads = reads.iter().flat_map(|buffer| transition(buffer, wgpu::BufferUses::STORAGE_READ_ONLY));
            let fence = transition(&self.fence, wgpu::BufferUses::STORAGE_READ_WRITE).filter(|_| group.needs_barrier);
            if group.needs_barrier || !group.reads.is_empty() {
                pass.transition_resources(reads.chain(fence), std::iter::empty());
            }
            for Step { dispatch, timed_from, timed_to } in group.launches.iter().map(|&launch| &steps[launch]) {
                if let (Some(timestamps), Some((name, cost))) = (&mut self.timestamps, *timed_from) {
                    mark = Some(timestamps.begin_kernel(&mut pass, name, cost));
                }
                let RecordedDispatch { launch, ranges, pipeline } = dispatch;
                let pipeline = pipeline.clone().or_else(|| self.pipelines.get(launch));
                let pipeline = pipeline.expect("compiled before it is encoded");
                pass.set_pipeline(&pipeline.raw);
                pass.set_bind_group(0, self.bind_groups.get(&pipeline, ranges), &[]);
                if !launch.params.is_empty() {
                    let words = words(&launch.params);
                    match &mut self.uniforms {
                        None => pass.set_immediates(0, bytemuck::cast_slice(&words)),
                        Some(uniforms) => {
                            let offset = uniforms.push(&words);
                            pass.set_bind_group(1, &uniforms.group, &[offset]);
                        }
                    }
                }
                let [x, y] = grid(launch.workgroups);
                pass.dispatch_workgroups(x, y, 1);
                if let (Some(timestamps), Some(mark)) = (&self.timestamps, mark.take_if(|_| *timed_to)) {
                    timestamps.end_kernel(&mut pass, mark);
                }
            }
        }
    }
}
