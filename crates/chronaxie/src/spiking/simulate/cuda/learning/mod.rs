//! The CUDA engine of networks whose synapses change: the same spikes and weights as the CPU's, bit for bit.
//!
//! Networks whose shards fit in shared memory run in the resident kernel (../steps.cu), which walks rows cut by target
//! (`resident.rs`, rows.cuh, walk.cuh); they are made on the device. Others run here: one kernel runs up to 4096 steps without the
//! host (`steps.cu`), with two meetings of the grid a step. Their synapses are made on the host, which also keeps where they
//! lie: what is asked of weights goes by that. Delays before synapses and rules beyond the timing of pairs run here alone
//! (`wide.rs`, events.cuh).

mod config;
mod layout;
mod resident;
#[cfg(test)]
mod tests;
mod wide;
#[cfg(test)]
mod wide_tests;

use super::super::learned::{self, Learned, Weights};
use super::super::{Engine, Spike, State};
use super::memory::{Fields, Memory};
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Kernel, LaunchConfig, Stream};
use crate::spiking::connect::{Shard, Synapses, list, rows, shard, shards_for};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Learning, NEVER};
use crate::spiking::simulate::cpu::check_state;
use crate::{Error, Result, pool};
pub use config::{Config, specialisations};
use layout::{Rows, describe, places, require_memory, upload};
pub use resident::Learns;
pub(super) use resident::Resident;
use std::ops::Range;
use std::sync::Arc;
use wide::Wide;

/// Spikes that a log has room for beside those of a step in which every cell fires.
const LOG: usize = 1 << 18;
/// The most steps of a launch.
const MOST_STEPS: u64 = 4096;

/// Runs a plan whose synapses change on a CUDA device.
pub struct LearningEngine<'a> {
    plan: &'a Plan,
    learning: &'a Learning,
    config: Config,
    memory: Memory,
    _stream: Stream,
    kernels: [Kernel; 3],
    /// Where synapses lie, and what they began with.
    shards: Vec<Shard>,
    rows: Vec<Rows>,
    degrees: Vec<u32>,
    states: DeviceBuffer,
    first_state: Vec<usize>,
    ring: DeviceBuffer,
    history: DeviceBuffer,
    counts: DeviceBuffer,
    kept: DeviceBuffer,
    wide: Option<Wide>,
    /// Spikes of a launch: how many (u64), blocks at meetings (u32), whether entries fill their room (u32), steps and spikes.
    control: DeviceBuffer,
    log: DeviceBuffer,
    capacity: usize,
    /// What the kernels' `Net` points to beside the above, and its first fields.
    _held: Vec<DeviceBuffer>,
    head: Fields,
    task_count: u32,
    grown: u32,
    step: u64,
    recent: Vec<Spike>,
    events: u64,
    run: u64,
    launches: u64,
}

/// What changes of each shard's synapses, in the order of its rows.
#[derive(Default)]
struct Synaptic {
    strengths: Vec<Vec<u32>>,
    /// Where there is a modulator.
    eligible: Vec<Vec<i32>>,
}

impl std::fmt::Debug for LearningEngine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LearningEngine(step {}, {}, {} synapses)", self.step, self.config, self.synapses())
    }
}

impl<'a> LearningEngine<'a> {
    /// Bytes of the device's memory that a plan takes; 0 where no synapse changes.
    pub fn bytes(plan: &Plan, config: &Config) -> f64 {
        plan.learning.as_ref().map_or(0.0, |learning| layout::bytes(plan, config, learning))
    }

    /// Makes the network on `device`; `built(done, of)` is told how far it is.
    ///
    /// # Errors
    /// `Config` for networks beyond what a word holds, `OutOfMemory`, and what the driver or the compiler refuses.
    pub fn new(plan: &'a Plan, device: &Arc<CudaDevice>, built: &(dyn Fn(usize, usize) + Sync)) -> Result<Self> {
        Self::with(plan, device, Config::choose(plan, device.props())?, plan.cells() as usize + LOG, built)
    }

