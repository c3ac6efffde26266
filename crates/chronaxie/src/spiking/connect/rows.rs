//! Synapses in rows: what one cell sends to the cells of a shard, its synapses of one delay together.
//!
//! One pass over the rules for each population of sources: a synapse goes to the bucket of its source, 128 sources a
//! bucket; a bucket, which lies in the cache, is sorted by source, and a row by delay. To put each synapse where it belongs
//! at once took six times as long: every write misses the cache, and most the table of pages too. In transit a synapse
//! takes 8 bytes, for the sources of one population at a time.

use super::drawn::Redraw;
use super::rules::visit;
use super::shard::Part;
use super::subset::Subset;
use crate::spiking::network::place::distance;
use crate::spiking::network::{Delay, Rule};
use crate::spiking::plan::Plan;
use crate::{Error, Result};
use std::ops::Range;

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
    /// Where each row begins in `synapses`, and their number; nothing where all synapses are drawn again.
    pub first: Vec<u64>,
    /// The groups of all rows, each row's by rising delay.
    pub groups: Vec<Group>,
    /// Where each row begins in `groups`, and their number.
    pub first_group: Vec<u64>,
    /// The largest sum that synapses can bring to a slot at once, in units.
    pub heaviest: u32,
    /// Likewise to each slot, where some synapses are drawn again; else nothing.
    pub load: Vec<u32>,
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
    /// The synapses onto the cells of `parts` that do not change and are not drawn again. `load` is the largest sum that all others can
    /// bring to each slot at once.
    pub(super) fn build(plan: &Plan, parts: &[Part], redraw: Redraw, mut load: Vec<u32>) -> Result<Self> {
        let n = &plan.network;
        let mut rows = Self::default();
        if plan.draws_any(redraw) && !(0..n.projections.len()).any(|i| plan.keeps(i, redraw)) {
            return rows.weighed(plan, parts, redraw, load);
        }
        rows.first.reserve_exact(plan.cells() as usize + 1);
        rows.first_group.reserve_exact(plan.cells() as usize + 1);
        rows.first.push(0);
        rows.first_group.push(0);
        // Room that is asked for and not used is never touched, so it costs nothing; to grow would copy.
        let fixed = (0..n.projections.len()).filter(|i| plan.keeps(*i, redraw));
        let expected: f64 = fixed.map(|i| expected_here(plan, i, parts)).sum();
        rows.synapses.reserve_exact((expected * 1.01) as usize + 4096);
        for source in 0..n.populations.len() {
            rows.fill(plan, source, parts, redraw, &mut load);
        }
        rows.weighed(plan, parts, redraw, load)
    }

    /// With what inputs can add up to, which is refused beyond 32 bits.
    fn weighed(mut self, plan: &Plan, parts: &[Part], redraw: Redraw, mut load: Vec<u32>) -> Result<Self> {
        self.heaviest = load.iter().copied().max().unwrap_or(0);
        if plan.draws_any(redraw) {
            self.load.clone_from(&load);
        }
        for d in &plan.poisson {
            let most = (d.thresholds.len() as u32 + 1).saturating_mul(d.code.unsigned_abs());
            load[parts[d.target].slots(d.port)].iter_mut().for_each(|x| *x = x.saturating_add(most));
        }
        if let Some(at) = load.iter().position(|x| *x > i32::MAX as u32) {
            let owner = parts.iter().rposition(|p| p.slot as usize <= at).unwrap_or(0);
            return Err(overflow(plan, owner, load[at].into()));
        }
        Ok(self)
    }

    fn fill(&mut self, plan: &Plan, source: usize, parts: &[Part], redraw: Redraw, load: &mut [u32]) {
        let n = &plan.network;
        let size = n.populations[source].size as usize;
        let own = || n.projections.iter().enumerate().filter(|(i, p)| p.source == source && plan.keeps(*i, redraw));
        let expected: f64 = own().map(|(i, _)| expected_here(plan, i, parts)).sum();
        let count = size.div_ceil(1 << BUCKET);
        let room = (expected / count as f64 * 1.05) as usize + 16;
        let mut buckets: Vec<Vec<u64>> = (0..count).map(|_| Vec::with_capacity(room)).collect();
        for (i, p) in own() {
            let part = &parts[p.target];
            let (ports, cells) = (plan.models[p.target].ports().len() as u32, part.cells());
            let (first, stride) = (part.slot, part.count());
            let mut put = |s: u32, t: u32, code: i32, delay: u16| {
                let port = if code < 0 { ports - 1 } else { 0 };
                let slot = first + port * stride + cells.index(t);
                let synapse = u64::from(pack(slot, code)) << 16 | u64::from(delay) << 48;
                buckets[(s >> BUCKET) as usize].push(synapse | u64::from(s & ((1 << BUCKET) - 1)));
                let load = &mut load[slot as usize];
                *load = load.saturating_add(code.unsigned_abs());
            };
            enumerate(plan, i, cells, &mut put);
        }
        let mut sorter = Sorter { counts: vec![0; plan.max_delay as usize + 2], row: Vec::new() };
        let mut sorted = Vec::new();
        for (b, bucket) in buckets.into_iter().enumerate() {
            let cells = (size - (b << BUCKET)).min(1 << BUCKET);
            let mut ends = [0usize; 1 << BUCKET];
            bucket.iter().for_each(|s| ends[(*s & MASK) as usize] += 1);
            let mut next = 0;
            for end in &mut ends {
                (*end, next) = (next, next + *end);
            }
            sorted.clear();
            sorted.resize(bucket.len(), 0);
            for s in &bucket {
                let end = &mut ends[(*s & MASK) as usize];
                sorted[*end] = *s;
                *end += 1;
            }
            let mut start = 0;
            for end in &ends[..cells] {
                sorter.sort(&mut sorted[start..*end], self);
                start = *end;
                self.first.push(self.synapses.len() as u64);
                self.first_group.push(self.groups.len() as u64);
            }
        }
    }

    /// The groups of a cell's row; none where no synapse is kept, and rows have no heads.
    #[inline(always)]
    pub fn own_groups(&self, cell: usize) -> &[Group] {
        match self.first_group.get(cell..cell + 2) {
            Some(at) => &self.groups[at[0] as usize..at[1] as usize],
            None => &[],
        }
    }

    /// The groups of a cell's row, each with its synapses' place.
    pub fn groups(&self, cell: u32) -> impl Iterator<Item = (u16, Range<u64>)> + '_ {
        let cell = cell as usize;
        let mut at = self.first.get(cell).copied().unwrap_or(0);
        self.own_groups(cell).iter().map(move |g| {
            let start = at;
            at += u64::from(g.len);
            (g.delay, start..at)
        })
    }
}

