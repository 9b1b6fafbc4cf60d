//! Sources of documents, read piece by piece, so that a text of any size needs little memory.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::chat::ChatTemplate;
use super::conversion::advice;
use super::documents::Label;
use super::json_lines::read_json;
use super::json_rows::Mapped;
use super::utf16::as_utf8;
use rustyflow_base::error::{Error, Result};

/// A part of a document, or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The next part of its text; never empty.
    Text(&'a str),
    /// The next part of its text, masked in the loss, such as a question. Never empty.
    Prompt(&'a str),
    /// The next part of a conversation, which is tokenized as a whole, and whether the part is predicted. Never empty.
    Turn(&'a str, bool),
    /// The end of a document, which an end-of-text token may mark.
    End(Label),
    /// The end of a conversation, marked by its template.
    EndOfChat(Label),
}

impl<'a> Piece<'a> {
    /// Its text, predicted or not.
    pub fn text(self) -> Option<&'a str> {
        match self {
            Piece::Text(text) | Piece::Prompt(text) | Piece::Turn(text, _) => Some(text),
            Piece::End(_) | Piece::EndOfChat(_) => None,
        }
    }

    /// The label of a document that ends.
    pub(super) fn end(self) -> Option<Label> {
        match self {
            Piece::End(label) | Piece::EndOfChat(label) => Some(label),
            _ => None,
        }
    }
}

/// The consumer of pieces.
pub type Sink<'a> = dyn FnMut(Piece) -> Result<()> + 'a;

/// Bytes that are read at once.
pub(super) const READ_BYTES: usize = 1 << 20;

/// A file with documents, or a text in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Memory(Cow<'static, str>),
    File { path: PathBuf, format: Format, compression: Compression, chat: Option<Arc<ChatTemplate>> },
}

/// How a file holds documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// One document: the text.
    Text,
    /// One document per JSON object, in lines or in a list: see `json_lines.rs`.
    Json,
    /// One document per row, in the column `text`.
    Parquet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstandard,
}

impl Source {
    /// A file, with the format of its extension.
    pub(super) fn file(path: &Path) -> Source {
        let (name, compression) = without_compression(path);
        let format = match extension(&name).as_str() {
            "jsonl" | "ndjson" | "json" => Format::Json,
            "parquet" => Format::Parquet,
            _ => Format::Text,
        };
        Source::File { path: path.to_path_buf(), format, compression, chat: None }
    }

    /// Sets the chat template of conversations.
    pub(super) fn with_chat(mut self, template: &Arc<ChatTemplate>) -> Source {
        if let Source::File { format: Format::Json, chat, .. } = &mut self {
            *chat = Some(template.clone());
        }
        self
    }

    /// The template that writes its conversations.
    pub(super) fn template(&self) -> Option<&str> {
        match self {
            Source::File { chat: Some(chat), .. } => Some(chat.source()),
            _ => None,
        }
    }

    /// Where it is, if it is a file.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Source::Memory(_) => None,
            Source::File { path, .. } => Some(path),
        }
    }

    /// Whether it may hold more than one document.
    pub(super) fn has_documents(&self) -> bool {
        matches!(self, Source::File { format: Format::Json | Format::Parquet, .. })
    }

    /// Whether it is a text that cannot be read as one: not UTF-8, nor UTF-16 with a mark.
    pub(super) fn is_undecodable(&self) -> bool {
        let Source::File { path, format: Format::Text, compression, .. } = self else { return false };
        let Ok(mut reader) = open(path, *compression) else { return false };
        let (mut buffer, mut kept) = (vec![0; READ_BYTES], 0);
        loop {
            match reader.read(&mut buffer[kept..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::InvalidData,
                Ok(read) => {
                    let Ok(text) = text_of(&buffer[..kept + read]) else { return true };
                    let (used, end) = (text.len(), kept + read);
                    if read == 0 {
                        return used < end;
                    }
                    buffer.copy_within(used..end, 0);
                    kept = end - used;
                }
            }
        }
    }

    /// Hands over all documents; empty ones are left out. Returns how many were mapped from other keys.
    ///
    /// # Errors
    /// If the file cannot be read or is not what its name says, and those of `sink`.
    pub(super) fn read(&self, sink: &mut Sink) -> Result<Mapped> {
        match self {
            Source::Memory(text) if text.is_empty() => {}
            Source::Memory(text) => {
                sink(Piece::Text(text))?;
                sink(Piece::End(Label::None))?;
            }
            Source::File { path, format: Format::Parquet, .. } => read_parquet(path, sink)?,
            Source::File { path, format, compression, chat } => {
                let reader = open(path, *compression)?;
                match format {
                    Format::Json => return read_json(path, reader, chat.as_deref(), sink),
                    _ => read_document(path, reader, sink)?,
                }
            }
        }
        Ok(Mapped::default())
    }
}

/// The whole text of a file, without a byte order mark.
///
/// # Errors
/// If it cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    let mut all = String::new();
    read_document(path, open(path, Compression::None)?, &mut |piece| {
        if let Some(text) = piece.text() {
            all.push_str(text);
        }
        Ok(())
    })?;
    Ok(all)
}

/// A file's name in small letters without `.gz` or `.zst`, and what that says.
pub(super) fn without_compression(path: &Path) -> (String, Compression) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let endings = [(".gz", Compression::Gzip), (".zst", Compression::Zstandard)];
    let ending = endings.into_iter().find_map(|(ending, how)| Some((name.strip_suffix(ending)?.to_string(), how)));
    ending.unwrap_or((name, Compression::None))
}

