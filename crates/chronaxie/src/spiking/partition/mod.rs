//! How a network is shared out: which cell belongs to which part.
//!
//! A [`Layout`] says it; spikes do not depend on it, but the time of a step does. Partitioners, one a file, make layouts;
//! [`evaluate`] says what each would cost: the README has the model.

use crate::spiking::models::Kind;
use crate::spiking::plan::Plan;
use crate::{Error, Result};

mod across;
mod evaluate;
mod graph;
mod groups;
mod index;
mod kmeans;
mod layout;
mod metis;
mod morton;
mod sample;
#[cfg(test)]
mod tests;
mod w_slice;

pub use across::shortest_across;
pub use evaluate::{CELL_NS, CHANGING_NS, CROSSING_NS, EVENT_NS, EXCHANGE_NS, Evaluation, evaluate};
pub use layout::{Layout, MAX_PARTS};
pub(crate) use sample::expected;

/// Makes layouts.
pub trait Partitioner: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// What it does, in a line.
    fn about(&self) -> &'static str;
    /// Whether it is for networks whose cells lie somewhere alone.
    fn needs_places(&self) -> bool {
        true
    }
    /// Why it cannot be used on this machine, if it cannot.
    fn missing(&self) -> Option<Error> {
        None
    }
    /// Cells of equal work in each part, as far as it goes.
    ///
    /// # Errors
    /// `Unavailable`, where a library is missing.
    fn layout(&self, load: &Load<'_>, parts: usize) -> Result<Layout>;
}

/// All partitioners.
pub fn all() -> &'static [&'static dyn Partitioner] {
    &[&index::Index, &w_slice::WSlice, &morton::Morton, &kmeans::KMeans, &metis::Metis]
}

/// The partitioner of this name.
///
/// # Errors
/// `Config`, with the names that there are.
pub fn find(name: &str) -> Result<&'static dyn Partitioner> {
    let known = || all().iter().map(|p| p.name()).collect::<Vec<_>>().join(", ");
    let found = all().iter().find(|p| p.name() == name);
    found
        .copied()
        .ok_or_else(|| Error::config(format!("`{name}` is no way to share a network out; there are auto, {}", known())))
}

/// A network with what its cells are expected to do.
pub struct Load<'a> {
    /// The network.
    pub plan: &'a Plan,
    /// Spikes a second and cell, by population.
    pub rates: Vec<f64>,
    /// Whether synapses are counted one by one; else from samples and formulas.
    pub exact: bool,
    /// How many synapses of a projection a sample has.
    sample: f64,
    /// ns a step, `[population][cell]`.
    work: Vec<Vec<f32>>,
}

/// Spikes a second and cell of each population: `rate_hz` where it is not known, or for all but sources where `all` is true.
pub(crate) fn rates(plan: &Plan, rate_hz: f64, all: bool) -> Vec<f64> {
    let n = &plan.network;
    let rate = |p: &crate::spiking::Population| match p.model.kind() {
        Kind::Poisson => p.typical()[0],
        Kind::Replay => {
            let list = p.replay.as_deref().map_or(&[][..], Vec::as_slice);
            let steps = list.last().map_or(1, |(step, _)| step + 1) as f64;
            list.len() as f64 / f64::from(p.size) / (steps * n.dt_ms * 1e-3)
        }
        Kind::Dynamics => p.reference.rate_hz.filter(|_| !all).unwrap_or(rate_hz),
    };
    n.populations.iter().map(rate).collect()
}

impl<'a> Load<'a> {
    /// With a rate of `rate_hz` for every population whose rate is not known, or for all but sources where `all` is true.
    pub fn new(plan: &'a Plan, rate_hz: f64, all: bool) -> Self {
        let rates = rates(plan, rate_hz, all);
        let exact = sample::countable(plan);
        let mut load = Self { plan, rates, exact, sample: sample::SAMPLED, work: Vec::new() };
        load.weigh();
        load
    }

    fn weigh(&mut self) {
        let n = &self.plan.network;
        let mut work: Vec<Vec<f32>> = n.populations.iter().map(|p| vec![CELL_NS as f32; p.size as usize]).collect();
        if self.exact {
            sample::each(self.plan, None, &mut |s| {
                work[n.projections[s.projection].target][s.target as usize] += self.event_ns(s.projection) as f32;
            });
        } else {
            for (i, p) in n.projections.iter().enumerate() {
                let all = sample::expected(self.plan, i) * self.event_ns(i);
                let each = (all / f64::from(n.populations[p.target].size)) as f32;
                work[p.target].iter_mut().for_each(|x| *x += each);
            }
        }
        self.work = work;
    }

    /// How many synapses of a projection a sample has; nothing where all are counted.
    fn sampled(&self) -> Option<f64> {
        (!self.exact).then_some(self.sample)
    }

    /// Spikes a step of a cell of a population.
    fn spikes(&self, population: usize) -> f64 {
        (self.rates[population] * self.plan.network.dt_ms * 1e-3).min(1.0)
    }

    /// What a synapse of a projection costs, ns a step.
    fn event_ns(&self, projection: usize) -> f64 {
        let ns = if self.plan.changes(projection) { CHANGING_NS } else { EVENT_NS };
        ns * self.spikes(self.plan.network.projections[projection].source)
    }

