//! The backward pass of one group of rows.
//!
//! A step is gone through backwards in four moves: the states and denominators of its unfolds are rebuilt (or read), the
//! adjoint runs from the last unfold to the first, the recurrent synapses sum over the unfolds, and the inputs take their
//! gradient. The sensory synapses sum over [`BLOCK`](super::layout::BLOCK) steps at once.

use super::apart::{adjoint, parameter_sums, sums};
use super::fold::Neuron;
use super::forward::Call;
use super::gates::{Times, lane_sum, source};
use super::layout::{Buffers, Group, Sizes, Sums, kept};
use super::lstm::{self, Kept};
use super::words;
use crate::layers::ltc::spec::Mapping;
use crate::layers::memory::Strided;
use crate::pool;
use crate::shared::Shared;
use crate::simd_math::{Lanes, mul_add};

/// What the backward pass reads beside the [`Call`].
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    /// `[B, T, H]`: the states after each step.
    pub states: Strided<'a, 3>,
    /// `[B, T, K, H]`: states before each unfold, and denominators.
    pub unfolds: Option<[Strided<'a, 4>; 2]>,
    /// Or a word of each.
    pub words: Option<&'a [i32]>,
    /// `[B, T, M]`.
    pub grad_out: Strided<'a, 3>,
    /// `[B, H]`.
    pub grad_final_state: Strided<'a, 2>,
    /// With mixed memory: the gradient of the final cell `[B, H]`, and what the LSTM kept.
    pub lstm: Option<(Strided<'a, 2>, Kept<'a>)>,
}

/// What a group writes itself; gradients of parameters are closed from all tasks' sums.
#[derive(Clone, Copy)]
pub(super) struct Gradients {
    /// `[B, T, D]`.
    pub x: Option<Shared<f32>>,
    /// `[B, H]`.
    pub h0: Option<Shared<f32>>,
    pub c0: Option<Shared<f32>>,
    /// `[B, T]`.
    pub elapsed: Option<Shared<f32>>,
    /// Whether the gradients of parameters are wanted.
    pub parameters: bool,
}

impl Call<'_> {
    /// Whether the gradient of the mapped inputs is of use to anyone.
    fn wants_inputs(&self, grads: &Gradients) -> bool {
        let trained = self.norm.is_some() || self.p.input_mapping != Mapping::None;
        grads.x.is_some() || (grads.parameters && trained)
    }
}

