//! What the GPU is to do: recorded as data, then compiled, encoded and submitted together.
//!
//! Shaders that are not compiled yet are compiled when the commands are submitted, all at once and by all threads: a
//! submit waits for the slowest of them and not for their sum, and not at all for those that
//! [`Gpu::precompile`](super::Gpu::precompile) has compiled.

use super::bind_groups::BindGroups;
use super::copy_queues::{CopyQueues, Transit};
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

/// A part of a buffer. Unlike a [`GpuSlice`] it lets the pool hand the memory out again meanwhile: to what is recorded
/// later.
pub(super) struct BufferRange {
    /// Which buffer: never used twice.
    pub id: u64,
    pub buffer: wgpu::Buffer,
    pub offset: u64,
    pub size: u64,
}

impl From<&GpuSlice> for BufferRange {
    fn from(slice: &GpuSlice) -> BufferRange {
        let (buffer, id) = (slice.buffer.raw().clone(), slice.buffer.id);
        BufferRange { id, buffer, offset: slice.offset as u64, size: slice.size as u64 }
    }
}

/// A launch with what its bindings are.
struct RecordedDispatch {
    launch: Launch,
    ranges: Vec<BufferRange>,
    /// `None` if it was not compiled yet when it was recorded.
    pipeline: Option<Arc<Pipeline>>,
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
    /// Copies this many bytes from the start of one buffer, or of a part of one, to that of another.
    Copy { from: (wgpu::Buffer, u64), to: (wgpu::Buffer, u64), size: u64 },
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
    pub bind_groups: BindGroups,
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
        let (commands, to_map, to_map_again) = (Vec::new(), Vec::new(), Vec::new());
        Recorder {
            device,
            queue,
            profiler,
            pipelines,
            bind_groups,
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

    fn copy(&mut self, from: (&wgpu::Buffer, u64), to: (&wgpu::Buffer, u64), size: u64) {
        let whole = |(buffer, offset): (&wgpu::Buffer, u64)| (buffer.clone(), offset);
        self.commands.push(Command::Copy { from: whole(from), to: whole(to), size });
    }

    /// Records copying from memory of the host.
    pub fn write(&mut self, from: &wgpu::Buffer, to: BufferRange) {
        self.uploaded += to.size as usize;
        self.copy((from, 0), (&to.buffer, to.offset), from.size());
    }

    /// Records copying a part to the host.
    pub fn read(&mut self, range: &BufferRange, into: &Staging) {
        let size = range.size.next_multiple_of(4);
        self.copy((&range.buffer, range.offset), (&into.buffer, 0), size);
        self.to_map.push(into.clone());
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
            match &group[0] {
                Command::Kernel { .. } => self.encode_pass(&mut encoder, group),
                Command::Clear(BufferRange { buffer, offset, size, .. }) => {
                    encoder.clear_buffer(buffer, *offset, Some(size.next_multiple_of(4)));
                }
                Command::Copy { from, to, size } => {
                    encoder.copy_buffer_to_buffer(&from.0, from.1, &to.0, to.1, Some(*size));
                }
            }
        }
        encoder
    }

    fn encode_pass(&mut self, encoder: &mut wgpu::CommandEncoder, kernels: &[Command]) {
        let timestamp_writes = self.timestamps.as_mut().map(Timestamps::pass);
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
        for kernel in kernels {
            let Command::Kernel { name, cost, timed, launches } = kernel else {
                unreachable!("one of a group of kernels")
            };
            let timestamps = self.timestamps.as_mut().filter(|_| *timed);
            let mark = timestamps.map(|timestamps| timestamps.begin_kernel(&mut pass, name, *cost));
            for dispatch in launches {
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
            }
            if let (Some(timestamps), Some(mark)) = (&self.timestamps, mark) {
                timestamps.end_kernel(&mut pass, mark);
            }
        }
    }
}
