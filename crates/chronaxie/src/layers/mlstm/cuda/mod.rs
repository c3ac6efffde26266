//! The mLSTM on CUDA devices: not yet.

use super::spec::Mlstm;
use super::step::{MlstmStep, NAME as STEP};
use crate::op::{Plan, PlanOptions};
use crate::{Error, Result};
use chronaxie_runtime::cuda::{CudaDevice, Specialisation};
use std::sync::Arc;

/// Every kernel that a plan can launch.
pub(super) fn specialisations() -> Vec<Specialisation> {
    Vec::new()
}

pub(super) fn plan(p: &Mlstm, device: &Arc<CudaDevice>, _options: &PlanOptions) -> Result<Box<dyn Plan>> {
    let entry = p.gate.entry();
    Err(Error::unavailable(format!("{entry} has no kernels for cuda:{} yet; take --backend cpu", device.index())))
}

/// Every kernel that a step's plan can launch.
pub(super) fn step_specialisations() -> Vec<Specialisation> {
    Vec::new()
}

pub(super) fn step_plan(_p: &MlstmStep, device: &Arc<CudaDevice>, _options: &PlanOptions) -> Result<Box<dyn Plan>> {
    Err(Error::unavailable(format!("{STEP} has no kernels for cuda:{} yet; take --backend cpu", device.index())))
}