/// Runs all steps of one group backwards.
#[inline(always)]
fn body<const FMA: bool, const R: usize, const N: usize>(
    call: &Call<'_>,
    g: Group,
    sizes: &Sizes,
    b: &mut Buffers<'_>,
    total: &mut Sums<'_>,
    given: &Given<'_>,
    grads: Gradients,
) {
    let (steps, inputs, hidden, unfolds) = (call.p.steps, call.p.inputs, call.p.hidden, call.p.unfolds);
    let (state, input, cells) = ((hidden + 1) * R, (inputs + 1) * R, hidden * R);
    let want_inputs = call.wants_inputs(&grads);
    // With kept unfolds nothing is rebuilt, and the sensory gates are first met by the gradient of the inputs.
    let stored = kept(call.p);
    let from = |keep: bool| match (keep, stored) {
        (true, false) => source::READ,
        (true, true) => source::KEEP,
        (false, _) => source::EVALUATE,
    };
    let read_sensory = sizes.keep_sensory && (!stored || want_inputs);
    let (kept, sensory_kept) = (call.recurrent.packs.len() * 2 * R, call.sensory.packs.len() * 2 * R);
    for j in 0..hidden {
        for l in 0..R {
            // Lanes behind the last row have no gradient.
            b.a[j * R + l] = match l < g.rows {
                // SAFETY: rows of a group are below B, and j below H.
                true => unsafe { given.grad_final_state.at_unchecked([g.row + l, j]) },
                false => 0.0,
            };
        }
    }
    if let Some((grad_final_cell, _)) = &given.lstm {
        for j in 0..hidden {
            for l in 0..R {
                b.lstm_c[j * R + l] = if l < g.rows { grad_final_cell.at([g.row + l, j]) } else { 0.0 };
            }
        }
    }
    let blocks = steps.div_ceil(sizes.block.max(1));
    for block in (0..blocks).rev() {
        if pool::stopped() {
            return;
        }
        let first = block * sizes.block;
        let count = sizes.block.min(steps - first);
        for at in (0..count).rev() {
            let t = first + at;
            let u = &mut b.u[at * input..(at + 1) * input];
            let moments = call.load_inputs::<FMA, R>(g, t, b.y, b.normal, u);
            let (rate, duration) = call.rate::<R>(g, t);
            let sensory_gates = if sizes.keep_sensory {
                &mut b.sensory_gates[at * sensory_kept..(at + 1) * sensory_kept]
            } else {
                &mut []
            };

            if let Some(unfolds) = &given.unfolds {
                read_unfolds::<R>(call, g, t, given, unfolds, b.v, b.inverse);
            } else if let Some(kept) = given.words {
                words::read::<R>(call, g, t, (given, kept), b.v, b.inverse);
            } else {
                match &given.lstm {
                    None => previous_state::<R>(call, g, t, given, b.v),
                    // The unfolds start from what the LSTM made of the state.
                    Some((_, kept)) => state_of::<R>(g, t, hidden, &kept.states, b.v),
                }
                b.sensory[..2 * hidden * N].fill(0.0);
                let (num, den) = b.sensory[..2 * hidden * N].split_at_mut(hidden * N);
                sums::<R>(sizes.keep_sensory, &call.sensory, u, [num, den], sensory_gates);
                for k in 0..unfolds {
                    let (now, next) = b.v[k * state..(k + 2) * state].split_at_mut(state);
                    b.unfold[..2 * hidden * N].copy_from_slice(&b.sensory[..2 * hidden * N]);
                    let (num, den) = b.unfold[..2 * hidden * N].split_at_mut(hidden * N);
                    let gates = if sizes.keep_recurrent { &mut b.gates[k * kept..(k + 1) * kept] } else { &mut [] };
                    sums::<R>(sizes.keep_recurrent, &call.recurrent, now, [&mut *num, &mut *den], gates);
                    call.finish_unfold::<FMA, R, N>(rate, num, den, now, next);
                    let inverse = b.inverse[k * cells..(k + 1) * cells].as_chunks_mut::<R>().0;
                    for (inverse, den) in inverse.iter_mut().zip(den.as_chunks::<N>().0) {
                        *inverse = std::array::from_fn(|l| 1.0 / den[l]);
                    }
                }
            }

            let last = &b.v[unfolds * state..(unfolds + 1) * state];
            add_grad_out::<R>(call, g, t, given, last, b.a, grads.parameters.then_some(&mut *total.output));

            let (alpha_sum, beta_sum) =
                (&mut b.alpha_sum[at * cells..(at + 1) * cells], &mut b.beta_sum[at * cells..(at + 1) * cells]);
            alpha_sum.fill(0.0);
            beta_sum.fill(0.0);
            b.cell[..2 * cells].fill(0.0);
            let (leak_sum, cm_sum) = b.cell[..2 * cells].split_at_mut(cells);
            let mut duration_sum = [0.0f64; R];
            for k in (0..unfolds).rev() {
                let (v, after) = b.v[k * state..(k + 2) * state].split_at(state);
                let (alpha, beta) = (&mut b.alpha[k * cells..(k + 1) * cells], &mut b.beta[k * cells..(k + 1) * cells]);
                let inverse = &b.inverse[k * cells..(k + 1) * cells];
                let moved = neurons_adjoint::<FMA, R>(
                    call,
                    rate,
                    [v, after, inverse],
                    b.a,
                    [alpha, beta],
                    [&mut *alpha_sum, beta_sum, leak_sum, cm_sum],
                );
                for l in 0..R {
                    duration_sum[l] += f64::from(moved.0[l]);
                }
                let pulled = &mut b.pulled[..state];
                pulled.fill(0.0);
                let gates = if sizes.keep_recurrent { &mut b.gates[k * kept..(k + 1) * kept] } else { &mut [] };
                adjoint::<R>(
                    from(sizes.keep_recurrent),
                    &call.recurrent,
                    v,
                    [&*alpha, &*beta],
                    gates,
                    b.products,
                    pulled,
                );
                for (a, pulled) in b.a.iter_mut().zip(&pulled[..cells]) {
                    *a = mul_add::<FMA>(*pulled, -std::f32::consts::LN_2, *a);
                }
            }

            if let Some(elapsed) = grads.elapsed {
                for (l, sum) in duration_sum.into_iter().enumerate().take(g.rows) {
                    let slope = -f64::from(rate.0[l]) / f64::from(duration.0[l]);
                    // SAFETY: an element of this group's rows.
                    unsafe { elapsed.put((g.row + l) * steps + t, (sum * slope) as f32) };
                }
            }
            if grads.parameters {
                for (j, total) in total.neurons.iter_mut().enumerate() {
                    let row = |from: &[f32]| lanes::<R>(from, j);
                    total[0] += f64::from(lane_sum(row(leak_sum)));
                    total[1] += f64::from(lane_sum(row(alpha_sum)));
                    total[2] += f64::from(lane_sum(row(cm_sum) * rate));
                }
                let times = Times { count: unfolds, v: b.v, alpha: b.alpha, beta: b.beta, gates: b.gates };
                parameter_sums::<R>(sizes.keep_recurrent, &call.recurrent, &times, b.partial, total.recurrent);
            }
            if want_inputs {
                let du = &mut b.du[..input];
                du.fill(0.0);
                let of = [&*alpha_sum, &*beta_sum];
                adjoint::<R>(from(sizes.keep_sensory), &call.sensory, u, of, sensory_gates, b.products, du);
                input_gradient::<FMA, R>(call, g, t, [b.y, b.normal], moments, du, total, grads);
            }
            if let (Some(lstm), Some((_, kept))) = (&call.lstm, &given.lstm) {
                let [x, h, dz] = [inputs, hidden, 4 * hidden].map(|n| at * n * R..(at + 1) * n * R);
                call.load_x::<R>(g, t, &mut b.lstm_x[x]);
                // `v` has served.
                previous_state::<R>(call, g, t, given, b.v);
                b.lstm_h[h].copy_from_slice(&b.v[..cells]);
                let dx = &mut b.du[..if grads.x.is_some() { inputs * R } else { 0 }];
                lstm.back::<FMA, R>(g, t, kept, b.a, b.lstm_c, &mut b.lstm_z[dz], dx);
                if let Some(x) = grads.x {
                    for l in 0..g.rows {
                        // SAFETY: elements of this group's rows.
                        let row = unsafe { x.part(((g.row + l) * steps + t) * inputs, inputs) };
                        for (d, x) in row.iter_mut().enumerate() {
                            *x += dx[d * R + l];
                        }
                    }
                }
            }
        }
        if grads.parameters && call.lstm.is_some() {
            lstm::parameter_sums::<FMA, R>([inputs, hidden, count], [b.lstm_z, b.lstm_x, b.lstm_h], total.lstm);
        }
        if grads.parameters {
            let times = Times { count, v: b.u, alpha: b.alpha_sum, beta: b.beta_sum, gates: b.sensory_gates };
            parameter_sums::<R>(read_sensory, &call.sensory, &times, b.partial, total.sensory);
        }
    }
    for (to, from) in [(grads.h0, &*b.a), (grads.c0, &*b.lstm_c)] {
        let Some(to) = to else { continue };
        for l in 0..g.rows {
            // SAFETY: elements of this group's rows.
            let row = unsafe { to.part((g.row + l) * hidden, hidden) };
            for (j, x) in row.iter_mut().enumerate() {
                *x = from[j * R + l];
            }
        }
    }
}

