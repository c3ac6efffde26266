//! The backward pass: windows of chunks against time. In each the states are made anew, then their gradients against time,
//! then the gradients of all chunks side by side.
//!
//! Everything lies transposed, `[V, K]`: so both the states and their gradients are right-hand sides where they are needed
//! (of dh, for q, and of v, for k), and only dv comes out transposed.

use super::call::{Call, Form, from_panels, to_panels};
use super::forward::denominator;
use super::gates::{self, Chunk, add};
use super::gemm::{Left, PANEL, Part, Place, Start, dots, long_dot, multiply};
use super::layout::{Block, Chain, part, share};
use super::pack::{Tokens, panels, transposed, untransposed};
use crate::layers::mlstm::spec::{GAUGE_LEAST, LOG_FORGET_LEAST};

/// What the backward pass reads beside the call's tensors.
pub(super) struct Upstream<'a> {
    /// h, where the normaliser's gradient needs it.
    pub h: Option<Tokens>,
    /// l of each token.
    pub l: Option<&'a [f32]>,
    pub grad_h: Tokens,
    /// Of c, n, m; empty where the problem has none.
    pub grad_last: Option<[&'a [f32]; 3]>,
}

/// What it writes, where it is wanted.
pub(super) struct Gradients {
    pub q: Option<Tokens>,
    pub k: Option<Tokens>,
    pub v: Option<Tokens>,
    pub i: Option<Tokens>,
    pub f: Option<Tokens>,
    /// Of c, n, m; empty where the problem has none.
    pub initial: Option<[Block<f32>; 3]>,
}

/// Runs the pass.
pub(super) fn run(call: &Call<'_>, up: &Upstream<'_>, out: &Gradients) {
    call.prepare(false);
    let all = call.cut.chains * call.cut.chunks;
    share(call.cut.slots, all, |slot, i| tokens(call, up, slot, i / call.cut.chunks, i % call.cut.chunks));
    let windows = call.cut.windows();
    for window in 0..windows {
        call.states(Form::Transposed, window, false, |_, _, _| {});
        if window + 1 < windows {
            keep(call, window + 1);
        }
    }
    for window in (0..windows).rev() {
        if window + 1 < windows {
            call.states(Form::Transposed, window, window > 0, |_, _, _| {});
        }
        grad_states(call, up, window);
        let first = window * call.cut.window;
        let many = call.cut.window.min(call.cut.chunks - first);
        share(call.cut.slots, call.cut.chains * many, |slot, i| chunk(call, up, out, slot, i / many, first, i % many));
    }
    share(call.cut.slots, call.cut.chains, |_, nth| ends(call, up, out, nth));
}

/// One over each token's denominator, and the gradient of its l.
fn tokens(call: &Call<'_>, up: &Upstream<'_>, slot: usize, chain: usize, nth: usize) {
    let (v, length, chain) = (call.p.dv, call.length(), call.chain(chain));
    if nth >= chain.chunks(length) {
        return;
    }
    let ((at, n), (first, _)) = (call.flat(&chain, nth), chain.chunk(length, nth));
    let gates = call.gates(&chain, nth);
    // SAFETY: a chunk's tokens and the slot are this task's.
    unsafe {
        let (inverse, grad_l) = (call.memory.inverse.write(at, n), call.memory.grad_l.write(at, n));
        grad_l.fill(0.0);
        let Some(l) = up.l else { return inverse.fill(1.0) };
        let l = &l[at..at + n];
        let mut buffer = call.buffer(slot);
        let (floors, rates) = (buffer.take(length), &mut buffer.take(length)[..n]);
        if let Some(from) = up.h {
            let (h, h_row) = from.lines(first, n, v).unwrap_or_else(|| {
                let h = buffer.take(length * v);
                from.load(first, n, v, 1.0, h);
                (h, v)
            });
            let (grad_h, row) = up.grad_h.lines(first, n, v).unwrap_or_else(|| {
                let grad_h = buffer.take(length * v);
                up.grad_h.load(first, n, v, 1.0, grad_h);
                (grad_h, v)
            });
            dots((h, h_row), (grad_h, row), v, rates);
        }
        gates.floors(floors);
        for t in 0..n {
            inverse[t] = 1.0 / denominator(l[t], floors[t], call.p.eps as f32);
            if up.h.is_some() && l[t].abs() > floors[t] {
                let rate = rates[t] * inverse[t];
                grad_l[t] = if l[t] < 0.0 { rate } else { -rate };
            }
        }
    }
}

