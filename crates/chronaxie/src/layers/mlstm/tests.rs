//! What is special to the mLSTM.

mod cpu;
mod law;
mod problems;
