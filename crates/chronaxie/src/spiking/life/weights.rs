//! Weights that change where a cell at one end of their synapse dies: a child's are its parent's and a normal number.
//!
//! A synapse changes once for each death of the cell before it and once for each of the cell behind it (a synapse of a cell onto itself
//! once for each of that one), and how often it has changed is the number of its next draw. What it changes by is rounded to its unit,
//! and it stays within its bounds and on its side of 0.

use super::{Life, standard};
use crate::spiking::connect::Synapses;
use crate::spiking::connect::rows::enumerate;
use crate::spiking::draws::Purpose;
use crate::spiking::network::weights::single;
use crate::spiking::network::{Edge, Key, WeightBits};
use crate::spiking::plan::Plan;
use crate::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Changes of a synapse that have numbers of their own, as a power of two; the rest of 64 bits is the synapse.
const CHANGES: u32 = 24;

/// The number of a draw.
pub(crate) fn index(synapse: u64, changes: u64) -> u64 {
    changes << (64 - CHANGES) | synapse & ((1 << (64 - CHANGES)) - 1)
}

/// How often a synapse between two cells of these generations has changed.
pub(crate) fn changes(source: u32, target: u32, generation: impl Fn(u32) -> u32) -> u64 {
    let own = u64::from(generation(source));
    if source == target { own } else { own + u64::from(generation(target)) }
}

/// The bounds in units of a synapse of this weight, whose projection's weights lie within `range` units: its side of 0, or, of one that has
/// come to 0, that of its projection's mean.
pub(crate) fn side(code: i32, range: (i32, i32), inhibits: bool) -> (i32, i32) {
    if code < 0 || code == 0 && inhibits { (range.0, range.1.min(0)) } else { (range.0.max(0), range.1) }
}

/// What the weights of a projection without plasticity change by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// By what they are drawn.
    pub key: Key,
    /// Standard deviation, in units.
    pub sd: f64,
    /// The least and the greatest weight, in units.
    pub range: (i32, i32),
    /// Whether the projection's mean weight is below 0.
    pub inhibits: bool,
    /// Those units are `2^shift` of the port's, which weights are counted in.
    pub shift: u32,
    /// Whether weights have 32 bits.
    pub long: bool,
}

impl Spread {
    /// Of a projection of `plan` that mutates.
    pub fn of(plan: &Plan, projection: usize) -> Self {
        let p = &plan.network.projections[projection];
        let inhibits = mean(plan, projection) < 0.0;
        let (unit, shift) = plan.grain(projection, inhibits);
        let (low, high) = plan.network.weight_range(projection);
        let most = match p.weight_bits {
            WeightBits::Sixteen => 32_767.0,
            WeightBits::ThirtyTwo => f64::from(32_767 << 16),
        };
        let code = |w: f64, negative: bool| (w / plan.grain(projection, negative).0).round().clamp(-most, most);
        Self {
            key: plan.network.projection_key(projection),
            sd: plan.network.weight_sd(projection) / unit,
            range: (code(low, low < 0.0) as i32, code(high, high < 0.0) as i32),
            inhibits,
            shift,
            long: p.weight_bits == WeightBits::ThirtyTwo,
        }
    }

    /// A weight of `code` units after its change `number`, of the synapse in row `row` of its projection's table.
    pub fn changed(&self, code: i32, row: u64, number: u64) -> i32 {
        let code = code >> self.shift;
        let (low, high) = side(code, self.range, self.inhibits);
        let moved = f64::from(code) + self.sd * standard(self.key, Purpose::Weight, index(row, number));
        let moved = moved.round().clamp(low.into(), high.into()) as i32;
        if self.long { single(moved) } else { moved << self.shift }
    }
}

fn mean(plan: &Plan, projection: usize) -> f64 {
    let p = &plan.network.projections[projection];
    match &p.rule {
        crate::spiking::network::Rule::Edges(edges) => edges.iter().map(|e| f64::from(e.weight)).sum(),
        _ => p.weight.mean(),
    }
}

/// A synapse, without plasticity, that has another weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reweighed {
    /// The network's cells.
    pub source: u32,
    /// The one behind it.
    pub target: u32,
    /// In steps.
    pub delay: u16,
    /// Whether it acts on the port of weights below 0.
    pub negative: bool,
    /// In units.
    pub old: i32,
    /// Likewise.
    pub new: i32,
}

