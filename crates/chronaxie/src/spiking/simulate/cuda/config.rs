//! How a plan is cut for a device: a pure, printable function of the plan and the device's properties.

use crate::cuda::{Constant, Header, KernelSource, Specialisation};
use crate::spiking::connect::shard;
use crate::spiking::plan::Plan;
use crate::{DeviceProps, Error, Result};
use std::fmt;

/// Cells that a block has before there are more blocks.
const CELLS_A_BLOCK: u64 = 256;
/// The most blocks: one header a thread.
const MOST_BLOCKS: usize = 512;
/// The most spikes of a shard in a step: 20 bits of a header.
const MOST_CELLS: usize = (1 << 20) - 1;
/// Shared memory that the kernel has beside the ring: all headers, and some counters.
const STATIC_SHARED: usize = 8 * 1024 + 256;
/// The most steps of a launch: 12 bits of a header are the step's tag, from 1 on.
pub(super) const MOST_STEPS: u64 = 4094;
/// Copies of the headers, as `kReplicas`.
pub(super) const REPLICAS: usize = 8;

pub(super) const HEADERS: &[Header] = &[
    ("draws.cuh", include_str!("../../draws.cuh")),
    ("math.cuh", include_str!("../../math.cuh")),
    ("network.cuh", include_str!("network.cuh")),
    ("models.cuh", include_str!("models.cuh")),
    ("adex.cuh", include_str!("../../models/adex.cuh")),
    ("hodgkin_huxley.cuh", include_str!("../../models/hodgkin_huxley.cuh")),
    ("izhikevich.cuh", include_str!("../../models/izhikevich.cuh")),
    ("lif_alpha.cuh", include_str!("../../models/lif_alpha.cuh")),
    ("lif_cond.cuh", include_str!("../../models/lif_cond.cuh")),
    ("lif_delta.cuh", include_str!("../../models/lif_delta.cuh")),
    ("lif_exp.cuh", include_str!("../../models/lif_exp.cuh")),
];

/// How a plan runs on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Blocks, each with a shard of every population.
    pub shards: usize,
    /// Threads of a block.
    pub threads: u32,
    /// Whether some model's twin needs the registers of 512 threads.
    pub heavy: bool,
    /// Whether the ring of future inputs lies in shared memory.
    pub shared: bool,
    /// Steps of the ring.
    pub ring: usize,
    /// Slots of the largest shard.
    pub pitch: usize,
    /// Cells of the largest shard.
    pub cells: usize,
    /// Bits of a synapse's slot.
    pub slot_bits: u32,
    /// Whether a synapse takes eight bytes instead of four.
    pub wide: bool,
}

impl Config {
    /// As many blocks as there are multiprocessors, or one for every 256 cells; the ring in shared memory where a shard's
    /// fits there; four bytes a synapse where slot and delay fit in 16 bits.
    ///
    /// # Errors
    /// `Config`, for more cells than shards can have.
    pub fn choose(plan: &Plan, device: &DeviceProps) -> Result<Self> {
        let most = (device.sm_count as usize).clamp(1, MOST_BLOCKS);
        Self::with_blocks(plan, device, (plan.cells().div_ceil(CELLS_A_BLOCK) as usize).clamp(1, most))
    }

    /// Likewise with `shards` blocks, which spikes do not depend on.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub fn with_blocks(plan: &Plan, device: &DeviceProps, shards: usize) -> Result<Self> {
        let shards = shards.clamp(1, MOST_BLOCKS);
        let ring = (plan.max_delay as usize + 1).next_power_of_two();
        let (mut pitch, mut cells) = (1, 1);
        for k in 0..shards {
            let (parts, slots) = shard::parts(plan, k, shards);
            pitch = pitch.max(slots);
            cells = cells.max(parts.iter().map(|p| p.count() as usize).sum());
        }
        if cells > MOST_CELLS {
            return Err(Error::config(format!(
                "network: {} cells on {shards} multiprocessors are more than {MOST_CELLS} on one",
                plan.cells()
            )));
        }
        let slot_bits = usize::BITS - (pitch - 1).leading_zeros();
        let room = (device.shared_per_block_optin as usize).saturating_sub(STATIC_SHARED);
        let heavy = plan.models.iter().any(|m| m.twin().is_heavy());
        Ok(Self {
            shards,
            threads: if heavy { 512 } else { 1024 },
            heavy,
            shared: 4 * ring * pitch <= room,
            ring,
            pitch,
            cells,
            slot_bits,
            wide: slot_bits + ring.trailing_zeros() > 16,
        })
    }

    /// Bytes of the ring of a block in shared memory.
    pub fn shared_bytes(&self) -> u32 {
        if self.shared { (4 * self.ring * self.pitch) as u32 } else { 0 }
    }

    pub(super) fn steps(&self) -> Specialisation {
        steps(self.shared, self.heavy)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "resident: {} blocks of {} threads, ring of {} steps in {} memory ({} KiB a block), {} bytes a synapse",
            self.shards,
            self.threads,
            self.ring,
            if self.shared { "shared" } else { "global" },
            4 * self.ring * self.pitch / 1024,
            if self.wide { 8 } else { 4 }
        )
    }
}

fn steps(shared: bool, heavy: bool) -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/steps.cu", include_str!("steps.cu"));
    let threads = if heavy { 512 } else { 1024 };
    let constants = vec![
        ("kShared", Constant::Bool(shared)),
        ("kHeavy", Constant::Bool(heavy)),
        ("kThreads", Constant::Int(threads)),
    ];
    Specialisation { headers: HEADERS, constants, fmad: false, ..Specialisation::new(source, &["spiking_steps"]) }
}

/// What makes networks.
pub(super) fn build() -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/build.cu", include_str!("build.cu"));
    let entries = ["spiking_build", "spiking_scan", "spiking_degrees", "spiking_restore"];
    Specialisation { headers: HEADERS, fmad: false, ..Specialisation::new(source, &entries) }
}

/// Everything that a simulation may launch.
pub fn specialisations() -> Vec<Specialisation> {
    let kinds = [(true, false), (true, true), (false, false), (false, true)];
    let steps = kinds.into_iter().map(|(shared, heavy)| steps(shared, heavy)).chain([build()]);
    steps.chain(super::learning::specialisations()).collect()
}
