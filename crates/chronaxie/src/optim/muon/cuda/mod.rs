//! Launches of Muon's step: matrices on Hopper's tensor cores (hopper.rs), and what muon.cu has for all else.
#![allow(unsafe_code)]

mod hopper;

use super::spec::{Matrix, Muon, NAME};
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Kernel, KernelSource, LaunchConfig, Specialisation, upload};
use crate::op::{Args, Cost, LaunchReport, Pass, Plan, PlanOptions, Precision, Signature};
use crate::optim::ongpu::{CHUNK, HEADERS, Jobs, TILE, Visit, Words};
use crate::optim::plates;
use crate::optim::stepper::Runs;
use crate::{Dtype, Layout, Place, RegionId, Result};
use hopper::Hopper;
use std::sync::Arc;

const ENTRIES: [&str; 8] = ["squares", "momentum", "adamw", "divide", "gram", "quintic", "advance", "apply"];

pub(super) fn specialisations() -> Vec<Specialisation> {
    let source = KernelSource::embedded("optim/muon/cuda/muon.cu", include_str!("muon.cu"));
    let mut spec = Specialisation::new(source, &ENTRIES);
    spec.headers = HEADERS;
    vec![spec, hopper::specialisation(Precision::Exact), hopper::specialisation(Precision::Fast)]
}

/// Whether a matrix is a plate where its sides are that long at least: triangles are counted by 32 bits (products.cuh).
fn on_plate(m: &Matrix, least: usize) -> bool {
    (least..=1 << 15).contains(&m.side())
}

pub(super) struct CudaPlan {
    problem: Muon,
    device: Arc<CudaDevice>,
    kernels: [Kernel; 8],
    signature: Signature,
    layout: Layout,
    runs: Runs,
    /// Matrices on tensor cores, and the least side of one; the tables are of the others.
    plates: Option<(Hopper, usize)>,
    /// Holds the tables.
    _buffer: DeviceBuffer,
    matrices: u64,
    count: usize,
    others: u64,
    chunks: Jobs,
    triangles: Jobs,
    tiles: Jobs,
    rest: Jobs,
    partials: RegionId,
    x: RegionId,
    y: RegionId,
    g: RegionId,
    h: RegionId,
}

