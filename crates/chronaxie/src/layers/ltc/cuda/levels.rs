//! Launches level by level of wirings that are nearly acyclic (levels.cuh).

use super::backward::BackwardCall;
use super::chain::Chunk;
use super::held::{HeldKernel, Side, specialisation};
use super::held_backward::HeldBackward;
use super::launch::{CudaPlan, NULL, args, at, launch, launch_as, out, stride};
use super::on_device::{DeviceWords, pack};
use super::schedule::{Between, Levels, Lists};
use super::state_sums::StateKernel;
use super::tune::{self, Held, LevelsConfig, OfLevels, StateSums};
use super::{LEVELS, LEVELS_ADJOINT, LEVELS_SUMS, LEVELS_SUMS_ADJOINT};
use crate::cuda::{Arg, CudaDevice, Kernel, LaunchConfig, Specialisation, StreamRef};
use crate::layers::ltc::spec::Ltc;
use crate::op::{Args, LaunchReport};
use crate::{Dtype, Layout, RegionId, Result, View};
use std::sync::Arc;

const ENTRIES: [&str; 2] = ["ltc_apart", "ltc_chain"];
const ADJOINT_ENTRIES: [&str; 2] = ["ltc_apart_adjoint", "ltc_chain_adjoint"];

/// Threads of the kernels of lone neurons and sinks, as kApart.
const APART: u32 = 128;

pub(super) fn specialisations(fast: bool) -> [Specialisation; 4] {
    let shape = Held::of(tune::LEVELS_CHAIN);
    let adjoint = Held { pairs: true, ..shape };
    let gates = Held { pairs: true, ..Held::of(tune::STATE_ADJOINT) };
    [
        specialisation(&LEVELS, &ENTRIES, &shape, fast, false),
        specialisation(&LEVELS_ADJOINT, &ADJOINT_ENTRIES, &adjoint, fast, false),
        specialisation(&LEVELS_SUMS, &["ltc_state_sums"], &shape, fast, false),
        specialisation(&LEVELS_SUMS_ADJOINT, &["ltc_state_adjoint"], &gates, fast, false),
    ]
}

pub(super) fn missing() -> crate::Error {
    crate::Error::config("ltc: a pass level by level of a wiring without levels".to_owned())
}

/// The kernel of the chain, a block for each of `rows` rows, as many as the device holds at once.
fn chain_kernel(device: &Arc<CudaDevice>, lists: &Lists, rows: usize, h: Held, fast: bool) -> Result<HeldKernel> {
    let spec = &specialisations(fast)[usize::from(h.pairs)];
    let kernel = device.kernel(spec, if h.pairs { ADJOINT_ENTRIES[1] } else { ENTRIES[1] })?;
    kernel.set_max_dynamic_shared(h.shared)?;
    let resident = (kernel.max_active_blocks(h.threads as u32, h.shared)? * device.props().sm_count) as usize;
    // Each row of the adjoint leaves sums of its own.
    let grid = if h.pairs { rows } else { rows.min(resident) }.max(1) as u32;
    let launch = LaunchConfig::new((grid, 1, 1), (h.threads as u32, 1, 1)).shared(h.shared);
    let schedule = lists.schedule(1, h.slots, h.width(), h.threads, 1, false)?;
    HeldKernel::scheduled(device, &schedule, kernel, h, launch, resident)
}

/// What levels.cu needs, forward or to rebuild unfolds.
pub(super) struct LevelsForward {
    levels: Levels,
    /// The sources, and then the sinks.
    ids: DeviceWords,
    far: StateKernel,
    chain: HeldKernel,
    sinks: Option<StateKernel>,
    apart: Kernel,
}

/// Where a pass has what lies between levels.
pub(super) struct LevelsRegions {
    u: RegionId,
    far: RegionId,
    sinks: RegionId,
    /// Folded synapses: far, near, of sinks; of the adjoint all to the chain, and to sinks.
    folded: [RegionId; 5],
    /// dL/dU, by way of the chain and of the sinks.
    grad_u: [RegionId; 2],
    /// The sums of the synapses to sinks.
    pub(super) sums: RegionId,
}

