//! From the tasks' sums to the gradients of the parameters: the closing formulas, in f64.

use super::fold::{PACK, Side, SideInputs, TARGETS};
use crate::layers::ltc::spec::Constraint;
use crate::pool;
use crate::shared::Shared;
use crate::simd_math::{Lanes, sigmoid};

/// Sums of every task, `len` elements a task.
#[derive(Clone, Copy)]
pub(super) struct Tasks<'a> {
    pub memory: &'a [f64],
    pub len: usize,
}

impl Tasks<'_> {
    /// The N sums at `at` of all tasks, added in their order.
    #[inline(always)]
    pub fn add<const N: usize>(&self, at: usize) -> [f64; N] {
        let mut sum = [0.0; N];
        for task in self.memory.chunks_exact(self.len.max(1)) {
            for (sum, x) in sum.iter_mut().zip(&task[at..at + N]) {
                *sum += x;
            }
        }
        sum
    }
}

/// A side and its sums, which start at `base` in each task.
pub(super) struct Sums<'a> {
    pub of: &'a SideInputs<'a>,
    pub side: &'a Side<'a>,
    pub base: usize,
    /// Of w, mu, sigma and erev, `[I, H]`.
    pub gradients: [Shared<f32>; 4],
}

/// Gradients of both sides' parameters.
pub(super) fn close_sides(sums: [Sums<'_>; 2], constraint: Constraint, tasks: Tasks<'_>) {
    let hidden = sums[0].side.first.len() - 1;
    for sums in &sums {
        for gradient in sums.gradients {
            // A masked synapse has the gradient zero.
            // SAFETY: no task runs yet.
            unsafe { gradient.part(0, sums.of.sources * hidden) }.fill(0.0);
        }
    }
    pool::for_each(2 * hidden.div_ceil(TARGETS), |task| {
        let (Sums { of, side, base, gradients }, chunk) = (&sums[task % 2], task / 2);
        for j in chunk * TARGETS..hidden.min((chunk + 1) * TARGETS) {
            close_target(of, side, constraint == Constraint::Softplus, j, tasks, *base, gradients);
        }
    });
}

crate::levels!(fn close_target(s: &SideInputs<'_>, side: &Side<'_>, softplus: bool, j: usize, tasks: Tasks<'_>, base: usize, gradients: &[Shared<f32>; 4]) = body, 8, [8, 8, 8]);

#[inline(always)]
fn body<const FMA: bool, const R: usize, const N: usize>(
    s: &SideInputs<'_>,
    side: &Side<'_>,
    softplus: bool,
    j: usize,
    tasks: Tasks<'_>,
    base: usize,
    gradients: &[Shared<f32>; 4],
) {
    let hidden = side.first.len() - 1;
    let list = &s.source_of[s.target_offsets[j] as usize..s.target_offsets[j + 1] as usize];
    let packs = side.packs_of(j);
    for (chunk, list) in list.chunks(8).enumerate() {
        let mut w = Lanes([0.0; 8]);
        for (l, &i) in list.iter().enumerate() {
            w.0[l] = s.w[i as usize * hidden + j];
        }
        let slope = if softplus { sigmoid::<FMA, 8>(w) } else { Lanes::splat(1.0) };
        for (l, &i) in list.iter().enumerate() {
            let synapse = packs.start * PACK + chunk * 8 + l;
            let at = i as usize * hidden + j;
            let [s1, s2, a, b] = tasks.add::<4>(base + synapse * 4);
            let p = side.packs[synapse / PACK].0[4 * (synapse % PACK) + 2];
            let dw = f64::from(slope.0[l]) * (f64::from(s.erev[at]) * s1 + s2);
            let values = [dw, -f64::from(s.sigma[at]) * a, b, f64::from(p) * s1];
            for (gradient, value) in gradients.iter().zip(values) {
                // SAFETY: elements of one target, which belongs to one task.
                unsafe { gradient.put(at, value as f32) };
            }
        }
    }
}

/// d constrained / d parameter, in f64.
pub(super) fn slope(constraint: Constraint, x: f32) -> f64 {
    match constraint {
        Constraint::Softplus => 1.0 / (1.0 + (-f64::from(x)).exp()),
        Constraint::Identity => 1.0,
    }
}