    fn with(
        plan: &'a Plan,
        device: &Arc<CudaDevice>,
        config: Config,
        capacity: usize,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        let learning = plan.learning.as_ref().ok_or_else(|| Error::value("no synapse of the network changes"))?;
        let stream = device.new_stream()?;
        let memory = Memory { device: device.clone(), stream: stream.as_ref() };
        let spec = config::steps(config.heavy, config.wide);
        let kernel = |name| device.kernel(&spec, name);
        let kernels = [kernel("spiking_learn")?, kernel("spiking_catch_up")?, kernel("spiking_keep")?];
        let resident = device.props().sm_count * kernels[0].max_active_blocks(config.threads, 0)?;
        if resident < config.blocks {
            return Err(Error::value(format!("{} holds {resident} blocks at once: {config}", device.name())));
        }
        plan.require_memory()?;
        require_memory(plan, device, &config, learning)?;
        let count = shards_for(plan, pool::num_threads());
        let shards = shard::build(plan, count, &|done| built(done, count))?;
        let (rows, degrees) = upload(plan, &config, &memory, &shards)?;
        let cells = plan.cells() as usize;
        let mut held = Vec::new();
        let (head, states, first_state, task_count) = describe(plan, learning, &memory, &rows, &mut held)?;
        let ring = memory.zeros(4 * config.ring * config.ports * cells)?;
        let history = memory.zeros(4 * cells * config.depth * learning.width())?;
        let (counts, kept) = (memory.zeros(4 * cells)?, memory.zeros(4 * cells)?);
        let wide = |_| Wide::new(plan, learning, &config, &memory, &rows, &shards);
        let wide = config.wide.then_some(()).map(wide).transpose()?;
        let (control, log) = (memory.zeros(32)?, memory.room(8 * capacity)?);
        stream.synchronize()?;
        Ok(Self {
            plan,
            learning,
            config,
            memory,
            _stream: stream,
            kernels,
            shards,
            rows,
            degrees,
            states,
            first_state,
            ring,
            history,
            counts,
            kept,
            wide,
            control,
            log,
            capacity,
            _held: held,
            head,
            task_count,
            grown: 0,
            step: 0,
            recent: Vec::new(),
            events: 0,
            run: 0,
            launches: 0,
        })
    }

    /// `Net` of steps.cu.
    fn net(&self) -> Vec<u8> {
        let (c, l) = (&self.config, self.learning);
        self.head
            .clone()
            .u64(self.ring.address())
            .u64(self.history.address())
            .u64(self.counts.address())
            .u64(self.kept.address())
            .u64(self.plan.network.seed)
            .u32(self.plan.cells() as u32)
            .u32(c.ports as u32)
            .u32(self.task_count)
            .u32(self.rows.len() as u32)
            .u32(l.traces.len() as u32)
            .u32(l.shorts.len() as u32)
            .u32(l.width() as u32)
            .u32(c.ring as u32)
            .u32(c.depth as u32)
            .u32(c.cell_bits)
            .u32(c.delay_bits)
            .u32(self.grown)
            .0
    }

    /// `Wide` of events.cuh.
    fn wide(&self) -> &[u8] {
        self.wide.as_ref().map_or(&wide::NONE, |w| &w.fields)
    }

    fn plain(&self) -> LaunchConfig {
        LaunchConfig::new((self.config.blocks, 1, 1), (self.config.threads, 1, 1))
    }

    /// Up to `steps` steps; how many there were, where their spikes lie in the log, and whether entries fill their room.
    fn launch(&mut self, steps: u64) -> Result<(u64, Range<usize>, bool)> {
        // What is under way in axons, before the first spike of the launch.
        let under_way: Vec<u64> = match &self.wide {
            Some(wide) if wide.farthest > 0 => {
                let word = |s: &Spike| u64::from((s.step as i64 - self.step as i64) as u32) << 32 | u64::from(s.cell);
                let gone = self.recent.partition_point(|s| s.step + u64::from(wide.farthest) < self.step);
                self.recent[gone..].iter().map(word).collect()
            }
            _ => Vec::new(),
        };
        let begun = under_way.len();
        let least = begun + 2 * self.plan.cells() as usize;
        if least > self.capacity {
            (self.log, self.capacity) = (self.memory.room(8 * least)?, least);
        }
        self.memory.write(&mut self.log, &under_way)?;
        self.memory.write(&mut self.control, &[begun as u64, 0, 0, 0])?;
        let control = self.control.address();
        let run = Fields::default()
            .u64(self.log.address())
            .u64(control)
            .u64(control + 8)
            .u64(control + 12)
            .u64(control + 16)
            .u64(self.step)
            .u64(self.capacity as u64)
            .u32(steps.min(MOST_STEPS) as u32)
            .u32(begun as u32);
        let config = LaunchConfig { cooperative: true, ..self.plain() };
        let net = self.net();
        let args = [Arg::Bytes(&net), Arg::Bytes(&run.0), Arg::Bytes(self.wide())];
        // SAFETY: the structs are those of learn.cuh, whose sizes the launch checks; all that they point to belongs to this
        // engine and is used on this stream alone.
        unsafe { self.kernels[0].launch(self.memory.stream, &config, &args) }?;
        let told = self.memory.download::<u64>(&self.control, 0, 4)?;
        let (done, count) = (told[2], told[3] as usize);
        if done == 0 || done > steps || !(begun..=self.capacity).contains(&count) {
            return Err(Error::value(format!("a chunk of {steps} steps says that it ran {done}")));
        }
        Ok((done, begun..count, told[1] >> 32 != 0))
    }