/// The synapses of a projection that mutates, row by row.
#[derive(Debug)]
pub(super) struct Table {
    projection: usize,
    spread: Spread,
    /// The network's cells.
    source: Vec<u32>,
    target: Vec<u32>,
    code: Vec<i32>,
    delay: Vec<u16>,
    edges: Option<Arc<Vec<Edge>>>,
    /// The rows of each cell of the network before and behind its synapses.
    rows: [Rows; 2],
}

/// The rows of each cell.
#[derive(Debug, Default)]
struct Rows {
    first: Vec<u32>,
    rows: Vec<u32>,
}

impl Rows {
    fn new(cells: usize, of: &[u32]) -> Self {
        let mut first = vec![0; cells + 2];
        of.iter().for_each(|cell| first[*cell as usize + 2] += 1);
        (2..first.len()).for_each(|i| first[i] += first[i - 1]);
        let mut rows = vec![0; of.len()];
        for (row, cell) in of.iter().enumerate() {
            let next = &mut first[*cell as usize + 1];
            rows[*next as usize] = row as u32;
            *next += 1;
        }
        Self { first, rows }
    }
    fn of(&self, cell: u32) -> &[u32] {
        let cell = cell as usize;
        &self.rows[self.first[cell] as usize..self.first[cell + 1] as usize]
    }
}

impl Table {
    /// As they were drawn.
    pub fn new(plan: &Plan, projection: usize) -> Result<Self> {
        let asked = (38.0 * 1.05 * plan.expected(projection)) as u64;
        if let Some(free) = crate::memory::free().filter(|free| asked > *free) {
            let what = format!(
                "the weights of {:.3e} synapses of {} change where cells are born, for which {:.1} GB are needed, but {:.1} GB are free",
                plan.expected(projection),
                plan.label(projection),
                asked as f64 / 1e9,
                free as f64 / 1e9
            );
            return Err(Error::new(ErrorKind::OutOfMemory { asked, free }, what));
        }
        let p = &plan.network.projections[projection];
        let mut all = Self {
            projection,
            spread: Spread::of(plan, projection),
            source: Vec::new(),
            target: Vec::new(),
            code: Vec::new(),
            delay: Vec::new(),
            edges: None,
            rows: Default::default(),
        };
        let [source, target] = [p.source, p.target].map(|i| plan.first[i] as u32);
        enumerate(plan, projection, 0..plan.network.populations[p.target].size, &mut |s, t, code, delay| {
            all.source.push(source + s);
            all.target.push(target + t);
            all.code.push(code);
            all.delay.push(delay);
        });
        if all.code.len() > u32::MAX as usize {
            let what = format!(
                "the weights of {} synapses of {} cannot mutate; 2^32 can",
                all.code.len(),
                plan.label(projection)
            );
            return Err(Error::config(what));
        }
        let cells = plan.cells() as usize;
        all.rows = [Rows::new(cells, &all.source), Rows::new(cells, &all.target)];
        Ok(all)
    }

    /// Brings weights from step `from` to step `to`, which is not before it; `born` are the cells whose generation has changed. Notes
    /// what is other than it was.
    pub fn advance(&mut self, life: &Life, from: u64, to: u64, born: &[u32], edits: &mut Vec<Reweighed>) {
        let before = edits.len();
        let sites = |step| move |cell| life.generation(cell, step);
        for cell in born {
            for (end, rows) in self.rows.iter().enumerate() {
                for &row in rows.of(*cell) {
                    let row = row as usize;
                    let (source, target) = (self.source[row], self.target[row]);
                    // That of two cells that are born goes by the one before it.
                    if end == 1 && born.binary_search(&source).is_ok() {
                        continue;
                    }
                    let old = self.code[row];
                    for number in changes(source, target, sites(from))..changes(source, target, sites(to)) {
                        self.code[row] = self.spread.changed(self.code[row], row as u64, number);
                    }
                    if self.code[row] != old {
                        let (delay, new) = (self.delay[row], self.code[row]);
                        edits.push(Reweighed { source, target, delay, negative: old < 0 || new < 0, old, new });
                    }
                }
            }
        }
        if edits.len() > before {
            self.edges = None;
        }
    }

