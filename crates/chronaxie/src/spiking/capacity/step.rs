//! What a step of the resident kernel takes on a card, part by part, and what its host does beside it.

use super::{Activity, Card, Exchange, Told};
use crate::spiking::models::Kind;
use crate::spiking::plan::Plan;
use crate::spiking::simulate::cuda::{Config, Place, piece};
use crate::spiking::simulate::pace;
use serde::Serialize;

/// A part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Cost {
    /// What.
    pub what: &'static str,
    /// us.
    pub us: f64,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// What a GPU does, one after the other.
    pub parts: Vec<Cost>,
    /// All of it.
    pub gpu_us: f64,
    /// What the host does with a step's spikes meanwhile: the longer of the two below.
    pub host_us: f64,
    /// It merges those of several cards.
    pub collect_us: f64,
    /// It hashes and counts them.
    pub book_us: f64,
    /// A step of a long run: the GPU's, or the host's where that takes longer.
    pub us: f64,
    /// What binds: the longest part, or the host.
    pub binds: &'static str,
    /// What it does but for launches.
    #[serde(skip)]
    kernel_us: f64,
    #[serde(skip)]
    launch_us: f64,
    #[serde(skip)]
    spikes: f64,
}

/// Blocks meet.
pub const MEETING: &str = "meeting of blocks";
/// Cards and machines tell each other.
pub const EXCHANGE: &str = "exchange between GPUs";
/// Cells advance.
pub const UPDATE: &str = "update of cells";
/// Arrivals are drawn.
pub const DRIVES: &str = "drives";
/// Rows are fetched and added.
pub const DELIVERY: &str = "delivery";
/// What is not due yet waits in global memory.
pub const CALENDAR: &str = "calendar";
/// A launch's share.
pub const LAUNCHES: &str = "launches";
/// Synapses change.
pub const LEARNING: &str = "learning";
/// Not a part of the GPU's step.
pub const HOST: &str = "the host's taking up of spikes";

/// Bytes of the states of a card and of what comes for them that a step reads and writes: variables twice, arrivals of four steps
/// read in each and written in one.
fn touched(plan: &Plan, cards: f64) -> f64 {
    let n = &plan.network;
    let each = |(p, m): (usize, &&dyn crate::spiking::models::Model)| {
        let drives = plan.poisson.iter().filter(|d| d.target == p).count();
        (8 * m.variables().len() + 5 * drives) as f64 * f64::from(n.populations[p].size)
    };
    plan.models.iter().enumerate().map(each).sum::<f64>() / cards
}

