//! Launches of factors: factors.cu.
#![allow(unsafe_code)]

use super::spec::{Factors, NAME, Sharing, Terms};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::op::{Args, Channels, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::ongpu::{MAP_HEADERS, THREADS, TILE};
use crate::{Dtype, Error, Layout, Place, RegionId, Result};
use std::sync::Arc;

const ENTRIES: [&str; 5] = ["count", "pool", "turn", "sums", "fold"];
/// A kernel, by its place in [`ENTRIES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Count,
    Pool,
    Turn,
    Sums,
    Fold,
}
/// Floats that the sums of all runs may take, and how many runs there are at the most.
const MOST_FLOATS: usize = 1 << 24;
const MOST_RUNS: usize = 64;
/// Samples of a run are a multiple of these.
const LEAST_RUN: usize = 256;
/// Channels, one more for the ones, that blocks of eight warps along an axis have.
const MOST_CHANNELS: usize = 8 * 65535 - 1;

pub(super) fn specialisations() -> Vec<Specialisation> {
    let source = KernelSource::embedded("optim/kfac/factors/cuda/factors.cu", include_str!("factors.cu"));
    let mut spec = Specialisation::new(source, &ENTRIES);
    spec.headers = MAP_HEADERS;
    vec![spec]
}

/// How the sums are cut: a function of the problem alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    /// Samples, padding included.
    rows: usize,
    /// Samples of a run, and how many runs there are.
    run: usize,
    runs: usize,
    /// Tiles of A's triangle, of G's, and of the squares.
    tiles: [usize; 3],
}

impl Cut {
    fn new(p: &Factors) -> Self {
        let (a, h) = (p.inputs().div_ceil(TILE), p.to.count.div_ceil(TILE));
        let triangle = |n: usize| n * (n + 1) / 2;
        let tiles = [triangle(a), triangle(h), if p.squares { a * h } else { 0 }];
        let rows = p.batch * if p.sharing == Sharing::Reduce { 1 } else { p.steps };
        let sum = tiles.iter().sum::<usize>().saturating_mul(TILE * TILE);
        let most = (MOST_FLOATS / sum.max(1)).clamp(1, MOST_RUNS);
        let run = rows.div_ceil(most).next_multiple_of(LEAST_RUN).max(LEAST_RUN);
        Self { rows, run, runs: rows.div_ceil(run), tiles }
    }
    fn all(&self) -> usize {
        self.tiles.iter().sum()
    }
}

pub(super) struct CudaPlan {
    problem: Factors,
    device: Arc<CudaDevice>,
    kernels: Vec<Kernel>,
    signature: Signature,
    layout: Layout,
    cut: Cut,
    regions: Regions,
}

/// Regions of the scratch, and their addresses.
#[derive(Debug, Clone, Copy, Default)]
struct Regions<T = RegionId> {
    counts: T,
    pooled: [T; 2],
    turned: [T; 2],
    partial: T,
}

/// Addresses of one call; zeros where launches are only counted.
#[derive(Debug, Clone, Copy, Default)]
struct At {
    inputs: [u64; 5],
    outputs: [u64; 3],
    scratch: Regions<u64>,
}

/// What a side of the map is read as: an address, its channels, and how many columns its matrix has.
#[derive(Debug, Clone, Copy)]
struct Side {
    of: u64,
    channels: Channels,
    columns: usize,
}

impl Side {
    fn sizes(&self) -> [Arg<'static>; 2] {
        [self.channels.count, self.channels.width().max(1)].map(|n| Arg::I32(n as i32))
    }
}

