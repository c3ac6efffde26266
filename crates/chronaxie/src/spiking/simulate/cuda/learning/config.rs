//! How a plan whose synapses change is laid out for a device.

use super::super::kernels::HEADERS;
use crate::cuda::{Constant, KernelSource, Specialisation};
use crate::spiking::connect::Redraw;
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::Rule;
use crate::{DeviceProps, Error, Result};
use std::fmt;

/// Cells that a block has before there are more blocks.
const CELLS_A_BLOCK: u64 = 256;
/// Windows of scaling, and the fewest jumps of a modulator, that are kept before synapses are brought up to date.
const WINDOWS: usize = 64;
const JUMPS: usize = 1 << 13;

/// How a plan runs on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Whether some model's twin needs the registers of 512 threads.
    pub heavy: bool,
    /// Whether more happens to synapses than the timing of pairs behind which delays lie.
    pub wide: bool,
    /// Steps of the ring.
    pub ring: usize,
    /// Entries that a cell has room for.
    pub depth: usize,
    /// Ports of the model that has the most.
    pub ports: usize,
    /// Bits of a synapse's cell.
    pub cell_bits: u32,
    /// Bits of its delay.
    pub delay_bits: u32,
    /// Windows of scaling that are kept.
    pub windows: usize,
    /// Jumps of a modulator that are kept; 0 where there is none.
    pub jumps: usize,
    /// Cards that share the network.
    pub cards: usize,
    /// Whether synapses change.
    pub changes: bool,
    /// Which synapses are drawn again at each spike.
    pub redraw: Redraw,
    /// Of how many projections.
    pub drawn: usize,
    /// Whether synapses of others are kept.
    pub keeps: bool,
    /// Bits of the slot of synapses that do not change, where weights have 32 bits; else 0.
    pub long: u32,
}

/// How many bits numbers up to `most` take.
fn bits(most: u64) -> u32 {
    u64::BITS - most.leading_zeros()
}

impl Config {
    /// As many blocks as there are multiprocessors, or one for every 256 cells.
    ///
    /// # Errors
    /// `Config`, where cell, delay and rule take more than 32 bits.
    pub fn choose(plan: &Plan, device: &DeviceProps) -> Result<Self> {
        Self::with_blocks(plan, plan.cells().div_ceil(CELLS_A_BLOCK).min(device.sm_count.into()) as u32)
    }

    /// Likewise on the cards of a layout, each with as many blocks.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub fn in_layout(plan: &Plan, device: &DeviceProps, layout: &Layout) -> Result<Self> {
        let cells = (0..layout.parts()).map(|card| layout.cells(card)).max().unwrap_or(0);
        let blocks = cells.div_ceil(CELLS_A_BLOCK).min(device.sm_count.into()) as u32;
        Ok(Self { cards: layout.parts(), ..Self::with_blocks(plan, blocks)? })
    }

    /// Likewise with so many blocks, which spikes and weights do not depend on.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub fn with_blocks(plan: &Plan, blocks: u32) -> Result<Self> {
        let rules = plan.learning.as_ref().map_or(&[][..], |l| &l.rules);
        let axonal = rules.iter().any(|r| r.stdp.as_ref().is_some_and(|pair| pair.axonal));
        let modulated = plan.learning.as_ref().is_some_and(|l| !l.modulators.is_empty());
        let wide = axonal || rules.iter().any(Rule::is_wide);
        let (cell_bits, delay_bits) = (bits(plan.cells() - 1).max(1), bits(plan.max_delay.into()));
        let rule_bits = bits((rules.len() as u64).saturating_sub(1));
        let changes = plan.learning.is_some();
        if changes && cell_bits + delay_bits + rule_bits > 32 {
            return Err(Error::config(format!(
                "network: {} cells, delays of up to {} steps and {} kinds of plasticity take {cell_bits} + {delay_bits} + \
                 {rule_bits} bits of a synapse, which has 32 on the CUDA backend; use --backend cpu",
                plan.cells(),
                plan.max_delay,
                rules.len()
            )));
        }
        let heavy = plan.models.iter().any(|m| m.twin().is_heavy());
        let ports = plan.models.iter().map(|m| m.ports().len()).max().unwrap_or(1).max(1);
        let long = if plan.has_long(|_| true) { bits(ports as u64 * plan.cells() - 1).max(1) } else { 0 };
        if long > 0 && long + delay_bits > 32 {
            return Err(Error::config(format!(
                "network: {} inputs of {} cells and delays of up to {} steps take {long} + {delay_bits} bits of a synapse, which has 32 \
                 beside a weight of as many on the CUDA backend; use --backend cpu, or weight_bits = 16",
                ports as u64 * plan.cells(),
                plan.cells(),
                plan.max_delay
            )));
        }
        let config = Self {
            blocks: blocks.max(1),
            threads: threads(heavy, wide),
            heavy,
            wide,
            ring: (plan.max_delay as usize + 1).next_power_of_two(),
            // What the longest delay holds at a spike a step, one before it, one to come, and one to spare.
            depth: if changes { (plan.max_delay as usize + 4).next_power_of_two().max(32) } else { 0 },
            ports,
            cell_bits,
            delay_bits,
            windows: WINDOWS,
            // What the longest delay holds at a jump a step, one before it, one to come, and one to spare.
            cards: 1,
            jumps: if modulated { (plan.max_delay as usize + 4).next_power_of_two().max(JUMPS) } else { 0 },
            changes,
            redraw: Redraw::Nothing,
            drawn: 0,
            keeps: true,
            long,
        };
        Ok(config.redrawing(plan, Redraw::Asked))
    }

    /// Likewise, where these synapses are drawn again at each spike.
    #[must_use]
    pub fn redrawing(self, plan: &Plan, redraw: Redraw) -> Self {
        let all = plan.network.projections.len();
        let drawn = (0..all).filter(|i| plan.draws(*i, redraw)).count();
        Self { redraw, drawn, keeps: drawn < all, ..self }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}{} blocks of {} threads, ring of {} steps",
            if self.changes { "learning" } else { "streaming" },
            if self.cards > 1 { format!("{} GPUs, each of ", self.cards) } else { String::new() },
            self.blocks,
            self.threads,
            self.ring
        )?;
        if self.changes {
            write!(f, ", {} entries a cell", self.depth)?;
        }
        if self.keeps {
            write!(f, ", {} bytes a synapse", if self.jumps > 0 { 12 } else { 8 })?;
        }
        match self.drawn {
            0 => {}
            n if self.keeps => write!(f, ", those of {n} projections drawn at each spike")?,
            _ => f.write_str(", synapses drawn at each spike")?,
        }
        f.write_str(if self.wide { ", any rule and delay" } else { "" })
    }
}

