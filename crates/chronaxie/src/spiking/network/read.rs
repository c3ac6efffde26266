//! A network and how to run it, from a configuration.
//!
//! ```toml
//! schema = 1
//!
//! [simulation]
//! dt = 0.1                     # ms
//! duration = "10s"
//! discard = "500ms"            # left out of rates and statistics
//! seed = 1
//! record = "spikes"            # or "none"
//! hash = "sha256"              # of all spikes; or "none", where one thread of the host would be slower at it than the GPUs
//! scale = 1.0                  # a smaller network with the same statistics
//! variant = "poisson"          # drives and projections of another variant are left out
//!
//! [[population]]
//! name = "E"
//! model = "lif_exp"
//! size = 800                   # or box = { x = [0, 19], y = [0, 19], z = [0, 19], w = [0, 0] } and density = 0.1
//! parameters = { tau_m = 20.0, I_e = { distribution = "normal", mean = 300.0, sd = 10.0 } }
//! initial = { V = { distribution = "uniform", low = -65.0, high = -50.0 } }
//!                              # a value a cell: { file = "cells.npz", column = "V" }; places = { file } has columns x, y, z, w
//! reference = { rate_hz = 5.0, dc = { rate_hz = 5.2 } }   # published; of the variant "dc" its own
//!
//! [[projection]]
//! source = "E"                 # a name or a list; with lists a number may be a matrix, a row for each target
//! target = "E"
//! rule = "fixed_indegree"
//! indegree = 80
//! weight = 40.0                # constant, or { distribution = "normal", mean, sd, low, high, outside = "redraw" }
//! delay = 1.5                  # ms; likewise, or { velocity = 2.0, offset = 0.1 }
//! synapses = "stored"          # or "procedural": drawn again at each spike, "auto": likewise where they would not fit in memory
//! weight_bits = 16             # or 32: weights of single precision, 8 bytes a synapse
//! plasticity = { rule = "stdp", w_max = 80.0 }    # see read_plasticity.rs; simulation.plasticity = false keeps weights
//!
//! [[drive]]
//! target = "E"
//! kind = "poisson"             # or "dc" (current), or "frames" (input from a sense; see frames.rs)
//! rate = 8.0                   # Hz of a source
//! sources = 1000
//! weight = 40.0
//!
//! [lifecycle]                  # cells that die and are born: see lifecycle.rs
//! max_age = "100 s"
//!
//! [[record]]                   # state variables of chosen cells; spikes are recorded by simulation.record
//! population = "E"
//! variables = ["V"]
//! cells = [0, 1]
//! every = 1.0                  # ms
//! ```

use super::files::{Files, edges, given, places};
use super::place::Box4;
use super::read_drives::drives;
use super::reference::reference;
use super::{Delay, Distribution, Network, Outside, Population, Projection, Rule, Shape, Storage, WeightBits};
use crate::Result;
use crate::config::{Config, Milliseconds, Section, Setting, Value, nearest, quote, short};
use crate::spiking::models::{self, Kind};
use crate::spiking::plasticity::planned;
use crate::spiking::record::{Recorder, columns};
use std::sync::Arc;

/// A configuration, read.
#[derive(Debug)]
pub struct Settings {
    /// What runs.
    pub network: Network,
    /// How long, ms.
    pub duration_ms: f64,
    /// Left out of statistics, ms.
    pub discard_ms: f64,
    /// Whether spikes are kept.
    pub record: bool,
    /// Whether their hash is made.
    pub hash: bool,
    /// State variables that are kept.
    pub recorders: Vec<Recorder>,
    /// The time between checkpoints, ms.
    pub checkpoint_every_ms: Option<f64>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// The most places of a population: a gigabyte.
const MOST_PLACES: u64 = 1 << 26;

/// A name, or a list of names.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Words(pub(super) Vec<String>, bool);

impl Setting for Words {
    fn expected() -> String {
        "a name or a list of names".into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(word) => Some(Self(vec![word.clone()], false)),
            _ => Vec::<String>::from_value(value).filter(|list| !list.is_empty()).map(|list| Self(list, true)),
        }
    }
    fn to_value(&self) -> Value {
        if self.1 { self.0.to_value() } else { self.0[0].to_value() }
    }
}

