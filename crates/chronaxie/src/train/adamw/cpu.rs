//! The optimizer step on the CPU: runs of the vector over the pool's threads.

#![allow(unsafe_code)]

use super::spec::AdamW;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::pool::for_each;
use crate::shared::Shared;
use crate::{Dtype, Error, Layout, Place, RegionId, Result};

const LANES: usize = 8;

pub(super) struct CpuPlan {
    problem: AdamW,
    signature: Signature,
    layout: Layout,
    partials: RegionId,
}

/// The numbers of one step that are the same for every element.
#[derive(Clone, Copy)]
struct Step {
    scale: f32,
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    /// rate / (1 - beta1^t).
    rate: f32,
    /// 1 / (1 - beta2^t).
    correction2: f32,
    epsilon: f32,
    shrink: f32,
}

/// Squares are summed in f64: a run of any length and any gradient of f32 gives a norm without overflow.
#[inline(always)]
fn squares_body(g: &[f32], out: &mut f64) {
    let mut lanes = [0f64; LANES];
    let mut chunks = g.chunks_exact(LANES);
    for c in &mut chunks {
        for i in 0..LANES {
            let x = f64::from(c[i]);
            lanes[i] += x * x;
        }
    }
    for (i, &x) in chunks.remainder().iter().enumerate() {
        lanes[i] += f64::from(x) * f64::from(x);
    }
    *out = lanes.iter().sum();
}

#[inline(always)]
fn update_body(s: Step, grad: &[f32], decay: &[f32], parameter: &mut [f32], first: &mut [f32], second: &mut [f32]) {
    let n = grad.len();
    let (decay, parameter, first, second) = (&decay[..n], &mut parameter[..n], &mut first[..n], &mut second[..n]);
    for i in 0..n {
        let g = grad[i] * s.scale;
        first[i] = s.beta1 * first[i] + s.rest1 * g;
        second[i] = s.beta2 * second[i] + s.rest2 * (g * g);
        let denominator = (second[i] * s.correction2).sqrt() + s.epsilon;
        parameter[i] = parameter[i] * (1.0 - s.shrink * decay[i]) - s.rate * first[i] / denominator;
    }
}

crate::dispatch!(
    /// The sum of squares.
    fn squares(g: &[f32], out: &mut f64) = squares_body
);
crate::dispatch!(
    /// The step of one run.
    fn update(s: Step, grad: &[f32], decay: &[f32], parameter: &mut [f32], first: &mut [f32], second: &mut [f32]) = update_body
);

impl CpuPlan {
    pub(super) fn new(problem: AdamW, options: &PlanOptions) -> Result<Self> {
        let mut layout = Layout::new(options.scratch_gap);
        let partials = layout.push("partials", Dtype::F64, problem.runs())?;
        Ok(Self { problem, signature: problem.signature_of(Pass::Step)?, layout, partials })
    }
}

impl Plan for CpuPlan {
    fn entry(&self) -> &'static str {
        "adamw"
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Step).then_some(&self.signature)
    }
    fn config(&self) -> String {
        format!("adamw cpu: runs of {} elements over threads", self.problem.run())
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = self.problem;
        let grad: &[f32] = args.inputs[0].as_slice()?;
        let decay: &[f32] = args.inputs[1].as_slice()?;
        let rate = f64::from(args.inputs[2].as_slice::<f32>()?[0]);
        let [parameter, first, second, step, grad_norm] = &mut *args.outputs else {
            return Err(Error::shape("adamw: five tensors are written"));
        };
        let step = &mut step.as_mut_slice::<i32>()?[0];
        *step = step.saturating_add(1);
        // SAFETY: the region is carved once in this call.
        let partials: &mut [f64] = unsafe { self.layout.carve(&args.scratch, self.partials)? };
        let at = Shared::new(partials);
        let run = |r: usize| (r * p.run(), p.run().min(p.elements - r * p.run()));
        for_each(p.runs(), |r| {
            let (start, len) = run(r);
            // SAFETY: partial r belongs to this task.
            squares(&grad[start..start + len], unsafe { &mut at.part(r, 1)[0] });
        });
        let norm = partials.iter().sum::<f64>().sqrt();
        grad_norm.as_mut_slice::<f32>()?[0] = norm as f32;
        let correction = |beta: f64| 1.0 - beta.powi(*step);
        let s = Step {
            scale: if p.clip > 0.0 && norm > p.clip { (p.clip / norm) as f32 } else { 1.0 },
            beta1: p.beta1 as f32,
            beta2: p.beta2 as f32,
            rest1: (1.0 - p.beta1) as f32,
            rest2: (1.0 - p.beta2) as f32,
            rate: (rate / correction(p.beta1)) as f32,
            correction2: (1.0 / correction(p.beta2)) as f32,
            epsilon: p.epsilon as f32,
            shrink: (rate * p.weight_decay) as f32,
        };
        let (parameter, first, second) = (
            Shared::new(parameter.as_mut_slice::<f32>()?),
            Shared::new(first.as_mut_slice()?),
            Shared::new(second.as_mut_slice()?),
        );
        for_each(p.runs(), |r| {
            let (start, len) = run(r);
            // SAFETY: run r of each vector belongs to this task.
            let (q, m, v) = unsafe { (parameter.part(start, len), first.part(start, len), second.part(start, len)) };
            update(s, &grad[start..start + len], &decay[start..start + len], q, m, v);
        });
        Ok(())
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
