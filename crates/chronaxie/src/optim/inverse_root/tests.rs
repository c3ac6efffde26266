//! What is special to inverse roots: identities, failures, and that one matrix harms no other.

use super::spec::{RECORD, Status};
use super::{InverseRoot, InverseRootOp, Method, reference};
use crate::call::Session;
use crate::op::{Op, Pass, PlanOptions, Problem, Tensors, Values};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Result};
use std::sync::Arc;

fn matrices(count: usize, n: usize, data: Vec<f64>) -> Tensors {
    [("a".to_owned(), Values::new([count, n, n], data).unwrap())].into_iter().collect()
}

fn run(p: InverseRoot, a: &Tensors) -> (Vec<f64>, Vec<f64>) {
    let out = Session::new(Arc::new(p.build().unwrap()), &Device::Cpu).unwrap().forward(a).unwrap();
    (out.get("root").unwrap().data.clone(), out.get("record").unwrap().data.clone())
}

fn times(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    (0..n * n).map(|e| (0..n).map(|k| a[e / n * n + k] * b[k * n + e % n]).sum()).collect()
}

/// The law meets its own definition: X^p (A + eps I)^q = I, and its eigenvectors are orthogonal.
#[test]
fn the_law_inverts() {
    for (q, p, n) in [(1, 1, 5), (1, 2, 8), (1, 4, 13), (3, 2, 9), (2, 3, 7), (1, 8, 16)] {
        let problem = InverseRoot::new(1, n, p).exponent(q, p).damping(1e-3, 0.0);
        let a = problem.sample(Pass::Forward, 7).unwrap().get("a").unwrap().data.clone();
        let x = reference::inverse_root(&problem, &a).unwrap();
        let damped: Vec<f64> = (0..n * n).map(|e| a[e] + if e / n == e % n { 1e-3 } else { 0.0 }).collect();
        let mut product: Vec<f64> = (0..n * n).map(|e| f64::from(u8::from(e / n == e % n))).collect();
        (0..p).for_each(|_| product = times(&product, &x, n));
        (0..q).for_each(|_| product = times(&product, &damped, n));
        let off = (0..n * n).map(|e| (product[e] - f64::from(u8::from(e / n == e % n))).abs()).fold(0.0, f64::max);
        assert!(off < 1e-11, "q {q} p {p} n {n}: {off:e}");
        let (_, v) = reference::eigen(&a, n);
        let gram = times(&v, &(0..n * n).map(|e| v[e % n * n + e / n]).collect::<Vec<_>>(), n);
        assert!((0..n * n).all(|e| (gram[e] - f64::from(u8::from(e / n == e % n))).abs() < 1e-13));
    }
}

/// Over the ladder of condition numbers both methods stay within the declared bounds, and the noise of the law's own loops in
/// f32 is what the bounds are made of.
#[test]
fn errors_follow_the_condition_number() {
    for kappa in ["1e2", "1e4", "1e6"] {
        for method in ["eigen", "newton"] {
            let case = format!("1x48,kappa={kappa},absolute=0,relative=0,method={method}");
            let problem = InverseRootOp { fourth: true }.problem(&case.parse().unwrap()).unwrap();
            let a = problem.sample(Pass::Forward, 3).unwrap();
            let law = problem.reference(Pass::Forward, &a, false).unwrap();
            let noise = problem.reference(Pass::Forward, &a, true).unwrap();
            let out = Session::new(problem.clone(), &Device::Cpu).unwrap().forward(&a).unwrap();
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let law = &law.get("root").unwrap().data;
            let error = |of: &Tensors| {
                let x = &of.get("root").unwrap().data;
                norm(&x.iter().zip(law).map(|(x, y)| x - y).collect::<Vec<_>>()) / norm(law)
            };
            let bound = problem.tolerance(Pass::Forward, "root").unwrap().value;
            println!("{case}: {:.1e}, the law in f32 {:.1e}, bound {bound:.0e}", error(&out), error(&noise));
            assert!(error(&out) <= bound && error(&noise) <= bound, "{case}");
            let status = out.get("record").unwrap().data[0];
            assert_eq!(status, f64::from(if method == "newton" { Status::Newton } else { Status::Eigen } as i32));
        }
    }
}

