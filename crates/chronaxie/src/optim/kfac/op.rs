//! KFAC's step as an entry of the registry.

use super::reference::{self, Inputs, State};
use super::spec::{Damping, Kfac, Map, NAME};
use super::{cpu, cuda, probe};
use crate::cuda::Specialisation;
use crate::op::{
    Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Probe, Problem, Role, Signature, Tensors, Tolerance, Values,
};
use crate::optim::blocks::Parameter;
use crate::optim::sample;
use crate::optim::stepper::{Stepper, ones};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Error, Result};
use std::sync::Arc;

impl Problem for Kfac {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        self.signature_of(pass)
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        let problem = self.clone().build()?;
        options.one_way(self.entry(), device)?;
        match device {
            Device::Cpu => Ok(Box::new(cpu::CpuPlan::new(problem, options)?)),
            Device::Cuda(device) => Ok(Box::new(cuda::CudaPlan::new(problem, device, options)?)),
        }
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        let signature = self.signature_of(pass)?;
        let mut rng = Rng::new(seed, 0);
        let read = signature.inputs.iter().chain(signature.outputs.iter().filter(|t| t.role == Role::State));
        let mut all = Tensors::new();
        for t in read {
            let mut values = match &*t.name {
                "rate" => Values::from_fn(t.shape, || 1e-2),
                "largest_rate" => Values::from_fn(t.shape, || 0.05),
                "step" => Values::from_fn(t.shape, || if self.opens { 0.0 } else { 12.0 }),
                "averaged" => Values::from_fn(t.shape, || if self.opens { 0.0 } else { 12.0 }),
                "decay" => Values::from_fn(t.shape, || rng.below(2) as f64),
                "second" | "squares" | "seen_squares" => Values::from_fn(t.shape, || rng.normal().powi(2)),
                "values" => Values::from_fn(t.shape, || 0.1 + rng.normal().powi(2)),
                "factors" | "seen" => self.some_factors(&mut rng),
                "bases" => self.some_bases(&mut rng),
                _ => Values::from_fn(t.shape, || rng.normal()),
            };
            if t.axes == "[N]" {
                let mut inside = vec![false; values.data.len()];
                self.parameters.iter().for_each(|p| inside[p.first..p.first + p.shape.elements()].fill(true));
                values.data.iter_mut().zip(inside).filter(|(_, inside)| !inside).for_each(|(x, _)| *x = 0.0);
            }
            all.insert(t.name.to_string(), values.rounded(t.dtype));
        }
        Ok(all)
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature_of(pass)?;
        if f32_arithmetic { run::<f32>(self, inputs) } else { run::<f64>(self, inputs) }
    }
    fn beside(
        &self,
        _: Pass,
        _: &dyn Fn(&str) -> Result<Values>,
        after: &dyn Fn(&str) -> Result<Values>,
    ) -> Result<Vec<Probe>> {
        let step = after("step")?.data[0] as usize;
        Ok(probe::bases(self, step, &after("factors")?, &after("bases")?, &after("values")?))
    }
    fn tolerance(&self, _: Pass, output: &str) -> Option<Tolerance> {
        self.tolerance_of(output)
    }
    fn cost(&self, _: Pass) -> Cost {
        let mut flops = 17 * self.elements as u64;
        for m in &self.maps {
            let (a, h) = (m.inputs() as u64, m.rows as u64);
            // Four products with the bases, or two with the inverses; at its turn eigenvalues, or an inverse.
            let (products, solve) = if self.mode == Damping::Exact { (8, 9) } else { (4, 2) };
            flops += products * a * h * (a + h) / 2 + solve * (a * a * a + h * h * h) / self.inverse_frequency as u64;
        }
        let p = &self.places;
        let matrices = 3 * p.factors + p.bases + p.values + if self.ekfac { 3 * p.squares } else { 0 };
        Cost { bytes: 4 * (8 * self.elements + matrices) as u64, flops, special: 0, serial_steps: 4 }
    }
}

impl Kfac {
    /// Order and place of each matrix.
    fn matrices(&self) -> Vec<(usize, usize, usize)> {
        let of = |(m, at): (&Map, &super::spec::Place)| [(m.inputs(), at.a, at.basis_a), (m.rows, at.g, at.basis_g)];
        self.maps.iter().zip(&self.places.maps).flat_map(of).collect()
    }
    /// A Gram matrix for each.
    fn some_factors(&self, rng: &mut Rng) -> Values {
        let mut all = vec![0.0; self.places.factors];
        for (n, at, _) in self.matrices() {
            sample::gram(rng, n, &mut all[at..]);
        }
        Values { shape: [all.len()].into(), data: all }
    }
    /// I behind three random reflections; with factored damping symmetric and positive.
    fn some_bases(&self, rng: &mut Rng) -> Values {
        let mut all = vec![0.0; self.places.bases];
        for (n, _, at) in self.matrices() {
            let q = &mut all[at..at + n * n];
            q.iter_mut().step_by(n + 1).for_each(|x| *x = 1.0);
            for _ in 0..3 {
                let v: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
                let square = v.iter().map(|x| x * x).sum::<f64>();
                for (i, row) in q.chunks_exact_mut(n).enumerate() {
                    let along = match self.mode {
                        Damping::Exact => 2.0 / square * row.iter().zip(&v).map(|(x, v)| x * v).sum::<f64>(),
                        Damping::Factored => -v[i] / square,
                    };
                    row.iter_mut().zip(&v).for_each(|(x, v)| *x -= along * v);
                }
            }
        }
        Values { shape: [all.len()].into(), data: all }
    }
}

