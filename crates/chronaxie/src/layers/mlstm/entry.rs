//! The mLSTM over whole sequences as entries of the registry: its cases, and the problem behind the contract.

use super::reference::problem;
use super::sample::sample;
use super::spec::{Gate, Mlstm, Wants, parse_dtype};
use super::{cpu, cuda};
use crate::cuda::Specialisation;
use crate::op::{Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Problem, Signature, Tensors, Tolerance};
use crate::{Device, Result};
use std::sync::Arc;

impl Problem for Mlstm {
    fn entry(&self) -> &'static str {
        self.entry_name()
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        self.signature_of(pass)
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        Ok(match device {
            Device::Cpu => Box::new(cpu::CpuPlan::new(self, options)?),
            Device::Cuda(d) => Box::new(cuda::CudaPlan::new(self, d, options)?),
        })
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        sample(self, pass, seed)
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature_of(pass)?;
        if f32_arithmetic { problem::law::<f32>(self, pass, inputs) } else { problem::law::<f64>(self, pass, inputs) }
    }
    fn tolerance(&self, pass: Pass, output: &str) -> Option<Tolerance> {
        self.tolerance_of(pass, output)
    }
    fn cost(&self, pass: Pass) -> Cost {
        let bytes =
            self.signature_of(pass).map_or(0, |s| s.inputs.iter().chain(&s.outputs).map(|t| t.bytes() as u64).sum());
        let tokens = (self.batch * self.heads * self.steps) as u64;
        let [k, v, l] = [self.dqk, self.dv, self.chunk_length().min(self.steps.max(1))].map(|n| n as u64);
        // Of the pairs within a chunk half are there. Backward makes the states anew.
        let flops = match pass {
            Pass::Backward => 10 * k * v + l * (3 * k + 2 * v),
            _ => 4 * k * v + l * (k + v),
        };
        let serial_steps = self.steps.div_ceil(self.chunk_length()) as u64;
        Cost { bytes, flops: tokens * flops, special: tokens * l / 2, serial_steps }
    }
}

/// The entries `mlstm_exp` and `mlstm_sig`.
#[derive(Debug)]
pub struct MlstmOp(pub Gate);

const COMPARED: &[&str] =
    &["B32_NH8_T2048_K256_V512", "B8_NH8_T8192_K256_V512", "B16_NH16_T4096_K128_V256", "B8_NH4_T2048_K64_V64"];
