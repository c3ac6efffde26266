//! `kfac_factors` as an entry of the registry.

use super::reference::{self, Inputs};
use super::spec::{Factors, NAME};
use super::{Sharing, Terms, cpu, cuda};
use crate::cuda::Specialisation;
use crate::op::{
    Case, CaseSet, Channels, Cost, LinearMap, Op, Pass, Plan, PlanOptions, Problem, Signature, Tensors, Tolerance,
    Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Error, Result};
use std::sync::Arc;

impl Problem for Factors {
    fn entry(&self) -> &'static str {
        NAME
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
        let draw = |t: &crate::op::TensorSpec| {
            let values = match &*t.name {
                // The first row is whole, and any other one may be padding alone.
                "lengths" => {
                    let mut first = true;
                    Values::from_fn(t.shape, || {
                        let whole = std::mem::replace(&mut first, false);
                        if whole { self.steps as f64 } else { rng.below(self.steps as u64 + 1) as f64 }
                    })
                }
                _ => Values::from_fn(t.shape, || rng.normal()),
            };
            (t.name.to_string(), values.rounded(t.dtype))
        };
        Ok(self.signature_of(pass)?.inputs.iter().map(draw).collect())
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature_of(pass)?;
        if f32_arithmetic { run::<f32>(self, inputs) } else { run::<f64>(self, inputs) }
    }
    fn tolerance(&self, _: Pass, output: &str) -> Option<Tolerance> {
        self.tolerance_of(output)
    }
    fn cost(&self, pass: Pass) -> Cost {
        let Ok(signature) = self.signature_of(pass) else { return Cost::default() };
        let bytes = signature.inputs.iter().chain(&signature.outputs).map(|t| t.bytes() as u64).sum();
        let samples = self.batch as u64 * if self.sharing == Sharing::Expand { self.steps as u64 } else { 1 };
        let (a, h) = (self.inputs() as u64, self.to.count as u64);
        // Half of each Gram matrix; the squares take two turns and a product.
        let each = a * a + h * h + if self.squares { 2 * (a * a + h * h + a * h) } else { 0 };
        Cost { bytes, flops: samples * each, special: 0, serial_steps: 1 }
    }
}

fn run<R: Real>(p: &Factors, inputs: &Tensors) -> Result<Tensors> {
    let real = |name: &str| Ok::<_, Error>(inputs.get(name)?.data.iter().map(|&x| R::from_f64(x)).collect::<Vec<R>>());
    let lengths: Vec<usize> = inputs.get("lengths")?.data.iter().map(|&x| (x.max(0.0) as usize).min(p.steps)).collect();
    let bases = if p.squares { Some([real("basis_a")?, real("basis_g")?]) } else { None };
    let given = Inputs {
        x: &real("x")?,
        grad: &real("grad")?,
        lengths: &lengths,
        bases: bases.as_ref().map(|[a, g]| [&a[..], &g[..]]),
    };
    let made = reference::forward(p, &given);
    let lists = [("a", &made.a), ("g", &made.g), ("squares", &made.squares)];
    let signature = p.signature_of(Pass::Forward)?;
    lists
        .into_iter()
        .filter_map(|(name, data)| Some((name, data, &signature.outputs[signature.output(name)?])))
        .map(|(name, data, t)| {
            let data = data.iter().map(|x| x.to_f64()).collect();
            Ok((name.to_owned(), Values::new(t.shape, data)?))
        })
        .collect()
}

/// The entry `kfac_factors`.
#[derive(Debug, Clone, Copy, Default)]
pub struct KfacFactorsOp;

impl Op for KfacFactorsOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "second moments of a linear map's inputs and of the gradients of its outputs, as KFAC takes them"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        Case::list(match set {
            CaseSet::Compared => &["B32_T64_D256_H256", "B32_T64_D256_H256,squares=true"],
            CaseSet::Cpu => &["B32_T64_D64_H64,to=64"],
            CaseSet::Check => &[
                "B0_T3_D2_H4",
                "B3_T0_D2_H4",
                "B2_T3_D0_H4",
                "B2_T3_D4_H0",
                "B1_T1_D1_H1",
                "B3_T7_D5_H9",
                "B3_T7_D6_H12,from=3,to=4,bias=false,terms=positions",
                "B5_T7_D5_H9,to=9,sharing=reduce",
                "B5_T1_D33_H7,squares=true",
                "B9_T70_D20_H35,from=20,to=7,squares=true,terms=positions",
                "B40_T70_D9_H6,squares=true,sharing=reduce,bias=false",
                "B70_T90_D17_H33,to=33",
            ],
        })
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["B", "T", "D", "H"], &["from", "to", "bias", "sharing", "terms", "squares"])?;
        let map = LinearMap {
            batch: case.size("B")?,
            steps: case.size("T")?,
            x: "x",
            grad: "grad_y",
            weight: "weight",
            bias: case.get("bias", true)?.then_some("bias"),
            from: Channels::grouped(case.size("D")?, case.get("from", 1)?),
            to: Channels::grouped(case.size("H")?, case.get("to", 1)?),
        };
        let p = Factors::new(&map)
            .sharing(case.option("sharing").map_or(Ok(Sharing::default()), str::parse)?)
            .terms(case.option("terms").map_or(Ok(Terms::default()), str::parse)?)
            .squares(case.get("squares", false)?);
        Ok(Arc::new(p.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
