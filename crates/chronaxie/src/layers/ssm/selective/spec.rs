//! `selective_scan`: names, shapes and tolerances.

use super::super::complex::Complex;
use super::super::law;
use super::super::packing::{OwnedMarks, Packing};
use super::{cpu, cuda, reference};
use crate::op::{
    Cost, Metric, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec, Tensors, Tolerance, Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result, Shape};
use std::fmt;
use std::str::FromStr;

/// The entry's name.
pub const NAME: &str = "selective_scan";
/// The most states a channel has.
pub const MAX_STATES: usize = 256;
/// Steps between saved states; tiles of the CPU hold as many, at the least.
pub(super) const CHUNK: usize = 64;

/// How a continuous state becomes one of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Discretisation {
    /// `h_t = e^{delta A} h_{t-1} + delta B u`: Mamba's.
    #[default]
    Exp,
    /// `h_t = e^{delta A} h_{t-1} + (e^{delta A} - 1) / A B u`: the input is held for a step.
    Zoh,
    /// `h_t = (1 + delta A / 2) / (1 - delta A / 2) h_{t-1} + delta / (1 - delta A / 2) B u`: trapezoids.
    Bilinear,
}

impl Discretisation {
    /// Every rule.
    pub const ALL: [Self; 3] = [Self::Exp, Self::Zoh, Self::Bilinear];
    /// `exp`, `zoh` or `bilinear`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exp => "exp",
            Self::Zoh => "zoh",
            Self::Bilinear => "bilinear",
        }
    }
}
impl fmt::Display for Discretisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
impl FromStr for Discretisation {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|d| d.name() == s)
            .ok_or_else(|| Error::config(format!("{NAME}: discretisation `{s}` is not one of exp, zoh, bilinear")))
    }
}

/// How B or C comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Weights {
    /// `[D, N]`, the same at all times.
    Constant,
    /// `[B, G, N, T]`: one at each time for each of G groups of neighbouring channels.
    Varying(usize),
}

/// The problem `h_t = a(delta_t A) h_{t-1} + e(delta_t A) B_t u_t`, `y_t = kappa Re(C_t h_t) + D u_t`, `out = y silu(z)`.
///
/// Sequences are stored as f32, bf16 or f16 with any strides, `[B, D, T]`; states are f32, or c64 where A is complex, and
/// then kappa is 2 (each stands for itself and its conjugate), else 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SelectiveScan {
    batch: usize,
    channels: usize,
    steps: usize,
    states: usize,
    dtype: Dtype,
    complex: bool,
    rule: Discretisation,
    b: Weights,
    c: Weights,
    skip: bool,
    gate: bool,
    delta_bias: bool,
    softplus: bool,
    initial_state: bool,
    packing: Packing,
}

