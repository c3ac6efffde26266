//! What a head's call is: sizes, options, names and shapes of every tensor, and how exact the results must be.

use crate::op::{Metric, Pass, Role, Signature, TensorSpec, Tolerance};
use crate::{Dtype, Error, Result};

/// What is minimised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Loss {
    /// Cross-entropy of a softmax over C classes against `labels [B]`.
    #[default]
    CrossEntropy,
    /// Mean squared error of C numbers against `values [B, C]`.
    Mse,
}

impl Loss {
    /// `cross_entropy` or `mse`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CrossEntropy => "cross_entropy",
            Self::Mse => "mse",
        }
    }
}

impl std::str::FromStr for Loss {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "cross_entropy" => Ok(Self::CrossEntropy),
            "mse" => Ok(Self::Mse),
            _ => Err(Error::config(format!("loss `{s}` is not one of cross_entropy, mse"))),
        }
    }
}

/// Which steps of a sequence are read out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pooling {
    /// The last valid step.
    #[default]
    Last,
    /// The mean of the valid steps' states.
    Mean,
    /// Each valid step by itself; losses and predictions are averaged.
    Every,
}

impl Pooling {
    /// `last`, `mean` or `every`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Mean => "mean",
            Self::Every => "every",
        }
    }
}

impl std::str::FromStr for Pooling {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "last" => Ok(Self::Last),
            "mean" => Ok(Self::Mean),
            "every" => Ok(Self::Every),
            _ => Err(Error::config(format!("pooling `{s}` is not one of last, mean, every"))),
        }
    }
}

/// Rows of one chunk of the sums over (b, s) in the gradients of weight and bias; partial sums are added in order.
pub(super) const CHUNK: usize = 256;

/// A linear read-out with its loss. Axes: B batch, T time, M features, C classes or predicted numbers, S read-outs a row
/// (1, or T with [`Pooling::Every`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LinearHead {
    /// B.
    pub batch: usize,
    /// T.
    pub steps: usize,
    /// M.
    pub features: usize,
    /// C.
    pub classes: usize,
    /// What is minimised.
    pub loss: Loss,
    /// Which steps are read out.
    pub pooling: Pooling,
    /// Whether the backward pass will be run at all.
    pub backward: bool,
}

impl LinearHead {
    /// A head with cross-entropy, the last step's state and a backward pass.
    pub fn new(batch: usize, steps: usize, features: usize, classes: usize) -> Self {
        Self { batch, steps, features, classes, loss: Loss::CrossEntropy, pooling: Pooling::Last, backward: true }
    }
    /// With this loss.
    #[must_use]
    pub fn loss(mut self, loss: Loss) -> Self {
        self.loss = loss;
        self
    }
    /// With this pooling.
    #[must_use]
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }
    /// With or without a backward pass.
    #[must_use]
    pub fn backward(mut self, backward: bool) -> Self {
        self.backward = backward;
        self
    }
    /// Checks the sizes.
    ///
    /// # Errors
    /// If there is no class, or a size exceeds what 32-bit grids and 64-bit counts reach.
    pub fn build(self) -> Result<Self> {
        let Self { batch, steps, features, classes, .. } = self;
        if classes == 0 {
            return Err(Error::shape("linear_head: C = 0: at least one class or predicted number is needed"));
        }
        let limit = i32::MAX as usize;
        for (axis, n) in [("B", batch), ("T", steps), ("M", features), ("C", classes)] {
            if n > limit {
                return Err(Error::shape(format!("linear_head: {axis} = {n} exceeds {limit}")));
            }
        }
        let elements = |sizes: &[usize]| sizes.iter().try_fold(4usize, |n, &d| n.checked_mul(d));
        let fits = elements(&[batch, steps, features]).is_some() && elements(&[batch, steps, classes]).is_some();
        if !fits || batch * self.readouts() > limit {
            return Err(Error::shape(format!(
                "linear_head: B = {batch}, T = {steps}, M = {features}, C = {classes} exceed {limit} read-outs or \
                 64-bit sizes"
            )));
        }
        Ok(self)
    }
    /// S, the read-outs a row.
    pub fn readouts(&self) -> usize {
        if self.pooling == Pooling::Every { self.steps } else { 1 }
    }
    /// Partial sums of the gradients of weight and bias.
    pub(super) fn chunks(&self) -> usize {
        (self.batch * self.readouts()).div_ceil(CHUNK)
    }
    /// What goes in: states, lengths, parameters, targets.
    pub fn forward_inputs(&self) -> Vec<TensorSpec> {
        let (b, t, m, c) = (self.batch, self.steps, self.features, self.classes);
        vec![
            TensorSpec::new("h", "[B, T, M]", [b, t, m], Dtype::F32, Role::Input),
            TensorSpec::new("lengths", "[B]", [b], Dtype::I32, Role::Input),
            TensorSpec::new("weight", "[C, M]", [c, m], Dtype::F32, Role::Parameter),
            TensorSpec::new("bias", "[C]", [c], Dtype::F32, Role::Parameter),
            match self.loss {
                Loss::CrossEntropy => TensorSpec::new("labels", "[B]", [b], Dtype::I32, Role::Input),
                Loss::Mse => TensorSpec::new("values", "[B, C]", [b, c], Dtype::F32, Role::Input),
            },
        ]
    }
    /// What the forward pass writes: `loss`, `logits` (predictions under squares), and for the backward pass `delta`,
    /// the gradient of the loss with respect to each read-out, and the pooled states.
    pub fn forward_outputs(&self) -> Vec<TensorSpec> {
        let (b, m, c, s) = (self.batch, self.features, self.classes, self.readouts());
        let f = |name: &'static str, axes, shape: &[usize], role| TensorSpec::new(name, axes, shape, Dtype::F32, role);
        let mut v = vec![f("loss", "[1]", &[1], Role::Output), f("logits", "[B, C]", &[b, c], Role::Output)];
        if self.backward {
            v.push(f("delta", "[B, S, C]", &[b, s, c], Role::Saved));
            if self.pooling != Pooling::Every {
                v.push(f("pooled", "[B, M]", &[b, m], Role::Saved));
            }
        }
        v
    }
    /// The signature of a pass.
    ///
    /// # Errors
    /// If the problem was built without `backward`, or the pass is neither forward nor backward.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        let (inputs, outputs) = (self.forward_inputs(), self.forward_outputs());
        match pass {
            Pass::Forward => Ok(Signature { inputs, outputs }),
            Pass::Backward if self.backward => {
                let mut all = inputs.clone();
                all.extend(outputs.iter().filter(|t| t.role == Role::Saved).cloned());
                all.extend(outputs.iter().filter(|t| t.role == Role::Output).map(TensorSpec::gradient));
                let wanted = |t: &&TensorSpec| matches!(&*t.name, "h" | "weight" | "bias");
                let gradients = inputs.iter().filter(wanted).map(TensorSpec::gradient).collect();
                Ok(Signature { inputs: all, outputs: gradients })
            }
            Pass::Backward => Err(Error::config("linear_head: the problem was built without the backward pass")),
            _ => Err(Error::config(format!("linear_head: there is no {} pass", pass.name()))),
        }
    }
    /// The bound on the error of one output.
    pub fn tolerance_of(&self, output: &str) -> Option<Tolerance> {
        match output {
            "delta" | "pooled" => None,
            _ => Some(Tolerance {
                metric: Metric::Relative,
                value: 2e-6,
                reason: "8 x the noise of the same sums and exponentials in f32, up to M = 4096",
            }),
        }
    }
}

