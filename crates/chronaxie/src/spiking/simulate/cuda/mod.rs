//! The CUDA engine: the same spikes as the CPU's, bit for bit.
//!
//! One kernel runs up to 4094 steps without the host (`steps.cu`): one block a shard, all resident. A chunk ends
//! where the log of its spikes might not hold another step. The device puts them in order (`order.cu`), and the host takes them up,
//! those of several cards together, while the next one runs. Networks are made on the device (`build.cu`).
#![allow(unsafe_code)]

mod apart;
mod build;
mod choose;
mod config;
#[cfg(test)]
mod distance_tests;
mod footprint;
mod kernels;
#[cfg(test)]
mod layout_tests;
pub mod learning;
#[cfg(test)]
mod life_tests;
#[cfg(test)]
mod long_tests;
mod lost;
mod memory;
mod narrow;
#[cfg(test)]
mod narrow_tests;
pub(crate) mod parts;
#[cfg(test)]
mod parts_tests;
mod replay;
#[cfg(test)]
mod replica_tests;
mod shots;
#[cfg(test)]
mod tests;
mod unit;

use super::cpu::check_state;
use super::parts::Keys;
use super::reckon::{Load, PartCost};
use super::snapshot::{Snapshot, Stored};
use super::{Engine, Spike, State, Weights, learned};
use crate::cuda::CudaDevice;
use crate::spiking::connect::{self, list};
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::{DeviceProps, Error, ErrorKind, Result, pool};
pub use apart::CudaPart;
pub(crate) use choose::{Taken, require_room};
pub use choose::{engine, engine_in};
#[cfg(test)]
pub(crate) use config::Asked;
use config::MOST_STEPS;
pub use config::{Config, Place};
pub(crate) use config::{MOST_CARDS, REPLICAS};
pub use footprint::Footprint;
use footprint::log_capacity;
pub use kernels::specialisations;
pub use learning::LearningEngine;
use learning::{Resident, none};
use lost::{of_several, wait_for, wait_for_all};
pub use narrow::Narrow;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use unit::{Card, Exchange, Given, Unit};

/// Spikes that a log has room for beside those of four steps in which every cell fires.
const LOG: usize = 1 << 18;
/// The least and the most steps of a launch: a launch more takes some 0.2 ms.
const PIECES: [u64; 2] = [128, MOST_STEPS];
/// Spikes of a launch, about, which the host takes up while the next one runs.
const SPIKES: u64 = 1 << 21;

/// Spikes of a launch, about, that a thread of the host takes up at a time.
const SPIKES_A_PIECE: usize = 1 << 15;

/// Steps of the next launch of a chunk that has `left` steps, where `rate` spikes come a step. Spikes of the last launch are taken up
/// while nothing runs: so that one is short.
pub(crate) fn piece(left: u64, rate: u64) -> u64 {
    let most = (SPIKES / rate.max(1)).clamp(PIECES[0], PIECES[1]);
    (left / 3 * 2).clamp(PIECES[0], most).min(left)
}

/// Runs a plan on a CUDA device, or on several.
pub struct CudaEngine<'a> {
    plan: &'a Plan,
    config: Config,
    /// Whose each cell is; which cells stand side by side on a device.
    layout: Layout,
    /// The first device's.
    name: String,
    /// None where one of several was lost.
    units: Vec<Unit>,
    /// Synapses that change.
    resident: Option<Resident<'a>>,
    /// Which cell each row is, and which row each cell.
    row_of: Vec<u32>,
    capacity: usize,
    launches: usize,
    step: u64,
    recent: Vec<Spike>,
    /// Why the state is not that of `step`.
    failed: Option<String>,
    /// Whether steps have run whose spikes nobody got.
    unheard: bool,
    /// Of the steps that this engine ran: deliveries, and how many steps.
    events: u64,
    run: u64,
    /// Whether launches have clocks, and those so far; nanoseconds of those launches.
    timed: bool,
    laps: [u64; parts::RESIDENT],
    kernel_ns: u64,
}

impl std::fmt::Debug for CudaEngine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaEngine(step {}, {}, {} synapses)", self.step, self.config, self.synapses())
    }
}

