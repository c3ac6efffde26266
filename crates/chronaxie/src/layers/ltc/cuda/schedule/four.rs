//! The schedule of the kernels of four and two rows side by side (quad.cuh, two.cu): an owner has as many lanes of its warp as its
//! list needs, not a power of two, and the lanes of a warp read different banks.

use super::{Entry, Lists, NONE, Schedule, WARP};
use crate::rng::Rng;
use crate::{Error, Result};
use std::cmp::Reverse;

/// Owners that end in a warp: eight lanes each.
const OWNERS: usize = 4;

/// How synapses are dealt: to blocks of at most `warps` warps, whose lanes hold up to `slots` synapses, of which `on` are computed in
/// any case; an owner has at most `parts` lanes, and `rows` values of a node lie side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Deal {
    pub(in super::super) blocks: usize,
    pub(in super::super) warps: usize,
    pub(in super::super) slots: usize,
    pub(in super::super) on: usize,
    pub(in super::super) parts: usize,
    pub(in super::super) rows: usize,
    /// Of how many warps a block has a multiple: those that ask for registers do so four together.
    pub(in super::super) step: usize,
}

/// What such a schedule takes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct FourShape {
    pub(in super::super) threads: usize,
    /// Slots of the busiest scheduler of four, each warp having `on` at least.
    pub(in super::super) busiest: usize,
    /// Slots behind the first `on`, of all warps of a block together.
    pub(in super::super) beyond: usize,
}

/// A warp: its owners, and the slots of its lanes.
#[derive(Debug, Clone, Default)]
struct Warp {
    owners: Vec<usize>,
    slots: usize,
}

impl Lists {
    /// The fewest slots with which these owners fit the lanes of a warp, an owner having `parts` lanes at most.
    fn four_slots(&self, owners: &[usize], parts: usize) -> usize {
        let all: usize = owners.iter().map(|&j| self.of[j].len()).sum();
        let longest = owners.iter().map(|&j| self.of[j].len()).max().unwrap_or(0);
        let mut slots = all.div_ceil(WARP).max(longest.div_ceil(parts)).max(1);
        while owners.iter().map(|&j| self.of[j].len().div_ceil(slots)).sum::<usize>() > WARP {
            slots += 1;
        }
        slots
    }

    /// Owners dealt to `warps` warps, longest lists first and there and back; none if a warp needs more than `slots` slots.
    fn four_dealt(&self, warps: usize, d: &Deal) -> Option<Vec<Warp>> {
        let Deal { slots, parts, .. } = *d;
        if self.of.len() > OWNERS * warps {
            return None;
        }
        let dealt = self.deal(warps).into_iter().map(|owners| Warp { slots: self.four_slots(&owners, parts), owners });
        let dealt: Vec<Warp> = dealt.collect();
        dealt.iter().all(|w| w.slots <= slots).then_some(dealt)
    }

    /// The warps of each block: owners change places with those of other warps while that takes slots from the warp with the
    /// most, or from both together; then warps are dealt so that blocks and their schedulers have alike.
    fn four_warps(&self, d: &Deal) -> Option<Vec<Vec<Warp>>> {
        let Deal { blocks, parts, on, .. } = *d;
        let cost = |n: usize| {
            let dealt = self.four_dealt(blocks * n, d)?;
            let most = dealt.iter().map(|w| w.slots).max().unwrap_or(0);
            Some((n.div_ceil(4) * most.max(on), n, dealt))
        };
        let counts = (1..=d.warps).filter(|n| n % d.step == 0);
        let (_, warps, mut dealt) = counts.filter_map(cost).min_by_key(|&(cost, n, _)| (cost, n))?;
        let mut rng = Rng::new(1, 4);
        for round in 0..128 * dealt.len() {
            let of = |w: &Warp| w.slots.max(on);
            let Some(most) = (0..dealt.len()).max_by_key(|&w| (of(&dealt[w]), (w + round) % dealt.len())) else {
                break;
            };
            let other = rng.below(dealt.len() as u64) as usize;
            if of(&dealt[most]) == on
                || other == most
                || dealt[most].owners.is_empty()
                || dealt[other].owners.is_empty()
            {
                continue;
            }
            let x = rng.below(dealt[most].owners.len() as u64) as usize;
            let y = rng.below(dealt[other].owners.len() as u64) as usize;
            let (mut a, mut b) = (dealt[most].owners.clone(), dealt[other].owners.clone());
            std::mem::swap(&mut a[x], &mut b[y]);
            let [a, b] = [a, b].map(|owners| Warp { slots: self.four_slots(&owners, parts), owners });
            let rank = |a: &Warp, b: &Warp| (of(a).max(of(b)), of(a) + of(b));
            if rank(&a, &b) <= rank(&dealt[most], &dealt[other]) {
                (dealt[most], dealt[other]) = (a, b);
            }
        }
        dealt.sort_by_key(|w| (Reverse(w.slots), w.owners.first().copied()));
        let mut of_blocks = vec![Vec::new(); blocks];
        for (n, warp) in dealt.into_iter().enumerate() {
            let (round, place) = (n / blocks, n % blocks);
            of_blocks[if round % 2 == 0 { place } else { blocks - 1 - place }].push(warp);
        }
        for warps_of in &mut of_blocks {
            // A scheduler has every fourth warp.
            for (n, four) in warps_of.chunks_mut(4).enumerate() {
                if n % 2 == 1 {
                    four.reverse();
                }
            }
        }
        debug_assert!(of_blocks.iter().all(|w| w.len() == warps));
        Some(of_blocks)
    }