impl Step {
    /// Of the largest block.
    pub(super) fn new(
        plan: &Plan,
        activity: &Activity,
        card: &Card,
        config: &Config,
        exchange: Exchange,
        told: &Told,
    ) -> Self {
        let c = &card.constants;
        let (cards, shards, local) = (config.cards as f64, config.shards as f64, config.local() as f64);
        let many = config.cards > 1;
        let size = |p: usize| f64::from(plan.network.populations[p].size);
        let sources = (0..plan.models.len()).filter(|p| plan.models[*p].kind() == Kind::Poisson);
        let drawn: f64 = plan.poisson.iter().map(|d| d.target).chain(sources).map(size).sum::<f64>() / shards;

        let meeting = if config.shards > 1 { c.meeting_us } else { 0.0 };
        let link = match exchange {
            _ if !many => 0.0,
            Exchange::Peers => c.link_us,
            // Every block reads every header.
            Exchange::Host => c.header_ns * 1e-3 * local * shards,
        };
        let machines = config.cards.div_ceil(card.gpus_a_machine as usize);
        let between = match machines {
            1 => 0.0,
            // All machines send as much, once every shortest delay from one to another.
            _ => {
                let bytes = told.network_bytes_per_step;
                card.network_us / told.network_steps.max(1) as f64 + bytes / (card.network_gb_per_s * 1e3)
            }
        };
        // States that no cache holds come from memory and go back. Half of the second cache is far from any multiprocessor, and what is
        // asked for from both sides lies in both halves.
        let bytes = touched(plan, cards);
        let near = config.held || config.near > 0 || bytes < f64::from(card.l2_mib) * 1048576.0 / 2.0;
        let far = if near { 0.0 } else { bytes / (card.memory_gb_per_s * 1e3) };
        let update = c.sweep_us + c.cell_ns * 1e-3 * config.cells as f64 + far;
        // As many rows are on their way as there are threads.
        let row = if config.segment > 0 { c.row_ns } else { c.listed_row_ns } * 1024.0 / f64::from(config.threads);
        let events = activity.events / shards;
        let delivery = c.trip_us + 1e-3 * (row * activity.spikes + c.event_ns * events);
        let calendar = 1e-3
            * events
            * match config.place {
                Place::Shared => 0.0,
                Place::Calendar => c.append_ns,
                Place::Global => c.far_event_ns,
            };
        let learning = 1e-3 * c.entry_ns * activity.entries / shards;
        let all = [
            (MEETING, meeting),
            (EXCHANGE, link + between),
            (UPDATE, update),
            (DRIVES, c.draw_ns * 1e-3 * drawn),
            (DELIVERY, delivery),
            (CALENDAR, calendar),
            (LEARNING, learning),
            (LAUNCHES, c.launch_us / piece(u64::MAX / 2, activity.spikes as u64) as f64),
        ];
        let parts: Vec<Cost> =
            all.into_iter().filter(|(_, us)| *us > 0.0).map(|(what, us)| Cost { what, us }).collect();
        let merge = if many { c.merge_ns } else { 0.0 };
        let (collect_us, book_us) = (1e-3 * merge * activity.spikes, 1e-3 * c.book_ns * activity.spikes);
        let host_us = collect_us.max(book_us);
        let gpu_us: f64 = parts.iter().map(|p| p.us).sum();
        let longest = parts.iter().max_by(|a, b| a.us.total_cmp(&b.us)).map_or(MEETING, |p| p.what);
        let binds = if host_us > gpu_us { HOST } else { longest };
        let (us, launch_us, spikes) = (gpu_us.max(host_us), c.launch_us, activity.spikes);
        let kernel_us = gpu_us - all[all.len() - 1].1;
        Self { parts, gpu_us, host_us, collect_us, book_us, us, binds, kernel_us, launch_us, spikes }
    }

    /// A part's time; 0 where a step has no such part.
    pub fn part(&self, what: &str) -> f64 {
        self.parts.iter().find(|p| p.what == what).map_or(0.0, |p| p.us)
    }

    /// The share of what a GPU does that is the same for any number of cells.
    pub(super) fn fixed_share(&self) -> f64 {
        (self.part(MEETING) + self.part(EXCHANGE)) / self.gpu_us.max(f64::MIN_POSITIVE)
    }

    /// Wall time of so many steps in one call of the engine, us: a launch runs while the spikes of the last one are put in order.
    pub fn advance_us(&self, steps: u64) -> f64 {
        let (mut done, mut wall, mut waiting) = (0, 0.0, 0);
        while done < steps {
            let here = piece(steps - done, self.spikes as u64);
            wall += (here as f64 * self.kernel_us + self.launch_us).max(waiting as f64 * self.collect_us);
            (done, waiting) = (done + here, here);
        }
        wall + waiting as f64 * self.collect_us
    }

    /// Wall time of a run of so many steps of `dt_ms`, us: a chunk runs while the spikes of the last one are booked.
    pub fn run_us(&self, steps: u64, dt_ms: f64) -> f64 {
        let least = ((10.0 / dt_ms).round() as u64).max(1);
        let (mut done, mut wall, mut waiting, mut chunk) = (0, 0.0, 0, least);
        while done < steps {
            let here = pace::next(chunk, steps - done, true, least);
            let mut took = self.advance_us(here).max(waiting as f64 * self.book_us);
            (done, waiting) = (done + here, here);
            if done == steps {
                took += waiting as f64 * self.book_us;
            }
            wall += took;
            chunk = pace::adapt(chunk, here, took * 1e-6);
        }
        wall
    }
}
