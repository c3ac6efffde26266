//! The memory of a card: what refuses a network that does not fit, and what `chronaxie plan` reports.

use super::config::Config;
use super::{LOG, build, unit};
use crate::cuda::CudaDevice;
use crate::spiking::connect::Redraw;
use crate::spiking::plan::Plan;
use crate::{Error, ErrorKind, Result};

/// Bytes that a network takes on each card.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Footprint {
    /// Synapses: segments, and what lies beyond them (expected).
    pub synapses: f64,
    /// Where each row goes on beyond its segment; it grows with the cells of the whole network.
    pub rows: f64,
    /// States, constants, arrivals, and which cell each row is.
    pub cells: f64,
    /// What is under way: a ring of sums, a calendar.
    pub under_way: f64,
    /// What blocks tell each other, and the logs of spikes.
    pub spikes: f64,
    /// Entries of cells whose synapses change.
    pub entries: f64,
    /// Only while the network is made: counts of rows, sums of weights, a list of synapses from the host.
    pub making: f64,
}

impl Footprint {
    /// While the network is made: what lasts, without what steps need alone.
    pub fn build(&self) -> f64 {
        self.synapses + self.rows + self.cells + self.making
    }

    /// While it runs.
    pub fn run(&self) -> f64 {
        self.synapses + self.rows + self.cells + self.under_way + self.spikes + self.entries
    }

    /// The larger one.
    pub fn most(&self) -> f64 {
        self.build().max(self.run())
    }
}

impl Config {
    /// Bytes of a synapse.
    pub fn synapse(&self) -> usize {
        if self.wide || self.learns.is_some() { 8 } else { 4 }
    }

    /// Bytes of what a calendar has of a synapse.
    pub(super) fn due(&self) -> usize {
        if self.long { 8 } else { 4 }
    }

    /// Whether what it delivers has weights of 32 bits, where those that change have not as many bytes anyway.
    pub(super) fn hears_long(&self) -> bool {
        self.long && self.learns.is_none()
    }

    /// Bytes of each card's memory.
    pub fn footprint(&self, plan: &Plan) -> Footprint {
        let (rows, local) = ((self.shards * self.cells) as f64, self.local() as f64);
        let held = local * rows * self.segment as f64;
        let synapses = plan.expected_synapses() / self.cards as f64;
        let (room, own) = (self.segment.saturating_sub(self.learns.map_or(0, |l| l.head)), local * rows);
        // Of narrow ones the last two words say where a row goes on, which needs no other place then.
        let (words, marks) = self.narrow.map_or((1.0, 1), |n| (n.words(), 2));
        let beyond = (own * beyond(words * synapses / own.max(1.0), room, marks)).max(0.02 * synapses);
        let first = 4.0 * local * rows;
        let listed = (0..plan.network.projections.len()).filter(|i| build::is_listed(plan, *i));
        let listed = listed.map(|i| plan.expected(i)).fold(0.0, f64::max).min(build::LIST as f64);
        let (pitch, own_rows) = (self.pitch as f64, local * self.cells as f64);
        // Where each cell is, and the order of a population's.
        let places = if self.cards > 1 { 8.0 * plan.cells() as f64 } else { 0.0 };
        let n = &plan.network;
        let each = |(p, m): (usize, &&dyn crate::spiking::models::Model)| {
            let drives = plan.poisson.iter().filter(|d| d.target == p).count();
            let own = n.populations[p].constants().iter().any(Option::is_none);
            let words = m.variables().len() + 2 * drives + if own { m.coefficient_count() } else { 0 };
            4.0 * words as f64 * f64::from(n.populations[p].size)
        };
        let states: f64 = plan.models.iter().enumerate().map(each).sum();
        Footprint {
            synapses: self.synapse() as f64 * (held + beyond),
            rows: if self.narrow.is_some() { 0.0 } else { first },
            // Beside states: the number of each row's cell, of its synapses, and on several cards its cell's in its population.
            cells: states + if self.cards > 1 { 12.0 } else { 8.0 } * rows,
            under_way: local * self.ring as f64 * (4.0 * pitch + (self.due() * self.room) as f64),
            spikes: unit::mail_bytes(self) as f64 * 2.0 + 24.0 * log_capacity(self.logged(plan)) as f64,
            // Of its own cells; beside them rows that wait to be walked.
            entries: self.learns.map_or(0.0, |l| 4.0 * own_rows * (l.depth * l.width + self.shards + 8) as f64),
            making: first * if self.narrow.is_some() { 2.0 } else { 1.0 }
                + 8.0 * local * pitch
                + 16.0 * listed
                + places,
        }
    }
}

/// Spikes that the logs of a launch have room for.
pub(super) fn log_capacity(cells: usize) -> usize {
    4 * cells + LOG
}

/// How many of a row's synapses are beyond its segment's `room`, of which the last `marks` words say so, where rows have `mean` of
/// them and sources are drawn at random.
fn beyond(mean: f64, room: usize, marks: usize) -> f64 {
    if room == 0 || mean > 500.0 {
        return (mean - room.saturating_sub(marks) as f64).max(0.0);
    }
    let (mut chance, mut all) = ((-mean).exp(), 0.0);
    for n in 1..(mean + 12.0 * mean.sqrt()) as usize + 12 {
        chance *= mean / n as f64;
        if n > room {
            all += chance * (n + marks - room) as f64;
        }
    }
    all
}

/// The share of rows that have more than `words` synapses, likewise.
pub(super) fn longer(mean: f64, words: usize) -> f64 {
    if mean > 500.0 {
        return if mean > words as f64 { 1.0 } else { 0.0 };
    }
    let mut chance = (-mean).exp();
    let mut within = chance;
    for n in 1..=words {
        chance *= mean / n as f64;
        within += chance;
    }
    (1.0 - within).max(0.0)
}

/// Refuses what needs more memory than the device has free, before anything is allocated.
pub(super) fn require_memory(plan: &Plan, device: &CudaDevice, config: &Config) -> Result<()> {
    let asked = config.footprint(plan).most() as u64;
    if asked > device.memory_info()?.free {
        device.release_cached_memory()?;
    }
    let free = device.memory_info()?.free;
    if asked <= free {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    Err(Error::new(
        ErrorKind::OutOfMemory { asked, free },
        format!(
            "the network of {} cells and {:.3e} synapses needs {:.1} GB on {}, where {:.1} GB are free; --scale makes it smaller{}",
            plan.cells(),
            plan.expected_synapses(),
            gb(asked),
            device.name(),
            gb(free),
            plan.procedural_hint(Redraw::Asked)
        ),
    ))
}
