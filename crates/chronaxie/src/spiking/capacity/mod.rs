//! How many GPUs a network wants: what each of them holds, what they tell each other, and what a step takes.
//!
//! Nothing is built: synapses and spikes are what rules and rates make one expect. The memory is what the CUDA engine asks for
//! ([`Footprint`]); the time of a step is a sum over the parts that a step has there (step.rs), by constants of a card ([`Card`]).

mod cards;
mod step;
#[cfg(test)]
mod tests;

use super::connect::Redraw;
use super::models::Kind;
use super::partition;
use super::plan::Plan;
use super::simulate::cuda::{Footprint, MOST_CARDS, REPLICAS, Taken};
use super::simulate::parts::wire;
use crate::{Error, Result};
pub use cards::{Card, Constants};
use serde::Serialize;
pub use step::{Cost, Step};

/// The most GPUs that are asked about.
pub const MOST_GPUS: usize = 1024;
/// A step whose exchange takes more than this share of it gains little by more GPUs.
const LARGE_SHARE: f64 = 1.0 / 3.0;

/// How cards of a machine tell each other what fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Exchange {
    /// Each writes to the memory of the others.
    #[default]
    Peers,
    /// Through the host's memory.
    Host,
}

/// What a network does in a step, all of it together.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Activity {
    /// Spikes a second and cell, by population.
    pub rates_hz: Vec<f64>,
    /// Spikes a step.
    pub spikes: f64,
    /// Synapses that they go through.
    pub events: f64,
    /// Spikes of cells times their synapses that change.
    pub entries: f64,
}

impl Activity {
    /// With these rates, Hz, one a population.
    pub fn new(plan: &Plan, rates_hz: Vec<f64>) -> Self {
        let n = &plan.network;
        let fired = |p: usize| (rates_hz[p] * n.dt_ms * 1e-3).min(1.0);
        let spikes = n.populations.iter().enumerate().map(|(p, x)| fired(p) * f64::from(x.size)).sum();
        let (mut events, mut entries) = (0.0, 0.0);
        for (i, p) in n.projections.iter().enumerate() {
            let synapses = partition::expected(plan, i);
            let here = synapses * fired(p.source);
            events += here;
            if plan.changes(i) {
                entries += synapses * fired(p.target);
            }
        }
        Self { rates_hz, spikes, events, entries }
    }
}

/// What GPUs tell each other in a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Told {
    /// How: words of spikes to every GPU of the machine; between machines a list or bits.
    pub format: &'static str,
    /// Bytes that a GPU writes to others of its machine.
    pub peer_bytes_per_step: f64,
    /// Bytes that a machine sends to others.
    pub network_bytes_per_step: f64,
    /// Machines tell each other once in so many steps; 0 where there is one.
    pub network_steps: u64,
    /// What a GPU writes in a second of the wall clock.
    pub peer_bytes_per_s: Option<f64>,
}

/// A network on so many GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Estimate {
    /// GPUs.
    pub gpus: usize,
    /// Machines that have them.
    pub machines: usize,
    /// Whether the engine runs on as many; else the time is what its parts would come to.
    pub runs: bool,
    /// How the network is cut.
    pub engine: String,
    /// Cells of a GPU.
    pub neurons: f64,
    /// Synapses of a GPU.
    pub synapses: f64,
    /// Bytes of a GPU's memory, by what they are of; nothing where another engine takes the network.
    pub memory: Option<Footprint>,
    /// Bytes while the network is made.
    pub build_bytes: f64,
    /// Bytes while it runs.
    pub run_bytes: f64,
    /// Bytes that the card has.
    pub has_bytes: f64,
    /// Whether that is enough.
    pub fits: bool,
    /// What they tell each other.
    pub told: Told,
    /// A step; nothing where none was measured of the engine that takes the network.
    pub step: Option<Step>,
    /// Wall time over model time, of a long run.
    pub real_time_factor: Option<f64>,
    /// What to look after.
    pub notes: Vec<String>,
}

