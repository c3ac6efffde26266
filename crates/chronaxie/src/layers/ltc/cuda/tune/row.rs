//! The choice of the kernel of one batch row at a time, with the shortest chain of an unfold.

use super::{Held, ROW_NEURONS, ROW_SHAPES, Residency, Role, RowShape};
use crate::layers::ltc::cuda::schedule::{Lists, Shape};
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::Ltc;
use crate::op::Precision;

/// One row at a time, for few rows: how many clocks an unfold of them takes, and how it is held. `most` blocks a cluster.
pub(super) fn hold(
    p: &Ltc,
    resident: &Residency,
    wish: &Wish,
    role: Role,
    lists: &Lists,
    batch: usize,
    most: usize,
) -> Option<(usize, Held)> {
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    let alone = wanted(1, wish.rows) && wanted(1, wish.groups);
    let fits = p.hidden <= ROW_NEURONS && p.unfolds.is_multiple_of(2);
    if !(role == Role::Recurrence && p.precision == Precision::Fast && alone && fits) {
        return None;
    }
    let of_blocks = |of: RowShape, blocks: usize| {
        if blocks > most || resident[blocks] == 0 || !wanted(of.slots, wish.slots) || !wanted(blocks, wish.blocks) {
            return None;
        }
        let shape = lists.shape(blocks, of.slots, 1, of.lanes).filter(|s| s.threads <= of.threads)?;
        // Small blocks share a multiprocessor.
        let clusters = resident[blocks] * if blocks > 1 { 2 } else { 1 };
        let clocks = row_clocks(&shape, blocks) * batch.max(clusters) / clusters;
        Some((clocks, Held { threads: shape.threads, blocks, ..Held::row(of) }))
    };
    let all = ROW_SHAPES.into_iter().flat_map(|s| s.blocks().map(move |b| (s, b)));
    all.filter_map(|(s, b)| of_blocks(s, b)).min_by_key(|&(clocks, _)| clocks)
}

/// Clocks of an unfold of row.cu: the special-function unit of a scheduler, and the chain beside it, which is longer with more
/// warps and in a cluster.
fn row_clocks(shape: &Shape, blocks: usize) -> usize {
    shape.warp_slots.div_ceil(4) * 8 + shape.threads / 4 + if blocks > 1 { 450 } else { 260 }
}
