//! The CPU's results against the law, and what must not change them.

use crate::call::Session;
use crate::layers::cfc::entry::CfcEntry;
use crate::layers::cfc::spec::{Activation, Cfc, Mode, Wants};
use crate::layers::cfc::tests::problems;
use crate::op::{Case, CaseSet, Metric, Op, Pass, PlanOptions, Problem, Tensors, Values};
use crate::{Device, pool};
use std::sync::Arc;

/// The forward and the backward pass of `p` from one sample, together.
fn both(p: &Cfc, inputs: &Tensors) -> Tensors {
    run(Arc::new(p.clone()), inputs)
}

fn run(problem: Arc<dyn Problem>, inputs: &Tensors) -> Tensors {
    let mut session = Session::new(problem, &Device::Cpu).unwrap();
    let gradient = |name: &str| name.starts_with("grad_");
    let copied = |want: bool| -> Tensors {
        inputs.iter().filter(|(n, _)| gradient(n) == want).map(|(n, v)| (n.to_owned(), v.clone())).collect()
    };
    let mut all = session.forward(&copied(false)).unwrap();
    for (name, values) in session.backward(&copied(true)).unwrap().iter() {
        all.insert(name, values.clone());
    }
    all
}

fn error(metric: Metric, got: &Values, law: &Values) -> f64 {
    assert_eq!((metric, &got.shape), (Metric::Relative, &law.shape));
    let pairs = || got.data.iter().zip(&law.data);
    // A NaN must not hide behind a norm.
    assert!(pairs().all(|(g, l)| g.is_finite() == l.is_finite()), "a result is not finite");
    let scale = law.data.iter().map(|l| l * l).sum::<f64>().sqrt();
    pairs().map(|(g, l)| (g - l) * (g - l)).sum::<f64>().sqrt() / if scale == 0.0 { 1.0 } else { scale }
}

fn against_the_law(name: &str, p: &Cfc) {
    let inputs = p.sample(Pass::Backward, 7).unwrap();
    let got = both(p, &inputs);
    for pass in [Pass::Forward, Pass::Backward] {
        let law = p.reference(pass, &inputs, false).unwrap();
        for spec in p.signature_of(pass).unwrap().outputs {
            let Some(bound) = p.tolerance_of(&spec.name) else { continue };
            let e = error(bound.metric, got.get(&spec.name).unwrap(), law.get(&spec.name).unwrap());
            assert!(e <= bound.value, "{name}: {} is off by {e:e}, {:e} is allowed", spec.name, bound.value);
        }
    }
}

#[test]
fn both_passes_agree_with_the_law() {
    for (name, p) in problems() {
        against_the_law(&name, &p);
    }
    for batch in [4, 6, 7, 8, 9, 12, 13, 16, 21, 65] {
        for mode in [Mode::Default, Mode::Pure] {
            let p = Cfc { initial_state: true, mixed_memory: true, mode, ..Cfc::wired(batch, 3, 6, &[5, 4]) };
            against_the_law(&format!("{batch} rows"), &p);
        }
    }
    for units in [3, 31, 32, 33, 64, 70] {
        let p =
            Cfc { backbone_units: units, backbone_layers: 2, activation: Activation::Gelu, ..Cfc::new(5, 3, 6, units) };
        against_the_law(&format!("{units} units"), &p);
    }
}

#[test]
fn cases_of_the_entry_are_planned() {
    for case in CfcEntry.cases(CaseSet::Check) {
        let plan = CfcEntry.problem(&case).unwrap().plan(&Device::Cpu, &PlanOptions::default()).unwrap();
        assert!(plan.config().starts_with("simd = "), "{}", plan.config());
    }
    let options = PlanOptions { variant: Some("wide".into()), ..PlanOptions::default() };
    let case: Case = "B1_T1_D1_H1".parse().unwrap();
    let e = CfcEntry.problem(&case).unwrap().plan(&Device::Cpu, &options).err().unwrap().to_string();
    assert_eq!(e, "cfc: variant `wide` is not one of the CPU's: simd, or t and steps of a chunk");
}

