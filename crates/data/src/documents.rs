//! Document boundaries in a token stream, and the loss mask.
//!
//! The file beside a token file is a list of little-endian u64, one per run of tokens with the same mask: its end
//! position times 4, plus 2 if a document ends there, plus 1 if its tokens are predicted. The highest four bits are the
//! label of the document that ends there.

use std::path::Path;

use serde::{Deserialize, Serialize};

use rustyflow_base::error::{Error, Result};

/// Packing of documents into rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    /// Documents are concatenated and cut into windows; a token attends to all previous tokens of its window.
    #[default]
    Stream,
    /// Several whole documents per row, without attention between them.
    Documents,
    /// One document per row.
    Off,
}

impl Packing {
    /// The requested packing; by default `Documents` if they have prompts, else `Stream`.
    pub(super) fn or_default(asked: Option<Packing>, has_prompts: bool) -> Packing {
        asked.unwrap_or(if has_prompts { Packing::Documents } else { Packing::Stream })
    }
}

/// What a document is to learning from preferences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Label {
    /// A text without a preference.
    #[default]
    None,
    /// The better one of two answers to a prompt. The next document is the other.
    Chosen,
    Rejected,
    /// An answer that is wanted, or not, by itself. With the next document, a [`Label::Mismatched`] one, in a row.
    Desirable,
    Undesirable,
    /// The prompt of the answer before it, and the answer to another one. Only rows have such documents.
    Mismatched,
}

impl Label {
    const IN_FILES: [Label; 5] = [Label::None, Label::Chosen, Label::Rejected, Label::Desirable, Label::Undesirable];

    /// Its code in files; that of texts is 0.
    fn code(self) -> u64 {
        self as u64
    }
}

/// Documents of a split.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Documents {
    stretches: Vec<Stretch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    /// The number of the token after its last.
    end: u64,
    /// The label of the document that ends with it.
    ends: Option<Label>,
    predicted: bool,
}

/// Where the label is in a number of the file.
const LABEL_SHIFT: u32 = 60;

/// One document: its tokens, and whether some of them are read only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Document {
    pub start: u64,
    pub end: u64,
    pub has_prompt: bool,
    pub label: Label,
}

impl Documents {
    /// Adds so many tokens, with which a document with this label may end.
    pub(super) fn add(&mut self, tokens: usize, predicted: bool, ends: Option<Label>) {
        let before = self.tokens();
        let end = before + tokens as u64;
        match self.stretches.last_mut() {
            Some(last) if last.ends.is_none() && (last.predicted == predicted || tokens == 0) => {
                (last.end, last.ends) = (end, ends);
            }
            // A document without tokens is none.
            _ if tokens == 0 => {}
            _ => self.stretches.push(Stretch { end, ends, predicted }),
        }
    }

    /// Of all documents.
    pub(super) fn tokens(&self) -> u64 {
        self.stretches.last().map_or(0, |last| last.end)
    }

    /// Whether some tokens are read and not predicted, or documents have labels.
    pub(super) fn has_prompts(&self) -> bool {
        self.stretches.iter().any(|stretch| !stretch.predicted || stretch.ends.unwrap_or_default() != Label::None)
    }

    /// All documents in order, including tokens after the last end.
    pub(super) fn iter(&self) -> impl Iterator<Item = Document> {
        let (mut start, mut at) = (0, 0);
        std::iter::from_fn(move || {
            let rest = &self.stretches[at..];
            let last = rest.iter().position(|stretch| stretch.ends.is_some()).or(rest.len().checked_sub(1))?;
            let document = Document {
                start,
                end: rest[last].end,
                has_prompt: rest[..=last].iter().any(|stretch| !stretch.predicted),
                label: rest[last].ends.unwrap_or_default(),
            };
            (start, at) = (document.end, at + last + 1);
            Some(document)
        })
    }

    /// Calls `ignore` with every range, counted from `start`, of the `count` tokens from number `start` on that are not
    /// predicted.
    pub(super) fn each_unpredicted(&self, start: u64, count: usize, mut ignore: impl FnMut(std::ops::Range<usize>)) {
        let end = start + count as u64;
        let first = self.stretches.partition_point(|stretch| stretch.end <= start);
        let mut from = start;
        for stretch in &self.stretches[first..] {
            let to = stretch.end.min(end);
            if !stretch.predicted && from < to {
                ignore((from - start) as usize..(to - start) as usize);
            }
            from = to;
            if from == end {
                break;
            }
        }
    }

