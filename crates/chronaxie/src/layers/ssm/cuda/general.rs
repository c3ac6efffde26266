//! Launches of `general.cu` and `complex.cu`: scans with forgetting, of sequences end to end, and of complex
//! numbers.

use super::super::packing::Packing;
use super::super::spec::LinearScan;
use super::arrays::{array, constants, marks, suits};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature};
use crate::{Dtype, Error, Layout, Place, Result, View};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Header, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

const SOURCE: KernelSource = KernelSource::embedded("layers/ssm/cuda/general.cu", include_str!("general.cu"));
const COMPLEX: KernelSource = KernelSource::embedded("layers/ssm/cuda/complex.cu", include_str!("complex.cu"));
/// Threads of a block that takes a row of complex numbers.
const ROW_THREADS: u32 = 128;
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

/// The same where rows of complex numbers are contiguous in time.
fn rows_specialisation(reverse: bool) -> Specialisation {
    let mut spec = Specialisation::new(COMPLEX, &["scan_complex_forward", "scan_complex_backward"]);
    spec.headers = HEADERS;
    spec.constants = constants(Dtype::C64, true);
    spec.constants.extend([("kThreads", (ROW_THREADS as i32).into()), ("kDescending", reverse.into())]);
    spec
}

/// Every form of the kernels.
pub(super) fn specialisations(complex: bool) -> Vec<Specialisation> {
    let dtypes: &[Dtype] = if complex { &[Dtype::C64] } else { &[Dtype::F32, Dtype::Bf16, Dtype::F16] };
    // The directions differ in the order of addresses alone.
    let rows = complex.then(|| [rows_specialisation(false)]);
    let serial = dtypes.iter().flat_map(|&d| [specialisation(d, false), specialisation(d, true)]);
    serial.chain(rows.into_iter().flatten()).collect()
}

/// A scan of any storage type and packing on a CUDA device.
#[derive(Debug)]
pub(super) struct GeneralPlan {
    problem: LinearScan,
    device: Arc<CudaDevice>,
    signatures: [Signature; 2],
    kernels: [Kernel; 2],
    rows: Option<[Kernel; 2]>,
    scratch: Layout,
}

impl GeneralPlan {
    pub(super) fn new(problem: LinearScan, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let whole = problem.dtype() == Dtype::C64 && problem.packing() == Packing::Whole;
        let rows = match options.variant.as_deref() {
            Some("serial") => false,
            None => whole,
            Some("rows") if whole => true,
            Some(v) => {
                return Err(Error::config(format!(
                    "{}: variant `{v}` is not one of {} for {} and {:?} on CUDA devices",
                    problem.name(),
                    if whole { "serial, rows, the ways" } else { "serial, the only way" },
                    problem.dtype(),
                    problem.packing()
                )));
            }
        };
        let spec = specialisation(problem.dtype(), problem.is_reverse());
        let kernel = |pass| device.kernel(&spec, entry(pass));
        let rows = rows.then(|| {
            let spec = rows_specialisation(problem.is_reverse());
            let [forward, backward] = ["scan_complex_forward", "scan_complex_backward"];
            Ok::<_, Error>([device.kernel(&spec, forward)?, device.kernel(&spec, backward)?])
        });
        Ok(Self {
            problem,
            device: device.clone(),
            signatures: [problem.signature(Pass::Forward)?, problem.signature(Pass::Backward)?],
            kernels: [kernel(Pass::Forward)?, kernel(Pass::Backward)?],
            rows: rows.transpose()?,
            scratch: Layout::new(options.scratch_gap),
        })
    }
    /// The kernel of a pass: that of contiguous rows where there is one and it suits.
    fn kernel(&self, pass: Pass, contiguous: bool) -> (&Kernel, LaunchConfig) {
        let p = &self.problem;
        let rows = p.packing().states(p.batch()) * p.channels();
        let index = usize::from(pass == Pass::Backward);
        match &self.rows {
            Some(kernels) if contiguous => {
                (&kernels[index], LaunchConfig::linear(rows * ROW_THREADS as usize, ROW_THREADS))
            }
            _ => (&self.kernels[index], LaunchConfig::linear(rows, THREADS)),
        }
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
        let rows = if self.rows.is_some() { format!("rows threads={ROW_THREADS}, or ") } else { String::new() };
        format!("{rows}serial threads={THREADS}")
    }
    fn variant(&self) -> &'static str {
        if self.rows.is_some() { "rows" } else { "serial" }
    }
    fn scratch(&self, _pass: Pass) -> &Layout {
        &self.scratch
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
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
        let outputs: Vec<View<'_>> = args.outputs.iter().map(|v| v.as_view()).collect();
        let timed = inputs.iter().chain(&outputs).filter(|v| v.shape().len() == 3);
        let contiguous = self.rows.as_ref().and_then(|_| suits(timed));
        // Backwards in memory pairs are whole where the number of steps is even.
        let aligned = contiguous == Some(true) && p.steps().is_multiple_of(2);
        let (kernel, config) = self.kernel(pass, contiguous.is_some());
        let mut arguments: Vec<Arg<'_>> = list.iter().map(|a| Arg::Bytes(a)).collect();
        arguments.extend([Arg::Bytes(&marks), Arg::I64(p.channels() as i64)]);
        if contiguous.is_some() {
            arguments.push(Arg::I64(i64::from(aligned)));
        }
        // SAFETY: the views' makers vouch for the memory that their shapes and strides reach; the signature's check has
        // compared shapes and types with the problem, whose sizes the kernel keeps to; the arguments are the kernel's
        // structs, field by field.
        unsafe { kernel.launch(args.stream, &config, &arguments) }
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let (kernel, config) = self.kernel(pass, true);
        Ok(vec![LaunchReport::new(kernel, 1, config.grid, config.block, config.shared_bytes)?])
    }
}
