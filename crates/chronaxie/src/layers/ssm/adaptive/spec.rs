//! `adaptive_theta`: names, shapes and tolerances.

use super::super::complex::Complex;
use super::super::lanes::STEPS;
use super::super::law;
use super::super::packing::{OwnedMarks, Packing};
use super::super::selective::spec::MAX_STATES;
use super::{cpu, cuda, reference};
use crate::op::{
    Cost, Metric, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec, Tensors, Tolerance, Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result, Shape};

/// The entry's name.
pub const NAME: &str = "adaptive_theta";

/// The problem `h_t = e^{rho_t + i theta_t} h_{t-1} + delta_t B v_t`, `y_t = Re(C h_t) + D v_t`, `out = y silu(z)`, where v
/// is u or silu(u), and without rho every state keeps its absolute value but for what comes in.
///
/// theta and rho are f32 `[B, D, N, T]`; u, delta, z and out f32, bf16 or f16 `[B, D, T]`; B and C c64 `[D, N]`; all with
/// any strides (a weight that all channels share has a stride of 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdaptiveScan {
    batch: usize,
    channels: usize,
    states: usize,
    steps: usize,
    dtype: Dtype,
    decay: bool,
    silu: bool,
    skip: bool,
    gate: bool,
    initial_state: bool,
    packing: Packing,
}

impl AdaptiveScan {
    /// `batch` (B) times `channels` (D) rows of `steps` (T), with `states` (N, 1 to 256) states a channel; nothing
    /// optional is given.
    ///
    /// # Errors
    /// A number of states out of range, or tensors that cannot be addressed.
    pub fn new(batch: usize, channels: usize, states: usize, steps: usize) -> Result<Self> {
        if !(1..=MAX_STATES).contains(&states) {
            return Err(Error::shape(format!("{NAME}: N = {states} is not within 1 to {MAX_STATES}")));
        }
        let all = Shape::from([batch.max(1), channels.max(1), states, steps.max(1)]).checked_elements();
        if !all.is_ok_and(|n| n <= isize::MAX as usize / 64) {
            let shape = Shape::from([batch, channels, states, steps]);
            return Err(Error::shape(format!("{NAME}: [B, D, N, T] = {shape} has more bytes than can be addressed")));
        }
        Ok(Self {
            batch,
            channels,
            states,
            steps,
            dtype: Dtype::F32,
            decay: false,
            silu: false,
            skip: false,
            gate: false,
            initial_state: false,
            packing: Packing::Whole,
        })
    }
    /// The element type of u, delta, z and out: f32, bf16 or f16. Angles are f32 always.
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
    /// Whether rho is given; otherwise it is 0.
    #[must_use]
    pub fn with_decay(mut self, given: bool) -> Self {
        self.decay = given;
        self
    }
    /// Whether v is silu(u); otherwise it is u.
    #[must_use]
    pub fn with_silu(mut self, silu: bool) -> Self {
        self.silu = silu;
        self
    }
    /// Whether `D` `[D]` is given.
    #[must_use]
    pub fn with_skip(mut self, given: bool) -> Self {
        self.skip = given;
        self
    }
    /// Whether z is given.
    #[must_use]
    pub fn with_gate(mut self, given: bool) -> Self {
        self.gate = given;
        self
    }
    /// Whether h0 is given, and its gradient wanted.
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
    /// N.
    pub fn states(&self) -> usize {
        self.states
    }
    /// T.
    pub fn steps(&self) -> usize {
        self.steps
    }
    /// The element type of u, delta, z and out.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
    /// Whether rho is given.
    pub fn has_decay(&self) -> bool {
        self.decay
    }
    /// Whether v is silu(u).
    pub fn has_silu(&self) -> bool {
        self.silu
    }
    /// How sequences lie along T.
    pub fn packing(&self) -> Packing {
        self.packing
    }

    fn angles(&self, name: &'static str) -> TensorSpec {
        let shape = [self.batch, self.channels, self.states, self.steps];
        TensorSpec::new(name, "[B, D, N, T]", shape, Dtype::F32, Role::Input).any_strides()
    }
    fn sequence(&self, name: &'static str, role: Role) -> TensorSpec {
        TensorSpec::new(name, "[B, D, T]", [self.batch, self.channels, self.steps], self.dtype, role).any_strides()
    }
    fn weight(&self, name: &'static str) -> TensorSpec {
        TensorSpec::new(name, "[D, N]", [self.channels, self.states], Dtype::C64, Role::Parameter).any_strides()
    }
    fn state(&self, name: &'static str) -> TensorSpec {
        let axes = if self.packing.letter() == "S" { "[S, D, N]" } else { "[B, D, N]" };
        let shape = [self.packing.states(self.batch), self.channels, self.states];
        TensorSpec::new(name, axes, shape, Dtype::C64, Role::State).any_strides()
    }
    /// Before every 128th step: the phase that the state has turned by since its sequence began, and the state turned back
    /// by it.
    fn saved(&self) -> [TensorSpec; 2] {
        let shape = [self.batch, self.steps.div_ceil(STEPS), self.channels, self.states];
        let spec = |name, dtype| TensorSpec::new(name, "[B, ceil(T/128), D, N]", shape, dtype, Role::Saved);
        [spec("chunk_states", Dtype::C64), spec("chunk_phases", Dtype::I32)]
    }
    /// What goes in, in order; what is not given is left out.
    pub(in super::super) fn inputs(&self) -> [Option<TensorSpec>; 9] {
        let skip = TensorSpec::new("D", "[D]", [self.channels], Dtype::F32, Role::Parameter).any_strides();
        [
            Some(self.angles("theta")),
            self.decay.then(|| self.angles("rho")),
            Some(self.sequence("u", Role::Input)),
            Some(self.sequence("delta", Role::Input)),
            Some(self.weight("B")),
            Some(self.weight("C")),
            self.skip.then_some(skip),
            self.gate.then(|| self.sequence("z", Role::Input)),
            self.initial_state.then(|| self.state("h0")),
        ]
    }