/// A chunk of steps of levels.cu: where it begins and what becomes of its states.
struct Walk {
    start: [Arg<'static>; 3],
    out: [Arg<'static>; 3],
    /// States after each step where unfolds are rebuilt.
    kept: Arg<'static>,
    t0: usize,
    steps: usize,
}

impl LevelsForward {
    /// `rows`: of the batch, or of (b, t) where unfolds are rebuilt.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        p: &Ltc,
        of: &OfLevels<StateSums>,
        rows: usize,
        fast: bool,
    ) -> Result<Self> {
        let s = &p.connectivity.recurrent;
        let levels = Levels::of(s).ok_or_else(missing)?;
        let lists = |between| levels.lists(s, between, false);
        let ids: Vec<u32> = levels.sources.iter().chain(&levels.sinks).copied().collect();
        Ok(Self {
            ids: DeviceWords::new(device, &ids)?,
            far: StateKernel::new(device, &lists(Between::Far), of.far, fast)?,
            chain: chain_kernel(device, &lists(Between::Near), rows, of.chain, fast)?,
            sinks: of.sinks.map(|h| StateKernel::new(device, &lists(Between::Sinks), h, fast)).transpose()?,
            apart: device.kernel(&specialisations(fast)[0], ENTRIES[0])?,
            levels,
        })
    }

    /// The regions of `rows` rows of unfolds.
    pub(super) fn regions(
        &self,
        l: &mut Layout,
        rows: usize,
        backward: Option<&LevelsBackward>,
    ) -> Result<LevelsRegions> {
        let n = &self.levels;
        let mut push = |name: &'static str, floats: usize| l.push(name, Dtype::F32, floats);
        let folded = |k: Option<&HeldKernel>| k.map_or(0, HeldKernel::folded);
        let to_sinks = backward.and_then(|b| b.to_sinks.as_ref());
        let (all, read) = if backward.is_some() { (n.sources.len(), n.read.len()) } else { (0, 0) };
        Ok(LevelsRegions {
            u: push("level_states", rows * n.sources.len())?,
            far: push("level_chain", 2 * rows * n.chain())?,
            sinks: push("level_sinks", 2 * rows * n.sinks.len())?,
            folded: [
                push("level_far_folded", 4 * self.far.slots().1)?,
                push("level_chain_folded", folded(Some(&self.chain)))?,
                push("level_sinks_folded", self.sinks.as_ref().map_or(0, |k| 4 * k.slots().1))?,
                push("level_to_chain_folded", folded(backward.map(|b| &b.to_chain)))?,
                push("level_to_sinks_folded", folded(to_sinks))?,
            ],
            grad_u: [push("level_grad_states", rows * all)?, push("level_grad_read", rows * read)?],
            sums: push("level_sinks_sums", to_sinks.map_or(0, HeldKernel::sums))?,
        })
    }

    /// What ltc_fold_held folds of them: slots, and where they go.
    fn sides(&self, r: &LevelsRegions) -> Vec<((u64, usize), RegionId)> {
        let slots = [Some(self.far.slots()), Some(self.chain.slots()), self.sinks.as_ref().map(StateKernel::slots)];
        slots.into_iter().zip(r.folded).filter_map(|(slots, id)| Some((slots?, id))).collect()
    }

    /// The ids of the sources from the `n`-th on, or, behind them, of the sinks.
    fn ids(&self, n: usize) -> Arg<'static> {
        Arg::U64(self.ids.address() + 4 * n as u64)
    }

    pub(super) fn reports(&self, chunks: usize, p: &Ltc, rows: usize, rebuilt: bool) -> Result<Vec<LaunchReport>> {
        let n = &self.levels;
        let apart = |count: usize| {
            let rows = if rebuilt { rows / p.unfolds } else { p.batch };
            LaunchReport::new(
                &self.apart,
                chunks,
                ((rows * count).div_ceil(APART as usize) as u32, 1, 1),
                (APART, 1, 1),
                0,
            )
        };
        let mut list = vec![apart(n.lone)?, self.far.report(chunks, rows)?, self.chain.report(chunks)?];
        if let Some(k) = &self.sinks {
            list.push(k.report(chunks, rows)?);
            list.push(apart(n.sinks.len())?);
        }
        Ok(list)
    }
}

/// What levels_adjoint.cu needs beside its chain.
pub(super) struct LevelsBackward {
    pub(super) rebuild: LevelsForward,
    /// The sums of all synapses to the chain, and of those to sinks, and dL/dU.
    pub(super) to_chain: HeldKernel,
    pub(super) to_sinks: Option<HeldKernel>,
    apart: Kernel,
}

