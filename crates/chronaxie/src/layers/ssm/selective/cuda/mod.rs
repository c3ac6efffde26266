//! `selective_scan` and its step on CUDA devices: a warp a channel.

#![allow(unsafe_code)]

use super::super::cuda::arrays::{array, constants, marks};
use super::super::cuda::general::HEADERS as NUMBER;
use super::super::lanes::STEPS;
use super::super::packing::Packing;
use super::spec::{Discretisation, MAX_STATES, SelectiveScan, Weights};
use super::step::SelectiveStateUpdate;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature};
use crate::{Dtype, Error, Layout, Place, RegionId, Result, View};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Header, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

const SOURCE: KernelSource =
    KernelSource::embedded("layers/ssm/selective/cuda/selective.cu", include_str!("selective.cu"));
const HEADERS: &[Header] = &[NUMBER[0], ("phase.cuh", include_str!("../../cuda/phase.cuh"))];
const ENTRIES: [&str; 4] = ["selective_forward", "selective_backward", "selective_fold", "selective_fold_slices"];
/// Threads a block: four warps.
const THREADS: u32 = 128;
/// Warps a multiprocessor of the backward pass, each with its own trace.
const WARPS_PER_SM: usize = 16;
/// Parts of the units, and of a group's channels, at the most.
const PARTS: usize = 16;

/// States that a lane takes: a power of two, so that few forms are compiled.
fn per_lane(states: usize) -> usize {
    states.div_ceil(32).next_power_of_two()
}

fn specialisation(dtype: Dtype, complex: bool, rule: Discretisation, per_lane: usize) -> Specialisation {
    let mut spec = Specialisation::new(SOURCE, &ENTRIES);
    spec.headers = HEADERS;
    // Angles become the CPU's integers, to the bit.
    spec.fmad = false;
    spec.constants = constants(dtype, complex);
    let rule = Discretisation::ALL.iter().position(|&r| r == rule).unwrap_or(0);
    let numbers = [("kThreads", THREADS as i32), ("kPerLane", per_lane as i32), ("kRule", rule as i32)];
    spec.constants.extend(numbers.map(|(name, n)| (name, n.into())));
    spec
}

/// The corners: few and many states a lane, real and complex, every rule and every type once.
pub(super) fn specialisations() -> Vec<Specialisation> {
    let most = per_lane(MAX_STATES);
    vec![
        specialisation(Dtype::F32, false, Discretisation::Exp, 1),
        specialisation(Dtype::F32, true, Discretisation::Zoh, most),
        specialisation(Dtype::Bf16, false, Discretisation::Bilinear, most),
        specialisation(Dtype::F16, true, Discretisation::Bilinear, 1),
    ]
}

/// Where the parts lie in scratch.
#[derive(Debug, Clone, Copy)]
struct Shares {
    parts: usize,
    slices: usize,
    groups: usize,
    own: bool,
}

impl Shares {
    fn new(p: &SelectiveScan) -> Self {
        let groups = [p.b(), p.c()].into_iter().find_map(|w| match w {
            Weights::Varying(g) => Some(g),
            Weights::Constant => None,
        });
        let groups = groups.unwrap_or(1);
        let own = groups == p.channels() && groups > 1;
        let width = if own { p.channels() } else { p.channels() / groups };
        Self { parts: p.packing().states(p.batch()).min(PARTS), slices: width.min(PARTS), groups, own }
    }
}

/// `selective_scan`, or its step, on a CUDA device.
#[derive(Debug)]
pub(super) struct CudaPlan {
    scan: SelectiveScan,
    step: Option<SelectiveStateUpdate>,
    device: Arc<CudaDevice>,
    signatures: Vec<(Pass, Signature)>,
    kernels: [Kernel; 4],
    none: Layout,
    scratch: Layout,
    /// part_a, part_b, part_c, trace, part_vectors.
    regions: [RegionId; 5],
    shares: Shares,
    /// Blocks of the backward pass.
    blocks: usize,
}

impl CudaPlan {
    pub(super) fn new(scan: SelectiveScan, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let signatures = [Pass::Forward, Pass::Backward].map(|pass| Ok((pass, scan.signature(pass)?)));
        Self::of(scan, None, signatures.into_iter().collect::<Result<_>>()?, device, options)
    }
    pub(super) fn step(step: SelectiveStateUpdate, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let signature = step.signature(Pass::Step)?;
        Self::of(*step.scan(), Some(step), vec![(Pass::Step, signature)], device, options)
    }
    fn of(
        scan: SelectiveScan,
        step: Option<SelectiveStateUpdate>,
        signatures: Vec<(Pass, Signature)>,
        device: &Arc<CudaDevice>,
        options: &PlanOptions,
    ) -> Result<Self> {
        let name = step.map_or(super::spec::NAME, |_| super::step::NAME);
        if let Some(v) = options.variant.as_deref().filter(|&v| v != "serial") {
            return Err(Error::config(format!("{name}: variant `{v}` is not one of serial on CUDA devices")));
        }
        let spec = specialisation(scan.dtype(), scan.is_complex(), scan.discretisation(), per_lane(scan.states()));
        let (shares, warps) = (Shares::new(&scan), THREADS as usize / 32);
        let groups = if shares.own { 1 } else { shares.groups };
        let most = (device.props().sm_count as usize * WARPS_PER_SM / warps).max(1);
        let blocks = (shares.parts * groups * shares.slices).div_ceil(warps).clamp(1, most);
        let state = if scan.is_complex() { Dtype::C64 } else { Dtype::F32 };
        let rates = shares.parts * scan.channels() * scan.states();
        let weight = |w: Weights| match w {
            Weights::Constant => rates,
            Weights::Varying(_) if shares.own => 0,
            Weights::Varying(g) => shares.slices * scan.batch() * g * scan.states() * scan.steps(),
        };
        let mut scratch = Layout::new(options.scratch_gap);
        let regions = [
            scratch.push("parts of grad_A", state, rates)?,
            scratch.push("parts of grad_B", state, weight(scan.b()))?,
            scratch.push("parts of grad_C", state, weight(scan.c()))?,
            scratch.push("states of 128 steps", state, blocks * warps * STEPS * scan.states())?,
            scratch.push("parts of grad_D and grad_delta_bias", Dtype::F32, 2 * shares.parts * scan.channels())?,
        ];
        let kernel = |name| device.kernel(&spec, name);
        Ok(Self {
            scan,
            step,
            device: device.clone(),
            signatures,
            kernels: [kernel(ENTRIES[0])?, kernel(ENTRIES[1])?, kernel(ENTRIES[2])?, kernel(ENTRIES[3])?],
            none: Layout::new(options.scratch_gap),
            scratch,
            regions,
            shares,
            blocks,
        })
    }

