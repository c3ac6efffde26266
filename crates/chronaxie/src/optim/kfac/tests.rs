//! KFAC's step against solves of whole Kronecker products in f64, and where it is Newton's step.

use super::factors::reference::{Inputs, forward};
use super::{Damping, Factors, Kfac, Map};
use crate::Device;
use crate::check::gpu::gpu;
use crate::op::{Channels, LinearMap};
use crate::optim::blocks::{Parameter, packed};
use crate::optim::stepper::{Common, DecayMode};
use crate::optim::testing::{Matrix, Steps, apart, draw};

/// X X^T / k of normal X `[n, k]`, as f32 holds it.
fn factor(seed: u64, n: usize, k: usize) -> Matrix {
    let x = draw(seed, n * k);
    let dot = |i: usize, j: usize| (0..k).map(|l| x[i * k + l] * x[j * k + l]).sum::<f64>() / k as f64;
    (0..n).map(|i| (0..n).map(|j| f64::from(dot(i.max(j), i.min(j)) as f32)).collect()).collect()
}

/// The solution of `m x = b` by elimination.
fn solve(mut m: Matrix, mut b: Vec<f64>) -> Vec<f64> {
    let n = b.len();
    for k in 0..n {
        let best = (k..n).max_by(|&i, &j| m[i][k].abs().total_cmp(&m[j][k].abs())).unwrap();
        m.swap(k, best);
        b.swap(k, best);
        let (row, of_row) = (m[k].clone(), b[k]);
        for i in k + 1..n {
            let by = m[i][k] / row[k];
            m[i].iter_mut().zip(&row).for_each(|(x, r)| *x -= by * r);
            b[i] -= by * of_row;
        }
    }
    for k in (0..n).rev() {
        let behind: f64 = (k + 1..n).map(|j| m[k][j] * b[j]).sum();
        b[k] = (b[k] - behind) / m[k][k];
    }
    b
}

/// `(G kron A + damping)^-1 x`, or of the factored damping.
fn curved(a: &Matrix, g: &Matrix, x: &[f64], damping: f64, mode: Damping) -> Vec<f64> {
    let (n, h) = (a.len(), g.len());
    let trace = |m: &Matrix| (0..m.len()).map(|i| m[i][i]).sum::<f64>() / m.len() as f64;
    let pi = (trace(a) / trace(g)).sqrt();
    let one = |i: usize, j: usize| f64::from(u8::from(i == j));
    let element = |i: usize, j: usize| {
        let (r, c, s, d) = (i / n, i % n, j / n, j % n);
        match mode {
            Damping::Exact => g[r][s] * a[c][d] + damping * one(i, j),
            Damping::Factored => {
                (g[r][s] + damping.sqrt() / pi * one(r, s)) * (a[c][d] + damping.sqrt() * pi * one(c, d))
            }
        }
    };
    solve((0..h * n).map(|i| (0..h * n).map(|j| element(i, j)).collect()).collect(), x.to_vec())
}

fn pack(m: &Matrix) -> Vec<f64> {
    (0..packed(m.len()))
        .map(|e| {
            let i = (0..m.len()).rfind(|&i| packed(i) <= e).unwrap();
            m[i][e - packed(i)]
        })
        .collect()
}

/// Two maps, one with a bias, and a vector: 5 x 3 from 0, its bias from 64, 4 x 6 from 128, the vector from 192.
fn problem() -> Kfac {
    let parameters = [(0, vec![5, 3]), (64, vec![5]), (128, vec![4, 6]), (192, vec![7])];
    let parameters = parameters.iter().map(|(first, shape)| Parameter::new(*first, &shape[..])).collect();
    let maps = vec![
        Map { weight: 0, rows: 5, columns: 3, bias: Some(64) },
        Map { weight: 128, rows: 4, columns: 6, bias: None },
    ];
    Kfac::new(199, parameters, maps)
}

/// Where element e of map l `[H, A]` lies.
fn place(l: usize, e: usize) -> usize {
    match (l, e % 4) {
        (0, 3) => 64 + e / 4,
        (0, c) => e / 4 * 3 + c,
        _ => 128 + e,
    }
}

