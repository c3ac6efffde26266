//! Plasticity in f64, with the library's functions.

use super::{Dependence, Pairs, ShortTerm, Stdp};

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
