//! The chunkwise form: states pass from chunk to chunk, and within a chunk of L tokens all pairs are taken.
//!
//! ```text
//! b_t = sum of log f from the chunk's start to t      g = b_L      a_s = g - b_s + log i_s
//! m_t = max(b_t + m, max_{s <= t} b_t - b_s + log i_s)             m' = m_L, the gauge behind the chunk
//! P_ts = s q_t.k_s e^(b_t - b_s + log i_s - m_t)                   w_t = e^(b_t + m - m_t)
//! num_t = w_t s C^T q_t + sum_s P_ts v_s      l_t = w_t s n.q_t + sum_s P_ts
//! C' = e^(g + m - m') C + sum_s e^(a_s - m') k_s v_s^T             n' likewise
//! ```
//!
//! Backward the gates' gradients come from the gradients of q and k: `d log i_s = k_s.dk_s`, and with
//! `u_t = q_t.dq_t - k_t.dk_t` and e the end of t's chunk `d log f_t = u_t + .. + u_e + <C_e, dC_e> + <n_e, dn_e>`.

use super::{Cell, Gradients, State, Tokens, add, dot};
use crate::real::Real;

/// What both passes need of one chunk.
struct Chunk<R> {
    /// `P_ts / (s q_t.k_s)`, `[L, L]`, 0 above the diagonal.
    d: Vec<R>,
    /// w, `[L]`.
    past: Vec<R>,
    /// `e^(a_s - m')`, `[L]`.
    into: Vec<R>,
    /// `e^(g + m - m')`.
    kept: R,
    /// `[L]`
    m: Vec<R>,
    /// `[L]`
    l: Vec<R>,
    /// `s q_t.k_s`, `[L, L]`.
    s: Vec<R>,
    /// `[L, V]`
    h: Vec<R>,
}

impl<R: Real> Chunk<R> {
    fn new(cell: &Cell, x: &Tokens<'_, R>, state: &State<R>) -> Self {
        let (n, k, v, scale) = (x.len(), cell.dqk, cell.dv, cell.scale::<R>());
        // b_t - b_s is summed, since both may be -inf.
        let (mut between, mut b) = (vec![R::zero(); n * n], vec![R::zero(); n]);
        for t in 0..n {
            for s in (0..=t).rev() {
                between[t * n + s] = b[t];
                b[t] = b[t] + cell.log_forget(x.f[s]);
            }
        }
        let log = |t: usize, s: usize| between[t * n + s] + cell.log_input(x.i[s]);
        let m: Vec<R> = (0..n)
            .map(|t| {
                let most = (0..=t).fold(b[t] + state.m, |m, s| cell.larger(m, log(t, s)));
                cell.larger(most, most)
            })
            .collect();
        let behind = m[n - 1];
        let mut d = vec![R::zero(); n * n];
        let mut s = vec![R::zero(); n * n];
        for t in 0..n {
            for r in 0..=t {
                d[t * n + r] = (log(t, r) - m[t]).exp();
                s[t * n + r] = scale * dot(&x.q[t * k..(t + 1) * k], &x.k[r * k..(r + 1) * k]);
            }
        }
        let past: Vec<R> = (0..n).map(|t| (b[t] + state.m - m[t]).exp()).collect();
        let into = (0..n).map(|r| (log(n - 1, r) - behind).exp()).collect();
        let (mut l, mut h) = (vec![R::zero(); n], vec![R::zero(); n * v]);
        for t in 0..n {
            let (q, h) = (&x.q[t * k..(t + 1) * k], &mut h[t * v..(t + 1) * v]);
            for (row, &q) in state.c.chunks_exact(v).zip(q) {
                add(h, past[t] * scale * q, row);
            }
            for r in 0..=t {
                add(h, s[t * n + r] * d[t * n + r], &x.v[r * v..(r + 1) * v]);
                l[t] = l[t] + s[t * n + r] * d[t * n + r];
            }
            l[t] = l[t] + past[t] * scale * dot(&state.n, q);
            let factor = R::one() / cell.denominator(l[t], m[t]);
            h.iter_mut().for_each(|x| *x = *x * factor);
        }
        Self { d, past, into, kept: (b[n - 1] + state.m - behind).exp(), m, l, s, h }
    }
    /// The state behind the chunk.
    fn next(&self, cell: &Cell, x: &Tokens<'_, R>, state: &State<R>) -> State<R> {
        let (k, v) = (cell.dqk, cell.dv);
        let mut next = state.clone();
        next.c.iter_mut().chain(&mut next.n).for_each(|x| *x = self.kept * *x);
        for (r, &into) in self.into.iter().enumerate() {
            for (d, row) in next.c.chunks_exact_mut(v).enumerate() {
                add(row, into * x.k[r * k + d], &x.v[r * v..(r + 1) * v]);
            }
            if cell.normalize {
                add(&mut next.n, into, &x.k[r * k..(r + 1) * k]);
            }
        }
        next.m = self.m[self.m.len() - 1];
        next
    }
}

