//! A step of Shampoo on the CPU: moments over runs of the vector, then blocks over the pool's threads, each from its factors to
//! its part of the parameters. Where there are fewer blocks than threads, all of them share the products of a root.
#![allow(unsafe_code)]

use super::spec::{Grafting, NAME, Shampoo};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::blocks::{Block, packed};
use crate::optim::inverse_root::{self, RECORD, Status};
use crate::optim::onblock;
use crate::optim::stepper::{self, Runs};
use crate::pool::{for_each, num_threads};
use crate::shared::Shared;
use crate::{Dtype, Error, Layout, Place, RegionId, Result};

pub(super) struct CpuPlan {
    problem: Shampoo,
    signature: Signature,
    layout: Layout,
    runs: Runs,
    partials: RegionId,
    grad: RegionId,
    floats: RegionId,
    /// Floats of a task, and tasks.
    each: usize,
    tasks: usize,
}

/// The numbers of one step that are the same for every element.
#[derive(Clone, Copy)]
struct Step {
    scale: f32,
    pull: f32,
    beta1: f32,
    rest1: f32,
    keep2: f32,
    new2: f32,
}

#[inline(always)]
fn moments_body(
    s: Step,
    grad: &[f32],
    decay: &[f32],
    parameter: &[f32],
    g: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    let n = grad.len();
    let (decay, parameter, g, first) = (&decay[..n], &parameter[..n], &mut g[..n], &mut first[..n]);
    for i in 0..n {
        g[i] = grad[i] * s.scale + s.pull * decay[i] * parameter[i];
        first[i] = s.beta1 * first[i] + s.rest1 * g[i];
    }
    for (v, g) in second.iter_mut().zip(&*g) {
        *v = s.keep2 * *v + s.new2 * (g * g);
    }
}
crate::dispatch!(
    /// The scaled gradient and the moments of one run.
    fn moments(s: Step, grad: &[f32], decay: &[f32], parameter: &[f32], g: &mut [f32], first: &mut [f32], second: &mut [f32]) = moments_body
);

impl CpuPlan {
    pub(super) fn new(problem: Shampoo, options: &PlanOptions) -> Result<Self> {
        let runs = Runs::new(problem.elements);
        let threads = num_threads();
        let tasks = if problem.grid.blocks.len() < threads { 1 } else { threads };
        let (n, elements) = (problem.grid.largest(), problem.grid.most_elements());
        // The gradient, two steps and the grafting's; a factor, its root and a root's own.
        let each = 4 * elements + 2 * n * n + inverse_root::floats(n) + onblock::packing(&problem.grid);
        let mut layout = Layout::new(options.scratch_gap);
        let partials = layout.push("partials", Dtype::F64, runs.count)?;
        let grad = layout.push("grad", Dtype::F32, problem.elements)?;
        let floats = layout.push("floats", Dtype::F32, tasks * each)?;
        let signature = problem.signature_of(Pass::Step)?;
        Ok(Self { problem, signature, layout, runs, partials, grad, floats, each, tasks })
    }
}

/// State and inputs of a step that blocks share.
struct Whole<'a> {
    p: &'a Shampoo,
    step: usize,
    rate: f64,
    shrink: f64,
    grad: &'a [f32],
    first: &'a [f32],
    second: &'a [f32],
    decay: &'a [f32],
    parameter: Shared<f32>,
    factors: Shared<f32>,
    roots: Shared<f32>,
}

