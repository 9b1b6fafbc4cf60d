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
//! Event files cannot be shortened: another process may be reading them. A run that goes back says instead from which
//! step on the events before are void (`SessionLog`'s START), and TensorBoard drops them.
//!
//! Formats: tensorflow/core/lib/io/record_writer.h, tensorboard/compat/proto/event.proto and summary.proto.

use super::{Record, Sink};
use crate::protobuf::Message;
use crate::train::run::folder::RunFolder;
use crate::{Error, Result};
use crc::{CRC_32_ISCSI, Crc};
use jiff::Timestamp;
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
    /// Begins a new event file in a run's folder, of a run that has done so many steps.
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
        board.write(&Event { time: now, step: 0, what: What::Version })?;
        board.go_back(now, step)?;
        Ok(board)
    }

    /// What comes after this step is void.
    fn go_back(&mut self, time: Timestamp, step: usize) -> Result<()> {
        self.write(&Event { time, step: step + 1, what: What::Start })
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        // One write: whoever reads meanwhile sees whole records.
        self.file.write_all(&framed(event.message().encoded())).map_err(|e| Error::io("write", &self.path, e))
    }
}

impl Sink for TensorBoard {
    fn add(&mut self, record: &Record, _: &mut RunFolder) -> Result<()> {
        let Record { time, step, .. } = *record;
        if record.went_back {
            return self.go_back(time, step);
        }
        let scalars = record.scalars().map(|(scalar, value)| (scalar.tag, value.as_f64().unwrap_or(f64::NAN) as f32));
        self.write(&Event { time, step, what: What::Scalars(scalars.collect()) })
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

struct Event {
    time: Timestamp,
    step: usize,
    what: What,
}

enum What {
    /// The first event of a file.
    Version,
    /// Of a session that begins here.
    Start,
    /// By tag.
    Scalars(Vec<(&'static str, f32)>),
}

impl Event {
    fn message(&self) -> Message {
        let mut event = Message::default().double(1, self.time.as_microsecond() as f64 / 1e6); // wall_time
        // Zero is what a missing field means.
        if self.step > 0 {
            event = event.varint(2, self.step as u64);
        }
        match &self.what {
            What::Version => event.bytes(3, b"brain.Event:2"),
            What::Start => {
                const START: u64 = 1;
                event.message(7, &Message::default().varint(1, START))
            }
            What::Scalars(scalars) => {
                let summary = scalars.iter().fold(Message::default(), |summary, (name, value)| {
                    // tag, simple_value
                    summary.message(1, &Message::default().bytes(1, name.as_bytes()).float(2, *value))
                });
                event.message(5, &summary)
            }
        }
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
        let scalars = vec![("train/loss", 1.5), ("train/grad_norm", 0.1)];
        for (step, what, expected) in
            [(0, What::Version, VERSION), (301, What::Start, START), (300, What::Scalars(scalars), SCALARS)]
        {
            let time = Timestamp::from_microsecond(1_700_000_000_250_000).unwrap();
            let written = framed(Event { time, step, what }.message().encoded());
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
        let start = Event { time: record.time, step: 301, what: What::Start };
        assert_eq!(fs::read(&board.path).unwrap()[before..], framed(start.message().encoded()));
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
