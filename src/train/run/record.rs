//! `run.json`: facts before a run's first step, and its result; for a resumed run, those of the last process.

use super::events::{Event, Start};
use super::folder::RunFolder;
use crate::{Error, Result};
use serde::Serialize;
use serde_json::{Value, json};

const RECORD: &str = "run.json";

/// Writes and returns the facts before the first step.
///
/// # Errors
/// If it cannot be written.
pub(in crate::train) fn begin(folder: &RunFolder, start: &Start) -> Result<Value> {
    let record = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "began": now(),
        "machine": {
            "os": std::env::consts::OS, "arch": std::env::consts::ARCH,
            "physical_cores": num_cpus::get_physical(), "logical_cores": num_cpus::get(),
        },
        "start": Event::Started(Box::new(start.clone())).json(),
    });
    folder.write(RECORD, &pretty(&record))?;
    Ok(record)
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
