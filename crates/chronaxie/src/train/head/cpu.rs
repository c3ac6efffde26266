//! The head on the CPU: rows, then classes, over the pool's threads. Every sum is in one order, for any number of threads.

#![allow(unsafe_code)]

use super::spec::{CHUNK, LinearHead, Loss, Pooling};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::pool::for_each;
use crate::shared::Shared;
use crate::{Dtype, Error, Layout, Place, RegionId, Result, View, ViewMut};

/// Partial sums of a dot product, added in one order at the end; enough for any vector width.
const LANES: usize = 16;

pub(super) struct CpuPlan {
    problem: LinearHead,
    forward: Signature,
    backward: Option<Signature>,
    forward_scratch: Layout,
    backward_scratch: Layout,
    row_loss: RegionId,
    partial: RegionId,
}

fn shared(view: &mut ViewMut<'_>) -> Result<Shared<f32>> {
    Ok(Shared::new(view.as_mut_slice()?))
}

#[inline(always)]
fn dot_body(a: &[f32], b: &[f32], out: &mut f32) {
    let mut lanes = [0f32; LANES];
    let (mut ca, mut cb) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (x, y) in (&mut ca).zip(&mut cb) {
        for i in 0..LANES {
            lanes[i] = x[i].mul_add(y[i], lanes[i]);
        }
    }
    for (i, (x, y)) in ca.remainder().iter().zip(cb.remainder()).enumerate() {
        lanes[i] = x.mul_add(*y, lanes[i]);
    }
    *out = lanes.iter().sum();
}

#[inline(always)]
fn axpy_body(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = x.mul_add(a, *y);
    }
}

crate::dispatch!(
    /// `out = sum_i a[i] b[i]`.
    fn dot(a: &[f32], b: &[f32], out: &mut f32) = dot_body
);
crate::dispatch!(
    /// `y[i] += a x[i]`.
    fn axpy(a: f32, x: &[f32], y: &mut [f32]) = axpy_body
);

impl CpuPlan {
    pub(super) fn new(problem: LinearHead, options: &PlanOptions) -> Result<Self> {
        let mut forward_scratch = Layout::new(options.scratch_gap);
        let row_loss = forward_scratch.push("row_loss", Dtype::F32, problem.batch)?;
        let mut backward_scratch = Layout::new(options.scratch_gap);
        let partial = backward_scratch.push("partial", Dtype::F32, problem.classes * (problem.features + 1))?;
        Ok(Self {
            problem,
            forward: problem.signature_of(Pass::Forward)?,
            backward: problem.backward.then(|| problem.signature_of(Pass::Backward)).transpose()?,
            forward_scratch,
            backward_scratch,
            row_loss,
            partial,
        })
    }

    fn valid(&self, lengths: &[i32], b: usize) -> usize {
        usize::try_from(lengths[b]).unwrap_or(0).min(self.problem.steps)
    }

