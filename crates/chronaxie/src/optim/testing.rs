//! What tests of optimizers share: steps of a plan one after the other, and small matrices in f64.

use super::stepper::Stepper;
use crate::call::Session;
use crate::op::{Pass, Role, Tensors, Values};
use crate::rng::Rng;
use crate::{Device, Dtype};
use std::sync::Arc;

/// A matrix by rows.
pub(super) type Matrix = Vec<Vec<f64>>;

pub(super) fn identity(n: usize) -> Matrix {
    (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect()
}
pub(super) fn times(a: &Matrix, b: &Matrix) -> Matrix {
    a.iter().map(|row| (0..b[0].len()).map(|j| row.iter().zip(b).map(|(x, r)| x * r[j]).sum()).collect()).collect()
}
pub(super) fn transposed(a: &Matrix) -> Matrix {
    (0..a[0].len()).map(|j| a.iter().map(|r| r[j]).collect()).collect()
}
pub(super) fn plus(a: &Matrix, x: f64, b: &Matrix, y: f64) -> Matrix {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| x * a + y * b).collect()).collect()
}
pub(super) fn norm(a: &Matrix) -> f64 {
    a.iter().flatten().map(|x| x * x).sum::<f64>().sqrt()
}

/// Runs steps one after the other, from zeros and what the optimizer says.
pub(super) struct Steps {
    opening: Option<(u64, Session)>,
    turns: Session,
    pub(super) state: Tensors,
    taken: u64,
}

impl Steps {
    pub(super) fn new(p: &(impl Stepper + Clone + 'static), parameter: Vec<f64>) -> Self {
        Self::on(&Device::Cpu, p, parameter)
    }
    pub(super) fn on(device: &Device, p: &(impl Stepper + Clone + 'static), parameter: Vec<f64>) -> Self {
        let session = |p| Session::new(p, device).unwrap();
        let opening = p.opening().map(|(step, p)| (step, session(p)));
        let turns = session(Arc::new(p.clone()));
        let mut state = Tensors::new();
        for t in p.signature(Pass::Step).unwrap().outputs.iter().filter(|t| t.role == Role::State) {
            let mut values = Values::zeros(t.shape);
            if let Some(initial) = p.initial(&t.name) {
                values.data = initial.iter().map(|&x| x.into()).collect();
            }
            if t.name == "parameter" {
                values.data = parameter.clone();
            }
            state.insert(t.name.to_string(), values.rounded(t.dtype));
        }
        Self { opening, turns, state, taken: 0 }
    }
    pub(super) fn step(&mut self, grad: &[f64], decay: &[f64], rate: f64) {
        self.step_with(grad, decay, rate, &[]);
    }
    /// A step that reads more than others.
    pub(super) fn step_with(&mut self, grad: &[f64], decay: &[f64], rate: f64, more: &[(&str, &[f64])]) {
        self.taken += 1;
        let session = match &mut self.opening {
            Some((at, session)) if *at == self.taken => session,
            _ => &mut self.turns,
        };
        let mut inputs = self.state.clone();
        for (name, data) in
            [("grad", grad), ("decay", decay), ("rate", &[rate])].into_iter().chain(more.iter().copied())
        {
            inputs.insert(name, Values::new([data.len()], data.to_vec()).unwrap().rounded(Dtype::F32));
        }
        let out = session.run(Pass::Step, &inputs).unwrap();
        for (name, values) in out.iter().filter(|(name, _)| *name != "grad_norm") {
            self.state.insert(name, values.clone());
        }
    }
    pub(super) fn parameter(&self) -> &[f64] {
        &self.state.get("parameter").unwrap().data
    }
}

/// Normal numbers that f32 holds.
pub(super) fn draw(seed: u64, n: usize) -> Vec<f64> {
    let mut rng = Rng::new(seed, 3);
    (0..n).map(|_| f64::from(rng.normal() as f32)).collect()
}

/// The largest distance of two vectors, in parts of the largest element of the second.
pub(super) fn apart(a: &[f64], b: &[f64]) -> f64 {
    let largest = b.iter().fold(0.0, |l: f64, x| l.max(x.abs()));
    a.iter().zip(b).fold(0.0, |l: f64, (x, y)| l.max((x - y).abs())) / largest
}

impl Steps {
    /// Goes on where another one stands.
    pub(super) fn resume(&mut self, other: &Self) {
        self.state = other.state.clone();
        self.taken = other.taken;
    }
}

/// What `chronaxie check` would say of the steppers on the CPU.
#[test]
fn entries_agree_with_their_laws_on_the_cpu() {
    use crate::check::{self, Options, Status, Target};
    let (kfac, factors) = (&super::kfac::KfacOp, &super::kfac::KfacFactorsOp);
    let entries: [&dyn crate::op::Op; 5] =
        [&super::shampoo::ShampooOp, &super::soap::SoapOp, &super::muon::MuonOp, kfac, factors];
    let mut failures = Vec::new();
    let silent = crate::progress::Silent;
    let summary = check::run(&entries, &[Target::Ready(Device::Cpu)], &Options::default(), &silent, &mut |r| {
        if r.status == Status::Failed {
            failures.push(format!("{r:?}"));
        }
    })
    .unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(summary.passed > 100, "{summary:?}");
}
