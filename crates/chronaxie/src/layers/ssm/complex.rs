//! Complex numbers over any [`Real`], so that the laws are written once for real and for complex states.

use crate::real::Real;
use std::fmt::Debug;
use std::ops::{Add, Mul, Neg, Sub};

/// What a state may be made of: a real number, or a complex one.
pub trait Field:
    Copy + Debug + Send + Sync + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// Numbers that an element takes: 1, or 2 (real, imaginary).
    const WIDTH: usize;
    /// 0.
    fn zero() -> Self;
    /// The complex conjugate.
    fn conj(self) -> Self;
    /// From as many numbers as it takes.
    fn from_parts(parts: &[f64]) -> Self;
    /// Its numbers, behind those of `to`.
    fn push_parts(self, to: &mut Vec<f64>);
}

impl<R: Real> Field for R {
    const WIDTH: usize = 1;
    fn zero() -> Self {
        <R as Real>::zero()
    }
    fn conj(self) -> Self {
        self
    }
    fn from_parts(parts: &[f64]) -> Self {
        R::from_f64(parts[0])
    }
    fn push_parts(self, to: &mut Vec<f64>) {
        to.push(self.to_f64());
    }
}

/// A complex number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Complex<R> {
    /// The real part.
    pub re: R,
    /// The imaginary part.
    pub im: R,
}

impl<R: Real> Complex<R> {
    /// `re + i im`.
    pub fn new(re: R, im: R) -> Self {
        Self { re, im }
    }
    /// A real number.
    pub fn real(re: R) -> Self {
        Self { re, im: R::zero() }
    }
    /// 1.
    pub fn one() -> Self {
        Self::real(R::one())
    }
    /// `radius e^{i angle}`.
    pub fn polar(radius: R, angle: R) -> Self {
        Self { re: radius * angle.cos(), im: radius * angle.sin() }
    }
    /// Times a real number.
    #[must_use]
    pub fn scale(self, s: R) -> Self {
        Self { re: self.re * s, im: self.im * s }
    }
    /// The square of the absolute value.
    pub fn norm_squared(self) -> R {
        self.re * self.re + self.im * self.im
    }
    /// `1 / self`.
    #[must_use]
    pub fn recip(self) -> Self {
        self.conj().scale(R::one() / self.norm_squared())
    }
    /// `e^self`.
    #[must_use]
    pub fn exp(self) -> Self {
        Self::polar(self.re.exp(), self.im)
    }
    /// `phi1(w) = (e^w - 1) / w`, by its series near 0, where the difference cancels.
    #[must_use]
    pub fn phi1(self) -> Self {
        if self.is_small() {
            return self.series(|k| 1.0 / factorial(k + 1));
        }
        (self.exp() - Self::one()) * self.recip()
    }
    /// The derivative of [`phi1`](Self::phi1): `(e^w - phi1(w)) / w`, by its series near 0.
    #[must_use]
    pub fn phi1_slope(self) -> Self {
        if self.is_small() {
            return self.series(|k| f64::from(k + 1) / factorial(k + 2));
        }
        (self.exp() - self.phi1()) * self.recip()
    }
    /// Where the series of twenty terms are exact to f64 (1 / 21! is 2e-20).
    fn is_small(self) -> bool {
        self.norm_squared().to_f64() < 1.0
    }
    fn series(self, coefficient: impl Fn(u32) -> f64) -> Self {
        (0..20).rev().fold(Self::zero(), |sum, k| sum * self + Self::real(R::from_f64(coefficient(k))))
    }
}

fn factorial(k: u32) -> f64 {
    (1..=k).map(f64::from).product()
}

impl<R: Real> Add for Complex<R> {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self { re: self.re + o.re, im: self.im + o.im }
    }
}
impl<R: Real> Sub for Complex<R> {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        Self { re: self.re - o.re, im: self.im - o.im }
    }
}
impl<R: Real> Mul for Complex<R> {
    type Output = Self;
    fn mul(self, o: Self) -> Self {
        Self { re: self.re * o.re - self.im * o.im, im: self.re * o.im + self.im * o.re }
    }
}
impl<R: Real> Neg for Complex<R> {
    type Output = Self;
    fn neg(self) -> Self {
        Self { re: -self.re, im: -self.im }
    }
}

impl<R: Real> Field for Complex<R> {
    const WIDTH: usize = 2;
    fn zero() -> Self {
        Self::real(R::zero())
    }
    fn conj(self) -> Self {
        Self { re: self.re, im: -self.im }
    }
    fn from_parts(parts: &[f64]) -> Self {
        Self { re: R::from_f64(parts[0]), im: R::from_f64(parts[1]) }
    }
    fn push_parts(self, to: &mut Vec<f64>) {
        to.extend([self.re.to_f64(), self.im.to_f64()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phi1_and_its_slope_meet_where_the_series_ends() {
        for angle in [0.0, 0.7, 1.9, 3.1] {
            for radius in [1e-9, 0.3, 1.0 - 1e-12, 1.0 + 1e-12, 4.0] {
                let w = Complex::polar(radius, angle);
                let long = w.series(|k| 1.0 / factorial(k + 1));
                let difference = (w.phi1() - long).norm_squared().sqrt();
                assert!(radius > 2.0 || difference < 1e-15, "phi1 at {w:?}: {difference:e}");
                // phi1' by central differences.
                let step = Complex::real(1e-6);
                let slope = ((w + step).phi1() - (w - step).phi1()).scale(0.5e6);
                let error = (w.phi1_slope() - slope).norm_squared().sqrt();
                assert!(error < 1e-8, "phi1' at {w:?}: {error:e}");
            }
        }
        assert_eq!(Complex::<f64>::zero().phi1(), Complex::one());
        assert_eq!(Complex::<f64>::zero().phi1_slope(), Complex::real(0.5));
    }
}
