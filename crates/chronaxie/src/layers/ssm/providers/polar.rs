//! Adaptive states with a decay of their own: `a_t = exp(-softplus(rho_t) + i theta_t)`, the polar kin of the adaptive
//! unitary state space, and `sqrt(1 - |a_t|^2)` to keep states at unit scale; a scan of states that turn runs it.

use super::lru::one_less_exp;
use crate::real::Real;
use crate::rng::Rng;

/// Where its parts come from.
pub const SOURCE: &str =
    "arXiv:2507.05238 for the angles that inputs set, arXiv:2303.06349 for the radii and their normalisation";

/// A decay and a gain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Radius<R> {
    /// The logarithm of the radius, at most 0.
    pub rho: R,
    /// `sqrt(1 - e^{2 rho})`.
    pub gain: R,
}

/// The radius of a raw number.
pub fn radius<R: Real>(raw: R) -> Radius<R> {
    let rate = raw.softplus();
    Radius { rho: -rate, gain: one_less_exp(rate + rate).sqrt() }
}

/// The gradient of the raw number from those of the radius.
pub fn radius_backward<R: Real>(raw: R, grad: Radius<R>) -> R {
    let r = radius(raw);
    let squared = (r.rho + r.rho).exp();
    (grad.gain * squared / r.gain - grad.rho) * raw.sigmoid()
}

/// Raw numbers whose radii cover the ring from `least` to `most` evenly, as LRU's do.
pub fn initialise(count: usize, least: f64, most: f64, rng: &mut Rng) -> Vec<f64> {
    let one = |_| {
        let squared = rng.uniform() * (most * most - least * least) + least * least;
        let rate = -0.5 * squared.ln();
        // The inverse of softplus.
        rate + (-(-rate).exp_m1()).ln()
    };
    (0..count).map(one).collect()
}