const CPU: &[&str] = &["B1_NH4_T2048_K64_V64,dtype=f32", "B1_NH4_T1024_K128_V256,dtype=f32"];
/// Lengths around every boundary of chunks and tiles, each element type, every option, and gates of every kind.
const CHECK: &[&str] = &[
    "B2_NH3_T65_K32_V48,dtype=f32,initial=true,last=true",
    "B1_NH1_T1_K16_V16,dtype=f32,gates=unit",
    "B2_NH2_T15_K16_V32,dtype=f32,initial=true,last=true,gates=unit",
    "B1_NH2_T16_K32_V16,dtype=f16,gates=unit",
    "B1_NH2_T17_K16_V16,dtype=bf16,initial=true,last=true",
    "B1_NH3_T63_K48_V80,dtype=f32",
    "B2_NH1_T64_K64_V64,dtype=f16",
    "B2_NH2_T64_K64_V64,dtype=bf16,initial=true",
    "B1_NH2_T127_K64_V128,dtype=f32,last=true,gates=slow",
    "B1_NH1_T500_K16_V16,dtype=f32,chunk=256,initial=true,last=true,gates=slow",
    "B1_NH1_T1000_K16_V16,dtype=f32,chunk=16,initial=true,last=true",
    "B1_NH1_T1000_K32_V16,dtype=bf16,gates=slow",
    "B1_NH1_T4096_K16_V16,dtype=f32,gates=slow",
    "B1_NH1_T16384_K16_V16,dtype=f32,chunk=128,gates=slow",
    "B1_NH1_T130_K128_V256,dtype=f32,gates=slow",
    "B1_NH1_T20_K512_V16,dtype=f32",
    "B1_NH1_T20_K16_V512,dtype=f32,initial=true,last=true",
    "B1_NH2_T200_K32_V32,dtype=f32,sequences=5,initial=true,last=true",
    "B1_NH2_T90_K16_V32,dtype=bf16,sequences=7",
    "B1_NH2_T0_K16_V16,dtype=f32,sequences=2,initial=true,last=true",
    "B2_NH2_T0_K16_V16,dtype=f32,initial=true,last=true",
    "B0_NH2_T5_K16_V16,dtype=f32",
    "B2_NH0_T5_K16_V16,dtype=f32,last=true",
    "B1_NH2_T100_K32_V32,dtype=f32,gates=extreme,initial=true,last=true",
    "B1_NH2_T64_K32_V32,dtype=f16,gates=extreme",
    // Gates that are shut for good.
    "B1_NH2_T200_K16_V32,dtype=f32,gates=reset,initial=true,last=true",
    "B2_NH1_T150_K64_V64,dtype=f16,gates=reset,initial=true,last=true",
    "B1_NH2_T300_K32_V48,dtype=bf16,gates=reset,sequences=4,initial=true,last=true",
    "B1_NH2_T260_K80_V144,dtype=f16,gates=reset,initial=true,last=true",
    // What tensor cores take: parts of tiles, of chunks and of segments.
    "B1_NH2_T1_K32_V32,dtype=bf16,initial=true,last=true",
    "B1_NH2_T17_K32_V48,dtype=bf16,initial=true,last=true",
    "B1_NH2_T300_K80_V144,dtype=bf16,initial=true,last=true",
    "B1_NH1_T129_K128_V256,dtype=f16,gates=slow",
    "B1_NH2_T127_K48_V96,dtype=f16,chunk=48,initial=true,last=true",
    "B1_NH1_T40_K512_V32,dtype=bf16,last=true",
    "B1_NH1_T40_K32_V512,dtype=f16,initial=true",
    "B1_NH1_T500_K64_V64,dtype=f16,gates=slow,initial=true,last=true",
    "B1_NH1_T4096_K32_V32,dtype=f16,gates=slow,last=true",
    "B1_NH1_T16384_K32_V32,dtype=bf16,chunk=128,gates=slow",
    "B1_NH2_T300_K32_V80,dtype=f16,sequences=6,initial=true,last=true",
    "B1_NH2_T150_K32_V32,dtype=bf16,gates=extreme,initial=true,last=true",
    "B1_NH2_T70_K32_V32,dtype=bf16,eps=1e-6,normalizer_grad=false,initial=true,last=true",
    "B1_NH2_T70_K32_V32,dtype=bf16,wants=gates+initial,initial=true",
    "B1_NH2_T70_K32_V32,dtype=bf16,wants=inputs",
    "B1_NH2_T70_K32_V32,dtype=f16,backward=false,last=true",
    "B1_NH2_T0_K32_V32,dtype=bf16,sequences=2,initial=true,last=true",
    "B2_NH2_T0_K32_V32,dtype=bf16,initial=true,last=true",
    "B1_NH2_T70_K16_V16,dtype=f32,eps=1e-6,normalizer_grad=false,initial=true,last=true",
    "B1_NH2_T70_K16_V16,dtype=f32,wants=gates+initial,initial=true",
    "B1_NH2_T70_K16_V16,dtype=f32,backward=false",
];
/// What only the exponential gate has: normalisers about 1e-5.
const CHECK_EXPONENTIAL: &[&str] = &["B1_NH3_T130_K48_V64,dtype=f16,gates=faint"];
/// What only the sigmoid gate has.
const CHECK_SIGMOID: &[&str] = &[
    "B2_NH3_T65_K32_V48,dtype=f32,normalize=true,initial=true,last=true",
    "B1_NH2_T100_K16_V16,dtype=f32,normalize=true,gates=extreme",
    "B1_NH2_T100_K16_V16,dtype=f32,normalize=true,gates=reset",
    "B1_NH2_T100_K64_V32,dtype=f16,normalize=true,gates=reset,last=true",
    "B1_NH1_T500_K16_V32,dtype=bf16,normalize=true,gates=slow",
    "B1_NH1_T200_K80_V32,dtype=f16,normalize=true,initial=true,last=true",
];

/// The entry `mlstm_parallel`: h from all pairs of tokens and a state of zeros. It is `mlstm_exp` without states, held to the law
/// of all pairs; what runs goes chunk by chunk, so that its work grows with T and not with its square.
#[derive(Debug)]
pub struct MlstmParallelOp;

