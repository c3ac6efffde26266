//! The moving part of a shard: states, sums, and what is under way.

use super::learner::{Learner, slots_of};
use super::pending::Pending;
use super::{Learned, Spike};
use crate::spiking::connect::rows::Word;
use crate::spiking::connect::{Part, Redraw, Shard, Subset};
use crate::spiking::draws::{BATCH, Purpose};
use crate::spiking::life::Reweighed;
use crate::spiking::math;
use crate::spiking::models::{Block, Coefficients, Inputs, Kind, Model, PAD};
use crate::spiking::plan::{Plan, PoissonTable};
use crate::{Error, Result};
use std::ops::Range;

/// Cells that are advanced at a time: what drives add to their sums is still in the first caches.
const CELLS: usize = 1024;

/// A shard in motion.
pub(super) struct Lane<'a> {
    plan: &'a Plan,
    /// Those of the plan, until other drives take their place.
    poisson: Vec<PoissonTable>,
    pub(super) shard: Shard,
    cells: Vec<Cells>,
    /// What arrives in the next step, by slot.
    sums: Box<[i32; 65_536]>,
    /// `calendar[step % len]`: groups of synapses that a spike reaches in that step, as `place << 16 | length`.
    calendar: Vec<Vec<u64>>,
    /// Likewise synapses that are drawn again, where there are such.
    pending: Option<Pending>,
    /// What moves the synapses that change.
    pub(super) learner: Option<Learner<'a>>,
    pub(super) events: u64,
}

/// The cells of one population in a shard.
struct Cells {
    model: &'static dyn Model,
    part: Part,
    first: u32,
    units: Vec<f32>,
    coefficients: Vec<f32>,
    /// Cells that a row of `coefficients` holds; 0 where all cells have the same.
    stride: usize,
    /// `[variable][cell]`, padded.
    states: Vec<Vec<f32>>,
    drives: Vec<Arrivals>,
    /// 2^32 P(a source fires in a step), by cell, or for all.
    chances: Vec<u32>,
    source: Option<Arrivals>,
}

/// Four steps of a drive's draws at a time, since a draw has four words.
struct Arrivals {
    table: usize,
    quad: u64,
    /// `[word][cell]`.
    counts: [Vec<u16>; 4],
}

impl Arrivals {
    fn new(table: usize, cells: usize) -> Self {
        Self { table, quad: u64::MAX, counts: std::array::from_fn(|_| vec![0; cells]) }
    }
}

impl<'a> Lane<'a> {
    pub(super) fn new(plan: &'a Plan, shard: Shard, redraw: Redraw, ring: usize) -> Result<Self> {
        let cells = (0..plan.models.len()).map(|i| Cells::new(plan, i, &shard.parts[i])).collect::<Result<_>>()?;
        let sums = vec![0i32; 65_536].into_boxed_slice().try_into().expect("as long as the array");
        let learner = plan.learning.as_ref().map(|l| Learner::new(plan, l, &shard, ring));
        Ok(Self {
            plan,
            poisson: plan.poisson.clone(),
            cells,
            sums,
            calendar: vec![Vec::new(); ring],
            pending: Pending::new(plan, redraw, shard.slots, ring),
            shard,
            learner,
            events: 0,
        })
    }

    /// Adds what arrives in `step`.
    pub(super) fn deliver(&mut self, step: u64) {
        let slot = (step & (self.calendar.len() as u64 - 1)) as usize;
        let due = &mut self.calendar[slot];
        let rows = &self.shard.rows;
        if rows.long.is_empty() {
            super::cpu::add(due, &rows.synapses, &mut self.sums);
        } else {
            super::cpu::add_long(due, &rows.long, &mut self.sums);
        }
        due.clear();
        if let Some(pending) = &mut self.pending {
            pending.deliver(step, &mut self.sums[..]);
        }
        if let (Some(learner), Some(synapses)) = (&mut self.learner, &mut self.shard.changing) {
            learner.deliver(step, synapses, &mut self.sums);
        }
    }

    /// Draws what [`update`](Self::update) of `step` needs, which otherwise draws it itself.
    pub(super) fn drive(&mut self, step: u64) {
        for (population, cells) in self.cells.iter_mut().enumerate() {
            match cells.model.kind() {
                Kind::Dynamics => cells.drive(&self.poisson, step),
                Kind::Poisson => cells.draw(self.plan, population, step),
                Kind::Replay => {}
            }
        }
    }

