//! Launches of the kernels that do all of a short pass.

use super::backward::BackwardCall;
use super::held::{HeldKernel, specialisation, too_many};
use super::held_backward::HeldBackward;
use super::launch::{CudaPlan, NULL, args, at, launch_as, out, stride};
use super::on_device::{DeviceSchedule, DeviceWords, pack};
use super::schedule::{Lists, NONE, Schedule};
use super::tune::{self, Held};
use super::{Slots, WHOLE_ADJOINT, WHOLE_CLOSE};
use crate::cuda::{Archs, Arg, CudaDevice, Kernel, LaunchConfig, Specialisation};
use crate::layers::ltc::Synapses;
use crate::layers::ltc::spec::{Ltc, NORM_EPSILON};
use crate::op::{Args, LaunchReport};
use crate::{Result, View};
use std::sync::Arc;

/// Threads of a block of whole_close.cu.
const CLOSE_THREADS: usize = 128;

pub(super) fn close_specialisation() -> Specialisation {
    Specialisation {
        headers: super::HEADERS,
        constants: vec![("kFast", crate::cuda::Constant::Bool(true))],
        archs: Archs::AtLeast(80),
        ..Specialisation::new(WHOLE_CLOSE.clone(), &["ltc_whole_close"])
    }
}

/// The synapses of the inputs, of each block's share of them.
pub(super) struct Inputs {
    schedule: DeviceSchedule,
    /// Slots of a thread.
    slots: usize,
    /// Of each element of the matrices, the slot that leaves its sums, of so many rows of slots, 32 each: by source alone.
    slot_of: Vec<u32>,
    rows: usize,
}

impl Inputs {
    pub(super) fn new(device: &Arc<CudaDevice>, s: &Synapses, blocks: usize, by_source: bool) -> Result<Self> {
        let (slots, width) = tune::input_slots(s, blocks, by_source).ok_or_else(too_many)?;
        let least = tune::WHOLE_LANES[usize::from(by_source)];
        let mut parts = Schedule::joined(tune::shares(s.sources(), blocks).map(|some| {
            let lists = Lists::of_sources(s, some, by_source).ok_or_else(too_many)?;
            lists.schedule(1, slots, width, tune::WHOLE_OTHERS, least, false)
        }))?;
        let (mut slot_of, mut rows) = (Vec::new(), 0);
        if by_source {
            slot_of = vec![NONE; s.sources() * s.targets()];
            let warps = tune::WHOLE_OTHERS / 32;
            for (rank, some) in tune::shares(s.sources(), blocks).enumerate() {
                for (w, warp) in parts.warps[rank * warps..][..warps].iter_mut().enumerate() {
                    for (slot, lane) in (0..warp[1] as usize).flat_map(|slot| (0..32).map(move |lane| (slot, lane))) {
                        let at = parts.at[(rank * slots + slot) * tune::WHOLE_OTHERS + w * 32 + lane];
                        if at != NONE {
                            slot_of[some.start * s.targets() + at as usize] = ((rows + slot) * 32 + lane) as u32;
                        }
                    }
                    let first = rows;
                    rows += warp[1] as usize;
                    warp[1] |= (first << 8) as i32;
                }
            }
        }
        Ok(Self { schedule: DeviceSchedule::new(device, &parts)?, slots, slot_of, rows })
    }
}

