//! The CPU's results against the law, and what must not change them.

use super::layout::groups;
use crate::call::Session;
use crate::layers::ltc::entry::LtcEntry;
use crate::layers::ltc::spec::{Constraint, Kept, Ltc, Mapping, Save, Wants};
use crate::layers::ltc::{Connectivity, Synapses};
use crate::op::{Args, Metric, Op, Pass, PlanOptions, Precision, Problem, Tensors, Values};
use crate::{Device, Dtype, Place, Shape, View, ViewMut, cuda::StreamRef, pool};
use std::sync::Arc;

/// The forward and the backward pass of `p` from one sample, together.
fn both(p: &Ltc, inputs: &Tensors) -> Tensors {
    let mut session = Session::new(Arc::new(p.clone()), &Device::Cpu).unwrap();
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
    assert_eq!(got.shape, law.shape);
    let pairs = || got.data.iter().zip(&law.data);
    // A NaN must not hide behind a maximum.
    assert!(pairs().all(|(g, l)| g.is_finite() == l.is_finite()), "a result is not finite");
    match metric {
        Metric::MaxAbsolute => pairs().map(|(g, l)| (g - l).abs()).fold(0.0, f64::max),
        Metric::Relative => {
            let norm = |x: f64| x.sqrt();
            let scale = norm(law.data.iter().map(|l| l * l).sum());
            norm(pairs().map(|(g, l)| (g - l) * (g - l)).sum()) / if scale == 0.0 { 1.0 } else { scale }
        }
    }
}

fn against_the_law(name: &str, p: &Ltc, inputs: &Tensors) {
    let got = both(p, inputs);
    for pass in [Pass::Forward, Pass::Backward] {
        let law = p.reference(pass, inputs, false).unwrap();
        for spec in p.signature_of(pass).unwrap().outputs {
            let Some(bound) = p.tolerance_of(&spec.name) else { continue };
            let e = error(bound.metric, got.get(&spec.name).unwrap(), law.get(&spec.name).unwrap());
            assert!(e <= bound.value, "{name}: {} is off by {e:e}, {:e} is allowed", spec.name, bound.value);
        }
    }
}

fn connectivity(inputs: usize, hidden: usize, every: usize) -> Arc<Connectivity> {
    let kept = |i: usize, j: usize| i == j || (i * 7 + j * 3 + i * j).is_multiple_of(every);
    let recurrent = Synapses::from_fn(hidden, hidden, kept).unwrap();
    Arc::new(Connectivity::new(recurrent, Synapses::from_fn(inputs, hidden, kept).unwrap()).unwrap())
}

