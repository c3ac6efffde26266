//! The choice of the kernels of four rows side by side, and of two groups of two in turn.

use super::{Held, RECURRENCES, Residency, Role, gate_clocks};
use crate::layers::ltc::cuda::schedule::{Deal, Lists};
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::{Ltc, Save};
use crate::op::Precision;

/// Rows, slots, threads of a half; of the slots some lie elsewhere than the others. The second is for sparse wirings.
pub(in super::super) const SHAPES: [(usize, usize, usize); 2] = [(4, 20, 256), (4, 8, 256)];
/// Rows, slots, threads of a block of two.cu, whose groups are two.
pub(in super::super) const TWO: (usize, usize, usize) = (2, 18, 512);
/// Threads of its blocks that have no synapses, but end sums and states: each those of a target and row (kEnders of two.cu).
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
pub(in super::super) const fn deal(
    (rows, slots, threads): (usize, usize, usize),
    blocks: usize,
    adjoint: bool,
) -> Deal {
    let on = if rows == TWO.0 { slots - 2 } else { on(slots, adjoint) };
    Deal { blocks, warps: threads / 32, slots, on, parts: PARTS, rows }
}
/// Neurons that the tiles hold, and what is not dynamic of shared memory.
const NEURONS: usize = 256;
const TILES: usize = (32 << 10) + 512;

impl Held {
    /// Threads of a block, of all its halves, and of two.cu with those that have no synapses.
    pub(in super::super) const fn launched(&self) -> usize {
        let enders = if self.quad && self.rows == TWO.0 { ENDERS } else { 0 };
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
    let stored = role == Role::Recurrence && p.save != Save::Recompute;
    if p.hidden > NEURONS || !p.unfolds.is_multiple_of(2) || stored {
        return None;
    }
    let two = two(p, limit, resident, wish, role, lists, batch);
    // The exact gate takes registers that the forward kernel of four rows has not.
    if !wanted(1, wish.groups) || (role == Role::Recurrence && p.precision != Precision::Fast) {
        return two;
    }
    let batch = if role == Role::Rebuild { 1 << 14 } else { batch };
    let gate = gate_clocks(adjoint, p.precision == Precision::Fast);
    let one_block = RECURRENCES
        .iter()
        .any(|&(rows, slots, threads)| lists.shape(1, slots, rows, rows).is_some_and(|s| s.threads <= threads));
    let of_blocks = |(rows, slots, max_threads): (usize, usize, usize), blocks: usize| {
        // Slots that every thread has, the fewest and the most: the adjoint's kernel has 14 or 15 of 20 by its compiler.
        let d = deal((rows, slots, max_threads), blocks, adjoint);
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
        // H200, measured beside the others: two halves hide each other's chains, one alone does not.
        let (clusters, groups) = (2 * resident[blocks], batch.div_ceil(rows).max(1));
        // Short lists leave the chain. Where one block does not hold a row and all halves are busy, the others take more than is
        // reckoned for them (AutoNCP B128 H256, H100, ms: 0.553 by 8 slots, 0.665 by `c2r1s6g2`).
        let beside = if groups >= clusters && !one_block { 600 } else { 1100 };
        // Whoever asks for four rows and one group means these.
        let asked = wish.rows == Some(rows) && wish.groups == Some(1);
        let clocks = match (adjoint, groups > resident[blocks]) {
            _ if asked => 0,
            (false, true) => (gates * 2).max(gates + beside),
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
            ..Held::quad((rows, slots, max_threads))
        };
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
        let shape = lists.four_shape(&deal(TWO, blocks, false)).filter(|s| s.threads <= max_threads)?;
        // What the kernel's header says of its shared memory.
        let shared = 2 * max_threads / 32 * PLANE;
        if shared + TILES > limit {
            return None;
        }
        let gates = shape.busiest * rows * gate;
        let places = 2 * resident[blocks];
        // Measured 2700 clocks for 4.4 times 8 of gates where quad.cu takes 3600 (H100), which is reckoned as two thirds of that.
        let clocks = if groups > resident[blocks] { (gates * 3 / 2).max(gates + 560) } else { gates + 1500 };
        let held = Held {
            blocks,
            threads: shape.threads,
            rebuild: role == Role::Rebuild,
            shared: shared as u32,
            ..Held::two()
        };
        Some((clocks * places.max(groups) / places, held))
    };
    let blocks = (2..=LANES).filter(|&b| wanted(b, wish.blocks) && resident[b] > 0);
    blocks.filter_map(of_blocks).min_by_key(|&(clocks, _)| clocks)
}
