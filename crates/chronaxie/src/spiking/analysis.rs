//! What spike trains and networks are like, beyond rates: intervals, synchrony, bursts, entropy, mutual information, degrees,
//! clustering. The measures of the original 4D-Neural-Cognition (its `metrics.py` and `network_analysis.py`), each once.
//!
//! Trains are cut into bins of some ms; `x` is whether a cell fires in a bin, `A` the share of a population's cells that do.
//! Information is in bits and by counting alone: of N bins, two binary trains that have nothing to do with each other have about
//! `1 / (2 N ln 2)` bits of mutual information ([`bias`]).

use super::connect;
use super::metrics::LEAST_SPIKES;
use super::plan::Plan;
use super::simulate::Spike;
use crate::{Error, Result};
use serde::Serialize;
use std::collections::HashMap;

/// Cells of a population whose mutual information is taken pair by pair.
pub const PAIRED: usize = 250;
/// Nodes whose clustering is counted.
pub const CLUSTERED: usize = 1000;
/// Networks with more synapses than this have their degrees counted and no clustering: a gigabyte of neighbours.
pub const MOST_SYNAPSES: f64 = 1.2e8;

/// How trains are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Options {
    /// The width of bins, steps.
    pub bin: u64,
    /// Spikes of a burst follow each other within so many steps.
    pub burst_interval: u64,
    /// A burst has at least so many spikes.
    pub burst_spikes: usize,
}

/// Spikes of populations over a time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trains {
    /// The step, ms.
    pub dt_ms: f64,
    /// From this step.
    pub start: u64,
    /// Until before this step.
    pub stop: u64,
    /// Cells of each population.
    pub sizes: Vec<u32>,
    /// Sorted, all between start and stop.
    pub spikes: Vec<Spike>,
}

/// A mean over cells, and how they differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub sd: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of some values; zeros where there is none.
    pub fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let sd = (values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt();
        let end = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick).unwrap_or(0.0);
        Self { mean, sd, min: end(f64::min), max: end(f64::max) }
    }
}

/// Bursts of a population.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Bursts {
    /// How many.
    pub count: u64,
    /// A cell's, a second.
    pub rate_hz: f64,
    /// Mean spikes of a burst.
    pub spikes: f64,
    /// The share of spikes that are part of one.
    pub share: f64,
}

/// How much the cells of a population fire together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Synchrony {
    /// Var(A): the original's measure.
    pub variance: f64,
    /// sqrt(Var(A) / mean of Var(x)): 1 where all cells are one, `1 / sqrt(cells)` where none follows another (Golomb).
    pub chi: f64,
    /// Variance over mean of the population's counts: 1 for independent Poisson trains.
    pub fano: f64,
}

/// What was measured of a population.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Measures {
    /// Of cells, Hz.
    pub rate_hz: Spread,
    /// The share of cells without a spike.
    pub silent: f64,
    /// Of all intervals of all cells, ms.
    pub interval_ms: Spread,
    /// Half of the intervals are shorter, ms.
    pub interval_median_ms: f64,
    /// Of cells with at least six spikes; none where there is none.
    pub cv: Option<Spread>,
    /// See there.
    pub synchrony: Synchrony,
    /// See there.
    pub bursts: Bursts,
    /// H(x) of cells, bits a bin.
    pub entropy_bits: Spread,
    /// H of the population's count, bits a bin.
    pub population_entropy_bits: f64,
    /// I(x; y) of pairs among the first [`PAIRED`] cells, bits a bin; none for fewer than two cells.
    pub mutual_information_bits: Option<Spread>,
}

/// What was measured of all populations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Analysis {
    /// One a population.
    pub populations: Vec<Measures>,
    /// I of the counts of two populations, bits a bin.
    pub mutual_information_bits: Vec<Vec<f64>>,
    /// How many bins there are.
    pub bins: u64,
    /// Intervals of each population, ms.
    pub intervals_ms: Vec<Vec<f64>>,
}

/// The mutual information, bits, that two unrelated binary trains of so many bins have on average by counting.
pub fn bias(bins: u64) -> f64 {
    0.5 / (bins.max(1) as f64 * std::f64::consts::LN_2)
}

/// -sum p log2 p of counts out of `total`.
fn entropy(counts: impl IntoIterator<Item = f64>, total: f64) -> f64 {
    let term = |c: f64| if c > 0.0 { -(c / total) * (c / total).log2() } else { 0.0 };
    counts.into_iter().map(term).sum()
}

/// The most bins of a recording.
const MOST_BINS: u64 = 1 << 28;