impl LevelsBackward {
    pub(super) fn new(device: &Arc<CudaDevice>, p: &Ltc, c: &LevelsConfig, fast: bool) -> Result<Self> {
        let of = c.adjoint.as_ref().ok_or_else(missing)?;
        let s = &p.connectivity.recurrent;
        let rebuild = LevelsForward::new(device, p, &c.sums, p.batch * c.steps, fast)?;
        let rows = p.batch * c.steps * p.unfolds;
        let sums = |between, h| {
            let lists = rebuild.levels.lists(s, between, true);
            super::state_sums::adjoint(device, &lists, rows, h, fast)
        };
        Ok(Self {
            to_chain: sums(Between::Chain, of.far)?,
            to_sinks: of.sinks.map(|h| sums(Between::Sinks, h)).transpose()?,
            apart: device.kernel(&specialisations(fast)[1], ADJOINT_ENTRIES[0])?,
            rebuild,
        })
    }

    /// The chain's kernel.
    pub(super) fn chain(device: &Arc<CudaDevice>, p: &Ltc, h: Held, fast: bool) -> Result<HeldKernel> {
        let s = &p.connectivity.recurrent;
        let levels = Levels::of(s).ok_or_else(missing)?;
        chain_kernel(device, &levels.lists(s, Between::Near, true), p.batch, h, fast)
    }

    /// What is folded for it, beside the chain's own.
    fn sides(&self, r: &LevelsRegions) -> Vec<((u64, usize), RegionId)> {
        let slots = [Some(self.to_chain.slots()), self.to_sinks.as_ref().map(HeldKernel::slots)];
        let adjoint = slots.into_iter().zip(r.folded[3..].iter().copied()).filter_map(|(slots, id)| Some((slots?, id)));
        self.rebuild.sides(r).into_iter().chain(adjoint).collect()
    }

    pub(super) fn reports(&self, chain: &HeldKernel, chunks: usize, p: &Ltc, rows: usize) -> Result<Vec<LaunchReport>> {
        let n = &self.rebuild.levels;
        let apart = |count: usize| {
            LaunchReport::new(
                &self.apart,
                chunks,
                ((p.batch * count).div_ceil(APART as usize) as u32, 1, 1),
                (APART, 1, 1),
                0,
            )
        };
        let mut list = self.rebuild.reports(chunks, p, rows, true)?;
        if let Some(k) = &self.to_sinks {
            list.extend([apart(n.sinks.len())?, k.report(chunks)?]);
        }
        list.extend([chain.report(chunks)?, self.to_chain.report(chunks)?, apart(n.lone)?]);
        Ok(list)
    }
}

/// The folded synapses of levels: slots and where they go.
pub(super) fn folded(
    forward: Option<&LevelsForward>,
    backward: Option<&LevelsBackward>,
    r: Option<&LevelsRegions>,
    address: impl Fn(RegionId) -> u64,
) -> Vec<(Side, (u64, usize), u64)> {
    let Some(r) = r else { return Vec::new() };
    let sides = forward.map(|f| f.sides(r)).into_iter().chain(backward.map(|b| b.sides(r))).flatten();
    sides.map(|(slots, id)| (Side::Recurrent, slots, address(id))).collect()
}