fn problems() -> Vec<(String, Ltc)> {
    let spelled = [
        "B24_T8_D128_H64",
        "B3_T5_D7_H11,density=1,dt=1,unfolds=3,h0=true,elapsed=true,norm=true,output=affine,outputs=4",
        "B2_T4_D5_H17,density=0.3,input=linear,output=linear,store=true,h0=true",
        "B2_T4_D5_H33,density=0.2,input=none,identity=true,store=true,elapsed=true,norm=true",
        "B9_T3_D1_H65,density=0.1,unfolds=1,dt=1,outputs=1",
        // Of the gradient of x, LayerNorm leaves 1e-5 where D = 2.
        "B1_T1_D2_H2,density=1,norm=true",
        "B9_T3_D2_H5,density=1,norm=true",
        "B17_T33_D3_H40,density=0.5,h0=true,elapsed=true,precision=fast",
        "B1_T19_D2_H130,density=1",
        "B5_T1_D3_H1,density=1,h0=true",
        "B2_T3_D0_H5,density=1,h0=true,norm=true",
        "B2_T0_D3_H5,density=1,h0=true,elapsed=true",
        "B0_T3_D3_H5,density=1",
        "B2_T3_D2_H0,density=1",
        "B3_T5_D7_H11,density=1,mixed=true,dt=1,unfolds=3,h0=true,elapsed=true,norm=true,output=affine,outputs=4",
        "B17_T19_D3_H33,density=0.3,mixed=true,store=true",
        "B9_T9_D40_H20,mixed=true,h0=true",
        "B2_T3_D0_H5,density=1,mixed=true,h0=true",
        "B2_T0_D3_H5,density=1,mixed=true,h0=true",
        "B2_T3_D2_H0,density=1,mixed=true,h0=true",
        // Too many gates to keep: recurrent, sensory, and both of a stored pass.
        "B2_T2_D3_H40,density=1,unfolds=120",
        "B5_T9_D300_H64,density=1,unfolds=1,norm=true",
        "B2_T8_D300_H64,density=1,unfolds=40,store=true",
    ];
    let mut all: Vec<(String, Ltc)> = spelled
        .iter()
        .map(|s| {
            let case: crate::op::Case = s.parse().unwrap();
            let get = |o: &str| case.get(o, false).unwrap();
            let (d, h) = (case.size("D").unwrap(), case.size("H").unwrap());
            let every = (1.0 / case.get::<f64>("density", 0.5).unwrap()).round() as usize;
            let base = Ltc::new(case.size("B").unwrap(), case.size("T").unwrap(), connectivity(d, h, every));
            let p = Ltc {
                unfolds: case.get("unfolds", 6).unwrap(),
                dt: case.get("dt", 1.0 / 30.0).unwrap(),
                elapsed: get("elapsed"),
                initial_state: get("h0"),
                mixed_memory: get("mixed"),
                layer_norm: get("norm"),
                input_mapping: case.get("input", Mapping::Affine).unwrap(),
                output_mapping: case.get("output", Mapping::None).unwrap(),
                outputs: case.get("outputs", h).unwrap(),
                constraint: if get("identity") { Constraint::Identity } else { Constraint::Softplus },
                save: if get("store") { Save::Store } else { Save::Recompute },
                precision: case.get("precision", Precision::Exact).unwrap(),
                ..base
            };
            (s.to_string(), p.build().unwrap())
        })
        .collect();
    for batch in [4, 6, 7, 8, 12, 13, 16, 21] {
        let p = Ltc { initial_state: true, dt: 1.0, ..Ltc::new(batch, 3, connectivity(6, 9, 2)) };
        all.push((format!("{batch} rows"), p));
    }
    all
}

#[test]
fn both_passes_agree_with_the_law() {
    for (name, p) in problems() {
        against_the_law(&name, &p, &p.sample(Pass::Backward, 7).unwrap());
    }
}

