//! What the parts of a step of the CPU engine take, and what they move.

use super::cpu::{self, CpuEngine};
use super::{Engine, Spike, cuda};
use crate::cuda::CudaDevice;
use crate::spiking::Plan;
use crate::spiking::connect::rows::Word;
use crate::spiking::models::Kind;
use crate::{Device, Result};
use std::sync::Arc;
use std::time::Instant;

/// A part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Synapses that are due are added to sums.
    Delivery,
    /// Arrivals and sources are drawn.
    Drives,
    /// States advance, and cells that fire are listed.
    Update,
    /// Threads tell each other what fired, and note what that makes due.
    Exchange,
    /// Synapses that change do, and pass on what is due later.
    Learning,
    /// A thread waits for the others.
    Waiting,
    /// Threads start and end, once a chunk.
    Threads,
    /// Spikes are put in order, once a chunk.
    Ordering,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Delivery,
        Self::Drives,
        Self::Update,
        Self::Exchange,
        Self::Learning,
        Self::Waiting,
        Self::Threads,
        Self::Ordering,
    ];

    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivery => "delivery",
            Self::Drives => "drives",
            Self::Update => "update",
            Self::Exchange => "exchange of spikes",
            Self::Learning => "learning",
            Self::Waiting => "waiting for other threads",
            Self::Threads => "starting threads",
            Self::Ordering => "ordering of spikes",
        }
    }
}

/// Seconds of each part: the mean over threads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Parts {
    pub(super) seconds: [f64; Part::ALL.len()],
}

impl Parts {
    /// Those of a part.
    pub fn of(&self, part: Part) -> f64 {
        self.seconds[part as usize]
    }
    /// Those of all parts, which follow each other.
    pub fn sum(&self) -> f64 {
        self.seconds.iter().sum()
    }
    pub(super) fn add(&mut self, other: &Self) {
        self.seconds.iter_mut().zip(&other.seconds).for_each(|(a, b)| *a += b);
    }
    pub(super) fn divide(&mut self, by: f64) {
        self.seconds.iter_mut().for_each(|s| *s /= by);
    }
}

/// Bytes of a delivery of a synapse that changes, beside the four that are read of its bucket: six read and four written of its
/// row, four written to the bucket.
pub(crate) const LEARNING_BYTES: u64 = 14;

/// A clock, or none: then laps cost nothing.
pub(super) struct Clock<const ON: bool> {
    last: Option<Instant>,
    pub parts: Parts,
}

impl<const ON: bool> Clock<ON> {
    pub fn start() -> Self {
        Self { last: ON.then(Instant::now), parts: Parts::default() }
    }
    /// What passed since the last lap was this part.
    #[inline(always)]
    pub fn lap(&mut self, part: Part) {
        if let Some(last) = &mut self.last {
            let now = Instant::now();
            self.parts.seconds[part as usize] += (now - *last).as_secs_f64();
            *last = now;
        }
    }
}

/// What a chunk of steps moves, in all.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Moved {
    /// Synapses that do not change, and that are delivered.
    pub fixed: u64,
    /// Those that change.
    pub changing: u64,
    /// Rows that spikes go through: one a spike and shard, unless it has no synapse.
    pub rows: u64,
    /// Groups of synapses of one delay.
    pub groups: u64,
}

impl CpuEngine<'_> {
    /// As [`advance`](super::Engine::advance), with a clock; the spikes are the same.
    ///
    /// # Errors
    /// As there.
    pub fn advance_timed(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<Parts> {
        self.walk::<true>(self.threads(), steps, spikes)
    }

    /// What these spikes move.
    pub fn moved(&self, spikes: &[Spike]) -> Moved {
        let mut moved = Moved::default();
        for lane in &self.lanes {
            let rows = &lane.shard.rows;
            for spike in spikes {
                let groups = rows.own_groups(spike.cell as usize);
                moved.fixed += groups.iter().map(|g| u64::from(g.len)).sum::<u64>();
                moved.rows += u64::from(!groups.is_empty());
                moved.groups += groups.len() as u64;
            }
        }
        moved
    }

    /// Bytes of what is in motion: those that a step of each part touches whatever fires, as `[update, drives]`, by the plan.
    pub fn resident_bytes(&self) -> [u64; 2] {
        let plan = self.plan;
        let mut bytes = [0; 2];
        for (p, model) in plan.models.iter().enumerate() {
            let cells = u64::from(plan.network.populations[p].size);
            match model.kind() {
                // States are read and written; sums are read, and become 0.
                Kind::Dynamics => {
                    let own = if self.lanes.iter().any(|l| l.each(p)) { model.coefficient_count() } else { 0 };
                    bytes[0] += cells * (8 * (model.variables().len() + model.ports().len()) + 4 * own) as u64;
                }
                // What is drawn for four steps is two bytes a step, written once and read once.
                Kind::Poisson => bytes[1] += 4 * cells,
                Kind::Replay => {}
            }
        }
        bytes[1] += plan.poisson.iter().map(|d| 4 * u64::from(plan.network.populations[d.target].size)).sum::<u64>();
        bytes
    }

    /// Numbers that are drawn a step while every drive is on.
    pub fn draws(&self) -> u64 {
        let plan = self.plan;
        let size = |p: usize| u64::from(plan.network.populations[p].size);
        let sources = (0..plan.models.len()).filter(|p| plan.models[*p].kind() == Kind::Poisson);
        plan.poisson.iter().map(|d| d.target).chain(sources).map(size).sum()
    }

    /// Bytes of a synapse that does not change.
    pub fn word(&self) -> u64 {
        if self.shards().any(|shard| !shard.rows.long.is_empty()) { 8 } else { 4 }
    }

    /// The slots of the largest shard.
    pub fn slots(&self) -> usize {
        self.lanes.iter().map(|l| l.shard.slots).max().unwrap_or(1)
    }
}

