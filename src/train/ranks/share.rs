//! Which sequences of a step each rank computes.

use crate::config::{Config, DeviceBatch};
use crate::{Error, Result};
use std::ops::Range;

/// The sequences of one rank, of all those of a step, counted over its batches: `batch_size * grad_accum_steps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::train) struct Share {
    rows: Range<usize>,
    batch_size: usize,
}

/// A part of a batch that is computed in one pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::train) struct Piece {
    /// Which batch of the step.
    pub batch: usize,
    /// Its sequences.
    pub rows: Range<usize>,
}

impl Share {
    /// All sequences.
    pub fn whole(batch_size: usize, batches: usize) -> Share {
        Share::first(batch_size * batches, batch_size)
    }

    /// The first sequences of a step.
    pub fn first(sequences: usize, batch_size: usize) -> Share {
        Share { rows: 0..sequences, batch_size }
    }

    /// The sequences of each of so many ranks; about as many on each, where that is to be measured.
    ///
    /// # Errors
    /// If the sequences of a step cannot be divided so.
    pub fn all(config: &Config, ranks: usize) -> Result<Vec<Share>> {
        let (batch_size, batches) = (config.train.batch_size, config.train.grad_accum_steps);
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
            DeviceBatch::Measured(_) => divided(&vec![1.0; ranks], batch_size * batches),
        };
        (0..ranks).map(|rank| Share::of(rank, &parts, batch_size, batches)).collect()
    }

    /// The sequences of one rank of several, of which each has as many as `parts` says, or all the same.
    ///
    /// # Errors
    /// If the sequences cannot be divided so.
    pub fn of(rank: usize, parts: &[usize], batch_size: usize, batches: usize) -> Result<Share> {
        let (all, unit) = (batch_size * batches, parts.iter().sum::<usize>());
        if unit == 0 || parts.contains(&0) || !all.is_multiple_of(unit) {
            let ranks = parts.len();
            let how = match parts.iter().all(|part| *part == 1) {
                true => format!("among {ranks} ranks: make the product a multiple of {ranks}"),
                false => format!("as train.device_batch = {parts:?} says: make the product a multiple of {unit}"),
            };
            return Err(Error::Invalid(format!(
                "train.batch_size x train.grad_accum_steps is {batch_size} x {batches} = {all} sequences a step, which \
                 cannot be divided {how}"
            )));
        }
        let before: usize = parts[..rank].iter().sum();
        let times = all / unit;
        Ok(Share { rows: before * times..(before + parts[rank]) * times, batch_size })
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Them as parts of batches, each in `splits` passes, or in as many as it has sequences.
    pub fn pieces(&self, splits: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for batch in self.rows.start / self.batch_size..self.rows.end.div_ceil(self.batch_size) {
            let first = batch * self.batch_size;
            let start = self.rows.start.max(first) - first;
            let end = self.rows.end.min(first + self.batch_size) - first;
            let (rows, splits) = (end - start, splits.min(end - start));
            let at = |part: usize| start + part * rows / splits;
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

    /// Every sequence of a step once, in its order.
    #[test]
    fn shares_are_the_whole_step() {
        for (batch_size, batches, parts) in
            [(12, 1, vec![1; 4]), (8, 3, vec![1, 1]), (4, 8, vec![1; 8]), (5, 4, vec![3, 2, 5]), (6, 1, vec![1])]
        {
            for splits in [1, 2, 3, 100] {
                let shares = (0..parts.len()).map(|rank| Share::of(rank, &parts, batch_size, batches).unwrap());
                let pieces: Vec<Piece> = shares.flat_map(|share| share.pieces(splits)).collect();
                let rows = pieces.iter().flat_map(|piece| piece.rows.clone().map(|row| (piece.batch, row)));
                let all = (0..batches).flat_map(|batch| (0..batch_size).map(move |row| (batch, row)));
                assert_eq!(rows.collect::<Vec<_>>(), all.collect::<Vec<_>>(), "{parts:?} in {splits}");
            }
        }
    }

    #[test]
    fn one_rank_computes_batch_by_batch() {
        let piece = |batch, rows| Piece { batch, rows };
        assert_eq!(Share::whole(4, 2).pieces(1), [piece(0, 0..4), piece(1, 0..4)]);
        assert_eq!(Share::whole(5, 1).pieces(2), [piece(0, 0..2), piece(0, 2..5)]);
        assert_eq!(Share::of(1, &[1, 1], 8, 3).unwrap().pieces(1), [piece(1, 4..8), piece(2, 0..8)]);
    }

    #[test]
    fn what_cannot_be_divided_is_refused() {
        let error = Share::of(0, &[1, 1, 1], 16, 2).unwrap_err().to_string();
        assert!(error.contains("16 x 2 = 32 sequences") && error.contains("a multiple of 3"), "{error}");
        let error = Share::of(0, &[16, 4], 16, 2).unwrap_err().to_string();
        assert!(error.contains("train.device_batch = [16, 4]") && error.contains("a multiple of 20"), "{error}");
    }
}
