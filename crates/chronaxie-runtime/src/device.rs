//! Devices as plain data and as things to run on.

use crate::cuda::{CaptureGuard, CudaDevice};
use crate::error::{Error, Result};
use crate::tensor::Place;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// What a choice of configuration may depend on: plain data, so that choices are tested without a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProps {
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Shared memory a block may have without asking, bytes.
    pub shared_per_block: u32,
    /// Shared memory a block may opt in to, bytes.
    pub shared_per_block_optin: u32,
    /// Shared memory of a multiprocessor, bytes.
    pub shared_per_sm: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_sm: u32,
    /// Threads a multiprocessor can hold.
    pub threads_per_sm: u32,
    /// L2 cache, bytes.
    pub l2_bytes: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Peak memory bandwidth, bytes a second, from clock and bus width.
    pub memory_bytes_per_s: u64,
    /// Highest clock of the multiprocessors, kHz.
    pub clock_khz: u32,
}

impl DeviceProps {
    #[allow(clippy::too_many_arguments)]
    const fn fixture(
        cc: (u32, u32),
        sm: u32,
        optin_kb: u32,
        sm_kb: u32,
        threads: u32,
        l2_mb: u32,
        [memory_gb, gb]: [u64; 2],
        khz: u32,
    ) -> Self {
        Self {
            compute_capability: cc,
            sm_count: sm,
            shared_per_block: 48 << 10,
            shared_per_block_optin: optin_kb << 10,
            shared_per_sm: sm_kb << 10,
            registers_per_sm: 65536,
            threads_per_sm: threads,
            l2_bytes: l2_mb << 20,
            memory_bytes: memory_gb * 1_000_000_000,
            memory_bytes_per_s: gb * 1_000_000_000,
            clock_khz: khz,
        }
    }
    /// A T4 (Turing).
    pub const SM_75: Self = Self::fixture((7, 5), 40, 64, 64, 1024, 4, [16, 320], 1_590_000);
    /// An A100.
    pub const SM_80: Self = Self::fixture((8, 0), 108, 163, 164, 2048, 40, [40, 1555], 1_410_000);
    /// An RTX 4090 (Ada).
    pub const SM_89: Self = Self::fixture((8, 9), 128, 99, 100, 1536, 72, [24, 1008], 2_520_000);
    /// An H200 (Hopper).
    pub const SM_90: Self = Self::fixture((9, 0), 132, 227, 228, 2048, 60, [150, 4800], 1_980_000);
    /// A B200 (Blackwell).
    pub const SM_100: Self = Self::fixture((10, 0), 148, 227, 228, 2048, 126, [180, 8000], 1_965_000);
    /// An RTX 5090 (Blackwell).
    pub const SM_120: Self = Self::fixture((12, 0), 170, 99, 100, 1536, 96, [32, 1792], 2_407_000);
    /// Every fixture.
    pub const FIXTURES: [Self; 6] = [Self::SM_75, Self::SM_80, Self::SM_89, Self::SM_90, Self::SM_100, Self::SM_120];

    /// The compiler's name for the exact device: `sm_80`, `sm_90a`, `sm_100a`, ...
    ///
    /// The `a` names code that runs on this architecture only, which wgmma and setmaxnreg need.
    pub fn arch(&self) -> String {
        let (major, minor) = self.compute_capability;
        let suffix = if (major, minor) == (9, 0) || (major == 10 && minor == 0) { "a" } else { "" };
        format!("sm_{major}{minor}{suffix}")
    }
}

/// What a user asks to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// CUDA device 0 if this machine can use it, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA device by index.
    Cuda(usize),
}

impl FromStr for Backend {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => s.strip_prefix("cuda:").and_then(|n| n.parse().ok()).map(Self::Cuda).ok_or_else(|| {
                Error::config(format!("backend `{s}` is not one of auto, cpu, cuda, cuda:N (N an index from 0)"))
            }),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(i) => write!(f, "cuda:{i}"),
        }
    }
}

/// Something to run on. Cloning is cheap.
#[derive(Clone)]
pub enum Device {
    /// The CPU, with the library's thread pool.
    Cpu,
    /// A CUDA device.
    Cuda(Arc<CudaDevice>),
}

impl Device {
    /// The device that `backend` asks for, and for [`Backend::Auto`] a sentence that says which was taken and why.
    pub fn open(backend: Backend) -> Result<(Self, Option<String>)> {
        match backend {
            Backend::Cpu => Ok((Self::Cpu, None)),
            Backend::Cuda(i) => Ok((Self::Cuda(CudaDevice::open(i)?), None)),
            Backend::Auto => match CudaDevice::open(0).and_then(|d| d.require_compiler().map(|()| d)) {
                Ok(d) => {
                    let why = format!("backend auto: cuda:0 ({})", d.name());
                    Ok((Self::Cuda(d), Some(why)))
                }
                Err(e) => Ok((Self::Cpu, Some(format!("backend auto: the CPU, because {e}")))),
            },
        }
    }
    /// Where its memory lies.
    pub fn place(&self) -> Place {
        match self {
            Self::Cpu => Place::Cpu,
            Self::Cuda(d) => Place::Cuda(d.index()),
        }
    }
    /// As [`CudaDevice::outside_capture`]; nothing on the CPU.
    pub fn outside_capture(&self) -> Result<Option<CaptureGuard>> {
        match self {
            Self::Cpu => Ok(None),
            Self::Cuda(d) => d.outside_capture().map(Some),
        }
    }
    /// Waits for all work on the device.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Self::Cpu => Ok(()),
            Self::Cuda(d) => d.synchronize(),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.place(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_parse_and_print() {
        for s in ["auto", "cpu", "cuda:3"] {
            assert_eq!(s.parse::<Backend>().unwrap().to_string(), s);
        }
        assert_eq!("cuda".parse::<Backend>().unwrap(), Backend::Cuda(0));
        assert!("gpu".parse::<Backend>().unwrap_err().to_string().contains("`gpu`"));
        assert!("cuda:-1".parse::<Backend>().is_err());
    }

    #[test]
    fn architectures_have_the_compilers_names() {
        let names: Vec<_> = DeviceProps::FIXTURES.iter().map(DeviceProps::arch).collect();
        assert_eq!(names, ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"]);
    }
}
