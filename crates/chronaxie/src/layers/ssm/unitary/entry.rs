//! The entry `adaptive_unitary`: its cases.

use super::super::entry::packing;
use super::cuda;
use super::spec::{AdaptiveUnitary, NAME};
use crate::Result;
use crate::op::{Case, CaseSet, Op, Pass, Problem};
use chronaxie_runtime::cuda::Specialisation;
use std::sync::Arc;

/// The entry `adaptive_unitary`.
#[derive(Debug)]
pub struct AdaptiveUnitaryOp;

/// The sizes at which the published operator was timed; it always has silu, skip and gate, so those that are compared do too.
const COMPARED: &[&str] = &[
    "B8_D128_N64_T2048,silu=true,skip=true,gate=true",
    "B8_D256_N64_T1024,silu=true,skip=true,gate=true",
    "B4_D128_N64_T16384,silu=true,skip=true,gate=true",
];
const CPU: &[&str] = &["B1_D32_N16_T2048,silu=true,skip=true,gate=true"];
const CHECK: &[&str] = &[
    "B1_D1_N1_T1",
    "B2_D3_N2_T0,h0=true,skip=true",
    "B0_D3_N2_T5",
    "B2_D0_N2_T5",
    "B16_D16_N16_T14,silu=true,skip=true,gate=true",
    "B2_D17_N3_T130,h0=true,silu=true,bias=false",
    "B1_D2_N2_T2049,h0=true",
    "B2_D5_N3_T600,span=256,h0=true,silu=true,skip=true,gate=true",
    "B1_D7_N2_T513,span=256,bias=false",
    "B1_D3_N256_T140,silu=true",
    "B3_D7_N2_T200,packing=reset,h0=true,skip=true",
    "B1_D5_N2_T300,packing=4,h0=true,gate=true",
    "B2_D36_N9_T1030,silu=true,skip=true,gate=true",
];

impl Op for AdaptiveUnitaryOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "states that turn by angles W u + bias: the adaptive unitary scan"
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
        case.allow(&["B", "D", "N", "T"], &["bias", "silu", "skip", "gate", "h0", "packing", "span"])?;
        let mut problem = AdaptiveUnitary::new(case.size("B")?, case.size("D")?, case.size("N")?, case.size("T")?)?
            .with_bias(case.get("bias", true)?)
            .with_silu(case.get("silu", false)?)
            .with_skip(case.get("skip", false)?)
            .with_gate(case.get("gate", false)?)
            .with_initial_state(case.get("h0", false)?)
            .with_packing(packing(case)?)?;
        if case.option("span").is_some() {
            problem = problem.with_span(case.get("span", 0)?)?;
        }
        Ok(Arc::new(problem))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        // Those of the map and of the scan are theirs.
        vec![cuda::specialisation()]
    }
}
