//! One state of sixteen channels through the steps of a tile, forward and against time, and what the channels share.

pub(super) use super::super::super::gate::{finish_gated, finish_plain, ungate_gated, ungate_plain};
use super::super::super::lanes::{LANES, Number, State, Tile, Wide, WideComplex};
use super::super::discretise::{slopes, step};
use super::super::spec::Discretisation;
use crate::levels;
use crate::simd_math::{self, Lanes};

/// Sixteen real numbers at each step of a tile.
pub(super) type Row = [[f32; LANES]];

/// A state's way through a tile.
pub(super) struct Walk<'a> {
    pub rule: Discretisation,
    pub a: State,
    pub delta: &'a Row,
    pub u: &'a Row,
    pub b: &'a Tile,
    pub c: &'a Tile,
    pub fresh: &'a [bool],
    pub state: State,
    /// Gets `Re(C h)` added.
    pub y: &'a mut Row,
}

#[inline(always)]
fn walk_of<const FMA: bool, K: Number>(w: &mut Walk<'_>) {
    let (a, mut h) = (K::of_state(&w.a), K::of_state(&w.state));
    for (t, &fresh) in w.fresh.iter().enumerate() {
        let s = step::<FMA, K>(w.rule, a, Lanes(w.delta[t]));
        let x = s.e.times::<FMA>(K::load(w.b, t)).scale(Lanes(w.u[t]));
        h = if fresh { x } else { s.a.times_plus::<FMA>(h, x) };
        w.y[t] = (Lanes(w.y[t]) + h.dot::<FMA>(K::load(w.c, t).conj())).0;
    }
    w.state = h.to_state();
}

/// The same, and what the way back needs: the state before each step and the step itself.
pub(super) struct Trace<'a> {
    pub walk: Walk<'a>,
    pub before: &'a mut Tile,
    pub gate: &'a mut Tile,
    pub factor: &'a mut Tile,
}

#[inline(always)]
fn trace_of<const FMA: bool, K: Number>(r: &mut Trace<'_>) {
    let w = &mut r.walk;
    let (a, mut h) = (K::of_state(&w.a), K::of_state(&w.state));
    for (t, &fresh) in w.fresh.iter().enumerate() {
        let s = step::<FMA, K>(w.rule, a, Lanes(w.delta[t]));
        let x = s.e.times::<FMA>(K::load(w.b, t)).scale(Lanes(w.u[t]));
        let before = if fresh { K::zero() } else { h };
        before.store(r.before, t);
        s.a.store(r.gate, t);
        s.e.store(r.factor, t);
        h = if fresh { x } else { s.a.times_plus::<FMA>(h, x) };
        w.y[t] = (Lanes(w.y[t]) + h.dot::<FMA>(K::load(w.c, t).conj())).0;
    }
    w.state = h.to_state();
}

/// A state's way back. `b` and `c` become their gradients.
pub(super) struct Back<'a> {
    pub rule: Discretisation,
    pub a: State,
    pub delta: &'a Row,
    pub u: &'a Row,
    /// The gradient of y, times kappa.
    pub dy: &'a Row,
    pub b: &'a mut Tile,
    pub c: &'a mut Tile,
    pub before: &'a Tile,
    pub gate: &'a Tile,
    pub factor: &'a Tile,
    pub fresh: &'a [bool],
    /// `conj(a) lambda` of the step behind the tile, and then of its first.
    pub mu: State,
    /// These get this state's share added.
    pub grad_a: State,
    pub grad_delta: &'a mut Row,
    pub grad_u: &'a mut Row,
}

#[inline(always)]
fn back_of<const FMA: bool, K: Number>(r: &mut Back<'_>) {
    use super::super::discretise::Step;
    let (a, mut mu, mut grad_a) = (K::of_state(&r.a), K::of_state(&r.mu), K::of_state(&r.grad_a));
    for (t, &fresh) in r.fresh.iter().enumerate().rev() {
        let (delta, u, dy) = (Lanes(r.delta[t]), Lanes(r.u[t]), Lanes(r.dy[t]));
        let (b, c, before) = (K::load(r.b, t), K::load(r.c, t), K::load(r.before, t));
        let s = Step { a: K::load(r.gate, t), e: K::load(r.factor, t) };
        let k = slopes::<FMA, K>(r.rule, a, delta, s);
        let drive = b.scale(u);
        let lambda = c.conj().scale(dy).plus(mu);
        s.a.times_plus::<FMA>(before, s.e.times::<FMA>(drive)).conj().scale(dy).store(r.c, t);
        let of_w = lambda.times_conj::<FMA>(before.times::<FMA>(k.a_w));
        let by_delta = of_w.dot::<FMA>(a) + lambda.dot::<FMA>(k.e_delta.times::<FMA>(drive));
        r.grad_delta[t] = (Lanes(r.grad_delta[t]) + by_delta).0;
        grad_a = grad_a.plus(of_w.scale(delta)).plus(lambda.times_conj::<FMA>(k.e_a.times::<FMA>(drive)));
        lambda.times_conj::<FMA>(s.e).scale(u).store(r.b, t);
        r.grad_u[t] = (Lanes(r.grad_u[t]) + lambda.dot::<FMA>(s.e.times::<FMA>(b))).0;
        mu = if fresh { K::zero() } else { lambda.times_conj::<FMA>(s.a) };
    }
    (r.mu, r.grad_a) = (mu.to_state(), grad_a.to_state());
}

macro_rules! either {
    ($body:ident, $of:ident, $t:ident, $real:ident, $complex:ident) => {
        #[inline(always)]
        fn $body<const FMA: bool, const COMPLEX: usize, const N: usize>(r: &mut $t<'_>) {
            match COMPLEX {
                0 => $of::<FMA, Wide>(r),
                _ => $of::<FMA, WideComplex>(r),
            }
        }
        levels!(pub(super) fn $real(r: &mut $t<'_>) = $body, 0, [16, 16, 16]);
        levels!(pub(super) fn $complex(r: &mut $t<'_>) = $body, 1, [16, 16, 16]);
    };
}
either!(walk_body, walk_of, Walk, walk_real, walk_complex);
either!(trace_body, trace_of, Trace, trace_real, trace_complex);
either!(back_body, back_of, Back, back_real, back_complex);

/// `softplus(delta + bias)`, or without softplus the sum alone; `slope` gets the derivative where it is wanted.
#[inline(always)]
fn step_sizes_body<const FMA: bool, const SOFTPLUS: usize, const N: usize>(
    delta: &mut Row,
    bias: &[f32; LANES],
    slope: &mut Row,
) {
    for (delta, slope) in delta.iter_mut().zip(slope) {
        let raw = Lanes(*delta) + Lanes(*bias);
        (*delta, *slope) = match SOFTPLUS {
            0 => (raw.0, [1.0; LANES]),
            _ => (simd_math::softplus::<FMA, LANES>(raw).0, simd_math::sigmoid::<FMA, LANES>(raw).0),
        };
    }
}
levels!(pub(super) fn step_sizes_plain(delta: &mut Row, bias: &[f32; LANES], slope: &mut Row)
    = step_sizes_body, 0, [16, 16, 16]);
levels!(pub(super) fn step_sizes_softplus(delta: &mut Row, bias: &[f32; LANES], slope: &mut Row)
    = step_sizes_body, 1, [16, 16, 16]);
