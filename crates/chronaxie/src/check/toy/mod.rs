//! An operation small enough to be seen through, and the same with one fault each: what `check`, `bench` and `profile`
//! are tested on.
//!
//! `s[b, t] = s[b, t-1] + x[b, t]`, `y[b, t] = a[b] x[b, t] + s[b, t]^2 / 2`, from `s[b, -1] = h0[b]`.

mod cpu;

use crate::cuda::StreamRef;
use crate::op::{
    Args, Case, CaseSet, Cost, LaunchReport, Metric, Op, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec,
    Tensors, Tolerance, Values,
};
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Layout, Place, RegionId, Result};
use chronaxie_runtime::cuda::Specialisation;
use std::sync::Arc;

/// What a toy does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The last y is off by 1 %.
    Wrong,
    /// The gradient of a is off by 1 %.
    WrongGradient,
    /// The last element of y is not written.
    LeavesNan,
    /// An element that has no tolerance is not written.
    LeavesSaved,
    /// Writes behind its scratch region.
    Scratch,
    /// Writes behind an output.
    Output,
    /// Changes an input.
    Input,
    /// Other bits every time.
    Random,
    /// Other bits for other numbers of threads.
    Threads,
    /// Takes a strided input for a contiguous one.
    Strides,
    /// Adds what was in the scratch before.
    ReadsScratch,
    /// Panics.
    Panics,
    /// Has no plan for any device.
    Unavailable,
}

#[derive(Debug)]
pub(crate) struct Toy(pub Fault);

#[derive(Debug)]
pub(crate) struct Sizes {
    b: usize,
    t: usize,
    fault: Fault,
}

impl Op for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }
    fn summary(&self) -> &'static str {
        "a running sum"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward, Pass::Backward, Pass::Step]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let names: &[&str] = match set {
            CaseSet::Check => &["B3_T7", "B1_T0", "B0_T4", "B5_T130"],
            _ => &["B4_T256", "B8_T1024"],
        };
        Case::list(names)
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["B", "T"], &["precision"])?;
        Ok(Arc::new(Sizes { b: case.size("B")?, t: case.size("T")?, fault: self.0 }))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        Vec::new()
    }
}

impl Problem for Sizes {
    fn entry(&self) -> &'static str {
        "toy"
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        let f32 = Dtype::F32;
        let x = TensorSpec::new("x", "[B, T]", [self.b, self.t], f32, Role::Input).any_strides();
        let a = TensorSpec::new("a", "[B]", [self.b], f32, Role::Parameter);
        let h0 = TensorSpec::new("h0", "[B]", [self.b], f32, Role::State);
        let y = TensorSpec::new("y", "[B, T]", [self.b, self.t], f32, Role::Output);
        let sums = TensorSpec::new("sums", "[B, T]", [self.b, self.t], f32, Role::Saved);
        let inputs = vec![x.clone(), a.clone(), h0.clone()];
        Ok(match pass {
            Pass::Forward => Signature { inputs, outputs: vec![y, sums] },
            Pass::Backward => Signature {
                outputs: inputs.iter().map(TensorSpec::gradient).collect(),
                inputs: [&inputs[..], &[sums, y.gradient()]].concat(),
            },
            Pass::Step => Signature {
                inputs: vec![TensorSpec::new("u", "[B]", [self.b], f32, Role::Input)],
                outputs: vec![TensorSpec::new("state", "[B]", [self.b], f32, Role::State)],
            },
        })
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        if self.fault == Fault::Unavailable || !matches!(device, Device::Cpu) {
            return Err(Error::unavailable(format!("toy: no kernels for {device:?}")));
        }
        let mut layout = Layout::new(options.scratch_gap);
        let partial = layout.push("partial", Dtype::F32, self.b)?;
        let mut signatures = Vec::new();
        for pass in Pass::ALL {
            signatures.push((pass, self.signature(pass)?));
        }
        Ok(Box::new(ToyPlan { b: self.b, t: self.t, fault: self.fault, signatures, layout, partial }))
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        let mut rng = Rng::new(seed, 0);
        let signature = self.signature(pass)?;
        let state = signature.outputs.iter().filter(|t| pass == Pass::Step && t.role == Role::State);
        let read = signature.inputs.iter().filter(|t| t.role != Role::Saved).chain(state);
        Ok(read.map(|t| (t.name.to_string(), Values::from_fn(t.shape, || rng.normal()))).collect())
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, _f32_arithmetic: bool) -> Result<Tensors> {
        let (b, t) = (self.b, self.t);
        if pass == Pass::Step {
            let mut state = inputs.get("state")?.clone();
            for (s, u) in state.data.iter_mut().zip(&inputs.get("u")?.data) {
                *s = 0.5 * *s + u;
            }
            return Ok([("state".to_owned(), state)].into_iter().collect());
        }
        let (x, a, h0) = (&inputs.get("x")?.data, &inputs.get("a")?.data, &inputs.get("h0")?.data);
        let (mut y, mut sums) = (Values::zeros([b, t]), Values::zeros([b, t]));
        for (i, (&a, &h0)) in a.iter().zip(h0).enumerate() {
            let mut s = h0;
            for (k, x) in x.iter().enumerate().skip(i * t).take(t) {
                s += x;
                sums.data[k] = s;
                y.data[k] = a * x + 0.5 * s * s;
            }
        }
        if pass == Pass::Forward {
            return Ok([("y".to_owned(), y)].into_iter().collect());
        }
        let gy = &inputs.get("grad_y")?.data;
        let (mut gx, mut ga, mut gh) = (Values::zeros([b, t]), Values::zeros([b]), Values::zeros([b]));
        for (i, &a) in a.iter().enumerate() {
            let mut gs = 0.0;
            for k in (i * t..(i + 1) * t).rev() {
                gs += gy[k] * sums.data[k];
                gx.data[k] = a * gy[k] + gs;
                ga.data[i] += x[k] * gy[k];
            }
            gh.data[i] = gs;
        }
        Ok([("grad_x", gx), ("grad_a", ga), ("grad_h0", gh)].into_iter().map(|(n, v)| (n.to_owned(), v)).collect())
    }
    fn tolerance(&self, _pass: Pass, output: &str) -> Option<Tolerance> {
        let reason = "f32 sums of at most 130 terms";
        (output != "sums").then_some(Tolerance { metric: Metric::Relative, value: 1e-5, reason })
    }
    fn cost(&self, pass: Pass) -> Cost {
        let n = (self.b * self.t) as u64;
        let (bytes, flops) = match pass {
            Pass::Forward => (12 * n, 5 * n),
            Pass::Backward => (16 * n, 6 * n),
            Pass::Step => (12 * self.b as u64, 2 * self.b as u64),
        };
        Cost { bytes, flops, special: 0, serial_steps: self.t as u64 }
    }
}

pub(crate) struct ToyPlan {
    b: usize,
    t: usize,
    fault: Fault,
    signatures: Vec<(Pass, Signature)>,
    layout: Layout,
    partial: RegionId,
}

impl Plan for ToyPlan {
    fn entry(&self) -> &'static str {
        "toy"
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        self.signatures.iter().find(|(p, _)| *p == pass).map(|(_, s)| s)
    }
    fn config(&self) -> String {
        format!("rows {}", self.b)
    }
    fn variant(&self) -> &'static str {
        "loops"
    }
    fn scratch(&self, _pass: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        debug_assert_eq!(args.stream, StreamRef::LEGACY);
        self.run_on_cpu(pass, args)
    }
    fn launches(&self, _pass: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
