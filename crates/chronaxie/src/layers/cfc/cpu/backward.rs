//! The backward pass: the adjoint of a group of batch rows through a chunk of steps, and then the sums over batch and time
//! that the gradients of the parameters are.

use super::forward::Call;
use super::gemm::{Rows, outer, product};
use super::layout::{Buffers, GROUP, Group, Widths};
use super::units;
use crate::layers::cfc::net::{Map, Source};
use crate::layers::memory::Strided;
use crate::shared::Shared;

/// What the forward pass gave and kept, and the gradients that arrive.
pub(super) struct Given<'a> {
    /// `[B, T, H]`: every state, which are the outputs where there is one cell.
    pub states: &'a [f32],
    /// `[B, T, L, U]`: values and slopes; empty without a backbone.
    pub backbone: [&'a [f32]; 2],
    /// `[B, T, kept, H]`.
    pub heads: &'a [f32],
    /// `[B, T, 4, H]`, `[B, T, H]`, `[B, T, H]`; empty without an LSTM.
    pub lstm: [&'a [f32]; 3],
    pub grad_out: Strided<'a, 3>,
    pub grad_final_state: Strided<'a, 2>,
    pub grad_final_cell: Option<Strided<'a, 2>>,
}

/// What is written of the gradients, where it is wanted.
#[derive(Clone, Copy)]
pub(super) struct Gradients {
    pub x: Option<Shared<f32>>,
    pub h0: Option<Shared<f32>>,
    pub c0: Option<Shared<f32>>,
    pub elapsed: Option<Shared<f32>>,
}

/// A chunk of steps, and a group's part of the memory that its groups fill.
pub(super) struct Chunk<'a> {
    pub begin: usize,
    pub len: usize,
    /// `[rows, len, grads]`: gradients of what every map gives, and `[rows, len, operands]`: what it reads.
    pub grads: &'a mut [f32],
    pub operands: Option<&'a mut [f32]>,
    /// `[rows, state]`: the gradients of the state and of the LSTM's cell, behind the chunk and then before it.
    pub carried: [&'a mut [f32]; 2],
}

/// Takes the gradients of `g` from behind the chunk to before it. `packed` are the transposed weights.
pub(super) fn adjoint(
    call: &Call<'_>,
    packed: &[f32],
    g: Group,
    w: &Widths,
    buffers: Buffers<'_>,
    given: &Given<'_>,
    chunk: Chunk<'_>,
    to: &Gradients,
) {
    let (p, net) = (call.p, call.net);
    let (steps, d, hidden, outputs) = (p.steps, p.inputs, p.hidden(), p.outputs());
    let Chunk { begin, len, grads, mut operands, carried: [carry, carry_cell] } = chunk;
    let Buffers { given: product_of, states: [before, cell, cell_before], kept: [kept, parts, times], .. } = buffers;
    if begin + len == steps {
        for r in 0..g.rows {
            given.grad_final_state.copy([g.row + r, 0], &mut carry[r * w.state..][..hidden]);
            if let Some(from) = &given.grad_final_cell {
                from.copy([g.row + r, 0], &mut carry_cell[r * w.state..][..hidden]);
            }
        }
    }
    let lda = len * net.grads;
    let back = |map: &Map, s: usize, grads: &[f32], c: &mut [f32]| {
        let a = &grads[s * net.grads + map.grad..];
        product(a, lda, g.tall(), map.outputs, &packed[map.packed_back..], &[], c, w.given, map.inputs);
    };
    for s in (0..len).rev() {
        let t = begin + s;
        let at = |r: usize| (g.row + r) * steps + t;
        let row = |r: usize| r * len + s;
        // The state that step t starts from; the LSTM has not seen it yet.
        let state_before = |r: usize, first: usize, to: &mut [f32]| match &call.h0 {
            _ if t > 0 => to.copy_from_slice(&given.states[(at(r) - 1) * hidden + first..][..to.len()]),
            Some(h0) => h0.copy([g.row + r, first], to),
            None => to.fill(0.0),
        };
        let (last, mut time) = (hidden - outputs, [0f64; GROUP]);
        for r in 0..g.rows {
            let (out, carry) = (&mut parts[..outputs], &mut carry[r * w.state + last..][..outputs]);
            given.grad_out.copy([g.row + r, t, 0], out);
            carry.iter_mut().zip(out).for_each(|(c, o)| *c += *o);
        }
        for (l, c) in p.cells.iter().enumerate().rev() {
            let (n, first, feeds) = (c.hidden, call.first[l], p.feeds(l));
            let (heads, backbone) = net.cell(p, l).split_last().expect("a cell has heads");
            for r in 0..g.rows {
                for k in 0..p.mode.kept() {
                    let from = (at(r) * p.mode.kept() + k) * hidden + first;
                    kept[k * w.kept..][..n].copy_from_slice(&given.heads[from..][..n]);
                }
                let (g_row, dt) = (&carry[r * w.state + first..][..w.state - first], call.duration(g.row + r, t));
                units::heads_back(p.mode, g_row, n, dt, call.own(heads), kept, w.kept, parts, times);
                time[r] += times[..n].iter().map(|&x| f64::from(x)).sum::<f64>();
                let to = &mut grads[row(r) * net.grads + heads.grad..];
                for k in 0..p.mode.heads().len() + heads.columns.len() {
                    to[k * n..][..n].copy_from_slice(&parts[k * w.kept..][..n]);
                }
                if let Some(operands) = &mut operands {
                    let operands = &mut operands[row(r) * net.operands..][..net.operands];
                    let u = p.backbone_units;
                    for (i, map) in net.cell(p, l).iter().enumerate().skip(1) {
                        let from = (at(r) * p.cells.len() + l) * p.backbone_layers + i - 1;
                        operands[map.operand..][..u].copy_from_slice(&given.backbone[0][from * u..][..u]);
                    }
                    let to = &mut operands[net.cell(p, l)[0].operand..][..feeds + n];
                    if l == 0 {
                        call.x.copy([g.row + r, t, 0], &mut to[..feeds]);
                    } else {
                        to[..feeds].copy_from_slice(&given.states[at(r) * hidden + first - feeds..][..feeds]);
                    }
                    if p.mixed_memory {
                        to[feeds..].copy_from_slice(&given.lstm[2][at(r) * hidden + first..][..n]);
                    } else {
                        state_before(r, first, &mut to[feeds..]);
                    }
                }
            }
            back(heads, s, grads, product_of);
            for (i, map) in backbone.iter().enumerate().rev() {
                let u = map.outputs;
                for r in 0..g.rows {
                    let from = ((at(r) * p.cells.len() + l) * p.backbone_layers + i) * u;
                    let slopes = &given.backbone[1][from..][..u];
                    let to = &mut grads[row(r) * net.grads + map.grad..][..u];
                    for ((to, slope), g) in to.iter_mut().zip(slopes).zip(&product_of[r * w.given..]) {
                        *to = slope * g;
                    }
                }
                back(map, s, grads, product_of);
            }
            for r in 0..g.rows {
                let (from, own) = product_of[r * w.given..][..feeds + n].split_at(feeds);
                before[r * w.state + first..][..n].copy_from_slice(own);
                if l > 0 {
                    let carry = &mut carry[r * w.state + first - feeds..][..feeds];
                    carry.iter_mut().zip(from).for_each(|(c, f)| *c += f);
                } else if let Some(x) = to.x {
                    // SAFETY: a step of a row belongs to one group.
                    unsafe { x.copy(at(r) * d, from) };
                }
            }
        }
        if let Some(elapsed) = to.elapsed {
            for r in 0..g.rows {
                // SAFETY: a step of a row belongs to one group.
                unsafe { elapsed.put(at(r), time[r] as f32) };
            }
        }
        let Some(lstm) = p.mixed_memory.then(|| &net.maps[0]) else {
            for r in 0..g.rows {
                carry[r * w.state..][..hidden].copy_from_slice(&before[r * w.state..][..hidden]);
            }
            continue;
        };
        for r in 0..g.rows {
            for k in 0..4 {
                kept[k * w.kept..][..hidden].copy_from_slice(&given.lstm[0][(at(r) * 4 + k) * hidden..][..hidden]);
            }
            cell[..hidden].copy_from_slice(&given.lstm[1][at(r) * hidden..][..hidden]);
            match &call.c0 {
                _ if t > 0 => {
                    cell_before[..hidden].copy_from_slice(&given.lstm[1][(at(r) - 1) * hidden..][..hidden]);
                }
                Some(c0) => c0.copy([g.row + r, 0], &mut cell_before[..hidden]),
                None => cell_before[..hidden].fill(0.0),
            }
            let (g_row, carry_cell) = (&before[r * w.state..], &mut carry_cell[r * w.state..]);
            units::lstm_back(g_row, hidden, kept, w.kept, [cell_before, cell], parts, carry_cell);
            let to = &mut grads[row(r) * net.grads + lstm.grad..];
            for k in 0..4 {
                to[k * hidden..][..hidden].copy_from_slice(&parts[k * w.kept..][..hidden]);
            }
            if let Some(operands) = &mut operands {
                let operands = &mut operands[row(r) * net.operands + lstm.operand..][..d + hidden];
                call.x.copy([g.row + r, t, 0], &mut operands[..d]);
                state_before(r, 0, &mut operands[d..]);
            }
        }
        back(lstm, s, grads, product_of);
        for r in 0..g.rows {
            let (from, own) = product_of[r * w.given..][..d + hidden].split_at(d);
            carry[r * w.state..][..hidden].copy_from_slice(own);
            if let Some(x) = to.x {
                // SAFETY: a step of a row belongs to one group.
                let x = unsafe { x.part(at(r) * d, d) };
                x.iter_mut().zip(from).for_each(|(x, f)| *x += f);
            }
        }
    }
    if begin == 0 {
        for r in 0..g.rows {
            for (to, from) in [(to.h0, &*carry), (to.c0, &*carry_cell)] {
                if let Some(to) = to {
                    // SAFETY: a row belongs to one group.
                    unsafe { to.copy((g.row + r) * hidden, &from[r * w.state..][..hidden]) };
                }
            }
        }
    }
}

/// Outputs of a map whose parameters' gradients one task makes.
pub(super) const JOB: usize = 16;

/// Some outputs of one parameter of a map, or all parameters of it that are sums of columns.
#[derive(Debug, Clone, Copy)]
pub(super) enum Job {
    /// Outputs from `first` on of `source`, with where the gradients of its weight and bias stand among the outputs, and
    /// its mask among the inputs.
    Rows { map: usize, source: usize, first: usize, weight: usize, bias: Option<usize>, mask: Option<usize> },
    /// Parameter `column` of the map, and where its gradient stands among the outputs.
    Column { map: usize, column: usize, to: usize },
}

/// The sums of a chunk, `rows` steps of rows: added to what is there if `add`, and masked if it is the `last` of chunks.
pub(super) struct Sums<'a> {
    pub grads: Rows<'a>,
    pub operands: Rows<'a>,
    pub rows: usize,
    pub add: bool,
    pub last: bool,
}

