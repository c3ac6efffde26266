//! SOAP's step against an implementation of its own in f64.

use super::SoapOp;
use super::spec::Soap;
use crate::Device;
use crate::check::gpu::gpu;
use crate::op::{Case, Op, Pass};
use crate::optim::blocks::Parameter;
use crate::optim::stepper::Common;
use crate::optim::testing::{Matrix, Steps, apart, draw, identity, plus, times, transposed};

/// Eigenvectors as columns, those of the largest eigenvalues first: QR steps from I until nothing moves.
fn eigenvectors(a: &Matrix) -> Matrix {
    let mut q = identity(a.len());
    for _ in 0..20_000 {
        q = orthogonal(&times(a, &q));
    }
    q
}

/// Q of the QR by Householder's reflections, with a positive diagonal of R.
fn orthogonal(a: &Matrix) -> Matrix {
    let n = a.len();
    let (mut r, mut q) = (a.clone(), identity(n));
    for k in 0..n {
        let x: Vec<f64> = (0..n).map(|i| if i < k { 0.0 } else { r[i][k] }).collect();
        let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let mut v = x.clone();
        v[k] += norm.copysign(x[k]);
        let square = v.iter().map(|x| x * x).sum::<f64>();
        let reflect = |m: &Matrix| -> Matrix {
            let along: Vec<f64> = (0..n).map(|j| 2.0 / square * (0..n).map(|i| v[i] * m[i][j]).sum::<f64>()).collect();
            (0..n).map(|i| (0..n).map(|j| m[i][j] - v[i] * along[j]).collect()).collect()
        };
        (r, q) = (reflect(&r), reflect(&q));
    }
    let q = transposed(&q);
    (0..n).map(|i| (0..n).map(|j| q[i][j] * r[j][j].signum()).collect()).collect()
}

/// Ten steps of a square matrix, whose factors have full rank from the first step on, and of a vector, which is Adam's.
#[test]
fn ten_steps_are_those_of_another_implementation() {
    let (n, vector, elements, every) = (5usize, 64usize, 67usize, 3);
    let mut p = Soap::new(elements, vec![Parameter::new(0, [n, n]), Parameter::new(vector, [3])]);
    p.precondition_frequency = every;
    p.shampoo_beta = Some(0.8);
    p.common = Common { clip: 4.0, weight_decay: 0.1, ..Common::default() };
    let p = p.build().unwrap();
    let mut w = draw(1, elements);
    let decay = vec![1.0; elements];
    let mut steps = Steps::new(&p, w.clone());
    let zero: Matrix = vec![vec![0.0; n]; n];
    let (mut left, mut right, mut ql, mut qr) = (zero.clone(), zero.clone(), zero.clone(), zero.clone());
    let (mut first, mut second) = (vec![0.0; elements], vec![0.0; elements]);
    for t in 1..=10usize {
        let mut g = draw(20 + t as u64, elements);
        (n * n..vector).for_each(|i| g[i] = 0.0);
        let rate = f64::from(0.01f32);
        steps.step(&g, &decay, rate);
        let scale = (4.0 / g.iter().map(|x| x * x).sum::<f64>().sqrt()).min(1.0);
        g.iter_mut().for_each(|g| *g *= scale);
        first.iter_mut().zip(&g).for_each(|(m, g)| *m = 0.95 * *m + 0.05 * g);
        let grad: Matrix = g[..n * n].chunks(n).map(<[f64]>::to_vec).collect();
        let mean: Matrix = first[..n * n].chunks(n).map(<[f64]>::to_vec).collect();
        let mean = plus(&mean, 1.0 / (1.0 - 0.95f64.powi(t as i32)), &mean, 0.0);
        left = plus(&left, 0.8, &times(&grad, &transposed(&grad)), 0.2);
        right = plus(&right, 0.8, &times(&transposed(&grad), &grad), 0.2);
        let update: Matrix = if t == 1 {
            (ql, qr) = (eigenvectors(&left), eigenvectors(&right));
            (0..n).map(|i| (0..n).map(|j| mean[i][j] / (grad[i][j].abs() + 1e-8)).collect()).collect()
        } else {
            let into = |m: &Matrix| times(&times(&transposed(&ql), m), &qr);
            let (x, m) = (into(&grad), into(&mean));
            for e in 0..n * n {
                second[e] = 0.95 * second[e] + 0.05 * x[e / n][e % n].powi(2);
            }
            let root: Vec<f64> =
                second[..n * n].iter().map(|v| (v / (1.0 - 0.95f64.powi(t as i32 - 1))).sqrt()).collect();
            let eps = 1e-8 + 2f64.powi(-20) * root.iter().fold(0.0, |a: f64, &b| a.max(b));
            let u: Matrix = (0..n).map(|i| (0..n).map(|j| m[i][j] / (root[i * n + j] + eps)).collect()).collect();
            times(&times(&ql, &u), &transposed(&qr))
        };
        if t > 1 && t % every == 0 {
            for (q, a) in [(&mut ql, &left), (&mut qr, &right)] {
                let stretched = times(a, q);
                let value = |k: usize| (0..n).map(|i| q[i][k] * stretched[i][k]).sum::<f64>();
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by(|&i, &j| value(j).total_cmp(&value(i)));
                let picked: Matrix = stretched.iter().map(|r| order.iter().map(|&k| r[k]).collect()).collect();
                let made = orthogonal(&picked);
                for (at, &k) in order.iter().enumerate() {
                    (0..n).for_each(|i| q[i][k] = made[i][at]);
                }
            }
        }
        for e in 0..n * n {
            w[e] -= rate * (update[e / n][e % n] + 0.1 * w[e]);
        }
        for i in vector..elements {
            second[i] = 0.95 * second[i] + 0.05 * g[i] * g[i];
            let hat = |x: f64| x / (1.0 - 0.95f64.powi(t as i32));
            w[i] -= rate * (hat(first[i]) / (hat(second[i]).sqrt() + 1e-8) + 0.1 * w[i]);
        }
        let off = apart(steps.parameter(), &w);
        assert!(off < 1e-5, "step {t}: {off:e}");
    }
}