    /// As they are in a file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let number = |s: &Stretch| {
            let label = s.ends.unwrap_or_default().code() << LABEL_SHIFT;
            (label | s.end << 2 | u64::from(s.ends.is_some()) << 1 | u64::from(s.predicted)).to_le_bytes()
        };
        self.stretches.iter().flat_map(number).collect()
    }

    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.bytes()).map_err(|error| Error::io("write", path, error))
    }

    /// Reads a file for this number of tokens.
    ///
    /// # Errors
    /// If it cannot be read or is invalid.
    pub(super) fn read(path: &Path, tokens: usize) -> Result<Documents> {
        let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
        let damaged = || Error::Corpus {
            path: path.to_path_buf(),
            message: format!("is damaged, or does not match the {tokens} tokens beside it; prepare the text again"),
        };
        let (numbers, rest) = bytes.as_chunks::<8>();
        let stretch = |number: &[u8; 8]| {
            let number = u64::from_le_bytes(*number);
            let label = *Label::IN_FILES.get((number >> LABEL_SHIFT) as usize).ok_or_else(damaged)?;
            let end = (number << 4) >> 6;
            Ok(Stretch { end, ends: (number & 2 != 0).then_some(label), predicted: number & 1 != 0 })
        };
        let documents = Documents { stretches: numbers.iter().map(stretch).collect::<Result<_>>()? };
        let rises = documents.stretches.is_sorted_by(|a, b| a.end < b.end);
        let begins = documents.stretches.first().is_none_or(|first| first.end > 0);
        if !rest.is_empty() || !rises || !begins || documents.tokens() != tokens as u64 {
            return Err(damaged());
        }
        Ok(documents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text; a question with an answer; an empty one; a text without an end.
    fn some() -> Documents {
        let mut documents = Documents::default();
        let (no, end) = (None, Some(Label::None));
        documents.add(3, true, no);
        documents.add(1, true, end);
        documents.add(5, false, no);
        documents.add(2, true, Some(Label::Chosen));
        documents.add(0, true, end);
        documents.add(4, true, no);
        documents
    }

    #[test]
    fn documents_come_back_with_their_prompts() {
        let all: Vec<Document> = some().iter().collect();
        let document = |start, end, has_prompt, label| Document { start, end, has_prompt, label };
        let text = Label::None;
        assert_eq!(
            all,
            [document(0, 4, false, text), document(4, 11, true, Label::Chosen), document(11, 15, false, text)]
        );
        assert_eq!((some().tokens(), some().has_prompts(), some().stretches.len()), (15, true, 4));
    }

    #[test]
    fn an_end_without_tokens_ends_the_document_before_it() {
        let mut documents = Documents::default();
        documents.add(3, false, None);
        documents.add(0, true, Some(Label::None));
        documents.add(2, true, Some(Label::None));
        let all: Vec<Document> = documents.iter().collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].end, all[0].has_prompt, all[1].has_prompt), (3, true, false));
    }

    #[test]
    fn ranges_that_are_not_predicted_are_those_of_prompts() {
        for (start, count, expected) in [
            (0, 15, vec![(4, 9)]),
            (0, 4, vec![]),
            (5, 2, vec![(0, 2)]),
            (8, 7, vec![(0, 1)]),
            (9, 6, vec![]),
            (2, 3, vec![(2, 3)]),
        ] {
            let mut found = vec![];
            some().each_unpredicted(start, count, |range| found.push((range.start, range.end)));
            assert_eq!(found, expected, "{count} from {start}");
        }
    }

    #[test]
    fn a_file_of_them_is_read_back_and_a_damaged_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("documents");
        some().write(&path).unwrap();
        assert_eq!(Documents::read(&path, 15).unwrap(), some());
        assert!(Documents::read(&path, 14).is_err());
        let bytes = std::fs::read(&path).unwrap();
        let label = [&bytes[..7], &[0xf0], &bytes[8..]].concat();
        let order = [&bytes[8..16], &bytes[..8], &bytes[16..]].concat();
        for damaged in [&bytes[..bytes.len() - 1], &order, &bytes[..8], &label] {
            std::fs::write(&path, damaged).unwrap();
            assert!(Documents::read(&path, 15).unwrap_err().to_string().contains("damaged"));
        }
    }
}
