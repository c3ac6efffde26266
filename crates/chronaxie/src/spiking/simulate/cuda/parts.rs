//! The parts of a step that kernels have clocks for: what they are called, and what each of them works on and moves.
//!
//! Bytes are at the least, by the sizes of a plan and by what fired. Instructions are those that the kernels' heads have counted; where nobody
//! did, none are given. A meeting of all blocks is two trips to the second cache.

use super::CudaEngine;
use super::config::Place;
use crate::Result;
use crate::spiking::connect::Redraw;
use crate::spiking::models::{Kind, Twin};
use crate::spiking::network::{Codes, Weights};
use crate::spiking::plan::Plan;
use crate::spiking::simulate::reckon::{Load, PartCost};
use crate::spiking::simulate::{Engine, Spike};
use std::time::Instant;

/// Parts of the resident kernel, as many as `kLaps` of laps.cuh, and of the streaming one, as `kGridLaps`.
pub(super) const RESIDENT: usize = 11;
pub(super) const STREAMING: usize = 11;

pub(super) const HEADERS: &str = "waiting for other blocks";
pub(super) const LISTING: &str = "listing rows that fired";
pub(super) const DELIVERY: &str = "delivery";
pub(super) const AFTER_DELIVERY: &str = "waiting for the block's warps after delivery";
pub(super) const AFTER_LIST: &str = "waiting for the block's warps after the list";
pub(super) const UPDATE: &str = "update";
pub(super) const AFTER_UPDATE: &str = "waiting for the block's warps after their update";
pub(super) const TELLING: &str = "telling what fired";
pub(super) const DRIVES: &str = "drives";
pub(super) const CALENDAR: &str = "calendar";
pub(super) const ROWS: &str = "reading rows";
/// Synapses that change do so and pass on what is due, each by one lane, one after the other, so that no clock tells them apart.
pub(super) const LEARNING: &str = "learning and delivery";
pub(super) const AFTER_LEARNING: &str = "waiting for the block's warps after learning";
/// The streaming kernel draws arrivals where it takes them up.
pub(super) const BOTH: &str = "update and drives";
pub(super) const OTHERS_UPDATE: &str = "waiting for other blocks after their update";
pub(super) const EXCHANGE: &str = "exchange between GPUs";
pub(super) const REDRAWN: &str = "drawing rows and delivery";
pub(super) const AXONS: &str = "learning and delivery behind axons";
pub(super) const OTHERS_DELIVERY: &str = "waiting for other blocks after delivery";
/// What is not in the kernel: launches, what brings synapses up to date between them, and spikes that the host takes up while nothing runs.
pub(super) const BESIDE: &str = "launches and the host";

/// What of a step is delivery, and of synapses that change learning: with waiting for the block's last warp.
pub(crate) const OF_DELIVERY: &[&str] =
    &[DELIVERY, LISTING, REDRAWN, AFTER_DELIVERY, AFTER_LIST, CALENDAR, ROWS, LEARNING, AXONS, AFTER_LEARNING];

/// Microseconds of a meeting of all blocks of a GPU, and of what GPUs tell each other.
pub(super) const MEETING_US: f64 = 0.7;
pub(super) const BETWEEN_US: f64 = 2.0;
/// Instructions of a lane (steps.cu): the step of a cell of `lif_exp`, and a draw of a step's arrivals, or of a source.
const CELL: f64 = 60.0;
const DRAW: f64 = 60.0;
/// Likewise (drawn.cuh) a synapse that is drawn again, beside eight a halving of its tables.
const REDRAW: f64 = 80.0;
const HALVING: f64 = 8.0;

