//! Gradients by dual numbers, initialisations by what their papers promise, and models through their scans.

use super::super::complex::Complex;
use super::super::{Discretisation, LinearScan, SelectiveScan, Weights};
use super::{TABLE, gated, lru, mamba, polar, s4d, s5, unitary};
use crate::op::{Pass, Problem, Tensors, Values};
use crate::real::Dual;
use crate::rng::Rng;
use crate::{Dtype, registry};

fn draw(rng: &mut Rng, n: usize) -> Vec<f64> {
    (0..n).map(|_| rng.normal()).collect()
}
fn dual(v: &[f64], r: &[f64]) -> Vec<Dual> {
    v.iter().zip(r).map(|(&v, &r)| Dual::new(v, r)).collect()
}
fn complex<R: Copy>(parts: &[R]) -> Vec<Complex<R>> {
    parts.chunks(2).map(|c| Complex { re: c[0], im: c[1] }).collect()
}
fn parts<R: Copy>(v: &[Complex<R>]) -> Vec<R> {
    v.iter().flat_map(|x| [x.re, x.im]).collect()
}

/// Asserts that `backward` is the derivative of `forward`, both on flat lists, along random directions.
fn is_the_derivative(
    what: &str,
    at: &[f64],
    forward: impl Fn(&[Dual]) -> Vec<Dual>,
    backward: impl Fn(&[f64], &[f64]) -> Vec<f64>,
) {
    let mut rng = Rng::new(3, at.len() as u64);
    for _ in 0..10 {
        let rates = draw(&mut rng, at.len());
        let out = forward(&dual(at, &rates));
        let grad = draw(&mut rng, out.len());
        let want: f64 = out.iter().zip(&grad).map(|(o, g)| o.derivative * g).sum();
        let products: Vec<f64> = backward(at, &grad).iter().zip(&rates).map(|(g, r)| g * r).collect();
        let (got, size): (f64, f64) = (products.iter().sum(), products.iter().map(|x| x.abs()).sum());
        assert!((got - want).abs() <= 1e-12 * size.max(1e-3), "{what}: {got} against {want}");
    }
}

