//! Gated scans of real states: RG-LRU and minGRU. Their gates are elementwise functions of what a layer computes from its
//! inputs; a scan of real numbers runs them.

use super::lru::one_less_exp;
use crate::real::Real;
use crate::rng::Rng;

/// Where RG-LRU was published.
pub const RGLRU_SOURCE: &str =
    "De et al., Griffin: mixing gated linear recurrences with local attention, 2024, arXiv:2402.19427";
/// Where minGRU was published.
pub const MINGRU_SOURCE: &str = "Feng et al., Were RNNs all we needed?, 2024, arXiv:2410.01201";

/// The exponent that RG-LRU's gate is raised to where it is fully open.
pub const RGLRU_EXPONENT: f64 = 8.0;

/// A gate and what is added: `h_t = a h_{t-1} + x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step<R> {
    /// The gate.
    pub a: R,
    /// The input.
    pub x: R,
}

/// What an RG-LRU computes its step from, or the gradients of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RgLru<R> {
    /// The channel's parameter: sigmoid of it is the gate before it is raised to a power.
    pub lambda: R,
    /// The recurrence gate before its sigmoid.
    pub recurrence: R,
    /// The input gate before its sigmoid.
    pub input: R,
    /// The input.
    pub x: R,
}

/// `a = sigmoid(lambda)^(8 sigmoid(r))`, `x = sqrt(1 - a^2) sigmoid(i) x`.
pub fn rglru<R: Real>(p: RgLru<R>) -> Step<R> {
    let rate = rglru_rate(p);
    Step { a: (-rate).exp(), x: one_less_exp(rate + rate).sqrt() * p.input.sigmoid() * p.x }
}

/// `-log a`: log sigmoid(lambda) is -softplus(-lambda), which does not cancel.
fn rglru_rate<R: Real>(p: RgLru<R>) -> R {
    R::from_f64(RGLRU_EXPONENT) * p.recurrence.sigmoid() * (-p.lambda).softplus()
}

/// The gradients from those of the step.
pub fn rglru_backward<R: Real>(p: RgLru<R>, grad: Step<R>) -> RgLru<R> {
    let rate = rglru_rate(p);
    let (a, gain) = ((-rate).exp(), one_less_exp(rate + rate).sqrt());
    let (i, r) = (p.input.sigmoid(), p.recurrence.sigmoid());
    // The derivative of gain in the rate is a^2 / gain.
    let of_rate = grad.x * i * p.x * a * a / gain - grad.a * a;
    let power = R::from_f64(RGLRU_EXPONENT);
    RgLru {
        lambda: -(of_rate * power * r * (-p.lambda).sigmoid()),
        recurrence: of_rate * rate * (-p.recurrence).sigmoid(),
        input: grad.x * gain * p.x * i * (-p.input).sigmoid(),
        x: grad.x * gain * i,
    }
}

/// Parameters for which sigmoid(lambda)^8, the gate where it is fully open, is uniform in [0.9, 0.999].
pub fn rglru_initialise(channels: usize, rng: &mut Rng) -> Vec<f64> {
    let one = |_| {
        let log = rng.range(0.9, 0.999).ln() / RGLRU_EXPONENT;
        // logit(e^log) = log - ln(1 - e^log)
        log - (-log.exp_m1()).ln()
    };
    (0..channels).map(one).collect()
}

/// minGRU: `z = sigmoid(k)`, `h_t = (1 - z) h_{t-1} + z x`.
pub fn mingru<R: Real>(k: R, x: R) -> Step<R> {
    Step { a: (-k).sigmoid(), x: k.sigmoid() * x }
}

/// The gradients of k and x from those of the step.
pub fn mingru_backward<R: Real>(k: R, x: R, grad: Step<R>) -> (R, R) {
    let (z, a) = (k.sigmoid(), (-k).sigmoid());
    ((grad.x * x - grad.a) * z * a, grad.x * z)
}
