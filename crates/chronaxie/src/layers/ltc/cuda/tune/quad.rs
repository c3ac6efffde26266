//! The choice of the kernels of four rows side by side, and of two groups of two or four in turn.

use super::{Held, Residency, Role, gate_clocks};
use crate::layers::ltc::cuda::schedule::{Deal, Lists};
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::{Kept, Ltc};
use crate::op::Precision;

/// Rows, slots, threads of a half; of the slots some lie elsewhere than the others. The second is for sparse wirings.
pub(in super::super) const SHAPES: [(usize, usize, usize); 2] = [(4, 20, 256), (4, 8, 256)];
/// Rows, slots, threads of a block of two.cu, whose groups are two.
pub(in super::super) const TWO: (usize, usize, usize) = (2, 18, 512);
/// Threads of its blocks, and of those of turn_adjoint.cu, that have no synapses, but end sums: each those of a neuron and row
/// (kEnders there).
const ENDERS: usize = 128;
/// The fewest lanes that an owner has: each sends to a block.
pub(super) const LANES: usize = 8;
/// The most lanes that share an owner's synapses, as in quad.cuh; and what the parts of a warp take of shared memory.
pub(in super::super) const PARTS: usize = 16;
const PLANE: usize = 16 * (4 * PARTS + 32 + 4);
/// Slots that every thread computes, in use or not, of the adjoint the fewest by its compiler.
const fn on(slots: usize, adjoint: bool) -> usize {
    if adjoint { slots * 7 / 10 } else { slots * 4 / 5 }
}
/// How synapses are dealt to the kernels of these shapes.
pub(in super::super) const fn deal(h: &Held) -> Deal {
    let on = if h.rows == TWO.0 { h.slots - 2 } else { on(h.slots, h.pairs) };
    let step = if h.groups == 2 { 4 } else { 1 };
    Deal { blocks: h.blocks, warps: h.max_threads / 32, slots: h.slots, on, parts: PARTS, rows: h.rows, step }
}
/// Neurons that the tiles hold, and what is not dynamic of shared memory.
const NEURONS: usize = 256;
const TILES: usize = (32 << 10) + 512;
/// The same of turn_adjoint.cu, the slots that it has there, and what an ender keeps of a group.
const TURN_TILES: usize = 38 << 10;
const TURN_KEEPS: usize = 17 * 4;

impl Held {
    /// A shape of quad.cu.
    pub(in super::super) const fn quad(shape: (usize, usize, usize)) -> Self {
        Self { quad: true, ..Self::of(shape) }
    }
    /// The shape of two.cu.
    pub(in super::super) const fn two() -> Self {
        Self { groups: 2, ..Self::quad(TWO) }
    }
    /// A shape of turn_adjoint.cu.
    pub(in super::super) const fn in_turn(shape: (usize, usize, usize)) -> Self {
        Self { groups: 2, pairs: true, ..Self::quad(shape) }
    }
    /// Whether the kernel is the adjoint of two groups of four rows in turn.
    pub(in super::super) const fn turns(&self) -> bool {
        self.quad && self.pairs && self.groups == 2
    }
    /// Threads of a block, of all its halves, and where groups are in turn with those that have no synapses.
    pub(in super::super) const fn launched(&self) -> usize {
        let enders = if self.quad && self.groups == 2 { ENDERS } else { 0 };
        self.threads * self.halves() + enders
    }
}

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
    let adjoint = role == Role::Adjoint;
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    // The forward kernels store no unfolds.
    let stored = role == Role::Recurrence && p.kept() != Kept::States;
    if p.hidden > NEURONS || !p.unfolds.is_multiple_of(2) || stored {
        return None;
    }
    let two = [two(p, limit, resident, wish, role, lists, batch), turns(p, limit, resident, wish, role, lists, batch)];
    let two = two.into_iter().flatten().min_by_key(|&(clocks, _)| clocks);
    // The exact gate takes registers that the forward kernel of four rows has not.
    if !wanted(1, wish.groups) || (role == Role::Recurrence && p.precision != Precision::Fast) {
        return two;
    }
    let batch = if role == Role::Rebuild { 1 << 14 } else { batch };
    let gate = gate_clocks(adjoint, p.precision == Precision::Fast);
    let of_blocks = |(rows, slots, max_threads): (usize, usize, usize), blocks: usize| {
        // Slots that every thread has, the fewest and the most: the adjoint's kernel has 14 or 15 of 20 by its compiler.
        let quad = Held { blocks, pairs: adjoint, ..Held::quad((rows, slots, max_threads)) };
        let d = deal(&quad);
        let (on, most) = (d.on, if adjoint { slots * 3 / 4 } else { slots * 4 / 5 });
        let shape = lists.four_shape(&d).filter(|s| s.threads <= max_threads)?;
        // What the kernels' headers say of their shared memory.
        let kept = if adjoint { 20 * 4 } else { 16 * 4 } * 2 * max_threads;
        let warps = 2 * max_threads / 32;
        let shared = if adjoint {
            16 * most * max_threads + kept + (16 * 3 + 4) * 32 * shape.beyond + warps * PLANE
        } else {
            20 * (slots - on) * 2 * max_threads + kept + warps * 2 * PLANE
        };
        if shared + TILES > limit {
            return None;
        }
        let gates = shape.busiest * rows * gate;
        let (clusters, groups) = (2 * resident[blocks], batch.div_ceil(rows).max(1));
        // Whoever asks for four rows and one group means these.
        let asked = wish.rows == Some(rows) && wish.groups == Some(1);
        let clocks = match (adjoint, groups > resident[blocks]) {
            _ if asked => 0,
            // H100, measured: 3600 clocks for 2240 of gates, 2700 for 1024 (AutoNCP, 256 neurons); the others take a tenth more
            // than is reckoned for them. Rebuilt unfolds as the others are.
            (false, true) if role == Role::Rebuild => (gates * 2).max(gates + 600),
            (false, true) => gates * 2 + 1250,
            (false, false) => gates + 1500,
            (true, true) => gates * 10 / 3,
            (true, false) => gates + 3600,
        };
        let held = Held { threads: shape.threads, rebuild: role == Role::Rebuild, shared: shared as u32, ..quad };
        Some((clocks * clusters.max(groups) / clusters, held))
    };
    let blocks = (2..=LANES).filter(|&b| wanted(b, wish.blocks) && resident[b] > 0);
    // Short lists were seen to be faster forward alone; the others are there for who asks.
    let short = |s: &(usize, usize, usize)| s.1 == SHAPES[0].1 || role == Role::Recurrence || wish.slots == Some(s.1);
    let shapes = SHAPES.into_iter().filter(short).filter(|s| wanted(s.0, wish.rows) && wanted(s.1, wish.slots));
    shapes
        .flat_map(|s| blocks.clone().map(move |b| (s, b)))
        .filter_map(|(s, b)| of_blocks(s, b))
        .chain(two)
        .min_by_key(|&(clocks, _)| clocks)
}

