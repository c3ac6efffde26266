//! Whether an engine does as another one: nothing is timed that does not.

use super::Spiking;
use super::networks::{LEAST_DISCARD_MS, smaller};
use crate::op::Case;
use crate::spiking::Plan;
use crate::spiking::connect::{Redraw, shards_for};
use crate::spiking::network::Rule;
use crate::spiking::simulate::measure::Runner;
use crate::spiking::simulate::{CpuEngine, Reference, Spike};
use crate::{Device, Result};

/// Cells times steps that the reference, plain loops on one core, is asked for, and synapses.
const OF_REFERENCE: [f64; 2] = [5e5, 1e6];
/// Synapses that the host makes to check a GPU.
const OF_CPU: f64 = 2e9;
/// Draws that the host makes when it makes such synapses by rules of which each shard makes all of them.
const OF_SHARDS: f64 = 2e10;
/// Synapses that change that are compared one by one, with all states; of more, their number, sum and squares by population, and
/// the states of some cells.
const ONE_BY_ONE: f64 = 5e7;
/// So many of each population.
const SOME: usize = 100;

/// Steps that are compared.
pub(super) fn steps(plan: &Plan) -> u64 {
    (LEAST_DISCARD_MS / plan.network.dt_ms).round() as u64
}

/// Whether what is compared with can run this plan in seconds.
fn affordable(plan: &Plan, device: &Device) -> bool {
    match device {
        Device::Cpu => {
            plan.cells() as f64 * steps(plan) as f64 <= OF_REFERENCE[0] && plan.expected_synapses() <= OF_REFERENCE[1]
        }
        Device::Cuda(_) => {
            let of_all = |r: &Rule| matches!(r, Rule::OutDegree { .. } | Rule::Total { .. });
            let own = plan.network.projections.iter().enumerate().filter(|(_, p)| of_all(&p.rule));
            let draws: f64 = own.map(|(i, _)| plan.expected(i)).sum();
            plan.expected_synapses() <= OF_CPU
                && draws * shards_for(plan, 1) as f64 <= OF_SHARDS
                && plan.require_memory(1.0, Redraw::Asked).is_ok()
        }
    }
}

/// The largest case like this one that can be checked in seconds, with its plan; none where it is this one.
pub(super) fn smaller_case(
    family: &Spiking,
    case: &Case,
    plan: &Plan,
    device: &Device,
) -> Result<Option<(Case, Plan)>> {
    if affordable(plan, device) {
        return Ok(None);
    }
    let mut small = case.clone().without("gpus").0;
    loop {
        let plan = Plan::new(family.network(&small)?.0)?;
        match smaller(&small) {
            Some(next) if !affordable(&plan, device) => small = next,
            _ => return Ok(Some((small, plan))),
        }
    }
}

/// Runs the first steps of `plan` on `runner`, which has run none, and says what differs from the engine it is held against; its
/// spikes are added to `spikes`.
pub(super) fn differs(runner: &mut Runner<'_>, plan: &Plan, spikes: &mut Vec<Spike>) -> Result<Option<String>> {
    differs_by(runner, plan, spikes, ONE_BY_ONE)
}

/// Likewise, with up to so many synapses that change one by one.
pub(super) fn differs_by(
    runner: &mut Runner<'_>,
    plan: &Plan,
    spikes: &mut Vec<Spike>,
    one_by_one: f64,
) -> Result<Option<String>> {
    let steps = steps(plan);
    runner.engine().advance(steps, spikes)?;
    let mut want = Vec::new();
    match runner {
        Runner::Cpu(engine) => {
            let mut law = Reference::in_f32(plan)?;
            law.advance(steps, &mut want)?;
            if let Some(what) = other_spikes(spikes, &want, "the reference") {
                return Ok(Some(what));
            }
            let state = crate::spiking::Engine::state(engine)?;
            for (p, variables) in state.variables.iter().enumerate() {
                let law = law.states(p);
                let same = |v: usize, c: usize, x: f32| (law[c][v] as f32).to_bits() == x.to_bits();
                let differs =
                    variables.iter().enumerate().any(|(v, all)| all.iter().enumerate().any(|(c, x)| !same(v, c, *x)));
                if differs {
                    let name = &plan.network.populations[p].name;
                    return Ok(Some(format!("after {steps} steps states of {name} are not the reference's")));
                }
            }
            Ok(None)
        }
        Runner::Cuda(engine) => {
            let mut law = CpuEngine::new(plan, &|_, _| ())?;
            let cpu: &mut dyn crate::spiking::Engine = &mut law;
            cpu.advance(steps, &mut want)?;
            if let Some(what) = other_spikes(spikes, &want, "the CPU's engine") {
                return Ok(Some(what));
            }
            let changing = (0..plan.network.projections.len()).filter(|i| plan.changes(*i));
            let few = changing.map(|i| plan.expected(i)).sum::<f64>() <= one_by_one;
            let same = match few {
                true => engine.state()? == cpu.state()?,
                false => engine.weights()? == cpu.weights()? && some_cells(&**engine, plan)? == some_cells(cpu, plan)?,
            };
            Ok((!same).then(|| format!("after {steps} steps states or weights are not those of the CPU's engine")))
        }
    }
}

/// The states of some cells of each population.
fn some_cells(engine: &dyn crate::spiking::Engine, plan: &Plan) -> Result<Vec<Vec<f32>>> {
    let mut all = Vec::new();
    for (p, population) in plan.network.populations.iter().enumerate() {
        for cell in (0..population.size).step_by((population.size as usize).div_ceil(SOME).max(1)) {
            all.push(engine.cell(p, cell)?);
        }
    }
    Ok(all)
}

fn other_spikes(got: &[Spike], want: &[Spike], whose: &str) -> Option<String> {
    if got == want {
        return None;
    }
    let at = got.iter().zip(want).take_while(|(a, b)| a == b).count();
    let step = got.get(at).into_iter().chain(want.get(at)).map(|s| s.step).min().unwrap_or(0);
    Some(format!(
        "its spikes are not those of {whose}: {} and {}, the same up to number {at}, in step {step}",
        got.len(),
        want.len()
    ))
}
