//! Text to ids: segment by segment on all cores.
//!
//! For a known pre-tokenizer, ids of pre-tokens are cached, and the library merges only new ones. Segments with added
//! tokens are encoded by the library.

use super::segment::{Boundary, META_SPACE, Segment, Segmenter};
use super::splitter::Splitter;
use super::{Kind, Tokenizer, error, recipe};
use rayon::prelude::*;
use regex_automata::hybrid::dfa::Cache;
use rustc_hash::FxHashMap;
use rustyflow_base::error::Result;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::PoisonError;
use tokenizers::{Model as _, NormalizedString, Normalizer as _};
use unicode_normalization::{IsNormalized, is_nfc_quick};

/// Most cached pre-tokens per thread, and the longest of them, bytes.
const MOST_WORDS: usize = 1 << 17;
const LONGEST_WORD: usize = 48;

/// State of an encoding thread, kept between segments.
#[derive(Default)]
pub(super) struct Worker {
    automaton: Option<Cache>,
    /// Of each pre-token, where its ids are in `ids`.
    words: FxHashMap<Box<str>, (u32, u32)>,
    ids: Vec<u32>,
    /// A pre-token as the vocabulary writes it.
    written: String,
}

/// A run of a segment's tokens that are all predicted or all masked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// Their bytes in the segment.
    pub text: Range<usize>,
    /// Their range of the segment's tokens.
    pub ids: Range<usize>,
    pub predicted: bool,
}

