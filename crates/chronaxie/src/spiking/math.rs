//! Exponential, logarithm and the normal distribution in f64 from additions, multiplications and divisions alone.
//!
//! The C library's differ by a unit in the last place from one system to another. What these decide (propagators,
//! thresholds of random numbers, which pairs are connected) must be the same bits everywhere, so they are our own.

/// ln 2 with 32 bits that are zero at its end, and what is left of it.
const LN2: [f64; 2] = [0.693_147_180_369_123_816_49, 1.908_214_929_270_587_700_02e-10];

/// `e^x`, within 2 units in the last place; 0 below -745 and infinity above 709.8.
pub fn exp(x: f64) -> f64 {
    if x.is_nan() || x > 709.782_712_893_383_9 {
        return if x.is_nan() { x } else { f64::INFINITY };
    }
    if x < -745.2 {
        return 0.0;
    }
    let n = (x * std::f64::consts::LOG2_E).round();
    let r = (x - n * LN2[0]) - n * LN2[1];
    // Taylor on |r| <= 0.347: the first term left out is below 2e-18 of the sum.
    let mut p = 1.0;
    for k in (1..=14).rev() {
        p = 1.0 + p * r / f64::from(k);
    }
    // In two factors, so that results below the normal range are rounded once.
    let half = (n / 2.0).floor();
    p * power_of_two(half) * power_of_two(n - half)
}

/// `2^n` for whole n from -1022 to 1023.
fn power_of_two(n: f64) -> f64 {
    f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

/// The natural logarithm, within 2 units in the last place; minus infinity at 0, NaN below.
pub fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 || x.is_infinite() {
        return if x == 0.0 { f64::NEG_INFINITY } else { x };
    }
    let (x, shift) = if x < f64::MIN_POSITIVE { (x * 2f64.powi(54), -54) } else { (x, 0) };
    let bits = x.to_bits();
    let (mut exponent, mut m) =
        ((bits >> 52) as i64 - 1023 + shift, f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        (m, exponent) = (m / 2.0, exponent + 1);
    }
    // ln m = 2 artanh s, |s| <= 0.172: the first term left out is below 1e-18.
    let s = (m - 1.0) / (m + 1.0);
    let q = s * s;
    let mut series = 0.0;
    for k in (1..=11).rev() {
        series = q * (1.0 / f64::from(2 * k + 1) + series);
    }
    let e = exponent as f64;
    e * LN2[0] + (2.0 * s + (2.0 * s * series + e * LN2[1]))
}

/// The number below which a share `p` of the standard normal distribution lies, `0 < p < 1`, to 1e-15 of its size (Wichura, Appl. Stat.
/// 37:477, 1988, AS 241).
pub fn normal_quantile(p: f64) -> f64 {
    const MIDDLE: [[f64; 8]; 2] = [
        [
            3.387_132_872_796_366_5,
            133.141_667_891_784_38,
            1_971.590_950_306_551_3,
            13_731.693_765_509_46,
            45_921.953_931_549_87,
            67_265.770_927_008_7,
            33_430.575_583_588_13,
            2_509.080_928_730_122_7,
        ],
        [
            1.0,
            42.313_330_701_600_91,
            687.187_007_492_057_9,
            5_394.196_021_424_751,
            21_213.794_301_586_597,
            39_307.895_800_092_71,
            28_729.085_735_721_943,
            5_226.495_278_852_854_5,
        ],
    ];
    const NEAR: [[f64; 8]; 2] = [
        [
            1.423_437_110_749_683_5,
            4.630_337_846_156_546,
            5.769_497_221_460_691,
            3.647_848_324_763_204_5,
            1.270_458_252_452_368_4,
            0.241_780_725_177_450_6,
            0.022_723_844_989_269_184,
            7.745_450_142_783_414e-4,
        ],
        [
            1.0,
            2.053_191_626_637_759,
            1.676_384_830_183_803_8,
            0.689_767_334_985_1,
            0.148_103_976_427_480_08,
            0.015_198_666_563_616_457,
            5.475_938_084_995_345e-4,
            1.050_750_071_644_416_9e-9,
        ],
    ];
    const FAR: [[f64; 8]; 2] = [
        [
            6.657_904_643_501_103,
            5.463_784_911_164_114,
            1.784_826_539_917_291_3,
            0.296_560_571_828_504_87,
            0.026_532_189_526_576_124,
            0.001_242_660_947_388_078_4,
            2.711_555_568_743_487_6e-5,
            2.010_334_399_292_288_1e-7,
        ],
        [
            1.0,
            0.599_832_206_555_888,
            0.136_929_880_922_735_8,
            0.014_875_361_290_850_615,
            7.868_691_311_456_133e-4,
            1.846_318_317_510_054_8e-5,
            1.421_511_758_316_446e-7,
            2.044_263_103_389_939_8e-15,
        ],
    ];
    let ratio = |[over, under]: &[[f64; 8]; 2], r: f64| {
        let sum = |c: &[f64; 8]| c.iter().rev().fold(0.0, |sum, c| sum * r + c);
        sum(over) / sum(under)
    };
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        return q * ratio(&MIDDLE, 0.180_625 - q * q);
    }
    let r = (-ln(if q < 0.0 { p } else { 1.0 - p })).sqrt();
    let x = if r <= 5.0 { ratio(&NEAR, r - 1.6) } else { ratio(&FAR, r - 5.0) };
    if q < 0.0 { -x } else { x }
}

