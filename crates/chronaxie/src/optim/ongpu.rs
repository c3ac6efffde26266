//! Blocks as tables in a device's memory, for the kernels of stepper.cuh.

use super::blocks::{Block, Grid};
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Kernel, LaunchConfig, upload};
use crate::kernels::{Header, SUMS};
use crate::{Error, Result};
use std::sync::Arc;

/// What launches: a kernel, how, and its arguments.
pub(super) type Visit<'a> = &'a mut dyn FnMut(&Kernel, LaunchConfig, &[Arg<'_>]) -> Result<()>;

/// What the kernels of steps include.
pub(super) const STEPPER: Header = ("stepper.cuh", include_str!("stepper.cuh"));
pub(super) const HEADERS: &[Header] = &[SUMS, STEPPER];
/// What the kernels over the two sides of a linear map include.
pub(super) const MAP_HEADERS: &[Header] = &[SUMS, STEPPER, ("channels.cuh", include_str!("channels.cuh"))];
/// What the kernels of steps over blocks with factors include.
pub(super) const ONBLOCK: Header = ("onblock.cuh", include_str!("onblock.cuh"));
pub(super) const BLOCK_HEADERS: &[Header] = &[SUMS, STEPPER, ONBLOCK];
/// As in stepper.cuh.
pub(super) const THREADS: u32 = 256;
pub(super) const TILE: usize = 64;
const AXES: usize = 6;
pub(super) const CHUNK: usize = 4096;

/// A list of entries with the number of the first job of each: which of them a thread block works on follows from its own number.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// Where the entries lie, and where the numbers of their first jobs.
    pub of: u64,
    pub first: u64,
    /// Entries.
    pub count: usize,
    /// Jobs of all of them.
    pub jobs: usize,
}

/// All of a grid's tables, one allocation.
pub(super) struct Tables {
    /// Holds them.
    _buffer: DeviceBuffer,
    pub blocks: u64,
    /// Tiles of the triangle of every axis; an entry is a block times 6 and its axis.
    pub gram: Jobs,
    /// By axis, tiles of the products along it; an entry is a block.
    pub along: Vec<Jobs>,
    /// Runs of elements; an entry is a block.
    pub chunks: Jobs,
    /// By pool, where the factors lie, and the members whose turn it is, by step modulo the frequency.
    pub pools: Vec<Turns>,
}

/// The turns of a pool.
#[derive(Debug)]
pub(super) struct Turns {
    /// `[members]`.
    pub factors: u64,
    /// `[every, rows]`.
    pub due: u64,
    /// The most members of a turn.
    pub rows: usize,
}

/// The numbers of a table that is being made.
#[derive(Default)]
pub(super) struct Words(pub Vec<i64>);

impl Words {
    pub fn push(&mut self, words: impl IntoIterator<Item = usize>) -> usize {
        let at = self.0.len();
        self.0.extend(words.into_iter().map(|w| w as i64));
        at
    }
    /// Entries with how many jobs each has, but for those that have none.
    pub fn jobs(&mut self, list: impl IntoIterator<Item = (usize, usize)>) -> Result<Jobs> {
        let (entries, sizes): (Vec<usize>, Vec<usize>) = list.into_iter().filter(|&(_, jobs)| jobs > 0).unzip();
        let mut first = vec![0];
        sizes.iter().for_each(|n| first.push(first.last().copied().unwrap_or(0) + n));
        let jobs = first.last().copied().unwrap_or(0);
        if jobs > i32::MAX as usize {
            return Err(Error::shape(format!(
                "blocks: {jobs} tiles of products exceed what a grid of thread blocks has"
            )));
        }
        let count = entries.len();
        Ok(Jobs { of: self.push(entries) as u64, first: self.push(first) as u64, count, jobs })
    }
}

fn words(b: &Block) -> Vec<usize> {
    let six = |list: &[usize], rest: usize| {
        let mut all = [rest; AXES];
        all[..list.len()].copy_from_slice(list);
        all
    };
    let mut all = vec![b.first, b.elements(), b.sizes.len(), b.factors.len()];
    all.extend([six(&b.sizes, 1), six(&b.strides, 0), six(&b.factors, 0), six(&b.roots, 0)].concat());
    all
}

/// Tiles of the product along an axis of a block.
fn tiles_along(b: &Block, axis: usize, tile: usize) -> usize {
    b.sizes[axis].div_ceil(tile) * (b.elements() / b.sizes[axis]).div_ceil(tile)
}

/// Whether tiles of twice the side fill a device's multiprocessors twice over, and are hardly more to compute.
pub(super) fn wide(grid: &Grid, sms: usize) -> bool {
    let with = || grid.blocks.iter().filter(|b| !b.factors.is_empty());
    let all = |tile: usize| with().map(|b| tiles_along(b, 0, tile)).sum::<usize>();
    all(2 * TILE) >= 2 * sms && 16 * all(2 * TILE) <= 5 * all(TILE)
}

impl Tables {
    /// The tables of `grid` where each block's turn comes every `every` steps, tiles are `tile` x `tile`, and only blocks that are
    /// `taken` have jobs.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        grid: &Grid,
        every: usize,
        tile: usize,
        taken: &dyn Fn(&Block) -> bool,
    ) -> Result<Self> {
        let mut w = Words::default();
        let blocks = w.push(grid.blocks.iter().flat_map(words));
        let those = || grid.blocks.iter().enumerate().filter(|(_, b)| taken(b));
        let with = || those().filter(|(_, b)| !b.factors.is_empty());
        let triangle = |n: usize| n.div_ceil(tile) * (n.div_ceil(tile) + 1) / 2;
        let axes = |(i, b): (usize, &Block)| {
            (0..b.factors.len()).map(|k| (i * AXES + k, triangle(b.sizes[k]))).collect::<Vec<_>>()
        };
        let mut gram = w.jobs(with().flat_map(axes))?;
        let order = with().map(|(_, b)| b.sizes.len()).max().unwrap_or(0);
        let tiles = |b: &Block, k: usize| tiles_along(b, k, tile);
        let mut along = Vec::new();
        for k in 0..order {
            along.push(w.jobs(with().filter(|(_, b)| b.sizes.len() > k).map(|(i, b)| (i, tiles(b, k))))?);
        }
        let mut chunks = w.jobs(those().map(|(i, b)| (i, b.elements().div_ceil(CHUNK))))?;
        let mut pools = Vec::new();
        for pool in &grid.pools {
            let factors = w.push(pool.members.iter().map(|&(b, axis)| grid.blocks[b].factors[axis])) as u64;
            let due = |step: usize| {
                let is = |&(_, &(b, _)): &(usize, &(usize, usize))| grid.blocks[b].due(step, every);
                pool.members.iter().enumerate().filter(is).map(|(i, _)| i as i64).collect::<Vec<_>>()
            };
            let turns: Vec<Vec<i64>> = (0..every).map(due).collect();
            let rows = turns.iter().map(Vec::len).max().unwrap_or(0);
            let at = w.0.len() as u64;
            for mut turn in turns {
                turn.resize(rows, -1);
                w.0.extend(turn);
            }
            pools.push(Turns { factors, due: at, rows });
        }
        if w.0.is_empty() {
            w.0.push(0);
        }
        let buffer = upload(device, &w.0, [w.0.len()])?;
        let address = |words: u64| buffer.address() + 8 * words;
        for jobs in along.iter_mut().chain([&mut gram, &mut chunks]) {
            (jobs.of, jobs.first) = (address(jobs.of), address(jobs.first));
        }
        for turns in &mut pools {
            (turns.factors, turns.due) = (address(turns.factors), address(turns.due));
        }
        let blocks = address(blocks as u64);
        Ok(Self { _buffer: buffer, blocks, gram, along, chunks, pools })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::blocks::{Cut, Parameter};

    /// A block's words are what stepper.cuh reads: 4 numbers and 4 lists of 6.
    #[test]
    fn a_block_is_28_words() {
        let cut = Cut { most: 4, merge: false, vectors: true };
        let grid = Grid::new(&[Parameter::new(7, [3, 2])], cut).unwrap();
        let w = words(&grid.blocks[0]);
        assert_eq!(w.len(), 28);
        assert_eq!(w[..6], [7, 6, 2, 2, 3, 2]);
        assert_eq!(w[10..12], [2, 1]);
        assert_eq!((w[16], w[17]), (0, 6));
    }

    /// Wide tiles are for many blocks whose sides they divide, nearly.
    #[test]
    fn wide_tiles_are_for_large_blocks() {
        let cut = |most| Cut { most, merge: false, vectors: false };
        let is = |shape: [usize; 2], most| wide(&Grid::new(&[Parameter::new(0, shape)], cut(most)).unwrap(), 132);
        assert!(is([4096, 4096], 1024) && is([4096, 4096], 256) && is([2048, 4096], 128));
        assert!(!is([4096, 4096], 64) && !is([2048, 1024], 1024) && !is([4096, 4096], 160));
    }

    #[test]
    fn jobs_without_work_are_left_out() {
        let mut words = Words::default();
        let jobs = words.jobs([(4, 2), (5, 0), (6, 3)]).unwrap();
        assert_eq!((jobs.count, jobs.jobs, words.0), (2, 5, vec![4, 6, 0, 2, 5]));
        assert!(Words::default().jobs([(0, usize::MAX / 2)]).is_err());
    }
}
