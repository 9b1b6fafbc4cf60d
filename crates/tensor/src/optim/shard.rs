//! Which part of the arenas each of several optimizers updates, so that none has to remember all of it
//! (ZeRO-1, Rajbhandari et al. 2020).

use super::arena::ParameterArena;
use super::group::{Group, Kind};
use super::layout::{ALIGN, Entry, Segment};
use super::values::Held;
use crate::DType;
use std::ops::Range;

/// As many parts of the trained parameters as `ranks`, one after the other and as equal as may be: what Muon updates is
/// cut between matrices. Of few parameters the last parts may be empty; for no ranks there are none.
pub fn shards(parameters: &ParameterArena, group_of: &dyn Fn(usize) -> Group, ranks: usize) -> Vec<Range<usize>> {
    parts(&parameters.entries, &parameters.segments, group_of, ranks)
}

fn parts(
    entries: &[Entry],
    segments: &[Segment],
    group_of: &dyn Fn(usize) -> Group,
    ranks: usize,
) -> Vec<Range<usize>> {
    if ranks == 0 {
        return Vec::new();
    }
    let len = segments.last().map_or(0, |segment| segment.range.end);
    let each = len.div_ceil(ranks).next_multiple_of(ALIGN);
    let mut ends: Vec<usize> =
        (1..ranks).map(|rank| cut(entries, segments, group_of, rank.saturating_mul(each).min(len))).collect();
    ends.push(len);
    let starts = [0].into_iter().chain(ends.clone());
    starts.zip(&ends).map(|(start, &end)| start..end).collect()
}

/// Where the arenas can be cut, at this element or before.
fn cut(entries: &[Entry], segments: &[Segment], group_of: &dyn Fn(usize) -> Group, at: usize) -> usize {
    let is_around = |segment: &&Segment| segment.range.contains(&at);
    let of_muon = |segment: &Segment| matches!(group_of(segment.group).kind, Kind::Muon { .. });
    if !segments.iter().find(is_around).is_some_and(of_muon) {
        return at;
    }
    let starts = entries.iter().filter(|entry| entry.trainable).map(|entry| entry.offset);
    starts.filter(|start| *start <= at).max().unwrap_or(at)
}

/// How several ranks divide the f32 values of parameters that have f16 copies.
pub struct Division<'a> {
    /// Of this rank, and of how many.
    pub rank: usize,
    pub ranks: usize,
    /// As [`shards`] takes it.
    pub group_of: &'a dyn Fn(usize) -> Group,
    /// Whether matmuls alone read the parameter of this name, so that only the rank that updates it needs more than its
    /// f16 copy.
    pub is_divided: &'a dyn Fn(&str) -> bool,
}

impl Division<'_> {
    /// What this rank has of so many f32 values in all.
    pub(super) fn held(&self, entries: &[Entry], segments: &[Segment], len: usize) -> Held {
        let part = parts(entries, segments, self.group_of, self.ranks).swap_remove(self.rank);
        Held::new(shared(entries, self.is_divided), &part, len)
    }
}

