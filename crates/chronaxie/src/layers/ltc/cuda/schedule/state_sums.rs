//! The schedule of levels_sums.cu: targets in parts of neighbours, whose warps share them as their lists are long.

use super::{Lists, NONE, Schedule};
use std::ops::Range;

/// Synapses that are read at once, floats of a column of a tile, and warps of a block, as there.
const GROUP: usize = 4;
const COLUMN: usize = 65;
const WARPS: usize = 16;

/// What a block is that has one of `parts` parts of the targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct StateShape {
    /// Synapses of the longest part, in groups of four.
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
        order.sort_by_key(|&j| (std::cmp::Reverse(self.of[j].len()), j));
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
        if self.others * COLUMN > 1 << 16 {
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
                        let e = self.of[j].get(n);
                        let column = e.map_or(0, |e| e.other as usize * COLUMN) as u32;
                        if s.at.len().is_multiple_of(2) {
                            s.from.push(column);
                        } else if let Some(last) = s.from.last_mut() {
                            *last |= column << 16;
                        }
                        s.at.push(e.map_or(NONE, |e| e.at));
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
                assert!(of(2) <= shape.most && of(3) <= shape.width && shape.width % 2 == 1 && of(2).is_multiple_of(4));
                for w in &s.warps[p * WARPS..(p + 1) * WARPS] {
                    for unit in s.owner[4 * parts..].chunks(4).skip(w[0] as usize).take(w[1] as usize) {
                        let j = of(1) + unit[2] as usize;
                        targets[j] += 1;
                        for at in of(0) + unit[0] as usize..of(0) + (unit[0] + 4 * unit[1]) as usize {
                            let column = s.from[at / 2] >> (16 * (at % 2)) & 0xffff;
                            if s.at[at] != NONE {
                                synapses[s.at[at] as usize] += 1;
                                assert_eq!(s.at[at] as usize, column as usize / COLUMN * n + j);
                            }
                        }
                    }
                }
            }
            assert!(targets.iter().all(|&t| t == 1), "{targets:?}");
            assert!(mask.iter().zip(&synapses).all(|(&m, &s)| s == usize::from(m)));
        }
        // 65,536 floats in columns of 65.
        let wide = Synapses::from_fn(1009, 1009, |i, j| i == j).unwrap();
        assert!(Lists::by_target(&wide).unwrap().state_shape(1).is_none());
    }
}
