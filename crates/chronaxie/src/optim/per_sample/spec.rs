//! What a call of `ghost_norms` is: sizes, names and shapes, and how exact the results must be.

use crate::op::{LinearMap, Metric, Pass, Role, Signature, TensorSpec, Tolerance};
use crate::{Dtype, Error, Result};

pub(super) const NAME: &str = "ghost_norms";

/// How the norms of a map are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// By products of all pairs of steps, T^2 (A + H) / 2 of them.
    Pairs,
    /// By the gradient of one sample after the other, T A H.
    Gradient,
}

/// The norms of samples' gradients of some linear maps together, over a batch of B rows of T steps, of which `lengths` says how many
/// are no padding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GhostNorms {
    /// B.
    pub batch: usize,
    /// The maps, all of B rows of the same T steps.
    pub maps: Vec<LinearMap>,
}

impl GhostNorms {
    /// Those of `maps`.
    pub fn new(batch: usize, maps: Vec<LinearMap>) -> Self {
        Self { batch, maps }
    }
    /// T.
    pub fn steps(&self) -> usize {
        self.maps.first().map_or(0, |m| m.steps)
    }
    /// A of a map: its inputs, and the bias's one.
    pub fn inputs(map: &LinearMap) -> usize {
        map.from.count + usize::from(map.bias.is_some())
    }
    /// The way of a map that takes fewer products.
    pub fn way(map: &LinearMap) -> Way {
        let [t, a, h] = [map.steps, Self::inputs(map), map.to.count].map(|n| n as u128);
        if t * (a + h) <= 2 * a * h { Way::Pairs } else { Way::Gradient }
    }
    /// Checks the sizes.
    ///
    /// # Errors
    /// Maps of other batches or steps, channels that do not fall into their groups, and sizes beyond 64 bits.
    pub fn build(self) -> Result<Self> {
        for (nth, m) in self.maps.iter().enumerate() {
            if (m.batch, m.steps) != (self.batch, self.steps()) {
                return Err(Error::shape(format!(
                    "{NAME}: map {nth} has B = {}, T = {}, not B = {}, T = {}",
                    m.batch,
                    m.steps,
                    self.batch,
                    self.steps()
                )));
            }
            for (name, c) in [("D", m.from), ("H", m.to)] {
                if !c.is_whole() {
                    return Err(Error::shape(format!(
                        "{NAME}: map {nth}: {name} = {} channels do not fall into {} groups of the same size",
                        c.count, c.groups
                    )));
                }
            }
            let (a, h, most) = (m.from.count.saturating_add(1), m.to.count, isize::MAX as usize / 64);
            let fits = |sizes: &[usize]| {
                sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1))).is_some_and(|n| n <= most)
            };
            if ![&[self.batch, m.steps, a][..], &[self.batch, m.steps, h], &[a, h]].into_iter().all(fits) {
                return Err(Error::shape(format!(
                    "{NAME}: map {nth}: B = {}, T = {}, D = {}, H = {h} have more elements than can be addressed",
                    self.batch, m.steps, m.from.count
                )));
            }
        }
        Ok(self)
    }
    /// The signature of the pass.
    ///
    /// # Errors
    /// If it is not the step.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        if pass != Pass::Step {
            return Err(Error::config(format!("{NAME}: there is no {} pass", pass.name())));
        }
        let mut inputs = Vec::new();
        for (nth, m) in self.maps.iter().enumerate() {
            let of = |name: String, axes, c: crate::op::Channels| {
                let shape = [self.batch, c.groups, m.steps, c.width()];
                TensorSpec::new(name, axes, shape, Dtype::F32, Role::Input)
            };
            inputs.push(of(format!("x{nth}"), "[B, G, T, D / G]", m.from));
            inputs.push(of(format!("grad{nth}"), "[B, K, T, H / K]", m.to));
        }
        inputs.push(TensorSpec::new("lengths", "[B]", [self.batch], Dtype::I32, Role::Input));
        let outputs = vec![TensorSpec::new("squares", "[B]", [self.batch], Dtype::F32, Role::Output)];
        Ok(Signature { inputs, outputs })
    }
    /// The bound on the error of the output.
    pub fn tolerance_of(&self) -> Tolerance {
        let reason = "8 x the noise of f32 in sums of products over all steps, squared";
        Tolerance { metric: Metric::Relative, value: 8e-7, reason }
    }
}
