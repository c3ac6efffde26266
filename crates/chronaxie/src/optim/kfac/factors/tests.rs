//! Factors against the curvature of networks whose curvature they are, element by element.

use super::reference::{Inputs, forward};
use super::{Factors, Sharing, Terms};
use crate::call::Session;
use crate::check::gpu::gpu;
use crate::op::{Channels, LinearMap, Pass, Values};
use crate::optim::blocks::packed;
use crate::optim::testing::{Matrix, apart, draw, times, transposed};
use crate::{Device, Dtype};
use std::sync::Arc;

const SIZES: [usize; 4] = [3, 4, 5, 2];
const ROWS: usize = 4;
const STEPS: usize = 3;

fn matrix(seed: u64, rows: usize, columns: usize) -> Matrix {
    draw(seed, rows * columns).chunks(columns).map(<[f64]>::to_vec).collect()
}

/// A deep linear network, its biases as last columns of its weights.
fn through(weights: &[Matrix], x: &[f64]) -> Vec<Vec<f64>> {
    let mut all = vec![x.to_vec()];
    for w in weights {
        let input: Vec<f64> = all[all.len() - 1].iter().copied().chain([1.0]).collect();
        all.push(w.iter().map(|row| row.iter().zip(&input).map(|(w, x)| w * x).sum()).collect());
    }
    all
}

fn whole(packed_factor: &[f64], n: usize) -> Matrix {
    (0..n).map(|i| (0..n).map(|j| packed_factor[packed(i.max(j)) + i.min(j)]).collect()).collect()
}

/// `G kron A` of a layer over `[H, A]`, and the Gauss-Newton matrix from differences of outputs, which are linear in each weight. The
/// loss is the mean of squares, of every step's output or (`pooled`) of the rows' means of them.
fn both(layer: usize, pooled: bool, sharing: Sharing, terms: Terms) -> (Vec<f64>, Vec<f64>) {
    let layers = SIZES.len() - 1;
    let weights: Vec<Matrix> = (0..layers).map(|l| matrix(l as u64, SIZES[l + 1], SIZES[l] + 1)).collect();
    let x: Vec<Vec<f64>> = draw(9, ROWS * STEPS * SIZES[0]).chunks(SIZES[0]).map(<[f64]>::to_vec).collect();
    let (d, h, classes) = (SIZES[layer], SIZES[layer + 1], SIZES[layers]);
    let count = if pooled { ROWS } else { ROWS * STEPS };

    let outputs = |weights: &[Matrix]| -> Matrix {
        let each: Matrix = x.iter().map(|x| through(weights, x)[layers].clone()).collect();
        if !pooled {
            return each;
        }
        let mean =
            |rows: &[Vec<f64>]| (0..classes).map(|c| rows.iter().map(|r| r[c]).sum::<f64>() / STEPS as f64).collect();
        each.chunks(STEPS).map(mean).collect()
    };
    let before = outputs(&weights);
    let mut jacobian: Matrix = Vec::new();
    for e in 0..h * (d + 1) {
        let mut moved = weights.clone();
        moved[layer][e / (d + 1)][e % (d + 1)] += 1.0;
        jacobian.push(outputs(&moved).iter().flatten().zip(before.iter().flatten()).map(|(a, b)| a - b).collect());
    }
    let scale = 2.0 / classes as f64 / count as f64;
    let want: Vec<f64> = times(&jacobian, &transposed(&jacobian)).into_iter().flatten().map(|x| x * scale).collect();

    // The root of the loss's Hessian, one column after the other, back to the layer's outputs.
    let mut back: Matrix = (0..classes).map(|c| (0..classes).map(|k| f64::from(u8::from(c == k))).collect()).collect();
    for w in weights[layer + 1..].iter().rev() {
        let inner: Matrix = w.iter().map(|row| row[..row.len() - 1].to_vec()).collect();
        back = times(&back, &inner);
    }
    let (from, to) = (Channels::beside(d), Channels::beside(h));
    let map = LinearMap { batch: ROWS, steps: STEPS, x: "x", grad: "grad_y", weight: "w", bias: Some("b"), from, to };
    let p = Factors::new(&map).sharing(sharing).terms(terms).build().unwrap();
    let inputs: Vec<f64> = x.iter().flat_map(|x| through(&weights, x)[layer].clone()).collect();
    let each = (2.0 / classes as f64).sqrt() / (ROWS * STEPS) as f64;
    let mut g = vec![0.0; packed(h)];
    let mut a = Vec::new();
    for row in &back {
        let grad: Vec<f64> = (0..ROWS * STEPS).flat_map(|_| row.iter().map(|g| g * each)).collect();
        let made = forward(&p, &Inputs { x: &inputs, grad: &grad, lengths: &[STEPS; ROWS], bases: None });
        a = made.a;
        g.iter_mut().zip(&made.g).for_each(|(to, g)| *to += g);
    }
    let (a, g) = (whole(&a, d + 1), whole(&g, h));
    let n = h * (d + 1);
    let got = (0..n * n).map(|e| {
        let (i, j) = (e / n, e % n);
        g[i / (d + 1)][j / (d + 1)] * a[i % (d + 1)][j % (d + 1)]
    });
    (got.collect(), want)
}

