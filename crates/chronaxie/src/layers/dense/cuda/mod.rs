//! `dense` on CUDA devices: on tensor cores at the accuracy of f32 where layouts and sizes suit them, else on f32 units. Sizes
//! are arguments, so one compilation serves all of them.

#![allow(unsafe_code)]

mod tensor;

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

/// The forms in which the kernels are compiled.
pub(super) fn specialisations() -> Vec<Specialisation> {
    vec![specialisation(), tensor::specialisation()]
}
fn specialisation() -> Specialisation {
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
    tensor: Option<tensor::Tensor>,
    none: Layout,
    scratch: Layout,
    /// The sums of runs or parts, and the parts of the gradient of x.
    partial: [RegionId; 2],
}

/// What a pass launches: a kernel, its grid and its arguments.
type Visit<'a> = &'a mut dyn FnMut(&Kernel, LaunchConfig, &[Arg<'_>]) -> Result<()>;

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
        let props = device.props();
        let tensor = tensor::choose(&problem, props.compute_capability, options.variant.as_deref())?;
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
        let runs = if tensor { tensor::parts_of_sums(&problem) } else { problem.runs() };
        // A gradient of one part is written where it belongs.
        let parts = if tensor { tensor::parts_of_gradient(&problem) } else { 1 };
        let x = problem.rows() * problem.from.count;
        let partial = [
            scratch.push("partial", Dtype::F32, runs.saturating_mul(each))?,
            scratch.push("parts of grad_x", Dtype::F32, if parts > 1 { parts * x } else { 0 })?,
        ];
        Ok(Self {
            problem,
            device: device.clone(),
            signatures: [problem.signature(Pass::Forward)?, problem.signature(Pass::Backward)?],
            kernels: ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?,
            tensor: tensor.then(|| tensor::Tensor::new(device)).transpose()?,
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
        let grid = (rows.div_ceil(TILE) as u32, to.count.div_ceil(TILE) as u32, 1);
        visit(&self.kernels[0], LaunchConfig::new(grid, (THREADS, 1, 1)), &args)
    }

    fn list(&self, pass: Pass, inputs: [u64; 3], outputs: [u64; 3], scratch: u64, visit: Visit<'_>) -> Result<()> {
        let p = &self.problem;
        let (d, h) = (p.from.count, p.to.count);
        let mut visit = |kernel: &Kernel, config: LaunchConfig, args: &[Arg<'_>]| {
            let (x, y, z) = config.grid;
            if x > 0 && y > 0 && z > 0 { visit(kernel, config, args) } else { Ok(()) }
        };
        let [x, weight, third] = inputs;
        if pass == Pass::Forward {
            let bias = if p.bias { third } else { 0 };
            if let Some(tensor) = &self.tensor {
                let (kernel, config, product) = tensor.map(p, x, weight, bias, outputs[0]);
                return visit(kernel, config, &[Arg::Bytes(&product)]);
            }
            let channels = [p.from, p.to];
            return self.map(Map { from: x, weight, bias, to: outputs[0], channels, stride: [d, 1] }, &mut visit);
        }
        let (grad_bias, grad_x) = if p.bias { (outputs[1], outputs[2]) } else { (0, outputs[1]) };
        let [partial, parts_of_x] = self.partial.map(|region| self.scratch.address(scratch, region));
        let sizes = [d, p.from.width().max(1), h, p.to.width().max(1)].map(|n| Arg::I32(n as i32));
        let [wide, from_width, tall, to_width] = sizes;
        let (rows, steps) = (Arg::I64(p.rows() as i64), Arg::I64(p.steps as i64));
        let [x_at, grad_y, to] = [x, third, partial].map(Arg::U64);
        let runs = if let Some(tensor) = &self.tensor {
            let (kernel, config, product) = tensor.sums(p, x, third, partial);
            visit(kernel, config, &[Arg::Bytes(&product)])?;
            tensor::parts_of_sums(p)
        } else {
            let grid = (h.div_ceil(TILE) as u32, (d + 1).div_ceil(TILE) as u32, p.runs().min(MOST_BLOCKS) as u32);
            let args = [x_at, grad_y, to, rows, steps, wide, from_width, tall, to_width];
            visit(&self.kernels[1], LaunchConfig::new(grid, (THREADS, 1, 1)), &args)?;
            p.runs()
        };
        let [grad_weight, bias] = [outputs[0], grad_bias].map(Arg::U64);
        let args = [to, grad_weight, bias, Arg::I64(runs as i64), wide, tall];
        visit(&self.kernels[2], LaunchConfig::linear(h * (d + 1), THREADS), &args)?;
        if !p.grad_x {
            return Ok(());
        }
        if let Some(tensor) = &self.tensor {
            let parts = tensor::parts_of_gradient(p);
            let to = if parts > 1 { parts_of_x } else { grad_x };
            if let Some((kernel, config, product)) = tensor.gradient(p, weight, third, to) {
                visit(kernel, config, &[Arg::Bytes(&product)])?;
                if parts > 1 {
                    let (kernel, threads) = tensor.add();
                    let elements = p.rows() * d;
                    let args = [Arg::U64(to), Arg::U64(grad_x), Arg::I64(parts as i64), Arg::I64(elements as i64)];
                    visit(kernel, LaunchConfig::linear(elements, threads), &args)?;
                }
                return Ok(());
            }
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
        let simt = format!("simt: {THREADS} threads for {TILE} x {TILE}, runs of {RUN} steps");
        if self.tensor.is_none() {
            return format!("{NAME} {simt}");
        }
        let [sums, gradient] = [tensor::parts_of_sums(&self.problem), tensor::parts_of_gradient(&self.problem)];
        format!("{NAME} mma: 3 x tf32, sums over steps in {sums} parts, gradient of x in {gradient}, or {simt}")
    }
    fn variant(&self) -> &'static str {
        if self.tensor.is_some() { "mma" } else { "simt" }
    }
    fn tensor_cores(&self) -> bool {
        self.tensor.is_some()
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        if pass == Pass::Backward { &self.scratch } else { &self.none }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let (mut inputs, mut outputs) = ([0; 3], [0; 3]);
        inputs.iter_mut().zip(args.inputs).for_each(|(a, v)| *a = v.address());
        outputs.iter_mut().zip(&*args.outputs).for_each(|(a, v)| *a = v.address());
        self.list(pass, inputs, outputs, args.scratch.address(), &mut |kernel, config, list| {
            // SAFETY: the arguments are those of the kernel's signature in dense.cu or tensor.cu; the views were checked
            // against the signature, and the scratch holds the layout.
            unsafe { kernel.launch(args.stream, &config, list) }
        })
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let mut reports = Vec::new();
        self.list(pass, [0; 3], [0; 3], 0, &mut |kernel, c, _| {
            reports.push(LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes)?);
            Ok(())
        })?;
        Ok(reports)
    }
}
