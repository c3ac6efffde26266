//! A network as whole numbers: weights in units, delays in steps, drives as tables. What is decided here is decided once,
//! for every engine, so that all of them have the same spikes.

mod size;
mod units;

use super::connect::Subset;
use super::draws::{Purpose, Stream};
use super::models::{Kind, Model};
use super::network::{
    Codes, Delay, Distribution, DriveKind, Key, Network, Population, Projection, Rule, WeightBits, Weights,
};
use super::plasticity::fixed::Learning;
use crate::config::short;
use crate::{Error, Result};

pub use super::drives::{PoissonTable, poisson_thresholds};
pub use units::Quantisation;

/// The longest delay, in steps: a delay is stored in 16 bits.
pub const MAX_DELAY: u32 = 65_535;

/// The most steps that pass before cells hear of what fired elsewhere, however long delays are.
pub const MOST_APART: u64 = 64;

/// A network that engines can run.
#[derive(Debug)]
pub struct Plan {
    /// The description.
    pub network: Network,
    /// The number of each population's first cell.
    pub first: Vec<u64>,
    /// Each population's model, reduced where its parameters allow it.
    pub models: Vec<&'static dyn Model>,
    /// `[population][port]`: the value of a sum of 1; a power of two.
    pub units: Vec<Vec<f64>>,
    /// `[population][port]`: weights of 16 bits, strengths and drives are whole numbers of `2^shift` units. 0 where no weight has 32.
    pub shifts: Vec<Vec<u32>>,
    /// One a projection of the network.
    pub efficacies: Vec<Efficacy>,
    /// What the synapses of the projections that have plasticity do; nothing where none has.
    pub learning: Option<Learning>,
    /// Tables of the Poisson drives.
    pub poisson: Vec<PoissonTable>,
    /// The shortest delay, in steps; 1 where there are no synapses.
    pub min_delay: u32,
    /// The longest delay, in steps.
    pub max_delay: u32,
}

/// Weights and delays of a projection.
#[derive(Debug, Clone)]
pub struct Efficacy {
    /// Multiples of the port's unit, of synapses that change of that of weights of 16 bits; `None` for lists of edges.
    pub weight: Option<Weights>,
    /// Steps; `None` where they follow from distances or a list.
    pub delay: Option<Codes>,
}

impl Plan {
    /// Checks `network` and makes it whole numbers.
    ///
    /// # Errors
    /// `Config`, in a sentence with the population or projection and the values, for everything that cannot be run.
    pub fn new(network: Network) -> Result<Self> {
        // Children may differ in what a reduced model takes to be the same.
        let differ = |i: usize| network.lifecycle.as_ref().is_some_and(|life| life.mutates_cells(i));
        let reduced =
            |(i, p): (usize, &Population)| p.model.reduced(&p.constants()).filter(|_| !differ(i)).unwrap_or(p.model);
        let models: Vec<&'static dyn Model> = network.populations.iter().enumerate().map(reduced).collect();
        let mut plan = Self {
            first: network.first_cells(),
            units: models.iter().map(|m| vec![1.0; m.ports().len()]).collect(),
            shifts: models.iter().map(|m| vec![0; m.ports().len()]).collect(),
            models,
            efficacies: Vec::new(),
            learning: None,
            poisson: Vec::new(),
            min_delay: MAX_DELAY,
            max_delay: 1,
            network,
        };
        plan.check_populations()?;
        if let Some((field, problem)) = plan.network.lifecycle.as_ref().and_then(|life| life.problem(&plan.network)) {
            return Err(Error::config(format!("lifecycle.{field} {problem}")));
        }
        plan.choose_units()?;
        for p in 0..plan.network.projections.len() {
            let efficacy = plan.efficacy(p)?;
            plan.efficacies.push(efficacy);
        }
        plan.min_delay = plan.min_delay.min(plan.max_delay);
        plan.plan_learning()?;
        plan.check_storage()?;
        plan.tabulate_drives()?;
        Ok(plan)
    }

