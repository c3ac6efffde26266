//! The entries `linear_scan` and `linear_scan_complex`: their cases.

use super::cuda;
use super::packing::Packing;
use super::spec::{COMPLEX_NAME, Gates, LinearScan, NAME};
use crate::op::{Case, CaseSet, Op, Pass, Problem};
use crate::{Dtype, Error, Result};
use chronaxie_runtime::cuda::Specialisation;
use std::sync::Arc;

/// The entry `linear_scan`.
#[derive(Debug)]
pub struct LinearScanOp;
/// The entry `linear_scan_complex`: the same over complex numbers.
#[derive(Debug)]
pub struct LinearScanComplexOp;

const COMPARED: &[&str] = &["B8_D1536_T8192", "B8_D1536_T65536", "B1_D1024_T65536"];
const CPU: &[&str] = &["B1_D1024_T4096", "B2_D1536_T8192", "B1_D64_T65536"];
const CHECK: &[&str] = &[
    "B2_D3_T0",
    "B0_D3_T5",
    "B2_D0_T5,h0=true",
    "B2_D3_T0,h0=true,reverse=true",
    "B3_D5_T1,h0=true",
    "B1_D1_T2,h0=true,gates=signed",
    "B2_D3_T15,reverse=true",
    "B1_D7_T31,h0=true,gates=extreme",
    "B2_D5_T33,h0=true,reverse=true,gates=signed",
    "B1_D33_T127,gates=slow",
    "B2_D17_T1020,h0=true,gates=slow",
    "B2_D17_T1024,h0=true,reverse=true,gates=slow",
    "B1_D130_T1028,h0=true,gates=signed",
    "B1_D9_T2047,h0=true,reverse=true,gates=extreme",
    "B2_D9_T2049,gates=slow",
    "B1_D3_T8193,h0=true,gates=signed",
    "B1_D40_T16384,h0=true,reverse=true",
    "B1_D2_T100000,h0=true,gates=slow",
    "B2_D3000_T40,h0=true",
    "B1_D1100_T516,h0=true",
    "B1_D1100_T517,reverse=true,gates=slow",
    "B3_D17_T300,h0=true,packing=reset",
    "B2_D5_T129,packing=reset,reverse=true,gates=signed",
    "B1_D33_T500,h0=true,packing=7",
    "B1_D4_T260,packing=3,reverse=true",
    "B1_D5_T0,h0=true,packing=2",
    "B2_D19_T200,dtype=bf16,h0=true",
    "B1_D40_T517,dtype=bf16,reverse=true,packing=reset",
    "B2_D19_T200,dtype=f16,h0=true,gates=signed",
    "B1_D40_T517,dtype=f16,packing=5,h0=true",
    "B2_D17_T1024,dtype=bf16,h0=true,reverse=true,gates=slow",
    "B2_D9_T2049,dtype=f16,gates=slow",
    "B1_D130_T1028,dtype=bf16,h0=true,gates=extreme",
    "B3_D5_T1,dtype=f16,h0=true",
    "B1_D1100_T520,dtype=f16,h0=true",
    "B1_D3_T10000,dtype=bf16,h0=true,gates=signed",
    "B2_D2_T8600,dtype=f16,h0=true,reverse=true,gates=slow",
    "B1_D2_T65544,dtype=bf16,h0=true,gates=slow",
    "B1_D2_T65545,dtype=f16,h0=true,reverse=true",
];
const COMPARED_COMPLEX: &[&str] = &["B1_D1024_T1000000"];
const CPU_COMPLEX: &[&str] = &["B1_D1024_T4096", "B1_D64_T65536"];
const CHECK_COMPLEX: &[&str] = &[
    "B2_D3_T0,h0=true",
    "B0_D3_T5",
    "B1_D1_T1,h0=true",
    "B2_D3_T14,reverse=true",
    "B2_D17_T129,h0=true,gates=slow",
    "B1_D33_T1025,h0=true,gates=extreme,reverse=true",
    "B2_D9_T2049,gates=slow",
    "B1_D2_T30000,h0=true,gates=slow",
    "B3_D17_T300,h0=true,packing=reset",
    "B1_D33_T500,h0=true,packing=7,reverse=true",
];

/// `none`, `reset`, or how many sequences lie end to end.
pub(super) fn packing(case: &Case) -> Result<Packing> {
    match case.option("packing") {
        None | Some("none") => Ok(Packing::Whole),
        Some("reset") => Ok(Packing::Reset),
        Some(count) => count.parse().map(Packing::Sequences).map_err(|_| {
            Error::config(format!("case `{case}`: packing={count} is not none, reset, or a number of sequences"))
        }),
    }
}

/// The storage type that a case names.
pub(super) fn dtype(case: &Case) -> Result<Dtype> {
    match case.option("dtype") {
        None | Some("f32") => Ok(Dtype::F32),
        Some("bf16") => Ok(Dtype::Bf16),
        Some("f16") => Ok(Dtype::F16),
        Some(other) => Err(Error::config(format!("case `{case}`: dtype={other} is not one of f32, bf16, f16"))),
    }
}

fn problem(case: &Case, dtype: Dtype) -> Result<Arc<dyn Problem>> {
    let gates = match case.option("gates") {
        None => Gates::default(),
        Some(name) => name.parse()?,
    };
    let problem = LinearScan::new(case.size("B")?, case.size("D")?, case.size("T")?)?
        .with_dtype(dtype)?
        .with_packing(packing(case)?)?
        .with_initial_state(case.get("h0", false)?)
        .with_reverse(case.get("reverse", false)?)
        .with_gates(gates);
    Ok(Arc::new(problem))
}

impl Op for LinearScanOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "the gated recurrence h_t = a_t h_{t-1} + x_t of a diagonal state-space model; f32, bf16, f16"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward, Pass::Backward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        Case::list(match set {
            CaseSet::Compared => COMPARED,
            CaseSet::Cpu => CPU,
            CaseSet::Check => CHECK,
        })
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["B", "D", "T"], &["h0", "reverse", "gates", "dtype", "packing"])?;
        problem(case, dtype(case)?)
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}

impl Op for LinearScanComplexOp {
    fn name(&self) -> &'static str {
        COMPLEX_NAME
    }
    fn summary(&self) -> &'static str {
        "the recurrence h_t = a_t h_{t-1} + x_t over complex numbers (complex64)"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward, Pass::Backward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        Case::list(match set {
            CaseSet::Compared => COMPARED_COMPLEX,
            CaseSet::Cpu => CPU_COMPLEX,
            CaseSet::Check => CHECK_COMPLEX,
        })
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["B", "D", "T"], &["h0", "reverse", "gates", "packing"])?;
        problem(case, Dtype::C64)
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::complex_specialisations()
    }
}
