//! The networks of the benchmarks, from their cases.

use crate::config::Config;
use crate::op::Case;
use crate::spiking::models;
use crate::spiking::network::read::read;
use crate::spiking::network::{
    Delay, Distribution, Drive, DriveKind, Network, Outside, Population, Projection, Rule, Shape, Storage,
};
use crate::spiking::plasticity::{Dependence, Pairs, Placement, Plasticity, Stdp};
use crate::{Error, Result};

/// `examples/microcircuit.toml`, so that the program needs no file.
pub(super) const MICROCIRCUIT: &str = include_str!("microcircuit.toml");
/// The case's words, and what the description is set to.
const MICROCIRCUITS: [(&str, &[&str]); 3] = [
    ("full_poisson", &[]),
    ("full_dc", &["simulation.variant=\"dc\""]),
    ("full_poisson_stdp", &["simulation.plasticity=true"]),
];
/// In-degree for which the weights of `network` are, of which a fifth are inhibitory.
const IN_DEGREE: f64 = 1000.0;
/// Step and longest delay of `network`, ms, and arrivals of its drive a second, for which its cells fire 5 Hz.
const STEPS: [(f64, f64, f64); 2] = [(0.1, 6.4, 17_000.0), (1.0, 20.0, 17_200.0)];
/// What the cells of `network` are meant to fire with its in-degree, Hz.
const RATE_HZ: [f64; 2] = [4.5, 5.5];
/// The most networks side by side.
const MOST_REPLICAS: u64 = 4096;
/// The most cells, as their numbers have 32 bits.
const MOST_CELLS: usize = 4_000_000_000;
/// Discarded at the least, ms: as much is held against another engine.
pub(super) const LEAST_DISCARD_MS: f64 = 20.0;

/// What is timed of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    /// Whole simulations.
    All,
    /// States advance.
    Update,
    /// Synapses are delivered.
    Delivery,
    /// Likewise, of synapses that change.
    Learning,
}

/// A network and how it is run.
#[derive(Debug)]
pub(super) struct Workload {
    pub network: Network,
    pub section: Section,
    /// Before the first timed run.
    pub discard_ms: f64,
    /// Of a timed run; `None` where it is as long as the clock needs.
    pub run_ms: Option<f64>,
    /// GPUs that share the network.
    pub gpus: usize,
    /// What its cells are meant to fire.
    pub rate_hz: Option<[f64; 2]>,
}

/// The number of an option, within these bounds.
fn number(case: &Case, name: &str, default: f64, [low, high]: [f64; 2]) -> Result<f64> {
    let value: f64 = case.get(name, default)?;
    if value >= low && value <= high {
        return Ok(value);
    }
    Err(Error::config(format!("case `{case}`: {name}={value} must lie between {low} and {high}")))
}

/// The size of an axis, within these bounds.
fn size(case: &Case, axis: &str, what: &str, [low, high]: [usize; 2]) -> Result<u32> {
    let n = case.size(axis)?;
    if (low..=high).contains(&n) {
        return Ok(n as u32);
    }
    Err(Error::config(format!("case `{case}`: {n} {what} must lie between {low} and {high}")))
}

/// Options that every case has: its spikes are the same with any precision that there is.
fn common(case: &Case, axes: &[&str], options: &[&str]) -> Result<()> {
    case.allow_sizes(axes, &[options, &["seed", "ms", "discard", "precision"]].concat())?;
    match case.option("precision") {
        None | Some("exact") => Ok(()),
        Some(other) => Err(Error::config(format!(
            "case `{case}`: precision={other}: spikes are the same bits everywhere, so exact is the only precision"
        ))),
    }
}

fn run_ms(case: &Case, default: Option<f64>) -> Result<Option<f64>> {
    match (case.option("ms"), default) {
        (None, None) => Ok(None),
        (_, default) => number(case, "ms", default.unwrap_or(0.0), [1.0, 1e6]).map(Some),
    }
}

fn discard(case: &Case, default: f64) -> Result<f64> {
    number(case, "discard", default, [LEAST_DISCARD_MS, 1e6])
}

/// As many of a network side by side as a case asks for, with seeds from its own on.
fn replicas(case: &Case, network: Network) -> Result<Network> {
    if case.option("replicas").is_none() {
        return Ok(network);
    }
    let count: u64 = case.get("replicas", 1)?;
    if !(1..=MOST_REPLICAS).contains(&count) {
        return Err(Error::config(format!("case `{case}`: replicas={count} must lie between 1 and {MOST_REPLICAS}")));
    }
    let one = |k| Network { seed: network.seed + k, ..network.clone() };
    Network::together(&(0..count).map(one).collect::<Vec<_>>())
}

