//! The LSTM of mixed memory, for a group of rows: what it makes of the state ahead of a step, and its backward pass.
//!
//! `4 H (D + H)` products a row and step forward and twice as many backward, each one instruction for R rows; beside the
//! gates of the synapses, 24 instructions each, K times, that is little. The sums of its parameters are reduced over lanes
//! once in a block of steps.

use super::layout::Group;
use crate::layers::memory::Strided;
use crate::simd_math::{Lanes, sigmoid, tanh};

/// Its parameters and where it starts from.
pub(super) struct Lstm<'a> {
    /// `[4 H, D]`, `[4 H]` and `[4 H, H]`; rows are gate by gate: i, ig, fg, og.
    pub input: &'a [f32],
    pub bias: &'a [f32],
    pub recurrent: &'a [f32],
    /// `[B, H]`.
    pub c0: Option<Strided<'a, 2>>,
}

/// What the backward pass reads of each step: `[B, T, 4, H]` gates, `[B, T, H]` cells after it, and `[B, T, H]` states.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub gates: Strided<'a, 4>,
    pub cells: Strided<'a, 3>,
    pub states: Strided<'a, 3>,
}

#[inline(always)]
fn at<const R: usize>(from: &[f32], row: usize) -> Lanes<R> {
    Lanes(from.as_chunks::<R>().0[row])
}

#[inline(always)]
fn put<const R: usize>(to: &mut [f32], row: usize, x: Lanes<R>) {
    to.as_chunks_mut::<R>().0[row] = x.0;
}

/// Row `row` of `x` `[rows, N]`, for N >= 0.
#[inline(always)]
fn row(x: &[f32], row: usize, n: usize) -> &[f32] {
    &x[row * n..][..n]
}

