//! What an inverse root is: its options, names and shapes, samples, and how exact the result must be.

use crate::op::{Metric, Pass, Role, Signature, TensorSpec, Tensors, Tolerance, Values};
use crate::optim::matrix;
use crate::rng::Rng;
use crate::{Dtype, Error, Result, Shape};

/// The name of the entry for any exponent.
pub(super) const NAME: &str = "inverse_root";
/// The name of the one for fourth roots, which is compared.
pub(super) const FOURTH: &str = "inverse_root4";
/// The largest p and q.
pub const MOST: u32 = 64;
/// Numbers of a matrix's record.
pub const RECORD: usize = 4;
/// The largest n whose roots are held against the law: its rotations take 100 n^3 operations, one after the other.
pub(in crate::optim) const MOST_BY_LAW: usize = 256;
/// The least n of samples whose products are not made one by one.
const LARGE: usize = 512;
/// A residual of Newton above which its result is not taken.
pub const WORST_RESIDUAL: f64 = 0.1;
/// Iterations of Newton at most; a condition number of 1e8 takes 24.
pub const MOST_ITERATIONS: usize = 100;

/// How a root is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// What is fastest where it runs.
    #[default]
    Auto,
    /// By eigenvalues: any exponent.
    Eigen,
    /// By the coupled Newton iteration: exponents 1/p.
    Newton,
}

impl Method {
    /// `auto`, `eigen` or `newton`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Eigen => "eigen",
            Self::Newton => "newton",
        }
    }
}

impl std::str::FromStr for Method {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        [Self::Auto, Self::Eigen, Self::Newton]
            .into_iter()
            .find(|m| m.name() == s)
            .ok_or_else(|| Error::config(format!("method `{s}` is not one of auto, eigen, newton")))
    }
}

/// What became of a matrix: the first number of its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// Newton converged.
    Newton = 0,
    /// By eigenvalues.
    Eigen = 1,
    /// By eigenvalues, shifted: the matrix was indefinite.
    Shifted = 2,
    /// There is no root, and the result is NaN.
    Failed = 3,
}

/// What is wrong with the first matrix of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(in crate::optim) enum Defect {
    #[default]
    None,
    Zero,
    Rank1,
    Indefinite,
    /// One of its numbers is a NaN, so that it has no root.
    Nan,
    /// One of its numbers is infinite.
    Infinite,
}

impl std::str::FromStr for Defect {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "none" => Ok(Self::None),
            "zero" => Ok(Self::Zero),
            "rank1" => Ok(Self::Rank1),
            "indefinite" => Ok(Self::Indefinite),
            "nan" => Ok(Self::Nan),
            "infinite" => Ok(Self::Infinite),
            _ => Err(Error::config(format!("defect `{s}` is not one of none, zero, rank1, indefinite, nan, infinite"))),
        }
    }
}

/// `(A + eps I)^(-q/p)` of N symmetric matrices `[N, n, n]`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct InverseRoot {
    /// N.
    pub count: usize,
    /// n.
    pub order: usize,
    /// q.
    pub numerator: u32,
    /// p.
    pub denominator: u32,
    /// How.
    pub method: Method,
    /// Damping at least.
    pub absolute: f64,
    /// Damping, relative to the Frobenius norm.
    pub relative: f64,
    /// The condition number of sampled matrices; 0 for those of A A^T / 2n, with A [n, 2n] normal.
    pub(in crate::optim) kappa: f64,
    pub(in crate::optim) defect: Defect,
    /// The entry's name.
    pub(super) entry: &'static str,
}

