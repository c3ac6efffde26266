//! The choice of the kernels that do all of a short pass.

use super::{
    Held, ROW_NEURONS, Residency, WHOLE_BLOCKS, WHOLE_GATES, WHOLE_HELD, WHOLE_LANES, WHOLE_OTHERS, WHOLE_SHAPE,
    WHOLE_STEPS, WHOLE_UNFOLDS, WHOLE_WALKERS,
};
use crate::DeviceProps;
use crate::layers::ltc::Synapses;
use crate::layers::ltc::cuda::schedule::Lists;
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::{Kept, Ltc};
use crate::op::Precision;
use std::ops::Range;

/// Shared memory that both kernels have beside that: two floats a neuron, and barriers.
const FIXED: usize = 8 * ROW_NEURONS + 8 * 32 + 64;
/// Steps that go side by side, and slots that are read at once, as in whole.cuh.
const SIDE_BY_SIDE: usize = 8;
const AHEAD: usize = 4;

/// The inputs of the block of each rank: as many of each, but the last may have fewer.
pub(in super::super) fn shares(inputs: usize, blocks: usize) -> impl Iterator<Item = Range<usize>> {
    let share = inputs.div_ceil(blocks);
    (0..blocks).map(move |rank| (rank * share).min(inputs)..((rank + 1) * share).min(inputs))
}

/// The fewest slots, as many as are read at once or a multiple, with which WHOLE_OTHERS threads hold every block's share of the
/// inputs' synapses; and what a load of the other end brings.
pub(in super::super) fn input_slots(s: &Synapses, blocks: usize, by_source: bool) -> Option<(usize, usize)> {
    let width = if by_source { 2 } else { WHOLE_STEPS };
    let lists: Vec<Lists> =
        shares(s.sources(), blocks).map(|some| Lists::of_sources(s, some, by_source)).collect::<Option<_>>()?;
    let least = WHOLE_LANES[usize::from(by_source)];
    let fits = |slots: &usize| {
        lists.iter().all(|l| l.shape(1, *slots, width, least).is_some_and(|s| s.threads <= WHOLE_OTHERS))
    };
    (AHEAD..=6 * AHEAD).step_by(AHEAD).find(fits).map(|slots| (slots, width))
}

/// Rows of 32 slots of the inputs by source, in the block that has the most: what input_slots makes of warps.
pub(in super::super) fn kept_rows(s: &Synapses, blocks: usize) -> Option<usize> {
    let (slots, width) = input_slots(s, blocks, true)?;
    let rows = |some| Some(Lists::of_sources(s, some, true)?.shape(1, slots, width, WHOLE_LANES[1])?.warp_slots);
    shares(s.sources(), blocks).map(rows).try_fold(0, |most, n| Some(most.max(n?)))
}

/// Values of a node that a load brings in the unfolds of the backward pass.
pub(in super::super) const fn unfolded(blocks: usize) -> usize {
    if SIDE_BY_SIDE / blocks < WHOLE_STEPS { SIDE_BY_SIDE / blocks } else { WHOLE_STEPS }
}

/// Which sides' matrices a block copies to shared memory, beside `other` bytes there, and how many bytes that makes: the inputs'
/// first, whose synapses are more.
fn staged(p: &Ltc, blocks: usize, props: &DeviceProps, other: usize) -> (u8, usize) {
    let (h, share, most) = (p.hidden, p.inputs.div_ceil(blocks), props.shared_per_block_optin as usize);
    // A copy is of 16 bytes, and each block's part begins where one can.
    let whole = |rows: usize, parts: usize| if parts > 1 { h.is_multiple_of(4) } else { (rows * h).is_multiple_of(4) };
    let bytes = |rows, parts| if whole(rows, parts) && rows * h <= 1 << 16 { 16 * rows * h } else { 0 };
    let room = |other: usize, bytes: usize| if other + bytes <= most { bytes } else { 0 };
    let inputs = room(other, bytes(share, blocks));
    let recurrent = room(other + inputs, bytes(h, 1));
    (u8::from(recurrent > 0) | u8::from(inputs > 0) << 1, other + recurrent + inputs)
}