/// Ten steps of every option that changes what is solved, against whole Kronecker products.
fn ten_steps(device: &Device) {
    for (mode, damping, kl_clip, frequency) in
        [(Damping::Exact, 0.03, 0.01, 1), (Damping::Exact, 0.5, 0.0, 2), (Damping::Factored, 0.05, 1e-3, 1)]
    {
        let mut p = problem();
        p.common = Common { clip: 6.0, weight_decay: 0.1, ..Common::default() };
        (p.mode, p.damping, p.kl_clip, p.factor_frequency) = (mode, damping, kl_clip, frequency);
        (p.inverse_frequency, p.adamw_rate, p.decay) = (1, 0.5, 0.8);
        let p = p.build().unwrap();
        let mut w = draw(1, 199);
        let mut steps = Steps::on(device, &p, w.clone());
        let sizes = [(4usize, 5usize), (6, 4)];
        let mut averages: Vec<(Matrix, Matrix)> = Vec::new();
        let mut momentum = [vec![0.0; 20], vec![0.0; 24]];
        let (mut first, mut second) = ([0.0; 7], [0.0; 7]);
        for t in 1..=10u64 {
            let mut g = draw(50 + t, 199);
            (15..64).chain(69..128).chain(152..192).for_each(|i| g[i] = 0.0);
            let seen: Vec<(Matrix, Matrix)> = sizes
                .iter()
                .enumerate()
                .map(|(l, &(a, h))| (factor(100 * t + l as u64, a, 2 * a), factor(100 * t + 50 + l as u64, h, 2 * h)))
                .collect();
            let mut flat = vec![0.0; p.places.factors];
            for ((a, g), at) in seen.iter().zip(&p.places.maps) {
                for (first, list) in [(at.a, pack(a)), (at.g, pack(g))] {
                    flat[first..first + list.len()].copy_from_slice(&list);
                }
            }
            let rate = f64::from(0.03f32);
            steps.step_with(&g, &vec![1.0; 199], rate, &[("seen", &flat)]);
            let scale = (6.0 / g.iter().map(|x| x * x).sum::<f64>().sqrt()).min(1.0);
            g.iter_mut().for_each(|g| *g *= scale);
            if (t - 1) % frequency as u64 == 0 {
                let k = ((t - 1) / frequency as u64) as f64;
                let keep = (k / (k + 1.0)).min(0.8);
                let mix = |old: &Matrix, new: &Matrix| -> Matrix {
                    old.iter()
                        .zip(new)
                        .map(|(o, n)| o.iter().zip(n).map(|(o, n)| keep * o + (1.0 - keep) * n).collect())
                        .collect()
                };
                averages = match averages.is_empty() {
                    true => seen,
                    false => averages.iter().zip(&seen).map(|(o, n)| (mix(&o.0, &n.0), mix(&o.1, &n.1))).collect(),
                };
            }
            let mut updates = Vec::new();
            let mut agreement = 0.0;
            for (l, (a, of_g)) in averages.iter().enumerate() {
                let x: Vec<f64> = (0..momentum[l].len()).map(|e| g[place(l, e)]).collect();
                let u = curved(a, of_g, &x, damping, mode);
                agreement += u.iter().zip(&x).map(|(u, x)| u * x).sum::<f64>();
                updates.push(u);
            }
            let shorter = if kl_clip > 0.0 { (kl_clip / (rate * rate * agreement)).sqrt().min(1.0) } else { 1.0 };
            assert!(mode == Damping::Exact && damping == 0.5 || shorter < 1.0, "the bound is to bind: {shorter}");
            for (l, u) in updates.iter().enumerate() {
                for (e, u) in u.iter().enumerate() {
                    momentum[l][e] = 0.9 * momentum[l][e] + shorter * u;
                    let n = place(l, e);
                    w[n] -= rate * momentum[l][e] + rate * 0.1 * w[n];
                }
            }
            for i in 0..7 {
                let g = g[192 + i];
                first[i] = 0.9 * first[i] + 0.1 * g;
                second[i] = 0.999 * second[i] + 0.001 * g * g;
                let hat = |x: f64, beta: f64| x / (1.0 - beta.powi(t as i32));
                let update = hat(first[i], 0.9) / (hat(second[i], 0.999).sqrt() + 1e-8);
                w[192 + i] -= 0.5 * rate * (update + 0.1 * w[192 + i]);
            }
            let off = apart(steps.parameter(), &w);
            assert!(off < 2e-5, "{mode:?}, step {t}: {off:e}");
        }
    }
}

#[test]
fn ten_steps_are_those_of_another_implementation() {
    ten_steps(&Device::Cpu);
}

#[test]
fn on_a_gpu_ten_steps_are_those_of_another_implementation() {
    let Some(gpu) = gpu() else { return };
    ten_steps(&Device::Cuda(gpu.device.clone()));
}

