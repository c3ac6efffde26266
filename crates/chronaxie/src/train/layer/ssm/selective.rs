//! Rates times time steps: Mamba, whose steps and weights the input sets, and S4D, whose are the same at all times.

use super::adaptive::pointwise;
use super::{Provider, Sizes, Stage, Start, Tie};
use crate::Result;
use crate::config::Section;
use crate::layers::dense::Channels;
use crate::layers::ssm::gates::Kind;
use crate::layers::ssm::providers::{mamba, s4d};
use crate::layers::ssm::{Discretisation, SelectiveScan, SsmGates, Weights};

/// The range that time steps start in.
pub(super) fn time_steps(model: &Section<'_>) -> Result<(f64, f64)> {
    let (least, most): (f64, f64) = (model.get("delta_min", 0.001)?, model.get("delta_max", 0.1)?);
    for (key, delta) in [("delta_min", least), ("delta_max", most)] {
        if !(delta > 0.0 && delta.is_finite()) {
            return Err(model.refuse(key, &format!("must be a positive number, but it is {delta}")));
        }
    }
    if least > most {
        return Err(model.refuse("delta_min", &format!("is {least}, above delta_max = {most}")));
    }
    Ok((least, most))
}

fn tied(names: &[&'static str]) -> Vec<(&'static str, Tie)> {
    names.iter().map(|&name| (name, Tie::Value(name))).chain([("out", Tie::Value("y"))]).collect()
}

/// u, the time step, B, C and z are linear in the input; rates are real and decay.
#[derive(Debug)]
pub(super) struct Mamba {
    delta: (f64, f64),
    gate: bool,
}

impl Mamba {
    pub(super) fn read(model: &Section<'_>) -> Result<Self> {
        Ok(Self { delta: time_steps(model)?, gate: model.get("gate", true)? })
    }
}

impl Provider for Mamba {
    fn stages(&self, s: &Sizes) -> Result<Vec<Stage>> {
        let rates = pointwise("A", Kind::Rate, [1, s.hidden * s.states, 1], Tie::Parameter("log"), "A")?;
        let along = Channels::along(s.states);
        let mut stages = vec![
            s.channels("u", "u")?,
            s.channels("step", "delta")?,
            rates,
            s.map("B", along, "B")?,
            s.map("C", along, "C")?,
        ];
        let mut ties = tied(&["u", "delta", "A", "B", "C"]);
        if self.gate {
            stages.push(s.channels("z", "z")?);
            ties.push(("z", Tie::Value("z")));
        }
        let scan = SelectiveScan::new(s.batch, s.hidden, s.steps, s.states)?
            .with_weights(Weights::Varying(1), Weights::Varying(1))?
            .with_softplus(true)
            .with_skip(true)
            .with_gate(self.gate);
        stages.push(Stage::new("scan", scan, &ties));
        Ok(stages)
    }
    fn start(&self, to: &mut Start) -> Result<()> {
        let Sizes { hidden, states, .. } = to.sizes;
        for (name, outputs) in [("u", hidden), ("step", hidden), ("B", states), ("C", states)] {
            to.map(name, outputs)?;
        }
        // The bias of the map is that of the time step.
        let (least, most) = self.delta;
        let bias = mamba::initialise_delta_bias(hidden, least, most, &mut to.rng);
        to.set("step.bias", bias)?;
        if self.gate {
            to.map("z", hidden)?;
        }
        to.set("A.log", mamba::initialise_rates(hidden, states))?;
        to.set("scan.D", vec![1.0; hidden])
    }
}

/// Complex rates, time steps and weights that are a channel's own.
#[derive(Debug)]
pub(super) struct S4d {
    delta: (f64, f64),
    rule: Discretisation,
    frequencies: s4d::Frequencies,
    gate: bool,
}

impl S4d {
    pub(super) fn read(model: &Section<'_>) -> Result<Self> {
        let rule = match model.choice("discretisation", &["zoh", "bilinear", "exp"], "zoh")? {
            "bilinear" => Discretisation::Bilinear,
            "exp" => Discretisation::Exp,
            _ => Discretisation::Zoh,
        };
        let frequencies = match model.choice("frequencies", &["linear", "inverse"], "linear")? {
            "inverse" => s4d::Frequencies::Inverse,
            _ => s4d::Frequencies::Linear,
        };
        Ok(Self { delta: time_steps(model)?, rule, frequencies, gate: model.get("gate", true)? })
    }
}

impl Provider for S4d {
    fn stages(&self, s: &Sizes) -> Result<Vec<Stage>> {
        let rates = pointwise("A", Kind::ComplexRate, [1, s.hidden * s.states, 1], Tie::Parameter("raw"), "A")?;
        let hold = SsmGates::new(Kind::Hold, s.batch, s.hidden, s.steps)?;
        let mut stages = vec![s.channels("u", "u")?, Stage::new("step", hold, &tied(&["delta"])[..1]), rates];
        let mut ties = tied(&["u", "delta", "A"]);
        if self.gate {
            stages.push(s.channels("z", "z")?);
            ties.push(("z", Tie::Value("z")));
        }
        let scan = SelectiveScan::new(s.batch, s.hidden, s.steps, s.states)?
            .with_complex(true)
            .with_discretisation(self.rule)
            .with_weights(Weights::Constant, Weights::Constant)?
            .with_skip(true)
            .with_gate(self.gate);
        stages.push(Stage::new("scan", scan, &ties));
        Ok(stages)
    }
    fn start(&self, to: &mut Start) -> Result<()> {
        let Sizes { hidden, states, .. } = to.sizes;
        to.map("u", hidden)?;
        if self.gate {
            to.map("z", hidden)?;
        }
        let p = s4d::initialise(hidden, states, self.frequencies, &mut to.rng);
        let (least, most) = self.delta;
        let delta = (0..hidden).map(|_| to.rng.range(least.ln(), most.ln())).collect();
        to.set("step.log_delta", delta)?;
        to.set("A.raw", p.log_rate.into_iter().zip(p.frequency).flat_map(|(r, f)| [r, f]).collect())?;
        // B is 1 and C complex normal of variance 1.
        let all = hidden * states;
        to.set("scan.B", (0..2 * all).map(|i| f64::from(u8::from(i % 2 == 0))).collect())?;
        let c = (0..2 * all).map(|_| to.rng.normal() * 0.5f64.sqrt()).collect();
        to.set("scan.C", c)?;
        let skip = (0..hidden).map(|_| to.rng.normal()).collect();
        to.set("scan.D", skip)
    }
}
