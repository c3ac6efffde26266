//! The life cycle of cells: how they age, when they die, and what their children have of them.
//!
//! ```toml
//! [lifecycle]
//! max_age = "100 s"             # a cell that is older dies; without it none does of its age
//! health_decay = 1e-4           # a ms: health falls from 1, and below 0.1 a cell dies
//! reproduction = true           # a child stands where a cell dies; with false its place stays empty
//! mutation_std_params = 0.05    # of a child: each parameter times 1 + N(0, this)
//! mutation_std_weights = 0.02   # of its synapses: each weight + N(0, this), in the unit of the target's model; a projection may have
//!                               # its own
//! mutating_params = [["C_m", "tau_m"], "V_th"]    # which, those of a list in the list by one draw ("adex.a": of one model); all but the
//!                               # current
//! initial_age = { distribution = "uniform", low = 0.0, high = 9000.0 }    # ms; 0
//! interval = 1.0                # ms: cells die at multiples of it
//! populations = ["E", "I"]      # whose cells; all that are no sources
//! ```
//! `death = false` leaves all of it. What a child is follows from draws that are keyed by the cell or the synapse and the generation, and
//! when a cell dies from its age, so nothing of it depends on the machine ([`life`](crate::spiking::life)).

use super::read::{Words, distribution, named};
use super::{Distribution, Network, Rule};
use crate::Result;
use crate::config::{Config, Milliseconds, Section, Setting, Value, quote};
use crate::spiking::models::{Kind, Model};

/// How cells live and die.
#[derive(Debug, Clone, PartialEq)]
pub struct Lifecycle {
    /// Indices of the populations whose cells do, rising.
    pub populations: Vec<usize>,
    /// A cell that is older dies, ms.
    pub max_age_ms: f64,
    /// What a ms takes from a cell's health, which begins at 1; below 0.1 it dies.
    pub health_decay_per_ms: f64,
    /// Whether a child stands where a cell dies.
    pub reproduction: bool,
    /// Standard deviation of the factor of each parameter of a child.
    pub mutation_std_params: f64,
    /// One a projection: that of what is added to the weight of each synapse of a child, in the unit of the target's model.
    pub mutation_std_weights: Vec<f64>,
    /// Parameters that a child's differ in, those of a group by one draw; all but the current where there is no list.
    pub mutating: Option<Vec<Vec<String>>>,
    /// How old cells are at the start, ms.
    pub initial_age_ms: Distribution,
    /// Cells die at multiples of this, ms.
    pub interval_ms: f64,
}

/// A name, or some that go together.
#[derive(Debug, Clone, PartialEq)]
struct Group(Words);

impl Setting for Group {
    fn expected() -> String {
        Words::expected()
    }
    fn from_value(value: &Value) -> Option<Self> {
        Words::from_value(value).map(Self)
    }
    fn to_value(&self) -> Value {
        self.0.to_value()
    }
}

impl Lifecycle {
    /// Of all cells of `network` that are no sources, whose projections are all there: they die when they are older than
    /// `max_age_ms`, and have children that are like them.
    pub fn new(network: &Network, max_age_ms: f64) -> Self {
        let living = |i: &usize| network.populations[*i].model.kind() == Kind::Dynamics;
        Self {
            populations: (0..network.populations.len()).filter(living).collect(),
            max_age_ms,
            health_decay_per_ms: 0.0,
            reproduction: true,
            mutation_std_params: 0.0,
            mutation_std_weights: vec![0.0; network.projections.len()],
            mutating: None,
            initial_age_ms: 0.0.into(),
            interval_ms: network.dt_ms.max(1.0),
        }
    }

    /// Whether the cells of a population live and die.
    pub fn has(&self, population: usize) -> bool {
        self.populations.binary_search(&population).is_ok()
    }

    /// Whether parameters of the cells of a population change.
    pub fn mutates_cells(&self, population: usize) -> bool {
        self.reproduction && self.mutation_std_params > 0.0 && self.has(population)
    }

