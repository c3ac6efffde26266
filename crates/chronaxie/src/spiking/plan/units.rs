//! The units of weights: of each port a power of two.
//!
//! Weights of 16 bits are multiples of the finest power of two at which the largest weight into the port fits, whatever bits that has.
//! Where a projection into the port has weights of 32 bits, sums are counted in a unit that is finer by up to 16 bits: the finest at which
//! the inputs of a cell are not expected to add up beyond 32 bits. What has 16 bits is then a multiple of more than one of them, and has
//! the value that it had.

use super::Plan;
use crate::config::short;
use crate::spiking::network::distribution::Distribution;
use crate::spiking::network::weights::{Curve, Quantiles, single};
use crate::spiking::network::{Codes, DriveKind, Edge, Projection, Rule, WeightBits, Weights};
use crate::spiking::plan::poisson_thresholds;
use crate::spiking::plasticity::Plasticity;
use crate::{Error, Result};

/// The most bits by which a unit is finer than that of weights of 16 bits: then weights have 31, and a sign.
const MOST_SHIFT: u32 = 16;
/// The finest unit, which single precision still has.
const FINEST: f64 = 7.523_163_845_262_64e-37;
/// How much larger sums may be than they are expected to be at most.
const MARGIN: f64 = 2.0;
/// Likewise where cells are born, whose weights wander.
const MARGIN_OF_LIFE: f64 = 4.0;

/// What the quantisation of a projection's weights costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantisation {
    /// `source -> target`.
    pub projection: String,
    /// The value of a weight of 1.
    pub unit: f64,
    /// The largest error.
    pub largest_error: f64,
    /// The largest error over the mean weight's size.
    pub relative_error: f64,
}

/// The number of a weight of 32 bits: rounded to single precision first, so that it is rounded once where that is less precise.
fn nearest(weight: f64, unit: f64) -> i32 {
    single((f64::from(weight as f32) / unit).round() as i32)
}

/// What can arrive at a port at once, at most.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// The sum of the sizes of weights, what those of 16 bits lose by rounding left out.
    sum: f64,
    /// Synapses whose weights have 16 bits, and others.
    short: f64,
    long: f64,
}

impl WeightBits {
    /// The numbers of a distribution, in multiples of `unit`, which is `2^shift` of the port's; `None` where 16 bits do not hold them.
    pub(super) fn weights(self, d: &Distribution, unit: f64, shift: u32) -> Option<Weights> {
        match (self, d.constant()) {
            (Self::Sixteen, _) => Codes::new(d, unit).map(|codes| Weights::Codes { codes, shift }),
            (Self::ThirtyTwo, Some(x)) => Some(Weights::Codes { codes: Codes::one(nearest(x, unit)), shift: 0 }),
            (Self::ThirtyTwo, None) => Some(Weights::Curve(Curve::new(&Quantiles::new(d), unit))),
        }
    }
}

