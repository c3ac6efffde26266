//! Synapses that are not kept: a row is drawn again, by the draws that would have stored it, whenever its source fires.
//!
//! Which rules can be: those whose draws are numbered by the source, or by the pair ([`Projection::not_procedural`]). Which
//! projections are: what the network asks for, and, where memory is short, what leaves it to that ([`Redraw`]).
//!
//! [`Projection::not_procedural`]: crate::spiking::network::Projection::not_procedural

use super::rows::enumerate;
use super::rules::visit_row;
use super::shard::Part;
use super::subset::Subset;
use crate::spiking::network::{Rule, Storage};
use crate::spiking::plan::Plan;
use crate::{Error, Result};

/// Which synapses are drawn again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Redraw {
    /// None: also those of projections that ask for it are stored.
    Nothing,
    /// Those of projections that ask for it.
    #[default]
    Asked,
    /// And those of projections that leave it to the memory there is.
    Possible,
}

/// Each cell's mean rate, in Hz, that memory for what is under way is reckoned with.
const RATE_HZ: f64 = 12.0;

impl Plan {
    /// Whether the synapses of a projection are drawn again at each spike.
    pub fn draws(&self, projection: usize, redraw: Redraw) -> bool {
        let p = &self.network.projections[projection];
        match (p.storage, redraw) {
            (Storage::Stored, _) | (_, Redraw::Nothing) | (Storage::Auto, Redraw::Asked) => false,
            (Storage::Procedural, _) => true,
            (Storage::Auto, Redraw::Possible) => p.not_procedural(&self.network).is_none(),
        }
    }

    /// Whether those of some projection are.
    pub fn draws_any(&self, redraw: Redraw) -> bool {
        (0..self.network.projections.len()).any(|i| self.draws(i, redraw))
    }

    /// Whether the synapses of a projection are kept, and do not change.
    pub(in crate::spiking) fn keeps(&self, projection: usize, redraw: Redraw) -> bool {
        !self.changes(projection) && !self.draws(projection, redraw)
    }

    /// About how many synapses are not drawn again.
    pub fn expected_kept(&self, redraw: Redraw) -> f64 {
        (0..self.network.projections.len()).filter(|i| !self.draws(*i, redraw)).map(|i| self.expected(i)).sum()
    }

    /// What is asked for, or more where that does not fit.
    pub(in crate::spiking) fn choose_redraw(&self, fits: impl Fn(Redraw) -> bool) -> Redraw {
        let auto = self.network.projections.iter().any(|p| p.storage == Storage::Auto);
        if auto && !fits(Redraw::Asked) { Redraw::Possible } else { Redraw::Asked }
    }

    /// Refuses to draw again what cannot be drawn by its source alone.
    pub(in crate::spiking) fn check_storage(&self) -> Result<()> {
        for (i, p) in self.network.projections.iter().enumerate().filter(|(_, p)| p.storage == Storage::Procedural) {
            if self.network.mutates(i) {
                let label = self.label(i);
                return Err(Error::config(format!(
                    "projection {label}: synapses = \"procedural\" draws synapses again at each spike, which forgets what \
                     lifecycle.mutation_std_weights made of them; let it be synapses = \"stored\""
                )));
            }
            if let Some(why) = p.not_procedural(&self.network) {
                let label = self.label(i);
                return Err(Error::config(format!(
                    "projection {label}: synapses = \"procedural\" {why}; or let it be synapses = \"stored\""
                )));
            }
        }
        Ok(())
    }

    /// Bytes of entries under way, of synapses that are drawn again, on the host: four each, or eight of long weights, those of all spikes of
    /// the longest delay.
    pub(in crate::spiking) fn under_way(&self, redraw: Redraw) -> f64 {
        let drawn = self.expected_synapses() - self.expected_kept(redraw);
        let sums = 4.0 * f64::from(self.max_delay) * self.first_slots().last().map_or(0.0, |slots| *slots as f64);
        let bytes = if self.has_long(|i| self.draws(i, redraw)) { 8.0 } else { 4.0 };
        (bytes * drawn * RATE_HZ * 1e-3 * self.network.dt_ms * f64::from(self.max_delay)).min(2.0 * sums)
    }

