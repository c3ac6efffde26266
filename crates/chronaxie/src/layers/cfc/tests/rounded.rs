//! f64 whose tanh and sigmoid are as rough as `tanh.approx.f32`: what precision `fast` does to a result.

use crate::real::Real;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A number whose tanh has a relative error of up to 2^-11, drawn from the bits of its argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rounded(f64);

impl Rounded {
    fn rough(self, y: f64) -> Self {
        // The high bits of a product with an odd number are as good as random.
        let draw = (self.0.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64;
        Self(y * (1.0 + (2.0 * draw - 1.0) * 2f64.powi(-11)))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident),*) => { $(
        impl $trait for Rounded {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                Self(self.0.$method(other.0))
            }
        }
    )* };
}
operators!(Add add, Sub sub, Mul mul, Div div);

impl Neg for Rounded {
    type Output = Self;
    fn neg(self) -> Self {
        Self(-self.0)
    }
}

macro_rules! exact {
    ($($method:ident),*) => { $(
        fn $method(self) -> Self {
            Self(Real::$method(self.0))
        }
    )* };
}

impl Real for Rounded {
    fn from_f64(x: f64) -> Self {
        Self(x)
    }
    fn to_f64(self) -> f64 {
        self.0
    }
    fn tanh(self) -> Self {
        self.rough(self.0.tanh())
    }
    fn sigmoid(self) -> Self {
        // 1/2 + tanh(x / 2) / 2, as the kernels make it.
        Self(0.5 + 0.5 * Self(0.5 * self.0).tanh().0)
    }
    fn max(self, other: Self) -> Self {
        Self(Real::max(self.0, other.0))
    }
    exact!(exp, ln, sqrt, abs, softplus, sin, cos);
}
