//! Elementary functions over fixed arrays of f32 lanes, as polynomials without branches or library calls.
//!
//! Everything is `#[inline(always)]` and generic, so that a body compiled by [`levels!`](crate::levels) for some vector
//! instructions becomes those instructions. `FMA` says whether `mul_add` is one instruction there: where it is not, it
//! would be a library call of 3 ns.
//!
//! Largest relative errors against f64 where the result is a normal number, over 200000 points, in units of 2^-23:
//! [`exp`] 0.96, [`sigmoid`] 1.33, [`tanh`] 2.06, [`sigmoid_exp2`] 1.83, [`ln_1p`] 1.44 on `[0, 1]`,
//! [`softplus`] 1.68. NaN stays NaN; infinities give the limits; results below 2^-127 become 0.

/// N lanes of f32.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(transparent)]
pub struct Lanes<const N: usize>(pub [f32; N]);

impl<const N: usize> Lanes<N> {
    /// All lanes `x`.
    #[inline(always)]
    pub fn splat(x: f32) -> Self {
        Self([x; N])
    }
    /// `f` of each lane.
    #[inline(always)]
    #[must_use]
    pub fn map(self, f: impl Fn(f32) -> f32) -> Self {
        let mut r = self;
        for x in &mut r.0 {
            *x = f(*x);
        }
        r
    }
    /// `f` of each pair of lanes.
    #[inline(always)]
    #[must_use]
    pub fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut r = self;
        for (x, y) in r.0.iter_mut().zip(other.0) {
            *x = f(*x, y);
        }
        r
    }
    /// `self * factor + term`, with one rounding where `FMA`.
    #[inline(always)]
    #[must_use]
    pub fn mul_add<const FMA: bool>(self, factor: Self, term: Self) -> Self {
        // Not array::from_fn, which is not always inlined: each lane is a call of the library's fma then.
        let mut r = term;
        for (x, (a, b)) in r.0.iter_mut().zip(self.0.into_iter().zip(factor.0)) {
            *x = mul_add::<FMA>(a, b, *x);
        }
        r
    }
    /// `self` within `low ..= high`; NaN stays NaN.
    #[inline(always)]
    #[must_use]
    pub fn clamped(self, low: f32, high: f32) -> Self {
        // Written so that one maximum and one minimum instruction come out, which return their second operand for NaN.
        self.map(|x| if x < low { low } else { x }).map(|x| if x > high { high } else { x })
    }
}

macro_rules! lanewise {
    ($($trait:ident $method:ident $op:tt),*) => { $(
        impl<const N: usize> std::ops::$trait for Lanes<N> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                self.zip(other, |a, b| a $op b)
            }
        }
    )* };
}
lanewise!(Add add +, Sub sub -, Mul mul *, Div div /);

/// `a * b + c`, with one rounding where `FMA`.
#[inline(always)]
pub fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The polynomial with these coefficients, highest power first, by Horner's rule.
#[inline(always)]
fn polynomial<const FMA: bool, const N: usize>(x: Lanes<N>, coefficients: &[f32]) -> Lanes<N> {
    let mut p = Lanes::splat(coefficients[0]);
    for &c in &coefficients[1..] {
        p = p.mul_add::<FMA>(x, Lanes::splat(c));
    }
    p
}

/// Adding it rounds to an integer n, whose biased exponent `n + 127` then stands in the low bits.
const ROUND: f32 = 12_582_912.0 + 127.0;

/// `(n, 2^n)` for n, the integer nearest to t, where t is in -127 ..= 128: 0 and infinity at the ends.
#[inline(always)]
fn nearest_power<const N: usize>(t: Lanes<N>) -> (Lanes<N>, Lanes<N>) {
    let u = t + Lanes::splat(ROUND);
    (u - Lanes::splat(ROUND), u.map(|x| f32::from_bits(x.to_bits() << 23)))
}

