//! Plasticity in whole numbers: what every engine computes, bit for bit.
//!
//! A *strength* is a weight's size in units of `2^-16` of the unit that its port's weights of 16 bits have, so that its upper
//! half is the weight that a static synapse would have. Traces are whole numbers of `2^-bits`; what time takes from them is
//! a product with an entry of a table of `2^32 e^(-steps / tau)`, rounded. Nothing here is a float, so there is nothing
//! that another machine could round otherwise.
//!
//! A cell's *entry* is what one of its spikes leaves behind: its step, then of each trace the value just before the spike,
//! then of each short-term rule u and x in units of `2^-31`. Both sides of a synapse read entries: a trace at any later
//! time follows from the last entry before it.

use super::rules::{Modulator, Scaling, Threshold, Together};
use super::{Dependence, Pairs, Placement, ShortTerm};
use crate::spiking::math;

/// No step.
pub const NEVER: u32 = u32::MAX;
/// One, where numbers are shares of 1.
pub const ONE: u32 = 1 << 31;

/// Everything of a plan that changes.
#[derive(Debug, Default)]
pub struct Learning {
    /// The distinct rules.
    pub rules: Vec<Rule>,
    /// The rule of each projection that has one.
    pub of: Vec<Option<u16>>,
    /// The distinct traces.
    pub traces: Vec<Trace>,
    /// The distinct kinds of short-term plasticity.
    pub shorts: Vec<Short>,
    /// The distinct kinds of scaling.
    pub scalings: Vec<Scaling>,
    /// The distinct modulators.
    pub modulators: Vec<Modulator>,
    /// Whether some delay lies behind its synapse, so that what is under way does not follow from spikes alone.
    pub early: bool,
}

/// The most rules: nine bits of a synapse in transit.
pub const MAX_RULES: usize = 512;

/// What the synapses of a projection do.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Of all its weights.
    pub sign: i32,
    /// Index of the port that it acts on.
    pub port: usize,
    /// What is passed on counts `2^shift` of the port's units.
    pub shift: u32,
    /// The least strength.
    pub low: u32,
    /// The greatest.
    pub high: u32,
    /// What spikes do to the strength; where only scaling, decay or spikes of the same step do something, nothing.
    pub stdp: Option<Pair>,
    /// Index of its scaling.
    pub scaling: Option<usize>,
    /// What spikes on both sides in the same step do.
    pub together: Option<Together>,
    /// What a step takes from the strength, times 2^32.
    pub decay: u64,
    /// Index of its short-term plasticity.
    pub short: Option<usize>,
    /// How many projections between the same two populations do the same before this one, so that their synapses can be told
    /// apart.
    pub copy: u16,
}

/// What the numbers of a [`Pair`] are for.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Spike-timing-dependent plasticity of pairs.
    Timing,
    /// Hebb's rule: `plus` at spikes on both sides, and what each spike costs.
    Hebb {
        /// Before the synapse.
        pre: u32,
        /// After it.
        post: u32,
    },
    /// The rule of Bienenstock, Cooper and Munro.
    Bcm(Threshold),
    /// Timing goes to an eligibility, which the modulator of this index turns into strength.
    Modulated(usize),
}

/// What spikes before and after a synapse do to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// What the numbers are for.
    pub kind: Kind,
    /// Growth for a trace of 1, as a share of the range.
    pub plus: u32,
    /// Loss likewise.
    pub minus: u32,
    /// Index of the trace of the cell before the synapse.
    pub x: usize,
    /// Index of the trace of the cell after it.
    pub y: usize,
    /// Whether growth goes with what is left up to `high`.
    pub soft_plus: bool,
    /// Whether loss goes with what is left down to `low`.
    pub soft_minus: bool,
    /// Whether the delay lies before the synapse.
    pub axonal: bool,
}

/// A trace of a cell's spikes.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// ms.
    pub tau_ms: f64,
    /// Whether a spike sets it to 1 instead of adding 1.
    pub nearest: bool,
    /// The trace of which a spike adds the value just before it, instead of 1.
    pub of: Option<usize>,
    /// 1 is `2^bits`.
    pub bits: u32,
    /// `2^32 e^(-steps / tau)`; 0 beyond its end. Entry 0 is never asked for.
    pub decay: Vec<u32>,
}

/// Short-term plasticity.
#[derive(Debug, Clone, PartialEq)]
pub struct Short {
    /// What it was made from.
    pub of: ShortTerm,
    /// U.
    pub u: u32,
    /// `2^32 e^(-steps / tau_rec)`.
    pub rec: Vec<u32>,
    /// `2^32 e^(-steps / tau_fac)`.
    pub fac: Vec<u32>,
}

