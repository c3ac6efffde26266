//! The CUDA engine of networks whose synapses change, or are drawn again at each spike: the same spikes and weights as the CPU's, bit
//! for bit.
//!
//! Networks whose shards fit in shared memory run in the resident kernel (../steps.cu), which walks rows cut by target
//! (`resident.rs`, rows.cuh, walk.cuh); they are made on the device. Others run here: one kernel runs up to 4096 steps without the
//! host (`steps.cu`), with two meetings of the grid a step. Their synapses are made on the host, which also keeps where they
//! lie: what is asked of weights goes by that. Delays before synapses and rules beyond the timing of pairs run here alone
//! (`wide.rs`, events.cuh). Several cards share a network by a layout; each has the synapses onto its own cells, and entries
//! of all (`card.rs`). Synapses that are drawn again at each spike (`drawn.rs`, drawn.cuh) run here alone, too, beside others that are
//! kept; what only changing synapses ask for is left out where there are none.

mod card;
mod config;
pub(super) mod drawn;
#[cfg(test)]
mod drawn_tests;
mod layout;
#[cfg(test)]
mod long_tests;
mod on_card;
mod parts;
mod resident;
#[cfg(test)]
mod snapshot_tests;
mod snapshots;
#[cfg(test)]
mod tests;
mod wide;
#[cfg(test)]
mod wide_tests;

use super::super::learned::{self, Learned, Weights};
use super::super::parts::Keys;
use super::super::reckon::{Load, PartCost};
use super::super::{Engine, Spike, State};
use super::common;
use super::lost::{of_several, wait_for_all};
use super::parts::{BETWEEN_US, MEETING_US, STREAMING};
use super::unit::{Exchange, PATIENCE_NS};
use crate::cuda::{CudaDevice, DeviceBuffer};
use crate::spiking::connect::{Shard, Synapses, list};
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Learning, NEVER};
use crate::spiking::simulate::cpu::check_state;
use crate::{Error, ErrorKind, Result};
use card::Card;
pub use config::{Config, specialisations};
pub(super) use on_card::none;
pub use resident::Learns;
pub(super) use resident::Resident;
use std::sync::Arc;

/// Spikes that a log has room for beside those of a step in which every cell fires.
const LOG: usize = 1 << 18;
/// The most steps of a launch.
const MOST_STEPS: u64 = 4096;

/// What synapses do where none changes.
static NOTHING: Learning = Learning {
    rules: Vec::new(),
    of: Vec::new(),
    traces: Vec::new(),
    shorts: Vec::new(),
    scalings: Vec::new(),
    modulators: Vec::new(),
    early: false,
};

/// What synapses of a plan do.
fn learning(plan: &Plan) -> &Learning {
    plan.learning.as_ref().unwrap_or(&NOTHING)
}

/// Refuses what needs more memory than the device has free, before anything is allocated.
///
/// # Errors
/// `OutOfMemory`.
pub(super) fn require_memory(plan: &Plan, device: &CudaDevice, config: &Config) -> Result<()> {
    layout::require_memory(plan, device, config, learning(plan))
}