/// The normal distribution function, to 1e-15 absolute.
pub fn normal_cdf(x: f64) -> f64 {
    let z = x.abs();
    // Beyond, less than 2^-53 is left.
    if z > 8.3 {
        return if x < 0.0 { 0.0 } else { 1.0 };
    }
    // 1/2 + phi(z) (z + z^3/3 + z^5/15 + ...): all terms have one sign, so nothing cancels.
    let (mut term, mut sum, mut k) = (z, z, 1.0);
    while term > 1e-17 * sum {
        k += 2.0;
        term = term * z * z / k;
        sum += term;
    }
    let half = exp(-0.5 * z * z) * 0.398_942_280_401_432_68 * sum;
    if x < 0.0 { 0.5 - half } else { 0.5 + half }
}

/// `(1 - e^-x) / x`, also near 0.
pub fn phi1(x: f64) -> f64 {
    if x.abs() > 0.5 {
        return (1.0 - exp(-x)) / x;
    }
    // 1/1! - x/2! + x^2/3! - ...: the first term left out is below 1e-18.
    (1..=15).rev().fold(1.0 / 16.0, |sum, k| (1.0 - x * sum) / f64::from(k))
}

/// `(1 - (1 + x) e^-x) / x^2`, also near 0.
pub fn phi2(x: f64) -> f64 {
    if x.abs() > 0.5 {
        return (1.0 - (1.0 + x) * exp(-x)) / (x * x);
    }
    // The sum of (-x)^k / (k! (k + 2)).
    let (mut term, mut sum) = (1.0, 0.0);
    for k in 0..18 {
        sum += term / f64::from(k + 2);
        term *= -x / f64::from(k + 1);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_ln_are_those_of_the_library_to_two_units() {
        let units = |a: f64, b: f64| (a - b).abs() / (b.abs() * f64::EPSILON).max(f64::MIN_POSITIVE);
        let (mut worst_exp, mut worst_ln) = (0.0f64, 0.0f64);
        for i in 0..400_000 {
            let x = -700.0 + 1400.0 * f64::from(i) / 400_000.0;
            worst_exp = worst_exp.max(units(exp(x), x.exp()));
            let y = (x / 3.0).exp() * 1.234_567;
            worst_ln = worst_ln.max(units(ln(y), y.ln()));
            let near = 1.0 + x * 1e-6;
            worst_ln = worst_ln.max(units(ln(near), near.ln()));
        }
        assert!(worst_exp <= 2.0 && worst_ln <= 2.5, "exp {worst_exp}, ln {worst_ln}");
        assert_eq!((exp(0.0), ln(1.0), exp(-800.0), exp(800.0)), (1.0, 0.0, 0.0, f64::INFINITY));
        assert!(ln(-1.0).is_nan() && ln(0.0) == f64::NEG_INFINITY && (ln(1e-310) - 1e-310f64.ln()).abs() < 1e-12);
    }

    /// Values of Abramowitz and Stegun, table 26.1, and symmetry.
    #[test]
    fn the_normal_distribution_is_the_tabulated_one() {
        for (x, p) in
            [(0.0, 0.5), (1.0, 0.841_344_746_068_543), (2.0, 0.977_249_868_051_821), (3.0, 0.998_650_101_968_370)]
        {
            assert!((normal_cdf(x) - p).abs() < 1e-14, "{x}: {}", normal_cdf(x));
            assert!((normal_cdf(x) + normal_cdf(-x) - 1.0).abs() < 1e-15);
        }
        assert!((normal_cdf(-6.0) - 9.865_876_450_376_98e-10).abs() < 1e-15);
    }

    #[test]
    fn quotients_near_zero_are_smooth() {
        for x in [-3.0f64, -0.500_01, -0.499_99, -0.3, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 0.3, 0.499_99, 0.500_01, 2.5] {
            // By the integrals of e^(-xs) and s e^(-xs) over [0, 1], Simpson's rule.
            let n = 2000;
            let simpson = |f: &dyn Fn(f64) -> f64| {
                let weight = |i: usize| if i == 0 || i == n { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
                (0..=n).map(|i| weight(i) * f(i as f64 / n as f64)).sum::<f64>() / (3 * n) as f64
            };
            assert!((phi1(x) - simpson(&|s| (-x * s).exp())).abs() < 1e-12 * phi1(x), "{x}");
            assert!((phi2(x) - simpson(&|s| s * (-x * s).exp())).abs() < 1e-12 * phi2(x), "{x}");
        }
    }
}
