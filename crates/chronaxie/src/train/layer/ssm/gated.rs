//! Real states with gates within 0 and 1: minGRU, RG-LRU, and decays that are the same at all times.

use super::{Provider, Sizes, Stage, Start, Tie};
use crate::Result;
use crate::config::Section;
use crate::layers::ssm::gates::Kind;
use crate::layers::ssm::providers::{gated, lru};
use crate::layers::ssm::{LinearScan, SsmGates};

/// The maps of `inputs`, the gates that `kind` makes of them, and the scan.
fn stages(s: &Sizes, kind: Kind) -> Result<Vec<Stage>> {
    let inputs = kind.form().inputs;
    let mut stages = inputs.iter().map(|&name| s.channels(name, name)).collect::<Result<Vec<_>>>()?;
    let mut ties: Vec<_> = inputs.iter().map(|&name| (name, Tie::Value(name))).collect();
    // The scan's input is not the batch, which has its name.
    ties.extend([("a", Tie::Value("a")), ("x", Tie::Value("drive"))]);
    stages.push(Stage::new("gates", SsmGates::new(kind, s.batch, s.hidden, s.steps)?, &ties));
    let ties = [("a", Tie::Value("a")), ("x", Tie::Value("drive")), ("h", Tie::Value("y"))];
    stages.push(Stage::new("scan", LinearScan::new(s.batch, s.hidden, s.steps)?, &ties));
    Ok(stages)
}

fn start(kind: Kind, to: &mut Start) -> Result<()> {
    kind.form().inputs.iter().try_for_each(|name| to.map(name, to.sizes.hidden))
}

/// `h_t = (1 - z_t) h_{t-1} + z_t v_t`.
#[derive(Debug)]
pub(super) struct MinGru;

impl Provider for MinGru {
    fn stages(&self, s: &Sizes) -> Result<Vec<Stage>> {
        stages(s, Kind::MinGru)
    }
    fn start(&self, to: &mut Start) -> Result<()> {
        start(Kind::MinGru, to)
    }
}

/// Griffin's recurrence.
#[derive(Debug)]
pub(super) struct RgLru;

impl Provider for RgLru {
    fn stages(&self, s: &Sizes) -> Result<Vec<Stage>> {
        stages(s, Kind::RgLru)
    }
    fn start(&self, to: &mut Start) -> Result<()> {
        start(Kind::RgLru, to)?;
        let lambda = gated::rglru_initialise(to.sizes.hidden, &mut to.rng);
        to.set("gates.lambda", lambda)
    }
}

/// A decay a channel, at all times: LRU without its angles.
#[derive(Debug)]
pub(super) struct Decay {
    least: f64,
    most: f64,
}

impl Decay {
    pub(super) fn read(model: &Section<'_>) -> Result<Self> {
        let (least, most) = lru_radii(model, 0.5, 0.999)?;
        Ok(Self { least, most })
    }
}

impl Provider for Decay {
    fn stages(&self, s: &Sizes) -> Result<Vec<Stage>> {
        stages(s, Kind::Decay)
    }
    fn start(&self, to: &mut Start) -> Result<()> {
        start(Kind::Decay, to)?;
        let p = lru::initialise(to.sizes.hidden, self.least, self.most, 1.0, &mut to.rng);
        to.set("gates.nu", p.nu)
    }
}

/// The least and the most radius that states start with.
pub(super) fn lru_radii(model: &Section<'_>, least: f64, most: f64) -> Result<(f64, f64)> {
    let (least, most) = (model.get("radius_min", least)?, model.get("radius_max", most)?);
    for (key, r) in [("radius_min", least), ("radius_max", most)] {
        if !(0.0..1.0).contains(&r) {
            return Err(model.refuse(key, &format!("must be from 0 to below 1, but it is {r}")));
        }
    }
    if least > most {
        return Err(model.refuse("radius_min", &format!("is {least}, above radius_max = {most}")));
    }
    Ok((least, most))
}
