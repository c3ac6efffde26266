//! The launches on Hopper's tensor cores, at the accuracy of f32: packing, how many parts, what lies where.

use super::super::spec::Dense;
use super::tensor::{self, Launch, along};
use crate::kernels;
use crate::op::Pass;
use crate::{Dtype, Layout, RegionId, Result};
use chronaxie_runtime::cuda::{Archs, CudaDevice, Header, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

/// Threads a block, of products and of packing, as in the kernels.
const THREADS: u32 = 384;
const PACK_THREADS: u32 = 256;
/// A side of a block of numbers, its bytes, and those of the two that are copied at once.
const SIDE: usize = 64;
const BLOCK_BYTES: usize = 4 * SIDE * SIDE;
const PAIR: usize = 2 * BLOCK_BYTES;
/// A side of a block's tile of a product.
const TILE: usize = 128;
/// Pairs that fit shared memory, and places of the ring of sums.
const PAIRS: usize = 7;
const RING: usize = 6;
/// Blocks of 64 columns of a weight of which a block of threads keeps its rows.
const HELD: usize = 4;
/// Multiprocessors that products over many terms are cut for, and blocks of terms of a part at the least.
const WAVE: usize = 132;
const LEAST_STAGES: usize = 16;

const SOURCE: KernelSource = KernelSource::embedded("layers/dense/cuda/hopper.cu", include_str!("hopper.cu"));
const HEADERS: &[Header] = &[kernels::F16X3, kernels::BARRIERS, kernels::MMA, kernels::WGMMA];
const ENTRIES: [&str; 9] = [
    "hopper_pack",
    "hopper_map_along",
    "hopper_map_beside",
    "hopper_map_along_held",
    "hopper_map_beside_held",
    "hopper_gradient_along",
    "hopper_gradient_beside",
    "hopper_sums_along",
    "hopper_sums_beside",
];

/// The form in which the kernels are compiled.
pub(super) fn specialisation() -> Specialisation {
    let mut spec = Specialisation::new(SOURCE, &ENTRIES);
    spec.headers = HEADERS;
    spec.archs = Archs::Only(&["sm_90a"]);
    spec
}

/// Why a problem is not for these kernels, if it is not.
pub(super) fn refusal(p: &Dense, compute_capability: (u32, u32)) -> Option<&'static str> {
    if compute_capability == (9, 0) {
        tensor::refusal(p, compute_capability)
    } else {
        Some("which wants compute capability 9.0")
    }
}

/// Whether these kernels are faster than the others on tensor cores: three times, where tiles of 128 steps by 128 channels and
/// blocks of 64 terms are mostly full.
pub(super) fn pays(p: &Dense) -> bool {
    p.steps >= SIDE && p.from.count >= SIDE && p.to.count >= SIDE
}

/// Parts of the sums over steps, of which each is `[H, D + 1]`; of sizes alone.
pub(super) fn parts_of_sums(p: &Dense) -> usize {
    parts(tiles(p.to.count, p.from.count), p.batch * p.steps.div_ceil(SIDE))
}
/// Parts of the gradient of x, of which each is as large as x: 1 is x itself.
pub(super) fn parts_of_gradient(p: &Dense) -> usize {
    if !p.grad_x {
        return 1;
    }
    parts(p.batch * tiles(p.steps, p.from.count), p.to.count.div_ceil(SIDE))
}
fn tiles(rows: usize, columns: usize) -> usize {
    rows.div_ceil(TILE) * columns.div_ceil(TILE)
}
/// The fewest parts that leave hardly a multiprocessor idle, else those that leave the fewest.
fn parts(tiles: usize, stages: usize) -> usize {
    let most = (stages / LEAST_STAGES).clamp(1, 4 * WAVE.div_ceil(tiles.max(1)));
    let busy = |parts: usize| (tiles * parts) as f64 / ((tiles * parts).div_ceil(WAVE) * WAVE) as f64;
    let best = (1..=most).map(busy).fold(0.0, f64::max);
    (1..=most).find(|&n| busy(n) > 0.97 * best).unwrap_or(1)
}

/// A matrix in blocks: where, and how many.
struct Packed {
    base: u64,
    scale: u64,
    down: usize,
    across: usize,
    batch: usize,
}

impl Packed {
    fn words(&self) -> [u64; 4] {
        [self.base, self.scale, self.down as u64, self.across as u64]
    }
    fn blocks(&self) -> usize {
        self.batch * self.down * self.across
    }
}

