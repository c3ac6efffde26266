//! Which lane of which warp holds which synapse: what held.cuh reads.

use crate::layers::ltc::Synapses;
use crate::{Error, Result};
use std::ops::Range;

mod four;
mod levels;
mod lone;
mod state_sums;
pub(super) use four::Deal;
pub(super) use levels::{Between, Levels};
pub(super) use state_sums::{AdjointShape, StateShape};

const WARP: usize = 32;
/// The most lanes of an owner in [`Lists::schedule_packed`], as kParts there.
const PARTS: usize = 16;
/// Marks a slot without a synapse, as `kNone`.
pub(super) const NONE: u32 = u32::MAX;

/// One synapse of an owner: the node at its other end, and its place `source H + target` in a dense matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) other: u32,
    pub(super) at: u32,
}

/// The synapses by owner: by target for sums over sources, by source for sums over targets.
pub(super) struct Lists {
    pub(super) others: usize,
    pub(super) of: Vec<Vec<Entry>>,
}

impl Lists {
    /// By target, or none if a dense matrix has more elements than a slot can name.
    pub(super) fn by_target(s: &Synapses) -> Option<Self> {
        Self::new(s, 0..s.sources(), false)
    }
    /// By source.
    pub(super) fn by_source(s: &Synapses) -> Option<Self> {
        Self::new(s, 0..s.sources(), true)
    }
    /// Of `some` sources alone, which are counted from the first of them.
    pub(super) fn of_sources(s: &Synapses, some: Range<usize>, by_source: bool) -> Option<Self> {
        Self::new(s, some, by_source)
    }
    fn new(s: &Synapses, some: Range<usize>, by_source: bool) -> Option<Self> {
        let (sources, targets) = (some.len(), s.targets());
        if sources.checked_mul(targets).is_none_or(|n| n >= NONE as usize) {
            return None;
        }
        let mut of = vec![Vec::new(); if by_source { sources } else { targets }];
        for j in 0..targets {
            for &i in &s.source_of[s.target_offsets[j] as usize..s.target_offsets[j + 1] as usize] {
                if !some.contains(&(i as usize)) {
                    continue;
                }
                let i = i as usize - some.start;
                let at = (i * targets + j) as u32;
                if by_source {
                    of[i].push(Entry { other: j as u32, at });
                } else {
                    of[j].push(Entry { other: i as u32, at });
                }
            }
        }
        Some(Self { others: if by_source { targets } else { sources }, of })
    }

