//! The law: plain loops over one channel after the other. Real states are complex ones without an imaginary part.

use super::super::complex::{Complex, Field};
use super::super::packing::Marks;
use super::spec::{Discretisation, SelectiveScan, Weights};
use crate::real::Real;

/// What goes in. Letters as in the README; `b` and `c` are `[D, N]` or `[B, G, N, T]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs<R> {
    /// `[B, D, T]`
    pub u: Vec<R>,
    /// `[B, D, T]`
    pub delta: Vec<R>,
    /// `[D, N]`
    pub a: Vec<Complex<R>>,
    /// As [`Weights`] says.
    pub b: Vec<Complex<R>>,
    /// As [`Weights`] says.
    pub c: Vec<Complex<R>>,
    /// `[D]`
    pub d: Option<Vec<R>>,
    /// `[B, D, T]`
    pub z: Option<Vec<R>>,
    /// `[D]`
    pub delta_bias: Option<Vec<R>>,
    /// `[S, D, N]`
    pub h0: Option<Vec<Complex<R>>>,
}

/// One step of one state: what it is multiplied with, the factor of its input, and their derivatives.
#[derive(Debug, Clone, Copy)]
pub struct Discrete<R> {
    /// The gate.
    pub a: Complex<R>,
    /// The factor of `B u`.
    pub e: Complex<R>,
    /// The gate's derivative in w = delta A.
    pub a_w: Complex<R>,
    /// The factor's derivative in delta.
    pub e_delta: Complex<R>,
    /// The factor's derivative in A.
    pub e_a: Complex<R>,
}

/// The step of a state of rate `a` over a time `delta`.
pub fn discretise<R: Real>(rule: Discretisation, a: Complex<R>, delta: R) -> Discrete<R> {
    let w = a.scale(delta);
    match rule {
        Discretisation::Exp => {
            let gate = w.exp();
            let e_delta = Complex::one();
            Discrete { a: gate, e: Complex::real(delta), a_w: gate, e_delta, e_a: Complex::zero() }
        }
        Discretisation::Zoh => {
            let gate = w.exp();
            let (e, e_a) = (w.phi1().scale(delta), w.phi1_slope().scale(delta * delta));
            Discrete { a: gate, e, a_w: gate, e_delta: gate, e_a }
        }
        Discretisation::Bilinear => {
            let half = w.scale(R::from_f64(0.5));
            let inverse = (Complex::one() - half).recip();
            let square = inverse * inverse;
            let e_a = square.scale(R::from_f64(0.5) * delta * delta);
            Discrete {
                a: (Complex::one() + half) * inverse,
                e: inverse.scale(delta),
                a_w: square,
                e_delta: square,
                e_a,
            }
        }
    }
}

fn silu<R: Real>(x: R) -> R {
    x * x.sigmoid()
}
fn silu_slope<R: Real>(x: R) -> R {
    let s = x.sigmoid();
    s * (R::one() + x * (R::one() - s))
}

impl SelectiveScan {
    /// The index of a weight of channel d and state n at a time.
    fn weight_index(&self, w: Weights, b: usize, d: usize, n: usize, t: usize) -> usize {
        match w {
            Weights::Constant => d * self.states() + n,
            Weights::Varying(groups) => {
                let g = d / (self.channels() / groups);
                ((b * groups + g) * self.states() + n) * self.steps() + t
            }
        }
    }
    fn step_size<R: Real>(&self, i: &Inputs<R>, d: usize, at: usize) -> R {
        let raw = i.delta_bias.as_ref().map_or(i.delta[at], |bias| i.delta[at] + bias[d]);
        if self.has_softplus() { raw.softplus() } else { raw }
    }
}

/// The outputs `[B, D, T]` and the last states `[S, D, N]`; `visit` is shown every state h_t as (b, d, t, n, h).
fn run<R: Real>(
    p: &SelectiveScan,
    marks: &Marks<'_>,
    i: &Inputs<R>,
    mut visit: impl FnMut(usize, usize, usize, usize, Complex<R>),
) -> (Vec<R>, Vec<Complex<R>>) {
    let (channels, steps, states) = (p.channels(), p.steps(), p.states());
    let mut y = vec![R::zero(); p.batch() * channels * steps];
    let mut last = vec![Complex::zero(); marks.units() * channels * states];
    let kappa = R::from_f64(p.kappa());
    for unit in (0..marks.units()).map(|k| marks.unit(k)) {
        for d in 0..channels {
            let own = (unit.state * channels + d) * states;
            for n in 0..states {
                let mut h = i.h0.as_ref().map_or(Complex::zero(), |h0| h0[own + n]);
                for t in unit.begin..unit.end {
                    let at = (unit.row * channels + d) * steps + t;
                    let step = discretise(p.discretisation(), i.a[d * states + n], p.step_size(i, d, at));
                    let x = (step.e * i.b[p.weight_index(p.b(), unit.row, d, n, t)]).scale(i.u[at]);
                    h = if marks.fresh(unit.row, t) { x } else { step.a * h + x };
                    visit(unit.row, d, t, n, h);
                    y[at] = y[at] + kappa * (i.c[p.weight_index(p.c(), unit.row, d, n, t)] * h).re;
                }
                last[own + n] = h;
            }
        }
    }
    if let Some(skip) = &i.d {
        y.iter_mut().enumerate().for_each(|(at, y)| *y = *y + skip[at / steps % channels] * i.u[at]);
    }
    (y, last)
}

