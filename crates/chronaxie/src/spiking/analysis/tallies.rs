//! What is counted of spike trains: whole numbers, alike from every backend, of which all measures are made.

use super::{Options, PAIRED, Trains};

/// Trains, and how they are looked at.
pub(super) struct Frame<'a> {
    pub trains: &'a Trains,
    pub options: &'a Options,
    /// The first cell of each population, and how many there are.
    pub first: &'a [u64],
    pub bins: u64,
}

impl Frame<'_> {
    /// The cells of a population.
    pub fn cells(&self, population: usize) -> std::ops::Range<usize> {
        self.first[population] as usize..self.first[population + 1] as usize
    }
    /// How many of them are looked at in pairs.
    pub fn paired(&self, population: usize) -> usize {
        self.cells(population).len().min(PAIRED)
    }
    pub fn bin(&self) -> u64 {
        self.options.bin.max(1)
    }
}

/// What was counted of a cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub bursts: u32,
    /// Spikes that are part of one.
    pub in_bursts: u32,
    /// Bins in which it fires.
    pub fired: u32,
}

/// `x << 32 | y`, and in how many bins x cells of one population fire and y of another; by the former.
pub(super) type Pairs = Vec<(u64, u32)>;

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tallies {
    /// Where each cell's spikes begin in `steps`, and how many there are.
    pub begin: Vec<u64>,
    /// The steps of all spikes from the start on, cell after cell, each one's in order.
    pub steps: Vec<u32>,
    pub cells: Vec<Cell>,
    /// Of each population, how many cells fire in each bin.
    pub counts: Vec<Vec<u32>>,
    /// Of each population, `[paired, paired]`: for a < b in how many bins both fire.
    pub together: Vec<Vec<u32>>,
    /// Of populations a and b <= a.
    pub joint: Vec<Vec<Pairs>>,
}

impl Tallies {
    pub fn on_cpu(f: &Frame<'_>) -> Self {
        let mut t = Self {
            begin: begins(f),
            cells: vec![Cell::default(); f.first[f.first.len() - 1] as usize],
            ..Self::default()
        };
        t.steps = vec![0; f.trains.spikes.len()];
        let mut at = t.begin.clone();
        for s in &f.trains.spikes {
            let place = &mut at[s.cell as usize];
            t.steps[*place as usize] = (s.step - f.trains.start) as u32;
            *place += 1;
        }
        for p in 0..f.trains.sizes.len() {
            let (counts, together) = t.population(f, p);
            t.counts.push(counts);
            t.together.push(together);
        }
        for a in 0..t.counts.len() {
            t.joint.push(t.counts[..=a].iter().map(|b| joint(&t.counts[a], b)).collect());
        }
        t
    }

    /// The steps of a cell.
    pub fn train(&self, cell: usize) -> &[u32] {
        &self.steps[self.begin[cell] as usize..self.begin[cell + 1] as usize]
    }

    fn population(&mut self, f: &Frame<'_>, p: usize) -> (Vec<u32>, Vec<u32>) {
        let (mut counts, paired) = (vec![0u32; f.bins as usize], f.paired(p));
        // A bin after the other, cells that fire in it: their pairs.
        let mut active: Vec<(u32, u32)> = Vec::new();
        for (k, c) in f.cells(p).enumerate() {
            let (train, mut cell) = (self.train(c), Cell::default());
            for burst in train.chunk_by(|a, b| u64::from(b - a) <= f.options.burst_interval) {
                if burst.len() >= f.options.burst_spikes {
                    cell.bursts += 1;
                    cell.in_bursts += burst.len() as u32;
                }
            }
            let mut last = u64::MAX;
            for bin in train.iter().map(|s| u64::from(*s) / f.bin()).filter(|bin| *bin < f.bins) {
                if bin == last {
                    continue;
                }
                last = bin;
                cell.fired += 1;
                counts[bin as usize] += 1;
                if k < paired {
                    active.push((bin as u32, k as u32));
                }
            }
            self.cells[c] = cell;
        }
        active.sort_unstable();
        let mut together = vec![0u32; paired * paired];
        for bin in active.chunk_by(|x, y| x.0 == y.0) {
            for (i, (_, a)) in bin.iter().enumerate() {
                bin[i + 1..].iter().for_each(|(_, b)| together[*a as usize * paired + *b as usize] += 1);
            }
        }
        (counts, together)
    }
}

/// Where the spikes of each cell begin.
pub(super) fn begins(f: &Frame<'_>) -> Vec<u64> {
    let mut begin = vec![0u64; f.first[f.first.len() - 1] as usize + 1];
    f.trains.spikes.iter().for_each(|s| begin[s.cell as usize + 1] += 1);
    for i in 1..begin.len() {
        begin[i] += begin[i - 1];
    }
    begin
}

fn joint(a: &[u32], b: &[u32]) -> Vec<(u64, u32)> {
    let mut all: Vec<u64> = a.iter().zip(b).map(|(x, y)| u64::from(*x) << 32 | u64::from(*y)).collect();
    all.sort_unstable();
    all.chunk_by(|x, y| x == y).map(|some| (some[0], some.len() as u32)).collect()
}
