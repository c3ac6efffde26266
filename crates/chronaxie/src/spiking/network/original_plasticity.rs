//! What `plasticity` and `neuromodulation` of the original's configuration make of synapses.
//!
//! - `rule = "hebb_like"`: [`Coincidence`]. Spikes of both cells in one step add `learning_rate` to a weight's size, a spike of the one
//!   before the synapse alone takes half of it.
//! - `rule = "stdp"`: [`Stdp`] of all pairs, `A_plus = learning_rate`, `A_minus` 1.2 times that, 20 ms, as of the original's function.
//! - `rule = "bcm"`, and `metaplasticity` beside `hebb_like`: [`Bcm`] at `learning_rate`, with `bcm_target_rate`, and `bcm_tau` for its
//!   threshold.
//! - `weight_min`, `weight_max`: weights that excite lie from 0, or a positive `weight_min`, to `weight_max`; those that inhibit from
//!   `weight_min` to 0, or a negative `weight_max`. `weight_decay` is what each ms takes from their size.
//! - `homeostatic`: [`Homeostasis`] in windows of `time_window`.
//! - `short_term`: [`ShortTerm`], facilitating (U 0.15, tau_fac 750 ms, tau_rec 50 ms) or depressing (0.6, 20, 800); `mixed` draws which.
//! - `neuromodulation`: levels at their baselines, where they stay when nothing releases any. Learning is `level x modulation` times as
//!   fast, input from synapses `1 + level x gain` times as strong, inhibition `1 + level x strength` times besides.
//!
//! Growth and loss are of a weight's size, so that an inhibitory synapse that grows inhibits more; the original's inhibitory
//! synapses excited.

use super::read_plasticity::written;
use super::{Distribution, Outside};
use crate::Result;
use crate::config::{Config, Section, quote, short};
use crate::spiking::plasticity::{
    Bcm, Coincidence, Dependence, Homeostasis, Pairs, Placement, Plasticity, ShortTerm, Stdp,
};

/// Synapses that start slowly, and that tire, of the original's module of short-term plasticity.
const FACILITATING: ShortTerm = ShortTerm { u: 0.15, tau_rec_ms: 50.0, tau_fac_ms: 750.0 };
const DEPRESSING: ShortTerm = ShortTerm { u: 0.6, tau_rec_ms: 800.0, tau_fac_ms: 20.0 };
/// The window of both sides of `stdp`, and that of the rate of `bcm`, ms.
const STDP_TAU_MS: f64 = 20.0;
const BCM_TAU_MS: f64 = 100.0;
/// `A_minus` over `A_plus`.
const STDP_RATIO: f64 = 1.2;

/// The rule that lasts, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lasting {
    HebbLike,
    Stdp,
    Bcm,
    None,
}

/// What synapses do, by whether they excite or inhibit; weights in the original's unit.
#[derive(Debug, Clone)]
pub struct Learned {
    low: f64,
    high: f64,
    rule: Lasting,
    /// What dopamine makes of `learning_rate`.
    rate: f64,
    decay: f64,
    homeostasis: Option<Homeostasis>,
    /// Target in Hz and time constant of the threshold in ms, where there is a threshold.
    threshold: Option<(f64, f64)>,
    /// How many of the synapses, and what they do for a short time.
    short: Vec<(f64, Option<ShortTerm>)>,
    gain: f64,
    inhibition: f64,
}

