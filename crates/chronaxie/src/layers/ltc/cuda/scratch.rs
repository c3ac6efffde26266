//! Layouts of the scratch of both passes.

use super::grid::{GridBackward, GridKernel, GridSums, Room};
use super::held::HeldKernel;
use super::held_backward::HeldBackward;
use super::levels::LevelsRegions;
use super::per_sample::Blocks;
use super::tune::{self, Config};
use crate::cuda::{CudaDevice, StreamRef, fill_bytes};
use crate::layers::ltc::spec::{Kept, Ltc};
use crate::{Dtype, Layout, Place, RegionId, Result, Shape, ViewMut};

/// Scratch regions that both passes have.
pub(super) struct Common {
    pub(super) layout: Layout,
    pub(super) recurrent: [RegionId; 3],
    pub(super) sensory: [RegionId; 3],
    pub(super) neurons: RegionId,
    pub(super) u: RegionId,
    /// Whether u takes the place of something else, and is made when that has been read.
    pub(super) u_late: bool,
    pub(super) stats: RegionId,
    pub(super) sums: RegionId,
    /// Folded synapses of the kernels that hold them: recurrent, sensory.
    pub(super) folded: [RegionId; 2],
    /// States of rows whose steps are cut in two, or empty: `[B, H]`.
    pub(super) carried: RegionId,
    /// What travels between blocks that divide the synapses, and the counters of who has written.
    pub(super) exchange: RegionId,
    pub(super) arrivals: RegionId,
}

impl Common {
    /// `lists`: whether the portable kernels read folded lists of the recurrent, and of the sensory, synapses. `folded`:
    /// floats of those that are held in registers, or divided. `u_here`: whether u has a place of its own. `carried`: states that wait for another cluster; `exchanged`: floats
    /// and counters between blocks.
    pub(super) fn new(
        p: &Ltc,
        gap: usize,
        chunk: usize,
        backward: bool,
        lists: [bool; 2],
        folded: [usize; 2],
        carried: usize,
        exchanged: (usize, usize),
        by_source: bool,
        u_here: bool,
    ) -> Result<Self> {
        let held = lists.map(|portable| !portable);
        let mut layout = Layout::new(gap);
        let rows = p.batch * chunk;
        let mut side =
            |names: [&'static str; 3], synapses: usize, held: bool, by_source: bool| -> Result<[RegionId; 3]> {
                let synapses = if held { 0 } else { synapses };
                Ok([
                    layout.push(names[0], Dtype::F32, 4 * synapses)?,
                    layout.push(names[1], Dtype::I32, synapses)?,
                    layout.push(names[2], Dtype::F32, if by_source { 4 * synapses } else { 0 })?,
                ])
            };
        let c = &p.connectivity;
        let names = ["by_target", "target_index", "by_source"];
        let recurrent = side(names, c.recurrent.len(), held[0], by_source)?;
        let names = ["sensory_by_target", "sensory_target_index", "sensory_by_source"];
        let sensory = side(names, c.sensory.len(), held[1], backward)?;
        Ok(Self {
            recurrent,
            sensory,
            neurons: layout.push("neurons", Dtype::F32, if held[0] && !backward { 0 } else { 4 * p.hidden })?,
            u: layout.push("u", Dtype::F32, if u_here { rows * p.inputs } else { 0 })?,
            u_late: false,
            stats: layout.push(
                "stats",
                Dtype::F32,
                if p.layer_norm && (backward || !held[1]) { 2 * rows } else { 0 },
            )?,
            sums: layout.push("sensory_sums", Dtype::F32, 2 * rows * p.hidden)?,
            folded: [
                layout.push("folded", Dtype::F32, folded[0])?,
                layout.push("sensory_folded", Dtype::F32, folded[1])?,
            ],
            carried: layout.push("carried", Dtype::F32, carried)?,
            exchange: layout.push("exchange", Dtype::F32, exchanged.0)?,
            arrivals: layout.push("arrivals", Dtype::I32, exchanged.1)?,
            layout,
        })
    }

    /// What a kernel that divides the synapses reads of it, with those that it folded at `folded`.
    pub(super) fn room(&self, base: u64, folded: RegionId) -> Room {
        let [folded, exchange, arrivals] =
            [folded, self.exchange, self.arrivals].map(|id| self.layout.address(base, id));
        Room { folded, exchange, arrivals }
    }
}

