//! Liquid time-constant networks: the fused semi-implicit Euler step of Hasani et al. (AAAI 2021).

pub mod connectivity;
pub mod cpu;
pub mod cuda;
pub mod entry;
mod half;
pub mod init;
mod per_sample;
pub mod reference;
pub mod spec;
pub mod wirings;

#[cfg(test)]
mod tests;

pub use connectivity::{Connectivity, Synapses, prepare};
pub use spec::{Constraint, Kept, Ltc, Mapping, PerSample, Save, Wants};
