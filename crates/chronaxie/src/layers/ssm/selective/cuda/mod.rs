//! `selective_scan` and its step on CUDA devices: the fast way where there is one (`lanes.rs`), else a warp a channel.

#![allow(unsafe_code)]

mod lanes;

use super::super::cuda::arrays::{array, constants, marks, suits};
use super::super::cuda::general::HEADERS as NUMBER;
use super::super::packing::Packing;
use super::spec::{CHUNK, Discretisation, MAX_STATES, SelectiveScan, Weights};
use super::step::SelectiveStateUpdate;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature, TensorSpec};
use crate::{Dtype, Error, Layout, Place, RegionId, Result, View};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Header, Kernel, KernelSource, LaunchConfig, Specialisation};
use lanes::Lanes;
use std::sync::Arc;

const SOURCE: KernelSource =
    KernelSource::embedded("layers/ssm/selective/cuda/selective.cu", include_str!("selective.cu"));
const HEADERS: &[Header] = &[NUMBER[0], ("phase.cuh", include_str!("../../cuda/phase.cuh"))];
/// What all kernels of the folder include.
const SHARED_HEADERS: &[Header] = &[("tensors.cuh", include_str!("tensors.cuh"))];
const ALL_HEADERS: &[Header] = &[HEADERS[0], HEADERS[1], SHARED_HEADERS[0]];
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
    spec.headers = ALL_HEADERS;
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
    let serial = [
        specialisation(Dtype::F32, false, Discretisation::Exp, 1),
        specialisation(Dtype::F32, true, Discretisation::Zoh, most),
        specialisation(Dtype::Bf16, false, Discretisation::Bilinear, most),
        specialisation(Dtype::F16, true, Discretisation::Bilinear, 1),
    ];
    serial.into_iter().chain(lanes::specialisations()).collect()
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

/// The kernels of the fast way.
#[derive(Debug)]
struct Fast {
    lanes: Lanes,
    forward: Kernel,
    backward: Kernel,
    /// What segments hand on, forward and backward, where time is cut.
    carries: Option<[Kernel; 2]>,
}