impl Stepper for Kfac {
    fn initial(&self, _: &str) -> Option<Vec<f32>> {
        None
    }
    fn opening(&self) -> Option<(u64, Arc<dyn Problem>)> {
        Some((1, Arc::new(Self { opens: true, ..self.clone() })))
    }
}

fn run<R: Real>(p: &Kfac, inputs: &Tensors) -> Result<Tensors> {
    let real = |name: &str| Ok::<_, Error>(inputs.get(name)?.data.iter().map(|&x| R::from_f64(x)).collect::<Vec<R>>());
    let number = |name: &str| Ok::<_, Error>(inputs.get(name)?.data[0]);
    let mut state = State {
        parameter: real("parameter")?,
        first: real("first")?,
        second: real("second")?,
        factors: real("factors")?,
        bases: real("bases")?,
        values: real("values")?,
        squares: real("squares")?,
        averaged: real("averaged")?,
        step: number("step")? as usize,
        largest_rate: number("largest_rate")?,
    };
    let (grad, decay, seen) = (real("grad")?, real("decay")?, real("seen")?);
    let seen_squares = if p.ekfac { real("seen_squares")? } else { Vec::new() };
    let given = Inputs { grad: &grad, decay: &decay, rate: number("rate")?, seen: &seen, seen_squares: &seen_squares };
    let norm = reference::step(p, &mut state, &given);
    let out = |data: &[R]| Values::new([data.len()], data.iter().map(|x| x.to_f64()).collect());
    let mut outputs = Tensors::new();
    for (name, data) in [
        ("parameter", &state.parameter),
        ("first", &state.first),
        ("second", &state.second),
        ("factors", &state.factors),
        ("bases", &state.bases),
        ("values", &state.values),
        ("squares", &state.squares),
        ("averaged", &state.averaged),
        ("grad_norm", &vec![norm]),
    ] {
        outputs.insert(name, out(data)?);
    }
    outputs.insert("step", ones(state.step as f64));
    outputs.insert("largest_rate", ones(state.largest_rate));
    Ok(outputs)
}

/// The entry `kfac`.
#[derive(Debug, Clone, Copy, Default)]
pub struct KfacOp;

/// L times a map `[M, N]` with its bias `[M]`, and with the option K a parameter `[K]` that is none, each from a multiple of 64 elements
/// on; how long the vector is.
fn parameters(case: &Case) -> Result<(usize, Vec<Parameter>, Vec<Map>)> {
    let (layers, m, n) = (case.size("L")?, case.size("M")?, case.size("N")?);
    let (mut end, mut list, mut maps) = (0usize, Vec::new(), Vec::new());
    let mut push = |shape: crate::Shape| {
        let first = end;
        list.push(Parameter::new(first, shape));
        end = end.saturating_add(shape.checked_elements()?).next_multiple_of(64);
        Ok::<_, Error>(first)
    };
    let bias = case.get("bias", true)?;
    for _ in 0..layers {
        let weight = push([m, n].into())?;
        let bias = if bias { Some(push([m].into())?) } else { None };
        maps.push(Map { weight, rows: m, columns: n, bias });
    }
    match case.get("K", 0usize)? {
        0 => {}
        k => drop(push([k].into())?),
    }
    Ok((end, list, maps))
}

impl Op for KfacOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "one step of KFAC over a flat vector: maps solved by Kronecker factors of the Fisher matrix, AdamW for the rest"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Step]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        Case::list(match set {
            CaseSet::Compared => &["L8_M256_N256"],
            CaseSet::Cpu => &["L4_M64_N64"],
            CaseSet::Check => &[
                "L0_M3_N2,K=5",
                "L1_M1_N1",
                "L2_M7_N5,K=9,clip=1,decay=0.1,every=1",
                "L3_M9_N20,every=3,bias=false",
                "L2_M20_N33,opens=true,decay=0.1,mode=corrected",
                "L2_M20_N9,damping_mode=factored,every=2,decay=0.1,mode=l2",
                "L1_M33_N20,damping_mode=factored,opens=true,damping=0.1",
                "L2_M9_N6,ekfac=true,every=2,decay=0.1,mode=independent",
                "L1_M40_N17,ekfac=true,opens=true,kl=0",
                "L1_M70_N65,every=1,kl=1e-6,momentum=0",
                "L1_M5_N4,factors=5,every=100",
            ],
        })
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        let options = [
            "K",
            "bias",
            "clip",
            "decay",
            "mode",
            "momentum",
            "damping",
            "damping_mode",
            "ekfac",
            "factors",
            "every",
            "kl",
            "opens",
        ];
        case.allow(&["L", "M", "N"], &options)?;
        let (elements, parameters, maps) = parameters(case)?;
        let mut p = Kfac::new(elements, parameters, maps);
        p.common = sample::common(case)?;
        p.momentum = case.get("momentum", p.momentum)?;
        p.damping = case.get("damping", p.damping)?;
        p.mode = case.option("damping_mode").map_or(Ok(p.mode), str::parse)?;
        p.ekfac = case.get("ekfac", p.ekfac)?;
        p.factor_frequency = case.get("factors", p.factor_frequency)?;
        p.inverse_frequency = case.get("every", p.inverse_frequency)?;
        p.kl_clip = case.get("kl", p.kl_clip)?;
        p.opens = case.get("opens", p.opens)?;
        Ok(Arc::new(p.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