/// Keeps the states that `window` begins with.
fn keep(call: &Call<'_>, window: usize) {
    let (k, c) = (call.p.dqk, call.p.dqk * call.p.dv);
    share(call.cut.slots, call.cut.chains, |_, nth| {
        let chain = call.chain(nth);
        if chain.chunks(call.length()) <= window * call.cut.window {
            return;
        }
        let (memory, at) = (&call.memory, chain.nth * call.cut.windows() + window);
        // SAFETY: a chain's states are its task's.
        unsafe {
            memory.start_c.write(at * c, c).copy_from_slice(memory.c.read(call.c_at(&chain, call.cut.window), c));
            memory.start_n.write(at * k, k).copy_from_slice(memory.n.read(call.n_at(&chain, call.cut.window), k));
        }
    });
}

/// The gradients of the states behind the window's chunks, and, as what the window before it begins with, that of the state
/// before them.
fn grad_states(call: &Call<'_>, up: &Upstream<'_>, window: usize) {
    let (k, v, length) = (call.p.dqk, call.p.dv, call.length());
    let (size, rows, all) = call.form(Form::Transposed);
    let groups = call.cut.groups(all);
    share(call.cut.slots, call.cut.chains * groups, |slot, i| {
        let (chain, range) = (call.chain(i / groups), part(all, groups, i % groups));
        let chunks = chain.chunks(length);
        let first = window * call.cut.window;
        if chunks < first || (chunks == first && window > 0) {
            return;
        }
        let last = chunks.min(first + call.cut.window);
        let (at, len) = (range.start * rows * PANEL, range.len() * rows * PANEL);
        let (from, width) = (range.start * PANEL, range.len() * PANEL);
        let memory = &call.memory;
        // The gradient behind chunk j, and at -1 that before the window.
        let slot_of = |j: Option<usize>| match j {
            None => (memory.carry_c, memory.carry_n, chain.nth * size, chain.nth * k),
            Some(j) => {
                let at = chain.nth * call.cut.window + j;
                (memory.grad_c, memory.grad_n, at * size, at * k)
            }
        };
        // SAFETY: these panels of c's gradient and these columns of n's are this task's alone, as is the slot.
        unsafe {
            let end = slot_of((last > first).then(|| last - first - 1));
            let (end_c, end_n) = (end.0.write(end.2 + at, len), end.1.write(end.3 + from, width));
            if last == chunks {
                let given = up.grad_last.map(|[c, n, _]| (&c[chain.nth * size..][..size], n));
                match given {
                    Some((c, _)) => to_panels(c, [k, v], Form::Transposed, range.clone(), end_c),
                    None => end_c.fill(0.0),
                }
                match given {
                    Some((_, n)) if !n.is_empty() => end_n.copy_from_slice(&n[chain.nth * k + from..][..width]),
                    _ => end_n.fill(0.0),
                }
            } else {
                end_c.copy_from_slice(memory.carry_c.read(chain.nth * size + at, len));
                end_n.copy_from_slice(memory.carry_n.read(chain.nth * k + from, width));
            }
            for nth in (first..last).rev() {
                let j = nth - first;
                let gates = call.gates(&chain, nth);
                let ((flat, n), (token, _)) = (call.flat(&chain, nth), chain.chunk(length, nth));
                let (inverse, grad_l) = (memory.inverse.read(flat, n), memory.grad_l.read(flat, n));
                let mut buffer = call.buffer(slot);
                let (past, dh) = (buffer.take(length), buffer.take(length * v));
                let (q, packed) = (buffer.take(length * width), buffer.take(length * width));
                gates.past(past);
                up.grad_h.load(token, n, v, 1.0, dh);
                call.q.columns(from).load(token, n, width, 1.0 / (k as f32).sqrt(), q);
                for t in 0..n {
                    dh[t * v..(t + 1) * v].iter_mut().for_each(|x| *x *= inverse[t]);
                    q[t * width..(t + 1) * width].iter_mut().for_each(|x| *x *= past[t]);
                }
                panels(q, n, width, packed);
                let (here, before) = (slot_of(Some(j)), slot_of(j.checked_sub(1)));
                multiply(
                    Left::transposed(dh, v),
                    (packed, Place::panels(n)),
                    (before.0.write(before.2 + at, len), Place::panels(rows)),
                    [rows, range.len(), n],
                    Start::From(here.0.read(here.2 + at, len), gates.kept()),
                    Part::Full,
                );
                let grad_n = before.1.write(before.3 + from, width);
                let kept = gates.kept();
                let after = here.1.read(here.3 + from, width);
                grad_n.iter_mut().zip(after).for_each(|(g, a)| *g = if call.p.normalize { kept * a } else { 0.0 });
                for t in (0..n).filter(|&t| grad_l[t] != 0.0) {
                    add(grad_n, grad_l[t], &q[t * width..(t + 1) * width]);
                }
            }
        }
    });
}

