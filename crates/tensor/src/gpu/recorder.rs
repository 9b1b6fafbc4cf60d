//! Commands for the GPU, recorded as data.

use super::barriers::Access;
use super::copy_queues::PendingCopy;
use super::memory::Allocation;
use super::pipelines::{Pipeline, Pipelines};
use super::plan::Launch;
use super::pool::GpuSlice;
use super::readback::{Staging, UploadPool};
use crate::profile::{Cost, Profiler};
use std::sync::Arc;

/// A part of a memory. Unlike a [`GpuSlice`], it lets the pool reuse the memory for commands that are recorded later.
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
    /// The size of its binding: rounded up to a multiple of 16, so that a shader can read a tensor's last elements as a
    /// vec4.
    pub fn bound_bytes(&self) -> u64 {
        self.size.max(4).next_multiple_of(16)
    }

    /// An access to this number of bytes from its start.
    pub fn access(&self, bytes: u64, writes: bool) -> Access<'_> {
        let Allocation { memory, alias } = &*self.allocation;
        let bytes = [self.offset, self.offset + bytes];
        Access { memory: memory.id, alias, has_aliases: memory.has_aliases(), writes, bytes }
    }
}

/// A launch with what its bindings are.
pub(super) struct RecordedDispatch {
    pub launch: Launch,
    pub ranges: Vec<BufferRange>,
    /// `None` if it was not compiled yet when it was recorded.
    pub pipeline: Option<Arc<Pipeline>>,
}

impl RecordedDispatch {
    pub fn accesses(&self) -> impl Iterator<Item = Access<'_>> {
        let writes = self.launch.buffers.iter().map(|buffer| !buffer.operand.is_read_only());
        self.ranges.iter().zip(writes).map(|(range, writes)| range.access(range.bound_bytes(), writes))
    }
}

pub(super) enum Command {
    Kernel {
        name: &'static str,
        cost: Cost,
        /// Whether it has its own timestamps.
        timed: bool,
        launches: Vec<RecordedDispatch>,
    },
    /// Sets bytes to zero.
    Clear(BufferRange),
    /// Copies `size` bytes from the start of a buffer that the host has written.
    Write { from: wgpu::Buffer, to: BufferRange, size: u64 },
    /// Copies `size` bytes to the start of a buffer that the host will read.
    Read { from: BufferRange, to: wgpu::Buffer, size: u64 },
}

impl Command {
    /// Number of launches.
    pub fn launches(&self) -> usize {
        match self {
            Command::Kernel { launches, .. } => launches.len(),
            _ => 0,
        }
    }
}

/// The commands of a submit.
#[derive(Default)]
pub(super) struct Batch {
    pub commands: Vec<Command>,
    /// Staging buffers whose copy is recorded, to be mapped after the submit.
    pub to_map: Vec<Staging>,
    /// Buffers whose copy is recorded, to be written again after it.
    pub to_map_again: Vec<(wgpu::Buffer, UploadPool)>,
    /// Copies to the host that follow the submit.
    pub to_copy: Vec<Arc<PendingCopy>>,
    /// Whether the transfer queues wait for this submit.
    pub is_announced: bool,
    /// Recorded kernels, their FLOPs, and bytes to upload.
    pub kernels: usize,
    pub flops: f64,
    pub uploaded: usize,
    /// Whether there are shaders to compile.
    pub must_compile: bool,
    /// Whether its submission panics.
    #[cfg(test)]
    pub panics: bool,
}

/// The commands since the last submit.
pub(super) struct Recorder {
    profiler: Arc<Profiler>,
    pipelines: Arc<Pipelines>,
    /// Whether recorded kernels get their own timestamps.
    pub times_kernels: bool,
    pub batch: Batch,
}

impl Recorder {
    pub fn new(pipelines: Arc<Pipelines>, profiler: Arc<Profiler>) -> Recorder {
        Recorder { profiler, pipelines, times_kernels: false, batch: Batch::default() }
    }

    /// Records a kernel: its launches and their bindings.
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
        self.profiler.count_kernel(name);
        let batch = &mut self.batch;
        batch.must_compile |= launches.iter().any(|dispatch| dispatch.pipeline.is_none());
        batch.commands.push(Command::Kernel { name, cost, timed: self.times_kernels, launches });
        batch.kernels += 1;
        batch.flops += cost.flops;
    }

    pub fn clear(&mut self, range: BufferRange) {
        self.batch.commands.push(Command::Clear(range));
    }

    /// Records an upload from host memory.
    pub fn write(&mut self, from: &wgpu::Buffer, to: BufferRange) {
        self.batch.uploaded += to.size as usize;
        let size = to.size.next_multiple_of(4);
        self.batch.commands.push(Command::Write { from: from.clone(), to, size });
    }

    /// Records a read into host memory.
    pub fn read(&mut self, from: BufferRange, into: &Staging) {
        let size = from.size.next_multiple_of(4);
        self.batch.commands.push(Command::Read { from, to: into.buffer.clone(), size });
        self.batch.to_map.push(into.clone());
    }

    /// Records a copy to the host by a transfer queue.
    pub fn read_by_copy_queue(&mut self, copy: Arc<PendingCopy>) {
        self.batch.to_copy.push(copy);
    }

    /// Takes the recorded commands, if any.
    pub fn take(&mut self) -> Option<Batch> {
        let is_empty = self.batch.commands.is_empty() && self.batch.to_copy.is_empty();
        (!is_empty).then(|| std::mem::take(&mut self.batch))
    }
}
