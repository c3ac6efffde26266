//! A part of a network on this process's cards, whose other cells are on cards or CPUs elsewhere.
//!
//! The part's cells are those of the first cards of a layout of its own, which the kernel of steps.cu runs as it runs several cards; of
//! cells elsewhere there are rows alone. Cards of one process tell each other in each step what fired; what fired elsewhere is heard of
//! once every shortest delay from there ([`CudaPart::most_steps`]), and added to what is under way (hear.cu). So parts meet in two
//! levels: inside a process, then between processes. Which shard a cell elsewhere is in is of no account here, so every process
//! numbers rows for itself, and may have another kind of card.

mod collect;
mod levels;
#[cfg(test)]
mod tests;

use super::config::Config;
use super::kernels;
use super::learning::none;
use super::lost::of_several;
use super::{CudaEngine, common};
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Kernel, LaunchConfig};
use crate::spiking::connect::list::Known;
use crate::spiking::connect::{Redraw, Synapses, list};
use crate::spiking::device::Fields;
use crate::spiking::partition::Layout;
use crate::spiking::plan::{MOST_APART, Plan};
use crate::spiking::plasticity::fixed::NEVER;
use crate::spiking::simulate::parts::wire::Members;
use crate::spiking::simulate::parts::{Exchange, Keys, PartEngine, Transport};
use crate::spiking::simulate::{Engine, Spike, State, Weights};
use crate::{Error, ErrorKind, Result};
use collect::Collector;
use levels::{Levels, Where};
use std::sync::Arc;

/// Threads of a block of `spiking_hear`.
const THREADS: u32 = 512;

/// What the cards of a device hear with.
struct Ears {
    hear: Kernel,
    room: Kernel,
    row_of: DeviceBuffer,
    /// Of what was heard, on the first card: deliveries.
    events: DeviceBuffer,
    full: DeviceBuffer,
}

/// One part of a network on a CUDA device, or on several of a machine.
pub struct CudaPart<'a> {
    engine: CudaEngine<'a>,
    ears: Vec<Ears>,
    exchange: Option<Box<dyn Exchange + 'a>>,
    /// What carries spikes from GPU to GPU, where all parts have such.
    collector: Option<Collector>,
    /// Whose part this is, and how its spikes go, as people read it.
    whole: Layout,
    part: usize,
    carrier: String,
    across: u64,
    /// What fired here from a step on, of which nobody was told and which waits for what fired elsewhere.
    untold: Option<(u64, Vec<Spike>)>,
    /// Of synapses that change: each cell's last entry before the recent spikes, and steps since all were brought up to date.
    old: Vec<Vec<u32>>,
    unsettled: u64,
    /// All are brought up to date after so many at the latest.
    settled_after: u64,
}

impl std::fmt::Debug for CudaPart<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaPart({:?}, {} steps apart)", self.engine, self.across)
    }
}

/// A layout whose first `here` parts are the cells of part `part` of `layout`, and whose others are those of the other parts, each cut
/// into as many.
fn own_first(plan: &Plan, layout: &Layout, part: usize, here: usize) -> Result<Layout> {
    let populations = plan.network.populations.iter().enumerate();
    let owners = populations.map(|(p, population)| {
        let mut owners = vec![0; population.size as usize];
        for other in 0..layout.parts() {
            let place = if other == part { 0 } else { other + usize::from(other < part) };
            let own = layout.own(other, p);
            let size = own.len().max(1);
            own.iter()
                .enumerate()
                .for_each(|(i, cell)| owners[cell as usize] = (place * here + i * here / size) as u32);
        }
        owners
    });
    Layout::from_owners(&plan.network, layout.parts() * here, &owners.collect::<Vec<_>>())
}

/// Refuses what runs in the resident kernel alone does not.
fn refuse(plan: &Plan, config: &Config) -> Result<()> {
    let cannot = |what: &str| {
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{what}, and parts of a network run on GPUs only where its synapses are kept and, if they change, go by pairs of spikes \
                 with delays behind them and fit in shared memory; `--gpus` or parts on CPUs take the others: {config}"
            ),
        ))
    };
    if plan.draws_any(Redraw::Asked) {
        return cannot("some synapses of this one are drawn again at each spike");
    }
    if plan.learning.is_some() && config.learns.is_none() {
        return cannot("the synapses of this one change in another way");
    }
    Ok(())
}