/// Bytes that [`analyze`] needs at once.
fn bytes(trains: &Trains, first: &[u64], bins: u64) -> u64 {
    let (cells, populations, spikes) = (first[first.len() - 1], trains.sizes.len() as u64, trains.spikes.len() as u64);
    // The spikes of those cells whose pairs are looked at, of the population that has most.
    let mut paired = vec![0u64; trains.sizes.len()];
    for spike in &trains.spikes {
        let p = first.partition_point(|f| *f <= u64::from(spike.cell)) - 1;
        if let Some(count) = paired.get_mut(p).filter(|_| u64::from(spike.cell) - first[p] < PAIRED as u64) {
            *count += 1;
        }
    }
    // A cell's train, rate and entropy; a spike's step and intervals, in lists that grow by doubling; the bins of a spike with a list
    // each; counts of every population, and of one as f64; those of two together; and what two populations share.
    let each = [
        64 * u128::from(cells),
        64 * u128::from(spikes),
        128 * u128::from(paired.into_iter().max().unwrap_or(0)),
        u128::from(bins) * (4 * u128::from(populations) + 16),
        64 * u128::from(bins.min(spikes)),
        8 * u128::from(populations).pow(2),
    ];
    u64::try_from(each.iter().sum::<u128>()).unwrap_or(u64::MAX)
}

/// Measures all of `trains`; a last bin that is cut short is left out of what is binned.
///
/// # Errors
/// `Config` for more than 2^28 bins; `OutOfMemory` before anything is allocated; `Value` for a spike of no cell or no step.
pub fn analyze(trains: &Trains, options: &Options) -> Result<Analysis> {
    let steps = trains.stop.saturating_sub(trains.start);
    let bins = steps / options.bin.max(1);
    let mut first = vec![0u64];
    trains.sizes.iter().for_each(|size| first.push(first[first.len() - 1] + u64::from(*size)));
    let cells = first[first.len() - 1];
    let outside = |s: &&Spike| !(trains.start..trains.stop).contains(&s.step) || u64::from(s.cell) >= cells;
    if let Some(s) = trains.spikes.iter().find(outside) {
        return Err(Error::value(format!(
            "a spike of cell {} in step {} is not one of {cells} cells from step {} to {}",
            s.cell, s.step, trains.start, trains.stop
        )));
    }
    if bins > MOST_BINS {
        return Err(Error::config(format!(
            "{steps} steps in bins of {} make {bins} bins, more than 2^28",
            options.bin
        )));
    }
    crate::memory::require(bytes(trains, &first, bins), || {
        let (spikes, populations) = (trains.spikes.len(), trains.sizes.len());
        format!("an analysis of {spikes} spikes of {cells} cells in {populations} populations, in {bins} bins,")
    })?;
    let mut by_cell: Vec<Vec<u64>> = vec![Vec::new(); first[trains.sizes.len()] as usize];
    trains.spikes.iter().for_each(|s| by_cell[s.cell as usize].push(s.step - trains.start));
    let mut counts = Vec::new();
    let mut analysis = Analysis { bins, ..Analysis::default() };
    for (p, size) in trains.sizes.iter().enumerate() {
        let cells = &by_cell[first[p] as usize..][..*size as usize];
        let (measures, count, intervals) = population(cells, trains.dt_ms, steps, bins, options);
        analysis.populations.push(measures);
        analysis.intervals_ms.push(intervals);
        counts.push(count);
    }
    let pair = |a: &Vec<u32>, b: &Vec<u32>| {
        let mut joint: HashMap<(u32, u32), f64> = HashMap::new();
        a.iter().zip(b).for_each(|(x, y)| *joint.entry((*x, *y)).or_default() += 1.0);
        // Sorted, so that sums have the same bits whatever the map's order.
        let mut joint: Vec<_> = joint.into_iter().collect();
        joint.sort_unstable_by_key(|(key, _)| *key);
        let both = entropy(joint.into_iter().map(|(_, c)| c), bins as f64);
        (count_entropy(a, bins) + count_entropy(b, bins) - both).max(0.0)
    };
    analysis.mutual_information_bits = counts.iter().map(|a| counts.iter().map(|b| pair(a, b)).collect()).collect();
    Ok(analysis)
}

fn count_entropy(counts: &[u32], bins: u64) -> f64 {
    let mut often = vec![0.0; counts.iter().max().map_or(0, |most| *most as usize + 1)];
    counts.iter().for_each(|c| often[*c as usize] += 1.0);
    entropy(often, bins as f64)
}

