//! How many GPUs a network wants, from its configuration.

use super::{RATE_HZ, described};
use crate::config::{Config, nearest};
use crate::spiking::capacity::{Activity, Card, Estimate, Exchange, estimate};
use crate::spiking::models::Kind;
use crate::spiking::network::read::read;
use crate::spiking::{Plan, partition};
use crate::{Error, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Runs of more steps are taken to go on as they begin.
const STEPS: u64 = 1 << 20;

/// What is asked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CapacityOptions {
    /// Which card.
    pub gpu: String,
    /// A file of the constants of a card, which then has the name `gpu`.
    pub constants: Option<PathBuf>,
    /// Numbers of GPUs.
    pub gpus: Vec<usize>,
    /// The rate of all cells but sources; else that of the description, or [`RATE_HZ`].
    pub rate_hz: Option<f64>,
    /// Rates of populations by name, which win.
    pub rates_hz: Vec<(String, f64)>,
    /// How cards of a machine tell each other what fired.
    pub exchange: Exchange,
    /// What each of several networks side by side overrides; nothing for one network.
    pub replicas: Vec<Vec<String>>,
}

impl CapacityOptions {
    /// So many of the cards of that name.
    pub fn new(gpu: impl Into<String>, gpus: impl Into<Vec<usize>>) -> Self {
        let (gpu, gpus) = (gpu.into(), gpus.into());
        let (constants, rate_hz, rates_hz, replicas) = (None, None, Vec::new(), Vec::new());
        Self { gpu, constants, gpus, rate_hz, rates_hz, exchange: Exchange::Peers, replicas }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CapacityReport {
    /// The card.
    pub card: Card,
    /// How many cells.
    pub cells: u64,
    /// How many synapses are expected.
    pub synapses: f64,
    /// A step, ms.
    pub dt_ms: f64,
    /// The run, ms.
    pub duration_ms: f64,
    /// The rate that each population is expected to have.
    pub rates_hz: BTreeMap<String, f64>,
    /// Spikes a step.
    pub spikes_per_step: f64,
    /// Synapses that they go through.
    pub events_per_step: f64,
    /// One a number of GPUs.
    pub estimates: Vec<PlannedRun>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// A number of GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PlannedRun {
    /// What the network is on them.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Wall time of the run of the description, with what its first and last chunks wait for, ms; building is not in it.
    pub wall_ms: Option<f64>,
}

/// The rate of each population.
fn rates(plan: &Plan, options: &CapacityOptions, notes: &mut Vec<String>) -> Result<Vec<f64>> {
    let named = options.rates_hz.iter().map(|(_, r)| r);
    if let Some(rate) = options.rate_hz.iter().chain(named).find(|r| !(r.is_finite() && **r >= 0.0)) {
        return Err(Error::config(format!("a rate of {rate} Hz is none")));
    }
    let populations = &plan.network.populations;
    let mut all = partition::rates(plan, options.rate_hz.unwrap_or(RATE_HZ), options.rate_hz.is_some());
    for (name, rate) in &options.rates_hz {
        // Of each of several networks side by side.
        let own = |p: &usize| plan.network.own_name(*p) == name || populations[*p].name == *name;
        let own: Vec<usize> = (0..populations.len()).filter(own).collect();
        if own.is_empty() {
            let first = plan.network.populations_of(0);
            let names = || first.clone().map(|p| plan.network.own_name(p));
            let near = nearest(name, names()).map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
            let what = format!(
                "a rate is given for `{name}`, but the populations are {}{near}",
                names().collect::<Vec<_>>().join(", ")
            );
            return Err(Error::config(what));
        }
        own.into_iter().for_each(|p| all[p] = *rate);
    }
    let mut assumed: Vec<&str> = populations
        .iter()
        .enumerate()
        .filter(|(_, p)| p.model.kind() == Kind::Dynamics && p.reference.rate_hz.is_none() && options.rate_hz.is_none())
        .map(|(i, _)| plan.network.own_name(i))
        .filter(|name| options.rates_hz.iter().all(|(n, _)| n != name))
        .collect();
    let mut known = std::collections::HashSet::new();
    assumed.retain(|name| known.insert(*name));
    if !assumed.is_empty() {
        notes.push(format!(
            "the description has no rates of {}: {RATE_HZ} Hz is assumed; --rate and --rates say others",
            assumed.join(", ")
        ));
    }
    Ok(all)
}

/// What the network of `config` is on each number of GPUs. Nothing is built, and no GPU is needed.
///
/// # Errors
/// `Config` for a description, a card, a rate or a number of GPUs that makes no sense; `Io`.
pub fn capacity(config: &Config, options: &CapacityOptions) -> Result<CapacityReport> {
    let card = match &options.constants {
        None => Card::find(&options.gpu)?,
        Some(path) => {
            let card = Card::read(path)?;
            if !card.name.eq_ignore_ascii_case(&options.gpu) {
                let what = format!("{} has the constants of `{}`, not of `{}`", path.display(), card.name, options.gpu);
                return Err(Error::config(what));
            }
            card
        }
    };
    let settings = described(config, &options.replicas, &read)?;
    let mut notes = settings.notes;
    let plan = Plan::new(settings.network)?;
    let activity = Activity::new(&plan, rates(&plan, options, &mut notes)?);
    let dt_ms = plan.network.dt_ms;
    let steps = (settings.duration_ms / dt_ms).round() as u64;
    let wall_ms = |e: &Estimate| {
        let step = e.step.as_ref()?;
        let more = steps.saturating_sub(STEPS) as f64 * step.us;
        Some((step.run_us(steps.min(STEPS), dt_ms) + more) * 1e-3)
    };
    let one = |gpus: &usize| {
        let estimate = estimate(&plan, &activity, &card, *gpus, options.exchange)?;
        Ok(PlannedRun { wall_ms: wall_ms(&estimate), estimate })
    };
    let estimates = options.gpus.iter().map(one).collect::<Result<Vec<_>>>()?;
    let names = plan.network.populations.iter().map(|p| p.name.clone());
    Ok(CapacityReport {
        cells: plan.cells(),
        synapses: (0..plan.network.projections.len()).map(|i| partition::expected(&plan, i)).sum(),
        dt_ms,
        duration_ms: settings.duration_ms,
        rates_hz: names.zip(activity.rates_hz.iter().copied()).collect(),
        spikes_per_step: activity.spikes,
        events_per_step: activity.events,
        estimates,
        notes,
        card,
    })
}
