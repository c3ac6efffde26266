//! The law: plain loops in f64, one cell and one synapse after the other.
//!
//! It draws from the plan what the other engines draw, and shares no more with them: spikes go at once into a ring of
//! future inputs, a cell's state is f64, and each model's law has its own arithmetic. With [`Reference::in_f32`] the state
//! advances by the model's body, one cell at a time, and the spikes are those of every other engine, bit for bit.

use super::Spike;
use super::eager::Eager;
use super::mortal::Mortal;
use crate::Result;
use crate::spiking::connect::{Redraw, Shard, shard};
use crate::spiking::draws::{Purpose, draw};
use crate::spiking::math;
use crate::spiking::models::{Block, Coefficients, Inputs, Kind, PAD};
use crate::spiking::plan::Plan;

/// `[step % len][population][port][cell]`, in units.
pub(super) type Ring = Vec<Vec<Vec<Vec<f64>>>>;

/// The law in motion.
#[derive(Debug)]
pub struct Reference<'a> {
    plan: &'a Plan,
    shards: Vec<Shard>,
    in_f32: bool,
    step: u64,
    /// `[population][parameter][cell]`.
    parameters: Vec<Vec<Vec<f64>>>,
    /// `[population][cell][variable]`.
    states: Vec<Vec<Vec<f64>>>,
    /// Whole numbers, but for what synapses that change pass on in f64.
    ring: Ring,
    /// Synapses that change.
    eager: Option<Eager<'a>>,
    /// Cells that die and are born.
    mortal: Option<Mortal>,
    events: u64,
}

