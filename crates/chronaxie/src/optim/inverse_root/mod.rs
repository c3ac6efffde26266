//! Inverse roots of symmetric matrices, `(A + eps I)^(-q/p)`, a batch at a time (README.md of this folder).

mod cpu;
mod cuda;
mod op;
pub mod reference;
pub mod spec;
#[cfg(test)]
mod tests;

pub(crate) use cpu::{floats, one};
pub(crate) use cuda::{Beside, CudaPlan, NEWTON, NEWTON_ENDS, NEWTON_PRODUCTS};
pub use op::InverseRootOp;
pub(crate) use spec::RECORD;
pub use spec::{InverseRoot, Method, Status};
