//! The forward pass of one group of rows.

use super::fold::{Neuron, Side};
use super::gates::sums;
use super::layout::{Buffers, Group, kept};
use super::lstm::Lstm;
use super::words;
use crate::layers::ltc::spec::{Ltc, NORM_EPSILON};
use crate::layers::memory::Strided;
use crate::pool;
use crate::shared::Shared;
use crate::simd_math::{Lanes, mul_add};

/// What every group of a call reads.
pub(super) struct Call<'a> {
    pub p: &'a Ltc,
    pub recurrent: Side<'a>,
    pub sensory: Side<'a>,
    /// `[H]`, see [`Neuron`].
    pub neurons: &'a [[f32; 4]],
    /// `[B, T, D]`.
    pub x: Strided<'a, 3>,
    /// `[B, H]`.
    pub h0: Option<Strided<'a, 2>>,
    /// `[B, T]`.
    pub elapsed: Option<Strided<'a, 2>>,
    /// `[D]`: LayerNorm's weight and bias.
    pub norm: Option<[&'a [f32]; 2]>,
    /// `[D]`.
    pub input_w: Option<&'a [f32]>,
    pub input_b: Option<&'a [f32]>,
    /// `[M]`.
    pub output_w: Option<&'a [f32]>,
    pub output_b: Option<&'a [f32]>,
    /// With mixed memory.
    pub lstm: Option<Lstm<'a>>,
}

/// What the forward pass writes.
#[derive(Clone, Copy)]
pub(super) struct Outputs {
    /// `[B, T, M]`.
    pub out: Shared<f32>,
    /// `[B, H]`.
    pub final_state: Shared<f32>,
    /// `[B, T, H]`.
    pub states: Option<Shared<f32>>,
    /// `[B, T, K, H]` states before each unfold, and denominators.
    pub unfolds: Option<[Shared<f32>; 2]>,
    /// Or a word of each.
    pub words: Option<Shared<i32>>,
    /// `[B, H]`, with mixed memory.
    pub final_cell: Option<Shared<f32>>,
    /// `[B, T, 4, H]` gates, `[B, T, H]` cells and `[B, T, H]` states of the LSTM.
    pub lstm: Option<[Shared<f32>; 3]>,
}

impl Group {
    /// The row of a lane; lanes behind the last row repeat it.
    #[inline(always)]
    pub(super) fn row_of(&self, lane: usize) -> usize {
        self.row + lane.min(self.rows - 1)
    }
}

