//! Training: heads, losses, optimizer steps and the loop.

pub mod adamw;
mod bank;
mod batches;
pub mod head;
mod layer;
mod network;
mod settings;
mod staging;

pub use layer::TrainableLayer;

#[cfg(test)]
mod tests;
