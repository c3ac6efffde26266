//! The choice of kernels that go level by level through a wiring that is nearly acyclic (levels.cuh).

use super::{CHUNK_BYTES, Held};
use crate::layers::ltc::cuda::schedule::{AdjointShape, Between, Levels, Lists, StateShape};
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::{Kept, Ltc};
use crate::op::Precision;
use crate::{DeviceProps, Error, Result};

/// Rows, slots and threads of the chain's kernels.
pub(in super::super) const CHAIN: (usize, usize, usize) = (1, 4, 512);
/// Rows, slots of a lane of the chain, and the most threads of the kernel that has all levels in a block.
pub(in super::super) const ROW: (usize, usize, usize) = (1, 4, 640);
/// Its threads that make sums, and those that walk the sinks.
const ROW_WORKERS: usize = 512;
const ROW_WALK: usize = 32;
/// Scratch of a chunk of steps forward.
const FORWARD_BYTES: usize = 64 << 20;
/// Rows, slots and threads of the adjoint of sums over states.
pub(in super::super) const STATE_ADJOINT: (usize, usize, usize) = (2, 12, 384);
/// Rows of a tile of sums over states, as kTileRows.
const STATE_ROWS: usize = 64;
/// Tiles by which parts are compared: many.
const STATE_SCALE: usize = 1 << 10;
/// Clocks of a kernel beside its work: its launch, and what it reads first.
const LAUNCH: usize = 10_000;

/// How sums over states of sources are made (levels_sums.cu).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSums {
    /// Parts of the targets, and whether there is room for two tiles.
    pub(in super::super) parts: usize,
    pub(in super::super) two: bool,
    pub(in super::super) shared: u32,
    /// Clocks that a block takes for a tile.
    pub(in super::super) tile: usize,
}

/// How dL/dU and the sums of synapses are made (levels_sums_adjoint.cu).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateAdjoint {
    pub(in super::super) held: Held,
    /// The most synapses of a lane.
    pub(in super::super) most: usize,
    /// Clocks that a block takes for two rows.
    pub(in super::super) pair: usize,
}

/// How each level is held: sums over lone neurons, the chain itself, sums of sinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfLevels<Sums> {
    pub(in super::super) far: Sums,
    pub(in super::super) chain: Held,
    pub(in super::super) sinks: Option<Sums>,
}

/// All levels in one block, which walks a batch row (levels_row.cu).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelsRow {
    /// Threads of the chain.
    pub(in super::super) chain_threads: usize,
    pub(in super::super) shared: u32,
}

impl LevelsRow {
    pub(in super::super) fn threads(&self) -> usize {
        ROW_WORKERS + self.chain_threads + ROW_WALK
    }
}

/// What a pass level by level is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelsConfig {
    /// Sums by target.
    pub(in super::super) sums: OfLevels<StateSums>,
    /// The same by source, `far` being all synapses to the chain, where it is the backward pass.
    pub(in super::super) adjoint: Option<OfLevels<StateAdjoint>>,
    /// Steps of a chunk.
    pub(in super::super) steps: usize,
    /// The forward pass in one block a row instead.
    pub(in super::super) row: Option<LevelsRow>,
}

impl std::fmt::Display for LevelsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(row) = &self.row {
            return write!(f, "levels in a block: threads={} shared={}; ", row.threads(), row.shared);
        }
        let OfLevels { far, chain, sinks } = &self.sums;
        write!(f, "levels: steps={} far c{}", self.steps, far.parts)?;
        if let Some(sinks) = sinks {
            write!(f, ", sinks c{}", sinks.parts)?;
        }
        write!(f, ", chain threads={}; ", chain.threads)?;
        let Some(OfLevels { far, chain, sinks }) = &self.adjoint else { return Ok(()) };
        write!(f, "its adjoint: far {}", far.held)?;
        if let Some(sinks) = sinks {
            write!(f, ", sinks {}", sinks.held)?;
        }
        write!(f, ", chain threads={}; ", chain.threads)
    }
}

/// Floats of scratch for each row of the batch, step and unfold.
fn floats(levels: &Levels, backward: bool) -> usize {
    let read = if backward { levels.sources.len() + levels.read.len() } else { 0 };
    levels.sources.len() + 2 * levels.chain() + 2 * levels.sinks.len() + read
}

/// Both passes. `whole`: whether all of the forward pass is one launch.
///
/// # Errors
/// If they are asked for, and cannot be.
pub(super) fn passes(
    p: &Ltc,
    props: &DeviceProps,
    wish: &Wish,
    whole: bool,
    name: Option<&str>,
) -> Result<[Option<LevelsConfig>; 2]> {
    let forward = if whole && !wish.levels {
        None
    } else {
        in_a_block(p, props, wish).or_else(|| if wish.levels_row { None } else { choose(p, props, wish, false) })
    };
    let backward = if p.backward { choose(p, props, wish, true) } else { None };
    let missing = forward.is_none() || p.backward && backward.is_none();
    if wish.levels && missing {
        Err(refused(p, name.unwrap_or_default(), wish.levels_row))
    } else {
        Ok([forward, backward])
    }
}

