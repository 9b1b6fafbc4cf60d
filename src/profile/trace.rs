//! When everything happened: an optional record of each kernel, each thing the host did, and each phase of a run, in
//! the form that Chrome and Perfetto show.
//!
//! Format: "Trace Event Format" of Chromium; complete events (`"ph":"X"`), times in microseconds since the run began.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Events that are kept at most: 24 MB while they are recorded, some 90 MB as a file, which viewers still open.
const MOST_EVENTS: usize = 1_000_000;

/// A row of the picture. What is on one neither overlaps nor nests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Track {
    /// The phases of the wall clock.
    Phases,
    /// Training steps, while the host records or computes them.
    Steps,
    /// What the host does between kernels.
    Host,
    /// Compute passes of a GPU, each of many kernels.
    Passes,
    /// Kernels of the device; on a GPU those of sampled steps.
    Kernels,
}

impl Track {
    const ALL: [Track; 5] = [Track::Phases, Track::Steps, Track::Host, Track::Passes, Track::Kernels];

    /// Of the process and the thread as which a viewer shows it.
    fn ids(self) -> (u32, u32) {
        match self {
            Track::Phases => (1, 1),
            Track::Steps => (1, 2),
            Track::Host => (1, 3),
            Track::Passes => (2, 1),
            Track::Kernels => (2, 2),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Track::Phases => "phases",
            Track::Steps => "steps",
            Track::Host => "host",
            Track::Passes => "passes",
            Track::Kernels => "kernels",
        }
    }
}

struct Event {
    /// Nanoseconds since the trace began.
    start: u64,
    duration: u64,
    /// Which step; 0 of all else.
    step: u32,
    /// Place in the list of names.
    name: u16,
    track: Track,
}

#[derive(Default)]
struct Recording {
    events: Vec<Event>,
    names: Vec<&'static str>,
    ids: HashMap<&'static str, u16>,
    /// When an event was left out first.
    full_at: Option<u64>,
    clock_error: Option<Duration>,
}

/// A record that is being made. Several threads may add to it.
pub struct Trace {
    began: Instant,
    recording: Mutex<Recording>,
}

impl Trace {
    /// One whose time begins at `began`.
    pub fn new(began: Instant) -> Trace {
        Trace { began, recording: Mutex::default() }
    }

    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what took so long from `start` on, unless the trace is full.
    pub fn add(&self, track: Track, name: &'static str, start: Instant, elapsed: Duration) {
        self.add_event(track, name, start, elapsed, 0);
    }

    /// Adds a training step, which ends now.
    pub fn add_step(&self, step: usize, start: Instant) {
        self.add_event(Track::Steps, "step", start, start.elapsed(), step);
    }

    fn add_event(&self, track: Track, name: &'static str, start: Instant, elapsed: Duration, step: usize) {
        let start = start.saturating_duration_since(self.began).as_nanos() as u64;
        let mut recording = self.recording();
        if recording.events.len() >= MOST_EVENTS {
            recording.full_at.get_or_insert(start);
            return;
        }
        let Recording { names, ids, .. } = &mut *recording;
        let name = *ids.entry(name).or_insert_with(|| {
            names.push(name);
            (names.len() - 1) as u16
        });
        let (duration, step) = (elapsed.as_nanos() as u64, step as u32);
        recording.events.push(Event { start, duration, step, name, track });
    }

    /// Says by how much the times of a GPU may be off from those of the host.
    pub fn set_clock_error(&self, most: Duration) {
        self.recording().clock_error = Some(most);
    }

    /// When the trace was full, if it was, and how many events it then had.
    pub fn full(&self) -> Option<(Duration, usize)> {
        self.recording().full_at.map(|at| (Duration::from_nanos(at), MOST_EVENTS))
    }