/// How a plan is cut for so many cards, by the engine that takes it; synapses that may be are drawn again where they do not fit.
fn taken(plan: &Plan, card: &Card, gpus: usize) -> Result<Taken> {
    let (device, even) = (card.device(), partition::Layout::even(&plan.network, gpus));
    let with = |redraw| Taken::new(plan, &device, &even, redraw);
    with(plan.choose_redraw(|redraw| with(redraw).is_ok_and(|t| t.fits(plan, card.memory_gb * 1e9))))
}

/// What a network of this activity is on so many GPUs.
///
/// # Errors
/// `Config`, for a number of GPUs that there is not, and more cells than they can have.
pub fn estimate(plan: &Plan, activity: &Activity, card: &Card, gpus: usize, exchange: Exchange) -> Result<Estimate> {
    if !(1..=MOST_GPUS).contains(&gpus) {
        return Err(Error::config(format!("{gpus} GPUs: a network is planned for 1 to {MOST_GPUS}")));
    }
    let engine = taken(plan, card, gpus).map_err(|e| match fewest(plan, card) {
        Some(least) if least > gpus => Error::config(format!("{e}; it takes {least} GPUs at the least")),
        _ => e,
    })?;
    let machines = gpus.div_ceil(card.gpus_a_machine as usize);
    let here = gpus.min(card.gpus_a_machine as usize);
    let [build_bytes, run_bytes] = engine.bytes(plan);
    let has_bytes = card.memory_gb * 1e9;
    let fits = build_bytes.max(run_bytes) <= has_bytes;
    let mut told = told(plan, activity, &engine, [gpus, here, machines]);
    let (step, memory, text) = match &engine {
        Taken::Resident(config) => {
            let step = Step::new(plan, activity, card, config, exchange, &told);
            (Some(step), Some(config.footprint(plan)), config.to_string())
        }
        Taken::Streaming(config) => (None, None, config.to_string()),
    };
    let us = step.as_ref().map(|s| s.us);
    told.peer_bytes_per_s = us.map(|us| told.peer_bytes_per_step / (us * 1e-6));
    let synapses: f64 = (0..plan.network.projections.len()).map(|i| partition::expected(plan, i)).sum();
    let mut all = Estimate {
        gpus,
        machines,
        runs: gpus <= MOST_CARDS.min(card.gpus_a_machine as usize),
        engine: text,
        neurons: plan.cells() as f64 / gpus as f64,
        synapses: synapses / gpus as f64,
        memory,
        build_bytes,
        run_bytes,
        has_bytes,
        fits,
        told,
        real_time_factor: us.map(|us| us * 1e-3 / plan.network.dt_ms),
        step,
        notes: Vec::new(),
    };
    all.notes = notes(plan, activity, card, &all);
    Ok(all)
}

/// Words of the headers and boxes to all other cards of the machine; between machines once every shortest delay from one to another what
/// parts on CPUs tell each other, a list or bits.
fn told(plan: &Plan, activity: &Activity, engine: &Taken, [gpus, here, machines]: [usize; 3]) -> Told {
    let mut all = Told {
        format: "nothing",
        peer_bytes_per_step: 0.0,
        network_bytes_per_step: 0.0,
        network_steps: 0,
        peer_bytes_per_s: None,
    };
    let config = match engine {
        _ if gpus < 2 => return all,
        Taken::Streaming(_) => {
            all.peer_bytes_per_step = 8.0 * (here - 1) as f64 * (1.0 + activity.spikes / gpus as f64);
            all.format = "a word a spike";
            return all;
        }
        Taken::Resident(config) => config,
    };
    let mean = activity.spikes / config.shards as f64;
    let boxed = config.local() as f64 * beyond(mean, config.header().1);
    all.peer_bytes_per_step = 8.0 * (here - 1) as f64 * (config.local() as f64 * REPLICAS as f64 + boxed);
    all.format = "a word a spike";
    if machines > 1 {
        all.network_steps = partition::shortest_across(plan, &partition::Layout::even(&plan.network, machines));
        let steps = all.network_steps as usize;
        let spikes = activity.spikes * steps as f64 / machines as f64;
        let (bits, bytes) = wire::size((plan.cells() as usize).div_ceil(machines), steps, spikes.round() as usize);
        all.network_bytes_per_step = (machines - 1) as f64 * bytes as f64 / steps as f64;
        all.format = if bits {
            "a word a spike; between machines a bit a cell"
        } else {
            "a word a spike; between machines a list"
        };
    }
    all
}