    /// Where owners lie: those of a warp side by side, in the order by which the banks that warps read differ least, in which
    /// they are left.
    fn four_places<const SERVED: usize>(&self, dealt: &mut [Vec<Warp>]) -> Vec<usize> {
        let mut place = vec![0; self.others];
        for (n, &j) in dealt.iter().flatten().flat_map(|w| &w.owners).enumerate() {
            place[j] = n;
        }
        let all: usize = dealt.iter().map(Vec::len).sum();
        // How often each warp reads a node, and a bank.
        let mut reads = vec![0i32; self.others * all];
        let mut banks = vec![[0i32; SERVED]; all];
        for (w, warp) in dealt.iter().flatten().enumerate() {
            for e in warp.owners.iter().flat_map(|&j| &self.of[j]) {
                reads[e.other as usize * all + w] += 1;
                banks[w][place[e.other as usize] % SERVED] += 1;
            }
        }
        let room: Vec<i32> = dealt.iter().flatten().map(|w| (WARP / SERVED * w.slots) as i32).collect();
        for _ in 0..16 {
            for warp in dealt.iter_mut().flatten() {
                for (x, y) in (0..warp.owners.len()).flat_map(|y| (0..y).map(move |x| (x, y))) {
                    let [i, j] = [warp.owners[x], warp.owners[y]];
                    let [a, b] = [place[i] % SERVED, place[j] % SERVED];
                    let over = |w: usize, moved: i32| {
                        [banks[w][a] - moved, banks[w][b] + moved].map(|n| (n - room[w]).max(0)).iter().sum::<i32>()
                    };
                    let gain = |w: usize| over(w, 0) - over(w, reads[i * all + w] - reads[j * all + w]);
                    if a != b && (0..all).map(gain).sum::<i32>() > 0 {
                        for (w, of) in banks.iter_mut().enumerate() {
                            let moved = reads[i * all + w] - reads[j * all + w];
                            of[a] -= moved;
                            of[b] += moved;
                        }
                        warp.owners.swap(x, y);
                        place.swap(i, j);
                    }
                }
            }
        }
        place
    }

    /// What a block is; none if the lists do not fit.
    pub(in super::super) fn four_shape(&self, d: &Deal) -> Option<FourShape> {
        // A load of all rows at a 16-bit byte offset.
        if self.others * 4 * d.rows > 1 << 16 {
            return None;
        }
        let (dealt, on) = (self.four_warps(d)?, d.on);
        let of_scheduler = |warps: &[Warp], s: usize| warps.iter().skip(s).step_by(4).map(|w| w.slots.max(on)).sum();
        Some(FourShape {
            threads: dealt.first().map_or(1, Vec::len) * WARP,
            busiest: dealt.iter().flat_map(|w| (0..4).map(move |s| of_scheduler(w, s))).max().unwrap_or(0),
            beyond: dealt.iter().map(|w| w.iter().map(|w| w.slots.saturating_sub(on)).sum()).max().unwrap_or(0),
        })
    }

