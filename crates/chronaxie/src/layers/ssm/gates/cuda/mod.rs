//! `ssm_gates` on CUDA devices. Kind and sizes are arguments, so one compilation serves all.

#![allow(unsafe_code)]

use super::kind::Kind;
use super::spec::{NAME, SsmGates};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature};
use crate::{Layout, Place, Result};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

/// Threads a block, as in the kernels.
const THREADS: u32 = 256;
/// Blocks beyond which a thread, or a block, has several elements or channels.
const MOST_BLOCKS: usize = 1 << 20;
/// Sequences, and parameters of a channel, that the kernels take.
const MOST: usize = 3;

const SOURCE: KernelSource = KernelSource::embedded("layers/ssm/gates/cuda/gates.cu", include_str!("gates.cu"));
const ENTRIES: [&str; 2] = ["ssm_gates_forward", "ssm_gates_backward"];

/// The one form in which the kernels are compiled.
pub(super) fn specialisation() -> Specialisation {
    Specialisation::new(SOURCE, &ENTRIES)
}

/// `ssm_gates` on a CUDA device.
pub(super) struct CudaPlan {
    problem: SsmGates,
    device: Arc<CudaDevice>,
    signatures: [Signature; 2],
    kernels: Vec<Kernel>,
    none: Layout,
}

impl CudaPlan {
    pub(super) fn new(problem: SsmGates, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        options.only("simt", NAME, "a CUDA device")?;
        let spec = specialisation();
        Ok(Self {
            problem,
            device: device.clone(),
            signatures: [problem.signature(Pass::Forward)?, problem.signature(Pass::Backward)?],
            kernels: ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?,
            none: Layout::new(options.scratch_gap),
        })
    }

    /// The kernel of a pass and its blocks; none where there is nothing to do.
    fn kernel(&self, pass: Pass) -> Option<(&Kernel, LaunchConfig)> {
        let p = &self.problem;
        let (kernel, blocks) = match pass {
            Pass::Forward => (0, (p.batch * p.channels * p.steps).div_ceil(THREADS as usize)),
            _ => (1, p.channels),
        };
        let config = LaunchConfig::new((blocks.min(MOST_BLOCKS) as u32, 1, 1), (THREADS, 1, 1));
        (blocks > 0).then_some((&self.kernels[kernel], config))
    }
}

/// The kernels' number of a kind.
fn number(kind: Kind) -> i32 {
    Kind::ALL.iter().position(|&k| k == kind).unwrap_or(Kind::ALL.len()) as i32
}

/// `MOST` addresses of the tensors of `from`, of which there are `count`; 0 where there is none.
fn addresses<'a>(from: &mut impl Iterator<Item = u64>, count: usize) -> [Arg<'a>; MOST] {
    std::array::from_fn(|i| Arg::U64(if i < count { from.next().unwrap_or(0) } else { 0 }))
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        match pass {
            Pass::Forward => Some(&self.signatures[0]),
            Pass::Backward => Some(&self.signatures[1]),
            _ => None,
        }
    }
    fn config(&self) -> String {
        format!("{NAME} {} simt: {THREADS} threads", self.problem.kind.form().name)
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, _pass: Pass) -> &Layout {
        &self.none
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let form = p.kind.form();
        let Some((kernel, config)) = self.kernel(pass) else { return Ok(()) };
        let (sequences, parameters, outputs) = (form.inputs.len(), form.parameters.len(), form.outputs.len());
        let mut inputs = args.inputs.iter().map(|v| v.address());
        let mut written = args.outputs.iter().map(|v| v.address());
        let mut list = Vec::with_capacity(18);
        list.extend(addresses(&mut inputs, sequences));
        list.extend(addresses(&mut inputs, parameters));
        let sizes = match pass {
            Pass::Forward => {
                list.extend(&addresses(&mut written, outputs)[..2]);
                [p.batch * p.channels * p.steps, p.channels, p.steps]
            }
            _ => {
                list.extend(&addresses(&mut inputs, outputs)[..2]);
                list.extend(addresses(&mut written, sequences));
                list.extend(addresses(&mut written, parameters));
                [p.batch, p.channels, p.steps]
            }
        };
        list.extend(sizes.map(|n| Arg::I64(n as i64)));
        list.push(Arg::I32(number(p.kind)));
        // SAFETY: the views were checked against the signature, whose order is that of the kernels' parameters, of which an
        // absent one is 0 and not read; the kernels keep to the sizes.
        unsafe { kernel.launch(args.stream, &config, &list) }
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let launched = self.kernel(pass);
        launched.into_iter().map(|(k, c)| LaunchReport::new(k, 1, c.grid, c.block, c.shared_bytes)).collect()
    }
}
