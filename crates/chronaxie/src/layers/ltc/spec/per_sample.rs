//! What is asked for of single samples, and what its outputs are called.

use super::Ltc;
use crate::op::{Role, Signature, TensorSpec};
use crate::{Error, Result, Shape};

/// What the names of outputs of single samples begin with: sums of squares of a sample's gradient, and of an element's.
pub(in crate::layers::ltc) const SQUARES: &str = "squares_";
/// As above.
pub(in crate::layers::ltc) const MOMENTS: &str = "moments_";
/// And of those that are the gradients of each.
pub(in crate::layers::ltc) const EACH: &str = "each_";

/// What the backward pass leaves of the gradients of single samples (batch rows), of each parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PerSample {
    /// Nothing.
    #[default]
    No,
    /// Beside the batch's gradients `squares_NAME` `[B]`, the sum of the squares of a sample's gradient, and `moments_NAME`, of the
    /// parameter's shape, the sum over samples of the squares of each element. Memory for it does not grow with B.
    Squares,
    /// In place of the batch's gradients `each_NAME` `[B, ...]`, those of each sample.
    Gradients,
}

impl std::str::FromStr for PerSample {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "no" => Ok(Self::No),
            "squares" => Ok(Self::Squares),
            "gradients" => Ok(Self::Gradients),
            _ => Err(Error::config(format!("per_sample `{s}` is not one of no, squares, gradients"))),
        }
    }
}

impl Ltc {
    /// Whether anything is asked for of single samples.
    pub(in crate::layers::ltc) fn asks_per_sample(&self) -> bool {
        self.per_sample != PerSample::No && self.wants.parameters
    }
    /// What is asked for of a parameter beside its gradient, or in place of it.
    pub(super) fn extra(&self, t: &TensorSpec) -> Vec<TensorSpec> {
        let named =
            |prefix: &str| TensorSpec { name: format!("{prefix}{}", t.name).into(), role: Role::Extra, ..t.clone() };
        match self.per_sample {
            PerSample::No => Vec::new(),
            PerSample::Squares => {
                vec![TensorSpec { axes: "[B]", shape: [self.batch].into(), ..named(SQUARES) }, named(MOMENTS)]
            }
            PerSample::Gradients => {
                let shape = [&[self.batch], &t.shape[..]].concat();
                vec![TensorSpec { axes: "[B, ...]", shape: Shape::new(&shape), ..named(EACH) }]
            }
        }
    }
}

/// Of each output of a backward pass that is a parameter's gradient, where its squares and moments are, if it has them.
pub(in crate::layers::ltc) fn extras(backward: &Signature) -> Vec<Option<[usize; 2]>> {
    let of = |t: &TensorSpec| {
        let name = t.name.strip_prefix("grad_").filter(|_| t.role == Role::Gradient)?;
        let at = |prefix: &str| backward.output(&format!("{prefix}{name}"));
        Some([at(SQUARES)?, at(MOMENTS)?])
    };
    backward.outputs.iter().map(of).collect()
}
