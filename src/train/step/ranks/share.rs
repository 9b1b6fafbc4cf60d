//! Division of a step's sequences among ranks.

use crate::config::{Config, DeviceBatch};
use crate::models::ModelKind;
use crate::{Error, Result};
use std::ops::Range;

/// The sequences of a step: batches of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::train) struct Sequences {
    batch_size: usize,
    batches: usize,
    /// Whether each batch continues the previous one, so that a rank has the same rows of every batch.
    continued: bool,
}

impl Sequences {
    /// Those of a run that trains a model of this kind.
    pub fn new(config: &Config, kind: ModelKind) -> Sequences {
        let (batch_size, batches) = (config.train.batch_size, config.train.grad_accum_steps);
        Sequences { batch_size, batches, continued: kind.is_recurrent() }
    }

    /// How many are divided among the ranks: all of them, or those of one batch as those of every other.
    pub fn divided(self) -> usize {
        if self.continued { self.batch_size } else { self.batch_size * self.batches }
    }

    /// How many are to be divided, and among whom they cannot be.
    fn error(self, how: &str) -> Error {
        let Sequences { batch_size, batches, continued } = self;
        Error::Invalid(match continued {
            true => format!(
                "train.batch_size is {batch_size} sequences, of which each rank of a recurrent model computes the same \
                 in every batch: they cannot be divided {how}"
            ),
            false => format!(
                "train.batch_size x train.grad_accum_steps is {batch_size} x {batches} = {} sequences a step, which \
                 cannot be divided {how}",
                self.divided()
            ),
        })
    }
}

/// The sequences of one rank, of those that are [divided](Sequences::divided): counted over the batches of a step, or
/// in each batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::train) struct Share {
    rows: Range<usize>,
    of: Sequences,
}

/// A part of a batch for one pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::train) struct Piece {
    /// Index of the batch in the step.
    pub batch: usize,
    /// Its sequences.
    pub rows: Range<usize>,
}

impl Share {
    /// All sequences.
    pub fn whole(of: Sequences) -> Share {
        Share::first(of.divided(), of)
    }

    /// The first sequences of those that are divided.
    pub fn first(sequences: usize, of: Sequences) -> Share {
        Share { rows: 0..sequences, of }
    }

    /// The sequences of each of so many ranks; about as many on each, where that is to be measured.
    ///
    /// # Errors
    /// If the sequences of a step cannot be divided so.
    pub fn all(config: &Config, kind: ModelKind, ranks: usize) -> Result<Vec<Share>> {
        let of = Sequences::new(config, kind);
        if !(1..=of.divided()).contains(&ranks) {
            return Err(of.error(&format!("among {ranks} ranks")));
        }
        let parts = match &config.train.device_batch {
            DeviceBatch::Parts(parts) if parts.is_empty() => vec![1; ranks],
            DeviceBatch::Parts(parts) if parts.len() == ranks => parts.clone(),
            DeviceBatch::Parts(parts) => {
                return Err(Error::Invalid(format!(
                    "train.device_batch = {parts:?} has {} numbers, and the job has {ranks} rank(s): give one for \
                     each, or auto",
                    parts.len()
                )));
            }
            DeviceBatch::Measured(_) => divided(&vec![1.0; ranks], of.divided()),
        };
        (0..ranks).map(|rank| Share::of(rank, &parts, of)).collect()
    }

    /// What the rank with the most sequences computes, as [`Share::micro_batches`] tells it.
    ///
    /// # Errors
    /// If the sequences of a step cannot be divided so.
    pub fn largest(config: &Config, kind: ModelKind, ranks: usize) -> Result<(usize, usize)> {
        let shares = Share::all(config, kind, ranks)?;
        Ok(shares.iter().map(Share::micro_batches).max().unwrap_or((0, 0)))
    }