/// Scratch of the backward pass alone.
pub(super) struct Traces {
    pub(super) common: Common,
    pub(super) v: RegionId,
    pub(super) alpha: RegionId,
    pub(super) beta: RegionId,
    pub(super) adjoint_folded: RegionId,
    pub(super) sums_folded: RegionId,
    pub(super) gate_sums: RegionId,
    pub(super) sensory_folded: RegionId,
    pub(super) sensory_sums: RegionId,
    pub(super) cluster_sums: RegionId,
    pub(super) changes: RegionId,
    pub(super) step_sums: RegionId,
    pub(super) grad_u: RegionId,
    pub(super) adjoint: RegionId,
    pub(super) partial: RegionId,
    pub(super) recurrent: RegionId,
    pub(super) sensory: RegionId,
    pub(super) neurons: RegionId,
    pub(super) inputs: RegionId,
    pub(super) outputs: RegionId,
    /// Of the squares of single rows' gradients what blocks leave.
    pub(super) squares: RegionId,
    /// What lies between levels.
    pub(super) levels: Option<LevelsRegions>,
    /// Whether the adjoint of the sensory gates reads x, and makes dL/dx and the sums of the input parameters.
    pub(super) direct: bool,
    /// Whether what belongs to the inputs is made of all steps together, before and after the chunks.
    pub(super) together: bool,
    /// Whether the sums of the sensory gates take the place of those of the others, which are closed before.
    pub(super) closes_early: bool,
}

