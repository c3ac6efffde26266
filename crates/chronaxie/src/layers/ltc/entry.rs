//! LTC as an entry of the registry: its cases, and the problem behind the contract.

use super::spec::{Constraint, Kept, Ltc, Mapping, Save};
use super::wirings::Rule;
use super::{Connectivity, Synapses, cpu, cuda, half, init, per_sample, reference};
use crate::cuda::Specialisation;
use crate::op::{Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Precision, Problem, Signature, Tensors, Tolerance};
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result};
use std::any::Any;
use std::sync::Arc;

impl Problem for Ltc {
    fn entry(&self) -> &'static str {
        "ltc"
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        self.signature_of(pass)
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        if self.dtype != Dtype::F32 {
            return Ok(Box::new(half::HalfPlan::new(self, device, options)?));
        }
        if self.backward && self.asks_per_sample() {
            return per_sample::plan(self, device, options);
        }
        Ok(match device {
            Device::Cpu => Box::new(cpu::CpuPlan::new(self, options)?),
            Device::Cuda(d) => Box::new(cuda::CudaPlan::new(self, d, options)?),
        })
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        init::sample(self, pass, seed)
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        match (pass, f32_arithmetic) {
            (Pass::Backward, false) => reference::backward::<f64>(self, inputs),
            (Pass::Backward, true) => reference::backward::<f32>(self, inputs),
            (_, false) => reference::forward::<f64>(self, inputs),
            (_, true) => reference::forward::<f32>(self, inputs),
        }
    }
    fn tolerance(&self, _pass: Pass, output: &str) -> Option<Tolerance> {
        self.tolerance_of(output)
    }
    fn cost(&self, pass: Pass) -> Cost {
        let (s, ss) = (self.connectivity.recurrent.len() as u64, self.connectivity.sensory.len() as u64);
        let steps = (self.batch * self.steps) as u64;
        let gates = steps * (self.unfolds as u64 * s + ss);
        let serial_steps = (self.steps * self.unfolds) as u64;
        let bytes = |s: Result<Signature>| -> u64 {
            s.map_or(0, |s| s.inputs.iter().chain(&s.outputs).map(|t| t.bytes() as u64).sum())
        };
        // The LSTM's products, each of which has two backward, where its gates were kept.
        let (d, h) = (self.inputs as u64, self.hidden as u64);
        let (products, cells) = if self.mixed_memory { (8 * steps * h * (d + h), 5 * steps * h) } else { (0, 0) };
        // A gate and its two sums are 7 operations forward and 20 backward, where the states must also be rebuilt:
        // one more evaluation of each gate, unless the unfolds were kept.
        let rebuilt = if self.kept() == Kept::States { gates } else { 0 };
        match pass {
            Pass::Backward => Cost {
                bytes: bytes(self.signature_of(pass)),
                flops: 20 * gates + 7 * rebuilt + 2 * products,
                special: gates + rebuilt,
                serial_steps: 2 * serial_steps,
            },
            _ => Cost {
                bytes: bytes(self.signature_of(pass)),
                flops: 7 * gates + products,
                special: gates + cells,
                serial_steps,
            },
        }
    }
}

/// The entry `ltc`.
pub struct LtcEntry;

const OPTIONS: &[&str] = &[
    "density",
    "wiring",
    "unfolds",
    "dtype",
    "dt",
    "epsilon",
    "elapsed",
    "h0",
    "mixed",
    "norm",
    "input",
    "output",
    "outputs",
    "identity",
    "store",
    "precision",
    "backward",
    "seed",
    "wants",
    "per_sample",
];