/// The outputs `[T, V]` and the last state, in chunks of `length` tokens.
pub fn forward<R: Real>(cell: &Cell, tokens: &Tokens<'_, R>, initial: &State<R>, length: usize) -> (Vec<R>, State<R>) {
    let (mut h, mut state) = (Vec::new(), initial.clone());
    for from in (0..tokens.len()).step_by(length) {
        let x = tokens.range(cell, from, (from + length).min(tokens.len()));
        let chunk = Chunk::new(cell, &x, &state);
        state = chunk.next(cell, &x, &state);
        h.extend(chunk.h);
    }
    (h, state)
}

/// The gradients, from those of the outputs `[T, V]` and of the last state.
pub fn backward<R: Real>(
    cell: &Cell,
    tokens: &Tokens<'_, R>,
    initial: &State<R>,
    grad_h: &[R],
    grad_last: &State<R>,
    length: usize,
) -> Gradients<R> {
    let (steps, k, v, scale) = (tokens.len(), cell.dqk, cell.dv, cell.scale::<R>());
    let parts: Vec<_> = (0..steps).step_by(length).map(|from| (from, (from + length).min(steps))).collect();
    let mut states = vec![initial.clone()];
    for &(from, to) in &parts {
        let (x, state) = (tokens.range(cell, from, to), &states[states.len() - 1]);
        states.push(Chunk::new(cell, &x, state).next(cell, &x, state));
    }
    let mut g = Gradients::zeros(cell, steps, State::zeros(cell));
    let mut grad = grad_last.clone();
    for (nth, &(from, to)) in parts.iter().enumerate().rev() {
        let (x, state, n) = (tokens.range(cell, from, to), &states[nth], to - from);
        let chunk = Chunk::new(cell, &x, state);
        let grad_h = &grad_h[from * v..to * v];
        let [g_q, g_k] = [&mut g.q, &mut g.k].map(|g| &mut g[from * k..to * k]);
        let g_v = &mut g.v[from * v..to * v];
        // <C_e, dC_e> of the chunk's end, before this chunk adds to the gradient.
        let mut rest = states[nth + 1].dot(&grad);
        let mut before = grad.clone();
        before.c.iter_mut().chain(&mut before.n).for_each(|x| *x = chunk.kept * *x);
        for r in 0..n {
            for d in 0..k {
                let (row, at) = (&grad.c[d * v..(d + 1) * v], r * k + d);
                g_k[at] = g_k[at] + chunk.into[r] * (dot(row, &x.v[r * v..(r + 1) * v]) + grad.n[d]);
                add(&mut g_v[r * v..(r + 1) * v], chunk.into[r] * x.k[at], row);
            }
        }
        for t in 0..n {
            let up = &grad_h[t * v..(t + 1) * v];
            let inverse = R::one() / cell.denominator(chunk.l[t], chunk.m[t]);
            let grad_l = cell.grad_l(chunk.l[t], chunk.m[t], &chunk.h[t * v..(t + 1) * v], up);
            let (at_t, past) = (t * k..(t + 1) * k, scale * chunk.past[t]);
            for d in 0..k {
                let row = d * v..(d + 1) * v;
                let into_q = inverse * dot(&state.c[row.clone()], up) + grad_l * state.n[d];
                g_q[t * k + d] = g_q[t * k + d] + past * into_q;
                add(&mut before.c[row], past * inverse * x.q[t * k + d], up);
                before.n[d] = before.n[d] + past * grad_l * x.q[t * k + d];
            }
            for r in 0..=t {
                let (at_r, pair) = (r * k..(r + 1) * k, t * n + r);
                let grad_p = inverse * dot(up, &x.v[r * v..(r + 1) * v]) + grad_l;
                let grad_s = scale * grad_p * chunk.d[pair];
                add(&mut g_q[at_t.clone()], grad_s, &x.k[at_r.clone()]);
                add(&mut g_k[at_r], grad_s, &x.q[at_t.clone()]);
                add(&mut g_v[r * v..(r + 1) * v], inverse * chunk.s[pair] * chunk.d[pair], up);
            }
        }
        for t in (0..n).rev() {
            let at = t * k..(t + 1) * k;
            g.i[from + t] = dot(&x.k[at.clone()], &g_k[at.clone()]);
            rest = rest + dot(&x.q[at.clone()], &g_q[at]) - g.i[from + t];
            g.f[from + t] = rest;
        }
        grad = before;
    }
    grad.m = cell.grad_initial_m(initial, &grad);
    g.initial = grad;
    cell.gauge(tokens, initial, &states[states.len() - 1], grad_last, &mut g);
    cell.gates(tokens, &mut g);
    g
}
