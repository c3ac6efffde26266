//! One state of sixteen channels through the steps of a tile, forward and against time, and what the states share.

pub(super) use super::super::super::gate::{finish_gated, finish_plain, ungate_gated, ungate_plain};
use super::super::super::lanes::{LANES, Number, State, Tile, Wide, WideComplex};
use super::super::super::phase::{circular, exp_and_m1, wide_turns};
use crate::levels;
use crate::simd_math::{self, Lanes};

/// Sixteen real numbers at each step of a tile.
pub(super) type Row = [[f32; LANES]];

/// A sum and what its roundings have lost.
#[derive(Clone, Copy)]
pub(super) struct Sum {
    pub value: State,
    pub lost: State,
}

impl Sum {
    pub(super) fn new(value: State) -> Self {
        Self { value, lost: [[0.0; LANES]; 2] }
    }
}

/// One part, real or imaginary, of such a sum.
#[derive(Clone, Copy)]
struct Part {
    value: Wide,
    lost: Wide,
}

impl Part {
    #[inline(always)]
    fn add(self, x: Wide) -> Self {
        let x = x + self.lost;
        let value = self.value + x;
        Self { value, lost: x - (value - self.value) }
    }
    /// `e^rho self + x`, where `less` is `e^rho - 1`: what is near 1 is added as a difference, what is small multiplies.
    #[inline(always)]
    fn decay_and_add<const FMA: bool>(self, exp: Wide, less: Wide, x: Wide) -> Self {
        let rest = self.lost.mul_add::<FMA>(exp, x);
        let difference = self.value.mul_add::<FMA>(less, rest);
        let near = self.value + difference;
        let lost = difference - (near - self.value);
        let far = self.value.mul_add::<FMA>(exp, rest);
        let mut r = Self { value: near, lost };
        for l in 0..LANES {
            if less.0[l] < -0.5 {
                (r.value.0[l], r.lost.0[l]) = (far.0[l], 0.0);
            }
        }
        r
    }
}

#[inline(always)]
fn parts(s: &Sum) -> [Part; 2] {
    [0, 1].map(|k| Part { value: Lanes(s.value[k]), lost: Lanes(s.lost[k]) })
}
#[inline(always)]
fn sum_of([re, im]: [Part; 2]) -> Sum {
    Sum { value: [re.value.0, im.value.0], lost: [re.lost.0, im.lost.0] }
}

/// A state's way through a tile.
pub(super) struct Walk<'a> {
    pub theta: &'a Row,
    pub rho: &'a Row,
    /// `delta v`.
    pub drive: &'a Row,
    pub b: State,
    pub c: State,
    pub fresh: &'a [bool],
    /// The state turned back, and the phase.
    pub state: Sum,
    pub phase: [i32; LANES],
    /// Gets `Re(C h)` added.
    pub y: &'a mut Row,
    /// The decayed state before each step and the state after it, both turned back, and the rotation: for the way back.
    pub trace: Option<[&'a mut Tile; 3]>,
}

