//! Second-order optimization: the matrix functions that preconditioners are made of, and what is built on them.

pub mod inverse_root;
mod matrix;
