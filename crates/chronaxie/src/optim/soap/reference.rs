//! The law: one block after the other, plain sums.

use super::spec::{NOISE, Soap};
use crate::optim::blocks::{Block, packed};
use crate::optim::inverse_root::reference::eigen;
use crate::optim::shampoo::reference::{along, average, taken, unpacked};
use crate::real::Real;

/// What a step reads and overwrites.
#[derive(Debug, Clone, PartialEq)]
pub struct State<R> {
    /// `[N]`.
    pub parameter: Vec<R>,
    /// `[N]`, the mean of gradients.
    pub first: Vec<R>,
    /// `[N]`, the mean of squared gradients, in the basis where there is one.
    pub second: Vec<R>,
    /// `[F]`, lower triangles.
    pub factors: Vec<R>,
    /// `[R]`, eigenvectors as columns.
    pub bases: Vec<R>,
    /// Steps taken.
    pub step: usize,
    /// The largest learning rate there was.
    pub largest_rate: f64,
}

/// Places by falling values; equal ones stay in their order.
pub(in crate::optim) fn by_falling<R: Real>(values: &[R]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].to_f64().total_cmp(&values[a].to_f64()));
    order
}

fn transposed<R: Real>(a: &[R], n: usize) -> Vec<R> {
    (0..n * n).map(|e| a[e % n * n + e / n]).collect()
}

/// Eigenvectors as columns, those of the largest eigenvalues first.
fn first_basis<R: Real>(factor: &[R], n: usize) -> Vec<R> {
    let (values, vectors) = eigen(factor, n);
    let order = by_falling(&values);
    (0..n * n).map(|e| vectors[order[e % n] * n + e / n]).collect()
}

/// What is left of a column, in parts of its length, below which it is spent: rounding of f32 in factors.
const SPENT: f64 = 1e-7;

/// Q of `factor basis`, columns by falling estimates and back in their places: Gram-Schmidt, twice. A column that is spent goes on as
/// the old basis had it, or as the first unit vector that is not spent too.
fn next_basis<R: Real>(factor: &[R], basis: &[R], n: usize) -> Vec<R> {
    let old = transposed(basis, n);
    let dot = |x: &[R], y: &[R]| x.iter().zip(y).fold(R::zero(), |s, (&x, &y)| s + x * y);
    let columns: Vec<Vec<R>> =
        old.chunks(n).map(|v| factor.chunks(n).map(|row| dot(row, v)).collect::<Vec<R>>()).collect();
    let values: Vec<R> = columns.iter().zip(old.chunks(n)).map(|(s, o)| dot(s, o)).collect();
    let mut made: Vec<(usize, Vec<R>)> = Vec::new();
    for k in by_falling(&values) {
        let unit = |e: usize| (0..n).map(|i| if i == e { R::one() } else { R::zero() }).collect();
        let candidates = [columns[k].clone(), old[k * n..(k + 1) * n].to_vec()].into_iter().chain((0..n).map(unit));
        for mut v in candidates {
            let before = dot(&v, &v).sqrt();
            for _ in 0..2 {
                for (_, q) in &made {
                    let along = dot(q, &v);
                    v.iter_mut().zip(q).for_each(|(v, &q)| *v = *v - along * q);
                }
            }
            let norm = dot(&v, &v).sqrt();
            if norm.to_f64() > SPENT * before.to_f64() {
                v.iter_mut().for_each(|x| *x = *x / norm);
                made.push((k, v));
                break;
            }
        }
    }
    let mut out = basis.to_vec();
    // With a NaN there is nothing to go on with: the basis stays.
    if made.len() == n {
        for (k, v) in made {
            (0..n).for_each(|i| out[i * n + k] = v[i]);
        }
    }
    out
}

/// One step in place from `grad [N]`, `decay [N]` and the learning rate; gives the norm of the gradient.
pub fn step<R: Real>(p: &Soap, s: &mut State<R>, grad: &[R], decay: &[R], rate: f64) -> R {
    let k = R::from_f64;
    let norm = grad.iter().fold(R::zero(), |sum, &g| sum + g * g).sqrt();
    let scale = k(p.common.scale(norm.to_f64()));
    s.step += 1;
    s.largest_rate = s.largest_rate.max(rate);
    let g: Vec<R> = (0..p.elements).map(|n| grad[n] * scale + k(p.common.pull()) * decay[n] * s.parameter[n]).collect();
    for n in 0..p.elements {
        s.first[n] = k(p.beta1) * s.first[n] + k(1.0 - p.beta1) * g[n];
    }
    let shrink = k(p.common.shrink(rate, s.largest_rate));
    for b in &p.grid.blocks {
        let update = block(p, s, b, &g);
        b.rows(|at, there| {
            for i in 0..b.width() {
                let w = s.parameter[there + i];
                s.parameter[there + i] = w - (k(rate) * update[at + i] + w * decay[there + i] * shrink);
            }
        });
    }
    norm
}

fn block<R: Real>(p: &Soap, s: &mut State<R>, b: &Block, g: &[R]) -> Vec<R> {
    let k = R::from_f64;
    let based = !b.factors.is_empty();
    let (c1, c2) = p.corrections(s.step, based);
    let mut x = taken(b, g);
    let mut m: Vec<R> = taken(b, &s.first).iter().map(|&m| m / k(c1)).collect();
    for (axis, &at) in b.factors.iter().enumerate() {
        average(b, axis, &x, &mut s.factors[at..][..packed(b.sizes[axis])], p.keep(), 1.0 - p.keep());
    }
    let whole = |s: &State<R>, axis: usize| {
        let n = b.sizes[axis];
        unpacked(&s.factors[b.factors[axis]..][..packed(n)], n, R::one())
    };
    if based && p.opens {
        for (axis, &at) in b.roots.iter().enumerate() {
            let n = b.sizes[axis];
            let made = first_basis(&whole(s, axis), n);
            s.bases[at..at + n * n].copy_from_slice(&made);
        }
        return m.iter().zip(&x).map(|(&m, &x)| m / (x.abs() * k(p.share()) + k(p.epsilon))).collect();
    }
    for (axis, &at) in b.roots.iter().enumerate() {
        let n = b.sizes[axis];
        let back = transposed(&s.bases[at..at + n * n], n);
        (x, m) = (along(b, axis, &back, &x), along(b, axis, &back, &m));
    }
    let old = taken(b, &s.second);
    let v: Vec<R> = old.iter().zip(&x).map(|(&v, &x)| k(p.beta2) * v + k(1.0 - p.beta2) * x * x).collect();
    b.rows(|at, there| s.second[there..there + b.width()].copy_from_slice(&v[at..at + b.width()]));
    let roots: Vec<R> = v.iter().map(|&v| (v / k(c2)).sqrt()).collect();
    let most = roots.iter().fold(R::zero(), |a, &b| a.max(b));
    let eps = if based { k(p.epsilon) + k(NOISE) * most } else { k(p.epsilon) };
    let mut update: Vec<R> = m.iter().zip(&roots).map(|(&m, &r)| m / (r + eps)).collect();
    for (axis, &at) in b.roots.iter().enumerate() {
        let n = b.sizes[axis];
        update = along(b, axis, &s.bases[at..at + n * n], &update);
    }
    if b.due(s.step, p.precondition_frequency) {
        for (axis, &at) in b.roots.iter().enumerate() {
            let n = b.sizes[axis];
            let made = next_basis(&whole(s, axis), &s.bases[at..at + n * n], n);
            s.bases[at..at + n * n].copy_from_slice(&made);
        }
    }
    update
}