    /// The strengths of rows `index` now, into `out`, and their eligibilities, where that is not 0.
    fn catch_up(&self, index: usize, out: u64, eligible: u64) -> Result<()> {
        let (net, step) = (self.net(), self.step as u32);
        let args = [Arg::Bytes(&net), Arg::Bytes(self.wide()), Arg::U32(index as u32), Arg::U32(step)];
        let args = [&args[..], &[Arg::U64(out), Arg::U64(eligible)]].concat();
        // SAFETY: `out` and `eligible` have as many numbers as the rows have synapses, on this stream.
        unsafe { self.kernels[1].launch(self.memory.stream, &self.plain(), &args) }
    }

    /// Brings all synapses up to date and makes room for entries.
    fn sweep(&mut self) -> Result<()> {
        let mut eligible = self.wide.iter().flat_map(|w| &w.eligible).map(DeviceBuffer::address);
        for (i, rows) in self.rows.iter().enumerate() {
            if let Some((strengths, _)) = &rows.strengths {
                self.catch_up(i, strengths.address(), eligible.next().unwrap_or(0))?;
            }
        }
        self.grown = self.step as u32;
        let net = self.net();
        let oldest = self.step as i64 - i64::from(self.plan.max_delay);
        let args = [Arg::Bytes(&net), Arg::Bytes(self.wide()), Arg::I64(oldest)];
        // SAFETY: the entries are this engine's, on this stream.
        unsafe { self.kernels[2].launch(self.memory.stream, &self.plain(), &args) }
    }

    /// The strengths of every shard's rows now, and their eligibilities where there are some.
    fn changed(&self) -> Result<Synaptic> {
        let mut all = Synaptic::default();
        let modulated = !self.learning.modulators.is_empty();
        for (i, rows) in self.rows.iter().enumerate() {
            if let Some((_, count)) = rows.strengths {
                let out = self.memory.room(4 * count)?;
                let eligible = modulated.then(|| self.memory.room(4 * count)).transpose()?;
                self.catch_up(i, out.address(), eligible.as_ref().map_or(0, DeviceBuffer::address))?;
                all.strengths.push(self.memory.download::<u32>(&out, 0, count)?);
                all.eligible.extend(eligible.map(|e| self.memory.download::<i32>(&e, 0, count)).transpose()?);
            }
        }
        Ok(all)
    }

    fn strengths(&self) -> Result<Vec<Vec<u32>>> {
        self.changed().map(|all| all.strengths)
    }

    fn shards(&self) -> Vec<&Shard> {
        self.shards.iter().collect()
    }

    /// Adds to `ring` what the synapses that do not change have under way from `recent`.
    fn add_static(&self, recent: &[Spike], now: u64, sign: i32, ring: &mut [i32]) {
        let pitch = self.config.ports * self.plan.cells() as usize;
        for shard in &self.shards {
            let places = places(self.plan, shard);
            for spike in recent {
                for (delay, synapses) in shard.rows.groups(spike.cell) {
                    let when = spike.step + u64::from(delay);
                    if when < now {
                        continue;
                    }
                    let base = (when & (self.config.ring as u64 - 1)) as usize * pitch;
                    for &s in &shard.rows.synapses[synapses.start as usize..synapses.end as usize] {
                        let at = &mut ring[base + places[usize::from(rows::slot(s))] as usize];
                        *at = at.wrapping_add(sign * rows::weight(s));
                    }
                }
            }
        }
    }

    /// Of each place of the ring, the network's slot; nothing where a cell has no such port.
    fn slots(&self) -> Vec<Option<u64>> {
        let cells = self.plan.cells() as usize;
        let mut slots = vec![None; self.config.ports * cells];
        for (p, first) in self.plan.first_slots().into_iter().take(self.plan.models.len()).enumerate() {
            let size = self.plan.network.populations[p].size as usize;
            for port in 0..self.plan.models[p].ports().len() {
                for c in 0..size {
                    slots[port * cells + self.plan.first[p] as usize + c] = Some(first + (port * size + c) as u64);
                }
            }
        }
        slots
    }

