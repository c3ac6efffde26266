//! Statistics of spike trains: rates, interspike intervals, correlations.

use super::network::Network;
use super::simulate::{Spike, runs};

/// Cells of a population whose spike counts are correlated pair by pair.
pub const CORRELATED: usize = 250;
/// The width of the bins of counts, ms.
pub const BIN_MS: f64 = 2.0;
/// A cell needs so many spikes for its intervals to count.
pub const LEAST_SPIKES: u32 = 6;

/// Gathers the statistics of all populations in one pass over sorted spikes.
#[derive(Debug, Clone)]
pub struct Gatherer {
    first: Vec<u64>,
    sizes: Vec<u32>,
    from: u64,
    dt_ms: f64,
    steps_a_bin: u64,
    cells: Vec<Cell>,
    pairs: Vec<Pairs>,
    bin: u64,
    /// The first step behind it.
    bin_end: u64,
}

/// The intervals of a cell, in steps.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    spikes: u32,
    last: u64,
    sum: f64,
    squares: f64,
}

/// Sums of counts, and of their products, of the first cells of a population.
#[derive(Debug, Clone)]
struct Pairs {
    n: usize,
    now: Vec<u32>,
    active: Vec<u16>,
    sums: Vec<f64>,
    products: Vec<f64>,
}

impl Pairs {
    fn close_bin(&mut self) {
        for (i, &a) in self.active.iter().enumerate() {
            let x = f64::from(self.now[a as usize]);
            self.sums[a as usize] += x;
            for &b in &self.active[i..] {
                let (low, high) = (a.min(b) as usize, a.max(b) as usize);
                self.products[low * self.n + high] += x * f64::from(self.now[b as usize]);
            }
        }
        self.active.iter().for_each(|a| self.now[*a as usize] = 0);
        self.active.clear();
    }
}

/// What was measured of a population.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statistics {
    /// Mean rate, Hz.
    pub rate_hz: f64,
    /// The rate of each cell, Hz.
    pub rates_hz: Vec<f64>,
    /// The coefficient of variation of intervals of each cell with at least [`LEAST_SPIKES`] spikes.
    pub cvs: Vec<f64>,
    /// The correlation of each pair among the first [`CORRELATED`] cells that fired.
    pub correlations: Vec<f64>,
}

impl Statistics {
    /// Mean of [`cvs`](Self::cvs); none where there is none.
    pub fn cv(&self) -> Option<f64> {
        mean(&self.cvs)
    }
    /// Mean of [`correlations`](Self::correlations); none where there is none.
    pub fn correlation(&self) -> Option<f64> {
        mean(&self.correlations)
    }
}

fn mean(x: &[f64]) -> Option<f64> {
    (!x.is_empty()).then(|| x.iter().sum::<f64>() / x.len() as f64)
}

impl Gatherer {
    /// For spikes from step `from` on.
    pub fn new(network: &Network, from: u64) -> Self {
        let sizes: Vec<u32> = network.populations.iter().map(|p| p.size).collect();
        let pairs = sizes.iter().map(|size| {
            let n = (*size as usize).min(CORRELATED);
            Pairs { n, now: vec![0; n], active: Vec::new(), sums: vec![0.0; n], products: vec![0.0; n * n] }
        });
        Self {
            first: network.first_cells(),
            from,
            dt_ms: network.dt_ms,
            steps_a_bin: (BIN_MS / network.dt_ms).round().max(1.0) as u64,
            cells: vec![Cell::default(); network.cells() as usize],
            pairs: pairs.collect(),
            sizes,
            bin: 0,
            bin_end: 0,
        }
    }

    /// Adds spikes, in order.
    pub fn add(&mut self, spikes: &[Spike]) {
        let spikes = &spikes[spikes.partition_point(|s| s.step < self.from)..];
        for (p, run) in runs(spikes, &self.first) {
            let (first, n) = (self.first[p] as usize, self.pairs[p].n);
            for spike in run {
                let cell = &mut self.cells[spike.cell as usize];
                if cell.spikes > 0 {
                    let interval = (spike.step - cell.last) as f64;
                    cell.sum += interval;
                    cell.squares += interval * interval;
                }
                (cell.spikes, cell.last) = (cell.spikes + 1, spike.step);
                if spike.step >= self.bin_end {
                    let bin = (spike.step - self.from) / self.steps_a_bin;
                    if bin != self.bin {
                        self.pairs.iter_mut().for_each(Pairs::close_bin);
                        self.bin = bin;
                    }
                    self.bin_end = self.from + (bin + 1) * self.steps_a_bin;
                }
                let own = spike.cell as usize - first;
                if own < n {
                    let pairs = &mut self.pairs[p];
                    pairs.now[own] += 1;
                    if pairs.now[own] == 1 {
                        pairs.active.push(own as u16);
                    }
                }
            }
        }
    }

