//! The law: one map after the other, plain sums.

use super::spec::{Damping, Kfac, MOST_PI, Map, Place};
use crate::optim::blocks::packed;
use crate::optim::inverse_root::reference::eigen;
use crate::optim::shampoo::reference::unpacked;
use crate::optim::soap::reference::by_falling;
use crate::real::Real;

/// What a step reads and overwrites.
#[derive(Debug, Clone, PartialEq)]
pub struct State<R> {
    /// `[N]`.
    pub parameter: Vec<R>,
    /// `[N]`, of maps the sum of steps, of others the mean of gradients.
    pub first: Vec<R>,
    /// `[N]`, the mean of squared gradients of what is no map.
    pub second: Vec<R>,
    /// `[F]`, lower triangles of A and G of each map.
    pub factors: Vec<R>,
    /// `[R]`, eigenvectors as rows, or inverses.
    pub bases: Vec<R>,
    /// `[E]`, eigenvalues.
    pub values: Vec<R>,
    /// `[S]`, second moments in the bases.
    pub squares: Vec<R>,
    /// `[L]`, how often the factors of a map were moved.
    pub averaged: Vec<R>,
    /// Steps taken.
    pub step: usize,
    /// The largest learning rate there was.
    pub largest_rate: f64,
}

/// What a step reads.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a, R> {
    /// `[N]`.
    pub grad: &'a [R],
    /// `[N]`.
    pub decay: &'a [R],
    /// The learning rate.
    pub rate: f64,
    /// `[F]`.
    pub seen: &'a [R],
    /// `[S]`, or empty.
    pub seen_squares: &'a [R],
}

/// c `[m, n]` = a `[m, k]` b `[k, n]`.
pub(super) fn times<R: Real>(a: &[R], b: &[R], [m, n, k]: [usize; 3]) -> Vec<R> {
    let sum = |i: usize, j: usize| (0..k).fold(R::zero(), |s, l| s + a[i * k + l] * b[l * n + j]);
    (0..m * n).map(|e| sum(e / n, e % n)).collect()
}

pub(super) fn turned<R: Real>(a: &[R], rows: usize, columns: usize) -> Vec<R> {
    (0..rows * columns).map(|e| a[e % rows * columns + e / rows]).collect()
}

fn finite<R: Real>(x: &[R]) -> bool {
    x.iter().all(|x| x.to_f64().is_finite())
}

/// The weight with its bias as the last column, `[H, A]`, of a vector.
pub fn taken<R: Real>(m: &Map, of: &[R]) -> Vec<R> {
    let mut all = Vec::with_capacity(m.rows * m.inputs());
    for r in 0..m.rows {
        all.extend_from_slice(&of[m.weight + r * m.columns..][..m.columns]);
        all.extend(m.bias.map(|b| of[b + r]));
    }
    all
}

/// Calls `each` with every element of the map: where it lies in the vector, and in `[H, A]`.
fn elements(m: &Map, mut each: impl FnMut(usize, usize)) {
    let a = m.inputs();
    for r in 0..m.rows {
        (0..m.columns).for_each(|c| each(m.weight + r * m.columns + c, r * a + c));
        if let Some(b) = m.bias {
            each(b + r, r * a + m.columns);
        }
    }
}

/// What factored damping adds to A and to G: `pi sqrt(l)` and `sqrt(l) / pi`.
pub fn balance(mean_a: f64, mean_g: f64, damping: f64) -> (f64, f64) {
    let tiny = f64::from(f32::MIN_POSITIVE);
    let pi = (mean_a.max(tiny) / mean_g.max(tiny)).sqrt().clamp(1.0 / MOST_PI, MOST_PI);
    (pi * damping.sqrt(), damping.sqrt() / pi)
}

/// `(F + e I)^-1`, or none where it is not positive.
fn inverse<R: Real>(factor: &[R], n: usize, e: f64) -> Option<Vec<R>> {
    if !finite(factor) {
        return None;
    }
    let (values, vectors) = eigen(factor, n);
    let over: Vec<R> = values.iter().map(|&v| v + R::from_f64(e)).collect();
    if over.iter().any(|v| v.to_f64() <= 0.0) {
        return None;
    }
    let scaled: Vec<R> = (0..n * n).map(|k| vectors[k] / over[k / n]).collect();
    Some(times(&turned(&vectors, n, n), &scaled, [n, n, n]))
}

