//! The choice of the kernels that do all of a short pass.

use super::{
    Held, ROW_NEURONS, WHOLE_GATES, WHOLE_INPUT_SOURCES, WHOLE_INPUTS, WHOLE_SHAPE, WHOLE_SOURCES, WHOLE_STEPS,
    WHOLE_UNFOLDS,
};
use crate::DeviceProps;
use crate::layers::ltc::cuda::schedule::Lists;
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::{Ltc, Save};
use crate::op::Precision;

/// The forward pass in one launch: for few rows of few steps.
pub(super) fn forward(p: &Ltc, props: &DeviceProps, wish: &Wish) -> Option<Held> {
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    let alone = wanted(1, wish.blocks) && wanted(1, wish.rows) && wanted(1, wish.groups) && !wish.rows_only;
    let few = p.batch <= props.sm_count as usize
        && p.steps * p.unfolds <= WHOLE_UNFOLDS
        && p.steps * p.connectivity.sensory.len() <= WHOLE_GATES;
    let fits = (1..=ROW_NEURONS).contains(&p.hidden) && p.inputs > 0 && p.unfolds.is_multiple_of(2);
    let fast = p.precision == Precision::Fast && props.compute_capability >= (8, 0);
    if !(alone && few && fits && fast && wanted(WHOLE_SHAPE.slots, wish.slots)) {
        return None;
    }
    let of = WHOLE_SHAPE;
    let row = Lists::by_target(&p.connectivity.recurrent)?.shape(1, of.slots, 1, of.lanes)?;
    let inputs = Lists::by_target(&p.connectivity.sensory)?.shape(1, WHOLE_INPUTS.0, WHOLE_STEPS, WHOLE_INPUTS.1)?;
    let threads = row.threads.max(inputs.threads);
    // What the kernel's header says of its shared memory.
    let shared = (p.steps * p.hidden * 8).next_multiple_of(16) + 2 * p.inputs * 16;
    let fits = threads <= of.threads && shared <= 40 << 10;
    fits.then(|| Held { threads, shared: shared as u32, ..Held::whole() })
}

/// The backward pass alike, of a problem whose forward pass `row` is: synapses by source, of both sides.
pub(super) fn adjoint(p: &Ltc, props: &DeviceProps, row: Option<Held>) -> Option<[Held; 2]> {
    let row = row.filter(|h| h.whole && p.backward && p.save == Save::Recompute && !p.layer_norm)?;
    let shape = |lists: Option<Lists>, (slots, lanes): (usize, usize), width: usize| {
        lists?.shape(1, slots, width, lanes).filter(|s| s.threads <= row.max_threads)
    };
    let s = &p.connectivity;
    let by_target = shape(Lists::by_target(&s.recurrent), (WHOLE_SHAPE.slots, WHOLE_SHAPE.lanes), WHOLE_STEPS)?;
    let by_source = shape(Lists::by_source(&s.recurrent), WHOLE_SOURCES, 2)?;
    let inputs = shape(Lists::by_source(&s.sensory), WHOLE_INPUT_SOURCES, 2)?;
    // What the kernel's header says of its shared memory.
    let (t, h, d) = (p.steps, p.hidden, p.inputs);
    let traces = (2 * t * (p.unfolds * h + 4)).max(t * d).next_multiple_of(4);
    let shared = (t * h * 8).next_multiple_of(16) + 4 * (t.next_multiple_of(8) * d + traces) + 80 * h;
    let threads = row.threads.max(by_target.threads).max(by_source.threads).max(inputs.threads);
    let held = |slots| Held { slots, threads, pairs: true, shared: shared as u32, ..row };
    (shared <= props.shared_per_block_optin as usize).then(|| [held(WHOLE_SOURCES.0), held(WHOLE_INPUT_SOURCES.0)])
}