/// The same of two groups of two rows in turn.
fn two(
    p: &Ltc,
    limit: usize,
    resident: &Residency,
    wish: &Wish,
    role: Role,
    lists: &Lists,
    batch: usize,
) -> Option<(usize, Held)> {
    let (rows, slots, max_threads) = TWO;
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    if role == Role::Adjoint || !(wanted(rows, wish.rows) && wanted(slots, wish.slots) && wanted(2, wish.groups)) {
        return None;
    }
    let batch = if role == Role::Rebuild { 1 << 14 } else { batch };
    let gate = gate_clocks(false, p.precision == Precision::Fast);
    let groups = batch.div_ceil(rows).max(1);
    let of_blocks = |blocks: usize| {
        let two = Held { blocks, ..Held::two() };
        let shape = lists.four_shape(&deal(&two)).filter(|s| s.threads <= max_threads)?;
        // What the kernel's header says of its shared memory.
        let shared = 2 * max_threads / 32 * PLANE;
        if shared + TILES > limit {
            return None;
        }
        let gates = shape.busiest * rows * gate;
        let places = 2 * resident[blocks];
        // H100, measured: 2650 clocks for 1090 of gates, 2050 for 540; as for four rows.
        let clocks = match role {
            Role::Rebuild if groups > resident[blocks] => (gates * 3 / 2).max(gates + 560),
            _ => gates + 1250,
        };
        let held = Held { threads: shape.threads, rebuild: role == Role::Rebuild, shared: shared as u32, ..two };
        Some((clocks * places.max(groups) / places, held))
    };
    let blocks = (2..=LANES).filter(|&b| wanted(b, wish.blocks) && resident[b] > 0);
    blocks.filter_map(of_blocks).min_by_key(|&(clocks, _)| clocks)
}

/// The same of the adjoint of two groups of four rows in turn.
fn turns(
    p: &Ltc,
    limit: usize,
    resident: &Residency,
    wish: &Wish,
    role: Role,
    lists: &Lists,
    batch: usize,
) -> Option<(usize, Held)> {
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    if role != Role::Adjoint || !wanted(2, wish.groups) {
        return None;
    }
    let gate = gate_clocks(true, p.precision == Precision::Fast);
    let of_blocks = |(rows, slots, max_threads): (usize, usize, usize), blocks: usize| {
        let turns = Held { blocks, ..Held::in_turn((rows, slots, max_threads)) };
        let shape = lists.four_shape(&deal(&turns)).filter(|s| s.threads <= max_threads)?;
        // What the kernel's header says of its shared memory.
        let shared = 2 * max_threads / 32 * PLANE + 16 * (slots - 2) * max_threads + 2 * TURN_KEEPS * ENDERS;
        if shared + TURN_TILES > limit {
            return None;
        }
        let gates = shape.busiest * rows * gate;
        let (places, groups) = (2 * resident[blocks], batch.div_ceil(rows).max(1));
        // Measured 5260 clocks an unfold of two groups of four rows for 34 slots of 4 rows (H100).
        // Whoever asks for four rows and two groups means these.
        let clocks = match wish.rows.and(wish.groups) {
            Some(_) => 0,
            None if groups > resident[blocks] => (gates * 3).max(gates + 1500),
            None => gates * 3 / 2 + 1500,
        };
        Some((clocks * places.max(groups) / places, Held { threads: shape.threads, shared: shared as u32, ..turns }))
    };
    let blocks = (2..=LANES).filter(|&b| wanted(b, wish.blocks) && resident[b] > 0);
    // Few slots are for many neurons of which most have few synapses (H128 at density 0.5: 3 to 12 % slower).
    let of_use = |s: &(usize, usize, usize)| s.1 == SHAPES[0].1 || p.hidden > 128 || wish.slots == Some(s.1);
    let shapes = SHAPES.into_iter().filter(of_use).filter(|s| wanted(s.0, wish.rows) && wanted(s.1, wish.slots));
    let all = shapes.flat_map(|s| blocks.clone().map(move |b| (s, b)));
    all.filter_map(|(s, b)| of_blocks(s, b)).min_by_key(|&(clocks, _)| clocks)
}
