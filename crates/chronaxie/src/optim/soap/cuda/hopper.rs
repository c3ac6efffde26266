//! Launches of what hopper.cu has: the turns of blocks that are matrices on Hopper's tensor cores.

use super::super::spec::{NOISE, Soap};
use super::At;
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::op::Precision;
use crate::optim::ongpu::{Tables, Visit};
use crate::optim::plates::{self, BLOCK_BYTES, Plates};
use crate::{Dtype, Layout, RegionId, Result};
use std::sync::Arc;

/// A kernel, by its place in [`ENTRIES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Moments,
    Others,
    Rows,
    Columns,
    TurnLeft,
    TurnRight,
    BackLeft,
    BackRight,
    Second,
    Divide,
    Apply,
}
const ENTRIES: [&str; 11] = [
    "plate_moments",
    "other_moments",
    "plate_gram_rows",
    "plate_gram_columns",
    "turn_left",
    "turn_right",
    "back_left",
    "back_right",
    "plate_second",
    "plate_divide",
    "plate_apply",
];

pub(super) fn specialisation() -> Specialisation {
    let source = KernelSource::embedded("optim/soap/cuda/hopper.cu", include_str!("hopper.cu"));
    plates::specialisation(Specialisation::new(source, &ENTRIES), Precision::Exact)
}

/// Plates, their kernels and their scratch.
pub(super) struct Hopper {
    pub plates: Plates,
    kernels: Vec<Kernel>,
    multiprocessors: usize,
    /// Blocks of numbers and their scales: of g and later of u, of the first moment, and of what has turned along one axis.
    packed: [RegionId; 3],
    scales: [RegionId; 3],
    peaks: RegionId,
}

