//! Launches of Shampoo's step: what shampoo.cu has, on Hopper what hopper.cu has for blocks that are matrices, and for each size of
//! a root the kernels of inverse roots.
#![allow(unsafe_code)]

mod fast;
mod hopper;

use super::spec::{Grafting, NAME, Shampoo};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::op::{Args, Cost, LaunchReport, Pass, Plan, PlanOptions, Precision, Signature};
use crate::optim::blocks::Block;
use crate::optim::inverse_root::{CudaPlan as Roots, RECORD};
use crate::optim::ongpu::{BLOCK_HEADERS, Jobs, THREADS, TILE, Tables, Visit};
use crate::optim::plates::{self, Plates, is_plate};
use crate::optim::stepper::Runs;
use crate::{Dtype, Layout, Place, RegionId, Result};
use fast::Fast;
use hopper::Hopper;
use std::sync::Arc;

const ENTRIES: [&str; 8] = ["squares", "moments", "gram", "gather", "keep", "along", "norms", "update"];
/// Blocks of threads a multiprocessor where they stride over elements.
const BLOCKS_PER_SM: usize = 8;

pub(super) fn specialisations() -> Vec<Specialisation> {
    let source = KernelSource::embedded("optim/shampoo/cuda/shampoo.cu", include_str!("shampoo.cu"));
    let mut spec = Specialisation::new(source, &ENTRIES);
    spec.headers = BLOCK_HEADERS;
    vec![spec, hopper::specialisation(), fast::specialisation(), fast::beside()]
}

/// What goes to Hopper's tensor cores, by the precision of its products.
enum OnPlates {
    Exact(Hopper),
    Fast(Fast),
}

impl OnPlates {
    fn new(p: &Shampoo, device: &Arc<CudaDevice>, least: usize, layout: &mut Layout) -> Result<Self> {
        Ok(match p.precision {
            Precision::Exact => Self::Exact(Hopper::new(p, device, least, layout)?),
            Precision::Fast => Self::Fast(Fast::new(p, device, least, layout)?),
        })
    }
    fn plates(&self) -> &Plates {
        match self {
            Self::Exact(h) => &h.plates,
            Self::Fast(f) => &f.plates,
        }
    }
    fn least(&self) -> usize {
        match self {
            Self::Exact(h) => h.least,
            Self::Fast(f) => f.least,
        }
    }
    /// Operations of f16 for one of a product.
    fn products(&self) -> u64 {
        if matches!(self, Self::Exact(_)) { 3 } else { 1 }
    }
    /// How many sums of squares of the gradient it makes by itself, if it does.
    fn sums(&self) -> Option<usize> {
        match self {
            Self::Exact(_) => None,
            Self::Fast(f) => Some(f.sums()),
        }
    }
    fn moments(&self, p: &Shampoo, s: &Same<'_>, others: &Tables, visit: Visit<'_>) -> Result<()> {
        match self {
            Self::Exact(h) => h.moments(p, s, others, visit),
            Self::Fast(f) => f.moments(p, s, others, visit),
        }
    }
    fn gram(&self, p: &Shampoo, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        match self {
            Self::Exact(h) => h.gram(p, s, visit),
            Self::Fast(f) => f.gram(p, s, visit),
        }
    }
    fn multiply(&self, p: &Shampoo, s: &Same<'_>, turns: &[PoolTurn], visit: Visit<'_>) -> Result<()> {
        match self {
            Self::Exact(h) => h.products(p, s, visit),
            Self::Fast(f) => f.products(p, s, turns, visit),
        }
    }
    fn update(&self, p: &Shampoo, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        match self {
            Self::Exact(h) => h.update(p, s, visit),
            Self::Fast(f) => f.update(p, s, visit),
        }
    }
}

/// A pool's roots, where some have their turn at all.
struct Made {
    pool: usize,
    roots: Roots,
}

/// The turns of a pool, for what comes behind its roots.
pub(super) struct PoolTurn {
    pool: usize,
    /// n of its matrices, and the most of a step.
    size: usize,
    rows: usize,
    /// Which they are, `[every, rows]`.
    due: u64,
    every: usize,
    start: usize,
}

