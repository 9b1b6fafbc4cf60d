//! Document boundaries in a token stream, and the loss mask.
//!
//! The file beside a token file is a list of little-endian u64, one per run of tokens with the same mask: its end
//! position times 4, plus 2 if a document ends there, plus 1 if its tokens are predicted.

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

/// Documents of a split.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Documents {
    stretches: Vec<Stretch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    /// The number of the token after its last.
    end: u64,
    ends_document: bool,
    predicted: bool,
}

/// One document: its tokens, and whether some of them are read only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Document {
    pub start: u64,
    pub end: u64,
    pub has_prompt: bool,
}

impl Documents {
    /// Adds so many tokens.
    pub(super) fn add(&mut self, tokens: usize, predicted: bool, ends_document: bool) {
        let before = self.tokens();
        let end = before + tokens as u64;
        match self.stretches.last_mut() {
            Some(last) if !last.ends_document && (last.predicted == predicted || tokens == 0) => {
                (last.end, last.ends_document) = (end, ends_document);
            }
            // A document without tokens is none.
            _ if tokens == 0 => {}
            _ => self.stretches.push(Stretch { end, ends_document, predicted }),
        }
    }

    /// Of all documents.
    pub(super) fn tokens(&self) -> u64 {
        self.stretches.last().map_or(0, |last| last.end)
    }

    /// Whether some tokens are read and not predicted.
    pub(super) fn has_prompts(&self) -> bool {
        self.stretches.iter().any(|stretch| !stretch.predicted)
    }

    /// All documents in order, including tokens after the last end.
    pub(super) fn iter(&self) -> impl Iterator<Item = Document> {
        let (mut start, mut at) = (0, 0);
        std::iter::from_fn(move || {
            let rest = &self.stretches[at..];
            let last = rest.iter().position(|stretch| stretch.ends_document).or(rest.len().checked_sub(1))?;
            let document = Document {
                start,
                end: rest[last].end,
                has_prompt: rest[..=last].iter().any(|stretch| !stretch.predicted),
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
        let number =
            |s: &Stretch| (s.end << 2 | u64::from(s.ends_document) << 1 | u64::from(s.predicted)).to_le_bytes();
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
            Stretch { end: number >> 2, ends_document: number & 2 != 0, predicted: number & 1 != 0 }
        };
        let documents = Documents { stretches: numbers.iter().map(stretch).collect() };
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
        documents.add(3, true, false);
        documents.add(1, true, true);
        documents.add(5, false, false);
        documents.add(2, true, true);
        documents.add(0, true, true);
        documents.add(4, true, false);
        documents
    }

    #[test]
    fn documents_come_back_with_their_prompts() {
        let all: Vec<Document> = some().iter().collect();
        let document = |start, end, has_prompt| Document { start, end, has_prompt };
        assert_eq!(all, [document(0, 4, false), document(4, 11, true), document(11, 15, false)]);
        assert_eq!((some().tokens(), some().has_prompts(), some().stretches.len()), (15, true, 4));
    }

    #[test]
    fn an_end_without_tokens_ends_the_document_before_it() {
        let mut documents = Documents::default();
        documents.add(3, false, false);
        documents.add(0, true, true);
        documents.add(2, true, true);
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
        for damaged in [&bytes[..bytes.len() - 1], &[&bytes[8..16], &bytes[..8], &bytes[16..]].concat(), &bytes[..8]] {
            std::fs::write(&path, damaged).unwrap();
            assert!(Documents::read(&path, 15).unwrap_err().to_string().contains("damaged"));
        }
    }
}
