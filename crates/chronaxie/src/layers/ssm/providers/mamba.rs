//! Mamba's parameters of a selective scan: rates `A = -exp(A_log)`, and the bias of the time step.

use crate::real::Real;
use crate::rng::Rng;

/// Where it was published.
pub const SOURCE: &str =
    "Gu and Dao, Mamba: linear-time sequence modeling with selective state spaces, 2023, arXiv:2312.00752";

/// `A = -exp(A_log)`.
pub fn rates<R: Real>(a_log: &[R]) -> Vec<R> {
    a_log.iter().map(|a| -a.exp()).collect()
}

/// The gradient of A_log from that of A: `A grad_A`.
pub fn rates_backward<R: Real>(a_log: &[R], grad: &[R]) -> Vec<R> {
    a_log.iter().zip(grad).map(|(a, g)| -(a.exp() * *g)).collect()
}

/// S4D-Real: A of state n is -(n + 1) in every channel; `[D, N]`.
pub fn initialise_rates(channels: usize, states: usize) -> Vec<f64> {
    (0..channels * states).map(|i| ((i % states + 1) as f64).ln()).collect()
}

/// A bias whose softplus is log-uniform from `least` to `most` (0.001 and 0.1 in the paper), and 1e-4 at the least.
pub fn initialise_delta_bias(channels: usize, least: f64, most: f64, rng: &mut Rng) -> Vec<f64> {
    let one = |_| {
        let delta = rng.range(least.ln(), most.ln()).exp().max(1e-4);
        // The inverse of softplus, ln(e^delta - 1).
        delta + (-(-delta).exp_m1()).ln()
    };
    (0..channels).map(one).collect()
}
