//! What a step of SOAP is: its options, names and shapes of every tensor, and how exact the results must be.

use crate::Result;
use crate::op::{Metric, Pass, Signature, Tolerance};
use crate::optim::blocks::{Cut, Grid, Parameter};
use crate::optim::stepper::{self, Common};
use std::sync::Arc;

pub(super) const NAME: &str = "soap";

/// Second moments that are smaller than the largest of a block by this, squared, are rounding, where gradients have no such
/// direction.
pub const NOISE: f64 = 1.0 / (1 << 20) as f64;

/// One step of SOAP over a flat vector of N elements.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Soap {
    /// N.
    pub elements: usize,
    /// What lies in it, in order.
    pub parameters: Vec<Parameter>,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Decay of the factors; that of the second moment where there is none.
    pub shampoo_beta: Option<f64>,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Clipping and weight decay.
    pub common: Common,
    /// Blocks are at most so long.
    pub max_preconditioner_dim: usize,
    /// Whether neighbouring axes that fit it together are one.
    pub merge_dims: bool,
    /// Steps between two bases of a block.
    pub precondition_frequency: usize,
    /// Whether parameters of one axis have a basis; otherwise they take Adam's step.
    pub precondition_vectors: bool,
    /// Whether the moments are divided by what they lack at first.
    pub correct_bias: bool,
    /// Whether this is the first step: the bases are eigenvectors of the factors, and the step is Adam's own.
    pub opens: bool,
    /// Of samples alone: the rank of gradients and factors; none: whatever it comes to.
    pub rank: Option<usize>,
    /// The blocks; [`build`](Self::build) makes them.
    pub grid: Arc<Grid>,
}

impl Soap {
    /// A step over `parameters` in a vector of `elements`, with the defaults of `chronaxie.optim.SOAP`: betas 0.95, blocks up to
    /// 1024, axes not merged, bases every 10 steps, vectors without one.
    pub fn new(elements: usize, parameters: Vec<Parameter>) -> Self {
        Self {
            elements,
            parameters,
            beta1: 0.95,
            beta2: 0.95,
            shampoo_beta: None,
            epsilon: 1e-8,
            common: Common::default(),
            max_preconditioner_dim: 1024,
            merge_dims: false,
            precondition_frequency: 10,
            precondition_vectors: false,
            correct_bias: true,
            opens: false,
            rank: None,
            grid: Arc::default(),
        }
    }
    /// Checks the options and cuts the parameters.
    ///
    /// # Errors
    /// An option out of range, and parameters that overlap, each with its values.
    pub fn build(mut self) -> Result<Self> {
        let keep = self.keep();
        for (name, x) in [("beta1", self.beta1), ("beta2", self.beta2), ("shampoo_beta", keep)] {
            stepper::below_1(NAME, name, x, false)?;
        }
        stepper::at_least_0(NAME, "epsilon", self.epsilon)?;
        stepper::counted(NAME, "max_preconditioner_dim", self.max_preconditioner_dim)?;
        stepper::counted(NAME, "precondition_frequency", self.precondition_frequency)?;
        self.common.check(NAME)?;
        stepper::fit(NAME, &self.parameters, self.elements)?;
        let cut = Cut { most: self.max_preconditioner_dim, merge: self.merge_dims, vectors: self.precondition_vectors };
        self.grid = Arc::new(Grid::new(&self.parameters, cut)?);
        Ok(self)
    }
    /// Decay of the factors.
    pub(super) fn keep(&self) -> f64 {
        self.shampoo_beta.unwrap_or(self.beta2)
    }
    /// What the first moment and the second one of a block with a basis, or without, are divided by. Second moments in a basis
    /// begin with the second step.
    pub(super) fn corrections(&self, step: usize, based: bool) -> (f64, f64) {
        let of = |beta: f64, t: usize| 1.0 - beta.powi(t.min(i32::MAX as usize) as i32);
        match (based, self.correct_bias) {
            (false, _) => (of(self.beta1, step), of(self.beta2, step)),
            (true, true) => (of(self.beta1, step), of(self.beta2, step.saturating_sub(1).max(1))),
            (true, false) => (1.0, 1.0),
        }
    }
    /// What the first gradient is multiplied by in its own second moment.
    pub(super) fn share(&self) -> f64 {
        if self.correct_bias { 1.0 } else { (1.0 - self.beta2).sqrt() }
    }
    /// The signature of the step.
    ///
    /// # Errors
    /// If the pass is another one.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        let (factors, bases) = (self.grid.factor_elements, self.grid.root_elements);
        let n = self.elements;
        let state = [("first", "[N]", n), ("second", "[N]", n), ("factors", "[F]", factors), ("bases", "[R]", bases)];
        stepper::signature(NAME, pass, n, &state)
    }
    /// The bound on the error of one output; none for the eigenvectors of the first step, whose signs are anybody's, and for bases where
    /// factors lack rank, whose columns beyond it are.
    pub fn tolerance_of(&self, output: &str) -> Option<Tolerance> {
        let (value, reason) = match output {
            "bases" if self.opens || self.rank.is_some() => return None,
            "bases" => (2e-5, "8 x a factor's condition number, about 30, times the roundings of f32 in its products"),
            "second" => (2e-5, "squares of sums over both axes in f32"),
            "parameter" => (2e-6, "a step is a hundredth of the parameter, a quotient of sums over both axes in f32"),
            _ => (2e-6, "8 x the roundings of f32 in moments of two terms, and in a factor's sums over an axis"),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }
}
