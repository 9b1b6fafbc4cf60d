//! Barrier planning: groups the launches of a pass so that independent ones run concurrently.
//!
//! A launch depends on an earlier one that writes its inputs, or that reads or writes its outputs. A barrier waits for
//! everything before it, so launches run in groups separated by barriers; each launch is in the first group after all
//! its dependencies. wgpu adds barriers itself, by the last use of each buffer in the pass, however long ago (two reads
//! need none). To make it add one at the start of a group and none within:
//!
//! - all reads of a group are declared at its start;
//! - the first write to an allocation goes through an alias that the pass has not used.
//!
//! The alias requires that all earlier writes have been read: the readers waited for them, and the new write waits for
//! the readers. A write after an unread write needs a memory dependency, which wgpu adds if both use the same buffer.

use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::OnceLock;

/// A launch's access to memory. wgpu tracks whole buffers, so accesses to different parts are also ordered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access<'a> {
    pub memory: u64,
    /// The alias to use, once decided; each allocation has its own.
    pub alias: &'a OnceLock<usize>,
    /// Whether the memory has several aliases.
    pub has_aliases: bool,
    pub writes: bool,
    /// Byte range: start and end.
    pub bytes: [u64; 2],
}

/// A launch of a pass.
#[derive(Debug, Clone)]
pub(super) struct Uses {
    /// Its range of the pass's accesses.
    pub accesses: Range<usize>,
    /// Whether a full barrier precedes it.
    pub waits: bool,
}

/// Launches that may run at the same time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub launches: Vec<usize>,
    /// Reads to declare to wgpu before the first launch.
    pub reads: Vec<usize>,
    /// Whether wgpu would add no barrier before the first launch.
    pub needs_barrier: bool,
}

/// State of a memory so far.
#[derive(Debug, Default)]
struct State {
    /// The last pass that uses it.
    pass: u64,
    /// The buffers that the pass uses, and whether wgpu has the buffer as one that is written.
    in_pass: Vec<(usize, bool)>,
    /// The first groups of the pass that may still read it, and write to it.
    may_read: usize,
    may_write: usize,
    /// The last group that writes to it, and the last before which it was made known; counted over all passes.
    written_by: u64,
    known_by: u64,
    /// The buffer used last.
    last: usize,
    /// The part that was written, from its first byte to that behind it, until all of it was read.
    unread: Option<[u64; 2]>,
}

impl State {
    /// A group of the pass uses it.
    fn used_by(&mut self, group: usize, writes: bool) {
        self.may_write = self.may_write.max(group + 1);
        if writes {
            self.may_read = self.may_read.max(group + 1);
        }
    }

    /// Whether wgpu has this buffer as one that is written; `None` if the pass has not used it.
    fn tracked(&self, alias: usize) -> Option<bool> {
        self.in_pass.iter().find(|(other, _)| *other == alias).map(|(_, written)| *written)
    }

    /// It is used by this buffer, after all uses so far.
    fn use_last(&mut self, alias: usize, access: &Access) {
        let [start, end] = access.bytes;
        self.last = alias;
        match self.unread {
            Some([first, behind]) if access.writes => self.unread = Some([first.min(start), behind.max(end)]),
            None if access.writes => self.unread = Some([start, end]),
            Some([first, behind]) if start <= first && behind <= end => self.unread = None,
            _ => {}
        }
    }

    fn track(&mut self, alias: usize, written: bool) {
        match self.in_pass.iter_mut().find(|(other, _)| *other == alias) {
            Some(known) => known.1 = written,
            None => self.in_pass.push((alias, written)),
        }
    }
}

/// The order of all commands of a device.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    places: FxHashMap<u64, usize>,
    states: Vec<State>,
    /// Places of memory that is gone.
    vacant: Vec<usize>,
    /// The number of the last pass, and of the last group of all passes.
    pass: u64,
    group: u64,
}

impl Barriers {
    /// Clears all state once the device has finished.
    pub fn clear(&mut self) {
        self.places.clear();
        self.states.clear();
        self.vacant.clear();
    }

