//! Simulation runs: from a configuration to a folder with spikes, statistics, pictures and checkpoints.

mod pictures;
mod run;

pub use run::{PopulationReport, Report, RunOptions, resolved, run};
