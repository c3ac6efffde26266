//! Launches of SOAP's step: what soap.cu has, on Hopper what hopper.cu has for blocks that are matrices, and for each size of a basis
//! what basis.cu has, at the first step behind what eigen.cu has.
#![allow(unsafe_code)]

mod hopper;

use super::spec::{NAME, NOISE, Soap};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::kernels::{MEET, SUMS};
use crate::op::{Args, Cost, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::blocks::Block;
use crate::optim::jacobi::{self, EIGENBASIS, JACOBI, Jacobi};
use crate::optim::ongpu::{self, BLOCK_HEADERS, HEADERS, Jobs, THREADS, TILE, Tables, Visit};
use crate::optim::plates::{self, is_plate};
use crate::optim::stepper::Runs;
use crate::{Dtype, Error, Layout, Place, RegionId, Result};
use hopper::Hopper;
use std::sync::Arc;

/// A kernel, by its place in [`STEP`] and behind them in [`BASIS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Squares,
    Moments,
    Gram,
    Rotate,
    Second,
    Divide,
    Update,
    WideGram,
    WideRotate,
    Stretch,
    Values,
    Order,
    Dots,
    Project,
    Cholesky,
    Solve,
    Refill,
    Fill,
    Keep,
}
const STEP: [&str; 9] =
    ["squares", "moments", "gram", "rotate", "second", "divide", "update", "wide_gram", "wide_rotate"];
const BASIS: [&str; 10] =
    ["stretch", "values", "order", "dots", "project", "cholesky", "solve", "refill", "fill", "keep"];
/// Blocks of threads a multiprocessor where they stride over elements.
const BLOCKS_PER_SM: usize = 8;
/// Columns of a panel.
const PANEL: usize = TILE;

pub(super) fn specialisations() -> Vec<Specialisation> {
    let step = KernelSource::embedded("optim/soap/cuda/soap.cu", include_str!("soap.cu"));
    let mut step = Specialisation::new(step, &STEP);
    step.headers = BLOCK_HEADERS;
    let basis = KernelSource::embedded("optim/soap/cuda/basis.cu", include_str!("basis.cu"));
    let mut basis = Specialisation::new(basis, &BASIS);
    basis.headers = HEADERS;
    vec![step, basis, eigen(), hopper::specialisation()]
}

fn eigen() -> Specialisation {
    let source = KernelSource::embedded("optim/soap/cuda/eigen.cu", include_str!("eigen.cu"));
    let mut spec = Specialisation::new(source, &[jacobi::CLEAR, "eigen"]);
    spec.headers = &[MEET, SUMS, JACOBI, EIGENBASIS];
    spec
}

pub(super) struct CudaPlan {
    problem: Soap,
    device: Arc<CudaDevice>,
    kernels: Vec<Kernel>,
    signature: Signature,
    layout: Layout,
    runs: Runs,
    tables: Tables,
    every: usize,
    /// Whether tiles of Gram matrices and turns are of twice the side.
    wide: bool,
    /// What goes to Hopper's tensor cores, from that side on; the tables have jobs for the rest.
    hopper: Option<(usize, Hopper)>,
    /// By pool, at the first step.
    eigen: Vec<Jacobi>,
    /// Blocks of threads that stride over all elements.
    blocks: usize,
    regions: Regions,
}

/// Regions of the scratch, and their addresses.
#[derive(Debug, Clone, Copy, Default)]
struct Regions<T = RegionId> {
    partials: T,
    grad: T,
    /// What turns: the gradient's other buffer, and two of the first moment.
    grad_odd: T,
    odd: T,
    even: T,
    peaks: T,
    /// Of the largest batch: columns, and what basis.cu knows of them.
    columns: T,
    values: T,
    lengths: T,
    order: T,
    spent: T,
    places: T,
    live: T,
    along: T,
    triangle: T,
    work: T,
    counters: T,
}

/// Addresses of one call; zeros where launches are only counted.
#[derive(Debug, Clone, Copy, Default)]
struct At<'a> {
    inputs: [u64; 3],
    outputs: [u64; 8],
    scratch: Regions<u64>,
    /// Of what else lies in the scratch: where, and from which address on.
    layout: Option<(&'a Layout, u64)>,
}

impl At<'_> {
    fn address(&self, id: RegionId) -> u64 {
        self.layout.map_or(0, |(layout, base)| layout.address(base, id))
    }
}

