//! `selective_scan`: states driven by inputs that also set their time step, and read out by a weight a state.

pub mod reference;
pub mod spec;
pub mod step;

mod cpu;
mod cuda;
mod discretise;
mod entry;
#[cfg(test)]
mod tests;

pub use entry::{SelectiveScanOp, SelectiveStateUpdateOp};
pub use spec::{Discretisation, SelectiveScan, Weights};
pub use step::SelectiveStateUpdate;
