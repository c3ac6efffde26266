//! `dense`: one linear map at every step of a sequence, between layouts that recurrences want.
//!
//! What goes into a scan, or into a matrix memory, is a linear map of what a layer reads; this is that map, with products
//! and sums that stay in f32 (an error of an angle adds up along time), and its gradients.

pub mod reference;
pub mod spec;

mod cpu;
mod cuda;
mod entry;
#[cfg(test)]
mod tests;

pub use entry::DenseOp;
pub use spec::{Channels, Dense};
