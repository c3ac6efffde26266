//! What a layout costs.

use super::groups;
use super::sample::{self, Sampled};
use super::{Layout, Load};
use crate::spiking::plan::{MOST_APART, Plan};

/// A cell's step, ns of a core.
pub const CELL_NS: f64 = 3.0;
/// A spike through a synapse, ns of a core.
pub const EVENT_NS: f64 = 3.0;
/// Likewise where the synapse changes.
pub const CHANGING_NS: f64 = 12.0;
/// A spike that reaches another part than its own, for that part: its row is looked up there, ns.
pub const CROSSING_NS: f64 = 200.0;
/// All parts have all spikes, once every shortest delay from one part to another, ns.
pub const EXCHANGE_NS: f64 = 60_000.0;

/// What a layout is expected to cost.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Evaluation {
    /// Whether synapses were counted one by one; else they are expected, from samples and formulas.
    pub exact: bool,
    /// Cells of each part.
    pub neurons: Vec<u64>,
    /// Synapses of each part: those onto its cells.
    pub synapses: Vec<f64>,
    /// Synapses from one part to another.
    pub cut_synapses: f64,
    /// Spikes a step times the other parts that each reaches.
    pub crossing_spikes: f64,
    /// The shortest delay of a synapse from one part to another, ms; of a sample where synapses are not counted.
    pub min_delay_ms: Option<f64>,
    /// Parts exchange spikes every so many steps, or, where synapses are not counted, about so many; 0 where there is one part.
    pub exchange_steps: u64,
    /// The mean delay of a synapse from one part to another, ms.
    pub mean_delay_ms: Option<f64>,
    /// The work of the part that has most, over the mean.
    pub balance: f64,
    /// A step of the slowest part, with its share of an exchange, us.
    pub step_us: f64,
}

/// What is counted of a layout.
struct Tally {
    owners: Vec<Vec<u32>>,
    synapses: Vec<f64>,
    work: Vec<f64>,
    cut: f64,
    shortest: u16,
    delays: f64,
    /// `[group of sources][part]`: synapses to other parts than the source's.
    reached: Reached,
}

enum Reached {
    /// Of each cell a bit a part.
    Bits(Vec<u64>),
    /// Of each group how many, and how many cells the part itself has of it.
    Counts(Vec<f32>, Vec<f32>),
}

/// Groups of cells that have like synapses.
struct Sources {
    /// `[population][cell]`.
    of: Vec<Vec<u32>>,
    /// Of each its population and how many cells.
    sizes: Vec<(usize, f64)>,
}

impl Sources {
    /// Along the curve where cells lie somewhere; else by number.
    fn new(plan: &Plan) -> Self {
        const EACH: usize = 4096;
        let mut all = Self { of: Vec::new(), sizes: Vec::new() };
        let mut along: Vec<Vec<u32>> = vec![Vec::new(); plan.network.populations.len()];
        groups::along(plan).iter().for_each(|c| along[c.population as usize].push(c.cell));
        for (p, mut cells) in along.into_iter().enumerate() {
            let size = plan.network.populations[p].size as usize;
            if cells.is_empty() {
                cells = (0..size as u32).collect();
            }
            let count = (EACH / plan.network.populations.len()).clamp(16, EACH).min(size);
            let first = all.sizes.len();
            all.sizes.resize(first + count, (p, 0.0));
            let mut of = vec![0; size];
            for (i, cell) in cells.into_iter().enumerate() {
                let group = first + i * count / size;
                of[cell as usize] = group as u32;
                all.sizes[group].1 += 1.0;
            }
            all.of.push(of);
        }
        all
    }
}