    /// The schedule itself, as quad.cuh reads it.
    pub(in super::super) fn four(&self, d: &Deal) -> Result<Schedule> {
        // Loads of 16 and of 8 bytes.
        if d.rows == 4 { self.four_of::<8>(d) } else { self.four_of::<16>(d) }
    }

    /// `SERVED`: lanes that are served together, and how many such loads meet no bank twice.
    fn four_of<const SERVED: usize>(&self, d: &Deal) -> Result<Schedule> {
        let Deal { blocks, slots, parts, .. } = *d;
        let mut dealt = self
            .four_warps(d)
            .ok_or_else(|| Error::shape(format!("ltc: {slots} slots of {blocks} blocks hold too few synapses")))?;
        let warps = dealt.first().map_or(1, Vec::len);
        let threads = warps * WARP;
        let place = self.four_places::<SERVED>(&mut dealt);
        let mut s = Schedule {
            at: vec![NONE; blocks * slots * threads],
            from: vec![0; blocks * slots / 2 * threads],
            owner: vec![-1; 2 * blocks * threads],
            warps: Vec::with_capacity(blocks * warps),
        };
        for (n, warp) in dealt.iter().flatten().enumerate() {
            let (block, first) = (n / warps, n % warps * WARP);
            let filled = Filled::<SERVED>::new(self, warp, parts, &place);
            s.warps.push([filled.parts as i32, warp.slots as i32]);
            for lane in 0..WARP {
                let thread = first + lane;
                if let Some(&j) = warp.owners.get(lane / (WARP / OWNERS)) {
                    s.owner[block * threads + thread] = j as i32 | (place[j] as i32) << 16;
                }
                // A lane without synapses has a part that nobody adds.
                let part = filled.lanes[lane].map_or(OWNERS * parts + lane, |(owner, part)| OWNERS * part + owner);
                s.owner[(blocks + block) * threads + thread] = part as i32;
                for slot in 0..slots {
                    let (entry, from) = filled.slot(slot, lane);
                    if let Some(e) = entry {
                        s.at[(block * slots + slot) * threads + thread] = e.at;
                    }
                    s.from[(block * slots / 2 + slot / 2) * threads + thread] |= (from as u32) << (16 * (slot % 2));
                }
            }
        }
        Ok(s)
    }
}

/// The synapses of a warp in their places.
struct Filled<'a, const SERVED: usize> {
    /// Of each lane the owner, of four, and the how-manieth of its lanes it is, or none; the most lanes of an owner.
    lanes: Vec<Option<(usize, usize)>>,
    parts: usize,
    place: &'a [usize],
    /// `[slots, WARP]`
    entries: Vec<Option<Entry>>,
}

impl<'a, const SERVED: usize> Filled<'a, SERVED> {
    fn new(lists: &Lists, warp: &Warp, parts: usize, place: &'a [usize]) -> Self {
        let len = |q: usize| warp.owners.get(q).map_or(0, |&j| lists.of[j].len());
        let mut of_owner: [usize; OWNERS] = std::array::from_fn(|q| len(q).div_ceil(warp.slots));
        // A lane that is left helps the owner that has the most a lane.
        for _ in of_owner.iter().sum::<usize>()..WARP {
            let helped = (0..OWNERS).filter(|&q| of_owner[q] < parts && len(q) > of_owner[q]);
            if let Some(q) = helped.max_by_key(|&q| (len(q) * WARP / of_owner[q], Reverse(q))) {
                of_owner[q] += 1;
            }
        }
        let most = of_owner.into_iter().max().unwrap_or(0);
        // Owners take turns, so that each has lanes everywhere.
        let all = (0..most).flat_map(|part| (0..OWNERS).map(move |q| (q, part)));
        let mut lanes: Vec<_> = all.filter(|&(q, part)| part < of_owner[q]).map(Some).collect();
        lanes.resize(WARP, None);
        let mut filled = Self { lanes, parts: most, place, entries: vec![None; warp.slots * WARP] };
        let served = filled.share(lists, warp);
        for (n, of_lanes) in served.into_iter().enumerate() {
            filled.colour(n * SERVED, warp.slots, of_lanes);
        }
        filled
    }

    fn bank(&self, e: Entry) -> usize {
        self.place[e.other as usize] % SERVED
    }

