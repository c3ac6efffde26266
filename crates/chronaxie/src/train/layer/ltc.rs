//! Liquid time-constant networks in the trainer.

use super::{Context, Stage, TrainableLayer};
use crate::config::Section;
use crate::layers::ltc::wirings::{Ncp, Rule, Wiring};
use crate::layers::ltc::{Connectivity, Ltc, Mapping, Save, Synapses, Wants, init};
use crate::op::Tensors;
use crate::{Error, Result};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct LtcLayer {
    /// With B = T = 0: sizes and options.
    base: Ltc,
    /// `[H, H]` and `[D, H]`; none in a model that was loaded, whose parameters are saved.
    polarity: Option<(Vec<i8>, Vec<i8>)>,
    /// What `input_w` and `input_b` start from.
    input_start: [f64; 2],
}

const MAPPINGS: [&str; 3] = ["affine", "linear", "none"];
const WIRINGS: [&str; 5] = ["full", "random", "bernoulli", "auto_ncp", "ncp"];

impl LtcLayer {
    pub(super) fn read(model: &Section<'_>, context: Context<'_>) -> Result<Self> {
        let (rule, outputs) = rule(model, context.seed)?;
        let defaults = Ltc::new(0, 0, Arc::new(Connectivity::full(0, 0)?));
        let unfolds = model.get("unfolds", defaults.unfolds)?;
        let dt = model.get("dt", defaults.dt)?;
        let epsilon = model.get("epsilon", defaults.epsilon)?;
        let layer_norm = model.get("layer_norm", false)?;
        let input_mapping: Mapping = model.choice("input_mapping", &MAPPINGS, "affine")?.parse()?;
        let output_mapping: Mapping = model.choice("output_mapping", &MAPPINGS, "none")?.parse()?;
        let mut input_start = [1.0, 0.0];
        for (value, name) in input_start.iter_mut().zip(["input_w", "input_b"]).take(input_mapping.weights()) {
            *value = model.get(name, *value)?;
        }
        let elapsed = model.get("elapsed", false)?;
        if elapsed && !context.timed {
            return Err(model.refuse("elapsed", "is true, but the data has no times"));
        }
        let save = match model.choice("save", &["auto", "recompute", "store", "words"], "auto")? {
            "auto" => Save::Auto,
            "store" => Save::Store,
            "words" => Save::Words,
            _ => Save::Recompute,
        };
        let (connectivity, polarity) = match context.prepared {
            Some(prepared) => (restore(prepared)?, None),
            None => {
                let wiring: Wiring = rule.build(context.inputs)?;
                (wiring.connectivity()?, Some((wiring.adjacency, wiring.sensory_adjacency)))
            }
        };
        let base = Ltc {
            unfolds,
            dt,
            epsilon,
            elapsed,
            layer_norm,
            input_mapping,
            output_mapping,
            outputs,
            save,
            precision: context.precision,
            wants: Wants { x: false, h0: false, elapsed: false, parameters: true },
            ..Ltc::new(0, 0, Arc::new(connectivity))
        };
        if base.inputs != context.inputs || base.hidden != rule.units() {
            return Err(Error::checkpoint(format!(
                "ltc: a saved wiring of {} inputs and {} neurons does not match a model of {} and {}",
                base.inputs,
                base.hidden,
                context.inputs,
                rule.units()
            )));
        }
        Ok(Self { base: base.build()?, polarity, input_start })
    }
}

