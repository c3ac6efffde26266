//! The part of a lane whose synapses change.
//!
//! A synapse is looked at when a spike passes through it, and never in between: what the cell after it did since the last
//! spike (its growth) is applied then, in order, from that cell's entries, so there is no list of a cell's inputs, and what
//! is read and written of synapses is rows. What is due to grow does not depend on when it is applied: a step of growth
//! follows from the entry of the last spike before the synapse, the time since, and the strength. So now and then, when
//! entries have become many, all synapses are brought up to date ([`Learner::sweep`]) and entries are dropped, whenever a
//! lane likes.
//!
//! Where the delay lies after the synapse, the strength that a spike meets is that of the step in which it fires: its row is
//! read then, and what it passes on waits in the bucket of the step when it arrives. Where the delay lies before the
//! synapse, its groups are read when they are due.
//!
//! Floor of a step of the full microcircuit with every excitatory synapse changing: 71,000 of the 97,000 events, each six
//! bytes read and four written of a row (0.7 MB, 0.07 ms at 10 GB/s), four written and read of a bucket, and one access to the
//! entries of its cell (4 MB: the third cache, 71,000 times 10 ns over two cores, 0.35 ms).

use super::common::Common;
use super::{Learned, Spike};
use crate::spiking::connect::changing::{Changing, Group};
use crate::spiking::connect::{Part, Shard};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Kind, Learning, NEVER, Pair, Rule};
use crate::spiking::plasticity::rules::Changed;

/// Entries of cells, each cell's by rising step.
pub(super) struct Histories {
    width: usize,
    cells: Vec<Vec<u32>>,
    added: usize,
}

impl Histories {
    fn new(cells: usize, width: usize) -> Self {
        Self { width, cells: vec![Vec::new(); cells], added: 0 }
    }
    fn push(&mut self, learning: &Learning, cell: usize, step: u32) {
        let (width, list) = (self.width, &mut self.cells[cell]);
        let from = list.len();
        list.resize(from + width, 0);
        let (before, out) = list.split_at_mut(from);
        learning.entry(before.len().checked_sub(width).map(|at| &before[at..]), step, out);
        self.added += 1;
    }
    /// How many entries of a cell lie before `step`.
    #[inline(always)]
    fn before(&self, cell: usize, step: i64) -> usize {
        let list = &self.cells[cell];
        let mut count = list.len() / self.width;
        while count > 0 && i64::from(list[(count - 1) * self.width]) >= step {
            count -= 1;
        }
        count
    }
    #[inline(always)]
    fn entry(&self, cell: usize, index: usize) -> &[u32] {
        &self.cells[cell][index * self.width..][..self.width]
    }
    /// The last entry before `step`.
    fn last(&self, cell: usize, step: i64) -> Option<&[u32]> {
        self.before(cell, step).checked_sub(1).map(|i| self.entry(cell, i))
    }
    /// Drops all but the last before `step` and what follows it.
    fn trim(&mut self, step: i64) {
        for cell in 0..self.cells.len() {
            let gone = self.before(cell, step).saturating_sub(1) * self.width;
            self.cells[cell].drain(..gone);
        }
        self.added = 0;
    }
    fn clear(&mut self) {
        self.cells.iter_mut().for_each(Vec::clear);
        self.added = 0;
    }
}

/// What a group of synapses must know of the spike that passes.
#[derive(Debug, Clone, Copy)]
struct Passing {
    /// The step in which it fired.
    step: u32,
    /// That of the cell's spike before.
    last: u32,
    /// The trace just before that.
    before: u32,
    /// What short-term plasticity leaves of it.
    effect: u32,
}

/// A group that a spike reaches later.
struct Visit {
    place: u64,
    group: Group,
    passing: Passing,
}

/// The synapses of a lane that change, in motion.
pub(super) struct Learner<'a> {
    plan: &'a Plan,
    learning: &'a Learning,
    /// Entries of every cell, as one before a synapse.
    sources: Histories,
    /// Entries of the cells here, by slot, as one after a synapse.
    targets: Histories,
    /// What happens to many synapses at once.
    common: Common,
    /// By step: the groups that spikes reach, of rules with the delay before the synapse.
    visits: Vec<Vec<Visit>>,
    /// By step: what arrives, slot in the lower 16 bits, units of weights of 16 bits in the upper.
    amounts: Vec<Vec<u32>>,
    /// By slot: such a unit is `2^shift` of its sums'; nothing where all are alike.
    shifts: Vec<u8>,
    /// What was under way when a state was restored: step, slot, units.
    early: Vec<(u64, u16, i32)>,
    /// Synapses are grown up to before this time of theirs, at least.
    grown: u32,
    /// Entries beyond which synapses are brought up to date.
    most: usize,
}

