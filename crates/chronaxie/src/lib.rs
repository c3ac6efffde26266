//! Neural dynamics on CUDA and the CPU.

pub use chronaxie_runtime::*;

pub mod bench;
pub mod call;
pub mod check;
pub mod config;
pub mod data;
#[cfg(any(feature = "report", feature = "spiking"))]
mod files;
pub mod kernels;
#[cfg(feature = "layers")]
pub mod layers;
#[cfg(feature = "spiking")]
mod memory;
pub mod op;
#[cfg(feature = "optim")]
pub mod optim;
pub mod profile;
pub mod progress;
pub mod real;
pub mod registry;
#[cfg(feature = "report")]
pub mod report;
pub mod rng;
#[cfg(any(feature = "layers", feature = "optim", feature = "train"))]
mod shared;
pub mod simd_math;
#[cfg(all(feature = "spiking", feature = "report"))]
pub mod simulate;
#[cfg(feature = "spiking")]
pub mod spiking;
#[cfg(feature = "train")]
pub mod train;
