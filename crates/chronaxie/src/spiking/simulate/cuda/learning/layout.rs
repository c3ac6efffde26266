//! What of a plan whose synapses change lies on the device, in the layout of `steps.cu`.

use super::Config;
use crate::cuda::{CudaDevice, DeviceBuffer};
use crate::spiking::connect::{Shard, shards_for};
use crate::spiking::device::{Fields, Memory};
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::Learning;
use crate::spiking::simulate::lane::Constants;
use crate::spiking::simulate::learned;
use crate::{Error, ErrorKind, Result, pool};

/// Rows on the device, of one shard of the host's.
pub(super) struct Rows {
    pub first: DeviceBuffer,
    pub words: DeviceBuffer,
    /// Of synapses that change, with their number.
    pub strengths: Option<(DeviceBuffer, usize)>,
}

/// The ring's place of each slot of a shard: port times cells, and the cell.
pub(super) fn places(plan: &Plan, shard: &Shard) -> Vec<u32> {
    let mut places = learned::cells_of(plan, shard);
    for (p, part) in shard.parts.iter().enumerate() {
        for port in 0..plan.models[p].ports().len() {
            places[part.slots(port)].iter_mut().for_each(|place| *place += port as u32 * plan.cells() as u32);
        }
    }
    places
}

/// Bytes of a device's memory.
pub fn bytes(plan: &Plan, config: &Config, learning: &Learning) -> f64 {
    let (cells, cards) = (plan.cells() as f64, config.cards as f64);
    let ring = 4.0 * (config.ring * config.ports) as f64 * cells;
    let history = 4.0 * (config.depth * learning.width()) as f64 * cells;
    // Eligibilities, and a second list of them while a state is read.
    let eligible = if learning.modulators.is_empty() { 0.0 } else { 8.0 * plan.expected_synapses() };
    let factors = 4.0 * (learning.scalings.len() * (1 + config.windows)) as f64 * cells;
    let jumps = 8.0 * (learning.modulators.len() * config.jumps) as f64;
    // Lists of delays before synapses.
    let lists = cells * f64::from(plan.max_delay) * shards_for(plan, pool::num_threads()) as f64;
    let axonal = learning.rules.iter().any(|r| r.stdp.as_ref().is_some_and(|p| p.axonal));
    let axons = if axonal { 8.0 * lists.min(plan.expected_synapses()) } else { 0.0 };
    // Synapses onto a card's own cells; of cells it has all, and of several cards what they tell each other.
    let told = if config.cards > 1 { 16.0 * cards * cells } else { 0.0 };
    // Where the rows begin of those that are kept where none changes, and what inputs can add up to while the network is made.
    let heads =
        if config.keeps && !config.changes { 8.0 * cells * shards_for(plan, pool::num_threads()) as f64 } else { 0.0 };
    let weighed = if config.drawn > 0 { 8.0 * config.ports as f64 * cells } else { 0.0 };
    (8.0 * plan.expected_kept(config.redraw) + eligible + axons) / cards
        + heads
        + weighed
        + ring
        + history
        + factors
        + jumps
        + told
        + 192.0 * cells
}

