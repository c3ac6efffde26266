//! The optimizer step as an entry of the registry.

use super::reference::{self, State};
use super::{AdamW, cpu, cuda};
use crate::cuda::Specialisation;
use crate::op::{Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Problem, Signature, Tensors, Tolerance, Values};
use crate::optim::stepper::Stepper;
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Error, Result};
use std::sync::Arc;

impl Problem for AdamW {
    fn entry(&self) -> &'static str {
        "adamw"
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        self.signature_of(pass)
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        let problem = self.build()?;
        options.one_way(self.entry(), device)?;
        match device {
            Device::Cpu => Ok(Box::new(cpu::CpuPlan::new(problem, options)?)),
            Device::Cuda(device) => Ok(Box::new(cuda::CudaPlan::new(problem, device, options)?)),
        }
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        let mut rng = Rng::new(seed, 0);
        let signature = self.signature_of(pass)?;
        let read = signature.inputs.iter().chain(signature.outputs.iter().filter(|t| t.name != "grad_norm"));
        Ok(read
            .map(|t| {
                let values = Values::from_fn(t.shape, || match &*t.name {
                    "decay" => rng.below(2) as f64,
                    "rate" => 1e-2,
                    "step" => 3.0,
                    "second" => rng.normal().powi(2),
                    _ => rng.normal(),
                });
                (t.name.to_string(), values.rounded(t.dtype))
            })
            .collect())
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature_of(pass)?;
        if f32_arithmetic { run::<f32>(self, inputs) } else { run::<f64>(self, inputs) }
    }
    fn tolerance(&self, _: Pass, output: &str) -> Option<Tolerance> {
        self.tolerance_of(output)
    }
    fn cost(&self, _: Pass) -> Cost {
        let n = self.elements as u64;
        // Gradient (twice), decay, and three vectors in and out.
        Cost { bytes: 36 * n, flops: 17 * n, special: 2 * n, serial_steps: 2 }
    }
}

impl Stepper for AdamW {
    fn initial(&self, _: &str) -> Option<Vec<f32>> {
        None
    }
    fn opening(&self) -> Option<(u64, Arc<dyn Problem>)> {
        None
    }
}

fn run<R: Real>(p: &AdamW, inputs: &Tensors) -> Result<Tensors> {
    let real = |name: &str| Ok::<_, Error>(inputs.get(name)?.data.iter().map(|&x| R::from_f64(x)).collect::<Vec<R>>());
    let mut state = State {
        parameter: real("parameter")?,
        first: real("first")?,
        second: real("second")?,
        step: inputs.get("step")?.data[0] as u32,
    };
    let norm = reference::step(p, &mut state, &real("grad")?, &real("decay")?, real("rate")?[0]);
    let out = |data: &[R]| Values::new([data.len()], data.iter().map(|x| x.to_f64()).collect());
    let mut outputs = Tensors::new();
    outputs.insert("parameter", out(&state.parameter)?);
    outputs.insert("first", out(&state.first)?);
    outputs.insert("second", out(&state.second)?);
    outputs.insert("step", Values::new([1], vec![f64::from(state.step)])?);
    outputs.insert("grad_norm", out(&[norm])?);
    Ok(outputs)
}

/// The entry `adamw`.
#[derive(Debug, Clone, Copy, Default)]
pub struct AdamWOp;

impl Op for AdamWOp {
    fn name(&self) -> &'static str {
        "adamw"
    }
    fn summary(&self) -> &'static str {
        "one AdamW step over a flat vector, with the gradient clipped to a global norm"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Step]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let list: &[&str] = match set {
            CaseSet::Compared => &["N20000", "N20000000,clip=1"],
            CaseSet::Cpu => &["N20000,clip=1", "N4000000,clip=1"],
            CaseSet::Check => &[
                "N0",
                "N1,clip=1",
                "N31",
                "N2048,clip=1",
                "N2049,weight_decay=0",
                "N100003,clip=0.5",
                "N1500000,clip=1",
            ],
        };
        list.iter().map(|c| c.parse().expect("a case of this list")).collect()
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["N"], &["beta1", "beta2", "epsilon", "weight_decay", "clip"])?;
        let d = AdamW::new(case.size("N")?);
        let p = d
            .betas(case.get("beta1", d.beta1)?, case.get("beta2", d.beta2)?)
            .epsilon(case.get("epsilon", d.epsilon)?)
            .weight_decay(case.get("weight_decay", d.weight_decay)?)
            .clip(case.get("clip", d.clip)?);
        Ok(Arc::new(p.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