/// Names of parts, and their shares of a step.
pub(super) type Shares = Vec<(&'static str, f64)>;

/// The shares of a step of `laps`, which follow each other in a kernel of `ns` nanoseconds, of `all_ns` by the wall clock.
pub(super) fn shares<const N: usize>(names: [Option<&'static str>; N], laps: [u64; N], ns: f64, all_ns: f64) -> Shares {
    // What the kernel's clocks do not see is the host's.
    let kernel = (ns / all_ns.max(1.0)).min(1.0);
    // Between two laps with nothing between them is a clock's own time.
    let parts: Vec<_> = names.into_iter().zip(laps).filter_map(|(name, lap)| Some((name?, lap as f64))).collect();
    let all = parts.iter().map(|(_, lap)| lap).sum::<f64>().max(1.0);
    let parts = parts.into_iter().map(|(name, lap)| (name, kernel * lap / all));
    parts.chain([(BESIDE, 1.0 - kernel)]).collect()
}

/// Synapses that are delivered in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Deliveries {
    /// Kept, and always the same.
    pub fixed: f64,
    /// Such as change, with their delays behind them, and before them.
    pub changing: f64,
    pub axonal: f64,
    /// Drawn again.
    pub drawn: f64,
    /// Instructions of the draws.
    pub drawing: f64,
}

/// Whether the delays of a projection's synapses, which change, lie before them.
pub(super) fn is_axonal(plan: &Plan, projection: usize) -> bool {
    let rule = plan.rule(projection).zip(plan.learning.as_ref()).map(|(rule, l)| &l.rules[usize::from(rule)]);
    rule.is_some_and(|rule| rule.stdp.as_ref().is_some_and(|pair| pair.axonal))
}

impl Deliveries {
    /// By how often each population fires, and how many synapses a projection is expected to have; all together as many as there were.
    pub fn new(plan: &Plan, redraw: Redraw, load: &Load) -> Self {
        let mut of = Self::default();
        for (i, p) in plan.network.projections.iter().enumerate() {
            let size = f64::from(plan.network.populations[p.source].size.max(1));
            let here = load.spikes.get(p.source).copied().unwrap_or(0.0) * plan.expected(i) / size;
            if plan.draws(i, redraw) {
                let e = &plan.efficacies[i];
                let halvings = |codes: &Codes| f64::from(codes.greatest() - codes.least() + 1).log2().ceil();
                let weights = e.weight.as_ref().map_or(0.0, |weights| match weights {
                    Weights::Codes { codes, .. } => halvings(codes),
                    // Two loads, of both ends of a line.
                    Weights::Curve(_) => 2.0,
                });
                let halvings = weights + e.delay.as_ref().map_or(0.0, halvings);
                of.drawing += here * (REDRAW + HALVING * halvings);
                of.drawn += here;
            } else if !plan.changes(i) {
                of.fixed += here;
            } else if is_axonal(plan, i) {
                of.axonal += here;
            } else {
                of.changing += here;
            }
        }
        let all = of.fixed + of.changing + of.axonal + of.drawn;
        let by = if all > 0.0 { load.events / all } else { 0.0 };
        let Self { fixed, changing, axonal, drawn, drawing } = of;
        Self {
            fixed: fixed * by,
            changing: changing * by,
            axonal: axonal * by,
            drawn: drawn * by,
            drawing: drawing * by,
        }
    }
}

/// Instructions of the steps of all cells, as far as somebody counted them, with those of sources; and of the draws of drives.
pub(super) fn instructions(plan: &Plan) -> [PartCost; 2] {
    let size = |p: usize| f64::from(plan.network.populations[p].size);
    let (mut known, mut whole) = (0.0, true);
    for (p, model) in plan.models.iter().enumerate() {
        match (model.kind(), model.twin()) {
            (Kind::Dynamics, Twin::LifExp | Twin::LifExpOne) => known += CELL * size(p),
            (Kind::Poisson, _) => known += DRAW * size(p),
            _ => whole = false,
        }
    }
    let draws: f64 = plan.poisson.iter().map(|d| size(d.target)).sum();
    let otherwise = if whole { "latency" } else { "not reckoned" };
    let update = PartCost::of(plan.cells() as f64, "cells", otherwise).instructions(known);
    [update, PartCost::of(draws, "draws", "latency").instructions(DRAW * draws)]
}

impl CudaEngine<'_> {
    /// As [`Engine::advance_in_parts`].
    pub(super) fn advanced_in_parts(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<Option<Shares>> {
        self.whole()?;
        for unit in &mut self.units {
            if !unit.can_time(&self.config)? {
                return Ok(None);
            }
        }
        (self.timed, self.laps, self.kernel_ns) = (true, Default::default(), 0);
        let since = Instant::now();
        let ran = self.advance(steps, spikes);
        let all_ns = since.elapsed().as_nanos() as f64;
        self.timed = false;
        ran?;
        Ok(Some(shares(self.parts(), self.laps, self.kernel_ns as f64 / self.units.len() as f64, all_ns)))
    }

    /// Which parts its steps have, in the order of `Lap` in laps.cuh.
    fn parts(&self) -> [Option<&'static str>; RESIDENT] {
        let learns = self.config.learns.is_some();
        let (delivery, after) = if learns { (LISTING, AFTER_LIST) } else { (DELIVERY, AFTER_DELIVERY) };
        let some = |has: bool, name: &'static str| has.then_some(name);
        [
            Some(HEADERS),
            Some(delivery),
            Some(after),
            Some(UPDATE),
            Some(AFTER_UPDATE),
            Some(TELLING),
            some(!self.plan.poisson.is_empty(), DRIVES),
            some(self.config.place == Place::Calendar, CALENDAR),
            some(learns, ROWS),
            some(learns, LEARNING),
            some(learns, AFTER_LEARNING),
        ]
    }

    /// As [`Engine::part_cost`].
    pub(super) fn cost(&self, part: &str, load: &Load) -> PartCost {
        let (plan, c) = (self.plan, &self.config);
        let of = Deliveries::new(plan, Redraw::Nothing, load);
        let (events, spikes): (f64, f64) = (load.events, load.spikes.iter().sum());
        let l2 = self.units.first().map_or(0.0, |u| f64::from(u.memory.device.props().l2_bytes)) * c.here as f64;
        let latency = |count: f64, of: &'static str| PartCost::of(count, of, "latency");
        let stored = c.synapse() as f64 * self.synapses() as f64;
        // Of rows that change: the entry of the cell, in every shard.
        let heads = c.learns.map_or(0.0, |l| 8.0 * l.head as f64) * spikes * c.meeting() as f64;
        let entry = c.learns.map_or(0.0, |l| 8.0 * l.width as f64);
        let (due, places) = (c.due() as f64, (c.ring * c.room * c.meeting()) as f64);
        let calendar = due * places;
        let [update, drives] = instructions(plan);
        // Arrivals of four steps of a drive and cell are a word, written once and read in each step.
        let far = if c.held || c.near > 0 { 0.0 } else { drives.count };
        match part {
            HEADERS => {
                let us = match (c.here, c.meeting()) {
                    (_, 1) => 0.0,
                    (1, _) => MEETING_US,
                    _ => BETWEEN_US,
                };
                latency(spikes, "spikes").latency(us)
            }
            DELIVERY => {
                let added = if c.place == Place::Shared { 0.0 } else { due * events };
                latency(events, "synapses").bytes(c.synapse() as f64 * events, stored, l2).bytes(added, calendar, l2)
            }
            CALENDAR => latency(events, "synapses").bytes(due * events, calendar, l2),
            UPDATE => {
                let states = self.update_bytes() as f64;
                update.bytes(states + 4.0 * far, 0.5 * states + 8.0 * far, l2)
            }
            DRIVES => drives.bytes(far, 8.0 * far, l2),
            // The log, and what synapses that change ask for.
            TELLING => latency(spikes, "spikes").bytes((8.0 + entry) * spikes, 0.0, l2),
            ROWS => latency(events, "synapses").bytes(8.0 * events + heads, stored, l2),
            LEARNING => latency(of.changing, "synapses that change").bytes(8.0 * of.changing + heads, stored, l2),
            BESIDE => PartCost::of(spikes, "spikes", "host"),
            _ => latency(spikes, "spikes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spiking::simulate::procedural_tests::{drawn, network};

    /// Shares are of the wall clock; what a step has none of is left out, and what it has follows each other.
    #[test]
    fn shares_add_up() {
        let names = [Some("a"), None, Some("b")];
        let all = shares(names, [30, 7, 10], 80.0, 100.0);
        assert_eq!(all.iter().map(|(n, _)| *n).collect::<Vec<_>>(), ["a", "b", BESIDE]);
        let want = [0.6, 0.2, 0.2];
        assert!(all.iter().zip(want).all(|((_, x), y)| (x - y).abs() < 1e-12), "{all:?}");
        // A clock of nanoseconds may be coarser than the host's.
        assert_eq!(shares([Some("a")], [5], 110.0, 100.0), [("a", 1.0), (BESIDE, 0.0)]);
        assert_eq!(shares([Some("a")], [0], 0.0, 0.0)[0].1, 0.0);
    }

    /// All together are those that there were, each by the rates of its sources.
    #[test]
    fn deliveries_are_taken_apart_by_projections() {
        let plan = Plan::new(drawn(network(12, 2.0, 4)).0).unwrap();
        let load = Load { spikes: vec![2.0; plan.models.len()], events: 500.0 };
        let kept = Deliveries::new(&plan, Redraw::Nothing, &load);
        assert!((kept.fixed - 500.0).abs() < 1e-9 && kept.drawn + kept.changing + kept.axonal == 0.0, "{kept:?}");
        let some = Deliveries::new(&plan, Redraw::Asked, &load);
        assert!(some.drawn > 0.0 && (some.fixed + some.drawn - 500.0).abs() < 1e-9, "{some:?}");
        assert!(some.drawing >= REDRAW * some.drawn && some.drawing < 300.0 * some.drawn, "{some:?}");
        let silent = Load { spikes: vec![0.0; plan.models.len()], events: 0.0 };
        assert_eq!(Deliveries::new(&plan, Redraw::Asked, &silent), Deliveries::default());
    }
}
