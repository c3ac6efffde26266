//! Blocks that are matrices, for Hopper's tensor cores: which they are, and the tables of plates.cuh.

use super::blocks::{Block, Grid};
use super::ongpu::{Jobs, Words};
use crate::cuda::{Archs, CudaDevice, DeviceBuffer, Kernel, LaunchConfig, Specialisation, upload};
use crate::kernels::{BARRIERS, F16X3, Header, MMA, WGMMA};
use crate::{Error, Result};
use std::sync::Arc;

/// What kernels over plates include beside the headers of steps over blocks.
pub(super) const HEADERS: &[Header] = &[
    super::ongpu::STEPPER,
    super::ongpu::ONBLOCK,
    ("plates.cuh", include_str!("plates.cuh")),
    F16X3,
    BARRIERS,
    MMA,
    WGMMA,
];
/// As in plates.cuh.
pub(super) const THREADS: u32 = 384;
const SIDE: usize = 64;
const EDGE: usize = 128;
const PAIR: usize = 2 * 4 * SIDE * SIDE;
/// Bytes of a block of numbers.
pub(super) const BLOCK_BYTES: usize = PAIR / 2;
/// Sums of a tile that warps leave: of one of 64 x 64 by a block of 256 threads, of one of a product.
pub(super) const PARTS: usize = 8;
/// Places of the rings of a Gram matrix, of two pairs, and of a product, of one.
const RINGS: usize = 6;
/// What eight warps put down of their tiles.
const WAY_OUT: usize = 8 * 16 * SIDE * 4;
/// The least side of a block that goes to tensor cores unasked: below, tiles of 128 x 128 have few terms.
const LEAST: usize = 256;

/// Compiled for one architecture.
pub(super) fn specialisation(mut spec: Specialisation) -> Specialisation {
    spec.headers = HEADERS;
    spec.archs = Archs::Only(&["sm_90a"]);
    spec
}

/// Which blocks are plates: the least side.
///
/// # Errors
/// A variant by a name that there is not, or that the device or the problem has nothing for.
pub(super) fn least(
    entry: &str,
    grid: &Grid,
    compute_capability: (u32, u32),
    variant: Option<&str>,
) -> Result<Option<usize>> {
    let has = |least: usize| grid.blocks.iter().any(|b| is_plate(b, least));
    let on = compute_capability == (9, 0);
    match variant {
        None => Ok(Some(LEAST).filter(|&least| on && has(least))),
        Some("simt") => Ok(None),
        Some("wgmma") if !on => Err(Error::config(format!(
            "{entry}: variant `wgmma` wants compute capability 9.0, not {}.{}",
            compute_capability.0, compute_capability.1
        ))),
        Some("wgmma") if !has(1) => {
            Err(Error::config(format!("{entry}: variant `wgmma` wants a block that is a matrix, and there is none")))
        }
        Some("wgmma") => Ok(Some(1)),
        Some(v) => Err(Error::config(format!("{entry}: variant `{v}` is not one of simt, wgmma on a CUDA device"))),
    }
}

/// Whether a block is a matrix with factors and sides of at least `least`.
pub(super) fn is_plate(b: &Block, least: usize) -> bool {
    b.factors.len() == 2 && b.sizes.iter().all(|&n| n >= least)
}

/// The tables of plates, one allocation.
pub(super) struct Plates {
    /// Holds them.
    _buffer: DeviceBuffer,
    pub plates: u64,
    /// Plates.
    pub count: usize,
    /// Blocks of 64 x 64 numbers of all of them: jobs of those.
    pub tiles: Jobs,
    /// Tiles of the triangles of rows, and of columns.
    pub gram: [Jobs; 2],
    /// Tiles of a product along either axis.
    pub products: Jobs,
}

fn words(b: &Block, nth: usize, first_tile: usize) -> [usize; 10] {
    let [f, r] = [&b.factors, &b.roots];
    [b.first, b.strides[0], b.sizes[0], b.sizes[1], first_tile, f[0], f[1], r[0], r[1], nth]
}
fn tiles(b: &Block, side: usize) -> usize {
    b.sizes[0].div_ceil(side) * b.sizes[1].div_ceil(side)
}

