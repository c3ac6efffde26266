//! The entry `ssm_gates`: its cases.

use super::cuda;
use super::kind::Kind;
use super::spec::{NAME, SsmGates};
use crate::Result;
use crate::op::{Case, CaseSet, Op, Pass, Problem};
use chronaxie_runtime::cuda::Specialisation;
use std::sync::Arc;

/// The entry `ssm_gates`.
#[derive(Debug)]
pub struct SsmGatesOp;

const COMPARED: &[&str] = &["B8_D1536_T8192,kind=mingru", "B8_D1536_T8192,kind=rglru"];
const CPU: &[&str] = &["B8_D64_T1024,kind=mingru", "B8_D64_T1024,kind=rglru"];
const CHECK: &[&str] = &[
    "B3_D5_T37,kind=mingru",
    "B3_D5_T37,kind=rglru",
    "B3_D5_T37,kind=decay",
    "B3_D5_T37,kind=lru",
    "B3_D5_T37,kind=s5",
    "B3_D5_T37,kind=hold",
    "B3_D5_T37,kind=softplus",
    "B3_D5_T37,kind=decline",
    "B1_D700_T1,kind=rate",
    "B1_D700_T1,kind=complex_rate",
    "B1_D700_T1,kind=polar",
    "B2_D3_T2049,kind=rglru",
    "B1_D1_T1,kind=mingru",
    "B0_D3_T4,kind=lru",
    "B2_D0_T4,kind=s5",
    "B2_D3_T0,kind=decay",
];

impl Op for SsmGatesOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "gates, inputs, rates and weights of scans from what a layer computes: minGRU, RG-LRU, LRU, S5, ..."
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
        case.allow(&["B", "D", "T"], &["kind"])?;
        let kind = case.option("kind").map_or(Ok(Kind::MinGru), str::parse)?;
        Ok(Arc::new(SsmGates::new(kind, case.size("B")?, case.size("D")?, case.size("T")?)?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        vec![cuda::specialisation()]
    }
}
