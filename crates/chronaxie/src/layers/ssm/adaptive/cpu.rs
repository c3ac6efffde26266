//! Threads over sequences and blocks of sixteen channels, SIMD over the channels of a block.
//!
//! A state is kept turned back by the phase that it has turned by: `s_t = e^{-i G_t} h_t` with G the sum of the angles as
//! 32-bit turns, so that `s_t = e^{rho_t} s_{t-1} + e^{-i G_t} x_t`. Without decay that is a sum: no step multiplies what
//! is there, and a million of them keep its absolute value. The sum is compensated (Kahan's), and a small decay is added
//! as `(e^rho - 1) s`, for a factor near 1 has no bits left for it.

#![allow(unsafe_code)]

mod backward;
mod forward;
mod tile;

use super::super::lanes::{Array, LANES, STEPS, Span, State, Tile, load_state, load_words, store_state, store_words};
use super::super::packing::{Packing, Unit};
use super::spec::{AdaptiveScan, NAME, growing};
use crate::op::{Args, CpuPlan, CpuWork, Pass, PlanOptions, Planned};
use crate::{Error, Layout, Result, View, ViewMut};

/// `adaptive_theta` on the CPU.
#[derive(Debug)]
pub(super) struct Cpu {
    problem: AdaptiveScan,
    regions: backward::Regions,
}

impl Cpu {
    pub(super) fn plan(problem: AdaptiveScan, options: &PlanOptions) -> Result<CpuPlan<Self>> {
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
        if pass == Pass::Forward {
            let [out, last, chunks, phases] = args.outputs else { return Err(miscounted()) };
            let [out, last, chunks, phases] = [out, last, chunks, phases].map(Array::write);
            return forward::Forward { p, marks, inputs, out, last, chunks, phases }.run();
        }
        let [chunks, phases, grad_out, grad_last] = rest else { return Err(miscounted()) };
        let [chunks, phases, grad_out, grad_last] = [chunks, phases, grad_out, grad_last].map(Array::read);
        let gradients = Inputs::write(p, args.outputs);
        let partial = self.regions.arrays(p, &planned.scratch, args.scratch.address());
        backward::Backward { p, marks, inputs, chunks, phases, grad_out, grad_last, gradients, partial }.run();
        Ok(())
    }
}

/// What goes in, or the gradients of it.
#[derive(Clone, Copy)]
struct Inputs {
    theta: Array,
    rho: Option<Array>,
    u: Array,
    delta: Array,
    b: Array,
    c: Array,
    d: Option<Array>,
    z: Option<Array>,
    h0: Option<Array>,
}

impl Inputs {
    fn collect(p: &AdaptiveScan, mut next: impl FnMut() -> Array) -> Self {
        let given = p.inputs().map(|t| t.is_some());
        let theta = next();
        let mut optional = |i: usize| given[i].then(&mut next);
        let rho = optional(1);
        let (u, delta, b, c) = (next(), next(), next(), next());
        let mut optional = |i: usize| given[i].then(&mut next);
        Self { theta, rho, u, delta, b, c, d: optional(6), z: optional(7), h0: optional(8) }
    }
    /// The inputs, and what lies behind them and the packing's tensor.
    fn read<'a, 'v>(p: &AdaptiveScan, views: &'a [View<'v>]) -> (Self, &'a [View<'v>]) {
        let mut at = 0;
        let all = Self::collect(p, || {
            at += 1;
            Array::read(&views[at - 1])
        });
        (all, &views[at + usize::from(p.packing() != Packing::Whole)..])
    }
    fn write(p: &AdaptiveScan, views: &mut [ViewMut<'_>]) -> Self {
        let mut views = views.iter_mut();
        Self::collect(p, || Array::write(views.next().expect("the signature's check has counted the tensors")))
    }
}

/// Sixteen neighbouring channels, or fewer, in one unit.
#[derive(Debug, Clone, Copy)]
struct Block {
    unit: Unit,
    first: usize,
    lanes: usize,
}

impl Block {
    fn new(p: &AdaptiveScan, unit: Unit, block: usize) -> Self {
        let first = block * LANES;
        Self { unit, first, lanes: LANES.min(p.channels() - first) }
    }
    /// The unit's tiles, first to last: from, to.
    fn tiles(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let Unit { begin, end, .. } = self.unit;
        let chunks = if begin == end { 0..0 } else { begin / STEPS..end.div_ceil(STEPS) };
        chunks.map(move |c| (begin.max(c * STEPS), end.min((c + 1) * STEPS)))
    }
    fn sequence(&self, v: &Array, from: usize, to: usize) -> Span {
        let origin = v.offset([self.unit.row, self.first, from, 0]);
        Span { origin, lane: v.stride(1), step: v.stride(2), lanes: self.lanes, steps: to - from }
    }
    /// The angles (or radii) of state n over a tile.
    fn angles(&self, v: &Array, n: usize, from: usize, to: usize) -> Span {
        let origin = v.offset([self.unit.row, self.first, n, from]);
        Span { origin, lane: v.stride(1), step: v.stride(3), lanes: self.lanes, steps: to - from }
    }
    /// The angles of state n over a tile, and beside them the logarithms of radii.
    fn gather_angles(&self, i: &Inputs, n: usize, from: usize, to: usize, tile: &mut Tile) {
        // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
        unsafe {
            if let Some(rho) = &i.rho {
                tile.gather(rho, 0, &self.angles(rho, n, from, to), false);
                std::mem::swap(&mut tile.re, &mut tile.im);
            }
            tile.gather(&i.theta, 0, &self.angles(&i.theta, n, from, to), false);
        }
    }
    fn vector(&self, v: &Array) -> [f32; LANES] {
        // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
        unsafe { load_state(v, v.offset([self.first, 0, 0, 0]), v.stride(0), self.lanes, false)[0] }
    }
    /// A weight of state n.
    fn weight(&self, v: &Array, n: usize) -> State {
        // SAFETY: as above.
        unsafe { load_state(v, v.offset([self.first, n, 0, 0]), v.stride(0), self.lanes, true) }
    }
    /// A complex number a channel at `[i, first, n]`.
    fn load(&self, v: &Array, i: usize, n: usize) -> State {
        // SAFETY: as above.
        unsafe { load_state(v, v.offset([i, self.first, n, 0]), v.stride(1), self.lanes, true) }
    }
    fn store(&self, state: &State, v: &Array, i: usize, n: usize) {
        // SAFETY: as above, and a block's states belong to its task.
        unsafe { store_state(state, v, v.offset([i, self.first, n, 0]), v.stride(1), self.lanes, true) };
    }
    /// The state before a tile that was saved, and its phase; both are `[B, chunk, D, N]`.
    fn load_chunk(&self, states: &Array, phases: &Array, from: usize, n: usize) -> (State, [i32; LANES]) {
        let index = [self.unit.row, from / STEPS, self.first, n];
        // SAFETY: as above.
        unsafe {
            let state = load_state(states, states.offset(index), states.stride(2), self.lanes, true);
            (state, load_words(phases, phases.offset(index), phases.stride(2), self.lanes))
        }
    }
    fn store_chunk(&self, states: &Array, phases: &Array, from: usize, n: usize, s: &State, g: &[i32; LANES]) {
        let index = [self.unit.row, from / STEPS, self.first, n];
        // SAFETY: as above, and a block's states belong to its task.
        unsafe {
            store_state(s, states, states.offset(index), states.stride(2), self.lanes, true);
            store_words(g, phases, phases.offset(index), phases.stride(2), self.lanes);
        }
    }
}
