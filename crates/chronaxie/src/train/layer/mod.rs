//! What training asks of a recurrent layer: its problems for each batch shape, where its parameters start, and what was
//! prepared from its structure. A layer that can be trained is one file here (or a folder) and one line in `LAYERS`.

mod ltc;
mod mlstm;
mod ssm;

use super::head::LinearHead;
use crate::Result;
use crate::config::Section;
use crate::op::{Precision, Problem, Tensors};
use std::fmt::Debug;
use std::sync::Arc;

/// A problem of a layer, and how its tensors are connected with those of the others.
///
/// What is not tied is the stage's own: its parameters, saved tensors and last states. Initial states are zero, and so are
/// gradients of what nothing reads.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stage {
    /// Stands before the names of its own tensors, as in `u.weight`; empty in a layer of one stage.
    pub name: &'static str,
    /// What it computes.
    pub problem: Arc<dyn Problem>,
    /// Tensors that are known by another name in the layer.
    pub ties: Vec<(&'static str, Tie)>,
}

/// What a tensor of a stage is in its layer. Sizes may be other ones, as long as there are as many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tie {
    /// What an earlier stage wrote, or this one writes for a later one: `x` is the batch, `out` what the head reads. What a
    /// stage wrote is read by one other, because gradients are not added.
    Value(&'static str),
    /// An input that is a parameter of the layer: a map of parameters is a stage.
    Parameter(&'static str),
}

impl Stage {
    /// `problem` under a name of its own.
    pub fn new(name: &'static str, problem: impl Problem + 'static, ties: &[(&'static str, Tie)]) -> Self {
        Self { name, problem: Arc::new(problem), ties: ties.to_vec() }
    }
    /// The head as a stage behind the layer's.
    pub(super) fn head(head: LinearHead) -> Self {
        let shared = ["lengths", "labels", "values", "loss", "logits"].map(|name| (name, Tie::Value(name)));
        let mut ties = vec![("h", Tie::Value("out"))];
        ties.extend(shared);
        Self { name: "head", problem: Arc::new(head), ties }
    }
    /// The name of a tensor of its own.
    pub(super) fn own(&self, tensor: &str) -> String {
        if self.name.is_empty() { tensor.to_owned() } else { format!("{}.{tensor}", self.name) }
    }
    /// What a tensor of its problem is tied to.
    pub(super) fn tie(&self, tensor: &str) -> Option<Tie> {
        self.ties.iter().find(|(name, _)| *name == tensor).map(|(_, tie)| *tie)
    }
}

/// A recurrent layer with a linear head behind it: a chain of problems that reads `x [B, T, D]` (and `elapsed [B, T]` where it
/// asks for it) and ends with `out [B, T, M]`.
pub trait TrainableLayer: Debug + Send + Sync {
    /// The name that configurations use.
    fn name(&self) -> &'static str;
    /// M, what the head sees of a step.
    fn features(&self) -> usize;
    /// The problems for a batch of B sequences of T steps, in the order of the forward pass, with gradients of all parameters and
    /// of what lies between, but not of the batch.
    ///
    /// # Errors
    /// Sizes or options that the layer refuses.
    fn stages(&self, batch: usize, steps: usize, backward: bool) -> Result<Vec<Stage>>;
    /// The parameters that training starts from: `u.weight` is `weight` of the stage `u`.
    ///
    /// # Errors
    /// As [`stages`](Self::stages).
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
const LAYERS: [(&str, Read); 3] = [
    ("ltc", |model, context| Ok(Box::new(ltc::LtcLayer::read(model, context)?))),
    ("mlstm", |model, context| Ok(Box::new(mlstm::MlstmLayer::read(model, context)?))),
    ("ssm", |model, context| Ok(Box::new(ssm::SsmLayer::read(model, context)?))),
];

/// The layer that the table `[model]` describes.
pub(super) fn build(model: &Section<'_>, context: Context<'_>) -> Result<Box<dyn TrainableLayer>> {
    let names = LAYERS.map(|(name, _)| name);
    let name = model.choice("layer", &names, "ltc")?;
    let found = LAYERS.iter().find(|(known, _)| *known == name);
    let (_, read) = found.ok_or_else(|| model.refuse("layer", "is not a layer that can be trained"))?;
    read(model, context)
}