/// The forward pass in one launch: for few rows of few steps. As many blocks share a row as the device holds of all at once.
pub(super) fn forward(p: &Ltc, props: &DeviceProps, resident: &Residency, wish: &Wish) -> Option<Held> {
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    let alone = wanted(1, wish.rows) && wanted(1, wish.groups) && !wish.rows_only;
    let fits = (1..=ROW_NEURONS).contains(&p.hidden) && p.inputs > 0 && p.unfolds.is_multiple_of(2);
    let few = p.steps * p.unfolds <= WHOLE_UNFOLDS;
    let fast = p.precision == Precision::Fast && props.compute_capability >= (8, 0);
    if !(alone && few && fits && fast && wanted(WHOLE_SHAPE.slots, wish.slots)) {
        return None;
    }
    let row = Lists::by_target(&p.connectivity.recurrent)?.shape(1, WHOLE_SHAPE.slots, 1, WHOLE_SHAPE.lanes)?;
    if row.threads > WHOLE_WALKERS {
        return None;
    }
    let one = |&blocks: &usize| {
        let there = if blocks > 1 { props.compute_capability >= (9, 0) } else { true };
        let gates = p.steps * p.connectivity.sensory.len() / blocks;
        if !there || p.batch > resident[blocks] || gates > WHOLE_GATES || !wanted(blocks, wish.blocks) {
            return None;
        }
        input_slots(&p.connectivity.sensory, blocks, false)?;
        // What the kernel's header says of its shared memory.
        let sums = (blocks * p.steps * p.hidden * 8).next_multiple_of(16);
        let shared = sums + 4 * SIDE_BY_SIDE * p.inputs.div_ceil(blocks);
        let (staged, all) = staged(p, blocks, props, shared + FIXED);
        (shared <= 40 << 10).then(|| Held { shared: (all - FIXED) as u32, staged, ..Held::whole(blocks) })
    };
    WHOLE_BLOCKS.iter().find_map(one)
}

/// The backward pass alike, of a problem whose forward pass `row` is.
pub(super) fn adjoint(p: &Ltc, props: &DeviceProps, row: Option<Held>) -> Option<Held> {
    let row = row.filter(|h| h.whole && p.backward && !p.layer_norm)?;
    let (s, blocks) = (&p.connectivity, row.blocks);
    let (slots, lanes) = WHOLE_HELD;
    for (lists, width) in [(Lists::by_target(&s.recurrent), unfolded(blocks)), (Lists::by_source(&s.recurrent), 1)] {
        lists?.shape(1, slots, width, lanes).filter(|s| s.threads <= WHOLE_OTHERS)?;
    }
    let rows = kept_rows(&s.sensory, blocks)?;
    // What the kernel's header says of its shared memory.
    let (t, h) = (p.steps, p.hidden);
    let (padded, states, trace) = (t.next_multiple_of(SIDE_BY_SIDE), (t * p.unfolds + 1) * h, t * p.unfolds * h);
    let of_steps = padded * (8 * h + 4 * p.inputs.div_ceil(blocks));
    let traces = 4 * states.next_multiple_of(4) + 8 * trace.next_multiple_of(4);
    let tiles = (8 * (SIDE_BY_SIDE / blocks) * h).next_multiple_of(16);
    let kept = if blocks > 1 { s.recurrent.len().div_ceil(blocks - 1) + 32 * rows } else { 0 };
    let other = of_steps + traces + tiles + 32 * kept + (4 * kept).next_multiple_of(16);
    let (staged, all) = staged(p, blocks, props, other + FIXED);
    (all <= props.shared_per_block_optin as usize).then(|| Held {
        slots,
        threads: WHOLE_OTHERS,
        pairs: true,
        words: p.kept() != Kept::States,
        shared: (all - FIXED) as u32,
        staged,
        ..row
    })
}
