//! Blocks that are matrices, for Hopper's tensor cores: which they are, and the tables of plates.cuh and products.cuh.

use super::blocks::{Block, Grid, Parameter};
use super::ongpu::{CHUNK, Jobs, THREADS as STRIDERS, Tables, Words};
use super::stepper::Common;
use crate::cuda::{Archs, Arg, CudaDevice, DeviceBuffer, Kernel, LaunchConfig, Specialisation, upload};
use crate::kernels::{BARRIERS, F16X3, Header, MEET, MMA, SUMS, WGMMA};
use crate::op::Precision;
use crate::{Error, Result};
use std::sync::Arc;

/// What kernels over plates include beside the headers of steps over blocks.
pub(super) const HEADERS: &[Header] = &[
    super::ongpu::STEPPER,
    SUMS,
    super::ongpu::ONBLOCK,
    ("plates.cuh", include_str!("plates.cuh")),
    ("plate_ends.cuh", include_str!("plate_ends.cuh")),
    ("products.cuh", include_str!("products.cuh")),
    ("plate_grams.cuh", include_str!("plate_grams.cuh")),
    F16X3,
    BARRIERS,
    MMA,
    WGMMA,
];
/// As in products.cuh.
pub(super) const THREADS: u32 = 384;
pub(super) const SIDE: usize = 64;
pub(super) const EDGE: usize = 128;
/// Columns of a tile of a product with precision `fast`, and rows of a root under one power of two (slabs.cuh).
const WIDE: usize = 256;
pub(super) const SLAB: usize = 16;
const PAIR: usize = 2 * 4 * SIDE * SIDE;
/// Bytes of a block of numbers.
pub(super) const BLOCK_BYTES: usize = PAIR / 2;
/// Bytes of a tile of f16.
pub(super) const HALF_BYTES: usize = BLOCK_BYTES / 2;
/// Sums of a tile that warps leave: of one of 64 x 64 by a block of 256 threads, of one of a product.
pub(super) const PARTS: usize = 8;
/// Places of the rings of a Gram matrix, of two pairs, and of a product, of one.
const RINGS: usize = 6;
/// What eight warps put down of their tiles.
const WAY_OUT: usize = 8 * 16 * SIDE * 4;

const SLABS: Header = ("slabs.cuh", include_str!("slabs.cuh"));
/// The same with precision `fast`.
pub(super) const HALF_HEADERS: &[Header] = &[
    super::ongpu::STEPPER,
    SUMS,
    super::ongpu::ONBLOCK,
    ("plates.cuh", include_str!("plates.cuh")),
    ("plate_ends.cuh", include_str!("plate_ends.cuh")),
    SLABS,
    ("halves.cuh", include_str!("halves.cuh")),
    F16X3,
    BARRIERS,
    MMA,
    WGMMA,
];
/// What rounds roots beside Newton's iterations includes.
pub(super) const BESIDE_HEADERS: &[Header] = &[
    super::ongpu::STEPPER,
    SUMS,
    super::ongpu::ONBLOCK,
    ("plates.cuh", include_str!("plates.cuh")),
    SLABS,
    super::inverse_root::NEWTON_PRODUCTS,
    super::inverse_root::NEWTON_ENDS,
    super::inverse_root::NEWTON,
    F16X3,
    BARRIERS,
    MEET,
    MMA,
    WGMMA,
];

/// Compiled for one architecture, for products of that precision.
pub(super) fn specialisation(mut spec: Specialisation, precision: Precision) -> Specialisation {
    spec.headers = if precision == Precision::Fast { HALF_HEADERS } else { HEADERS };
    spec.archs = Archs::Only(&["sm_90a"]);
    spec
}

/// Without a name plates are blocks of a whole tile and more along both axes: smaller ones leave much of a tile empty, and f32 units
/// have more tiles of them to spread over the device.
const LEAST: usize = EDGE;

