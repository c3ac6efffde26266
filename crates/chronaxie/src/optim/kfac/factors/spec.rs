//! What a call of `kfac_factors` is: sizes, options, names and shapes, and how exact the results must be.

use crate::op::{Channels, LinearMap, Metric, Pass, Role, Signature, TensorSpec, Tolerance};
use crate::optim::blocks::packed;
use crate::{Dtype, Error, Result};

pub(super) const NAME: &str = "kfac_factors";

/// What the steps of a row are that share a map's weight (Eschenhagen et al., arXiv:2311.00636).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Sharing {
    /// Samples of their own.
    #[default]
    Expand,
    /// One: inputs are averaged over them, gradients summed.
    Reduce,
}

impl Sharing {
    /// Every way's name.
    pub const NAMES: [&'static str; 2] = ["expand", "reduce"];
    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl std::str::FromStr for Sharing {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "expand" => Ok(Self::Expand),
            "reduce" => Ok(Self::Reduce),
            _ => Err(Error::config(format!("sharing `{s}` is not one of {}", Self::NAMES.join(", ")))),
        }
    }
}

/// What the trained loss is the mean of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Terms {
    /// Rows.
    #[default]
    Batch,
    /// All steps of all rows.
    Positions,
}

impl Terms {
    /// Every choice's name.
    pub const NAMES: [&'static str; 2] = ["batch", "positions"];
    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl std::str::FromStr for Terms {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "batch" => Ok(Self::Batch),
            "positions" => Ok(Self::Positions),
            _ => Err(Error::config(format!("terms `{s}` is not one of {}", Self::NAMES.join(", ")))),
        }
    }
}

/// The factors of one map over a batch of B rows of T steps, of which `lengths` says how many are no padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Factors {
    /// B.
    pub batch: usize,
    /// T.
    pub steps: usize,
    /// How the inputs lie.
    pub from: Channels,
    /// How the gradients lie.
    pub to: Channels,
    /// Whether an input of ones, the bias's, is the last of A.
    pub bias: bool,
    /// What a row's steps are.
    pub sharing: Sharing,
    /// What the loss is the mean of.
    pub terms: Terms,
    /// Whether second moments in given bases are made, too.
    pub squares: bool,
}

impl Factors {
    /// The factors of `map`, with [`Sharing::Expand`] and [`Terms::Batch`].
    pub fn new(map: &LinearMap) -> Self {
        Self {
            batch: map.batch,
            steps: map.steps,
            from: map.from,
            to: map.to,
            bias: map.bias.is_some(),
            sharing: Sharing::default(),
            terms: Terms::default(),
            squares: false,
        }
    }
    /// Steps share their weight in this way.
    #[must_use]
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }
    /// The loss is the mean of these.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }
    /// With second moments in given bases.
    #[must_use]
    pub fn squares(mut self, wanted: bool) -> Self {
        self.squares = wanted;
        self
    }
    /// Checks the sizes.
    ///
    /// # Errors
    /// Channels that do not fall into their groups, and sizes beyond 64 bits.
    pub fn build(self) -> Result<Self> {
        for (name, c) in [("D", self.from), ("H", self.to)] {
            if !c.is_whole() {
                return Err(Error::shape(format!(
                    "{NAME}: {name} = {} channels do not fall into {} groups of the same size",
                    c.count, c.groups
                )));
            }
        }
        let (a, h) = (self.from.count.saturating_add(1), self.to.count);
        let most = isize::MAX as usize / 64;
        let fits =
            |sizes: &[usize]| sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1))).is_some_and(|n| n <= most);
        if !fits(&[self.batch, self.steps, a])
            || !fits(&[self.batch, self.steps, h])
            || !fits(&[a, a])
            || !fits(&[h, h])
        {
            return Err(Error::shape(format!(
                "{NAME}: B = {}, T = {}, D = {}, H = {h} have more elements than can be addressed",
                self.batch, self.steps, self.from.count
            )));
        }
        Ok(self)
    }
    /// The order of A.
    pub fn inputs(&self) -> usize {
        self.from.count + usize::from(self.bias)
    }
    /// The signature of the pass.
    ///
    /// # Errors
    /// If it is not the forward one.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        if pass != Pass::Forward {
            return Err(Error::config(format!("{NAME}: there is no {} pass", pass.name())));
        }
        let (b, t, a, h) = (self.batch, self.steps, self.inputs(), self.to.count);
        let f = |name: &'static str, axes, shape: &[usize], role| TensorSpec::new(name, axes, shape, Dtype::F32, role);
        let lies = |c: Channels| [b, c.groups, t, c.width()];
        let mut inputs = vec![
            f("x", "[B, G, T, D / G]", &lies(self.from), Role::Input),
            f("grad", "[B, K, T, H / K]", &lies(self.to), Role::Input),
            TensorSpec::new("lengths", "[B]", [b], Dtype::I32, Role::Input),
        ];
        let mut outputs = vec![
            f("a", "[A (A + 1) / 2]", &[packed(a)], Role::Output),
            f("g", "[H (H + 1) / 2]", &[packed(h)], Role::Output),
        ];
        if self.squares {
            inputs.push(f("basis_a", "[A, A]", &[a, a], Role::Input));
            inputs.push(f("basis_g", "[H, H]", &[h, h], Role::Input));
            outputs.push(f("squares", "[H, A]", &[h, a], Role::Output));
        }
        Ok(Signature { inputs, outputs })
    }
    /// The bound on the error of one output.
    pub fn tolerance_of(&self, output: &str) -> Option<Tolerance> {
        let (value, reason) = match output {
            "squares" => {
                (1.6e-6, "8 x the noise of f32 in squares of turned vectors, and in sums of them over all steps")
            }
            _ => (8e-7, "8 x the noise of f32 in sums of products over all steps"),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }
}