/// The properties that all of them have.
fn common(devices: &[Arc<CudaDevice>]) -> Result<DeviceProps> {
    let mut props = *devices.first().ok_or_else(|| Error::value("a network needs a device"))?.props();
    for other in devices {
        props.sm_count = props.sm_count.min(other.props().sm_count);
        props.memory_bytes = props.memory_bytes.min(other.props().memory_bytes);
        props.shared_per_block_optin = props.shared_per_block_optin.min(other.props().shared_per_block_optin);
    }
    Ok(props)
}

impl<'a> CudaEngine<'a> {
    /// Makes the network on `devices`, each of which has its share; `built(percent, 100)` is told how far it is.
    ///
    /// # Errors
    /// `Config` for a network that cannot be cut for the devices or whose inputs can overflow, `OutOfMemory`, and what the
    /// driver or the compiler refuses.
    pub fn new(plan: &'a Plan, devices: &[Arc<CudaDevice>], built: &(dyn Fn(usize, usize) + Sync)) -> Result<Self> {
        Self::in_layout(plan, devices, Layout::even(&plan.network, devices.len().max(1)), built)
    }

    /// Likewise, where device i has part i of a layout.
    ///
    /// # Errors
    /// As [`new`](Self::new), and `Value` for a layout of other parts.
    pub fn in_layout(
        plan: &'a Plan,
        devices: &[Arc<CudaDevice>],
        layout: Layout,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        if layout.parts() != devices.len() {
            return Err(Error::value(format!("{} parts do not go with {} GPUs", layout.parts(), devices.len())));
        }
        let config = Config::in_layout(plan, &common(devices)?, &layout)?;
        Self::with(plan, devices, config, layout, log_capacity(config.logged(plan)), built)
    }

