//! Forward: tasks are blocks of channels of one unit.

use super::super::super::lanes::{Array, LANES, STEPS, Tile};
use super::super::super::packing::Marks;
use super::super::super::selective::spec::MAX_STATES;
use super::super::spec::AdaptiveScan;
use super::tile::{self, Sum, Walk};
use super::{Block, Inputs, growing};
use crate::Result;
use crate::simd_math::Lanes;
use chronaxie_runtime::pool;
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) struct Forward<'a> {
    pub p: &'a AdaptiveScan,
    pub marks: Marks<'a>,
    pub inputs: Inputs,
    pub out: Array,
    pub last: Array,
    pub chunks: Array,
    pub phases: Array,
}

impl Forward<'_> {
    pub(super) fn run(&self) -> Result<()> {
        let blocks = self.p.channels().div_ceil(LANES);
        // The largest logarithm of a radius, as bits: positive floats are in the order of their bits.
        let grows = AtomicU32::new(0);
        pool::for_each(self.marks.units() * blocks, |task| {
            self.block(&Block::new(self.p, self.marks.unit(task / blocks), task % blocks), &grows);
        });
        match f32::from_bits(grows.into_inner()) {
            0.0 => Ok(()),
            rho => Err(growing(rho.into())),
        }
    }

    fn block(&self, at: &Block, grows: &AtomicU32) {
        let (p, i, zeros) = (self.p, &self.inputs, [0.0; LANES]);
        let skip = i.d.map_or(zeros, |v| at.vector(&v));
        let mut states = [Sum::new([zeros; 2]); MAX_STATES];
        let mut phases = [[0; LANES]; MAX_STATES];
        if let Some(h0) = &i.h0 {
            let each = states[..p.states()].iter_mut().enumerate();
            each.for_each(|(n, s)| *s = Sum::new(at.load(h0, at.unit.state, n)));
        }
        // The drive lies in the imaginary part of v's tile.
        let (mut v, mut delta, mut z) = (Tile::new(), Tile::new(), Tile::new());
        let (mut angle, mut y) = (Tile::new(), Tile::new());
        for (from, to) in at.tiles() {
            let steps = to - from;
            // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
            unsafe {
                v.gather(&i.u, 0, &at.sequence(&i.u, from, to), false);
                delta.gather(&i.delta, 0, &at.sequence(&i.delta, from, to), false);
                if let Some(gate) = &i.z {
                    z.gather(gate, 0, &at.sequence(gate, from, to), false);
                }
            }
            // The derivatives are not wanted: y's place, which is set below, takes them.
            let activate = if p.has_silu() { tile::activate_silu } else { tile::activate_plain };
            activate(&mut v.re[..steps], &mut y.re[..steps]);
            for t in 0..steps {
                v.im[t] = (Lanes(v.re[t]) * Lanes(delta.re[t])).0;
            }
            y.re[..steps].fill(zeros);
            let fresh = self.marks.fresh_of::<STEPS>(at.unit.row, from..to);
            for (n, (state, phase)) in states.iter_mut().zip(&mut phases).take(p.states()).enumerate() {
                if from % STEPS == 0 {
                    at.store_chunk(&self.chunks, &self.phases, from, n, &state.value, phase);
                }
                at.gather_angles(i, n, from, to, &mut angle);
                if i.rho.is_some() {
                    let most = angle.im[..steps].iter().flatten().fold(0f32, |m, &r| m.max(r));
                    grows.fetch_max(most.to_bits(), Ordering::Relaxed);
                }
                let mut walk = Walk {
                    theta: &angle.re,
                    rho: &angle.im,
                    drive: &v.im,
                    b: at.weight(&i.b, n),
                    c: at.weight(&i.c, n),
                    fresh: &fresh[..steps],
                    state: *state,
                    phase: *phase,
                    y: &mut y.re,
                    trace: None,
                };
                if p.has_decay() {
                    tile::walk_polar(&mut walk)
                } else {
                    tile::walk_unitary(&mut walk)
                }
                (*state, *phase) = (walk.state, walk.phase);
            }
            let finish = if i.z.is_some() { tile::finish_gated } else { tile::finish_plain };
            finish(&mut y.re[..steps], &v.re, &z.re, &skip, 1.0);
            // SAFETY: as above, and a block's elements belong to its task.
            unsafe { y.scatter(&self.out, &at.sequence(&self.out, from, to), false) };
        }
        for (n, (state, phase)) in states.iter_mut().zip(&phases).take(p.states()).enumerate() {
            tile::turn(&mut state.value, phase);
            at.store(&state.value, &self.last, at.unit.state, n);
        }
    }
}
