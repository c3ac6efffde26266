//! A network in parts, each with an engine of its own, which tell each other what fired.
//!
//! A part has the cells that a [`Layout`] gives it and the synapses onto them. Once every shortest delay from one part to another
//! ([`Every`]) all parts have all spikes ([`Exchange`]); a part's own spikes reach its own cells earlier. Cells keep the network's numbers, by which everything is drawn, so spikes and states are the same bits
//! for every layout and any number of parts; a state of the whole is the union of those of its parts ([`join`], [`split`]).

use super::learned::Learned;
use super::{Checkpoint, Engine, Spike, State};
use crate::spiking::connect::list::Known;
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::path::Path;

mod apart;
pub mod engine;
mod every;
#[cfg(test)]
pub(in crate::spiking) mod every_tests;
mod frame;
pub mod gather;
pub mod tcp;
#[cfg(test)]
pub(in crate::spiking) mod tests;
pub mod wire;

pub use engine::PartsEngine;
pub use every::Every;
pub use gather::{AllGather, Channels, Link};

/// How parts tell each other what fired.
pub trait Exchange: Send {
    /// The least of what all parts say, once, before the first exchange: how many steps lie between two of them, at most.
    ///
    /// # Errors
    /// Where another part has gone.
    fn agree(&mut self, steps: u64) -> Result<u64>;
    /// What fired in all other parts since the last call; `own` fired in this one, by rising step and cell, before `step`.
    ///
    /// # Errors
    /// Where another part has gone, or is elsewhere.
    fn exchange(&mut self, step: u64, own: &[Spike]) -> Result<Vec<Spike>>;
    /// What all parts say, by their numbers, once, behind [`agree`](Self::agree); nothing, where spikes are all that is carried.
    ///
    /// # Errors
    /// Where another part has gone.
    fn share(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let _ = own;
        Ok(Vec::new())
    }
    /// How many nodes the parts lie on, as [`gather::node`] cuts them.
    fn nodes(&self) -> usize {
        1
    }
    /// Why the run cannot go on, where that is known.
    fn fate(&self) -> Option<Error> {
        None
    }
}

/// How spikes go from one part to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// By NCCL, where every part has a GPU of its own and NCCL; else by what connects the parts.
    #[default]
    Auto,
    /// By what connects the parts.
    Tcp,
    /// By NCCL, or not at all.
    Nccl,
}

impl std::str::FromStr for Transport {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "auto" => Ok(Self::Auto),
            "tcp" => Ok(Self::Tcp),
            "nccl" => Ok(Self::Nccl),
            _ => Err(Error::config(format!("transport `{s}` is not one of auto, tcp, nccl"))),
        }
    }
}

/// The engine of one part: [`CpuEngine::of_part`](super::CpuEngine::of_part), [`CudaPart`](super::cuda::CudaPart).
pub trait PartEngine: Engine {
    /// How many steps there may be between two times at which parts hear of each other: the shortest delay of a synapse onto this one's
    /// cells from another's, 64 at most; with an exchange, the least of all parts.
    fn most_steps(&self) -> u64;
    /// Refuses what must wait until [`hear`](Self::hear).
    ///
    /// # Errors
    /// `Value`.
    fn heard(&self) -> Result<()>;
    /// Runs `steps` steps, at most [`most_steps`](Self::most_steps); what fired here, by rising step and cell. The next call is
    /// [`hear`](Self::hear).
    ///
    /// # Errors
    /// `Value`, for more steps, or where it has yet to hear.
    fn fire(&mut self, steps: u64) -> Result<Vec<Spike>>;
    /// What fired in all other parts in the steps of the last [`fire`](Self::fire).
    ///
    /// # Errors
    /// `Value`, where nothing is to be heard, or a spike is none of those steps or of this network.
    fn hear(&mut self, others: &[Spike]) -> Result<()>;
    /// What it says of itself to all parts, without an exchange, before [`connect`](Self::connect).
    ///
    /// # Errors
    /// What the device refuses.
    fn offer(&self) -> Result<Vec<u8>>;
    /// Joins the GPUs of all parts, which said `offers`: from now on [`advance`](Engine::advance) goes on with all of them at the same
    /// time, which hear of each other every `steps` steps. Parts that were joined before can be joined anew.
    ///
    /// # Errors
    /// `Unavailable`, with what stands against it; `Lost`, where others do not come.
    fn connect(&mut self, offers: &[Vec<u8>], steps: u64) -> Result<()>;
    /// What the synapses here that change are known by.
    ///
    /// # Errors
    /// What the device refuses.
    fn keys(&self) -> Result<Keys>;
    /// What is counted of the weights here that change, as numbers that those of all parts are joined by.
    ///
    /// # Errors
    /// What the device refuses.
    fn counted(&self) -> Result<Vec<u64>>;
    /// The synapses here of a projection that changes: source, delay, target, strength.
    ///
    /// # Errors
    /// What the device refuses.
    fn known(&self, projection: usize) -> Result<Vec<Known>>;
}