/// The gradients of a chunk's tokens, from the state before it and the gradient of the one behind it, both in slot `j`.
fn chunk(call: &Call<'_>, up: &Upstream<'_>, out: &Gradients, slot: usize, chain: usize, window: usize, j: usize) {
    let (k, v, length) = (call.p.dqk, call.p.dv, call.length());
    let (chain, nth) = (call.chain(chain), window + j);
    let chunks = chain.chunks(length);
    if nth >= chunks {
        return;
    }
    let ((flat, n), (first, _)) = (call.flat(&chain, nth), chain.chunk(length, nth));
    let stride = n.next_multiple_of(PANEL);
    let gates = call.gates(&chain, nth);
    let scale = 1.0 / (k as f32).sqrt();
    // SAFETY: a chunk's tokens and the slot are this task's; states and their gradients are only read in this phase.
    unsafe {
        let memory = &call.memory;
        let (inverse, grad_l) = (memory.inverse.read(flat, n), memory.grad_l.read(flat, n));
        let size = k * v;
        let (c, state_n) = (memory.c.read(call.c_at(&chain, j), size), memory.n.read(call.n_at(&chain, j), k));
        let place = chain.nth * call.cut.window + j;
        let (grad_c, grad_n) = (memory.grad_c.read(place * size, size), memory.grad_n.read(place * k, k));
        let mut buffer = call.buffer(slot);
        let (past, into, sums) = (buffer.take(length), buffer.take(length), buffer.take(length));
        let (rate_i, rate_f) = (buffer.take(length), buffer.take(length));
        let (q, q_panels) = (buffer.take(length * k), buffer.take(length * k));
        let (k_turned, k_panels) = (buffer.take(length * k), buffer.take(length * k));
        let (values, v_turned, dh) = (buffer.take(length * v), buffer.take(length * v), buffer.take(length * v));
        let (s, ds) = (buffer.take(length * length), buffer.take(length * length));
        let (product, dv) = (buffer.take(length * k), buffer.take(length * v));
        let keys = buffer.take(length * k.max(v));

        call.q.load(first, n, k, scale, q);
        panels(q, n, k, q_panels);
        call.k.load(first, n, k, 1.0, keys);
        transposed(keys, n, k, k_turned);
        panels(keys, n, k, k_panels);
        call.v.load(first, n, v, 1.0, values);
        transposed(values, n, v, v_turned);
        up.grad_h.load(first, n, v, 1.0, dh);
        for (row, &inverse) in dh.chunks_exact_mut(v).zip(inverse) {
            row.iter_mut().for_each(|x| *x *= inverse);
        }
        gates.past(past);
        gates.entering(into);

        // Pairs: P in s and dS in ds.
        let pairs = Place::rows(stride);
        let lower = Part::LowerOutput;
        let of = |width| [n, stride / PANEL, width];
        multiply(Left::rows(q, k), (k_turned, Place::panels(k)), (s, pairs), of(k), Start::Zero, lower);
        multiply(Left::rows(dh, v), (v_turned, Place::panels(v)), (ds, pairs), of(v), Start::Zero, lower);
        gates::weigh(gates, 1.0, stride, s, sums, ds, grad_l);

        // dq, but for the factor s.
        let rows = Place::rows(k);
        let (from_v, from_n) = ([n, k / PANEL, v], [n, k / PANEL, n]);
        multiply(Left::rows(dh, v), (c, Place::panels(v)), (product, rows), from_v, Start::Zero, Part::Full);
        for t in (0..n).filter(|&t| grad_l[t] != 0.0) {
            add(&mut product[t * k..(t + 1) * k], grad_l[t], state_n);
        }
        let keys_in = (&*k_panels, Place::panels(n));
        multiply(Left::rows(ds, stride), keys_in, (product, rows), from_n, Start::Rows(past), Part::LowerLeft);
        dots((q, k), (product, k), k, &mut rate_f[..n]);
        if let Some(to) = out.q {
            to.store(first, n, k, scale, product);
        }

        // dk.
        multiply(Left::rows(values, v), (grad_c, Place::panels(v)), (product, rows), from_v, Start::Zero, Part::Full);
        if call.p.normalize {
            product[..n * k].chunks_exact_mut(k).for_each(|row| add(row, 1.0, grad_n));
        }
        let queries = (&*q_panels, Place::panels(n));
        multiply(Left::transposed(ds, stride), queries, (product, rows), from_n, Start::Rows(into), Part::UpperLeft);
        dots((keys, k), (product, k), k, &mut rate_i[..n]);
        if let Some(to) = out.k {
            to.store(first, n, k, 1.0, product);
        }

        // dv, transposed.
        if let Some(to) = out.v {
            let (turned, size) = (Place::rows(stride), [v, stride / PANEL, k]);
            into[n..stride].fill(0.0);
            let keys_in = (&*k_turned, Place::panels(k));
            multiply(Left::panels(grad_c, v), keys_in, (dv, turned), size, Start::Zero, Part::Full);
            let (size, start) = ([v, stride / PANEL, n], Start::Columns(into));
            multiply(Left::transposed(dh, v), (s, pairs), (dv, turned), size, start, Part::LowerRight);
            untransposed(dv, stride, n, v, keys);
            to.store(first, n, v, 1.0, keys);
        }

        if out.i.is_none() && out.f.is_none() && out.initial.is_none() {
            return;
        }
        // <C_e, dC_e> + <n_e, dn_e> of the chunk's end.
        let mut rest = 0.0;
        if nth + 1 < chunks || up.grad_last.is_some() {
            rest = long_dot(memory.c.read(call.c_at(&chain, j + 1), size), grad_c);
            rest += long_dot(memory.n.read(call.n_at(&chain, j + 1), k), grad_n);
        }
        if nth + 1 == chunks {
            let grad_m = up.grad_last.and_then(|[_, _, m]| m.get(chain.nth).copied());
            memory.excess.write(chain.nth, 1)[0] = grad_m.map_or(0.0, |m| f64::from(m) - rest);
        }
        for t in (0..n).rev() {
            rest += f64::from(rate_f[t]) - f64::from(rate_i[t]);
            rate_f[t] = rest as f32;
        }
        finish_gates(call, out, first, n, [rate_i, rate_f], past);
    }
}