impl Call<'_> {
    /// K / dt of each lane, and dt.
    #[inline(always)]
    pub(super) fn rate<const R: usize>(&self, g: Group, t: usize) -> (Lanes<R>, Lanes<R>) {
        let mut duration = Lanes::splat(self.p.dt as f32);
        if let Some(elapsed) = &self.elapsed {
            for l in 0..R {
                // SAFETY: rows of a group are below B, and t below T.
                duration.0[l] = unsafe { elapsed.at_unchecked([g.row_of(l), t]) };
            }
        }
        (Lanes::splat(self.p.unfolds as f32) / duration, duration)
    }

    /// Inputs of step `t`, transposed to `y`, `[D, R]`: normalised (also to `normal`) and then mapped to `u`.
    ///
    /// Returns LayerNorm's mean and 1 / sqrt(variance + epsilon).
    #[inline(always)]
    pub(super) fn load_inputs<const FMA: bool, const R: usize>(
        &self,
        g: Group,
        t: usize,
        y: &mut [f32],
        normal: &mut [f32],
        u: &mut [f32],
    ) -> [[f64; R]; 2] {
        let inputs = self.p.inputs;
        let (y, normal) = (&mut y.as_chunks_mut::<R>().0[..inputs], &mut normal.as_chunks_mut::<R>().0[..inputs]);
        let (u, last) = u.as_chunks_mut::<R>().0[..=inputs].split_at_mut(inputs);
        last[0] = [0.0; R];
        let rows: [usize; R] = std::array::from_fn(|l| g.row_of(l));
        for (d, y) in y.iter_mut().enumerate() {
            for l in 0..R {
                // SAFETY: rows of a group are below B, t below T and d below D.
                y[l] = unsafe { self.x.at_unchecked([rows[l], t, d]) };
            }
        }
        let (mut mean, mut scale) = ([0.0; R], [0.0; R]);
        if let Some([weight, bias]) = self.norm {
            let mut variance = [0.0; R];
            for y in y.iter() {
                for l in 0..R {
                    mean[l] += f64::from(y[l]);
                }
            }
            mean = mean.map(|m| m / inputs as f64);
            for y in y.iter() {
                for l in 0..R {
                    let far = f64::from(y[l]) - mean[l];
                    variance[l] += far * far;
                }
            }
            scale = variance.map(|v| 1.0 / (v / inputs as f64 + NORM_EPSILON).sqrt());
            for (d, (y, normal)) in y.iter_mut().zip(normal.iter_mut()).enumerate() {
                for l in 0..R {
                    normal[l] = ((f64::from(y[l]) - mean[l]) * scale[l]) as f32;
                    y[l] = mul_add::<FMA>(normal[l], weight[d], bias[d]);
                }
            }
        }
        for (d, (u, y)) in u.iter_mut().zip(y.iter()).enumerate() {
            let (w, b) = (self.input_w.map_or(1.0, |w| w[d]), self.input_b.map_or(0.0, |b| b[d]));
            for l in 0..R {
                u[l] = mul_add::<FMA>(y[l], w, b);
            }
        }
        [mean, scale]
    }

    /// Inputs of step `t` as they were given, transposed to `[D, R]`.
    #[inline(always)]
    pub(super) fn load_x<const R: usize>(&self, g: Group, t: usize, to: &mut [f32]) {
        for (d, to) in to.as_chunks_mut::<R>().0[..self.p.inputs].iter_mut().enumerate() {
            for (l, to) in to.iter_mut().enumerate() {
                // SAFETY: rows of a group are below B, t below T and d below D.
                *to = unsafe { self.x.at_unchecked([g.row_of(l), t, d]) };
            }
        }
    }

    /// The state before the first step, to `v`, `[H + 1, R]`, with its row of zeros.
    #[inline(always)]
    pub(super) fn initial_state<const R: usize>(&self, g: Group, v: &mut [f32]) {
        let hidden = self.p.hidden;
        let v = &mut v.as_chunks_mut::<R>().0[..=hidden];
        v.fill([0.0; R]);
        if let Some(h0) = &self.h0 {
            for (j, v) in v[..hidden].iter_mut().enumerate() {
                for (l, v) in v.iter_mut().enumerate() {
                    // SAFETY: rows of a group are below B, and j below H.
                    *v = unsafe { h0.at_unchecked([g.row_of(l), j]) };
                }
            }
        }
    }

    /// The state after an unfold, to `next`, from the one before, `v`, and its sums, `[H, N]`; the denominators replace
    /// the first R lanes of `den`.
    #[inline(always)]
    pub(super) fn finish_unfold<const FMA: bool, const R: usize, const N: usize>(
        &self,
        rate: Lanes<R>,
        num: &[f32],
        den: &mut [f32],
        v: &[f32],
        next: &mut [f32],
    ) {
        let hidden = self.p.hidden;
        let (v, next) = (&v.as_chunks::<R>().0[..hidden], &mut next.as_chunks_mut::<R>().0[..=hidden]);
        let (num, den) = (&num.as_chunks::<R>().0[..hidden * N / R], &mut den.as_chunks_mut::<R>().0[..hidden * N / R]);
        next[hidden] = [0.0; R];
        for j in 0..hidden {
            let neuron = Neuron::from(self.neurons[j]);
            let first = j * (N / R);
            let (mut n, mut d) = (Lanes(num[first]), Lanes(den[first]));
            for beside in first + 1..first + N / R {
                (n, d) = (n + Lanes(num[beside]), d + Lanes(den[beside]));
            }
            let c = Lanes::splat(neuron.cm) * rate;
            d = c + (d + Lanes::splat(neuron.leak));
            next[j] = (c.mul_add::<FMA>(Lanes(v[j]), n + Lanes::splat(neuron.pull)) / d).0;
            den[first] = d.0;
        }
    }
}