/// Refuses labels outside 0..classes: on a GPU such a row's loss would be NaN.
///
/// # Errors
/// The first such label with its row.
pub fn check_labels(labels: &[i32], classes: usize) -> Result<()> {
    match labels.iter().position(|&l| usize::try_from(l).map_or(true, |l| l >= classes)) {
        None => Ok(()),
        Some(row) => Err(Error::value(format!(
            "linear_head: labels[{row}] = {} is not one of the {classes} classes 0 ..= {}",
            labels[row],
            classes.saturating_sub(1)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_follow_the_options() {
        let p = LinearHead::new(2, 3, 4, 5).build().unwrap();
        let names = |v: &[TensorSpec]| v.iter().map(|t| t.name.to_string()).collect::<Vec<_>>();
        let b = p.signature_of(Pass::Backward).unwrap();
        assert_eq!(
            names(&b.inputs),
            ["h", "lengths", "weight", "bias", "labels", "delta", "pooled", "grad_loss", "grad_logits"]
        );
        assert_eq!(names(&b.outputs), ["grad_h", "grad_weight", "grad_bias"]);
        let e = p.pooling(Pooling::Every).loss(Loss::Mse).signature_of(Pass::Forward).unwrap();
        assert_eq!(names(&e.outputs), ["loss", "logits", "delta"]);
        assert_eq!(&e.outputs[2].shape[..], [2, 3, 5]);
        assert_eq!(names(&e.inputs)[4], "values");
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_values() {
        let message = |p: LinearHead| p.build().unwrap_err().to_string();
        assert!(message(LinearHead::new(1, 1, 1, 0)).contains("C = 0"));
        assert!(message(LinearHead::new(1 << 40, 1, 1, 1)).contains("B = 1099511627776"));
        assert!(message(LinearHead::new(1 << 20, 1 << 20, 1, 1).pooling(Pooling::Every)).contains("read-outs"));
        let e = check_labels(&[0, 2, 3], 3).unwrap_err().to_string();
        assert_eq!(e, "linear_head: labels[2] = 3 is not one of the 3 classes 0 ..= 2");
        assert!(check_labels(&[-1], 3).is_err() && check_labels(&[], 3).is_ok());
        let p = LinearHead::new(1, 1, 1, 1).backward(false);
        assert!(p.signature_of(Pass::Backward).unwrap_err().to_string().contains("without the backward pass"));
    }
}
