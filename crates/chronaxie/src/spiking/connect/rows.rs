//! Synapses in rows: what one cell sends to the cells of a shard, its synapses of one delay together.
//!
//! One pass over the rules for each population of sources: a synapse goes to the bucket of its source, 128 sources a
//! bucket; a bucket, which lies in the cache, is sorted by source, and a row by delay. To put each synapse where it belongs
//! at once took six times as long: every write misses the cache, and most the table of pages too. In transit a synapse
//! takes 8 bytes, for the sources of one population at a time.
//!
//! Where weights are longer than 16 bits, a synapse has 8 bytes, and 16 in transit ([`Word`]).

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
    /// In place of those, where some weight has more than 16 bits: slot in the lower half, weight in the upper.
    pub long: Vec<u64>,
    /// Where each row begins in `synapses` or `long`, and their number; nothing where all synapses are drawn again.
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

/// A synapse: slot and weight, of 16 or 32 bits.
pub trait Word: Copy + PartialEq {
    /// In transit, with the number of its source in its bucket and its delay.
    type Transit: Copy + Default;
    /// A synapse onto a slot of this weight in units.
    fn pack(slot: u32, code: i32) -> Self;
    /// The slot.
    fn slot(self) -> u16;
    /// The weight, in units.
    fn weight(self) -> i32;
    /// On its way.
    fn send(self, source: u32, delay: u16) -> Self::Transit;
    /// That of a synapse in transit.
    fn of(transit: Self::Transit) -> Self;
    /// Its source's number.
    fn source(transit: Self::Transit) -> usize;
    /// Its delay.
    fn delay(transit: Self::Transit) -> u16;
    /// The synapses of some rows.
    fn all(rows: &mut Rows) -> &mut Vec<Self>;
}

impl Word for u32 {
    /// Source, slot, weight and delay, 16 bits each.
    type Transit = u64;
    #[inline(always)]
    fn pack(slot: u32, code: i32) -> Self {
        slot | (code as u32) << 16
    }
    #[inline(always)]
    fn slot(self) -> u16 {
        self as u16
    }
    #[inline(always)]
    fn weight(self) -> i32 {
        self as i32 >> 16
    }
    #[inline(always)]
    fn send(self, source: u32, delay: u16) -> u64 {
        u64::from(self) << 16 | u64::from(delay) << 48 | u64::from(source)
    }
    #[inline(always)]
    fn of(transit: u64) -> Self {
        (transit >> 16) as u32
    }
    #[inline(always)]
    fn source(transit: u64) -> usize {
        usize::from(transit as u16)
    }
    #[inline(always)]
    fn delay(transit: u64) -> u16 {
        (transit >> 48) as u16
    }
    fn all(rows: &mut Rows) -> &mut Vec<Self> {
        &mut rows.synapses
    }
}

