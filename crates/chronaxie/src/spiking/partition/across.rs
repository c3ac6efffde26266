//! How short a delay from one part to another can be, by what a network says of its synapses, none of which is looked at.

use super::Layout;
use crate::spiking::network::place::distance;
use crate::spiking::network::{Delay, Projection, Rule};
use crate::spiking::plan::{MOST_APART, Plan};

/// Boxes of more parts are not compared.
const BOXES: usize = 64;

/// The least and greatest coordinates of some cells.
type Bounds = ([f32; 4], [f32; 4]);

/// The cells of a population in each part that has some: in a box, where they lie somewhere.
fn boxes(plan: &Plan, layout: &Layout, population: usize) -> Vec<(usize, Option<Bounds>)> {
    let positions = plan.network.populations[population].positions.as_deref();
    let here = |part: &usize| !layout.own(*part, population).is_empty();
    let bounds = |part: usize| {
        let all = positions?;
        let mut bounds = ([f32::INFINITY; 4], [f32::NEG_INFINITY; 4]);
        for cell in layout.own(part, population).iter() {
            for (d, x) in all[cell as usize].iter().enumerate() {
                (bounds.0[d], bounds.1[d]) = (bounds.0[d].min(*x), bounds.1[d].max(*x));
            }
        }
        Some(bounds)
    };
    (0..layout.parts()).filter(here).map(|part| (part, bounds(part))).collect()
}

/// No distance between a cell in one and a cell in the other is less, not even by rounding.
fn gap(a: &Bounds, b: &Bounds) -> f64 {
    // The point of each box that is nearest to the other.
    let from = std::array::from_fn(|d| a.0[d].max(b.0[d]).min(a.1[d]));
    let to = std::array::from_fn(|d| from[d].max(b.0[d]).min(b.1[d]));
    distance(&from, &to)
}

/// The shortest delay that a synapse from a cell of one part to a cell of another can have, in steps, at most [`MOST_APART`]; what carries
/// a modulator counts as a synapse to everywhere. Never more than the shortest that there is, and less where no synapse has what its
/// rule allows.
pub fn shortest_across(plan: &Plan, layout: &Layout) -> u64 {
    if layout.parts() < 2 {
        return MOST_APART;
    }
    let n = &plan.network;
    let all: Vec<_> = (0..n.populations.len()).map(|p| boxes(plan, layout, p)).collect();
    let projections = n.projections.iter().enumerate().filter_map(|(i, p)| of_projection(plan, layout, i, p, &all));
    let modulators = plan.learning.iter().flat_map(|l| &l.modulators).map(|m| u64::from(m.delay));
    projections.chain(modulators).fold(MOST_APART, u64::min).max(1)
}

fn of_projection(
    plan: &Plan,
    layout: &Layout,
    index: usize,
    p: &Projection,
    all: &[Vec<(usize, Option<Bounds>)>],
) -> Option<u64> {
    let dt = plan.network.dt_ms;
    let steps = |ms: f64| (ms / dt).round().max(1.0) as u64;
    if let Rule::Edges(edges) = &p.rule {
        let (from, to) = (layout.owners(p.source), layout.owners(p.target));
        let across = edges.iter().filter(|e| from[e.source as usize] != to[e.target as usize]);
        return across.map(|e| steps(e.delay_ms.into())).min();
    }
    if matches!(p.rule, Rule::OneToOne) && layout.owners(p.source) == layout.owners(p.target) {
        return None;
    }
    let near = all[p.source].len() <= BOXES && all[p.target].len() <= BOXES;
    let mut least: Option<f64> = None;
    for (i, a) in &all[p.source] {
        for (_, b) in all[p.target].iter().filter(|(j, _)| i != j) {
            let gap = a.as_ref().zip(b.as_ref()).filter(|_| near).map_or(0.0, |(a, b)| gap(a, b));
            if !matches!(p.rule, Rule::Distance { radius, .. } if gap > radius) {
                least = Some(least.map_or(gap, |least| least.min(gap)));
            }
            if !near {
                break;
            }
        }
    }
    let gap = least?;
    match (&p.delay, &plan.efficacies[index].delay) {
        (Delay::Distance { velocity, offset_ms }, _) => Some(steps(offset_ms + gap / velocity)),
        (_, Some(codes)) => Some(codes.least().max(1) as u64),
        _ => Some(1),
    }
}
