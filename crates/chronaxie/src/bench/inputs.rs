//! Memory for timing: of the case's full size, filled from a smaller case of the same kind.

use crate::call::Workspace;
use crate::check::sample;
use crate::op::{Case, Op, Pass, Plan, Problem, Repeats, Role};
use crate::{Device, Result};

/// Elements that are drawn one by one; more are repetitions of as many.
const DRAWN: usize = 4 << 20;

/// Halves T, then B, while `too_large` says so and they are above 1.
pub(super) fn reduce(op: &dyn Op, case: &Case, too_large: impl Fn(&dyn Problem) -> Result<bool>) -> Result<Case> {
    let mut small = case.clone();
    while too_large(&*crate::op::problem(op, &small)?)? {
        let axis = ["T", "B"].into_iter().find(|a| small.size(a).is_ok_and(|n| n > 1));
        let Some(axis) = axis else { break };
        let n = small.size(axis)?;
        let next = small.clone().with_size(axis, n / 2);
        // Sizes that the problem refuses (a multiple of a tile, say) end the search.
        if crate::op::problem(op, &next).is_err() {
            break;
        }
        small = next;
    }
    if too_large(&*crate::op::problem(op, &small)?)? {
        small = smaller(op, &small).unwrap_or(small);
    }
    Ok(small)
}

/// The smaller case that the entry names, with the same variant.
fn smaller(op: &dyn Op, case: &Case) -> Option<Case> {
    let (rest, variant) = case.without("variant");
    let small = op.smaller(&rest)?;
    Some(variant.map_or_else(|| small.clone(), |v| small.clone().with("variant", &v)))
}

/// How many elements `passes` read.
fn elements(problem: &dyn Problem, passes: &[Pass]) -> Result<usize> {
    passes.iter().map(|&p| Ok(problem.signature(p)?.inputs.iter().map(|t| t.shape.elements()).sum::<usize>())).sum()
}

/// What repeats in the tensors of a problem with one pass.
fn repeated(problem: &dyn Problem, passes: &[Pass]) -> Result<Option<Repeats>> {
    match passes {
        [pass] => problem.repeated(*pass, 1),
        _ => Ok(None),
    }
}

/// The workspace of `passes`, with inputs at unit scale.
pub(super) fn workspace(
    op: &dyn Op,
    case: &Case,
    plan: &dyn Plan,
    passes: &[Pass],
    device: &Device,
) -> Result<Workspace> {
    if let Some(list) = repeated(&*crate::op::problem(op, case)?, passes)? {
        let mut workspace = Workspace::new(plan, passes, device)?;
        for (name, runs) in list {
            let tensor = workspace.tensor_mut(&name)?;
            runs.iter().try_for_each(|r| tensor.set_repeated(r.first, r.count, &r.values))?;
        }
        return Ok(workspace);
    }
    let small = reduce(op, case, |p| Ok(elements(p, passes)? > DRAWN))?;
    let values = sample(&*crate::op::problem(op, &small)?, passes, 1)?;
    let mut workspace = Workspace::new(plan, passes, device)?;
    let mut written_before: Vec<String> = Vec::new();
    for &pass in passes {
        let Some(signature) = plan.signature(pass) else { continue };
        let state = signature.outputs.iter().filter(|t| pass == Pass::Step && t.role == Role::State);
        for t in signature.inputs.iter().chain(state) {
            // What an earlier pass writes is not drawn.
            if written_before.iter().any(|n| *n == t.name) {
                continue;
            }
            let v = values.get(&t.name)?;
            let tensor = workspace.tensor_mut(&t.name)?;
            if small == *case {
                tensor.set_values(v)?;
            } else {
                tensor.set_cyclic(v)?;
            }
        }
        written_before.extend(signature.outputs.iter().map(|t| t.name.to_string()));
    }
    Ok(workspace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::toy::{Fault, Toy};
    use crate::op::PlanOptions;

    #[test]
    fn large_cases_are_filled_by_repetition() {
        let toy = Toy(Fault::None);
        let case: Case = "B8_T1000000".parse().unwrap();
        let small = reduce(&toy, &case, |p| Ok(elements(p, &[Pass::Forward])? > DRAWN)).unwrap();
        assert_eq!(small.to_string(), "B8_T500000");
        let plan = toy.problem(&case).unwrap().plan(&Device::Cpu, &PlanOptions::default()).unwrap();
        let w = workspace(&toy, &case, &*plan, &[Pass::Forward], &Device::Cpu).unwrap();
        let x = w.get("x").unwrap().data;
        assert_eq!(x[..4_000_000], x[4_000_000..]);
        assert_ne!(x[0], x[1]);
        assert!(w.get("a").unwrap().data.iter().all(|a| *a != 0.0));
    }
}
