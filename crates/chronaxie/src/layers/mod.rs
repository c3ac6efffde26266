//! Recurrent layers: one recurrence, one folder, the same file names in each.

pub mod cfc;
pub mod dense;
pub mod ltc;
pub mod mlstm;
pub mod ssm;

mod halves;
mod memory;
mod wants;