impl Op for LtcEntry {
    fn name(&self) -> &'static str {
        "ltc"
    }
    fn summary(&self) -> &'static str {
        "liquid time-constant recurrence, semi-implicit Euler unfolds over sparse synapses"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward, Pass::Backward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let list: &[&str] = match set {
            CaseSet::Compared => &["B24_T8_D128_H64", "B32_T64_D128_H128", "B128_T256_D64_H256"],
            CaseSet::Cpu => &["B24_T8_D128_H64", "B32_T16_D64_H128"],
            CaseSet::Check => &[
                "B24_T8_D128_H64",
                "B24_T8_D128_H64,precision=fast",
                "B3_T5_D7_H11,density=1,dt=1,unfolds=3,h0=true,elapsed=true,norm=true,output=affine,outputs=4",
                "B2_T4_D5_H17,density=0.3,input=linear,output=linear,store=true,h0=true",
                "B2_T4_D5_H33,density=0.2,input=none,identity=true,store=true,elapsed=true,norm=true",
                "B9_T3_D2_H65,density=0.1,unfolds=1,dt=1,outputs=1",
                "B17_T33_D3_H40,density=0.5,h0=true,elapsed=true,precision=fast",
                "B3_T4_D5_H33,unfolds=5,norm=true,output=affine,outputs=7,precision=fast,store=words",
                "B5_T7_D3_H128,density=0.3,h0=true,precision=fast,store=false",
                "B24_T8_D128_H64,precision=fast,store=false",
                "B24_T8_D128_H64,precision=fast,store=words",
                "B1_T19_D2_H130,density=1",
                "B5_T1_D3_H1,density=1,h0=true",
                "B2_T3_D0_H5,density=1,h0=true",
                "B2_T0_D3_H5,density=1,h0=true,elapsed=true",
                "B0_T3_D3_H5,density=1",
                "B2_T3_D2_H0,density=1",
                "B2_T2_D600_H300,density=0.4,norm=true",
                // Of the gradient of x, LayerNorm leaves 1e-5.
                "B1_T1_D2_H2,density=1,norm=true",
                "B9_T3_D2_H5,density=1,norm=true",
                // An LSTM ahead of each step: every option, no step, one, many, no input, one neuron; few lanes and many; rows
                // beside what a device holds at once, and more neurons than threads.
                "B3_T5_D7_H11,mixed=true,density=1,dt=1,unfolds=3,h0=true,elapsed=true,norm=true,output=affine,outputs=4",
                "B5_T3_D4_H33,mixed=true,h0=true,elapsed=true",
                "B2_T4_D5_H17,mixed=true,density=0.3,input=linear,output=linear,store=true,h0=true",
                "B3_T9_D40_H64,mixed=true,precision=fast,elapsed=true",
                "B1_T19_D2_H130,mixed=true,density=1",
                "B2_T2_D70_H300,mixed=true,density=0.4,norm=true,h0=true",
                "B140_T3_D9_H8,mixed=true,density=1,unfolds=2,h0=true",
                "B1_T2_D3_H1030,mixed=true,density=0.02,unfolds=1",
                "B5_T1_D3_H1,mixed=true,density=1,h0=true",
                "B2_T3_D0_H5,mixed=true,density=1,h0=true",
                "B2_T0_D3_H5,mixed=true,density=1,h0=true,elapsed=true",
                "B0_T3_D3_H5,mixed=true,density=1",
                "B2_T3_D2_H0,mixed=true,density=1",
                "B5_T3_D5_H40,mixed=true,dtype=bf16",
                "B3_T7_D6_H33,mixed=true,dtype=f16,h0=true,elapsed=true,norm=true,output=affine,outputs=5,store=true",
                "B2_T3_D2_H5,mixed=true,wants=parameters",
                "B2_T3_D2_H5,mixed=true,h0=true,wants=x+h0",
                "B3_T2_D5_H9,mixed=true,backward=false,h0=true",
                // x and out in 16 bits: plain, so that the states are no outputs; with every option; empty.
                "B5_T3_D5_H40,dtype=bf16",
                "B5_T3_D5_H40,dtype=f16",
                "B9_T7_D6_H33,dtype=bf16,h0=true,elapsed=true,norm=true,output=affine,outputs=5",
                "B3_T5_D7_H11,dtype=f16,density=1,dt=1,unfolds=3,h0=true,elapsed=true,output=affine,outputs=4",
                "B6_T4_D5_H17,dtype=bf16,store=true,input=linear,output=linear,h0=true",
                "B2_T4_D5_H33,dtype=f16,store=true,identity=true,elapsed=true,precision=fast",
                "B17_T9_D24_H64,dtype=bf16,precision=fast",
                "B2_T3_D2_H5,dtype=bf16,wants=parameters",
                "B3_T2_D5_H9,dtype=f16,backward=false",
                "B2_T0_D3_H5,dtype=bf16,h0=true",
                "B2_T3_D0_H5,dtype=f16,density=1,h0=true",
                "B0_T3_D3_H5,dtype=bf16",
                "B2_T3_D2_H0,dtype=f16,density=1",
                // What is known of single samples: in one pass over the rows (a row a cluster, or in one launch), a row at a time.
                "B5_T9_D24_H64,per_sample=squares,precision=fast,output=affine,outputs=9",
                "B7_T9_D6_H100,per_sample=squares,h0=true,elapsed=true,output=affine",
                "B9_T70_D40_H100,per_sample=squares,precision=fast",
                "B3_T2_D6_H200,per_sample=squares,density=0.3,input=linear",
                "B3_T5_D7_H11,per_sample=squares,norm=true,output=affine,outputs=4,dtype=bf16",
                "B3_T3_D4_H13,per_sample=squares,mixed=true,h0=true",
                "B5_T9_D24_H64,per_sample=gradients,precision=fast,output=affine,outputs=9",
                "B9_T20_D6_H100,per_sample=gradients,elapsed=true,input=linear",
                "B3_T5_D7_H11,per_sample=gradients,norm=true,output=affine,outputs=4,dtype=f16",
                "B3_T3_D4_H13,per_sample=gradients,mixed=true,h0=true",
                "B2_T3_D2_H0,per_sample=gradients,density=1",
                "B0_T3_D3_H5,per_sample=gradients",
                "B0_T3_D3_H5,per_sample=squares",
                "B2_T0_D3_H5,per_sample=squares,h0=true",
                "B2_T3_D0_H5,per_sample=squares,density=1",
                "B2_T3_D3_H5,per_sample=squares,wants=x",
                // Both sides of where one block, a cluster of 2 to 8, and lists read from memory take turns.
                "B5_T3_D4_H63,h0=true",
                "B140_T3_D4_H64,unfolds=2,precision=fast",
                "B33_T3_D4_H127,elapsed=true",
                "B31_T9_D6_H120,density=0.5,h0=true,elapsed=true,precision=fast",
                "B3_T7_D6_H200,density=0.5,h0=true,elapsed=true,norm=true,output=affine,unfolds=2",
                "B67_T2_D4_H128,unfolds=3,precision=fast,store=true",
                "B33_T2_D4_H129,unfolds=3,h0=true",
                "B5_T2_D4_H255,unfolds=2,elapsed=true,precision=fast",
                "B61_T2_D4_H256,unfolds=2",
                "B70_T2_D4_H256,unfolds=2,precision=fast",
                "B70_T2_D4_H256,wiring=auto_ncp,unfolds=2,precision=fast",
                "B130_T2_D4_H100,density=0.2,unfolds=2,elapsed=true,h0=true,precision=fast",
                "B3_T2_D4_H257,unfolds=2",
                "B9_T2_D4_H511,unfolds=1,density=0.2",
                "B2_T2_D4_H512,unfolds=1,density=0.3,precision=fast",
                "B2_T1_D4_H513,unfolds=1,density=0.3",
                "B2_T1_D4_H1000,unfolds=1,density=0.05",
                "B1_T1_D3_H2048,unfolds=1,density=0.01",
                // Synapses divided over the whole device: teams of several sizes, both sides of what a cluster holds, one that is not
                // held, every option.
                "B9_T2_D4_H511,unfolds=2,density=0.6,h0=true,elapsed=true,norm=true,output=affine,outputs=70",
                "B34_T1_D4_H513,unfolds=2,density=0.5,precision=fast,store=true",
                "B5_T0_D3_H500,density=0.6,h0=true",
                "B2_T1_D4_H1000,unfolds=1,density=0.4,precision=fast",
                "B1_T1_D3_H2048,unfolds=2,density=0.5,precision=fast",
            ],
        };
        Case::list(list)
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["B", "T", "D", "H"], OPTIONS)?;
        let (inputs, hidden) = (case.size("D")?, case.size("H")?);
        spelled(case, Arc::new(drawn(case, inputs, hidden)?))
    }
    /// Over a [`Connectivity`]: D and H are its own, and there is no density to draw.
    fn problem_over(&self, case: &Case, prepared: Arc<dyn Any + Send + Sync>) -> Result<Arc<dyn Problem>> {
        let drawn = ["density", "wiring", "seed"];
        let options: Vec<_> = OPTIONS.iter().copied().filter(|o| !drawn.contains(o)).collect();
        case.allow(&["B", "T"], &options)?;
        let connectivity = prepared
            .downcast::<Connectivity>()
            .map_err(|_| Error::config(format!("ltc {case}: what is prepared is not a connectivity")))?;
        spelled(case, connectivity)
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}

