//! Shampoo's step as an entry of the registry.

use super::reference::{self, State};
use super::spec::{Grafting, NAME, Shampoo};
use super::{cpu, cuda};
use crate::cuda::Specialisation;
use crate::op::{
    Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Precision, Problem, Repeats, Signature, Tensors, Tolerance,
    Values,
};
use crate::optim::blocks::Block;
use crate::optim::sample;
use crate::optim::stepper::{Stepper, ones};
use crate::real::Real;
use crate::{Device, Error, Result};
use std::sync::Arc;

impl Problem for Shampoo {
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
        Ok(sample::state(&self.signature_of(pass)?, &self.grid, &self.parameters, 12, seed))
    }
    fn repeated(&self, pass: Pass, seed: u64) -> Result<Option<Repeats>> {
        Ok(sample::repeated(&self.signature_of(pass)?, &self.grid, 12, seed))
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature_of(pass)?;
        if f32_arithmetic { run::<f32>(self, inputs) } else { run::<f64>(self, inputs) }
    }
    fn tolerance(&self, _: Pass, output: &str) -> Option<Tolerance> {
        self.tolerance_of(output)
    }
    fn cost(&self, _: Pass) -> Cost {
        let of = |b: &Block| self.flops_of_products(b) + self.flops_of_roots(b);
        let flops = 20 * self.elements as u64 + self.grid.blocks.iter().map(of).sum::<u64>();
        let moments = if self.grafting.squares() { 2 } else { 1 };
        let vectors = (4 + 2 * moments) * self.elements;
        // Factors in and out, roots in; at their turns factors in again and roots out.
        let matrices = 2 * self.grid.factor_elements + self.grid.root_elements;
        Cost { bytes: 4 * (vectors + matrices) as u64, flops, special: self.elements as u64, serial_steps: 4 }
    }
}

impl Shampoo {
    /// Operations of half a Gram matrix and of a product with the root, of every axis of a block.
    pub(super) fn flops_of_products(&self, b: &Block) -> u64 {
        let sides = b.sizes.iter().take(b.factors.len());
        sides.map(|&n| 3 * b.elements() as u64 * n as u64).sum()
    }
    /// Operations of its roots, a share of them a step: Newton's 24 products of half of n^3.
    pub(super) fn flops_of_roots(&self, b: &Block) -> u64 {
        let every = if self.every_block { 1 } else { self.precondition_frequency as u64 };
        b.sizes.iter().take(b.factors.len()).map(|&n| 24 * (n as u64).pow(3) / every).sum()
    }
}

impl Stepper for Shampoo {
    fn initial(&self, state: &str) -> Option<Vec<f32>> {
        (state == "roots").then(|| self.grid.identities())
    }
    fn opening(&self) -> Option<(u64, Arc<dyn Problem>)> {
        Some((self.start_preconditioning_step as u64, Arc::new(Self { every_block: true, ..self.clone() })))
    }
}

fn run<R: Real>(p: &Shampoo, inputs: &Tensors) -> Result<Tensors> {
    let real = |name: &str| Ok::<_, Error>(inputs.get(name)?.data.iter().map(|&x| R::from_f64(x)).collect::<Vec<R>>());
    let number = |name: &str| Ok::<_, Error>(inputs.get(name)?.data[0]);
    let mut state = State {
        parameter: real("parameter")?,
        first: real("first")?,
        second: real("second")?,
        factors: real("factors")?,
        roots: real("roots")?,
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
        ("roots", &state.roots),
        ("grad_norm", &vec![norm]),
    ] {
        outputs.insert(name, out(data)?);
    }
    outputs.insert("step", ones(state.step as f64));
    outputs.insert("largest_rate", ones(state.largest_rate));
    Ok(outputs)
}

/// The entry `shampoo`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShampooOp;

impl Op for ShampooOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "one step of Shampoo over a flat vector: blocks, grafting, roots in turns"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Step]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let list: &[&str] = match set {
            CaseSet::Compared => &[
                "L8_M256_N256,block=256,relative=1e-2",
                "lm350m",
                "lm350m,every=20",
                "lm350m,every=100",
                "lm350m,every=100,precision=fast",
            ],
            CaseSet::Cpu => &["L4_M64_N64,block=64,relative=1e-2"],
            CaseSet::Check => &[
                "L0_M3_N2",
                "L1_M1_N1,relative=1e-2",
                "L2_M7_N5,block=8,relative=1e-2,clip=1,decay=0.1",
                "L3_M33_N20,block=16,every=3,relative=1e-2",
                "L1_M12_N9,K=4,block=9,relative=1e-2,all=true",
                "L1_M40_N33,block=64,relative=1e-4,beta2=1,grafting=adagrad,vectors=false,all=true",
                "L2_M9_N6,block=7,relative=1e-2,grafting=sgd,decay=0.1,mode=corrected,start=40",
                "L2_M8_N8,words=20,block=8,relative=1e-2",
                "P3,shapes=9x6+5+2x3x7,block=7,relative=1e-2",
                "L2_M9_N6,block=7,relative=1e-2,grafting=none,exponent=1/3,decay=0.1,mode=l2,all=true",
                "L1_M10_N70,block=70,relative=1e-2,grafting=rmsprop,decay=0.1,mode=independent,exponent=2/5,all=true",
                "L1_M200_N130,block=200,relative=1e-2,clip=1,decay=0.1,precision=fast",
                "L1_M128_N150,block=150,relative=1e-2,beta2=1,grafting=adagrad,decay=0.1,mode=l2,all=true,precision=fast",
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
            "block",
            "every",
            "start",
            "relative",
            "absolute",
            "clip",
            "decay",
            "mode",
            "beta1",
            "beta2",
            "grafting",
            "eps",
            "vectors",
            "exponent",
            "all",
            "words",
            "shapes",
            "precision",
        ];
        sample::allow(case, &options)?;
        let (elements, parameters) = sample::parameters(case)?;
        let mut p = Shampoo::new(elements, parameters);
        p.max_preconditioner_dim = case.get("block", p.max_preconditioner_dim)?;
        p.precondition_frequency = case.get("every", p.precondition_frequency)?;
        p.start_preconditioning_step = case.get("start", p.start_preconditioning_step)?;
        (p.relative, p.absolute) = (case.get("relative", p.relative)?, case.get("absolute", p.absolute)?);
        (p.beta1, p.beta2) = (case.get("beta1", p.beta1)?, case.get("beta2", p.beta2)?);
        p.common = sample::common(case)?;
        p.grafting = case.option("grafting").map_or(Ok(Grafting::default()), str::parse)?;
        p.grafting_eps = case.get("eps", p.grafting_eps)?;
        p.precondition_vectors = case.get("vectors", true)?;
        p.exponent = case.option("exponent").map(fraction).transpose()?;
        p.every_block = case.get("all", false)?;
        p.precision = case.get("precision", Precision::Exact)?;
        Ok(Arc::new(p.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}

/// `1/4` as its numerator and denominator.
///
/// # Errors
/// A sentence with the text, where it is no such fraction.
pub fn fraction(text: &str) -> Result<(u32, u32)> {
    let parts = text.split_once('/').and_then(|(q, p)| Some((q.trim().parse().ok()?, p.trim().parse().ok()?)));
    parts.ok_or_else(|| Error::config(format!("{NAME}: exponent `{text}` is not a fraction such as 1/4")))
}