/// The time of a synapse at which growth has yet to be applied, and where it begins.
fn due(last: u32, offset: i64, back: i64, grown: u32) -> i64 {
    // In terms of the step in which the cell after the synapse fires.
    (i64::from(last) + offset).max(i64::from(grown) - back)
}

impl<'a> Learner<'a> {
    pub(super) fn new(plan: &'a Plan, learning: &'a Learning, shard: &Shard, ring: usize) -> Self {
        let (cells, slots) = (plan.cells() as usize, shard.slots);
        let any = (0..plan.models.len()).any(|p| plan.is_long(p));
        let mut shifts = vec![0; if any { slots } else { 0 }];
        for (part, ports) in shard.parts.iter().zip(&plan.shifts).filter(|_| any) {
            ports.iter().enumerate().for_each(|(port, shift)| shifts[part.slots(port)].fill(*shift as u8));
        }
        Self {
            plan,
            learning,
            sources: Histories::new(cells, learning.width()),
            targets: Histories::new(slots, learning.width()),
            common: Common::new(learning, slots),
            visits: (0..ring).map(|_| Vec::new()).collect(),
            amounts: vec![Vec::new(); ring],
            shifts,
            early: Vec::new(),
            grown: 0,
            most: 8 * cells + (1 << 16),
        }
    }

    #[cfg(test)]
    pub(super) fn sweep_after(&mut self, entries: usize) {
        self.most = entries;
    }

    /// The strength of a synapse once everything before `end`, a step of its target, was applied to it.
    #[inline(always)]
    fn grow(&self, rule: &Rule, strength: u32, passing: &Passing, slot: u16, delay: u16, end: i64) -> (u32, usize) {
        let Some(pair) = &rule.stdp else { return (strength, 0) };
        let cell = usize::from(slot);
        let until = self.targets.before(cell, end);
        if passing.last == NEVER {
            return (strength, until);
        }
        let offset = Learning::offset(pair, delay);
        let back = if pair.axonal { 0 } else { i64::from(delay) };
        let begin = due(passing.last, offset, back, self.grown);
        let trace = &self.learning.traces[pair.x];
        let mut from = until;
        while from > 0 && i64::from(self.targets.entry(cell, from - 1)[0]) >= begin {
            from -= 1;
        }
        let after = trace.after(passing.before);
        let mut strength = strength;
        for i in from..until {
            let steps = i64::from(self.targets.entry(cell, i)[0]) - (i64::from(passing.last) + offset);
            // The spike of the same time counts nothing, but those before it do.
            let x = if steps == 0 { passing.before } else { trace.later(after, steps.min(i64::from(NEVER)) as u32) };
            strength = rule.grown(pair, strength, x, trace.bits);
        }
        (strength, until)
    }

