//! The mLSTM on CUDA devices: the portable kernels, for every architecture and element type.
#![allow(unsafe_code)]

mod step;

use super::spec::Mlstm;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::{Dtype, Error, Layout, Place, RegionId, Result, View, ViewMut};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Header, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;
pub(super) use step::{StepPlan, step_specialisations};

const FORWARD: KernelSource = KernelSource::embedded("layers/mlstm/cuda/forward.cu", include_str!("forward.cu"));
const BACKWARD: KernelSource = KernelSource::embedded("layers/mlstm/cuda/backward.cu", include_str!("backward.cu"));
const HEADERS: &[Header] = &[("mlstm.cuh", include_str!("mlstm.cuh"))];
const FORWARD_ENTRIES: [&str; 5] = ["gate_sums", "gate_gauge", "gate_tokens", "states", "outputs"];
const BACKWARD_ENTRIES: [&str; 4] = ["tokens", "grad_states", "gradients", "ends"];

/// Threads a block, as `kThreads` in mlstm.cuh.
const THREADS: u32 = 256;
/// Tokens a chunk at most, and rows and columns of a tile, as `kTile` there.
const TILE: usize = 64;
/// Bytes of states, and as many of gradients, that a window of chunks keeps, where that gives at least two chunks.
const WINDOW_BYTES: usize = 256 << 20;

/// The element types of q, k, v and h, as `kDtype` in the kernels.
fn dtype_code(dtype: Dtype) -> i32 {
    match dtype {
        Dtype::F16 => 1,
        Dtype::Bf16 => 2,
        _ => 0,
    }
}

fn specialisation(source: KernelSource, entries: &[&'static str], dtype: Dtype) -> Specialisation {
    let mut spec = Specialisation::new(source, entries);
    spec.headers = HEADERS;
    spec.constants = vec![("kDtype", dtype_code(dtype).into())];
    spec
}

/// Every kernel that a plan can launch: nothing but the element type shapes one.
pub(super) fn specialisations() -> Vec<Specialisation> {
    let both = |d| [specialisation(FORWARD, &FORWARD_ENTRIES, d), specialisation(BACKWARD, &BACKWARD_ENTRIES, d)];
    [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().flat_map(both).collect()
}

/// `Tokens` of mlstm.cuh.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Tokens {
    data: u64,
    strides: [i64; 4],
}

impl Tokens {
    /// A tensor `[B, NH, T, width]` or `[B, NH, T]`.
    fn new(address: u64, strides: &[isize]) -> Self {
        let mut all = [1; 4];
        all.iter_mut().zip(strides).for_each(|(to, &s)| *to = s as i64);
        Self { data: address, strides: all }
    }
    /// A tensor `[B, NH, width]` or `[B, NH]`, whose only time is 0.
    fn of_one(address: u64, strides: &[isize]) -> Self {
        let [b, h, d, _] = Self::new(address, strides).strides;
        Self { data: address, strides: [b, h, 0, d] }
    }
}

/// `Call` of mlstm.cuh, field by field.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Call {
    /// q, k, v, i, f, h, grad_h, grad_q, grad_k, grad_v, grad_i, grad_f.
    tokens: [Tokens; 12],
    cuts: u64,
    /// c, n, m of: initial, last, grad last, grad initial.
    states: [[u64; 3]; 4],
    /// l, m.
    saved: [u64; 2],
    /// sums, input, most.
    gates: [u64; 3],
    /// c, n, start_c, start_n.
    kept: [u64; 4],
    /// inverse, grad_l.
    rates: [u64; 2],
    /// grad_c, grad_n, carry_c, carry_n, excess.
    grads: [u64; 5],
    /// heads, steps, dk, dv, length, chains, chunks, window, windows.
    sizes: [i64; 9],
    /// sigmoid, normalize, through.
    options: [i64; 3],
    /// scale, eps.
    numbers: [f64; 2],
}

/// The bytes of a kernel's struct.
///
/// # Safety
/// `T` must have no padding.
unsafe fn bytes<T>(call: &T) -> &[u8] {
    // SAFETY: the struct is there, and every byte of it is initialised, as the caller promises.
    unsafe { std::slice::from_raw_parts((&raw const *call).cast(), size_of::<T>()) }
}

const TOKENS: [&str; 12] = ["q", "k", "v", "i", "f", "h", "grad_h", "grad_q", "grad_k", "grad_v", "grad_i", "grad_f"];
const STATES: [[&str; 3]; 4] = [
    ["c_initial", "n_initial", "m_initial"],
    ["c_last", "n_last", "m_last"],
    ["grad_c_last", "grad_n_last", "grad_m_last"],
    ["grad_c_initial", "grad_n_initial", "grad_m_initial"],
];

/// What one pass needs.
struct PassPlan {
    signature: Signature,
    kernels: Vec<Kernel>,
    layout: Layout,
    /// In the order of [`Call`]: m, gates, kept, rates, grads.
    regions: Vec<RegionId>,
    window: usize,
    windows: usize,
}

/// `mlstm_exp` or `mlstm_sig` on a CUDA device.
pub(super) struct CudaPlan {
    problem: Mlstm,
    device: Arc<CudaDevice>,
    forward: PassPlan,
    backward: Option<PassPlan>,
    empty: Layout,
}

