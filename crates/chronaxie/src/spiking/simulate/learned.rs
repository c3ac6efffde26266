//! The state of synapses that change, the same for every engine, and what is said of their weights.

use super::State;
use super::lane::Lane;
use super::parts::Keys;
use crate::spiking::connect::Shard;
use crate::spiking::connect::changing::Group;
use crate::spiking::connect::list::Known;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Learning, NEVER, ONE};
use crate::spiking::plasticity::rules::is_eligibility;
use crate::{Error, Result, pool};
use serde::Serialize;
use std::sync::{Mutex, PoisonError};

/// Synapses that change, between two steps.
///
/// A synapse is known by where it comes from, its delay, what it does and where it goes; of those that are alike in all of
/// these, the order is that of their strengths.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Learned {
    /// By the order above, once every spike before this step was applied that has come to the synapse.
    pub strengths: Vec<u32>,
    /// Where strengths are as a GPU has them between two launches; nothing where they are as was just said.
    pub behind: Option<Box<Behind>>,
    /// Of each cell, the last entry before the recent spikes; `NEVER` where there is none.
    pub entries: Vec<Vec<u32>>,
    /// What synapses with their delay behind them have passed on and has not arrived: steps from this one on, slot of the
    /// network, units; sorted, no slot twice a step.
    pub under_way: Vec<(u32, u64, i32)>,
    /// In the order of strengths, what a modulator would turn into them, where there is one.
    pub eligible: Vec<i32>,
    /// Of each kind of scaling, the spikes of each cell in this window.
    pub counts: Vec<Vec<u32>>,
    /// Of each modulator, its last jump by a spike before the recent ones: when, and the level after; `NEVER` where there is
    /// none.
    pub levels: Vec<[u32; 2]>,
}

/// Strengths in another order, and not up to date: what a GPU can write without looking at them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Behind {
    /// Of each cell of the network a number: strengths are in the order of those of their targets first, and in each in that of
    /// [`Learned`]; those that are alike in any.
    pub groups: Vec<u32>,
    /// A synapse is up to date as of the last spike that passed it, or as of this step, whichever is later.
    pub settled: u32,
    /// Of each cell, the steps of its spikes before the recent ones, as far back as synapses have yet to hear of; rising.
    pub past: Vec<Vec<u32>>,
}

/// The weights of the synapses that change from one population to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Weights {
    /// `source -> target`.
    #[serde(skip)]
    pub projection: String,
    /// How many synapses.
    pub count: u64,
    /// Mean weight, in the unit of the target's model.
    pub mean: f64,
    /// Standard deviation.
    pub sd: f64,
    /// The least, the 5th, 25th, 50th, 75th and 95th percentile of all, and the greatest; to the unit of the port.
    pub quantiles: [f64; 7],
}

/// Refuses steps that entries cannot name.
pub(super) fn steps_left(plan: &Plan, to: u64) -> Result<()> {
    if plan.learning.is_some() && to >= u64::from(NEVER) {
        return Err(Error::value(format!("step {to} is beyond the 2^32 - 1 that a network with plasticity has")));
    }
    Ok(())
}

/// What a synapse is known by, beside its source.
fn key(group: Group, target: u32) -> u64 {
    u64::from(group.delay) << 41 | u64::from(group.rule) << 32 | u64::from(target)
}

/// The network's cell of each slot of a shard.
pub(super) fn cells_of(plan: &Plan, shard: &Shard) -> Vec<u32> {
    let mut cells = vec![0; shard.slots];
    for (p, part) in shard.parts.iter().enumerate() {
        for port in 0..plan.models[p].ports().len() {
            for (i, slot) in part.slots(port).enumerate() {
                cells[slot] = plan.first[p] as u32 + part.cells().at(i);
            }
        }
    }
    cells
}