/// A cell of `population` at which so many units can arrive in one step.
pub(in crate::spiking) fn overflow(plan: &Plan, population: usize, units: u64) -> Error {
    Error::config(format!(
        "population {}: the inputs of a cell can add up to {units} units, which is more than 32 bits hold",
        plan.network.populations[population].name
    ))
}

/// Calls `put(source, target, weight in units, delay in steps)` for every synapse of a projection onto the cells `targets`.
#[inline]
pub(in crate::spiking) fn enumerate<'s>(
    plan: &Plan,
    projection: usize,
    targets: impl Into<Subset<'s>>,
    put: &mut impl FnMut(u32, u32, i32, u16),
) {
    let n = &plan.network;
    let p = &n.projections[projection];
    let efficacy = &plan.efficacies[projection];
    let targets = targets.into();
    match (&efficacy.weight, &efficacy.delay, &p.rule) {
        (Some(w), Some(d), _) => {
            visit(plan, projection, targets, &mut |s, t, wb, db| put(s, t, w.pick(wb), d.pick(db) as u16));
        }
        (Some(w), None, _) => {
            let (Some(a), Some(b)) = (&n.populations[p.source].positions, &n.populations[p.target].positions) else {
                return;
            };
            let Delay::Distance { velocity, offset_ms } = p.delay else { return };
            visit(plan, projection, targets, &mut |s, t, wb, _| {
                let ms = offset_ms + distance(&a[s as usize], &b[t as usize]) / velocity;
                put(s, t, w.pick(wb), (ms / n.dt_ms).round().max(1.0) as u16);
            });
        }
        (None, _, Rule::Edges(edges)) => visit(plan, projection, targets, &mut |s, t, edge, _| {
            let e = &edges[edge as usize];
            let unit = plan.units[p.target][plan.port(p.target, e.weight < 0.0)];
            let code = (f64::from(e.weight) / unit).round() as i32;
            put(s, t, code, (f64::from(e.delay_ms) / n.dt_ms).round() as u16);
        }),
        _ => {}
    }
}

/// Sources a bucket, as a power of two.
const BUCKET: u32 = 7;
/// Where a synapse in transit has its source: then slot, weight and delay, 16 bits each.
const MASK: u64 = (1 << BUCKET) - 1;

/// About how many synapses of a projection lie in a shard.
pub(super) fn expected_here(plan: &Plan, projection: usize, parts: &[Part]) -> f64 {
    let p = &plan.network.projections[projection];
    let share = f64::from(parts[p.target].count()) / f64::from(plan.network.populations[p.target].size);
    plan.expected(projection) * share
}

/// Sorts rows by delay, stably.
struct Sorter {
    counts: Vec<u32>,
    row: Vec<u32>,
}

impl Sorter {
    /// Adds a row of synapses in transit to `rows`.
    fn sort(&mut self, row: &mut [u64], rows: &mut Rows) {
        let groups = &mut rows.groups;
        let mut push = |delay: u64, mut len: usize| {
            while len > 0 {
                let here = len.min(usize::from(u16::MAX));
                groups.push(Group { delay: delay as u16, len: here as u16 });
                len -= here;
            }
        };
        // Counting takes a pass over all delays there could be; a short row does without.
        if row.len() * 4 < self.counts.len() {
            row.sort_by_key(|s| s >> 48);
            for same in row.chunk_by(|a, b| a >> 48 == b >> 48) {
                push(same[0] >> 48, same.len());
            }
            rows.synapses.extend(row.iter().map(|s| (s >> 16) as u32));
            return;
        }
        self.counts.fill(0);
        row.iter().for_each(|s| self.counts[(*s >> 48) as usize] += 1);
        let mut next = 0;
        for (delay, count) in self.counts.iter_mut().enumerate() {
            push(delay as u64, *count as usize);
            (*count, next) = (next, next + *count);
        }
        self.row.resize(row.len(), 0);
        for s in row.iter() {
            let at = &mut self.counts[(*s >> 48) as usize];
            self.row[*at as usize] = (*s >> 16) as u32;
            *at += 1;
        }
        rows.synapses.extend_from_slice(&self.row);
    }
}
