//! Drives of a plan: the arrivals of Poisson drives as tables of thresholds.

use super::math;
use super::network::{DriveKind, Key};
use super::plan::Plan;
use crate::config::short;
use crate::{Error, Result};

/// Arrivals of a Poisson drive in a step: as many as there are thresholds that 32 uniform bits reach.
#[derive(Debug, Clone, PartialEq)]
pub struct PoissonTable {
    /// Index of the population that receives it.
    pub target: usize,
    /// Index of the port.
    pub port: usize,
    /// `2^32 P(count <= k)`.
    pub thresholds: Vec<u32>,
    /// An arrival's weight, in units.
    pub code: i32,
    /// From this step.
    pub start: u64,
    /// Until before this step.
    pub stop: u64,
    /// By what its arrivals are drawn.
    pub key: Key,
}

impl Plan {
    pub(super) fn tabulate_drives(&mut self) -> Result<()> {
        let dt = self.network.dt_ms;
        for (index, d) in self.network.drives.iter().enumerate() {
            let name = &self.network.populations[d.target].name;
            let refuse = |what: String| Err(Error::config(format!("drive of {name}: {what}")));
            match d.kind {
                DriveKind::Poisson { rate_hz, weight, start_ms, stop_ms } => {
                    let mean = rate_hz * dt * 1e-3;
                    if !(mean >= 0.0 && weight.is_finite()) {
                        return refuse(format!(
                            "a rate of {rate_hz} Hz and a weight of {weight} make no drive",
                            rate_hz = short(rate_hz),
                            weight = short(weight)
                        ));
                    }
                    let port = self.port(d.target, weight < 0.0);
                    let Some(thresholds) = poisson_thresholds(mean) else {
                        return refuse(format!(
                            "{mean} arrivals a step are more than 500; use a DC current for the mean",
                            mean = short(mean)
                        ));
                    };
                    // As weights of 16 bits.
                    let (unit, more) =
                        (self.coarse_unit(d.target, port), f64::from(1u32 << self.shifts[d.target][port]));
                    let code = ((weight / unit).round() * more) as i32;
                    let step = |ms: f64| if ms >= 1e15 { u64::MAX } else { (ms / dt).round().max(0.0) as u64 };
                    let (start, stop, key) = (step(start_ms), step(stop_ms), self.network.drive_key(index));
                    self.poisson.push(PoissonTable { target: d.target, port, thresholds, code, start, stop, key });
                }
                DriveKind::Dc { current } => {
                    if !(current as f32).is_finite() || self.models[d.target].current().is_none() {
                        return refuse(format!(
                            "{} takes no current of {}",
                            self.models[d.target].name(),
                            short(current)
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// `2^32 P(count <= k)` for k from 0 until the rest is below 2^-32; `None` for a mean above 500.
pub fn poisson_thresholds(mean: f64) -> Option<Vec<u32>> {
    if !(0.0..=500.0).contains(&mean) {
        return None;
    }
    let (mut p, mut sum, mut k) = (math::exp(-mean), 0.0, 0.0);
    let mut thresholds = Vec::new();
    loop {
        sum += p;
        let t = (sum * 4_294_967_296.0).round();
        if t >= 4_294_967_296.0 || k > mean + 60.0 * (mean + 1.0).sqrt() {
            return Some(thresholds);
        }
        thresholds.push(t as u32);
        k += 1.0;
        p = p * mean / k;
    }
}