impl<R: Real> State<R> {
    /// Moves the averages of map `l` by what was seen.
    fn average(&mut self, p: &Kfac, l: usize, i: &Inputs<'_, R>) {
        let (m, at) = (&p.maps[l], &p.places.maps[l]);
        let (a, h) = (m.inputs(), m.rows);
        let sides = [(at.a, packed(a)), (at.g, packed(h))];
        let count = self.averaged[l].to_f64();
        let keep = (count / (count + 1.0)).min(p.decay);
        if sides.iter().all(|&(first, n)| finite(&i.seen[first..first + n])) {
            for (first, n) in sides {
                mix(&mut self.factors[first..first + n], &i.seen[first..first + n], keep);
            }
            self.averaged[l] = R::from_f64(count + 1.0);
        }
        if p.ekfac && finite(&i.seen_squares[at.squares..at.squares + h * a]) {
            mix(&mut self.squares[at.squares..at.squares + h * a], &i.seen_squares[at.squares..], p.decay);
        }
    }
    /// Eigenvalues and bases of map `l`, or inverses.
    fn solve(&mut self, p: &Kfac, l: usize) {
        let (m, at) = (&p.maps[l], &p.places.maps[l]);
        let (a, h) = (m.inputs(), m.rows);
        let factors =
            [(at.a, a), (at.g, h)].map(|(first, n)| unpacked(&self.factors[first..][..packed(n)], n, R::one()));
        let bases = [at.basis_a, at.basis_g];
        let mean = |f: &[R], n: usize| f.iter().step_by(n + 1).fold(0.0, |s, x| s + x.to_f64()) / n.max(1) as f64;
        let added = balance(mean(&factors[0], a), mean(&factors[1], h), p.damping);
        for ((factor, first), (n, side)) in factors.iter().zip(bases).zip([(a, 0), (h, 1)]) {
            if p.mode == Damping::Factored {
                if let Some(made) = inverse(factor, n, if side == 0 { added.0 } else { added.1 }) {
                    self.bases[first..first + n * n].copy_from_slice(&made);
                }
                continue;
            }
            let (values, vectors) = eigen(factor, n);
            let to = if side == 0 { at.values_a } else { at.values_g };
            for (k, &from) in by_falling(&values).iter().enumerate() {
                self.values[to + k] = values[from].max(R::zero());
                self.bases[first + k * n..][..n].copy_from_slice(&vectors[from * n..][..n]);
            }
        }
        if p.ekfac {
            for e in 0..h * a {
                self.squares[at.squares + e] = self.values[at.values_g + e / a] * self.values[at.values_a + e % a];
            }
        }
    }
    /// `G^-1 x A^-1` for `x [H, A]`, with the damping.
    fn curved(&self, p: &Kfac, l: usize, x: &[R]) -> Vec<R> {
        let (m, at): (_, &Place) = (&p.maps[l], &p.places.maps[l]);
        let (a, h) = (m.inputs(), m.rows);
        let (qa, qg) = (&self.bases[at.basis_a..][..a * a], &self.bases[at.basis_g..][..h * h]);
        if p.mode == Damping::Factored {
            return times(&times(qg, x, [h, a, h]), qa, [h, a, a]);
        }
        let mut x = times(&times(qg, x, [h, a, h]), &turned(qa, a, a), [h, a, a]);
        for (e, x) in x.iter_mut().enumerate() {
            let curvature = if p.ekfac {
                self.squares[at.squares + e]
            } else {
                self.values[at.values_g + e / a] * self.values[at.values_a + e % a]
            };
            *x = *x / (curvature + R::from_f64(p.damping));
        }
        times(&times(&turned(qg, h, h), &x, [h, a, h]), qa, [h, a, a])
    }
}

fn mix<R: Real>(to: &mut [R], from: &[R], keep: f64) {
    for (to, &x) in to.iter_mut().zip(from) {
        *to = *to * R::from_f64(keep) + x * R::from_f64(1.0 - keep);
    }
}

/// One step in place; gives the norm of the gradient.
pub fn step<R: Real>(p: &Kfac, s: &mut State<R>, i: &Inputs<'_, R>) -> R {
    let k = R::from_f64;
    let norm = i.grad.iter().fold(R::zero(), |sum, &g| sum + g * g).sqrt();
    let scale = k(p.common.scale(norm.to_f64()));
    s.step += 1;
    s.largest_rate = s.largest_rate.max(i.rate);
    let shrink = k(p.common.shrink(i.rate, s.largest_rate));
    let grad: Vec<R> =
        (0..p.elements).map(|n| i.grad[n] * scale + k(p.common.pull()) * i.decay[n] * s.parameter[n]).collect();
    let (mut updates, mut agreement) = (Vec::new(), 0.0);
    for (l, m) in p.maps.iter().enumerate() {
        if p.averages(s.step) {
            s.average(p, l, i);
        }
        if p.solves(s.step, l) {
            s.solve(p, l);
        }
        let x = taken(m, &grad);
        let u = s.curved(p, l, &x);
        agreement += u.iter().zip(&x).fold(R::zero(), |sum, (&u, &x)| sum + u * x).to_f64();
        updates.push(u);
    }
    let shorter = k(p.shorter(i.rate, agreement));
    for (m, u) in p.maps.iter().zip(&updates) {
        elements(m, |n, e| {
            s.first[n] = k(p.momentum) * s.first[n] + shorter * u[e];
            let w = s.parameter[n];
            s.parameter[n] = w - (k(i.rate) * s.first[n] + w * i.decay[n] * shrink);
        });
    }
    let rate = i.rate * p.adamw_rate;
    let shrink = rate * p.common.weight_decay;
    let correction = |beta: f64| k(1.0 - beta.powi(s.step as i32));
    for (first, count) in p.others() {
        for n in first..first + count {
            let g = i.grad[n] * scale;
            s.first[n] = k(p.beta1) * s.first[n] + k(1.0 - p.beta1) * g;
            s.second[n] = k(p.beta2) * s.second[n] + k(1.0 - p.beta2) * g * g;
            let update = s.first[n] / correction(p.beta1) / ((s.second[n] / correction(p.beta2)).sqrt() + k(p.epsilon));
            s.parameter[n] = s.parameter[n] - (k(rate) * update + s.parameter[n] * i.decay[n] * k(shrink));
        }
    }
    norm
}
