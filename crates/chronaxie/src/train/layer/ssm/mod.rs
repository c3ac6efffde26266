//! State-space models in the trainer: linear maps of the input, a provider's gates, its scan, and a linear map out of it.
//!
//! A provider is a file: its stages from `x` to `y`, and where its parameters start. All maps read the batch itself, so every
//! value is read once and no gradient of the batch is wanted.

mod adaptive;
mod gated;
mod lru;
mod selective;

use super::{Context, Stage, Tie, TrainableLayer};
use crate::Result;
use crate::config::Section;
use crate::layers::dense::{Channels, Dense};
use crate::op::{Tensors, Values};
use crate::rng::Rng;
use std::fmt::Debug;

/// The stream of a run's seed from which the layer's parameters are drawn.
const STREAM: u64 = 0x7373_6d00;

/// Sizes of a call.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    batch: usize,
    steps: usize,
    /// D.
    inputs: usize,
    /// H, channels of the scan; for the models whose states all channels share, the number of states.
    hidden: usize,
    /// N, states a channel.
    states: usize,
}

impl Sizes {
    /// A linear map of the batch to channels that lie as `to` says.
    fn map(&self, name: &'static str, to: Channels, value: &'static str) -> Result<Stage> {
        let map = Dense::new(self.batch, self.steps, Channels::beside(self.inputs), to)?.with_grad_x(false);
        Ok(Stage::new(name, map, &[("x", Tie::Value("x")), ("y", Tie::Value(value))]))
    }
    /// A linear map of the batch to the scan's channels, each along time.
    fn channels(&self, name: &'static str, value: &'static str) -> Result<Stage> {
        self.map(name, Channels::along(self.hidden), value)
    }
}

/// Where a provider's parameters start.
struct Start {
    sizes: Sizes,
    rng: Rng,
    tensors: Tensors,
}

impl Start {
    fn set(&mut self, name: impl Into<String>, data: Vec<f64>) -> Result<()> {
        self.tensors.insert(name, Values::new([data.len()], data)?);
        Ok(())
    }
    /// Weights and biases of a map of the batch to `outputs` numbers, uniform within `1 / sqrt(D)`.
    fn map(&mut self, name: &str, outputs: usize) -> Result<()> {
        self.map_from(name, self.sizes.inputs, outputs)
    }
    fn map_from(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<()> {
        let bound = 1.0 / (inputs.max(1) as f64).sqrt();
        let weight = (0..inputs * outputs).map(|_| self.rng.range(-bound, bound)).collect();
        let bias = (0..outputs).map(|_| self.rng.range(-bound, bound)).collect();
        self.set(format!("{name}.weight"), weight)?;
        self.set(format!("{name}.bias"), bias)
    }
}

/// A model: where gates and inputs of its scan come from.
trait Provider: Debug + Send + Sync {
    /// From `x` to `y`, the input of the map to the layer's outputs.
    fn stages(&self, s: &Sizes) -> Result<Vec<Stage>>;
    /// How `y` lies.
    fn result(&self, s: &Sizes) -> Channels {
        Channels::along(s.hidden)
    }
    /// The parameters of its stages.
    fn start(&self, to: &mut Start) -> Result<()>;
    /// Whether weight decay reaches a parameter: the weights of linear maps, if zero is where they may go.
    fn decays(&self, parameter: &str) -> bool {
        parameter.ends_with(".weight")
    }
}

type Read = fn(&Section<'_>) -> Result<Box<dyn Provider>>;

/// Every provider, by the name that configurations use.
const PROVIDERS: [(&str, Read); 9] = [
    ("adaptive_unitary", |m| Ok(Box::new(adaptive::Adaptive::read(m, false)?))),
    ("adaptive_polar", |m| Ok(Box::new(adaptive::Adaptive::read(m, true)?))),
    ("mamba", |m| Ok(Box::new(selective::Mamba::read(m)?))),
    ("s4d", |m| Ok(Box::new(selective::S4d::read(m)?))),
    ("s5", |m| Ok(Box::new(lru::Shared::s5(m)?))),
    ("lru", |m| Ok(Box::new(lru::Shared::lru(m)?))),
    ("decay", |m| Ok(Box::new(gated::Decay::read(m)?))),
    ("rglru", |_| Ok(Box::new(gated::RgLru))),
    ("mingru", |_| Ok(Box::new(gated::MinGru))),
];

/// A state-space model with its map out.
#[derive(Debug)]
pub(super) struct SsmLayer {
    provider: Box<dyn Provider>,
    /// With B = T = 0.
    sizes: Sizes,
    /// M.
    outputs: usize,
}

impl SsmLayer {
    pub(super) fn read(model: &Section<'_>, context: Context<'_>) -> Result<Self> {
        let names = PROVIDERS.map(|(name, _)| name);
        let name = model.choice("provider", &names, "adaptive_unitary")?;
        let found = PROVIDERS.iter().find(|(known, _)| *known == name);
        let (_, read) = found.ok_or_else(|| model.refuse("provider", "is not a provider that can be trained"))?;
        let counted = |key: &str, default: usize| match model.get(key, default)? {
            0 => Err(model.refuse(key, "must be at least 1, but it is 0")),
            n => Ok(n),
        };
        let hidden = counted("hidden", 64)?;
        let outputs = counted("outputs", hidden)?;
        let states = if matches!(name, "adaptive_unitary" | "adaptive_polar" | "mamba" | "s4d") {
            counted("states", 16)?
        } else {
            1
        };
        let sizes = Sizes { batch: 0, steps: 0, inputs: context.inputs, hidden, states };
        let layer = Self { provider: read(model)?, sizes, outputs };
        // Sizes that a stage refuses are refused before any data is laid out.
        layer.stages(0, 0, true)?;
        Ok(layer)
    }
}

impl TrainableLayer for SsmLayer {
    fn name(&self) -> &'static str {
        "ssm"
    }
    fn features(&self) -> usize {
        self.outputs
    }
    fn stages(&self, batch: usize, steps: usize, _backward: bool) -> Result<Vec<Stage>> {
        let sizes = Sizes { batch, steps, ..self.sizes };
        let mut stages = self.provider.stages(&sizes)?;
        let out = Dense::new(batch, steps, self.provider.result(&sizes), Channels::beside(self.outputs))?;
        stages.push(Stage::new("out", out, &[("x", Tie::Value("y")), ("y", Tie::Value("out"))]));
        Ok(stages)
    }
    fn initial(&self, seed: u64) -> Result<Tensors> {
        let mut start = Start { sizes: self.sizes, rng: Rng::new(seed, STREAM), tensors: Tensors::new() };
        start.map_from("out", self.provider.result(&self.sizes).count, self.outputs)?;
        self.provider.start(&mut start)?;
        Ok(start.tensors)
    }
    fn prepared(&self) -> Tensors {
        Tensors::new()
    }
    fn decays(&self, parameter: &str) -> bool {
        self.provider.decays(parameter)
    }
}
