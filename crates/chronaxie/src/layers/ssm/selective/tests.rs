//! What is special to selective scans.

use super::super::complex::Complex;
use super::super::packing::{Marks, Packing};
use super::super::testing::{
    cut, finite_differences, keeps_to_the_law, relative, run, sample_and_run, tolerances_are_near_the_noise,
};
use super::reference::{self, Inputs};
use super::{Discretisation, SelectiveScan, SelectiveScanOp, SelectiveStateUpdate, SelectiveStateUpdateOp, Weights};
use crate::Dtype;
use crate::op::{CaseSet, Op, Pass, Problem, Tensors, Values};
use crate::real::Dual;
use crate::rng::Rng;

#[test]
fn every_case_keeps_to_the_law() {
    for op in [&SelectiveScanOp as &dyn Op, &SelectiveStateUpdateOp] {
        for case in op.cases(CaseSet::Check) {
            keeps_to_the_law(op, &case.to_string(), 1);
        }
    }
}

#[test]
fn lengths_of_every_kind_keep_to_the_law() {
    for t in [0, 1, 14, 2047, 2048, 2049, 5000] {
        keeps_to_the_law(&SelectiveScanOp, &format!("B1_D3_T{t}_N2,mamba=true,h0=true"), 2);
        keeps_to_the_law(&SelectiveScanOp, &format!("B1_D2_T{t}_N2,complex=true,rule=zoh,packing=3,h0=true"), 3);
    }
}

impl Inputs<f64> {
    fn lists(&self) -> Vec<Vec<f64>> {
        let complex = |v: &Vec<Complex<f64>>| v.iter().flat_map(|x| [x.re, x.im]).collect::<Vec<f64>>();
        let given = |v: &Option<Vec<f64>>| v.clone().unwrap_or_default();
        vec![
            self.u.clone(),
            self.delta.clone(),
            complex(&self.a),
            complex(&self.b),
            complex(&self.c),
            given(&self.d),
            given(&self.z),
            given(&self.delta_bias),
            self.h0.as_ref().map(complex).unwrap_or_default(),
        ]
    }
    /// The same numbers moving at `rates`.
    fn moving(&self, rates: &[Vec<f64>]) -> Inputs<Dual> {
        let dual = |v: &[f64], r: &[f64]| v.iter().zip(r).map(|(&v, &r)| Dual::new(v, r)).collect::<Vec<_>>();
        let complex = |v: &[Complex<f64>], r: &[f64]| -> Vec<Complex<Dual>> {
            v.iter().zip(r.chunks(2)).map(|(v, r)| Complex::new(Dual::new(v.re, r[0]), Dual::new(v.im, r[1]))).collect()
        };
        Inputs {
            u: dual(&self.u, &rates[0]),
            delta: dual(&self.delta, &rates[1]),
            a: complex(&self.a, &rates[2]),
            b: complex(&self.b, &rates[3]),
            c: complex(&self.c, &rates[4]),
            d: self.d.as_ref().map(|v| dual(v, &rates[5])),
            z: self.z.as_ref().map(|v| dual(v, &rates[6])),
            delta_bias: self.delta_bias.as_ref().map(|v| dual(v, &rates[7])),
            h0: self.h0.as_ref().map(|v| complex(v, &rates[8])),
        }
    }
}

