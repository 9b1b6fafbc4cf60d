//! Which part of the arenas each of several optimizers updates, so that none has to remember all of it
//! (ZeRO-1, Rajbhandari et al. 2020).

use super::arena::ParameterArena;
use super::layout::{ALIGN, Segment};
use super::optimizer::{Group, Kind};
use std::ops::Range;

/// As many parts of the trained parameters as `ranks`, one after the other and as equal as may be: what Muon updates is
/// cut between matrices. Of few parameters the last parts may be empty; for no ranks there are none.
pub fn shards(parameters: &ParameterArena, group_of: &dyn Fn(usize) -> Group, ranks: usize) -> Vec<Range<usize>> {
    if ranks == 0 {
        return Vec::new();
    }
    let len = parameters.trainable_len();
    let each = len.div_ceil(ranks).next_multiple_of(ALIGN);
    let mut ends: Vec<usize> =
        (1..ranks).map(|rank| cut(parameters, group_of, rank.saturating_mul(each).min(len))).collect();
    ends.push(len);
    let starts = [0].into_iter().chain(ends.clone());
    starts.zip(&ends).map(|(start, &end)| start..end).collect()
}

/// Where the arenas can be cut, at this element or before.
fn cut(parameters: &ParameterArena, group_of: &dyn Fn(usize) -> Group, at: usize) -> usize {
    let is_around = |segment: &&Segment| segment.range.contains(&at);
    let of_muon = |segment: &Segment| matches!(group_of(segment.group).kind, Kind::Muon { .. });
    if !parameters.segments.iter().find(is_around).is_some_and(of_muon) {
        return at;
    }
    let starts = parameters.entries.iter().filter(|entry| entry.trainable).map(|entry| entry.offset);
    starts.filter(|start| *start <= at).max().unwrap_or(at)
}

impl Segment {
    /// What of it lies in a part of the arenas.
    pub(super) fn within(&self, part: &Range<usize>) -> Option<Segment> {
        let range = self.range.start.max(part.start)..self.range.end.min(part.end);
        let decay_end = self.decay_end.clamp(range.start, range.end.max(range.start));
        (!range.is_empty()).then_some(Segment { group: self.group, range, decay_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::testing::{ADAMW, KINDS, Net};
    use crate::optim::{Moment, Moments, Optimizer, SavedMoments};
    use crate::tensor::Bytes;
    use crate::{DType, Device};

    fn group_of(kind: Kind) -> impl Fn(usize) -> Group {
        move |number| Group::new([kind, ADAMW][number], 0.1)
    }

    fn arena(kind: Kind, device: &Device) -> ParameterArena {
        let is_muon = matches!(kind, Kind::Muon { .. });
        let group = |_: &str, p: &crate::nn::Parameter| usize::from(is_muon && p.linear.is_none());
        ParameterArena::grouped(&mut Net::new(1), device, DType::F32, &group).unwrap()
    }

    /// Every element once; of the same length, but for the last ones and for whole matrices.
    #[test]
    fn shards_are_all_parameters() {
        for kind in KINDS {
            let parameters = arena(kind, &Device::Cpu);
            for ranks in [1, 2, 3, 8, 100] {
                let shards = shards(&parameters, &group_of(kind), ranks);
                assert_eq!(shards.len(), ranks);
                assert_eq!((shards[0].start, shards[ranks - 1].end), (0, parameters.trainable_len()));
                assert!(shards.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].start <= pair[0].end));
                let mut matrices = parameters.entries.iter().filter(|e| e.linear.is_some() && e.shape.len() > 1);
                let is_cut =
                    |e: &crate::optim::Entry| shards.iter().any(|s| e.range().contains(&s.start) && s.start > e.offset);
                if matches!(kind, Kind::Muon { .. }) {
                    assert!(!matrices.any(is_cut), "{ranks}: {shards:?}");
                }
            }
        }
    }

    /// The parts of two or three optimizers are one whole one's, to the bit; and so are the moments that they save.
    #[test]
    fn parts_update_as_a_whole_does() {
        for (device, kind) in Device::for_tests().iter().flat_map(|device| KINDS.map(|kind| (device.clone(), kind))) {
            for ranks in [2, 3] {
                let (whole_arena, arena) = (arena(kind, &device), arena(kind, &device));
                let group = group_of(kind);
                let mut whole = Optimizer::with_groups(&whole_arena, &group, 1.0).unwrap();
                let parts = shards(&arena, &group, ranks).into_iter();
                let parts = parts.map(|part| Optimizer::of_part(&arena, &group, 1.0, &part).unwrap());
                let mut parts: Vec<Optimizer> = parts.collect();
                for step in 0..3 {
                    let mut gradients = vec![0.0; arena.trainable_len()];
                    for i in arena.entries.iter().flat_map(crate::optim::Entry::range) {
                        gradients[i] = ((i * 7 + step * 13) % 11) as f32 - 5.0;
                    }
                    for arena in [&whole_arena, &arena] {
                        arena.gradients().write_bytes(bytemuck::cast_slice(&gradients)).unwrap();
                    }
                    whole.step(&whole_arena, 0.1).unwrap();
                    parts.iter_mut().for_each(|part| drop(part.step(&arena, 0.1).unwrap()));
                }
                let (a, b) = (whole_arena.values().to_f32().unwrap(), arena.values().to_f32().unwrap());
                // The batches of Muon's GEMMs are others.
                let most = if matches!(kind, Kind::Muon { .. }) { 1e-5 } else { 0.0 };
                assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= most), "{device} {kind:?} {ranks}");
                let of = |optimizer: &Optimizer| {
                    let bytes = |(moment, m): (Moment, &crate::Tensor)| (moment, Bytes::owned(m.to_bytes().unwrap()));
                    optimizer.moments().into_iter().map(bytes).collect::<Vec<_>>()
                };
                let joined = Moments::new(&arena, parts.iter().flat_map(of).collect()).joined().encode().unwrap();
                let expected = Moments::new(&arena, of(&whole)).encode().unwrap();
                assert_eq!(joined.len(), expected.len());
                let saved = SavedMoments::new("a".as_ref(), &joined).unwrap();
                for part in &mut parts {
                    let before = of(part);
                    for (_, tensor) in part.moments() {
                        tensor.write_bytes(&vec![0; tensor.spec().size_bytes()]).unwrap();
                    }
                    part.restore(&arena, &saved, 3, 0, 1).unwrap();
                    assert!(of(part).iter().zip(&before).all(|(a, b)| a.1[..] == b.1[..]), "{device} {kind:?} {ranks}");
                }
            }
        }
    }
}