#[test]
fn cases_of_the_entry_are_planned() {
    for case in LtcEntry.cases(crate::op::CaseSet::Check) {
        let plan = LtcEntry.problem(&case).unwrap().plan(&Device::Cpu, &PlanOptions::default()).unwrap();
        assert!(plan.config().contains("simd = "), "{}", plan.config());
        assert_eq!((plan.variant(), plan.place()), ("simd", Place::Cpu));
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for (name, p) in problems().into_iter().filter(|(_, p)| p.batch > 4) {
        let inputs = p.sample(Pass::Backward, 3).unwrap();
        let results: Vec<Tensors> = [1, 2, 3]
            .map(|threads| {
                pool::set_num_threads(threads);
                both(&p, &inputs)
            })
            .into();
        assert!(results[0] == results[1] && results[0] == results[2], "{name}");
    }
}

#[test]
fn words_give_the_gradients_of_fast_arithmetic() {
    // Rows of all groups, and of a group in part.
    let plain = Ltc { precision: Precision::Fast, save: Save::Words, ..Ltc::new(13, 11, connectivity(5, 13, 2)) };
    for p in [
        plain.clone(),
        Ltc { initial_state: true, output_mapping: Mapping::Affine, outputs: 7, ..plain.clone() },
        Ltc { dt: 0.125, unfolds: 7, layer_norm: true, ..plain.clone() },
    ] {
        assert_eq!(p.kept(), Kept::Words);
        let inputs = p.sample(Pass::Backward, 5).unwrap();
        against_the_law("words", &p, &inputs);
        // They are read, and none of what is rebuilt.
        let rebuilt = both(&Ltc { save: Save::Recompute, ..p.clone() }, &inputs);
        let kept = both(&p, &inputs);
        assert_eq!(rebuilt.get("out").unwrap(), kept.get("out").unwrap());
        assert_ne!(rebuilt.get("grad_w").unwrap(), kept.get("grad_w").unwrap());
    }
}

#[test]
fn stored_unfolds_give_the_gradients_of_rebuilt_ones() {
    let rebuilt = Ltc { elapsed: true, layer_norm: true, dt: 1.0, ..Ltc::new(11, 9, connectivity(5, 13, 2)) };
    let stored = Ltc { save: Save::Store, ..rebuilt.clone() };
    let inputs = rebuilt.sample(Pass::Backward, 5).unwrap();
    let (a, b) = (both(&rebuilt, &inputs), both(&stored, &inputs));
    for (name, values) in a.iter() {
        assert_eq!(values, b.get(name).unwrap(), "{name}");
    }
}

#[test]
fn unwanted_gradients_leave_the_others_as_they_are() {
    let all = Ltc { initial_state: true, elapsed: true, layer_norm: true, ..Ltc::new(6, 4, connectivity(5, 9, 2)) };
    let inputs = all.sample(Pass::Backward, 5).unwrap();
    for save in [Save::Recompute, Save::Store] {
        let all = Ltc { save, ..all.clone() };
        let full = both(&all, &inputs);
        for bits in 0..16 {
            let wants = Wants { x: bits & 1 > 0, h0: bits & 2 > 0, elapsed: bits & 4 > 0, parameters: bits & 8 > 0 };
            let p = Ltc { wants, ..all.clone() };
            let got = both(&p, &inputs);
            for spec in p.signature_of(Pass::Backward).unwrap().outputs {
                assert_eq!(got.get(&spec.name).unwrap(), full.get(&spec.name).unwrap(), "{wants:?}: {}", spec.name);
            }
        }
    }
    let unmapped = Ltc { input_mapping: Mapping::None, layer_norm: false, ..all };
    let p = Ltc { wants: Wants { x: false, ..Wants::default() }, save: Save::Store, ..unmapped };
    against_the_law("no gradient of the inputs", &p, &p.sample(Pass::Backward, 5).unwrap());
}

#[test]
fn extreme_gates_stay_finite_and_exact() {
    let p = Ltc { dt: 1.0, ..Ltc::new(5, 3, connectivity(4, 7, 2)) };
    let mut inputs = p.sample(Pass::Backward, 9).unwrap();
    for (name, factor) in [("sigma", 100.0), ("sensory_sigma", 1e30), ("x", 1e4)] {
        inputs.get_mut(name).unwrap().data.iter_mut().for_each(|x| *x *= factor);
    }
    let inputs: Tensors = inputs.iter().map(|(n, v)| (n.to_owned(), v.clone().rounded(Dtype::F32))).collect();
    let (got, law) = (both(&p, &inputs), p.reference(Pass::Forward, &inputs, false).unwrap());
    for name in ["out", "final_state"] {
        let e = error(Metric::Relative, got.get(name).unwrap(), law.get(name).unwrap());
        assert!(e <= 1e-5, "{name} is off by {e:e}");
    }
    assert!(got.iter().all(|(_, v)| v.data.iter().all(|x| x.is_finite())));
}

/// Whether gates are held within bounds is decided for the rows of a group together: that must not show.
#[test]
fn what_is_extreme_in_a_row_changes_no_bit_of_another() {
    for batch in [4, 8] {
        let p = Ltc { dt: 1.0, initial_state: true, ..Ltc::new(batch, 3, connectivity(4, 7, 2)) };
        let inputs = p.sample(Pass::Forward, 9).unwrap();
        let forward =
            |inputs: &Tensors| Session::new(Arc::new(p.clone()), &Device::Cpu).unwrap().forward(inputs).unwrap();
        let want = forward(&inputs);
        for (name, value) in [("x", 1e6), ("x", f64::INFINITY), ("x", f64::NAN), ("h0", -1e30), ("h0", f64::NAN)] {
            let mut inputs = inputs.clone();
            inputs.get_mut(name).unwrap().data[1] = value;
            let got = forward(&inputs);
            let (got, want) = (got.get("out").unwrap(), want.get("out").unwrap());
            let row = got.data.len() / batch;
            assert_eq!(got.data[row..], want.data[row..], "{name} = {value}, {batch} rows");
            let first = &got.data[..row];
            assert_ne!(first, &want.data[..row], "{name} = {value}, {batch} rows");
            assert_eq!(first.iter().any(|x| x.is_nan()), value.is_nan(), "{name} = {value}, {batch} rows: {first:?}");
        }
    }
}

#[test]
fn a_parameter_that_is_not_a_number_is_seen() {
    let p = Ltc { dt: 1.0, ..Ltc::new(8, 2, connectivity(4, 7, 2)) };
    for name in ["sigma", "mu", "sensory_sigma", "sensory_mu"] {
        let mut inputs = p.sample(Pass::Forward, 9).unwrap();
        // The synapse from source 0 onto target 0 exists.
        inputs.get_mut(name).unwrap().data[0] = f64::NAN;
        let got = Session::new(Arc::new(p.clone()), &Device::Cpu).unwrap().forward(&inputs).unwrap();
        let out = &got.get("out").unwrap().data;
        assert!(out.iter().step_by(7).all(|x| x.is_nan()), "{name}: {out:?}");
    }
}

#[test]
fn masked_synapses_have_no_gradient() {
    let p = Ltc::new(3, 2, connectivity(4, 6, 3));
    let got = both(&p, &p.sample(Pass::Backward, 2).unwrap());
    let kept: Vec<(i32, i32)> = (0..6)
        .flat_map(|j| {
            let s = &p.connectivity.recurrent;
            (s.target_offsets[j]..s.target_offsets[j + 1]).map(move |k| (s.source_of[k as usize], j as i32))
        })
        .collect();
    for name in ["grad_w", "grad_mu", "grad_sigma", "grad_erev"] {
        for (at, &x) in got.get(name).unwrap().data.iter().enumerate() {
            let exists = kept.contains(&(at as i32 / 6, at as i32 % 6));
            assert_eq!(x != 0.0, exists, "{name}[{}, {}] = {x}", at / 6, at % 6);
        }
    }
}

#[test]
fn lists_that_prepare_cannot_have_made_are_refused() {
    let p = Ltc::new(2, 2, connectivity(3, 5, 2));
    let sample = p.sample(Pass::Forward, 1).unwrap();
    let refused = |list: &str, at: usize, value: f64| {
        let mut inputs = sample.clone();
        inputs.get_mut(list).unwrap().data[at] = value;
        let mut session = Session::new(Arc::new(p.clone()), &Device::Cpu).unwrap();
        session.forward(&inputs).unwrap_err().to_string()
    };
    assert!(refused("recurrent_source_of", 1, 9.0).contains("recurrent_source_of[1] = 9 is not in"));
    assert!(refused("sensory_source_of", 0, -1.0).contains("sensory_source_of[0] = -1 is not in"));
    assert!(refused("recurrent_target_offsets", 0, 1.0).contains("recurrent_target_offsets[0] = 1"));
    assert!(refused("recurrent_target_offsets", 2, 900.0).contains("recurrent_target_offsets[2] = 900"));
    assert!(refused("sensory_target_offsets", 5, 1.0).contains("sensory_target_offsets[5] = 1"));
}

#[test]
fn a_variant_of_another_device_is_refused() {
    let options = PlanOptions { variant: Some("wgmma".to_owned()), ..PlanOptions::default() };
    let e = super::CpuPlan::new(&Ltc::new(1, 1, connectivity(1, 1, 1)), &options).unwrap_err().to_string();
    assert!(e.contains("variant `wgmma` is not one of the CPU's: simd"), "{e}");
}

#[test]
fn groups_cover_the_batch_once() {
    for batch in 0..100 {
        let groups = groups(batch);
        let mut row = 0;
        for g in &groups {
            assert_eq!(g.row, row, "{batch} rows");
            assert!((1..=g.lanes).contains(&g.rows), "{batch} rows: {g:?}");
            row += g.rows;
        }
        assert_eq!(row, batch);
        assert_eq!(groups.iter().filter(|g| g.lanes == 8).count() % 2, 0, "{batch} rows");
    }
}

/// What is stored in 16 bits is widened exactly and rounded once: to the bit what the f32 plan makes of the same numbers.
#[test]
fn halves_are_the_results_of_f32_rounded_once() {
    let mut problems = problems();
    let mapped = Ltc { output_mapping: Mapping::Affine, outputs: 3, ..Ltc::new(9, 4, connectivity(5, 13, 2)) };
    problems.push(("the state last".to_owned(), Ltc { initial_state: true, backward: false, ..mapped.clone() }));
    problems.push(("no gradient of x".to_owned(), Ltc { wants: Wants { x: false, ..Wants::default() }, ..mapped }));
    for (name, p) in problems {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let half = Ltc { dtype, ..p.clone() };
            let pass = if p.backward { Pass::Backward } else { Pass::Forward };
            let inputs = half.sample(pass, 6).unwrap();
            let of = |p: &Ltc| match pass {
                Pass::Backward => both(p, &inputs),
                _ => Session::new(Arc::new(p.clone()), &Device::Cpu).unwrap().forward(&inputs).unwrap(),
            };
            let (got, want) = (of(&half), of(&p));
            let mut rounded = 0;
            for (name_of, values) in want.iter() {
                let stored = if matches!(name_of, "out" | "grad_x") { dtype } else { Dtype::F32 };
                rounded += usize::from(stored == dtype);
                let want = values.clone().rounded(stored);
                assert_eq!(got.get(name_of).unwrap(), &want, "{name}, {dtype}: {name_of}");
            }
            assert_eq!(rounded, 1 + usize::from(p.backward && p.wants.x), "{name}");
        }
    }
}

