//! Wirings: which synapses exist and whether they excite or inhibit, drawn from a seed.
//!
//! FullyConnected, Random, NCP and AutoNCP are those of ncps, to the bit for the same seed (checked against version
//! 1.0.1 with NumPy 2.4.6). NCP is the neural circuit policy of Lechner et al. (Nature Machine Intelligence 2, 2020):
//! sensory inputs -> inter neurons -> command neurons (with recurrent synapses) -> motor neurons, and neurons are
//! ordered motor, command, inter, so that the outputs come first. Bernoulli is the independent draw of ltc-cuda.

mod config;
mod ncp;
mod numpy_random;

pub use ncp::Ncp;

use super::connectivity::{Connectivity, prepare};
use crate::rng::Rng;
use crate::{Error, Result};
use numpy_random::Pcg64;

/// Excitatory twice as often as inhibitory, as FullyConnected and Random draw.
const MOSTLY_EXCITATORY: [i8; 3] = [-1, 1, 1];

/// How a wiring is drawn. [`build`](Rule::build) draws it once the number of inputs is known.
///
/// `units` is H, the number of neurons; the first `output_dim` of them are the motor neurons, the outputs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Rule {
    /// Every synapse; 2/3 of them excitatory.
    FullyConnected {
        /// H.
        units: usize,
        /// Motor neurons.
        output_dim: usize,
        /// Of the polarities.
        erev_init_seed: u64,
        /// Whether a neuron has a synapse onto itself.
        self_connections: bool,
    },
    /// A fixed number of synapses at random places; 2/3 of them excitatory.
    Random {
        /// H.
        units: usize,
        /// Motor neurons.
        output_dim: usize,
        /// The fraction of synapses that is left out, in `[0, 1)`.
        sparsity_level: f64,
        /// Of the places and the polarities.
        random_seed: u64,
    },
    /// A neural circuit policy; half of its synapses are excitatory.
    Ncp(Ncp),
    /// An NCP whose sizes follow from two numbers.
    AutoNcp {
        /// H.
        units: usize,
        /// Motor neurons: fewer than `units - 2`.
        output_size: usize,
        /// From 0.1 (dense) to 1 (sparse).
        sparsity_level: f64,
        /// Of the places and the polarities.
        seed: u32,
    },
    /// Each synapse with the same probability, and at least one onto every neuron on each side; 80 % excitatory.
    Bernoulli {
        /// H.
        units: usize,
        /// Motor neurons.
        output_dim: usize,
        /// The probability of a synapse between neurons; 1 or more is all of them.
        density: f64,
        /// The probability of a synapse from an input.
        sensory_density: f64,
        /// Of the places and the polarities.
        seed: u64,
    },
}

/// What a neuron of a wiring is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NeuronKind {
    /// An output.
    Motor,
    /// Between inter and motor neurons of an NCP.
    Command,
    /// Any other.
    Inter,
}

impl NeuronKind {
    /// `motor`, `command` or `inter`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Motor => "motor",
            Self::Command => "command",
            Self::Inter => "inter",
        }
    }
}

/// A drawn wiring.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wiring {
    /// D.
    pub inputs: usize,
    /// H.
    pub units: usize,
    /// Motor neurons: the first ones.
    pub output_dim: usize,
    /// Command neurons, behind the motor neurons.
    pub command_neurons: usize,
    /// `[H, H]`, row-major by source: 1 excitatory, -1 inhibitory, 0 no synapse.
    pub adjacency: Vec<i8>,
    /// `[D, H]`, likewise.
    pub sensory_adjacency: Vec<i8>,
}

