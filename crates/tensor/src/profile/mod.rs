//! Profiling: time, FLOPs and memory traffic by kernel, host spans between kernels, and memory by kind.
//!
//! Each device has a [`Profiler`]. CPU kernels are timed as they run; GPU kernels by timestamp queries that arrive
//! later (`gpu::timestamps`). Measurements also go to a [`Trace`], if there is one.

mod memory;
mod perfetto;
mod report;
mod roofline;
mod start_up;
mod trace;
mod wall_clock;

pub(crate) use memory::MemoryCount;
pub use memory::{BytesByKind, MemoryKind, MemoryStats};
pub use report::{HostTime, KernelRow, Report};
pub use roofline::{BesidePeaks, Bound, Roofline};
pub use start_up::{Ahead, StartUp};
pub use trace::{Trace, Track};
pub use wall_clock::{Phase, WallClock, WallTime};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The minimum FLOPs and memory traffic of a kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations; an FMA counts as two.
    pub flops: f64,
    /// Bytes read and written once each.
    pub bytes: f64,
}

/// Totals of one kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KernelTotal {
    pub calls: u64,
    pub seconds: f64,
    pub flops: f64,
    pub bytes: f64,
}

/// Host work between kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Span {
    /// Autotuning the GEMMs of a GPU at its first use.
    Autotune,
    /// Waiting for the loader's next batch.
    Data,
    /// Compiling shaders, once per variant.
    Compile,
    /// Recording kernels, and encoding them on another thread.
    Encode,
    /// Waiting for the GPU.
    Wait,
    /// Updating parameters in host memory, on the CPU.
    Offload,
}

impl Span {
    fn name(self) -> &'static str {
        match self {
            Span::Autotune => "autotune",
            Span::Data => "data",
            Span::Compile => "compile",
            Span::Encode => "encode",
            Span::Wait => "wait",
            Span::Offload => "offload",
        }
    }
}

/// Measurements of one device.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// By kernel; on a GPU, only for sampled steps, in which each kernel has timestamps.
    pub kernels: BTreeMap<&'static str, KernelTotal>,
    /// Number of times each kernel was recorded for a GPU, in all steps.
    pub recorded: BTreeMap<&'static str, u64>,
    /// Time in compute passes of the GPU, in all steps.
    pub gpu_busy_seconds: f64,
    pub spans: BTreeMap<Span, f64>,
}

impl Profile {
    /// The sum of both.
    pub fn joined(mut self, other: Profile) -> Profile {
        for (name, more) in other.kernels {
            let total = self.kernels.entry(name).or_default();
            total.calls = total.calls.saturating_add(more.calls);
            total.seconds += more.seconds;
            total.flops += more.flops;
            total.bytes += more.bytes;
        }
        for (name, count) in other.recorded {
            let total = self.recorded.entry(name).or_default();
            *total = total.saturating_add(count);
        }
        for (span, seconds) in other.spans {
            *self.spans.entry(span).or_default() += seconds;
        }
        self.gpu_busy_seconds += other.gpu_busy_seconds;
        self
    }
}

/// Measurements of one device since the last [`Profiler::take`]. Threads may share it.
#[derive(Debug, Default)]
pub struct Profiler(Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    profile: Profile,
    /// Off if `None`.
    trace: Option<Arc<Trace>>,
}

impl Measured {
    fn trace(&self, track: Track, name: &'static str, started: Option<Instant>, elapsed: Duration) {
        if let (Some(trace), Some(started)) = (&self.trace, started) {
            trace.add(track, name, started, elapsed);
        }
    }
}

impl Profiler {
    pub const fn new() -> Profiler {
        let profile = Profile {
            kernels: BTreeMap::new(),
            recorded: BTreeMap::new(),
            gpu_busy_seconds: 0.0,
            spans: BTreeMap::new(),
        };
        Profiler(Mutex::new(Measured { profile, trace: None }))
    }

    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the measurements and resets them, so that later work can be excluded. A trace continues.
    pub fn take(&self) -> Profile {
        std::mem::take(&mut self.measured().profile)
    }

    /// Restores the measurements of [`Profiler::take`] and drops those made since.
    pub fn restore(&self, profile: Profile) {
        self.measured().profile = profile;
    }

    /// Sets the trace that also receives the measurements, or none.
    pub fn set_trace(&self, trace: Option<Arc<Trace>>) {
        self.measured().trace = trace;
    }

    /// The trace, if there is one.
    pub fn trace(&self) -> Option<Arc<Trace>> {
        self.measured().trace.clone()
    }

    /// Adds one run of a kernel. `started` is for the trace.
    pub fn add_kernel(&self, name: &'static str, started: Option<Instant>, elapsed: Duration, cost: Cost) {
        let mut measured = self.measured();
        measured.trace(Track::Kernels, name, started, elapsed);
        let total = measured.profile.kernels.entry(name).or_default();
        total.calls += 1;
        total.seconds += elapsed.as_secs_f64();
        total.flops += cost.flops;
        total.bytes += cost.bytes;
    }

    /// Counts a kernel recorded for a GPU.
    pub fn count_kernel(&self, name: &'static str) {
        *self.measured().profile.recorded.entry(name).or_default() += 1;
    }

    /// Adds the GPU time of a compute pass. `started` is for the trace.
    pub fn add_pass(&self, started: Option<Instant>, elapsed: Duration) {
        let mut measured = self.measured();
        measured.trace(Track::Passes, "pass", started, elapsed);
        measured.profile.gpu_busy_seconds += elapsed.as_secs_f64();
    }

    /// Runs `body` and adds its time to `span`.
    pub fn span<T>(&self, span: Span, body: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = body();
        self.add_span(span, start, start.elapsed());
        value
    }

    /// Adds `elapsed` to `span`.
    pub fn add_span(&self, span: Span, started: Instant, elapsed: Duration) {
        self.add_span_to(Track::Host, span, started, elapsed);
    }

    /// [`Profiler::add_span`] for the submitting thread, which runs concurrently with the host.
    #[cfg(feature = "gpu")]
    pub(crate) fn add_submit(&self, span: Span, started: Instant, elapsed: Duration) {
        self.add_span_to(Track::Submits, span, started, elapsed);
    }

    fn add_span_to(&self, track: Track, span: Span, started: Instant, elapsed: Duration) {
        let mut measured = self.measured();
        measured.trace(track, span.name(), Some(started), elapsed);
        *measured.profile.spans.entry(span).or_default() += elapsed.as_secs_f64();
    }
}
