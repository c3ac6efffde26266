//! What training asks of a recurrent layer: a problem for each batch shape, where its parameters start, and what was
//! prepared from its structure. A layer that can be trained is one file here and one line in `LAYERS`.

mod ltc;

use crate::Result;
use crate::config::Section;
use crate::op::{Precision, Problem, Tensors};
use std::fmt::Debug;
use std::sync::Arc;

/// A recurrent layer with a linear head behind it.
///
/// Its forward pass reads `x [B, T, D]` (and `elapsed [B, T]` where it asks for it) and writes states `out [B, T, M]`;
/// its backward pass reads `grad_out` and writes the gradient of each parameter. Initial states are zero.
pub trait TrainableLayer: Debug + Send + Sync {
    /// The name that configurations use.
    fn name(&self) -> &'static str;
    /// M, the states that the head sees.
    fn features(&self) -> usize;
    /// The problem for a batch of B sequences of T steps, with gradients of the parameters alone.
    ///
    /// # Errors
    /// Sizes or options that the layer refuses.
    fn problem(&self, batch: usize, steps: usize, backward: bool) -> Result<Arc<dyn Problem>>;
    /// The parameters that training starts from, by the names of the problem's signature.
    ///
    /// # Errors
    /// As [`problem`](Self::problem).
    fn initial(&self, seed: u64) -> Result<Tensors>;
    /// What the layer prepared from its structure, by the names of the problem's signature; saved with the model.
    fn prepared(&self) -> Tensors;
    /// Whether weight decay reaches a parameter.
    fn decays(&self, parameter: &str) -> bool;
}

/// What decides a layer beside its table in the configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    /// D.
    pub(super) inputs: usize,
    /// Whether the data has times.
    pub(super) timed: bool,
    /// The accuracy that was asked for.
    pub(super) precision: Precision,
    /// The run's seed, from which the wiring's follows where none is given.
    pub(super) seed: u64,
    /// What a saved model prepared; none for a new one.
    pub(super) prepared: Option<&'a Tensors>,
}

type Read = fn(&Section<'_>, Context<'_>) -> Result<Box<dyn TrainableLayer>>;

/// Every layer that can be trained, by the name that configurations use.
const LAYERS: [(&str, Read); 1] = [("ltc", |model, context| Ok(Box::new(ltc::LtcLayer::read(model, context)?)))];

/// The layer that the table `[model]` describes.
pub(super) fn build(model: &Section<'_>, context: Context<'_>) -> Result<Box<dyn TrainableLayer>> {
    let names = LAYERS.map(|(name, _)| name);
    let name = model.choice("layer", &names, "ltc")?;
    let found = LAYERS.iter().find(|(known, _)| *known == name);
    let (_, read) = found.ok_or_else(|| model.refuse("layer", "is not a layer that can be trained"))?;
    read(model, context)
}