/// With the factors of squares' own Hessian a step without damping goes from anywhere to where a linear map fits best.
#[test]
fn on_a_linear_map_one_step_is_newtons() {
    let (rows, d, h) = (12, 3, 2);
    let (x, target) = (draw(1, rows * d), draw(2, rows * h));
    let parameters = vec![Parameter::new(0, [h, d]), Parameter::new(64, [h])];
    let map = Map { weight: 0, rows: h, columns: d, bias: Some(64) };
    let mut p = Kfac::new(66, parameters, vec![map]);
    (p.damping, p.kl_clip, p.momentum) = (1e-9, 0.0, 0.0);
    let p = p.build().unwrap();
    let mut w = draw(3, 66);
    w[6..64].fill(0.0);
    // Gradients of the mean of squares, for the step; columns of its Hessian's root, for G.
    let gradients = |w: &[f64]| -> Vec<f64> {
        let mut g = vec![0.0; 66];
        for n in 0..rows {
            for c in 0..h {
                let y: f64 = w[64 + c] + (0..d).map(|k| w[c * d + k] * x[n * d + k]).sum::<f64>();
                let e = 2.0 / (rows * h) as f64 * (y - target[n * h + c]);
                (0..d).for_each(|k| g[c * d + k] += e * x[n * d + k]);
                g[64 + c] += e;
            }
        }
        g
    };
    let (from, to) = (Channels::beside(d), Channels::beside(h));
    let linear = LinearMap { batch: rows, steps: 1, x: "x", grad: "grad_y", weight: "w", bias: Some("b"), from, to };
    let factors = Factors::new(&linear).build().unwrap();
    let mut seen = vec![0.0; p.places.factors];
    let at = p.places.maps[0];
    for c in 0..h {
        let root = (2.0 / h as f64).sqrt() / rows as f64;
        let grad: Vec<f64> = (0..rows * h).map(|e| if e % h == c { root } else { 0.0 }).collect();
        let made = forward(&factors, &Inputs { x: &x, grad: &grad, lengths: &vec![1; rows], bases: None });
        seen[at.a..at.a + made.a.len()].copy_from_slice(&made.a);
        seen[at.g..].iter_mut().zip(&made.g).for_each(|(to, g)| *to += g);
    }
    let before = gradients(&w).iter().map(|g| g.abs()).fold(0.0, f64::max);
    let mut steps = Steps::new(&p, w);
    let g = gradients(steps.parameter());
    steps.step_with(&g, &vec![0.0; 66], 1.0, &[("seen", &seen)]);
    let after = gradients(steps.parameter()).iter().map(|g| g.abs()).fold(0.0, f64::max);
    assert!(after < 1e-5 * before, "{before} {after}");
}

/// Second moments that are the products of eigenvalues change nothing; others do.
#[test]
fn second_moments_take_the_place_of_eigenvalues() {
    let build = |ekfac: bool| {
        let mut p = problem();
        (p.ekfac, p.inverse_frequency, p.factor_frequency) = (ekfac, 100, 1);
        p.build().unwrap()
    };
    let (plain, with) = (build(false), build(true));
    let mut flat = vec![0.0; plain.places.factors];
    for (l, at) in plain.places.maps.iter().enumerate() {
        let (a, h) = [(4, 5), (6, 4)][l];
        for (first, list) in [(at.a, pack(&factor(l as u64, a, 9))), (at.g, pack(&factor(7 + l as u64, h, 9)))] {
            flat[first..first + list.len()].copy_from_slice(&list);
        }
    }
    let (mut one, mut two) = (Steps::new(&plain, draw(1, 199)), Steps::new(&with, draw(1, 199)));
    let decay = vec![1.0; 199];
    for t in 0..4 {
        let mut g = draw(20 + t, 199);
        (15..64).chain(69..128).chain(152..192).for_each(|i| g[i] = 0.0);
        let squares = two.state.get("squares").unwrap().data.clone();
        let squares: Vec<f64> = squares.iter().map(|s| if t == 3 { 4.0 * s } else { *s }).collect();
        one.step_with(&g, &decay, 0.01, &[("seen", &flat)]);
        two.step_with(&g, &decay, 0.01, &[("seen", &flat), ("seen_squares", &squares)]);
        let off = apart(one.parameter(), two.parameter());
        // Step 0 finds no bases yet, and step 3 moves the moments by a twentieth of three times themselves.
        assert!(if t < 3 { off < 1e-6 } else { off > 1e-6 }, "step {t}: {off}");
    }
}

