//! From a plan to synapses in memory.

pub mod changing;
pub mod drawn;
pub mod list;
pub mod rows;
pub mod rules;
pub mod shard;
pub mod subset;

pub use changing::Changing;
pub use drawn::Redraw;
pub use list::{Synapses, synapses};
pub use rows::Rows;
pub use shard::{Part, Shard, shards_for};
pub use subset::{Order, Subset};
