//! An optional timeline of kernels, host activities and phases of a run, in Perfetto's format.
//!
//! A trace is a sequence of packets. Every event has two, its begin and its end, in nanoseconds since the start of the
//! run; event names are interned. Packets are written during the run, so a trace needs little memory, and a killed run
//! leaves a trace that ends with a complete packet.
//!
//! The messages are those of [`perfetto`](super::perfetto).

use super::perfetto::*;
use prost::Message;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Events that are kept at most: a file of some 40 MB, which viewers still open.
const MOST_EVENTS: usize = 1_000_000;
/// Packets are written after this many bytes, and after each step.
const WRITE_BYTES: usize = 64 << 10;

/// A row of the timeline. Events of a track neither overlap nor nest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Track {
    /// The phases of the wall clock.
    Phases,
    /// Training steps, while the host records or computes them.
    Steps,
    /// Host work between kernels.
    Host,
    /// The submitting thread.
    Submits,
    /// Compute passes of a GPU, each of many kernels.
    Passes,
    /// Kernels of the device; on a GPU those of sampled steps.
    Kernels,
}

/// The processes as which a viewer shows the host and the device.
const HOST: u64 = 1;
const DEVICE: u64 = 2;

impl Track {
    const ALL: [Track; 6] = [Track::Phases, Track::Steps, Track::Host, Track::Submits, Track::Passes, Track::Kernels];

    /// Apart from the processes, which are tracks too.
    fn uuid(self) -> u64 {
        DEVICE + 1 + self as u64
    }

    fn process(self) -> u64 {
        match self {
            Track::Phases | Track::Steps | Track::Host | Track::Submits => HOST,
            Track::Passes | Track::Kernels => DEVICE,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Track::Phases => "phases",
            Track::Steps => "steps",
            Track::Host => "host",
            Track::Submits => "submits",
            Track::Passes => "passes",
            Track::Kernels => "kernels",
        }
    }
}

/// A trace being recorded. Threads may share it.
pub struct Trace {
    began: Instant,
    recording: Mutex<Recording>,
}

#[derive(Default)]
struct Recording {
    /// Whole packets that are not written yet.
    packets: Vec<u8>,
    /// `None` until it is known.
    out: Option<Box<dyn Write + Send>>,
    /// Why nothing is written any more.
    error: Option<io::Error>,
    events: usize,
    /// The interned names.
    names: HashMap<&'static str, u64>,
    /// Where the last event of each track ended, nanoseconds since the trace began.
    ended: [u64; Track::ALL.len()],
    /// When an event was left out first.
    full_at: Option<u64>,
    clock_error: Option<Duration>,
}

impl Trace {
    /// A trace that starts at `began`; `device` is the name of the device.
    pub fn new(began: Instant, device: &str) -> Trace {
        let mut recording = Recording::default();
        recording.describe(device);
        Trace { began, recording: Mutex::new(recording) }
    }

    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the output, which also receives everything recorded before.
    pub fn write_to(&self, out: Box<dyn Write + Send>) {
        let mut recording = self.recording();
        recording.out = Some(out);
        recording.flush();
    }

    /// Adds an event, unless the trace is full.
    pub fn add(&self, track: Track, name: &'static str, start: Instant, elapsed: Duration) {
        self.add_event(track, name, start, elapsed, None);
    }

    /// Adds a training step that ends now.
    pub fn add_step(&self, step: usize, start: Instant) {
        self.add_event(Track::Steps, "step", start, start.elapsed(), Some(("step", step as u64)));
        self.recording().flush();
    }

