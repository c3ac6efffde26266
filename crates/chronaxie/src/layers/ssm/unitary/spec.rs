//! `adaptive_unitary`: names, shapes and tolerances.

use super::super::adaptive::AdaptiveScan;
use super::super::adaptive::reference as scan;
use super::super::complex::Complex;
use super::super::law;
use super::super::packing::{OwnedMarks, Packing};
use super::{plan, reference};
use crate::layers::dense::{Channels, Dense};
use crate::op::{
    Cost, Metric, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec, Tensors, Tolerance, Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result};

/// The entry's name.
pub const NAME: &str = "adaptive_unitary";
/// Steps of a stretch are a multiple of this: tiles of the scan begin with it.
pub(super) const WHOLE: usize = 256;
/// Angles of a stretch at the most: 512 MiB of them.
const MOST_ANGLES: usize = 1 << 27;

/// The problem `theta_t = W u_t + bias`, `h_t = e^{i theta_t} h_{t-1} + delta_t B v_t`, `y_t = Re(C h_t) + D v_t`,
/// `out = y silu(z)`, where v is u or silu(u).
///
/// u, delta, z and out are f32 `[B, D, T]`, W f32 `[D, N, D]`, bias f32 `[D, N]`, B and C c64 `[D, N]`. u, W, bias and the
/// gradients of parameters must be contiguous; the rest may have any strides (a weight that all channels share has a stride
/// of 0). Angles are never a tensor of the caller's: a stretch of time after the other lies in scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdaptiveUnitary {
    batch: usize,
    channels: usize,
    states: usize,
    steps: usize,
    bias: bool,
    silu: bool,
    skip: bool,
    gate: bool,
    initial_state: bool,
    packing: Packing,
    span: Option<usize>,
}