impl Traces {
    /// `sensory`: floats of the folded synapses of the sensory sums.
    pub(super) fn new(
        p: &Ltc,
        gap: usize,
        c: &Config,
        held: Option<&HeldBackward>,
        grid: Option<&GridBackward>,
        sensory: usize,
    ) -> Result<Self> {
        let rebuilt = held.and_then(|h| h.rebuild.as_ref()).map_or(0, HeldKernel::folded);
        let divided = grid.and_then(|g| g.rebuild.as_ref()).map_or(0, GridKernel::folded);
        let exchanged = [c.grid_rebuild, c.grid_adjoint].into_iter().flatten().map(|g| g.exchanged(p.hidden));
        let exchanged = exchanged.fold((0, 0), |most, n| (most.0.max(n.0), most.1.max(n.1)));
        let gates = held.and_then(|h| h.sensory.as_ref());
        // Without the sums of held kernels the lists are read; without a held forward kernel they make the sums, too.
        let of_whole = held.and_then(|h| h.whole.as_ref());
        let whole = of_whole.is_some();
        let kept = p.kept() != Kept::States;
        let sensory = if kept { 0 } else { sensory };
        let lists = [held.is_none(), !whole && (gates.is_none() || sensory == 0 && !kept)];
        let cut = held.filter(|h| h.adjoint.cuts(p.batch)).map_or(0, |_| p.batch * p.hidden);
        let together = c.together(p);
        let input_steps = if together { p.steps } else { c.backward_chunk };
        let chunk = if whole { 0 } else { input_steps };
        let folded = [rebuilt.max(divided), if whole { 0 } else { sensory }];
        let (rows, of_chunk, h) = (p.batch * input_steps, p.batch * c.backward_chunk * p.hidden, p.hidden);
        let side_by_side = held.map_or(1, HeldBackward::together);
        let trace = p.batch.next_multiple_of(side_by_side) * c.backward_chunk * p.unfolds * h;
        // Of those that the adjoint reads itself there is no trace.
        let stored = p.kept() == Kept::Unfolds || c.adjoint.is_some_and(|h| h.words);
        // What is made of all steps together comes when the trace of v has been read.
        let direct = gates.is_some() && !whole && !p.layer_norm;
        let u_late = together && !stored && !direct && p.batch * p.steps * p.inputs <= trace;
        let u_here = !(u_late || direct && (sensory > 0 || kept));
        let mut common = Common::new(p, gap, chunk, true, lists, folded, cut, exchanged, grid.is_none(), u_here)?;
        let (s, ss) = (p.connectivity.recurrent.len(), p.connectivity.sensory.len());
        let (s, ss) = (if held.is_some() { 0 } else { s }, if gates.is_some() || whole { 0 } else { ss });
        let levels = held.and_then(|h| h.levels.as_ref());
        let trace = if whole || levels.is_some() { 0 } else { trace };
        let clusters = held.map_or(0, |h| h.adjoint.clusters());
        let partial = [
            (s, tune::most_slices(rows * p.unfolds, s.div_ceil(256))),
            (s, grid.and_then(|g| g.sums.as_ref()).map_or(0, GridSums::most_slices)),
            (ss, tune::most_slices(rows, ss.div_ceil(256))),
            (if held.is_some() { 0 } else { h }, tune::most_slices(rows * p.unfolds, h.div_ceil(32))),
            (if direct { 0 } else { p.inputs }, tune::most_slices(rows, p.inputs.div_ceil(32))),
            (
                p.outputs,
                tune::most_slices(p.batch * p.steps, p.outputs.div_ceil(32)).max(if p.asks_per_sample() {
                    p.batch
                } else {
                    0
                }),
            ),
        ];
        let partial = partial.iter().map(|(n, k)| 4 * n * k).max().unwrap_or(0);
        // Those of the adjoint of the sensory gates come from each of its workers.
        let workers = gates.filter(|_| direct).map_or(1, HeldKernel::clusters);
        let workers = if p.asks_per_sample() { p.batch } else { workers };
        let [inputs, outputs] = if whole {
            [2 * clusters * p.inputs, 2 * clusters * h]
        } else {
            [workers * p.inputs, p.outputs].map(|n| 4 * n)
        };
        let (gate_sums, sensory_sums) = match of_whole {
            Some(w) => (p.batch * w.gate_sums(), p.batch * w.input_sums()),
            None => (held.map_or(0, |h| h.of_sums().sums()), gates.map_or(0, HeldKernel::sums)),
        };
        let sums = held.and_then(|h| h.sums.as_ref());
        let (step_sums, in_place) = (if whole { 0 } else { 2 * rows * h }, together.then_some(common.sums));
        let l = &mut common.layout;
        let v = l.push("trace_v", Dtype::F32, if stored { 0 } else { trace })?;
        if u_late {
            (common.u, common.u_late) = (v, true);
        }
        let alphas = if held.is_some() && sums.is_none() && stored { 0 } else { trace };
        let alpha = l.push("trace_alpha", Dtype::F32, alphas)?;
        // Of all steps together they are made when the trace has been read.
        let gates_here = l.push("cluster_gate_sums", Dtype::F32, gate_sums)?;
        let in_alpha = together && sensory_sums <= alphas;
        let in_alpha = in_alpha && !p.asks_per_sample();
        let closes_early = together
            && !in_alpha
            && gates.is_some()
            && sums.is_none()
            && sensory_sums <= gate_sums
            && !p.asks_per_sample();
        let after = if in_alpha { Some(alpha) } else { closes_early.then_some(gates_here) };
        Ok(Self {
            levels: levels
                .map(|k| k.rebuild.regions(l, p.batch * c.backward_chunk * p.unfolds, Some(k)))
                .transpose()?,
            direct,
            together,
            closes_early,
            v,
            alpha,
            beta: l.push("trace_beta", Dtype::F32, if held.is_some() { 0 } else { trace })?,
            adjoint_folded: l.push(
                "adjoint_folded",
                Dtype::F32,
                held.map_or(0, |h| h.adjoint.folded()).max(grid.map_or(0, |g| g.adjoint.folded())),
            )?,
            sums_folded: l.push("sums_folded", Dtype::F32, sums.map_or(0, HeldKernel::folded))?,
            gate_sums: gates_here,
            sensory_folded: l.push("sensory_adjoint_folded", Dtype::F32, gates.map_or(0, HeldKernel::folded))?,
            sensory_sums: if let Some(there) = after {
                there
            } else {
                l.push("block_sensory_sums", Dtype::F32, sensory_sums)?
            },
            cluster_sums: l.push("cluster_neuron_sums", Dtype::F32, 4 * clusters * h)?,
            changes: l.push("step_changes", Dtype::F32, if held.is_some() && p.elapsed { of_chunk } else { 0 })?,
            // Those of a step take the place of its sums over the inputs.
            step_sums: if let Some(there) = in_place { there } else { l.push("step_sums", Dtype::F32, step_sums)? },
            grad_u: l.push("grad_u", Dtype::F32, if direct || whole { 0 } else { rows * p.inputs })?,
            adjoint: l.push("adjoint", Dtype::F32, p.batch * h)?,
            partial: l.push("partial", Dtype::F32, if whole { 0 } else { partial })?,
            recurrent: l.push("recurrent_sums", Dtype::F32, 4 * s)?,
            sensory: l.push("sensory_gate_sums", Dtype::F32, 4 * ss)?,
            neurons: l.push("neuron_sums", Dtype::F32, 4 * h)?,
            inputs: l.push("input_sums", Dtype::F32, inputs)?,
            outputs: l.push("output_sums", Dtype::F32, outputs)?,
            squares: l.push(
                "sample_squares",
                Dtype::F32,
                if p.asks_per_sample() { Blocks::of(p, held).floats(p) } else { 0 },
            )?,
            common,
        })
    }

    /// Makes a region of the scratch at `base` zero.
    pub(super) fn zero(&self, base: u64, id: RegionId, device: &CudaDevice, stream: StreamRef) -> Result<()> {
        let r = self.common.layout.region(id);
        if r.len == 0 {
            return Ok(());
        }
        let place = Place::Cuda(device.index());
        // SAFETY: the region lies in the scratch block of the call, and no other view of it is alive.
        let mut view = unsafe {
            ViewMut::from_raw((base + r.offset as u64) as *mut u8, Dtype::U8, Shape::from([r.len]), &[1], place)
        };
        fill_bytes(&mut view, 0, stream)
    }
}
