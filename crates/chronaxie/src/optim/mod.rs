//! Second-order optimization: the matrix functions that preconditioners are made of, and what is built on them.

pub mod blocks;
pub mod eigh;
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
mod solver;
pub mod stepper;
#[cfg(test)]
mod testing;
mod tile;