/// Refuses what needs more memory than the device has free, before anything is allocated.
pub(super) fn require_memory(plan: &Plan, device: &CudaDevice, config: &Config, learning: &Learning) -> Result<()> {
    let asked = bytes(plan, config, learning) as u64;
    let free = device.memory_info()?.free;
    if asked <= free {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let what = format!(
        "the network of {} cells and {:.3e} synapses{}{} needs {:.1} GB on {}, where {:.1} GB are free; --scale makes it smaller{}",
        plan.cells(),
        plan.expected_synapses(),
        if config.changes { ", some of which change," } else { "" },
        if config.drawn > 0 { ", some of which are drawn at each spike," } else { "" },
        gb(asked),
        device.name(),
        gb(free),
        plan.procedural_hint(config.redraw)
    );
    Err(Error::new(ErrorKind::OutOfMemory { asked, free }, what))
}

/// The rows of every shard, those that change last; and how many synapses each cell has.
pub(super) fn upload(plan: &Plan, config: &Config, memory: &Memory, shards: &[Shard]) -> Result<(Vec<Rows>, Vec<u32>)> {
    let cells = plan.cells() as u32;
    let mut degrees = vec![0u32; cells as usize];
    let (mut fixed, mut changing) = (Vec::new(), Vec::new());
    for shard in shards {
        let mut add = |first: &[u64]| {
            degrees.iter_mut().zip(first.windows(2)).for_each(|(n, own)| *n += (own[1] - own[0]) as u32);
        };
        add(&shard.rows.first);
        shard.changing.iter().for_each(|c| add(&c.first));
        let places = places(plan, shard);
        let mut words: Vec<u64> = Vec::with_capacity(shard.rows.len());
        for cell in 0..cells {
            for (delay, here) in shard.rows.groups(cell) {
                shard.rows.each(here, |slot, weight| {
                    let (place, delay) = (u64::from(places[usize::from(slot)]), u64::from(delay));
                    words.push(match config.long {
                        0 => u64::from(weight as u16) << 48 | delay << 32 | place,
                        slot_bits => u64::from(weight as u32) << 32 | delay << slot_bits | place,
                    });
                });
            }
        }
        if !shard.rows.first.is_empty() {
            let first = memory.upload(&shard.rows.first)?;
            fixed.push(Rows { first, words: memory.upload(&words)?, strengths: None });
        }
        drop(words);
        let Some(synapses) = &shard.changing else { continue };
        let targets = learned::cells_of(plan, shard);
        let mut words: Vec<u32> = Vec::with_capacity(synapses.slots.len());
        for cell in 0..cells {
            for (group, here) in synapses.groups(cell) {
                let rule = u32::from(group.rule).checked_shl(config.cell_bits + config.delay_bits).unwrap_or(0);
                let head = rule | u32::from(group.delay) << config.cell_bits;
                let slots = &synapses.slots[here.start as usize..here.end as usize];
                words.extend(slots.iter().map(|slot| head | targets[usize::from(*slot)]));
            }
        }
        let strengths = memory.upload(&synapses.strengths)?;
        changing.push(Rows {
            first: memory.upload(&synapses.first)?,
            words: memory.upload(&words)?,
            strengths: Some((strengths, words.len())),
        });
    }
    fixed.extend(changing);
    Ok((fixed, degrees))
}

/// The first fields of `Net`: cells, drives, rows and rules; then the states, where each population's begin, and the number of
/// tasks, which are of the cells of part `card` of a layout.
pub(super) fn describe(
    plan: &Plan,
    learning: &Learning,
    memory: &Memory,
    rows: &[Rows],
    (layout, card): (&Layout, usize),
    held: &mut Vec<DeviceBuffer>,
) -> Result<(Fields, DeviceBuffer, Vec<usize>, u32)> {
    let n = &plan.network;
    let mut constants = Vec::new();
    let (mut states, mut first_state) = (Vec::new(), Vec::new());
    for (p, population) in n.populations.iter().enumerate() {
        let own = Constants::new(plan, p, 0..population.size, population.size as usize)?;
        first_state.push(states.len());
        states.extend(own.states.iter().flatten().copied());
        constants.push(own);
    }
    let states = memory.upload(&states)?;
    let mut keep = |buffer: DeviceBuffer| {
        let address = buffer.address();
        held.push(buffer);
        address
    };
    let (mut parts, mut drives, mut tasks) = (Fields::default(), Fields::default(), Vec::<[u32; 2]>::new());
    let mut drive = 0u32;
    for (p, (population, own)) in n.populations.iter().zip(&constants).enumerate() {
        let before = drive;
        for table in plan.poisson.iter().filter(|t| t.target == p) {
            drives = drives
                .u64(keep(memory.upload(&table.thresholds)?))
                .u64(table.start)
                .u64(table.stop)
                .u32(table.thresholds.len() as u32)
                .u32(table.key.owner)
                .u32(table.port as u32)
                .u32(table.code as u32);
            drive += 1;
        }
        let list = population.replay.as_deref().map_or(&[][..], Vec::as_slice);
        let list = list.iter().filter(|(step, _)| *step < 1 << 32);
        let list: Vec<u64> = list.map(|(step, cell)| step << 32 | u64::from(*cell)).collect();
        let unit = |port: usize| plan.units[p].get(port).copied().unwrap_or(0.0) as f32;
        let here = layout.own(card, p);
        tasks.extend((here.low..here.high).step_by(32).map(|i| [p as u32, i]));
        parts = parts
            .u64(states.address() + 4 * first_state[p] as u64)
            .u64(keep(memory.upload(&own.coefficients)?))
            .u64(keep(memory.upload(&own.chances)?))
            .u64(keep(memory.upload(&list)?))
            .u32(list.len() as u32)
            .u32(plan.models[p].twin() as u32)
            .u32(population.size)
            .u32(plan.first[p] as u32)
            .u32(own.stride as u32)
            .u32(u32::from(own.chances.len() > 1))
            .u32(n.population_key(p).owner)
            .u32(before)
            .u32(drive - before)
            .f32(unit(0))
            .f32(unit(1))
            .u32(n.replica_of(p) as u32);
    }
    let mut lists = Fields::default();
    for r in rows {
        lists = lists.u64(r.first.address()).u64(r.words.address());
        lists = lists.u64(r.strengths.as_ref().map_or(0, |(strengths, _)| strengths.address()));
    }
    let [rules, traces, shorts] = tables(learning, memory, &mut keep)?;
    let mut head = Fields::default().u64(keep(memory.upload(&parts.0)?)).u64(keep(memory.upload(&drives.0)?));
    head = head.u64(keep(memory.upload(&tasks)?));
    for fields in [lists, rules, traces, shorts] {
        head = head.u64(keep(memory.upload(&fields.0)?));
    }
    Ok((head, states, first_state, tasks.len() as u32))
}

/// The rules, traces and short-term rules of rules.cuh; `keep` keeps what they point to.
pub(super) fn tables(
    learning: &Learning,
    memory: &Memory,
    keep: &mut impl FnMut(DeviceBuffer) -> u64,
) -> Result<[Fields; 3]> {
    let mut rules = Fields::default();
    for r in &learning.rules {
        let pair = r.stdp.as_ref();
        let flag = |yes: bool, bit: u32| if yes { bit } else { 0 };
        let kind = pair.map_or(0, |p| 1 | flag(p.soft_plus, 2) | flag(p.soft_minus, 4));
        rules = rules
            .u32(pair.map_or(0, |p| p.plus))
            .u32(pair.map_or(0, |p| p.minus))
            .u32(r.low)
            .u32(r.high)
            .u32(r.step() as u32)
            .u32(pair.map_or(0, |p| p.x as u32))
            .u32(pair.map_or(0, |p| p.y as u32))
            .u32(r.port as u32)
            .u32(kind)
            .u32(r.short.map_or(u32::MAX, |s| s as u32));
    }
    let mut traces = Fields::default();
    for t in &learning.traces {
        let decay = keep(memory.upload(&t.decay)?);
        traces = traces.u64(decay).u32(t.decay.len() as u32).u32(t.bits).u32(u32::from(t.nearest));
        traces = traces.u32(t.of.map_or(u32::MAX, |of| of as u32));
    }
    let mut shorts = Fields::default();
    for s in &learning.shorts {
        let (rec, fac) = (keep(memory.upload(&s.rec)?), keep(memory.upload(&s.fac)?));
        shorts = shorts.u64(rec).u64(fac).u32(s.rec.len() as u32).u32(s.fac.len() as u32).u32(s.u).u32(0);
    }
    Ok([rules, traces, shorts])
}