/// Turns the gradients of a chunk's logarithms into those of its gates, and writes them.
///
/// # Safety
/// The chunk's tokens must be the task's.
unsafe fn finish_gates(
    call: &Call<'_>,
    out: &Gradients,
    first: [usize; 3],
    n: usize,
    [rate_i, rate_f]: [&mut [f32]; 2],
    slopes: &mut [f32],
) {
    let slopes = &mut slopes[..n];
    let sigmoid = call.p.gate == crate::layers::mlstm::Gate::Sigmoid;
    let gates = [(out.f, call.f, rate_f, true), (out.i, call.i, rate_i, sigmoid)];
    for (to, from, rates, has_slope) in gates {
        let Some(to) = to else { continue };
        // SAFETY: as the caller promises.
        unsafe {
            if has_slope {
                from.load_scalars(first, n, slopes);
                // What a gate that is shut for good is owed is what roundings left of a sum.
                let shut = |x: f32| f64::from(x) < LOG_FORGET_LEAST;
                rates.iter_mut().zip(&*slopes).filter(|(_, s)| shut(**s)).for_each(|(r, _)| *r = 0.0);
                gates::slope(slopes);
                rates.iter_mut().zip(&*slopes).for_each(|(r, s)| *r *= s);
            }
            to.store_scalars(first, n, rates);
        }
    }
}

