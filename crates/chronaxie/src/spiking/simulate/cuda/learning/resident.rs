//! Synapses that change in the resident kernel: how their rows lie, and what is asked of them between launches.
//!
//! A row lies in each shard with the last entry of its cell, and a synapse with how many of its target's entries were applied
//! to it (rows.cuh), so that blocks tell each other nothing but spikes, of one card or of several. The order of a row's synapses is
//! whatever threads made of it; a state has them sorted, those of all cards together.

use super::super::Config;
use super::on_card::{OnCard, What};
use super::snapshots::{self, OfCells, Snapshots, Source};
use crate::cuda::DeviceBuffer;
use crate::spiking::connect::list::Known;
use crate::spiking::device::Memory;
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Learning, NEVER};
use crate::spiking::simulate::learned::{self, Behind, Learned, Summary, Weights};
use crate::spiking::simulate::parts::Keys;
use crate::spiking::simulate::{Snapshot, Spike, State, Stored};
use crate::{Error, Result, pool};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// What the kernel has room for in shared memory beside what is counted here, as `kMostRules` and `kMostTraces`.
const MOST_RULES: usize = 16;
const MOST_TRACES: usize = 4;
/// Rows that are listed, as `kListed`, and what the rows of 32 warps are known by.
const LISTED: usize = 256 + 32 * 2 * MOST_HEAD;
/// Bits of a synapse's rule and of how many entries were applied to it.
const BITS: u32 = 16;
/// The most words of eight bytes that a row is known by.
const MOST_HEAD: usize = 8;
/// The fewest entries of a cell: what is less often full is less often swept.
const LEAST_DEPTH: usize = 256;
/// Traces in shared memory: a spike or two lie between a cell's last and one that has come to a synapse.
const SHALLOW: usize = 4;
/// Synapses that are listed at a time.
const LIST: u64 = 1 << 24;

/// How rows of synapses that change lie on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learns {
    /// Words of eight bytes that a row begins with.
    pub head: usize,
    /// Bits of a synapse's rule.
    pub rule_bits: u32,
    /// Numbers of an entry.
    pub width: usize,
    /// Traces of an entry.
    pub traces: usize,
    /// Entries of a cell in global memory.
    pub depth: usize,
    /// Steps of them in shared memory.
    pub deep: usize,
    /// Traces of them in shared memory.
    pub shallow: usize,
    /// Numbers of the traces' tables, where they lie in shared memory; or 0.
    pub tables: usize,
}

impl Learns {
    /// For a ring of so many steps, slots and cells of the largest shard, and spikes that are heard of so many steps late, with `room`
    /// bytes of shared memory; `None` where it does not fit.
    pub(in super::super) fn choose(plan: &Plan, [ring, pitch, cells, late]: [usize; 4], room: usize) -> Option<Self> {
        let learning = plan.learning.as_ref()?;
        let rule_bits = usize::BITS - learning.rules.len().leading_zeros();
        // What the longest delay holds at a spike a step, those since the others were heard of, one before them, two to come, and one to
        // spare.
        let needed = (plan.max_delay as usize + late + 5).next_power_of_two();
        let most = 1usize << BITS.checked_sub(rule_bits)?;
        let (width, traces) = (learning.width(), learning.traces.len());
        let others = learning.rules.iter().any(|r| r.is_wide() || r.stdp.as_ref().is_some_and(|pair| pair.axonal));
        let head = width.div_ceil(2);
        if others || learning.rules.len() > MOST_RULES || traces > MOST_TRACES || head > MOST_HEAD || needed > most {
            return None;
        }
        let depth = needed.max(LEAST_DEPTH.min(most));
        let words: usize = learning.traces.iter().map(|t| t.decay.len()).sum();
        let choices = [(words, 16), (words, 8), (0, 16), (0, 8), (0, 4)];
        let all = choices.map(|(tables, deep)| Self {
            head,
            rule_bits,
            width,
            traces,
            depth,
            deep: deep.min(depth),
            shallow: SHALLOW.min(depth),
            tables,
        });
        all.into_iter().find(|l| 4 * ring * pitch + l.shared_bytes(cells, pitch) <= room)
    }

