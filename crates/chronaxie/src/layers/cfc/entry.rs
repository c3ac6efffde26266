//! CfC as an entry of the registry: its cases, and the problem behind the contract.

use super::spec::{Activation, Cell, Cfc, Mode};
use super::{cpu, cuda, init, reference};
use crate::cuda::Specialisation;
use crate::op::{Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Precision, Problem, Signature, Tensors, Tolerance};
use crate::{Device, Error, Result};
use std::sync::Arc;

impl Problem for Cfc {
    fn entry(&self) -> &'static str {
        "cfc"
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        self.signature_of(pass)
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
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
        let rows = (self.batch * self.steps) as u64;
        let h = self.hidden();
        let cell = |l: usize| {
            let (n, u, layers) = (self.cells[l].hidden, self.backbone_units, self.backbone_layers);
            let backbone = if layers == 0 { 0 } else { self.reads(l) * u + (layers - 1) * u * u };
            let heads = self.head_inputs(l) * n * self.mode.heads().len();
            // Two tanh and a sigmoid, or an exponential, a neuron; an activation a unit.
            let special = layers * u + n * if self.mode == Mode::Pure { 1 } else { 3 };
            ((backbone + heads) as u64, special as u64)
        };
        let lstm = if self.mixed_memory { (4 * h * (self.inputs + h), 5 * h) } else { (0, 0) };
        let all = (0..self.cells.len()).map(cell).fold((lstm.0 as u64, lstm.1 as u64), |a, c| (a.0 + c.0, a.1 + c.1));
        let bytes = |s: Result<Signature>| -> u64 {
            s.map_or(0, |s| s.inputs.iter().chain(&s.outputs).map(|t| t.bytes() as u64).sum())
        };
        let bytes = bytes(self.signature_of(pass));
        let serial_steps = self.steps as u64;
        match pass {
            // Each product of the forward pass has two in the backward pass; its special values were kept.
            Pass::Backward => Cost { bytes, flops: 4 * rows * all.0, special: 0, serial_steps },
            _ => Cost { bytes, flops: 2 * rows * all.0, special: rows * all.1, serial_steps },
        }
    }
}

/// The entry `cfc`.
pub struct CfcEntry;

const OPTIONS: &[&str] = &[
    "mode",
    "layers",
    "units",
    "activation",
    "cells",
    "masked",
    "mixed",
    "dt",
    "elapsed",
    "h0",
    "precision",
    "backward",
    "wants",
];

