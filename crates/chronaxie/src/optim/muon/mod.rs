//! Muon's step over the flat vector of all parameters (README.md of this folder).

mod cpu;
mod cuda;
mod op;
pub mod reference;
pub mod spec;
#[cfg(test)]
mod tests;

pub use op::MuonOp;
pub use spec::Muon;
