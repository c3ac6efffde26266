//! The four sums of each synapse over all unfolds of a chunk, of many synapses (grid_sums.cu).

use super::{DeviceWords, GRID_THREADS};
use crate::cuda::{Archs, Arg, Constant, CudaDevice, Kernel, LaunchConfig, Specialisation, StreamRef};
use crate::layers::ltc::Synapses;
use crate::layers::ltc::cuda::launch::launch_as;
use crate::layers::ltc::cuda::{GRID_SUMS, HEADERS};
use crate::op::LaunchReport;
use crate::{DeviceProps, Result};
use std::sync::Arc;

/// Sources of a rectangle, its most targets, and synapses of a thread, as in grid_sums.cu.
const RANGE: usize = 512;
const TARGETS: usize = 64;
const SLOTS: usize = 4;
/// Two tiles of v, of alpha and of beta.
const SHARED: u32 = (2 * 4 * RANGE * 16 + 2 * GRID_THREADS * 16) as u32;
/// The most slices into which the rows are cut.
const SLICES: usize = 8;
/// The fewest rows of a slice.
const ROWS: usize = 64;

/// The kernel with its rectangles.
pub(in crate::layers::ltc::cuda) struct GridSums {
    kernel: Kernel,
    words: DeviceWords,
    /// Where in them the rectangles begin, bytes.
    rectangles_at: u64,
    rectangles: usize,
    slices: usize,
}

pub(in crate::layers::ltc::cuda) fn specialisation(fast: bool) -> Specialisation {
    Specialisation {
        headers: HEADERS,
        constants: vec![
            ("kSlots", Constant::Int(SLOTS as i32)),
            ("kThreads", Constant::Int(GRID_THREADS as i32)),
            ("kFast", Constant::Bool(fast)),
        ],
        archs: if fast { Archs::AtLeast(75) } else { Archs::All },
        ..Specialisation::new(GRID_SUMS.clone(), &["ltc_grid_sums"])
    }
}

/// The synapses, numbered by target, in the order of the rectangles, and of each rectangle its first synapse in that order, how many
/// it has, its first source and its first target.
fn rectangles(s: &Synapses) -> (Vec<u32>, Vec<[u32; 4]>) {
    let (mut order, mut all) = (Vec::with_capacity(s.len()), Vec::<[u32; 4]>::new());
    for first in (0..s.sources()).step_by(RANGE) {
        // The next synapse opens a rectangle of its own.
        let mut open = false;
        for target in 0..s.targets() {
            let list = s.target_offsets[target] as usize..s.target_offsets[target + 1] as usize;
            let sources = &s.source_of[list.clone()];
            let of = |end: usize| list.start + sources.partition_point(|&i| (i as usize) < end);
            for synapse in of(first)..of(first + RANGE) {
                let fits = |r: &[u32; 4]| (r[1] as usize) < SLOTS * GRID_THREADS && target < r[3] as usize + TARGETS;
                match all.last_mut().filter(|r| open && fits(r)) {
                    Some(r) => r[1] += 1,
                    None => all.push([order.len() as u32, 1, first as u32, target as u32]),
                }
                open = true;
                order.push(synapse as u32);
            }
        }
    }
    (order, all)
}

/// The number of slices with which the last wave of blocks is the fullest.
fn slices(rectangles: usize, processors: usize) -> usize {
    let waste = |n: usize| {
        let blocks = rectangles * n;
        (blocks.div_ceil(processors) * processors - blocks) * 1000 / blocks.max(1)
    };
    (1..=SLICES).min_by_key(|&n| waste(n)).unwrap_or(1)
}