/// Along random directions of every input at once and of each alone; real scans move in their real parts.
#[test]
fn the_backward_pass_is_the_derivative() {
    let mut rng = Rng::new(5, 0);
    for complex in [false, true] {
        for rule in Discretisation::ALL {
            for (b, c, packing) in [
                (Weights::Varying(2), Weights::Varying(2), Packing::Whole),
                (Weights::Constant, Weights::Varying(4), Packing::Reset),
                (Weights::Varying(1), Weights::Constant, Packing::Sequences(3)),
            ] {
                let batch = if packing == Packing::Sequences(3) { 1 } else { 2 };
                let p = SelectiveScan::new(batch, 4, 9, 3).unwrap();
                let p = p.with_complex(complex).with_discretisation(rule).with_weights(b, c).unwrap();
                let p = p.with_skip(true).with_gate(true).with_delta_bias(true).with_softplus(true);
                let p = p.with_initial_state(true).with_packing(packing).unwrap();
                let reset: Vec<u8> = (0..batch * 9).map(|_| u8::from(rng.below(4) == 0)).collect();
                let marks = match packing {
                    Packing::Whole => Marks::whole(batch, 9),
                    Packing::Reset => Marks::reset(batch, 9, &reset),
                    _ => Marks::sequences("selective_scan", 9, &[0, 2, 2, 9]).unwrap(),
                };
                let i: Inputs<f64> = p.law_inputs(&p.sample(Pass::Forward, 3).unwrap()).unwrap();
                let rows = marks.units() * 4 * 3;
                let grad_out: Vec<f64> = (0..i.u.len()).map(|_| rng.normal()).collect();
                let part = |rng: &mut Rng| Complex::new(rng.normal(), if complex { rng.normal() } else { 0.0 });
                let grad_last: Vec<_> = (0..rows).map(|_| part(&mut rng)).collect();
                let g = reference::backward(&p, &marks, &i, &grad_out, &grad_last).lists();

                for only in (0..9).map(Some).chain([None]) {
                    let rates: Vec<Vec<f64>> = i
                        .lists()
                        .iter()
                        .enumerate()
                        .map(|(k, list)| {
                            let pairs = matches!(k, 2 | 3 | 4 | 8);
                            let moves = only.is_none_or(|only| only == k);
                            let rate = |at: usize, r: &mut Rng| {
                                let still = !moves || (pairs && !complex && at % 2 == 1);
                                if still { 0.0 } else { r.normal() }
                            };
                            (0..list.len()).map(|at| rate(at, &mut rng)).collect()
                        })
                        .collect();
                    let (out, last) = reference::forward(&p, &marks, &i.moving(&rates));
                    let want: f64 = out.iter().zip(&grad_out).map(|(o, g)| o.derivative * g).sum::<f64>()
                        + last
                            .iter()
                            .zip(&grad_last)
                            .map(|(h, g)| h.re.derivative * g.re + h.im.derivative * g.im)
                            .sum::<f64>();
                    let products = g.iter().flatten().zip(rates.iter().flatten()).map(|(g, r)| g * r);
                    let size: f64 = products.clone().map(f64::abs).sum();
                    let got: f64 = products.sum();
                    assert!((got - want).abs() <= 1e-12 * size, "{p:?} {only:?}: {got} against {want}");
                }
            }
        }
    }
}

#[test]
fn finite_differences_agree_too() {
    finite_differences(&SelectiveScanOp, "B1_D2_T6_N2,complex=true,rule=zoh,mamba=true,h0=true");
    finite_differences(&SelectiveScanOp, "B1_D2_T6_N2,rule=bilinear,mamba=true,h0=true,packing=reset");
}

fn part(p: &SelectiveScan, all: &Tensors, from: usize, to: usize, h0: &Values) -> (SelectiveScan, Tensors) {
    let short = SelectiveScan::new(p.batch(), p.channels(), to - from, p.states()).unwrap();
    let short = short.with_complex(p.is_complex()).with_discretisation(p.discretisation()).with_gate(true);
    let short = short.with_softplus(true).with_initial_state(true);
    let mut i = Tensors::new();
    for (name, axis) in [("u", 2), ("delta", 2), ("z", 2), ("B", 3), ("C", 3)] {
        i.insert(name, cut(all.get(name).unwrap(), axis, from, to));
    }
    i.insert("A", all.get("A").unwrap().clone());
    i.insert("h0", h0.clone());
    (short, i)
}

#[test]
fn a_split_anywhere_is_the_whole() {
    for complex in [false, true] {
        let whole = SelectiveScan::new(2, 3, 150, 2).unwrap().with_complex(complex).with_gate(true);
        let whole = whole.with_softplus(true).with_initial_state(true);
        let all = whole.sample(Pass::Forward, 6).unwrap();
        let want = run(&whole, Pass::Forward, &all).unwrap();
        for at in [0, 1, 14, 127, 128, 129, 149, 150] {
            let (p, i) = part(&whole, &all, 0, at, all.get("h0").unwrap());
            let first = run(&p, Pass::Forward, &i).unwrap();
            let (p, i) = part(&whole, &all, at, 150, first.get("last_state").unwrap());
            let second = run(&p, Pass::Forward, &i).unwrap();
            let tail = cut(want.get("out").unwrap(), 2, at, 150);
            assert!(relative(second.get("out").unwrap(), &tail) < 1e-6, "split at {at}");
            let last = want.get("last_state").unwrap();
            assert!(relative(second.get("last_state").unwrap(), last) < 1e-6, "last state, split at {at}");
        }
    }
}

