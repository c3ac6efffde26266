//! The schedule of lone.cu: owners without synapses are lone, and have no lanes; the others as many, side by side, as their lists fill, whose
//! first slots hold synapses from lone neurons and whose last those from others.

use super::{Entry, Lists, NONE, Schedule, WARP, Warp};
use crate::{Error, Result};

/// The most lanes of an owner, as `Part::adds` there says.
const LANES: usize = 8;
/// The most near slots of a lane, as few as the block has lanes for: they are in the chain of an unfold.
const NEAR: [usize; 4] = [8, 16, 24, usize::MAX];
/// Slots are used in turns of so many, as `kTurn`.
const TURN: usize = 4;

/// What such a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct LoneShape {
    pub(in super::super) threads: usize,
    /// Slots of the busiest scheduler of four.
    pub(in super::super) busiest: usize,
    /// Owners without synapses.
    pub(in super::super) lone: usize,
}

/// A warp's owners, and how many of its slots are far and near.
#[derive(Default)]
struct Dealt {
    owners: Vec<usize>,
    lanes: Vec<usize>,
    slots: [usize; 2],
}

impl Lists {
    /// Owners without synapses.
    fn lone(&self) -> Vec<usize> {
        (0..self.of.len()).filter(|&j| self.of[j].is_empty()).collect()
    }

    /// The lists of far synapses, and of near ones.
    fn apart(&self) -> [Self; 2] {
        let some = |far: bool| {
            let kept = |e: &Entry| self.of[e.other as usize].is_empty() == far;
            let of = self.of.iter().map(|list| list.iter().copied().filter(kept).collect()).collect();
            Self { others: self.others, of }
        };
        [some(true), some(false)]
    }

    /// The warps, or none if an owner needs too many lanes of `slots` synapses, or all of them more than `threads`.
    fn lone_dealt(&self, slots: usize, threads: usize) -> Option<Vec<Dealt>> {
        let dealt = |near| self.lone_dealt_with(slots, near).filter(|d| d.len() * WARP <= threads);
        NEAR.into_iter().find_map(dealt)
    }

    fn lone_dealt_with(&self, slots: usize, most_near: usize) -> Option<Vec<Dealt>> {
        // Values of a node at a 16-bit byte offset.
        if self.others * 4 > 1 << 16 {
            return None;
        }
        let apart = self.apart();
        let need =
            |j: usize, lanes: usize| apart.each_ref().map(|l| l.of[j].len().div_ceil(lanes).next_multiple_of(TURN));
        let fit = |n: [usize; 2]| n[0] + n[1] <= slots && n[1] <= most_near;
        let mut dealt: Vec<Dealt> = Vec::new();
        for j in self.deal(1).concat().into_iter().filter(|&j| !self.of[j].is_empty()) {
            let lanes = (1..=LANES).find(|&lanes| fit(need(j, lanes)))?;
            let with = |d: &Dealt| std::array::from_fn(|i| d.slots[i].max(need(j, lanes)[i]));
            let room = |d: &Dealt| d.lanes.iter().sum::<usize>() + lanes <= WARP && fit(with(d));
            let n = dealt.iter().position(room).unwrap_or(dealt.len());
            if n == dealt.len() {
                dealt.push(Dealt::default());
            }
            dealt[n].slots = with(&dealt[n]);
            dealt[n].owners.push(j);
            dealt[n].lanes.push(lanes);
        }
        Some(dealt)
    }

    /// What the block would be.
    pub(in super::super) fn lone_shape(&self, slots: usize, threads: usize) -> Option<LoneShape> {
        let dealt = self.lone_dealt(slots, threads)?;
        let lone = self.lone().len();
        let warps = dealt.len().max(lone.div_ceil(WARP)).max(1);
        let of_scheduler = |s: usize| dealt.iter().skip(s).step_by(4).map(|d| d.slots[0] + d.slots[1]).sum();
        Some(LoneShape { threads: warps * WARP, busiest: (0..4).map(of_scheduler).max().unwrap_or(0), lone })
    }