/// The network's slot of each slot of a shard.
fn slots_of(plan: &Plan, shard: &Shard) -> Vec<u64> {
    let mut slots = vec![0; shard.slots];
    for ((p, part), first) in shard.parts.iter().enumerate().zip(plan.first_slots()) {
        let size = u64::from(plan.network.populations[p].size);
        for port in 0..plan.models[p].ports().len() {
            for (i, slot) in part.slots(port).enumerate() {
                slots[slot] = first + port as u64 * size + u64::from(part.cells().at(i));
            }
        }
    }
    slots
}

/// What the synapses of some shards are known by, in the order of a state.
pub(super) fn keys(plan: &Plan, shards: &[&Shard]) -> Keys {
    let cells: Vec<Vec<u32>> = shards.iter().map(|shard| cells_of(plan, shard)).collect();
    let mut all = Keys::default();
    for source in 0..plan.cells() as u32 {
        let from = all.keys.len();
        for (shard, cells) in shards.iter().zip(&cells) {
            let Some(synapses) = &shard.changing else { continue };
            for (group, places) in synapses.groups(source) {
                let slots = synapses.slots[places.start as usize..places.end as usize].iter();
                all.keys.extend(slots.map(|slot| key(group, cells[usize::from(*slot)])));
            }
        }
        all.keys[from..].sort_unstable();
        all.rows.push((all.keys.len() - from) as u32);
    }
    all
}

/// Strengths in the order of a state, from those in the order of each shard's rows; eligibilities likewise, since synapses that
/// are alike in all but their strengths have the same.
pub(super) fn in_order<T: Copy + Ord + Send + Sync>(plan: &Plan, shards: &[&Shard], strengths: &[Vec<T>]) -> Vec<T> {
    let cells: Vec<Vec<u32>> = shards.iter().map(|shard| cells_of(plan, shard)).collect();
    let total = plan.cells() as u32;
    // Rows are sorted by themselves, so any thread may take any of them.
    let parts = pool::num_threads() * 8;
    let sorted = Mutex::new(Vec::with_capacity(parts));
    pool::for_each(parts, |part| {
        let cut = |i: usize| (u64::from(total) * i as u64 / parts as u64) as u32;
        let (mut own, mut row) = (Vec::new(), Vec::<(u64, T)>::new());
        for cell in cut(part)..cut(part + 1) {
            row.clear();
            for ((shard, strengths), cells) in shards.iter().zip(strengths).zip(&cells) {
                let Some(synapses) = &shard.changing else { continue };
                for (group, places) in synapses.groups(cell) {
                    let places = places.start as usize..places.end as usize;
                    let slots = synapses.slots[places.clone()].iter();
                    let keys = slots.map(|slot| key(group, cells[usize::from(*slot)]));
                    row.extend(keys.zip(strengths[places].iter().copied()));
                }
            }
            row.sort_unstable();
            own.extend(row.iter().map(|(_, strength)| *strength));
        }
        sorted.lock().unwrap_or_else(PoisonError::into_inner).push((part, own));
    });
    let mut sorted = sorted.into_inner().unwrap_or_else(PoisonError::into_inner);
    sorted.sort_by_key(|(part, _)| *part);
    let mut all = Vec::with_capacity(strengths.iter().map(Vec::len).sum());
    sorted.into_iter().for_each(|(_, own)| all.extend(own));
    all
}

/// The inverse: strengths in the order of each shard's rows.
pub(super) fn by_shard(
    plan: &Plan,
    learning: &Learning,
    shards: &[&Shard],
    learned: &Learned,
) -> Result<Vec<Vec<u32>>> {
    let within = |rule: u16, strength: u32| {
        let rule = &learning.rules[usize::from(rule)];
        (rule.low..=rule.high).contains(&strength)
    };
    parted(plan, shards, &learned.strengths, within)
        .ok_or_else(|| Error::checkpoint("the state has weights beyond the bounds of this network"))
}