/// A value that is lost in 16 bits must have been there: the test above would not see states that come of rounded ones.
#[test]
fn the_gradients_of_halves_start_from_f32_states() {
    let half = Ltc { dtype: Dtype::Bf16, dt: 1.0, ..Ltc::new(3, 6, connectivity(4, 7, 2)) };
    let inputs = half.sample(Pass::Backward, 2).unwrap();
    let mut session = Session::new(Arc::new(half.clone()), &Device::Cpu).unwrap();
    let names = |want: bool| -> Tensors {
        let kept = inputs.iter().filter(|(n, _)| n.starts_with("grad_") == want);
        kept.map(|(n, v)| (n.to_owned(), v.clone())).collect()
    };
    let made = session.forward(&names(false)).unwrap();
    let (out, states) = (made.get("out").unwrap(), made.get("states").unwrap());
    assert_ne!(out.data, states.data);
    assert_eq!(out.data, states.clone().rounded(Dtype::Bf16).data);
    let want = session.backward(&names(true)).unwrap();
    let law = half.reference(Pass::Backward, &inputs, false).unwrap();
    for name in ["grad_w", "grad_sigma", "grad_sensory_mu"] {
        let bound = half.tolerance_of(name).unwrap();
        let e = error(bound.metric, want.get(name).unwrap(), law.get(name).unwrap());
        assert!(e <= bound.value, "{name} is off by {e:e}");
    }
}

