//! Launches of what hopper.cu has: matrices on Hopper's tensor cores.

use super::super::spec::{Matrix, Muon, QUINTIC};
use super::Same;
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Kernel, KernelSource, LaunchConfig, Specialisation, upload};
use crate::op::Precision;
use crate::optim::ongpu::{Jobs, Visit, Words};
use crate::optim::plates::{self, BLOCK_BYTES, EDGE, SIDE, triangle};
use crate::{Dtype, Layout, RegionId, Result};
use std::sync::Arc;

/// A kernel, by its place in [`ENTRIES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Momentum,
    Divide,
    Gram,
    Pack,
    Advance,
    Apply,
}
const ENTRIES: [&str; 6] =
    ["plate_momentum", "plate_divide", "plate_triangles", "plate_pack", "plate_advance", "plate_apply"];

pub(super) fn specialisation(precision: Precision) -> Specialisation {
    let source = KernelSource::embedded("optim/muon/cuda/hopper.cu", include_str!("hopper.cu"));
    let mut spec = plates::specialisation(Specialisation::new(source, &ENTRIES), Precision::Exact);
    spec.constants = vec![("kFast", (precision == Precision::Fast).into())];
    spec
}

/// Plates, their kernels and their scratch.
pub(super) struct Hopper {
    kernels: Vec<Kernel>,
    /// Holds the tables.
    _buffer: DeviceBuffer,
    pub count: usize,
    /// `Plate`s of the matrices, and of their triangles.
    plates: u64,
    squares: u64,
    /// 64 x 64 of the matrices, and on and below the diagonal; 128 x 128 there, and of the matrices.
    tiles: Jobs,
    pairs: Jobs,
    pub gram: Jobs,
    pub products: Jobs,
    multiprocessors: usize,
    /// x and the next x as blocks of numbers, and the whole of t; their scales.
    packed: [RegionId; 3],
    scales: [RegionId; 3],
    triangles: RegionId,
    sums: RegionId,
}

