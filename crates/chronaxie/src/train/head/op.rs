//! The head as an entry of the registry.

use super::reference::{self, Inputs, Targets};
use super::{LinearHead, Loss, Pooling, cpu, cuda};
use crate::cuda::Specialisation;
use crate::op::{
    Case, CaseSet, Channels, Cost, LinearMap, Op, Pass, Plan, PlanOptions, Problem, Signature, Tensors, Tolerance,
    Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Error, Result};
use std::sync::Arc;

impl Problem for LinearHead {
    fn entry(&self) -> &'static str {
        "linear_head"
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
        let read = signature.inputs.iter().filter(|t| t.role != crate::op::Role::Saved);
        Ok(read
            .map(|t| {
                let values = match &*t.name {
                    // Every length but the first row's, which is full; 0 is a padding row.
                    "lengths" => {
                        let mut first = true;
                        Values::from_fn(t.shape, || {
                            let full = std::mem::replace(&mut first, false);
                            if full { self.steps as f64 } else { rng.below(self.steps as u64 + 1) as f64 }
                        })
                    }
                    "labels" => Values::from_fn(t.shape, || rng.below(self.classes as u64) as f64),
                    "weight" => {
                        let scale = 1.0 / (self.features.max(1) as f64).sqrt();
                        Values::from_fn(t.shape, || scale * rng.normal())
                    }
                    _ => Values::from_fn(t.shape, || rng.normal()),
                };
                (t.name.to_string(), values.rounded(t.dtype))
            })
            .collect())
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature_of(pass)?;
        if f32_arithmetic { run::<f32>(self, pass, inputs) } else { run::<f64>(self, pass, inputs) }
    }
    fn tolerance(&self, _: Pass, output: &str) -> Option<Tolerance> {
        self.tolerance_of(output)
    }
    fn linear_map(&self) -> Option<LinearMap> {
        // What reads the mean of a row's states, or its last one, has one step.
        let (steps, x) = if self.pooling == Pooling::Every { (self.steps, "h") } else { (1, "pooled") };
        Some(LinearMap {
            batch: self.batch,
            steps,
            x,
            grad: "delta",
            weight: "weight",
            bias: Some("bias"),
            from: Channels::beside(self.features),
            to: Channels::beside(self.classes),
        })
    }
    fn cost(&self, pass: Pass) -> Cost {
        let Ok(signature) = self.signature_of(pass) else { return Cost::default() };
        let bytes = signature.inputs.iter().chain(&signature.outputs).map(|t| t.bytes() as u64).sum();
        let rows = (self.batch * self.readouts()) as u64;
        let product = 2 * rows * (self.features * self.classes) as u64;
        let exponentials = if self.loss == Loss::CrossEntropy { rows * (self.classes as u64 + 1) } else { 0 };
        match pass {
            Pass::Forward => Cost { bytes, flops: product, special: exponentials, serial_steps: 1 },
            _ => Cost { bytes, flops: 2 * product, special: 0, serial_steps: 1 },
        }
    }
}

fn run<R: Real>(p: &LinearHead, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
    let real = |name: &str| Ok::<_, Error>(inputs.get(name)?.data.iter().map(|&x| R::from_f64(x)).collect::<Vec<R>>());
    let (h, weight, bias) = (real("h")?, real("weight")?, real("bias")?);
    let lengths: Vec<usize> = inputs.get("lengths")?.data.iter().map(|&x| (x.max(0.0) as usize).min(p.steps)).collect();
    let (mut labels, mut values) = (Vec::new(), Vec::new());
    match p.loss {
        Loss::CrossEntropy => {
            let given: Vec<i32> = inputs.get("labels")?.data.iter().map(|&x| x as i32).collect();
            super::check_labels(&given, p.classes)?;
            labels.extend(given.iter().map(|&l| l as usize));
        }
        Loss::Mse => values = real("values")?,
    }
    let targets = if p.loss == Loss::Mse { Targets::Values(&values) } else { Targets::Labels(&labels) };
    let i = Inputs { h: &h, lengths: &lengths, weight: &weight, bias: &bias, targets };
    let out = |shape: &[usize], data: &[R]| Values::new(shape, data.iter().map(|x| x.to_f64()).collect());
    let mut outputs = Tensors::new();
    if pass == Pass::Forward {
        let (loss, logits) = reference::forward(p, &i);
        outputs.insert("loss", out(&[1], &[loss])?);
        outputs.insert("logits", out(&[p.batch, p.classes], &logits)?);
    } else {
        let (grad_loss, grad_logits) = (real("grad_loss")?, real("grad_logits")?);
        let g = reference::backward(p, &i, grad_loss[0], &grad_logits);
        outputs.insert("grad_h", out(&[p.batch, p.steps, p.features], &g.h)?);
        outputs.insert("grad_weight", out(&[p.classes, p.features], &g.weight)?);
        outputs.insert("grad_bias", out(&[p.classes], &g.bias)?);
    }
    Ok(outputs)
}

/// The entry `linear_head`.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinearHeadOp;

impl Op for LinearHeadOp {
    fn name(&self) -> &'static str {
        "linear_head"
    }
    fn summary(&self) -> &'static str {
        "linear read-out of recurrent states with cross-entropy or squared error over unequal lengths"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward, Pass::Backward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let list: &[&str] = match set {
            CaseSet::Compared => &["B32_T64_M128_C10", "B128_T256_M256_C10,pooling=every"],
            CaseSet::Cpu => &["B32_T29_M64_C9"],
            CaseSet::Check => &[
                "B5_T4_M7_C3",
                "B5_T4_M7_C3,pooling=mean",
                "B5_T4_M7_C3,pooling=every",
                "B5_T4_M7_C3,loss=mse",
                "B5_T4_M7_C3,loss=mse,pooling=mean",
                "B5_T4_M7_C3,loss=mse,pooling=every",
                "B1_T1_M1_C1",
                "B33_T29_M64_C9,pooling=mean",
                "B70_T9_M300_C301",
                "B70_T9_M33_C40,pooling=every",
                "B3_T0_M4_C2",
                "B0_T3_M4_C2,pooling=every",
                "B4_T3_M0_C2,pooling=mean",
                "B4_T3_M5_C2,backward=false",
                "B20000_T1_M5_C3",
                "B4096_T9_M5_C3,pooling=every",
            ],
        };
        list.iter().map(|c| c.parse().expect("a case of this list")).collect()
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["B", "T", "M", "C"], &["loss", "pooling", "backward"])?;
        let p = LinearHead::new(case.size("B")?, case.size("T")?, case.size("M")?, case.size("C")?)
            .loss(case.option("loss").map_or(Ok(Loss::CrossEntropy), str::parse)?)
            .pooling(case.option("pooling").map_or(Ok(Pooling::Last), str::parse)?)
            .backward(case.get("backward", true)?);
        Ok(Arc::new(p.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
