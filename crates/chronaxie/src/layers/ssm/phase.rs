//! Angles as turns: a 32-bit integer is a fraction of a full turn, so that a sum of angles wraps around by itself, is
//! exact, and does not depend on its order. And the functions of angles and small exponents that the scans need, over
//! sixteen lanes.
//!
//! An angle in radians becomes turns through both halves of 1 / (2 pi) in f32: with one constant a million steps drift by
//! 4e-2 rad, with two by 5e-7. Every operation up to the integer is one correctly rounded f32 operation, fused where it
//! says so, so that a kernel that does the same gets the same integer.

use super::lanes::{LANES, Wide};
use crate::simd_math::{self, Lanes};

/// 1 / (2 pi) to the nearest f32.
pub const TURNS_HIGH: f32 = 0.159_154_94;
/// What that leaves of 1 / (2 pi).
pub const TURNS_LOW: f32 = 6.420_638_2e-9;
/// Parts of a turn.
const PARTS: f32 = 4_294_967_296.0;

/// A fraction of a turn (any number of turns) as 2^-32 parts of one, wrapped around.
#[inline(always)]
fn parts(turns: f32) -> i32 {
    // Exact: the nearest integer is subtracted from a number that has no finer bits than the result.
    let fraction = turns - turns.round_ties_even();
    // Half a turn forwards is half a turn backwards, which i32 holds.
    let fraction = if fraction == 0.5 { -0.5 } else { fraction };
    (fraction * PARTS).round_ties_even() as i32
}

/// An angle in radians as 2^-32 parts of a turn.
#[inline(always)]
pub fn turns(radians: f32) -> i32 {
    let high = radians * TURNS_HIGH;
    // Always fused: the low half is what the rounding of the high one has lost.
    let low = radians.mul_add(TURNS_LOW, radians.mul_add(TURNS_HIGH, -high));
    parts(high).wrapping_add(parts(low))
}

/// [`turns`] of each lane.
#[inline(always)]
pub(super) fn wide_turns(radians: Wide) -> [i32; LANES] {
    radians.0.map(turns)
}

/// Sine, cosine, and cosine less 1 without cancellation near 0.
#[derive(Clone, Copy)]
pub(super) struct Circular {
    pub sin: Wide,
    pub cos: Wide,
    pub cos_m1: Wide,
}

/// Of angles in turns. Polynomials on an eighth of a turn to each side; errors of 1.2e-7 absolute.
#[inline(always)]
pub(super) fn circular<const FMA: bool>(turns: [i32; LANES]) -> Circular {
    /// Radians a part.
    const RADIANS: f32 = (std::f64::consts::TAU / 4_294_967_296.0) as f32;
    let quarter = turns.map(|g| g.wrapping_add(1 << 29) >> 30);
    let x: Wide = Lanes(std::array::from_fn(|l| turns[l].wrapping_sub(quarter[l] << 30) as f32 * RADIANS));
    let x2 = x * x;
    let poly = |c: [f32; 5]| {
        let p = Wide::splat(c[4]).mul_add::<FMA>(x2, Wide::splat(c[3])).mul_add::<FMA>(x2, Wide::splat(c[2]));
        p.mul_add::<FMA>(x2, Wide::splat(c[1])).mul_add::<FMA>(x2, Wide::splat(c[0]))
    };
    // Taylor: the first terms left out are below 1e-11 and 2e-10 on an eighth of a turn.
    let sine = poly([-1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362_880.0, -1.0 / 39_916_800.0]) * x2;
    let sine = sine.mul_add::<FMA>(x, x);
    let less = poly([-0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40320.0, -1.0 / 3_628_800.0]) * x2;
    let mut r = Circular { sin: sine, cos: less, cos_m1: less };
    for (l, &quarter) in quarter.iter().enumerate() {
        let (s, m) = (sine.0[l], less.0[l]);
        let c = 1.0 + m;
        let (odd, sign) = (quarter & 1 != 0, if quarter & 2 != 0 { -1.0 } else { 1.0 });
        r.sin.0[l] = sign * if odd { c } else { s };
        let cos = sign * if odd { -s } else { c };
        r.cos.0[l] = cos;
        r.cos_m1.0[l] = if quarter & 3 == 0 { m } else { cos - 1.0 };
    }
    r
}

