//! The entries `selective_scan` and `selective_state_update`: their cases.

use super::super::entry::{dtype, packing};
use super::cuda;
use super::spec::{NAME, SelectiveScan, Weights};
use super::step::{NAME as STEP_NAME, SelectiveStateUpdate};
use crate::op::{Case, CaseSet, Op, Pass, Problem};
use crate::{Error, Result};
use chronaxie_runtime::cuda::Specialisation;
use std::sync::Arc;

/// The entry `selective_scan`.
#[derive(Debug)]
pub struct SelectiveScanOp;
/// The entry `selective_state_update`.
#[derive(Debug)]
pub struct SelectiveStateUpdateOp;

/// With what Mamba gives: D, z, delta_bias and softplus.
const COMPARED: &[&str] = &[
    "B8_D2048_T2048_N16,dtype=bf16,mamba=true",
    "B8_D2048_T2048_N16,mamba=true",
    "B8_D1536_T8192_N16,dtype=bf16,mamba=true",
    "B8_D1536_T8192_N16,mamba=true",
    "B1_D1024_T65536_N16,dtype=bf16,mamba=true",
    "B1_D1024_T65536_N16,mamba=true",
];
const CPU: &[&str] = &["B1_D256_T2048_N16,mamba=true", "B1_D256_T2048_N16,dtype=bf16,mamba=true"];
const CHECK: &[&str] = &[
    "B1_D1_T1_N1",
    "B2_D3_T0_N2,h0=true,mamba=true",
    "B0_D3_T5_N2,mamba=true",
    "B2_D0_T5_N2",
    "B2_D3_T14_N4,mamba=true,h0=true",
    "B2_D17_T130_N16,mamba=true",
    "B1_D40_T257_N3,mamba=true,h0=true,rule=zoh",
    "B2_D5_T129_N7,skip=true,rule=bilinear,h0=true",
    "B2_D18_T140_N2,G=3,gate=true,h0=true",
    "B2_D18_T140_N2,G=18,mamba=true",
    "B1_D20_T150_N5,b=constant,mamba=true",
    "B2_D20_T150_N5,b=constant,c=constant,softplus=true",
    "B1_D300_T20_N2,c=constant,bias=true,softplus=true",
    "B1_D3_T300_N256,mamba=true",
    "B1_D5_T1100_N16,mamba=true,h0=true",
    "B1_D5_T600_N20,mamba=true,h0=true",
    "B2_D17_T200_N40,dtype=bf16,mamba=true,G=1",
    "B2_D17_T130_N4,complex=true,h0=true,mamba=true",
    "B1_D9_T257_N3,complex=true,rule=zoh,b=constant,c=constant,h0=true",
    "B1_D9_T257_N3,complex=true,rule=bilinear,G=9",
    "B3_D17_T200_N3,packing=reset,mamba=true,h0=true",
    "B1_D17_T300_N3,packing=7,mamba=true,h0=true",
    "B1_D17_T300_N3,packing=4,complex=true,h0=true",
    "B1_D2_T2049_N2,mamba=true,h0=true",
    "B2_D24_T150_N4,dtype=bf16,mamba=true,h0=true",
    "B2_D24_T150_N4,dtype=f16,mamba=true,G=2",
];
const COMPARED_STEP: &[&str] = &["B1_D5120_N16,mamba=true", "B64_D5120_N16,mamba=true", "B256_D5120_N16,mamba=true"];
const CPU_STEP: &[&str] = &["B1_D5120_N16,mamba=true", "B16_D5120_N16,mamba=true"];
const CHECK_STEP: &[&str] = &[
    "B1_D1_N1",
    "B0_D3_N2",
    "B3_D0_N2",
    "B3_D17_N16,mamba=true",
    "B5_D33_N3,mamba=true,slots=9",
    "B2_D18_N4,G=3,rule=zoh,slots=2",
    "B2_D6_N4,G=6,rule=bilinear",
    "B2_D18_N4,complex=true,b=constant,mamba=true,slots=4",
    "B2_D20_N256,dtype=bf16,mamba=true",
    "B2_D20_N5,dtype=f16,c=constant,softplus=true",
];

const OPTIONS: &[&str] =
    &["dtype", "mamba", "rule", "G", "b", "c", "skip", "gate", "bias", "softplus", "complex", "h0", "packing"];

/// The scan that a case spells, of `steps` steps.
fn scan(case: &Case, steps: usize) -> Result<SelectiveScan> {
    let mamba = case.get("mamba", false)?;
    let groups = case.get("G", 1)?;
    let weights = |name: &str| match case.option(name) {
        None | Some("varying") => Ok(Weights::Varying(groups)),
        Some("constant") => Ok(Weights::Constant),
        Some(other) => Err(Error::config(format!("case `{case}`: {name}={other} is not one of varying, constant"))),
    };
    let rule = match case.option("rule") {
        None => Default::default(),
        Some(name) => name.parse()?,
    };
    SelectiveScan::new(case.size("B")?, case.size("D")?, steps, case.size("N")?)?
        .with_dtype(dtype(case)?)?
        .with_complex(case.get("complex", false)?)
        .with_discretisation(rule)
        .with_weights(weights("b")?, weights("c")?)?
        .with_skip(case.get("skip", mamba)?)
        .with_gate(case.get("gate", mamba)?)
        .with_delta_bias(case.get("bias", mamba)?)
        .with_softplus(case.get("softplus", mamba)?)
        .with_initial_state(case.get("h0", false)?)
        .with_packing(packing(case)?)
}

impl Op for SelectiveScanOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "Mamba's selective scan, with initial states, packed sequences, three discretisations, real and complex"
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
        case.allow(&["B", "D", "T", "N"], OPTIONS)?;
        Ok(Arc::new(scan(case, case.size("T")?)?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}

impl Op for SelectiveStateUpdateOp {
    fn name(&self) -> &'static str {
        STEP_NAME
    }
    fn summary(&self) -> &'static str {
        "one step of a selective scan, its states in place, found through a table"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Step]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        Case::list(match set {
            CaseSet::Compared => COMPARED_STEP,
            CaseSet::Cpu => CPU_STEP,
            CaseSet::Check => CHECK_STEP,
        })
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        let options: Vec<&str> = OPTIONS.iter().copied().filter(|o| !["h0", "packing"].contains(o)).collect();
        case.allow(&["B", "D", "N"], &[&options[..], &["slots"]].concat())?;
        let slots = match case.option("slots") {
            None => None,
            Some(_) => Some(case.get("slots", 0)?),
        };
        Ok(Arc::new(SelectiveStateUpdate::new(scan(case, 1)?, slots)?))
    }
    // Those of the scan: a step is its forward kernel.
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
