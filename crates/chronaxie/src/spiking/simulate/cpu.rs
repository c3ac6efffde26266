//! The CPU engine: threads, each with its shards.
//!
//! Work of a step of the full microcircuit (77,169 cells, 2.99e8 synapses, 25 spikes), floors on two cores of 2.4 GHz:
//! - delivery: 97,000 events of 4 bytes are 0.39 MB out of memory (1500 groups of about 32 in either shard; at 10 GB/s
//!   0.04 ms), and as many additions to sums that lie in the second cache (155 KB a shard; a load, an addition and a
//!   store, 1.5 ns: 0.07 ms);
//! - update: 77,169 cells of 12 bytes of state and 8 of input, 0.01 ms;
//! - drive: 77,169 draws, of which one block of Philox makes four: 0.05 ms.
//!
//! So about 0.15 ms, a real-time factor of 1.5. A spike is not delivered at once into a ring of 64 steps (20 MB, hardly in
//! any cache), but noted in a calendar, and its synapses of delay d are added when they are due, to sums of one step. What
//! is due is known ahead, so memory is asked for ahead.
//!
//! Threads meet once every [`Plan::min_delay`] steps: what fires in between reaches nobody before.
#![allow(unsafe_code)]

use super::barrier::Barrier;
use super::lane::Lane;
use super::learned::{self, Weights};
use super::measure::{Clock, Part as Timed, Parts};
use super::{Engine, Spike, State};
use crate::spiking::connect::{Part, Synapses, list, rows, shard, shards_for};
use crate::spiking::draws::{BATCH, Purpose, batch};
use crate::spiking::plan::{Plan, PoissonTable};
use crate::{Error, Result, pool};
use std::sync::{Arc, PoisonError, RwLock};

/// A thread that has fewer cells waits for the others longer than it works.
const CELLS_A_THREAD: u64 = 8192;

/// The most steps between two meetings.
const MOST_STEPS: u64 = 64;

/// Runs a plan on the CPU, on as many threads as the pool has and the network fills.
pub struct CpuEngine<'a> {
    pub(super) plan: &'a Plan,
    pub(super) lanes: Vec<Lane<'a>>,
    step: u64,
    /// Spikes of the last `max_delay` steps.
    recent: Vec<Spike>,
}

impl std::fmt::Debug for CpuEngine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuEngine(step {}, {} shards, {} synapses)", self.step, self.lanes.len(), self.synapses())
    }
}

impl<'a> CpuEngine<'a> {
    /// Builds the synapses; `built(done, of)` is told how far it is.
    ///
    /// # Errors
    /// As [`shard::build`], and `OutOfMemory` before anything is allocated.
    pub fn new(plan: &'a Plan, built: &(dyn Fn(usize, usize) + Sync)) -> Result<Self> {
        let most = (plan.cells() / CELLS_A_THREAD).clamp(1, 1 << 16) as usize;
        Self::with_shards(plan, shards_for(plan, pool::num_threads().min(most)), built)
    }

    /// Likewise, with this many shards; spikes do not depend on it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_shards(plan: &'a Plan, count: usize, built: &(dyn Fn(usize, usize) + Sync)) -> Result<Self> {
        plan.require_memory()?;
        let ring = (u64::from(plan.max_delay) + MOST_STEPS + 1).next_power_of_two() as usize;
        let shards = shard::build(plan, count, &|done| built(done, count))?;
        let lanes = shards.into_iter().map(|s| Lane::new(plan, s, ring)).collect::<Result<_>>()?;
        Ok(Self { plan, lanes, step: 0, recent: Vec::new() })
    }

    /// Brings synapses that change up to date whenever so many entries were added.
    #[cfg(test)]
    pub(super) fn sweep_after(&mut self, entries: usize) {
        self.lanes.iter_mut().filter_map(|l| l.learner.as_mut()).for_each(|l| l.sweep_after(entries));
    }

    /// The shards.
    pub fn shards(&self) -> impl Iterator<Item = &shard::Shard> {
        self.lanes.iter().map(|l| &l.shard)
    }
}