impl CudaPlan {
    /// The forward pass over the steps `t0 .. t0 + steps` from `start`, level by level.
    pub(super) fn levels_forward(
        &self,
        k: &LevelsForward,
        args: &Args<'_, '_>,
        start: [Arg<'static>; 3],
        states: Option<usize>,
        (t0, steps): (usize, usize),
    ) -> Result<()> {
        let c = &self.forward_scratch;
        let Some(r) = &self.levels_regions else { return Ok(()) };
        let o = &args.outputs;
        let walk = Walk { start, out: [out(o, Some(0)), out(o, states), out(o, Some(1))], kept: NULL, t0, steps };
        let address = |id| c.layout.address(args.scratch.address(), id);
        self.levels(k, args.inputs, r, address(c.sums), &walk, address, args.stream)
    }

    /// States into U, and either those of steps out or of each unfold what the adjoint needs.
    #[allow(clippy::too_many_arguments)]
    fn levels(
        &self,
        k: &LevelsForward,
        x: &[View<'_>],
        r: &LevelsRegions,
        sums: u64,
        w: &Walk,
        address: impl Fn(RegionId) -> u64,
        stream: StreamRef,
    ) -> Result<()> {
        let (p, s, n) = (&self.p, &self.slots, &k.levels);
        let [e0, e1, e2, e3] = self.elapsed_args(x);
        let [s0, s1, s2] = w.start;
        let [o0, o1, o2] = w.out;
        let rebuilt = w.kept != NULL;
        let rows = p.batch * w.steps * p.unfolds;
        let (u, far, sinks) = (address(r.u), address(r.far), address(r.sinks));
        let (pitch, lone) = (n.sources.len(), n.lone);
        let ends: &[Arg<'_>] = args! {
            at(x, Some(s.gleak)), at(x, Some(s.gleak + 1)), at(x, Some(s.gleak + 2)), Arg::U64(sums), s0, s1, s2, e0, e1,
            e2, e3, at(x, s.output_w), at(x, s.output_b), o0, o1, o2, w.kept, Arg::I32(p.batch as i32),
            Arg::I32(p.hidden as i32), Arg::I32(p.outputs as i32), Arg::I32(p.unfolds as i32),
            Arg::I32(p.steps as i32), Arg::I32(w.t0 as i32), Arg::I32(w.steps as i32), self.constrained(),
            Arg::F32(p.epsilon as f32)
        };
        let apart = |ids: Arg<'static>, count: usize, u: u64, pairs: u64| {
            let walks = p.batch * if rebuilt { w.steps } else { 1 };
            let own: &[Arg<'_>] =
                args! { ids, Arg::I32(count as i32), Arg::U64(u), Arg::I32(pitch as i32), Arg::U64(pairs) };
            launch(
                &k.apart,
                stream,
                ((walks * count).div_ceil(APART as usize) as u64, 1),
                (APART, 1),
                0,
                &[own, ends].concat(),
            )
        };
        let gates = |k: &StateKernel, folded: RegionId, from: usize, to: (u64, usize)| {
            k.launch(address(folded), (u + 4 * from as u64, pitch), to, rows, stream)
        };
        apart(k.ids(0), lone, u, 0)?;
        gates(&k.far, r.folded[0], 0, (far, n.chain()))?;
        let schedule = k.chain.schedule.bytes(address(r.folded[1]));
        let own: &[Arg<'_>] = args! {
            Arg::Bytes(&schedule), k.ids(lone), Arg::I32(n.chain() as i32), Arg::U64(u + 4 * lone as u64),
            Arg::I32(pitch as i32), Arg::U64(far)
        };
        launch_as(&k.chain.kernel, stream, &k.chain.launch, &[own, ends].concat())?;
        let Some(of_sinks) = &k.sinks else { return Ok(()) };
        gates(of_sinks, r.folded[2], n.read.start, (sinks, n.sinks.len()))?;
        apart(k.ids(pitch), n.sinks.len(), 0, sinks)
    }
}

impl BackwardCall<'_> {
    /// From the sums of the synapses to sinks to their gradients, where there are such.
    pub(super) fn close_sinks(&self, k: &HeldBackward, args: &Args<'_, '_>, base: u64) -> Result<()> {
        let t = self.traces;
        let to_sinks = k.levels.as_ref().and_then(|l| l.to_sinks.as_ref()).zip(t.levels.as_ref());
        let (Some((held, r)), Some(grad), true) = (to_sinks, self.g.w, self.plan.p.steps > 0) else { return Ok(()) };
        let side = self.close_side(args, base, held, r.sums, (self.plan.slots.w, grad));
        let neurons: [u8; 72] = pack([t.common.layout.address(base, t.neurons), 0, 0, 0, 0, 0, 0, 0, 1]);
        self.launch_close(args.stream, held.summed().1 as u64, [&side, &[0; 96], &neurons, &[0; 56], &[0; 56]])
    }

    /// The unfolds of a chunk of steps, and then its adjoint, level by level.
    pub(super) fn levels(
        &self,
        k: &LevelsBackward,
        held: &HeldBackward,
        args: &Args<'_, '_>,
        base: u64,
        c: &Chunk,
    ) -> Result<()> {
        let (p, x, plan, t, s, g) = (&self.plan.p, args.inputs, self.plan, self.traces, &self.plan.slots, self.g);
        let Some(r) = &t.levels else { return Ok(()) };
        let address = |id| t.common.layout.address(base, id);
        let (n, f, stream) = (&k.rebuild.levels, &k.rebuild, args.stream);
        let h0 = [at(x, s.h0), stride(x, s.h0, 0), stride(x, s.h0, 1)];
        let states = at(x, Some(g.states));
        let rows = p.batch * c.steps * p.unfolds;
        if rows > 0 {
            let walk = Walk { start: h0, out: [NULL; 3], kept: states, t0: c.t0, steps: c.steps };
            plan.levels(f, x, r, address(t.common.sums), &walk, address, stream)?;
        }
        let (u, far, sinks) = (address(r.u), address(r.far), address(r.sinks));
        let [of_chain, of_sinks] = r.grad_u.map(address);
        let (pitch, lone, read) = (n.sources.len(), n.lone, n.read.clone());
        let to_sinks = k.to_sinks.as_ref();
        let of_sinks = if to_sinks.is_some() { of_sinks } else { 0 };
        let first = Arg::I32(i32::from(c.t0 + c.steps == p.steps));
        let [e0, e1, e2, e3] = plan.elapsed_args(x);
        let [n0, n1, n2] = c.end;
        let given: &[Arg<'_>] = args! {
            at(x, Some(g.grad_out)), stride(x, Some(g.grad_out), 0), stride(x, Some(g.grad_out), 1),
            stride(x, Some(g.grad_out), 2), at(x, s.output_w), n0, n1, n2, c.start, Arg::U64(address(t.step_sums)), c.changes,
            Arg::U64(address(t.cluster_sums)), Arg::I32(p.batch as i32), Arg::I32(p.hidden as i32),
            Arg::I32(p.outputs as i32), Arg::I32(p.unfolds as i32), Arg::I32(p.steps as i32), Arg::I32(c.t0 as i32),
            Arg::I32(c.steps as i32), first, plan.constrained()
        };
        let apart = |ids: Arg<'static>, count: usize, u: u64, pairs: u64, of_chain: u64, of_sinks: u64| {
            let own: &[Arg<'_>] = args! {
                ids, Arg::I32(count as i32), Arg::U64(u), Arg::I32(pitch as i32), Arg::U64(pairs), Arg::U64(of_chain),
                Arg::I32(pitch as i32), Arg::U64(of_sinks), Arg::I32(read.len() as i32), Arg::I32(read.start as i32),
                at(x, Some(s.gleak)), at(x, Some(s.gleak + 1)), at(x, Some(s.gleak + 2)),
                Arg::U64(address(t.common.sums)), states, h0[0], h0[1], h0[2], e0, e1, e2, e3
            };
            let all = [own, given, &[Arg::F32(p.epsilon as f32)]].concat();
            launch(&k.apart, stream, ((p.batch * count).div_ceil(APART as usize) as u64, 1), (APART, 1), 0, &all)
        };
        // alpha and beta of `count` targets, and inputs from U.
        let gates = |k: &HeldKernel,
                     folded: RegionId,
                     (from, inputs): (usize, usize),
                     (pairs, count): (u64, usize),
                     grad: u64,
                     sums: RegionId| {
            if rows == 0 {
                return Ok(());
            }
            launch_as(
                &k.kernel,
                stream,
                &k.launch,
                args! {
                    Arg::Bytes(&k.schedule.bytes(address(folded))), Arg::U64(u + 4 * from as u64),
                    Arg::I32(pitch as i32), Arg::U64(pairs), Arg::I32(count as i32), Arg::U64(grad),
                    Arg::I32(inputs as i32), Arg::U64(address(sums)), Arg::I64(rows as i64),
                    Arg::I32(k.held.blocks as i32), first
                },
            )
        };
        if let Some(k) = to_sinks {
            apart(f.ids(pitch), n.sinks.len(), 0, sinks, 0, 0)?;
            gates(k, r.folded[4], (read.start, read.len()), (sinks, n.sinks.len()), of_sinks, r.sums)?;
        }
        // Columns of the chain that sinks read.
        let [from, to] = [read.start, read.end].map(|column| column as i32 - lone as i32);
        let schedule = held.adjoint.schedule.bytes(address(t.adjoint_folded));
        let own: &[Arg<'_>] = args! {
            Arg::Bytes(&schedule), f.ids(lone), Arg::I32(n.chain() as i32), Arg::U64(u + 4 * lone as u64),
            Arg::I32(pitch as i32), Arg::U64(far), Arg::U64(of_sinks), Arg::I32(read.len() as i32), Arg::I32(from),
            Arg::I32(to), at(x, Some(s.gleak + 2)), e0, e1, e2, e3
        };
        launch_as(&held.adjoint.kernel, stream, &held.adjoint.launch, &[own, given].concat())?;
        gates(&k.to_chain, r.folded[3], (0, pitch), (far, n.chain()), of_chain, t.gate_sums)?;
        apart(f.ids(0), lone, u, 0, of_chain, of_sinks)
    }
}
