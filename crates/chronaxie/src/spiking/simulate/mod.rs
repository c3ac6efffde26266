//! Engines: what runs a plan.
//!
//! One step, in every engine: what arrives at step n is summed as whole numbers and made f32 once; states advance; cells
//! that fire are listed; what they send with delay d is summed into step n + d. Sums of whole numbers do not depend on
//! their order, so spikes are the same for any number of threads and shards, and on a GPU. Synapses that change do so in whole
//! numbers too, and each by itself ([`plasticity`](super::plasticity)).

use super::connect::Synapses;
use super::life::{Lives, Reweighed};
use super::network::Network;
use super::plan::Plan;
use crate::Result;

mod barrier;
pub mod checkpoint;
mod common;
pub mod cpu;
mod crew;
pub mod cuda;
mod eager;
mod lane;
pub mod learned;
mod learner;
pub mod measure;
mod mortal;
pub(crate) mod pace;
pub mod parts;
mod pending;
pub mod reckon;
pub mod reference;
pub mod snapshot;

#[cfg(test)]
mod learning_tests;
#[cfg(test)]
mod life_tests;
#[cfg(test)]
pub(in crate::spiking) mod long_tests;
#[cfg(test)]
mod procedural_tests;
#[cfg(test)]
mod replica_tests;
#[cfg(test)]
mod rules_tests;
#[cfg(test)]
pub(in crate::spiking) mod tests;

pub use checkpoint::{Around, Checkpoint};
pub use cpu::CpuEngine;
pub use cuda::{CudaEngine, CudaPart};
pub use learned::{Learned, Weights};
pub use parts::{Exchange, PartEngine, PartsEngine, Transport};
pub use reference::Reference;
pub use snapshot::{Snapshot, Stored};

/// A cell that fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spike {
    /// In this step, from 0.
    pub step: u64,
    /// The cell's number in the network.
    pub cell: u32,
}

/// Adds the spikes of each replica of `network` to its list, in order and by its own numbers of its cells.
pub fn by_replica(network: &Network, spikes: &[Spike], lists: &mut [Vec<Spike>]) {
    let cells = network.first_cells();
    let firsts: Vec<u64> = network.replicas.iter().map(|r| cells[r.population]).collect();
    for (k, run) in runs(spikes, &firsts) {
        let first = firsts[k] as u32;
        lists[k].extend(run.iter().map(|spike| Spike { cell: spike.cell - first, ..*spike }));
    }
}

/// Spikes taken apart into as long pieces as are of one range of cells, each with the range's number; `firsts` are the ranges' first
/// cells, from 0 on. A range is looked up once a piece: spikes of a step are sorted, so there are few.
pub fn runs<'a>(spikes: &'a [Spike], firsts: &'a [u64]) -> impl Iterator<Item = (usize, &'a [Spike])> {
    let mut rest = spikes;
    std::iter::from_fn(move || {
        let cell = u64::from(rest.first()?.cell);
        let next = firsts.partition_point(|first| *first <= cell);
        let (low, end) = (firsts[next - 1], firsts.get(next).copied().unwrap_or(u64::MAX));
        let own = |spike: &Spike| u64::from(spike.cell).wrapping_sub(low) < end - low;
        let (run, more) = rest.split_at(rest.iter().position(|spike| !own(spike)).unwrap_or(rest.len()));
        rest = more;
        Some((next - 1, run))
    })
}

/// All that the rest of a simulation follows from, beside the plan; the same for every engine, shard count and thread
/// count.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// The next step.
    pub step: u64,
    /// `[population][variable][cell]`, as it is stepped.
    pub variables: Vec<Vec<Vec<f32>>>,
    /// The spikes that are still under way somewhere: those of the last [`Plan::max_delay`](super::Plan::max_delay)
    /// steps, sorted.
    pub recent: Vec<Spike>,
    /// Of synapses that change, where there are any.
    pub learned: Option<Learned>,
}

