//! The rules beyond pairs of spikes, in whole numbers: see [`super::fixed`], and README.md for the equations.

use super::fixed::{Learning, ONE, Pair, Rule, decayed, table};
use super::{Bcm, Coincidence, Homeostasis, Modulation};

/// The threshold of the rule of Bienenstock, Cooper and Munro, and the rate that it is held against.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    /// Index of the trace of squares.
    pub z: usize,
    /// A trace of 1 as a rate over the target, times 2^16.
    pub rate: u64,
    /// A trace of squares of 1 as a threshold, times 2^24.
    pub square: u64,
}

impl Threshold {
    /// Bits behind the point of the trace of squares, which stays at its end beyond 2^16.
    pub const BITS: u32 = 16;

    pub(super) fn new(b: &Bcm, z: usize) -> Self {
        let per_ms = b.target_hz * 1e-3;
        let one = 1.0 / (b.tau_ms * per_ms);
        let square = one / (b.tau_threshold_ms * per_ms);
        let whole = |x: f64| x.round().min(f64::from(1 << 30)) as u64;
        Self { z, rate: whole(one * 65_536.0), square: whole(square * 16_777_216.0) }
    }

    /// `a r (r - theta)` from the traces y, of `2^bits`, and z, as a share of [`ONE`].
    pub(super) fn share(&self, amplitude: u32, y: u32, bits: u32, z: u32) -> i64 {
        // Both of 2^16; a rate of 256 times the target and a threshold of 4096 are the ends.
        let r = ((u64::from(y) * self.rate + (1 << (bits - 1))) >> bits).min((1 << 24) - 1) as i64;
        let theta = ((u64::from(z) * self.square + (1 << (Self::BITS + 7))) >> (Self::BITS + 8)).min(1 << 28) as i64;
        let product = ((r * (r - theta)) >> 8).clamp(-(1 << 31), 1 << 31);
        let share = (i64::from(amplitude) * product + (1 << 23)) >> 24;
        share.clamp(-i64::from(ONE), i64::from(ONE))
    }
}

/// What a spike before a synapse does by whether the cell after it fires in the same step, as shares of [`ONE`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Together {
    /// Growth where it does.
    pub plus: u32,
    /// Loss where it does not.
    pub minus: u32,
}

impl Together {
    pub(super) fn new(c: &Coincidence) -> Self {
        let share = |x: f64| (x * f64::from(ONE)).round() as u32;
        Self { plus: share(c.a), minus: share(c.a_pre) }
    }
}

/// Scaling of all weights into a cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    /// Steps of a window.
    pub window: u32,
    /// The factor of a silent window, times 2^30.
    pub silent: u32,
    /// What a spike takes from it, times 2^46.
    pub spike: u64,
}

impl Scaling {
    /// A factor of 1.
    pub const NONE: u32 = 1 << 30;

    pub(super) fn new(h: &Homeostasis, dt_ms: f64) -> Self {
        let window = (h.window_ms / dt_ms).round();
        let expected = h.target_hz * window * dt_ms * 1e-3;
        let scale = f64::from(Self::NONE);
        Self {
            window: window as u32,
            silent: ((1.0 + h.rate) * scale).round() as u32,
            spike: (h.rate / expected * scale * 65_536.0).round() as u64,
        }
    }

    /// The factor of a window with so many spikes.
    pub fn factor(&self, spikes: u32) -> u32 {
        let less = (u128::from(spikes) * u128::from(self.spike)) >> 16;
        self.silent.saturating_sub(less.min(u128::from(u32::MAX)) as u32)
    }
}