impl Fast {
    fn new(scan: &SelectiveScan, lanes: Lanes, device: &Arc<CudaDevice>) -> Result<Self> {
        let kernel = |spec: &Specialisation, name, bytes: usize| {
            let kernel = device.kernel(spec, name)?;
            kernel.set_max_dynamic_shared(bytes as u32)?;
            Ok::<_, Error>(kernel)
        };
        let forward = || {
            let (spec, name) = match lanes.many {
                true => (lanes::many_specialisation(scan.dtype()), lanes::ENTRIES[2]),
                false => (lanes::forward_specialisation(scan.dtype(), lanes.lanes, lanes.threads), lanes::ENTRIES[0]),
            };
            kernel(&spec, name, lanes.forward_bytes(scan.states()))
        };
        let backward = || {
            let spec = lanes::backward_specialisation(scan.dtype(), lanes.split());
            kernel(&spec, lanes::ENTRIES[1], lanes.backward_bytes(lanes.channels_a_warp))
        };
        let carries = || {
            let spec = lanes::carry_specialisation(scan.dtype());
            Ok::<_, Error>([device.kernel(&spec, lanes::ENTRIES[3])?, device.kernel(&spec, lanes::ENTRIES[4])?])
        };
        let cut = [Pass::Forward, Pass::Backward].into_iter().any(|pass| lanes.cuts(pass) > 1);
        // Where nothing is cached the compiler takes seconds: both at a time.
        let (forward, carries, backward) = std::thread::scope(|s| {
            let others = s.spawn(|| (forward(), cut.then(carries).transpose()));
            let backward = backward();
            let (forward, carries) = others.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (forward, carries, backward)
        });
        Ok(Self { lanes, forward: forward?, backward: backward?, carries: carries? })
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
    fast: Option<Fast>,
    /// Of the forward pass, with what segments hand on.
    forward_scratch: Layout,
    forward_carry: RegionId,
    scratch: Layout,
    /// part_a, part_b, part_c, trace, part_vectors, and what segments hand on.
    regions: [RegionId; 6],
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
        let way = if step.is_some() { None } else { Lanes::choose(&scan, device.props()) };
        let many = way.and_then(|w| w.many(&scan, device.props()));
        let way = match options.variant.as_deref() {
            Some("serial") => None,
            None => way,
            Some("lanes") if way.is_some() => Lanes::of_states(&scan, device.props()),
            Some("many") if many.is_some() => many,
            Some(v) => {
                let ways = match (way, many) {
                    (_, Some(_)) => "serial, lanes, many",
                    (Some(_), None) => "serial, lanes",
                    (None, None) => "serial, the only way for this problem",
                };
                return Err(Error::config(format!("{name}: variant `{v}` is not one of {ways} on CUDA devices")));
            }
        };
        let spec = specialisation(scan.dtype(), scan.is_complex(), scan.discretisation(), per_lane(scan.states()));
        let (shares, warps) = (Shares::new(&scan), THREADS as usize / 32);
        let groups = if shares.own { 1 } else { shares.groups };
        let most = (device.props().sm_count as usize * WARPS_PER_SM / warps).max(1);
        let blocks = (shares.parts * groups * shares.slices).div_ceil(warps).clamp(1, most);
        let state = if scan.is_complex() { Dtype::C64 } else { Dtype::F32 };
        // Scratch serves whichever way the strides of a call allow.
        let parts = way.map_or(0, |w| w.parts(scan.batch())).max(shares.parts);
        let slices = way.map_or(0, |w| w.slices).max(shares.slices);
        let rates = parts * scan.channels() * scan.states();
        let weight = |w: Weights| match w {
            Weights::Constant => rates,
            Weights::Varying(_) if shares.own && way.is_none() => 0,
            Weights::Varying(g) => slices * scan.batch() * g * scan.states() * scan.steps(),
        };
        // A state and the product of a segment's gates, where time is cut.
        let carries = |pass| {
            let cuts = way.map_or(1, |w| w.cuts(pass));
            if cuts > 1 { 2 * cuts * scan.batch() * scan.channels() * scan.states() } else { 0 }
        };
        // What the fast way hands from tile to tile where it takes states in turns.
        let passed = way.filter(Lanes::split).map_or(0, |w| w.parts(scan.batch()) * scan.channels() * scan.states());
        let mut forward_scratch = Layout::new(options.scratch_gap);
        let forward_carry = forward_scratch.push("states between segments", Dtype::F32, carries(Pass::Forward))?;
        let mut scratch = Layout::new(options.scratch_gap);
        let regions = [
            scratch.push("parts of grad_A", state, rates)?,
            scratch.push("parts of grad_B", state, weight(scan.b()))?,
            scratch.push("parts of grad_C", state, weight(scan.c()))?,
            scratch.push("states of 64 steps", state, (blocks * warps * CHUNK * scan.states()).max(passed))?,
            scratch.push("parts of grad_D and grad_delta_bias", Dtype::F32, 2 * parts * scan.channels())?,
            scratch.push("gradients between segments", Dtype::F32, carries(Pass::Backward))?,
        ];
        let kernel = |name| device.kernel(&spec, name);
        let fast = way.map(|w| Fast::new(&scan, w, device)).transpose()?;
        Ok(Self {
            scan,
            step,
            device: device.clone(),
            signatures,
            kernels: [kernel(ENTRIES[0])?, kernel(ENTRIES[1])?, kernel(ENTRIES[2])?, kernel(ENTRIES[3])?],
            fast,
            forward_scratch,
            forward_carry,
            scratch,
            regions,
            shares,
            blocks,
        })
    }

