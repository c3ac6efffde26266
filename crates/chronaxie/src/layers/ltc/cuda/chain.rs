//! Launches of the adjoint of one row with the shortest chain, and of the sums that it leaves.

use super::backward::BackwardCall;
use super::held_backward::HeldBackward;
use super::launch::{NULL, args, at, launch, launch_as, out, stride};
use super::tune::THREADS;
use crate::cuda::Arg;
use crate::op::Args;
use crate::{RegionId, Result};

/// A chunk of steps of the backward pass: where its trace and gradients lie.
pub(super) struct Chunk {
    pub(super) v: Arg<'static>,
    pub(super) den: Arg<'static>,
    pub(super) trace_b: usize,
    /// dL/d(state after the chunk), and its strides.
    pub(super) end: [Arg<'static>; 3],
    /// dL/d(state before it).
    pub(super) start: Arg<'static>,
    pub(super) changes: Arg<'static>,
    pub(super) t0: usize,
    pub(super) steps: usize,
}

impl BackwardCall<'_> {
    /// Where what is kept of each neuron and step from `t0` on begins in a region of 8 bytes each, and the steps that it has.
    pub(super) fn of_steps(&self, base: u64, id: RegionId, t0: usize, steps: usize) -> (Arg<'static>, usize) {
        let (p, t) = (&self.plan.p, self.traces);
        let first = t.common.layout.address(base, id);
        if t.together { (Arg::U64(first + (8 * t0 * p.hidden) as u64), p.steps) } else { (Arg::U64(first), steps) }
    }

    /// The adjoint over a chunk, and what is summed of each synapse.
    pub(super) fn chain(&self, k: &HeldBackward, args: &Args<'_, '_>, base: u64, c: &Chunk) -> Result<()> {
        let (p, x, plan, t, s, g) = (&self.plan.p, args.inputs, self.plan, self.traces, &self.plan.slots, self.g);
        let region = |id| Arg::U64(t.common.layout.address(base, id));
        let (step_sums, sums_steps) = self.of_steps(base, t.step_sums, c.t0, c.steps);
        let [e0, e1, e2, e3] = plan.elapsed_args(x);
        let [n0, n1, n2] = c.end;
        let first = Arg::I32(i32::from(c.t0 + c.steps == p.steps));
        // Where the sums are made of a trace of alpha afterwards, that.
        let left = if k.sums.is_some() { region(t.alpha) } else { region(t.gate_sums) };
        launch_as(
            &k.adjoint.kernel,
            args.stream,
            &k.adjoint.launch,
            args! {
                Arg::Bytes(&k.adjoint.schedule.bytes(t.common.layout.address(base, t.adjoint_folded))),
                at(x, Some(s.gleak + 2)), at(x, Some(g.states)), e0, e1, e2, e3, at(x, Some(g.grad_out)),
                stride(x, Some(g.grad_out), 0), stride(x, Some(g.grad_out), 1), stride(x, Some(g.grad_out), 2),
                at(x, s.output_w), n0, n1, n2, c.start, c.v, c.den, Arg::I64(c.trace_b as i64), left,
                step_sums, c.changes, region(t.cluster_sums), Arg::I32(p.batch as i32), Arg::I32(p.hidden as i32),
                Arg::I32(p.outputs as i32), Arg::I32(p.unfolds as i32), Arg::I32(p.steps as i32), Arg::I32(c.t0 as i32),
                Arg::I32(c.steps as i32), Arg::I32(sums_steps as i32), Arg::I32(k.adjoint.used as i32), first,
                plan.constrained()
            },
        )?;
        let Some(sums) = k.sums.as_ref().filter(|_| c.steps > 0) else { return Ok(()) };
        launch_as(
            &sums.kernel,
            args.stream,
            &sums.launch,
            args! {
                Arg::Bytes(&sums.schedule.bytes(t.common.layout.address(base, t.sums_folded))), c.v,
                Arg::I64(c.trace_b as i64), region(t.alpha), at(x, Some(g.states)), region(t.gate_sums),
                if c.t0 == 0 { region(t.cluster_sums) } else { NULL }, region(t.neurons),
                Arg::I32(k.adjoint.clusters() as i32), Arg::I32(p.batch as i32), Arg::I32(p.hidden as i32),
                Arg::I32(p.unfolds as i32), Arg::I32(p.steps as i32), Arg::I32(c.t0 as i32), Arg::I32(c.steps as i32),
                Arg::I32(sums.held.blocks as i32), first
            },
        )
    }

    /// dL/d elapsed of some steps, if it is asked for.
    pub(super) fn close_elapsed(
        &self,
        k: &HeldBackward,
        args: &mut Args<'_, '_>,
        changes: Arg<'static>,
        t0: usize,
        steps: usize,
    ) -> Result<()> {
        let (p, x, plan, s) = (&self.plan.p, args.inputs, self.plan, &self.plan.slots);
        let Some(e) = self.g.elapsed else { return Ok(()) };
        let rows = (p.batch * steps) as u64;
        launch(
            &k.close_elapsed,
            args.stream,
            (rows.div_ceil(8), 1),
            (THREADS, 1),
            0,
            args! {
                changes, at(x, Some(s.gleak + 2)), at(x, s.elapsed), stride(x, s.elapsed, 0), stride(x, s.elapsed, 1),
                out(args.outputs, Some(e)), Arg::I64(rows as i64), Arg::I32(p.hidden as i32),
                Arg::I32(p.unfolds as i32), Arg::I64(p.steps as i64), Arg::I64(t0 as i64), Arg::I64(steps as i64),
                plan.constrained()
            },
        )
    }
}
