//! Problems: what is refused, what is listed, and how exact results must be.

use crate::layers::mlstm::entry::{MlstmOp, MlstmParallelOp};
use crate::layers::mlstm::ladder::LadderOp;
use crate::layers::mlstm::step::MlstmStepOp;
use crate::layers::mlstm::{Gate, Ladder, Mlstm, MlstmStep, Rung};
use crate::op::{CaseSet, Metric, Op, Pass, PlanOptions, Problem, Tensors, Values};
use crate::{Device, Dtype};

const OPS: [&dyn Op; 5] =
    [&MlstmOp(Gate::Exponential), &MlstmOp(Gate::Sigmoid), &MlstmStepOp, &MlstmParallelOp, &LadderOp];

#[test]
fn every_listed_case_is_a_problem() {
    for op in OPS {
        for case in [CaseSet::Compared, CaseSet::Cpu, CaseSet::Check].into_iter().flat_map(|set| op.cases(set)) {
            let p = op.problem(&case).unwrap();
            assert_eq!(p.entry(), op.name());
            for pass in op.passes() {
                let Ok(signature) = p.signature(*pass) else { continue };
                let bytes: usize = signature.inputs.iter().chain(&signature.outputs).map(|t| t.bytes()).sum();
                let cost = p.cost(*pass);
                assert!(*pass == Pass::Step || cost.bytes == bytes as u64, "{} {case}", op.name());
                for t in &signature.outputs {
                    let saved = matches!(&*t.name, "l" | "m") && *pass == Pass::Forward;
                    assert_eq!(p.tolerance(*pass, &t.name).is_none(), saved, "{} {case}: {}", op.name(), t.name);
                }
            }
        }
    }
}

#[test]
fn bad_problems_and_cases_are_refused_in_a_sentence() {
    let says = |e: crate::Error, want: &str| assert!(e.to_string().contains(want), "{e}");
    let base = Mlstm::new(Gate::Exponential, [2, 3, 64, 32, 48]);
    let build = |change: &dyn Fn(&mut Mlstm)| {
        let mut p = base;
        change(&mut p);
        p.build().unwrap_err()
    };
    says(build(&|p| p.dqk = 24), "mlstm_exp: head size K = 24 is not a multiple of 16 from 16 to 512");
    says(build(&|p| p.dv = 528), "head size V = 528 is not a multiple of 16 from 16 to 512");
    says(build(&|p| p.dqk = 0), "head size K = 0");
    says(build(&|p| p.dtype = Dtype::F64), "q, k and v of f64 are not offered");
    says(build(&|p| p.normalize = false), "normalize = false is not offered");
    says(build(&|p| p.eps = -1.0), "eps = -1 is not a number from 0 on");
    says(build(&|p| p.eps = f64::NAN), "eps = NaN");
    says(build(&|p| p.chunk = Some(100)), "chunk = 100 is not a multiple of 16 from 16 to 256");
    says(build(&|p| p.sequences = Some(4)), "cu_seqlens needs B = 1, not B = 2");
    says(build(&|p| p.steps = usize::MAX / 64), "more bytes than can be addressed");
    says(base.signature_of(Pass::Step).unwrap_err(), "mlstm_exp has no step pass; mlstm_step has");
    let mut forward_only = base;
    forward_only.backward = false;
    says(forward_only.signature_of(Pass::Backward).unwrap_err(), "backward = false has no backward pass");
    says(base.check_cuts(&[0, 5, 60]).unwrap_err(), "cu_seqlens goes from 0 to 60, not from 0 to T = 64");
    says(base.check_cuts(&[0, 9, 5, 64]).unwrap_err(), "cu_seqlens descends from 9 to 5 at 2");
    let problem = |op: usize, case: &str| OPS[op].problem(&case.parse().unwrap()).map(|_| ()).unwrap_err();
    says(build(&|p| (p.parallel, p.last_state) = (true, true)), "mlstm_parallel: the parallel form has neither");
    says(problem(3, "B1_NH1_T4_K16_V16,last=true"), "last");
    says(problem(0, "B1_NH1_T4_K16"), "no size V");
    says(problem(0, "B1_NH1_T4_K16_V16_D3"), "axis D is not one of B, NH, T, K, V");
    says(problem(1, "B1_NH1_T4_K16_V16,dtype=f8"), "mlstm_sig: element type `f8` is not one of f32, f16, bf16");
    says(problem(1, "B1_NH1_T4_K16_V16,gates=wild"), "gates `wild` are not one of");
    says(problem(0, "B1_NH1_T4_K16_V16,wants=q"), "wants `q` is not one of inputs, gates, initial, none");
    says(problem(2, "B1_NH1_K16_V16,gate=tanh"), "gate `tanh` is not one of exp, sig");
    says(problem(2, "B1_NH1_K16_V16,norm=batch"), "norm `batch` is not one of none, rms, layer");
    says(problem(2, "B1_NH1_K16_V16,state=i32"), "element type `i32`");
    says(problem(4, "B1_NH1_T4_K16_V16,step=gated"), "mlstm_ladder: step `gated` is not one of product, qkv, causal");
    says(problem(4, "B1_NH1_T4_K24_V16,step=product"), "mlstm_ladder: K = 24 is not a multiple of 16");
    says(problem(4, "B1_NH1_T4_K16_V0,step=product"), "mlstm_ladder: V = 0 is not a multiple of 16");
    says(
        problem(4, "B1_NH1_T4_K16_V528,step=qkv"),
        "mlstm_ladder: head size V = 528 is not a multiple of 16 from 16 to 512",
    );
    says(Ladder::new(Rung::Qkv, [1, 1, 4, 16, 16], Dtype::F64).unwrap_err(), "q, k and v of f64 are not offered");
    says(Ladder::new(Rung::Causal, [2, 3, usize::MAX / 64, 16, 16], Dtype::F32).unwrap_err(), "more bytes than can be");
    let ladder = Ladder::new(Rung::Qkv, [1, 2, 4, 16, 32], Dtype::F32).unwrap();
    says(ladder.signature(Pass::Step).unwrap_err(), "mlstm_ladder has no step pass; it has forward and backward");
    let mma = PlanOptions { variant: Some("mma".into()), ..PlanOptions::default() };
    says(ladder.plan(&Device::Cpu, &mma).err().unwrap(), "mlstm_ladder: variant `mma` is not one of simd on the CPU");
    let step = MlstmStep::new(Gate::Sigmoid, [2, 2, 16, 16]);
    says(step.signature(Pass::Forward).unwrap_err(), "mlstm_step has no forward pass");
    let options = PlanOptions { variant: Some("wgmma".into()), ..PlanOptions::default() };
    says(base.plan(&Device::Cpu, &options).err().unwrap(), "variant `wgmma` is not one of simd, simd:wN");
    let mut inputs = base.sample(Pass::Forward, 1).unwrap();
    inputs.insert("k", Values::zeros([2, 3, 64, 48]));
    says(base.reference(Pass::Forward, &inputs, false).unwrap_err(), "k.shape = (2, 3, 64, 48) does not match");
}

