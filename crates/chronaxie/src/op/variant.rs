//! The option `variant` of a case: the same problem with its plan's variant chosen by name.

use super::{Case, Cost, Op, Pass, Plan, PlanOptions, Probe, Problem, Repeats, Signature, Tensors, Tolerance, Values};
use crate::{Device, Result};
use std::sync::Arc;

/// The problem that a case spells, for every entry alike: `variant=NAME` picks a variant, the rest is the entry's.
pub fn problem(op: &dyn Op, case: &Case) -> Result<Arc<dyn Problem>> {
    let (rest, variant) = case.without("variant");
    let problem = op.problem(&rest)?;
    Ok(match variant {
        None => problem,
        Some(variant) => Arc::new(Varied { problem, variant }),
    })
}

#[derive(Debug)]
struct Varied {
    problem: Arc<dyn Problem>,
    variant: String,
}

impl Problem for Varied {
    fn entry(&self) -> &'static str {
        self.problem.entry()
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        self.problem.signature(pass)
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        self.problem.plan(device, &PlanOptions { variant: Some(self.variant.clone()), ..options.clone() })
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        self.problem.sample(pass, seed)
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.problem.reference(pass, inputs, f32_arithmetic)
    }
    fn probes(&self, pass: Pass) -> bool {
        self.problem.probes(pass)
    }
    fn probe(&self, pass: Pass, values: &dyn Fn(&str) -> Result<Values>) -> Result<Vec<Probe>> {
        self.problem.probe(pass, values)
    }
    fn beside(
        &self,
        pass: Pass,
        before: &dyn Fn(&str) -> Result<Values>,
        after: &dyn Fn(&str) -> Result<Values>,
    ) -> Result<Vec<Probe>> {
        self.problem.beside(pass, before, after)
    }
    fn tolerance(&self, pass: Pass, output: &str) -> Option<Tolerance> {
        self.problem.tolerance(pass, output)
    }
    fn has_no_result(&self) -> bool {
        self.problem.has_no_result()
    }
    fn cost(&self, pass: Pass) -> Cost {
        self.problem.cost(pass)
    }
    fn repeated(&self, pass: Pass, seed: u64) -> Result<Option<Repeats>> {
        self.problem.repeated(pass, seed)
    }
}
