//! CUDA, opened at run time.

use crate::error::{Error, Result};
use std::sync::Arc;

/// An opened CUDA device.
pub struct CudaDevice(());

impl CudaDevice {
    /// Opens device `index` through its primary context.
    pub fn open(_index: usize) -> Result<Arc<Self>> {
        Err(Error::unavailable("not built yet"))
    }
    /// The index.
    pub fn index(&self) -> usize {
        0
    }
    /// The name.
    pub fn name(&self) -> &str {
        ""
    }
    /// Whether kernels can be compiled or come from a pack.
    pub fn require_compiler(&self) -> Result<()> {
        Ok(())
    }
    /// Waits for all work.
    pub fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

/// A CUDA stream that somebody owns; 0 is the legacy default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamRef(pub u64);

/// A kernel source with its constants.
#[derive(Debug, Clone)]
pub struct Specialisation {}