pub(super) struct CudaPlan {
    problem: Shampoo,
    device: Arc<CudaDevice>,
    kernels: [Kernel; 8],
    /// What goes to Hopper's tensor cores; the tables have jobs for the rest.
    plates: Option<OnPlates>,
    signature: Signature,
    layout: Layout,
    runs: Runs,
    tables: Tables,
    made: Vec<Made>,
    every: usize,
    /// Sums of squares of the gradient.
    sums: usize,
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
        let props = device.props();
        let least = plates::least(NAME, plates::some(&grid), props.compute_capability, options.variant.as_deref())?;
        let rest = |b: &Block| least.is_none_or(|least| !is_plate(b, least));
        let tables = Tables::new(device, &grid, every, TILE, &rest)?;
        let runs = Runs::new(problem.elements);
        let mut layout = Layout::new(options.scratch_gap);
        let mut plates = least.map(|least| OnPlates::new(&problem, device, least, &mut layout)).transpose()?;
        let mut made = Vec::new();
        let (mut batch, mut record, mut own) = (0, 0, 0);
        let pools = || grid.pools.iter().zip(&tables.pools).enumerate().filter(|(_, (_, t))| t.rows > 0);
        // What all plates need is done beside the longest work of a few matrices.
        let longest = pools().max_by_key(|(_, (p, t))| t.rows as u128 * (p.size as u128).pow(3)).map(|(i, _)| i);
        let beside = match (&plates, longest) {
            (Some(OnPlates::Fast(fast)), Some(pool)) if every > 1 => Some((pool, fast.beside(device)?)),
            _ => None,
        };
        for (i, (pool, turns)) in pools() {
            let roots = problem.roots(turns.rows, pool.order, pool.size).build()?;
            let by = beside.as_ref().filter(|(pool, _)| *pool == i).map(|(_, by)| by);
            let roots = Roots::with(roots, device, &PlanOptions::default(), by)?;
            if let (Some(OnPlates::Fast(fast)), true) = (&mut plates, roots.leaves_room()) {
                fast.round_beside(device, &grid, i)?;
            }
            batch = batch.max(turns.rows * pool.size * pool.size);
            record = record.max(turns.rows * RECORD);
            own = own.max(roots.scratch(Pass::Forward).bytes());
            made.push(Made { pool: i, roots });
        }
        let sums = plates.as_ref().and_then(OnPlates::sums).unwrap_or(runs.count);
        // What lies in blocks needs no gradient beside them, and one product.
        let beside = if plates.is_none() || tables.gram.jobs > 0 { problem.elements } else { 0 };
        // A fast step of plates lies in tiles of f16.
        let odd = if matches!(plates, Some(OnPlates::Fast(_))) { beside } else { problem.elements };
        let kernels = ENTRIES.map(|entry| device.kernel(spec, entry));
        let [squares, moments, gram, gather, keep, along, norms, update] = kernels;
        let most = props.sm_count as usize * BLOCKS_PER_SM;
        Ok(Self {
            device: device.clone(),
            kernels: [squares?, moments?, gram?, gather?, keep?, along?, norms?, update?],
            signature: problem.signature_of(Pass::Step)?,
            runs,
            made,
            every,
            sums,
            partials: layout.push("partials", Dtype::F64, sums)?,
            grad: layout.push("grad", Dtype::F32, if tables.chunks.jobs > 0 { problem.elements } else { 0 })?,
            even: layout.push("even", Dtype::F32, beside)?,
            odd: layout.push("odd", Dtype::F32, odd)?,
            scales: layout.push("scales", Dtype::F32, grid.blocks.len())?,
            factors: layout.push("factors", Dtype::F32, batch)?,
            roots: layout.push("roots", Dtype::F32, batch)?,
            record: layout.push("record", Dtype::F32, record)?,
            own: layout.push("own", Dtype::U8, own)?,
            layout,
            tables,
            plates,
            blocks: problem.elements.div_ceil(THREADS as usize).clamp(1, most.max(1)) as u32,
            problem,
        })
    }
    /// Launches a kernel by its place in `ENTRIES`, where it has blocks at all.
    fn put(&self, which: usize, jobs: usize, list: &[Arg<'_>], visit: Visit<'_>) -> Result<()> {
        if jobs == 0 {
            return Ok(());
        }
        visit(&self.kernels[which], LaunchConfig::new((jobs as u32, 1, 1), (THREADS, 1, 1)), list)
    }
    /// Every launch of a step in order; `roots` makes those of a pool.
    fn each(&self, s: &Same<'_>, visit: Visit<'_>, make: MakeRoots<'_>) -> Result<()> {
        let p = &self.problem;
        let [grad, decay, rate, parameter, first, second, factors, roots_at, step, largest, grad_norm] = [
            s.grad,
            s.decay,
            s.rate,
            s.parameter,
            s.first,
            s.second,
            s.factors,
            s.roots,
            s.step,
            s.largest,
            s.grad_norm,
        ]
        .map(Arg::U64);
        let [g, even, odd, scales, partials] = [s.g, self.even, s.odd, s.scales, s.partials].map(|id| s.region(id));
        let t = &self.tables;
        let blocks = Arg::U64(t.blocks);
        let n = Arg::I64(p.elements as i64);
        let squares = i32::from(p.grafting.squares());
        let ln = |beta: f64| if beta == 1.0 { 0.0 } else { beta.ln() };
        let (ln_beta1, ln_beta2) = (Arg::F64(ln(p.beta1)), Arg::F64(ln(p.beta2)));
        let ln_second = Arg::F64(if p.grafting == Grafting::Adam { ln(p.beta2) } else { 0.0 });
        let start = Arg::I32(p.start_preconditioning_step as i32);
        let eps = Arg::F32(p.grafting_eps as f32);
        let (keep2, new2) = p.second_weights();
        if let Some(OnPlates::Fast(fast)) = &self.plates {
            fast.squares(p, s, visit)?;
        } else {
            let list = [grad, partials, rate, step, largest, n, Arg::I64(self.runs.run as i64)];
            self.put(0, self.runs.count.max(1), &list, visit)?;
        }
        if let Some(plates) = &self.plates {
            plates.moments(p, s, t, visit)?;
        } else {
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
                Arg::I32(s.runs as i32),
                Arg::I32(squares),
                Arg::F64(p.common.clip),
                Arg::F32(p.common.pull() as f32),
                Arg::F32(p.beta1 as f32),
                Arg::F32((1.0 - p.beta1) as f32),
                Arg::F32(keep2 as f32),
                Arg::F32(new2 as f32),
            ];
            self.put(1, self.blocks as usize, &list, visit)?;
        }
        let (of, at, count) = listed(&t.gram);
        let (keep, weight) = p.weights();
        let list = [blocks, of, at, g, factors, count, Arg::F32(keep as f32), Arg::F32(weight as f32)];
        self.put(2, t.gram.jobs, &list, visit)?;
        if let Some(plates) = &self.plates {
            plates.gram(p, s, visit)?;
        }
        for m in &self.made {
            self.roots(m, s, (start, ln_beta2), visit, make)?;
        }
        let (mut from, mut to, mut other) = (first, even, odd);
        for (axis, jobs) in t.along.iter().enumerate() {
            let (of, at, count) = listed(jobs);
            let list = [blocks, of, at, from, roots_at, to, step, count, Arg::I32(axis as i32), ln_beta1];
            self.put(5, jobs.jobs, &list, visit)?;
            (from, to, other) = (to, other, to);
        }
        if let Some(plates) = &self.plates {
            plates.multiply(p, s, &self.turns(), visit)?;
        }
        let (of, at, count) = listed(&t.chunks);
        let grafts = Arg::I32(i32::from(p.grafting != Grafting::None));
        let list =
            [blocks, of, even, odd, first, second, step, scales, ln_beta1, ln_second, eps, Arg::I32(squares), grafts];
        self.put(6, t.chunks.count, &list, visit)?;
        let list = [
            blocks,
            of,
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
        self.put(7, t.chunks.jobs, &list, visit)?;
        self.plates.as_ref().map_or(Ok(()), |plates| plates.update(p, s, visit))
    }
    fn turns(&self) -> Vec<PoolTurn> {
        let (grid, start) = (&self.problem.grid, self.problem.start_preconditioning_step);
        let turn = |m: &Made| {
            let t = &self.tables.pools[m.pool];
            PoolTurn { pool: m.pool, size: grid.pools[m.pool].size, rows: t.rows, due: t.due, every: self.every, start }
        };
        self.made.iter().map(turn).collect()
    }
    /// The roots of a pool's factors whose turn it is.
    fn roots(
        &self,
        m: &Made,
        s: &Same<'_>,
        (start, ln_beta2): (Arg<'_>, Arg<'_>),
        visit: Visit<'_>,
        make: MakeRoots<'_>,
    ) -> Result<()> {
        let (pool, turns) = (&self.problem.grid.pools[m.pool], &self.tables.pools[m.pool]);
        let grid = ((pool.size * pool.size).div_ceil(4 * THREADS as usize) as u32, turns.rows as u32, 1);
        let config = LaunchConfig::new(grid, (THREADS, 1, 1));
        let (a, made, record) = (s.address(self.factors), s.address(self.roots), s.address(self.record));
        let (n, every) = (Arg::I32(pool.size as i32), Arg::I32(self.every as i32));
        let (due, step) = (Arg::U64(turns.due), Arg::U64(s.step));
        let list = [Arg::U64(turns.factors), due, Arg::U64(s.factors), step, Arg::U64(a), n, every, start, ln_beta2];
        visit(&self.kernels[3], config, &list)?;
        let beside = match &self.plates {
            Some(OnPlates::Fast(fast)) => fast.own(s, m.pool),
            _ => None,
        };
        make(m, [a, made, record], s.address(self.own), beside.as_ref().map_or(&[][..], |list| &list[..]))?;
        let roots = Arg::U64(s.roots.wrapping_add(4 * pool.first as u64));
        let list = [due, Arg::U64(made), Arg::U64(record), step, roots, n, every, start];
        visit(&self.kernels[4], config, &list)
    }
    fn same(&self, inputs: [u64; 3], outputs: [u64; 8], base: u64) -> Same<'_> {
        let [grad, decay, rate] = inputs;
        let [parameter, first, second, factors, roots, step, largest, grad_norm] = outputs;
        Same {
            layout: &self.layout,
            base,
            grad,
            decay,
            rate,
            parameter,
            first,
            second,
            factors,
            roots,
            step,
            largest,
            grad_norm,
            partials: self.partials,
            g: self.grad,
            odd: self.odd,
            scales: self.scales,
            runs: self.sums,
        }
    }
}

