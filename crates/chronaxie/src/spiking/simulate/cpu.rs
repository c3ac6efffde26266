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
//! Threads meet once every shortest delay of their synapses: what fires in between reaches nobody before. Likewise parts of a
//! network ([`Every`]).
#![allow(unsafe_code)]

use super::barrier::{Barrier, Mail};
use super::crew::{CELLS_A_THREAD, Crew};
use super::lane::Lane;
use super::learned::{self, Weights};
use super::measure::{Clock, Part as Timed, Parts};
use super::parts::{Every, Exchange, Keys};
use super::{Engine, Spike, State};
use crate::spiking::connect::rows::Word;
use crate::spiking::connect::{Part, Subset, Synapses, list, shard, shards_for};
use crate::spiking::draws::{BATCH, Purpose, batch, listed};
use crate::spiking::life::Reweighed;
use crate::spiking::network::Key;
use crate::spiking::plan::{MOST_APART, Plan, PoissonTable};
use crate::{Error, Result, pool};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Instant;

/// Small networks have a few shards all the same, of at least so many cells.
const FEW: (u64, u64) = (4, 1024);

/// Runs a plan on the CPU, on as many threads as the pool has and the network fills.
pub struct CpuEngine<'a> {
    pub(super) plan: &'a Plan,
    pub(super) lanes: Vec<Lane<'a>>,
    pub(super) step: u64,
    /// Spikes of the last `max_delay` steps.
    recent: Vec<Spike>,
    /// How it hears of the cells that others have, if it has not all of them.
    pub(super) exchange: Option<Box<dyn Exchange + 'a>>,
    /// How often its threads meet, and how often it hears of others.
    pub(super) every: Every,
    /// What fired here from a step on, of which nobody was told and which waits for what fired elsewhere.
    pub(super) untold: Option<(u64, Vec<Spike>)>,
    /// What weights have grown by in all since it was made.
    grown: u64,
    crew: Crew,
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
        Self::with_shards(plan, shards_for(plan, pool::num_threads().min(most_threads(plan.cells()))), built)
    }

    /// Likewise, with this many shards; spikes do not depend on it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_shards(plan: &'a Plan, count: usize, built: &(dyn Fn(usize, usize) + Sync)) -> Result<Self> {
        plan.refuse_life("an engine by itself")?;
        let redraw = plan.redraw_on_host(1.0)?;
        let ring = (u64::from(plan.max_delay) + MOST_APART + 1).next_power_of_two() as usize;
        let shards = shard::build(plan, count, redraw, &|done| built(done, count))?;
        let lanes: Vec<Lane<'_>> =
            shards.into_iter().map(|s| Lane::new(plan, s, redraw, ring)).collect::<Result<_>>()?;
        let every = Every::of(plan, lanes.iter().map(|l| &l.shard), redraw, None);
        Ok(Self::of_lanes(plan, lanes, every))
    }

    pub(super) fn of_lanes(plan: &'a Plan, lanes: Vec<Lane<'a>>, every: Every) -> Self {
        let (crew, recent) = (Crew::new(), Vec::new());
        Self { plan, lanes, step: 0, recent, exchange: None, every, untold: None, grown: 0, crew }
    }

    /// What the synapses here that change are known by.
    pub fn keys(&self) -> Keys {
        let shards: Vec<&shard::Shard> = self.shards().collect();
        if self.plan.learning.is_some() { learned::keys(self.plan, &shards) } else { Keys::default() }
    }

    /// What is counted of the weights here that change, as [`learned::joined`] takes it.
    pub(super) fn counted(&self) -> Vec<u64> {
        match &self.plan.learning {
            Some(learning) => learned::counted(self.plan, learning, &self.lanes, self.step),
            None => Vec::new(),
        }
    }

    /// The synapses here of a projection that changes: source, delay, target, strength.
    pub(super) fn known(&self, projection: usize) -> Vec<list::Known> {
        let shards: Vec<&shard::Shard> = self.shards().collect();
        learned::known(self.plan, &shards, &learned::strengths(&self.lanes, self.step), projection)
    }

    pub(super) fn remember(&mut self, spikes: &[Spike]) {
        self.recent.extend_from_slice(spikes);
        let oldest = self.step.saturating_sub(u64::from(self.plan.max_delay));
        let gone = self.recent.partition_point(|s| s.step < oldest);
        self.recent.drain(..gone);
    }

    /// Brings synapses that change up to date whenever so many entries were added.
    #[cfg(test)]
    pub(super) fn sweep_after(&mut self, entries: usize) {
        self.lanes.iter_mut().filter_map(|l| l.learner.as_mut()).for_each(|l| l.sweep_after(entries));
    }

    /// The largest sum that synapses brought to a slot at once when it was made.
    fn heaviest(&self) -> u64 {
        self.lanes.iter().map(|l| u64::from(l.shard.rows.heaviest)).max().unwrap_or(0)
    }

    /// The largest sum that these drives bring to a slot at once.
    fn driven(&self, drives: &[PoissonTable]) -> u64 {
        let driven = |of: &PoissonTable| -> u64 {
            let same = drives.iter().filter(|d| (d.target, d.port) == (of.target, of.port));
            same.map(|d| (d.thresholds.len() as u64 + 1) * u64::from(d.code.unsigned_abs())).sum()
        };
        drives.iter().map(driven).max().unwrap_or(0)
    }

    /// The shards.
    pub fn shards(&self) -> impl Iterator<Item = &shard::Shard> {
        self.lanes.iter().map(|l| &l.shard)
    }
}

