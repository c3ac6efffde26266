//! Launches of inverse roots: one kernel for all sizes and exponents.
#![allow(unsafe_code)]

use super::spec::{InverseRoot, Method};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::{Dtype, Layout, Place, RegionId, Result};
use std::sync::Arc;

/// Threads a block, as `kThreads`.
const THREADS: u32 = 256;
/// Matrices of the workspace of a block.
const MATRICES: usize = 5;

pub(super) fn specialisations() -> Vec<Specialisation> {
    let source = KernelSource::embedded("optim/inverse_root/cuda/inverse_root.cu", include_str!("inverse_root.cu"));
    vec![Specialisation::new(source, &["inverse_root"])]
}

pub(super) struct CudaPlan {
    problem: InverseRoot,
    device: Arc<CudaDevice>,
    kernel: Kernel,
    signature: Signature,
    layout: Layout,
    work: RegionId,
    blocks: u32,
}

impl CudaPlan {
    pub(super) fn new(problem: InverseRoot, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let kernel = device.kernel(&specialisations()[0], "inverse_root")?;
        let resident = device.props().sm_count as usize * kernel.max_active_blocks(THREADS, 0)?.max(1) as usize;
        let blocks = problem.count.min(resident);
        let mut layout = Layout::new(options.scratch_gap);
        // The residual's two vectors: a matrix of one element does not hold them.
        let work = layout.push("work", Dtype::F32, blocks * (MATRICES * problem.order * problem.order + 2))?;
        Ok(Self {
            problem,
            device: device.clone(),
            kernel,
            signature: problem.signature_of(Pass::Forward)?,
            layout,
            work,
            blocks: blocks as u32,
        })
    }
    fn newton(&self) -> bool {
        self.problem.numerator == 1 && self.problem.method != Method::Eigen
    }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        self.problem.entry
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Forward).then_some(&self.signature)
    }
    fn config(&self) -> String {
        let method = if self.newton() { "newton" } else { "eigen" };
        format!("inverse_root simt: {method}, {} blocks of {THREADS} threads, a matrix each", self.blocks)
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        // Matrices of no elements still have records.
        if self.blocks == 0 { Ok(()) } else { self.launch(args) }
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(vec![LaunchReport::new(&self.kernel, 1, (self.blocks, 1, 1), (THREADS, 1, 1), 0)?])
    }
}

impl CudaPlan {
    fn launch(&self, args: &Args<'_, '_>) -> Result<()> {
        let p = self.problem;
        let list = [
            Arg::U64(args.inputs[0].address()),
            Arg::U64(args.outputs[0].address()),
            Arg::U64(args.outputs[1].address()),
            Arg::U64(self.layout.address(args.scratch.address(), self.work)),
            Arg::I64(p.count as i64),
            Arg::I32(p.order as i32),
            Arg::I32(p.numerator as i32),
            Arg::I32(p.denominator as i32),
            Arg::I32(i32::from(self.newton())),
            Arg::F64(p.absolute),
            Arg::F64(p.relative),
        ];
        let config = LaunchConfig::new((self.blocks, 1, 1), (THREADS, 1, 1));
        // SAFETY: the arguments are those of the kernel's signature in inverse_root.cu; the views were checked against the
        // signature and the scratch holds the layout.
        unsafe { self.kernel.launch(args.stream, &config, &list) }
    }
}