    /// Writes all of it as JSON; `device` is what runs the kernels.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, device: &str, out: &mut impl Write) -> io::Result<()> {
        let mut recording = self.recording();
        // A viewer expects each row in its order; those of a GPU arrive late.
        recording.events.sort_by_key(|event| (event.track.ids(), event.start));
        let recording = &*recording;
        let mut other = serde_json::json!({ "producer": format!("rustyflow {}", env!("CARGO_PKG_VERSION")) });
        if let Some(error) = recording.clock_error {
            other["gpu_clock_error_us"] = (error.as_nanos() as f64 / 1e3).into();
        }
        write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[")?;
        let name = |kind: &str, (process, thread): (u32, u32), name: &str| {
            let args = serde_json::json!({ "name": name });
            format!("{{\"name\":\"{kind}\",\"ph\":\"M\",\"pid\":{process},\"tid\":{thread},\"args\":{args}}}")
        };
        write!(out, "{},\n{}", name("process_name", (1, 0), "host"), name("process_name", (2, 0), device))?;
        for track in Track::ALL {
            write!(out, ",\n{}", name("thread_name", track.ids(), track.name()))?;
        }
        if let Some(at) = recording.full_at {
            let (name, at) = (format!("full: {MOST_EVENTS} events"), microseconds(at));
            write!(out, ",\n{{\"name\":\"{name}\",\"ph\":\"i\",\"s\":\"g\",\"ts\":{at},\"pid\":1,\"tid\":1}}")?;
        }
        for event in &recording.events {
            write!(out, ",\n{}", recording.text(event))?;
        }
        out.write_all(b"]}\n")
    }
}

impl Recording {
    fn text(&self, event: &Event) -> String {
        let (process, thread) = event.track.ids();
        let (start, duration) = (microseconds(event.start), microseconds(event.duration));
        let args = if event.step > 0 { format!(",\"args\":{{\"step\":{}}}", event.step) } else { String::new() };
        format!(
            "{{\"name\":\"{}\",\"ph\":\"X\",\"ts\":{start},\"dur\":{duration},\"pid\":{process},\"tid\":{thread}\
             {args}}}",
            self.names[event.name as usize]
        )
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Trace of {} events", self.recording().events.len())
    }
}

/// Nanoseconds as microseconds, exactly.
fn microseconds(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn written(trace: &Trace) -> Value {
        let mut bytes = Vec::new();
        trace.write("cpu", &mut bytes).unwrap();
        serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&bytes)))
    }

    #[test]
    fn events_are_json_with_exact_times_in_the_order_of_their_start() {
        let began = Instant::now();
        let trace = Trace::new(began);
        let at = |nanoseconds| began + Duration::from_nanos(nanoseconds);
        trace.add(Track::Kernels, "softmax", at(2_000_007), Duration::from_nanos(1_500));
        trace.add(Track::Kernels, "matmul", at(1_000_000), Duration::from_nanos(999_999));
        trace.add(Track::Phases, "text and tokens", at(0), Duration::from_secs(1));
        let json = written(&trace);
        let events: Vec<&Value> = json["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").collect();
        let told: Vec<_> =
            events.iter().map(|e| (e["name"].as_str().unwrap(), e["ts"].clone(), e["dur"].clone())).collect();
        let expected = [("text and tokens", 0.0, 1e6), ("matmul", 1000.0, 999.999), ("softmax", 2000.007, 1.5)];
        assert_eq!(told, expected.map(|(name, ts, dur)| (name, ts.into(), dur.into())));
        assert_eq!([&events[0]["pid"], &events[1]["pid"], &events[1]["tid"]], [1, 2, 2]);
    }

    #[test]
    fn a_trace_without_events_is_json_too() {
        assert_eq!(written(&Trace::new(Instant::now()))["traceEvents"].as_array().unwrap().len(), 7);
    }

    #[test]
    fn a_trace_that_is_full_says_where_it_ends() {
        let began = Instant::now();
        let trace = Trace::new(began);
        for i in 0..=MOST_EVENTS as u64 {
            trace.add(Track::Kernels, "add", began + Duration::from_micros(i), Duration::ZERO);
        }
        assert_eq!(trace.full(), Some((Duration::from_secs(1), MOST_EVENTS)));
        let mut text = Vec::new();
        trace.write("cpu", &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("full: 1000000 events") && !text.contains("\"ts\":1000000.000,\"dur\""));
    }
}
