//! What is special to states that turn: nothing of them is lost, however long they do.

use super::super::complex::Complex;
use super::super::packing::{Marks, Packing};
use super::super::phase::turns;
use super::super::testing::{cut, finite_differences, keeps_to_the_law, relative, run, tolerances_are_near_the_noise};
use super::reference::{self, Inputs};
use super::{AdaptiveScan, AdaptiveThetaOp};
use crate::op::{CaseSet, Op, Pass, Problem, Tensors, Values};
use crate::real::Dual;
use crate::rng::Rng;

#[test]
fn every_case_keeps_to_the_law() {
    for case in AdaptiveThetaOp.cases(CaseSet::Check) {
        keeps_to_the_law(&AdaptiveThetaOp, &case.to_string(), 1);
    }
}

#[test]
fn lengths_of_every_kind_keep_to_the_law() {
    for t in [0, 1, 14, 127, 128, 129, 2047, 2048, 2049, 5000] {
        keeps_to_the_law(&AdaptiveThetaOp, &format!("B1_D3_N2_T{t},h0=true,skip=true"), 2);
        keeps_to_the_law(&AdaptiveThetaOp, &format!("B1_D3_N2_T{t},h0=true,decay=true,packing=3"), 3);
    }
}

impl Inputs<f64> {
    fn lists(&self) -> Vec<Vec<f64>> {
        let complex = |v: &Vec<Complex<f64>>| v.iter().flat_map(|x| [x.re, x.im]).collect::<Vec<f64>>();
        let given = |v: &Option<Vec<f64>>| v.clone().unwrap_or_default();
        vec![
            self.theta.clone(),
            given(&self.rho),
            self.u.clone(),
            self.delta.clone(),
            complex(&self.b),
            complex(&self.c),
            given(&self.d),
            given(&self.z),
            self.h0.as_ref().map(complex).unwrap_or_default(),
        ]
    }
    /// The same numbers moving at `rates`.
    fn moving(&self, rates: &[Vec<f64>]) -> Inputs<Dual> {
        let dual = |v: &[f64], r: &[f64]| v.iter().zip(r).map(|(&v, &r)| Dual::new(v, r)).collect::<Vec<_>>();
        let complex = |v: &[Complex<f64>], r: &[f64]| -> Vec<Complex<Dual>> {
            let number = |(v, r): (&Complex<f64>, &[f64])| Complex::new(Dual::new(v.re, r[0]), Dual::new(v.im, r[1]));
            v.iter().zip(r.chunks(2)).map(number).collect()
        };
        Inputs {
            theta: dual(&self.theta, &rates[0]),
            rho: self.rho.as_ref().map(|v| dual(v, &rates[1])),
            u: dual(&self.u, &rates[2]),
            delta: dual(&self.delta, &rates[3]),
            b: complex(&self.b, &rates[4]),
            c: complex(&self.c, &rates[5]),
            d: self.d.as_ref().map(|v| dual(v, &rates[6])),
            z: self.z.as_ref().map(|v| dual(v, &rates[7])),
            h0: self.h0.as_ref().map(|v| complex(v, &rates[8])),
        }
    }
}

