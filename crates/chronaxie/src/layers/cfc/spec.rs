//! What a CfC call is: sizes, options, names and shapes of every tensor, and how exact the results must be.

pub use crate::layers::wants::Wants;
use crate::op::{Metric, Pass, Precision, Signature, TensorSpec, Tolerance};
use crate::{Dtype, Error, Result};

/// What a cell makes of its heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// `h' = (1 - s) tanh(ff1) + s tanh(ff2)` with `s = sigmoid(time_a dt + time_b)`.
    #[default]
    Default,
    /// `h' = A - A ff1 exp(-dt (|w_tau| + |ff1|))`: the solution of the differential equation itself.
    Pure,
    /// `h' = tanh(ff1) + s tanh(ff2)`.
    NoGate,
}

impl Mode {
    /// The linear maps of a cell, in order.
    pub const fn heads(self) -> &'static [&'static str] {
        match self {
            Self::Pure => &["ff1"],
            _ => &["ff1", "ff2", "time_a", "time_b"],
        }
    }
    /// Values that the forward pass keeps of each neuron: tanh(ff1), tanh(ff2), s and time_a; or ff1 and the exponential.
    pub const fn kept(self) -> usize {
        match self {
            Self::Pure => 2,
            _ => 4,
        }
    }
    /// `default`, `pure` or `no_gate`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Pure => "pure",
            Self::NoGate => "no_gate",
        }
    }
}

impl std::str::FromStr for Mode {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let all = [Self::Default, Self::Pure, Self::NoGate];
        let found = all.into_iter().find(|m| m.name() == s);
        found.ok_or_else(|| Error::config(format!("cfc: mode `{s}` is not one of default, pure, no_gate")))
    }
}

/// The activation of the backbone's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// `1.7159 tanh(0.666 x)`.
    #[default]
    LecunTanh,
    /// `tanh(x)`.
    Tanh,
    /// `max(x, 0)`; its derivative at 0 is 0.
    Relu,
    /// `x (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// `x sigmoid(x)`.
    Silu,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::LecunTanh, Self::Tanh, Self::Relu, Self::Gelu, Self::Silu];
    /// The name that ncps gives it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LecunTanh => "lecun_tanh",
            Self::Tanh => "tanh",
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::Silu => "silu",
        }
    }
}

impl std::str::FromStr for Activation {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|a| a.name() == s).ok_or_else(|| {
            Error::config(format!("cfc: activation `{s}` is not one of lecun_tanh, tanh, relu, gelu, silu"))
        })
    }
}

/// One cell of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Its neurons.
    pub hidden: usize,
    /// Whether a mask is given that its ff1 and ff2 are multiplied by (time_a and time_b never are).
    pub masked: bool,
}

/// The most cells that can be stacked: kernels take them by value.
pub const MAX_CELLS: usize = 8;

/// Sizes and options of a CfC layer over a batch of sequences.
///
/// Axes: B batch, T time, D inputs, H neurons of all cells, M outputs (the neurons of the last cell), L backbone layers of
/// all cells, U units of each. All tensors are f32. Made by [`Cfc::new`] or [`Cfc::wired`], checked by [`Cfc::build`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Cfc {
    /// B.
    pub batch: usize,
    /// T.
    pub steps: usize,
    /// D.
    pub inputs: usize,
    /// The cells, each of which reads what the one before it gives in the same step.
    pub cells: Vec<Cell>,
    /// What each cell makes of its heads.
    pub mode: Mode,
    /// Layers between a cell's inputs and its heads; with 0 the heads read the inputs themselves.
    pub backbone_layers: usize,
    /// U.
    pub backbone_units: usize,
    /// The backbone's activation.
    pub activation: Activation,
    /// Whether an LSTM cell updates the state ahead of each step, from the same inputs.
    pub mixed_memory: bool,
    /// Time a step takes, where no elapsed times are given.
    pub dt: f64,
    /// Whether elapsed times `[B, T]` are given, in the unit of `dt`; then `dt` is not used.
    pub elapsed: bool,
    /// Whether an initial state is given (and the LSTM's, where there is one); otherwise it is zero.
    pub initial_state: bool,
    /// The accuracy that is asked for.
    pub precision: Precision,
    /// Whether the backward pass will be run at all.
    pub backward: bool,
    /// Which gradients are wanted.
    pub wants: Wants,
}