impl SelectiveScan {
    /// `batch` (B) times `channels` (D) rows of `steps` (T), with `states` (N, 1 to 256) states a channel; B and C vary in
    /// one group, and nothing optional is given.
    ///
    /// # Errors
    /// A number of states out of range, or tensors that cannot be addressed.
    pub fn new(batch: usize, channels: usize, steps: usize, states: usize) -> Result<Self> {
        if !(1..=MAX_STATES).contains(&states) {
            return Err(Error::shape(format!("{NAME}: N = {states} is not within 1 to {MAX_STATES}")));
        }
        let all = Shape::from([batch.max(1), channels.max(1), steps.max(1), states]).checked_elements();
        if !all.is_ok_and(|n| n <= isize::MAX as usize / 64) {
            let shape = Shape::from([batch, channels, steps, states]);
            return Err(Error::shape(format!("{NAME}: [B, D, T, N] = {shape} has more bytes than can be addressed")));
        }
        Ok(Self {
            batch,
            channels,
            steps,
            states,
            dtype: Dtype::F32,
            complex: false,
            rule: Discretisation::Exp,
            b: Weights::Varying(1),
            c: Weights::Varying(1),
            skip: false,
            gate: false,
            delta_bias: false,
            softplus: false,
            initial_state: false,
            packing: Packing::Whole,
        })
    }
    /// The element type of u, delta, z, out, and of B and C where they vary and are real: f32, bf16 or f16.
    ///
    /// # Errors
    /// Any other.
    pub fn with_dtype(mut self, dtype: Dtype) -> Result<Self> {
        if !matches!(dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16) {
            return Err(Error::dtype(format!("{NAME}: dtype {dtype} is not one of f32, bf16, f16")));
        }
        self.dtype = dtype;
        Ok(self)
    }
    /// Whether A, B, C and the states are complex.
    #[must_use]
    pub fn with_complex(mut self, complex: bool) -> Self {
        self.complex = complex;
        self
    }
    /// The rule of discretisation.
    #[must_use]
    pub fn with_discretisation(mut self, rule: Discretisation) -> Self {
        self.rule = rule;
        self
    }
    /// How B and C come.
    ///
    /// # Errors
    /// Groups that do not divide the channels, or that differ between B and C.
    pub fn with_weights(mut self, b: Weights, c: Weights) -> Result<Self> {
        for (name, w) in [("B", b), ("C", c)] {
            if let Weights::Varying(groups) = w
                && (groups == 0 || !self.channels.is_multiple_of(groups))
            {
                let d = self.channels;
                return Err(Error::shape(format!(
                    "{NAME}: {name} has G = {groups} groups, which do not divide D = {d}"
                )));
            }
        }
        if let (Weights::Varying(g), Weights::Varying(k)) = (b, c)
            && g != k
        {
            return Err(Error::shape(format!("{NAME}: B has G = {g} groups and C has {k}; they must be equal")));
        }
        (self.b, self.c) = (b, c);
        Ok(self)
    }
    /// Whether `D` `[D]` is given: `D u` is added to the output.
    #[must_use]
    pub fn with_skip(mut self, given: bool) -> Self {
        self.skip = given;
        self
    }
    /// Whether z is given: the output is multiplied with silu(z).
    #[must_use]
    pub fn with_gate(mut self, given: bool) -> Self {
        self.gate = given;
        self
    }
    /// Whether `delta_bias` `[D]` is given and added to delta.
    #[must_use]
    pub fn with_delta_bias(mut self, given: bool) -> Self {
        self.delta_bias = given;
        self
    }
    /// Whether delta (with its bias) goes through softplus.
    #[must_use]
    pub fn with_softplus(mut self, softplus: bool) -> Self {
        self.softplus = softplus;
        self
    }
    /// Whether h0 `[B, D, N]` (`[S, D, N]` for S sequences end to end) is given, and its gradient wanted.
    #[must_use]
    pub fn with_initial_state(mut self, given: bool) -> Self {
        self.initial_state = given;
        self
    }
    /// How sequences lie along T.
    ///
    /// # Errors
    /// As [`LinearScan::with_packing`](super::super::LinearScan::with_packing).
    pub fn with_packing(mut self, packing: Packing) -> Result<Self> {
        self.packing = packing.validate(NAME, self.batch, self.steps)?;
        Ok(self)
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
    /// N.
    pub fn states(&self) -> usize {
        self.states
    }
    /// The element type of the sequences.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
    /// Whether states are complex.
    pub fn is_complex(&self) -> bool {
        self.complex
    }
    /// The rule of discretisation.
    pub fn discretisation(&self) -> Discretisation {
        self.rule
    }
    /// How B comes.
    pub fn b(&self) -> Weights {
        self.b
    }
    /// How C comes.
    pub fn c(&self) -> Weights {
        self.c
    }
    /// Whether delta goes through softplus.
    pub fn has_softplus(&self) -> bool {
        self.softplus
    }
    /// How sequences lie along T.
    pub fn packing(&self) -> Packing {
        self.packing
    }
    /// The factor of the real part of `C h`.
    pub fn kappa(&self) -> f64 {
        if self.complex { 2.0 } else { 1.0 }
    }

    fn state_dtype(&self) -> Dtype {
        if self.complex { Dtype::C64 } else { Dtype::F32 }
    }
    fn sequence(&self, name: &'static str, role: Role) -> TensorSpec {
        TensorSpec::new(name, "[B, D, T]", [self.batch, self.channels, self.steps], self.dtype, role).any_strides()
    }
    fn vector(&self, name: &'static str, given: bool) -> Option<TensorSpec> {
        given.then(|| TensorSpec::new(name, "[D]", [self.channels], Dtype::F32, Role::Parameter).any_strides())
    }
    fn weight(&self, name: &'static str, w: Weights) -> TensorSpec {
        match w {
            Weights::Constant => {
                let shape = [self.channels, self.states];
                TensorSpec::new(name, "[D, N]", shape, self.state_dtype(), Role::Parameter).any_strides()
            }
            Weights::Varying(groups) => {
                let dtype = if self.complex { Dtype::C64 } else { self.dtype };
                let shape = [self.batch, groups, self.states, self.steps];
                TensorSpec::new(name, "[B, G, N, T]", shape, dtype, Role::Input).any_strides()
            }
        }
    }
    fn state(&self, name: &'static str) -> TensorSpec {
        let axes = if self.packing.letter() == "S" { "[S, D, N]" } else { "[B, D, N]" };
        let shape = [self.packing.states(self.batch), self.channels, self.states];
        TensorSpec::new(name, axes, shape, self.state_dtype(), Role::State).any_strides()
    }
    /// The states before every 64th step.
    fn chunk_states(&self) -> TensorSpec {
        let shape = [self.batch, self.steps.div_ceil(CHUNK), self.channels, self.states];
        TensorSpec::new("chunk_states", "[B, ceil(T/64), D, N]", shape, self.state_dtype(), Role::Saved)
    }
    /// What goes in, in order; what is not given is left out.
    pub(super) fn inputs(&self) -> [Option<TensorSpec>; 9] {
        let a = TensorSpec::new("A", "[D, N]", [self.channels, self.states], self.state_dtype(), Role::Parameter);
        [
            Some(self.sequence("u", Role::Input)),
            Some(self.sequence("delta", Role::Input)),
            Some(a.any_strides()),
            Some(self.weight("B", self.b)),
            Some(self.weight("C", self.c)),
            self.vector("D", self.skip),
            self.gate.then(|| self.sequence("z", Role::Input)),
            self.vector("delta_bias", self.delta_bias),
            self.initial_state.then(|| self.state("h0")),
        ]
    }

    /// The law's inputs.
    pub(super) fn law_inputs<R: Real>(&self, inputs: &Tensors) -> Result<reference::Inputs<R>> {
        let [u, delta, a, b, c, d, z, bias, h0] = self.inputs();
        let real = |t: Option<TensorSpec>| t.map(|t| law::take::<R>(NAME, inputs, &t)).transpose();
        let complex = |t: Option<TensorSpec>| -> Result<Option<Vec<Complex<R>>>> {
            t.map(|t| match t.dtype {
                Dtype::C64 => law::take(NAME, inputs, &t),
                _ => Ok(law::take::<R>(NAME, inputs, &t)?.into_iter().map(Complex::real).collect()),
            })
            .transpose()
        };
        Ok(reference::Inputs {
            u: real(u)?.unwrap_or_default(),
            delta: real(delta)?.unwrap_or_default(),
            a: complex(a)?.unwrap_or_default(),
            b: complex(b)?.unwrap_or_default(),
            c: complex(c)?.unwrap_or_default(),
            d: real(d)?,
            z: real(z)?,
            delta_bias: real(bias)?,
            h0: complex(h0)?,
        })
    }

    fn law<R: Real>(&self, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
        let give = |spec: TensorSpec, data: &[Complex<R>]| match spec.dtype {
            Dtype::C64 => law::give(spec, data),
            _ => law::give(spec, &data.iter().map(|x| x.re).collect::<Vec<_>>()),
        };
        let owned = OwnedMarks::read(self.packing, inputs)?;
        let marks = owned.marks(NAME, self.packing, self.batch, self.steps)?;
        let i = self.law_inputs::<R>(inputs)?;
        let (out, last) = (self.sequence("out", Role::Output), self.state("last_state"));
        if pass == Pass::Forward {
            let (y, h) = reference::forward(self, &marks, &i);
            return [law::give(out, &y), give(last, &h)].into_iter().collect();
        }
        let grad_out = law::take::<R>(NAME, inputs, &out.gradient())?;
        let grad_last = match last.dtype {
            Dtype::C64 => law::take::<Complex<R>>(NAME, inputs, &last.gradient())?,
            _ => law::take::<R>(NAME, inputs, &last.gradient())?.into_iter().map(Complex::real).collect(),
        };
        let g = reference::backward(self, &marks, &i, &grad_out, &grad_last);
        let [u, delta, a, b, c, d, z, bias, h0] = self.inputs().map(|t| t.map(|t| t.gradient()));
        let real = |t: Option<TensorSpec>, v: Option<Vec<R>>| t.zip(v).map(|(t, v)| law::give(t, &v));
        let complex = |t: Option<TensorSpec>, v: Option<Vec<Complex<R>>>| t.zip(v).map(|(t, v)| give(t, &v));
        let all = [
            real(u, Some(g.u)),
            real(delta, Some(g.delta)),
            complex(a, Some(g.a)),
            complex(b, Some(g.b)),
            complex(c, Some(g.c)),
            real(d, g.d),
            real(z, g.z),
            real(bias, g.delta_bias),
            complex(h0, g.h0),
        ];
        all.into_iter().flatten().collect()
    }
}

impl Problem for SelectiveScan {
    fn entry(&self) -> &'static str {
        NAME
    }