/// Along random directions of every input at once and of each alone.
#[test]
fn the_backward_pass_is_the_derivative() {
    let mut rng = Rng::new(5, 0);
    for decay in [false, true] {
        for packing in [Packing::Whole, Packing::Reset, Packing::Sequences(3)] {
            let batch = if packing == Packing::Sequences(3) { 1 } else { 2 };
            let p = AdaptiveScan::new(batch, 3, 2, 9).unwrap().with_decay(decay).with_silu(decay).with_skip(true);
            let p = p.with_gate(true).with_initial_state(true).with_packing(packing).unwrap();
            let reset: Vec<u8> = (0..batch * 9).map(|_| u8::from(rng.below(4) == 0)).collect();
            let marks = match packing {
                Packing::Whole => Marks::whole(batch, 9),
                Packing::Reset => Marks::reset(batch, 9, &reset),
                _ => Marks::sequences("adaptive_theta", 9, &[0, 2, 2, 9]).unwrap(),
            };
            let i: Inputs<f64> = p.law_inputs(&p.sample(Pass::Forward, 3).unwrap()).unwrap();
            let grad_out: Vec<f64> = (0..i.u.len()).map(|_| rng.normal()).collect();
            let number = |rng: &mut Rng| Complex::new(rng.normal(), rng.normal());
            let grad_last: Vec<_> = (0..marks.units() * 6).map(|_| number(&mut rng)).collect();
            let g = reference::backward(&p, &marks, &i, &grad_out, &grad_last).lists();
            for only in (0..9).map(Some).chain([None]) {
                let mut rate = |k: usize| if only.is_none_or(|only| only == k) { rng.normal() } else { 0.0 };
                let rates: Vec<Vec<f64>> =
                    i.lists().iter().enumerate().map(|(k, list)| list.iter().map(|_| rate(k)).collect()).collect();
                let (out, last) = reference::forward(&p, &marks, &i.moving(&rates));
                let of_last = last.iter().zip(&grad_last).map(|(h, g)| h.re.derivative * g.re + h.im.derivative * g.im);
                let want: f64 = out.iter().zip(&grad_out).map(|(o, g)| o.derivative * g).chain(of_last).sum();
                let products = g.iter().flatten().zip(rates.iter().flatten()).map(|(g, r)| g * r);
                let size: f64 = products.clone().map(f64::abs).sum();
                let got: f64 = products.sum();
                assert!((got - want).abs() <= 1e-12 * size, "{p:?} {only:?}: {got} against {want}");
            }
        }
    }
}

#[test]
fn finite_differences_agree_too() {
    finite_differences(&AdaptiveThetaOp, "B1_D2_N2_T6,silu=true,skip=true,gate=true,h0=true");
}

/// All inputs of a problem, those that `set` names filled by it.
fn inputs(p: &AdaptiveScan, set: &[(&str, &dyn Fn(usize) -> f64)]) -> Tensors {
    let mut all = p.sample(Pass::Forward, 1).unwrap();
    p.sample(Pass::Backward, 1).unwrap().iter().for_each(|(n, v)| all.insert(n, v.clone()));
    for (name, f) in set {
        let data = &mut all.get_mut(name).unwrap().data;
        data.iter_mut().enumerate().for_each(|(i, x)| *x = f64::from(f(i) as f32));
    }
    all
}

/// The state of one input, after 2^20 turns by one angle or by many: as large as it was, and where f64 has it.
#[test]
fn a_million_turns_keep_the_absolute_value() {
    let steps = 1 << 20;
    let mut rng = Rng::new(4, 0);
    let angles: Vec<f64> = (0..steps).map(|_| rng.normal()).collect();
    for (what, angle, bound) in
        [("one angle", &(|_: usize| 0.3) as &dyn Fn(usize) -> f64, 1.6e-3), ("many angles", &|t| angles[t], 5e-6)]
    {
        let p = AdaptiveScan::new(1, 1, 1, steps).unwrap().with_initial_state(true);
        let all = inputs(&p, &[("theta", angle), ("u", &|_| 0.0), ("h0", &|i| [0.6, -0.8][i])]);
        let out = run(&p, Pass::Forward, &all).unwrap();
        let h = &out.get("last_state").unwrap().data;
        assert!((h[0].hypot(h[1]) - 1.0).abs() < 3e-7, "{what}: |h| = {}", h[0].hypot(h[1]));
        let law = p.reference(Pass::Forward, &all, false).unwrap();
        // The phase: equal steps round equally, 2^20 halves of 2^-32 of a turn twice; others walk at random.
        let error = relative(out.get("last_state").unwrap(), law.get("last_state").unwrap());
        assert!(error < bound, "{what}: {error:e}");
    }
}

