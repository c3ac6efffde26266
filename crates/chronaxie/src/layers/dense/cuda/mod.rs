//! `dense` on CUDA devices: on tensor cores at the accuracy of f32 where layouts and sizes suit them, else on f32 units. Sizes
//! are arguments, so one compilation serves all of them.

#![allow(unsafe_code)]

mod hopper;
mod tensor;

use super::spec::{Channels, Dense, NAME, RUN};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature};
use crate::{Dtype, Error, Layout, Place, RegionId, Result, kernels};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

/// Threads a block, and the sides of a block's tile, as in the kernels.
const THREADS: u32 = 256;
const TILE: usize = 64;
/// The most blocks along an axis but the first.
const MOST_BLOCKS: usize = 65535;

const SOURCE: KernelSource = KernelSource::embedded("layers/dense/cuda/dense.cu", include_str!("dense.cu"));
const ENTRIES: [&str; 4] = ["dense_map", "dense_sums", "dense_fold", "dense_add"];

/// The forms in which the kernels are compiled.
pub(super) fn specialisations() -> Vec<Specialisation> {
    vec![specialisation(), tensor::specialisation(), hopper::specialisation()]
}
fn specialisation() -> Specialisation {
    let mut spec = Specialisation::new(SOURCE, &ENTRIES);
    spec.headers = &[kernels::TILES];
    spec.constants = vec![("kRun", (RUN as i32).into())];
    spec
}

/// The ways to make the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Simt,
    Mma,
    Wgmma,
}

/// The way of a plan; `variant` is what was asked for.
fn choose(p: &Dense, compute_capability: (u32, u32), variant: Option<&str>) -> Result<Variant> {
    let mma = tensor::refusal(p, compute_capability);
    let (picked, why) = match variant {
        None if mma.is_some() || !tensor::pays(p) => (Variant::Simt, None),
        None if hopper::refusal(p, compute_capability).is_none() && hopper::pays(p) => (Variant::Wgmma, None),
        None => (Variant::Mma, None),
        Some("simt") => (Variant::Simt, None),
        Some("mma") => (Variant::Mma, mma),
        Some("wgmma") => (Variant::Wgmma, hopper::refusal(p, compute_capability)),
        Some(v) => {
            return Err(Error::config(format!(
                "{NAME}: variant `{v}` is not one of simt, mma, wgmma on a CUDA device"
            )));
        }
    };
    match (variant, why) {
        (Some(v), Some(why)) => Err(Error::config(format!("{NAME}: variant `{v}`, {why}, is not for {p:?}"))),
        _ => Ok(picked),
    }
}

/// The kernels of a way, beside those on f32 units.
enum Way {
    Simt,
    Mma(tensor::Tensor),
    /// With the regions of packed numbers, forward and backward.
    Wgmma(hopper::Hopper, [hopper::Regions; 2]),
}

/// Parts of the sums over steps and of the gradient of x.
fn parts(p: &Dense, way: &Way) -> [usize; 2] {
    match way {
        Way::Simt => [p.runs(), 1],
        Way::Mma(_) => [tensor::parts_of_sums(p), tensor::parts_of_gradient(p)],
        Way::Wgmma(..) => [hopper::parts_of_sums(p), hopper::parts_of_gradient(p)],
    }
}

