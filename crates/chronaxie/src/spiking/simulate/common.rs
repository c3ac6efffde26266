//! What happens to many synapses at once: windows of scaling end, and the levels of modulators jump. Both are lists by time, which
//! a synapse goes through when a spike passes it.

use super::Spike;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::Learning;
use crate::spiking::plasticity::rules::Scaling;

/// What happens to all synapses of a kind at once: the ends of windows, and the levels of a modulator.
#[derive(Default)]
pub(super) struct Common {
    /// Of each scaling: spikes in this window, by slot.
    pub counts: Vec<Vec<u32>>,
    /// Of each scaling and slot: the steps at which windows ended, and the factors.
    pub scales: Vec<Vec<Vec<(u32, u32)>>>,
    /// Of each modulator: when its level jumped at synapses, and the level just after.
    pub levels: Vec<Vec<(u32, u32)>>,
    /// The steps of its spikes that are not among them yet.
    fresh: Vec<Vec<u64>>,
}

impl Common {
    pub fn new(learning: &Learning, slots: usize) -> Self {
        let (scalings, modulators) = (learning.scalings.len(), learning.modulators.len());
        Self {
            counts: vec![vec![0; slots]; scalings],
            scales: vec![vec![Vec::new(); slots]; scalings],
            levels: vec![Vec::new(); modulators],
            fresh: vec![Vec::new(); modulators],
        }
    }

    /// Before anything happens in `step`: ends windows.
    pub fn begin(&mut self, learning: &Learning, step: u64) -> usize {
        let mut added = 0;
        for (k, scaling) in learning.scalings.iter().enumerate() {
            if step == 0 || !step.is_multiple_of(scaling.window.into()) {
                continue;
            }
            for (count, scales) in self.counts[k].iter_mut().zip(&mut self.scales[k]) {
                let factor = scaling.factor(std::mem::take(count));
                if factor != Scaling::NONE {
                    scales.push((step as u32, factor));
                    added += 1;
                }
            }
        }
        added
    }

    /// Notes a spike anywhere, if it carries a modulator.
    pub fn note(&mut self, plan: &Plan, learning: &Learning, spike: Spike) {
        for (m, fresh) in learning.modulators.iter().zip(&mut self.fresh) {
            let first = plan.first[m.population];
            let size = u64::from(plan.network.populations[m.population].size);
            if (first..first + size).contains(&u64::from(spike.cell)) {
                fresh.push(spike.step);
            }
        }
    }

    /// When all spikes so far are noted: brings levels up to date.
    pub fn settle(&mut self, learning: &Learning) -> usize {
        let mut added = 0;
        for (k, m) in learning.modulators.iter().enumerate() {
            let mut fresh = std::mem::take(&mut self.fresh[k]);
            fresh.sort_unstable();
            for same in fresh.chunk_by(|a, b| a == b) {
                let when = (same[0] + u64::from(m.delay)) as u32;
                let before = self.levels[k].last().map_or(0, |(last, after)| m.later(*after, when - last));
                self.levels[k].push((when, m.after(before, same.len() as u32)));
                added += 1;
            }
        }
        added
    }

    /// The level of modulator `k` from `time` on.
    pub fn level(&self, learning: &Learning, k: usize, time: i64) -> u32 {
        let at = self.levels[k].partition_point(|(when, _)| i64::from(*when) <= time);
        let Some((when, after)) = at.checked_sub(1).map(|i| self.levels[k][i]) else { return 0 };
        let steps = (time - i64::from(when)) as u32;
        if steps == 0 { after } else { learning.modulators[k].later(after, steps) }
    }

    /// Drops what was applied to every synapse; of spikes of modulators before `oldest` the last stays.
    pub fn trim(&mut self, learning: &Learning, oldest: i64) {
        self.scales.iter_mut().flatten().for_each(Vec::clear);
        for (levels, m) in self.levels.iter_mut().zip(&learning.modulators) {
            let old = levels.partition_point(|(when, _)| i64::from(*when) - i64::from(m.delay) < oldest);
            levels.drain(..old.saturating_sub(1));
        }
    }
}
