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
