//! `linear_scan`: names, shapes, cases and tolerances.

use super::{cpu, cuda, reference};
use crate::op::{
    Case, CaseSet, Cost, Metric, Op, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec, Tensors, Tolerance,
    Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result, Shape};
use chronaxie_runtime::cuda::Specialisation;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The entry's name.
pub const NAME: &str = "linear_scan";

/// The gates that [`LinearScan::sample`](Problem::sample) draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Gates {
    /// Uniform in [0, 1): what sigmoids give.
    #[default]
    Uniform,
    /// Uniform in [0.99, 1): a long memory.
    Slow,
    /// Uniform in (-1, 1).
    Signed,
    /// 0 (forget everything) or 1 (a running sum), and one in eight anything in between.
    Extreme,
}

impl Gates {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Uniform, "uniform"), (Self::Slow, "slow"), (Self::Signed, "signed"), (Self::Extreme, "extreme")];

    fn draw(self, rng: &mut Rng) -> f64 {
        match self {
            Self::Uniform => rng.uniform(),
            Self::Slow => rng.range(0.99, 1.0),
            Self::Signed => rng.range(-1.0, 1.0),
            Self::Extreme => match rng.below(8) {
                0 => rng.uniform(),
                1 | 2 => 0.0,
                _ => 1.0,
            },
        }
    }
}

impl fmt::Display for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(g, _)| g == self).map_or("", |&(_, n)| n))
    }
}

impl FromStr for Gates {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Self::ALL.iter().find(|(_, n)| *n == s).map(|&(g, _)| g).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|&(_, n)| n).collect();
            Error::config(format!("{NAME}: gates `{s}` are not one of {}", names.join(", ")))
        })
    }
}

/// The problem `h_t = a_t h_{t-1} + x_t` on f32 tensors `[B, D, T]` of any strides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinearScan {
    batch: usize,
    channels: usize,
    steps: usize,
    initial_state: bool,
    reverse: bool,
    gates: Gates,
}

impl LinearScan {
    /// `batch` (B) times `channels` (D) rows of `steps` (T) time steps; any of them may be 0.
    ///
    /// An error if a tensor of that size cannot be addressed.
    pub fn new(batch: usize, channels: usize, steps: usize) -> Result<Self> {
        let shape = Shape::from([batch, channels, steps]);
        // Sizes of an empty tensor count too: rows alone must be addressable.
        let rows = Shape::from([batch.max(1), channels.max(1), steps.max(1)]).checked_elements();
        if !rows.is_ok_and(|n| n <= isize::MAX as usize / Dtype::F32.size()) {
            return Err(Error::shape(format!("{NAME}: [B, D, T] = {shape} has more bytes than can be addressed")));
        }
        Ok(Self { batch, channels, steps, initial_state: false, reverse: false, gates: Gates::default() })
    }
    /// Whether an initial state h0 `[B, D]` is given (and its gradient wanted); otherwise it is zero.
    #[must_use]
    pub fn with_initial_state(mut self, given: bool) -> Self {
        self.initial_state = given;
        self
    }
    /// Whether time runs backwards: `h_t = a_t h_{t+1} + x_t`, and the last state is that of time 0.
    #[must_use]
    pub fn with_reverse(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }
    /// The gates that samples have; of no meaning otherwise.
    #[must_use]
    pub fn with_gates(mut self, gates: Gates) -> Self {
        self.gates = gates;
        self
    }
    /// B.
    pub fn batch(&self) -> usize {
        self.batch
    }
    /// D.
    pub fn channels(&self) -> usize {
        self.channels
    }
    /// T.
    pub fn steps(&self) -> usize {
        self.steps
    }
    /// B times D.
    pub fn rows(&self) -> usize {
        self.batch * self.channels
    }
    /// Whether h0 is given.
    pub fn has_initial_state(&self) -> bool {
        self.initial_state
    }
    /// Whether time runs backwards.
    pub fn is_reverse(&self) -> bool {
        self.reverse
    }

    fn sequence(&self, name: &'static str, role: Role) -> TensorSpec {
        TensorSpec::new(name, "[B, D, T]", [self.batch, self.channels, self.steps], Dtype::F32, role).any_strides()
    }
    fn state(&self, name: &'static str) -> TensorSpec {
        TensorSpec::new(name, "[B, D]", [self.batch, self.channels], Dtype::F32, Role::State).any_strides()
    }

