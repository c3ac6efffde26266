//! The choice of configuration: a pure function of the problem and the device's properties.

mod clocks;
mod display;
mod grid;
mod inputs;
mod levels;
mod per_sample;
mod quad;
mod row;
mod slices;
mod whole;

use super::schedule::Lists;
use super::wish::Wish;
use crate::layers::ltc::spec::{Kept, Ltc, Save};
use crate::op::Precision;
use crate::{DeviceProps, Error, Result};
use clocks::{always, gate_clocks, unfold_clocks};
pub use grid::Grid;
pub(super) use grid::{SHAPES as GRIDS, THREADS as GRID_THREADS, deal, lengths};
pub(super) use inputs::{sensory_budget, sensory_tile, sums_tiles, two_tiles};
pub(super) use levels::{CHAIN as LEVELS_CHAIN, OfLevels, ROW as LEVELS_ROW, STATE_ADJOINT, StateAdjoint, StateSums};
pub use levels::{LevelsConfig, LevelsRow};
pub(super) use per_sample::choose_per_sample;
pub(in crate::layers::ltc) use per_sample::rows_at_once;
pub(super) use quad::{SHAPES as FOURS, deal as deal_four};
pub(super) use row::LONE_SHAPES;
use slices::io_bytes;
pub(super) use slices::{backward_budget, most_slices, slice};
pub(super) use whole::{input_slots, kept_rows, shares, unfolded};

/// Scratch that the traces of one chunk of steps may take.
const CHUNK_BYTES: usize = 64 << 20;
/// Threads of the kernels that are not a block a row.
pub(super) const THREADS: u32 = 256;

/// How one LTC problem runs on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Lanes that share a neuron's recurrent synapses.
    pub lanes: u32,
    /// Lanes that share a neuron's sensory synapses.
    pub sensory_lanes: u32,
    /// Threads of the block that walks a batch row through time.
    pub threads: u32,
    /// `tanh.approx.f32` in the gates.
    pub fast: bool,
    /// An LSTM ahead of each step.
    pub mixed: bool,
    /// Steps of a chunk, forward and backward.
    pub forward_chunk: usize,
    /// As above.
    pub backward_chunk: usize,
    /// Shared memory of the forward and of the adjoint kernel.
    pub forward_shared: u32,
    /// As above.
    pub adjoint_shared: u32,
    /// The recurrence with its synapses in registers, where they fit; otherwise a block walks each batch row.
    pub recurrence: Option<Held>,
    /// The sensory sums with their synapses in registers, where they fit.
    pub sensory: Option<Held>,
    /// The adjoint with its synapses and their sums in registers, where they fit.
    pub adjoint: Option<Held>,
    /// The adjoint of the sensory gates alike.
    pub sensory_adjoint: Option<Held>,
    /// The unfolds that the adjoint needs, rebuilt with the synapses in registers.
    pub rebuild: Option<Held>,
    /// The recurrence, the adjoint and the rebuilt unfolds with the synapses divided over the device, where no cluster holds
    /// them.
    pub grid: Option<Grid>,
    /// As above.
    pub grid_adjoint: Option<Grid>,
    /// As above.
    pub grid_rebuild: Option<Grid>,
    /// The sums of synapses over all unfolds, where the adjoint leaves them.
    pub sums: Option<Held>,
    /// The forward pass level by level, where most synapses do not wait for each other.
    pub levels: Option<LevelsConfig>,
    /// The backward pass alike; `adjoint` is then its chain.
    pub levels_adjoint: Option<LevelsConfig>,
}

