//! Synapses that change: spike-timing-dependent plasticity of pairs, and short-term plasticity.
//!
//! [`Plasticity`] describes what a projection's synapses do; [`fixed`] has it as whole numbers, which is what engines run;
//! [`law`] has it in f64, which is what the fixed form is held to. README.md says the equations.

use super::network::{Distribution, Rule};

pub mod fixed;
pub mod law;
mod planned;

/// How the synapses of a projection change.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Plasticity {
    /// By the timing of spikes before and after them.
    pub stdp: Option<Stdp>,
    /// By the spikes before them alone, for a short time.
    pub short_term: Option<ShortTerm>,
}

impl Plasticity {
    /// Spike-timing-dependent plasticity alone.
    pub fn stdp(stdp: Stdp) -> Self {
        Self { stdp: Some(stdp), short_term: None }
    }
    /// Short-term plasticity alone.
    pub fn short_term(short_term: ShortTerm) -> Self {
        Self { stdp: None, short_term: Some(short_term) }
    }
    /// With both.
    #[must_use]
    pub fn and_short_term(mut self, short_term: ShortTerm) -> Self {
        self.short_term = Some(short_term);
        self
    }
}

/// Spike-timing-dependent plasticity of pairs.
///
/// A weight's size w lies in `[w_min, w_max]`, R = `w_max - w_min`. At a synapse, the spike before it is there at p and the
/// spike after it at q. At q, w grows by `a_plus x(q) R`, where x(q) sums `e^(-(q - p) / tau_plus)` over every p < q; at p,
/// after the spike was passed on, w shrinks by `a_minus y(p) R`, where y(p) sums `e^(-(p - q) / tau_minus)` over every
/// q < p. [`Dependence`] replaces R, [`Pairs`] says which pairs count, [`Placement`] where the delay lies. A pair of the
/// same time counts nothing, p goes before q, and no step leaves the bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stdp {
    /// Share of R for a pair of no distance, from 0 to 1.
    pub a_plus: f64,
    /// Likewise, where the spike after the synapse was first.
    pub a_minus: f64,
    /// ms.
    pub tau_plus_ms: f64,
    /// ms.
    pub tau_minus_ms: f64,
    /// The least size of a weight.
    pub w_min: f64,
    /// The greatest size of a weight.
    pub w_max: f64,
    /// How steps depend on the weight.
    pub dependence: Dependence,
    /// Which pairs of spikes count.
    pub pairs: Pairs,
    /// Where the delay lies.
    pub placement: Placement,
}

/// How the steps of a weight depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependence {
    /// Not at all (Song, Miller and Abbott, Nat. Neurosci. 3:919, 2000).
    Additive,
    /// Growth goes with `w_max - w`, loss with `w - w_min` (Rubin, Lee and Sompolinsky, Phys. Rev. Lett. 86:364, 2001).
    Multiplicative,
    /// Growth does not, loss goes with `w - w_min` (van Rossum, Bi and Turrigiano, J. Neurosci. 20:8812, 2000).
    Mixed,
}

/// Which pairs of spikes count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// All.
    All,
    /// Each spike with the nearest one before it on the other side (symmetric nearest-neighbour).
    Nearest,
}

/// Where the delay of a synapse lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// After the synapse: it sees the cell before it at once, the cell after it a delay late (as NEST).
    Dendritic,
    /// Before the synapse: it sees the cell before it a delay late, the cell after it at once.
    Axonal,
}

/// Short-term plasticity (Tsodyks, Uziel and Markram, J. Neurosci. 20:RC50, 2000): the k-th spike of a cell passes
/// `w u_k x_k`, where `u_k = U + (1 - U) u_(k-1) e^(-dt / tau_fac)` from `u_1 = U`, and
/// `x_k = 1 - (1 - x_(k-1) (1 - u_(k-1))) e^(-dt / tau_rec)` from `x_1 = 1`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShortTerm {
    /// Share of the resources that a spike after a long silence takes, in (0, 1].
    pub u: f64,
    /// ms.
    pub tau_rec_ms: f64,
    /// ms; with 0, u stays `U`.
    pub tau_fac_ms: f64,
}

/// The longest time constant, in steps: tables go as far as 22 of them.
pub const MAX_TAU: f64 = 1e6;

impl Plasticity {
    /// Every bound of a weight times `factor`.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let stdp = self.stdp.map(|s| Stdp { w_min: s.w_min * factor, w_max: s.w_max * factor, ..s });
        Self { stdp, ..*self }
    }

    /// What is wrong with the numbers at this step, as `(field, end of a sentence)`.
    pub fn problem(&self, dt_ms: f64) -> Option<(&'static str, String)> {
        let tau = |name, ms: f64, least: f64| {
            let steps = ms / dt_ms;
            (!(steps <= MAX_TAU && ms >= least && ms.is_finite()))
                .then(|| (name, format!("is {ms} ms, which must be above 0 and at most {MAX_TAU} steps of {dt_ms} ms")))
        };
        let share = |name, x: f64| (!(0.0..=1.0).contains(&x)).then(|| (name, format!("is {x}, not from 0 to 1")));
        let of_stdp = self.stdp.and_then(|s| {
            let bounds = (!(s.w_min >= 0.0 && s.w_max > s.w_min && s.w_max.is_finite())).then(|| {
                let what = "bounds of a weight's size with 0 <= w_min < w_max";
                ("w_max", format!("is {} and w_min is {}; they must be {what}", s.w_max, s.w_min))
            });
            tau("tau_plus", s.tau_plus_ms, f64::MIN_POSITIVE)
                .or_else(|| tau("tau_minus", s.tau_minus_ms, f64::MIN_POSITIVE))
                .or_else(|| share("A_plus", s.a_plus))
                .or_else(|| share("A_minus", s.a_minus))
                .or(bounds)
        });
        of_stdp.or_else(|| {
            let s = self.short_term?;
            tau("tau_rec", s.tau_rec_ms, f64::MIN_POSITIVE)
                .or_else(|| tau("tau_fac", s.tau_fac_ms, 0.0))
                .or_else(|| share("U", s.u))
                .or_else(|| (s.u == 0.0).then(|| ("U", "is 0, so that nothing would pass".into())))
        })
    }
}

/// The sign that all weights of a projection have; `None` where they have both.
pub(super) fn sign_of(weight: &Distribution, rule: &Rule) -> Option<i32> {
    let (low, high) = match rule {
        Rule::Edges(edges) => edges.iter().fold((0f64, 0f64), |(low, high), e| {
            let w = f64::from(e.weight);
            (low.min(w), high.max(w))
        }),
        _ => (weight.quantile(1e-10), weight.quantile(1.0 - 1e-10)),
    };
    match (low < 0.0, high > 0.0) {
        (true, true) => None,
        (true, false) => Some(-1),
        _ => Some(1),
    }
}

#[cfg(test)]
mod tests;
