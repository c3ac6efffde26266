//! The description of a network: populations, projections, drives. [`read`] makes it from a configuration, code builds it
//! from these types, and [`Plan::new`](super::plan::Plan::new) checks it and makes it whole numbers.

use super::models::Model;
use super::plasticity::Plasticity;
use crate::{Error, Result};
use std::sync::Arc;

pub mod distribution;
pub mod files;
mod frames;
pub mod lifecycle;
pub mod original;
pub mod original_plasticity;
pub mod place;
pub mod read;
mod read_drives;
mod read_plasticity;
mod reference;
pub mod replicas;
pub mod scale;
mod storage;
pub mod weights;

pub use distribution::{Codes, Distribution, Outside, Shape};
pub use files::{Files, Given};
pub use lifecycle::Lifecycle;
pub use replicas::{Key, Replica};
pub use storage::Storage;
pub use weights::{WeightBits, Weights};

/// A network.
#[derive(Clone)]
pub struct Network {
    /// The step, ms.
    pub dt_ms: f64,
    /// Names every random number.
    pub seed: u64,
    /// In the order of their cells' numbers.
    pub populations: Vec<Population>,
    /// Synapses from one population to another.
    pub projections: Vec<Projection>,
    /// Inputs from outside.
    pub drives: Vec<Drive>,
    /// How cells live and die, if they do.
    pub lifecycle: Option<Lifecycle>,
    /// Where each of several networks side by side begins; nothing in a network that is one.
    pub replicas: Vec<Replica>,
}

impl std::fmt::Debug for Network {
    /// Checkpoints know a network by this: of one without a life cycle or replicas it says nothing of them, as it did before there were
    /// such.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = f.debug_struct("Network");
        all.field("dt_ms", &self.dt_ms).field("seed", &self.seed).field("populations", &self.populations);
        all.field("projections", &self.projections).field("drives", &self.drives);
        if let Some(life) = &self.lifecycle {
            all.field("lifecycle", life);
        }
        if !self.replicas.is_empty() {
            all.field("replicas", &self.replicas);
        }
        all.finish()
    }
}

/// Cells of one model.
#[derive(Debug, Clone)]
pub struct Population {
    /// Its name.
    pub name: String,
    /// Its model.
    pub model: &'static dyn Model,
    /// How many cells.
    pub size: u32,
    /// One a parameter of the model.
    pub parameters: Vec<Distribution>,
    /// One a state variable of the model, in the configuration's terms.
    pub initial: Vec<Distribution>,
    /// Values that are given cell by cell, in place of those distributions.
    pub given: Given,
    /// Where the cells lie, if they lie somewhere.
    pub positions: Option<Arc<Vec<[f32; 4]>>>,
    /// The spikes of a replayed population: (step, cell), sorted.
    pub replay: Option<Arc<Vec<(u64, u32)>>>,
    /// What others measured of it.
    pub reference: Reference,
}

/// Published statistics of a population.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reference {
    /// Mean rate, Hz; what `--scale` takes for the rate of the full network.
    pub rate_hz: Option<f64>,
    /// Mean coefficient of variation of interspike intervals.
    pub cv: Option<f64>,
    /// Mean pairwise correlation of spike counts.
    pub correlation: Option<f64>,
}

/// Synapses from one population to another.
#[derive(Clone)]
pub struct Projection {
    /// Index of the population whose spikes it carries.
    pub source: usize,
    /// Index of the population that receives them.
    pub target: usize,
    /// Which pairs of cells it joins.
    pub rule: Rule,
    /// In the unit of the target's model.
    pub weight: Distribution,
    /// How long a spike takes.
    pub delay: Delay,
    /// Whether a cell may have a synapse onto itself.
    pub autapses: bool,
    /// How its synapses change, if they do.
    pub plasticity: Option<Plasticity>,
    /// Whether they are kept.
    pub storage: Storage,
    /// How precise weights are.
    pub weight_bits: WeightBits,
}

/// How long spikes take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Delay {
    /// Drawn, in ms.
    Drawn(Distribution),
    /// `offset + distance / velocity`.
    Distance {
        /// Units of length a ms.
        velocity: f64,
        /// ms.
        offset_ms: f64,
    },
}

/// Which pairs of cells a projection joins.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Rule {
    /// Every source with every target.
    AllToAll,
    /// Source i with target i.
    OneToOne,
    /// Each pair with this probability.
    Probability(f64),
    /// Each target with so many sources.
    InDegree {
        /// How many.
        count: u32,
        /// Whether a source may come twice.
        multapses: bool,
    },
    /// Each source with so many targets.
    OutDegree {
        /// How many.
        count: u32,
        /// Whether a target may come twice.
        multapses: bool,
    },
    /// So many synapses in all.
    Total {
        /// How many.
        count: u64,
        /// Whether a pair may come twice.
        multapses: bool,
    },
    /// Each pair with probability `peak e^(-d / length)`, d its distance.
    Distance {
        /// The probability at distance 0.
        peak: f64,
        /// The length over which it falls by e.
        length: f64,
        /// No farther than this.
        radius: f64,
    },
    /// These.
    Edges(Arc<Vec<Edge>>),
}

