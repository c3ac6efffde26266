//! `adaptive_unitary`: states that turn by angles which a linear map of the inputs sets: `adaptive_theta` behind `dense`.

pub mod reference;
pub mod spec;

mod cuda;
mod entry;
mod parts;
mod plan;
#[cfg(test)]
mod tests;

pub use entry::AdaptiveUnitaryOp;
pub use spec::AdaptiveUnitary;