impl Plan {
    /// The finest power of two at which every weight into a port is an i16.
    pub(super) fn choose_units(&mut self) -> Result<()> {
        let mut largest: Vec<Vec<f64>> = self.units.iter().map(|u| vec![0.0; u.len()]).collect();
        let mut all_ends = Vec::new();
        let n = &self.network;
        for (i, p) in n.projections.iter().enumerate() {
            let label = self.label(i);
            if self.models[p.target].ports().is_empty() {
                let model = self.models[p.target].name();
                return Err(Error::config(format!("projection {label}: cells of {model} take no synapses")));
            }
            let ends = match &p.rule {
                Rule::Edges(edges) => edges.iter().fold((0f64, 0f64), |(low, high), e| {
                    let w = f64::from(e.weight);
                    (if w < low { w } else { low }, if w > high { w } else { high })
                }),
                _ => {
                    if let Some(problem) = p.weight.problem() {
                        return Err(Error::config(format!("projection {label}: weight {problem}")));
                    }
                    (p.weight.quantile(1e-10), p.weight.quantile(1.0 - 1e-10))
                }
            };
            let ends = if n.mutates(i) { n.weight_range(i) } else { ends };
            let most = &mut largest[p.target];
            let last = most.len() - 1;
            if let Some(bound) = p.plasticity.and_then(|x| x.bounds()).map(|b| b.1).filter(|w| w.is_finite()) {
                let port = if ends.0 < 0.0 { last } else { 0 };
                most[port] = most[port].max(bound);
            }
            most[last] = most[last].max(-ends.0);
            most[0] = most[0].max(ends.1);
            all_ends.push(ends);
        }
        for d in &n.drives {
            if let DriveKind::Poisson { weight, .. } = d.kind {
                let port = self.models[d.target].ports().len().saturating_sub(1) * usize::from(weight < 0.0);
                match largest[d.target].get_mut(port) {
                    Some(most) => *most = most.max(weight.abs()),
                    None => {
                        let p = &n.populations[d.target];
                        return Err(Error::config(format!("drive of {}: its cells take no input", p.name)));
                    }
                }
            }
        }
        for (units, largest) in self.units.iter_mut().zip(largest) {
            for (unit, most) in units.iter_mut().zip(largest).filter(|(_, most)| *most > 0.0) {
                if !(1e-30..1e30).contains(&most) {
                    return Err(Error::config(format!(
                        "a weight of {most} is beyond what weights can be",
                        most = short(most)
                    )));
                }
                *unit = 2f64.powi(-120);
                while most / *unit > 32_767.0 {
                    *unit *= 2.0;
                }
            }
        }
        self.refine_units(&all_ends);
        Ok(())
    }

    /// What the weights of each projection lose by being whole numbers.
    pub fn quantisation(&self) -> Vec<Quantisation> {
        (0..self.network.projections.len()).map(|i| self.quantisation_of(i)).collect()
    }

    fn quantisation_of(&self, i: usize) -> Quantisation {
        let p = &self.network.projections[i];
        let (mean, size) = match &p.rule {
            Rule::Edges(edges) => {
                let mean = |of: fn(f32) -> f32| {
                    edges.iter().map(|e| f64::from(of(e.weight))).sum::<f64>() / edges.len().max(1) as f64
                };
                (mean(|w| w), mean(f32::abs))
            }
            _ => (p.weight.mean(), p.weight.mean().abs()),
        };
        let (unit, _) = self.grain(i, mean < 0.0);
        let largest_error = self.largest_error(i, unit);
        let relative_error = if size != 0.0 { largest_error / size } else { 0.0 };
        Quantisation { projection: self.label(i), unit, largest_error, relative_error }
    }

    /// Makes the units of ports finer into which weights of 32 bits go; `ends` are the least and the greatest weight of each projection.
    fn refine_units(&mut self, ends: &[(f64, f64)]) {
        let n = &self.network;
        let long = |p: &Projection| p.weight_bits == WeightBits::ThirtyTwo && p.plasticity.is_none();
        if !n.projections.iter().any(long) {
            return;
        }
        let mut loads: Vec<Vec<Load>> = self.units.iter().map(|u| vec![Load::default(); u.len()]).collect();
        let mut known: Vec<(Distribution, [f64; 2])> = Vec::new();
        let mut wanted: Vec<Vec<bool>> = self.units.iter().map(|u| vec![false; u.len()]).collect();
        for (i, p) in n.projections.iter().enumerate() {
            let inhibits = ends[i].0 < 0.0;
            let ports = if matches!(p.rule, Rule::Edges(_)) { vec![false, true] } else { vec![inhibits] };
            let mut done = None;
            for negative in ports {
                let port = self.port(p.target, negative);
                if done.replace(port) == Some(port) {
                    continue;
                }
                let (sum, count) = self.brought(i, port, ends[i], &mut known);
                let load = &mut loads[p.target][port];
                load.sum += sum;
                *if long(p) { &mut load.long } else { &mut load.short } += count;
                wanted[p.target][port] |= long(p) && count > 0.0;
            }
        }
        for d in &n.drives {
            if let DriveKind::Poisson { rate_hz, weight, .. } = d.kind {
                let load = &mut loads[d.target][self.port(d.target, weight < 0.0)];
                // More than there is a table for is refused later.
                let most = poisson_thresholds(rate_hz * n.dt_ms * 1e-3).map_or(0, |t| t.len() + 1) as f64;
                (load.sum, load.short) = (load.sum + most * weight.abs(), load.short + most);
            }
        }
        for (p, own) in loads.iter().enumerate() {
            for (port, load) in own.iter().enumerate().filter(|(port, _)| wanted[p][*port]) {
                let coarse = self.units[p][port];
                let fits = |shift: &u32| {
                    let unit = coarse / f64::from(1u32 << shift);
                    // Each weight is rounded, and to single precision.
                    let sum = (load.sum * (1.0 + 1e-6) + 0.5 * coarse * load.short) / unit + 0.5 * load.long;
                    unit >= FINEST && sum <= f64::from(i32::MAX)
                };
                let shift = (0..=MOST_SHIFT).rev().find(fits).unwrap_or(0);
                self.shifts[p][port] = shift;
                self.units[p][port] = coarse / f64::from(1u32 << shift);
            }
        }
    }