/// Eschenhagen et al., arXiv:2311.00636: expand is exact where every position has a loss of its own, reduce where features are pooled
/// ahead of it; and the other way around neither is.
#[test]
fn factors_are_the_curvature_of_deep_linear_networks() {
    for layer in 0..SIZES.len() - 1 {
        let (got, want) = both(layer, false, Sharing::Expand, Terms::Positions);
        assert!(apart(&got, &want) < 1e-12, "expand, layer {layer}: {}", apart(&got, &want));
        let (got, want) = both(layer, true, Sharing::Reduce, Terms::Batch);
        assert!(apart(&got, &want) < 1e-12, "reduce, layer {layer}: {}", apart(&got, &want));
        for (pooled, sharing, terms) in [(true, Sharing::Expand, Terms::Batch), (false, Sharing::Reduce, Terms::Batch)]
        {
            let (got, want) = both(layer, pooled, sharing, terms);
            assert!(apart(&got, &want) > 0.05, "{sharing:?}, layer {layer}: {}", apart(&got, &want));
        }
    }
}

/// The squares of samples' gradients in the bases, where each sample has one position.
#[test]
fn squares_are_those_of_samples_gradients() {
    let (d, h, rows) = (3, 4, 6);
    let (from, to) = (Channels::beside(d), Channels::beside(h));
    let map = LinearMap { batch: rows, steps: 1, x: "x", grad: "grad_y", weight: "w", bias: Some("b"), from, to };
    let p = Factors::new(&map).squares(true).build().unwrap();
    let (x, grad) = (draw(1, rows * d), draw(2, rows * h));
    let (qa, qg) = (matrix(3, d + 1, d + 1), matrix(4, h, h));
    let flat = |m: &Matrix| m.iter().flatten().copied().collect::<Vec<f64>>();
    let bases = [flat(&qa), flat(&qg)];
    let made = forward(&p, &Inputs { x: &x, grad: &grad, lengths: &[1; 6], bases: Some([&bases[0], &bases[1]]) });
    let mut want = vec![0.0; h * (d + 1)];
    for (x, g) in x.chunks(d).zip(grad.chunks(h)) {
        // What the gradient of the mean loss holds of one sample is its own over their number.
        let own: Matrix = g.iter().map(|g| x.iter().chain([&1.0]).map(|x| rows as f64 * g * x).collect()).collect();
        let turned = times(&times(&qg, &own), &transposed(&qa));
        want.iter_mut().zip(turned.iter().flatten()).for_each(|(w, t)| *w += t * t / rows as f64);
    }
    assert!(apart(&made.squares, &want) < 1e-12);
}

/// What lies beyond a row's length is never read, and lengths out of range are cut.
fn padding_has_no_part_on(device: &Device) {
    let (from, to) = (Channels::along(2), Channels::beside(3));
    for sharing in [Sharing::Expand, Sharing::Reduce] {
        let made = |steps: usize, lengths: [f64; 3], fill: f64| {
            let map = LinearMap { batch: 3, steps, x: "x", grad: "grad_y", weight: "w", bias: Some("b"), from, to };
            let p = Factors::new(&map).sharing(sharing).build().unwrap();
            let (mut x, mut grad) = (vec![fill; 3 * 2 * steps], vec![fill; 3 * 3 * steps]);
            for (b, len) in [4usize, 0, 2].into_iter().enumerate() {
                for t in 0..len {
                    (0..2).for_each(|k| x[(b * 2 + k) * steps + t] = (b + 3 * k + t) as f64);
                    (0..3).for_each(|k| grad[(b * steps + t) * 3 + k] = 0.5 - (2 * b + k + t) as f64);
                }
            }
            let mut session = Session::new(Arc::new(p), device).unwrap();
            let mut all = crate::op::Tensors::new();
            let signature = p.signature_of(Pass::Forward).unwrap();
            for (t, data) in signature.inputs.iter().zip([x, grad, lengths.to_vec()]) {
                all.insert(t.name.to_string(), Values::new(t.shape, data).unwrap().rounded(Dtype::F32));
            }
            session.run(Pass::Forward, &all).unwrap()
        };
        let tight = made(4, [4.0, 0.0, 2.0], 0.0);
        assert_eq!(made(9, [4.0, 0.0, 2.0], f64::NAN), tight, "{sharing:?}");
        assert_eq!(made(4, [7.0, -1.0, 2.0], f64::NAN), tight, "{sharing:?}");
    }
}

#[test]
fn padding_has_no_part() {
    padding_has_no_part_on(&Device::Cpu);
}

#[test]
fn on_a_gpu_padding_has_no_part() {
    let Some(gpu) = gpu() else { return };
    padding_has_no_part_on(&Device::Cuda(gpu.device.clone()));
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let map = |from, batch| LinearMap {
        batch,
        steps: 4,
        x: "x",
        grad: "grad_y",
        weight: "w",
        bias: None,
        from,
        to: Channels::beside(3),
    };
    let message = |from, batch| Factors::new(&map(from, batch)).build().unwrap_err().to_string();
    assert!(message(Channels::grouped(5, 2), 1).contains("D = 5 channels do not fall into 2 groups"));
    assert!(message(Channels::beside(5), usize::MAX / 8).contains("T = 4, D = 5, H = 3 have more elements"));
    let p = Factors::new(&map(Channels::beside(5), 1)).build().unwrap();
    assert!(p.signature_of(Pass::Step).unwrap_err().to_string().contains("no step pass"));
    assert!("expanded".parse::<Sharing>().unwrap_err().to_string().contains("is not one of expand, reduce"));
    assert!("rows".parse::<Terms>().unwrap_err().to_string().contains("is not one of batch, positions"));
}
