//! Synapses that the streaming kernel draws again at each spike, as the CPU does: drawn.cuh.

use super::super::kernels::HEADERS;
use super::card::Card;
use super::layout::places;
use super::{Config, Spike};
use crate::cuda::{Arg, Constant, DeviceBuffer, KernelSource, LaunchConfig, Specialisation};
use crate::spiking::connect::{Shard, drawn, rows};
use crate::spiking::device::{Fields, Memory};
use crate::spiking::network::Rule;
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::{Error, Result};

const THREADS: u32 = 256;

/// The projections of a card whose synapses are drawn again.
pub(super) struct Drawn {
    /// `Drawn` of drawn.cuh, one after the other.
    pub table: DeviceBuffer,
    pub count: u32,
    /// Likewise, each.
    structs: Vec<Vec<u8>>,
    _held: Vec<DeviceBuffer>,
}

/// What says how much they can bring to each slot.
pub(super) fn weigh(long: bool) -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/learning/drawn.cu", include_str!("drawn.cu"));
    let constants = vec![("kLong", Constant::Bool(long))];
    Specialisation { headers: HEADERS, constants, fmad: false, ..Specialisation::new(source, &["spiking_weigh"]) }
}

impl Drawn {
    /// Those onto the cells of part `card` of a layout.
    pub fn new(plan: &Plan, config: &Config, memory: &Memory, (layout, card): (&Layout, usize)) -> Result<Self> {
        let n = &plan.network;
        let mut held = Vec::new();
        let mut keep = |buffer: DeviceBuffer| {
            let address = buffer.address();
            held.push(buffer);
            address
        };
        let all: Vec<usize> = (0..n.projections.len()).filter(|i| plan.draws(*i, config.redraw)).collect();
        let own = if config.cards > 1 && !all.is_empty() {
            let mut bits = vec![0u32; plan.cells().div_ceil(32) as usize];
            layout.numbers(plan, card).for_each(|cell| bits[cell as usize / 32] |= 1 << (cell % 32));
            keep(memory.upload(&bits)?)
        } else {
            0
        };
        let mut structs = Vec::with_capacity(all.len());
        for i in all {
            let (p, key, e) = (&n.projections[i], n.projection_key(i), &plan.efficacies[i]);
            let (Some(weight), Some(delay)) = (&e.weight, &e.delay) else { continue };
            let mut fields = Fields::default();
            for (words, count, first) in [weight.words(), delay.words()] {
                fields = fields.u64(keep(memory.upload(&words)?)).u32(count).u32(first as u32);
            }
            let rule = match p.rule {
                Rule::AllToAll => 0,
                Rule::OneToOne => 1,
                _ => 2,
            };
            let no_self = p.source == p.target && !p.autapses && rule != 1;
            fields = fields.u64(key.seed).u64(own).u32(rule).u32(key.owner).u32(drawn::draws_of_a_row(plan, i));
            for population in [p.source, p.target] {
                fields = fields.u32(plan.first[population] as u32).u32(n.populations[population].size);
            }
            structs.push(fields.u32(u32::from(no_self)).u32(plan.port(p.target, true) as u32).u32(0).0);
        }
        Ok(Self { table: memory.upload(&structs.concat())?, count: structs.len() as u32, structs, _held: held })
    }

