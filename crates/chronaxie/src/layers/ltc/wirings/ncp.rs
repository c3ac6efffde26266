//! Neural circuit policies: four layers, each wired to the next by a fixed fan-out or fan-in.

use super::Wiring;
use super::numpy_random::Mt19937;
use crate::{Error, Result};
use std::ops::Range;

const POLARITIES: [i8; 2] = [-1, 1];

/// The sizes of a neural circuit policy, under the names that ncps gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ncp {
    /// Neurons that the inputs reach.
    pub inter_neurons: usize,
    /// Neurons between inter and motor neurons, with synapses among themselves.
    pub command_neurons: usize,
    /// Outputs.
    pub motor_neurons: usize,
    /// Synapses from each input to inter neurons.
    pub sensory_fanout: usize,
    /// Synapses from each inter neuron to command neurons.
    pub inter_fanout: usize,
    /// Draws of a synapse between two command neurons; one that is drawn twice is one synapse.
    pub recurrent_command_synapses: usize,
    /// Synapses onto each motor neuron from command neurons.
    pub motor_fanin: usize,
    /// Of the places and the polarities; ncps's default is 22222.
    pub seed: u32,
}

impl Ncp {
    /// The sizes that AutoNCP derives: 40 % of the neurons that are not outputs are command neurons, and every fan is the
    /// fraction `1 - sparsity_level` of what it could be.
    pub(super) fn automatic(units: usize, output_size: usize, sparsity_level: f64, seed: u32) -> Result<Self> {
        if output_size.checked_add(2).is_none_or(|n| n >= units) {
            return Err(Error::value(format!(
                "wiring auto_ncp: output_size = {output_size} must be less than units - 2, where units = {units}"
            )));
        }
        if !(0.1..=1.0).contains(&sparsity_level) {
            return Err(Error::value(format!("wiring auto_ncp: sparsity_level = {sparsity_level} is not in [0.1, 1]")));
        }
        let density = 1.0 - sparsity_level;
        let at_least_one = |x: f64| (x as usize).max(1);
        let hidden = units - output_size;
        let command_neurons = at_least_one(0.4 * hidden as f64);
        let inter_neurons = hidden - command_neurons;
        let command = command_neurons as f64;
        Ok(Self {
            inter_neurons,
            command_neurons,
            motor_neurons: output_size,
            sensory_fanout: at_least_one(inter_neurons as f64 * density),
            inter_fanout: at_least_one(command * density),
            recurrent_command_synapses: at_least_one(command * density * 2.0),
            motor_fanin: at_least_one(command * density),
            seed,
        })
    }
    /// All neurons.
    pub fn units(&self) -> usize {
        self.inter_neurons.saturating_add(self.command_neurons).saturating_add(self.motor_neurons)
    }
    fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::value(format!("wiring ncp: {what}")));
        for (name, count) in [("inter_neurons", self.inter_neurons), ("command_neurons", self.command_neurons)] {
            if count == 0 {
                return refuse(format!("{name} = 0, but at least one is needed"));
            }
        }
        for (name, fan, layer, size) in [
            ("sensory_fanout", self.sensory_fanout, "inter", self.inter_neurons),
            ("inter_fanout", self.inter_fanout, "command", self.command_neurons),
            ("motor_fanin", self.motor_fanin, "command", self.command_neurons),
        ] {
            if fan > size {
                return refuse(format!("{name} = {fan} is more than the {size} {layer} neurons"));
            }
        }
        if self.recurrent_command_synapses > i32::MAX as usize {
            return refuse(format!(
                "recurrent_command_synapses = {} is more than {}",
                self.recurrent_command_synapses,
                i32::MAX
            ));
        }
        Ok(())
    }
    /// Draws the wiring.
    pub(super) fn build(&self, inputs: usize) -> Result<Wiring> {
        self.check()?;
        let units = self.units();
        let mut wiring = Wiring::empty(inputs, units, self.motor_neurons)?;
        wiring.command_neurons = self.command_neurons;
        let motor = 0..self.motor_neurons;
        let command = motor.end..motor.end + self.command_neurons;
        let inter = command.end..units;
        let mut rng = Mt19937::new(self.seed);

        let (from, to) = (0..inputs, inter.clone());
        let mut sensory = Layer { rng: &mut rng, adjacency: &mut wiring.sensory_adjacency, units };
        let missed = sensory.spread(from.clone(), to, self.sensory_fanout, Ends::Forward);
        // Who was missed gets the mean number of synapses of its layer, and at least one.
        let mean = (inputs * self.sensory_fanout / self.inter_neurons).max(1).min(inputs);
        sensory.reach(&missed, from, mean, Ends::Backward);

        let mut neurons = Layer { rng: &mut rng, adjacency: &mut wiring.adjacency, units };
        let missed = neurons.spread(inter.clone(), command.clone(), self.inter_fanout, Ends::Forward);
        let mean = (self.inter_neurons * self.inter_fanout / self.command_neurons).clamp(1, self.command_neurons);
        neurons.reach(&missed, inter, mean, Ends::Backward);

        let commands: Vec<usize> = command.clone().collect();
        for _ in 0..self.recurrent_command_synapses {
            let (source, target) = (neurons.rng.pick(&commands), neurons.rng.pick(&commands));
            neurons.connect(source, target);
        }

        let missed = neurons.spread(motor.clone(), command, self.motor_fanin, Ends::Backward);
        let mean = (self.motor_neurons * self.motor_fanin / self.command_neurons).max(1).min(self.motor_neurons);
        neurons.reach(&missed, motor, mean, Ends::Forward);
        Ok(wiring)
    }
}

/// Whether synapses run from the neurons that choose to those chosen, or back.
#[derive(Clone, Copy)]
enum Ends {
    Forward,
    Backward,
}

struct Layer<'a> {
    rng: &'a mut Mt19937,
    /// `[sources, units]`.
    adjacency: &'a mut [i8],
    units: usize,
}

impl Layer<'_> {
    fn connect(&mut self, source: usize, target: usize) {
        self.adjacency[source * self.units + target] = self.rng.pick(&POLARITIES);
    }
    /// Connects `chooser` with `count` of `others`; returns those.
    fn choose(&mut self, chooser: usize, others: &Range<usize>, count: usize, ends: Ends) -> Vec<usize> {
        let chosen = self.rng.choose(others.len(), count);
        for &place in &chosen {
            let other = others.start + place;
            match ends {
                Ends::Forward => self.connect(chooser, other),
                Ends::Backward => self.connect(other, chooser),
            }
        }
        chosen
    }
    /// Connects each of `choosers` with `count` of `others`; returns those that nobody chose, ascending.
    fn spread(&mut self, choosers: Range<usize>, others: Range<usize>, count: usize, ends: Ends) -> Vec<usize> {
        let mut reached = vec![false; others.len()];
        for chooser in choosers {
            for place in self.choose(chooser, &others, count, ends) {
                reached[place] = true;
            }
        }
        others.zip(reached).filter(|(_, reached)| !reached).map(|(other, _)| other).collect()
    }
    /// Connects each of `missed` with `count` of `others`.
    fn reach(&mut self, missed: &[usize], others: Range<usize>, count: usize, ends: Ends) {
        for &neuron in missed {
            self.choose(neuron, &others, count, ends);
        }
    }
}