    fn add_event(
        &self,
        track: Track,
        name: &'static str,
        start: Instant,
        elapsed: Duration,
        note: Option<(&'static str, u64)>,
    ) {
        let start = start.saturating_duration_since(self.began);
        let [start, end] = [start, start.saturating_add(elapsed)].map(nanoseconds);
        let mut recording = self.recording();
        if recording.events >= MOST_EVENTS {
            if recording.full_at.is_none() {
                recording.full_at = Some(start);
                let note = Some(("events", MOST_EVENTS as u64));
                recording.begin(Track::Phases, INSTANT, "the trace is full", start, note);
            }
            return;
        }
        recording.events += 1;
        // Times of a GPU are rounded: one may begin a nanosecond before the end of the one before.
        let start = start.max(recording.ended[track as usize]);
        let end = end.max(start);
        recording.ended[track as usize] = end;
        recording.begin(track, SLICE_BEGIN, name, start, note);
        recording.end(track, end);
        if recording.packets.len() >= WRITE_BYTES {
            recording.flush();
        }
    }

    /// Sets the largest error of GPU times on the host's clock.
    pub fn set_clock_error(&self, most: Duration) {
        self.recording().clock_error = Some(most);
    }

    /// When the trace became full, if it did, and its number of events.
    pub fn full(&self) -> Option<(Duration, usize)> {
        self.recording().full_at.map(|at| (Duration::from_nanos(at), MOST_EVENTS))
    }

    /// Writes the remaining packets.
    ///
    /// # Errors
    /// If any of it could not be written.
    pub fn finish(&self) -> io::Result<()> {
        let mut recording = self.recording();
        if let Some(error) = recording.clock_error.take() {
            let note = ("gpu_clock_error_ns", nanoseconds(error));
            let at = recording.ended[Track::Passes as usize];
            recording.begin(Track::Passes, INSTANT, "clock", at, Some(note));
        }
        recording.flush();
        recording.error.take().map_or(Ok(()), Err)
    }
}

/// As much as 64 bits hold: 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Recording {
    /// Names the processes and the tracks.
    fn describe(&mut self, device: &str) {
        let mut sequence_flags = INCREMENTAL_STATE_CLEARED;
        for (uuid, name) in [(HOST, "host"), (DEVICE, device)] {
            let process = Some(ProcessDescriptor { pid: uuid, process_name: name.into() });
            let track = TrackDescriptor { uuid, process, child_ordering: EXPLICIT, ..TrackDescriptor::default() };
            self.append(TracePacket { sequence_flags, track_descriptor: Some(track), ..TracePacket::default() });
            sequence_flags = NEEDS_INCREMENTAL_STATE;
        }
        for track in Track::ALL {
            let track = TrackDescriptor {
                uuid: track.uuid(),
                name: track.name().into(),
                parent_uuid: track.process(),
                sibling_order_rank: track.uuid(),
                ..TrackDescriptor::default()
            };
            self.append(TracePacket { sequence_flags, track_descriptor: Some(track), ..TracePacket::default() });
        }
    }

