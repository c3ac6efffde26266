//! Diagonal state-space models by scans over time. The entry here is the plain one, [`LinearScan`]: gates and inputs
//! are given, and states are wanted.
//!
//! ```
//! use chronaxie::layers::ssm::LinearScan;
//! use chronaxie::op::{Args, Pass, Plan, PlanOptions, Problem};
//! use chronaxie::{Device, View, ViewMut, cuda::StreamRef};
//!
//! let (a, x) = ([0.5f32, 0.5, 0.5], [1f32, 1., 1.]);
//! let (mut h, mut h_last) = ([0f32; 3], [0f32; 1]);
//! let plan = LinearScan::new(1, 1, 3)?.plan(&Device::Cpu, &PlanOptions::default())?;
//! let inputs = [View::from_slice(&a, [1, 1, 3])?, View::from_slice(&x, [1, 1, 3])?];
//! let mut outputs = [ViewMut::from_slice(&mut h, [1, 1, 3])?, ViewMut::from_slice(&mut h_last, [1, 1])?];
//! let scratch = ViewMut::from_slice::<u8>(&mut [], [0])?;
//! let mut args = Args { inputs: &inputs, outputs: &mut outputs, scratch, stream: StreamRef::LEGACY };
//! plan.run(Pass::Forward, &mut args)?;
//! assert_eq!((h, h_last), ([1.0, 1.5, 1.75], [1.75]));
//! # Ok::<(), chronaxie::Error>(())
//! ```

pub mod adaptive;
pub mod complex;
pub mod gates;
pub mod packing;
pub mod phase;
pub mod providers;
pub mod reference;
pub mod selective;
pub mod spec;
pub mod unitary;

mod cpu;
mod cuda;
mod entry;
mod gate;
mod lanes;
mod law;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use adaptive::{AdaptiveScan, AdaptiveThetaOp};
pub use entry::{LinearScanComplexOp, LinearScanOp};
pub use gates::{SsmGates, SsmGatesOp};
pub use packing::Packing;
pub use selective::{
    Discretisation, SelectiveScan, SelectiveScanOp, SelectiveStateUpdate, SelectiveStateUpdateOp, Weights,
};
pub use spec::{Gates, LinearScan};
pub use unitary::{AdaptiveUnitary, AdaptiveUnitaryOp};
