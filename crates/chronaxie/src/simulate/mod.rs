//! Simulation runs: from a configuration to a folder with spikes, statistics, pictures and checkpoints; and sessions, which a
//! program steers.

mod analyze;
#[cfg(test)]
mod analyze_tests;
mod capacity;
mod changes;
mod gpus;
mod held;
mod kept;
mod partition;
mod parts;
mod pictures;
mod profile;
mod replicas;
#[cfg(test)]
mod replicas_tests;
mod run;
mod saver;
mod session;
#[cfg(test)]
mod session_tests;
mod steer;
#[cfg(test)]
mod tests;
mod told;

pub use crate::bench::StepPart;
pub use crate::spiking::life::Lives;
pub use analyze::{AnalysisReport, AnalyzeOptions, PopulationAnalysis, analyze};
pub use capacity::{CapacityOptions, CapacityReport, PlannedRun, capacity};
pub use held::{HeldFacts, HeldPart};
pub use partition::{MethodReport, PartitionOptions, PartitionReport, partition};
pub use parts::{PartsOptions, RATE_HZ, join};
pub use profile::{NetworkReport, is_network, profile, profile_case, refuse_case};
pub use replicas::{MOST_REPLICAS, described, grid, seeds};
pub use run::{RunOptions, resolved, run};
pub use session::{Facts, PopulationFacts, Session, Trace};
pub use steer::checkpoint;
pub use told::{PopulationReport, ReplicaReport, Report, WeightReport};
