//! What the tests of this folder share: passes on the CPU from tensors by name, and distances.

use crate::call::{Workspace, default_stream};
use crate::check::{Status, measure};
use crate::op::{Case, Op, Pass, PlanOptions, Problem, Role, Tensors, Values};
use crate::{Device, Result};
use std::collections::BTreeMap;

/// Runs a pass on the CPU.
pub(super) fn run(problem: &dyn Problem, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
    let plan = problem.plan(&Device::Cpu, &PlanOptions::default())?;
    let mut workspace = Workspace::new(&*plan, &[pass], &Device::Cpu)?;
    let signature = problem.signature(pass)?;
    let state = signature.outputs.iter().filter(|t| pass == Pass::Step && t.role == Role::State);
    for t in signature.inputs.iter().chain(state) {
        workspace.set(&t.name, inputs.get(&t.name)?)?;
    }
    workspace.bind(&*plan, pass, default_stream(&Device::Cpu))?.run()?;
    signature.outputs.iter().map(|t| Ok((t.name.to_string(), workspace.get(&t.name)?))).collect()
}

/// Everything that the passes read, and what the forward pass makes of it on the CPU.
pub(super) fn sample_and_run(problem: &dyn Problem, seed: u64) -> Tensors {
    let mut all = problem.sample(Pass::Forward, seed).unwrap();
    let forward = run(problem, Pass::Forward, &all).unwrap();
    let gradients = problem.sample(Pass::Backward, seed).unwrap();
    for (name, values) in forward.iter().chain(gradients.iter()) {
        all.insert(name, values.clone());
    }
    all
}

/// Asserts that a case keeps to the law on the CPU, forward and backward (or its step).
pub(super) fn keeps_to_the_law(op: &dyn Op, case: &str, seed: u64) {
    let case: Case = case.parse().unwrap();
    let problem = op.problem(&case).unwrap();
    let passes: Vec<Pass> = op.passes().iter().copied().filter(|&p| problem.signature(p).is_ok()).collect();
    for c in measure(&*problem, &passes, &Device::Cpu, seed).unwrap() {
        assert!(c.status() == Status::Passed, "{} {case}: {} {:e}: {}", op.name(), c.quantity, c.error, c.reason());
    }
}

/// `||x - law|| / ||law||`, or `||x||` where the law is zero.
pub(super) fn relative(x: &Values, law: &Values) -> f64 {
    let norm = |d: &mut dyn Iterator<Item = f64>| d.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut x.data.iter().zip(&law.data).map(|(x, l)| x - l));
    let size = norm(&mut law.data.iter().copied());
    if size == 0.0 { error } else { error / size }
}

/// The times `from..to` of a tensor whose axis `axis` is T.
pub(super) fn cut(v: &Values, axis: usize, from: usize, to: usize) -> Values {
    let inner: usize = v.shape[axis + 1..].iter().product();
    let steps = v.shape[axis];
    let mut shape = v.shape.to_vec();
    shape[axis] = to - from;
    let rows = v.data.chunks((steps * inner).max(1)).filter(|row| row.len() == steps * inner);
    let data = rows.flat_map(|row| row[from * inner..to * inner].to_vec()).collect();
    Values::new(&shape[..], data).unwrap()
}

/// Asserts that no tolerance of an entry is above eight times what f32 costs its law in the worst of some cases.
pub(super) fn tolerances_are_near_the_noise(op: &dyn Op, cases: &[&str]) {
    // The worst noise and the bound by pass and name.
    let mut noise: BTreeMap<(Pass, String), (f64, f64)> = BTreeMap::new();
    for case in cases {
        let problem = op.problem(&case.parse().unwrap()).unwrap();
        let mut inputs = Tensors::new();
        for &pass in op.passes() {
            problem.sample(pass, 1).unwrap().iter().for_each(|(n, v)| inputs.insert(n, v.clone()));
        }
        for &pass in op.passes() {
            let law = problem.reference(pass, &inputs, false).unwrap();
            let in_f32 = problem.reference(pass, &inputs, true).unwrap();
            for (name, law) in law.iter() {
                let bound = problem.tolerance(pass, name).unwrap().value;
                let entry = noise.entry((pass, name.to_owned())).or_insert((0.0, bound));
                entry.0 = entry.0.max(relative(in_f32.get(name).unwrap(), law));
            }
        }
    }
    for ((pass, name), (worst, bound)) in &noise {
        println!("{} {} {name}: noise {worst:.2e}, tolerance {bound:.2e}", op.name(), pass.name());
    }
    let wrong: Vec<_> = noise.iter().filter(|(_, (worst, bound))| *bound > 8.0 * worst).map(|((_, n), _)| n).collect();
    assert!(wrong.is_empty(), "more than eight times the noise: {wrong:?}");
}

/// Asserts that the law's gradients are the slopes of its forward pass: finite differences know nothing of dual numbers.
pub(super) fn finite_differences(op: &dyn Op, case: &str) {
    let problem = op.problem(&case.parse().unwrap()).unwrap();
    let mut all = problem.sample(Pass::Forward, 8).unwrap();
    problem.sample(Pass::Backward, 8).unwrap().iter().for_each(|(n, v)| all.insert(n, v.clone()));
    let gradients = problem.reference(Pass::Backward, &all, false).unwrap();
    let value = |all: &Tensors| -> f64 {
        let out = problem.reference(Pass::Forward, all, false).unwrap();
        let weigh = |(name, x): (&str, &Values)| -> f64 {
            let grad = all.get(&format!("grad_{name}")).unwrap();
            x.data.iter().zip(&grad.data).map(|(x, g)| x * g).sum()
        };
        out.iter().map(weigh).sum()
    };
    for (name, grad) in gradients.iter() {
        let input = name.strip_prefix("grad_").unwrap();
        for (k, got) in grad.data.iter().enumerate() {
            let mut at = |step: f64| {
                let before = all.get(input).unwrap().data[k];
                all.get_mut(input).unwrap().data[k] = before + step;
                let v = value(&all);
                all.get_mut(input).unwrap().data[k] = before;
                v
            };
            // Of fourth order: errors of 1e-12 of the step, and 1e-13 / 1e-3 of rounding.
            let slope = (8.0 * (at(1e-3) - at(-1e-3)) - (at(2e-3) - at(-2e-3))) / 12e-3;
            assert!((slope - got).abs() < 1e-7 * slope.abs().max(1.0), "{name}[{k}]: {got} against {slope}");
        }
    }
}