/// Synapses held in registers: by how many blocks, and what these do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Blocks that hold all synapses together, of a cluster, or parts of the targets; where `whole`, those that share a row.
    pub blocks: usize,
    /// Batch rows whose values lie side by side.
    pub rows: usize,
    /// Synapses that a thread can hold.
    pub slots: usize,
    /// Threads of a block.
    pub threads: usize,
    /// Threads that the kernel is compiled for.
    pub max_threads: usize,
    /// Groups of rows that a cluster has in turn; tiles' rows of the sensory sums; groups of threads, with rows of their own, of
    /// the sensory adjoint.
    pub groups: usize,
    /// Whether each step is a row of its own.
    pub rebuild: bool,
    /// Whether the kernel is the one for a block and a row at a time, with the shortest chain.
    pub row: bool,
    /// Whether that kernel is the one whose neurons without synapses have no lanes.
    pub lone: bool,
    /// Whether that block makes the sums over the inputs, too: the forward pass in one launch.
    pub whole: bool,
    /// Whether the kernel is the one for four rows side by side in each half of a block; `threads` are a half's.
    pub quad: bool,
    /// Whether alpha and beta of a row lie side by side, as the adjoint reads them.
    pub pairs: bool,
    /// Whether the adjoint reads words that the forward pass kept of unfolds.
    pub words: bool,
    /// Whether an adjoint's clusters, or the sensory one's workers, have a batch row each, so that sums are those of a row.
    pub per_sample: bool,
    /// Dynamic shared memory of a block.
    pub shared: u32,
    /// Which matrices that block has in shared memory: 1 the recurrent ones, 2 the inputs'.
    pub staged: u8,
}

/// Values of a node that one load brings: of four rows' pairs those of two.
const fn width(rows: usize, pairs: bool) -> usize {
    match (pairs, rows) {
        (false, rows) => rows,
        (true, 1) => 2,
        (true, _) => 4,
    }
}

impl Held {
    /// A shape alone, for the list of what is compiled.
    pub(super) const fn of((rows, slots, max_threads): (usize, usize, usize)) -> Self {
        let (blocks, groups, threads) = (1, 1, max_threads);
        let (rebuild, row, lone, whole, quad, pairs) = (false, false, false, false, false, false);
        Self {
            blocks,
            rows,
            slots,
            threads,
            max_threads,
            groups,
            rebuild,
            row,
            lone,
            whole,
            quad,
            pairs,
            words: false,
            per_sample: false,
            shared: 0,
            staged: 0,
        }
    }
    /// The shape of row.cu and whole.cu.
    pub(super) const fn row(s: RowShape) -> Self {
        Self { row: true, ..Self::of((1, s.slots, s.threads)) }
    }
    /// A shape of lone.cu.
    pub(super) const fn lone(s: RowShape) -> Self {
        Self { lone: true, ..Self::row(s) }
    }
    /// A shape of row_adjoint.cu.
    pub(super) const fn row_adjoint(s: RowShape) -> Self {
        Self { pairs: true, ..Self::row(s) }
    }
    /// The shape of whole.cu and whole_adjoint.cu.
    pub(super) const fn whole(blocks: usize) -> Self {
        Self { whole: true, blocks, threads: WHOLE_WALKERS, ..Self::row(WHOLE_SHAPE) }
    }
    pub(super) const fn whole_adjoint(blocks: usize, words: bool) -> Self {
        Self { words, ..Self::whole(blocks) }
    }
    /// The fewest lanes that an owner has: as many as rows, to end with one row each; of the kernels of one row, what they are
    /// compiled for.
    pub(super) fn least_lanes(&self) -> usize {
        let shapes = if self.pairs { &ROW_ADJOINTS[..] } else { &ROW_SHAPES };
        let of_shape = |s: &&RowShape| s.slots == self.slots && (!self.pairs || s.threads == self.max_threads);
        if self.whole {
            WHOLE_SHAPE.lanes
        } else if self.row {
            shapes.iter().find(of_shape).map_or(1, |s| s.lanes)
        } else if self.quad {
            quad::LANES
        } else {
            self.rows
        }
    }
    /// Whether the kernel is an adjoint of one row with the shortest chain.
    pub(super) const fn chain(&self) -> bool {
        self.row && self.pairs && !self.whole
    }
    /// Whether that holds its sums, and does not leave them to another kernel.
    pub(super) const fn full(&self) -> bool {
        self.chain() && self.slots == FULL_SLOTS
    }
    /// Parts of a block that walk rows of their own.
    pub(super) const fn halves(&self) -> usize {
        if self.quad && self.groups == 1 { 2 } else { 1 }
    }
    /// Whether the kernel is the one for several groups: what belongs to a group is in shared memory. One group may use it,
    /// and does where registers are short.
    pub(super) const fn many(&self) -> bool {
        !self.quad && (self.groups > 1 || self.rebuild || (!self.row && self.slots == 20 && self.max_threads == 512))
    }
    /// Values of a node that lie side by side.
    pub(super) const fn width(&self) -> usize {
        // Of pairs these have the first alone.
        width(self.rows, self.pairs && !self.whole && !self.chain())
    }
}