/// One synapse of a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edge {
    /// Cell of the source population, from 0.
    pub source: u32,
    /// Cell of the target population, from 0.
    pub target: u32,
    /// In the unit of the target's model.
    pub weight: f32,
    /// ms.
    pub delay_ms: f32,
}

/// An input from outside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drive {
    /// Index of the population that receives it.
    pub target: usize,
    /// What it is.
    pub kind: DriveKind,
}

/// What a drive is.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum DriveKind {
    /// Each cell has its own independent Poisson spikes.
    Poisson {
        /// Arrivals a second and cell: rate times the number of sources.
        rate_hz: f64,
        /// In the unit of the model.
        weight: f64,
        /// From this time.
        start_ms: f64,
        /// Until this time.
        stop_ms: f64,
    },
    /// A constant current.
    Dc {
        /// pA, or the unit of the model's `I_e`.
        current: f64,
    },
}

impl Network {
    /// An empty network with steps of `dt_ms`.
    ///
    /// # Errors
    /// Where `dt_ms` is not positive and finite.
    pub fn new(dt_ms: f64, seed: u64) -> Result<Self> {
        if !(dt_ms.is_finite() && dt_ms > 0.0) {
            return Err(Error::config(format!("network: dt = {dt_ms} ms must be above 0")));
        }
        Ok(Self {
            dt_ms,
            seed,
            populations: Vec::new(),
            projections: Vec::new(),
            drives: Vec::new(),
            lifecycle: None,
            replicas: Vec::new(),
        })
    }
    /// The index of the population of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.populations.iter().position(|p| p.name == name)
    }
    /// How many cells there are.
    pub fn cells(&self) -> u64 {
        self.populations.iter().map(|p| u64::from(p.size)).sum()
    }
    /// The number of each population's first cell.
    pub fn first_cells(&self) -> Vec<u64> {
        let mut next = 0;
        self.populations
            .iter()
            .map(|p| {
                let first = next;
                next += u64::from(p.size);
                first
            })
            .collect()
    }
    /// Adds a population; its index.
    pub fn add(&mut self, population: Population) -> usize {
        self.populations.push(population);
        self.populations.len() - 1
    }
}

impl Population {
    /// `size` cells of `model` with its default parameters.
    pub fn new(name: impl Into<String>, model: &'static dyn Model, size: u32) -> Self {
        let parameters: Vec<Distribution> = model.parameters().iter().map(|p| p.default.into()).collect();
        let mut population = Self {
            name: name.into(),
            model,
            size,
            parameters,
            initial: Vec::new(),
            given: Given::default(),
            positions: None,
            replay: None,
            reference: Reference::default(),
        };
        population.initial = population.default_initial();
        population
    }
    /// Where the state starts if nothing else is said.
    pub fn default_initial(&self) -> Vec<Distribution> {
        use super::models::Initial;
        let of = |name: &str| self.model.parameters().iter().position(|p| p.name == name);
        self.model
            .variables()
            .iter()
            .map(|v| match v.initial {
                Initial::Value(x) => x.into(),
                Initial::Parameter(name) => of(name).map_or(0.0.into(), |i| self.parameters[i]),
            })
            .collect()
    }
    /// The value of each parameter that all cells have the same of.
    pub fn constants(&self) -> Vec<Option<f64>> {
        let one = |(i, d): (usize, &Distribution)| d.constant().filter(|_| self.given.parameter(i).is_none());
        self.parameters.iter().enumerate().map(one).collect()
    }
    /// The mean of each parameter.
    pub fn typical(&self) -> Vec<f64> {
        let mean = |(i, d): (usize, &Distribution)| match self.given.parameter(i) {
            Some(own) => own.iter().sum::<f64>() / own.len().max(1) as f64,
            None => d.mean(),
        };
        self.parameters.iter().enumerate().map(mean).collect()
    }
    /// With this distribution of a parameter.
    ///
    /// # Errors
    /// Where the model has no such parameter.
    pub fn parameter(mut self, name: &str, value: impl Into<Distribution>) -> Result<Self> {
        let list = self.model.parameters();
        let Some(i) = list.iter().position(|p| p.name == name) else {
            let names: Vec<&str> = list.iter().map(|p| p.name).collect();
            return Err(Error::config(format!(
                "population {}: {} has no parameter {name:?}; it has {}",
                self.name,
                self.model.name(),
                names.join(", ")
            )));
        };
        self.parameters[i] = value.into();
        self.initial = self.default_initial();
        Ok(self)
    }
}

/// The published number of synapses of a pair of populations of the microcircuit, at which a pair of cells is joined at
/// least once with probability `p`: `ln(1 - p) / ln(1 - 1 / (sources targets))`, rounded.
pub fn total_of_probability(p: f64, sources: u32, targets: u32) -> u64 {
    let pairs = f64::from(sources) * f64::from(targets);
    ((-p).ln_1p() / (-1.0 / pairs).ln_1p()).round() as u64
}
