//! `dense` on CUDA devices. Sizes are arguments, so one compilation serves all of them.

#![allow(unsafe_code)]

use super::spec::{Channels, Dense, NAME, RUN};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature};
use crate::{Dtype, Error, Layout, Place, RegionId, Result};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

/// Threads a block, and the sides of a block's tile, as in the kernels.
const THREADS: u32 = 256;
const TILE: usize = 64;
/// The most blocks along an axis but the first.
const MOST_BLOCKS: usize = 65535;

const SOURCE: KernelSource = KernelSource::embedded("layers/dense/cuda/dense.cu", include_str!("dense.cu"));
const ENTRIES: [&str; 3] = ["dense_map", "dense_sums", "dense_fold"];

/// The one form in which the kernels are compiled.
pub(super) fn specialisation() -> Specialisation {
    let mut spec = Specialisation::new(SOURCE, &ENTRIES);
    spec.constants = vec![("kRun", (RUN as i32).into())];
    spec
}

/// `dense` on a CUDA device.
pub(super) struct CudaPlan {
    problem: Dense,
    device: Arc<CudaDevice>,
    signatures: [Signature; 2],
    kernels: Vec<Kernel>,
    none: Layout,
    scratch: Layout,
    partial: RegionId,
}

/// What a pass launches: the kernel's place in [`ENTRIES`], its grid and its arguments.
type Visit<'a> = &'a mut dyn FnMut(usize, (u32, u32, u32), &[Arg<'_>]) -> Result<()>;

/// One map: addresses of what it reads and writes.
struct Map {
    from: u64,
    weight: u64,
    bias: u64,
    to: u64,
    channels: [Channels; 2],
    stride: [usize; 2],
}

impl CudaPlan {
    pub(super) fn new(problem: Dense, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        options.only("simt", NAME, "a CUDA device")?;
        for (name, c) in [("D", problem.from), ("H", problem.to)] {
            if c.count.div_ceil(TILE) >= MOST_BLOCKS {
                return Err(Error::shape(format!(
                    "{NAME}: {name} = {} is beyond {}",
                    c.count,
                    TILE * (MOST_BLOCKS - 1)
                )));
            }
        }
        let spec = specialisation();
        let mut scratch = Layout::new(options.scratch_gap);
        let each = problem.to.count * (problem.from.count + 1);
        let partial = scratch.push("partial", Dtype::F32, problem.runs().saturating_mul(each))?;
        Ok(Self {
            problem,
            device: device.clone(),
            signatures: [problem.signature(Pass::Forward)?, problem.signature(Pass::Backward)?],
            kernels: ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?,
            none: Layout::new(options.scratch_gap),
            scratch,
            partial,
        })
    }

    fn map(&self, m: Map, visit: Visit<'_>) -> Result<()> {
        let (rows, [from, to]) = (self.problem.rows(), m.channels);
        let args = [
            Arg::U64(m.from),
            Arg::U64(m.weight),
            Arg::U64(m.bias),
            Arg::U64(m.to),
            Arg::I64(rows as i64),
            Arg::I64(self.problem.steps as i64),
            Arg::I32(from.count as i32),
            Arg::I32(from.width().max(1) as i32),
            Arg::I32(to.count as i32),
            Arg::I32(to.width().max(1) as i32),
            Arg::I64(m.stride[0] as i64),
            Arg::I64(m.stride[1] as i64),
        ];
        visit(0, (rows.div_ceil(TILE) as u32, to.count.div_ceil(TILE) as u32, 1), &args)
    }

    fn list(&self, pass: Pass, inputs: [u64; 3], outputs: [u64; 3], scratch: u64, visit: Visit<'_>) -> Result<()> {
        let p = &self.problem;
        let (d, h) = (p.from.count, p.to.count);
        let mut visit = |kernel, grid: (u32, u32, u32), args: &[Arg<'_>]| {
            if grid.0 > 0 && grid.1 > 0 && grid.2 > 0 { visit(kernel, grid, args) } else { Ok(()) }
        };
        let [x, weight, third] = inputs;
        if pass == Pass::Forward {
            let bias = if p.bias { third } else { 0 };
            let channels = [p.from, p.to];
            return self.map(Map { from: x, weight, bias, to: outputs[0], channels, stride: [d, 1] }, &mut visit);
        }
        let (grad_bias, grad_x) = if p.bias { (outputs[1], outputs[2]) } else { (0, outputs[1]) };
        let partial = self.scratch.address(scratch, self.partial);
        let sizes = [d, p.from.width().max(1), h, p.to.width().max(1)].map(|n| Arg::I32(n as i32));
        let [wide, from_width, tall, to_width] = sizes;
        let (rows, steps) = (Arg::I64(p.rows() as i64), Arg::I64(p.steps as i64));
        let grid = (h.div_ceil(TILE) as u32, (d + 1).div_ceil(TILE) as u32, p.runs().min(MOST_BLOCKS) as u32);
        let [x_at, grad_y, to] = [x, third, partial].map(Arg::U64);
        visit(1, grid, &[x_at, grad_y, to, rows, steps, wide, from_width, tall, to_width])?;
        let elements = h * (d + 1);
        let blocks = elements.div_ceil(THREADS as usize) as u32;
        let [grad_weight, bias] = [outputs[0], grad_bias].map(Arg::U64);
        visit(2, (blocks, 1, 1), &[to, grad_weight, bias, Arg::I64(p.runs() as i64), wide, tall])?;
        if !p.grad_x {
            return Ok(());
        }
        let channels = [p.to, p.from];
        self.map(Map { from: third, weight, bias: 0, to: grad_x, channels, stride: [1, d] }, &mut visit)
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
        match pass {
            Pass::Forward => Some(&self.signatures[0]),
            Pass::Backward => Some(&self.signatures[1]),
            _ => None,
        }
    }
    fn config(&self) -> String {
        format!("{NAME} simt: {THREADS} threads for {TILE} x {TILE}, runs of {RUN} steps")
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        if pass == Pass::Backward { &self.scratch } else { &self.none }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let (mut inputs, mut outputs) = ([0; 3], [0; 3]);
        inputs.iter_mut().zip(args.inputs).for_each(|(a, v)| *a = v.address());
        outputs.iter_mut().zip(&*args.outputs).for_each(|(a, v)| *a = v.address());
        self.list(pass, inputs, outputs, args.scratch.address(), &mut |kernel, grid, list| {
            let config = LaunchConfig::new(grid, (THREADS, 1, 1));
            // SAFETY: the arguments are those of the kernel's signature in dense.cu; the views were checked against the
            // signature, and the scratch holds the layout.
            unsafe { self.kernels[kernel].launch(args.stream, &config, list) }
        })
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let mut reports = Vec::new();
        self.list(pass, [0; 3], [0; 3], 0, &mut |kernel, grid, _| {
            reports.push(LaunchReport::new(&self.kernels[kernel], 1, grid, (THREADS, 1, 1), 0)?);
            Ok(())
        })?;
        Ok(reports)
    }
}