    fn law<R: Real>(&self, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
        let take = |spec: TensorSpec| -> Result<Vec<R>> {
            let v = inputs.get(&spec.name)?;
            if v.shape != spec.shape {
                return Err(Error::shape(format!(
                    "{NAME}: {}.shape = {} does not match {} = {}",
                    spec.name, v.shape, spec.axes, spec.shape
                )));
            }
            Ok(v.data.iter().map(|&x| R::from_f64(x)).collect())
        };
        let give = |spec: TensorSpec, data: &[R]| {
            let data = data.iter().map(|x| x.to_f64()).collect();
            Values::new(spec.shape, data).map(|v| (spec.name.into_owned(), v))
        };
        let a = take(self.sequence("a", Role::Input))?;
        let x = take(self.sequence("x", Role::Input))?;
        let h0 = if self.initial_state { Some(take(self.state("h0"))?) } else { None };
        let (h, h_last) = reference::forward(self, &a, &x, h0.as_deref());
        let h_spec = self.sequence("h", Role::Output);
        match pass {
            Pass::Forward => {
                let h_last = give(self.state("h_last"), &h_last)?;
                Ok([give(h_spec, &h)?, h_last].into_iter().collect())
            }
            _ => {
                let grad_h = take(h_spec.gradient())?;
                let grad_h_last = take(self.state("h_last").gradient())?;
                let g = reference::backward(self, &a, &h, h0.as_deref(), &grad_h, &grad_h_last);
                let mut out: Tensors = [
                    give(self.sequence("a", Role::Input).gradient(), &g.a)?,
                    give(self.sequence("x", Role::Input).gradient(), &g.x)?,
                ]
                .into_iter()
                .collect();
                if self.initial_state {
                    let (name, values) = give(self.state("h0").gradient(), &g.h0)?;
                    out.insert(name, values);
                }
                Ok(out)
            }
        }
    }
}

impl Problem for LinearScan {
    fn entry(&self) -> &'static str {
        NAME
    }

    fn signature(&self, pass: Pass) -> Result<Signature> {
        let (a, x) = (self.sequence("a", Role::Input), self.sequence("x", Role::Input));
        let (h, h_last) = (self.sequence("h", Role::Output), self.state("h_last"));
        let h0 = self.initial_state.then(|| self.state("h0"));
        match pass {
            Pass::Forward => Ok(Signature {
                inputs: [Some(a), Some(x), h0].into_iter().flatten().collect(),
                outputs: vec![h, h_last],
            }),
            Pass::Backward => {
                let gradient = |t: &TensorSpec| t.gradient().any_strides();
                let (grad_h, grad_h_last) = (gradient(&h), gradient(&h_last));
                let outputs = [Some(&a), Some(&x), h0.as_ref()].into_iter().flatten().map(gradient).collect();
                // x is not among the inputs: no gradient depends on it but through h.
                let inputs = [Some(a), h0, Some(h), Some(grad_h), Some(grad_h_last)].into_iter().flatten().collect();
                Ok(Signature { inputs, outputs })
            }
            _ => Err(Error::config(format!("{NAME} has no {} pass; it has forward and backward", pass.name()))),
        }
    }

    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        match device {
            Device::Cpu => Ok(Box::new(cpu::CpuPlan::new(*self, options)?)),
            Device::Cuda(d) => Ok(Box::new(cuda::CudaPlan::new(*self, d, options)?)),
        }
    }

    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        let signature = self.signature(pass)?;
        let mut tensors = Tensors::new();
        for (i, t) in signature.inputs.iter().enumerate() {
            if pass == Pass::Backward && t.role != Role::Gradient {
                continue;
            }
            let mut rng = Rng::new(seed, i as u64 + 16 * pass as u64);
            let gate = t.name == "a";
            let values = Values::from_fn(t.shape, || if gate { self.gates.draw(&mut rng) } else { rng.normal() });
            tensors.insert(t.name.clone(), values.rounded(Dtype::F32));
        }
        Ok(tensors)
    }

    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature(pass)?;
        if f32_arithmetic { self.law::<f32>(pass, inputs) } else { self.law::<f64>(pass, inputs) }
    }

    fn tolerance(&self, pass: Pass, output: &str) -> Option<Tolerance> {
        // At most 8 times what f32 costs the law (3.5e-7 for h and grad_x, 4.2e-7, 5.1e-7 and 6.9e-7 for the others) with
        // gates in [0.99, 1), where every state sums the roundings of a hundred steps.
        let (value, reason) = match (pass, output) {
            (Pass::Forward, "h") => (2.5e-6, "each step rounds, and a state remembers the roundings of earlier ones"),
            (Pass::Forward, _) => (3e-6, "that of h, of one state a row, which may be small by chance"),
            (Pass::Backward, "grad_x") => (2.5e-6, "lambda is a scan like h"),
            (Pass::Backward, "grad_a") => (4e-6, "the product of lambda and a state, each with its own error"),
            (Pass::Backward, _) => (5e-6, "that of lambda, of one value a row, which may be small by chance"),
            _ => return None,
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }

    fn cost(&self, pass: Pass) -> Cost {
        let (rows, steps) = (self.rows() as u64, self.steps as u64);
        let given = u64::from(self.initial_state);
        // (sequences, states, flops a step): a x -> h; a h grad_h -> grad_a grad_x.
        let (sequences, states, flops) = match pass {
            Pass::Forward => (3, 1 + given, 2),
            Pass::Backward => (5, 1 + 2 * given, 3),
            _ => (0, 0, 0),
        };
        Cost {
            bytes: 4 * rows * (sequences * steps + states),
            flops: flops * rows * steps,
            special: 0,
            serial_steps: steps,
        }
    }
}

