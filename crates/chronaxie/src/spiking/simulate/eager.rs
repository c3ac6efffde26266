//! The law of synapses that change: each event at each synapse in its turn, from lists of all that a cell sends and receives.
//!
//! Within a step of a synapse's time: spikes that come out of axons' delays, before cells advance; then those of this step
//! whose delay lies behind the synapse; then, for growth, those of cells behind a synapse. Nothing is put off.

use super::Spike;
use crate::Result;
use crate::spiking::connect::rows;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Learning, Rule};
use crate::spiking::plasticity::{Plasticity, Stdp, law};

/// A synapse that changes.
struct Synapse {
    source: u32,
    target: u32,
    /// Population, port and cell that it goes to.
    place: (usize, usize, usize),
    delay: u16,
    rule: u16,
    projection: usize,
    /// Strength, a whole number in the fixed form.
    strength: f64,
}

/// A spike of a cell: what it leaves behind, as `fixed` or as `law` has it.
struct Entry {
    step: u64,
    fixed: Vec<u32>,
    /// Of each trace just before, then u and x of each short-term rule.
    law: Vec<f64>,
}

/// All synapses that change.
pub(super) struct Eager<'a> {
    plan: &'a Plan,
    learning: &'a Learning,
    in_fixed: bool,
    synapses: Vec<Synapse>,
    outgoing: Vec<Vec<u32>>,
    incoming: Vec<Vec<u32>>,
    entries: Vec<Vec<Entry>>,
    /// By step: (synapse, its spike's entry) that come out of an axon's delay.
    arrivals: Vec<Vec<(u32, usize)>>,
    /// By step: the synapses that a spike of the cell behind comes back to.
    returns: Vec<Vec<u32>>,
}

impl std::fmt::Debug for Eager<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Eager({} synapses)", self.synapses.len())
    }
}

/// Adds an amount to `(population, port, cell)` so many steps from now.
pub(super) type Add<'f> = &'f mut dyn FnMut(u16, (usize, usize, usize), f64);

impl<'a> Eager<'a> {
    pub(super) fn new(plan: &'a Plan, learning: &'a Learning, in_fixed: bool) -> Result<Self> {
        let cells = plan.cells() as usize;
        let mut synapses = Vec::new();
        let (mut outgoing, mut incoming) = (vec![Vec::new(); cells], vec![Vec::new(); cells]);
        for (projection, p) in plan.network.projections.iter().enumerate() {
            let Some(rule) = plan.rule(projection) else { continue };
            let kind = &learning.rules[usize::from(rule)];
            let port = plan.port(p.target, kind.sign < 0);
            rows::enumerate(plan, projection, 0..plan.network.populations[p.target].size, &mut |s, t, code, delay| {
                let (source, target) = (plan.first[p.source] as u32 + s, plan.first[p.target] as u32 + t);
                let index = synapses.len() as u32;
                outgoing[source as usize].push(index);
                incoming[target as usize].push(index);
                synapses.push(Synapse {
                    source,
                    target,
                    place: (p.target, port, t as usize),
                    delay,
                    rule,
                    projection,
                    strength: kind.begin(code).into(),
                });
            });
        }
        let entries = (0..cells).map(|_| Vec::new()).collect();
        let len = plan.max_delay as usize + 1;
        let (arrivals, returns) = (vec![Vec::new(); len], vec![Vec::new(); len]);
        Ok(Self { plan, learning, in_fixed, synapses, outgoing, incoming, entries, arrivals, returns })
    }