/// What may be kept of all steps for what is made of them together.
const TOGETHER_BYTES: usize = 32 << 20;

impl Config {
    /// Whether the backward pass makes what belongs to the inputs of all steps together.
    pub(super) fn together(&self, p: &Ltc) -> bool {
        let bytes = 4 * p.batch * p.steps * (p.inputs + 2 * p.hidden);
        self.adjoint.is_some_and(|h| h.chain())
            && self.sensory_adjoint.is_some()
            && self.sensory.is_some()
            && bytes <= TOGETHER_BYTES
    }
}

/// The lane count that wastes little on lists of `synapses / nodes` entries. Two values, so that few kernels exist.
fn lanes(synapses: usize, nodes: usize) -> u32 {
    if synapses >= 96 * nodes.max(1) { 32 } else { 8 }
}

/// Rows side by side, slots a thread, and threads that a recurrence is compiled for: what the registers of a
/// multiprocessor hold at 4.5 or 5 a slot, and about 40 beside them. Other shapes were tried and were never the best
/// (12 and 32 slots).
pub(super) const RECURRENCES: [(usize, usize, usize); 9] = [
    (1, 4, 1024),
    (1, 6, 1024),
    (1, 8, 512),
    (1, 16, 512),
    (1, 40, 256),
    (2, 8, 512),
    (2, 20, 512),
    (2, 40, 256),
    BLOCK_FOUR,
];
/// Of one block alone: clusters have four rows side by side by other kernels.
pub(super) const BLOCK_FOUR: (usize, usize, usize) = (4, 20, 512);
/// A recurrence that has one row in one block, or one cluster, at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowShape {
    pub(super) slots: usize,
    /// Threads that it is compiled for.
    pub(super) threads: usize,
    /// The fewest lanes that a target has. In a cluster each sends to a block.
    pub(super) lanes: usize,
    pub(super) cluster: bool,
}
impl RowShape {
    /// Of how many blocks.
    fn blocks(&self) -> std::ops::RangeInclusive<usize> {
        if self.cluster { 2..=self.lanes } else { 1..=1 }
    }
}
/// For fast alone: the two operations of an exact gate make others faster, and take registers that there are not.
pub(super) const ROW_SHAPES: [RowShape; 3] = [
    RowShape { slots: 10, threads: 512, lanes: 8, cluster: false },
    RowShape { slots: 24, threads: 128, lanes: 2, cluster: false },
    RowShape { slots: 20, threads: 128, lanes: 4, cluster: true },
];
/// The same of the adjoint, fast and exact.
pub(super) const ROW_ADJOINTS: [RowShape; 3] = [
    RowShape { slots: 24, threads: 256, lanes: 8, cluster: true },
    RowShape { slots: FULL_SLOTS, threads: 128, lanes: 8, cluster: true },
    RowShape { slots: FULL_SLOTS, threads: 256, lanes: 8, cluster: true },
];
/// The slots of those of them that hold their sums, too (full_adjoint.cu), whose `lanes` are the most blocks.
pub(super) const FULL_SLOTS: usize = 14;
/// Slots and threads of the sums that it leaves (trace_sums.cu), the threads of a group, and the fewest lanes.
pub(super) const TRACE_SUMS: (usize, usize, usize) = (2, 10, 512);
pub(super) const TRACE_GROUP: usize = 128;
/// The one that does all of a short pass: its threads that walk and the others, as in whole.cuh, and what they hold: slots and
/// least lanes.
pub(super) const WHOLE_SHAPE: RowShape =
    RowShape { slots: 12, threads: WHOLE_WALKERS + WHOLE_OTHERS, lanes: 4, cluster: false };