impl Hopper {
    pub(super) fn new(
        list: &[Matrix],
        precision: Precision,
        device: &Arc<CudaDevice>,
        layout: &mut Layout,
    ) -> Result<Self> {
        let spec = specialisation(precision);
        let kernels: Vec<Kernel> = ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?;
        for of in [Of::Gram, Of::Advance] {
            plates::prepare(&kernels[of as usize])?;
        }
        let sides = |n: usize| n.div_ceil(SIDE);
        let (mut w, mut blocks, mut of_t, mut numbers) = (Words::default(), 0, 0, 0);
        let (mut lying, mut squares) = (Vec::new(), Vec::new());
        for m in list {
            let (side, length) = (m.side(), m.elements() / m.side());
            let stands = usize::from(m.rows > m.columns);
            // Both axes have the same triangle.
            lying.extend([m.first, m.columns, side, length, blocks, numbers, numbers, 0, 0, stands]);
            squares.extend([0, side, side, side, of_t, numbers, numbers, 0, 0, 0]);
            blocks += sides(side) * sides(length);
            of_t += sides(side) * sides(side);
            numbers += side * (side + 1) / 2;
        }
        let [lying, squares] = [lying, squares].map(|words| w.push(words));
        let mut of = |jobs: &dyn Fn(usize, usize) -> usize| {
            w.jobs(list.iter().map(|m| jobs(m.side(), m.elements() / m.side())).enumerate())
        };
        let mut jobs = [
            of(&|side, length| sides(side) * sides(length))?,
            of(&|side, _| sides(side) * (sides(side) + 1) / 2)?,
            of(&|side, _| triangle(side, EDGE))?,
            of(&|side, length| side.div_ceil(EDGE) * length.div_ceil(EDGE))?,
        ];
        let buffer = upload(device, &w.0, [w.0.len()])?;
        let address = |words: usize| buffer.address() + 8 * words as u64;
        for j in &mut jobs {
            (j.of, j.first) = (address(j.of as usize), address(j.first as usize));
        }
        let [tiles, pairs, gram, products] = jobs;
        let mut bytes = |name, tiles: usize| layout.push(name, Dtype::U8, tiles.saturating_mul(BLOCK_BYTES));
        let packed = [bytes("x in blocks", blocks)?, bytes("y in blocks", blocks)?, bytes("t in blocks", of_t)?];
        let mut numbers_of = |name, n| layout.push(name, Dtype::F32, n);
        Ok(Self {
            kernels,
            count: list.len(),
            plates: address(lying),
            squares: address(squares),
            _buffer: buffer,
            tiles,
            pairs,
            gram,
            products,
            multiprocessors: device.props().sm_count as usize,
            packed,
            scales: [
                numbers_of("scales of x", blocks)?,
                numbers_of("scales of y", blocks)?,
                numbers_of("scales of t", of_t)?,
            ],
            triangles: numbers_of("triangles", numbers)?,
            sums: layout.push("sums of squares", Dtype::F64, blocks)?,
        })
    }
    /// All of the matrices' step, behind the sums of squares of the gradient.
    pub(super) fn step(&self, p: &Muon, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        let mut put = |of: Of, config: LaunchConfig, list: &[Arg<'_>]| visit(&self.kernels[of as usize], config, list);
        let count = |jobs: &Jobs| Arg::I32(jobs.count as i32);
        let first = |jobs: &Jobs| Arg::U64(jobs.first);
        let [lying, squares] = [self.plates, self.squares].map(Arg::U64);
        let [mut x, mut y, t] = [0, 1, 2].map(|i| [self.packed[i], self.scales[i]].map(|id| s.region(id)));
        let [triangles, sums] = [self.triangles, self.sums].map(|id| s.region(id));
        let aligned = plates::aligned(&[s.grad, s.decay, s.parameter, s.first]);
        let [grad, decay, parameter, of_first, rate, largest] =
            [s.grad, s.decay, s.parameter, s.first, s.rate, s.largest].map(Arg::U64);
        let list = [
            lying,
            first(&self.tiles),
            grad,
            decay,
            parameter,
            s.partials,
            of_first,
            x[0],
            x[1],
            sums,
            count(&self.tiles),
            Arg::I32(s.runs as i32),
            aligned,
            Arg::F64(p.common.clip),
            Arg::F32(p.common.pull() as f32),
            Arg::F32(p.momentum as f32),
            Arg::I32(i32::from(p.nesterov)),
        ];
        put(Of::Momentum, plates::each(self.tiles.jobs), &list)?;
        put(Of::Divide, plates::each(self.count), &[lying, first(&self.tiles), sums, x[1], triangles])?;
        let [a, b, c] = QUINTIC.map(|q| Arg::F32(q as f32));
        let gram = |plates, of: [Arg<'static>; 2], keep, weight| {
            let tiles = Arg::I32(self.gram.jobs as i32);
            [plates, first(&self.gram), of[0], of[1], triangles, tiles, count(&self.gram), keep, weight]
        };
        let (of_gram, of_pairs) = (plates::config(self.multiprocessors, self.gram.jobs), plates::each(self.pairs.jobs));
        for _ in 0..p.steps {
            put(Of::Gram, of_gram, &gram(lying, x, Arg::F32(0.0), Arg::F32(1.0)))?;
            let packed = |a| [squares, first(&self.pairs), triangles, t[0], t[1], count(&self.pairs), a];
            put(Of::Pack, of_pairs, &packed(Arg::F32(0.0)))?;
            put(Of::Gram, of_gram, &gram(squares, t, b, c))?;
            put(Of::Pack, of_pairs, &packed(a))?;
            let tiles = Arg::I32(self.products.jobs as i32);
            let count = count(&self.products);
            let list = [lying, squares, first(&self.products), t[0], t[1], x[0], x[1], y[0], y[1], tiles, count];
            put(Of::Advance, plates::config(self.multiprocessors, self.products.jobs), &list)?;
            std::mem::swap(&mut x, &mut y);
        }
        let numbers = [count(&self.tiles), aligned, Arg::I32(p.common.mode as i32), Arg::F64(p.common.weight_decay)];
        let list = [lying, first(&self.tiles), x[0], x[1], decay, rate, largest, parameter];
        put(Of::Apply, plates::each(self.tiles.jobs), &[&list[..], &numbers].concat())
    }
}