/// What a population's spikes do to eligible synapses.
#[derive(Debug, Clone, PartialEq)]
pub struct Modulator {
    /// Index of the population.
    pub population: usize,
    /// Steps from its spikes to the synapses.
    pub delay: u32,
    /// Over which its level decays, ms.
    pub tau_ms: f64,
    /// `2^32 e^(-steps / tau)` of the modulator, of the eligibility, and of their product.
    pub(in crate::spiking) decays: [Vec<u32>; 3],
    /// Bits behind the point of the modulator, in units of one spike.
    pub bits: u32,
    /// What a level of 1 and an eligibility of 1 come to until both have gone, as a share of 2^31.
    pub(in crate::spiking) gain: u32,
    /// What the baseline takes from an eligibility of 1 until it has gone, in units of the level.
    pub(in crate::spiking) baseline: u64,
}

/// An eligibility of the whole range.
const ELIGIBLE: u32 = 24;
/// The end of an eligibility: 32 ranges.
const MOST: i64 = (1 << 29) - 1;

impl Modulator {
    pub(super) fn new(m: &Modulation, dt_ms: f64) -> Self {
        let both = m.tau_c_ms * m.tau_n_ms / (m.tau_c_ms + m.tau_n_ms);
        let bits = 20;
        Self {
            population: m.population,
            delay: (m.delay_ms / dt_ms).round() as u32,
            tau_ms: m.tau_n_ms,
            decays: [m.tau_n_ms, m.tau_c_ms, both].map(|tau| table(tau / dt_ms)),
            bits,
            gain: (both / m.tau_n_ms * f64::from(ONE)).round() as u32,
            baseline: (m.baseline_hz * 1e-3 * m.tau_c_ms * f64::from(1 << bits)).round() as u64,
        }
    }

    /// The level after `spikes` more, from that before.
    pub fn after(&self, before: u32, spikes: u32) -> u32 {
        (u64::from(before) + (u64::from(spikes) << self.bits)).min(u64::from(u32::MAX)) as u32
    }
    /// The level so many steps later, at least 1.
    pub fn later(&self, after: u32, steps: u32) -> u32 {
        decayed(&self.decays[0], after, steps)
    }

    /// Strength and eligibility so many steps later, at least 1, from a level at their beginning.
    pub(super) fn move_on(&self, rule: &Rule, (strength, eligible): (u32, i32), level: u32, steps: u32) -> (u32, i32) {
        if eligible == 0 {
            return (strength, 0);
        }
        let gone = |k: usize| (1u64 << 32) - self.decays[k].get(steps as usize).map_or(0, |x| u64::from(*x));
        let up = (((u64::from(level) * u64::from(self.gain)) >> 31) * gone(2)) >> 32;
        let down = (self.baseline * gone(1)) >> 32;
        let net = (up as i64 - down as i64).clamp(-(1 << 33), 1 << 33);
        let share = (i64::from(eligible) * net + (1 << (self.bits - 1))) >> self.bits;
        let share = share.clamp(-(2 << ELIGIBLE), 2 << ELIGIBLE);
        let range = i64::from(rule.high - rule.low);
        let step = (share * range + (1 << (ELIGIBLE - 1))) >> ELIGIBLE;
        let moved = (i64::from(strength) + step).clamp(rule.low.into(), rule.high.into());
        let kept = self.decays[1].get(steps as usize).map_or(0, |x| i64::from(*x));
        (moved as u32, ((i64::from(eligible) * kept + (1 << 31)) >> 32) as i32)
    }
}

/// Whether an eligibility can be this.
pub(in crate::spiking) fn is_eligibility(x: i32) -> bool {
    i64::from(x).abs() <= MOST
}

/// What changes of a synapse: its strength and its eligibility.
pub type Changed = (u32, i32);

impl Rule {
    /// Whether more than the timing of pairs changes its synapses.
    pub fn is_wide(&self) -> bool {
        let others = self.scaling.is_some() || self.together.is_some() || self.decay > 0;
        others || self.stdp.as_ref().is_some_and(|p| p.kind != super::fixed::Kind::Timing)
    }

    /// The cell before the synapse has fired in a step, and the cell after it too or not.
    pub fn coincided(&self, strength: u32, what: Together, both: bool) -> u32 {
        let share = if both { what.plus } else { what.minus };
        let step = ((u64::from(share) * u64::from(self.high - self.low) + (1 << 30)) >> 31) as u32;
        if both { (strength + step).min(self.high) } else { strength - step.min(strength - self.low) }
    }