/// One unfold's adjoint without its synapses: from the gradient of the state after it, `a`, those of its numerators and
/// denominators, alpha and beta, and that of the state before it through the membrane, to `a`.
///
/// Adds to the sums of alpha, beta, `alpha (vleak - v')` and dc; returns the sum of `dc cm`. All are `[H, R]`.
#[inline(always)]
fn neurons_adjoint<const FMA: bool, const R: usize>(
    call: &Call<'_>,
    rate: Lanes<R>,
    [before, after, inverse]: [&[f32]; 3],
    a: &mut [f32],
    [alpha, beta]: [&mut [f32]; 2],
    sums: [&mut [f32]; 4],
) -> Lanes<R> {
    let hidden = call.p.hidden;
    let [before, after, inverse] = [before, after, inverse].map(|x| &x.as_chunks::<R>().0[..hidden]);
    let [a, alpha, beta] = [a, alpha, beta].map(|x| &mut x.as_chunks_mut::<R>().0[..hidden]);
    let [alpha_sum, beta_sum, leak_sum, cm_sum] = sums.map(|x| &mut x.as_chunks_mut::<R>().0[..hidden]);
    let mut moved = Lanes::splat(0.0);
    for j in 0..hidden {
        let neuron = Neuron::from(call.neurons[j]);
        let (before, after) = (Lanes(before[j]), Lanes(after[j]));
        let al = Lanes(a[j]) * Lanes(inverse[j]);
        let be = al.map(|x| -x) * after;
        (alpha[j], beta[j]) = (al.0, be.0);
        alpha_sum[j] = (Lanes(alpha_sum[j]) + al).0;
        beta_sum[j] = (Lanes(beta_sum[j]) + be).0;
        leak_sum[j] = al.mul_add::<FMA>(Lanes::splat(neuron.vleak) - after, Lanes(leak_sum[j])).0;
        let dc = al * (before - after);
        cm_sum[j] = (Lanes(cm_sum[j]) + dc).0;
        moved = dc.mul_add::<FMA>(Lanes::splat(neuron.cm), moved);
        a[j] = (al * (Lanes::splat(neuron.cm) * rate)).0;
    }
    moved
}

