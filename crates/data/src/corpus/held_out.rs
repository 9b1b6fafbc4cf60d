//! Selects the validation split of a training text.

use serde::{Deserialize, Serialize};

use super::super::documents::Label;
use super::super::source::{Piece, Sink, Source};
use crate::random::SplitMix64;
use rustyflow_base::error::Result;

/// The held-out part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum HeldOut {
    Nothing,
    /// Everything from this byte on, for a single text.
    From(u64),
    /// The documents with these indices, in ascending order.
    Documents(Vec<u64>),
    /// Every document with this probability.
    Share(f64),
}

/// Which documents are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Kept,
    HeldOut,
}

/// Most documents that are selected by size; with more, a random share is close enough to the requested size.
pub(super) const MOST_WEIGHED: usize = 1 << 16;

/// Seed of the document order. It is not the run's seed, so that runs with different seeds share the validation split.
const SEED: u64 = 0;

impl HeldOut {
    /// Chooses about `fraction` of documents of these sizes, at least one and not all; of a single one, nothing.
    pub(super) fn choose(sizes: &[u64], fraction: f64) -> HeldOut {
        if fraction == 0.0 || sizes.len() < 2 {
            return HeldOut::Nothing;
        }
        if sizes.len() > MOST_WEIGHED {
            return HeldOut::Share(fraction);
        }
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        SplitMix64(SEED).shuffle(&mut order);
        let target = sizes.iter().sum::<u64>() as f64 * fraction;
        let (mut chosen, mut bytes) = (vec![], 0.0);
        for document in order {
            let size = sizes[document] as f64;
            // Half of it may lie beyond the target: then the result is no farther from it than without.
            if bytes + size / 2.0 <= target && chosen.len() + 1 < sizes.len() {
                chosen.push(document as u64);
                bytes += size;
            }
        }
        if chosen.is_empty() {
            let smallest = (0..sizes.len()).min_by_key(|&document| sizes[document]).expect("there are two");
            chosen.push(smallest as u64);
        }
        chosen.sort_unstable();
        HeldOut::Documents(chosen)
    }

    /// Number of held-out documents; `None` if no whole document is held out.
    pub(super) fn count(&self, documents: u64) -> Option<u64> {
        match self {
            HeldOut::Nothing | HeldOut::From(_) => None,
            HeldOut::Documents(chosen) => Some(chosen.len() as u64),
            HeldOut::Share(_) => Some((0..documents).filter(|&document| self.holds(document)).count() as u64),
        }
    }

    fn holds(&self, document: u64) -> bool {
        match self {
            HeldOut::Nothing | HeldOut::From(_) => false,
            HeldOut::Documents(chosen) => chosen.binary_search(&document).is_ok(),
            HeldOut::Share(share) => {
                let mut random = SplitMix64(SEED ^ document.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                (random.next() as f64 / u64::MAX as f64) < *share
            }
        }
    }

    /// Hands over the documents of one side.
    pub(super) fn read(&self, sources: &[Source], side: Side, sink: &mut Sink) -> Result<()> {
        if let HeldOut::From(place) = self {
            return read_part(sources, *place, side, sink);
        }
        let mut document = 0;
        let mut take = |piece: Piece| {
            if self.holds(document) == (side == Side::HeldOut) {
                sink(piece)?;
            }
            // Both answers of a pair are on the same side.
            document += u64::from(piece.end().is_some_and(|label| label != Label::Chosen));
            Ok(())
        };
        sources.iter().try_for_each(|source| source.read(&mut take).map(drop))
    }
}

/// Reads the text before `place`, or from it on.
fn read_part(sources: &[Source], place: u64, side: Side, sink: &mut Sink) -> Result<()> {
    let mut offset = 0;
    let mut take = |piece: Piece| match piece.text() {
        Some(text) => {
            // A place that is no boundary of characters is of a file that has changed since.
            let cut = place.saturating_sub(offset).min(text.len() as u64) as usize;
            let (kept, held_out) = text.split_at_checked(cut).unwrap_or((text, ""));
            offset += text.len() as u64;
            match if side == Side::Kept { kept } else { held_out } {
                "" => Ok(()),
                part => sink(match piece {
                    Piece::Prompt(_) => Piece::Prompt(part),
                    Piece::Turn(_, predicted) => Piece::Turn(part, predicted),
                    _ => Piece::Text(part),
                }),
            }
        }
        None => sink(piece),
    };
    sources.iter().try_for_each(|source| source.read(&mut take).map(drop))
}
