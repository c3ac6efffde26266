//! How a batch is cut into groups and tasks, and where each of them keeps what.

use crate::layers::ltc::spec::{Kept, Ltc};
use crate::op::Pass;
use crate::{Dtype, Layout, RegionId, Result};

/// Batch rows that are computed together, one a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    /// The first row.
    pub row: usize,
    /// How many rows there are.
    pub rows: usize,
    /// R, the lanes they take: 8, or 4 with two synapses side by side. Lanes behind the last row repeat it.
    pub lanes: usize,
}

/// Groups of 8 rows, and behind them at most three of 4 rows, so that an even number of threads can share them evenly.
///
/// A function of the batch alone, so that the same rows meet in the same sums whatever the number of threads.
pub(super) fn groups(batch: usize) -> Vec<Group> {
    // Up to 4 rows left over fill a group of 4; more are cheaper in one of 8.
    let mut eights = batch.saturating_sub(batch % 8) / 8 + usize::from(batch % 8 > 4);
    let mut fours = usize::from((1..=4).contains(&(batch % 8)));
    if eights % 2 == 1 {
        eights -= 1;
        fours += 2;
    }
    let mut row = 0;
    let lanes = std::iter::repeat_n(8, eights).chain(std::iter::repeat_n(4, fours));
    let cut = |lanes: usize| {
        let group = Group { row, rows: lanes.min(batch - row), lanes };
        row += group.rows;
        group
    };
    lanes.map(cut).filter(|g| g.rows > 0).collect()
}

/// Steps whose sensory sums are closed together: a reduction over lanes then serves that many gates.
pub(super) const BLOCK: usize = 8;
/// The largest cache of gates that a task keeps for each side, in bytes; beyond it they are evaluated again.
const GATE_CACHE: usize = 4 << 20;
/// What all tasks together may take, in bytes; beyond it fewer tasks share the groups.
const TASK_BYTES: usize = 1 << 30;

/// Sizes that the buffers of a task follow from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub inputs: usize,
    pub hidden: usize,
    pub outputs: usize,
    pub unfolds: usize,
    pub block: usize,
    /// Bounds on packs, for any lists of these lengths.
    pub recurrent_packs: usize,
    pub sensory_packs: usize,
    /// Whether the gates of the recurrent side, and of the sensory side, are kept between their uses.
    pub keep_recurrent: bool,
    pub keep_sensory: bool,
    backward: bool,
    mixed: bool,
}

/// Packs of two synapses in lists of `synapses` onto `targets`: at most one a target is half empty.
fn packs(synapses: usize, targets: usize) -> usize {
    (synapses + targets.min(synapses)) / 2
}

impl Sizes {
    pub fn of(p: &Ltc, pass: Pass) -> Self {
        let recurrent_packs = packs(p.connectivity.recurrent.len(), p.hidden);
        let sensory_packs = packs(p.connectivity.sensory.len(), p.hidden);
        let block = p.steps.min(BLOCK);
        let fits = |packs: usize, times: usize| packs.saturating_mul(times).saturating_mul(64) <= GATE_CACHE;
        Self {
            inputs: p.inputs,
            hidden: p.hidden,
            outputs: p.outputs,
            unfolds: p.unfolds,
            block,
            recurrent_packs,
            sensory_packs,
            keep_recurrent: fits(recurrent_packs, p.unfolds),
            keep_sensory: fits(sensory_packs, block),
            backward: pass == Pass::Backward,
            mixed: p.mixed_memory,
        }
    }
    /// Lengths of [`Buffers`], in the order of its fields.
    fn lengths(&self) -> [usize; 23] {
        let (d, h, k, n) = (self.inputs, self.hidden, self.unfolds, self.block);
        let only = |backward: bool, len: usize| if backward { len } else { 0 };
        let b = self.backward;
        let most = d.max(h).div_ceil(2);
        [
            if b { n.max(1) } else { 1 } * (d + 1) * 8,
            d * 8,
            d * 8,
            h * 32,
            h * 32,
            if b { k + 1 } else { 2 } * (h + 1) * 8,
            only(b, k * h * 8),
            only(b, k * h * 8),
            only(b, k * h * 8),
            only(b, h * 8),
            only(b, (h + 1) * 8),
            only(b, h * 16),
            only(b, n * h * 8),
            only(b, n * h * 8),
            only(b, (d + 1) * 8),
            only(b, most * 16),
            only(b, most * 64),
            only(b && self.keep_recurrent, k * self.recurrent_packs * 16),
            only(b && self.keep_sensory, n * self.sensory_packs * 16),
            only(self.mixed, if b { n.max(1) } else { 1 } * d * 8),
            only(self.mixed, if b { n.max(1) } else { 1 } * h * 8),
            only(self.mixed, if b { n.max(1) } else { 1 } * h * 32),
            only(self.mixed, h * 8),
        ]
    }
    /// f32 of a task's [`Buffers`].
    pub fn buffers(&self) -> usize {
        self.lengths().iter().map(|n| n.next_multiple_of(16)).sum()
    }
    /// f64 of a task's [`Sums`].
    pub fn sums(&self) -> usize {
        if !self.backward {
            return 0;
        }
        8 * (self.recurrent_packs + self.sensory_packs)
            + 3 * self.hidden
            + 2 * self.outputs
            + 4 * self.inputs
            + self.lstm_sums()
    }
    /// f64 of the sums of the LSTM's parameters.
    pub fn lstm_sums(&self) -> usize {
        if self.mixed { 4 * self.hidden * (self.inputs + 1 + self.hidden) } else { 0 }
    }
    /// How many tasks share `groups` groups.
    pub fn tasks(&self, groups: usize) -> usize {
        let bytes = (4 * self.buffers() + 8 * self.sums()).max(1);
        groups.min((TASK_BYTES / bytes).max(1))
    }
}