impl Plates {
    /// The tables of the blocks of `grid` with sides of at least `least`.
    pub(super) fn new(device: &Arc<CudaDevice>, grid: &Grid, least: usize) -> Result<Self> {
        let mut w = Words::default();
        let list = || grid.blocks.iter().enumerate().filter(|(_, b)| is_plate(b, least));
        let count = list().count();
        let mut first_tile = 0;
        let plates = w.push(list().flat_map(|(i, b)| {
            let at = first_tile;
            first_tile += tiles(b, SIDE);
            words(b, i, at)
        }));
        let mut of = |tiles: &dyn Fn(&Block) -> usize| w.jobs(list().map(|(i, b)| (i, tiles(b))));
        let triangle = |n: usize| n.div_ceil(EDGE) * (n.div_ceil(EDGE) + 1) / 2;
        let mut all = [
            of(&|b| tiles(b, SIDE))?,
            of(&|b| triangle(b.sizes[0]))?,
            of(&|b| triangle(b.sizes[1]))?,
            of(&|b| tiles(b, EDGE))?,
        ];
        let buffer = upload(device, &w.0, [w.0.len()])?;
        let address = |words: u64| buffer.address() + 8 * words;
        for jobs in &mut all {
            (jobs.of, jobs.first) = (address(jobs.of), address(jobs.first));
        }
        let plates = address(plates as u64);
        let [tiles, rows, columns, products] = all;
        Ok(Self { _buffer: buffer, plates, count, tiles, gram: [rows, columns], products })
    }
}

/// Bytes of shared memory of a Gram matrix and of a product: from a multiple of 1024 on, a ring and what goes out.
const fn shared() -> u32 {
    (RINGS * PAIR + WAY_OUT + 1024) as u32
}
/// Lets a kernel of products have its shared memory.
pub(super) fn prepare(kernel: &Kernel) -> Result<()> {
    kernel.set_max_dynamic_shared(shared())
}
/// A launch of products over so many tiles.
pub(super) fn config(multiprocessors: usize, tiles: usize) -> LaunchConfig {
    LaunchConfig::new((tiles.min(multiprocessors) as u32, 1, 1), (THREADS, 1, 1)).shared(shared())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceProps;
    use crate::optim::blocks::{Cut, Parameter};

    #[test]
    fn plates_are_large_matrices_unless_asked_for() {
        let of = |shape: &[usize], most| {
            let cut = Cut { most, merge: false, vectors: true };
            Grid::new(&[Parameter::new(0, shape)], cut).unwrap()
        };
        let (large, small, line) = (of(&[1000, 300], 512), of(&[90, 300], 512), of(&[300], 512));
        let least = |grid: &Grid, arch, v| least("shampoo", grid, arch, v);
        assert_eq!(least(&large, (9, 0), None).unwrap(), Some(LEAST));
        assert_eq!(least(&large, (9, 0), Some("simt")).unwrap(), None);
        assert_eq!(least(&large, (10, 0), None).unwrap(), None);
        assert_eq!(least(&small, (9, 0), None).unwrap(), None);
        assert_eq!(least(&small, (9, 0), Some("wgmma")).unwrap(), Some(1));
        let says = |grid: &Grid, arch, v, want: &str| {
            let e = least(grid, arch, Some(v)).unwrap_err().to_string();
            assert!(e.contains(want), "{e}");
        };
        says(&large, (8, 0), "wgmma", "wants compute capability 9.0, not 8.0");
        says(&line, (9, 0), "wgmma", "there is none");
        says(&line, (9, 0), "mma", "`mma` is not one of simt, wgmma");
    }

    /// A plate's words are what plates.cuh reads, and its shared memory is there.
    #[test]
    fn a_plate_is_10_words() {
        let cut = Cut { most: 100, merge: false, vectors: true };
        let grid = Grid::new(&[Parameter::new(7, [130, 70])], cut).unwrap();
        let [a, b] = [0, 1].map(|i| words(&grid.blocks[i], i, 4 * i));
        assert_eq!(a[..6], [7, 70, 100, 70, 0, 0]);
        assert_eq!((b[0], b[2], b[4], b[9]), (7 + 100 * 70, 30, 4, 1));
        assert!(shared() + 512 <= DeviceProps::SM_90.shared_per_block_optin);
    }
}