    /// The cards of the configuration, a part of the layout each, are shared out among `devices`.
    fn with(
        plan: &'a Plan,
        devices: &[Arc<CudaDevice>],
        config: Config,
        layout: Layout,
        capacity: usize,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        let changing = (0..plan.network.projections.len()).find(|i| plan.changes(*i));
        if let Some(i) = changing.filter(|_| config.learns.is_none()) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "projection {}: its synapses change, and such do not fit the resident kernel; LearningEngine takes them: \
                     {config}",
                    plan.label(i)
                ),
            ));
        }
        learning::drawn::refuse(plan, &config)?;
        let (cell_of, row_of) = rows(plan, &config, &layout);
        let exchange = Exchange::between(devices)?;
        let each = config.here / devices.len();
        let mut units = Vec::with_capacity(devices.len());
        for (k, device) in devices.iter().enumerate() {
            let ready = |percent: usize, of: usize| built(percent + k * of, of * devices.len());
            units.push(Unit::new(
                plan,
                device,
                (&config, &layout),
                k * each..(k + 1) * each,
                [&cell_of, &row_of],
                capacity,
                exchange,
                &ready,
            )?);
        }
        unit::join(&mut units)?;
        let cards = units.iter().flat_map(|u| u.cards.iter().map(|card| (&u.memory, card.net.as_slice())));
        let resident = Resident::new(plan, config, &layout, cards, [&row_of, &cell_of])?;
        let mut learns = resident.iter().flat_map(Resident::learns);
        units.iter_mut().try_for_each(|unit| unit.tell(&mut learns))?;
        drop(learns);
        let (recent, launches) = (Vec::new(), 0);
        let mut engine = Self {
            plan,
            config,
            layout,
            name: devices[0].name().to_owned(),
            units,
            resident,
            row_of,
            capacity,
            launches,
            step: 0,
            recent,
            failed: None,
            unheard: false,
            events: 0,
            run: 0,
            timed: false,
            laps: Default::default(),
            kernel_ns: 0,
        };
        // Every kernel is loaded and has run on every device before any waits for another.
        for k in 0..engine.units.len() {
            engine.launch(k..k + 1, 0, 0)?;
            engine.units[k].told()?;
        }
        Ok(engine)
    }

    /// Puts up to `steps` steps from the present one on the streams of these units.
    fn launch(&mut self, which: std::ops::Range<usize>, from: u64, steps: u64) -> Result<()> {
        // Of the only card; of several it lies with each.
        let learn = self.resident.as_ref().and_then(|r| r.learns().next()).map_or_else(none, <[u8]>::to_vec);
        let mails: Vec<[u64; 2]> = self.units.iter().flat_map(Unit::mails).collect();
        let (capacity, launches, timed) = (self.capacity, self.launches, self.timed);
        let given = Given { from, steps, capacity, launches, timed, learn: &learn, mails: &mails };
        for unit in &mut self.units[which.clone()] {
            unit.launch(&self.config, &given)?;
        }
        self.units[which].iter_mut().try_for_each(|unit| unit.order(&given))?;
        self.launches += 1;
        Ok(())
    }

    fn run(&mut self, to: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        // What has run and is not collected: launch, first step, steps.
        let mut waiting: Option<(usize, u64, u64)> = None;
        let mut rate = SPIKES / 512;
        while self.step < to {
            let from = self.step;
            let steps = piece(to - from, rate);
            self.launch(0..self.units.len(), from, steps)?;
            if let Some((launch, from, steps)) = waiting.take() {
                collect(&mut self.units, launch, from, steps, spikes)?;
            }
            // Waits for the chunk.
            if self.units.len() > 1 {
                let name = |k: usize| self.units[k].memory.device.name();
                wait_for_all(self.units.len(), name, |k| self.units[k].is_done())?;
            } else if self.config.is_apart() {
                wait_for(self.units[0].memory.device.name(), || self.units[0].is_done())?;
            }
            let (done, fired) = self.account(from, steps)?;
            rate = fired;
            waiting = Some((self.launches - 1, from, done));
        }
        waiting.map_or(Ok(()), |(launch, from, steps)| collect(&mut self.units, launch, from, steps, spikes))
    }

    /// Takes up what a launch came to that has ended: how many steps it ran, and about how many spikes came in each.
    fn account(&mut self, from: u64, steps: u64) -> Result<(u64, u64)> {
        let mut done = None;
        let (mut fired, mut flags) = (0, 0);
        for unit in &mut self.units {
            for told in unit.told()? {
                if told.flags & unit::LOST != 0 || *done.get_or_insert(told.done) != told.done {
                    return Err(Error::lost(format!(
                        "a GPU of {} heard nothing from another for {} s in the steps from {from} on",
                        self.config.here,
                        unit::PATIENCE_NS / 1_000_000_000
                    )));
                }
                if told.count > self.capacity as u64 {
                    return Err(Error::value(format!("a chunk of {steps} steps logs {} spikes", told.count)));
                }
                (fired, flags) = (fired + told.count, flags | told.flags);
                self.events += told.events;
                self.laps.iter_mut().zip(told.laps).for_each(|(all, here)| *all += here);
                self.kernel_ns += told.ns;
            }
        }
        let done = done.unwrap_or(0);
        if done == 0 || done > steps {
            return Err(Error::value(format!("a chunk of {steps} steps says that it ran {done}")));
        }
        (self.step, self.run) = (from + done, self.run + done);
        if let Some(resident) = self.resident.as_mut().filter(|_| flags & unit::FULL != 0) {
            if self.config.is_apart() {
                // What fired elsewhere has not been heard of, so nothing can be brought up to date; room was made before.
                return Err(Error::value(format!("step {}: the entries of a cell have no room", self.step)));
            }
            resident.settle(self.step)?;
        }
        Ok((done, fired / done))
    }

    /// Spikes as steps and rows.
    fn rows(&self, spikes: &[Spike]) -> Vec<u64> {
        spikes.iter().map(|s| s.step << 32 | u64::from(self.row_of[s.cell as usize])).collect()
    }

    /// Refuses steps that there are not, and what [`whole`](Self::whole) refuses.
    fn may_reach(&self, to: u64) -> Result<()> {
        learned::steps_left(self.plan, to)?;
        if to >= 1 << 32 {
            return Err(Error::value(format!("step {to} is beyond the 2^32 that a run on a GPU has")));
        }
        self.whole()
    }

    /// Refuses what a step that failed has left behind.
    fn whole(&self) -> Result<()> {
        let Some(why) = &self.failed else { return Ok(()) };
        Err(Error::value(format!("the network on {} has no state: a step failed: {why}", self.name)))
    }

    fn cards(&self) -> impl Iterator<Item = (&Unit, &Card)> {
        self.units.iter().flat_map(|unit| unit.cards.iter().map(move |card| (unit, card)))
    }

    /// The states of all cells.
    fn of_cells(&self) -> Result<Vec<Vec<Vec<f32>>>> {
        self.whole()?;
        if self.unheard {
            return Err(Error::value(format!(
                "the network on {} has no state: nobody got the spikes of a replay",
                self.name
            )));
        }
        let sizes = self.plan.network.populations.iter().map(|p| p.size as usize);
        let mut variables: Vec<Vec<Vec<f32>>> =
            self.plan.models.iter().zip(sizes).map(|(m, size)| vec![vec![0.0; size]; m.variables().len()]).collect();
        for (unit, card) in self.cards() {
            for (p, all) in variables.iter_mut().enumerate() {
                let (size, own) = (self.plan.network.populations[p].size as usize, self.layout.own(card.number, p));
                for (v, values) in all.iter_mut().enumerate() {
                    let first = card.cells.first_state[p] + v * size + own.low as usize;
                    let here: Vec<f32> = unit.memory.download(&card.cells.states, 4 * first, own.len())?;
                    own.iter().zip(here).for_each(|(cell, x)| values[cell as usize] = x);
                }
            }
        }
        Ok(variables)
    }

    /// The state, with these last entries of all cells before the recent spikes, where they are known elsewhere.
    fn state_with(&self, old: Option<&[Vec<u32>]>) -> Result<State> {
        let variables = self.of_cells()?;
        let rings: Vec<_> = self.cards().map(|(_, card)| &card.synapses.ring).collect();
        let learned = |r: &Resident<'_>| r.learned(&rings, &self.rows(&self.recent), self.step, old);
        let learned = self.resident.as_ref().map(learned).transpose()?;
        Ok(State { step: self.step, variables, recent: self.recent.clone(), learned })
    }
}

