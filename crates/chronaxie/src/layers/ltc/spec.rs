//! What an LTC call is: sizes, options, names and shapes of every tensor, and how exact the results must be.

mod per_sample;

use super::connectivity::Connectivity;
pub use crate::layers::wants::Wants;
use crate::op::{Metric, Pass, Precision, Signature, TensorSpec, Tolerance};
use crate::{Dtype, Error, Result};
pub use per_sample::PerSample;
pub(super) use per_sample::{EACH, MOMENTS, SQUARES, extras};
use std::sync::Arc;

/// How values are mapped on their way in or out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mapping {
    /// `u = x * w + b`; both train.
    #[default]
    Affine,
    /// `u = x * w`.
    Linear,
    /// `u = x`.
    None,
}

impl Mapping {
    pub(crate) const fn weights(self) -> usize {
        match self {
            Self::Affine => 2,
            Self::Linear => 1,
            Self::None => 0,
        }
    }
    /// `affine`, `linear` or `none`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Linear => "linear",
            Self::None => "none",
        }
    }
}

impl std::str::FromStr for Mapping {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "affine" => Ok(Self::Affine),
            "linear" => Ok(Self::Linear),
            "none" => Ok(Self::None),
            _ => Err(Error::config(format!("mapping `{s}` is not one of affine, linear, none"))),
        }
    }
}

/// How `w`, `sensory_w`, `gleak` and `cm` are kept positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Constraint {
    /// `softplus` of the parameter is used.
    #[default]
    Softplus,
    /// The parameter is used as it is; the caller clips it after each optimizer step.
    Identity,
}

/// What the forward pass keeps for the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Save {
    /// Where `fast` is asked for ([`Ltc::kept`]): as `Store` if that is a MiB at most; else, with steps of 0.125 at most and no times
    /// given, up to 128 neurons, a word of every unfold: 4 bytes for each of B T (K + 1) H, if those are 16 MiB at most. Otherwise as
    /// `Recompute`.
    #[default]
    Auto,
    /// Nothing but the states after each step, which are the outputs themselves where no output mapping is applied; the
    /// unfolds are recomputed.
    Recompute,
    /// State and denominator of every unfold: 8 bytes for each of B T K H, and one evaluation of each gate less.
    Store,
    /// Words, of up to 128 neurons with `fast`, whatever their size and the steps'; otherwise as `Recompute`.
    Words,
}

/// What [`Save`] comes to for the sizes of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kept {
    /// States after each step alone.
    States,
    /// `unfolds` `[B, T, K + 1, H]`: of each step 1 / den of its first unfold and the state before that, as they are, and a word of each
    /// other unfold.
    Words,
    /// `unfold_states` and `unfold_dens`, `[B, T, K, H]` each.
    Unfolds,
}

/// A word of an unfold: the state before it as an f32 stands, but for the last 12 bits, which are the logarithm (of 2) of what it divides
/// by over what the first unfold of the step does, with a sign, 5 bits of exponent (from 2^-20 on) and 6 behind them. The word is the
/// nearest to the state that has those bits: it may be read as it is, as far off as 2^-12 of the state. Changes of a state over a step are
/// exact for all that, since the states before and after it are kept as they are.
pub(super) mod word {
    /// The bits of the f32 that a logarithm of 0 becomes, 2^-20, and the most above them.
    const BASE: u32 = 107 << 23;
    const MOST: u32 = 0x0fff_ffff;

    /// From the state and the quotient of denominators.
    pub fn pack(state: f32, quotient: f32) -> u32 {
        let logarithm = quotient.log2();
        let size = logarithm.abs().max(f32::from_bits(BASE)).to_bits() - BASE + (1 << 16);
        let low = size.min(MOST) >> 17 | (logarithm.to_bits() >> 20 & 0x800);
        let high = ((state.to_bits() & 0x7fff_ffff) + 0x800).saturating_sub(low) & !0xfff;
        (state.to_bits() & 0x8000_0000) | high | low
    }
    /// What they were.
    pub fn unpack(word: u32) -> (f32, f32) {
        let logarithm = f32::from_bits((((word & 0x7ff) << 17) + BASE) | (word & 0x800) << 20);
        (f32::from_bits(word), logarithm.exp2())
    }
}