/// State is all there is, also where factors lack rank.
#[test]
fn what_is_resumed_ends_with_the_same_bits() {
    let mut p = Soap::new(30 * 7, vec![Parameter::new(0, [30, 7])]);
    (p.max_preconditioner_dim, p.precondition_frequency) = (16, 2);
    let p = p.build().unwrap();
    let grads: Vec<Vec<f64>> = (0..9).map(|t| draw(t, 210)).collect();
    let run = |steps: &mut Steps, grads: &[Vec<f64>]| grads.iter().for_each(|g| steps.step(g, &[0.0; 210], 0.01));
    let mut whole = Steps::new(&p, draw(77, 210));
    run(&mut whole, &grads);
    let mut first = Steps::new(&p, draw(77, 210));
    run(&mut first, &grads[..4]);
    let mut second = Steps::new(&p, draw(5, 210));
    second.resume(&first);
    run(&mut second, &grads[4..]);
    assert!(second.state == whole.state);
    assert!(whole.parameter().iter().all(|x| x.is_finite()));
}

/// The language model's case has Shampoo's matrices, a smaller case, and values that repeat, bases among them.
#[test]
fn the_language_models_case_is_shampoos() {
    let case = |text: &str| text.parse::<Case>().unwrap();
    let p = SoapOp.problem(&case("lm350m,every=20")).unwrap();
    assert_eq!(p.signature(Pass::Step).unwrap().outputs[0].shape.elements(), (337 * 1024 + 128) * 1024);
    assert_eq!(SoapOp.smaller(&case("lm350m,every=20")).unwrap().to_string(), "L1_M256_N256,every=20");
    let p = SoapOp.problem(&case("L20_M256_N64,words=0,K=1500,block=64")).unwrap();
    let list = p.repeated(Pass::Step, 1).unwrap().unwrap();
    let bases = &list.iter().find(|(name, _)| name == "bases").unwrap().1;
    for run in bases {
        let n = run.values.data.len().isqrt();
        let row = |i: usize| &run.values.data[i * n..(i + 1) * n];
        for (i, j) in [(0, 0), (0, n - 1), (n - 1, n - 1)] {
            let dot: f64 = row(i).iter().zip(row(j)).map(|(x, y)| x * y).sum();
            assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-12, "{n}: {i}, {j}: {dot}");
        }
    }
}