/// Runs all steps of one group.
#[inline(always)]
fn body<const FMA: bool, const R: usize, const N: usize>(
    call: &Call<'_>,
    g: Group,
    buffers: Buffers<'_>,
    outputs: Outputs,
) {
    let (steps, hidden, outs, unfolds) = (call.p.steps, call.p.hidden, call.p.outputs, call.p.unfolds);
    let Buffers { u, y, normal, sensory, unfold, v, lstm_x, lstm_h, lstm_z, lstm_c, .. } = buffers;
    let (mut now, mut next) = v.split_at_mut((hidden + 1) * R);
    let (sensory_num, sensory_den) = sensory[..2 * hidden * N].split_at_mut(hidden * N);
    let (num, den) = unfold[..2 * hidden * N].split_at_mut(hidden * N);
    call.initial_state::<R>(g, now);
    if let Some(lstm) = &call.lstm {
        lstm.start::<R>(g, hidden, lstm_c);
    }
    for t in 0..steps {
        if pool::stopped() {
            return;
        }
        if let Some(lstm) = &call.lstm {
            let (x, h) = (&mut lstm_x[..call.p.inputs * R], &mut lstm_h[..hidden * R]);
            call.load_x::<R>(g, t, x);
            h.copy_from_slice(&now[..hidden * R]);
            lstm.step::<FMA, R>([x, h], lstm_c, lstm_z, now);
            if let Some([gates, cells, states]) = outputs.lstm {
                write_rows(lstm_z, R, g, 4 * hidden, gates, |row| (row * steps + t) * 4 * hidden);
                write_rows(lstm_c, R, g, hidden, cells, |row| (row * steps + t) * hidden);
                write_rows(now, R, g, hidden, states, |row| (row * steps + t) * hidden);
            }
        }
        call.load_inputs::<FMA, R>(g, t, y, normal, u);
        let (rate, _) = call.rate::<R>(g, t);
        sensory_num.fill(0.0);
        sensory_den.fill(0.0);
        sums::<FMA, R, N, false>(&call.sensory, u, sensory_num, sensory_den, &mut []);
        for k in 0..unfolds {
            num.copy_from_slice(sensory_num);
            den.copy_from_slice(sensory_den);
            sums::<FMA, R, N, false>(&call.recurrent, now, num, den, &mut []);
            call.finish_unfold::<FMA, R, N>(rate, num, den, now, next);
            if let Some([states, dens]) = outputs.unfolds {
                let at = |row: usize| ((row * steps + t) * unfolds + k) * hidden;
                write_rows(now, R, g, hidden, states, at);
                write_rows(den, N, g, hidden, dens, at);
            }
            if let Some(to) = outputs.words {
                words::write::<R>(call, g, (t, k), now, (den, N), to);
            }
            std::mem::swap(&mut now, &mut next);
        }
        let at = |row: usize| (row * steps + t) * hidden;
        if let Some(states) = outputs.states {
            write_rows(now, R, g, hidden, states, at);
        }
        for l in 0..g.rows {
            // SAFETY: elements of this group's rows.
            let out = unsafe { outputs.out.part(((g.row + l) * steps + t) * outs, outs) };
            for (j, out) in out.iter_mut().enumerate() {
                let (w, b) = (call.output_w.map_or(1.0, |w| w[j]), call.output_b.map_or(0.0, |b| b[j]));
                *out = mul_add::<FMA>(now[j * R + l], w, b);
            }
        }
    }
    write_rows(now, R, g, hidden, outputs.final_state, |row| row * hidden);
    if let Some(final_cell) = outputs.final_cell {
        write_rows(lstm_c, R, g, hidden, final_cell, |row| row * hidden);
    }
}

/// Writes the first lanes of `v`, `[H, stride]`, to each row's H elements, which start where `at` says.
#[inline(always)]
fn write_rows(v: &[f32], stride: usize, g: Group, hidden: usize, to: Shared<f32>, at: impl Fn(usize) -> usize) {
    for l in 0..g.rows {
        // SAFETY: elements of this group's rows.
        let row = unsafe { to.part(at(g.row + l), hidden) };
        for (j, x) in row.iter_mut().enumerate() {
            *x = v[j * stride + l];
        }
    }
}

crate::levels!(fn forward8(call: &Call<'_>, g: Group, b: Buffers<'_>, o: Outputs) = body, 8, [8, 8, 16]);
crate::levels!(fn forward4(call: &Call<'_>, g: Group, b: Buffers<'_>, o: Outputs) = body, 4, [8, 8, 8]);

/// Runs all steps of one group.
pub(super) fn forward(call: &Call<'_>, g: Group, buffers: Buffers<'_>, outputs: Outputs) {
    debug_assert_eq!(outputs.unfolds.is_some() || outputs.words.is_some(), kept(call.p));
    match g.lanes {
        8 => forward8(call, g, buffers, outputs),
        _ => forward4(call, g, buffers, outputs),
    }
}
