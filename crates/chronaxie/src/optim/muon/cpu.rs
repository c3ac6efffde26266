//! A step of Muon on the CPU: matrices over the pool's threads, the largest first, then the other parameters.
#![allow(unsafe_code)]

use super::spec::{Matrix, Muon, NAME, NORM_EPS, QUINTIC};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::matrix::{self, Operand, gram, mirror, multiply, packing_of};
use crate::optim::stepper::{self, Runs};
use crate::pool::{for_each, num_threads};
use crate::shared::Shared;
use crate::{Dtype, Error, Layout, Place, RegionId, Result};

pub(super) struct CpuPlan {
    problem: Muon,
    signature: Signature,
    layout: Layout,
    runs: Runs,
    partials: RegionId,
    floats: RegionId,
    /// By falling work.
    matrices: Vec<Matrix>,
    each: usize,
    tasks: usize,
}

/// Floats that one matrix takes.
fn floats(m: &Matrix) -> usize {
    let (side, long) = (m.side(), m.elements() / m.side());
    let pack = packing_of([side, side, long]).max(packing_of([side, long, side])).max(matrix::packing(side));
    2 * m.elements() + 2 * side * side + pack
}

impl CpuPlan {
    pub(super) fn new(problem: Muon, options: &PlanOptions) -> Result<Self> {
        let runs = Runs::new(problem.elements);
        let mut matrices = problem.matrices();
        matrices.sort_by_key(|m| std::cmp::Reverse(m.elements() * m.side()));
        let tasks = num_threads().min(matrices.len()).max(1);
        let each = matrices.iter().map(floats).max().unwrap_or(0);
        let mut layout = Layout::new(options.scratch_gap);
        let partials = layout.push("partials", Dtype::F64, runs.count)?;
        let floats = layout.push("floats", Dtype::F32, tasks * each)?;
        let signature = problem.signature_of(Pass::Step)?;
        Ok(Self { problem, signature, layout, runs, partials, floats, matrices, each, tasks })
    }
}

/// x `[rows, columns]`, rows at most columns, to roughly U V^T of U S V^T, in place.
fn orthogonal(x: &mut [f32], [rows, columns]: [usize; 2], steps: usize, rest: &mut [f32]) {
    let (y, rest) = rest.split_at_mut(rows * columns);
    let (g, rest) = rest.split_at_mut(rows * rows);
    let (square, pack) = rest.split_at_mut(rows * rows);
    let mut norm = 0.0;
    stepper::squares(x, &mut norm);
    let scale = (1.0 / (norm.sqrt() + NORM_EPS)) as f32;
    x.iter_mut().for_each(|x| *x *= scale);
    let [a, b, c] = QUINTIC.map(|q| q as f32);
    for _ in 0..steps {
        gram(g, [rows, columns], Operand { data: x, along: 1, across: columns }, false, pack);
        mirror(g, rows);
        matrix::product(square, g, g, rows, pack, false);
        g.iter_mut().zip(&*square).for_each(|(g, &s)| *g = b * *g + c * s);
        let (left, right) =
            (Operand { data: g, along: rows, across: 1 }, Operand { data: x, along: columns, across: 1 });
        multiply(y, [rows, columns, rows], left, right, false, pack);
        x.iter_mut().zip(&*y).for_each(|(x, &y)| *x = a * *x + y);
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
        (pass == Pass::Step).then_some(&self.signature)
    }
    fn config(&self) -> String {
        format!("{NAME} cpu: {} matrices over {} threads", self.matrices.len(), self.tasks)
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let grad: &[f32] = args.inputs[0].as_slice()?;
        let decay: &[f32] = args.inputs[1].as_slice()?;
        let rate = f64::from(args.inputs[2].as_slice::<f32>()?[0]);
        let [parameter, first, second, step, largest, grad_norm] = &mut *args.outputs else {
            return Err(Error::shape(format!("{NAME}: six tensors are written")));
        };
        let step = &mut step.as_mut_slice::<i32>()?[0];
        *step = step.saturating_add(1);
        let largest = &mut largest.as_mut_slice::<f32>()?[0];
        *largest = largest.max(rate as f32);
        // SAFETY: each region is carved once in this call.
        let (partials, floats) = unsafe {
            (
                self.layout.carve::<f64>(&args.scratch, self.partials)?,
                self.layout.carve::<f32>(&args.scratch, self.floats)?,
            )
        };
        let norm = stepper::norm(grad, self.runs, partials);
        grad_norm.as_mut_slice::<f32>()?[0] = norm as f32;
        let (scale, pull, momentum) = (p.common.scale(norm) as f32, p.common.pull() as f32, p.momentum as f32);
        let shrink = p.common.shrink(rate, f64::from(*largest)) as f32;
        let (parameter, first) =
            (Shared::new(parameter.as_mut_slice::<f32>()?), Shared::new(first.as_mut_slice::<f32>()?));
        let floats = Shared::new(floats);
        for_each(self.tasks, |task| {
            // SAFETY: the part of this task.
            let floats = unsafe { floats.part(task * self.each, self.each) };
            for m in self.matrices.iter().skip(task).step_by(self.tasks) {
                let n = m.elements();
                // SAFETY: the elements of this matrix belong to this task.
                let (w, v) = unsafe { (parameter.part(m.first, n), first.part(m.first, n)) };
                let (grad, decay) = (&grad[m.first..m.first + n], &decay[m.first..m.first + n]);
                let (x, rest) = floats.split_at_mut(n);
                let tall = m.rows > m.columns;
                // A matrix that is tall is made orthogonal lying down.
                let place = |e: usize| if tall { e % m.columns * m.rows + e / m.columns } else { e };
                for e in 0..n {
                    let g = grad[e] * scale + pull * decay[e] * w[e];
                    v[e] = momentum * v[e] + g;
                    x[place(e)] = if p.nesterov { g + momentum * v[e] } else { v[e] };
                }
                orthogonal(x, [m.side(), n / m.side()], p.steps, rest);
                let speed = (rate * m.speed()) as f32;
                for e in 0..n {
                    w[e] -= speed * x[place(e)] + w[e] * decay[e] * shrink;
                }
            }
        });
        let second = second.as_mut_slice::<f32>()?;
        let correction = |beta: f64| 1.0 / (1.0 - beta.powi(*step));
        let (c1, c2) = (correction(p.beta1) as f32, correction(p.beta2) as f32);
        let (b1, b2) = (p.beta1 as f32, p.beta2 as f32);
        let (rest1, rest2) = ((1.0 - p.beta1) as f32, (1.0 - p.beta2) as f32);
        let rate = rate * p.adamw_rate;
        let (rate, shrink, eps) = (rate as f32, (rate * p.common.weight_decay) as f32, p.epsilon as f32);
        for (start, count) in p.others() {
            // SAFETY: no task runs any more.
            let (w, m) = unsafe { (parameter.part(start, count), first.part(start, count)) };
            for e in 0..count {
                let n = start + e;
                let g = grad[n] * scale;
                m[e] = b1 * m[e] + rest1 * g;
                second[n] = b2 * second[n] + rest2 * (g * g);
                let update = m[e] * c1 / ((second[n] * c2).sqrt() + eps);
                w[e] -= rate * update + w[e] * decay[n] * shrink;
            }
        }
        Ok(())
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
