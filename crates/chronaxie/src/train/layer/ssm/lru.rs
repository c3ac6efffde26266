//! Complex states that all channels share, between two dense maps: LRU and S5.

use super::gated::lru_radii;
use super::selective::time_steps;
use super::{Provider, Sizes, Stage, Start, Tie};
use crate::Result;
use crate::config::Section;
use crate::layers::dense::Channels;
use crate::layers::ssm::gates::Kind;
use crate::layers::ssm::providers::{lru, s5};
use crate::layers::ssm::{LinearScan, SsmGates};

/// Where the gates start.
#[derive(Debug)]
enum Model {
    /// Radii within a ring, angles up to the last number.
    Lru(f64, f64, f64),
    /// HiPPO's rates, time steps within a range.
    S5(f64, f64),
}

/// LRU or S5; `hidden` counts its complex states.
#[derive(Debug)]
pub(super) struct Shared(Model);

impl Shared {
    pub(super) fn lru(model: &Section<'_>) -> Result<Self> {
        let (least, most) = lru_radii(model, 0.4, 0.99)?;
        let angle: f64 = model.get("angle", 2.0 * std::f64::consts::PI)?;
        if !(angle > 0.0 && angle.is_finite()) {
            return Err(model.refuse("angle", &format!("must be a positive number of radians, but it is {angle}")));
        }
        Ok(Self(Model::Lru(least, most, angle)))
    }
    pub(super) fn s5(model: &Section<'_>) -> Result<Self> {
        let (least, most) = time_steps(model)?;
        Ok(Self(Model::S5(least, most)))
    }
    fn kind(&self) -> Kind {
        if matches!(self.0, Model::Lru(..)) { Kind::Lru } else { Kind::S5 }
    }
}

impl Provider for Shared {
    fn stages(&self, s: &Sizes) -> Result<Vec<Stage>> {
        let v = s.map("v", self.result(s), "v")?;
        let gates = SsmGates::new(self.kind(), s.batch, s.hidden, s.steps)?;
        let scan = LinearScan::new(s.batch, s.hidden, s.steps)?.with_dtype(crate::Dtype::C64)?;
        let step = [("a", Tie::Value("a")), ("x", Tie::Value("drive"))];
        let of_gates = [&[("v", Tie::Value("v"))], &step[..]].concat();
        let of_scan = [&step[..], &[("h", Tie::Value("y"))]].concat();
        Ok(vec![v, Stage::new("gates", gates, &of_gates), Stage::new("scan", scan, &of_scan)])
    }
    /// Real and imaginary part of a state side by side, each state along time.
    fn result(&self, s: &Sizes) -> Channels {
        Channels::grouped(2 * s.hidden, s.hidden)
    }
    fn start(&self, to: &mut Start) -> Result<()> {
        let Sizes { inputs, hidden, .. } = to.sizes;
        match self.0 {
            Model::Lru(least, most, angle) => {
                let scale = 1.0 / (2.0 * inputs.max(1) as f64).sqrt();
                let weight = (0..2 * hidden * inputs).map(|_| scale * to.rng.normal()).collect();
                to.set("v.weight", weight)?;
                let p = lru::initialise(hidden, least, most, angle, &mut to.rng);
                to.set("gates.nu", p.nu)?;
                to.set("gates.phi", p.phi)?;
            }
            Model::S5(least, most) => {
                let (lambda, vectors) = s5::hippo(2 * hidden);
                let scale = 1.0 / (inputs.max(1) as f64).sqrt();
                let b: Vec<f64> = (0..2 * hidden * inputs).map(|_| scale * to.rng.normal()).collect();
                let b = s5::in_basis(&vectors, 2 * hidden, &b);
                // Rows of real and of imaginary parts in turn.
                let rows = b.chunks(inputs.max(1));
                let parts = rows.flat_map(|row| row.iter().map(|c| c.re).chain(row.iter().map(|c| c.im)));
                to.set("v.weight", parts.collect())?;
                to.set("gates.re", lambda.iter().map(|l| l.re).collect())?;
                to.set("gates.im", lambda.iter().map(|l| l.im).collect())?;
                let steps = (0..hidden).map(|_| to.rng.range(least.ln(), most.ln())).collect();
                to.set("gates.log_delta", steps)?;
            }
        }
        to.set("v.bias", vec![0.0; 2 * hidden])
    }
}
