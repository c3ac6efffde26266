//! Threads over sequences and blocks of sixteen channels, SIMD over the channels of a block.
//!
//! A block goes through time in tiles of 64 steps. Within a tile one state of its sixteen channels after the other runs
//! through all steps, so a tile's memory does not grow with N. The forward pass saves the states before each tile; the
//! backward pass runs a tile's states forward again from there, and then against time.

#![allow(unsafe_code)]

mod backward;
mod forward;
mod step;
mod tile;

pub(super) use step::StepCpu;

use super::super::lanes::{Array, LANES, Span, State, load_state, store_state};
use super::super::packing::{Packing, Unit};
use super::spec::{CHUNK, NAME, SelectiveScan, Weights};
use crate::op::{Args, CpuPlan, CpuWork, Pass, PlanOptions, Planned};
use crate::{Error, Layout, Result, View, ViewMut};

/// `selective_scan` on the CPU.
#[derive(Debug)]
pub(super) struct Cpu {
    problem: SelectiveScan,
    regions: backward::Regions,
}

impl Cpu {
    pub(super) fn plan(problem: SelectiveScan, options: &PlanOptions) -> Result<CpuPlan<Self>> {
        let mut scratch = Layout::new(options.scratch_gap);
        let regions = backward::Regions::new(&problem, &mut scratch)?;
        let passes = [(Pass::Forward, Layout::new(options.scratch_gap)), (Pass::Backward, scratch)];
        CpuPlan::new(&problem, options, passes, Self { problem, regions })
    }
}

impl CpuWork for Cpu {
    fn execute(&self, pass: Pass, planned: &Planned, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let miscounted = || Error::shape(format!("{NAME}: the number of tensors does not match the signature"));
        let (inputs, rest) = Inputs::read(p, args.inputs);
        let at = p.inputs().iter().flatten().count();
        let marks = p.packing().marks(NAME, p.batch(), p.steps(), args.inputs.get(at))?;
        match pass {
            Pass::Forward => {
                let [out, last, chunks] = args.outputs else { return Err(miscounted()) };
                let (out, last, chunks) = (Array::write(out), Array::write(last), Array::write(chunks));
                forward::Forward { p, marks, inputs, out, last, chunks }.run();
            }
            _ => {
                let [chunks, grad_out, grad_last] = rest else { return Err(miscounted()) };
                let gradients = Inputs::write(p, args.outputs);
                let base = args.scratch.address();
                let io = backward::Backward {
                    p,
                    marks,
                    inputs,
                    chunks: Array::read(chunks),
                    grad_out: Array::read(grad_out),
                    grad_last: Array::read(grad_last),
                    gradients,
                    partial: self.regions.arrays(p, &planned.scratch, base),
                };
                io.run();
            }
        }
        Ok(())
    }
}

/// What goes in, or the gradients of it.
#[derive(Clone, Copy)]
struct Inputs {
    u: Array,
    delta: Array,
    a: Array,
    b: Array,
    c: Array,
    d: Option<Array>,
    z: Option<Array>,
    delta_bias: Option<Array>,
    h0: Option<Array>,
}

impl Inputs {
    fn collect(p: &SelectiveScan, mut next: impl FnMut() -> Array) -> Self {
        let given = p.inputs().map(|t| t.is_some());
        let (u, delta, a, b, c) = (next(), next(), next(), next(), next());
        let mut optional = |i: usize| given[i].then(&mut next);
        Self { u, delta, a, b, c, d: optional(5), z: optional(6), delta_bias: optional(7), h0: optional(8) }
    }
    /// The inputs, and what lies behind them and the packing's tensor.
    fn read<'a, 'v>(p: &SelectiveScan, views: &'a [View<'v>]) -> (Self, &'a [View<'v>]) {
        let mut at = 0;
        let all = Self::collect(p, || {
            at += 1;
            Array::read(&views[at - 1])
        });
        (all, &views[at + usize::from(p.packing() != Packing::Whole)..])
    }
    fn write(p: &SelectiveScan, views: &mut [ViewMut<'_>]) -> Self {
        let mut views = views.iter_mut();
        Self::collect(p, || Array::write(views.next().expect("the signature's check has counted the tensors")))
    }
}