/// Bytes of words that are kept without being asked for: they stay in the second-level cache of a GPU, and are less than what a layer's
/// gradients take.
const MOST_WORDS: usize = 16 << 20;
/// Bytes of unfolds that are kept in full.
const MOST_UNFOLDS: usize = 1 << 20;
/// The most neurons of which they are kept, and the longest steps, in the unit of cm.
const WORD_NEURONS: usize = 128;
const SHORT_STEP: f64 = 0.125;

/// Sizes and options of an LTC layer over a batch of sequences.
///
/// Axes: B batch, T time, D inputs, H neurons, M outputs (the first M neurons), K unfolds, S synapses. Built with [`Ltc::new`] and the methods that set options, checked by [`Ltc::build`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ltc {
    /// B.
    pub batch: usize,
    /// T.
    pub steps: usize,
    /// D.
    pub inputs: usize,
    /// H.
    pub hidden: usize,
    /// M, the number of outputs: the first M neurons.
    pub outputs: usize,
    /// K, semi-implicit Euler steps a time step.
    pub unfolds: usize,
    /// Of x, out and their gradients: f32, f16 or bf16. Parameters, times, states, sums and other gradients are f32.
    pub dtype: Dtype,
    /// Seconds a time step, where no elapsed times are given.
    pub dt: f64,
    /// Added to each denominator.
    pub epsilon: f64,
    /// Whether elapsed times `[B, T]` are given, in the unit of `dt`; then `dt` is not used.
    pub elapsed: bool,
    /// Whether an initial state `[B, H]` is given (and the LSTM's, where there is one); otherwise it is zero.
    pub initial_state: bool,
    /// Whether an LSTM cell updates the state ahead of each step, from the same inputs x.
    pub mixed_memory: bool,
    /// LayerNorm over D before the input mapping (epsilon 1e-5).
    pub layer_norm: bool,
    /// The input mapping, over D.
    pub input_mapping: Mapping,
    /// The output mapping, over M.
    pub output_mapping: Mapping,
    /// How parameters are kept positive.
    pub constraint: Constraint,
    /// What is kept for the backward pass.
    pub save: Save,
    /// The accuracy that is asked for.
    pub precision: Precision,
    /// Whether the backward pass will be run at all.
    pub backward: bool,
    /// Whether the gradients of `x`, of `h0` and `elapsed`, and of the parameters are wanted.
    pub wants: Wants,
    /// What the backward pass leaves of single samples' gradients, where those of parameters are wanted.
    pub per_sample: PerSample,
    /// The synapses.
    pub connectivity: Arc<Connectivity>,
}

/// LayerNorm's epsilon.
pub const NORM_EPSILON: f64 = 1e-5;
/// The largest number of unfolds: beyond it the recomputed states of one step are no longer small.
pub const MAX_UNFOLDS: usize = 1024;

