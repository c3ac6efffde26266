//! The law: its forms agree, its backward passes are derivatives, and it has what the peers lack.

use crate::Dtype;
use crate::layers::mlstm::reference::ladder;
use crate::layers::mlstm::reference::{Cell, Gradients, State, Tokens, chunkwise, parallel, recurrent};
use crate::layers::mlstm::{Gate, Ladder, Rung};
use crate::op::{Pass, Problem, Values};
use crate::real::{Dual, Real};
use crate::rng::Rng;

/// Everything that one head is given, and the gradients of what it gives.
struct Head {
    cell: Cell,
    /// q, k, v, i, f.
    given: [Vec<f64>; 5],
    initial: State<f64>,
    grad_h: Vec<f64>,
    grad_last: State<f64>,
}

fn cell(gate: Gate, normalize: bool, dqk: usize, dv: usize) -> Cell {
    Cell { dqk, dv, gate, normalize, normalizer_grad: true, eps: 0.0 }
}

/// Every function that a head may compute.
fn cells(dqk: usize, dv: usize) -> [Cell; 3] {
    [cell(Gate::Exponential, true, dqk, dv), cell(Gate::Sigmoid, true, dqk, dv), cell(Gate::Sigmoid, false, dqk, dv)]
}

/// Normal numbers, f about 2, and a state in the gauge 0.3, where there are such things.
fn head(cell: Cell, steps: usize, seed: u64) -> Head {
    let mut rng = Rng::new(seed, 0);
    let mut draw = |n: usize, mean: f64| -> Vec<f64> { (0..n).map(|_| mean + rng.normal()).collect() };
    let mut state = |scale: f64| State {
        c: draw(cell.dqk * cell.dv, 0.0),
        n: draw(cell.dqk, 0.0).iter().map(|&x| if cell.normalize { scale * x } else { 0.0 }).collect(),
        m: if cell.gate == Gate::Exponential { 0.3 } else { 0.0 },
    };
    let (initial, grad_last) = (state(2.0), state(1.0));
    let (k, v) = (cell.dqk, cell.dv);
    Head {
        given: [(k, 0.0), (k, 0.0), (v, 0.0), (1, 0.0), (1, 2.0)].map(|(width, mean)| draw(steps * width, mean)),
        grad_h: draw(steps * v, 0.0),
        cell,
        initial,
        grad_last,
    }
}

impl Head {
    fn tokens(&self) -> Tokens<'_, f64> {
        tokens(&self.given)
    }
    /// Without a state in or out, as the parallel form has it.
    fn stateless(mut self) -> Self {
        (self.initial, self.grad_last) = (State::zeros(&self.cell), State::zeros(&self.cell));
        self
    }
}

fn tokens<R>(given: &[Vec<R>; 5]) -> Tokens<'_, R> {
    let [q, k, v, i, f] = given;
    Tokens { q, k, v, i, f }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    if norm(b) == 0.0 { norm(&difference) } else { norm(&difference) / norm(b) }
}

/// The parts of gradients with their names.
fn parts(g: &Gradients<f64>) -> [(&'static str, Vec<f64>); 8] {
    let i = &g.initial;
    [
        ("q", g.q.clone()),
        ("k", g.k.clone()),
        ("v", g.v.clone()),
        ("i", g.i.clone()),
        ("f", g.f.clone()),
        ("c_initial", i.c.clone()),
        ("n_initial", i.n.clone()),
        ("m_initial", vec![i.m]),
    ]
}

fn assert_same(what: &str, a: &Gradients<f64>, b: &Gradients<f64>, bound: f64) {
    for ((name, a), (_, b)) in parts(a).into_iter().zip(parts(b)) {
        assert!(distance(&a, &b) <= bound, "{what}: grad_{name} differs by {:e}", distance(&a, &b));
    }
}

type Forward<'f, R> = dyn Fn(&Cell, &Tokens<'_, R>, &State<R>) -> (Vec<R>, State<R>) + 'f;

