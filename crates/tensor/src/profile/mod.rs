//! Where the time goes: every kernel's time, work and traffic, and the host's spans between them; and the memory.
//!
//! Each device has a [`Profiler`]. CPU kernels are timed as they run; GPU kernels by timestamp queries that arrive
//! later (`gpu::timestamps`). What is booked there also goes to a [`Trace`], if there is one.

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

/// The arithmetic and the memory traffic that a kernel cannot do without.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations; a fused multiply-add counts as two.
    pub flops: f64,
    /// Bytes read and written once each.
    pub bytes: f64,
}

/// What the runs of one kernel add up to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KernelTotal {
    pub calls: u64,
    pub seconds: f64,
    pub flops: f64,
    pub bytes: f64,
}

/// What the host does between kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Span {
    /// Measuring the matmul kernels of a GPU before anything else runs on it.
    Autotune,
    /// Waiting for the loader's next batch.
    Data,
    /// Compiling shaders, once per variant.
    Compile,
    /// Recording what a GPU is to do, and encoding it for the driver, which another thread does meanwhile.
    Encode,
    /// Blocked until the GPU has finished something.
    Wait,
}

impl Span {
    fn name(self) -> &'static str {
        match self {
            Span::Autotune => "autotune",
            Span::Data => "data",
            Span::Compile => "compile",
            Span::Encode => "encode",
            Span::Wait => "wait",
        }
    }
}

/// What was measured on one device.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Per kernel; on a GPU only of the steps that were sampled with a timestamp around each kernel.
    pub kernels: BTreeMap<&'static str, KernelTotal>,
    /// How often each kernel was recorded for a GPU, all steps.
    pub recorded: BTreeMap<&'static str, u64>,
    /// Time the GPU spent inside compute passes, all steps.
    pub gpu_busy_seconds: f64,
    pub spans: BTreeMap<Span, f64>,
}

impl Profile {
    /// Both together.
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

/// The measurements of one device since they were last taken. Several threads may book there.
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

    /// Takes the measurements and starts from nothing: what follows can be left out of them. A trace goes on.
    pub fn take(&self) -> Profile {
        std::mem::take(&mut self.measured().profile)
    }

    /// Puts back what [`Profiler::take`] took; what was measured in between is dropped.
    pub fn restore(&self, profile: Profile) {
        self.measured().profile = profile;
    }

    /// From here on what is booked goes to this trace too, or to none.
    pub fn set_trace(&self, trace: Option<Arc<Trace>>) {
        self.measured().trace = trace;
    }

    /// Where what is booked goes too.
    pub fn trace(&self) -> Option<Arc<Trace>> {
        self.measured().trace.clone()
    }

    /// Adds one run of a kernel. When it started is for the trace.
    pub fn add_kernel(&self, name: &'static str, started: Option<Instant>, elapsed: Duration, cost: Cost) {
        let mut measured = self.measured();
        measured.trace(Track::Kernels, name, started, elapsed);
        let total = measured.profile.kernels.entry(name).or_default();
        total.calls += 1;
        total.seconds += elapsed.as_secs_f64();
        total.flops += cost.flops;
        total.bytes += cost.bytes;
    }

    /// Counts a kernel that a GPU is to run.
    pub fn count_kernel(&self, name: &'static str) {
        *self.measured().profile.recorded.entry(name).or_default() += 1;
    }

    /// Adds a compute pass, in which the GPU was busy. When it started is for the trace.
    pub fn add_pass(&self, started: Option<Instant>, elapsed: Duration) {
        let mut measured = self.measured();
        measured.trace(Track::Passes, "pass", started, elapsed);
        measured.profile.gpu_busy_seconds += elapsed.as_secs_f64();
    }

    /// Runs `body` and books its time under `span`.
    pub fn span<T>(&self, span: Span, body: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = body();
        self.add_span(span, start, start.elapsed());
        value
    }

    /// Books the time after `started` under `span`.
    pub fn add_span(&self, span: Span, started: Instant, elapsed: Duration) {
        self.add_span_to(Track::Host, span, started, elapsed);
    }

    /// [`Profiler::add_span`] of the thread that submits, beside what the host does otherwise.
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