/// Whether that was seen to be sooner (H100, AutoNCP of 64, 128 and 256 neurons, 6 unfolds, 1 to 512 rows of 8 to 64 steps;
/// bench-results/2026-11-28-h100): its phases take as long to fill and to empty as 100 to 200 unfolds by other kernels.
fn row_pays(p: &Ltc, props: &DeviceProps) -> bool {
    let (synapses, unfolds) = (p.connectivity.recurrent.len(), p.steps * p.unfolds);
    let sms = props.sm_count as usize;
    let least = match (synapses, p.precision == Precision::Fast) {
        (5000.., true) => {
            if p.batch > 16 {
                160
            } else {
                256
            }
        }
        (5000.., false) => {
            if 2 * p.batch > sms {
                48
            } else {
                320
            }
        }
        (1500.., true) => {
            if 2 * p.batch > sms {
                160
            } else if p.batch > 16 {
                320
            } else {
                usize::MAX
            }
        }
        (1500.., false) => 160,
        (300.., false) if p.batch <= sms => 320,
        _ => usize::MAX,
    };
    unfolds >= least
}

/// The forward pass in one block a row, if a block holds all synapses.
fn in_a_block(p: &Ltc, props: &DeviceProps, wish: &Wish) -> Option<LevelsConfig> {
    let other = if wish.any() { !wish.levels_row } else { p.connectivity.recurrent.is_empty() };
    let none = p.mixed_memory || p.asks_per_sample() || p.kept() != Kept::States || p.batch == 0;
    let many = p.batch.max(p.steps) > i32::MAX as usize;
    if other || none || many || props.compute_capability < (9, 0) || !wish.levels_row && !row_pays(p, props) {
        return None;
    }
    let s = &p.connectivity.recurrent;
    let levels = Levels::of(s).filter(|n| n.lone <= ROW_WORKERS)?;
    let chain = levels.lists(s, Between::Near, false).shape(1, ROW.1, 1, 1)?;
    let sums = |between| levels.lists(s, between, false).state_shape(1);
    let (far, sinks) = (sums(Between::Far)?, if levels.sinks.is_empty() { None } else { Some(sums(Between::Sinks)?) });
    let most = ROW.2 - ROW_WORKERS - ROW_WALK;
    // As the kernel's header says.
    let of_sums = |most: usize, targets: usize| (18 * most + 8 * targets).next_multiple_of(16);
    let shared = of_sums(far.most, levels.chain())
        + sinks.map_or(0, |s| of_sums(s.most, levels.sinks.len()))
        + 4 * STATE_ROWS * (levels.lone + levels.read.len())
        + 168 * chain.threads
        + 100 * levels.lone;
    if chain.threads > most || shared > props.shared_per_block_optin as usize {
        return None;
    }
    let steps = wish.steps.unwrap_or(4 * CHUNK_BYTES / (8 * p.batch * p.hidden)).clamp(1, p.steps.max(1));
    // Unfolds are counted to the end of a tile.
    let all = steps.checked_mul(p.unfolds).and_then(|n| p.batch.checked_mul(n.next_multiple_of(STATE_ROWS)));
    if all.is_none_or(|n| n > i32::MAX as usize) {
        return None;
    }
    let row = LevelsRow { chain_threads: chain.threads, shared: shared as u32 };
    let one = |s: StateShape| StateSums { parts: 1, two: false, shared: 0, tile: s.busiest };
    let chain = Held { threads: chain.threads, ..Held::of(CHAIN) };
    let sums = OfLevels { far: one(far), chain, sinks: sinks.map(one) };
    Some(LevelsConfig { sums, adjoint: None, steps, row: Some(row) })
}