fn threads(heavy: bool, wide: bool) -> u32 {
    if heavy || wide { 512 } else { 1024 }
}

/// What runs steps, with clocks between the parts of a step or without.
pub(super) fn steps(config: &Config, seeds: bool, timed: bool) -> Specialisation {
    let kind = if config.drawn == 0 { Kind::Changes } else { Kind::Draws { changes: config.changes } };
    of_kind([config.heavy, config.wide, config.cards > 1, seeds, timed, config.long > 0], kind)
}

/// What happens to synapses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Some change.
    Changes,
    /// Some are drawn again, and others may change.
    Draws { changes: bool },
}

fn of_kind([heavy, wide, many, seeds, timed, long]: [bool; 6], kind: Kind) -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/learning/steps.cu", include_str!("steps.cu"));
    let constants = vec![
        ("kHeavy", Constant::Bool(heavy)),
        ("kWide", Constant::Bool(wide)),
        ("kMany", Constant::Bool(many)),
        ("kSeeds", Constant::Bool(seeds)),
        ("kLong", Constant::Bool(long)),
        ("kChanges", Constant::Bool(kind != Kind::Draws { changes: false })),
        ("kDrawn", Constant::Bool(kind != Kind::Changes)),
        ("kTimed", Constant::Bool(timed)),
        ("kThreads", Constant::Int(threads(heavy, wide) as i32)),
    ];
    // Between launches there are no clocks.
    let entries = ["spiking_learn", "spiking_catch_up", "spiking_keep"];
    let entries = if timed { &entries[..1] } else { &entries[..] };
    Specialisation { headers: HEADERS, constants, fmad: false, ..Specialisation::new(source, entries) }
}

/// Everything that a simulation with plasticity, or of synapses that are drawn again, may launch.
pub fn specialisations() -> Vec<Specialisation> {
    let kinds = [Kind::Changes, Kind::Draws { changes: false }, Kind::Draws { changes: true }];
    let kinds = kinds.into_iter().flat_map(|kind| [false, true].map(|wide| (kind, wide)));
    let kinds = kinds.filter(|(kind, wide)| !wide || *kind != Kind::Draws { changes: false });
    let kinds = kinds.flat_map(|kind| [false, true].map(|heavy| (kind, heavy)));
    let kinds = kinds.flat_map(|kind| [false, true].map(|many| (kind, many)));
    let kinds = kinds.flat_map(|kind| [false, true].map(|seeds| (kind, seeds)));
    let form = |((((kind, wide), heavy), many), seeds)| {
        [false, true].map(|long| of_kind([heavy, wide, many, seeds, false, long], kind))
    };
    let timed = [
        (Kind::Changes, false, false),
        (Kind::Changes, true, false),
        (Kind::Changes, false, true),
        (Kind::Draws { changes: false }, false, false),
        (Kind::Draws { changes: true }, true, false),
    ];
    let timed = timed.map(|(kind, wide, many)| of_kind([false, wide, many, false, true, false], kind));
    kinds.flat_map(form).chain(timed).chain([false, true].map(super::drawn::weigh)).collect()
}