/// 2^f on [-1/2, 1/2], relative error 9.2e-8; minimax with the constant term held at 1. One term more would take the
/// error of [`sigmoid_exp2`] from 1.83 to 1.42, below which its other roundings do not let it fall.
const EXP2: [f32; 6] = [0.001_326_472_7, 0.009_671_513, 0.055_507_336, 0.240_222_42, 0.693_147_004, 1.0];

/// `1 / (1 + 2^t)` of each vector, for t in -127 ..= 128: a sigmoid whose argument was folded together with -log2(e),
/// cheaper than [`sigmoid`].
///
/// The vectors go side by side through each operation: of two of them in turn a Zen 3 makes 12 % less.
#[inline(always)]
pub fn sigmoids_exp2<const FMA: bool, const N: usize>(t: &mut [Lanes<N>]) {
    const MOST: usize = 2;
    assert!(t.len() <= MOST);
    let count = t.len();
    let (mut f, mut power) = ([Lanes::splat(0.0); MOST], [Lanes::splat(0.0); MOST]);
    for m in 0..count {
        let (n, p) = nearest_power(t[m]);
        (f[m], power[m]) = (t[m] - n, p);
        t[m] = Lanes::splat(EXP2[0]);
    }
    for &c in &EXP2[1..] {
        for m in 0..count {
            t[m] = t[m].mul_add::<FMA>(f[m], Lanes::splat(c));
        }
    }
    for m in 0..count {
        t[m] = Lanes::splat(1.0) / t[m].mul_add::<FMA>(power[m], Lanes::splat(1.0));
    }
}

/// [`sigmoids_exp2`] of one vector held within `low ..= high` (at most -127 ..= 128).
#[inline(always)]
pub fn sigmoid_exp2<const FMA: bool, const N: usize>(t: Lanes<N>, low: f32, high: f32) -> Lanes<N> {
    let mut t = [t.clamped(low, high)];
    sigmoids_exp2::<FMA, N>(&mut t);
    t[0]
}

/// e^f on [-0.35, 0.35], relative error 2.8e-9; minimax with the constant term held at 1.
const EXP: [f32; 7] = [0.001_406_485_4, 0.008_379_963, 0.041_664_697, 0.166_663_53, 0.500_000_06, 1.0, 1.0];
/// ln 2 with nine bits that are zero at its end, and what is left of it.
const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// `(p, 2^n)` with `e^x = p 2^n`, for x of any size.
#[inline(always)]
fn exp_parts<const FMA: bool, const N: usize>(x: Lanes<N>) -> (Lanes<N>, Lanes<N>) {
    let x = x.clamped(-88.0, 88.8);
    let (n, power) = nearest_power((x * Lanes::splat(std::f32::consts::LOG2_E)).clamped(-127.0, 128.0));
    let f = n.mul_add::<FMA>(Lanes::splat(-LN2[0]), x);
    let f = n.mul_add::<FMA>(Lanes::splat(-LN2[1]), f);
    (polynomial::<FMA, N>(f, &EXP), power)
}

