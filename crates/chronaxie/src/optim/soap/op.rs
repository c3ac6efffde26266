//! Soap's step as an entry of the registry.

use super::reference::{self, State};
use super::spec::{NAME, Soap};
use super::{cpu, cuda, probe};
use crate::cuda::Specialisation;
use crate::op::{
    Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Probe, Problem, Repeats, Signature, Tensors, Tolerance, Values,
};
use crate::optim::blocks::Block;
use crate::optim::sample;
use crate::optim::stepper::{Stepper, ones};
use crate::real::Real;
use crate::{Device, Error, Result};
use std::sync::Arc;

impl Problem for Soap {
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
        let steps = if self.opens { 0 } else { 12 };
        let mut all = sample::state(&self.signature_of(pass)?, &self.grid, &self.parameters, steps, seed);
        if let Some(rank) = self.rank {
            sample::of_rank(&mut all, &self.grid, rank, seed)?;
        }
        Ok(all)
    }
    fn repeated(&self, pass: Pass, seed: u64) -> Result<Option<Repeats>> {
        // Of a rank, factors are those of their gradients.
        if self.rank.is_some() {
            return Ok(None);
        }
        let steps = if self.opens { 0 } else { 12 };
        Ok(sample::repeated(&self.signature_of(pass)?, &self.grid, steps, seed))
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature_of(pass)?;
        if f32_arithmetic { run::<f32>(self, inputs) } else { run::<f64>(self, inputs) }
    }
    fn beside(
        &self,
        _: Pass,
        before: &dyn Fn(&str) -> Result<Values>,
        after: &dyn Fn(&str) -> Result<Values>,
    ) -> Result<Vec<Probe>> {
        Ok(probe::bases(self, after("step")?.data[0] as usize, &before("bases")?, &after("factors")?, &after("bases")?))
    }
    fn tolerance(&self, _: Pass, output: &str) -> Option<Tolerance> {
        self.tolerance_of(output)
    }
    fn cost(&self, _: Pass) -> Cost {
        let of = |b: &Block| self.flops_of_turns(b) + self.flops_of_bases(b);
        let flops = 20 * self.elements as u64 + self.grid.blocks.iter().map(of).sum::<u64>();
        let matrices = 2 * self.grid.factor_elements + self.grid.root_elements;
        let bytes = 4 * (8 * self.elements + matrices) as u64;
        Cost { bytes, flops, special: self.elements as u64, serial_steps: 6 }
    }
}

impl Soap {
    /// Operations of half a Gram matrix and three turns, of every axis of a block.
    pub(super) fn flops_of_turns(&self, b: &Block) -> u64 {
        let sides = b.sizes.iter().take(b.factors.len());
        sides.map(|&n| 7 * b.elements() as u64 * n as u64).sum()
    }
    /// Operations of its bases, a share of them a step: a product and Gram-Schmidt, twice.
    pub(super) fn flops_of_bases(&self, b: &Block) -> u64 {
        let sides = b.sizes.iter().take(b.factors.len());
        sides.map(|&n| 6 * (n as u64).pow(3) / self.precondition_frequency as u64).sum()
    }
}

impl Stepper for Soap {
    fn initial(&self, _: &str) -> Option<Vec<f32>> {
        None
    }
    fn opening(&self) -> Option<(u64, Arc<dyn Problem>)> {
        Some((1, Arc::new(Self { opens: true, ..self.clone() })))
    }
}

fn run<R: Real>(p: &Soap, inputs: &Tensors) -> Result<Tensors> {
    let real = |name: &str| Ok::<_, Error>(inputs.get(name)?.data.iter().map(|&x| R::from_f64(x)).collect::<Vec<R>>());
    let number = |name: &str| Ok::<_, Error>(inputs.get(name)?.data[0]);
    let mut state = State {
        parameter: real("parameter")?,
        first: real("first")?,
        second: real("second")?,
        factors: real("factors")?,
        bases: real("bases")?,
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
        ("factors", &state.factors),
        ("bases", &state.bases),
        ("grad_norm", &vec![norm]),
    ] {
        outputs.insert(name, out(data)?);
    }
    outputs.insert("step", ones(state.step as f64));
    outputs.insert("largest_rate", ones(state.largest_rate));
    Ok(outputs)
}

/// The entry `soap`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SoapOp;

impl Op for SoapOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "one step of SOAP over a flat vector: Adam in the eigenbases of Shampoo's factors"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Step]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let list: &[&str] = match set {
            CaseSet::Compared => &["L8_M256_N256,block=256"],
            CaseSet::Cpu => &["L4_M64_N64,block=64"],
            CaseSet::Check => &[
                "L0_M3_N2",
                "L1_M1_N1",
                "L2_M7_N5,block=8,every=1,clip=1,decay=0.1",
                "L3_M33_N20,block=16,every=3",
                "L1_M12_N9,K=4,block=9,every=1,vectors=true,merge=true",
                "L1_M16_N16,block=16,opens=true",
                "L2_M9_N6,block=7,every=1,bias=false,shampoo_beta=0.8,eps=1e-3,decay=0.1,mode=l2",
                "L1_M70_N65,block=70,every=1",
                "L1_M70_N33,block=70,every=1,rank=5",
                "L1_M9_N70,block=70,rank=3,opens=true",
                "L1_M9_N7,block=9,every=1,rank=0",
                "L1_M9_N7,block=9,rank=0,opens=true",
            ],
        };
        list.iter().map(|c| c.parse().expect("a case of this list")).collect()
    }
    fn smaller(&self, case: &Case) -> Option<Case> {
        sample::smaller(case, 256)
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        let options = [
            "K",
            "words",
            "shapes",
            "block",
            "every",
            "clip",
            "decay",
            "mode",
            "beta1",
            "beta2",
            "shampoo_beta",
            "eps",
            "vectors",
            "merge",
            "bias",
            "opens",
            "rank",
        ];
        sample::allow(case, &options)?;
        let (elements, parameters) = sample::parameters(case)?;
        let mut p = Soap::new(elements, parameters);
        p.max_preconditioner_dim = case.get("block", p.max_preconditioner_dim)?;
        p.precondition_frequency = case.get("every", p.precondition_frequency)?;
        (p.beta1, p.beta2) = (case.get("beta1", p.beta1)?, case.get("beta2", p.beta2)?);
        p.shampoo_beta = case.option("shampoo_beta").map(|_| case.get("shampoo_beta", 0.0)).transpose()?;
        p.epsilon = case.get("eps", p.epsilon)?;
        p.common = sample::common(case)?;
        (p.precondition_vectors, p.merge_dims) = (case.get("vectors", false)?, case.get("merge", false)?);
        (p.correct_bias, p.opens) = (case.get("bias", true)?, case.get("opens", false)?);
        p.rank = case.option("rank").map(|_| case.get("rank", 0)).transpose()?;
        Ok(Arc::new(p.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