/// What launches: a kernel, its grid, its arguments.
type Put<'a> = &'a mut dyn FnMut(Of, (usize, usize), &[Arg<'_>]) -> Result<()>;

impl CudaPlan {
    pub(super) fn new(problem: Soap, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let mut kernels = Vec::new();
        for (spec, entries) in specialisations().iter().zip([&STEP[..], &BASIS[..]]) {
            for entry in entries {
                kernels.push(device.kernel(spec, entry)?);
            }
        }
        // The first step makes the bases of all.
        let every = if problem.opens { 1 } else { problem.precondition_frequency };
        let grid = problem.grid.clone();
        let sms = device.props().sm_count as usize;
        let least = Self::least(&problem, device, options)?;
        let wide = least.is_none() && ongpu::wide(&grid, sms);
        let rest = |b: &Block| least.is_none_or(|least| !is_plate(b, least));
        let tables = Tables::new(device, &grid, every, if wide { 2 * TILE } else { TILE }, &rest)?;
        let runs = Runs::new(problem.elements);
        let turns = || grid.pools.iter().zip(&tables.pools);
        let most = |of: &dyn Fn(usize, usize) -> usize| turns().map(|(p, t)| of(t.rows, p.size)).max().unwrap_or(0);
        let rows = most(&|rows, _| rows);
        let vectors = most(&|rows, n| rows * n);
        let pools = turns().filter(|_| problem.opens);
        let eigen = pools.map(|(p, t)| Jacobi::new(device, &eigen(), "eigen", t.rows, p.size));
        let eigen = eigen.collect::<Result<Vec<_>>>()?;
        let mut layout = Layout::new(options.scratch_gap);
        let hopper =
            least.map(|least| Ok::<_, crate::Error>((least, Hopper::new(&problem, device, least, &mut layout)?)));
        let hopper = hopper.transpose()?;
        let n = problem.elements;
        // What turns as blocks of numbers needs no other buffer.
        let beside = if hopper.is_none() || tables.gram.jobs > 0 { n } else { 0 };
        let regions = Regions {
            partials: layout.push("partials", Dtype::F64, runs.count)?,
            grad: layout.push("grad", Dtype::F32, n)?,
            grad_odd: layout.push("grad_odd", Dtype::F32, beside)?,
            odd: layout.push("odd", Dtype::F32, n)?,
            even: layout.push("even", Dtype::F32, n)?,
            peaks: layout.push("peaks", Dtype::F32, tables.chunks.jobs)?,
            columns: layout.push("columns", Dtype::F32, most(&|rows, n| rows * n * n))?,
            values: layout.push("values", Dtype::F64, vectors)?,
            lengths: layout.push("lengths", Dtype::F64, vectors)?,
            order: layout.push("order", Dtype::I32, vectors)?,
            spent: layout.push("spent", Dtype::I32, vectors)?,
            places: layout.push("places", Dtype::I32, vectors)?,
            live: layout.push("live", Dtype::I32, rows)?,
            along: layout.push("along", Dtype::F32, vectors * PANEL)?,
            triangle: layout.push("triangle", Dtype::F32, rows * PANEL * PANEL)?,
            work: layout.push("work", Dtype::F64, eigen.iter().map(Jacobi::work).max().unwrap_or(0))?,
            counters: layout.push("counters", Dtype::I32, eigen.iter().map(Jacobi::counters).max().unwrap_or(0))?,
        };
        Ok(Self {
            device: device.clone(),
            kernels,
            signature: problem.signature_of(Pass::Step)?,
            layout,
            runs,
            tables,
            every,
            wide,
            hopper,
            eigen,
            blocks: n.div_ceil(THREADS as usize).clamp(1, (sms * BLOCKS_PER_SM).max(1)),
            regions,
            problem,
        })
    }
    /// From which side on blocks are for Hopper's tensor cores, if any are.
    fn least(p: &Soap, device: &CudaDevice, options: &PlanOptions) -> Result<Option<usize>> {
        let (arch, variant) = (device.props().compute_capability, options.variant.as_deref());
        let least = plates::least(NAME, plates::some(&p.grid), arch, variant)?;
        match (p.opens, variant) {
            (true, Some("wgmma")) => Err(Error::config(format!(
                "{NAME}: variant `wgmma` is for turns into bases, and the first step makes none"
            ))),
            (true, _) => Ok(None),
            (false, _) => Ok(least),
        }
    }
    /// Every launch of a step, in order.
    fn each(&self, at: &At<'_>, put: Put<'_>, visit: Visit<'_>) -> Result<()> {
        let (p, t, s) = (&self.problem, &self.tables, &at.scratch);
        let [grad, decay, rate] = at.inputs.map(Arg::U64);
        let [parameter, first, second, factors, _, step, largest, grad_norm] = at.outputs.map(Arg::U64);
        let [partials, g, g_odd, odd, even, peaks] =
            [s.partials, s.grad, s.grad_odd, s.odd, s.even, s.peaks].map(Arg::U64);
        let blocks = Arg::U64(t.blocks);
        let (n, count) = (Arg::I64(p.elements as i64), |jobs: &Jobs| Arg::I32(jobs.count as i32));
        let runs = self.runs.count;
        put(Of::Squares, (runs.max(1), 1), &[grad, partials, rate, step, largest, n, Arg::I64(self.runs.run as i64)])?;
        let list = [
            grad,
            decay,
            parameter,
            partials,
            g,
            first,
            second,
            grad_norm,
            n,
            Arg::I32(runs as i32),
            // The second moment waits for the basis.
            Arg::I32(0),
            Arg::F64(p.common.clip),
            Arg::F32(p.common.pull() as f32),
            Arg::F32(p.beta1 as f32),
            Arg::F32((1.0 - p.beta1) as f32),
            Arg::F32(0.0),
            Arg::F32(0.0),
        ];
        match &self.hopper {
            None => put(Of::Moments, (self.blocks, 1), &list)?,
            Some((_, hopper)) => hopper.begin(p, at, runs, t, visit)?,
        }
        let (of, from) = (Arg::U64(t.gram.of), Arg::U64(t.gram.first));
        let (keep, weight) = (Arg::F32(p.keep() as f32), Arg::F32((1.0 - p.keep()) as f32));
        put(
            if self.wide { Of::WideGram } else { Of::Gram },
            (t.gram.jobs, 1),
            &[blocks, of, from, g, factors, count(&t.gram), keep, weight],
        )?;
        if p.opens {
            self.bases(at, put, visit)?;
        } else {
            self.turns(at, [g, g_odd, g, first, odd, even], 0, put)?;
        }
        let chunks = (t.chunks.jobs, 1);
        let blocks_of = Arg::U64(t.chunks.of);
        let (at_chunk, all) = (Arg::U64(t.chunks.first), count(&t.chunks));
        let (opens, corrects) = (Arg::I32(i32::from(p.opens)), Arg::I32(i32::from(p.correct_bias)));
        let (ln_beta1, ln_beta2) = (Arg::F64(p.beta1.ln()), Arg::F64(p.beta2.ln()));
        let (keep, new) = (Arg::F32(p.beta2 as f32), Arg::F32((1.0 - p.beta2) as f32));
        let list =
            [blocks, blocks_of, at_chunk, g, g_odd, step, second, peaks, all, opens, corrects, ln_beta2, keep, new];
        put(Of::Second, chunks, &list)?;
        let list = [
            blocks,
            blocks_of,
            at_chunk,
            g,
            first,
            second,
            peaks,
            step,
            odd,
            even,
            all,
            opens,
            corrects,
            ln_beta1,
            ln_beta2,
            Arg::F32(p.epsilon as f32),
            Arg::F32(NOISE as f32),
            Arg::F32(p.share() as f32),
        ];
        put(Of::Divide, chunks, &list)?;
        if !p.opens {
            self.turns(at, [first, odd, even, first, odd, even], 1, put)?;
        }
        let (mode, weight_decay) = (Arg::I32(p.common.mode as i32), Arg::F64(p.common.weight_decay));
        let list = [blocks, blocks_of, at_chunk, even, decay, rate, largest, parameter, all, mode, weight_decay];
        put(Of::Update, chunks, &list)?;
        if let Some((_, hopper)) = &self.hopper {
            hopper.step(p, at, visit)?;
        }
        if p.opens { Ok(()) } else { self.bases(at, put, visit) }
    }
    /// Products along every axis: two tensors at once on the way there, one on the way back.
    fn turns(&self, at: &At<'_>, buffers: [Arg<'_>; 6], back: i32, put: Put<'_>) -> Result<()> {
        let [a, a_odd, a_even, b, b_odd, b_even] = buffers;
        for (axis, jobs) in self.tables.along.iter().enumerate() {
            let list = [
                Arg::U64(self.tables.blocks),
                Arg::U64(jobs.of),
                Arg::U64(jobs.first),
                Arg::U64(at.outputs[4]),
                a,
                a_odd,
                a_even,
                b,
                b_odd,
                b_even,
                Arg::I32(jobs.count as i32),
                Arg::I32(axis as i32),
                Arg::I32(back),
            ];
            let rotate = if self.wide { Of::WideRotate } else { Of::Rotate };
            put(rotate, (jobs.jobs, if back == 0 { 2 } else { 1 }), &list)?;
        }
        Ok(())
    }
    /// The bases whose turn it is, pool by pool.
    fn bases(&self, at: &At<'_>, put: Put<'_>, visit: Visit<'_>) -> Result<()> {
        let s = &at.scratch;
        let [columns, values, lengths, order, spent, places, live, along, triangle] =
            [s.columns, s.values, s.lengths, s.order, s.spent, s.places, s.live, s.along, s.triangle].map(Arg::U64);
        let (factors, step) = (Arg::U64(at.outputs[3]), Arg::U64(at.outputs[5]));
        let pools = self.problem.grid.pools.iter().zip(&self.tables.pools).enumerate();
        for (nth, (pool, turns)) in pools.filter(|(_, (_, t))| t.rows > 0) {
            let (rows, size) = (turns.rows, pool.size);
            let (place, due) = (Arg::U64(turns.factors), Arg::U64(turns.due));
            let bases = Arg::U64(at.outputs[4].wrapping_add(4 * pool.first as u64));
            let (n, every) = (Arg::I32(size as i32), Arg::I32(self.every as i32));
            let tiles = size.div_ceil(TILE);
            if let Some(eigen) = self.eigen.get(nth) {
                let own = [
                    place,
                    due,
                    factors,
                    step,
                    columns,
                    values,
                    lengths,
                    order,
                    live,
                    spent,
                    n,
                    every,
                    Arg::I32(rows as i32),
                ];
                eigen.launch([s.work, s.counters], false, &own, visit)?;
            } else {
                let list = [place, due, factors, bases, step, columns, n, every];
                put(Of::Stretch, (tiles * tiles, rows), &list)?;
                let list = [due, bases, step, columns, values, lengths, n, every];
                put(Of::Values, (size.div_ceil(THREADS as usize / 32), rows), &list)?;
                put(Of::Order, (1, rows), &[due, step, values, lengths, order, live, spent, n, every])?;
            }
            for panel in 0..size.div_ceil(PANEL) {
                let from = Arg::I32((panel * PANEL) as i32);
                for pass in 0..2 {
                    put(Of::Dots, (panel, rows), &[columns, order, live, along, n, from])?;
                    if panel > 0 {
                        put(Of::Project, (tiles, rows), &[columns, order, live, along, n, from])?;
                    }
                    let list = [columns, order, live, lengths, spent, triangle, n, from, Arg::I32(pass)];
                    put(Of::Cholesky, (1, rows), &list)?;
                    let across = size.div_ceil(THREADS as usize);
                    put(Of::Solve, (across, rows), &[columns, order, live, triangle, n, from])?;
                }
            }
            if !self.problem.opens {
                let list = [due, bases, step, columns, order, live, spent, places, along, n, every];
                put(Of::Refill, (1, rows), &list)?;
            }
            put(Of::Fill, (1, rows), &[columns, order, live, spent, values, n])?;
            put(Of::Keep, (tiles * tiles, rows), &[due, columns, step, live, bases, n, every])?;
        }
        Ok(())
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
        let side = if self.wide { 2 * TILE } else { TILE };
        let due = self.problem.grid.pools.iter().zip(&self.tables.pools);
        let bases: Vec<String> = due.map(|(p, t)| format!("{} of {n} x {n}", t.rows, n = p.size)).collect();
        let bases = if bases.is_empty() { "none".to_owned() } else { bases.join(", ") };
        let (blocks, tiles) = (self.problem.grid.blocks.len(), self.tables.gram.jobs);
        let how = self.hopper.as_ref().map_or("simt".to_owned(), |(_, hopper)| {
            format!(
                "wgmma: {} matrices by 3 x f16 under scales of 64 x 64 numbers and of 64 of a row, of",
                hopper.plates.count
            )
        });
        format!("{NAME} {how}: {blocks} blocks, {tiles} tiles of triangles, {side} x {side}; bases in turns: {bases}")
    }
    fn variant(&self) -> &'static str {
        if self.hopper.is_some() { "wgmma" } else { "simt" }
    }
    fn tensor_cores(&self) -> bool {
        self.hopper.is_some()
    }
    /// An operation of a product is three on tensor cores; f32 units, which make bases, do a sixteenth of what they do.
    fn cost(&self, _: Pass, least: Cost) -> Cost {
        let Some((side, _)) = &self.hopper else { return least };
        let p = &self.problem;
        let way = |b: &Block| if is_plate(b, *side) { 3 } else { 16 };
        let flops = |b: &Block| way(b) * p.flops_of_turns(b) + 16 * p.flops_of_bases(b);
        Cost { flops: p.grid.blocks.iter().map(flops).sum(), ..least }
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let base = args.scratch.address();
        let region = |id| self.layout.address(base, id);
        let r = &self.regions;
        let at = At {
            inputs: [0, 1, 2].map(|i| args.inputs[i].address()),
            outputs: [0, 1, 2, 3, 4, 5, 6, 7].map(|i| args.outputs[i].address()),
            scratch: Regions {
                partials: region(r.partials),
                grad: region(r.grad),
                grad_odd: region(r.grad_odd),
                odd: region(r.odd),
                even: region(r.even),
                peaks: region(r.peaks),
                columns: region(r.columns),
                values: region(r.values),
                lengths: region(r.lengths),
                order: region(r.order),
                spent: region(r.spent),
                places: region(r.places),
                live: region(r.live),
                along: region(r.along),
                triangle: region(r.triangle),
                work: region(r.work),
                counters: region(r.counters),
            },
            layout: Some((&self.layout, base)),
        };
        let stream = args.stream;
        // SAFETY: the arguments are those of the kernel's signature in hopper.cu, eigen.cu or what they include; the rest is as below.
        let visit = &mut |kernel: &Kernel, config: LaunchConfig, list: &[Arg<'_>]| unsafe {
            kernel.launch(stream, &config, list)
        };
        let put = &mut |which: Of, (x, y): (usize, usize), list: &[Arg<'_>]| {
            if x * y == 0 {
                return Ok(());
            }
            let config = LaunchConfig::new((x as u32, y as u32, 1), (THREADS, 1, 1));
            // SAFETY: the arguments are those of the kernel's signature in soap.cu, basis.cu or what they include; the views were
            // checked against the signature, the scratch holds the layout and the tables belong to this plan.
            unsafe { self.kernels[which as usize].launch(stream, &config, list) }
        };
        self.each(&at, put, visit)
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        // Of launches of one kernel the largest grid.
        let mut all: Vec<(Of, usize, (usize, usize))> = Vec::new();
        let mut visited = Vec::new();
        let visit = &mut |kernel: &Kernel, c: LaunchConfig, _: &[Arg<'_>]| {
            visited.push(LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes)?);
            Ok(())
        };
        let put = &mut |which: Of, (x, y): (usize, usize), _: &[Arg<'_>]| {
            match all.iter_mut().find(|(of, ..)| *of == which) {
                _ if x * y == 0 => {}
                Some((_, n, grid)) => {
                    *n += 1;
                    if x * y > grid.0 * grid.1 {
                        *grid = (x, y);
                    }
                }
                None => all.push((which, 1, (x, y))),
            }
            Ok(())
        };
        self.each(&At::default(), put, visit)?;
        let rest = all.into_iter().map(|(which, n, (x, y))| {
            let grid = (x as u32, y as u32, 1);
            LaunchReport::new(&self.kernels[which as usize], n, grid, (THREADS, 1, 1), 0)
        });
        visited.into_iter().map(Ok).chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names stand where their kernels are looked up.
    #[test]
    fn kernels_have_their_places() {
        let name = |of: Of| STEP.iter().chain(&BASIS).nth(of as usize).copied();
        assert_eq!(name(Of::Squares), Some("squares"));
        assert_eq!(name(Of::WideRotate), Some("wide_rotate"));
        assert_eq!(name(Of::Stretch), Some("stretch"));
        assert_eq!(name(Of::Keep), Some("keep"));
        for (spec, entries) in specialisations().iter().zip([&STEP[..], &BASIS[..]]) {
            assert!(entries.iter().all(|e| spec.entries.contains(e)));
        }
    }
}
