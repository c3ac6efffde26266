//! The ground floor of chronaxie: devices, views of tensors, memory, streams, run-time compilation with its cache,
//! launches and graphs. It names no model, and one binary serves machines with and without a GPU: the CUDA driver and
//! NVRTC are opened at run time, and their absence is an error value that says what was looked for.

#![allow(unsafe_code)]

pub mod cuda;
pub mod device;
pub mod error;
pub mod host;
pub mod log;
pub mod pool;
pub mod positioned;
pub mod scratch;
pub mod sha256;
pub mod simd;
pub mod tensor;

pub use device::{Backend, Device, DeviceProps};
pub use error::{Error, ErrorKind, Result};
pub use host::HostBuffer;
pub use scratch::{Layout, RegionId};
pub use tensor::{Dtype, Element, MAX_RANK, Place, Shape, View, ViewMut};
