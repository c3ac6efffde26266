//! The schedules of levels_sums.cu: targets in parts of neighbours, whose warps share them as their lists are long; and of
//! levels_sums_adjoint.cu: sources with as many lanes as their lists need.

use super::{Lists, NONE, Schedule, WARP, Warp};
use crate::Result;
use std::cmp::Reverse;
use std::ops::Range;

/// Synapses that are read at once, by both halves of a warp, rows of a tile, and warps of a block, as there.
const GROUP: usize = 8;
const ROWS: usize = 64;
const WARPS: usize = 16;
/// Warps of a block of the adjoint, at most.
const ADJOINT_WARPS: usize = 12;

/// What a block is that has one of `parts` parts of the targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct StateShape {
    /// Synapses of the longest part, in groups of eight.
    pub(in super::super) most: usize,
    /// Targets of the largest, an odd number.
    pub(in super::super) width: usize,
    /// Synapses of the busiest scheduler of four.
    pub(in super::super) busiest: usize,
}

impl Lists {
    fn padded(&self, j: usize) -> usize {
        self.of[j].len().next_multiple_of(GROUP)
    }

    /// Targets of each part: neighbours, with about as many synapses.
    fn state_parts(&self, parts: usize) -> Vec<Range<usize>> {
        let all: usize = (0..self.of.len()).map(|j| self.padded(j)).sum();
        let (mut ends, mut done) = (vec![0], 0);
        for j in 0..self.of.len() {
            done += self.padded(j);
            // The part that this target ends.
            while ends.len() < parts && done * parts >= all * ends.len() {
                ends.push(j + 1);
            }
        }
        ends.resize(parts, self.of.len());
        ends.push(self.of.len());
        ends.windows(2).map(|w| w[0]..w[1]).collect()
    }

    /// The targets of each warp of a part, the longest lists first, each to the warp that has the least.
    fn state_units(&self, part: Range<usize>) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = part.collect();
        order.sort_by_key(|&j| (Reverse(self.of[j].len()), j));
        let mut warps = vec![(0, Vec::new()); WARPS];
        for j in order {
            let least = (0..WARPS).min_by_key(|&w| (warps[w].0, w)).unwrap_or(0);
            // A target without synapses is some work, too.
            warps[least].0 += self.padded(j) + GROUP;
            warps[least].1.push(j);
        }
        warps.into_iter().map(|w| w.1).collect()
    }

    /// What a block is, or none if a column does not have a name of 16 bits.
    pub(in super::super) fn state_shape(&self, parts: usize) -> Option<StateShape> {
        if self.others * ROWS > 1 << 16 {
            return None;
        }
        let mut shape = StateShape { most: GROUP, width: 1, busiest: 1 };
        for part in self.state_parts(parts) {
            let synapses = |j: &usize| self.padded(*j) + GROUP;
            shape.most = shape.most.max(part.clone().map(|j| self.padded(j)).sum());
            shape.width = shape.width.max(part.len() | 1);
            let warps: Vec<usize> = self.state_units(part).iter().map(|w| w.iter().map(synapses).sum()).collect();
            let schedulers = (0..4).map(|s| warps.iter().skip(s).step_by(4).sum());
            shape.busiest = schedulers.fold(shape.busiest, usize::max);
        }
        Some(shape)
    }

    /// The schedule: `owner` has the parts and then the units, four words each, and `warps` of each part and warp its units.
    pub(in super::super) fn state_schedule(&self, parts: usize) -> Schedule {
        let mut s = Schedule { at: Vec::new(), from: Vec::new(), owner: Vec::new(), warps: Vec::new() };
        let mut units = Vec::new();
        for part in self.state_parts(parts) {
            let first = s.at.len();
            for warp in self.state_units(part.clone()) {
                s.warps.push([units.len() as i32 / 4, warp.len() as i32]);
                for j in warp {
                    let begin = s.at.len() - first;
                    for n in 0..self.padded(j) {
                        // Padding reads what the target reads, so that no other's NaN gets into its sums.
                        let e = self.of[j].get(n).or(self.of[j].last());
                        // Its first row there, as in_tile says.
                        let column = e.map_or(0, |e| e.other as usize * ROWS + e.other as usize % 16) as u32;
                        if s.at.len().is_multiple_of(2) {
                            s.from.push(column);
                        } else if let Some(last) = s.from.last_mut() {
                            *last |= column << 16;
                        }
                        s.at.push(self.of[j].get(n).map_or(NONE, |e| e.at));
                    }
                    units.extend([begin, self.padded(j) / GROUP, j - part.start, 0].map(|n| n as i32));
                }
            }
            s.owner.extend([first, part.start, s.at.len() - first, part.len()].map(|n| n as i32));
        }
        s.owner.extend(units);
        s
    }
}

