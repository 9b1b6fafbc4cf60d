//! Where tensors live.

use super::dry_run::{DryRun, DrySlice};
use super::segments::Segments;
use super::source::Unread;
use crate::cpu::{self, CpuSlice};
use crate::gpu::{AdapterInfo, Gpu, GpuSlice, Limits};
use crate::profile::{MemoryKind, MemoryStats, Profiler};
use crate::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// Submits that may be unfinished: enough that a GPU never runs dry, few enough that Ctrl-C acts at once.
const SUBMITS_IN_FLIGHT: usize = 6;

/// The processor, or an opened GPU.
#[derive(Debug, Clone)]
pub enum Device {
    Cpu,
    Gpu(Gpu),
    /// Computes nothing, and sees what would be: `DryRun`.
    #[doc(hidden)]
    DryRun(Arc<DryRun>),
}

impl Device {
    /// The CPU, and the GPU if there is one: [`crate::gpu::gpu_for_tests`].
    #[cfg(feature = "testing")]
    pub fn for_tests() -> Vec<Device> {
        [Device::Cpu].into_iter().chain(crate::gpu::gpu_for_tests().map(Device::Gpu)).collect()
    }

    /// Whether both mean the same place.
    pub fn same(&self, other: &Device) -> bool {
        match (self, other) {
            (Device::Cpu, Device::Cpu) => true,
            (Device::Gpu(a), Device::Gpu(b)) => a.same(b),
            (Device::DryRun(a), Device::DryRun(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The device whose memory is the host's, beside this one.
    pub fn host(&self) -> Device {
        match self {
            Device::Cpu | Device::Gpu(_) => Device::Cpu,
            Device::DryRun(device) => Device::DryRun(device.host()),
        }
    }

    /// Whether it is a GPU, hardware or software.
    pub fn is_gpu(&self) -> bool {
        match self {
            Device::Cpu => false,
            Device::Gpu(_) => true,
            Device::DryRun(device) => device.is_gpu(),
        }
    }

    /// Whether its tensors have values.
    pub fn has_values(&self) -> bool {
        !matches!(self, Device::DryRun(_))
    }

    /// The adapter of a GPU.
    pub fn adapter(&self) -> Option<&AdapterInfo> {
        match self {
            Device::Cpu | Device::DryRun(_) => None,
            Device::Gpu(gpu) => Some(gpu.info()),
        }
    }

    /// "cpu" or "NVIDIA H200 (vulkan)": without what may differ from one process to the next.
    pub fn name(&self) -> String {
        self.adapter().map_or("cpu".into(), |info| format!("{} ({})", info.name, info.backend))
    }

    /// "cpu (2 threads)" or "gpu:0 NVIDIA H200 (vulkan)".
    pub fn describe(&self) -> String {
        match self.adapter() {
            None => format!("cpu ({} threads)", cpu::threads()),
            Some(info) => format!("gpu:{} {}", info.index, self.name()),
        }
    }

    /// What kernels may use.
    pub fn limits(&self) -> &Limits {
        match self {
            Device::Cpu => &Limits::CPU,
            Device::Gpu(gpu) => gpu.limits(),
            Device::DryRun(device) => device.limits(),
        }
    }

    /// Begins a training step; `profile_kernels` puts timestamps around every kernel of it.
    pub fn begin_step(&self, profile_kernels: bool) {
        self.time_kernels(profile_kernels);
    }

    /// Times every kernel by itself from now on, which slows a GPU a little, or only passes. False if the GPU has no
    /// timestamps; the CPU always times its kernels.
    pub fn time_kernels(&self, on: bool) -> bool {
        match self {
            Device::Cpu | Device::DryRun(_) => true,
            Device::Gpu(gpu) => gpu.time_kernels(on),
        }
    }

    /// Whether it is a GPU that is no program on the processor.
    pub fn is_hardware_gpu(&self) -> bool {
        self.adapter().is_some_and(|adapter| !adapter.is_software())
    }

    /// Ends a training step: the device gets work before it runs dry, and the host does not run far ahead of it.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn end_step(&self) -> Result<()> {
        match self {
            Device::Cpu | Device::DryRun(_) => Ok(()),
            Device::Gpu(gpu) => gpu.flush_if_idle().and_then(|()| gpu.throttle(SUBMITS_IN_FLIGHT)),
        }
    }

    /// Hands over what is recorded, of which something is awaited. Does not wait.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn submit(&self) -> Result<()> {
        match self {
            Device::Cpu | Device::DryRun(_) => Ok(()),
            Device::Gpu(gpu) => gpu.submit(),
        }
    }

    /// Whether its kernels load and store f16. The CPU's compute on copies that are f32, which saves nothing.
    pub fn has_f16(&self) -> bool {
        self.limits().f16
    }

    /// Whether large f32 GEMMs run as split-fp16 on tensor cores: as precise as fused multiply-adds, but not the same
    /// bits.
    pub fn split_fp16(&self) -> bool {
        self.limits().split_fp16
    }

    /// Where the times of its kernels, and of what the host does for it, are booked.
    pub fn profiler(&self) -> &Profiler {
        match self {
            Device::Cpu | Device::DryRun(_) => cpu::profiler(),
            Device::Gpu(gpu) => gpu.profiler(),
        }
    }

    pub(crate) fn alloc(&self, size_bytes: usize, kind: MemoryKind) -> Result<Storage> {
        Ok(match self {
            Device::Cpu => Storage::Cpu(CpuSlice::alloc(size_bytes, kind)?),
            Device::Gpu(gpu) => Storage::Gpu(gpu.clone(), gpu.alloc(size_bytes, kind)?),
            Device::DryRun(device) => Storage::DryRun(DrySlice::new(device, size_bytes, kind)),
        })
    }

    /// Fails on a GPU that cannot store f16: no shader that reads or writes such a tensor would compile.
    pub(super) fn expect_f16(&self) -> Result<()> {
        match self.adapter() {
            Some(adapter) if !self.has_f16() => Err(Error::GpuLimit {
                what: "a tensor of type f16".into(),
                needed: "16-bit floats in shaders".into(),
                adapter: adapter.name.clone(),
                limit: "32-bit floats only".into(),
                hint: "set device.precision = \"f32\"".into(),
            }),
            _ => Ok(()),
        }
    }

    /// The most memory that tensors can have, bytes, if it is known.
    pub fn memory_bytes(&self) -> Option<u64> {
        match self {
            Device::Cpu => cpu::available_memory_bytes(),
            Device::Gpu(gpu) => gpu.memory_bytes(),
            Device::DryRun(_) => None,
        }
    }

    /// What its pool holds; the CPU has one for the process. What the CPU's kernels need while they run is not in it.
    pub fn memory(&self) -> MemoryStats {
        match self {
            Device::Cpu => cpu::memory(),
            Device::Gpu(gpu) => gpu.memory(),
            Device::DryRun(device) => device.memory(),
        }
    }

    /// Lets the peak of [`Device::memory`] begin anew, with what is in use now.
    pub fn reset_peak_memory(&self) {
        match self {
            Device::Cpu => cpu::reset_peak_memory(),
            Device::Gpu(gpu) => gpu.reset_peak_memory(),
            Device::DryRun(device) => device.reset_peak_memory(),
        }
    }

    /// Waits until everything recorded so far is computed.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Device::Cpu | Device::DryRun(_) => Ok(()),
            Device::Gpu(gpu) => gpu.synchronize(),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Device::Cpu => write!(f, "cpu"),
            Device::Gpu(gpu) => write!(f, "{gpu:?}"),
            Device::DryRun(_) => write!(f, "dry run"),
        }
    }
}

