//! Eigenvalues and eigenvectors of symmetric matrices, a batch at a time (README.md of this folder).

mod cpu;
mod cuda;
mod op;

pub use op::{Eigh, EighOp};
