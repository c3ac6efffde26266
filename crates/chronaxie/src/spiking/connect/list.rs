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
    let p = &plan.network.projections[projection];
    let asked = (BYTES * plan.expected(projection) * 1.05) as u64;
    if let Some(free) = crate::spiking::plan::free_memory().filter(|free| asked > *free) {
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
    let mut table = Synapses::default();
    let dt = plan.network.dt_ms;
    enumerate(plan, projection, 0..plan.network.populations[p.target].size, &mut |source, target, code, delay| {
        let unit = plan.units[p.target][plan.port(p.target, code < 0)];
        table.source.push(source);
        table.target.push(target);
        table.weight.push((f64::from(code) * unit) as f32);
        table.delay_ms.push((f64::from(delay) * dt) as f32);
    });
    Ok(table)
}