/// The entry `linear_scan`.
#[derive(Debug)]
pub struct LinearScanOp;

const COMPARED: &[&str] = &["B8_D1536_T8192", "B8_D1536_T65536", "B1_D1024_T65536"];
const CPU: &[&str] = &["B1_D1024_T4096", "B2_D1536_T8192", "B1_D64_T65536"];
const CHECK: &[&str] = &[
    "B2_D3_T0",
    "B0_D3_T5",
    "B2_D0_T5,h0=true",
    "B2_D3_T0,h0=true,reverse=true",
    "B3_D5_T1,h0=true",
    "B1_D1_T2,h0=true,gates=signed",
    "B2_D3_T15,reverse=true",
    "B1_D7_T31,h0=true,gates=extreme",
    "B2_D5_T33,h0=true,reverse=true,gates=signed",
    "B1_D33_T127,gates=slow",
    "B2_D17_T1020,h0=true,gates=slow",
    "B2_D17_T1024,h0=true,reverse=true,gates=slow",
    "B1_D130_T1028,h0=true,gates=signed",
    "B1_D9_T2047,h0=true,reverse=true,gates=extreme",
    "B2_D9_T2049,gates=slow",
    "B1_D3_T8193,h0=true,gates=signed",
    "B1_D40_T16384,h0=true,reverse=true",
    "B1_D2_T100000,h0=true,gates=slow",
    "B2_D3000_T40,h0=true",
    "B1_D1100_T516,h0=true",
    "B1_D1100_T517,reverse=true,gates=slow",
];

impl Op for LinearScanOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "the gated recurrence h_t = a_t h_{t-1} + x_t of a diagonal state-space model, real f32"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward, Pass::Backward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let names = match set {
            CaseSet::Compared => COMPARED,
            CaseSet::Cpu => CPU,
            CaseSet::Check => CHECK,
        };
        names.iter().map(|n| n.parse().expect("the cases of this list are well spelt, as a test shows")).collect()
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["B", "D", "T"], &["h0", "reverse", "gates"])?;
        let gates = match case.option("gates") {
            None => Gates::default(),
            Some(name) => name.parse()?,
        };
        let problem = LinearScan::new(case.size("B")?, case.size("D")?, case.size("T")?)?
            .with_initial_state(case.get("h0", false)?)
            .with_reverse(case.get("reverse", false)?)
            .with_gates(gates);
        Ok(Arc::new(problem))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::specialisations()
    }
}