/// What each layout costs.
pub fn evaluate(load: &Load<'_>, layouts: &[Layout]) -> Vec<Evaluation> {
    let plan = load.plan;
    let n = &plan.network;
    let sources = if load.exact { Sources { of: Vec::new(), sizes: Vec::new() } } else { Sources::new(plan) };
    let mut tallies: Vec<Tally> = layouts
        .iter()
        .map(|layout| {
            let parts = layout.parts();
            let owners: Vec<Vec<u32>> = (0..n.populations.len()).map(|p| layout.owners(p)).collect();
            let mut work = vec![0.0; parts];
            owners.iter().flatten().for_each(|part| work[*part as usize] += CELL_NS);
            let reached = if load.exact {
                Reached::Bits(vec![0; plan.cells() as usize * parts.div_ceil(64)])
            } else {
                let mut own = vec![0.0; sources.sizes.len() * parts];
                let cells = sources.of.iter().flatten().zip(owners.iter().flatten());
                cells.for_each(|(group, part)| own[*group as usize * parts + *part as usize] += 1.0);
                Reached::Counts(vec![0.0; own.len()], own)
            };
            Tally { owners, synapses: vec![0.0; parts], work, cut: 0.0, shortest: u16::MAX, delays: 0.0, reached }
        })
        .collect();
    sample::each(plan, load.sampled(), &mut |s: Sampled| {
        let p = &n.projections[s.projection];
        let ns = load.event_ns(s.projection) * s.count;
        for tally in &mut tallies {
            let to = tally.owners[p.target][s.target as usize] as usize;
            tally.synapses[to] += s.count;
            tally.work[to] += ns;
            if tally.owners[p.source][s.source as usize] as usize == to {
                continue;
            }
            tally.cut += s.count;
            tally.delays += s.count * f64::from(s.delay);
            tally.shortest = tally.shortest.min(s.delay);
            let parts = tally.synapses.len();
            match &mut tally.reached {
                Reached::Bits(bits) => {
                    let cell = plan.first[p.source] as usize + s.source as usize;
                    bits[cell * parts.div_ceil(64) + to / 64] |= 1 << (to % 64);
                }
                Reached::Counts(counts, _) => {
                    let group = sources.of[p.source][s.source as usize] as usize;
                    counts[group * parts + to] += s.count as f32;
                }
            }
        }
    });
    let finish = |(layout, tally): (&Layout, Tally)| finish(load, layout, tally, &sources);
    layouts.iter().zip(tallies).map(finish).collect()
}

fn finish(load: &Load<'_>, layout: &Layout, tally: Tally, sources: &Sources) -> Evaluation {
    let (plan, parts) = (load.plan, layout.parts());
    let mut crossing = vec![0.0; parts];
    match &tally.reached {
        Reached::Bits(bits) => {
            let words = parts.div_ceil(64);
            let populations = plan.network.populations.iter().enumerate();
            let spikes = populations.flat_map(|(p, x)| std::iter::repeat_n(load.spikes(p), x.size as usize));
            for (bits, spikes) in bits.chunks_exact(words).zip(spikes) {
                for (word, some) in bits.iter().enumerate().filter(|(_, b)| **b != 0) {
                    (0..64).filter(|b| some >> b & 1 == 1).for_each(|b| crossing[word * 64 + b] += spikes);
                }
            }
        }
        Reached::Counts(counts, own) => {
            let groups = counts.chunks_exact(parts).zip(own.chunks_exact(parts)).zip(&sources.sizes);
            for ((counts, own), (population, size)) in groups {
                for ((all, count), own) in crossing.iter_mut().zip(counts).zip(own) {
                    // A cell of the group in another part has as many as their mean, at random.
                    let others = size - f64::from(*own);
                    *all += load.spikes(*population) * others * (1.0 - (-f64::from(*count) / others.max(1.0)).exp());
                }
            }
        }
    }
    let mean = tally.work.iter().sum::<f64>() / parts as f64;
    let most = tally.work.iter().copied().fold(0.0, f64::max);
    let own = tally.work.iter().zip(&crossing).map(|(work, spikes)| work + CROSSING_NS * spikes);
    let modulators = plan.learning.iter().flat_map(|l| &l.modulators).map(|m| u64::from(m.delay));
    let exchange_steps = modulators.fold(MOST_APART.min(tally.shortest.into()), u64::min);
    let exchange = if parts > 1 { EXCHANGE_NS / exchange_steps as f64 } else { 0.0 };
    let dt = plan.network.dt_ms;
    Evaluation {
        exact: load.exact,
        neurons: (0..parts).map(|part| layout.cells(part)).collect(),
        synapses: tally.synapses,
        cut_synapses: tally.cut,
        crossing_spikes: crossing.iter().sum(),
        min_delay_ms: (tally.cut > 0.0).then(|| f64::from(tally.shortest) * dt),
        exchange_steps: if parts > 1 { exchange_steps } else { 0 },
        mean_delay_ms: (tally.cut > 0.0).then(|| tally.delays / tally.cut * dt),
        balance: most / mean.max(f64::MIN_POSITIVE),
        step_us: (own.fold(0.0, f64::max) + exchange) * 1e-3,
    }
}