/// The engine of a device, of which that of the CPU takes its steps apart.
pub(crate) enum Runner<'a> {
    Cpu(CpuEngine<'a>),
    Cuda(Box<dyn Engine + 'a>),
}

impl<'a> Runner<'a> {
    /// On `device`, and where that is a GPU on `others` beside it.
    pub fn new(plan: &'a Plan, device: &Device, others: &[Arc<CudaDevice>]) -> Result<Self> {
        Ok(match device {
            Device::Cpu => Self::Cpu(CpuEngine::new(plan, &|_, _| ())?),
            Device::Cuda(d) => {
                let all: Vec<_> = std::iter::once(d).chain(others).cloned().collect();
                Self::Cuda(cuda::engine(plan, &all, &|_, _| ())?)
            }
        })
    }
    pub fn engine(&mut self) -> &mut (dyn Engine + 'a) {
        match self {
            Self::Cpu(engine) => engine,
            Self::Cuda(engine) => &mut **engine,
        }
    }
}

/// Nanoseconds of a synapse that is added while groups of this length, and the sums of so many slots, lie in the first
/// caches: what delivery cannot fall below on one thread.
pub fn addition_ns(slots: usize, group: f64) -> f64 {
    const SYNAPSES: usize = 2048;
    let slots = slots.clamp(1, 1 << 16) as u64;
    let mut rng = crate::rng::Rng::new(1, 0);
    let synapses: Vec<u32> = (0..SYNAPSES).map(|i| u32::pack(rng.below(slots) as u32, i as i32 % 64)).collect();
    let len = (group.round() as usize).clamp(1, SYNAPSES);
    let due: Vec<u64> = (0..SYNAPSES / len).map(|i| ((i * len) as u64) << 16 | len as u64).collect();
    let mut sums: Box<[i32; 65_536]> = vec![0; 65_536].into_boxed_slice().try_into().expect("as long as the array");
    let mut once = || {
        let since = Instant::now();
        for _ in 0..50 {
            cpu::add(std::hint::black_box(&due), &synapses, &mut sums);
        }
        since.elapsed().as_secs_f64() * 1e9 / (50 * due.len() * len) as f64
    };
    (0..7).map(|_| once()).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::super::tests::balanced;
    use super::*;

    /// The clock changes no spike, its parts are the whole, and what spikes move is what the engine counts.
    #[test]
    fn parts_are_timed_and_spikes_stay() {
        let plan = Plan::new(balanced(60, 3)).unwrap();
        for (threads, shards) in [(1, 1), (2, 3)] {
            crate::pool::set_num_threads(threads);
            let mut plain = CpuEngine::with_shards(&plan, shards, &|_, _| ()).unwrap();
            let mut want = Vec::new();
            plain.advance(2000, &mut want).unwrap();
            assert!(want.len() > 1000, "{}", want.len());
            // The clocks are those of one thread, which a busy machine keeps waiting now and then.
            let run = || {
                let mut timed = CpuEngine::with_shards(&plan, shards, &|_, _| ()).unwrap();
                let mut got = Vec::new();
                let since = Instant::now();
                let mut parts = timed.advance_timed(801, &mut got).unwrap();
                parts.add(&timed.advance_timed(1199, &mut got).unwrap());
                let wall = since.elapsed().as_secs_f64();
                assert!(got == want, "{} {}", got.len(), want.len());
                (timed, got, parts, wall)
            };
            let near = |parts: &Parts, wall: f64| (parts.sum() - wall).abs() < 0.05 * wall + 1e-3;
            let mut tries = (0..8).map(|_| run());
            let found = tries.find(|(_, _, parts, wall)| near(parts, *wall));
            let (timed, got, parts, _) = found.expect("eight runs whose parts are not the whole");
            for part in [Part::Delivery, Part::Drives, Part::Update, Part::Exchange] {
                assert!(parts.of(part) > 0.0, "{part:?}: {parts:?}");
            }
            let moved = timed.moved(&got);
            assert_eq!(moved.fixed + moved.changing, timed.events());
            assert!(moved.rows >= got.len() as u64 && moved.groups >= moved.rows && moved.groups <= moved.fixed);
            // Each of 300 cells has a drive; four bytes of each state and port are read and written.
            assert_eq!((timed.draws(), timed.resident_bytes()[1]), (300, 1200));
            // Other tests set the pool's threads, too.
            assert!(timed.resident_bytes()[0] >= 300 * 8 * 5 && (1..=shards).contains(&timed.threads()));
        }
        let ns = addition_ns(1000, 30.0);
        assert!((0.05..100.0).contains(&ns), "{ns}");
    }
}
