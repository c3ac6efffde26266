//! `mlstm_step`: one token of each sequence, with the states in place: decoding.

use super::reference::{Cell, State, Tokens, recurrent};
use super::spec::{Gate, Gates, data_dtype, head_sizes, non_negative, parse_dtype};
use super::{cpu, cuda};
use crate::cuda::Specialisation;
use crate::op::{
    Case, CaseSet, Cost, Metric, Op, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec, Tensors, Tolerance,
    Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result, Shape};
use std::str::FromStr;
use std::sync::Arc;

/// The entry's name.
pub const NAME: &str = "mlstm_step";

/// The norm of each head's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HeadNorm {
    /// None.
    #[default]
    None,
    /// `h / sqrt(mean(h^2) + norm_eps)`.
    Rms,
    /// `(h - mean(h)) / sqrt(var(h) + norm_eps)`.
    Layer,
}

impl FromStr for HeadNorm {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "none" => Ok(Self::None),
            "rms" => Ok(Self::Rms),
            "layer" => Ok(Self::Layer),
            _ => Err(Error::config(format!("{NAME}: norm `{s}` is not one of none, rms, layer"))),
        }
    }
}

/// Sizes and options of a step.
///
/// Axes: B sequences, NH heads, K the size of queries and keys, V that of values, S states: B, or a table of them from which
/// each sequence names its own. Made with [`MlstmStep::new`], whose fields are then set, and checked by
/// [`MlstmStep::build`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct MlstmStep {
    /// How the input gate opens.
    pub gate: Gate,
    /// B.
    pub batch: usize,
    /// NH.
    pub heads: usize,
    /// K.
    pub dqk: usize,
    /// V.
    pub dv: usize,
    /// Of q, k, v, o and h: f32, f16 or bf16.
    pub dtype: Dtype,
    /// Of c: f32, f16 or bf16. n and m are f32.
    pub state_dtype: Dtype,
    /// Whether h is divided by the normaliser; always with the exponential gate.
    pub normalize: bool,
    /// Added to the normaliser.
    pub eps: f64,
    /// S, where states lie in a table: `slot` `[B]` names that of each sequence, or none by a negative number; then its h is
    /// 0. No two sequences may name the same.
    pub slots: Option<usize>,
    /// The norm of each head's output, with a weight `[NH, V]`.
    pub head_norm: HeadNorm,
    /// Added within the norm's root.
    pub norm_eps: f64,
    /// Whether the output is multiplied by `sigmoid(o)`, `[B, NH, V]`.
    pub output_gate: bool,
    /// The gates of samples.
    pub gates: Gates,
}

impl MlstmStep {
    /// f32, a state a sequence, neither norm nor output gate; normalised with the exponential gate and not with the sigmoid
    /// one.
    pub fn new(gate: Gate, [batch, heads, dqk, dv]: [usize; 4]) -> Self {
        Self {
            gate,
            batch,
            heads,
            dqk,
            dv,
            dtype: Dtype::F32,
            state_dtype: Dtype::F32,
            normalize: gate == Gate::Exponential,
            eps: 0.0,
            slots: None,
            head_norm: HeadNorm::None,
            norm_eps: 1e-6,
            output_gate: false,
            gates: Gates::default(),
        }
    }

    /// The same, if every size and option is in range.
    ///
    /// # Errors
    /// A sentence with the value that is not.
    pub fn build(self) -> Result<Self> {
        head_sizes(NAME, self.dqk, self.dv)?;
        data_dtype(NAME, self.dtype)?;
        if !matches!(self.state_dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
            let dtype = self.state_dtype;
            return Err(Error::dtype(format!("{NAME}: a state of {dtype} is not offered; f32, f16 and bf16 are")));
        }
        if self.gate == Gate::Exponential && !self.normalize {
            return Err(Error::config(format!(
                "{NAME}: normalize = false is not offered: without its normaliser the exponential gate has no bound"
            )));
        }
        non_negative(NAME, "eps", self.eps)?;
        non_negative(NAME, "norm_eps", self.norm_eps)?;
        let shape = Shape::from([self.batch.max(self.states()), self.heads, self.dqk, self.dv]);
        let bytes = shape.iter().try_fold(4usize, |n, &d| n.checked_mul(d.max(1)));
        if bytes.is_none_or(|n| n > isize::MAX as usize) || self.states() > i32::MAX as usize {
            return Err(Error::shape(format!("{NAME}: states {shape} have more bytes than can be addressed")));
        }
        Ok(self)
    }