    /// The statistics of each population over the time until step `end`.
    pub fn finish(mut self, end: u64) -> Vec<Statistics> {
        self.pairs.iter_mut().for_each(Pairs::close_bin);
        let steps = end.saturating_sub(self.from);
        let seconds = steps as f64 * self.dt_ms * 1e-3;
        let bins = steps.div_ceil(self.steps_a_bin) as f64;
        let mut all = Vec::new();
        for (p, size) in self.sizes.iter().enumerate() {
            let cells = &self.cells[self.first[p] as usize..][..*size as usize];
            if seconds <= 0.0 {
                all.push(Statistics::default());
                continue;
            }
            let rates_hz: Vec<f64> = cells.iter().map(|c| f64::from(c.spikes) / seconds).collect();
            let many = cells.iter().filter(|c| c.spikes >= LEAST_SPIKES);
            let cv = |c: &Cell| {
                let n = f64::from(c.spikes - 1);
                let mean = c.sum / n;
                ((c.squares / n - mean * mean).max(0.0)).sqrt() / mean
            };
            let total: u64 = cells.iter().map(|c| u64::from(c.spikes)).sum();
            all.push(Statistics {
                rate_hz: total as f64 / f64::from(*size) / seconds,
                cvs: many.map(cv).collect(),
                correlations: self.pairs[p].correlations(bins),
                rates_hz,
            });
        }
        all
    }
}

impl Pairs {
    fn correlations(&self, bins: f64) -> Vec<f64> {
        let covariance =
            |i: usize, j: usize| self.products[i * self.n + j] / bins - self.sums[i] / bins * (self.sums[j] / bins);
        let deviations: Vec<f64> = (0..self.n).map(|i| covariance(i, i).max(0.0).sqrt()).collect();
        let mut all = Vec::new();
        for i in (0..self.n).filter(|i| deviations[*i] > 0.0) {
            all.extend(
                (i + 1..self.n)
                    .filter(|j| deviations[*j] > 0.0)
                    .map(|j| covariance(i, j) / (deviations[i] * deviations[j])),
            );
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spiking::{Population, models};

    /// Trains whose statistics are known.
    #[test]
    fn statistics_of_known_trains() {
        let mut n = Network::new(1.0, 1).unwrap();
        n.add(Population::new("a", models::find("lif_exp").unwrap(), 4));
        n.add(Population::new("b", models::find("lif_exp").unwrap(), 1));
        let mut spikes = Vec::new();
        // Cells 0 and 1 fire together every 10 ms, cell 2 at intervals 5 and 15 in turn, cell 3 never, cell 4 once early.
        for k in 0..100u64 {
            spikes.extend([0, 1].map(|cell| Spike { step: 100 + 10 * k, cell }));
            spikes.push(Spike { step: 100 + 10 * k + if k % 2 == 1 { 5 } else { 0 }, cell: 2 });
        }
        spikes.push(Spike { step: 3, cell: 4 });
        spikes.sort_unstable();
        let mut g = Gatherer::new(&n, 100);
        spikes.chunks(7).for_each(|s| g.add(s));
        let s = g.finish(1100);
        assert_eq!(s[0].rates_hz, [100.0, 100.0, 100.0, 0.0]);
        assert_eq!((s[0].rate_hz, s[1].rate_hz), (75.0, 0.0));
        assert_eq!(s[0].cvs.len(), 3);
        assert!(s[0].cvs[0].abs() < 1e-9);
        // Intervals 15 and 5: 99 of them, 50 of 15.
        let mean: f64 = (50.0 * 15.0 + 49.0 * 5.0) / 99.0;
        let sd = ((50.0 * 225.0 + 49.0 * 25.0) / 99.0 - mean * mean).sqrt();
        assert!((s[0].cvs[2] - sd / mean).abs() < 1e-9);
        assert_eq!(s[0].correlations.len(), 3);
        assert!((s[0].correlations[0] - 1.0).abs() < 1e-9);
        // Of 500 bins each has 100 spikes, 50 of them together.
        let want = (50.0 / 500.0 - 0.04) / (0.2 - 0.04);
        assert!((s[0].correlations[1] - want).abs() < 1e-9, "{:?}", s[0].correlations);
        assert_eq!((s[1].cv(), s[1].correlation()), (None, None));
    }
}
