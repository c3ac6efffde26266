//! Second-order optimization: the matrix functions that preconditioners are made of, and what is built on them.

pub mod blocks;
pub mod inverse_root;
mod jacobi;
pub mod kfac;
mod matrix;
pub mod muon;
mod onblock;
mod ongpu;
pub mod per_sample;
mod plates;
mod sample;
pub mod shampoo;
pub mod soap;
pub mod stepper;
#[cfg(test)]
mod testing;
mod tile;