    fn signature(&self, pass: Pass) -> Result<Signature> {
        let marks = self.packing.tensor(self.batch, self.steps);
        let (out, last) = (self.sequence("out", Role::Output), self.state("last_state"));
        let mut inputs: Vec<TensorSpec> = self.inputs().into_iter().flatten().chain(marks).collect();
        match pass {
            Pass::Forward => Ok(Signature { inputs, outputs: vec![out, last, self.chunk_states()] }),
            Pass::Backward => {
                let gradient = |t: &TensorSpec| t.gradient().any_strides();
                let outputs = self.inputs().iter().flatten().map(gradient).collect();
                inputs.extend([self.chunk_states(), gradient(&out), gradient(&last)]);
                Ok(Signature { inputs, outputs })
            }
            _ => Err(Error::config(format!("{NAME} has no {} pass; selective_state_update has one", pass.name()))),
        }
    }

    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        match device {
            Device::Cpu => Ok(Box::new(cpu::Cpu::plan(*self, options)?)),
            Device::Cuda(d) => Ok(Box::new(cuda::CudaPlan::new(*self, d, options)?)),
        }
    }

    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        let mut tensors = Tensors::new();
        for (i, t) in self.signature(pass)?.inputs.iter().enumerate() {
            if t.role == Role::Saved || (pass == Pass::Backward && t.role != Role::Gradient) {
                continue;
            }
            let mut rng = Rng::new(seed, i as u64 + 16 * pass as u64);
            let count = t.shape.elements();
            let data = match t.name.as_ref() {
                "reset" | "cu_seqlens" => self.packing.sample(self.batch, self.steps, &mut rng),
                // Rates of decay from slow to fast, and turns in both directions.
                "A" => {
                    let number = |rng: &mut Rng| match self.complex {
                        false => vec![-rng.range(0.05, 2.0)],
                        true => vec![-rng.range(0.05, 1.0), rng.range(-8.0, 8.0)],
                    };
                    (0..count).flat_map(|_| number(&mut rng)).collect()
                }
                "delta" if !self.softplus => (0..count).map(|_| rng.range(0.01, 0.5)).collect(),
                _ => (0..count * law::width(t.dtype)).map(|_| rng.normal()).collect(),
            };
            tensors.insert(t.name.clone(), Values::new(law::shape(t), data)?.rounded(t.dtype));
        }
        Ok(tensors)
    }

    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature(pass)?;
        if f32_arithmetic { self.law::<f32>(pass, inputs) } else { self.law::<f64>(pass, inputs) }
    }

    fn tolerance(&self, pass: Pass, output: &str) -> Option<Tolerance> {
        let spec = self.signature(pass).ok()?.outputs.into_iter().find(|t| t.name == output)?;
        if spec.role == Role::Saved {
            return None;
        }
        // Storage rounds each element by 2^-9 (bf16) or 2^-12 (f16) at the most.
        // For f32 at most 8 times what it costs the law: 2.1e-7 for states and outputs, 1.9e-7 to 2.3e-7 for the gradients
        // of u, B, C and z, 4.2e-7 to 1.4e-6 for those that sum over time or cancel.
        let (value, reason) = match (spec.dtype, pass, output) {
            (Dtype::Bf16, ..) => (2.5e-3, "each stored element is rounded"),
            (Dtype::F16, ..) => (3e-4, "each stored element is rounded"),
            (_, Pass::Forward, _) => (1.6e-6, "each step rounds, and a state remembers the roundings of earlier ones"),
            (_, _, "grad_u" | "grad_B" | "grad_C" | "grad_z") => {
                (1.4e-6, "a scan of gradients, or of states, times an input")
            }
            _ => (3e-6, "a product of a state and of a gradient, each a scan with its own roundings, summed over time"),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }

    fn cost(&self, pass: Pass) -> Cost {
        let Ok(signature) = self.signature(pass) else { return Cost::default() };
        let bytes: usize = signature.inputs.iter().chain(&signature.outputs).map(TensorSpec::bytes).sum();
        let steps = (self.batch * self.channels * self.steps) as u64;
        // A state's step: its gate, its input, its share of y; and backward that again with five products.
        let (flops, exponentials) = if pass == Pass::Forward { (7, 1) } else { (20, 1) };
        let wide = if self.complex { 4 } else { 1 };
        Cost {
            bytes: bytes as u64,
            flops: wide * flops * steps * self.states as u64,
            special: steps * (exponentials * self.states as u64 + u64::from(self.softplus) + u64::from(self.gate)),
            serial_steps: self.steps as u64,
        }
    }
}
