//! What the kernels of a step know of maps and other parameters: tables in a device's memory.

use crate::cuda::{CudaDevice, DeviceBuffer, upload};
use crate::optim::blocks::packed;
use crate::optim::kfac::spec::{Kfac, Map};
use crate::optim::ongpu::{CHUNK, TILE, Words};
use crate::{Error, Result};
use std::sync::Arc;

/// Jobs of entries in their order, which may have none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Jobs {
    /// Where the numbers of the entries' first jobs lie, and behind them how many there are.
    pub first: u64,
    /// Entries, and jobs of all of them.
    pub count: usize,
    pub jobs: usize,
}

/// All tables, one allocation.
pub(super) struct Tables {
    /// Holds them.
    _buffer: DeviceBuffer,
    pub maps: u64,
    pub others: u64,
    /// Runs of A, of G and of the squares of each map.
    pub parts: Jobs,
    /// By map, runs of its elements, and tiles.
    pub chunks: Jobs,
    pub tiles: Jobs,
    /// By parameter that is no map, runs of its elements.
    pub rest: Jobs,
    /// `[every, rows]`, whose turn it is; and by thread block where its workspace begins.
    pub turns: u64,
    pub work_at: u64,
}

/// Elements of a map's weight and bias.
pub(super) fn elements(m: &Map) -> usize {
    m.rows * m.inputs()
}

/// By turn the sides (2 map + side), the largest first; and the lengths of the longest turn's sides, of any turn the largest.
pub(super) fn turns(p: &Kfac, every: usize) -> (Vec<Vec<usize>>, Vec<usize>) {
    let order = |side: usize| if side.is_multiple_of(2) { p.maps[side / 2].inputs() } else { p.maps[side / 2].rows };
    let mut all = Vec::with_capacity(every);
    let mut sizes: Vec<usize> = Vec::new();
    for turn in 0..every {
        // Of no element there is nothing to solve.
        let mut sides: Vec<usize> =
            (0..2 * p.maps.len()).filter(|s| (turn + s / 2).is_multiple_of(every) && order(*s) > 0).collect();
        sides.sort_by_key(|&s| std::cmp::Reverse(order(s)));
        sizes.resize(sizes.len().max(sides.len()), 0);
        sizes.iter_mut().zip(&sides).for_each(|(most, &s)| *most = (*most).max(order(s)));
        all.push(sides);
    }
    (all, sizes)
}

/// Numbers of first jobs.
fn starts(w: &mut Words, jobs: impl IntoIterator<Item = usize>) -> Result<Jobs> {
    let mut first = vec![0usize];
    for n in jobs {
        first.push(first[first.len() - 1].saturating_add(n));
    }
    let (count, jobs) = (first.len() - 1, first[first.len() - 1]);
    if jobs > i32::MAX as usize {
        return Err(Error::shape(format!("kfac: {jobs} tiles of products exceed what a grid of thread blocks has")));
    }
    Ok(Jobs { first: w.push(first) as u64, count, jobs })
}

impl Tables {
    /// The tables of `p` whose turns come every `every` steps, where `work_at` says where blocks have their workspace.
    pub(super) fn new(device: &Arc<CudaDevice>, p: &Kfac, every: usize, work_at: &[usize]) -> Result<Self> {
        let mut w = Words::default();
        let mut start = 0;
        for (m, at) in p.maps.iter().zip(&p.places.maps) {
            w.push([m.weight]);
            w.0.push(m.bias.map_or(-1, |b| b as i64));
            w.push([m.rows, m.columns, m.inputs(), at.a, at.g, at.basis_a, at.basis_g, at.values_a, at.values_g]);
            w.push([at.squares, start]);
            start += elements(m);
        }
        let list = p.others();
        let mut others = w.push(list.iter().flat_map(|&(first, count)| [first, count])) as u64;
        let chunks = |n: usize| n.div_ceil(CHUNK);
        // The first run of A also moves the count: there is one of every map.
        let of = |m: &Map| {
            [chunks(packed(m.inputs())).max(1), chunks(packed(m.rows)), if p.ekfac { chunks(elements(m)) } else { 0 }]
        };
        let mut parts = starts(&mut w, p.maps.iter().flat_map(of))?;
        let mut of_maps = starts(&mut w, p.maps.iter().map(|m| chunks(elements(m))))?;
        let mut tiles = starts(&mut w, p.maps.iter().map(|m| m.rows.div_ceil(TILE) * m.inputs().div_ceil(TILE)))?;
        let mut rest = starts(&mut w, list.iter().map(|&(_, count)| chunks(count)))?;
        let (all, sizes) = turns(p, every);
        let mut turns = w.0.len() as u64;
        for sides in all {
            let mut row: Vec<i64> = sides.iter().map(|&s| s as i64).collect();
            row.resize(sizes.len(), -1);
            w.0.extend(row);
        }
        let mut work_at = w.push(work_at.iter().copied()) as u64;
        let buffer = upload(device, &w.0, [w.0.len()])?;
        let address = |words: &mut u64| *words = buffer.address() + 8 * *words;
        for jobs in [&mut parts, &mut of_maps, &mut tiles, &mut rest] {
            address(&mut jobs.first);
        }
        for words in [&mut others, &mut turns, &mut work_at] {
            address(words);
        }
        let maps = buffer.address();
        Ok(Self { _buffer: buffer, maps, others, parts, chunks: of_maps, tiles, rest, turns, work_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::blocks::Parameter;

    /// Each side has one turn, in which the largest is the first.
    #[test]
    fn sides_take_turns() {
        let map = |weight, rows, columns| Map { weight, rows, columns, bias: None };
        let maps = vec![map(0, 2, 9), map(64, 3, 4), map(128, 7, 0), map(192, 1, 1)];
        let parameters = maps.iter().map(|m| Parameter::new(m.weight, [m.rows, m.columns])).collect();
        let p = Kfac::new(256, parameters, maps).build().unwrap();
        // Map 2 reads nothing: it has no A.
        assert_eq!(turns(&p, 1), (vec![vec![0, 5, 2, 3, 1, 6, 7]], vec![9, 7, 4, 3, 2, 1, 1]));
        assert_eq!(turns(&p, 3), (vec![vec![0, 1, 6, 7], vec![5], vec![2, 3]], vec![9, 3, 1, 1]));
        for step in 1..7 {
            let (all, _) = turns(&p, 3);
            let is = |l: usize| all[(step - 1) % 3].iter().any(|s| s / 2 == l);
            assert!((0..4).all(|l| is(l) == Kfac { inverse_frequency: 3, ..p.clone() }.solves(step, l)), "{step}");
        }
    }
}