    /// Advances all cells by `step`, and lists those that fire, by rising number.
    pub(super) fn update(&mut self, step: u64, spikes: &mut Vec<Spike>) {
        for (population, cells) in self.cells.iter_mut().enumerate() {
            let from = spikes.len();
            match cells.model.kind() {
                Kind::Dynamics => cells.advance(&self.poisson, step, &mut self.sums, spikes),
                Kind::Poisson => {
                    cells.draw(self.plan, population, step);
                    cells.fire(step, spikes);
                }
                Kind::Replay => {
                    let list = self.plan.network.populations[population].replay.as_deref();
                    let list = list.map_or(&[][..], Vec::as_slice);
                    let from = list.partition_point(|(s, _)| *s < step);
                    let here = list[from..].iter().take_while(|(s, _)| *s == step);
                    let own = here.filter(|(_, c)| cells.part.cells().contains(*c));
                    spikes.extend(own.map(|(_, c)| Spike { step, cell: cells.first + c }));
                }
            }
            if let Some(learner) = &mut self.learner {
                let (part, ports) = (&cells.part, cells.units.len());
                for spike in &spikes[from..] {
                    let slot = part.slot + part.cells().index(spike.cell - cells.first);
                    learner.fired(step, slot as usize, part.count() as usize, ports);
                }
            }
        }
    }

    /// Notes when the synapses of a spike's row are reached, and draws those that are not kept; those before `now` have been.
    pub(super) fn schedule(&mut self, spike: Spike, now: u64) {
        let mask = self.calendar.len() as u64 - 1;
        let row = &self.shard.rows;
        let cell = spike.cell as usize;
        let mut place = row.first.get(cell).copied().unwrap_or(0);
        for group in row.own_groups(cell) {
            let when = spike.step + u64::from(group.delay);
            if when >= now {
                self.calendar[(when & mask) as usize].push(place << 16 | u64::from(group.len));
                self.events += u64::from(group.len);
            }
            place += u64::from(group.len);
        }
        if let Some(pending) = &mut self.pending {
            self.events += pending.schedule(self.plan, &self.shard.parts, spike, now);
        }
    }

    /// Likewise for synapses that change, once for each spike.
    pub(super) fn learn(&mut self, spike: Spike, now: u64) {
        if let (Some(learner), Some(synapses)) = (&mut self.learner, &mut self.shard.changing) {
            self.events += learner.schedule(spike, now, synapses);
        }
    }

    /// Between two meetings, when all spikes before `now` are known.
    pub(super) fn rest(&mut self, now: u64) {
        if let (Some(learner), Some(synapses)) = (&mut self.learner, &mut self.shard.changing) {
            learner.sweep(now, synapses);
        }
    }

    /// Goes to a state of the synapses that change; their strengths are set.
    pub(super) fn restore(&mut self, now: u64, learned: &Learned, recent: &[Spike], early: Vec<(u64, u16, i32)>) {
        let Some(mut synapses) = self.shard.changing.take() else { return };
        if let Some(learner) = &mut self.learner {
            let slots = |cell: u32| slots_of(self.plan, &self.shard, cell);
            learner.restore(now, learned, recent, early, &mut synapses, &slots);
        }
        self.shard.changing = Some(synapses);
    }

    /// Forgets what is under way.
    pub(super) fn clear(&mut self) {
        self.calendar.iter_mut().for_each(Vec::clear);
        self.pending.iter_mut().for_each(Pending::clear);
        self.sums.fill(0);
    }

    /// The constants of this lane's cells under the inputs of `plan`, which differs from the lane's in nothing else.
    pub(super) fn constants(&self, plan: &Plan) -> Result<Vec<Constants>> {
        let of = |(i, c): (usize, &Cells)| {
            let padded = (c.part.count() as usize).next_multiple_of(PAD);
            Constants::stepped(plan, i, c.part.cells(), padded)
        };
        self.cells.iter().enumerate().map(of).collect()
    }

