//! Maps of every step by itself, over rows of any length, in vectors.

use crate::simd_math::{Lanes, exp, sigmoid, softplus as log_one_plus_exp, tanh};

/// N numbers from `at` on; beyond the end 0.
#[inline(always)]
fn load<const N: usize>(from: &[f32], at: usize) -> Lanes<N> {
    match from[at..].first_chunk::<N>() {
        Some(all) => Lanes(*all),
        None => Lanes(std::array::from_fn(|l| from.get(at + l).copied().unwrap_or(0.0))),
    }
}
#[inline(always)]
fn store<const N: usize>(to: &mut [f32], at: usize, x: Lanes<N>) {
    to[at..].iter_mut().zip(x.0).for_each(|(to, x)| *to = x);
}
#[inline(always)]
fn negative<const N: usize>(x: Lanes<N>) -> Lanes<N> {
    x.map(|x| -x)
}

#[inline(always)]
fn mingru_body<const FMA: bool, const R: usize, const N: usize>(k: &[f32], v: &[f32], a: &mut [f32], x: &mut [f32]) {
    for at in (0..k.len()).step_by(N) {
        let k = load::<N>(k, at);
        store(a, at, sigmoid::<FMA, N>(negative(k)));
        store(x, at, sigmoid::<FMA, N>(k) * load(v, at));
    }
}
crate::levels!(pub(super) fn mingru(k: &[f32], v: &[f32], a: &mut [f32], x: &mut [f32]) = mingru_body, 1, [4, 8, 16]);

/// From k, v and the gradients of a and x.
#[inline(always)]
fn mingru_backward_body<const FMA: bool, const R: usize, const N: usize>(
    given: [&[f32]; 4],
    grad_k: &mut [f32],
    grad_v: &mut [f32],
) {
    for at in (0..given[0].len()).step_by(N) {
        let [k, v, ga, gx] = given.map(|row| load::<N>(row, at));
        let (z, a) = (sigmoid::<FMA, N>(k), sigmoid::<FMA, N>(negative(k)));
        store(grad_k, at, (gx * v - ga) * z * a);
        store(grad_v, at, gx * z);
    }
}
crate::levels!(pub(super) fn mingru_backward(given: [&[f32]; 4], grad_k: &mut [f32], grad_v: &mut [f32]) = mingru_backward_body, 1, [4, 8, 16]);

/// `(r, a, gain)` of RG-LRU: sigmoid(r), e^-rate and sqrt(1 - e^-2rate), for rate = `most` sigmoid(r).
#[inline(always)]
fn rglru_gate<const FMA: bool, const N: usize>(most: f32, r: Lanes<N>) -> [Lanes<N>; 3] {
    let r = sigmoid::<FMA, N>(r);
    let rate = r * Lanes::splat(most);
    // 1 - e^-2y = 2 tanh y / (1 + tanh y), which does not cancel where y is small.
    let t = tanh::<FMA, N>(rate);
    let gain = ((t + t) / (t + Lanes::splat(1.0))).map(f32::sqrt);
    [r, exp::<FMA, N>(negative(rate)), gain]
}

#[inline(always)]
fn rglru_body<const FMA: bool, const R: usize, const N: usize>(
    most: f32,
    r: &[f32],
    i: &[f32],
    v: &[f32],
    a: &mut [f32],
    x: &mut [f32],
) {
    for at in (0..r.len()).step_by(N) {
        let [_, gate, gain] = rglru_gate::<FMA, N>(most, load(r, at));
        store(a, at, gate);
        store(x, at, gain * sigmoid::<FMA, N>(load(i, at)) * load(v, at));
    }
}
crate::levels!(pub(super) fn rglru(most: f32, r: &[f32], i: &[f32], v: &[f32], a: &mut [f32], x: &mut [f32]) = rglru_body, 1, [4, 8, 16]);

/// From r, i, v and the gradients of a and x; `sum` is that of the rate's gradient times sigmoid(r).
#[inline(always)]
fn rglru_backward_body<const FMA: bool, const R: usize, const N: usize>(
    most: f32,
    given: [&[f32]; 5],
    grad_r: &mut [f32],
    grad_i: &mut [f32],
    grad_v: &mut [f32],
    sum: &mut f32,
) {
    let mut sums = Lanes::<N>::splat(0.0);
    let length = given[0].len();
    for at in (0..length).step_by(N) {
        let [raw, i, v, ga, gx] = given.map(|row| load::<N>(row, at));
        let [r, a, gain] = rglru_gate::<FMA, N>(most, raw);
        let (open, shut) = (sigmoid::<FMA, N>(i), sigmoid::<FMA, N>(negative(i)));
        let of_rate = gx * open * v * a * a / gain - ga * a;
        store(grad_r, at, of_rate * r * Lanes::splat(most) * sigmoid::<FMA, N>(negative(raw)));
        store(grad_i, at, gx * gain * v * open * shut);
        store(grad_v, at, gx * gain * open);
        // Lanes beyond the end have no gradients, so they add 0.
        sums = of_rate.mul_add::<FMA>(r, sums);
    }
    *sum = sums.0.iter().sum();
}
crate::levels!(pub(super) fn rglru_backward(most: f32, given: [&[f32]; 5], grad_r: &mut [f32], grad_i: &mut [f32], grad_v: &mut [f32], sum: &mut f32) = rglru_backward_body, 1, [4, 8, 16]);

#[inline(always)]
fn softplus_body<const FMA: bool, const R: usize, const N: usize>(sign: f32, raw: &[f32], y: &mut [f32]) {
    for at in (0..raw.len()).step_by(N) {
        store(y, at, log_one_plus_exp::<FMA, N>(load(raw, at)) * Lanes::splat(sign));
    }
}
crate::levels!(pub(super) fn softplus(sign: f32, raw: &[f32], y: &mut [f32]) = softplus_body, 1, [4, 8, 16]);

#[inline(always)]
fn softplus_backward_body<const FMA: bool, const R: usize, const N: usize>(
    sign: f32,
    raw: &[f32],
    grad_y: &[f32],
    grad: &mut [f32],
) {
    for at in (0..raw.len()).step_by(N) {
        store(grad, at, sigmoid::<FMA, N>(load(raw, at)) * load(grad_y, at) * Lanes::splat(sign));
    }
}
crate::levels!(pub(super) fn softplus_backward(sign: f32, raw: &[f32], grad_y: &[f32], grad: &mut [f32]) = softplus_backward_body, 1, [4, 8, 16]);
