//! `linear_scan` on CUDA devices: what is compiled, and launches.

#![allow(unsafe_code)]

pub(super) mod arrays;
pub(super) mod general;
mod tune;

use super::packing::Packing;
use super::spec::{LinearScan, NAME};
use crate::kernels;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature};
use crate::{DeviceProps, Dtype, Error, Layout, Place, Result, View};
use arrays::{STORED, stored};
use chronaxie_runtime::cuda::{Archs, Arg, CudaDevice, Header, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;
use tune::{Config, Kind, SequenceLayout};

const FORWARD: KernelSource = KernelSource::embedded("layers/ssm/cuda/forward.cu", include_str!("forward.cu"));
const BACKWARD: KernelSource = KernelSource::embedded("layers/ssm/cuda/backward.cu", include_str!("backward.cu"));
const HEADERS: &[Header] =
    &[kernels::BARRIERS, kernels::HALF, kernels::SCAN, STORED, ("tile.cuh", include_str!("tile.cuh"))];

/// The source of a pass with the constants of `config`; `bulk` says whether the architectures have bulk copies.
fn specialisation(dtype: Dtype, pass: Pass, config: &Config, bulk: bool, archs: Archs) -> Specialisation {
    let source = if pass == Pass::Forward { FORWARD } else { BACKWARD };
    let kinds = Kind::ALL.into_iter().filter(|&k| bulk || k != Kind::Bulk);
    let entries: Vec<_> = kinds.map(|k| k.entry(pass)).collect();
    let mut spec = Specialisation::new(source, &entries);
    spec.headers = HEADERS;
    spec.archs = archs;
    spec.constants = vec![("kDescending", config.descending.into()), stored(dtype)];
    let numbers = [
        ("kThreads", config.threads),
        ("kVectors", config.vectors),
        ("kStages", config.stages),
        ("kBlocksPerSm", config.blocks_per_sm),
        ("kChannelWarps", config.channel_warps),
        ("kRun", config.run),
    ];
    spec.constants.extend(numbers.map(|(name, n)| (name, (n as i32).into())));
    spec
}

/// Devices that get the same constants: one of them, whether it has bulk copies, and their architectures.
const CLASSES: [(DeviceProps, bool, &[&str]); 3] = [
    (DeviceProps::SM_80, false, &["sm_75", "sm_80", "sm_89"]),
    (DeviceProps::SM_90, true, &["sm_90a", "sm_100a"]),
    (DeviceProps::SM_120, true, &["sm_120"]),
];

/// Every kernel that a default plan can launch: both passes and directions, rows of every length, each stored as f32, bf16 and
/// f16.
pub(super) fn specialisations() -> Vec<Specialisation> {
    let mut list = general::specialisations(false);
    let dtypes = [Dtype::F32, Dtype::Bf16, Dtype::F16];
    for (dtype, (device, bulk, archs)) in dtypes.into_iter().flat_map(|d| CLASSES.map(|c| (d, c))) {
        let mut chosen = Vec::new();
        for steps in [65536, 8600, 8192, 4096, 512, 256] {
            for (pass, reverse) in [Pass::Forward, Pass::Backward].into_iter().flat_map(|p| [(p, false), (p, true)]) {
                let config = LinearScan::new(1, 1, steps)
                    .and_then(|p| p.with_dtype(dtype))
                    .and_then(|p| Config::choose(&p.with_reverse(reverse), pass, &device, None))
                    .expect("default configurations fit every fixture, as a test shows");
                if !chosen.contains(&(pass, config)) {
                    chosen.push((pass, config));
                    list.push(specialisation(dtype, pass, &config, bulk, Archs::Only(archs)));
                }
            }
        }
    }
    list
}

/// The plan of a scan: that of its own kernels where it is real and of whole sequences, and else the general one.
pub(super) fn plan(p: LinearScan, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Box<dyn Plan>> {
    let plain = !p.is_complex() && p.packing() == Packing::Whole;
    if plain && options.variant.as_deref() != Some("serial") {
        return Ok(Box::new(CudaPlan::new(p, device, options)?));
    }
    Ok(Box::new(general::GeneralPlan::new(p, device, options)?))
}

/// Every kernel of `linear_scan_complex`.
pub(super) fn complex_specialisations() -> Vec<Specialisation> {
    general::specialisations(true)
}

/// What one pass needs at run time.
#[derive(Debug)]
struct PassPlan {
    signature: Signature,
    config: Config,
    /// By [`Kind`].
    kernels: [Option<Kernel>; 4],
    /// Bytes of the ring of `bulk`.
    ring: u32,
    /// Blocks of a persistent launch.
    resident: u32,
}

impl PassPlan {
    fn new(p: &LinearScan, pass: Pass, device: &Arc<CudaDevice>, variant: Option<&str>) -> Result<Self> {
        let config = Config::choose(p, pass, device.props(), variant)?;
        let bulk = device.props().compute_capability.0 >= 9;
        let archs = if bulk { Archs::AtLeast(90) } else { Archs::All };
        let spec = specialisation(p.dtype(), pass, &config, bulk, archs);
        let mut kernels = [None, None, None, None];
        for kind in Kind::ALL.into_iter().filter(|&k| bulk || k != Kind::Bulk) {
            kernels[kind as usize] = Some(device.kernel(&spec, kind.entry(pass))?);
        }
        let ring = config.ring_bytes(pass);
        let resident = match &kernels[Kind::Bulk as usize] {
            Some(k) if config.best == Kind::Bulk => {
                k.set_max_dynamic_shared(ring)?;
                k.max_active_blocks(config.threads, ring)?.max(1) * device.props().sm_count
            }
            _ => 1,
        };
        Ok(Self { signature: p.signature(pass)?, config, kernels, ring, resident })
    }

    fn kernel(&self, kind: Kind) -> Result<&Kernel> {
        self.kernels[kind as usize]
            .as_ref()
            .ok_or_else(|| Error::unavailable(format!("{NAME}: this device has no kernel `{}`", kind.name())))
    }

    /// Grid and block of `kind` for a problem with rows.
    fn shape(&self, p: &LinearScan, kind: Kind) -> LaunchConfig {
        let (units, threads) = match kind {
            Kind::Channels => (p.rows().div_ceil(32), 32 * self.config.channel_warps),
            _ => (p.rows(), self.config.threads),
        };
        let most = if kind == Kind::Bulk && self.config.persistent { self.resident } else { i32::MAX as u32 };
        // Every kernel walks over what its grid does not cover.
        let blocks = units.clamp(1, most as usize) as u32;
        LaunchConfig::new((blocks, 1, 1), (threads, 1, 1)).shared(if kind == Kind::Bulk { self.ring } else { 0 })
    }
}

/// `linear_scan` on a CUDA device.
#[derive(Debug)]
struct CudaPlan {
    problem: LinearScan,
    device: Arc<CudaDevice>,
    forward: PassPlan,
    backward: PassPlan,
    scratch: Layout,
}

impl CudaPlan {
    fn new(problem: LinearScan, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let pass = |pass| PassPlan::new(&problem, pass, device, options.variant.as_deref());
        // Where nothing is cached the compiler takes half a second and more for each: both at a time.
        let (forward, backward) = std::thread::scope(|s| {
            let forward = s.spawn(|| pass(Pass::Forward));
            let backward = pass(Pass::Backward);
            (forward.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), backward)
        });
        Ok(Self {
            problem,
            device: device.clone(),
            forward: forward?,
            backward: backward?,
            scratch: Layout::new(options.scratch_gap),
        })
    }

    fn pass(&self, pass: Pass) -> Option<&PassPlan> {
        match pass {
            Pass::Forward => Some(&self.forward),
            Pass::Backward => Some(&self.backward),
            _ => None,
        }
    }

    fn contiguous(&self) -> SequenceLayout {
        let (d, t) = (self.problem.channels() as isize, self.problem.steps() as isize);
        SequenceLayout { address: 0, b: d * t, d: t, t: 1 }
    }
}

/// The kernels' `Sequence` or `State`: an address and strides, as they lie in memory.
fn tensor<const N: usize>(address: u64, strides: &[isize]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..8].copy_from_slice(&address.to_ne_bytes());
    for (to, &stride) in bytes[8..].chunks_exact_mut(8).zip(strides) {
        to.copy_from_slice(&(stride as i64).to_ne_bytes());
    }
    bytes
}