/// How channels share their varying weights, and how they are cut into blocks that have one group's.
#[derive(Debug, Clone, Copy)]
struct Grouping {
    groups: usize,
    /// Channels of a group, 1 or more.
    width: usize,
    /// Blocks of a group.
    blocks: usize,
    /// Whether each channel has weights of its own.
    own: bool,
}

impl Grouping {
    fn new(p: &SelectiveScan) -> Self {
        let groups = [p.b(), p.c()].into_iter().find_map(|w| match w {
            Weights::Varying(g) => Some(g),
            Weights::Constant => None,
        });
        // Channels with weights of their own lie in one group of blocks whose lanes differ.
        let own = groups.is_some_and(|g| g == p.channels() && g > 1);
        let groups = groups.filter(|_| !own).unwrap_or(1);
        let width = p.channels() / groups;
        Self { groups, width, blocks: width.div_ceil(LANES), own }
    }
}

/// Sixteen neighbouring channels of one group, or fewer, in one unit.
#[derive(Debug, Clone, Copy)]
struct Block {
    unit: Unit,
    group: usize,
    first: usize,
    lanes: usize,
}

impl Block {
    fn new(g: &Grouping, unit: Unit, group: usize, block: usize) -> Self {
        let within = block * LANES;
        Self { unit, group, first: group * g.width + within, lanes: LANES.min(g.width - within) }
    }
    /// The unit's tiles, first to last: from, to.
    fn tiles(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let Unit { begin, end, .. } = self.unit;
        let chunks = if begin == end { 0..0 } else { begin / CHUNK..end.div_ceil(CHUNK) };
        chunks.map(move |c| (begin.max(c * CHUNK), end.min((c + 1) * CHUNK)))
    }
    fn sequence(&self, v: &Array, from: usize, to: usize) -> Span {
        let origin = v.offset([self.unit.row, self.first, from, 0]);
        Span { origin, lane: v.stride(1), step: v.stride(2), lanes: self.lanes, steps: to - from }
    }
    /// A weight of state n over a tile.
    fn weight(&self, g: &Grouping, w: Weights, v: &Array, n: usize, from: usize, to: usize) -> Span {
        let steps = to - from;
        match w {
            Weights::Constant => {
                let origin = v.offset([self.first, n, 0, 0]);
                Span { origin, lane: v.stride(0), step: 0, lanes: self.lanes, steps }
            }
            Weights::Varying(_) => {
                let group = if g.own { self.first } else { self.group };
                let lane = if g.own { v.stride(1) } else { 0 };
                Span {
                    origin: v.offset([self.unit.row, group, n, from]),
                    lane,
                    step: v.stride(3),
                    lanes: self.lanes,
                    steps,
                }
            }
        }
    }
    /// One number a channel.
    fn vector(&self, v: &Array) -> [f32; LANES] {
        // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
        unsafe { load_state(v, v.offset([self.first, 0, 0, 0]), v.stride(0), self.lanes, false)[0] }
    }
    /// The rates of state n.
    fn rate(&self, v: &Array, n: usize, complex: bool) -> State {
        // SAFETY: as above.
        unsafe { load_state(v, v.offset([self.first, n, 0, 0]), v.stride(0), self.lanes, complex) }
    }
    /// One number a channel at `[i, first, n]`.
    fn load(&self, v: &Array, i: usize, n: usize, complex: bool) -> State {
        // SAFETY: as above.
        unsafe { load_state(v, v.offset([i, self.first, n, 0]), v.stride(1), self.lanes, complex) }
    }
    fn store(&self, state: &State, v: &Array, i: usize, n: usize, complex: bool) {
        // SAFETY: as above, and a block's states belong to its task.
        unsafe { store_state(state, v, v.offset([i, self.first, n, 0]), v.stride(1), self.lanes, complex) };
    }
    /// The state before a tile that was saved, `[B, chunk, D, N]`.
    fn load_chunk(&self, v: &Array, from: usize, n: usize, complex: bool) -> State {
        let origin = v.offset([self.unit.row, from / CHUNK, self.first, n]);
        // SAFETY: as above.
        unsafe { load_state(v, origin, v.stride(2), self.lanes, complex) }
    }
    fn store_chunk(&self, state: &State, v: &Array, from: usize, n: usize, complex: bool) {
        let origin = v.offset([self.unit.row, from / CHUNK, self.first, n]);
        // SAFETY: as above.
        unsafe { store_state(state, v, origin, v.stride(2), self.lanes, complex) };
    }
}