impl Lstm<'_> {
    /// The cell before the first step, `[H, R]`.
    #[inline(always)]
    pub fn start<const R: usize>(&self, g: Group, hidden: usize, c: &mut [f32]) {
        let c = &mut c.as_chunks_mut::<R>().0[..hidden];
        c.fill([0.0; R]);
        if let Some(c0) = &self.c0 {
            for (j, c) in c.iter_mut().enumerate() {
                for (l, c) in c.iter_mut().enumerate() {
                    *c = c0.at([g.row_of(l), j]);
                }
            }
        }
    }

    /// One step from x `[D, R]` and the state h `[H, R]`: the cell c `[H, R]` in place, gates `[4 H, R]`, and the new state
    /// to the first H rows of `v`.
    #[inline(always)]
    pub fn step<const FMA: bool, const R: usize>(
        &self,
        [x, h]: [&[f32]; 2],
        c: &mut [f32],
        gates: &mut [f32],
        v: &mut [f32],
    ) {
        let hidden = self.bias.len() / 4;
        let inputs = x.len() / R;
        for j in 0..hidden {
            let mut z: [Lanes<R>; 4] = [0, 1, 2, 3].map(|k| Lanes::splat(self.bias[k * hidden + j]));
            for (weights, from, n) in [(self.input, x, inputs), (self.recurrent, h, hidden)] {
                let rows = [0, 1, 2, 3].map(|k| row(weights, k * hidden + j, n));
                for i in 0..n {
                    let from = at::<R>(from, i);
                    for k in 0..4 {
                        z[k] = Lanes::splat(rows[k][i]).mul_add::<FMA>(from, z[k]);
                    }
                }
            }
            let (i, ig) = (tanh::<FMA, R>(z[0]), sigmoid::<FMA, R>(z[1]));
            let (fg, og) = (sigmoid::<FMA, R>(z[2] + Lanes::splat(1.0)), sigmoid::<FMA, R>(z[3]));
            let new = fg.mul_add::<FMA>(at(c, j), i * ig);
            put(c, j, new);
            for (k, gate) in [i, ig, fg, og].into_iter().enumerate() {
                put(gates, k * hidden + j, gate);
            }
            put(v, j, og * tanh::<FMA, R>(new));
        }
    }

    /// From the gradients of the state, a `[H, R]`, and of the cell, c `[H, R]`, after step `t` to those before it, in
    /// place; those of the sums behind the gates go to `dz` `[4 H, R]`, and that of x to `dx` `[D, R]` where it has room.
    #[inline(always)]
    pub fn back<const FMA: bool, const R: usize>(
        &self,
        g: Group,
        t: usize,
        kept: &Kept<'_>,
        a: &mut [f32],
        c: &mut [f32],
        dz: &mut [f32],
        dx: &mut [f32],
    ) {
        let hidden = self.bias.len() / 4;
        let inputs = dx.len() / R;
        let one = Lanes::<R>::splat(1.0);
        let gather = |from: &dyn Fn(usize) -> f32| Lanes::<R>(std::array::from_fn(|l| from(g.row_of(l))));
        for j in 0..hidden {
            let [i, ig, fg, og] = [0, 1, 2, 3].map(|k| gather(&|b| kept.gates.at([b, t, k, j])));
            let y = tanh::<FMA, R>(gather(&|b| kept.cells.at([b, t, j])));
            let before = gather(&|b| match (t, &self.c0) {
                (0, None) => 0.0,
                (0, Some(c0)) => c0.at([b, j]),
                _ => kept.cells.at([b, t - 1, j]),
            });
            let da = at::<R>(a, j);
            let dc = at::<R>(c, j) + da * og * (one - y) * (one + y);
            put(dz, j, dc * ig * (one - i) * (one + i));
            put(dz, hidden + j, dc * i * ig * (one - ig));
            put(dz, 2 * hidden + j, dc * before * fg * (one - fg));
            put(dz, 3 * hidden + j, da * y * og * (one - og));
            put(c, j, dc * fg);
        }
        a[..hidden * R].fill(0.0);
        dx.fill(0.0);
        for j in 0..hidden {
            let dz: [Lanes<R>; 4] = [0, 1, 2, 3].map(|k| at(dz, k * hidden + j));
            for (weights, to, n) in [(self.input, &mut *dx, inputs), (self.recurrent, &mut *a, hidden)] {
                if n == 0 {
                    continue;
                }
                let width = weights.len() / (4 * hidden);
                let rows = [0, 1, 2, 3].map(|k| row(weights, k * hidden + j, width));
                for i in 0..n {
                    let mut sum = at::<R>(to, i);
                    for k in 0..4 {
                        sum = Lanes::splat(rows[k][i]).mul_add::<FMA>(dz[k], sum);
                    }
                    put(to, i, sum);
                }
            }
        }
    }
}

/// Adds a block's `count` steps to the sums of the parameters, `[4 H, D + 1 + H]` in f64: dz `[count, 4 H, R]`, inputs
/// `[count, D, R]` and states before the step `[count, H, R]`.
#[inline(always)]
pub(super) fn parameter_sums<const FMA: bool, const R: usize>(
    [inputs, hidden, count]: [usize; 3],
    [dz, x, h]: [&[f32]; 3],
    total: &mut [f64],
) {
    let width = inputs + 1 + hidden;
    for j in 0..hidden {
        for (from, n, first) in [(x, inputs, 0), (h, hidden, inputs + 1)] {
            for i in 0..n {
                let mut sums = [Lanes::<R>::splat(0.0); 4];
                for s in 0..count {
                    let from = at::<R>(from, s * n + i);
                    for k in 0..4 {
                        sums[k] = at::<R>(dz, (s * 4 + k) * hidden + j).mul_add::<FMA>(from, sums[k]);
                    }
                }
                for k in 0..4 {
                    total[(k * hidden + j) * width + first + i] += f64::from(super::gates::lane_sum(sums[k]));
                }
            }
        }
        for k in 0..4 {
            for s in 0..count {
                let dz = at::<R>(dz, (s * 4 + k) * hidden + j);
                total[(k * hidden + j) * width + inputs] += f64::from(super::gates::lane_sum(dz));
            }
        }
    }
}