/// Numbers in the order of a state, in the order of each shard's rows; nothing where one is not `good` for its rule.
pub(super) fn parted<T: Copy + Default>(
    plan: &Plan,
    shards: &[&Shard],
    all: &[T],
    good: impl Fn(u16, T) -> bool,
) -> Option<Vec<Vec<T>>> {
    let count = |shard: &&Shard| shard.changing.as_ref().map_or(0, |c| c.slots.len());
    let mut parts: Vec<Vec<T>> = shards.iter().map(|shard| vec![T::default(); count(shard)]).collect();
    let cells: Vec<Vec<u32>> = shards.iter().map(|shard| cells_of(plan, shard)).collect();
    let mut row: Vec<(u64, usize, usize)> = Vec::new();
    let mut all = all.iter();
    for cell in 0..plan.cells() as u32 {
        row.clear();
        for (k, (shard, cells)) in shards.iter().zip(&cells).enumerate() {
            let Some(synapses) = &shard.changing else { continue };
            for (group, places) in synapses.groups(cell) {
                let places = places.start as usize..places.end as usize;
                row.extend(places.map(|i| (key(group, cells[usize::from(synapses.slots[i])]), k, i)));
            }
        }
        row.sort_unstable();
        for ((key, k, i), value) in row.iter().zip(&mut all) {
            if !good((key >> 32) as u16 & 511, *value) {
                return None;
            }
            parts[*k][*i] = *value;
        }
    }
    Some(parts)
}

/// The last entry of each cell before the recent spikes of step `now`, by `last(cell, before step)`.
pub(super) fn entries<'e>(
    plan: &Plan,
    learning: &Learning,
    now: u64,
    last: impl Fn(usize, i64) -> Option<&'e [u32]>,
) -> Vec<Vec<u32>> {
    let oldest = now as i64 - i64::from(plan.max_delay);
    let mut none = vec![0; learning.width()];
    none[0] = NEVER;
    (0..plan.cells() as usize).map(|cell| last(cell, oldest).unwrap_or(&none).to_vec()).collect()
}