impl CudaPlan {
    pub(super) fn new(problem: Muon, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let spec = &specialisations()[0];
        let runs = Runs::new(problem.elements);
        let (mut list, others) = (problem.matrices(), problem.others());
        let has = |least: usize| list.iter().any(|m| on_plate(m, least));
        let least = plates::least(NAME, has, device.props().compute_capability, options.variant.as_deref())?;
        let mut plated: Vec<Matrix> = Vec::new();
        if let Some(least) = least {
            (plated, list) = list.into_iter().partition(|m| on_plate(m, least));
        }
        let (mut w, mut xs, mut gs) = (Words::default(), 0, 0);
        let mut matrices = Vec::new();
        for m in &list {
            let side = m.side();
            matrices.extend([m.first, m.rows, m.columns, side, m.elements() / side, xs, gs]);
            (xs, gs) = (xs + m.elements(), gs + side * side);
        }
        let matrices = w.push(matrices);
        let others_at = w.push(others.iter().flat_map(|&(first, n)| [first, n]));
        let tiles = |n: usize| n.div_ceil(TILE);
        let mut chunks = w.jobs(list.iter().enumerate().map(|(i, m)| (i, m.elements().div_ceil(CHUNK))))?;
        let mut triangles =
            w.jobs(list.iter().enumerate().map(|(i, m)| (i, tiles(m.side()) * (tiles(m.side()) + 1) / 2)))?;
        let mut rectangles =
            w.jobs(list.iter().enumerate().map(|(i, m)| (i, tiles(m.side()) * tiles(m.elements() / m.side()))))?;
        let mut rest = w.jobs(others.iter().enumerate().map(|(i, &(_, n))| (i, n.div_ceil(CHUNK))))?;
        let buffer = upload(device, &w.0, [w.0.len()])?;
        let address = |words: usize| buffer.address() + 8 * words as u64;
        for jobs in [&mut chunks, &mut triangles, &mut rectangles, &mut rest] {
            (jobs.of, jobs.first) = (address(jobs.of as usize), address(jobs.first as usize));
        }
        let mut layout = Layout::new(options.scratch_gap);
        let plates = least
            .map(|least| Ok::<_, crate::Error>((Hopper::new(&plated, problem.precision, device, &mut layout)?, least)));
        let [squares, momentum, adamw, divide, gram, quintic, advance, apply] =
            ENTRIES.map(|entry| device.kernel(spec, entry));
        Ok(Self {
            device: device.clone(),
            kernels: [squares?, momentum?, adamw?, divide?, gram?, quintic?, advance?, apply?],
            signature: problem.signature_of(Pass::Step)?,
            runs,
            plates: plates.transpose()?,
            matrices: address(matrices),
            count: list.len(),
            others: address(others_at),
            _buffer: buffer,
            chunks,
            triangles,
            tiles: rectangles,
            rest,
            partials: layout.push("partials", Dtype::F64, runs.count)?,
            x: layout.push("x", Dtype::F32, xs)?,
            y: layout.push("y", Dtype::F32, xs)?,
            g: layout.push("g", Dtype::F32, gs)?,
            h: layout.push("h", Dtype::F32, gs)?,
            layout,
            problem,
        })
    }
    fn same(&self, inputs: [u64; 3], outputs: [u64; 6], base: u64) -> Same<'_> {
        let [grad, decay, rate] = inputs;
        let [parameter, first, second, step, largest, grad_norm] = outputs;
        let partials = Arg::U64(self.layout.address(base, self.partials));
        let (layout, runs) = (&self.layout, self.runs.count);
        Same { layout, base, grad, decay, rate, parameter, first, second, step, largest, grad_norm, partials, runs }
    }
    /// Products of f16 that tensor cores make for one.
    fn of_one(&self) -> u64 {
        if self.problem.precision == Precision::Fast { 1 } else { 3 }
    }
    /// The launches of a step in order.
    fn each(&self, s: &Same<'_>, visit: Visit<'_>) -> Result<()> {
        let p = &self.problem;
        let [grad, decay, rate, parameter, first, second, step, largest, grad_norm] =
            [s.grad, s.decay, s.rate, s.parameter, s.first, s.second, s.step, s.largest, s.grad_norm].map(Arg::U64);
        let [mut x, mut y, g, h] = [self.x, self.y, self.g, self.h].map(|id| s.region(id));
        let matrices = Arg::U64(self.matrices);
        let count = |n: usize| Arg::I32(n as i32);
        let at = |jobs: &Jobs| Arg::U64(jobs.first);
        let runs = count(self.runs.count);
        let (clip, weight_decay) = (Arg::F64(p.common.clip), Arg::F64(p.common.weight_decay));
        let mut put = |which: usize, blocks: usize, list: &[Arg<'_>]| {
            if blocks == 0 { Ok(()) } else { visit(&self.kernels[which], plates::each(blocks), list) }
        };
        let n = Arg::I64(p.elements as i64);
        let list = [grad, s.partials, rate, step, largest, n, Arg::I64(self.runs.run as i64)];
        put(0, self.runs.count.max(1), &list)?;
        let list = [
            matrices,
            at(&self.chunks),
            grad,
            decay,
            parameter,
            s.partials,
            first,
            x,
            count(self.count),
            runs,
            clip,
            Arg::F32(p.common.pull() as f32),
            Arg::F32(p.momentum as f32),
            Arg::I32(i32::from(p.nesterov)),
        ];
        put(1, self.chunks.jobs, &list)?;
        let list = [
            Arg::U64(self.others),
            at(&self.rest),
            grad,
            decay,
            rate,
            s.partials,
            step,
            parameter,
            first,
            second,
            grad_norm,
            count(self.rest.count),
            runs,
            clip,
            Arg::F64(p.adamw_rate),
            Arg::F64(p.beta1.ln()),
            Arg::F64(p.beta2.ln()),
            Arg::F32(p.beta1 as f32),
            Arg::F32(p.beta2 as f32),
            Arg::F32((1.0 - p.beta1) as f32),
            Arg::F32((1.0 - p.beta2) as f32),
            Arg::F32(p.epsilon as f32),
            weight_decay,
        ];
        put(2, self.rest.jobs.max(1), &list)?;
        put(3, self.count, &[matrices, x])?;
        let all = count(self.count);
        for _ in 0..p.steps {
            put(4, self.triangles.jobs, &[matrices, at(&self.triangles), x, g, all])?;
            put(5, self.triangles.jobs, &[matrices, at(&self.triangles), g, h, all])?;
            put(6, self.tiles.jobs, &[matrices, at(&self.tiles), x, h, y, all])?;
            std::mem::swap(&mut x, &mut y);
        }
        let mode = Arg::I32(p.common.mode as i32);
        let list = [matrices, at(&self.chunks), x, decay, rate, largest, parameter, all, mode, weight_decay];
        put(7, self.chunks.jobs, &list)?;
        self.plates.as_ref().map_or(Ok(()), |(plates, _)| plates.step(p, s, visit))
    }
}

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
    step: u64,
    largest: u64,
    grad_norm: u64,
    /// Sums of squares of the gradient, and how many.
    partials: Arg<'static>,
    runs: usize,
}

