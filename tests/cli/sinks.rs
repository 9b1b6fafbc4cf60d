//! `log.csv` and `log.tensorboard`: the numbers of `metrics.jsonl` in other forms, each once whatever happens to a run.

use crate::sandbox::{Sandbox, TINY_RUN};
use crc::{CRC_32_ISCSI, Crc};
use serde_json::Value;
use std::fs;

const BOTH: [&str; 4] = ["--set", "log.csv=true", "--set", "log.tensorboard=true"];

/// The rows of a run's CSV file as (step, loss, validation loss), with what is left out as "".
fn rows(sandbox: &Sandbox) -> Vec<[String; 3]> {
    let text = sandbox.read(format!("{TINY_RUN}/metrics.csv"));
    let mut lines = text.lines().map(|line| line.split(',').map(String::from).collect::<Vec<_>>());
    let header = lines.next().expect("a header");
    let column = |name: &str| header.iter().position(|column| column == name).expect(name);
    let columns = ["step", "train_loss", "validation_loss"].map(column);
    lines.map(|cells| columns.map(|column| cells[column].clone())).collect()
}

/// The same of `metrics.jsonl`.
fn expected_rows(sandbox: &Sandbox) -> Vec<[String; 3]> {
    let of_kind =
        |line: &Value, kind: &str| if line["kind"] == kind { line["loss"].to_string() } else { String::new() };
    let row = |line: &Value| [line["step"].to_string(), of_kind(line, "train"), of_kind(line, "eval")];
    sandbox.metrics(TINY_RUN).iter().map(row).collect()
}

/// The records of each event file, in TensorBoard's order of reading, after a look at their checksums.
fn event_files(sandbox: &Sandbox) -> Vec<Vec<Vec<u8>>> {
    let folder = format!("{TINY_RUN}/tensorboard");
    let files = sandbox.names_in(&folder);
    assert!(files.iter().all(|name| name.starts_with("events.out.tfevents.")), "{files:?}");
    files.iter().map(|name| records(&fs::read(sandbox.path(format!("{folder}/{name}"))).unwrap())).collect()
}

fn records(mut file: &[u8]) -> Vec<Vec<u8>> {
    fn take<'a>(file: &mut &'a [u8], len: usize) -> &'a [u8] {
        let (taken, rest) = file.split_at(len);
        *file = rest;
        let crc = Crc::<u32>::new(&CRC_32_ISCSI).checksum(taken);
        let masked = crc.rotate_right(15).wrapping_add(0xa282_ead8);
        let (stored, rest) = file.split_at(4);
        *file = rest;
        assert_eq!(stored, masked.to_le_bytes(), "the checksum");
        taken
    }
    let mut records = Vec::new();
    while !file.is_empty() {
        let length = u64::from_le_bytes(take(&mut file, 8).try_into().unwrap());
        records.push(take(&mut file, length as usize).to_vec());
    }
    records
}

/// An event that says from which step on earlier ones are void: time, step (field 2), session_log (7) START.
fn start(step: u8) -> Vec<u8> {
    vec![2 << 3, step, 7 << 3 | 2, 2, 1 << 3, 1]
}

#[test]
fn nothing_but_metrics_jsonl_is_written_unasked() {
    let names = Sandbox::trained().names_in(TINY_RUN);
    assert!(!names.iter().any(|name| name.contains("csv") || name.contains("tensorboard")), "{names:?}");
}

#[test]
fn a_run_has_its_numbers_as_csv_and_for_tensorboard() {
    let sandbox = Sandbox::new();
    sandbox.train(&BOTH).succeeds();
    assert_eq!(rows(&sandbox), expected_rows(&sandbox));
    let [events] = &event_files(&sandbox)[..] else { panic!("one file") };
    let metrics = sandbox.metrics(TINY_RUN);
    assert!(events[0].ends_with(b"brain.Event:2"));
    // Without the tag of the time and the time.
    assert_eq!(events[1][9..], start(1));
    assert_eq!(events.len(), 2 + metrics.len());
    for (event, line) in events[2..].iter().zip(&metrics) {
        let loss = (line["loss"].as_f64().unwrap() as f32).to_le_bytes();
        let tag: &[u8] = if line["kind"] == "train" { b"train/loss\x15" } else { b"validation/loss\x15" };
        let named = [tag, &loss].concat();
        assert!(event.windows(named.len()).any(|part| part == named), "{line}");
    }
}

#[test]
fn a_resumed_run_has_each_number_once() {
    let sandbox = Sandbox::new();
    sandbox.train(&[&BOTH[..], &["--set", "checkpoint.every=2"]].concat()).succeeds();
    let before = rows(&sandbox);
    // As a run that was killed after step 4 leaves it, with lines of later steps.
    fs::remove_dir_all(sandbox.path(format!("{TINY_RUN}/checkpoints/step-000006"))).unwrap();
    fs::remove_file(sandbox.path(format!("{TINY_RUN}/finished"))).unwrap();
    let run = sandbox.run(&["train", "--resume", TINY_RUN]).succeeds();
    assert_eq!(run.stderr, "", "there is nothing to note");
    assert_eq!(rows(&sandbox), before);
    assert_eq!(rows(&sandbox), expected_rows(&sandbox));
    let [_, resumed] = &event_files(&sandbox)[..] else { panic!("two files") };
    assert_eq!(resumed[1][9..], start(5), "the steps after 4 are void");
    // Steps 5 and 6, and an evaluation.
    assert_eq!(resumed.len(), 2 + 3);
}

#[test]
fn csv_that_is_asked_for_later_holds_what_comes_then() {
    let sandbox = Sandbox::trained();
    sandbox.run(&["train", "--resume", TINY_RUN, "--max-steps", "8", "--set", "log.csv=true"]).succeeds();
    let steps: Vec<String> = rows(&sandbox).into_iter().map(|[step, ..]| step).collect();
    assert_eq!(steps, ["7", "8", "8"]);
}