/// The state of the lanes before step `now`.
pub(super) fn gather(plan: &Plan, learning: &Learning, lanes: &[Lane<'_>], now: u64) -> Learned {
    let shards: Vec<&Shard> = lanes.iter().map(|l| &l.shard).collect();
    let first = lanes.iter().find_map(|l| l.learner.as_ref());
    let entries = entries(plan, learning, now, |cell, step| first.and_then(|l| l.entry(cell, step)));
    let mut under_way = Vec::new();
    for lane in lanes.iter().filter(|_| learning.early) {
        let Some(learner) = &lane.learner else { continue };
        let slots = slots_of(plan, &lane.shard);
        for ahead in 0..plan.max_delay {
            let mut sums = vec![0; lane.shard.slots];
            learner.under_way(now + u64::from(ahead), &mut sums);
            let some = sums.iter().zip(&slots).filter(|(sum, _)| **sum != 0);
            under_way.extend(some.map(|(sum, slot)| (ahead, *slot, *sum)));
        }
    }
    under_way.sort_unstable();
    let (strengths, eligible): (Vec<_>, Vec<_>) = changed(lanes, now).into_iter().unzip();
    let oldest = now as i64 - i64::from(plan.max_delay);
    let mut counts = vec![vec![0; plan.cells() as usize]; learning.scalings.len()];
    for lane in lanes.iter().filter(|_| !learning.scalings.is_empty()) {
        let Some(learner) = &lane.learner else { continue };
        let cells = cells_of(plan, &lane.shard);
        for (all, own) in counts.iter_mut().zip(learner.counts()) {
            own.iter().zip(&cells).for_each(|(count, cell)| all[*cell as usize] = *count);
        }
    }
    Learned {
        strengths: in_order(plan, &shards, &strengths),
        behind: None,
        entries,
        under_way,
        eligible: if learning.modulators.is_empty() { Vec::new() } else { in_order(plan, &shards, &eligible) },
        counts,
        levels: first.map_or(Vec::new(), |l| l.levels(oldest)),
    }
}

fn changed(lanes: &[Lane<'_>], now: u64) -> Vec<(Vec<u32>, Vec<i32>)> {
    let own = |l: &Lane<'_>| match (&l.learner, &l.shard.changing) {
        (Some(learner), Some(synapses)) => learner.changed(now, synapses),
        _ => Default::default(),
    };
    lanes.iter().map(own).collect()
}

/// How many synapses of the shards change.
pub(super) fn count(shards: &[&Shard]) -> usize {
    shards.iter().map(|s| s.changing.as_ref().map_or(0, |c| c.slots.len())).sum()
}

/// The synapses of a projection, which changes: what they are known by, and their strengths.
pub(super) fn known(plan: &Plan, shards: &[&Shard], strengths: &[Vec<u32>], projection: usize) -> Vec<Known> {
    let p = &plan.network.projections[projection];
    let range = |population: usize| {
        let first = plan.first[population] as u32;
        first..first + plan.network.populations[population].size
    };
    let (sources, targets) = (range(p.source), range(p.target));
    let mut all = Vec::new();
    for (shard, strengths) in shards.iter().zip(strengths) {
        let Some(synapses) = &shard.changing else { continue };
        let cells = cells_of(plan, shard);
        for source in sources.clone() {
            for (group, places) in synapses.groups(source).filter(|(g, _)| Some(g.rule) == plan.rule(projection)) {
                for i in places.start as usize..places.end as usize {
                    let target = cells[usize::from(synapses.slots[i])];
                    if targets.contains(&target) {
                        let key = (source - sources.start, group.delay, target - targets.start);
                        all.push((key, strengths[i]));
                    }
                }
            }
        }
    }
    all
}

pub(super) fn strengths(lanes: &[Lane<'_>], now: u64) -> Vec<Vec<u32>> {
    changed(lanes, now).into_iter().map(|(strengths, _)| strengths).collect()
}

/// Refuses what is not the state of `synapses` synapses of this plan that change.
pub(super) fn check(plan: &Plan, learning: &Learning, learned: &Learned, step: u64, synapses: usize) -> Result<()> {
    let fits = learned.behind.is_none()
        && learned.strengths.len() == synapses
        && learned.eligible.len() == if learning.modulators.is_empty() { 0 } else { synapses };
    if !fits {
        return Err(misfit());
    }
    check_beside(plan, learning, learned, step)
}

fn misfit() -> Error {
    Error::checkpoint("the synapses of the state are not those of this network")
}

/// Likewise, whatever the strengths are.
pub(super) fn check_beside(plan: &Plan, learning: &Learning, learned: &Learned, step: u64) -> Result<()> {
    let oldest = step.saturating_sub(plan.max_delay.into());
    let shares = 1 + learning.traces.len();
    let entry = |e: &Vec<u32>| {
        e.len() == learning.width()
            && (e[0] == NEVER || u64::from(e[0]) < oldest)
            && e[shares..].iter().all(|x| *x <= ONE)
    };
    let slots = plan.first_slots().last().copied().unwrap_or(0);
    let fits =
        learned.entries.len() as u64 == plan.cells()
            && learned.entries.iter().all(entry)
            && learned.under_way.iter().all(|(ahead, slot, _)| *ahead < plan.max_delay && *slot < slots)
            && learned.eligible.iter().all(|e| is_eligibility(*e))
            && learned.counts.len() == learning.scalings.len()
            && learned.counts.iter().all(|c| c.len() as u64 == plan.cells())
            && learned.levels.len() == learning.modulators.len()
            && learned.levels.iter().zip(&learning.modulators).all(|(l, m)| {
                l[0] == NEVER || (u64::from(m.delay)..oldest + u64::from(m.delay)).contains(&l[0].into())
            })
            && step < u64::from(NEVER);
    if fits { Ok(()) } else { Err(misfit()) }
}

/// Takes the lanes to a state.
pub(super) fn scatter(
    plan: &Plan,
    learning: &Learning,
    lanes: &mut [Lane<'_>],
    learned: &Learned,
    state: &State,
) -> Result<()> {
    let shards: Vec<&Shard> = lanes.iter().map(|l| &l.shard).collect();
    check(plan, learning, learned, state.step, count(&shards))?;
    let strengths = by_shard(plan, learning, &shards, learned)?;
    let eligible = parted(plan, &shards, &learned.eligible, |_, _| true).unwrap_or_default();
    for ((lane, strengths), eligible) in lanes.iter_mut().zip(strengths).zip(eligible) {
        if let Some(synapses) = &mut lane.shard.changing {
            synapses.strengths = strengths;
            if !learning.modulators.is_empty() {
                synapses.eligible = eligible;
            }
        }
        let slots = slots_of(plan, &lane.shard);
        let mut here: Vec<(u64, u16)> = slots.iter().enumerate().map(|(i, slot)| (*slot, i as u16)).collect();
        here.sort_unstable();
        let own = |(ahead, slot, sum): &(u32, u64, i32)| {
            let at = here.binary_search_by_key(slot, |(slot, _)| *slot).ok()?;
            Some((state.step + u64::from(*ahead), here[at].1, *sum))
        };
        let early = learned.under_way.iter().filter_map(own).collect();
        lane.restore(state.step, learned, &state.recent, early);
    }
    Ok(())
}

/// What is counted of the weights of a pair of populations.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    sum: u64,
    squares: u128,
    count: u64,
    /// By whole units.
    units: Vec<u64>,
}

impl Counts {
    fn add(&mut self, strength: u32) {
        self.sum += u64::from(strength);
        self.squares += u128::from(u64::from(strength) * u64::from(strength));
        self.count += 1;
        let at = ((strength + (1 << 15)) >> 16) as usize;
        if self.units.len() <= at {
            self.units.resize(at + 1, 0);
        }
        self.units[at] += 1;
    }
    fn weights(&self, projection: String, value: f64) -> Weights {
        let n = self.count.max(1) as f64;
        let mean = self.sum as f64 / n / 65_536.0;
        let variance = (self.squares as f64 / n / 65_536.0 / 65_536.0 - mean * mean).max(0.0);
        let quantile = |share: f64| {
            let rank = ((share * (n - 1.0)).round() as u64).min(self.count.saturating_sub(1));
            let mut seen = 0;
            let at = self.units.iter().position(|c| {
                seen += c;
                seen > rank
            });
            at.unwrap_or(0) as f64 * value
        };
        let mut quantiles = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0].map(quantile);
        if value < 0.0 {
            quantiles.reverse();
        }
        Weights { projection, count: self.count, mean: mean * value, sd: variance.sqrt() * value.abs(), quantiles }
    }
}

/// The weights in the lanes before step `now`.
pub(super) fn weights(plan: &Plan, learning: &Learning, lanes: &[Lane<'_>], now: u64) -> Vec<Weights> {
    let shards: Vec<&Shard> = lanes.iter().map(|l| &l.shard).collect();
    summarise(plan, learning, &shards, &strengths(lanes, now))
}

/// What is counted of the weights in the lanes, as numbers: of each kind the number of units, the sum, the squares in two
/// halves, the count, the units.
pub(super) fn counted(plan: &Plan, learning: &Learning, lanes: &[Lane<'_>], now: u64) -> Vec<u64> {
    let shards: Vec<&Shard> = lanes.iter().map(|l| &l.shard).collect();
    summary(plan, learning, &shards, &strengths(lanes, now)).numbers()
}

/// The weights of all parts, of which each has counted its own; nothing where the numbers are none.
pub(super) fn joined(plan: &Plan, parts: &[Vec<u64>]) -> Option<Vec<Weights>> {
    let mut summary = Summary::new(plan);
    for mut numbers in parts.iter().map(Vec::as_slice) {
        for all in &mut summary.counts {
            let (head, rest) = numbers.split_at_checked(5)?;
            let (units, rest) = rest.split_at_checked(usize::try_from(head[0]).ok()?)?;
            all.sum += head[1];
            all.squares += u128::from(head[2]) | u128::from(head[3]) << 64;
            all.count += head[4];
            all.units.resize(all.units.len().max(units.len()), 0);
            all.units.iter_mut().zip(units).for_each(|(all, own)| *all += own);
            numbers = rest;
        }
        if !numbers.is_empty() {
            return None;
        }
    }
    Some(summary.weights())
}

/// What is counted of weights, by source, target and sign.
pub(super) struct Summary<'a> {
    plan: &'a Plan,
    /// The population of each cell.
    of: Vec<u32>,
    counts: Vec<Counts>,
}

impl<'a> Summary<'a> {
    pub(super) fn new(plan: &'a Plan) -> Self {
        let populations = plan.network.populations.len();
        let sizes = plan.network.populations.iter().enumerate();
        let of = sizes.flat_map(|(p, x)| std::iter::repeat_n(p as u32, x.size as usize)).collect();
        let empty = Counts { sum: 0, squares: 0, count: 0, units: Vec::new() };
        Self { plan, of, counts: vec![empty; populations * populations * 2] }
    }
    pub(super) fn add(&mut self, source: u32, target: u32, negative: bool, strength: u32) {
        let [source, target] = [source, target].map(|cell| self.of[cell as usize] as usize);
        let populations = self.plan.network.populations.len();
        self.counts[2 * (source * populations + target) + usize::from(negative)].add(strength);
    }
    /// Adds what another has counted of the same plan.
    pub(super) fn merge(&mut self, other: &Self) {
        for (all, own) in self.counts.iter_mut().zip(&other.counts) {
            all.sum += own.sum;
            all.squares += own.squares;
            all.count += own.count;
            all.units.resize(all.units.len().max(own.units.len()), 0);
            all.units.iter_mut().zip(&own.units).for_each(|(all, own)| *all += own);
        }
    }
    /// As [`joined`] takes it.
    pub(super) fn numbers(self) -> Vec<u64> {
        let mut all = Vec::new();
        for c in self.counts {
            all.extend([c.units.len() as u64, c.sum, c.squares as u64, (c.squares >> 64) as u64, c.count]);
            all.extend(c.units);
        }
        all
    }
    pub(super) fn weights(&self) -> Vec<Weights> {
        let (n, plan) = (&self.plan.network, self.plan);
        let populations = n.populations.len();
        let named = self.counts.iter().enumerate().filter(|(_, c)| c.count > 0).map(|(i, c)| {
            let (source, target, negative) = (i / 2 / populations, i / 2 % populations, i % 2 == 1);
            let unit = plan.coarse_unit(target, plan.port(target, negative));
            let name = |p: usize| n.populations[p].name.as_str();
            c.weights(format!("{} -> {}", name(source), name(target)), if negative { -unit } else { unit })
        });
        named.collect()
    }
}

/// The weights that these strengths are, in the order of each shard's rows.
pub(super) fn summarise(plan: &Plan, learning: &Learning, shards: &[&Shard], strengths: &[Vec<u32>]) -> Vec<Weights> {
    summary(plan, learning, shards, strengths).weights()
}

fn summary<'a>(plan: &'a Plan, learning: &Learning, shards: &[&Shard], strengths: &[Vec<u32>]) -> Summary<'a> {
    let mut summary = Summary::new(plan);
    for (shard, strengths) in shards.iter().zip(strengths) {
        let targets = cells_of(plan, shard);
        let Some(synapses) = &shard.changing else { continue };
        for source in 0..plan.cells() as u32 {
            for (group, places) in synapses.groups(source) {
                let negative = learning.rules[usize::from(group.rule)].sign < 0;
                for i in places.start as usize..places.end as usize {
                    summary.add(source, targets[usize::from(synapses.slots[i])], negative, strengths[i]);
                }
            }
        }
    }
    summary
}