/// Factors with a NaN leave the averages as they were, and their count.
fn left_out(device: &Device) {
    let p = problem().build().unwrap();
    let mut good = vec![0.0; p.places.factors];
    for at in &p.places.maps {
        for e in 0..6 {
            good[at.a + packed(e) + e] = 1.0;
            good[at.g + packed(e) + e] = 1.0;
        }
    }
    let mut bad = good.clone();
    bad[p.places.maps[1].g] = f64::NAN;
    let mut steps = Steps::on(device, &p, draw(1, 199));
    let g = vec![0.1; 199];
    steps.step_with(&g, &g, 0.01, &[("seen", &good)]);
    let before = steps.state.get("factors").unwrap().clone();
    let others: Vec<f64> = bad.iter().map(|x| 2.0 * x).collect();
    steps.step_with(&g, &g, 0.01, &[("seen", &others)]);
    let after = steps.state.get("factors").unwrap().clone();
    assert_eq!(steps.state.get("averaged").unwrap().data, [2.0, 1.0]);
    let second = p.places.maps[1].a;
    assert_eq!(before.data[second..], after.data[second..]);
    assert!(after.data[p.places.maps[0].a] > before.data[p.places.maps[0].a]);
    assert!(steps.parameter().iter().all(|x| x.is_finite()));
}

#[test]
fn factors_that_are_not_finite_are_left_out() {
    left_out(&Device::Cpu);
}

/// An average with a NaN in it, or with factored damping one that is not positive: its side keeps what it had, with the other side, or map,
/// solved as if nothing were wrong.
fn kept(device: &Device) {
    for (mode, bad) in [(Damping::Exact, f64::NAN), (Damping::Factored, f64::NAN), (Damping::Factored, -1e3)] {
        let p = Kfac { mode, inverse_frequency: 1, factor_frequency: 100, ..problem() }.build().unwrap();
        let mut flat = vec![0.0; p.places.factors];
        for (l, at) in p.places.maps.iter().enumerate() {
            let (a, h) = [(4, 5), (6, 4)][l];
            for (first, list) in [(at.a, pack(&factor(l as u64, a, 9))), (at.g, pack(&factor(7 + l as u64, h, 9)))] {
                flat[first..first + list.len()].copy_from_slice(&list);
            }
        }
        let at = p.places.maps[0];
        // Another average of G, beside what is not that of A.
        let mut other = flat.clone();
        other[at.g..at.g + packed(5)].iter_mut().for_each(|x| *x *= 2.0);
        let run = |broken: bool| {
            let mut steps = Steps::on(device, &p, draw(1, 199));
            steps.step_with(&[0.1; 199], &[0.0; 199], 0.01, &[("seen", &flat)]);
            let before = steps.state.get("bases").unwrap().data.clone();
            let mut factors = steps.state.get("factors").unwrap().clone();
            factors.data.copy_from_slice(&other);
            if broken {
                factors.data[at.a + packed(1) + 1] = bad;
            }
            steps.state.insert("factors", factors);
            steps.step_with(&[0.1; 199], &[0.0; 199], 0.01, &[("seen", &flat)]);
            (before, steps.state.get("bases").unwrap().data.clone(), steps.parameter().to_vec())
        };
        let ((before, after, w), (_, whole, _)) = (run(true), run(false));
        let (a, rest) = (at.basis_a..at.basis_a + 16, p.places.maps[1].basis_a..p.places.bases);
        assert_eq!(before[a.clone()], after[a.clone()], "{mode:?} {bad}");
        assert_eq!(after[rest.clone()], whole[rest], "{mode:?} {bad}");
        assert!(mode == Damping::Exact || before[a.clone()] != whole[a], "{mode:?}: an average that changes nothing");
        assert!(w.iter().all(|x| x.is_finite()), "{mode:?} {bad}");
    }
}

#[test]
fn sides_that_cannot_be_solved_keep_what_they_had() {
    kept(&Device::Cpu);
}

#[test]
fn on_a_gpu_what_is_not_finite_or_not_solved_harms_nothing_else() {
    let Some(gpu) = gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    left_out(&device);
    kept(&device);
}

#[test]
fn maps_are_solved_in_turns() {
    let mut p = problem();
    (p.inverse_frequency, p.factor_frequency) = (3, 2);
    let p = p.build().unwrap();
    let of = |l: usize| (1..=7).filter(|&t| p.solves(t, l)).collect::<Vec<_>>();
    assert_eq!((of(0), of(1)), (vec![1, 4, 7], vec![3, 6]));
    assert_eq!((1..=5).filter(|&t| p.averages(t)).collect::<Vec<_>>(), [1, 3, 5]);
}