/// Tokens a chunk: what the problem says, as far as a tile holds it.
fn length(p: &Mlstm) -> usize {
    p.chunk_length().min(TILE)
}
fn chains(p: &Mlstm) -> usize {
    p.states() * p.heads
}
fn chunks(p: &Mlstm) -> usize {
    p.steps.div_ceil(length(p)).max(1)
}

impl PassPlan {
    fn new(p: &Mlstm, pass: Pass, device: &Arc<CudaDevice>, gap: usize, asked: Option<usize>) -> Result<Self> {
        let (k, kv, chains, chunks) = (p.dqk, p.dqk * p.dv, chains(p), chunks(p));
        let backward = pass == Pass::Backward;
        let least = if backward { chunks.isqrt().max(2) } else { 2 };
        let window = asked.unwrap_or((WINDOW_BYTES / (4 * kv * chains.max(1))).max(least)).min(chunks);
        let windows = chunks.div_ceil(window);
        let mut kernels = Vec::new();
        let forward = specialisation(FORWARD, &FORWARD_ENTRIES, p.dtype);
        for entry in FORWARD_ENTRIES {
            kernels.push(device.kernel(&forward, entry)?);
        }
        if backward {
            let spec = specialisation(BACKWARD, &BACKWARD_ENTRIES, p.dtype);
            for entry in BACKWARD_ENTRIES {
                kernels.push(device.kernel(&spec, entry)?);
            }
        }
        let tokens = p.batch * p.heads * p.steps;
        let only = |there: bool, n: usize| if there { n } else { 0 };
        let started = only(backward && windows > 1, chains * windows);
        let own_gauge = !backward && !p.backward && p.has_gauge();
        let mut layout = Layout::new(gap);
        let list = [
            ("gauge", Dtype::F32, only(own_gauge, tokens)),
            ("gate_sums", Dtype::F64, tokens),
            ("input_gates", Dtype::F32, tokens),
            ("most", Dtype::F64, chains * chunks),
            ("states_c", Dtype::F32, chains * (window + 1) * kv),
            ("states_n", Dtype::F32, chains * (window + 1) * k),
            ("starts_c", Dtype::F32, started * kv),
            ("starts_n", Dtype::F32, started * k),
            ("inverse", Dtype::F32, only(backward, tokens)),
            ("grad_l", Dtype::F32, only(backward, tokens)),
            ("grads_c", Dtype::F32, only(backward, chains * window * kv)),
            ("grads_n", Dtype::F32, only(backward, chains * window * k)),
            ("carry_c", Dtype::F32, only(backward, chains * kv)),
            ("carry_n", Dtype::F32, only(backward, chains * k)),
            ("excess", Dtype::F64, only(backward, chains)),
        ];
        let push = |(name, dtype, n)| layout.push(name, dtype, n);
        let regions = list.into_iter().map(push).collect::<Result<_>>()?;
        Ok(Self { signature: p.signature_of(pass)?, kernels, layout, regions, window, windows })
    }

    fn call(&self, p: &Mlstm, inputs: &[View<'_>], outputs: &[ViewMut<'_>], scratch: u64) -> Call {
        let find = |name: &str| -> Tokens {
            let of_input = self.signature.input(name).map(|at| Tokens::new(inputs[at].address(), inputs[at].strides()));
            let output = || self.signature.output(name).map(|at| &outputs[at]);
            of_input.or_else(|| output().map(|v| Tokens::new(v.address(), v.strides()))).unwrap_or_default()
        };
        let address = |name: &str| find(name).data;
        let at = |nth: usize| {
            let there = self.layout.region(self.regions[nth]).len > 0;
            if there { self.layout.address(scratch, self.regions[nth]) } else { 0 }
        };
        let m = match address("m") {
            0 if p.has_gauge() => at(0),
            saved => saved,
        };
        let sizes = [p.heads, p.steps, p.dqk, p.dv, length(p), chains(p), chunks(p), self.window, self.windows];
        let through = p.normalize && p.normalizer_grad;
        Call {
            tokens: TOKENS.map(find),
            cuts: address("cu_seqlens"),
            states: STATES.map(|names| names.map(address)),
            saved: [address("l"), m],
            gates: [at(1), at(2), at(3)],
            kept: [at(4), at(5), at(6), at(7)],
            rates: [at(8), at(9)],
            grads: [at(10), at(11), at(12), at(13), at(14)],
            sizes: sizes.map(|n| n as i64),
            options: [!p.has_gauge(), p.normalize, through].map(i64::from),
            numbers: [1.0 / (p.dqk as f64).sqrt(), p.eps],
        }
    }

