//! The law of cells that die and are born: each cell grows older by one step after the other, and what is under way of synapses that do
//! not change is made again from the spikes.
//!
//! At the end of a step, after its spikes were sent: every cell is a step older and its health has fallen; those whose time has come die at
//! the next multiple of the interval, all at once. What a cell that dies has sent is gone where it has not come out of its axon; what is on
//! its way to its synapses comes to those of its child; what its dendrite holds is gone with it. See README.md.

use super::Spike;
use super::eager::Eager;
use super::reference::Ring;
use crate::Result;
use crate::spiking::connect::rows::enumerate;
use crate::spiking::draws::{Purpose, draw, uniform};
use crate::spiking::life::births;
use crate::spiking::life::weights::Spread;
use crate::spiking::plan::Plan;

/// A cell's life.
#[derive(Debug, Clone)]
struct Age {
    population: usize,
    cell: u32,
    steps: u64,
    health: f64,
}

/// A synapse without plasticity.
#[derive(Debug)]
struct Synapse {
    projection: usize,
    row: u64,
    source: u32,
    target: u32,
    /// Population, port and cell.
    place: (usize, usize, usize),
    delay: u16,
    code: i32,
    changes: u64,
}

/// What lives and dies.
#[derive(Debug)]
pub(super) struct Mortal {
    /// Of the cells that do; nothing of one that is dead.
    ages: Vec<Option<Age>>,
    /// Of every cell.
    generation: Vec<u32>,
    alive: Vec<bool>,
    /// Of every cell, its parameters, without inputs from outside.
    parameters: Vec<Vec<f64>>,
    synapses: Vec<Synapse>,
    /// Of every projection, by what its weights change, if they do.
    spreads: Vec<Option<Spread>>,
    /// Of every cell, those that it sends to.
    outgoing: Vec<Vec<usize>>,
    /// Spikes of the last `max_delay` steps.
    recent: Vec<Spike>,
    /// What synapses that change have passed on, as of the ring of others.
    pub passed: Ring,
}

impl Mortal {
    pub fn new(plan: &Plan, empty: &Ring) -> Result<Option<Self>> {
        let Some(life) = &plan.network.lifecycle else { return Ok(None) };
        let n = &plan.network;
        let cells = plan.cells() as usize;
        let (mut ages, mut parameters) = (vec![None; cells], Vec::new());
        for (p, population) in n.populations.iter().enumerate() {
            let columns = plan.parameters(p, 0..population.size)?;
            let current = population.model.current();
            for cell in 0..population.size {
                let mut own: Vec<f64> =
                    columns.iter().map(|v| v[if v.len() == 1 { 0 } else { cell as usize }]).collect();
                current.into_iter().for_each(|i| own[i] = 0.0);
                parameters.push(own);
                if !life.has(p) {
                    continue;
                }
                let key = n.population_key(p);
                let bits = draw(key.seed, Purpose::Age, key.owner, cell.into());
                let age_ms = life.initial_age_ms.quantile(uniform(bits[0], bits[1]));
                let mut age = Age { population: p, cell, steps: 0, health: 1.0 };
                (0..(age_ms / n.dt_ms).round() as u64).for_each(|_| age.grow(plan));
                ages[(plan.first[p] as u32 + cell) as usize] = Some(age);
            }
        }
        let mut all = Self {
            ages,
            generation: vec![0; cells],
            alive: vec![true; cells],
            parameters,
            synapses: Vec::new(),
            spreads: (0..n.projections.len()).map(|i| n.mutates(i).then(|| Spread::of(plan, i))).collect(),
            outgoing: vec![Vec::new(); cells],
            recent: Vec::new(),
            passed: empty.clone(),
        };
        for (projection, p) in n.projections.iter().enumerate().filter(|(i, _)| !plan.changes(*i)) {
            let (port, mut row) = (|code: i32| plan.port(p.target, code < 0), 0);
            enumerate(plan, projection, 0..n.populations[p.target].size, &mut |s, t, code, delay| {
                let (source, target) = (plan.first[p.source] as u32 + s, plan.first[p.target] as u32 + t);
                all.outgoing[source as usize].push(all.synapses.len());
                let place = (p.target, port(code), t as usize);
                all.synapses.push(Synapse { projection, row, source, target, place, delay, code, changes: 0 });
                row += 1;
            });
        }
        Ok(Some(all))
    }

    /// How many stood where each cell stands, and which live.
    pub fn lives(&self) -> (&[u32], &[bool]) {
        (&self.generation, &self.alive)
    }

    pub fn is_alive(&self, cell: u32) -> bool {
        self.alive[cell as usize]
    }

