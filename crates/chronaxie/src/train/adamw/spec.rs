//! What an optimizer step is: its constants, names and shapes of every tensor, and how exact the results must be.

use crate::op::{Metric, Pass, Role, Signature, TensorSpec, Tolerance};
use crate::{Dtype, Error, Result};

/// Partial sums of the squared norm: a fixed number of runs, so that every block can fold them all by itself.
const MOST_PARTIALS: usize = 512;
/// Elements of the shortest run.
const SHORTEST_RUN: usize = 2048;

/// One AdamW step over a flat vector of N elements.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AdamW {
    /// N.
    pub elements: usize,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay, times the learning rate and the element of `decay`.
    pub weight_decay: f64,
    /// The largest norm of the whole gradient; 0 for no clipping.
    pub clip: f64,
}

impl AdamW {
    /// The defaults of the paper: 0.9, 0.999, 1e-8, weight decay 0.01, no clipping.
    pub fn new(elements: usize) -> Self {
        Self { elements, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01, clip: 0.0 }
    }
    /// With these decays of the moments.
    #[must_use]
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Self {
        (self.beta1, self.beta2) = (beta1, beta2);
        self
    }
    /// With this epsilon.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }
    /// With this weight decay.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = weight_decay;
        self
    }
    /// With the gradient's norm clipped to this, or not at all for 0.
    #[must_use]
    pub fn clip(mut self, clip: f64) -> Self {
        self.clip = clip;
        self
    }
    /// Checks the constants.
    ///
    /// # Errors
    /// A beta outside 0 .. 1, or a negative or infinite epsilon, weight decay or clip, with its value.
    pub fn build(self) -> Result<Self> {
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(Error::value(format!("adamw: {name} = {beta} is not in 0 .. 1")));
            }
        }
        for (name, x) in [("epsilon", self.epsilon), ("weight_decay", self.weight_decay), ("clip", self.clip)] {
            if !(x >= 0.0 && x.is_finite()) {
                return Err(Error::value(format!("adamw: {name} = {x} is not a finite number of at least 0")));
            }
        }
        if self.elements > i64::MAX as usize / 8 {
            return Err(Error::shape(format!("adamw: N = {} exceeds 64-bit sizes", self.elements)));
        }
        Ok(self)
    }
    /// Elements of a run of the squared norm: a function of N alone.
    pub(super) fn run(&self) -> usize {
        self.elements.div_ceil(MOST_PARTIALS).next_multiple_of(SHORTEST_RUN).max(SHORTEST_RUN)
    }
    /// Runs of the squared norm, at most [`MOST_PARTIALS`].
    pub(super) fn runs(&self) -> usize {
        self.elements.div_ceil(self.run())
    }
    /// The signature of the step.
    ///
    /// # Errors
    /// If the pass is another one.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        if pass != Pass::Step {
            return Err(Error::config(format!("adamw: there is no {} pass", pass.name())));
        }
        let n = |name: &'static str, role| TensorSpec::new(name, "[N]", [self.elements], Dtype::F32, role);
        let one = |name: &'static str, dtype, role| TensorSpec::new(name, "[1]", [1], dtype, role);
        Ok(Signature {
            inputs: vec![n("grad", Role::Gradient), n("decay", Role::Input), one("rate", Dtype::F32, Role::Input)],
            outputs: vec![
                n("parameter", Role::State),
                n("first", Role::State),
                n("second", Role::State),
                one("step", Dtype::I32, Role::State),
                one("grad_norm", Dtype::F32, Role::Output),
            ],
        })
    }
    /// The bound on the error of one output.
    pub fn tolerance_of(&self, _: &str) -> Option<Tolerance> {
        Some(Tolerance {
            metric: Metric::Relative,
            value: 1e-6,
            reason: "8 x the roundings of f32 in sums of two and three terms; the step's own count is exact",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_the_vector() {
        for n in [0, 1, 2047, 2048, 2049, 1 << 20, (1 << 20) + 1, 123_456_789] {
            let p = AdamW::new(n);
            assert!(p.runs() <= MOST_PARTIALS && p.runs() * p.run() >= n, "{n}");
            assert!(n == 0 || (p.runs() - 1) * p.run() < n, "{n}");
        }
    }

    #[test]
    fn constants_out_of_range_are_named() {
        let message = |p: AdamW| p.build().unwrap_err().to_string();
        assert_eq!(message(AdamW::new(1).betas(1.0, 0.9)), "adamw: beta1 = 1 is not in 0 .. 1");
        assert!(message(AdamW::new(1).betas(0.9, f64::NAN)).contains("beta2 = NaN"));
        assert!(message(AdamW::new(1).clip(-1.0)).contains("clip = -1"));
        assert!(message(AdamW::new(1).weight_decay(f64::INFINITY)).contains("weight_decay = inf"));
        assert!(AdamW::new(1).signature_of(Pass::Forward).unwrap_err().to_string().contains("no forward pass"));
    }
}
