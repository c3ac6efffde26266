//! Launches of the head's kernels. Nothing shapes their registers, so one compilation serves every size and option.

#![allow(unsafe_code)]

use super::spec::{CHUNK, LinearHead, Loss, Pooling};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::{Dtype, Layout, Place, RegionId, Result};
use std::sync::Arc;

/// Threads a block of every kernel, as `kThreads`.
const THREADS: u32 = 256;
/// Blocks of the kernels that stride over their elements.
const MOST_BLOCKS: usize = 8192;
const ENTRIES: [&str; 8] =
    ["pool", "score", "mean_logits", "finish", "combine", "weight_partial", "weight_sum", "state_grad"];

pub(super) fn specialisations() -> Vec<Specialisation> {
    let source = KernelSource::embedded("train/head/cuda/head.cu", include_str!("head.cu"));
    vec![Specialisation::new(source, &ENTRIES)]
}

pub(super) struct CudaPlan {
    problem: LinearHead,
    device: Arc<CudaDevice>,
    kernels: [Kernel; ENTRIES.len()],
    forward: Signature,
    backward: Option<Signature>,
    forward_scratch: Layout,
    backward_scratch: Layout,
    /// `[B, S]`.
    losses: RegionId,
    /// `[B, S, C]`, with pooling every: the read-outs of each step.
    step_logits: RegionId,
    /// `[B, M]`, without a backward pass: the pooled states.
    pooled: RegionId,
    /// `[B, S, C]`.
    d: RegionId,
    /// `[chunks, C, M + 1]`.
    partial: RegionId,
}

/// What a pass launches: the kernel's position in [`ENTRIES`], the grid, the arguments.
type Visit<'a> = &'a mut dyn FnMut(usize, (usize, usize), &[Arg<'_>]) -> Result<()>;

/// Sizes as kernels take them; [`LinearHead::build`] has checked that they fit.
fn int(n: usize) -> Arg<'static> {
    Arg::I32(n as i32)
}

impl CudaPlan {
    pub(super) fn new(problem: LinearHead, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let LinearHead { batch, features, classes, pooling, backward, .. } = problem;
        let spec = &specialisations()[0];
        let kernels = ENTRIES.map(|e| device.kernel(spec, e));
        let kernels = kernels.into_iter().collect::<Result<Vec<_>>>()?;
        let every = pooling == Pooling::Every;
        let readouts = batch * problem.readouts();
        let mut forward_scratch = Layout::new(options.scratch_gap);
        let losses = forward_scratch.push("losses", Dtype::F32, readouts)?;
        let step_logits =
            forward_scratch.push("step_logits", Dtype::F32, if every { readouts * classes } else { 0 })?;
        let own = if backward || every { 0 } else { batch * features };
        let pooled = forward_scratch.push("pooled", Dtype::F32, own)?;
        let mut backward_scratch = Layout::new(options.scratch_gap);
        let d = backward_scratch.push("d", Dtype::F32, readouts * classes)?;
        let partial =
            backward_scratch.push("partial", Dtype::F32, (problem.chunks() * classes).saturating_mul(features + 1))?;
        Ok(Self {
            problem,
            device: device.clone(),
            kernels: kernels.try_into().map_err(|_| crate::Error::config("linear_head: a kernel is missing"))?,
            forward: problem.signature_of(Pass::Forward)?,
            backward: backward.then(|| problem.signature_of(Pass::Backward)).transpose()?,
            forward_scratch,
            backward_scratch,
            losses,
            step_logits,
            pooled,
            d,
            partial,
        })
    }

    /// The launches of the forward pass from the addresses of inputs, outputs and scratch.
    fn forward_launches(&self, inputs: &[u64], outputs: &[u64], scratch: u64, visit: Visit<'_>) -> Result<()> {
        let LinearHead { batch, steps, features, classes, pooling, backward, loss, .. } = self.problem;
        let readouts = self.problem.readouts();
        let at = |id| self.forward_scratch.address(scratch, id);
        let (h, lengths, weight, bias, target) = (inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]);
        let (loss_out, logits) = (outputs[0], outputs[1]);
        let delta = if backward { outputs[2] } else { 0 };
        let every = pooling == Pooling::Every;
        let (labels, values) = if loss == Loss::CrossEntropy { (target, 0) } else { (0, target) };
        let (states, y) = if every {
            (h, at(self.step_logits))
        } else {
            let pooled = if backward { outputs[3] } else { at(self.pooled) };
            let kind = pooling_code(pooling);
            let args = [Arg::U64(h), Arg::U64(lengths), Arg::U64(pooled), int(steps), int(features), int(kind)];
            visit(0, (batch, 1), &args)?;
            (pooled, logits)
        };
        let [states, lengths, weight, bias, labels, values, y, delta, losses, loss_out, logits] =
            [states, lengths, weight, bias, labels, values, y, delta, at(self.losses), loss_out, logits].map(Arg::U64);
        let kind = int(usize::from(loss == Loss::Mse));
        let (b, t, s, m, c) = (int(batch), int(steps), int(readouts), int(features), int(classes));
        visit(
            1,
            (batch * readouts, 1),
            &[states, lengths, weight, bias, labels, values, y, delta, losses, b, t, s, m, c, kind],
        )?;
        if every {
            visit(2, (batch, 1), &[y, lengths, logits, t, c])?;
        }
        visit(3, (1, 1), &[losses, lengths, loss_out, b, t, int(batch * readouts)])
    }

    /// The launches of the backward pass.
    fn backward_launches(&self, inputs: &[u64], outputs: &[u64], scratch: u64, visit: Visit<'_>) -> Result<()> {
        let LinearHead { batch, steps, features, classes, pooling, .. } = self.problem;
        let (readouts, chunks) = (self.problem.readouts(), self.problem.chunks());
        let every = pooling == Pooling::Every;
        let states = inputs[if every { 0 } else { 6 }];
        let rest = &inputs[if every { 6 } else { 7 }..];
        let (d, partial) =
            (self.backward_scratch.address(scratch, self.d), self.backward_scratch.address(scratch, self.partial));
        let [lengths, weight, delta, states, grad_loss, grad_logits, d, partial, grad_h, grad_weight, grad_bias] =
            [inputs[1], inputs[2], inputs[5], states, rest[0], rest[1], d, partial, outputs[0], outputs[1], outputs[2]]
                .map(Arg::U64);
        let count = batch * readouts;
        let (t, s, m, c, n) = (int(steps), int(readouts), int(features), int(classes), int(chunks));
        let blocks = |elements: usize| elements.div_ceil(THREADS as usize);
        let strided = |elements: usize| (blocks(elements).min(MOST_BLOCKS), 1);
        let parameters = blocks(classes * (features + 1));
        let logits = Arg::I64((count * classes) as i64);
        visit(4, strided(count * classes), &[delta, grad_loss, grad_logits, lengths, d, logits, t, s, c])?;
        visit(5, (parameters, chunks.min(MOST_BLOCKS)), &[d, states, lengths, partial, int(count), n, t, s, m, c])?;
        visit(6, (parameters, 1), &[partial, grad_weight, grad_bias, n, m, c])?;
        let elements = Arg::I64((count * features) as i64);
        visit(
            7,
            strided(count * features),
            &[d, weight, lengths, grad_h, elements, t, s, m, c, int(pooling_code(pooling))],
        )
    }

    /// Calls `visit` for each launch that has something to do.
    fn list(&self, pass: Pass, inputs: &[u64], outputs: &[u64], scratch: u64, visit: Visit<'_>) -> Result<()> {
        let mut some = |kernel, grid: (usize, usize), args: &[Arg<'_>]| {
            if grid.0 > 0 && grid.1 > 0 { visit(kernel, grid, args) } else { Ok(()) }
        };
        match pass {
            Pass::Forward => self.forward_launches(inputs, outputs, scratch, &mut some),
            _ => self.backward_launches(inputs, outputs, scratch, &mut some),
        }
    }
}

