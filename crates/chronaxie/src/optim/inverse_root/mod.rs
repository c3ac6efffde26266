//! Inverse roots of symmetric matrices, `(A + eps I)^(-q/p)`, a batch at a time (README.md of this folder).

mod cpu;
mod cuda;
mod op;
pub mod reference;
pub mod spec;
#[cfg(test)]
mod tests;

pub use op::InverseRootOp;
pub use spec::{InverseRoot, Method, Status};