/// The rate of `<grad_h, h> + <grad_last, last>` as everything moves at once, by dual numbers, against the gradients.
fn assert_derivative(what: &str, x: &Head, forward: &Forward<'_, Dual>, g: &Gradients<f64>) {
    let mut rng = Rng::new(17, 3);
    for trial in 0..4 {
        let mut want = 0.0;
        let mut rates = parts(g).into_iter().map(|(_, g)| {
            let rate: Vec<f64> = g.iter().map(|_| rng.normal()).collect();
            want += g.iter().zip(&rate).map(|(g, r)| g * r).sum::<f64>();
            rate
        });
        let mut dual = |values: &[f64]| -> Vec<Dual> {
            let rate = rates.next().unwrap();
            values.iter().zip(rate).map(|(&v, r)| Dual::new(v, r)).collect()
        };
        let given = [0, 1, 2, 3, 4].map(|nth: usize| dual(&x.given[nth]));
        let (c, mut n, mut m) = (dual(&x.initial.c), dual(&x.initial.n), dual(&[x.initial.m])[0]);
        // What does not exist does not move.
        if !x.cell.normalize {
            n.iter_mut().for_each(|n| *n = Dual::from_f64(0.0));
        }
        if x.cell.gate == Gate::Sigmoid {
            m = Dual::from_f64(0.0);
        }
        let (h, last) = forward(&x.cell, &tokens(&given), &State { c, n, m });
        let weigh = |y: &[Dual], g: &[f64]| -> f64 { y.iter().zip(g).map(|(y, g)| y.derivative * g).sum() };
        let mut got = weigh(&h, &x.grad_h) + weigh(&last.c, &x.grad_last.c) + weigh(&last.n, &x.grad_last.n);
        if x.cell.gate == Gate::Exponential {
            got += weigh(&[last.m], &[x.grad_last.m]);
        }
        drop(rates);
        // Where n does not exist its gradient is 0, so it adds nothing to `want` either.
        let scale = norm(&parts(g).iter().map(|(_, g)| norm(g)).collect::<Vec<_>>());
        let error = (got - want).abs() / scale;
        assert!(error <= 1e-12, "{what}, trial {trial}: {got} against {want}");
    }
}

#[test]
fn the_recurrent_backward_pass_is_the_derivative() {
    for (nth, cell) in cells(5, 4).into_iter().enumerate() {
        // 70 steps are more than the backward pass keeps at a time.
        for steps in [0, 1, 2, 13, 70] {
            let x = head(cell, steps, 10 + nth as u64);
            let g = recurrent::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last);
            assert_derivative(&format!("{cell:?} T={steps}"), &x, &recurrent::forward::<Dual>, &g);
        }
    }
}

#[test]
fn the_chunkwise_backward_pass_is_the_derivative() {
    for (nth, cell) in cells(3, 6).into_iter().enumerate() {
        for (steps, length) in [(1, 4), (9, 4), (12, 4), (17, 32)] {
            let x = head(cell, steps, 30 + nth as u64);
            let g = chunkwise::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last, length);
            let forward = |c: &Cell, t: &Tokens<'_, Dual>, s: &State<Dual>| chunkwise::forward(c, t, s, length);
            assert_derivative(&format!("{cell:?} T={steps} L={length}"), &x, &forward, &g);
        }
    }
}

#[test]
fn the_parallel_backward_pass_is_the_derivative() {
    for (nth, cell) in cells(4, 4).into_iter().enumerate() {
        for steps in [1, 2, 19] {
            let x = head(cell, steps, 50 + nth as u64).stateless();
            let mut g = parallel::backward(&cell, &x.tokens(), &x.grad_h);
            let forward = |c: &Cell, t: &Tokens<'_, Dual>, s: &State<Dual>| (parallel::forward(c, t), s.clone());
            g.initial = State::zeros(&cell);
            assert_derivative(&format!("{cell:?} T={steps}"), &x, &forward, &g);
        }
    }
}

#[test]
fn all_forms_are_one_function() {
    for (nth, cell) in cells(6, 3).into_iter().enumerate() {
        let x = head(cell, 41, 70 + nth as u64);
        let (h, last) = recurrent::forward(&cell, &x.tokens(), &x.initial);
        let g = recurrent::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last);
        for length in [1, 2, 7, 16, 41, 64] {
            let (other, end) = chunkwise::forward(&cell, &x.tokens(), &x.initial, length);
            let what = format!("{cell:?} L={length}");
            assert!(distance(&other, &h) < 1e-12, "{what}");
            assert!(distance(&end.c, &last.c) < 1e-12 && distance(&end.n, &last.n) < 1e-12, "{what}");
            assert!((end.m - last.m).abs() < 1e-13, "{what}");
            let other = chunkwise::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last, length);
            assert_same(&what, &other, &g, 1e-11);
        }
        let x = x.stateless();
        let (h, _) = recurrent::forward(&cell, &x.tokens(), &x.initial);
        let mut g = recurrent::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last);
        assert!(distance(&parallel::forward(&cell, &x.tokens()), &h) < 1e-12);
        g.initial = State::zeros(&cell);
        assert_same("parallel", &parallel::backward(&cell, &x.tokens(), &x.grad_h), &g, 1e-11);
    }
}