/// The measures of some cells, given each one's steps; how many fire in each bin; and their intervals, ms.
fn population(
    cells: &[Vec<u64>],
    dt_ms: f64,
    steps: u64,
    bins: u64,
    options: &Options,
) -> (Measures, Vec<u32>, Vec<f64>) {
    let seconds = steps as f64 * dt_ms * 1e-3;
    let n = cells.len() as f64;
    let mut m = Measures::default();
    let mut counts = vec![0u32; bins as usize];
    let (mut intervals, mut cvs, mut rates, mut entropies) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut variances, mut in_bursts, mut spikes) = (0.0, 0u64, 0u64);
    // Bins in which each of the first cells fires.
    let mut active: Vec<Vec<u32>> = vec![Vec::new(); cells.len().min(PAIRED)];
    for (c, train) in cells.iter().enumerate() {
        rates.push(if seconds > 0.0 { train.len() as f64 / seconds } else { 0.0 });
        spikes += train.len() as u64;
        let own: Vec<f64> = train.windows(2).map(|w| (w[1] - w[0]) as f64 * dt_ms).collect();
        if train.len() >= LEAST_SPIKES as usize {
            let spread = Spread::of(&own);
            cvs.push(spread.sd / spread.mean);
        }
        intervals.extend(own);
        for burst in train.chunk_by(|a, b| b - a <= options.burst_interval) {
            if burst.len() >= options.burst_spikes {
                m.bursts.count += 1;
                in_bursts += burst.len() as u64;
            }
        }
        let mut seen: Vec<u32> =
            train.iter().map(|s| s / options.bin.max(1)).filter(|bin| *bin < bins).map(|bin| bin as u32).collect();
        seen.dedup();
        seen.iter().for_each(|bin| counts[*bin as usize] += 1);
        let fired = seen.len() as f64;
        if let Some(list) = active.get_mut(c) {
            *list = seen;
        }
        let share = if bins > 0 { fired / bins as f64 } else { 0.0 };
        variances += share * (1.0 - share);
        entropies.push(if bins > 0 { entropy([fired, bins as f64 - fired], bins as f64) } else { 0.0 });
    }
    m.rate_hz = Spread::of(&rates);
    m.silent = if cells.is_empty() { 0.0 } else { cells.iter().filter(|c| c.is_empty()).count() as f64 / n };
    m.interval_ms = Spread::of(&intervals);
    let mut sorted = intervals.clone();
    sorted.sort_by(f64::total_cmp);
    m.interval_median_ms = match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => 0.5 * (sorted[len / 2 - 1] + sorted[len / 2]),
    };
    m.cv = (!cvs.is_empty()).then(|| Spread::of(&cvs));
    let shares: Vec<f64> = counts.iter().map(|c| f64::from(*c)).collect();
    let spread = Spread::of(&shares);
    let (variance, mean) = (spread.sd * spread.sd, spread.mean);
    m.synchrony.variance = if n > 0.0 { variance / (n * n) } else { 0.0 };
    m.synchrony.chi = if variances > 0.0 { (m.synchrony.variance / (variances / n)).sqrt() } else { 0.0 };
    m.synchrony.fano = if mean > 0.0 { variance / mean } else { 0.0 };
    m.bursts.spikes = if m.bursts.count > 0 { in_bursts as f64 / m.bursts.count as f64 } else { 0.0 };
    m.bursts.share = if spikes > 0 { in_bursts as f64 / spikes as f64 } else { 0.0 };
    m.bursts.rate_hz = if seconds > 0.0 && n > 0.0 { m.bursts.count as f64 / n / seconds } else { 0.0 };
    m.entropy_bits = Spread::of(&entropies);
    m.population_entropy_bits = count_entropy(&counts, bins);
    m.mutual_information_bits = pairs(&active, bins);
    (m, counts, intervals)
}

/// The mutual information of each pair of binary trains, given the bins in which each fires.
fn pairs(active: &[Vec<u32>], bins: u64) -> Option<Spread> {
    if active.len() < 2 || bins == 0 {
        return None;
    }
    let total = bins as f64;
    let own: Vec<f64> = active.iter().map(|a| entropy([a.len() as f64, total - a.len() as f64], total)).collect();
    let mut together = vec![0u32; active.len() * active.len()];
    let mut by_bin: HashMap<u32, Vec<usize>> = HashMap::new();
    for (c, list) in active.iter().enumerate() {
        for bin in list {
            let others = by_bin.entry(*bin).or_default();
            others.iter().for_each(|other| together[other * active.len() + c] += 1);
            others.push(c);
        }
    }
    let mut all = Vec::with_capacity(active.len() * (active.len() - 1) / 2);
    for a in 0..active.len() {
        for b in a + 1..active.len() {
            let both = f64::from(together[a * active.len() + b]);
            let (x, y) = (active[a].len() as f64, active[b].len() as f64);
            let joint = entropy([both, x - both, y - both, total - x - y + both], total);
            all.push((own[a] + own[b] - joint).max(0.0));
        }
    }
    Some(Spread::of(&all))
}