/// `e^x`; 0 below -87.7 and infinity above 88.4, where n leaves the exponents of normal numbers.
#[inline(always)]
pub fn exp<const FMA: bool, const N: usize>(x: Lanes<N>) -> Lanes<N> {
    let (p, power) = exp_parts::<FMA, N>(x);
    p * power
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid<const FMA: bool, const N: usize>(x: Lanes<N>) -> Lanes<N> {
    let (p, power) = exp_parts::<FMA, N>(x.map(|x| -x));
    Lanes::splat(1.0) / p.mul_add::<FMA>(power, Lanes::splat(1.0))
}

/// The hyperbolic tangent, with small relative errors near 0 too.
#[inline(always)]
pub fn tanh<const FMA: bool, const N: usize>(x: Lanes<N>) -> Lanes<N> {
    // With u = e^(2|x|) - 1 = 2^n (e^f - 1) + (2^n - 1), tanh |x| = u / (u + 2); beyond 9.1 it rounds to 1.
    let y = x.map(|x| {
        let size = 2.0 * x.abs();
        if size > 18.2 { 18.2 } else { size }
    });
    let (n, power) = nearest_power(y * Lanes::splat(std::f32::consts::LOG2_E));
    let f = n.mul_add::<FMA>(Lanes::splat(-LN2[0]), y);
    let f = n.mul_add::<FMA>(Lanes::splat(-LN2[1]), f);
    // Without its constant term the polynomial of e^f is f times another.
    let rise = polynomial::<FMA, N>(f, &EXP[..6]) * f;
    let u = power.mul_add::<FMA>(rise, power - Lanes::splat(1.0));
    (u / (u + Lanes::splat(2.0))).zip(x, |t, x| t.copysign(x))
}

/// `(1 + erf(x / sqrt 2)) / 2`, the normal distribution, with relative errors below 2e-6 down to x = -5; and its density.
///
/// The fit of `ln(erfc(z) / t) + z^2` in `t = 1 / (1 + z / 2)` is that of Press et al., Numerical Recipes, section 6.2.
#[inline(always)]
pub fn normal<const FMA: bool, const N: usize>(x: Lanes<N>) -> (Lanes<N>, Lanes<N>) {
    let z = x.map(|x| x.abs() * std::f32::consts::FRAC_1_SQRT_2);
    let t = Lanes::splat(1.0) / z.mul_add::<FMA>(Lanes::splat(0.5), Lanes::splat(1.0));
    let fit = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let square = (z * z).map(|x| -x);
    let above = exp::<FMA, N>(polynomial::<FMA, N>(t, &fit) + square) * t * Lanes::splat(0.5);
    let below = above.zip(x, |a, x| if x < 0.0 { a } else { 1.0 - a });
    // 1 / sqrt(2 pi)
    (below, exp::<FMA, N>(square) * Lanes::splat(0.398_942_28))
}

/// `ln(1 + x)` for x in [0, 1].
#[inline(always)]
pub fn ln_1p<const FMA: bool, const N: usize>(x: Lanes<N>) -> Lanes<N> {
    // 2 artanh(s) with s = x / (2 + x) at most 1/3: the first term left out is below 2e-10 of the sum.
    let s = x / (x + Lanes::splat(2.0));
    let q = s * s;
    let series =
        [1.0 / 19.0, 1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0];
    let p = polynomial::<FMA, N>(q, &series) * q;
    let s2 = s + s;
    s2.mul_add::<FMA>(p, s2)
}

/// `ln(1 + e^x)`.
#[inline(always)]
pub fn softplus<const FMA: bool, const N: usize>(x: Lanes<N>) -> Lanes<N> {
    let small = ln_1p::<FMA, N>(exp::<FMA, N>(x.map(|x| -x.abs())));
    small + x.map(|x| if x < 0.0 { 0.0 } else { x })
}

/// Compiles a body for every [`SimdLevel`](crate::simd::SimdLevel) and calls the one for [`level`](crate::simd::level).
///
/// `levels!(fn name(args...) = body, R, [P, A, W])` defines `fn name`, which calls `body::<FMA, R, N>(args...)` with
/// N = P lanes in the portable body, A under AVX2 and W under AVX-512. `body` must be `#[inline(always)]`, and so must
/// be all that it calls and that is meant to use the wide instructions.
#[macro_export]
macro_rules! levels {
    ($vis:vis fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) = $body:ident, $r:literal, [$p:literal, $a:literal, $w:literal]) => {
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
                fn avx512($($arg: $ty),*) { $body::<true, $r, $w>($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) { $body::<true, $r, $a>($($arg),*) }
                match $crate::simd::level() {
                    // SAFETY: the level says that this CPU has the features.
                    $crate::simd::SimdLevel::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: the level says that this CPU has the features.
                    $crate::simd::SimdLevel::Avx2 => return unsafe { avx2($($arg),*) },
                    _ => {}
                }
            }
            $body::<{ cfg!(target_arch = "aarch64") }, $r, $p>($($arg),*)
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest relative error of `f` against `law` over a grid, in units of 2^-23.
    fn worst(
        low: f64,
        high: f64,
        f: impl Fn(Lanes<8>) -> Lanes<8>,
        law: impl Fn(f64) -> f64,
        normal: bool,
    ) -> (f64, f32) {
        let points = 200_000;
        let mut worst = (0.0, 0.0);
        for chunk in 0..points / 8 {
            let x =
                Lanes(std::array::from_fn(|l| (low + (high - low) * (chunk * 8 + l) as f64 / points as f64) as f32));
            for (x, y) in x.0.into_iter().zip(f(x).0) {
                let want = law(f64::from(x));
                if normal && want < f64::from(f32::MIN_POSITIVE) {
                    continue;
                }
                let error = (f64::from(y) - want).abs() / want.abs() * 2f64.powi(23);
                if error > worst.0 || error.is_nan() {
                    worst = (error, x);
                }
            }
        }
        worst
    }

    fn both(
        what: &str,
        low: f64,
        high: f64,
        bound: f64,
        fused: fn(Lanes<8>) -> Lanes<8>,
        plain: fn(Lanes<8>) -> Lanes<8>,
        law: fn(f64) -> f64,
    ) {
        for (name, f) in [("fused", fused), ("plain", plain)] {
            let (error, at) = worst(low, high, f, law, true);
            println!("{what} {name}: {error:.3} x 2^-23 at {at}");
            assert!(error <= bound, "{what} {name}: {error} x 2^-23 at {at}");
        }
    }

    #[test]
    fn errors_stay_below_the_declared_bounds() {
        let sigmoid_law = |x: f64| 1.0 / (1.0 + (-x).exp());
        both("exp", -87.0, 88.0, 1.1, exp::<true, 8>, exp::<false, 8>, f64::exp);
        both("sigmoid", -87.3, 40.0, 2.0, sigmoid::<true, 8>, sigmoid::<false, 8>, sigmoid_law);
        for (low, high) in [(1e-6, 0.02), (1e-3, 1.0), (-10.0, 10.0)] {
            both("tanh", low, high, 2.5, tanh::<true, 8>, tanh::<false, 8>, f64::tanh);
        }
        both("ln_1p", 1e-6, 1.0, 1.5, ln_1p::<true, 8>, ln_1p::<false, 8>, f64::ln_1p);
        both("softplus", -87.0, 87.0, 2.0, softplus::<true, 8>, softplus::<false, 8>, |x| {
            if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }
        });
        both(
            "sigmoid_exp2",
            -126.0,
            126.0,
            2.0,
            |t| sigmoid_exp2::<true, 8>(t, -127.0, 128.0),
            |t| sigmoid_exp2::<false, 8>(t, -127.0, 128.0),
            |t| 1.0 / (1.0 + t.exp2()),
        );
    }

    #[test]
    fn limits_and_nan() {
        let inf = f32::INFINITY;
        let odd_nan = f32::from_bits(0x7fc0_0001);
        let x = Lanes([inf, -inf, f32::NAN, odd_nan, 0.0, -0.0, f32::MAX, f32::MIN]);
        let close = |got: Lanes<8>, want: [f32; 8]| {
            for (x, (g, w)) in x.0.iter().zip(got.0.iter().zip(want)) {
                assert!((g.is_nan() && w.is_nan()) || *g == w, "at {x}: {g}, not {w}");
            }
        };
        let nan = f32::NAN;
        close(exp::<true, 8>(x), [inf, 0.0, nan, nan, 1.0, 1.0, inf, 0.0]);
        close(sigmoid::<true, 8>(x), [1.0, 0.0, nan, nan, 0.5, 0.5, 1.0, 0.0]);
        close(tanh::<true, 8>(x), [1.0, -1.0, nan, nan, 0.0, -0.0, 1.0, -1.0]);
        close(normal::<true, 8>(x).0, [1.0, 0.0, nan, nan, 0.5, 0.5, 1.0, 0.0]);
        close(sigmoid_exp2::<false, 8>(x, -127.0, 128.0), [0.0, 1.0, nan, nan, 0.5, 0.5, 0.0, 1.0]);
        let ln2 = std::f32::consts::LN_2;
        close(softplus::<true, 8>(x), [inf, 0.0, nan, nan, ln2, ln2, f32::MAX, 0.0]);
    }
}
