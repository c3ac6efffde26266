//! Synapses that change: by the timing of spikes, by rates, under a modulator, and for a short time.
//!
//! [`Plasticity`] describes what a projection's synapses do; [`fixed`] has it as whole numbers, which is what engines run;
//! [`law`] has it in f64, which is what the fixed form is held to. README.md says the equations.

use super::network::{Distribution, Rule};
use crate::config::short;

pub mod fixed;
pub mod law;
pub(super) mod planned;
pub mod rules;

/// How the synapses of a projection change: at most one of `stdp`, `hebb` and `bcm`, and any of the others with it.
#[derive(Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Plasticity {
    /// By the timing of spikes before and after them.
    pub stdp: Option<Stdp>,
    /// What a modulator makes of that timing.
    pub modulation: Option<Modulation>,
    /// By spikes on both sides that are near each other, in whichever order.
    pub hebb: Option<Hebb>,
    /// By the rate of the cell after them, against a threshold that slides.
    pub bcm: Option<Bcm>,
    /// All weights into a cell together, towards a rate.
    pub homeostasis: Option<Homeostasis>,
    /// By the spikes before them alone, for a short time.
    pub short_term: Option<ShortTerm>,
    /// By spikes before and after them in the same step.
    pub coincidence: Option<Coincidence>,
    /// What the size of a weight loses in a ms whatever happens, down to its least; in the weight's unit.
    pub decay_per_ms: f64,
}

impl std::fmt::Debug for Plasticity {
    /// Checkpoints know a network by this: what came later is named only where there is some.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = f.debug_struct("Plasticity");
        all.field("stdp", &self.stdp).field("modulation", &self.modulation).field("hebb", &self.hebb);
        all.field("bcm", &self.bcm).field("homeostasis", &self.homeostasis).field("short_term", &self.short_term);
        if let Some(coincidence) = &self.coincidence {
            all.field("coincidence", coincidence);
        }
        if self.decay_per_ms != 0.0 {
            all.field("decay_per_ms", &self.decay_per_ms);
        }
        all.finish()
    }
}

