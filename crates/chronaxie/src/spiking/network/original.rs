//! The configuration of the original 4D-Neural-Cognition (`brain_base_model.json`), every field of it.
//!
//! An area is a box of the lattice with a cell at each site, or at some (`simulation.density`). What the original promised is
//! done: cells are of the model that `neuron_model.type` names and step exactly, a share of them inhibits by its sign
//! (Dale), delays are those of synapses, weights change as `plasticity` and `neuromodulation` say
//! ([`original_plasticity`](super::original_plasticity)), a run resumes to the bit. A cell's equation is that of its main loop,
//! `dV/dt = (-(V - v_rest) + I) / tau_m` with I the weights that arrive in a step, of which a step's exact solution is
//! taken: `V' = v_rest + (V - v_rest) d + I (1 - d)`, `d = e^(-dt / tau_m)`. After a spike it is held for
//! `refractory_period - dt`, since the original counts the step of the spike.
//!
//! What the file does not say has the defaults of the original's functions, in an optional table `simulation`: `density` 1,
//! `connection_probability` 0.01, `weight_mean` 0.1, `weight_std` 0.05, `delay` one step, `dt` 1 ms (0.05 ms for
//! Hodgkin-Huxley). Besides: `initial_age` 0 ms, or a distribution of ages that cells begin with, and `lifecycle_interval` 1 ms, at
//! multiples of which they die ([`lifecycle`](super::lifecycle)); `inhibitory_fraction` 0.2, `plasticity` true (false keeps all
//! weights), and `input`, a current in the original's unit (mV; 20) into the first z-layer of every area with a sense, where
//! `feed_sense_input` puts its matrix.

use super::original_plasticity::Learned;
use super::place::Box4;
use super::read::Settings;
use super::{Delay, Lifecycle, Network, Population, Projection, Rule, Storage};
use crate::config::{Config, Milliseconds, Section, quote, short};
use crate::spiking::draws::{Purpose, Stream};
use crate::spiking::models::{self, Model};
use crate::{Error, Result};
use std::sync::Arc;

/// Whether `config` is one of the original.
pub fn is_original(config: &Config) -> bool {
    config.root().contains("lattice_shape")
}

/// An area of the lattice.
struct Area {
    name: String,
    place: Box4,
    sensed: bool,
}

