//! KFAC's step over the flat vector of all parameters, and the factors that it takes (README.md of this folder).

mod cpu;
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

/// Why there is no plan on a GPU.
fn on_a_gpu(entry: &str) -> crate::Error {
    crate::Error::unavailable(format!(
        "{entry}: there is no CUDA kernel of it yet; KFAC runs on the CPU (--backend cpu), and in Python chronaxie.optim.KFAC on a GPU"
    ))
}
