//! The forward pass: states from chunk to chunk, then all chunks of a window side by side.

use super::call::{Call, Form, from_panels};
use super::gates;
use super::gemm::{Left, PANEL, Part, Place, Start, dot, multiply};
use super::layout::{Block, share};
use super::pack::{Tokens, panels, transposed};

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
    call.prepare(true);
    let (k, v) = (call.p.dqk, call.p.dv);
    for window in 0..call.cut.windows() {
        call.states(Form::Plain, window, false, |chain, j, range| {
            let Some([c, n, m]) = out.last else { return };
            let (_, rows, _) = call.form(Form::Plain);
            let (at, len) = (range.start * rows * PANEL, range.len() * rows * PANEL);
            // SAFETY: the panels and what they become are this task's, as is the rest for the first of a chain's tasks.
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
        });
        let first = window * call.cut.window;
        let many = call.cut.window.min(call.cut.chunks - first);
        share(call.cut.slots, call.cut.chains * many, |slot, i| chunk(call, out, slot, i / many, first, i % many));
    }
}

/// The outputs of a chunk from the state before it, which lies in slot `j`.
fn chunk(call: &Call<'_>, out: &Outputs, slot: usize, chain: usize, first: usize, j: usize) {
    let (k, v, length) = (call.p.dqk, call.p.dv, call.length());
    let (chain, nth) = (call.chain(chain), first + j);
    if nth >= chain.chunks(length) {
        return;
    }
    let (first, n) = chain.chunk(length, nth);
    let stride = n.next_multiple_of(PANEL);
    let gates = call.gates(&chain, nth);
    // SAFETY: a chunk's tokens are its task's, and so is the slot; states are only read in this phase.
    unsafe {
        let mut buffer = call.buffer(slot);
        let (q, turned, s) = (buffer.take(length * k), buffer.take(length * k), buffer.take(length * length));
        let (values, h) = (buffer.take(length * v), buffer.take(length * v));
        let (past, l) = (buffer.take(length), buffer.take(length));
        // Rows of f32 are read where they lie.
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
        call.q.load(first, n, k, 1.0 / (k as f32).sqrt(), q);
        let c = call.memory.c.read(call.c_at(&chain, j), k * v);
        let state_n = call.memory.n.read(call.n_at(&chain, j), k);

        gates.past(past);
        let lower = Part::LowerOutput;
        let pairs = [n, stride / PANEL, k];
        multiply(Left::rows(q, k), (turned, Place::panels(k)), (s, Place::rows(stride)), pairs, Start::Zero, lower);
        gates::weigh(gates, stride, s, l, &mut [], &[]);
        let from_state = [n, v / PANEL, k];
        let to = Place::rows(v);
        multiply(Left::rows(q, k), (c, Place::panels(k)), (h, to), from_state, Start::Zero, Part::Full);
        let among = [n, v / PANEL, n];
        let start = Start::Rows(past);
        multiply(Left::rows(s, stride), values, (h, to), among, start, Part::LowerLeft);
        if call.p.normalize {
            for t in 0..n {
                l[t] += past[t] * dot(&q[t * k..(t + 1) * k], state_n);
                let floor = (-gates.gauge(t)).exp() as f32;
                let denominator = denominator(l[t], floor, call.p.eps as f32);
                let factor = 1.0 / denominator;
                h[t * v..(t + 1) * v].iter_mut().for_each(|x| *x *= factor);
            }
            if let Some(saved) = out.l {
                saved.write(call.flat(&chain, nth).0, n).copy_from_slice(&l[..n]);
            }
        }
        out.h.store(first, n, v, 1.0, h);
    }
}

/// `max(|l|, e^-m) + eps`; NaN stays.
pub(super) fn denominator(l: f32, floor: f32, eps: f32) -> f32 {
    let l = l.abs();
    if l < floor { floor + eps } else { l + eps }
}
