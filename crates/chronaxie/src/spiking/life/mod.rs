//! Cells that die, and their children.
//!
//! A cell dies when its age is beyond `max_age` or its health below a tenth, at the next multiple of the interval; both count steps, so
//! which generation stands at a site in which step follows from the step alone ([`Life`]). What a child is follows from draws keyed by
//! the cell and its generation (`births.rs`); a synapse changes where a cell at one of its ends dies, by draws keyed by the synapse and by
//! how often it has changed (`weights.rs`). [`Living`] runs any engine from one death to the next.

use super::draws::{Purpose, draw, uniform};
use super::math::normal_quantile;
use super::network::Key;
use super::plan::Plan;
use std::collections::BTreeMap;

pub(crate) mod births;
mod living;
mod own;
#[cfg(test)]
mod tests;
pub(crate) mod weights;

pub use living::{Living, Make};
pub use weights::Reweighed;

/// When cells die.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    /// Whether children are born.
    pub reproduction: bool,
    /// From a birth to the death of that cell, in steps.
    pub period: u64,
    /// Of each cell of the network, the step before which the one that stands there at the start dies; 0 of those that do not.
    first: Vec<u64>,
    /// How old that one is at the start, in steps.
    begun: Vec<u32>,
    /// The cells that die, by that step, in which all of them have died once after a period.
    by_step: BTreeMap<u64, Vec<u32>>,
}

/// The cells of a network as they are between two steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lives {
    /// Of each cell, how many stood there before.
    pub generation: Vec<u32>,
    /// In steps; of those that neither age nor die, since the start.
    pub age: Vec<u64>,
    /// Whether it lives.
    pub alive: Vec<bool>,
    /// How many have died.
    pub died: u64,
    /// How many were born.
    pub born: u64,
}

/// How many steps a cell lives that is born with health 1: the first after which its age is beyond `max_age` steps or its health, from
/// which each step takes `decay`, below a tenth.
pub fn lifetime(max_age: f64, decay: f64) -> u64 {
    let by_age = if max_age < 9e15 { max_age as u64 + 1 } else { u64::MAX };
    if decay <= 0.0 {
        return by_age;
    }
    if 0.9 / decay > 1e7 {
        return by_age.min((0.9 / decay).min(9e15) as u64 + 1);
    }
    // As the original counts, in whose rounding 1 - 900 * 0.001 is below a tenth.
    let (mut health, mut steps) = (1.0, 0);
    while health >= 0.1 && steps < by_age {
        (health, steps) = (health - decay, steps + 1);
    }
    steps
}

impl Life {
    /// Of the cells of `plan`, if they die.
    pub fn of(plan: &Plan) -> Option<Self> {
        let (n, c) = (&plan.network, plan.network.lifecycle.as_ref()?);
        let steps = |ms: f64| (ms / n.dt_ms).round();
        let lifetime = lifetime(steps(c.max_age_ms), c.health_decay_per_ms * n.dt_ms);
        let interval = (steps(c.interval_ms) as u64).max(1);
        let cells = plan.cells() as usize;
        let (mut first, mut begun, mut by_step) = (vec![0; cells], vec![0; cells], BTreeMap::<u64, Vec<u32>>::new());
        for &p in &c.populations {
            let key = n.population_key(p);
            for cell in 0..n.populations[p].size {
                let at = (plan.first[p] as u32 + cell) as usize;
                let age = c.initial_age_ms.constant().unwrap_or_else(|| {
                    let bits = draw(key.seed, Purpose::Age, key.owner, cell.into());
                    c.initial_age_ms.quantile(uniform(bits[0], bits[1]))
                });
                begun[at] = steps(age).clamp(0.0, 4_294_967_295.0) as u32;
                let left = lifetime.saturating_sub(begun[at].into()).max(1);
                first[at] = left.div_ceil(interval).saturating_mul(interval);
                by_step.entry(first[at]).or_default().push(at as u32);
            }
        }
        let period = lifetime.div_ceil(interval).saturating_mul(interval);
        Some(Self { reproduction: c.reproduction, period, first, begun, by_step })
    }

    /// How many cells stood at a site before that of step `step`, those that died just before it among them.
    pub fn generation(&self, cell: u32, step: u64) -> u32 {
        let first = self.first[cell as usize];
        if first == 0 || step < first {
            return 0;
        }
        if self.reproduction { (1 + (step - first) / self.period).min(u32::MAX.into()) as u32 } else { 0 }
    }

    /// Whether a cell stands at a site.
    pub fn alive(&self, cell: u32, step: u64) -> bool {
        let first = self.first[cell as usize];
        self.reproduction || first == 0 || step < first
    }

    /// How old it is.
    pub fn age(&self, cell: u32, step: u64) -> u64 {
        let (first, begun) = (self.first[cell as usize], u64::from(self.begun[cell as usize]));
        match step.checked_sub(first) {
            Some(since) if first > 0 && self.reproduction => since % self.period,
            Some(_) if first > 0 => begun + first,
            _ => begun + step,
        }
    }

    /// The first step after `step` before which cells die, if there is one.
    pub fn next(&self, step: u64) -> Option<u64> {
        let (&earliest, _) = self.by_step.first_key_value()?;
        if !self.reproduction {
            return self.by_step.range(step + 1..).next().map(|(at, _)| *at);
        }
        // All first deaths lie within the first period.
        let (past, phase) = (step / self.period * self.period, step % self.period);
        match self.by_step.range(phase + 1..).next() {
            Some((at, _)) => past.checked_add(*at),
            None => past.checked_add(self.period)?.checked_add(earliest),
        }
    }

    /// The cells that die just before `step`, by rising number.
    pub fn dying(&self, step: u64) -> &[u32] {
        let phase = match step % self.period {
            0 => self.period,
            phase => phase,
        };
        let at = if self.reproduction { phase } else { step };
        self.by_step.get(&at).filter(|_| at <= step).map_or(&[], Vec::as_slice)
    }

    /// All cells before `step`.
    pub fn lives(&self, step: u64) -> Lives {
        let cells = 0..self.first.len() as u32;
        let mut all = Lives::default();
        for cell in cells {
            let (generation, alive) = (self.generation(cell, step), self.alive(cell, step));
            all.generation.push(generation);
            all.age.push(self.age(cell, step));
            all.alive.push(alive);
            all.born += u64::from(generation);
            all.died += u64::from(generation) + u64::from(!alive);
        }
        all
    }

    /// How many cells have died before `step`, and how many were born.
    pub fn counts(&self, step: u64) -> [u64; 2] {
        let all = self.lives(step);
        [all.died, all.born]
    }
}

/// A standard normal number.
pub(crate) fn standard(key: Key, purpose: Purpose, index: u64) -> f64 {
    let bits = draw(key.seed, purpose, key.owner, index);
    normal_quantile(uniform(bits[0], bits[1]))
}
