//! Launches of Shampoo's step: what shampoo.cu has, and for each size of a root the kernels of inverse roots.
#![allow(unsafe_code)]

use super::spec::{Grafting, NAME, Shampoo};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation, StreamRef};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::inverse_root::{CudaPlan as Roots, RECORD};
use crate::optim::ongpu::{BLOCK_HEADERS, Jobs, THREADS, TILE, Tables};
use crate::optim::stepper::Runs;
use crate::{Dtype, Layout, Place, RegionId, Result};
use std::sync::Arc;

const ENTRIES: [&str; 8] = ["squares", "moments", "gram", "gather", "keep", "along", "norms", "update"];
/// Blocks of threads a multiprocessor where they stride over elements.
const BLOCKS_PER_SM: usize = 8;

pub(super) fn specialisations() -> Vec<Specialisation> {
    let source = KernelSource::embedded("optim/shampoo/cuda/shampoo.cu", include_str!("shampoo.cu"));
    let mut spec = Specialisation::new(source, &ENTRIES);
    spec.headers = BLOCK_HEADERS;
    vec![spec]
}

/// A pool's roots, where some have their turn at all.
struct Made {
    pool: usize,
    roots: Roots,
}

pub(super) struct CudaPlan {
    problem: Shampoo,
    device: Arc<CudaDevice>,
    kernels: [Kernel; 8],
    signature: Signature,
    layout: Layout,
    runs: Runs,
    tables: Tables,
    made: Vec<Made>,
    every: usize,
    partials: RegionId,
    grad: RegionId,
    even: RegionId,
    odd: RegionId,
    scales: RegionId,
    factors: RegionId,
    roots: RegionId,
    record: RegionId,
    own: RegionId,
    /// Blocks of threads that stride over all elements.
    blocks: u32,
}