    /// What has happened to a synapse by a spike that passes (its cell's spike before is in `passing`), or by a look at it:
    /// spikes of the cell behind it before its step `end`, and what happens to many synapses up to the time `upto`.
    fn walk(
        &self,
        (rule, pair): (&Rule, &Pair),
        changed: Changed,
        passing: &Passing,
        (slot, delay): (u16, u16),
        (end, upto): (i64, i64),
    ) -> Changed {
        let cell = usize::from(slot);
        let known = passing.last != NEVER;
        let (ahead, back) = if pair.axonal { (i64::from(delay), 0) } else { (0, i64::from(delay)) };
        let last = if known { i64::from(passing.last) + ahead } else { -1 };
        let grown = i64::from(self.grown);
        // Spikes of the cell behind: the first that was not applied, and the first that is yet to come.
        let until = self.targets.before(cell, end);
        let mut from = until;
        while pair.grows() && from > 0 && i64::from(self.targets.entry(cell, from - 1)[0]) + back >= last.max(grown) {
            from -= 1;
        }
        let scales = rule.scaling.map_or(&[][..], |k| &self.common.scales[k][cell]);
        let mut scales = &scales[scales.partition_point(|(when, _)| {
            let when = i64::from(*when);
            when <= last || when < grown
        })..];
        let modulator = if let Kind::Modulated(k) = pair.kind { Some(k) } else { None };
        let levels = modulator.map_or(&[][..], |k| &self.common.levels[k]);
        // The event before: a pass, a spike of the cell behind, a jump of the modulator.
        let applied = levels.partition_point(|(when, _)| {
            let when = i64::from(*when);
            when <= last || when < grown
        });
        let mut levels = &levels[applied..];
        let mut now = last;
        if let (Some(k), Some(at)) = (modulator, applied.checked_sub(1)) {
            now = now.max(i64::from(self.common.levels[k][at].0));
        }
        if let Some(at) = from.checked_sub(1) {
            let when = i64::from(self.targets.entry(cell, at)[0]) + back;
            if when < grown {
                now = now.max(when);
            }
        }
        let mut level = modulator.map_or(0, |k| self.common.level(self.learning, k, now));
        let mut state = changed;
        if let (Some(together), true) = (rule.together, known && last >= grown) {
            // What fired in the step of the last spike has been known since then.
            let both = self.targets.last(cell, last + 1).is_some_and(|e| i64::from(e[0]) == last);
            state.0 = rule.coincided(state.0, together, both);
        }
        let mut weakened = last.max(grown - 1).max(0);
        let trace = &self.learning.traces[pair.x];
        let after = trace.after(passing.before);
        let offset = Learning::offset(pair, delay);
        loop {
            let scale = scales.first().map(|(when, _)| i64::from(*when)).filter(|when| *when <= upto);
            let jump = levels.first().map(|(when, _)| i64::from(*when)).filter(|when| *when <= upto);
            let post = (from < until).then(|| i64::from(self.targets.entry(cell, from)[0]) + back);
            let Some(next) = [scale, jump, post].into_iter().flatten().min() else { break };
            state = self.learning.move_on(rule, state, level, (next - now) as u32);
            state.0 = rule.weakened(state.0, weakened, next);
            weakened = weakened.max(next);
            if scale == Some(next) {
                state.0 = rule.scale(state.0, scales[0].1);
                scales = &scales[1..];
            } else if jump == Some(next) {
                levels = &levels[1..];
            } else {
                if known {
                    let steps = next - back - (i64::from(passing.last) + offset);
                    // The spike of the same time counts nothing, but those before it do.
                    let x = if steps == 0 {
                        passing.before
                    } else {
                        trace.later(after, steps.min(i64::from(NEVER)) as u32)
                    };
                    state = rule.after_post(pair, state, x, trace.bits);
                } else {
                    state = rule.after_post(pair, state, 0, trace.bits);
                }
                from += 1;
            }
            now = next;
            level = modulator.map_or(0, |k| self.common.level(self.learning, k, now));
        }
        state.0 = rule.weakened(state.0, weakened, upto);
        // A spike that passes is an event, a look is none.
        if passing.step != NEVER { self.learning.move_on(rule, state, level, (upto - now) as u32) } else { state }
    }

    /// Likewise where a spike passes: what it passes on, and what it leaves behind.
    fn pass_wide(
        &self,
        (rule, pair): (&Rule, &Pair),
        changed: Changed,
        passing: &Passing,
        (slot, delay): (u16, u16),
    ) -> (i32, Changed) {
        let time = i64::from(passing.step) + if pair.axonal { i64::from(delay) } else { 0 };
        let end = i64::from(passing.step) + Learning::offset(pair, delay);
        let state = self.walk((rule, pair), changed, passing, (slot, delay), (end, time));
        let amount = rule.passed(state.0, passing.effect);
        let cell = usize::from(slot);
        let entry = self.targets.before(cell, end).checked_sub(1).map(|i| {
            let entry = self.targets.entry(cell, i);
            (entry, (end - i64::from(entry[0])) as u32)
        });
        (amount, rule.after_pre(self.learning, pair, state, entry))
    }

