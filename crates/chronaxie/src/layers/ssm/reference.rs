//! The law: plain loops over one row after the other.

use super::complex::Field;
use super::packing::{Marks, Unit};
use super::spec::LinearScan;

/// The time of the `s`-th step of the recurrence over a unit.
fn time(p: &LinearScan, unit: &Unit, s: usize) -> usize {
    if p.is_reverse() { unit.end - 1 - s } else { unit.begin + s }
}

/// The states h `[B, D, T]` and the last ones `[S, D]`, from a and x `[B, D, T]` and h0 `[S, D]` (zero if absent).
pub fn forward<F: Field>(p: &LinearScan, marks: &Marks<'_>, a: &[F], x: &[F], h0: Option<&[F]>) -> (Vec<F>, Vec<F>) {
    let (channels, steps) = (p.channels(), p.steps());
    let mut h = vec![F::zero(); p.rows() * steps];
    let mut h_last = vec![F::zero(); marks.units() * channels];
    for unit in (0..marks.units()).map(|i| marks.unit(i)) {
        for d in 0..channels {
            let (row, own) = ((unit.row * channels + d) * steps, unit.state * channels + d);
            let mut state = h0.map_or(F::zero(), |h0| h0[own]);
            for s in 0..unit.end - unit.begin {
                let t = time(p, &unit, s);
                state = match marks.fresh(unit.row, t) {
                    true => x[row + t],
                    false => a[row + t] * state + x[row + t],
                };
                h[row + t] = state;
            }
            h_last[own] = state;
        }
    }
    (h, h_last)
}

/// The gradients of a scalar with respect to the inputs; of a complex input v, `dL/dRe v + i dL/dIm v`.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<F> {
    /// `[B, D, T]`
    pub a: Vec<F>,
    /// `[B, D, T]`
    pub x: Vec<F>,
    /// `[S, D]`
    pub h0: Vec<F>,
}

/// The gradients from those of h `[B, D, T]` and of the last states `[S, D]`.
///
/// lambda, the gradient of a state through everything after it, runs against time:
/// `lambda_t = grad_h_t + conj(a_{t+1}) lambda_{t+1}`, and `grad_h_last` is what `conj(a_{T+1}) lambda_{T+1}` would be. A
/// step that forgets has no gradient of its gate, and hands none to the steps before.
pub fn backward<F: Field>(
    p: &LinearScan,
    marks: &Marks<'_>,
    a: &[F],
    h: &[F],
    h0: Option<&[F]>,
    grad_h: &[F],
    grad_h_last: &[F],
) -> Gradients<F> {
    let (channels, steps) = (p.channels(), p.steps());
    let zeros = vec![F::zero(); p.rows() * steps];
    let mut g = Gradients { a: zeros.clone(), x: zeros, h0: vec![F::zero(); grad_h_last.len()] };
    for unit in (0..marks.units()).map(|i| marks.unit(i)) {
        for d in 0..channels {
            let (row, own) = ((unit.row * channels + d) * steps, unit.state * channels + d);
            let mut from_later = grad_h_last[own];
            for s in (0..unit.end - unit.begin).rev() {
                let i = row + time(p, &unit, s);
                let before = match s {
                    0 => h0.map_or(F::zero(), |h0| h0[own]),
                    _ => h[row + time(p, &unit, s - 1)],
                };
                let lambda = grad_h[i] + from_later;
                g.x[i] = lambda;
                if marks.fresh(unit.row, i - row) {
                    from_later = F::zero();
                } else {
                    g.a[i] = lambda * before.conj();
                    from_later = a[i].conj() * lambda;
                }
            }
            g.h0[own] = from_later;
        }
    }
    g
}