    /// The launches of the pass in order: a kernel's position, its grid, the window and whether it restarts.
    fn visit(&self, p: &Mlstm, pass: Pass, mut launch: impl FnMut(Launch) -> Result<()>) -> Result<()> {
        let (chains, chunks) = (chains(p) as u32, chunks(p));
        let flat = |n: usize| (n.div_ceil(THREADS as usize) as u32, 1);
        let tiles = (p.dqk.div_ceil(TILE) * p.dv.div_ceil(TILE)) as u32;
        let mut go = |kernel, grid, window: usize, restart| launch(Launch { kernel, grid, window, restart });
        let (all, by_chain) = (chains as usize * chunks, (tiles, chains));
        let many = |window: usize| (self.window.min(chunks - window * self.window) as u32, chains);
        go(0, flat(all), NO_WINDOW, None)?;
        if pass == Pass::Forward {
            if p.has_gauge() {
                go(1, flat(chains as usize), NO_WINDOW, None)?;
                go(2, flat(all), NO_WINDOW, None)?;
            }
            for window in 0..self.windows {
                go(3, by_chain, window, Some(0))?;
                go(4, many(window), window, None)?;
            }
            return Ok(());
        }
        go(5, flat(all * length(p)), NO_WINDOW, None)?;
        for window in 0..self.windows {
            go(3, by_chain, window, Some(0))?;
        }
        for window in (0..self.windows).rev() {
            if window + 1 < self.windows {
                go(3, by_chain, window, Some(1))?;
            }
            go(6, by_chain, window, None)?;
            go(7, many(window), window, None)?;
        }
        go(8, (chains, 1), NO_WINDOW, None)
    }
}

const NO_WINDOW: usize = usize::MAX;

/// One launch.
struct Launch {
    kernel: usize,
    grid: (u32, u32),
    window: usize,
    restart: Option<i32>,
}

impl CudaPlan {
    pub(super) fn new(p: &Mlstm, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let problem = p.build()?;
        let entry = problem.gate.entry();
        let asked = match options.variant.as_deref() {
            None | Some("simt") => None,
            Some(v) => {
                let size = v.strip_prefix("simt:w").and_then(|n| n.parse().ok()).filter(|&n: &usize| n > 0);
                let other = || format!("{entry}: variant `{v}` is not one of simt, simt:wN on CUDA");
                Some(size.ok_or_else(|| Error::config(other()))?)
            }
        };
        // Chains are the second axis of grids.
        if chains(&problem) > 65535 || chains(&problem).saturating_mul(chunks(&problem)) > i32::MAX as usize {
            let (chains, chunks) = (chains(&problem), chunks(&problem));
            return Err(Error::shape(format!(
                "{entry}: S NH = {chains} with {chunks} chunks each exceeds a CUDA grid"
            )));
        }
        let plan = |pass| PassPlan::new(&problem, pass, device, options.scratch_gap, asked);
        let backward = if problem.backward { Some(plan(Pass::Backward)?) } else { None };
        let forward = plan(Pass::Forward)?;
        Ok(Self { problem, device: device.clone(), forward, backward, empty: Layout::new(0) })
    }
    fn pass(&self, pass: Pass) -> Option<&PassPlan> {
        match pass {
            Pass::Forward => Some(&self.forward),
            Pass::Backward => self.backward.as_ref(),
            _ => None,
        }
    }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        self.problem.gate.entry()
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        self.pass(pass).map(|p| &p.signature)
    }
    fn config(&self) -> String {
        format!("chunk={} window={} threads={THREADS}", length(&self.problem), self.forward.window)
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        self.pass(pass).map_or(&self.empty, |p| &p.layout)
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let missing = || Error::config(format!("{}: the {} pass was not planned", self.entry(), pass.name()));
        let plan = self.pass(pass).ok_or_else(missing)?;
        if chains(&self.problem) == 0 {
            return Ok(());
        }
        let call = plan.call(&self.problem, args.inputs, args.outputs, args.scratch.address());
        plan.visit(&self.problem, pass, |launch| {
            let config = LaunchConfig::new((launch.grid.0, launch.grid.1, 1), (THREADS, 1, 1));
            // SAFETY: every field of the struct is eight bytes, or made of such.
            let call = Arg::Bytes(unsafe { bytes(&call) });
            let list = [call, Arg::I64(launch.window as i64), Arg::I32(launch.restart.unwrap_or(0))];
            let count = if launch.window == NO_WINDOW { 1 } else { 2 + usize::from(launch.restart.is_some()) };
            // SAFETY: the views were checked against the signature and the scratch against the layout; the kernels keep to
            // the sizes, and the struct is theirs, field by field.
            unsafe { plan.kernels[launch.kernel].launch(args.stream, &config, &list[..count]) }
        })
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let Some(plan) = self.pass(pass).filter(|_| chains(&self.problem) > 0) else { return Ok(Vec::new()) };
        let mut reports: Vec<(usize, LaunchReport)> = Vec::new();
        plan.visit(&self.problem, pass, |launch| {
            if let Some((_, report)) = reports.iter_mut().find(|(kernel, _)| *kernel == launch.kernel) {
                report.launches += 1;
                return Ok(());
            }
            let grid = (launch.grid.0, launch.grid.1, 1);
            let report = LaunchReport::new(&plan.kernels[launch.kernel], 1, grid, (THREADS, 1, 1), 0)?;
            reports.push((launch.kernel, report));
            Ok(())
        })?;
        Ok(reports.into_iter().map(|(_, report)| report).collect())
    }
}
