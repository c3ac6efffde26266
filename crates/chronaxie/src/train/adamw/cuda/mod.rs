//! Launches of the optimizer step: two kernels, nothing to compile per size.

#![allow(unsafe_code)]

use super::spec::AdamW;
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::{Dtype, Layout, Place, RegionId, Result};
use std::sync::Arc;

/// Threads a block, as `kThreads`.
const THREADS: u32 = 256;
/// Blocks of the update a multiprocessor: enough loads in flight to bind memory, few enough that folding the partials
/// stays small.
const BLOCKS_PER_SM: usize = 8;

pub(super) fn specialisations() -> Vec<Specialisation> {
    let source = KernelSource::embedded("train/adamw/cuda/adamw.cu", include_str!("adamw.cu"));
    vec![Specialisation::new(source, &["squares", "update"])]
}

pub(super) struct CudaPlan {
    problem: AdamW,
    device: Arc<CudaDevice>,
    squares: Kernel,
    update: Kernel,
    signature: Signature,
    layout: Layout,
    partials: RegionId,
    blocks: u32,
}

impl CudaPlan {
    pub(super) fn new(problem: AdamW, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let spec = &specialisations()[0];
        let mut layout = Layout::new(options.scratch_gap);
        let partials = layout.push("partials", Dtype::F64, problem.runs())?;
        let most = device.props().sm_count as usize * BLOCKS_PER_SM;
        Ok(Self {
            problem,
            device: device.clone(),
            squares: device.kernel(spec, "squares")?,
            update: device.kernel(spec, "update")?,
            signature: problem.signature_of(Pass::Step)?,
            layout,
            partials,
            // The step is counted and the norm written even where N is 0.
            blocks: problem.elements.div_ceil(THREADS as usize).clamp(1, most.max(1)) as u32,
        })
    }
    fn grids(&self) -> [(&'static str, &Kernel, u32); 2] {
        [("squares", &self.squares, self.problem.runs().max(1) as u32), ("update", &self.update, self.blocks)]
    }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        "adamw"
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Step).then_some(&self.signature)
    }
    fn config(&self) -> String {
        format!(
            "adamw simt: {} runs of {} elements; {} blocks of {THREADS} threads",
            self.problem.runs(),
            self.problem.run(),
            self.blocks
        )
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = self.problem;
        let input = |i: usize| Arg::U64(args.inputs[i].address());
        let output = |i: usize| Arg::U64(args.outputs[i].address());
        let (grad, decay, rate) = (input(0), input(1), input(2));
        let (parameter, first, second, step, norm) = (output(0), output(1), output(2), output(3), output(4));
        let partials = Arg::U64(self.layout.address(args.scratch.address(), self.partials));
        let (n, run, runs) = (Arg::I64(p.elements as i64), Arg::I64(p.run() as i64), Arg::I32(p.runs() as i32));
        let (ln_beta1, ln_beta2) = (p.beta1.ln(), p.beta2.ln());
        let constants = [p.beta1, p.beta2, ln_beta1, ln_beta2, p.epsilon, p.weight_decay, p.clip].map(Arg::F64);
        let [beta1, beta2, ln_beta1, ln_beta2, epsilon, weight_decay, clip] = constants;
        let [(_, _, runs_grid), (_, _, update_grid)] = self.grids();
        let config = |blocks| LaunchConfig::new((blocks, 1, 1), (THREADS, 1, 1));
        // SAFETY: the arguments are those of the kernel's signature in adamw.cu; the views were checked against the
        // signature and the scratch holds the layout.
        unsafe { self.squares.launch(args.stream, &config(runs_grid), &[grad, partials, step, n, run])? };
        let list = [
            grad,
            decay,
            rate,
            parameter,
            first,
            second,
            step,
            norm,
            partials,
            n,
            runs,
            beta1,
            beta2,
            ln_beta1,
            ln_beta2,
            epsilon,
            weight_decay,
            clip,
        ];
        // SAFETY: as above.
        unsafe { self.update.launch(args.stream, &config(update_grid), &list) }
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        self.grids()
            .into_iter()
            .map(|(name, kernel, blocks)| {
                Ok(LaunchReport {
                    kernel: format!("train/adamw/cuda/adamw.cu {name}"),
                    launches: 1,
                    grid: (blocks, 1, 1),
                    block: (THREADS, 1, 1),
                    registers: kernel.registers(),
                    local_bytes: kernel.local_bytes(),
                    shared_bytes: kernel.shared_bytes(),
                    blocks_per_sm: kernel.max_active_blocks(THREADS, 0)?,
                })
            })
            .collect()
    }
}