    /// What all cells cost, ns a step.
    fn total(&self) -> f64 {
        self.work.iter().flatten().map(|w| f64::from(*w)).sum()
    }

    /// What the part of a layout costs that has most work, ns a step.
    fn largest(&self, layout: &Layout) -> f64 {
        let of = |part: usize| -> f64 {
            let own = (0..self.work.len()).flat_map(|p| layout.own(part, p).iter().map(move |cell| self.work(p, cell)));
            own.sum()
        };
        (0..layout.parts()).map(of).fold(0.0, f64::max)
    }

    /// What a cell costs, ns a step.
    fn work(&self, population: usize, cell: u32) -> f64 {
        self.work[population][cell as usize].into()
    }
}

/// A layout by the partitioner `method`, or by the one of least cost where that is `auto`, and its name; `rate_hz` is the rate of
/// cells whose rate is not known. Where there is no choice nothing is weighed.
///
/// # Errors
/// `Config`, where there is no such partitioner, or it does not apply; `Unavailable`.
pub fn choose(plan: &Plan, rate_hz: f64, parts: usize, method: &str) -> Result<(Layout, &'static str)> {
    if parts == 0 || parts > MAX_PARTS {
        return Err(Error::config(format!("{parts} parts: a network is shared out among 1 to {MAX_PARTS}")));
    }
    let ways: Vec<&'static dyn Partitioner> = if method == "auto" {
        // A library that is missing is no reason not to run.
        let fit = |by: &&&'static dyn Partitioner| applies(plan, **by).is_ok() && by.missing().is_none();
        all().iter().filter(fit).copied().collect()
    } else {
        let by = find(method)?;
        applies(plan, by)?;
        vec![by]
    };
    if let [by] = ways[..]
        && by.name() == index::Index.name()
    {
        return Ok((Layout::even(&plan.network, parts), by.name()));
    }
    let load = Load::new(plan, rate_hz, false);
    if let [by] = ways[..] {
        return Ok((by.layout(&load, parts)?, by.name()));
    }
    // One that fails is out.
    let made = ways.iter().filter_map(|by| by.layout(&load, parts).ok().map(|layout| (layout, by.name())));
    let (layouts, names): (Vec<Layout>, Vec<&'static str>) = made.unzip();
    let at = best(&evaluate(&load, &layouts)).unwrap_or(0);
    let best = layouts.into_iter().zip(names).nth(at);
    best.ok_or_else(|| Error::value("no way to share the network out works"))
}

/// What another way must save of the largest share of the work before GPUs leave ranges of numbers.
const SAVED: f64 = 0.03;

/// Likewise for GPUs of one machine, of which every block looks at every spike, wherever it was: a step waits for the one that has
/// most work, and `auto` takes ranges of numbers unless another way makes that share smaller by more than 3 %.
///
/// # Errors
/// As [`choose`].
pub fn choose_for_gpus(plan: &Plan, rate_hz: f64, gpus: usize, method: &str) -> Result<(Layout, &'static str)> {
    let even = |by: &dyn Partitioner| (Layout::even(&plan.network, gpus.max(1)), by.name());
    if method != "auto" {
        return choose(plan, rate_hz, gpus, method);
    }
    if gpus < 2 || plan.network.populations.iter().all(|p| p.positions.is_none()) {
        return Ok(even(&index::Index));
    }
    let load = Load::new(plan, rate_hz, false);
    let (mut least, mut best) = (load.largest(&even(&index::Index).0), even(&index::Index));
    if least <= (1.0 + SAVED) * load.total() / gpus as f64 {
        return Ok(best);
    }
    least *= 1.0 - SAVED;
    let fit = |by: &&&'static dyn Partitioner| applies(plan, **by).is_ok() && by.missing().is_none();
    for by in all().iter().filter(fit) {
        // One that fails is out.
        let Ok(layout) = by.layout(&load, gpus) else { continue };
        let largest = load.largest(&layout);
        if largest < least {
            (least, best) = (largest, (layout, by.name()));
        }
    }
    Ok(best)
}

/// The first of least cost.
pub fn best(costs: &[Evaluation]) -> Option<usize> {
    (0..costs.len()).min_by(|a, b| costs[*a].step_us.total_cmp(&costs[*b].step_us))
}

/// Refuses a partitioner that needs places where no cell has one.
///
/// # Errors
/// `Config`.
pub fn applies(plan: &Plan, by: &dyn Partitioner) -> Result<()> {
    if by.needs_places() && plan.network.populations.iter().all(|p| p.positions.is_none()) {
        let what = format!("{} needs cells with places, and no population of this network has them (box)", by.name());
        return Err(Error::config(what));
    }
    Ok(())
}

/// Cuts a list of cells, each with its work, into parts of equal work that follow each other.
fn cut(work: impl Iterator<Item = f64> + Clone, parts: usize) -> Vec<u32> {
    let total: f64 = work.clone().sum();
    let mut before = 0.0;
    work.map(|w| {
        // By its middle, so that a part is as near to its share as it can be.
        let part = ((before + 0.5 * w) / total.max(f64::MIN_POSITIVE) * parts as f64) as usize;
        before += w;
        part.min(parts - 1) as u32
    })
    .collect()
}