    /// Goes on with the inputs of `plan` and these constants.
    pub(super) fn redrive(&mut self, plan: &Plan, constants: Vec<Constants>) {
        self.poisson.clone_from(&plan.poisson);
        for (i, (cells, new)) in self.cells.iter_mut().zip(constants).enumerate() {
            let padded = (cells.part.count() as usize).next_multiple_of(PAD);
            let drives = plan.poisson.iter().enumerate().filter(|(_, d)| d.target == i);
            cells.drives = drives.map(|(table, _)| Arrivals::new(table, padded)).collect();
            cells.source.iter_mut().for_each(|d| d.quad = u64::MAX);
            (cells.coefficients, cells.stride, cells.chances) = (new.coefficients, new.stride, new.chances);
        }
    }

    /// Gives a synapse onto a cell of a population another weight, where the cell is here; true where it is.
    pub(super) fn reweigh(&mut self, (population, cell): (usize, u32), of: &Reweighed) -> Result<bool> {
        if self.shard.rows.long.is_empty() {
            self.reweigh_as::<u32>((population, cell), of)
        } else {
            self.reweigh_as::<u64>((population, cell), of)
        }
    }

    fn reweigh_as<W: Word>(&mut self, (population, cell): (usize, u32), of: &Reweighed) -> Result<bool> {
        let part = &self.shard.parts[population];
        let Some(at) = part.cells().find(cell) else { return Ok(false) };
        let port = self.plan.port(population, of.negative) as u32;
        let synapse = |code: i32| W::pack(part.slot + port * part.count() + at, code);
        let (old, new) = (synapse(of.old), synapse(of.new));
        let groups = self.shard.rows.groups(of.source).filter(|(delay, _)| *delay == of.delay);
        let places = groups.map(|(_, places)| places.start as usize..places.end as usize);
        // One that has come to 0 lies at the first port.
        let zero = W::pack(part.slot + at, 0);
        let old = if of.old == 0 { zero } else { old };
        let new = if of.new == 0 { zero } else { new };
        for places in places.collect::<Vec<_>>() {
            if let Some(found) = W::all(&mut self.shard.rows)[places].iter_mut().find(|s| **s == old) {
                *found = new;
                return Ok(true);
            }
        }
        Err(Error::value(format!(
            "there is no synapse of {} units from cell {} to cell {cell} of population {population}",
            of.old, of.source
        )))
    }

    /// Whether cells of a population have constants of their own.
    pub(super) fn each(&self, population: usize) -> bool {
        self.cells[population].stride > 0
    }

    pub(super) fn states(&self, population: usize) -> (&Part, &[Vec<f32>]) {
        (&self.cells[population].part, &self.cells[population].states)
    }

    pub(super) fn set_states(&mut self, population: usize, variables: &[Vec<f32>]) {
        let cells = &mut self.cells[population];
        for (own, all) in cells.states.iter_mut().zip(variables) {
            cells.part.cells().iter().zip(own).for_each(|(cell, x)| *x = all[cell as usize]);
        }
        cells.drives.iter_mut().chain(&mut cells.source).for_each(|d| d.quad = u64::MAX);
    }
}

/// What some cells of a population begin with.
pub(super) struct Constants {
    /// `[coefficient][stride]`, or `[coefficient]` where all cells have the same.
    pub coefficients: Vec<f32>,
    /// Cells that a row of `coefficients` holds; 0 where all cells have the same.
    pub stride: usize,
    /// 2^32 P(a source fires in a step), by cell, or for all.
    pub chances: Vec<u32>,
    /// `[variable][padded]`.
    pub states: Vec<Vec<f32>>,
}

