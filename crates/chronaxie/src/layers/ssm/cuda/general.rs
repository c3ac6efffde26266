//! Launches of `general.cu`: every scan but the plain one of f32.

use super::super::packing::Packing;
use super::super::spec::LinearScan;
use super::arrays::{array, constants, marks};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature};
use crate::{Dtype, Error, Layout, Place, Result, View};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Header, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

const SOURCE: KernelSource = KernelSource::embedded("layers/ssm/cuda/general.cu", include_str!("general.cu"));
/// What the serial scans include.
pub(in super::super) const HEADERS: &[Header] = &[("number.cuh", include_str!("number.cuh"))];
/// Threads a block.
const THREADS: u32 = 64;

fn entry(pass: Pass) -> &'static str {
    if pass == Pass::Forward { "scan_general_forward" } else { "scan_general_backward" }
}

/// The source of a pass; time descends in memory where the recurrence runs backwards.
fn specialisation(dtype: Dtype, reverse: bool) -> Specialisation {
    let mut spec = Specialisation::new(SOURCE, &[entry(Pass::Forward), entry(Pass::Backward)]);
    spec.headers = HEADERS;
    spec.constants = constants(dtype, dtype == Dtype::C64);
    spec.constants.extend([("kThreads", (THREADS as i32).into()), ("kDescending", reverse.into())]);
    spec
}

/// Every form of the kernels.
pub(super) fn specialisations(complex: bool) -> Vec<Specialisation> {
    let dtypes: &[Dtype] = if complex { &[Dtype::C64] } else { &[Dtype::F32, Dtype::Bf16, Dtype::F16] };
    dtypes.iter().flat_map(|&d| [specialisation(d, false), specialisation(d, true)]).collect()
}

/// A scan of any storage type and packing on a CUDA device.
#[derive(Debug)]
pub(super) struct GeneralPlan {
    problem: LinearScan,
    device: Arc<CudaDevice>,
    signatures: [Signature; 2],
    kernels: [Kernel; 2],
    scratch: Layout,
}

impl GeneralPlan {
    pub(super) fn new(problem: LinearScan, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        if let Some(v) = options.variant.as_deref().filter(|&v| v != "serial") {
            return Err(Error::config(format!(
                "{}: variant `{v}` is not one of serial, the only way for {} and {:?} on CUDA devices",
                problem.name(),
                problem.dtype(),
                problem.packing()
            )));
        }
        let spec = specialisation(problem.dtype(), problem.is_reverse());
        let kernel = |pass| device.kernel(&spec, entry(pass));
        Ok(Self {
            problem,
            device: device.clone(),
            signatures: [problem.signature(Pass::Forward)?, problem.signature(Pass::Backward)?],
            kernels: [kernel(Pass::Forward)?, kernel(Pass::Backward)?],
            scratch: Layout::new(options.scratch_gap),
        })
    }
    fn kernel(&self, pass: Pass) -> (&Kernel, LaunchConfig) {
        let p = &self.problem;
        let rows = p.packing().states(p.batch()) * p.channels();
        (&self.kernels[usize::from(pass == Pass::Backward)], LaunchConfig::linear(rows, THREADS))
    }
}

impl Plan for GeneralPlan {
    fn entry(&self) -> &'static str {
        self.problem.name()
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
        format!("serial threads={THREADS}")
    }
    fn variant(&self) -> &'static str {
        "serial"
    }
    fn scratch(&self, _pass: Pass) -> &Layout {
        &self.scratch
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let (kernel, config) = self.kernel(pass);
        if p.packing().states(p.batch()) * p.channels() == 0 {
            return Ok(());
        }
        let given = usize::from(p.has_initial_state());
        let inputs = args.inputs;
        // Behind a, x (forward) and h0.
        let at = given + if pass == Pass::Forward { 2 } else { 1 };
        let packed = (p.packing() != Packing::Whole).then(|| &inputs[at]);
        let marks = marks(p.packing(), packed, p.batch(), p.steps());
        let of = |v: &View<'_>| array(Some(v));
        let h0 = array((given == 1).then(|| &inputs[at - 1]));
        let mut list: Vec<[u8; 40]> = match pass {
            Pass::Forward => vec![of(&inputs[0]), of(&inputs[1]), h0],
            _ => {
                let rest = at + usize::from(packed.is_some());
                vec![of(&inputs[0]), h0, of(&inputs[rest]), of(&inputs[rest + 1]), of(&inputs[rest + 2])]
            }
        };
        list.extend(args.outputs.iter().map(|v| of(&v.as_view())));
        if pass == Pass::Backward && given == 0 {
            list.push(array(None));
        }
        let mut arguments: Vec<Arg<'_>> = list.iter().map(|a| Arg::Bytes(a)).collect();
        arguments.extend([Arg::Bytes(&marks), Arg::I64(p.channels() as i64)]);
        // SAFETY: the views' makers vouch for the memory that their shapes and strides reach; the signature's check has
        // compared shapes and types with the problem, whose sizes the kernel keeps to; the arguments are the kernel's
        // structs, field by field.
        unsafe { kernel.launch(args.stream, &config, &arguments) }
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let (kernel, config) = self.kernel(pass);
        Ok(vec![LaunchReport::new(kernel, 1, config.grid, config.block, config.shared_bytes)?])
    }
}