impl Rule {
    /// ncps's FullyConnected with its defaults: all neurons are outputs, seed 1111, with self-connections.
    pub fn fully_connected(units: usize) -> Self {
        Self::FullyConnected { units, output_dim: units, erev_init_seed: 1111, self_connections: true }
    }
    /// ncps's Random with its defaults: all neurons are outputs, seed 1111.
    pub fn random(units: usize, sparsity_level: f64) -> Self {
        Self::Random { units, output_dim: units, sparsity_level, random_seed: 1111 }
    }
    /// ncps's AutoNCP with its defaults: sparsity 0.5, seed 22222.
    pub fn auto_ncp(units: usize, output_size: usize) -> Self {
        Self::AutoNcp { units, output_size, sparsity_level: 0.5, seed: 22222 }
    }
    /// The same density on both sides; all neurons are outputs.
    pub fn bernoulli(units: usize, density: f64, seed: u64) -> Self {
        Self::Bernoulli { units, output_dim: units, density, sensory_density: density, seed }
    }
    /// H.
    pub fn units(&self) -> usize {
        match *self {
            Self::FullyConnected { units, .. }
            | Self::Random { units, .. }
            | Self::AutoNcp { units, .. }
            | Self::Bernoulli { units, .. } => units,
            Self::Ncp(ref ncp) => ncp.units(),
        }
    }
    /// Draws the wiring for `inputs` inputs.
    ///
    /// # Errors
    /// A sentence for the first value that is out of its range, or too many possible synapses for 32-bit indices.
    pub fn build(&self, inputs: usize) -> Result<Wiring> {
        match *self {
            Self::FullyConnected { units, output_dim, erev_init_seed, self_connections } => {
                let mut wiring = Wiring::empty(inputs, units, output_dim)?;
                let mut rng = Pcg64::new(erev_init_seed);
                for at in (0..units * units).filter(|at| self_connections || at / units != at % units) {
                    wiring.adjacency[at] = rng.pick(&MOSTLY_EXCITATORY);
                }
                wiring.sensory_adjacency.fill_with(|| rng.pick(&MOSTLY_EXCITATORY));
                Ok(wiring)
            }
            Self::Random { units, output_dim, sparsity_level, random_seed } => {
                if !(0.0..1.0).contains(&sparsity_level) {
                    return Err(Error::value(format!(
                        "wiring random: sparsity_level = {sparsity_level} is not in [0, 1)"
                    )));
                }
                let mut wiring = Wiring::empty(inputs, units, output_dim)?;
                let mut rng = Pcg64::new(random_seed);
                let kept = |places: usize| (places as f64 * (1.0 - sparsity_level)).round_ties_even() as usize;
                for at in rng.choose(units * units, kept(units * units)) {
                    wiring.adjacency[at] = rng.pick(&MOSTLY_EXCITATORY);
                }
                for at in rng.choose(inputs * units, kept(inputs * units)) {
                    // ncps draws these polarities twice and keeps the second.
                    rng.pick(&MOSTLY_EXCITATORY);
                    wiring.sensory_adjacency[at] = rng.pick(&MOSTLY_EXCITATORY);
                }
                Ok(wiring)
            }
            Self::Ncp(ref ncp) => ncp.build(inputs),
            Self::AutoNcp { units, output_size, sparsity_level, seed } => {
                Ncp::automatic(units, output_size, sparsity_level, seed)?.build(inputs)
            }
            Self::Bernoulli { units, output_dim, density, sensory_density, seed } => {
                for (name, density) in [("density", density), ("sensory_density", sensory_density)] {
                    if density.is_nan() || density < 0.0 {
                        return Err(Error::value(format!("wiring bernoulli: {name} = {density} is not 0 or more")));
                    }
                }
                let mut wiring = Wiring::empty(inputs, units, output_dim)?;
                bernoulli(&mut wiring.adjacency, units, density, &mut Rng::new(seed, 0));
                bernoulli(&mut wiring.sensory_adjacency, units, sensory_density, &mut Rng::new(seed, 1));
                Ok(wiring)
            }
        }
    }
}