impl Constants {
    /// Those of `cells` of a population, in rows of `padded` numbers.
    ///
    /// # Errors
    /// `Config`, where a cell's own parameters cannot be run.
    pub fn new<'s>(plan: &Plan, population: usize, cells: impl Into<Subset<'s>>, padded: usize) -> Result<Self> {
        let cells = cells.into();
        let mut constants = Self::stepped(plan, population, cells, padded)?;
        let pad = |values: Vec<f64>| {
            let mut values: Vec<f32> = values.into_iter().map(|x| x as f32).collect();
            values.resize(padded, 0.0);
            values
        };
        constants.states = plan.initial(population, cells)?.into_iter().map(pad).collect();
        Ok(constants)
    }

    /// Likewise, without the states.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn stepped(plan: &Plan, population: usize, cells: Subset<'_>, padded: usize) -> Result<Self> {
        let model = plan.models[population];
        let count = cells.len();
        let parameters = plan.parameters(population, cells)?;
        let each = parameters.first().is_some_and(|p| p.len() != 1) && count > 0;
        let stride = if each { padded } else { 0 };
        let terms = model.coefficient_count();
        let mut coefficients = vec![0.0; terms * stride.max(1)];
        let mut one = vec![0.0; terms];
        // A part may have no cell of a population whose cells have values of their own.
        let one_for_all = usize::from(parameters.iter().all(|p| !p.is_empty()));
        for c in 0..if each { count } else { one_for_all } {
            let own: Vec<f64> = parameters.iter().map(|p| p[c]).collect();
            model.coefficients(&own, plan.network.dt_ms, &mut one);
            one.iter().enumerate().for_each(|(k, x)| coefficients[k * stride.max(1) + c] = *x);
        }
        if let Some(x) = coefficients.iter().find(|x| !x.is_finite()) {
            let name = &plan.network.populations[population].name;
            return Err(Error::config(format!("population {name}: a constant of {} becomes {x}", model.name())));
        }
        let mut chances = Vec::new();
        if model.kind() == Kind::Poisson {
            let chance = |rate: &f64| -(math::exp(-rate * plan.network.dt_ms * 1e-3) - 1.0) * 4_294_967_296.0;
            chances = parameters[0].iter().map(|rate| chance(rate).round().min(4_294_967_295.0) as u32).collect();
        }
        Ok(Self { coefficients, stride, chances, states: Vec::new() })
    }
}

impl Cells {
    fn new(plan: &Plan, population: usize, part: &Part) -> Result<Self> {
        let model = plan.models[population];
        let padded = (part.count() as usize).next_multiple_of(PAD);
        let Constants { coefficients, stride, chances, states } =
            Constants::new(plan, population, part.cells(), padded)?;
        let drives = plan.poisson.iter().enumerate().filter(|(_, d)| d.target == population);
        Ok(Self {
            model,
            part: part.clone(),
            first: plan.first[population] as u32,
            units: plan.units[population].iter().map(|u| *u as f32).collect(),
            coefficients,
            stride,
            states,
            drives: drives.map(|(i, _)| Arrivals::new(i, padded)).collect(),
            source: (model.kind() == Kind::Poisson).then(|| Arrivals::new(0, padded)),
            chances,
        })
    }

    /// Draws the arrivals of the four steps of `step`, where that was not done.
    fn drive(&mut self, tables: &[PoissonTable], step: u64) {
        let quad = step / 4;
        for d in &mut self.drives {
            let table = &tables[d.table];
            let active = (table.start..table.stop).contains(&step);
            if active && d.quad != quad {
                super::cpu::draw_arrivals(table, self.part.cells(), quad, &mut d.counts);
                d.quad = quad;
            }
        }
    }

    fn advance(&mut self, tables: &[PoissonTable], step: u64, sums: &mut [i32; 65_536], spikes: &mut Vec<Spike>) {
        const PORTS: usize = 2;
        self.drive(tables, step);
        let (count, word) = (self.part.count() as usize, (step % 4) as usize);
        let ports = self.units.len();
        let slots: [Range<usize>; PORTS] = std::array::from_fn(|p| if p < ports { self.part.slots(p) } else { 0..0 });
        let mut fired = [0u8; CELLS];
        for at in (0..count).step_by(CELLS) {
            let real = (count - at).min(CELLS);
            for d in &self.drives {
                let table = &tables[d.table];
                if (table.start..table.stop).contains(&step) {
                    let sums = &mut sums[slots[table.port].clone()][at..at + real];
                    super::cpu::add_arrivals(sums, &d.counts[word][at..at + real], table.code);
                }
            }
            // Whole vectors from the sums themselves, which those of another port follow.
            let whole = real / PAD * PAD;
            if whole > 0 {
                let inputs = Inputs::Sums(two(sums, &slots, at..at + whole), &self.units);
                step_block(
                    self.model,
                    &self.coefficients,
                    self.stride,
                    &mut self.states,
                    at,
                    inputs,
                    &mut fired[..whole],
                );
            }
            if whole < real {
                let mut inputs = [[0f32; PAD]; PORTS];
                for port in 0..ports {
                    let rest = &mut sums[slots[port].clone()][at + whole..at + real];
                    for (sum, input) in rest.iter_mut().zip(&mut inputs[port]) {
                        *input = std::mem::take(sum) as f32 * self.units[port];
                    }
                }
                let [low, high] = &inputs;
                let inputs = Inputs::Given(&[&low[..], &high[..]][..ports]);
                let fired = &mut fired[whole..whole + PAD];
                step_block(self.model, &self.coefficients, self.stride, &mut self.states, at + whole, inputs, fired);
            }
            list(&fired[..real], step, self.first, self.part.cells(), at, spikes);
        }
    }

