//! The kernel of its own on CUDA devices.

#![allow(unsafe_code)]

use crate::Result;
use crate::cuda::StreamRef;
use crate::op::LaunchReport;
use chronaxie_runtime::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

const SOURCE: KernelSource = KernelSource::embedded("layers/ssm/unitary/cuda/unitary.cu", include_str!("unitary.cu"));
const ENTRIES: [&str; 1] = ["unitary_put"];
/// Threads a block, as in the kernel.
const THREADS: u32 = 256;

/// The one form in which the kernel is compiled.
pub(super) fn specialisation() -> Specialisation {
    Specialisation::new(SOURCE, &ENTRIES)
}

/// Copies and sums of rows of f32.
pub(super) struct Adder {
    kernel: Kernel,
}

impl Adder {
    pub(super) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        Ok(Self { kernel: device.kernel(&specialisation(), ENTRIES[0])? })
    }
    /// `to = from` or `to += from`; sizes are rows, elements of a row, and from a row to the next in each.
    ///
    /// # Safety
    /// Both must be valid on `stream`, and `to` must not be read or written by anyone else.
    pub(super) unsafe fn put(
        &self,
        [from, to]: [u64; 2],
        sizes: [usize; 4],
        add: bool,
        stream: StreamRef,
    ) -> Result<()> {
        let [rows, length, from_stride, to_stride] = sizes.map(|n| Arg::I64(n as i64));
        let args = [Arg::U64(from), Arg::U64(to), rows, length, from_stride, to_stride, Arg::I32(add.into())];
        // SAFETY: the arguments are those of the kernel's signature; the memory is the caller's.
        unsafe { self.kernel.launch(stream, &LaunchConfig::linear(sizes[0] * sizes[1], THREADS), &args) }
    }
    pub(super) fn report(&self, elements: usize) -> Result<LaunchReport> {
        let c = LaunchConfig::linear(elements, THREADS);
        LaunchReport::new(&self.kernel, 1, c.grid, c.block, 0)
    }
}
