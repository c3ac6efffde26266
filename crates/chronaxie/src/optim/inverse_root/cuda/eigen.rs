//! What is compiled of eigen.cu, and what it shares with solver.cu.

use crate::cuda::{KernelSource, Specialisation};
use crate::kernels::{Header, MEET, SUMS};
use crate::optim::jacobi::{CLEAR, EIGENBASIS, JACOBI};

/// What kernels that make roots of eigenvectors include.
pub(super) const HEADERS: &[Header] =
    &[MEET, SUMS, JACOBI, EIGENBASIS, ("eigen_ends.cuh", include_str!("eigen_ends.cuh"))];

pub(super) fn specialisation() -> Specialisation {
    let source = KernelSource::embedded("optim/inverse_root/cuda/eigen.cu", include_str!("eigen.cu"));
    let mut spec = Specialisation::new(source, &[CLEAR, "eigen_roots"]);
    spec.headers = HEADERS;
    spec
}
