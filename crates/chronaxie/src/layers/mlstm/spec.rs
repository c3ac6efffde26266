//! What a call on whole sequences is: sizes, options, names and shapes of every tensor, and how exact the results must be.

use super::reference::Cell;
use crate::op::{Metric, Pass, Role, Signature, TensorSpec, Tolerance};
use crate::{Dtype, Error, Result, Shape};
use std::str::FromStr;

/// How the input gate opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gate {
    /// `e^i`, held in range by the gauge m.
    Exponential,
    /// `1 / (1 + e^-i)`; no weight exceeds 1, so there is no gauge.
    Sigmoid,
}

impl Gate {
    /// The entry of sequences with this gate.
    pub const fn entry(self) -> &'static str {
        match self {
            Self::Exponential => "mlstm_exp",
            Self::Sigmoid => "mlstm_sig",
        }
    }
}

impl FromStr for Gate {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "exp" => Ok(Self::Exponential),
            "sig" => Ok(Self::Sigmoid),
            _ => Err(Error::config(format!("mlstm: gate `{s}` is not one of exp, sig"))),
        }
    }
}

/// Which gradients the backward pass writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wants {
    /// Those of q, k and v.
    pub inputs: bool,
    /// Those of i and f.
    pub gates: bool,
    /// Those of the initial state, where one is given.
    pub initial: bool,
}

impl Wants {
    /// Every gradient.
    pub const ALL: Self = Self { inputs: true, gates: true, initial: true };
}

impl FromStr for Wants {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let mut wants = Self { inputs: false, gates: false, initial: false };
        for part in s.split('+').filter(|p| *p != "none") {
            match part {
                "inputs" => wants.inputs = true,
                "gates" => wants.gates = true,
                "initial" => wants.initial = true,
                _ => return Err(Error::config(format!("wants `{part}` is not one of inputs, gates, initial, none"))),
            }
        }
        Ok(wants)
    }
}

/// The gates that samples have; of no meaning otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Gates {
    /// i normal, f normal about 3: what a trained layer has. A token is forgotten over some tens of others.
    #[default]
    Trained,
    /// Both normal about 0: a token is forgotten over a few others.
    Unit,
    /// f normal about 7 and i about -4, as where training starts: a token is remembered over a thousand others, and their sum
    /// is about 1, so that normalisers seldom come of terms that cancel.
    Slow,
    /// -40, 40 or normal, each for a third.
    Extreme,
    /// As trained, but one of 24 -inf and one of 24 -1e4, of either: the state is reset, or a token writes nothing.
    Reset,
    /// f as trained and i normal about 14, beside q and k of 2^-6 and a gradient of h of 2^-12: e^-m is about 1e-6 and
    /// normalisers are small numbers, so that what is divided by them is large and results are not.
    Faint,
}

impl Gates {
    /// The size of a tensor of normal numbers.
    pub(super) fn size_of(self, name: &str) -> f64 {
        match (self, name) {
            (Self::Faint, "q" | "k") => 1.0 / 64.0,
            (Self::Faint, "grad_h") => 1.0 / 4096.0,
            _ => 1.0,
        }
    }
}

impl FromStr for Gates {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Ok(match s {
            "trained" => Self::Trained,
            "unit" => Self::Unit,
            "slow" => Self::Slow,
            "extreme" => Self::Extreme,
            "reset" => Self::Reset,
            "faint" => Self::Faint,
            _ => {
                let known = "trained, unit, slow, extreme, reset, faint";
                return Err(Error::config(format!("gates `{s}` are not one of {known}")));
            }
        })
    }
}

/// The least gauge. A state and its gauge may both be scaled, so that a bound changes no h; with it the gauge is a number where
/// nothing is left of the past and nothing enters, and `e^-m` is one too.
pub const GAUGE_LEAST: f64 = -80.0;
/// The logarithm of a forget gate from which on nothing is left of the past: less of it than f32 can tell beside a weight of
/// `e^GAUGE_LEAST`, whatever `e^m` that f32 holds it comes from. Sums of logarithms over chunks take a gate of -inf as this.
pub const LOG_FORGET_LEAST: f64 = -192.0;

/// Head sizes are multiples of this,
pub const HEAD_STEP: usize = 16;
/// and at most this.
pub const HEAD_MOST: usize = 512;
/// Chunks are multiples of [`HEAD_STEP`] up to this.
pub const CHUNK_MOST: usize = 256;

