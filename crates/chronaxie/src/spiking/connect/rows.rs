//! Synapses in rows: what one cell sends to the cells of a shard, its synapses of one delay together.
//!
//! Two passes over the rules: one counts the synapses of each source, one puts each where it belongs. Both enumerate the
//! same draws, which is cheaper than to keep them. A row is then sorted by delay in the cache. Sources of one population
//! are filled at a time, so that the delays, which are not kept, take little room.

use super::rules::visit;
use super::shard::Part;
use crate::spiking::network::place::distance;
use crate::spiking::network::{Delay, Rule};
use crate::spiking::plan::Plan;
use crate::{Error, Result};

/// Synapses of one delay of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Steps.
    pub delay: u16,
    /// How many.
    pub len: u16,
}

/// The rows of a shard; row i is that of the network's cell i.
#[derive(Debug, Default)]
pub struct Rows {
    /// Slot in the lower 16 bits, weight in the upper.
    pub synapses: Vec<u32>,
    /// Where each row begins in `synapses`, and their number.
    pub first: Vec<u64>,
    /// The groups of all rows, each row's by rising delay.
    pub groups: Vec<Group>,
    /// Where each row begins in `groups`, and their number.
    pub first_group: Vec<u64>,
}

/// A synapse.
#[inline(always)]
pub fn pack(slot: u32, code: i32) -> u32 {
    slot | (code as u32) << 16
}

/// The slot of a synapse.
#[inline(always)]
pub fn slot(synapse: u32) -> u16 {
    synapse as u16
}

/// The weight of a synapse, in units.
#[inline(always)]
pub fn weight(synapse: u32) -> i32 {
    synapse as i32 >> 16
}

impl Rows {
    /// The synapses onto the cells of `parts`, which have `slots` slots.
    pub(super) fn build(plan: &Plan, parts: &[Part], slots: usize) -> Result<Self> {
        let n = &plan.network;
        let mut counts = vec![0u32; plan.cells() as usize];
        for (i, p) in n.projections.iter().enumerate() {
            let own = &mut counts[plan.first[p.source] as usize..][..n.populations[p.source].size as usize];
            let part = &parts[p.target];
            visit(plan, i, part.low..part.high, &mut |s, _, _, _| own[s as usize] += 1);
        }
        let mut rows = Self::default();
        rows.first.reserve_exact(counts.len() + 1);
        rows.first_group.reserve_exact(counts.len() + 1);
        rows.first.push(0);
        let mut total = 0;
        for count in &counts {
            total += u64::from(*count);
            rows.first.push(total);
        }
        rows.first_group.push(0);
        rows.synapses = vec![0; total as usize];
        // The largest sum that can arrive at a slot at once.
        let mut load = vec![0u32; slots];
        for source in 0..n.populations.len() {
            rows.fill(plan, source, parts, &mut load);
        }
        for d in &plan.poisson {
            let most = (d.thresholds.len() as u32 + 1).saturating_mul(d.code.unsigned_abs());
            load[parts[d.target].slots(d.port)].iter_mut().for_each(|x| *x = x.saturating_add(most));
        }
        if let Some(at) = load.iter().position(|x| *x > i32::MAX as u32) {
            let owner = parts.iter().rposition(|p| p.slot as usize <= at).map_or("", |i| &n.populations[i].name);
            return Err(Error::config(format!(
                "population {owner}: the inputs of a cell can add up to {} units, which is more than 32 bits hold",
                load[at]
            )));
        }
        Ok(rows)
    }

