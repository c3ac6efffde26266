//! LRU: linear recurrent units. `h_t = a h_{t-1} + g (B u)_t` with `a = exp(-exp(nu) + i exp(phi))` and
//! `g = sqrt(1 - |a|^2)`, so that states keep unit scale; a scan of complex numbers runs it.

use crate::layers::ssm::complex::Complex;
use crate::real::Real;
use crate::rng::Rng;

/// Where it was published.
pub const SOURCE: &str =
    "Orvieto et al., Resurrecting recurrent neural networks for long sequences, ICML 2023, arXiv:2303.06349";

/// The parameters, each `[N]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters<R> {
    /// The logarithm of the rate of decay.
    pub nu: Vec<R>,
    /// The logarithm of the angle.
    pub phi: Vec<R>,
}

/// What a scan takes, each `[N]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Gates<R> {
    /// The gates.
    pub a: Vec<Complex<R>>,
    /// The factors of the input.
    pub gain: Vec<R>,
}

/// `1 - e^-x` for x >= 0 without cancellation near 0: `2 e^{-x/2} sinh(x/2)` by `tanh`.
pub(in crate::layers::ssm) fn one_less_exp<R: Real>(x: R) -> R {
    // 1 - e^-x = 2 tanh(x / 2) / (1 + tanh(x / 2)).
    let t = (x * R::from_f64(0.5)).tanh();
    (t + t) / (R::one() + t)
}

/// The gates of some parameters.
pub fn gates<R: Real>(p: &Parameters<R>) -> Gates<R> {
    let pairs = p.nu.iter().zip(&p.phi).map(|(&nu, &phi)| {
        let rate = nu.exp();
        (Complex::polar((-rate).exp(), phi.exp()), one_less_exp(rate + rate).sqrt())
    });
    let (a, gain) = pairs.unzip();
    Gates { a, gain }
}

/// The gradients of the parameters from those of the gates.
pub fn backward<R: Real>(p: &Parameters<R>, grad: &Gates<R>) -> Parameters<R> {
    let g = gates(p);
    let one = |k: usize| {
        let (rate, angle, a) = (p.nu[k].exp(), p.phi[k].exp(), g.a[k]);
        let (da, dgain) = (grad.a[k], grad.gain[k]);
        // a = e^{-rate} e^{i angle}: the derivatives of log a are -1 and i.
        let radial = da.re * a.re + da.im * a.im;
        let turning = da.im * a.re - da.re * a.im;
        let of_rate = dgain * a.norm_squared() / g.gain[k] - radial;
        (rate * of_rate, angle * turning)
    };
    let (nu, phi) = (0..p.nu.len()).map(one).unzip();
    Parameters { nu, phi }
}

/// Radii such that areas of the ring from `least` to `most` are equally likely, and angles up to `angle`.
pub fn initialise(states: usize, least: f64, most: f64, angle: f64, rng: &mut Rng) -> Parameters<f64> {
    let one = |_| {
        let squared = rng.uniform() * (most * most - least * least) + least * least;
        // An angle of 0 has no logarithm.
        ((-0.5 * squared.ln()).ln(), (angle * (1.0 - rng.uniform())).ln())
    };
    let (nu, phi) = (0..states).map(one).unzip();
    Parameters { nu, phi }
}
