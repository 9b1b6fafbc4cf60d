//! `run.json`: facts before a run's first step, and its result; for a resumed run, those of the last process.

use super::events::{Event, Start};
use super::folder::RunFolder;
use crate::{Error, Result};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs;

const RECORD: &str = "run.json";

/// The key of the seconds of training that other processes spent on the steps before.
const BEFORE: &str = "training_seconds_before";

/// Writes and returns the facts before the first step, which follows this many.
///
/// # Errors
/// If it cannot be written.
pub(in crate::train) fn begin(folder: &RunFolder, start: &Start, steps: usize) -> Result<Value> {
    let before = training_seconds(folder, steps);
    let mut record = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "began": now(),
        "machine": {
            "os": std::env::consts::OS, "arch": std::env::consts::ARCH,
            "physical_cores": num_cpus::get_physical(), "logical_cores": num_cpus::get(),
        },
        "start": Event::Started(Box::new(start.clone())).json(),
    });
    if let Some(seconds) = before {
        record[BEFORE] = seconds.into();
    }
    folder.write(RECORD, &pretty(&record))?;
    Ok(record)
}

/// The seconds of training in the record of the process before, if it ended after this many steps.
fn training_seconds(folder: &RunFolder, steps: usize) -> Option<f64> {
    let text = fs::read_to_string(folder.path().join(RECORD)).ok().filter(|_| steps > 0)?;
    let record: Value = serde_json::from_str(&text).ok()?;
    let end = &record["end"];
    end["training_seconds_in_all"].as_f64().filter(|_| end["steps"].as_u64() == Some(steps as u64))
}

/// The seconds of training of the processes before this one, if their last one ended where this one began.
pub(in crate::train) fn training_seconds_before(record: &Value) -> Option<f64> {
    record[BEFORE].as_f64()
}

/// Adds the result of the run, without the profile, which has its own file.
///
/// # Errors
/// If it cannot be written.
pub(in crate::train) fn end(folder: &RunFolder, record: &mut Value, finished: &Event) -> Result<()> {
    record["ended"] = now();
    record["end"] = finished.json().unwrap_or_default();
    if let Some(end) = record["end"].as_object_mut() {
        end.shift_remove("profile");
    }
    folder.write(RECORD, &pretty(record))
}

/// Adds what ended the run before its time.
///
/// # Errors
/// If it cannot be written.
pub(in crate::train) fn fail(folder: &RunFolder, record: &mut Value, error: &Error) -> Result<()> {
    record["ended"] = now();
    record["error"] = error.to_string().into();
    folder.write(RECORD, &pretty(record))
}

fn now() -> Value {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
}

/// JSON for people too.
pub(in crate::train) fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain values serialize") + "\n"
}