#[test]
fn options_out_of_range_are_named() {
    let message = |change: &dyn Fn(&mut Kfac)| {
        let mut p = problem();
        change(&mut p);
        p.build().unwrap_err().to_string()
    };
    assert_eq!(message(&|p| p.momentum = 1.0), "kfac: momentum = 1 is not in 0 .. 1");
    assert_eq!(message(&|p| p.damping = 0.0), "kfac: damping = 0 is not a positive number");
    assert!(message(&|p| p.kl_clip = f64::NAN).contains("kl_clip = NaN is not a finite number of at least 0"));
    assert!(message(&|p| p.inverse_frequency = 0).contains("inverse_frequency = 0 is not 1 to"));
    let both = |p: &mut Kfac| (p.ekfac, p.mode) = (true, Damping::Factored);
    assert!(message(&both).contains("ekfac = true needs damping_mode = \"exact\""));
    assert!(message(&|p| p.maps[1].weight = 130).contains("24 elements from element 130 on are no parameter"));
    assert!(message(&|p| p.maps[1].bias = Some(64)).contains("4 elements from element 64 on"));
    assert!("exakt".parse::<Damping>().unwrap_err().to_string().contains("is not one of exact, factored"));
}

/// Maps of one tile and of several, of one panel and of several, beside each other; turns of three steps, factors of every second, all
/// ways of damping. Factors of rank 3, and at last of nothing.
#[test]
fn on_a_gpu_steps_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    let sizes = [(70usize, 65usize), (3, 40), (1, 1), (33, 2)];
    let (mut elements, mut parameters, mut maps) = (0usize, Vec::new(), Vec::new());
    for (h, d) in sizes {
        maps.push(Map { weight: elements, rows: h, columns: d, bias: Some(elements + h * d) });
        parameters.extend([Parameter::new(elements, [h, d]), Parameter::new(elements + h * d, [h])]);
        elements += h * (d + 1);
    }
    parameters.push(Parameter::new(elements, [9]));
    elements += 9;
    for (mode, ekfac, mean) in [
        (Damping::Exact, false, DecayMode::L2),
        (Damping::Factored, false, DecayMode::Independent),
        (Damping::Exact, true, DecayMode::Corrected),
    ] {
        let mut p = Kfac::new(elements, parameters.clone(), maps.clone());
        (p.mode, p.ekfac, p.damping, p.inverse_frequency, p.factor_frequency) = (mode, ekfac, 0.1, 3, 2);
        p.common = Common { clip: 30.0, weight_decay: 0.1, mode: mean };
        let p = p.build().unwrap();
        let (w, decay) = (draw(4, elements), vec![1.0; elements]);
        let (mut here, mut there) = (Steps::new(&p, w.clone()), Steps::on(&device, &p, w.clone()));
        let mut last = None;
        for t in 1..=7u64 {
            let mut seen = vec![0.0; p.places.factors];
            for ((m, at), t) in maps.iter().zip(&p.places.maps).zip(10 * t..).take(if t < 6 { 4 } else { 0 }) {
                // Squares are those of one basis, which a factor without its rank does not have.
                let of_a = if ekfac { 2 * m.inputs() } else { 3 };
                for (first, n, k) in [(at.a, m.inputs(), of_a), (at.g, m.rows, 2 * m.rows)] {
                    let list = pack(&factor(t, n, k));
                    seen[first..first + list.len()].copy_from_slice(&list);
                }
            }
            let squares: Vec<f64> = draw(90 + t, p.places.squares).iter().map(|x| x * x).collect();
            let more: &[(&str, &[f64])] = &[("seen", &seen), ("seen_squares", &squares)];
            let (g, more) = (draw(30 + t, elements), if ekfac { more } else { &more[..1] });
            here.step_with(&g, &decay, 0.03, more);
            there.step_with(&g, &decay, 0.03, more);
            let (moved, off) = (apart(here.parameter(), &w), apart(there.parameter(), here.parameter()));
            assert!(off < 1e-4 * moved, "{mode:?}, {ekfac}, step {t}: {off:e} of {moved:e}");
            if t == 4 {
                let mut resumed = Steps::on(&device, &p, draw(9, elements));
                resumed.resume(&there);
                last = Some(resumed);
            } else if let Some(resumed) = &mut last {
                // State is all there is here too.
                resumed.step_with(&g, &decay, 0.03, more);
                assert!(resumed.state == there.state, "{mode:?}, step {t}");
            }
        }
    }
}
