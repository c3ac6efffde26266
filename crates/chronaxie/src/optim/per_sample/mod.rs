//! `ghost_norms`: norms of the gradients of single samples, without the gradients (README.md of this folder).

mod cpu;
mod cuda;
mod op;
pub mod reference;
pub mod spec;
#[cfg(test)]
mod tests;

pub use op::GhostNormsOp;
pub use spec::{GhostNorms, Way};
