//! Synapses on the device: from the draws themselves where the rule is one of draws alone, else from lists of the host's.

use super::config::{self, Config};
use super::kernels;
use super::memory::Cells;
use super::narrow::Narrow;
use crate::cuda::{Arg, DeviceBuffer, Kernel, LaunchConfig};
use crate::spiking::connect::{Subset, rows};
use crate::spiking::device::{Fields, Memory};
use crate::spiking::network::{Delay, Rule};
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::ONE;
use crate::{Error, Result};

/// Synapses of a list that are on their way at a time: 256 MiB.
pub(super) const LIST: usize = 1 << 24;
/// Threads a block of every kernel of `build.cu` but the scan.
const THREADS: u32 = 256;

/// The synapses of a network, and the ring that they act on.
pub(super) struct Synapses {
    base: DeviceBuffer,
    first: DeviceBuffer,
    segments: DeviceBuffer,
    rest: DeviceBuffer,
    pub ring: DeviceBuffer,
    calendar: DeviceBuffer,
    noted: DeviceBuffer,
    weights: DeviceBuffer,
    /// By row: its synapses that are here.
    pub degrees: DeviceBuffer,
    pub count: u64,
    card: usize,
    restore: Kernel,
}

/// `Net` of `network.cuh` on card number `card`, with the addresses of base, first, segments, rest, ring, calendar, noted and weights.
fn net(plan: &Plan, config: &Config, card: usize, cells: &Cells, at: [u64; 8]) -> Vec<u8> {
    let (id_bits, ids) = config.header();
    // Of rows that are spread, segments of all shards side by side.
    let (row, shard) = if config.spread > 0 { (config.local(), 1) } else { (1, config.shards * config.cells) };
    let (by_row, by_shard) = (row * config.segment, shard * config.segment);
    let lead = [&cells.parts, &cells.drives, &cells.tasks, &cells.first_task].map(DeviceBuffer::address);
    let all = lead
        .into_iter()
        .chain(at)
        .chain([cells.seeds(plan), by_shard as u64])
        .fold(Fields::default(), Fields::u64)
        .u32(config.logged(plan) as u32)
        .u32(config.shards as u32)
        .u32(plan.network.populations.len() as u32)
        .u32(config.cells as u32)
        .u32(config.pitch as u32)
        .u32(config.ring as u32)
        .u32(config.slot_bits)
        .u32(u32::from(config.wide))
        .u32(config.segment as u32)
        .u32(config.lane_bits())
        // Each list begins at a whole piece of 16 bytes.
        .u32((config.room & !3) as u32)
        .u32(id_bits)
        .u32(ids)
        .u32((card * config.local()) as u32)
        .u32(config.local() as u32)
        .u32(config.near as u32)
        .u32(config.learns.map_or(0, |l| l.head) as u32)
        .u32(config.near_arrivals as u32)
        .u32(if config.guides { (config::GUIDE_WORDS * plan.poisson.len()) as u32 } else { 0 })
        .u32(plan.poisson.len() as u32)
        .u32(plan.poisson.iter().map(|d| d.thresholds.len() as u32).sum())
        .u32(config.codes as u32)
        .u32(config.code_shift())
        .u32(config.weights_at() as u32)
        .u32(config.spread as u32)
        .u32(config.spread_at() as u32)
        .u32(by_row as u32);
    Narrow::fields(config.narrow.as_ref(), config.ring, all).padded().0
}

/// The rule's number in `build.cu`, its degree, and how many synapses it draws; `None` for rules that the host enumerates.
fn drawn(plan: &Plan, projection: usize) -> Option<(u32, u32, u64)> {
    let p = &plan.network.projections[projection];
    let e = &plan.efficacies[projection];
    if e.weight.is_none() || (e.delay.is_none() && distances(plan, projection).is_none()) {
        return None;
    }
    let size = |i: usize| u64::from(plan.network.populations[i].size);
    match p.rule {
        Rule::Total { count, multapses: true } => Some((1, 1, count)),
        Rule::InDegree { count, multapses: true } => Some((2, count, u64::from(count) * size(p.target))),
        Rule::OutDegree { count, multapses: true } => Some((3, count, u64::from(count) * size(p.source))),
        _ => None,
    }
}

/// Of a projection whose delays follow from the distances of its cells: the offset, what is passed in a ms, and a step, ms.
fn distances(plan: &Plan, projection: usize) -> Option<[f64; 3]> {
    let p = &plan.network.projections[projection];
    let placed = [p.source, p.target].iter().all(|i| plan.network.populations[*i].positions.is_some());
    match p.delay {
        Delay::Distance { velocity, offset_ms } if placed => Some([offset_ms, velocity, plan.network.dt_ms]),
        _ => None,
    }
}