impl Sums<'_> {
    /// The gradients of the weight and the bias of the outputs from `first` on.
    pub fn of_rows(
        &self,
        map: &Map,
        source: &Source,
        first: usize,
        mask: Option<&[f32]>,
        weight: Shared<f32>,
        bias: Option<Shared<f32>>,
    ) {
        let count = JOB.min(source.outputs - first);
        let at = map.grad + source.first_output + first;
        // SAFETY: these rows belong to one task.
        let to = unsafe { weight.part(first * source.inputs, count * source.inputs) };
        let x = Rows { first: map.operand + source.first_input, ..self.operands };
        outer(Rows { first: at, ..self.grads }, x, self.rows, count, source.inputs, to, self.add);
        if let Some(mask) = mask.filter(|_| self.last) {
            let mask = &mask[first * source.inputs..][..to.len()];
            to.iter_mut().zip(mask).for_each(|(to, m)| *to *= m);
        }
        if let Some(bias) = bias {
            // SAFETY: these elements belong to one task.
            self.columns(at, unsafe { bias.part(first, count) });
        }
    }
    /// Sums of the columns from `at` on.
    pub fn columns(&self, at: usize, to: &mut [f32]) {
        for (to, begin) in to.chunks_mut(JOB).zip((at..).step_by(JOB)) {
            let mut sums = [0f64; JOB];
            for row in 0..self.rows {
                let from = &self.grads.data[row * self.grads.stride + begin..][..to.len()];
                sums.iter_mut().zip(from).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = if self.add { *to + sum as f32 } else { sum as f32 };
            }
        }
    }
}