/// Degrees and clustering of a population's cells.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Graph {
    /// Synapses onto a cell.
    pub in_degree: Spread,
    /// Synapses of a cell.
    pub out_degree: Spread,
    /// The share of pairs of neighbours that are neighbours, in the graph where two cells are neighbours if there is a synapse
    /// between them in any direction: the mean over (at most [`CLUSTERED`] of all) cells with two neighbours or more. None
    /// where the network is too large.
    pub clustering: Option<f64>,
}

/// Degrees and clustering of each population of `plan`.
///
/// # Errors
/// `OutOfMemory` before anything is allocated.
pub fn graph(plan: &Plan) -> Result<Vec<Graph>> {
    let cells = plan.cells() as usize;
    // Degrees, twice as f64, and the heads of lists; an edge, in a list that grows by doubling, and from both its ends.
    let edges = if plan.expected_synapses() <= MOST_SYNAPSES { plan.expected_synapses() } else { 0.0 };
    let asked = (48.0 * cells as f64 + 24.0 * edges) as u64;
    crate::memory::require(asked, || format!("the graph of {cells} cells and {edges:.1e} synapses"))?;
    let (mut ins, mut outs) = (vec![0u32; cells], vec![0u32; cells]);
    let cluster = plan.expected_synapses() <= MOST_SYNAPSES;
    let mut edges: Vec<u64> = Vec::new();
    for (i, p) in plan.network.projections.iter().enumerate() {
        let (first, onto) = (plan.first[p.source], plan.first[p.target]);
        let all = 0..plan.network.populations[p.target].size;
        connect::rows::enumerate(plan, i, all, &mut |s, t, _, _| {
            let (s, t) = (first + u64::from(s), onto + u64::from(t));
            outs[s as usize] += 1;
            ins[t as usize] += 1;
            if cluster && s != t {
                edges.push(s.min(t) << 32 | s.max(t));
            }
        });
    }
    edges.sort_unstable();
    edges.dedup();
    let neighbours = Neighbours::new(cells, &edges);
    drop(edges);
    let every = cells.div_ceil(CLUSTERED).max(1);
    let mut marked = vec![false; cells];
    let of = |p: usize, marked: &mut Vec<bool>| {
        let range = plan.first[p] as usize..plan.first[p] as usize + plan.network.populations[p].size as usize;
        let degrees = |d: &[u32]| Spread::of(&d[range.clone()].iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
        let mut local = Vec::new();
        // At least some of a small population.
        let step = every.min(range.len().div_ceil(10).max(1));
        for cell in range.clone().step_by(step).filter(|_| cluster) {
            local.extend(neighbours.clustering(cell, marked));
        }
        let clustering = cluster.then(|| Spread::of(&local).mean);
        Graph { in_degree: degrees(&ins), out_degree: degrees(&outs), clustering }
    };
    Ok((0..plan.first.len()).map(|p| of(p, &mut marked)).collect())
}

/// The neighbours of every cell.
struct Neighbours {
    first: Vec<usize>,
    list: Vec<u32>,
}

impl Neighbours {
    /// Of edges `lower << 32 | higher`, each once.
    fn new(cells: usize, edges: &[u64]) -> Self {
        let mut first = vec![0usize; cells + 1];
        let ends = |e: &u64| [(e >> 32) as usize, (e & 0xFFFF_FFFF) as usize];
        edges.iter().flat_map(ends).for_each(|cell| first[cell + 1] += 1);
        (0..cells).for_each(|i| first[i + 1] += first[i]);
        let mut next = first.clone();
        let mut list = vec![0u32; edges.len() * 2];
        for [a, b] in edges.iter().map(ends) {
            (list[next[a]], list[next[b]]) = (b as u32, a as u32);
            next[a] += 1;
            next[b] += 1;
        }
        Self { first, list }
    }
    fn of(&self, cell: usize) -> &[u32] {
        &self.list[self.first[cell]..self.first[cell + 1]]
    }
    /// The share of pairs of a cell's neighbours that are neighbours; none for fewer than two. `marked` is false before and
    /// after.
    fn clustering(&self, cell: usize, marked: &mut [bool]) -> Option<f64> {
        let own = self.of(cell);
        if own.len() < 2 {
            return None;
        }
        own.iter().for_each(|n| marked[*n as usize] = true);
        let joined: usize =
            own.iter().map(|n| self.of(*n as usize).iter().filter(|m| marked[**m as usize]).count()).sum();
        own.iter().for_each(|n| marked[*n as usize] = false);
        // Each pair was seen from both sides.
        Some(joined as f64 / (own.len() as f64 * (own.len() as f64 - 1.0)))
    }
}

#[cfg(test)]
#[path = "analysis_tests.rs"]
mod tests;