/// What a block of the adjoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct AdjointShape {
    pub(in super::super) parts: usize,
    pub(in super::super) threads: usize,
    /// Issue slots of the busiest scheduler of four for two rows.
    pub(in super::super) busiest: usize,
}

/// Instructions of a slot and beside the slots of a warp, of two rows.
const OF_SLOT: usize = 23;
const OF_WARP: usize = 50;

impl Lists {
    /// Parts of up to [`ADJOINT_WARPS`] warps whose lanes hold up to `slots` synapses; none if a list does not fit a warp.
    fn adjoint_parts(&self, slots: usize) -> Option<Vec<Vec<Warp>>> {
        let mut order: Vec<usize> = (0..self.of.len()).collect();
        order.sort_by_key(|&j| (Reverse(self.of[j].len()), j));
        let mut warps: Vec<Warp> = Vec::new();
        for j in order {
            let lanes = self.of[j].len().div_ceil(slots).max(1);
            if lanes > WARP {
                return None;
            }
            let need = self.of[j].len().div_ceil(lanes);
            match warps.iter_mut().find(|w| w.lanes.iter().sum::<usize>() + lanes <= WARP) {
                Some(w) => {
                    w.owners.push(j);
                    w.lanes.push(lanes);
                    w.slots = w.slots.max(need);
                }
                None => warps.push(Warp { lanes: vec![lanes], slots: need, owners: vec![j] }),
            }
        }
        // The longest first, each to the part that has the least.
        warps.sort_by_key(|w| Reverse(w.slots));
        let mut parts: Vec<(usize, Vec<Warp>)> = Vec::new();
        parts.resize_with(warps.len().div_ceil(ADJOINT_WARPS).max(1), Default::default);
        for warp in warps {
            let part = parts.iter_mut().filter(|p| p.1.len() < ADJOINT_WARPS).min_by_key(|p| p.0)?;
            part.0 += warp.slots * OF_SLOT + OF_WARP;
            part.1.push(warp);
        }
        Some(parts.into_iter().map(|p| p.1).collect())
    }

    pub(in super::super) fn adjoint_shape(&self, slots: usize) -> Option<AdjointShape> {
        // Four values of a node at a 16-bit byte offset.
        if self.others * 16 > 1 << 16 {
            return None;
        }
        let parts = self.adjoint_parts(slots)?;
        let threads = parts.iter().map(Vec::len).max().unwrap_or(0).max(1) * WARP;
        let of_scheduler = |part: &[Warp], s: usize| {
            part.iter().skip(s).step_by(4).map(|w| w.slots.max(6) * OF_SLOT + OF_WARP).sum::<usize>()
        };
        let busiest = parts.iter().flat_map(|p| (0..4).map(|s| of_scheduler(p, s))).max().unwrap_or(0);
        Some(AdjointShape { parts: parts.len(), threads, busiest })
    }

