//! Launches of what fast.cu has: blocks that are matrices on Hopper's tensor cores with precision `fast`.

use super::super::spec::{Grafting, Shampoo};
use super::hopper::{Numbers, moments, update};
use super::{PoolTurn, Same};
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Kernel, KernelSource, LaunchConfig, Specialisation, upload};
use crate::op::Precision;
use crate::optim::blocks::Grid;
use crate::optim::inverse_root::Beside;
use crate::optim::ongpu::{THREADS as STRIDER_THREADS, Tables, Visit};
use crate::optim::plates::{self, BESIDE_HEADERS, HALF_BYTES, PARTS, Plates, Rest, SIDE, SLAB, is_plate};
use crate::{Dtype, Layout, RegionId, Result};
use std::sync::Arc;

/// A kernel, by its place in [`ENTRIES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Largest,
    Bounds,
    Moments,
    Others,
    Roots,
    Due,
    Gram,
    Left,
    Right,
    Scales,
    Update,
}
const ENTRIES: [&str; 11] = [
    "half_largest",
    "half_bounds",
    "half_moments",
    "other_moments",
    "half_roots",
    "half_due",
    "half_gram",
    "half_left",
    "half_right",
    "plate_scales",
    "half_update",
];
/// Blocks of threads a multiprocessor of what strides over rows of roots, and over tiles for their largest numbers.
const STRIDERS: usize = 4;

pub(super) fn specialisation() -> Specialisation {
    let source = KernelSource::embedded("optim/shampoo/cuda/fast.cu", include_str!("fast.cu"));
    plates::specialisation(Specialisation::new(source, &ENTRIES), Precision::Fast)
}
/// What rounds roots beside Newton's iterations.
pub(super) fn beside() -> Specialisation {
    let source = KernelSource::embedded("optim/shampoo/cuda/beside.cu", include_str!("beside.cu"));
    let mut spec = plates::specialisation(Specialisation::new(source, &["newton_beside"]), Precision::Fast);
    spec.headers = BESIDE_HEADERS;
    spec
}

/// The pools whose roots are made a few a step, where those of all plates are rounded beside one of them.
struct Turn {
    /// Holds the table.
    _buffer: DeviceBuffer,
    /// By pool, `[members]`: which root of a plate a member is, or -1.
    entries: Vec<u64>,
    /// The pool beside whose roots it is done.
    pool: usize,
}

/// Plates, their kernels and their scratch.
pub(super) struct Fast {
    pub plates: Plates,
    rest: Rest,
    /// The least side of a plate.
    pub least: usize,
    kernels: Vec<Kernel>,
    multiprocessors: usize,
    turn: Option<Turn>,
    /// g as tiles, later R_0 m; m, later the step; the roots.
    g: RegionId,
    m: RegionId,
    roots: RegionId,
    /// Of each warp of a tile the largest of g, m and decay times the parameter; of a plate bounds of g and m; of 16 rows of a root
    /// the largest.
    largest: RegionId,
    bounds: RegionId,
    of_roots: RegionId,
    /// Sums that warps leave: of the grafting's step, and of its own.
    want: RegionId,
    have: RegionId,
    /// What parts of the step are divided by.
    downs: RegionId,
}