#[test]
fn x_of_another_type_is_refused_with_both_names() {
    let p = Ltc { dtype: Dtype::Bf16, backward: false, ..Ltc::new(1, 1, connectivity(2, 3, 1)) };
    let plan = p.plan(&Device::Cpu, &PlanOptions::default()).unwrap();
    assert!(plan.config().ends_with("x and out = bf16"), "{}", plan.config());
    let signature = plan.signature(Pass::Forward).unwrap();
    let (floats, indices) = ([0f32; 9], [0i32; 32]);
    let view = |spec: &crate::op::TensorSpec| match (spec.dtype, spec.shape.elements()) {
        (Dtype::I32, n) => View::from_slice(&indices[..n], spec.shape).unwrap(),
        (_, n) => View::from_slice(&floats[..n], spec.shape).unwrap(),
    };
    let views: Vec<View<'_>> = signature.inputs.iter().map(view).collect();
    let (mut out, mut state, mut none) = ([0f32; 3], [0f32; 3], [0u8; 0]);
    let mut outputs =
        [ViewMut::from_slice(&mut out[..], [1, 1, 3]).unwrap(), ViewMut::from_slice(&mut state[..], [1, 3]).unwrap()];
    let scratch = ViewMut::from_slice(&mut none[..], [0]).unwrap();
    let mut args = Args { inputs: &views, outputs: &mut outputs, scratch, stream: StreamRef::LEGACY };
    let e = plan.run(Pass::Forward, &mut args).unwrap_err().to_string();
    assert_eq!(e, "ltc: x holds f32, bf16 is needed");
}