    /// Owners dealt to `blocks` blocks, longest lists first and there and back, so that all get alike.
    fn deal(&self, blocks: usize) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..self.of.len()).collect();
        order.sort_by_key(|&j| (std::cmp::Reverse(self.of[j].len()), j));
        let mut dealt = vec![Vec::new(); blocks];
        for (n, j) in order.into_iter().enumerate() {
            let (round, place) = (n / blocks, n % blocks);
            dealt[if round % 2 == 0 { place } else { blocks - 1 - place }].push(j);
        }
        dealt
    }

    /// Lanes that an owner needs if each holds `slots` synapses: a power of two, at least `least`; none beyond a warp.
    fn lanes(&self, j: usize, slots: usize, least: usize) -> Option<usize> {
        let lanes = self.of[j].len().div_ceil(slots).next_power_of_two().max(least);
        (lanes <= WARP).then_some(lanes)
    }

    /// What a block would be if each lane held up to `slots` synapses and each owner had at least `least` lanes, or none
    /// if an owner does not fit a warp.
    pub(super) fn shape(&self, blocks: usize, slots: usize, rows: usize, least: usize) -> Option<Shape> {
        // A load of `rows` values at a 16-bit byte offset.
        if self.others * rows * 4 > 1 << 16 {
            return None;
        }
        let (mut threads, mut busiest) = (WARP, 0);
        for owners in self.deal(blocks) {
            let warps = self.warps(&owners, slots, least)?;
            threads = threads.max(warps.len() * WARP);
            busiest = busiest.max(warps.iter().map(|w| w.slots).sum());
        }
        Some(Shape { threads, warp_slots: busiest })
    }

    /// The warps of a block: owners of equal lane counts together, longest lists first.
    fn warps(&self, owners: &[usize], slots: usize, least: usize) -> Option<Vec<Warp>> {
        let mut by_lanes: Vec<(usize, usize)> =
            owners.iter().map(|&j| Some((self.lanes(j, slots, least)?, j))).collect::<Option<_>>()?;
        by_lanes.sort_by_key(|&(lanes, j)| (std::cmp::Reverse(lanes), std::cmp::Reverse(self.of[j].len()), j));
        let mut warps: Vec<Warp> = Vec::new();
        for (lanes, j) in by_lanes {
            let need = self.of[j].len().div_ceil(lanes);
            match warps.last_mut() {
                Some(w) if w.lanes[0] == lanes && w.owners.len() < WARP / lanes => {
                    w.owners.push(j);
                    w.lanes.push(lanes);
                    w.slots = w.slots.max(need);
                }
                _ => warps.push(Warp { lanes: vec![lanes], slots: need, owners: vec![j] }),
            }
        }
        Some(warps)
    }

    /// The lanes of an owner where all have as many, and threads of a block, of owners that lie in their own order.
    pub(super) fn in_order(&self, blocks: usize, slots: usize, least: usize) -> Option<(usize, usize)> {
        let lanes = (0..self.of.len()).try_fold(least, |most, j| Some(most.max(self.lanes(j, slots, least)?)))?;
        (self.others * 4 <= 1 << 16).then(|| (lanes, self.of.len().div_ceil(blocks).div_ceil(WARP / lanes) * WARP))
    }

    /// The fewest slots of a lane, up to `slots`, with which owners in their own order, a part of them to each block, fit
    /// `threads` threads, each with as many lanes of a warp as its list needs, `least` or more; and those warps. With as few slots others
    /// would be left empty alike.
    fn packed(&self, blocks: usize, slots: usize, threads: usize, least: usize) -> Option<(usize, Vec<Vec<Warp>>)> {
        let share = self.of.len().div_ceil(blocks).max(1);
        let of_block = |slots: usize, block: usize| {
            let mut warps: Vec<Warp> = Vec::new();
            for j in (block * share..(block + 1) * share).take_while(|&j| j < self.of.len()) {
                let lanes = self.of[j].len().div_ceil(slots).max(least);
                if lanes > PARTS {
                    return None;
                }
                match warps.last_mut() {
                    Some(w) if w.lanes.iter().sum::<usize>() + lanes <= WARP => {
                        w.owners.push(j);
                        w.lanes.push(lanes);
                    }
                    _ => warps.push(Warp { lanes: vec![lanes], slots, owners: vec![j] }),
                }
            }
            (warps.len() * WARP <= threads).then_some(warps)
        };
        let all = |slots| Some((slots, (0..blocks).map(|block| of_block(slots, block)).collect::<Option<_>>()?));
        if self.others * 4 > 1 << 16 { None } else { (1..=slots).find_map(all) }
    }

    /// The slots that [`Self::schedule_packed`] takes, if it holds all synapses.
    pub(super) fn packed_slots(&self, blocks: usize, slots: usize, threads: usize, least: usize) -> Option<usize> {
        Some(self.packed(blocks, slots, threads, least)?.0)
    }

    /// The schedule where owners lie in their own order, a part of them to each block, and each has as many lanes as it needs. Its
    /// `warps` say how many values come to a block each time that all owners give theirs, in the place of lanes. Behind the owners is for
    /// each lane, of all synapses one lane after the other, where its own begin, times 32, and how many they are; and those places in a
    /// dense matrix.
    pub(super) fn schedule_packed(
        &self,
        blocks: usize,
        slots: usize,
        threads: usize,
        least: usize,
    ) -> Result<(Schedule, Vec<u32>)> {
        let warps = self.packed(blocks, slots, threads, least).ok_or_else(|| {
            Error::shape(format!("ltc: {slots} slots of {threads} threads in {blocks} blocks hold too few synapses"))
        })?;
        // Every lane sends what its owner has: the how-manieth it is, to the block of that number, and where an owner has fewer
        // lanes than there are blocks, to a second one. A lane that nobody needs sends to one that has it already, and one without
        // an owner to where nobody reads.
        let mut sent = vec![0i32; blocks];
        for warp in warps.1.iter().flat_map(|of_block| of_block.iter()) {
            let empty = WARP - warp.lanes.iter().sum::<usize>();
            for lanes in warp.lanes.iter().copied().chain([empty]) {
                (0..lanes).for_each(|sub| sent[sub % blocks] += 1);
            }
            for &lanes in &warp.lanes {
                (lanes..(2 * lanes).min(blocks)).for_each(|block| sent[block] += 1);
            }
        }
        // The first warp of a block always has a part in it.
        for _ in warps.1.iter().filter(|of_block| of_block.is_empty()) {
            (0..WARP).for_each(|sub| sent[sub % blocks] += 1);
        }
        let place: Vec<u32> = (0..self.others as u32).collect();
        let mut s = self.filled(
            warps.1.into_iter().map(Some).collect(),
            &place,
            (warps.0.next_multiple_of(2), 1, threads),
            true,
        )?;
        for (of_block, sent) in s.warps.chunks_mut(threads / WARP).zip(sent) {
            of_block.iter_mut().for_each(|w| w[0] = sent);
        }
        let (slots, mut all) = (warps.0.next_multiple_of(2), Vec::new());
        for lane in 0..blocks * threads {
            let (block, thread) = (lane / threads, lane % threads);
            let at = (0..slots).map(|slot| s.at[(block * slots + slot) * threads + thread]);
            let of_lane: Vec<u32> = at.take_while(|&at| at != NONE).collect();
            s.owner.push(((all.len() << 5) | of_lane.len()) as i32);
            all.extend(of_lane);
        }
        Ok((s, all))
    }

    /// The most slots that a lane uses of `lanes` for each owner.
    pub(super) fn most_slots(&self, lanes: usize) -> usize {
        self.of.iter().map(|list| list.len().div_ceil(lanes)).max().unwrap_or(0)
    }

    /// The schedule where owners lie in their own order, a part of them to each block, and all have as many lanes: a vector of
    /// their values is as it lies in memory.
    pub(super) fn schedule_in_order(
        &self,
        blocks: usize,
        slots: usize,
        threads: usize,
        least: usize,
    ) -> Result<Schedule> {
        let share = self.of.len().div_ceil(blocks).max(1);
        let part = |block: usize| {
            let lanes = self.in_order(blocks, slots, least)?.0;
            let owners: Vec<usize> = (block * share..((block + 1) * share).min(self.of.len())).collect();
            let warp = |some: &[usize]| Warp {
                lanes: vec![lanes; some.len()],
                slots: some.iter().map(|&j| self.of[j].len().div_ceil(lanes)).max().unwrap_or(0),
                owners: some.to_vec(),
            };
            Some(owners.chunks(WARP / lanes).map(warp).collect())
        };
        let place: Vec<u32> = (0..self.others as u32).collect();
        self.filled((0..blocks).map(part).collect(), &place, (slots, 1, threads), true)
    }

    /// The schedule itself. Where owners are `exchanged`, what one gives lies where the others read it: the owners of a
    /// warp side by side, so that their stores to another block travel together (half the time of a round: 530 instead
    /// of 1060 clocks for 256 owners in a cluster of 8, H200).
    pub(super) fn schedule(
        &self,
        blocks: usize,
        slots: usize,
        rows: usize,
        threads: usize,
        least: usize,
        exchanged: bool,
    ) -> Result<Schedule> {
        let dealt: Vec<Option<Vec<Warp>>> =
            self.deal(blocks).iter().map(|owners| self.warps(owners, slots, least)).collect();
        let mut place: Vec<u32> = (0..self.others as u32).collect();
        if exchanged {
            debug_assert_eq!(self.others, self.of.len(), "only a square matrix has owners that are read");
            for (n, &j) in dealt.iter().flatten().flatten().flat_map(|w| &w.owners).enumerate() {
                place[j] = n as u32;
            }
        }
        self.filled(dealt, &place, (slots, rows, threads), exchanged)
    }

    /// The schedule of the warps of each block, with the place of each node.
    fn filled(
        &self,
        dealt: Vec<Option<Vec<Warp>>>,
        place: &[u32],
        (slots, rows, threads): (usize, usize, usize),
        exchanged: bool,
    ) -> Result<Schedule> {
        let blocks = dealt.len();
        let mut s = Schedule {
            at: vec![NONE; blocks * slots * threads],
            from: vec![0; blocks * slots / 2 * threads],
            owner: vec![-1; blocks * threads],
            warps: vec![[WARP as i32, 0]; blocks * threads / WARP],
        };
        for (block, warps) in dealt.into_iter().enumerate() {
            let warps = warps.filter(|w| w.len() * WARP <= threads).ok_or_else(|| {
                Error::shape(format!("ltc: {slots} slots of {threads} threads hold too few synapses"))
            })?;
            for (w, warp) in warps.iter().enumerate() {
                let most = warp.lanes.iter().copied().max().unwrap_or(WARP);
                s.warps[block * threads / WARP + w] = [most as i32, warp.slots as i32];
                let of_lane = warp.of_lanes();
                let first = block * threads + w * WARP;
                for lane in 0..WARP {
                    if let Some(j) = of_lane[lane].map(|o| warp.owners[o]) {
                        s.owner[first + lane] = j as i32 | if exchanged { (place[j] as i32) << 16 } else { 0 };
                    }
                }
                self.fill(warp, rows, place, |slot, lane, entry, from| {
                    let thread = w * WARP + lane;
                    if let Some(e) = entry {
                        s.at[(block * slots + slot) * threads + thread] = e.at;
                    }
                    s.from[(block * slots / 2 + slot / 2) * threads + thread] |= from << (16 * (slot % 2));
                });
            }
        }
        Ok(s)
    }

    /// Orders the synapses of a warp. Lanes that are served together (32 / rows of them: a load brings 4 rows bytes a
    /// lane, and all banks 128) should read different banks: each takes the bank least used so far in its turn, of those
    /// the one of which its owner has the most synapses left.
    fn fill(&self, warp: &Warp, rows: usize, place: &[u32], mut put: impl FnMut(usize, usize, Option<Entry>, u32)) {
        let banks = WARP / rows;
        let (of_lane, step) = (warp.of_lanes(), warp.lanes.first().copied().unwrap_or(1));
        let mut left: Vec<Vec<Vec<Entry>>> = warp
            .owners
            .iter()
            .map(|&j| {
                let mut by_bank = vec![Vec::new(); banks];
                for &e in self.of[j].iter().rev() {
                    by_bank[place[e.other as usize] as usize % banks].push(e);
                }
                by_bank
            })
            .collect();
        // Slots go in pairs; the second of an odd number is empty.
        for slot in 0..warp.slots.next_multiple_of(2) {
            for first in (0..WARP).step_by(banks) {
                let mut used = vec![0usize; banks];
                // Another lane chooses first in each slot.
                for turn in 0..banks {
                    let lane = first + (turn + slot * step) % banks;
                    let taken = of_lane[lane].map(|o| &mut left[o]).and_then(|of| {
                        let bank = (0..banks)
                            .filter(|&b| !of[b].is_empty())
                            .min_by_key(|&b| (used[b], std::cmp::Reverse(of[b].len()), b))?;
                        of[bank].pop()
                    });
                    let from = match taken {
                        Some(e) => place[e.other as usize] as usize,
                        // Any node will do; one of a free bank costs nothing.
                        None => (0..banks.min(self.others)).min_by_key(|&b| used[b]).unwrap_or(0),
                    };
                    used[from % banks] += 1;
                    put(slot, lane, taken, from as u32);
                }
            }
        }
    }
}

