//! Backward: tasks are slices of a group's blocks in some of the units. What several tasks add to (the gradients of what
//! has no time or no channel) goes into parts of scratch of their own, whose number depends on the problem alone, and is
//! summed in one order at the end.

use super::super::super::lanes::{Array, LANES, STEPS, State, Tile, load_state, store_state};
use super::super::super::packing::Marks;
use super::super::spec::{CHUNK, MAX_STATES, SelectiveScan, Weights};
use super::tile::{self, Back, Trace, Walk};
use super::{Block, Grouping, Inputs};
use crate::{Dtype, Layout, Result};
use chronaxie_runtime::{RegionId, pool};

/// Parts of the units, and of a group's blocks, at the most.
const PARTS: usize = 16;

/// How the work is parted.
#[derive(Debug, Clone, Copy)]
struct Parts {
    units: usize,
    slices: usize,
}

impl Parts {
    fn new(p: &SelectiveScan, g: &Grouping) -> Self {
        Self { units: p.packing().states(p.batch()).min(PARTS), slices: g.blocks.min(PARTS) }
    }
}

/// Where the parts lie in scratch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Regions {
    a: RegionId,
    b: RegionId,
    c: RegionId,
    vectors: RegionId,
}

/// Parts of sums.
#[derive(Clone, Copy)]
pub(super) struct Partial {
    /// `[units, D, N]`
    a: Array,
    /// `[units, D, N]`, or the address of `[slices, B, G, N, T]`.
    b: (Array, u64),
    c: (Array, u64),
    /// `[units, 2, D]`: of D, of delta_bias.
    vectors: Array,
}

impl Regions {
    pub(super) fn new(p: &SelectiveScan, layout: &mut Layout) -> Result<Self> {
        let g = Grouping::new(p);
        let parts = Parts::new(p, &g);
        let wide = if p.is_complex() { 2 } else { 1 };
        let rates = parts.units * p.channels() * p.states() * wide;
        let weight = |w: Weights| match w {
            Weights::Constant => rates,
            Weights::Varying(_) if g.own => 0,
            Weights::Varying(_) => parts.slices * p.batch() * g.groups * p.states() * p.steps() * wide,
        };
        Ok(Self {
            a: layout.push("parts of grad_A", Dtype::F32, rates)?,
            b: layout.push("parts of grad_B", Dtype::F32, weight(p.b()))?,
            c: layout.push("parts of grad_C", Dtype::F32, weight(p.c()))?,
            vectors: layout.push("parts of grad_D and grad_delta_bias", Dtype::F32, parts.units * 2 * p.channels())?,
        })
    }
    pub(super) fn arrays(&self, p: &SelectiveScan, layout: &Layout, base: u64) -> Partial {
        let wide = if p.is_complex() { 2 } else { 1 };
        let (d, n) = (p.channels() as isize, p.states() as isize);
        let rates = |id: RegionId| Array::scratch(layout.address(base, id) as usize, [d * n * wide, n * wide, wide, 0]);
        Partial {
            a: rates(self.a),
            b: (rates(self.b), layout.address(base, self.b)),
            c: (rates(self.c), layout.address(base, self.c)),
            vectors: Array::scratch(layout.address(base, self.vectors) as usize, [2 * d, 1, d, 0]),
        }
    }
}

pub(super) struct Backward<'a> {
    pub p: &'a SelectiveScan,
    pub marks: Marks<'a>,
    pub inputs: Inputs,
    pub chunks: Array,
    pub grad_out: Array,
    pub grad_last: Array,
    pub gradients: Inputs,
    pub partial: Partial,
}

/// What a block adds up over the units of its part.
struct Sums {
    a: [State; MAX_STATES],
    b: [State; MAX_STATES],
    c: [State; MAX_STATES],
    /// Of D and of delta_bias.
    vectors: State,
}

fn add(sum: &mut State, to: &State) {
    for (sum, to) in sum.iter_mut().flatten().zip(to.iter().flatten()) {
        *sum += to;
    }
}