impl<'a> CudaPart<'a> {
    /// Part `part` of a layout, on `devices`. What fires elsewhere it hears by `exchange`, and then `advance` lists all spikes of the
    /// network; without one, by `hear`. Its state has its own cells and synapses alone. With an exchange all parts are made at the
    /// same time, since they agree on how often they exchange.
    ///
    /// # Errors
    /// As [`CudaEngine::new`]; of the exchange; `Unavailable` for synapses that are drawn at each spike, or change beyond what the
    /// resident kernel takes.
    pub fn new(
        plan: &'a Plan,
        devices: &[Arc<CudaDevice>],
        layout: &Layout,
        part: usize,
        (exchange, wanted): (Option<Box<dyn Exchange + 'a>>, Transport),
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        plan.refuse_life("a part of a network")?;
        let here = devices.len();
        let own = own_first(plan, layout, part, here.max(1))?;
        let config = Config::apart(plan, &common(devices)?, &own, here)?;
        refuse(plan, &config)?;
        let engine = CudaEngine::with(plan, devices, config, own, super::log_capacity(config.logged(plan)), built)?;
        let mut all = Self::of_engine(engine, (layout, part), exchange)?;
        if let Some(exchange) = &mut all.exchange {
            let at = Where { part, parts: layout.parts(), nodes: exchange.nodes() };
            let offers = exchange.share(&levels::offer(&devices[0], at, wanted))?;
            all.join(&offers, at, wanted)?;
        }
        Ok(all)
    }

    fn of_engine(
        engine: CudaEngine<'a>,
        (layout, part): (&Layout, usize),
        mut exchange: Option<Box<dyn Exchange + 'a>>,
    ) -> Result<Self> {
        let (plan, config) = (engine.plan, engine.config);
        let spec = kernels::hear(config.learns.is_some(), config.hears_long());
        let mut ears = Vec::with_capacity(engine.units.len());
        for unit in &engine.units {
            let kernel = |name| unit.memory.device.kernel(&spec, name);
            let hear = kernel("spiking_hear")?;
            hear.set_max_dynamic_shared(config.hear_bytes(MOST_LISTS))?;
            ears.push(Ears {
                hear,
                room: kernel("spiking_room")?,
                row_of: unit.memory.upload(&engine.row_of)?,
                events: unit.memory.zeros(8)?,
                full: unit.memory.zeros(4)?,
            });
        }
        let old = plan.learning.as_ref().map_or_else(Vec::new, |l| {
            let mut none = vec![0; l.width()];
            none[0] = NEVER;
            vec![none; plan.cells() as usize]
        });
        let (whole, carrier) = (layout.clone(), String::new());
        let mut all = Self {
            engine,
            ears,
            exchange: None,
            collector: None,
            whole,
            part,
            carrier,
            across: MOST_APART,
            untold: None,
            old,
            unsettled: 0,
            settled_after: u64::MAX,
        };
        all.across = all.shortest()?;
        if let Some(exchange) = &mut exchange {
            all.across = exchange.agree(all.across)?.clamp(1, all.across);
        }
        all.exchange = exchange;
        // Every kernel has run once before cards wait for each other.
        all.take_in(all.engine.step, all.engine.step, &[])?;
        Ok(all)
    }

    /// By NCCL from now on, where all parts said that they can.
    fn join(&mut self, offers: &[Vec<u8>], at: Where, wanted: Transport) -> Result<()> {
        if at.parts < 2 || offers.len() != at.parts {
            return Ok(());
        }
        match levels::agreed(offers) {
            Ok(ids) => {
                let levels = levels::connect(&self.engine.units[0].memory.device, at, &ids)?;
                self.by_device(levels, at)
            }
            Err(why) if wanted == Transport::Nccl => {
                Err(Error::unavailable(format!("parts were to exchange spikes by NCCL: {why}")))
            }
            Err(why) => {
                // What all know is said once.
                if self.part == 0 && wanted == Transport::Auto {
                    crate::log::warn(format_args!("parts exchange spikes by the host, and not from GPU to GPU: {why}"));
                }
                self.carrier = ", spikes of other parts by the host".into();
                Ok(())
            }
        }
    }

    /// From GPU to GPU from now on.
    fn by_device(&mut self, levels: Levels, at: Where) -> Result<()> {
        let memory = &self.engine.units[0].memory;
        let members = Members::new(self.engine.plan, &self.whole);
        let flags = [self.engine.config.learns.is_some(), self.engine.config.hears_long()];
        self.carrier = format!(", spikes of other parts by {levels}");
        self.collector = Some(Collector::new(levels, at, members, memory, self.across, flags)?);
        Ok(())
    }

    /// The shortest delay from a cell elsewhere to one here, 64 steps at most.
    fn shortest(&self) -> Result<u64> {
        let config = &self.engine.config;
        if !config.is_apart() {
            return Ok(MOST_APART);
        }
        let first = (config.meeting() * config.cells) as u32;
        let mut all = MOST_APART;
        for (k, (unit, card)) in self.engine.cards().enumerate() {
            let memory = &unit.memory;
            let kernel = memory
                .device
                .kernel(&kernels::hear(config.learns.is_some(), config.hears_long()), "spiking_shortest")?;
            let least = memory.upload(&[MOST_APART as u32])?;
            let learn = self.learn(k);
            let args = [Arg::Bytes(&card.net), Arg::Bytes(&learn), Arg::U32(first), Arg::U64(least.address())];
            let grid = LaunchConfig::new((memory.device.props().sm_count * 8, 1, 1), (256, 1, 1));
            // SAFETY: the structs are those of network.cuh and rows.cuh, whose sizes the launch checks; all of it lives on this stream.
            unsafe { kernel.launch(memory.stream, &grid, &args) }?;
            all = all.min(u64::from(memory.download::<u32>(&least, 0, 1)?[0]));
        }
        Ok(all.max(1))
    }

    /// `Learn` of rows.cuh of card `k`.
    fn learn(&self, k: usize) -> Vec<u8> {
        self.engine.resident.as_ref().and_then(|r| r.learns().nth(k)).map_or_else(none, <[u8]>::to_vec)
    }

    /// Puts what fired elsewhere in the steps from..to on the streams.
    fn take_in(&mut self, from: u64, to: u64, others: &[Spike]) -> Result<()> {
        let mut list = vec![0u32; (to - from) as usize];
        others.iter().for_each(|s| list[(s.step - from) as usize] += 1);
        list.extend(others.iter().map(|s| s.cell));
        let mut before = 0;
        for k in 0..self.engine.units.len() {
            let lists = self.engine.units[k].memory.upload(&list)?;
            let heard = Lists { address: lists.address(), pitch: list.len(), count: 1, own: u32::MAX, head: 0 };
            self.hear_on(k, before, [from, to], &heard)?;
            before += self.engine.units[k].cards.len();
        }
        Ok(())
    }

    /// Likewise what `lists` say, on one device, whose first card is number `before`.
    fn hear_on(&self, k: usize, before: usize, [from, to]: [u64; 2], lists: &Lists) -> Result<()> {
        let (unit, ears, config) = (&self.engine.units[k], &self.ears[k], &self.engine.config);
        for (i, card) in unit.cards.iter().enumerate() {
            let events = if before + i == 0 { ears.events.address() } else { 0 };
            let heard = Fields::default()
                .u64(lists.address)
                .u64(ears.row_of.address())
                .u64(card.synapses.degrees.address())
                .u64(events)
                .u64(lists.pitch as u64)
                .u64(from)
                .u32((to - from) as u32)
                .u32(lists.count as u32)
                .u32(lists.own)
                .u32(lists.head as u32);
            let learn = self.learn(before + i);
            let grid = LaunchConfig {
                shared_bytes: config.hear_bytes(lists.count),
                ..LaunchConfig::new((config.local() as u32, 1, 1), (THREADS, 1, 1))
            };
            // SAFETY: the structs are those of the headers and of hear.cu, whose sizes the launch checks; what they point to belongs to
            // this engine, or is freed on this stream behind the launch.
            unsafe {
                ears.hear.launch(
                    unit.memory.stream,
                    &grid,
                    &[Arg::Bytes(&card.net), Arg::Bytes(&learn), Arg::Bytes(&heard.0)],
                )
            }?;
        }
        Ok(())
    }

    /// Makes room for the entries of `steps` steps, while all that fired has been heard of.
    fn make_room(&mut self, steps: u64) -> Result<()> {
        let Some(learns) = &self.engine.config.learns else { return Ok(()) };
        // A cell fires once a step at most.
        let most = u64::from(self.engine.plan.max_delay) + 2 + self.unsettled + steps;
        if self.engine.config.is_apart() && (most + 3 >= learns.depth as u64 || self.unsettled >= self.settled_after) {
            let mut full = self.unsettled >= self.settled_after;
            for (k, (unit, card)) in self.engine.cards().enumerate() {
                let memory = &unit.memory;
                let at = self.engine.units.iter().position(|u| std::ptr::eq(u, unit)).unwrap_or(0);
                let ears = &self.ears[at];
                let learn = self.learn(k);
                let args =
                    [Arg::Bytes(&card.net), Arg::Bytes(&learn), Arg::U32(steps as u32), Arg::U64(ears.full.address())];
                let grid = LaunchConfig::new((memory.device.props().sm_count, 1, 1), (256, 1, 1));
                // SAFETY: as of `shortest`.
                unsafe { ears.room.launch(memory.stream, &grid, &args) }?;
                full |= memory.download::<u32>(&ears.full, 0, 1)?[0] != 0;
            }
            if full {
                let step = self.engine.step;
                self.engine.resident.as_mut().map_or(Ok(()), |resident| resident.settle(step))?;
                for (unit, ears) in self.engine.units.iter().zip(&mut self.ears) {
                    unit.memory.clear(&mut ears.full)?;
                }
                self.unsettled = 0;
            }
        }
        self.unsettled += steps;
        Ok(())
    }

    /// Keeps what fired, here and elsewhere, as long as it is under way.
    fn remember(&mut self, all: &[Spike]) {
        let engine = &mut self.engine;
        engine.recent.extend_from_slice(all);
        let oldest = engine.step.saturating_sub(engine.plan.max_delay.into());
        let gone = engine.recent.partition_point(|s| s.step < oldest);
        if let Some(learning) = &engine.plan.learning {
            let mut out = vec![0; learning.width()];
            for Spike { step, cell } in &engine.recent[..gone] {
                let old = &mut self.old[*cell as usize];
                learning.entry((old[0] != NEVER).then_some(&*old), *step as u32, &mut out);
                old.copy_from_slice(&out);
            }
        }
        engine.recent.drain(..gone);
    }

    /// Where it is, where nobody says which parts are near each other.
    fn alone(&self) -> Where {
        Where { part: self.part, parts: self.whole.parts(), nodes: 1 }
    }

    fn fail(&mut self, e: Error) -> Error {
        // Where it is others that have gone, the GPUs here are as they were.
        let others = self.collector.as_ref().is_some_and(|c| c.gone);
        let e = match (others, e.kind()) {
            (true, _) => e,
            (_, ErrorKind::Cuda) => Error::lost(format!("a GPU of part {} is lost: {e}", self.part)),
            _ => of_several(e, self.engine.units.len()),
        };
        self.engine.failed = Some(e.to_string());
        if e.kind() == &ErrorKind::Lost && !others {
            // As of CudaEngine: what waits for a GPU that has gone is left to the driver.
            let engine = &mut self.engine;
            let (units, ears) = (std::mem::take(&mut engine.units), std::mem::take(&mut self.ears));
            std::mem::forget((units, ears, engine.resident.take(), self.collector.take()));
        }
        e
    }

    /// Runs to step `to`; what fired here.
    fn run_to(&mut self, to: u64) -> Result<Vec<Spike>> {
        self.make_room(to - self.engine.step)?;
        let mut own = Vec::new();
        self.engine.run(to, &mut own)?;
        Ok(own)
    }

    /// The next exchange's steps, and all that fired in them.
    fn meet(&mut self, to: u64) -> Result<Vec<Spike>> {
        if self.collector.is_some() {
            return self.meet_on_device(to);
        }
        let from = self.engine.step;
        let own = self.run_to(to)?;
        let Some(exchange) = &mut self.exchange else { return Ok(own) };
        let others = exchange.exchange(to, &own)?;
        self.take_up(from, own, &others)
    }

    fn take_up(&mut self, from: u64, own: Vec<Spike>, others: &[Spike]) -> Result<Vec<Spike>> {
        let mut others = others.to_vec();
        others.sort_unstable();
        if !others.is_empty() {
            self.take_in(from, self.engine.step, &others)?;
        }
        let mut all = own;
        all.append(&mut others);
        all.sort();
        self.remember(&all);
        Ok(all)
    }
}

/// Lists of spikes on a device, as hear.cu takes them.
struct Lists {
    address: u64,
    pitch: usize,
    count: usize,
    own: u32,
    head: usize,
}

/// The most lists.
const MOST_LISTS: usize = 1 << 11;

impl PartEngine for CudaPart<'_> {
    fn most_steps(&self) -> u64 {
        self.across
    }