    /// A spike passes a synapse: what it passes on, and the strength it leaves behind.
    #[inline(always)]
    fn pass(&self, rule: &Rule, strength: u32, passing: &Passing, slot: u16, delay: u16) -> (i32, u32) {
        let Some(pair) = &rule.stdp else { return (rule.passed(strength, passing.effect), strength) };
        let now = i64::from(passing.step) + Learning::offset(pair, delay);
        let (strength, until) = self.grow(rule, strength, passing, slot, delay, now);
        let amount = rule.passed(strength, passing.effect);
        if until == 0 {
            return (amount, strength);
        }
        let entry = self.targets.entry(usize::from(slot), until - 1);
        let trace = &self.learning.traces[pair.y];
        let y = trace.later(trace.after(entry[1 + pair.y]), (now - i64::from(entry[0])) as u32);
        (amount, rule.shrunk(pair, strength, y, trace.bits))
    }

    /// What the groups of `cell` must know of its entry `index`.
    fn passing(&self, rule: &Rule, cell: usize, index: usize) -> Passing {
        let entry = self.sources.entry(cell, index);
        let last = index.checked_sub(1).map(|i| self.sources.entry(cell, i));
        let x = rule.stdp.as_ref().map(|p| p.x);
        let before = |e: &[u32]| x.map_or(0, |x| e[1 + x]);
        Passing {
            step: entry[0],
            last: last.map_or(NEVER, |e| e[0]),
            before: last.map_or(0, before),
            effect: self.learning.effect(rule, entry),
        }
    }

    fn mask(&self) -> u64 {
        self.amounts.len() as u64 - 1
    }

    /// Adds what arrives in `step`.
    pub(super) fn deliver(&mut self, step: u64, synapses: &mut Changing, sums: &mut [i32; 65_536]) {
        self.targets.added += self.common.begin(self.learning, step);
        let at = (step & self.mask()) as usize;
        for visit in std::mem::take(&mut self.visits[at]) {
            let rule = &self.learning.rules[usize::from(visit.group.rule)];
            for i in visit.place as usize..visit.place as usize + visit.group.len as usize {
                let slot = synapses.slots[i];
                let amount = match &rule.stdp {
                    Some(pair) if rule.is_wide() => {
                        let (amount, left) = self.pass_wide(
                            (rule, pair),
                            synapses.changed(i),
                            &visit.passing,
                            (slot, visit.group.delay),
                        );
                        synapses.set(i, left);
                        amount
                    }
                    _ => {
                        let (amount, strength) =
                            self.pass(rule, synapses.strengths[i], &visit.passing, slot, visit.group.delay);
                        synapses.strengths[i] = strength;
                        amount
                    }
                };
                let sum = &mut sums[usize::from(slot)];
                *sum = sum.wrapping_add(amount << rule.shift);
            }
        }
        self.add(&self.amounts[at], sums);
        self.amounts[at].clear();
        if !self.early.is_empty() {
            for (_, slot, amount) in self.early.iter().filter(|(when, ..)| *when == step) {
                let sum = &mut sums[usize::from(*slot)];
                *sum = sum.wrapping_add(*amount);
            }
            self.early.retain(|(when, ..)| *when > step);
        }
    }

    #[inline(always)]
    fn add(&self, amounts: &[u32], sums: &mut [i32]) {
        for amount in amounts {
            let sum = &mut sums[usize::from(*amount as u16)];
            let shift = if self.shifts.is_empty() { 0 } else { self.shifts[usize::from(*amount as u16)] };
            *sum = sum.wrapping_add((*amount as i32 >> 16) << shift);
        }
    }

    /// A cell here has fired, whose first slot this is; its ports' slots lie `stride` apart.
    pub(super) fn fired(&mut self, step: u64, slot: usize, stride: usize, ports: usize) {
        for port in 0..ports {
            self.targets.push(self.learning, slot + port * stride, step as u32);
            self.common.counts.iter_mut().for_each(|counts| counts[slot + port * stride] += 1);
        }
    }

    /// A cell anywhere has fired: its row is passed, or noted. Returns how many deliveries that is.
    pub(super) fn schedule(&mut self, spike: Spike, now: u64, synapses: &mut Changing) -> u64 {
        let cell = spike.cell as usize;
        self.sources.push(self.learning, cell, spike.step as u32);
        self.common.note(self.plan, self.learning, spike);
        let newest = self.sources.cells[cell].len() / self.sources.width - 1;
        self.pass_row(spike, newest, now, synapses, true)
    }