fn pooling_code(pooling: Pooling) -> usize {
    match pooling {
        Pooling::Last => 0,
        Pooling::Mean => 1,
        Pooling::Every => 2,
    }
}

/// Addresses of at most this many tensors lie on the stack of a call.
const MOST_TENSORS: usize = 9;

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        "linear_head"
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        match pass {
            Pass::Forward => Some(&self.forward),
            Pass::Backward => self.backward.as_ref(),
            _ => None,
        }
    }
    fn config(&self) -> String {
        format!("linear_head simt: {THREADS} threads a block, chunks of {CHUNK} read-outs")
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        if pass == Pass::Forward { &self.forward_scratch } else { &self.backward_scratch }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let (mut inputs, mut outputs) = ([0; MOST_TENSORS], [0; MOST_TENSORS]);
        inputs.iter_mut().zip(args.inputs).for_each(|(a, v)| *a = v.address());
        outputs.iter_mut().zip(&*args.outputs).for_each(|(a, v)| *a = v.address());
        self.list(pass, &inputs, &outputs, args.scratch.address(), &mut |kernel, grid, list| {
            let config = LaunchConfig::new((grid.0 as u32, grid.1 as u32, 1), (THREADS, 1, 1));
            // SAFETY: the arguments are those of the kernel's signature in head.cu; the views were checked against the
            // signature and the scratch holds the layout.
            unsafe { self.kernels[kernel].launch(args.stream, &config, list) }
        })
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let mut reports = Vec::new();
        if self.signature(pass).is_some() {
            let none = [0; MOST_TENSORS];
            self.list(pass, &none, &none, 0, &mut |kernel, grid, _| {
                let k = &self.kernels[kernel];
                reports.push(LaunchReport {
                    kernel: format!("train/head/cuda/head.cu {}", ENTRIES[kernel]),
                    launches: 1,
                    grid: (grid.0 as u32, grid.1 as u32, 1),
                    block: (THREADS, 1, 1),
                    registers: k.registers(),
                    local_bytes: k.local_bytes(),
                    shared_bytes: k.shared_bytes(),
                    blocks_per_sm: k.max_active_blocks(THREADS, 0)?,
                });
                Ok(())
            })?;
        }
        Ok(reports)
    }
}
