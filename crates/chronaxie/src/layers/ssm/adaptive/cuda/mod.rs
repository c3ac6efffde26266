//! `adaptive_theta` on CUDA devices: time over the lanes of a warp where it is contiguous, else one step after the other.

#![allow(unsafe_code)]

use super::super::cuda::arrays::{RUNS, STORED, array, constants, marks, suits};
use super::super::cuda::general::HEADERS as NUMBER;
use super::super::lanes::STEPS;
use super::super::packing::Packing;
use super::spec::{AdaptiveScan, NAME};
use crate::kernels;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature, TensorSpec};
use crate::{Dtype, Error, Layout, Place, RegionId, Result, View};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Header, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

const SOURCE: KernelSource =
    KernelSource::embedded("layers/ssm/adaptive/cuda/adaptive.cu", include_str!("adaptive.cu"));
const SHARED: Header = ("adaptive.cuh", include_str!("adaptive.cuh"));
const HEADERS: &[Header] = &[NUMBER[0], ("phase.cuh", include_str!("../../cuda/phase.cuh")), SHARED];
const OF_LANES: Header = ("lanes.cuh", include_str!("lanes.cuh"));
const LANES_HEADERS: &[Header] = &[HEADERS[0], HEADERS[1], SHARED, OF_LANES, kernels::HALF, STORED, RUNS];
const LANES: KernelSource = KernelSource::embedded("layers/ssm/adaptive/cuda/lanes.cu", include_str!("lanes.cu"));
const LANES_ENTRIES: [&str; 2] = ["adaptive_lanes_forward", "adaptive_lanes_backward"];
const UNITARY: KernelSource = KernelSource::embedded("layers/ssm/adaptive/cuda/unitary.cu", include_str!("unitary.cu"));
const UNITARY_ENTRIES: [&str; 2] = ["unitary_forward", "unitary_backward"];
/// Words of a state in shared memory, forward and backward, with decay and without.
const WORDS: [usize; 2] = [9, 12];
const UNITARY_WORDS: [usize; 2] = [12, 20];
/// Words of a lane, backward, without decay, alone with a channel's states and where warps share them; and steps of a tile.
const LANE_WORDS: [usize; 2] = [68, 52];
const TILE: usize = 256;
/// States of a channel from which on a block's warps share them.
const SHARED_STATES: usize = 16;
/// With fewer than those, channels of all sequences up to which they share its time, and steps from which on: two rounds.
const SHARED_CHANNELS: usize = 2112;
const SHARED_STEPS: usize = 2048;
const ENTRIES: [&str; 3] = ["adaptive_forward", "adaptive_backward", "adaptive_fold"];
/// Threads a block: four warps.
const THREADS: u32 = 128;
/// Warps a multiprocessor of the backward pass, each with its own trace.
const WARPS_PER_SM: usize = 16;
/// Parts of the units, at the most.
const PARTS: usize = 16;

/// States that a lane takes: a power of two, so that few forms are compiled.
fn per_lane(states: usize) -> usize {
    states.div_ceil(32).next_power_of_two()
}

fn specialisation(dtype: Dtype, decay: bool, per_lane: usize) -> Specialisation {
    let mut spec = Specialisation::new(SOURCE, &ENTRIES);
    spec.headers = HEADERS;
    // The phases are the CPU's to the bit.
    spec.fmad = false;
    spec.constants = constants(dtype, true);
    let numbers = [("kThreads", THREADS as i32), ("kPerLane", per_lane as i32)];
    spec.constants.extend(numbers.map(|(name, n)| (name, n.into())));
    spec.constants.push(("kDecay", decay.into()));
    spec
}

/// Warps that share a channel's states, without decay.
fn slices(states: usize) -> usize {
    if states >= SHARED_STATES { THREADS as usize / 32 } else { 1 }
}

/// Warps that share a channel's time, without decay: where states do not share them, and channels alone would leave an H200's
/// schedulers with four warps or fewer.
fn times(p: &AdaptiveScan) -> usize {
    let channels = p.batch().saturating_mul(p.channels());
    let shared = slices(p.states()) == 1 && channels <= SHARED_CHANNELS && p.steps() >= SHARED_STEPS;
    if shared { THREADS as usize / 32 } else { 1 }
}

fn lanes_specialisation(dtype: Dtype, decay: bool, slices: usize, times: usize) -> Specialisation {
    let (source, entries) = if decay { (LANES, &LANES_ENTRIES) } else { (UNITARY, &UNITARY_ENTRIES) };
    let mut spec = Specialisation::new(source, entries);
    spec.headers = LANES_HEADERS;
    spec.fmad = false;
    spec.constants = constants(dtype, true);
    spec.constants.push(("kThreads", (THREADS as i32).into()));
    if !decay {
        spec.constants.push(("kSlices", (slices as i32).into()));
        spec.constants.push(("kTimes", (times as i32).into()));
    }
    spec
}

