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
use crate::{Device, Error, Result};
use serde::Serialize;
use tallies::{Frame, Tallies};

pub mod cuda;
mod tallies;

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
    /// Of all intervals of all cells, ms; none where no cell fired twice.
    pub interval_ms: Option<Spread>,
    /// Half of the intervals are shorter, ms; none likewise.
    pub interval_median_ms: Option<f64>,
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
/// What is counted is counted on `device`, and is the same on every one; means, deviations and information are made of it on the host.
///
/// # Errors
/// `Config` for more than 2^28 bins or 2^32 - 1 steps; `OutOfMemory` before anything is allocated; `Value` for a spike of no cell
/// or no step; what the device refuses.
pub fn analyze(trains: &Trains, options: &Options, device: &Device) -> Result<Analysis> {
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
    if steps > u64::from(u32::MAX) {
        return Err(Error::config(format!("{steps} steps are more than the 2^32 - 1 that can be analyzed at once")));
    }
    crate::memory::require(bytes(trains, &first, bins), || {
        let (spikes, populations) = (trains.spikes.len(), trains.sizes.len());
        format!("an analysis of {spikes} spikes of {cells} cells in {populations} populations, in {bins} bins,")
    })?;
    let frame = Frame { trains, options, first: &first, bins };
    let tallies = match device {
        Device::Cpu => Tallies::on_cpu(&frame),
        Device::Cuda(device) => cuda::tallies(&frame, device)?,
    };
    let mut analysis = Analysis { bins, ..Analysis::default() };
    for p in 0..trains.sizes.len() {
        let (measures, intervals) = population(&frame, &tallies, p);
        analysis.populations.push(measures);
        analysis.intervals_ms.push(intervals);
    }
    let own: Vec<f64> = tallies.counts.iter().map(|counts| count_entropy(counts, bins)).collect();
    let mut shared = vec![vec![0.0; own.len()]; own.len()];
    for (a, list) in tallies.joint.iter().enumerate() {
        for (b, often) in list.iter().enumerate() {
            let both = entropy(often.iter().map(|(_, count)| f64::from(*count)), bins as f64);
            shared[a][b] = (own[a] + own[b] - both).max(0.0);
            shared[b][a] = shared[a][b];
        }
    }
    analysis.mutual_information_bits = shared;
    Ok(analysis)
}

fn count_entropy(counts: &[u32], bins: u64) -> f64 {
    let mut often = vec![0.0; counts.iter().max().map_or(0, |most| *most as usize + 1)];
    counts.iter().for_each(|c| often[*c as usize] += 1.0);
    entropy(often, bins as f64)
}

/// The measures of a population, and its intervals, ms.
fn population(f: &Frame<'_>, t: &Tallies, p: usize) -> (Measures, Vec<f64>) {
    let (dt_ms, bins, range) = (f.trains.dt_ms, f.bins as f64, f.cells(p));
    let seconds = f.trains.stop.saturating_sub(f.trains.start) as f64 * dt_ms * 1e-3;
    let n = range.len() as f64;
    let mut m = Measures::default();
    let (mut intervals, mut cvs, mut rates, mut entropies) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut variances, mut in_bursts, mut spikes) = (0.0, 0u64, 0u64);
    for c in range.clone() {
        let (train, cell) = (t.train(c), t.cells[c]);
        rates.push(if seconds > 0.0 { train.len() as f64 / seconds } else { 0.0 });
        spikes += train.len() as u64;
        let own: Vec<f64> = train.windows(2).map(|w| f64::from(w[1] - w[0]) * dt_ms).collect();
        if train.len() >= LEAST_SPIKES as usize {
            let spread = Spread::of(&own);
            cvs.push(spread.sd / spread.mean);
        }
        intervals.extend(own);
        m.bursts.count += u64::from(cell.bursts);
        in_bursts += u64::from(cell.in_bursts);
        let fired = f64::from(cell.fired);
        let share = if bins > 0.0 { fired / bins } else { 0.0 };
        variances += share * (1.0 - share);
        entropies.push(if bins > 0.0 { entropy([fired, bins - fired], bins) } else { 0.0 });
    }
    m.rate_hz = Spread::of(&rates);
    let silent = range.clone().filter(|c| t.train(*c).is_empty()).count();
    m.silent = if range.is_empty() { 0.0 } else { silent as f64 / n };
    m.interval_ms = (!intervals.is_empty()).then(|| Spread::of(&intervals));
    let mut sorted = intervals.clone();
    sorted.sort_by(f64::total_cmp);
    m.interval_median_ms = match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[len / 2]),
        len => Some(0.5 * (sorted[len / 2 - 1] + sorted[len / 2])),
    };
    m.cv = (!cvs.is_empty()).then(|| Spread::of(&cvs));
    let shares: Vec<f64> = t.counts[p].iter().map(|c| f64::from(*c)).collect();
    let spread = Spread::of(&shares);
    let (variance, mean) = (spread.sd * spread.sd, spread.mean);
    m.synchrony.variance = if n > 0.0 { variance / (n * n) } else { 0.0 };
    m.synchrony.chi = if variances > 0.0 { (m.synchrony.variance / (variances / n)).sqrt() } else { 0.0 };
    m.synchrony.fano = if mean > 0.0 { variance / mean } else { 0.0 };
    m.bursts.spikes = if m.bursts.count > 0 { in_bursts as f64 / m.bursts.count as f64 } else { 0.0 };
    m.bursts.share = if spikes > 0 { in_bursts as f64 / spikes as f64 } else { 0.0 };
    m.bursts.rate_hz = if seconds > 0.0 && n > 0.0 { m.bursts.count as f64 / n / seconds } else { 0.0 };
    m.entropy_bits = Spread::of(&entropies);
    m.population_entropy_bits = count_entropy(&t.counts[p], f.bins);
    m.mutual_information_bits = pairs(f, t, p);
    (m, intervals)
}