/// With an input at every step, forward and backward, relative to the running maximum of |h|.
#[test]
fn a_million_steps_keep_to_float64() {
    let p = AdaptiveScan::new(1, 1, 1, 1 << 20).unwrap().with_initial_state(true);
    let mut all = inputs(&p, &[]);
    let out = run(&p, Pass::Forward, &all).unwrap();
    let law = p.reference(Pass::Forward, &all, false).unwrap();
    let (got, want) = (&out.get("out").unwrap().data, &law.get("out").unwrap().data);
    let (mut most, mut worst) = (0f64, 0f64);
    for (g, w) in got.iter().zip(want) {
        most = most.max(w.abs());
        worst = worst.max((g - w).abs() / most);
    }
    assert!(worst < 1e-5, "forward: {worst:e}");
    for name in ["chunk_states", "chunk_phases"] {
        all.insert(name, out.get(name).unwrap().clone());
    }
    let back = run(&p, Pass::Backward, &all).unwrap();
    for (name, law) in p.reference(Pass::Backward, &all, false).unwrap().iter() {
        let error = relative(back.get(name).unwrap(), law);
        assert!(error < 2e-5, "{name}: {error:e}");
    }
}

/// A decay of 1e-7 a step has no bits in a factor near 1.
#[test]
fn slow_decays_are_not_rounded_away() {
    let p = AdaptiveScan::new(1, 1, 1, 1 << 17).unwrap().with_decay(true).with_initial_state(true);
    for rate in [-1e-7, -3e-6, -1e-3] {
        let one = |i: usize| [1.0, 0.0][i];
        let all = inputs(&p, &[("rho", &|_| rate), ("theta", &|_| 0.0), ("B", &one), ("C", &one)]);
        let out = run(&p, Pass::Forward, &all).unwrap();
        let law = p.reference(Pass::Forward, &all, false).unwrap();
        for (name, law) in law.iter() {
            let error = relative(out.get(name).unwrap(), law);
            assert!(error < 1e-6, "rate {rate}: {name} is off by {error:e}");
        }
    }
}

#[test]
fn ten_thousand_nats_leave_nothing_and_no_nan() {
    let p = AdaptiveScan::new(1, 2, 2, 300).unwrap().with_decay(true).with_initial_state(true);
    for rate in [-1e4, -33.0, -0.71, -0.69] {
        let mut all = inputs(&p, &[("rho", &|_| rate)]);
        let out = run(&p, Pass::Forward, &all).unwrap();
        for name in ["chunk_states", "chunk_phases"] {
            all.insert(name, out.get(name).unwrap().clone());
        }
        for (pass, got) in [(Pass::Forward, out), (Pass::Backward, run(&p, Pass::Backward, &all).unwrap())] {
            for (name, law) in p.reference(pass, &all, false).unwrap().iter() {
                let error = relative(got.get(name).unwrap(), law);
                assert!(error < 2e-6, "rate {rate}: {name} is off by {error:e}");
            }
        }
    }
}

#[test]
fn a_split_anywhere_is_the_whole() {
    for decay in [false, true] {
        let scan = |steps| AdaptiveScan::new(2, 3, 2, steps).unwrap().with_decay(decay).with_initial_state(true);
        let all = inputs(&scan(150), &[]);
        let want = run(&scan(150), Pass::Forward, &all).unwrap();
        let part = |from: usize, to: usize, h0: &Values| {
            let mut i = all.clone();
            for (name, axis) in [("theta", 3), ("rho", 3), ("u", 2), ("delta", 2)] {
                if let Some(v) = all.find(name) {
                    i.insert(name, cut(v, axis, from, to));
                }
            }
            i.insert("h0", h0.clone());
            run(&scan(to - from), Pass::Forward, &i).unwrap()
        };
        for at in [0, 1, 14, 127, 128, 129, 149, 150] {
            let first = part(0, at, all.get("h0").unwrap());
            let second = part(at, 150, first.get("last_state").unwrap());
            let tail = cut(want.get("out").unwrap(), 2, at, 150);
            assert!(relative(second.get("out").unwrap(), &tail) < 1e-6, "split at {at}");
            let last = want.get("last_state").unwrap();
            assert!(relative(second.get("last_state").unwrap(), last) < 1e-6, "last state, split at {at}");
        }
    }
}