impl Cfc {
    /// One cell with ncps's defaults: a backbone of one layer of 128 units, lecun_tanh, dt 1.
    pub fn new(batch: usize, steps: usize, inputs: usize, hidden: usize) -> Self {
        Self {
            batch,
            steps,
            inputs,
            cells: vec![Cell { hidden, masked: false }],
            mode: Mode::Default,
            backbone_layers: 1,
            backbone_units: 128,
            activation: Activation::LecunTanh,
            mixed_memory: false,
            dt: 1.0,
            elapsed: false,
            initial_state: false,
            precision: Precision::Exact,
            backward: true,
            wants: Wants::default(),
        }
    }
    /// Masked cells of these sizes without a backbone, as ncps stacks the layers of a wiring.
    pub fn wired(batch: usize, steps: usize, inputs: usize, hidden: &[usize]) -> Self {
        Self {
            cells: hidden.iter().map(|&hidden| Cell { hidden, masked: true }).collect(),
            backbone_layers: 0,
            ..Self::new(batch, steps, inputs, 0)
        }
    }
    /// Checks every value.
    ///
    /// # Errors
    /// A sentence for the first value that is out of its range.
    pub fn build(self) -> Result<Self> {
        if self.cells.is_empty() || self.cells.len() > MAX_CELLS {
            return Err(Error::value(format!("cfc: {} cells are not 1 ..= {MAX_CELLS}", self.cells.len())));
        }
        if !self.dt.is_finite() {
            return Err(Error::value(format!("cfc: dt = {} is not a finite number", self.dt)));
        }
        let too_large = || {
            Error::shape(format!(
                "cfc: B = {}, T = {}, D = {}, H = {}, {} backbone layers of {} units exceed 64-bit sizes",
                self.batch,
                self.steps,
                self.inputs,
                self.cells.iter().fold(0usize, |h, c| h.saturating_add(c.hidden)),
                self.backbone_layers,
                self.backbone_units
            ))
        };
        // All sizes that appear in products below stay small enough for 4-byte elements and a few of each.
        let widest = self.cells.iter().try_fold(self.inputs, |n, c| n.checked_add(c.hidden)).ok_or_else(too_large)?;
        let layers = self.backbone_layers.checked_mul(self.cells.len()).ok_or_else(too_large)?;
        let backbone = layers.checked_mul(self.backbone_units).ok_or_else(too_large)?;
        let width = widest.checked_add(backbone).ok_or_else(too_large)?.max(1);
        let rows = self.batch.max(1).checked_mul(self.steps.max(1)).ok_or_else(too_large)?;
        for (n, m) in [(rows, width), (width, width)] {
            n.checked_mul(m)
                .and_then(|n| n.checked_mul(128))
                .filter(|&n| n <= isize::MAX as usize)
                .ok_or_else(too_large)?;
        }
        Ok(self)
    }
    /// H: the neurons of all cells.
    pub fn hidden(&self) -> usize {
        self.cells.iter().map(|c| c.hidden).sum()
    }
    /// M: the neurons of the last cell.
    pub fn outputs(&self) -> usize {
        self.cells.last().map_or(0, |c| c.hidden)
    }
    /// What cell `l` reads besides its own state: the inputs, or the neurons of the cell before it.
    pub fn feeds(&self, l: usize) -> usize {
        if l == 0 { self.inputs } else { self.cells[l - 1].hidden }
    }
    /// The width of what cell `l` reads: its feeds, then its own state.
    pub fn reads(&self, l: usize) -> usize {
        self.feeds(l) + self.cells[l].hidden
    }
    /// The width of what the heads of cell `l` read.
    pub fn head_inputs(&self, l: usize) -> usize {
        if self.backbone_layers == 0 { self.reads(l) } else { self.backbone_units }
    }
    /// The first neuron of cell `l` among H.
    pub fn first_neuron(&self, l: usize) -> usize {
        self.cells[..l].iter().map(|c| c.hidden).sum()
    }
    /// Whether all states are outputs, so that the outputs are the checkpoints of the backward pass.
    pub fn outputs_are_states(&self) -> bool {
        self.cells.len() == 1
    }
    /// The name of a parameter of cell `l`: `ff1_weight`, and `layer_2_ff1_weight` where cells are stacked.
    pub fn named(&self, l: usize, name: &str) -> String {
        if self.cells.len() == 1 { name.to_owned() } else { format!("layer_{l}_{name}") }
    }
    /// What goes in: data, then parameters and masks cell by cell, then those of the LSTM.
    pub fn forward_inputs(&self) -> Vec<TensorSpec> {
        let (b, t, d, h) = (self.batch, self.steps, self.inputs, self.hidden());
        let f = |name: String, axes, shape: &[usize], role| TensorSpec::new(name, axes, shape, Dtype::F32, role);
        use crate::op::Role::{Input, Parameter, Prepared, State};
        let mut v = vec![f("x".into(), "[B, T, D]", &[b, t, d], Input).any_strides()];
        if self.initial_state {
            v.push(f("h0".into(), "[B, H]", &[b, h], State).any_strides());
            if self.mixed_memory {
                v.push(f("c0".into(), "[B, H]", &[b, h], State).any_strides());
            }
        }
        if self.elapsed {
            v.push(f("elapsed".into(), "[B, T]", &[b, t], Input).any_strides());
        }
        for (l, cell) in self.cells.iter().enumerate() {
            let mut reads = self.reads(l);
            for i in 0..self.backbone_layers {
                let axes = if i == 0 { "[U, reads]" } else { "[U, U]" };
                let u = self.backbone_units;
                v.push(f(self.named(l, &format!("backbone_{i}_weight")), axes, &[u, reads], Parameter));
                v.push(f(self.named(l, &format!("backbone_{i}_bias")), "[U]", &[u], Parameter));
                reads = u;
            }
            for head in self.mode.heads() {
                let weight = self.named(l, &format!("{head}_weight"));
                v.push(f(weight, "[neurons, head inputs]", &[cell.hidden, reads], Parameter));
                v.push(f(self.named(l, &format!("{head}_bias")), "[neurons]", &[cell.hidden], Parameter));
            }
            if self.mode == Mode::Pure {
                for name in ["w_tau", "A"] {
                    v.push(f(self.named(l, name), "[neurons]", &[cell.hidden], Parameter));
                }
            }
            if cell.masked {
                let mask = self.named(l, "sparsity_mask");
                v.push(f(mask, "[neurons, head inputs]", &[cell.hidden, reads], Prepared));
            }
        }
        if self.mixed_memory {
            v.push(f("lstm_input_map_weight".into(), "[4 H, D]", &[4 * h, d], Parameter));
            v.push(f("lstm_input_map_bias".into(), "[4 H]", &[4 * h], Parameter));
            v.push(f("lstm_recurrent_map_weight".into(), "[4 H, H]", &[4 * h, h], Parameter));
        }
        v
    }
    /// What the forward pass writes.
    pub fn forward_outputs(&self) -> Vec<TensorSpec> {
        let (b, t, h, m) = (self.batch, self.steps, self.hidden(), self.outputs());
        let f = |name: &'static str, axes, shape: &[usize], role| TensorSpec::new(name, axes, shape, Dtype::F32, role);
        use crate::op::Role::{Output, Saved, State};
        let mut v = vec![f("out", "[B, T, M]", &[b, t, m], Output), f("final_state", "[B, H]", &[b, h], State)];
        if self.mixed_memory {
            v.push(f("final_cell", "[B, H]", &[b, h], State));
        }
        if !self.backward {
            return v;
        }
        if !self.outputs_are_states() {
            v.push(f("states", "[B, T, H]", &[b, t, h], Saved));
        }
        if self.backbone_layers > 0 {
            let (l, u) = (self.cells.len() * self.backbone_layers, self.backbone_units);
            v.push(f("backbone", "[B, T, L, U]", &[b, t, l, u], Saved));
            v.push(f("backbone_slopes", "[B, T, L, U]", &[b, t, l, u], Saved));
        }
        v.push(f("heads", "[B, T, kept, H]", &[b, t, self.mode.kept(), h], Saved));
        if self.mixed_memory {
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
                let gradients = inputs.iter().filter(wanted).map(TensorSpec::gradient).collect();
                Ok(Signature { inputs: all, outputs: gradients })
            }
            Pass::Backward => Err(Error::config("cfc: the problem was built without the backward pass")),
            _ => Err(Error::config(format!("cfc: there is no {} pass", pass.name()))),
        }
    }
    /// The bound on the error of one output, or none for what the forward pass saves.
    pub fn tolerance_of(&self, output: &str) -> Option<Tolerance> {
        let gradient = output.starts_with("grad_");
        if !gradient && !matches!(output, "out" | "final_state" | "final_cell") {
            return None;
        }
        Some(match (self.precision, gradient) {
            (Precision::Exact, true) => Tolerance {
                metric: Metric::Relative,
                value: 6e-6,
                reason: "7 x the noise of f32 in the reference: sums over batch, time and units",
            },
            (Precision::Exact, false) => Tolerance {
                metric: Metric::Relative,
                value: 2.5e-6,
                reason: "7 x the noise of f32 in the reference, which a recurrence carries on from step to step",
            },
            (Precision::Fast, false) => Tolerance {
                metric: Metric::Relative,
                value: 3e-3,
                reason: "3 x what errors of 2^-11 in every tanh and sigmoid, as tanh.approx.f32 has, do to the reference",
            },
            (Precision::Fast, true) => Tolerance {
                metric: Metric::Relative,
                value: 6e-3,
                reason: "3 x what errors of 2^-11 in every tanh and sigmoid do to the reference; 1 - tanh^2 doubles them",
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_follow_the_options() {
        let p = Cfc { initial_state: true, elapsed: true, mixed_memory: true, ..Cfc::new(2, 3, 4, 5) };
        let f = p.signature_of(Pass::Forward).unwrap();
        assert_eq!(f.inputs[..4].iter().map(|t| &*t.name).collect::<Vec<_>>(), ["x", "h0", "c0", "elapsed"]);
        assert_eq!(f.inputs.len(), 4 + 2 + 8 + 3);
        assert_eq!(&*f.inputs[f.input("backbone_0_weight").unwrap()].shape, &[128, 9]);
        assert_eq!(&*f.inputs[f.input("lstm_recurrent_map_weight").unwrap()].shape, &[20, 5]);
        let names: Vec<_> = f.outputs.iter().map(|t| &*t.name).collect();
        assert_eq!(names[..3], ["out", "final_state", "final_cell"]);
        assert_eq!(names[3..6], ["backbone", "backbone_slopes", "heads"]);
        assert_eq!(names[6..], ["lstm_gates", "lstm_cells", "lstm_states"]);
        let b = p.signature_of(Pass::Backward).unwrap();
        assert!(b.input("out").is_some() && b.input("grad_final_cell").is_some() && b.output("grad_c0").is_some());
        assert_eq!(b.outputs.len(), f.inputs.len());
        let w = Cfc { mode: Mode::Pure, ..Cfc::wired(2, 3, 4, &[6, 5, 2]) };
        let f = w.signature_of(Pass::Forward).unwrap();
        assert_eq!(&*f.inputs[f.input("layer_1_sparsity_mask").unwrap()].shape, &[5, 11]);
        assert!(f.input("layer_2_w_tau").is_some() && f.input("layer_0_ff2_weight").is_none());
        assert_eq!(&*f.outputs[0].shape, &[2, 3, 2]);
        let b = w.signature_of(Pass::Backward).unwrap();
        assert!(b.input("states").is_some() && b.output("grad_layer_1_sparsity_mask").is_none());
    }

    #[test]
    fn values_out_of_range_are_named() {
        let message = |p: Cfc| p.build().unwrap_err().to_string();
        let p = || Cfc::new(2, 3, 4, 5);
        assert_eq!(message(Cfc { dt: f64::NAN, ..p() }), "cfc: dt = NaN is not a finite number");
        assert_eq!(message(Cfc { cells: Vec::new(), ..p() }), "cfc: 0 cells are not 1 ..= 8");
        assert_eq!(message(Cfc::wired(1, 1, 1, &[1; 9])), "cfc: 9 cells are not 1 ..= 8");
        let e = message(Cfc { batch: usize::MAX / 3, ..p() });
        assert!(e.contains("T = 3, D = 4, H = 5, 1 backbone layers of 128 units exceed 64-bit sizes"), "{e}");
        assert!(message(Cfc { backbone_units: usize::MAX / 2, ..p() }).contains("exceed 64-bit sizes"));
        let p = Cfc { backward: false, ..p() }.build().unwrap();
        assert!(p.signature_of(Pass::Backward).unwrap_err().to_string().contains("without the backward pass"));
        assert!("gate".parse::<Mode>().unwrap_err().to_string().contains("mode `gate` is not one of default, pure"));
        assert!("elu".parse::<Activation>().unwrap_err().to_string().contains("activation `elu` is not one of"));
        assert!("w".parse::<Wants>().unwrap_err().to_string().contains("a gradient of `w` is not one of x, h0"));
    }
}