/// Sizes and options of an mLSTM over whole sequences.
///
/// Axes: B batch, NH heads, T time, K the size of queries and keys, V that of values, S sequences (B, or those that
/// `cu_seqlens` cuts one row of tokens into). Made with [`Mlstm::new`], whose fields are then set, and checked by
/// [`Mlstm::build`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Mlstm {
    /// How the input gate opens.
    pub gate: Gate,
    /// B.
    pub batch: usize,
    /// NH.
    pub heads: usize,
    /// T.
    pub steps: usize,
    /// K.
    pub dqk: usize,
    /// V.
    pub dv: usize,
    /// Of q, k, v, h and their gradients: f32, f16 or bf16. Gates, states and sums are f32.
    pub dtype: Dtype,
    /// Whether h is divided by the normaliser; always with the exponential gate.
    pub normalize: bool,
    /// Whether gradients flow through the normaliser. Without it they are exact only before a norm of each head that does
    /// not see its scale.
    pub normalizer_grad: bool,
    /// Added to the normaliser. 0 is the definition; with another number h depends on the gauge, and gradients are exact
    /// up to terms of its order.
    pub eps: f64,
    /// L, tokens a chunk, where it is not left to the problem's sizes.
    pub chunk: Option<usize>,
    /// Whether an initial state is given; otherwise it is zero.
    pub initial_state: bool,
    /// Whether the last state is returned, with gradients through it.
    pub last_state: bool,
    /// The number of sequences that `cu_seqlens` cuts the T tokens into; B must be 1.
    pub sequences: Option<usize>,
    /// Whether the backward pass will be run at all.
    pub backward: bool,
    /// Which gradients it writes.
    pub wants: Wants,
    /// The gates of samples.
    pub gates: Gates,
    /// Whether the law is the parallel form, of all pairs of tokens, which has no states: the entry `mlstm_parallel`.
    pub parallel: bool,
}

impl Mlstm {
    /// f32, no state in or out, every gradient; normalised with the exponential gate and not with the sigmoid one.
    pub fn new(gate: Gate, [batch, heads, steps, dqk, dv]: [usize; 5]) -> Self {
        Self {
            gate,
            batch,
            heads,
            steps,
            dqk,
            dv,
            dtype: Dtype::F32,
            normalize: gate == Gate::Exponential,
            normalizer_grad: true,
            eps: 0.0,
            chunk: None,
            initial_state: false,
            last_state: false,
            sequences: None,
            backward: true,
            wants: Wants::ALL,
            gates: Gates::default(),
            parallel: false,
        }
    }

