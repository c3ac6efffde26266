//! What is special to angles from a map: gradients through both ways of u, and stretches of time.

use super::super::complex::Complex;
use super::super::packing::{Marks, Packing};
use super::super::testing::{
    finite_differences, keeps_to_the_law, relative, run, sample_and_run, tolerances_are_near_the_noise,
};
use super::super::{AdaptiveThetaOp, adaptive};
use super::reference::{self, Inputs};
use super::{AdaptiveUnitary, AdaptiveUnitaryOp};
use crate::layers::dense::DenseOp;
use crate::op::{CaseSet, Op, Pass, PlanOptions, Problem, Tensors, Values};
use crate::real::Dual;
use crate::rng::Rng;

#[test]
fn every_case_keeps_to_the_law() {
    for case in AdaptiveUnitaryOp.cases(CaseSet::Check) {
        keeps_to_the_law(&AdaptiveUnitaryOp, &case.to_string(), 1);
    }
}

#[test]
fn lengths_of_every_kind_keep_to_the_law() {
    for t in [0, 1, 14, 127, 128, 129, 255, 256, 257, 511, 512, 513, 770] {
        keeps_to_the_law(&AdaptiveUnitaryOp, &format!("B2_D3_N2_T{t},h0=true,skip=true,span=256"), 2);
        keeps_to_the_law(&AdaptiveUnitaryOp, &format!("B1_D1_N2_T{t},silu=true,gate=true,span=512"), 3);
    }
}

fn random(rng: &mut Rng, n: usize) -> Vec<f64> {
    (0..n).map(|_| rng.normal()).collect()
}
fn complex(v: &[f64]) -> Vec<Complex<f64>> {
    v.chunks(2).map(|x| Complex::new(x[0], x[1])).collect()
}
fn numbers(v: &[Complex<f64>]) -> Vec<f64> {
    v.iter().flat_map(|x| [x.re, x.im]).collect()
}

impl Inputs<f64> {
    fn lists(&self) -> [Vec<f64>; 9] {
        let (given, s) = (|v: &Option<Vec<f64>>| v.clone().unwrap_or_default(), &self.scan);
        [
            self.weight.clone(),
            given(&self.bias),
            s.u.clone(),
            s.delta.clone(),
            numbers(&s.b),
            numbers(&s.c),
            given(&s.d),
            given(&s.z),
            s.h0.as_deref().map(numbers).unwrap_or_default(),
        ]
    }
    /// The same numbers moving at `rates`.
    fn moving(&self, rates: &[Vec<f64>]) -> Inputs<Dual> {
        let dual = |v: &[f64], r: &[f64]| v.iter().zip(r).map(|(&v, &r)| Dual::new(v, r)).collect::<Vec<_>>();
        let complex = |v: &[Complex<f64>], r: &[f64]| -> Vec<Complex<Dual>> {
            let number = |(v, r): (&Complex<f64>, &[f64])| Complex::new(Dual::new(v.re, r[0]), Dual::new(v.im, r[1]));
            v.iter().zip(r.chunks(2)).map(number).collect()
        };
        let s = &self.scan;
        Inputs {
            weight: dual(&self.weight, &rates[0]),
            bias: self.bias.as_ref().map(|v| dual(v, &rates[1])),
            scan: adaptive::reference::Inputs {
                theta: Vec::new(),
                rho: None,
                u: dual(&s.u, &rates[2]),
                delta: dual(&s.delta, &rates[3]),
                b: complex(&s.b, &rates[4]),
                c: complex(&s.c, &rates[5]),
                d: s.d.as_ref().map(|v| dual(v, &rates[6])),
                z: s.z.as_ref().map(|v| dual(v, &rates[7])),
                h0: s.h0.as_ref().map(|v| complex(v, &rates[8])),
            },
        }
    }
}