/// Makes the roots of a pool: the addresses of matrices, roots and records, of what they need, and arguments of what is done beside.
type MakeRoots<'a> = &'a mut dyn FnMut(&Made, [u64; 3], u64, &[Arg<'_>]) -> Result<()>;

/// Addresses of one call; zeros where launches are only counted.
struct Same<'a> {
    layout: &'a Layout,
    base: u64,
    grad: u64,
    decay: u64,
    rate: u64,
    parameter: u64,
    first: u64,
    second: u64,
    factors: u64,
    roots: u64,
    step: u64,
    largest: u64,
    grad_norm: u64,
    partials: RegionId,
    g: RegionId,
    odd: RegionId,
    scales: RegionId,
    /// Sums of squares of the gradient.
    runs: usize,
}

impl Same<'_> {
    fn address(&self, id: RegionId) -> u64 {
        self.layout.address(self.base, id)
    }
    fn region(&self, id: RegionId) -> Arg<'static> {
        Arg::U64(self.address(id))
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
        let roots = if roots.is_empty() { "nobody".to_owned() } else { roots.join("; ") };
        let (blocks, tiles) = (self.problem.grid.blocks.len(), self.tables.gram.jobs);
        match &self.plates {
            None => format!("{NAME} simt: {blocks} blocks, {tiles} tiles of triangles; roots by {roots}"),
            Some(on) => {
                let how = match on {
                    OnPlates::Exact(_) => "3 x f16 under scales of 64 x 64 numbers and of 64 of a row",
                    OnPlates::Fast(_) => "f16 under scales of blocks and of 16 rows of roots",
                };
                let (count, gram) = (on.plates().count, on.plates().gram.iter().map(|jobs| jobs.jobs).sum::<usize>());
                format!(
                    "{NAME} wgmma: {blocks} blocks, {count} of them by {how}, {gram} tiles of triangles and {tiles} of the rest; \
                     roots by {roots}"
                )
            }
        }
    }
    fn variant(&self) -> &'static str {
        if self.plates.is_some() { "wgmma" } else { "simt" }
    }
    fn tensor_cores(&self) -> bool {
        self.plates.is_some()
    }
    /// An operation of an exact product is three on tensor cores, as one of a root is; f32 units do a sixteenth of what they do.
    fn cost(&self, _: Pass, least: Cost) -> Cost {
        let Some(on) = &self.plates else { return least };
        let p = &self.problem;
        let flops = |b: &Block| {
            let way = |on: bool, products: u64| if on { products } else { 16 };
            let newton = b
                .sizes
                .iter()
                .all(|&n| self.made.iter().any(|m| p.grid.pools[m.pool].size == n && m.roots.tensor_cores()));
            way(is_plate(b, on.least()), on.products()) * p.flops_of_products(b) + way(newton, 3) * p.flops_of_roots(b)
        };
        Cost { flops: p.grid.blocks.iter().map(flops).sum(), ..least }
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let (mut inputs, mut outputs) = ([0; 3], [0; 8]);
        inputs.iter_mut().zip(args.inputs).for_each(|(a, v)| *a = v.address());
        outputs.iter_mut().zip(&*args.outputs).for_each(|(a, v)| *a = v.address());
        let stream = args.stream;
        // SAFETY: the arguments are those of the kernel's signature in shampoo.cu, hopper.cu, fast.cu or their headers; the views were
        // checked against the signature, the scratch holds the layout and the tables belong to this plan.
        let visit = &mut |kernel: &Kernel, config: LaunchConfig, list: &[Arg<'_>]| unsafe {
            kernel.launch(stream, &config, list)
        };
        let make = &mut |m: &Made, tensors, scratch, beside: &[Arg<'_>]| {
            m.roots.launch_beside(tensors, scratch, stream, beside)
        };
        self.each(&self.same(inputs, outputs, args.scratch.address()), visit, make)
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        let mut list = Vec::new();
        let visit = &mut |kernel: &Kernel, c: LaunchConfig, _: &[Arg<'_>]| {
            list.push(LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes)?);
            Ok(())
        };
        self.each(&self.same([0; 3], [0; 8], 0), visit, &mut |_, _, _, _| Ok(()))?;
        for m in &self.made {
            list.extend(m.roots.launches(Pass::Forward)?);
        }
        Ok(list)
    }
}
