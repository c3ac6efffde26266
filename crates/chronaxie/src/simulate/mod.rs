//! Simulation runs: from a configuration to a folder with spikes, statistics, pictures and checkpoints.

mod pictures;
mod run;
#[cfg(test)]
mod tests;

pub use run::{PopulationReport, Report, RunOptions, WeightReport, resolved, run};
