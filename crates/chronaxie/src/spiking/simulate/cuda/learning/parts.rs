//! The parts of a step of the streaming kernel, and what each of them moves.

use super::super::parts::{self, Deliveries, STREAMING, Shares};
use super::LearningEngine;
use crate::Result;
use crate::spiking::simulate::reckon::{Load, PartCost};
use crate::spiking::simulate::{Engine, Spike};
use std::time::Instant;

/// Bytes of a synapse that changes which a spike takes from its target's entries: their number, the last one's step, and a trace.
const ENTRY: f64 = 12.0;

impl LearningEngine<'_> {
    /// As [`Engine::advance_in_parts`].
    pub(super) fn advanced_in_parts(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<Option<Shares>> {
        self.whole()?;
        let seeds = !self.plan.network.has_one_seed();
        let config = self.config;
        for card in &mut self.cards {
            if !card.can_time(&config, seeds)? {
                return Ok(None);
            }
        }
        (self.timed, self.laps, self.kernel_ns) = (true, Default::default(), 0);
        let since = Instant::now();
        let ran = self.advance(steps, spikes);
        let all_ns = since.elapsed().as_nanos() as f64;
        self.timed = false;
        ran?;
        let ns = self.kernel_ns as f64 / self.cards.len() as f64;
        Ok(Some(parts::shares(self.parts(), self.laps, ns, all_ns)))
    }

    /// Which parts its steps have, in the order of `GridLap` in laps.cuh.
    fn parts(&self) -> [Option<&'static str>; STREAMING] {
        let (plan, c) = (self.plan, &self.config);
        let some = |has: bool, name: &'static str| has.then_some(name);
        let all = || 0..plan.network.projections.len();
        let changes = |axonal: bool| all().any(|i| plan.changes(i) && parts::is_axonal(plan, i) == axonal);
        [
            Some(parts::BOTH),
            Some(parts::AFTER_UPDATE),
            Some(parts::OTHERS_UPDATE),
            some(c.cards > 1, parts::EXCHANGE),
            Some(parts::LISTING),
            some(all().any(|i| plan.keeps(i, c.redraw)), parts::DELIVERY),
            some(changes(false), parts::LEARNING),
            some(c.drawn > 0, parts::REDRAWN),
            some(changes(true), parts::AXONS),
            Some(parts::AFTER_DELIVERY),
            Some(parts::OTHERS_DELIVERY),
        ]
    }

    /// As [`Engine::part_cost`].
    pub(super) fn cost(&self, part: &str, load: &Load) -> PartCost {
        let (plan, c) = (self.plan, &self.config);
        let of = Deliveries::new(plan, c.redraw, load);
        let spikes: f64 = load.spikes.iter().sum();
        let cards = self.cards.len() as f64;
        let l2 = self.cards.first().map_or(0.0, |card| f64::from(card.memory.device.props().l2_bytes)) * cards;
        let latency = |count: f64, of: &'static str| PartCost::of(count, of, "latency");
        let stored = 8.0 * plan.expected_kept(c.redraw);
        let ring = 4.0 * (c.ring * c.ports) as f64 * plan.cells() as f64 * cards;
        let meeting = if c.blocks > 1 { parts::MEETING_US } else { 0.0 };
        // Words and strengths are read, and strengths written back; likewise eligibilities. What is under way is added to in the ring.
        let learned = if self.learning.modulators.is_empty() { 12.0 } else { 20.0 };
        let changed = |n: f64| {
            let entries = 4.0 * (c.depth * self.learning.width()) as f64 * plan.cells() as f64 * cards;
            let words = latency(n, "synapses that change").bytes(learned * n, stored, l2);
            words.bytes(ENTRY * n, entries, l2).bytes(8.0 * n, ring, l2)
        };
        match part {
            parts::BOTH => {
                let [update, drives] = parts::instructions(plan);
                let states = super::super::state_bytes(plan) as f64;
                // A spike leaves its entry on every card, made from the last one, and a word of the log.
                let entry = if c.changes { 8.0 * self.learning.width() as f64 * cards } else { 0.0 };
                let both = update.bytes(states, 0.5 * states + ring, l2).bytes((8.0 + entry) * spikes, 0.0, l2);
                both.instructions(drives.instructions.unwrap_or(0.0))
            }
            parts::OTHERS_UPDATE | parts::OTHERS_DELIVERY => latency(spikes, "spikes").latency(meeting),
            parts::EXCHANGE => {
                let told = 8.0 * spikes * (cards - 1.0);
                latency(spikes, "spikes").bytes(told, 0.0, l2).latency(parts::BETWEEN_US)
            }
            parts::DELIVERY => {
                latency(of.fixed, "synapses").bytes(8.0 * of.fixed, stored, l2).bytes(8.0 * of.fixed, ring, l2)
            }
            parts::LEARNING => changed(of.changing),
            parts::AXONS => changed(of.axonal),
            // A sector of the ring for each, read and written.
            parts::REDRAWN => {
                let ring = latency(of.drawn, "synapses drawn").bytes(64.0 * of.drawn, ring, l2);
                ring.instructions(of.drawing * cards)
            }
            parts::BESIDE => PartCost::of(spikes, "spikes", "host"),
            _ => latency(spikes, "spikes"),
        }
    }
}
