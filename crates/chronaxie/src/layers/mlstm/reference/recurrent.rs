//! The recurrence itself: the definition of the mLSTM, one token after the other.
//!
//! ```text
//! m_t = max(log f_t + m_{t-1}, log i_t, -80)     F = e^(log f_t + m_{t-1} - m_t)     I = e^(log i_t - m_t)
//! C_t = F C_{t-1} + I k_t v_t^T                  n_t = F n_{t-1} + I k_t
//! l_t = s n_t.q_t                                h_t = s C_t^T q_t / (max(|l_t|, e^-m_t) + eps)
//! ```

use super::{Cell, Gradients, State, Tokens, add, dot};
use crate::real::Real;

/// Steps whose states are kept at a time by the backward pass.
const KEPT: usize = 64;

/// The weights F and I of the past and of the token, and the new gauge.
fn weights<R: Real>(cell: &Cell, m: R, i: R, f: R) -> (R, R, R) {
    let (past, here) = (cell.log_forget(f) + m, cell.log_input(i));
    let new = cell.larger(past, here);
    ((past - new).exp(), (here - new).exp(), new)
}

/// `l` of a state.
fn l_of<R: Real>(cell: &Cell, state: &State<R>, q: &[R]) -> R {
    cell.scale::<R>() * dot(&state.n, q)
}

/// `h` of a state.
fn h_of<R: Real>(cell: &Cell, state: &State<R>, q: &[R]) -> Vec<R> {
    let mut h = vec![R::zero(); cell.dv];
    for (row, &q) in state.c.chunks_exact(cell.dv).zip(q) {
        add(&mut h, q, row);
    }
    let factor = cell.scale::<R>() / cell.denominator(l_of(cell, state, q), state.m);
    h.iter().map(|&x| x * factor).collect()
}

/// One token: `state` goes on, and `h [V]` comes back. `token` is of length 1.
pub fn step<R: Real>(cell: &Cell, state: &mut State<R>, token: &Tokens<'_, R>) -> Vec<R> {
    let (past, here, m) = weights(cell, state.m, token.i[0], token.f[0]);
    for (d, row) in state.c.chunks_exact_mut(cell.dv).enumerate() {
        for (c, &v) in row.iter_mut().zip(token.v) {
            *c = past * *c + here * token.k[d] * v;
        }
        if cell.normalize {
            state.n[d] = past * state.n[d] + here * token.k[d];
        }
    }
    state.m = m;
    h_of(cell, state, token.q)
}

/// The outputs `[T, V]` and the last state.
pub fn forward<R: Real>(cell: &Cell, tokens: &Tokens<'_, R>, initial: &State<R>) -> (Vec<R>, State<R>) {
    let mut state = initial.clone();
    let h = (0..tokens.len()).flat_map(|t| step(cell, &mut state, &tokens.range(cell, t, t + 1))).collect();
    (h, state)
}

/// One token against time. `grad` comes in as the gradient of the state behind the token and leaves as that of the one
/// before it, in their gauges; those of the gates are of their logarithms.
fn step_backward<R: Real>(
    cell: &Cell,
    [before, after]: [&State<R>; 2],
    token: &Tokens<'_, R>,
    grad_h: &[R],
    grad: &mut State<R>,
) -> Gradients<R> {
    let s = cell.scale::<R>();
    let l = l_of(cell, after, token.q);
    let h = h_of(cell, after, token.q);
    let grad_l = cell.grad_l(l, after.m, &h, grad_h);
    let factor = s / cell.denominator(l, after.m);
    let mut g = Gradients::zeros(cell, 1, State::zeros(cell));
    for d in 0..cell.dqk {
        let row = d * cell.dv..(d + 1) * cell.dv;
        g.q[d] = factor * dot(&after.c[row.clone()], grad_h) + s * grad_l * after.n[d];
        add(&mut grad.c[row], factor * token.q[d], grad_h);
        grad.n[d] = grad.n[d] + s * grad_l * token.q[d];
    }
    let (past, here, _) = weights(cell, before.m, token.i[0], token.f[0]);
    g.f[0] = past * before.dot(grad);
    for d in 0..cell.dqk {
        let row = d * cell.dv..(d + 1) * cell.dv;
        let into_k = dot(&grad.c[row.clone()], token.v) + grad.n[d];
        g.k[d] = here * into_k;
        g.i[0] = g.i[0] + here * into_k * token.k[d];
        add(&mut g.v, here * token.k[d], &grad.c[row]);
    }
    grad.c.iter_mut().chain(&mut grad.n).for_each(|x| *x = past * *x);
    g
}

/// The gradients, from those of the outputs `[T, V]` and of the last state.
pub fn backward<R: Real>(
    cell: &Cell,
    tokens: &Tokens<'_, R>,
    initial: &State<R>,
    grad_h: &[R],
    grad_last: &State<R>,
) -> Gradients<R> {
    let steps = tokens.len();
    // The states that every stretch of KEPT steps begins with, and the last one.
    let mut starts = vec![initial.clone()];
    for from in (0..steps).step_by(KEPT) {
        let stretch = tokens.range(cell, from, (from + KEPT).min(steps));
        starts.push(forward(cell, &stretch, &starts[starts.len() - 1]).1);
    }
    let mut g = Gradients::zeros(cell, steps, State::zeros(cell));
    let mut grad = grad_last.clone();
    for (nth, from) in (0..steps).step_by(KEPT).enumerate().rev() {
        let to = (from + KEPT).min(steps);
        let mut states = vec![starts[nth].clone()];
        for t in from..to {
            let mut next = states[t - from].clone();
            step(cell, &mut next, &tokens.range(cell, t, t + 1));
            states.push(next);
        }
        for t in (from..to).rev() {
            let pair = [&states[t - from], &states[t - from + 1]];
            let grad_h = &grad_h[t * cell.dv..(t + 1) * cell.dv];
            let one = step_backward(cell, pair, &tokens.range(cell, t, t + 1), grad_h, &mut grad);
            g.q[t * cell.dqk..(t + 1) * cell.dqk].copy_from_slice(&one.q);
            g.k[t * cell.dqk..(t + 1) * cell.dqk].copy_from_slice(&one.k);
            g.v[t * cell.dv..(t + 1) * cell.dv].copy_from_slice(&one.v);
            (g.i[t], g.f[t]) = (one.i[0], one.f[0]);
        }
    }
    grad.m = cell.grad_initial_m(initial, &grad);
    g.initial = grad;
    cell.gauge(tokens, initial, &starts[starts.len() - 1], grad_last, &mut g);
    cell.gates(tokens, &mut g);
    g
}
