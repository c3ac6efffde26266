//! The choice of kernels that go level by level through a wiring that is nearly acyclic (levels.cuh).

use super::inputs::{sums, sums_adjoint};
use super::{CHUNK_BYTES, Held};
use crate::layers::ltc::cuda::schedule::{Between, Levels, Lists};
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::{Kept, Ltc};
use crate::{DeviceProps, Error};

/// Rows, slots and threads of the chain's kernels.
pub(in super::super) const CHAIN: (usize, usize, usize) = (1, 4, 512);
/// Scratch of a chunk of steps forward: what the second-level cache holds beside other things.
const FORWARD_BYTES: usize = 32 << 20;
/// What the sums of synapses may take, block by block.
pub(in super::super) const SUMS_BYTES: usize = 16 << 20;
/// Clocks between the ends of a kernel and of the next one, however short.
const LAUNCH: usize = 4000;

/// How each level is held: sums over lone neurons, the chain itself, sums of sinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfLevels {
    pub(in super::super) far: Held,
    pub(in super::super) chain: Held,
    pub(in super::super) sinks: Option<Held>,
}

/// What a pass level by level is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelsConfig {
    /// Sums by target.
    pub(in super::super) sums: OfLevels,
    /// The same by source, `far` being all synapses to the chain, where it is the backward pass.
    pub(in super::super) adjoint: Option<OfLevels>,
    /// Steps of a chunk.
    pub(in super::super) steps: usize,
}

impl std::fmt::Display for LevelsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, of) in [("", Some(&self.sums)), (" adjoint", self.adjoint.as_ref())] {
            let Some(of) = of else { continue };
            write!(f, "levels{name}: chain threads={}, far {}", of.chain.threads, of.far)?;
            if let Some(sinks) = &of.sinks {
                write!(f, ", sinks {sinks}")?;
            }
            f.write_str("; ")?;
        }
        Ok(())
    }
}

/// Floats of scratch for each row of the batch, step and unfold.
fn floats(levels: &Levels, backward: bool) -> usize {
    let read = if backward { levels.sources.len() + levels.read.len() } else { 0 };
    levels.sources.len() + 2 * levels.chain() + 2 * levels.sinks.len() + read
}

/// Both passes; none where someone asks for them and they cannot be. `whole`: whether all of the forward pass is one launch.
pub(super) fn passes(p: &Ltc, props: &DeviceProps, wish: &Wish, whole: bool) -> Option<[Option<LevelsConfig>; 2]> {
    let forward = if whole && !wish.levels { None } else { choose(p, props, wish, false) };
    let backward = if p.backward { choose(p, props, wish, true) } else { None };
    let missing = forward.is_none() || p.backward && backward.is_none();
    (!wish.levels || !missing).then_some([forward, backward])
}

/// The configuration of a pass, if the wiring has levels, most of its synapses do not wait for each other, and it takes fewer clocks
/// than the kernels that have all of them in the chain.
fn choose(p: &Ltc, props: &DeviceProps, wish: &Wish, backward: bool) -> Option<LevelsConfig> {
    let other = !wish.levels && (wish.any() || p.connectivity.recurrent.is_empty());
    let none = p.mixed_memory || p.asks_per_sample() || p.kept() != Kept::States;
    if other || none || p.batch == 0 || p.batch > i32::MAX as usize {
        return None;
    }
    let s = &p.connectivity.recurrent;
    let levels = Levels::of(s)?;
    let near = levels.lists(s, Between::Near, false);
    let synapses_near: usize = near.of.iter().map(Vec::len).sum();
    if !wish.levels && 4 * synapses_near > s.len() {
        return None;
    }
    let per_step = 4 * p.batch * p.unfolds * floats(&levels, backward) + 24 * p.batch * (p.hidden + p.inputs);
    let budget = if backward { CHUNK_BYTES } else { FORWARD_BYTES };
    let most = p.steps.max(1);
    let steps = wish.steps.unwrap_or(budget / per_step).clamp(1, most);
    let steps = if wish.steps.is_some() { steps } else { most.div_ceil(most.div_ceil(steps)) };
    let rows = p.batch * steps * p.unfolds;
    if rows > i32::MAX as usize {
        return None;
    }
    let held = |between, by_source| {
        let lists = levels.lists(s, between, by_source);
        if by_source { sums_adjoint(&lists, rows, SUMS_BYTES, props) } else { sums(&lists, rows, lists.others, props) }
    };
    let of = |by_source: bool| {
        let near = if by_source { &levels.lists(s, Between::Near, true) } else { &near };
        let far = held(if by_source { Between::Chain } else { Between::Far }, by_source)?;
        let sinks = if levels.sinks.is_empty() { None } else { Some(held(Between::Sinks, by_source)?) };
        Some(OfLevels { far, chain: chain(near, by_source)?, sinks })
    };
    let adjoint = if backward { Some(of(true)?) } else { None };
    let config = LevelsConfig { sums: of(false)?, adjoint, steps };
    (wish.levels || clocks(p, props, steps, backward) < in_chain(p, props, backward)).then_some(config)
}

/// Why there is no pass level by level, for whoever asks for one.
pub(super) fn refused(p: &Ltc, name: &str) -> Error {
    let (slots, threads) = (CHAIN.1, CHAIN.2);
    Error::config(format!(
        "ltc: variant `{name}` is for wirings in which some of the {} neurons have no synapses from others and are read by \
         neurons that others read, of which there are {threads} at most, with some {} synapses among themselves; without mixed memory, \
         gradients of single samples and kept unfolds",
        p.hidden,
        slots * threads
    ))
}

fn chain(lists: &Lists, by_source: bool) -> Option<Held> {
    let (_, slots, most) = CHAIN;
    let shape = lists.shape(1, slots, 1, 1).filter(|shape| shape.threads <= most)?;
    Some(Held { threads: shape.threads, pairs: by_source, ..Held::of(CHAIN) })
}

/// Clocks of all steps: launches, gates, and the chain's unfolds (H100, measured).
fn clocks(p: &Ltc, props: &DeviceProps, steps: usize, backward: bool) -> usize {
    let all = p.sm_clocks(props, if backward { 10 } else { 3 });
    let launches = if backward { 11 } else { 6 };
    let unfold = if backward { 450 } else { 250 };
    LAUNCH * launches * p.steps.max(1).div_ceil(steps) + all + p.steps * p.unfolds * unfold
}

/// The same of the kernels that have all gates in the chain: what lone.cu takes of an unfold, or its gates where they are many.
fn in_chain(p: &Ltc, props: &DeviceProps, backward: bool) -> usize {
    let waves = p.batch.div_ceil(props.sm_count.max(1) as usize).max(1);
    let gates = p.sm_clocks(props, if backward { 8 } else { 4 });
    gates.max(p.steps * p.unfolds * waves * if backward { 1800 } else { 1000 })
}

impl Ltc {
    /// Clocks that all gates of the recurrent synapses take, at so many for 32 of a multiprocessor.
    fn sm_clocks(&self, props: &DeviceProps, each: usize) -> usize {
        let gates = self.batch * self.steps * self.unfolds * self.connectivity.recurrent.len();
        gates / 32 * each / props.sm_count.max(1) as usize
    }
}