/// What runs a plan, some steps at a time.
pub trait Engine: Send {
    /// The next step.
    fn step(&self) -> u64;
    /// Runs `steps` steps, and adds their spikes to `spikes`, sorted by step and cell.
    ///
    /// # Errors
    /// What the device refuses.
    fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()>;
    /// Likewise with clocks between the parts of a step: their names, and which share of the time each takes; together they are all of it.
    /// `None` where this engine has no such clocks; then nothing has run.
    ///
    /// # Errors
    /// What the device refuses.
    fn advance_in_parts(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<Option<Vec<(&'static str, f64)>>> {
        let _ = (steps, spikes);
        Ok(None)
    }
    /// What a part of a step works on, by its name there, where steps have this load.
    fn part_cost(&self, part: &str, load: &reckon::Load) -> reckon::PartCost {
        let _ = (part, load);
        reckon::PartCost::default()
    }
    /// Runs `steps` steps as a graph of as many launches of one step each: the seconds from the launch of the graph, which is made before,
    /// to its end. Nobody gets their spikes, so that there is no [`state`](Self::state) any more. `None` where this engine has no such
    /// graph; then nothing has run.
    ///
    /// # Errors
    /// What the device refuses.
    fn replay(&mut self, steps: u64) -> Result<Option<f64>> {
        let _ = steps;
        Ok(None)
    }
    /// The state between two steps.
    ///
    /// # Errors
    /// What the device refuses.
    fn state(&self) -> Result<State>;
    /// What a state has of the cells alone: `[population][variable][cell]`.
    ///
    /// # Errors
    /// What the device refuses.
    fn variables(&self) -> Result<Vec<Vec<Vec<f32>>>> {
        Ok(self.state()?.variables)
    }
    /// Makes room for so many snapshots at a time, before the first, where the engine can go on while they are written.
    ///
    /// # Errors
    /// What the device refuses, but for a lack of memory.
    fn prepare(&mut self, snapshots: usize) -> Result<()> {
        let _ = snapshots;
        Ok(())
    }
    /// The state between two steps, to be written while the engine goes on.
    ///
    /// # Errors
    /// What the device refuses.
    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>> {
        Ok(Box::new(snapshot::Captured(self.state()?)))
    }
    /// Goes to the state of a checkpoint, whose synapses may lie in its file still.
    ///
    /// # Errors
    /// As [`restore`](Self::restore), and where the file cannot be read.
    fn resume(&mut self, state: State, stored: Option<&Stored>) -> Result<()> {
        snapshot::resume(self, state, stored)
    }
    /// The plan, and what the synapses that change are known by, in the order of a state, where the engine can say it.
    ///
    /// # Errors
    /// What the device refuses.
    fn order(&self) -> Result<Option<(&Plan, parts::Keys)>> {
        Ok(None)
    }
    /// Goes to a state that an engine of the same plan was in.
    ///
    /// # Errors
    /// `Checkpoint`, where the state is not one of this plan.
    fn restore(&mut self, state: &State) -> Result<()>;
    /// Goes on with the inputs of `plan`, which differs from the engine's own in rates and currents alone; false where
    /// the engine must be built anew for that, and nothing has changed.
    ///
    /// # Errors
    /// `Config`, where a cell's own parameters cannot be run; then nothing has changed.
    fn redrive(&mut self, plan: &super::Plan) -> Result<bool> {
        let _ = plan;
        Ok(false)
    }
    /// Goes on with other weights of these synapses, in this order; false where the engine must be built anew for that, and nothing has
    /// changed.
    ///
    /// # Errors
    /// `Value`, where a synapse is none of the network.
    fn reweigh(&mut self, synapses: &[Reweighed]) -> Result<bool> {
        let _ = synapses;
        Ok(false)
    }
    /// The parameters of cells of a population, with DC drives, as of [`Plan::parameters`](super::Plan::parameters): the plan's, but where
    /// cells have children.
    ///
    /// # Errors
    /// As there.
    fn parameters(&self, plan: &super::Plan, population: usize, cells: std::ops::Range<u32>) -> Result<Vec<Vec<f64>>> {
        plan.parameters(population, cells)
    }
    /// The cells between two steps, of a network whose cells die.
    ///
    /// # Errors
    /// What the device refuses.
    fn lives(&self) -> Result<Option<Lives>> {
        Ok(None)
    }
    /// The state of a cell of a population, as it is stepped. That of a cell that is dead is not a number.
    ///
    /// # Errors
    /// What the device refuses.
    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>>;
    /// How many synapses there are.
    fn synapses(&self) -> u64;
    /// The weights of the synapses that change, between two steps; nothing where none does.
    ///
    /// # Errors
    /// What the device refuses.
    fn weights(&self) -> Result<Vec<Weights>>;
    /// The synapses of a projection, with their weights between two steps; a row is the same synapse at all times.
    ///
    /// # Errors
    /// `OutOfMemory` before anything is allocated; what the device refuses.
    fn table(&self, projection: usize) -> Result<Synapses>;
    /// Spikes times the synapses that each went through, so far.
    fn events(&self) -> u64;
    /// The part, of several, whose process was asked to stop, if one was: then the run is to end in order.
    fn asked_to_stop(&self) -> Option<usize> {
        None
    }
    /// How the network is cut, as people read it.
    fn config(&self) -> String;
    /// What kind of engine it is, in a word.
    fn variant(&self) -> &'static str;
    /// Kernels launched by its steps so far; 0 on the CPU.
    fn launches(&self) -> u64 {
        0
    }
    /// Bytes of memory that states of cells and what came for them take in a step, read and written: none where they stay on
    /// the chip.
    fn update_bytes(&self) -> u64 {
        0
    }
    /// Bytes that a synapse takes, where it is read alone.
    fn synapse_bytes(&self) -> Option<f64> {
        None
    }
    /// The least time that a step of the run so far can take, us, where that is known.
    fn floor_us(&self) -> Option<f64> {
        None
    }
}
