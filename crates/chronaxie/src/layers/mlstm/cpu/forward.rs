//! The forward pass: states from chunk to chunk, then all chunks of a window side by side.

use super::call::{Call, Form, from_panels};
use super::gates;
use super::gemm::{Left, PANEL, Part, Place, Start, dots, multiply};
use super::layout::{Block, Chain, share};
use super::pack::{Tokens, panels, transposed};
use super::rows;
use crate::pool;

/// What the forward pass writes.
pub(super) struct Outputs {
    pub h: Tokens,
    /// c, n, m; empty where the problem has none.
    pub last: Option<[Block<f32>; 3]>,
    /// l of each token.
    pub l: Option<Block<f32>>,
}

/// Runs the pass.
pub(super) fn run(call: &Call<'_>, out: &Outputs) {
    if call.by_chains() {
        return share(call.cut.slots, call.cut.chains, |slot, nth| whole(call, out, slot, nth));
    }
    call.prepare(true);
    for window in 0..call.cut.windows() {
        // SAFETY: the panels and what they become are the task's that calls.
        call.states(Form::Plain, window, false, |chain, j, range| unsafe { last(call, out, chain, j, range) });
        let first = window * call.cut.window;
        let many = call.cut.window.min(call.cut.chunks - first);
        share(call.cut.slots, call.cut.chains * many, |slot, i| {
            let (chain, j) = (call.chain(i / many), i % many);
            if first + j < chain.chunks(call.length()) {
                // SAFETY: a chunk's tokens are its task's, and so is the slot; states are only read in this phase.
                unsafe { chunk(call, out, slot, &chain, first + j, j) }
            }
        });
    }
}

/// A chain from its first chunk to its last, with one state that stays in the cache: the same operations in the same order
/// as with all chunks side by side, and so the same bits.
fn whole(call: &Call<'_>, out: &Outputs, slot: usize, nth: usize) {
    let (chain, k) = (call.chain(nth), call.p.dqk);
    let (size, _, panels) = call.form(Form::Plain);
    let mut gauge = call.initial_gauge(&chain);
    // SAFETY: a chain's tokens and states are its task's, as is the slot.
    unsafe {
        call.initial_c(&chain, Form::Plain, 0..panels, call.memory.c.write(call.c_at(&chain, 0), size));
        call.initial_n(&chain, 0, call.memory.n.write(call.n_at(&chain, 0), k));
        let chunks = chain.chunks(call.length());
        for nth in 0..chunks {
            if pool::stopped() {
                return;
            }
            gauge = call.prepare_chunk(&chain, nth, Some(gauge));
            chunk(call, out, slot, &chain, nth, 0);
            if nth + 1 < chunks || out.last.is_some() {
                call.advance(slot, &chain, Form::Plain, nth, [0, 0], 0..panels, (0, k));
            }
        }
        last(call, out, &chain, 0, 0..panels);
    }
}

/// Writes the last state of a chain, which lies in slot `j`: panels `range`, and with the first of them n and m.
///
/// # Safety
/// These must be the task's.
unsafe fn last(call: &Call<'_>, out: &Outputs, chain: &Chain, j: usize, range: std::ops::Range<usize>) {
    let Some([c, n, m]) = out.last else { return };
    let (k, v) = (call.p.dqk, call.p.dv);
    let (_, rows, _) = call.form(Form::Plain);
    let (at, len) = (range.start * rows * PANEL, range.len() * rows * PANEL);
    // SAFETY: as the caller promises.
    unsafe {
        let from = call.memory.c.read(call.c_at(chain, j) + at, len);
        from_panels(from, [k, v], Form::Plain, range.clone(), c, chain.nth * k * v);
        if range.start > 0 {
            return;
        }
        if call.p.normalize {
            n.write(chain.nth * k, k).copy_from_slice(call.memory.n.read(call.n_at(chain, j), k));
        }
        if let Some(gauge) = call.gauge {
            let chunks = chain.chunks(call.length());
            m.write(chain.nth, 1)[0] = match chunks {
                0 => call.initial_gauge(chain),
                _ => {
                    let (at, tokens) = call.flat(chain, chunks - 1);
                    gauge.read(at + tokens - 1, 1)[0]
                }
            };
        }
    }
}

