//! Launches of Muon's step: what muon.cu has, the same for every model.
#![allow(unsafe_code)]

use super::spec::{Muon, NAME};
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Kernel, KernelSource, LaunchConfig, Specialisation, upload};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::ongpu::{CHUNK, HEADERS, Jobs, THREADS, TILE, Words};
use crate::optim::stepper::Runs;
use crate::{Dtype, Layout, Place, RegionId, Result};
use std::sync::Arc;

const ENTRIES: [&str; 8] = ["squares", "momentum", "adamw", "divide", "gram", "quintic", "advance", "apply"];

pub(super) fn specialisations() -> Vec<Specialisation> {
    let source = KernelSource::embedded("optim/muon/cuda/muon.cu", include_str!("muon.cu"));
    let mut spec = Specialisation::new(source, &ENTRIES);
    spec.headers = HEADERS;
    vec![spec]
}

pub(super) struct CudaPlan {
    problem: Muon,
    device: Arc<CudaDevice>,
    kernels: [Kernel; 8],
    signature: Signature,
    layout: Layout,
    runs: Runs,
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
        let (list, others) = (problem.matrices(), problem.others());
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
        let [squares, momentum, adamw, divide, gram, quintic, advance, apply] =
            ENTRIES.map(|entry| device.kernel(spec, entry));
        Ok(Self {
            device: device.clone(),
            kernels: [squares?, momentum?, adamw?, divide?, gram?, quintic?, advance?, apply?],
            signature: problem.signature_of(Pass::Step)?,
            runs,
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
    /// Blocks of a launch of each kernel, and how often a step launches it.
    fn grids(&self) -> [(usize, usize); 8] {
        let steps = self.problem.steps;
        [
            (self.runs.count.max(1), 1),
            (self.chunks.jobs, 1),
            (self.rest.jobs.max(1), 1),
            (self.count, 1),
            (self.triangles.jobs, steps),
            (self.triangles.jobs, steps),
            (self.tiles.jobs, steps),
            (self.chunks.jobs, 1),
        ]
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
            "{NAME} simt: {} matrices, {} tiles of products with {}",
            self.count, self.tiles.jobs, self.triangles.jobs
        )
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let [grad, decay, rate] = [0, 1, 2].map(|i| Arg::U64(args.inputs[i].address()));
        let [parameter, first, second, step, largest, grad_norm] =
            [0, 1, 2, 3, 4, 5].map(|i| Arg::U64(args.outputs[i].address()));
        let region = |id| Arg::U64(self.layout.address(args.scratch.address(), id));
        let [partials, mut x, mut y, g, h] = [self.partials, self.x, self.y, self.g, self.h].map(region);
        let matrices = Arg::U64(self.matrices);
        let count = |n: usize| Arg::I32(n as i32);
        let at = |jobs: &Jobs| Arg::U64(jobs.first);
        let runs = count(self.runs.count);
        let (clip, weight_decay) = (Arg::F64(p.common.clip), Arg::F64(p.common.weight_decay));
        let grids = self.grids();
        let put = |which: usize, list: &[Arg<'_>]| {
            let blocks = grids[which].0;
            if blocks == 0 {
                return Ok(());
            }
            let config = LaunchConfig::new((blocks as u32, 1, 1), (THREADS, 1, 1));
            // SAFETY: the arguments are those of the kernel's signature in muon.cu or stepper.cuh; the views were checked against
            // the signature, the scratch holds the layout and the tables belong to this plan.
            unsafe { self.kernels[which].launch(args.stream, &config, list) }
        };
        let n = Arg::I64(p.elements as i64);
        put(0, &[grad, partials, rate, step, largest, n, Arg::I64(self.runs.run as i64)])?;
        let list = [
            matrices,
            at(&self.chunks),
            grad,
            decay,
            parameter,
            partials,
            first,
            x,
            count(self.count),
            runs,
            clip,
            Arg::F32(p.common.pull() as f32),
            Arg::F32(p.momentum as f32),
            Arg::I32(i32::from(p.nesterov)),
        ];
        put(1, &list)?;
        let list = [
            Arg::U64(self.others),
            at(&self.rest),
            grad,
            decay,
            rate,
            partials,
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
        put(2, &list)?;
        put(3, &[matrices, x])?;
        let all = count(self.count);
        for _ in 0..p.steps {
            put(4, &[matrices, at(&self.triangles), x, g, all])?;
            put(5, &[matrices, at(&self.triangles), g, h, all])?;
            put(6, &[matrices, at(&self.tiles), x, h, y, all])?;
            std::mem::swap(&mut x, &mut y);
        }
        let mode = Arg::I32(p.common.mode as i32);
        put(7, &[matrices, at(&self.chunks), x, decay, rate, largest, parameter, all, mode, weight_decay])
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        let used = self.grids().into_iter().zip(&self.kernels).filter(|((blocks, _), _)| *blocks > 0);
        used.map(|((blocks, launches), kernel)| {
            LaunchReport::new(kernel, launches, (blocks as u32, 1, 1), (THREADS, 1, 1), 0)
        })
        .collect()
    }
}
