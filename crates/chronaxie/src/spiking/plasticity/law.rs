//! Plasticity in f64, with the library's functions.

use super::{Bcm, Coincidence, Dependence, Hebb, Homeostasis, Modulation, Pairs, ShortTerm, Stdp};

/// The trace just after a spike, from that just before it.
pub fn after(pairs: Pairs, before: f64) -> f64 {
    if pairs == Pairs::Nearest { 1.0 } else { before + 1.0 }
}

/// A trace so many ms later.
pub fn later(tau_ms: f64, after: f64, ms: f64) -> f64 {
    after * (-ms / tau_ms).exp()
}

/// The weight's size after a spike of the cell after the synapse, where the other's trace is `x`.
pub fn grown(s: &Stdp, w: f64, x: f64) -> f64 {
    let room = match s.dependence {
        Dependence::Multiplicative => s.w_max - w,
        Dependence::Additive | Dependence::Mixed => s.w_max - s.w_min,
    };
    (w + s.a_plus * x * room).min(s.w_max)
}

/// The weight's size after a spike of the cell before the synapse, where the other's trace is `y`.
pub fn shrunk(s: &Stdp, w: f64, y: f64) -> f64 {
    let room = match s.dependence {
        Dependence::Additive => s.w_max - s.w_min,
        Dependence::Multiplicative | Dependence::Mixed => w - s.w_min,
    };
    (w - s.a_minus * y * room).max(s.w_min)
}

/// u and x at a spike, from those at the spike so many ms before.
pub fn short_term(s: &ShortTerm, [u, x]: [f64; 2], ms: f64) -> [f64; 2] {
    let fac = if s.tau_fac_ms > 0.0 { (-ms / s.tau_fac_ms).exp() } else { 0.0 };
    [s.u + (1.0 - s.u) * u * fac, 1.0 - (1.0 - x * (1.0 - u)) * (-ms / s.tau_rec_ms).exp()]
}

/// By Hebb's rule, the weight's size after a spike on one side, where the other's trace is `trace`; `cost` is what the spike
/// costs.
pub fn hebb(h: &Hebb, w: f64, trace: f64, cost: f64) -> f64 {
    let range = h.w_max - h.w_min;
    let room = if h.dependence == Dependence::Multiplicative { h.w_max - w } else { range };
    let grown = (w + h.a * trace * room).min(h.w_max);
    let room = if h.dependence == Dependence::Additive { range } else { grown - h.w_min };
    (grown - cost * room).max(h.w_min)
}

/// By the rule of Bienenstock, Cooper and Munro, the weight's size after a spike before the synapse, where the traces of the
/// cell after it are y and z.
pub fn bcm(b: &Bcm, w: f64, y: f64, z: f64) -> f64 {
    let per_ms = b.target_hz * 1e-3;
    let r = y / (b.tau_ms * per_ms);
    let theta = z / (b.tau_ms * b.tau_threshold_ms * per_ms * per_ms);
    (w + b.a * r * (r - theta) * (b.w_max - b.w_min)).clamp(b.w_min, b.w_max)
}

/// The weight's size after a step in which the cell before the synapse has fired, and the cell after it too or not.
pub fn coincided(c: &Coincidence, w: f64, together: bool, (low, high): (f64, f64)) -> f64 {
    let step = if together { c.a } else { -c.a_pre };
    (w + step * (high - low)).clamp(low, high)
}

/// The weight's size so many ms later, of which each takes `per_ms`, down to `low`.
pub fn weakened(per_ms: f64, w: f64, ms: f64, low: f64) -> f64 {
    (w - per_ms * ms).max(low)
}

/// The weight's size after a window of `spikes` spikes of the cell after the synapse, within `bounds`.
pub fn scaled(h: &Homeostasis, w: f64, spikes: f64, (low, high): (f64, f64)) -> f64 {
    let rate = spikes / (h.window_ms * 1e-3);
    (w * (1.0 + h.rate * (1.0 - rate / h.target_hz)).max(0.0)).clamp(low, high)
}

/// The weight's size and the eligibility (a share of the range) so many ms later, where the modulator is `level` spikes at the
/// beginning: the integral of `c (n - baseline)`, n = level / tau_n.
pub fn modulated(m: &Modulation, s: &Stdp, [w, c]: [f64; 2], level: f64, ms: f64) -> [f64; 2] {
    let both = m.tau_c_ms * m.tau_n_ms / (m.tau_c_ms + m.tau_n_ms);
    let up = level / m.tau_n_ms * both * -(-ms / both).exp_m1();
    let down = m.baseline_hz * 1e-3 * m.tau_c_ms * -(-ms / m.tau_c_ms).exp_m1();
    let moved = w + c * (up - down) * (s.w_max - s.w_min);
    [moved.clamp(s.w_min, s.w_max), c * (-ms / m.tau_c_ms).exp()]
}