impl Learned {
    /// What `config` says.
    ///
    /// # Errors
    /// `Config` with the line and the field.
    pub fn read(config: &Config, dt_ms: f64, notes: &mut Vec<String>) -> Result<Self> {
        let (p, begun) = (config.table("plasticity")?, notes.len());
        let rule: String = p.get("rule", "hebb_like".into())?;
        let lasting = match rule.to_lowercase().replace(['-', ' '], "_").as_str() {
            "hebb_like" | "hebb" | "hebbian" => Lasting::HebbLike,
            "stdp" => Lasting::Stdp,
            "bcm" => Lasting::Bcm,
            "none" => Lasting::None,
            _ => {
                return Err(p.refuse("rule", &format!("is {}, but there are hebb_like, stdp, bcm, none", quote(&rule))));
            }
        };
        let positive = |t: &Section<'_>, key: &str, default: f64| -> Result<f64> {
            let value: f64 = t.get(key, default)?;
            if value >= 0.0 && value.is_finite() {
                return Ok(value);
            }
            Err(t.refuse(key, &format!("must be finite and not negative, but it is {value}", value = short(value))))
        };
        let (rate, decay) = (positive(&p, "learning_rate", 0.001)?, positive(&p, "weight_decay", 0.00001)?);
        let (low, high): (f64, f64) = (p.get("weight_min", -1.0)?, p.get("weight_max", 1.0)?);
        if !(low <= high && low.is_finite() && high.is_finite()) {
            return Err(p.refuse(
                "weight_min",
                &format!("= {low} is above weight_max = {high}", low = short(low), high = short(high)),
            ));
        }
        let mut all = Self {
            low,
            high,
            rule: lasting,
            rate,
            decay,
            homeostasis: None,
            threshold: None,
            short: vec![(1.0, None)],
            gain: 1.0,
            inhibition: 1.0,
        };
        all.modulators(config, positive, notes)?;
        if all.rate > high - low {
            let what =
                format!("comes to {} a spike, more than from weight_min = {low} to weight_max = {high}", all.rate);
            return Err(p.refuse("learning_rate", &what));
        }
        all.homeostatic(&p.table("homeostatic")?, dt_ms, notes)?;
        all.metaplasticity(&p.table("metaplasticity")?, dt_ms, notes)?;
        all.short_term(&p.table("short_term")?, notes)?;
        if lasting == Lasting::Stdp && all.rate > 0.0 {
            notes.push(format!(
                "plasticity stdp: A_plus is learning_rate, A_minus {STDP_RATIO} times that, both windows {STDP_TAU_MS} ms; the \
                 file has none of its own"
            ));
        }
        if !config.table("simulation")?.get("plasticity", true)? {
            // What levels make of input stays.
            let left = notes.split_off(begun).into_iter().filter(|n| n.starts_with("neuromodulation"));
            notes.extend(left.collect::<Vec<_>>());
            (all.rate, all.decay, all.homeostasis, all.threshold) = (0.0, 0.0, None, None);
            all.short = vec![(1.0, None)];
        }
        if (0..2).any(|kind| all.lasting(kind == 1).is_some()) && low < 0.0 {
            notes.push(
                "plasticity of synapses that inhibit is of the size of their weights: what grows inhibits more".into(),
            );
        }
        Ok(all)
    }

    fn modulators(
        &mut self,
        config: &Config,
        positive: impl Fn(&Section<'_>, &str, f64) -> Result<f64>,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let n = config.table("neuromodulation")?;
        let own = [
            ("dopamine", "learning_rate_modulation", 2.0),
            ("serotonin", "inhibition_strength", 0.5),
            ("norepinephrine", "gain_modulation", 2.0),
        ];
        let mut effects = [0.0; 3];
        for ((name, key, default), effect) in own.into_iter().zip(&mut effects) {
            let t = n.table(name)?;
            let level: f64 = t.get("baseline", 0.5)?;
            if !(0.0..=1.0).contains(&level) {
                return Err(
                    t.refuse("baseline", &format!("must be from 0 to 1, but it is {level}", level = short(level)))
                );
            }
            positive(&t, "decay_rate", 0.1)?;
            *effect = level * positive(&t, key, default)?;
        }
        if n.get("enabled", false)? {
            let [dopamine, serotonin, norepinephrine] = effects;
            self.rate *= dopamine;
            (self.gain, self.inhibition) = (1.0 + norepinephrine, 1.0 + serotonin);
            notes.push(format!(
                "neuromodulation: levels stay at their baselines, since nothing in the file releases any: learning is at \
                 {dopamine} times its rate, what synapses bring at {} times, what inhibits at {} times besides",
                self.gain, self.inhibition
            ));
        }
        Ok(())
    }

    fn homeostatic(&mut self, t: &Section<'_>, dt_ms: f64, notes: &mut Vec<String>) -> Result<()> {
        let h = Homeostasis {
            target_hz: t.get("target_rate", 5.0)?,
            window_ms: t.get("time_window", 1000.0)?,
            rate: t.get("scaling_rate", 0.01)?,
            bounds: Some((0.0, 1.0)),
        };
        if let Some((field, problem)) = Plasticity::homeostasis(h).problem(dt_ms) {
            return Err(t.refuse(if field == "window" { "time_window" } else { field }, &problem));
        }
        if t.get("enabled", false)? {
            self.homeostasis = Some(Homeostasis { bounds: None, ..h });
            notes.push(
                "homeostatic scaling: weights go by 1 + scaling_rate (1 - rate / target_rate) at the end of each time_window, \
                 by spikes; the original's took target_rate over a rate that it read from the potential"
                    .into(),
            );
        }
        Ok(())
    }

    fn metaplasticity(&mut self, t: &Section<'_>, dt_ms: f64, notes: &mut Vec<String>) -> Result<()> {
        let (tau, target) = (t.get("bcm_tau", 1000.0)?, t.get("bcm_target_rate", 5.0)?);
        let b = Self { threshold: Some((target, tau)), ..self.clone() }.bcm((0.0, 1.0));
        if let Some((field, problem)) = b.and_then(|b| Plasticity::bcm(Bcm { a: 0.0, ..b }).problem(dt_ms)) {
            return Err(t.refuse(if field == "target_rate" { "bcm_target_rate" } else { "bcm_tau" }, &problem));
        }
        let enabled = t.get("enabled", false)?;
        if enabled && self.rule == Lasting::Stdp {
            return Err(t.refuse(
                "enabled",
                "is true, but a threshold slides under the rules hebb_like and bcm, not under stdp",
            ));
        }
        if self.rule == Lasting::Bcm || enabled {
            self.threshold = Some((target, tau));
            if self.rule != Lasting::Bcm && self.rate > 0.0 {
                notes.push(
                    "metaplasticity: the rule of Bienenstock, Cooper and Munro acts beside the rule, at the same learning_rate, \
                     with the threshold of bcm_tau and bcm_target_rate"
                        .into(),
                );
            }
        }
        Ok(())
    }

    fn short_term(&mut self, t: &Section<'_>, notes: &mut Vec<String>) -> Result<()> {
        let kind = t.choice("default_type", &["mixed", "facilitating", "depressing", "none"], "mixed")?;
        let share: f64 = t.get("facilitation_fraction", 0.3)?;
        if !(0.0..=1.0).contains(&share) {
            return Err(t.refuse(
                "facilitation_fraction",
                &format!("must be from 0 to 1, but it is {share}", share = short(share)),
            ));
        }
        if !t.get("enabled", false)? || kind == "none" {
            return Ok(());
        }
        let share = match kind {
            "facilitating" => 1.0,
            "depressing" => 0.0,
            _ => share,
        };
        self.short = [(share, Some(FACILITATING)), (1.0 - share, Some(DEPRESSING))].into();
        self.short.retain(|(share, _)| *share > 0.0);
        if self.short.len() > 1 {
            notes.push(
                "short-term plasticity mixed: which synapses facilitate is drawn with them, and a pair of cells that is drawn \
                 twice has one of each"
                    .into(),
            );
        }
        Ok(())
    }

    /// The least and the greatest size of a weight that excites or inhibits.
    fn bounds(&self, inhibits: bool) -> (f64, f64) {
        if inhibits { ((-self.high).max(0.0), (-self.low).max(0.0)) } else { (self.low.max(0.0), self.high.max(0.0)) }
    }

    fn bcm(&self, (w_min, w_max): (f64, f64)) -> Option<Bcm> {
        let (target_hz, tau_threshold_ms) = self.threshold?;
        let (tau_ms, placement) = (BCM_TAU_MS, Placement::Dendritic);
        Some(Bcm { a: self.rate / (w_max - w_min), target_hz, tau_ms, tau_threshold_ms, w_min, w_max, placement })
    }

    /// What lasts.
    fn lasting(&self, inhibits: bool) -> Option<Plasticity> {
        let (w_min, w_max) = self.bounds(inhibits);
        let range = w_max - w_min;
        let learns = self.rate > 0.0 && (self.rule != Lasting::None || self.threshold.is_some());
        if range <= 0.0 || !(learns || self.decay > 0.0 || self.homeostasis.is_some()) {
            return None;
        }
        // Steps of learning_rate, as shares of the range; one that is longer than the range ends at its end.
        let share = (self.rate / range).min(1.0);
        let same_step = |a: f64| Coincidence { a, a_pre: a / 2.0, bounds: Some((w_min, w_max)) };
        let mut all = Plasticity { homeostasis: self.homeostasis, decay_per_ms: self.decay, ..Plasticity::default() };
        if learns {
            all.bcm = self.bcm((w_min, w_max)).map(|b| Bcm { a: share, ..b });
            all.coincidence = (self.rule == Lasting::HebbLike).then(|| same_step(share));
            all.stdp = (self.rule == Lasting::Stdp).then(|| Stdp {
                a_plus: share,
                a_minus: (STDP_RATIO * share).min(1.0),
                tau_plus_ms: STDP_TAU_MS,
                tau_minus_ms: STDP_TAU_MS,
                w_min,
                w_max,
                dependence: Dependence::Additive,
                pairs: Pairs::All,
                placement: Placement::Dendritic,
            });
        }
        if all.bounds().is_none() {
            // Decay and scaling alone need bounds.
            all.coincidence = Some(same_step(0.0));
        }
        Some(all)
    }

    /// What a weight of 1 is beside what the cell makes of it.
    pub fn gain(&self, inhibits: bool) -> f64 {
        self.gain * if inhibits { self.inhibition } else { 1.0 }
    }

    /// What shares of the synapses do, whose weights of 1 are `unit` in the engine.
    pub fn kinds(&self, inhibits: bool, unit: f64) -> Vec<(f64, Option<Plasticity>)> {
        let lasting = self.lasting(inhibits);
        let both = |short: &Option<ShortTerm>| match (lasting, short) {
            (None, None) => None,
            (lasting, short) => Some(Plasticity { short_term: *short, ..lasting.unwrap_or_default() }.scaled(unit)),
        };
        self.short.iter().map(|(share, short)| (*share, both(short))).collect()
    }

    /// Weights as the original draws them, of one sign and within bounds; `unit` as of [`kinds`](Self::kinds).
    pub fn weights(&self, inhibits: bool, mean: f64, sd: f64, unit: f64) -> Distribution {
        let sign = if inhibits { -1.0 } else { 1.0 };
        let ends = self.bounds(inhibits);
        let (low, high) = if inhibits { (-ends.1, -ends.0) } else { ends };
        Distribution::normal(sign * mean, sd).within(low, high, Outside::Redraw).scaled(unit)
    }
}

/// What shares of the synapses do, as a projection has it, those that excite and those that inhibit: what a weight of 1 is, and
/// of each share its size and a mapping, with weights in the original's unit times that.
pub type Described = [(f64, Vec<(f64, Option<String>)>); 2];

/// What the configuration of the original says of synapses, at steps of `dt_ms`.
///
/// # Errors
/// `Config` with the line and the field.
pub fn described(config: &Config, dt_ms: f64) -> Result<Described> {
    let learned = Learned::read(config, dt_ms, &mut Vec::new())?;
    Ok([false, true].map(|inhibits| {
        let gain = learned.gain(inhibits);
        let kinds = learned.kinds(inhibits, gain).into_iter();
        (gain, kinds.map(|(share, what)| (share, what.as_ref().map(written))).collect())
    }))
}
