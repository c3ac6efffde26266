//! Synapses that change in the resident kernel: how their rows lie, and what is asked of them between launches.
//!
//! A row lies in each shard with the last entry of its cell, and a synapse with how many of its target's entries were applied
//! to it (rows.cuh), so that blocks tell each other nothing but spikes. The order of a row's synapses is whatever threads made
//! of it; a state has them sorted.

use super::super::Config;
use super::super::config::rows;
use super::super::memory::{Fields, Memory};
use super::layout::tables;
use crate::cuda::{Arg, DeviceBuffer, Kernel, LaunchConfig};
use crate::spiking::connect::list::Known;
use crate::spiking::connect::shard;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Learning, NEVER};
use crate::spiking::simulate::learned::{self, Learned, Summary, Weights};
use crate::spiking::simulate::{Spike, State};
use crate::{Error, Result};
use std::ops::Range;

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
const THREADS: u32 = 256;

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
    /// For a ring of so many steps, slots and cells of the largest shard, with `room` bytes of shared memory; `None` where it does
    /// not fit.
    pub(in super::super) fn choose(plan: &Plan, [ring, pitch, cells]: [usize; 3], room: usize) -> Option<Self> {
        let learning = plan.learning.as_ref()?;
        let rule_bits = usize::BITS - learning.rules.len().leading_zeros();
        // What the longest delay holds at a spike a step, one before it, two to come, and one to spare.
        let needed = (plan.max_delay as usize + 5).next_power_of_two();
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

/// What the kernels of rows.cu do.
#[derive(Clone, Copy)]
enum What {
    Count,
    List,
    Set,
    Settle,
}

/// The synapses of a resident network that change.
pub(in super::super) struct Resident<'a> {
    plan: &'a Plan,
    learning: &'a Learning,
    config: Config,
    learns: Learns,
    memory: Memory,
    /// `Net` of network.cuh.
    net: Vec<u8>,
    /// `Learn` of rows.cuh.
    pub learn: Vec<u8>,
    visit: Kernel,
    heads: Kernel,
    early: Kernel,
    blocks: u32,
    history: DeviceBuffer,
    counts: DeviceBuffer,
    kept: DeviceBuffer,
    /// Of each cell its row, and of each row its cell.
    row_of: DeviceBuffer,
    cell_of: DeviceBuffer,
    _held: Vec<DeviceBuffer>,
}

impl<'a> Resident<'a> {
    /// What the launches of steps.cu have where no synapse changes.
    pub(in super::super) fn none() -> Vec<u8> {
        vec![0; 8 * 8 + 4 * 10]
    }

    /// Goes with the synapses of `net`, whose rows begin to know nothing; `None` where none of them changes.
    pub(in super::super) fn new(
        plan: &'a Plan,
        config: Config,
        memory: &Memory,
        net: &[u8],
        [row_of, cell_of]: [&[u32]; 2],
    ) -> Result<Option<Self>> {
        let Some((learning, learns)) = plan.learning.as_ref().zip(config.learns) else { return Ok(None) };
        let mut held = Vec::new();
        let mut keep = |buffer: DeviceBuffer| {
            let address = buffer.address();
            held.push(buffer);
            address
        };
        let rows_all = config.shards * config.cells;
        let tables = tables(learning, memory, &mut keep)?;
        // Of each slot, its cell's number in the shard.
        let mut cells: Vec<u16> = Vec::with_capacity(config.shards * config.pitch);
        for k in 0..config.shards {
            let begin = cells.len();
            let mut local = 0;
            for (part, model) in shard::parts(plan, k, config.shards).0.iter().zip(&plan.models) {
                for _ in model.ports() {
                    cells.extend((local..local + part.count()).map(|i| i as u16));
                }
                local += part.count();
            }
            cells.resize(begin + config.pitch, 0);
        }
        let history = memory.zeros(4 * rows_all * learns.depth * learns.width)?;
        let (counts, kept) = (memory.zeros(4 * rows_all)?, memory.zeros(4 * rows_all)?);
        let mut learn = Fields::default();
        for table in tables {
            learn = learn.u64(keep(memory.upload(&table.0)?));
        }
        let learn = [&history, &counts, &kept].into_iter().fold(learn, |f, buffer| f.u64(buffer.address()));
        let learn = learn.u64(keep(memory.upload(&cells)?)).u64(keep(memory.room(4 * config.shards * rows_all)?));
        let numbers = [
            learning.rules.len(),
            learns.traces,
            learning.shorts.len(),
            learns.width,
            learns.depth,
            learns.deep,
            learns.shallow,
            learns.rule_bits as usize,
            learns.tables,
            0,
        ];
        let learn = numbers.into_iter().fold(learn, |f, x| f.u32(x as u32)).0;
        let (spec, device) = (rows(), &memory.device);
        let resident = Self {
            plan,
            learning,
            config,
            learns,
            memory: memory.clone(),
            net: net.to_vec(),
            learn,
            visit: device.kernel(&spec, "spiking_visit")?,
            heads: device.kernel(&spec, "spiking_heads")?,
            early: device.kernel(&spec, "spiking_early")?,
            blocks: device.props().sm_count * 8,
            history,
            counts,
            kept,
            row_of: memory.upload(row_of)?,
            cell_of: memory.upload(cell_of)?,
            _held: held,
        };
        resident.begin(0)?;
        Ok(Some(resident))
    }