    fn learned(&self) -> Result<Learned> {
        let (cells, width, depth) = (self.plan.cells() as usize, self.learning.width(), self.config.depth);
        let Synaptic { strengths, eligible } = self.changed()?;
        let strengths = learned::in_order(self.plan, &self.shards(), &strengths);
        let in_order = |e| learned::in_order(self.plan, &self.shards(), e);
        let eligible = if eligible.is_empty() { Vec::new() } else { in_order(&eligible) };
        let history = self.memory.download::<u32>(&self.history, 0, cells * depth * width)?;
        let counts = self.memory.download::<u32>(&self.counts, 0, cells)?;
        let last = |cell: usize, step: i64| {
            let count = counts[cell] as usize;
            let entry = |i: usize| &history[(cell * depth + i % depth) * width..][..width];
            (count.saturating_sub(depth)..count).rev().map(entry).find(|e| i64::from(e[0]) < step)
        };
        let entries = learned::entries(self.plan, self.learning, self.step, last);
        let pitch = self.config.ports * cells;
        let mut ring: Vec<i32> = self
            .memory
            .download::<u32>(&self.ring, 0, self.config.ring * pitch)?
            .into_iter()
            .map(|x| x as i32)
            .collect();
        self.add_static(&self.recent, self.step, -1, &mut ring);
        let slots = self.slots();
        let mut under_way = Vec::new();
        for ahead in 0..self.plan.max_delay {
            let base = ((self.step + u64::from(ahead)) & (self.config.ring as u64 - 1)) as usize * pitch;
            let here = ring[base..base + pitch].iter().zip(&slots);
            under_way.extend(here.filter_map(|(sum, slot)| slot.filter(|_| *sum != 0).map(|slot| (ahead, slot, *sum))));
        }
        under_way.sort_unstable();
        let oldest = self.step as i64 - i64::from(self.plan.max_delay);
        let lists = |w: &Wide| w.read(self.plan, self.learning, &self.config, &self.memory, oldest);
        let lists = self.wide.as_ref().map(lists).transpose()?.unwrap_or_default();
        Ok(Learned { strengths, entries, under_way, eligible, ..lists })
    }

    fn restore_learned(&mut self, state: &State, learned: &Learned) -> Result<()> {
        learned::check(self.plan, self.learning, learned, state.step, learned::count(&self.shards()))?;
        let strengths = learned::by_shard(self.plan, self.learning, &self.shards(), learned)?;
        let places = self.rows.iter_mut().filter_map(|r| r.strengths.as_mut());
        for ((buffer, _), strengths) in places.zip(strengths) {
            self.memory.write(buffer, &strengths)?;
        }
        if let Some(mut wide) = self.wide.take() {
            let some = !learned.eligible.is_empty();
            let parted = || learned::parted(self.plan, &self.shards(), &learned.eligible, |_, _| true);
            let (eligible, made) = (some.then(parted).flatten(), (self.plan, self.learning, &self.config));
            let done = wide.restore(made, &self.memory, (state, learned), &eligible.unwrap_or_default());
            self.wide = Some(wide);
            done?;
        }
        let (cells, width, depth) = (self.plan.cells() as usize, self.learning.width(), self.config.depth);
        let mut history = vec![0u32; cells * depth * width];
        let mut counts = vec![0u32; cells];
        for (cell, entry) in learned.entries.iter().enumerate().filter(|(_, e)| e[0] != NEVER) {
            history[cell * depth * width..][..width].copy_from_slice(entry);
            counts[cell] = 1;
        }
        let mut out = vec![0; width];
        for spike in &state.recent {
            let (cell, count) = (spike.cell as usize, counts[spike.cell as usize] as usize);
            let at = |i: usize| (cell * depth + i % depth) * width;
            let before = count.checked_sub(1).map(|i| &history[at(i)..][..width]);
            self.learning.entry(before, spike.step as u32, &mut out);
            history[at(count)..][..width].copy_from_slice(&out);
            counts[cell] += 1;
        }
        self.memory.write(&mut self.history, &history)?;
        self.memory.write(&mut self.counts, &counts)?;
        self.memory.clear(&mut self.kept)?;
        let pitch = self.config.ports * cells;
        let mut ring = vec![0i32; self.config.ring * pitch];
        self.add_static(&state.recent, state.step, 1, &mut ring);
        let mut slots: Vec<(u64, usize)> =
            self.slots().into_iter().enumerate().filter_map(|(i, slot)| slot.map(|slot| (slot, i))).collect();
        slots.sort_unstable();
        for (ahead, slot, sum) in &learned.under_way {
            let base = ((state.step + u64::from(*ahead)) & (self.config.ring as u64 - 1)) as usize * pitch;
            if let Ok(i) = slots.binary_search_by_key(slot, |(slot, _)| *slot) {
                let at = &mut ring[base + slots[i].1];
                *at = at.wrapping_add(*sum);
            }
        }
        let ring: Vec<u32> = ring.into_iter().map(|x| x as u32).collect();
        self.memory.write(&mut self.ring, &ring)?;
        self.grown = state.step as u32;
        Ok(())
    }
}