/// Which matrices are plates: the least side, if there is one of whose sides all are as long (`has`).
///
/// # Errors
/// A variant by a name that there is not, or that the device or the problem has nothing for.
pub(super) fn least(
    entry: &str,
    has: impl Fn(usize) -> bool,
    compute_capability: (u32, u32),
    variant: Option<&str>,
) -> Result<Option<usize>> {
    let on = compute_capability == (9, 0);
    match variant {
        None => Ok((on && has(LEAST)).then_some(LEAST)),
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

/// Whether a grid has such blocks.
pub(super) fn some(grid: &Grid) -> impl Fn(usize) -> bool + '_ {
    |least| grid.blocks.iter().any(|b| is_plate(b, least))
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
    /// Tiles of the triangles of rows, and of columns; with precision `fast` of both, plate after plate.
    pub gram: Vec<Jobs>,
    /// Tiles of a product along either axis.
    pub products: Jobs,
    /// Sixteen rows each of the roots along both axes, plate after plate.
    pub slabs: Jobs,
    /// `[2 plates]`: the first tile of each of these roots.
    pub root_at: u64,
    /// Tiles of all roots.
    pub root_tiles: usize,
}

fn words(b: &Block, nth: usize, first_tile: usize) -> [usize; 10] {
    let [f, r] = [&b.factors, &b.roots];
    [b.first, b.strides[0], b.sizes[0], b.sizes[1], first_tile, f[0], f[1], r[0], r[1], nth]
}
fn tiles(b: &Block, side: usize) -> usize {
    b.sizes[0].div_ceil(side) * b.sizes[1].div_ceil(side)
}

/// Tiles of 128 rows and so many columns that are on or below the diagonal of a Gram matrix.
pub(super) fn triangle(n: usize, across: usize) -> usize {
    (0..n.div_ceil(EDGE)).map(|row| n.div_ceil(across).min((row * EDGE + EDGE - 1) / across + 1)).sum()
}

impl Plates {
    /// The tables of the blocks of `grid` with sides of at least `least`, for products of that precision.
    pub(super) fn new(device: &Arc<CudaDevice>, grid: &Grid, least: usize, precision: Precision) -> Result<Self> {
        let mut w = Words::default();
        let list = || grid.blocks.iter().enumerate().filter(|(_, b)| is_plate(b, least));
        let count = list().count();
        let mut first_tile = 0;
        let plates = w.push(list().flat_map(|(i, b)| {
            let at = first_tile;
            first_tile += tiles(b, SIDE);
            words(b, i, at)
        }));
        let across = if precision == Precision::Fast { WIDE } else { EDGE };
        let product = |b: &Block| b.sizes[0].div_ceil(EDGE) * b.sizes[1].div_ceil(across);
        let both = || list().flat_map(|(_, b)| [b.sizes[0], b.sizes[1]]);
        let mut of = |tiles: &dyn Fn(&Block) -> usize| w.jobs(list().map(|(i, b)| (i, tiles(b))));
        let mut all = vec![of(&|b| tiles(b, SIDE))?, of(&product)?];
        if precision == Precision::Fast {
            all.push(w.jobs(both().map(|n| triangle(n, across)).enumerate())?);
        } else {
            all.extend([of(&|b| triangle(b.sizes[0], across))?, of(&|b| triangle(b.sizes[1], across))?]);
        }
        let sides = || both().map(|n| n.div_ceil(SIDE));
        let slabs = w.jobs(sides().map(|n| n * (SIDE / SLAB)).enumerate())?;
        let mut root_tiles = 0;
        let root_at = w.push(sides().map(|n| {
            root_tiles += n * n;
            root_tiles - n * n
        }));
        let buffer = upload(device, &w.0, [w.0.len()])?;
        let address = |words: u64| buffer.address() + 8 * words;
        let mut all = [slabs].into_iter().chain(all).map(|j| Jobs { of: address(j.of), first: address(j.first), ..j });
        let mut next = || all.next().unwrap_or_default();
        let (slabs, tiles, products) = (next(), next(), next());
        let gram = all.collect();
        let [plates, root_at] = [plates, root_at].map(|at| address(at as u64));
        Ok(Self { _buffer: buffer, plates, count, tiles, gram, products, slabs, root_at, root_tiles })
    }
}

/// What of a flat vector does not lie in plates, as runs: an allocation of its own.
pub(super) struct Rest {
    /// Holds them.
    _buffer: DeviceBuffer,
    /// `[runs, 2]`: from an element to another.
    pub runs: u64,
    /// Pieces of 4096 elements.
    pub pieces: Jobs,
    /// `[plates]`: whether a plate's parameter has no other blocks; of others all of the parameter is in runs.
    pub alone: u64,
}

/// Elements outside of parameters that are plates altogether, as runs.
fn outside(elements: usize, parameters: &[Parameter], grid: &Grid, least: usize) -> Vec<(usize, usize)> {
    let mut plated: Vec<(usize, usize)> = Vec::new();
    for p in parameters {
        let (first, end) = (p.first, p.first + p.shape.elements());
        let mut blocks = grid.blocks.iter().filter(|b| (first..end).contains(&b.first)).peekable();
        if blocks.peek().is_some() && blocks.all(|b| is_plate(b, least)) {
            plated.push((first, end));
        }
    }
    plated.sort_unstable();
    plated.push((elements, elements));
    let mut at = 0;
    let mut runs = Vec::new();
    for (first, end) in plated {
        if first > at {
            runs.push((at, first));
        }
        at = end;
    }
    runs
}

impl Rest {
    /// Of plates with sides of at least `least`.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        elements: usize,
        parameters: &[Parameter],
        grid: &Grid,
        least: usize,
    ) -> Result<Self> {
        let mut w = Words::default();
        let list = outside(elements, parameters, grid, least);
        let runs = w.push(list.iter().flat_map(|&(first, end)| [first, end]));
        let pieces = w.jobs(list.iter().map(|&(first, end)| (end - first).div_ceil(CHUNK)).enumerate())?;
        let plates = grid.blocks.iter().filter(|b| is_plate(b, least));
        let alone = |b: &Block| !list.iter().any(|&(first, end)| (first..end).contains(&b.first));
        let alone = w.push(plates.map(|b| usize::from(alone(b))));
        let buffer = upload(device, &w.0, [w.0.len()])?;
        let address = |words: u64| buffer.address() + 8 * words;
        let pieces = Jobs { of: address(pieces.of), first: address(pieces.first), ..pieces };
        let [runs, alone] = [runs, alone].map(|at| address(at as u64));
        Ok(Self { _buffer: buffer, runs, pieces, alone })
    }
}