    /// The law's inputs.
    pub(super) fn law_inputs<R: Real>(&self, inputs: &Tensors) -> Result<reference::Inputs<R>> {
        let [theta, rho, u, delta, b, c, d, z, h0] = self.inputs();
        let real = |t: Option<TensorSpec>| t.map(|t| law::take::<R>(NAME, inputs, &t)).transpose();
        let complex = |t: Option<TensorSpec>| t.map(|t| law::take::<Complex<R>>(NAME, inputs, &t)).transpose();
        let rho = real(rho)?;
        if let Some(at) = rho.iter().flatten().position(|r| r.to_f64() > 0.0) {
            return Err(growing(rho.map_or(0.0, |rho| rho[at].to_f64())));
        }
        Ok(reference::Inputs {
            theta: real(theta)?.unwrap_or_default(),
            rho,
            u: real(u)?.unwrap_or_default(),
            delta: real(delta)?.unwrap_or_default(),
            b: complex(b)?.unwrap_or_default(),
            c: complex(c)?.unwrap_or_default(),
            d: real(d)?,
            z: real(z)?,
            h0: complex(h0)?,
        })
    }

    fn law<R: Real>(&self, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
        let owned = OwnedMarks::read(self.packing, inputs)?;
        let marks = owned.marks(NAME, self.packing, self.batch, self.steps)?;
        let i = self.law_inputs::<R>(inputs)?;
        let (out, last) = (self.sequence("out", Role::Output), self.state("last_state"));
        if pass == Pass::Forward {
            let (y, h) = reference::forward(self, &marks, &i);
            return [law::give(out, &y), law::give(last, &h)].into_iter().collect();
        }
        let grad_out = law::take::<R>(NAME, inputs, &out.gradient())?;
        let grad_last = law::take::<Complex<R>>(NAME, inputs, &last.gradient())?;
        let g = reference::backward(self, &marks, &i, &grad_out, &grad_last);
        let [theta, rho, u, delta, b, c, d, z, h0] = self.inputs().map(|t| t.map(|t| t.gradient()));
        let real = |t: Option<TensorSpec>, v: Option<Vec<R>>| t.zip(v).map(|(t, v)| law::give(t, &v));
        let complex = |t: Option<TensorSpec>, v: Option<Vec<Complex<R>>>| t.zip(v).map(|(t, v)| law::give(t, &v));
        let all = [
            real(theta, Some(g.theta)),
            real(rho, g.rho),
            real(u, Some(g.u)),
            real(delta, Some(g.delta)),
            complex(b, Some(g.b)),
            complex(c, Some(g.c)),
            real(d, g.d),
            real(z, g.z),
            complex(h0, g.h0),
        ];
        all.into_iter().flatten().collect()
    }
}

/// What a logarithm of a radius above 0 is answered with.
pub(super) fn growing(rho: f64) -> Error {
    Error::value(format!("{NAME}: rho holds {rho}, but a state must not grow: rho is at most 0"))
}

impl Problem for AdaptiveScan {
    fn entry(&self) -> &'static str {
        NAME
    }

    fn signature(&self, pass: Pass) -> Result<Signature> {
        let marks = self.packing.tensor(self.batch, self.steps);
        let (out, last) = (self.sequence("out", Role::Output), self.state("last_state"));
        let mut inputs: Vec<TensorSpec> = self.inputs().into_iter().flatten().chain(marks).collect();
        match pass {
            Pass::Forward => {
                let [states, phases] = self.saved();
                Ok(Signature { inputs, outputs: vec![out, last, states, phases] })
            }
            Pass::Backward => {
                let gradient = |t: &TensorSpec| t.gradient().any_strides();
                let outputs = self.inputs().iter().flatten().map(gradient).collect();
                inputs.extend(self.saved());
                inputs.extend([gradient(&out), gradient(&last)]);
                Ok(Signature { inputs, outputs })
            }
            _ => Err(Error::config(format!("{NAME} has no {} pass; it has forward and backward", pass.name()))),
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
                // From hardly any decay to the loss of half a state a step.
                "rho" => (0..count).map(|_| -rng.range(-12.0, -0.3).exp()).collect(),
                "delta" => (0..count).map(|_| rng.range(0.05, 1.0)).collect(),
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
        let (value, reason) = match (spec.dtype, pass) {
            (Dtype::Bf16, _) => (2.5e-3, "each stored element is rounded"),
            (Dtype::F16, _) => (3e-4, "each stored element is rounded"),
            (_, Pass::Forward) => (1e-6, "each step rounds an angle and an input; sums over time are compensated"),
            _ => (2e-6, "a product of a state and of a gradient, each with its own error"),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }

    fn cost(&self, pass: Pass) -> Cost {
        let Ok(signature) = self.signature(pass) else { return Cost::default() };
        let bytes: usize = signature.inputs.iter().chain(&signature.outputs).map(TensorSpec::bytes).sum();
        let steps = (self.batch * self.channels * self.steps * self.states) as u64;
        // A rotation, an input, a share of y; backward those again, two more rotations and four products.
        let flops = if pass == Pass::Forward { 14 } else { 50 };
        Cost {
            bytes: bytes as u64,
            flops: flops * steps,
            special: (2 + u64::from(self.decay)) * steps,
            serial_steps: self.steps as u64,
        }
    }
}
