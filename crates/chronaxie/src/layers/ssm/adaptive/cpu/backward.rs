//! Backward: tasks are blocks of channels in some of the units; the gradients of weights are summed over the parts of the
//! units, whose number depends on the problem alone, in one order at the end.

use super::super::super::lanes::{Array, LANES, STEPS, State, Tile, load_state, store_state};
use super::super::super::packing::Marks;
use super::super::super::selective::spec::MAX_STATES;
use super::super::spec::AdaptiveScan;
use super::tile::{self, Back, Sum, Walk};
use super::{Block, Inputs};
use crate::simd_math::Lanes;
use crate::{Dtype, Layout, RegionId, Result};
use chronaxie_runtime::pool;

/// Parts of the units, at the most.
const PARTS: usize = 16;

fn parts(p: &AdaptiveScan) -> usize {
    p.packing().states(p.batch()).min(PARTS)
}

/// Where the parts lie in scratch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Regions {
    b: RegionId,
    c: RegionId,
    skip: RegionId,
}

/// Parts of sums.
#[derive(Clone, Copy)]
pub(super) struct Partial {
    /// `[parts, D, N]`, complex
    b: Array,
    c: Array,
    /// `[parts, D]`
    skip: Array,
}

impl Regions {
    pub(super) fn new(p: &AdaptiveScan, layout: &mut Layout) -> Result<Self> {
        let weights = 2 * parts(p) * p.channels() * p.states();
        Ok(Self {
            b: layout.push("parts of grad_B", Dtype::F32, weights)?,
            c: layout.push("parts of grad_C", Dtype::F32, weights)?,
            skip: layout.push("parts of grad_D", Dtype::F32, parts(p) * p.channels())?,
        })
    }
    pub(super) fn arrays(&self, p: &AdaptiveScan, layout: &Layout, base: u64) -> Partial {
        let (d, n) = (p.channels() as isize, p.states() as isize);
        let at = |id: RegionId, strides| Array::scratch(layout.address(base, id) as usize, strides);
        Partial {
            b: at(self.b, [2 * d * n, 2 * n, 2, 0]),
            c: at(self.c, [2 * d * n, 2 * n, 2, 0]),
            skip: at(self.skip, [d, 1, 0, 0]),
        }
    }
}

pub(super) struct Backward<'a> {
    pub p: &'a AdaptiveScan,
    pub marks: Marks<'a>,
    pub inputs: Inputs,
    pub chunks: Array,
    pub phases: Array,
    pub grad_out: Array,
    pub grad_last: Array,
    pub gradients: Inputs,
    pub partial: Partial,
}

/// What a block adds up over the units of its part.
struct Sums {
    b: [State; MAX_STATES],
    c: [State; MAX_STATES],
    skip: [f32; LANES],
}

fn add(sum: &mut State, to: &State) {
    for (sum, to) in sum.iter_mut().flatten().zip(to.iter().flatten()) {
        *sum += to;
    }
}

