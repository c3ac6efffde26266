//! The decode step on CUDA devices.

use super::{HEADERS, THREADS, Tokens, bytes, dtype_code};
use crate::layers::mlstm::Gate;
use crate::layers::mlstm::step::{HeadNorm, MlstmStep, NAME};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::{Dtype, Error, Layout, Place, Result};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

const SOURCE: KernelSource = KernelSource::embedded("layers/mlstm/cuda/step.cu", include_str!("step.cu"));
const ENTRY: &str = "mlstm_step";

fn specialisation(dtype: Dtype, state: Dtype) -> Specialisation {
    let mut spec = Specialisation::new(SOURCE, &[ENTRY]);
    spec.headers = HEADERS;
    spec.constants = vec![("kDtype", dtype_code(dtype).into()), ("kState", dtype_code(state).into())];
    spec
}

/// Every kernel that a step's plan can launch.
pub(in super::super) fn step_specialisations() -> Vec<Specialisation> {
    let all = [Dtype::F32, Dtype::F16, Dtype::Bf16];
    all.into_iter().flat_map(|dtype| all.map(|state| specialisation(dtype, state))).collect()
}

/// `StepCall` of step.cu, field by field.
#[repr(C)]
#[derive(Clone, Copy)]
struct StepCall {
    /// q, k, v, i, f, o, h.
    tokens: [Tokens; 7],
    /// weight, slot, c, n, m.
    tensors: [u64; 5],
    /// heads, states, dk, dv, sigmoid, norm.
    sizes: [i64; 6],
    /// scale, eps, norm_eps.
    numbers: [f64; 3],
}

/// `mlstm_step` on a CUDA device.
pub(in super::super) struct StepPlan {
    problem: MlstmStep,
    device: Arc<CudaDevice>,
    signature: Signature,
    kernel: Kernel,
    scratch: Layout,
}

impl StepPlan {
    pub(in super::super) fn new(p: &MlstmStep, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let problem = p.build()?;
        if let Some(v) = options.variant.as_deref().filter(|&v| v != "simt") {
            return Err(Error::config(format!("{NAME}: variant `{v}` is not one of simt on CUDA")));
        }
        let blocks = problem.batch * problem.heads;
        if blocks > i32::MAX as usize {
            return Err(Error::shape(format!("{NAME}: B NH = {blocks} exceeds a CUDA grid")));
        }
        let kernel = device.kernel(&specialisation(problem.dtype, problem.state_dtype), ENTRY)?;
        let scratch = Layout::new(options.scratch_gap);
        Ok(Self { problem, device: device.clone(), signature: problem.signature_of(), kernel, scratch })
    }
    fn shape(&self) -> LaunchConfig {
        LaunchConfig::new(((self.problem.batch * self.problem.heads) as u32, 1, 1), (THREADS, 1, 1))
    }
}

impl Plan for StepPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Step).then_some(&self.signature)
    }
    fn config(&self) -> String {
        format!("threads={THREADS}")
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, _pass: Pass) -> &Layout {
        &self.scratch
    }
    fn execute(&self, _pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        if p.batch * p.heads == 0 {
            return Ok(());
        }
        let (inputs, outputs) = (args.inputs, &*args.outputs);
        let input = |name: &str| self.signature.input(name).map(|at| &inputs[at]);
        let output = |name: &str| self.signature.output(name).map_or(0, |at| outputs[at].address());
        let token = |name: &str| {
            let found = input(name).map(|v| Tokens::of_one(v.address(), v.strides()));
            found.unwrap_or_default()
        };
        let h = Tokens::of_one(outputs[0].address(), outputs[0].strides());
        let [q, k, v, i, f, o] = ["q", "k", "v", "i", "f", "o"].map(token);
        let [weight, slot] = ["norm_weight", "slot"].map(|name| input(name).map_or(0, |v| v.address()));
        let norm = match p.head_norm {
            HeadNorm::None => 0,
            HeadNorm::Rms => 1,
            HeadNorm::Layer => 2,
        };
        let sigmoid = i64::from(p.gate == Gate::Sigmoid);
        let call = StepCall {
            tokens: [q, k, v, i, f, o, h],
            tensors: [weight, slot, output("c"), output("n"), output("m")],
            sizes: [p.heads as i64, p.states() as i64, p.dqk as i64, p.dv as i64, sigmoid, norm],
            numbers: [1.0 / (p.dqk as f64).sqrt(), p.eps, p.norm_eps],
        };
        // SAFETY: every field of the struct is eight bytes, or made of such; the views were checked against the signature;
        // the kernel keeps to the sizes, and touches no state that is not there. Two sequences that name one state are the
        // caller's mistake, of which the results are unspecified.
        unsafe { self.kernel.launch(args.stream, &self.shape(), &[Arg::Bytes(bytes(&call))]) }
    }
    fn launches(&self, _pass: Pass) -> Result<Vec<LaunchReport>> {
        if self.problem.batch * self.problem.heads == 0 {
            return Ok(Vec::new());
        }
        let shape = self.shape();
        Ok(vec![LaunchReport::new(&self.kernel, 1, shape.grid, shape.block, 0)?])
    }
}
