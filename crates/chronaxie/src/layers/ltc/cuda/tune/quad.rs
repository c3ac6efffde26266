//! The choice of the kernels of four rows side by side.

use super::{Held, Residency, Role, gate_clocks};
use crate::layers::ltc::cuda::schedule::Lists;
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::{Ltc, Save};
use crate::op::Precision;

/// Rows, slots, threads of a half; of the slots some lie elsewhere than the others.
pub(super) const SHAPE: (usize, usize, usize) = (4, 20, 256);
/// The fewest lanes that an owner has: each sends to a block.
pub(super) const LANES: usize = 8;
/// Neurons that the tiles hold, and those of the adjoint; and what each takes of shared memory.
const NEURONS: usize = 512;
const SOURCES: usize = 256;
const TILES: usize = (32 << 10) + 512;

/// Four rows side by side, for many rows: how many clocks an unfold of them takes, and how it is held.
pub(super) fn hold(
    p: &Ltc,
    limit: usize,
    resident: &Residency,
    wish: &Wish,
    role: Role,
    lists: &Lists,
    batch: usize,
) -> Option<(usize, Held)> {
    let (rows, slots, max_threads) = SHAPE;
    let adjoint = role == Role::Adjoint;
    // Slots that every thread has; of the adjoint, whose kernel has 14 or 15 of 20 by its compiler, the fewest and the most.
    let (on, most) = if adjoint { (slots * 7 / 10, slots * 3 / 4) } else { (slots * 4 / 5, slots * 4 / 5) };
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    let fits = p.hidden <= if adjoint { SOURCES } else { NEURONS } && p.unfolds.is_multiple_of(2);
    // The forward kernel stores no unfolds, and the exact gate takes registers that it has not.
    let fits = fits && (role != Role::Recurrence || (p.precision == Precision::Fast && p.save == Save::Recompute));
    if !(fits && wanted(rows, wish.rows) && wanted(1, wish.groups) && wanted(slots, wish.slots)) {
        return None;
    }
    let batch = if role == Role::Rebuild { 1 << 14 } else { batch };
    let gate = gate_clocks(adjoint, p.precision == Precision::Fast);
    let of_blocks = |blocks: usize| {
        let shape = lists.shape(blocks, slots, rows, LANES).filter(|s| s.threads <= max_threads)?;
        // What the kernels' headers say of their shared memory.
        let kept = if adjoint { 20 * 4 } else { 16 * 4 } * 2 * max_threads;
        let shared = if adjoint {
            let beyond = 32 * lists.beyond(blocks, slots, LANES, on)?;
            16 * most * max_threads + kept + (16 * 3 + 4) * beyond
        } else {
            20 * (slots - on) * 2 * max_threads + kept
        };
        if shared + TILES > limit {
            return None;
        }
        let warps = shape.threads / 32;
        let busy = shape.warp_slots.div_ceil(warps).max(on);
        let gates = warps.div_ceil(4) * busy * rows * gate;
        // H200, measured beside the others: two halves hide each other's chains, one alone does not.
        let (clusters, groups) = (2 * resident[blocks], batch.div_ceil(rows).max(1));
        // Whoever asks for four rows and one group means these.
        let asked = wish.rows == Some(rows) && wish.groups == Some(1);
        let clocks = match (adjoint, groups > resident[blocks]) {
            _ if asked => 0,
            (false, true) => gates * 2,
            (false, false) => gates + 1500,
            (true, true) => gates * 10 / 3,
            (true, false) => gates + 3600,
        };
        let held = Held {
            blocks,
            threads: shape.threads,
            rebuild: role == Role::Rebuild,
            pairs: adjoint,
            shared: shared as u32,
            ..Held::quad()
        };
        Some((clocks * clusters.max(groups) / clusters, held))
    };
    let blocks = (2..=LANES).filter(|&b| wanted(b, wish.blocks) && resident[b] > 0);
    blocks.filter_map(of_blocks).min_by_key(|&(clocks, _)| clocks)
}
