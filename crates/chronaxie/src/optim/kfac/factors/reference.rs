//! The law: plain loops over positions.

use super::spec::{Factors, Sharing, Terms};
use crate::optim::blocks::packed;
use crate::real::Real;

/// What goes in.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a, R> {
    /// `[B, G, T, D / G]`.
    pub x: &'a [R],
    /// `[B, K, T, H / K]`, of a loss that is a mean.
    pub grad: &'a [R],
    /// `[B]`, each at most T.
    pub lengths: &'a [usize],
    /// `[A, A]` and `[H, H]`, basis vectors as rows, where squares are wanted.
    pub bases: Option<[&'a [R]; 2]>,
}

/// What comes out.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs<R> {
    /// Lower triangle of A.
    pub a: Vec<R>,
    /// Lower triangle of G.
    pub g: Vec<R>,
    /// `[H, A]`, where they are wanted.
    pub squares: Vec<R>,
}

/// The input of a sample (with its one, where there is a bias) and its gradient.
type Sample<R> = (Vec<R>, Vec<R>);

fn samples<R: Real>(p: &Factors, i: &Inputs<'_, R>) -> Vec<Sample<R>> {
    let mut all = Vec::new();
    for (b, &len) in i.lengths.iter().enumerate() {
        let read = |of: &[R], c: crate::op::Channels, t: usize| -> Vec<R> {
            (0..c.count).map(|k| of[c.row(p.steps, b, t) + c.channel(p.steps, k)]).collect()
        };
        let mut row: Vec<_> = (0..len).map(|t| (read(i.x, p.from, t), read(i.grad, p.to, t))).collect();
        if p.sharing == Sharing::Reduce && len > 0 {
            let share = R::one() / R::from_f64(len as f64);
            let x = (0..p.from.count).map(|k| row.iter().fold(R::zero(), |s, (x, _)| s + x[k]) * share).collect();
            let g = (0..p.to.count).map(|k| row.iter().fold(R::zero(), |s, (_, g)| s + g[k])).collect();
            row = vec![(x, g)];
        }
        all.append(&mut row);
    }
    if p.bias {
        all.iter_mut().for_each(|(x, _)| x.push(R::one()));
    }
    all
}

/// What A is divided by and G multiplied by: samples of A, and terms of the loss.
pub fn counts(p: &Factors, lengths: impl Iterator<Item = usize> + Clone) -> (f64, f64) {
    let rows = lengths.clone().filter(|&l| l > 0).count();
    let positions = lengths.sum::<usize>();
    let samples = if p.sharing == Sharing::Reduce { rows } else { positions };
    let terms = if p.terms == Terms::Batch { rows } else { positions };
    (samples.max(1) as f64, terms as f64)
}

/// `A = E[x x^T]`, `G = n E-sum[g g^T]`, and the squares of both in the bases.
pub fn forward<R: Real>(p: &Factors, i: &Inputs<'_, R>) -> Outputs<R> {
    let (n, h) = (p.inputs(), p.to.count);
    let (count, terms) = counts(p, i.lengths.iter().copied());
    let all = samples(p, i);
    let triangle = |n: usize, of: &dyn Fn(&Sample<R>, usize, usize) -> R, scale: f64| {
        let mut out = vec![R::zero(); packed(n)];
        for r in 0..n {
            for c in 0..=r {
                let sum = all.iter().fold(R::zero(), |s, pair| s + of(pair, r, c));
                out[packed(r) + c] = sum * R::from_f64(scale);
            }
        }
        out
    };
    let a = triangle(n, &|(x, _), r, c| x[r] * x[c], 1.0 / count);
    let g = triangle(h, &|(_, g), r, c| g[r] * g[c], terms);
    let mut squares = Vec::new();
    if let Some([of_a, of_g]) = i.bases {
        let turned = |basis: &[R], v: &[R]| -> Vec<R> {
            basis.chunks(v.len().max(1)).map(|row| row.iter().zip(v).fold(R::zero(), |s, (&q, &v)| s + q * v)).collect()
        };
        squares = vec![R::zero(); h * n];
        for (x, g) in &all {
            let (x, g) = (turned(of_a, x), turned(of_g, g));
            for (r, &g) in g.iter().enumerate() {
                for (c, &x) in x.iter().enumerate() {
                    squares[r * n + c] = squares[r * n + c] + R::from_f64(terms) * (g * g) * (x * x);
                }
            }
        }
    }
    Outputs { a, g, squares }
}
