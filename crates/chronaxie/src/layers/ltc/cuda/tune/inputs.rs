//! The choice of the kernels of the gates over the inputs.

use super::{Held, SENSORY_ADJOINTS, SENSORY_ROWS, SENSORY_SHAPES, always, backward_budget, io_bytes};
use crate::DeviceProps;
use crate::layers::ltc::cuda::schedule::{Lists, Shape};
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::Ltc;

/// Rows of a tile, as in sensory_adjoint.cu, and the most groups that a block has barriers for.
pub(super) const SUMS_TILE: usize = 8;
const MOST_GROUPS: usize = 8;

/// How the sensory sums are held: as the busiest scheduler of a multiprocessor has the least to do for a row.
pub(super) fn sensory(p: &Ltc, props: &DeviceProps, wish: &Wish) -> Option<Held> {
    if wish.rows_only || p.inputs == 0 || p.hidden == 0 {
        return None;
    }
    let lists = Lists::by_target(&p.connectivity.sensory)?;
    let rows = SENSORY_ROWS;
    let mut best: Option<(usize, Held)> = None;
    for blocks in [1, 2, 4, 8, 16, 32, 64] {
        for (slots, max_threads) in SENSORY_SHAPES {
            let Some(shape) = lists.shape(blocks, slots, rows, 1).filter(|s| s.threads <= max_threads) else {
                continue;
            };
            let warps = shape.threads / 32;
            let busy = shape.warp_slots.div_ceil(warps).max(always(slots));
            // Beside its gates a warp adds the sums of its lanes.
            let clocks = blocks * warps.div_ceil(4) * (busy * rows * 8 + 150);
            let tile = sensory_tile(p.batch * p.steps, p.inputs, blocks, props);
            if tile == 0 || best.is_some_and(|(least, _)| least <= clocks) {
                continue;
            }
            // Two tiles where they fit.
            let [one, both] = [1, 2].map(|n| tile * (n * p.inputs * 4 + 16));
            let shared = if both <= props.shared_per_block_optin as usize { both } else { one } as u32;
            let threads = shape.threads;
            best =
                Some((clocks, Held { blocks, threads, groups: tile, shared, ..Held::of((rows, slots, max_threads)) }));
        }
    }
    best.map(|(_, held)| held)
}

/// Rows of a tile of the sensory sums of `rows` rows: so many that reading them is short beside their gates, but that every
/// multiprocessor has some; none if a few do not fit shared memory.
pub(in crate::layers::ltc::cuda) fn sensory_tile(
    rows: usize,
    inputs: usize,
    parts: usize,
    props: &DeviceProps,
) -> usize {
    let share = (rows * parts).div_ceil(props.sm_count as usize).max(1);
    let fit = props.shared_per_block_optin as usize / (inputs * 4 + 16) / SENSORY_ROWS * SENSORY_ROWS;
    share.next_multiple_of(SENSORY_ROWS).min(32).min(fit)
}

/// Whether so much shared memory has room for two tiles.
pub(in crate::layers::ltc::cuda) const fn two_tiles(tile: usize, inputs: usize, shared: u32) -> bool {
    tile * (2 * inputs * 4 + 16) <= shared as usize
}

/// Bytes that the sums of the sensory gates may take, block by block: where the inputs and outputs are not small, as much as
/// the portable kernels would take instead.
pub(in crate::layers::ltc::cuda) fn sensory_budget(p: &Ltc) -> usize {
    (backward_budget(p) / 3).max((io_bytes(p) * 2 / 3).min((8 << 20) / 3))
}

/// Shared memory of a tile of the adjoint of the sensory gates: alpha and beta of its rows, their inputs and du.
const fn sums_tile(hidden: usize, threads: usize) -> usize {
    SUMS_TILE * (hidden * 8 + threads * 4)
}

/// Tiles of a group of it.
pub(in crate::layers::ltc::cuda) const fn sums_tiles(h: &Held, hidden: usize) -> usize {
    if h.groups * 2 * sums_tile(hidden, h.threads) <= h.shared as usize { 2 } else { 1 }
}

/// How the adjoint of the sensory gates is held for chunks of `rows` rows (sensory_adjoint.cu): in the parts of the inputs with which
/// they take the fewest clocks, and only if the budget gives enough blocks. A block has sums of its own, so that few rows a block
/// cost memory, and many parts of few synapses less than many blocks of all; groups of a block share its sums.
pub(super) fn sensory_adjoint(p: &Ltc, props: &DeviceProps, rows: usize) -> Option<Held> {
    if p.inputs == 0 || p.hidden == 0 {
        return None;
    }
    let lists = Lists::by_source(&p.connectivity.sensory)?;
    let (others, budget) = (p.hidden, sensory_budget(p));
    // Its maps of the inputs and their sums lie beside that.
    let limit = (props.shared_per_block_optin as usize).saturating_sub(16 * SENSORY_ADJOINTS[0].2);
    let processors = props.sm_count as usize;
    let mut best: Option<(usize, Held)> = None;
    let blocks = [1, 2, 4, 8, 16, 32, 64];
    let all = SENSORY_ADJOINTS.into_iter().flat_map(|shape| blocks.map(|b| (shape, b)));
    for ((side, slots, max_threads), blocks) in all {
        let shape = lists.shape(blocks, slots, 2 * side, side).filter(|s| s.threads <= max_threads);
        let Some(Shape { threads, warp_slots }) = shape else { continue };
        // Two tiles of a group where they fit.
        let one = sums_tile(others, threads);
        let of_group = if 2 * one <= limit { 2 * one } else { one };
        // At last there are the sums of all groups but one.
        let of_sums = 16 * slots * threads;
        let groups = (max_threads / threads).min(limit / of_group).min(MOST_GROUPS).min(limit / of_sums + 1);
        let tiles = rows.div_ceil(SUMS_TILE);
        let affordable = budget / (16 * blocks * slots * threads);
        let workers = affordable.min(processors / blocks).min(tiles);
        // Too few blocks for so many rows: the portable kernels are faster.
        let few = 2 * workers * blocks < processors && 48 * workers < rows;
        if workers == 0 || groups == 0 || few {
            continue;
        }
        let groups = groups.min(tiles.div_ceil(workers));
        // Of two rows: issue slots of all groups, or how long the warps of one take alone; its share of the tiles, each read with
        // loads of several rows in flight, of one target after the other.
        let warps = threads / 32;
        let issued = (warp_slots * 13 * side + warps * 50) * groups / 4;
        let alone = warp_slots.div_ceil(warps) * 26 * side + 200;
        let each = SUMS_TILE / side * issued.max(alone) + 700 * others.div_ceil(threads) + 300;
        let clocks = tiles.div_ceil(workers * groups) * each + 3000 + slots * threads * groups / 2;
        if best.is_none_or(|(least, _)| clocks < least) {
            let shared = (groups * of_group).max((groups - 1) * of_sums) as u32;
            let held = Held::of((side, slots, max_threads));
            best = Some((clocks, Held { blocks, threads, groups, pairs: true, shared, ..held }));
        }
    }
    best.map(|(_, held)| held)
}
