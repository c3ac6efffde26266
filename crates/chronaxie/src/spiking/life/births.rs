//! What a child is: parameters like its parent's, and a state of its own.

use super::standard;
use crate::spiking::draws::{Purpose, draw, uniform};
use crate::spiking::models::{Initial, Model};
use crate::spiking::network::Key;
use crate::spiking::plan::Plan;

/// Halvings of the way from a parent's parameters to those that cannot be run.
const HALVINGS: u32 = 40;

/// The number of a draw of a cell: its generation, and its number in the population.
fn index(generation: u32, cell: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(cell)
}

/// By what something of the cells of a population is drawn.
fn key(plan: &Plan, population: usize, what: u32) -> Key {
    let key = plan.network.population_key(population);
    Key { owner: key.owner * 64 + what, ..key }
}

/// Whether a model runs with these parameters, which fit in single precision, and so do its constants.
fn lawful(model: &dyn Model, stepped: &dyn Model, parameters: &[f64], dt_ms: f64) -> bool {
    if model.problem(parameters, dt_ms).is_some() || parameters.iter().any(|x| !(*x as f32).is_finite()) {
        return false;
    }
    let mut constants = vec![0.0; stepped.coefficient_count()];
    stepped.coefficients(parameters, dt_ms, &mut constants);
    constants.iter().all(|x| x.is_finite())
}

/// Makes the parameters of a cell's parent those of generation `generation` of a population.
///
/// Each group, in order, goes by a factor of 1 + N(0, `mutation_std_params`); one that its model would refuse stops on the way there, at
/// the end of what it takes.
pub(crate) fn mutate(
    plan: &Plan,
    population: usize,
    groups: &[(u32, Vec<usize>)],
    (cell, generation): (u32, u32),
    own: &mut [f64],
) {
    let Some(life) = &plan.network.lifecycle else { return };
    let (model, stepped) = (plan.network.populations[population].model, plan.models[population]);
    let dt_ms = plan.network.dt_ms;
    let mut next = own.to_vec();
    for (number, group) in groups {
        let x = standard(key(plan, population, *number), Purpose::Mutation, index(generation, cell));
        let go = |next: &mut [f64], own: &[f64], share: f64| {
            group.iter().for_each(|i| next[*i] = own[*i] + own[*i] * (life.mutation_std_params * x * share));
            lawful(model, stepped, next, dt_ms)
        };
        if !go(&mut next, own, 1.0) {
            let (mut good, mut bad) = (0.0, 1.0);
            for _ in 0..HALVINGS {
                let middle = 0.5 * (good + bad);
                if go(&mut next, own, middle) { good = middle } else { bad = middle }
            }
            go(&mut next, own, good);
        }
        group.iter().for_each(|i| own[*i] = next[*i]);
    }
}

/// The state that a cell of a generation begins with, whose parameters these are, as it is stepped.
pub(crate) fn state(plan: &Plan, population: usize, (cell, generation): (u32, u32), parameters: &[f64]) -> Vec<f64> {
    let (p, stepped) = (&plan.network.populations[population], plan.models[population]);
    let described = p.model.variables();
    let begin = |i: usize| {
        // What starts at a parameter's value starts at the child's own.
        if let Initial::Parameter(name) = described[i].initial
            && let Some(k) = p.model.parameters().iter().position(|x| x.name == name)
        {
            let follows = match (p.given.variable(i), p.given.parameter(k)) {
                (None, None) => p.initial[i] == p.parameters[k],
                (own, given) => own == given,
            };
            if follows {
                return parameters[k];
            }
        }
        if let Some(own) = p.given.variable(i) {
            return own[cell as usize];
        }
        p.initial[i].constant().unwrap_or_else(|| {
            let key = key(plan, population, 32 + i as u32);
            let bits = draw(key.seed, Purpose::Birth, key.owner, index(generation, cell));
            p.initial[i].quantile(uniform(bits[0], bits[1]))
        })
    };
    let of = |name: &str| described.iter().position(|v| v.name == name);
    let mut state: Vec<f64> = stepped.variables().iter().map(|v| of(v.name).map_or(0.0, begin)).collect();
    stepped.enter(parameters, &mut state);
    state
}
