//! Launches of what hopper.cu has: blocks that are matrices on Hopper's tensor cores.

use super::super::spec::{Grafting, Shampoo};
use super::Same;
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::op::Precision;
use crate::optim::ongpu::{Tables, Visit};
use crate::optim::plates::{self, BLOCK_BYTES, PARTS, Plates};
use crate::{Dtype, Layout, RegionId, Result};
use std::sync::Arc;

/// A kernel, by its place in [`ENTRIES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Moments,
    Rows,
    Columns,
    Left,
    Right,
    Scales,
    Update,
    Others,
}
const ENTRIES: [&str; 8] = [
    "plate_moments",
    "plate_gram_rows",
    "plate_gram_columns",
    "plate_left",
    "plate_right",
    "plate_scales",
    "plate_update",
    "other_moments",
];

pub(super) fn specialisation() -> Specialisation {
    let source = KernelSource::embedded("optim/shampoo/cuda/hopper.cu", include_str!("hopper.cu"));
    plates::specialisation(Specialisation::new(source, &ENTRIES), Precision::Exact)
}

/// Plates, their kernels and their scratch.
pub(super) struct Hopper {
    pub plates: Plates,
    /// The least side of a plate.
    pub least: usize,
    kernels: Vec<Kernel>,
    multiprocessors: usize,
    /// g as blocks of numbers, later R_0 m; m; the scales of both.
    packed: [RegionId; 2],
    scales: [RegionId; 2],
    /// Sums that warps leave: of the grafting's step, and of its own.
    want: RegionId,
    have: RegionId,
}

/// The numbers of a step that kernels take as they are.
pub(super) struct Numbers {
    pub ln_beta1: f64,
    pub ln_second: f64,
}

impl Numbers {
    pub(super) fn new(p: &Shampoo) -> Self {
        let ln = |beta: f64| if beta == 1.0 { 0.0 } else { beta.ln() };
        Self { ln_beta1: ln(p.beta1), ln_second: if p.grafting == Grafting::Adam { ln(p.beta2) } else { 0.0 } }
    }
}