/// Draws each of `[sources, units]` with probability `density`, and one source for every column that got none.
fn bernoulli(adjacency: &mut [i8], units: usize, density: f64, rng: &mut Rng) {
    const EXCITATORY: f64 = 0.8;
    for synapse in adjacency.iter_mut() {
        *synapse = i8::from(rng.uniform() < density);
    }
    let sources = adjacency.len().checked_div(units).unwrap_or(0);
    for j in (0..units).filter(|_| sources > 0) {
        if (0..sources).all(|i| adjacency[i * units + j] == 0) {
            adjacency[rng.below(sources as u64) as usize * units + j] = 1;
        }
    }
    for synapse in adjacency.iter_mut().filter(|s| **s != 0) {
        *synapse = if rng.uniform() < EXCITATORY { 1 } else { -1 };
    }
}

impl Wiring {
    /// Neurons without any synapse.
    fn empty(inputs: usize, units: usize, output_dim: usize) -> Result<Self> {
        if output_dim > units {
            return Err(Error::value(format!("wiring: output_dim = {output_dim} is more than units = {units}")));
        }
        let limit = i32::MAX as usize;
        let places = |sources: usize| sources.checked_mul(units).filter(|&n| n <= limit);
        let (Some(recurrent), Some(sensory)) = (places(units), places(inputs)) else {
            return Err(Error::value(format!(
                "wiring: {units} units and {inputs} inputs have more than {limit} possible synapses"
            )));
        };
        let (adjacency, sensory_adjacency) = (vec![0; recurrent], vec![0; sensory]);
        Ok(Self { inputs, units, output_dim, command_neurons: 0, adjacency, sensory_adjacency })
    }
    /// A wiring of the caller's own, with no command neurons.
    ///
    /// # Errors
    /// If a matrix has the wrong number of elements or holds anything but -1, 0 and 1, or `output_dim` exceeds `units`.
    pub fn new(
        inputs: usize,
        units: usize,
        output_dim: usize,
        adjacency: Vec<i8>,
        sensory_adjacency: Vec<i8>,
    ) -> Result<Self> {
        let wiring = Self { adjacency, sensory_adjacency, ..Self::empty(inputs, units, output_dim)? };
        for (name, matrix, sources) in
            [("adjacency", &wiring.adjacency, units), ("sensory_adjacency", &wiring.sensory_adjacency, inputs)]
        {
            if matrix.len() != sources * units {
                return Err(Error::shape(format!(
                    "wiring: {} elements of {name} do not match [sources, units] = ({sources}, {units})",
                    matrix.len()
                )));
            }
            if let Some(at) = matrix.iter().position(|s| !matches!(s, -1..=1)) {
                return Err(Error::value(format!(
                    "wiring: {name}[{}, {}] = {} is not one of -1, 0, 1",
                    at / units,
                    at % units,
                    matrix[at]
                )));
            }
        }
        Ok(wiring)
    }
    /// Synapses between neurons.
    pub fn synapse_count(&self) -> usize {
        self.adjacency.iter().filter(|&&s| s != 0).count()
    }
    /// Synapses from inputs.
    pub fn sensory_synapse_count(&self) -> usize {
        self.sensory_adjacency.iter().filter(|&&s| s != 0).count()
    }
    /// `[H, H]`: 1 where there is a synapse, 0 elsewhere.
    pub fn mask(&self) -> Vec<f32> {
        mask(&self.adjacency)
    }
    /// `[D, H]`: 1 where there is a synapse, 0 elsewhere.
    pub fn sensory_mask(&self) -> Vec<f32> {
        mask(&self.sensory_adjacency)
    }
    /// What neuron `j` is for.
    pub fn kind(&self, j: usize) -> NeuronKind {
        match j {
            _ if j < self.output_dim => NeuronKind::Motor,
            _ if j < self.output_dim + self.command_neurons => NeuronKind::Command,
            _ => NeuronKind::Inter,
        }
    }
    /// The synapses as lists.
    ///
    /// # Errors
    /// If some neuron has no synapse at all.
    pub fn connectivity(&self) -> Result<Connectivity> {
        prepare(&self.mask(), &self.sensory_mask(), self.inputs, self.units)
    }
}

fn mask(adjacency: &[i8]) -> Vec<f32> {
    adjacency.iter().map(|&s| f32::from(u8::from(s != 0))).collect()
}

#[cfg(test)]
mod tests;