/// What a task works in. The last axis of each is R lanes, or N of R where two synapses stand side by side.
pub(super) struct Buffers<'a> {
    /// `[block, D + 1, R]` mapped inputs; the last row is zero, for the empty half of a pack.
    pub u: &'a mut [f32],
    /// `[D, R]` inputs before the mapping, and normalised inputs.
    pub y: &'a mut [f32],
    pub normal: &'a mut [f32],
    /// `[2, H, N]` numerators and denominators that the sensory side adds.
    pub sensory: &'a mut [f32],
    /// `[2, H, N]` the same of an unfold.
    pub unfold: &'a mut [f32],
    /// `[K + 1, H + 1, R]` states before each unfold and after the last (forward: two of them); the last row is zero.
    pub v: &'a mut [f32],
    /// `[K, H, R]` 1 / den.
    pub inverse: &'a mut [f32],
    /// `[K, H, R]` gradients of numerators and denominators.
    pub alpha: &'a mut [f32],
    pub beta: &'a mut [f32],
    /// `[H, R]` gradient of the state.
    pub a: &'a mut [f32],
    /// `[H + 1, R]` what the synapses add to it.
    pub pulled: &'a mut [f32],
    /// `[2, H, R]` a step's sums for gleak and cm.
    pub cell: &'a mut [f32],
    /// `[block, H, R]` sums of alpha and beta over the unfolds of a step.
    pub alpha_sum: &'a mut [f32],
    pub beta_sum: &'a mut [f32],
    /// `[D + 1, R]` gradient of the mapped inputs.
    pub du: &'a mut [f32],
    /// `[packs of a target, 2, R]` and four sums of that size.
    pub products: &'a mut [f32],
    pub partial: &'a mut [f32],
    /// `[K, recurrent packs, 2, R]` and `[block, sensory packs, 2, R]` gates, or empty.
    pub gates: &'a mut [f32],
    pub sensory_gates: &'a mut [f32],
    /// With mixed memory, of a block's steps (forward: of one): `[D, R]` inputs, `[H, R]` states before the LSTM and `[4 H, R]`
    /// its gates (backward: the gradients of the sums behind them); and `[H, R]` the cell (backward: its gradient).
    pub lstm_x: &'a mut [f32],
    pub lstm_h: &'a mut [f32],
    pub lstm_z: &'a mut [f32],
    pub lstm_c: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    /// The buffers in a task's memory.
    pub fn carve(sizes: &Sizes, memory: &'a mut [f32]) -> Self {
        let mut rest = memory;
        let [
            u,
            y,
            normal,
            sensory,
            unfold,
            v,
            inverse,
            alpha,
            beta,
            a,
            pulled,
            cell,
            alpha_sum,
            beta_sum,
            du,
            products,
            partial,
            gates,
            sensory_gates,
            lstm_x,
            lstm_h,
            lstm_z,
            lstm_c,
        ] = sizes.lengths().map(|len| {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(len.next_multiple_of(16));
            rest = behind;
            &mut part[..len]
        });
        Self {
            u,
            y,
            normal,
            sensory,
            unfold,
            v,
            inverse,
            alpha,
            beta,
            a,
            pulled,
            cell,
            alpha_sum,
            beta_sum,
            du,
            products,
            partial,
            gates,
            sensory_gates,
            lstm_x,
            lstm_h,
            lstm_z,
            lstm_c,
        }
    }
}