    /// `Rule::decay` of so many units a step.
    pub(super) fn decay_of(units: f64) -> u64 {
        // 2^16 of a strength, 2^32 behind the point; what takes all in a step is the end.
        (units * 281_474_976_710_656.0).round().min(9.2e18) as u64
    }

    /// The strength once the decay of the steps after `from`, up to `to`, has been taken: the same in one go and in several, since
    /// what is gone by a step follows from its number.
    pub fn weakened(&self, strength: u32, from: i64, to: i64) -> u32 {
        if self.decay == 0 || to <= from {
            return strength;
        }
        let gone = |step: i64| ((u128::from(self.decay) * step as u128) >> 32) as u64;
        strength - (gone(to) - gone(from)).min((strength - self.low).into()) as u32
    }

    /// A window of the cell after the synapse has ended, with this factor.
    pub fn scale(&self, strength: u32, factor: u32) -> u32 {
        let scaled = (u64::from(strength) * u64::from(factor) + (1 << 29)) >> 30;
        scaled.clamp(self.low.into(), self.high.into()) as u32
    }

    /// A spike of the cell after the synapse is there, where the other's trace is `x` of `2^bits`.
    pub fn after_post(&self, pair: &Pair, (strength, eligible): Changed, x: u32, bits: u32) -> Changed {
        use super::fixed::Kind;
        match pair.kind {
            Kind::Timing => (self.grown(pair, strength, x, bits), eligible),
            Kind::Hebb { post, .. } => (self.less(pair, self.grown(pair, strength, x, bits), post), eligible),
            Kind::Bcm(_) => (strength, eligible),
            Kind::Modulated(_) => (strength, add(eligible, Pair::part(pair.plus, x, bits) as i64)),
        }
    }

    /// A spike of the cell before the synapse was passed on; `entry` is the other's last, so many steps ago.
    pub fn after_pre(
        &self,
        learning: &Learning,
        pair: &Pair,
        (strength, eligible): Changed,
        entry: Option<(&[u32], u32)>,
    ) -> Changed {
        use super::fixed::Kind;
        let trace = |index: usize| entry.map_or(0, |(entry, steps)| learning.trace_after(index, entry, steps));
        let bits = learning.traces[pair.y].bits;
        match &pair.kind {
            Kind::Timing => (self.shrunk(pair, strength, trace(pair.y), bits), eligible),
            Kind::Hebb { pre, .. } => {
                (self.less(pair, self.grown(pair, strength, trace(pair.y), bits), *pre), eligible)
            }
            Kind::Bcm(threshold) => {
                let share = threshold.share(pair.plus, trace(pair.y), bits, trace(threshold.z));
                let step = (share * i64::from(self.high - self.low) + (1 << 30)) >> 31;
                let moved = (i64::from(strength) + step).clamp(self.low.into(), self.high.into());
                (moved as u32, eligible)
            }
            Kind::Modulated(_) => (strength, add(eligible, -(Pair::part(pair.minus, trace(pair.y), bits) as i64))),
        }
    }
}

/// An eligibility and a share of [`ONE`].
fn add(eligible: i32, share: i64) -> i32 {
    const LESS: u32 = 31 - ELIGIBLE;
    (i64::from(eligible) + ((share + (1 << (LESS - 1))) >> LESS)).clamp(-MOST, MOST) as i32
}

impl Learning {
    /// Strength and eligibility of a synapse from one event to the next: `level` of the modulator at the first of them.
    pub fn move_on(&self, rule: &Rule, changed: Changed, level: u32, steps: u32) -> Changed {
        use super::fixed::Kind;
        match &rule.stdp {
            Some(Pair { kind: Kind::Modulated(m), .. }) if steps > 0 => {
                self.modulators[*m].move_on(rule, changed, level, steps)
            }
            _ => changed,
        }
    }
}
