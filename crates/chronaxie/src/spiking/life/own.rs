//! What a network with a life cycle is at a step, beside the state of its engine.

use super::weights::{Changing, Reweighed, Table};
use super::{Life, births};
use crate::spiking::connect::Synapses;
use crate::spiking::network::{Network, Rule};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::NEVER;
use crate::spiking::simulate::State;
use crate::{Error, Result};
use std::ops::Range;

/// What has come of a network's cells and weights up to a step.
#[derive(Debug)]
pub(super) struct Own {
    /// As it is described, with the inputs of the moment.
    pub base: Plan,
    pub life: Life,
    /// Of this step.
    step: u64,
    /// Of each population, the parameters that its children differ in.
    groups: Vec<Vec<(u32, Vec<usize>)>>,
    /// `[population][parameter][cell]` of populations whose children differ.
    values: Vec<Vec<Vec<f64>>>,
    tables: Vec<Table>,
    changing: Option<Changing>,
}

/// What is other than it was.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub parameters: bool,
    pub weights: Vec<Reweighed>,
    /// Whether it went back, so that nobody knows.
    pub back: bool,
}

impl Own {
    /// At step 0.
    ///
    /// # Errors
    /// `OutOfMemory`; `Value` for a network without a life cycle.
    pub fn new(base: Plan) -> Result<Self> {
        let (Some(life), Some(cycle)) = (Life::of(&base), &base.network.lifecycle) else {
            return Err(Error::value("the network has no life cycle"));
        };
        let n = &base.network;
        let groups = |p| if cycle.mutates_cells(p) { cycle.groups(n, p) } else { Vec::new() };
        let groups = (0..n.populations.len()).map(groups).collect();
        let changing = Changing::new(&base)?;
        let mut own = Self { life, step: 0, groups, values: Vec::new(), tables: Vec::new(), changing, base };
        own.begin()?;
        Ok(own)
    }

    /// Goes to step 0.
    fn begin(&mut self) -> Result<()> {
        let n = &self.base.network;
        self.step = 0;
        self.values.clear();
        for (p, population) in n.populations.iter().enumerate() {
            let mut values = Vec::new();
            if !self.groups[p].is_empty() {
                values = self.base.parameters(p, 0..population.size)?;
                values.iter_mut().filter(|v| v.len() == 1).for_each(|v| v.resize(population.size as usize, v[0]));
                // What a child is does not depend on its input.
                population.model.current().into_iter().for_each(|i| values[i].fill(0.0));
            }
            self.values.push(values);
        }
        let mutating = (0..n.projections.len()).filter(|i| n.mutates(*i));
        self.tables = mutating.map(|i| Table::new(&self.base, i)).collect::<Result<_>>()?;
        Ok(())
    }