impl Plasticity {
    /// Spike-timing-dependent plasticity alone.
    pub fn stdp(stdp: Stdp) -> Self {
        Self { stdp: Some(stdp), ..Self::default() }
    }
    /// Spike-timing-dependent plasticity that a modulator turns into weights.
    pub fn modulated(stdp: Stdp, modulation: Modulation) -> Self {
        Self { stdp: Some(stdp), modulation: Some(modulation), ..Self::default() }
    }
    /// Hebb's rule alone.
    pub fn hebb(hebb: Hebb) -> Self {
        Self { hebb: Some(hebb), ..Self::default() }
    }
    /// The rule of Bienenstock, Cooper and Munro alone.
    pub fn bcm(bcm: Bcm) -> Self {
        Self { bcm: Some(bcm), ..Self::default() }
    }
    /// Scaling alone; it needs `bounds`.
    pub fn homeostasis(homeostasis: Homeostasis) -> Self {
        Self { homeostasis: Some(homeostasis), ..Self::default() }
    }
    /// Coincidence alone; it needs `bounds`.
    pub fn coincidence(coincidence: Coincidence) -> Self {
        Self { coincidence: Some(coincidence), ..Self::default() }
    }
    /// Short-term plasticity alone.
    pub fn short_term(short_term: ShortTerm) -> Self {
        Self { short_term: Some(short_term), ..Self::default() }
    }
    /// With short-term plasticity too.
    #[must_use]
    pub fn and_short_term(mut self, short_term: ShortTerm) -> Self {
        self.short_term = Some(short_term);
        self
    }
    /// With scaling too.
    #[must_use]
    pub fn and_homeostasis(mut self, homeostasis: Homeostasis) -> Self {
        self.homeostasis = Some(homeostasis);
        self
    }
    /// With coincidence too.
    #[must_use]
    pub fn and_coincidence(mut self, coincidence: Coincidence) -> Self {
        self.coincidence = Some(coincidence);
        self
    }
    /// With so much decay in a ms too.
    #[must_use]
    pub fn and_decay(mut self, per_ms: f64) -> Self {
        self.decay_per_ms = per_ms;
        self
    }
    /// The least and the greatest size of a weight, where weights themselves change.
    pub fn bounds(&self) -> Option<(f64, f64)> {
        let stdp = self.stdp.map(|s| (s.w_min, s.w_max));
        let hebb = self.hebb.map(|h| (h.w_min, h.w_max));
        let bcm = self.bcm.map(|b| (b.w_min, b.w_max));
        let coincidence = self.coincidence.and_then(|c| c.bounds);
        stdp.or(hebb).or(bcm).or(coincidence).or(self.homeostasis.and_then(|h| h.bounds))
    }
    /// Where the delay lies; behind the synapse where nothing says so.
    pub fn placement(&self) -> Placement {
        let of = self.stdp.map(|s| s.placement).or(self.hebb.map(|h| h.placement)).or(self.bcm.map(|b| b.placement));
        of.unwrap_or(Placement::Dendritic)
    }
    /// Which pairs of spikes count.
    pub fn pairs(&self) -> Pairs {
        self.stdp.map_or(Pairs::All, |s| s.pairs)
    }
    /// The name of what changes the weights.
    pub fn name(&self) -> &'static str {
        match self {
            Self { modulation: Some(_), .. } => "modulated_stdp",
            Self { stdp: Some(_), .. } => "stdp",
            Self { hebb: Some(_), .. } => "hebb",
            Self { bcm: Some(_), .. } => "bcm",
            Self { coincidence: Some(_), .. } => "coincidence",
            Self { homeostasis: Some(_), .. } => "homeostatic",
            _ => "tsodyks_markram",
        }
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

/// Neuromodulated spike-timing-dependent plasticity (Izhikevich, Cereb. Cortex 17:2443, 2007; Potjans, Morrison and Diesmann,
/// Front. Comput. Neurosci. 4:141, 2010).
///
/// What [`Stdp`] (additive) would do to the weight goes to the synapse's eligibility c, as a share of R, which forgets it with
/// `tau_c`. Each spike of a population adds `1 / tau_n` to the modulator n, `delay` later, which forgets it with `tau_n`; and
/// `dw/dt = R c (n - baseline)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Modulation {
    /// Index of the population whose spikes carry the modulator.
    pub population: usize,
    /// Of the eligibility, ms.
    pub tau_c_ms: f64,
    /// Of the modulator, ms.
    pub tau_n_ms: f64,
    /// The level of the modulator at which nothing changes, 1 / s.
    pub baseline_hz: f64,
    /// How long the modulator takes to the synapses, ms; at least a step.
    pub delay_ms: f64,
}

/// Hebb's rule for spikes (the correlation term of Gerstner and Kistler, Biol. Cybern. 87:404, 2002, with a window).
///
/// With x, y, p and q as of [`Stdp`], all pairs, and one time constant: at q, w grows by `a x(q) R` and then shrinks by
/// `a_post R`; at p, after the spike was passed on, it grows by `a y(p) R` and then shrinks by `a_pre R`. [`Dependence`]
/// replaces R likewise, in growth and in loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hebb {
    /// Growth of a pair of no distance, as a share of R.
    pub a: f64,
    /// What each spike before the synapse costs.
    pub a_pre: f64,
    /// What each spike after it costs.
    pub a_post: f64,
    /// The width of the window, ms.
    pub tau_ms: f64,
    /// The least size of a weight.
    pub w_min: f64,
    /// The greatest size of a weight.
    pub w_max: f64,
    /// How steps depend on the weight.
    pub dependence: Dependence,
    /// Where the delay lies.
    pub placement: Placement,
}

/// The rule of Bienenstock, Cooper and Munro (J. Neurosci. 2:32, 1982), for spikes.
///
/// r is the rate of the cell after the synapse over `target_hz`, from the trace y of its spikes: `y / (tau target)`. Its square
/// is averaged over `tau_threshold`: each spike adds the trace just before it to z, so that the mean of
/// `theta = z / (tau tau_threshold target^2)` is that of r^2 where spikes are independent. At each spike before the synapse,
/// after it was passed on, w moves by `a r (r - theta) R`: up above the threshold, down below it. A constant rate is at rest at
/// the target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bcm {
    /// Share of R.
    pub a: f64,
    /// The rate at which the threshold and the rate are equal, Hz.
    pub target_hz: f64,
    /// Over which the rate is taken, ms.
    pub tau_ms: f64,
    /// Over which its square is averaged, ms.
    pub tau_threshold_ms: f64,
    /// The least size of a weight.
    pub w_min: f64,
    /// The greatest size of a weight.
    pub w_max: f64,
    /// Where the delay lies.
    pub placement: Placement,
}

