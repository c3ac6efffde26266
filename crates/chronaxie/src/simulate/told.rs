//! What runs say of themselves.

use crate::spiking::simulate::Weights;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a run came to; `Serialize` gives the JSON object that `simulate` ends with.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Model time, ms.
    pub model_ms: f64,
    /// Wall time of the steps of this process, ms, and of what is taken for checkpoints between them; building and files are not in it.
    pub wall_ms: f64,
    /// Wall time over model time, of the steps of this process.
    pub real_time_factor: f64,
    /// All spikes.
    pub spikes: u64,
    /// SHA-256 over u64 step and u64 cell of all spikes, sorted; nothing with `simulation.hash = "none"`.
    pub spikes_sha256: Option<String>,
    /// What its GPUs took by the driver's counter, J, which goes on by tens of milliseconds, from the first step of this process to its
    /// last, checkpoints between them too; nothing on the CPU, and where there is no such counter.
    pub energy_j: Option<f64>,
    /// Wall time of making the network, ms.
    pub build_ms: f64,
    /// `cpu` or `cuda:N`.
    pub backend: String,
    /// How many GPUs share the network, from that one on; 0 on the CPU.
    pub gpus: usize,
    /// How the network was cut for it.
    pub engine: String,
    /// What the real-time factor cannot fall below on this device, by the bytes of the run's events and the trips between its
    /// multiprocessors; nothing where that is not known.
    pub floor_real_time_factor: Option<f64>,
    /// Mean rate of each population after `discard_ms`.
    pub rates_hz: BTreeMap<String, f64>,
    /// Left out of rates and statistics, ms.
    pub discard_ms: f64,
    /// The seed.
    pub seed: u64,
    /// How many cells.
    pub cells: u64,
    /// How many synapses.
    pub synapses: u64,
    /// Deliveries in the steps of this process, a step.
    pub events_per_step: f64,
    /// Threads.
    pub threads: usize,
    /// The largest error of a projection's weights as whole numbers, over their mean.
    pub quantisation: f64,
    /// What was measured of each population, with what others measured beside it.
    pub populations: Vec<PopulationReport>,
    /// The weights that change, from population to population, at the start of the run and now; empty where none does.
    pub weights: Vec<WeightReport>,
    /// Snapshots that this process took for checkpoints, the last one's among them, and those that were written: a later one takes the place
    /// of one that the disk has had no time for.
    pub checkpoints_taken: u64,
    /// Likewise.
    pub checkpoints_written: u64,
    /// How many cells have died since the first step; nothing where none can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died: Option<u64>,
    /// How many children were born.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub born: Option<u64>,
    /// Each of several networks side by side; the populations of all are then called `NAME#K`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaReport>,
    /// The folder of the run.
    pub out: PathBuf,
}

/// What one of several networks side by side came to: what a run of its own would have.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ReplicaReport {
    /// What it overrides.
    pub set: Vec<String>,
    /// The seed.
    pub seed: u64,
    /// Model time, ms.
    pub model_ms: f64,
    /// All spikes.
    pub spikes: u64,
    /// As of a [`Report`].
    pub spikes_sha256: Option<String>,
    /// Mean rate of each population after `discard_ms`.
    pub rates_hz: BTreeMap<String, f64>,
    /// Left out of rates and statistics, ms.
    pub discard_ms: f64,
    /// How many cells.
    pub cells: u64,
    /// What was measured of each population.
    pub populations: Vec<PopulationReport>,
    /// As of a [`Report`].
    pub weights: Vec<WeightReport>,
    /// Its folder.
    pub out: PathBuf,
}

/// The weights of the synapses that change from one population to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WeightReport {
    /// `source -> target`.
    pub projection: String,
    /// At the start of the run.
    pub before: Weights,
    /// At its end.
    pub after: Weights,
}

impl WeightReport {
    /// Under the names of replica `k`, where it is that one's.
    pub(super) fn of_replica(&self, k: usize) -> Option<Self> {
        let own = format!("#{k}");
        let (source, target) = self.projection.split_once(" -> ")?;
        let projection = format!("{} -> {}", source.strip_suffix(&own)?, target.strip_suffix(&own)?);
        let named = |of: &Weights| Weights { projection: projection.clone(), ..of.clone() };
        Some(Self { before: named(&self.before), after: named(&self.after), projection })
    }
}

/// One population of a [`Report`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PopulationReport {
    /// Its name.
    pub name: String,
    /// Its cells.
    pub size: u32,
    /// Mean rate.
    pub rate_hz: f64,
    /// Published.
    pub reference_rate_hz: Option<f64>,
    /// Mean coefficient of variation of interspike intervals, of cells with at least 6 spikes.
    pub cv: Option<f64>,
    /// Published.
    pub reference_cv: Option<f64>,
    /// Mean pairwise correlation of counts in 2 ms, of the first 250 cells.
    pub correlation: Option<f64>,
    /// Published.
    pub reference_correlation: Option<f64>,
}
