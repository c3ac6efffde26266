//! What the backward pass does where the forward pass kept unfolds.

use super::backward::{BackwardCall, SHARERS};
use super::launch::{args, at, launch};
use super::on_device::pack;
use super::tune::THREADS;
use crate::cuda::{Arg, StreamRef};
use crate::op::Args;
use crate::{Result, View};

impl BackwardCall<'_> {
    /// What the chunk needs of the inputs: where unfolds were kept nothing but u, which the adjoint of the sensory gates reads.
    pub(super) fn sensory_sums(
        &self,
        x: &[View<'_>],
        base: u64,
        stream: StreamRef,
        t0: usize,
        steps: usize,
    ) -> Result<()> {
        let c = &self.traces.common;
        if self.g.stored.or(self.g.words).is_none() {
            return self.plan.sensory_sums(x, c, base, stream, t0, steps);
        }
        let u = c.layout.region(c.u).len > 0 && !c.u_late;
        if u { self.plan.make_inputs(x, c, base, stream, t0, steps) } else { Ok(()) }
    }

    /// From the sums of the recurrent synapses alone to their gradients.
    pub(super) fn close_recurrent(&self, args: &Args<'_, '_>, base: u64) -> Result<()> {
        let (Some(k), Some(grad)) = (&self.plan.held_backward, self.g.w) else { return Ok(()) };
        let (sums, t) = (k.of_sums(), self.traces);
        let side = self.close_side(args, base, sums, t.gate_sums, (self.plan.slots.w, grad));
        // The sums of the neurons are those of the clusters still.
        let neurons = t.common.layout.address(base, t.cluster_sums);
        let neurons: [u8; 72] = pack([neurons, 0, 0, 0, 0, 0, 0, 0, k.adjoint.clusters() as u64]);
        self.launch_close(args.stream, sums.summed().1 as u64, [&side, &[0; 96], &neurons, &[0; 56], &[0; 56]])
    }

    /// ltc_close of so many sums, of which each part says how many are its own.
    pub(super) fn launch_close(&self, stream: StreamRef, sums: u64, parts: [&[u8]; 5]) -> Result<()> {
        let [first, second, neurons, inputs, outputs] = parts.map(Arg::Bytes);
        let (hidden, constrained) = (Arg::I32(self.plan.p.hidden as i32), self.plan.constrained());
        launch(
            &self.k.close,
            stream,
            ((SHARERS * sums).div_ceil(256), 1),
            (THREADS, 1),
            0,
            args! { first, second, neurons, inputs, outputs, hidden, constrained },
        )
    }

    /// The trace of some steps from the words that were kept of them, if they were.
    pub(super) fn unpack(
        &self,
        x: &[View<'_>],
        base: u64,
        stream: StreamRef,
        (t0, steps): (usize, usize),
        together: usize,
    ) -> Result<()> {
        let (p, t) = (&self.plan.p, self.traces);
        let Some(words) = self.g.words else { return Ok(()) };
        let region = |id| Arg::U64(t.common.layout.address(base, id));
        launch(
            &self.k.unpack,
            stream,
            ((p.batch * steps * p.hidden).div_ceil(THREADS as usize) as u64, 1),
            (THREADS, 1),
            0,
            args! {
                at(x, Some(words)), region(t.v), region(t.alpha), Arg::I32(p.batch as i32), Arg::I32(p.hidden as i32),
                Arg::I32(p.unfolds as i32), Arg::I32(p.steps as i32), Arg::I32(t0 as i32), Arg::I32(steps as i32),
                Arg::I32(together as i32)
            },
        )
    }
}