/// Hebb's rule for spikes in the same step, that of the original 4D-Neural-Cognition: in each step in which the cell before
/// the synapse fires, w grows by `a R` where the cell after it fires in that step too, and shrinks by `a_pre R` where it does
/// not. The delay counts on neither side; the strength that a spike meets is that of the step in which it fires, before this.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Coincidence {
    /// Growth where both fire, as a share of R.
    pub a: f64,
    /// Loss where the cell before the synapse fires alone, as a share of R.
    pub a_pre: f64,
    /// The least and the greatest size of a weight, where no other rule has them.
    pub bounds: Option<(f64, f64)>,
}

/// Synaptic scaling (Turrigiano et al., Nature 391:892, 1998; the first term of van Rossum, Bi and Turrigiano, J. Neurosci.
/// 20:8812, 2000): at the end of every window each weight into a cell is multiplied by `1 + rate (1 - r / target)`, r the
/// cell's mean rate in the window; within the bounds of the projection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Homeostasis {
    /// Hz.
    pub target_hz: f64,
    /// ms.
    pub window_ms: f64,
    /// How far a silent cell's weights go in a window, from 0 to 1.
    pub rate: f64,
    /// The least and the greatest size of a weight, where no other rule has them.
    pub bounds: Option<(f64, f64)>,
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
    /// Every weight in it times `factor`.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let f = factor;
        Self {
            stdp: self.stdp.map(|s| Stdp { w_min: s.w_min * f, w_max: s.w_max * f, ..s }),
            hebb: self.hebb.map(|s| Hebb { w_min: s.w_min * f, w_max: s.w_max * f, ..s }),
            bcm: self.bcm.map(|s| Bcm { w_min: s.w_min * f, w_max: s.w_max * f, ..s }),
            homeostasis: self.homeostasis.map(|h| Homeostasis { bounds: h.bounds.map(|(a, b)| (a * f, b * f)), ..h }),
            coincidence: self.coincidence.map(|c| Coincidence { bounds: c.bounds.map(|(a, b)| (a * f, b * f)), ..c }),
            decay_per_ms: self.decay_per_ms * f,
            ..*self
        }
    }

    /// What is wrong with the numbers at this step, as `(field, end of a sentence)`.
    pub fn problem(&self, dt_ms: f64) -> Option<(&'static str, String)> {
        let tau = |name, ms: f64, least: f64| {
            let steps = ms / dt_ms;
            (!(steps <= MAX_TAU && ms >= least && ms.is_finite())).then(|| {
                (
                    name,
                    format!(
                        "is {ms} ms, which must be above 0 and at most {MAX_TAU} steps of {dt_ms} ms",
                        ms = short(ms)
                    ),
                )
            })
        };
        let share = |name, x: f64| {
            (!(0.0..=1.0).contains(&x)).then(|| (name, format!("is {x}, not from 0 to 1", x = short(x))))
        };
        let target = |hz: f64| {
            let fits = (1e-3..=1e3 / dt_ms).contains(&hz);
            (!fits).then(|| {
                ("target_rate", format!("is {hz} Hz, which must be from 0.001 to one spike a step", hz = short(hz)))
            })
        };
        let bounds = self.bounds().and_then(|(low, high)| {
            (!(low >= 0.0 && high > low && high.is_finite())).then(|| {
                let what = "bounds of a weight's size with 0 <= w_min < w_max";
                (
                    "w_max",
                    format!("is {high} and w_min is {low}; they must be {what}", high = short(high), low = short(low)),
                )
            })
        });
        let of_stdp = self.stdp.and_then(|s| {
            tau("tau_plus", s.tau_plus_ms, f64::MIN_POSITIVE)
                .or_else(|| tau("tau_minus", s.tau_minus_ms, f64::MIN_POSITIVE))
                .or_else(|| share("A_plus", s.a_plus))
                .or_else(|| share("A_minus", s.a_minus))
        });
        let of_modulation = || {
            let m = self.modulation?;
            let additive = self.stdp.is_some_and(|s| s.dependence == Dependence::Additive);
            let beside = self.homeostasis.is_some() || self.coincidence.is_some() || self.decay_per_ms != 0.0;
            let others = (beside || !additive).then(|| {
                let what =
                    "goes with the additive dependence alone, and without homeostatic scaling, coincidence and decay";
                ("modulator", what.to_owned())
            });
            tau("tau_eligibility", m.tau_c_ms, f64::MIN_POSITIVE)
                .or_else(|| tau("tau_modulator", m.tau_n_ms, f64::MIN_POSITIVE))
                .or_else(|| {
                    let most = 100.0 / m.tau_c_ms * 1e3;
                    let fits = (0.0..=most).contains(&m.baseline_hz);
                    (!fits).then(|| ("baseline", format!("is {} Hz, not from 0 to {most}", short(m.baseline_hz))))
                })
                .or_else(|| {
                    let steps = (m.delay_ms / dt_ms).round();
                    let fits = (1.0..=65_535.0).contains(&steps);
                    let what =
                        || format!("is {} ms, which must be from 1 to 65,535 steps of {dt_ms} ms", short(m.delay_ms));
                    (!fits).then(|| ("modulator_delay", what()))
                })
                .or(others)
        };
        let of_hebb = || {
            let h = self.hebb?;
            tau("tau", h.tau_ms, f64::MIN_POSITIVE)
                .or_else(|| share("A", h.a))
                .or_else(|| share("A_pre", h.a_pre))
                .or_else(|| share("A_post", h.a_post))
        };
        let of_bcm = || {
            let b = self.bcm?;
            tau("tau", b.tau_ms, f64::MIN_POSITIVE)
                .or_else(|| tau("tau_threshold", b.tau_threshold_ms, f64::MIN_POSITIVE))
                .or_else(|| target(b.target_hz))
                .or_else(|| share("A", b.a))
                .or_else(|| {
                    // One spike is so much of a target's trace; larger numbers leave nothing for the rest of a word.
                    let one = 1e3 / (b.tau_ms * b.target_hz);
                    let what = format!(
                        "is {} Hz: in {} ms a spike comes to {one} times that",
                        short(b.target_hz),
                        short(b.tau_ms),
                        one = short(one.round())
                    );
                    (one > 4096.0).then_some(("target_rate", what))
                })
        };
        let of_scaling = || {
            let h = self.homeostasis?;
            let steps = h.window_ms / dt_ms;
            let window = (!(1.0..=1e9).contains(&steps.round())).then(|| {
                let what = format!("is {} ms, which must be from 1 to 1e9 steps of {dt_ms} ms", short(h.window_ms));
                ("window", what)
            });
            window.or_else(|| target(h.target_hz)).or_else(|| share("scaling_rate", h.rate)).or_else(|| {
                self.bounds().is_none().then(|| ("w_max", "is missing: scaled weights need bounds".to_owned()))
            })
        };
        let of_coincidence = || {
            let c = self.coincidence?;
            share("A", c.a).or_else(|| share("A_pre", c.a_pre)).or_else(|| {
                let axonal = self.placement() == Placement::Axonal;
                axonal.then(|| ("delay", "is axonal, but pairs of the same step know no delay".to_owned())).or_else(
                    || self.bounds().is_none().then(|| ("w_max", "is missing: weights need bounds".to_owned())),
                )
            })
        };
        let of_decay = || {
            let decay = self.decay_per_ms;
            let what = if !(decay >= 0.0 && decay.is_finite()) {
                format!("is {decay}, which must be finite and not negative", decay = short(decay))
            } else if decay > 0.0 && self.bounds().is_none() {
                "is of weights that have bounds".to_owned()
            } else {
                return None;
            };
            Some(("weight_decay", what))
        };
        let of_short = || {
            let s = self.short_term?;
            tau("tau_rec", s.tau_rec_ms, f64::MIN_POSITIVE)
                .or_else(|| tau("tau_fac", s.tau_fac_ms, 0.0))
                .or_else(|| share("U", s.u))
                .or_else(|| (s.u == 0.0).then(|| ("U", "is 0, so that nothing would pass".into())))
        };
        let first = of_stdp.or_else(of_modulation).or_else(of_hebb).or_else(of_bcm).or_else(of_coincidence);
        first.or(bounds).or_else(of_scaling).or_else(of_decay).or_else(of_short)
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