impl GridSums {
    /// None where the rectangles would have few synapses.
    pub(in crate::layers::ltc::cuda) fn new(
        device: &Arc<CudaDevice>,
        s: &Synapses,
        fast: bool,
    ) -> Result<Option<Self>> {
        let props: &DeviceProps = device.props();
        if s.len() < 16 * s.targets() * s.sources().div_ceil(RANGE) || props.shared_per_block_optin < SHARED {
            return Ok(None);
        }
        let kernel = device.kernel(&specialisation(fast), "ltc_grid_sums")?;
        kernel.set_max_dynamic_shared(SHARED)?;
        let (mut words, all) = rectangles(s);
        words.resize(words.len().next_multiple_of(64), 0);
        let rectangles_at = 4 * words.len() as u64;
        words.extend(all.iter().flatten());
        let slices = slices(all.len(), props.sm_count as usize);
        let words = DeviceWords::new(device, &words)?;
        Ok(Some(Self { kernel, words, rectangles_at, rectangles: all.len(), slices }))
    }

    /// The most slices of a sum.
    pub(in crate::layers::ltc::cuda) fn most_slices(&self) -> usize {
        self.slices
    }
    /// Rows of a slice of the sums over `rows` rows, and how many slices these are.
    fn slice(&self, rows: usize) -> (usize, usize) {
        let slice = rows.div_ceil(self.slices).max(ROWS).next_multiple_of(16);
        (slice, rows.div_ceil(slice))
    }
    fn launch_of(&self, slices: usize) -> LaunchConfig {
        LaunchConfig::new((self.rectangles as u32, slices as u32, 1), (GRID_THREADS as u32, 1, 1)).shared(SHARED)
    }

    /// The sums of `rows` rows into `partial`; gives how many slices there are. `lists` are the folded synapses by target, their
    /// sources and targets; `v` its address, the pitch of a batch row, and rows a batch row; then alpha and beta.
    pub(in crate::layers::ltc::cuda) fn launch(
        &self,
        [lists, trace]: [&[Arg<'static>]; 2],
        partial: Arg<'static>,
        (synapses, rows, hidden): (usize, usize, usize),
        stream: StreamRef,
    ) -> Result<usize> {
        let (slice, slices) = self.slice(rows);
        let own = [self.words.address(), self.words.address() + self.rectangles_at].map(Arg::U64);
        let sizes = [Arg::I64(synapses as i64), Arg::I64(rows as i64), Arg::I64(slice as i64), Arg::I32(hidden as i32)];
        let args = [lists, &own, trace, &[partial], &sizes].concat();
        launch_as(&self.kernel, stream, &self.launch_of(slices), &args)?;
        Ok(slices)
    }

    pub(in crate::layers::ltc::cuda) fn report(&self, launches: usize, rows: usize) -> Result<LaunchReport> {
        let launch = self.launch_of(self.slice(rows).1);
        LaunchReport::new(&self.kernel, launches, launch.grid, launch.block, launch.shared_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::ltc::entry::random_connectivity;

    #[test]
    fn rectangles_have_every_synapse_once() {
        for (h, density) in [(1, 1.0), (70, 0.5), (600, 0.3), (1100, 0.02)] {
            let s = random_connectivity(1, h, density, 2).unwrap().recurrent;
            let (order, all) = rectangles(&s);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.iter().enumerate().all(|(n, &x)| n == x as usize) && sorted.len() == s.len());
            let mut first = 0;
            for [at, count, source, target] in all.iter().map(|r| r.map(|x| x as usize)) {
                assert_eq!(at, first);
                assert!(count > 0 && count <= SLOTS * GRID_THREADS);
                for &n in &order[at..at + count] {
                    let (i, j) =
                        (s.source_of[n as usize] as usize, s.target_offsets.partition_point(|&o| o <= n as i32) - 1);
                    assert!((source..source + RANGE).contains(&i) && (target..target + TARGETS).contains(&j));
                }
                first += count;
            }
            assert_eq!(first, s.len());
        }
    }

    #[test]
    fn slices_fill_waves() {
        assert_eq!(slices(64, 132), 2);
        assert_eq!(slices(132, 132), 1);
        assert!((1..2000).all(|n| (1..=SLICES).contains(&slices(n, 132))));
    }
}
