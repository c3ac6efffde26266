//! `linear_scan`: names, shapes, cases and tolerances.

use super::complex::{Complex, Field};
use super::packing::{OwnedMarks, Packing};
use super::{cpu, cuda, law, reference};
use crate::op::{
    Cost, Metric, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec, Tensors, Tolerance, Values,
};
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result, Shape};
use std::fmt;
use std::str::FromStr;

/// The entry's name.
pub const NAME: &str = "linear_scan";
/// The name of the same scan over complex numbers.
pub const COMPLEX_NAME: &str = "linear_scan_complex";

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

    /// A gate; a complex one has an angle of its own.
    fn draw(self, rng: &mut Rng, to: &mut Vec<f64>, complex: bool) {
        let radius = self.radius(rng);
        let angle = if complex { rng.range(-std::f64::consts::PI, std::f64::consts::PI) } else { 0.0 };
        to.push(radius * angle.cos());
        if complex {
            to.push(radius * angle.sin());
        }
    }
    fn radius(self, rng: &mut Rng) -> f64 {
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

/// The problem `h_t = a_t h_{t-1} + x_t` on tensors `[B, D, T]` of any strides. Sequences are stored as f32, bf16, f16 or
/// c64; states, and everything in between, are f32 (c64 where the sequences are).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinearScan {
    batch: usize,
    channels: usize,
    steps: usize,
    initial_state: bool,
    reverse: bool,
    gates: Gates,
    dtype: Dtype,
    packing: Packing,
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
        Ok(Self {
            batch,
            channels,
            steps,
            initial_state: false,
            reverse: false,
            gates: Gates::default(),
            dtype: Dtype::F32,
            packing: Packing::Whole,
        })
    }
    /// The element type of the sequences: f32, bf16, f16, or c64.
    ///
    /// # Errors
    /// Any other.
    pub fn with_dtype(mut self, dtype: Dtype) -> Result<Self> {
        if !matches!(dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16 | Dtype::C64) {
            return Err(Error::dtype(format!("{NAME}: dtype {dtype} is not one of f32, bf16, f16, c64")));
        }
        self.dtype = dtype;
        Ok(self)
    }
    /// Whether rows hold one sequence each, are cut by a mask, or hold several end to end.
    ///
    /// # Errors
    /// `cu_seqlens` with a batch other than 1, without a sequence, or with times that i32 cannot count.
    pub fn with_packing(mut self, packing: Packing) -> Result<Self> {
        self.packing = packing.validate(self.name(), self.batch, self.steps)?;
        Ok(self)
    }
    /// Whether an initial state h0 `[B, D]` (`[S, D]` for S sequences end to end) is given, and its gradient wanted;
    /// otherwise it is zero.
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

    /// The element type of the sequences.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
    /// Whether states are complex.
    pub fn is_complex(&self) -> bool {
        self.dtype == Dtype::C64
    }
    /// How sequences lie along T.
    pub fn packing(&self) -> Packing {
        self.packing
    }
    /// The entry that the problem belongs to.
    pub(super) fn name(&self) -> &'static str {
        if self.is_complex() { COMPLEX_NAME } else { NAME }
    }

    fn sequence(&self, name: &'static str, role: Role) -> TensorSpec {
        TensorSpec::new(name, "[B, D, T]", [self.batch, self.channels, self.steps], self.dtype, role).any_strides()
    }
    fn state(&self, name: &'static str) -> TensorSpec {
        let dtype = if self.is_complex() { Dtype::C64 } else { Dtype::F32 };
        let axes = if self.packing.letter() == "S" { "[S, D]" } else { "[B, D]" };
        TensorSpec::new(name, axes, [self.packing.states(self.batch), self.channels], dtype, Role::State).any_strides()
    }

    fn law<F: Field>(&self, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
        let take = |spec: TensorSpec| law::take::<F>(self.name(), inputs, &spec);
        let owned = OwnedMarks::read(self.packing, inputs)?;
        let marks = owned.marks(self.name(), self.packing, self.batch, self.steps)?;
        let a = take(self.sequence("a", Role::Input))?;
        let x = take(self.sequence("x", Role::Input))?;
        let h0 = if self.initial_state { Some(take(self.state("h0"))?) } else { None };
        let (h, h_last) = reference::forward(self, &marks, &a, &x, h0.as_deref());
        let h_spec = self.sequence("h", Role::Output);
        match pass {
            Pass::Forward => [law::give(h_spec, &h), law::give(self.state("h_last"), &h_last)].into_iter().collect(),
            _ => {
                let grad_h = take(h_spec.gradient())?;
                let grad_h_last = take(self.state("h_last").gradient())?;
                let g = reference::backward(self, &marks, &a, &h, h0.as_deref(), &grad_h, &grad_h_last);
                let gradients = [
                    Some((self.sequence("a", Role::Input), &g.a)),
                    Some((self.sequence("x", Role::Input), &g.x)),
                    self.initial_state.then(|| (self.state("h0"), &g.h0)),
                ];
                gradients.into_iter().flatten().map(|(spec, data)| law::give(spec.gradient(), data)).collect()
            }
        }
    }
}

