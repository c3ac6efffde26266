//! What is special to LTC: the hand-written backward pass against dual numbers and finite differences, the order of the
//! unfolds, the bounds of the state, and the noise floor behind the declared tolerances.

use super::reference::{self, Fields, forward_fields};
use super::spec::{Constraint, Ltc, Mapping, PerSample};
use super::{Connectivity, Synapses, init};
use crate::op::{Metric, Pass, Tensors, Values};
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
        ("mixed memory", Ltc { mixed_memory: true, ..everything.clone() }),
        ("mixed memory, elapsed", Ltc { mixed_memory: true, elapsed: true, ..plain.clone() }),
        ("mixed memory from 0", Ltc { mixed_memory: true, initial_state: false, ..plain.clone() }),
        ("mixed memory, D 0", Ltc { mixed_memory: true, initial_state: true, ..Ltc::new(2, 2, half(0, 3)) }),
        ("mixed memory, T 0", Ltc { mixed_memory: true, initial_state: true, ..Ltc::new(2, 0, half(2, 3)) }),
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

/// `sum out * grad_out + final_state * grad_final_state + ...`: the loss whose gradient the backward pass returns.
fn loss<R: Real>(p: &Ltc, f: &Fields<R>, inputs: &Tensors) -> R {
    let o = forward_fields(p, f);
    let dot = |x: &[R], g: &Values| {
        assert_eq!(x.len(), g.data.len());
        x.iter().zip(&g.data).fold(R::zero(), |sum, (&x, &g)| sum + x * R::from_f64(g))
    };
    let sum =
        dot(&o.out, inputs.get("grad_out").unwrap()) + dot(&o.final_state, inputs.get("grad_final_state").unwrap());
    inputs.find("grad_final_cell").map_or(sum, |g| sum + dot(&o.final_cell, g))
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

#[test]
fn the_backward_pass_agrees_with_finite_differences() {
    let p = &problems()[4].1;
    let inputs = init::sample(p, Pass::Backward, 12).unwrap();
    let gradients = reference::backward::<f64>(p, &inputs).unwrap();
    let mut f = Fields::<f64>::lift(p, &inputs).unwrap();
    for name in trainable(p) {
        let got = &gradients.get(&format!("grad_{name}")).unwrap().data;
        let mut want = Vec::new();
        for at in 0..got.len() {
            let centre = f.get(&name).unwrap()[at];
            let mut shifted = |by: f64| {
                f.get_mut(&name).unwrap()[at] = centre + by;
                loss(p, &f, &inputs)
            };
            let step = 1e-3 * centre.abs().max(0.1);
            // Fourth order.
            let (near, far) = (shifted(step) - shifted(-step), shifted(2.0 * step) - shifted(-2.0 * step));
            want.push((8.0 * near - far) / (12.0 * step));
            shifted(0.0);
        }
        let error = relative(got, &want);
        assert!(error < 1e-7, "{name} is off by {error:e}");
    }
}

/// One neuron, one input, one unfold, with numbers that a reader can check.
#[test]
fn one_unfold_by_hand() {
    let p = Ltc {
        initial_state: true,
        constraint: Constraint::Identity,
        unfolds: 1,
        dt: 0.5,
        epsilon: 0.0,
        ..Ltc::new(1, 1, Arc::new(Connectivity::full(1, 1).unwrap()))
    };
    let mut inputs = init::sample(&p, Pass::Forward, 1).unwrap();
    for (name, value) in [
        ("x", 2.0),
        ("input_w", 3.0),
        ("input_b", -1.0),
        ("h0", 1.0),
        ("cm", 2.0),
        ("gleak", 1.0),
        ("vleak", 0.5),
        ("w", 3.0),
        ("mu", 1.0),
        ("erev", -1.0),
        ("sensory_w", 2.0),
        ("sensory_mu", 5.0),
        ("sensory_erev", 1.0),
    ] {
        inputs.get_mut(name).unwrap().data[0] = value;
    }
    // u = 2 * 3 - 1 = 5 and v = 1 lie at the middle of both gates, so each is 1/2; c = 2 * 1 / 0.5 = 4.
    let (g_vleak, recurrent, sensory) = (1.0 * 0.5, 3.0 * 0.5, 2.0 * 0.5);
    let num = 4.0 * 1.0 + g_vleak - recurrent + sensory;
    let den = 4.0 + 1.0 + recurrent + sensory;
    assert_eq!(reference::forward::<f64>(&p, &inputs).unwrap().get("out").unwrap().data, [num / den]);
}

/// Unfolds converge to the differential equation, at the first order of a semi-implicit Euler step.
#[test]
fn unfolds_converge_at_first_order() {
    let (d, h) = (2, 4);
    let p = Ltc {
        initial_state: true,
        dt: 1.0,
        epsilon: 0.0,
        ..Ltc::new(1, 1, Arc::new(Connectivity::full(d, h).unwrap()))
    };
    let inputs = init::sample(&p, Pass::Forward, 5).unwrap();
    let get = |name: &str| inputs.get(name).unwrap().data.clone();
    let positive = |name: &str| get(name).into_iter().map(Real::softplus).collect::<Vec<f64>>();
    let (w, mu, sigma, erev) = (positive("w"), get("mu"), get("sigma"), get("erev"));
    let (sw, smu, ssigma, serev) =
        (positive("sensory_w"), get("sensory_mu"), get("sensory_sigma"), get("sensory_erev"));
    let (g, vleak, cm) = (positive("gleak"), get("vleak"), positive("cm"));
    let (x, iw, ib) = (get("x"), get("input_w"), get("input_b"));
    let u: Vec<f64> = (0..d).map(|i| x[i] * iw[i] + ib[i]).collect();
    // cm v' = -g (v - vleak) - sum p r (v - erev) - sum ps s (v - sensory_erev)
    let slope = |v: &[f64]| -> Vec<f64> {
        let current = |j: usize| {
            let synapse = |from: f64, at: usize, w: &[f64], mu: &[f64], sigma: &[f64], erev: &[f64]| {
                w[at] * Real::sigmoid(sigma[at] * (from - mu[at])) * (v[j] - erev[at])
            };
            let recurrent: f64 = (0..h).map(|i| synapse(v[i], i * h + j, &w, &mu, &sigma, &erev)).sum();
            let sensory: f64 = (0..d).map(|i| synapse(u[i], i * h + j, &sw, &smu, &ssigma, &serev)).sum();
            g[j] * (v[j] - vleak[j]) + recurrent + sensory
        };
        (0..h).map(|j| -current(j) / cm[j]).collect()
    };
    let mut exact = get("h0");
    let steps = 20_000;
    let dt = p.dt / f64::from(steps);
    for _ in 0..steps {
        let at = |k: &[f64], by: f64| exact.iter().zip(k).map(|(v, k)| v + by * k).collect::<Vec<f64>>();
        let k1 = slope(&exact);
        let k2 = slope(&at(&k1, dt / 2.0));
        let k3 = slope(&at(&k2, dt / 2.0));
        let k4 = slope(&at(&k3, dt));
        exact = (0..h).map(|j| exact[j] + dt / 6.0 * (k1[j] + 2.0 * k2[j] + 2.0 * k3[j] + k4[j])).collect();
    }
    let error = |unfolds: usize| {
        let p = Ltc { unfolds, ..p.clone() }.build().unwrap();
        relative(&reference::forward::<f64>(&p, &inputs).unwrap().get("final_state").unwrap().data, &exact)
    };
    let errors: Vec<f64> = [128, 256, 512, 1024].into_iter().map(error).collect();
    for pair in errors.windows(2) {
        let order = (pair[0] / pair[1]).log2();
        assert!((order - 1.0).abs() < 0.02, "order {order} from the errors {errors:?}");
    }
    assert!(errors[3] < 1e-3, "{errors:?}");
}

/// A new state is a convex combination of the old one, the leak and the reversal potentials (and of 0, by epsilon).
#[test]
fn states_stay_between_their_potentials() {
    for dt in [1e-3, 1.0, 1e3] {
        let p = Ltc { initial_state: true, dt, ..Ltc::new(3, 20, half(4, 6)) };
        let mut inputs = init::sample(&p, Pass::Forward, 6).unwrap();
        inputs.get_mut("x").unwrap().data.iter_mut().for_each(|x| *x *= 1e3);
        let states = reference::forward::<f64>(&p, &inputs).unwrap().get("out").unwrap().data.clone();
        let get = |name: &str| &inputs.get(name).unwrap().data;
        let c = &p.connectivity;
        for j in 0..p.hidden {
            for b in 0..p.batch {
                let mut ends = vec![0.0, get("h0")[b * p.hidden + j], get("vleak")[j]];
                for (s, erev) in [(&c.recurrent, get("erev")), (&c.sensory, get("sensory_erev"))] {
                    let onto = s.target_offsets[j] as usize..s.target_offsets[j + 1] as usize;
                    ends.extend(s.source_of[onto].iter().map(|&i| erev[i as usize * p.hidden + j]));
                }
                let low = ends.iter().copied().fold(f64::INFINITY, f64::min) - 1e-12;
                let high = ends.iter().copied().fold(f64::NEG_INFINITY, f64::max) + 1e-12;
                for t in 0..p.steps {
                    let v = states[(b * p.steps + t) * p.hidden + j];
                    assert!((low..=high).contains(&v), "dt {dt}: state {v} is not in [{low}, {high}]");
                }
            }
        }
    }
}

/// Steps `from..to` of the tensors that have a time axis.
fn slice(p: &Ltc, inputs: &Tensors, from: usize, to: usize) -> (Ltc, Tensors) {
    let part = Ltc { steps: to - from, ..p.clone() };
    let mut inputs = inputs.clone();
    for (name, width) in [("x", p.inputs), ("elapsed", 1), ("grad_out", p.outputs)] {
        let whole = inputs.get(name).unwrap().clone();
        let rows = whole.data.chunks(p.steps * width).flat_map(|row| row[from * width..to * width].to_vec());
        let mut shape = whole.shape.to_vec();
        shape[1] = to - from;
        inputs.insert(name, Values::new(shape.as_slice(), rows.collect()).unwrap());
    }
    (part, inputs)
}

#[test]
fn split_anywhere_is_the_whole() {
    split(false);
    split(true);
}

fn split(mixed_memory: bool) {
    let p = Ltc {
        mixed_memory,
        steps: 5,
        initial_state: true,
        elapsed: true,
        layer_norm: true,
        output_mapping: Mapping::Affine,
        outputs: 3,
        ..Ltc::new(2, 5, half(4, 5))
    };
    let inputs = init::sample(&p, Pass::Backward, 8).unwrap();
    let whole = reference::forward::<f64>(&p, &inputs).unwrap();
    let whole_gradients = reference::backward::<f64>(&p, &inputs).unwrap();
    for at in 0..=p.steps {
        let (first, mut first_inputs) = slice(&p, &inputs, 0, at);
        let (second, mut second_inputs) = slice(&p, &inputs, at, p.steps);
        let start = reference::forward::<f64>(&first, &first_inputs).unwrap();
        second_inputs.insert("h0", start.get("final_state").unwrap().clone());
        if mixed_memory {
            second_inputs.insert("c0", start.get("final_cell").unwrap().clone());
        }
        let end = reference::forward::<f64>(&second, &second_inputs).unwrap();
        assert_eq!(end.get("final_state").unwrap(), whole.get("final_state").unwrap(), "split at {at}");
        let row = |t: &Tensors, b: usize, steps: usize| {
            t.get("out").unwrap().data[b * steps * p.outputs..][..steps * p.outputs].to_vec()
        };
        for b in 0..p.batch {
            let joined = [row(&start, b, at), row(&end, b, p.steps - at)].concat();
            assert_eq!(joined, row(&whole, b, p.steps), "split at {at}");
        }
        let late = reference::backward::<f64>(&second, &second_inputs).unwrap();
        first_inputs.insert("grad_final_state", late.get("grad_h0").unwrap().clone());
        if mixed_memory {
            first_inputs.insert("grad_final_cell", late.get("grad_c0").unwrap().clone());
        }
        let early = reference::backward::<f64>(&first, &first_inputs).unwrap();
        assert_eq!(early.get("grad_h0").unwrap(), whole_gradients.get("grad_h0").unwrap(), "split at {at}");
        for name in trainable(&p).into_iter().filter(|n| !["x", "h0", "c0", "elapsed"].contains(&n.as_str())) {
            let name = format!("grad_{name}");
            let [early, late, whole] = [&early, &late, &whole_gradients].map(|t| &t.get(&name).unwrap().data);
            let sum: Vec<f64> = early.iter().zip(late).map(|(a, b)| a + b).collect();
            let error = relative(&sum, whole);
            assert!(error < 1e-13, "split at {at}: {name} is off by {error:e}");
        }
    }
}

#[test]
fn what_is_known_of_samples_adds_up() {
    for (case, p) in problems().into_iter().filter(|(_, p)| p.batch > 0) {
        let p = Ltc { per_sample: PerSample::Squares, ..p };
        let inputs = init::sample(&p, Pass::Backward, 5).unwrap();
        let law = reference::backward::<f64>(&p, &inputs).unwrap();
        let one = Ltc { batch: 1, ..p.clone() };
        let first = reference::backward::<f64>(&one, &init::sample(&one, Pass::Backward, 5).unwrap()).unwrap();
        for name in trainable(&Ltc { per_sample: PerSample::No, ..p.clone() }) {
            let Some(squares) = law.find(&format!("squares_{name}")) else {
                assert!(["x", "h0", "c0", "elapsed"].contains(&name.as_str()), "{case}: {name}");
                continue;
            };
            let moments = law.get(&format!("moments_{name}")).unwrap();
            let [by_sample, by_element] = [squares, moments].map(|v| v.data.iter().sum::<f64>());
            assert_eq!(squares.data.len(), p.batch);
            assert!(
                (by_sample - by_element).abs() <= 1e-12 * by_element,
                "{case}: {name}: {by_sample} and {by_element}"
            );
            // One sample is its batch.
            let grad = first.get(&format!("grad_{name}")).unwrap().data.iter().map(|g| g * g);
            assert_eq!(grad.collect::<Vec<_>>(), first.get(&format!("moments_{name}")).unwrap().data, "{case}: {name}");
        }
    }
}

#[test]
fn masked_synapses_have_no_part() {
    let p = Ltc { initial_state: true, ..Ltc::new(2, 3, half(4, 5)) };
    let mut inputs = init::sample(&p, Pass::Backward, 9).unwrap();
    let law = reference::backward::<f64>(&p, &inputs).unwrap();
    let out = reference::forward::<f64>(&p, &inputs).unwrap();
    let c = p.connectivity.clone();
    let mut masked = 0;
    for (side, s) in [("", &c.recurrent), ("sensory_", &c.sensory)] {
        let mut exists = vec![false; s.sources() * s.targets()];
        for j in 0..s.targets() {
            for k in s.target_offsets[j]..s.target_offsets[j + 1] {
                exists[s.source_of[k as usize] as usize * s.targets() + j] = true;
            }
        }
        for at in (0..exists.len()).filter(|&at| !exists[at]) {
            masked += 1;
            for name in ["w", "mu", "sigma", "erev"] {
                assert_eq!(law.get(&format!("grad_{side}{name}")).unwrap().data[at].to_bits(), 0);
                inputs.get_mut(&format!("{side}{name}")).unwrap().data[at] = f64::NAN;
            }
        }
    }
    assert!(masked > 10, "the wiring masks {masked} synapses");
    assert_eq!(reference::backward::<f64>(&p, &inputs).unwrap(), law);
    assert_eq!(reference::forward::<f64>(&p, &inputs).unwrap(), out);
}

#[test]
fn unfolds_are_steps_and_elapsed_times_are_dt() {
    let p = Ltc { initial_state: true, unfolds: 6, dt: 0.3, ..Ltc::new(2, 1, half(3, 4)) };
    let inputs = init::sample(&p, Pass::Forward, 10).unwrap();
    let once = reference::forward::<f64>(&p, &inputs).unwrap();
    // Six steps of one unfold with the same input.
    let six = Ltc { steps: 6, unfolds: 1, dt: 0.05, ..p.clone() };
    let mut repeated = inputs.clone();
    let x = inputs.get("x").unwrap().data.chunks(3).flat_map(|row| row.repeat(6)).collect();
    repeated.insert("x", Values::new([2, 6, 3], x).unwrap());
    let by_steps = reference::forward::<f64>(&six, &repeated).unwrap();
    let last = |t: &Tensors| t.get("final_state").unwrap().data.clone();
    let error = relative(&last(&by_steps), &last(&once));
    assert!(error < 1e-14, "{error:e}");
    // The same time for every step, given as a tensor.
    let timed = Ltc { elapsed: true, ..p.clone() };
    let mut with_times = inputs.clone();
    with_times.insert("elapsed", Values::new([2, 1], vec![0.3; 2]).unwrap());
    assert_eq!(reference::forward::<f64>(&timed, &with_times).unwrap(), once);
    // Parameters that have been through softplus already, used as they are.
    let identity = Ltc { constraint: Constraint::Identity, ..p };
    let mut positive = inputs;
    for name in ["w", "sensory_w", "gleak", "cm"] {
        positive.get_mut(name).unwrap().data.iter_mut().for_each(|x| *x = Real::softplus(*x));
    }
    assert_eq!(reference::forward::<f64>(&identity, &positive).unwrap(), once);
}

#[test]
fn saturated_gates_stay_finite() {
    let p = Ltc { initial_state: true, ..Ltc::new(2, 3, half(4, 5)) };
    let mut inputs = init::sample(&p, Pass::Backward, 13).unwrap();
    for name in ["sigma", "sensory_sigma", "x"] {
        inputs.get_mut(name).unwrap().data.iter_mut().for_each(|s| *s *= 1e4);
    }
    for passes in [reference::forward::<f64>(&p, &inputs), reference::backward::<f64>(&p, &inputs)] {
        assert!(passes.unwrap().iter().all(|(_, v)| v.data.iter().all(|x| x.is_finite())));
    }
    let f32_too = reference::backward::<f32>(&p, &inputs).unwrap();
    assert!(f32_too.iter().all(|(_, v)| v.data.iter().all(|x| x.is_finite())));
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let p = Ltc::new(2, 3, half(4, 5));
    let mut inputs = init::sample(&p, Pass::Backward, 1).unwrap();
    inputs.insert("w", Values::zeros([4, 5]));
    let e = reference::forward::<f64>(&p, &inputs).unwrap_err().to_string();
    assert_eq!(e, "ltc: w.shape = (4, 5) does not match [H, H] = (5, 5)");
    let without = init::sample(&p, Pass::Forward, 1).unwrap();
    let e = reference::backward::<f64>(&p, &without).unwrap_err().to_string();
    assert!(e.starts_with("ltc: no tensor `grad_out` among x, w, mu"), "{e}");
    let forward_only = Ltc { backward: false, ..p };
    let e = reference::backward::<f64>(&forward_only, &without).unwrap_err().to_string();
    assert!(e.contains("without the backward pass"), "{e}");
}

#[test]
fn only_what_is_wanted_is_returned() {
    let mut p = Ltc { initial_state: true, elapsed: true, outputs: 2, ..Ltc::new(2, 3, half(4, 5)) };
    p.wants = super::spec::Wants { x: false, h0: true, elapsed: false, parameters: false };
    let inputs = init::sample(&p, Pass::Backward, 1).unwrap();
    let names = |t: &Tensors| t.iter().map(|(n, _)| n.to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&reference::backward::<f64>(&p, &inputs).unwrap()), ["grad_h0"]);
    let out = reference::forward::<f64>(&p, &inputs).unwrap();
    assert_eq!(names(&out), ["out", "final_state", "states"]);
    let (states, last) = (out.get("states").unwrap(), out.get("final_state").unwrap());
    assert_eq!(states.data[2 * 5..3 * 5], last.data[..5]);
}