    fn run_forward(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let LinearHead { batch, steps, features, classes, pooling, backward, .. } = self.problem;
        let h: &[f32] = args.inputs[0].as_slice()?;
        let lengths: &[i32] = args.inputs[1].as_slice()?;
        let (weight, bias): (&[f32], &[f32]) = (args.inputs[2].as_slice()?, args.inputs[3].as_slice()?);
        let target = Target::new(&args.inputs[4], self.problem.loss, classes)?;
        let valid_rows = (0..batch).filter(|&b| self.valid(lengths, b) > 0).count().max(1);
        // SAFETY: the region is carved once in this call.
        let row_loss: &mut [f32] = unsafe { self.forward_scratch.carve(&args.scratch, self.row_loss)? };
        let row_loss_at = Shared::new(row_loss);
        let readouts = self.problem.readouts();
        let (_, rest) = args.outputs.split_at_mut(1);
        let logits = shared(&mut rest[0])?;
        let delta = if backward { Some(shared(&mut rest[1])?) } else { None };
        let pooled = if backward && pooling != Pooling::Every { Some(shared(&mut rest[2])?) } else { None };
        for_each(batch, |b| {
            let len = self.valid(lengths, b);
            let state = |t: usize| &h[(b * steps + t) * features..][..features];
            // SAFETY: row b of each tensor belongs to this task.
            let (y, loss) = unsafe { (logits.part(b * classes, classes), row_loss_at.part(b, 1)) };
            // SAFETY: as above.
            let mut d = delta.as_ref().map(|d| unsafe { d.part(b * readouts * classes, readouts * classes) });
            // SAFETY: as above.
            let p = pooled.as_ref().map(|p| unsafe { p.part(b * features, features) });
            y.fill(0.0);
            loss[0] = 0.0;
            if let Some(d) = d.as_deref_mut() {
                d.fill(0.0);
            }
            let mut own = vec![0f32; if p.is_none() && pooling != Pooling::Every { features } else { 0 }];
            let f: &mut [f32] = p.unwrap_or(&mut own);
            f.fill(0.0);
            if len == 0 {
                return;
            }
            let affine = |x: &[f32], y: &mut [f32]| {
                for (c, y) in y.iter_mut().enumerate() {
                    dot(&weight[c * features..][..features], x, y);
                    *y += bias[c];
                }
            };
            match pooling {
                Pooling::Last => f.copy_from_slice(state(len - 1)),
                Pooling::Mean => {
                    (0..len).for_each(|t| axpy(1.0, state(t), f));
                    f.iter_mut().for_each(|x| *x /= len as f32);
                }
                Pooling::Every => {
                    let weight_of_step = 1.0 / (len * valid_rows) as f32;
                    let mut own = vec![0f32; 2 * classes];
                    let (step, step_d) = own.split_at_mut(classes);
                    for t in 0..len {
                        affine(state(t), step);
                        loss[0] += target.loss(b, step, step_d, weight_of_step);
                        axpy(1.0, step, y);
                        if let Some(d) = d.as_deref_mut() {
                            d[t * classes..][..classes].copy_from_slice(step_d);
                        }
                    }
                    y.iter_mut().for_each(|y| *y /= len as f32);
                    loss[0] /= len as f32;
                    return;
                }
            }
            affine(f, y);
            let mut own = vec![0f32; if d.is_some() { 0 } else { classes }];
            loss[0] = target.loss(b, y, d.unwrap_or(&mut own), 1.0 / valid_rows as f32);
        });
        let total: f32 = row_loss.chunks(CHUNK).map(|rows| rows.iter().sum::<f32>()).sum();
        args.outputs[0].as_mut_slice::<f32>()?[0] = total / valid_rows as f32;
        Ok(())
    }