/// `full_poisson`, `full_dc`, `full_poisson_stdp`; options `scale`, `gpus`, `replicas`, `seed`, `ms`, `discard`.
pub(super) fn microcircuit(case: &Case) -> Result<Workload> {
    let words = case.words();
    let Some((_, sets)) = MICROCIRCUITS.iter().find(|(name, _)| *name == words) else {
        let names = MICROCIRCUITS.map(|(name, _)| name);
        let near = crate::config::nearest(&words, names);
        let hint = near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
        return Err(Error::config(format!("case `{case}` is not one of {}{hint}", names.join(", "))));
    };
    common(case, &[], &["scale", "gpus", "replicas"])?;
    let scale = number(case, "scale", 1.0, [1e-3, 1.0])?;
    let mut config = Config::parse(MICROCIRCUIT, "the built-in microcircuit")?;
    sets.iter().try_for_each(|set| config.set(set))?;
    config.set(&format!("simulation.scale={scale:?}"))?;
    if let Some(seed) = seed(case)? {
        config.set(&format!("simulation.seed={seed}"))?;
    }
    let settings = read(&config)?;
    Ok(Workload {
        network: replicas(case, settings.network)?,
        section: Section::All,
        discard_ms: discard(case, settings.discard_ms)?,
        run_ms: run_ms(case, Some(1000.0))?,
        gpus: gpus(case)?,
        rate_hz: None,
    })
}

fn seed(case: &Case) -> Result<Option<u32>> {
    case.option("seed").map(|_| case.get("seed", 1)).transpose()
}

fn gpus(case: &Case) -> Result<usize> {
    Ok(number(case, "gpus", 1.0, [1.0, 8.0])?.round() as usize)
}

fn population(name: &str, model: &str, size: u32) -> Result<Population> {
    let model = models::find(model).map_err(|e| Error::config(format!("model {model:?} {e}")))?;
    Ok(Population::new(name, model, size))
}

fn lif(name: &str, size: u32) -> Result<Population> {
    let mut cells = population(name, "lif_exp", size)?;
    cells.initial[0] = Distribution::uniform(-65.0, -50.0);
    Ok(cells)
}

fn normal(mean: f64) -> Distribution {
    let all = Distribution::normal(mean, 0.1 * mean.abs());
    match mean > 0.0 {
        true => all.within(0.0, f64::INFINITY, Outside::Redraw),
        false => all.within(f64::NEG_INFINITY, 0.0, Outside::Redraw),
    }
}

/// Synapses onto each cell, or from each, as they are asked for.
fn connect(case: &Case, onto: Projection, from: u32) -> Result<Projection> {
    let mut p = onto;
    match case.option("rule") {
        None | Some("fixed_indegree") => {}
        Some("fixed_outdegree") => p.rule = Rule::OutDegree { count: from, multapses: true },
        Some(other) => {
            return Err(Error::config(format!("case `{case}`: rule={other} is fixed_indegree or fixed_outdegree")));
        }
    }
    let word = case.option("synapses").unwrap_or("stored");
    if !Storage::WORDS.contains(&word) {
        return Err(Error::config(format!("case `{case}`: synapses={word} is one of {}", Storage::WORDS.join(", "))));
    }
    p.storage = Storage::of(word);
    Ok(p)
}

fn in_degree(source: usize, target: usize, count: u32, weight: Distribution, [low, high]: [f64; 2]) -> Projection {
    let delay = match high > low {
        true => Distribution::new(Shape::Uniform { low, high }),
        false => low.into(),
    };
    Projection {
        source,
        target,
        rule: Rule::InDegree { count, multapses: true },
        weight,
        delay: Delay::Drawn(delay),
        autapses: true,
        plasticity: None,
        storage: Storage::Stored,
        weight_bits: Default::default(),
    }
}

fn dc(target: usize, current: f64) -> Drive {
    Drive { target, kind: DriveKind::Dc { current } }
}

/// `1000000x1000_dt0.1`: cells, synapses onto each, step. Four fifths of cells and of synapses are excitatory. Other in-degrees
/// have other weights with the same sum. With `rule=fixed_outdegree` each cell has as many targets in all, at random, which may be drawn
/// again at each spike (`synapses=procedural`).
pub(super) fn network(case: &Case) -> Result<Workload> {
    common(case, &["", "x", "dt"], &["gpus", "replicas", "rule", "synapses"])?;
    no_words(case)?;
    let cells = size(case, "", "cells", [10, MOST_CELLS])?;
    let degree = size(case, "x", "synapses a cell", [5, 100_000])?;
    let dt = case.decimal("dt").ok_or_else(|| Error::config(format!("case `{case}` has no size dt")))?;
    let Some((dt, longest, rate)) = STEPS.into_iter().find(|(known, ..)| *known == dt) else {
        return Err(Error::config(format!("case `{case}`: dt is 0.1 or 1, for which the drive is tuned, not {dt}")));
    };
    let factor = IN_DEGREE / f64::from(degree);
    let mut n = Network::new(dt, seed(case)?.unwrap_or(1).into())?;
    let inhibitory = [cells / 5, degree / 5];
    n.add(lif("E", cells - inhibitory[0])?);
    n.add(lif("I", inhibitory[0])?);
    for (source, count, weight) in [(0, degree - inhibitory[1], 40.0 * factor), (1, inhibitory[1], -200.0 * factor)] {
        for target in 0..2 {
            // As many in all, whichever side counts them.
            let sizes = [source, target].map(|p: usize| u64::from(n.populations[p].size));
            let from = (u64::from(count) * sizes[1] / sizes[0]) as u32;
            let onto = in_degree(source, target, count, normal(weight), [dt, longest]);
            n.projections.push(connect(case, onto, from)?);
        }
    }
    let kind = DriveKind::Poisson { rate_hz: rate, weight: 40.0, start_ms: 0.0, stop_ms: f64::INFINITY };
    n.drives.extend((0..2).map(|target| Drive { target, kind }));
    Ok(Workload {
        network: replicas(case, n)?,
        section: Section::All,
        discard_ms: discard(case, 500.0)?,
        run_ms: run_ms(case, Some(1000.0))?,
        gpus: gpus(case)?,
        rate_hz: (f64::from(degree) == IN_DEGREE).then_some(RATE_HZ),
    })
}

