//! Launches of KFAC's step: kfac.cu, and for the sides whose turn it is solve.cu.
#![allow(unsafe_code)]

mod tables;

use super::spec::{Damping, Kfac, MOST_PI, NAME};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::kernels::{Header, SUMS};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::ongpu::{STEPPER, THREADS};
use crate::optim::stepper::Runs;
use crate::{Dtype, Layout, Place, RegionId, Result};
use std::sync::Arc;
use tables::{Jobs, Tables, elements, turns};

/// A kernel, by its place in [`STEP`] and behind them in [`SOLVE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Squares,
    Look,
    Mix,
    Gather,
    Before,
    Divide,
    After,
    Bound,
    Move,
    Others,
    Eigen,
    Inverse,
}
const STEP: [&str; 10] = ["squares", "look", "mix", "gather", "before", "divide", "after", "bound", "move", "others"];
const SOLVE: [&str; 2] = ["eigen", "inverse"];
const HEADERS: &[Header] = &[SUMS, STEPPER, ("maps.cuh", include_str!("maps.cuh"))];
/// As in solve.cu.
const EIGEN_THREADS: u32 = 512;
/// Bytes that the workspaces of all blocks of solve.cu may take.
const WORK_BYTES: usize = 1 << 30;

pub(super) fn specialisations() -> Vec<Specialisation> {
    let step = KernelSource::embedded("optim/kfac/cuda/kfac.cu", include_str!("kfac.cu"));
    let mut step = Specialisation::new(step, &STEP);
    let solve = KernelSource::embedded("optim/kfac/cuda/solve.cu", include_str!("solve.cu"));
    let mut solve = Specialisation::new(solve, &SOLVE);
    (step.headers, solve.headers) = (HEADERS, HEADERS);
    vec![step, solve]
}

/// Where the workspaces of blocks begin that solve sides of at most these orders, which fall; as many as the memory has, and where
/// the last one ends: doubles.
fn workspaces(sizes: &[usize]) -> (Vec<usize>, usize) {
    let (mut at, mut end) = (Vec::new(), 0usize);
    for &n in sizes {
        let own = (2 * n * n + 6 * n).next_multiple_of(32);
        if !at.is_empty() && end + own > WORK_BYTES / 8 {
            break;
        }
        at.push(end);
        end += own;
    }
    (at, end)
}

pub(super) struct CudaPlan {
    problem: Kfac,
    device: Arc<CudaDevice>,
    kernels: Vec<Kernel>,
    signature: Signature,
    layout: Layout,
    runs: Runs,
    tables: Tables,
    every: usize,
    /// Sides of the longest turn, and blocks of threads that solve them.
    rows: usize,
    blocks: usize,
    regions: Regions,
}

/// Regions of the scratch, and their addresses.
#[derive(Debug, Clone, Copy, Default)]
struct Regions<T = RegionId> {
    partials: T,
    /// The gradient's scale and what the step is made shorter by.
    scales: T,
    before: T,
    bad: T,
    agreements: T,
    /// `[H, A]` of every map: the gradient, and two that take turns.
    x: T,
    t: T,
    u: T,
    work: T,
}

/// Addresses of one call; zeros where launches are only counted.
#[derive(Debug, Clone, Copy, Default)]
struct At {
    inputs: [u64; 5],
    outputs: [u64; 11],
    scratch: Regions<u64>,
}