/// A task's sums for parameters, over its rows and all steps, in f64.
pub(super) struct Sums<'a> {
    /// `[packs, 2][S1, S2, A, B]`: sums of alpha r, beta r, dz and dz (v - mu).
    pub recurrent: &'a mut [[f64; 4]],
    pub sensory: &'a mut [[f64; 4]],
    /// `[H][alpha (vleak - v'), alpha, dc K / dt]`.
    pub neurons: &'a mut [[f64; 3]],
    /// `[M][w, b]`.
    pub output: &'a mut [[f64; 2]],
    /// `[D][w, b]`.
    pub input: &'a mut [[f64; 2]],
    /// `[D][weight, bias]`.
    pub norm: &'a mut [[f64; 2]],
    /// `[4 H][D + 1 + H]`: of each gate's row the input map's weights, its bias and the recurrent map's weights.
    pub lstm: &'a mut [f64],
}

impl<'a> Sums<'a> {
    /// The sums in a task's memory.
    pub fn carve(sizes: &Sizes, memory: &'a mut [f64]) -> Self {
        let mut rest = memory;
        let mut take = |len: usize| {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(len);
            rest = behind;
            part
        };
        Self {
            recurrent: take(8 * sizes.recurrent_packs).as_chunks_mut().0,
            sensory: take(8 * sizes.sensory_packs).as_chunks_mut().0,
            neurons: take(3 * sizes.hidden).as_chunks_mut().0,
            output: take(2 * sizes.outputs).as_chunks_mut().0,
            input: take(2 * sizes.inputs).as_chunks_mut().0,
            norm: take(2 * sizes.inputs).as_chunks_mut().0,
            lstm: take(sizes.lstm_sums()),
        }
    }
}

/// The scratch regions of a pass.
#[derive(Debug, Clone)]
pub(super) struct Regions {
    pub layout: Layout,
    pub sizes: Sizes,
    pub tasks: usize,
    /// Folded constants, sources, the first pack of each target and the reach of its gates: recurrent, sensory.
    pub sides: [[RegionId; 4]; 2],
    pub neurons: RegionId,
    pub buffers: RegionId,
    pub sums: RegionId,
}

impl Regions {
    pub fn new(p: &Ltc, pass: Pass, groups: usize, gap: usize) -> Result<Self> {
        let sizes = Sizes::of(p, pass);
        let tasks = sizes.tasks(groups);
        let mut layout = Layout::new(gap);
        let mut side = |names: [&'static str; 4], packs: usize| -> Result<[RegionId; 4]> {
            Ok([
                layout.push(names[0], Dtype::F32, packs * 8)?,
                layout.push(names[1], Dtype::I32, packs * 2)?,
                layout.push(names[2], Dtype::I32, p.hidden + 1)?,
                layout.push(names[3], Dtype::F32, p.hidden * 2)?,
            ])
        };
        let sides = [
            side(
                ["recurrent_constants", "recurrent_sources", "recurrent_packs", "recurrent_reach"],
                sizes.recurrent_packs,
            )?,
            side(["sensory_constants", "sensory_sources", "sensory_packs", "sensory_reach"], sizes.sensory_packs)?,
        ];
        let neurons = layout.push("neurons", Dtype::F32, p.hidden * 4)?;
        let buffers = layout.push("buffers", Dtype::F32, tasks * sizes.buffers())?;
        let sums = layout.push("sums", Dtype::F64, tasks * sizes.sums())?;
        Ok(Self { layout, sizes, tasks, sides, neurons, buffers, sums })
    }
    /// The groups of a task, out of `groups`.
    pub fn groups_of(&self, task: usize, groups: usize) -> std::ops::Range<usize> {
        task * groups / self.tasks..(task + 1) * groups / self.tasks
    }
}

/// Whether the forward pass kept every unfold.
pub(super) fn kept(p: &Ltc) -> bool {
    p.kept() != Kept::States
}