/// The configuration of a pass, if the wiring has levels, most of its synapses do not wait for each other, and it takes fewer clocks
/// than the kernels that have all of them in the chain.
fn choose(p: &Ltc, props: &DeviceProps, wish: &Wish, backward: bool) -> Option<LevelsConfig> {
    let other = !wish.levels && (wish.any() || p.connectivity.recurrent.is_empty());
    let none = p.mixed_memory || p.asks_per_sample() || p.kept() != Kept::States;
    let many = p.batch.max(p.steps) > i32::MAX as usize;
    if other || none || many || p.batch == 0 || props.compute_capability < (7, 0) {
        return None;
    }
    let s = &p.connectivity.recurrent;
    let levels = Levels::of(s)?;
    let fast = p.precision == Precision::Fast;
    let near = levels.lists(s, Between::Near, false);
    let synapses_near: usize = near.of.iter().map(Vec::len).sum();
    if !wish.levels && 4 * synapses_near > s.len() {
        return None;
    }
    let per_step = 4 * p.batch * p.unfolds * floats(&levels, backward) + 24 * p.batch * (p.hidden + p.inputs);
    let budget = if backward { CHUNK_BYTES } else { FORWARD_BYTES };
    if !wish.levels && (per_step > budget || !pays(p, backward)) {
        return None;
    }
    let (all, most) = (p.steps.max(1), (budget / per_step).clamp(1, p.steps.max(1)));
    let lists = |between, by_source| levels.lists(s, between, by_source);
    let of_sinks = |exist: bool| (exist && !levels.sinks.is_empty()).then_some(Between::Sinks);
    let sums = OfLevels {
        far: state_sums(&lists(Between::Far, false), p.batch * most * p.unfolds, fast, props)?,
        chain: chain(&near, props, false)?,
        sinks: of_sinks(true)
            .map(|b| state_sums(&lists(b, false), p.batch * most * p.unfolds, fast, props).ok_or(()))
            .transpose()
            .ok()?,
    };
    let held = |between| state_adjoint(&lists(between, true), props);
    let adjoint = if backward {
        let sinks = of_sinks(true).map(|b| held(b).ok_or(())).transpose().ok()?;
        Some(OfLevels { far: held(Between::Chain)?, chain: chain(&lists(Between::Near, true), props, true)?, sinks })
    } else {
        None
    };
    let cost = |steps: usize| clocks(p, props, (&sums, adjoint.as_ref()), steps);
    // As few chunks as there is room for, or some more, whose tiles leave fewer multiprocessors idle.
    let fewest = all.div_ceil(most);
    let steps = wish.steps.map_or_else(
        || (fewest..fewest + 4).map(|n| all.div_ceil(n)).min_by_key(|&steps| cost(steps)).unwrap_or(most),
        |steps| steps.clamp(1, all),
    );
    let fits = p.batch * steps * p.unfolds <= i32::MAX as usize;
    let better = wish.levels || cost(steps) < in_chain(p, props, backward);
    (fits && better).then_some(LevelsConfig { sums, adjoint, steps, row: None })
}

/// The adjoint of lanes that hold as many synapses as leave the whole device the fewest clocks for two rows.
fn state_adjoint(lists: &Lists, props: &DeviceProps) -> Option<StateAdjoint> {
    let slots = STATE_ADJOINT.1;
    let limit = props.shared_per_block_optin as usize;
    let of_most = |most: usize| {
        let AdjointShape { parts, threads, busiest } = lists.adjoint_shape(most)?;
        // Two tiles of 16 rows, and 18 floats of states a lane.
        let shared = 2 * (16 * lists.others * 8 + threads * 18 * 4);
        let held = Held { blocks: parts, threads, pairs: true, shared: shared as u32, ..Held::of(STATE_ADJOINT) };
        // Two clocks of three an instruction is issued.
        (shared <= limit && parts <= props.sm_count as usize).then_some(StateAdjoint {
            held,
            most,
            pair: busiest * 3 / 2,
        })
    };
    let all = (4..=slots).filter_map(of_most);
    all.min_by_key(|s| s.pair * STATE_SCALE / (props.sm_count as usize / s.held.blocks).max(1))
}

/// Whether levels were seen to be sooner (H100, AutoNCP). Forward a block has up to about 10,000 synapses and a row at a time (lone.cu,
/// row.cu): 256 neurons and 128 rows of 64 steps 0.258 ms, level by level 0.470; and grid.cu has many rows side by side: 1024 neurons and 128 rows of 8 steps
/// 0.472 and 0.504. Backward full_adjoint.cu has up to about 25,000 and few rows: 256 neurons and
/// 8, 16, 32 rows 0.196, 0.280, 0.498 ms, level by level 0.412, 0.457, 0.539, and of 128 rows 1.346 and 1.284; 128 neurons and 32 rows 0.216 and 0.431.
fn pays(p: &Ltc, backward: bool) -> bool {
    let synapses = p.connectivity.recurrent.len();
    if backward { synapses > 25_000 || synapses > 5000 && p.batch > 48 } else { synapses > 10_000 && p.batch <= 64 }
}