    /// Bytes of shared memory behind the ring.
    pub(in super::super) fn shared_bytes(&self, cells: usize, pitch: usize) -> usize {
        4 * (LISTED + cells * (1 + self.deep + self.shallow * self.traces) + self.tables)
            + (2 * pitch).next_multiple_of(4)
    }
}

/// The synapses of a resident network that change.
pub(in super::super) struct Resident<'a> {
    plan: &'a Plan,
    learning: &'a Learning,
    config: Config,
    layout: Layout,
    learns: Learns,
    /// The row of each cell of the network.
    row_of: Vec<u32>,
    cards: Vec<OnCard>,
    snapshots: Option<Snapshots>,
    /// The step as of which all synapses were last brought up to date.
    settled: u64,
}

/// Of some cells, the synapses on a card: what each is known by beside its source, and its strength.
type Listed = (Vec<u64>, Vec<u32>);

impl<'a> Resident<'a> {
    /// Goes with the synapses of each card's `Net`, whose rows begin to know nothing; `None` where none of them changes.
    pub(in super::super) fn new<'m>(
        plan: &'a Plan,
        config: Config,
        layout: &Layout,
        cards: impl Iterator<Item = (&'m Memory, &'m [u8])>,
        [row_of, cell_of]: [&[u32]; 2],
    ) -> Result<Option<Self>> {
        let Some((learning, learns)) = plan.learning.as_ref().zip(config.learns) else { return Ok(None) };
        let one = |(number, (memory, net)): (usize, (&Memory, &[u8]))| {
            OnCard::new(plan, learning, &config, (layout, number), memory, net, [row_of, cell_of])
        };
        let cards = cards.enumerate().map(one).collect::<Result<_>>()?;
        let (layout, row_of) = (layout.clone(), row_of.to_vec());
        Ok(Some(Self { plan, learning, config, layout, learns, row_of, cards, snapshots: None, settled: 0 }))
    }

    /// `Learn` of rows.cuh of each card.
    pub(in super::super) fn learns(&self) -> impl Iterator<Item = &[u8]> {
        self.cards.iter().map(|card| card.learn.as_slice())
    }

    /// Brings all synapses up to date and makes room for entries.
    pub(in super::super) fn settle(&mut self, now: u64) -> Result<()> {
        self.settled = now;
        let oldest = now.saturating_sub(self.plan.max_delay.into());
        let cells = self.plan.cells() as usize;
        self.cards.iter().try_for_each(|card| card.visit(What::Settle, 0..cells, [now, oldest], [0; 4]))
    }

    /// Of each card, where each cell's synapses begin in a list of all that change, and their number.
    fn begins(&self) -> Result<Vec<Vec<u64>>> {
        self.cards.iter().map(|card| card.begins(self.plan.cells() as usize)).collect()
    }

    /// Calls `with(cells, what each card has of them)` for all synapses that change, some cells at a time.
    fn list(
        &self,
        now: u64,
        begins: &[Vec<u64>],
        mut with: impl FnMut(Range<usize>, Vec<Listed>) -> Result<()>,
    ) -> Result<()> {
        let cells = self.plan.cells() as usize;
        let all: Vec<u64> = (0..=cells).map(|cell| begins.iter().map(|b| b[cell]).sum()).collect();
        let begun: Vec<DeviceBuffer> =
            self.cards.iter().zip(begins).map(|(card, b)| card.memory.upload(b)).collect::<Result<_>>()?;
        let mut from = 0;
        while from < cells {
            let to = all.partition_point(|b| *b <= all[from] + LIST).saturating_sub(1).clamp(from + 1, cells);
            let mut listed = Vec::with_capacity(self.cards.len());
            for ((card, begin), begun) in self.cards.iter().zip(begins).zip(&begun) {
                let (memory, count) = (&card.memory, (begin[to] - begin[from]) as usize);
                let (keys, strengths) = (memory.room(8 * count)?, memory.room(4 * count)?);
                let at = [begun.address(), keys.address(), strengths.address(), 0];
                card.visit(What::List, from..to, [now, 0], at)?;
                listed.push((memory.download(&keys, 0, count)?, memory.download(&strengths, 0, count)?));
            }
            with(from..to, listed)?;
            from = to;
        }
        Ok(())
    }

    /// Calls `with(source, key, strength)` for all synapses that change.
    fn each(&self, now: u64, mut with: impl FnMut(u32, u64, u32)) -> Result<()> {
        let begins = self.begins()?;
        self.list(now, &begins, |cells, listed| {
            for ((keys, strengths), begin) in listed.iter().zip(&begins) {
                for source in cells.clone() {
                    let own = row(begin, &cells, source);
                    for (key, strength) in keys[own.clone()].iter().zip(&strengths[own]) {
                        with(source as u32, *key, *strength);
                    }
                }
            }
            Ok(())
        })
    }

    /// Their weights before step `now`.
    pub(in super::super) fn weights(&self, now: u64) -> Result<Vec<Weights>> {
        self.summary(now).map(|summary| summary.weights())
    }

    fn summary(&self, now: u64) -> Result<Summary<'a>> {
        let begins = self.begins()?;
        let threads = pool::num_threads();
        let all: Vec<_> = (0..threads).map(|_| Mutex::new(Summary::new(self.plan))).collect();
        self.list(now, &begins, |cells, listed| {
            for ((keys, strengths), begin) in listed.iter().zip(&begins) {
                pool::for_each(threads, |k| {
                    let mut own = all[k].lock().unwrap_or_else(PoisonError::into_inner);
                    let cut = |k: usize| cells.start + cells.len() * k / threads;
                    for source in cut(k)..cut(k + 1) {
                        let row = row(begin, &cells, source);
                        for (key, strength) in keys[row.clone()].iter().zip(&strengths[row]) {
                            let negative = self.learning.rules[(key >> 32) as usize & 511].sign < 0;
                            own.add(source as u32, *key as u32, negative, *strength);
                        }
                    }
                });
            }
            Ok(())
        })?;
        let mut summary = Summary::new(self.plan);
        for own in all {
            summary.merge(&own.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(summary)
    }

    /// The synapses of a projection as they are before step `now`.
    pub(in super::super) fn known(&self, projection: usize, now: u64) -> Result<Vec<Known>> {
        let (p, rule) = (&self.plan.network.projections[projection], self.plan.rule(projection).map(u64::from));
        let range = |population: usize| {
            let first = self.plan.first[population] as u32;
            first..first + self.plan.network.populations[population].size
        };
        let (sources, targets) = (range(p.source), range(p.target));
        let mut all = Vec::new();
        self.each(now, |source, key, strength| {
            let (target, kind, delay) = (key as u32, key >> 32 & 511, (key >> 41) as u16);
            if rule == Some(kind) && sources.contains(&source) && targets.contains(&target) {
                all.push(((source - sources.start, delay, target - targets.start), strength));
            }
        })?;
        Ok(all)
    }

    /// What those here are known by, in the order of a state.
    pub(in super::super) fn keys(&self, now: u64) -> Result<Keys> {
        let mut all = Keys::default();
        let begins = self.begins()?;
        self.list(now, &begins, |cells, listed| {
            for source in cells.clone() {
                let from = all.keys.len();
                for ((keys, _), begin) in listed.iter().zip(&begins) {
                    all.keys.extend_from_slice(&keys[row(begin, &cells, source)]);
                }
                all.keys[from..].sort_unstable();
                all.rows.push((all.keys.len() - from) as u32);
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// What is counted of the weights here, as [`learned::joined`] takes it.
    pub(in super::super) fn counted(&self, now: u64) -> Result<Vec<u64>> {
        self.summary(now).map(|summary| summary.numbers())
    }

    /// Their state before step `now`; `rings` are the cards' sums, `recent` the spikes under way as rows of the network, `old` each
    /// cell's last entry before these, where that is known elsewhere.
    pub(in super::super) fn learned(
        &self,
        rings: &[&DeviceBuffer],
        recent: &[u64],
        now: u64,
        old: Option<&[Vec<u32>]>,
    ) -> Result<Learned> {
        let (plan, config) = (self.plan, &self.config);
        let begins = self.begins()?;
        let total: u64 = begins.iter().filter_map(|b| b.last()).sum();
        let mut all = Vec::with_capacity(total as usize);
        self.list(now, &begins, |cells, listed| {
            let mut sorted: Vec<(u64, u32)> = Vec::new();
            for source in cells.clone() {
                sorted.clear();
                for ((keys, strengths), begin) in listed.iter().zip(&begins) {
                    let own = row(begin, &cells, source);
                    sorted.extend(keys[own.clone()].iter().copied().zip(strengths[own].iter().copied()));
                }
                sorted.sort_unstable();
                all.extend(sorted.iter().map(|(_, strength)| *strength));
            }
            Ok(())
        })?;
        let entries = match old {
            Some(old) => old.to_vec(),
            None => self.entries(now)?,
        };
        // What is under way, without what follows from spikes.
        let mut under_way = Vec::new();
        for (number, (card, ring)) in self.cards.iter().zip(rings).enumerate() {
            let numbers = config.local() * config.ring * config.pitch;
            let ring = card.memory.upload(&card.memory.download::<u32>(ring, 0, numbers)?)?;
            card.early(&ring, recent, now, -1)?;
            let ring = card.memory.download::<u32>(&ring, 0, numbers)?;
            let slots = slots(plan, config, (&self.layout, number));
            let shape = [config.local(), config.ring, config.pitch];
            snapshots::under_way(&ring, &slots, shape, (now, plan.max_delay), &mut under_way);
        }
        under_way.sort_unstable();
        Ok(Learned { strengths: all, entries, under_way, ..Learned::default() })
    }

    /// Each cell's last entry before the recent spikes of step `now`.
    fn entries(&self, now: u64) -> Result<Vec<Vec<u32>>> {
        let (config, width, depth) = (&self.config, self.learns.width, self.learns.depth);
        let past: Vec<(Vec<u32>, Vec<u32>)> = self.cards.iter().map(OnCard::past).collect::<Result<_>>()?;
        let own = config.local() * config.cells;
        let last = |cell: usize, step: i64| {
            let (card, row) = (self.row_of[cell] as usize / own, self.row_of[cell] as usize % own);
            let (history, counts) = &past[card];
            let count = counts[row] as usize;
            let entry = |i: usize| &history[(row * depth + i % depth) * width..][..width];
            (count.saturating_sub(depth)..count).rev().map(entry).find(|e| i64::from(e[0]) < step)
        };
        Ok(learned::entries(self.plan, self.learning, now, last))
    }

    /// Makes room for `most` snapshots at a time, where each card's cells are these, and their states begin here; how many there is room
    /// for.
    pub(in super::super) fn prepare(
        &mut self,
        cells: &[OfCells<'_>],
        first_state: &[usize],
        most: usize,
    ) -> Result<usize> {
        self.look(first_state)?;
        self.snapshots.as_mut().map_or(Ok(0), |s| s.prepare(&self.cards, cells, most))
    }

    /// Looks at where strengths lie, once.
    fn look(&mut self, first_state: &[usize]) -> Result<()> {
        if self.snapshots.is_none() {
            let Self { plan, config, layout, cards, row_of, .. } = self;
            self.snapshots = Some(Snapshots::new(plan, config, layout, cards, row_of, first_state)?);
        }
        Ok(())
    }

    /// A snapshot, for which room was made.
    pub(in super::super) fn snapshot(
        &self,
        cells: &[OfCells<'_>],
        recent: (&[Spike], &[u64]),
        now: u64,
    ) -> Option<Result<Box<dyn Snapshot>>> {
        self.snapshots.as_ref().map(|s| s.take(&self.cards, cells, recent, [now, self.settled]))
    }

    /// Goes to a state whose strengths are in the order of snapshots, but for the rings, and says so; nothing has changed where they are not.
    pub(in super::super) fn resume(
        &mut self,
        state: &State,
        stored: Option<&Stored>,
        first_state: &[usize],
    ) -> Result<bool> {
        let Some((learned, behind)) = state.learned.as_ref().and_then(|l| Some((l, l.behind.as_deref()?))) else {
            return Ok(false);
        };
        self.look(first_state)?;
        let Some(snapshots) = self.snapshots.as_ref().filter(|s| s.fits(behind)) else { return Ok(false) };
        learned::check_beside(self.plan, self.learning, learned, state.step)?;
        self.check_past(state, behind)?;
        // Room for what is to come.
        let mut counts: Vec<usize> = behind.past.iter().map(|past| past.len().max(1)).collect();
        state.recent.iter().for_each(|spike| counts[spike.cell as usize] += 1);
        if counts.iter().any(|count| count + 3 > self.learns.depth) {
            return Ok(false);
        }
        let source = stored.map_or(Source::Here(&learned.strengths), Source::File);
        let brought = snapshots.bring(&self.cards, &source)?;
        self.restore_entries(state, learned)?;
        let settled = behind.settled.into();
        self.snapshots.as_ref().map_or(Ok(()), |s| s.put(&self.cards, &brought, settled))?;
        self.settled = settled;
        Ok(true)
    }

    /// Refuses what is no past of the network's cells.
    fn check_past(&self, state: &State, behind: &Behind) -> Result<()> {
        let oldest = state.step.saturating_sub(self.plan.max_delay.into());
        let rising = |past: &Vec<u32>| {
            past.windows(2).all(|w| w[0] < w[1]) && past.last().is_none_or(|x| u64::from(*x) < oldest)
        };
        let fits = behind.past.len() as u64 == self.plan.cells()
            && behind.past.iter().all(rising)
            && u64::from(behind.settled) <= state.step
            && state.recent.iter().all(|spike| u64::from(spike.cell) < self.plan.cells());
        if fits { Ok(()) } else { Err(Error::checkpoint("the spikes of the state are not those of this network")) }
    }

    /// Goes to a state, but for the rings; the others as [`learned`](Self::learned) has them.
    pub(in super::super) fn restore(&mut self, state: &State) -> Result<()> {
        self.settled = state.step;
        let Some(learned) = &state.learned else { return Ok(()) };
        let (plan, learning) = (self.plan, self.learning);
        let begins = self.begins()?;
        let total: u64 = begins.iter().filter_map(|b| b.last()).sum();
        learned::check(plan, learning, learned, state.step, total as usize)?;
        self.restore_entries(state, learned)?;
        let mut rest = &learned.strengths[..];
        let mut places: Vec<(u64, usize, usize)> = Vec::new();
        let mut pieces = Vec::new();
        self.list(state.step, &begins, |cells, mut listed| {
            for source in cells.clone() {
                places.clear();
                for (card, ((keys, _), begin)) in listed.iter().zip(&begins).enumerate() {
                    let own = row(begin, &cells, source);
                    places.extend(keys[own.clone()].iter().zip(own).map(|(key, at)| (*key, card, at)));
                }
                places.sort_unstable();
                let (here, after) = rest.split_at(places.len());
                rest = after;
                for ((key, card, at), strength) in places.iter().zip(here) {
                    let rule = &learning.rules[(key >> 32) as usize & 511];
                    if !(rule.low..=rule.high).contains(strength) {
                        return Err(Error::checkpoint("the state has weights beyond the bounds of this network"));
                    }
                    listed[*card].1[*at] = *strength;
                }
            }
            for (card, (_, strengths)) in listed.iter().enumerate() {
                pieces.push((card, cells.clone(), self.cards[card].memory.upload(strengths)?));
            }
            Ok(())
        })?;
        for (number, (card, begin)) in self.cards.iter().zip(&begins).enumerate() {
            let begun = card.memory.upload(begin)?;
            for (_, cells, strengths) in pieces.iter().filter(|(of, ..)| *of == number) {
                let at = [begun.address(), 0, strengths.address(), 0];
                card.visit(What::Set, cells.clone(), [state.step, 0], at)?;
            }
        }
        Ok(())
    }

    /// Entries come first: how many of them have come to a synapse is kept with its strength.
    fn restore_entries(&mut self, state: &State, learned: &Learned) -> Result<()> {
        let (width, depth) = (self.learns.width, self.learns.depth);
        let (count, own) = (self.config.shards * self.config.cells, self.config.local() * self.config.cells);
        let mut past = vec![(vec![0u32; own * depth * width], vec![0u32; own]); self.cards.len()];
        let mut heads: Vec<u32> = (0..count * width).map(|i| if i % width == 0 { NEVER } else { 0 }).collect();
        for (cell, entry) in learned.entries.iter().enumerate().filter(|(_, e)| e[0] != NEVER) {
            let row = self.row_of[cell] as usize;
            heads[row * width..][..width].copy_from_slice(entry);
            // Of a card elsewhere there are rows alone.
            let Some((history, counts)) = past.get_mut(row / own) else { continue };
            // Of what was before the last one the steps alone are looked at.
            let past = learned.behind.as_ref().map_or(&[][..], |b| &b.past[cell]);
            let all = past.iter().rev().skip(usize::from(past.last() == Some(&entry[0]))).rev();
            for (i, step) in all.enumerate() {
                history[(row % own * depth + i) * width] = *step;
                counts[row % own] += 1;
            }
            let last = row % own * depth + counts[row % own] as usize;
            history[last * width..][..width].copy_from_slice(entry);
            counts[row % own] += 1;
        }
        let mut out = vec![0; width];
        for Spike { step, cell } in &state.recent {
            let row = self.row_of[*cell as usize] as usize;
            let head = &mut heads[row * width..][..width];
            let before = (head[0] != NEVER).then_some(&*head);
            self.learning.entry(before, *step as u32, &mut out);
            head.copy_from_slice(&out);
            let Some((history, counts)) = past.get_mut(row / own) else { continue };
            let (row, count) = (row % own, &mut counts[row % own]);
            history[(row * depth + *count as usize % depth) * width..][..width].copy_from_slice(&out);
            *count += 1;
        }
        for (card, (history, counts)) in self.cards.iter_mut().zip(&past) {
            card.restore(history, counts, &heads)?;
        }
        Ok(())
    }

    /// The sums of card `number` at a state, of whose spikes `recent` are under way.
    pub(in super::super) fn restore_ring(
        &self,
        number: usize,
        ring: &mut DeviceBuffer,
        state: &State,
        recent: &[u64],
    ) -> Result<()> {
        let Some(learned) = &state.learned else { return Ok(()) };
        let (config, card) = (&self.config, &self.cards[number]);
        let all = slots(self.plan, config, (&self.layout, number));
        let mut slots: Vec<(u64, usize)> = all.into_iter().enumerate().map(|(i, slot)| (slot, i)).collect();
        slots.sort_unstable();
        let mut sums = vec![0u32; config.local() * config.ring * config.pitch];
        for (ahead, slot, sum) in &learned.under_way {
            if let Ok(i) = slots.binary_search_by_key(slot, |(slot, _)| *slot) {
                let (k, at) = (slots[i].1 / config.pitch, slots[i].1 % config.pitch);
                let step = (state.step + u64::from(*ahead)) as usize & (config.ring - 1);
                let sum_here = &mut sums[(k * config.ring + step) * config.pitch + at];
                *sum_here = sum_here.wrapping_add(*sum as u32);
            }
        }
        card.memory.write(ring, &sums)?;
        card.early(ring, recent, state.step, 1)
    }
}

/// Where the synapses of `source` lie in a list of those of `cells`.
fn row(begin: &[u64], cells: &Range<usize>, source: usize) -> Range<usize> {
    (begin[source] - begin[cells.start]) as usize..(begin[source + 1] - begin[cells.start]) as usize
}

/// Of each slot of a card's shards (`[local, pitch]`) the network's slot; `u64::MAX` where there is none.
pub(super) fn slots(plan: &Plan, config: &Config, (layout, card): (&Layout, usize)) -> Vec<u64> {
    let mut slots = vec![u64::MAX; config.local() * config.pitch];
    for k in 0..config.local() {
        let parts = config.shard(plan, layout, card * config.local() + k).0;
        for ((p, part), first) in parts.iter().enumerate().zip(plan.first_slots()) {
            let size = u64::from(plan.network.populations[p].size);
            for port in 0..plan.models[p].ports().len() {
                for (slot, cell) in part.slots(port).zip(part.cells().iter()) {
                    slots[k * config.pitch + slot] = first + port as u64 * size + u64::from(cell);
                }
            }
        }
    }
    slots
}
