//! The choice of the kernel of one batch row at a time, with the shortest chain of an unfold.

use super::{
    FULL_SLOTS, HALVES, Held, ROW_ADJOINTS, ROW_NEURONS, ROW_SHAPES, Residency, Role, RowShape, TRACE_GROUP, TRACE_SUMS,
};
use crate::DeviceProps;
use crate::layers::ltc::cuda::schedule::{Lists, Shape};
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::{Kept, Ltc};
use crate::op::Precision;

/// Where neurons without synapses have no lanes: of compute capability 9.0, and of later ones, on whose code for the first NVRTC 13.0 fails.
pub(in super::super) const LONE_SHAPES: [RowShape; 2] = [
    RowShape { slots: 28, threads: 384, lanes: 1, cluster: false },
    RowShape { slots: 44, threads: 256, lanes: 1, cluster: false },
];

/// One row at a time, for few rows: how many clocks an unfold of them takes, and how it is held. `most` blocks a cluster.
#[allow(clippy::too_many_arguments)]
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
    let alone = wanted(1, wish.rows) && wanted(1, wish.groups);
    if !(alone && p.hidden <= ROW_NEURONS) {
        return None;
    }
    match role {
        Role::Recurrence if p.precision == Precision::Fast && p.unfolds.is_multiple_of(2) => {}
        Role::Adjoint => return adjoint(p, props, resident, wish, lists, batch, most),
        _ => return None,
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
    let of_lone = LONE_SHAPES[usize::from(props.compute_capability.0 != 9)];
    let asked = wanted(of_lone.slots, wish.slots) && wanted(1, wish.blocks);
    let lone = if most > 1 && asked { lone(p, resident, wish, lists, batch, of_lone) } else { None };
    all.filter_map(|(s, b)| of_blocks(s, b)).chain(lone).min_by_key(|&(clocks, _)| clocks)
}

/// The same where neurons without synapses have no lanes: a quarter of them at least, unless it is asked for, and no unfold is kept.
fn lone(
    p: &Ltc,
    resident: &Residency,
    wish: &Wish,
    lists: &Lists,
    batch: usize,
    of: RowShape,
) -> Option<(usize, Held)> {
    let shape = lists.lone_shape(of.slots, of.threads).filter(|s| s.threads <= of.threads)?;
    if p.kept() != Kept::States || wish.slots.is_none() && 4 * shape.lone < p.hidden {
        return None;
    }
    // Measured on an H100: 1290 clocks where a scheduler has 80 slots, 1120 where it has 36.
    let clocks = 980 + 4 * shape.busiest;
    Some((clocks * batch.max(resident[1]) / resident[1].max(1), Held { threads: shape.threads, ..Held::lone(of) }))
}

/// Clocks of an unfold of row.cu: the special-function unit of a scheduler, and the chain beside it, which is longer with more
/// warps and in a cluster.
fn row_clocks(shape: &Shape, blocks: usize) -> usize {
    shape.warp_slots.div_ceil(4) * 8 + shape.threads / 4 + if blocks > 1 { 450 } else { 260 }
}