    /// Passes a spike, the entry `index` of its cell, or notes it; with `all` false what lies before `now` was done before.
    fn pass_row(&mut self, spike: Spike, index: usize, now: u64, synapses: &mut Changing, all: bool) -> u64 {
        let cell = spike.cell as usize;
        let mut place = synapses.first[cell];
        let mut passed = 0;
        let range = synapses.first_group[cell] as usize..synapses.first_group[cell + 1] as usize;
        let (mut known, mut passing) = (u16::MAX, Passing { step: 0, last: NEVER, before: 0, effect: 0 });
        for g in range {
            let group = synapses.groups[g];
            let rule = &self.learning.rules[usize::from(group.rule)];
            let here = place as usize..(place + u64::from(group.len)) as usize;
            place = here.end as u64;
            if known != group.rule {
                (known, passing) = (group.rule, self.passing(rule, cell, index));
            }
            let when = spike.step + u64::from(group.delay);
            let bucket = (when & self.mask()) as usize;
            if rule.stdp.as_ref().is_some_and(|p| p.axonal) {
                if when >= now {
                    self.visits[bucket].push(Visit { place: here.start as u64, group, passing });
                    passed += u64::from(group.len);
                }
                continue;
            }
            if !all {
                continue;
            }
            passed += u64::from(group.len);
            let mut amounts = std::mem::take(&mut self.amounts[bucket]);
            if let (Some(pair), true) = (&rule.stdp, rule.is_wide()) {
                for i in here {
                    let slot = synapses.slots[i];
                    let (amount, left) =
                        self.pass_wide((rule, pair), synapses.changed(i), &passing, (slot, group.delay));
                    synapses.set(i, left);
                    amounts.push(u32::from(slot) | (amount as u32) << 16);
                }
                self.amounts[bucket] = amounts;
                continue;
            }
            for (slot, strength) in synapses.slots[here.clone()].iter().zip(&mut synapses.strengths[here]) {
                let (amount, left) = self.pass(rule, *strength, &passing, *slot, group.delay);
                *strength = left;
                amounts.push(u32::from(*slot) | (amount as u32) << 16);
            }
            self.amounts[bucket] = amounts;
        }
        passed
    }

    /// Calls `with(index, changed)` for every synapse with what it is once everything before `now` was applied.
    fn each(&self, now: u64, synapses: &Changing, mut with: impl FnMut(usize, Changed)) {
        for cell in 0..self.sources.cells.len() {
            for (group, places) in synapses.groups(cell as u32) {
                let rule = &self.learning.rules[usize::from(group.rule)];
                let places = places.start as usize..places.end as usize;
                let Some(pair) = &rule.stdp else {
                    places.for_each(|i| with(i, synapses.changed(i)));
                    continue;
                };
                let (ahead, back) = if pair.axonal { (i64::from(group.delay), 0) } else { (0, i64::from(group.delay)) };
                // The last spike that has passed.
                let last = self.sources.last(cell, now as i64 - ahead);
                let passing = Passing {
                    step: NEVER,
                    last: last.map_or(NEVER, |e| e[0]),
                    before: last.map_or(0, |e| e[1 + pair.x]),
                    effect: 0,
                };
                for i in places {
                    let (slot, end) = (synapses.slots[i], now as i64 - back);
                    let changed = if rule.is_wide() {
                        let bounds = (end, now as i64 - 1);
                        self.walk((rule, pair), synapses.changed(i), &passing, (slot, group.delay), bounds)
                    } else {
                        (self.grow(rule, synapses.strengths[i], &passing, slot, group.delay, end).0, 0)
                    };
                    with(i, changed);
                }
            }
        }
    }

    /// Between two steps, when all spikes before `now` are known: brings synapses up to date when entries have become many.
    pub(super) fn sweep(&mut self, now: u64, synapses: &mut Changing) {
        self.targets.added += self.common.settle(self.learning);
        if self.sources.added + self.targets.added <= self.most {
            return;
        }
        (synapses.strengths, synapses.eligible) = self.changed(now, synapses);
        self.grown = now as u32;
        let oldest = now as i64 - i64::from(self.plan.max_delay);
        self.sources.trim(oldest);
        self.targets.trim(oldest);
        self.common.trim(self.learning, oldest);
    }

