//! Cuts text of any length into segments that can be encoded one by one, and in parallel: their ids, joined, are those
//! of the whole text.

use super::splitter::Splitter;
use aho_corasick::AhoCorasick;
use rustyflow_base::error::Result;

/// The size of a segment, bytes: large enough that the overhead vanishes, small enough that 1 MB keeps every core busy.
pub(super) const SEGMENT_BYTES: usize = 1 << 18;

/// Bytes added at once: every cut moves the rest.
const PIECE_BYTES: usize = 1 << 20;

/// Longest buffered text without a cut, bytes.
const MOST_BYTES: usize = 1 << 23;

/// Where a text may be cut, which the pre-tokenizer decides.
pub(super) enum Boundary {
    /// Between all characters.
    Anywhere,
    /// Between a word and white space.
    Word,
    /// Where no match of the pattern runs across, and none looks behind: before a space that follows something else,
    /// because spaces come only first in a match, or between a line break that stands alone and what follows.
    Pattern(Box<Splitter>),
    /// Before the first of several spaces: each begins a pre-token, or no token holds one after another character.
    Space,
    /// Unknown: documents are encoded whole.
    Nowhere,
}

/// The white space of SentencePiece's vocabularies.
pub(super) const META_SPACE: char = '▁';

impl Boundary {
    /// The last place in `text` before `limit` where it can be cut whatever follows.
    pub(super) fn cut(&self, text: &str, limit: usize, added: Option<&AhoCorasick>) -> Option<usize> {
        if matches!(self, Boundary::Nowhere) {
            return None;
        }
        let limit = text.floor_char_boundary(limit.min(text.len()));
        let mut next = text[limit..].chars().next()?;
        let mut before = text[..limit].char_indices().rev().peekable();
        while let Some((at, previous)) = before.next() {
            let place = at + previous.len_utf8();
            let earlier = before.peek().map(|(_, char)| *char);
            if self.is_safe(earlier, previous, next) && !is_inside(text, place, added) {
                return Some(place);
            }
            next = previous;
        }
        None
    }

    fn is_safe(&self, earlier: Option<char>, previous: char, next: char) -> bool {
        match self {
            Boundary::Anywhere => true,
            Boundary::Word => next.is_whitespace() && !previous.is_whitespace(),
            Boundary::Pattern(_) => {
                let lone_break = previous == '\n' && earlier.is_some_and(|c| !c.is_whitespace());
                (next == ' ' && !previous.is_whitespace()) || (lone_break && !next.is_whitespace())
            }
            Boundary::Space => next == ' ' && previous != ' ' && previous != META_SPACE,
            Boundary::Nowhere => false,
        }
    }
}

/// Whether an added token, which is found before anything is split, lies across a place.
fn is_inside(text: &str, place: usize, added: Option<&AhoCorasick>) -> bool {
    let Some(added) = added else { return false };
    let reach = added.max_pattern_len();
    let start = text.floor_char_boundary(place.saturating_sub(reach));
    let end = text.floor_char_boundary((place + reach).min(text.len()));
    added.find_overlapping_iter(&text[start..end]).any(|found| {
        let (from, to) = (start + found.start(), start + found.end());
        from < place && place < to
    })
}

/// A part of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub text: String,
    /// Its start in the document, bytes.
    pub offset: u64,
    /// End of each stretch, bytes from the segment's start, and whether it is predicted. At least one stretch.
    pub stretches: Vec<(usize, bool)>,
    /// Whether the document ends with it.
    pub ends: bool,
}

/// Cuts documents, given piece by piece, into segments.
pub(crate) struct Segmenter<'a> {
    boundary: &'a Boundary,
    added: Option<&'a AhoCorasick>,
    pending: String,
    /// As in [`Segment`], of that; the last one goes on.
    stretches: Vec<(usize, bool)>,
    /// Whether predicted and masked stretches are tokenized as one text instead of separately.
    pub joins: bool,
    offset: u64,
    /// Number of unsafe cuts, because [`MOST_BYTES`] of text had no safe one.
    pub forced: usize,
}