#[test]
fn steps_one_by_one_are_the_scan() {
    for complex in [false, true] {
        for rule in Discretisation::ALL {
            let scan = |steps| {
                let p = SelectiveScan::new(2, 5, steps, 3).unwrap().with_complex(complex).with_discretisation(rule);
                p.with_gate(true).with_softplus(true)
            };
            let whole = scan(12).with_initial_state(true);
            let all = whole.sample(Pass::Forward, 2).unwrap();
            let want = run(&whole, Pass::Forward, &all).unwrap();
            let step = SelectiveStateUpdate::new(scan(1), None).unwrap();
            let mut state = all.get("h0").unwrap().clone();
            for t in 0..12 {
                let mut i = Tensors::new();
                for (name, axis) in [("u", 2), ("delta", 2), ("z", 2), ("B", 3), ("C", 3)] {
                    let now = cut(all.get(name).unwrap(), axis, t, t + 1);
                    let shape: Vec<usize> =
                        now.shape.iter().enumerate().filter(|(k, _)| *k != axis).map(|(_, &n)| n).collect();
                    i.insert(name, Values::new(&shape[..], now.data).unwrap());
                }
                i.insert("A", all.get("A").unwrap().clone());
                i.insert("state", state);
                let out = run(&step, Pass::Step, &i).unwrap();
                state = out.get("state").unwrap().clone();
                let now = cut(want.get("out").unwrap(), 2, t, t + 1);
                assert_eq!(out.get("out").unwrap().data, now.data, "step {t} has the bits of the scan");
            }
            assert_eq!(&state.data, &want.get("last_state").unwrap().data);
        }
    }
}

#[test]
fn sequences_end_to_end_are_each_their_own_scan() {
    let whole = SelectiveScan::new(1, 3, 300, 2).unwrap().with_gate(true).with_softplus(true).with_initial_state(true);
    let packed = whole.with_packing(Packing::Sequences(4)).unwrap();
    let mut all = sample_and_run(&packed, 5);
    let offsets = [0, 128, 128, 200, 300];
    all.insert("cu_seqlens", Values::new([5], offsets.map(|x| x as f64).to_vec()).unwrap());
    let out = run(&packed, Pass::Forward, &all).unwrap();
    all.insert("chunk_states", out.get("chunk_states").unwrap().clone());
    let back = run(&packed, Pass::Backward, &all).unwrap();
    for (s, w) in offsets.windows(2).enumerate() {
        let state = |v: &Values| Values::new([1, 3, 2], v.data[s * 6..(s + 1) * 6].to_vec()).unwrap();
        let (p, mut i) = part(&whole, &all, w[0], w[1], &state(all.get("h0").unwrap()));
        let want = run(&p, Pass::Forward, &i).unwrap();
        assert_eq!(cut(out.get("out").unwrap(), 2, w[0], w[1]).data, want.get("out").unwrap().data, "sequence {s}");
        assert_eq!(state(out.get("last_state").unwrap()).data, want.get("last_state").unwrap().data);
        i.insert("grad_out", cut(all.get("grad_out").unwrap(), 2, w[0], w[1]));
        i.insert("grad_last_state", state(all.get("grad_last_state").unwrap()));
        let law = p.reference(Pass::Backward, &i, false).unwrap();
        for name in ["grad_u", "grad_delta", "grad_z"] {
            let got = cut(back.get(name).unwrap(), 2, w[0], w[1]);
            assert!(relative(&got, law.get(name).unwrap()) < 2e-6, "{name} of sequence {s}");
        }
        let got = state(back.get("grad_h0").unwrap());
        assert!(relative(&got, law.get("grad_h0").unwrap()) < 2e-6, "grad_h0 of sequence {s}");
    }
}

/// Ten thousand nats of decay in one step and over many: zeros, no NaN; and steps without time or rate.
#[test]
fn extreme_decays_stay_finite() {
    for complex in [false, true] {
        for rule in Discretisation::ALL {
            let p = SelectiveScan::new(1, 2, 300, 2).unwrap().with_complex(complex).with_discretisation(rule);
            let p = p.with_initial_state(true);
            for (rate, delta) in [(-1e4, 1.0), (-33.0, 1.0), (-1e-20, 1.0), (0.0, 0.5), (-1.0, 0.0), (-1e6, 1e-6)] {
                let mut all = p.sample(Pass::Forward, 1).unwrap();
                p.sample(Pass::Backward, 1).unwrap().iter().for_each(|(n, v)| all.insert(n, v.clone()));
                let width = if complex { 2 } else { 1 };
                let a = &mut all.get_mut("A").unwrap().data;
                a.iter_mut().step_by(width).for_each(|x| *x = rate);
                all.get_mut("delta").unwrap().data.fill(delta);
                let inputs = crate::op::Tensors::from_iter(
                    all.iter().map(|(n, v)| (n.to_owned(), v.clone().rounded(Dtype::F32))),
                );
                let out = run(&p, Pass::Forward, &inputs).unwrap();
                let mut all = inputs.clone();
                all.insert("chunk_states", out.get("chunk_states").unwrap().clone());
                for (pass, got) in [(Pass::Forward, out), (Pass::Backward, run(&p, Pass::Backward, &all).unwrap())] {
                    for (name, law) in p.reference(pass, &inputs, false).unwrap().iter() {
                        let error = relative(got.get(name).unwrap(), law);
                        // Rates near 0 make running sums of 300 steps.
                        assert!(error < 2e-5, "{rule} rate {rate} delta {delta}: {name} is off by {error:e}");
                    }
                }
            }
        }
    }
}