    /// Draws which Poisson sources fire in the four steps of `step`, where that was not done.
    fn draw(&mut self, plan: &Plan, population: usize, step: u64) {
        let Some(source) = &mut self.source else { return };
        let quad = step / 4;
        let count = self.part.count() as usize;
        if source.quad != quad {
            let (mut words, key) = ([[0; BATCH]; 4], plan.network.population_key(population));
            for at in (0..count).step_by(BATCH) {
                super::cpu::draw_cells(key, Purpose::Source, self.part.cells(), at, quad, &mut words);
                for i in 0..(count - at).min(BATCH) {
                    let chance = self.chances[if self.chances.len() == 1 { 0 } else { at + i }];
                    for w in 0..4 {
                        source.counts[w][at + i] = u16::from(words[w][i] < chance);
                    }
                }
            }
            source.quad = quad;
        }
    }

    /// The spikes of Poisson sources.
    fn fire(&self, step: u64, spikes: &mut Vec<Spike>) {
        let Some(source) = &self.source else { return };
        let (count, word) = (self.part.count() as usize, (step % 4) as usize);
        let cells = self.part.cells();
        let fired = source.counts[word][..count].iter().enumerate().filter(|(_, c)| **c > 0);
        spikes.extend(fired.map(|(i, _)| Spike { step, cell: self.first + cells.at(i) }));
    }
}

/// The sums of `cells` of two ports, or of one and nothing.
fn two<'s>(sums: &'s mut [i32], slots: &[Range<usize>; 2], cells: Range<usize>) -> [&'s mut [i32]; 2] {
    let [low, high] = slots;
    if high.is_empty() {
        return [&mut sums[low.clone()][cells], &mut []];
    }
    let (first, second) = sums.split_at_mut(high.start);
    [&mut first[low.clone()][cells.clone()], &mut second[..high.len()][cells]]
}

/// Advances the cells from place `at` on, as many as `fired` has.
fn step_block(
    model: &dyn Model,
    coefficients: &[f32],
    stride: usize,
    states: &mut [Vec<f32>],
    at: usize,
    inputs: Inputs<'_>,
    fired: &mut [u8],
) {
    let coefficients = match stride {
        0 => Coefficients::Shared(coefficients),
        stride => Coefficients::Each { values: coefficients, stride, offset: at },
    };
    let mut all: [&mut [f32]; 8] = Default::default();
    let used = states.len();
    for (slot, values) in all.iter_mut().zip(states) {
        *slot = &mut values[at..at + fired.len()];
    }
    model.step(&mut Block { coefficients, states: &mut all[..used], inputs, spikes: fired });
}

/// Lists the cells from place `at` on that fired; most words of 64 flags are 0.
fn list(fired: &[u8], step: u64, first: u32, of: Subset<'_>, at: usize, spikes: &mut Vec<Spike>) {
    let mut note = |from: usize, flags: &[u8]| {
        let cells = flags.iter().enumerate().filter(|(_, flag)| **flag != 0);
        spikes.extend(cells.map(|(l, _)| Spike { step, cell: first + of.at(at + from + l) }));
    };
    // A fixed length is a few instructions, where a slice's is a loop.
    let (whole, rest) = fired.as_chunks::<64>();
    for (i, flags) in whole.iter().enumerate() {
        if flags.as_chunks::<8>().0.iter().fold(0, |any, eight| any | u64::from_ne_bytes(*eight)) != 0 {
            note(i * 64, flags);
        }
    }
    note(whole.len() * 64, rest);
}