/// Reads all of `config`.
///
/// # Errors
/// `Config` with the line and the field.
pub(super) fn read(config: &Config) -> Result<Settings> {
    let root = config.root();
    for (key, only) in [("model_version", 1u32), ("dimensions", 4)] {
        let given = root.get(key, only)?;
        if given != only {
            return Err(root.refuse(key, &format!("is {given}, but {only} is what is read")));
        }
    }
    let lattice: Vec<i32> = root.require("lattice_shape")?;
    let &[x, y, z, w] = lattice.as_slice() else {
        return Err(root.refuse("lattice_shape", &format!("must have 4 sizes, but it has {}", lattice.len())));
    };
    if lattice.iter().any(|n| !(1..=1 << 20).contains(n)) {
        return Err(root.refuse("lattice_shape", "must have sizes from 1 to 2^20"));
    }
    for key in ["neuron_model", "cell_lifecycle", "plasticity", "senses", "areas"] {
        if !root.contains(key) {
            return Err(root.refuse(key, "is missing, which the original requires"));
        }
    }
    let mut notes = Vec::new();
    let s = config.table("simulation")?;
    let neuron = config.table("neuron_model")?;
    let kind: String = neuron.get("type", "LIF".into())?;
    let model = match kind.to_lowercase().replace(['_', '-', ' '], "").as_str() {
        "lif" => "lif_delta",
        "izhikevich" => "izhikevich",
        "hodgkinhuxley" | "hh" => "hodgkin_huxley",
        _ => {
            return Err(
                neuron.refuse("type", &format!("is {}, but there are LIF, Izhikevich, Hodgkin-Huxley", quote(&kind)))
            );
        }
    };
    let model = models::find(model).map_err(|e| neuron.refuse("type", &e))?;
    let usual = if model.name() == "hodgkin_huxley" { 0.05 } else { 1.0 };
    let dt = s.get("dt", Milliseconds(usual))?.0;
    let mut network = Network::new(dt, s.get("seed", 1u64)?)?;
    let cell = Cell::read(&neuron.table("params_default")?, model, dt)?;
    let learned = Learned::read(config, dt, &mut notes)?;
    let areas = areas(config, [x, y, z, w], &mut notes)?;

    let share = |key: &str, default: f64| {
        let value = s.get(key, default)?;
        if (0.0..=1.0).contains(&value) {
            Ok(value)
        } else {
            Err(s.refuse(key, &format!("must be from 0 to 1, but it is {value}", value = short(value))))
        }
    };
    let (density, probability) = (share("density", 1.0)?, share("connection_probability", 0.01)?);
    let inhibitory = share("inhibitory_fraction", 0.2)?;
    let input = s.get("input", if model.name() == "lif_delta" { 20.0 } else { 10.0 })?;
    let (mean, sd) = (s.get("weight_mean", 0.1)?, s.get("weight_std", 0.05)?);
    if !(mean >= 0.0 && sd >= 0.0) {
        return Err(s.refuse(
            "weight_mean",
            &format!(
                "= {mean} and weight_std = {sd} must not be negative: inhibition has its cells",
                mean = short(mean),
                sd = short(sd)
            ),
        ));
    }
    let delay = s.get("delay", Milliseconds(dt))?.0;
    for area in &areas {
        populate(&mut network, area, &cell, density, inhibitory, input)?;
    }
    if network.populations.is_empty() {
        return Err(root.refuse("areas", &format!("hold no cell at density {density}")));
    }
    let mut units = Vec::new();
    for source in 0..network.populations.len() {
        let inhibits = network.populations[source].name.ends_with(INHIBITORY);
        let unit = cell.weight * learned.gain(inhibits);
        let weight = learned.weights(inhibits, mean, sd, unit);
        for target in 0..network.populations.len() {
            for (share, plasticity) in learned.kinds(inhibits, unit) {
                if probability == 0.0 {
                    continue;
                }
                units.push(unit);
                network.projections.push(Projection {
                    source,
                    target,
                    rule: Rule::Probability(share * probability),
                    weight,
                    delay: Delay::Drawn(delay.into()),
                    autapses: false,
                    plasticity,
                    storage: Storage::Stored,
                    weight_bits: Default::default(),
                });
            }
        }
    }
    network.lifecycle = lifecycle(config, &network, &units)?;
    let settings = Settings {
        duration_ms: s.get("duration", Milliseconds(1000.0))?.0,
        discard_ms: s.get("discard", Milliseconds(0.0))?.0,
        record: s.choice("record", &["spikes", "none"], "spikes")? == "spikes",
        hash: s.choice("hash", &["sha256", "none"], "sha256")? == "sha256",
        recorders: Vec::new(),
        checkpoint_every_ms: s.optional::<Milliseconds>("checkpoint_every")?.map(|ms| ms.0),
        network,
        notes,
    };
    config.finish()?;
    Ok(settings)
}

/// How the name of an area's inhibitory cells ends.
const INHIBITORY: &str = " inhibitory";

