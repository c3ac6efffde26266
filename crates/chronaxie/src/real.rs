//! Numbers that a reference can be written over: f64 is the law, f32 shows the noise floor, and [`Dual`] carries a
//! derivative along, so that a hand-written backward pass can be held against its own forward pass.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A real number with the functions that the recurrences need.
pub trait Real:
    Copy
    + Debug
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The nearest number to `x`.
    fn from_f64(x: f64) -> Self;
    /// The value, without any derivative.
    fn to_f64(self) -> f64;
    /// e to the power of self.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The absolute value; its derivative at 0 is 0.
    fn abs(self) -> Self;
    /// The larger of two numbers; of two equal ones, `self`.
    fn max(self, other: Self) -> Self;
    /// 1 / (1 + exp(-self)), without overflow.
    fn sigmoid(self) -> Self;
    /// ln(1 + exp(self)), without overflow.
    fn softplus(self) -> Self;
    /// The sine of an angle in radians.
    fn sin(self) -> Self;
    /// The cosine of an angle in radians.
    fn cos(self) -> Self;

    /// 0.
    fn zero() -> Self {
        Self::from_f64(0.0)
    }
    /// 1.
    fn one() -> Self {
        Self::from_f64(1.0)
    }
}

macro_rules! float {
    ($t:ty) => {
        impl Real for $t {
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            fn tanh(self) -> Self {
                <$t>::tanh(self)
            }
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            fn abs(self) -> Self {
                <$t>::abs(self)
            }
            fn max(self, other: Self) -> Self {
                if other > self { other } else { self }
            }
            fn sigmoid(self) -> Self {
                // exp of a number that is never positive cannot overflow.
                let e = <$t>::exp(-<$t>::abs(self));
                if self < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
            }
            fn softplus(self) -> Self {
                let positive = if self > 0.0 { self } else { 0.0 };
                positive + <$t>::exp(-<$t>::abs(self)).ln_1p()
            }
            fn sin(self) -> Self {
                <$t>::sin(self)
            }
            fn cos(self) -> Self {
                <$t>::cos(self)
            }
        }
    };
}
float!(f32);
float!(f64);

/// A value and its derivative in one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dual {
    /// The value.
    pub value: f64,
    /// The derivative.
    pub derivative: f64,
}

impl Dual {
    /// `value`, moving at the rate `derivative`.
    pub const fn new(value: f64, derivative: f64) -> Self {
        Self { value, derivative }
    }
    /// f(self), where `value` is f and `slope` its derivative at self.
    fn chain(self, value: f64, slope: f64) -> Self {
        Self::new(value, slope * self.derivative)
    }
}

impl Add for Dual {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self::new(self.value + o.value, self.derivative + o.derivative)
    }
}
impl Sub for Dual {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        Self::new(self.value - o.value, self.derivative - o.derivative)
    }
}
impl Mul for Dual {
    type Output = Self;
    fn mul(self, o: Self) -> Self {
        Self::new(self.value * o.value, self.derivative * o.value + self.value * o.derivative)
    }
}
impl Div for Dual {
    type Output = Self;
    fn div(self, o: Self) -> Self {
        let value = self.value / o.value;
        Self::new(value, (self.derivative - value * o.derivative) / o.value)
    }
}
impl Neg for Dual {
    type Output = Self;
    fn neg(self) -> Self {
        Self::new(-self.value, -self.derivative)
    }
}

impl Real for Dual {
    fn from_f64(x: f64) -> Self {
        Self::new(x, 0.0)
    }
    fn to_f64(self) -> f64 {
        self.value
    }
    fn exp(self) -> Self {
        let y = self.value.exp();
        self.chain(y, y)
    }
    fn ln(self) -> Self {
        self.chain(self.value.ln(), 1.0 / self.value)
    }
    fn tanh(self) -> Self {
        let y = self.value.tanh();
        self.chain(y, (1.0 - y) * (1.0 + y))
    }
    fn sqrt(self) -> Self {
        let y = self.value.sqrt();
        self.chain(y, 0.5 / y)
    }
    fn abs(self) -> Self {
        let slope = if self.value == 0.0 { 0.0 } else { self.value.signum() };
        self.chain(self.value.abs(), slope)
    }
    fn max(self, other: Self) -> Self {
        if other.value > self.value { other } else { self }
    }
    fn sigmoid(self) -> Self {
        let y = Real::sigmoid(self.value);
        // 1 - y cancels where y is near 1; sigmoid(-x) is the same number without it.
        self.chain(y, y * Real::sigmoid(-self.value))
    }
    fn softplus(self) -> Self {
        self.chain(Real::softplus(self.value), Real::sigmoid(self.value))
    }
    fn sin(self) -> Self {
        self.chain(self.value.sin(), self.value.cos())
    }
    fn cos(self) -> Self {
        self.chain(self.value.cos(), -self.value.sin())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The derivative by central differences of fourth order: error about 1e-12 at this step.
    fn slope(f: impl Fn(f64) -> f64, x: f64) -> f64 {
        let h = 1e-3;
        (8.0 * (f(x + h) - f(x - h)) - (f(x + 2.0 * h) - f(x - 2.0 * h))) / (12.0 * h)
    }

    #[test]
    fn dual_numbers_carry_the_derivative() {
        fn every<R: Real>(x: R) -> [R; 12] {
            let two = R::from_f64(2.0);
            [
                x.exp(),
                x.abs().ln(),
                x.tanh(),
                x.abs().sqrt(),
                x.abs(),
                x.max(R::from_f64(0.1)),
                x.sigmoid(),
                x.softplus(),
                x.sin(),
                x.cos(),
                two / x - x * x,
                -(x * x * x) + R::one() / (x + two + two),
            ]
        }
        for x in [-2.3, -0.7, 0.4, 1.9] {
            let dual = every(Dual::new(x, 1.0));
            for (i, d) in dual.iter().enumerate() {
                assert!((d.value - every(x)[i]).abs() < 1e-15, "function {i} at {x}");
                let want = slope(|y| every(y)[i], x);
                assert!((d.derivative - want).abs() < 1e-8 * want.abs().max(1.0), "function {i} at {x}: {d:?}, {want}");
            }
        }
    }

    #[test]
    fn extreme_arguments_stay_finite() {
        for x in [-1e4, -800.0, 800.0, 1e4] {
            let (s, p) = (Dual::new(x, 1.0).sigmoid(), Dual::new(x, 1.0).softplus());
            assert!(s.value.is_finite() && s.derivative.is_finite() && p.value.is_finite());
            assert_eq!(p.derivative, s.value);
            assert_eq!(Real::softplus(x as f32), x.max(0.0) as f32);
        }
        assert_eq!(Dual::new(0.0, 1.0).abs().derivative, 0.0);
        assert_eq!(Real::sigmoid(-1e3f32), 0.0);
    }
}