/// Whether the host enumerates a projection's synapses.
pub(super) fn is_listed(plan: &Plan, projection: usize) -> bool {
    drawn(plan, projection).is_none()
}

/// Bytes of counts from which on they are given back to the device, not to the allocator, when a network is made.
const GIVEN_BACK: usize = 1 << 27;

/// The places of the populations whose distances make the delays of synapses that the device draws.
fn positions(plan: &Plan, memory: &Memory) -> Result<Vec<Option<DeviceBuffer>>> {
    let n = &plan.network;
    let asks = |i: usize| distances(plan, i).is_some() && drawn(plan, i).is_some();
    let asked: Vec<_> = n.projections.iter().enumerate().filter(|(i, _)| asks(*i)).map(|(_, p)| p).collect();
    let own = |(k, p): (usize, &crate::spiking::network::Population)| {
        let at = p.positions.as_ref().filter(|_| asked.iter().any(|a| a.source == k || a.target == k));
        at.map(|at| memory.upload(at.as_slice())).transpose()
    };
    n.populations.iter().enumerate().map(own).collect()
}

struct Builder<'a> {
    plan: &'a Plan,
    layout: &'a Layout,
    card: usize,
    memory: &'a Memory,
    /// The row of each cell of the network, where several cards share it.
    row_of: Option<&'a DeviceBuffer>,
    /// Of populations whose distances make delays here.
    positions: Vec<Option<DeviceBuffer>>,
    kernel: Kernel,
    blocks: u32,
    done: f64,
    built: &'a (dyn Fn(usize, usize) + Sync),
}

