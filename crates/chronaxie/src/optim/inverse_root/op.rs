//! Inverse roots as entries of the registry: `inverse_root`, of any exponent, and `inverse_root4`, which is compared.

use super::spec::{Defect, FOURTH, InverseRoot, MOST_ITERATIONS, Method, NAME};
use super::{cpu, cuda, reference, spec};
use crate::cuda::Specialisation;
use crate::op::{
    Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Probe, Problem, Signature, Tensors, Tolerance, Values,
};
use crate::real::Real;
use crate::{Device, Result};
use std::sync::Arc;

impl Problem for InverseRoot {
    fn entry(&self) -> &'static str {
        self.entry
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        self.signature_of(pass)
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        let problem = self.build()?;
        match device {
            Device::Cpu => Ok(Box::new(cpu::CpuPlan::new(problem, options)?)),
            Device::Cuda(device) => Ok(Box::new(cuda::CudaPlan::new(problem, device, options)?)),
        }
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        self.signature_of(pass)?;
        self.sample_of(seed)
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature_of(pass)?;
        if f32_arithmetic { run::<f32>(self, inputs) } else { run::<f64>(self, inputs) }
    }
    fn probes(&self, _: Pass) -> bool {
        self.order > spec::MOST_BY_LAW
    }
    fn probe(&self, _: Pass, values: &dyn Fn(&str) -> Result<Values>) -> Result<Vec<Probe>> {
        let found = reference::probe(self, &values("a")?.data, &values("root")?.data);
        let bound = self.tolerance_of("root").map_or(0.0, |t| t.value);
        Ok(vec![Probe {
            output: "root",
            metric: "residual",
            error: found.0,
            tolerance: bound * f64::from(self.denominator),
            reason: "||(A + eps I)^q X^p z - z|| of vectors z of length 1 is p times the relative error of X in their directions",
            worst: format!("matrix {}: {:e}", found.1, found.0),
        }])
    }
    fn tolerance(&self, _: Pass, output: &str) -> Option<Tolerance> {
        self.tolerance_of(output)
    }
    fn has_no_result(&self) -> bool {
        matches!(self.defect, Defect::Nan | Defect::Infinite)
    }
    fn cost(&self, _: Pass) -> Cost {
        let (count, n) = (self.count as u64, self.order as u64);
        // At a condition number of 34, by the iteration of order 5: three times one product for Y, three for T and M, and those of T^p;
        // on tensor cores each is three. Every product is symmetric and half of it is made.
        let p = self.denominator;
        let products = 3 * (4 + u64::from(p.ilog2() + p.count_ones() - 1));
        Cost {
            bytes: 8 * count * n * n,
            flops: count * products * n * n * n,
            special: 0,
            serial_steps: MOST_ITERATIONS as u64,
        }
    }
}

fn run<R: Real>(p: &InverseRoot, inputs: &Tensors) -> Result<Tensors> {
    let a: Vec<R> = inputs.get("a")?.data.iter().map(|&x| R::from_f64(x)).collect();
    let size = p.order * p.order;
    let mut root = Vec::with_capacity(a.len());
    for i in 0..p.count {
        match reference::inverse_root(p, &a[i * size..(i + 1) * size]) {
            Some(x) => root.extend(x.iter().map(|x| x.to_f64())),
            None => root.extend(std::iter::repeat_n(f64::NAN, size)),
        }
    }
    let values = Values::new([p.count, p.order, p.order], root)?;
    Ok([("root".to_owned(), values)].into_iter().collect())
}

/// An entry: inverse roots of any exponent, or fourth ones alone.
#[derive(Debug, Clone, Copy)]
pub struct InverseRootOp {
    /// Whether it is `inverse_root4`.
    pub fourth: bool,
}

impl Op for InverseRootOp {
    fn name(&self) -> &'static str {
        if self.fourth { FOURTH } else { NAME }
    }
    fn summary(&self) -> &'static str {
        if self.fourth {
            "(A + eps I)^(-1/4) of symmetric matrices, as Shampoo needs it"
        } else {
            "(A + eps I)^(-q/p) of symmetric matrices, by Newton or by eigenvalues"
        }
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let list: &[&str] = match (set, self.fourth) {
            (CaseSet::Compared, true) => &["64x128", "16x512", "4x1024", "1x2048", "1x4096"],
            (CaseSet::Cpu, true) => &["16x128", "2x512", "64x128", "4x1024"],
            (CaseSet::Check, true) => &["3x64", "2x130,kappa=1e4"],
            (CaseSet::Check, false) => &[
                "0x5",
                "3x0",
                "40x1,method=eigen",
                "5x2,p=2",
                "3x3,p=1,method=newton",
                "2x17,p=3,method=newton,kappa=1e2",
                "2x31,p=6,kappa=1e2",
                "2x33,p=8,method=newton,kappa=1e4",
                "2x40,p=4,method=newton,kappa=1e6,absolute=0,relative=0",
                "2x40,p=4,method=eigen,kappa=1e6,absolute=0,relative=0",
                "1x48,p=4,kappa=1e8,absolute=0,relative=0",
                "2x128,p=4,kappa=1e6,absolute=0,relative=0",
                "1x160,p=4,kappa=1e8,absolute=0,relative=0",
                "1x257,p=2",
                "2x20,q=2,p=3,kappa=1e2",
                "2x24,q=3,p=2,kappa=1e2",
                "3x16,defect=zero,absolute=1e-4",
                "3x16,p=2,defect=rank1,relative=1e-5",
                "3x21,p=4,defect=rank1,relative=1e-4,method=newton",
                "3x18,p=4,defect=indefinite,relative=1e-2",
                "3x18,p=2,defect=indefinite,relative=1e-2,method=newton",
                "3x19,p=2,defect=nan",
                "3x40,p=4,defect=infinite,method=newton",
                "3x33,q=2,p=3,defect=nan,method=eigen",
                "2x130,p=2,defect=nan,method=newton",
                "1x100,p=2",
            ],
            _ => &[],
        };
        Case::list(list)
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        let options: &[&str] = &["method", "absolute", "relative", "kappa", "defect", "p", "q"];
        case.allow(&["", "x"], &options[..if self.fourth { 5 } else { 7 }])?;
        let d = InverseRoot::new(case.size("")?, case.size("x")?, 4);
        let method = case.option("method").map_or(Ok(Method::Auto), str::parse)?;
        let mut p = d
            .exponent(case.get("q", 1)?, case.get("p", 4)?)
            .method(method)
            .damping(case.get("absolute", d.absolute)?, case.get("relative", d.relative)?);
        p.entry = self.name();
        p.kappa = case.get("kappa", 0.0)?;
        p.defect = case.option("defect").map_or(Ok(Defect::None), str::parse)?;
        Ok(Arc::new(p.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
