//! `selective_state_update`: tasks are runs of blocks of sixteen channels.

use super::super::super::lanes::{Array, LANES, Span, Tile, load_state, store_state};
use super::super::super::packing::Unit;
use super::super::step::{NAME, SelectiveStateUpdate};
use super::tile::{self, Walk};
use super::{Block, Grouping, Inputs};
use crate::op::{Args, CpuPlan, CpuWork, Pass, PlanOptions, Planned};
use crate::{Dtype, Error, Layout, RegionId, Result};
use chronaxie_runtime::pool;

/// Blocks that a task takes, so that handing it out and clearing its tiles costs little.
const BLOCKS: usize = 8;

/// `selective_state_update` on the CPU.
#[derive(Debug)]
pub(in super::super) struct StepCpu {
    problem: SelectiveStateUpdate,
    taken: RegionId,
}

impl StepCpu {
    pub(in super::super) fn plan(problem: SelectiveStateUpdate, options: &PlanOptions) -> Result<CpuPlan<Self>> {
        let mut scratch = Layout::new(options.scratch_gap);
        let taken = scratch.push("whether a row has a state", Dtype::U8, problem.rows())?;
        CpuPlan::new(&problem, options, [(Pass::Step, scratch)], Self { problem, taken })
    }
}

impl CpuWork for StepCpu {
    fn execute(&self, _pass: Pass, planned: &Planned, args: &mut Args<'_, '_>) -> Result<()> {
        let p = self.problem.scan();
        let [state, out] = args.outputs else {
            return Err(Error::shape(format!("{NAME}: two outputs are needed")));
        };
        let table =
            if self.problem.has_table() { Some(args.inputs[args.inputs.len() - 1].as_slice::<i32>()?) } else { None };
        if let Some(table) = table {
            // SAFETY: the region is carved once.
            SelectiveStateUpdate::check_table(table, unsafe { planned.scratch.carve(&args.scratch, self.taken)? })?;
        }
        let (i, _) = Inputs::read(p, args.inputs);
        let io = Step { problem: &self.problem, i, table, state: Array::write(state), out: Array::write(out) };
        let g = Grouping::new(p);
        let all = p.batch() * g.groups * g.blocks;
        pool::for_each(all.div_ceil(BLOCKS), |task| {
            let mut tiles = Tiles { u: Tile::new(), b: Tile::new(), c: Tile::new(), rest: Tile::new() };
            for block in task * BLOCKS..((task + 1) * BLOCKS).min(all) {
                let (row, block) = (block / (g.groups * g.blocks), block % (g.groups * g.blocks));
                let state = table.map_or(Some(row), |t| usize::try_from(t[row]).ok());
                let unit = Unit { row, begin: 0, end: 1, state: state.unwrap_or(0) };
                io.block(&g, &Block::new(&g, unit, block / g.blocks, block % g.blocks), state.is_some(), &mut tiles);
            }
        });
        Ok(())
    }
}

struct Step<'a> {
    problem: &'a SelectiveStateUpdate,
    i: Inputs,
    table: Option<&'a [i32]>,
    state: Array,
    out: Array,
}

struct Tiles {
    u: Tile,
    b: Tile,
    c: Tile,
    /// y in its real parts, what nobody wants in the others.
    rest: Tile,
}

impl Step<'_> {
    fn block(&self, g: &Grouping, at: &Block, present: bool, tiles: &mut Tiles) {
        let (p, i, zeros) = (self.problem.scan(), &self.i, [0.0; LANES]);
        let complex = p.is_complex();
        let Tiles { u, b, c, rest } = tiles;
        let one = |v: &Array| Span { steps: 1, ..at.sequence(v, 0, 1) };
        debug_assert!(present || self.table.is_some());
        if present {
            let (mut delta, mut z) = ([zeros], [zeros]);
            // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
            let vector = |v: &Array| unsafe { load_state(v, one(v).origin, v.stride(1), at.lanes, false)[0] };
            u.re[0] = vector(&i.u);
            delta[0] = vector(&i.delta);
            if let Some(v) = &i.z {
                z[0] = vector(v);
            }
            let bias = i.delta_bias.map_or(zeros, |v| at.vector(&v));
            let skip = i.d.map_or(zeros, |v| at.vector(&v));
            let sizes = if p.has_softplus() { tile::step_sizes_softplus } else { tile::step_sizes_plain };
            sizes(&mut delta, &bias, &mut rest.im[..1]);
            rest.re[0] = zeros;
            for n in 0..p.states() {
                // SAFETY: as above.
                unsafe {
                    b.gather(&i.b, 0, &at.weight(g, p.b(), &i.b, n, 0, 1), complex);
                    c.gather(&i.c, 0, &at.weight(g, p.c(), &i.c, n, 0, 1), complex);
                }
                let mut walk = Walk {
                    rule: p.discretisation(),
                    a: at.rate(&i.a, n, complex),
                    delta: &delta,
                    u: &u.re,
                    b,
                    c,
                    fresh: &[false],
                    state: at.load(&self.state, at.unit.state, n, complex),
                    y: &mut rest.re,
                };
                if complex {
                    tile::walk_complex(&mut walk)
                } else {
                    tile::walk_real(&mut walk)
                }
                at.store(&walk.state, &self.state, at.unit.state, n, complex);
            }
            let finish = if i.z.is_some() { tile::finish_gated } else { tile::finish_plain };
            finish(&mut rest.re[..1], &u.re, &z, &skip, p.kappa() as f32);
        } else {
            rest.re[0] = zeros;
        }
        // SAFETY: as above, and a block's outputs belong to its task.
        unsafe {
            store_state(&[rest.re[0], zeros], &self.out, one(&self.out).origin, self.out.stride(1), at.lanes, false)
        };
    }
}