    /// S.
    pub fn states(&self) -> usize {
        self.slots.unwrap_or(self.batch)
    }
    pub(super) fn cell(&self) -> Cell {
        let (dqk, dv, gate) = (self.dqk, self.dv, self.gate);
        Cell { dqk, dv, gate, normalize: self.normalize, normalizer_grad: true, eps: self.eps }
    }
    pub(super) fn has_gauge(&self) -> bool {
        self.gate == Gate::Exponential
    }

    fn token(&self, name: &'static str, axes: &'static str, width: usize, dtype: Dtype, role: Role) -> TensorSpec {
        let shape = [self.batch, self.heads, width];
        TensorSpec::new(name, axes, if width == 1 { &shape[..2] } else { &shape[..] }, dtype, role).any_strides()
    }
    /// What goes in, and what comes out: h and the states in place.
    pub fn signature_of(&self) -> Signature {
        let (s, nh, k, v, dtype) = (self.states(), self.heads, self.dqk, self.dv, self.dtype);
        let mut inputs = vec![
            self.token("q", "[B, NH, K]", k, dtype, Role::Input),
            self.token("k", "[B, NH, K]", k, dtype, Role::Input),
            self.token("v", "[B, NH, V]", v, dtype, Role::Input),
            self.token("i", "[B, NH]", 1, Dtype::F32, Role::Input),
            self.token("f", "[B, NH]", 1, Dtype::F32, Role::Input),
        ];
        if self.output_gate {
            inputs.push(self.token("o", "[B, NH, V]", v, dtype, Role::Input));
        }
        if self.head_norm != HeadNorm::None {
            inputs.push(TensorSpec::new("norm_weight", "[NH, V]", [nh, v], Dtype::F32, Role::Parameter));
        }
        if self.slots.is_some() {
            inputs.push(TensorSpec::new("slot", "[B]", [self.batch], Dtype::I32, Role::Input));
        }
        let mut outputs = vec![
            self.token("h", "[B, NH, V]", v, dtype, Role::Output),
            TensorSpec::new("c", "[S, NH, K, V]", [s, nh, k, v], self.state_dtype, Role::State),
        ];
        if self.normalize {
            outputs.push(TensorSpec::new("n", "[S, NH, K]", [s, nh, k], Dtype::F32, Role::State));
        }
        if self.has_gauge() {
            outputs.push(TensorSpec::new("m", "[S, NH]", [s, nh], Dtype::F32, Role::State));
        }
        Signature { inputs, outputs }
    }

    /// Refuses slots that are not there, or named twice; `taken` `[S]` is overwritten.
    pub(super) fn check_slots(&self, slots: &[i32], taken: &mut [u8]) -> Result<()> {
        taken.fill(0);
        for (b, &slot) in slots.iter().enumerate() {
            let Ok(slot) = usize::try_from(slot) else { continue };
            let Some(taken) = taken.get_mut(slot) else {
                let s = self.states();
                return Err(Error::value(format!("{NAME}: slot[{b}] = {slot} is not below S = {s}")));
            };
            if std::mem::replace(taken, 1) != 0 {
                return Err(Error::value(format!("{NAME}: slot[{b}] = {slot} was named by a sequence before it")));
            }
        }
        Ok(())
    }