/// The spikes of a launch of `steps` steps from step `from` on, in order.
fn collect(units: &mut [Unit], launch: usize, from: u64, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
    let mut lists: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
    for unit in units.iter_mut() {
        for card in 0..unit.cards.len() {
            lists.push(unit.spikes(card, launch, steps as usize)?);
        }
    }
    // Of each list: where the spikes of each step begin.
    let firsts: Vec<Vec<usize>> = lists.iter().map(|(counts, _)| begins(counts)).collect();
    let before = |step: usize| firsts.iter().map(|f| f[step]).sum::<usize>();
    let (begin, steps) = (spikes.len(), steps as usize);
    let pieces = (before(steps) / SPIKES_A_PIECE).clamp(1, steps.max(1));
    spikes.resize(begin + before(steps), Spike { step: 0, cell: 0 });
    let mut rest = &mut spikes[begin..];
    let mut work = Vec::with_capacity(pieces);
    for piece in 0..pieces {
        let which = steps * piece / pieces..steps * (piece + 1) / pieces;
        let (here, more) = rest.split_at_mut(before(which.end) - before(which.start));
        rest = more;
        work.push(Mutex::new((which, here)));
    }
    let fill = |which: Range<usize>, to: &mut [Spike]| {
        let (mut all, mut at): (Vec<u32>, usize) = (Vec::new(), 0);
        for step in which {
            let mut put = |cells: &[u32]| {
                let n = cells.len();
                to[at..at + n].iter_mut().zip(cells).for_each(|(spike, cell)| {
                    *spike = Spike { step: from + step as u64, cell: *cell };
                });
                at += n;
            };
            let here = lists.iter().zip(&firsts).map(|((_, cells), first)| &cells[first[step]..first[step + 1]]);
            if lists.len() == 1 {
                here.for_each(&mut put);
                continue;
            }
            all.clear();
            here.for_each(|cells| all.extend(cells));
            // Finds what is in order already.
            all.sort();
            put(&all);
        }
    };
    pool::for_each(pieces, |piece| {
        if let Ok(mut work) = work[piece].lock() {
            let (which, to) = &mut *work;
            fill(which.clone(), to);
        }
    });
    Ok(())
}

