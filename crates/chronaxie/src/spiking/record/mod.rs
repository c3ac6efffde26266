//! What goes in and out as tables: edge lists, spikes, their hash.

pub mod columns;
pub mod spikes;

pub use spikes::{SpikeHash, SpikeLog};
