//! Scans with forgetting, of sequences end to end (f32 and halves), and of complex numbers. A task takes
//! sixteen channels of one sequence, in tiles of 128 steps.

use super::super::lanes::{Array, LANES, Number, STEPS, Span, State, Tile, Wide, WideComplex, load_state, store_state};
use super::super::packing::{Marks, Unit};
use super::super::spec::LinearScan;
use crate::levels;
use chronaxie_runtime::pool;

/// h_t = a_t h_{t-1} + x_t, h in the place of x; `fresh` steps forget the state before them.
#[inline(always)]
fn forward_tile<const FMA: bool, N: Number>(a: &Tile, x: &mut Tile, fresh: &[bool], state: &mut State) {
    let mut h = N::of_state(state);
    for (t, &fresh) in fresh.iter().enumerate() {
        let x_t = N::load(x, t);
        h = if fresh { x_t } else { N::load(a, t).times_plus::<FMA>(h, x_t) };
        h.store(x, t);
    }
    *state = h.to_state();
}

/// lambda_t = g_t + mu, mu = conj(a_t) lambda_t; lambda in the place of g, the gradient of a in that of the state before.
#[inline(always)]
fn backward_tile<const FMA: bool, N: Number>(
    a: &Tile,
    before: &mut Tile,
    g: &mut Tile,
    fresh: &[bool],
    state: &mut State,
) {
    let mut mu = N::of_state(state);
    for (t, &fresh) in fresh.iter().enumerate().rev() {
        let lambda = N::load(g, t).plus(mu);
        let grad_a = if fresh { N::zero() } else { lambda.times_conj::<FMA>(N::load(before, t)) };
        grad_a.store(before, t);
        lambda.store(g, t);
        mu = if fresh { N::zero() } else { lambda.times_conj::<FMA>(N::load(a, t)) };
    }
    *state = mu.to_state();
}

#[inline(always)]
fn forward_body<const FMA: bool, const COMPLEX: usize, const N: usize>(
    a: &Tile,
    x: &mut Tile,
    fresh: &[bool],
    state: &mut State,
) {
    match COMPLEX {
        0 => forward_tile::<FMA, Wide>(a, x, fresh, state),
        _ => forward_tile::<FMA, WideComplex>(a, x, fresh, state),
    }
}
#[inline(always)]
fn backward_body<const FMA: bool, const COMPLEX: usize, const N: usize>(
    a: &Tile,
    before: &mut Tile,
    g: &mut Tile,
    fresh: &[bool],
    state: &mut State,
) {
    match COMPLEX {
        0 => backward_tile::<FMA, Wide>(a, before, g, fresh, state),
        _ => backward_tile::<FMA, WideComplex>(a, before, g, fresh, state),
    }
}
levels!(fn forward_real(a: &Tile, x: &mut Tile, fresh: &[bool], state: &mut State) = forward_body, 0, [16, 16, 16]);
levels!(fn forward_complex(a: &Tile, x: &mut Tile, fresh: &[bool], state: &mut State) = forward_body, 1, [16, 16, 16]);
levels!(fn backward_real(a: &Tile, before: &mut Tile, g: &mut Tile, fresh: &[bool], state: &mut State)
    = backward_body, 0, [16, 16, 16]);
levels!(fn backward_complex(a: &Tile, before: &mut Tile, g: &mut Tile, fresh: &[bool], state: &mut State)
    = backward_body, 1, [16, 16, 16]);

/// Sixteen channels of a unit, or fewer.
#[derive(Clone, Copy)]
struct Block {
    unit: Unit,
    first: usize,
    lanes: usize,
}

impl Block {
    fn new(p: &LinearScan, marks: &Marks<'_>, task: usize) -> Self {
        let blocks = p.channels().div_ceil(LANES);
        let first = task % blocks * LANES;
        Self { unit: marks.unit(task / blocks), first, lanes: LANES.min(p.channels() - first) }
    }
    fn len(&self) -> usize {
        self.unit.end - self.unit.begin
    }
    /// The time of the `s`-th step of the recurrence.
    fn time(&self, p: &LinearScan, s: usize) -> usize {
        if p.is_reverse() { self.unit.end - 1 - s } else { self.unit.begin + s }
    }
    /// `steps` steps of a sequence from the `s`-th on.
    fn span(&self, p: &LinearScan, v: &Array, s: usize, steps: usize) -> Span {
        Span {
            origin: v.offset([self.unit.row, self.first, self.time(p, s), 0]),
            lane: v.stride(1),
            step: if p.is_reverse() { -v.stride(2) } else { v.stride(2) },
            lanes: self.lanes,
            steps,
        }
    }
    fn load(&self, v: &Array, complex: bool) -> State {
        let origin = v.offset([self.unit.state, self.first, 0, 0]);
        // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
        unsafe { load_state(v, origin, v.stride(1), self.lanes, complex) }
    }
    fn store(&self, state: &State, v: &Array, complex: bool) {
        let origin = v.offset([self.unit.state, self.first, 0, 0]);
        // SAFETY: as above, and a block's states belong to its task.
        unsafe { store_state(state, v, origin, v.stride(1), self.lanes, complex) };
    }
    /// Which of `n` steps from the `s`-th on forget.
    fn fresh(&self, p: &LinearScan, marks: &Marks<'_>, s: usize, n: usize) -> [bool; STEPS] {
        let mut fresh = [false; STEPS];
        for (i, f) in fresh[..n].iter_mut().enumerate() {
            *f = marks.fresh(self.unit.row, self.time(p, s + i));
        }
        fresh
    }
}