/// The same of the adjoint, and of a cluster alone.
fn adjoint(
    p: &Ltc,
    props: &DeviceProps,
    resident: &Residency,
    wish: &Wish,
    lists: &Lists,
    batch: usize,
    most: usize,
) -> Option<(usize, Held)> {
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    // What the kernel's header says of its shared memory, and what it has beside that.
    let limit = props.shared_per_block_optin as usize;
    let words = p.kept() == Kept::Words;
    let shared = 8 * ((2 * p.unfolds + 1) * p.hidden).next_multiple_of(4);
    let of_full = if words { 8 * ((p.unfolds + 2) * p.hidden).next_multiple_of(4) } else { shared };
    if wish.groups.is_some()
        || shared.max(of_full) + 10 * ROW_NEURONS + 16 * 256 + 64 > limit / 2
        || p.batch * p.steps > i32::MAX as usize
    {
        return None;
    }
    let of_blocks = |of: RowShape, blocks: usize| {
        if blocks > most || resident[blocks] == 0 || !wanted(of.slots, wish.slots) || !wanted(blocks, wish.blocks) {
            return None;
        }
        if of.slots == FULL_SLOTS {
            // A step is copied behind the second unfold of the one before it; and later GPUs' code would spill.
            if p.unfolds < 2 || props.compute_capability.0 != 9 {
                return None;
            }
            let (clocks, threads) = (full_clocks(resident, lists, batch, of, blocks)?, of.threads);
            return Some((clocks, Held { threads, blocks, words, shared: of_full as u32, ..Held::row_adjoint(of) }));
        }
        if !p.unfolds.is_multiple_of(2) {
            return None;
        }
        let (lanes, _) = lists.in_order(blocks, of.slots, of.lanes).filter(|&(_, threads)| threads <= of.threads)?;
        // Of more rows than the device holds at once others make several side by side.
        let clusters = resident[blocks];
        if wish.slots.is_none() && batch > clusters {
            return None;
        }
        // Any processor makes what is summed of each synapse.
        let sums = batch * p.connectivity.recurrent.len() * 12 / (128 * resident[1].max(1));
        let clocks = adjoint_clocks(lists.most_slots(lanes), of.threads) * batch.max(clusters) / clusters + sums;
        let held = Held { threads: of.threads, blocks, shared: shared as u32, ..Held::row_adjoint(of) };
        Some((clocks, held))
    };
    let all = ROW_ADJOINTS.into_iter().flat_map(|s| s.blocks().map(move |b| (s, b)));
    let leaves = sums(p, props).is_some();
    all.filter_map(|(s, b)| of_blocks(s, b)).filter(|(_, h)| h.full() || leaves).min_by_key(|&(clocks, _)| clocks)
}

/// Clocks of an unfold of all rows by full_adjoint.cu, or none if its lists do not fit: its exchange, and the slots of a scheduler, of
/// which the code has ten or more (H100, measured).
fn full_clocks(resident: &Residency, lists: &Lists, batch: usize, of: RowShape, blocks: usize) -> Option<usize> {
    let slots = lists.packed_slots(blocks, of.slots, of.threads, blocks.div_ceil(2))?.max(FULL_SLOTS * 5 / 7);
    let (small, crowded) = (of.threads <= 128, batch > resident[blocks]);
    let clusters = resident[if small { HALVES + blocks } else { blocks }];
    if clusters == 0 {
        return None;
    }
    let exchange = 450 + 30 * blocks + if small { 0 } else { 100 };
    let warps = if small && !crowded { 1 } else { 2 };
    Some((exchange + 18 * slots * warps) * batch.div_ceil(clusters).max(1))
}

/// Clocks of an unfold of row_adjoint.cu: its exchange and sums, and the gates of a scheduler (H100, measured: 1440 for 256 neurons).
fn adjoint_clocks(slots: usize, threads: usize) -> usize {
    900 + slots * threads / 8
}

/// Rebuilt unfolds of so many rows: several groups in turn take as long as one by one (H100: 8.4 and 16 us for one and two of two rows
/// of 128 neurons), so that there are as many as leave no cluster without a group.
pub(super) fn rebuild(h: Held, rows: usize, resident: &Residency, wish: &Wish) -> Held {
    if h.quad || wish.groups.is_some() {
        return h;
    }
    let turns = |g: usize| rows.div_ceil(h.rows).div_ceil(resident[h.blocks].max(1) * g) * g;
    Held { groups: (1..=h.groups).rev().min_by_key(|&g| turns(g)).unwrap_or(1), ..h }
}

/// How the sums over unfolds of an adjoint of one row are held: in the parts of the targets that leave the fewest slots empty.
pub(super) fn sums(p: &Ltc, props: &DeviceProps) -> Option<Held> {
    let lists = Lists::by_target(&p.connectivity.recurrent)?;
    let (rows, slots, max_threads) = TRACE_SUMS;
    let of_group = 2 * (2 * p.unfolds + 2) * p.hidden * 4;
    let groups = (props.shared_per_block_optin as usize / of_group).min(max_threads / TRACE_GROUP);
    let fits = |&blocks: &usize| lists.shape(blocks, slots, rows, 1).is_some_and(|s| s.threads <= TRACE_GROUP);
    let blocks = (1..=props.sm_count as usize).find(fits).filter(|_| groups > 0)?;
    let shared = (groups * of_group.max(16 * TRACE_GROUP)) as u32;
    Some(Held { blocks, threads: TRACE_GROUP, groups, shared, ..Held::of((rows, slots, max_threads)) })
}