/// The launch of moments: addresses, and numbers of the step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moments {
    /// grad, decay, parameter, first, second.
    pub tensors: [u64; 5],
    pub partials: u64,
    pub step: u64,
    pub grad_norm: u64,
    /// Blocks of numbers of g and of first, and their scales.
    pub packed: [u64; 2],
    pub scales: [u64; 2],
    /// Sums of warps of the grafting's step, or 0.
    pub want: u64,
    /// g of other blocks.
    pub g: u64,
    pub runs: usize,
    pub has_second: bool,
    pub common: Common,
    pub beta1: f64,
    /// Weights of the second moment.
    pub second: (f64, f64),
    pub ln_beta1: f64,
    pub ln_second: f64,
    pub eps: f64,
}

impl Moments {
    fn weights(&self) -> [Arg<'static>; 6] {
        let f32s = [self.common.pull(), self.beta1, 1.0 - self.beta1, self.second.0, self.second.1];
        let [pull, beta1, rest1, keep2, new2] = f32s.map(|x| Arg::F32(x as f32));
        [Arg::F64(self.common.clip), pull, beta1, rest1, keep2, new2]
    }
    /// Arguments of plate_moments.
    pub(super) fn of_plates(&self, plates: &Plates) -> Vec<Arg<'static>> {
        let ([g, m], [of_g, of_m]) = (self.packed.map(Arg::U64), self.scales.map(Arg::U64));
        self.with(plates, &[g, of_g, m, of_m])
    }
    /// Arguments of half_moments, whose bounds lie where the scales of g do.
    pub(super) fn of_halves(&self, plates: &Plates) -> Vec<Arg<'static>> {
        let [g, m] = self.packed.map(Arg::U64);
        self.with(plates, &[Arg::U64(self.scales[0]), g, m])
    }
    fn with(&self, plates: &Plates, packed: &[Arg<'static>]) -> Vec<Arg<'static>> {
        let mut list = vec![Arg::U64(plates.plates), Arg::U64(plates.tiles.first)];
        let [grad, decay, parameter, first, second] = self.tensors.map(Arg::U64);
        list.extend([grad, decay, parameter, Arg::U64(self.partials), Arg::U64(self.step), first, second]);
        list.push(Arg::U64(self.grad_norm));
        list.extend_from_slice(packed);
        list.push(Arg::U64(self.want));
        let numbers = [plates.tiles.jobs, plates.count, self.runs, usize::from(self.has_second)];
        list.extend(numbers.map(|n| Arg::I32(n as i32)));
        list.push(aligned(&self.tensors));
        list.extend(self.weights());
        list.extend([Arg::F64(self.ln_beta1), Arg::F64(self.ln_second), Arg::F32(self.eps as f32)]);
        list
    }
    /// Arguments of other_moments.
    pub(super) fn of_others(&self, others: &Tables) -> Vec<Arg<'static>> {
        let [grad, decay, parameter, first, second] = self.tensors.map(Arg::U64);
        let chunks = &others.chunks;
        let mut list = vec![Arg::U64(others.blocks), Arg::U64(chunks.of), Arg::U64(chunks.first)];
        list.extend([grad, decay, parameter, Arg::U64(self.partials), Arg::U64(self.g), first, second]);
        list.extend([chunks.count, self.runs, usize::from(self.has_second)].map(|n| Arg::I32(n as i32)));
        list.extend(self.weights());
        list
    }
}