/// Runs a plan whose synapses change, or are drawn again at each spike, on a CUDA device, or on several.
pub struct LearningEngine<'a> {
    plan: &'a Plan,
    learning: &'a Learning,
    config: Config,
    layout: Layout,
    /// The first device's.
    name: String,
    /// None where one of several was lost.
    cards: Vec<Card>,
    mails: Vec<u64>,
    step: u64,
    recent: Vec<Spike>,
    /// Why the state is not that of `step`.
    failed: Option<String>,
    events: u64,
    run: u64,
    launches: u64,
    /// Whether launches have clocks, and those so far; nanoseconds of those launches.
    timed: bool,
    laps: [u64; STREAMING],
    kernel_ns: u64,
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
    /// Bytes of each device's memory that a plan takes.
    pub fn bytes(plan: &Plan, config: &Config) -> f64 {
        layout::bytes(plan, config, learning(plan))
    }

    /// Makes the network on `device`; `built(done, of)` is told how far it is.
    ///
    /// # Errors
    /// `Config` for networks beyond what a word holds, `OutOfMemory`, and what the driver or the compiler refuses.
    pub fn new(plan: &'a Plan, device: &Arc<CudaDevice>, built: &(dyn Fn(usize, usize) + Sync)) -> Result<Self> {
        Self::in_layout(plan, std::slice::from_ref(device), Layout::even(&plan.network, 1), built)
    }

    /// Makes it on `devices`, each of which has a part of the layout.
    ///
    /// # Errors
    /// As [`new`](Self::new), and `Value` for a layout of other parts.
    pub fn in_layout(
        plan: &'a Plan,
        devices: &[Arc<CudaDevice>],
        layout: Layout,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        let config = Config::in_layout(plan, &common(devices)?, &layout)?;
        Self::as_chosen(plan, devices, config, layout, built)
    }

    /// Likewise, by a configuration for the layout.
    ///
    /// # Errors
    /// As [`in_layout`](Self::in_layout).
    pub(super) fn as_chosen(
        plan: &'a Plan,
        devices: &[Arc<CudaDevice>],
        config: Config,
        layout: Layout,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        Self::with(plan, devices, config, layout, plan.cells() as usize + LOG, built)
    }

    fn with(
        plan: &'a Plan,
        devices: &[Arc<CudaDevice>],
        config: Config,
        layout: Layout,
        capacity: usize,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        let learning = learning(plan);
        if !config.changes && config.drawn == 0 {
            return Err(Error::value("no synapse of the network changes or is drawn at each spike"));
        }
        if layout.parts() != devices.len() || config.cards != devices.len() {
            return Err(Error::value(format!("{} parts do not go with {} GPUs", layout.parts(), devices.len())));
        }
        plan.require_memory(1.0, config.redraw)?;
        let exchange = Exchange::between(devices)?;
        let mut cards = Vec::with_capacity(devices.len());
        for (k, device) in devices.iter().enumerate() {
            let ready = |done: usize, of: usize| built(done + k * of, of * devices.len());
            let (part, on) = ((&layout, k), (device, exchange));
            cards.push(Card::new(plan, learning, &config, part, on, capacity, &ready)?);
        }
        let mails: Vec<u64> = cards.iter().map(Card::mail).collect();
        // Every kernel is loaded and has run on every device before any waits for another.
        for card in cards.iter_mut().filter(|_| mails.len() > 1) {
            card.prepare(&[], 0)?;
            card.launch((plan, learning, &config), ([0; 2], false), 0, &mails)?;
            card.told()?;
        }
        Ok(Self {
            plan,
            learning,
            config,
            layout,
            name: devices[0].name().to_owned(),
            cards,
            mails,
            step: 0,
            recent: Vec::new(),
            failed: None,
            events: 0,
            run: 0,
            launches: 0,
            timed: false,
            laps: Default::default(),
            kernel_ns: 0,
        })
    }

    /// What launches are given.
    fn made(&self) -> (&'a Plan, &'a Learning, Config) {
        (self.plan, self.learning, self.config)
    }

    /// Up to `steps` steps; how many there were, their spikes as steps from here on and cells, and whether entries fill their room.
    fn launch(&mut self, steps: u64) -> Result<(u64, Vec<u64>, bool)> {
        // What is under way in axons, before the first spike of the launch.
        let farthest = self.cards.iter().filter_map(|c| c.wide.as_ref()).map(|w| w.farthest).max().unwrap_or(0);
        let under_way: Vec<u64> = match farthest {
            0 => Vec::new(),
            _ => {
                let word = |s: &Spike| u64::from((s.step as i64 - self.step as i64) as u32) << 32 | u64::from(s.cell);
                let gone = self.recent.partition_point(|s| s.step + u64::from(farthest) < self.step);
                self.recent[gone..].iter().map(word).collect()
            }
        };
        let begun = under_way.len();
        let least = begun + 2 * self.plan.cells() as usize;
        let (plan, learning, config) = self.made();
        self.cards.iter_mut().try_for_each(|card| card.prepare(&under_way, least))?;
        for card in &mut self.cards {
            let run = ([self.step, steps.min(MOST_STEPS)], self.timed);
            card.launch((plan, learning, &config), run, begun, &self.mails)?;
        }
        if self.cards.len() > 1 {
            let name = |k: usize| self.cards[k].memory.device.name();
            wait_for_all(self.cards.len(), name, |k| self.cards[k].is_done())?;
        }
        let told: Vec<card::Told> = self.cards.iter().map(Card::told).collect::<Result<_>>()?;
        let (first, capacity) = (told[0], self.cards[0].capacity());
        let alike = |t: &card::Told| !t.lost && (t.done, t.count, t.full) == (first.done, first.count, first.full);
        if !told.iter().all(alike) {
            return Err(Error::lost(format!(
                "a GPU of {} heard nothing from another for {} s in the steps from {} on",
                self.cards.len(),
                PATIENCE_NS / 1_000_000_000,
                self.step
            )));
        }
        for card in &told {
            self.laps.iter_mut().zip(card.laps).for_each(|(all, here)| *all += here);
            self.kernel_ns += card.ns;
        }
        let count = first.count as usize;
        if first.done == 0 || first.done > steps || !(begun..=capacity).contains(&count) {
            return Err(Error::value(format!("a chunk of {steps} steps says that it ran {}", first.done)));
        }
        // All of them have all spikes.
        Ok((first.done, self.cards[0].spikes(begun, count)?, first.full))
    }

    /// Brings all synapses up to date and makes room for entries.
    fn sweep(&mut self) -> Result<()> {
        let (plan, learning, config) = self.made();
        self.cards.iter_mut().try_for_each(|card| card.sweep((plan, learning, &config), self.step))
    }

    /// The strengths of every shard's rows now, and their eligibilities where there are some.
    fn changed(&self) -> Result<Synaptic> {
        let mut all = Synaptic::default();
        let modulated = !self.learning.modulators.is_empty();
        for card in &self.cards {
            for (i, rows) in card.rows.iter().enumerate() {
                let Some((_, count)) = rows.strengths else { continue };
                let memory = &card.memory;
                let out = memory.room(4 * count)?;
                let eligible = modulated.then(|| memory.room(4 * count)).transpose()?;
                let at = [out.address(), eligible.as_ref().map_or(0, DeviceBuffer::address)];
                card.catch_up((self.plan, self.learning, &self.config), self.step, i, at)?;
                all.strengths.push(memory.download::<u32>(&out, 0, count)?);
                all.eligible.extend(eligible.map(|e| memory.download::<i32>(&e, 0, count)).transpose()?);
            }
        }
        Ok(all)
    }

    fn strengths(&self) -> Result<Vec<Vec<u32>>> {
        self.changed().map(|all| all.strengths)
    }

    /// Those of all cards.
    fn shards(&self) -> Vec<&Shard> {
        self.cards.iter().flat_map(|card| &card.shards).collect()
    }

    /// Of each place of a card's ring, the network's slot; nothing where a cell has no such port, or is another card's.
    fn slots(&self, card: usize) -> Vec<Option<u64>> {
        let cells = self.plan.cells() as usize;
        let mut slots = vec![None; self.config.ports * cells];
        for (p, first) in self.plan.first_slots().into_iter().take(self.plan.models.len()).enumerate() {
            let size = self.plan.network.populations[p].size as usize;
            for port in 0..self.plan.models[p].ports().len() {
                for c in self.layout.own(card, p).iter().map(|cell| cell as usize) {
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
        // All cards have the entries of all cells.
        let first = &self.cards[0];
        let history = first.memory.download::<u32>(&first.history, 0, cells * depth * width)?;
        let counts = first.memory.download::<u32>(&first.counts, 0, cells)?;
        let last = |cell: usize, step: i64| {
            let count = counts[cell] as usize;
            let entry = |i: usize| &history[(cell * depth + i % depth) * width..][..width];
            (count.saturating_sub(depth)..count).rev().map(entry).find(|e| i64::from(e[0]) < step)
        };
        let entries = learned::entries(self.plan, self.learning, self.step, last);
        let pitch = self.config.ports * cells;
        let mut under_way = Vec::new();
        for card in &self.cards {
            let ring = card.memory.download::<u32>(&card.ring, 0, self.config.ring * pitch)?;
            let mut ring: Vec<i32> = ring.into_iter().map(|x| x as i32).collect();
            card.add_static((self.plan, &self.config), &self.recent, self.step, -1, &mut ring);
            card.add_drawn((self.plan, &self.config, &self.layout), &self.recent, self.step, -1, &mut ring);
            let slots = self.slots(card.number);
            for ahead in 0..self.plan.max_delay {
                let base = ((self.step + u64::from(ahead)) & (self.config.ring as u64 - 1)) as usize * pitch;
                let here = ring[base..base + pitch].iter().zip(&slots);
                under_way
                    .extend(here.filter_map(|(sum, slot)| slot.filter(|_| *sum != 0).map(|slot| (ahead, slot, *sum))));
            }
        }
        under_way.sort_unstable();
        let oldest = self.step as i64 - i64::from(self.plan.max_delay);
        let mut lists: Option<Learned> = None;
        for card in &self.cards {
            let Some(wide) = &card.wide else { continue };
            let own = wide.read(self.plan, self.learning, &self.config, &card.memory, oldest)?;
            let Some(all) = &mut lists else {
                lists = Some(own);
                continue;
            };
            // A cell's windows are counted where it is.
            for (all, own) in all.counts.iter_mut().zip(&own.counts) {
                let numbers = self.layout.numbers(self.plan, card.number);
                numbers.for_each(|cell| all[cell as usize] = own[cell as usize]);
            }
        }
        Ok(Learned { strengths, entries, under_way, eligible, ..lists.unwrap_or_default() })
    }

    fn restore_learned(&mut self, state: &State, learned: &Learned) -> Result<()> {
        learned::check(self.plan, self.learning, learned, state.step, learned::count(&self.shards()))?;
        let strengths = learned::by_shard(self.plan, self.learning, &self.shards(), learned)?;
        let some = !learned.eligible.is_empty();
        let parted = || learned::parted(self.plan, &self.shards(), &learned.eligible, |_, _| true);
        let mut eligible = some.then(parted).flatten().unwrap_or_default().into_iter();
        let (plan, learning, config) = self.made();
        let mut strengths = strengths.into_iter();
        let (cells, width, depth) = (plan.cells() as usize, learning.width(), config.depth);
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
            learning.entry(before, spike.step as u32, &mut out);
            history[at(count)..][..width].copy_from_slice(&out);
            counts[cell] += 1;
        }
        for card in &mut self.cards {
            for (buffer, _) in card.rows.iter_mut().filter_map(|r| r.strengths.as_mut()) {
                card.memory.write(buffer, &strengths.next().unwrap_or_default())?;
            }
            if let Some(wide) = &mut card.wide {
                let own: Vec<Vec<i32>> = eligible.by_ref().take(card.shards.len()).collect();
                wide.restore((plan, learning, &config), &card.memory, (state, learned), &own)?;
            }
            card.memory.write(&mut card.history, &history)?;
            card.memory.write(&mut card.counts, &counts)?;
            card.memory.clear(&mut card.kept)?;
            card.grown = state.step as u32;
        }
        self.restore_rings(state, &learned.under_way)
    }

    /// What is under way: from recent spikes, and from synapses that change.
    fn restore_rings(&mut self, state: &State, early: &[(u32, u64, i32)]) -> Result<()> {
        let (plan, config) = (self.plan, self.config);
        let pitch = config.ports * plan.cells() as usize;
        let slots: Vec<_> = (0..self.cards.len()).map(|card| self.slots(card)).collect();
        for (card, slots) in self.cards.iter_mut().zip(slots) {
            let mut ring = vec![0i32; config.ring * pitch];
            card.add_static((plan, &config), &state.recent, state.step, 1, &mut ring);
            card.add_drawn((plan, &config, &self.layout), &state.recent, state.step, 1, &mut ring);
            let mut slots: Vec<(u64, usize)> =
                slots.into_iter().enumerate().filter_map(|(i, slot)| slot.map(|slot| (slot, i))).collect();
            slots.sort_unstable();
            for (ahead, slot, sum) in early {
                let base = ((state.step + u64::from(*ahead)) & (config.ring as u64 - 1)) as usize * pitch;
                if let Ok(i) = slots.binary_search_by_key(slot, |(slot, _)| *slot) {
                    let at = &mut ring[base + slots[i].1];
                    *at = at.wrapping_add(*sum);
                }
            }
            card.memory.write(&mut card.ring, &ring)?;
        }
        Ok(())
    }

    fn advance_to(&mut self, to: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        while self.step < to {
            let from = self.step;
            let (done, mut list, full) = self.launch(to - from)?;
            self.launches += 1;
            list.sort_unstable();
            let begun = spikes.len();
            spikes.extend(list.into_iter().map(|x| Spike { step: from + (x >> 32), cell: x as u32 }));
            self.step = from + done;
            self.run += done;
            let found = &spikes[begun..];
            let degree = |s: &Spike| self.cards.iter().map(|c| u64::from(c.degrees[s.cell as usize])).sum::<u64>();
            self.events += found.iter().map(degree).sum::<u64>();
            let oldest = self.step.saturating_sub(self.plan.max_delay.into());
            self.recent.drain(..self.recent.partition_point(|s| s.step < oldest));
            self.recent.extend(&found[found.partition_point(|s| s.step < oldest)..]);
            if full {
                self.sweep()?;
            }
        }
        Ok(())
    }

    /// Refuses what a step that failed has left behind.
    fn whole(&self) -> Result<()> {
        let Some(why) = &self.failed else { return Ok(()) };
        Err(Error::value(format!("the network on {} has no state: a step failed: {why}", self.name)))
    }
}

impl Engine for LearningEngine<'_> {
    fn step(&self) -> u64 {
        self.step
    }

    fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        let to = self.step + steps;
        learned::steps_left(self.plan, to)?;
        self.whole()?;
        let ran = self.advance_to(to, spikes).map_err(|e| of_several(e, self.cards.len()));
        if let Err(e) = &ran {
            self.failed = Some(e.to_string());
            if e.kind() == &ErrorKind::Lost {
                // What waits for a GPU that has gone, waits for ever: what lies there is left to the driver.
                std::mem::forget(std::mem::take(&mut self.cards));
            }
        }
        ran
    }

    fn advance_in_parts(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<Option<Vec<(&'static str, f64)>>> {
        self.advanced_in_parts(steps, spikes)
    }

    fn part_cost(&self, part: &str, load: &Load) -> PartCost {
        self.cost(part, load)
    }

    fn state(&self) -> Result<State> {
        self.whole()?;
        let mut variables = Vec::new();
        for (p, model) in self.plan.models.iter().enumerate() {
            let (size, count) = (self.plan.network.populations[p].size as usize, model.variables().len());
            let mut all = vec![vec![0.0; size]; count];
            for card in &self.cards {
                let values: Vec<f32> = card.memory.download(&card.states, 4 * card.first_state[p], size * count)?;
                for cell in self.layout.own(card.number, p).iter().map(|cell| cell as usize) {
                    all.iter_mut().enumerate().for_each(|(v, own)| own[cell] = values[v * size + cell]);
                }
            }
            variables.push(all);
        }
        let learned = self.config.changes.then(|| self.learned()).transpose()?;
        Ok(State { step: self.step, variables, recent: self.recent.clone(), learned })
    }

    fn order(&self) -> Result<Option<(&Plan, Keys)>> {
        Ok(self.config.changes.then(|| (self.plan, learned::keys(self.plan, &self.shards()))))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        check_state(self.plan, state)?;
        if self.cards.is_empty() {
            self.whole()?;
        }
        match &state.learned {
            Some(learned) => self.restore_learned(state, learned)?,
            None => self.restore_rings(state, &[])?,
        }
        let values: Vec<f32> = state.variables.iter().flatten().flatten().copied().collect();
        for card in &mut self.cards {
            // A launch that was lost may have left some of its own.
            card.clear_mail()?;
            card.memory.write(&mut card.states, &values)?;
        }
        self.step = state.step;
        self.recent.clone_from(&state.recent);
        self.failed = None;
        Ok(())
    }

    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>> {
        self.whole()?;
        let size = self.plan.network.populations[population].size as usize;
        let card = &self.cards[self.layout.owner(population, cell)];
        let first = card.first_state[population] + cell as usize;
        let variables = 0..self.plan.models[population].variables().len();
        let one = |v: usize| card.memory.download::<f32>(&card.states, 4 * (first + v * size), 1);
        variables.map(|v| one(v).map(|x| x[0])).collect()
    }

    fn synapses(&self) -> u64 {
        self.cards.iter().flat_map(|card| &card.degrees).map(|d| u64::from(*d)).sum()
    }

    fn table(&self, projection: usize) -> Result<Synapses> {
        self.whole()?;
        list::changed(self.plan, projection, || {
            Ok(learned::known(self.plan, &self.shards(), &self.strengths()?, projection))
        })
    }

    fn weights(&self) -> Result<Vec<Weights>> {
        self.whole()?;
        if !self.config.changes {
            return Ok(Vec::new());
        }
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

    /// Two meetings of the grid (0.7 us each; of several cards another, and 2 us between them), and twelve bytes an event, twenty under a
    /// modulator, eight where nothing changes, at the memory's bandwidth; nothing of those that are drawn, whose share is taken to be that
    /// of the synapses.
    fn floor_us(&self) -> Option<f64> {
        let an_event = match (self.config.changes, self.learning.modulators.is_empty()) {
            (false, _) => 8.0,
            (_, true) => 12.0,
            _ => 20.0,
        };
        let an_event = an_event * self.plan.expected_kept(self.config.redraw) / self.plan.expected_synapses().max(1.0);
        let bytes = self.events as f64 / self.run.max(1) as f64 * an_event / self.config.cards as f64;
        let meetings = match (self.config.cards, self.config.blocks) {
            (2.., _) => 3.0 * MEETING_US + BETWEEN_US,
            (_, 2..) => 2.0 * MEETING_US,
            _ => 0.0,
        };
        let rate = self.cards.first()?.memory.device.props().memory_bytes_per_s.max(1) as f64;
        Some(meetings + bytes / rate * 1e6)
    }
}