impl Engine for LearningEngine<'_> {
    fn step(&self) -> u64 {
        self.step
    }

    fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        let to = self.step + steps;
        learned::steps_left(self.plan, to)?;
        while self.step < to {
            let from = self.step;
            let (done, range, full) = self.launch(to - from)?;
            self.launches += 1;
            let mut list = self.memory.download::<u64>(&self.log, 8 * range.start, range.len())?;
            list.sort_unstable();
            let begun = spikes.len();
            spikes.extend(list.into_iter().map(|x| Spike { step: from + (x >> 32), cell: x as u32 }));
            self.step = from + done;
            self.run += done;
            let found = &spikes[begun..];
            self.events += found.iter().map(|s| u64::from(self.degrees[s.cell as usize])).sum::<u64>();
            let oldest = self.step.saturating_sub(self.plan.max_delay.into());
            self.recent.drain(..self.recent.partition_point(|s| s.step < oldest));
            self.recent.extend(&found[found.partition_point(|s| s.step < oldest)..]);
            if full {
                self.sweep()?;
            }
        }
        Ok(())
    }

    fn state(&self) -> Result<State> {
        let mut variables = Vec::new();
        for (p, model) in self.plan.models.iter().enumerate() {
            let (size, count) = (self.plan.network.populations[p].size as usize, model.variables().len());
            let values: Vec<f32> = self.memory.download(&self.states, 4 * self.first_state[p], size * count)?;
            variables.push((0..count).map(|v| values[v * size..(v + 1) * size].to_vec()).collect());
        }
        Ok(State { step: self.step, variables, recent: self.recent.clone(), learned: Some(self.learned()?) })
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        check_state(self.plan, state)?;
        if let Some(learned) = &state.learned {
            self.restore_learned(state, learned)?;
        }
        let values: Vec<f32> = state.variables.iter().flatten().flatten().copied().collect();
        self.memory.write(&mut self.states, &values)?;
        self.step = state.step;
        self.recent.clone_from(&state.recent);
        Ok(())
    }

    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>> {
        let size = self.plan.network.populations[population].size as usize;
        let first = self.first_state[population] + cell as usize;
        let variables = 0..self.plan.models[population].variables().len();
        let one = |v: usize| self.memory.download::<f32>(&self.states, 4 * (first + v * size), 1);
        variables.map(|v| one(v).map(|x| x[0])).collect()
    }

    fn synapses(&self) -> u64 {
        self.degrees.iter().map(|d| u64::from(*d)).sum()
    }

    fn table(&self, projection: usize) -> Result<Synapses> {
        list::changed(self.plan, projection, || {
            Ok(learned::known(self.plan, &self.shards(), &self.strengths()?, projection))
        })
    }

    fn weights(&self) -> Result<Vec<Weights>> {
        Ok(learned::summarise(self.plan, self.learning, &self.shards(), &self.strengths()?))
    }

    fn variant(&self) -> &'static str {
        "grid"
    }

    fn launches(&self) -> u64 {
        self.launches
    }

    fn update_bytes(&self) -> u64 {
        super::state_bytes(self.plan)
    }

    fn events(&self) -> u64 {
        self.events
    }

    fn config(&self) -> String {
        self.config.to_string()
    }

    /// Two meetings of the grid (0.7 us each), and twelve bytes an event, twenty under a modulator, at the memory's bandwidth.
    fn floor_us(&self) -> Option<f64> {
        let an_event = if self.learning.modulators.is_empty() { 12.0 } else { 20.0 };
        let bytes = self.events as f64 / self.run.max(1) as f64 * an_event;
        let meetings = if self.config.blocks > 1 { 1.4 } else { 0.0 };
        Some(meetings + bytes / self.memory.device.props().memory_bytes_per_s.max(1) as f64 * 1e6)
    }
}