/// `2^32 e^(-steps / tau)` until it is 0.
pub(super) fn table(tau_steps: f64) -> Vec<u32> {
    let mut table = vec![NEVER];
    if tau_steps <= 0.0 {
        return table;
    }
    loop {
        let value = (math::exp(-(table.len() as f64) / tau_steps) * 4_294_967_296.0).round();
        if value < 1.0 {
            return table;
        }
        table.push(value.min(4_294_967_295.0) as u32);
    }
}

/// `value e^(-steps / tau)`.
#[inline(always)]
pub(super) fn decayed(table: &[u32], value: u32, steps: u32) -> u32 {
    table.get(steps as usize).map_or(0, |share| ((u64::from(value) * u64::from(*share) + (1 << 31)) >> 32) as u32)
}

/// A product of two shares of [`ONE`].
#[inline(always)]
fn share(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b) + (1 << 30)) >> 31) as u32
}

impl Trace {
    fn new(tau_ms: f64, pairs: Pairs, dt_ms: f64) -> Self {
        let tau_steps = tau_ms / dt_ms;
        // The most that spikes in every step come to, and one more for rounding.
        let most = 1.0 / -(math::exp(-1.0 / tau_steps) - 1.0) + 2.0;
        let mut bits = 24;
        while most * f64::from(1u32 << bits) >= 4_294_967_295.0 {
            bits -= 1;
        }
        Self { tau_ms, nearest: pairs == Pairs::Nearest, of: None, bits, decay: table(tau_steps) }
    }
    /// The trace just after a spike, from that just before it.
    #[inline(always)]
    pub fn after(&self, before: u32) -> u32 {
        if self.nearest { 1 << self.bits } else { before.saturating_add(1 << self.bits) }
    }
    /// The trace so many steps later, at least 1.
    #[inline(always)]
    pub fn later(&self, after: u32, steps: u32) -> u32 {
        decayed(&self.decay, after, steps)
    }
}

impl Short {
    fn new(of: ShortTerm, dt_ms: f64) -> Self {
        let u = (of.u * f64::from(ONE)).round() as u32;
        Self { of, u, rec: table(of.tau_rec_ms / dt_ms), fac: table(of.tau_fac_ms / dt_ms) }
    }
    /// u and x at a spike, from those at the spike so many steps before.
    fn next(&self, [u, x]: [u32; 2], steps: u32) -> [u32; 2] {
        let left = ONE - share(x, ONE - u);
        [self.u + share(ONE - self.u, decayed(&self.fac, u, steps)), ONE - decayed(&self.rec, left, steps)]
    }
}

impl Pair {
    /// Whether a spike of the cell after the synapse does something to it.
    #[inline(always)]
    pub fn grows(&self) -> bool {
        match self.kind {
            Kind::Timing => self.plus > 0,
            Kind::Bcm(_) => false,
            Kind::Hebb { .. } | Kind::Modulated(_) => true,
        }
    }
    /// The share of the range that a trace moves a weight by.
    #[inline(always)]
    pub(super) fn part(amplitude: u32, trace: u32, bits: u32) -> u64 {
        ((u64::from(amplitude) * u64::from(trace) + (1 << (bits - 1))) >> bits).min(ONE.into())
    }
}

impl Rule {
    /// The strength after a spike of the cell after the synapse, where the other's trace is `x` of `2^bits`.
    #[inline(always)]
    pub fn grown(&self, pair: &Pair, strength: u32, x: u32, bits: u32) -> u32 {
        let room = self.high - if pair.soft_plus { strength } else { self.low };
        let step = (Pair::part(pair.plus, x, bits) * u64::from(room) + (1 << 30)) >> 31;
        (strength + step as u32).min(self.high)
    }
    /// The strength after a spike of the cell before the synapse, where the other's trace is `y` of `2^bits`.
    #[inline(always)]
    pub fn shrunk(&self, pair: &Pair, strength: u32, y: u32, bits: u32) -> u32 {
        let room = if pair.soft_minus { strength } else { self.high } - self.low;
        let step = (Pair::part(pair.minus, y, bits) * u64::from(room) + (1 << 30)) >> 31;
        strength - (step as u32).min(strength - self.low)
    }
    /// The strength less a share of what `shrunk` would take away by a trace of 1.
    #[inline(always)]
    pub(super) fn less(&self, pair: &Pair, strength: u32, share: u32) -> u32 {
        let room = if pair.soft_minus { strength } else { self.high } - self.low;
        let step = (u64::from(share) * u64::from(room) + (1 << 30)) >> 31;
        strength - (step as u32).min(strength - self.low)
    }
    /// What a spike passes on, in the unit of weights of 16 bits: the strength times what short-term plasticity leaves of it.
    #[inline(always)]
    pub fn passed(&self, strength: u32, effect: u32) -> i32 {
        ((u64::from(strength) * u64::from(effect) + (1 << 46)) >> 47) as i32 * self.sign
    }
    /// Likewise, in the unit of the port.
    #[inline(always)]
    pub fn brought(&self, strength: u32, effect: u32) -> i32 {
        self.passed(strength, effect) << self.shift
    }
    /// What one of a strength's whole units is in the unit of the port, with its sign.
    #[inline(always)]
    pub fn step(&self) -> i32 {
        self.sign << self.shift
    }
    /// The strength that a weight of so many units begins with.
    #[inline(always)]
    pub fn begin(&self, code: i32) -> u32 {
        (code.unsigned_abs() << 16).clamp(self.low, self.high)
    }
}