/// A number, a list of numbers, or rows of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Numbers {
    One(f64),
    Row(Vec<f64>),
    Rows(Vec<Vec<f64>>),
}

impl Setting for Numbers {
    fn expected() -> String {
        "a finite number, a list of them with one for each target, or a list of rows, one for each target with one number \
         for each source"
            .into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        f64::from_value(value)
            .map(Self::One)
            .or_else(|| Vec::from_value(value).map(Self::Row))
            .or_else(|| Vec::from_value(value).map(Self::Rows))
    }
    fn to_value(&self) -> Value {
        match self {
            Self::One(x) => x.to_value(),
            Self::Row(x) => x.to_value(),
            Self::Rows(x) => x.to_value(),
        }
    }
}

impl Numbers {
    pub(super) fn at(&self, target: usize, source: usize) -> f64 {
        match self {
            Self::One(x) => *x,
            Self::Row(x) => x[target],
            Self::Rows(x) => x[target][source],
        }
    }
    fn fits(&self, targets: usize, sources: usize) -> bool {
        match self {
            Self::One(_) => true,
            Self::Row(x) => x.len() == targets,
            Self::Rows(x) => x.len() == targets && x.iter().all(|row| row.len() == sources),
        }
    }
}

/// Reads all of `config`, and refuses what it does not know.
///
/// # Errors
/// `Config` with the line and the field; `Data` and `Io` of the files it names.
pub fn read(config: &Config) -> Result<Settings> {
    read_with(config, &Files::beside(config))
}

/// Likewise, with arrays for some of the files it names.
///
/// # Errors
/// As [`read`].
pub fn read_with(config: &Config, files: &Files) -> Result<Settings> {
    let original = super::original::is_original(config);
    let mut settings = if original { super::original::read(config) } else { described(config, files) }?;
    let (s, dt) = (config.table("simulation")?, settings.network.dt_ms);
    if let Some(ms) = settings.checkpoint_every_ms.filter(|&ms| ms < dt) {
        let why = format!(
            "is {ms} ms, which is less than the step of {dt} ms; without it no checkpoint is written on the way",
            ms = short(ms)
        );
        return Err(s.refuse("checkpoint_every", &why));
    }
    settings.notes.extend(planned::notes(&settings.network));
    let Settings { duration_ms, discard_ms, .. } = settings;
    if duration_ms > 0.0 && discard_ms >= duration_ms {
        settings.notes.push(format!(
            "discard leaves out {discard_ms} ms of {duration_ms} ms: rates and other metrics are of nothing",
            discard_ms = short(discard_ms),
            duration_ms = short(duration_ms)
        ));
    }
    Ok(settings)
}