impl Ltc {
    /// A layer with ltc-cuda's defaults, without its LayerNorm: dt 1/30 s, 6 unfolds, affine inputs, outputs as they are.
    pub fn new(batch: usize, steps: usize, connectivity: Arc<Connectivity>) -> Self {
        let (inputs, hidden) = (connectivity.sensory.sources(), connectivity.sensory.targets());
        Self {
            batch,
            steps,
            inputs,
            hidden,
            outputs: hidden,
            unfolds: 6,
            dtype: Dtype::F32,
            dt: 1.0 / 30.0,
            epsilon: 1e-8,
            elapsed: false,
            initial_state: false,
            mixed_memory: false,
            layer_norm: false,
            input_mapping: Mapping::Affine,
            output_mapping: Mapping::None,
            constraint: Constraint::Softplus,
            save: Save::default(),
            precision: Precision::Exact,
            backward: true,
            wants: Wants::default(),
            per_sample: PerSample::default(),
            connectivity,
        }
    }
    /// Checks every value.
    ///
    /// # Errors
    /// A sentence for the first value that is out of its range.
    pub fn build(self) -> Result<Self> {
        if self.unfolds == 0 || self.unfolds > MAX_UNFOLDS {
            return Err(Error::value(format!("ltc: unfolds = {} is not in 1 ..= {MAX_UNFOLDS}", self.unfolds)));
        }
        if !matches!(self.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
            return Err(Error::dtype(format!(
                "ltc: x and out of {} are not offered; f32, f16 and bf16 are",
                self.dtype
            )));
        }
        if !(self.dt > 0.0 && self.dt.is_finite()) {
            return Err(Error::value(format!("ltc: dt = {} is not a positive number", self.dt)));
        }
        if !(self.epsilon >= 0.0 && self.epsilon.is_finite()) {
            return Err(Error::value(format!("ltc: epsilon = {} is negative or not a number", self.epsilon)));
        }
        if self.outputs > self.hidden {
            return Err(Error::shape(format!("ltc: outputs = {} is more than hidden = {}", self.outputs, self.hidden)));
        }
        if self.inputs != self.connectivity.sensory.sources() || self.hidden != self.connectivity.recurrent.targets() {
            return Err(Error::shape(format!(
                "ltc: inputs = {} and hidden = {} do not match a wiring of {} inputs and {} neurons",
                self.inputs,
                self.hidden,
                self.connectivity.sensory.sources(),
                self.connectivity.recurrent.targets()
            )));
        }
        let sizes = [self.batch, self.steps, self.unfolds, self.hidden.max(self.inputs).max(1), 8];
        if sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1))).is_none() {
            return Err(Error::shape(format!(
                "ltc: B = {}, T = {}, H = {} exceed 64-bit sizes",
                self.batch, self.steps, self.hidden
            )));
        }
        Ok(self)
    }
    /// The problem between the conversions of x and out: all of f32.
    pub(super) fn widened(&self) -> Self {
        Self { dtype: Dtype::F32, ..self.clone() }
    }
    /// Whether the states are returned as they are, so that the outputs are the checkpoints of the backward pass. Rounded
    /// outputs are not: from those the unfolds would be rebuilt as others.
    pub fn outputs_are_states(&self) -> bool {
        self.dtype == Dtype::F32 && self.outputs == self.hidden && self.output_mapping == Mapping::None
    }
    /// What the forward pass keeps for the backward pass.
    pub fn kept(&self) -> Kept {
        let bytes = |sizes: [usize; 5]| sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let small = bytes([self.batch, self.steps, self.unfolds, self.hidden, 8]).is_some_and(|n| n <= MOST_UNFOLDS);
        let words = bytes([self.batch, self.steps, self.unfolds + 1, self.hidden, 4]).is_some_and(|n| n <= MOST_WORDS);
        // In long steps states come to rest, and what is rounded counts for more than what is left of their changes.
        let short = self.dt <= SHORT_STEP && !self.elapsed;
        let plain = self.precision == Precision::Fast && !self.mixed_memory;
        let worded = plain && self.hidden <= WORD_NEURONS;
        match self.save {
            Save::Store if self.backward => Kept::Unfolds,
            Save::Auto if self.backward && small && plain => Kept::Unfolds,
            Save::Auto if self.backward && words && short && worded => Kept::Words,
            Save::Words if self.backward && worded => Kept::Words,
            _ => Kept::States,
        }
    }
    /// What goes in: data, then parameters, then the prepared index lists.
    pub fn forward_inputs(&self) -> Vec<TensorSpec> {
        let (b, t, d, h, m) = (self.batch, self.steps, self.inputs, self.hidden, self.outputs);
        let f = |name: &'static str, axes, shape: &[usize], role| TensorSpec::new(name, axes, shape, Dtype::F32, role);
        use crate::op::Role::{Input, Parameter, Prepared, State};
        let x = TensorSpec::new("x", "[B, T, D]", [b, t, d], self.dtype, Input);
        let mut v = vec![x.any_strides()];
        if self.initial_state {
            v.push(f("h0", "[B, H]", &[b, h], State).any_strides());
            if self.mixed_memory {
                v.push(f("c0", "[B, H]", &[b, h], State).any_strides());
            }
        }
        if self.elapsed {
            v.push(f("elapsed", "[B, T]", &[b, t], Input).any_strides());
        }
        v.extend(["w", "mu", "sigma", "erev"].map(|n| f(n, "[H, H]", &[h, h], Parameter)));
        v.extend(
            ["sensory_w", "sensory_mu", "sensory_sigma", "sensory_erev"].map(|n| f(n, "[D, H]", &[d, h], Parameter)),
        );
        v.extend(["gleak", "vleak", "cm"].map(|n| f(n, "[H]", &[h], Parameter)));
        for n in &["input_w", "input_b"][..self.input_mapping.weights()] {
            v.push(f(n, "[D]", &[d], Parameter));
        }
        if self.layer_norm {
            v.extend(["norm_weight", "norm_bias"].map(|n| f(n, "[D]", &[d], Parameter)));
        }
        for n in &["output_w", "output_b"][..self.output_mapping.weights()] {
            v.push(f(n, "[M]", &[m], Parameter));
        }
        if self.mixed_memory {
            v.push(f("lstm_input_map_weight", "[4 H, D]", &[4 * h, d], Parameter));
            v.push(f("lstm_input_map_bias", "[4 H]", &[4 * h], Parameter));
            v.push(f("lstm_recurrent_map_weight", "[4 H, H]", &[4 * h, h], Parameter));
        }
        for (side, s) in [("recurrent", &self.connectivity.recurrent), ("sensory", &self.connectivity.sensory)] {
            for (name, list) in s.lists() {
                v.push(TensorSpec::new(format!("{side}_{name}"), "[list]", [list.len()], Dtype::I32, Prepared));
            }
        }
        v
    }
    /// What the forward pass writes.
    pub fn forward_outputs(&self) -> Vec<TensorSpec> {
        let (b, t, h, m, k) = (self.batch, self.steps, self.hidden, self.outputs, self.unfolds);
        let f = |name: &'static str, axes, shape: &[usize], role| TensorSpec::new(name, axes, shape, Dtype::F32, role);
        use crate::op::Role::{Output, Saved, State};
        let out = TensorSpec::new("out", "[B, T, M]", [b, t, m], self.dtype, Output);
        let mut v = vec![out, f("final_state", "[B, H]", &[b, h], State)];
        if self.mixed_memory {
            v.push(f("final_cell", "[B, H]", &[b, h], State));
        }
        if self.backward && !self.outputs_are_states() {
            v.push(f("states", "[B, T, H]", &[b, t, h], Saved));
        }
        match self.kept() {
            Kept::States => {}
            Kept::Words => v.push(TensorSpec::new("unfolds", "[B, T, K + 1, H]", [b, t, k + 1, h], Dtype::I32, Saved)),
            Kept::Unfolds => {
                v.push(f("unfold_states", "[B, T, K, H]", &[b, t, k, h], Saved));
                v.push(f("unfold_dens", "[B, T, K, H]", &[b, t, k, h], Saved));
            }
        }
        if self.backward && self.mixed_memory {
            v.push(f("lstm_gates", "[B, T, 4, H]", &[b, t, 4, h], Saved));
            v.push(f("lstm_cells", "[B, T, H]", &[b, t, h], Saved));
            v.push(f("lstm_states", "[B, T, H]", &[b, t, h], Saved));
        }
        v
    }
    /// The signature of a pass.
    ///
    /// # Errors
    /// If the problem was built without `backward`, or the pass is neither forward nor backward.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        use crate::op::Role::{Input, Output, Parameter, Saved, State};
        let (inputs, outputs) = (self.forward_inputs(), self.forward_outputs());
        match pass {
            Pass::Forward => Ok(Signature { inputs, outputs }),
            Pass::Backward if self.backward => {
                let mut all = inputs.clone();
                let keep = |t: &&TensorSpec| t.role == Saved || (t.name == "out" && self.outputs_are_states());
                all.extend(outputs.iter().filter(keep).cloned());
                all.extend(
                    outputs.iter().filter(|t| matches!(t.role, Output | State)).map(|t| t.gradient().any_strides()),
                );
                let wanted = |t: &&TensorSpec| match (t.role, &*t.name) {
                    (Input, "x") => self.wants.x,
                    (State, _) => self.wants.h0,
                    (Input, _) => self.wants.elapsed,
                    (Parameter, _) => self.wants.parameters,
                    _ => false,
                };
                let mut gradients: Vec<_> = inputs.iter().filter(wanted).map(TensorSpec::gradient).collect();
                if self.asks_per_sample() {
                    let parameters: Vec<_> = inputs.iter().filter(|t| t.role == Parameter).collect();
                    if self.per_sample == PerSample::Gradients {
                        gradients
                            .retain(|g| !parameters.iter().any(|t| g.name.strip_prefix("grad_") == Some(&*t.name)));
                    }
                    for t in parameters {
                        gradients.extend(self.extra(t));
                    }
                }
                Ok(Signature { inputs: all, outputs: gradients })
            }
            Pass::Backward => Err(Error::config("ltc: the problem was built without the backward pass")),
            _ => Err(Error::config(format!("ltc: there is no {} pass", pass.name()))),
        }
    }
    /// The bound on the error of one output.
    pub fn tolerance_of(&self, output: &str) -> Option<Tolerance> {
        let saved = ["states", "unfolds", "unfold_states", "unfold_dens", "lstm_gates", "lstm_cells", "lstm_states"];
        if saved.contains(&output) {
            return None;
        }
        if let Some(name) = output.strip_prefix(EACH) {
            return self.tolerance_of(&format!("grad_{name}"));
        }
        if let Some(name) = [SQUARES, MOMENTS].iter().find_map(|prefix| output.strip_prefix(prefix)) {
            let of = self.tolerance_of(&format!("grad_{name}"))?;
            let reason = "3 x that of the gradient: a square has twice its error, and a sample's is not smaller than the batch's";
            return Some(Tolerance { value: 3.0 * of.value, reason, ..of });
        }
        let gradient = output.starts_with("grad_");
        let cancels = matches!(output, "grad_cm" | "grad_elapsed");
        let of_f32 = match (self.precision, gradient) {
            (Precision::Exact, true) if cancels => Tolerance {
                metric: Metric::Relative,
                value: 1e-4,
                reason: "sums of v - v', which cancels when a step changes the state little",
            },
            (Precision::Exact, true) => Tolerance {
                metric: Metric::Relative,
                value: 1e-5,
                reason: "2 x the noise of f32 in the reference: long sums over batch, time and unfolds",
            },
            (Precision::Exact, false) => Tolerance {
                metric: Metric::Relative,
                value: 5e-6,
                reason: "7 x the noise of f32 in the reference, which the contraction of each unfold keeps small",
            },
            (Precision::Fast, false) => Tolerance {
                metric: Metric::MaxAbsolute,
                value: 3e-4,
                reason: "tanh.approx.f32 has a relative error of 2^-11",
            },
            (Precision::Fast, true) => Tolerance {
                metric: Metric::Relative,
                value: 3e-3,
                reason: "tanh.approx.f32 has a relative error of 2^-11, and r (1 - r) doubles it",
            },
        };
        Some(if matches!(output, "out" | "grad_x") { self.rounded(of_f32) } else { of_f32 })
    }
    /// The bound of what is rounded once from f32 to the dtype: half a unit in the last place, which the error of f32
    /// comes on top of. (In f16 for values in its normal range.)
    fn rounded(&self, of_f32: Tolerance) -> Tolerance {
        let (half_unit, reason) = match self.dtype {
            Dtype::F32 => return of_f32,
            Dtype::F16 => (2f64.powi(-11), "that of f32, and one rounding to 11 bits"),
            _ => (2f64.powi(-8), "that of f32, and one rounding to 8 bits"),
        };
        // The half unit is relative to the value. A state is a convex combination of h0, vleak, erev and 0, which are below
        // 2 at unit scale; behind an output mapping, of 1.5 and 0.5 at most, it is below 4.
        let below = match of_f32.metric {
            Metric::Relative => 1.0 + of_f32.value,
            Metric::MaxAbsolute if self.output_mapping == Mapping::None => 1.0,
            Metric::MaxAbsolute => 2.0,
        };
        Tolerance { value: of_f32.value + half_unit * below, reason, ..of_f32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem() -> Ltc {
        Ltc::new(2, 3, Arc::new(Connectivity::full(4, 5).unwrap()))
    }

    #[test]
    fn signatures_follow_the_options() {
        let p = Ltc {
            initial_state: true,
            elapsed: true,
            layer_norm: true,
            output_mapping: Mapping::Affine,
            outputs: 2,
            ..problem()
        };
        let f = p.signature_of(Pass::Forward).unwrap();
        assert_eq!(f.input("h0"), Some(1));
        assert_eq!(f.inputs.len(), 3 + 8 + 3 + 2 + 2 + 2 + 10);
        assert_eq!(f.outputs.iter().map(|t| &*t.name).collect::<Vec<_>>(), ["out", "final_state", "states"]);
        let b = p.signature_of(Pass::Backward).unwrap();
        assert_eq!(b.outputs.len(), 3 + 8 + 3 + 2 + 2 + 2);
        assert!(b.input("states").is_some() && b.input("out").is_none() && b.input("grad_final_state").is_some());
        let plain = problem().signature_of(Pass::Backward).unwrap();
        assert!(plain.input("out").is_some() && plain.input("states").is_none());
    }

    #[test]
    fn halves_are_x_and_out_and_their_gradients() {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let p = Ltc { dtype, initial_state: true, elapsed: true, save: Save::Store, ..problem() };
            let (f, b) = (p.signature_of(Pass::Forward).unwrap(), p.signature_of(Pass::Backward).unwrap());
            let halves = |list: &[TensorSpec]| -> Vec<String> {
                list.iter().filter(|t| t.dtype == dtype).map(|t| t.name.to_string()).collect()
            };
            assert_eq!((halves(&f.inputs), halves(&f.outputs)), (vec!["x".to_owned()], vec!["out".to_owned()]));
            assert_eq!(halves(&b.inputs), ["x", "grad_out"]);
            assert_eq!(halves(&b.outputs), ["grad_x"]);
            // What is rounded is no state to start from.
            assert!(f.output("states").is_some() && b.input("states").is_some() && b.input("out").is_none());
            let single = p.widened();
            for name in ["final_state", "grad_h0", "grad_w", "grad_cm"] {
                assert_eq!(p.tolerance_of(name), single.tolerance_of(name), "{name}");
            }
            let unit = if dtype == Dtype::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
            for name in ["out", "grad_x"] {
                let more = p.tolerance_of(name).unwrap().value - single.tolerance_of(name).unwrap().value;
                assert!(more >= unit && more < 1.0001 * unit, "{name}: {more}");
            }
        }
    }

    #[test]
    fn words_are_kept_of_few_unfolds() {
        let of = |batch, steps, hidden| {
            let c = Connectivity::full(4, hidden).unwrap();
            Ltc { precision: Precision::Fast, ..Ltc::new(batch, steps, Arc::new(c)) }
        };
        assert_eq!((of(32, 64, 128).kept(), of(24, 8, 64).kept()), (Kept::Words, Kept::Unfolds));
        // Those of few unfolds are as they are, so that steps may be long.
        assert_eq!(Ltc { dt: 1.0, elapsed: true, ..of(24, 8, 64) }.kept(), Kept::Unfolds);
        // More than 16 MiB, more neurons than that.
        for p in [of(128, 64, 128), of(4, 64, 130)] {
            assert_eq!(p.kept(), Kept::States);
        }
        let p = of(32, 64, 128);
        for p in [
            Ltc { precision: Precision::Exact, ..p.clone() },
            Ltc { save: Save::Recompute, ..p.clone() },
            Ltc { backward: false, ..p.clone() },
            Ltc { mixed_memory: true, ..p.clone() },
            Ltc { elapsed: true, ..p.clone() },
            Ltc { dt: 1.0, ..p.clone() },
        ] {
            assert_eq!(p.kept(), Kept::States);
        }
        assert_eq!(Ltc { save: Save::Store, ..p.clone() }.kept(), Kept::Unfolds);
        assert_eq!(Ltc { save: Save::Words, dt: 1.0, ..of(24, 8, 64) }.kept(), Kept::Words);
        let b = p.signature_of(Pass::Backward).unwrap();
        assert_eq!(b.inputs[b.input("unfolds").unwrap()].dtype, Dtype::I32);
    }

    #[test]
    fn words_are_the_nearest() {
        for quotient in [1.0f32, 1.0001, 0.97, 1.5, 3.0, 0.01, 1e4, 1e-30, 1e30] {
            for m in [0.0, 1.0, 1.0 + 2f32.powi(-11), 1.3, 2.0 - 2f32.powi(-12)] {
                for x in [-12, -1, 0, 5, 40].map(|e| m * 2f32.powi(e)) {
                    for state in [x, -x] {
                        let (got, q) = word::unpack(word::pack(state, quotient));
                        assert!((got - state).abs() <= 2f32.powi(-12) * x + f32::MIN_POSITIVE, "{state}: {got}");
                        let (want, l) = (quotient.log2(), q.log2());
                        assert!((l - want).abs() <= 2f32.powi(-7) * want.abs() + 2f32.powi(-19), "{quotient}: {q}");
                    }
                }
            }
        }
        // The sign of what is nothing, and what is no number.
        assert!(word::unpack(word::pack(-0.0, 1.0)).0.is_sign_negative());
        assert!(word::unpack(word::pack(f32::NAN, 1.0)).0.is_nan());
    }

    #[test]
    fn values_out_of_range_are_named() {
        let message = |p: Ltc| p.build().unwrap_err().to_string();
        assert_eq!(message(Ltc { unfolds: 0, ..problem() }), "ltc: unfolds = 0 is not in 1 ..= 1024");
        assert_eq!(message(Ltc { dt: -0.5, ..problem() }), "ltc: dt = -0.5 is not a positive number");
        assert_eq!(
            message(Ltc { dtype: Dtype::F64, ..problem() }),
            "ltc: x and out of f64 are not offered; f32, f16 and bf16 are"
        );
        assert!(message(Ltc { outputs: 9, ..problem() }).contains("outputs = 9 is more than hidden = 5"));
        assert!(message(Ltc { hidden: 7, ..problem() }).contains("hidden = 7 do not match"));
        assert!(message(Ltc { epsilon: f64::NAN, ..problem() }).contains("epsilon = NaN"));
        let p = Ltc { backward: false, ..problem() }.build().unwrap();
        assert!(p.signature_of(Pass::Backward).unwrap_err().to_string().contains("without the backward pass"));
    }
}