    /// What a user can do whose network does not fit: the projections whose synapses need not be stored.
    pub(in crate::spiking) fn procedural_hint(&self, redraw: Redraw) -> String {
        let n = &self.network;
        let could = |i: &usize| !self.draws(*i, redraw) && n.projections[*i].not_procedural(n).is_none();
        let could: Vec<usize> = (0..n.projections.len()).filter(could).collect();
        let Some(most) = could.iter().copied().max_by(|a, b| self.expected(*a).total_cmp(&self.expected(*b))) else {
            return String::new();
        };
        let all: f64 = could.iter().map(|i| self.expected(*i)).sum();
        format!(
            ", and synapses = \"procedural\" in {} draws {all:.3e} of them again at each spike instead of storing them",
            match could.len() {
                1 => format!("projection {}", self.label(most)),
                count => format!("{count} projections, of which {} is the largest,", self.label(most)),
            }
        )
    }
}

/// Calls `put(target, weight in units, delay in steps)` for every synapse of `source` of a projection onto the cells `targets`.
#[inline]
pub(in crate::spiking) fn row(
    plan: &Plan,
    projection: usize,
    source: u32,
    targets: Subset<'_>,
    put: &mut impl FnMut(u32, i32, u16),
) {
    let e = &plan.efficacies[projection];
    let (Some(weight), Some(delay)) = (&e.weight, &e.delay) else { return };
    visit_row(plan, projection, source, targets, &mut |_, t, w, d| put(t, weight.pick(w), delay.pick(d) as u16));
}

/// How many draws the row of a source takes, of which one may be of no synapse.
pub(in crate::spiking) fn draws_of_a_row(plan: &Plan, projection: usize) -> u32 {
    let p = &plan.network.projections[projection];
    match p.rule {
        Rule::OutDegree { count, .. } => count,
        Rule::AllToAll => plan.network.populations[p.target].size,
        _ => 1,
    }
}

/// How many synapses a source has, whose number in its population this is.
pub(in crate::spiking) fn degree(plan: &Plan, projection: usize, source: u32) -> u32 {
    let p = &plan.network.projections[projection];
    let none = p.rule_skips_self() && source < plan.network.populations[p.target].size;
    draws_of_a_row(plan, projection) - u32::from(none)
}

impl crate::spiking::network::Projection {
    /// Whether one of a source's draws is of itself, and of no synapse.
    fn rule_skips_self(&self) -> bool {
        matches!(self.rule, Rule::AllToAll) && self.source == self.target && !self.autapses
    }
}

/// How many synapses onto the cells of `parts` are drawn again; adds to `load` the largest sum that they can bring to each slot at once.
pub(super) fn weigh(plan: &Plan, parts: &[Part], redraw: Redraw, load: &mut [u32]) -> u64 {
    let mut all = 0;
    for (i, p) in plan.network.projections.iter().enumerate().filter(|(i, _)| plan.draws(*i, redraw)) {
        let (part, port) = (&parts[p.target], plan.port(p.target, true) as u32);
        enumerate(plan, i, part.cells(), &mut |_, t, code, _| {
            let load = &mut load[slot_of(part, port, t, code) as usize];
            *load = load.saturating_add(code.unsigned_abs());
            all += 1;
        });
    }
    all
}

/// The slot that a synapse of this weight onto a cell of a part acts on, where negative weights go to `port`.
#[inline(always)]
pub(in crate::spiking) fn slot_of(part: &Part, port: u32, target: u32, code: i32) -> u32 {
    let port = if code < 0 { port } else { 0 };
    part.slot + port * part.count() + part.cells().index(target)
}