/// Along random directions of every input at once and of each alone.
#[test]
fn the_backward_pass_is_the_derivative() {
    let mut rng = Rng::new(5, 0);
    for (silu, packing) in [(false, Packing::Whole), (true, Packing::Reset), (true, Packing::Sequences(3))] {
        let (b, d, n, t) = (if packing == Packing::Sequences(3) { 1 } else { 2 }, 3, 2, 9);
        let p = AdaptiveUnitary::new(b, d, n, t).unwrap().with_silu(silu).with_skip(true).with_gate(true);
        let p = p.with_initial_state(true).with_packing(packing).unwrap();
        let reset: Vec<u8> = (0..b * t).map(|_| u8::from(rng.below(4) == 0)).collect();
        let marks = match packing {
            Packing::Whole => Marks::whole(b, t),
            Packing::Reset => Marks::reset(b, t, &reset),
            _ => Marks::sequences("adaptive_unitary", t, &[0, 2, 2, 9]).unwrap(),
        };
        let states = marks.units() * d * n;
        let mut real = |n: usize| random(&mut rng, n);
        let i = Inputs {
            weight: real(d * n * d),
            bias: Some(real(d * n)),
            scan: adaptive::reference::Inputs {
                theta: Vec::new(),
                rho: None,
                u: real(b * d * t),
                delta: real(b * d * t),
                b: complex(&real(2 * d * n)),
                c: complex(&real(2 * d * n)),
                d: Some(real(d)),
                z: Some(real(b * d * t)),
                h0: Some(complex(&real(2 * states))),
            },
        };
        let (grad_out, grad_last) = (real(b * d * t), complex(&real(2 * states)));
        let g = reference::backward(&p, &marks, &i, &grad_out, &grad_last).unwrap().lists();
        for only in (0..9).map(Some).chain([None]) {
            let rates = i.lists().map(|list| random(&mut rng, list.len()));
            let rates: Vec<Vec<f64>> = rates
                .into_iter()
                .enumerate()
                .map(|(k, v)| if only.is_none_or(|only| only == k) { v } else { vec![0.0; v.len()] })
                .collect();
            let (out, last) = reference::forward(&p, &marks, &i.moving(&rates)).unwrap();
            let of_last = last.iter().zip(&grad_last).map(|(h, g)| h.re.derivative * g.re + h.im.derivative * g.im);
            let want: f64 = out.iter().zip(&grad_out).map(|(o, g)| o.derivative * g).chain(of_last).sum();
            let products = g.iter().flatten().zip(rates.iter().flatten()).map(|(g, r)| g * r);
            let size: f64 = products.clone().map(f64::abs).sum();
            let got: f64 = products.sum();
            assert!((got - want).abs() <= 1e-12 * size, "{p:?} {only:?}: {got} against {want}");
        }
    }
}

#[test]
fn finite_differences_agree_too() {
    finite_differences(&AdaptiveUnitaryOp, "B1_D2_N2_T6,silu=true,skip=true,gate=true,h0=true");
}

#[test]
fn tolerances_are_at_most_eight_times_the_noise() {
    tolerances_are_near_the_noise(
        &AdaptiveUnitaryOp,
        &["B1_D4_N4_T1000,skip=true,gate=true,h0=true", "B1_D8_N4_T1000,silu=true,skip=true,gate=true,h0=true"],
    );
    tolerances_are_near_the_noise(&AdaptiveUnitaryOp, &["B16_D16_N16_T14,silu=true,skip=true,gate=true,h0=true"]);
}

/// The two entries one after the other, with theta between them as a tensor: the same bits.
#[test]
fn it_is_the_map_and_the_scan() {
    let p = AdaptiveUnitaryOp.problem(&"B2_D6_N3_T150,silu=true,skip=true,gate=true,h0=true".parse().unwrap()).unwrap();
    let map = DenseOp.problem(&"B2_T150_D6_H18,from=6,to=18".parse().unwrap()).unwrap();
    let scan =
        AdaptiveThetaOp.problem(&"B2_D6_N3_T150,silu=true,skip=true,gate=true,h0=true".parse().unwrap()).unwrap();
    let all = sample_and_run(&*p, 4);
    let shaped = |name: &str, shape: &[usize]| Values::new(shape, all.get(name).unwrap().data.clone()).unwrap();
    let mut of_map = Tensors::new();
    of_map.insert("x", shaped("u", &[2, 6, 150, 1]));
    of_map.insert("weight", shaped("W", &[18, 6]));
    of_map.insert("bias", shaped("bias", &[18]));
    let theta = run(&*map, Pass::Forward, &of_map).unwrap();
    let mut of_scan = all.clone();
    of_scan.insert("theta", Values::new([2, 6, 3, 150], theta.get("y").unwrap().data.clone()).unwrap());
    for (name, want) in run(&*scan, Pass::Forward, &of_scan).unwrap().iter() {
        assert_eq!(all.get(name).unwrap().data, want.data, "{name}");
    }
    let got = run(&*p, Pass::Backward, &all).unwrap();
    let of_scan = run(&*scan, Pass::Backward, &of_scan).unwrap();
    of_map.insert("grad_y", Values::new([2, 18, 150, 1], of_scan.get("grad_theta").unwrap().data.clone()).unwrap());
    let of_map = run(&*map, Pass::Backward, &of_map).unwrap();
    assert_eq!(got.get("grad_W").unwrap().data, of_map.get("grad_weight").unwrap().data);
    assert_eq!(got.get("grad_bias").unwrap().data, of_map.get("grad_bias").unwrap().data);
    for name in ["grad_delta", "grad_B", "grad_C", "grad_D", "grad_z", "grad_h0"] {
        assert_eq!(got.get(name).unwrap().data, of_scan.get(name).unwrap().data, "{name}");
    }
    let (a, b) = (of_scan.get("grad_u").unwrap(), of_map.get("grad_x").unwrap());
    let sum: Vec<f64> = a.data.iter().zip(&b.data).map(|(a, b)| f64::from(*a as f32 + *b as f32)).collect();
    assert_eq!(got.get("grad_u").unwrap().data, sum);
}