impl Learning {
    /// The index of this trace, which is made where there is none.
    fn trace(&mut self, tau_ms: f64, pairs: Pairs, dt_ms: f64) -> usize {
        let nearest = pairs == Pairs::Nearest;
        self.same_trace(Trace { nearest, ..Trace::new(tau_ms, pairs, dt_ms) })
    }

    fn same_trace(&mut self, trace: Trace) -> usize {
        let same = |t: &Trace| (t.tau_ms, t.nearest, t.of) == (trace.tau_ms, trace.nearest, trace.of);
        self.traces.iter().position(same).unwrap_or_else(|| {
            self.traces.push(trace);
            self.traces.len() - 1
        })
    }

    /// What spikes do to the strengths of a projection.
    fn pair(&mut self, what: &super::Plasticity, dt_ms: f64) -> Option<Pair> {
        let share = |x: f64| (x * f64::from(ONE)).round() as u32;
        let axonal = what.placement() == Placement::Axonal;
        let soft = |d: Dependence| (d == Dependence::Multiplicative, d != Dependence::Additive);
        if let Some(s) = what.stdp {
            let (soft_plus, soft_minus) = soft(s.dependence);
            let x = self.trace(s.tau_plus_ms, s.pairs, dt_ms);
            let y = self.trace(s.tau_minus_ms, s.pairs, dt_ms);
            let kind = what.modulation.map_or(Kind::Timing, |m| {
                let new = Modulator::new(&m, dt_ms);
                Kind::Modulated(self.modulators.iter().position(|m| *m == new).unwrap_or_else(|| {
                    self.modulators.push(new);
                    self.modulators.len() - 1
                }))
            });
            let (plus, minus) = (share(s.a_plus), share(s.a_minus));
            return Some(Pair { kind, plus, minus, x, y, soft_plus, soft_minus, axonal });
        }
        if let Some(h) = what.hebb {
            let (soft_plus, soft_minus) = soft(h.dependence);
            let x = self.trace(h.tau_ms, Pairs::All, dt_ms);
            let kind = Kind::Hebb { pre: share(h.a_pre), post: share(h.a_post) };
            return Some(Pair { kind, plus: share(h.a), minus: 0, x, y: x, soft_plus, soft_minus, axonal });
        }
        let none =
            Pair { kind: Kind::Timing, plus: 0, minus: 0, x: 0, y: 0, soft_plus: false, soft_minus: false, axonal };
        if let Some(b) = what.bcm {
            let y = self.trace(b.tau_ms, Pairs::All, dt_ms);
            let squares =
                Trace { of: Some(y), bits: Threshold::BITS, ..Trace::new(b.tau_threshold_ms, Pairs::All, dt_ms) };
            let threshold = Threshold::new(&b, self.same_trace(squares));
            return Some(Pair { kind: Kind::Bcm(threshold), plus: share(b.a), x: y, y, ..none });
        }
        // Others alone: there is a trace of one step that nobody looks at.
        let some = what.homeostasis.is_some() || what.coincidence.is_some();
        let x = some.then(|| self.trace(dt_ms, Pairs::Nearest, dt_ms))?;
        Some(Pair { x, y: x, ..none })
    }