    /// The schedule of lanes of up to `most` synapses, in a kernel that has room for `slots`.
    pub(in super::super) fn adjoint_schedule(&self, most: usize, slots: usize, threads: usize) -> Result<Schedule> {
        let parts = self.adjoint_parts(most).unwrap_or_default();
        let place: Vec<u32> = (0..self.others as u32).collect();
        // A load brings both rows' alpha and beta.
        self.filled(parts.into_iter().map(Some).collect(), &place, (slots, 4, threads), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::ltc::Synapses;
    use crate::layers::ltc::cuda::schedule::Lists;
    use crate::rng::Rng;

    /// Every synapse is of one unit, every target of one warp, and no part is longer than it says.
    #[test]
    fn every_target_is_of_one_warp() {
        let mut rng = Rng::new(7, 0);
        for (n, density, parts) in [(40, 0.5, 1), (100, 0.3, 7), (3, 1.0, 5), (9, 0.0, 2)] {
            let mask: Vec<bool> = (0..n * n).map(|_| rng.uniform() < density).collect();
            let lists = Lists::by_target(&Synapses::from_fn(n, n, |i, j| mask[i * n + j]).unwrap()).unwrap();
            let (shape, s) = (lists.state_shape(parts).unwrap(), lists.state_schedule(parts));
            let (mut targets, mut synapses) = (vec![0; n], vec![0; n * n]);
            for p in 0..parts {
                let of = |k: usize| s.owner[4 * p + k] as usize;
                assert!(
                    of(2) <= shape.most && of(3) <= shape.width && shape.width % 2 == 1 && of(2).is_multiple_of(GROUP)
                );
                for w in &s.warps[p * WARPS..(p + 1) * WARPS] {
                    for unit in s.owner[4 * parts..].chunks(4).skip(w[0] as usize).take(w[1] as usize) {
                        let j = of(1) + unit[2] as usize;
                        targets[j] += 1;
                        for at in of(0) + unit[0] as usize..of(0) + (unit[0] + 8 * unit[1]) as usize {
                            let column = s.from[at / 2] >> (16 * (at % 2)) & 0xffff;
                            if s.at[at] != NONE {
                                synapses[s.at[at] as usize] += 1;
                                assert_eq!(s.at[at] as usize, column as usize / ROWS * n + j);
                                assert_eq!(column as usize % ROWS, column as usize / ROWS % 16);
                            }
                        }
                    }
                }
            }
            assert!(targets.iter().all(|&t| t == 1), "{targets:?}");
            assert!(mask.iter().zip(&synapses).all(|(&m, &s)| s == usize::from(m)));
        }
        // By source: as many lanes as a list needs, each synapse once.
        for (n, density, most) in [(40, 0.5, 4), (100, 0.3, 10), (9, 0.0, 5), (300, 0.7, 12)] {
            let mask: Vec<bool> = (0..n * n).map(|_| rng.uniform() < density).collect();
            let lists = Lists::by_source(&Synapses::from_fn(n, n, |i, j| mask[i * n + j]).unwrap()).unwrap();
            let shape = lists.adjoint_shape(most).unwrap();
            let s = lists.adjoint_schedule(most, 12, shape.threads).unwrap();
            assert!(shape.threads <= 32 * ADJOINT_WARPS && s.warps.iter().all(|w| w[1] as usize <= most && w[0] <= 32));
            let mut seen = vec![0; n * n];
            for (k, &at) in s.at.iter().enumerate().filter(|(_, at)| **at != NONE) {
                let (thread, part) = (k % shape.threads, k / shape.threads / 12);
                assert_eq!(at as usize / n, s.owner[part * shape.threads + thread] as usize);
                seen[at as usize] += 1;
            }
            assert!(mask.iter().zip(&seen).all(|(&m, &s)| s == usize::from(m)));
            let mut owners: Vec<i32> = s.owner.iter().copied().filter(|&o| o >= 0).collect();
            owners.dedup();
            assert_eq!(owners.len(), n, "lanes of a source lie side by side");
        }
        // A list of 330 synapses and more in lanes of ten.
        assert!(Lists::by_source(&Synapses::full(330, 330).unwrap()).unwrap().adjoint_shape(10).is_none());
        // 65,536 floats in columns of 64.
        let wide = Synapses::from_fn(1025, 1025, |i, j| i == j).unwrap();
        assert!(Lists::by_target(&wide).unwrap().state_shape(1).is_none());
    }
}
