//! Launches of resident.cu: small matrices by Newton's method, each of which one block keeps in its multiprocessor's shared memory.

use super::{STATIC, THREADS, by_newton};
use crate::cuda::{Archs, Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation, StreamRef};
use crate::op::LaunchReport;
use crate::optim::inverse_root::spec::InverseRoot;
use crate::{DeviceProps, Result, kernels};
use std::sync::Arc;

/// The largest n, and that of the kernel for small ones, two blocks of which share a multiprocessor.
const MOST: usize = 128;
const SMALL: usize = 64;

/// Bytes of shared memory: three matrices as two halves of 16 bits an element.
const fn shared(n: usize) -> u32 {
    let side = if n <= SMALL { SMALL } else { MOST };
    (3 * 2 * 2 * side * side) as u32
}

pub(super) fn specialisation() -> Specialisation {
    let source = KernelSource::embedded("optim/inverse_root/cuda/resident.cu", include_str!("resident.cu"));
    let mut spec = Specialisation::new(source, &["resident_roots", "resident_roots64"]);
    spec.headers = &[
        kernels::BARRIERS,
        kernels::MEET,
        kernels::MMA,
        kernels::WGMMA,
        super::NEWTON_PRODUCTS,
        super::NEWTON_ENDS,
        super::NEWTON,
    ];
    spec.archs = Archs::AtLeast(90);
    spec
}

/// How a batch is spread over a device: a function of the problem and the device alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocks {
    /// One a multiprocessor, or two of small ones, and no more than there are matrices.
    pub blocks: usize,
}

/// Whether resident.cu takes this problem on this device, or why not.
pub(super) fn takes(p: &InverseRoot, props: &DeviceProps) -> std::result::Result<Blocks, String> {
    let (major, minor) = props.compute_capability;
    if major < 9 {
        return Err(format!("needs compute capability 9.0, not {major}.{minor}"));
    }
    if !by_newton(p) || p.denominator < 2 {
        return Err("takes exponents -1/p, p of at least 2, and method newton".to_owned());
    }
    if !(1..=i32::MAX as usize).contains(&p.count) || !(1..=MOST).contains(&p.order) {
        return Err(format!("takes n = 1 to {MOST}, 1 to {} at a time, not {} of n = {}", i32::MAX, p.count, p.order));
    }
    let (needs, room) = (shared(p.order) + STATIC, props.shared_per_block_optin);
    if needs > room {
        return Err(format!("needs {needs} bytes of shared memory, of which there are {room}"));
    }
    let each = if p.order <= SMALL { 2 } else { 1 };
    Ok(Blocks { blocks: p.count.min(each * props.sm_count as usize) })
}

/// The kernel of resident.cu.
pub(super) struct Resident {
    blocks: usize,
    shared: u32,
    kernel: Kernel,
}

impl Resident {
    pub(super) fn new(n: usize, of: Blocks, device: &Arc<CudaDevice>) -> Result<Self> {
        let entry = if n <= SMALL { "resident_roots64" } else { "resident_roots" };
        let (kernel, shared) = (device.kernel(&specialisation(), entry)?, shared(n));
        kernel.set_max_dynamic_shared(shared)?;
        Ok(Self { blocks: of.blocks, shared, kernel })
    }
    pub(super) fn config(&self) -> String {
        format!(
            "inverse_root resident: newton, {} blocks of {THREADS} threads, a matrix each in shared memory",
            self.blocks
        )
    }
    const fn grid(&self) -> (u32, u32, u32) {
        (self.blocks as u32, 1, 1)
    }
    pub(super) fn report(&self) -> Result<LaunchReport> {
        LaunchReport::new(&self.kernel, 1, self.grid(), (THREADS, 1, 1), self.shared)
    }
    /// Puts the roots on `stream`: the addresses of a, the roots and their records. The `idle` counters are cleared, too.
    pub(super) fn launch(
        &self,
        p: &InverseRoot,
        tensors: [u64; 3],
        idle: [Arg<'_>; 2],
        stream: StreamRef,
    ) -> Result<()> {
        let [a, root, record] = tensors.map(Arg::U64);
        let [counters, count] = idle;
        let list = [
            a,
            root,
            record,
            counters,
            count,
            Arg::I32(p.count as i32),
            Arg::I32(p.order as i32),
            Arg::I32(p.denominator as i32),
            Arg::F64(p.absolute),
            Arg::F64(p.relative),
        ];
        let config = LaunchConfig::new(self.grid(), (THREADS, 1, 1)).shared(self.shared);
        // SAFETY: the arguments are those of the kernel's signature in resident.cu; the views were checked against the signature.
        unsafe { self.kernel.launch(stream, &config, &list) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::inverse_root::Method;

    /// One block a matrix, and as many as there are multiprocessors, or twice that of small ones, where shared memory holds three
    /// matrices: on sm_120 small ones alone.
    #[test]
    fn a_block_keeps_a_matrix_where_it_fits() {
        let blocks = |count, n, p, props| takes(&InverseRoot::new(count, n, p), props).map(|b| b.blocks);
        assert_eq!(blocks(64, 128, 4, &DeviceProps::SM_90), Ok(64));
        assert_eq!(blocks(1000, 65, 2, &DeviceProps::SM_90), Ok(132));
        assert_eq!(blocks(1000, 64, 2, &DeviceProps::SM_90), Ok(264));
        for props in &DeviceProps::FIXTURES {
            let (major, minor) = props.compute_capability;
            let (small, large) = (blocks(2, 64, 4, props), blocks(2, 100, 4, props));
            match major {
                ..9 => {
                    let why = Err(format!("needs compute capability 9.0, not {major}.{minor}"));
                    assert!(small == why && large == why, "{small:?} {large:?}");
                }
                9 | 10 => assert!(small == Ok(2) && large == Ok(2), "{major}.{minor}: {small:?} {large:?}"),
                _ => {
                    assert_eq!(small, Ok(2), "{major}.{minor}");
                    let why = large.unwrap_err();
                    assert!(why.starts_with("needs 202752 bytes of shared memory, of which there are 10"), "{why}");
                }
            }
        }
    }

    #[test]
    fn what_no_block_keeps_is_said() {
        let why = |p: InverseRoot| takes(&p, &DeviceProps::SM_90).unwrap_err();
        let p = InverseRoot::new(2, 64, 4);
        assert_eq!(why(p.method(Method::Eigen)), "takes exponents -1/p, p of at least 2, and method newton");
        assert_eq!(why(InverseRoot::new(2, 64, 1)), "takes exponents -1/p, p of at least 2, and method newton");
        assert_eq!(why(InverseRoot::new(2, 129, 4)), "takes n = 1 to 128, 1 to 2147483647 at a time, not 2 of n = 129");
        assert_eq!(why(InverseRoot::new(0, 64, 4)), "takes n = 1 to 128, 1 to 2147483647 at a time, not 0 of n = 64");
    }
}
