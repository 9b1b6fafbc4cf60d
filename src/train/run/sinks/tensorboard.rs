//! TensorBoard's event files: `tensorboard/events.out.tfevents.*`.
//!
//! A file is a sequence of TFRecords, each an `Event` in protobuf's encoding:
//!
//! ```text
//! length of the data            u64, little-endian
//! masked CRC-32C of the length  u32
//! data
//! masked CRC-32C of the data    u32
//! ```
//!
//! Event files cannot be truncated, because another process may be reading them. After a rollback, a `SessionLog` START
//! event with the step makes TensorBoard drop the later events.
//!
//! Formats: tensorflow/core/lib/io/record_writer.h, tensorboard/compat/proto/event.proto and summary.proto.

use super::{Record, Sink};
use crate::train::run::folder::RunFolder;
use crate::{Error, Result};
use crc::{CRC_32_ISCSI, Crc};
use jiff::Timestamp;
use prost::Message;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The folder in that of the run.
const FOLDER: &str = "tensorboard";
const PREFIX: &str = "events.out.tfevents.";

pub(super) struct TensorBoard {
    path: PathBuf,
    file: File,
}

impl TensorBoard {
    /// Creates a new event file in a run's folder, after `step` completed steps.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn open(run: &Path, step: usize) -> Result<TensorBoard> {
        let folder = run.join(FOLDER);
        fs::create_dir_all(&folder).map_err(|e| Error::io("create", &folder, e))?;
        let now = Timestamp::now();
        let path = folder.join(next_name(&folder, now)?);
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = file.map_err(|e| Error::io("create", &path, e))?;
        let mut board = TensorBoard { path, file };
        board.write(&Event::version(now))?;
        board.go_back(now, step)?;
        Ok(board)
    }

    /// Invalidates events after this step.
    fn go_back(&mut self, time: Timestamp, step: usize) -> Result<()> {
        self.write(&Event::start(time, step + 1))
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        // One write: whoever reads meanwhile sees whole records.
        self.file.write_all(&framed(&event.encode_to_vec())).map_err(|e| Error::io("write", &self.path, e))
    }
}

impl Sink for TensorBoard {
    fn add(&mut self, record: &Record, _: &mut RunFolder) -> Result<()> {
        let Record { time, step, .. } = *record;
        if record.went_back {
            return self.go_back(time, step);
        }
        let scalars = record.scalars().map(|(scalar, value)| (scalar.tag, value.as_f64().unwrap_or(f64::NAN) as f32));
        self.write(&Event::scalars(time, step, scalars))
    }
}

/// TensorBoard reads files in the order of their names, so the name comes after those that are there.
fn next_name(folder: &Path, now: Timestamp) -> Result<String> {
    let entries = fs::read_dir(folder).map_err(|e| Error::io("read", folder, e))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let number = |name: String| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<i64>().ok();
    // A clock may have been set back.
    let after = names.filter_map(number).max().map_or(i64::MIN, |last| last + 1);
    Ok(format!("{PREFIX}{:010}.rustyflow", now.as_second().max(after)))
}

/// tensorboard.Event, with the fields that are used here.
#[derive(prost::Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    what: Option<What>,
}

#[derive(prost::Oneof)]
enum What {
    /// The first event of a file.
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(prost::Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

/// Summary.Value
#[derive(prost::Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

#[derive(prost::Message)]
struct SessionLog {
    /// SessionLog.SessionStatus
    #[prost(uint32, tag = "1")]
    status: u32,
}

impl Event {
    fn new(time: Timestamp, step: usize, what: What) -> Event {
        Event { wall_time: time.as_microsecond() as f64 / 1e6, step: step as i64, what: Some(what) }
    }

    /// The start of a session, which invalidates events of this and later steps.
    fn start(time: Timestamp, step: usize) -> Event {
        const START: u32 = 1;
        Event::new(time, step, What::SessionLog(SessionLog { status: START }))
    }

    fn version(time: Timestamp) -> Event {
        Event::new(time, 0, What::FileVersion("brain.Event:2".into()))
    }

    fn scalars<'a>(time: Timestamp, step: usize, scalars: impl Iterator<Item = (&'a str, f32)>) -> Event {
        let value = scalars.map(|(tag, value)| Scalar { tag: tag.into(), simple_value: Some(value) }).collect();
        Event::new(time, step, What::Summary(Summary { value }))
    }
}

/// A TFRecord of this data.
fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
}

/// A checksum of data that may hold checksums itself is mixed up once more.
fn masked_crc(data: &[u8]) -> u32 {
    /// CRC-32C under its name in the catalogue.
    static CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
    CRC.checksum(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_those_that_tensorboard_writes() {
        // Of `RecordWriter` and `Event` in tensorboard 2.21.
        let scalars = [("train/loss", 1.5), ("train/grad_norm", 0.1)].into_iter();
        let time = Timestamp::from_microsecond(1_700_000_000_250_000).unwrap();
        for (event, expected) in [
            (Event::version(time), VERSION),
            (Event::start(time, 301), START),
            (Event::scalars(time, 300, scalars), SCALARS),
        ] {
            let written = framed(&event.encode_to_vec());
            let hex: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected);
        }
    }

    const VERSION: &str = "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9";
    const START: &str = "100000000000000095fbfe180900001040fc54d94110ad023a020801cb79b93b";
    const SCALARS: &str = "39000000000000008b0737f10900001040fc54d94110ac022a2b0a110a0a747261696e2f6c6f7373150000c03f\
                           0a160a0f747261696e2f677261645f6e6f726d15cdcccc3d01d18130";

    #[test]
    fn a_run_that_goes_back_declares_later_steps_void() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = RunFolder::create(dir.path(), "a").unwrap();
        let mut board = TensorBoard::open(folder.path(), 0).unwrap();
        let before = fs::metadata(&board.path).unwrap().len() as usize;
        let (cause, learning_rate_factor) = ("a spike".into(), 0.5);
        let event = crate::train::Event::RolledBack { from_step: 350, step: 300, cause, learning_rate_factor };
        let record = Record::new(&event).unwrap();
        board.add(&record, &mut folder).unwrap();
        let start = Event::start(record.time, 301);
        assert_eq!(fs::read(&board.path).unwrap()[before..], framed(&start.encode_to_vec()));
    }

    #[test]
    fn a_file_comes_after_those_that_are_there_even_if_the_clock_was_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        assert_eq!(next_name(dir.path(), now).unwrap(), "events.out.tfevents.1700000000.rustyflow");
        fs::write(dir.path().join("events.out.tfevents.1800000000.other.17.0"), "").unwrap();
        assert_eq!(next_name(dir.path(), now).unwrap(), "events.out.tfevents.1800000001.rustyflow");
    }
}
