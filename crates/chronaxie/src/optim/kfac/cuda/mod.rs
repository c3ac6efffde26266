//! Launches of KFAC's step: kfac.cu, and for the sides whose turn it is eigen.cu or solve.cu.
#![allow(unsafe_code)]

mod tables;

use super::spec::{Damping, Kfac, MOST_PI, NAME};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::kernels::{Header, MEET, SUMS};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::jacobi::{self, EIGENBASIS, JACOBI, Jacobi};
use crate::optim::ongpu::{STEPPER, THREADS, Visit};
use crate::optim::stepper::Runs;
use crate::{Dtype, Layout, Place, RegionId, Result};
use std::sync::Arc;
use tables::{Jobs, Tables, elements, turns};

/// A kernel, by its place in [`STEP`] and behind them [`SOLVE`].
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
    Inverse,
}
const STEP: [&str; 10] = ["squares", "look", "mix", "gather", "before", "divide", "after", "bound", "move", "others"];
const SOLVE: [&str; 1] = ["inverse"];
const MAPS: Header = ("maps.cuh", include_str!("maps.cuh"));
const HEADERS: &[Header] = &[SUMS, STEPPER, MAPS];
const EIGEN_HEADERS: &[Header] = &[MEET, SUMS, JACOBI, EIGENBASIS, STEPPER, MAPS];
/// Bytes that the workspaces of all blocks of solve.cu may take.
const WORK_BYTES: usize = 1 << 30;

pub(super) fn specialisations() -> Vec<Specialisation> {
    let step = KernelSource::embedded("optim/kfac/cuda/kfac.cu", include_str!("kfac.cu"));
    let mut step = Specialisation::new(step, &STEP);
    let solve = KernelSource::embedded("optim/kfac/cuda/solve.cu", include_str!("solve.cu"));
    let mut solve = Specialisation::new(solve, &SOLVE);
    (step.headers, solve.headers) = (HEADERS, HEADERS);
    vec![step, solve, eigen()]
}

fn eigen() -> Specialisation {
    let source = KernelSource::embedded("optim/kfac/cuda/eigen.cu", include_str!("eigen.cu"));
    let mut spec = Specialisation::new(source, &[jacobi::CLEAR, "eigen"]);
    spec.headers = EIGEN_HEADERS;
    spec
}

/// Sides of a turn that groups of blocks of one size take, by their places in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    from: usize,
    end: usize,
    /// The longest.
    order: usize,
}

/// Of lengths that fall those that go together: none is less than half of its class's first.
fn classes(sizes: &[usize]) -> Vec<Class> {
    let mut all: Vec<Class> = Vec::new();
    for (y, &n) in sizes.iter().enumerate() {
        match all.last_mut().filter(|c| 2 * n >= c.order) {
            Some(class) => class.end = y + 1,
            None => all.push(Class { from: y, end: y + 1, order: n }),
        }
    }
    all
}