/// Every strided input as a view with gaps and turned axes.
#[test]
fn strides_change_no_bit() {
    let p = Ltc { initial_state: true, elapsed: true, ..Ltc::new(6, 3, connectivity(4, 7, 2)) };
    let inputs = p.sample(Pass::Backward, 4).unwrap();
    let want = both(&p, &inputs);
    let plan = p.plan(&Device::Cpu, &PlanOptions::default()).unwrap();
    let signature = plan.signature(Pass::Backward).unwrap();
    let out = want.get("out").unwrap();
    let (mut floats, mut indices) = (Vec::new(), Vec::new());
    let mut strides = Vec::new();
    for spec in &signature.inputs {
        let values = inputs.find(&spec.name).unwrap_or(out);
        if spec.dtype == Dtype::I32 {
            indices.push(values.data.iter().map(|&x| x as i32).collect::<Vec<i32>>());
            continue;
        }
        // Strided tensors lie with their axes in the opposite order and two elements apart.
        let own: Vec<isize> = if spec.strided {
            (0..spec.shape.len()).map(|a| 2 * spec.shape[..a].iter().product::<usize>() as isize).collect()
        } else {
            spec.shape.contiguous_strides()[..spec.shape.len()].to_vec()
        };
        let mut data = vec![f32::NAN; 2 * values.data.len()];
        for (flat, &x) in values.data.iter().enumerate() {
            let (mut rest, mut at) = (flat, 0);
            for a in (0..spec.shape.len()).rev() {
                at += (rest % spec.shape[a]) as isize * own[a];
                rest /= spec.shape[a];
            }
            data[at as usize] = x as f32;
        }
        floats.push(data);
        strides.push(own);
    }
    let (mut float, mut index) = (floats.iter().zip(&strides), indices.iter());
    let views: Vec<View<'_>> = signature
        .inputs
        .iter()
        .map(|spec| {
            if spec.dtype == Dtype::I32 {
                return View::from_slice(index.next().unwrap(), spec.shape).unwrap();
            }
            let (data, own) = float.next().unwrap();
            View::from_slice(data, [data.len()]).unwrap().restride(spec.shape, own).unwrap()
        })
        .collect();
    let mut results: Vec<Vec<f32>> = signature.outputs.iter().map(|s| vec![f32::NAN; s.shape.elements()]).collect();
    let mut outputs: Vec<ViewMut<'_>> = results
        .iter_mut()
        .zip(&signature.outputs)
        .map(|(r, s)| ViewMut::from_slice(r.as_mut_slice(), s.shape).unwrap())
        .collect();
    let need = plan.scratch(Pass::Backward).bytes();
    let mut memory = vec![0xffu8; need + 256];
    let skip = memory.as_ptr().align_offset(256);
    let scratch = ViewMut::from_slice(&mut memory[skip..skip + need], Shape::from([need])).unwrap();
    let mut args = Args { inputs: &views, outputs: &mut outputs, scratch, stream: StreamRef::LEGACY };
    plan.run(Pass::Backward, &mut args).unwrap();
    for (spec, got) in signature.outputs.iter().zip(&results) {
        let law = &want.get(&spec.name).unwrap().data;
        assert!(got.iter().zip(law).all(|(g, l)| f64::from(*g) == *l), "{}", spec.name);
    }
}
