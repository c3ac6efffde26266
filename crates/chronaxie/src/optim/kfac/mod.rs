//! KFAC's step over the flat vector of all parameters, and the factors that it takes (README.md of this folder).

mod cpu;
mod cuda;
pub mod factors;
mod op;
mod probe;
#[cfg(test)]
mod python;
pub mod reference;
pub mod spec;
#[cfg(test)]
mod tests;

pub use factors::{Factors, KfacFactorsOp, Sharing, Terms};
pub use op::KfacOp;
pub use spec::{Damping, Kfac, Map};