/// Mamba's semantics, written anew over plain lists: `h = exp(delta A) h + delta B u`, `y = C h + D u`, times silu(z).
#[test]
fn the_real_scan_is_mambas() {
    let (batch, channels, steps, states, groups) = (2, 4, 11, 3, 2);
    let case = "B2_D4_T11_N3,G=2,mamba=true".parse().unwrap();
    let p = SelectiveScanOp.problem(&case).unwrap();
    let all = p.sample(Pass::Forward, 12).unwrap();
    let get = |n: &str| &all.get(n).unwrap().data;
    let out = p.reference(Pass::Forward, &all, false).unwrap();
    for b in 0..batch {
        for d in 0..channels {
            let mut h = vec![0.0; states];
            for t in 0..steps {
                let at = (b * channels + d) * steps + t;
                let delta = (get("delta")[at] + get("delta_bias")[d]).exp().ln_1p();
                let mut y = get("D")[d] * get("u")[at];
                for (n, h) in h.iter_mut().enumerate() {
                    let w = ((b * groups + d / (channels / groups)) * states + n) * steps + t;
                    *h = (delta * get("A")[d * states + n]).exp() * *h + delta * get("B")[w] * get("u")[at];
                    y += get("C")[w] * *h;
                }
                let z = get("z")[at];
                let want = y * z / (1.0 + (-z).exp());
                assert!((out.get("out").unwrap().data[at] - want).abs() < 1e-12 * want.abs().max(1.0));
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    let says = |e: crate::Error, want: &str| assert!(e.to_string().contains(want), "{e}");
    says(SelectiveScan::new(1, 1, 1, 0).unwrap_err(), "N = 0 is not within 1 to 256");
    says(SelectiveScan::new(1, 1, 1, 257).unwrap_err(), "N = 257 is not within 1 to 256");
    says(SelectiveScan::new(1, usize::MAX, 1, 1).unwrap_err(), "more bytes than can be addressed");
    let p = SelectiveScan::new(1, 6, 4, 2).unwrap();
    says(
        p.with_weights(Weights::Varying(4), Weights::Constant).unwrap_err(),
        "G = 4 groups, which do not divide D = 6",
    );
    says(p.with_weights(Weights::Varying(2), Weights::Varying(3)).unwrap_err(), "B has G = 2 groups and C has 3");
    says(p.with_dtype(Dtype::C64).unwrap_err(), "dtype c64 is not one of f32, bf16, f16");
    says(p.signature(Pass::Step).unwrap_err(), "selective_state_update has one");
    says(SelectiveStateUpdate::new(p, None).unwrap_err(), "T = 4");
    let problem = |case: &str| SelectiveScanOp.problem(&case.parse().unwrap()).unwrap_err();
    says(problem("B1_D1_T1_N1,rule=euler"), "discretisation `euler` is not one of exp, zoh, bilinear");
    says(problem("B1_D1_T1_N1,b=fixed"), "b=fixed is not one of varying, constant");
    let step = SelectiveStateUpdateOp.problem(&"B2_D1_N1,slots=3".parse().unwrap()).unwrap();
    let mut i = step.sample(Pass::Step, 1).unwrap();
    for (table, want) in [([0.0, 3.0], "state_indices[1] = 3 is not below S = 3"), ([2.0, 2.0], "another row's state")]
    {
        i.insert("state_indices", Values::new([2], table.to_vec()).unwrap());
        says(run(&*step, Pass::Step, &i).unwrap_err(), want);
        says(step.reference(Pass::Step, &i, false).unwrap_err(), want);
    }
}

#[test]
fn rows_without_a_state_leave_all_states_alone() {
    let step = SelectiveStateUpdateOp.problem(&"B2_D17_N2,slots=3".parse().unwrap()).unwrap();
    let mut i = step.sample(Pass::Step, 1).unwrap();
    i.insert("state_indices", Values::new([2], vec![-1.0, 2.0]).unwrap());
    let out = run(&*step, Pass::Step, &i).unwrap();
    let (before, after) = (&i.get("state").unwrap().data, &out.get("state").unwrap().data);
    assert_eq!(before[..2 * 34], after[..2 * 34]);
    assert_ne!(before[2 * 34..], after[2 * 34..]);
    assert_eq!(out.get("out").unwrap().data[..17], [0.0; 17]);
}

#[test]
fn tolerances_are_at_most_eight_times_the_noise() {
    tolerances_are_near_the_noise(
        &SelectiveScanOp,
        &["B2_D8_T600_N4,mamba=true,h0=true", "B1_D8_T600_N4,complex=true,rule=zoh,mamba=true,h0=true"],
    );
    tolerances_are_near_the_noise(
        &SelectiveStateUpdateOp,
        &["B4_D40_N16,mamba=true,slots=9", "B9_D40_N16,complex=true"],
    );
}