/// What launches: a kernel, its blocks of threads, its arguments.
type Put<'a> = &'a mut dyn FnMut(Of, usize, &[Arg<'_>]) -> Result<()>;

impl CudaPlan {
    pub(super) fn new(problem: Kfac, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let mut kernels = Vec::new();
        for (spec, entries) in specialisations().iter().zip([&STEP[..], &SOLVE[..]]) {
            for entry in entries {
                kernels.push(device.kernel(spec, entry)?);
            }
        }
        // The first step solves all.
        let every = if problem.opens { 1 } else { problem.inverse_frequency };
        let (_, sizes) = turns(&problem, every);
        let (work_at, work) = workspaces(&sizes);
        let tables = Tables::new(device, &problem, every, &work_at)?;
        let runs = Runs::new(problem.elements);
        let all: usize = problem.maps.iter().map(elements).sum();
        let mut layout = Layout::new(options.scratch_gap);
        let regions = Regions {
            partials: layout.push("partials", Dtype::F64, runs.count)?,
            scales: layout.push("scales", Dtype::F32, 2)?,
            before: layout.push("before", Dtype::F32, problem.maps.len())?,
            bad: layout.push("bad", Dtype::I32, tables.parts.jobs)?,
            agreements: layout.push("agreements", Dtype::F64, tables.tiles.jobs)?,
            x: layout.push("x", Dtype::F32, all)?,
            t: layout.push("t", Dtype::F32, all)?,
            u: layout.push("u", Dtype::F32, all)?,
            work: layout.push("work", Dtype::F64, work)?,
        };
        Ok(Self {
            device: device.clone(),
            kernels,
            signature: problem.signature_of(Pass::Step)?,
            layout,
            runs,
            tables,
            every,
            rows: sizes.len(),
            blocks: work_at.len(),
            regions,
            problem,
        })
    }
    /// Every launch of a step, in order.
    fn each(&self, at: &At, put: Put<'_>) -> Result<()> {
        let (p, t, s) = (&self.problem, &self.tables, &at.scratch);
        let [grad, decay, rate, seen, seen_squares] = at.inputs.map(Arg::U64);
        let [parameter, first, second, factors, bases, values, squares, averaged, step, largest, grad_norm] =
            at.outputs.map(Arg::U64);
        let [partials, scales, before, bad] = [s.partials, s.scales, s.before, s.bad].map(Arg::U64);
        let [agreements, x, turned, u, work] = [s.agreements, s.x, s.t, s.u, s.work].map(Arg::U64);
        let maps = Arg::U64(t.maps);
        let of = |jobs: &Jobs| (Arg::U64(jobs.first), Arg::I32(jobs.count as i32));
        let runs = Arg::I32(self.runs.count as i32);
        let list = [grad, partials, rate, step, largest, Arg::I64(p.elements as i64), Arg::I64(self.runs.run as i64)];
        put(Of::Squares, self.runs.count.max(1), &list)?;
        let (parts, count) = of(&t.parts);
        let every = Arg::I32(p.factor_frequency as i32);
        put(Of::Look, t.parts.jobs, &[maps, parts, seen, seen_squares, averaged, step, before, bad, count, every])?;
        let list = [
            maps,
            parts,
            seen,
            seen_squares,
            before,
            bad,
            step,
            factors,
            squares,
            averaged,
            count,
            every,
            Arg::F64(p.decay),
        ];
        put(Of::Mix, t.parts.jobs, &list)?;
        let (due, work_at) = (Arg::U64(t.turns), Arg::U64(t.work_at));
        let (every, rows) = (Arg::I32(self.every as i32), Arg::I32(self.rows as i32));
        let exact = p.mode == Damping::Exact;
        if exact {
            let list = [maps, due, work_at, factors, step, work, bases, values, every, rows];
            put(Of::Eigen, self.blocks, &list)?;
        } else {
            let (root, most) = (Arg::F64(p.damping.sqrt()), Arg::F64(MOST_PI));
            put(Of::Inverse, self.blocks, &[maps, due, work_at, factors, step, work, bases, every, rows, root, most])?;
        }
        let (chunks, count) = of(&t.chunks);
        let list = [
            maps,
            chunks,
            grad,
            decay,
            parameter,
            partials,
            x,
            grad_norm,
            scales,
            count,
            runs,
            Arg::F64(p.common.clip),
            Arg::F32(p.common.pull() as f32),
        ];
        // Somebody writes the norm.
        put(Of::Gather, t.chunks.jobs.max(1), &list)?;
        let (tiles, count) = of(&t.tiles);
        let left = |from, to, back| [maps, tiles, bases, from, to, count, Arg::I32(back)];
        put(Of::Before, t.tiles.jobs, &left(x, turned, 0))?;
        if exact {
            let (ekfac, damping) = (Arg::I32(i32::from(p.ekfac)), Arg::F32(p.damping as f32));
            let list = [maps, tiles, bases, values, step, turned, squares, u, count, every, ekfac, damping];
            put(Of::Divide, t.tiles.jobs, &list)?;
            put(Of::Before, t.tiles.jobs, &left(u, turned, 1))?;
        }
        put(Of::After, t.tiles.jobs, &[maps, tiles, bases, turned, x, u, agreements, count])?;
        put(Of::Bound, 1, &[agreements, rate, scales, Arg::I64(t.tiles.jobs as i64), Arg::F64(p.kl_clip)])?;
        let (chunks, count) = of(&t.chunks);
        let list = [
            maps,
            chunks,
            u,
            decay,
            rate,
            largest,
            scales,
            parameter,
            first,
            count,
            Arg::I32(p.common.mode as i32),
            Arg::F64(p.common.weight_decay),
            Arg::F32(p.momentum as f32),
        ];
        put(Of::Move, t.chunks.jobs, &list)?;
        let (chunks, count) = of(&t.rest);
        let list = [
            Arg::U64(t.others),
            chunks,
            grad,
            decay,
            rate,
            scales,
            step,
            parameter,
            first,
            second,
            count,
            Arg::F64(p.beta1.ln()),
            Arg::F64(p.beta2.ln()),
            Arg::F32(p.beta1 as f32),
            Arg::F32((1.0 - p.beta1) as f32),
            Arg::F32(p.beta2 as f32),
            Arg::F32((1.0 - p.beta2) as f32),
            Arg::F64(p.adamw_rate),
            Arg::F64(p.common.weight_decay),
            Arg::F32(p.epsilon as f32),
        ];
        put(Of::Others, t.rest.jobs, &list)
    }
}

fn threads(which: Of) -> u32 {
    if which == Of::Eigen { EIGEN_THREADS } else { THREADS }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Step).then_some(&self.signature)
    }
    fn config(&self) -> String {
        format!(
            "{NAME} simt: {} maps, {} tiles; {} {} in a turn, at most, over {} blocks",
            self.problem.maps.len(),
            self.tables.tiles.jobs,
            self.rows,
            if self.problem.mode == Damping::Exact { "eigenbases" } else { "inverses" },
            self.blocks
        )
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
            outputs: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|i| args.outputs[i].address()),
            scratch: Regions {
                partials: region(r.partials),
                scales: region(r.scales),
                before: region(r.before),
                bad: region(r.bad),
                agreements: region(r.agreements),
                x: region(r.x),
                t: region(r.t),
                u: region(r.u),
                work: region(r.work),
            },
        };
        let stream = args.stream;
        self.each(&at, &mut |which, blocks, list| {
            if blocks == 0 {
                return Ok(());
            }
            let config = LaunchConfig::new((blocks as u32, 1, 1), (threads(which), 1, 1));
            // SAFETY: the arguments are those of the kernel's signature in kfac.cu, solve.cu or what they include; the views were
            // checked against the signature, the scratch holds the layout and the tables belong to this plan.
            unsafe { self.kernels[which as usize].launch(stream, &config, list) }
        })
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        let mut all: Vec<(Of, usize, usize)> = Vec::new();
        self.each(&At::default(), &mut |which, blocks, _| {
            match all.iter_mut().find(|(of, ..)| *of == which) {
                _ if blocks == 0 => {}
                Some((_, n, _)) => *n += 1,
                None => all.push((which, 1, blocks)),
            }
            Ok(())
        })?;
        all.into_iter()
            .map(|(which, n, blocks)| {
                let grid = (blocks as u32, 1, 1);
                LaunchReport::new(&self.kernels[which as usize], n, grid, (threads(which), 1, 1), 0)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names stand where their kernels are looked up.
    #[test]
    fn kernels_have_their_places() {
        let name = |of: Of| STEP.iter().chain(&SOLVE).nth(of as usize).copied();
        let some = [Of::Squares, Of::Mix, Of::Before, Of::After, Of::Others, Of::Eigen, Of::Inverse].map(name);
        let want = ["squares", "mix", "before", "after", "others", "eigen", "inverse"].map(Some);
        assert_eq!(some, want);
    }

    /// Workspaces take a bounded memory, and at least one has its place.
    #[test]
    fn workspaces_are_bounded() {
        assert_eq!(workspaces(&[]), (vec![], 0));
        assert_eq!(workspaces(&[8, 1, 1]), (vec![0, 192, 224], 256));
        let (at, end) = workspaces(&[2048; 100]);
        assert!(at.len() == 15 && end <= WORK_BYTES / 8, "{at:?} {end}");
        assert_eq!(workspaces(&[1 << 15, 1 << 15]).0, [0]);
    }
}
