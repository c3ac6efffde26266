//! The forward pass of a group of batch rows, all steps of it.

use super::gemm::{padded, product};
use super::layout::{Buffers, Group, Widths};
use super::units;
use crate::layers::cfc::net::{Map, Net};
use crate::layers::cfc::spec::{Cfc, MAX_CELLS, Mode};
use crate::layers::memory::Strided;
use crate::shared::Shared;

/// What every group of a call reads.
pub(super) struct Call<'a> {
    pub p: &'a Cfc,
    pub net: &'a Net,
    /// Packed weights of every map, and behind each padded bias w_tau and A, padded.
    pub packed: &'a [f32],
    pub bias: &'a [f32],
    /// `[B, T, D]`.
    pub x: Strided<'a, 3>,
    /// `[B, H]`: the initial state, and the LSTM's.
    pub h0: Option<Strided<'a, 2>>,
    pub c0: Option<Strided<'a, 2>>,
    /// `[B, T]`.
    pub elapsed: Option<Strided<'a, 2>>,
    /// The first neuron of each cell.
    pub first: [usize; MAX_CELLS],
}

/// What the forward pass writes. Those below `final_cell` are kept for the backward pass, if at all.
#[derive(Clone, Copy)]
pub(super) struct Outputs {
    /// `[B, T, M]`.
    pub out: Shared<f32>,
    /// `[B, H]`.
    pub final_state: Shared<f32>,
    pub final_cell: Option<Shared<f32>>,
    /// `[B, T, H]`.
    pub states: Option<Shared<f32>>,
    /// `[B, T, L, U]`.
    pub backbone: Option<[Shared<f32>; 2]>,
    /// `[B, T, kept, H]`.
    pub heads: Option<Shared<f32>>,
    /// `[B, T, 4, H]`, `[B, T, H]`, `[B, T, H]`.
    pub lstm: Option<[Shared<f32>; 3]>,
}

impl Call<'_> {
    /// The time that step `t` of row `b` takes.
    pub(super) fn duration(&self, b: usize, t: usize) -> f32 {
        self.elapsed.as_ref().map_or(self.p.dt as f32, |e| e.at([b, t]))
    }
    /// w_tau and A of the heads `map`; nothing where the mode has none.
    pub(super) fn own(&self, map: &Map) -> [&[f32]; 2] {
        let from = map.bias + padded(map.outputs);
        let part = |k: usize| &self.bias[from + k * padded(map.column_len)..][..padded(map.column_len)];
        if self.p.mode == Mode::Pure { [part(0), part(1)] } else { [&[], &[]] }
    }
    fn multiply(&self, map: &Map, a: &[f32], lda: usize, rows: usize, c: &mut [f32], ldc: usize) {
        let (packed, bias) = (&self.packed[map.packed..], &self.bias[map.bias..]);
        product(a, lda, rows, map.inputs, packed, bias, c, ldc, map.outputs);
    }
}

