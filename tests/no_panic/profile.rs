//! Measurements of nothing, and times that no run takes.

use super::{Defined, HUGE, Refused, Row};
use rustyflow::profile::{
    Cost, KernelRow, KernelTotal, MemoryStats, Phase, Profile, Profiler, Report, Roofline, Span, Trace, Track,
    WallClock,
};
use rustyflow::{Error, Result};
use std::io::{self, Write};
use std::time::{Duration, Instant};

const NOTHING: Cost = Cost { flops: f64::NAN, bytes: f64::INFINITY };
const NO_PEAKS: Roofline = Roofline { dtype: "", tflops: 0.0, gb_per_s: f64::NAN };

/// A kernel that never ran, and as many calls of another as there can be.
fn odd() -> Profile {
    let mut profile = Profile { gpu_busy_seconds: -1.0, ..Profile::default() };
    profile.kernels.insert("none", KernelTotal::default());
    profile.kernels.insert("all", KernelTotal { calls: u64::MAX, seconds: f64::NAN, flops: 0.0, bytes: 0.0 });
    profile.recorded.insert("all", u64::MAX);
    profile
}

fn odd_report() -> Report {
    Report::new(&odd(), true, f64::NAN, -1.0, MemoryStats::default())
}

fn trace() -> Trace {
    Trace::new(Instant::now(), "")
}

fn ended(trace: &Trace) -> Result<()> {
    trace.finish().map_err(|e| Error::Invalid(e.to_string()))
}

/// A disk without room.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn rows() -> Vec<Row> {
    vec![
        ("Profile::joined", Defined, |_| {
            assert_eq!(odd().joined(odd()).kernels["all"].calls, u64::MAX);
            Ok(())
        }),
        ("Profiler::restore", Defined, |_| {
            Profiler::new().restore(odd());
            Ok(())
        }),
        ("Profiler::set_trace", Defined, |_| {
            Profiler::new().set_trace(None);
            Ok(())
        }),
        ("Profiler::add_kernel", Defined, |_| {
            let profiler = Profiler::new();
            profiler.set_trace(Some(trace().into()));
            profiler.add_kernel("", Some(Instant::now()), Duration::MAX, NOTHING);
            profiler.add_kernel("", None, Duration::MAX, NOTHING);
            Ok(())
        }),
        ("Profiler::count_kernel", Defined, |_| {
            Profiler::new().count_kernel("");
            Ok(())
        }),
        ("Profiler::add_pass", Defined, |_| {
            Profiler::new().add_pass(None, Duration::MAX);
            Ok(())
        }),
        ("Profiler::span", Refused, |_| Profiler::new().span(Span::Wait, || Err(Error::Invalid("by the body".into())))),
        ("Profiler::add_span", Defined, |_| {
            Profiler::new().add_span(Span::Data, Instant::now(), Duration::MAX);
            Ok(())
        }),
        ("Report::new", Defined, |_| {
            assert!(!odd_report().text().is_empty());
            Ok(())
        }),
        ("Report::set_peaks", Defined, |_| {
            let mut report = odd_report();
            report.set_peaks(NO_PEAKS);
            assert!(!report.text().is_empty());
            Ok(())
        }),
        ("Roofline::over", Defined, |_| {
            let share = |kernel: &KernelRow| NO_PEAKS.over(kernel).compute;
            assert!(odd_report().kernels.iter().map(share).all(|share| !share.is_finite()));
            Ok(())
        }),
        ("Trace::new", Defined, |_| ended(&Trace::new(Instant::now() + Duration::from_secs(1 << 30), ""))),
        ("Trace::add", Defined, |_| {
            let trace = trace();
            trace.add(Track::Kernels, "", Instant::now(), Duration::MAX);
            trace.add(Track::Kernels, "", Instant::now(), Duration::MAX);
            ended(&trace)
        }),
        ("Trace::add_step", Defined, |_| {
            let trace = trace();
            trace.add_step(HUGE, Instant::now() + Duration::from_secs(1 << 30));
            ended(&trace)
        }),
        ("Trace::set_clock_error", Defined, |_| {
            let trace = trace();
            trace.set_clock_error(Duration::MAX);
            ended(&trace)
        }),
        ("Trace::write_to", Refused, |_| {
            let trace = trace();
            trace.write_to(Box::new(Full));
            ended(&trace)
        }),
        ("WallClock::new", Defined, |_| {
            let later = Instant::now() + Duration::from_secs(1 << 30);
            assert!(WallClock::new(later, Phase::Device, None).times().total >= 0.0);
            Ok(())
        }),
        ("WallClock::enter", Defined, |_| {
            let mut clock = WallClock::new(Instant::now(), Phase::Device, Some(trace().into()));
            clock.enter(Phase::Device);
            Ok(())
        }),
        ("WallClock::set_apart", Defined, |_| {
            let mut clock = WallClock::new(Instant::now(), Phase::Device, None);
            clock.set_apart(Phase::Autotuning, Duration::MAX);
            assert!(clock.times().total < 3600.0);
            Ok(())
        }),
        ("WallClock::spent", Defined, |_| {
            let clock = WallClock::new(Instant::now(), Phase::Device, None);
            assert_eq!(clock.spent(Phase::Sampling), Duration::ZERO);
            Ok(())
        }),
    ]
}