    fn law<R: Real>(&self, inputs: &Tensors) -> Result<Tensors> {
        let (nh, k, v, cell) = (self.heads, self.dqk, self.dv, self.cell());
        let Signature { inputs: given, outputs } = self.signature_of();
        let take = |t: &TensorSpec| -> Result<Vec<R>> {
            let values = inputs.get(&t.name)?;
            if values.shape != t.shape {
                let (name, axes, shape) = (&t.name, t.axes, &t.shape);
                let got = values.shape;
                return Err(Error::shape(format!("{NAME}: {name}.shape = {got} does not match {axes} = {shape}")));
            }
            Ok(values.data.iter().map(|&x| R::from_f64(x)).collect())
        };
        let all = given.iter().map(&take).collect::<Result<Vec<_>>>()?;
        let find = |name: &str| given.iter().position(|t| t.name == name).map(|at| &all[at]);
        let mut states = outputs[1..].iter().map(&take).collect::<Result<Vec<_>>>()?;
        let mut h = vec![R::zero(); self.batch * nh * v];
        for b in 0..self.batch {
            let slot = find("slot").map_or(b as f64, |slots| slots[b].to_f64());
            if slot < 0.0 {
                continue;
            }
            for head in 0..nh {
                let (at, s) = (b * nh + head, slot as usize * nh + head);
                let token = Tokens {
                    q: &all[0][at * k..(at + 1) * k],
                    k: &all[1][at * k..(at + 1) * k],
                    v: &all[2][at * v..(at + 1) * v],
                    i: &all[3][at..at + 1],
                    f: &all[4][at..at + 1],
                };
                let mut state = State::zeros(&cell);
                state.c.copy_from_slice(&states[0][s * k * v..(s + 1) * k * v]);
                if self.normalize {
                    state.n.copy_from_slice(&states[1][s * k..(s + 1) * k]);
                }
                if self.has_gauge() {
                    state.m = states[2][s];
                }
                let mut out = recurrent::step(&cell, &mut state, &token);
                states[0][s * k * v..(s + 1) * k * v].copy_from_slice(&state.c);
                if self.normalize {
                    states[1][s * k..(s + 1) * k].copy_from_slice(&state.n);
                }
                if self.has_gauge() {
                    states[2][s] = state.m;
                }
                self.normed(&mut out, find("norm_weight").map(|w| &w[head * v..(head + 1) * v]));
                for (e, x) in out.iter_mut().enumerate() {
                    *x = find("o").map_or(*x, |o| *x * o[at * v + e].sigmoid());
                }
                h[at * v..(at + 1) * v].copy_from_slice(&out);
            }
        }
        let give = |t: &TensorSpec, data: &[R]| {
            let values = Values::new(t.shape, data.iter().map(|x| x.to_f64()).collect());
            values.map(|values| (t.name.to_string(), values))
        };
        std::iter::once(&h).chain(&states).zip(&outputs).map(|(data, t)| give(t, data)).collect()
    }
    fn normed<R: Real>(&self, h: &mut [R], weight: Option<&[R]>) {
        let Some(weight) = weight else { return };
        let mean = |x: &[R]| x.iter().fold(R::zero(), |sum, &x| sum + x) / R::from_f64(x.len() as f64);
        if self.head_norm == HeadNorm::Layer {
            let middle = mean(h);
            h.iter_mut().for_each(|x| *x = *x - middle);
        }
        let squares: Vec<R> = h.iter().map(|&x| x * x).collect();
        let size = (mean(&squares) + R::from_f64(self.norm_eps)).sqrt();
        h.iter_mut().zip(weight).for_each(|(x, &w)| *x = *x / size * w);
    }
}

impl Problem for MlstmStep {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        match pass {
            Pass::Step => Ok(self.signature_of()),
            _ => Err(Error::config(format!("{NAME} has no {} pass; mlstm_exp and mlstm_sig have", pass.name()))),
        }
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        Ok(match device {
            Device::Cpu => Box::new(cpu::StepCpu::plan(self, options)?),
            Device::Cuda(d) => Box::new(cuda::StepPlan::new(self, d, options)?),
        })
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        let signature = self.signature(pass)?;
        let mut tensors = Tensors::new();
        let states = signature.outputs.iter().filter(|t| t.role == Role::State);
        for (nth, t) in signature.inputs.iter().chain(states).enumerate() {
            let mut rng = Rng::new(seed, nth as u64 + 32 * pass as u64);
            let values = match &*t.name {
                "i" | "f" => Values::from_fn(t.shape, || self.gates.draw(t.name == "f", &mut rng)),
                "slot" => {
                    // Every other state of a shuffled table, and one sequence without any.
                    let mut all: Vec<usize> = (0..self.states()).collect();
                    rng.shuffle(&mut all);
                    let slot = |b: usize| if b == 1 { None } else { all.get(b) };
                    let slots = (0..self.batch).map(|b| slot(b).map_or(-1.0, |&s| s as f64)).collect();
                    Values { shape: t.shape, data: slots }
                }
                // As sums of some tokens have it, and a normaliser that seldom vanishes.
                "c" | "n" => Values::from_fn(t.shape, || 2.0 * rng.normal()),
                _ => Values::from_fn(t.shape, || rng.normal()),
            };
            tensors.insert(t.name.clone(), values.rounded(t.dtype));
        }
        Ok(tensors)
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature(pass)?;
        if f32_arithmetic { self.law::<f32>(inputs) } else { self.law::<f64>(inputs) }
    }
    fn tolerance(&self, _pass: Pass, output: &str) -> Option<Tolerance> {
        let dtype = match output {
            "c" => self.state_dtype,
            "h" => self.dtype,
            _ => Dtype::F32,
        };
        let (value, reason) = match dtype {
            _ if self.gates == Gates::Extreme => (1e-2, "weights of e^40 and e^-40 side by side"),
            Dtype::Bf16 => (4e-3, "rounded to 8 bits when it is stored"),
            Dtype::F16 => (5e-4, "rounded to 11 bits when it is stored"),
            _ if output == "h" => (2e-6, "two sums over K and a division by one of them, which may nearly cancel"),
            _ => (4e-7, "a state rounds twice a step, and its weights come of an exponential each"),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }
    fn cost(&self, _pass: Pass) -> Cost {
        let Signature { inputs, outputs } = self.signature_of();
        // States are read and written; of a table, those of the batch.
        let bytes = |t: &TensorSpec| match t.role {
            Role::State => (2 * t.bytes() / self.states().max(1) * self.batch.min(self.states())) as u64,
            _ => t.bytes() as u64,
        };
        let heads = (self.batch * self.heads) as u64;
        Cost {
            bytes: inputs.iter().chain(&outputs).map(bytes).sum(),
            flops: heads * 5 * (self.dqk * self.dv) as u64,
            special: 3 * heads,
            serial_steps: 1,
        }
    }
}

