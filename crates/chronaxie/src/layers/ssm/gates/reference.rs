//! The law: the providers' maps, element by element.

use super::super::complex::{Complex, Field as _};
use super::super::providers::gated::{self, RgLru, Step};
use super::super::providers::{lru, mamba, s5, unitary};
use super::kind::Kind;
use super::spec::SsmGates;
use crate::real::Real;

/// The most numbers of one step on one side, real and imaginary parts counted, and the most parameters of a channel.
const MOST: usize = 4;

type Numbers<R> = [R; MOST];

/// What one step is made of, or the gradients of it.
#[derive(Clone, Copy)]
struct Element<R> {
    step: Numbers<R>,
    channel: Numbers<R>,
}

/// The outputs, each `[B, D, T]`, from the inputs in the order of the signature. Parts of complex numbers lie side by side.
pub fn forward<R: Real>(p: &SsmGates, inputs: &[Vec<R>]) -> Vec<Vec<R>> {
    let (form, width) = (p.kind.form(), width(p.kind));
    let mut outputs = vec![vec![nil(); p.batch * p.channels * p.steps * width]; form.outputs.len()];
    each(p, |at, channel| {
        let y = one(p.kind, read(p, inputs, at, channel));
        let all = outputs
            .iter_mut()
            .enumerate()
            .flat_map(|(k, to)| to[at * width..][..width].iter_mut().zip(&y[k * width..]));
        all.for_each(|(to, y)| *to = *y);
    });
    outputs
}

/// The gradients of the inputs, from those of the outputs.
pub fn backward<R: Real>(p: &SsmGates, inputs: &[Vec<R>], grads: &[Vec<R>]) -> Vec<Vec<R>> {
    let (form, width) = (p.kind.form(), width(p.kind));
    let mut gradients: Vec<Vec<R>> = inputs.iter().map(|v| vec![nil(); v.len()]).collect();
    each(p, |at, channel| {
        let mut grad = [nil(); MOST];
        let parts = grads.iter().flat_map(|g| &g[at * width..][..width]);
        grad.iter_mut().zip(parts).for_each(|(to, g)| *to = *g);
        let g = one_backward(p.kind, read(p, inputs, at, channel), grad);
        let (steps, parameters) = gradients.split_at_mut(form.inputs.len());
        for (k, to) in steps.iter_mut().enumerate() {
            to[at * width..][..width].copy_from_slice(&g.step[k * width..][..width]);
        }
        parameters.iter_mut().zip(g.channel).for_each(|(to, g)| to[channel] = to[channel] + g);
    });
    gradients
}

fn width(kind: Kind) -> usize {
    if kind.form().complex { 2 } else { 1 }
}

/// Every element with its channel.
fn each(p: &SsmGates, mut f: impl FnMut(usize, usize)) {
    (0..p.batch * p.channels * p.steps).for_each(|at| f(at, at / p.steps % p.channels));
}

fn read<R: Real>(p: &SsmGates, inputs: &[Vec<R>], at: usize, channel: usize) -> Element<R> {
    let width = width(p.kind);
    let (steps, parameters) = inputs.split_at(p.kind.form().inputs.len());
    let mut e = Element { step: [nil(); MOST], channel: [nil(); MOST] };
    let parts = steps.iter().flat_map(|v| &v[at * width..][..width]);
    e.step.iter_mut().zip(parts).for_each(|(to, x)| *to = *x);
    e.channel.iter_mut().zip(parameters).for_each(|(to, v)| *to = v[channel]);
    e
}

fn pad<R: Real, const N: usize>(numbers: [R; N]) -> Numbers<R> {
    std::array::from_fn(|i| numbers.get(i).copied().unwrap_or_else(nil))
}

