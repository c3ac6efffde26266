//! How a call is cut: chains of chunks, windows of chunks whose states are kept at a time, and scratch for them.

use super::gemm::PANEL;
use crate::layers::mlstm::spec::Mlstm;
use crate::op::Pass;

use crate::{Dtype, Layout, RegionId, Result, ViewMut, pool};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of states that are kept at a time, where that gives at least two chunks a chain.
const WINDOW_BYTES: usize = 32 << 20;

/// One head of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    /// Its place among the states: s NH + head.
    pub nth: usize,
    pub batch: usize,
    pub head: usize,
    /// Its first token in time.
    pub from: usize,
    /// Its tokens.
    pub len: usize,
}

impl Chain {
    /// Its chunks of `length` tokens.
    pub(super) fn chunks(&self, length: usize) -> usize {
        self.len.div_ceil(length)
    }
    /// The first token of a chunk, as (b, head, t), and its tokens.
    pub(super) fn chunk(&self, length: usize, nth: usize) -> ([usize; 3], usize) {
        ([self.batch, self.head, self.from + nth * length], length.min(self.len - nth * length))
    }
}

/// How the work is cut, a function of the problem alone but for `slots`, of which no result depends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// S NH.
    pub chains: usize,
    /// Chunks of the longest chain that there may be.
    pub chunks: usize,
    /// Chunks of a window.
    pub window: usize,
    /// Places for what a task needs, at most one a thread.
    pub slots: usize,
}

/// Tokens of a chunk: what was asked for, or 48, and 96 where a state is large. On two cores with AVX-512 four heads of 2048 tokens take,
/// 64 / 64, 0.60 / 2.94 ms (forward / both), by 64 tokens 0.64 / 2.98, by 32 0.58 / 3.07; 256 / 256, 6.2 / 25.9, by 48 5.8 / 29.7.
pub(in super::super) fn chunk_length(p: &Mlstm) -> usize {
    p.chunk.unwrap_or(if p.dqk * p.dv > 128 * 128 { 96 } else { 48 })
}

impl Cut {
    pub(super) fn new(p: &Mlstm, pass: Pass, window: Option<usize>) -> Self {
        let chains = p.states() * p.heads;
        let chunks = p.steps.div_ceil(chunk_length(p)).max(1);
        let fits = WINDOW_BYTES / (chains.max(1) * p.dqk * p.dv * 4);
        // Backward the states at the windows' starts are kept too: their number and a window's balance.
        let least = if pass == Pass::Backward { chunks.isqrt().max(2) } else { 2 };
        let window = window.unwrap_or(fits.max(least)).min(chunks);
        Self { chains, chunks, window, slots: pool::num_threads() }
    }
    pub(super) fn windows(&self) -> usize {
        self.chunks.div_ceil(self.window)
    }
    /// In how many groups of panels a scan over `panels` is shared out.
    pub(super) fn groups(&self, panels: usize) -> usize {
        (2 * self.slots).div_ceil(self.chains.max(1)).clamp(1, panels)
    }
}

/// The panels of one of `groups` parts.
pub(super) fn part(panels: usize, groups: usize, nth: usize) -> std::ops::Range<usize> {
    panels * nth / groups..panels * (nth + 1) / groups
}

/// Runs `task(slot, i)` for every i below `count`; no two tasks with one slot run at a time.
pub(super) fn share(slots: usize, count: usize, task: impl Fn(usize, usize) + Send + Sync) {
    let next = AtomicUsize::new(0);
    pool::for_each(slots.min(count), |slot| {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count || pool::stopped() {
                return;
            }
            task(slot, i);
        }
    });
}

/// Memory that several tasks write, each its own part.
#[derive(Clone, Copy)]
pub(super) struct Block<T> {
    data: *mut T,
    len: usize,
}
// SAFETY: who uses a block promises that parts that are written are disjoint.
unsafe impl<T: Send> Send for Block<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Block<T> {}

impl<T: Copy> Block<T> {
    pub(super) fn new(data: &mut [T]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len() }
    }
    /// A block that is only read: writing to a part of it is undefined.
    pub(super) fn reading(data: &[T]) -> Self {
        Self { data: data.as_ptr().cast_mut(), len: data.len() }
    }
    /// Elements to read.
    ///
    /// # Safety
    /// Nobody may write them meanwhile, and the block's memory must be there.
    pub(super) unsafe fn read<'a>(&self, from: usize, len: usize) -> &'a [T] {
        assert!(from + len <= self.len);
        // SAFETY: in bounds, and as the caller promises.
        unsafe { std::slice::from_raw_parts(self.data.add(from), len) }
    }
    /// Elements to write.
    ///
    /// # Safety
    /// Nobody else may touch them meanwhile, and the block's memory must be there.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn write<'a>(&self, from: usize, len: usize) -> &'a mut [T] {
        assert!(from + len <= self.len);
        // SAFETY: in bounds, and as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(from), len) }
    }
}