#[test]
fn every_map_has_its_gradient() {
    let mut rng = Rng::new(1, 0);
    let n = 5;
    let at = draw(&mut rng, 2 * n);
    let lru_of = |v: &[f64]| lru::Parameters { nu: v[..n].to_vec(), phi: v[n..].to_vec() };
    is_the_derivative(
        "lru",
        &at,
        |v| {
            let g = lru::gates(&lru::Parameters { nu: v[..n].to_vec(), phi: v[n..].to_vec() });
            [parts(&g.a), g.gain].concat()
        },
        |v, g| {
            let g = lru::backward(&lru_of(v), &lru::Gates { a: complex(&g[..2 * n]), gain: g[2 * n..].to_vec() });
            [g.nu, g.phi].concat()
        },
    );
    let at = draw(&mut rng, 3 * n);
    is_the_derivative(
        "s5",
        &at,
        |v| {
            let g = s5::gates(&s5::Parameters { lambda: complex(&v[..2 * n]), log_delta: v[2 * n..].to_vec() });
            [parts(&g.a), parts(&g.factor)].concat()
        },
        |v, g| {
            let p = s5::Parameters { lambda: complex(&v[..2 * n]), log_delta: v[2 * n..].to_vec() };
            let g = s5::backward(&p, &s5::Gates { a: complex(&g[..2 * n]), factor: complex(&g[2 * n..]) });
            [parts(&g.lambda), g.log_delta].concat()
        },
    );
    let s4d_of = |v: &[f64]| s4d::Parameters {
        log_rate: v[..n].to_vec(),
        frequency: v[n..2 * n].to_vec(),
        log_delta: v[2 * n..].to_vec(),
    };
    is_the_derivative(
        "s4d",
        &at,
        |v| {
            let r = s4d::rates(&s4d::Parameters {
                log_rate: v[..n].to_vec(),
                frequency: v[n..2 * n].to_vec(),
                log_delta: v[2 * n..].to_vec(),
            });
            [parts(&r.a), r.delta].concat()
        },
        |v, g| {
            let grad = s4d::Rates { a: complex(&g[..2 * n]), delta: g[2 * n..].to_vec() };
            let g = s4d::backward(&s4d_of(v), &grad);
            [g.log_rate, g.frequency, g.log_delta].concat()
        },
    );
    is_the_derivative("mamba", &draw(&mut rng, n), mamba::rates, mamba::rates_backward);
    for scale in [0.5, 3.0] {
        let at: Vec<f64> = draw(&mut rng, 4).iter().map(|x| x * scale).collect();
        is_the_derivative(
            "rglru",
            &at,
            |v| {
                let s = gated::rglru(gated::RgLru { lambda: v[0], recurrence: v[1], input: v[2], x: v[3] });
                vec![s.a, s.x]
            },
            |v, g| {
                let p = gated::RgLru { lambda: v[0], recurrence: v[1], input: v[2], x: v[3] };
                let g = gated::rglru_backward(p, gated::Step { a: g[0], x: g[1] });
                vec![g.lambda, g.recurrence, g.input, g.x]
            },
        );
        is_the_derivative(
            "mingru",
            &at[..2],
            |v| {
                let s = gated::mingru(v[0], v[1]);
                vec![s.a, s.x]
            },
            |v, g| {
                let (k, x) = gated::mingru_backward(v[0], v[1], gated::Step { a: g[0], x: g[1] });
                vec![k, x]
            },
        );
        is_the_derivative(
            "polar",
            &at[..1],
            |v| {
                let r = polar::radius(v[0]);
                vec![r.rho, r.gain]
            },
            |v, g| vec![polar::radius_backward(v[0], polar::Radius { rho: g[0], gain: g[1] })],
        );
    }
    let at = draw(&mut rng, 2 * n);
    is_the_derivative(
        "polar weights",
        &at,
        |v| parts(&unitary::weights(&unitary::Polar { radius: v[..n].to_vec(), angle: v[n..].to_vec() })),
        |v, g| {
            let p = unitary::Polar { radius: v[..n].to_vec(), angle: v[n..].to_vec() };
            let g = unitary::weights_backward(&p, &complex(g));
            [g.radius, g.angle].concat()
        },
    );
    // W [2, 3, 2], bias [2, 3], u [2, 4].
    is_the_derivative(
        "angles",
        &draw(&mut rng, 12 + 6 + 8),
        |v| unitary::angles(&unitary::Angles { w: v[..12].to_vec(), bias: v[12..18].to_vec() }, &v[18..], 4),
        |v, g| {
            let p = unitary::Angles { w: v[..12].to_vec(), bias: v[12..18].to_vec() };
            let (p, u) = unitary::angles_backward(&p, &v[18..], 4, g);
            [p.w, p.bias, u].concat()
        },
    );
}

#[test]
fn extreme_parameters_stay_finite() {
    for x in [-80.0f32, -20.0, 0.0, 20.0, 80.0] {
        let s = gated::rglru(gated::RgLru { lambda: x, recurrence: -x, input: x, x: 1.0 });
        assert!(s.a.is_finite() && s.x.is_finite() && (0.0..=1.0).contains(&s.a), "{x}: {s:?}");
        let r = polar::radius(x);
        assert!(r.rho <= 0.0 && r.gain.is_finite(), "{x}: {r:?}");
    }
    // A gate so near 1 that f32 cannot hold it still has its gain.
    let gain = polar::radius(-18.0f32).gain;
    let want = (2.0 * (-18.0f64).exp()).sqrt();
    assert!((f64::from(gain) - want).abs() < 1e-6 * want, "{gain} against {want}");
}

