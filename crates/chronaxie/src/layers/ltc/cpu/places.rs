//! Where each tensor stands in a signature: looked for when the plan is made, so that a call looks for nothing.

use crate::layers::ltc::spec::Ltc;
use crate::op::Signature;
use crate::{Error, Result};

pub(super) fn missing(name: &str) -> Error {
    Error::config(format!("ltc: the signature has no tensor {name}"))
}

fn input(s: &Signature, name: &str) -> Result<usize> {
    s.input(name).ok_or_else(|| missing(name))
}

/// Inputs of both passes: the backward pass has those of the forward pass first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs {
    pub x: usize,
    pub h0: Option<usize>,
    pub elapsed: Option<usize>,
    /// w, mu, sigma, erev, target_offsets, source_of.
    pub recurrent: [usize; 6],
    pub sensory: [usize; 6],
    pub gleak: usize,
    pub vleak: usize,
    pub cm: usize,
    /// Weight and bias.
    pub norm: Option<[usize; 2]>,
    pub input_w: Option<usize>,
    pub input_b: Option<usize>,
    pub output_w: Option<usize>,
    pub output_b: Option<usize>,
    /// The LSTM's input map, its bias and the recurrent map.
    pub lstm: Option<[usize; 3]>,
    pub c0: Option<usize>,
}

impl Inputs {
    pub fn of(s: &Signature) -> Result<Self> {
        let side = |prefix: &str, list: &str| -> Result<[usize; 6]> {
            let [w, mu, sigma, erev] = ["w", "mu", "sigma", "erev"].map(|n| input(s, &format!("{prefix}{n}")));
            let [offsets, from] = ["target_offsets", "source_of"].map(|n| input(s, &format!("{list}_{n}")));
            Ok([w?, mu?, sigma?, erev?, offsets?, from?])
        };
        let norm = match (s.input("norm_weight"), s.input("norm_bias")) {
            (Some(weight), Some(bias)) => Some([weight, bias]),
            _ => None,
        };
        Ok(Self {
            x: input(s, "x")?,
            h0: s.input("h0"),
            elapsed: s.input("elapsed"),
            recurrent: side("", "recurrent")?,
            sensory: side("sensory_", "sensory")?,
            gleak: input(s, "gleak")?,
            vleak: input(s, "vleak")?,
            cm: input(s, "cm")?,
            norm,
            input_w: s.input("input_w"),
            input_b: s.input("input_b"),
            output_w: s.input("output_w"),
            output_b: s.input("output_b"),
            lstm: match s.input("lstm_input_map_weight") {
                None => None,
                Some(weight) => {
                    Some([weight, input(s, "lstm_input_map_bias")?, input(s, "lstm_recurrent_map_weight")?])
                }
            },
            c0: s.input("c0"),
        })
    }
}

/// Two tensors that are there together.
fn pair(first: Option<usize>, second: Option<usize>) -> Option<[usize; 2]> {
    Some([first?, second?])
}

/// What the forward pass writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outputs {
    pub out: usize,
    pub final_state: usize,
    pub states: Option<usize>,
    /// States and denominators of the unfolds.
    pub unfolds: Option<[usize; 2]>,
    /// Or a word of each.
    pub words: Option<usize>,
    pub final_cell: Option<usize>,
    /// The LSTM's gates, the first of three.
    pub lstm: Option<usize>,
}

impl Outputs {
    pub fn of(s: &Signature) -> Result<Self> {
        Ok(Self {
            out: s.output("out").ok_or_else(|| missing("out"))?,
            final_state: s.output("final_state").ok_or_else(|| missing("final_state"))?,
            states: s.output("states"),
            unfolds: pair(s.output("unfold_states"), s.output("unfold_dens")),
            words: s.output("unfolds"),
            final_cell: s.output("final_cell"),
            lstm: s.output("lstm_gates"),
        })
    }
}

/// What the backward pass reads beside [`Inputs`], and the gradients that it writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BackwardPlaces {
    pub states: usize,
    pub unfolds: Option<[usize; 2]>,
    /// Or a word of each.
    pub words: Option<usize>,
    pub grad_out: usize,
    pub grad_final_state: usize,
    pub x: Option<usize>,
    pub h0: Option<usize>,
    pub elapsed: Option<usize>,
    /// The first of w, mu, sigma, erev.
    pub w: Option<usize>,
    pub sensory_w: Option<usize>,
    /// The first of gleak, vleak, cm.
    pub gleak: Option<usize>,
    /// Of each mapping the first weight and the second.
    pub output: [Option<usize>; 2],
    pub input: [Option<usize>; 2],
    pub norm: [Option<usize>; 2],
    pub c0: Option<usize>,
    /// With mixed memory: the gradient of the final cell, and the first of gates, cells and states.
    pub lstm_given: Option<[usize; 2]>,
    /// The first of the LSTM's three gradients.
    pub lstm: Option<usize>,
}

impl BackwardPlaces {
    pub fn of(p: &Ltc, s: &Signature) -> Result<Self> {
        Ok(Self {
            states: input(s, if p.outputs_are_states() { "out" } else { "states" })?,
            unfolds: pair(s.input("unfold_states"), s.input("unfold_dens")),
            words: s.input("unfolds"),
            grad_out: input(s, "grad_out")?,
            grad_final_state: input(s, "grad_final_state")?,
            x: s.output("grad_x"),
            h0: s.output("grad_h0"),
            elapsed: s.output("grad_elapsed"),
            w: s.output("grad_w"),
            sensory_w: s.output("grad_sensory_w"),
            gleak: s.output("grad_gleak"),
            output: [s.output("grad_output_w"), s.output("grad_output_b")],
            input: [s.output("grad_input_w"), s.output("grad_input_b")],
            norm: [s.output("grad_norm_weight"), s.output("grad_norm_bias")],
            c0: s.output("grad_c0"),
            lstm_given: pair(s.input("grad_final_cell"), s.input("lstm_gates")),
            lstm: s.output("grad_lstm_input_map_weight"),
        })
    }
}
