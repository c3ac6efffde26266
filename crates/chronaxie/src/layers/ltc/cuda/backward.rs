//! The backward pass: chunks of steps, last first.

use super::GradSlots;
use super::chain::Chunk;
use super::held::{HeldKernel, Rebuild};
use super::held_backward::HeldBackward;
use super::launch::{Backward, CudaPlan, NULL, Traces, args, at, launch, launch_as, out, stride};
use super::on_device::pack;
use super::tune::{self, THREADS};
use crate::cuda::{Arg, StreamRef, fill_bytes};
use crate::layers::ltc::spec::NORM_EPSILON;
use crate::op::Args;
use crate::{RegionId, Result, View, ViewMut};

/// Lanes for each sum of ltc_close (kSharers there).
pub(super) const SHARERS: u64 = 4;

/// One backward call: what its steps share.
pub(super) struct BackwardCall<'a> {
    pub(super) plan: &'a CudaPlan,
    pub(super) k: &'a Backward,
    pub(super) traces: &'a Traces,
    pub(super) g: &'a GradSlots,
}

impl BackwardCall<'_> {
    pub(super) fn run(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let (p, stream, base) = (&self.plan.p, args.stream, args.scratch.address());
        let t = self.traces;
        let zeroed = [t.recurrent, t.sensory, t.neurons, t.inputs, t.outputs];
        let mut cleared = Vec::new();
        match &self.plan.held_backward {
            Some(held @ HeldBackward { whole: Some(whole), .. }) if p.batch > 0 && p.hidden > 0 => {
                return self.whole(held, whole, args, base);
            }
            // With what is folded, in one launch; dL/dx is written everywhere anyway.
            Some(_) if p.batch > 0 && p.hidden > 0 => {
                let whole = |(i, v): (usize, &ViewMut<'_>)| {
                    let written = Some(i) == self.g.x && p.inputs > 0 && p.steps > 0;
                    let elements = v.shape().elements();
                    (!written && elements > 0).then_some((v.address(), elements))
                };
                let mut tensors: Vec<(u64, usize)> = args.outputs.iter().enumerate().filter_map(whole).collect();
                let layout = &t.common.layout;
                tensors.extend(zeroed.iter().map(|&id| (layout.address(base, id), layout.region(id).len / 4)));
                tensors.retain(|t| t.1 > 0);
                cleared = tensors;
            }
            _ => {
                for view in args.outputs.iter_mut().filter(|v| v.shape().elements() > 0) {
                    fill_bytes(view, 0, stream)?;
                }
                if p.batch == 0 || p.hidden == 0 {
                    return Ok(());
                }
                for id in zeroed {
                    t.zero(base, id, &self.plan.device, stream)?;
                }
            }
        }
        self.plan.fold(args.inputs, &t.common, base, stream, Some(&cleared))?;
        if t.together {
            self.sensory_sums(args.inputs, base, stream, 0, p.steps)?;
        }
        let mut end = p.steps;
        loop {
            let steps = self.plan.config.backward_chunk.min(end);
            let t0 = end - steps;
            if !t.together {
                self.sensory_sums(args.inputs, base, stream, t0, steps)?;
            }
            match &self.plan.held_backward {
                Some(held) => self.held(held, args, base, t0, steps)?,
                None => self.adjoint(args, base, t0, steps)?,
            }
            if steps > 0 && !t.together {
                self.sums(args, base, t0, steps)?;
            }
            if let Some(mixed) = &self.plan.mixed {
                mixed.gradients(args, &t.common.layout, base, (t0, steps))?;
            }
            end = t0;
            if end == 0 {
                break;
            }
        }
        if p.steps > 0 && t.together {
            if t.closes_early {
                self.close_recurrent(args, base)?;
            }
            if t.common.u_late {
                self.plan.make_inputs(args.inputs, &t.common, base, stream, 0, p.steps)?;
            }
            self.sums(args, base, 0, p.steps)?;
        }
        match (&self.plan.samples, &self.plan.held_backward) {
            (Some(k), Some(held)) => self.close_samples(k, held, args, base),
            _ => self.close(args, base),
        }
    }

    /// v of the trace: where it starts, and how far a batch row's part lies from the next.
    fn trace_v(&self, x: &[View<'_>], base: u64, t0: usize, steps: usize) -> (Arg<'static>, Arg<'static>) {
        let p = &self.plan.p;
        let step = p.unfolds * p.hidden;
        match self.g.stored {
            Some(s) => (Arg::U64(x[s].address() + (4 * t0 * step) as u64), Arg::I64((p.steps * step) as i64)),
            None => (Arg::U64(self.traces.common.layout.address(base, self.traces.v)), Arg::I64((steps * step) as i64)),
        }
    }

    /// The adjoint over a chunk by the kernels that hold synapses: the unfolds, then all of it, then elapsed times.
    fn held(&self, k: &HeldBackward, args: &mut Args<'_, '_>, base: u64, t0: usize, steps: usize) -> Result<()> {
        let (p, x, plan, t, s, g) = (&self.plan.p, args.inputs, self.plan, self.traces, &self.plan.slots, self.g);
        let region = |id| Arg::U64(t.common.layout.address(base, id));
        let step = p.unfolds * p.hidden;
        let kept = |i: usize| Arg::U64(x[i].address() + (4 * t0 * step) as u64);
        let (v, den, trace_b) = match (g.stored, g.words) {
            (Some(i), _) => (kept(i), kept(i + 1), p.steps * step),
            (_, Some(i)) if k.adjoint.held.words => {
                let row = step + p.hidden;
                (Arg::U64(x[i].address() + (4 * t0 * row) as u64), NULL, p.steps * row)
            }
            _ => (region(t.v), region(t.alpha), steps * step),
        };
        if !k.adjoint.held.words {
            self.unpack(x, base, args.stream, (t0, steps), k.together())?;
        }
        if let (Some(rebuild), true) = (&k.rebuild, steps > 0) {
            let (sums, sums_steps) = self.of_steps(base, t.common.sums, t0, steps);
            let r = Rebuild {
                folded: t.common.layout.address(base, t.common.folded[0]),
                sums,
                sums_steps,
                states: at(x, Some(g.states)),
                trace_v: v,
                trace_den: den,
                together: k.together(),
            };
            plan.rebuild_unfolds(rebuild, x, &r, args.stream, (t0, steps))?;
        }
        let last = t0 + steps == p.steps;
        let [n0, n1, n2] = if last {
            [at(x, Some(g.grad_final)), stride(x, Some(g.grad_final), 0), stride(x, Some(g.grad_final), 1)]
        } else {
            [region(t.adjoint), Arg::I64(p.hidden as i64), Arg::I64(1)]
        };
        let start = match g.h0 {
            Some(i) if t0 == 0 => out(args.outputs, Some(i)),
            _ => region(t.adjoint),
        };
        let groups = if k.adjoint.held.quad { k.together() } else { k.adjoint.held.groups };
        let changes = if g.elapsed.is_some() { region(t.changes) } else { NULL };
        let [e0, e1, e2, e3] = plan.elapsed_args(x);
        if k.adjoint.held.chain() || k.levels.is_some() {
            let c = Chunk { v, den, trace_b, end: [n0, n1, n2], start, changes, t0, steps };
            match &k.levels {
                Some(levels) => self.levels(levels, k, args, base, &c)?,
                None => self.chain(k, args, base, &c)?,
            }
            return self.close_elapsed(k, args, changes, t0, steps);
        }
        launch_as(
            &k.adjoint.kernel,
            args.stream,
            &k.adjoint.launch,
            args! {
                Arg::Bytes(&k.adjoint.schedule.bytes(t.common.layout.address(base, t.adjoint_folded))),
                at(x, Some(s.gleak + 2)), at(x, Some(g.states)), e0, e1, e2, e3, at(x, Some(g.grad_out)),
                stride(x, Some(g.grad_out), 0), stride(x, Some(g.grad_out), 1), stride(x, Some(g.grad_out), 2),
                at(x, s.output_w), n0, n1, n2, start, v, den, Arg::I64(trace_b as i64), region(t.step_sums), changes,
                region(t.gate_sums), region(t.cluster_sums), region(t.common.carried), Arg::I32(p.batch as i32), Arg::I32(p.hidden as i32),
                Arg::I32(p.outputs as i32), Arg::I32(p.unfolds as i32), Arg::I32(p.steps as i32), Arg::I32(t0 as i32),
                Arg::I32(steps as i32), Arg::I32(groups as i32), Arg::I32(i32::from(last)),
                plan.constrained()
            },
        )?;
        self.close_elapsed(k, args, changes, t0, steps)
    }

    /// What ltc_close reads of a side of held synapses: its sums, in `sums`, and where the gradients from `grad` on lie.
    pub(super) fn close_side(
        &self,
        args: &Args<'_, '_>,
        base: u64,
        held: &HeldKernel,
        sums: RegionId,
        (w, grad): (usize, usize),
    ) -> [u8; 96] {
        let sums = self.traces.common.layout.address(base, sums);
        let (places, slots) = held.summed();
        let (parameter, gradient) =
            (|i: usize| args.inputs[w + i].address(), |i: usize| args.outputs[grad + i].address());
        let (w, g) = ([0, 1, 2, 3].map(parameter), [0, 1, 2, 3].map(gradient));
        pack([places, sums, w[0], w[1], w[2], w[3], g[0], g[1], g[2], g[3], slots as u64, held.clusters() as u64])
    }

    /// The kernel of the sensory gates' adjoint, where it holds its synapses.
    fn held_sensory(&self) -> Option<&HeldKernel> {
        self.plan.held_backward.as_ref()?.sensory.as_ref()
    }

    fn adjoint(&self, args: &mut Args<'_, '_>, base: u64, t0: usize, steps: usize) -> Result<()> {
        let (p, x, plan, t) = (&self.plan.p, args.inputs, self.plan, self.traces);
        let region = |id| Arg::U64(t.common.layout.address(base, id));
        let (s, g) = (&plan.slots, self.g);
        let last = t0 + steps == p.steps;
        let end = if last {
            [at(x, Some(g.grad_final)), stride(x, Some(g.grad_final), 0), stride(x, Some(g.grad_final), 1)]
        } else {
            [region(t.adjoint), Arg::I64(p.hidden as i64), Arg::I64(1)]
        };
        let start = match g.h0 {
            Some(i) if t0 == 0 => out(args.outputs, Some(i)),
            _ => region(t.adjoint),
        };
        let (v, v_b) = self.trace_v(x, base, t0, steps);
        let offset = (4 * t0 * p.unfolds * p.hidden) as u64;
        let stored = match g.stored {
            Some(d) => Arg::U64(x[d + 1].address() + offset),
            None if g.words.is_some() => region(t.alpha),
            None => NULL,
        };
        self.unpack(x, base, args.stream, (t0, steps), 1)?;
        let [e0, e1, e2, e3] = plan.elapsed_args(x);
        let [n0, n1, n2] = end;
        if let Some(divided) = &plan.grid_backward {
            if let (Some(k), true) = (&divided.rebuild, steps > 0) {
                let room = t.common.room(base, t.common.folded[0]);
                let (sums, states) = (region(t.common.sums), at(x, Some(g.states)));
                plan.grid_unfolds(k, x, &room, sums, states, [v, region(t.alpha)], args.stream, (t0, steps))?;
            }
            // Rebuilt denominators lie as v does, stored ones too.
            let den = if g.stored.is_some() { stored } else { region(t.alpha) };
            let room = t.common.room(base, t.adjoint_folded);
            let common = args! {
                at(x, Some(s.gleak + 2)), at(x, Some(g.states)), e0, e1, e2, e3, at(x, Some(g.grad_out)),
                stride(x, Some(g.grad_out), 0), stride(x, Some(g.grad_out), 1), stride(x, Some(g.grad_out), 2),
                at(x, s.output_w), n0, n1, n2, start, v, den, v_b, region(t.alpha), region(t.beta), region(t.step_sums),
                Arg::I32(p.batch as i32), Arg::I32(p.hidden as i32), Arg::I32(p.outputs as i32),
                Arg::I32(p.unfolds as i32), Arg::I64(p.steps as i64), Arg::I64(t0 as i64), Arg::I32(steps as i32),
                plan.constrained()
            };
            return plan.grid_adjoint(&divided.adjoint, &room, common, args.stream);
        }
        let lstm = plan.mixed.as_ref().map_or([0; _], |m| m.below(args, &t.common.layout, base, t0, last));
        launch(
            &self.k.adjoint,
            args.stream,
            (p.batch as u64, 1),
            (plan.config.threads, 1),
            plan.config.adjoint_shared,
            args! {
                region(t.common.recurrent[0]), at(x, Some(s.recurrent + 1)), at(x, Some(s.recurrent)),
                region(t.common.recurrent[2]), at(x, Some(s.recurrent + 3)), at(x, Some(s.recurrent + 2)),
                region(t.common.neurons), region(t.common.sums), at(x, Some(g.states)), at(x, s.h0),
                stride(x, s.h0, 0), stride(x, s.h0, 1), e0, e1, e2, e3, at(x, Some(g.grad_out)),
                stride(x, Some(g.grad_out), 0), stride(x, Some(g.grad_out), 1), stride(x, Some(g.grad_out), 2),
                at(x, s.output_w), n0, n1, n2, start, v, v_b, stored, region(t.alpha), region(t.beta),
                region(t.step_sums), Arg::I32(p.hidden as i32), Arg::I32(p.outputs as i32),
                Arg::I32(p.unfolds as i32), Arg::I64(p.steps as i64), Arg::I64(t0 as i64),
                Arg::I64(steps as i64), Arg::F32(p.epsilon as f32), Arg::Bytes(&lstm)
            },
        )
    }

    /// Adds the slices of one sum to its total.
    fn add(&self, base: u64, stream: StreamRef, total: RegionId, elements: usize, slices: usize) -> Result<()> {
        let region = |id| Arg::U64(self.traces.common.layout.address(base, id));
        launch(
            &self.k.add_slices,
            stream,
            ((elements as u64).div_ceil(256), 1),
            (THREADS, 1),
            0,
            &[region(self.traces.partial), region(total), Arg::I64(elements as i64), Arg::I64(slices as i64)],
        )
    }

    /// Every sum over the chunk: synapses, neurons, elapsed times, inputs.
    fn sums(&self, args: &mut Args<'_, '_>, base: u64, t0: usize, steps: usize) -> Result<()> {
        let (p, x, plan, t, stream) = (&self.plan.p, args.inputs, self.plan, self.traces, args.stream);
        let region = |id| Arg::U64(t.common.layout.address(base, id));
        let step_sum = t.common.layout.address(base, t.step_sums);
        let (s, g, lists) = (&plan.slots, self.g, &p.connectivity);
        let rows = p.batch * steps;
        let (v, v_b) = self.trace_v(x, base, t0, steps);
        let (h, d) = (p.hidden, p.inputs);
        let held = self.plan.held_backward.is_some();
        if g.w.is_some() {
            let u = (region(t.common.u), Arg::I64((steps * d) as i64));
            let trace = (region(t.alpha), region(t.beta));
            let of_steps = (Arg::U64(step_sum), Arg::U64(step_sum + 4));
            let k = p.unfolds;
            for (n, per_batch, ids, list, (from, from_b), (alpha, beta), pitch, sources, synapses, total) in [
                (
                    rows * k,
                    steps * k,
                    t.common.recurrent,
                    s.recurrent,
                    (v, v_b),
                    trace,
                    1,
                    h,
                    lists.recurrent.len(),
                    t.recurrent,
                ),
                (rows, steps, t.common.sensory, s.sensory, u, of_steps, 2, d, lists.sensory.len(), t.sensory),
            ] {
                // The held adjoint has made the recurrent ones already.
                if held && (total == t.recurrent || self.held_sensory().is_some()) {
                    continue;
                }
                let divided =
                    plan.grid_backward.as_ref().and_then(|g| g.sums.as_ref()).filter(|_| total == t.recurrent);
                if let Some(k) = divided {
                    let lists = [region(ids[0]), at(x, Some(list + 1)), region(ids[1])];
                    let trace = [from, from_b, Arg::I64(per_batch as i64), alpha, beta];
                    let slices = k.launch([&lists, &trace], region(t.partial), (synapses, n, h), stream)?;
                    self.add(base, stream, total, synapses, slices)?;
                    continue;
                }
                let blocks = synapses.div_ceil(256);
                let slice = tune::slice(n, blocks);
                let slices = n.div_ceil(slice);
                launch(
                    &self.k.gate_sums,
                    stream,
                    (blocks as u64, slices as u64),
                    (THREADS, 1),
                    0,
                    args! {
                        region(ids[0]), at(x, Some(list + 1)), region(ids[1]), from, from_b,
                        Arg::I64(per_batch as i64), alpha, beta, Arg::I32(pitch), region(t.partial),
                        Arg::I64(synapses as i64), Arg::I64(n as i64), Arg::I64(slice as i64),
                        Arg::I32(sources as i32), Arg::I32(h as i32)
                    },
                )?;
                self.add(base, stream, total, synapses, slices)?;
            }
            if !held {
                self.neuron_sums(args, base, t0, steps)?;
            }
        }
        if let (Some(e), false) = (g.elapsed, held) {
            launch(
                &self.k.elapsed,
                stream,
                (rows as u64, 1),
                (THREADS, 1),
                0,
                args! {
                    v, v_b, region(t.alpha), region(t.beta), region(t.common.neurons), at(x, s.elapsed),
                    stride(x, s.elapsed, 0), stride(x, s.elapsed, 1), out(args.outputs, Some(e)),
                    Arg::I32(h as i32), Arg::I32(p.unfolds as i32), Arg::I64(p.steps as i64),
                    Arg::I64(t0 as i64), Arg::I64(steps as i64)
                },
            )?;
        }
        self.inputs(args, base, t0, steps)
    }

    fn neuron_sums(&self, args: &mut Args<'_, '_>, base: u64, t0: usize, steps: usize) -> Result<()> {
        let (p, x, t) = (&self.plan.p, args.inputs, self.traces);
        let region = |id| Arg::U64(t.common.layout.address(base, id));
        let (v, v_b) = self.trace_v(x, base, t0, steps);
        let n = p.batch * steps * p.unfolds;
        let blocks = p.hidden.div_ceil(32);
        let slice = tune::slice(n, blocks);
        let slices = n.div_ceil(slice);
        let [e0, e1, e2, e3] = self.plan.elapsed_args(x);
        launch(
            &self.k.neuron_sums,
            args.stream,
            (blocks as u64, slices as u64),
            (32, 8),
            0,
            args! {
                v, v_b, Arg::I64((steps * p.unfolds) as i64), region(t.alpha), region(t.beta), e0, e1, e2, e3,
                region(t.partial), Arg::I64(n as i64), Arg::I64(slice as i64), Arg::I32(p.hidden as i32),
                Arg::I32(p.unfolds as i32), Arg::I64(t0 as i64)
            },
        )?;
        self.add(base, args.stream, t.neurons, p.hidden, slices)
    }

    /// dL/du, dL/dx and the sums of the input parameters.
    fn inputs(&self, args: &mut Args<'_, '_>, base: u64, t0: usize, steps: usize) -> Result<()> {
        let (p, x, plan, t, stream) = (&self.plan.p, args.inputs, self.plan, self.traces, args.stream);
        let region = |id| Arg::U64(t.common.layout.address(base, id));
        let (s, g) = (&plan.slots, self.g);
        let rows = (p.batch * steps) as u64;
        let parameters = g.input_w.is_some() || g.norm.is_some();
        if p.inputs == 0 || (g.x.is_none() && !parameters && !self.sensory_runs()) {
            return Ok(());
        }
        let (grad_x, du) = (out(args.outputs, g.x), region(t.grad_u));
        if let Some(k) = self.held_sensory() {
            let last = t0 + steps == p.steps;
            // x and dL/dx from step t0 on; with LayerNorm what is made of x, and its gradient, of these steps alone.
            let d = p.inputs;
            let [x0, x1, x2, x3, w, b, grad, total, input_sums] = if t.direct {
                let strides = x[s.x].strides();
                let from = x[s.x].address().wrapping_add_signed(4 * (t0 as i64) * strides[1] as i64);
                let grad = g.x.map_or(0, |i| args.outputs[i].address() + (4 * t0 * d) as u64);
                let sums = if parameters { region(t.inputs) } else { NULL };
                let [x1, x2, x3] = [0, 1, 2].map(|axis| Arg::I64(strides[axis] as i64));
                let (w, b) = (at(x, s.input_w), at(x, s.input_b));
                [Arg::U64(from), x1, x2, x3, w, b, Arg::U64(grad), Arg::I64(p.steps as i64), sums]
            } else {
                let [x1, x2, total] = [steps * d, d, steps].map(|n| Arg::I64(n as i64));
                [region(t.common.u), x1, x2, Arg::I64(1), NULL, NULL, du, total, NULL]
            };
            // The sums of the neurons, once, where they are not made already.
            let adjoint = self.plan.held_backward.as_ref().filter(|k| t0 == 0 && k.sums.is_none());
            let (clusters, of_clusters) = adjoint.map_or((0, NULL), |k| (k.adjoint.clusters(), region(t.cluster_sums)));
            launch_as(
                &k.kernel,
                stream,
                &k.launch,
                args! {
                    Arg::Bytes(&k.schedule.bytes(t.common.layout.address(base, t.sensory_folded))), x0, x1, x2, x3, w, b,
                    region(t.step_sums), grad, region(t.sensory_sums), input_sums, of_clusters, region(t.neurons),
                    Arg::I32(clusters as i32), Arg::I32(rows as i32), Arg::I32(steps as i32), total,
                    Arg::I32(p.inputs as i32), Arg::I32(p.hidden as i32), Arg::I32(k.held.blocks as i32),
                    Arg::I32(k.held.threads as i32), Arg::I32(tune::sums_tiles(&k.held, p.hidden) as i32),
                    Arg::I32(i32::from(last))
                },
            )?;
        }
        if t.direct {
            return Ok(());
        }
        let x_args = [at(x, Some(s.x)), stride(x, Some(s.x), 0), stride(x, Some(s.x), 1), stride(x, Some(s.x), 2)];
        let [x0, x1, x2, x3] = x_args;
        if self.held_sensory().is_none() {
            let groups = u64::from(THREADS / plan.config.sensory_lanes);
            launch(
                &self.k.input_gradient,
                stream,
                (rows.div_ceil(4).min(1 << 30), (p.inputs as u64).div_ceil(groups)),
                (THREADS, 1),
                0,
                args! {
                    region(t.common.sensory[2]), at(x, Some(s.sensory + 3)), at(x, Some(s.sensory + 2)),
                    region(t.common.u), region(t.step_sums), region(t.grad_u), Arg::I64(rows as i64),
                    Arg::I32(p.inputs as i32), Arg::I32(p.hidden as i32)
                },
            )?;
        }
        // These sums first: dL/dx may take the place of dL/du.
        if parameters {
            let blocks = p.inputs.div_ceil(32);
            // Where each batch row's are asked for, all its steps are here.
            let (slice, to) = if p.asks_per_sample() {
                (steps, region(t.inputs))
            } else {
                (tune::slice(rows as usize, blocks), region(t.partial))
            };
            let slices = (rows as usize).div_ceil(slice);
            launch(
                &self.k.input_sums,
                stream,
                (blocks as u64, slices as u64),
                (32, 8),
                0,
                args! {
                    x0, x1, x2, x3, at(x, s.norm), at(x, s.norm.map(|n| n + 1)), at(x, s.input_w),
                    region(t.common.stats), du, to, Arg::I64(rows as i64),
                    Arg::I64(slice as i64), Arg::I64(steps as i64), Arg::I64(t0 as i64), Arg::I32(p.inputs as i32)
                },
            )?;
            if !p.asks_per_sample() {
                self.add(base, stream, t.inputs, p.inputs, slices)?;
            }
        }
        if g.x.is_some() {
            launch(
                &self.k.inputs_backward,
                stream,
                (rows.div_ceil(8), 1),
                (THREADS, 1),
                0,
                args! {
                    x0, x1, x2, x3, at(x, s.norm), at(x, s.input_w), du, grad_x, Arg::I64(rows as i64),
                    Arg::I64(steps as i64), Arg::I64(t0 as i64), Arg::I64(p.steps as i64), Arg::I32(p.inputs as i32),
                    Arg::F32(NORM_EPSILON as f32)
                },
            )?;
        }
        Ok(())
    }

    /// Whether the adjoint of the sensory gates runs by the kernel that holds its synapses.
    fn sensory_runs(&self) -> bool {
        let (p, g) = (&self.plan.p, self.g);
        let asked = [g.x, g.input_w, g.norm, g.sensory_w].iter().any(Option::is_some);
        self.held_sensory().is_some() && p.inputs > 0 && p.steps > 0 && asked
    }

    /// From sums to gradients.
    fn close(&self, args: &mut Args<'_, '_>, base: u64) -> Result<()> {
        let (p, x, plan, t, stream) = (&self.plan.p, args.inputs, self.plan, self.traces, args.stream);
        let region = |id| Arg::U64(t.common.layout.address(base, id));
        let (s, g) = (&plan.slots, self.g);
        let c = &p.connectivity;
        let (mut sides, mut threads) = ([[0u8; 96]; 2], 0u64);
        if let Some(k) = &plan.held_backward {
            // The sums over a trace have done so, or the adjoint of the sensory gates.
            let done = k.sums.is_some() && p.steps > 0 || self.sensory_runs();
            let blocks = if done { 0 } else { (p.hidden as u64).div_ceil(256) };
            launch(
                &k.add_neurons,
                stream,
                (blocks, 1),
                (THREADS, 1),
                0,
                args! {
                    region(t.cluster_sums), region(t.neurons), Arg::I32(k.adjoint.clusters() as i32),
                    Arg::I32(p.hidden as i32)
                },
            )?;
            // Without a step there are no sums, and the gradients are the zeros that they were cleared to.
            if let (Some(grad), true) = (g.w, p.steps > 0 && !t.closes_early) {
                sides[0] = self.close_side(args, base, k.of_sums(), t.gate_sums, (s.w, grad));
                threads += k.of_sums().summed().1 as u64;
            }
            self.close_sinks(k, args, base)?;
            if let (Some(held), Some(grad), true) = (&k.sensory, g.sensory_w, p.steps > 0) {
                sides[1] = self.close_side(args, base, held, t.sensory_sums, (s.sensory_w, grad));
                threads += held.schedule.slots() as u64;
            }
        }
        for (slot, w, list, ids, sums, synapses) in [
            (g.w, s.w, s.recurrent, t.common.recurrent, t.recurrent, c.recurrent.len()),
            (g.sensory_w, s.sensory_w, s.sensory, t.common.sensory, t.sensory, c.sensory.len()),
        ] {
            let Some(grad) = slot else { continue };
            if plan.held_backward.is_some() && (sums == t.recurrent || self.held_sensory().is_some()) {
                continue;
            }
            launch(
                &self.k.close_synapses,
                stream,
                ((synapses as u64).div_ceil(256), 1),
                (THREADS, 1),
                0,
                args! {
                    region(ids[0]), at(x, Some(list + 1)), region(ids[1]), region(sums), at(x, Some(w)),
                    at(x, Some(w + 3)), out(args.outputs, Some(grad)), out(args.outputs, Some(grad + 1)),
                    out(args.outputs, Some(grad + 2)), out(args.outputs, Some(grad + 3)),
                    Arg::I64(synapses as i64), Arg::I32(p.hidden as i32), plan.constrained()
                },
            )?;
        }
        if g.output_w.is_some() && p.batch * p.steps > 0 {
            let rows = p.batch * p.steps;
            let blocks = p.outputs.div_ceil(32);
            let slice = tune::slice(rows, blocks);
            let slices = rows.div_ceil(slice);
            launch(
                &self.k.output_sums,
                stream,
                (blocks as u64, slices as u64),
                (32, 8),
                0,
                args! {
                    at(x, Some(g.states)), at(x, Some(g.grad_out)), stride(x, Some(g.grad_out), 0),
                    stride(x, Some(g.grad_out), 1), stride(x, Some(g.grad_out), 2), region(t.partial),
                    Arg::I64(rows as i64), Arg::I64(slice as i64), Arg::I64(p.steps as i64),
                    Arg::I32(p.hidden as i32), Arg::I32(p.outputs as i32)
                },
            )?;
            self.add(base, stream, t.outputs, p.outputs, slices)?;
        }
        let address = |id| t.common.layout.address(base, id);
        let gradient = |slot: Option<usize>| slot.map_or(0, |i| args.outputs[i].address());
        let summed = (address(t.neurons), 1);
        let neurons: [u8; 72] = g.gleak.map_or(pack([summed.0, 0, 0, 0, 0, 0, 0, 0, summed.1]), |grad| {
            threads += p.hidden as u64;
            let of = |i: usize| args.outputs[grad + i].address();
            let (gleak, vleak) = (x[s.gleak].address(), x[s.gleak + 1].address());
            let folded = address(t.common.neurons);
            pack([summed.0, gleak, vleak, folded, of(0), of(1), of(2), p.hidden as u64, summed.1])
        });
        let mut columns = |sums, to: [Option<usize>; 4], count: usize, slices: usize| -> [u8; 56] {
            let count = if to.iter().all(Option::is_none) { 0 } else { count as u64 };
            threads += count;
            let [a, b, c, d] = to.map(gradient);
            pack([address(sums), a, b, c, d, count, slices as u64])
        };
        let slices = self.held_sensory().filter(|_| t.direct).map_or(1, HeldKernel::clusters);
        let inputs = columns(t.inputs, [g.input_w, g.input_b, g.norm, g.norm.map(|n| n + 1)], p.inputs, slices);
        let outputs = columns(t.outputs, [g.output_w, g.output_b, None, None], p.outputs, 1);
        self.launch_close(stream, threads, [&sides[0], &sides[1], &neurons, &inputs, &outputs])
    }
}
