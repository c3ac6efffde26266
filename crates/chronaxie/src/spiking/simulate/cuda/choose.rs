//! Which kernel takes a network, and which of its synapses are drawn again at each spike.

use super::config::few;
use super::footprint::require_memory;
use super::learning::{self, LearningEngine};
use super::{Config, CudaEngine, common};
use crate::cuda::CudaDevice;
use crate::spiking::connect::Redraw;
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::spiking::simulate::Engine;
use crate::{DeviceProps, Result};
use std::sync::Arc;

/// The engine that runs `plan` on `devices`.
///
/// # Errors
/// As [`CudaEngine::new`] and [`LearningEngine::new`].
pub fn engine<'a>(
    plan: &'a Plan,
    devices: &[Arc<CudaDevice>],
    built: &(dyn Fn(usize, usize) + Sync),
) -> Result<Box<dyn Engine + 'a>> {
    engine_in(plan, devices, Layout::even(&plan.network, devices.len().max(1)), built)
}

/// Likewise, where device i has part i of a layout.
///
/// # Errors
/// As [`CudaEngine::in_layout`] and [`LearningEngine::in_layout`].
pub fn engine_in<'a>(
    plan: &'a Plan,
    devices: &[Arc<CudaDevice>],
    layout: Layout,
    built: &(dyn Fn(usize, usize) + Sync),
) -> Result<Box<dyn Engine + 'a>> {
    few(layout.parts())?;
    plan.refuse_life("an engine by itself")?;
    match Taken::new(plan, &common(devices)?, &layout, redraw_on(plan, devices, &layout)?)? {
        Taken::Streaming(config) => Ok(Box::new(LearningEngine::as_chosen(plan, devices, config, layout, built)?)),
        Taken::Resident(_) => Ok(Box::new(CudaEngine::in_layout(plan, devices, layout, built)?)),
    }
}

/// Which kernel takes a network: the resident one all whose synapses are kept and, where some change, whose shards fit in shared
/// memory; the streaming one others.
pub(crate) enum Taken {
    Resident(Config),
    Streaming(learning::Config),
}

impl Taken {
    /// On the cards of a layout, where these synapses are drawn again.
    ///
    /// # Errors
    /// `Config`, for what neither takes.
    pub(crate) fn new(plan: &Plan, device: &DeviceProps, layout: &Layout, redraw: Redraw) -> Result<Self> {
        let streams = |redraw| Ok(learning::Config::in_layout(plan, device, layout)?.redrawing(plan, redraw));
        if plan.draws_any(redraw) {
            return streams(redraw).map(Self::Streaming);
        }
        let config = Config::laid_out(plan, device, layout)?;
        if plan.learning.is_some() && config.learns.is_none() {
            return streams(redraw).map(Self::Streaming);
        }
        Ok(Self::Resident(config))
    }

    /// Bytes of each card's memory: while the network is made, and while it runs.
    pub(crate) fn bytes(&self, plan: &Plan) -> [f64; 2] {
        match self {
            Self::Resident(config) => {
                let all = config.footprint(plan);
                [all.build(), all.run()]
            }
            Self::Streaming(config) => [LearningEngine::bytes(plan, config); 2],
        }
    }

    /// Whether it fits in so many bytes.
    pub(crate) fn fits(&self, plan: &Plan, bytes: f64) -> bool {
        self.bytes(plan).into_iter().all(|asked| asked <= bytes)
    }
}

/// Which synapses are drawn again at each spike on `devices`, by their free memory where a projection leaves it to that.
fn redraw_on(plan: &Plan, devices: &[Arc<CudaDevice>], layout: &Layout) -> Result<Redraw> {
    let props = common(devices)?;
    let free = || devices.iter().map(|d| d.memory_info().map_or(0, |m| m.free)).min().unwrap_or(0);
    let fits = |redraw| {
        let Ok(taken) = Taken::new(plan, &props, layout, redraw) else { return false };
        taken.fits(plan, free() as f64) || {
            let released = devices.iter().all(|d| d.release_cached_memory().is_ok());
            released && taken.fits(plan, free() as f64)
        }
    };
    Ok(plan.choose_redraw(fits))
}

/// Refuses a network without learning that does not fit on `devices`, before anything is made.
///
/// # Errors
/// As [`CudaEngine::new`].
pub(crate) fn require_room(plan: &Plan, devices: &[Arc<CudaDevice>]) -> Result<()> {
    if plan.learning.is_some() {
        return Ok(());
    }
    let layout = Layout::even(&plan.network, devices.len());
    let taken = Taken::new(plan, &common(devices)?, &layout, redraw_on(plan, devices, &layout)?)?;
    devices.iter().try_for_each(|device| match &taken {
        Taken::Resident(config) => require_memory(plan, device, config),
        Taken::Streaming(config) => learning::require_memory(plan, device, config),
    })
}
