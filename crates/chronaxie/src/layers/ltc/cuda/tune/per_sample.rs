//! The choice of kernels whose sums are those of each batch row by itself.

use super::{Config, Held, Residency, choose_for};
use crate::layers::ltc::spec::Ltc;
use crate::{DeviceProps, Result};

/// Bytes that the sums of all rows of a launch may take.
const ROWS_BYTES: usize = 32 << 20;
/// Beyond so many rows of a launch they are a multiple of it.
const FULL: usize = 16;

/// How many rows a backward pass may take at once that leaves the sums of each.
pub(in crate::layers::ltc) fn rows_at_once(p: &Ltc) -> usize {
    let c = &p.connectivity;
    // Schedules leave some slots empty.
    let each = 20 * (c.recurrent.len() + c.sensory.len()) + 16 * (p.hidden + p.inputs + p.outputs);
    let rows = (ROWS_BYTES / each.max(1)).max(1);
    if rows > FULL { rows / FULL * FULL } else { rows }
}

/// Whether every cluster of the adjoint has a row at a time and holds its sums, and the sensory adjoint those over the inputs.
fn leaves_rows(p: &Ltc, c: &Config) -> bool {
    let alone = |h: Held| h.whole || h.rows == 1 && !h.quad && c.sums.is_none() && c.sensory_adjoint.is_some();
    // Sums behind a LayerNorm are of all steps at once.
    let at_once = !p.layer_norm || c.together(p) || c.backward_chunk >= p.steps;
    at_once && !p.mixed_memory && c.adjoint.is_some_and(alone)
}

/// The configuration of a problem of whose rows sums are left, or None where no kernel does: an adjoint with a cluster a row, as the usual
/// choice or by the shapes of one row.
///
/// # Errors
/// As [`choose_for`].
pub(in super::super) fn choose_per_sample(
    p: &Ltc,
    props: &DeviceProps,
    resident: &Residency,
    variant: Option<&str>,
) -> Result<Option<Config>> {
    if [p.batch, p.steps, p.hidden, p.inputs].contains(&0) {
        return Ok(None);
    }
    let usual = choose_for(p, props, resident, variant)?;
    let others = ["br1g1", "br1g1s20", "br1g1s8"].iter().filter(|_| variant.is_none());
    let all = others.filter_map(|name| choose_for(p, props, resident, Some(name)).ok());
    let found = std::iter::once(usual).chain(all).find(|c| leaves_rows(p, c));
    Ok(found.map(|c| Config {
        adjoint: c.adjoint.map(|h| Held { groups: if h.whole { h.groups } else { 1 }, per_sample: true, ..h }),
        // More groups than a row has tiles would have nothing to do.
        sensory_adjoint: c.sensory_adjoint.map(|h| {
            let groups = h.groups.min(c.backward_chunk.min(p.steps).div_ceil(super::inputs::SUMS_TILE)).max(1);
            Held { groups, per_sample: true, ..h }
        }),
        ..c
    }))
}