/// Every form of the kernels.
pub(super) fn specialisations() -> Vec<Specialisation> {
    // Few and many states, without and with decay, every type.
    let forms = [(Dtype::F32, false, 1), (Dtype::F32, true, 2), (Dtype::Bf16, true, 8), (Dtype::F16, false, 8)];
    let serial = forms.into_iter().map(|(d, decay, n)| specialisation(d, decay, n));
    let lanes = [
        (Dtype::F32, true, 1, 1),
        (Dtype::F32, false, 4, 1),
        (Dtype::F32, false, 1, 4),
        (Dtype::Bf16, false, 1, 1),
        (Dtype::F16, false, 4, 1),
    ];
    serial.chain(lanes.into_iter().map(|(d, decay, n, times)| lanes_specialisation(d, decay, n, times))).collect()
}

/// Shared memory of a block, bytes; forward is 0.
fn lanes_bytes(p: &AdaptiveScan, backward: usize) -> u32 {
    let warps = THREADS as usize / 32;
    if p.has_decay() {
        return (4 * WORDS[backward] * p.states() * warps) as u32;
    }
    let slices = slices(p.states());
    // Two tiles of what the others' warps have for a channel: y, or y and the gradient of the drive.
    let places = 2 * (slices - 1) * (1 + backward) * TILE;
    let lanes = backward * THREADS as usize * LANE_WORDS[usize::from(slices > 1)];
    (4 * (UNITARY_WORDS[backward] * p.states() * warps / slices + places + lanes)) as u32
}

/// `adaptive_theta` on a CUDA device.
#[derive(Debug)]
pub(super) struct CudaPlan {
    problem: AdaptiveScan,
    device: Arc<CudaDevice>,
    signatures: [Signature; 2],
    kernels: [Kernel; 3],
    lanes: Option<[Kernel; 2]>,
    none: Layout,
    scratch: Layout,
    /// part_b, part_c, trace, part_skip.
    regions: [RegionId; 4],
    parts: usize,
    /// Blocks of the backward pass.
    blocks: usize,
}

impl CudaPlan {
    pub(super) fn new(problem: AdaptiveScan, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let whole = problem.packing() == Packing::Whole && problem.batch() > 0;
        let lanes = match options.variant.as_deref() {
            Some("serial") => false,
            None => whole,
            Some("lanes") if whole => true,
            Some(v) => {
                let ways = if whole { "serial, lanes" } else { "serial, the only way for this problem" };
                return Err(Error::config(format!("{NAME}: variant `{v}` is not one of {ways} on CUDA devices")));
            }
        };
        let spec = specialisation(problem.dtype(), problem.has_decay(), per_lane(problem.states()));
        let parts = problem.packing().states(problem.batch()).min(PARTS);
        let warps = THREADS as usize / 32;
        let most = (device.props().sm_count as usize * WARPS_PER_SM / warps).max(1);
        let blocks = (parts * problem.channels()).div_ceil(warps).clamp(1, most);
        // Scratch serves whichever way the strides of a call allow.
        let most_parts = if lanes { problem.batch().max(parts) } else { parts };
        let weights = most_parts * problem.channels() * problem.states();
        let mut scratch = Layout::new(options.scratch_gap);
        let regions = [
            scratch.push("parts of grad_B", Dtype::C64, weights)?,
            scratch.push("parts of grad_C", Dtype::C64, weights)?,
            scratch.push("states of 128 steps", Dtype::C64, blocks * warps * STEPS * problem.states())?,
            scratch.push("parts of grad_D", Dtype::F32, most_parts * problem.channels())?,
        ];
        let kernel = |name| device.kernel(&spec, name);
        let lanes = lanes.then(|| {
            let (slices, times) = (slices(problem.states()), times(&problem));
            let spec = lanes_specialisation(problem.dtype(), problem.has_decay(), slices, times);
            let entries = if problem.has_decay() { LANES_ENTRIES } else { UNITARY_ENTRIES };
            let [forward, backward] = entries.map(|name| device.kernel(&spec, name));
            let kernels = [forward?, backward?];
            for (backward, kernel) in kernels.iter().enumerate() {
                kernel.set_max_dynamic_shared(lanes_bytes(&problem, backward))?;
            }
            Ok::<_, Error>(kernels)
        });
        Ok(Self {
            problem,
            device: device.clone(),
            signatures: [problem.signature(Pass::Forward)?, problem.signature(Pass::Backward)?],
            kernels: [kernel(ENTRIES[0])?, kernel(ENTRIES[1])?, kernel(ENTRIES[2])?],
            lanes: lanes.transpose()?,
            none: Layout::new(options.scratch_gap),
            scratch,
            regions,
            parts,
            blocks,
        })
    }