    /// The synapses of each eight lanes that are served together, by owner: no bank more often than there are slots, as far as
    /// can be.
    fn share(&self, lists: &Lists, warp: &Warp) -> Vec<[Vec<Entry>; OWNERS]> {
        let groups = WARP / SERVED;
        let room = |g: usize, q: usize| {
            self.lanes[g * SERVED..][..SERVED].iter().flatten().filter(|l| l.0 == q).count() * warp.slots
        };
        let mut shared: Vec<[Vec<Entry>; OWNERS]> = (0..groups).map(|_| Default::default()).collect();
        let mut banks = vec![[0usize; SERVED]; groups];
        for (q, &j) in warp.owners.iter().enumerate() {
            // Banks one after the other, that of which there is the most first: of each, every group takes its share.
            let mut by_bank: [Vec<Entry>; SERVED] = std::array::from_fn(|_| Vec::new());
            lists.of[j].iter().for_each(|&e| by_bank[self.bank(e)].push(e));
            by_bank.sort_by_key(|b| Reverse(b.len()));
            for e in by_bank.into_iter().flatten() {
                let b = self.bank(e);
                let free = (0..groups).filter(|&g| shared[g][q].len() < room(g, q));
                // The fuller of the two, its bank or its lanes, decides.
                let fill = |g: usize| {
                    let lanes = shared[g][q].len() * 1000 / room(g, q);
                    (banks[g][b] >= warp.slots, lanes.max(banks[g][b] * 1000 / warp.slots), lanes, g)
                };
                let Some(g) = free.min_by_key(|&g| fill(g)) else { continue };
                shared[g][q].push(e);
                banks[g][b] += 1;
            }
        }
        // Where a bank has too much, synapses of one owner change places between groups.
        for _ in 0..4 * WARP {
            let over = |banks: &[[usize; SERVED]], g: usize, b: usize| banks[g][b].saturating_sub(warp.slots);
            let Some((g, b)) = (0..groups)
                .flat_map(|g| (0..SERVED).map(move |b| (g, b)))
                .filter(|&(g, b)| over(&banks, g, b) > 0)
                .max_by_key(|&(g, b)| over(&banks, g, b))
            else {
                break;
            };
            let mut best: Option<(usize, usize, usize, usize, Option<usize>)> = None;
            for q in 0..OWNERS {
                let Some(x) = shared[g][q].iter().position(|&e| self.bank(e) == b) else { continue };
                for other in (0..groups).filter(|&o| o != g && banks[o][b] < warp.slots) {
                    // An empty place, or the synapse of the bank that is least full here.
                    let to = (0..SERVED)
                        .filter(|&c| c != b)
                        .filter_map(|c| Some((banks[g][c], shared[other][q].iter().position(|&e| self.bank(e) == c)?)))
                        .min();
                    let empty = shared[other][q].len() < room(other, q);
                    let rank = if empty { 0 } else { to.map_or(usize::MAX, |t| t.0 + 1) };
                    if rank <= warp.slots && best.is_none_or(|(least, ..)| rank < least) {
                        best = Some((rank, q, x, other, if empty { None } else { to.map(|t| t.1) }));
                    }
                }
            }
            let Some((_, q, x, other, y)) = best else { break };
            let e = shared[g][q].swap_remove(x);
            banks[g][b] -= 1;
            banks[other][b] += 1;
            if let Some(y) = y {
                let back = std::mem::replace(&mut shared[other][q][y], e);
                banks[other][self.bank(back)] -= 1;
                banks[g][self.bank(back)] += 1;
                shared[g][q].push(back);
            } else {
                shared[other][q].push(e);
            }
        }
        shared
    }

