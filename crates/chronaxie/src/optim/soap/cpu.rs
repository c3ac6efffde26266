//! A step of SOAP on the CPU: the first moment over runs of the vector, then blocks over the pool's threads.
#![allow(unsafe_code)]

use super::basis;
use super::spec::{NAME, NOISE, Soap};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::blocks::{Block, packed};
use crate::optim::onblock;
use crate::optim::stepper::{self, Runs};
use crate::pool::{for_each, num_threads};
use crate::shared::Shared;
use crate::{Dtype, Error, Layout, Place, RegionId, Result};

pub(super) struct CpuPlan {
    problem: Soap,
    signature: Signature,
    layout: Layout,
    runs: Runs,
    partials: RegionId,
    grad: RegionId,
    floats: RegionId,
    each: usize,
    tasks: usize,
}

impl CpuPlan {
    pub(super) fn new(problem: Soap, options: &PlanOptions) -> Result<Self> {
        let runs = Runs::new(problem.elements);
        let tasks = num_threads().min(problem.grid.blocks.len()).max(1);
        let (n, elements) = (problem.grid.largest(), problem.grid.most_elements());
        let each = 3 * elements + n * n + onblock::packing(&problem.grid);
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
    p: &'a Soap,
    step: usize,
    rate: f64,
    shrink: f64,
    grad: &'a [f32],
    first: &'a [f32],
    decay: &'a [f32],
    parameter: Shared<f32>,
    second: Shared<f32>,
    factors: Shared<f32>,
    bases: Shared<f32>,
}

impl Whole<'_> {
    /// The part of one block; its elements, factors and bases belong to the caller.
    fn block(&self, b: &Block, floats: &mut [f32]) {
        let p = self.p;
        let n = b.elements();
        let (mut x, rest) = floats.split_at_mut(n);
        let (mut m, rest) = rest.split_at_mut(n);
        let (mut spare, rest) = rest.split_at_mut(n);
        let based = !b.factors.is_empty();
        let (c1, c2) = p.corrections(self.step, based);
        onblock::gather(b, self.grad, x);
        onblock::gather(b, self.first, m);
        let scale = (1.0 / c1) as f32;
        m.iter_mut().for_each(|m| *m *= scale);
        let keep = p.keep();
        for (axis, &at) in b.factors.iter().enumerate() {
            let size = b.sizes[axis];
            let (square, rest) = rest.split_at_mut(size * size);
            // SAFETY: the factors and bases of this block belong to this task.
            let (factor, basis) =
                unsafe { (self.factors.part(at, packed(size)), self.bases.part(b.roots[axis], size * size)) };
            onblock::average(b, axis, x, factor, keep as f32, (1.0 - keep) as f32, square, rest);
            if p.opens {
                onblock::unpack(factor, size, 1.0, square);
                basis::first(square, size, basis);
            }
        }
        if based && p.opens {
            let (share, eps) = (p.share() as f32, p.epsilon as f32);
            m.iter_mut().zip(&*x).for_each(|(m, x)| *m /= x.abs() * share + eps);
        } else {
            // SAFETY: the bases of this block belong to this task.
            let basis = |axis: usize| unsafe { self.bases.part(b.roots[axis], b.sizes[axis] * b.sizes[axis]) };
            for axis in 0..b.roots.len() {
                onblock::along(b, axis, basis(axis), true, x, spare, rest);
                std::mem::swap(&mut x, &mut spare);
                onblock::along(b, axis, basis(axis), true, m, spare, rest);
                std::mem::swap(&mut m, &mut spare);
            }
            let (b2, new) = (p.beta2 as f32, (1.0 - p.beta2) as f32);
            let width = b.width();
            b.rows(|at, there| {
                // SAFETY: the elements of this block belong to this task.
                let second = unsafe { self.second.part(there, width) };
                for (v, x) in second.iter_mut().zip(&mut x[at..at + width]) {
                    *v = b2 * *v + new * (*x * *x);
                    *x = *v;
                }
            });
            let correction = (1.0 / c2) as f32;
            x.iter_mut().for_each(|v| *v = (*v * correction).sqrt());
            let most = x.iter().fold(0f32, |a, &b| a.max(b));
            let eps = p.epsilon as f32 + if based { NOISE as f32 * most } else { 0.0 };
            m.iter_mut().zip(&*x).for_each(|(m, r)| *m /= r + eps);
            for axis in 0..b.roots.len() {
                onblock::along(b, axis, basis(axis), false, m, spare, rest);
                std::mem::swap(&mut m, &mut spare);
            }
            if based && b.due(self.step, p.precondition_frequency) {
                for (axis, &at) in b.factors.iter().enumerate() {
                    let size = b.sizes[axis];
                    let square = &mut rest[..size * size];
                    // SAFETY: the factors of this block belong to this task.
                    onblock::unpack(unsafe { self.factors.part(at, packed(size)) }, size, 1.0, square);
                    basis::next(square, size, basis(axis));
                }
            }
        }
        // SAFETY: the elements of this block belong to this task.
        unsafe { onblock::apply(b, m, self.decay, self.rate, self.shrink, self.parameter) };
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
        format!("{NAME} cpu: {} blocks over {} threads", self.problem.grid.blocks.len(), self.tasks)
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
        let [parameter, first, second, factors, bases, step, largest, grad_norm] = &mut *args.outputs else {
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
        let (scale, pull) = (p.common.scale(norm) as f32, p.common.pull() as f32);
        let (b1, rest1) = (p.beta1 as f32, (1.0 - p.beta1) as f32);
        let parameter = Shared::new(parameter.as_mut_slice::<f32>()?);
        let first = first.as_mut_slice::<f32>()?;
        let (to, m) = (Shared::new(&mut *scaled), Shared::new(&mut *first));
        for_each(self.runs.count, |r| {
            let (start, len) = self.runs.at(r);
            // SAFETY: run r of each vector belongs to this task.
            let (w, g, m) = unsafe { (parameter.part(start, len), to.part(start, len), m.part(start, len)) };
            for i in 0..len {
                g[i] = grad[start + i] * scale + pull * decay[start + i] * w[i];
                m[i] = b1 * m[i] + rest1 * g[i];
            }
        });
        let whole = Whole {
            p,
            step: *step as usize,
            rate,
            shrink: p.common.shrink(rate, f64::from(*largest)),
            grad: scaled,
            first,
            decay,
            parameter,
            second: Shared::new(second.as_mut_slice()?),
            factors: Shared::new(factors.as_mut_slice()?),
            bases: Shared::new(bases.as_mut_slice()?),
        };
        let floats = Shared::new(floats);
        for_each(self.tasks, |task| {
            // SAFETY: the part of this task.
            let floats = unsafe { floats.part(task * self.each, self.each) };
            p.grid.blocks.iter().skip(task).step_by(self.tasks).for_each(|b| whole.block(b, floats));
        });
        Ok(())
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