/// The saved phases are the sums of the steps' turns, to the bit, whatever is beside them.
#[test]
fn phases_are_sums_of_integers() {
    let p = AdaptiveScan::new(2, 17, 3, 400).unwrap();
    let all = inputs(&p, &[("theta", &|i| 40.0 * ((i * 7919 % 1013) as f64 / 1013.0 - 0.5))]);
    let out = run(&p, Pass::Forward, &all).unwrap();
    let (theta, phases) = (&all.get("theta").unwrap().data, &out.get("chunk_phases").unwrap().data);
    for b in 0..2 {
        for (d, n) in (0..17).flat_map(|d| (0..3).map(move |n| (d, n))) {
            let row = &theta[((b * 17 + d) * 3 + n) * 400..][..400];
            for chunk in 0..4 {
                let sum = row[..128 * chunk].iter().fold(0i32, |g, &x| g.wrapping_add(turns(x as f32)));
                assert_eq!(phases[((b * 4 + chunk) * 17 + d) * 3 + n], f64::from(sum));
            }
        }
    }
}

/// The published model: sixteen of each, and lengths at which others stop. Float64 from the same angles.
#[test]
fn the_unitary_model_of_the_paper_at_any_length() {
    for steps in [14, 2047, 2048, 2049, 5000] {
        let case = format!("B2_D16_N16_T{steps},silu=true,skip=true,gate=true").parse().unwrap();
        let p = AdaptiveThetaOp.problem(&case).unwrap();
        let mut all = p.sample(Pass::Forward, 9).unwrap();
        if steps == 14 {
            all.get_mut("u").unwrap().data.iter_mut().for_each(|u| *u = f64::from(u8::from(*u > 0.0)));
        }
        let got = run(&*p, Pass::Forward, &all).unwrap();
        let law = p.reference(Pass::Forward, &all, false).unwrap();
        let (got, law) = (got.get("out").unwrap(), law.get("out").unwrap());
        for (got, law) in got.data.chunks(steps).zip(law.data.chunks(steps)) {
            let mut most = 1f64;
            for (g, l) in got.iter().zip(law) {
                most = most.max(l.abs());
                let bound = if steps == 14 { 7e-5 + 5e-5 * l.abs() } else { 3e-6 * most * 16.0 };
                assert!((g - l).abs() <= bound, "T = {steps}: {g} against {l}");
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    let says = |e: crate::Error, want: &str| assert!(e.to_string().contains(want), "{e}");
    says(AdaptiveScan::new(1, 1, 0, 1).unwrap_err(), "N = 0 is not within 1 to 256");
    says(AdaptiveScan::new(1, usize::MAX, 1, 1).unwrap_err(), "more bytes than can be addressed");
    let p = AdaptiveScan::new(1, 2, 1, 3).unwrap().with_decay(true);
    says(p.with_dtype(crate::Dtype::C64).unwrap_err(), "dtype c64 is not one of f32, bf16, f16");
    says(p.signature(Pass::Step).unwrap_err(), "no step pass");
    let all = inputs(&p, &[("rho", &|i| if i == 4 { 0.25 } else { -0.5 })]);
    says(run(&p, Pass::Forward, &all).unwrap_err(), "rho holds 0.25, but a state must not grow");
    says(p.reference(Pass::Forward, &all, false).unwrap_err(), "rho holds 0.25");
}

#[test]
fn tolerances_are_at_most_eight_times_the_noise() {
    tolerances_are_near_the_noise(
        &AdaptiveThetaOp,
        &[
            "B1_D4_N4_T1000,skip=true,gate=true,h0=true,decay=true",
            "B1_D4_N4_T1000,silu=true,skip=true,gate=true,h0=true",
        ],
    );
}