    /// The entry whose problem this is.
    pub const fn entry_name(&self) -> &'static str {
        if self.parallel { "mlstm_parallel" } else { self.gate.entry() }
    }

    /// The same, if every size and option is in range.
    ///
    /// # Errors
    /// A sentence with the value that is not.
    pub fn build(self) -> Result<Self> {
        let name = self.entry_name();
        head_sizes(name, self.dqk, self.dv)?;
        data_dtype(name, self.dtype)?;
        if self.parallel && (self.initial_state || self.last_state) {
            return Err(Error::config(format!(
                "{name}: the parallel form has neither an initial state nor a last one"
            )));
        }
        if self.gate == Gate::Exponential && !self.normalize {
            return Err(Error::config(format!(
                "{name}: normalize = false is not offered: without its normaliser the exponential gate has no bound"
            )));
        }
        non_negative(name, "eps", self.eps)?;
        if let Some(l) = self.chunk.filter(|l| !l.is_multiple_of(HEAD_STEP) || !(HEAD_STEP..=CHUNK_MOST).contains(l)) {
            let range = format!("a multiple of {HEAD_STEP} from {HEAD_STEP} to {CHUNK_MOST}");
            return Err(Error::shape(format!("{name}: chunk = {l} is not {range}")));
        }
        if let Some(n) = self.sequences {
            if self.batch != 1 {
                return Err(Error::shape(format!("{name}: cu_seqlens needs B = 1, not B = {}", self.batch)));
            }
            if self.steps > i32::MAX as usize || n >= i32::MAX as usize {
                return Err(Error::shape(format!(
                    "{name}: cu_seqlens cannot count T = {} in {n} sequences",
                    self.steps
                )));
            }
        }
        let widest = self.dqk.max(self.dv);
        let sizes = [[self.batch, self.heads, self.steps, widest], [self.states(), self.heads, self.dqk, self.dv]];
        for shape in sizes.map(Shape::from) {
            // Sizes of an empty tensor count too.
            let all = shape.iter().try_fold(4usize, |n, &d| n.checked_mul(d.max(1)));
            if all.is_none_or(|n| n > isize::MAX as usize) {
                return Err(Error::shape(format!("{name}: a tensor {shape} has more bytes than can be addressed")));
            }
        }
        Ok(self)
    }

    /// S.
    pub fn states(&self) -> usize {
        self.sequences.unwrap_or(self.batch)
    }
    /// L of the floors and of CUDA: what was asked for, or 64 tokens, and 128 where a state is so large that reading it binds.
    pub fn chunk_length(&self) -> usize {
        self.chunk.unwrap_or(if self.dqk * self.dv > 64 * 128 { 128 } else { 64 })
    }
    /// What one head computes.
    pub fn cell(&self) -> Cell {
        Cell {
            dqk: self.dqk,
            dv: self.dv,
            gate: self.gate,
            normalize: self.normalize,
            normalizer_grad: self.normalizer_grad,
            eps: self.eps,
        }
    }
    /// Whether there is a gauge.
    pub(super) fn has_gauge(&self) -> bool {
        self.gate == Gate::Exponential
    }

    /// A tensor of the tokens, `[B, NH, T]` with `width` behind it where that is not 1.
    fn tokens(&self, name: &'static str, axes: &'static str, width: usize, role: Role) -> TensorSpec {
        let shape = [self.batch, self.heads, self.steps, width];
        let (shape, dtype) = if width == 1 { (&shape[..3], Dtype::F32) } else { (&shape[..], self.dtype) };
        TensorSpec::new(name, axes, shape, dtype, role).any_strides()
    }
    /// q, k, v, i, f.
    fn given(&self) -> [TensorSpec; 5] {
        [
            self.tokens("q", "[B, NH, T, K]", self.dqk, Role::Input),
            self.tokens("k", "[B, NH, T, K]", self.dqk, Role::Input),
            self.tokens("v", "[B, NH, T, V]", self.dv, Role::Input),
            self.tokens("i", "[B, NH, T]", 1, Role::Input),
            self.tokens("f", "[B, NH, T]", 1, Role::Input),
        ]
    }
    fn outputs(&self) -> TensorSpec {
        self.tokens("h", "[B, NH, T, V]", self.dv, Role::Output)
    }
    /// The tensors of a state that this problem has.
    fn state(&self, names: [&'static str; 3]) -> Vec<TensorSpec> {
        let (s, nh) = (self.states(), self.heads);
        let make = |name, axes, shape: &[usize]| TensorSpec::new(name, axes, shape, Dtype::F32, Role::State);
        let mut list = vec![make(names[0], "[S, NH, K, V]", &[s, nh, self.dqk, self.dv])];
        if self.normalize {
            list.push(make(names[1], "[S, NH, K]", &[s, nh, self.dqk]));
        }
        if self.has_gauge() {
            list.push(make(names[2], "[S, NH]", &[s, nh]));
        }
        list
    }
    fn initial(&self) -> Vec<TensorSpec> {
        if self.initial_state { self.state(["c_initial", "n_initial", "m_initial"]) } else { Vec::new() }
    }
    fn last(&self) -> Vec<TensorSpec> {
        if self.last_state { self.state(["c_last", "n_last", "m_last"]) } else { Vec::new() }
    }
    /// `l = s n.q` and m of each token.
    fn saved(&self) -> Vec<TensorSpec> {
        let of = |name| {
            let shape = [self.batch, self.heads, self.steps];
            TensorSpec::new(name, "[B, NH, T]", shape, Dtype::F32, Role::Saved)
        };
        let names = [("l", self.normalize), ("m", self.has_gauge())];
        names.into_iter().filter(|(_, there)| *there && self.backward).map(|(name, _)| of(name)).collect()
    }
    fn cuts(&self) -> Option<TensorSpec> {
        self.sequences.map(|n| TensorSpec::new("cu_seqlens", "[S + 1]", [n + 1], Dtype::I32, Role::Input))
    }

    /// What goes in and comes out of a pass.
    ///
    /// # Errors
    /// A pass that the problem does not have.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        let name = self.entry_name();
        let inputs: Vec<_> = self.given().into_iter().chain(self.cuts()).chain(self.initial()).collect();
        let h = self.outputs();
        match pass {
            Pass::Forward => {
                let outputs = [h].into_iter().chain(self.last()).chain(self.saved()).collect();
                Ok(Signature { inputs, outputs })
            }
            Pass::Backward if self.backward => {
                let wants = self.wants;
                let given = self.given().into_iter().enumerate();
                let given = given.filter(|(nth, _)| if *nth < 3 { wants.inputs } else { wants.gates });
                let gradient = |t: &TensorSpec| t.gradient().any_strides();
                let mut outputs: Vec<_> = given.map(|(_, t)| gradient(&t)).collect();
                outputs.extend(self.initial().iter().filter(|_| wants.initial).map(TensorSpec::gradient));
                // Only the normaliser's gradient needs h.
                let through = self.normalize && self.normalizer_grad;
                let saved = through.then(|| h.clone()).into_iter().chain(self.saved());
                let mut inputs: Vec<_> = inputs.into_iter().chain(saved).collect();
                inputs.push(gradient(&h));
                inputs.extend(self.last().iter().map(TensorSpec::gradient));
                Ok(Signature { inputs, outputs })
            }
            Pass::Backward => {
                Err(Error::config(format!("{name}: a problem with backward = false has no backward pass")))
            }
            _ => Err(Error::config(format!("{name} has no {} pass; mlstm_step has", pass.name()))),
        }
    }

    /// Refuses cuts that do not start at 0, end at T, and never descend.
    ///
    /// # Errors
    /// A sentence with the cuts that are wrong.
    pub fn check_cuts(&self, cuts: &[i32]) -> Result<()> {
        let (entry, steps) = (self.entry_name(), self.steps);
        let (first, last) = (cuts.first().copied().unwrap_or(0), cuts.last().copied().unwrap_or(0));
        if first != 0 || usize::try_from(last) != Ok(steps) {
            return Err(Error::value(format!(
                "{entry}: cu_seqlens goes from {first} to {last}, not from 0 to T = {steps}"
            )));
        }
        if let Some(at) = cuts.windows(2).position(|w| w[1] < w[0]) {
            let (a, b) = (cuts[at], cuts[at + 1]);
            return Err(Error::value(format!("{entry}: cu_seqlens descends from {a} to {b} at {}", at + 1)));
        }
        Ok(())
    }

    /// The bound on an output's error; none for what is saved.
    pub(super) fn tolerance_of(&self, pass: Pass, output: &str) -> Option<Tolerance> {
        if matches!(output, "l" | "m") {
            return None;
        }
        let states = output.ends_with("_last") || output.ends_with("_initial");
        let (value, reason) = match (self.gates, self.dtype, pass) {
            (Gates::Extreme, ..) => {
                (1e-2, "weights of e^40 and e^-40 side by side: what is left of a sum may be its roundings")
            }
            (_, Dtype::F32, Pass::Forward) if output == "h" => (
                4e-6,
                "a division by a sum that may nearly cancel, and the sums of a chunk; 8 times the noise of f32 at most",
            ),
            (_, Dtype::F32, Pass::Forward) => (3e-6, "a sum over the past, of which each chunk rounds twice"),
            (_, Dtype::F32, _) => {
                (1e-5, "the normaliser's gradient grows as a denominator shrinks, and with it its rounding")
            }
            (_, Dtype::F16, Pass::Forward) if !states => {
                (8e-4, "h is rounded to 11 bits, and so may operands of tensor cores be")
            }
            (_, Dtype::F16, _) => (1.5e-3, "gradients and what they are made of may be rounded to 11 bits"),
            (_, _, Pass::Forward) if !states => {
                (6e-3, "h is rounded to 8 bits, and so may operands of tensor cores be")
            }
            _ => (1e-2, "gradients and what they are made of may be rounded to 8 bits"),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }
}