    /// The largest sum of weights that a projection is expected to bring to a cell's port at once, and of how many; what can be proven
    /// where that is less.
    fn brought(
        &self,
        projection: usize,
        port: usize,
        ends: (f64, f64),
        known: &mut Vec<(Distribution, [f64; 2])>,
    ) -> (f64, f64) {
        let n = &self.network;
        let p = &n.projections[projection];
        let [sources, targets] = [p.source, p.target].map(|i| f64::from(n.populations[i].size));
        let (mut largest, mut wanders) = (ends.1.max(-ends.0), n.mutates(projection));
        // What synapses that change can grow to.
        let grows = |x: &Plasticity| x.stdp.is_some() || x.hebb.is_some() || x.bcm.is_some();
        let grown = p.plasticity.filter(|x| grows(x) || x.homeostasis.is_some() || x.coincidence.is_some());
        let most = grown.map(|x| x.bounds().map_or(f64::INFINITY, |b| b.1).min(32_768.0 * self.units[p.target][port]));
        if let Some(most) = most {
            (largest, wanders) = (most, false);
        }
        if let Rule::Edges(edges) = &p.rule {
            let (sum, count) = self.listed(projection, port, edges);
            let least = most.or(wanders.then_some(largest)).map_or(0.0, |most| most * count);
            return (sum.max(least), count);
        }
        let provable = match p.rule {
            Rule::OneToOne => 1.0,
            Rule::InDegree { count, .. } => f64::from(count),
            Rule::Total { count, multapses: true } => count as f64,
            Rule::OutDegree { count, multapses: true } => f64::from(count) * sources,
            _ => sources,
        };
        let [size, square] = match (most, p.weight.constant()) {
            (Some(x), _) | (None, Some(x)) => [x.abs(), x * x],
            _ => known.iter().find(|(d, _)| *d == p.weight).map(|(_, moments)| *moments).unwrap_or_else(|| {
                let moments = Quantiles::new(&p.weight).moments();
                known.push((p.weight, moments));
                moments
            }),
        };
        let mean = self.expected(projection) / targets.max(1.0);
        let margin = if wanders { MARGIN_OF_LIFE } else { MARGIN };
        let sum = margin * (mean * size + 8.0 * (mean * square).sqrt()) + 2.0 * largest;
        let count = MARGIN * (mean + 8.0 * mean.sqrt() + 2.0);
        (sum.min(provable * largest), count.min(provable))
    }

    /// The largest sum of a list of edges into a port of one of its targets, and the largest number of them.
    fn listed(&self, projection: usize, port: usize, edges: &[Edge]) -> (f64, f64) {
        let target = self.network.projections[projection].target;
        let mut all = vec![(0.0, 0.0); self.network.populations[target].size as usize];
        for e in edges.iter().filter(|e| self.port(target, e.weight < 0.0) == port) {
            // Others are refused later.
            if let Some((sum, count)) = all.get_mut(e.target as usize) {
                (*sum, *count) = (*sum + f64::from(e.weight.abs()), *count + 1.0);
            }
        }
        all.into_iter().fold((0.0, 0.0), |most: (f64, f64), own| (most.0.max(own.0), most.1.max(own.1)))
    }