/// More steps than a chunk holds: gradients are added up, and masks come last.
#[test]
fn chunks_of_steps_are_the_whole() {
    let p = Cfc { initial_state: true, mixed_memory: true, mode: Mode::Pure, ..Cfc::wired(5, 7, 6, &[5, 4]) };
    let inputs = p.sample(Pass::Backward, 7).unwrap();
    let whole = both(&p, &inputs);
    let case = "B5_T7_D6_H9,cells=5+4,masked=true,layers=0,mode=pure,mixed=true,h0=true";
    for steps in [1, 2, 3, 7, 9] {
        let case: Case = format!("{case},variant=t{steps}").parse().unwrap();
        let problem = crate::op::problem(&CfcEntry, &case).unwrap();
        let plan = problem.plan(&Device::Cpu, &PlanOptions::default()).unwrap();
        assert!(plan.config().contains(&format!("chunks of {} steps", steps.min(7))), "{}", plan.config());
        for (name, got) in run(problem, &inputs).iter() {
            let law = whole.get(name).unwrap();
            assert!(error(Metric::Relative, got, law) < 1e-6, "{name} in chunks of {steps}");
        }
    }
}

#[test]
fn groups_and_threads_change_no_bits() {
    let p = Cfc { initial_state: true, elapsed: true, mixed_memory: true, ..Cfc::new(21, 5, 7, 19) };
    let inputs = p.sample(Pass::Backward, 3).unwrap();
    let want = both(&p, &inputs);
    let before = pool::num_threads();
    for threads in 1..=4 {
        pool::set_num_threads(threads);
        let got = both(&p, &inputs);
        pool::set_num_threads(before);
        assert!(got == want, "{threads} threads");
    }
    // A row's results do not depend on the rows beside it.
    let alone = Cfc { batch: 1, ..p.clone() };
    for b in [0, 9, 20] {
        let mut own = Tensors::new();
        for (name, v) in inputs.iter() {
            let batched = p.signature_of(Pass::Backward).unwrap();
            let per_row = batched.inputs.iter().any(|s| s.name == name && s.axes.starts_with("[B"));
            let mut shape = v.shape.to_vec();
            let values = if per_row {
                shape[0] = 1;
                let each = v.data.len() / 21;
                Values::new(shape.as_slice(), v.data[b * each..(b + 1) * each].to_vec()).unwrap()
            } else {
                v.clone()
            };
            own.insert(name, values);
        }
        let got = both(&alone, &own);
        for name in ["out", "final_state", "final_cell", "grad_x", "grad_h0", "grad_c0", "grad_elapsed"] {
            let (whole, row) = (&want.get(name).unwrap().data, &got.get(name).unwrap().data);
            assert_eq!(row[..], whole[b * row.len()..(b + 1) * row.len()], "{name} of row {b}");
        }
    }
}

#[test]
fn only_what_is_wanted_is_made() {
    let p = Cfc { initial_state: true, elapsed: true, mixed_memory: true, ..Cfc::new(3, 4, 5, 6) };
    let inputs = p.sample(Pass::Backward, 5).unwrap();
    let all = both(&p, &inputs);
    for wants in ["none", "x", "h0", "elapsed", "parameters", "x+parameters"] {
        let some = Cfc { wants: wants.parse::<Wants>().unwrap(), ..p.clone() };
        let got = both(&some, &inputs);
        let count = got.iter().filter(|(n, _)| n.starts_with("grad_")).count();
        assert_eq!(count, some.signature_of(Pass::Backward).unwrap().outputs.len(), "{wants}");
        assert!(got.iter().all(|(name, v)| all.get(name).unwrap() == v), "{wants}");
    }
}

/// NaN in one row stays in that row and in the sums over rows.
#[test]
fn not_a_number_stays_in_its_row() {
    for activation in Activation::ALL {
        let p = Cfc { activation, ..Cfc::new(3, 2, 4, 5) };
        let mut inputs = p.sample(Pass::Forward, 5).unwrap();
        inputs.get_mut("x").unwrap().data[2 * 4] = f64::NAN;
        let mut session = Session::new(Arc::new(Cfc { backward: false, ..p }), &Device::Cpu).unwrap();
        let out = session.forward(&inputs).unwrap().get("out").unwrap().data.clone();
        let nan = |b: usize| out[b * 10..(b + 1) * 10].iter().all(|x| x.is_nan());
        let finite = |b: usize| out[b * 10..(b + 1) * 10].iter().all(|x| x.is_finite());
        assert!(finite(0) && nan(1) && finite(2), "{}: {out:?}", activation.name());
    }
}