/// `dense` on a CUDA device.
pub(super) struct CudaPlan {
    problem: Dense,
    device: Arc<CudaDevice>,
    signatures: [Signature; 2],
    kernels: Vec<Kernel>,
    way: Way,
    layouts: [Layout; 2],
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
        let variant = choose(&problem, props.compute_capability, options.variant.as_deref())?;
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
        let mut layouts = [Layout::new(options.scratch_gap), Layout::new(options.scratch_gap)];
        let way = match variant {
            Variant::Simt => Way::Simt,
            Variant::Mma => Way::Mma(tensor::Tensor::new(device)?),
            Variant::Wgmma => {
                let [forward, backward] = &mut layouts;
                let regions = [hopper::Regions::new(&problem, forward)?, hopper::Regions::new(&problem, backward)?];
                Way::Wgmma(hopper::Hopper::new(device)?, regions)
            }
        };
        let each = problem.to.count * (problem.from.count + 1);
        let [runs, parts] = parts(&problem, &way);
        let x = problem.rows() * problem.from.count;
        // A gradient of one part is written where it belongs.
        let partial = [
            layouts[1].push("partial", Dtype::F32, runs.saturating_mul(each))?,
            layouts[1].push("parts of grad_x", Dtype::F32, if parts > 1 { parts * x } else { 0 })?,
        ];
        Ok(Self {
            problem,
            device: device.clone(),
            signatures: [problem.signature(Pass::Forward)?, problem.signature(Pass::Backward)?],
            kernels: ENTRIES.iter().map(|e| device.kernel(&spec, e)).collect::<Result<_>>()?,
            way,
            layouts,
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
            let mut launch =
                |(kernel, config, product): tensor::Launch<'_>| visit(kernel, config, &[Arg::Bytes(&product)]);
            return match &self.way {
                Way::Simt => {
                    let channels = [p.from, p.to];
                    let map = Map { from: x, weight, bias, to: outputs[0], channels, stride: [d, 1] };
                    self.map(map, &mut visit)
                }
                Way::Mma(tensor) => launch(tensor.map(p, x, weight, bias, outputs[0])),
                Way::Wgmma(hopper, [regions, _]) => {
                    let packed = regions.at(&self.layouts[0], scratch);
                    launch(hopper.pack_weight(p, weight, packed[0]))?;
                    launch(hopper.pack_x(p, x, packed[1], pass))?;
                    launch(hopper.map(p, packed, bias, outputs[0]))
                }
            };
        }
        let (grad_bias, grad_x) = if p.bias { (outputs[1], outputs[2]) } else { (0, outputs[1]) };
        let [partial, parts_of_x] = self.partial.map(|region| self.layouts[1].address(scratch, region));
        let sizes = [d, p.from.width().max(1), h, p.to.width().max(1)].map(|n| Arg::I32(n as i32));
        let [wide, from_width, tall, to_width] = sizes;
        let (rows, steps) = (Arg::I64(p.rows() as i64), Arg::I64(p.steps as i64));
        let [x_at, grad_y, to] = [x, third, partial].map(Arg::U64);
        let packed = match &self.way {
            Way::Wgmma(_, [_, regions]) => regions.at(&self.layouts[1], scratch),
            _ => [[0; 2]; 2],
        };
        match &self.way {
            Way::Simt => {
                let grid = (h.div_ceil(TILE) as u32, (d + 1).div_ceil(TILE) as u32, p.runs().min(MOST_BLOCKS) as u32);
                let args = [x_at, grad_y, to, rows, steps, wide, from_width, tall, to_width];
                visit(&self.kernels[1], LaunchConfig::new(grid, (THREADS, 1, 1)), &args)?;
            }
            Way::Mma(tensor) => {
                let (kernel, config, product) = tensor.sums(p, x, third, partial);
                visit(kernel, config, &[Arg::Bytes(&product)])?;
            }
            Way::Wgmma(hopper, _) => {
                for (kernel, config, product) in
                    [hopper.pack_x(p, x, packed[1], pass), hopper.sums(p, packed[1], third, partial)]
                {
                    visit(kernel, config, &[Arg::Bytes(&product)])?;
                }
            }
        }
        let [runs, parts] = parts(p, &self.way);
        let [grad_weight, bias] = [outputs[0], grad_bias].map(Arg::U64);
        let args = [to, grad_weight, bias, Arg::I64(runs as i64), wide, tall];
        visit(&self.kernels[2], LaunchConfig::linear(h * (d + 1), THREADS), &args)?;
        if !p.grad_x {
            return Ok(());
        }
        let sum_of_x = if parts > 1 { parts_of_x } else { grad_x };
        let launches = match &self.way {
            Way::Simt => vec![],
            Way::Mma(tensor) => tensor.gradient(p, weight, third, sum_of_x).into_iter().collect(),
            Way::Wgmma(hopper, _) => {
                vec![hopper.pack_weight(p, weight, packed[0]), hopper.gradient(p, packed[0], third, sum_of_x)]
            }
        };
        for (kernel, config, product) in &launches {
            visit(kernel, *config, &[Arg::Bytes(product)])?;
        }
        if !launches.is_empty() {
            if parts > 1 {
                let elements = p.rows() * d;
                let args = [Arg::U64(sum_of_x), Arg::U64(grad_x), Arg::I64(parts as i64), Arg::I64(elements as i64)];
                visit(&self.kernels[3], LaunchConfig::linear(elements, THREADS), &args)?;
            }
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
        let simt = format!("simt: {THREADS} threads for {TILE} x {TILE}, runs of {RUN} steps");
        let [sums, gradient] = parts(&self.problem, &self.way);
        let parts = format!("sums over steps in {sums} parts, gradient of x in {gradient}");
        match &self.way {
            Way::Simt => format!("{NAME} {simt}"),
            Way::Mma(_) => format!("{NAME} mma: 3 x tf32, {parts}, or {simt}"),
            Way::Wgmma(..) => {
                format!("{NAME} wgmma: 3 x f16 under scales of 64 x 64 numbers and of 64 of a row, {parts}")
            }
        }
    }
    fn variant(&self) -> &'static str {
        match &self.way {
            Way::Simt => "simt",
            Way::Mma(_) => "mma",
            Way::Wgmma(..) => "wgmma",
        }
    }
    fn tensor_cores(&self) -> bool {
        !matches!(self.way, Way::Simt)
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        &self.layouts[usize::from(pass == Pass::Backward)]
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let (mut inputs, mut outputs) = ([0; 3], [0; 3]);
        inputs.iter_mut().zip(args.inputs).for_each(|(a, v)| *a = v.address());
        outputs.iter_mut().zip(&*args.outputs).for_each(|(a, v)| *a = v.address());
        self.list(pass, inputs, outputs, args.scratch.address(), &mut |kernel, config, list| {
            // SAFETY: the arguments are those of the kernel's signature in dense.cu, tensor.cu or hopper.cu; the views were checked
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
