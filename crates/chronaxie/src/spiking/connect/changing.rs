//! Synapses that change: rows like those of [`Rows`](super::Rows), with strengths of their own, and groups of one delay and
//! one rule. A synapse takes six bytes, of which four change.

use super::rows::{enumerate, expected_here};
use super::shard::Part;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::Learning;
use crate::spiking::plasticity::rules::Changed;
use std::ops::Range;

/// Synapses of one delay and one rule of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Steps.
    pub delay: u16,
    /// Index of what they do.
    pub rule: u16,
    /// How many.
    pub len: u32,
}

/// The synapses of a shard that change; row i is that of the network's cell i.
#[derive(Debug, Default)]
pub struct Changing {
    /// The slot of each synapse.
    pub slots: Vec<u16>,
    /// The strength of each.
    pub strengths: Vec<u32>,
    /// The eligibility of each, where some rule has a modulator; else nothing.
    pub eligible: Vec<i32>,
    /// Where each row begins, and how many synapses there are.
    pub first: Vec<u64>,
    /// The groups of all rows, each row's by rising delay and rule.
    pub groups: Vec<Group>,
    /// Where each row begins in `groups`, and their number.
    pub first_group: Vec<u64>,
}

/// Sources that are sorted at a time, as a power of two.
const BUCKET: u32 = 7;

impl Changing {
    /// The synapses onto the cells of `parts`; adds to `load` the largest sum that they can bring to each slot at once.
    pub(super) fn build(plan: &Plan, learning: &Learning, parts: &[Part], load: &mut [u32]) -> Self {
        let n = &plan.network;
        let mut all = Self { first: vec![0], first_group: vec![0], ..Self::default() };
        let own = (0..n.projections.len()).filter(|i| plan.changes(*i));
        let expected: f64 = own.map(|i| expected_here(plan, i, parts)).sum();
        all.slots.reserve_exact((expected * 1.01) as usize + 4096);
        all.strengths.reserve_exact((expected * 1.01) as usize + 4096);
        for (source, population) in n.populations.iter().enumerate() {
            let size = population.size as usize;
            // Source within the bucket, delay, rule, slot, size of the weight: 7, 16, 9, 16 and 16 bits.
            let mut buckets: Vec<Vec<u64>> = vec![Vec::new(); size.div_ceil(1 << BUCKET)];
            for (i, p) in n.projections.iter().enumerate().filter(|(_, p)| p.source == source) {
                let Some(rule) = plan.rule(i) else { continue };
                let part = &parts[p.target];
                let kind = &learning.rules[usize::from(rule)];
                let port = if kind.sign < 0 { plan.models[p.target].ports().len() as u32 - 1 } else { 0 };
                let first = part.slot + port * part.count();
                // What the greatest strength passes on.
                let most = kind.brought(kind.high, super::super::plasticity::fixed::ONE).unsigned_abs();
                let cells = part.cells();
                enumerate(plan, i, cells, &mut |s, t, code, delay| {
                    let slot = first + cells.index(t);
                    let code = code.unsigned_abs();
                    let load = &mut load[slot as usize];
                    *load = load.saturating_add(if kind.stdp.is_some() { most } else { code << kind.shift });
                    let key = u64::from(delay) << 41 | u64::from(rule) << 32 | u64::from(slot) << 16 | u64::from(code);
                    buckets[(s >> BUCKET) as usize].push(u64::from(s % (1 << BUCKET)) << 57 | key);
                });
            }
            for (b, mut bucket) in buckets.into_iter().enumerate() {
                bucket.sort_unstable();
                let mut at = 0;
                for cell in 0..(size - (b << BUCKET)).min(1 << BUCKET) as u64 {
                    let row = bucket[at..].partition_point(|s| s >> 57 <= cell);
                    for same in bucket[at..at + row].chunk_by(|a, b| a >> 32 == b >> 32) {
                        let rule = (same[0] >> 32) as u16 & 511;
                        all.groups.push(Group { delay: (same[0] >> 41) as u16, rule, len: same.len() as u32 });
                        let kind = &learning.rules[usize::from(rule)];
                        all.slots.extend(same.iter().map(|s| (s >> 16) as u16));
                        all.strengths.extend(same.iter().map(|s| kind.begin(*s as u16 as i32)));
                    }
                    at += row;
                    all.first.push(all.slots.len() as u64);
                    all.first_group.push(all.groups.len() as u64);
                }
            }
        }
        if !learning.modulators.is_empty() {
            all.eligible = vec![0; all.slots.len()];
        }
        all
    }

    /// What changes of a synapse.
    #[inline(always)]
    pub(in crate::spiking) fn changed(&self, i: usize) -> Changed {
        (self.strengths[i], self.eligible.get(i).copied().unwrap_or(0))
    }
    /// Sets it.
    #[inline(always)]
    pub(in crate::spiking) fn set(&mut self, i: usize, (strength, eligible): Changed) {
        self.strengths[i] = strength;
        if let Some(e) = self.eligible.get_mut(i) {
            *e = eligible;
        }
    }

    /// The groups of a cell's row, each with its synapses' place.
    pub fn groups(&self, cell: u32) -> impl Iterator<Item = (Group, Range<u64>)> + '_ {
        let cell = cell as usize;
        let mut at = self.first[cell];
        self.groups[self.first_group[cell] as usize..self.first_group[cell + 1] as usize].iter().map(move |g| {
            let start = at;
            at += u64::from(g.len);
            (*g, start..at)
        })
    }
}
