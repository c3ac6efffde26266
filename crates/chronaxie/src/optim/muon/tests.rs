//! Muon's step against an implementation of its own in f64.

use super::spec::Muon;
use crate::optim::blocks::Parameter;
use crate::optim::stepper::Common;
use crate::optim::testing::{Matrix, Steps, apart, draw, norm, plus, times, transposed};

/// Ten steps of a matrix that is tall, one that is wide and a vector.
#[test]
fn ten_steps_are_those_of_another_implementation() {
    let shapes = [(0usize, 9usize, 4usize), (64, 3, 8)];
    let (vector, elements) = (128, 135);
    let mut parameters: Vec<Parameter> = shapes.iter().map(|&(first, m, n)| Parameter::new(first, [m, n])).collect();
    parameters.push(Parameter::new(vector, [7]));
    let mut p = Muon::new(elements, parameters);
    p.common = Common { clip: 4.0, weight_decay: 0.1, ..Common::default() };
    p.adamw_rate = 0.5;
    let p = p.build().unwrap();
    let mut w = draw(1, elements);
    let decay = vec![1.0; elements];
    let mut steps = Steps::new(&p, w.clone());
    let mut momentum: Vec<Matrix> = shapes.iter().map(|&(_, m, n)| vec![vec![0.0; n]; m]).collect();
    let (mut first, mut second) = ([0.0; 7], [0.0; 7]);
    for t in 1..=10 {
        let mut g = draw(50 + t, elements);
        (36..64).chain(88..vector).for_each(|i| g[i] = 0.0);
        let rate = f64::from(0.03f32);
        steps.step(&g, &decay, rate);
        let scale = (4.0 / g.iter().map(|x| x * x).sum::<f64>().sqrt()).min(1.0);
        g.iter_mut().for_each(|g| *g *= scale);
        for (&(at, m, n), v) in shapes.iter().zip(&mut momentum) {
            let grad: Matrix = (0..m).map(|r| g[at + r * n..at + (r + 1) * n].to_vec()).collect();
            *v = plus(v, 0.95, &grad, 1.0);
            let mut x = plus(&grad, 1.0, v, 0.95);
            x = plus(&x, 1.0 / (norm(&x) + 1e-7), &x, 0.0);
            for _ in 0..5 {
                // a X + b X X^T X + c X (X^T X)^2, from the other side than the law.
                let inner = times(&transposed(&x), &x);
                let once = times(&x, &inner);
                let twice = times(&once, &inner);
                x = plus(&plus(&x, 3.4445, &once, -4.775), 1.0, &twice, 2.0315);
            }
            let speed = rate * (m as f64 / n as f64).max(1.0).sqrt();
            for e in 0..m * n {
                w[at + e] -= speed * x[e / n][e % n] + rate * 0.1 * w[at + e];
            }
        }
        for i in 0..7 {
            let g = g[vector + i];
            first[i] = 0.9 * first[i] + 0.1 * g;
            second[i] = 0.95 * second[i] + 0.05 * g * g;
            let hat = |x: f64, beta: f64| x / (1.0 - beta.powi(t as i32));
            let update = hat(first[i], 0.9) / (hat(second[i], 0.95).sqrt() + 1e-8);
            w[vector + i] -= 0.5 * rate * (update + 0.1 * w[vector + i]);
        }
        let off = apart(steps.parameter(), &w);
        assert!(off < 3e-6, "step {t}: {off:e}");
    }
}

#[test]
fn options_out_of_range_are_named() {
    let message = |change: &dyn Fn(&mut Muon)| {
        let mut p = Muon::new(4, vec![Parameter::new(0, [2, 2])]);
        change(&mut p);
        p.build().unwrap_err().to_string()
    };
    assert_eq!(message(&|p| p.momentum = 1.0), "muon: momentum = 1 is not in 0 .. 1");
    assert!(message(&|p| p.steps = 0).contains("steps = 0 is not 1 to 100"));
    assert!(message(&|p| p.epsilon = -1.0).contains("epsilon = -1"));
}