impl Op for CfcEntry {
    fn name(&self) -> &'static str {
        "cfc"
    }
    fn summary(&self) -> &'static str {
        "closed-form continuous-time recurrence: backbone and heads, stacked masked cells, an LSTM ahead of them"
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
                // Every mode and activation, odd sizes, every optional tensor.
                "B3_T5_D7_H11,units=13,h0=true,elapsed=true",
                "B5_T4_D3_H9,mode=no_gate,layers=2,units=17,activation=silu,elapsed=true,dt=0.5",
                "B4_T6_D5_H33,mode=pure,layers=3,units=10,activation=gelu,h0=true,elapsed=true",
                "B2_T9_D6_H17,mode=pure,layers=0,h0=true,dt=0.25",
                "B7_T3_D4_H65,layers=2,units=33,activation=relu,h0=true",
                "B6_T4_D4_H5,layers=1,units=70,activation=tanh,precision=fast,elapsed=true",
                // Stacked and masked.
                "B3_T6_D7_H20,cells=9+7+4,masked=true,layers=0,elapsed=true,h0=true",
                "B2_T4_D3_H14,cells=5+6+3,masked=true,layers=0,mode=pure,elapsed=true",
                "B4_T3_D6_H12,masked=true,layers=0,mode=no_gate,h0=true",
                "B2_T4_D5_H13,cells=6+7,masked=true,layers=2,units=9,h0=true,activation=gelu",
                // With an LSTM ahead.
                "B3_T5_D6_H10,mixed=true,units=12,h0=true,elapsed=true",
                "B5_T7_D4_H15,mixed=true,cells=8+5+2,masked=true,layers=0,h0=true,precision=fast",
                "B2_T6_D3_H8,mixed=true,mode=pure,layers=2,units=11,activation=silu",
                // Empty along each axis, one of everything.
                "B1_T1_D1_H1,units=1,h0=true,elapsed=true",
                "B5_T1_D3_H1,units=4,h0=true,mixed=true",
                "B2_T3_D0_H5,units=6,h0=true,mixed=true,elapsed=true",
                "B2_T0_D3_H5,units=6,h0=true,elapsed=true,mixed=true",
                "B0_T3_D3_H5,units=6,h0=true,elapsed=true,mixed=true",
                "B2_T3_D2_H0,units=6,h0=true,elapsed=true,mixed=true",
                "B2_T3_D2_H4,units=0,h0=true,elapsed=true",
                "B4_T5_D4_H12,cells=7+0+5,masked=true,layers=0,h0=true,mixed=true,elapsed=true",
                // More rows than a group, more columns than a block, several slices of the sums over batch and time.
                "B37_T3_D5_H40,units=20",
                "B2_T3_D300_H129,units=257",
                "B67_T40_D3_H24,units=16,elapsed=true",
                "B3_T2_D600_H300,units=64,layers=2,mixed=true,elapsed=true",
                "B1_T700_D2_H6,units=5,h0=true",
                "B2_T2_D3_H1030,cells=500+400+130,masked=true,layers=0",
            ],
        };
        Case::list(list)
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["B", "T", "D", "H"], OPTIONS)?;
        let (inputs, hidden) = (case.size("D")?, case.size("H")?);
        let base = Cfc::new(case.size("B")?, case.size("T")?, inputs, hidden);
        let flag = |name| case.get(name, false);
        let masked = flag("masked")?;
        let problem = Cfc {
            cells: sizes(case, hidden)?.into_iter().map(|hidden| Cell { hidden, masked }).collect(),
            mode: case.get("mode", Mode::Default)?,
            backbone_layers: case.get("layers", base.backbone_layers)?,
            backbone_units: case.get("units", base.backbone_units)?,
            activation: case.get("activation", Activation::LecunTanh)?,
            mixed_memory: flag("mixed")?,
            dt: case.get("dt", base.dt)?,
            elapsed: flag("elapsed")?,
            initial_state: flag("h0")?,
            precision: case.get("precision", Precision::Exact)?,
            backward: case.get("backward", true)?,
            wants: case.get("wants", base.wants)?,
            ..base
        };
        Ok(Arc::new(problem.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}

/// The neurons of each cell: `cells=9+7+4`, or one cell of H.
fn sizes(case: &Case, hidden: usize) -> Result<Vec<usize>> {
    let Some(list) = case.option("cells") else { return Ok(vec![hidden]) };
    let bad = |_| Error::config(format!("cfc {case}: cells={list} is not a list of numbers such as 9+7+4"));
    let sizes = list.split('+').map(str::parse).collect::<Result<Vec<usize>, _>>().map_err(bad)?;
    let sum = sizes.iter().fold(0usize, |sum, &n| sum.saturating_add(n));
    if sum != hidden {
        return Err(Error::config(format!("cfc {case}: cells={list} are {sum} neurons and H = {hidden}")));
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_spell_problems() {
        let problem = |case: &str| CfcEntry.problem(&case.parse().unwrap());
        let p = problem("B2_T4_D3_H9,cells=4+3+2,masked=true,layers=0,wants=x+h0,h0=true").unwrap();
        let s = p.signature(Pass::Backward).unwrap();
        assert_eq!(&*s.inputs[s.input("layer_2_ff1_weight").unwrap()].shape, &[2, 5]);
        assert_eq!(s.outputs.iter().map(|t| &*t.name).collect::<Vec<_>>(), ["grad_x", "grad_h0"]);
        let message = |case: &str| problem(case).unwrap_err().to_string();
        assert!(message("B2_T4_D3_H9,cells=4+3").contains("cells=4+3 are 7 neurons and H = 9"));
        assert!(message("B2_T4_D3_H9,cells=4+x").contains("cells=4+x is not a list of numbers"));
        assert!(message("B2_T4_D3_H9,mode=gated").contains("mode=gated is not a valid value"));
        assert!(message("B2_T4_D3_H9,unfolds=6").contains("option unfolds is not one of mode, layers"));
    }

    #[test]
    fn the_cost_counts_every_product() {
        let p = Cfc { backbone_units: 7, backbone_layers: 2, mixed_memory: true, ..Cfc::new(2, 3, 4, 5) };
        // Backbone, heads, LSTM.
        let products = 9 * 7 + 7 * 7 + 4 * 5 * 7 + 20 * 9;
        assert_eq!(p.cost(Pass::Forward).flops, 2 * 6 * products);
        assert_eq!(p.cost(Pass::Backward).flops, 4 * 6 * products);
        assert_eq!(p.cost(Pass::Forward).special, 6 * (14 + 15 + 25));
    }
}
