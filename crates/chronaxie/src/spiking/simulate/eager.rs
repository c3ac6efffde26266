//! The law of synapses that change: each event at each synapse in its turn, from lists of all that a cell sends and receives.
//!
//! Within a step of a synapse's time: spikes that come out of axons' delays, before cells advance; then those of this step
//! whose delay lies behind the synapse; then, for growth, those of cells behind a synapse. Nothing is put off.

use super::Spike;
use crate::Result;
use crate::spiking::connect::rows;
use crate::spiking::draws::Purpose;
use crate::spiking::life::{standard, weights};
use crate::spiking::network::Key;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Kind, Learning, Rule};
use crate::spiking::plasticity::{Pairs, Plasticity, law};

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
    /// Eligibility: a share of the range, or a whole number in the fixed form.
    eligible: f64,
    /// When something last happened to it.
    last: u64,
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
    /// Of each scaling, the spikes of each cell in this window.
    counts: Vec<Vec<u32>>,
    /// Of each modulator: when its level last jumped at synapses, and the level after, as `fixed` and as `law` has it.
    levels: Vec<(u64, u32, f64)>,
    /// Of each modulator, by step: how many of its spikes get to synapses.
    jumps: Vec<Vec<u32>>,
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
                    eligible: 0.0,
                    last: 0,
                });
            });
        }
        let entries = (0..cells).map(|_| Vec::new()).collect();
        let len = plan.max_delay as usize + 1;
        let (arrivals, returns) = (vec![Vec::new(); len], vec![Vec::new(); len]);
        Ok(Self {
            plan,
            learning,
            in_fixed,
            synapses,
            outgoing,
            incoming,
            entries,
            arrivals,
            returns,
            counts: vec![vec![0; cells]; learning.scalings.len()],
            levels: vec![(0, 0, 0.0); learning.modulators.len()],
            jumps: vec![vec![0; len]; learning.modulators.len()],
        })
    }

    /// (source, target, delay, rule, weight in the unit of the target's model) of every synapse.
    pub(super) fn weights(&self) -> impl Iterator<Item = (u32, u32, u16, u16, f64)> + '_ {
        self.synapses.iter().map(|s| {
            let (p, port, _) = s.place;
            let sign = f64::from(self.rule(s).sign);
            let w = sign * s.strength / 65_536.0 * self.plan.coarse_unit(p, port);
            (s.source, s.target, s.delay, s.rule, w)
        })
    }

    fn rule(&self, s: &Synapse) -> &'a Rule {
        &self.learning.rules[usize::from(s.rule)]
    }

    fn described(&self, s: &Synapse) -> Plasticity {
        self.plan.network.projections[s.projection].plasticity.expect("a synapse that changes has a reason")
    }

    /// What it does, with bounds in strengths.
    fn law(&self, s: &Synapse) -> Plasticity {
        let (p, port, _) = s.place;
        self.described(s).scaled(65_536.0 / self.plan.coarse_unit(p, port))
    }

    fn ms(&self, steps: u64) -> f64 {
        steps as f64 * self.plan.network.dt_ms
    }

    /// The last entry of a cell before `step - delay`, and the steps since.
    fn seen(&self, cell: u32, step: u64, delay: u16) -> Option<(&Entry, u64)> {
        let seen = |e: &&Entry| e.step + u64::from(delay) < step;
        let e = self.entries[cell as usize].iter().rev().find(seen)?;
        Some((e, step - u64::from(delay) - e.step))
    }

    /// The trace of a cell at `step`, of what it did before `step - delay`, in f64.
    fn trace(&self, cell: u32, index: usize, step: u64, delay: u16) -> f64 {
        let trace = &self.learning.traces[index];
        self.seen(cell, step, delay)
            .map_or(0.0, |(e, steps)| law::later(trace.tau_ms, self.law_after(&e.law, index), self.ms(steps)))
    }

    /// A trace just after a spike, from what all were just before it.
    fn law_after(&self, values: &[f64], index: usize) -> f64 {
        let trace = &self.learning.traces[index];
        let pairs = if trace.nearest { Pairs::Nearest } else { Pairs::All };
        trace.of.map_or(law::after(pairs, values[index]), |of| values[index] + values[of])
    }

    /// The level of a modulator at `step`, what jumps there included.
    fn level(&self, k: usize, step: u64) -> (u32, f64) {
        let (when, fixed, level) = self.levels[k];
        let m = &self.learning.modulators[k];
        if step == when {
            return (fixed, level);
        }
        (m.later(fixed, (step - when) as u32), law::later(m.tau_ms, level, self.ms(step - when)))
    }

    fn modulator(&self, s: &Synapse) -> Option<usize> {
        match self.rule(s).stdp.as_ref()?.kind {
            Kind::Modulated(k) => Some(k),
            _ => None,
        }
    }

    /// Brings the synapse to `step`, from a level of its modulator where it was.
    fn move_on(&mut self, i: u32, step: u64, level: (u32, f64)) {
        let s = &self.synapses[i as usize];
        let (rule, steps) = (self.rule(s), step - s.last);
        let (mut strength, mut eligible) = (s.strength, s.eligible);
        if let (Some(_), true) = (self.modulator(s), steps > 0) {
            if self.in_fixed {
                let moved = self.learning.move_on(rule, (strength as u32, eligible as i32), level.0, steps as u32);
                (strength, eligible) = (moved.0.into(), moved.1.into());
            } else if let Plasticity { stdp: Some(stdp), modulation: Some(m), .. } = self.law(s) {
                [strength, eligible] = law::modulated(&m, &stdp, [strength, eligible], level.1, self.ms(steps));
            }
        }
        let s = &mut self.synapses[i as usize];
        (s.strength, s.eligible, s.last) = (strength, eligible, step);
    }

    /// Before anything else in `step`: weights decay, windows end, and modulators get to synapses.
    fn begin(&mut self, step: u64) {
        for i in 0..self.synapses.len() {
            let s = &self.synapses[i];
            let rule = self.rule(s);
            if rule.decay == 0 || step == 0 {
                continue;
            }
            self.synapses[i].strength = if self.in_fixed {
                rule.weakened(s.strength as u32, step as i64 - 1, step as i64).into()
            } else {
                let described = self.law(s);
                let low = described.bounds().map_or(0.0, |(low, _)| low);
                law::weakened(described.decay_per_ms, s.strength, self.ms(1), low)
            };
        }
        for k in 0..self.learning.scalings.len() {
            let scaling = &self.learning.scalings[k];
            if step == 0 || !step.is_multiple_of(scaling.window.into()) {
                continue;
            }
            for i in 0..self.synapses.len() {
                let s = &self.synapses[i];
                let rule = self.rule(s);
                let described = self.law(s);
                let (Some(h), true) = (described.homeostasis, rule.scaling == Some(k)) else { continue };
                let bounds = described.bounds().unwrap_or((rule.low.into(), rule.high.into()));
                let count = self.counts[k][s.target as usize];
                self.synapses[i].strength = if self.in_fixed {
                    rule.scale(s.strength as u32, scaling.factor(count)).into()
                } else {
                    law::scaled(&h, s.strength, count.into(), bounds)
                };
            }
            self.counts[k].fill(0);
        }
        for k in 0..self.learning.modulators.len() {
            let len = self.jumps[k].len() as u64;
            let spikes = std::mem::take(&mut self.jumps[k][(step % len) as usize]);
            if spikes == 0 {
                continue;
            }
            for i in 0..self.synapses.len() {
                if self.modulator(&self.synapses[i]) == Some(k) {
                    let level = self.level(k, self.synapses[i].last.max(self.levels[k].0));
                    self.move_on(i as u32, step, level);
                }
            }
            let (fixed, level) = self.level(k, step);
            self.levels[k] = (step, self.learning.modulators[k].after(fixed, spikes), level + f64::from(spikes));
        }
    }

    /// Brings the synapse to `step`, no modulator having jumped since it was looked at.
    fn come(&mut self, i: u32, step: u64) {
        let s = &self.synapses[i as usize];
        // A jump is something that happens to it, so its time is not before that of the last one.
        let level = self.modulator(s).map_or((0, 0.0), |k| self.level(k, s.last.max(self.levels[k].0)));
        self.move_on(i, step, level);
    }

    /// The spike `entry` of the source is at synapse `i`, which passes it on over `delay` more steps.
    fn pass(&mut self, i: u32, entry: usize, step: u64, axonal: bool, add: Add<'_>) {
        self.come(i, step);
        let s = &self.synapses[i as usize];
        let (rule, e) = (self.rule(s), &self.entries[s.source as usize][entry]);
        let amount = if self.in_fixed {
            f64::from(rule.brought(s.strength as u32, self.learning.effect(rule, &e.fixed)))
        } else {
            let effect = rule.short.map_or(1.0, |k| {
                let at = self.learning.traces.len() + 2 * k;
                e.law[at] * e.law[at + 1]
            });
            f64::from(rule.step()) * s.strength / 65_536.0 * effect
        };
        add(if axonal { 0 } else { s.delay }, s.place, amount);
        let Some(pair) = &rule.stdp else { return };
        let back = if axonal { 0 } else { s.delay };
        let (strength, eligible) = if self.in_fixed {
            let seen = self.seen(s.target, step, back).map(|(e, steps)| (&e.fixed[..], steps as u32));
            let left = rule.after_pre(self.learning, pair, (s.strength as u32, s.eligible as i32), seen);
            (left.0.into(), left.1.into())
        } else {
            let y = self.trace(s.target, pair.y, step, back);
            match self.law(s) {
                Plasticity { stdp: Some(stdp), modulation: Some(_), .. } => (s.strength, s.eligible - stdp.a_minus * y),
                Plasticity { stdp: Some(stdp), .. } => (law::shrunk(&stdp, s.strength, y), 0.0),
                Plasticity { hebb: Some(h), .. } => (law::hebb(&h, s.strength, y, h.a_pre), 0.0),
                Plasticity { bcm: Some(b), .. } => {
                    let Kind::Bcm(threshold) = &pair.kind else { return };
                    (law::bcm(&b, s.strength, y, self.trace(s.target, threshold.z, step, back)), 0.0)
                }
                _ => (s.strength, 0.0),
            }
        };
        // All that fired in this step have left their entries.
        let both = || self.entries[s.target as usize].last().is_some_and(|e| e.step == step);
        let described = self.law(s);
        let strength = match (rule.together, described.coincidence, described.bounds()) {
            (Some(together), ..) if self.in_fixed => rule.coincided(strength as u32, together, both()).into(),
            (_, Some(c), Some(bounds)) => law::coincided(&c, strength, both(), bounds),
            _ => strength,
        };
        let s = &mut self.synapses[i as usize];
        (s.strength, s.eligible) = (strength, eligible);
    }

    /// A spike of the cell behind synapse `i` is there at `step`.
    fn grow(&mut self, i: u32, step: u64) {
        self.come(i, step);
        let s = &self.synapses[i as usize];
        let rule = self.rule(s);
        let Some(pair) = &rule.stdp else { return };
        let ahead = if pair.axonal { s.delay } else { 0 };
        let (strength, eligible) = if self.in_fixed {
            let trace = &self.learning.traces[pair.x];
            let x = self
                .seen(s.source, step, ahead)
                .map_or(0, |(e, steps)| trace.later(trace.after(e.fixed[1 + pair.x]), steps as u32));
            let left = rule.after_post(pair, (s.strength as u32, s.eligible as i32), x, trace.bits);
            (left.0.into(), left.1.into())
        } else {
            let x = self.trace(s.source, pair.x, step, ahead);
            match self.law(s) {
                Plasticity { stdp: Some(stdp), modulation: Some(_), .. } => (s.strength, s.eligible + stdp.a_plus * x),
                Plasticity { stdp: Some(stdp), .. } => (law::grown(&stdp, s.strength, x), 0.0),
                Plasticity { hebb: Some(h), .. } => (law::hebb(&h, s.strength, x, h.a_post), 0.0),
                _ => (s.strength, 0.0),
            }
        };
        let s = &mut self.synapses[i as usize];
        (s.strength, s.eligible) = (strength, eligible);
    }

    /// What comes out of axons in `step`.
    pub(super) fn arrive(&mut self, step: u64, add: Add<'_>) {
        self.begin(step);
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
            self.counts.iter_mut().for_each(|counts| counts[cell] += 1);
            for (m, jumps) in self.learning.modulators.iter().zip(&mut self.jumps) {
                let first = self.plan.first[m.population];
                let size = u64::from(self.plan.network.populations[m.population].size);
                if (first..first + size).contains(&u64::from(spike.cell)) {
                    let at = (step + u64::from(m.delay)) % jumps.len() as u64;
                    jumps[at as usize] += 1;
                }
            }
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

    /// Forgets what cells that die have sent, what has come to them and what they left behind.
    pub(super) fn forget(&mut self, dies: &[bool]) {
        let (synapses, dies) = (&self.synapses, |cell: u32| dies[cell as usize]);
        self.arrivals.iter_mut().for_each(|list| list.retain(|(i, _)| !dies(synapses[*i as usize].source)));
        self.returns.iter_mut().for_each(|list| list.retain(|i| !dies(synapses[*i as usize].target)));
        let of_dying = |cell: &usize| dies(*cell as u32);
        for cell in (0..self.entries.len()).filter(of_dying) {
            self.entries[cell].clear();
            self.counts.iter_mut().for_each(|counts| counts[cell] = 0);
        }
    }

    /// Changes the weights of the synapses of children; `before` is how many stood where each cell stood.
    pub(super) fn mutate(&mut self, dies: &[bool], before: &[u32]) {
        let known = |s: &Synapse| (s.source, s.delay, s.rule, s.target);
        let mut order: Vec<usize> = (0..self.synapses.len()).collect();
        order.sort_by(|a, b| {
            let [a, b] = [*a, *b].map(|i| &self.synapses[i]);
            known(a).cmp(&known(b)).then(a.strength.total_cmp(&b.strength))
        });
        let key = Key { seed: self.plan.network.seed, owner: 0 };
        for (place, i) in order.into_iter().enumerate() {
            let s = &self.synapses[i];
            let (p, port, _) = s.place;
            let sd = self.plan.network.weight_sd(s.projection) / self.plan.coarse_unit(p, port) * 65_536.0;
            let ends = [s.source, s.target].map(|cell| cell as usize);
            let ends = &ends[..if ends[0] == ends[1] { 1 } else { 2 }];
            let changes: u64 = ends.iter().map(|cell| u64::from(before[*cell])).sum();
            let rule = self.rule(s);
            let (mut strength, bounds) = (s.strength, self.law(s).bounds());
            let (low, high) = bounds.unwrap_or((rule.low.into(), rule.high.into()));
            let now = changes + ends.iter().filter(|cell| dies[**cell]).count() as u64;
            for changes in changes..now {
                strength += sd * standard(key, Purpose::Strength, weights::index(place as u64, changes));
                strength = match self.in_fixed {
                    true => strength.round().clamp(rule.low.into(), rule.high.into()),
                    false => strength.clamp(low, high),
                };
            }
            self.synapses[i].strength = strength;
        }
    }

    fn law_entry(&self, last: Option<&Entry>, step: u64) -> Vec<f64> {
        let past = last.map_or(0.0, |e| self.ms(step - e.step));
        let mut values = Vec::new();
        for (k, trace) in self.learning.traces.iter().enumerate() {
            values.push(last.map_or(0.0, |e| law::later(trace.tau_ms, self.law_after(&e.law, k), past)));
        }
        for (k, short) in self.learning.shorts.iter().enumerate() {
            let at = self.learning.traces.len() + 2 * k;
            let first = [short.of.u, 1.0];
            values.extend(last.map_or(first, |e| law::short_term(&short.of, [e.law[at], e.law[at + 1]], past)));
        }
        values
    }
}