#[inline(always)]
fn walk_body<const FMA: bool, const DECAY: usize, const N: usize>(w: &mut Walk<'_>) {
    let (b, c) = (WideComplex::of_state(&w.b), WideComplex::of_state(&w.c));
    let ([mut re, mut im], mut phase) = (parts(&w.state), w.phase);
    let zero = Part { value: Wide::splat(0.0), lost: Wide::splat(0.0) };
    for (t, &fresh) in w.fresh.iter().enumerate() {
        let turns = wide_turns(Lanes(w.theta[t]));
        phase = std::array::from_fn(|l| phase[l].wrapping_add(turns[l]));
        let turn = circular::<FMA>(phase);
        let rotation = WideComplex::new(turn.cos, turn.sin);
        if fresh {
            (re, im) = (zero, zero);
        }
        let x = b.times_conj::<FMA>(rotation).scale(Lanes(w.drive[t]));
        let mut before = WideComplex::new(re.value, im.value);
        if DECAY == 1 {
            let (exp, less) = exp_and_m1::<FMA>(Lanes(w.rho[t]));
            before = before.scale(exp);
            re = re.decay_and_add::<FMA>(exp, less, x.re());
            im = im.decay_and_add::<FMA>(exp, less, x.im());
        } else {
            (re, im) = (re.add(x.re()), im.add(x.im()));
        }
        let s = WideComplex::new(re.value, im.value);
        let h = rotation.times::<FMA>(s);
        w.y[t] = (Lanes(w.y[t]) + h.dot::<FMA>(c.conj())).0;
        if let Some([to_before, to_after, to_rotation]) = &mut w.trace {
            before.store(to_before, t);
            s.store(to_after, t);
            rotation.store(to_rotation, t);
        }
    }
    (w.state, w.phase) = (sum_of([re, im]), phase);
}
levels!(pub(super) fn walk_unitary(w: &mut Walk<'_>) = walk_body, 0, [16, 16, 16]);
levels!(pub(super) fn walk_polar(w: &mut Walk<'_>) = walk_body, 1, [16, 16, 16]);

/// A state's way back. theta and rho become their gradients.
pub(super) struct Back<'a> {
    pub theta: &'a mut Row,
    pub rho: &'a mut Row,
    pub drive: &'a Row,
    /// The gradient of y.
    pub dy: &'a Row,
    pub b: State,
    pub c: State,
    pub trace: [&'a Tile; 3],
    pub fresh: &'a [bool],
    /// The gradient of the state behind the tile, turned back; then of that before its first step.
    pub mu: Sum,
    pub grad_b: State,
    pub grad_c: State,
    /// Gets this state's share added.
    pub grad_drive: &'a mut Row,
}

#[inline(always)]
fn back_body<const FMA: bool, const DECAY: usize, const N: usize>(r: &mut Back<'_>) {
    let (b, c) = (WideComplex::of_state(&r.b), WideComplex::of_state(&r.c));
    let (mut grad_b, mut grad_c) = (WideComplex::of_state(&r.grad_b), WideComplex::of_state(&r.grad_c));
    let [mut re, mut im] = parts(&r.mu);
    let zero = Part { value: Wide::splat(0.0), lost: Wide::splat(0.0) };
    let [before, after, rotation] = r.trace;
    for (t, &fresh) in r.fresh.iter().enumerate().rev() {
        let rotation = WideComplex::load(rotation, t);
        let (dy, drive) = (Lanes(r.dy[t]), Lanes(r.drive[t]));
        let g = rotation.times::<FMA>(c).conj().scale(dy);
        (re, im) = (re.add(g.re()), im.add(g.im()));
        let m = WideComplex::new(re.value, im.value);
        let product = m.times_conj::<FMA>(WideComplex::load(before, t));
        r.theta[t] = product.im().0;
        let lambda = rotation.times::<FMA>(m);
        grad_c = grad_c.plus(rotation.times::<FMA>(WideComplex::load(after, t)).conj().scale(dy));
        grad_b = grad_b.plus(lambda.scale(drive));
        r.grad_drive[t] = (Lanes(r.grad_drive[t]) + lambda.dot::<FMA>(b)).0;
        if DECAY == 1 {
            let (exp, less) = exp_and_m1::<FMA>(Lanes(r.rho[t]));
            r.rho[t] = product.re().0;
            re = re.decay_and_add::<FMA>(exp, less, Wide::splat(0.0));
            im = im.decay_and_add::<FMA>(exp, less, Wide::splat(0.0));
        }
        if fresh {
            (re, im) = (zero, zero);
        }
    }
    (r.mu, r.grad_b, r.grad_c) = (sum_of([re, im]), grad_b.to_state(), grad_c.to_state());
}
levels!(pub(super) fn back_unitary(r: &mut Back<'_>) = back_body, 0, [16, 16, 16]);
levels!(pub(super) fn back_polar(r: &mut Back<'_>) = back_body, 1, [16, 16, 16]);

/// The state turned forward by its phase, or (`BACK`) backward.
#[inline(always)]
fn turn_body<const FMA: bool, const BACK: usize, const N: usize>(s: &mut State, phase: &[i32; LANES]) {
    let c = circular::<FMA>(*phase);
    let rotation = WideComplex::new(c.cos, c.sin);
    let rotation = if BACK == 1 { rotation.conj() } else { rotation };
    *s = WideComplex::of_state(s).times::<FMA>(rotation).to_state();
}
levels!(pub(super) fn turn(s: &mut State, phase: &[i32; LANES]) = turn_body, 0, [16, 16, 16]);
levels!(pub(super) fn turn_back(s: &mut State, phase: &[i32; LANES]) = turn_body, 1, [16, 16, 16]);

/// v in the place of u: `u`, or with `SILU` `silu(u)`; and its derivative.
#[inline(always)]
fn activate_body<const FMA: bool, const SILU: usize, const N: usize>(u: &mut Row, slope: &mut Row) {
    for (u, slope) in u.iter_mut().zip(slope) {
        if SILU == 1 {
            let (x, one) = (Lanes(*u), Wide::splat(1.0));
            let s = simd_math::sigmoid::<FMA, LANES>(x);
            (*u, *slope) = ((x * s).0, (s * x.mul_add::<FMA>(one - s, one)).0);
        } else {
            *slope = [1.0; LANES];
        }
    }
}
levels!(pub(super) fn activate_plain(u: &mut Row, slope: &mut Row) = activate_body, 0, [16, 16, 16]);
levels!(pub(super) fn activate_silu(u: &mut Row, slope: &mut Row) = activate_body, 1, [16, 16, 16]);
