//! The law of the ladder's steps, one head: plain loops over rows, terms and columns.

use super::{add, dot};
use crate::layers::mlstm::ladder::{Ladder, Mask, Rung};
use crate::real::Real;

fn mask(p: &Ladder) -> Mask {
    if p.rung == Rung::Causal { Mask::Until } else { Mask::All }
}

/// `c [T, V]` of a `[T, K]` and b `[K, V]`, or `h [T, V]` of q, k `[T, K]` and v `[T, V]`.
pub(in super::super) fn forward<R: Real>(p: &Ladder, given: &[Vec<R>]) -> Vec<R> {
    let (k, v) = (p.dqk, p.dv);
    let mut out = vec![R::zero(); p.steps * v];
    for (t, out) in out.chunks_exact_mut(v).enumerate() {
        let row = &given[0][t * k..(t + 1) * k];
        if p.rung == Rung::Product {
            for (&x, b) in row.iter().zip(given[1].chunks_exact(v)) {
                add(out, x, b);
            }
            continue;
        }
        for s in (0..p.steps).filter(|&s| mask(p).has(t, s)) {
            let pair = R::from_f64(p.scale()) * dot(row, &given[1][s * k..(s + 1) * k]);
            add(out, pair, &given[2][s * v..(s + 1) * v]);
        }
    }
    out
}

/// The gradients of what is given, from that of the result `[T, V]`.
pub(in super::super) fn backward<R: Real>(p: &Ladder, given: &[Vec<R>], grad: &[R]) -> Vec<Vec<R>> {
    let (k, v) = (p.dqk, p.dv);
    let mut g: Vec<Vec<R>> = given.iter().map(|x| vec![R::zero(); x.len()]).collect();
    for t in 0..p.steps {
        let (row, grad) = (t * k..(t + 1) * k, &grad[t * v..(t + 1) * v]);
        if p.rung == Rung::Product {
            for (i, b) in given[1].chunks_exact(v).enumerate() {
                g[0][t * k + i] = dot(grad, b);
                add(&mut g[1][i * v..(i + 1) * v], given[0][t * k + i], grad);
            }
            continue;
        }
        for s in (0..p.steps).filter(|&s| mask(p).has(t, s)) {
            let (key, value) = (s * k..(s + 1) * k, s * v..(s + 1) * v);
            let scale = R::from_f64(p.scale());
            let pair = scale * dot(&given[0][row.clone()], &given[1][key.clone()]);
            let grad_pair = scale * dot(grad, &given[2][value.clone()]);
            add(&mut g[0][row.clone()], grad_pair, &given[1][key.clone()]);
            add(&mut g[1][key], grad_pair, &given[0][row.clone()]);
            add(&mut g[2][value], pair, grad);
        }
    }
    g
}
