//! `kfac_factors`: second moments of what a linear map reads and of the gradients of what it gives (README.md of the folder above).

mod cpu;
mod cuda;
mod op;
pub mod reference;
pub mod spec;
#[cfg(test)]
mod tests;

pub use op::KfacFactorsOp;
pub use spec::{Factors, Sharing, Terms};
