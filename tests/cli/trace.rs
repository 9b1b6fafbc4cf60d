//! `train --trace`: when everything ran, for a viewer of Chrome's traces.

use crate::sandbox::{Run, Sandbox, TINY_RUN, has_gpu, json_lines};
use serde_json::Value;
use std::collections::BTreeMap;

/// The complete events of each row, by its name.
fn rows(text: &str) -> BTreeMap<String, Vec<Value>> {
    let trace: Value = serde_json::from_str(text).expect("the trace is JSON");
    let events = trace["traceEvents"].as_array().expect("a list of events");
    let place = |event: &Value| (event["pid"].to_string(), event["tid"].to_string());
    let names = events.iter().filter(|event| event["name"] == "thread_name");
    let names: BTreeMap<_, String> =
        names.map(|event| (place(event), event["args"]["name"].as_str().unwrap().into())).collect();
    let mut rows: BTreeMap<String, Vec<Value>> = names.values().map(|name| (name.clone(), Vec::new())).collect();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        rows.get_mut(&names[&place(event)]).unwrap().push(event.clone());
    }
    rows
}

/// Start and end, microseconds.
fn span(event: &Value) -> (f64, f64) {
    let [start, duration] = ["ts", "dur"].map(|key| event[key].as_f64().expect("a time"));
    (start, start + duration)
}

/// Whether `inner` lies within `outer`, but for what is lost when times are rounded down to nanoseconds.
fn holds(outer: &Value, inner: &Value) -> bool {
    let ((start, end), (from, to)) = (span(outer), span(inner));
    start <= from + 0.0025 && to <= end + 0.0025
}

/// The profile that the run told machines.
fn profile(run: &Run) -> Value {
    json_lines(&run.stdout).pop().expect("a last line")["profile"].clone()
}

#[track_caller]
fn assert_in_order(rows: &BTreeMap<String, Vec<Value>>) {
    for (name, events) in rows {
        for pair in events.windows(2) {
            assert!(span(&pair[1]).0 >= span(&pair[0]).1 - 0.0025, "{name}: {} overlaps {}", pair[0], pair[1]);
        }
    }
}

#[test]
fn a_trace_of_the_cpu_has_each_kernel_of_the_profile_within_its_step() {
    let sandbox = Sandbox::new();
    let run = sandbox.train(&["--trace", "--json"]).succeeds();
    let rows = rows(&sandbox.read(format!("{TINY_RUN}/trace.json")));
    assert_in_order(&rows);
    let steps: Vec<u64> = rows["steps"].iter().map(|step| step["args"]["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
    let phases: Vec<&str> = rows["phases"].iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    assert_eq!(phases[..3], ["device", "text and tokens", "model"]);
    for phase in ["training", "evaluation", "sampling"] {
        assert!(phases.contains(&phase), "{phase} is missing in {phases:?}");
    }
    let trained = rows["kernels"].iter().filter(|kernel| rows["steps"].iter().any(|step| holds(step, kernel)));
    let mut totals: BTreeMap<&str, (u64, f64)> = BTreeMap::new();
    for kernel in trained {
        let total = totals.entry(kernel["name"].as_str().unwrap()).or_default();
        *total = (total.0 + 1, total.1 + kernel["dur"].as_f64().unwrap() / 1e6);
    }
    let profile = profile(&run);
    let expected = profile["kernels"].as_array().unwrap();
    assert_eq!(totals.len(), expected.len());
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
    let run = sandbox.train_on_gpu(&["--trace=a.json", "--json", "--set", "train.max_steps=8"]).succeeds();
    let rows = rows(&sandbox.read("a.json"));
    assert_in_order(&rows);
    // In all other phases the GPU may have steps to do.
    let is_other = |phase: &&Value| ["model", "evaluation", "sampling"].iter().any(|name| phase["name"] == *name);
    let others: Vec<&Value> = rows["phases"].iter().filter(is_other).collect();
    let begins_in = |outer: &Value, inner: &Value| span(outer).0 <= span(inner).0 && span(inner).0 <= span(outer).1;
    let profile = profile(&run);
    if profile["estimated"] == true {
        eprintln!("SKIPPED, the GPU has no timestamps");
        return;
    }
    let mut totals: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for kernel in &rows["kernels"] {
        assert!(rows["passes"].iter().any(|pass| holds(pass, kernel)), "{kernel} is in no pass");
        if !others.iter().any(|phase| begins_in(phase, kernel)) {
            let total = totals.entry(kernel["name"].as_str().unwrap()).or_default();
            *total = (total.0 + 1.0, total.1 + kernel["dur"].as_f64().unwrap() / 1e3);
        }
    }
    let expected = profile["kernels"].as_array().unwrap();
    assert_eq!(totals.len(), expected.len(), "{totals:?}");
    for row in expected {
        let (calls, ms) = totals[row["name"].as_str().unwrap()];
        assert!((ms / calls - row["ms_per_call"].as_f64().unwrap()).abs() < 1e-6, "{ms} ms in {calls}: {row}");
    }
}

#[test]
fn a_run_that_is_not_traced_has_no_trace() {
    assert!(!Sandbox::trained().exists(format!("{TINY_RUN}/trace.json")));
}

#[test]
fn fails_with_a_trace_that_cannot_be_written_before_anything_is_made() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--trace=missing/trace.json"]).fails_with(&["cannot create missing/trace.json"]);
    assert_eq!(sandbox.runs(), [""; 0]);
}
