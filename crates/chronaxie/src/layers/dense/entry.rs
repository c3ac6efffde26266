//! The entry `dense`: its cases.

use super::cuda;
use super::spec::{Channels, Dense, NAME};
use crate::Result;
use crate::op::{Case, CaseSet, Op, Pass, Problem};
use chronaxie_runtime::cuda::Specialisation;
use std::sync::Arc;

/// The entry `dense`.
#[derive(Debug)]
pub struct DenseOp;

const COMPARED: &[&str] =
    &["B32_T64_D128_H128,to=128", "B8_T2048_D128_H8192,to=8192,x=false", "B8_T2048_D128_H8192,from=128,to=8192"];
const CPU: &[&str] = &["B32_T64_D64_H64,to=64", "B8_T256_D64_H1024,to=1024,x=false"];
const CHECK: &[&str] = &[
    "B1_T1_D1_H1",
    "B0_T3_D2_H5",
    "B3_T0_D2_H5",
    "B2_T3_D0_H5",
    "B2_T3_D4_H0",
    "B3_T7_D5_H9",
    "B3_T7_D5_H9,to=9",
    "B3_T7_D5_H9,from=5,bias=false",
    "B3_T7_D6_H12,from=3,to=4,x=false",
    "B2_T70_D130_H67,from=130",
    "B2_T70_D67_H130,to=130,x=false,bias=false",
    "B1_T4100_D3_H2,to=2",
    "B70_T1_D140_H70,from=2,to=7",
    "B2_T516_D36_H1100,from=36,to=1100",
    "B2_T401_D70_H700,to=700,x=false",
    "B1_T9_D5_H8192",
];

impl Op for DenseOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "one linear map at every step, in f32, from and to the layouts of recurrences"
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
        case.allow(&["B", "T", "D", "H"], &["from", "to", "bias", "x"])?;
        let from = Channels::grouped(case.size("D")?, case.get("from", 1)?);
        let to = Channels::grouped(case.size("H")?, case.get("to", 1)?);
        let problem = Dense::new(case.size("B")?, case.size("T")?, from, to)?
            .with_bias(case.get("bias", true)?)
            .with_grad_x(case.get("x", true)?);
        Ok(Arc::new(problem))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