    fn heard(&self) -> Result<()> {
        let what = || Error::value(format!("step {}: what fired elsewhere was not heard yet", self.engine.step));
        if self.untold.is_none() { Ok(()) } else { Err(what()) }
    }

    fn fire(&mut self, steps: u64) -> Result<Vec<Spike>> {
        let from = self.engine.step;
        let joined = self.exchange.is_some() || self.collector.is_some();
        if self.untold.is_some() || joined || !(1..=self.across).contains(&steps) {
            return Err(Error::value(format!(
                "{steps} steps from step {from} on: at most {} at a time, and what fires elsewhere is heard in between",
                self.across
            )));
        }
        self.engine.may_reach(from + steps)?;
        let own = self.run_to(from + steps).map_err(|e| self.fail(e))?;
        self.untold = Some((from, own.clone()));
        Ok(own)
    }

    fn hear(&mut self, others: &[Spike]) -> Result<()> {
        self.engine.whole()?;
        let (step, cells) = (self.engine.step, self.engine.plan.cells());
        let Some((since, _)) = &self.untold else {
            return Err(Error::value(format!("at step {step} everything was heard already")));
        };
        let fits = |s: &&Spike| (*since..step).contains(&s.step) && u64::from(s.cell) < cells;
        if let Some(bad) = others.iter().find(|s| !fits(s)) {
            let what = format!("cell {} cannot have fired in step {} before step {step}", bad.cell, bad.step);
            return Err(Error::value(what));
        }
        let (since, own) = self.untold.take().unwrap_or_default();
        self.take_up(since, own, others).map_err(|e| self.fail(e)).map(drop)
    }