/// Sums over states of so many rows, in as many parts of the targets as take the fewest clocks.
fn state_sums(lists: &Lists, rows: usize, fast: bool, props: &DeviceProps) -> Option<StateSums> {
    let limit = props.shared_per_block_optin as usize;
    let of_parts = |parts: usize| {
        let shape = lists.state_shape(parts)?;
        let [one, both] = [1, 2]
            .map(|tiles| 18 * shape.most + 8 * shape.width * (STATE_ROWS + 1) + 4 * tiles * lists.others * STATE_ROWS);
        let two = both <= limit;
        // Two special operations a lane, and what a tile takes to come where there is no room for the next.
        let read = if two { 0 } else { lists.others * STATE_ROWS / 3 };
        let gate = if fast { 17 } else { 33 };
        let tile = shape.busiest * gate + read + 1000;
        let shared = if two { both } else { one };
        (shared <= limit).then_some(StateSums { parts, two, shared: shared as u32, tile })
    };
    let most = (props.sm_count as usize).min(lists.of.len()).max(1);
    (1..=most).filter_map(of_parts).min_by_key(|s| {
        let workers = (props.sm_count as usize / s.parts).max(1);
        rows.div_ceil(STATE_ROWS).div_ceil(workers) * s.tile
    })
}

/// Why there is no pass level by level, for whoever asks for one.
fn refused(p: &Ltc, name: &str, row: bool) -> Error {
    let (slots, threads) = (CHAIN.1, if row { ROW.2 - ROW_WORKERS - ROW_WALK } else { CHAIN.2 });
    let room = if row {
        format!(
            "of compute capability 9.0 whose shared memory has room for all synapses and for tiles of states of {ROW_WORKERS} such neurons at most"
        )
    } else {
        "whose shared memory has room for tiles of their states".to_owned()
    };
    Error::config(format!(
        "ltc: variant `{name}` is for wirings in which some of the {} neurons have no synapses from others and are read by \
         neurons that others read, of which there are {threads} at most, with some {} synapses among themselves; on devices {room}; \
         without mixed memory, gradients of single samples, kept unfolds and empty \
         batches",
        p.hidden,
        slots * threads
    ))
}

fn chain(lists: &Lists, props: &DeviceProps, by_source: bool) -> Option<Held> {
    let (_, slots, most) = CHAIN;
    let shape = lists.shape(1, slots, 1, 1).filter(|shape| shape.threads <= most)?;
    // Of each thread what it has ahead, as levels.cu and levels_adjoint.cu say.
    let shared = shape.threads * 4 * if by_source { 96 } else { 56 };
    let held = Held { threads: shape.threads, pairs: by_source, shared: shared as u32, ..Held::of(CHAIN) };
    (shared + 16 * most <= props.shared_per_block_optin as usize).then_some(held)
}

/// Clocks of all steps in chunks of so many: launches, gates, and the chain's unfolds.
fn clocks(
    p: &Ltc,
    props: &DeviceProps,
    (sums, adjoint): (&OfLevels<StateSums>, Option<&OfLevels<StateAdjoint>>),
    steps: usize,
) -> usize {
    let rows = p.batch * steps * p.unfolds;
    let workers = |parts: usize| (props.sm_count as usize / parts).max(1);
    let of_sums = |s: &StateSums| rows.div_ceil(STATE_ROWS).div_ceil(workers(s.parts)) * s.tile + 8000;
    let of_adjoint = |s: &StateAdjoint| rows.div_ceil(16).div_ceil(workers(s.held.blocks)) * 8 * s.pair + 8000;
    let chunks = p.steps.max(1).div_ceil(steps);
    let gates = of_sums(&sums.far) + sums.sinks.as_ref().map_or(0, of_sums);
    let back = adjoint.map_or(0, |a| of_adjoint(&a.far) + a.sinks.as_ref().map_or(0, of_adjoint));
    // Unfolds follow each other in three kernels.
    let (launches, unfold) = if adjoint.is_some() { (11, 1600) } else { (6, 950) };
    (LAUNCH * launches + gates + back) * chunks + p.steps * p.unfolds * unfold
}

/// The same of the kernels that have all gates in the chain (H100, AutoNCP): of an unfold what is beside its gates, and these. Beyond
/// 80,000 synapses no cluster holds them.
fn in_chain(p: &Ltc, props: &DeviceProps, backward: bool) -> usize {
    let (synapses, unfolds) = (p.connectivity.recurrent.len(), p.steps * p.unfolds);
    let beside = if synapses > 80_000 { 5000 } else { 2000 };
    unfolds * beside + p.sm_clocks(props, if backward { 24 } else { 4 })
}

impl Ltc {
    /// Clocks that all gates of the recurrent synapses take, at so many for 32 of a multiprocessor.
    fn sm_clocks(&self, props: &DeviceProps, each: usize) -> usize {
        let gates = self.batch * self.steps * self.unfolds * self.connectivity.recurrent.len();
        gates / 32 * each / props.sm_count.max(1) as usize
    }
}