/// The scratch of a pass.
#[derive(Debug)]
pub(super) struct Regions {
    pub layout: Layout,
    /// b, [B, NH, T] f64.
    sums: RegionId,
    /// The logarithm of the input gate, [B, NH, T].
    input: RegionId,
    /// m where it is not saved, [B, NH, T].
    gauge: RegionId,
    /// One over the denominator of h, and the gradient of l, [B, NH, T] each.
    tokens: [RegionId; 2],
    /// c of the chunks' starts, [chains, window + 1, K V], and n, [chains, window + 1, K].
    states: [RegionId; 2],
    /// Their gradients at the chunks' ends, and those that a window begins with.
    grads: [RegionId; 4],
    /// States that windows begin with.
    starts: [RegionId; 2],
    /// What of the last gauge's gradient goes to the gates, [chains] f64.
    excess: RegionId,
    /// [slots, floats].
    buffers: RegionId,
    /// Floats of a slot.
    pub floats: usize,
}

/// The scratch of a call.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub sums: Block<f64>,
    pub input: Block<f32>,
    pub gauge: Block<f32>,
    pub inverse: Block<f32>,
    pub grad_l: Block<f32>,
    pub c: Block<f32>,
    pub n: Block<f32>,
    pub grad_c: Block<f32>,
    pub grad_n: Block<f32>,
    pub carry_c: Block<f32>,
    pub carry_n: Block<f32>,
    pub start_c: Block<f32>,
    pub start_n: Block<f32>,
    pub excess: Block<f64>,
    pub buffers: Block<f32>,
}

impl Regions {
    pub(super) fn new(p: &Mlstm, cut: &Cut, pass: Pass, gap: usize) -> Result<Self> {
        let mut layout = Layout::new(gap);
        let backward = pass == Pass::Backward;
        let tokens = p.batch * p.heads * p.steps;
        let (k, v) = (p.dqk, p.dv);
        let only = |there: bool, n: usize| if there { n } else { 0 };
        let kept = cut.chains * cut.window;
        let windows = only(backward && cut.windows() > 1, cut.chains * cut.windows());
        let (length, wide) = (chunk_length(p), k.max(v));
        // Forward: q, k turned, k, v, outputs and pairs. Backward: two forms of q, k and v, upstream gradients, pairs and
        // theirs, three gradients, and one for whatever is being turned.
        let forward = length * (3 * k + 2 * v + length);
        let floats = if backward { length * (5 * k + 4 * v + 2 * length + wide) } else { forward } + 8 * length;
        let floats = floats.next_multiple_of(PANEL);
        let f32s = Dtype::F32;
        Ok(Self {
            sums: layout.push("gate_sums", Dtype::F64, tokens)?,
            input: layout.push("input_gates", f32s, tokens)?,
            gauge: layout.push("gauge", f32s, only(!backward && !p.backward && p.has_gauge(), tokens))?,
            tokens: [
                layout.push("inverse", f32s, only(backward, tokens))?,
                layout.push("grad_l", f32s, only(backward, tokens))?,
            ],
            states: [
                layout.push("states_c", f32s, (kept + cut.chains) * k * v)?,
                layout.push("states_n", f32s, (kept + cut.chains) * k)?,
            ],
            grads: [
                layout.push("grads_c", f32s, only(backward, kept * k * v))?,
                layout.push("grads_n", f32s, only(backward, kept * k))?,
                layout.push("carry_c", f32s, only(backward, cut.chains * k * v))?,
                layout.push("carry_n", f32s, only(backward, cut.chains * k))?,
            ],
            starts: [layout.push("starts_c", f32s, windows * k * v)?, layout.push("starts_n", f32s, windows * k)?],
            excess: layout.push("excess", Dtype::F64, only(backward, cut.chains))?,
            buffers: layout.push("buffers", f32s, cut.slots * floats)?,
            floats,
            layout,
        })
    }

    /// The regions in a call's block.
    ///
    /// # Safety
    /// `block` must be this layout's and nobody else's while the result is used.
    pub(super) unsafe fn carve(&self, block: &ViewMut<'_>) -> Result<Memory> {
        // SAFETY: the block is this layout's, and each region is carved once.
        let floats = |id| unsafe { self.layout.carve::<f32>(block, id) }.map(Block::new);
        // SAFETY: as above.
        let doubles = |id| unsafe { self.layout.carve::<f64>(block, id) }.map(Block::new);
        Ok(Memory {
            sums: doubles(self.sums)?,
            input: floats(self.input)?,
            gauge: floats(self.gauge)?,
            inverse: floats(self.tokens[0])?,
            grad_l: floats(self.tokens[1])?,
            c: floats(self.states[0])?,
            n: floats(self.states[1])?,
            grad_c: floats(self.grads[0])?,
            grad_n: floats(self.grads[1])?,
            carry_c: floats(self.grads[2])?,
            carry_n: floats(self.grads[3])?,
            start_c: floats(self.starts[0])?,
            start_n: floats(self.starts[1])?,
            excess: doubles(self.excess)?,
            buffers: floats(self.buffers)?,
        })
    }
}

/// Cuts a slot's buffer.
pub(super) struct Carver<'a>(pub &'a mut [f32]);

impl<'a> Carver<'a> {
    pub(super) fn take(&mut self, floats: usize) -> &'a mut [f32] {
        let rest = std::mem::take(&mut self.0);
        let (head, tail) = rest.split_at_mut(floats);
        self.0 = tail;
        head
    }
}