#[inline(always)]
fn lanes<const R: usize>(from: &[f32], row: usize) -> Lanes<R> {
    Lanes(from.as_chunks::<R>().0[row])
}

/// The state before step `t`, to the first state of `v`.
#[inline(always)]
fn previous_state<const R: usize>(call: &Call<'_>, g: Group, t: usize, given: &Given<'_>, v: &mut [f32]) {
    if t == 0 {
        return call.initial_state::<R>(g, v);
    }
    state_of::<R>(g, t - 1, call.p.hidden, &given.states, v);
}

/// Step `t` of `states` `[B, T, H]`, to the first state of `v`.
#[inline(always)]
fn state_of<const R: usize>(g: Group, t: usize, hidden: usize, states: &Strided<'_, 3>, v: &mut [f32]) {
    for l in 0..R {
        for j in 0..hidden {
            // SAFETY: rows of a group are below B, t below T and j below H.
            v[j * R + l] = unsafe { states.at_unchecked([g.row_of(l), t, j]) };
        }
        v[hidden * R + l] = 0.0;
    }
}

/// All states of step `t` and the inverse denominators, as the forward pass stored them.
#[inline(always)]
fn read_unfolds<const R: usize>(
    call: &Call<'_>,
    g: Group,
    t: usize,
    given: &Given<'_>,
    [before, dens]: &[Strided<'_, 4>; 2],
    v: &mut [f32],
    inverse: &mut [f32],
) {
    let (hidden, unfolds) = (call.p.hidden, call.p.unfolds);
    let (v, inverse) = (v.as_chunks_mut::<R>().0, inverse.as_chunks_mut::<R>().0);
    for k in 0..=unfolds {
        for l in 0..R {
            let row = g.row_of(l);
            for j in 0..hidden {
                // SAFETY: rows of a group are below B, t below T, k below K and j below H.
                unsafe {
                    if k < unfolds {
                        v[k * (hidden + 1) + j][l] = before.at_unchecked([row, t, k, j]);
                        inverse[k * hidden + j][l] = 1.0 / dens.at_unchecked([row, t, k, j]);
                    } else {
                        v[k * (hidden + 1) + j][l] = given.states.at_unchecked([row, t, j]);
                    }
                }
            }
            v[k * (hidden + 1) + hidden][l] = 0.0;
        }
    }
}

/// Adds the gradient of step `t`'s outputs to that of the state, and to the output mapping's sums.
#[inline(always)]
fn add_grad_out<const R: usize>(
    call: &Call<'_>,
    g: Group,
    t: usize,
    given: &Given<'_>,
    v: &[f32],
    a: &mut [f32],
    mut sums: Option<&mut [[f64; 2]]>,
) {
    for j in 0..call.p.outputs {
        let w = call.output_w.map_or(1.0, |w| w[j]);
        for l in 0..g.rows {
            // SAFETY: rows of a group are below B, t below T and j below M.
            let grad = unsafe { given.grad_out.at_unchecked([g.row + l, t, j]) };
            a[j * R + l] += grad * w;
            if let Some(sums) = &mut sums {
                sums[j][0] += f64::from(grad) * f64::from(v[j * R + l]);
                sums[j][1] += f64::from(grad);
            }
        }
    }
}

/// From the gradient of the mapped inputs (but for its factor -ln 2) to those of the inputs and of what maps them.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn input_gradient<const FMA: bool, const R: usize>(
    call: &Call<'_>,
    g: Group,
    t: usize,
    [y, normal]: [&[f32]; 2],
    [mean_x, scale]: [[f64; R]; 2],
    du: &mut [f32],
    total: &mut Sums<'_>,
    grads: Gradients,
) {
    let inputs = call.p.inputs;
    let du = &mut du.as_chunks_mut::<R>().0[..inputs];
    // In f64, not what was rounded for the forward pass: below, what is left of a gradient along the normalised inputs is
    // 1 - their mean square, 1e-5 of it where D = 2.
    let normalised = |l: usize, d: usize| {
        // SAFETY: rows of a group are below B, t below T and d below D.
        let x = unsafe { call.x.at_unchecked([g.row_of(l), t, d]) };
        (f64::from(x) - mean_x[l]) * scale[l]
    };
    let (mut mean, mut slope) = ([0.0f64; R], [0.0f64; R]);
    for (d, du) in du.iter_mut().enumerate() {
        let grad = Lanes(*du) * Lanes::splat(-std::f32::consts::LN_2);
        let y = lanes::<R>(y, d);
        if grads.parameters {
            total.input[d][0] += f64::from(lane_sum(grad * y));
            total.input[d][1] += f64::from(lane_sum(grad));
        }
        let mut dy = grad * Lanes::splat(call.input_w.map_or(1.0, |w| w[d]));
        if let Some([weight, _]) = call.norm {
            let normal = lanes::<R>(normal, d);
            if grads.parameters {
                total.norm[d][0] += f64::from(lane_sum(dy * normal));
                total.norm[d][1] += f64::from(lane_sum(dy));
            }
            dy = dy * Lanes::splat(weight[d]);
            for l in 0..R {
                mean[l] += f64::from(dy.0[l]);
                slope[l] += f64::from(dy.0[l]) * normalised(l, d);
            }
        }
        *du = dy.0;
    }
    let Some(x) = grads.x else { return };
    if call.norm.is_some() {
        let count = inputs as f64;
        for (d, du) in du.iter_mut().enumerate() {
            for l in 0..R {
                let centred = f64::from(du[l]) - mean[l] / count - normalised(l, d) * (slope[l] / count);
                du[l] = (scale[l] * centred) as f32;
            }
        }
    }
    for l in 0..g.rows {
        // SAFETY: elements of this group's rows.
        let row = unsafe { x.part(((g.row + l) * call.p.steps + t) * inputs, inputs) };
        for (x, du) in row.iter_mut().zip(du.iter()) {
            *x = du[l];
        }
    }
}

crate::levels!(fn backward8(call: &Call<'_>, g: Group, s: &Sizes, b: &mut Buffers<'_>, total: &mut Sums<'_>, given: &Given<'_>, grads: Gradients) = body, 8, [8, 8, 16]);
crate::levels!(fn backward4(call: &Call<'_>, g: Group, s: &Sizes, b: &mut Buffers<'_>, total: &mut Sums<'_>, given: &Given<'_>, grads: Gradients) = body, 4, [8, 8, 8]);

/// Runs all steps of one group backwards.
pub(super) fn backward(
    call: &Call<'_>,
    g: Group,
    sizes: &Sizes,
    buffers: &mut Buffers<'_>,
    total: &mut Sums<'_>,
    given: &Given<'_>,
    grads: Gradients,
) {
    match g.lanes {
        8 => backward8(call, g, sizes, buffers, total, given, grads),
        _ => backward4(call, g, sizes, buffers, total, given, grads),
    }
}
