//! One step of sixteen states: the gate, the factor of the input, and their derivatives, in f32.

use super::super::lanes::{LANES, Number, Wide};
use super::super::phase::{circular, exp_m1, wide_turns};
use super::spec::Discretisation;
use crate::simd_math;

/// A gate and the factor of the input.
#[derive(Clone, Copy)]
pub(super) struct Step<K> {
    pub a: K,
    pub e: K,
}

/// The derivatives of a step: of the gate in w = delta A, of the factor in delta and in A.
#[derive(Clone, Copy)]
pub(super) struct Slopes<K> {
    pub a_w: K,
    pub e_delta: K,
    pub e_a: K,
}

/// `(e^w, e^w - 1)`; the difference is wanted by the zero-order hold alone.
#[inline(always)]
fn exponential<const FMA: bool, K: Number>(w: K, difference: bool) -> (K, K) {
    let radius = simd_math::exp::<FMA, LANES>(w.re());
    let zero = Wide::splat(0.0);
    let less = if difference { exp_m1::<FMA>(w.re()) } else { zero };
    if !K::COMPLEX {
        return (K::new(radius, zero), K::new(less, zero));
    }
    let c = circular::<FMA>(wide_turns(w.im()));
    let im = radius * c.sin;
    // e^w - 1 = (e^re - 1) cos + (cos - 1) + i e^re sin: no term cancels another near w = 0.
    (K::new(radius * c.cos, im), K::new(less.mul_add::<FMA>(c.cos, c.cos_m1), im))
}

/// `1 / v`.
#[inline(always)]
fn recip<const FMA: bool, K: Number>(v: K) -> K {
    v.conj().scale(Wide::splat(1.0) / v.dot::<FMA>(v))
}

/// Where the lanes' condition holds `a`, else `b`.
#[inline(always)]
fn select<K: Number>(condition: [bool; LANES], a: K, b: K) -> K {
    let (mut re, mut im) = (b.re(), b.im());
    for (l, yes) in condition.into_iter().enumerate() {
        if yes {
            (re.0[l], im.0[l]) = (a.re().0[l], a.im().0[l]);
        }
    }
    K::new(re, im)
}

/// Rates below this are no rates in f32: `(e^{delta A} - 1) / A` is delta, and 1 / A would overflow.
const NO_RATE: f32 = 1e-30;

#[inline(always)]
fn real<K: Number>(x: Wide) -> K {
    K::new(x, Wide::splat(0.0))
}

/// The step of states of rates `a` over times `delta`.
#[inline(always)]
pub(super) fn step<const FMA: bool, K: Number>(rule: Discretisation, a: K, delta: Wide) -> Step<K> {
    let w = a.scale(delta);
    match rule {
        Discretisation::Exp => Step { a: exponential::<FMA, K>(w, false).0, e: real(delta) },
        Discretisation::Zoh => {
            let (gate, less) = exponential::<FMA, K>(w, true);
            let none = a.dot::<FMA>(a).0.map(|x| x < NO_RATE);
            let e = select(none, real(delta), less.times::<FMA>(recip::<FMA, K>(a)));
            Step { a: gate, e }
        }
        Discretisation::Bilinear => {
            let (one, half) = (real::<K>(Wide::splat(1.0)), w.scale(Wide::splat(0.5)));
            let inverse = recip::<FMA, K>(one.plus(half.scale(Wide::splat(-1.0))));
            Step { a: one.plus(half).times::<FMA>(inverse), e: inverse.scale(delta) }
        }
    }
}

/// The derivatives of that step.
#[inline(always)]
pub(super) fn slopes<const FMA: bool, K: Number>(rule: Discretisation, a: K, delta: Wide, s: Step<K>) -> Slopes<K> {
    match rule {
        Discretisation::Exp => Slopes { a_w: s.a, e_delta: real(Wide::splat(1.0)), e_a: K::zero() },
        Discretisation::Zoh => {
            // delta^2 phi1'(w), where phi1'(w) = (e^w - phi1(w)) / w cancels near 0: the series of (k + 1) / (k + 2)!.
            let w = a.scale(delta);
            let mut sum = real::<K>(Wide::splat(9.0 / 3_628_800.0));
            for c in [1.0 / 45360.0, 1.0 / 5760.0, 1.0 / 840.0, 1.0 / 144.0, 1.0 / 30.0, 1.0 / 8.0, 1.0 / 3.0, 0.5] {
                sum = sum.times_plus::<FMA>(w, real(Wide::splat(c)));
            }
            let near = sum.scale(delta * delta);
            let difference = s.a.scale(delta).plus(s.e.scale(Wide::splat(-1.0)));
            let far = difference.times::<FMA>(recip::<FMA, K>(a));
            let small = w.dot::<FMA>(w).0.map(|x| x < 0.5);
            Slopes { a_w: s.a, e_delta: s.a, e_a: select(small, near, far) }
        }
        Discretisation::Bilinear => {
            let half = a.scale(delta * Wide::splat(-0.5));
            let inverse = recip::<FMA, K>(real::<K>(Wide::splat(1.0)).plus(half));
            let square = inverse.times::<FMA>(inverse);
            Slopes { a_w: square, e_delta: square, e_a: square.scale(delta * delta * Wide::splat(0.5)) }
        }
    }
}
