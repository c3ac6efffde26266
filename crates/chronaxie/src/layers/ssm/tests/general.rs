//! Storage types, complex numbers, forgetting, and sequences end to end.

use super::super::complex::Complex;
use super::super::testing::{cut, keeps_to_the_law, run, sample_and_run, tolerances_are_near_the_noise};
use super::super::{
    AdaptiveThetaOp, LinearScanComplexOp, LinearScanOp, Packing, SelectiveScanOp, SelectiveStateUpdateOp,
};
use super::*;
use crate::check::{Status, measure};
use crate::op::Problem;

#[test]
fn every_case_keeps_to_the_law() {
    for op in [&LinearScanOp as &dyn Op, &LinearScanComplexOp] {
        for case in op.cases(CaseSet::Check) {
            keeps_to_the_law(op, &case.to_string(), 1);
        }
    }
}

#[test]
fn lengths_of_every_kind_keep_to_the_law() {
    for t in [0, 1, 14, 127, 128, 129, 2047, 2048, 2049, 5000] {
        for options in ["dtype=bf16", "dtype=f16,reverse=true", "packing=reset", "packing=3,reverse=true"] {
            keeps_to_the_law(&LinearScanOp, &format!("B1_D17_T{t},h0=true,{options}"), 2);
        }
        keeps_to_the_law(&LinearScanComplexOp, &format!("B1_D17_T{t},h0=true"), 2);
        keeps_to_the_law(&LinearScanComplexOp, &format!("B1_D5_T{t},h0=true,packing=reset,reverse=true"), 3);
    }
}

/// Derivatives of complex inputs, with forgetting: each of the two parts moves on its own.
#[test]
fn the_complex_backward_is_the_derivative_of_its_forward() {
    let (batch, channels, steps) = (2, 2, 7);
    let (rows, n) = (batch * channels, batch * channels * steps);
    for reverse in [false, true] {
        let p = LinearScan::new(batch, channels, steps).unwrap().with_dtype(Dtype::C64).unwrap().with_reverse(reverse);
        let mut rng = Rng::new(11, u64::from(reverse));
        let reset: Vec<u8> = (0..batch * steps).map(|_| u8::from(rng.below(4) == 0)).collect();
        let marks = Marks::reset(batch, steps, &reset);
        let mut complex =
            |n: usize| -> Vec<Complex<f64>> { (0..n).map(|_| Complex::new(rng.normal(), rng.normal())).collect() };
        let (a, x, h0) = (complex(n), complex(n), complex(rows));
        let (grad_h, grad_last) = (complex(n), complex(rows));
        let (h, _) = reference::forward(&p, &marks, &a, &x, Some(&h0));
        let g = reference::backward(&p, &marks, &a, &h, Some(&h0), &grad_h, &grad_last);
        let all: Vec<_> = g.a.iter().chain(&g.x).chain(&g.h0).copied().collect();
        for coordinate in 0..2 * (2 * n + rows) {
            let dual = |values: &[Complex<f64>], first: usize| -> Vec<Complex<Dual>> {
                let rate = |i: usize, part: usize| f64::from(2 * (first + i) + part == coordinate);
                let number = |(i, v): (usize, &Complex<f64>)| {
                    Complex::new(Dual::new(v.re, rate(i, 0)), Dual::new(v.im, rate(i, 1)))
                };
                values.iter().enumerate().map(number).collect()
            };
            let (h, last) = reference::forward(&p, &marks, &dual(&a, 0), &dual(&x, n), Some(&dual(&h0, 2 * n)));
            let weigh = |h: &[Complex<Dual>], g: &[Complex<f64>]| -> f64 {
                h.iter().zip(g).map(|(h, g)| h.re.derivative * g.re + h.im.derivative * g.im).sum()
            };
            let want = weigh(&h, &grad_h) + weigh(&last, &grad_last);
            let got = all[coordinate / 2];
            let got = if coordinate % 2 == 0 { got.re } else { got.im };
            assert!((got - want).abs() <= 1e-12 * want.abs().max(1.0), "at {coordinate}: {got} against {want}");
        }
    }
}

#[test]
fn sequences_end_to_end_are_each_their_own_scan() {
    let offsets = [0, 5, 5, 140, 141, 300];
    let (channels, steps) = (3, 300);
    for dtype in [Dtype::F32, Dtype::C64] {
        let p = LinearScan::new(1, channels, steps).unwrap().with_dtype(dtype).unwrap().with_initial_state(true);
        let p = p.with_packing(Packing::Sequences(5)).unwrap();
        let mut all = p.sample(Pass::Forward, 4).unwrap();
        all.insert("cu_seqlens", Values::new([6], offsets.map(f64::from).to_vec()).unwrap());
        let out = run(&p, Pass::Forward, &all).unwrap();
        for (s, w) in offsets.windows(2).enumerate() {
            let (from, to) = (w[0] as usize, w[1] as usize);
            let alone = LinearScan::new(1, channels, to - from).unwrap().with_dtype(dtype).unwrap();
            let alone = alone.with_initial_state(true);
            let width = if dtype == Dtype::C64 { 2 } else { 1 };
            let state = |v: &Values| v.data[s * channels * width..(s + 1) * channels * width].to_vec();
            let mut own = Tensors::new();
            own.insert("a", cut(all.get("a").unwrap(), 2, from, to));
            own.insert("x", cut(all.get("x").unwrap(), 2, from, to));
            let shape = alone.sample(Pass::Forward, 1).unwrap().get("h0").unwrap().shape;
            own.insert("h0", Values::new(shape, state(all.get("h0").unwrap())).unwrap());
            let want = alone.reference(Pass::Forward, &own, false).unwrap();
            let got = cut(out.get("h").unwrap(), 2, from, to);
            assert!(relative(&got, want.get("h").unwrap()) < 1e-6, "sequence {s}");
            let last = Values::new(shape, state(out.get("h_last").unwrap())).unwrap();
            assert!(relative(&last, want.get("h_last").unwrap()) < 1e-6, "last state of sequence {s}");
        }
    }
}

