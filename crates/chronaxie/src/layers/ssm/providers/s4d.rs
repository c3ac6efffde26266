//! S4D: diagonal rates that do not depend on the input. `A = -exp(log_rate) + i frequency`, `delta = exp(log_delta)`, the
//! input is held for a step (zero-order hold), B is 1 and C complex; a selective scan with constant weights runs it.

use crate::layers::ssm::complex::Complex;
use crate::real::Real;
use crate::rng::Rng;
use std::f64::consts::PI;

/// Where it was published.
pub const SOURCE: &str =
    "Gu et al., On the parameterization and initialization of diagonal state space models, 2022, arXiv:2206.11893";
/// Where the bilinear rule comes from.
pub const BILINEAR_SOURCE: &str = "Tustin's method; Gu et al., Efficiently modeling long sequences with structured state spaces, ICLR 2022, arXiv:2111.00396";

/// The parameters: `log_rate` and `frequency` `[D, N]`, `log_delta` `[D]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters<R> {
    /// The logarithm of -Re A.
    pub log_rate: Vec<R>,
    /// Im A.
    pub frequency: Vec<R>,
    /// The logarithm of the time step.
    pub log_delta: Vec<R>,
}

/// What a selective scan takes: A `[D, N]`, and delta `[D]`, the same at all times.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates<R> {
    /// A.
    pub a: Vec<Complex<R>>,
    /// The time step.
    pub delta: Vec<R>,
}

/// The rates of some parameters.
pub fn rates<R: Real>(p: &Parameters<R>) -> Rates<R> {
    let a = p.log_rate.iter().zip(&p.frequency).map(|(r, &f)| Complex::new(-r.exp(), f)).collect();
    Rates { a, delta: p.log_delta.iter().map(|d| d.exp()).collect() }
}

/// The gradients of the parameters from those of the rates (delta's summed over batch and time).
pub fn backward<R: Real>(p: &Parameters<R>, grad: &Rates<R>) -> Parameters<R> {
    Parameters {
        log_rate: p.log_rate.iter().zip(&grad.a).map(|(r, g)| -(r.exp() * g.re)).collect(),
        frequency: grad.a.iter().map(|g| g.im).collect(),
        log_delta: p.log_delta.iter().zip(&grad.delta).map(|(d, g)| d.exp() * *g).collect(),
    }
}

/// Which frequencies states start with. N states stand for themselves and their conjugates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frequencies {
    /// S4D-Lin: `pi n`.
    Linear,
    /// S4D-Inv: `(M / pi) (M / (2 n + 1) - 1)` with M = 2 N.
    Inverse,
}

/// Re A = -1/2, frequencies as `f` says, time steps log-uniform in [0.001, 0.1].
pub fn initialise(channels: usize, states: usize, f: Frequencies, rng: &mut Rng) -> Parameters<f64> {
    let frequency = |n: usize| {
        let (n, m) = (n as f64, 2.0 * states as f64);
        match f {
            Frequencies::Linear => PI * n,
            Frequencies::Inverse => m / PI * (m / (2.0 * n + 1.0) - 1.0),
        }
    };
    Parameters {
        log_rate: vec![0.5f64.ln(); channels * states],
        frequency: (0..channels * states).map(|i| frequency(i % states)).collect(),
        log_delta: (0..channels).map(|_| rng.range(0.001f64.ln(), 0.1f64.ln())).collect(),
    }
}