impl Whole<'_> {
    /// The part of one block; its elements, factors and roots belong to the caller.
    fn block(&self, b: &Block, floats: &mut [f32], threads: bool) {
        let p = self.p;
        let n = b.elements();
        let (x, rest) = floats.split_at_mut(n);
        let (y, rest) = rest.split_at_mut(n);
        let (graft, rest) = rest.split_at_mut(n);
        let (v, rest) = rest.split_at_mut(n);
        let (c1, c2) = p.corrections(self.step);
        let started = self.step >= p.start_preconditioning_step;
        if !b.factors.is_empty() {
            onblock::gather(b, self.grad, x);
            self.factors(b, x, (1.0 / c2) as f32, started, rest, threads);
        }
        onblock::gather(b, self.first, x);
        let c1 = (1.0 / c1) as f32;
        x.iter_mut().for_each(|m| *m *= c1);
        if p.grafting.squares() {
            onblock::gather(b, self.second, v);
            let (scale, eps) = ((1.0 / p.second_correction(self.step)) as f32, p.grafting_eps as f32);
            for ((graft, &m), &v) in graft.iter_mut().zip(&*x).zip(&*v) {
                *graft = m / ((v * scale).sqrt() + eps);
            }
        } else {
            graft.copy_from_slice(x);
        }
        let update: &[f32] = if b.factors.is_empty() || !started {
            graft
        } else {
            let (mut x, mut y) = (x, y);
            for (axis, &root) in b.roots.iter().enumerate() {
                let size = b.sizes[axis];
                // SAFETY: the roots of this block belong to this task.
                let root = unsafe { self.roots.part(root, size * size) };
                onblock::along(b, axis, root, false, x, y, rest);
                std::mem::swap(&mut x, &mut y);
            }
            if p.grafting != Grafting::None {
                let norm = |x: &[f32]| {
                    let mut sum = 0.0;
                    stepper::squares(x, &mut sum);
                    sum.sqrt()
                };
                let scale = (norm(graft) / (norm(x) + 1e-16)) as f32;
                x.iter_mut().for_each(|x| *x *= scale);
            }
            x
        };
        // SAFETY: the elements of this block belong to this task.
        unsafe { onblock::apply(b, update, self.decay, self.rate, self.shrink, self.parameter) };
    }
    /// Moves the factors, and makes their roots where it is their turn.
    fn factors(&self, b: &Block, x: &[f32], scale: f32, started: bool, rest: &mut [f32], threads: bool) {
        let p = self.p;
        let (keep, weight) = p.weights();
        let made = started && (p.every_block || b.due(self.step, p.precondition_frequency));
        for (axis, &at) in b.factors.iter().enumerate() {
            let n = b.sizes[axis];
            let (square, rest) = rest.split_at_mut(n * n);
            let (root, rest) = rest.split_at_mut(n * n);
            // SAFETY: the factors and roots of this block belong to this task.
            let (factor, kept) = unsafe { (self.factors.part(at, packed(n)), self.roots.part(b.roots[axis], n * n)) };
            onblock::average(b, axis, x, factor, keep as f32, weight as f32, square, rest);
            if made {
                onblock::unpack(factor, n, scale, square);
                let mut record = [0f32; RECORD];
                let problem = p.roots(1, b.sizes.len(), n);
                inverse_root::one(&problem, square, root, &mut record, rest, threads);
                // What has no root keeps the one before.
                if record[0] != Status::Failed as i32 as f32 {
                    kept.copy_from_slice(root);
                }
            }
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
        (pass == Pass::Step).then_some(&self.signature)
    }
    fn config(&self) -> String {
        let threads = if self.tasks > 1 { "a block a thread" } else { "all threads on a root" };
        format!(
            "{NAME} cpu: {} blocks in {} pools, {threads}",
            self.problem.grid.blocks.len(),
            self.problem.grid.pools.len()
        )
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
        let [parameter, first, second, factors, roots, step, largest, grad_norm] = &mut *args.outputs else {
            return Err(Error::shape(format!("{NAME}: eight tensors are written")));
        };
        let step = &mut step.as_mut_slice::<i32>()?[0];
        *step = step.saturating_add(1);
        let largest = &mut largest.as_mut_slice::<f32>()?[0];
        *largest = largest.max(rate as f32);
        // SAFETY: each region is carved once in this call.
        let (partials, scaled, floats) = unsafe {
            (
                self.layout.carve::<f64>(&args.scratch, self.partials)?,
                self.layout.carve::<f32>(&args.scratch, self.grad)?,
                self.layout.carve::<f32>(&args.scratch, self.floats)?,
            )
        };
        let norm = stepper::norm(grad, self.runs, partials);
        grad_norm.as_mut_slice::<f32>()?[0] = norm as f32;
        let (keep2, new2) = p.second_weights();
        let s = Step {
            scale: p.common.scale(norm) as f32,
            pull: p.common.pull() as f32,
            beta1: p.beta1 as f32,
            rest1: (1.0 - p.beta1) as f32,
            keep2: keep2 as f32,
            new2: new2 as f32,
        };
        let parameter = Shared::new(parameter.as_mut_slice::<f32>()?);
        let (first, second) = (first.as_mut_slice::<f32>()?, second.as_mut_slice::<f32>()?);
        let squares = !second.is_empty();
        let (to, m, v) = (Shared::new(&mut *scaled), Shared::new(&mut *first), Shared::new(&mut *second));
        for_each(self.runs.count, |r| {
            let (start, len) = self.runs.at(r);
            let at = start..start + len;
            // SAFETY: run r of each vector belongs to this task.
            let (w, g, m, v) = unsafe {
                let v = if squares { v.part(start, len) } else { v.part(0, 0) };
                (parameter.part(start, len), to.part(start, len), m.part(start, len), v)
            };
            moments(s, &grad[at.clone()], &decay[at], w, g, m, v);
        });
        let whole = Whole {
            p,
            step: *step as usize,
            rate,
            shrink: p.common.shrink(rate, f64::from(*largest)),
            grad: scaled,
            first,
            second,
            decay,
            parameter,
            factors: Shared::new(factors.as_mut_slice()?),
            roots: Shared::new(roots.as_mut_slice()?),
        };
        let floats = Shared::new(floats);
        let work = |task: usize, threads: bool| {
            // SAFETY: the part of this task.
            let floats = unsafe { floats.part(task * self.each, self.each) };
            for b in p.grid.blocks.iter().skip(task).step_by(self.tasks) {
                whole.block(b, floats, threads);
            }
        };
        if self.tasks > 1 {
            for_each(self.tasks, |task| work(task, false));
        } else {
            work(0, true);
        }
        Ok(())
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
