//! The f32 values of the parameters that a device has: all of them, or of several ranks that divide them (ZeRO-1,
//! Rajbhandari et al. 2020) those of its own part and those that kernels of the model read. Of the others such a rank
//! has the f16 copies, which matmuls read.
//!
//! ```text
//! layout   | embeddings | matrices             | biases, norms | frozen |
//! rank 0   | x x x x x x  x x x                  x x x x x x x   x x x x
//! rank 1   | x x x x x x        x x x x x x x x  x x x x x x x   x x x x
//! ```
//! What a device has lies in one arena, without the gaps.

use super::optimizer::slice;
use crate::tensor::Bytes;
use crate::{Error, Result, Tensor};
use std::ops::Range;

/// Which elements of a layout a device has as f32.
pub(super) struct Held {
    /// In their order, and none touches another.
    ranges: Vec<Range<usize>>,
    /// Those that every rank has.
    everywhere: Vec<Range<usize>>,
    /// Elements of the layout.
    layout: usize,
}

impl Held {
    /// All elements.
    pub fn whole(layout: usize) -> Held {
        let all = 0..layout;
        Held { ranges: vec![all.clone()], everywhere: vec![all], layout }
    }

    /// What every rank has, and a part that this one has.
    pub fn new(everywhere: Vec<Range<usize>>, part: &Range<usize>, layout: usize) -> Held {
        let ranges = union([&everywhere[..], std::slice::from_ref(part)].concat());
        Held { ranges, everywhere: union(everywhere), layout }
    }

    pub fn len(&self) -> usize {
        total(&self.ranges)
    }

    /// How many of the elements before this one are held.
    pub fn before(&self, at: usize) -> usize {
        self.ranges.iter().map(|range| range.end.min(at).saturating_sub(range.start)).sum()
    }
}

pub(super) struct Values {
    /// The ranges, one after the other.
    pub arena: Tensor,
    held: Held,
}

impl Values {
    /// In an arena of as many elements as are held.
    pub fn new(arena: Tensor, held: Held) -> Values {
        Values { arena, held }
    }

    /// Elements of the layout.
    pub fn layout(&self) -> usize {
        self.held.layout
    }

    /// Whether these are all of the layout, so that the arena is laid out so.
    pub fn are_whole(&self) -> bool {
        self.held.len() == self.held.layout
    }

    /// Whether some rank has not all of the layout, though this one may.
    pub fn are_divided(&self) -> bool {
        total(&self.held.everywhere) < self.held.layout
    }

    /// These elements of the layout, if the device has them.
    pub fn get(&self, range: &Range<usize>) -> Option<Tensor> {
        let mut before = 0;
        for held in &self.held.ranges {
            if contains(held, range) {
                let start = before + range.start - held.start;
                return Some(slice(&self.arena, &(start..start + range.len())));
            }
            before += held.len();
        }
        None
    }

    /// These elements of the layout.
    ///
    /// # Errors
    /// If the device has not all of them.
    pub fn part(&self, range: &Range<usize>) -> Result<Tensor> {
        let missing = || Error::Invalid(format!("another rank has the values {range:?} of the parameters"));
        self.get(range).ok_or_else(missing)
    }

    /// These elements of the layout, if every rank has them.
    pub fn of_all_ranks(&self, range: &Range<usize>) -> Option<Tensor> {
        self.held.everywhere.iter().find(|shared| contains(shared, range)).and_then(|_| self.get(range))
    }

