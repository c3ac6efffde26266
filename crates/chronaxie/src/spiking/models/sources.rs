//! Cells without a state, which only send: Poisson sources, and spikes from a list.

use super::{Block, Kind, Model, Parameter, Twin, Variable};
use crate::config::short;

/// A Poisson source: fires in a step with probability `1 - e^(-rate dt)`, at most once.
#[derive(Debug)]
pub(super) struct Poisson;
/// Spikes of a file.
#[derive(Debug)]
pub(super) struct Replay;

const RATE: &[Parameter] = &[Parameter { name: "rate", unit: "Hz", default: 10.0 }];

impl Model for Poisson {
    fn name(&self) -> &'static str {
        "poisson"
    }
    fn aliases(&self) -> &'static [&'static str] {
        &["poisson_generator"]
    }
    fn kind(&self) -> Kind {
        Kind::Poisson
    }
    fn parameters(&self) -> &'static [Parameter] {
        RATE
    }
    fn variables(&self) -> &'static [Variable] {
        &[]
    }
    fn ports(&self) -> &'static [&'static str] {
        &[]
    }
    fn weight_unit(&self) -> &'static str {
        ""
    }
    fn problem(&self, p: &[f64], dt_ms: f64) -> Option<String> {
        let mean = p[0] * dt_ms * 1e-3;
        if mean.is_nan() || mean < 0.0 {
            return Some(format!("has rate = {} Hz, which must be a number and not negative", short(p[0])));
        }
        (mean > 1.0)
            .then(|| format!("has rate = {} Hz, which is more than one spike a step of {dt_ms} ms", short(p[0])))
    }
    fn coefficient_count(&self) -> usize {
        0
    }
    fn coefficients(&self, _: &[f64], _: f64, _: &mut [f32]) {}
    fn law(&self, _: &[f64], _: f64, _: &mut [f64], _: &[f64]) -> bool {
        false
    }
    fn twin(&self) -> Twin {
        Twin::Poisson
    }
    fn step(&self, _: &mut Block<'_>) {}
}

impl Model for Replay {
    fn name(&self) -> &'static str {
        "spikes"
    }
    fn kind(&self) -> Kind {
        Kind::Replay
    }
    fn parameters(&self) -> &'static [Parameter] {
        &[]
    }
    fn variables(&self) -> &'static [Variable] {
        &[]
    }
    fn ports(&self) -> &'static [&'static str] {
        &[]
    }
    fn weight_unit(&self) -> &'static str {
        ""
    }
    fn problem(&self, _: &[f64], _: f64) -> Option<String> {
        None
    }
    fn coefficient_count(&self) -> usize {
        0
    }
    fn coefficients(&self, _: &[f64], _: f64, _: &mut [f32]) {}
    fn law(&self, _: &[f64], _: f64, _: &mut [f64], _: &[f64]) -> bool {
        false
    }
    fn twin(&self) -> Twin {
        Twin::Replay
    }
    fn step(&self, _: &mut Block<'_>) {}
}