pub(super) const WHOLE_WALKERS: usize = 256;
pub(super) const WHOLE_OTHERS: usize = 256;
/// Blocks of a cluster that share a row, the most first.
pub(super) const WHOLE_BLOCKS: [usize; 3] = [4, 2, 1];
/// The fewest lanes of a target of the inputs, and of an input.
pub(super) const WHOLE_LANES: [usize; 2] = [4, 2];
/// Steps of which that kernel reads an input at once.
pub(super) const WHOLE_STEPS: usize = 4;
/// What the backward pass of it holds in WHOLE_OTHERS threads, by target and by source, as in whole_walk.cuh: slots and least lanes.
pub(super) const WHOLE_HELD: (usize, usize) = (12, 4);
/// The most gates over the inputs that a block has in that kernel: about as long as the launches that it saves.
const WHOLE_GATES: usize = 1 << 18;
/// The most unfolds of it: each is longer than in a kernel that has fewer threads.
const WHOLE_UNFOLDS: usize = 128;
/// Neurons that its tiles hold, as in row.cuh.
const ROW_NEURONS: usize = 512;
/// Whether a shape of those rebuilds states too: with 64 registers a thread, NVRTC 12 spills there.
pub(super) const fn rebuilds((_, _, threads): (usize, usize, usize)) -> bool {
    threads < 1024
}
/// The same for the adjoint, where a slot takes 9 registers: of a cluster, and of one block, which older GPUs run, too.
pub(super) const ADJOINTS: [(usize, usize, usize); 5] =
    [(1, 8, 512), (1, 20, 256), (2, 8, 512), (2, 20, 256), (4, 20, 256)];
pub(super) const BLOCK_ADJOINTS: [(usize, usize, usize); 2] = [(1, 8, 384), (1, 20, 256)];
/// The same for the adjoint of the sensory gates: lists of a little more than a power of two of synapses leave few of ten slots empty.
pub(super) const SENSORY_ADJOINTS: [(usize, usize, usize); 2] = [(2, 10, 512), (2, 8, 512)];
/// Slots and threads of the sensory sums.
pub(super) const SENSORY_SHAPES: [(usize, usize); 3] = [(40, 256), (12, 512), (14, 512)];
/// Rows side by side of the sensory sums.
pub(super) const SENSORY_ROWS: usize = 4;

/// How many clusters of each size are resident at once, from 1 block on; behind [`HALVES`] where two small blocks share a multiprocessor.
pub(super) type Residency = [usize; 2 * HALVES];
pub(super) const HALVES: usize = 9;

/// What is assumed where no device can be asked: a tenth of the multiprocessors does not fit into clusters.
pub(super) fn assumed_residency(props: &DeviceProps) -> Residency {
    let all = props.sm_count as usize;
    std::array::from_fn(|n| match (n % HALVES, n / HALVES + 1) {
        (0, _) => 0,
        (1, shared) => all * shared,
        (2, shared) => all * shared / 2,
        _ if props.compute_capability < (9, 0) => 0,
        (blocks, shared) => all * shared * 9 / 10 / blocks,
    })
}

/// What [`hold`] chooses for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Recurrence,
    Rebuild,
    Adjoint,
}

