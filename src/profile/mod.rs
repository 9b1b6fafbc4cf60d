//! Where the time goes: every kernel's time, work and traffic, and the host's spans between them; and the memory.
//!
//! One profile per thread, because one thread drives one device. CPU kernels are timed as they run; GPU kernels by
//! timestamp queries that arrive later (`gpu::timestamps`).

mod memory;
mod report;
mod roof;

pub use memory::{BytesByKind, MemoryKind, MemoryStats, current_memory_kind, memory_kind, size_text};
pub use report::{HostTime, KernelRow, Report};
pub use roof::{BesidePeaks, Bound, Roof};

use std::cell::RefCell;
use std::collections::BTreeMap;
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
    /// Waiting for the loader's next batch.
    Data,
    /// Compiling shaders, once per variant.
    Compile,
    /// Building and recording GPU commands.
    Encode,
    /// Blocked until the GPU has finished something.
    Wait,
}

/// Everything measured since the last [`reset`].
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

thread_local! {
    static PROFILE: RefCell<Profile> = RefCell::default();
}

/// Forgets all measurements of this thread.
pub fn reset() {
    PROFILE.take();
}

/// Takes this thread's measurements and starts from nothing, so that something else can be left out of them.
pub fn take() -> Profile {
    PROFILE.take()
}

/// Puts back what [`take`] took; what was measured in between is forgotten.
pub fn restore(profile: Profile) {
    PROFILE.set(profile);
}

/// A copy of this thread's measurements.
pub fn snapshot() -> Profile {
    PROFILE.with_borrow(Clone::clone)
}

/// Adds one run of a kernel.
pub fn add_kernel(name: &'static str, elapsed: Duration, cost: Cost) {
    PROFILE.with_borrow_mut(|p| {
        let total = p.kernels.entry(name).or_default();
        total.calls += 1;
        total.seconds += elapsed.as_secs_f64();
        total.flops += cost.flops;
        total.bytes += cost.bytes;
    });
}

/// Counts a kernel that a GPU is to run.
pub fn count_kernel(name: &'static str) {
    PROFILE.with_borrow_mut(|p| *p.recorded.entry(name).or_default() += 1);
}

/// Adds time that the GPU was busy.
pub fn add_gpu_busy(elapsed: Duration) {
    PROFILE.with_borrow_mut(|p| p.gpu_busy_seconds += elapsed.as_secs_f64());
}

/// Runs `body` and books its time under `span`.
pub fn span<T>(span: Span, body: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = body();
    add_span(span, start.elapsed());
    value
}

/// Books time under `span`.
pub fn add_span(span: Span, elapsed: Duration) {
    PROFILE.with_borrow_mut(|p| *p.spans.entry(span).or_default() += elapsed.as_secs_f64());
}
