//! What is done to each unit between the products: a row at a time, units in the lanes of vectors. Rows are padded, and
//! what stands behind their end is never looked at.

use super::gemm::{load, store};
use crate::layers::cfc::spec::{Activation, Mode};
use crate::simd_math::{Lanes, normal, sigmoid, tanh};

/// Both results of `f`, for n units.
#[inline(always)]
fn each<const N: usize>(
    z: &[f32],
    y: &mut [f32],
    slope: &mut [f32],
    n: usize,
    f: impl Fn(Lanes<N>) -> (Lanes<N>, Lanes<N>),
) {
    for j in (0..n).step_by(N) {
        let (value, rate) = f(load(&z[j..]));
        store(&mut y[j..], value);
        store(&mut slope[j..], rate);
    }
}

/// The activation of `z` to `y`, and its derivative to `slope`.
#[inline(always)]
fn activate_body<const FMA: bool, const R: usize, const N: usize>(
    activation: Activation,
    z: &[f32],
    y: &mut [f32],
    slope: &mut [f32],
    n: usize,
) {
    let c = Lanes::<N>::splat;
    let one = c(1.0);
    match activation {
        Activation::LecunTanh => each(z, y, slope, n, |x: Lanes<N>| {
            let t = tanh::<FMA, N>(x * c(0.666));
            (t * c(1.7159), c(1.7159 * 0.666) * (one - t) * (one + t))
        }),
        Activation::Tanh => each(z, y, slope, n, |x: Lanes<N>| {
            let t = tanh::<FMA, N>(x);
            (t, (one - t) * (one + t))
        }),
        // A NaN stays one.
        Activation::Relu => each(z, y, slope, n, |x: Lanes<N>| {
            (x.map(|x| if x <= 0.0 { 0.0 } else { x }), x.map(|x| if x > 0.0 { 1.0 } else { 0.0 }))
        }),
        Activation::Gelu => each(z, y, slope, n, |x: Lanes<N>| {
            let (below, density) = normal::<FMA, N>(x);
            (x * below, x.mul_add::<FMA>(density, below))
        }),
        Activation::Silu => each(z, y, slope, n, |x: Lanes<N>| {
            let s = sigmoid::<FMA, N>(x);
            (x * s, x.mul_add::<FMA>(s * sigmoid::<FMA, N>(x.map(|x| -x)), s))
        }),
    }
}
crate::levels!(pub(super) fn activate(activation: Activation, z: &[f32], y: &mut [f32], slope: &mut [f32], n: usize) = activate_body, 4, [8, 8, 16]);

/// The new neurons from the heads `z`, `[heads, n]`, and what is kept of them, a row every `stride` floats.
///
/// `own` is w_tau and A in mode pure.
#[inline(always)]
fn heads_body<const FMA: bool, const R: usize, const N: usize>(
    mode: Mode,
    z: &[f32],
    n: usize,
    dt: f32,
    own: [&[f32]; 2],
    kept: &mut [f32],
    stride: usize,
    new: &mut [f32],
) {
    let (dt, one) = (Lanes::<N>::splat(dt), Lanes::splat(1.0));
    for j in (0..n).step_by(N) {
        let z = |k: usize| load::<N>(&z[k * n + j..]);
        let mut keep = |k: usize, x| store(&mut kept[k * stride + j..], x);
        let h = if mode == Mode::Pure {
            let (f, w, a) = (z(0), load::<N>(&own[0][j..]), load(&own[1][j..]));
            let decay = dt * (w.map(f32::abs) + f.map(f32::abs));
            let e = crate::simd_math::exp::<FMA, N>(decay.map(|x| -x));
            keep(0, f);
            keep(1, e);
            a - a * e * f
        } else {
            let (f1, f2) = (tanh::<FMA, N>(z(0)), tanh::<FMA, N>(z(1)));
            let s = sigmoid::<FMA, N>(z(2).mul_add::<FMA>(dt, z(3)));
            keep(0, f1);
            keep(1, f2);
            keep(2, s);
            keep(3, z(2));
            let first = if mode == Mode::NoGate { f1 } else { f1 * (one - s) };
            s.mul_add::<FMA>(f2, first)
        };
        store(&mut new[j..], h);
    }
}
crate::levels!(pub(super) fn heads(mode: Mode, z: &[f32], n: usize, dt: f32, own: [&[f32]; 2], kept: &mut [f32], stride: usize, new: &mut [f32]) = heads_body, 4, [8, 8, 16]);

