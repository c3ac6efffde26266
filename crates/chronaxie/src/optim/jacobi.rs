//! Groups of blocks that make eigenvectors of symmetric matrices on a GPU, as jacobi.cuh has it.

use crate::Result;
use crate::cuda::{Arg, CudaDevice, Kernel, LaunchConfig, Specialisation};
use crate::kernels::Header;
use crate::optim::ongpu::Visit;
use std::sync::Arc;

/// What kernels include that make eigenvectors.
pub(super) const JACOBI: Header = ("jacobi.cuh", include_str!("jacobi.cuh"));
/// And of factors.
pub(super) const EIGENBASIS: Header = ("eigenbasis.cuh", include_str!("eigenbasis.cuh"));
/// Clears the counters of all groups.
pub(super) const CLEAR: &str = "jacobi_clear";
/// As in jacobi.cuh.
const THREADS: u32 = 128;
const PART: usize = 16;
/// Words from a group's counters to the next one's.
pub(super) const COUNTERS: usize = 16;
/// Bytes that matrices of f64 may take at once, if that holds one.
const BYTES: usize = 1 << 30;

/// How a batch is spread over a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Groups {
    /// Groups of blocks, a matrix each at a time.
    groups: usize,
    /// Blocks of a group: one for each visit of a round, if there are so many.
    blocks: usize,
}

impl Groups {
    fn choose(count: usize, n: usize, resident: usize) -> Self {
        let visits = n.div_ceil(PART).div_ceil(2).max(1);
        let blocks = visits.min(resident.max(1));
        let room = (BYTES / 8 / (n * n).max(1)).max(1);
        Self { groups: count.min(resident / blocks).min(room).max(1), blocks }
    }
}

/// A kernel over jacobi.cuh, for `count` matrices of at most one order.
pub(super) struct Jacobi {
    clear: Kernel,
    kernel: Kernel,
    groups: Groups,
    order: usize,
}

impl Jacobi {
    /// The kernel `entry` of `spec`, which has [`CLEAR`] too. It takes the numbers that [`Jacobi::launch`] hands it, then its own.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        spec: &Specialisation,
        entry: &str,
        count: usize,
        order: usize,
    ) -> Result<Self> {
        let (clear, kernel) = (device.kernel(spec, CLEAR)?, device.kernel(spec, entry)?);
        let resident = kernel.max_active_blocks(THREADS, 0)?.max(1) as usize * device.props().sm_count as usize;
        let groups = Groups::choose(count, order, resident);
        Ok(Self { clear, kernel, groups, order })
    }
    /// Groups, a matrix each at a time.
    pub(super) const fn groups(&self) -> usize {
        self.groups.groups
    }
    /// Numbers of f64 that groups work on.
    pub(super) const fn work(&self) -> usize {
        self.groups.groups * self.order * self.order
    }
    /// Counters, of 32 bits.
    pub(super) const fn counters(&self) -> usize {
        COUNTERS * self.groups.groups
    }
    /// How it goes.
    pub(super) fn config(&self) -> String {
        let Groups { groups, blocks } = self.groups;
        format!("{groups} groups of {blocks} blocks of {THREADS} threads, a matrix each")
    }
    /// Puts the kernel, by `visit`: `work` and `counters` are addresses of what [`Jacobi::work`] and [`Jacobi::counters`] say, and with
    /// the blocks of a group the kernel's first arguments; `own` are the others. Before it what clears the counters, unless they are
    /// `cleared`.
    pub(super) fn launch(
        &self,
        [work, counters]: [u64; 2],
        cleared: bool,
        own: &[Arg<'_>],
        visit: Visit<'_>,
    ) -> Result<()> {
        let Groups { groups, blocks } = self.groups;
        if !cleared {
            let one = LaunchConfig::new((1, 1, 1), (THREADS, 1, 1));
            visit(&self.clear, one, &[Arg::U64(counters), Arg::I32(self.counters() as i32)])?;
        }
        let mut list = vec![Arg::U64(work), Arg::U64(counters), Arg::I32(blocks as i32)];
        list.extend_from_slice(own);
        let grid = LaunchConfig::new(((groups * blocks) as u32, 1, 1), (THREADS, 1, 1));
        // Blocks of a group wait for each other.
        visit(&self.kernel, LaunchConfig { cooperative: blocks > 1, ..grid }, &list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_fit_the_device_and_its_memory() {
        let of = |count, n, resident| {
            let g = Groups::choose(count, n, resident);
            (g.groups, g.blocks)
        };
        assert_eq!(of(1, 1024, 528), (1, 32));
        assert_eq!(of(680, 1024, 528), (16, 32));
        assert_eq!(of(680, 1000, 528), (16, 32));
        assert_eq!(of(600, 32, 528), (528, 1));
        assert_eq!(of(600, 33, 528), (264, 2));
        assert_eq!(of(5, 4096, 528), (4, 128));
        assert_eq!(of(5, 16384, 528), (1, 512));
        assert_eq!(of(5, 1 << 15, 528), (1, 528));
        for (count, n, resident) in [(1, 0, 1), (0, 5, 8), (3, 1, 1), (9, 100, 3)] {
            let g = Groups::choose(count, n, resident);
            assert!(g.groups >= 1 && g.blocks >= 1 && g.groups * g.blocks <= resident, "{count} {n} {resident}: {g:?}");
        }
    }
}