    fn plain(&self) -> LaunchConfig {
        LaunchConfig::new((self.blocks, 1, 1), (THREADS, 1, 1))
    }

    /// Rows know these entries, one a row, or with 0 nothing.
    fn begin(&self, entries: u64) -> Result<()> {
        let args = [Arg::Bytes(&self.net), Arg::Bytes(&self.learn), Arg::U64(entries)];
        // SAFETY: the structs are those of the headers, whose sizes the launch checks; `entries` has a row's width for each.
        unsafe { self.heads.launch(self.memory.stream, &self.plain(), &args) }
    }

    /// Visits the rows of `cells`; `begin`, `keys` and `strengths` as `Ask` has them.
    fn visit(&self, what: What, cells: Range<usize>, [now, oldest]: [u64; 2], at: [u64; 4]) -> Result<()> {
        let ask = Fields::default().u64(self.row_of.address()).u64(self.cell_of.address());
        let ask = at.into_iter().fold(ask, Fields::u64);
        let ask = ask.u32(what as u32).u32(cells.start as u32).u32(cells.end as u32).u32(now as u32).u32(oldest as u32);
        let ask = ask.padded();
        let args = [Arg::Bytes(&self.net), Arg::Bytes(&self.learn), Arg::Bytes(&ask.0)];
        // SAFETY: the structs are those of the headers, whose sizes the launch checks; what they point to has a number for
        // each synapse of the cells, on this stream.
        unsafe { self.visit.launch(self.memory.stream, &self.plain(), &args) }
    }

    /// Brings all synapses up to date and makes room for entries.
    pub(in super::super) fn settle(&self, now: u64) -> Result<()> {
        let oldest = now.saturating_sub(self.plan.max_delay.into());
        self.visit(What::Settle, 0..self.plan.cells() as usize, [now, oldest], [0; 4])
    }

    /// Where each cell's synapses begin in a list of all that change, and their number.
    fn begins(&self) -> Result<Vec<u64>> {
        let cells = self.plan.cells() as usize;
        let counts = self.memory.zeros(4 * cells)?;
        self.visit(What::Count, 0..cells, [0; 2], [0, 0, 0, counts.address()])?;
        let mut begin = vec![0u64];
        let mut sum = 0;
        begin.extend(self.memory.download::<u32>(&counts, 0, cells)?.into_iter().map(|n| {
            sum += u64::from(n);
            sum
        }));
        Ok(begin)
    }