/// The mutual information of each pair of binary trains among the first cells of a population.
fn pairs(f: &Frame<'_>, t: &Tallies, p: usize) -> Option<Spread> {
    let (n, total) = (f.paired(p), f.bins as f64);
    if n < 2 || f.bins == 0 {
        return None;
    }
    let fired: Vec<f64> = t.cells[f.cells(p)][..n].iter().map(|cell| f64::from(cell.fired)).collect();
    let own: Vec<f64> = fired.iter().map(|x| entropy([*x, total - x], total)).collect();
    let mut all = Vec::with_capacity(n * (n - 1) / 2);
    for a in 0..n {
        for b in a + 1..n {
            let (both, x, y) = (f64::from(t.together[p][a * n + b]), fired[a], fired[b]);
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

/// Degrees and clustering of each population of `plan`; counted on `device`, alike on every one. A GPU counts the clustering of larger
/// networks too, as far as its memory goes.
///
/// # Errors
/// `OutOfMemory` before anything is allocated; what the device refuses.
pub fn graph(plan: &Plan, device: &Device) -> Result<Vec<Graph>> {
    let samples = Samples::new(plan);
    let found = match device {
        Device::Cpu => Joined::on_cpu(plan, &samples)?,
        Device::Cuda(device) => cuda::joined(plan, &samples, device)?,
    };
    Ok((0..plan.first.len()).map(|p| found.graph(plan, &samples, p)).collect())
}

/// The cells whose clustering is counted.
struct Samples {
    cells: Vec<u32>,
    /// Where each population's begin, and how many there are.
    first: Vec<usize>,
}

impl Samples {
    fn new(plan: &Plan) -> Self {
        let every = (plan.cells() as usize).div_ceil(CLUSTERED).max(1);
        let (mut cells, mut first) = (Vec::new(), vec![0]);
        for (p, population) in plan.network.populations.iter().enumerate() {
            let (begin, size) = (plan.first[p] as u32, population.size);
            // At least some of a small population.
            let step = every.min((size as usize).div_ceil(10).max(1));
            cells.extend((begin..begin + size).step_by(step));
            first.push(cells.len());
        }
        Self { cells, first }
    }
}

/// What is counted of a network.
#[derive(Debug, PartialEq)]
struct Joined {
    ins: Vec<u32>,
    outs: Vec<u32>,
    /// Of each sample its neighbours, and pairs of those that are neighbours; none where the network is too large.
    samples: Option<Vec<[u32; 2]>>,
}

impl Joined {
    fn on_cpu(plan: &Plan, samples: &Samples) -> Result<Self> {
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
        let mut marked = vec![false; cells];
        let counted = || samples.cells.iter().map(|cell| neighbours.closed(*cell as usize, &mut marked)).collect();
        Ok(Self { ins, outs, samples: cluster.then(counted) })
    }

    fn graph(&self, plan: &Plan, samples: &Samples, p: usize) -> Graph {
        let range = plan.first[p] as usize..plan.first[p] as usize + plan.network.populations[p].size as usize;
        let degrees = |d: &[u32]| Spread::of(&d[range.clone()].iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
        let share = |[k, closed]: &[u32; 2]| {
            // Of two neighbours or more; each of their pairs is seen from both sides.
            let k = f64::from(*k);
            (k >= 2.0).then(|| 2.0 * f64::from(*closed) / (k * (k - 1.0)))
        };
        let mean = |all: &Vec<[u32; 2]>| {
            let local: Vec<f64> = all[samples.first[p]..samples.first[p + 1]].iter().filter_map(share).collect();
            Spread::of(&local).mean
        };
        Graph {
            in_degree: degrees(&self.ins),
            out_degree: degrees(&self.outs),
            clustering: self.samples.as_ref().map(mean),
        }
    }
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
    /// How many neighbours a cell has, and how many pairs of those are neighbours. `marked` is false before and after.
    fn closed(&self, cell: usize, marked: &mut [bool]) -> [u32; 2] {
        let own = self.of(cell);
        own.iter().for_each(|n| marked[*n as usize] = true);
        let joined: usize =
            own.iter().map(|n| self.of(*n as usize).iter().filter(|m| marked[**m as usize]).count()).sum();
        own.iter().for_each(|n| marked[*n as usize] = false);
        // Each pair was seen from both sides.
        [own.len() as u32, (joined / 2) as u32]
    }
}

#[cfg(test)]
#[path = "analysis_tests.rs"]
mod tests;
