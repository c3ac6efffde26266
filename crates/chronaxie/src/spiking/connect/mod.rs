//! From a [`Plan`] to synapses in memory.

pub mod rows;
pub mod rules;
pub mod shard;

pub use rows::Rows;
pub use shard::{Part, Shard, shards_for};
