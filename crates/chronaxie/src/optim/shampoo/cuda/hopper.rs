//! Launches of what hopper.cu has: blocks that are matrices on Hopper's tensor cores.

use super::super::spec::{Grafting, Shampoo};
use super::Same;
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::optim::ongpu::{THREADS, Tables};
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
/// Blocks of threads a multiprocessor that stride over tiles of moments.
const BLOCKS_PER_SM: usize = 2;

pub(super) fn specialisation() -> Specialisation {
    let source = KernelSource::embedded("optim/shampoo/cuda/hopper.cu", include_str!("hopper.cu"));
    plates::specialisation(Specialisation::new(source, &ENTRIES))
}

/// What a launch is: a kernel, how, and its arguments.
pub(super) type Visit<'a> = &'a mut dyn FnMut(&Kernel, LaunchConfig, &[Arg<'_>]) -> Result<()>;

/// Plates, their kernels and their scratch.
pub(super) struct Hopper {
    pub plates: Plates,
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
struct Numbers {
    squares: Arg<'static>,
    ln_beta1: Arg<'static>,
    ln_second: Arg<'static>,
    eps: Arg<'static>,
}

impl Numbers {
    fn new(p: &Shampoo) -> Self {
        let ln = |beta: f64| if beta == 1.0 { 0.0 } else { beta.ln() };
        Self {
            squares: Arg::I32(i32::from(p.grafting.squares())),
            ln_beta1: Arg::F64(ln(p.beta1)),
            ln_second: Arg::F64(if p.grafting == Grafting::Adam { ln(p.beta2) } else { 0.0 }),
            eps: Arg::F32(p.grafting_eps as f32),
        }
    }
}

impl Hopper {
    pub(super) fn new(p: &Shampoo, device: &Arc<CudaDevice>, least: usize, layout: &mut Layout) -> Result<Self> {
        let spec = specialisation();
        let kernels: Vec<Kernel> = ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?;
        for of in [Of::Rows, Of::Columns, Of::Left, Of::Right] {
            plates::prepare(&kernels[of as usize])?;
        }
        let plates = Plates::new(device, &p.grid, least)?;
        let (tiles, products) = (plates.tiles.jobs, plates.products.jobs);
        let bytes = tiles.saturating_mul(BLOCK_BYTES);
        Ok(Self {
            plates,
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
        let [first, count] = self.first();
        let [g, m] = self.packed.map(|id| s.region(id));
        let [of_g, of_m] = self.scales.map(|id| s.region(id));
        let (keep2, new2) = p.second_weights();
        let numbers = Numbers::new(p);
        let clip = Arg::F64(p.common.clip);
        let weights = [
            Arg::F32(p.common.pull() as f32),
            Arg::F32(p.beta1 as f32),
            Arg::F32((1.0 - p.beta1) as f32),
            Arg::F32(keep2 as f32),
            Arg::F32(new2 as f32),
        ];
        let addresses = [s.grad, s.decay, s.parameter, s.first, s.second];
        let [grad, decay, parameter, first_moment, second_moment] = addresses.map(Arg::U64);
        let mut list = vec![
            Arg::U64(self.plates.plates),
            first,
            grad,
            decay,
            parameter,
            s.region(s.partials),
            Arg::U64(s.step),
            first_moment,
            second_moment,
            Arg::U64(s.grad_norm),
            g,
            of_g,
            m,
            of_m,
            s.region(self.want),
            Arg::I32(self.plates.tiles.jobs as i32),
            count,
            s.runs,
            numbers.squares,
            aligned(&addresses),
            clip,
        ];
        list.extend(weights);
        list.extend([numbers.ln_beta1, numbers.ln_second, numbers.eps]);
        let blocks = self.plates.tiles.jobs.min(BLOCKS_PER_SM * self.multiprocessors);
        self.put(Of::Moments, LaunchConfig::new((blocks as u32, 1, 1), (THREADS, 1, 1)), &list, visit)?;
        if others.chunks.jobs == 0 {
            return Ok(());
        }
        let mut list = vec![
            Arg::U64(others.blocks),
            Arg::U64(others.chunks.of),
            Arg::U64(others.chunks.first),
            grad,
            decay,
            parameter,
            s.region(s.partials),
            s.region(s.g),
            first_moment,
            second_moment,
            Arg::I32(others.chunks.count as i32),
            s.runs,
            numbers.squares,
            clip,
        ];
        list.extend(weights);
        self.put(Of::Others, LaunchConfig::new((others.chunks.jobs as u32, 1, 1), (THREADS, 1, 1)), &list, visit)
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
        let ln_beta1 = Numbers::new(p).ln_beta1;
        let list = [at, first, left, of_left, Arg::U64(s.roots), s.region(s.odd), step, have, tiles, count, ln_beta1];
        self.put(Of::Right, config, &list, visit)?;
        let grafts = Arg::I32(i32::from(p.grafting != Grafting::None));
        let list = [at, self.first()[0], first, s.region(self.want), have, s.region(s.scales), grafts];
        self.put(Of::Scales, LaunchConfig::new((self.plates.count as u32, 1, 1), (THREADS, 1, 1)), &list, visit)
    }
    /// The parameters of plates.
    pub(super) fn update(&self, p: &Shampoo, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        let [first, count] = self.first();
        let numbers = Numbers::new(p);
        let product = s.address(s.odd);
        let addresses = [product, s.first, s.second, s.decay, s.parameter];
        let list = [
            Arg::U64(self.plates.plates),
            first,
            Arg::U64(product),
            Arg::U64(s.first),
            Arg::U64(s.second),
            s.region(s.scales),
            Arg::U64(s.decay),
            Arg::U64(s.rate),
            Arg::U64(s.largest),
            Arg::U64(s.step),
            Arg::U64(s.parameter),
            count,
            Arg::I32(p.start_preconditioning_step as i32),
            aligned(&addresses),
            numbers.ln_beta1,
            numbers.ln_second,
            numbers.eps,
            numbers.squares,
            Arg::I32(p.common.mode as i32),
            Arg::F64(p.common.weight_decay),
        ];
        let tiles = self.plates.tiles.jobs as u32;
        self.put(Of::Update, LaunchConfig::new((tiles, 1, 1), (THREADS, 1, 1)), &list, visit)
    }
    /// Where the numbers of plates' first blocks of numbers are, and how many plates.
    fn first(&self) -> [Arg<'static>; 2] {
        [Arg::U64(self.plates.tiles.first), Arg::I32(self.plates.count as i32)]
    }
}

/// Whether all of them are multiples of 16.
fn aligned(addresses: &[u64]) -> Arg<'static> {
    Arg::I32(i32::from(addresses.iter().all(|a| a.is_multiple_of(16))))
}
