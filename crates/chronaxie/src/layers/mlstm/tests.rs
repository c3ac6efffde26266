//! What is special to the mLSTM.

mod cpu;
mod gpu;
mod law;
mod problems;
