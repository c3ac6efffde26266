//! The launches on tensor cores, at the accuracy of f32: which maps they make, and in how many parts.

use super::super::spec::{Channels, Dense};
use crate::Result;
use chronaxie_runtime::cuda::{Archs, CudaDevice, Header, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

/// Threads a block, as in the kernels.
const THREADS: u32 = 192;
/// A block's tile, rows by columns: of maps and of the gradient of x, and of the sums over steps.
const WIDE: [usize; 2] = [128, 96];
const TALL: [usize; 2] = [96, 128];
/// Terms of a stage, stages of a ring, floats between two rows of a side, and beside a row of terms.
const TERMS: usize = 16;
const RING: usize = 4;
const ROW_PITCH: usize = TERMS + 4;
const TERM_GAP: usize = 8;
/// Blocks that products over many terms are cut into: two waves of an H200, where two fit a multiprocessor.
const BLOCKS: usize = 512;
/// Stages of a part at the least.
const LEAST_STAGES: usize = 32;
/// Products from which on tensor cores are taken; below, launches bind.
const LEAST_PRODUCTS: usize = 1 << 24;

const SOURCE: KernelSource = KernelSource::embedded("layers/dense/cuda/tensor.cu", include_str!("tensor.cu"));
const HEADERS: &[Header] = &[crate::kernels::MMA, crate::kernels::TF32];
const ENTRIES: [&str; 5] =
    ["tensor_map_along", "tensor_map_beside", "tensor_gradient", "tensor_sums_along", "tensor_sums_beside"];

/// The form in which the kernels are compiled.
pub(super) fn specialisation() -> Specialisation {
    let mut spec = Specialisation::new(SOURCE, &ENTRIES);
    spec.headers = HEADERS;
    spec.archs = Archs::AtLeast(80);
    spec
}

pub(super) fn along(c: Channels) -> bool {
    c.groups == c.count
}

/// Why a problem is not for tensor cores, if it is not.
pub(super) fn refusal(p: &Dense, compute_capability: (u32, u32)) -> Option<&'static str> {
    let beside = p.from.groups == 1;
    if compute_capability < (8, 0) {
        Some("which wants compute capability 8.0")
    } else if !along(p.to) || !(along(p.from) || beside) {
        Some("which writes [B, H, T] from [B, D, T] or [B, T, D]")
    } else if p.rows() == 0 || p.from.count == 0 || p.to.count == 0 {
        Some("which wants something to do")
    } else if blocks(p).max(p.batch * p.steps.div_ceil(TERMS)).max(p.steps) > i32::MAX as usize / 2 {
        Some("which counts steps and blocks in 32 bits")
    } else {
        None
    }
}

/// Whether tensor cores pay.
pub(super) fn pays(p: &Dense) -> bool {
    p.rows().saturating_mul(p.from.count).saturating_mul(p.to.count) >= LEAST_PRODUCTS
}

/// Tiles of a matrix.
fn tiles(tile: [usize; 2], rows: usize, columns: usize) -> usize {
    rows.div_ceil(tile[0]) * columns.div_ceil(tile[1])
}

/// Blocks of the products, at the most.
fn blocks(p: &Dense) -> usize {
    let (d, h) = (p.from.count, p.to.count);
    let sums = parts_of_sums(p) * tiles(TALL, h, d);
    let maps = tiles(WIDE, h, p.steps).max(parts_of_gradient(p) * tiles(WIDE, d, p.steps));
    maps.saturating_mul(p.batch).max(sums)
}

/// Parts of the sums over steps, of which each is `[H, D + 1]`; of sizes alone.
pub(super) fn parts_of_sums(p: &Dense) -> usize {
    parts(tiles(TALL, p.to.count, p.from.count), p.batch * p.steps.div_ceil(TERMS))
}
/// Parts of the gradient of x, of which each is as large as x: 1 is x itself.
pub(super) fn parts_of_gradient(p: &Dense) -> usize {
    if !p.grad_x || !along(p.from) {
        return 1;
    }
    parts(p.batch * tiles(WIDE, p.from.count, p.steps), p.to.count.div_ceil(TERMS))
}
fn parts(tiles: usize, stages: usize) -> usize {
    BLOCKS.div_ceil(tiles.max(1)).min(stages / LEAST_STAGES).max(1)
}

