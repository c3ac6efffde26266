//! The mLSTM: a matrix memory with scalar gates, over whole sequences and one token at a time.

pub mod reference;
pub mod spec;

#[cfg(test)]
mod tests;

pub use spec::{Gate, Gates, Mlstm, Wants};