/// The units in which the gauge drops out.
#[test]
fn the_gauge_changes_nothing() {
    let cell = cell(Gate::Exponential, true, 4, 4);
    let x = head(cell, 9, 90);
    let moved = |by: f64| State {
        c: x.initial.c.iter().map(|c| c * (-by).exp()).collect(),
        n: x.initial.n.iter().map(|n| n * (-by).exp()).collect(),
        m: x.initial.m + by,
    };
    let (h, last) = recurrent::forward(&cell, &x.tokens(), &x.initial);
    for by in [-3.0, 5.0, 20.0] {
        let (other, end) = recurrent::forward(&cell, &x.tokens(), &moved(by));
        assert!(distance(&other, &h) < 1e-12, "{by}");
        let unit = |s: &State<f64>| -> Vec<f64> { s.c.iter().map(|c| c * s.m.exp()).collect() };
        assert!(distance(&unit(&end), &unit(&last)) < 1e-12, "{by}");
    }
}

/// Spec 1.6 a: every custom backward pass of the peers drops the normaliser's gradient. It is zero only where a norm of
/// each head follows.
#[test]
fn case_a_the_normalisers_gradient_is_there() {
    let exact = cell(Gate::Exponential, true, 16, 16);
    let dropped = Cell { normalizer_grad: false, ..exact };
    let mut x = head(exact, 64, 100).stateless();
    let both =
        |x: &Head| [exact, dropped].map(|c| recurrent::backward(&c, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last));
    let [g, without] = both(&x);
    for (name, a, b) in
        [("q", &without.q, &g.q), ("k", &without.k, &g.k), ("i", &without.i, &g.i), ("f", &without.f, &g.f)]
    {
        assert!(distance(a, b) > 0.3, "without it grad_{name} is off by {:e} only", distance(a, b));
    }
    assert!(distance(&without.v, &g.v) < 1e-14);
    // The gradient of sum w h / |h|, which does not see the scale of h, is orthogonal to h.
    let (h, _) = recurrent::forward(&exact, &x.tokens(), &x.initial);
    for (h, g) in h.chunks(16).zip(x.grad_h.chunks_mut(16)) {
        let along = h.iter().zip(&*g).map(|(h, g)| h * g).sum::<f64>() / h.iter().map(|h| h * h).sum::<f64>();
        g.iter_mut().zip(h).for_each(|(g, h)| *g -= along * h);
    }
    let pair = both(&x).map(|mut g| {
        // n enters h by the normaliser alone: its gradient is a rounding here, and 0 there.
        assert!(norm(&g.initial.n) < 1e-12);
        g.initial.n.fill(0.0);
        g
    });
    assert_same("before a norm", &pair[1], &pair[0], 1e-10);
}

/// Spec 1.6 b: <C_T, dC_T> belongs to the forget gates' gradients, and dn_0 and dm_0 are not zero.
#[test]
fn case_b_gradients_of_the_last_state_reach_gates_and_initial_state() {
    let cell = cell(Gate::Exponential, true, 4, 5);
    let mut x = head(cell, 11, 110);
    x.grad_h.fill(0.0);
    // A consumer that knows the state as e^m C only.
    let (_, last) = recurrent::forward(&cell, &x.tokens(), &x.initial);
    x.grad_last.m = last.dot(&x.grad_last);
    for length in [4, 11] {
        let g = chunkwise::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last, length);
        // Every forget gate scales the whole initial state, whose part of the last is at least that.
        assert!(norm(&g.f) > 0.1 && norm(&g.initial.n) > 1e-3 && g.initial.m.abs() > 1e-3, "{g:?}");
        assert!((g.initial.m - x.initial.dot(&g.initial)).abs() < 1e-12);
        let forward = |c: &Cell, t: &Tokens<'_, Dual>, s: &State<Dual>| chunkwise::forward(c, t, s, length);
        assert_derivative("last state", &x, &forward, &g);
    }
}

/// Spec 1.6 c: the gradients of states do not depend on how long a chunk is, beyond 128 tokens either.
#[test]
fn case_c_chunks_beyond_128_tokens_have_the_same_gradients() {
    let cell = cell(Gate::Exponential, true, 8, 8);
    let x = head(cell, 600, 120);
    let of = |length| chunkwise::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last, length);
    let g = of(64);
    for length in [128, 192, 256, 512] {
        assert_same(&format!("L={length}"), &of(length), &g, 1e-10);
    }
}

