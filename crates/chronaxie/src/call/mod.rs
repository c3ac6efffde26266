//! Calls that own their memory, above the contract of [`op`](crate::op) that owns none.
//!
//! A [`Session`] is the short way, for tests, examples and small uses: values by name in, values by name out. A
//! [`Workspace`] keeps the tensors where they are and runs a pass without an allocation.

mod codec;
pub(crate) mod memory;
mod tensor;
mod workspace;

pub use tensor::{Arrangement, Tensor};
pub use workspace::{Bound, Workspace};

use crate::cuda::StreamRef;
use crate::op::{Pass, Plan, PlanOptions, Problem, Tensors};
use crate::{Device, Error, Result};
use std::sync::Arc;

/// The stream on which a device's own calls run.
pub(crate) fn default_stream(device: &Device) -> StreamRef {
    match device {
        Device::Cpu => StreamRef::LEGACY,
        Device::Cuda(d) => d.default_stream(),
    }
}

/// A problem planned on a device, with the memory of its passes.
///
/// ```no_run
/// # fn main() -> chronaxie::Result<()> {
/// use chronaxie::{call::Session, op::Pass, registry, Device};
/// let problem = registry::find("ltc")?.problem(&"B24_T8_D128_H64".parse()?)?;
/// let inputs = problem.sample(Pass::Forward, 1)?;
/// let outputs = Session::new(problem, &Device::Cpu)?.forward(&inputs)?;
/// # Ok(()) }
/// ```
pub struct Session {
    problem: Arc<dyn Problem>,
    plan: Box<dyn Plan>,
    device: Device,
    workspace: Workspace,
}

impl Session {
    /// Plans `problem` on `device` and allocates all of its passes.
    pub fn new(problem: Arc<dyn Problem>, device: &Device) -> Result<Self> {
        Self::with_options(problem, device, &PlanOptions::default())
    }
    /// As [`new`](Self::new), with options of the plan.
    pub fn with_options(problem: Arc<dyn Problem>, device: &Device, options: &PlanOptions) -> Result<Self> {
        let plan = problem.plan(device, options)?;
        let passes: Vec<Pass> = Pass::ALL.into_iter().filter(|&p| plan.signature(p).is_some()).collect();
        let workspace = Workspace::new(&*plan, &passes, device)?;
        Ok(Self { problem, plan, device: device.clone(), workspace })
    }
    /// What is solved.
    pub fn problem(&self) -> &Arc<dyn Problem> {
        &self.problem
    }
    /// The plan.
    pub fn plan(&self) -> &dyn Plan {
        &*self.plan
    }
    /// The memory.
    pub fn workspace(&mut self) -> &mut Workspace {
        &mut self.workspace
    }
    /// Runs a pass on `inputs` and returns its outputs.
    ///
    /// What `inputs` lacks must have been given or written by an earlier pass: the backward pass needs only the
    /// gradients of the outputs. Names that no pass knows are refused.
    ///
    /// # Errors
    /// A pass that was not planned, unknown names, wrong shapes, and what the pass itself refuses.
    pub fn run(&mut self, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
        for (name, values) in inputs.iter() {
            self.workspace.set(name, values)?;
        }
        self.workspace.bind(&*self.plan, pass, default_stream(&self.device))?.run()?;
        self.device.synchronize()?;
        let entry = self.plan.entry();
        let signature = self
            .plan
            .signature(pass)
            .ok_or_else(|| Error::config(format!("{entry}: the plan has no {} pass", pass.name())))?;
        signature.outputs.iter().map(|t| Ok((t.name.to_string(), self.workspace.get(&t.name)?))).collect()
    }
    /// The forward pass.
    pub fn forward(&mut self, inputs: &Tensors) -> Result<Tensors> {
        self.run(Pass::Forward, inputs)
    }
    /// The backward pass, after [`forward`](Self::forward), from the gradients of its outputs.
    pub fn backward(&mut self, gradients: &Tensors) -> Result<Tensors> {
        self.run(Pass::Backward, gradients)
    }
}