impl Same<'_> {
    fn region(&self, id: RegionId) -> Arg<'static> {
        Arg::U64(self.layout.address(self.base, id))
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
        let rest =
            format!("{} matrices, {} tiles of products with {}", self.count, self.tiles.jobs, self.triangles.jobs);
        match &self.plates {
            None => format!("{NAME} simt: {rest}"),
            Some((plates, _)) => format!(
                "{NAME} wgmma: {} matrices by {} f16 under scales of 64 x 64 numbers, {} tiles of products and {} of \
                 triangles; f32: {rest}",
                plates.count,
                self.of_one(),
                plates.products.jobs,
                plates.gram.jobs
            ),
        }
    }
    fn variant(&self) -> &'static str {
        if self.plates.is_some() { "wgmma" } else { "simt" }
    }
    fn tensor_cores(&self) -> bool {
        self.plates.is_some()
    }
    /// An operation of an exact product is three on tensor cores, one of a fast one; f32 units do a sixteenth of what they do.
    fn cost(&self, _: Pass, least: Cost) -> Cost {
        let Some((_, plate)) = &self.plates else { return least };
        let of = |m: &Matrix| if on_plate(m, *plate) { self.of_one() } else { 16 } * self.problem.flops_of(m);
        Cost { flops: self.problem.matrices().iter().map(of).sum(), ..least }
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let (mut inputs, mut outputs) = ([0; 3], [0; 6]);
        inputs.iter_mut().zip(args.inputs).for_each(|(a, v)| *a = v.address());
        outputs.iter_mut().zip(&*args.outputs).for_each(|(a, v)| *a = v.address());
        let stream = args.stream;
        // SAFETY: the arguments are those of the kernel's signature in muon.cu, hopper.cu or their headers; the views were checked
        // against the signature, the scratch holds the layout and the tables belong to this plan.
        let visit = &mut |kernel: &Kernel, config: LaunchConfig, list: &[Arg<'_>]| unsafe {
            kernel.launch(stream, &config, list)
        };
        self.each(&self.same(inputs, outputs, args.scratch.address()), visit)
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        let mut list: Vec<LaunchReport> = Vec::new();
        let visit = &mut |kernel: &Kernel, c: LaunchConfig, _: &[Arg<'_>]| {
            let report = LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes)?;
            match list.iter_mut().find(|r| r.kernel == report.kernel && r.grid == report.grid) {
                Some(r) => r.launches += 1,
                None => list.push(report),
            }
            Ok(())
        };
        self.each(&self.same([0; 3], [0; 6], 0), visit)?;
        Ok(list)
    }
}