/// The f32 values that kernels read, where they read f16 copies of these parameters if they are trained.
pub(super) fn shared(entries: &[Entry], in_f16: &dyn Fn(&str) -> bool) -> Vec<Range<usize>> {
    let in_f32 = entries.iter().filter(|entry| entry.dtype == DType::F32);
    let shared = in_f32.filter(|entry| !(entry.trainable && in_f16(&entry.name)));
    shared.map(|entry| entry.offset..entry.range().end.next_multiple_of(ALIGN)).collect()
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
    use crate::Device;
    use crate::optim::testing::{ADAMW, DTYPES, KINDS, Net};
    use crate::optim::{ArenaOptions, Moment, Moments, Optimizer, SavedMoments};
    use crate::tensor::Bytes;

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
    #[ignore = "slow: scripts/test.sh --full"]
    fn parts_update_as_a_whole_does() {
        for (device, kind) in Device::for_tests().iter().flat_map(|device| KINDS.map(|kind| (device.clone(), kind))) {
            // The parts of eight lie inside of parameters.
            for (ranks, moment_dtype) in [2, 3, 8].into_iter().flat_map(|ranks| DTYPES.map(|dtype| (ranks, dtype))) {
                let (whole_arena, arena) = (arena(kind, &device), arena(kind, &device));
                let group = |number| Group { moment_dtype, ..group_of(kind)(number) };
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
                        arena.gradients().unwrap().write_bytes(bytemuck::cast_slice(&gradients)).unwrap();
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
                let joined = Moments::new(&arena, parts.iter().flat_map(of).collect()).encode().unwrap();
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

    /// A rank in mixed precision: the net that computes with the arena, and what updates a part of it.
    struct Rank {
        net: Net,
        arena: ParameterArena,
        optimizer: Optimizer,
    }

    /// As many ranks, which divide the f32 values of these parameters.
    fn ranks_of(kind: Kind, device: &Device, ranks: usize, names: &[&str]) -> Vec<Rank> {
        let is_muon = matches!(kind, Kind::Muon { .. });
        let number_of = |_: &str, p: &crate::nn::Parameter| usize::from(is_muon && p.linear.is_none());
        let group = group_of(kind);
        let of_rank = |rank| {
            let division = Division { rank, ranks, group_of: &group, is_divided: &|name| names.contains(&name) };
            let mut net = Net::new(1);
            let (operands, division) = (DType::F16, Some(&division));
            let options = ArenaOptions { group_of: &number_of, division, ..ArenaOptions::new(operands) };
            let arena = ParameterArena::with_options(&mut net, device, options).unwrap();
            let part = shards(&arena, &group, ranks).swap_remove(rank);
            let optimizer = Optimizer::of_part(&arena, &group, 1.0, &part).unwrap();
            Rank { net, arena, optimizer }
        };
        (0..ranks).map(of_rank).collect()
    }

    /// The f32 values of all ranks, as the one of this number saves them.
    fn joined(ranks: &[Rank], own: usize) -> Vec<f32> {
        let values = |Rank { arena, optimizer, .. }: &Rank| {
            let values = arena.divided_values(optimizer.part()).unwrap()?;
            Some((optimizer.part().clone(), Bytes::owned(values.to_bytes().unwrap())))
        };
        let others = ranks.iter().enumerate().filter(|(rank, _)| *rank != own);
        let others: Vec<_> = others.filter_map(|(_, rank)| values(rank)).collect();
        let arena = &ranks[own].arena;
        let own = Bytes::owned(arena.values().to_bytes().unwrap());
        bytemuck::pod_collect_to_vec(&arena.joined_values(own, &others).unwrap())
    }

    /// Ranks with the f32 values of their parts alone make the updates of one with all; they compute with the same f16
    /// copies, and together have all values.
    #[test]
    #[ignore = "slow: scripts/test.sh --full"]
    fn ranks_that_divide_f32_values_update_as_a_whole_does() {
        let devices = Device::for_tests().into_iter().filter(|device| !device.is_gpu() || device.has_f16());
        // Of the first some on every rank, of the second all on one: which then has all there are.
        let divisions = [&["linear.weight", "head.weight"][..], &["linear.weight"]].into_iter();
        let cases = divisions.flat_map(|names| [2, 3].map(|ranks| (names, ranks)));
        for (device, kind) in devices.flat_map(|device| KINDS.map(|kind| (device.clone(), kind))) {
            for (names, count) in cases.clone() {
                let case = format!("{device} {kind:?} {count} {names:?}");
                let mut whole = ranks_of(kind, &device, 1, &[]).remove(0);
                let mut ranks = ranks_of(kind, &device, count, names);
                for step in 0..3 {
                    let mut gradients = vec![0.0; whole.arena.trainable_len()];
                    for i in whole.arena.entries.iter().flat_map(Entry::range) {
                        gradients[i] = ((i * 7 + step * 13) % 11) as f32 - 5.0;
                    }
                    for Rank { arena, optimizer, .. } in ranks.iter_mut().chain([&mut whole]) {
                        arena.gradients().unwrap().write_bytes(bytemuck::cast_slice(&gradients)).unwrap();
                        optimizer.step(arena, 0.1).unwrap();
                    }
                    exchange(&ranks);
                }
                assert!(whole.arena.is_whole() && ranks.iter().any(|rank| !rank.arena.is_whole()), "{case}");
                // The batches of Muon's GEMMs are others.
                let most = if matches!(kind, Kind::Muon { .. }) { 1e-5 } else { 0.0 };
                let expected = whole.arena.values().to_f32().unwrap();
                for (i, Rank { net, arena, .. }) in ranks.iter().enumerate() {
                    assert_eq!((net.linear.weight.dtype(), net.embed.weight.dtype()), (DType::F16, DType::F32));
                    let values = joined(&ranks, i);
                    assert!(values.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= most), "{case}");
                    for entry in &arena.entries {
                        let halves = arena.of_entry(entry).pop().unwrap().to_f32().unwrap();
                        let rounded = |value: &f32| half::f16::from_f32(*value).to_f32();
                        let mut pairs = halves.iter().zip(&values[entry.range()]);
                        assert!(pairs.all(|(half, value)| *half == rounded(value)), "{case}: {} of {i}", entry.name);
                    }
                }
            }
        }
    }

    /// Gives each rank the parts that others have updated.
    fn exchange(ranks: &[Rank]) {
        for Rank { arena, optimizer, .. } in ranks {
            let pieces = arena.exchanged(optimizer.part(), 512).unwrap();
            for to in ranks {
                let there = to.arena.exchanged(optimizer.part(), 512).unwrap();
                assert!(pieces.len() == there.len() && pieces.iter().all(|piece| piece.len() <= 512));
                pieces.iter().zip(there).for_each(|(from, to)| to.write_bytes(&from.to_bytes().unwrap()).unwrap());
            }
        }
        ranks.iter().for_each(|rank| rank.arena.refresh_halves().unwrap());
    }

    #[test]
    fn what_needs_all_f32_values_is_refused_where_ranks_divide_them() {
        let Rank { arena, mut optimizer, .. } = ranks_of(ADAMW, &Device::Cpu, 2, &["linear.weight"]).remove(1);
        assert!(optimizer.keep_averages(&arena, 0.9).unwrap_err().to_string().contains("another rank has the values"));
        assert!(arena.trained().is_err() && Optimizer::new(&arena, ADAMW, 0.1, 1.0).is_err());
    }
}
