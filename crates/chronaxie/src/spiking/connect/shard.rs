//! A shard: some cells of every population, with the synapses onto them.
//!
//! Every population is cut alike, so that shards have equal work whatever the populations do. An input is a *slot*: one
//! cell's port. A shard has at most 65,536, so that a synapse is four bytes: slot and weight, 16 bits each.

use super::changing::Changing;
use super::drawn::{self, Redraw};
use super::rows::Rows;
use super::subset::{Order, Subset};
use crate::spiking::plan::Plan;
use crate::{Error, Result, pool};
use std::sync::{Arc, Mutex};

/// The most slots of a shard.
pub const MAX_SLOTS: usize = 65_536;

/// The cells `low .. high` of a population, or those at these places of an order of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The first.
    pub low: u32,
    /// The one after the last.
    pub high: u32,
    /// The slot of the first cell's first port; a port's slots lie together, `count` apart.
    pub slot: u32,
    /// The order, where it is not that of the numbers; then cells here have rising numbers all the same.
    pub order: Option<Arc<Order>>,
}

impl Part {
    /// Its cells.
    #[inline(always)]
    pub fn cells(&self) -> Subset<'_> {
        Subset { low: self.low, high: self.high, order: self.order.as_deref() }
    }
    /// How many cells it has.
    pub fn count(&self) -> u32 {
        self.high - self.low
    }
    /// The slots of a port.
    pub fn slots(&self, port: usize) -> std::ops::Range<usize> {
        let start = (self.slot + port as u32 * self.count()) as usize;
        start..start + self.count() as usize
    }
}

/// Some cells of every population, and the synapses onto them.
#[derive(Debug)]
pub struct Shard {
    /// One a population.
    pub parts: Vec<Part>,
    /// How many slots there are.
    pub slots: usize,
    /// What the cells of every population send here by synapses that do not change.
    pub rows: Rows,
    /// What they send by synapses that do.
    pub changing: Option<Changing>,
    /// How many synapses are drawn again at each spike.
    pub drawn: u64,
}

/// How many shards `threads` threads share: a multiple of them, or as many as the slots ask for.
pub fn shards_for(plan: &Plan, threads: usize) -> usize {
    let sized = plan.network.populations.iter().zip(&plan.models);
    shards_of(plan, sized.map(|(p, m)| u64::from(p.size) * m.ports().len() as u64).sum(), threads)
}

/// Likewise for a part of the network that has so many slots.
pub fn shards_of(plan: &Plan, slots: u64, threads: usize) -> usize {
    // Each population's part may be one cell more than its share.
    let spare = plan.models.iter().map(|m| m.ports().len()).sum::<usize>();
    let room = (MAX_SLOTS - spare.min(MAX_SLOTS / 2)) as u64;
    let threads = threads.max(1);
    threads * (slots.div_ceil(room).max(1) as usize).div_ceil(threads)
}

/// The cells of shard `index` of `count`.
pub fn parts(plan: &Plan, index: usize, count: usize) -> (Vec<Part>, usize) {
    let mut slot = 0;
    let parts = plan.network.populations.iter().zip(&plan.models).map(|(p, m)| {
        let cut = |i: usize| (u64::from(p.size) * i as u64 / count as u64) as u32;
        let part = Part { low: cut(index), high: cut(index + 1), slot, order: None };
        slot += part.count() * m.ports().len() as u32;
        part
    });
    let parts = parts.collect();
    (parts, slot as usize)
}

/// Builds all shards, one a task of the pool, without the synapses that `redraw` draws again; `built(n)` is told when n are done.
///
/// # Errors
/// `Config`, where the inputs of a cell can add up beyond 32 bits; `Interrupted`.
pub fn build(plan: &Plan, count: usize, redraw: Redraw, built: &(dyn Fn(usize) + Sync)) -> Result<Vec<Shard>> {
    build_cut(plan, count, &|index| parts(plan, index, count), (redraw, true), built)
}

/// Likewise, where `cut` says which cells shard i has, and how many slots; `weighs` whether what is drawn again is counted, and added to
/// the inputs of cells, which takes as long as to store it.
///
/// # Errors
/// As [`build`].
pub fn build_cut(
    plan: &Plan,
    count: usize,
    cut: &(dyn Fn(usize) -> (Vec<Part>, usize) + Sync),
    (redraw, weighs): (Redraw, bool),
    built: &(dyn Fn(usize) + Sync),
) -> Result<Vec<Shard>> {
    let done = Mutex::new((0, Vec::new()));
    pool::for_each(count, |index| {
        let (parts, slots) = cut(index);
        let shard = if slots > MAX_SLOTS {
            Err(Error::config(format!("network: {} populations are too many for a shard", parts.len())))
        } else {
            let mut load = vec![0u32; slots];
            let changing = plan.learning.as_ref().map(|l| Changing::build(plan, l, &parts, &mut load));
            let drawn = if weighs { drawn::weigh(plan, &parts, redraw, &mut load) } else { 0 };
            Rows::build(plan, &parts, redraw, load).map(|rows| Shard { parts, slots, rows, changing, drawn })
        };
        let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        done.0 += 1;
        built(done.0);
        done.1.push((index, shard));
    });
    let mut shards = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).1;
    shards.sort_by_key(|(index, _)| *index);
    shards.into_iter().map(|(_, shard)| shard).collect()
}