    /// Removes freed memory, which no later command uses.
    pub fn forget(&mut self, memory: u64) {
        if let Some(place) = self.places.remove(&memory) {
            self.states[place] = State::default();
            self.vacant.push(place);
        }
    }

    /// Where the state of some memory is.
    fn place(&mut self, memory: u64) -> usize {
        *self.places.entry(memory).or_insert_with(|| {
            self.vacant.pop().unwrap_or_else(|| {
                self.states.push(State::default());
                self.states.len() - 1
            })
        })
    }

    /// Records a copy outside a pass, where wgpu adds barriers for every command.
    pub fn copy(&mut self, access: &Access) {
        let place = self.place(access.memory);
        let state = &mut self.states[place];
        let alias = *access.alias.get_or_init(|| state.last);
        state.use_last(alias, access);
    }

    /// Plans a pass, which starts with a barrier.
    pub fn pass(&mut self, accesses: &[Access], launches: &[Uses]) -> Vec<Group> {
        self.pass += 1;
        let places: Vec<usize> = accesses.iter().map(|access| self.place(access.memory)).collect();
        for &place in &places {
            let state = &mut self.states[place];
            if state.pass != self.pass {
                (state.pass, state.may_read, state.may_write) = (self.pass, 0, 0);
                state.in_pass.clear();
            }
        }
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut earliest = 0;
        for (launch, Uses { accesses: own, waits }) in launches.iter().enumerate() {
            if *waits {
                earliest = groups.len();
            }
            let may_use = |i: usize| {
                let State { may_read, may_write, .. } = self.states[places[i]];
                if accesses[i].writes { may_write } else { may_read }
            };
            let group = own.clone().map(may_use).fold(earliest, usize::max);
            if group == groups.len() {
                groups.push(Vec::new());
            }
            groups[group].push(launch);
            for i in own.clone() {
                self.states[places[i]].used_by(group, accesses[i].writes);
            }
        }
        let mut plan = Vec::with_capacity(groups.len());
        for group in groups {
            let own = || group.iter().flat_map(|&launch| launches[launch].accesses.clone());
            let reads = if group.len() > 1 { self.written_before(accesses, &places, own()) } else { Vec::new() };
            // The barrier that wgpu adds for the first launch is one for the group.
            let of_first = launches[group[0]].accesses.len();
            let adds_one = own().zip(0..).fold(false, |adds_one, (i, n)| {
                let adds = self.choose_buffer(&accesses[i], places[i]);
                adds_one || (adds && n < of_first)
            });
            let needs_barrier = !plan.is_empty() && reads.is_empty() && !adds_one;
            plan.push(Group { launches: group, reads, needs_barrier });
        }
        plan
    }

    /// Of the accesses of a group, one for each buffer that wgpu has as written and the group only reads.
    fn written_before(
        &mut self,
        accesses: &[Access],
        places: &[usize],
        own: impl Iterator<Item = usize> + Clone,
    ) -> Vec<usize> {
        self.group += 1;
        for i in own.clone().filter(|&i| accesses[i].writes) {
            self.states[places[i]].written_by = self.group;
        }
        let mut reads = Vec::new();
        for i in own {
            let state = &mut self.states[places[i]];
            let written = accesses[i].alias.get().and_then(|&alias| state.tracked(alias)) == Some(true);
            if written && state.written_by != self.group && state.known_by != self.group {
                state.known_by = self.group;
                reads.push(i);
            }
        }
        reads
    }