/// Runs all steps of `g`.
pub(super) fn forward(call: &Call<'_>, g: Group, w: &Widths, buffers: Buffers<'_>, o: &Outputs) {
    let p = call.p;
    let (steps, d, hidden, outputs) = (p.steps, p.inputs, p.hidden(), p.outputs());
    let Buffers { read: [mut read, mut other], given, states: [mut state, mut new, cell], kept: [kept, slope, _] } =
        buffers;
    // Rows that are padding hold numbers, too: what an operation on other bits would cost is not ours to say.
    for buffer in [&mut *read, &mut *other, &mut *state, &mut *new, &mut *cell] {
        buffer.fill(0.0);
    }
    for r in 0..g.rows {
        for (from, to) in [(&call.h0, &mut *state), (&call.c0, &mut *cell)] {
            if let Some(from) = from {
                from.copy([g.row + r, 0], &mut to[r * w.state..][..hidden]);
            }
        }
    }
    for t in 0..steps {
        let at = |r: usize| (g.row + r) * steps + t;
        if let Some(lstm) = p.mixed_memory.then(|| &call.net.maps[0]) {
            for r in 0..g.rows {
                let read = &mut read[r * w.read..][..d + hidden];
                call.x.copy([g.row + r, t, 0], &mut read[..d]);
                read[d..].copy_from_slice(&state[r * w.state..][..hidden]);
            }
            call.multiply(lstm, read, w.read, g.tall(), given, w.given);
            for r in 0..g.rows {
                let (cell, state) = (&mut cell[r * w.state..], &mut state[r * w.state..]);
                units::lstm(&given[r * w.given..], hidden, kept, w.kept, cell, state);
                if let Some([gates, cells, states]) = o.lstm {
                    // SAFETY: a step of a row belongs to one group.
                    unsafe {
                        for k in 0..4 {
                            gates.copy((at(r) * 4 + k) * hidden, &kept[k * w.kept..][..hidden]);
                        }
                        cells.copy(at(r) * hidden, &cell[..hidden]);
                        states.copy(at(r) * hidden, &state[..hidden]);
                    }
                }
            }
        }
        for (l, c) in p.cells.iter().enumerate() {
            let (n, first, feeds) = (c.hidden, call.first[l], p.feeds(l));
            for r in 0..g.rows {
                let read = &mut read[r * w.read..][..feeds + n];
                if l == 0 {
                    call.x.copy([g.row + r, t, 0], &mut read[..feeds]);
                } else {
                    read[..feeds].copy_from_slice(&new[r * w.state + first - feeds..][..feeds]);
                }
                read[feeds..].copy_from_slice(&state[r * w.state + first..][..n]);
            }
            let (heads, backbone) = call.net.cell(p, l).split_last().expect("a cell has heads");
            for (i, map) in backbone.iter().enumerate() {
                call.multiply(map, read, w.read, g.tall(), given, w.given);
                for r in 0..g.rows {
                    let (z, y) = (&given[r * w.given..], &mut other[r * w.read..]);
                    units::activate(p.activation, z, y, slope, map.outputs);
                    if let Some([values, slopes]) = o.backbone {
                        let to = (at(r) * p.cells.len() * p.backbone_layers + l * p.backbone_layers + i) * map.outputs;
                        // SAFETY: a step of a row belongs to one group.
                        unsafe {
                            values.copy(to, &y[..map.outputs]);
                            slopes.copy(to, &slope[..map.outputs]);
                        }
                    }
                }
                std::mem::swap(&mut read, &mut other);
            }
            call.multiply(heads, read, w.read, g.tall(), given, w.given);
            for r in 0..g.rows {
                let dt = call.duration(g.row + r, t);
                let new = &mut new[r * w.state + first..][..w.state - first];
                units::heads(p.mode, &given[r * w.given..], n, dt, call.own(heads), kept, w.kept, new);
                if let Some(to) = o.heads {
                    for k in 0..p.mode.kept() {
                        let to_k = (at(r) * p.mode.kept() + k) * hidden + first;
                        // SAFETY: a step of a row belongs to one group.
                        unsafe { to.copy(to_k, &kept[k * w.kept..][..n]) };
                    }
                }
            }
        }
        std::mem::swap(&mut state, &mut new);
        for r in 0..g.rows {
            let row = &state[r * w.state..][..hidden];
            // SAFETY: a step of a row belongs to one group.
            unsafe {
                o.out.copy(at(r) * outputs, &row[hidden - outputs..]);
                if let Some(states) = o.states {
                    states.copy(at(r) * hidden, row);
                }
            }
        }
    }
    for r in 0..g.rows {
        // SAFETY: a row belongs to one group.
        unsafe {
            o.final_state.copy((g.row + r) * hidden, &state[r * w.state..][..hidden]);
            if let Some(to) = o.final_cell {
                to.copy((g.row + r) * hidden, &cell[r * w.state..][..hidden]);
            }
        }
    }
}