/// What a part shares that cannot exchange spikes from GPU to GPU, and why.
pub(in crate::spiking::simulate) fn refusal(why: &str) -> Vec<u8> {
    [&[0], why.as_bytes()].concat()
}

/// What the synapses of a part that change are known by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// How many each cell of the network sends here.
    pub rows: Vec<u32>,
    /// What each is known by beside its source, in the order of a state; no other part has one with the same.
    pub keys: Vec<u64>,
}

impl Keys {
    /// As bytes that [`from_bytes`](Self::from_bytes) reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = (self.rows.len() as u64).to_le_bytes().to_vec();
        b.extend(self.rows.iter().flat_map(|x| x.to_le_bytes()));
        b.extend(self.keys.iter().flat_map(|x| x.to_le_bytes()));
        b
    }
    /// Nothing where the bytes are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(8)?;
        let count = usize::try_from(u64::from_le_bytes(head.try_into().ok()?)).ok()?;
        let (rows, keys) = rest.split_at_checked(count.checked_mul(4)?)?;
        let rows: Vec<u32> = rows.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let sum: u64 = rows.iter().map(|n| u64::from(*n)).sum();
        let keys: Vec<u64> =
            keys.chunks(8).map(|b| b.try_into().map(u64::from_le_bytes).ok()).collect::<Option<_>>()?;
        (keys.len() as u64 == sum).then_some(Self { rows, keys })
    }
}

/// Calls `with(part, index in the part)` for the synapses of all parts that change, in the order of a state of the whole.
fn walk(plan: &Plan, keys: &[Keys], mut with: impl FnMut(usize, usize) -> Option<()>) -> Option<()> {
    let mut at = vec![0usize; keys.len()];
    let mut row: Vec<(u64, u32, usize)> = Vec::new();
    for cell in 0..plan.cells() as usize {
        row.clear();
        for (k, (own, at)) in keys.iter().zip(&mut at).enumerate() {
            let count = *own.rows.get(cell)? as usize;
            let here = own.keys.get(*at..*at + count)?;
            row.extend(here.iter().enumerate().map(|(i, key)| (*key, k as u32, *at + i)));
            *at += count;
        }
        // Those that are alike lie in one part, and keep their order.
        row.sort_unstable();
        for (_, k, i) in &row {
            with(*k as usize, *i)?;
        }
    }
    Some(())
}

fn misfit() -> Error {
    Error::checkpoint("the states of the parts do not fit together")
}

/// What the synapses of all parts are known by, from what those of each are.
pub(super) fn merged(plan: &Plan, keys: &[Keys]) -> Result<Keys> {
    let rows = (0..plan.cells() as usize).map(|cell| keys.iter().map(|k| k.rows.get(cell).copied().unwrap_or(0)).sum());
    let mut all = Keys { rows: rows.collect(), keys: Vec::new() };
    walk(plan, keys, |k, i| {
        all.keys.push(*keys[k].keys.get(i)?);
        Some(())
    })
    .ok_or_else(misfit)?;
    Ok(all)
}

/// The state of the whole from those of all parts, and what their synapses are known by; `keys` is not looked at where no
/// synapse changes.
///
/// # Errors
/// `Checkpoint`, where they are not states of one run at one step.
pub fn join(plan: &Plan, layout: &Layout, mut parts: Vec<State>, keys: &[Keys]) -> Result<State> {
    let same = |s: &State| (s.step, &s.recent) == (parts[0].step, &parts[0].recent);
    if parts.len() != layout.parts() || !parts.iter().all(same) {
        return Err(misfit());
    }
    let mut learned: Vec<Learned> = parts.iter_mut().filter_map(|s| s.learned.take()).collect();
    let mut parts = parts.into_iter();
    let mut whole = parts.next().ok_or_else(misfit)?;
    for (part, state) in parts.enumerate().map(|(i, s)| (i + 1, s)) {
        for (p, variables) in whole.variables.iter_mut().enumerate() {
            for (all, own) in variables.iter_mut().zip(&state.variables[p]) {
                layout.own(part, p).iter().for_each(|cell| all[cell as usize] = own[cell as usize]);
            }
        }
    }
    if plan.learning.is_none() {
        return Ok(whole);
    }
    if learned.len() != layout.parts() || keys.len() != layout.parts() {
        return Err(misfit());
    }
    let eligible = learned.iter().any(|l| !l.eligible.is_empty());
    let mut joined = Learned::default();
    walk(plan, keys, |k, i| {
        joined.strengths.push(*learned[k].strengths.get(i)?);
        if eligible {
            joined.eligible.push(*learned[k].eligible.get(i)?);
        }
        Some(())
    })
    .ok_or_else(misfit)?;
    joined.under_way = learned.iter().flat_map(|l| l.under_way.iter().copied()).collect();
    joined.under_way.sort_unstable();
    joined.counts = std::mem::take(&mut learned[0].counts);
    for (part, own) in learned.iter().enumerate().skip(1) {
        for (all, own) in joined.counts.iter_mut().zip(&own.counts) {
            layout.numbers(plan, part).for_each(|cell| all[cell as usize] = own[cell as usize]);
        }
    }
    joined.entries = std::mem::take(&mut learned[0].entries);
    for (part, own) in learned.iter_mut().enumerate().skip(1) {
        layout.numbers(plan, part).for_each(|cell| {
            joined.entries[cell as usize] = std::mem::take(&mut own.entries[cell as usize]);
        });
    }
    joined.levels = std::mem::take(&mut learned[0].levels);
    whole.learned = Some(joined);
    Ok(whole)
}