/// The regions of packed numbers and their scales: of the weight, and of x.
pub(super) struct Regions {
    weight: [RegionId; 2],
    x: [RegionId; 2],
}

impl Regions {
    /// # Errors
    /// More bytes than can be addressed.
    pub(super) fn new(p: &Dense, layout: &mut Layout) -> Result<Self> {
        let (weight, x) = (weight(p, [0, 0]).blocks(), x(p, [0, 0]).blocks());
        Ok(Self {
            weight: [
                layout.push("the weight in blocks", Dtype::U8, weight.saturating_mul(BLOCK_BYTES))?,
                layout.push("their scales", Dtype::F32, weight)?,
            ],
            x: [
                layout.push("x in blocks", Dtype::U8, x.saturating_mul(BLOCK_BYTES))?,
                layout.push("the scales of x", Dtype::F32, x)?,
            ],
        })
    }
    /// Where they are.
    pub(super) fn at(&self, layout: &Layout, scratch: u64) -> [[u64; 2]; 2] {
        [self.weight, self.x].map(|both| both.map(|id| layout.address(scratch, id)))
    }
}

fn weight(p: &Dense, [base, scale]: [u64; 2]) -> Packed {
    Packed { base, scale, down: p.to.count.div_ceil(SIDE), across: p.from.count.div_ceil(SIDE), batch: 1 }
}
fn x(p: &Dense, [base, scale]: [u64; 2]) -> Packed {
    let sides = [p.from.count, p.steps].map(|n| n.div_ceil(SIDE));
    let (down, across) = if along(p.from) { (sides[0], sides[1]) } else { (sides[1], sides[0]) };
    Packed { base, scale, down, across, batch: p.batch }
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().copied().flat_map(u64::to_ne_bytes).collect()
}
/// Whether numbers at `address` and at these strides are whole vectors of `n`.
fn whole(address: u64, strides: &[usize], n: usize) -> u64 {
    u64::from(address.is_multiple_of(4 * n as u64) && strides.iter().all(|s| s.is_multiple_of(n)))
}

/// How a packed matrix lies, as in the kernels: of a map, steps so that a thread's sums of four are neighbours.
#[derive(Clone, Copy)]
enum Order {
    Given = 0,
    Rows = 1,
    Columns = 2,
}

/// The kernels.
pub(super) struct Hopper {
    kernels: Vec<Kernel>,
    multiprocessors: usize,
}