fn sequence(v: &View<'_>) -> ([u8; 32], SequenceLayout) {
    let s = v.strides();
    (tensor(v.address(), s), SequenceLayout { address: v.address(), b: s[0], d: s[1], t: s[2] })
}

/// A state, or the kernels' sign that there is none.
fn state(v: Option<&View<'_>>) -> [u8; 24] {
    v.map_or([0; 24], |v| tensor(v.address(), v.strides()))
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        self.pass(pass).map(|p| &p.signature)
    }
    fn config(&self) -> String {
        format!("forward {}; backward {}", self.forward.config, self.backward.config)
    }
    fn variant(&self) -> &'static str {
        self.forward.config.kind(&self.problem, &[self.contiguous()]).name()
    }
    fn scratch(&self, _pass: Pass) -> &Layout {
        &self.scratch
    }

    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let miscounted = || Error::shape(format!("{NAME}: the number of tensors does not match the signature"));
        let plan = self.pass(pass).ok_or_else(miscounted)?;
        let given = usize::from(p.has_initial_state());
        let (inputs, outputs) = (args.inputs, &*args.outputs);
        let signature = &plan.signature;
        if inputs.len() != signature.inputs.len() || outputs.len() != signature.outputs.len() {
            return Err(miscounted());
        }
        if p.rows() == 0 {
            return Ok(());
        }
        let sizes: [u8; 24] = tensor(p.rows() as u64, &[p.channels() as isize, p.steps() as isize]);
        let (kind, launched);
        if pass == Pass::Forward {
            let ((a, la), (x, lx)) = (sequence(&inputs[0]), sequence(&inputs[1]));
            let (h, lh) = sequence(&outputs[0].as_view());
            let (h0, h_last) = (state(inputs.get(2)), state(Some(&outputs[1].as_view())));
            kind = plan.config.kind(p, &[la, lx, lh]);
            let tensors: [&[u8]; 6] = [&a, &x, &h0, &h, &h_last, &sizes];
            // SAFETY: as for the backward pass below.
            launched =
                unsafe { plan.kernel(kind)?.launch(args.stream, &plan.shape(p, kind), &tensors.map(Arg::Bytes)) };
        } else {
            let (a, la) = sequence(&inputs[0]);
            let h0 = state((given == 1).then(|| &inputs[1]));
            let ((h, lh), (g, lg)) = (sequence(&inputs[1 + given]), sequence(&inputs[2 + given]));
            let g_last = state(Some(&inputs[3 + given]));
            let ((ga, lga), (gx, lgx)) = (sequence(&outputs[0].as_view()), sequence(&outputs[1].as_view()));
            let g0 = outputs.get(2).map_or([0; 24], |v| state(Some(&v.as_view())));
            kind = plan.config.kind(p, &[la, lh, lg, lga, lgx]);
            let tensors: [&[u8]; 9] = [&a, &h0, &h, &g, &g_last, &ga, &gx, &g0, &sizes];
            // SAFETY: the views' makers vouch for the memory that their shapes and strides reach; the signature's check
            // has compared shapes and types with the problem, whose sizes the kernel keeps to; the arguments are the
            // kernel's structs, field by field.
            launched =
                unsafe { plan.kernel(kind)?.launch(args.stream, &plan.shape(p, kind), &tensors.map(Arg::Bytes)) };
        }
        launched
    }

    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let Some(plan) = self.pass(pass).filter(|_| self.problem.rows() > 0) else { return Ok(Vec::new()) };
        let kind = plan.config.kind(&self.problem, &[self.contiguous()]);
        let (kernel, shape) = (plan.kernel(kind)?, plan.shape(&self.problem, kind));
        Ok(vec![LaunchReport::new(kernel, 1, shape.grid, shape.block, shape.shared_bytes)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_a_class_share_their_kernels() {
        for device in DeviceProps::FIXTURES {
            let arch = device.arch();
            let (one, bulk, _) = CLASSES.into_iter().find(|(_, _, archs)| archs.contains(&arch.as_str())).unwrap();
            assert_eq!(bulk, device.compute_capability.0 >= 9);
            let dtypes = [Dtype::F32, Dtype::Bf16, Dtype::F16];
            for ((steps, pass), dtype) in [0, 256, 512, 4096, 8192, 8600, 1 << 20]
                .into_iter()
                .flat_map(|t| [(t, Pass::Forward), (t, Pass::Backward)])
                .flat_map(|case| dtypes.map(|d| (case, d)))
            {
                let p = LinearScan::new(3, 5, steps).unwrap().with_dtype(dtype).unwrap();
                let choose = |d| Config::choose(&p, pass, d, None).unwrap();
                assert_eq!(choose(&device), choose(&one), "{arch}");
            }
        }
        // Of halves forward three more, backward two, in both directions for three classes.
        assert_eq!(specialisations().len(), 3 * 36 + 2 * 3 * 2 * (3 + 2) + 6);
    }

    #[test]
    fn structs_lie_as_the_kernels_declare_them() {
        let s: [u8; 32] = tensor(7, &[1, -2, 3]);
        let words: Vec<_> = s.chunks(8).map(|c| i64::from_ne_bytes(c.try_into().unwrap())).collect();
        assert_eq!(words, [7, 1, -2, 3]);
        assert_eq!(state(None), [0; 24]);
    }
}