/// The gradients of the heads (and of w_tau and A behind the only one of mode pure), from those of the new neurons; and
/// in `times` each neuron's share in the gradient of the time. A row every `stride` floats.
#[inline(always)]
fn heads_back_body<const FMA: bool, const R: usize, const N: usize>(
    mode: Mode,
    g: &[f32],
    n: usize,
    dt: f32,
    own: [&[f32]; 2],
    kept: &[f32],
    stride: usize,
    grads: &mut [f32],
    times: &mut [f32],
) {
    let (dt, one) = (Lanes::<N>::splat(dt), Lanes::splat(1.0));
    let sign = |x: f32| if x == 0.0 { 0.0 } else { 1f32.copysign(x) };
    for j in (0..n).step_by(N) {
        let g = load::<N>(&g[j..]);
        let kept = |k: usize| load::<N>(&kept[k * stride + j..]);
        let mut give = |k: usize, x| store(&mut grads[k * stride + j..], x);
        let time = if mode == Mode::Pure {
            let (f, e) = (kept(0), kept(1));
            let (w, a) = (load::<N>(&own[0][j..]), load(&own[1][j..]));
            let through = g * a * f * e;
            give(0, through * dt * f.map(sign) - g * a * e);
            give(1, through * dt * w.map(sign));
            give(2, g * (one - e * f));
            through * (w.map(f32::abs) + f.map(f32::abs))
        } else {
            let (f1, f2, s, a) = (kept(0), kept(1), kept(2), kept(3));
            let gated = mode == Mode::Default;
            let ds = g * if gated { f2 - f1 } else { f2 } * s * (one - s);
            give(0, if gated { g * (one - s) } else { g } * (one - f1) * (one + f1));
            give(1, g * s * (one - f2) * (one + f2));
            give(2, ds * dt);
            give(3, ds);
            ds * a
        };
        store(&mut times[j..], time);
    }
}
crate::levels!(pub(super) fn heads_back(mode: Mode, g: &[f32], n: usize, dt: f32, own: [&[f32]; 2], kept: &[f32], stride: usize, grads: &mut [f32], times: &mut [f32]) = heads_back_body, 4, [8, 8, 16]);

/// One step of the LSTM from its maps `z`, `[4, n]`: its gates, a row every `stride` floats, its cell in place, its state.
#[inline(always)]
fn lstm_body<const FMA: bool, const R: usize, const N: usize>(
    z: &[f32],
    n: usize,
    gates: &mut [f32],
    stride: usize,
    cell: &mut [f32],
    state: &mut [f32],
) {
    for j in (0..n).step_by(N) {
        let z = |k: usize| load::<N>(&z[k * n + j..]);
        let (i, ig) = (tanh::<FMA, N>(z(0)), sigmoid::<FMA, N>(z(1)));
        let (fg, og) = (sigmoid::<FMA, N>(z(2) + Lanes::splat(1.0)), sigmoid::<FMA, N>(z(3)));
        for (k, gate) in [i, ig, fg, og].into_iter().enumerate() {
            store(&mut gates[k * stride + j..], gate);
        }
        let c = load::<N>(&cell[j..]).mul_add::<FMA>(fg, i * ig);
        store(&mut cell[j..], c);
        store(&mut state[j..], og * tanh::<FMA, N>(c));
    }
}
crate::levels!(pub(super) fn lstm(z: &[f32], n: usize, gates: &mut [f32], stride: usize, cell: &mut [f32], state: &mut [f32]) = lstm_body, 4, [8, 8, 16]);

/// The gradients of the LSTM's maps, a row every `stride` floats, from that of its state `g`; that of its cell in place.
#[inline(always)]
fn lstm_back_body<const FMA: bool, const R: usize, const N: usize>(
    g: &[f32],
    n: usize,
    gates: &[f32],
    stride: usize,
    cells: [&[f32]; 2],
    grads: &mut [f32],
    grad_cell: &mut [f32],
) {
    let one = Lanes::<N>::splat(1.0);
    for j in (0..n).step_by(N) {
        let gate = |k: usize| load::<N>(&gates[k * stride + j..]);
        let (i, ig, fg, og) = (gate(0), gate(1), gate(2), gate(3));
        let (g, before, y) = (load::<N>(&g[j..]), load::<N>(&cells[0][j..]), tanh::<FMA, N>(load(&cells[1][j..])));
        let dc = load::<N>(&grad_cell[j..]) + g * og * (one - y) * (one + y);
        let all = [
            dc * ig * (one - i) * (one + i),
            dc * i * ig * (one - ig),
            dc * before * fg * (one - fg),
            g * y * og * (one - og),
        ];
        for (k, x) in all.into_iter().enumerate() {
            store(&mut grads[k * stride + j..], x);
        }
        store(&mut grad_cell[j..], dc * fg);
    }
}
crate::levels!(pub(super) fn lstm_back(g: &[f32], n: usize, gates: &[f32], stride: usize, cells: [&[f32]; 2], grads: &mut [f32], grad_cell: &mut [f32]) = lstm_back_body, 4, [8, 8, 16]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::cfc::reference::erf;

    #[test]
    fn the_normal_distribution_keeps_its_tail() {
        for k in -500..=500 {
            let x = k as f32 / 100.0;
            let (below, density) = normal::<true, 8>(Lanes::splat(x));
            let x = f64::from(x);
            // erfc by its own series would be needed far out; 1 + erf has 12 digits left at -5.
            let want = 0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2));
            let error = (f64::from(below.0[0]) - want).abs() / want;
            assert!(error < 2e-6, "at {x}: {} and not {want}", below.0[0]);
            let want = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            assert!((f64::from(density.0[0]) - want).abs() < 2e-6 * want, "the density at {x}");
        }
    }
}