    /// The schedule. Its `warps` say how many lanes an owner has at most, and how many slots are far, with 65536 times how many are near.
    /// Behind the owners are the lone ones, one a thread; those of either kind have places of their own.
    pub(in super::super) fn schedule_lone(&self, slots: usize, threads: usize) -> Result<Schedule> {
        let lone = self.lone();
        let dealt = self.lone_dealt(slots, threads).filter(|_| lone.len() <= threads).ok_or_else(|| {
            Error::shape(format!(
                "ltc: {slots} slots of {LANES} lanes a neuron in {threads} threads hold too few synapses"
            ))
        })?;
        let mut place: Vec<u32> = vec![0; self.others];
        for (n, &j) in dealt.iter().flat_map(|d| &d.owners).enumerate() {
            place[j] = n as u32;
        }
        for (n, &j) in lone.iter().enumerate() {
            place[j] = n as u32;
        }
        let apart = self.apart();
        let mut s = Schedule {
            at: vec![NONE; slots * threads],
            from: vec![0; slots / 2 * threads],
            owner: vec![-1; 2 * threads],
            warps: vec![[1, 0]; threads / WARP],
        };
        let given = |j: usize| j as i32 | (place[j] as i32) << 16;
        for (w, d) in dealt.into_iter().enumerate() {
            let most = d.lanes.iter().copied().max().unwrap_or(1);
            s.warps[w] = [most as i32, (d.slots[0] | d.slots[1] << 16) as i32];
            let warp = Warp { lanes: d.lanes, slots: 0, owners: d.owners };
            for (lane, o) in warp.of_lanes().into_iter().enumerate() {
                s.owner[w * WARP + lane] = o.map_or(-1, |o| given(warp.owners[o]));
            }
            for ((near, lists), n) in [false, true].into_iter().zip(&apart).zip(d.slots) {
                let warp = Warp { lanes: warp.lanes.clone(), slots: n, owners: warp.owners.clone() };
                lists.fill(&warp, 1, &place, |slot, lane, entry, from| {
                    let (slot, thread) = (if near { slots - 1 - slot } else { slot }, w * WARP + lane);
                    if let Some(e) = entry {
                        s.at[slot * threads + thread] = e.at;
                    }
                    s.from[slot / 2 * threads + thread] |= from << (16 * (slot % 2));
                });
            }
        }
        for (thread, &j) in lone.iter().enumerate() {
            s.owner[threads + thread] = given(j);
        }
        Ok(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::ltc::Synapses;
    use crate::layers::ltc::wirings::Rule;
    use crate::rng::Rng;

    fn held_once(s: &Synapses, slots: usize) -> LoneShape {
        let (n, lists) = (s.targets(), Lists::by_target(s).unwrap());
        let shape = lists.lone_shape(slots, 384).unwrap();
        let threads = shape.threads;
        let plan = lists.schedule_lone(slots, threads).unwrap();
        assert_eq!((plan.owner.len(), plan.at.len()), (2 * threads, slots * threads));
        // All neurons have places, apart from those of their own kind, and a lone one has no lane.
        let mut place = vec![usize::MAX; n];
        for (k, &o) in plan.owner.iter().enumerate().filter(|(_, o)| **o >= 0) {
            let (j, at) = ((o & 0xffff) as usize, (o >> 16) as usize);
            assert!(place[j] == usize::MAX || place[j] == at && k < threads);
            assert_eq!(lists.of[j].is_empty(), k >= threads, "{j}");
            place[j] = at;
        }
        let lone = |j: &usize| lists.of[*j].is_empty();
        for far in [false, true] {
            let mut places: Vec<usize> = (0..n).filter(|j| lone(j) == far).map(|j| place[j]).collect();
            places.sort_unstable();
            assert!(places.iter().copied().eq(0..places.len()));
            assert!(!far || places.len() == shape.lone);
        }
        let mut seen = vec![false; n * n];
        for (k, &at) in plan.at.iter().enumerate() {
            let (thread, slot) = (k % threads, k / threads);
            let [_, both] = plan.warps[thread / WARP];
            let (far, near) = ((both & 0xffff) as usize, (both >> 16) as usize);
            assert!(far + near <= slots);
            if at == NONE {
                continue;
            }
            let (i, j) = (at as usize / n, at as usize % n);
            assert!(!std::mem::replace(&mut seen[at as usize], true));
            assert_eq!(plan.owner[thread] & 0xffff, j as i32);
            let pair = plan.from[slot / 2 * threads + thread];
            assert_eq!((pair >> (16 * (slot % 2))) as usize & 0xffff, place[i]);
            assert!(if lone(&i) { slot < far } else { slots - 1 - slot < near });
        }
        assert_eq!(seen.iter().filter(|&&s| s).count(), s.len());
        // The lanes of an owner lie side by side in one warp.
        for (w, warp) in plan.owner[..threads].chunks(WARP).enumerate() {
            let mut runs: Vec<i32> = warp.iter().copied().filter(|&o| o >= 0).collect();
            let lanes = |o: i32| warp.iter().filter(|&&x| x == o).count();
            assert!(runs.iter().all(|&o| lanes(o) <= (plan.warps[w][0] as usize).min(LANES)));
            runs.dedup();
            let all = runs.len();
            runs.sort_unstable();
            runs.dedup();
            assert_eq!(runs.len(), all);
        }
        shape
    }

    #[test]
    fn lone_neurons_have_no_lanes() {
        for (n, density) in [(40, 0.0), (40, 0.1), (128, 0.5), (3, 1.0), (1, 1.0)] {
            let mut rng = Rng::new(7, 0);
            let mask: Vec<bool> = (0..n * n).map(|_| rng.uniform() < density).collect();
            // Of every third target none.
            held_once(&Synapses::from_fn(n, n, |i, j| j % 3 != 1 && mask[i * n + j]).unwrap(), 28);
        }
        let wiring = Rule::auto_ncp(256, 32).build(32).unwrap().connectivity().unwrap();
        let shape = held_once(&wiring.recurrent, 28);
        assert!(shape.threads <= 384 && shape.lone > 128, "{shape:?}");
        let dense = Lists::by_target(&Synapses::full(512, 512).unwrap()).unwrap();
        assert!(dense.lone_shape(28, 384).is_none() && dense.schedule_lone(28, 384).is_err());
    }
}