/// The ending of a name, without the dot; empty if it has none.
pub(super) fn extension(name: &str) -> String {
    Path::new(name).extension().map_or_else(String::new, |extension| extension.to_string_lossy().to_lowercase())
}

/// The extension that names the format, without that of the compression.
pub(super) fn kind_of(path: &Path) -> String {
    extension(&without_compression(path).0)
}

fn open(path: &Path, compression: Compression) -> Result<Box<dyn Read>> {
    let file = File::open(path).map_err(|error| Error::io("read", path, error))?;
    let bytes: Box<dyn Read> = match compression {
        Compression::None => Box::new(file),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(READ_BYTES, file))),
        Compression::Zstandard => {
            let source = BufReader::with_capacity(READ_BYTES, file);
            Box::new(Frames { source, frame: FrameDecoder::new(), is_open: false })
        }
    };
    as_utf8(bytes).map_err(|error| Error::io("read", path, error))
}

/// The frames of a `.zst` file, one after the other: there may be several, and some that hold no data.
struct Frames {
    source: BufReader<File>,
    frame: FrameDecoder,
    /// Whether a frame is being read.
    is_open: bool,
}

impl Frames {
    /// Begins the next frame. False at the end of the file.
    fn next_frame(&mut self) -> std::io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.frame.reset(&mut self.source) {
                Ok(()) => {
                    self.is_open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    std::io::copy(&mut (&mut self.source).take(u64::from(length)), &mut std::io::sink())?;
                }
                Err(error) => {
                    return Err(std::io::Error::other(format!("it is not in the format of Zstandard: {error}")));
                }
            }
        }
        Ok(false)
    }
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if self.is_open && self.frame.can_collect() > 0 {
                return self.frame.read(buffer);
            }
            if self.is_open && !self.frame.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.frame.decode_blocks(&mut self.source, one).map_err(std::io::Error::other)?;
            } else if !self.next_frame()? {
                return Ok(0);
            }
        }
    }
}

pub(super) fn bad(path: &Path, message: String) -> Error {
    Error::Corpus { path: path.to_path_buf(), message }
}

fn not_utf8(path: &Path, at: u64) -> Error {
    let mut beginning = [0; 5];
    let opened = open(path, without_compression(path).1);
    let is_pdf = opened.is_ok_and(|mut file| file.read_exact(&mut beginning).is_ok()) && beginning == *b"%PDF-";
    bad(path, format!("not UTF-8 at byte {at}: {}", advice(path, is_pdf)))
}

/// The longest valid UTF-8 prefix of `bytes`; the rest may be an incomplete character.
fn text_of(bytes: &[u8]) -> std::result::Result<&str, usize> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if error.error_len().is_some() => Err(error.valid_up_to()),
        Err(error) => Ok(std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("it was found valid")),
    }
}

fn read_document(path: &Path, mut reader: Box<dyn Read>, sink: &mut Sink) -> Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    // Bytes of a character whose rest is still to come, and the place of the buffer in the file.
    let (mut kept, mut offset, mut has_text) = (0, 0, false);
    loop {
        let read = match reader.read(&mut buffer[kept..]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            result => result.map_err(|error| Error::io("read", path, error))?,
        };
        let all = &buffer[..kept + read];
        let text = text_of(all).map_err(|at| not_utf8(path, offset + at as u64))?;
        if read == 0 && text.len() < all.len() {
            return Err(not_utf8(path, offset + text.len() as u64));
        }
        let used = text.len();
        // A byte order mark is no part of the text.
        let text = if offset == 0 { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text };
        if !text.is_empty() {
            has_text = true;
            sink(Piece::Text(text))?;
        }
        let end = kept + read;
        buffer.copy_within(used..end, 0);
        (kept, offset) = (end - used, offset + used as u64);
        if read == 0 {
            return if has_text { sink(Piece::End(Label::None)) } else { Ok(()) };
        }
    }
}

pub(super) fn take_document(text: &str, sink: &mut Sink) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    sink(Piece::Text(text))?;
    sink(Piece::End(Label::None))
}

#[cfg(feature = "parquet")]
fn read_parquet(path: &Path, sink: &mut Sink) -> Result<()> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use parquet::schema::types::Type;
    let failed = |error: parquet::errors::ParquetError| bad(path, format!("cannot be read as Parquet: {error}"));
    let file = File::open(path).map_err(|error| Error::io("read", path, error))?;
    let reader = SerializedFileReader::new(file).map_err(failed)?;
    let schema = reader.metadata().file_metadata().schema();
    let Some(column) = schema.get_fields().iter().find(|field| field.name() == "text") else {
        let names: Vec<&str> = schema.get_fields().iter().map(|field| field.name()).collect();
        return Err(bad(path, format!("has no column `text`; its columns are {}", names.join(", "))));
    };
    let text_alone =
        Type::group_type_builder(schema.name()).with_fields(vec![column.clone()]).build().map_err(failed)?;
    for row in reader.get_row_iter(Some(text_alone)).map_err(failed)? {
        match row.map_err(failed)?.get_column_iter().next() {
            Some((_, Field::Str(text))) => take_document(text, sink)?,
            Some((_, Field::Null)) => {}
            other => return Err(bad(path, format!("its column `text` has type {other:?}, expected text"))),
        }
    }
    Ok(())
}

#[cfg(not(feature = "parquet"))]
fn read_parquet(path: &Path, _: &mut Sink) -> Result<()> {
    let message = "this build does not read Parquet; build it with `--features parquet`, or exclude such files with \
                   data.files";
    Err(bad(path, message.to_string()))
}