/// Where the workspaces of blocks begin that solve sides of at most these orders, which fall; as many as the memory has, and where
/// the last one ends: doubles.
fn workspaces(sizes: &[usize]) -> (Vec<usize>, usize) {
    let (mut at, mut end) = (Vec::new(), 0usize);
    for &n in sizes {
        let own = (2 * n * n).next_multiple_of(32);
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
    /// What makes eigenvectors, a launch each.
    eigen: Vec<(Class, Jacobi)>,
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
    /// Of eigenvectors: lengths of rows, and counters of groups.
    lengths: T,
    counters: T,
}

/// Addresses of one call; zeros where launches are only counted.
#[derive(Debug, Clone, Copy, Default)]
struct At {
    inputs: [u64; 5],
    outputs: [u64; 11],
    scratch: Regions<u64>,
}

impl CudaPlan {
    pub(super) fn new(problem: Kfac, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let mut kernels = Vec::new();
        // The last of them is jacobi.rs's.
        for (spec, entries) in specialisations().iter().zip([&STEP[..], &SOLVE[..]]) {
            for entry in entries {
                kernels.push(device.kernel(spec, entry)?);
            }
        }
        // The first step solves all.
        let every = if problem.opens { 1 } else { problem.inverse_frequency };
        let (_, sizes) = turns(&problem, every);
        let exact = problem.mode == Damping::Exact;
        let (work_at, work) = if exact { (Vec::new(), 0) } else { workspaces(&sizes) };
        let of_class = |c: Class| {
            Ok::<_, crate::Error>((c.clone(), Jacobi::new(device, &eigen(), "eigen", c.end - c.from, c.order)?))
        };
        let classes = if exact { classes(&sizes) } else { Vec::new() };
        let eigen = classes.into_iter().map(of_class).collect::<Result<Vec<_>>>()?;
        let most = |of: &dyn Fn(&(Class, Jacobi)) -> usize| eigen.iter().map(of).max().unwrap_or(0);
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
            work: layout.push("work", Dtype::F64, work.max(most(&|(_, j)| j.work())))?,
            lengths: layout.push("lengths", Dtype::F64, most(&|(c, j)| j.groups() * c.order))?,
            counters: layout.push("counters", Dtype::I32, most(&|(_, j)| j.counters()))?,
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
            eigen,
            problem,
        })
    }
    /// Every launch of a step, in order.
    fn each(&self, at: &At, visit: Visit<'_>) -> Result<()> {
        let (p, t, s) = (&self.problem, &self.tables, &at.scratch);
        let [grad, decay, rate, seen, seen_squares] = at.inputs.map(Arg::U64);
        let [parameter, first, second, factors, bases, values, squares, averaged, step, largest, grad_norm] =
            at.outputs.map(Arg::U64);
        let [partials, scales, before, bad] = [s.partials, s.scales, s.before, s.bad].map(Arg::U64);
        let [agreements, x, turned, u, work] = [s.agreements, s.x, s.t, s.u, s.work].map(Arg::U64);
        let maps = Arg::U64(t.maps);
        let put = |of: Of, blocks: usize, list: &[Arg<'_>], visit: Visit<'_>| match blocks {
            0 => Ok(()),
            _ => {
                let config = LaunchConfig::new((blocks as u32, 1, 1), (THREADS, 1, 1));
                visit(&self.kernels[of as usize], config, list)
            }
        };
        let of = |jobs: &Jobs| (Arg::U64(jobs.first), Arg::I32(jobs.count as i32));
        let runs = Arg::I32(self.runs.count as i32);
        let list = [grad, partials, rate, step, largest, Arg::I64(p.elements as i64), Arg::I64(self.runs.run as i64)];
        put(Of::Squares, self.runs.count.max(1), &list, visit)?;
        let (parts, count) = of(&t.parts);
        let every = Arg::I32(p.factor_frequency as i32);
        put(
            Of::Look,
            t.parts.jobs,
            &[maps, parts, seen, seen_squares, averaged, step, before, bad, count, every],
            visit,
        )?;
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
        put(Of::Mix, t.parts.jobs, &list, visit)?;
        let (due, work_at) = (Arg::U64(t.turns), Arg::U64(t.work_at));
        let (every, rows) = (Arg::I32(self.every as i32), Arg::I32(self.rows as i32));
        let exact = p.mode == Damping::Exact;
        if exact {
            for (class, jacobi) in &self.eigen {
                let own = [
                    Arg::U64(at.scratch.lengths),
                    maps,
                    due,
                    factors,
                    step,
                    bases,
                    values,
                    Arg::I32(class.order as i32),
                    every,
                    rows,
                    Arg::I32(class.from as i32),
                    Arg::I32(class.end as i32),
                ];
                jacobi.launch([at.scratch.work, at.scratch.counters], false, &own, visit)?;
            }
        } else {
            let (root, most) = (Arg::F64(p.damping.sqrt()), Arg::F64(MOST_PI));
            put(
                Of::Inverse,
                self.blocks,
                &[maps, due, work_at, factors, step, work, bases, every, rows, root, most],
                visit,
            )?;
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
        put(Of::Gather, t.chunks.jobs.max(1), &list, visit)?;
        let (tiles, count) = of(&t.tiles);
        let left = |from, to, back| [maps, tiles, bases, from, to, count, Arg::I32(back)];
        put(Of::Before, t.tiles.jobs, &left(x, turned, 0), visit)?;
        if exact {
            let (ekfac, damping) = (Arg::I32(i32::from(p.ekfac)), Arg::F32(p.damping as f32));
            let list = [maps, tiles, bases, values, step, turned, squares, u, count, every, ekfac, damping];
            put(Of::Divide, t.tiles.jobs, &list, visit)?;
            put(Of::Before, t.tiles.jobs, &left(u, turned, 1), visit)?;
        }
        put(Of::After, t.tiles.jobs, &[maps, tiles, bases, turned, x, u, agreements, count], visit)?;
        put(Of::Bound, 1, &[agreements, rate, scales, Arg::I64(t.tiles.jobs as i64), Arg::F64(p.kl_clip)], visit)?;
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
        put(Of::Move, t.chunks.jobs, &list, visit)?;
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
        put(Of::Others, t.rest.jobs, &list, visit)
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
        (pass == Pass::Step).then_some(&self.signature)
    }
    fn config(&self) -> String {
        format!(
            "{NAME} simt: {} maps, {} tiles; {} {} in a turn, at most, over {}",
            self.problem.maps.len(),
            self.tables.tiles.jobs,
            self.rows,
            if self.problem.mode == Damping::Exact { "eigenbases" } else { "inverses" },
            match &self.eigen[..] {
                [] => format!("{} blocks", self.blocks),
                all => all.iter().map(|(_, j)| j.config()).collect::<Vec<_>>().join(", "),
            }
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
                lengths: region(r.lengths),
                counters: region(r.counters),
            },
        };
        let stream = args.stream;
        self.each(&at, &mut |kernel, config, list| {
            // SAFETY: the arguments are those of the kernel's signature in kfac.cu, solve.cu, eigen.cu or what they include; the views were
            // checked against the signature, the scratch holds the layout and the tables belong to this plan.
            unsafe { kernel.launch(stream, &config, list) }
        })
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        let mut all = Vec::new();
        self.each(&At::default(), &mut |kernel, c, _| {
            all.push(LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes)?);
            Ok(())
        })?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names stand where their kernels are looked up.
    #[test]
    fn kernels_have_their_places() {
        let name = |of: Of| STEP.iter().chain(&SOLVE).nth(of as usize).copied();
        let some = [Of::Squares, Of::Mix, Of::Before, Of::After, Of::Others, Of::Inverse].map(name);
        let want = ["squares", "mix", "before", "after", "others", "inverse"].map(Some);
        assert_eq!(some, want);
    }

    /// Of every class the shortest is at least half as long as the longest.
    #[test]
    fn sides_of_about_one_size_go_together() {
        let class = |from, end, order| Class { from, end, order };
        assert_eq!(classes(&[]), []);
        assert_eq!(classes(&[9, 7, 5, 4, 2, 1, 1]), [class(0, 3, 9), class(3, 5, 4), class(5, 7, 1)]);
        assert_eq!(classes(&[512; 3]), [class(0, 3, 512)]);
    }

    /// Workspaces take a bounded memory, and at least one has its place.
    #[test]
    fn workspaces_are_bounded() {
        assert_eq!(workspaces(&[]), (vec![], 0));
        assert_eq!(workspaces(&[8, 1, 1]), (vec![0, 128, 160], 192));
        let (at, end) = workspaces(&[2048; 100]);
        assert!(at.len() == 16 && end <= WORK_BYTES / 8, "{at:?} {end}");
        assert_eq!(workspaces(&[1 << 15, 1 << 15]).0, [0]);
    }
}