/// Spec 1.6 d: the sigmoid gate steps, and takes any number of tokens.
#[test]
fn case_d_the_sigmoid_gate_steps_and_takes_any_length() {
    for normalize in [false, true] {
        let cell = cell(Gate::Sigmoid, normalize, 6, 6);
        for steps in [1, 3, 37, 100] {
            let x = head(cell, steps, 130 + steps as u64);
            let (h, last) = chunkwise::forward(&cell, &x.tokens(), &x.initial, 16);
            let mut state = x.initial.clone();
            let all = x.tokens();
            let stepped: Vec<f64> =
                (0..steps).flat_map(|t| recurrent::step(&cell, &mut state, &all.range(&cell, t, t + 1))).collect();
            assert!(distance(&stepped, &h) < 1e-12 && distance(&state.c, &last.c) < 1e-12, "T={steps}");
            assert_eq!(state.m, 0.0);
        }
    }
}

#[test]
fn a_split_anywhere_is_the_whole() {
    for cell in cells(4, 4) {
        let x = head(cell, 23, 140);
        let (h, last) = chunkwise::forward(&cell, &x.tokens(), &x.initial, 8);
        for at in 0..=23 {
            let (mut first, middle) = chunkwise::forward(&cell, &x.tokens().range(&cell, 0, at), &x.initial, 8);
            let (second, end) = chunkwise::forward(&cell, &x.tokens().range(&cell, at, 23), &middle, 8);
            first.extend(second);
            assert!(distance(&first, &h) < 1e-12 && distance(&end.c, &last.c) < 1e-12, "split at {at}");
        }
    }
}

/// Gates of +-40, keys of zeros, and both: finite, and the gradients still derivatives.
#[test]
fn extreme_gates_and_zero_keys_stay_finite() {
    for cell in cells(4, 4) {
        for (i, f) in [(40.0, 40.0), (40.0, -40.0), (-40.0, 40.0), (-40.0, -40.0)] {
            for zero_keys in [false, true] {
                let mut x = head(cell, 20, 150);
                x.given[3].iter_mut().step_by(2).for_each(|x| *x = i);
                x.given[4].iter_mut().step_by(3).for_each(|x| *x = f);
                if zero_keys {
                    x.given[1].fill(0.0);
                }
                let what = format!("{cell:?} i={i} f={f} zero keys: {zero_keys}");
                let (h, last) = chunkwise::forward(&cell, &x.tokens(), &x.initial, 8);
                let (other, end) = recurrent::forward(&cell, &x.tokens(), &x.initial);
                assert!(distance(&h, &other) < 1e-11 && distance(&last.c, &end.c) < 1e-11, "{what}");
                let g = chunkwise::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last, 8);
                assert!(parts(&g).iter().all(|(_, g)| g.iter().all(|x| x.is_finite())), "{what}");
                let forward = |c: &Cell, t: &Tokens<'_, Dual>, s: &State<Dual>| chunkwise::forward(c, t, s, 8);
                assert_derivative(&what, &x, &forward, &g);
            }
        }
    }
}

