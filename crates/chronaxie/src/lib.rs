//! Neural dynamics on CUDA and the CPU.

pub use chronaxie_runtime::*;

pub mod data;
pub mod op;
pub mod registry;
pub mod rng;