impl Builder<'_> {
    /// One pass over all projections.
    fn pass(&mut self, net: &[u8], build: &[u8]) -> Result<()> {
        for i in 0..self.plan.network.projections.len() {
            match drawn(self.plan, i) {
                Some((rule, degree, count)) => self.draw(i, rule, degree, count, net, build)?,
                None => self.list(i, net, build)?,
            }
            self.done += self.plan.expected(i);
            let all = 2.0 * self.plan.expected_synapses().max(1.0);
            (self.built)((100.0 * self.done / all).min(100.0) as usize, 100);
        }
        Ok(())
    }

    fn draw(&self, index: usize, rule: u32, degree: u32, count: u64, net: &[u8], build: &[u8]) -> Result<()> {
        let e = &self.plan.efficacies[index];
        let mut codes = Fields::default();
        let mut held = Vec::new();
        let none = || (Vec::new(), 0, 1);
        let weights = e.weight.as_ref().map_or_else(none, |weights| weights.words());
        // Delays by distance have none.
        let delays = e.delay.as_ref().map_or_else(none, |d| d.words());
        for (words, count, first) in [weights, delays] {
            let table = self.memory.upload(&words)?;
            codes = codes.u64(table.address()).u32(count).u32(first as u32);
            held.push(table);
        }
        self.launch(index, 0, &codes, count, [rule, degree], net, build)
    }

    /// The host enumerates the synapses onto this card's cells; so many targets at a time that their list has about [`LIST`] entries.
    fn list(&self, index: usize, net: &[u8], build: &[u8]) -> Result<()> {
        let p = &self.plan.network.projections[index];
        let own = self.layout.own(self.card, p.target);
        let share = own.len() as f64 / f64::from(self.plan.network.populations[p.target].size.max(1));
        let pieces =
            (self.plan.expected(index) * share / LIST as f64).ceil().clamp(1.0, own.len().max(1) as f64) as u64;
        let cut = |i: u64| own.low + (own.len() as u64 * i / pieces) as u32;
        for piece in 0..pieces {
            let mut list: Vec<[u32; 4]> = Vec::new();
            let some = Subset { low: cut(piece), high: cut(piece + 1), ..own };
            rows::enumerate(self.plan, index, some, &mut |s, t, code, delay| {
                list.push([s, t, code as u32, delay.into()]);
            });
            let buffer = self.memory.upload(&list)?;
            let none = Fields::default().u64(0).u64(0).u64(0).u64(0);
            self.launch(index, buffer.address(), &none, list.len() as u64, [0, 1], net, build)?;
            // It is freed on the stream, after the launch.
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn launch(
        &self,
        index: usize,
        list: u64,
        codes: &Fields,
        count: u64,
        [rule, degree]: [u32; 2],
        net: &[u8],
        build: &[u8],
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let n = &self.plan.network;
        let (p, key) = (&n.projections[index], n.projection_key(index));
        let mut source = Fields::default().u64(list);
        source.0.extend(&codes.0);
        // Where synapses follow their targets, only those onto this card's cells.
        let own = self.layout.own(self.card, p.target);
        let cut = |place: u32| u64::from(place) * u64::from(degree);
        let (begin, count) = if rule == 2 { (cut(own.low), cut(own.high)) } else { (0, count) };
        if begin == count {
            return Ok(());
        }
        let order = own.order.map(|o| self.memory.upload(o.cells())).transpose()?;
        let address = |buffer: Option<&DeviceBuffer>| buffer.map_or(0, DeviceBuffer::address);
        let first = [p.source, p.target].map(|population| self.plan.first[population] as u32);
        let places = Fields::default().u64(address(self.row_of)).u64(address(order.as_ref()));
        let places = first.into_iter().fold(places, Fields::u32).0;
        let by_distance = distances(self.plan, index).filter(|_| rule != 0);
        let place = |population: usize| by_distance.map_or(0, |_| address(self.positions[population].as_ref()));
        let ([from, to], ms) = ([place(p.source), place(p.target)], by_distance.unwrap_or_default().map(f64::to_bits));
        let source = source
            .u64(begin)
            .u64(count)
            .u64(key.seed)
            .u64(from)
            .u64(to)
            .u64(ms[0])
            .u64(ms[1])
            .u64(ms[2])
            .u32(rule)
            .u32(degree)
            .u32(key.owner)
            .u32(n.populations[p.source].size)
            .u32(n.populations[p.target].size)
            .u32(u32::from(p.source == p.target && !p.autapses))
            .u32(p.source as u32)
            .u32(p.target as u32)
            .u32(self.plan.models[p.target].ports().len() as u32);
        let learning = self.plan.learning.as_ref();
        let rule = learning.zip(self.plan.rule(index)).map(|(l, rule)| (&l.rules[usize::from(rule)], rule));
        let source = match rule {
            Some((rule, number)) => {
                let most = if rule.stdp.is_some() { rule.brought(rule.high, ONE).unsigned_abs() } else { 0 };
                source.u32((u32::from(number) + 1) | rule.shift << 16).u32(rule.low).u32(rule.high).u32(most)
            }
            None => source.u32(0).u32(0).u32(0).u32(0),
        }
        .padded();
        let blocks = (count - begin).div_ceil(THREADS.into()).clamp(1, self.blocks.into()) as u32;
        let config = LaunchConfig::new((blocks, 1, 1), (THREADS, 1, 1));
        let args = [Arg::Bytes(net), Arg::Bytes(&source.0), Arg::Bytes(build), Arg::Bytes(&places)];
        // SAFETY: the structs are those of network.cuh and build.cu, whose sizes the launch checks; what they point to lives
        // until the stream has passed the launch, and nobody else writes it meanwhile.
        unsafe { self.kernel.launch(self.memory.stream, &config, &args) }
    }
}

impl Synapses {
    /// Makes the synapses of `plan` onto the cells of card number `card`; `row_of` has the row of each cell of the network, and
    /// `built(percent, 100)` is told how far it is.
    ///
    /// # Errors
    /// `Config`, where inputs can add up beyond 32 bits; `OutOfMemory`; what the driver refuses.
    pub fn new(
        plan: &Plan,
        config: &Config,
        (layout, card): (&Layout, usize),
        row_of: &[u32],
        cells: &Cells,
        memory: &Memory,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        let device = &memory.device;
        let spec = kernels::build(config.cards > 1, config.long);
        let kernel = |name| device.kernel(&spec, name);
        let k = config.local();
        let rows = config.shards * config.cells;
        let counts = memory.zeros(4 * k * (rows + 1))?;
        let load = memory.zeros(8 * k * config.pitch)?;
        let first = memory.room(4 * k * (rows + 1))?;
        let mut base = memory.zeros(8 * k)?;
        let weights =
            if config.codes > 0 { config::distinct(plan, config.codes).unwrap_or_default() } else { Vec::new() };
        let weights = memory.upload(&weights)?;
        let blocks = device.props().sm_count * 16;
        let row_of = (config.cards > 1).then(|| memory.upload(row_of)).transpose()?;
        let (builds, row_of) = (kernel("spiking_build")?, row_of.as_ref());
        let positions = positions(plan, memory)?;
        let mut builder =
            Builder { plan, layout, card, memory, row_of, positions, kernel: builds, blocks, done: 0.0, built };
        let degrees = memory.zeros(4 * rows)?;
        let build = |fills: u64| {
            [counts.address(), load.address(), degrees.address(), fills]
                .into_iter()
                .fold(Fields::default(), Fields::u64)
                .0
        };
        let bytes = net(plan, config, card, cells, [base.address(), first.address(), 0, 0, 0, 0, 0, weights.address()]);
        builder.pass(&bytes, &build(0))?;
        refuse_overflow(plan, config, (layout, card), &memory.download::<u64>(&load, 0, k * config.pitch)?)?;

        let plain = LaunchConfig::new((blocks, 1, 1), (THREADS, 1, 1));
        let args = [counts.address(), degrees.address()].map(Arg::U64);
        // SAFETY: counts holds [shards, rows + 1] numbers and degrees one a row, on this stream.
        unsafe { kernel("spiking_degrees")?.launch(memory.stream, &plain, &[Arg::Bytes(&bytes), args[0], args[1]]) }?;
        let count = memory.download::<u32>(&degrees, 0, rows)?.iter().map(|n| u64::from(*n)).sum();

        let args = [counts.address(), first.address(), base.address()].map(Arg::U64);
        let scan = LaunchConfig::new((k as u32, 1, 1), (1024, 1, 1));
        // SAFETY: counts and first hold [shards, rows + 1] numbers and base one a shard, all on this stream.
        unsafe {
            kernel("spiking_scan")?.launch(memory.stream, &scan, &[Arg::Bytes(&bytes), args[0], args[1], args[2]])
        }?;
        // Each shard's number of synapses beyond its segments becomes where they begin.
        let totals = memory.download::<u64>(&base, 0, k)?;
        if let Some(most) = totals.iter().find(|n| **n > u64::from(u32::MAX)) {
            return Err(Error::config(format!("network: {most} synapses of a multiprocessor are more than 2^32 - 1")));
        }
        let mut beyond = 0u64;
        let mut starts = Vec::with_capacity(k);
        for total in totals {
            starts.push(beyond);
            beyond += total;
        }
        memory.write(&mut base, &starts)?;
        let synapse = config.synapse();
        let segments = memory.zeros(k * rows * config.segment * synapse)?;
        let rest = memory.room(beyond as usize * synapse)?;
        let at = [&base, &first, &segments, &rest].map(DeviceBuffer::address);
        builder.pass(
            &net(plan, config, card, cells, [at[0], at[1], at[2], at[3], 0, 0, 0, weights.address()]),
            &build(1),
        )?;
        drop((counts, load));
        // Marks say where narrow rows go on.
        let first = if config.narrow.is_some() {
            drop(first);
            memory.room(0)?
        } else {
            first
        };
        // What the counts took is in pieces that no calendar fits into.
        if 4 * k * (rows + 1) >= GIVEN_BACK {
            device.release_cached_memory()?;
        }
        let ring = memory.zeros(4 * k * config.ring * config.pitch)?;
        let calendar = memory.room(config.due() * k * config.ring * config.room)?;
        let noted = memory.zeros(4 * k * config.ring)?;
        let restore = kernel("spiking_restore")?;
        Ok(Self { base, first, segments, rest, ring, calendar, noted, weights, degrees, count, card, restore })
    }

    /// `Net` of `network.cuh`.
    pub fn net(&self, plan: &Plan, config: &Config, cells: &Cells) -> Vec<u8> {
        let (ring, calendar, noted) = (&self.ring, &self.calendar, &self.noted);
        let held = [&self.base, &self.first, &self.segments, &self.rest, ring, calendar, noted, &self.weights];
        net(plan, config, self.card, cells, held.map(DeviceBuffer::address))
    }

    /// Clears the ring and puts back what `recent` (step << 32 | row) sends to step `now` and later.
    pub fn restore(&mut self, memory: &Memory, net: &[u8], shards: usize, recent: &[u64], now: u64) -> Result<()> {
        memory.clear(&mut self.ring)?;
        let list = memory.upload(recent)?;
        let args = [Arg::Bytes(net), Arg::U64(list.address()), Arg::U64(recent.len() as u64), Arg::U64(now)];
        let config = LaunchConfig::new((shards as u32, 1, 1), (THREADS, 1, 1));
        // SAFETY: the network and the list live on this stream until it has passed the launch.
        unsafe { self.restore.launch(memory.stream, &config, &args) }
    }
}

/// Refuses inputs that can add up beyond 32 bits; `load` is `[shard, slot]`.
fn refuse_overflow(plan: &Plan, config: &Config, (layout, card): (&Layout, usize), load: &[u64]) -> Result<()> {
    for (k, load) in load.chunks(config.pitch).enumerate() {
        let (parts, _) = config.shard(plan, layout, card * config.local() + k);
        for (p, part) in parts.iter().enumerate() {
            for port in 0..plan.models[p].ports().len() {
                let driven = plan.poisson.iter().filter(|d| d.target == p && d.port == port);
                let driven: u64 =
                    driven.map(|d| (d.thresholds.len() as u64 + 1) * u64::from(d.code.unsigned_abs())).sum();
                let most = load[part.slots(port)].iter().max().map_or(0, |most| most + driven);
                if most > i32::MAX as u64 {
                    return Err(rows::overflow(plan, p, most));
                }
            }
        }
    }
    Ok(())
}