/// The outputs `[B, D, T]` and the last states `[S, D, N]`.
pub fn forward<R: Real>(p: &SelectiveScan, marks: &Marks<'_>, i: &Inputs<R>) -> (Vec<R>, Vec<Complex<R>>) {
    let (mut y, last) = run(p, marks, i, |_, _, _, _, _| {});
    if let Some(z) = &i.z {
        y.iter_mut().zip(z).for_each(|(y, z)| *y = *y * silu(*z));
    }
    (y, last)
}

/// The gradients of all that goes in, from those of the outputs `[B, D, T]` and the last states `[S, D, N]`.
///
/// lambda_t, the gradient of h_t through everything after it, is
/// `kappa conj(C_t) dy_t + conj(a_{t+1}) lambda_{t+1}`, and everything else is a product with it.
pub fn backward<R: Real>(
    p: &SelectiveScan,
    marks: &Marks<'_>,
    i: &Inputs<R>,
    grad_out: &[R],
    grad_last: &[Complex<R>],
) -> Inputs<R> {
    let (channels, steps, states) = (p.channels(), p.steps(), p.states());
    let mut h = vec![Complex::zero(); p.batch() * channels * steps * states];
    let (y, _) = run(p, marks, i, |b, d, t, n, state| h[((b * channels + d) * steps + t) * states + n] = state);
    let real = |n: usize| vec![R::zero(); n];
    let mut g = Inputs {
        u: real(i.u.len()),
        delta: real(i.delta.len()),
        a: vec![Complex::zero(); i.a.len()],
        b: vec![Complex::zero(); i.b.len()],
        c: vec![Complex::zero(); i.c.len()],
        d: i.d.as_ref().map(|v| real(v.len())),
        z: i.z.as_ref().map(|v| real(v.len())),
        delta_bias: i.delta_bias.as_ref().map(|v| real(v.len())),
        h0: i.h0.as_ref().map(|v| vec![Complex::zero(); v.len()]),
    };
    let mut dy = grad_out.to_vec();
    if let (Some(z), Some(grad_z)) = (&i.z, &mut g.z) {
        for (((grad_z, dy), &y), &z) in grad_z.iter_mut().zip(&mut dy).zip(&y).zip(z) {
            *grad_z = *dy * y * silu_slope(z);
            *dy = *dy * silu(z);
        }
    }
    if let (Some(skip), Some(grad_skip)) = (&i.d, &mut g.d) {
        for (at, &dy) in dy.iter().enumerate() {
            let d = at / steps % channels;
            grad_skip[d] = grad_skip[d] + dy * i.u[at];
            g.u[at] = g.u[at] + dy * skip[d];
        }
    }
    let kappa = R::from_f64(p.kappa());
    for unit in (0..marks.units()).map(|k| marks.unit(k)) {
        for d in 0..channels {
            for n in 0..states {
                let (own, a) = ((unit.state * channels + d) * states + n, i.a[d * states + n]);
                let mut from_later = grad_last[own];
                for t in (unit.begin..unit.end).rev() {
                    let at = (unit.row * channels + d) * steps + t;
                    let (to_b, to_c) =
                        (p.weight_index(p.b(), unit.row, d, n, t), p.weight_index(p.c(), unit.row, d, n, t));
                    let (delta, u, b) = (p.step_size(i, d, at), i.u[at], i.b[to_b]);
                    let step = discretise(p.discretisation(), a, delta);
                    let fresh = marks.fresh(unit.row, t);
                    let before = match t == unit.begin {
                        _ if fresh => Complex::zero(),
                        true => i.h0.as_ref().map_or(Complex::zero(), |h0| h0[own]),
                        false => h[(at - 1) * states + n],
                    };
                    let dy = kappa * dy[at];
                    let lambda = i.c[to_c].conj().scale(dy) + from_later;
                    g.c[to_c] = g.c[to_c] + h[at * states + n].conj().scale(dy);
                    let of_w = lambda * (before * step.a_w).conj();
                    let drive = b.scale(u);
                    g.delta[at] = g.delta[at] + (of_w * a.conj()).re + (lambda * (step.e_delta * drive).conj()).re;
                    g.a[d * states + n] = g.a[d * states + n] + of_w.scale(delta) + lambda * (step.e_a * drive).conj();
                    g.b[to_b] = g.b[to_b] + (lambda * step.e.conj()).scale(u);
                    g.u[at] = g.u[at] + (lambda * (step.e * b).conj()).re;
                    from_later = if fresh { Complex::zero() } else { step.a.conj() * lambda };
                }
                if let Some(h0) = &mut g.h0 {
                    h0[own] = from_later;
                }
            }
        }
    }
    for at in 0..g.delta.len() {
        let d = at / steps % channels;
        if p.has_softplus() {
            let raw = i.delta_bias.as_ref().map_or(i.delta[at], |bias| i.delta[at] + bias[d]);
            g.delta[at] = g.delta[at] * raw.sigmoid();
        }
        if let Some(bias) = &mut g.delta_bias {
            bias[d] = bias[d] + g.delta[at];
        }
    }
    g
}
