//! Training: heads, losses, optimizer steps and the loop.

pub mod adamw;
pub mod head;

#[cfg(test)]
mod tests;