/// A warp before its slots are filled.
struct Warp {
    /// Of each owner, side by side.
    lanes: Vec<usize>,
    slots: usize,
    owners: Vec<usize>,
}

impl Warp {
    /// Which of its owners each lane has.
    fn of_lanes(&self) -> [Option<usize>; WARP] {
        let mut all = [None; WARP];
        let owners = self.lanes.iter().enumerate().flat_map(|(o, &lanes)| std::iter::repeat_n(Some(o), lanes));
        for (lane, owner) in all.iter_mut().zip(owners) {
            *lane = owner;
        }
        all
    }
}

/// What a schedule takes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) threads: usize,
    /// Slots of all warps together in the busiest block: its work.
    pub(super) warp_slots: usize,
}

/// The arrays of `struct Schedule`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) at: Vec<u32>,
    pub(super) from: Vec<u32>,
    /// Owners, or -1; where they are exchanged, with 65536 times their places; of four rows, behind them, which part of which
    /// owner of the warp each lane has ([`Lists::four`]).
    pub(super) owner: Vec<i32>,
    pub(super) warps: Vec<[i32; 2]>,
}

impl Schedule {
    /// Several one behind the other, a block each.
    pub(super) fn joined(parts: impl IntoIterator<Item = Result<Self>>) -> Result<Self> {
        let mut all = Self { at: Vec::new(), from: Vec::new(), owner: Vec::new(), warps: Vec::new() };
        for part in parts {
            let part = part?;
            all.at.extend(part.at);
            all.from.extend(part.from);
            all.owner.extend(part.owner);
            all.warps.extend(part.warps);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn random(n: usize, density: f64) -> Synapses {
        let mut rng = Rng::new(3, 0);
        let mask: Vec<bool> = (0..n * n).map(|_| rng.uniform() < density).collect();
        Synapses::from_fn(n, n, |i, j| mask[i * n + j]).unwrap()
    }

    /// Every synapse is held exactly once, by a lane of its owner, and its offset is that of its other end.
    #[test]
    fn every_synapse_is_held_once() {
        for (n, density, blocks, rows) in
            [(64, 0.5, 1, 1), (65, 1.0, 4, 2), (33, 0.1, 2, 4), (256, 0.5, 4, 2), (1, 1.0, 1, 1), (40, 0.0, 1, 2)]
        {
            let s = random(n, density);
            for (lists, exchanged) in
                [(Lists::by_target(&s), false), (Lists::by_target(&s), true), (Lists::by_source(&s), true)]
            {
                let lists = lists.unwrap();
                let by_source = lists.of[0].first().is_some_and(|e| e.at as usize / n == 0 && n > 1)
                    && lists.of.iter().enumerate().all(|(o, l)| l.iter().all(|e| e.at as usize / n == o));
                let (slots, limit) = [(8, 512), (16, 512), (40, 256)]
                    .into_iter()
                    .find(|&(slots, threads)| {
                        lists.shape(blocks, slots, rows, 2 * rows).is_some_and(|s| s.threads <= threads)
                    })
                    .unwrap();
                let threads = lists.shape(blocks, slots, rows, 2 * rows).unwrap().threads;
                assert!(threads <= limit);
                let plan = lists.schedule(blocks, slots, rows, threads, 2 * rows, exchanged).unwrap();
                let mut seen = vec![0; n * n];
                // Of each place, the node that gives it: in order, as the lanes come.
                let mut place: Vec<usize> = (0..n).collect();
                if exchanged {
                    let mut given: Vec<i32> = plan.owner.iter().copied().filter(|&o| o >= 0).collect();
                    given.dedup();
                    place = given.iter().map(|o| (o & 0xffff) as usize).collect();
                    assert!(given.iter().enumerate().all(|(i, o)| (o >> 16) as usize == i), "side by side");
                }
                let owners = plan.owner.iter().map(|&o| if o < 0 { o } else { o & 0xffff }).collect::<Vec<_>>();
                for (k, &at) in plan.at.iter().enumerate().filter(|(_, at)| **at != NONE) {
                    seen[at as usize] += 1;
                    let (thread, slot, block) = (k % threads, k / threads % slots, k / threads / slots);
                    let (i, j) = (at as usize / n, at as usize % n);
                    let (owner, other) = if by_source { (i, j) } else { (j, i) };
                    assert_eq!(owners[block * threads + thread], owner as i32);
                    let pair = plan.from[(block * slots / 2 + slot / 2) * threads + thread];
                    assert_eq!(place[(pair >> (16 * (slot % 2))) as usize & 0xffff], other);
                    assert!((slot as i32) < plan.warps[(block * threads + thread) / WARP][1]);
                }
                assert_eq!(seen.iter().sum::<usize>(), s.len());
                assert!(seen.iter().all(|&n| n <= 1));
                // Each owner has one group of lanes.
                let mut owners: Vec<i32> = owners.into_iter().filter(|&j| j >= 0).collect();
                owners.dedup();
                owners.sort_unstable();
                assert_eq!(owners, (0..n as i32).collect::<Vec<_>>());
            }
        }
    }

    /// Owners in their own order have as many lanes as they need, side by side in a warp, and every block is told how many values come.
    #[test]
    fn packed_owners_have_the_lanes_they_need() {
        for (n, density, blocks, threads) in [
            (128, 0.5, 3, 256),
            (128, 0.5, 7, 128),
            (120, 1.0, 5, 256),
            (33, 0.3, 4, 128),
            (9, 0.0, 2, 128),
            (3, 1.0, 8, 128),
        ] {
            let lists = Lists::by_source(&random(n, density)).unwrap();
            let least = usize::div_ceil(blocks, 2);
            let used = lists.packed_slots(blocks, 14, threads, least).unwrap();
            let (plan, all) = lists.schedule_packed(blocks, 14, threads, least).unwrap();
            let slots = used.next_multiple_of(2);
            assert_eq!(plan.at.len(), blocks * slots * threads);
            let (mut seen, mut stores) = (vec![false; n * n], vec![0i32; blocks]);
            for block in 0..blocks {
                for (w, warp) in plan.owner[block * threads..(block + 1) * threads].chunks(WARP).enumerate() {
                    if w > 0 && warp.iter().all(|&o| o < 0) {
                        continue;
                    }
                    let mut first = 0;
                    while first < WARP {
                        let lanes = warp[first..].iter().take_while(|&&o| o == warp[first]).count();
                        let owner = warp[first];
                        assert!(owner < 0 || (least..=PARTS).contains(&lanes) && (owner & 0xffff) == owner >> 16);
                        for sub in 0..lanes {
                            stores[sub % blocks] += 1;
                            if owner >= 0 && sub + lanes < blocks {
                                stores[sub + lanes] += 1;
                            }
                            let thread = w * WARP + first + sub;
                            for slot in 0..slots {
                                let at = plan.at[(block * slots + slot) * threads + thread];
                                let lying = plan.owner[(blocks + block) * threads + thread] as usize;
                                assert_eq!(slot < (lying & 31), at != NONE);
                                if at != NONE {
                                    assert_eq!(all[(lying >> 5) + slot], at);
                                    assert_eq!(at as usize / n, (owner & 0xffff) as usize);
                                    assert!(slot < used && !std::mem::replace(&mut seen[at as usize], true));
                                    let pair = plan.from[(block * slots / 2 + slot / 2) * threads + thread];
                                    assert_eq!((pair >> (16 * (slot % 2))) as usize & 0xffff, at as usize % n);
                                }
                            }
                        }
                        first += lanes;
                    }
                }
            }
            assert_eq!(seen.iter().filter(|&&s| s).count(), lists.of.iter().map(Vec::len).sum::<usize>());
            assert_eq!(all.len(), seen.iter().filter(|&&s| s).count());
            let told: Vec<i32> = plan.warps.chunks(threads / WARP).map(|of_block| of_block[0][0]).collect();
            assert_eq!(told, stores, "{n} {blocks}");
            // Every block has all values.
            assert!(stores.iter().all(|&s| s as usize >= n));
        }
        let dense = Lists::by_source(&Synapses::full(256, 256).unwrap()).unwrap();
        assert!(dense.packed_slots(8, 14, 256, 4).is_none() && dense.schedule_packed(8, 14, 256, 4).is_err());
    }

    /// The lanes of a warp mostly read different banks: at most half the passes that sources in any order would take.
    #[test]
    fn loads_meet_few_conflicts() {
        let s = random(256, 0.5);
        let lists = Lists::by_target(&s).unwrap();
        let (rows, slots, blocks) = (2, 20, 4);
        let threads = lists.shape(blocks, slots, rows, 2 * rows).unwrap().threads;
        let plan = lists.schedule(blocks, slots, rows, threads, 2 * rows, true).unwrap();
        let banks = WARP / rows;
        let (mut passes, mut loads) = (0usize, 0usize);
        for group in 0..blocks * threads / banks {
            let (block, first) = (group * banks / threads, group * banks % threads);
            for slot in 0..plan.warps[group * banks / WARP][1] as usize {
                let mut used = vec![std::collections::BTreeSet::new(); banks];
                for lane in first..first + banks {
                    let pair = plan.from[(block * slots / 2 + slot / 2) * threads + lane];
                    let from = (pair >> (16 * (slot % 2))) & 0xffff;
                    used[from as usize % banks].insert(from);
                }
                passes += used.iter().map(std::collections::BTreeSet::len).max().unwrap();
                loads += 1;
            }
        }
        // As many lanes that read nodes at random.
        let mut rng = Rng::new(5, 0);
        let random: usize = (0..loads)
            .map(|_| {
                let mut used = vec![std::collections::BTreeSet::new(); banks];
                for _ in 0..banks {
                    let from = rng.below(256);
                    used[from as usize % banks].insert(from);
                }
                used.iter().map(std::collections::BTreeSet::len).max().unwrap()
            })
            .sum();
        assert!(2 * passes <= random, "{passes} passes of {loads} loads, {random} at random");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let lists = Lists::by_target(&Synapses::full(256, 256).unwrap()).unwrap();
        assert!(lists.shape(1, 4, 1, 2).is_none(), "64 lanes an owner");
        assert!(lists.schedule(1, 8, 1, 512, 2, false).is_err());
        let wide = Lists::by_target(&Synapses::from_fn(20000, 20000, |i, j| i == j).unwrap()).unwrap();
        assert!(wide.shape(1, 4, 1, 2).is_none(), "an offset of more than 16 bits");
    }
}
