//! `train --trace`: when everything ran, for Perfetto.

use crate::sandbox::{Sandbox, TINY_RUN, has_gpu};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A field of a protobuf message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, by their numbers; wire types as in <https://protobuf.dev/programming-guides/encoding/>.
struct Message<'a>(Vec<(u64, Field<'a>)>);

impl<'a> Message<'a> {
    fn decode(mut bytes: &'a [u8]) -> Message<'a> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let field = match tag & 7 {
                0 => Field::Number(varint(&mut bytes)),
                2 => {
                    let length = varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at_checked(length).expect("the message is whole");
                    bytes = rest;
                    Field::Bytes(value)
                }
                other => panic!("no field of a trace has wire type {other}"),
            };
            fields.push((tag >> 3, field));
        }
        Message(fields)
    }

    fn number(&self, number: u64) -> Option<u64> {
        self.0.iter().find_map(|(n, field)| match field {
            Field::Number(value) if *n == number => Some(*value),
            _ => None,
        })
    }

    fn bytes(&self, number: u64) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter_map(move |(n, field)| match field {
            Field::Bytes(value) if *n == number => Some(*value),
            _ => None,
        })
    }

    fn text(&self, number: u64) -> Option<String> {
        self.bytes(number).next().map(|bytes| String::from_utf8(bytes.to_vec()).expect("UTF-8"))
    }

    fn message(&self, number: u64) -> Option<Message<'a>> {
        self.bytes(number).next().map(Message::decode)
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("the message is whole");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            break;
        }
    }
    value
}

/// What has a begin and an end, nanoseconds.
#[derive(Debug)]
struct Slice {
    name: String,
    start: u64,
    end: u64,
    step: Option<u64>,
}

impl Slice {
    fn holds(&self, inner: &Slice) -> bool {
        self.start <= inner.start && inner.end <= self.end
    }

    fn seconds(&self) -> f64 {
        (self.end - self.start) as f64 / 1e9
    }
}

/// The slices of each track by its name. Every one has its end, and begins after the end of the one before.
struct Trace {
    slices: BTreeMap<String, Vec<Slice>>,
}

impl Trace {
    /// Field numbers: protos/perfetto/trace/trace_packet.proto and those that it imports.
    fn read(file: &Path) -> Trace {
        let bytes = fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut names: BTreeMap<u64, String> = BTreeMap::new();
        let (mut tracks, mut processes) = (BTreeMap::new(), BTreeMap::new());
        let mut slices: BTreeMap<u64, Vec<Slice>> = BTreeMap::new();
        let mut open: BTreeMap<u64, Slice> = BTreeMap::new();
        for (i, packet) in Message::decode(&bytes).bytes(1).map(Message::decode).enumerate() {
            assert_eq!(packet.number(10), Some(1), "one sequence of packets");
            assert_eq!(packet.number(13), Some(if i == 0 { 1 } else { 2 }), "the first clears the state");
            if let Some(track) = packet.message(60) {
                let uuid = track.number(1).expect("a uuid");
                match track.message(3) {
                    Some(process) => drop(processes.insert(uuid, process.text(6).expect("a name"))),
                    None => {
                        assert!(processes.contains_key(&track.number(5).expect("a parent")));
                        tracks.insert(uuid, track.text(2).expect("a name"));
                        slices.insert(uuid, Vec::new());
                    }
                }
            }
            if let Some(interned) = packet.message(12) {
                for name in interned.bytes(2).map(Message::decode) {
                    names.insert(name.number(1).expect("an id"), name.text(2).expect("a name"));
                }
            }
            let Some(event) = packet.message(11) else { continue };
            let (at, track) = (packet.number(8).expect("a time"), event.number(11).expect("a track"));
            match event.number(9) {
                Some(1) => {
                    let name = names[&event.number(10).expect("an interned name")].clone();
                    let step = event.message(4).and_then(|note| note.number(3));
                    let before = open.insert(track, Slice { name, start: at, end: at, step });
                    assert!(before.is_none(), "{before:?} has not ended at {at}");
                }
                Some(2) => {
                    let slice = Slice { end: at, ..open.remove(&track).expect("what ends has begun") };
                    let slices = slices.get_mut(&track).expect("the track was described");
                    let before = slices.last().map_or(0, |before| before.end);
                    assert!(before <= slice.start && slice.start <= slice.end, "{slice:?} after {before}");
                    slices.push(slice);
                }
                kind => assert_eq!(kind, Some(3), "an instant"),
            }
        }
        assert!(open.is_empty(), "without an end: {open:?}");
        assert_eq!(processes.len(), 2);
        Trace { slices: slices.into_iter().map(|(uuid, slices)| (tracks[&uuid].clone(), slices)).collect() }
    }

    fn track(&self, name: &str) -> &[Slice] {
        &self.slices[name]
    }

    fn steps(&self) -> Vec<u64> {
        self.track("steps").iter().map(|step| step.step.expect("its number")).collect()
    }
}

/// Calls and seconds by name.
fn totals<'a>(slices: impl Iterator<Item = &'a Slice>) -> BTreeMap<&'a str, (u64, f64)> {
    let mut totals = BTreeMap::new();
    for slice in slices {
        let total: &mut (u64, f64) = totals.entry(&*slice.name).or_default();
        *total = (total.0 + 1, total.1 + slice.seconds());
    }
    totals
}

