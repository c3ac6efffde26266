//! Launches of the sums of gates over states (levels_sums.cu).

use super::held::HeldKernel;
use super::launch::{args, launch_as};
use super::levels::specialisations;
use super::on_device::DeviceSchedule;
use super::schedule::{Lists, StateShape};
use super::tune::{StateAdjoint, StateSums};
use crate::cuda::{Arg, CudaDevice, Kernel, LaunchConfig, StreamRef};
use crate::op::LaunchReport;
use crate::{Error, Result};
use std::sync::Arc;

/// Rows of a tile, and threads of a block, as there.
const TILE: usize = 64;
const THREADS: u32 = 512;
/// Rows of a tile of the adjoint.
const ADJOINT_TILE: usize = 16;

/// The kernel with the lists of some targets.
pub(super) struct StateKernel {
    kernel: Kernel,
    schedule: DeviceSchedule,
    config: StateSums,
    shape: StateShape,
    inputs: usize,
    multiprocessors: usize,
}

impl StateKernel {
    pub(super) fn new(device: &Arc<CudaDevice>, lists: &Lists, config: StateSums, fast: bool) -> Result<Self> {
        let kernel = device.kernel(&specialisations(fast)[2], "ltc_state_sums")?;
        kernel.set_max_dynamic_shared(config.shared)?;
        let wide = || Error::shape(format!("ltc: {} states are more than a tile has columns for", lists.others));
        Ok(Self {
            shape: lists.state_shape(config.parts).ok_or_else(wide)?,
            schedule: DeviceSchedule::new(device, &lists.state_schedule(config.parts))?,
            inputs: lists.others,
            multiprocessors: device.props().sm_count as usize,
            kernel,
            config,
        })
    }

    /// Where the slots' places in dense matrices are, and how many slots there are.
    pub(super) fn slots(&self) -> (u64, usize) {
        (self.schedule.at(), self.schedule.slots())
    }

    fn config(&self, rows: usize) -> LaunchConfig {
        let workers = (self.multiprocessors / self.config.parts).clamp(1, rows.div_ceil(TILE).max(1));
        LaunchConfig::new(((self.config.parts * workers) as u32, 1, 1), (THREADS, 1, 1)).shared(self.config.shared)
    }

    /// Sums over columns from an address on, of rows so many floats apart, to so many targets.
    pub(super) fn launch(
        &self,
        folded: u64,
        (from, pitch): (u64, usize),
        (to, count): (u64, usize),
        rows: usize,
        stream: StreamRef,
    ) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        launch_as(
            &self.kernel,
            stream,
            &self.config(rows),
            args! {
                Arg::Bytes(&self.schedule.bytes(folded)), Arg::U64(from), Arg::I32(pitch as i32), Arg::U64(to),
                Arg::I32(count as i32), Arg::I64(rows as i64), Arg::I32(self.inputs as i32),
                Arg::I32(self.config.parts as i32), Arg::I32(self.shape.most as i32), Arg::I32(self.shape.width as i32),
                Arg::I32(i32::from(self.config.two))
            },
        )
    }

    pub(super) fn report(&self, launches: usize, rows: usize) -> Result<LaunchReport> {
        let launch = self.config(rows);
        LaunchReport::new(&self.kernel, launches, launch.grid, launch.block, launch.shared_bytes)
    }
}

/// The adjoint's kernel of `rows` rows, with the lists of some sources.
pub(super) fn adjoint(
    device: &Arc<CudaDevice>,
    lists: &Lists,
    rows: usize,
    c: StateAdjoint,
    fast: bool,
) -> Result<HeldKernel> {
    let kernel = device.kernel(&specialisations(fast)[3], "ltc_state_adjoint")?;
    kernel.set_max_dynamic_shared(c.held.shared)?;
    let h = c.held;
    // Each has sums of its own.
    let workers = (device.props().sm_count as usize / h.blocks).clamp(1, rows.div_ceil(ADJOINT_TILE).max(1));
    let launch = LaunchConfig::new(((h.blocks * workers) as u32, 1, 1), (h.threads as u32, 1, 1)).shared(h.shared);
    let schedule = lists.adjoint_schedule(c.most, h.slots, h.threads)?;
    HeldKernel::scheduled(device, &schedule, kernel, h, launch, h.blocks * workers)
}
