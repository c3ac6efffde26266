//! What steps do with a block on the CPU: its elements, Gram matrices and products along an axis.
#![allow(unsafe_code)]

use super::blocks::{Block, Grid};
use super::matrix::{Operand, gram, multiply, packing_of};
use crate::shared::Shared;

/// The elements of a block, contiguous.
pub(super) fn gather(b: &Block, from: &[f32], to: &mut [f32]) {
    let w = b.width();
    b.rows(|at, there| to[at..at + w].copy_from_slice(&from[there..there + w]));
}

/// `w <- w - (rate update + w decay shrink)` of the elements of a block.
///
/// # Safety
/// They belong to the caller.
pub(super) unsafe fn apply(b: &Block, update: &[f32], decay: &[f32], rate: f64, shrink: f64, parameter: Shared<f32>) {
    let (width, rate, shrink) = (b.width(), rate as f32, shrink as f32);
    b.rows(|at, there| {
        // SAFETY: a row of the block.
        let row = unsafe { parameter.part(there, width) };
        for ((w, &u), &d) in row.iter_mut().zip(&update[at..]).zip(&decay[there..]) {
            *w -= rate * u + *w * d * shrink;
        }
    });
}

/// Floats that [`average`] and [`along`] pack into, for any block.
pub(super) fn packing(grid: &Grid) -> usize {
    let of = |b: &Block| {
        let one = |axis: usize| {
            let [outer, n, inner] = b.around(axis);
            let depth = if inner == 1 { outer } else { inner };
            packing_of([n, n, depth]).max(packing_of([n, inner, n])).max(packing_of([outer, n, n]))
        };
        (0..b.factors.len()).map(one).max().unwrap_or(0)
    };
    grid.blocks.iter().map(of).max().unwrap_or(0)
}

/// Moves the packed factor of an axis: `keep` of it and `weight` of the Gram matrix of `x`; `square` holds `[n, n]`.
#[allow(clippy::too_many_arguments)]
pub(super) fn average(
    b: &Block,
    axis: usize,
    x: &[f32],
    factor: &mut [f32],
    keep: f32,
    weight: f32,
    square: &mut [f32],
    pack: &mut [f32],
) {
    let [outer, n, inner] = b.around(axis);
    if inner == 1 {
        gram(square, [n, outer], Operand { data: x, along: n, across: 1 }, false, pack);
    } else {
        for o in 0..outer {
            let data = &x[o * n * inner..(o + 1) * n * inner];
            gram(square, [n, inner], Operand { data, along: 1, across: inner }, o > 0, pack);
        }
    }
    let mut to = factor;
    for (i, row) in square.chunks_exact(n).enumerate() {
        let (now, rest) = to.split_at_mut(i + 1);
        now.iter_mut().zip(row).for_each(|(f, &x)| *f = keep * *f + weight * x);
        to = rest;
    }
}

/// The whole of a packed matrix, times `scale`.
pub(super) fn unpack(factor: &[f32], n: usize, scale: f32, to: &mut [f32]) {
    let mut from = factor;
    for i in 0..n {
        let (row, rest) = from.split_at(i + 1);
        for (j, &x) in row.iter().enumerate() {
            (to[i * n + j], to[j * n + i]) = (scale * x, scale * x);
        }
        from = rest;
    }
}

/// `y_i = sum_j m_ij x_j` along an axis, with m or its transpose.
pub(super) fn along(b: &Block, axis: usize, m: &[f32], transposed: bool, x: &[f32], y: &mut [f32], pack: &mut [f32]) {
    let [outer, n, inner] = b.around(axis);
    // (k, i) is m[i][k].
    let (k, i) = if transposed { (n, 1) } else { (1, n) };
    let m = Operand { data: m, along: k, across: i };
    if inner == 1 {
        multiply(y, [outer, n, n], Operand { data: x, along: 1, across: n }, m, false, pack);
        return;
    }
    for (x, y) in x.chunks_exact(n * inner).zip(y.chunks_exact_mut(n * inner)) {
        multiply(y, [n, inner, n], m, Operand { data: x, along: inner, across: 1 }, false, pack);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::blocks::{Cut, Parameter, packed};
    use crate::rng::Rng;

    /// Products along every axis of blocks of up to three against plain sums, whole, cut and with gaps.
    #[test]
    fn products_along_axes_are_sums() {
        let mut rng = Rng::new(5, 0);
        for (shape, most) in [(&[7, 9][..], 5), (&[13], 20), (&[5, 4, 6], 4), (&[6, 7, 5], 7)] {
            let p = Parameter::new(3, shape);
            let elements = 3 + p.shape.elements();
            let grid = Grid::new(&[p], Cut { most, merge: false, vectors: true }).unwrap();
            let all: Vec<f32> = (0..elements).map(|_| rng.normal() as f32).collect();
            let mut pack = vec![f32::NAN; packing(&grid)];
            for b in &grid.blocks {
                let mut x = vec![f32::NAN; b.elements()];
                gather(b, &all, &mut x);
                for axis in 0..b.sizes.len() {
                    let [outer, n, inner] = b.around(axis);
                    let m: Vec<f32> = (0..n * n).map(|_| rng.normal() as f32).collect();
                    let at = |o: usize, i: usize, k: usize| f64::from(x[(o * n + i) * inner + k]);
                    for transposed in [false, true] {
                        let mut y = vec![f32::NAN; x.len()];
                        along(b, axis, &m, transposed, &x, &mut y, &mut pack);
                        for e in 0..x.len() {
                            let (o, i, k) = (e / inner / n, e / inner % n, e % inner);
                            let of = |j: usize| f64::from(if transposed { m[j * n + i] } else { m[i * n + j] });
                            let want: f64 = (0..n).map(|j| of(j) * at(o, j, k)).sum();
                            assert!((f64::from(y[e]) - want).abs() < 1e-4, "{shape:?} {axis} {e}");
                        }
                    }
                    let before: Vec<f32> = (0..packed(n)).map(|_| rng.normal() as f32).collect();
                    let (mut factor, mut square) = (before.clone(), vec![f32::NAN; n * n]);
                    average(b, axis, &x, &mut factor, 0.75, 0.5, &mut square, &mut pack);
                    for i in 0..n {
                        for j in 0..=i {
                            let terms = (0..outer).flat_map(|o| (0..inner).map(move |k| (o, k)));
                            let sum: f64 = terms.map(|(o, k)| at(o, i, k) * at(o, j, k)).sum();
                            let e = packed(i) + j;
                            let want = 0.75 * f64::from(before[e]) + 0.5 * sum;
                            assert!((f64::from(factor[e]) - want).abs() < 1e-4, "{shape:?} {axis} {i} {j}");
                        }
                    }
                    unpack(&factor, n, 2.0, &mut square);
                    assert!((0..n * n).all(|e| square[e] == square[e % n * n + e / n]));
                    assert_eq!(square[n * n - 1], 2.0 * factor[packed(n) - 1]);
                }
            }
        }
    }
}
