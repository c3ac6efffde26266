//! The choice of the kernels of one batch row at a time, with the shortest chain of an unfold.

use super::{Held, ROW_ADJOINTS, ROW_NEURONS, ROW_SHAPES, ROW_SOURCES, Residency, Role};
use crate::layers::ltc::cuda::schedule::{Lists, Shape};
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::{Ltc, Save};
use crate::DeviceProps;
use crate::op::Precision;

/// One row at a time, for few rows: how many clocks an unfold of them takes, and how it is held. `most` blocks a cluster.
pub(super) fn hold(
    p: &Ltc,
    props: &DeviceProps,
    resident: &Residency,
    wish: &Wish,
    role: Role,
    lists: &Lists,
    batch: usize,
    most: usize,
) -> Option<(usize, Held)> {
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    let shapes: &[_] = match (role, p.precision) {
        (Role::Recurrence, Precision::Fast) => &ROW_SHAPES,
        (Role::Adjoint, _) => &ROW_ADJOINTS,
        _ => return None,
    };
    let alone = wanted(1, wish.rows) && wanted(1, wish.groups);
    let adjoint = role == Role::Adjoint;
    // The adjoint needs barriers that old devices have not.
    let fits = p.unfolds.is_multiple_of(2) && (!adjoint || most > 1);
    let fits = fits && p.hidden <= if adjoint { ROW_SOURCES } else { ROW_NEURONS };
    // It gives alpha in the place of what was rebuilt, and leaves the sums to another kernel.
    let fits = fits && (!adjoint || (p.save == Save::Recompute && super::inputs::unfold_sums(p, props, batch).is_some()));
    if !(alone && fits) {
        return None;
    }
    let synapses = p.connectivity.recurrent.len();
    let of_blocks = |of: super::RowShape, blocks: usize| {
        if blocks > most || resident[blocks] == 0 || !wanted(of.slots, wish.slots) || !wanted(blocks, wish.blocks) {
            return None;
        }
        let shape = lists.shape(blocks, of.slots, 1, of.lanes).filter(|s| s.threads <= of.threads)?;
        // Small blocks share a multiprocessor.
        let clusters = resident[blocks] * if blocks > 1 || adjoint { 2 } else { 1 };
        let clocks = if adjoint {
            // The sums afterwards, over all multiprocessors.
            let sums = batch * synapses * 5 / 32 / props.sm_count as usize;
            adjoint_clocks(&shape, blocks) * batch.div_ceil(clusters).max(1) + sums
        } else {
            forward_clocks(&shape, blocks) * batch.max(clusters) / clusters
        };
        Some((clocks, Held { threads: shape.threads, blocks, pairs: adjoint, ..Held::row(of) }))
    };
    let all = shapes.iter().flat_map(|&s| s.blocks().map(move |b| (s, b)));
    all.filter_map(|(s, b)| of_blocks(s, b)).min_by_key(|&(clocks, _)| clocks)
}

/// Clocks of an unfold of row.cu: the special-function unit of a scheduler, and the chain beside it, which is longer with more
/// warps and in a cluster.
fn forward_clocks(shape: &Shape, blocks: usize) -> usize {
    shape.warp_slots.div_ceil(4) * 8 + shape.threads / 4 + if blocks > 1 { 450 } else { 260 }
}

/// Clocks of an unfold of row_adjoint.cu: the issue slots of a scheduler, and the chain beside them.
fn adjoint_clocks(shape: &Shape, blocks: usize) -> usize {
    let warps = shape.threads / 32;
    (shape.warp_slots * 9 + warps * 90).div_ceil(4) + if blocks > 1 { 400 } else { 200 }
}