#[test]
fn options_out_of_range_are_named() {
    let message = |change: &dyn Fn(&mut Soap)| {
        let mut p = Soap::new(4, vec![Parameter::new(0, [2, 2])]);
        change(&mut p);
        p.build().unwrap_err().to_string()
    };
    assert_eq!(message(&|p| p.shampoo_beta = Some(1.0)), "soap: shampoo_beta = 1 is not in 0 .. 1");
    assert!(message(&|p| p.precondition_frequency = 0).contains("precondition_frequency = 0 is not 1 to 32768"));
    assert!(message(&|p| p.epsilon = f64::INFINITY).contains("epsilon = inf"));
}

/// Blocks of one and of several panels of columns, of two axes and of three, from the first step on.
#[test]
fn on_a_gpu_steps_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    let cube = 40 * 40 + 7;
    let elements = cube + 5 * 5 * 5;
    let parameters = vec![Parameter::new(0, [40, 40]), Parameter::new(40 * 40, [7]), Parameter::new(cube, [5, 5, 5])];
    let mut p = Soap::new(elements, parameters);
    (p.precondition_frequency, p.shampoo_beta) = (2, Some(0.8));
    p.common = Common { clip: 30.0, weight_decay: 0.1, ..Common::default() };
    let p = p.build().unwrap();
    let (w, decay) = (draw(4, elements), vec![1.0; elements]);
    let (mut here, mut there) = (Steps::new(&p, w.clone()), Steps::on(&device, &p, w.clone()));
    for t in 1..=9 {
        let g = draw(30 + t, elements);
        here.step(&g, &decay, 0.01);
        there.step(&g, &decay, 0.01);
        let moved = apart(here.parameter(), &w);
        let off = apart(there.parameter(), here.parameter());
        assert!(off < 2e-3 * moved, "step {t}: {off:e} of {moved:e}");
    }
    // State is all there is here too.
    let mut resumed = Steps::on(&device, &p, draw(9, elements));
    resumed.resume(&there);
    let g = draw(77, elements);
    there.step(&g, &decay, 0.01);
    resumed.step(&g, &decay, 0.01);
    assert!(resumed.state == there.state);
}

/// Gradients of rank 2, then of dead rows, then none at all, then a NaN in the factors: bases stay at right angles.
#[test]
fn on_a_gpu_bases_outlive_gradients_without_rank() {
    let Some(gpu) = gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    let (m, n) = (70usize, 9usize);
    let mut p = Soap::new(m * n, vec![Parameter::new(0, [m, n])]);
    p.precondition_frequency = 1;
    let p = p.build().unwrap();
    let mut steps = Steps::on(&device, &p, draw(1, m * n));
    for t in 0..9u64 {
        let (u, v) = (draw(t, 2 * m), draw(50 + t, 2 * n));
        let g: Vec<f64> = (0..m * n)
            .map(|e| match t {
                0..3 => u[e / n] * v[e % n] + u[m + e / n] * v[n + e % n],
                3..6 if e / n % 7 > 0 => u[e / n] * v[e % n] + f64::from(u8::from(e % 5 == 0)),
                8 => f64::INFINITY,
                _ => 0.0,
            })
            .collect();
        let before = steps.state.get("bases").unwrap().clone();
        steps.step(&g, &vec![0.0; m * n], 0.01);
        let bases = &steps.state.get("bases").unwrap().data;
        for pool in &p.grid.pools {
            let k = pool.size;
            let q: Matrix = bases[pool.first..pool.first + k * k].chunks(k).map(<[f64]>::to_vec).collect();
            let off = plus(&times(&transposed(&q), &q), 1.0, &identity(k), -1.0);
            let worst = off.iter().flatten().fold(0.0, |w: f64, x| w.max(x.abs()));
            assert!(worst < 2e-6, "step {t}, {k}: {worst:e}");
        }
        if t == 8 {
            assert!(*bases == before.data);
        } else {
            assert!(steps.parameter().iter().all(|x| x.is_finite()), "step {t}");
        }
    }
}
