//! The entry `adaptive_theta`: its cases.

use super::super::entry::{dtype, packing};
use super::cuda;
use super::spec::{AdaptiveScan, NAME};
use crate::Result;
use crate::op::{Case, CaseSet, Op, Pass, Problem};
use chronaxie_runtime::cuda::Specialisation;
use std::sync::Arc;

/// The entry `adaptive_theta`.
#[derive(Debug)]
pub struct AdaptiveThetaOp;

/// The long one, and the sizes at which the published operator was timed, with what its block gives.
const COMPARED: &[&str] = &[
    "B1_D1024_N1_T1000000",
    "B8_D128_N64_T2048,silu=true,skip=true,gate=true",
    "B8_D256_N64_T1024,silu=true,skip=true,gate=true",
    "B4_D128_N64_T16384,silu=true,skip=true,gate=true",
];
const CPU: &[&str] = &["B1_D1024_N1_T4096", "B1_D64_N16_T2048"];
const CHECK: &[&str] = &[
    "B1_D1_N1_T1",
    "B2_D3_N2_T0,h0=true,skip=true",
    "B0_D3_N2_T5",
    "B2_D0_N2_T5",
    "B16_D16_N16_T14,silu=true,skip=true,gate=true",
    "B2_D17_N3_T130,h0=true,silu=true",
    "B2_D17_N3_T257,h0=true,decay=true,gate=true",
    "B1_D2_N2_T2049,h0=true",
    "B1_D2_N2_T2049,h0=true,decay=true,skip=true",
    "B1_D3_N256_T140,silu=true",
    "B2_D3_N33_T600,h0=true,silu=true,skip=true,gate=true",
    "B3_D17_N2_T200,packing=reset,h0=true,decay=true",
    "B2_D5_N2_T200,packing=reset",
    "B1_D17_N2_T300,packing=7,h0=true,skip=true",
    "B1_D5_N2_T300,packing=4,h0=true,decay=true",
    "B2_D24_N4_T150,dtype=bf16,h0=true,silu=true,skip=true,gate=true",
    "B2_D24_N4_T150,dtype=f16,decay=true",
    "B1_D1_N1_T100000,h0=true",
];

impl Op for AdaptiveThetaOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "states that turn by given angles and may decay: the adaptive unitary scan and its polar kin"
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
        case.allow(&["B", "D", "N", "T"], &["dtype", "decay", "silu", "skip", "gate", "h0", "packing"])?;
        let problem = AdaptiveScan::new(case.size("B")?, case.size("D")?, case.size("N")?, case.size("T")?)?
            .with_dtype(dtype(case)?)?
            .with_decay(case.get("decay", false)?)
            .with_silu(case.get("silu", false)?)
            .with_skip(case.get("skip", false)?)
            .with_gate(case.get("gate", false)?)
            .with_initial_state(case.get("h0", false)?)
            .with_packing(packing(case)?)?;
        Ok(Arc::new(problem))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
