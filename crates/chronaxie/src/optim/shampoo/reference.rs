//! The law: one block after the other, plain sums.

use super::spec::{Grafting, Shampoo};
use crate::optim::blocks::{Block, packed};
use crate::optim::inverse_root::reference::inverse_root;
use crate::real::Real;

/// What a step reads and overwrites.
#[derive(Debug, Clone, PartialEq)]
pub struct State<R> {
    /// `[N]`.
    pub parameter: Vec<R>,
    /// `[N]`, the mean of gradients.
    pub first: Vec<R>,
    /// `[N]`, the mean of squared gradients; empty where the grafting has none.
    pub second: Vec<R>,
    /// `[F]`, lower triangles.
    pub factors: Vec<R>,
    /// `[R]`.
    pub roots: Vec<R>,
    /// Steps taken.
    pub step: usize,
    /// The largest learning rate there was.
    pub largest_rate: f64,
}

/// The elements of a block.
pub(in crate::optim) fn taken<R: Real>(b: &Block, from: &[R]) -> Vec<R> {
    let mut x = vec![R::zero(); b.elements()];
    b.rows(|at, there| x[at..at + b.width()].copy_from_slice(&from[there..there + b.width()]));
    x
}

/// `y_i = sum_j m_ij x_j` along an axis of a block.
pub(in crate::optim) fn along<R: Real>(b: &Block, axis: usize, m: &[R], x: &[R]) -> Vec<R> {
    let [outer, n, inner] = b.around(axis);
    let mut y = vec![R::zero(); x.len()];
    for o in 0..outer {
        for i in 0..n {
            for j in 0..n {
                for k in 0..inner {
                    let to = (o * n + i) * inner + k;
                    y[to] = y[to] + m[i * n + j] * x[(o * n + j) * inner + k];
                }
            }
        }
    }
    y
}

/// Moves the packed factor of an axis: `keep` of it and `weight` of the Gram matrix of `x` along the axis.
pub(in crate::optim) fn average<R: Real>(b: &Block, axis: usize, x: &[R], factor: &mut [R], keep: f64, weight: f64) {
    let [outer, n, inner] = b.around(axis);
    for i in 0..n {
        for j in 0..=i {
            let mut sum = R::zero();
            for o in 0..outer {
                for k in 0..inner {
                    sum = sum + x[(o * n + i) * inner + k] * x[(o * n + j) * inner + k];
                }
            }
            let f = &mut factor[packed(i) + j];
            *f = R::from_f64(keep) * *f + R::from_f64(weight) * sum;
        }
    }
}

/// The whole of a packed matrix, times `scale`.
pub(in crate::optim) fn unpacked<R: Real>(factor: &[R], n: usize, scale: R) -> Vec<R> {
    (0..n * n).map(|e| scale * factor[packed((e / n).max(e % n)) + (e / n).min(e % n)]).collect()
}

fn norm<R: Real>(x: &[R]) -> R {
    x.iter().fold(R::zero(), |sum, &x| sum + x * x).sqrt()
}

/// One step in place from `grad [N]`, `decay [N]` and the learning rate; gives the norm of the gradient.
pub fn step<R: Real>(p: &Shampoo, s: &mut State<R>, grad: &[R], decay: &[R], rate: f64) -> R {
    let k = R::from_f64;
    let whole = norm(grad);
    let scale = k(p.common.scale(whole.to_f64()));
    s.step += 1;
    s.largest_rate = s.largest_rate.max(rate);
    let g: Vec<R> = (0..p.elements).map(|n| grad[n] * scale + k(p.common.pull()) * decay[n] * s.parameter[n]).collect();
    let (keep, new) = p.second_weights();
    for n in 0..p.elements {
        s.first[n] = k(p.beta1) * s.first[n] + k(1.0 - p.beta1) * g[n];
        if p.grafting.squares() {
            s.second[n] = k(keep) * s.second[n] + k(new) * g[n] * g[n];
        }
    }
    let (c1, c2) = p.corrections(s.step);
    let shrink = k(p.common.shrink(rate, s.largest_rate));
    for b in &p.grid.blocks {
        let first: Vec<R> = taken(b, &s.first).iter().map(|&m| m / k(c1)).collect();
        let graft: Vec<R> = if p.grafting.squares() {
            let second = taken(b, &s.second);
            let root = |v: R| (v / k(p.second_correction(s.step))).sqrt() + k(p.grafting_eps);
            first.iter().zip(&second).map(|(&m, &v)| m / root(v)).collect()
        } else {
            first.clone()
        };
        let x = taken(b, &g);
        let (keep, weight) = p.weights();
        let started = s.step >= p.start_preconditioning_step;
        for axis in 0..b.factors.len() {
            let n = b.sizes[axis];
            let factor = &mut s.factors[b.factors[axis]..][..packed(n)];
            average(b, axis, &x, factor, keep, weight);
            if started && (p.every_block || b.due(s.step, p.precondition_frequency)) {
                let whole = unpacked(factor, n, k(1.0 / c2));
                // What has no root keeps the one before.
                if let Some(root) = inverse_root(&p.roots(1, b.sizes.len(), n), &whole) {
                    s.roots[b.roots[axis]..][..n * n].copy_from_slice(&root);
                }
            }
        }
        let update = if b.factors.is_empty() || !started {
            graft
        } else {
            let mut x = first;
            for axis in 0..b.factors.len() {
                let n = b.sizes[axis];
                x = along(b, axis, &s.roots[b.roots[axis]..][..n * n], &x);
            }
            if p.grafting != Grafting::None {
                let scale = norm(&graft) / (norm(&x) + k(1e-16));
                x.iter_mut().for_each(|x| *x = *x * scale);
            }
            x
        };
        b.rows(|at, there| {
            for i in 0..b.width() {
                let w = s.parameter[there + i];
                s.parameter[there + i] = w - (k(rate) * update[at + i] + w * decay[there + i] * shrink);
            }
        });
    }
    whole
}