/// Not by a product with 0, which infinities survive.
#[test]
fn what_is_forgotten_leaves_no_trace() {
    let p = LinearScan::new(1, 2, 6).unwrap().with_packing(Packing::Reset).unwrap().with_initial_state(true);
    let mut all = sample_and_run(&p, 1);
    all.insert("reset", Values::new([1, 6], vec![0.0, 0.0, 0.0, 1.0, 0.0, 0.0]).unwrap());
    all.get_mut("x").unwrap().data[1] = f64::INFINITY;
    all.get_mut("h0").unwrap().data[1] = f64::NAN;
    let out = run(&p, Pass::Forward, &all).unwrap();
    let h = &out.get("h").unwrap().data;
    assert!(h[1].is_infinite() && h[3..6].iter().chain(&h[9..]).all(|x| x.is_finite()), "{h:?}");
    all.insert("h", out.get("h").unwrap().clone());
    let g = run(&p, Pass::Backward, &all).unwrap();
    assert!(g.get("grad_a").unwrap().data[3..6].iter().all(|x| x.is_finite()));
    assert_eq!(g.get("grad_a").unwrap().data[3], 0.0, "a step that forgets has no gate");
}

#[test]
fn offsets_that_cannot_be_are_refused_in_a_sentence() {
    let p = LinearScan::new(1, 2, 6).unwrap().with_packing(Packing::Sequences(2)).unwrap();
    let mut inputs = p.sample(Pass::Forward, 1).unwrap();
    for (offsets, want) in [
        ([0.0, 4.0, 3.0], "must not decrease, but holds 4 and then 3 at 1"),
        ([1.0, 4.0, 6.0], "must start at 0, not at 1"),
        ([0.0, 4.0, 5.0], "must end at T = 6, not at 5"),
    ] {
        inputs.insert("cu_seqlens", Values::new([3], offsets.to_vec()).unwrap());
        for e in [run(&p, Pass::Forward, &inputs).unwrap_err(), p.reference(Pass::Forward, &inputs, false).unwrap_err()]
        {
            assert!(e.to_string().contains("linear_scan: cu_seqlens") && e.to_string().contains(want), "{e}");
        }
    }
    let says = |e: crate::Error, want: &str| assert!(e.to_string().contains(want), "{e}");
    let two = LinearScan::new(2, 1, 4).unwrap();
    says(two.with_packing(Packing::Sequences(2)).unwrap_err(), "B must be 1, not 2");
    says(LinearScan::new(1, 1, 4).unwrap().with_packing(Packing::Sequences(0)).unwrap_err(), "at least one sequence");
    says(two.with_dtype(Dtype::F64).unwrap_err(), "dtype f64 is not one of f32, bf16, f16, c64");
    says(LinearScanOp.problem(&"B1_D1_T1,packing=x".parse().unwrap()).unwrap_err(), "packing=x is not none, reset");
    says(LinearScanOp.problem(&"B1_D1_T1,dtype=c64".parse().unwrap()).unwrap_err(), "dtype=c64 is not one of f32");
}

#[test]
fn the_complex_tolerances_are_near_the_noise() {
    tolerances_are_near_the_noise(
        &LinearScanComplexOp,
        &["B1_D4_T30000,h0=true,gates=slow", "B1_D4_T1000,h0=true,gates=slow"],
    );
}

/// Half precision: the error is that of rounding the result once, not of accumulating in it.
#[test]
fn half_precision_rounds_only_what_is_stored() {
    for (dtype, bound) in [("bf16", 2f64.powi(-9)), ("f16", 2f64.powi(-12))] {
        let case: crate::op::Case = format!("B1_D4_T20000,gates=slow,dtype={dtype}").parse().unwrap();
        let p = LinearScanOp.problem(&case).unwrap();
        let inputs = p.sample(Pass::Forward, 5).unwrap();
        let got = run(&*p, Pass::Forward, &inputs).unwrap();
        let law = p.reference(Pass::Forward, &inputs, false).unwrap();
        assert!(relative(got.get("h").unwrap(), law.get("h").unwrap()) < bound);
        assert!(relative(got.get("h_last").unwrap(), law.get("h_last").unwrap()) < 3e-6, "the state stays f32");
        for (pass, name) in [(Pass::Forward, "h"), (Pass::Backward, "grad_x"), (Pass::Backward, "grad_a")] {
            assert!(p.tolerance(pass, name).unwrap().value <= 2.1 * bound);
        }
    }
}

/// Every check case of the entries whose kernels run one state after the other; nothing where there is no GPU.
#[test]
fn on_a_gpu_the_serial_kernels_keep_to_the_law() {
    let Some(gpu) = gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    let entries: [&dyn Op; 5] =
        [&LinearScanOp, &LinearScanComplexOp, &AdaptiveThetaOp, &SelectiveScanOp, &SelectiveStateUpdateOp];
    for op in entries {
        for case in op.cases(CaseSet::Check) {
            let p = op.problem(&case).unwrap();
            for c in measure(&*p, op.passes(), &device, 1).unwrap() {
                assert!(c.status() == Status::Passed, "{} {case}: {}: {}", op.name(), c.quantity, c.reason());
            }
        }
    }
}