    /// Adds what a projection does, whose weights have this sign and go to a port of this index, where they have this unit, `2^shift` of the
    /// port's; `None` where there are too many rules.
    pub(in crate::spiking) fn add(
        &mut self,
        what: &super::Plasticity,
        sign: i32,
        (port, unit, shift): (usize, f64, u32),
        dt_ms: f64,
    ) -> Option<u16> {
        let strength = |w: f64| (w / unit * 65_536.0).round().clamp(0.0, 2_147_483_647.0) as u32;
        let stdp = self.pair(what, dt_ms);
        let (low, high) = what.bounds().map_or((0, ONE - 1), |(low, high)| (strength(low), strength(high)));
        let scaling = what.homeostasis.map(|h| {
            let new = Scaling::new(&h, dt_ms);
            self.scalings.iter().position(|s| *s == new).unwrap_or_else(|| {
                self.scalings.push(new);
                self.scalings.len() - 1
            })
        });
        let short = what.short_term.map(|of| {
            self.shorts.iter().position(|s| s.of == of).unwrap_or_else(|| {
                self.shorts.push(Short::new(of, dt_ms));
                self.shorts.len() - 1
            })
        });
        self.early |= !stdp.as_ref().is_some_and(|p| p.axonal);
        let together = what.coincidence.map(|c| Together::new(&c));
        let decay = Rule::decay_of(what.decay_per_ms * dt_ms / unit);
        let rule = Rule { sign, port, shift, low, high, stdp, scaling, together, decay, short, copy: 0 };
        self.index(rule)
    }

    /// The index of this rule, which is made where there is none; `None` where there are too many.
    fn index(&mut self, rule: Rule) -> Option<u16> {
        let index = self.rules.iter().position(|r| *r == rule).unwrap_or_else(|| {
            self.rules.push(rule);
            self.rules.len() - 1
        });
        (index < MAX_RULES).then_some(index as u16)
    }

    /// A rule like `rule` of which `copies` others have come before.
    pub(in crate::spiking) fn copy(&mut self, rule: u16, copies: usize) -> Option<u16> {
        let like = Rule { copy: copies as u16, ..self.rules[usize::from(rule)].clone() };
        self.index(like)
    }

    /// How many numbers an entry has.
    pub fn width(&self) -> usize {
        1 + self.traces.len() + 2 * self.shorts.len()
    }

    /// A trace just after a spike, from what all traces were just before it.
    #[inline(always)]
    fn after_of(&self, trace: &Trace, before: u32, traces: &[u32]) -> u32 {
        let Some(of) = trace.of else { return trace.after(before) };
        let (value, bits) = (u64::from(traces[of]), self.traces[of].bits);
        let same = if bits > trace.bits {
            let more = bits - trace.bits;
            (value + (1 << (more - 1))) >> more
        } else {
            value << (trace.bits - bits)
        };
        (u64::from(before) + same).min(u64::from(NEVER)) as u32
    }

    /// The trace of index `index` so many steps after the spike with this entry.
    #[inline(always)]
    pub fn trace_after(&self, index: usize, entry: &[u32], steps: u32) -> u32 {
        let trace = &self.traces[index];
        trace.later(self.after_of(trace, entry[1 + index], &entry[1..]), steps)
    }

    /// The entry of a spike at `step`, after `before`, the entry of the cell's spike before.
    pub fn entry(&self, before: Option<&[u32]>, step: u32, out: &mut [u32]) {
        let (traces, shorts) = out[1..].split_at_mut(self.traces.len());
        let last = before.map(|b| (b[0], b[1..].split_at(traces.len())));
        let past = |at: u32| step - at;
        for (i, (out, trace)) in traces.iter_mut().zip(&self.traces).enumerate() {
            *out = last.map_or(0, |(at, (traces, _))| trace.later(self.after_of(trace, traces[i], traces), past(at)));
        }
        for (i, (out, short)) in shorts.chunks_exact_mut(2).zip(&self.shorts).enumerate() {
            let next = last.map(|(at, (_, shorts))| short.next([shorts[2 * i], shorts[2 * i + 1]], past(at)));
            out.copy_from_slice(&next.unwrap_or([short.u, ONE]));
        }
        out[0] = step;
    }

    /// What short-term plasticity leaves of a spike with this entry.
    pub fn effect(&self, rule: &Rule, entry: &[u32]) -> u32 {
        let at = |short: usize| 1 + self.traces.len() + 2 * short;
        rule.short.map_or(ONE, |s| share(entry[at(s)], entry[at(s) + 1]))
    }

    /// How many steps longer a spike before the synapse is on its way to it than one after the synapse.
    #[inline(always)]
    pub fn offset(pair: &Pair, delay: u16) -> i64 {
        if pair.axonal { i64::from(delay) } else { -i64::from(delay) }
    }
}
