//! What a step of Shampoo is: its options, names and shapes of every tensor, and how exact the results must be.

use crate::op::{Metric, Pass, Precision, Signature, Tolerance};
use crate::optim::blocks::{Cut, Grid, Parameter};
use crate::optim::inverse_root::InverseRoot;
use crate::optim::inverse_root::spec::MOST;
use crate::optim::stepper::{self, Common};
use crate::{Error, Result};
use std::sync::Arc;

pub(super) const NAME: &str = "shampoo";

/// Whose step's norm a block's step gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Grafting {
    /// Adam's.
    #[default]
    Adam,
    /// RMSprop's: Adam's without correcting the second moment.
    Rmsprop,
    /// AdaGrad's: the second moment is a sum.
    Adagrad,
    /// The first moment's.
    Sgd,
    /// Its own.
    None,
}

impl Grafting {
    /// Every name.
    pub const NAMES: [&'static str; 5] = ["adam", "rmsprop", "adagrad", "sgd", "none"];
    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
    /// Whether there is a second moment.
    pub const fn squares(self) -> bool {
        matches!(self, Self::Adam | Self::Rmsprop | Self::Adagrad)
    }
}

impl std::str::FromStr for Grafting {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let all = [Self::Adam, Self::Rmsprop, Self::Adagrad, Self::Sgd, Self::None];
        all.into_iter()
            .find(|g| g.name() == s)
            .ok_or_else(|| Error::config(format!("grafting `{s}` is not one of {}", Self::NAMES.join(", "))))
    }
}

/// One step of Shampoo over a flat vector of N elements.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Shampoo {
    /// N.
    pub elements: usize,
    /// What lies in it, in order.
    pub parameters: Vec<Parameter>,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the factors and of the grafting's second moment; 1 sums them.
    pub beta2: f64,
    /// Damping at least.
    pub absolute: f64,
    /// Damping, relative to a factor's Frobenius norm.
    pub relative: f64,
    /// Clipping and weight decay.
    pub common: Common,
    /// Blocks are at most so long; neighbouring axes that fit it are merged.
    pub max_preconditioner_dim: usize,
    /// Steps between two roots of a block.
    pub precondition_frequency: usize,
    /// Earlier steps are the grafting's own.
    pub start_preconditioning_step: usize,
    /// Whose step's norm a block's step gets.
    pub grafting: Grafting,
    /// Added to the root of the grafting's second moment.
    pub grafting_eps: f64,
    /// Whether parameters of one axis have a matrix; otherwise they take the grafting's step.
    pub precondition_vectors: bool,
    /// `(q, p)` of the power -q/p for every order, instead of -1/2o.
    pub exponent: Option<(u32, u32)>,
    /// `Fast`: factors and products with the roots are of numbers rounded to f16, summed in f32, where there are tensor cores for
    /// them (compute capability 9.0, blocks of two axes); elsewhere as `Exact`. Roots are always made exactly.
    pub precision: Precision,
    /// Whether the roots of all blocks are made, and not only of those whose turn it is.
    pub every_block: bool,
    /// The blocks; [`build`](Self::build) makes them.
    pub grid: Arc<Grid>,
}