/// ncps 1.0.1's `LTCCell` in float64 with PyTorch 2.11.0: outputs, and gradients by autograd, as norm and weighted sum.
///
/// Elapsed times were given as (B, 1), the shape with which its batched arithmetic is right.
#[test]
fn the_law_is_that_of_ncps() {
    let wiring = super::wirings::Rule::auto_ncp(9, 3).build(2).unwrap();
    let p = Ltc {
        outputs: wiring.output_dim,
        unfolds: 5,
        elapsed: true,
        initial_state: true,
        output_mapping: Mapping::Affine,
        ..Ltc::new(3, 4, Arc::new(wiring.connectivity().unwrap()))
    }
    .build()
    .unwrap();
    // Ranges in the order of their salts.
    let ranges = [
        ("x", -2.0, 2.0),
        ("h0", -1.0, 1.0),
        ("elapsed", 0.05, 1.5),
        ("w", -1.0, 1.0),
        ("mu", -0.5, 1.0),
        ("sigma", -2.0, 6.0),
        ("erev", -1.5, 1.5),
        ("sensory_w", -1.0, 1.0),
        ("sensory_mu", -0.5, 1.0),
        ("sensory_sigma", -2.0, 6.0),
        ("sensory_erev", -1.5, 1.5),
        ("gleak", -1.0, 1.0),
        ("vleak", -1.0, 1.0),
        ("cm", -1.0, 1.0),
        ("input_w", 0.5, 1.5),
        ("input_b", -1.0, 1.0),
        ("output_w", 0.5, 1.5),
        ("output_b", -1.0, 1.0),
        ("grad_out", -1.0, 1.0),
        ("grad_final_state", -1.0, 1.0),
    ];
    let mut inputs = init::sample(&p, Pass::Backward, 1).unwrap();
    for (salt, (name, low, high)) in ranges.into_iter().enumerate() {
        for (k, x) in inputs.get_mut(name).unwrap().data.iter_mut().enumerate() {
            *x = low + (high - low) * (((17 * k * k + 29 * k + salt + 1) % 101) as f64 / 101.0);
        }
    }
    let expected: [(&str, f64, f64); 20] = [
        ("out", 3.452324492733063, -5.614454361528811),
        ("final_state", 2.267444568007334, 0.07634907591530082),
        ("grad_x", 0.13758722003334656, 0.07555319190546173),
        ("grad_h0", 0.7632235592532548, -0.4607390819557612),
        ("grad_elapsed", 0.6427471015244868, 0.02948373701731913),
        ("grad_gleak", 0.38024831946684345, 0.11579545011698694),
        ("grad_vleak", 2.7548485818883353, 2.99294737653433),
        ("grad_cm", 0.14836639509277524, 0.05353253950979056),
        ("grad_sigma", 0.11786154872833778, -0.00032633671448551805),
        ("grad_mu", 0.6289564039197713, -0.23832577707024757),
        ("grad_w", 0.5201181326220463, 0.16098212632520328),
        ("grad_erev", 0.9505804311964577, 0.5532019461804853),
        ("grad_sensory_sigma", 0.035100904724271347, 0.00855834545990195),
        ("grad_sensory_mu", 0.15191590713246977, -0.11096526023990598),
        ("grad_sensory_w", 0.06573882730214001, 0.028604058174980015),
        ("grad_sensory_erev", 0.135670618178127, 0.09174369690866827),
        ("grad_input_w", 0.08573144968658435, 0.04965675400551707),
        ("grad_input_b", 0.15604462604760258, 0.12046758419532583),
        ("grad_output_w", 0.5739542868555148, -0.0880185592085193),
        ("grad_output_b", 1.9496656023996213, 1.3843384338433844),
    ];
    let (forward, backward) =
        (reference::forward::<f64>(&p, &inputs).unwrap(), reference::backward::<f64>(&p, &inputs).unwrap());
    assert_eq!(backward.iter().count(), 18);
    for (name, size, weighted) in expected {
        let got = &forward.find(name).or(backward.find(name)).unwrap().data;
        let weight = |k: usize| ((5 * k + 3) % 11) as f64 / 11.0;
        let sum: f64 = got.iter().enumerate().map(|(k, g)| g * weight(k)).sum();
        assert!((norm(got) - size).abs() < 1e-13 * size, "{name}: norm {} and not {size}", norm(got));
        assert!((sum - weighted).abs() < 1e-12 * size, "{name}: weighted sum {sum} and not {weighted}");
    }
}

