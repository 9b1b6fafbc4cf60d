//! Rows of whole documents, packed or one per row.
//!
//! A document of n tokens has n - 1 inputs: its last token is only a target. A document longer than a row is split into
//! several documents, so that all tokens but the first of each are targets. With a prompt, the rest beyond the row is
//! dropped instead, because it means little without the prompt.
//!
//! The two answers of a pair share a row, so that every row has a loss of its own. A pair that is longer than the row
//! is truncated: each answer to half of it, or the longer one to what the other leaves. An answer with a label of its
//! own is paired with its prompt before the answer of the previous document, which KTO needs.
//!
//! Packing is best-fit decreasing: the longest first, each into the fullest row that has room (Johnson et al. 1974; for
//! training, Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). Documents do not attend to each other,
//! so it does not matter which share a row.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::documents::{Document, Label, Packing};
use super::loader::IGNORE_INDEX;
use super::tokens::Tokens;
use rustyflow_base::error::{Error, Result};

/// A text, cut into rows of `block_size` places.
pub(super) struct Rows {
    tokens: Tokens,
    /// Sorted by row.
    pieces: Vec<Piece>,
    /// Where in `pieces` each row ends.
    ends: Vec<u32>,
    block_size: usize,
    left_out: LeftOut,
    mismatched: Mismatched,
}

/// By the start of each document with a label of its own: the tokens of its prompt, and another answer.
type Mismatched = HashMap<u64, (usize, Range<u64>)>;

/// A document, or as much of it as a row takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    start: u64,
    inputs: u32,
    label: Label,
}

/// Documents that do not fit in rows.
#[derive(Debug, Clone, Copy, Default)]
struct LeftOut {
    /// Number of truncated documents.
    cut: usize,
    /// Number of dropped documents, whose predicted tokens are all beyond the row.
    whole: usize,
}

/// One row of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Inputs, (T).
    pub ids: Vec<u32>,
    /// The next token of each input, (T); [`IGNORE_INDEX`] if there is none or it is masked.
    pub targets: Vec<u32>,
    /// Start of each input's document in the row, (T); `None` if the row is one text.
    pub starts: Option<Vec<u32>>,
    /// The documents with a label, in order.
    pub answers: Vec<Answer>,
}

/// A document with a label: the places of its inputs, in a row or in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub places: Range<usize>,
    pub label: Label,
}

impl Answer {
    /// The same in a batch in which its row begins at `start`.
    pub fn from(self, start: usize) -> Answer {
        let from = |place: usize| place.saturating_add(start);
        Answer { places: from(self.places.start)..from(self.places.end), ..self }
    }
}