impl Word for u64 {
    type Transit = (u64, u16, u16);
    #[inline(always)]
    fn pack(slot: u32, code: i32) -> Self {
        u64::from(slot) | u64::from(code as u32) << 32
    }
    #[inline(always)]
    fn slot(self) -> u16 {
        self as u16
    }
    #[inline(always)]
    fn weight(self) -> i32 {
        (self >> 32) as i32
    }
    #[inline(always)]
    fn send(self, source: u32, delay: u16) -> (u64, u16, u16) {
        (self, source as u16, delay)
    }
    #[inline(always)]
    fn of((word, ..): (u64, u16, u16)) -> Self {
        word
    }
    #[inline(always)]
    fn source((_, source, _): (u64, u16, u16)) -> usize {
        usize::from(source)
    }
    #[inline(always)]
    fn delay((.., delay): (u64, u16, u16)) -> u16 {
        delay
    }
    fn all(rows: &mut Rows) -> &mut Vec<Self> {
        &mut rows.long
    }
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
        let room = (expected * 1.01) as usize + 4096;
        if plan.has_long(|i| plan.keeps(i, redraw)) {
            rows.fill_all::<u64>(plan, parts, redraw, &mut load, room);
        } else {
            rows.fill_all::<u32>(plan, parts, redraw, &mut load, room);
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

    fn fill_all<W: Word>(&mut self, plan: &Plan, parts: &[Part], redraw: Redraw, load: &mut [u32], room: usize) {
        W::all(self).reserve_exact(room);
        for source in 0..plan.network.populations.len() {
            self.fill::<W>(plan, source, parts, redraw, load);
        }
    }

    fn fill<W: Word>(&mut self, plan: &Plan, source: usize, parts: &[Part], redraw: Redraw, load: &mut [u32]) {
        let n = &plan.network;
        let size = n.populations[source].size as usize;
        let own = || n.projections.iter().enumerate().filter(|(i, p)| p.source == source && plan.keeps(*i, redraw));
        let expected: f64 = own().map(|(i, _)| expected_here(plan, i, parts)).sum();
        let count = size.div_ceil(1 << BUCKET);
        let room = (expected / count as f64 * 1.05) as usize + 16;
        let mut buckets: Vec<Vec<W::Transit>> = (0..count).map(|_| Vec::with_capacity(room)).collect();
        for (i, p) in own() {
            let part = &parts[p.target];
            let (ports, cells) = (plan.models[p.target].ports().len() as u32, part.cells());
            let (first, stride) = (part.slot, part.count());
            let mut put = |s: u32, t: u32, code: i32, delay: u16| {
                let port = if code < 0 { ports - 1 } else { 0 };
                let slot = first + port * stride + cells.index(t);
                let synapse = W::pack(slot, code).send(s & ((1 << BUCKET) - 1), delay);
                buckets[(s >> BUCKET) as usize].push(synapse);
                let load = &mut load[slot as usize];
                *load = load.saturating_add(code.unsigned_abs());
            };
            enumerate(plan, i, cells, &mut put);
        }
        let mut sorter = Sorter::<W> { counts: vec![0; plan.max_delay as usize + 2], row: Vec::new() };
        let mut sorted = Vec::new();
        for (b, bucket) in buckets.into_iter().enumerate() {
            let cells = (size - (b << BUCKET)).min(1 << BUCKET);
            let mut ends = [0usize; 1 << BUCKET];
            bucket.iter().for_each(|s| ends[W::source(*s)] += 1);
            let mut next = 0;
            for end in &mut ends {
                (*end, next) = (next, next + *end);
            }
            sorted.clear();
            sorted.resize(bucket.len(), W::Transit::default());
            for s in &bucket {
                let end = &mut ends[W::source(*s)];
                sorted[*end] = *s;
                *end += 1;
            }
            let mut start = 0;
            for end in &ends[..cells] {
                sorter.sort(&mut sorted[start..*end], self);
                start = *end;
                let len = W::all(self).len() as u64;
                self.first.push(len);
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

    /// How many synapses there are.
    pub fn len(&self) -> usize {
        self.synapses.len() + self.long.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `with(slot, weight in units)` for the synapses at these places.
    pub fn each(&self, places: Range<u64>, mut with: impl FnMut(u16, i32)) {
        let places = places.start as usize..places.end as usize;
        if self.long.is_empty() {
            self.synapses[places].iter().for_each(|s| with(s.slot(), s.weight()));
        } else {
            self.long[places].iter().for_each(|s| with(s.slot(), s.weight()));
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
    let long = plan.is_long(population);
    Error::config(format!(
        "population {}: the inputs of a cell can add up to {units} units, which is more than 32 bits hold{}",
        plan.network.populations[population].name,
        if long { "; weight_bits = 16 in all projections onto it makes units coarser" } else { "" }
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
            let code = plan.number(projection, e.weight.into());
            put(s, t, code, (f64::from(e.delay_ms) / n.dt_ms).round() as u16);
        }),
        _ => {}
    }
}

/// Sources a bucket, as a power of two.
const BUCKET: u32 = 7;

/// About how many synapses of a projection lie in a shard.
pub(super) fn expected_here(plan: &Plan, projection: usize, parts: &[Part]) -> f64 {
    let p = &plan.network.projections[projection];
    let share = f64::from(parts[p.target].count()) / f64::from(plan.network.populations[p.target].size);
    plan.expected(projection) * share
}

/// Sorts rows by delay, stably.
struct Sorter<W> {
    counts: Vec<u32>,
    row: Vec<W>,
}

impl<W: Word> Sorter<W> {
    /// Adds a row of synapses in transit to `rows`.
    fn sort(&mut self, row: &mut [W::Transit], rows: &mut Rows) {
        let groups = &mut rows.groups;
        let mut push = |delay: u16, mut len: usize| {
            while len > 0 {
                let here = len.min(usize::from(u16::MAX));
                groups.push(Group { delay, len: here as u16 });
                len -= here;
            }
        };
        // Counting takes a pass over all delays there could be; a short row does without.
        if row.len() * 4 < self.counts.len() {
            row.sort_by_key(|s| W::delay(*s));
            for same in row.chunk_by(|a, b| W::delay(*a) == W::delay(*b)) {
                push(W::delay(same[0]), same.len());
            }
            W::all(rows).extend(row.iter().map(|s| W::of(*s)));
            return;
        }
        self.counts.fill(0);
        row.iter().for_each(|s| self.counts[usize::from(W::delay(*s))] += 1);
        let mut next = 0;
        for (delay, count) in self.counts.iter_mut().enumerate() {
            push(delay as u16, *count as usize);
            (*count, next) = (next, next + *count);
        }
        self.row.resize(row.len(), W::pack(0, 0));
        for s in row.iter() {
            let at = &mut self.counts[usize::from(W::delay(*s))];
            self.row[*at as usize] = W::of(*s);
            *at += 1;
        }
        W::all(rows).extend_from_slice(&self.row);
    }
}
