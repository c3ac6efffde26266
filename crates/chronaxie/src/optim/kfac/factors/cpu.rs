//! Factors on the CPU: runs of rows over the pool's threads, each in tiles of samples; then the runs' sums in their order.
#![allow(unsafe_code)]

use super::reference::counts;
use super::spec::{Factors, NAME, Sharing};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::blocks::packed;
use crate::optim::matrix::{Operand, gram, multiply, packing_of};
use crate::pool::{for_each, num_threads};
use crate::shared::Shared;
use crate::{Dtype, Layout, Place, RegionId, Result};

/// Samples of a tile.
const TILE: usize = 256;
/// Floats that the sums of all runs may take, and how many runs there are at the most.
const MOST_FLOATS: usize = 1 << 24;
const MOST_RUNS: usize = 64;

pub(super) struct CpuPlan {
    problem: Factors,
    signature: Signature,
    layout: Layout,
    sums: RegionId,
    floats: RegionId,
    /// Rows of a run, and how many runs there are: whatever the threads.
    run: usize,
    runs: usize,
    /// Floats of a run's sums, and of a task.
    sum: usize,
    each: usize,
    tasks: usize,
}

impl CpuPlan {
    pub(super) fn new(problem: Factors, options: &PlanOptions) -> Result<Self> {
        let (a, h) = (problem.inputs(), problem.to.count);
        let sum = a * a + h * h + if problem.squares { a * h } else { 0 };
        let most = (MOST_FLOATS / sum.max(1)).clamp(1, MOST_RUNS);
        // A run has at least half a tile.
        let steps = if problem.sharing == Sharing::Reduce { 1 } else { problem.steps.max(1) };
        let run = problem.batch.div_ceil(most).max((TILE / 2).div_ceil(steps)).max(1);
        let runs = problem.batch.div_ceil(run);
        let tasks = num_threads().min(runs).max(1);
        let pack = [[a, a, TILE], [h, h, TILE], [TILE, a, a], [TILE, h, h], [h, a, TILE]].map(packing_of);
        let turned = if problem.squares { TILE * (a + h) } else { 0 };
        let each = TILE * (a + h) + turned + pack.into_iter().max().unwrap_or(0);
        let mut layout = Layout::new(options.scratch_gap);
        let sums = layout.push("sums", Dtype::F32, runs * sum)?;
        let floats = layout.push("floats", Dtype::F32, tasks * each)?;
        let signature = problem.signature_of(Pass::Forward)?;
        Ok(Self { problem, signature, layout, sums, floats, run, runs, sum, each, tasks })
    }
}

/// What the rows are made of.
struct Rows<'a> {
    p: &'a Factors,
    x: &'a [f32],
    grad: &'a [f32],
    lengths: &'a [i32],
    /// Basis vectors as rows.
    bases: Option<[&'a [f32]; 2]>,
}

impl Rows<'_> {
    fn length(&self, b: usize) -> usize {
        usize::try_from(self.lengths[b]).unwrap_or(0).min(self.p.steps)
    }
    /// One sample: the input with its one, and the gradient; `spare` is as long as they are together.
    fn sample(&self, b: usize, t: usize, x: &mut [f32], g: &mut [f32], spare: &mut [f32]) {
        let p = self.p;
        let (d, steps) = (p.from.count, p.steps);
        if p.sharing == Sharing::Expand {
            p.from.read(self.x, steps, [b, t], &mut x[..d]);
            p.to.read(self.grad, steps, [b, t], g);
        } else {
            x.fill(0.0);
            g.fill(0.0);
            let (of_x, of_g) = spare.split_at_mut(d);
            let of_g = &mut of_g[..g.len()];
            let len = self.length(b);
            for t in 0..len {
                p.from.read(self.x, steps, [b, t], of_x);
                p.to.read(self.grad, steps, [b, t], of_g);
                x.iter_mut().zip(&*of_x).for_each(|(s, x)| *s += x);
                g.iter_mut().zip(&*of_g).for_each(|(s, g)| *s += g);
            }
            x.iter_mut().for_each(|x| *x /= len as f32);
        }
        if p.bias {
            x[d] = 1.0;
        }
    }
    /// Adds a tile of samples to the sums.
    fn add(&self, x: &[f32], g: &[f32], sums: &mut [f32], floats: &mut [f32]) {
        let (a, h) = (self.p.inputs(), self.p.to.count);
        let count = x.len().checked_div(a).unwrap_or(0).max(g.len().checked_div(h).unwrap_or(0));
        let (of_a, rest) = sums.split_at_mut(a * a);
        let (of_g, squares) = rest.split_at_mut(h * h);
        let (turned, pack) = floats.split_at_mut(if self.bases.is_some() { TILE * (a + h) } else { 0 });
        gram(of_a, [a, count], Operand::terms(x, a), true, pack);
        gram(of_g, [h, count], Operand::terms(g, h), true, pack);
        if let Some([basis_a, basis_g]) = self.bases {
            let (tx, tg) = turned.split_at_mut(TILE * a);
            let (tx, tg) = (&mut tx[..count * a], &mut tg[..count * h]);
            multiply(tx, [count, a, a], Operand::sums(x, a), Operand::sums(basis_a, a), false, pack);
            multiply(tg, [count, h, h], Operand::sums(g, h), Operand::sums(basis_g, h), false, pack);
            tx.iter_mut().chain(tg.iter_mut()).for_each(|x| *x *= *x);
            multiply(squares, [h, a, count], Operand::terms(tg, h), Operand::terms(tx, a), true, pack);
        }
    }
    /// The sums of the rows `first .. end`.
    fn run(&self, first: usize, end: usize, sums: &mut [f32], floats: &mut [f32]) {
        let (a, h) = (self.p.inputs(), self.p.to.count);
        sums.fill(0.0);
        let (x, rest) = floats.split_at_mut(TILE * a);
        let (g, rest) = rest.split_at_mut(TILE * h);
        let mut held = 0;
        for b in first..end {
            let samples = if self.p.sharing == Sharing::Reduce { self.length(b).min(1) } else { self.length(b) };
            for t in 0..samples {
                self.sample(b, t, &mut x[held * a..(held + 1) * a], &mut g[held * h..(held + 1) * h], rest);
                held += 1;
                if held == TILE {
                    self.add(x, g, sums, rest);
                    held = 0;
                }
            }
        }
        if held > 0 {
            self.add(&x[..held * a], &g[..held * h], sums, rest);
        }
    }
}