/// The threads that a network of so many cells has work for.
fn most_threads(cells: u64) -> usize {
    (cells / CELLS_A_THREAD).max((cells / FEW.1).min(FEW.0)).clamp(1, 1 << 16) as usize
}

/// Takes up what is in this turn's lists before a step; where it is time, tells other parts and hears what fired there.
type Tell<'a> = &'a mut dyn FnMut(u64, usize, bool) -> std::result::Result<Vec<Spike>, ()>;

impl CpuEngine<'_> {
    /// The most threads that step it.
    fn most(&self) -> usize {
        pool::num_threads().clamp(1, self.lanes.len())
    }

    /// Whether it must be tried how many threads are best.
    fn is_small(&self) -> bool {
        let most = self.most();
        most > 1 && self.exchange.is_none() && self.plan.cells() / (most as u64) < CELLS_A_THREAD
    }

    /// How many threads step it now.
    pub fn threads(&self) -> usize {
        if self.is_small() && self.crew.alone() { 1 } else { self.most() }
    }

    /// Runs `steps` steps on so many threads; times their parts, or does not.
    pub(super) fn walk<const TIMED: bool>(
        &mut self,
        threads: usize,
        steps: u64,
        spikes: &mut Vec<Spike>,
    ) -> Result<Parts> {
        let Every { inside, across } = self.every;
        let (from, to) = (self.step, self.step + steps);
        learned::steps_left(self.plan, to)?;
        let (mail, barrier) = (Mail::new(threads), Barrier::new(threads));
        let mut exchange = self.exchange.as_deref_mut();
        let shared = exchange.is_some();
        // What other parts say, and whether they do no more. Threads meet twice before it is said again.
        let (heard, lost) = (RwLock::<Vec<Spike>>::default(), AtomicBool::new(false));
        let mut failed = None;
        let mut hands: Vec<Vec<&mut Lane<'_>>> = (0..threads).map(|_| Vec::new()).collect();
        self.lanes.iter_mut().enumerate().for_each(|(i, lane)| hands[i % threads].push(lane));
        let learns = self.plan.learning.is_some();
        let work = |own: usize, mut lanes: Vec<&mut Lane<'_>>, mut tell: Option<Tell<'_>>| {
            let _guard = barrier.guard();
            let (mut fired, mut all) = (Vec::new(), Vec::new());
            let (mut step, mut turn, mut meeting) = (from, 0, (from + across).min(to));
            let mut clock = Clock::<TIMED>::start();
            while step < to {
                let next = (step + inside).min(meeting);
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
                // SAFETY: a turn's lists are read between the meeting below and the next one, and the turn after that is the same.
                unsafe { mail.post(own, turn, &mut fired) };
                fired.clear();
                clock.lap(Timed::Exchange);
                barrier.wait(own);
                clock.lap(Timed::Waiting);
                if shared {
                    if let Some(tell) = &mut tell {
                        match tell(next, turn, next == meeting) {
                            Ok(spikes) if next == meeting => {
                                all.extend_from_slice(&spikes);
                                *heard.write().unwrap_or_else(PoisonError::into_inner) = spikes;
                            }
                            Ok(_) => {}
                            Err(()) => lost.store(true, Ordering::Relaxed),
                        }
                    }
                    clock.lap(Timed::Exchange);
                }
                if shared && next == meeting {
                    barrier.wait(own);
                    clock.lap(Timed::Waiting);
                    if lost.load(Ordering::Relaxed) {
                        break;
                    }
                }
                let others = (shared && next == meeting).then(|| heard.read().unwrap_or_else(PoisonError::into_inner));
                // SAFETY: threads met since these were posted, and meet before the lists of this turn are posted again.
                let lists = || unsafe { mail.read(turn) }.chain(others.as_ref().map(|list| list.as_slice()));
                for list in lists() {
                    for lane in &mut lanes {
                        list.iter().for_each(|spike| lane.schedule(*spike, next));
                    }
                }
                clock.lap(Timed::Exchange);
                if learns {
                    for list in lists() {
                        for lane in &mut lanes {
                            list.iter().for_each(|spike| lane.learn(*spike, next));
                        }
                    }
                    // Before that, spikes of other parts are unknown, whose synapses must not grow beyond them.
                    if next == meeting {
                        lanes.iter_mut().for_each(|lane| lane.rest(next));
                    }
                    clock.lap(Timed::Learning);
                }
                if next == meeting {
                    meeting = (meeting + across).min(to);
                }
                (step, turn) = (next, 1 - turn);
            }
            (all, clock.parts)
        };
        let (mut found, mut parts) = (Vec::new(), Parts::default());
        let mut clock = Clock::<TIMED>::start();
        std::thread::scope(|scope| {
            let mut hands = hands.into_iter().enumerate();
            let (own, lanes) = hands.next().expect("there is at least one thread");
            let work = &work;
            let others: Vec<_> = hands.map(|(i, lanes)| scope.spawn(move || work(i, lanes, None))).collect();
            let mut fired = Vec::new();
            let mut tell = |next: u64, turn: usize, meet: bool| {
                let Some(exchange) = &mut exchange else { return Ok(Vec::new()) };
                // SAFETY: threads met since these were posted, and meet before the lists of this turn are posted again.
                unsafe { mail.read(turn) }.for_each(|list| fired.extend_from_slice(list));
                if !meet {
                    return Ok(Vec::new());
                }
                fired.sort_unstable();
                let heard = exchange.exchange(next, &fired).map_err(|e| failed = Some(e));
                fired.clear();
                heard
            };
            (found, parts) = work(own, lanes, Some(&mut tell));
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
        if let Some(error) = failed {
            return Err(error);
        }
        parts.divide(threads as f64);
        // What the first thread spent beside its steps: threads start, and meet for the last time.
        clock.lap(Timed::Threads);
        clock.parts.seconds[Timed::Threads as usize] -= parts.sum();
        parts.add(&clock.parts);
        let mut clock = Clock::<TIMED>::start();
        found.sort_unstable();
        self.step = to;
        self.remember(&found);
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
        if !self.is_small() {
            return self.walk::<false>(self.most(), steps, spikes).map(drop);
        }
        learned::steps_left(self.plan, self.step + steps)?;
        let to = self.step + steps;
        while self.step < to {
            let stretch = self.crew.next(to - self.step);
            let since = Instant::now();
            self.walk::<false>(if stretch.alone { 1 } else { self.most() }, stretch.steps, spikes)?;
            self.crew.took(stretch, since.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn variables(&self) -> Result<Vec<Vec<Vec<f32>>>> {
        let variables = self.plan.models.iter().enumerate().map(|(p, model)| {
            let size = self.plan.network.populations[p].size as usize;
            let mut values = vec![vec![0.0; size]; model.variables().len()];
            for lane in &self.lanes {
                let (part, states) = lane.states(p);
                for (all, own) in values.iter_mut().zip(states) {
                    part.cells().iter().zip(own).for_each(|(cell, x)| all[cell as usize] = *x);
                }
            }
            values
        });
        Ok(variables.collect())
    }

    fn state(&self) -> Result<State> {
        let learned = self.plan.learning.as_ref().map(|l| learned::gather(self.plan, l, &self.lanes, self.step));
        Ok(State { step: self.step, variables: self.variables()?, recent: self.recent.clone(), learned })
    }

    fn order(&self) -> Result<Option<(&Plan, Keys)>> {
        Ok(Some((self.plan, CpuEngine::keys(self))))
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
        self.untold = None;
        self.step = state.step;
        self.recent.clone_from(&state.recent);
        Ok(())
    }

    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>> {
        let states = self.lanes.iter().map(|lane| lane.states(population));
        let own = |(part, states): (&Part, &[Vec<f32>])| {
            let at = part.cells().find(cell)?;
            Some(states.iter().map(|s| s[at as usize]).collect())
        };
        Ok(states.filter_map(own).next().unwrap_or_default())
    }

    fn redrive(&mut self, plan: &Plan) -> Result<bool> {
        // The heaviest cell may not be the one that is driven; then building anew tells.
        if self.heaviest() + self.grown + self.driven(&plan.poisson) > i32::MAX as u64 {
            return Ok(false);
        }
        let constants = self.lanes.iter().map(|lane| lane.constants(plan)).collect::<Result<Vec<_>>>()?;
        self.lanes.iter_mut().zip(constants).for_each(|(lane, new)| lane.redrive(plan, new));
        Ok(true)
    }

    fn reweigh(&mut self, synapses: &[Reweighed]) -> Result<bool> {
        let grown = |s: &Reweighed| u64::from(s.new.unsigned_abs().saturating_sub(s.old.unsigned_abs()));
        let grown = self.grown + synapses.iter().map(grown).sum::<u64>();
        // As if all were onto the heaviest cell.
        if self.heaviest() + grown + self.driven(&self.plan.poisson) > i32::MAX as u64 {
            return Ok(false);
        }
        for synapse in synapses {
            let p = self.plan.first.partition_point(|first| *first <= u64::from(synapse.target)) - 1;
            let cell = synapse.target - self.plan.first[p] as u32;
            for lane in &mut self.lanes {
                if lane.reweigh((p, cell), synapse)? {
                    break;
                }
            }
        }
        self.grown = grown;
        Ok(true)
    }

    fn synapses(&self) -> u64 {
        let changing = |l: &Lane<'_>| l.shard.changing.as_ref().map_or(0, |c| c.slots.len() as u64);
        self.lanes.iter().map(|l| l.shard.rows.len() as u64 + l.shard.drawn + changing(l)).sum()
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

    fn variant(&self) -> &'static str {
        "shards"
    }

    fn update_bytes(&self) -> u64 {
        self.resident_bytes()[0]
    }

    fn events(&self) -> u64 {
        self.lanes.iter().map(|l| l.events).sum()
    }

    fn config(&self) -> String {
        let either = if self.is_small() { "1 or " } else { "" };
        let drawn = self.lanes.iter().map(|l| l.shard.drawn).sum::<u64>();
        let drawn = if drawn > 0 { format!(", {drawn} synapses drawn at each spike") } else { String::new() };
        format!("{} shards on {either}{} threads{drawn}", self.lanes.len(), self.most())
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
    add_words(due, synapses, sums);
}

/// Likewise of eight bytes each.
pub(super) fn add_long(due: &[u64], synapses: &[u64], sums: &mut [i32; 65_536]) {
    add_words(due, synapses, sums);
}

#[inline(always)]
fn add_words<W: Word>(due: &[u64], synapses: &[W], sums: &mut [i32; 65_536]) {
    /// Groups ahead that memory is asked for: some 300 ns of work.
    const AHEAD: usize = 8;
    for (i, group) in due.iter().enumerate() {
        if let Some(ahead) = due.get(i + AHEAD) {
            let place = (ahead >> 16) as usize;
            for line in (0..(*ahead & 0xFFFF) as usize).step_by(64 / size_of::<W>()).take(4) {
                prefetch(&synapses[place + line]);
            }
        }
        let place = (group >> 16) as usize;
        for &synapse in &synapses[place..place + (group & 0xFFFF) as usize] {
            let sum = &mut sums[usize::from(synapse.slot())];
            *sum = sum.wrapping_add(synapse.weight());
        }
    }
}

#[inline(always)]
fn prefetch<W>(at: &W) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint about an address, which here is that of a living object.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(at).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The words of the draws of `quad` for the next cells from place `at` on, at most [`BATCH`].
pub(super) fn draw_cells(
    Key { seed, owner }: Key,
    purpose: Purpose,
    cells: Subset<'_>,
    at: usize,
    quad: u64,
    words: &mut [[u32; BATCH]; 4],
) {
    // A population counts its cells, and a quad is 32 bits: 2^34 steps.
    match cells.listed() {
        None => batch(seed, purpose as u32, owner, quad << 32 | u64::from(cells.low + at as u32), words),
        Some(list) => {
            listed(seed, purpose as u32, owner, quad, &list[at..list.len().min(at + BATCH)], words);
        }
    }
}

/// The arrivals of steps `4 quad .. 4 quad + 4` at some cells.
pub(super) fn draw_arrivals(table: &PoissonTable, cells: Subset<'_>, quad: u64, counts: &mut [Vec<u16>; 4]) {
    let mut words = [[0; BATCH]; 4];
    for at in (0..cells.len()).step_by(BATCH) {
        draw_cells(table.key, Purpose::Drive, cells, at, quad, &mut words);
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