/// The only run's profile.json.
fn profile(sandbox: &Sandbox) -> Value {
    let runs = sandbox.runs();
    assert_eq!(runs.len(), 1);
    serde_json::from_str(&sandbox.read(format!("runs/{}/profile.json", runs[0]))).unwrap()
}

#[test]
fn a_trace_of_the_cpu_has_each_kernel_of_the_profile_within_its_step() {
    let sandbox = Sandbox::new();
    let run = sandbox.train(&["--trace"]).succeeds();
    let file = format!("{TINY_RUN}/trace.pftrace");
    assert!(run.stderr.contains(&format!("the trace is in {file}")), "{run:?}");
    let trace = Trace::read(&sandbox.path(file));
    assert_eq!(trace.steps(), [1, 2, 3, 4, 5, 6]);
    let phases: Vec<&str> = trace.track("phases").iter().map(|phase| &*phase.name).collect();
    assert_eq!(phases[..3], ["device", "text and tokens", "model"]);
    for phase in ["training", "evaluation", "sampling"] {
        assert!(phases.contains(&phase), "{phase} is missing in {phases:?}");
    }
    for kernel in trace.track("kernels") {
        assert!(trace.track("phases").iter().any(|phase| phase.holds(kernel)), "{kernel:?} is in no phase");
    }
    assert!(trace.track("passes").is_empty());
    let trained = trace.track("kernels").iter().filter(|kernel| trace.track("steps").iter().any(|s| s.holds(kernel)));
    let totals = totals(trained);
    let profile = profile(&sandbox);
    let expected = profile["kernels"].as_array().unwrap();
    assert_eq!(totals.len(), expected.len(), "{totals:?}");
    for row in expected {
        let (calls, seconds) = totals[row["name"].as_str().unwrap()];
        assert_eq!(calls, row["calls"].as_u64().unwrap(), "{row}");
        assert!((seconds - row["seconds"].as_f64().unwrap()).abs() < 1e-8, "{seconds}: {row}");
    }
}

#[test]
fn a_trace_of_a_gpu_has_the_kernels_of_sampled_steps_within_its_passes() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.train_on_gpu(&["--trace=a.pftrace", "--set", "train.max_steps=8"]).succeeds();
    let trace = Trace::read(&sandbox.path("a.pftrace"));
    assert_eq!(trace.steps(), (1..=8).collect::<Vec<u64>>());
    // In all other phases the GPU may have steps to do.
    let is_other = |phase: &&Slice| ["model", "evaluation", "sampling"].contains(&&*phase.name);
    let others: Vec<&Slice> = trace.track("phases").iter().filter(is_other).collect();
    let profile = profile(&sandbox);
    if profile["estimated"] == true {
        eprintln!("SKIPPED, the GPU has no timestamps");
        return;
    }
    for kernel in trace.track("kernels") {
        // Times are rounded down to nanoseconds, start and duration each.
        let pass = |pass: &&Slice| pass.start <= kernel.start && kernel.end <= pass.end + 2;
        assert!(trace.track("passes").iter().any(|p| pass(&p)), "{kernel:?} is in no pass");
    }
    let begins_in = |outer: &Slice, inner: &Slice| outer.start <= inner.start && inner.start <= outer.end;
    let trained = trace.track("kernels").iter().filter(|kernel| !others.iter().any(|other| begins_in(other, kernel)));
    let totals = totals(trained);
    let expected = profile["kernels"].as_array().unwrap();
    assert_eq!(totals.len(), expected.len(), "{totals:?}");
    for row in expected {
        let (calls, seconds) = totals[row["name"].as_str().unwrap()];
        assert!(0 < calls && calls <= row["calls"].as_u64().unwrap(), "{calls}: {row}");
        let ms_per_call = 1e3 * seconds / calls as f64;
        assert!((ms_per_call - row["ms_per_call"].as_f64().unwrap()).abs() < 1e-6, "{ms_per_call}: {row}");
    }
}

#[test]
fn a_run_that_is_killed_leaves_the_trace_of_its_steps() {
    let sandbox = Sandbox::new();
    let args = ["train", "--config", "tiny.toml", "--device", "cpu", "--trace=a.pftrace", "--max-steps", "1000000"];
    let mut run = sandbox.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let size = || fs::metadata(sandbox.path("a.pftrace")).map_or(0, |file| file.len());
    let since = Instant::now();
    while size() < 100_000 && since.elapsed() < Duration::from_secs(60) && run.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let steps = Trace::read(&sandbox.path("a.pftrace")).steps();
    assert!(steps.len() > 2, "{steps:?}");
    assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<u64>>());
}

#[test]
fn a_run_that_is_not_traced_has_no_trace() {
    let trained = Sandbox::trained();
    assert!(!trained.names_in(TINY_RUN).iter().any(|name| name.starts_with("trace")));
}

#[test]
fn fails_with_a_trace_that_cannot_be_written_before_anything_is_made() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--trace=missing/a.pftrace"]).fails_with(&["cannot create missing/a.pftrace"]);
    assert_eq!(sandbox.runs(), [""; 0]);
}