    /// Slots for what eight lanes from `first` on share: lanes and banks are the two sides of a graph whose edges are
    /// synapses, of which no two at a lane, nor at a bank, have one colour (König: as many colours as the most edges at a
    /// node). What a bank has beyond its slots goes where it meets the fewest.
    fn colour(&mut self, first: usize, slots: usize, of_owners: [Vec<Entry>; OWNERS]) {
        const FREE: usize = usize::MAX;
        let mut edges: Vec<(usize, usize, Entry)> = Vec::new();
        for (q, entries) in of_owners.into_iter().enumerate() {
            let lanes: Vec<usize> = (0..SERVED).filter(|&l| self.lanes[first + l].is_some_and(|l| l.0 == q)).collect();
            // Side by side in their banks, so that the lanes of an owner share each bank.
            let mut entries = entries;
            entries.sort_by_key(|&e| self.bank(e));
            for (n, e) in entries.into_iter().enumerate() {
                edges.push((lanes[n % lanes.len()], self.bank(e), e));
            }
        }
        // The edge of each colour at each lane, and at each bank.
        let mut at_lane = vec![[FREE; SERVED]; slots];
        let mut at_bank = vec![[FREE; SERVED]; slots];
        let mut left = Vec::new();
        for (n, &(l, b, _)) in edges.iter().enumerate() {
            let of_lane = (0..slots).find(|&c| at_lane[c][l] == FREE);
            let of_bank = (0..slots).find(|&c| at_bank[c][b] == FREE);
            let (Some(x), Some(y)) = (of_lane, of_bank) else {
                left.push(n);
                continue;
            };
            // The path from the bank whose edges have the colours x, y, x, ... changes them; it does not reach the lane.
            if x != y {
                let (mut bank, mut path) = (b, Vec::new());
                while at_bank[x][bank] != FREE {
                    let e = at_bank[x][bank];
                    path.push((e, x));
                    let next = at_lane[y][edges[e].0];
                    if next == FREE {
                        break;
                    }
                    path.push((next, y));
                    bank = edges[next].1;
                }
                for &(e, c) in &path {
                    at_lane[c][edges[e].0] = FREE;
                    at_bank[c][edges[e].1] = FREE;
                }
                for &(e, c) in &path {
                    let c = x + y - c;
                    at_lane[c][edges[e].0] = e;
                    at_bank[c][edges[e].1] = e;
                }
            }
            at_lane[x][l] = n;
            at_bank[x][b] = n;
        }
        for n in left {
            let l = edges[n].0;
            let meets = |c: usize| at_lane[c].iter().filter(|&&e| e != FREE && edges[e].1 == edges[n].1).count();
            if let Some(c) = (0..slots).filter(|&c| at_lane[c][l] == FREE).min_by_key(|&c| (meets(c), c)) {
                at_lane[c][l] = n;
            }
        }
        for (slot, of_lanes) in at_lane.iter().enumerate() {
            for (l, &e) in of_lanes.iter().enumerate().filter(|(_, e)| **e != FREE) {
                self.entries[slot * WARP + first + l] = Some(edges[e].2);
            }
        }
    }