impl Rows {
    /// # Errors
    /// If there is nothing to predict, or more rows than can be counted.
    pub(super) fn new(tokens: Tokens, block_size: usize) -> Result<Rows> {
        let mismatched = mismatched(&tokens);
        let (mut pieces, left_out) = pieces(&tokens, block_size, &mismatched);
        let order = match tokens.packing() {
            Packing::Documents => pack(&pieces, block_size),
            _ => units(&pieces).map(|(first, _)| unit(&pieces, first).collect()).collect(),
        };
        if pieces.is_empty() || pieces.len() > u32::MAX as usize {
            let count = pieces.len();
            return Err(Error::Invalid(format!(
                "the text has {count} documents with predicted tokens within model.block_size = {block_size}; \
                 expected 1 to {}",
                u32::MAX
            )));
        }
        let mut ends = Vec::with_capacity(order.len());
        let all = std::mem::take(&mut pieces);
        for row in order {
            pieces.extend(row.into_iter().map(|piece| all[piece as usize]));
            ends.push(pieces.len() as u32);
        }
        Ok(Rows { tokens, pieces, ends, block_size, left_out, mismatched })
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// A note for the user on truncated and dropped documents.
    pub(super) fn note(&self) -> String {
        let places = self.len() * self.block_size;
        let used: u64 = self.pieces.iter().map(|piece| u64::from(piece.inputs)).sum();
        let share = 100.0 * used as f64 / places as f64;
        let (rows, t, first) = (self.len(), self.block_size, self.pieces.first());
        let (what, room) = match first.map_or(Label::None, |piece| piece.label) {
            Label::None => ("documents", t),
            Label::Chosen => ("pairs of answers", t / 2),
            _ => ("answers", t / 2),
        };
        let count = units(&self.pieces).count();
        let mut note = format!("{count} {what} are packed into {rows} rows of {t} tokens, {share:.1}% full");
        let LeftOut { cut, whole } = self.left_out;
        if cut + whole > 0 {
            note += &format!("; {cut} are truncated, {whole} are dropped: their first {room} tokens are all prompt");
        }
        note
    }

    pub(super) fn row(&self, number: usize) -> Row {
        let t = self.block_size;
        let (mut ids, mut targets) = (vec![0; t], vec![IGNORE_INDEX; t]);
        let (mut starts, mut answers) = (vec![0; t], vec![]);
        let first = number.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        let mut at = 0;
        for piece in &self.pieces[first..self.ends[number] as usize] {
            let (start, end) = (piece.start as usize, at + piece.inputs as usize);
            match piece.label {
                Label::Mismatched => self.mismatch(piece.start, &mut ids[at..end], &mut targets[at..end]),
                _ => {
                    self.tokens.copy(start, &mut ids[at..end]);
                    self.tokens.copy_targets(start + 1, &mut targets[at..end]);
                }
            }
            starts[at..end].fill(at as u32);
            if piece.label != Label::None {
                answers.push(Answer { places: at..end, label: piece.label });
            }
            at = end;
        }
        // What is left over sees itself alone.
        starts[at..].fill(at as u32);
        Row { ids, targets, starts: Some(starts), answers }
    }

    /// The prompt of the document at `start`, and the answer to another.
    fn mismatch(&self, start: u64, ids: &mut [u32], targets: &mut [u32]) {
        let (prompt, answer) = self.mismatched[&start].clone();
        let mut all = vec![0; ids.len() + 1];
        let (of_prompt, of_answer) = all.split_at_mut(prompt.min(ids.len() + 1));
        self.tokens.copy(start as usize, of_prompt);
        self.tokens.copy(answer.start as usize, of_answer);
        ids.copy_from_slice(&all[..ids.len()]);
        let unpredicted = prompt.saturating_sub(1).min(targets.len());
        targets[unpredicted..].copy_from_slice(&all[unpredicted + 1..]);
    }
}

/// The documents of a text, those that are longer than a row cut.
fn pieces(tokens: &Tokens, block_size: usize, mismatched: &Mismatched) -> (Vec<Piece>, LeftOut) {
    let (mut pieces, mut left_out) = (vec![], LeftOut::default());
    let mut documents = tokens.documents().peekable();
    while let Some(document) = documents.next() {
        let Document { start, label, .. } = document;
        let inputs = inputs_of(&document);
        if label == Label::Chosen {
            // Half a pair is none.
            let Some(other) = documents.next_if(|other| other.label == Label::Rejected) else {
                left_out.whole += 1;
                continue;
            };
            let [kept, of_other] = fit([inputs, inputs_of(&other)], block_size);
            if is_predicted(tokens, start, kept) && is_predicted(tokens, other.start, of_other) {
                left_out.cut += usize::from(kept + of_other < inputs + inputs_of(&other));
                pieces.push(Piece { start, inputs: kept as u32, label });
                pieces.push(Piece { start: other.start, inputs: of_other as u32, label: other.label });
            } else {
                left_out.whole += 1;
            }
        } else if label != Label::None {
            let Some((prompt, answer)) = mismatched.get(&start).cloned() else {
                left_out.whole += 1;
                continue;
            };
            let other = (prompt + (answer.end - answer.start) as usize).saturating_sub(1);
            let [kept, of_other] = fit([inputs, other], block_size);
            if is_predicted(tokens, start, kept) && of_other >= prompt.max(1) {
                left_out.cut += usize::from(kept + of_other < inputs + other);
                pieces.push(Piece { start, inputs: kept as u32, label });
                pieces.push(Piece { start, inputs: of_other as u32, label: Label::Mismatched });
            } else {
                left_out.whole += 1;
            }
        } else if document.has_prompt {
            let kept = inputs.min(block_size);
            if is_predicted(tokens, start, kept) {
                left_out.cut += usize::from(kept < inputs);
                pieces.push(Piece { start, inputs: kept as u32, label });
            } else {
                left_out.whole += 1;
            }
        } else {
            let starts = (0..inputs).step_by(block_size);
            let piece =
                |at: usize| Piece { start: start + at as u64, inputs: (inputs - at).min(block_size) as u32, label };
            pieces.extend(starts.map(piece));
        }
    }
    (pieces, left_out)
}

fn inputs_of(document: &Document) -> usize {
    (document.end - document.start).saturating_sub(1) as usize
}

fn mismatched(tokens: &Tokens) -> Mismatched {
    let labelled = |document: &Document| matches!(document.label, Label::Desirable | Label::Undesirable);
    let documents: Vec<Document> = tokens.documents().filter(labelled).collect();
    let answers = documents.iter().map(|document| document.start + tokens.prompt_of(document) as u64..document.end);
    let answers: Vec<Range<u64>> = answers.collect();
    let each = documents.iter().enumerate().map(|(i, document)| {
        let other = i.checked_sub(1).unwrap_or(documents.len() - 1);
        (document.start, ((answers[i].start - document.start) as usize, answers[other].clone()))
    });
    each.collect()
}

/// What two answers of these lengths keep in a row.
fn fit([a, b]: [usize; 2], block_size: usize) -> [usize; 2] {
    let half = block_size / 2;
    [a.min(half.max(block_size.saturating_sub(b))), b.min(half.max(block_size.saturating_sub(a)))]
}

/// Whether any of so many targets after `start` is predicted.
fn is_predicted(tokens: &Tokens, start: u64, inputs: usize) -> bool {
    let mut targets = vec![0; inputs];
    tokens.copy_targets(start as usize + 1, &mut targets);
    targets.iter().any(|&target| target != IGNORE_INDEX)
}

/// What shares a row: a pair, or one piece. The number of its first piece, and its inputs.
fn units(pieces: &[Piece]) -> impl Iterator<Item = (u32, usize)> {
    let firsts = (0..pieces.len()).filter(|&piece| !matches!(pieces[piece].label, Label::Rejected | Label::Mismatched));
    firsts.map(|first| {
        (first as u32, unit(pieces, first as u32).map(|piece| pieces[piece as usize].inputs as usize).sum())
    })
}

/// The pieces of a unit.
fn unit(pieces: &[Piece], first: u32) -> std::ops::RangeInclusive<u32> {
    first..=first + u32::from(pieces[first as usize].label != Label::None)
}

/// Counts documents that are truncated or dropped in rows of `block_size` tokens.
pub(super) fn left_out(tokens: &Tokens, block_size: usize) -> (usize, usize) {
    let (_, LeftOut { cut, whole }) = pieces(tokens, block_size, &mismatched(tokens));
    (cut, whole)
}

/// Which pieces are in each row.
fn pack(pieces: &[Piece], block_size: usize) -> Vec<Vec<u32>> {
    let mut order: Vec<(u32, usize)> = units(pieces).collect();
    order.sort_by_key(|&(_, inputs)| std::cmp::Reverse(inputs));
    let mut rows: Vec<Vec<u32>> = vec![];
    // Rows by how much room they have.
    let mut room: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (first, inputs) in order {
        let fullest = room.range(inputs..).next().map(|(&left, _)| left);
        let (row, left) = match fullest {
            Some(left) => {
                let of_size = room.get_mut(&left).expect("it was found");
                let row = of_size.pop().expect("no list is empty");
                if of_size.is_empty() {
                    room.remove(&left);
                }
                (row, left)
            }
            None => {
                rows.push(vec![]);
                (rows.len() - 1, block_size)
            }
        };
        rows[row].extend(unit(pieces, first));
        if left > inputs {
            room.entry(left - inputs).or_default().push(row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::documents::Documents;
    use super::*;

    /// Tokens 100, 101, ... in documents of these lengths, of which so many at the beginning are prompt.
    fn text(documents: &[(usize, usize)], packing: Packing) -> Tokens {
        let mut layout = Documents::default();
        for (prompt, answer) in documents {
            layout.add(*prompt, false, None);
            layout.add(*answer, true, Some(Label::None));
        }
        let ids: Vec<u32> = (100..100 + layout.tokens() as u32).collect();
        Tokens::from(ids).in_documents(layout, packing).unwrap()
    }

    fn pairs(rows: &Rows) -> Vec<(u32, u32)> {
        let pairs = |row: Row| row.ids.into_iter().zip(row.targets).filter(|(_, target)| *target != IGNORE_INDEX);
        let mut all: Vec<_> = (0..rows.len()).flat_map(|row| pairs(rows.row(row))).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn every_token_that_is_predicted_comes_once_and_none_follows_another_document() {
        for packing in [Packing::Documents, Packing::Off] {
            let rows = Rows::new(text(&[(3, 4), (0, 5), (2, 1), (0, 1), (0, 30)], packing), 8).unwrap();
            // 100-106 | 107-111 | 112-114 | 115 | 116-145
            let expected: Vec<_> = [102..106, 107..111, 113..114, 116..145].concat_pairs();
            assert_eq!(pairs(&rows), expected, "{packing:?}");
        }
    }

    trait ConcatPairs {
        fn concat_pairs(self) -> Vec<(u32, u32)>;
    }

    impl<const N: usize> ConcatPairs for [std::ops::Range<u32>; N] {
        fn concat_pairs(self) -> Vec<(u32, u32)> {
            self.into_iter().flatten().map(|token| (token, token + 1)).collect()
        }
    }

    #[test]
    fn documents_in_a_row_know_where_they_begin() {
        let rows = Rows::new(text(&[(0, 6), (0, 3)], Packing::Documents), 8).unwrap();
        assert_eq!(rows.len(), 1);
        let row = rows.row(0);
        assert_eq!(row.ids, [100, 101, 102, 103, 104, 106, 107, 0]);
        assert_eq!(row.targets, [101, 102, 103, 104, 105, 107, 108, IGNORE_INDEX]);
        assert_eq!(row.starts.unwrap(), [0, 0, 0, 0, 0, 5, 5, 7]);
    }

    #[test]
    fn packing_leaves_little_room() {
        let mut random = super::super::random::SplitMix64(1);
        let lengths: Vec<(usize, usize)> = (0..2000).map(|_| (0, 2 + random.below(60) as usize)).collect();
        let inputs: usize = lengths.iter().map(|(_, length)| length - 1).sum();
        let packed = Rows::new(text(&lengths, Packing::Documents), 64).unwrap();
        assert!(packed.len() * 64 < inputs + inputs / 50, "{} rows for {inputs} inputs", packed.len());
        assert_eq!(Rows::new(text(&lengths, Packing::Off), 64).unwrap().len(), 2000);
    }

    #[test]
    fn a_prompt_that_fills_the_row_is_left_out_and_said_to_be() {
        let rows = Rows::new(text(&[(9, 3), (4, 9), (2, 2)], Packing::Documents), 8).unwrap();
        assert!(rows.note().contains("1 are truncated, 1 are dropped"), "{}", rows.note());
        assert_eq!(pairs(&rows).len(), 5 + 2);
    }

    #[test]
    fn both_answers_of_a_pair_share_a_row() {
        let mut layout = Documents::default();
        for (chosen, rejected) in [(3, 2), (2, 9), (1, 1), (9, 9)] {
            for (answer, label) in [(chosen, Label::Chosen), (rejected, Label::Rejected)] {
                layout.add(2, false, None);
                layout.add(answer, true, Some(label));
            }
        }
        let ids: Vec<u32> = (0..layout.tokens() as u32).collect();
        for packing in [Packing::Off, Packing::Documents] {
            let tokens = Tokens::from(ids.clone()).in_documents(layout.clone(), packing).unwrap();
            assert_eq!(tokens.document_lengths().collect::<Vec<_>>(), [8, 14, 5, 21]);
            let rows = Rows::new(tokens.clone(), 12).unwrap();
            let mut found = vec![];
            for row in (0..rows.len()).map(|row| rows.row(row)) {
                for pair in row.answers.chunks(2) {
                    let [chosen, rejected] = pair else { panic!("half a pair in {row:?}") };
                    assert_eq!([chosen.label, rejected.label], [Label::Chosen, Label::Rejected]);
                    let lengths = [chosen, rejected].map(|answer| answer.places.len());
                    found.push((row.ids[chosen.places.start], row.ids[rejected.places.start], lengths));
                }
            }
            found.sort_unstable();
            // The second and the last are cut.
            let expected = [(0, 5, [4, 3]), (9, 13, [3, 9]), (24, 27, [2, 2]), (30, 41, [6, 6])];
            assert_eq!(found, expected, "{packing:?}");
            assert_eq!(rows.len(), if packing == Packing::Off { 4 } else { 3 });
            assert_eq!(left_out(&tokens, 12), (2, 0));
        }
    }

    #[test]
    fn half_a_pair_is_left_out() {
        for labels in
            [[Label::Chosen, Label::Chosen, Label::Rejected], [Label::Rejected, Label::Chosen, Label::Rejected]]
        {
            let mut layout = Documents::default();
            for label in labels {
                layout.add(2, false, None);
                layout.add(3, true, Some(label));
            }
            layout.add(4, true, Some(Label::Chosen));
            let ids: Vec<u32> = (0..layout.tokens() as u32).collect();
            let rows = Rows::new(Tokens::from(ids).in_documents(layout, Packing::Documents).unwrap(), 8).unwrap();
            assert_eq!((rows.len(), rows.row(0).answers.len()), (1, 2), "{labels:?}");
            assert!(rows.note().starts_with("1 pairs of answers are packed"), "{}", rows.note());
            assert!(rows.note().contains("2 are dropped"), "{}", rows.note());
        }
    }

    #[test]
    fn an_answer_with_a_label_shares_a_row_with_its_prompt_before_the_previous_answer() {
        let mut layout = Documents::default();
        for (prompt, answer, label) in [(2, 3, Label::Desirable), (1, 2, Label::Undesirable), (3, 1, Label::Desirable)]
        {
            layout.add(prompt, false, None);
            layout.add(answer, true, Some(label));
        }
        // 100-101 102-104 | 105 106-107 | 108-110 111
        let ids: Vec<u32> = (100..100 + layout.tokens() as u32).collect();
        let tokens = Tokens::from(ids).in_documents(layout, Packing::Off).unwrap();
        let rows = Rows::new(tokens, 10).unwrap();
        let row = |number| {
            let row: Row = rows.row(number);
            let [own, other] = &row.answers[..] else { panic!("{row:?}") };
            assert_eq!(other.label, Label::Mismatched);
            let of = |answer: &Answer| {
                let targets = &row.targets[answer.places.clone()];
                let predicted: Vec<u32> = targets.iter().copied().filter(|&t| t != IGNORE_INDEX).collect();
                (row.ids[answer.places.clone()].to_vec(), predicted)
            };
            (own.label, of(own), of(other))
        };
        let expected = (Label::Desirable, (vec![100, 101, 102, 103], vec![102, 103, 104]), (vec![100, 101], vec![111]));
        assert_eq!(row(0), expected);
        let expected =
            (Label::Undesirable, (vec![105, 106], vec![106, 107]), (vec![105, 102, 103], vec![102, 103, 104]));
        assert_eq!(row(1), expected);
        let expected = (Label::Desirable, (vec![108, 109, 110], vec![111]), (vec![108, 109, 110, 106], vec![106, 107]));
        assert_eq!(row(2), expected);
    }

    #[test]
    fn a_text_of_which_nothing_is_predicted_is_refused() {
        let error = Rows::new(text(&[(9, 3)], Packing::Off), 8).err().unwrap().to_string();
        assert!(error.contains("0 documents"), "{error}");
    }
}
