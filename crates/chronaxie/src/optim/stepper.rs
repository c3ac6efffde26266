//! What the steps of optimizers have in common: a problem with one pass over the flat vector of all parameters, the gradient's
//! norm and its clipping, and the ways in which parameters shrink.
//!
//! The vector may have gaps between parameters, which no step touches.

use crate::op::{Pass, Problem, Role, Signature, TensorSpec, Values};
use crate::pool::for_each;
use crate::shared::Shared;
use crate::{Dtype, Error, Result};
use std::sync::Arc;

/// An optimizer's step: a problem with the one pass [`Pass::Step`].
///
/// It reads `grad [N]`, `decay [N]` (1 where weight decay reaches a parameter) and `rate [1]`, and overwrites `parameter [N]`,
/// `step [1]` and other state in place; `grad_norm [1]` comes out.
pub trait Stepper: Problem {
    /// What a tensor of state starts from, where that is not zeros.
    fn initial(&self, state: &str) -> Option<Vec<f32>>;
    /// The number, from 1, of the step that makes everything anew that later steps make in turns, and that step as a problem of
    /// the same signature; none where there is no such step.
    fn opening(&self) -> Option<(u64, Arc<dyn Problem>)>;
}

/// How parameters shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DecayMode {
    /// By the learning rate times the weight decay.
    #[default]
    Decoupled,
    /// The weight decay times the parameter is added to its gradient.
    L2,
    /// Decoupled, times the learning rate over the largest one there was.
    Corrected,
    /// By the weight decay times the learning rate over the largest one there was.
    Independent,
}

impl DecayMode {
    /// Every mode's name.
    pub const NAMES: [&'static str; 4] = ["decoupled", "l2", "corrected", "independent"];
    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl std::str::FromStr for DecayMode {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let all = [Self::Decoupled, Self::L2, Self::Corrected, Self::Independent];
        all.into_iter()
            .find(|m| m.name() == s)
            .ok_or_else(|| Error::config(format!("weight_decay_mode `{s}` is not one of {}", Self::NAMES.join(", "))))
    }
}

/// What every step does beside its own direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Common {
    /// The largest norm of the whole gradient; 0 for no clipping.
    pub clip: f64,
    /// How much parameters shrink.
    pub weight_decay: f64,
    /// In which way.
    pub mode: DecayMode,
}

impl Default for Common {
    fn default() -> Self {
        Self { clip: 0.0, weight_decay: 0.0, mode: DecayMode::Decoupled }
    }
}

impl Common {
    /// Refuses numbers that are negative or infinite.
    pub(super) fn check(&self, entry: &str) -> Result<()> {
        for (name, x) in [("clip", self.clip), ("weight_decay", self.weight_decay)] {
            at_least_0(entry, name, x)?;
        }
        Ok(())
    }
    /// What the gradient is multiplied by.
    pub(super) fn scale(&self, norm: f64) -> f64 {
        if self.clip > 0.0 && norm > self.clip { self.clip / norm } else { 1.0 }
    }
    /// What is added to the gradient for each unit of a parameter.
    pub(super) fn pull(&self) -> f64 {
        if self.mode == DecayMode::L2 { self.weight_decay } else { 0.0 }
    }
    /// By what share of itself a parameter shrinks.
    pub(super) fn shrink(&self, rate: f64, largest: f64) -> f64 {
        let part = if largest > 0.0 { rate / largest } else { 0.0 };
        match self.mode {
            DecayMode::Decoupled => rate * self.weight_decay,
            DecayMode::L2 => 0.0,
            DecayMode::Corrected => rate * self.weight_decay * part,
            DecayMode::Independent => self.weight_decay * part,
        }
    }
}

pub(super) fn at_least_0(entry: &str, name: &str, x: f64) -> Result<()> {
    if x >= 0.0 && x.is_finite() {
        return Ok(());
    }
    Err(Error::value(format!("{entry}: {name} = {x} is not a finite number of at least 0")))
}

/// A decay below 1, or with `sums` also 1, which adds up.
pub(super) fn below_1(entry: &str, name: &str, x: f64, sums: bool) -> Result<()> {
    if (0.0..1.0).contains(&x) || (sums && x == 1.0) {
        return Ok(());
    }
    let range = if sums { "0 to 1" } else { "0 .. 1" };
    Err(Error::value(format!("{entry}: {name} = {x} is not in {range}")))
}

pub(super) fn counted(entry: &str, name: &str, n: usize) -> Result<()> {
    if (1..=1 << 15).contains(&n) {
        return Ok(());
    }
    Err(Error::value(format!("{entry}: {name} = {n} is not 1 to {}", 1 << 15)))
}