/// Whether all of them are multiples of 16, so that rows are read in pieces of 16 bytes.
pub(super) fn aligned(addresses: &[u64]) -> Arg<'static> {
    Arg::I32(i32::from(addresses.iter().all(|a| a.is_multiple_of(16))))
}
/// A block of threads each.
pub(super) fn each(blocks: usize) -> LaunchConfig {
    LaunchConfig::new((blocks as u32, 1, 1), (STRIDERS, 1, 1))
}
/// Blocks of threads that stride over tiles of moments.
pub(super) fn striding(multiprocessors: usize, tiles: usize) -> LaunchConfig {
    each(tiles.min(2 * multiprocessors))
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
    use crate::optim::blocks::Cut;

    #[test]
    fn plates_are_large_matrices_or_what_is_asked_for() {
        let of = |shape: &[usize], most| {
            let cut = Cut { most, merge: false, vectors: true };
            Grid::new(&[Parameter::new(0, shape)], cut).unwrap()
        };
        let (large, small, line) = (of(&[1000, 300], 512), of(&[90, 300], 512), of(&[300], 512));
        let least = |grid: &Grid, arch, v| least("shampoo", some(grid), arch, v);
        assert_eq!(least(&large, (9, 0), None).unwrap(), Some(128));
        assert_eq!(least(&large, (10, 0), None).unwrap(), None);
        assert_eq!(least(&small, (9, 0), None).unwrap(), None);
        assert_eq!(least(&large, (9, 0), Some("simt")).unwrap(), None);
        assert_eq!(least(&large, (9, 0), Some("wgmma")).unwrap(), Some(1));
        assert_eq!(least(&small, (9, 0), Some("wgmma")).unwrap(), Some(1));
        let says = |grid: &Grid, arch, v, want: &str| {
            let e = least(grid, arch, Some(v)).unwrap_err().to_string();
            assert!(e.contains(want), "{e}");
        };
        says(&large, (8, 0), "wgmma", "wants compute capability 9.0, not 8.0");
        says(&line, (9, 0), "wgmma", "there is none");
        says(&line, (9, 0), "mma", "`mma` is not one of simt, wgmma");
    }

    /// Tiles on and below the diagonal, as products.cuh and halves.cuh count them.
    #[test]
    fn triangles_have_a_tile_for_what_is_stored() {
        assert_eq!([1, 128, 129, 1024].map(|n| triangle(n, EDGE)), [1, 1, 3, 36]);
        assert_eq!([1, 128, 129, 256, 257, 300, 1024].map(|n| triangle(n, WIDE)), [1, 1, 2, 2, 4, 4, 20]);
        for n in 1..700 {
            let row_wise = |row: usize| row / 2 + 1;
            assert_eq!(triangle(n, WIDE), (0..n.div_ceil(EDGE)).map(row_wise).sum::<usize>(), "{n}");
        }
    }

    /// Vectors, gaps and matrices that are no plates are outside, each run once.
    #[test]
    fn what_is_no_plate_is_outside() {
        let parameters = [
            Parameter::new(512, [16, 16]),
            Parameter::new(0, [16, 32]),
            Parameter::new(800, [40]),
            Parameter::new(900, [16, 3]),
        ];
        let cut = Cut { most: 16, merge: false, vectors: true };
        let grid = Grid::new(&parameters, cut).unwrap();
        assert_eq!(outside(1000, &parameters, &grid, 8), [(768, 1000)]);
        assert_eq!(outside(1000, &parameters, &grid, 3), [(768, 900), (948, 1000)]);
        assert_eq!(outside(1000, &parameters, &grid, 17), [(0, 1000)]);
        assert_eq!(outside(512, &parameters[1..2], &Grid::new(&parameters[1..2], cut).unwrap(), 8), []);
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