impl Hopper {
    pub(super) fn new(p: &Soap, device: &Arc<CudaDevice>, least: usize, layout: &mut Layout) -> Result<Self> {
        let spec = specialisation();
        let kernels: Vec<Kernel> = ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?;
        for of in [Of::Rows, Of::Columns, Of::TurnLeft, Of::TurnRight, Of::BackLeft, Of::BackRight] {
            plates::prepare(&kernels[of as usize])?;
        }
        let plates = Plates::new(device, &p.grid, least, Precision::Exact)?;
        let tiles = plates.tiles.jobs;
        let mut numbers = |name| layout.push(name, Dtype::U8, tiles.saturating_mul(BLOCK_BYTES));
        let packed = [numbers("g in blocks")?, numbers("m in blocks")?, numbers("what turns in blocks")?];
        let mut scale = |name| layout.push(name, Dtype::F32, tiles);
        let scales = [scale("scales of g")?, scale("scales of m")?, scale("scales of what turns")?];
        Ok(Self {
            plates,
            kernels,
            multiprocessors: device.props().sm_count as usize,
            packed,
            scales,
            peaks: scale("peaks of plates")?,
        })
    }
    fn put(&self, of: Of, config: LaunchConfig, list: &[Arg<'_>], visit: Visit<'_>) -> Result<()> {
        visit(&self.kernels[of as usize], config, list)
    }
    /// Moments of plates and of all other blocks, and the factors of plates.
    pub(super) fn begin(&self, p: &Soap, at: &At<'_>, runs: usize, others: &Tables, visit: Visit<'_>) -> Result<()> {
        let [grad, decay, _] = at.inputs;
        let [parameter, first, second, factors, _, step, _, grad_norm] = at.outputs;
        let [g, m, _] = self.packed.map(|id| at.address(id));
        let [of_g, of_m, _] = self.scales.map(|id| at.address(id));
        let moments = plates::Moments {
            tensors: [grad, decay, parameter, first, second],
            partials: at.scratch.partials,
            step,
            grad_norm,
            packed: [g, m],
            scales: [of_g, of_m],
            want: 0,
            g: at.scratch.grad,
            runs,
            // The second moment waits for the basis.
            has_second: false,
            common: p.common,
            beta1: p.beta1,
            second: (0.0, 0.0),
            ln_beta1: p.beta1.ln(),
            ln_second: 0.0,
            eps: 0.0,
        };
        let striding = plates::striding(self.multiprocessors, self.plates.tiles.jobs);
        self.put(Of::Moments, striding, &moments.of_plates(&self.plates), visit)?;
        if others.chunks.jobs > 0 {
            self.put(Of::Others, plates::each(others.chunks.jobs), &moments.of_others(others), visit)?;
        }
        let (keep, weight) = (Arg::F32(p.keep() as f32), Arg::F32((1.0 - p.keep()) as f32));
        for (of, jobs) in [Of::Rows, Of::Columns].into_iter().zip(&self.plates.gram) {
            let (tiles, count) = (Arg::I32(jobs.jobs as i32), Arg::I32(jobs.count as i32));
            let [plates, first, g, of_g, factors] = [self.plates.plates, jobs.first, g, of_g, factors].map(Arg::U64);
            let list = [plates, first, g, of_g, factors, tiles, count, keep, weight];
            self.put(of, plates::config(self.multiprocessors, jobs.jobs), &list, visit)?;
        }
        Ok(())
    }
    /// Blocks of numbers `from`, turned along both axes by `left` and `right`, to the flat vector `to`.
    fn turn(&self, at: &At<'_>, [left, right]: [Of; 2], from: usize, to: u64, visit: Visit<'_>) -> Result<()> {
        let jobs = &self.plates.products;
        let (tiles, count) = (Arg::I32(jobs.jobs as i32), Arg::I32(jobs.count as i32));
        let packed = self.packed.map(|id| Arg::U64(at.address(id)));
        let scales = self.scales.map(|id| Arg::U64(at.address(id)));
        let [plates, first, bases] = [self.plates.plates, jobs.first, at.outputs[4]].map(Arg::U64);
        let config = plates::config(self.multiprocessors, jobs.jobs);
        let list = [plates, first, packed[from], scales[from], bases, packed[2], scales[2], tiles, count];
        self.put(left, config, &list, visit)?;
        let list = [plates, first, packed[2], scales[2], bases, Arg::U64(to), tiles, count];
        self.put(right, config, &list, visit)
    }
    /// The step in the bases, and the parameters of plates: g turns to `grad`, the first moment to `odd`, what comes back is in `even`.
    pub(super) fn step(&self, p: &Soap, at: &At<'_>, visit: Visit<'_>) -> Result<()> {
        let s = &at.scratch;
        let there = [Of::TurnLeft, Of::TurnRight];
        self.turn(at, there, 0, s.grad, visit)?;
        self.turn(at, there, 1, s.odd, visit)?;
        let [parameter, _, second, _, _, step, largest, _] = at.outputs;
        let tiles = self.plates.tiles.jobs;
        let (all, first, count) =
            (Arg::U64(self.plates.plates), Arg::U64(self.plates.tiles.first), Arg::I32(self.plates.count as i32));
        let corrects = Arg::I32(i32::from(p.correct_bias));
        let (ln_beta1, ln_beta2) = (Arg::F64(p.beta1.ln()), Arg::F64(p.beta2.ln()));
        let (keep, new) = (Arg::F32(p.beta2 as f32), Arg::F32((1.0 - p.beta2) as f32));
        let peaks = Arg::U64(at.address(self.peaks));
        let (grad, odd, even) = (Arg::U64(s.grad), Arg::U64(s.odd), Arg::U64(s.even));
        let (v, t) = (Arg::U64(second), Arg::U64(step));
        let whole = plates::aligned(&[s.grad, second]);
        let list = [all, first, grad, t, v, peaks, count, whole, corrects, ln_beta2, keep, new];
        self.put(Of::Second, plates::each(tiles), &list, visit)?;
        let (to, scales) = (Arg::U64(at.address(self.packed[0])), Arg::U64(at.address(self.scales[0])));
        let (eps, noise) = (Arg::F32(p.epsilon as f32), Arg::F32(NOISE as f32));
        let whole = plates::aligned(&[s.odd, second]);
        let list = [all, first, odd, v, peaks, t, to, scales, count, whole, corrects, ln_beta1, ln_beta2, eps, noise];
        self.put(Of::Divide, plates::each(tiles), &list, visit)?;
        self.turn(at, [Of::BackLeft, Of::BackRight], 0, s.even, visit)?;
        let [decay, rate] = [at.inputs[1], at.inputs[2]].map(Arg::U64);
        let whole = plates::aligned(&[s.even, at.inputs[1], parameter]);
        let (mode, weight_decay) = (Arg::I32(p.common.mode as i32), Arg::F64(p.common.weight_decay));
        let (largest, parameter) = (Arg::U64(largest), Arg::U64(parameter));
        let list = [all, first, even, decay, rate, largest, parameter, count, whole, mode, weight_decay];
        self.put(Of::Apply, plates::each(tiles), &list, visit)
    }
}
