//! Muon's step as an entry of the registry.

use super::reference::{self, State};
use super::spec::{Muon, NAME};
use super::{cpu, cuda};
use crate::cuda::Specialisation;
use crate::op::{
    Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Precision, Problem, Repeats, Signature, Tensors, Tolerance,
    Values,
};
use crate::optim::blocks::Grid;
use crate::optim::sample;
use crate::optim::stepper::{Stepper, ones};
use crate::real::Real;
use crate::{Device, Error, Result};
use std::sync::Arc;

impl Problem for Muon {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        self.signature_of(pass)
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        let problem = self.clone().build()?;
        match device {
            Device::Cpu => {
                options.one_way(self.entry(), device)?;
                Ok(Box::new(cpu::CpuPlan::new(problem, options)?))
            }
            Device::Cuda(device) => Ok(Box::new(cuda::CudaPlan::new(problem, device, options)?)),
        }
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        Ok(sample::state(&self.signature_of(pass)?, &Grid::default(), &self.parameters, 12, seed))
    }
    fn repeated(&self, pass: Pass, seed: u64) -> Result<Option<Repeats>> {
        Ok(sample::repeated(&self.signature_of(pass)?, &Grid::default(), 12, seed))
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature_of(pass)?;
        if f32_arithmetic { run::<f32>(self, inputs) } else { run::<f64>(self, inputs) }
    }
    fn tolerance(&self, _: Pass, output: &str) -> Option<Tolerance> {
        self.tolerance_of(output)
    }
    fn cost(&self, _: Pass) -> Cost {
        let flops = 17 * self.elements as u64 + self.matrices().iter().map(|m| self.flops_of(m)).sum::<u64>();
        Cost { bytes: 36 * self.elements as u64, flops, special: 0, serial_steps: 3 * self.steps as u64 }
    }
}

impl Stepper for Muon {
    fn initial(&self, _: &str) -> Option<Vec<f32>> {
        None
    }
    fn opening(&self) -> Option<(u64, Arc<dyn Problem>)> {
        None
    }
}

fn run<R: Real>(p: &Muon, inputs: &Tensors) -> Result<Tensors> {
    let real = |name: &str| Ok::<_, Error>(inputs.get(name)?.data.iter().map(|&x| R::from_f64(x)).collect::<Vec<R>>());
    let number = |name: &str| Ok::<_, Error>(inputs.get(name)?.data[0]);
    let mut state = State {
        parameter: real("parameter")?,
        first: real("first")?,
        second: real("second")?,
        step: number("step")? as usize,
        largest_rate: number("largest_rate")?,
    };
    let norm = reference::step(p, &mut state, &real("grad")?, &real("decay")?, number("rate")?);
    let out = |data: &[R]| Values::new([data.len()], data.iter().map(|x| x.to_f64()).collect());
    let mut outputs = Tensors::new();
    for (name, data) in [
        ("parameter", &state.parameter),
        ("first", &state.first),
        ("second", &state.second),
        ("grad_norm", &vec![norm]),
    ] {
        outputs.insert(name, out(data)?);
    }
    outputs.insert("step", ones(state.step as f64));
    outputs.insert("largest_rate", ones(state.largest_rate));
    Ok(outputs)
}

/// The entry `muon`.
#[derive(Debug, Clone, Copy, Default)]
pub struct MuonOp;

impl Op for MuonOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "one step of Muon over a flat vector: momentum of matrices made orthogonal, AdamW for the rest"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Step]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let list: &[&str] = match set {
            CaseSet::Compared => &["L8_M512_N512", "lm350m", "lm350m,precision=fast"],
            CaseSet::Cpu => &["L4_M128_N64"],
            CaseSet::Check => &[
                "L0_M3_N2",
                "L2_M1_N1",
                "L2_M7_N5,clip=1,decay=0.1",
                "L1_M5_N70,decay=0.1,mode=l2,nesterov=false",
                "L1_M140_N33,decay=0.1,mode=corrected,steps=3",
                "L1_M4_N9,K=6,decay=0.1,mode=independent",
                "P2,shapes=9x6+2x3x7,decay=0.1,momentum=0.8",
                "P4,shapes=130x300+257x129+20+90x500,clip=1,decay=0.1",
                "P2,shapes=200x130+150x260,precision=fast",
            ],
        };
        list.iter().map(|c| c.parse().expect("a case of this list")).collect()
    }
    fn smaller(&self, case: &Case) -> Option<Case> {
        sample::smaller(case, 256)
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        sample::allow(
            case,
            &["K", "clip", "decay", "mode", "momentum", "nesterov", "steps", "words", "shapes", "precision"],
        )?;
        let (elements, parameters) = sample::parameters(case)?;
        let mut p = Muon::new(elements, parameters);
        p.common = sample::common(case)?;
        p.momentum = case.get("momentum", p.momentum)?;
        p.nesterov = case.get("nesterov", p.nesterov)?;
        p.steps = case.get("steps", p.steps)?;
        p.precision = case.get("precision", Precision::Exact)?;
        Ok(Arc::new(p.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