/// The sums of the counts before each, and of all.
fn begins(counts: &[u32]) -> Vec<usize> {
    let sums = counts.iter().scan(0, |sum, n| {
        *sum += *n as usize;
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}

/// Bytes of the states of all cells and of what comes for them in a step, read and written.
fn state_bytes(plan: &Plan) -> u64 {
    let each = plan.models.iter().map(|m| 8 * (m.variables().len() + m.ports().len()) as u64);
    each.zip(&plan.network.populations).map(|(bytes, p)| bytes * u64::from(p.size)).sum()
}

/// Which cell each row is, and which row each cell.
fn rows(plan: &Plan, config: &Config, layout: &Layout) -> (Vec<u32>, Vec<u32>) {
    let (mut cell_of, mut row_of) = (vec![0; config.shards * config.cells], vec![0; plan.cells() as usize]);
    for k in 0..config.shards {
        let mut row = k * config.cells;
        for (part, first) in config.shard(plan, layout, k).0.iter().zip(&plan.first) {
            for cell in part.cells().iter() {
                let cell = *first as u32 + cell;
                cell_of[row] = cell;
                row_of[cell as usize] = row as u32;
                row += 1;
            }
        }
    }
    (cell_of, row_of)
}

impl Engine for CudaEngine<'_> {
    fn step(&self) -> u64 {
        self.step
    }

    fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        let to = self.step + steps;
        self.may_reach(to)?;
        let begun = spikes.len();
        if let Err(e) = self.run(to, spikes) {
            let e = of_several(e, self.units.len());
            self.failed = Some(e.to_string());
            if e.kind() == &ErrorKind::Lost {
                // What waits for a GPU that has gone, waits for ever: what lies there is left to the driver.
                std::mem::forget((std::mem::take(&mut self.units), self.resident.take()));
            }
            return Err(e);
        }
        let found = &spikes[begun..];
        let oldest = self.step.saturating_sub(self.plan.max_delay.into());
        self.recent.drain(..self.recent.partition_point(|s| s.step < oldest));
        self.recent.extend(&found[found.partition_point(|s| s.step < oldest)..]);
        Ok(())
    }

    fn advance_in_parts(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<Option<Vec<(&'static str, f64)>>> {
        self.advanced_in_parts(steps, spikes)
    }

    fn part_cost(&self, part: &str, load: &Load) -> PartCost {
        self.cost(part, load)
    }

    fn replay(&mut self, steps: u64) -> Result<Option<f64>> {
        self.replayed(steps)
    }

    fn variables(&self) -> Result<Vec<Vec<Vec<f32>>>> {
        self.of_cells()
    }

    fn state(&self) -> Result<State> {
        self.state_with(None)
    }

    fn prepare(&mut self, snapshots: usize) -> Result<()> {
        self.prepared(snapshots).map(drop)
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>> {
        self.taken()
    }

    fn resume(&mut self, state: State, stored: Option<&Stored>) -> Result<()> {
        self.resumed(state, stored)
    }

    fn order(&self) -> Result<Option<(&Plan, Keys)>> {
        self.resident.as_ref().map(|r| Ok((self.plan, r.keys(self.step)?))).transpose()
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        check_state(self.plan, state)?;
        self.present()?;
        if let Some(resident) = &mut self.resident {
            resident.restore(state)?;
        }
        self.go_on(state)
    }

    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>> {
        self.whole()?;
        let size = self.plan.network.populations[population].size as usize;
        let whose = self.layout.owner(population, cell);
        let Some((unit, card)) = self.cards().find(|(_, card)| card.number == whose) else { return Ok(Vec::new()) };
        let place = self.layout.order(population).map_or(cell, |o| o.places()[cell as usize]);
        let first = card.cells.first_state[population] + place as usize;
        let variables = 0..self.plan.models[population].variables().len();
        let one = |v: usize| unit.memory.download::<f32>(&card.cells.states, 4 * (first + v * size), 1);
        variables.map(|v| one(v).map(|x| x[0])).collect()
    }

    fn synapses(&self) -> u64 {
        self.cards().map(|(_, card)| card.synapses.count).sum()
    }

    fn weights(&self) -> Result<Vec<Weights>> {
        self.whole()?;
        self.resident.as_ref().map_or_else(|| Ok(Vec::new()), |r| r.weights(self.step))
    }

    fn table(&self, projection: usize) -> Result<connect::Synapses> {
        self.whole()?;
        match &self.resident {
            Some(r) => list::changed(self.plan, projection, || r.known(projection, self.step)),
            None => connect::synapses(self.plan, projection),
        }
    }

    fn variant(&self) -> &'static str {
        "resident"
    }

    /// Of each launch: steps, count, order.
    fn launches(&self) -> u64 {
        3 * self.launches as u64
    }

    fn update_bytes(&self) -> u64 {
        if self.config.held || self.config.near > 0 { 0 } else { state_bytes(self.plan) }
    }

    fn events(&self) -> u64 {
        self.events
    }

    fn config(&self) -> String {
        self.config.to_string()
    }

    fn synapse_bytes(&self) -> Option<f64> {
        Some(self.config.synapse() as f64)
    }

    fn floor_us(&self) -> Option<f64> {
        self.floor()
    }
}