    /// The launches of a pass, in order.
    fn steps(&self, pass: Pass) -> Vec<(&Kernel, LaunchConfig)> {
        let p = &self.scan;
        let rows = p.packing().states(p.batch()) * p.channels();
        if pass != Pass::Backward {
            let some = (rows > 0).then(|| (&self.kernels[0], LaunchConfig::linear(32 * rows, THREADS)));
            return some.into_iter().collect();
        }
        let walk = LaunchConfig::new((self.blocks as u32, 1, 1), (THREADS, 1, 1));
        let varies = [p.b(), p.c()].iter().any(|w| matches!(w, Weights::Varying(_)));
        let elements = p.batch() * self.shares.groups * p.states() * p.steps();
        let all = [
            (rows > 0).then_some((&self.kernels[1], walk)),
            (p.channels() > 0).then(|| (&self.kernels[2], LaunchConfig::linear(p.channels() * p.states(), THREADS))),
            (varies && !self.shares.own && elements > 0)
                .then(|| (&self.kernels[3], LaunchConfig::linear(elements, THREADS))),
        ];
        all.into_iter().flatten().collect()
    }

    /// The kernels' `Tensors`.
    fn tensors(&self, pass: Pass, args: &Args<'_, '_>) -> Vec<u8> {
        let p = &self.scan;
        let given = p.inputs().map(|t| t.is_some());
        let outputs: Vec<View<'_>> = args.outputs.iter().map(|v| v.as_view()).collect();
        let (mut views, mut written) = (args.inputs.iter(), outputs.iter());
        let mut arrays: Vec<Option<&View<'_>>> = given.iter().map(|&g| if g { views.next() } else { None }).collect();
        let packed = (p.packing() != Packing::Whole).then(|| views.next()).flatten();
        let table = self.step.filter(SelectiveStateUpdate::has_table).and_then(|_| views.next());
        match pass {
            Pass::Step => {
                // The state is where the step starts and where it ends.
                arrays[8] = written.next();
                arrays.extend([written.next(), arrays[8], None]);
            }
            Pass::Forward => arrays.extend(written.map(Some)),
            _ => {
                arrays.extend([None, None]);
                arrays.extend(views.map(Some));
                arrays.extend(given.iter().map(|&g| if g { written.next() } else { None }));
            }
        }
        arrays.resize(9 + 3 + 2 + 9, None);
        let mut bytes: Vec<u8> = arrays.into_iter().flat_map(array).collect();
        let base = args.scratch.address();
        let region = |id| if pass == Pass::Backward { self.scratch.address(base, id) } else { 0 };
        bytes.extend(self.regions.map(region).iter().flat_map(|a| a.to_ne_bytes()));
        bytes.extend(table.map_or(0, View::address).to_ne_bytes());
        bytes.extend(marks(p.packing(), packed, p.batch(), p.steps()));
        let s = &self.shares;
        let varies = |w: Weights| usize::from(matches!(w, Weights::Varying(_)));
        let sizes = [p.batch(), p.channels(), p.states(), s.groups, s.parts, s.slices, usize::from(s.own)];
        let slots = self.step.map_or(p.packing().states(p.batch()), |s| s.rows());
        let options = [varies(p.b()), varies(p.c()), usize::from(p.has_softplus()), slots];
        bytes.extend(sizes.iter().chain(&options).flat_map(|&n| (n as i64).to_ne_bytes()));
        bytes
    }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        self.step.map_or(super::spec::NAME, |_| super::step::NAME)
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        self.signatures.iter().find(|(p, _)| *p == pass).map(|(_, s)| s)
    }
    fn config(&self) -> String {
        format!("serial threads={THREADS} per_lane={} backward_blocks={}", per_lane(self.scan.states()), self.blocks)
    }
    fn variant(&self) -> &'static str {
        "serial"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        if pass == Pass::Backward { &self.scratch } else { &self.none }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let tensors = self.tensors(pass, args);
        for (kernel, config) in self.steps(pass) {
            // SAFETY: the views' makers vouch for the memory that their shapes and strides reach; the signature's check has
            // compared shapes and types with the problem, whose sizes the kernels keep to; the argument is the kernels'
            // struct, field by field, and the scratch holds the layout.
            unsafe { kernel.launch(args.stream, &config, &[Arg::Bytes(&tensors)])? };
        }
        Ok(())
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let report =
            |(kernel, c): (&Kernel, LaunchConfig)| LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes);
        self.steps(pass).into_iter().map(report).collect()
    }
}
