//! Forward: tasks are blocks of channels of one unit.

use super::super::super::lanes::{Array, LANES, STEPS, Tile};
use super::super::super::packing::Marks;
use super::super::spec::{CHUNK, MAX_STATES, SelectiveScan};
use super::tile::{self, Walk};
use super::{Block, Grouping, Inputs};
use chronaxie_runtime::pool;

pub(super) struct Forward<'a> {
    pub p: &'a SelectiveScan,
    pub marks: Marks<'a>,
    pub inputs: Inputs,
    pub out: Array,
    pub last: Array,
    pub chunks: Array,
}

impl Forward<'_> {
    pub(super) fn run(&self) {
        if self.p.channels() == 0 {
            return;
        }
        let g = Grouping::new(self.p);
        let blocks = g.groups * g.blocks;
        pool::for_each(self.marks.units() * blocks, |task| {
            let (unit, block) = (task / blocks, task % blocks);
            self.block(&g, &Block::new(&g, self.marks.unit(unit), block / g.blocks, block % g.blocks));
        });
    }

    fn block(&self, g: &Grouping, at: &Block) {
        let (p, i, complex) = (self.p, &self.inputs, self.p.is_complex());
        let zeros = [0.0; LANES];
        let bias = i.delta_bias.map_or(zeros, |v| at.vector(&v));
        let skip = i.d.map_or(zeros, |v| at.vector(&v));
        let mut states = [[zeros; 2]; MAX_STATES];
        if let Some(h0) = &i.h0 {
            states[..p.states()].iter_mut().enumerate().for_each(|(n, s)| *s = at.load(h0, at.unit.state, n, complex));
        }
        let (mut u, mut delta, mut z) = (Tile::new(), Tile::new(), Tile::new());
        let (mut b, mut c, mut y) = (Tile::new(), Tile::new(), Tile::new());
        for (from, to) in at.tiles() {
            let steps = to - from;
            // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
            unsafe {
                u.gather(&i.u, 0, &at.sequence(&i.u, from, to), false);
                delta.gather(&i.delta, 0, &at.sequence(&i.delta, from, to), false);
                if let Some(v) = &i.z {
                    z.gather(v, 0, &at.sequence(v, from, to), false);
                }
            }
            // The derivative is not wanted: y's place, which is set below, takes it.
            let sizes = if p.has_softplus() { tile::step_sizes_softplus } else { tile::step_sizes_plain };
            sizes(&mut delta.re[..steps], &bias, &mut y.re[..steps]);
            y.re[..steps].fill(zeros);
            let fresh = self.marks.fresh_of::<STEPS>(at.unit.row, from..to);
            for (n, state) in states[..p.states()].iter_mut().enumerate() {
                if from % CHUNK == 0 {
                    at.store_chunk(state, &self.chunks, from, n, complex);
                }
                // SAFETY: as above.
                unsafe {
                    b.gather(&i.b, 0, &at.weight(g, p.b(), &i.b, n, from, to), complex);
                    c.gather(&i.c, 0, &at.weight(g, p.c(), &i.c, n, from, to), complex);
                }
                let mut walk = Walk {
                    rule: p.discretisation(),
                    a: at.rate(&i.a, n, complex),
                    delta: &delta.re,
                    u: &u.re,
                    b: &b,
                    c: &c,
                    fresh: &fresh[..steps],
                    state: *state,
                    y: &mut y.re,
                };
                if complex {
                    tile::walk_complex(&mut walk)
                } else {
                    tile::walk_real(&mut walk)
                }
                *state = walk.state;
            }
            let finish = if i.z.is_some() { tile::finish_gated } else { tile::finish_plain };
            finish(&mut y.re[..steps], &u.re, &z.re, &skip, p.kappa() as f32);
            // SAFETY: as above, and a block's elements belong to its task.
            unsafe { y.scatter(&self.out, &at.sequence(&self.out, from, to), false) };
        }
        for (n, state) in states[..p.states()].iter().enumerate() {
            at.store(state, &self.last, at.unit.state, n, complex);
        }
    }
}
