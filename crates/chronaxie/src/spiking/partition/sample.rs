//! The synapses of a network, one by one or by a sample, each with how many it stands for.

use crate::spiking::connect::{Order, Subset, rows};
use crate::spiking::draws::{Purpose, below, draw};
use crate::spiking::network::place::distance;
use crate::spiking::network::{Delay, Rule};
use crate::spiking::plan::Plan;

/// Networks of so many synapses are counted one by one.
const COUNTED: f64 = 5e7;
/// A sample of a projection has about so many.
pub(super) const SAMPLED: f64 = 1e6;

/// A synapse, or some.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampled {
    pub projection: usize,
    /// Cells of their populations.
    pub source: u32,
    pub target: u32,
    /// Steps.
    pub delay: u16,
    /// How many it stands for.
    pub count: f64,
}

/// So many targets of a projection, from all over, and how many each stands for.
fn targets(plan: &Plan, projection: usize, most: f64) -> (Order, u32, f64) {
    let size = plan.network.populations[plan.network.projections[projection].target].size;
    let count = (most.max(16.0) as u64).clamp(1, u64::from(size)) as u32;
    let every = |i: u32| (u64::from(i) * u64::from(size) / u64::from(count)) as u32;
    let mut cells: Vec<u32> = (0..count).map(every).collect();
    let mut taken = vec![false; size as usize];
    cells.iter().for_each(|c| taken[*c as usize] = true);
    cells.extend((0..size).filter(|c| !taken[*c as usize]));
    (Order::new(cells), count, f64::from(size) / f64::from(count))
}

/// About how many synapses a projection has; those that follow distances are counted at some of their targets.
pub(crate) fn expected(plan: &Plan, projection: usize) -> f64 {
    if !matches!(plan.network.projections[projection].rule, Rule::Distance { .. }) {
        return plan.expected(projection);
    }
    let (order, count, each) = targets(plan, projection, 64.0);
    let mut found = 0u64;
    let some = Subset { low: 0, high: count, order: Some(&order) };
    rows::enumerate(plan, projection, some, &mut |_, _, _, _| found += 1);
    found as f64 * each
}

/// Whether there are so few synapses that all are looked at.
pub(super) fn countable(plan: &Plan) -> bool {
    (0..plan.network.projections.len()).map(|i| expected(plan, i)).sum::<f64>() <= COUNTED
}

/// Calls `with` for all synapses, or for a sample of about so many of each projection.
pub(super) fn each(plan: &Plan, sampled: Option<f64>, with: &mut dyn FnMut(Sampled)) {
    let most = sampled.unwrap_or(f64::INFINITY);
    for projection in 0..plan.network.projections.len() {
        let p = &plan.network.projections[projection];
        let size = plan.network.populations[p.target].size;
        let put = |count: f64| {
            move |with: &mut dyn FnMut(Sampled), source: u32, target: u32, delay: u16| {
                with(Sampled { projection, source, target, delay, count });
            }
        };
        let expected = expected(plan, projection);
        let listed = matches!(p.rule, Rule::Edges(_) | Rule::OneToOne);
        if listed || expected <= most {
            let put = put(1.0);
            rows::enumerate(plan, projection, 0..size, &mut |s, t, _, d| put(with, s, t, d));
        } else if matches!(p.rule, Rule::Total { .. } | Rule::OutDegree { .. }) {
            pairs(plan, projection, expected, most, with);
        } else {
            let (order, count, each) = targets(plan, projection, most / expected * f64::from(size));
            let (put, some) = (put(each), Subset { low: 0, high: count, order: Some(&order) });
            rows::enumerate(plan, projection, some, &mut |s, t, _, d| put(with, s, t, d));
        }
    }
}

/// Pairs of rules by which any pair is as likely as any other.
fn pairs(plan: &Plan, projection: usize, expected: f64, most: f64, with: &mut dyn FnMut(Sampled)) {
    let n = &plan.network;
    let p = &n.projections[projection];
    let (sources, targets) = (&n.populations[p.source], &n.populations[p.target]);
    let delay = |s: u32, t: u32, bits: u32| match (&plan.efficacies[projection].delay, p.delay) {
        (Some(codes), _) => codes.pick(bits) as u16,
        (None, Delay::Distance { velocity, offset_ms }) => match (&sources.positions, &targets.positions) {
            (Some(a), Some(b)) => {
                let ms = offset_ms + distance(&a[s as usize], &b[t as usize]) / velocity;
                (ms / n.dt_ms).round().max(1.0) as u16
            }
            _ => 1,
        },
        (None, Delay::Drawn(_)) => 1,
    };
    let (count, key) = (most as u64, n.projection_key(projection));
    for k in 0..count {
        let [s, t, _, d] = draw(key.seed, Purpose::Pair, key.owner, k);
        let (source, target) = (below(s, sources.size), below(t, targets.size));
        if source != target || p.source != p.target || p.autapses {
            with(Sampled {
                projection,
                source,
                target,
                delay: delay(source, target, d),
                count: expected / count as f64,
            });
        }
    }
}