impl CudaPlan {
    pub(super) fn new(problem: Shampoo, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let spec = &specialisations()[0];
        let every = if problem.every_block { 1 } else { problem.precondition_frequency };
        let grid = problem.grid.clone();
        let tables = Tables::new(device, &grid, every, TILE)?;
        let runs = Runs::new(problem.elements);
        let mut made = Vec::new();
        let (mut batch, mut record, mut own) = (0, 0, 0);
        for (i, (pool, turns)) in grid.pools.iter().zip(&tables.pools).enumerate().filter(|(_, (_, t))| t.rows > 0) {
            let roots = problem.roots(turns.rows, pool.order, pool.size).build()?;
            let roots = Roots::new(roots, device, &PlanOptions::default())?;
            batch = batch.max(turns.rows * pool.size * pool.size);
            record = record.max(turns.rows * RECORD);
            own = own.max(roots.scratch(Pass::Forward).bytes());
            made.push(Made { pool: i, roots });
        }
        let mut layout = Layout::new(options.scratch_gap);
        let kernels = ENTRIES.map(|entry| device.kernel(spec, entry));
        let [squares, moments, gram, gather, keep, along, norms, update] = kernels;
        let most = device.props().sm_count as usize * BLOCKS_PER_SM;
        Ok(Self {
            device: device.clone(),
            kernels: [squares?, moments?, gram?, gather?, keep?, along?, norms?, update?],
            signature: problem.signature_of(Pass::Step)?,
            runs,
            tables,
            made,
            every,
            partials: layout.push("partials", Dtype::F64, runs.count)?,
            grad: layout.push("grad", Dtype::F32, problem.elements)?,
            even: layout.push("even", Dtype::F32, problem.elements)?,
            odd: layout.push("odd", Dtype::F32, problem.elements)?,
            scales: layout.push("scales", Dtype::F32, grid.blocks.len())?,
            factors: layout.push("factors", Dtype::F32, batch)?,
            roots: layout.push("roots", Dtype::F32, batch)?,
            record: layout.push("record", Dtype::F32, record)?,
            own: layout.push("own", Dtype::U8, own)?,
            layout,
            blocks: problem.elements.div_ceil(THREADS as usize).clamp(1, most.max(1)) as u32,
            problem,
        })
    }
    fn jobs(&self, which: usize, jobs: usize) -> Option<(&Kernel, LaunchConfig)> {
        (jobs > 0).then(|| (&self.kernels[which], LaunchConfig::new((jobs as u32, 1, 1), (THREADS, 1, 1))))
    }
    /// Every launch of a step but those of the roots themselves: the kernel's place in `ENTRIES` and how many blocks it has.
    fn grids(&self) -> Vec<(usize, (u32, u32))> {
        let t = &self.tables;
        let mut list =
            vec![(0, (self.runs.count.max(1) as u32, 1)), (1, (self.blocks, 1)), (2, (t.gram.jobs as u32, 1))];
        for m in &self.made {
            let grid = self.batch_grid(m);
            list.extend([(3, grid), (4, grid)]);
        }
        list.extend(t.along.iter().map(|jobs| (5, (jobs.jobs as u32, 1))));
        list.push((6, (self.problem.grid.blocks.len() as u32, 1)));
        list.push((7, (t.chunks.jobs as u32, 1)));
        list.retain(|(_, (x, y))| *x > 0 && *y > 0);
        list
    }
    fn batch_grid(&self, m: &Made) -> (u32, u32) {
        let n = self.problem.grid.pools[m.pool].size;
        ((n * n).div_ceil(4 * THREADS as usize) as u32, self.tables.pools[m.pool].rows as u32)
    }
    fn launch(&self, args: &Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let input = |i: usize| Arg::U64(args.inputs[i].address());
        let output = |i: usize| args.outputs[i].address();
        let (grad, decay, rate) = (input(0), input(1), input(2));
        let [parameter, first, second, factors, roots, step, largest, grad_norm] =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|i| Arg::U64(output(i)));
        let base = args.scratch.address();
        let region = |id| Arg::U64(self.layout.address(base, id));
        let (g, even, odd, scales, partials) =
            (region(self.grad), region(self.even), region(self.odd), region(self.scales), region(self.partials));
        let t = &self.tables;
        let blocks = Arg::U64(t.blocks);
        let n = Arg::I64(p.elements as i64);
        let stream = args.stream;
        let squares = i32::from(p.grafting.squares());
        let ln = |beta: f64| if beta == 1.0 { 0.0 } else { beta.ln() };
        let (ln_beta1, ln_beta2) = (Arg::F64(ln(p.beta1)), Arg::F64(ln(p.beta2)));
        let ln_second = Arg::F64(if p.grafting == Grafting::Adam { ln(p.beta2) } else { 0.0 });
        let start = Arg::I32(p.start_preconditioning_step as i32);
        let eps = Arg::F32(p.grafting_eps as f32);
        let (keep2, new2) = p.second_weights();
        let list = [grad, partials, rate, step, largest, n, Arg::I64(self.runs.run as i64)];
        self.put(stream, self.jobs(0, self.runs.count.max(1)), &list)?;
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
            Arg::I32(self.runs.count as i32),
            Arg::I32(squares),
            Arg::F64(p.common.clip),
            Arg::F32(p.common.pull() as f32),
            Arg::F32(p.beta1 as f32),
            Arg::F32((1.0 - p.beta1) as f32),
            Arg::F32(keep2 as f32),
            Arg::F32(new2 as f32),
        ];
        self.put(stream, self.jobs(1, self.blocks as usize), &list)?;
        let (of, at, count) = listed(&t.gram);
        let (keep, weight) = p.weights();
        let list = [blocks, of, at, g, factors, count, Arg::F32(keep as f32), Arg::F32(weight as f32)];
        self.put(stream, self.jobs(2, t.gram.jobs), &list)?;
        for m in &self.made {
            self.roots(m, base, stream, (factors, roots, step), (start, ln_beta2))?;
        }
        let (mut from, mut to, mut other) = (first, even, odd);
        for (axis, jobs) in t.along.iter().enumerate() {
            let (of, at, count) = listed(jobs);
            let list = [blocks, of, at, from, roots, to, step, count, Arg::I32(axis as i32), ln_beta1];
            self.put(stream, self.jobs(5, jobs.jobs), &list)?;
            (from, to, other) = (to, other, to);
        }
        let grafts = Arg::I32(i32::from(p.grafting != Grafting::None));
        let list =
            [blocks, even, odd, first, second, step, scales, ln_beta1, ln_second, eps, Arg::I32(squares), grafts];
        self.put(stream, self.jobs(6, p.grid.blocks.len()), &list)?;
        let (_, at, count) = listed(&t.chunks);
        let list = [
            blocks,
            at,
            even,
            odd,
            first,
            second,
            scales,
            decay,
            rate,
            largest,
            step,
            parameter,
            count,
            start,
            ln_beta1,
            ln_second,
            eps,
            Arg::I32(squares),
            Arg::I32(p.common.mode as i32),
            Arg::F64(p.common.weight_decay),
        ];
        self.put(stream, self.jobs(7, t.chunks.jobs), &list)
    }
    /// The roots of a pool's factors whose turn it is.
    fn roots(
        &self,
        m: &Made,
        base: u64,
        stream: StreamRef,
        (factors, roots, step): (Arg<'_>, Arg<'_>, Arg<'_>),
        (start, ln_beta2): (Arg<'_>, Arg<'_>),
    ) -> Result<()> {
        let (pool, turns) = (&self.problem.grid.pools[m.pool], &self.tables.pools[m.pool]);
        let (x, y) = self.batch_grid(m);
        let config = LaunchConfig::new((x, y, 1), (THREADS, 1, 1));
        let region = |id| self.layout.address(base, id);
        let (a, made, record) = (region(self.factors), region(self.roots), region(self.record));
        let (n, every) = (Arg::I32(pool.size as i32), Arg::I32(self.every as i32));
        let due = Arg::U64(turns.due);
        let list = [Arg::U64(turns.factors), due, factors, step, Arg::U64(a), n, every, start, ln_beta2];
        self.put(stream, Some((&self.kernels[3], config)), &list)?;
        m.roots.launch([a, made, record], region(self.own), stream)?;
        let Arg::U64(roots) = roots else { return Ok(()) };
        let roots = Arg::U64(roots + 4 * pool.first as u64);
        let list = [due, Arg::U64(made), Arg::U64(record), step, roots, n, every, start];
        self.put(stream, Some((&self.kernels[4], config)), &list)
    }
    fn put(&self, stream: StreamRef, what: Option<(&Kernel, LaunchConfig)>, list: &[Arg<'_>]) -> Result<()> {
        let Some((kernel, config)) = what else { return Ok(()) };
        // SAFETY: the arguments are those of the kernel's signature in shampoo.cu or stepper.cuh; the views were checked against
        // the signature, the scratch holds the layout and the tables belong to this plan.
        unsafe { kernel.launch(stream, &config, list) }
    }
}

fn listed(jobs: &Jobs) -> (Arg<'static>, Arg<'static>, Arg<'static>) {
    (Arg::U64(jobs.of), Arg::U64(jobs.first), Arg::I32(jobs.count as i32))
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
        let roots: Vec<String> = self.made.iter().map(|m| m.roots.config()).collect();
        format!(
            "{NAME} simt: {} blocks, {} tiles of triangles; roots by {}",
            self.problem.grid.blocks.len(),
            self.tables.gram.jobs,
            if roots.is_empty() { "nobody".to_owned() } else { roots.join("; ") }
        )
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        self.launch(args)
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        let own = self
            .grids()
            .into_iter()
            .map(|(which, (x, y))| LaunchReport::new(&self.kernels[which], 1, (x, y, 1), (THREADS, 1, 1), 0));
        let mut list = own.collect::<Result<Vec<_>>>()?;
        for m in &self.made {
            list.extend(m.roots.launches(Pass::Forward)?);
        }
        Ok(list)
    }
}
