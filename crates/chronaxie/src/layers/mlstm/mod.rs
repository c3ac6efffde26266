//! The mLSTM: a matrix memory with scalar gates, over whole sequences and one token at a time.

pub mod entry;
pub mod ladder;
pub mod reference;
pub mod spec;
pub mod step;

mod cpu;
mod cuda;
mod sample;

#[cfg(test)]
mod tests;

pub use ladder::{Ladder, Rung};
pub use spec::{Gate, Gates, Mlstm, Wants};
pub use step::{HeadNorm, MlstmStep};