/// The f32 error of a group of results, worst over cases.
fn noise(cases: &[Ltc], group: impl Fn(&str) -> bool) -> f64 {
    let mut worst: f64 = 0.0;
    for p in cases {
        // Values as training starts with, and the wider ones of samples.
        let wide = init::sample(p, Pass::Backward, 21).unwrap();
        let mut rng = crate::rng::Rng::new(3, 0);
        let c = &p.connectivity;
        let [recurrent, sensory] = [&c.recurrent, &c.sensory].map(|s| init::random_polarity(s, &mut rng));
        let mut initial = wide.clone();
        for (name, values) in init::initial_parameters(p, &recurrent, &sensory, 3).unwrap().iter() {
            initial.insert(name, values.clone());
        }
        for inputs in [wide, initial] {
            for (f32s, law) in [
                (reference::forward::<f32>(p, &inputs), reference::forward::<f64>(p, &inputs)),
                (reference::backward::<f32>(p, &inputs), reference::backward::<f64>(p, &inputs)),
            ] {
                let law = law.unwrap();
                for (name, values) in f32s.unwrap().iter().filter(|(name, _)| group(name)) {
                    worst = worst.max(relative(&values.data, &law.get(name).unwrap().data));
                }
            }
        }
    }
    worst
}

/// Declared tolerances lie above the noise of f32 and at most 8 times above it.
#[test]
fn tolerances_follow_from_the_noise_of_f32() {
    let plain = Ltc::new(24, 8, half(128, 64));
    let mut cases = vec![Ltc { dt: 0.3, ..plain.clone() }, Ltc::new(2, 256, half(64, 64)), plain];
    cases.extend(problems().into_iter().take(6).map(|(_, p)| p));
    let p = &cases[0];
    let cancels = |name: &str| matches!(name, "grad_cm" | "grad_elapsed");
    let gradient = |name: &str| name.starts_with("grad_");
    for (one, measured) in [
        ("out", noise(&cases, |n| !gradient(n))),
        ("grad_w", noise(&cases, |n| gradient(n) && !cancels(n))),
        ("grad_cm", noise(&cases, cancels)),
    ] {
        let declared = p.tolerance_of(one).unwrap();
        assert_eq!(declared.metric, Metric::Relative);
        let factor = declared.value / measured;
        assert!((1.0..=8.0).contains(&factor), "{one}: {:e} is {factor:.2} x the noise {measured:e}", declared.value);
    }
}