    /// Decides the buffer of an access if it is the first of its allocation. Whether wgpu adds a barrier for it.
    fn choose_buffer(&mut self, access: &Access, place: usize) -> bool {
        let state = &mut self.states[place];
        let alias = *access.alias.get_or_init(|| {
            let fresh = access.has_aliases && access.writes && state.unread.is_none();
            let unused = |alias: &usize| state.tracked(*alias).is_none();
            if fresh { (0..).find(unused).expect("there is no last number") } else { state.last }
        });
        let adds_barrier = state.tracked(alias).is_some_and(|written| written || access.writes);
        state.track(alias, access.writes);
        state.use_last(alias, access);
        adds_barrier
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    /// What a launch uses: an allocation, by its number, and the part that it reads or writes.
    #[derive(Debug, Clone, Copy)]
    struct Use {
        allocation: usize,
        writes: bool,
        bytes: [u64; 2],
    }

    const ALL: [u64; 2] = [0, 80];

    fn read(allocation: usize) -> Use {
        Use { allocation, writes: false, bytes: ALL }
    }

    fn write(allocation: usize) -> Use {
        Use { allocation, writes: true, bytes: ALL }
    }

    /// Allocations by number: the memory that each is of, and its buffer.
    struct Allocations(Vec<(u64, OnceLock<usize>)>);

    impl Allocations {
        fn of(memories: &[u64]) -> Allocations {
            Allocations(memories.iter().map(|memory| (*memory, OnceLock::new())).collect())
        }

        fn access(&self, used: &Use) -> Access<'_> {
            let Use { allocation, writes, bytes } = *used;
            let (memory, alias) = &self.0[allocation];
            Access { memory: *memory, alias, has_aliases: *memory < 100, writes, bytes }
        }

        fn pass(&self, barriers: &mut Barriers, launches: &[Vec<Use>], waits: bool) -> Vec<Group> {
            let accesses: Vec<Access> = launches.iter().flatten().map(|used| self.access(used)).collect();
            let starts = launches.iter().scan(0, |start, uses| {
                *start += uses.len();
                Some(*start - uses.len())
            });
            let uses = starts.zip(launches).map(|(start, uses)| Uses { accesses: start..start + uses.len(), waits });
            barriers.pass(&accesses, &uses.collect::<Vec<_>>())
        }

        /// The barriers that wgpu adds to a pass: before which launch, and of which buffers, if not of the fence.
        fn added(&self, groups: &[Group], launches: &[Vec<Use>]) -> Vec<Added> {
            let mut tracked: HashMap<(u64, usize), bool> = HashMap::new();
            let mut added = Vec::new();
            let buffer = |used: &Use| {
                let (memory, alias) = &self.0[used.allocation];
                (*memory, *alias.get().unwrap())
            };
            for group in groups {
                let mut put = |launch: usize, buffers: Vec<((u64, usize), bool)>| {
                    let waits = |&&(buffer, writes): &&((u64, usize), bool)| {
                        tracked.get(&buffer).is_some_and(|written| *written || writes)
                    };
                    let changed: Vec<(u64, usize)> = buffers.iter().filter(waits).map(|(buffer, _)| *buffer).collect();
                    if !changed.is_empty() {
                        added.push((launch, changed));
                    }
                    tracked.extend(buffers);
                };
                let all: Vec<&Use> = launches.iter().flatten().collect();
                let reads = group.reads.iter().map(|&i| (buffer(all[i]), false)).collect();
                put(group.launches[0], reads);
                for &launch in &group.launches {
                    put(launch, launches[launch].iter().map(|used| (buffer(used), used.writes)).collect());
                }
                if group.needs_barrier {
                    added.push((group.launches[0], Vec::new()));
                }
            }
            added
        }
    }

    fn launches(groups: &[Group]) -> Vec<Vec<usize>> {
        groups.iter().map(|group| group.launches.clone()).collect()
    }