impl Shampoo {
    /// A step over `parameters` in a vector of `elements`, with the defaults of `chronaxie.optim.Shampoo`: betas 0.9 and 0.999,
    /// damping 1e-6 of the norm and at least 1e-12, blocks up to 1024, roots every 10 steps from the first on, Adam's grafting.
    pub fn new(elements: usize, parameters: Vec<Parameter>) -> Self {
        Self {
            elements,
            parameters,
            beta1: 0.9,
            beta2: 0.999,
            absolute: 1e-12,
            relative: 1e-6,
            common: Common::default(),
            max_preconditioner_dim: 1024,
            precondition_frequency: 10,
            start_preconditioning_step: 1,
            grafting: Grafting::Adam,
            grafting_eps: 1e-8,
            precondition_vectors: true,
            exponent: None,
            precision: Precision::Exact,
            every_block: false,
            grid: Arc::default(),
        }
    }
    /// Checks the options and cuts the parameters.
    ///
    /// # Errors
    /// An option out of range, an exponent that is not a fraction of numbers up to 64, and parameters that overlap, each with its
    /// values.
    pub fn build(mut self) -> Result<Self> {
        stepper::below_1(NAME, "beta1", self.beta1, false)?;
        stepper::below_1(NAME, "beta2", self.beta2, true)?;
        for (name, x) in [("absolute", self.absolute), ("relative", self.relative), ("grafting_eps", self.grafting_eps)]
        {
            stepper::at_least_0(NAME, name, x)?;
        }
        for (name, n) in [
            ("max_preconditioner_dim", self.max_preconditioner_dim),
            ("precondition_frequency", self.precondition_frequency),
            ("start_preconditioning_step", self.start_preconditioning_step),
        ] {
            stepper::counted(NAME, name, n)?;
        }
        if let Some((q, p)) = self.exponent.filter(|&(q, p)| !(1..=MOST).contains(&q) || !(1..=MOST).contains(&p)) {
            return Err(Error::value(format!(
                "{NAME}: exponent = {q}/{p} is not a fraction of numbers from 1 to {MOST}"
            )));
        }
        self.common.check(NAME)?;
        stepper::fit(NAME, &self.parameters, self.elements)?;
        let cut = Cut { most: self.max_preconditioner_dim, merge: true, vectors: self.precondition_vectors };
        self.grid = Arc::new(Grid::new(&self.parameters, cut)?);
        Ok(self)
    }
    /// The roots of `count` factors of `size` of blocks of `order` axes.
    pub(super) fn roots(&self, count: usize, order: usize, size: usize) -> InverseRoot {
        let (q, p) = self.exponent.unwrap_or((1, 2 * order as u32));
        InverseRoot::new(count, size, p).exponent(q, p).damping(self.absolute, self.relative)
    }
    /// 1 - beta1^t, and what factors and, with Adam's grafting, the second moment are divided by.
    pub(super) fn corrections(&self, step: usize) -> (f64, f64) {
        let of = |beta: f64| if beta == 1.0 { 1.0 } else { 1.0 - beta.powi(step.min(i32::MAX as usize) as i32) };
        (of(self.beta1), of(self.beta2))
    }
    /// Weights of the old and the new part of a factor.
    pub(super) fn weights(&self) -> (f64, f64) {
        (self.beta2, if self.beta2 == 1.0 { 1.0 } else { 1.0 - self.beta2 })
    }
    /// Weights of the old and the new part of the second moment.
    pub(super) fn second_weights(&self) -> (f64, f64) {
        if self.grafting == Grafting::Adagrad { (1.0, 1.0) } else { self.weights() }
    }
    /// What the second moment is divided by.
    pub(super) fn second_correction(&self, step: usize) -> f64 {
        if self.grafting == Grafting::Adam { self.corrections(step).1 } else { 1.0 }
    }
    /// The signature of the step.
    ///
    /// # Errors
    /// If the pass is another one.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        let second = if self.grafting.squares() { self.elements } else { 0 };
        let (factors, roots) = (self.grid.factor_elements, self.grid.root_elements);
        let state = [
            ("first", "[N]", self.elements),
            ("second", "[N]", second),
            ("factors", "[F]", factors),
            ("roots", "[R]", roots),
        ];
        stepper::signature(NAME, pass, self.elements, &state)
    }
    /// The bound on the error of one output.
    pub fn tolerance_of(&self, output: &str) -> Option<Tolerance> {
        if self.precision == Precision::Fast {
            return Some(self.rounded(output));
        }
        // Vectors have the power -1/2.
        let exponent = self.exponent.map_or(0.5, |(q, p)| f64::from(q) / f64::from(p));
        let (value, reason) = match output {
            "roots" => (
                1.5e-5 * (4.0 * exponent).max(1.0),
                "that of an inverse root at a condition number of 30, as sampled factors have it, in proportion to the exponent",
            ),
            "parameter" => {
                (1e-6, "a step is a hundredth of the parameter, and a product of roots that are known to 1e-5")
            }
            _ => (2e-6, "8 x the roundings of f32 in moments of two terms, and in a factor's sums over an axis"),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }
    /// The same with precision `fast`: beside the bound of `exact` what rounding operands to f16 adds.
    fn rounded(&self, output: &str) -> Tolerance {
        let (adds, reason) = match output {
            "factors" => (2.0 * HALF, "2 roundings to f16 of every term; at random they are a third of it"),
            "roots" => (
                self.rounded_root(),
                "the exponent x the root of a condition number of 30 x the error of a factor, 0.6 roundings to f16",
            ),
            "parameter" => {
                // Sampled second moments are squares of normal numbers: a step of Adam is as long as the smallest ones make it.
                let adam = 0.002 * (self.elements as f64).sqrt();
                let share = if self.grafting == Grafting::Adam { adam.min(1.0) } else { 1.0 };
                (share * self.rounded_step(), "the error of a step, which is at most as long as the parameter")
            }
            _ => (0.0, "as with exact"),
        };
        let exact = Self { precision: Precision::Exact, ..self.clone() };
        let value = adds + exact.tolerance_of(output).map_or(0.0, |t| t.value);
        Tolerance { metric: Metric::Relative, value, reason }
    }
    /// By how much, relative to its norm, a root is off whose factor is made of rounded numbers. A direction of which there is little in
    /// the gradients has as little of their roundings, so that the root of the condition number counts.
    fn rounded_root(&self) -> f64 {
        // Blocks that are matrices have the power -1/4; others are not rounded.
        let exponent = self.exponent.map_or(0.25, |(q, p)| f64::from(q) / f64::from(p));
        exponent * CONDITION.sqrt() * OF_GRAM * HALF
    }
    /// By how much a step is off, relative to its norm: R_0, m, R_0 m, R_1 and itself are rounded, and two roots are.
    pub(super) fn rounded_step(&self) -> f64 {
        5.0 * HALF + 2.0 * self.rounded_root()
    }
}

/// What rounding to f16 changes a number by at most, relative to it.
const HALF: f64 = 1.0 / 2048.0;
/// A Gram matrix of numbers rounded at random is off by that many of them, relative to its norm: sqrt(2), for two operands, times what
/// is left of the largest rounding on average, sqrt(1/3) for its place and 0.74 for that of the number between powers of two.
const OF_GRAM: f64 = 0.6;
/// Of a sampled factor with its damping.
const CONDITION: f64 = 30.0;