    /// The launches of a pass, in order.
    fn steps<'a>(&'a self, pass: Pass, lanes: Option<&'a [Kernel; 2]>) -> Vec<(&'a Kernel, LaunchConfig)> {
        let p = &self.problem;
        let tasks = p.packing().states(p.batch()) * p.channels();
        let backward = usize::from(pass == Pass::Backward);
        let rows = LaunchConfig::linear(32 * tasks, THREADS);
        let walk = LaunchConfig::new((self.blocks as u32, 1, 1), (THREADS, 1, 1));
        let first = match lanes {
            Some(kernels) => {
                let slices = if p.has_decay() { 1 } else { slices(p.states()) * times(p) };
                let rows = LaunchConfig::linear(32 * tasks * slices, THREADS);
                (&kernels[backward], rows.shared(lanes_bytes(p, backward)))
            }
            None => (&self.kernels[backward], if backward == 0 { rows } else { walk }),
        };
        let fold = LaunchConfig::linear(p.channels() * p.states(), THREADS);
        let fold = (backward == 1 && p.channels() > 0).then_some((&self.kernels[2], fold));
        (tasks > 0).then_some(first).into_iter().chain(fold).collect()
    }

    /// The kernels for contiguous time, if the strides suit them, and whether they may use vectors.
    fn lanes(&self, pass: Pass, args: &Args<'_, '_>) -> Option<(&[Kernel; 2], bool)> {
        let kernels = self.lanes.as_ref()?;
        let signature = self.signature(pass)?;
        let timed = |t: &TensorSpec| t.axes.ends_with("T]");
        let outputs: Vec<View<'_>> = args.outputs.iter().map(|v| v.as_view()).collect();
        let inputs = args.inputs.iter().zip(&signature.inputs).filter(|(_, t)| timed(t)).map(|(v, _)| v);
        let written = outputs.iter().zip(&signature.outputs).filter(|(_, t)| timed(t)).map(|(v, _)| v);
        suits(inputs.chain(written)).map(|aligned| (kernels, aligned))
    }

    /// The kernels' `Tensors`.
    fn tensors(&self, pass: Pass, args: &Args<'_, '_>, lanes: Option<bool>) -> Vec<u8> {
        let p = &self.problem;
        let given = p.inputs().map(|t| t.is_some());
        let mut views = args.inputs.iter();
        let mut outputs: Vec<View<'_>> = args.outputs.iter().map(|v| v.as_view()).collect();
        let mut bytes = Vec::new();
        let mut put = |v: Option<&View<'_>>| bytes.extend_from_slice(&array(v));
        for given in given {
            put(if given { views.next() } else { None });
        }
        let packed = (p.packing() != Packing::Whole).then(|| views.next()).flatten();
        let marks = marks(p.packing(), packed, p.batch(), p.steps());
        if pass == Pass::Forward {
            outputs.iter().for_each(|v| put(Some(v)));
            (0..2 + 9).for_each(|_| put(None));
        } else {
            put(None);
            put(None);
            views.for_each(|v| put(Some(v)));
            let mut gradients = outputs.drain(..);
            for given in given {
                put(if given { gradients.next() } else { None }.as_ref());
            }
        }
        let base = args.scratch.address();
        let region = |id| if pass == Pass::Forward { 0 } else { self.scratch.address(base, id) };
        bytes.extend(self.regions.map(region).iter().flat_map(|a| a.to_ne_bytes()));
        bytes.extend(marks);
        let parts = lanes.map_or(self.parts, |_| p.batch());
        let options = [usize::from(p.has_silu()), usize::from(lanes == Some(true))];
        let sizes = [p.channels(), p.states(), parts, options[0], options[1]];
        bytes.extend(sizes.iter().flat_map(|&n| (n as i64).to_ne_bytes()));
        bytes
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
        let serial = format!(
            "serial threads={THREADS} per_lane={} backward_blocks={}",
            per_lane(self.problem.states()),
            self.blocks
        );
        if self.lanes.is_some() { format!("lanes threads={THREADS}, or {serial}") } else { serial }
    }
    fn variant(&self) -> &'static str {
        if self.lanes.is_some() { "lanes" } else { "serial" }
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        if pass == Pass::Backward { &self.scratch } else { &self.none }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let lanes = self.lanes(pass, args);
        let tensors = self.tensors(pass, args, lanes.map(|(_, aligned)| aligned));
        for (kernel, config) in self.steps(pass, lanes.map(|(kernels, _)| kernels)) {
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
        self.steps(pass, self.lanes.as_ref()).into_iter().map(report).collect()
    }
}