impl Plan for CpuPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Forward).then_some(&self.signature)
    }
    fn config(&self) -> String {
        format!("{NAME} cpu: {} runs of {} rows over {} threads", self.runs, self.run, self.tasks)
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let (a, h) = (p.inputs(), p.to.count);
        let input = |i: usize| args.inputs[i].as_slice::<f32>();
        let rows = Rows {
            p,
            x: input(0)?,
            grad: input(1)?,
            lengths: args.inputs[2].as_slice()?,
            bases: if p.squares { Some([input(3)?, input(4)?]) } else { None },
        };
        // SAFETY: each region is carved once in this call.
        let (sums, floats) = unsafe {
            (self.layout.carve::<f32>(&args.scratch, self.sums)?, self.layout.carve::<f32>(&args.scratch, self.floats)?)
        };
        let (to, floats) = (Shared::new(&mut *sums), Shared::new(floats));
        for_each(self.tasks, |task| {
            // SAFETY: the part of this task.
            let floats = unsafe { floats.part(task * self.each, self.each) };
            for run in (task..self.runs).step_by(self.tasks) {
                // SAFETY: the sums of this run belong to this task.
                let sums = unsafe { to.part(run * self.sum, self.sum) };
                rows.run(run * self.run, p.batch.min((run + 1) * self.run), sums, floats);
            }
        });
        let (count, terms) = counts(p, (0..p.batch).map(|b| rows.length(b)));
        let sums: &[f32] = sums;
        let total = |e: usize| sums.iter().skip(e).step_by(self.sum.max(1)).sum::<f32>();
        let mut lists = Vec::with_capacity(3);
        for output in args.outputs.iter_mut() {
            lists.push(Shared::new(output.as_mut_slice::<f32>()?));
        }
        for_each(a + h, |task| {
            // A row of A, or one of G with its squares.
            let (list, n, r, first, scale) =
                if task < a { (0, a, task, 0, 1.0 / count) } else { (1, h, task - a, a * a, terms) };
            // SAFETY: this row belongs to this task.
            let row = unsafe { lists[list].part(packed(r), r + 1) };
            row.iter_mut().enumerate().for_each(|(c, to)| *to = total(first + r * n + c) * scale as f32);
            if p.squares && list == 1 {
                // SAFETY: as above.
                let row = unsafe { lists[2].part(r * a, a) };
                row.iter_mut().enumerate().for_each(|(c, to)| *to = total(a * a + h * h + r * a + c) * terms as f32);
            }
        });
        Ok(())
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Channels, LinearMap};

    /// Runs follow from the problem alone, and their sums stay within their bound.
    #[test]
    fn runs_are_bounded() {
        for (batch, steps, d) in [(0, 1, 3), (1, 1, 1), (1 << 16, 1, 8), (64, 4096, 1024), (1 << 20, 0, 3)] {
            let (from, to) = (Channels::beside(d), Channels::beside(d));
            let map = LinearMap { batch, steps, x: "x", grad: "g", weight: "w", bias: None, from, to };
            let plan = CpuPlan::new(Factors::new(&map).squares(true), &PlanOptions::default()).unwrap();
            assert!(plan.runs * plan.sum <= MOST_FLOATS.max(plan.sum) && plan.runs <= MOST_RUNS, "{}", plan.config());
            assert!(plan.runs * plan.run >= batch && plan.runs.saturating_sub(1) * plan.run <= batch);
        }
    }
}