    /// What people see of a projection, if this is it.
    pub fn shown(&self, plan: &Plan, projection: usize) -> Option<Synapses> {
        if self.projection != projection {
            return None;
        }
        let p = &plan.network.projections[projection];
        let [first, behind] = [p.source, p.target].map(|i| plan.first[i] as u32);
        let unit = |code: i32| plan.units[p.target][plan.port(p.target, code < 0)];
        Some(Synapses {
            source: self.source.iter().map(|cell| cell - first).collect(),
            target: self.target.iter().map(|cell| cell - behind).collect(),
            weight: self.code.iter().map(|code| (f64::from(*code) * unit(*code)) as f32).collect(),
            delay_ms: self.delay.iter().map(|steps| (f64::from(*steps) * plan.network.dt_ms) as f32).collect(),
        })
    }

    /// As a list of edges, in the order of rows.
    pub fn edges(&mut self, plan: &Plan) -> (usize, Arc<Vec<Edge>>) {
        let p = &plan.network.projections[self.projection];
        let [first, behind] = [p.source, p.target].map(|i| plan.first[i] as u32);
        let one = |row: usize| {
            let code = self.code[row];
            let unit = plan.units[p.target][plan.port(p.target, code < 0)];
            Edge {
                source: self.source[row] - first,
                target: self.target[row] - behind,
                weight: (f64::from(code) * unit) as f32,
                delay_ms: (f64::from(self.delay[row]) * plan.network.dt_ms) as f32,
            }
        };
        let made = || Arc::new((0..self.code.len()).map(one).collect());
        (self.projection, self.edges.get_or_insert_with(made).clone())
    }
}

/// The synapses that change by themselves, in the order of a state: each with its source and its key there.
#[derive(Debug)]
pub(super) struct Changing {
    synapses: Vec<(u32, u64)>,
    /// By populations before and behind and rule: standard deviation in strengths, and their bounds.
    spreads: BTreeMap<(usize, usize, u16), (f64, u32, u32)>,
}

impl Changing {
    /// Of `plan`, if some of their weights mutate.
    pub fn new(plan: &Plan) -> Result<Option<Self>> {
        let n = &plan.network;
        let own = || (0..n.projections.len()).filter(|i| plan.changes(*i));
        let Some(learning) = plan.learning.as_ref().filter(|_| own().any(|i| n.weight_sd(i) > 0.0)) else {
            return Ok(None);
        };
        let mut all = Self { synapses: Vec::new(), spreads: BTreeMap::new() };
        for i in own() {
            let Some(number) = plan.rule(i) else { continue };
            let (p, rule) = (&n.projections[i], &learning.rules[usize::from(number)]);
            let sd = n.weight_sd(i) / plan.coarse_unit(p.target, rule.port) * 65_536.0;
            all.spreads.insert((p.source, p.target, number), (sd, rule.low, rule.high));
            let [source, target] = [p.source, p.target].map(|i| plan.first[i] as u32);
            enumerate(plan, i, 0..n.populations[p.target].size, &mut |s, t, _, delay| {
                let key = u64::from(delay) << 41 | u64::from(number) << 32 | u64::from(target + t);
                all.synapses.push((source + s, key));
            });
        }
        all.synapses.sort_unstable();
        Ok(Some(all))
    }

    /// Changes the strengths of the synapses of the cells that die just before `step`.
    pub fn advance(&self, plan: &Plan, life: &Life, step: u64, dying: &[bool], strengths: &mut [u32]) {
        let seed = Key { seed: plan.network.seed, owner: 0 };
        let population = |cell: u32| plan.first.partition_point(|first| *first <= u64::from(cell)) - 1;
        let mut at = 0;
        for same in self.synapses.chunk_by(|a, b| a == b) {
            let places = at..at + same.len();
            at = places.end;
            let (source, target) = (same[0].0, same[0].1 as u32);
            if !dying[source as usize] && !dying[target as usize] {
                continue;
            }
            let rule = (same[0].1 >> 32) as u16 & 511;
            let Some(&(sd, low, high)) = self.spreads.get(&(population(source), population(target), rule)) else {
                continue;
            };
            let number = |step| changes(source, target, |cell| life.generation(cell, step));
            for place in places.clone() {
                for number in number(step - 1)..number(step) {
                    let x = standard(seed, Purpose::Strength, index(place as u64, number));
                    let moved = f64::from(strengths[place]) + sd * x;
                    strengths[place] = moved.round().clamp(low.into(), high.into()) as u32;
                }
            }
            // A state has those that are alike in all else by their strengths.
            strengths[places].sort_unstable();
        }
    }
}