    /// A field and the end of a sentence that says what is wrong with it in `network`.
    pub fn problem(&self, network: &Network) -> Option<(&'static str, String)> {
        let say = |field, what: String| Some((field, what));
        let (age, decay, sd) = (self.max_age_ms, self.health_decay_per_ms, self.mutation_std_params);
        if age.is_nan() || age < 0.0 {
            return say("max_age", format!("is {age} ms, which must not be negative"));
        }
        if !(decay >= 0.0 && decay.is_finite()) {
            return say("health_decay", format!("is {decay} a ms, which must be finite and not negative"));
        }
        if age.is_infinite() && decay == 0.0 {
            return say("max_age", "is missing and health_decay is 0, so that no cell dies; say one of them".into());
        }
        if !(sd >= 0.0 && sd.is_finite()) {
            return say("mutation_std_params", format!("is {sd}, which must be finite and not negative"));
        }
        if let Some(sd) = self.mutation_std_weights.iter().find(|sd| !(**sd >= 0.0 && sd.is_finite())) {
            return say("mutation_std_weights", format!("is {sd}, which must be finite and not negative"));
        }
        let interval = (self.interval_ms / network.dt_ms).round();
        if !(1.0..=4_294_967_295.0).contains(&interval) {
            let what = format!(
                "is {} ms, which must be from one step of {} ms to 2^32 - 1 of them",
                self.interval_ms, network.dt_ms
            );
            return say("interval", what);
        }
        if let Some(problem) = self.initial_age_ms.problem() {
            return say("initial_age", problem);
        }
        let youngest = self.initial_age_ms.quantile(1e-10);
        if youngest < 0.0 {
            return say("initial_age", format!("comes down to {youngest} ms, and no cell is younger than 0 ms"));
        }
        if self.populations.is_empty() {
            return say("populations", "has no population: all are sources".into());
        }
        for &i in &self.populations {
            let Some(p) = network.populations.get(i) else {
                return say("populations", format!("has population {i}, but there are {}", network.populations.len()));
            };
            if p.model.kind() != Kind::Dynamics {
                return say("populations", format!("names {}, whose cells are sources ({})", p.name, p.model.name()));
            }
        }
        if self.mutation_std_weights.len() != network.projections.len() {
            let (own, all) = (self.mutation_std_weights.len(), network.projections.len());
            return say("mutation_std_weights", format!("has {own} values for {all} projections"));
        }
        let known =
            |name: &String| self.populations.iter().any(|i| parameter(network.populations[*i].model, name).is_some());
        let mut seen: Vec<&String> = Vec::new();
        for name in self.mutating.iter().flatten().flatten() {
            if !known(name) {
                return say("mutating_params", format!("names {}, which no model of the cells has", quote(name)));
            }
            let input = |i: &usize| {
                let model = network.populations[*i].model;
                model.current().is_some() && parameter(model, name) == model.current()
            };
            if self.populations.iter().any(input) {
                let what = format!("names {}, which is an input and no property of a cell", quote(name));
                return say("mutating_params", what);
            }
            if seen.contains(&name) {
                return say("mutating_params", format!("names {} twice", quote(name)));
            }
            seen.push(name);
        }
        let modulated = network.projections.iter().find(|p| p.plasticity.is_some_and(|x| x.modulation.is_some()));
        if let Some(p) = modulated {
            let name = |i: usize| &network.populations[i].name;
            let what = format!(
                "goes with every plasticity but a modulated one, which the projection {} -> {} has: its eligibilities outlive cells",
                name(p.source),
                name(p.target)
            );
            return say("death", what);
        }
        None
    }

    /// The parameters of a population's children that change: the number of a draw, and the parameters that go by it.
    pub fn groups(&self, network: &Network, population: usize) -> Vec<(u32, Vec<usize>)> {
        let model = network.populations[population].model;
        let (list, current) = (model.parameters(), model.current());
        match &self.mutating {
            None => (0..list.len()).filter(|i| Some(*i) != current).map(|i| (i as u32, vec![i])).collect(),
            Some(groups) => {
                let at = |name: &String| parameter(model, name);
                let own = groups.iter().map(|g| g.iter().filter_map(at).collect::<Vec<_>>());
                own.filter(|g| !g.is_empty()).map(|g| (g[0] as u32, g)).collect()
            }
        }
    }
}

