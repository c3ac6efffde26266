//! Cells with places, near to each other: a curve through them, and groups along it.

use super::{Layout, Load, cut};
use crate::Result;
use crate::spiking::plan::Plan;

/// A cell that lies somewhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub population: u32,
    pub cell: u32,
    pub at: [f32; 4],
}

/// All cells that lie somewhere.
pub(super) fn placed(plan: &Plan) -> Vec<Placed> {
    let populations = plan.network.populations.iter().enumerate();
    let of = populations.filter_map(|(i, p)| p.positions.as_ref().map(|at| (i, at)));
    let each = of.flat_map(|(population, at)| {
        let cell =
            move |(cell, at): (usize, &[f32; 4])| Placed { population: population as u32, cell: cell as u32, at: *at };
        at.iter().enumerate().map(cell)
    });
    each.collect()
}

/// The place of each cell along a Z-order curve: 16 bits of each coordinate, one after the other, of a cube around all.
pub(super) fn morton(cells: &[Placed]) -> Vec<u64> {
    let (mut low, mut high) = ([f32::INFINITY; 4], [f32::NEG_INFINITY; 4]);
    for c in cells {
        for d in 0..4 {
            (low[d], high[d]) = (low[d].min(c.at[d]), high[d].max(c.at[d]));
        }
    }
    let side = (0..4).map(|d| f64::from(high[d]) - f64::from(low[d])).fold(0.0, f64::max);
    let scale = if side > 0.0 { 65_535.0 / side } else { 0.0 };
    let key = |c: &Placed| {
        (0..4).fold(0u64, |key, d| {
            let x = ((f64::from(c.at[d]) - f64::from(low[d])) * scale) as u64;
            (0..16).fold(key, |key, bit| key | (x >> bit & 1) << (4 * bit + d))
        })
    };
    cells.iter().map(key).collect()
}

/// All cells that lie somewhere, along the curve.
pub(super) fn along(plan: &Plan) -> Vec<Placed> {
    let cells = placed(plan);
    let keys = morton(&cells);
    let mut order: Vec<u32> = (0..cells.len() as u32).collect();
    // Those of one place by their numbers.
    order.sort_by_key(|i| keys[*i as usize]);
    order.into_iter().map(|i| cells[i as usize]).collect()
}

/// The layout in which cell i of `cells` is in part `part[i]`, and populations that lie nowhere are cut evenly.
pub(super) fn layout(load: &Load<'_>, parts: usize, cells: &[Placed], part: &[u32]) -> Result<Layout> {
    let network = &load.plan.network;
    let even = Layout::even(network, parts);
    let mut owners: Vec<Vec<u32>> = (0..network.populations.len()).map(|p| even.owners(p)).collect();
    cells.iter().zip(part).for_each(|(c, part)| owners[c.population as usize][c.cell as usize] = *part);
    Layout::from_owners(network, parts, &owners)
}

/// Parts of equal work that follow each other in this order.
pub(super) fn ranges(load: &Load<'_>, parts: usize, cells: &[Placed]) -> Result<Layout> {
    let work = cells.iter().map(|c| load.work(c.population as usize, c.cell));
    layout(load, parts, cells, &cut(work, parts))
}

/// Cells that follow each other along the curve, taken together.
pub(super) struct Groups {
    /// All cells that lie somewhere, along the curve.
    pub cells: Vec<Placed>,
    /// The group of each.
    pub of: Vec<u32>,
    /// ns a step.
    pub work: Vec<f64>,
    /// The mean place.
    pub centre: Vec<[f64; 4]>,
}

impl Groups {
    /// At most `most` of them.
    pub fn new(load: &Load<'_>, most: usize) -> Self {
        let cells = along(load.plan);
        let count = cells.len().min(most).max(1);
        let of: Vec<u32> = (0..cells.len()).map(|i| (i * count / cells.len().max(1)) as u32).collect();
        let (mut work, mut centre, mut sizes) = (vec![0.0; count], vec![[0.0; 4]; count], vec![0.0; count]);
        for (c, g) in cells.iter().zip(&of) {
            let g = *g as usize;
            work[g] += load.work(c.population as usize, c.cell);
            sizes[g] += 1.0;
            (0..4).for_each(|d| centre[g][d] += f64::from(c.at[d]));
        }
        centre.iter_mut().zip(&sizes).for_each(|(c, n)| c.iter_mut().for_each(|x| *x /= f64::max(*n, 1.0)));
        Self { cells, of, work, centre }
    }
}