    fn run_backward(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let LinearHead { batch, steps, features, classes, pooling, .. } = self.problem;
        let h: &[f32] = args.inputs[0].as_slice()?;
        let lengths: &[i32] = args.inputs[1].as_slice()?;
        let weight: &[f32] = args.inputs[2].as_slice()?;
        let delta: &[f32] = args.inputs[5].as_slice()?;
        let every = pooling == Pooling::Every;
        let pooled: &[f32] = if every { &[] } else { args.inputs[6].as_slice()? };
        let rest = &args.inputs[if every { 6 } else { 7 }..];
        let (grad_loss, grad_logits) = (rest[0].as_slice::<f32>()?[0], rest[1].as_slice::<f32>()?);
        let readouts = self.problem.readouts();
        // The gradient of read-out (b, s) with respect to class c.
        let total = |b: usize, s: usize, c: usize, len: usize| {
            let direct = grad_logits[b * classes + c];
            let direct = if every { direct / len as f32 } else { direct };
            grad_loss.mul_add(delta[(b * readouts + s) * classes + c], direct)
        };
        // SAFETY: the region is carved once in this call.
        let partial: &mut [f32] = unsafe { self.backward_scratch.carve(&args.scratch, self.partial)? };
        let partial = Shared::new(partial);
        let [grad_h, grad_weight, grad_bias] = args.outputs else {
            return Err(Error::shape("linear_head: three gradients are written"));
        };
        let (grad_h, grad_weight, grad_bias) = (shared(grad_h)?, shared(grad_weight)?, shared(grad_bias)?);
        for_each(batch, |b| {
            // SAFETY: row b belongs to this task.
            let g = unsafe { grad_h.part(b * steps * features, steps * features) };
            g.fill(0.0);
            let len = self.valid(lengths, b);
            let mut back = |t: usize, s: usize| {
                for c in 0..classes {
                    axpy(total(b, s, c, len), &weight[c * features..][..features], &mut g[t * features..][..features]);
                }
            };
            match pooling {
                _ if len == 0 => {}
                Pooling::Last => back(len - 1, 0),
                Pooling::Every => (0..len).for_each(|t| back(t, t)),
                Pooling::Mean => {
                    back(0, 0);
                    let (first, later) = g.split_at_mut(features);
                    first.iter_mut().for_each(|x| *x /= len as f32);
                    later[..(len - 1) * features]
                        .chunks_exact_mut(features.max(1))
                        .for_each(|r| r.copy_from_slice(first));
                }
            }
        });
        for_each(classes, |c| {
            // SAFETY: class c belongs to this task.
            let (gw, gb) = unsafe { (grad_weight.part(c * features, features), grad_bias.part(c, 1)) };
            // SAFETY: as above.
            let sums = unsafe { partial.part(c * (features + 1), features + 1) };
            let (pw, pb) = sums.split_at_mut(features);
            [&mut *gw, &mut *gb, &mut *pw, &mut *pb].into_iter().for_each(|g| g.fill(0.0));
            // One long sum loses what many short ones keep: the error goes with the square root of its length.
            let mut add_chunk = |pw: &mut [f32], pb: &mut [f32]| {
                axpy(1.0, pw, gw);
                gb[0] += pb[0];
                pw.fill(0.0);
                pb[0] = 0.0;
            };
            let mut n = 0;
            for b in 0..batch {
                let len = self.valid(lengths, b);
                for s in 0..if every { len } else { len.min(1) } {
                    let d = total(b, s, c, len);
                    let f = if every { &h[(b * steps + s) * features..] } else { &pooled[b * features..] };
                    axpy(d, &f[..features], pw);
                    pb[0] += d;
                    n += 1;
                    if n % CHUNK == 0 {
                        add_chunk(pw, pb);
                    }
                }
            }
            add_chunk(pw, pb);
        });
        Ok(())
    }
}

/// What a row is held against.
enum Target<'a> {
    Labels(&'a [i32]),
    Values(&'a [f32]),
}

impl<'a> Target<'a> {
    fn new(view: &View<'a>, loss: Loss, classes: usize) -> Result<Self> {
        match loss {
            Loss::Mse => Ok(Self::Values(view.as_slice()?)),
            Loss::CrossEntropy => {
                let labels = view.as_slice()?;
                super::check_labels(labels, classes)?;
                Ok(Self::Labels(labels))
            }
        }
    }
    /// The loss of one read-out `y` of row `b`, and `weight` times its gradient in `d`.
    fn loss(&self, b: usize, y: &[f32], d: &mut [f32], weight: f32) -> f32 {
        match self {
            Self::Labels(labels) => {
                let label = labels[b] as usize;
                let max = y.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
                let mut sum = 0.0;
                for (d, y) in d.iter_mut().zip(y) {
                    *d = (y - max).exp();
                    sum += *d;
                }
                let scale = weight / sum;
                for (c, d) in d.iter_mut().enumerate() {
                    *d = *d * scale - if c == label { weight } else { 0.0 };
                }
                sum.ln() + (max - y[label])
            }
            Self::Values(values) => {
                let classes = y.len();
                let mut sum = 0.0;
                for ((d, y), v) in d.iter_mut().zip(y).zip(&values[b * classes..]) {
                    let e = y - v;
                    *d = 2.0 * weight / classes as f32 * e;
                    sum += e * e;
                }
                sum / classes as f32
            }
        }
    }
}

impl Plan for CpuPlan {
    fn entry(&self) -> &'static str {
        "linear_head"
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        match pass {
            Pass::Forward => Some(&self.forward),
            Pass::Backward => self.backward.as_ref(),
            _ => None,
        }
    }
    fn config(&self) -> String {
        format!("linear_head cpu: rows, then classes, over threads; {LANES} lanes a dot product")
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        if pass == Pass::Forward { &self.forward_scratch } else { &self.backward_scratch }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        match pass {
            Pass::Forward => self.run_forward(args),
            _ => self.run_backward(args),
        }
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
