//! The law: plain loops.

use super::spec::Dense;
use crate::real::Real;

/// y, from x, weight `[H, D]` and bias `[H]`.
pub fn forward<R: Real>(p: &Dense, x: &[R], weight: &[R], bias: Option<&[R]>) -> Vec<R> {
    let (d, h) = (p.from.count, p.to.count);
    let mut y = vec![R::zero(); p.rows() * h];
    for (b, t) in steps(p) {
        let (from, to) = (p.from.row(p.steps, b, t), p.to.row(p.steps, b, t));
        for o in 0..h {
            let start = bias.map_or(R::zero(), |bias| bias[o]);
            let term = |sum: R, i: usize| sum + weight[o * d + i] * x[from + p.from.channel(p.steps, i)];
            y[to + p.to.channel(p.steps, o)] = (0..d).fold(start, term);
        }
    }
    y
}

/// The gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<R> {
    /// Of x.
    pub x: Vec<R>,
    /// `[H, D]`.
    pub weight: Vec<R>,
    /// `[H]`.
    pub bias: Vec<R>,
}

/// The gradients from that of y.
pub fn backward<R: Real>(p: &Dense, x: &[R], weight: &[R], grad_y: &[R]) -> Gradients<R> {
    let (d, h) = (p.from.count, p.to.count);
    let mut g = Gradients { x: vec![R::zero(); x.len()], weight: vec![R::zero(); h * d], bias: vec![R::zero(); h] };
    for (b, t) in steps(p) {
        let (from, to) = (p.from.row(p.steps, b, t), p.to.row(p.steps, b, t));
        for o in 0..h {
            let gy = grad_y[to + p.to.channel(p.steps, o)];
            g.bias[o] = g.bias[o] + gy;
            for i in 0..d {
                let at = from + p.from.channel(p.steps, i);
                g.weight[o * d + i] = g.weight[o * d + i] + gy * x[at];
                g.x[at] = g.x[at] + weight[o * d + i] * gy;
            }
        }
    }
    g
}

fn steps(p: &Dense) -> impl Iterator<Item = (usize, usize)> + use<> {
    let steps = p.steps;
    (0..p.batch).flat_map(move |b| (0..steps).map(move |t| (b, t)))
}
