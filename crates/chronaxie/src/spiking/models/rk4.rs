//! The classical method of Runge and Kutta, of order four: for bodies in f32, and once more, apart, for laws in f64.

use super::fma;
use crate::simd_math::Lanes;

/// The derivative of S variables.
pub(super) trait Derivative<const N: usize, const S: usize> {
    /// At a step's beginning (stage 0), middle (1, 2) and end (3).
    ///
    /// It must be `#[inline(always)]`, which a closure cannot be: a call that stays one is compiled without the caller's vectors, and
    /// each lane of its multiply-adds is a call of the library.
    fn at(&self, stage: usize, s: &[Lanes<N>; S]) -> [Lanes<N>; S];
}

/// One step of the first `S` variables. `h` is the step, and `c` h/2 and h/6.
///
/// The stages are a loop: one after the other in the code, with each exponential apart, those of the two models take a compiler
/// minutes. The loop takes as long for `adex` and 7 to 13 % longer for `hodgkin_huxley`, with the same bits.
#[inline(always)]
pub(super) fn body<const N: usize, const S: usize>(
    s: [Lanes<N>; S],
    h: Lanes<N>,
    c: [Lanes<N>; 2],
    f: &impl Derivative<N, S>,
) -> [Lanes<N>; S] {
    let [half, sixth] = c;
    let two = Lanes::splat(2.0);
    // What comes behind the last stage is of no use to anyone.
    let by = [half, half, h, h];
    let mut k = [[Lanes::splat(0.0); S]; 4];
    let mut at = s;
    for stage in 0..4 {
        k[stage] = f.at(stage, &at);
        at = moved(&s, by[stage], &k[stage]);
    }
    let [k1, k2, k3, k4] = k;
    let mut new = s;
    for i in 0..S {
        new[i] = fma(sixth, fma(two, k2[i] + k3[i], k1[i] + k4[i]), s[i]);
    }
    new
}

/// `s + by k`.
#[inline(always)]
fn moved<const N: usize, const S: usize>(s: &[Lanes<N>; S], by: Lanes<N>, k: &[Lanes<N>; S]) -> [Lanes<N>; S] {
    let mut to = *s;
    for i in 0..S {
        to[i] = fma(by, k[i], s[i]);
    }
    to
}

/// The same in f64, by the textbook.
pub(super) fn law<const S: usize>(s: [f64; S], h: f64, f: impl Fn(f64, [f64; S]) -> [f64; S]) -> [f64; S] {
    let plus = |k: [f64; S], by: f64| -> [f64; S] { std::array::from_fn(|i| s[i] + by * k[i]) };
    let k1 = f(0.0, s);
    let k2 = f(0.5 * h, plus(k1, 0.5 * h));
    let k3 = f(0.5 * h, plus(k2, 0.5 * h));
    let k4 = f(h, plus(k3, h));
    std::array::from_fn(|i| s[i] + h / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]))
}