    /// The strengths of all synapses here at `now`, in the order of the rows, and their eligibilities where they have some.
    pub(super) fn changed(&self, now: u64, synapses: &Changing) -> (Vec<u32>, Vec<i32>) {
        let mut strengths = vec![0; synapses.strengths.len()];
        let mut eligible = vec![0; synapses.eligible.len()];
        self.each(now, synapses, |i, changed| {
            strengths[i] = changed.0;
            if let Some(e) = eligible.get_mut(i) {
                *e = changed.1;
            }
        });
        (strengths, eligible)
    }

    /// Of each scaling, the spikes of this window by slot.
    pub(super) fn counts(&self) -> &[Vec<u32>] {
        &self.common.counts
    }

    /// Of each modulator, its last jump by a spike before `step`: when, and the level after; `NEVER` where there is none.
    pub(super) fn levels(&self, step: i64) -> Vec<[u32; 2]> {
        let levels = self.common.levels.iter().zip(&self.learning.modulators);
        let last = levels.map(|(levels, m)| {
            let old = levels.partition_point(|(when, _)| i64::from(*when) - i64::from(m.delay) < step);
            old.checked_sub(1).map_or([NEVER, 0], |i| [levels[i].0, levels[i].1])
        });
        last.collect()
    }

    /// The last entry of a cell before `step`.
    pub(super) fn entry(&self, cell: usize, step: i64) -> Option<&[u32]> {
        self.sources.last(cell, step)
    }

    /// Adds to `sums` what arrives in `step` beside what visits will bring.
    pub(super) fn under_way(&self, step: u64, sums: &mut [i32]) {
        self.add(&self.amounts[(step & self.mask()) as usize], sums);
        for (_, slot, amount) in self.early.iter().filter(|(when, ..)| *when == step) {
            let sum = &mut sums[usize::from(*slot)];
            *sum = sum.wrapping_add(*amount);
        }
    }

    /// Goes to a state: `learned` has an entry for each cell (or `NEVER`), `recent` the spikes since, `early` what is under way
    /// by step and slot.
    pub(super) fn restore(
        &mut self,
        now: u64,
        learned: &Learned,
        recent: &[Spike],
        early: Vec<(u64, u16, i32)>,
        synapses: &mut Changing,
        slots: &dyn Fn(u32) -> Option<(usize, usize, usize)>,
    ) {
        self.sources.clear();
        self.targets.clear();
        self.visits.iter_mut().for_each(Vec::clear);
        self.amounts.iter_mut().for_each(Vec::clear);
        self.early = early;
        self.grown = now as u32;
        self.common = Common::new(self.learning, self.targets.cells.len());
        for (k, [when, level]) in learned.levels.iter().enumerate().filter(|(_, l)| l[0] != NEVER) {
            self.common.levels[k].push((*when, *level));
        }
        recent.iter().for_each(|spike| self.common.note(self.plan, self.learning, *spike));
        self.common.settle(self.learning);
        for (cell, entry) in learned.entries.iter().enumerate().filter(|(_, e)| e[0] != NEVER) {
            self.sources.cells[cell].extend(entry);
            if let Some((slot, stride, ports)) = slots(cell as u32) {
                (0..ports).for_each(|port| self.targets.cells[slot + port * stride].extend(entry));
            }
        }
        for spike in recent {
            let cell = spike.cell as usize;
            self.sources.push(self.learning, cell, spike.step as u32);
            let newest = self.sources.cells[cell].len() / self.sources.width - 1;
            self.pass_row(*spike, newest, now, synapses, false);
            if let Some((slot, stride, ports)) = slots(spike.cell) {
                self.fired(spike.step, slot, stride, ports);
            }
        }
        for (own, all) in self.common.counts.iter_mut().zip(&learned.counts) {
            for (cell, count) in all.iter().enumerate() {
                if let Some((slot, stride, ports)) = slots(cell as u32) {
                    (0..ports).for_each(|port| own[slot + port * stride] = *count);
                }
            }
        }
    }
}

/// The first slot of a cell in a shard, how far its ports' slots lie apart, and how many it has.
pub(super) fn slots_of(plan: &Plan, shard: &Shard, cell: u32) -> Option<(usize, usize, usize)> {
    let p = plan.first.partition_point(|first| *first <= u64::from(cell)) - 1;
    let own = cell - plan.first[p] as u32;
    let part: &Part = &shard.parts[p];
    let at = part.cells().find(own)?;
    Some(((part.slot + at) as usize, part.count() as usize, plan.models[p].ports().len()))
}
