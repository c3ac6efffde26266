//! `ghost_norms` as an entry of the registry.

use super::spec::{GhostNorms, NAME, Way};
use super::{cpu, cuda, reference};
use crate::cuda::Specialisation;
use crate::op::{
    Case, CaseSet, Channels, Cost, LinearMap, Op, Pass, Plan, PlanOptions, Problem, Signature, TensorSpec, Tensors,
    Tolerance, Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Error, Result};
use std::sync::Arc;

impl Problem for GhostNorms {
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
        let mut rng = Rng::new(seed, 0);
        let draw = |t: &TensorSpec| {
            let values = match &*t.name {
                // The first row is whole, and any other one may be padding alone.
                "lengths" => {
                    let mut first = true;
                    Values::from_fn(t.shape, || {
                        let whole = std::mem::replace(&mut first, false);
                        if whole { self.steps() as f64 } else { rng.below(self.steps() as u64 + 1) as f64 }
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
    fn tolerance(&self, _: Pass, _: &str) -> Option<Tolerance> {
        Some(self.tolerance_of())
    }
    fn cost(&self, pass: Pass) -> Cost {
        let Ok(signature) = self.signature_of(pass) else { return Cost::default() };
        let bytes = signature.inputs.iter().chain(&signature.outputs).map(|t| t.bytes() as u64).sum();
        let products = |m: &LinearMap| {
            let [t, a, h] = [m.steps, GhostNorms::inputs(m), m.to.count].map(|n| n as u64);
            match GhostNorms::way(m) {
                Way::Pairs => t * (t + 1) * (a + h),
                Way::Gradient => 2 * (t + 1) * a * h,
            }
        };
        let flops = self.batch as u64 * self.maps.iter().map(products).sum::<u64>();
        Cost { bytes, flops, special: 0, serial_steps: 1 }
    }
}

fn run<R: Real>(p: &GhostNorms, inputs: &Tensors) -> Result<Tensors> {
    let real =
        |name: String| -> Result<Vec<R>> { Ok(inputs.get(&name)?.data.iter().map(|&x| R::from_f64(x)).collect()) };
    let lengths: Vec<usize> =
        inputs.get("lengths")?.data.iter().map(|&x| (x.max(0.0) as usize).min(p.steps())).collect();
    let sequences = (0..p.maps.len())
        .map(|nth| Ok([real(format!("x{nth}"))?, real(format!("grad{nth}"))?]))
        .collect::<Result<Vec<_>>>()?;
    let squares = reference::squares(p, &sequences, &lengths).iter().map(|x| x.to_f64()).collect();
    Ok([("squares".to_owned(), Values::new([p.batch], squares)?)].into_iter().collect())
}

/// `784x512` as inputs and outputs.
fn sides(text: &str) -> Result<(usize, usize)> {
    let parts = text.split_once('x').and_then(|(d, h)| Some((d.trim().parse().ok()?, h.trim().parse().ok()?)));
    parts.ok_or_else(|| Error::config(format!("{NAME}: maps: `{text}` is not a map such as 784x512")))
}

/// The entry `ghost_norms`.
#[derive(Debug, Clone, Copy, Default)]
pub struct GhostNormsOp;

impl Op for GhostNormsOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "squared norms of single samples' gradients of linear maps, without the gradients"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Step]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        Case::list(match set {
            // A two-layer MLP on pictures, and the maps of a recurrent layer.
            CaseSet::Compared => &["B512_T1_D784_H512,layers=2", "B64_T128_D256_H256"],
            CaseSet::Cpu => &["B64_T1_D256_H128,layers=2", "B16_T32_D64_H64"],
            CaseSet::Check => &[
                "B0_T3_D2_H4",
                "B3_T0_D2_H4",
                "B2_T3_D0_H4",
                "B2_T3_D4_H0",
                "B1_T1_D1_H1",
                "B2_T3_D4_H5,layers=0",
                "B9_T1_D33_H7,layers=2",
                "B3_T7_D6_H12,from=3,to=4,bias=false",
                "B18_T20_D40_H33",
                "B2_T100_D300_H200,from=300",
                "B5_T70_D100_H90,to=9",
                "B4_T130_D70_H65,layers=2",
                "B3_T500_D5_H130,from=5",
                "B2_T200_D9_H70,bias=false",
                "B7_T1,maps=33x5+5x40+40x1",
                "B4_T20,maps=6x3+33x40,bias=false",
            ],
        })
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        let bias = case.get("bias", true)?.then_some("bias");
        if let Some(maps) = case.option("maps") {
            case.allow(&["B", "T"], &["bias", "maps"])?;
            let (batch, steps) = (case.size("B")?, case.size("T")?);
            let map = |text| {
                let (from, to) = sides(text)?;
                Ok(LinearMap {
                    batch,
                    steps,
                    x: "x",
                    grad: "grad_y",
                    weight: "weight",
                    bias,
                    from: Channels::beside(from),
                    to: Channels::beside(to),
                })
            };
            let maps = maps.split('+').map(map).collect::<Result<_>>()?;
            return Ok(Arc::new(GhostNorms::new(batch, maps).build()?));
        }
        case.allow(&["B", "T", "D", "H"], &["from", "to", "bias", "layers"])?;
        let (batch, steps, h) = (case.size("B")?, case.size("T")?, case.size("H")?);
        let to = Channels::grouped(h, case.get("to", 1)?);
        let map = |from| LinearMap { batch, steps, x: "x", grad: "grad_y", weight: "weight", bias, from, to };
        let first = Channels::grouped(case.size("D")?, case.get("from", 1)?);
        // What stands behind a layer reads what it gives.
        let layers = case.get("layers", 1u8)?;
        let maps = (0..layers).map(|nth| map(if nth == 0 { first } else { to }));
        Ok(Arc::new(GhostNorms::new(batch, maps.collect()).build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