impl<'a> Reference<'a> {
    /// The law of `plan`, in f64.
    ///
    /// # Errors
    /// As [`shard::build`].
    pub fn new(plan: &'a Plan) -> Result<Self> {
        Self::with(plan, false)
    }
    /// The same loops with the models' f32 bodies.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn in_f32(plan: &'a Plan) -> Result<Self> {
        Self::with(plan, true)
    }

    fn with(plan: &'a Plan, in_f32: bool) -> Result<Self> {
        // The law keeps every synapse, whatever a projection asks for.
        plan.require_memory(1.0, Redraw::Nothing)?;
        let shards = shard::build(plan, super::super::connect::shards_for(plan, 1), Redraw::Nothing, &|_| ())?;
        let sizes: Vec<u32> = plan.network.populations.iter().map(|p| p.size).collect();
        let mut parameters = Vec::new();
        let mut states = Vec::new();
        for (p, size) in sizes.iter().enumerate() {
            parameters.push(plan.parameters(p, 0..*size)?);
            let columns = plan.initial(p, 0..*size)?;
            states.push((0..*size as usize).map(|c| columns.iter().map(|v| v[c]).collect()).collect());
        }
        let zeros = |p: usize| vec![vec![0f64; sizes[p] as usize]; plan.models[p].ports().len()];
        let empty: Vec<_> = (0..sizes.len()).map(zeros).collect();
        let ring = vec![empty; plan.max_delay as usize + 1];
        let eager = plan.learning.as_ref().map(|l| Eager::new(plan, l, in_f32)).transpose()?;
        let mortal = Mortal::new(plan, &ring)?;
        Ok(Self { plan, shards, in_f32, step: 0, parameters, states, ring, eager, mortal, events: 0 })
    }

    /// `[cell][variable]` of a population.
    pub fn states(&self, population: usize) -> &[Vec<f64>] {
        &self.states[population]
    }

    /// Deliveries so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How many cells stood where each stands, and which live; nothing where none dies.
    pub fn lives(&self) -> Option<(&[u32], &[bool])> {
        self.mortal.as_ref().map(Mortal::lives)
    }

    /// (source, target, delay, rule, weight) of every synapse that changes, in the unit of the target's model.
    pub fn weights(&self) -> Vec<(u32, u32, u16, u16, f64)> {
        self.eager.as_ref().map_or(Vec::new(), |e| e.weights().collect())
    }

    /// Runs `steps` steps, and adds their spikes to `spikes`, sorted by step and cell.
    ///
    /// # Errors
    /// None today; as other engines.
    pub fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        for _ in 0..steps {
            let from = spikes.len();
            let (len, step) = (self.ring.len() as u64, self.step);
            let ring = self.mortal.as_mut().map_or(&mut self.ring, |mortal| &mut mortal.passed);
            let mut add = |delay: u16, (p, port, c): (usize, usize, usize), amount: f64| {
                ring[((step + u64::from(delay)) % len) as usize][p][port][c] += amount;
            };
            if let Some(eager) = &mut self.eager {
                eager.arrive(step, &mut add);
            }
            for p in 0..self.states.len() {
                self.update(p, spikes);
            }
            let now = (self.step % self.ring.len() as u64) as usize;
            self.ring[now].iter_mut().flatten().for_each(|sums| sums.fill(0.0));
            for i in from..spikes.len() {
                match &mut self.mortal {
                    None => self.send(spikes[i].cell),
                    Some(mortal) => self.events += mortal.send(spikes[i], &mut self.ring),
                }
            }
            if let Some(mortal) = &mut self.mortal {
                mortal.passed[now].iter_mut().flatten().for_each(|sums| sums.fill(0.0));
            }
            let ring = self.mortal.as_mut().map_or(&mut self.ring, |mortal| &mut mortal.passed);
            let mut add = |delay: u16, (p, port, c): (usize, usize, usize), amount: f64| {
                ring[((step + u64::from(delay)) % len) as usize][p][port][c] += amount;
            };
            if let Some(eager) = &mut self.eager {
                self.events += eager.fired(step, &spikes[from..], &mut add);
            }
            self.step += 1;
            if let Some(mortal) = &mut self.mortal {
                mortal.end(self.plan, self.step, &mut self.states, &mut self.ring, self.eager.as_mut());
            }
        }
        Ok(())
    }

    fn update(&mut self, p: usize, spikes: &mut Vec<Spike>) {
        let (plan, step) = (self.plan, self.step);
        let (model, key) = (plan.models[p], plan.network.population_key(p));
        let now = (step % self.ring.len() as u64) as usize;
        for c in 0..self.states[p].len() as u32 {
            let mut own: Vec<f64> =
                self.parameters[p].iter().map(|v| v[if v.len() == 1 { 0 } else { c as usize }]).collect();
            let at = plan.first[p] as u32 + c;
            if let Some(mortal) = &self.mortal {
                if !mortal.is_alive(at) {
                    continue;
                }
                mortal.own(plan, (p, c), &mut own);
            }
            let index = (step / 4) << 32 | u64::from(c);
            let fires = match model.kind() {
                Kind::Dynamics => {
                    let mut input: Vec<f64> = self.ring[now][p].iter().map(|sums| sums[c as usize]).collect();
                    if let Some(mortal) = &self.mortal {
                        let passed = mortal.passed[now][p].iter().map(|sums| sums[c as usize]);
                        input.iter_mut().zip(passed).for_each(|(sum, x)| *sum += x);
                    }
                    for d in plan.poisson.iter().filter(|d| d.target == p && (d.start..d.stop).contains(&step)) {
                        let bits = draw(d.key.seed, Purpose::Drive, d.key.owner, index)[(step % 4) as usize];
                        let count = d.thresholds.iter().filter(|t| bits >= **t).count() as i64;
                        input[d.port] += (count * i64::from(d.code)) as f64;
                    }
                    let input: Vec<f64> = input.iter().zip(&plan.units[p]).map(|(n, unit)| n * unit).collect();
                    let state = &mut self.states[p][c as usize];
                    if self.in_f32 {
                        body(plan, p, &own, state, &input)
                    } else {
                        model.law(&own, plan.network.dt_ms, state, &input)
                    }
                }
                Kind::Poisson => {
                    let bits = draw(key.seed, Purpose::Source, key.owner, index)[(step % 4) as usize];
                    let chance = 1.0 - math::exp(-own[0] * plan.network.dt_ms * 1e-3);
                    f64::from(bits) < (chance * 4_294_967_296.0).round()
                }
                Kind::Replay => {
                    let list = plan.network.populations[p].replay.as_ref();
                    list.is_some_and(|list| list.binary_search(&(step, c)).is_ok())
                }
            };
            if fires {
                spikes.push(Spike { step, cell: at });
            }
        }
    }

    fn send(&mut self, cell: u32) {
        let len = self.ring.len() as u64;
        for shard in &self.shards {
            for (delay, places) in shard.rows.groups(cell) {
                let sums = &mut self.ring[((self.step + u64::from(delay)) % len) as usize];
                shard.rows.each(places, |slot, weight| {
                    let slot = u32::from(slot);
                    let Some(p) = shard.parts.iter().rposition(|part| part.slot <= slot && part.count() > 0) else {
                        return;
                    };
                    let part = &shard.parts[p];
                    let (port, c) = ((slot - part.slot) / part.count(), (slot - part.slot) % part.count());
                    sums[p][port as usize][(part.low + c) as usize] += f64::from(weight);
                    self.events += 1;
                });
            }
        }
    }
}

/// The model's body for one cell.
fn body(plan: &Plan, p: usize, parameters: &[f64], state: &mut [f64], input: &[f64]) -> bool {
    let model = plan.models[p];
    let mut coefficients = vec![0.0; model.coefficient_count()];
    model.coefficients(parameters, plan.network.dt_ms, &mut coefficients);
    let mut values: Vec<[f32; PAD]> = state.iter().map(|x| [*x as f32; PAD]).collect();
    let inputs: Vec<[f32; PAD]> = input.iter().map(|x| [*x as f32; PAD]).collect();
    let mut spikes = [0; PAD];
    model.step(&mut Block {
        coefficients: Coefficients::Shared(&coefficients),
        states: &mut values.iter_mut().map(|v| &mut v[..]).collect::<Vec<_>>(),
        inputs: Inputs::Given(&inputs.iter().map(|v| &v[..]).collect::<Vec<_>>()),
        spikes: &mut spikes,
    });
    state.iter_mut().zip(values).for_each(|(x, v)| *x = f64::from(v[0]));
    spikes[0] != 0
}