/// What launches: a kernel, its grid, its arguments.
type Put<'a> = &'a mut dyn FnMut(Of, [usize; 2], &[Arg<'_>]) -> Result<()>;

impl CudaPlan {
    pub(super) fn new(problem: Factors, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let (a, h) = (problem.inputs(), problem.to.count);
        for (name, n) in [("D", problem.from.count), ("H", h)] {
            if n > MOST_CHANNELS {
                return Err(Error::shape(format!("{NAME}: {name} = {n} is beyond {MOST_CHANNELS}")));
            }
        }
        let cut = Cut::new(&problem);
        let blocks = (cut.all().saturating_mul(TILE * TILE / THREADS as usize)).max(cut.rows.div_ceil(TILE));
        if blocks.max(problem.batch) > i32::MAX as usize {
            return Err(Error::shape(format!(
                "{NAME}: {blocks} tiles over {} rows exceed what a grid of thread blocks has",
                problem.batch
            )));
        }
        let [spec] = &specialisations()[..] else { return Err(Error::config(format!("{NAME}: one source is wanted"))) };
        let pools = if problem.sharing == Sharing::Reduce { problem.batch } else { 0 };
        let turns = if problem.squares { cut.rows } else { 0 };
        let mut layout = Layout::new(options.scratch_gap);
        let mut push = |name, dtype, n| layout.push(name, dtype, n);
        let regions = Regions {
            counts: push("counts", Dtype::F64, 2)?,
            pooled: [push("pooled_x", Dtype::F32, pools * a)?, push("pooled_grad", Dtype::F32, pools * h)?],
            turned: [push("turned_x", Dtype::F32, turns * a)?, push("turned_grad", Dtype::F32, turns * h)?],
            partial: push("partial", Dtype::F32, cut.runs * cut.all() * TILE * TILE)?,
        };
        Ok(Self {
            device: device.clone(),
            kernels: ENTRIES.iter().map(|e| device.kernel(spec, e)).collect::<Result<_>>()?,
            signature: problem.signature_of(Pass::Forward)?,
            layout,
            cut,
            regions,
            problem,
        })
    }
    /// Every launch of a call, in order.
    fn each(&self, at: &At, put: Put<'_>) -> Result<()> {
        let (p, cut, s) = (&self.problem, &self.cut, &at.scratch);
        let reduces = p.sharing == Sharing::Reduce;
        let [x, grad, lengths, basis_a, basis_g] = at.inputs;
        let (counts, steps) = (Arg::U64(s.counts), Arg::I64(p.steps as i64));
        if cut.all() == 0 {
            return Ok(());
        }
        let flag = |is: bool| Arg::I32(i32::from(is));
        let by_row = flag(p.terms == Terms::Batch);
        put(Of::Count, [1, 1], &[Arg::U64(lengths), counts, Arg::I64(p.batch as i64), steps, flag(reduces), by_row])?;
        let mut sides = [
            Side { of: x, channels: p.from, columns: p.inputs() },
            Side { of: grad, channels: p.to, columns: p.to.count },
        ];
        // What the samples are read as from here on.
        let (mut lengths, mut steps) = (Arg::U64(lengths), steps);
        if reduces {
            for (k, side) in sides.iter_mut().enumerate() {
                let lanes = if side.channels.width() == 1 { 32 } else { 1 };
                let [count, width] = side.sizes();
                let columns = Arg::I32(side.columns as i32);
                let list = [
                    Arg::U64(side.of),
                    lengths,
                    Arg::U64(s.pooled[k]),
                    steps,
                    count,
                    width,
                    columns,
                    flag(k == 0),
                    Arg::I32(lanes as i32),
                ];
                put(Of::Pool, [p.batch, side.columns.div_ceil(THREADS as usize / lanes)], &list)?;
                *side = Side { of: s.pooled[k], channels: Channels::beside(side.columns), columns: side.columns };
            }
            (lengths, steps) = (Arg::U64(0), Arg::I64(1));
        }
        let rows = Arg::I64(cut.rows as i64);
        if p.squares {
            for (k, (side, basis)) in sides.iter().zip([basis_a, basis_g]).enumerate() {
                let [count, width] = side.sizes();
                let list = [
                    Arg::U64(side.of),
                    lengths,
                    Arg::U64(basis),
                    Arg::U64(s.turned[k]),
                    rows,
                    steps,
                    count,
                    width,
                    Arg::I32(side.columns as i32),
                ];
                put(Of::Turn, [cut.rows.div_ceil(TILE), side.columns.div_ceil(TILE)], &list)?;
            }
        }
        let [tiles_a, tiles_g, _] = cut.tiles.map(|n| Arg::I32(n as i32));
        let ([from, from_width], [to, to_width]) = (sides[0].sizes(), sides[1].sizes());
        let inputs = Arg::I32(p.inputs() as i32);
        let list = [
            Arg::U64(sides[0].of),
            Arg::U64(sides[1].of),
            Arg::U64(s.turned[0]),
            Arg::U64(s.turned[1]),
            lengths,
            Arg::U64(s.partial),
            rows,
            steps,
            Arg::I64(cut.run as i64),
            tiles_a,
            tiles_g,
            from,
            from_width,
            to,
            to_width,
            inputs,
        ];
        put(Of::Sums, [cut.all(), cut.runs], &list)?;
        let [a, g, squares] = at.outputs.map(Arg::U64);
        let list = [
            Arg::U64(s.partial),
            counts,
            a,
            g,
            squares,
            Arg::I64(cut.all() as i64),
            Arg::I32(cut.runs as i32),
            tiles_a,
            tiles_g,
            inputs,
            Arg::I32(p.to.count as i32),
        ];
        put(Of::Fold, [cut.all() * (TILE * TILE / THREADS as usize), 1], &list)
    }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Forward).then_some(&self.signature)
    }
    fn config(&self) -> String {
        let Cut { runs, run, tiles, .. } = self.cut;
        format!("{NAME} simt: {runs} runs of {run} samples, {tiles:?} tiles of A, G and squares")
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let base = args.scratch.address();
        let region = |id| self.layout.address(base, id);
        let r = &self.regions;
        let at = At {
            inputs: [0, 1, 2, 3, 4].map(|i| args.inputs.get(i).map_or(0, |t| t.address())),
            outputs: [0, 1, 2].map(|i| args.outputs.get(i).map_or(0, |t| t.address())),
            scratch: Regions {
                counts: region(r.counts),
                pooled: r.pooled.map(region),
                turned: r.turned.map(region),
                partial: region(r.partial),
            },
        };
        let stream = args.stream;
        self.each(&at, &mut |which, [x, y], list| {
            if x * y == 0 {
                return Ok(());
            }
            let config = LaunchConfig::new((x as u32, y as u32, 1), (THREADS, 1, 1));
            // SAFETY: the arguments are those of the kernel's signature in factors.cu; the views were checked against the signature
            // and the scratch holds the layout.
            unsafe { self.kernels[which as usize].launch(stream, &config, list) }
        })
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        let mut all = Vec::new();
        self.each(&At::default(), &mut |which, [x, y], _| {
            if x * y > 0 {
                let grid = (x as u32, y as u32, 1);
                all.push(LaunchReport::new(&self.kernels[which as usize], 1, grid, (THREADS, 1, 1), 0)?);
            }
            Ok(())
        })?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::LinearMap;

    /// Runs cover all samples, and their sums stay within their bound.
    #[test]
    fn runs_are_bounded() {
        for (batch, steps, d) in [(0, 1, 3), (1, 1, 1), (1 << 16, 1, 8), (64, 4096, 1024), (1 << 20, 0, 3)] {
            let (from, to) = (Channels::beside(d), Channels::beside(d));
            let map = LinearMap { batch, steps, x: "x", grad: "g", weight: "w", bias: None, from, to };
            for squares in [false, true] {
                let cut = Cut::new(&Factors::new(&map).squares(squares));
                let floats = cut.all() * TILE * TILE;
                assert!(cut.runs * floats <= MOST_FLOATS.max(floats) && cut.runs <= MOST_RUNS, "{cut:?}");
                assert!(cut.runs * cut.run >= cut.rows && cut.runs.saturating_sub(1) * cut.run <= cut.rows, "{cut:?}");
            }
        }
    }

    /// Names stand where their kernels are looked up.
    #[test]
    fn kernels_have_their_places() {
        let places = [Of::Count, Of::Pool, Of::Turn, Of::Sums, Of::Fold].map(|of| ENTRIES[of as usize]);
        assert_eq!(places, ENTRIES);
    }
}