    fn offer(&self) -> Result<Vec<u8>> {
        self.engine.whole()?;
        Ok(levels::offer(&self.engine.units[0].memory.device, self.alone(), Transport::Nccl))
    }

    fn connect(&mut self, offers: &[Vec<u8>], steps: u64) -> Result<()> {
        // What joined others that have gone is of no use.
        self.collector = None;
        self.heard()?;
        if self.engine.units.is_empty() || !(1..=self.across).contains(&steps) || offers.len() != self.whole.parts() {
            return Err(Error::value(format!(
                "{} parts of {} cannot meet every {steps} steps, of {} at most",
                offers.len(),
                self.whole.parts(),
                self.across
            )));
        }
        self.across = steps;
        self.join(offers, self.alone(), Transport::Nccl)
    }

    fn keys(&self) -> Result<Keys> {
        self.engine.whole()?;
        self.engine.resident.as_ref().map_or_else(|| Ok(Keys::default()), |r| r.keys(self.engine.step))
    }

    fn counted(&self) -> Result<Vec<u64>> {
        self.engine.whole()?;
        self.engine.resident.as_ref().map_or_else(|| Ok(Vec::new()), |r| r.counted(self.engine.step))
    }

    fn known(&self, projection: usize) -> Result<Vec<Known>> {
        self.engine.whole()?;
        self.engine.resident.as_ref().map_or_else(|| Ok(Vec::new()), |r| r.known(projection, self.engine.step))
    }
}