    fn fill(&mut self, plan: &Plan, source: usize, parts: &[Part], load: &mut [u32]) {
        let n = &plan.network;
        let cells = plan.first[source] as usize..plan.first[source] as usize + n.populations[source].size as usize;
        let base = self.first[cells.start];
        let synapses = &mut self.synapses[base as usize..self.first[cells.end] as usize];
        let mut delays = vec![0u16; synapses.len()];
        let mut cursors: Vec<u64> = self.first[cells.clone()].iter().map(|first| first - base).collect();
        for (i, p) in n.projections.iter().enumerate().filter(|(_, p)| p.source == source) {
            let part = &parts[p.target];
            let (unit, ports) = (&plan.units[p.target], plan.models[p.target].ports().len() as u32);
            let mut put = |s: u32, t: u32, code: i32, delay: u16| {
                let port = if code < 0 { ports - 1 } else { 0 };
                let slot = part.slot + port * part.count() + (t - part.low);
                let at = cursors[s as usize] as usize;
                cursors[s as usize] += 1;
                synapses[at] = pack(slot, code);
                delays[at] = delay;
                let load = &mut load[slot as usize];
                *load = load.saturating_add(code.unsigned_abs());
            };
            let range = part.low..part.high;
            let efficacy = &plan.efficacies[i];
            match (&efficacy.weight, &efficacy.delay, &p.rule) {
                (Some(w), Some(d), _) => {
                    visit(plan, i, range, &mut |s, t, wb, db| put(s, t, w.pick(wb), d.pick(db) as u16));
                }
                (Some(w), None, _) => {
                    let (Some(a), Some(b)) = (&n.populations[p.source].positions, &n.populations[p.target].positions) else {
                        continue;
                    };
                    let Delay::Distance { velocity, offset_ms } = p.delay else { continue };
                    visit(plan, i, range, &mut |s, t, wb, _| {
                        let ms = offset_ms + distance(&a[s as usize], &b[t as usize]) / velocity;
                        put(s, t, w.pick(wb), (ms / n.dt_ms).round().max(1.0) as u16);
                    });
                }
                (None, _, Rule::Edges(edges)) => visit(plan, i, range, &mut |s, t, edge, _| {
                    let e = &edges[edge as usize];
                    let unit = unit[plan.port(p.target, e.weight < 0.0)];
                    let code = (f64::from(e.weight) / unit).round() as i32;
                    put(s, t, code, (f64::from(e.delay_ms) / n.dt_ms).round() as u16);
                }),
                _ => {}
            }
        }
        let mut sorter = Sorter { counts: vec![0; plan.max_delay as usize + 2], row: Vec::new(), pairs: Vec::new() };
        for cell in cells {
            let row = (self.first[cell] - base) as usize..(self.first[cell + 1] - base) as usize;
            sorter.sort(&mut synapses[row.clone()], &delays[row], &mut self.groups);
            self.first_group.push(self.groups.len() as u64);
        }
    }

    /// The groups of a cell's row, each with its synapses' place.
    pub fn groups(&self, cell: u32) -> impl Iterator<Item = (u16, std::ops::Range<u64>)> + '_ {
        let cell = cell as usize;
        let mut at = self.first[cell];
        self.groups[self.first_group[cell] as usize..self.first_group[cell + 1] as usize].iter().map(move |g| {
            let start = at;
            at += u64::from(g.len);
            (g.delay, start..at)
        })
    }
}

/// Sorts rows by delay, stably.
struct Sorter {
    counts: Vec<u32>,
    row: Vec<u32>,
    pairs: Vec<(u16, u32)>,
}

impl Sorter {
    fn sort(&mut self, row: &mut [u32], delays: &[u16], groups: &mut Vec<Group>) {
        let mut push = |delay: usize, mut len: usize| {
            while len > 0 {
                let here = len.min(usize::from(u16::MAX));
                groups.push(Group { delay: delay as u16, len: here as u16 });
                len -= here;
            }
        };
        // Counting takes a pass over all delays there could be; a short row does without.
        if row.len() * 4 < self.counts.len() {
            self.pairs.clear();
            self.pairs.extend(delays.iter().copied().zip(row.iter().copied()));
            self.pairs.sort_by_key(|pair| pair.0);
            row.iter_mut().zip(&self.pairs).for_each(|(s, pair)| *s = pair.1);
            for same in self.pairs.chunk_by(|a, b| a.0 == b.0) {
                push(same[0].0.into(), same.len());
            }
            return;
        }
        self.counts.fill(0);
        delays.iter().for_each(|d| self.counts[usize::from(*d)] += 1);
        let mut next = 0;
        for (delay, count) in self.counts.iter_mut().enumerate() {
            push(delay, *count as usize);
            (*count, next) = (next, next + *count);
        }
        self.row.clear();
        self.row.extend_from_slice(row);
        for (s, d) in self.row.iter().zip(delays) {
            let at = &mut self.counts[usize::from(*d)];
            row[*at as usize] = *s;
            *at += 1;
        }
    }
}