impl InverseRoot {
    /// Inverse `denominator`-th roots of `count` matrices of `order`; damping 1e-6 of the norm and at least 1e-12.
    pub fn new(count: usize, order: usize, denominator: u32) -> Self {
        Self {
            count,
            order,
            numerator: 1,
            denominator,
            method: Method::Auto,
            absolute: 1e-12,
            relative: 1e-6,
            kappa: 0.0,
            defect: Defect::None,
            entry: NAME,
        }
    }
    /// The exponent -q/p.
    #[must_use]
    pub fn exponent(mut self, numerator: u32, denominator: u32) -> Self {
        (self.numerator, self.denominator) = (numerator, denominator);
        self
    }
    /// By this method.
    #[must_use]
    pub fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }
    /// With this damping.
    #[must_use]
    pub fn damping(mut self, absolute: f64, relative: f64) -> Self {
        (self.absolute, self.relative) = (absolute, relative);
        self
    }
    /// Checks sizes and options.
    ///
    /// # Errors
    /// An exponent of 0 or beyond [`MOST`], a negative or infinite damping, Newton for q > 1, and tensors that cannot be
    /// addressed, each with its value.
    pub fn build(self) -> Result<Self> {
        let shape = Shape::from([self.count.max(1), self.order.max(1), self.order.max(1)]);
        if self.order > 1 << 15 || !shape.checked_elements().is_ok_and(|n| n <= isize::MAX as usize / 4) {
            return Err(Error::shape(format!(
                "inverse root: [N, n, n] = [{}, {1}, {1}] is too large: n is at most 32768",
                self.count, self.order
            )));
        }
        for (name, x) in [("q", self.numerator), ("p", self.denominator)] {
            if !(1..=MOST).contains(&x) {
                return Err(Error::value(format!(
                    "inverse root: {name} = {x} of the exponent -q/p is not 1 to {MOST}"
                )));
            }
        }
        for (name, x) in [("absolute", self.absolute), ("relative", self.relative)] {
            if !(x >= 0.0 && x.is_finite()) {
                return Err(Error::value(format!(
                    "inverse root: {name} damping {x} is not a finite number of at least 0"
                )));
            }
        }
        if self.method == Method::Newton && self.numerator != 1 {
            return Err(Error::config(format!(
                "inverse root: method newton takes exponents -1/p, not -{}/{}; take eigen",
                self.numerator, self.denominator
            )));
        }
        Ok(self)
    }

    /// The signature of the one pass.
    ///
    /// # Errors
    /// If the pass is another one.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        if pass != Pass::Forward {
            return Err(Error::config(format!("inverse root: there is no {} pass", pass.name())));
        }
        let matrices = |name: &'static str, role| {
            TensorSpec::new(name, "[N, n, n]", [self.count, self.order, self.order], Dtype::F32, role)
        };
        Ok(Signature {
            inputs: vec![matrices("a", Role::Input)],
            outputs: vec![
                matrices("root", Role::Output),
                TensorSpec::new("record", "[N, 4]", [self.count, RECORD], Dtype::F32, Role::Extra),
            ],
        })
    }

    /// The damping of a matrix of that Frobenius norm.
    pub fn damping_of(&self, norm: f64) -> f64 {
        self.absolute.max(self.relative * norm)
    }

    /// The bound on the error of one output.
    pub fn tolerance_of(&self, output: &str) -> Option<Tolerance> {
        if output != "root" {
            return None;
        }
        // Damping bounds the condition number of what is singular.
        let damped = match self.defect {
            Defect::None | Defect::Nan | Defect::Infinite => self.kappa,
            _ => self.kappa.max(1.0 / self.relative.max(1e-8)),
        };
        let value = match damped {
            ..=1e2 => 1.5e-5,
            ..=1e4 => 6e-5,
            ..=1e6 => 3e-3,
            _ => 0.3,
        };
        // Of a power, the relative error is that of the eigenvalue times the exponent.
        let exponent = f64::from(self.numerator) / f64::from(self.denominator);
        Some(Tolerance {
            metric: Metric::Relative,
            value: value * (4.0 * exponent).max(1.0),
            reason: "3 x the error of coupled Newton in f32 at that condition number for the power -1/4, in proportion to larger exponents: the smallest eigenvalue of an f32 matrix is known to 6e-8 of the largest",
        })
    }

    /// Matrices at unit scale: A A^T / 2n with A [n, 2n] normal, or the spectrum 1 to 1/kappa, log-spaced, turned by six
    /// random reflections.
    pub(in crate::optim) fn sample_of(&self, seed: u64) -> Result<Tensors> {
        let n = self.order;
        let mut data = Vec::with_capacity(self.count * n * n);
        for i in 0..self.count {
            let mut rng = Rng::new(seed, i as u64);
            let (defect, number) = match self.defect {
                defect if i > 0 || defect == Defect::None => (Defect::None, None),
                Defect::Nan => (Defect::None, Some(f64::NAN)),
                Defect::Infinite => (Defect::None, Some(f64::INFINITY)),
                defect => (defect, None),
            };
            let mut a = vec![0.0; n * n];
            match defect {
                Defect::Zero => {}
                Defect::Rank1 => {
                    let v: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
                    (0..n * n).for_each(|e| a[e] = v[e / n] * v[e % n]);
                }
                Defect::None if self.kappa == 0.0 && n >= LARGE => {
                    let g: Vec<f32> = (0..2 * n * n).map(|_| rng.normal() as f32).collect();
                    let mut product = vec![0f32; n * n];
                    matrix::gram_on_threads(&mut product, [n, 2 * n], &g);
                    (0..n * n).for_each(|e| a[e] = f64::from(product[e] / (2 * n) as f32));
                }
                Defect::None if self.kappa == 0.0 => {
                    let g: Vec<f64> = (0..2 * n * n).map(|_| rng.normal()).collect();
                    for r in 0..n {
                        for c in 0..=r {
                            let sum: f64 = (0..2 * n).map(|k| g[r * 2 * n + k] * g[c * 2 * n + k]).sum();
                            (a[r * n + c], a[c * n + r]) = (sum / (2 * n) as f64, sum / (2 * n) as f64);
                        }
                    }
                }
                _ => {
                    let kappa: f64 = self.kappa.max(10.0);
                    for k in 0..n {
                        a[k * n + k] = kappa.powf(-(k as f64) / (n.max(2) - 1) as f64);
                        if defect == Defect::Indefinite && k % 3 == 1 {
                            a[k * n + k] *= -1.0;
                        }
                    }
                    for _ in 0..6 {
                        reflect(&mut a, n, &mut rng);
                    }
                }
            }
            if let (Some(number), Some(one)) = (number, a.get_mut(n * n / 2)) {
                *one = number;
            }
            data.extend(a);
        }
        let values = Values::new([self.count, n, n], data)?.rounded(Dtype::F32);
        Ok([("a".to_owned(), values)].into_iter().collect())
    }
}

/// A <- H A H, H = I - 2 v v^T / v^T v.
fn reflect(a: &mut [f64], n: usize, rng: &mut Rng) {
    let v: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
    let scale = 2.0 / v.iter().map(|x| x * x).sum::<f64>().max(1e-300);
    for r in 0..n {
        let dot: f64 = scale * (0..n).map(|c| a[r * n + c] * v[c]).sum::<f64>();
        (0..n).for_each(|c| a[r * n + c] -= dot * v[c]);
    }
    for c in 0..n {
        let dot: f64 = scale * (0..n).map(|r| a[r * n + c] * v[r]).sum::<f64>();
        (0..n).for_each(|r| a[r * n + c] -= dot * v[r]);
    }
    // Exactly symmetric again.
    for r in 0..n {
        for c in 0..r {
            let mean = 0.5 * (a[r * n + c] + a[c * n + r]);
            (a[r * n + c], a[c * n + r]) = (mean, mean);
        }
    }
}