    /// The fast way's launches of a pass, before what both ways end with.
    fn fast_steps<'a>(&self, fast: &'a Fast, pass: Pass) -> Vec<(&'a Kernel, LaunchConfig)> {
        let (w, p) = (&fast.lanes, &self.scan);
        let launch = |blocks: usize, threads, bytes: usize| {
            LaunchConfig::new((blocks as u32, 1, 1), (threads, 1, 1)).shared(bytes as u32)
        };
        let (kernel, carry, threads, bytes) = match pass {
            Pass::Forward => (&fast.forward, 0, w.threads, w.forward_bytes(p.states())),
            _ => (&fast.backward, 1, lanes::BACK_THREADS, w.backward_bytes(w.channels_a_warp)),
        };
        let before = w.carry_blocks(pass, p.batch());
        let before = fast.carries.as_ref().filter(|_| before > 0).map(|c| (&c[carry], launch(before, THREADS, 0)));
        before.into_iter().chain([(kernel, launch(w.blocks(pass, p.batch()), threads, bytes))]).collect()
    }

    /// The launches of a pass, in order.
    fn steps<'a>(&'a self, pass: Pass, fast: Option<&'a Fast>) -> Vec<(&'a Kernel, LaunchConfig)> {
        let p = &self.scan;
        let rows = p.packing().states(p.batch()) * p.channels();
        let first = match fast {
            Some(fast) => self.fast_steps(fast, pass),
            None => Vec::new(),
        };
        if pass != Pass::Backward {
            let serial = (rows > 0).then(|| (&self.kernels[0], LaunchConfig::linear(32 * rows, THREADS)));
            return if fast.is_some() { first } else { serial.into_iter().collect() };
        }
        let walk = LaunchConfig::new((self.blocks as u32, 1, 1), (THREADS, 1, 1));
        let varies = [p.b(), p.c()].iter().any(|w| matches!(w, Weights::Varying(_)));
        let elements = p.batch() * self.shares.groups * p.states() * p.steps();
        let own = self.shares.own && fast.is_none();
        let all = [
            (rows > 0 && fast.is_none()).then_some((&self.kernels[1], walk)),
            (p.channels() > 0).then(|| (&self.kernels[2], LaunchConfig::linear(p.channels() * p.states(), THREADS))),
            (varies && !own && elements > 0).then(|| (&self.kernels[3], LaunchConfig::linear(elements, THREADS))),
        ];
        first.into_iter().chain(all.into_iter().flatten()).collect()
    }

    /// The fast way, if there is one and the strides suit it, and whether it may use vectors.
    fn fast(&self, pass: Pass, args: &Args<'_, '_>) -> Option<(&Fast, bool)> {
        let fast = self.fast.as_ref()?;
        // Those with a time axis: u, delta, B, C, z, and out or the gradients.
        let signature = self.signature(pass)?;
        let timed = |t: &TensorSpec| t.axes.ends_with("T]");
        let outputs: Vec<View<'_>> = args.outputs.iter().map(|v| v.as_view()).collect();
        let inputs = args.inputs.iter().zip(&signature.inputs).filter(|(_, t)| timed(t)).map(|(v, _)| v);
        let written = outputs.iter().zip(&signature.outputs).filter(|(_, t)| timed(t)).map(|(v, _)| v);
        suits(inputs.chain(written)).map(|aligned| (fast, aligned))
    }

    /// The kernels' `Tensors`.
    fn tensors(&self, pass: Pass, args: &Args<'_, '_>, fast: Option<(&Fast, bool)>) -> Vec<u8> {
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
        let carry = match pass {
            Pass::Forward => self.forward_scratch.address(base, self.forward_carry),
            _ => region(self.regions[5]),
        };
        bytes.extend(self.regions[..5].iter().flat_map(|&id| region(id).to_ne_bytes()));
        bytes.extend(table.map_or(0, View::address).to_ne_bytes());
        bytes.extend(marks(p.packing(), packed, p.batch(), p.steps()));
        let mut s = self.shares;
        if let Some((Fast { lanes, .. }, _)) = fast {
            (s.parts, s.slices, s.own) = (lanes.parts(p.batch()), lanes.slices, false);
        }
        let varies = |w: Weights| usize::from(matches!(w, Weights::Varying(_)));
        let sizes = [p.batch(), p.channels(), p.states(), s.groups, s.parts, s.slices, usize::from(s.own)];
        let slots = self.step.map_or(p.packing().states(p.batch()), |s| s.rows());
        let options = [varies(p.b()), varies(p.c()), usize::from(p.has_softplus()), slots];
        let cut =
            fast.map_or([0, 1, 1], |(f, aligned)| [usize::from(aligned), f.lanes.channels_a_warp, f.lanes.cuts(pass)]);
        bytes.extend(sizes.iter().chain(&options).chain(&cut).flat_map(|&n| (n as i64).to_ne_bytes()));
        bytes.extend(carry.to_ne_bytes());
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
        let serial = format!(
            "serial threads={THREADS} per_lane={} backward_blocks={}",
            per_lane(self.scan.states()),
            self.blocks
        );
        self.fast.as_ref().map_or(serial.clone(), |f| format!("{}, or {serial}", f.lanes))
    }
    fn variant(&self) -> &'static str {
        match &self.fast {
            Some(f) if f.lanes.many => "many",
            Some(_) => "lanes",
            None => "serial",
        }
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        if pass == Pass::Backward { &self.scratch } else { &self.forward_scratch }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let fast = self.fast(pass, args);
        let tensors = self.tensors(pass, args, fast);
        for (kernel, config) in self.steps(pass, fast.map(|(f, _)| f)) {
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
        self.steps(pass, self.fast.as_ref()).into_iter().map(report).collect()
    }
}