/// The mean of what a Poisson number is above `held`.
fn beyond(mean: f64, held: u32) -> f64 {
    let (mut p, mut sum) = ((-mean).exp(), 0.0);
    for k in 0..held {
        sum += p * f64::from(held - k);
        p *= mean / f64::from(k + 1);
    }
    mean - f64::from(held) + sum
}

/// The fewest GPUs that hold a network: up to a machine's each number, then whole machines.
fn fewest(plan: &Plan, card: &Card) -> Option<usize> {
    let machine = card.gpus_a_machine as usize;
    let more = (2 * machine..=MOST_GPUS).step_by(machine).filter(|n| *n <= 16 * machine || n % (8 * machine) == 0);
    let holds = |n: &usize| taken(plan, card, *n).is_ok_and(|e| e.fits(plan, card.memory_gb * 1e9));
    (1..=machine).chain(more).find(holds)
}

fn notes(plan: &Plan, activity: &Activity, card: &Card, all: &Estimate) -> Vec<String> {
    let gb = |bytes: f64| bytes / 1e9;
    let mut notes = Vec::new();
    if !all.fits {
        let asked = gb(all.build_bytes.max(all.run_bytes));
        let hint = plan.procedural_hint(Redraw::Possible);
        let least = match fewest(plan, card) {
            Some(n) => format!("it takes {n} at the least"),
            None if all.memory.is_none() => {
                format!("and no number up to {MOST_GPUS} holds it: what is kept of all cells lies on every GPU")
            }
            None => format!(
                "and no number up to {MOST_GPUS} holds it: where each row's synapses lie takes {:.1} GB on every GPU",
                all.memory.map_or(0.0, |m| gb(m.rows))
            ),
        };
        notes.push(format!(
            "{} of {} do not hold the network: it needs {asked:.1} GB on each, which has {:.1}; {least}{hint}",
            all.gpus, card.name, card.memory_gb
        ));
    }
    if !all.runs {
        notes.push(format!(
            "a network runs on up to {} GPUs of one machine so far: {} are a projection, with {} us and {} GB/s between machines, \
             which were not measured",
            MOST_CARDS.min(card.gpus_a_machine as usize),
            all.gpus,
            card.network_us,
            card.network_gb_per_s
        ));
    }
    if !plan.network.replicas.is_empty() {
        notes.push(
            "of networks side by side no step was fitted: sixteen took 1.25 to 2 times as long as is said here"
                .to_owned(),
        );
    }
    if plan.learning.is_some() && all.gpus > 1 {
        notes.push("synapses that change were measured on one GPU alone".to_owned());
    }
    let Some(step) = &all.step else {
        let of = if plan.learning.is_some() { "change outside shared memory" } else { "are drawn again at each spike" };
        notes.push(format!("of the engine for synapses that {of} no step was measured"));
        return notes;
    };
    if step.host_us > step.gpu_us {
        notes.push(format!(
            "the host binds: it takes up {:.0} spikes a step in {:.1} us, beside {:.1} us of the GPUs, so more of them make it no \
             faster; `simulate --hash none` leaves the hash, which is most of it",
            activity.spikes,
            step.host_us,
            step.gpu_us
        ));
    } else if all.gpus > 1 && step.fixed_share() > LARGE_SHARE {
        let share = 100.0 * step.fixed_share();
        notes.push(format!(
            "{share:.0} % of a step go by while blocks and GPUs hear of each other, which more GPUs do not shorten"
        ));
    }
    let heavy = plan.network.populations.iter().zip(&plan.models);
    let heavy: Vec<&str> = heavy
        .filter(|(_, m)| m.kind() == Kind::Dynamics && !m.name().starts_with("lif_exp"))
        .map(|(p, _)| p.name.as_str())
        .collect();
    if !heavy.is_empty() {
        notes.push(format!(
            "cells of {} are taken to cost what those of lif_exp do, which alone were measured",
            heavy.join(", ")
        ));
    }
    notes
}