/// A side of a product, as in the kernels.
struct Side {
    base: u64,
    stride: usize,
    batch: usize,
    by_terms: bool,
}
/// A product, as in the kernels.
struct Product {
    entry: usize,
    tile: [usize; 2],
    a: Side,
    b: Side,
    to: u64,
    bias: u64,
    /// From a row to the next, from a batch row to the next, from a part to the next.
    stride: [usize; 3],
    rows: usize,
    columns: usize,
    terms: usize,
    term_batches: usize,
    parts: usize,
    batch: usize,
}

impl Product {
    fn bytes(&self) -> Vec<u8> {
        let whole =
            |address: u64, strides: &[usize]| address.is_multiple_of(16) && strides.iter().all(|s| s.is_multiple_of(4));
        let side = |s: &Side| [s.base, s.stride as u64, s.batch as u64, u64::from(whole(s.base, &[s.stride, s.batch]))];
        let sizes = [self.rows, self.columns, self.terms, self.term_batches, self.parts].map(|n| n as u64);
        let words = [&side(&self.a)[..], &side(&self.b), &[self.to, self.bias], &self.stride.map(|n| n as u64), &sizes];
        let aligned = [u64::from(whole(self.to, &self.stride))];
        words.concat().into_iter().chain(aligned).flat_map(u64::to_ne_bytes).collect()
    }
    fn config(&self) -> LaunchConfig {
        let blocks = tiles(self.tile, self.rows, self.columns) * self.parts * self.batch;
        LaunchConfig::new((blocks as u32, 1, 1), (THREADS, 1, 1))
            .shared(shared(self.tile, [&self.a, &self.b].map(|s| s.by_terms)))
    }
}

/// Bytes of the ring.
fn shared(tile: [usize; 2], by_terms: [bool; 2]) -> u32 {
    let side = |(own, by_terms)| if by_terms { TERMS * (own + TERM_GAP) } else { own * ROW_PITCH };
    (4 * RING * tile.into_iter().zip(by_terms).map(side).sum::<usize>()) as u32
}

/// The kernels.
pub(super) struct Tensor {
    kernels: Vec<Kernel>,
}

/// What is launched: a kernel, its grid, and its argument.
pub(super) type Launch<'a> = (&'a Kernel, LaunchConfig, Vec<u8>);

