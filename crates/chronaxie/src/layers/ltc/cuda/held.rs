//! Launches of the kernels that hold synapses in registers.

use super::launch::{args, at, launch_as, out, stride};
use super::on_device::{DeviceSchedule, DeviceWords, pack};
use super::schedule::{Lists, Schedule};
use super::tune::{self, Config, Held, Residency};
use super::{
    ADJOINT, CudaPlan, FULL_ADJOINT, HELD_HEADERS, LONE, QUAD, QUAD_ADJOINT, RECURRENCE, ROW, ROW_ADJOINT, SENSORY,
    SENSORY_ADJOINT, TRACE_SUMS, TURN_ADJOINT, TWO, WHOLE, WHOLE_ADJOINT,
};
use crate::cuda::{Archs, Arg, Constant, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation, StreamRef};
use crate::layers::ltc::Synapses;
use crate::layers::ltc::spec::NORM_EPSILON;
use crate::op::{Args, LaunchReport};
use crate::{DeviceProps, Error, Result, View};
use std::sync::Arc;

/// One source with the constants of `h`.
pub(super) fn specialisation(
    source: &KernelSource,
    entries: &[&'static str],
    h: &Held,
    fast: bool,
    cluster: bool,
) -> Specialisation {
    // What those that share a row exchange is another matter.
    let cluster = cluster && !h.whole;
    let oldest = if cluster || h.lone || h.whole && h.blocks > 1 {
        90
    } else if h.whole {
        // Where a thread's registers suffice.
        80
    } else if fast {
        75
    } else {
        60
    };
    let mut constants = vec![
        ("kSlots", Constant::Int(h.slots as i32)),
        ("kRows", Constant::Int(h.rows as i32)),
        ("kThreads", Constant::Int(h.max_threads as i32)),
        ("kFast", Constant::Bool(fast)),
        ("kCluster", Constant::Bool(cluster)),
        // A kernel for all lengths: how many steps are rebuilt at once must not matter. No adjoint asks.
        ("kMany", Constant::Bool(h.many() && !h.pairs)),
        ("kRebuild", Constant::Bool(h.rebuild)),
        ("kPairs", Constant::Bool(h.pairs && !h.chain())),
        // Of the kernels of one row.
        ("kLanes", Constant::Int(if h.row { h.least_lanes() as i32 } else { 1 })),
    ];
    if h.whole {
        constants.push(("kBlocks", Constant::Int(h.blocks as i32)));
    }
    if h.full() || h.whole {
        constants.push(("kWords", Constant::Bool(h.words)));
    }
    if source.name == SENSORY_ADJOINT.name {
        constants.push(("kPerSample", Constant::Bool(h.per_sample)));
    }
    Specialisation {
        headers: HELD_HEADERS,
        constants,
        archs: if h.full() || h.lone && h.slots == tune::LONE_SHAPES[0].slots {
            Archs::Only(&["sm_90a"])
        } else {
            Archs::AtLeast(oldest)
        },
        ..Specialisation::new(source.clone(), entries)
    }
}

/// The sums that an adjoint of a cluster leaves.
pub(super) fn trace_specialisation(fast: bool) -> Specialisation {
    let shape = Held::of(tune::TRACE_SUMS);
    let archs = Archs::AtLeast(90);
    Specialisation { archs, ..specialisation(&TRACE_SUMS, &["ltc_trace_sums"], &shape, fast, false) }
}

/// How many clusters of each size `device` holds at once, when every block has a multiprocessor to itself: asked for a
/// kernel whose 1024 threads have 64 registers, all that there are.
pub(super) fn residency(device: &Arc<CudaDevice>) -> Result<Residency> {
    let props = device.props();
    let mut resident = tune::assumed_residency(props);
    if props.compute_capability < (9, 0) {
        return Ok(resident);
    }
    let smallest = Held::of((1, 4, 1024));
    let kernel =
        device.kernel(&specialisation(&RECURRENCE, &["ltc_recurrence"], &smallest, false, true), "ltc_recurrence")?;
    for (blocks, n) in resident.iter_mut().enumerate().filter(|(n, _)| n % tune::HALVES >= 2) {
        let threads = if blocks < tune::HALVES { 1024 } else { 512 };
        let mut launch = LaunchConfig::new((1, 1, 1), (threads, 1, 1));
        launch.cluster = Some(((blocks % tune::HALVES) as u32, 1, 1));
        *n = kernel.max_active_clusters(&launch)? as usize;
    }
    Ok(resident)
}

/// The kernel of a recurrence, of one that rebuilds, or of an adjoint other than the whole one.
fn kernel_of(h: &Held) -> (KernelSource, &'static str) {
    match *h {
        Held { whole: true, .. } => (WHOLE, "ltc_whole"),
        _ if h.full() => (FULL_ADJOINT, "ltc_full_adjoint"),
        Held { row: true, pairs: true, .. } => (ROW_ADJOINT, "ltc_row_adjoint"),
        Held { lone: true, .. } => (LONE, "ltc_lone"),
        Held { row: true, .. } => (ROW, "ltc_row"),
        Held { quad: true, pairs: true, groups: 2, .. } => (TURN_ADJOINT, "ltc_turn_adjoint"),
        Held { quad: true, pairs: true, .. } => (QUAD_ADJOINT, "ltc_quad_adjoint"),
        Held { quad: true, rows: 2, .. } => (TWO, "ltc_two"),
        Held { quad: true, .. } => (QUAD, "ltc_quad"),
        Held { pairs: true, .. } => (ADJOINT, "ltc_adjoint_held"),
        _ => (RECURRENCE, "ltc_recurrence"),
    }
}

/// Every specialisation that a configuration launches.
pub(super) fn of_config(c: &Config) -> Vec<Specialisation> {
    let one = |source: &KernelSource, entry: &'static str, h: &Option<Held>| {
        h.map(|h| specialisation(source, &[entry], &h, c.fast, h.blocks > 1 && !entry.contains("sensory")))
    };
    let walks = |h: Option<Held>| h.as_ref().map(kernel_of).and_then(|(source, entry)| one(&source, entry, &h));
    let whole = c.adjoint.filter(|h| h.whole);
    [
        walks(c.recurrence),
        walks(c.rebuild),
        one(&SENSORY, "ltc_sensory_sums", &c.sensory),
        walks(c.adjoint.filter(|h| !h.whole)),
        c.sums.map(|_| trace_specialisation(c.fast)),
        one(&SENSORY_ADJOINT, "ltc_sensory_adjoint", &c.sensory_adjoint.filter(|h| !h.whole)),
        one(&WHOLE_ADJOINT, "ltc_whole_adjoint", &whole.map(|h| Held::whole_adjoint(h.blocks, h.words))),
        whole.map(|_| super::whole::close_specialisation()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Which synapses a kernel holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Recurrent,
    Sensory,
}

/// One kernel with its schedule and its launch.
pub(super) struct HeldKernel {
    pub(super) kernel: Kernel,
    pub(super) schedule: DeviceSchedule,
    pub(super) held: Held,
    pub(super) launch: LaunchConfig,
    /// Blocks of it that the device holds at once.
    resident: usize,
    /// The most slots that a lane uses.
    pub(super) used: usize,
    /// The synapses in the order in which their sums lie, where these leave no room for slots that are empty.
    packed: Option<(DeviceWords, usize)>,
}

impl HeldKernel {
    /// The recurrence or the adjoint: as many clusters as are resident at once, and no more than there are groups of rows.
    pub(super) fn recurrence(
        device: &Arc<CudaDevice>,
        s: &Synapses,
        batch: usize,
        h: Held,
        fast: bool,
    ) -> Result<Self> {
        let cluster = h.blocks > 1;
        let (source, entry) = kernel_of(&h);
        let kernel = device.kernel(&specialisation(&source, &[entry], &h, fast, cluster), entry)?;
        kernel.set_max_dynamic_shared(h.shared)?;
        let threads = (if h.whole { h.max_threads } else { h.launched() }) as u32;
        let mut launch = LaunchConfig::new((1, 1, 1), (threads, 1, 1)).shared(h.shared);
        let resident = if cluster {
            launch.cluster = Some((h.blocks as u32, 1, 1));
            kernel.max_active_clusters(&launch)? as usize
        } else {
            (kernel.max_active_blocks(threads, h.shared)? * device.props().sm_count) as usize
        };
        if resident == 0 {
            return Err(Error::unavailable(format!(
                "ltc: no cluster of {} blocks with {} bytes of shared memory fits this device; variant=rows runs",
                h.blocks, h.shared
            )));
        }
        let groups = batch.div_ceil(h.rows).max(1).div_ceil(h.halves());
        let clusters = if h.whole || h.per_sample { batch } else { resident.min(groups) };
        launch.grid.0 = (h.blocks * clusters) as u32;
        Self::new(device, s, kernel, h, launch, h.least_lanes(), true, h.blocks * resident)
    }

    /// The sensory sums.
    pub(super) fn sensory(device: &Arc<CudaDevice>, s: &Synapses, h: Held, fast: bool) -> Result<Self> {
        let kernel =
            device.kernel(&specialisation(&SENSORY, &["ltc_sensory_sums"], &h, fast, false), "ltc_sensory_sums")?;
        kernel.set_max_dynamic_shared(h.shared)?;
        let resident = (kernel.max_active_blocks(h.threads as u32, h.shared)? * device.props().sm_count) as usize;
        let launch = LaunchConfig::new((1, 1, 1), (h.threads as u32, 1, 1)).shared(h.shared);
        Self::new(device, s, kernel, h, launch, 1, false, resident)
    }

    /// The sums over the unfolds of `units` steps that an adjoint of one row leaves. Blocks have sums of their own, so that there are
    /// no more than fill the device once.
    pub(super) fn trace_sums(
        device: &Arc<CudaDevice>,
        s: &Synapses,
        units: usize,
        h: Held,
        fast: bool,
    ) -> Result<Self> {
        let entry = "ltc_trace_sums";
        let kernel = device.kernel(&trace_specialisation(fast), entry)?;
        kernel.set_max_dynamic_shared(h.shared)?;
        let workers = (device.props().sm_count as usize / h.blocks).clamp(1, units.div_ceil(h.groups).max(1));
        let grid = ((h.blocks * workers) as u32, 1, 1);
        let launch = LaunchConfig::new(grid, ((h.threads * h.groups) as u32, 1, 1)).shared(h.shared);
        Self::new(device, s, kernel, h, launch, 1, false, h.blocks * workers)
    }

    /// Rows of a tile, and the launch, of the sensory sums of `rows` rows. A chunk of steps has fewer rows than the whole
    /// sequence: smaller tiles, for as many blocks.
    fn sensory_launch(&self, rows: usize, inputs: usize, props: &DeviceProps) -> (usize, LaunchConfig) {
        let parts = self.held.blocks;
        let tile = tune::sensory_tile(rows, inputs, parts, props).min(self.held.groups);
        let workers = (self.resident / parts).clamp(1, rows.div_ceil(tile).max(1));
        (tile, LaunchConfig { grid: ((parts * workers) as u32, 1, 1), ..self.launch })
    }

    /// The adjoint of the sensory gates of `rows` rows; the sums of its blocks take no more than `budget` bytes, if that
    /// leaves a block for each part.
    pub(super) fn sensory_adjoint(
        device: &Arc<CudaDevice>,
        s: &Synapses,
        rows: usize,
        h: Held,
        budget: usize,
        fast: bool,
    ) -> Result<Self> {
        let entry = "ltc_sensory_adjoint";
        let kernel = device.kernel(&specialisation(&SENSORY_ADJOINT, &[entry], &h, fast, false), entry)?;
        kernel.set_max_dynamic_shared(h.shared)?;
        let threads = (h.threads * h.groups) as u32;
        let resident = (kernel.max_active_blocks(threads, h.shared)? * device.props().sm_count) as usize;
        let affordable = budget / (16 * h.blocks * h.slots * h.threads);
        let workers = (resident / h.blocks).min(affordable).clamp(1, rows.div_ceil(8 * h.groups).max(1));
        let grid = ((h.blocks * workers) as u32, 1, 1);
        let launch = LaunchConfig::new(grid, (threads, 1, 1)).shared(h.shared);
        Self::new(device, s, kernel, h, launch, h.rows, false, resident)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        s: &Synapses,
        kernel: Kernel,
        held: Held,
        launch: LaunchConfig,
        least_lanes: usize,
        exchanged: bool,
        resident: usize,
    ) -> Result<Self> {
        let lists = if held.pairs { Lists::by_source(s) } else { Lists::by_target(s) }.ok_or_else(too_many)?;
        let mut packed = None;
        let schedule = if held.lone {
            lists.schedule_lone(held.slots, held.threads)?
        } else if held.quad {
            lists.four(&tune::deal_four(&held))?
        } else if held.full() {
            let least = held.blocks.div_ceil(2);
            let (schedule, at) = lists.schedule_packed(held.blocks, held.slots, held.threads, least)?;
            packed = Some((DeviceWords::new(device, &at)?, at.len()));
            schedule
        } else if held.chain() {
            lists.schedule_in_order(held.blocks, held.slots, held.threads, least_lanes)?
        } else {
            let blocks = if held.whole { 1 } else { held.blocks };
            lists.schedule(blocks, held.slots, held.width(), held.threads, least_lanes, exchanged)?
        };
        Ok(Self { packed, ..Self::scheduled(device, &schedule, kernel, held, launch, resident)? })
    }

    /// A kernel with its schedule.
    pub(super) fn scheduled(
        device: &Arc<CudaDevice>,
        schedule: &Schedule,
        kernel: Kernel,
        held: Held,
        launch: LaunchConfig,
        resident: usize,
    ) -> Result<Self> {
        let used = schedule.warps.iter().map(|w| w[1] as usize).max().unwrap_or(0);
        let schedule = DeviceSchedule::new(device, schedule)?;
        Ok(Self { kernel, schedule, held, launch, resident, used, packed: None })
    }

    /// Where the slots' places in dense matrices are, and how many slots there are.
    pub(super) fn slots(&self) -> (u64, usize) {
        (self.schedule.at(), self.schedule.slots())
    }

    /// Floats of scratch that the folded synapses take; none where the kernel folds them itself.
    pub(super) fn folded(&self) -> usize {
        if self.held.whole { 0 } else { 4 * self.schedule.slots() }
    }

    /// Whether a recurrence over `batch` rows has more groups of rows than slots for them, so that some are cut in two.
    pub(super) fn cuts(&self, batch: usize) -> bool {
        !self.held.row && batch.div_ceil(self.held.rows) > self.clusters() * self.held.groups
    }

    /// Where the places in dense matrices are of what a cluster sums, and how many there are: slots, or synapses alone.
    pub(super) fn summed(&self) -> (u64, usize) {
        self.packed.as_ref().map_or((self.schedule.at(), self.schedule.slots()), |(at, n)| (at.address(), *n))
    }

    /// Floats of scratch that the sums of all its synapses and clusters take.
    pub(super) fn sums(&self) -> usize {
        4 * self.summed().1 * self.clusters()
    }

    /// How many clusters a launch has, or halves of them that walk on their own.
    pub(super) fn clusters(&self) -> usize {
        self.launch.grid.0 as usize / self.held.blocks * self.held.halves()
    }

    /// The same of the sensory sums of `rows` rows.
    pub(super) fn report_sensory(
        &self,
        launches: usize,
        rows: usize,
        inputs: usize,
        props: &DeviceProps,
    ) -> Result<LaunchReport> {
        let launch = self.sensory_launch(rows, inputs, props).1;
        LaunchReport::new(&self.kernel, launches, launch.grid, launch.block, launch.shared_bytes)
    }

    pub(super) fn report(&self, launches: usize) -> Result<LaunchReport> {
        LaunchReport::new(&self.kernel, launches, self.launch.grid, self.launch.block, self.launch.shared_bytes)
    }
}

/// The most sides that one launch folds, as in fold.cu.
pub(super) const SIDES: usize = 5;
/// The most tensors that one launch clears, as there.
const CLEARED: usize = 28;

/// Where a pass over unfolds is rebuilt from and to.
pub(super) struct Rebuild<'a> {
    pub(super) folded: u64,
    pub(super) sums: Arg<'a>,
    /// Steps of a batch row that `sums` has.
    pub(super) sums_steps: usize,
    /// States after each step, `[B, T, H]`.
    pub(super) states: Arg<'a>,
    pub(super) trace_v: Arg<'a>,
    pub(super) trace_den: Arg<'a>,
    /// Batch rows whose unfolds lie side by side in them.
    pub(super) together: usize,
}

pub(super) fn too_many() -> Error {
    Error::shape("ltc: a matrix of 2^32 elements has no schedule".to_owned())
}

impl CudaPlan {
    /// States and denominators of the unfolds of the steps `t0 .. t0 + steps`.
    pub(super) fn rebuild_unfolds(
        &self,
        k: &HeldKernel,
        x: &[View<'_>],
        r: &Rebuild<'_>,
        stream: StreamRef,
        (t0, steps): (usize, usize),
    ) -> Result<()> {
        let (p, s) = (&self.p, &self.slots);
        let [e0, e1, e2, e3] = self.elapsed_args(x);
        let null = Arg::U64(0);
        // Four rows side by side are those of a step; each step is a row of its own to the others.
        let (rows, groups) = if k.held.quad { (p.batch, r.together) } else { (p.batch * steps, k.held.groups) };
        launch_as(
            &k.kernel,
            stream,
            &k.launch,
            args! {
                Arg::Bytes(&k.schedule.bytes(r.folded)), at(x, Some(s.gleak)), at(x, Some(s.gleak + 1)),
                at(x, Some(s.gleak + 2)), r.sums, at(x, s.h0), stride(x, s.h0, 0), stride(x, s.h0, 1), e0, e1, e2,
                e3, null, null, null, null, null, r.trace_v, r.trace_den, Arg::I32(rows as i32),
                Arg::I32(p.hidden as i32), Arg::I32(p.outputs as i32), Arg::I32(p.unfolds as i32),
                Arg::I32(p.steps as i32), Arg::I32(t0 as i32), Arg::I32(r.sums_steps as i32), Arg::I32(groups as i32),
                self.constrained(), Arg::F32(p.epsilon as f32), r.states, Arg::I32(steps as i32), null
            },
        )
    }

    /// Folds the synapses of `sides`, of which the slots' places in dense matrices and their number are given, to the addresses
    /// given with them; makes the states that wait for another cluster unknown: `carried`, so many words; folds the neurons to an
    /// address, unless it is 0; and makes tensors zero: address and elements of four bytes each.
    pub(super) fn fold_held(
        &self,
        x: &[View<'_>],
        sides: &[(Side, (u64, usize), u64)],
        (carried, words): (u64, usize),
        neurons: u64,
        cleared: &[(u64, usize)],
        stream: StreamRef,
    ) -> Result<()> {
        debug_assert!(sides.len() <= SIDES);
        let (cleared, more) = cleared.split_at(cleared.len().min(CLEARED));
        let n = if neurons == 0 { 0 } else { self.p.hidden };
        let mut threads = words + n;
        let mut packed = [[0u8; 56]; SIDES];
        for (to, &(side, (places, slots), folded)) in packed.iter_mut().zip(sides) {
            let w = match side {
                Side::Recurrent => self.slots.w,
                Side::Sensory => self.slots.sensory_w,
            };
            let tensor = |i: usize| x[w + i].address();
            threads += slots;
            *to = pack([places, tensor(0), tensor(1), tensor(2), tensor(3), folded, slots as u64]);
        }
        if threads == 0 && cleared.is_empty() {
            return Ok(());
        }
        // Behind the tensors the block from which on they are cleared, and how many blocks each has.
        let mut zeros = [0u8; 16 * CLEARED + 16];
        for (to, &(address, elements)) in zeros.chunks_exact_mut(16).zip(cleared) {
            to.copy_from_slice(&pack::<2, 16>([address, elements as u64]));
        }
        let longest = cleared.iter().map(|t| t.1).max().unwrap_or(0);
        let (first, each) = (threads.div_ceil(256), longest.div_ceil(1024).clamp(1, 256));
        zeros[16 * CLEARED..].copy_from_slice(&pack::<2, 16>([first as u64, each as u64]));
        let blocks = (first + each * cleared.len()) as u32;
        let g = self.slots.gleak;
        let of = |i: usize| x[g + i].address();
        let folded_neurons: [u8; 40] = pack([of(0), of(1), of(2), neurons, n as u64]);
        launch_as(
            &self.fold,
            stream,
            &LaunchConfig::new((blocks, 1, 1), (256, 1, 1)),
            args! {
                Arg::Bytes(&packed[0]), Arg::Bytes(&packed[1]), Arg::Bytes(&packed[2]), Arg::Bytes(&packed[3]),
                Arg::Bytes(&packed[4]),
                Arg::U64(carried), Arg::I64(words as i64), Arg::Bytes(&folded_neurons), Arg::F32(self.p.unfolds as f32),
                self.constrained(), Arg::Bytes(&zeros)
            },
        )?;
        if more.is_empty() { Ok(()) } else { self.fold_held(x, &[], (carried, 0), 0, more, stream) }
    }

    /// Ns and Ds of the steps `t0 .. t0 + steps` into `sums`, from the synapses at `folded`.
    pub(super) fn held_sensory(
        &self,
        k: &HeldKernel,
        x: &[View<'_>],
        folded: u64,
        sums: Arg<'_>,
        stream: StreamRef,
        (t0, steps): (usize, usize),
    ) -> Result<()> {
        let (p, s) = (&self.p, &self.slots);
        let rows = p.batch * steps;
        let (tile, config) = k.sensory_launch(rows, p.inputs, self.device.props());
        launch_as(
            &k.kernel,
            stream,
            &config,
            args! {
                Arg::Bytes(&k.schedule.bytes(folded)), at(x, Some(s.x)), stride(x, Some(s.x), 0),
                stride(x, Some(s.x), 1), stride(x, Some(s.x), 2), at(x, s.norm), at(x, s.norm.map(|n| n + 1)),
                at(x, s.input_w), at(x, s.input_b), sums, Arg::I64(rows as i64), Arg::I64(steps as i64),
                Arg::I64(t0 as i64), Arg::I32(p.inputs as i32), Arg::I32(p.hidden as i32),
                Arg::I32(k.held.blocks as i32), Arg::I32(tile as i32),
                Arg::I32(i32::from(tune::two_tiles(tile, p.inputs, k.held.shared))), Arg::F32(NORM_EPSILON as f32)
            },
        )
    }

    /// The recurrence over the steps `t0 .. t0 + steps` from `start`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn held_recurrence(
        &self,
        k: &HeldKernel,
        args: &Args<'_, '_>,
        (folded, sums, carried): (u64, Arg<'_>, Arg<'_>),
        start: [Arg<'_>; 3],
        states: Option<usize>,
        kept: [Arg<'static>; 2],
        (t0, steps): (usize, usize),
    ) -> Result<()> {
        let (p, s, x) = (&self.p, &self.slots, args.inputs);
        let [e0, e1, e2, e3] = self.elapsed_args(x);
        let [s0, s1, s2] = start;
        let schedule = k.schedule.bytes(folded);
        let common = [
            Arg::Bytes(&schedule),
            at(x, Some(s.gleak)),
            at(x, Some(s.gleak + 1)),
            at(x, Some(s.gleak + 2)),
            sums,
            s0,
            s1,
            s2,
            e0,
            e1,
            e2,
            e3,
            at(x, s.output_w),
            at(x, s.output_b),
            out(args.outputs, Some(0)),
            out(args.outputs, states),
            out(args.outputs, Some(1)),
            kept[0],
            kept[1],
            Arg::I32(p.batch as i32),
            Arg::I32(p.hidden as i32),
            Arg::I32(p.outputs as i32),
            Arg::I32(p.unfolds as i32),
            Arg::I32(p.steps as i32),
            Arg::I32(t0 as i32),
            Arg::I32(steps as i32),
        ];
        let (constrained, epsilon) = (self.constrained(), Arg::F32(p.epsilon as f32));
        let own: &[Arg<'_>] = if k.held.row {
            &[constrained, epsilon]
        } else {
            &[Arg::I32(k.held.groups as i32), constrained, epsilon, Arg::U64(0), Arg::I32(1), carried]
        };
        launch_as(&k.kernel, args.stream, &k.launch, &[&common, own].concat())
    }
}