/// A matrix that has no root is told so and leaves the bits of the others alone.
#[test]
fn one_bad_matrix_harms_no_other() {
    let n = 12;
    let good = InverseRoot::new(3, n, 4).sample(Pass::Forward, 5).unwrap().get("a").unwrap().data.clone();
    for method in [Method::Eigen, Method::Newton] {
        let p = InverseRoot::new(3, n, 4).method(method).damping(0.0, 1e-6);
        let (fine, _) = run(p, &matrices(3, n, good.clone()));
        for bad in [f64::NAN, f64::INFINITY, 0.0] {
            let mut a = good.clone();
            if bad == 0.0 {
                a[n * n..2 * n * n].fill(0.0);
            } else {
                a[n * n + 5] = bad;
            }
            let (x, record) = run(p, &matrices(3, n, a));
            assert_eq!(record[RECORD], f64::from(Status::Failed as i32), "{method:?} {bad}");
            assert!(x[n * n..2 * n * n].iter().all(|x| x.is_nan()), "{method:?} {bad}");
            assert_eq!(x[..n * n], fine[..n * n]);
            assert_eq!(x[2 * n * n..], fine[2 * n * n..]);
            assert!(record[0] != f64::from(Status::Failed as i32) && record[2 * RECORD] == record[0]);
        }
    }
}

/// Newton goes on while an eigenvalue near 0 is left, however small its vector's elements: Gram matrices of square normal ones, whose
/// condition numbers go far, against eigenvalues. f32 knows the least eigenvalue to a fraction of 6e-8 of the largest, so bounds go by it.
#[test]
fn newton_does_not_end_before_the_least_eigenvalue() {
    for (n, count) in [(24, 40), (64, 40), (128, 6)] {
        let mut rng = Rng::new(n as u64, 3);
        let mut data = Vec::new();
        for _ in 0..count {
            let g: Vec<f64> = (0..n * n).map(|_| rng.normal()).collect();
            let gram = |e: usize| (0..n).map(|k| g[e / n * n + k] * g[e % n * n + k]).sum::<f64>() / n as f64;
            data.extend((0..n * n).map(|e| gram(e.max(e % n * n + e / n))));
        }
        let a = matrices(count, n, data);
        let (x, record) = run(InverseRoot::new(count, n, 4).method(Method::Newton), &a);
        let (want, _) = run(InverseRoot::new(count, n, 4).method(Method::Eigen), &a);
        for i in 0..count {
            let part = i * n * n..(i + 1) * n * n;
            let (mut off, mut all) = (0.0, 0.0);
            for (x, y) in x[part.clone()].iter().zip(&want[part]) {
                (off, all) = (off + (x - y) * (x - y), all + y * y);
            }
            // Damping of 1e-6 of the norm bounds the condition number.
            assert!(
                (off / all).sqrt() < 3e-3,
                "{i} of {n}: {:e}, record {:?}",
                (off / all).sqrt(),
                &record[i * RECORD..][..RECORD]
            );
        }
    }
}

/// Indefinite matrices are shifted, by eigenvalues, whatever was asked; the record says so and holds the damping.
#[test]
fn indefinite_matrices_are_shifted() {
    let a = matrices(1, 3, vec![1.0, 0.0, 0.0, 0.0, -0.5, 0.0, 0.0, 0.0, 2.0]);
    for method in [Method::Auto, Method::Newton] {
        let (x, record) = run(InverseRoot::new(1, 3, 2).damping(0.25, 0.0).method(method), &a);
        assert_eq!(record[0], f64::from(Status::Shifted as i32));
        assert_eq!(record[3], 0.25);
        for (k, lambda) in [1.0, -0.5, 2.0].into_iter().enumerate() {
            let want = 1.0 / f64::sqrt(lambda + 0.5 + 0.25);
            assert!((x[4 * k] - want).abs() < 1e-6, "{method:?}: {} of {want}", x[4 * k]);
        }
    }
}

