//! The law: plain loops over one state after the other.

use super::super::complex::{Complex, Field};
use super::super::packing::Marks;
use super::spec::AdaptiveScan;
use crate::real::Real;

/// What goes in, or its gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs<R> {
    /// Angles, radians, `[B, D, N, T]`.
    pub theta: Vec<R>,
    /// Logarithms of radii, at most 0, `[B, D, N, T]`.
    pub rho: Option<Vec<R>>,
    /// `[B, D, T]`
    pub u: Vec<R>,
    /// `[B, D, T]`
    pub delta: Vec<R>,
    /// `[D, N]`
    pub b: Vec<Complex<R>>,
    /// `[D, N]`
    pub c: Vec<Complex<R>>,
    /// `[D]`
    pub d: Option<Vec<R>>,
    /// `[B, D, T]`
    pub z: Option<Vec<R>>,
    /// `[S, D, N]`
    pub h0: Option<Vec<Complex<R>>>,
}

fn silu<R: Real>(x: R) -> R {
    x * x.sigmoid()
}
fn silu_slope<R: Real>(x: R) -> R {
    let s = x.sigmoid();
    s * (R::one() + x * (R::one() - s))
}

/// The outputs without their gate `[B, D, T]`, and the last states; `visit` is shown each state by its index in
/// `[B, D, N, T]`.
fn run<R: Real>(
    p: &AdaptiveScan,
    marks: &Marks<'_>,
    i: &Inputs<R>,
    mut visit: impl FnMut(usize, Complex<R>),
) -> (Vec<R>, Vec<Complex<R>>) {
    let (channels, steps, states) = (p.channels(), p.steps(), p.states());
    let mut y = vec![R::zero(); i.u.len()];
    let mut last = vec![Complex::zero(); marks.units() * channels * states];
    let v: Vec<R> = i.u.iter().map(|&u| if p.has_silu() { silu(u) } else { u }).collect();
    for unit in (0..marks.units()).map(|k| marks.unit(k)) {
        for (d, n) in (0..channels).flat_map(|d| (0..states).map(move |n| (d, n))) {
            let own = (unit.state * channels + d) * states + n;
            let mut h = i.h0.as_ref().map_or(Complex::zero(), |h0| h0[own]);
            for t in unit.begin..unit.end {
                let at = (unit.row * channels + d) * steps + t;
                let k = ((unit.row * channels + d) * states + n) * steps + t;
                let radius = i.rho.as_ref().map_or(R::one(), |rho| rho[k].exp());
                let x = i.b[d * states + n].scale(i.delta[at] * v[at]);
                h = match marks.fresh(unit.row, t) {
                    true => x,
                    false => Complex::polar(radius, i.theta[k]) * h + x,
                };
                visit(k, h);
                y[at] = y[at] + (i.c[d * states + n] * h).re;
            }
            last[own] = h;
        }
    }
    if let Some(skip) = &i.d {
        y.iter_mut().enumerate().for_each(|(at, y)| *y = *y + skip[at / steps % channels] * v[at]);
    }
    (y, last)
}

/// The outputs `[B, D, T]` and the last states `[S, D, N]`.
pub fn forward<R: Real>(p: &AdaptiveScan, marks: &Marks<'_>, i: &Inputs<R>) -> (Vec<R>, Vec<Complex<R>>) {
    let (mut y, last) = run(p, marks, i, |_, _| {});
    if let Some(z) = &i.z {
        y.iter_mut().zip(z).for_each(|(y, z)| *y = *y * silu(*z));
    }
    (y, last)
}

/// The gradients of all that goes in, from those of the outputs `[B, D, T]` and the last states `[S, D, N]`.
///
/// With `q = a_t h_{t-1}` the gradients of rho and theta are the real and the imaginary part of `lambda conj(q)`.
pub fn backward<R: Real>(
    p: &AdaptiveScan,
    marks: &Marks<'_>,
    i: &Inputs<R>,
    grad_out: &[R],
    grad_last: &[Complex<R>],
) -> Inputs<R> {
    let (channels, steps, states) = (p.channels(), p.steps(), p.states());
    let mut h = vec![Complex::zero(); i.theta.len()];
    let (y, _) = run(p, marks, i, |k, state| h[k] = state);
    let real = |n: usize| vec![R::zero(); n];
    let complex = |n: usize| vec![Complex::zero(); n];
    let mut g = Inputs {
        theta: real(i.theta.len()),
        rho: i.rho.as_ref().map(|v| real(v.len())),
        u: real(i.u.len()),
        delta: real(i.u.len()),
        b: complex(i.b.len()),
        c: complex(i.c.len()),
        d: i.d.as_ref().map(|v| real(v.len())),
        z: i.z.as_ref().map(|v| real(v.len())),
        h0: i.h0.as_ref().map(|v| complex(v.len())),
    };
    let v: Vec<R> = i.u.iter().map(|&u| if p.has_silu() { silu(u) } else { u }).collect();
    let mut dy = grad_out.to_vec();
    if let (Some(z), Some(grad_z)) = (&i.z, &mut g.z) {
        for (((grad_z, dy), &y), &z) in grad_z.iter_mut().zip(&mut dy).zip(&y).zip(z) {
            *grad_z = *dy * y * silu_slope(z);
            *dy = *dy * silu(z);
        }
    }
    // That of v, and only then of u.
    if let (Some(skip), Some(grad_skip)) = (&i.d, &mut g.d) {
        for (at, &dy) in dy.iter().enumerate() {
            let d = at / steps % channels;
            grad_skip[d] = grad_skip[d] + dy * v[at];
            g.u[at] = dy * skip[d];
        }
    }
    for unit in (0..marks.units()).map(|k| marks.unit(k)) {
        for (d, n) in (0..channels).flat_map(|d| (0..states).map(move |n| (d, n))) {
            let (own, w) = ((unit.state * channels + d) * states + n, d * states + n);
            let mut from_later = grad_last[own];
            for t in (unit.begin..unit.end).rev() {
                let at = (unit.row * channels + d) * steps + t;
                let k = ((unit.row * channels + d) * states + n) * steps + t;
                let radius = i.rho.as_ref().map_or(R::one(), |rho| rho[k].exp());
                let a = Complex::polar(radius, i.theta[k]);
                let fresh = marks.fresh(unit.row, t);
                let before = match t == unit.begin {
                    _ if fresh => Complex::zero(),
                    true => i.h0.as_ref().map_or(Complex::zero(), |h0| h0[own]),
                    false => h[k - 1],
                };
                let lambda = i.c[w].conj().scale(dy[at]) + from_later;
                let product = lambda * (a * before).conj();
                g.theta[k] = product.im;
                if let Some(rho) = &mut g.rho {
                    rho[k] = product.re;
                }
                g.c[w] = g.c[w] + h[k].conj().scale(dy[at]);
                g.b[w] = g.b[w] + lambda.scale(i.delta[at] * v[at]);
                let of_drive = (lambda * i.b[w].conj()).re;
                g.delta[at] = g.delta[at] + v[at] * of_drive;
                g.u[at] = g.u[at] + i.delta[at] * of_drive;
                from_later = if fresh { Complex::zero() } else { a.conj() * lambda };
            }
            if let Some(h0) = &mut g.h0 {
                h0[own] = from_later;
            }
        }
    }
    if p.has_silu() {
        g.u.iter_mut().zip(&i.u).for_each(|(g, &u)| *g = *g * silu_slope(u));
    }
    g
}