/// The tensors of the forward pass.
pub(super) struct Forward {
    pub a: Array,
    pub x: Array,
    pub h0: Option<Array>,
    pub h: Array,
    pub h_last: Array,
}

impl Forward {
    pub(super) fn run(&self, p: &LinearScan, marks: &Marks<'_>) {
        let complex = p.is_complex();
        pool::for_each(marks.units() * p.channels().div_ceil(LANES), |task| {
            let block = Block::new(p, marks, task);
            let (mut a, mut x) = (Tile::new(), Tile::new());
            let mut state = self.h0.map_or([[0.0; LANES]; 2], |h0| block.load(&h0, complex));
            for s in (0..block.len()).step_by(STEPS) {
                let n = STEPS.min(block.len() - s);
                // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor; a block's
                // elements belong to its task.
                unsafe {
                    a.gather(&self.a, 0, &block.span(p, &self.a, s, n), complex);
                    x.gather(&self.x, 0, &block.span(p, &self.x, s, n), complex);
                    let fresh = &block.fresh(p, marks, s, n)[..n];
                    if complex {
                        forward_complex(&a, &mut x, fresh, &mut state);
                    } else {
                        forward_real(&a, &mut x, fresh, &mut state);
                    }
                    x.scatter(&self.h, &block.span(p, &self.h, s, n), complex);
                }
            }
            block.store(&state, &self.h_last, complex);
        });
    }
}

/// The tensors of the backward pass.
pub(super) struct Backward {
    pub a: Array,
    pub h0: Option<Array>,
    pub h: Array,
    pub grad_h: Array,
    pub grad_h_last: Array,
    pub grad_a: Array,
    pub grad_x: Array,
    pub grad_h0: Option<Array>,
}

impl Backward {
    pub(super) fn run(&self, p: &LinearScan, marks: &Marks<'_>) {
        let complex = p.is_complex();
        pool::for_each(marks.units() * p.channels().div_ceil(LANES), |task| {
            let block = Block::new(p, marks, task);
            let (mut a, mut before, mut g) = (Tile::new(), Tile::new(), Tile::new());
            let first = self.h0.map_or([[0.0; LANES]; 2], |h0| block.load(&h0, complex));
            let mut mu = block.load(&self.grad_h_last, complex);
            for s in (0..block.len()).step_by(STEPS).rev() {
                let n = STEPS.min(block.len() - s);
                // SAFETY: as in the forward pass.
                unsafe {
                    a.gather(&self.a, 0, &block.span(p, &self.a, s, n), complex);
                    g.gather(&self.grad_h, 0, &block.span(p, &self.grad_h, s, n), complex);
                    // The state before step s + i is that of step s + i - 1, and before the first of all it is h0.
                    let early = usize::from(s == 0);
                    if early == 1 {
                        (before.re[0], before.im[0]) = (first[0], first[1]);
                    }
                    if n > early {
                        let span = block.span(p, &self.h, s + early - 1, n - early);
                        before.gather(&self.h, early, &span, complex);
                    }
                    let fresh = &block.fresh(p, marks, s, n)[..n];
                    if complex {
                        backward_complex(&a, &mut before, &mut g, fresh, &mut mu);
                    } else {
                        backward_real(&a, &mut before, &mut g, fresh, &mut mu);
                    }
                    before.scatter(&self.grad_a, &block.span(p, &self.grad_a, s, n), complex);
                    g.scatter(&self.grad_x, &block.span(p, &self.grad_x, s, n), complex);
                }
            }
            if let Some(grad_h0) = &self.grad_h0 {
                block.store(&mu, grad_h0, complex);
            }
        });
    }
}
