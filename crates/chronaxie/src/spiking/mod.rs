//! Spiking networks: a description, synapses from it, and engines that run it with the same spikes everywhere.
//!
//! [`network`] describes, [`plan`] turns the description into whole numbers, [`connect`] builds the synapses, [`models`]
//! holds the cells' equations, [`plasticity`] those of synapses, [`simulate`] runs them; [`partition`] shares a network out,
//! [`capacity`] says how many GPUs it wants, and [`life`] lets cells die and be born.

pub mod analysis;
pub mod bench;
pub mod capacity;
pub mod connect;
mod device;
pub mod draws;
mod drives;
pub mod life;
pub mod math;
pub mod metrics;
pub mod models;
pub mod network;
pub mod partition;
pub mod plan;
pub mod plasticity;
pub mod record;
pub mod simulate;

pub use life::{Life, Lives, Living};
pub use network::{
    Delay, Distribution, Drive, DriveKind, Lifecycle, Network, Outside, Population, Projection, Rule, Shape,
};
pub use plan::Plan;
pub use simulate::{Engine, Spike};
