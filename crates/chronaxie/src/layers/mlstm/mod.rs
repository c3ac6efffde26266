//! The mLSTM: a matrix memory with scalar gates, over whole sequences and one token at a time.

pub mod entry;
pub mod reference;
pub mod spec;

mod cpu;
mod cuda;
mod sample;

#[cfg(test)]
mod tests;

pub use spec::{Gate, Gates, Mlstm, Wants};
