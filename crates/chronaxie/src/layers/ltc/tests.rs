//! What is special to LTC: the hand-written backward pass against dual numbers and finite differences, the order of the
//! unfolds, the bounds of the state, and the noise floor behind the declared tolerances.

use super::reference::{self, Fields, forward_fields};
use super::spec::{Constraint, Ltc, Mapping};
use super::{Connectivity, Synapses, init};
use crate::op::{Pass, Tensors, Values};
use crate::real::{Dual, Real};
use std::sync::Arc;

/// Synapses at about half density, from the hash of their ends; every neuron keeps one.
fn half(inputs: usize, hidden: usize) -> Arc<Connectivity> {
    let kept = |i: usize, j: usize, salt: usize| {
        let h = (i * 0x9e37 + j * 0x79b9 + salt).wrapping_mul(0x85eb_ca6b) >> 7;
        h.is_multiple_of(2) || i == j
    };
    let recurrent = Synapses::from_fn(hidden, hidden, |i, j| kept(i, j, 1)).unwrap();
    let sensory = Synapses::from_fn(inputs, hidden, |i, j| kept(i, j, 2)).unwrap();
    Arc::new(Connectivity::new(recurrent, sensory).unwrap())
}

/// Problems that between them have every option: dt as in ltc-cuda and as in ncps, elapsed times, and edge sizes.
fn problems() -> Vec<(&'static str, Ltc)> {
    let plain = Ltc { initial_state: true, ..Ltc::new(2, 3, half(4, 5)) };
    let everything = Ltc { layer_norm: true, output_mapping: Mapping::Affine, outputs: 3, ..plain.clone() };
    vec![
        ("dt 1/30", plain.clone()),
        ("dt 1", Ltc { dt: 1.0, unfolds: 4, ..plain.clone() }),
        ("everything, dt 1/30", everything.clone()),
        ("everything, dt 1", Ltc { dt: 1.0, ..everything.clone() }),
        ("everything, elapsed", Ltc { elapsed: true, ..everything.clone() }),
        ("identity", Ltc { constraint: Constraint::Identity, elapsed: true, ..plain.clone() }),
        (
            "linear mappings",
            Ltc {
                input_mapping: Mapping::Linear,
                output_mapping: Mapping::Linear,
                outputs: 2,
                initial_state: false,
                ..plain.clone()
            },
        ),
        ("no mapping", Ltc { input_mapping: Mapping::None, outputs: 4, unfolds: 1, ..plain.clone() }),
        ("H 1", Ltc { initial_state: true, layer_norm: true, elapsed: true, ..Ltc::new(2, 2, half(3, 1)) }),
        ("D 1", Ltc { initial_state: true, layer_norm: true, ..Ltc::new(1, 2, half(1, 3)) }),
        ("D 0", Ltc { initial_state: true, layer_norm: true, ..Ltc::new(2, 2, half(0, 3)) }),
        ("T 0", Ltc { initial_state: true, layer_norm: true, elapsed: true, ..Ltc::new(2, 0, half(2, 3)) }),
        ("B 0", Ltc { initial_state: true, layer_norm: true, elapsed: true, ..Ltc::new(0, 2, half(2, 3)) }),
        ("H 0", Ltc { initial_state: true, layer_norm: true, elapsed: true, ..Ltc::new(2, 2, half(2, 0)) }),
    ]
    .into_iter()
    .map(|(name, p)| (name, p.build().unwrap()))
    .collect()
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// `||x - law|| / ||law||`, or the absolute norm where the law is zero.
fn relative(x: &[f64], law: &[f64]) -> f64 {
    assert_eq!(x.len(), law.len());
    let error = norm(&x.iter().zip(law).map(|(x, l)| x - l).collect::<Vec<_>>());
    let scale = norm(law);
    if scale == 0.0 { error } else { error / scale }
}

/// `sum out * grad_out + final_state * grad_final_state`: the loss whose gradient the backward pass returns.
fn loss<R: Real>(p: &Ltc, f: &Fields<R>, inputs: &Tensors) -> R {
    let o = forward_fields(p, f);
    let dot = |x: &[R], g: &Values| {
        assert_eq!(x.len(), g.data.len());
        x.iter().zip(&g.data).fold(R::zero(), |sum, (&x, &g)| sum + x * R::from_f64(g))
    };
    dot(&o.out, inputs.get("grad_out").unwrap()) + dot(&o.final_state, inputs.get("grad_final_state").unwrap())
}

/// The names of the tensors that have a gradient.
fn trainable(p: &Ltc) -> Vec<String> {
    let outputs = p.signature_of(Pass::Backward).unwrap().outputs;
    outputs.iter().map(|s| s.name.trim_start_matches("grad_").to_owned()).collect()
}

#[test]
fn the_backward_pass_agrees_with_dual_numbers() {
    for (case, p) in problems() {
        let inputs = init::sample(&p, Pass::Backward, 11).unwrap();
        let gradients = reference::backward::<f64>(&p, &inputs).unwrap();
        let mut f = Fields::<Dual>::lift(&p, &inputs).unwrap();
        for name in trainable(&p) {
            let got = &gradients.get(&format!("grad_{name}")).unwrap().data;
            let mut want = Vec::new();
            for at in 0..got.len() {
                f.get_mut(&name).unwrap()[at].derivative = 1.0;
                want.push(loss(&p, &f, &inputs).derivative);
                f.get_mut(&name).unwrap()[at].derivative = 0.0;
            }
            let error = relative(got, &want);
            assert!(error < 1e-12, "{case}: {name} is off by {error:e}");
            let moves = p.batch > 0 && p.steps > 0 && p.hidden > 0 && p.inputs > 1;
            assert!(!moves || norm(&want) > 1e-6, "{case}: {name} has the gradient {:e}", norm(&want));
        }
    }
}
