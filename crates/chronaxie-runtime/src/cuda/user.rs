//! The path is open to users: their own CUDA C++ on the library's tensors and streams.

use super::compile::{Archs, Constant, Program};
use super::device::CudaDevice;
use super::module::Kernel;
use crate::error::Result;
use std::sync::Arc;

/// A user's own CUDA C++ source, to be compiled for a device.
///
/// ```no_run
/// use chronaxie_runtime::cuda::{Arg, CudaDevice, LaunchConfig, UserKernel, download, upload};
///
/// let device = CudaDevice::open(0)?;
/// let source = r#"
///     extern "C" __global__ void scale(float* x, float a, int n) {  // x: [n]
///         int i = blockIdx.x * blockDim.x + threadIdx.x;
///         if (i < n) x[i] *= a;
///     }"#;
/// let kernel = UserKernel::new("scale.cu", source).compile(&device, "scale")?;
/// let mut x = upload(&device, &[1f32, 2.0, 3.0], [3])?;
/// let args = [Arg::U64(x.address()), Arg::F32(2.0), Arg::I32(3)];
/// // SAFETY: x holds the three floats that the kernel reads and writes, and nobody else uses them.
/// unsafe { kernel.launch(device.default_stream(), &LaunchConfig::linear(3, 128), &args) }?;
/// assert_eq!(download::<f32>(&x.view(chronaxie_runtime::Dtype::F32, [3])?)?, [2.0, 4.0, 6.0]);
/// # Ok::<(), chronaxie_runtime::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct UserKernel {
    name: String,
    source: String,
    headers: Vec<(String, String)>,
    constants: Vec<(&'static str, Constant)>,
    fmad: bool,
}

impl UserKernel {
    /// A source; `name` is what the compiler's messages call it.
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Self {
        Self { name: name.into(), source: source.into(), headers: Vec::new(), constants: Vec::new(), fmad: true }
    }
    /// Lets the source `#include "name"`.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.headers.push((name.into(), text.into()));
        self
    }
    /// Declares a constant before the source.
    #[must_use]
    pub fn constant(mut self, name: &'static str, value: impl Into<Constant>) -> Self {
        self.constants.push((name, value.into()));
        self
    }
    /// Whether multiplications and additions may be fused (the default).
    #[must_use]
    pub fn fmad(mut self, fmad: bool) -> Self {
        self.fmad = fmad;
        self
    }
    /// Compiles it for `device`, or takes it from the cache, and gives kernel `entry`, which the source must declare as
    /// `extern "C" __global__ void`.
    ///
    /// # Errors
    /// As [`CudaDevice::kernel`]; a wrong source gives [`crate::ErrorKind::Compile`] with the log.
    pub fn compile(&self, device: &Arc<CudaDevice>, entry: &str) -> Result<Kernel> {
        device.kernel_of(&self.program(&[]), entry)
    }
    pub(super) fn program<'a>(&'a self, entries: &'a [&'a str]) -> Program<'a> {
        Program {
            name: &self.name,
            text: &self.source,
            headers: self.headers.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect(),
            constants: &self.constants,
            fmad: self.fmad,
            archs: Archs::All,
            entries,
        }
    }
}

impl CudaDevice {
    /// Kernel `entry` of a user's own CUDA C++ `source`: the short form of [`UserKernel`].
    ///
    /// # Errors
    /// As [`UserKernel::compile`].
    pub fn compile_user(self: &Arc<Self>, source: &str, entry: &str) -> Result<Kernel> {
        UserKernel::new("user.cu", source).compile(self, entry)
    }
}