    /// What the device has, by its elements of the layout.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.held.ranges
    }

    /// A part of the layout, cut where elements begin or end that every rank has; and whether each piece is of those.
    pub fn cut(&self, part: &Range<usize>) -> Vec<(Range<usize>, bool)> {
        let (mut pieces, mut at) = (Vec::new(), part.start);
        for shared in &self.held.everywhere {
            let (start, end) = (shared.start.clamp(at, part.end.max(at)), shared.end.min(part.end));
            if start < end {
                pieces.extend([(at..start, false), (start..end, true)]);
                at = end;
            }
        }
        pieces.push((at..part.end, false));
        pieces.retain(|(range, _)| !range.is_empty());
        pieces
    }

    /// The whole layout, of the arena's contents and of what other ranks have.
    ///
    /// # Errors
    /// If together they are not all of it.
    pub fn joined(&self, own: Bytes, others: &[(Range<usize>, Bytes)]) -> Result<Bytes> {
        if self.are_whole() {
            return Ok(own);
        }
        let fits = |(range, bytes): &(Range<usize>, Bytes)| {
            range.end <= self.held.layout && range.len().checked_mul(size_of::<f32>()) == Some(bytes.len())
        };
        let ranges = self.held.ranges.iter().chain(others.iter().map(|(range, _)| range)).cloned();
        if !others.iter().all(fits) || total(&union(ranges.collect())) < self.held.layout {
            return Err(Error::Communication("the ranks have other parts of the weights than they should".into()));
        }
        let mut whole = vec![0; size_of::<f32>() * self.held.layout];
        let mut rest = &own[..];
        let mut put = |range: &Range<usize>, bytes: &[u8]| {
            whole[size_of::<f32>() * range.start..][..bytes.len()].copy_from_slice(bytes);
        };
        for range in &self.held.ranges {
            let bytes;
            (bytes, rest) = rest.split_at(size_of::<f32>() * range.len());
            put(range, bytes);
        }
        others.iter().for_each(|(range, bytes)| put(range, bytes));
        Ok(Bytes::owned(whole))
    }
}

/// How many elements are in ranges of which none touches another.
fn total(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(Range::len).sum()
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// The elements of all these, as ranges in their order of which none touches another.
fn union(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    /// Of eight times 128 elements, of which all ranks have the first two and the last, this one's.
    fn values(part: Range<usize>) -> Values {
        let [part, first, last] = [part, 0..2, 7..8].map(|range| 128 * range.start..128 * range.end);
        let held = Held::new(vec![last, first], &part, 1024);
        let flat: Vec<f32> = held.ranges.iter().cloned().flatten().map(|i| i as f32).collect();
        Values::new(Tensor::from_f32(&flat, [flat.len()], &Device::Cpu).unwrap(), held)
    }

    fn bytes(values: impl Iterator<Item = usize>) -> Bytes {
        Bytes::owned(values.flat_map(|i| (i as f32).to_le_bytes()).collect())
    }

    #[test]
    fn a_rank_has_its_part_and_what_all_have() {
        for (part, there, missing) in [
            (0..4, vec![0..512, 896..1024, 128..300], vec![512..513, 0..1024, 256..640]),
            (4..7, vec![0..256, 512..1024, 640..900], vec![256..512, 500..520]),
            (4..6, vec![0..256, 512..768, 896..1024], vec![200..300, 700..800, 768..896]),
            (0..8, vec![0..1024, 128..256], vec![1000..1025, 0..2000]),
            (2..7, vec![0..1024, 128..256], vec![]),
        ] {
            let values = values(part.clone());
            for range in there {
                let want: Vec<f32> = range.clone().map(|i| i as f32).collect();
                assert_eq!(values.get(&range).unwrap().to_f32().unwrap(), want, "{part:?}: {range:?}");
            }
            assert!(missing.iter().all(|range| values.get(range).is_none()), "{part:?}");
            assert_eq!(values.are_whole(), part == (0..8) || part == (2..7));
            assert!(values.are_divided());
            assert!(values.of_all_ranks(&(128..256)).is_some() && values.of_all_ranks(&(256..384)).is_none());
        }
    }

    #[test]
    fn a_part_is_cut_where_what_all_have_begins_or_ends() {
        let values = values(2..4);
        assert_eq!(values.cut(&(0..1024)), [(0..256, true), (256..896, false), (896..1024, true)]);
        assert_eq!(values.cut(&(128..512)), [(128..256, true), (256..512, false)]);
        assert_eq!(values.cut(&(512..640)), [(512..640, false)]);
        assert_eq!(values.cut(&(512..512)), []);
    }

    #[test]
    fn ranks_have_all_values_together_and_are_refused_if_they_have_not() {
        let values = values(2..4);
        let own = || Bytes::owned(values.arena.to_bytes().unwrap());
        let whole = values.joined(own(), &[(512..1024, bytes(512..1024))]).unwrap();
        assert!(whole[..] == bytes(0..1024)[..]);
        for others in [vec![], vec![(512..768, bytes(512..768))], vec![(512..1024, bytes(512..600))]] {
            assert!(values.joined(own(), &others).err().unwrap().to_string().contains("other parts of the weights"));
        }
    }
}