    /// (source, target, delay, rule, weight in the unit of the target's model) of every synapse.
    pub(super) fn weights(&self) -> impl Iterator<Item = (u32, u32, u16, u16, f64)> + '_ {
        self.synapses.iter().map(|s| {
            let (p, port, _) = s.place;
            let sign = f64::from(self.rule(s).sign);
            let w = sign * s.strength / 65_536.0 * self.plan.units[p][port];
            (s.source, s.target, s.delay, s.rule, w)
        })
    }

    fn rule(&self, s: &Synapse) -> &'a Rule {
        &self.learning.rules[usize::from(s.rule)]
    }

    fn described(&self, s: &Synapse) -> Plasticity {
        self.plan.network.projections[s.projection].plasticity.expect("a synapse that changes has a reason")
    }

    /// The rule with bounds in strengths.
    fn law(&self, s: &Synapse) -> Option<Stdp> {
        let stdp = self.described(s).stdp?;
        let (p, port, _) = s.place;
        let scale = 65_536.0 / self.plan.units[p][port];
        Some(Stdp { w_min: stdp.w_min * scale, w_max: stdp.w_max * scale, ..stdp })
    }

    fn ms(&self, steps: u64) -> f64 {
        steps as f64 * self.plan.network.dt_ms
    }

    /// The trace of a cell at `step`, of what it did before `step - delay`.
    fn trace(&self, cell: u32, index: usize, pairs: crate::spiking::plasticity::Pairs, step: u64, delay: u16) -> f64 {
        let seen = |e: &&Entry| e.step + u64::from(delay) < step;
        let Some(e) = self.entries[cell as usize].iter().rev().find(seen) else { return 0.0 };
        let steps = step - u64::from(delay) - e.step;
        let trace = &self.learning.traces[index];
        if self.in_fixed {
            trace.later(trace.after(e.fixed[1 + index]), steps as u32).into()
        } else {
            law::later(trace.tau_ms, law::after(pairs, e.law[index]), self.ms(steps))
        }
    }

    /// The spike `entry` of the source is at synapse `i`, which passes it on over `delay` more steps.
    fn pass(&mut self, i: u32, entry: usize, step: u64, axonal: bool, add: Add<'_>) {
        let s = &self.synapses[i as usize];
        let (rule, e) = (self.rule(s), &self.entries[s.source as usize][entry]);
        let amount = if self.in_fixed {
            f64::from(rule.passed(s.strength as u32, self.learning.effect(rule, &e.fixed)))
        } else {
            let effect = rule.short.map_or(1.0, |k| {
                let at = self.learning.traces.len() + 2 * k;
                e.law[at] * e.law[at + 1]
            });
            f64::from(rule.sign) * s.strength / 65_536.0 * effect
        };
        add(if axonal { 0 } else { s.delay }, s.place, amount);
        let (Some(pair), Some(stdp)) = (&rule.stdp, self.law(s)) else { return };
        let back = if axonal { 0 } else { s.delay };
        let y = self.trace(s.target, pair.y, stdp.pairs, step, back);
        let strength = if self.in_fixed {
            rule.shrunk(pair, s.strength as u32, y as u32, self.learning.traces[pair.y].bits).into()
        } else {
            law::shrunk(&stdp, s.strength, y)
        };
        self.synapses[i as usize].strength = strength;
    }

    /// A spike of the cell behind synapse `i` is there at `step`.
    fn grow(&mut self, i: u32, step: u64) {
        let s = &self.synapses[i as usize];
        let rule = self.rule(s);
        let (Some(pair), Some(stdp)) = (&rule.stdp, self.law(s)) else { return };
        let ahead = if pair.axonal { s.delay } else { 0 };
        let x = self.trace(s.source, pair.x, stdp.pairs, step, ahead);
        let strength = if self.in_fixed {
            rule.grown(pair, s.strength as u32, x as u32, self.learning.traces[pair.x].bits).into()
        } else {
            law::grown(&stdp, s.strength, x)
        };
        self.synapses[i as usize].strength = strength;
    }

    /// What comes out of axons in `step`.
    pub(super) fn arrive(&mut self, step: u64, add: Add<'_>) {
        let at = (step % self.arrivals.len() as u64) as usize;
        for (i, entry) in std::mem::take(&mut self.arrivals[at]) {
            self.pass(i, entry, step, true, add);
        }
    }

    /// The cells that fired in `step`; how many synapses they reach.
    pub(super) fn fired(&mut self, step: u64, spikes: &[Spike], add: Add<'_>) -> u64 {
        for spike in spikes {
            let cell = spike.cell as usize;
            let last = self.entries[cell].last();
            let mut fixed = vec![0; self.learning.width()];
            self.learning.entry(last.map(|e| &e.fixed[..]), step as u32, &mut fixed);
            let law = self.law_entry(last, step);
            self.entries[cell].push(Entry { step, fixed, law });
        }
        let len = self.arrivals.len() as u64;
        for spike in spikes {
            let (cell, entry) = (spike.cell as usize, self.entries[spike.cell as usize].len() - 1);
            for i in self.outgoing[cell].clone() {
                let s = &self.synapses[i as usize];
                if self.rule(s).stdp.as_ref().is_some_and(|p| p.axonal) {
                    self.arrivals[((step + u64::from(s.delay)) % len) as usize].push((i, entry));
                } else {
                    self.pass(i, entry, step, false, add);
                }
            }
        }
        for spike in spikes {
            for i in self.incoming[spike.cell as usize].clone() {
                let s = &self.synapses[i as usize];
                match &self.rule(s).stdp {
                    Some(pair) if pair.axonal => self.grow(i, step),
                    Some(_) => self.returns[((step + u64::from(s.delay)) % len) as usize].push(i),
                    None => {}
                }
            }
        }
        for i in std::mem::take(&mut self.returns[(step % len) as usize]) {
            self.grow(i, step);
        }
        spikes.iter().map(|s| self.outgoing[s.cell as usize].len() as u64).sum()
    }

    fn law_entry(&self, last: Option<&Entry>, step: u64) -> Vec<f64> {
        use crate::spiking::plasticity::Pairs;
        let past = last.map_or(0.0, |e| self.ms(step - e.step));
        let mut values = Vec::new();
        for (k, trace) in self.learning.traces.iter().enumerate() {
            let pairs = if trace.nearest { Pairs::Nearest } else { Pairs::All };
            values.push(last.map_or(0.0, |e| law::later(trace.tau_ms, law::after(pairs, e.law[k]), past)));
        }
        for (k, short) in self.learning.shorts.iter().enumerate() {
            let at = self.learning.traces.len() + 2 * k;
            let first = [short.of.u, 1.0];
            values.extend(last.map_or(first, |e| law::short_term(&short.of, [e.law[at], e.law[at + 1]], past)));
        }
        values
    }
}