/// The entry `mlstm_step`.
#[derive(Debug)]
pub struct MlstmStepOp;

const COMPARED: &[&str] = &[
    "B1_NH8_K256_V512",
    "B64_NH8_K256_V512",
    "B256_NH8_K256_V512",
    "B1_NH8_K256_V512,state=bf16",
    "B64_NH8_K256_V512,state=bf16",
    "B256_NH8_K256_V512,state=bf16",
];
const CHECK: &[&str] = &[
    "B3_NH2_K32_V48,dtype=f32",
    "B1_NH1_K16_V16,dtype=f32,gate=sig",
    "B2_NH3_K16_V32,dtype=f32,gate=sig,normalize=true,eps=1e-6",
    "B2_NH2_K64_V64,dtype=bf16,state=bf16",
    "B2_NH2_K64_V64,dtype=f16,state=f16,gate=sig",
    "B5_NH2_K32_V16,dtype=f32,slots=9",
    "B4_NH2_K16_V80,dtype=f32,norm=rms,output_gate=true",
    "B4_NH2_K16_V80,dtype=bf16,norm=layer,output_gate=true,slots=6,state=bf16",
    "B1_NH1_K512_V16,dtype=f32",
    "B1_NH1_K16_V512,dtype=f32,norm=layer",
    "B3_NH2_K32_V32,dtype=f32,gates=extreme",
    "B40_NH2_K16_V32,dtype=f32,gates=reset",
    "B40_NH2_K16_V32,dtype=f32,gate=sig,gates=reset",
    "B0_NH2_K16_V16,dtype=f32",
    "B0_NH2_K16_V16,dtype=f32,slots=3",
];
const OPTIONS: &[&str] =
    &["gate", "dtype", "state", "normalize", "eps", "slots", "norm", "norm_eps", "output_gate", "gates"];

impl Op for MlstmStepOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "one mLSTM token of each sequence, states in place, with an optional head norm and output gate"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Step]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        Case::list(match set {
            CaseSet::Compared => COMPARED,
            CaseSet::Cpu => &COMPARED[..1],
            CaseSet::Check => CHECK,
        })
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["B", "NH", "K", "V"], OPTIONS)?;
        let mut sizes = [0; 4];
        for (size, axis) in sizes.iter_mut().zip(["B", "NH", "K", "V"]) {
            *size = case.size(axis)?;
        }
        let gate = case.option("gate").map_or(Ok(Gate::Exponential), str::parse)?;
        let mut p = MlstmStep::new(gate, sizes);
        p.dtype = parse_dtype(NAME, case.option("dtype").unwrap_or("bf16"))?;
        p.state_dtype = parse_dtype(NAME, case.option("state").unwrap_or("f32"))?;
        p.normalize = case.get("normalize", p.normalize)?;
        p.eps = case.get("eps", 0.0)?;
        p.slots = case.option("slots").map(|_| case.get("slots", 0)).transpose()?;
        p.head_norm = case.option("norm").map_or(Ok(HeadNorm::None), str::parse)?;
        p.norm_eps = case.get("norm_eps", p.norm_eps)?;
        p.output_gate = case.get("output_gate", false)?;
        p.gates = case.option("gates").map_or(Ok(p.gates), str::parse)?;
        Ok(Arc::new(p.build()?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::step_specialisations()
    }
}
