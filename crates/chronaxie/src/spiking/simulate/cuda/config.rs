//! How a plan is cut for a device: a pure, printable function of the plan and the device's properties.

use super::learning::Learns;
use crate::cuda::{Constant, Header, KernelSource, Specialisation};
use crate::spiking::connect::shard;
use crate::spiking::plan::Plan;
use crate::{DeviceProps, Error, Result};
use std::fmt;

/// Cells that a block has before there are more blocks.
const CELLS_A_BLOCK: u64 = 256;
/// The most blocks: one header a thread.
const MOST_BLOCKS: usize = 512;
/// The most cells of a shard: a header has 51 bits for a count of its spikes and one of them.
const MOST_CELLS: usize = (1 << 20) - 1;
/// Shared memory that the kernel has beside what it asks for: a part a warp, and some counters.
const STATIC_SHARED: usize = 4 * 1024;
/// The most slots of a shard with a calendar: 16 bits of its entries.
const CALENDAR_SLOTS: usize = 1 << 16;
/// The most steps of a calendar.
const CALENDAR_STEPS: usize = 1 << 12;
/// Each cell's mean rate, in Hz, up to which a calendar holds all that is under way.
const CALENDAR_HZ: f64 = 12.0;
/// The most arrivals of a drive in a step that the kernel keeps in a byte, as `kMostArrivals`.
const MOST_ARRIVALS: usize = 255;
/// Bits of a header before its ids, and the most ids in it, as `kTagBits + 1` and `kMostIds`.
const HEAD_BITS: u32 = 13;
const MOST_IDS: u32 = 4;
/// The most steps of a launch: 12 bits of a header are the step's tag, from 1 on.
pub(super) const MOST_STEPS: u64 = 4094;
/// Copies of the headers, as `kReplicas`.
pub(super) const REPLICAS: usize = 8;

pub(super) const HEADERS: &[Header] = &[
    ("draws.cuh", include_str!("../../draws.cuh")),
    ("math.cuh", include_str!("../../math.cuh")),
    ("network.cuh", include_str!("network.cuh")),
    ("rules.cuh", include_str!("learning/rules.cuh")),
    ("rows.cuh", include_str!("learning/rows.cuh")),
    ("walk.cuh", include_str!("learning/walk.cuh")),
    ("models.cuh", include_str!("models.cuh")),
    ("adex.cuh", include_str!("../../models/adex.cuh")),
    ("hodgkin_huxley.cuh", include_str!("../../models/hodgkin_huxley.cuh")),
    ("izhikevich.cuh", include_str!("../../models/izhikevich.cuh")),
    ("lif_alpha.cuh", include_str!("../../models/lif_alpha.cuh")),
    ("lif_cond.cuh", include_str!("../../models/lif_cond.cuh")),
    ("lif_delta.cuh", include_str!("../../models/lif_delta.cuh")),
    ("lif_exp.cuh", include_str!("../../models/lif_exp.cuh")),
];

/// Where what is under way lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Sums by step and slot, in shared memory.
    Shared,
    /// Lists by step, in global memory.
    Calendar,
    /// Sums by step and slot, in global memory.
    Global,
}

/// How a plan runs on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Blocks, each with a shard of every population.
    pub shards: usize,
    /// Threads of a block.
    pub threads: u32,
    /// Whether some model's twin needs the registers of 512 threads.
    pub heavy: bool,
    /// Where future inputs lie.
    pub place: Place,
    /// Whether the state of cells stays in registers: where a thread has one at most, of a light model, with one drive at most.
    pub held: bool,
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
    /// Synapses of a row that lie at a fixed place; with 0 none does.
    pub segment: usize,
    /// Entries of a step of the calendar.
    pub room: usize,
    /// How synapses that change lie there; `None` where there are none, or where they do not fit.
    pub learns: Option<Learns>,
}

