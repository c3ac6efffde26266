//! `adaptive_theta`: states that turn by angles which the inputs set, and may decay.

pub mod reference;
pub mod spec;

mod cpu;
mod cuda;
mod entry;
#[cfg(test)]
mod tests;

pub use entry::AdaptiveThetaOp;
pub use spec::AdaptiveScan;