impl Fast {
    pub(super) fn new(p: &Shampoo, device: &Arc<CudaDevice>, least: usize, layout: &mut Layout) -> Result<Self> {
        let spec = specialisation();
        let kernels: Vec<Kernel> = ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?;
        for of in [Of::Gram, Of::Left, Of::Right] {
            plates::prepare(&kernels[of as usize])?;
        }
        let plates = Plates::new(device, &p.grid, least, Precision::Fast)?;
        let rest = Rest::new(device, p.elements, &p.parameters, &p.grid, least)?;
        let (tiles, products, slabs) = (plates.tiles.jobs, plates.products.jobs, plates.slabs.jobs);
        let bytes = |tiles: usize| tiles.saturating_mul(HALF_BYTES);
        Ok(Self {
            rest,
            least,
            kernels,
            turn: None,
            multiprocessors: device.props().sm_count as usize,
            g: layout.push("g in tiles", Dtype::U8, bytes(tiles))?,
            m: layout.push("m in tiles", Dtype::U8, bytes(tiles))?,
            roots: layout.push("roots in tiles", Dtype::U8, bytes(plates.root_tiles))?,
            largest: layout.push("largest numbers of tiles", Dtype::F32, 3 * PARTS * tiles)?,
            bounds: layout.push("bounds of plates", Dtype::F32, 2 * plates.count)?,
            of_roots: layout.push("largest numbers of roots", Dtype::F32, slabs)?,
            want: layout.push("parts of the grafting's norms", Dtype::F64, PARTS * tiles)?,
            have: layout.push("parts of norms", Dtype::F64, PARTS * products)?,
            downs: layout.push("scales of the step", Dtype::F32, PARTS * products)?,
            plates,
        })
    }
    /// What is to be done beside the roots of a pool, of which few have their turn in a step.
    pub(super) fn beside(&self, device: &Arc<CudaDevice>) -> Result<Beside> {
        let kernel = device.kernel(&beside(), "newton_beside")?;
        // A root's element and its half.
        Ok(Beside { kernel, bytes: 6 * SIDE * SIDE * self.plates.root_tiles })
    }
    /// From now on roots are rounded beside those of that pool, but for those that are made in a step.
    pub(super) fn round_beside(&mut self, device: &Arc<CudaDevice>, grid: &Grid, pool: usize) -> Result<()> {
        let mut nth = vec![None; grid.blocks.len()];
        let plates = grid.blocks.iter().enumerate().filter(|(_, b)| is_plate(b, self.least));
        plates.enumerate().for_each(|(m, (i, _))| nth[i] = Some(m));
        let entry = |&(block, axis): &(usize, usize)| nth[block].map_or(-1, |m: usize| (2 * m + axis) as i64);
        let words: Vec<i64> = grid.pools.iter().flat_map(|p| p.members.iter().map(entry)).collect();
        let buffer = upload(device, &words, [words.len()])?;
        let mut at = buffer.address();
        let mut entries = Vec::new();
        for p in &grid.pools {
            entries.push(at);
            at += 8 * p.members.len() as u64;
        }
        self.turn = Some(Turn { _buffer: buffer, entries, pool });
        Ok(())
    }
    /// The arguments of what is done beside the roots of that pool, if it is.
    pub(super) fn own(&self, s: &Same<'_>, pool: usize) -> Option<[Arg<'static>; 8]> {
        self.turn.as_ref().filter(|t| t.pool == pool).map(|_| self.rounding(s))
    }
    /// What half_roots takes.
    fn rounding(&self, s: &Same<'_>) -> [Arg<'static>; 8] {
        let slabs = &self.plates.slabs;
        let [count, entries] = [slabs.jobs, slabs.count].map(|n| Arg::I32(n as i32));
        let [plates, first, root_at, roots] =
            [self.plates.plates, slabs.first, self.plates.root_at, s.roots].map(Arg::U64);
        [plates, first, root_at, roots, s.region(self.roots), s.region(self.of_roots), count, entries]
    }
    /// Roots as f16: all of them, or those of a pool that were made in this step.
    fn round(&self, s: &Same<'_>, turns: &[PoolTurn], visit: Visit<'_>) -> Result<()> {
        let Some(turn) = &self.turn else {
            return self.put(Of::Roots, self.striding(self.plates.slabs.jobs), &self.rounding(s), visit);
        };
        for t in turns {
            let mut list = self.rounding(s).to_vec();
            list.extend([turn.entries[t.pool], t.due, s.step].map(Arg::U64));
            list.extend([t.every, t.start].map(|n| Arg::I32(n as i32)));
            let slabs = t.size.div_ceil(SIDE) * (SIDE / SLAB);
            let grid = (slabs as u32, t.rows as u32, 1);
            self.put(Of::Due, LaunchConfig::new(grid, (STRIDER_THREADS, 1, 1)), &list, visit)?;
        }
        Ok(())
    }
    fn put(&self, of: Of, config: LaunchConfig, list: &[Arg<'_>], visit: Visit<'_>) -> Result<()> {
        visit(&self.kernels[of as usize], config, list)
    }
    fn striding(&self, jobs: usize) -> LaunchConfig {
        plates::each(jobs.min(STRIDERS * self.multiprocessors))
    }
    /// Sums of squares of the gradient that there are.
    pub(super) fn sums(&self) -> usize {
        (self.plates.tiles.jobs + self.rest.pieces.jobs).min(STRIDERS * self.multiprocessors)
    }
    /// Sums of squares of the gradient, and the largest numbers of plates; counts the step.
    pub(super) fn squares(&self, p: &Shampoo, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        let (tiles, pieces) = (&self.plates.tiles, &self.rest.pieces);
        let [plates, first, runs, first_piece, alone] =
            [self.plates.plates, tiles.first, self.rest.runs, pieces.first, self.rest.alone].map(Arg::U64);
        let [grad, mean, decay, parameter, rate, step, largest_rate] =
            [s.grad, s.first, s.decay, s.parameter, s.rate, s.step, s.largest].map(Arg::U64);
        let [tile_count, count, piece_count, run_count] =
            [tiles.jobs, tiles.count, pieces.jobs, pieces.count].map(|n| Arg::I32(n as i32));
        let whole = plates::aligned(&[s.grad, s.first, s.decay, s.parameter]);
        let list = [
            plates,
            first,
            runs,
            first_piece,
            alone,
            grad,
            mean,
            decay,
            parameter,
            s.region(s.partials),
            rate,
            step,
            largest_rate,
            s.region(self.largest),
            tile_count,
            count,
            piece_count,
            run_count,
            whole,
            Arg::I32(i32::from(p.common.pull() != 0.0)),
        ];
        self.put(Of::Largest, plates::each(self.sums()), &list, visit)
    }
    /// Moments of plates and of all other blocks.
    pub(super) fn moments(&self, p: &Shampoo, s: &Same<'_>, others: &Tables, visit: Visit<'_>) -> Result<()> {
        let bounds = s.address(self.bounds);
        let packed = [self.g, self.m].map(|id| s.address(id));
        let m = moments(p, s, packed, [bounds; 2], s.address(self.want));
        let tiles = &self.plates.tiles;
        let (first, pull) = (Arg::U64(tiles.first), p.common.pull() as f32);
        let list = [
            first,
            s.region(self.largest),
            Arg::U64(m.partials),
            Arg::U64(bounds),
            Arg::I32(s.runs as i32),
            Arg::F64(p.common.clip),
            Arg::F32(pull),
            Arg::F32(p.beta1 as f32),
            Arg::F32((1.0 - p.beta1) as f32),
        ];
        self.put(Of::Bounds, plates::each(self.plates.count), &list, visit)?;
        let striding = plates::striding(self.multiprocessors, tiles.jobs);
        self.put(Of::Moments, striding, &m.of_halves(&self.plates), visit)?;
        if others.chunks.jobs == 0 {
            return Ok(());
        }
        self.put(Of::Others, plates::each(others.chunks.jobs), &m.of_others(others), visit)
    }
    /// The factors of plates.
    pub(super) fn gram(&self, p: &Shampoo, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        let (keep, weight) = p.weights();
        for jobs in &self.plates.gram {
            let list = [
                Arg::U64(self.plates.plates),
                Arg::U64(jobs.first),
                s.region(self.g),
                s.region(self.bounds),
                Arg::U64(s.factors),
                Arg::I32(jobs.jobs as i32),
                Arg::I32(jobs.count as i32),
                Arg::F32(keep as f32),
                Arg::F32(weight as f32),
            ];
            self.put(Of::Gram, plates::config(self.multiprocessors, jobs.jobs), &list, visit)?;
        }
        Ok(())
    }
    /// Products with the roots, and the factors that give steps the grafting's norms.
    pub(super) fn products(&self, p: &Shampoo, s: &Same<'_>, turns: &[PoolTurn], visit: Visit<'_>) -> Result<()> {
        self.round(s, turns, visit)?;
        let (jobs, slabs) = (&self.plates.products, &self.plates.slabs);
        let (at, first) = (Arg::U64(self.plates.plates), Arg::U64(jobs.first));
        let (of_slabs, root_at) = (Arg::U64(slabs.first), Arg::U64(self.plates.root_at));
        let [g, m, roots, of_roots, bounds] =
            [self.g, self.m, self.roots, self.of_roots, self.bounds].map(|id| s.region(id));
        let (tiles, count) = (Arg::I32(jobs.jobs as i32), Arg::I32(jobs.count as i32));
        let config = plates::config(self.multiprocessors, jobs.jobs);
        let list = [at, first, of_slabs, root_at, m, roots, of_roots, bounds, g, tiles, count];
        self.put(Of::Left, config, &list, visit)?;
        let (step, have) = (Arg::U64(s.step), s.region(self.have));
        let ln_beta1 = Arg::F64(Numbers::new(p).ln_beta1);
        let downs = s.region(self.downs);
        let list =
            [at, first, of_slabs, root_at, g, roots, of_roots, bounds, m, downs, step, have, tiles, count, ln_beta1];
        self.put(Of::Right, config, &list, visit)?;
        let grafts = Arg::I32(i32::from(p.grafting != Grafting::None));
        let of_tiles = Arg::U64(self.plates.tiles.first);
        let list = [at, of_tiles, first, s.region(self.want), have, s.region(s.scales), grafts];
        self.put(Of::Scales, plates::each(self.plates.count), &list, visit)
    }
    /// The parameters of plates.
    pub(super) fn update(&self, p: &Shampoo, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        let mut list = update(p, s, &self.plates, s.address(self.m));
        list.extend([Arg::U64(self.plates.products.first), s.region(self.downs)]);
        self.put(Of::Update, plates::each(self.plates.tiles.jobs), &list, visit)
    }
}
