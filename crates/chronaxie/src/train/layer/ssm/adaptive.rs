//! States that turn by angles which the input sets: the adaptive unitary model, and its polar kin that decays as well.

use super::{Provider, Sizes, Stage, Start, Tie};
use crate::Result;
use crate::config::Section;
use crate::layers::dense::Channels;
use crate::layers::ssm::gates::Kind;
use crate::layers::ssm::providers::{polar, unitary};
use crate::layers::ssm::{AdaptiveScan, SsmGates};

/// `theta`, and with decay `rho`, are linear in the input, as are u, z and the time step before its softplus; the weights in and out
/// are a channel's own, in polar form.
#[derive(Debug)]
pub(super) struct Adaptive {
    decay: bool,
    gate: bool,
}

impl Adaptive {
    pub(super) fn read(model: &Section<'_>, decay: bool) -> Result<Self> {
        Ok(Self { decay, gate: model.get("gate", true)? })
    }
}

/// `value = kind(raw)` of a sequence.
pub(super) fn pointwise(
    name: &'static str,
    kind: Kind,
    [batch, channels, steps]: [usize; 3],
    raw: Tie,
    value: &'static str,
) -> Result<Stage> {
    let map = SsmGates::new(kind, batch, channels, steps)?;
    Ok(Stage::new(name, map, &[("raw", raw), ("y", Tie::Value(value))]))
}

impl Provider for Adaptive {
    fn stages(&self, s: &Sizes) -> Result<Vec<Stage>> {
        let all = s.hidden * s.states;
        let along = Channels::along(all);
        let weight = |name, value| pointwise(name, Kind::Polar, [1, all, 1], Tie::Parameter("raw"), value);
        let mut stages = vec![
            s.channels("u", "u")?,
            s.map("theta", along, "theta")?,
            s.channels("step", "step")?,
            pointwise("delta", Kind::Softplus, [s.batch, s.hidden, s.steps], Tie::Value("step"), "delta")?,
            weight("B", "B")?,
            weight("C", "C")?,
        ];
        let own = ["theta", "u", "delta", "B", "C"].map(|name| (name, Tie::Value(name)));
        let mut ties: Vec<_> = own.into_iter().chain([("out", Tie::Value("y"))]).collect();
        if self.decay {
            stages.push(s.map("radius", along, "radius")?);
            stages.push(pointwise("rho", Kind::Decline, [s.batch, all, s.steps], Tie::Value("radius"), "rho")?);
            ties.push(("rho", Tie::Value("rho")));
        }
        if self.gate {
            stages.push(s.channels("z", "z")?);
            ties.push(("z", Tie::Value("z")));
        }
        let scan = AdaptiveScan::new(s.batch, s.hidden, s.states, s.steps)?
            .with_decay(self.decay)
            .with_silu(true)
            .with_skip(true)
            .with_gate(self.gate);
        stages.push(Stage::new("scan", scan, &ties));
        Ok(stages)
    }

    fn start(&self, to: &mut Start) -> Result<()> {
        let Sizes { inputs, hidden, states, .. } = to.sizes;
        let all = hidden * states;
        to.map("u", hidden)?;
        to.map("step", hidden)?;
        if self.gate {
            to.map("z", hidden)?;
        }
        // As published: W normal with variance 1 / D, angles anywhere.
        let scale = 1.0 / (inputs.max(1) as f64).sqrt();
        let theta = (0..inputs * all).map(|_| scale * to.rng.normal()).collect();
        to.set("theta.weight", theta)?;
        let angles = (0..all).map(|_| to.rng.range(-std::f64::consts::PI, std::f64::consts::PI)).collect();
        to.set("theta.bias", angles)?;
        for name in ["B.raw", "C.raw"] {
            let w = unitary::initialise_weights(all, &mut to.rng);
            to.set(name, w.radius.into_iter().zip(w.angle).flat_map(|(r, a)| [r, a]).collect())?;
        }
        if self.decay {
            to.set("radius.weight", vec![0.0; inputs * all])?;
            let bias = polar::initialise(all, 0.9, 0.999, &mut to.rng);
            to.set("radius.bias", bias)?;
        }
        to.set("scan.D", vec![1.0; hidden])
    }

    fn decays(&self, parameter: &str) -> bool {
        // An angle has no zero to go to.
        parameter.ends_with(".weight") && parameter != "theta.weight"
    }
}