impl Hopper {
    pub(super) fn new(p: &Shampoo, device: &Arc<CudaDevice>, least: usize, layout: &mut Layout) -> Result<Self> {
        let spec = specialisation();
        let kernels: Vec<Kernel> = ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?;
        for of in [Of::Rows, Of::Columns, Of::Left, Of::Right] {
            plates::prepare(&kernels[of as usize])?;
        }
        let plates = Plates::new(device, &p.grid, least, Precision::Exact)?;
        let (tiles, products) = (plates.tiles.jobs, plates.products.jobs);
        let bytes = tiles.saturating_mul(BLOCK_BYTES);
        Ok(Self {
            plates,
            least,
            kernels,
            multiprocessors: device.props().sm_count as usize,
            packed: [layout.push("g in blocks", Dtype::U8, bytes)?, layout.push("m in blocks", Dtype::U8, bytes)?],
            scales: [layout.push("scales of g", Dtype::F32, tiles)?, layout.push("scales of m", Dtype::F32, tiles)?],
            want: layout.push("parts of the grafting's norms", Dtype::F64, PARTS * tiles)?,
            have: layout.push("parts of norms", Dtype::F64, PARTS * products)?,
        })
    }
    fn put(&self, of: Of, config: LaunchConfig, list: &[Arg<'_>], visit: Visit<'_>) -> Result<()> {
        visit(&self.kernels[of as usize], config, list)
    }
    /// Moments of plates and of all other blocks.
    pub(super) fn moments(&self, p: &Shampoo, s: &Same<'_>, others: &Tables, visit: Visit<'_>) -> Result<()> {
        let [packed, scales] = [self.packed, self.scales].map(|of| of.map(|id| s.address(id)));
        let m = moments(p, s, packed, scales, s.address(self.want));
        let striding = plates::striding(self.multiprocessors, self.plates.tiles.jobs);
        self.put(Of::Moments, striding, &m.of_plates(&self.plates), visit)?;
        if others.chunks.jobs == 0 {
            return Ok(());
        }
        self.put(Of::Others, plates::each(others.chunks.jobs), &m.of_others(others), visit)
    }
    /// The factors of plates.
    pub(super) fn gram(&self, p: &Shampoo, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        let (keep, weight) = p.weights();
        for (of, jobs) in [Of::Rows, Of::Columns].into_iter().zip(&self.plates.gram) {
            let list = [
                Arg::U64(self.plates.plates),
                Arg::U64(jobs.first),
                s.region(self.packed[0]),
                s.region(self.scales[0]),
                Arg::U64(s.factors),
                Arg::I32(jobs.jobs as i32),
                Arg::I32(jobs.count as i32),
                Arg::F32(keep as f32),
                Arg::F32(weight as f32),
            ];
            self.put(of, plates::config(self.multiprocessors, jobs.jobs), &list, visit)?;
        }
        Ok(())
    }
    /// Products with the roots, and the factors that give steps the grafting's norms.
    pub(super) fn products(&self, p: &Shampoo, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        let jobs = &self.plates.products;
        let (at, first) = (Arg::U64(self.plates.plates), Arg::U64(jobs.first));
        let (tiles, count) = (Arg::I32(jobs.jobs as i32), Arg::I32(jobs.count as i32));
        let [left, m] = self.packed.map(|id| s.region(id));
        let [of_left, of_m] = self.scales.map(|id| s.region(id));
        let config = plates::config(self.multiprocessors, jobs.jobs);
        let list = [at, first, m, of_m, Arg::U64(s.roots), left, of_left, tiles, count];
        self.put(Of::Left, config, &list, visit)?;
        let (step, have) = (Arg::U64(s.step), s.region(self.have));
        let ln_beta1 = Arg::F64(Numbers::new(p).ln_beta1);
        let list = [at, first, left, of_left, Arg::U64(s.roots), s.region(s.odd), step, have, tiles, count, ln_beta1];
        self.put(Of::Right, config, &list, visit)?;
        let grafts = Arg::I32(i32::from(p.grafting != Grafting::None));
        let of_tiles = Arg::U64(self.plates.tiles.first);
        let list = [at, of_tiles, first, s.region(self.want), have, s.region(s.scales), grafts];
        self.put(Of::Scales, plates::each(self.plates.count), &list, visit)
    }
    /// The parameters of plates.
    pub(super) fn update(&self, p: &Shampoo, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        self.put(Of::Update, plates::each(self.plates.tiles.jobs), &update(p, s, &self.plates, s.address(s.odd)), visit)
    }
}

/// What moments are made of, and where they go: packed, with their scales, and the sums of the grafting's step.
pub(super) fn moments(p: &Shampoo, s: &Same<'_>, packed: [u64; 2], scales: [u64; 2], want: u64) -> plates::Moments {
    let n = Numbers::new(p);
    plates::Moments {
        tensors: [s.grad, s.decay, s.parameter, s.first, s.second],
        partials: s.address(s.partials),
        step: s.step,
        grad_norm: s.grad_norm,
        packed,
        scales,
        want,
        g: s.address(s.g),
        runs: s.runs,
        has_second: p.grafting.squares(),
        common: p.common,
        beta1: p.beta1,
        second: p.second_weights(),
        ln_beta1: n.ln_beta1,
        ln_second: n.ln_second,
        eps: p.grafting_eps,
    }
}

/// Arguments of plate_update, and the first ones of half_update.
pub(super) fn update(p: &Shampoo, s: &Same<'_>, plates: &Plates, product: u64) -> Vec<Arg<'static>> {
    let numbers = Numbers::new(p);
    let addresses = [product, s.first, s.second, s.decay, s.parameter];
    vec![
        Arg::U64(plates.plates),
        Arg::U64(plates.tiles.first),
        Arg::U64(product),
        Arg::U64(s.first),
        Arg::U64(s.second),
        s.region(s.scales),
        Arg::U64(s.decay),
        Arg::U64(s.rate),
        Arg::U64(s.largest),
        Arg::U64(s.step),
        Arg::U64(s.parameter),
        Arg::I32(plates.count as i32),
        Arg::I32(p.start_preconditioning_step as i32),
        plates::aligned(&addresses),
        Arg::F64(numbers.ln_beta1),
        Arg::F64(numbers.ln_second),
        Arg::F32(p.grafting_eps as f32),
        Arg::I32(i32::from(p.grafting.squares())),
        Arg::I32(p.common.mode as i32),
        Arg::F64(p.common.weight_decay),
    ]
}