/// The wiring that the table asks for, and M.
fn rule(model: &Section<'_>, seed: u64) -> Result<(Rule, usize)> {
    // Two of the rules take 32 bits of seed.
    let wiring_seed = |m: &Section<'_>| m.get("wiring_seed", seed as u32);
    let hidden = |m: &Section<'_>| -> Result<usize> {
        match m.get("hidden", 64)? {
            0 => Err(m.refuse("hidden", "must be at least 1, but it is 0")),
            n => Ok(n),
        }
    };
    Ok(match model.choice("wiring", &WIRINGS, "full")? {
        "full" => {
            let units = hidden(model)?;
            let output_dim = model.get("outputs", units)?;
            let self_connections = model.get("self_connections", true)?;
            let erev_init_seed = wiring_seed(model)?.into();
            (Rule::FullyConnected { units, output_dim, erev_init_seed, self_connections }, output_dim)
        }
        "random" => {
            let units = hidden(model)?;
            let output_dim = model.get("outputs", units)?;
            let sparsity_level = model.get("sparsity", 0.5)?;
            let random_seed = wiring_seed(model)?.into();
            (Rule::Random { units, output_dim, sparsity_level, random_seed }, output_dim)
        }
        "bernoulli" => {
            let units = hidden(model)?;
            let output_dim = model.get("outputs", units)?;
            let density = model.get("density", 0.5)?;
            let sensory_density = model.get("sensory_density", density)?;
            let seed = wiring_seed(model)?.into();
            (Rule::Bernoulli { units, output_dim, density, sensory_density, seed }, output_dim)
        }
        "auto_ncp" => {
            let units = hidden(model)?;
            let output_size = model.require("outputs")?;
            let sparsity_level = model.get("sparsity", 0.5)?;
            (Rule::AutoNcp { units, output_size, sparsity_level, seed: wiring_seed(model)? }, output_size)
        }
        _ => {
            let ncp = Ncp {
                inter_neurons: model.require("inter_neurons")?,
                command_neurons: model.require("command_neurons")?,
                motor_neurons: model.require("motor_neurons")?,
                sensory_fanout: model.require("sensory_fanout")?,
                inter_fanout: model.require("inter_fanout")?,
                recurrent_command_synapses: model.require("recurrent_command_synapses")?,
                motor_fanin: model.require("motor_fanin")?,
                seed: wiring_seed(model)?,
            };
            let outputs = ncp.motor_neurons;
            (Rule::Ncp(ncp), outputs)
        }
    })
}

/// The synapses from the index lists that a model was saved with.
fn restore(prepared: &Tensors) -> Result<Connectivity> {
    let side = |side: &str| -> Result<Synapses> {
        let list = |name: &str| -> Result<Vec<usize>> {
            let values = prepared.get(&format!("{side}_{name}")).map_err(|e| Error::checkpoint(e.to_string()))?;
            Ok(values.data.iter().map(|&x| x as usize).collect())
        };
        let (offsets, source_of) = (list("target_offsets")?, list("source_of")?);
        let sources = list("source_offsets")?.len().saturating_sub(1);
        let targets = offsets.len().saturating_sub(1);
        let wrong = || Error::checkpoint(format!("ltc: the saved {side} synapses are not lists of {targets} neurons"));
        let mut connected = vec![false; sources.checked_mul(targets).ok_or_else(wrong)?];
        for (j, pair) in offsets.windows(2).enumerate() {
            for &i in source_of.get(pair[0]..pair[1]).ok_or_else(wrong)? {
                *connected.get_mut(i * targets + j).filter(|_| i < sources).ok_or_else(wrong)? = true;
            }
        }
        Synapses::from_fn(sources, targets, |i, j| connected[i * targets + j])
    };
    Connectivity::new(side("recurrent")?, side("sensory")?)
}

impl TrainableLayer for LtcLayer {
    fn name(&self) -> &'static str {
        "ltc"
    }
    fn features(&self) -> usize {
        self.base.outputs
    }
    fn stages(&self, batch: usize, steps: usize, backward: bool) -> Result<Vec<Stage>> {
        Ok(vec![Stage::new("", Ltc { batch, steps, backward, ..self.base.clone() }.build()?, &[])])
    }
    fn initial(&self, seed: u64) -> Result<Tensors> {
        let (recurrent, sensory) = self.polarity.as_ref().ok_or_else(|| {
            Error::config("ltc: a model that was loaded has no polarities to start from; it has its parameters")
        })?;
        let mut parameters = init::initial_parameters(&self.base, recurrent, sensory, seed)?;
        for (name, start) in ["input_w", "input_b"].into_iter().zip(self.input_start) {
            if let Some(values) = parameters.get_mut(name) {
                values.data.fill(start);
            }
        }
        Ok(parameters)
    }
    fn prepared(&self) -> Tensors {
        self.base.connectivity.values().collect()
    }
    fn decays(&self, parameter: &str) -> bool {
        // Gates fade and synapses weaken; where a gate opens, time constants, leaks and mappings have no zero to go to.
        matches!(parameter, "erev" | "sensory_erev" | "sigma" | "sensory_sigma")
    }
}