/// The configuration that takes the fewest clocks for `batch` rows, by a model of one unfold.
fn hold(p: &Ltc, props: &DeviceProps, resident: &Residency, wish: &Wish, role: Role, batch: usize) -> Option<Held> {
    if wish.rows_only || wish.grid(role) || p.steps > i32::MAX as usize || batch > i32::MAX as usize || p.hidden == 0 {
        return None;
    }
    let adjoint = role == Role::Adjoint;
    let synapses = &p.connectivity.recurrent;
    let lists = if adjoint { Lists::by_source(synapses)? } else { Lists::by_target(synapses)? };
    let limit = props.shared_per_block_optin as usize;
    let most = if props.compute_capability >= (9, 0) { 8 } else { 1 };
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    let fast = p.precision == Precision::Fast;
    let mut best: Option<(usize, Held)> = None;
    if let Some(one) = row::hold(p, props, resident, wish, role, &lists, batch, most) {
        best = Some(one);
    }
    // Clusters alone.
    let four = if most > 1 { quad::hold(p, limit, resident, wish, role, &lists, batch) } else { None };
    if four.is_some_and(|four| best.is_none_or(|best| four.0 < best.0)) {
        best = four;
    }
    for blocks in (1..=most).filter(|&b| wanted(b, wish.blocks) && resident[b] > 0) {
        let shapes: &[_] = match (adjoint, blocks) {
            (true, 1) => &BLOCK_ADJOINTS,
            (true, _) => &ADJOINTS,
            (false, _) => &RECURRENCES,
        };
        let legal = |s: &&(usize, usize, usize)| {
            wanted(s.0, wish.rows)
                && wanted(s.1, wish.slots)
                && (role != Role::Rebuild || rebuilds(**s))
                && (**s != BLOCK_FOUR || blocks == 1 || adjoint)
        };
        for &(rows, slots, max_threads) in shapes.iter().filter(legal) {
            // An owner needs as many lanes as rows, to end with one row each.
            let Some(shape) =
                lists.shape(blocks, slots, width(rows, adjoint), rows).filter(|s| s.threads <= max_threads)
            else {
                continue;
            };
            // Blocks smaller than their kernel allows share a multiprocessor, and hide each other's waits.
            let sharing = if adjoint { 1 } else { (max_threads / shape.threads).clamp(1, 4) };
            let clusters = resident[blocks] * sharing;
            // What is rebuilt is many rows, as many as its chunk has steps; the choice is for any number.
            let batch = if role == Role::Rebuild { 1 << 14 } else { batch };
            let all_groups = batch.div_ceil(rows).max(1);
            // What the kernels' headers say of their shared memory.
            let values = if adjoint { 2 * rows } else { rows };
            let synapses = if adjoint && rows == 4 { shape.threads * (slots | 1) * 16 } else { 0 };
            let bytes = |groups: usize| {
                let (of_group, once) = match role {
                    Role::Adjoint => (shape.threads * 72 + shape.threads / 2, shape.threads * 32 + synapses),
                    Role::Recurrence if !(Held { groups, ..Held::of((rows, slots, max_threads)) }).many() => {
                        (shape.threads * 16, shape.threads * 8)
                    }
                    Role::Recurrence | Role::Rebuild => (shape.threads * 32 + shape.threads / 2, shape.threads * 8),
                };
                groups * (2 * p.hidden * values * 4 + 16 + of_group) + once
            };
            let warps = shape.threads / 32;
            let gate = gate_clocks(adjoint, fast);
            let busy = shape.warp_slots.div_ceil(warps).max(if adjoint { 0 } else { always(slots) });
            let gates = warps.div_ceil(4) * busy * rows * gate;
            // More groups than there are rows for are of use to nobody who does not ask for them.
            let useful = |&g: &usize| wish.groups.map_or(g <= all_groups.div_ceil(clusters), |w| w == g);
            for groups in (1..=8).filter(useful) {
                if bytes(groups) > limit {
                    continue;
                }
                let unfold = if adjoint {
                    // H200, measured: gates take their issue slots and a third more; of one group the whole chain counts,
                    // of several what their warps do beside the gates.
                    let busy = gates * 13 / 10;
                    let one = busy + if blocks == 1 { 850 + 35 * warps } else { 1050 + 25 * warps + 200 * (rows - 1) };
                    if groups == 1 { one } else { one.max(groups * (busy + 300 + 100 * warps)) }
                } else {
                    let unfold = unfold_clocks(groups, gates, blocks, shape.threads, role == Role::Rebuild);
                    // Several blocks of a multiprocessor share its units, where there are so many; and clusters that do
                    // wait for each other everywhere (H200, measured): their groups take as long as one by one, and each longer (H100, 128
                    // neurons, 256 to 448 rows: 1.4 times what is reckoned of one, where two rows in one block take 1.2 times that).
                    let crowded = sharing > 1 && all_groups > resident[blocks] * groups;
                    let together = unfold.max(groups * gates * sharing) * 17 / 16;
                    match (crowded, blocks) {
                        (false, _) => unfold,
                        (true, 1) => together,
                        (true, _) => {
                            together.max(groups * unfold_clocks(1, gates, blocks, shape.threads, false) * 3 / 2)
                        }
                    }
                };
                let clocks = unfold * (clusters * groups).max(all_groups) / (clusters * groups);
                if best.is_none_or(|(least, _)| clocks < least) {
                    let held = Held {
                        blocks,
                        threads: shape.threads,
                        groups,
                        rebuild: role == Role::Rebuild,
                        pairs: adjoint,
                        shared: bytes(groups) as u32,
                        ..Held::of((rows, slots, max_threads))
                    };
                    best = Some((clocks, held));
                }
            }
        }
    }
    best.map(|(_, held)| held)
}