#[test]
fn initial_values_are_those_of_the_papers() {
    let mut rng = Rng::new(6, 0);
    let p = lru::initialise(4000, 0.4, 0.9, 1.0, &mut rng);
    let a = lru::gates(&p).a;
    assert!(a.iter().all(|a| (0.16 - 1e-12..=0.81 + 1e-12).contains(&a.norm_squared())));
    let mean = a.iter().map(|a| a.norm_squared()).sum::<f64>() / 4000.0;
    assert!((mean - (0.16 + 0.81) / 2.0).abs() < 0.02, "areas are equally likely: {mean}");
    assert!(p.phi.iter().all(|&phi| phi.exp() > 0.0 && phi.exp() <= 1.0));
    for lambda in gated::rglru_initialise(1000, &mut rng) {
        let open = (1.0 / (1.0 + (-lambda).exp())).powf(gated::RGLRU_EXPONENT);
        assert!((0.9 - 1e-9..0.999 + 1e-9).contains(&open), "{open}");
    }
    assert_eq!(
        mamba::rates(&mamba::initialise_rates(2, 3)).iter().map(|x| x.round()).collect::<Vec<_>>(),
        [-1.0, -2.0, -3.0, -1.0, -2.0, -3.0]
    );
    for bias in mamba::initialise_delta_bias(1000, 0.001, 0.1, &mut rng) {
        let delta = bias.exp().ln_1p();
        assert!((0.001 - 1e-12..0.1 + 1e-12).contains(&delta), "{delta}");
    }
    let p = s4d::initialise(2, 3, s4d::Frequencies::Linear, &mut rng);
    let a = s4d::rates(&p).a;
    assert!((a[4].re + 0.5).abs() < 1e-15 && (a[4].im - std::f64::consts::PI).abs() < 1e-15);
    let inverse = s4d::initialise(1, 2, s4d::Frequencies::Inverse, &mut rng).frequency;
    let m = 4.0 / std::f64::consts::PI;
    assert!((inverse[0] - 3.0 * m).abs() < 1e-12 && (inverse[1] - m / 3.0).abs() < 1e-12);
    for raw in polar::initialise(1000, 0.2, 0.99, &mut rng) {
        let radius = polar::radius(raw).rho.exp();
        assert!((0.2 - 1e-9..0.99 + 1e-9).contains(&radius), "{radius}");
    }
    let w = unitary::initialise_angles(4, 2, &mut rng);
    assert!((w.w.len(), w.bias.len()) == (32, 8) && w.bias.iter().all(|b| b.abs() <= std::f64::consts::PI));
    assert_eq!(unitary::initialise_weights(3, &mut rng).radius.len(), 3);
}

/// The eigenvectors turn the normal part of HiPPO-LegS into its eigenvalues.
#[test]
fn hippo_is_diagonal_in_its_basis() {
    let size = 16;
    let (lambda, vectors) = s5::hippo(size);
    assert_eq!(lambda.len(), size / 2);
    let normal = |i: usize, j: usize| {
        let legs = match i.cmp(&j) {
            std::cmp::Ordering::Greater => -((2 * i + 1) as f64 * (2 * j + 1) as f64).sqrt(),
            std::cmp::Ordering::Equal => -(i as f64 + 1.0),
            std::cmp::Ordering::Less => 0.0,
        };
        legs + ((i as f64 + 0.5) * (j as f64 + 0.5)).sqrt()
    };
    for (k, &lambda) in lambda.iter().enumerate() {
        assert!(lambda.re == -0.5 && lambda.im > 0.0);
        let v = &vectors[k * size..][..size];
        for (i, &part) in v.iter().enumerate() {
            let image = (0..size).fold(Complex::real(0.0), |sum, j| sum + v[j].scale(normal(i, j)));
            assert!((image - lambda * part).norm_squared() < 1e-20, "eigenvector {k}");
        }
        // What a real vector is in the basis: its product with the conjugate.
        let b: Vec<f64> = (0..size).map(|i| i as f64).collect();
        let want = (0..size).fold(Complex::real(0.0), |sum, i| sum + Complex::new(v[i].re, -v[i].im).scale(b[i]));
        assert!((s5::in_basis(&vectors, size, &b)[k] - want).norm_squared() < 1e-20);
    }
}