impl AdaptiveUnitary {
    /// `batch` (B) times `channels` (D) rows of `steps` (T), with `states` (N, 1 to 256) states a channel and a bias; nothing
    /// else that is optional is given.
    ///
    /// # Errors
    /// A number of states out of range, or tensors that cannot be addressed.
    pub fn new(batch: usize, channels: usize, states: usize, steps: usize) -> Result<Self> {
        let renamed = |e: Error| e.context(NAME);
        AdaptiveScan::new(batch, channels, states, steps).map_err(renamed)?;
        let all = Channels::along(channels.saturating_mul(states));
        Dense::new(batch, steps, Channels::along(channels), all).map_err(renamed)?;
        Ok(Self {
            batch,
            channels,
            states,
            steps,
            bias: true,
            silu: false,
            skip: false,
            gate: false,
            initial_state: false,
            packing: Packing::Whole,
            span: None,
        })
    }
    /// Whether the bias is given.
    #[must_use]
    pub fn with_bias(mut self, given: bool) -> Self {
        self.bias = given;
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
    /// How sequences lie along T. All angles of packed sequences and of those with resets lie in scratch at once.
    ///
    /// # Errors
    /// As [`LinearScan::with_packing`](super::super::LinearScan::with_packing).
    pub fn with_packing(mut self, packing: Packing) -> Result<Self> {
        self.packing = packing.validate(NAME, self.batch, self.steps)?;
        Ok(self)
    }
    /// Steps whose angles lie in scratch at a time, a multiple of 256, instead of as many as 512 MiB hold.
    ///
    /// # Errors
    /// Any other number.
    pub fn with_span(mut self, steps: usize) -> Result<Self> {
        if steps == 0 || !steps.is_multiple_of(WHOLE) {
            return Err(Error::config(format!("{NAME}: span = {steps} is not a multiple of {WHOLE} steps")));
        }
        self.span = Some(steps);
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
    /// Whether h0 is given.
    pub fn has_initial_state(&self) -> bool {
        self.initial_state
    }
    /// Whether the bias is given.
    pub(super) fn has_bias(&self) -> bool {
        self.bias
    }
    /// How sequences lie along T.
    pub fn packing(&self) -> Packing {
        self.packing
    }

    /// Stretches of time, from and to; there is one at least.
    pub(super) fn stretches(&self) -> Vec<(usize, usize)> {
        let step = (self.batch * self.channels * self.states).max(1);
        let fits = (MOST_ANGLES / step / WHOLE * WHOLE).max(WHOLE);
        let span = if self.packing == Packing::Whole { self.span.unwrap_or(fits) } else { self.steps.max(1) };
        let begins = (0..self.steps.max(1)).step_by(span);
        begins.map(|from| (from, self.steps.min(from.saturating_add(span)))).collect()
    }
    /// The map to the angles of some steps.
    pub(super) fn map(&self, steps: usize) -> Result<Dense> {
        let to = Channels::along(self.channels * self.states);
        Ok(Dense::new(self.batch, steps, Channels::along(self.channels), to)?.with_bias(self.bias))
    }
    /// The scan over some steps, from an initial state or from zero.
    pub(super) fn scan(&self, steps: usize, initial_state: bool) -> Result<AdaptiveScan> {
        AdaptiveScan::new(self.batch, self.channels, self.states, steps)?
            .with_silu(self.silu)
            .with_skip(self.skip)
            .with_gate(self.gate)
            .with_initial_state(initial_state)
            .with_packing(self.packing)
    }
    fn whole(&self) -> Result<AdaptiveScan> {
        self.scan(self.steps, self.initial_state)
    }

    /// u, W and the bias.
    fn own(&self) -> Vec<TensorSpec> {
        let (d, n) = (self.channels, self.states);
        let u = TensorSpec::new("u", "[B, D, T]", [self.batch, d, self.steps], Dtype::F32, Role::Input);
        let weight = TensorSpec::new("W", "[D, N, D]", [d, n, d], Dtype::F32, Role::Parameter);
        let bias = TensorSpec::new("bias", "[D, N]", [d, n], Dtype::F32, Role::Parameter);
        [Some(u), Some(weight), self.bias.then_some(bias)].into_iter().flatten().collect()
    }

    fn law<R: Real>(&self, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
        let owned = OwnedMarks::read(self.packing, inputs)?;
        let marks = owned.marks(NAME, self.packing, self.batch, self.steps)?;
        let whole = self.whole()?;
        let [_, _, _, delta, b, c, d, z, h0] = whole.inputs();
        let real = |t: Option<TensorSpec>| t.map(|t| law::take::<R>(NAME, inputs, &t)).transpose();
        let complex = |t: Option<TensorSpec>| t.map(|t| law::take::<Complex<R>>(NAME, inputs, &t)).transpose();
        let own = self.own();
        let i = reference::Inputs {
            weight: law::take(NAME, inputs, &own[1])?,
            bias: real(own.get(2).cloned())?,
            scan: scan::Inputs {
                theta: Vec::new(),
                rho: None,
                u: law::take(NAME, inputs, &own[0])?,
                delta: real(delta)?.unwrap_or_default(),
                b: complex(b)?.unwrap_or_default(),
                c: complex(c)?.unwrap_or_default(),
                d: real(d)?,
                z: real(z)?,
                h0: complex(h0)?,
            },
        };
        let outputs = whole.signature(Pass::Forward)?.outputs;
        let (out, last) = (outputs[0].clone(), outputs[1].clone());
        if pass == Pass::Forward {
            let (y, h) = reference::forward(self, &marks, &i)?;
            return [law::give(out, &y), law::give(last, &h)].into_iter().collect();
        }
        let grad_out = law::take::<R>(NAME, inputs, &out.gradient())?;
        let grad_last = law::take::<Complex<R>>(NAME, inputs, &last.gradient())?;
        let g = reference::backward(self, &marks, &i, &grad_out, &grad_last)?;
        let [_, _, _, delta, b, c, d, z, h0] = whole.inputs().map(|t| t.map(|t| t.gradient()));
        let real = |t: Option<TensorSpec>, v: Option<Vec<R>>| t.zip(v).map(|(t, v)| law::give(t, &v));
        let complex = |t: Option<TensorSpec>, v: Option<Vec<Complex<R>>>| t.zip(v).map(|(t, v)| law::give(t, &v));
        let all = [
            real(Some(own[0].gradient()), Some(g.scan.u)),
            real(Some(own[1].gradient()), Some(g.weight)),
            real(own.get(2).map(TensorSpec::gradient), g.bias),
            real(delta, Some(g.scan.delta)),
            complex(b, Some(g.scan.b)),
            complex(c, Some(g.scan.c)),
            real(d, g.scan.d),
            real(z, g.scan.z),
            complex(h0, g.scan.h0),
        ];
        all.into_iter().flatten().collect()
    }
}

impl Problem for AdaptiveUnitary {
    fn entry(&self) -> &'static str {
        NAME
    }

    fn signature(&self, pass: Pass) -> Result<Signature> {
        let of_scan = self
            .whole()?
            .signature(pass)
            .map_err(|_| Error::config(format!("{NAME} has no {} pass; it has forward and backward", pass.name())))?;
        // theta and u come first in the scan's.
        let mut own = self.own();
        let inputs = own.iter().cloned().chain(of_scan.inputs.into_iter().skip(2)).collect();
        if pass == Pass::Forward {
            return Ok(Signature { inputs, outputs: of_scan.outputs });
        }
        let parameter = |t: &TensorSpec| matches!(t.name.as_ref(), "grad_B" | "grad_C" | "grad_D");
        let rest =
            of_scan.outputs.into_iter().skip(2).map(|t| TensorSpec { strided: t.strided && !parameter(&t), ..t });
        let outputs = own.drain(..).map(|t| t.gradient()).chain(rest).collect();
        Ok(Signature { inputs, outputs })
    }

    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        Ok(Box::new(plan::UnitaryPlan::new(*self, device, options)?))
    }

    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        let mut tensors = Tensors::new();
        for (i, t) in self.signature(pass)?.inputs.iter().enumerate() {
            if t.role == Role::Saved || (pass == Pass::Backward && t.role != Role::Gradient) {
                continue;
            }
            let mut rng = Rng::new(seed, i as u64 + 16 * pass as u64);
            let count = t.shape.elements();
            let scale = if t.name == "W" { 1.0 / (self.channels.max(1) as f64).sqrt() } else { 1.0 };
            let data = match t.name.as_ref() {
                "reset" | "cu_seqlens" => self.packing.sample(self.batch, self.steps, &mut rng),
                "delta" => (0..count).map(|_| rng.range(0.05, 1.0)).collect(),
                _ => (0..count * law::width(t.dtype)).map(|_| scale * rng.normal()).collect(),
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
        if output == "grad_D" {
            return Some(Tolerance {
                metric: Metric::Relative,
                value: 2e-6,
                reason: "a sum over all steps, whose terms may cancel",
            });
        }
        // An angle's rounding, some 1e-7 of a radian in any f32, stays in the phase: their sum walks at random, and the law in
        // f32 is off by 2e-6 to 4e-6 after a thousand steps.
        let walk = (self.steps.max(16) as f64 / 256.0).sqrt();
        let (value, reason) = match pass {
            Pass::Forward => {
                (4e-6, "the rounding of each angle stays in the phase, and walks at random over the steps")
            }
            _ => (8e-6, "a product of a state and of a gradient, each with a phase that has walked"),
        };
        Some(Tolerance { metric: Metric::Relative, value: value * walk, reason })
    }

    fn cost(&self, pass: Pass) -> Cost {
        let (Ok(signature), Ok(scan), Ok(map)) = (self.signature(pass), self.whole(), self.map(self.steps)) else {
            return Cost::default();
        };
        let bytes: usize = signature.inputs.iter().chain(&signature.outputs).map(TensorSpec::bytes).sum();
        let scan = scan.cost(pass);
        // Backward: both gradients, and the angles again.
        let again = if pass == Pass::Backward { map.cost(Pass::Forward).flops } else { 0 };
        let flops = scan.flops.saturating_add(map.cost(pass).flops).saturating_add(again);
        Cost { bytes: bytes as u64, flops, ..scan }
    }
}