    /// The sequences of one rank of several, of which each has as many as `parts` says, or all the same.
    ///
    /// # Errors
    /// If the sequences cannot be divided so.
    pub fn of(rank: usize, parts: &[usize], of: Sequences) -> Result<Share> {
        let (all, unit) = (of.divided(), parts.iter().sum::<usize>());
        if unit == 0 || parts.contains(&0) || !all.is_multiple_of(unit) {
            let (ranks, what) = (parts.len(), if of.continued { "it" } else { "the product" });
            return Err(of.error(&match parts.iter().all(|part| *part == 1) {
                true => format!("among {ranks} ranks: make {what} a multiple of {ranks}"),
                false => format!("as train.device_batch = {parts:?} says: make {what} a multiple of {unit}"),
            }));
        }
        let before: usize = parts[..rank].iter().sum();
        let times = all / unit;
        Ok(Share { rows: before * times..(before + parts[rank]) * times, of })
    }

    /// Number of sequences per step.
    pub fn len(&self) -> usize {
        if self.of.continued { self.rows.len() * self.of.batches } else { self.rows.len() }
    }

    /// Which of every batch they are, where each batch goes on from the one before.
    pub fn continued(&self) -> Option<Range<usize>> {
        self.of.continued.then(|| self.rows.clone())
    }

    /// How many sequences a micro-batch of them has at most, each batch being one, and how many there are.
    pub fn micro_batches(&self) -> (usize, usize) {
        let pieces = self.pieces(1);
        (pieces.iter().map(|piece| piece.rows.len()).max().unwrap_or(1), pieces.len())
    }

    /// Them as parts of batches, each in `splits` passes, or in as many as it has sequences.
    pub fn pieces(&self, splits: usize) -> Vec<Piece> {
        let Sequences { batch_size, batches, continued } = self.of;
        let of_batch = |batch: usize| {
            let first = if continued { 0 } else { batch * batch_size };
            self.rows.start.max(first) - first..self.rows.end.min(first + batch_size).saturating_sub(first)
        };
        let mut pieces = Vec::new();
        for (batch, rows) in (0..batches).map(|batch| (batch, of_batch(batch))) {
            let splits = splits.min(rows.len());
            let at = |part: usize| rows.start + part * rows.len() / splits;
            pieces.extend((0..splits).map(|part| Piece { batch, rows: at(part)..at(part + 1) }));
        }
        pieces
    }
}