    /// What the weights of a projection, of one sign, are multiples of, and by how many bits their numbers are shifted to be such of
    /// the port's unit. Synapses that change have strengths, which are not shifted.
    pub(in crate::spiking) fn grain(&self, projection: usize, negative: bool) -> (f64, u32) {
        let p = &self.network.projections[projection];
        let port = self.port(p.target, negative);
        match (p.weight_bits, p.plasticity) {
            (WeightBits::ThirtyTwo, None) => (self.units[p.target][port], 0),
            (_, Some(_)) => (self.coarse_unit(p.target, port), 0),
            (WeightBits::Sixteen, None) => (self.coarse_unit(p.target, port), self.shifts[p.target][port]),
        }
    }

    /// The unit of weights of 16 bits into a port.
    pub(in crate::spiking) fn coarse_unit(&self, population: usize, port: usize) -> f64 {
        self.units[population][port] * f64::from(1u32 << self.shifts[population][port])
    }

    /// The number of a weight of a list.
    pub(in crate::spiking) fn number(&self, projection: usize, weight: f64) -> i32 {
        let (unit, shift) = self.grain(projection, weight < 0.0);
        match self.network.projections[projection].weight_bits {
            WeightBits::Sixteen => ((weight / unit).round() as i32) << shift,
            WeightBits::ThirtyTwo => nearest(weight, unit),
        }
    }

    /// Whether synapses onto a population have weights that 16 bits do not hold.
    pub(in crate::spiking) fn is_long(&self, population: usize) -> bool {
        self.shifts[population].iter().any(|shift| *shift > 0)
    }

    /// Whether those of some of these projections have.
    pub(in crate::spiking) fn has_long(&self, of: impl Fn(usize) -> bool) -> bool {
        let all = self.network.projections.iter().enumerate();
        all.filter(|(i, p)| p.plasticity.is_none() && self.is_long(p.target) && of(*i)).count() > 0
    }

    /// Why the weights of a projection are no finer, in a sentence's end.
    pub(super) fn coarse(&self, projection: usize) -> String {
        let p = &self.network.projections[projection];
        let target = &self.network.populations[p.target].name;
        match p.weight_bits {
            WeightBits::Sixteen => format!(
                "since the largest weight into the same port sets their unit; make the weights of {target} more alike{}",
                if p.plasticity.is_none() { ", or say weight_bits = 32, which takes 8 bytes a synapse" } else { "" }
            ),
            WeightBits::ThirtyTwo => format!(
                "since what the inputs of a cell can add up to sets their unit; fewer inputs of {target}, or a bound to the largest ones, \
                 make it finer"
            ),
        }
    }

    /// What the weights of a projection lose on average, over their mean size.
    pub(super) fn rounding(&self, projection: usize) -> f64 {
        let own = self.quantisation_of(projection);
        let p = &self.network.projections[projection];
        if p.weight_bits == WeightBits::Sixteen || p.weight.constant().is_some() || own.largest_error == 0.0 {
            return own.relative_error;
        }
        // Single precision is the same share of each weight.
        own.relative_error * (own.unit / 2.0 / own.largest_error).min(1.0)
    }

    fn largest_error(&self, projection: usize, unit: f64) -> f64 {
        let p = &self.network.projections[projection];
        let long = p.weight_bits == WeightBits::ThirtyTwo;
        let ends = match &p.rule {
            Rule::Edges(edges) => edges.iter().map(|e| e.weight.abs()).fold(0f32, f32::max).into(),
            _ => match p.weight.constant() {
                Some(w) => {
                    let kept = if long { nearest(w, unit).into() } else { (w / unit).round() };
                    return (kept * unit - w).abs();
                }
                None if long => p.weight.quantile(1e-10).abs().max(p.weight.quantile(1.0 - 1e-10).abs()),
                None => 0.0,
            },
        };
        // Of drawn ones both the line's end and what lies on it are rounded.
        let rounded = if long && !matches!(p.rule, Rule::Edges(_)) { unit } else { unit / 2.0 };
        if long { (ends / f64::from(1u32 << 25)).max(rounded) } else { rounded }
    }
}