/// Refuses head sizes out of range.
pub(super) fn head_sizes(entry: &str, dqk: usize, dv: usize) -> Result<()> {
    for (axis, size) in [("K", dqk), ("V", dv)] {
        if !size.is_multiple_of(HEAD_STEP) || !(HEAD_STEP..=HEAD_MOST).contains(&size) {
            return Err(Error::shape(format!(
                "{entry}: head size {axis} = {size} is not a multiple of {HEAD_STEP} from {HEAD_STEP} to {HEAD_MOST}"
            )));
        }
    }
    Ok(())
}

/// Refuses element types that q, k and v cannot have.
pub(super) fn data_dtype(entry: &str, dtype: Dtype) -> Result<()> {
    if matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
        return Ok(());
    }
    Err(Error::dtype(format!("{entry}: q, k and v of {dtype} are not offered; f32, f16 and bf16 are")))
}

/// Refuses negative and infinite numbers.
pub(super) fn non_negative(entry: &str, name: &str, x: f64) -> Result<()> {
    if x.is_finite() && x >= 0.0 {
        return Ok(());
    }
    Err(Error::value(format!("{entry}: {name} = {x} is not a number from 0 on")))
}

/// The element type of that name.
pub(super) fn parse_dtype(entry: &str, name: &str) -> Result<Dtype> {
    let known = [Dtype::F32, Dtype::F16, Dtype::Bf16];
    known
        .into_iter()
        .find(|d| d.name() == name)
        .ok_or_else(|| Error::dtype(format!("{entry}: element type `{name}` is not one of f32, f16, bf16")))
}