impl Problem for LinearScan {
    fn entry(&self) -> &'static str {
        self.name()
    }

    fn signature(&self, pass: Pass) -> Result<Signature> {
        let (a, x) = (self.sequence("a", Role::Input), self.sequence("x", Role::Input));
        let (h, h_last) = (self.sequence("h", Role::Output), self.state("h_last"));
        let h0 = self.initial_state.then(|| self.state("h0"));
        let marks = self.packing.tensor(self.batch, self.steps);
        match pass {
            Pass::Forward => Ok(Signature {
                inputs: [Some(a), Some(x), h0, marks].into_iter().flatten().collect(),
                outputs: vec![h, h_last],
            }),
            Pass::Backward => {
                let gradient = |t: &TensorSpec| t.gradient().any_strides();
                let (grad_h, grad_h_last) = (gradient(&h), gradient(&h_last));
                let outputs = [Some(&a), Some(&x), h0.as_ref()].into_iter().flatten().map(gradient).collect();
                // x is not among the inputs: no gradient depends on it but through h.
                let inputs = [Some(a), h0, marks, Some(h), Some(grad_h), Some(grad_h_last)];
                Ok(Signature { inputs: inputs.into_iter().flatten().collect(), outputs })
            }
            _ => {
                Err(Error::config(format!("{} has no {} pass; it has forward and backward", self.name(), pass.name())))
            }
        }
    }

    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        match device {
            Device::Cpu => Ok(Box::new(cpu::Cpu::plan(*self, options)?)),
            Device::Cuda(d) => cuda::plan(*self, d, options),
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
            let count = t.shape.elements();
            let data = match t.name.as_ref() {
                "reset" | "cu_seqlens" => self.packing.sample(self.batch, self.steps, &mut rng),
                "a" => {
                    let mut data = Vec::new();
                    (0..count).for_each(|_| self.gates.draw(&mut rng, &mut data, self.is_complex()));
                    data
                }
                _ => (0..count * law::width(t.dtype)).map(|_| rng.normal()).collect(),
            };
            tensors.insert(t.name.clone(), Values::new(law::shape(t), data)?.rounded(t.dtype));
        }
        Ok(tensors)
    }

    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature(pass)?;
        match (self.is_complex(), f32_arithmetic) {
            (false, false) => self.law::<f64>(pass, inputs),
            (false, true) => self.law::<f32>(pass, inputs),
            (true, false) => self.law::<Complex<f64>>(pass, inputs),
            (true, true) => self.law::<Complex<f32>>(pass, inputs),
        }
    }

    fn tolerance(&self, pass: Pass, output: &str) -> Option<Tolerance> {
        // At most 8 times what f32 costs the law (3.5e-7 for h and grad_x, 4.2e-7, 5.1e-7 and 6.9e-7 for the others) with
        // gates in [0.99, 1), where every state sums the roundings of a hundred steps. A complex step rounds twice as often.
        let (value, reason) = match (pass, output) {
            (Pass::Forward, "h") => (2.5e-6, "each step rounds, and a state remembers the roundings of earlier ones"),
            (Pass::Forward, _) => (2.5e-6, "that of h, of one state a row, which may be small by chance"),
            (Pass::Backward, "grad_x") => (2.5e-6, "lambda is a scan like h"),
            (Pass::Backward, "grad_a") => (4e-6, "the product of lambda and a state, each with its own error"),
            (Pass::Backward, _) if self.is_complex() => (3.8e-6, "that of lambda, of one value a row"),
            (Pass::Backward, _) => (5e-6, "that of lambda, of one value a row, which may be small by chance"),
            _ => return None,
        };
        // Storage rounds each element by 2^-9 (bf16) or 2^-12 (f16) at the most; the gradient of a gate has the rounding
        // of a stored state and its own.
        let half = match (self.dtype, output) {
            (_, "h_last" | "grad_h0") => None,
            (Dtype::Bf16, "grad_a") => Some(4e-3),
            (Dtype::Bf16, _) => Some(2.5e-3),
            (Dtype::F16, "grad_a") => Some(5e-4),
            (Dtype::F16, _) => Some(3e-4),
            _ => None,
        };
        Some(match half {
            Some(value) => Tolerance { metric: Metric::Relative, value, reason: "each stored element is rounded" },
            None => Tolerance { metric: Metric::Relative, value, reason },
        })
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
        // A complex product and sum are four times a real one.
        let (flops, state) = if self.is_complex() { (4 * flops, 8) } else { (flops, 4) };
        let own = (self.packing.states(self.batch) * self.channels) as u64;
        let marks = self.packing.tensor(self.batch, self.steps).map_or(0, |t| t.bytes() as u64);
        Cost {
            bytes: self.dtype.size() as u64 * rows * sequences * steps + state * own * states + marks,
            flops: flops * rows * steps,
            special: 0,
            serial_steps: steps,
        }
    }
}