/// By eigenvalues, on a GPU: a matrix has the bits that it has alone, whatever is beside it, also numbers that have no root.
#[test]
fn on_a_gpu_blocks_of_a_batch_are_as_alone() {
    let Some(gpu) = crate::check::gpu::gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    let (n, count) = (37, 3);
    let a = InverseRoot::new(count, n, 2).sample(Pass::Forward, 9).unwrap().get("a").unwrap().data.clone();
    let run = |count: usize, a: &[f64]| {
        let p = InverseRoot::new(count, n, 3).exponent(2, 3).build().unwrap();
        let out = Session::new(Arc::new(p), &device).unwrap().forward(&matrices(count, n, a.to_vec())).unwrap();
        (out.get("root").unwrap().data.clone(), out.get("record").unwrap().data.clone())
    };
    let mut bad = a.clone();
    bad[n * n + 4] = f64::NAN;
    for a in [a, bad] {
        let (x, record) = run(count, &a);
        for (i, one) in a.chunks(n * n).enumerate().filter(|(_, one)| one.iter().all(|x| x.is_finite())) {
            let (alone, of_one) = run(1, one);
            assert_eq!(x[i * n * n..][..n * n], alone, "{i}");
            assert_eq!(record[i * RECORD..][..RECORD], of_one, "{i}");
        }
        let failed = record.chunks(RECORD).filter(|r| r[0] == f64::from(Status::Failed as i32)).count();
        assert_eq!(failed, usize::from(a.iter().any(|x| x.is_nan())));
    }
}

/// On a GPU too, small numbers beside a large one are turned as far as they go: an eigenvalue of many small cosines.
#[test]
fn on_a_gpu_blocks_of_small_numbers_have_their_eigenvalues() {
    let Some(gpu) = crate::check::gpu::gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    let (n, small) = (40, f64::from(0.9e-10f32));
    let entry = |i: usize, j: usize| match (i, j) {
        (0, 0) => 1.0,
        (0, _) | (_, 0) => 0.0,
        _ => small,
    };
    let a = matrices(1, n, (0..n * n).map(|e| entry(e / n, e % n)).collect());
    let p = InverseRoot::new(1, n, 2).method(Method::Eigen).damping(0.0, 1e-10).build().unwrap();
    let out = Session::new(Arc::new(p), &device).unwrap().forward(&a).unwrap();
    let (x, eps) = (&out.get("root").unwrap().data, out.get("record").unwrap().data[3]);
    // 1 / sqrt(eps) but along (1, .., 1), whose eigenvalue is 39 times the numbers.
    let (across, along) = (eps.powf(-0.5), (39.0 * small + eps).powf(-0.5));
    for i in 1..n {
        for j in 1..n {
            let want = f64::from(u8::from(i == j)) * across + (along - across) / 39.0;
            assert!((x[i * n + j] - want).abs() < 1e-4 * across, "{i}, {j}: {} of {want}", x[i * n + j]);
        }
    }
}

/// The same bits for any number of threads and any batch around a matrix.
#[test]
fn bits_do_not_depend_on_the_batch() -> Result<()> {
    let n = 33;
    let a = InverseRoot::new(5, n, 4).sample(Pass::Forward, 9)?.get("a")?.data.clone();
    for method in [Method::Eigen, Method::Newton] {
        let (all, _) = run(InverseRoot::new(5, n, 4).method(method), &matrices(5, n, a.clone()));
        for i in 0..5 {
            let one = matrices(1, n, a[i * n * n..(i + 1) * n * n].to_vec());
            assert_eq!(run(InverseRoot::new(1, n, 4).method(method), &one).0, all[i * n * n..(i + 1) * n * n]);
        }
    }
    Ok(())
}

/// Only the symmetric part counts, and the result is symmetric to the bit.
#[test]
fn only_the_symmetric_part_counts() {
    let n = 10;
    let mut rng = Rng::new(1, 0);
    let mut a = InverseRoot::new(1, n, 2).sample(Pass::Forward, 2).unwrap().get("a").unwrap().data.clone();
    for method in [Method::Eigen, Method::Newton] {
        let (x, _) = run(InverseRoot::new(1, n, 2).method(method), &matrices(1, n, a.clone()));
        assert!((0..n * n).all(|e| x[e] == x[e % n * n + e / n]));
    }
    let (before, _) = run(InverseRoot::new(1, n, 2), &matrices(1, n, a.clone()));
    for r in 0..n {
        for c in 0..r {
            // Halves that f32 holds exactly.
            let d = (rng.below(64) as f64) / 64.0;
            let mean = f64::from(f32::from_f64(a[r * n + c]));
            (a[r * n + c], a[c * n + r]) = (mean + d, mean - d);
        }
    }
    let (after, _) = run(InverseRoot::new(1, n, 2), &matrices(1, n, a));
    let off = before.iter().zip(&after).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    assert!(off < 1e-5, "{off:e}");
}