/// Which sides are staged: those that the plan has room for, where a copy can begin at their addresses.
fn staged(x: &[View<'_>], s: &Slots, sides: u8) -> Arg<'static> {
    let aligned = |w: usize| (0..4).all(|i| x[w + i].address().is_multiple_of(16));
    let keep = u8::from(aligned(s.w)) | u8::from(aligned(s.sensory_w)) << 1;
    Arg::I32(i32::from(sides & keep))
}

/// What the backward pass has beside the schedule by source.
pub(super) struct WholeBackward {
    by_target: DeviceSchedule,
    inputs_by_target: Inputs,
    inputs_by_source: Inputs,
    /// Place, source and target of each recurrent synapse.
    synapses: DeviceWords,
    count: usize,
    /// Of each element of the recurrent matrices, and then of the inputs', the slot that left its sums.
    slot_of: DeviceWords,
    /// Rows of them that a block keeps.
    kept_rows: usize,
    close: Kernel,
}

impl WholeBackward {
    pub(super) fn new(device: &Arc<CudaDevice>, p: &Ltc, blocks: usize, fast: bool) -> Result<Self> {
        debug_assert!(fast, "exact gates have other kernels");
        let (s, h) = (&p.connectivity, p.hidden);
        let (slots, lanes) = tune::WHOLE_HELD;
        let lists = Lists::by_target(&s.recurrent).ok_or_else(too_many)?;
        let by_target = lists.schedule(1, slots, tune::unfolded(blocks), tune::WHOLE_OTHERS, lanes, false)?;
        // By target: what all lanes of a warp read of it they read at once.
        let mut words = Vec::new();
        let mut slot_of = vec![NONE; h * h];
        for (j, of) in lists.of.iter().enumerate() {
            for e in of {
                slot_of[e.at as usize] = (words.len() / 2) as u32;
                words.extend([e.at, e.other | (j as u32) << 16]);
            }
        }
        let inputs_by_source = Inputs::new(device, &s.sensory, blocks, true)?;
        slot_of.extend(&inputs_by_source.slot_of);
        Ok(Self {
            by_target: DeviceSchedule::new(device, &by_target)?,
            inputs_by_target: Inputs::new(device, &s.sensory, blocks, false)?,
            inputs_by_source,
            kept_rows: tune::kept_rows(&s.sensory, blocks).ok_or_else(too_many)?,
            count: words.len() / 2,
            synapses: DeviceWords::new(device, &words)?,
            slot_of: DeviceWords::new(device, &slot_of)?,
            close: device.kernel(&close_specialisation(), "ltc_whole_close")?,
        })
    }
    /// Floats that a row leaves of the recurrent synapses, and of those of the inputs.
    pub(super) fn gate_sums(&self) -> usize {
        4 * self.count
    }
    pub(super) fn input_sums(&self) -> usize {
        4 * 32 * self.inputs_by_source.rows
    }
    /// How many synapses' sums a row leaves of each side.
    pub(super) fn slots(&self) -> [usize; 2] {
        [self.count, 32 * self.inputs_by_source.rows]
    }
    /// Of each element of the recurrent matrices, and then of the inputs', the slot that left its sums.
    pub(super) fn slot_of(&self) -> u64 {
        self.slot_of.address()
    }
    /// The last launch, of a problem where all is asked for.
    pub(super) fn report(&self, p: &Ltc) -> Result<LaunchReport> {
        let threads = (p.hidden + p.inputs) * (p.hidden + 1) + p.outputs;
        let grid = (threads.div_ceil(CLOSE_THREADS) as u32, 1, 1);
        LaunchReport::new(&self.close, 1, grid, (CLOSE_THREADS as u32, 1, 1), 0)
    }
}

impl HeldKernel {
    /// The adjoint of `batch` rows, with the recurrent synapses by source.
    pub(super) fn whole_adjoint(
        device: &Arc<CudaDevice>,
        s: &Synapses,
        batch: usize,
        h: Held,
        fast: bool,
    ) -> Result<Self> {
        let spec = specialisation(
            &WHOLE_ADJOINT,
            &["ltc_whole_adjoint"],
            &Held::whole_adjoint(h.blocks, h.words),
            fast,
            false,
        );
        let kernel = device.kernel(&spec, "ltc_whole_adjoint")?;
        kernel.set_max_dynamic_shared(h.shared)?;
        let grid = ((h.blocks * batch) as u32, 1, 1);
        let mut launch = LaunchConfig::new(grid, (h.threads as u32, 1, 1)).shared(h.shared);
        if h.blocks > 1 {
            launch.cluster = Some((h.blocks as u32, 1, 1));
        }
        Self::new(device, s, kernel, h, launch, tune::WHOLE_HELD.1, false, h.blocks * batch)
    }
}

impl CudaPlan {
    /// All of a forward pass in one launch.
    pub(super) fn whole_forward(
        &self,
        k: &HeldKernel,
        inputs: &Inputs,
        args: &Args<'_, '_>,
        states: Option<usize>,
        kept: [Arg<'static>; 2],
    ) -> Result<()> {
        let (p, s, x) = (&self.p, &self.slots, args.inputs);
        let [e0, e1, e2, e3] = self.elapsed_args(x);
        launch_as(
            &k.kernel,
            args.stream,
            &k.launch,
            args! {
                Arg::Bytes(&k.schedule.bytes(0)), Arg::Bytes(&inputs.schedule.bytes(0)), Arg::Bytes(&k.schedule.raw(x, s.w)),
                Arg::Bytes(&inputs.schedule.raw(x, s.sensory_w)), at(x, Some(s.gleak)), at(x, Some(s.gleak + 1)),
                at(x, Some(s.gleak + 2)), at(x, Some(s.x)), stride(x, Some(s.x), 0), stride(x, Some(s.x), 1),
                stride(x, Some(s.x), 2), at(x, s.norm), at(x, s.norm.map(|n| n + 1)), at(x, s.input_w),
                at(x, s.input_b), at(x, s.h0), stride(x, s.h0, 0), stride(x, s.h0, 1), e0, e1, e2, e3,
                at(x, s.output_w), at(x, s.output_b), out(args.outputs, Some(0)), out(args.outputs, states),
                out(args.outputs, Some(1)), kept[0], kept[1],
                Arg::I32(p.hidden as i32), Arg::I32(p.inputs as i32), Arg::I32(p.outputs as i32),
                Arg::I32(p.unfolds as i32), Arg::I32(p.steps as i32), self.constrained(), Arg::F32(p.epsilon as f32),
                Arg::F32(NORM_EPSILON as f32), staged(x, s, k.held.staged), Arg::I32(inputs.slots as i32)
            },
        )
    }
}

impl BackwardCall<'_> {
    /// The whole pass: a block a row, and then the sums over rows.
    pub(super) fn whole(&self, k: &HeldBackward, w: &WholeBackward, args: &mut Args<'_, '_>, base: u64) -> Result<()> {
        let (p, x, plan, t, s, g) = (&self.plan.p, args.inputs, self.plan, self.traces, &self.plan.slots, self.g);
        let region = |id| Arg::U64(t.common.layout.address(base, id));
        let [e0, e1, e2, e3] = plan.elapsed_args(x);
        let start = g.h0.map_or(region(t.adjoint), |i| out(args.outputs, Some(i)));
        let changes = if g.elapsed.is_some() { region(t.changes) } else { NULL };
        let (sources, input_targets, input_sources) =
            (&k.adjoint.schedule, &w.inputs_by_target.schedule, &w.inputs_by_source.schedule);
        launch_as(
            &k.adjoint.kernel,
            args.stream,
            &k.adjoint.launch,
            args! {
                Arg::Bytes(&w.by_target.bytes(0)), Arg::Bytes(&sources.bytes(0)),
                Arg::Bytes(&input_targets.bytes(0)), Arg::Bytes(&input_sources.bytes(0)),
                Arg::Bytes(&w.by_target.raw(x, s.w)), Arg::Bytes(&sources.raw(x, s.w)),
                Arg::Bytes(&input_targets.raw(x, s.sensory_w)), Arg::Bytes(&input_sources.raw(x, s.sensory_w)),
                Arg::U64(w.synapses.address()), at(x, Some(s.gleak)), at(x, Some(s.gleak + 1)), at(x, Some(s.gleak + 2)), at(x, Some(s.x)),
                stride(x, Some(s.x), 0), stride(x, Some(s.x), 1), stride(x, Some(s.x), 2), at(x, s.input_w),
                at(x, s.input_b), at(x, s.h0), stride(x, s.h0, 0), stride(x, s.h0, 1), e0, e1, e2, e3,
                at(x, Some(g.states)), at(x, g.words.or(g.stored)), at(x, g.stored.map(|s| s + 1)), at(x, Some(g.grad_out)), stride(x, Some(g.grad_out), 0),
                stride(x, Some(g.grad_out), 1), stride(x, Some(g.grad_out), 2), at(x, s.output_w),
                at(x, Some(g.grad_final)), stride(x, Some(g.grad_final), 0), stride(x, Some(g.grad_final), 1), start,
                out(args.outputs, g.x), changes, region(t.gate_sums), region(t.sensory_sums), region(t.cluster_sums),
                region(t.inputs), region(t.outputs), Arg::I32(p.hidden as i32), Arg::I32(p.inputs as i32),
                Arg::I32(p.outputs as i32), Arg::I32(p.unfolds as i32), Arg::I32(p.steps as i32), plan.constrained(),
                Arg::F32(p.epsilon as f32), Arg::I32(w.count as i32), Arg::I32(w.inputs_by_target.slots as i32),
                Arg::I32(w.inputs_by_source.slots as i32), Arg::I32(w.inputs_by_source.rows as i32), Arg::I32(w.kept_rows as i32),
                staged(x, s, k.adjoint.held.staged)
            },
        )?;
        if p.steps > 0 {
            self.close_elapsed(k, args, changes, 0, p.steps)?;
        }
        if let Some(closing) = &plan.samples {
            return self.close_samples(closing, k, args, base);
        }
        self.whole_close(w, w.slots(), args, base)
    }

    /// The sums over rows, of all parameters whose gradients are asked for.
    fn whole_close(&self, w: &WholeBackward, slots: [usize; 2], args: &mut Args<'_, '_>, base: u64) -> Result<()> {
        let (p, x, t, s, g) = (&self.plan.p, args.inputs, self.traces, &self.plan.slots, self.g);
        let region = |id| t.common.layout.address(base, id);
        let gradient = |slot: Option<usize>| slot.map_or(0, |i| args.outputs[i].address());
        let mut threads = 0;
        let mut side =
            |grad: Option<usize>, from: usize, sums, first: usize, elements: usize, slots: usize| -> [u8; 96] {
                let Some(grad) = grad else { return [0; 96] };
                threads += elements;
                let (of, to) =
                    ([0, 1, 2, 3].map(|i| x[from + i].address()), [0, 1, 2, 3].map(|i| gradient(Some(grad + i))));
                let slot_of = w.slot_of.address() + 4 * first as u64;
                let (elements, slots) = (elements as u64, slots as u64);
                pack([slot_of, sums, of[0], of[1], of[2], of[3], to[0], to[1], to[2], to[3], elements, slots])
            };
        let (h, d) = (p.hidden, p.inputs);
        let recurrent = side(g.w, s.w, region(t.gate_sums), 0, h * h, slots[0]);
        let inputs = side(g.sensory_w, s.sensory_w, region(t.sensory_sums), h * h, d * h, slots[1]);
        let neurons: [u8; 64] = g.gleak.map_or([0; 64], |grad| {
            threads += h;
            let (of, to) = ([0, 1, 2].map(|i| x[s.gleak + i].address()), [0, 1, 2].map(|i| gradient(Some(grad + i))));
            pack([region(t.cluster_sums), of[0], of[1], of[2], to[0], to[1], to[2], h as u64])
        });
        let mut columns = |sums, to: [Option<usize>; 2], count: usize, pitch: usize| -> [u8; 40] {
            let count = if to.iter().all(Option::is_none) { 0 } else { count };
            threads += count;
            pack([region(sums), gradient(to[0]), gradient(to[1]), count as u64, pitch as u64])
        };
        let input_columns = columns(t.inputs, [g.input_w, g.input_b], d, d);
        let output_columns = columns(t.outputs, [g.output_w, g.output_b], p.outputs, h);
        if threads == 0 {
            return Ok(());
        }
        // Without a step nothing was left of the inputs.
        let rows = if p.steps == 0 { 0 } else { p.batch };
        launch_as(
            &w.close,
            args.stream,
            &LaunchConfig::linear(threads, CLOSE_THREADS as u32),
            args! {
                Arg::Bytes(&recurrent), Arg::Bytes(&inputs), Arg::Bytes(&neurons), Arg::Bytes(&input_columns),
                Arg::Bytes(&output_columns), Arg::I32(rows as i32), self.plan.constrained()
            },
        )
    }
}