/// The configuration of `p` on a device of `props`; `variant` asks for one by name.
///
/// # Errors
/// If the states of one batch row do not fit the device's shared memory, or there is no such variant for the problem.
pub fn choose(p: &Ltc, props: &DeviceProps, variant: Option<&str>) -> Result<Config> {
    choose_for(p, props, &assumed_residency(props), variant)
}

/// The same on a device of which is known how many clusters it holds.
pub(super) fn choose_for(p: &Ltc, props: &DeviceProps, resident: &Residency, variant: Option<&str>) -> Result<Config> {
    let wish = Wish::parse(variant)?;
    if let (true, false, Some(name)) = (p.mixed_memory, wish.rows_only, variant) {
        return Err(Error::config(format!(
            "ltc: variant `{name}` holds synapses in registers, where no LSTM runs; with mixed memory there is `rows`"
        )));
    }
    if p.mixed_memory && p.batch > i32::MAX as usize {
        return Err(Error::shape(format!(
            "ltc: B = {} with mixed memory is more than {}, which a device takes at once",
            p.batch,
            i32::MAX
        )));
    }
    // What the kernels' headers say of their shared memory; the threads' floats are there for few neurons alone.
    let [ahead, below] = if p.mixed_memory { [7, 6] } else { [2, 3] };
    let vectors = if p.backward { below.max(ahead) } else { ahead };
    let limit = props.shared_per_block_optin.max(props.shared_per_block) as usize;
    if p.hidden * 4 * vectors > limit {
        return Err(Error::shape(format!(
            "ltc: hidden = {} is more than {}, which is what {limit} bytes of shared memory hold on this device",
            p.hidden,
            limit / (4 * vectors)
        )));
    }
    let lanes_of = lanes(p.connectivity.recurrent.len(), p.hidden);
    let chunk =
        |bytes_per_step: usize| wish.steps.unwrap_or(CHUNK_BYTES / bytes_per_step.max(1)).clamp(1, p.steps.max(1));
    let rows = p.batch.max(1);
    // What the LSTM has of each step: the sums before its gates, and their gradients.
    let lstm = if p.mixed_memory { rows * p.hidden * 16 } else { 0 };
    let io = rows * (p.inputs * 4 + p.hidden * 8) + lstm;
    let trace = rows * p.unfolds * p.hidden * if p.kept() == Kept::Unfolds { 8 } else { 12 }
        + rows * (p.hidden * 16 + p.inputs * 8)
        + lstm;
    let hold = |role, batch| if p.mixed_memory { None } else { hold(p, props, resident, &wish.of(role), role, batch) };
    let held = hold(Role::Recurrence, p.batch);
    let whole = if p.mixed_memory { None } else { whole::forward(p, props, resident, &wish.of(Role::Recurrence)) };
    let [levels, levels_adjoint] = levels::passes(p, props, &wish, whole.is_some(), variant)?;
    let held = whole.or(held).filter(|_| !wish.grid(Role::Recurrence) && levels.is_none());
    let divide = |role: Role, batch: usize| {
        // Whoever asks for one that holds its synapses gets no other.
        let another = variant.is_some() && !wish.grid && wish.of.unwrap_or(Role::Recurrence) == role;
        let out = wish.rows_only || p.mixed_memory || another;
        if out { None } else { grid::hold(p, props, &wish.of(role), role, batch) }
    };
    // It keeps no words.
    let grid = if held.is_some() || levels.is_some() || p.kept() == Kept::Words {
        None
    } else {
        divide(Role::Recurrence, p.batch)
    };
    if let (None, None, false, Some(name)) = (&held, &grid, wish.rows_only || wish.levels, variant) {
        let n = p.connectivity.recurrent.len();
        let rebuilt = Ltc { save: Save::Recompute, ..p.clone() };
        let why = if p.kept() != Kept::States && choose_for(&rebuilt, props, resident, variant).is_ok() {
            ", of which unfolds are kept: it keeps none; it runs with store=false or Save::Recompute"
        } else {
            ""
        };
        return Err(Error::config(format!(
            "ltc: variant `{name}` cannot hold {n} synapses of {} neurons{why}",
            p.hidden
        )));
    }
    let adjoint = if p.backward && levels_adjoint.is_none() { hold(Role::Adjoint, p.batch) } else { None };
    // v and the denominator of every unfold of a chunk: about as much as the inputs and outputs, within bounds.
    let bytes_per_step = rows * p.unfolds * p.hidden * 8;
    // An adjoint of one row leaves fewer sums than as many clusters would.
    // An adjoint of two groups in turn leaves half as many as one of halves, and longer chunks cost less beside their gates.
    let budget = match adjoint {
        Some(h) if h.chain() => backward_budget(p) * 2,
        Some(h) if h.turns() => backward_budget(p) / 32 * 45,
        _ => backward_budget(p),
    };
    let most = (budget / bytes_per_step.max(1)).clamp(1, p.steps.max(1));
    // Of words there is no trace.
    let even = match adjoint {
        Some(Held { words: true, .. }) => p.steps.max(1),
        _ => p.steps.max(1).div_ceil(p.steps.max(1).div_ceil(most)),
    };
    let kept = p.kept() != Kept::States;
    let rebuilds = adjoint.is_some() && !kept;
    let rebuild = if rebuilds { hold(Role::Rebuild, rows * even) } else { None };
    let rebuild = rebuild.map(|h| row::rebuild(h, rows * even, resident, &wish.of(Role::Rebuild)));
    let adjoint = adjoint.filter(|_| rebuild.is_some() || kept);
    let steps_of_trace = chunk(trace);
    let of_grid =
        if adjoint.is_none() && p.backward && levels_adjoint.is_none() { divide(Role::Adjoint, p.batch) } else { None };
    let grid_rebuild = of_grid.filter(|_| !kept).and_then(|_| divide(Role::Rebuild, rows * steps_of_trace));
    let grid_adjoint = of_grid.filter(|_| grid_rebuild.is_some() || kept);
    if let (Some(adjoint), None | Some(Role::Recurrence)) = (whole::adjoint(p, props, held), wish.of) {
        return Ok(Config {
            adjoint: Some(adjoint),
            sensory_adjoint: None,
            rebuild: None,
            sums: None,
            backward_chunk: p.steps.max(1),
            ..choose_for(&Ltc { backward: false, ..p.clone() }, props, resident, variant)?
        });
    }
    let (adjoint, even) = match levels_adjoint {
        Some(LevelsConfig { adjoint: Some(of), steps, .. }) => (Some(of.chain), steps),
        _ => (adjoint, even),
    };
    let threads = (p.hidden.max(1) as u32 * lanes_of).next_multiple_of(32).min(1024);
    let floats_of_threads = if p.mixed_memory && p.hidden < threads as usize { threads } else { 0 };
    Ok(Config {
        adjoint,
        sums: adjoint.filter(|h| h.chain() && !h.full()).and_then(|_| row::sums(p, props)),
        sensory_adjoint: adjoint
            .and_then(|h| inputs::sensory_adjoint(p, props, rows * if h.chain() { p.steps.max(1) } else { even })),
        rebuild,
        grid,
        grid_adjoint,
        grid_rebuild: grid_rebuild.filter(|_| grid_adjoint.is_some()),
        recurrence: held,
        sensory: inputs::sensory(p, props, &wish.of(Role::Recurrence)),
        lanes: lanes_of,
        sensory_lanes: lanes(p.connectivity.sensory.len(), p.hidden),
        threads,
        mixed: p.mixed_memory,
        // tanh.approx exists from sm_75 on; before it, fast is as exact as exact.
        fast: p.precision == Precision::Fast && props.compute_capability >= (7, 5),
        // The sensory sums of all steps, up to a quarter of a gigabyte: each chunk is a launch of its own.
        levels,
        levels_adjoint,
        forward_chunk: if let Some(levels) = levels {
            levels.steps
        } else if held.is_some() || grid.is_some() {
            chunk(rows * p.hidden * 8 / 4)
        } else {
            chunk(io)
        },
        backward_chunk: if adjoint.is_some() { even } else { steps_of_trace },
        forward_shared: (p.hidden * 4 * ahead) as u32,
        adjoint_shared: (p.hidden * 4 * below) as u32 + 4 * floats_of_threads,
    })
}

#[cfg(test)]
mod tests;
