//! Slices along the fourth coordinate, as the original cuts its lattice: whole slices where there are as many as parts, else
//! slices are cut by z, y and x.

use super::{Layout, Load, Partitioner, cut, groups};
use crate::Result;

/// Likewise.
pub struct WSlice;

impl Partitioner for WSlice {
    fn name(&self) -> &'static str {
        "w_slice"
    }
    fn about(&self) -> &'static str {
        "slices along the fourth coordinate, the original's"
    }
    fn layout(&self, load: &Load<'_>, parts: usize) -> Result<Layout> {
        let mut cells = groups::placed(load.plan);
        let key = |c: &groups::Placed| [c.at[3], c.at[2], c.at[1], c.at[0]];
        cells.sort_by(|a, b| {
            let pairs = key(a).into_iter().zip(key(b));
            pairs.map(|(a, b)| a.total_cmp(&b)).find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
        });
        let work = |c: &groups::Placed| load.work(c.population as usize, c.cell);
        let slices: Vec<(usize, f64)> = cells
            .chunk_by(|a, b| a.at[3].total_cmp(&b.at[3]).is_eq())
            .map(|slice| (slice.len(), slice.iter().map(work).sum()))
            .collect();
        if slices.len() < parts {
            return groups::ranges(load, parts, &cells);
        }
        let of = cut(slices.iter().map(|s| s.1), parts);
        let each = of.iter().zip(&slices).flat_map(|(part, (count, _))| std::iter::repeat_n(*part, *count));
        groups::layout(load, parts, &cells, &each.collect::<Vec<_>>())
    }
}