/// `all` sequences in proportion to speeds, at least one for each, if there are so many.
pub(super) fn divided(speeds: &[f64], all: usize) -> Vec<usize> {
    let total: f64 = speeds.iter().sum();
    let ideal: Vec<f64> = speeds.iter().map(|speed| all as f64 * speed / total).collect();
    let mut parts: Vec<usize> = ideal.iter().map(|ideal| (*ideal as usize).max(1)).collect();
    // How far each is from what it should have.
    let missing = |parts: &[usize], i: usize| ideal[i] - parts[i] as f64;
    while parts.iter().sum::<usize>() < all {
        let most = (0..parts.len()).max_by(|&a, &b| missing(&parts, a).total_cmp(&missing(&parts, b)));
        parts[most.expect("there is a device")] += 1;
    }
    while parts.iter().sum::<usize>() > all {
        let more_than_one = (0..parts.len()).filter(|&i| parts[i] > 1);
        let Some(least) = more_than_one.min_by(|&a, &b| missing(&parts, a).total_cmp(&missing(&parts, b))) else {
            break;
        };
        parts[least] -= 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_divided_by_speed() {
        for (speeds, all, parts) in [
            (vec![1.0, 1.0], 8, vec![4, 4]),
            (vec![1.0, 1.0, 1.0], 8, vec![2, 3, 3]),
            (vec![30.0, 10.0], 16, vec![12, 4]),
            (vec![1e6, 1.0], 16, vec![15, 1]),
            (vec![1e6, 1.0, 1.0], 3, vec![1, 1, 1]),
            (vec![10.0, 1.0, 1.0, 1.0], 6, vec![3, 1, 1, 1]),
            // More devices than sequences: refused elsewhere.
            (vec![1.0, 1.0], 1, vec![1, 1]),
        ] {
            assert_eq!(divided(&speeds, all), parts, "{speeds:?} {all}");
        }
    }

    /// Its part of a batch, or whole batches.
    #[test]
    fn the_largest_share_is_of_the_rank_with_the_most_sequences() {
        let mut config = Config::default();
        (config.train.batch_size, config.train.grad_accum_steps) = (6, 1);
        let largest = |config: &Config, ranks| Share::largest(config, ModelKind::GPT2, ranks);
        assert_eq!([1, 2, 6].map(|ranks| largest(&config, ranks).unwrap()), [(6, 1), (3, 1), (1, 1)]);
        assert!(largest(&config, 4).is_err());
        config.train.grad_accum_steps = 4;
        assert_eq!([1, 2, 4, 8].map(|ranks| largest(&config, ranks).unwrap()), [(6, 4), (6, 2), (6, 1), (3, 1)]);
        config.train.device_batch = DeviceBatch::Parts(vec![5, 1]);
        assert_eq!(largest(&config, 2).unwrap(), (6, 4));
    }

    fn sequences(batch_size: usize, batches: usize) -> Sequences {
        Sequences { batch_size, batches, continued: false }
    }

    /// Every sequence of a step once; in its order, or of a recurrent model a rank's of every batch together.
    #[test]
    fn shares_are_the_whole_step() {
        for (batch_size, batches, parts) in
            [(12, 1, vec![1; 4]), (8, 3, vec![1, 1]), (4, 8, vec![1; 8]), (5, 4, vec![3, 2, 5]), (6, 1, vec![1])]
        {
            for (splits, continued) in [(1, false), (2, false), (3, false), (100, false), (1, true), (3, true)] {
                let of = Sequences { batch_size, batches, continued };
                if continued && !batch_size.is_multiple_of(parts.iter().sum()) {
                    assert!(Share::of(0, &parts, of).is_err());
                    continue;
                }
                let shares: Vec<Share> = (0..parts.len()).map(|rank| Share::of(rank, &parts, of).unwrap()).collect();
                assert_eq!(shares.iter().map(Share::len).sum::<usize>(), batch_size * batches);
                let pieces: Vec<Piece> = shares.iter().flat_map(|share| share.pieces(splits)).collect();
                let rows = pieces.iter().flat_map(|piece| piece.rows.clone().map(|row| (piece.batch, row)));
                let mut rows: Vec<(usize, usize)> = rows.collect();
                if continued {
                    rows.sort_unstable();
                }
                let all = (0..batches).flat_map(|batch| (0..batch_size).map(move |row| (batch, row)));
                assert_eq!(rows, all.collect::<Vec<_>>(), "{parts:?} in {splits}");
            }
        }
    }

    #[test]
    fn one_rank_computes_batch_by_batch() {
        let piece = |batch, rows| Piece { batch, rows };
        assert_eq!(Share::whole(sequences(4, 2)).pieces(1), [piece(0, 0..4), piece(1, 0..4)]);
        assert_eq!(Share::whole(sequences(5, 1)).pieces(2), [piece(0, 0..2), piece(0, 2..5)]);
        assert_eq!(Share::of(1, &[1, 1], sequences(8, 3)).unwrap().pieces(1), [piece(1, 4..8), piece(2, 0..8)]);
    }

    #[test]
    fn a_rank_of_a_recurrent_model_has_the_same_rows_of_every_batch() {
        let piece = |batch, rows| Piece { batch, rows };
        let share = Share::of(1, &[3, 1], Sequences { continued: true, ..sequences(8, 2) }).unwrap();
        assert_eq!((share.continued(), share.len()), (Some(6..8), 4));
        assert_eq!(share.pieces(1), [piece(0, 6..8), piece(1, 6..8)]);
        assert_eq!(Share::of(1, &[1, 1], sequences(8, 3)).unwrap().continued(), None);
    }

    #[test]
    fn what_cannot_be_divided_is_refused() {
        let error = Share::of(0, &[1, 1, 1], sequences(16, 2)).unwrap_err().to_string();
        assert!(error.contains("16 x 2 = 32 sequences") && error.contains("a multiple of 3"), "{error}");
        let error = Share::of(0, &[16, 4], sequences(16, 2)).unwrap_err().to_string();
        assert!(error.contains("train.device_batch = [16, 4]") && error.contains("a multiple of 20"), "{error}");
        let of = Sequences { continued: true, ..sequences(5, 2) };
        let error = Share::of(0, &[1, 1], of).unwrap_err().to_string();
        assert!(error.contains("batch_size is 5 sequences") && error.contains("make it a multiple of 2"), "{error}");
    }
}