/// `(e^x, e^x - 1)`, the difference without cancellation near 0.
#[inline(always)]
pub(super) fn exp_and_m1<const FMA: bool>(x: Wide) -> (Wide, Wide) {
    let mut p = Wide::splat(1.0 / 3_628_800.0);
    for c in [1.0 / 362_880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0] {
        p = p.mul_add::<FMA>(x, Wide::splat(c));
    }
    let small = p * x;
    let exp = simd_math::exp::<FMA, LANES>(x);
    // Not array::from_fn, which is not always inlined: lane by lane then, through memory.
    let mut less = small;
    for l in 0..LANES {
        less.0[l] = if x.0[l].abs() < 0.7 { small.0[l] } else { exp.0[l] - 1.0 };
    }
    (exp, less)
}

/// `e^x - 1` without cancellation near 0.
#[inline(always)]
pub(super) fn exp_m1<const FMA: bool>(x: Wide) -> Wide {
    exp_and_m1::<FMA>(x).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::f64::consts::TAU;

    #[test]
    fn turns_are_those_of_f64() {
        let mut rng = Rng::new(3, 0);
        for i in 0..100_000 {
            let x = (rng.normal() * 10f64.powi(i % 7 - 4)) as f32;
            let law = f64::from(x) / TAU;
            let got = f64::from(turns(x)) / f64::from(PARTS);
            let difference = got - law;
            let difference = difference - difference.round();
            // Half a part for each of the two halves; beyond a thousand radians the second has too few bits.
            assert!(difference.abs() < 2.4e-10 + 1e-15 * law.abs(), "{x}: {difference:e}");
        }
        assert_eq!(turns(0.0), 0);
        assert_eq!(parts(0.5), i32::MIN);
        assert_eq!(parts(-0.5), i32::MIN);
        assert_eq!(parts(3.25), 1 << 30);
        assert_eq!(turns(f32::NAN), 0, "what is not a number is told by what it is multiplied with");
    }

    /// A million equal steps: the sum of integers stays where f64 has it.
    #[test]
    fn a_million_steps_do_not_drift() {
        for x in [0.3f32, -1.7, 3.0, 1e-3] {
            let n = 1 << 20;
            let sum = (0..n).fold(0i32, |g, _| g.wrapping_add(turns(x)));
            let law = f64::from(x) * f64::from(n) / TAU;
            let d = f64::from(sum) / f64::from(PARTS) - law;
            let radians = (d - d.round()).abs() * TAU;
            // Equal steps round equally: at most 2^20 halves of a part twice, 1.5e-3 rad.
            assert!(radians < 1.6e-3, "{x}: {radians:e}");
        }
        // Steps that differ round independently: a random walk of 2^10 parts.
        let mut rng = Rng::new(1, 0);
        let (mut sum, mut law) = (0i32, 0.0);
        for _ in 0..1 << 20 {
            let x = rng.normal() as f32;
            sum = sum.wrapping_add(turns(x));
            law += f64::from(x) / TAU;
        }
        let d = f64::from(sum) / f64::from(PARTS) - law;
        assert!((d - d.round()).abs() * TAU < 5e-6);
    }

    #[test]
    fn circular_functions_are_those_of_f64() {
        for i in 0..20_000i64 {
            let g: [i32; LANES] = std::array::from_fn(|l| ((i * 16 + l as i64) * 13_421 - (1 << 31)) as i32);
            let (fused, plain) = (circular::<true>(g), circular::<false>(g));
            for c in [fused, plain] {
                for (l, &g) in g.iter().enumerate() {
                    let x = f64::from(g) / f64::from(PARTS) * TAU;
                    let errors = [f64::from(c.sin.0[l]) - x.sin(), f64::from(c.cos.0[l]) - x.cos()];
                    assert!(errors.iter().all(|e| e.abs() < 1.2e-7), "{x}: {errors:?}");
                    let m1 = -2.0 * (x / 2.0).sin().powi(2);
                    // Near 0 relative to itself: the angle has two roundings, and its square twice those and one more.
                    let bound = if x.abs() < TAU / 8.0 { 5e-7 * m1.abs() } else { 1.5e-7 };
                    assert!((f64::from(c.cos_m1.0[l]) - m1).abs() <= bound, "cos - 1 at {x}");
                }
            }
        }
    }

    #[test]
    fn small_exponents_do_not_cancel() {
        for i in -4000..4000 {
            let x = f64::from((f64::from(i) * 0.005f64) as f32) * if i % 2 == 0 { 1.0 } else { 1e-3 };
            let x = x as f32;
            let law = f64::from(x).exp_m1();
            for y in [exp_m1::<true>(Wide::splat(x)).0[0], exp_m1::<false>(Wide::splat(x)).0[0]] {
                assert!((f64::from(y) - law).abs() <= 3e-7 * law.abs(), "{x}: {y} against {law}");
            }
        }
    }
}
