//! The law: plain loops over one row after the other.

use super::spec::LinearScan;
use crate::real::Real;

/// The time of the `s`-th step of the recurrence.
fn time(p: &LinearScan, s: usize) -> usize {
    if p.is_reverse() { p.steps() - 1 - s } else { s }
}

/// The states h `[B, D, T]` and the last one `[B, D]`, from a and x `[B, D, T]` and h0 `[B, D]` (zero if absent).
pub fn forward<R: Real>(p: &LinearScan, a: &[R], x: &[R], h0: Option<&[R]>) -> (Vec<R>, Vec<R>) {
    let (rows, steps) = (p.rows(), p.steps());
    let (mut h, mut h_last) = (vec![R::zero(); rows * steps], vec![R::zero(); rows]);
    for row in 0..rows {
        let mut state = h0.map_or(R::zero(), |h0| h0[row]);
        for s in 0..steps {
            let i = row * steps + time(p, s);
            state = a[i] * state + x[i];
            h[i] = state;
        }
        h_last[row] = state;
    }
    (h, h_last)
}

/// The gradients of a scalar with respect to the inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<R> {
    /// `[B, D, T]`
    pub a: Vec<R>,
    /// `[B, D, T]`
    pub x: Vec<R>,
    /// `[B, D]`
    pub h0: Vec<R>,
}

/// The gradients from those of h `[B, D, T]` and of the last state `[B, D]`.
///
/// lambda, the gradient of a state through everything after it, runs against time:
/// `lambda_t = grad_h_t + a_{t+1} lambda_{t+1}`, and `grad_h_last` is what `a_{T+1} lambda_{T+1}` would be.
pub fn backward<R: Real>(
    p: &LinearScan,
    a: &[R],
    h: &[R],
    h0: Option<&[R]>,
    grad_h: &[R],
    grad_h_last: &[R],
) -> Gradients<R> {
    let (rows, steps) = (p.rows(), p.steps());
    let zeros = vec![R::zero(); rows * steps];
    let mut g = Gradients { a: zeros.clone(), x: zeros, h0: vec![R::zero(); rows] };
    for row in 0..rows {
        let mut from_later = grad_h_last[row];
        for s in (0..steps).rev() {
            let i = row * steps + time(p, s);
            let before = match s {
                0 => h0.map_or(R::zero(), |h0| h0[row]),
                _ => h[row * steps + time(p, s - 1)],
            };
            let lambda = grad_h[i] + from_later;
            g.a[i] = lambda * before;
            g.x[i] = lambda;
            from_later = a[i] * lambda;
        }
        g.h0[row] = from_later;
    }
    g
}