impl<'a> Segmenter<'a> {
    pub(super) fn new(boundary: &'a Boundary, added: Option<&'a AhoCorasick>) -> Segmenter<'a> {
        Segmenter {
            boundary,
            added,
            pending: String::new(),
            stretches: vec![(0, true)],
            joins: false,
            offset: 0,
            forced: 0,
        }
    }

    /// Adds the next piece of the document. There is a cut between predicted and masked pieces, as in generation, where
    /// a prompt is encoded alone, unless the segmenter [`joins`](Segmenter::joins) them.
    ///
    /// # Errors
    /// Those of `emit`.
    pub(crate) fn push(
        &mut self,
        piece: &str,
        predicted: bool,
        emit: &mut dyn FnMut(Segment) -> Result<()>,
    ) -> Result<()> {
        let (_, before) = self.stretches[self.stretches.len() - 1];
        if predicted != before && !self.pending.is_empty() && !self.joins {
            self.emit(self.pending.len(), false, emit)?;
        }
        match self.stretches.last_mut() {
            Some(last) if self.pending.is_empty() => *last = (0, predicted),
            _ if predicted != before => self.stretches.push((self.pending.len(), predicted)),
            _ => {}
        }
        let mut rest = piece;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            self.add(part, emit)?;
            rest = after;
        }
        Ok(())
    }

    fn add(&mut self, piece: &str, emit: &mut dyn FnMut(Segment) -> Result<()>) -> Result<()> {
        self.pending.push_str(piece);
        if let Some((end, _)) = self.stretches.last_mut() {
            *end = self.pending.len();
        }
        // Twice the size, so that no last segment is tiny.
        while self.pending.len() >= 2 * SEGMENT_BYTES {
            let near = self.boundary.cut(&self.pending, SEGMENT_BYTES, self.added);
            let cut = near.or_else(|| self.boundary.cut(&self.pending, self.pending.len() - 1, self.added));
            let Some(cut) = cut.or_else(|| self.cut_without_space()) else { return Ok(()) };
            self.emit(cut, false, emit)?;
        }
        Ok(())
    }

    /// Ends the document.
    ///
    /// # Errors
    /// Those of `emit`.
    pub(crate) fn end_document(&mut self, emit: &mut dyn FnMut(Segment) -> Result<()>) -> Result<()> {
        self.emit(self.pending.len(), true, emit)?;
        self.offset = 0;
        Ok(())
    }

    fn emit(&mut self, cut: usize, ends: bool, emit: &mut dyn FnMut(Segment) -> Result<()>) -> Result<()> {
        let rest = self.pending.split_off(cut);
        let text = std::mem::replace(&mut self.pending, rest);
        let offset = self.offset;
        self.offset += cut as u64;
        // The stretch that is cut is in both parts.
        let first = self.stretches.iter().position(|(end, _)| *end >= cut).unwrap_or(0);
        let mut stretches = self.stretches[..=first].to_vec();
        stretches[first].0 = cut;
        self.stretches.drain(..first);
        if self.stretches.len() > 1 && self.stretches[0].0 == cut {
            self.stretches.remove(0);
        }
        self.stretches.iter_mut().for_each(|(end, _)| *end -= cut);
        emit(Segment { text, offset, stretches, ends })
    }

    /// Of a text that has become long and has no usual place to cut: languages without spaces, or data.
    fn cut_without_space(&mut self) -> Option<usize> {
        if self.pending.len() < MOST_BYTES || matches!(self.boundary, Boundary::Nowhere) {
            return None;
        }
        if let Boundary::Pattern(splitter) = self.boundary
            && let Some(cut) = splitter.last_boundary(&mut splitter.cache(), &self.pending)
            && !is_inside(&self.pending, cut, self.added)
        {
            return Some(cut);
        }
        self.forced += 1;
        Some(self.pending.floor_char_boundary(MOST_BYTES / 2))
    }
}