impl Tensor {
    pub(super) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        let spec = specialisation();
        let kernels: Vec<Kernel> = ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?;
        let sides = [[false, true], [false, false], [true, true], [false, false], [false, true]];
        for (i, (kernel, sides)) in kernels.iter().zip(sides).enumerate() {
            kernel.set_max_dynamic_shared(shared(if i < 3 { WIDE } else { TALL }, sides))?;
        }
        Ok(Self { kernels })
    }

    fn launch(&self, p: &Product) -> Launch<'_> {
        (&self.kernels[p.entry], p.config(), p.bytes())
    }

    /// y.
    pub(super) fn map(&self, p: &Dense, x: u64, weight: u64, bias: u64, y: u64) -> Launch<'_> {
        let (d, h, t) = (p.from.count, p.to.count, p.steps);
        let along = along(p.from);
        self.launch(&Product {
            entry: if along { 0 } else { 1 },
            tile: WIDE,
            a: Side { base: weight, stride: d, batch: 0, by_terms: false },
            b: Side { base: x, stride: if along { t } else { d }, batch: d * t, by_terms: along },
            to: y,
            bias,
            stride: [t, h * t, 0],
            rows: h,
            columns: t,
            terms: d,
            term_batches: 1,
            parts: 1,
            batch: p.batch,
        })
    }

    /// The parts of the gradient of x, or itself; none where x does not lie along time.
    pub(super) fn gradient(&self, p: &Dense, weight: u64, grad_y: u64, to: u64) -> Option<Launch<'_>> {
        let (d, h, t) = (p.from.count, p.to.count, p.steps);
        along(p.from).then(|| {
            self.launch(&Product {
                entry: 2,
                tile: WIDE,
                a: Side { base: weight, stride: d, batch: 0, by_terms: true },
                b: Side { base: grad_y, stride: t, batch: h * t, by_terms: true },
                to,
                bias: 0,
                stride: [t, d * t, p.batch * d * t],
                rows: d,
                columns: t,
                terms: h,
                term_batches: 1,
                parts: parts_of_gradient(p),
                batch: p.batch,
            })
        })
    }

    /// The parts of the sums over steps, `[parts, H, D + 1]`.
    pub(super) fn sums(&self, p: &Dense, x: u64, grad_y: u64, to: u64) -> Launch<'_> {
        let (d, h, t) = (p.from.count, p.to.count, p.steps);
        let along = along(p.from);
        self.launch(&Product {
            entry: if along { 3 } else { 4 },
            tile: TALL,
            a: Side { base: grad_y, stride: t, batch: h * t, by_terms: false },
            b: Side { base: x, stride: if along { t } else { d }, batch: d * t, by_terms: !along },
            to,
            bias: 0,
            stride: [d + 1, 0, h * (d + 1)],
            rows: h,
            columns: d,
            terms: t,
            term_batches: p.batch,
            parts: parts_of_sums(p),
            batch: 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Variant, choose};
    use super::*;

    #[test]
    fn tensor_cores_are_taken_where_they_are_and_pay() {
        let along = Channels::along;
        let large = Dense::new(8, 2048, along(128), along(8192)).unwrap();
        let small = Dense::new(2, 70, along(20), along(130)).unwrap();
        let turned = Dense::new(8, 2048, along(128), Channels::beside(8192)).unwrap();
        let picked = |p: &Dense, cc| choose(p, cc, None).unwrap() == Variant::Mma;
        assert!(picked(&large, (8, 0)) && picked(&large, (12, 0)));
        assert!(!picked(&large, (7, 5)) && !picked(&small, (9, 0)) && !picked(&turned, (9, 0)));
        let asked = |p: &Dense, variant| choose(p, (9, 0), Some(variant)).unwrap();
        assert_eq!([asked(&small, "mma"), asked(&large, "simt")], [Variant::Mma, Variant::Simt]);
        assert_eq!(asked(&small, "wgmma"), Variant::Wgmma);
        let says = |p: &Dense, cc, variant| choose(p, cc, Some(variant)).unwrap_err().to_string();
        assert!(says(&large, (7, 5), "mma").contains("wants compute capability 8.0"));
        assert!(says(&turned, (9, 0), "mma").contains("writes [B, H, T]"));
        assert!(says(&large, (8, 0), "wgmma").contains("wants compute capability 9.0"));
        assert!(says(&turned, (9, 0), "wgmma").contains("writes [B, H, T]"));
        assert!(says(&large, (9, 0), "wide").contains("variant `wide` is not one of simt, mma, wgmma"));
        // Two waves of an H200, and no part of a few steps.
        assert_eq!((parts_of_sums(&large), parts_of_gradient(&large)), (6, 3));
        assert_eq!((parts_of_sums(&small), parts_of_gradient(&small)), (1, 1));
        let endless = Dense::new(1 << 20, 1 << 12, along(1), along(1 << 20)).unwrap();
        assert!(says(&endless, (9, 0), "mma").contains("in 32 bits"));
    }

    /// Two blocks fit a multiprocessor of an A100 and of an H200, and one the smaller ones.
    #[test]
    fn rings_fit() {
        for (tile, sides) in
            [(WIDE, [false, true]), (WIDE, [false, false]), (WIDE, [true, true]), (TALL, [false, false])]
        {
            let bytes = shared(tile, sides);
            assert!(2 * (bytes + 1024) <= 164 << 10 && bytes <= 99 << 10, "{bytes}");
        }
    }
}