/// What is left for each chain: the gradient of its initial state, and what that of its last gauge adds.
fn ends(call: &Call<'_>, up: &Upstream<'_>, out: &Gradients, nth: usize) {
    let (k, v, chain) = (call.p.dqk, call.p.dv, call.chain(nth));
    let chunks = chain.chunks(call.length());
    // SAFETY: a chain's tokens and states are this task's.
    unsafe {
        let mut into_m = 0.0;
        if up.grad_last.is_some() && call.p.has_gauge() {
            into_m = if chunks == 0 {
                let [c, n, m] = up.grad_last.unwrap_or([&[]; 3]);
                let lost = call.initial.map_or(0.0, |[c0, n0, _]| {
                    long_dot(&c0[nth * k * v..][..k * v], &c[nth * k * v..][..k * v])
                        + long_dot(&n0[nth * k..][..k], &n[nth * k..][..k])
                });
                f64::from(m[nth]) - lost
            } else {
                through_the_gauge(call, out, &chain)
            };
        }
        let Some([c, n, m]) = out.initial else { return };
        let (size, _, panels) = call.form(Form::Transposed);
        let grad_n = call.memory.carry_n.read(nth * k, k);
        from_panels(call.memory.carry_c.read(nth * size, size), [k, v], Form::Transposed, 0..panels, c, nth * size);
        if call.p.normalize {
            n.write(nth * k, k).copy_from_slice(grad_n);
        }
        if call.p.has_gauge() {
            let [c0, n0, _] = call.initial.unwrap_or([&[]; 3]);
            let gauge =
                long_dot(&c0[nth * size..][..size], c.read(nth * size, size)) + long_dot(&n0[nth * k..][..k], grad_n);
            m.write(nth, 1)[0] = (gauge + into_m) as f32;
        }
    }
}

/// Follows the last gauge back to the token or the initial state that it is made of, and adds its gradient to the gates on
/// the way; returns what reaches the initial state.
///
/// # Safety
/// The chain's tokens must be the task's.
unsafe fn through_the_gauge(call: &Call<'_>, out: &Gradients, chain: &Chain) -> f64 {
    // SAFETY: as the caller promises; the chunks of the chain are done.
    let excess = unsafe { call.memory.excess.read(chain.nth, 1)[0] };
    let add_to = |to: Option<Tokens>, at: [usize; 3], x: f64| {
        let Some(to) = to else { return };
        let mut old = [0.0];
        // SAFETY: as above.
        unsafe {
            to.load_scalars(at, 1, &mut old);
            to.store_scalars(at, 1, &[(f64::from(old[0]) + x) as f32]);
        }
    };
    for nth in (0..chain.chunks(call.length())).rev() {
        let gates: Chunk<'_> = call.gates(chain, nth);
        let ([b, head, first], n) = chain.chunk(call.length(), nth);
        for t in (0..n).rev() {
            let (before, sum) =
                if t == 0 { (f64::from(gates.start), 0.0) } else { (gates.gauge(t - 1), gates.b[t - 1]) };
            let at = [b, head, first + t];
            let (here, past) = (f64::from(gates.li[t]), gates.b[t] - sum + before);
            if here.max(past) < GAUGE_LEAST {
                // The bound is made of nothing.
                return 0.0;
            }
            if here > past {
                add_to(out.i, at, excess);
                return 0.0;
            }
            let mut f = [0.0];
            // SAFETY: as above.
            unsafe { call.f.load_scalars(at, 1, &mut f) };
            gates::slope(&mut f);
            add_to(out.f, at, excess * f64::from(f[0]));
        }
    }
    excess
}