/// The inverse: the state of each part.
///
/// # Errors
/// `Checkpoint`, where the state is not one of this network.
pub fn split(plan: &Plan, layout: &Layout, state: &State, keys: &[Keys]) -> Result<Vec<State>> {
    super::cpu::check_state(plan, state)?;
    let mut parts = vec![State { learned: None, ..state.clone() }; layout.parts()];
    let Some(all) = &state.learned else { return Ok(parts) };
    if keys.len() != layout.parts() {
        return Err(misfit());
    }
    let zeros = |k: &Keys| (vec![0u32; k.keys.len()], vec![0i32; k.keys.len()]);
    let mut own: Vec<(Vec<u32>, Vec<i32>)> = keys.iter().map(zeros).collect();
    let mut next = 0;
    let fits = walk(plan, keys, |k, i| {
        own[k].0[i] = *all.strengths.get(next)?;
        if !all.eligible.is_empty() {
            own[k].1[i] = *all.eligible.get(next)?;
        }
        next += 1;
        Some(())
    });
    if fits.is_none() || next != all.strengths.len() {
        return Err(Error::checkpoint("the synapses of the state are not those of this network"));
    }
    for (part, (strengths, eligible)) in parts.iter_mut().zip(own) {
        let eligible = if all.eligible.is_empty() { Vec::new() } else { eligible };
        part.learned = Some(Learned {
            strengths,
            behind: None,
            eligible,
            entries: all.entries.clone(),
            under_way: all.under_way.clone(),
            counts: all.counts.clone(),
            levels: all.levels.clone(),
        });
    }
    Ok(parts)
}

/// Tells the states of parts apart: of whose network, in which layout, of which part.
fn mark(layout: &Layout, part: usize, fingerprint: [u8; 32]) -> [u8; 32] {
    let mut hash = Sha256::new_with_prefix(fingerprint);
    hash.update((part as u64).to_le_bytes());
    hash.update(layout.to_bytes());
    hash.finalize().into()
}

/// A part's state as bytes, with the variables of its own cells alone.
pub fn state_bytes(layout: &Layout, part: usize, fingerprint: [u8; 32], state: &State) -> Vec<u8> {
    let own = |(p, variables): (usize, &Vec<Vec<f32>>)| {
        let of = |values: &Vec<f32>| layout.own(part, p).iter().map(|cell| values[cell as usize]).collect();
        variables.iter().map(of).collect()
    };
    let variables = state.variables.iter().enumerate().map(own).collect();
    let state = State { step: state.step, variables, recent: state.recent.clone(), learned: state.learned.clone() };
    let fingerprint = mark(layout, part, fingerprint);
    Checkpoint { fingerprint, state, hash: Default::default(), replicas: Vec::new(), logged: 0, counts: Vec::new() }
        .to_bytes()
}

/// A part's state from such bytes; what other cells have is 0.
///
/// # Errors
/// `Checkpoint`, where the bytes are damaged, or of another part or network.
pub fn state_from_bytes(
    plan: &Plan,
    layout: &Layout,
    part: usize,
    fingerprint: [u8; 32],
    bytes: &[u8],
) -> Result<State> {
    let what = format!("the state of part {part} of {}", layout.parts());
    let c = Checkpoint::from_bytes(bytes, Path::new(&what))?;
    let mut state = c.state;
    let sizes = |p: usize| vec![layout.own(part, p).len(); plan.models[p].variables().len()];
    let fits = state.variables.len() == plan.models.len()
        && state.variables.iter().enumerate().all(|(p, v)| v.iter().map(Vec::len).eq(sizes(p)));
    if !fits || c.fingerprint != mark(layout, part, fingerprint) {
        return Err(Error::checkpoint(format!("{what}: it is of another part or network")));
    }
    for (p, variables) in state.variables.iter_mut().enumerate() {
        let size = plan.network.populations[p].size as usize;
        for values in variables {
            let own = std::mem::replace(values, vec![0.0; size]);
            layout.own(part, p).iter().zip(own).for_each(|(cell, x)| values[cell as usize] = x);
        }
    }
    Ok(state)
}