    /// Calls `with(cells, keys, strengths)` for all synapses that change, some cells at a time.
    fn list(
        &self,
        now: u64,
        begin: &[u64],
        mut with: impl FnMut(Range<usize>, Vec<u64>, Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        let memory = &self.memory;
        let (cells, on_device) = (self.plan.cells() as usize, memory.upload(begin)?);
        let mut from = 0;
        while from < cells {
            let to = begin.partition_point(|b| *b <= begin[from] + LIST).saturating_sub(1).clamp(from + 1, cells);
            let count = (begin[to] - begin[from]) as usize;
            let (keys, strengths) = (memory.room(8 * count)?, memory.room(4 * count)?);
            let at = [on_device.address(), keys.address(), strengths.address(), 0];
            self.visit(What::List, from..to, [now, 0], at)?;
            with(from..to, memory.download(&keys, 0, count)?, memory.download(&strengths, 0, count)?)?;
            from = to;
        }
        Ok(())
    }

    /// Their weights before step `now`.
    pub(in super::super) fn weights(&self, now: u64) -> Result<Vec<Weights>> {
        let begin = self.begins()?;
        let mut summary = Summary::new(self.plan);
        self.list(now, &begin, |cells, keys, strengths| {
            for source in cells.clone() {
                let own =
                    (begin[source] - begin[cells.start]) as usize..(begin[source + 1] - begin[cells.start]) as usize;
                for (key, strength) in keys[own.clone()].iter().zip(&strengths[own]) {
                    let negative = self.learning.rules[(key >> 32) as usize & 511].sign < 0;
                    summary.add(source as u32, *key as u32, negative, *strength);
                }
            }
            Ok(())
        })?;
        Ok(summary.weights())
    }

    /// The synapses of a projection as they are before step `now`.
    pub(in super::super) fn known(&self, projection: usize, now: u64) -> Result<Vec<Known>> {
        let (p, rule) = (&self.plan.network.projections[projection], self.plan.rule(projection).map(u64::from));
        let range = |population: usize| {
            let first = self.plan.first[population] as u32;
            first..first + self.plan.network.populations[population].size
        };
        let (sources, targets) = (range(p.source), range(p.target));
        let (begin, mut all) = (self.begins()?, Vec::new());
        self.list(now, &begin, |cells, keys, strengths| {
            for source in cells.clone().filter(|c| sources.contains(&(*c as u32))) {
                let own =
                    (begin[source] - begin[cells.start]) as usize..(begin[source + 1] - begin[cells.start]) as usize;
                for (key, strength) in keys[own.clone()].iter().zip(&strengths[own]) {
                    let (target, kind, delay) = (*key as u32, key >> 32 & 511, (key >> 41) as u16);
                    if rule == Some(kind) && targets.contains(&target) {
                        all.push(((source as u32 - sources.start, delay, target - targets.start), *strength));
                    }
                }
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Their state before step `now`; `recent` are the spikes under way as rows of the network, `rows` the row of each cell.
    pub(in super::super) fn learned(
        &self,
        ring: &DeviceBuffer,
        recent: &[u64],
        rows: &[u32],
        now: u64,
    ) -> Result<Learned> {
        let (plan, config, memory) = (self.plan, &self.config, &self.memory);
        let begin = self.begins()?;
        let mut all = Vec::with_capacity(begin.last().copied().unwrap_or(0) as usize);
        self.list(now, &begin, |cells, keys, strengths| {
            let mut row: Vec<(u64, u32)> = Vec::new();
            for source in cells.clone() {
                let own =
                    (begin[source] - begin[cells.start]) as usize..(begin[source + 1] - begin[cells.start]) as usize;
                row.clear();
                row.extend(keys[own.clone()].iter().copied().zip(strengths[own].iter().copied()));
                row.sort_unstable();
                all.extend(row.iter().map(|(_, strength)| *strength));
            }
            Ok(())
        })?;
        let (width, depth) = (self.learns.width, self.learns.depth);
        let count = config.shards * config.cells;
        let history = memory.download::<u32>(&self.history, 0, count * depth * width)?;
        let counts = memory.download::<u32>(&self.counts, 0, count)?;
        let last = |cell: usize, step: i64| {
            let row = rows[cell] as usize;
            let count = counts[row] as usize;
            let entry = |i: usize| &history[(row * depth + i % depth) * width..][..width];
            (count.saturating_sub(depth)..count).rev().map(entry).find(|e| i64::from(e[0]) < step)
        };
        let entries = learned::entries(plan, self.learning, now, last);
        // What is under way, without what follows from spikes.
        let numbers = config.shards * config.ring * config.pitch;
        let ring = memory.upload(&memory.download::<u32>(ring, 0, numbers)?)?;
        self.early(&ring, recent, now, -1)?;
        let ring = memory.download::<u32>(&ring, 0, numbers)?;
        let slots = slots(plan, config);
        let mut under_way = Vec::new();
        for (k, slots) in slots.chunks(config.pitch).enumerate() {
            for ahead in 0..plan.max_delay {
                let step = (now + u64::from(ahead)) as usize & (config.ring - 1);
                let here = &ring[(k * config.ring + step) * config.pitch..][..config.pitch];
                let some = here.iter().zip(slots).filter(|(sum, _)| **sum != 0);
                under_way.extend(some.map(|(sum, slot)| (ahead, *slot, *sum as i32)));
            }
        }
        under_way.sort_unstable();
        Ok(Learned { strengths: all, entries, under_way, ..Learned::default() })
    }

    /// Adds to `ring` what `recent` sends to step `now` and later by synapses that do not change, times `sign`.
    fn early(&self, ring: &DeviceBuffer, recent: &[u64], now: u64, sign: i32) -> Result<()> {
        let (config, memory) = (&self.config, &self.memory);
        let list = memory.upload(recent)?;
        let args = [
            Arg::Bytes(&self.net),
            Arg::Bytes(&self.learn),
            Arg::U64(ring.address()),
            Arg::U64(list.address()),
            Arg::U64(recent.len() as u64),
            Arg::U64(now),
            Arg::I32(sign),
        ];
        let plain = LaunchConfig::new((config.shards as u32, 1, 1), (THREADS, 1, 1));
        // SAFETY: the ring has the network's shape; it and the list live on this stream until it has passed the launch.
        unsafe { self.early.launch(memory.stream, &plain, &args) }
    }

    /// Goes to a state; the others as [`learned`](Self::learned) has them.
    pub(in super::super) fn restore(
        &mut self,
        ring: &mut DeviceBuffer,
        state: &State,
        recent: &[u64],
        rows: &[u32],
    ) -> Result<()> {
        let Some(learned) = &state.learned else { return Ok(()) };
        let (plan, learning, config, memory) = (self.plan, self.learning, self.config, self.memory.clone());
        let begin = self.begins()?;
        let total = begin.last().copied().unwrap_or(0) as usize;
        learned::check(plan, learning, learned, state.step, total)?;
        // Entries first: how many of them have come to a synapse is kept with its strength.
        let (width, depth) = (self.learns.width, self.learns.depth);
        let count = config.shards * config.cells;
        let (mut history, mut counts) = (vec![0u32; count * depth * width], vec![0u32; count]);
        let mut heads: Vec<u32> = (0..count * width).map(|i| if i % width == 0 { NEVER } else { 0 }).collect();
        for (cell, entry) in learned.entries.iter().enumerate().filter(|(_, e)| e[0] != NEVER) {
            let row = rows[cell] as usize;
            history[row * depth * width..][..width].copy_from_slice(entry);
            heads[row * width..][..width].copy_from_slice(entry);
            counts[row] = 1;
        }
        let mut out = vec![0; width];
        for Spike { step, cell } in &state.recent {
            let row = rows[*cell as usize] as usize;
            let head = &mut heads[row * width..][..width];
            let before = (head[0] != NEVER).then_some(&*head);
            learning.entry(before, *step as u32, &mut out);
            head.copy_from_slice(&out);
            history[(row * depth + counts[row] as usize % depth) * width..][..width].copy_from_slice(&out);
            counts[row] += 1;
        }
        memory.write(&mut self.history, &history)?;
        memory.write(&mut self.counts, &counts)?;
        memory.clear(&mut self.kept)?;
        self.begin(memory.upload(&heads)?.address())?;

        let (mut sorted, begun) = (&learned.strengths[..], memory.upload(&begin)?);
        let mut places: Vec<(u64, u32)> = Vec::new();
        let mut pieces = Vec::new();
        self.list(state.step, &begin, |cells, keys, mut strengths| {
            for source in cells.clone() {
                let own =
                    (begin[source] - begin[cells.start]) as usize..(begin[source + 1] - begin[cells.start]) as usize;
                let (here, after) = sorted.split_at(own.len());
                sorted = after;
                places.clear();
                places.extend(keys[own.clone()].iter().copied().zip(own.start as u32..));
                places.sort_unstable();
                for ((key, at), strength) in places.iter().zip(here) {
                    let rule = &learning.rules[(key >> 32) as usize & 511];
                    if !(rule.low..=rule.high).contains(strength) {
                        return Err(Error::checkpoint("the state has weights beyond the bounds of this network"));
                    }
                    strengths[*at as usize] = *strength;
                }
            }
            pieces.push((cells, memory.upload(&strengths)?));
            Ok(())
        })?;
        for (cells, strengths) in &pieces {
            let at = [begun.address(), 0, strengths.address(), 0];
            self.visit(What::Set, cells.clone(), [state.step, 0], at)?;
        }

        let mut slots: Vec<(u64, usize)> =
            slots(plan, &config).into_iter().enumerate().map(|(i, slot)| (slot, i)).collect();
        slots.sort_unstable();
        let mut sums = vec![0u32; config.shards * config.ring * config.pitch];
        for (ahead, slot, sum) in &learned.under_way {
            if let Ok(i) = slots.binary_search_by_key(slot, |(slot, _)| *slot) {
                let (k, at) = (slots[i].1 / config.pitch, slots[i].1 % config.pitch);
                let step = (state.step + u64::from(*ahead)) as usize & (config.ring - 1);
                let sum_here = &mut sums[(k * config.ring + step) * config.pitch + at];
                *sum_here = sum_here.wrapping_add(*sum as u32);
            }
        }
        memory.write(ring, &sums)?;
        self.early(ring, recent, state.step, 1)
    }
}

/// Of each shard's slots (`[shards, pitch]`) the network's slot; `u64::MAX` where there is none.
fn slots(plan: &Plan, config: &Config) -> Vec<u64> {
    let mut slots = vec![u64::MAX; config.shards * config.pitch];
    for k in 0..config.shards {
        let parts = shard::parts(plan, k, config.shards).0;
        for ((p, part), first) in parts.iter().enumerate().zip(plan.first_slots()) {
            let size = u64::from(plan.network.populations[p].size);
            for port in 0..plan.models[p].ports().len() {
                for (i, slot) in part.slots(port).enumerate() {
                    slots[k * config.pitch + slot] = first + port as u64 * size + u64::from(part.low) + i as u64;
                }
            }
        }
    }
    slots
}
