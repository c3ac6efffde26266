//! S5: one scan over P complex states that all channels share. `h_t = exp(delta lambda) h_{t-1} + (exp(delta lambda) - 1) /
//! lambda (B u)_t`, `y = 2 Re(C h)`; B u and C h are dense products outside of the scan, which is one of complex numbers.

use super::hermitian::eigen;
use crate::layers::ssm::complex::{Complex, Field};
use crate::real::Real;

/// Where it was published.
pub const SOURCE: &str =
    "Smith, Warrington and Linderman, Simplified state space layers for sequence modeling, ICLR 2023, arXiv:2208.04933";

/// The parameters, each `[P]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters<R> {
    /// The rates.
    pub lambda: Vec<Complex<R>>,
    /// The logarithms of the time steps.
    pub log_delta: Vec<R>,
}

/// What a scan takes, each `[P]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Gates<R> {
    /// The gates.
    pub a: Vec<Complex<R>>,
    /// The factors of `B u`.
    pub factor: Vec<Complex<R>>,
}

/// The gates of some parameters.
pub fn gates<R: Real>(p: &Parameters<R>) -> Gates<R> {
    let one = |(lambda, log_delta): (&Complex<R>, &R)| {
        let delta = log_delta.exp();
        let w = lambda.scale(delta);
        (w.exp(), w.phi1().scale(delta))
    };
    let (a, factor) = p.lambda.iter().zip(&p.log_delta).map(one).unzip();
    Gates { a, factor }
}

/// The gradients of the parameters from those of the gates.
pub fn backward<R: Real>(p: &Parameters<R>, grad: &Gates<R>) -> Parameters<R> {
    let one = |k: usize| {
        let (lambda, delta) = (p.lambda[k], p.log_delta[k].exp());
        let w = lambda.scale(delta);
        let (of_a, of_factor) = (grad.a[k] * w.exp().conj(), grad.factor[k]);
        // d(delta phi1(delta lambda)) is exp(w) by delta and delta^2 phi1'(w) by lambda.
        let of_lambda = of_a.scale(delta) + (of_factor * w.phi1_slope().conj()).scale(delta * delta);
        let of_delta = (of_a * lambda.conj()).re + (of_factor * w.exp().conj()).re;
        (of_lambda, of_delta * delta)
    };
    let (lambda, log_delta) = (0..p.lambda.len()).map(one).unzip();
    Parameters { lambda, log_delta }
}

/// The eigenvalues of the normal part of HiPPO-LegS that have positive imaginary parts, and their unit eigenvectors:
/// `vectors[k * size + i]` is the i-th part of the k-th. `size` is even; there are half as many.
///
/// HiPPO-LegS is `A[i, j] = -sqrt((2 i + 1) (2 j + 1))` below the diagonal and `-(i + 1)` on it; with the rank-one term
/// `sqrt((i + 1/2) (j + 1/2))` added it is -1/2 on the diagonal and skew-symmetric beside it, so normal.
pub fn hippo(size: usize) -> (Vec<Complex<f64>>, Vec<Complex<f64>>) {
    let skew = |i: usize, j: usize| {
        let p = ((i as f64 + 0.5) * (j as f64 + 0.5)).sqrt();
        match i.cmp(&j) {
            std::cmp::Ordering::Greater => -p,
            std::cmp::Ordering::Equal => 0.0,
            std::cmp::Ordering::Less => p,
        }
    };
    // -i times a skew-symmetric matrix is Hermitian, and its eigenvalues are the imaginary parts.
    let matrix = (0..size * size).map(|k| Complex::new(0.0, -skew(k / size, k % size))).collect();
    let e = eigen(matrix, size);
    let half = size - size / 2;
    let lambda = e.values[half..].iter().map(|&w| Complex::new(-0.5, w)).collect();
    (lambda, e.vectors[half * size..].to_vec())
}

/// B `[size, H]` or the transposed C in the basis of the eigenvectors: `V^H B`, `[P, H]`.
pub fn in_basis<R: Real>(vectors: &[Complex<R>], size: usize, b: &[R]) -> Vec<Complex<R>> {
    let width = b.len() / size;
    let number = |k: usize, j: usize| {
        (0..size).fold(Complex::zero(), |sum, i| sum + vectors[k * size + i].conj().scale(b[i * width + j]))
    };
    (0..vectors.len() / size).flat_map(|k| (0..width).map(move |j| (k, j))).map(|(k, j)| number(k, j)).collect()
}