/// The outputs of a chunk from the state before it, which lies in slot `j`.
///
/// # Safety
/// The chunk's tokens and the slot must be the task's, and nobody may write the state meanwhile.
unsafe fn chunk(call: &Call<'_>, out: &Outputs, slot: usize, chain: &Chain, nth: usize, j: usize) {
    let (k, v, length) = (call.p.dqk, call.p.dv, call.length());
    let (first, n) = chain.chunk(length, nth);
    let stride = n.next_multiple_of(PANEL);
    let scale = 1.0 / (k as f32).sqrt();
    let gates = call.gates(chain, nth);
    // SAFETY: as the caller promises.
    unsafe {
        let mut buffer = call.buffer(slot);
        let (q, turned, s) = (buffer.take(length * k), buffer.take(length * k), buffer.take(length * length));
        let (values, h) = (buffer.take(length * v), buffer.take(length * v));
        let (past, l) = (buffer.take(length), buffer.take(length));
        // Rows of f32 are read where they lie, and written.
        match call.k.lines(first, n, k) {
            Some((keys, row)) if row == k => transposed(keys, n, k, turned),
            _ => {
                let keys = &mut *buffer.take(length * k);
                call.k.load(first, n, k, 1.0, keys);
                transposed(keys, n, k, turned);
            }
        }
        let values = match call.v.lines(first, n, v) {
            Some((rows, row)) => (rows, Place::rows(row)),
            None => {
                call.v.load(first, n, v, 1.0, h);
                panels(h, n, v, values);
                (&*values, Place::panels(n))
            }
        };
        // With a factor s that is a power of two q may be without it: pairs have it from their weights, and what comes of the
        // state from its, to the same bits.
        let exact = k.is_power_of_two() && k.ilog2() % 2 == 0;
        let (q, q_row, scale) = match call.q.lines(first, n, k).filter(|_| exact) {
            Some((rows, row)) => (rows, row, scale),
            None => {
                call.q.load(first, n, k, scale, q);
                (&*q, k, 1.0)
            }
        };
        let direct = out.h.lines_mut(first, n, v);
        let stored = direct.is_none();
        let h = direct.unwrap_or(h);
        let c = call.memory.c.read(call.c_at(chain, j), k * v);

        gates.past(past);
        past[..n].iter_mut().for_each(|x| *x *= scale);
        let left = Left::rows(q, q_row);
        let pairs = [n, stride / PANEL, k];
        let to_pairs = (&mut *s, Place::rows(stride));
        multiply(left, (turned, Place::panels(k)), to_pairs, pairs, Start::Zero, Part::LowerOutput);
        gates::weigh(gates, scale, stride, s, l, &mut [], &[]);
        let from_state = [n, v / PANEL, k];
        let to = Place::rows(v);
        multiply(left, (c, Place::panels(k)), (h, to), from_state, Start::Zero, Part::Full);
        let among = [n, v / PANEL, n];
        let start = Start::Rows(past);
        multiply(Left::rows(s, stride), values, (h, to), among, start, Part::LowerLeft);
        if call.p.normalize {
            let (from_n, floors) = (&mut buffer.take(length)[..n], buffer.take(length));
            let state_n = call.memory.n.read(call.n_at(chain, j), k);
            dots((q, q_row), (state_n, 0), k, from_n);
            gates.floors(floors);
            for t in 0..n {
                l[t] += past[t] * from_n[t];
                floors[t] = 1.0 / denominator(l[t], floors[t], call.p.eps as f32);
            }
            rows::rescale(&mut h[..n * v], &floors[..n], v);
            if let Some(saved) = out.l {
                saved.write(call.flat(chain, nth).0, n).copy_from_slice(&l[..n]);
            }
        }
        if stored {
            out.h.store(first, n, v, 1.0, h);
        }
    }
}

/// `max(|l|, e^-m) + eps`; NaN stays.
pub(super) fn denominator(l: f32, floor: f32, eps: f32) -> f32 {
    let l = l.abs();
    if l < floor { floor + eps } else { l + eps }
}