/// What a thread tells the others, in turn in one of two lists, so that one is read while the other is written.
type Mail = [RwLock<Vec<Spike>>; 2];

impl CpuEngine<'_> {
    /// Runs `steps` steps; times their parts, or does not.
    pub(super) fn walk<const TIMED: bool>(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<Parts> {
        let threads = pool::num_threads().clamp(1, self.lanes.len());
        let together = u64::from(self.plan.min_delay).min(MOST_STEPS);
        let (from, to) = (self.step, self.step + steps);
        learned::steps_left(self.plan, to)?;
        let mail: Vec<Mail> = (0..threads).map(|_| Default::default()).collect();
        let barrier = Arc::new(Barrier::new(threads));
        let mut hands: Vec<Vec<&mut Lane<'_>>> = (0..threads).map(|_| Vec::new()).collect();
        self.lanes.iter_mut().enumerate().for_each(|(i, lane)| hands[i % threads].push(lane));
        let work = |own: usize, mut lanes: Vec<&mut Lane<'_>>| {
            let _guard = barrier.guard();
            let (mut fired, mut all) = (Vec::new(), Vec::new());
            let (mut step, mut turn) = (from, 0);
            let mut clock = Clock::<TIMED>::start();
            while step < to {
                let next = (step + together).min(to);
                for lane in &mut lanes {
                    for now in step..next {
                        if TIMED {
                            lane.drive(now);
                            clock.lap(Timed::Drives);
                        }
                        lane.deliver(now);
                        clock.lap(Timed::Delivery);
                        lane.update(now, &mut fired);
                        clock.lap(Timed::Update);
                    }
                }
                all.extend_from_slice(&fired);
                {
                    let mut out = mail[own][turn].write().unwrap_or_else(PoisonError::into_inner);
                    std::mem::swap(&mut *out, &mut fired);
                }
                fired.clear();
                clock.lap(Timed::Exchange);
                barrier.wait();
                clock.lap(Timed::Waiting);
                for from in &mail {
                    let list = from[turn].read().unwrap_or_else(PoisonError::into_inner);
                    for lane in &mut lanes {
                        for spike in list.iter() {
                            lane.schedule(*spike, next);
                            lane.learn(*spike, next);
                        }
                    }
                }
                lanes.iter_mut().for_each(|lane| lane.rest(next));
                clock.lap(Timed::Exchange);
                (step, turn) = (next, 1 - turn);
            }
            (all, clock.parts)
        };
        let (mut found, mut parts) = (Vec::new(), Parts::default());
        let mut clock = Clock::<TIMED>::start();
        std::thread::scope(|scope| {
            let mut hands = hands.into_iter().enumerate();
            let (own, lanes) = hands.next().expect("there is at least one thread");
            let others: Vec<_> = hands.map(|(i, lanes)| scope.spawn(move || work(i, lanes))).collect();
            (found, parts) = work(own, lanes);
            for other in others {
                match other.join() {
                    Ok((list, own)) => {
                        found.extend(list);
                        parts.add(&own);
                    }
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        parts.divide(threads as f64);
        // What the first thread spent beside its steps: threads start, and meet for the last time.
        clock.lap(Timed::Threads);
        clock.parts.seconds[Timed::Threads as usize] -= parts.sum();
        parts.add(&clock.parts);
        let mut clock = Clock::<TIMED>::start();
        found.sort_unstable();
        self.step = to;
        self.recent.extend_from_slice(&found);
        let oldest = to.saturating_sub(u64::from(self.plan.max_delay));
        let gone = self.recent.partition_point(|s| s.step < oldest);
        self.recent.drain(..gone);
        spikes.extend(found);
        clock.lap(Timed::Ordering);
        parts.add(&clock.parts);
        Ok(parts)
    }
}

impl Engine for CpuEngine<'_> {
    fn step(&self) -> u64 {
        self.step
    }

    fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        self.walk::<false>(steps, spikes).map(drop)
    }

    fn state(&self) -> Result<State> {
        let variables = self.plan.models.iter().enumerate().map(|(p, model)| {
            let size = self.plan.network.populations[p].size as usize;
            let mut values = vec![vec![0.0; size]; model.variables().len()];
            for lane in &self.lanes {
                let (part, states) = lane.states(p);
                for (all, own) in values.iter_mut().zip(states) {
                    all[part.low as usize..part.high as usize].copy_from_slice(&own[..part.count() as usize]);
                }
            }
            values
        });
        let learned = self.plan.learning.as_ref().map(|l| learned::gather(self.plan, l, &self.lanes, self.step));
        Ok(State { step: self.step, variables: variables.collect(), recent: self.recent.clone(), learned })
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        check_state(self.plan, state)?;
        if let (Some(learning), Some(learned)) = (&self.plan.learning, &state.learned) {
            learned::scatter(self.plan, learning, &mut self.lanes, learned, state)?;
        }
        for lane in &mut self.lanes {
            lane.clear();
            state.variables.iter().enumerate().for_each(|(p, values)| lane.set_states(p, values));
            state.recent.iter().for_each(|spike| lane.schedule(*spike, state.step));
        }
        self.step = state.step;
        self.recent.clone_from(&state.recent);
        Ok(())
    }

    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>> {
        let states = self.lanes.iter().map(|lane| lane.states(population));
        let mut of = states.filter(|(part, _)| (part.low..part.high).contains(&cell));
        let own = |(part, states): (&Part, &[Vec<f32>])| states.iter().map(|s| s[(cell - part.low) as usize]).collect();
        Ok(of.next().map_or(Vec::new(), own))
    }

    fn redrive(&mut self, plan: &Plan) -> Result<bool> {
        let heaviest = self.lanes.iter().map(|l| u64::from(l.shard.rows.heaviest)).max().unwrap_or(0);
        let driven = |of: &PoissonTable| -> u64 {
            let same = plan.poisson.iter().filter(|d| (d.target, d.port) == (of.target, of.port));
            same.map(|d| (d.thresholds.len() as u64 + 1) * u64::from(d.code.unsigned_abs())).sum()
        };
        // The heaviest cell may not be the one that is driven; then building anew tells.
        if heaviest + plan.poisson.iter().map(driven).max().unwrap_or(0) > i32::MAX as u64 {
            return Ok(false);
        }
        let constants = self.lanes.iter().map(|lane| lane.constants(plan)).collect::<Result<Vec<_>>>()?;
        self.lanes.iter_mut().zip(constants).for_each(|(lane, new)| lane.redrive(plan, new));
        Ok(true)
    }

    fn synapses(&self) -> u64 {
        let changing = |l: &Lane<'_>| l.shard.changing.as_ref().map_or(0, |c| c.slots.len() as u64);
        self.lanes.iter().map(|l| l.shard.rows.synapses.len() as u64 + changing(l)).sum()
    }

    fn weights(&self) -> Result<Vec<Weights>> {
        Ok(self.plan.learning.as_ref().map_or(Vec::new(), |l| learned::weights(self.plan, l, &self.lanes, self.step)))
    }

    fn table(&self, projection: usize) -> Result<Synapses> {
        let shards: Vec<&shard::Shard> = self.shards().collect();
        list::changed(self.plan, projection, || {
            Ok(learned::known(self.plan, &shards, &learned::strengths(&self.lanes, self.step), projection))
        })
    }

    fn events(&self) -> u64 {
        self.lanes.iter().map(|l| l.events).sum()
    }

    fn config(&self) -> String {
        format!("{} shards on {} threads", self.lanes.len(), pool::num_threads().clamp(1, self.lanes.len()))
    }
}

/// Refuses a state that is not one of `plan`.
pub(super) fn check_state(plan: &Plan, state: &State) -> Result<()> {
    let sizes = |p: usize| vec![plan.network.populations[p].size as usize; plan.models[p].variables().len()];
    let fits = state.variables.len() == plan.models.len()
        && state.variables.iter().enumerate().all(|(p, v)| v.iter().map(Vec::len).eq(sizes(p)));
    let oldest = state.step.saturating_sub(plan.max_delay.into());
    let recent = state.recent.is_sorted()
        && state.recent.iter().all(|s| (oldest..state.step).contains(&s.step) && u64::from(s.cell) < plan.cells());
    let fits = fits && state.learned.is_some() == plan.learning.is_some();
    if fits && recent { Ok(()) } else { Err(Error::checkpoint("the state is not one of this network")) }
}

/// Adds the synapses of all groups that are `due`.
pub(super) fn add(due: &[u64], synapses: &[u32], sums: &mut [i32; 65_536]) {
    /// Groups ahead that memory is asked for: some 300 ns of work.
    const AHEAD: usize = 8;
    for (i, group) in due.iter().enumerate() {
        if let Some(ahead) = due.get(i + AHEAD) {
            let place = (ahead >> 16) as usize;
            for line in (0..(*ahead & 0xFFFF) as usize).step_by(16).take(4) {
                prefetch(&synapses[place + line]);
            }
        }
        let place = (group >> 16) as usize;
        for &synapse in &synapses[place..place + (group & 0xFFFF) as usize] {
            let sum = &mut sums[usize::from(rows::slot(synapse))];
            *sum = sum.wrapping_add(rows::weight(synapse));
        }
    }
}

#[inline(always)]
fn prefetch(at: &u32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint about an address, which here is that of a living object.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(at).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The arrivals of steps `4 quad .. 4 quad + 4` at `count` cells from `low` on.
pub(super) fn draw_arrivals(
    seed: u64,
    table: &PoissonTable,
    low: u32,
    quad: u64,
    count: usize,
    counts: &mut [Vec<u16>; 4],
) {
    let mut words = [[0; BATCH]; 4];
    for at in (0..count).step_by(BATCH) {
        // The population of the drive's target counts its cells, and a quad is 32 bits: 2^34 steps.
        let first = quad << 32 | u64::from(low + at as u32);
        batch(seed, Purpose::Drive as u32, table.owner, first, &mut words);
        // To the end of the padding: whole vectors.
        let len = (counts[0].len() - at).min(BATCH);
        for w in 0..4 {
            count_reached(&words[w][..len], &table.thresholds, &mut counts[w][at..at + len]);
        }
    }
}

/// How many thresholds each number reaches, of at most [`BATCH`] numbers. One threshold after the other over all of them:
/// the other way round, the compiler makes vectors of thresholds, and four times the instructions.
#[inline(always)]
fn reached(bits: &[u32], thresholds: &[u32], counts: &mut [u16]) {
    if thresholds.len() > 32 {
        for (bits, count) in bits.iter().zip(counts) {
            *count = thresholds.partition_point(|t| *t <= *bits) as u16;
        }
        return;
    }
    let mut sums = [0u32; BATCH];
    let sums = &mut sums[..bits.len()];
    for t in thresholds {
        for (sum, bits) in sums.iter_mut().zip(bits) {
            *sum += u32::from(*bits >= *t);
        }
    }
    counts.iter_mut().zip(sums).for_each(|(count, sum)| *count = *sum as u16);
}
crate::dispatch!(fn count_reached(bits: &[u32], thresholds: &[u32], counts: &mut [u16]) = reached);

#[inline(always)]
fn add_body(sums: &mut [i32], counts: &[u16], code: i32) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum = sum.wrapping_add(i32::from(*count).wrapping_mul(code));
    }
}
crate::dispatch!(
    /// Adds `counts` arrivals of weight `code`.
    pub(super) fn add_arrivals(sums: &mut [i32], counts: &[u16], code: i32) = add_body
);

#[inline(always)]
fn convert_body(sums: &mut [i32], unit: f32, inputs: &mut [f32]) {
    for (sum, input) in sums.iter_mut().zip(inputs) {
        *input = *sum as f32 * unit;
        *sum = 0;
    }
}
crate::dispatch!(
    /// The sums in the model's unit; the sums become 0.
    pub(super) fn convert(sums: &mut [i32], unit: f32, inputs: &mut [f32]) = convert_body
);