impl Backward<'_> {
    pub(super) fn run(&self) {
        let g = Grouping::new(self.p);
        let parts = Parts::new(self.p, &g);
        let units = self.marks.units();
        // Without channels there are no slices, and sums of none.
        let slices = g.groups * parts.slices;
        pool::for_each(parts.units * slices, |task| {
            let (part, group, slice) = (task / slices, task % slices / parts.slices, task % parts.slices);
            let blocks = slice * g.blocks / parts.slices..(slice + 1) * g.blocks / parts.slices;
            let mine = part * units / parts.units..(part + 1) * units / parts.units;
            for (nth, block) in blocks.enumerate() {
                self.block(&g, part, slice, group, block, nth == 0, mine.clone());
            }
        });
        self.gather_sums(&g, &parts);
    }

    #[allow(clippy::too_many_arguments)]
    fn block(
        &self,
        g: &Grouping,
        part: usize,
        slice: usize,
        group: usize,
        block: usize,
        first: bool,
        units: std::ops::Range<usize>,
    ) {
        let (p, complex, zeros) = (self.p, self.p.is_complex(), [0.0; LANES]);
        let none = [[zeros; 2]; MAX_STATES];
        let mut sums = Sums { a: none, b: none, c: none, vectors: [zeros; 2] };
        let mut at = Block::new(g, self.marks.unit(units.start), group, block);
        for unit in units {
            at.unit = self.marks.unit(unit);
            self.unit(g, &at, slice, first, &mut sums);
        }
        for n in 0..p.states() {
            at.store(&sums.a[n], &self.partial.a, part, n, complex);
            if p.b() == Weights::Constant {
                at.store(&sums.b[n], &self.partial.b.0, part, n, complex);
            }
            if p.c() == Weights::Constant {
                at.store(&sums.c[n], &self.partial.c.0, part, n, complex);
            }
        }
        at.store(&[sums.vectors[0], zeros], &self.partial.vectors, part, 0, false);
        at.store(&[sums.vectors[1], zeros], &self.partial.vectors, part, 1, false);
    }

    fn unit(&self, g: &Grouping, at: &Block, slice: usize, first: bool, sums: &mut Sums) {
        let (p, i, out, complex) = (self.p, &self.inputs, &self.gradients, self.p.is_complex());
        let zeros = [0.0; LANES];
        let bias = i.delta_bias.map_or(zeros, |v| at.vector(&v));
        let skip = i.d.map_or(zeros, |v| at.vector(&v));
        let kappa = p.kappa() as f32;
        let mut mu = [[zeros; 2]; MAX_STATES];
        for (n, mu) in mu[..p.states()].iter_mut().enumerate() {
            *mu = at.load(&self.grad_last, at.unit.state, n, complex);
        }
        // Of real numbers: re of one tile and im of another.
        let (mut u, mut delta, mut z, mut dy) = (Tile::new(), Tile::new(), Tile::new(), Tile::new());
        let (mut b, mut c, mut y) = (Tile::new(), Tile::new(), Tile::new());
        let (mut before, mut gate, mut factor) = (Tile::new(), Tile::new(), Tile::new());
        let mut grad = Tile::new();
        for (from, to) in at.tiles().rev() {
            let steps = to - from;
            // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
            unsafe {
                u.gather(&i.u, 0, &at.sequence(&i.u, from, to), false);
                delta.gather(&i.delta, 0, &at.sequence(&i.delta, from, to), false);
                dy.gather(&self.grad_out, 0, &at.sequence(&self.grad_out, from, to), false);
                if let Some(v) = &i.z {
                    z.gather(v, 0, &at.sequence(v, from, to), false);
                }
            }
            let sizes = if p.has_softplus() { tile::step_sizes_softplus } else { tile::step_sizes_plain };
            sizes(&mut delta.re[..steps], &bias, &mut delta.im[..steps]);
            let ungate = if i.z.is_some() { tile::ungate_gated } else { tile::ungate_plain };
            ungate(&mut dy.re[..steps], &mut z.re[..steps], kappa);
            y.re[..steps].fill(zeros);
            // The gradients of u and delta.
            grad.re[..steps].fill(zeros);
            grad.im[..steps].fill(zeros);
            let fresh = self.marks.fresh_of::<STEPS>(at.unit.row, from..to);
            for (n, mu) in mu[..p.states()].iter_mut().enumerate() {
                // SAFETY: as above.
                unsafe {
                    b.gather(&i.b, 0, &at.weight(g, p.b(), &i.b, n, from, to), complex);
                    c.gather(&i.c, 0, &at.weight(g, p.c(), &i.c, n, from, to), complex);
                }
                let state = match &i.h0 {
                    _ if from % CHUNK == 0 && from > at.unit.begin => at.load_chunk(&self.chunks, from, n, complex),
                    Some(h0) => at.load(h0, at.unit.state, n, complex),
                    None => [zeros; 2],
                };
                let (rule, a) = (p.discretisation(), at.rate(&i.a, n, complex));
                let walk = Walk {
                    rule,
                    a,
                    delta: &delta.re,
                    u: &u.re,
                    b: &b,
                    c: &c,
                    fresh: &fresh[..steps],
                    state,
                    y: &mut y.re,
                };
                let mut trace = Trace { walk, before: &mut before, gate: &mut gate, factor: &mut factor };
                if complex {
                    tile::trace_complex(&mut trace)
                } else {
                    tile::trace_real(&mut trace)
                }
                let mut back = Back {
                    rule,
                    a,
                    delta: &delta.re,
                    u: &u.re,
                    dy: &dy.re,
                    b: &mut b,
                    c: &mut c,
                    before: &before,
                    gate: &gate,
                    factor: &factor,
                    fresh: &fresh[..steps],
                    mu: *mu,
                    grad_a: [zeros; 2],
                    grad_delta: &mut grad.im,
                    grad_u: &mut grad.re,
                };
                if complex {
                    tile::back_complex(&mut back)
                } else {
                    tile::back_real(&mut back)
                }
                // A tile's share is summed on its own first: that of many thousand steps would round away small ones.
                let of_tile = back.grad_a;
                *mu = back.mu;
                add(&mut sums.a[n], &of_tile);
                self.weight(g, at, p.b(), &b, &out.b, self.partial.b.1, (slice, first), (n, from, to), &mut sums.b[n]);
                self.weight(g, at, p.c(), &c, &out.c, self.partial.c.1, (slice, first), (n, from, to), &mut sums.c[n]);
            }
            let mut of_tile = [[0.0; LANES]; 2];
            for t in 0..steps {
                for (l, &skip) in skip.iter().enumerate() {
                    let (u, own) = (u.re[t][l], dy.re[t][l] / kappa);
                    grad.re[t][l] += own * skip;
                    of_tile[0][l] += own * u;
                    grad.im[t][l] *= delta.im[t][l];
                    of_tile[1][l] += grad.im[t][l];
                    // z holds silu'(z) times the gradient of out.
                    z.re[t][l] *= kappa * y.re[t][l] + skip * u;
                }
            }
            add(&mut sums.vectors, &of_tile);
            // SAFETY: as above, and a block's elements belong to its task.
            unsafe {
                grad.scatter(&out.u, &at.sequence(&out.u, from, to), false);
                std::mem::swap(&mut grad.re, &mut grad.im);
                grad.scatter(&out.delta, &at.sequence(&out.delta, from, to), false);
                if let Some(v) = &out.z {
                    z.scatter(v, &at.sequence(v, from, to), false);
                }
            }
        }
        if let Some(h0) = &out.h0 {
            for (n, mu) in mu[..p.states()].iter().enumerate() {
                at.store(mu, h0, at.unit.state, n, complex);
            }
        }
    }

    /// Adds a tile's gradient of a weight to where it belongs.
    #[allow(clippy::too_many_arguments)]
    fn weight(
        &self,
        g: &Grouping,
        at: &Block,
        w: Weights,
        tile: &Tile,
        to_own: &Array,
        partial: u64,
        (slice, first): (usize, bool),
        (n, from, to): (usize, usize, usize),
        sum: &mut State,
    ) {
        let (p, complex) = (self.p, self.p.is_complex());
        let wide = 1 + usize::from(complex);
        match w {
            Weights::Constant => {
                let mut of_tile = [[0.0; LANES]; 2];
                for t in 0..to - from {
                    add(&mut of_tile, &[tile.re[t], if complex { tile.im[t] } else { [0.0; LANES] }]);
                }
                add(sum, &of_tile);
            }
            // SAFETY: as in `unit`: a channel's own weights belong to its block.
            Weights::Varying(_) if g.own => unsafe {
                tile.scatter(to_own, &at.weight(g, w, to_own, n, from, to), complex);
            },
            Weights::Varying(_) => {
                let row = ((slice * p.batch() + at.unit.row) * g.groups + at.group) * p.states() + n;
                let base = (partial as usize + size_of::<f32>() * wide * row * p.steps()) as *mut f32;
                // A lane that is not there has no weight either, so its gradients are 0: u and dy are.
                for t in from..to {
                    for part in 0..wide {
                        let lanes = if part == 0 { &tile.re[t - from] } else { &tile.im[t - from] };
                        let sum = sum_of(lanes);
                        // SAFETY: the layout has room for all slices, rows and times; this slice's row and times are
                        // written by this task alone, in its first block before any other.
                        unsafe {
                            let cell = base.add(wide * t + part);
                            *cell = if first { sum } else { *cell + sum };
                        }
                    }
                }
            }
        }
    }

    /// The sums of the parts.
    fn gather_sums(&self, g: &Grouping, parts: &Parts) {
        let (p, complex) = (self.p, self.p.is_complex());
        pool::for_each(p.channels().div_ceil(LANES), |block| {
            let first = block * LANES;
            let lanes = LANES.min(p.channels() - first);
            let sum = |from: &Array, to: &Array, n: usize, to_n: usize, complex: bool| {
                let mut total = [[0.0; LANES]; 2];
                for part in 0..parts.units {
                    // SAFETY: the layout has room for all parts, and all are written.
                    let s =
                        unsafe { load_state(from, from.offset([part, first, n, 0]), from.stride(1), lanes, complex) };
                    for l in 0..LANES {
                        total[0][l] += s[0][l];
                        total[1][l] += s[1][l];
                    }
                }
                let origin = to.offset([first, to_n, 0, 0]);
                // SAFETY: the signature's check has seen that the index lies inside the tensor.
                unsafe { store_state(&total, to, origin, to.stride(0), lanes, complex) };
            };
            for n in 0..p.states() {
                sum(&self.partial.a, &self.gradients.a, n, n, complex);
                if p.b() == Weights::Constant {
                    sum(&self.partial.b.0, &self.gradients.b, n, n, complex);
                }
                if p.c() == Weights::Constant {
                    sum(&self.partial.c.0, &self.gradients.c, n, n, complex);
                }
            }
            for (which, to) in [&self.gradients.d, &self.gradients.delta_bias].into_iter().enumerate() {
                if let Some(to) = to {
                    sum(&self.partial.vectors, to, which, 0, false);
                }
            }
        });
        for (w, from, to) in
            [(p.b(), self.partial.b.1, &self.gradients.b), (p.c(), self.partial.c.1, &self.gradients.c)]
        {
            if matches!(w, Weights::Varying(_)) && !g.own {
                self.sum_slices(g, parts.slices, from, to);
            }
        }
    }

    /// The sums over the slices of a varying weight's gradient.
    fn sum_slices(&self, g: &Grouping, slices: usize, from: u64, to: &Array) {
        let (p, complex) = (self.p, self.p.is_complex());
        let wide = 1 + usize::from(complex);
        let rows = p.batch() * g.groups * p.states();
        pool::for_each(rows, |row| {
            let mut tile = Tile::new();
            let (n, group, b) = (row % p.states(), row / p.states() % g.groups, row / p.states() / g.groups);
            for begin in (0..p.steps()).step_by(STEPS) {
                let steps = STEPS.min(p.steps() - begin);
                for t in 0..steps {
                    let mut sum = [0.0f32; 2];
                    for slice in 0..slices {
                        let cell = ((slice * rows + row) * p.steps() + begin + t) * wide;
                        // SAFETY: the layout has room for all slices, rows and times, and all are written.
                        let cell = unsafe { std::slice::from_raw_parts((from as *const f32).add(cell), wide) };
                        sum[0] += cell[0];
                        sum[1] += cell[wide - 1];
                    }
                    (tile.re[t][0], tile.im[t][0]) = (sum[0], sum[1]);
                }
                let origin = to.offset([b, group, n, begin]);
                let span = super::super::super::lanes::Span { origin, lane: 0, step: to.stride(3), lanes: 1, steps };
                // SAFETY: the signature's check has seen that the index lies inside the tensor; a row is one task's.
                unsafe { tile.scatter(to, &span, complex) };
            }
        });
    }
}

/// The sum of sixteen lanes in one order.
fn sum_of(lanes: &[f32; LANES]) -> f32 {
    let mut half: [f32; LANES / 2] = std::array::from_fn(|l| lanes[l] + lanes[l + LANES / 2]);
    for width in [4, 2, 1] {
        for l in 0..width {
            half[l] += half[l + width];
        }
    }
    half[0]
}