    /// The begin of an event, or an instant, with a number to be shown beside it.
    fn begin(&mut self, track: Track, kind: u32, name: &'static str, at: u64, note: Option<(&'static str, u64)>) {
        let next = self.names.len() as u64 + 1;
        let iid = *self.names.entry(name).or_insert(next);
        let debug_annotation = note.map(|(name, value)| DebugAnnotation { uint_value: Some(value), name: name.into() });
        let is_new = iid == next;
        let event_name = is_new.then(|| EventName { iid, name: name.into() });
        self.append(TracePacket {
            timestamp: Some(at),
            track_event: Some(TrackEvent { debug_annotation, kind, name_iid: iid, track_uuid: track.uuid() }),
            interned_data: is_new.then_some(InternedData { event_name }),
            sequence_flags: NEEDS_INCREMENTAL_STATE,
            ..TracePacket::default()
        });
    }

    fn end(&mut self, track: Track, at: u64) {
        self.append(TracePacket {
            timestamp: Some(at),
            track_event: Some(TrackEvent { kind: SLICE_END, track_uuid: track.uuid(), ..TrackEvent::default() }),
            sequence_flags: NEEDS_INCREMENTAL_STATE,
            ..TracePacket::default()
        });
    }

    /// Adds a packet of the one sequence that a trace has.
    fn append(&mut self, packet: TracePacket) {
        const SEQUENCE: u32 = 1;
        let packet = Some(TracePacket { trusted_packet_sequence_id: SEQUENCE, ..packet });
        OnePacket { packet }.encode_raw(&mut self.packets);
    }

    /// Writes the packets so far, all at once: whoever reads meanwhile, or after a kill, sees whole ones.
    fn flush(&mut self) {
        let Some(out) = &mut self.out else { return };
        if self.error.is_none() {
            self.error = out.write_all(&self.packets).err();
        }
        self.packets.clear();
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Trace of {} events", self.recording().events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// What was written, one entry for each write. Fails from the one on with this number.
    #[derive(Clone, Default)]
    struct Writes(Arc<Mutex<Vec<Vec<u8>>>>, Option<usize>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut writes = self.0.lock().unwrap();
            if self.1 == Some(writes.len()) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            writes.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// How many packets there are, if all are whole.
    fn packets(mut bytes: &[u8]) -> Option<usize> {
        let mut count = 0;
        while let [0x0a, length, rest @ ..] = bytes {
            // One or two bytes of a varint.
            let (length, rest) = match length {
                0..0x80 => (usize::from(*length), rest),
                _ => (usize::from(length & 0x7f) | usize::from(*rest.first()?) << 7, &rest[1..]),
            };
            bytes = rest.get(length..)?;
            count += 1;
        }
        bytes.is_empty().then_some(count)
    }

    fn kernel(trace: &Trace, name: &'static str, start: u64, duration: u64) {
        let start = trace.began + Duration::from_nanos(start);
        trace.add(Track::Kernels, name, start, Duration::from_nanos(duration));
    }

    #[test]
    fn packets_are_those_that_perfetto_writes() {
        let trace = Trace::new(Instant::now(), "cpu (1 threads)");
        kernel(&trace, "matmul", 7, 999_999_999);
        // Begins a nanosecond early, which is where the one before ends.
        kernel(&trace, "add", 1_000_000_005, 300);
        kernel(&trace, "matmul", 1_000_000_400, 0);
        trace.set_clock_error(Duration::from_nanos(1_500));
        trace.finish().unwrap();
        let hex: String = trace.recording().packets.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, EXPECTED);
    }

    /// Of `Trace.SerializeToString()` in perfetto 0.59.
    const EXPECTED: &str = "\
        0a1550016801e2030e08011a0808013204686f737458030a2050016802e2031908021a130802320f6370752028312074687265616473\
        2958030a1550016802e2030e08031206706861736573280160030a1450016802e2030d080412057374657073280160040a1350016802\
        e2030c08051204686f7374280160050a1650016802e2030f080612077375626d697473280160060a1550016802e2030e080712067061\
        73736573280260070a1650016802e2030f080812076b65726e656c73280260080a1c400750015a06480150015808620c120a08011206\
        6d61746d756c68020a10408694ebdc0350015a044802580868020a1d408694ebdc0350015a0648015002580862091207080212036164\
        6468020a1040b196ebdc0350015a044802580868020a12409097ebdc0350015a0648015001580868020a10409097ebdc0350015a0448\
        02580868020a34400050015a1f221718dc0b52126770755f636c6f636b5f6572726f725f6e73480350035807620b120908031205636c\
        6f636b6802";

    #[test]
    fn what_is_recorded_is_written_soon_and_in_whole_packets() {
        let (trace, writes) = (Trace::new(Instant::now(), "cpu"), Writes::default());
        kernel(&trace, "early", 0, 1);
        trace.write_to(Box::new(writes.clone()));
        assert_eq!(writes.0.lock().unwrap().len(), 1, "what was recorded before is written at once");
        trace.add_step(1, trace.began);
        assert_eq!(writes.0.lock().unwrap().len(), 2, "a step ends with a write");
        for i in 0..10_000 {
            kernel(&trace, "softmax", 10 * i, 5);
            assert!(trace.recording().packets.len() < WRITE_BYTES);
        }
        trace.finish().unwrap();
        let counts: Vec<usize> = writes.0.lock().unwrap().iter().map(|bytes| packets(bytes).expect("whole")).collect();
        assert_eq!(counts.iter().sum::<usize>(), 8 + 2 + 2 + 20_000);
    }

    #[test]
    fn a_trace_that_is_full_says_where_it_ends_and_grows_no_more() {
        let trace = Trace::new(Instant::now(), "cpu");
        trace.write_to(Box::new(io::sink()));
        for i in 0..=MOST_EVENTS as u64 {
            kernel(&trace, "add", 1000 * i, 0);
        }
        assert_eq!(trace.full(), Some((Duration::from_secs(1), MOST_EVENTS)));
        let text = String::from_utf8_lossy(&trace.recording().packets).into_owned();
        assert!(text.contains("the trace is full"), "{text}");
        kernel(&trace, "add", 2_000_000_000, 0);
        assert_eq!(String::from_utf8_lossy(&trace.recording().packets), text);
    }

    #[test]
    fn what_keeps_a_trace_from_being_written_is_told_at_its_end() {
        let trace = Trace::new(Instant::now(), "cpu");
        let writes = Writes(Arc::default(), Some(1));
        trace.write_to(Box::new(writes.clone()));
        for step in 1..4 {
            trace.add_step(step, trace.began);
        }
        assert_eq!(trace.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(writes.0.lock().unwrap().len(), 1, "after a gap nothing may follow");
    }
}