impl Config {
    /// As many blocks as there are multiprocessors, or one for every 256 cells; the ring in shared memory where a shard's
    /// fits there, else a calendar, else, for more slots than its entries can name, the ring in global memory; four bytes a
    /// synapse where slot and delay fit in 16 bits; segments that hold the mean row and three deviations, up to 64.
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
        let (mut pitch, mut cells, mut warps) = (1, 1, 0);
        for k in 0..shards {
            let (parts, slots) = shard::parts(plan, k, shards);
            pitch = pitch.max(slots);
            cells = cells.max(parts.iter().map(|p| p.count() as usize).sum());
            warps = warps.max(parts.iter().map(|p| p.count().div_ceil(32)).sum());
        }
        if cells > MOST_CELLS {
            return Err(Error::config(format!(
                "network: {} cells on {shards} multiprocessors are more than {MOST_CELLS} on one",
                plan.cells()
            )));
        }
        // One slot more than there are, which marks rows that are not all in their segments.
        let slot_bits = usize::BITS - pitch.leading_zeros();
        let room = (device.shared_per_block_optin as usize).saturating_sub(STATIC_SHARED);
        let heavy = plan.models.iter().any(|m| m.twin().is_heavy());
        let threads = if heavy { 512 } else { 1024 };
        let place = if 4 * ring * pitch <= room {
            Place::Shared
        } else if pitch <= CALENDAR_SLOTS && ring <= CALENDAR_STEPS && 4 * (pitch + ring) <= room {
            Place::Calendar
        } else {
            Place::Global
        };
        let drives = |p: usize| plan.poisson.iter().filter(move |d| d.target == p);
        let few = (0..plan.models.len()).all(|p| drives(p).count() <= 1)
            && plan.poisson.iter().all(|d| d.thresholds.len() <= MOST_ARRIVALS);
        let learns = if place == Place::Shared { Learns::choose(plan, [ring, pitch, cells], room) } else { None };
        let synapses = plan.expected_synapses();
        let row = synapses / (shards as f64 * plan.cells().max(1) as f64);
        let head = learns.map_or(0, |l| l.head);
        let words = row + 3.0 * row.sqrt() + head as f64;
        let least = if learns.is_some() { 16 } else { 8 };
        let segment = [8, 16, 32].into_iter().find(|n| words <= f64::from(*n) && *n >= least).unwrap_or(64);
        let hz = synapses / shards as f64 * plan.network.dt_ms * 1e-3;
        let entries = (CALENDAR_HZ * hz).clamp(64.0, 1e8) as usize;
        Ok(Self {
            shards,
            threads,
            heavy,
            place,
            held: place == Place::Shared && !heavy && few && 32 * warps <= threads,
            ring,
            pitch,
            cells,
            slot_bits,
            wide: slot_bits + ring.trailing_zeros() > 16,
            segment: if row < 1.0 && learns.is_none() { 0 } else { segment as usize },
            room: if place == Place::Calendar { entries } else { 0 },
            learns,
        })
    }

    /// How many bits the number of a cell in its shard has in a header, and how many numbers.
    pub(super) fn header(&self) -> (u32, u32) {
        let bits = usize::BITS - self.cells.leading_zeros();
        (bits, ((64 - HEAD_BITS - bits) / bits).min(MOST_IDS))
    }

    /// Bytes of global memory: of segments, of synapses beyond them (expected), of what finds them, and of what is under way.
    pub(super) fn bytes(&self, plan: &Plan) -> f64 {
        let rows = (self.shards * self.cells) as f64;
        // The entries of each cell, and where rows are listed.
        let learns = self.learns.map_or(0.0, |l| 4.0 * rows * (l.depth * l.width + self.shards + 8) as f64);
        let held = self.shards as f64 * rows * self.segment as f64;
        let synapses = plan.expected_synapses();
        let beyond = (synapses - 0.9 * held).max(0.02 * synapses);
        let under_way = (self.shards * self.ring) as f64 * (self.pitch + self.room) as f64;
        self.synapse() as f64 * (held + beyond) + 8.0 * self.shards as f64 * rows + 4.0 * under_way + learns
    }

    /// Bytes of a synapse.
    pub fn synapse(&self) -> usize {
        if self.wide || self.learns.is_some() { 8 } else { 4 }
    }

    /// Bytes that a block has in shared memory for what is under way, and for what its cells did.
    pub fn shared_bytes(&self) -> u32 {
        match self.place {
            Place::Shared => {
                let learns = self.learns.map_or(0, |l| l.shared_bytes(self.cells, self.pitch));
                (4 * self.ring * self.pitch + learns) as u32
            }
            Place::Calendar => (4 * (self.ring + self.pitch)) as u32,
            Place::Global => 0,
        }
    }

    pub(super) fn steps(&self) -> Specialisation {
        steps(self.place, self.heavy, self.held, self.learns.is_some())
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, kib) = match self.place {
            Place::Shared => ("ring", 4 * self.ring * self.pitch / 1024),
            Place::Calendar => ("calendar", 4 * self.ring * (self.pitch + self.room) / 1024),
            Place::Global => ("ring", 4 * self.ring * self.pitch / 1024),
        };
        write!(
            f,
            "resident: {} blocks of {} threads{}, {what} of {} steps in {} memory ({kib} KiB a block), {} bytes a synapse, \
             segments of {}",
            self.shards,
            self.threads,
            if self.held { " with a cell each" } else { "" },
            self.ring,
            if self.place == Place::Shared { "shared" } else { "global" },
            self.synapse(),
            self.segment
        )?;
        let Some(l) = &self.learns else { return Ok(()) };
        write!(f, ", {} entries a cell of which {} in shared memory", l.depth, l.deep)
    }
}

fn steps(place: Place, heavy: bool, held: bool, learns: bool) -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/steps.cu", include_str!("steps.cu"));
    let threads = if heavy { 512 } else { 1024 };
    let constants = vec![
        ("kPlace", Constant::Int(place as i32)),
        ("kHeavy", Constant::Bool(heavy)),
        ("kHeld", Constant::Bool(held)),
        ("kLearns", Constant::Bool(learns)),
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

/// What the host asks of synapses that change.
pub(super) fn rows() -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/learning/rows.cu", include_str!("learning/rows.cu"));
    let entries = ["spiking_visit", "spiking_heads", "spiking_early"];
    Specialisation { headers: HEADERS, fmad: false, ..Specialisation::new(source, &entries) }
}

/// Everything that a simulation may launch.
pub fn specialisations() -> Vec<Specialisation> {
    let places = [Place::Shared, Place::Calendar, Place::Global];
    let kinds = places.into_iter().flat_map(|place| [(place, false, false, false), (place, true, false, false)]);
    let light = [(false, true, false), (false, true, true), (false, false, true), (true, false, true)];
    let kinds = kinds.chain(light.map(|(heavy, held, learns)| (Place::Shared, heavy, held, learns)));
    let steps = kinds.map(|(place, heavy, held, learns)| steps(place, heavy, held, learns)).chain([build(), rows()]);
    steps.chain(super::learning::specialisations()).collect()
}
