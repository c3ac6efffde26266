//! The forward pass level by level in one kernel, a block a batch row (levels_row.cu).

use super::LEVELS_ROW;
use super::held::{Side, specialisation};
use super::launch::{CudaPlan, args, at, launch_as, out};
use super::on_device::{DeviceSchedule, DeviceWords};
use super::schedule::{Between, Levels, Lists, StateShape};
use super::tune::{self, Held, LevelsRow};
use crate::cuda::{Arg, CudaDevice, Kernel, LaunchConfig, Specialisation};
use crate::layers::ltc::spec::Ltc;
use crate::op::{Args, LaunchReport};
use crate::{Dtype, Error, Layout, RegionId, Result};
use std::sync::Arc;

const ENTRY: &str = "ltc_levels_row";
/// Unfolds of a tile, and tiles of sums and of states on their way, as there.
const TILE: usize = 64;
const SUMS: usize = 2;
const STATES: usize = 4;

pub(super) fn row_specialisation(fast: bool) -> Specialisation {
    let archs = crate::cuda::Archs::AtLeast(90);
    Specialisation { archs, ..specialisation(&LEVELS_ROW, &[ENTRY], &Held::of(tune::LEVELS_ROW), fast, false) }
}

/// Sums over states, in one part.
struct Sums {
    schedule: DeviceSchedule,
    shape: StateShape,
}

impl Sums {
    fn new(device: &Arc<CudaDevice>, lists: &Lists) -> Result<Self> {
        let wide = || Error::shape(format!("ltc: {} states are more than a tile has columns for", lists.others));
        let shape = lists.state_shape(1).ok_or_else(wide)?;
        Ok(Self { schedule: DeviceSchedule::new(device, &lists.state_schedule(1))?, shape })
    }
}

/// The kernel with all synapses.
pub(super) struct RowKernel {
    levels: Levels,
    /// The sources, and then the sinks.
    ids: DeviceWords,
    far: Sums,
    near: DeviceSchedule,
    sinks: Option<Sums>,
    chain_threads: usize,
    kernel: Kernel,
    launch: LaunchConfig,
    regions: Regions,
}

struct Regions {
    sums: RegionId,
    states: RegionId,
    /// Folded synapses: far, near, of sinks.
    folded: [RegionId; 3],
}

impl RowKernel {
    pub(super) fn new(device: &Arc<CudaDevice>, p: &Ltc, c: &LevelsRow, fast: bool, l: &mut Layout) -> Result<Self> {
        let s = &p.connectivity.recurrent;
        let levels = Levels::of(s).ok_or_else(super::levels::missing)?;
        let lists = |between| levels.lists(s, between, false);
        let ids: Vec<u32> = levels.sources.iter().chain(&levels.sinks).copied().collect();
        let far = Sums::new(device, &lists(Between::Far))?;
        let (slots, threads) = (tune::LEVELS_ROW.1, c.chain_threads);
        let near = DeviceSchedule::new(device, &lists(Between::Near).schedule(1, slots, 1, threads, 1, false)?)?;
        let some = !levels.sinks.is_empty();
        let sinks = some.then(|| Sums::new(device, &lists(Between::Sinks))).transpose()?;
        let kernel = device.kernel(&row_specialisation(fast), ENTRY)?;
        kernel.set_max_dynamic_shared(c.shared)?;
        let blocks = p.batch.min(device.props().sm_count as usize);
        let mut push = |name: &'static str, floats: usize| l.push(name, Dtype::F32, floats);
        let of_sinks = sinks.as_ref().map_or(0, |s| s.schedule.slots());
        let regions = Regions {
            sums: push("level_sums", blocks * SUMS * TILE * 2 * (levels.chain() + levels.sinks.len()))?,
            states: push("level_states", blocks * STATES * TILE * levels.read.len())?,
            folded: [
                push("level_far_folded", 4 * far.schedule.slots())?,
                push("level_chain_folded", 4 * near.slots())?,
                push("level_sinks_folded", 4 * of_sinks)?,
            ],
        };
        let launch = LaunchConfig::new((blocks as u32, 1, 1), (c.threads() as u32, 1, 1)).shared(c.shared);
        Ok(Self {
            ids: DeviceWords::new(device, &ids)?,
            levels,
            far,
            near,
            sinks,
            chain_threads: threads,
            kernel,
            launch,
            regions,
        })
    }

    /// What ltc_fold_held folds: slots, and where they go.
    pub(super) fn sides(&self, address: impl Fn(RegionId) -> u64) -> Vec<(Side, (u64, usize), u64)> {
        let far = Some(&self.far.schedule);
        let all = [far, Some(&self.near), self.sinks.as_ref().map(|s| &s.schedule)];
        let all = all.into_iter().zip(self.regions.folded);
        all.filter_map(|(s, id)| s.map(|s| (Side::Recurrent, (s.at(), s.slots()), address(id)))).collect()
    }

    pub(super) fn report(&self, chunks: usize) -> Result<LaunchReport> {
        let launch = &self.launch;
        LaunchReport::new(&self.kernel, chunks, launch.grid, launch.block, launch.shared_bytes)
    }
}

impl CudaPlan {
    /// The forward pass over the steps `t0 .. t0 + steps` from `start`.
    pub(super) fn row_forward(
        &self,
        k: &RowKernel,
        args: &Args<'_, '_>,
        start: [Arg<'static>; 3],
        states: Option<usize>,
        (t0, steps): (usize, usize),
    ) -> Result<()> {
        let (p, s, n, x, o) = (&self.p, &self.slots, &k.levels, args.inputs, &args.outputs);
        let c = &self.forward_scratch;
        let address = |id| c.layout.address(args.scratch.address(), id);
        let r = &k.regions;
        let [far, near] = [(&k.far.schedule, 0), (&k.near, 1)].map(|(s, i)| s.bytes(address(r.folded[i])));
        let sinks = k.sinks.as_ref().map_or([0; 32], |s| s.schedule.bytes(address(r.folded[2])));
        let [e0, e1, e2, e3] = self.elapsed_args(x);
        let [s0, s1, s2] = start;
        let most = |s: &Sums| s.shape.most as i32;
        launch_as(
            &k.kernel,
            args.stream,
            &k.launch,
            args! {
                Arg::Bytes(&far), Arg::Bytes(&near), Arg::Bytes(&sinks), Arg::U64(k.ids.address()),
                Arg::I32(n.lone as i32), Arg::I32(n.chain() as i32), Arg::I32(n.sinks.len() as i32),
                Arg::I32(n.read.start as i32), Arg::I32(n.read.len() as i32), Arg::I32(most(&k.far)),
                Arg::I32(k.sinks.as_ref().map_or(0, most)), Arg::I32(k.chain_threads as i32), Arg::U64(address(r.sums)),
                Arg::U64(address(r.states)), at(x, Some(s.gleak)), at(x, Some(s.gleak + 1)), at(x, Some(s.gleak + 2)),
                Arg::U64(address(c.sums)), s0, s1, s2, e0, e1, e2, e3, at(x, s.output_w), at(x, s.output_b),
                out(o, Some(0)), out(o, states), out(o, Some(1)), Arg::I32(p.batch as i32), Arg::I32(p.hidden as i32),
                Arg::I32(p.outputs as i32), Arg::I32(p.unfolds as i32), Arg::I32(p.steps as i32), Arg::I32(t0 as i32),
                Arg::I32(steps as i32), self.constrained(), Arg::F32(p.epsilon as f32)
            },
        )
    }
}