fn no_words(case: &Case) -> Result<()> {
    // Says which part is none of a size.
    if case.words().is_empty() { Ok(()) } else { case.allow(&[], &[]) }
}

/// `N1000000`: cells, a fifth of which a current drives to 22 Hz, so that about as many fire as in a network. Each has one
/// synapse, of delays that put what is under way where larger networks have it.
pub(super) fn neuron_update(case: &Case) -> Result<Workload> {
    common(case, &["N"], &[])?;
    no_words(case)?;
    let cells = size(case, "N", "cells", [10, MOST_CELLS])?;
    let mut n = Network::new(0.1, seed(case)?.unwrap_or(1).into())?;
    let firing = cells / 5;
    for (name, cells, current) in [("silent", cells - firing, 370.0), ("firing", firing, 380.0)] {
        let all = n.add(lif(name, cells)?);
        n.projections.push(in_degree(all, all, 1, normal(1.0), [0.1, 6.4]));
        n.drives.push(dc(all, current));
    }
    part(case, n, Section::Update, 50.0)
}

/// `1000000x1000_S500`: sources and cells, synapses from (on the mean) and onto each, spikes a step.
fn sources(case: &Case) -> Result<(Network, u32)> {
    common(case, &["", "x", "S"], &[])?;
    no_words(case)?;
    let cells = size(case, "", "cells", [10, MOST_CELLS / 2])?;
    let degree = size(case, "x", "synapses a cell", [1, 100_000])?;
    let spikes = size(case, "S", "spikes a step", [1, cells as usize / 2])?;
    let mut n = Network::new(0.1, seed(case)?.unwrap_or(1).into())?;
    // A source fires with probability 1 - e^(-rate dt).
    let rate = -(-f64::from(spikes) / f64::from(cells)).ln_1p() / (n.dt_ms * 1e-3);
    n.add(population("sources", "poisson", cells)?.parameter("rate", rate)?);
    n.add(lif("cells", cells)?);
    Ok((n, degree))
}

/// Rows of synapses that do not change, onto cells that stay below their thresholds.
pub(super) fn synaptic_delivery(case: &Case) -> Result<Workload> {
    let (mut n, degree) = sources(case)?;
    n.projections.push(in_degree(0, 1, degree, normal(1000.0 / f64::from(degree)), [0.1, 6.4]));
    part(case, n, Section::Delivery, LEAST_DISCARD_MS)
}

/// Rows of synapses that learn by the rule of the microcircuit, onto cells that a current drives to 22 Hz and more.
pub(super) fn stdp_update(case: &Case) -> Result<Workload> {
    let (mut n, degree) = sources(case)?;
    let weight = 1000.0 / f64::from(degree);
    let mut synapses = in_degree(0, 1, degree, normal(weight), [0.1, 3.0]);
    synapses.plasticity = Some(Plasticity::stdp(Stdp {
        a_plus: 0.01,
        a_minus: 0.01,
        tau_plus_ms: 20.0,
        tau_minus_ms: 20.0,
        w_min: 0.0,
        w_max: 2.0 * weight,
        dependence: Dependence::Multiplicative,
        pairs: Pairs::All,
        placement: Placement::Dendritic,
    }));
    n.projections.push(synapses);
    n.drives.push(dc(1, 380.0));
    part(case, n, Section::Learning, 200.0)
}

fn part(case: &Case, network: Network, section: Section, before: f64) -> Result<Workload> {
    let (discard_ms, run_ms) = (discard(case, before)?, run_ms(case, None)?);
    Ok(Workload { network, section, discard_ms, run_ms, gpus: 1, rate_hz: None })
}

/// A smaller case of the same kind: half of the scale, of the synapses of a cell down to a hundred, or of the cells.
pub(super) fn smaller(case: &Case) -> Option<Case> {
    if !case.words().is_empty() {
        let scale = case.get("scale", 1.0).ok()? / 2.0;
        return (scale >= 5e-3).then(|| case.clone().with("scale", scale));
    }
    let degree = case.size("x").unwrap_or(0);
    if degree > 100 {
        return Some(case.clone().with_size("x", (degree / 2).max(100)));
    }
    let axis = if degree > 0 { "" } else { "N" };
    let cells = case.size(axis).ok()? / 2;
    let spikes = case.size("S").unwrap_or(1).min(cells / 10).max(1);
    (cells >= 100).then(|| case.clone().with_size(axis, cells).with_size("S", spikes))
}
