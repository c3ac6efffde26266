//! What goes in and out as tables: edge lists, spikes, their hash, traces.

pub mod columns;
pub mod spikes;
pub mod traces;

pub use spikes::{SpikeHash, SpikeLog};
pub use traces::{Recorder, TraceLog};