/// What all cells are.
struct Cell {
    model: &'static dyn Model,
    parameters: Vec<(&'static str, f64)>,
    /// What a weight of 1 is in the model's unit.
    weight: f64,
}

impl Cell {
    fn read(t: &Section<'_>, model: &'static dyn Model, dt: f64) -> Result<Self> {
        let tau = t.get("tau_m", 20.0)?;
        let (rest, reset) = (t.get("v_rest", -65.0)?, t.get("v_reset", -70.0)?);
        let (threshold, refractory) = (t.get("v_threshold", -50.0)?, t.get("refractory_period", 5.0)?);
        let mut izhikevich = [("izh_a", "a", 0.02), ("izh_b", "b", 0.2), ("izh_c", "c", -65.0), ("izh_d", "d", 8.0)];
        for (key, _, value) in &mut izhikevich {
            *value = t.get(key, *value)?;
        }
        if tau <= 0.0 {
            return Err(t.refuse("tau_m", &format!("must be above 0 ms, but it is {tau}", tau = short(tau))));
        }
        Ok(match model.name() {
            "lif_delta" => Self {
                model,
                // With C_m = tau_m a current is in the original's unit: dV/dt = I / tau_m.
                parameters: vec![
                    ("C_m", tau),
                    ("tau_m", tau),
                    ("E_L", rest),
                    ("V_reset", reset),
                    ("V_th", threshold),
                    ("t_ref", (refractory - dt).max(0.0)),
                ],
                weight: -crate::spiking::math::exp(-dt / tau) + 1.0,
            },
            "izhikevich" => Self {
                model,
                parameters: izhikevich.iter().map(|(_, name, value)| (*name, *value)).collect(),
                weight: dt,
            },
            _ => Self { model, parameters: Vec::new(), weight: 1.0 },
        })
    }
}

/// `cell_lifecycle` of `network`, whose projections are all there, with what each one's weight of 1 is; steps are of 1 ms.
fn lifecycle(config: &Config, network: &Network, units: &[f64]) -> Result<Option<Lifecycle>> {
    let (t, s) = (config.table("cell_lifecycle")?, config.table("simulation")?);
    let mut life = Lifecycle::new(network, f64::INFINITY);
    let death = t.get("enable_death", true)?;
    life.reproduction = t.get("enable_reproduction", true)?;
    life.max_age_ms = t.get("max_age", 100_000u64)? as f64;
    life.health_decay_per_ms = t.get("health_decay_per_step", 0.0001f64)?;
    life.mutation_std_params = t.get("mutation_std_params", 0.05)?;
    let sd = t.get("mutation_std_weights", 0.02)?;
    life.mutation_std_weights = units.iter().map(|unit| sd * unit).collect();
    // Parameters of the file: dV/dt = (-(V - v_rest) + I) / tau_m holds for children too.
    let words = |group: &&[&str]| group.iter().map(|name| (*name).to_owned()).collect();
    let own: &[&[&str]] = match network.populations[0].model.name() {
        "lif_delta" => &[&["C_m", "tau_m"], &["E_L"], &["V_reset"], &["V_th"], &["t_ref"]],
        "izhikevich" => &[&["a"], &["b"], &["c"], &["d"]],
        _ => &[],
    };
    life.mutating = Some(own.iter().map(words).collect());
    super::lifecycle::ages(&s, ["initial_age", "lifecycle_interval"], &mut life)?;
    match life.problem(network) {
        Some((field @ ("initial_age" | "interval"), problem)) => {
            Err(s.refuse(if field == "interval" { "lifecycle_interval" } else { field }, &problem))
        }
        Some(("health_decay", problem)) => Err(t.refuse("health_decay_per_step", &problem)),
        Some((field, problem)) => Err(t.refuse(field, &problem)),
        None => Ok(death.then_some(life)),
    }
}

fn areas(config: &Config, lattice: [i32; 4], notes: &mut Vec<String>) -> Result<Vec<Area>> {
    let senses = config.table("senses")?;
    let names = senses.keys();
    let mut areas: Vec<Area> = Vec::new();
    let mut sense_of = Vec::new();
    for section in config.tables("areas")? {
        let name: String = section.require("name")?;
        if name.is_empty() || name.contains(['\n', '\r']) || name.ends_with(INHIBITORY) {
            return Err(section.refuse("name", &format!("is {}, which names no area", quote(&name))));
        }
        if areas.iter().any(|a| a.name == name) {
            return Err(section.refuse("name", &format!("is {}, which another area has", quote(&name))));
        }
        let sense: Option<String> = section.optional("sense")?;
        if let Some(sense) = sense.as_ref().filter(|sense| !names.contains(sense)) {
            let known = names.join(", ");
            return Err(section.refuse("sense", &format!("is {}, but there are {known}", quote(sense))));
        }
        let ranges = section.table("coord_ranges")?;
        let mut place = Box4 { low: [0; 4], high: [0; 4] };
        for (d, axis) in ["x", "y", "z", "w"].into_iter().enumerate() {
            match ranges.require::<Vec<i32>>(axis)?[..] {
                [low, high] if 0 <= low && low <= high && high < lattice[d] => {
                    (place.low[d], place.high[d]) = (low, high);
                }
                _ => {
                    let what = format!("must be the first and the last site, within 0 and {}", lattice[d] - 1);
                    return Err(ranges.refuse(axis, &what));
                }
            }
        }
        if place.sites() > 1 << 26 {
            return Err(
                section.refuse("coord_ranges", &format!("hold {} sites, which is more than 2^26", place.sites()))
            );
        }
        sense_of.push(sense);
        areas.push(Area { name, place, sensed: false });
    }
    for name in &names {
        let sense = senses.table(name)?;
        let areal: String = sense.require("areal")?;
        let slice: i32 = sense.require("w_index")?;
        let size: Vec<u32> = sense.require("input_size")?;
        sense.optional::<String>("input_description")?;
        if !(0..lattice[3]).contains(&slice) {
            return Err(sense
                .refuse("w_index", &format!("is {slice}, but the lattice has slices from 0 to {}", lattice[3] - 1)));
        }
        let Some(at) = areas.iter().position(|a| a.name == areal) else {
            return Err(sense.refuse("areal", &format!("is {}, which is no area", quote(&areal))));
        };
        if sense_of[at].as_ref() != Some(name) {
            let other = sense_of[at].as_deref().map_or("none".into(), quote);
            notes.push(format!("sense {name} names the area {areal}, whose sense is {other}"));
        }
        let place = &areas[at].place;
        if place.low[3] != slice {
            notes.push(format!(
                "sense {name} owns the slice w = {slice}, and its area {areal} begins at {}",
                place.low[3]
            ));
        }
        let across: Vec<u32> = (0..2).map(|d| (place.high[d] - place.low[d] + 1) as u32).collect();
        if size.len() != 2 {
            return Err(sense.refuse("input_size", &format!("must be two sizes, but it has {}", size.len())));
        }
        if size != across {
            notes.push(format!(
                "sense {name} has an input of {size:?} for an area of {across:?}: where both are, it goes in"
            ));
        }
        areas[at].sensed = true;
    }
    Ok(areas)
}

/// Adds the cells of an area: those that excite and those that inhibit.
fn populate(network: &mut Network, area: &Area, cell: &Cell, density: f64, inhibitory: f64, input: f64) -> Result<()> {
    let owner = network.populations.len() as u32;
    let places = area.place.fill(density, network.seed, owner);
    // Which inhibit is drawn beyond all draws of the sites, of which two use a number.
    let mut stream = Stream::new(network.seed, Purpose::Site, owner, 1 << 40);
    let (mut kinds, mut counts) = ([Vec::new(), Vec::new()], [0usize; 2]);
    for place in places {
        let kind = usize::from(stream.uniform() < inhibitory);
        counts[kind] += 1;
        kinds[kind].push(place);
    }
    for (kind, places) in kinds.into_iter().enumerate().filter(|(kind, _)| counts[*kind] > 0) {
        let name = format!("{}{}", area.name, if kind == 1 { INHIBITORY } else { "" });
        let mut p = Population::new(name, cell.model, counts[kind] as u32);
        for (name, value) in &cell.parameters {
            p = p.parameter(name, *value)?;
        }
        let Some(current) = p.model.current() else {
            return Err(Error::config(format!("population {}: {} takes no current", p.name, p.model.name())));
        };
        let first = area.place.low[2] as f32;
        if area.sensed && input != 0.0 {
            let into = |place: &[f32; 4]| if place[2] == first { input } else { 0.0 };
            p.given.set_parameter(current, places.iter().map(into).collect());
        }
        p.positions = Some(Arc::new(places));
        network.add(p);
    }
    Ok(())
}

#[cfg(test)]
#[path = "original_tests.rs"]
mod tests;
#[cfg(test)]
pub(crate) use tests::brain;