#[test]
fn options_out_of_range_are_named() {
    let message = |p: InverseRoot| p.build().unwrap_err().to_string();
    assert!(message(InverseRoot::new(1, 1, 0)).contains("p = 0 of the exponent -q/p is not 1 to 64"));
    assert!(message(InverseRoot::new(1, 1, 4).exponent(65, 4)).contains("q = 65"));
    assert!(message(InverseRoot::new(1, 1, 4).damping(-1.0, 0.0)).contains("absolute damping -1"));
    assert!(message(InverseRoot::new(1, 1, 4).damping(0.0, f64::NAN)).contains("relative damping NaN"));
    assert!(message(InverseRoot::new(1, 40000, 4)).contains("n is at most 32768"));
    assert!(
        message(InverseRoot::new(1, 2, 3).exponent(2, 3).method(Method::Newton))
            .contains("takes exponents -1/p, not -2/3")
    );
    let op = InverseRootOp { fourth: false };
    for (case, want) in [
        ("3x4,method=lu", "method `lu` is not one of auto, eigen, newton"),
        ("3x4,defect=odd", "defect `odd`"),
        ("B3_x4", "axis B is not one of"),
        ("3x4,power=2", "option power is not one of"),
    ] {
        let e = op.problem(&case.parse().unwrap()).unwrap_err().to_string();
        assert!(e.contains(want), "{case}: {e}");
    }
    let e = InverseRoot::new(1, 2, 4).signature_of(Pass::Backward).unwrap_err().to_string();
    assert!(e.contains("no backward pass"), "{e}");
    assert!(InverseRoot::new(2, 2, 4).plan(&Device::Cpu, &PlanOptions::default()).is_ok());
    let fast = PlanOptions { variant: Some("fast".into()), ..PlanOptions::default() };
    let e = InverseRoot::new(2, 2, 4).plan(&Device::Cpu, &fast).err().unwrap().to_string();
    assert!(e.contains("variant `fast` is not one of simd on the CPU"), "{e}");
}

/// The probe of a right root is at the roundings, and one of a root that is off by a part says so.
#[test]
fn a_probe_sees_what_is_off() {
    let problem = InverseRoot::new(2, 24, 4).damping(1e-3, 0.0);
    let a = problem.sample(Pass::Forward, 7).unwrap().get("a").unwrap().data.clone();
    let mut x: Vec<f64> = a.chunks(24 * 24).flat_map(|a| reference::inverse_root(&problem, a).unwrap()).collect();
    assert!(reference::probe(&problem, &a, &x).0 < 1e-12);
    x[24 * 24..].iter_mut().for_each(|x| *x *= 1.0 + 1e-6);
    let (off, which) = reference::probe(&problem, &a, &x);
    assert!((3e-6..5e-6).contains(&off) && which == 1, "{off:e} {which}");
    x[5] = f64::NAN;
    assert!(reference::probe(&problem, &a, &x).0.is_nan());
}

/// Above the sizes of the law it is the probe that judges, and it judges a CPU's roots right.
#[test]
fn large_roots_are_probed() {
    let problem = InverseRootOp { fourth: true }.problem(&"1x520".parse().unwrap()).unwrap();
    assert!(problem.probes(Pass::Forward));
    let a = problem.sample(Pass::Forward, 1).unwrap();
    let out = Session::new(problem.clone(), &Device::Cpu).unwrap().forward(&a).unwrap();
    let values = |name: &str| a.get(name).or_else(|_| out.get(name)).cloned();
    let found = problem.probe(Pass::Forward, &values).unwrap();
    assert!(found[0].error > 0.0 && found[0].error < found[0].tolerance, "{found:?}");
}