/// What a description of our own says.
fn described(config: &Config, files: &Files) -> Result<Settings> {
    let s = config.table("simulation")?;
    let dt = ranged(&s, "dt", s.get("dt", Milliseconds(0.1))?.0, 1e-6, 1e3)?;
    let seed = s.get("seed", 1u64)?;
    let duration_ms = s.get("duration", Milliseconds(1000.0))?.0;
    let discard_ms = s.get("discard", Milliseconds(0.0))?.0;
    let scale = s.get("scale", 1.0)?;
    if !(scale > 0.0 && scale <= 1.0) {
        return Err(
            s.refuse("scale", &format!("is {scale}, but a scale is above 0 and at most 1", scale = short(scale)))
        );
    }
    let variant = s.get("variant", String::new())?;
    let plastic = s.get("plasticity", true)?;
    let record = s.choice("record", &["spikes", "none"], "spikes")? == "spikes";
    let hash = s.choice("hash", &["sha256", "none"], "sha256")? == "sha256";
    let checkpoint_every_ms = s.optional::<Milliseconds>("checkpoint_every")?.map(|ms| ms.0);
    if duration_ms / dt > 1e12 {
        return Err(s.refuse("duration", &format!("is {} steps, which is more than 10^12", short(duration_ms / dt))));
    }
    let mut network = Network::new(dt, seed)?;
    for section in config.tables("population")? {
        let p = population(&section, &network, files, &variant)?;
        network.add(p);
    }
    if network.populations.is_empty() {
        return Err(config.root().refuse("population", "is missing: a network has at least one [[population]]"));
    }
    let mut variants: Vec<String> = Vec::new();
    let mut chosen = |section: &Section<'_>| -> Result<bool> {
        let own: Option<String> = section.optional("variant")?;
        let use_it = own.as_ref().is_none_or(|own| *own == variant);
        variants.extend(own);
        Ok(use_it)
    };
    let mut spreads = Vec::new();
    for section in config.tables("projection")? {
        let use_it = chosen(&section)?;
        projections(&section, &mut network, files, use_it)?;
        spreads.resize(network.projections.len(), section.optional::<f64>("mutation_std_weights")?);
    }
    for section in config.tables("drive")? {
        let use_it = chosen(&section)?;
        drives(&section, &mut network, files, use_it)?;
    }
    if !variant.is_empty() && !variants.contains(&variant) {
        variants.sort();
        variants.dedup();
        return Err(s.refuse("variant", &format!("is {}, but there are {}", quote(&variant), variants.join(", "))));
    }
    // Numbers of frames, which drives put in as weights, are nobody's to change.
    spreads.resize(network.projections.len(), Some(0.0));
    network.lifecycle = super::lifecycle::read(config, &network, &spreads)?;
    let recorders = config.tables("record")?.iter().map(|s| recorder(s, &network)).collect::<Result<Vec<_>>>()?;
    config.finish()?;
    if !plastic {
        network.projections.iter_mut().for_each(|p| p.plasticity = None);
    }
    let notes = super::scale::scale(&mut network, scale)?;
    for r in &recorders {
        let p = &network.populations[r.population];
        if let Some(cell) = r.cells.iter().find(|c| **c >= p.size) {
            return Err(config
                .root()
                .refuse("record", &format!("wants cell {cell} of {}, which has {}", p.name, p.size)));
        }
    }
    Ok(Settings { network, duration_ms, discard_ms, record, hash, recorders, checkpoint_every_ms, notes })
}

fn ranged(section: &Section<'_>, key: &str, x: f64, low: f64, high: f64) -> Result<f64> {
    if (low..=high).contains(&x) {
        return Ok(x);
    }
    Err(section.refuse(key, &format!("must be from {low} to {high}, but it is {x}", x = short(x))))
}

