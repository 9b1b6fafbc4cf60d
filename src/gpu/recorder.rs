//! What the GPU is to do: recorded as data, then compiled, encoded and submitted together.
//!
//! Shaders that are not compiled yet are compiled when the commands are submitted, all at once and by all threads: a
//! submit waits for the slowest of them and not for their sum, and not at all for those that
//! [`Gpu::precompile`](super::Gpu::precompile) has compiled.

use super::barriers::{Access, Barriers, Uses};
use super::bind_groups::BindGroups;
use super::copy_queues::{CopyQueues, Transit};
use super::memory::Allocation;
use super::params::{Uniforms, words};
use super::pipelines::{Pipeline, Pipelines};
use super::plan::{Launch, grid};
use super::pool::GpuSlice;
use super::readback::{Staging, UploadPool};
use super::timestamps::Timestamps;
use crate::profile::{Cost, Profiler, Span};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A part of some memory. Unlike a [`GpuSlice`] it lets the pool hand the memory out again meanwhile: to what is
/// recorded later.
pub(super) struct BufferRange {
    pub allocation: Arc<Allocation>,
    pub offset: u64,
    pub size: u64,
}

impl From<&GpuSlice> for BufferRange {
    fn from(slice: &GpuSlice) -> BufferRange {
        let allocation = slice.buffer.allocation.clone();
        BufferRange { allocation, offset: slice.offset as u64, size: slice.size as u64 }
    }
}

impl BufferRange {
    fn access(&self, writes: bool) -> Access<'_> {
        let Allocation { memory, alias } = &*self.allocation;
        Access { memory: memory.id, alias, has_aliases: memory.has_aliases(), writes }
    }
}

/// A launch with what its bindings are.
struct RecordedDispatch {
    launch: Launch,
    ranges: Vec<BufferRange>,
    /// `None` if it was not compiled yet when it was recorded.
    pipeline: Option<Arc<Pipeline>>,
}

impl RecordedDispatch {
    fn accesses(&self) -> impl Iterator<Item = Access<'_>> {
        let writes = self.launch.buffers.iter().map(|buffer| !buffer.operand.is_read_only());
        self.ranges.iter().zip(writes).map(|(range, writes)| range.access(writes))
    }
}

/// A launch of a pass.
struct Step<'a> {
    dispatch: &'a RecordedDispatch,
    /// What the timestamps are for that begin before it, and whether they end after it.
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

enum Command {
    Kernel {
        name: &'static str,
        cost: Cost,
        /// Whether it gets timestamps of its own.
        timed: bool,
        launches: Vec<RecordedDispatch>,
    },
    /// Sets bytes to zero.
    Clear(BufferRange),
    /// Copies this many bytes from the start of a buffer that the host has written.
    Write { from: wgpu::Buffer, to: BufferRange, size: u64 },
    /// Copies this many bytes to the start of a buffer that the host will read.
    Read { from: BufferRange, to: wgpu::Buffer, size: u64 },
}

impl Command {
    /// How many launches it has.
    fn launches(&self) -> usize {
        match self {
            Command::Kernel { launches, .. } => launches.len(),
            _ => 0,
        }
    }
}

/// The commands since the last submit.
pub(super) struct Recorder {
    device: wgpu::Device,
    queue: wgpu::Queue,
    profiler: Arc<Profiler>,
    pipelines: Arc<Pipelines>,
    bind_groups: BindGroups,
    barriers: Barriers,
    /// A barrier is one for everything: this has no other use than to be what wgpu adds one for.
    fence: wgpu::Buffer,
    /// Where parameters are no immediates.
    uniforms: Option<Uniforms>,
    pub timestamps: Option<Timestamps>,
    commands: Vec<Command>,
    /// Staging buffers whose copy is recorded, to be mapped after the submit.
    to_map: Vec<Staging>,
    /// Buffers whose copy is recorded, to be written again after it.
    pub to_map_again: Vec<(wgpu::Buffer, UploadPool)>,
    copy_queues: Option<CopyQueues>,
    /// What is to be copied to the host after the submit.
    to_copy: Vec<Arc<Transit>>,
    /// Kernels recorded, their operations, and bytes to be copied to the GPU.
    pub kernels: usize,
    pub flops: f64,
    pub uploaded: usize,
    /// Whether the next submit has shaders to compile.
    pub must_compile: bool,
}