/// `||x - law|| / ||law||`, or `||x||` where the law is zero.
fn relative(x: &Values, law: &Values) -> f64 {
    let norm = |d: &mut dyn Iterator<Item = f64>| d.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut x.data.iter().zip(&law.data).map(|(x, l)| x - l));
    let size = norm(&mut law.data.iter().copied());
    if size == 0.0 { error } else { error / size }
}

/// Over the f32 cases of the lists, but for gates of +-40, whose bound says why it is wider.
#[test]
fn no_tolerance_of_f32_is_more_than_eight_times_what_f32_costs_the_law() {
    let mut noise: Vec<(&str, Pass, String, f64, f64)> = Vec::new();
    for op in OPS {
        for case in op.cases(CaseSet::Check) {
            let of = |name: &str| case.option(name);
            let long = case.size("T").is_ok_and(|t| t > 1000);
            if of("dtype") != Some("f32") || of("gates") == Some("extreme") || long {
                continue;
            }
            let p = op.problem(&case).unwrap();
            let passes: Vec<Pass> = op.passes().iter().copied().filter(|&q| p.signature(q).is_ok()).collect();
            let mut inputs = Tensors::new();
            for &pass in &passes {
                p.sample(pass, 1).unwrap().iter().for_each(|(n, v)| inputs.insert(n, v.clone()));
            }
            for pass in passes {
                let law = p.reference(pass, &inputs, false).unwrap();
                let in_f32 = p.reference(pass, &inputs, true).unwrap();
                for (name, l) in law.iter().filter(|(_, l)| !l.data.is_empty()) {
                    let t = p.tolerance(pass, name).unwrap();
                    assert_eq!(t.metric, Metric::Relative);
                    noise.push((op.name(), pass, name.to_owned(), relative(in_f32.get(name).unwrap(), l), t.value));
                }
            }
        }
    }
    // One bound for a group of outputs: the worst noise in it, over all three entries.
    let mut wide = Vec::new();
    for (entry, pass, name, _, bound) in &noise {
        let worst = noise.iter().filter(|n| n.1 == *pass && n.4 == *bound).map(|n| n.3).fold(0.0, f64::max);
        if *bound > 8.0 * worst {
            wide.push(format!("{entry} {name}: the tolerance {bound:e} against noise of {worst:e}"));
        }
    }
    wide.dedup();
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}