impl Hopper {
    pub(super) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        let spec = specialisation();
        let kernels: Vec<Kernel> = ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?;
        for kernel in &kernels[1..5] {
            kernel.set_max_dynamic_shared(shared(PAIRS))?;
        }
        for kernel in &kernels[5..] {
            kernel.set_max_dynamic_shared(shared(RING))?;
        }
        Ok(Self { kernels, multiprocessors: device.props().sm_count as usize })
    }

    /// A matrix into blocks; `sizes` are rows, columns, from a row to the next, and from a batch row to the next.
    fn pack(&self, from: u64, sizes: [usize; 4], order: Order, to: &Packed) -> Launch<'_> {
        let [rows, columns, stride, batch] = sizes;
        let [rows, columns, stride_, batch_] = [rows, columns, stride, batch].map(|n| n as u64);
        let aligned = whole(from, &[stride, batch], 4);
        let words = [from, stride_, batch_, rows, columns, aligned, order as u64, to.base, to.scale];
        let config = LaunchConfig::new((to.blocks() as u32, 1, 1), (PACK_THREADS, 1, 1));
        (&self.kernels[0], config, bytes(&words))
    }
    /// The weight into blocks.
    pub(super) fn pack_weight(&self, p: &Dense, from: u64, to: [u64; 2]) -> Launch<'_> {
        let (d, h) = (p.from.count, p.to.count);
        self.pack(from, [h, d, d, 0], Order::Given, &weight(p, to))
    }
    /// x into blocks, for the map or for sums over steps.
    pub(super) fn pack_x(&self, p: &Dense, from: u64, to: [u64; 2], pass: Pass) -> Launch<'_> {
        let (d, t) = (p.from.count, p.steps);
        let (sizes, shuffled) =
            if along(p.from) { ([d, t, t, d * t], Order::Columns) } else { ([t, d, d, d * t], Order::Rows) };
        self.pack(from, sizes, if pass == Pass::Forward { shuffled } else { Order::Given }, &x(p, to))
    }

    /// y, of the packed weight and x.
    pub(super) fn map(&self, p: &Dense, packed: [[u64; 2]; 2], bias: u64, y: u64) -> Launch<'_> {
        let (h, t) = (p.to.count, p.steps);
        let chunks = p.from.count.div_ceil(SIDE);
        let held = chunks <= HELD;
        let ring = if held { (PAIRS - chunks).min(RING) } else { PAIRS / 2 };
        let mut words = weight(p, packed[0]).words().to_vec();
        words.extend(x(p, packed[1]).words());
        words.extend([bias, y]);
        words.extend([t, h * t, h, t, chunks, p.batch, ring].map(|n| n as u64));
        words.push(whole(y, &[t], 4));
        let pairs = if held { chunks + ring } else { 2 * ring };
        let blocks = (p.batch * tiles(h, t)).min(self.multiprocessors);
        let config = LaunchConfig::new((blocks as u32, 1, 1), (THREADS, 1, 1)).shared(shared(pairs));
        (&self.kernels[1 + 2 * usize::from(held) + usize::from(!along(p.from))], config, bytes(&words))
    }

    /// The parts of the gradient of x, or itself.
    pub(super) fn gradient(&self, p: &Dense, packed: [u64; 2], grad_y: u64, to: u64) -> Launch<'_> {
        let (d, h, t) = (p.from.count, p.to.count, p.steps);
        let parts = parts_of_gradient(p);
        let stride = if along(p.from) { t } else { d };
        let mut words = vec![grad_y, t as u64, (h * t) as u64];
        words.extend(weight(p, packed).words());
        words.push(to);
        words.extend([stride, d * t, p.batch * d * t, t, d, h, 1, parts].map(|n| n as u64));
        words.push(whole(grad_y, &[t], 2) & whole(to, &[stride], 2));
        let blocks = p.batch * tiles(t, d) * parts;
        (&self.kernels[5 + usize::from(!along(p.from))], sums_config(blocks), bytes(&words))
    }

    /// The parts of the sums over steps, `[parts, H, D + 1]`.
    pub(super) fn sums(&self, p: &Dense, packed: [u64; 2], grad_y: u64, to: u64) -> Launch<'_> {
        let (d, h, t) = (p.from.count, p.to.count, p.steps);
        let parts = parts_of_sums(p);
        let mut words = vec![grad_y, t as u64, (h * t) as u64];
        words.extend(x(p, packed).words());
        words.push(to);
        words.extend([d + 1, 0, h * (d + 1), h, d, t, p.batch, parts].map(|n| n as u64));
        words.push(whole(grad_y, &[t], 2));
        (&self.kernels[7 + usize::from(!along(p.from))], sums_config(tiles(h, d) * parts), bytes(&words))
    }
}

fn sums_config(blocks: usize) -> LaunchConfig {
    LaunchConfig::new((blocks as u32, 1, 1), (THREADS, 1, 1)).shared(shared(RING))
}
/// Bytes of so many pairs, from a multiple of 1024 on.
fn shared(pairs: usize) -> u32 {
    (pairs * PAIR + 1024) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Channels;

    #[test]
    fn parts_fill_the_card() {
        let of = |b, d, t, h| {
            let p = Dense::new(b, t, Channels::along(d), Channels::along(h)).unwrap();
            (parts_of_sums(&p), parts_of_gradient(&p))
        };
        // 64 and 128 tiles, 256 and 128, 64 and 512, of 132 at once.
        assert_eq!(of(8, 128, 2048, 8192), (2, 1));
        assert_eq!(of(8, 256, 1024, 16384), (1, 1));
        assert_eq!(of(4, 128, 16384, 8192), (2, 1));
        // One tile has as many parts as its steps make.
        assert_eq!(of(1, 64, 64 * 160, 100), (10, 1));
        assert_eq!(of(1, 64, 64, 100), (1, 1));
    }

    /// Two tiles of a place are at most a block's shared memory.
    #[test]
    fn rings_fit() {
        assert!(shared(PAIRS) + 128 <= 227 << 10);
        for chunks in 1..=HELD {
            assert!(chunks + (PAIRS - chunks).min(RING) <= PAIRS && PAIRS - chunks >= 3);
        }
    }
}