fn one<R: Real>(kind: Kind, e: Element<R>) -> Numbers<R> {
    let ([s0, s1, s2, _], [c0, c1, c2, _]) = (e.step, e.channel);
    let scanned = |a: Complex<R>, factor: Complex<R>| {
        let x = factor * Complex::new(s0, s1);
        [a.re, a.im, x.re, x.im]
    };
    match kind {
        Kind::MinGru => {
            let Step { a, x } = gated::mingru(s0, s1);
            pad([a, x])
        }
        Kind::RgLru => {
            let Step { a, x } = gated::rglru(RgLru { lambda: c0, recurrence: s0, input: s1, x: s2 });
            pad([a, x])
        }
        Kind::Decay => {
            let (a, gain) = decay(c0);
            pad([a, gain * s0])
        }
        Kind::Lru => {
            let g = lru::gates(&lru::Parameters { nu: vec![c0], phi: vec![c1] });
            scanned(g.a[0], Complex::real(g.gain[0]))
        }
        Kind::S5 => {
            let g = s5::gates(&s5::Parameters { lambda: vec![Complex::new(c0, c1)], log_delta: vec![c2] });
            scanned(g.a[0], g.factor[0])
        }
        Kind::Hold => pad([c0.exp()]),
        Kind::Softplus => pad([s0.softplus()]),
        Kind::Decline => pad([-s0.softplus()]),
        Kind::Rate => pad([mamba::rates(&[s0])[0]]),
        Kind::ComplexRate => pad([-s0.exp(), s1]),
        Kind::Polar => {
            let w = unitary::weights(&unitary::Polar { radius: vec![s0], angle: vec![s1] })[0];
            pad([w.re, w.im])
        }
    }
}

/// LRU's radius and gain.
fn decay<R: Real>(nu: R) -> (R, R) {
    let rate = nu.exp();
    ((-rate).exp(), lru::one_less_exp(rate + rate).sqrt())
}

fn one_backward<R: Real>(kind: Kind, e: Element<R>, grad: Numbers<R>) -> Element<R> {
    let ([s0, s1, s2, _], [c0, c1, c2, _]) = (e.step, e.channel);
    let [g0, g1, g2, g3] = grad;
    let none = [nil(); MOST];
    let of_step = |step: Numbers<R>| Element { step, channel: none };
    // x = factor v.
    let scanned = |factor: Complex<R>| {
        let (v, of_x) = (Complex::new(s0, s1), Complex::new(g2, g3));
        let (of_v, of_factor) = (of_x * factor.conj(), of_x * v.conj());
        (pad([of_v.re, of_v.im]), of_factor)
    };
    match kind {
        Kind::MinGru => {
            let (k, v) = gated::mingru_backward(s0, s1, Step { a: g0, x: g1 });
            of_step(pad([k, v]))
        }
        Kind::RgLru => {
            let p = RgLru { lambda: c0, recurrence: s0, input: s1, x: s2 };
            let g = gated::rglru_backward(p, Step { a: g0, x: g1 });
            Element { step: pad([g.recurrence, g.input, g.x]), channel: pad([g.lambda]) }
        }
        Kind::Decay => {
            let (rate, (a, gain)) = (c0.exp(), decay(c0));
            // The derivative of the gain in the rate is a^2 / gain.
            let of_rate = g1 * s0 * a * a / gain - g0 * a;
            Element { step: pad([g1 * gain]), channel: pad([of_rate * rate]) }
        }
        Kind::Lru => {
            let p = lru::Parameters { nu: vec![c0], phi: vec![c1] };
            let (step, of_factor) = scanned(Complex::real(lru::gates(&p).gain[0]));
            let g = lru::backward(&p, &lru::Gates { a: vec![Complex::new(g0, g1)], gain: vec![of_factor.re] });
            Element { step, channel: pad([g.nu[0], g.phi[0]]) }
        }
        Kind::S5 => {
            let p = s5::Parameters { lambda: vec![Complex::new(c0, c1)], log_delta: vec![c2] };
            let (step, of_factor) = scanned(s5::gates(&p).factor[0]);
            let g = s5::backward(&p, &s5::Gates { a: vec![Complex::new(g0, g1)], factor: vec![of_factor] });
            Element { step, channel: pad([g.lambda[0].re, g.lambda[0].im, g.log_delta[0]]) }
        }
        Kind::Hold => Element { step: none, channel: pad([g0 * c0.exp()]) },
        Kind::Softplus => of_step(pad([g0 * s0.sigmoid()])),
        Kind::Decline => of_step(pad([-(g0 * s0.sigmoid())])),
        Kind::Rate => of_step(pad([-(g0 * s0.exp())])),
        Kind::ComplexRate => of_step(pad([-(g0 * s0.exp()), g1])),
        Kind::Polar => {
            let p = unitary::Polar { radius: vec![s0], angle: vec![s1] };
            let g = unitary::weights_backward(&p, &[Complex::new(g0, g1)]);
            of_step(pad([g.radius[0], g.angle[0]]))
        }
    }
}

/// 0, of numbers that have two of that name.
fn nil<R: Real>() -> R {
    <R as Real>::zero()
}