    /// A slot's synapse, and the place that it reads: without one, what another lane reads that is served with it.
    fn slot(&self, slot: usize, lane: usize) -> (Option<Entry>, usize) {
        if slot * WARP >= self.entries.len() {
            return (None, 0);
        }
        let entry = self.entries[slot * WARP + lane];
        let served = &self.entries[slot * WARP + lane / SERVED * SERVED..][..SERVED];
        let from = entry.or_else(|| served.iter().flatten().next().copied());
        (entry, from.map_or(0, |e| self.place[e.other as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::ltc::Synapses;

    fn random(n: usize, density: f64) -> Synapses {
        crate::layers::ltc::entry::random_connectivity(1, n, density, 1).unwrap().recurrent.clone()
    }

    /// Every synapse is held exactly once, by a lane whose part is its owner's; parts have places of their own.
    #[test]
    fn every_synapse_is_held_once() {
        let cases = [
            (64, 1.0, 2, 4),
            (65, 0.5, 3, 4),
            (33, 1.0, 2, 2),
            (33, 0.0, 3, 4),
            (256, 0.5, 8, 4),
            (256, 0.5, 4, 2),
            (140, 1.0, 8, 4),
            (140, 1.0, 3, 2),
            (1, 1.0, 2, 4),
            (100, 0.7, 7, 4),
        ];
        for (n, density, blocks, rows) in cases {
            let warps = 32 / rows;
            let s = random(n, density);
            for (lists, by_source) in [(Lists::by_target(&s), false), (Lists::by_source(&s), true)] {
                let (lists, slots, parts) = (lists.unwrap(), 20, 16);
                let d = Deal { blocks, warps, slots, on: 16, parts, rows, step: if rows == 2 { 4 } else { 1 } };
                let shape = lists.four_shape(&d).unwrap();
                let plan = lists.four(&d).unwrap();
                let threads = shape.threads;
                assert_eq!(plan.warps.len() * WARP, blocks * threads);
                assert_eq!(plan.owner.len(), 2 * blocks * threads);
                let mut place = Vec::new();
                for &o in plan.owner[..blocks * threads].iter().filter(|&&o| o >= 0) {
                    if (o >> 16) as usize == place.len() {
                        place.push((o & 0xffff) as usize);
                    }
                    assert_eq!(place[(o >> 16) as usize], (o & 0xffff) as usize);
                }
                assert_eq!(place.len(), n);
                let mut seen = vec![0; n * n];
                for (k, &at) in plan.at.iter().enumerate().filter(|(_, at)| **at != NONE) {
                    seen[at as usize] += 1;
                    let (thread, slot, block) = (k % threads, k / threads % slots, k / threads / slots);
                    let (i, j) = (at as usize / n, at as usize % n);
                    let (owner, other) = if by_source { (i, j) } else { (j, i) };
                    let part = plan.owner[(blocks + block) * threads + thread] as usize;
                    let closing = block * threads + thread / WARP * WARP + part % OWNERS * 8;
                    assert_eq!(plan.owner[closing] & 0xffff, owner as i32);
                    let warp = plan.warps[(block * threads + thread) / WARP];
                    assert!((slot as i32) < warp[1] && ((part / OWNERS) as i32) < warp[0]);
                    let pair = plan.from[(block * slots / 2 + slot / 2) * threads + thread];
                    assert_eq!(place[(pair >> (16 * (slot % 2))) as usize & 0xffff], other);
                }
                assert_eq!(seen.iter().sum::<usize>(), s.len());
                assert!(seen.iter().all(|&n| n <= 1));
                // No two lanes of a warp have one part.
                for warp in plan.owner[blocks * threads..].chunks(WARP) {
                    let mut of = warp.to_vec();
                    of.sort_unstable();
                    assert!(of.iter().all(|&p| (0..OWNERS * parts + WARP).contains(&(p as usize))));
                    assert!(of.windows(2).all(|w| w[0] < w[1]));
                }
            }
        }
    }

    /// At half density lists differ by a third, and yet a lane has little more than its share, and banks are hardly met twice: of loads
    /// of 16 bytes 4 in 100, of 8 bytes, where twice as many lanes share twice as many banks, 20.
    #[test]
    fn lanes_have_alike() {
        let s = random(256, 0.5);
        for lists in [Lists::by_target(&s).unwrap(), Lists::by_source(&s).unwrap()] {
            alike::<8>(&lists, Deal { blocks: 8, warps: 8, slots: 20, on: 16, parts: 16, rows: 4, step: 1 }, 35, 106);
            alike::<16>(&lists, Deal { blocks: 4, warps: 16, slots: 20, on: 16, parts: 16, rows: 2, step: 4 }, 70, 120);
        }
    }

    /// `SERVED` lanes: slots of the busiest scheduler, and passes of a hundred loads.
    fn alike<const SERVED: usize>(lists: &Lists, d: Deal, busiest: usize, most: usize) {
        let shape = lists.four_shape(&d).unwrap();
        let threads = d.warps * WARP;
        assert_eq!(shape.threads, threads);
        let plan = lists.four(&d).unwrap();
        let (mut passes, mut loads) = (0, 0);
        for group in 0..d.blocks * threads / SERVED {
            let (block, first) = (group * SERVED / threads, group * SERVED % threads);
            for slot in 0..plan.warps[group * SERVED / WARP][1] as usize {
                let mut used = vec![std::collections::BTreeSet::new(); SERVED];
                for lane in first..first + SERVED {
                    let pair = plan.from[(block * d.slots / 2 + slot / 2) * threads + lane];
                    let from = (pair >> (16 * (slot % 2))) as usize & 0xffff;
                    used[from % SERVED].insert(from);
                }
                passes += used.iter().map(std::collections::BTreeSet::len).max().unwrap();
                loads += 1;
            }
        }
        assert!(shape.busiest <= busiest, "{shape:?}");
        assert!(passes * 100 <= loads * most, "{passes} passes of {loads} loads");
    }
}