    /// The plan of `network`, which differs from this one's in rates and currents alone; without efficacies and learning,
    /// since its synapses are this one's.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn redriven(&self, network: Network) -> Result<Self> {
        let mut plan = Self {
            first: self.first.clone(),
            models: self.models.clone(),
            units: self.units.clone(),
            shifts: self.shifts.clone(),
            efficacies: Vec::new(),
            learning: None,
            poisson: Vec::new(),
            min_delay: self.min_delay,
            max_delay: self.max_delay,
            network,
        };
        plan.check_populations()?;
        plan.tabulate_drives()?;
        Ok(plan)
    }

    /// The plan of `network`, this one's at a later step: with other parameters, and with the synapses of some projections as lists.
    pub(super) fn reborn(&self, network: Network) -> Result<Self> {
        let listed = |p: &Projection| matches!(p.rule, Rule::Edges(_));
        let efficacy = |(p, of): (&Projection, &Efficacy)| match listed(p) {
            true => Efficacy { weight: None, delay: None },
            false => of.clone(),
        };
        let mut plan = Self {
            first: self.first.clone(),
            models: self.models.clone(),
            units: self.units.clone(),
            shifts: self.shifts.clone(),
            efficacies: network.projections.iter().zip(&self.efficacies).map(efficacy).collect(),
            learning: None,
            poisson: Vec::new(),
            min_delay: self.min_delay,
            max_delay: self.max_delay,
            network,
        };
        plan.plan_learning()?;
        plan.tabulate_drives()?;
        Ok(plan)
    }

    /// Refuses what runs a network by itself, whose cells are to die and be born.
    pub(crate) fn refuse_life(&self, what: &str) -> Result<()> {
        if self.network.lifecycle.is_none() {
            return Ok(());
        }
        Err(Error::config(format!(
            "lifecycle: {what} does not let cells die; one process on one CPU or GPU does, or lifecycle.death = false \
             (cell_lifecycle.enable_death in a file of the original) leaves the life cycle"
        )))
    }

    /// How many cells there are.
    pub fn cells(&self) -> u64 {
        self.network.cells()
    }

    /// `source -> target` of a projection.
    pub fn label(&self, projection: usize) -> String {
        let p = &self.network.projections[projection];
        let name = |i: usize| self.network.populations[i].name.as_str();
        format!("{} -> {}", name(p.source), name(p.target))
    }

    fn check_populations(&self) -> Result<()> {
        let n = &self.network;
        if n.populations.is_empty() {
            return Err(Error::config("network: there is no population"));
        }
        if self.cells() > u64::from(u32::MAX) {
            return Err(Error::config(format!("network: {} cells are more than 2^32 - 1", self.cells())));
        }
        for (i, p) in n.populations.iter().enumerate() {
            let refuse = |what: String| Err(Error::config(format!("population {}: {what}", p.name)));
            if p.size == 0 {
                return refuse("size is 0; leave the population out".into());
            }
            if n.populations[..i].iter().any(|q| q.name == p.name) {
                return refuse("there is another of this name".into());
            }
            let named = p.model.parameters().iter().map(|x| x.name).zip(&p.parameters);
            for (name, d) in named.chain(p.model.variables().iter().map(|x| x.name).zip(&p.initial)) {
                if let Some(problem) = d.problem().or_else(|| d.beyond_single()) {
                    return refuse(format!("{name} {problem}"));
                }
            }
            if let Some(problem) = p.given.problem(p.model, p.size) {
                return refuse(problem);
            }
            if let Some(problem) = p.model.problem(&p.typical(), n.dt_ms) {
                return refuse(format!("{} {problem}", p.model.name()));
            }
            if p.model.kind() == Kind::Replay && p.replay.is_none() {
                return refuse("has no list of spikes to replay".into());
            }
        }
        Ok(())
    }

    /// The port that a weight of this sign goes to.
    pub fn port(&self, population: usize, negative: bool) -> usize {
        if negative { self.models[population].ports().len() - 1 } else { 0 }
    }

    /// The number of each population's first slot in the network, and of all slots: a slot is a cell's port, the slots of a
    /// port lie together.
    pub fn first_slots(&self) -> Vec<u64> {
        let mut next = 0;
        let own = self.network.populations.iter().zip(&self.models).map(|(p, m)| {
            let first = next;
            next += u64::from(p.size) * m.ports().len() as u64;
            first
        });
        let mut first: Vec<u64> = own.collect();
        first.push(next);
        first
    }

    fn efficacy(&mut self, index: usize) -> Result<Efficacy> {
        let label = self.label(index);
        let fault = |what: String| Error::config(format!("projection {label}: {what}"));
        let refuse = |what: String| Err(fault(what));
        let p = &self.network.projections[index];
        if p.plasticity.is_some() && p.weight_bits == WeightBits::ThirtyTwo {
            return refuse(
                "weight_bits = 32 is of weights that do not change: those that do are strengths of 16 bits and 16 more behind the point, \
                 whatever it says; leave it, or the plasticity"
                    .into(),
            );
        }
        let (sources, targets) = (&self.network.populations[p.source], &self.network.populations[p.target]);
        let dt = self.network.dt_ms;
        let whole = |ms: f64| (ms / dt).round();
        let mut longest = |steps: f64, shortest: f64| {
            if shortest.is_nan() || shortest < 1.0 {
                return Err(fault(format!(
                    "delays come down to {shortest} steps of {dt} ms, and a spike takes one at least; give the delay a low bound of \
                     at least half a step"
                )));
            }
            if steps.is_nan() || steps > f64::from(MAX_DELAY) {
                return Err(fault(format!(
                    "delays of up to {steps} steps are more than {MAX_DELAY}",
                    steps = short(steps)
                )));
            }
            self.max_delay = self.max_delay.max(steps as u32);
            self.min_delay = self.min_delay.min(shortest as u32);
            Ok(())
        };
        if let Rule::Edges(edges) = &p.rule {
            for (i, e) in edges.iter().enumerate() {
                if e.source >= sources.size || e.target >= targets.size {
                    return refuse(format!(
                        "edge {i} joins cell {} of {} to cell {} of {}, but there are {} and {}",
                        e.source, sources.name, e.target, targets.name, sources.size, targets.size
                    ));
                }
                if !e.weight.is_finite() || !e.delay_ms.is_finite() {
                    return refuse(format!("edge {i} has weight {} and delay {} ms", e.weight, e.delay_ms));
                }
                let steps = whole(e.delay_ms.into());
                longest(steps, steps).map_err(|error| error.context(format!("edge {i}")))?;
            }
            let (mut size, mut error) = (0.0, 0.0);
            for w in edges.iter().map(|e| f64::from(e.weight)) {
                let unit = self.grain(index, w < 0.0).0;
                size += w.abs();
                error += ((w / unit).round() * unit - w).abs();
            }
            if error > 0.01 * size {
                return refuse(format!(
                    "weights of {} on average are wrong by {:.1} %, {}",
                    short(size / edges.len() as f64),
                    100.0 * error / size,
                    self.coarse(index)
                ));
            }
            return Ok(Efficacy { weight: None, delay: None });
        }
        // Many projections have the same delays, or weights; a table takes milliseconds.
        let like = (0..index).find(|i| self.network.projections[*i].delay == p.delay);
        let like = like.and_then(|i| self.efficacies[i].delay.clone());
        let delay = match p.delay {
            Delay::Drawn(_) if like.is_some() => like,
            Delay::Drawn(d) => {
                if let Some(problem) = d.problem() {
                    return refuse(format!("delay {problem}"));
                }
                let ends = (whole(d.quantile(1e-10)), whole(d.quantile(1.0 - 1e-10)));
                longest(ends.1, ends.0)?;
                match Codes::new(&d, dt) {
                    Some(codes) => {
                        longest(codes.greatest().into(), codes.least().into())?;
                        Some(codes)
                    }
                    None => {
                        return refuse(format!(
                            "delays from {} to {} steps are too many",
                            short(ends.0),
                            short(ends.1)
                        ));
                    }
                }
            }
            Delay::Distance { velocity, offset_ms } => {
                let (Some(a), Some(b)) = (&sources.positions, &targets.positions) else {
                    return refuse("delays by distance need populations with places (box)".into());
                };
                if !(velocity > 0.0 && velocity.is_finite() && offset_ms >= 0.0 && offset_ms.is_finite()) {
                    return refuse(format!(
                        "velocity = {velocity} and offset = {offset_ms} ms make no delays",
                        velocity = short(velocity),
                        offset_ms = short(offset_ms)
                    ));
                }
                longest(whole(offset_ms + span(a, b) / velocity).max(1.0), 1.0)?;
                None
            }
        };
        match p.rule {
            Rule::Probability(x) | Rule::Distance { peak: x, .. } if !(0.0..=1.0).contains(&x) => {
                return refuse(format!("probability {x} is not from 0 to 1", x = short(x)));
            }
            Rule::OneToOne if sources.size != targets.size => {
                return refuse(format!("one_to_one needs equal sizes, not {} and {}", sources.size, targets.size));
            }
            Rule::Distance { length, radius, .. } => {
                if sources.positions.is_none() || targets.positions.is_none() {
                    return refuse("distance needs populations with places (box)".into());
                }
                if !(length > 0.0 && radius > 0.0) {
                    return refuse(format!(
                        "length = {length} and radius = {radius} must be above 0",
                        length = short(length),
                        radius = short(radius)
                    ));
                }
            }
            Rule::InDegree { count, multapses: false } if count > sources.size - u32::from(self_excluded(p)) => {
                return refuse(format!(
                    "an in-degree of {count} without multapses is more than {} sources",
                    sources.size
                ));
            }
            Rule::OutDegree { count, multapses: false } if count > targets.size - u32::from(self_excluded(p)) => {
                return refuse(format!(
                    "an out-degree of {count} without multapses is more than {} targets",
                    targets.size
                ));
            }
            Rule::Total { count, multapses: false }
                if count > u64::from(sources.size) * u64::from(targets.size - u32::from(self_excluded(p))) =>
            {
                return refuse(format!("{count} synapses without multapses are more than there are pairs"));
            }
            Rule::InDegree { .. } | Rule::OutDegree { .. } | Rule::Total { .. }
                if self_excluded(p) && sources.size == 1 =>
            {
                return refuse("one cell without autapses has nobody to connect to".into());
            }
            _ => {}
        }
        // Both signs of a weight may go to ports of different units: then the coarser one is that of both.
        let (unit, shift) = self.grain(index, p.weight.mean() < 0.0);
        let same = |j: &usize| {
            let q = &self.network.projections[*j];
            let grain = |i: usize| [false, true].map(|negative| self.grain(i, negative));
            q.weight == p.weight && q.weight_bits == p.weight_bits && grain(*j) == grain(index)
        };
        let like = (0..index).find(same).and_then(|i| self.efficacies[i].weight.clone());
        let Some(weight) = like.or_else(|| p.weight_bits.weights(&p.weight, unit, shift)) else {
            return refuse(format!("weights of {:?} do not fit in 16 bits of {}", p.weight.shape, short(unit)));
        };
        if weight.least() < 0 && weight.greatest() > 0 && self.units[p.target].len() > 1 {
            return refuse("weights of both signs go to two ports; bound them on one side of 0".into());
        }
        let error = self.rounding(index);
        if error > 0.01 {
            return refuse(format!(
                "weights of {:.4} in units of {unit} are wrong by up to {:.1} %, {}",
                p.weight.mean(),
                100.0 * error,
                self.coarse(index)
            ));
        }
        Ok(Efficacy { weight: Some(weight), delay })
    }

    /// The parameters of each cell of `cells` of a population, with its DC drives: `[parameter][cell]`, or one cell for all
    /// where all have the same.
    ///
    /// # Errors
    /// `Config`, where a cell's own parameters cannot be run.
    pub fn parameters<'s>(&self, population: usize, cells: impl Into<Subset<'s>>) -> Result<Vec<Vec<f64>>> {
        let cells = cells.into();
        let (p, key) = (&self.network.populations[population], self.network.population_key(population));
        let dc: f64 = self.network.drives.iter().filter(|d| d.target == population).fold(0.0, |sum, d| match d.kind {
            DriveKind::Dc { current } => sum + current,
            DriveKind::Poisson { .. } => sum,
        });
        let constants: Option<Vec<f64>> = p.constants().into_iter().collect();
        let count = if constants.is_some() { 1 } else { cells.len() };
        let mut values: Vec<Vec<f64>> = Vec::with_capacity(p.parameters.len());
        for (i, d) in p.parameters.iter().enumerate() {
            let (key, given) = (key.cells(i), p.given.parameter(i));
            let value = |cell: u32| given.map_or_else(|| cell_value(d, key, cell), |own| own[cell as usize]);
            // What all cells have is asked for of none of them, since there may be none.
            let cell = |c: usize| if constants.is_some() { 0 } else { cells.at(c) };
            values.push((0..count).map(|c| value(cell(c))).collect());
        }
        if let Some(current) = p.model.current() {
            values[current].iter_mut().for_each(|x| *x += dc);
        }
        if constants.is_none() {
            for c in 0..count {
                let own: Vec<f64> = values.iter().map(|v| v[c]).collect();
                if let Some(problem) = p.model.problem(&own, self.network.dt_ms) {
                    let cell = cells.at(c);
                    return Err(Error::config(format!("population {}: cell {cell} {problem}", p.name)));
                }
            }
        }
        Ok(values)
    }

    /// The initial state of each cell of `cells`, as it is stepped: `[variable][cell]`.
    ///
    /// # Errors
    /// As [`parameters`](Self::parameters).
    pub fn initial<'s>(&self, population: usize, cells: impl Into<Subset<'s>>) -> Result<Vec<Vec<f64>>> {
        let cells = cells.into();
        let (p, model) = (&self.network.populations[population], self.models[population]);
        let key = self.network.population_key(population);
        let parameters = self.parameters(population, cells)?;
        let full = p.model.variables();
        // A reduced model has some of the variables, by name; what it has of its own starts at 0.
        let at: Vec<Option<usize>> =
            model.variables().iter().map(|v| full.iter().position(|f| f.name == v.name)).collect();
        let mut values = vec![vec![0.0; cells.len()]; at.len()];
        for c in 0..cells.len() {
            let own: Vec<f64> = parameters.iter().map(|v| v[if v.len() == 1 { 0 } else { c }]).collect();
            let cell = cells.at(c);
            let draw = |i: usize| match p.given.variable(i) {
                Some(own) => own[cell as usize],
                None => cell_value(&p.initial[i], key.cells(32 + i), cell),
            };
            let mut state: Vec<f64> = at.iter().map(|i| i.map_or(0.0, draw)).collect();
            model.enter(&own, &mut state);
            values.iter_mut().zip(state).for_each(|(v, x)| v[c] = x);
        }
        Ok(values)
    }
}

fn self_excluded(p: &super::network::Projection) -> bool {
    p.source == p.target && !p.autapses
}

impl Key {
    /// Of one of the numbers that the cells of a population have.
    fn cells(self, what: usize) -> Self {
        Self { owner: self.owner * 64 + what as u32, ..self }
    }
}

fn cell_value(d: &Distribution, key: Key, cell: u32) -> f64 {
    // 2^16 draws for each cell: more than a distribution that was not refused redraws.
    d.constant()
        .unwrap_or_else(|| d.sample(&mut Stream::new(key.seed, Purpose::Cell, key.owner, u64::from(cell) << 16)))
}

/// The greatest distance between a cell of `a` and one of `b`, by their bounding box.
fn span(a: &[[f32; 4]], b: &[[f32; 4]]) -> f64 {
    let (mut low, mut high) = ([f32::INFINITY; 4], [f32::NEG_INFINITY; 4]);
    for x in a.iter().chain(b) {
        for d in 0..4 {
            (low[d], high[d]) = (low[d].min(x[d]), high[d].max(x[d]));
        }
    }
    if low[0] > high[0] { 0.0 } else { super::network::place::distance(&low, &high) }
}