/// The problem of a case's sizes and options.
fn spelled(case: &Case, connectivity: Arc<Connectivity>) -> Result<Arc<dyn Problem>> {
    let hidden = connectivity.recurrent.targets();
    let base = Ltc::new(case.size("B")?, case.size("T")?, connectivity);
    let flag = |name| case.get(name, false);
    let problem = Ltc {
        unfolds: case.get("unfolds", base.unfolds)?,
        dtype: dtype_of(case)?,
        dt: case.get("dt", base.dt)?,
        epsilon: case.get("epsilon", base.epsilon)?,
        elapsed: flag("elapsed")?,
        initial_state: flag("h0")?,
        mixed_memory: flag("mixed")?,
        layer_norm: flag("norm")?,
        input_mapping: case.get("input", Mapping::Affine)?,
        output_mapping: case.get("output", Mapping::None)?,
        outputs: case.get("outputs", hidden)?,
        constraint: if flag("identity")? { Constraint::Identity } else { Constraint::Softplus },
        save: match case.option("store") {
            None => Save::Auto,
            Some("words") => Save::Words,
            Some(_) if flag("store")? => Save::Store,
            Some(_) => Save::Recompute,
        },
        precision: case.get("precision", Precision::Exact)?,
        backward: case.get("backward", true)?,
        wants: case.get("wants", base.wants)?,
        per_sample: case.get("per_sample", base.per_sample)?,
        ..base
    };
    Ok(Arc::new(problem.build()?))
}