impl Backward<'_> {
    pub(super) fn run(&self) {
        let (p, parts, units) = (self.p, parts(self.p), self.marks.units());
        let blocks = p.channels().div_ceil(LANES);
        pool::for_each(parts * blocks, |task| {
            let (part, block, none) = (task / blocks, task % blocks, [[[0.0; LANES]; 2]; MAX_STATES]);
            let mut sums = Sums { b: none, c: none, skip: [0.0; LANES] };
            let mine = part * units / parts..(part + 1) * units / parts;
            let mut at = Block::new(p, self.marks.unit(mine.start), block);
            for unit in mine {
                at.unit = self.marks.unit(unit);
                self.unit(&at, &mut sums);
            }
            for n in 0..p.states() {
                at.store(&sums.b[n], &self.partial.b, part, n);
                at.store(&sums.c[n], &self.partial.c, part, n);
            }
            let origin = self.partial.skip.offset([part, at.first, 0, 0]);
            // SAFETY: the layout has room for all parts and channels.
            unsafe { store_state(&[sums.skip, [0.0; LANES]], &self.partial.skip, origin, 1, at.lanes, false) };
        });
        pool::for_each(blocks, |block| {
            let first = block * LANES;
            let lanes = LANES.min(p.channels() - first);
            let sum = |from: &Array, to: &Array, n: usize, complex: bool| {
                let mut total = [[0.0; LANES]; 2];
                for part in 0..parts {
                    // SAFETY: the layout has room for all parts, and all are written.
                    add(&mut total, &unsafe {
                        load_state(from, from.offset([part, first, n, 0]), from.stride(1), lanes, complex)
                    });
                }
                // SAFETY: the signature's check has seen that the index lies inside the tensor.
                unsafe { store_state(&total, to, to.offset([first, n, 0, 0]), to.stride(0), lanes, complex) };
            };
            for n in 0..p.states() {
                sum(&self.partial.b, &self.gradients.b, n, true);
                sum(&self.partial.c, &self.gradients.c, n, true);
            }
            if let Some(skip) = &self.gradients.d {
                sum(&self.partial.skip, skip, 0, false);
            }
        });
    }

    fn unit(&self, at: &Block, sums: &mut Sums) {
        let (p, i, out, zeros) = (self.p, &self.inputs, &self.gradients, [0.0; LANES]);
        let skip = i.d.map_or(zeros, |v| at.vector(&v));
        let mut mu = [Sum::new([zeros; 2]); MAX_STATES];
        // v and the drive, delta and v's derivative, z and the gradient of the drive.
        let (mut v, mut delta, mut z) = (Tile::new(), Tile::new(), Tile::new());
        let (mut dy, mut y, mut angle, mut grad) = (Tile::new(), Tile::new(), Tile::new(), Tile::new());
        let mut trace = [Tile::new(), Tile::new(), Tile::new()];
        for (nth, (from, to)) in at.tiles().rev().enumerate() {
            let steps = to - from;
            // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
            unsafe {
                v.gather(&i.u, 0, &at.sequence(&i.u, from, to), false);
                delta.gather(&i.delta, 0, &at.sequence(&i.delta, from, to), false);
                dy.gather(&self.grad_out, 0, &at.sequence(&self.grad_out, from, to), false);
                if let Some(gate) = &i.z {
                    z.gather(gate, 0, &at.sequence(gate, from, to), false);
                }
            }
            let activate = if p.has_silu() { tile::activate_silu } else { tile::activate_plain };
            activate(&mut v.re[..steps], &mut delta.im[..steps]);
            for t in 0..steps {
                v.im[t] = (Lanes(v.re[t]) * Lanes(delta.re[t])).0;
            }
            let ungate = if i.z.is_some() { tile::ungate_gated } else { tile::ungate_plain };
            ungate(&mut dy.re[..steps], &mut z.re[..steps], 1.0);
            y.re[..steps].fill(zeros);
            z.im[..steps].fill(zeros);
            let fresh = self.marks.fresh_of::<STEPS>(at.unit.row, from..to);
            for (n, mu) in mu[..p.states()].iter_mut().enumerate() {
                at.gather_angles(i, n, from, to, &mut angle);
                let (state, phase) = match &i.h0 {
                    _ if from % STEPS == 0 && from > at.unit.begin => {
                        at.load_chunk(&self.chunks, &self.phases, from, n)
                    }
                    Some(h0) => (at.load(h0, at.unit.state, n), [0; LANES]),
                    None => ([zeros; 2], [0; LANES]),
                };
                let (b, c) = (at.weight(&i.b, n), at.weight(&i.c, n));
                let mut walk = Walk {
                    theta: &angle.re,
                    rho: &angle.im,
                    drive: &v.im,
                    b,
                    c,
                    fresh: &fresh[..steps],
                    state: Sum::new(state),
                    phase,
                    y: &mut y.re,
                    trace: Some(trace.each_mut()),
                };
                if p.has_decay() {
                    tile::walk_polar(&mut walk)
                } else {
                    tile::walk_unitary(&mut walk)
                }
                if nth == 0 {
                    let mut last = at.load(&self.grad_last, at.unit.state, n);
                    tile::turn_back(&mut last, &walk.phase);
                    *mu = Sum::new(last);
                }
                let mut back = Back {
                    theta: &mut angle.re,
                    rho: &mut angle.im,
                    drive: &v.im,
                    dy: &dy.re,
                    b,
                    c,
                    trace: trace.each_ref(),
                    fresh: &fresh[..steps],
                    mu: *mu,
                    grad_b: [zeros; 2],
                    grad_c: [zeros; 2],
                    grad_drive: &mut z.im,
                };
                if p.has_decay() {
                    tile::back_polar(&mut back)
                } else {
                    tile::back_unitary(&mut back)
                }
                // A tile's share is summed on its own first: that of many thousand steps would round away small ones.
                let (of_b, of_c) = (back.grad_b, back.grad_c);
                *mu = back.mu;
                add(&mut sums.b[n], &of_b);
                add(&mut sums.c[n], &of_c);
                // SAFETY: as above, and a block's elements belong to its task.
                unsafe {
                    angle.scatter(&out.theta, &at.angles(&out.theta, n, from, to), false);
                    if let Some(rho) = &out.rho {
                        angle.re = angle.im;
                        angle.scatter(rho, &at.angles(rho, n, from, to), false);
                    }
                }
            }
            let mut of_skip = zeros;
            for t in 0..steps {
                for (l, (of_skip, &skip)) in of_skip.iter_mut().zip(&skip).enumerate() {
                    let (v, dy, of_drive) = (v.re[t][l], dy.re[t][l], z.im[t][l]);
                    *of_skip += dy * v;
                    grad.re[t][l] = (delta.re[t][l] * of_drive + dy * skip) * delta.im[t][l];
                    grad.im[t][l] = v * of_drive;
                    // z holds silu'(z) times the gradient of out.
                    z.re[t][l] *= y.re[t][l] + skip * v;
                }
            }
            sums.skip.iter_mut().zip(of_skip).for_each(|(sum, x)| *sum += x);
            // SAFETY: as above.
            unsafe {
                grad.scatter(&out.u, &at.sequence(&out.u, from, to), false);
                std::mem::swap(&mut grad.re, &mut grad.im);
                grad.scatter(&out.delta, &at.sequence(&out.delta, from, to), false);
                if let Some(gate) = &out.z {
                    z.scatter(gate, &at.sequence(gate, from, to), false);
                }
            }
        }
        if let Some(h0) = &out.h0 {
            for (n, mu) in mu[..p.states()].iter().enumerate() {
                // A sequence without steps hands its gradient through; else the phase before the first step is 0.
                let of_h0 =
                    if at.unit.begin == at.unit.end { at.load(&self.grad_last, at.unit.state, n) } else { mu.value };
                at.store(&of_h0, h0, at.unit.state, n);
            }
        }
    }
}