const PARALLEL_COMPARED: &[&str] = &["B4_NH8_T2048_K64_V64"];
const PARALLEL_CPU: &[&str] = &["B1_NH4_T1024_K64_V64,dtype=f32"];
const PARALLEL_CHECK: &[&str] = &[
    "B1_NH1_T1_K16_V16,dtype=f32",
    "B2_NH2_T65_K32_V48,dtype=f32,gates=unit",
    "B1_NH2_T500_K64_V64,dtype=f32,gates=slow",
    "B1_NH2_T64_K64_V64,dtype=f16",
    "B1_NH2_T500_K64_V64,dtype=bf16,gates=slow",
    "B1_NH2_T200_K64_V64,dtype=f16,gates=extreme",
    "B1_NH2_T200_K32_V48,dtype=f32,gates=reset",
    "B1_NH2_T200_K64_V64,dtype=bf16,gates=reset",
    "B1_NH2_T300_K80_V144,dtype=bf16,gates=unit",
    "B2_NH0_T5_K16_V16,dtype=f32",
    "B2_NH2_T0_K32_V32,dtype=bf16",
];
const PARALLEL_OPTIONS: &[&str] = &["dtype", "normalizer_grad", "eps", "chunk", "backward", "wants", "gates"];

const OPTIONS: &[&str] = &[
    "dtype",
    "normalize",
    "normalizer_grad",
    "eps",
    "chunk",
    "initial",
    "last",
    "sequences",
    "backward",
    "wants",
    "gates",
];

/// The problem of a case, of which `options` are known.
fn problem_of(case: &Case, gate: Gate, options: &[&str]) -> Result<Mlstm> {
    case.allow(&["B", "NH", "T", "K", "V"], options)?;
    let mut sizes = [0; 5];
    for (size, axis) in sizes.iter_mut().zip(["B", "NH", "T", "K", "V"]) {
        *size = case.size(axis)?;
    }
    let mut p = Mlstm::new(gate, sizes);
    p.dtype = parse_dtype(gate.entry(), case.option("dtype").unwrap_or("bf16"))?;
    p.normalize = case.get("normalize", p.normalize)?;
    p.normalizer_grad = case.get("normalizer_grad", true)?;
    p.eps = case.get("eps", 0.0)?;
    p.chunk = case.option("chunk").map(|_| case.get("chunk", 0)).transpose()?;
    p.initial_state = case.get("initial", false)?;
    p.last_state = case.get("last", false)?;
    p.sequences = case.option("sequences").map(|_| case.get("sequences", 0)).transpose()?;
    p.backward = case.get("backward", true)?;
    p.wants = case.option("wants").map_or(Ok(Wants::ALL), str::parse)?;
    p.gates = case.option("gates").map_or(Ok(p.gates), str::parse)?;
    Ok(p)
}

impl Op for MlstmOp {
    fn name(&self) -> &'static str {
        self.0.entry()
    }
    fn summary(&self) -> &'static str {
        match self.0 {
            Gate::Exponential => "mLSTM over sequences, exponential input gate, normalised",
            Gate::Sigmoid => "mLSTM over sequences, sigmoid input gate, with or without a normaliser",
        }
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward, Pass::Backward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let lists: &[&[&str]] = match (set, self.0) {
            (CaseSet::Compared, _) => &[COMPARED],
            (CaseSet::Cpu, _) => &[CPU],
            (CaseSet::Check, Gate::Exponential) => &[CHECK, CHECK_EXPONENTIAL],
            (CaseSet::Check, Gate::Sigmoid) => &[CHECK, CHECK_SIGMOID],
        };
        Case::list(&lists.concat())
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        Ok(Arc::new(problem_of(case, self.0, OPTIONS)?.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}

impl Op for MlstmParallelOp {
    fn name(&self) -> &'static str {
        "mlstm_parallel"
    }
    fn summary(&self) -> &'static str {
        "mLSTM over all pairs of tokens of a sequence, exponential input gate, without states"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward, Pass::Backward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        Case::list(match set {
            CaseSet::Compared => PARALLEL_COMPARED,
            CaseSet::Cpu => PARALLEL_CPU,
            CaseSet::Check => PARALLEL_CHECK,
        })
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        let mut p = problem_of(case, Gate::Exponential, PARALLEL_OPTIONS)?;
        p.parallel = true;
        Ok(Arc::new(p.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
