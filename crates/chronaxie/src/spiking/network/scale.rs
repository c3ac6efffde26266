//! Smaller networks with the statistics of the full one.
//!
//! At scale f there are f times the cells with f times the synapses each; weights grow by `1 / sqrt(f)`, which keeps the
//! variance of the input, and a current replaces the mean that is lost, `(1 - sqrt f)` of the full network's mean input
//! at the published rates (van Albada, Helias and Diesmann, PLOS Comput. Biol. 11:e1004490, 2015). Correlations grow.

use super::{DriveKind, Network, Rule};
use crate::config::short;
use crate::{Error, Result};
use std::sync::Arc;

/// Scales `network` by `f`; what was not compensated is said in the sentences returned.
///
/// # Errors
/// `Config`, where f is not in (0, 1], a population would be empty, or a rule cannot be scaled.
pub fn scale(network: &mut Network, f: f64) -> Result<Vec<String>> {
    if !(f > 0.0 && f <= 1.0) {
        return Err(Error::config(format!("simulation.scale is {f}: a scale is above 0 and at most 1", f = short(f))));
    }
    let mut notes = Vec::new();
    if f == 1.0 {
        return Ok(notes);
    }
    let lost = 1.0 - f.sqrt();
    let full: Vec<u32> = network.populations.iter().map(|p| p.size).collect();
    let mut current = vec![0.0; full.len()];
    for p in &network.projections {
        let (sources, targets) = (f64::from(full[p.source]), f64::from(full[p.target]));
        let in_degree = match p.rule {
            Rule::AllToAll => sources,
            Rule::OneToOne => 1.0,
            Rule::Probability(x) => x * sources,
            Rule::InDegree { count, .. } => f64::from(count),
            Rule::OutDegree { count, .. } => f64::from(count) * sources / targets,
            Rule::Total { count, .. } => count as f64 / targets,
            Rule::Distance { .. } | Rule::Edges(_) => {
                return Err(Error::config(
                    "simulation.scale: a network with edge lists, frames or distance rules has no smaller form",
                ));
            }
        };
        let name = &network.populations[p.source].name;
        let Some(rate) = network.populations[p.source].reference.rate_hz else {
            let note =
                format!("simulation.scale: {name} has no reference.rate_hz, so its mean input is not compensated");
            if !notes.contains(&note) {
                notes.push(note);
            }
            continue;
        };
        let mean = p.weight.mean();
        match charge(network, p.target, mean) {
            Some(charge) => current[p.target] += lost * mean * in_degree * rate * 1e-3 * charge,
            None => notes.push(format!(
                "simulation.scale: inputs of {} are no currents, so their mean is not compensated",
                network.populations[p.target].name
            )),
        }
    }
    for drive in &network.drives {
        if let DriveKind::Poisson { rate_hz, weight, .. } = drive.kind
            && let Some(charge) = charge(network, drive.target, weight)
        {
            current[drive.target] += lost * weight * rate_hz * 1e-3 * charge;
        }
    }
    for (i, p) in network.populations.iter_mut().enumerate() {
        p.size = (f64::from(p.size) * f).round() as u32;
        if p.size == 0 {
            return Err(Error::config(format!(
                "simulation.scale is {f}: population {} of {} cells would be empty",
                p.name, full[i]
            )));
        }
        if let Some(positions) = &p.positions {
            // Every k-th cell, so that the box stays filled.
            let pick = |j: u32| positions[(u64::from(j) * u64::from(full[i]) / u64::from(p.size)) as usize];
            p.positions = Some(Arc::new((0..p.size).map(pick).collect()));
        }
        if p.replay.is_some() || p.given != super::Given::default() {
            let what = if p.replay.is_some() { "the spikes" } else { "values" };
            return Err(Error::config(format!("simulation.scale: {what} of {} are given cell by cell", p.name)));
        }
    }
    let few = |count: u32| ((f64::from(count) * f).round() as u32).max(1);
    for p in &mut network.projections {
        p.weight = p.weight.scaled(1.0 / f.sqrt());
        p.plasticity = p.plasticity.map(|x| x.scaled(1.0 / f.sqrt()));
        match &mut p.rule {
            Rule::InDegree { count, .. } | Rule::OutDegree { count, .. } => *count = few(*count),
            Rule::Total { count, .. } => *count = (*count as f64 * f * f).round() as u64,
            _ => {}
        }
    }
    if let Some(life) = &mut network.lifecycle {
        life.mutation_std_weights.iter_mut().for_each(|sd| *sd /= f.sqrt());
    }
    for drive in &mut network.drives {
        if let DriveKind::Poisson { rate_hz, weight, .. } = &mut drive.kind {
            *rate_hz *= f;
            *weight /= f.sqrt();
        }
    }
    for (target, current) in current.into_iter().enumerate().filter(|(_, current)| *current != 0.0) {
        network.drives.push(super::Drive { target, kind: DriveKind::Dc { current } });
    }
    Ok(notes)
}

/// What an arrival at the port of weights like `weight` is worth as a current times ms.
fn charge(network: &Network, target: usize, weight: f64) -> Option<f64> {
    let p = &network.populations[target];
    let parameters: Vec<f64> = p.parameters.iter().map(super::Distribution::mean).collect();
    let port = if weight < 0.0 { p.model.ports().len().saturating_sub(1) } else { 0 };
    p.model.charge(&parameters, port)
}