/// The signature of a step over `elements` numbers with this state, by name and axes, beside its count and the largest rate.
pub(super) fn signature(
    entry: &str,
    pass: Pass,
    elements: usize,
    state: &[(&'static str, &'static str, usize)],
) -> Result<Signature> {
    if pass != Pass::Step {
        return Err(Error::config(format!("{entry}: there is no {} pass", pass.name())));
    }
    let f32s = |name: &'static str, axes, n: usize, role| TensorSpec::new(name, axes, [n], Dtype::F32, role);
    let mut outputs = vec![f32s("parameter", "[N]", elements, Role::State)];
    outputs.extend(state.iter().map(|&(name, axes, n)| f32s(name, axes, n, Role::State)));
    outputs.push(TensorSpec::new("step", "[1]", [1], Dtype::I32, Role::State));
    outputs.push(f32s("largest_rate", "[1]", 1, Role::State));
    outputs.push(f32s("grad_norm", "[1]", 1, Role::Output));
    let inputs = vec![
        f32s("grad", "[N]", elements, Role::Gradient),
        f32s("decay", "[N]", elements, Role::Input),
        f32s("rate", "[1]", 1, Role::Input),
    ];
    Ok(Signature { inputs, outputs })
}

/// Refuses parameters that lie outside the vector, or over each other.
pub(super) fn fit(entry: &str, parameters: &[super::blocks::Parameter], elements: usize) -> Result<()> {
    let mut end = 0;
    for p in parameters {
        let n = p.shape.checked_elements()?;
        if p.first < end || n > elements.saturating_sub(p.first) {
            return Err(Error::shape(format!(
                "{entry}: a parameter of shape {} from element {} on does not lie behind element {end} of {elements}",
                p.shape, p.first
            )));
        }
        end = p.first + n;
    }
    if elements > i64::MAX as usize / 8 {
        return Err(Error::shape(format!("{entry}: N = {elements} exceeds 64-bit sizes")));
    }
    Ok(())
}

/// Numbers by name, from what a step's state and inputs are.
pub(super) fn ones(values: f64) -> Values {
    Values { shape: [1].into(), data: vec![values] }
}

/// Partial sums of the squared norm: a fixed number of runs, whatever the threads.
const MOST_PARTIALS: usize = 512;
const SHORTEST_RUN: usize = 2048;

/// The flat vector in runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Runs {
    pub elements: usize,
    pub run: usize,
    pub count: usize,
}

impl Runs {
    pub fn new(elements: usize) -> Self {
        let run = elements.div_ceil(MOST_PARTIALS).next_multiple_of(SHORTEST_RUN).max(SHORTEST_RUN);
        Self { elements, run, count: elements.div_ceil(run) }
    }
    pub fn at(&self, r: usize) -> (usize, usize) {
        (r * self.run, self.run.min(self.elements - r * self.run))
    }
}

#[inline(always)]
fn squares_body(g: &[f32], out: &mut f64) {
    let mut lanes = [0f64; 8];
    let chunks = g.chunks_exact(8);
    for (i, &x) in chunks.remainder().iter().enumerate() {
        lanes[i] += f64::from(x) * f64::from(x);
    }
    for c in chunks {
        for i in 0..8 {
            lanes[i] += f64::from(c[i]) * f64::from(c[i]);
        }
    }
    *out = lanes.iter().sum();
}
crate::dispatch!(
    /// The sum of squares, in f64: no gradient of f32 overflows it.
    pub(super) fn squares(g: &[f32], out: &mut f64) = squares_body
);

/// The norm of a vector on the pool's threads, in an order that they do not change; `partials` has one place a run.
#[allow(unsafe_code)]
pub(super) fn norm(g: &[f32], runs: Runs, partials: &mut [f64]) -> f64 {
    let at = Shared::new(partials);
    for_each(runs.count, |r| {
        let (start, len) = runs.at(r);
        // SAFETY: partial r belongs to this task.
        squares(&g[start..start + len], unsafe { &mut at.part(r, 1)[0] });
    });
    partials.iter().sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_shrink_as_they_say() {
        let c = |mode: &str| Common { clip: 0.0, weight_decay: 0.5, mode: mode.parse().unwrap() };
        assert_eq!(c("decoupled").shrink(0.1, 0.4), 0.05);
        assert_eq!((c("l2").shrink(0.1, 0.4), c("l2").pull(), c("corrected").pull()), (0.0, 0.5, 0.0));
        assert_eq!(c("corrected").shrink(0.1, 0.4), 0.0125);
        assert_eq!((c("independent").shrink(0.1, 0.4), c("independent").shrink(0.0, 0.0)), (0.125, 0.0));
        let e = "decupled".parse::<DecayMode>().unwrap_err().to_string();
        assert!(e.contains("`decupled` is not one of decoupled, l2"), "{e}");
    }

    #[test]
    fn a_norm_has_one_order() {
        let g: Vec<f32> = (0..70_001).map(|i| (i % 977) as f32 - 400.0).collect();
        let runs = Runs::new(g.len());
        let mut partials = vec![f64::NAN; runs.count];
        let want = g.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        assert!((norm(&g, runs, &mut partials) - want).abs() < 1e-12 * want);
        assert_eq!(norm(&[], Runs::new(0), &mut []), 0.0);
    }

    #[test]
    fn parameters_must_fit() {
        use crate::optim::blocks::Parameter;
        let message = |p: &[Parameter]| fit("shampoo", p, 10).unwrap_err().to_string();
        assert!(message(&[Parameter::new(4, [7])]).contains("from element 4 on does not lie behind element 0 of 10"));
        assert!(message(&[Parameter::new(0, [4]), Parameter::new(3, [2])]).contains("behind element 4"));
        assert!(fit("shampoo", &[Parameter::new(0, [4]), Parameter::new(6, [2, 2])], 10).is_ok());
    }
}