    /// The gradients of two linear layers: x, dy and the weight are read, split-K slices are of memory used before.
    #[test]
    fn gradients_of_inputs_and_weights_run_side_by_side() {
        // dy, weight, dx, x, slices, dw, the weight after, dx after, x after; slices after.
        let allocations = Allocations::of(&[0, 1, 2, 3, 4, 5, 6, 0, 8, 4]);
        let steps: Vec<Vec<Use>> = vec![
            vec![write(0)],
            vec![read(0), read(1), write(2)],
            vec![read(3), read(0), write(4)],
            vec![read(4), write(5)],
            vec![read(2), read(6), write(7)],
            vec![read(8), read(2), write(9)],
        ];
        let mut barriers = Barriers::default();
        let groups = allocations.pass(&mut barriers, &steps, false);
        assert_eq!(launches(&groups), [vec![0], vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(groups[2].reads, [7, 9]);
        // One barrier for each group after the first; slices are read before they are written again.
        let added = allocations.added(&groups, &steps);
        assert_eq!(added.iter().map(|(launch, _)| *launch).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!(allocations.0[9].1.get(), Some(&1));
        // Kernels that are timed wait for each other, with a barrier each.
        let groups = allocations.pass(&mut barriers, &steps, true);
        assert_eq!(groups.len(), steps.len());
        assert_eq!(allocations.added(&groups, &steps).len(), steps.len() - 1);
    }

    /// A read of 16 of 80 bytes that were written, then a write of all of them in an allocation of its own.
    #[test]
    fn a_write_after_a_read_of_a_part_is_for_wgpu_to_order() {
        for (bytes, buffer) in [([0, 16], 0), ([64, 80], 0), (ALL, 1)] {
            let allocations = Allocations::of(&[0, 1, 0]);
            let part = Use { bytes, ..read(0) };
            let steps: Vec<Vec<Use>> = vec![vec![write(0)], vec![part, write(1)], vec![write(2)]];
            let groups = allocations.pass(&mut Barriers::default(), &steps, false);
            assert_eq!(launches(&groups), [vec![0], vec![1], vec![2]]);
            assert_eq!(allocations.0[2].1.get(), Some(&buffer), "after a read of {bytes:?}");
        }
    }

    #[test]
    fn a_copy_of_a_part_leaves_the_rest_unread() {
        for (bytes, buffer) in [([0, 16], 0), (ALL, 1)] {
            let allocations = Allocations::of(&[0, 0]);
            let mut barriers = Barriers::default();
            let steps: Vec<Vec<Use>> = vec![vec![write(0)]];
            allocations.pass(&mut barriers, &steps, false);
            barriers.copy(&allocations.access(&Use { bytes, ..read(0) }));
            let part = Use { bytes: [0, 16], ..read(0) };
            allocations.pass(&mut barriers, &[vec![part], vec![write(1)]], false);
            assert_eq!(allocations.0[1].1.get(), Some(&buffer), "after a copy of {bytes:?}");
        }
    }

    #[test]
    fn memory_with_one_buffer_is_for_wgpu_to_order() {
        let allocations = Allocations::of(&[100, 100, 1]);
        let steps: Vec<Vec<Use>> = vec![vec![write(0)], vec![read(0), write(2)], vec![write(1)]];
        let groups = allocations.pass(&mut Barriers::default(), &steps, false);
        let expected = [(1, vec![(100, 0)]), (2, vec![(100, 0)])];
        assert_eq!(allocations.added(&groups, &steps), expected);
    }

    /// Random launches: between any two that must follow each other there is a barrier, and where the second reads or
    /// overwrites what the first wrote it is one of that buffer.
    #[test]
    fn hazards_are_separated_by_a_barrier() {
        let mut seed = 1_u64;
        let mut random = move |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let (mut planned, mut alone) = (0, 0);
        for _ in 0..2000 {
            let mut barriers = Barriers::default();
            let (allocations, passes) = random_passes(&mut random);
            for (steps, copied) in &passes {
                let groups = allocations.pass(&mut barriers, steps, false);
                assert_eq!(groups.iter().map(|group| group.launches.len()).sum::<usize>(), steps.len());
                let added = allocations.added(&groups, steps);
                barriers.copy(&allocations.access(copied));
                let at: HashSet<usize> = added.iter().map(|(launch, _)| *launch).collect();
                planned += at.len();
                alone += by_wgpu_alone(&allocations, steps);
                let order: Vec<usize> = groups.iter().flat_map(|group| group.launches.clone()).collect();
                for (j, later) in steps.iter().enumerate() {
                    for (i, earlier) in steps[..j].iter().enumerate() {
                        for (a, b) in earlier.iter().flat_map(|a| later.iter().map(move |b| (a, b))) {
                            assert_separated(&allocations, steps, (&order, &added), (i, a), (j, b));
                        }
                    }
                }
            }
        }
        assert!(planned < alone, "{planned} barriers, {alone} without a plan");
    }

    /// What each launch uses, and what is copied after all.
    type Pass = (Vec<Vec<Use>>, Use);
    /// A barrier: the launch that it stands before, and the buffers that it is known to wait for.
    type Added = (usize, Vec<(u64, usize)>);

    /// Three passes of launches, each with what is copied after it, and the memory that they use, which changes its
    /// buffers meanwhile.
    fn random_passes(random: &mut impl FnMut(u64) -> u64) -> (Allocations, Vec<Pass>) {
        // The last is memory of one buffer.
        let memories: Vec<u64> = (0..12).chain([100]).collect();
        let mut allocations = Allocations::of(&memories);
        let mut current: Vec<usize> = (0..memories.len()).collect();
        let mut passes = Vec::new();
        for _ in 0..3 {
            let mut steps: Vec<Vec<Use>> = Vec::new();
            for _ in 0..1 + random(12) {
                let mut uses: Vec<Use> = Vec::new();
                for used in &mut current {
                    if random(8) == 0 {
                        allocations.0.push((allocations.0[*used].0, OnceLock::new()));
                        *used = allocations.0.len() - 1;
                    }
                    if random(6) == 0 {
                        let bytes = if random(4) == 0 { [0, 16] } else { ALL };
                        uses.push(Use { allocation: *used, writes: random(3) == 0, bytes });
                    }
                }
                steps.push(uses);
            }
            let allocation = current[random(13) as usize];
            passes.push((steps, Use { allocation, writes: random(2) == 0, bytes: ALL }));
        }
        (allocations, passes)
    }

    /// Fails if launch j's use b must follow launch i's use a, and no barrier that is `added` stands between them in
    /// `order`.
    fn assert_separated(
        allocations: &Allocations,
        steps: &[Vec<Use>],
        (order, added): (&[usize], &[Added]),
        (i, a): (usize, &Use),
        (j, b): (usize, &Use),
    ) {
        let (of_a, of_b) = (&allocations.0[a.allocation], &allocations.0[b.allocation]);
        if of_a.0 != of_b.0 || !(a.writes || b.writes) {
            return;
        }
        let place = |launch: usize| order.iter().position(|&other| other == launch).unwrap();
        let (i, j) = (place(i), place(j));
        let between = || added.iter().filter(|(at, _)| i < place(*at) && place(*at) <= j);
        assert!(between().next().is_some(), "{i} {a:?} and {j} {b:?} in {steps:?}: {order:?}");
        let mut used_between = order[i + 1..j]
            .iter()
            .flat_map(|&launch| &steps[launch])
            .filter(|c| allocations.0[c.allocation].0 == of_a.0);
        // Reads of a part leave a write after a write.
        let covers = |c: &Use| c.writes || c.bytes[1] >= a.bytes[1];
        let follows = if b.writes { !used_between.any(covers) } else { used_between.next().is_none() };
        if a.writes && follows {
            let buffer = (of_a.0, *of_a.1.get().unwrap());
            let same = a.allocation == b.allocation || of_a.1 == of_b.1;
            let known = between().any(|(_, buffers)| buffers.contains(&buffer));
            assert!(same && known, "{i} {a:?} and {j} {b:?} in {steps:?}: {order:?}");
        }
    }

    /// The barriers that wgpu adds if memory has one buffer each and nothing is made known to it.
    fn by_wgpu_alone(allocations: &Allocations, steps: &[Vec<Use>]) -> usize {
        let mut tracked: HashMap<u64, bool> = HashMap::new();
        let mut count = 0;
        for uses in steps {
            let uses = uses.iter().map(|used| (allocations.0[used.allocation].0, used.writes));
            let waits = uses.clone().any(|(memory, writes)| tracked.get(&memory).is_some_and(|old| *old || writes));
            count += waits as usize;
            tracked.extend(uses);
        }
        count
    }
}