impl Network {
    /// Whether weights of a projection that has no plasticity change where children are born.
    pub fn mutates(&self, projection: usize) -> bool {
        self.weight_sd(projection) > 0.0 && self.projections[projection].plasticity.is_none()
    }

    /// The standard deviation of what is added to a projection's weights where a child is born; 0 where nothing is.
    pub fn weight_sd(&self, projection: usize) -> f64 {
        let Some(life) = self.lifecycle.as_ref().filter(|life| life.reproduction) else { return 0.0 };
        let p = &self.projections[projection];
        let lives = life.has(p.source) || life.has(p.target);
        if lives { life.mutation_std_weights.get(projection).copied().unwrap_or(0.0) } else { 0.0 }
    }

    /// The least and the greatest weight that synapses of such a projection come to: the bounds of its distribution, of one without such
    /// twice the largest that it draws; on the side of 0 where it draws.
    pub fn weight_range(&self, projection: usize) -> (f64, f64) {
        let p = &self.projections[projection];
        let (ends, bounds) = match &p.rule {
            Rule::Edges(edges) => {
                let ends = edges.iter().map(|e| f64::from(e.weight));
                (
                    ends.fold((0f64, 0f64), |(low, high), w| (low.min(w), high.max(w))),
                    (f64::NEG_INFINITY, f64::INFINITY),
                )
            }
            _ => ((p.weight.quantile(1e-10), p.weight.quantile(1.0 - 1e-10)), (p.weight.low, p.weight.high)),
        };
        let low = if ends.0 >= 0.0 { bounds.0.max(0.0) } else { bounds.0.max(2.0 * ends.0) };
        let high = if ends.1 <= 0.0 { bounds.1.min(0.0) } else { bounds.1.min(2.0 * ends.1) };
        (low, high)
    }
}

/// The parameter of a model that a name means: its own, or that after the model's name and a point.
fn parameter(model: &dyn Model, name: &str) -> Option<usize> {
    let own = match name.split_once('.') {
        Some((of, own)) if of == model.name() => own,
        Some(_) => return None,
        None => name,
    };
    model.parameters().iter().position(|p| p.name == own)
}

/// What `lifecycle` says, if it says something; all of the network is there, and what projections say of their weights.
pub(super) fn read(config: &Config, network: &Network, spreads: &[Option<f64>]) -> Result<Option<Lifecycle>> {
    if !config.root().contains("lifecycle") {
        return Ok(None);
    }
    let t = config.table("lifecycle")?;
    let mut life = Lifecycle::new(network, f64::INFINITY);
    let death = t.get("death", true)?;
    life.max_age_ms = t.optional::<Milliseconds>("max_age")?.map_or(f64::INFINITY, |ms| ms.0);
    life.health_decay_per_ms = t.get("health_decay", 0.0)?;
    life.reproduction = t.get("reproduction", true)?;
    life.mutation_std_params = t.get("mutation_std_params", 0.0)?;
    let sd = t.get("mutation_std_weights", 0.0)?;
    life.mutation_std_weights = spreads.iter().map(|own| own.unwrap_or(sd)).collect();
    let groups: Option<Vec<Group>> = t.optional("mutating_params")?;
    life.mutating = groups.map(|groups| groups.into_iter().map(|g| g.0.0).collect());
    ages(&t, ["initial_age", "interval"], &mut life)?;
    if t.contains("populations") {
        life.populations = named(&t, "populations", network)?;
        life.populations.sort_unstable();
        life.populations.dedup();
    }
    match life.problem(network).filter(|_| death) {
        Some((field, problem)) => Err(t.refuse(field, &problem)),
        None => Ok(death.then_some(life)),
    }
}

/// The ages that cells begin with, and the interval of deaths.
pub(super) fn ages(t: &Section<'_>, [age, interval]: [&str; 2], life: &mut Lifecycle) -> Result<()> {
    if let Some(d) = distribution(t, age)? {
        life.initial_age_ms = d;
    }
    life.interval_ms = t.get(interval, Milliseconds(life.interval_ms))?.0;
    Ok(())
}
