//! The only module that uses wgpu: adapters, buffers, pipelines, command recording, timestamps.
//!
//! Ops describe their work as a [`Plan`]; [`Gpu::run`] records it. Nothing waits for the GPU except [`Gpu::download`],
//! [`PendingReadback::wait`] and [`Gpu::synchronize`]. Without the feature `gpu`, [`Gpu`] is an uninhabited type, so
//! the rest of the library needs no conditional compilation.

mod plan;
#[cfg(feature = "testing")]
mod testing;

#[cfg(feature = "gpu")]
mod adapter;
#[cfg(feature = "gpu")]
mod alloc;
#[cfg(feature = "gpu")]
mod barriers;
#[cfg(feature = "gpu")]
mod bind_groups;
#[cfg(feature = "gpu")]
mod checked;
#[cfg(feature = "gpu")]
mod clock;
#[cfg(feature = "gpu")]
mod context;
#[cfg(all(feature = "gpu", not(target_vendor = "apple")))]
mod copy_queues;
#[cfg(all(feature = "gpu", target_vendor = "apple"))]
#[path = "no_copy_queues.rs"]
mod copy_queues;
#[cfg(feature = "gpu")]
mod encoder;
#[cfg(all(feature = "gpu", target_os = "linux"))]
mod exported;
#[cfg(feature = "gpu")]
mod memory;
#[cfg(feature = "gpu")]
mod params;
#[cfg(feature = "gpu")]
mod pipeline_cache;
#[cfg(feature = "gpu")]
mod pipelines;
#[cfg(feature = "gpu")]
mod pool;
#[cfg(feature = "gpu")]
mod readback;
#[cfg(feature = "gpu")]
mod recorder;
#[cfg(feature = "gpu")]
mod shader;
#[cfg(feature = "gpu")]
mod subgroup_barriers;
#[cfg(feature = "gpu")]
mod submit;
#[cfg(feature = "gpu")]
mod submitter;
#[cfg(feature = "gpu")]
mod timestamps;
#[cfg(feature = "gpu")]
mod transfer;
#[cfg(feature = "gpu")]
mod translate;

#[cfg(not(feature = "gpu"))]
mod stub;

#[cfg(feature = "testing")]
pub use testing::gpu_for_tests;

pub use plan::{
    Buffer, ChoiceCache, GpuModel, INCLUDES, Interface, Launch, Limits, Operand, PARAMS_BYTES, Param, ParamValue, Plan,
    Shader, Value, buffer, grid, param,
};

#[cfg(feature = "gpu")]
pub use {
    adapter::adapters,
    checked::check_launch,
    context::Gpu,
    pool::GpuSlice,
    readback::{MappedBytes, PendingReadback},
    shader::{render, source_of},
    translate::{CheckedShader, translate},
};

#[cfg(not(feature = "gpu"))]
pub use stub::{Gpu, GpuSlice, MappedBytes, PendingReadback, adapters, check_launch, translate};

use crate::units;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// A shader error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WgslError {
    /// Line in the WGSL text, counted from 1, if known.
    pub line: Option<usize>,
    pub message: String,
}

/// Which adapter to open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdapterChoice {
    /// Position in [`adapters`]' order; `None` takes the first hardware adapter.
    pub index: Option<usize>,
    /// Whether a software adapter is allowed.
    pub allow_software: bool,
    /// Whether to use only WebGPU's default limits, for tests.
    pub default_limits: bool,
    /// Size limit of a buffer, bytes; `None` for the adapter's. For tests.
    pub buffer_bytes: Option<u64>,
    /// Memory limit, bytes; `None` for all of it.
    pub memory_bytes: Option<usize>,
    /// Folder of the shader cache; `None` disables it. It can be deleted at any time.
    pub cache: Option<PathBuf>,
}

/// One adapter, as `rustyflow devices` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdapterInfo {
    /// N of `--device gpu:N`.
    pub index: usize,
    pub name: String,
    /// "discrete", "integrated", "virtual", "software" or "other".
    pub kind: &'static str,
    /// "vulkan", "metal" or "dx12".
    pub backend: String,
    pub driver: String,
    /// Dedicated memory, bytes; `None` if unknown (only Vulkan reports it).
    pub memory_bytes: Option<u64>,
    pub max_buffer_bytes: u64,
    pub max_binding_bytes: u64,
    pub workgroup_memory_bytes: u32,
    pub max_workgroup_threads: u32,
    pub subgroup_size: [u32; 2],
    /// Supported features among "f16", "subgroups", "timestamps", "cooperative-matrix", "pipeline-cache".
    pub features: Vec<&'static str>,
}

/// Its name, memory and limits, and features: three lines.
impl fmt::Display for AdapterInfo {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [low, high] = self.subgroup_size;
        let subgroups = if low == high { low.to_string() } else { format!("{low} to {high}") };
        let memory = self.memory_bytes.map_or("memory not known".into(), |m| format!("{} of memory", units::bytes(m)));
        writeln!(f, "gpu:{}    {} ({}, {}, driver {})", self.index, self.name, self.kind, self.backend, self.driver)?;
        writeln!(
            f,
            "         {memory}; largest buffer {}, binding {}; workgroups of {} threads with {}; subgroups of \
            {subgroups}",
            units::bytes(self.max_buffer_bytes),
            units::bytes(self.max_binding_bytes),
            self.max_workgroup_threads,
            units::bytes(u64::from(self.workgroup_memory_bytes)),
        )?;
        write!(f, "         {}", self.features.join(", "))
    }
}

impl AdapterInfo {
    /// Whether it computes on the CPU.
    pub fn is_software(&self) -> bool {
        self.kind == "software"
    }
}
