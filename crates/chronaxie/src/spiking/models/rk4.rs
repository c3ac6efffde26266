//! The classical method of Runge and Kutta, of order four: for bodies in f32, and once more, apart, for laws in f64.

use super::fma;
use crate::simd_math::Lanes;

/// One step of the first `S` variables; `f(stage, state)` is the derivative, at the step's beginning (stage 0), middle (1,
/// 2) and end (3). `h` is the step, and `c` h/2 and h/6.
#[inline(always)]
pub(super) fn body<const N: usize, const S: usize>(
    s: [Lanes<N>; S],
    h: Lanes<N>,
    c: [Lanes<N>; 2],
    f: impl Fn(usize, &[Lanes<N>; S]) -> [Lanes<N>; S],
) -> [Lanes<N>; S] {
    let [half, sixth] = c;
    let two = Lanes::splat(2.0);
    let moved = |by: Lanes<N>, k: &[Lanes<N>; S]| std::array::from_fn(|i| fma(by, k[i], s[i]));
    let k1 = f(0, &s);
    let k2 = f(1, &moved(half, &k1));
    let k3 = f(2, &moved(half, &k2));
    let k4 = f(3, &moved(h, &k3));
    std::array::from_fn(|i| fma(sixth, fma(two, k2[i] + k3[i], k1[i] + k4[i]), s[i]))
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
