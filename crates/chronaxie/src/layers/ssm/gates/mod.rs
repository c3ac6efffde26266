//! `ssm_gates`: what providers make of the numbers that a layer computes, before a scan takes it: gates and inputs at every
//! step, and rates and weights that have no time.
//!
//! The maps are those of [`providers`](super::providers), here on tensors, on both backends, with the sums over batch and
//! time that the gradients of a channel's parameters are.

pub mod kind;
pub mod reference;
pub mod spec;

mod cpu;
mod cuda;
mod entry;
#[cfg(test)]
mod tests;

pub use entry::SsmGatesOp;
pub use kind::Kind;
pub use spec::SsmGates;
