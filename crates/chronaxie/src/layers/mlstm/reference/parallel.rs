//! The parallel form: every pair of tokens, from a state of zeros, without a last state.
//!
//! ```text
//! b_t = sum_{r <= t} log f_r      log D_ts = b_t - b_s + log i_s for s <= t      m_t = max(b_t, max_s log D_ts)
//! P_ts = s q_t.k_s e^(log D_ts - m_t)      l_t = sum_s P_ts      h_t = sum_s P_ts v_s / (max(|l_t|, e^-m_t) + eps)
//! ```
//!
//! With b_t among the candidates m is that of the recurrence from m = 0; without it h would be the same.

use super::{Cell, Gradients, State, Tokens, add, dot};
use crate::real::Real;

/// What both passes need of a token's row.
struct Row<R> {
    /// `D_ts` in the gauge m, for s up to t.
    d: Vec<R>,
    /// `s q_t.k_s`.
    s: Vec<R>,
    m: R,
    l: R,
    h: Vec<R>,
}

fn row<R: Real>(cell: &Cell, tokens: &Tokens<'_, R>, t: usize) -> Row<R> {
    let (k, v) = (cell.dqk, cell.dv);
    // b_t - b_s is summed, since both may be -inf.
    let (mut logs, mut b) = (vec![R::zero(); t + 1], R::zero());
    for s in (0..=t).rev() {
        logs[s] = b + cell.log_input(tokens.i[s]);
        b = b + cell.log_forget(tokens.f[s]);
    }
    let m = logs.iter().fold(b, |m, &x| cell.larger(m, x));
    // The sigmoid gate's m is 0, whatever b is.
    let m = cell.larger(m, m);
    let d: Vec<R> = logs.iter().map(|&x| (x - m).exp()).collect();
    let q = &tokens.q[t * k..(t + 1) * k];
    let s: Vec<R> = (0..=t).map(|s| cell.scale::<R>() * dot(q, &tokens.k[s * k..(s + 1) * k])).collect();
    let l = dot(&s, &d);
    let mut h = vec![R::zero(); v];
    for other in 0..=t {
        add(&mut h, s[other] * d[other], &tokens.v[other * v..(other + 1) * v]);
    }
    let factor = R::one() / cell.denominator(l, m);
    h.iter_mut().for_each(|x| *x = *x * factor);
    Row { d, s, m, l, h }
}

/// The outputs `[T, V]`.
pub fn forward<R: Real>(cell: &Cell, tokens: &Tokens<'_, R>) -> Vec<R> {
    (0..tokens.len()).flat_map(|t| row(cell, tokens, t).h).collect()
}

/// The gradients, from those of the outputs `[T, V]`; that of the initial state stays 0.
pub fn backward<R: Real>(cell: &Cell, tokens: &Tokens<'_, R>, grad_h: &[R]) -> Gradients<R> {
    let (steps, k, v) = (tokens.len(), cell.dqk, cell.dv);
    let mut g = Gradients::zeros(cell, steps, State::zeros(cell));
    // Rates of b_t, from the rows that t begins and the columns that it ends.
    let mut grad_b = vec![R::zero(); steps];
    for t in 0..steps {
        let row = row(cell, tokens, t);
        let grad_h = &grad_h[t * v..(t + 1) * v];
        let grad_l = cell.grad_l(row.l, row.m, &row.h, grad_h);
        let inverse = R::one() / cell.denominator(row.l, row.m);
        for s in 0..=t {
            let (at_t, at_s) = (t * k..(t + 1) * k, s * k..(s + 1) * k);
            let grad_p = inverse * dot(grad_h, &tokens.v[s * v..(s + 1) * v]) + grad_l;
            let grad_s = cell.scale::<R>() * grad_p * row.d[s];
            add(&mut g.q[at_t.clone()], grad_s, &tokens.k[at_s.clone()]);
            add(&mut g.k[at_s], grad_s, &tokens.q[at_t]);
            add(&mut g.v[s * v..(s + 1) * v], inverse * row.s[s] * row.d[s], grad_h);
            let grad_log = grad_p * row.s[s] * row.d[s];
            g.i[s] = g.i[s] + grad_log;
            grad_b[t] = grad_b[t] + grad_log;
            grad_b[s] = grad_b[s] - grad_log;
        }
    }
    let mut rest = R::zero();
    for t in (0..steps).rev() {
        rest = rest + grad_b[t];
        g.f[t] = rest;
    }
    cell.gates(tokens, &mut g);
    g
}