/// S4D's response to an impulse is its kernel, `2 Re sum C (e^{delta A} - 1) / A e^{t delta A}`.
#[test]
fn s4d_through_the_selective_scan_is_its_kernel() {
    let (channels, states, steps) = (2, 4, 30);
    let mut rng = Rng::new(9, 0);
    let r = s4d::rates(&s4d::initialise(channels, states, s4d::Frequencies::Linear, &mut rng));
    let p = SelectiveScan::new(1, channels, steps, states).unwrap().with_complex(true);
    let p = p.with_discretisation(Discretisation::Zoh).with_weights(Weights::Constant, Weights::Constant).unwrap();
    let c = draw(&mut rng, 2 * channels * states);
    let mut i = Tensors::new();
    let pulse = |k: usize| f64::from(u8::from(k.is_multiple_of(steps)));
    let cells = channels * steps;
    i.insert("u", Values::new([1, channels, steps], (0..cells).map(pulse).collect()).unwrap());
    i.insert("delta", Values::new([1, channels, steps], (0..cells).map(|k| r.delta[k / steps]).collect()).unwrap());
    let weight = |data: Vec<f64>| Values::new([channels, states, 2], data).unwrap();
    i.insert("A", weight(parts(&r.a)));
    i.insert("B", weight([1.0, 0.0].repeat(channels * states)));
    i.insert("C", weight(c.clone()));
    let out = p.reference(Pass::Forward, &i, false).unwrap();
    for d in 0..channels {
        for t in 0..steps {
            let want = (0..states).fold(0.0, |sum, n| {
                let (a, k) = (r.a[d * states + n], d * states + n);
                let gate = a.scale(r.delta[d]).exp();
                let factor = (gate - Complex::one()) * a.recip();
                let turned = (0..t).fold(Complex::new(c[2 * k], c[2 * k + 1]) * factor, |x, _| x * gate);
                sum + 2.0 * turned.re
            });
            let got = out.get("out").unwrap().data[d * steps + t];
            assert!((got - want).abs() < 1e-12, "{got} against {want}");
        }
    }
}

/// An LRU's states have unit scale under noise of unit scale, whatever their radius.
#[test]
fn lru_states_have_unit_scale() {
    let (states, steps) = (6, 40_000);
    let mut rng = Rng::new(2, 0);
    let g = lru::gates(&lru::initialise(states, 0.3, 0.95, 6.0, &mut rng));
    let scan = LinearScan::new(1, states, steps).unwrap().with_dtype(Dtype::C64).unwrap();
    let mut i = Tensors::new();
    let gates = (0..states * steps).flat_map(|k| [g.a[k / steps].re, g.a[k / steps].im]).collect();
    i.insert("a", Values::new([1, states, steps, 2], gates).unwrap());
    let noise = (0..states * steps).flat_map(|k| [g.gain[k / steps] * rng.normal(), 0.0]).collect();
    i.insert("x", Values::new([1, states, steps, 2], noise).unwrap());
    let h = scan.reference(Pass::Forward, &i, false).unwrap();
    for (n, row) in h.get("h").unwrap().data.chunks(2 * steps).enumerate() {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / steps as f64;
        // Neighbouring steps depend on each other over 1 / (1 - |a|^2) of them, at most ten here: five standard errors.
        assert!((mean - 1.0).abs() < 0.12, "state {n} of radius {}: {mean}", g.a[n].norm_squared().sqrt());
    }
}

#[test]
fn every_model_has_an_entry_and_a_source() {
    for p in TABLE {
        assert!(registry::find(p.scan).is_ok(), "{}", p.name);
        assert!(p.source.contains("arXiv:"), "{}", p.name);
    }
}
