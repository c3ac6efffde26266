//! The state of synapses that change, the same for every engine, and what is said of their weights.

use super::State;
use super::lane::Lane;
use crate::spiking::connect::Shard;
use crate::spiking::connect::changing::Group;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Learning, NEVER, ONE};
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
    /// Of each cell, the last entry before the recent spikes; `NEVER` where there is none.
    pub entries: Vec<Vec<u32>>,
    /// What synapses with their delay behind them have passed on and has not arrived: steps from this one on, slot of the
    /// network, units; sorted, no slot twice a step.
    pub under_way: Vec<(u32, u64, i32)>,
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
                cells[slot] = plan.first[p] as u32 + part.low + i as u32;
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
                slots[slot] = first + port as u64 * size + u64::from(part.low) + i as u64;
            }
        }
    }
    slots
}

/// Strengths in the order of a state, from those in the order of each shard's rows.
pub(super) fn in_order(plan: &Plan, shards: &[&Shard], strengths: &[Vec<u32>]) -> Vec<u32> {
    let cells: Vec<Vec<u32>> = shards.iter().map(|shard| cells_of(plan, shard)).collect();
    let total = plan.cells() as u32;
    // Rows are sorted by themselves, so any thread may take any of them.
    let parts = pool::num_threads() * 8;
    let sorted = Mutex::new(Vec::with_capacity(parts));
    pool::for_each(parts, |part| {
        let cut = |i: usize| (u64::from(total) * i as u64 / parts as u64) as u32;
        let (mut own, mut row) = (Vec::new(), Vec::<(u64, u32)>::new());
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
    let count = |shard: &&Shard| shard.changing.as_ref().map_or(0, |c| c.slots.len());
    let mut strengths: Vec<Vec<u32>> = shards.iter().map(|shard| vec![0; count(shard)]).collect();
    let cells: Vec<Vec<u32>> = shards.iter().map(|shard| cells_of(plan, shard)).collect();
    let mut row: Vec<(u64, usize, usize)> = Vec::new();
    let mut all = learned.strengths.iter();
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
        for ((key, k, i), strength) in row.iter().zip(&mut all) {
            let rule = &learning.rules[(key >> 32) as usize & 511];
            if !(rule.low..=rule.high).contains(strength) {
                return Err(Error::checkpoint("the state has weights beyond the bounds of this network"));
            }
            strengths[*k][*i] = *strength;
        }
    }
    Ok(strengths)
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
    Learned { strengths: in_order(plan, &shards, &strengths(lanes, now)), entries, under_way }
}

fn strengths(lanes: &[Lane<'_>], now: u64) -> Vec<Vec<u32>> {
    let own = |l: &Lane<'_>| match (&l.learner, &l.shard.changing) {
        (Some(learner), Some(synapses)) => learner.strengths(now, synapses),
        _ => Vec::new(),
    };
    lanes.iter().map(own).collect()
}

/// Refuses what is not the state of synapses of this plan.
pub(super) fn check(plan: &Plan, learning: &Learning, learned: &Learned, step: u64, shards: &[&Shard]) -> Result<()> {
    let synapses: usize = shards.iter().map(|s| s.changing.as_ref().map_or(0, |c| c.slots.len())).sum();
    let oldest = step.saturating_sub(plan.max_delay.into());
    let shares = 1 + learning.traces.len();
    let entry = |e: &Vec<u32>| {
        e.len() == learning.width()
            && (e[0] == NEVER || u64::from(e[0]) < oldest)
            && e[shares..].iter().all(|x| *x <= ONE)
    };
    let slots = plan.first_slots().last().copied().unwrap_or(0);
    let fits = learned.strengths.len() == synapses
        && learned.entries.len() as u64 == plan.cells()
        && learned.entries.iter().all(entry)
        && learned.under_way.iter().all(|(ahead, slot, _)| *ahead < plan.max_delay && *slot < slots)
        && step < u64::from(NEVER);
    if fits { Ok(()) } else { Err(Error::checkpoint("the synapses of the state are not those of this network")) }
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
    check(plan, learning, learned, state.step, &shards)?;
    let strengths = by_shard(plan, learning, &shards, learned)?;
    for (lane, strengths) in lanes.iter_mut().zip(strengths) {
        if let Some(synapses) = &mut lane.shard.changing {
            synapses.strengths = strengths;
        }
        let slots = slots_of(plan, &lane.shard);
        let mut here: Vec<(u64, u16)> = slots.iter().enumerate().map(|(i, slot)| (*slot, i as u16)).collect();
        here.sort_unstable();
        let own = |(ahead, slot, sum): &(u32, u64, i32)| {
            let at = here.binary_search_by_key(slot, |(slot, _)| *slot).ok()?;
            Some((state.step + u64::from(*ahead), here[at].1, *sum))
        };
        let early = learned.under_way.iter().filter_map(own).collect();
        lane.restore(state.step, &learned.entries, &state.recent, early);
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

/// The weights that these strengths are, in the order of each shard's rows.
pub(super) fn summarise(plan: &Plan, learning: &Learning, shards: &[&Shard], strengths: &[Vec<u32>]) -> Vec<Weights> {
    let n = &plan.network;
    let populations = n.populations.len();
    let of = |cell: u32| plan.first.partition_point(|first| *first <= u64::from(cell)) - 1;
    let of: Vec<u32> = (0..plan.cells() as u32).map(|cell| of(cell) as u32).collect();
    let empty = Counts { sum: 0, squares: 0, count: 0, units: Vec::new() };
    let mut counts = vec![empty; populations * populations * 2];
    for (shard, strengths) in shards.iter().zip(strengths) {
        let targets: Vec<u32> = cells_of(plan, shard).into_iter().map(|cell| of[cell as usize]).collect();
        let Some(synapses) = &shard.changing else { continue };
        for (cell, source) in of.iter().enumerate() {
            for (group, places) in synapses.groups(cell as u32) {
                let negative = usize::from(learning.rules[usize::from(group.rule)].sign < 0);
                for i in places.start as usize..places.end as usize {
                    let target = targets[usize::from(synapses.slots[i])] as usize;
                    counts[2 * (*source as usize * populations + target) + negative].add(strengths[i]);
                }
            }
        }
    }
    let named = counts.iter().enumerate().filter(|(_, c)| c.count > 0).map(|(i, c)| {
        let (source, target, negative) = (i / 2 / populations, i / 2 % populations, i % 2 == 1);
        let unit = plan.units[target][plan.port(target, negative)];
        let name = |p: usize| n.populations[p].name.as_str();
        c.weights(format!("{} -> {}", name(source), name(target)), if negative { -unit } else { unit })
    });
    named.collect()
}
