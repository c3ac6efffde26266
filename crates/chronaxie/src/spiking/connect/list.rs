//! Synapses as a table, for whoever wants to look at them.

use super::rows::enumerate;
use crate::spiking::plan::Plan;
use crate::{Error, ErrorKind, Result};

/// The synapses of a projection, column by column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Synapses {
    /// Cell of the source population, from 0.
    pub source: Vec<u32>,
    /// Cell of the target population, from 0.
    pub target: Vec<u32>,
    /// As it is delivered, in the unit of the target's model.
    pub weight: Vec<f32>,
    /// ms.
    pub delay_ms: Vec<f32>,
}

/// Bytes of a synapse in a table.
const BYTES: f64 = 16.0;

/// The synapses of a projection as every engine of `plan` has them, drawn again; weights are those at the start.
///
/// # Errors
/// `OutOfMemory` before anything is allocated.
pub fn synapses(plan: &Plan, projection: usize) -> Result<Synapses> {
    require_memory(plan, projection, BYTES)?;
    let p = &plan.network.projections[projection];
    let mut table = Synapses::default();
    let dt = plan.network.dt_ms;
    enumerate(plan, projection, 0..plan.network.populations[p.target].size, &mut |source, target, code, delay| {
        let port = plan.port(p.target, code < 0);
        let unit = if p.plasticity.is_some() { plan.coarse_unit(p.target, port) } else { plan.units[p.target][port] };
        table.source.push(source);
        table.target.push(target);
        table.weight.push((f64::from(code) * unit) as f32);
        table.delay_ms.push((f64::from(delay) * dt) as f32);
    });
    Ok(table)
}

fn require_memory(plan: &Plan, projection: usize, bytes: f64) -> Result<()> {
    let asked = (bytes * plan.expected(projection) * 1.05) as u64;
    if let Some(free) = crate::memory::free().filter(|free| asked > *free) {
        return Err(Error::new(
            ErrorKind::OutOfMemory { asked, free },
            format!(
                "{:.3e} synapses of {} take {:.1} GB as a table, but {:.1} GB are free",
                plan.expected(projection),
                plan.label(projection),
                asked as f64 / 1e9,
                free as f64 / 1e9
            ),
        ));
    }
    Ok(())
}

/// A synapse that changes: what it is known by (cell of the source, steps, cell of the target), and its strength.
pub(in crate::spiking) type Known = ((u32, u16, u32), u32);

/// The synapses of a projection that changes, in the order of [`synapses`], so that a row is one synapse at all times; `now`
/// has their strengths, in any order.
///
/// Synapses that are known by the same meet the same spikes, and no step of a weight changes the order of two: the k-th by
/// strength is the k-th by its weight at the start.
///
/// # Errors
/// `OutOfMemory` before anything is allocated.
pub(in crate::spiking) fn changed(
    plan: &Plan,
    projection: usize,
    now: impl FnOnce() -> Result<Vec<Known>>,
) -> Result<Synapses> {
    let (Some(learning), Some(rule)) = (&plan.learning, plan.rule(projection)) else {
        return synapses(plan, projection);
    };
    require_memory(plan, projection, BYTES + 2.5 * std::mem::size_of::<(Known, u32)>() as f64)?;
    let (p, rule) = (&plan.network.projections[projection], &learning.rules[usize::from(rule)]);
    let value = f64::from(rule.sign) * plan.coarse_unit(p.target, rule.port) / 65_536.0;
    let mut now = now()?;
    now.sort_unstable();
    let mut begun: Vec<(Known, u32)> = Vec::with_capacity(now.len());
    enumerate(plan, projection, 0..plan.network.populations[p.target].size, &mut |source, target, code, delay| {
        begun.push((((source, delay, target), rule.begin(code)), begun.len() as u32));
    });
    begun.sort_unstable();
    if begun.len() != now.len() || begun.iter().zip(&now).any(|(a, b)| a.0.0 != b.0) {
        return Err(Error::value(format!(
            "{} has {} synapses, but the engine holds {} others",
            plan.label(projection),
            begun.len(),
            now.len()
        )));
    }
    let zeros = || vec![0; begun.len()];
    let mut table =
        Synapses { source: zeros(), target: zeros(), weight: vec![0.0; now.len()], delay_ms: vec![0.0; now.len()] };
    for ((((source, delay, target), _), row), (_, strength)) in begun.iter().zip(&now) {
        let row = *row as usize;
        (table.source[row], table.target[row]) = (*source, *target);
        table.weight[row] = (f64::from(*strength) * value) as f32;
        table.delay_ms[row] = (f64::from(*delay) * plan.network.dt_ms) as f32;
    }
    Ok(table)
}