/// The element type of x and out that a case names.
fn dtype_of(case: &Case) -> Result<Dtype> {
    let name = case.option("dtype").unwrap_or("f32");
    let known = [Dtype::F32, Dtype::F16, Dtype::Bf16];
    let unknown = || Error::dtype(format!("ltc: element type `{name}` is not one of f32, f16, bf16"));
    known.into_iter().find(|d| d.name() == name).ok_or_else(unknown)
}

/// The synapses of a case: `wiring=random` by `density`, or `wiring=auto_ncp` with H / 8 motor neurons, as ncps draws it.
fn drawn(case: &Case, inputs: usize, hidden: usize) -> Result<Connectivity> {
    match case.get("wiring", "random".to_owned())?.as_str() {
        "random" => random_connectivity(inputs, hidden, case.get("density", 0.5)?, case.get("seed", 1)?),
        "auto_ncp" => {
            case.allow(
                &["B", "T", "D", "H"],
                &OPTIONS.iter().copied().filter(|&o| o != "density").collect::<Vec<_>>(),
            )?;
            let seed = case.get("seed", 22222)?;
            let rule = Rule::AutoNcp { units: hidden, output_size: (hidden / 8).max(1), sparsity_level: 0.5, seed };
            rule.build(inputs)?.connectivity()
        }
        other => Err(Error::value(format!("wiring = {other} is neither random nor auto_ncp"))),
    }
}

