//! Closed-form continuous-time networks: the solver-free cell of Hasani et al. (Nature Machine Intelligence 2022).

pub mod cpu;
pub mod cuda;
pub mod entry;
pub mod init;
mod net;
pub mod reference;
pub mod spec;
pub mod wired;

#[cfg(test)]
mod tests;

pub use spec::{Activation, Cell, Cfc, Mode, Wants};