    /// Refuses inputs that can add up beyond 32 bits, with those of the synapses of `shards`, which are kept.
    ///
    /// # Errors
    /// `Config`; what the driver refuses.
    pub fn refuse_overflow(
        &self,
        plan: &Plan,
        config: &Config,
        memory: &Memory,
        (layout, card): (&Layout, usize),
        shards: &[Shard],
    ) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let cells = plan.cells() as usize;
        let load = memory.zeros(8 * config.ports * cells)?;
        let (kernel, blocks) =
            (memory.device.kernel(&weigh(config.long > 0), "spiking_weigh")?, memory.device.props().sm_count * 8);
        for fields in &self.structs {
            let args = [Arg::Bytes(fields), Arg::U32(cells as u32), Arg::U64(load.address())];
            // SAFETY: the struct is that of drawn.cuh; what it points to and the sums, one a port and cell, live on this stream.
            unsafe { kernel.launch(memory.stream, &LaunchConfig::new((blocks, 1, 1), (THREADS, 1, 1)), &args) }?;
        }
        let mut load = memory.download::<u64>(&load, 0, config.ports * cells)?;
        for shard in shards {
            let places = places(plan, shard);
            shard.rows.load.iter().zip(places).for_each(|(more, place)| load[place as usize] += u64::from(*more));
        }
        for (p, model) in plan.models.iter().enumerate() {
            for port in 0..model.ports().len() {
                let driven = plan.poisson.iter().filter(|d| d.target == p && d.port == port);
                let driven: u64 =
                    driven.map(|d| (d.thresholds.len() as u64 + 1) * u64::from(d.code.unsigned_abs())).sum();
                let first = port * cells + plan.first[p] as usize;
                let most = layout.own(card, p).iter().map(|cell| load[first + cell as usize]).max().unwrap_or(0);
                if most + driven > i32::MAX as u64 {
                    return Err(rows::overflow(plan, p, most + driven));
                }
            }
        }
        Ok(())
    }
}

/// Adds to `degrees`, one a cell of the network, how many synapses it has that are drawn again, onto any card's cells.
pub(super) fn count(plan: &Plan, config: &Config, degrees: &mut [u32]) {
    for (i, p) in plan.network.projections.iter().enumerate().filter(|(i, _)| plan.draws(*i, config.redraw)) {
        let own = &mut degrees[plan.first[p.source] as usize..][..plan.network.populations[p.source].size as usize];
        own.iter_mut().enumerate().for_each(|(source, n)| *n += drawn::degree(plan, i, source as u32));
    }
}

impl Card {
    /// Adds to `ring` what the synapses that are drawn again have under way from `recent`, times `sign`.
    pub fn add_drawn(
        &self,
        (plan, config, layout): (&Plan, &Config, &Layout),
        recent: &[Spike],
        now: u64,
        sign: i32,
        ring: &mut [i32],
    ) {
        let n = &plan.network;
        let cells = plan.cells() as usize;
        for (i, p) in n.projections.iter().enumerate().filter(|(i, _)| plan.draws(*i, config.redraw)) {
            let (first, size) = (plan.first[p.source], u64::from(n.populations[p.source].size));
            let (own, target, port) =
                (layout.own(self.number, p.target), plan.first[p.target] as usize, plan.port(p.target, true));
            for spike in recent.iter().filter(|s| (first..first + size).contains(&u64::from(s.cell))) {
                drawn::row(plan, i, spike.cell - first as u32, own, &mut |t, code, delay| {
                    let when = spike.step + u64::from(delay);
                    if when >= now {
                        let step = (when & (config.ring as u64 - 1)) as usize;
                        let port = if code < 0 { port } else { 0 };
                        let at = &mut ring[(step * config.ports + port) * cells + target + t as usize];
                        *at = at.wrapping_add(sign * code);
                    }
                });
            }
        }
    }
}

/// Refuses a network of which some synapses are to be drawn again, for an engine that keeps all of them.
///
/// # Errors
/// `Unavailable`.
pub(in super::super) fn refuse(plan: &Plan, what: &dyn std::fmt::Display) -> Result<()> {
    let asks = |i: &usize| plan.draws(*i, drawn::Redraw::Asked);
    let Some(i) = (0..plan.network.projections.len()).find(asks) else { return Ok(()) };
    Err(Error::new(
        crate::ErrorKind::Unavailable,
        format!(
            "projection {}: its synapses are drawn again at each spike, and the resident kernel keeps all of them; LearningEngine \
             takes them: {what}",
            plan.label(i)
        ),
    ))
}
