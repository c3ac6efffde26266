//! The law: one parameter after the other, plain sums.

use super::spec::{Muon, NORM_EPS, QUINTIC};
use crate::real::Real;

/// What a step reads and overwrites.
#[derive(Debug, Clone, PartialEq)]
pub struct State<R> {
    /// `[N]`.
    pub parameter: Vec<R>,
    /// `[N]`, of matrices the momentum, of others the mean of gradients.
    pub first: Vec<R>,
    /// `[N]`, the mean of squared gradients of what is no matrix; empty where all are matrices.
    pub second: Vec<R>,
    /// Steps taken.
    pub step: usize,
    /// The largest learning rate there was.
    pub largest_rate: f64,
}

/// c `[m, n]` = a `[m, k]` b `[k, n]`.
fn times<R: Real>(a: &[R], b: &[R], [m, n, k]: [usize; 3]) -> Vec<R> {
    let mut c = vec![R::zero(); m * n];
    for i in 0..m {
        for l in 0..k {
            for j in 0..n {
                c[i * n + j] = c[i * n + j] + a[i * k + l] * b[l * n + j];
            }
        }
    }
    c
}

fn turned<R: Real>(a: &[R], rows: usize, columns: usize) -> Vec<R> {
    (0..rows * columns).map(|e| a[e % rows * columns + e / rows]).collect()
}

/// Roughly `U V^T` of `g = U S V^T`, `[rows, columns]`.
pub fn orthogonal<R: Real>(g: &[R], rows: usize, columns: usize, steps: usize) -> Vec<R> {
    if rows > columns {
        return turned(&orthogonal(&turned(g, rows, columns), columns, rows, steps), columns, rows);
    }
    let norm = g.iter().fold(R::zero(), |sum, &x| sum + x * x).sqrt() + R::from_f64(NORM_EPS);
    let mut x: Vec<R> = g.iter().map(|&g| g / norm).collect();
    let [a, b, c] = QUINTIC.map(R::from_f64);
    for _ in 0..steps {
        let gram = times(&x, &turned(&x, rows, columns), [rows, rows, columns]);
        let square = times(&gram, &gram, [rows, rows, rows]);
        let by: Vec<R> = gram.iter().zip(&square).map(|(&g, &s)| b * g + c * s).collect();
        let y = times(&by, &x, [rows, columns, rows]);
        x = x.iter().zip(&y).map(|(&x, &y)| a * x + y).collect();
    }
    x
}

/// One step in place from `grad [N]`, `decay [N]` and the learning rate; gives the norm of the gradient.
pub fn step<R: Real>(p: &Muon, s: &mut State<R>, grad: &[R], decay: &[R], rate: f64) -> R {
    let k = R::from_f64;
    let norm = grad.iter().fold(R::zero(), |sum, &g| sum + g * g).sqrt();
    let scale = k(p.common.scale(norm.to_f64()));
    s.step += 1;
    s.largest_rate = s.largest_rate.max(rate);
    let shrink = p.common.shrink(rate, s.largest_rate);
    for m in p.matrices() {
        let mut update = Vec::with_capacity(m.elements());
        for n in m.first..m.first + m.elements() {
            let g = grad[n] * scale + k(p.common.pull()) * decay[n] * s.parameter[n];
            s.first[n] = k(p.momentum) * s.first[n] + g;
            update.push(if p.nesterov { g + k(p.momentum) * s.first[n] } else { s.first[n] });
        }
        let x = orthogonal(&update, m.rows, m.columns, p.steps);
        for (n, x) in (m.first..).zip(x) {
            s.parameter[n] = s.parameter[n] - (k(rate * m.speed()) * x + s.parameter[n] * decay[n] * k(shrink));
        }
    }
    let rate = rate * p.adamw_rate;
    let shrink = rate * p.common.weight_decay;
    let correction = |beta: f64| k(1.0 - beta.powi(s.step as i32));
    for (first, count) in p.others() {
        for n in first..first + count {
            let g = grad[n] * scale;
            s.first[n] = k(p.beta1) * s.first[n] + k(1.0 - p.beta1) * g;
            s.second[n] = k(p.beta2) * s.second[n] + k(1.0 - p.beta2) * g * g;
            let update = s.first[n] / correction(p.beta1) / ((s.second[n] / correction(p.beta2)).sqrt() + k(p.epsilon));
            s.parameter[n] = s.parameter[n] - (k(rate) * update + s.parameter[n] * decay[n] * k(shrink));
        }
    }
    norm
}