fn whole(section: &Section<'_>, key: &str, x: f64, most: f64) -> Result<f64> {
    if x.fract() == 0.0 && (0.0..=most).contains(&x) {
        return Ok(x);
    }
    Err(section.refuse(key, &format!("must be a whole number from 0 to {most}, but it is {x}", x = short(x))))
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;

/// The distribution under `key`: a number, or a table.
pub(super) fn distribution(section: &Section<'_>, key: &str) -> Result<Option<Distribution>> {
    if !section.is_table(key) {
        return Ok(section.optional::<f64>(key)?.map(Distribution::from));
    }
    let t = section.table(key)?;
    let shape = match t.choice("distribution", &["constant", "normal", "lognormal", "uniform"], "constant")? {
        "normal" => Shape::Normal { mean: t.require("mean")?, sd: t.require("sd")? },
        "lognormal" => {
            let (mu, sigma) = (t.require("mu")?, t.require("sigma")?);
            Shape::Lognormal { mu, sigma, negative: t.get("negative", false)? }
        }
        "uniform" => {
            let (low, high) = (t.require("low")?, t.require("high")?);
            let d = Distribution::uniform(low, high);
            return match d.problem() {
                Some(problem) => Err(section.refuse(key, &problem)),
                None => Ok(Some(d)),
            };
        }
        _ => Shape::Constant(t.require("value")?),
    };
    let low = t.optional("low")?.unwrap_or(f64::NEG_INFINITY);
    let high = t.optional("high")?.unwrap_or(f64::INFINITY);
    let outside = t.choice("outside", &["redraw", "clip"], "redraw")?;
    let outside = if outside == "clip" { Outside::Clip } else { Outside::Redraw };
    let d = Distribution::new(shape).within(low, high, outside);
    match d.problem() {
        Some(problem) => Err(section.refuse(key, &problem)),
        None => Ok(Some(d)),
    }
}

fn population(section: &Section<'_>, network: &Network, files: &Files, variant: &str) -> Result<Population> {
    let name: String = section.require("name")?;
    if name.is_empty() || name.contains(['\n', '\r']) {
        return Err(section.refuse("name", "must be a name on one line"));
    }
    if network.find(&name).is_some() {
        return Err(section.refuse("name", &format!("is {}, which another population has", quote(&name))));
    }
    let model = models::find(&section.require::<String>("model")?).map_err(|e| section.refuse("model", &e))?;
    let mut positions = None;
    let size = if section.is_table("box") {
        let place = section.table("box")?;
        let mut b = Box4 { low: [0; 4], high: [0; 4] };
        for (d, axis) in ["x", "y", "z", "w"].into_iter().enumerate() {
            match place.get(axis, vec![0i32, 0])?[..] {
                [low, high] if low <= high => (b.low[d], b.high[d]) = (low, high),
                _ => return Err(place.refuse(axis, "must be two whole numbers, the first and the last site")),
            }
        }
        if b.sites() > MOST_PLACES {
            return Err(section.refuse("box", &format!("has {} sites, which is more than 2^26", b.sites())));
        }
        let index = network.populations.len() as u32;
        let cells = match section.optional::<u32>("size")? {
            Some(size) if u64::from(size) > MOST_PLACES => {
                return Err(section.refuse("size", &format!("is {size}: more than 2^26 cells cannot have places")));
            }
            Some(size) => b.scatter(size, network.seed, index),
            None => {
                let density = ranged(section, "density", section.get("density", 1.0)?, 0.0, 1.0)?;
                b.fill(density, network.seed, index)
            }
        };
        let size = cells.len() as u32;
        positions = Some(Arc::new(cells));
        size
    } else if section.is_table("places") {
        let cells = places(section, files)?;
        let size = cells.len() as u32;
        positions = Some(Arc::new(cells));
        size
    } else {
        section.require("size")?
    };
    if size == 0 {
        return Err(
            section.refuse(if positions.is_some() { "box" } else { "size" }, "is 0 cells; leave the population out")
        );
    }
    let mut p = Population::new(name, model, size);
    p.positions = positions;
    if !model.presets().is_empty() {
        let names: Vec<&str> = model.presets().iter().map(|(name, _)| *name).collect();
        let preset = section.choice("preset", &names, names[0])?;
        for (name, values) in model.presets() {
            for (i, x) in model.parameters().iter().enumerate().filter(|_| *name == preset) {
                if let Some((_, value)) = values.iter().find(|(parameter, _)| *parameter == x.name) {
                    p.parameters[i] = (*value).into();
                }
            }
        }
    }
    let t = section.table("parameters")?;
    for (i, (x, value)) in model.parameters().iter().zip(&mut p.parameters).enumerate() {
        if let Some(values) = given(&t, x.name, files, size)? {
            p.given.parameters.push((i, values));
        } else if t.contains(x.name) {
            *value = distribution(&t, x.name)?.unwrap_or(*value);
            value.beyond_single().map_or(Ok(()), |problem| Err(t.refuse(x.name, &problem)))?;
        } else {
            t.get(x.name, value.mean())?;
        }
    }
    p.initial = p.default_initial();
    let t = section.table("initial")?;
    p.given.follow(model);
    for (i, (x, value)) in model.variables().iter().zip(&mut p.initial).enumerate() {
        if t.contains(x.name) {
            p.given.initial.retain(|(variable, _)| *variable != i);
        }
        if let Some(values) = given(&t, x.name, files, size)? {
            p.given.initial.push((i, values));
            continue;
        }
        *value = distribution(&t, x.name)?.unwrap_or(*value);
        value.beyond_single().map_or(Ok(()), |problem| Err(t.refuse(x.name, &problem)))?;
    }
    p.reference = reference(section, variant)?;
    if model.kind() == Kind::Replay {
        let file: std::path::PathBuf = section.require("file")?;
        let columns = files.columns(&file, ["time", "cell"])?;
        p.replay = Some(Arc::new(columns::replayed(columns, &files.path(&file), network.dt_ms, size)?));
    }
    Ok(p)
}

fn recorder(section: &Section<'_>, network: &Network) -> Result<Recorder> {
    let of = named(section, "population", network)?;
    let &[population] = of.as_slice() else {
        return Err(section.refuse("population", "must be one population"));
    };
    let model = network.populations[population].model;
    let known = || model.variables().iter().map(|v| v.name);
    let index = |name: &String| {
        known().position(|v| v == name).ok_or_else(|| {
            let hint = match nearest(name, known()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("there are: {}", known().collect::<Vec<_>>().join(", ")),
            };
            section.refuse("variables", &format!("names {}, which {} has not; {hint}", quote(name), model.name()))
        })
    };
    let variables: Vec<String> = section.get("variables", vec!["V".to_owned()])?;
    let variables = variables.iter().map(index).collect::<Result<Vec<_>>>()?;
    let cells: Vec<u32> = section.require("cells")?;
    let every = section.get("every", Milliseconds(1.0))?.0 / network.dt_ms;
    if cells.is_empty() || variables.is_empty() {
        return Err(section.refuse("cells", "and variables must not be empty"));
    }
    if !(1.0..1e12).contains(&every.round()) {
        return Err(section.refuse("every", &format!("must be at least the step of {} ms", network.dt_ms)));
    }
    Ok(Recorder { population, variables, cells, every: every.round() as u64 })
}

/// The indices of the populations that `key` names.
pub(super) fn named(section: &Section<'_>, key: &str, network: &Network) -> Result<Vec<usize>> {
    let words: Words = section.require(key)?;
    let names = || network.populations.iter().map(|p| p.name.as_str());
    let index = |name: &String| {
        network.find(name).ok_or_else(|| {
            let hint = match nearest(name, names()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
            };
            section.refuse(key, &format!("names {}, which is no population; {hint}", quote(name)))
        })
    };
    words.0.iter().map(index).collect()
}

pub(super) fn numbers(section: &Section<'_>, key: &str, targets: usize, sources: usize) -> Result<Numbers> {
    let numbers: Numbers = section.require(key)?;
    if numbers.fits(targets, sources) {
        return Ok(numbers);
    }
    Err(section.refuse(key, &format!("has another shape than {targets} targets (rows) by {sources} sources (columns)")))
}

const RULES: [&str; 8] = [
    "all_to_all",
    "one_to_one",
    "fixed_probability",
    "fixed_indegree",
    "fixed_outdegree",
    "fixed_total",
    "distance",
    "edges",
];

fn projections(section: &Section<'_>, network: &mut Network, files: &Files, use_it: bool) -> Result<()> {
    let (sources, targets) = (named(section, "source", network)?, named(section, "target", network)?);
    let rule = section.choice("rule", &RULES, "all_to_all")?;
    let autapses = section.get("autapses", true)?;
    let (rows, columns) = (targets.len(), sources.len());
    let count = u32::MAX.into();
    let mut multapses = true;
    if ["fixed_indegree", "fixed_outdegree", "fixed_total"].contains(&rule) {
        multapses = section.get("multapses", true)?;
    }
    // One number of each pair, by rule.
    let by_probability = rule == "fixed_probability" || rule == "fixed_total" && !section.contains("number");
    let table = match rule {
        "fixed_indegree" => Some(("indegree", numbers(section, "indegree", rows, columns)?)),
        "fixed_outdegree" => Some(("outdegree", numbers(section, "outdegree", rows, columns)?)),
        "distance" => Some(("peak", numbers(section, "peak", rows, columns)?)),
        _ if by_probability => Some(("probability", numbers(section, "probability", rows, columns)?)),
        "fixed_total" => Some(("number", numbers(section, "number", rows, columns)?)),
        _ => None,
    };
    let reach: Option<(f64, f64)> = if rule == "distance" {
        Some((section.require("length")?, section.optional("radius")?.unwrap_or(f64::INFINITY)))
    } else {
        None
    };
    let edges = if rule == "edges" {
        let file: std::path::PathBuf = section.require("file")?;
        Some(Arc::new(edges(files, &file)?))
    } else {
        None
    };
    let (mut weight, mut delay) = (Distribution::from(0.0), Delay::Drawn(network.dt_ms.into()));
    if edges.is_none() {
        weight = match distribution(section, "weight")? {
            Some(weight) => weight,
            None => section.require::<f64>("weight")?.into(),
        };
        delay = read_delay(section)?;
    } else if rows * columns != 1 {
        return Err(section.refuse("file", "joins one population to one population; name one each"));
    }
    let plasticity = super::read_plasticity::plasticity(section, network)?;
    let storage = Storage::of(section.choice("synapses", &Storage::WORDS, "stored")?);
    let weight_bits = weight_bits(section)?;
    for (t, &target) in targets.iter().enumerate() {
        for (s, &source) in sources.iter().enumerate() {
            let number = table.as_ref().map_or(1.0, |(_, table)| table.at(t, s));
            let key = table.as_ref().map_or("rule", |(key, _)| *key);
            if number == 0.0 || !use_it {
                continue;
            }
            let sizes = (network.populations[source].size, network.populations[target].size);
            let rule = match rule {
                "all_to_all" => Rule::AllToAll,
                "one_to_one" => Rule::OneToOne,
                "fixed_indegree" => Rule::InDegree { count: whole(section, key, number, count)? as u32, multapses },
                "fixed_outdegree" => Rule::OutDegree { count: whole(section, key, number, count)? as u32, multapses },
                "fixed_total" if !by_probability => {
                    Rule::Total { count: whole(section, key, number, 1e15)? as u64, multapses }
                }
                "edges" => Rule::Edges(edges.clone().unwrap_or_default()),
                "fixed_total" => {
                    let p = ranged(section, key, number, 0.0, 0.999_999)?;
                    Rule::Total { count: super::total_of_probability(p, sizes.0, sizes.1), multapses }
                }
                "distance" => {
                    let (length, radius) = reach.unwrap_or_default();
                    Rule::Distance { peak: ranged(section, key, number, 0.0, 1.0)?, length, radius }
                }
                _ => Rule::Probability(ranged(section, key, number, 0.0, 1.0)?),
            };
            network.projections.push(Projection {
                source,
                target,
                rule,
                weight,
                delay,
                autapses,
                plasticity,
                storage,
                weight_bits,
            });
        }
    }
    Ok(())
}

/// How precise weights are to be.
pub(super) fn weight_bits(section: &Section<'_>) -> Result<WeightBits> {
    let bits = section.get("weight_bits", 16)?;
    let none = || section.refuse("weight_bits", &format!("is {bits}, but weights have 16 or 32 bits"));
    WeightBits::of(bits).ok_or_else(none)
}

fn read_delay(section: &Section<'_>) -> Result<Delay> {
    if section.is_table("delay") {
        let t = section.table("delay")?;
        if t.contains("velocity") {
            return Ok(Delay::Distance { velocity: t.require("velocity")?, offset_ms: t.get("offset", 0.0)? });
        }
    }
    Ok(Delay::Drawn(match distribution(section, "delay")? {
        Some(delay) => delay,
        None => section.require::<f64>("delay")?.into(),
    }))
}
