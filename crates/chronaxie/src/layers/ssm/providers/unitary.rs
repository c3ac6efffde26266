//! Adaptive unitary state spaces: angles `theta_t = W u_t + bias` for every channel and state, weights in polar form
//! `softplus(r) e^{i angle}` that all channels share; a scan of states that turn runs it.

use crate::layers::ssm::complex::{Complex, Field as _};
use crate::real::Real;
use crate::rng::Rng;
use std::f64::consts::PI;

/// Where it was published.
pub const SOURCE: &str =
    "Karuvally et al., Bridging expressivity and scalability with adaptive unitary SSMs, 2025, arXiv:2507.05238";

/// A weight in polar form; both parts `[N]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Polar<R> {
    /// The radius before softplus: the real part of the published parameter.
    pub radius: Vec<R>,
    /// The angle: its imaginary part.
    pub angle: Vec<R>,
}

/// The weights as complex numbers.
pub fn weights<R: Real>(p: &Polar<R>) -> Vec<Complex<R>> {
    p.radius.iter().zip(&p.angle).map(|(r, &angle)| Complex::polar(r.softplus(), angle)).collect()
}

/// The gradients of the parts from those of the weights.
pub fn weights_backward<R: Real>(p: &Polar<R>, grad: &[Complex<R>]) -> Polar<R> {
    let one = |k: usize| {
        let turned = grad[k] * Complex::polar(R::one(), p.angle[k]).conj();
        (p.radius[k].sigmoid() * turned.re, p.radius[k].softplus() * turned.im)
    };
    let (radius, angle) = (0..grad.len()).map(one).unzip();
    Polar { radius, angle }
}

/// What angles come from: W `[D, N, D]`, bias `[D, N]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Angles<R> {
    /// By channel, state, input channel.
    pub w: Vec<R>,
    /// By channel and state.
    pub bias: Vec<R>,
}

/// `theta[d, n, t] = sum_r W[d, n, r] u[r, t] + bias[d, n]` of one sequence u `[D, T]`.
pub fn angles<R: Real>(p: &Angles<R>, u: &[R], steps: usize) -> Vec<R> {
    let channels = u.len().checked_div(steps).unwrap_or(0);
    let mut theta = Vec::with_capacity(p.bias.len() * steps);
    for (row, &bias) in p.bias.iter().enumerate() {
        let w = &p.w[row * channels..][..channels];
        theta.extend((0..steps).map(|t| w.iter().enumerate().fold(bias, |sum, (r, &w)| sum + w * u[r * steps + t])));
    }
    theta
}

/// The gradients of W, bias and u from that of theta.
pub fn angles_backward<R: Real>(p: &Angles<R>, u: &[R], steps: usize, grad: &[R]) -> (Angles<R>, Vec<R>) {
    let channels = u.len().checked_div(steps).unwrap_or(0);
    let mut g = Angles { w: vec![R::zero(); p.w.len()], bias: vec![R::zero(); p.bias.len()] };
    let mut grad_u = vec![R::zero(); u.len()];
    for row in 0..p.bias.len() {
        for t in 0..steps {
            let theta = grad[row * steps + t];
            g.bias[row] = g.bias[row] + theta;
            for r in 0..channels {
                let (w, at) = (row * channels + r, r * steps + t);
                g.w[w] = g.w[w] + theta * u[at];
                grad_u[at] = grad_u[at] + theta * p.w[w];
            }
        }
    }
    (g, grad_u)
}

/// W normal with variance 1 / D, the bias uniform in [-pi, pi).
pub fn initialise_angles(channels: usize, states: usize, rng: &mut Rng) -> Angles<f64> {
    let scale = 1.0 / (channels.max(1) as f64).sqrt();
    Angles {
        w: (0..channels * states * channels).map(|_| scale * rng.normal()).collect(),
        bias: (0..channels * states).map(|_| rng.range(-PI, PI)).collect(),
    }
}

/// Both parts normal with variance 1/2, as a complex normal number has them.
pub fn initialise_weights(states: usize, rng: &mut Rng) -> Polar<f64> {
    let mut draw = || (0..states).map(|_| rng.normal() * 0.5f64.sqrt()).collect();
    Polar { radius: draw(), angle: draw() }
}