    /// The parameters of a cell whose first forebear had these.
    pub fn own(&self, plan: &Plan, (population, cell): (usize, u32), first: &mut [f64]) {
        let Some(life) = &plan.network.lifecycle else { return };
        if life.mutates_cells(population) {
            let current = plan.network.populations[population].model.current();
            let own = &self.parameters[plan.first[population] as usize + cell as usize];
            (0..first.len()).filter(|i| Some(*i) != current).for_each(|i| first[i] = own[i]);
        }
    }

    /// Sends a spike; how many synapses it goes through.
    pub fn send(&mut self, spike: Spike, ring: &mut Ring) -> u64 {
        self.recent.push(spike);
        self.put(spike, 0, ring)
    }

    /// What of a spike arrives from `from` on.
    fn put(&self, spike: Spike, from: u64, ring: &mut Ring) -> u64 {
        let (len, mut sent) = (ring.len() as u64, 0);
        for s in self.outgoing[spike.cell as usize].iter().map(|i| &self.synapses[*i]) {
            let when = spike.step + u64::from(s.delay);
            if when >= from {
                let (p, port, cell) = s.place;
                ring[(when % len) as usize][p][port][cell] += f64::from(s.code);
                sent += 1;
            }
        }
        sent
    }

    /// Between the last step and `step`.
    pub fn end(
        &mut self,
        plan: &Plan,
        step: u64,
        states: &mut [Vec<Vec<f64>>],
        ring: &mut Ring,
        mut eager: Option<&mut Eager<'_>>,
    ) {
        let Some(life) = &plan.network.lifecycle else { return };
        let oldest = step.saturating_sub(plan.max_delay.into());
        self.recent.retain(|spike| spike.step >= oldest);
        self.ages.iter_mut().flatten().for_each(|age| age.grow(plan));
        if !step.is_multiple_of((life.interval_ms / plan.network.dt_ms).round() as u64) {
            return;
        }
        let mut dies = vec![false; self.alive.len()];
        for (dies, age) in dies.iter_mut().zip(&self.ages) {
            *dies = age.as_ref().is_some_and(|age| age.is_over(plan));
        }
        if !dies.contains(&true) {
            return;
        }
        self.recent.retain(|spike| !dies[spike.cell as usize]);
        if let Some(eager) = eager.as_deref_mut() {
            eager.forget(&dies);
        }
        let before = self.generation.clone();
        for at in (0..dies.len()).filter(|at| dies[*at]) {
            let Some(age) = &mut self.ages[at] else { continue };
            let (p, cell) = (age.population, age.cell);
            self.passed.iter_mut().flat_map(|ring| &mut ring[p]).for_each(|sums| sums[cell as usize] = 0.0);
            if !life.reproduction {
                (self.ages[at], self.alive[at]) = (None, false);
                continue;
            }
            (age.steps, age.health) = (0, 1.0);
            self.generation[at] += 1;
            let (who, own) = ((cell, self.generation[at]), &mut self.parameters[at]);
            if life.mutates_cells(p) {
                births::mutate(plan, p, &life.groups(&plan.network, p), who, own);
            }
            states[p][cell as usize] = births::state(plan, p, who, own);
        }
        if life.reproduction {
            self.mutate(&dies);
            if let Some(eager) = eager {
                eager.mutate(&dies, &before);
            }
        }
        ring.iter_mut().flatten().flatten().for_each(|sums| sums.fill(0.0));
        for i in 0..self.recent.len() {
            self.put(self.recent[i], step, ring);
        }
    }

    fn mutate(&mut self, dies: &[bool]) {
        for s in &mut self.synapses {
            let Some(spread) = &self.spreads[s.projection] else { continue };
            let ends = [s.source, s.target];
            let ends = &ends[..if s.source == s.target { 1 } else { 2 }];
            for _ in ends.iter().filter(|cell| dies[**cell as usize]) {
                s.code = spread.changed(s.code, s.row, s.changes);
                s.changes += 1;
            }
        }
    }
}

impl Age {
    fn grow(&mut self, plan: &Plan) {
        let decay = plan.network.lifecycle.as_ref().map_or(0.0, |life| life.health_decay_per_ms);
        self.steps += 1;
        self.health -= decay * plan.network.dt_ms;
    }

    fn is_over(&self, plan: &Plan) -> bool {
        let max_age = plan.network.lifecycle.as_ref().map_or(f64::INFINITY, |life| life.max_age_ms);
        self.health < 0.1 || self.steps as f64 > (max_age / plan.network.dt_ms).round()
    }
}