impl Recorder {
    pub fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        copy_queues: Option<CopyQueues>,
        pipelines: Arc<Pipelines>,
        profiler: Arc<Profiler>,
    ) -> Recorder {
        let timestamps = Timestamps::new(&device, &queue, profiler.clone());
        let uniforms = pipelines.params_layout.as_ref().map(|layout| Uniforms::new(&device, layout));
        let bind_groups = BindGroups::new(device.clone());
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let fence = wgpu::BufferDescriptor { label: Some("fence"), size: 16, usage, mapped_at_creation: false };
        let fence = device.create_buffer(&fence);
        let (commands, to_map, to_map_again) = (Vec::new(), Vec::new(), Vec::new());
        Recorder {
            device,
            queue,
            profiler,
            pipelines,
            bind_groups,
            barriers: Barriers::default(),
            fence,
            uniforms,
            timestamps,
            commands,
            to_map,
            to_map_again,
            copy_queues,
            to_copy: Vec::new(),
            kernels: 0,
            flops: 0.0,
            uploaded: 0,
            must_compile: false,
        }
    }

    /// Records a kernel: its launches and what each binds.
    pub fn kernel(
        &mut self,
        name: &'static str,
        cost: Cost,
        launches: impl Iterator<Item = (Launch, Vec<BufferRange>)>,
    ) {
        let bind = |(launch, ranges)| {
            let pipeline = self.pipelines.get(&launch);
            RecordedDispatch { launch, ranges, pipeline }
        };
        let launches: Vec<RecordedDispatch> = launches.map(bind).collect();
        self.must_compile |= launches.iter().any(|dispatch| dispatch.pipeline.is_none());
        let timed = self.timestamps.as_ref().is_some_and(|timestamps| timestamps.kernels);
        self.commands.push(Command::Kernel { name, cost, timed, launches });
        self.profiler.count_kernel(name);
        self.kernels += 1;
        self.flops += cost.flops;
    }

    pub fn clear(&mut self, range: BufferRange) {
        self.commands.push(Command::Clear(range));
    }

    /// Records copying from memory of the host.
    pub fn write(&mut self, from: &wgpu::Buffer, to: BufferRange) {
        self.uploaded += to.size as usize;
        self.commands.push(Command::Write { from: from.clone(), to, size: from.size() });
    }

    /// Records copying a part to the host.
    pub fn read(&mut self, from: BufferRange, into: &Staging) {
        let size = from.size.next_multiple_of(4);
        self.commands.push(Command::Read { from, to: into.buffer.clone(), size });
        self.to_map.push(into.clone());
    }

    /// Lets go of all buffers that were used, once the device is done with them.
    pub fn forget(&mut self) {
        self.bind_groups.clear();
        self.barriers.clear();
    }

    /// Records a copy to the host of memory that the queues of copies use too.
    pub fn read_aside(&mut self, transit: Arc<Transit>) {
        self.to_copy.push(transit);
    }

    /// Hands what is recorded to the GPU, if there is anything.
    pub fn submit(&mut self) -> Option<wgpu::SubmissionIndex> {
        if self.commands.is_empty() {
            return None;
        }
        let started = Instant::now();
        let compile_time = self.compile();
        let mut encoder = self.encode();
        let timed = self.timestamps.as_ref().is_some_and(Timestamps::any);
        if let Some(timestamps) = &mut self.timestamps {
            timestamps.resolve(&self.device, &mut encoder, self.flops);
        }
        if let Some(uniforms) = &mut self.uniforms {
            uniforms.write(&self.queue);
        }
        let copies = self.copy_queues.as_ref().filter(|copies| copies.are_in_use());
        let announced = copies.map(|copies| (copies, copies.announce(&self.queue)));
        let index = self.queue.submit([encoder.finish()]);
        if let Some((copies, announced)) = announced {
            copies.copy_to_host(&self.queue, announced, &std::mem::take(&mut self.to_copy));
        }
        for staging in self.to_map.drain(..) {
            staging.map();
            staging.submitted(index.clone());
        }
        for (buffer, pool) in self.to_map_again.drain(..) {
            pool.map_again(buffer);
        }
        if let Some(timestamps) = &mut self.timestamps {
            timestamps.submitted(timed);
        }
        (self.kernels, self.flops, self.uploaded, self.must_compile) = (0, 0.0, 0, false);
        if !compile_time.is_zero() {
            self.profiler.add_span(Span::Compile, started, compile_time);
        }
        self.profiler.add_span(Span::Encode, started + compile_time, started.elapsed() - compile_time);
        Some(index)
    }

    /// Compiles what is not compiled yet, and says how long that took.
    fn compile(&self) -> Duration {
        if !self.must_compile {
            return Duration::ZERO;
        }
        let started = Instant::now();
        let launches = self.commands.iter().filter_map(|command| match command {
            Command::Kernel { launches, .. } => Some(launches),
            _ => None,
        });
        let missing = launches.flatten().filter(|dispatch| dispatch.pipeline.is_none());
        self.pipelines.compile_all(missing.map(|dispatch| &dispatch.launch), &AtomicBool::new(false));
        started.elapsed()
    }

    fn encode(&mut self) -> wgpu::CommandEncoder {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let commands = std::mem::take(&mut self.commands);
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
                    self.barriers.copy(&range.access(true));
                    let size = range.size.next_multiple_of(4);
                    encoder.clear_buffer(&range.allocation.buffer(), range.offset, Some(size));
                }
                Command::Write { from, to, size } => {
                    self.barriers.copy(&to.access(true));
                    encoder.copy_buffer_to_buffer(from, 0, &to.allocation.buffer(), to.offset, Some(*size));
                }
                Command::Read { from, to, size } => {
                    self.barriers.copy(&from.access(false));
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