    /// Goes to what it is at `step`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn go(&mut self, step: u64) -> Result<Moved> {
        let mut moved = Moved::default();
        if step < self.step {
            moved.back = true;
            self.begin()?;
        }
        let (from, life) = (self.step, &self.life);
        let mut born = Vec::new();
        for (p, groups) in self.groups.iter().enumerate() {
            for cell in 0..self.base.network.populations[p].size {
                let at = self.base.first[p] as u32 + cell;
                let generations = life.generation(at, from)..life.generation(at, step);
                if generations.is_empty() {
                    continue;
                }
                born.push(at);
                if groups.is_empty() {
                    continue;
                }
                moved.parameters = true;
                let values = &mut self.values[p];
                let mut own: Vec<f64> = values.iter().map(|v| v[cell as usize]).collect();
                generations.for_each(|g| births::mutate(&self.base, p, groups, (cell, g + 1), &mut own));
                values.iter_mut().zip(own).for_each(|(v, x)| v[cell as usize] = x);
            }
        }
        for table in &mut self.tables {
            table.advance(life, from, step, &born, &mut moved.weights);
        }
        self.step = step;
        Ok(moved)
    }

    /// The network as it is, of cells that neither die nor are born, but for its synapses.
    pub fn inputs(&self) -> Network {
        let mut n = self.base.network.clone();
        n.lifecycle = None;
        if self.step == 0 {
            return n;
        }
        for (p, (groups, values)) in self.groups.iter().zip(&self.values).enumerate() {
            for i in groups.iter().flat_map(|(_, group)| group) {
                n.populations[p].given.set_parameter(*i, values[*i].clone());
            }
        }
        n
    }

    /// The plan of the network as it is.
    ///
    /// # Errors
    /// None today; as other plans.
    pub fn plan(&mut self) -> Result<Plan> {
        let mut n = self.inputs();
        for table in self.tables.iter_mut().filter(|_| self.step > 0) {
            let (projection, edges) = table.edges(&self.base);
            n.projections[projection].rule = Rule::Edges(edges);
        }
        self.base.reborn(n)
    }

    /// The synapses of a projection, where they are known here.
    pub fn table(&self, projection: usize) -> Option<Synapses> {
        self.tables.iter().find_map(|table| table.shown(&self.base, projection))
    }

    /// As of a [`Plan`].
    ///
    /// # Errors
    /// As there.
    pub fn parameters(&self, population: usize, cells: Range<u32>) -> Result<Vec<Vec<f64>>> {
        let mut all = self.base.parameters(population, cells.clone())?;
        for i in self.groups[population].iter().flat_map(|(_, group)| group) {
            all[*i] = self.values[population][*i][cells.start as usize..cells.end as usize].to_vec();
        }
        let most = all.iter().map(Vec::len).max().unwrap_or(1);
        all.iter_mut().filter(|v| v.len() == 1).for_each(|v| v.resize(most, v[0]));
        Ok(all)
    }

    /// Takes over the inputs of `network`, which differs in nothing else; what there was.
    ///
    /// # Errors
    /// As [`Plan::redriven`].
    pub fn redrive(&mut self, network: Network) -> Result<Network> {
        let new = self.base.redriven(network)?;
        self.base.poisson = new.poisson;
        Ok(std::mem::replace(&mut self.base.network, new.network))
    }

    /// The cells of the network without life at `step`.
    fn dead(&self, step: u64) -> impl Iterator<Item = (usize, usize)> + '_ {
        let sizes = self.base.network.populations.iter().map(|p| p.size).enumerate();
        let some = sizes.filter(|_| !self.life.reproduction);
        some.flat_map(move |(p, size)| {
            let first = self.base.first[p] as u32;
            (0..size).filter(move |c| !self.life.alive(first + c, step)).map(move |c| (p, c as usize))
        })
    }

    /// What an engine is to go on from: a cell that is dead has a potential that is not a number, and stays so and never fires, since
    /// it is at no threshold.
    pub fn stepped(&self, state: &State) -> State {
        let mut state = state.clone();
        for (p, c) in self.dead(state.step) {
            if let Some(potential) = state.variables[p].first_mut() {
                potential[c] = f32::NAN;
            }
        }
        state
    }

    /// What a state says of an engine's: a cell that was dead before step `step` has none, which is written as 0.
    pub fn said(&self, mut state: State, step: u64) -> State {
        for (p, c) in self.dead(step) {
            state.variables[p].iter_mut().for_each(|v| v[c] = 0.0);
        }
        state
    }

    /// Makes of the state before `step` that after the deaths just before it; what is other than it was.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn pass_on(&mut self, state: &mut State, step: u64) -> Result<Moved> {
        let mut dying = vec![false; self.base.cells() as usize];
        self.life.dying(step).iter().for_each(|cell| dying[*cell as usize] = true);
        self.bury(state, &dying);
        if !self.life.reproduction {
            return Ok(Moved::default());
        }
        let moved = self.go(step)?;
        if let (Some(changing), Some(learned)) = (&self.changing, &mut state.learned) {
            changing.advance(&self.base, &self.life, step, &dying, &mut learned.strengths);
        }
        for &at in self.life.dying(step) {
            let p = self.base.first.partition_point(|first| *first <= u64::from(at)) - 1;
            let cell = at - self.base.first[p] as u32;
            let parameters: Vec<f64> = self.parameters(p, cell..cell + 1)?.iter().map(|v| v[0]).collect();
            let begun = births::state(&self.base, p, (cell, self.life.generation(at, step)), &parameters);
            for (all, x) in state.variables[p].iter_mut().zip(begun) {
                all[cell as usize] = x as f32;
            }
        }
        Ok(moved)
    }

    /// Forgets what cells that die have sent and what has come to them, and what they left behind.
    fn bury(&self, state: &mut State, dying: &[bool]) {
        let dies = |cell: u64| dying[cell as usize];
        state.recent.retain(|spike| !dies(spike.cell.into()));
        for &at in self.life.dying(state.step) {
            let p = self.base.first.partition_point(|first| *first <= u64::from(at)) - 1;
            let cell = (u64::from(at) - self.base.first[p]) as usize;
            state.variables[p].iter_mut().for_each(|v| v[cell] = 0.0);
        }
        let Some(learned) = &mut state.learned else { return };
        for (entry, dies) in learned.entries.iter_mut().zip(dying) {
            if *dies {
                entry.fill(0);
                entry[0] = NEVER;
            }
        }
        let first_slots = self.base.first_slots();
        learned.under_way.retain(|(_, slot, _)| {
            let p = first_slots.partition_point(|first| first <= slot) - 1;
            let size = u64::from(self.base.network.populations[p].size);
            !dies(self.base.first[p] + (slot - first_slots[p]) % size)
        });
        for counts in &mut learned.counts {
            counts.iter_mut().zip(dying).filter(|(_, dies)| **dies).for_each(|(count, _)| *count = 0);
        }
    }
}