/// Stretches change what lies in scratch, and the last bits.
#[test]
fn stretches_are_the_whole() {
    let problem = |span: &str| {
        let case = format!("B2_D5_N3_T900,silu=true,skip=true,gate=true,h0=true{span}");
        AdaptiveUnitaryOp.problem(&case.parse().unwrap()).unwrap()
    };
    let (whole, parts) = (problem(""), problem(",span=256"));
    let (mut all, of_parts) = (sample_and_run(&*whole, 6), sample_and_run(&*parts, 6));
    for name in ["out", "last_state"] {
        let error = relative(of_parts.get(name).unwrap(), all.get(name).unwrap());
        assert!(error < 1e-6, "{name}: {error:e}");
    }
    let want = run(&*whole, Pass::Backward, &all).unwrap();
    for name in ["chunk_states", "chunk_phases"] {
        all.insert(name, of_parts.get(name).unwrap().clone());
    }
    for (name, got) in run(&*parts, Pass::Backward, &all).unwrap().iter() {
        let error = relative(got, want.get(name).unwrap());
        assert!(error < 2e-6, "{name}: {error:e}");
    }
    let p = AdaptiveUnitary::new(4, 128, 64, 16384).unwrap();
    assert_eq!(p.stretches(), [(0, 4096), (4096, 8192), (8192, 12288), (12288, 16384)]);
    assert_eq!(AdaptiveUnitary::new(8, 128, 64, 2048).unwrap().stretches(), [(0, 2048)]);
    assert_eq!(AdaptiveUnitary::new(8, 128, 64, 0).unwrap().stretches(), [(0, 0)]);
}

/// What is not contiguous, and what there is none of.
#[test]
fn scratch_is_bounded() {
    let p = AdaptiveUnitary::new(1, 4, 2, 4096).unwrap().with_span(256).unwrap();
    let plan = p.plan(&crate::Device::Cpu, &PlanOptions::default()).unwrap();
    // Angles of 256 steps, not of 4096, and what else a stretch needs.
    assert!(plan.scratch(Pass::Forward).bytes() < 4 * 256 * (8 + 4) + 4096);
    assert!(plan.config().starts_with("16 of 256 steps"), "{}", plan.config());
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    let says = |e: crate::Error, want: &str| assert!(e.to_string().contains(want), "{e}");
    says(AdaptiveUnitary::new(1, 1, 0, 1).unwrap_err(), "N = 0 is not within 1 to 256");
    says(AdaptiveUnitary::new(1, usize::MAX, 1, 1).unwrap_err(), "more bytes than can be addressed");
    let p = AdaptiveUnitary::new(1, 2, 1, 3).unwrap();
    says(p.with_span(100).unwrap_err(), "span = 100 is not a multiple of 256 steps");
    says(p.signature(Pass::Step).unwrap_err(), "adaptive_unitary has no step pass");
    let options = PlanOptions { variant: Some("fast".into()), ..Default::default() };
    let e = p.plan(&crate::Device::Cpu, &options).err().unwrap();
    says(e, "adaptive_unitary: dense: variant `fast` is not one of simd on the CPU");
}