/// A part of a device's memory.
#[derive(Clone)]
pub enum Storage {
    Cpu(CpuSlice),
    Gpu(Gpu, GpuSlice),
    #[doc(hidden)]
    DryRun(DrySlice),
    #[doc(hidden)]
    Segments(Segments),
    #[doc(hidden)]
    Unread(Unread),
}

impl Storage {
    pub(crate) fn device(&self) -> Device {
        match self {
            Storage::Cpu(_) | Storage::Unread(_) => Device::Cpu,
            Storage::Gpu(gpu, _) => Device::Gpu(gpu.clone()),
            Storage::DryRun(slice) => Device::DryRun(slice.device().clone()),
            Storage::Segments(segments) => segments.device(),
        }
    }

    pub(crate) fn slice(&self, offset: usize, size: usize) -> Storage {
        match self {
            Storage::Cpu(slice) => Storage::Cpu(slice.slice(offset, size)),
            Storage::Gpu(gpu, slice) => Storage::Gpu(gpu.clone(), slice.slice(offset, size)),
            Storage::DryRun(slice) => Storage::DryRun(slice.clone()),
            Storage::Segments(segments) => segments.slice(offset, size),
            Storage::Unread(unread) => Storage::Unread(unread.slice(offset, size)),
        }
    }

    /// Whether no other slice shares the buffer.
    pub(crate) fn is_unique(&self) -> bool {
        match self {
            Storage::Cpu(slice) => slice.is_unique(),
            Storage::Gpu(_, slice) => slice.is_unique(),
            Storage::DryRun(slice) => slice.is_unique(),
            Storage::Segments(segments) => segments.is_unique(),
            Storage::Unread(_) => false,
        }
    }

    pub(crate) fn cpu(&self) -> &CpuSlice {
        match self {
            Storage::Cpu(slice) => slice,
            _ => unreachable!("all operands were checked to be on one device, in one buffer each"),
        }
    }

    pub(crate) fn gpu(&self) -> &GpuSlice {
        match self {
            Storage::Gpu(_, slice) => slice,
            _ => unreachable!("all operands were checked to be on one device, in one buffer each"),
        }
    }
}
