//! The kernels of a backward pass whose synapses are held.

use super::held::HeldKernel;
use super::levels::LevelsBackward;
use super::tune::{self, Config, Held};
use super::whole::WholeBackward;
use crate::Result;
use crate::cuda::{CudaDevice, Kernel};
use crate::layers::ltc::spec::Ltc;
use std::sync::Arc;

/// The adjoint's kernels, where synapses are held.
pub(super) struct HeldBackward {
    pub(super) adjoint: HeldKernel,
    /// None where the forward pass kept the unfolds.
    pub(super) rebuild: Option<HeldKernel>,
    /// Where one kernel does all but the sums over rows.
    pub(super) whole: Option<WholeBackward>,
    pub(super) sensory: Option<HeldKernel>,
    /// Where the adjoint leaves the sums of synapses to another kernel.
    pub(super) sums: Option<HeldKernel>,
    /// Where it goes level by level, of which the adjoint is the chain's.
    pub(super) levels: Option<LevelsBackward>,
    pub(super) add_neurons: Kernel,
    pub(super) close_elapsed: Kernel,
}

impl HeldBackward {
    /// Batch rows whose rebuilt unfolds lie side by side, so that the lanes of an owner read and write them together.
    pub(super) fn together(&self) -> usize {
        if self.adjoint.held.quad && self.rebuild.as_ref().is_some_and(|k| k.held.quad) {
            self.adjoint.held.rows
        } else {
            1
        }
    }
    /// None where the configuration has no adjoint that holds its synapses.
    pub(super) fn new(device: &Arc<CudaDevice>, p: &Ltc, c: &Config) -> Result<Option<Self>> {
        let Some(adjoint) = c.adjoint else { return Ok(None) };
        let (batch, chunk, fast) = (p.batch, c.backward_chunk, c.fast);
        let rows = batch * if c.together(p) { p.steps } else { chunk };
        let (s, budget) = (&p.connectivity.recurrent, tune::sensory_budget(p));
        let sensory = |h: Held| {
            let mut k = HeldKernel::sensory_adjoint(device, &p.connectivity.sensory, rows, h, budget, fast)?;
            if h.per_sample {
                k.launch.grid.0 = (h.blocks * batch) as u32;
            }
            Ok(k)
        };
        let close = |entry| super::ends::close_kernel(device, entry, fast);
        if adjoint.whole {
            return Ok(Some(Self {
                adjoint: HeldKernel::whole_adjoint(device, s, batch, adjoint, fast)?,
                sensory: None,
                sums: None,
                rebuild: None,
                whole: Some(WholeBackward::new(device, p, adjoint.blocks, fast)?),
                levels: None,
                add_neurons: close("ltc_add_neurons")?,
                close_elapsed: close("ltc_close_elapsed")?,
            }));
        }
        let levels = c.levels_adjoint.map(|l| LevelsBackward::new(device, p, &l, fast)).transpose()?;
        Ok(Some(Self {
            adjoint: match &levels {
                Some(_) => LevelsBackward::chain(device, p, adjoint, fast)?,
                None => HeldKernel::recurrence(device, s, batch, adjoint, fast)?,
            },
            sensory: c.sensory_adjoint.map(sensory).transpose()?,
            rebuild: c.rebuild.map(|h| HeldKernel::recurrence(device, s, batch * chunk, h, fast)).transpose()?,
            sums: c.sums.map(|h| HeldKernel::trace_sums(device, s, batch * chunk, h, fast)).transpose()?,
            whole: None,
            levels,
            add_neurons: close("ltc_add_neurons")?,
            close_elapsed: close("ltc_close_elapsed")?,
        }))
    }
}

impl HeldBackward {
    /// The kernel that has the sums of the recurrent synapses; level by level of those to the chain.
    pub(super) fn of_sums(&self) -> &HeldKernel {
        self.levels.as_ref().map(|l| &l.to_chain).or(self.sums.as_ref()).unwrap_or(&self.adjoint)
    }
}