impl Tokenizer {
    /// Encodes `text` on all cores, without adding tokens for its beginning or end.
    ///
    /// Fails on a character that the vocabulary lacks, unless it has `<unk>`.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut segments = vec![];
        let mut segmenter = self.segmenter();
        let mut take = |segment| {
            segments.push(segment);
            Ok(())
        };
        segmenter.push(text, true, &mut take)?;
        segmenter.end_document(&mut take)?;
        let ids: Vec<Vec<u32>> =
            segments.par_iter().map(|s| self.encode_segment(&s.text, s.offset)).collect::<Result<_>>()?;
        Ok(ids.concat())
    }

    /// A segmenter of documents for [`encode_segment`](Tokenizer::encode_segment).
    pub(crate) fn segmenter(&self) -> Segmenter<'_> {
        Segmenter::new(&self.boundary, self.added.as_ref())
    }

    /// Encodes a segment that starts at byte `offset` of its document.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode`].
    pub(crate) fn encode_segment(&self, text: &str, offset: u64) -> Result<Vec<u32>> {
        if let Kind::ByteLevel { missing, .. } = &self.kind
            && let Some(at) = text.bytes().position(|byte| missing.contains(&byte))
        {
            let (byte, at) = (text.as_bytes()[at], at as u64 + offset);
            return Err(error(&self.name, format!("has no token for the byte 0x{byte:02x} at {at}")));
        }
        if self.added.as_ref().is_some_and(|added| added.is_match(text)) {
            return self.by_the_library(text);
        }
        match (&self.kind, &self.boundary) {
            (Kind::Char { ids, unknown }, _) => self.encode_chars(text, offset, ids, *unknown),
            (Kind::Word { ids, eos, unknown }, _) => Ok(encode_words(text, ids, *eos, *unknown)),
            (Kind::ByteLevel { normalizes, .. }, Boundary::Pattern(splitter)) => {
                let is_normal = !normalizes || text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes;
                if is_normal {
                    return self.encode_bytes(text, splitter);
                }
                let mut normalized = NormalizedString::from(text);
                let normalizer = self.inner.get_normalizer().expect("it normalizes");
                normalizer.normalize(&mut normalized).map_err(|cause| error(&self.name, cause.to_string()))?;
                // Some added tokens are looked for in this form.
                if self.added.as_ref().is_some_and(|added| added.is_match(normalized.get())) {
                    return self.by_the_library(text);
                }
                self.encode_bytes(normalized.get(), splitter)
            }
            (Kind::Spaces { prepend, splits }, _) => self.encode_spaces(text, *prepend && offset == 0, *splits),
            _ => self.by_the_library(text),
        }
    }

    /// Encodes a segment, in runs that are predicted or masked as a whole. A token across a boundary is predicted, as
    /// in transformers' `return_assistant_tokens_mask`.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode`].
    pub(crate) fn encode_runs(&self, segment: &Segment) -> Result<(Vec<u32>, Vec<Run>)> {
        let Segment { text, offset, stretches, .. } = segment;
        if let [(_, predicted)] = stretches[..] {
            let ids = self.encode_segment(text, *offset)?;
            let run = Run { text: 0..text.len(), ids: 0..ids.len(), predicted };
            return Ok((ids, vec![run]));
        }
        let (ids, ranges) = self.encode_with_ranges(text, *offset)?;
        let is_predicted = |range: &Range<usize>| {
            // Some pre-tokenizers report a token of white space as an empty one behind it.
            let (start, end) = (range.start.min(range.end.saturating_sub(1)), range.end);
            let mut begins = 0;
            stretches.iter().any(|&(ends, predicted)| {
                let begin = std::mem::replace(&mut begins, ends);
                predicted && start < ends && begin < end
            })
        };
        let mut runs: Vec<Run> = vec![];
        for (i, range) in ranges.iter().enumerate() {
            let predicted = is_predicted(range);
            match runs.last_mut() {
                Some(last) if last.predicted == predicted => last.ids.end = i + 1,
                last => {
                    let from =
                        last.as_ref().map_or(0, |last| text.floor_char_boundary(range.start).max(last.text.start));
                    if let Some(last) = last {
                        last.text.end = from;
                    }
                    runs.push(Run { text: from..text.len(), ids: i..i + 1, predicted });
                }
            }
        }
        if runs.is_empty() {
            let predicted = stretches.last().is_none_or(|(_, predicted)| *predicted);
            runs.push(Run { text: 0..text.len(), ids: 0..0, predicted });
        }
        Ok((ids, runs))
    }

    /// The ids of `text` after `before`, as in the whole text. `None` if a token spans the boundary and the tokenizer
    /// adds a space before every text, so the rest is ambiguous.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode`].
    pub fn encode_after(&self, before: &str, text: &str) -> Result<Option<Vec<u32>>> {
        let (ids, ranges) = self.encode_with_ranges(&format!("{before}{text}"), 0)?;
        let first = ranges.iter().position(|range| range.end > before.len()).unwrap_or(ids.len());
        if ranges.get(first).is_none_or(|range| range.start >= before.len()) {
            return Ok(Some(ids[first..].to_vec()));
        }
        if self.adds_space { Ok(None) } else { self.encode_segment(text, before.len() as u64).map(Some) }
    }

    /// The ids of a segment, and the byte range of each.
    fn encode_with_ranges(&self, text: &str, offset: u64) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        // Of other kinds, tokens do not have the bytes of the text.
        if let Kind::Char { .. } | Kind::ByteLevel { .. } = self.kind {
            let ids = self.encode_segment(text, offset)?;
            let mut end = 0;
            let range = |id: &u32| {
                let piece = self.pieces.get(*id as usize)?;
                let start = end;
                end += piece.len();
                (text.as_bytes().get(start..end) == Some(piece)).then_some(start..end)
            };
            let ranges: Option<Vec<_>> = ids.iter().map(range).collect();
            if let Some(ranges) = ranges.filter(|_| end == text.len()) {
                return Ok((ids, ranges));
            }
        }
        let encoding = self.guarded(|inner| inner.encode(text, false))?;
        let ranges = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok((encoding.get_ids().to_vec(), ranges))
    }

    fn by_the_library(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.guarded(|inner| inner.encode_fast(text, false))?.get_ids().to_vec())
    }

    fn encode_chars(
        &self,
        text: &str,
        offset: u64,
        ids: &HashMap<char, u32>,
        unknown: Option<u32>,
    ) -> Result<Vec<u32>> {
        let id = |(at, char): (usize, char)| {
            ids.get(&char).copied().or(unknown).ok_or_else(|| {
                let message = format!(
                    "the character {char:?} (U+{:04X}, at byte {}) is not among the {} characters of the text that the \
                     tokenizer was built on",
                    char as u32,
                    at as u64 + offset,
                    ids.len()
                );
                error(&self.name, message)
            })
        };
        text.char_indices().map(id).collect()
    }

    /// Of byte-level BPE.
    fn encode_bytes(&self, text: &str, splitter: &Splitter) -> Result<Vec<u32>> {
        self.with_worker(|worker| {
            let mut ids = Vec::with_capacity(text.len() / 3);
            let mut automaton = worker.automaton.take().unwrap_or_else(|| splitter.cache());
            let mut result = Ok(());
            splitter.split(&mut automaton, text, |token| {
                let write =
                    |written: &mut String| written.extend(token.bytes().map(|byte| self.symbols[usize::from(byte)]));
                if result.is_ok() {
                    result = self.encode_pre_token(token, write, worker, &mut ids);
                }
            });
            worker.automaton = Some(automaton);
            result.map(|()| ids)
        })
    }

    /// Of SentencePiece's vocabularies: spaces are `▁`, and begin a pre-token.
    fn encode_spaces(&self, text: &str, prepend: bool, splits: bool) -> Result<Vec<u32>> {
        let is_space = |char: char| char == ' ' || char == META_SPACE;
        self.with_worker(|worker| {
            let mut ids = Vec::with_capacity(text.len() / 3);
            let mut rest = text;
            let mut prepend = prepend && !text.starts_with(is_space);
            while !rest.is_empty() {
                let mut before = rest.chars().next().expect("it is not empty");
                let ends = |&(_, char): &(usize, char)| {
                    let previous = std::mem::replace(&mut before, char);
                    is_space(char) && (splits || !is_space(previous))
                };
                let end = rest.char_indices().skip(1).find(ends).map_or(rest.len(), |(at, _)| at);
                let (token, after) = rest.split_at(end);
                let write = |written: &mut String| {
                    written.extend(prepend.then_some(META_SPACE));
                    written.extend(token.chars().map(|char| if char == ' ' { META_SPACE } else { char }));
                };
                if prepend {
                    write(&mut worker.written);
                    self.merge(worker, &mut ids)?;
                } else {
                    self.encode_pre_token(token, write, worker, &mut ids)?;
                }
                (rest, prepend) = (after, false);
            }
            Ok(ids)
        })
    }

    /// Adds the ids of a pre-token; `write` writes it as the vocabulary does.
    fn encode_pre_token(
        &self,
        token: &str,
        write: impl Fn(&mut String),
        worker: &mut Worker,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        if let Some((start, length)) = worker.words.get(token) {
            ids.extend_from_slice(&worker.ids[*start as usize..][..*length as usize]);
            return Ok(());
        }
        write(&mut worker.written);
        let before = ids.len();
        self.merge(worker, ids)?;
        if worker.words.len() < MOST_WORDS && token.len() <= LONGEST_WORD {
            let place = (worker.ids.len() as u32, (ids.len() - before) as u32);
            worker.ids.extend_from_slice(&ids[before..]);
            worker.words.insert(token.into(), place);
        }
        Ok(())
    }

    /// Adds the ids of what is written.
    fn merge(&self, worker: &mut Worker, ids: &mut Vec<u32>) -> Result<()> {
        let tokens = self.guarded(|inner| inner.get_model().tokenize(&worker.written));
        worker.written.clear();
        ids.extend(tokens?.iter().map(|token| token.id));
        Ok(())
    }

    fn with_worker<T>(&self, body: impl FnOnce(&mut Worker) -> T) -> T {
        let idle = || self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut worker = idle().pop().unwrap_or_default();
        let value = body(&mut worker);
        idle().push(worker);
        value
    }
}

fn encode_words(text: &str, ids: &HashMap<String, u32>, eos: u32, unknown: u32) -> Vec<u32> {
    let mut result = vec![];
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            result.push(eos);
        }
        result.extend(line.split_whitespace().map(|word| ids.get(word).copied().unwrap_or(unknown)));
    }
    result
}

/// The character of every byte in byte-level vocabularies.
pub(super) fn symbols() -> [char; 256] {
    std::array::from_fn(|byte| recipe::symbol_of(byte as u8))
}
