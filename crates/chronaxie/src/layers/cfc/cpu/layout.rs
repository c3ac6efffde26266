//! How a batch is cut into groups and tasks, and where each of them keeps what.

use super::gemm::{PAD, TILE, padded};
use crate::layers::cfc::net::Net;
use crate::layers::cfc::spec::Cfc;
use crate::op::{Pass, Signature};
use crate::{Dtype, Error, Layout, RegionId, Result};
use std::ops::Range;

/// Batch rows that are computed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    /// The first row, a multiple of [`TILE`].
    pub row: usize,
    pub rows: usize,
}

impl Group {
    /// The rows with their padding.
    pub fn tall(self) -> usize {
        self.rows.next_multiple_of(TILE)
    }
}

/// The most rows of a group: weights, from the second cache, then serve that many.
pub(super) const GROUP: usize = 16;
/// The most tasks of a call.
const TASKS: usize = 64;
/// What the gradients and operands of a chunk of steps may take, in bytes.
const CHUNK_BYTES: usize = 32 << 20;

/// Groups of 16 rows, of 8 in small batches, and at the end two halves where that makes their number even, so that an even
/// number of threads can share them.
pub(super) fn groups(batch: usize) -> Vec<Group> {
    let size = if batch >= 4 * GROUP { GROUP } else { GROUP / 2 };
    let cut = |from: usize, to: usize, size: usize| {
        (from..to).step_by(size).map(move |row| Group { row, rows: size.min(to - row) })
    };
    let whole = batch.div_ceil(size);
    let halved = if whole % 2 == 1 { (whole - 1) * size } else { batch };
    cut(0, halved, size).chain(cut(halved, batch, size / 2)).collect()
}

/// Columns of the buffers that a task has, each for all rows of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Widths {
    /// What a map reads, and what it gives, with a vector behind it.
    pub read: usize,
    pub given: usize,
    /// All neurons, with a vector behind them.
    pub state: usize,
    /// The values kept of the neurons of a cell, or the gates of an LSTM: one row of so many columns a value.
    pub kept: usize,
}

impl Widths {
    fn of(p: &Cfc, net: &Net) -> Self {
        let state = padded(p.hidden()) + PAD;
        Self {
            read: padded(net.widest_input.max(p.backbone_units)) + PAD,
            given: padded(net.widest_output.max(net.widest_input).max(p.backbone_units)) + PAD,
            state,
            kept: state.max(padded(p.backbone_units) + PAD),
        }
    }
    /// Floats of a task: two buffers of what maps read, one of what they give, three of states, and three times four rows
    /// of kept values.
    pub fn task(&self) -> usize {
        GROUP * (2 * self.read + self.given + 3 * self.state) + 12 * self.kept
    }
}

/// The buffers of a task, cut for a group.
pub(super) struct Buffers<'a> {
    /// `[rows, read]` each.
    pub read: [&'a mut [f32]; 2],
    /// `[rows, given]`.
    pub given: &'a mut [f32],
    /// `[rows, state]` each.
    pub states: [&'a mut [f32]; 3],
    /// `[4, kept]` each.
    pub kept: [&'a mut [f32]; 3],
}

impl<'a> Buffers<'a> {
    pub fn carve(w: &Widths, memory: &'a mut [f32]) -> Self {
        let mut rest = memory;
        let mut take = |len: usize| {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(len);
            rest = behind;
            part
        };
        Self {
            read: [take(GROUP * w.read), take(GROUP * w.read)],
            given: take(GROUP * w.given),
            states: [take(GROUP * w.state), take(GROUP * w.state), take(GROUP * w.state)],
            kept: [take(4 * w.kept), take(4 * w.kept), take(4 * w.kept)],
        }
    }
}

/// The scratch of a pass.
#[derive(Debug)]
pub(super) struct Regions {
    pub layout: Layout,
    pub widths: Widths,
    pub tasks: usize,
    /// Steps of a chunk of the backward pass.
    pub chunk: usize,
    pub packed: RegionId,
    pub bias: RegionId,
    pub buffers: RegionId,
    pub grads: RegionId,
    pub operands: RegionId,
    pub carried: [RegionId; 2],
}

impl Regions {
    /// `steps` of a chunk, or as many as fit.
    pub fn new(p: &Cfc, net: &Net, pass: Pass, groups: usize, steps: Option<usize>, gap: usize) -> Result<Self> {
        let widths = Widths::of(p, net);
        let tasks = groups.min(TASKS);
        let backward = pass == Pass::Backward;
        let tall = p.batch.next_multiple_of(TILE);
        let a_step = (net.grads + net.operands).saturating_mul(4 * tall).max(1);
        let chunk = if backward { steps.unwrap_or(CHUNK_BYTES / a_step).clamp(1, p.steps.max(1)) } else { 0 };
        let mut layout = Layout::new(gap);
        let mut push = |name, floats: Option<usize>| {
            let floats = floats.ok_or_else(|| Error::shape(format!("cfc: scratch `{name}` exceeds 64-bit sizes")))?;
            layout.push(name, Dtype::F32, floats)
        };
        let rows = |width: usize| tall.checked_mul(chunk)?.checked_mul(width);
        let states = if backward { tall.checked_mul(widths.state) } else { Some(0) };
        Ok(Self {
            packed: push("packed", Some(if backward { net.packed_back } else { net.packed }))?,
            bias: push("bias", Some(net.bias))?,
            buffers: push("buffers", tasks.checked_mul(widths.task()))?,
            grads: push("grads", rows(net.grads))?,
            operands: push("operands", rows(net.operands))?,
            carried: [push("carried_state", states)?, push("carried_cell", states)?],
            widths,
            tasks,
            chunk,
            layout,
        })
    }
    /// The groups of task `task`: neighbours, as many as any other's or one fewer.
    pub fn groups_of(&self, task: usize, groups: usize) -> Range<usize> {
        task * groups / self.tasks..(task + 1) * groups / self.tasks
    }
}

/// Where a tensor of these names stands in a signature.
pub(super) fn position(signature: &Signature, name: &str) -> Result<usize> {
    signature.input(name).ok_or_else(|| Error::config(format!("cfc: the signature has no tensor {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_cover_the_batch_and_can_be_shared() {
        for batch in 0..300 {
            let all = groups(batch);
            let mut next = 0;
            for g in &all {
                assert_eq!((g.row, g.row % TILE), (next, 0), "batch {batch}");
                assert!(g.rows > 0 && g.tall() <= GROUP, "batch {batch}");
                next += g.rows;
            }
            assert_eq!(next, batch);
        }
        let rows = |batch| groups(batch).iter().map(|g| g.rows).collect::<Vec<_>>();
        assert_eq!(rows(24), [8, 8, 4, 4]);
        assert_eq!(rows(32), [8; 4]);
        assert_eq!(rows(128), [16; 8]);
    }
}
