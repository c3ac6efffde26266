//! What a step of Muon is: its options, names and shapes of every tensor, and how exact the results must be.

use crate::op::{Metric, Pass, Precision, Signature, Tolerance};
use crate::optim::blocks::Parameter;
use crate::optim::stepper::{self, Common};
use crate::{Error, Result};

pub(super) const NAME: &str = "muon";

/// Coefficients of the quintic (Jordan et al., 2024): steep at zero, within 0.7 .. 1.2 of one behind five steps.
pub const QUINTIC: [f64; 3] = [3.4445, -4.775, 2.0315];
/// A rounding to f16.
const HALF: f64 = 1.0 / 2048.0;
/// Added to the norm by which a matrix is divided at first.
pub const NORM_EPS: f64 = 1e-7;

/// One step of Muon over a flat vector of N elements.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Muon {
    /// N.
    pub elements: usize,
    /// What lies in it, in order.
    pub parameters: Vec<Parameter>,
    /// Decay of the sum of gradients.
    pub momentum: f64,
    /// Whether the gradient is counted once more.
    pub nesterov: bool,
    /// Iterations of Newton-Schulz.
    pub steps: usize,
    /// Clipping and weight decay; that of parameters that are no matrices is decoupled.
    pub common: Common,
    /// The learning rate of parameters that are no matrices, in parts of the others'.
    pub adamw_rate: f64,
    /// Decay of their first moment.
    pub beta1: f64,
    /// Decay of their second moment.
    pub beta2: f64,
    /// Added to the root of their second moment.
    pub epsilon: f64,
    /// `Fast`: products are of numbers rounded to f16, summed in f32, where there are tensor cores for it (compute capability 9.0, sides
    /// of 128 and more).
    pub precision: Precision,
}

/// A parameter of two axes or more, as a matrix: those beyond the first are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matrix {
    pub first: usize,
    pub rows: usize,
    pub columns: usize,
}

impl Matrix {
    pub(super) fn elements(&self) -> usize {
        self.rows * self.columns
    }
    /// The smaller side.
    pub(super) fn side(&self) -> usize {
        self.rows.min(self.columns)
    }
    /// What its orthogonal matrix is multiplied by, beside the learning rate.
    pub(super) fn speed(&self) -> f64 {
        (self.rows as f64 / self.columns as f64).max(1.0).sqrt()
    }
}

impl Muon {
    /// A step over `parameters` in a vector of `elements`, with the defaults of `chronaxie.optim.Muon`: momentum 0.95 after
    /// Nesterov, five iterations, and for other parameters betas 0.9 and 0.95 and 3e-4 / 2e-2 of the learning rate.
    pub fn new(elements: usize, parameters: Vec<Parameter>) -> Self {
        Self {
            elements,
            parameters,
            momentum: 0.95,
            nesterov: true,
            steps: 5,
            common: Common::default(),
            adamw_rate: 3e-4 / 2e-2,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            precision: Precision::Exact,
        }
    }
    /// Checks the options.
    ///
    /// # Errors
    /// An option out of range, and parameters that overlap, each with its values.
    pub fn build(self) -> Result<Self> {
        for (name, x) in [("momentum", self.momentum), ("beta1", self.beta1), ("beta2", self.beta2)] {
            stepper::below_1(NAME, name, x, false)?;
        }
        stepper::at_least_0(NAME, "epsilon", self.epsilon)?;
        stepper::at_least_0(NAME, "adamw_rate", self.adamw_rate)?;
        if !(1..=100).contains(&self.steps) {
            return Err(Error::value(format!("{NAME}: steps = {} is not 1 to 100", self.steps)));
        }
        self.common.check(NAME)?;
        stepper::fit(NAME, &self.parameters, self.elements)?;
        Ok(self)
    }
    pub(super) fn matrices(&self) -> Vec<Matrix> {
        let of = |p: &Parameter| {
            let rows = *p.shape.first()?;
            let elements = p.shape.elements();
            (p.shape.len() > 1 && elements > 0).then(|| Matrix { first: p.first, rows, columns: elements / rows })
        };
        self.parameters.iter().filter_map(of).collect()
    }
    /// Operations of the products of a matrix: of symmetric ones the half.
    pub(super) fn flops_of(&self, m: &Matrix) -> u64 {
        let (side, n) = (m.side() as u64, m.elements() as u64);
        self.steps as u64 * (3 * side * n + side * side * side)
    }
    /// First element and length of the parameters that are no matrices.
    pub(super) fn others(&self) -> Vec<(usize, usize)> {
        let flat = self.parameters.iter().filter(|p| p.shape.len() < 2 && p.shape.elements() > 0);
        flat.map(|p| (p.first, p.shape.elements())).collect()
    }
    /// The signature of the step.
    ///
    /// # Errors
    /// If the pass is another one.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        let second = if self.others().is_empty() { 0 } else { self.elements };
        let state = [("first", "[N]", self.elements), ("second", "[N]", second)];
        stepper::signature(NAME, pass, self.elements, &state)
    }
    /// The bound on the error of one output.
    pub fn tolerance_of(&self, output: &str) -> Option<Tolerance> {
        let (value, reason) = match output {
            "parameter" => (
                1e-6,
                "a step is a hundredth of the parameter, and five steps of the quintic let roundings of f32 grow by 500 at most",
            ),
            _ => (1e-6, "8 x the roundings of f32 in moments of two terms"),
        };
        if output != "parameter" || self.precision == Precision::Exact {
            return Some(Tolerance { metric: Metric::Relative, value, reason });
        }
        // A step of a matrix is as long as the root of its side; sampled parameters are normal numbers, and the rate a hundredth.
        let long: f64 = self.matrices().iter().map(|m| m.side() as f64 * m.speed().powi(2)).sum();
        let share = 1e-2 * (long / self.elements.max(1) as f64).sqrt();
        let reason =
            "8 roundings to f16 of the matrices' steps: two of operands a product, which later iterations let grow";
        Some(Tolerance { metric: Metric::Relative, value: value + share * 8.0 * HALF, reason })
    }
}