/// Gates that are shut for good: a forget gate of -inf leaves nothing of the past, an input gate of it writes nothing, and both leave
/// zeros; all forms agree, gradients are derivatives, and those of shut gates are 0.
#[test]
fn gates_of_minus_infinity_reset_and_write_nothing() {
    let shut = f64::NEG_INFINITY;
    for (nth, cell) in cells(4, 5).into_iter().enumerate() {
        let mut x = head(cell, 22, 160 + nth as u64);
        let (f_shut, i_shut) = ([0, 5, 6, 13, 21], [0, 3, 6, 7, 14, 21]);
        f_shut.iter().for_each(|&t| x.given[4][t] = shut);
        i_shut.iter().for_each(|&t| x.given[3][t] = shut);
        let what = format!("{cell:?}");
        let (h, last) = recurrent::forward(&cell, &x.tokens(), &x.initial);
        assert!(h.iter().chain(&last.c).chain(&last.n).chain([&last.m]).all(|x| x.is_finite()), "{what}");
        // The last token does both.
        assert!(last.c.iter().chain(&last.n).chain(&h[21 * 5..]).all(|&x| x == 0.0), "{what}");
        // Behind a reset nothing is known of what was before it.
        let (alone, _) = recurrent::forward(&cell, &x.tokens().range(&cell, 13, 22), &State::zeros(&cell));
        assert!(distance(&h[13 * 5..], &alone) < 1e-14, "{what}");
        let g = recurrent::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last);
        assert_derivative(&what, &x, &recurrent::forward::<Dual>, &g);
        let none = |g: &Gradients<f64>| {
            assert!(f_shut.iter().all(|&t| g.f[t] == 0.0) && i_shut.iter().all(|&t| g.i[t] == 0.0), "{what}: {g:?}");
            assert!(parts(g).iter().all(|(_, g)| g.iter().all(|x| x.is_finite())), "{what}");
        };
        none(&g);
        for length in [1, 6, 8, 64] {
            let (other, end) = chunkwise::forward(&cell, &x.tokens(), &x.initial, length);
            assert!(distance(&other, &h) < 1e-12 && distance(&end.c, &last.c) < 1e-12 && end.m == last.m, "{what}");
            let other = chunkwise::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last, length);
            none(&other);
            assert_same(&format!("{what} L={length}"), &other, &g, 1e-11);
        }
        let x = x.stateless();
        let (h, _) = recurrent::forward(&cell, &x.tokens(), &x.initial);
        let mut g = recurrent::backward(&cell, &x.tokens(), &x.initial, &x.grad_h, &x.grad_last);
        assert!(distance(&parallel::forward(&cell, &x.tokens()), &h) < 1e-12, "{what}");
        let other = parallel::backward(&cell, &x.tokens(), &x.grad_h);
        none(&other);
        g.initial = State::zeros(&cell);
        assert_same("parallel", &other, &g, 1e-11);
    }
}

/// Of each of the ladder's steps: the rate of `<grad, result>` as everything that is given moves at once.
#[test]
fn the_ladders_backward_passes_are_derivatives() {
    let (t, k, v) = (7, 16, 32);
    for rung in [Rung::Product, Rung::Qkv, Rung::Causal] {
        let p = Ladder::new(rung, [1, 1, t, k, v], Dtype::F32).unwrap();
        let mut rng = Rng::new(3, rung as u64);
        let mut draw = |n: usize| -> Vec<f64> { (0..n).map(|_| rng.normal()).collect() };
        let sizes = if rung == Rung::Product { vec![t * k, k * v] } else { vec![t * k, t * k, t * v] };
        let given: Vec<Vec<f64>> = sizes.iter().map(|&n| draw(n)).collect();
        let rates: Vec<Vec<f64>> = sizes.iter().map(|&n| draw(n)).collect();
        let grad = draw(t * v);
        let duals: Vec<Vec<Dual>> =
            given.iter().zip(&rates).map(|(x, r)| x.iter().zip(r).map(|(&x, &r)| Dual::new(x, r)).collect()).collect();
        let along = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let moved: Vec<f64> = ladder::forward(&p, &duals).iter().map(|x| x.derivative).collect();
        let want = along(&moved, &grad);
        let got: f64 = ladder::backward(&p, &given, &grad).iter().zip(&rates).map(|(g, r)| along(g, r)).sum();
        assert!((got - want).abs() <= 1e-12 * want.abs().max(1.0), "{rung:?}: {got} against {want}");
    }
}

/// The mask is in the sums: with one pair that the causal step has not, both steps differ by that pair alone.
#[test]
fn the_causal_step_leaves_out_the_pairs_above_the_diagonal() {
    let sizes = [1, 1, 2, 16, 16];
    let result = |rung| {
        let p = Ladder::new(rung, sizes, Dtype::F32).unwrap();
        let inputs = p.sample(Pass::Forward, 5).unwrap();
        let h: Values = p.reference(Pass::Forward, &inputs, false).unwrap().get("h").unwrap().clone();
        (inputs, h)
    };
    let ((inputs, all), (_, causal)) = (result(Rung::Qkv), result(Rung::Causal));
    let row = |name: &str, t: usize| inputs.get(name).unwrap().data[16 * t..16 * (t + 1)].to_vec();
    let pair = row("q", 0).iter().zip(row("k", 1)).map(|(q, k)| q * k).sum::<f64>() / 4.0;
    for (d, v) in row("v", 1).iter().enumerate() {
        assert!((all.data[d] - causal.data[d] - pair * v).abs() < 1e-12);
        assert_eq!(all.data[16 + d], causal.data[16 + d]);
    }
}