impl Engine for CudaPart<'_> {
    fn step(&self) -> u64 {
        self.engine.step
    }

    fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        self.heard()?;
        if self.exchange.is_none() && self.collector.is_none() && self.engine.config.is_apart() {
            return Err(Error::value("a part that hears nobody does not go on by itself"));
        }
        let to = self.engine.step + steps;
        self.engine.may_reach(to)?;
        while self.engine.step < to {
            let next = (self.engine.step + self.across).min(to);
            spikes.extend(self.meet(next).map_err(|e| self.fail(e))?);
        }
        Ok(())
    }

    fn state(&self) -> Result<State> {
        self.heard()?;
        self.engine.state_with((!self.old.is_empty()).then_some(&self.old))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.engine.restore(state)?;
        if let Some(learned) = &state.learned {
            self.old.clone_from(&learned.entries);
        }
        // Nothing is known of how many entries there are.
        (self.untold, self.unsettled) = (None, MOST_APART + u64::from(self.engine.plan.max_delay));
        Ok(())
    }

    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>> {
        self.engine.cell(population, cell)
    }

    fn synapses(&self) -> u64 {
        self.engine.synapses()
    }

    fn weights(&self) -> Result<Vec<Weights>> {
        self.engine.weights()
    }

    fn table(&self, projection: usize) -> Result<Synapses> {
        list::changed(self.engine.plan, projection, || self.known(projection))
    }

    fn events(&self) -> u64 {
        let own = |(unit, ears): (&super::Unit, &Ears)| {
            unit.memory.download::<u64>(&ears.events, 0, 1).map_or(0, |events| events[0])
        };
        self.engine.events() + self.engine.units.iter().zip(&self.ears).map(own).sum::<u64>()
    }

    fn config(&self) -> String {
        format!("{}{}", self.engine.config(), self.carrier)
    }

    fn variant(&self) -> &'static str {
        "resident part"
    }

    fn launches(&self) -> u64 {
        self.engine.launches()
    }

    fn update_bytes(&self) -> u64 {
        self.engine.update_bytes()
    }

    fn synapse_bytes(&self) -> Option<f64> {
        self.engine.synapse_bytes()
    }
}