/// Each synapse with probability `density`; a neuron that would have no source at all gets one.
pub(super) fn random_connectivity(inputs: usize, hidden: usize, density: f64, seed: u64) -> Result<Connectivity> {
    if !(0.0..=1.0).contains(&density) {
        return Err(Error::value(format!("ltc: density = {density} is not in 0 ..= 1")));
    }
    let draw = |sources: usize, stream: u64| -> Result<Synapses> {
        let mut rng = Rng::new(seed, stream);
        let mut mask: Vec<bool> = (0..sources * hidden).map(|_| rng.uniform() < density).collect();
        for j in 0..hidden {
            if sources > 0 && !(0..sources).any(|i| mask[i * hidden + j]) {
                mask[rng.below(sources as u64) as usize * hidden + j] = true;
            }
        }
        Synapses::from_fn(sources, hidden, |i, j| mask[i * hidden + j])
    };
    Connectivity::new(draw(hidden, 1)?, draw(inputs, 2)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A case's wiring is that of ncps: fewer synapses than at half density, and no density to draw.
    #[test]
    fn a_case_may_have_a_wiring_of_ncps() {
        let synapses = |case: &str| {
            let case = case.parse().unwrap();
            drawn(&case, 32, 64).map(|c| c.recurrent.len())
        };
        let wired = synapses("B1_T1_D32_H64,wiring=auto_ncp").unwrap();
        let rule = Rule::auto_ncp(64, 8).build(32).unwrap();
        assert_eq!(wired, rule.synapse_count());
        assert!(wired < synapses("B1_T1_D32_H64").unwrap() / 2, "{wired}");
        let error = |case: &str| synapses(case).unwrap_err().to_string();
        assert!(error("B1_T1_D32_H64,wiring=ring").contains("wiring = ring is neither random nor auto_ncp"));
        assert!(error("B1_T1_D32_H64,wiring=auto_ncp,density=0.5").contains("density"));
        assert!(LtcEntry.problem(&"B1_T1_D32_H64,wiring=auto_ncp".parse().unwrap()).is_ok());
    }

    #[test]
    fn a_case_over_prepared_synapses_has_their_sizes() {
        let full = || Arc::new(Connectivity::full(3, 5).unwrap());
        let problem = |case: &str| LtcEntry.problem_over(&case.parse().unwrap(), full());
        let p = problem("B2_T4,outputs=2,wants=x+parameters,h0=true").unwrap();
        let s = p.signature(Pass::Backward).unwrap();
        assert_eq!(&*s.inputs[s.input("w").unwrap()].shape, &[5, 5]);
        assert_eq!(&*s.inputs[s.input("grad_out").unwrap()].shape, &[2, 4, 2]);
        assert!(s.output("grad_x").is_some() && s.output("grad_h0").is_none() && s.output("grad_cm").is_some());
        let none = problem("B2_T4,wants=none").unwrap().signature(Pass::Backward).unwrap();
        assert!(none.outputs.is_empty());
        let message = |case| problem(case).unwrap_err().to_string();
        assert!(message("B2_T4_D9").contains("axis D is not one of B, T"));
        assert!(message("B2_T4,density=1").contains("option density is not one of"));
        assert!(message("B2_T4,dtype=f8").contains("element type `f8` is not one of f32, f16, bf16"));
        assert!(message("B2_T4,wants=w").contains("wants=w is not a valid value"));
        let e = LtcEntry.problem_over(&"B2_T4".parse().unwrap(), Arc::new(7u8)).unwrap_err().to_string();
        assert!(e.contains("is not a connectivity"), "{e}");
    }
}
