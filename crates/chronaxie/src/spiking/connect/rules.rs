//! The rules, as enumerations that any part of the targets can be taken out of.
//!
//! A visitor is called with `(source, target, weight bits, delay bits)` for every synapse whose target is one of a subset.
//! What it is called with, over all subsets that make up the population, is the same multiset however it is cut:
//! each draw is keyed by what it decides. For an edge list the weight bits are the edge's index.

use super::subset::Subset;
use crate::spiking::draws::{BATCH, Purpose, Stream, batch, below, draw, uniform};
use crate::spiking::math;
use crate::spiking::network::place::distance;
use crate::spiking::network::{Projection, Rule};
use crate::spiking::plan::Plan;

/// Visits the synapses of projection `index` onto the cells `targets`, in an order that follows from those cells alone.
#[inline]
pub fn visit<'s>(
    plan: &Plan,
    index: usize,
    targets: impl Into<Subset<'s>>,
    visit: &mut impl FnMut(u32, u32, u32, u32),
) {
    let walk = Walk::new(plan, index, targets.into());
    match &walk.p.rule {
        Rule::AllToAll => walk.pairs(visit),
        Rule::OneToOne => {
            for t in walk.targets.iter() {
                walk.with_efficacy(t, t, t.into(), visit);
            }
        }
        Rule::Probability(x) => walk.probability(*x, visit),
        Rule::InDegree { count, multapses } => walk.in_degree(*count, *multapses, visit),
        Rule::OutDegree { count, multapses } => walk.out_degree(*count, *multapses, visit),
        Rule::Total { count, multapses: true } => walk.total(*count, visit),
        Rule::Total { count, multapses: false } => walk.distinct(*count, visit),
        Rule::Distance { peak, length, radius } => walk.near(*peak, *length, *radius, visit),
        Rule::Edges(edges) => {
            for (i, e) in edges.iter().enumerate().filter(|(_, e)| walk.targets.contains(e.target)) {
                visit(e.source, e.target, i as u32, 0);
            }
        }
    }
}

/// Visits the synapses of one source of projection `index` onto the cells `targets`, those that [`visit`] visits of it: nothing for
/// rules by which they do not follow from the source alone.
#[inline]
pub fn visit_row(
    plan: &Plan,
    index: usize,
    source: u32,
    targets: Subset<'_>,
    visit: &mut impl FnMut(u32, u32, u32, u32),
) {
    let walk = Walk::new(plan, index, targets);
    match walk.p.rule {
        Rule::AllToAll => walk.targets.iter().for_each(|t| walk.pair(source, t, visit)),
        Rule::OneToOne if targets.contains(source) => walk.with_efficacy(source, source, source.into(), visit),
        Rule::OutDegree { count, multapses: true } => walk.out_row(source, count, visit),
        _ => {}
    }
}

/// Draws that are made one by one, where a batch would make many more than are wanted.
const FEW: u32 = 32;

struct Walk<'a> {
    plan: &'a Plan,
    p: &'a Projection,
    owner: u32,
    seed: u64,
    n_source: u32,
    n_target: u32,
    targets: Subset<'a>,
}

impl<'a> Walk<'a> {
    fn new(plan: &'a Plan, index: usize, targets: Subset<'a>) -> Self {
        let (p, key) = (&plan.network.projections[index], plan.network.projection_key(index));
        let [n_source, n_target] = [p.source, p.target].map(|i| plan.network.populations[i].size);
        Self { plan, p, owner: key.owner, seed: key.seed, n_source, n_target, targets }
    }

    /// Whether a cell may not be joined to itself.
    fn no_self(&self) -> bool {
        self.p.source == self.p.target && !self.p.autapses
    }

    #[inline(always)]
    fn with_efficacy(&self, source: u32, target: u32, number: u64, visit: &mut impl FnMut(u32, u32, u32, u32)) {
        let [w, d, ..] = draw(self.seed, Purpose::Efficacy, self.owner, number);
        visit(source, target, w, d);
    }

    fn number(&self, source: u32, target: u32) -> u64 {
        u64::from(target) * u64::from(self.n_source) + u64::from(source)
    }

    fn pair(&self, source: u32, target: u32, visit: &mut impl FnMut(u32, u32, u32, u32)) {
        if !(self.no_self() && source == target) {
            self.with_efficacy(source, target, self.number(source, target), visit);
        }
    }

    fn pairs(&self, visit: &mut impl FnMut(u32, u32, u32, u32)) {
        for t in self.targets.iter() {
            (0..self.n_source).for_each(|s| self.pair(s, t, visit));
        }
    }

    /// Steps from one source to the next by geometric draws, which is as many draws as there are synapses.
    fn probability(&self, x: f64, visit: &mut impl FnMut(u32, u32, u32, u32)) {
        if x >= 1.0 {
            return self.pairs(visit);
        }
        if x <= 0.0 {
            return;
        }
        let rate = 1.0 / math::ln(1.0 - x);
        for t in self.targets.iter() {
            let mut stream = Stream::new(self.seed, Purpose::Pair, self.owner, u64::from(t) << 32);
            let mut s = 0u64;
            loop {
                s += (math::ln(stream.uniform()) * rate).min(1e15) as u64;
                if s >= u64::from(self.n_source) {
                    break;
                }
                if !(self.no_self() && s as u32 == t) {
                    self.with_efficacy(s as u32, t, self.number(s as u32, t), visit);
                }
                s += 1;
            }
        }
    }

    fn in_degree(&self, count: u32, multapses: bool, visit: &mut impl FnMut(u32, u32, u32, u32)) {
        let mut taken = Taken::new(self.n_source);
        for t in self.targets.iter() {
            let first = u64::from(t) * u64::from(count);
            if multapses {
                for k in 0..u64::from(count) {
                    let [s, _, w, d] = draw(self.seed, Purpose::Pair, self.owner, first + k);
                    visit(self.other(s, self.n_source, t), t, w, d);
                }
            } else {
                let mut stream = Stream::new(self.seed, Purpose::Pair, self.owner, u64::from(t) << 32);
                let skip = self.no_self().then_some(t);
                taken.choose(count, skip, &mut stream, |k, s| self.with_efficacy(s, t, first + u64::from(k), visit));
            }
        }
    }

    fn out_degree(&self, count: u32, multapses: bool, visit: &mut impl FnMut(u32, u32, u32, u32)) {
        let mut taken = Taken::new(self.n_target);
        for s in 0..self.n_source {
            let first = u64::from(s) * u64::from(count);
            if multapses {
                self.out_row(s, count, visit);
            } else {
                let mut stream = Stream::new(self.seed, Purpose::Pair, self.owner, u64::from(s) << 32);
                let skip = self.no_self().then_some(s);
                taken.choose(count, skip, &mut stream, |k, t| {
                    if self.targets.contains(t) {
                        self.with_efficacy(s, t, first + u64::from(k), visit);
                    }
                });
            }
        }
    }

    /// Draw k of a source is target, weight and delay of its synapse k.
    #[inline(always)]
    fn out_row(&self, s: u32, count: u32, visit: &mut impl FnMut(u32, u32, u32, u32)) {
        let first = u64::from(s) * u64::from(count);
        let mut keep = |[t, w, d]: [u32; 3]| {
            let t = self.other(t, self.n_target, s);
            if self.targets.contains(t) {
                visit(s, t, w, d);
            }
        };
        let mut done = 0;
        if count >= FEW {
            let mut words = [[0u32; BATCH]; 4];
            while count - done >= FEW {
                batch(self.seed, Purpose::Pair as u32, self.owner, first + u64::from(done), &mut words);
                let here = (count - done).min(BATCH as u32);
                (0..here as usize).for_each(|i| keep([0, 2, 3].map(|w| words[w][i])));
                done += here;
            }
        }
        for k in done..count {
            let [t, _, w, d] = draw(self.seed, Purpose::Pair, self.owner, first + u64::from(k));
            keep([t, w, d]);
        }
    }

    /// A cell of `count` from 32 bits, other than `own` where a cell may not be joined to itself.
    #[inline(always)]
    fn other(&self, bits: u32, count: u32, own: u32) -> u32 {
        if self.no_self() {
            let x = below(bits, count - 1);
            x + u32::from(x >= own)
        } else {
            below(bits, count)
        }
    }

    /// Draw k is source, target, weight and delay of synapse k; a batch of draws at a time.
    fn total(&self, count: u64, visit: &mut impl FnMut(u32, u32, u32, u32)) {
        match self.targets.order.map(|o| o.places()) {
            None => self.total_at(count, visit, |t| t),
            Some(places) => self.total_at(count, visit, |t| places[t as usize]),
        }
    }

    /// Likewise, where `place` says where a target stands.
    #[inline(always)]
    fn total_at(&self, count: u64, visit: &mut impl FnMut(u32, u32, u32, u32), place: impl Fn(u32) -> u32) {
        let mut words = [[0u32; BATCH]; 4];
        let mut kept = [0u16; BATCH];
        let (n_source, n_target) = (self.n_source, self.n_target);
        let (low, width) = (self.targets.low, self.targets.high - self.targets.low);
        let no_self = self.no_self();
        let mut first = 0;
        while first < count {
            batch(self.seed, Purpose::Pair as u32, self.owner, first, &mut words);
            let here = (count - first).min(BATCH as u64) as usize;
            // Which are ours: without a branch, which would be mispredicted every second time.
            let mut ours = 0;
            for i in 0..here {
                let source = below(words[0][i], n_source);
                let target =
                    if no_self { self.other(words[1][i], n_target, source) } else { below(words[1][i], n_target) };
                (words[0][i], words[1][i]) = (source, target);
                kept[ours] = i as u16;
                ours += usize::from(place(target).wrapping_sub(low) < width);
            }
            for &i in &kept[..ours] {
                let i = usize::from(i);
                visit(words[0][i], words[1][i], words[2][i], words[3][i]);
            }
            first += here as u64;
        }
    }

    /// Synapse k joins pair `permutation(k)`: distinct pairs, without a table of those that are taken.
    fn distinct(&self, count: u64, visit: &mut impl FnMut(u32, u32, u32, u32)) {
        let width = if self.no_self() { self.n_source - 1 } else { self.n_source };
        let permutation = Permutation::new(self.seed, self.owner, u64::from(width) * u64::from(self.n_target));
        for k in 0..count {
            let pair = permutation.at(k);
            let (t, s) = ((pair / u64::from(width)) as u32, (pair % u64::from(width)) as u32);
            if self.targets.contains(t) {
                let s = if self.no_self() { s + u32::from(s >= t) } else { s };
                self.with_efficacy(s, t, k, visit);
            }
        }
    }

    /// Cells of the sources, sorted into boxes as wide as the radius, so that a target looks at its neighbours alone.
    fn near(&self, peak: f64, length: f64, radius: f64, visit: &mut impl FnMut(u32, u32, u32, u32)) {
        let n = &self.plan.network;
        let (Some(sources), Some(targets)) =
            (&n.populations[self.p.source].positions, &n.populations[self.p.target].positions)
        else {
            return;
        };
        // Beyond, fewer than 2^-53 of pairs would be joined.
        let radius = radius.min(length * 36.8);
        let cell = |x: &[f32; 4]| x.map(|x| (f64::from(x) / radius).floor().clamp(-1e9, 1e9) as i64);
        let mut boxes = std::collections::HashMap::<[i64; 4], Vec<u32>>::new();
        sources.iter().enumerate().for_each(|(i, x)| boxes.entry(cell(x)).or_default().push(i as u32));
        let mut found = Vec::new();
        for t in self.targets.iter() {
            let place = &targets[t as usize];
            let home = cell(place);
            found.clear();
            for step in 0..81 {
                let at = std::array::from_fn(|d| home[d] + (step / [1, 3, 9, 27][d]) % 3 - 1);
                found.extend(boxes.get(&at).into_iter().flatten());
            }
            found.sort_unstable();
            for &s in &found {
                let d = distance(&sources[s as usize], place);
                if d > radius || self.no_self() && s == t {
                    continue;
                }
                let [a, b, w, delay] = draw(self.seed, Purpose::Pair, self.owner, self.number(s, t));
                if uniform(a, b) < peak * math::exp(-d / length) {
                    visit(s, t, w, delay);
                }
            }
        }
    }
}

/// Distinct numbers out of 0..n by Floyd's algorithm.
struct Taken {
    n: u32,
    marks: Vec<u64>,
    chosen: Vec<u32>,
}

impl Taken {
    fn new(n: u32) -> Self {
        Self { n, marks: vec![0; n as usize / 64 + 1], chosen: Vec::new() }
    }
    fn choose(&mut self, count: u32, skip: Option<u32>, stream: &mut Stream, mut with: impl FnMut(u32, u32)) {
        let n = self.n - u32::from(skip.is_some());
        self.chosen.clear();
        for last in n - count..n {
            let x = stream.below(last + 1);
            let x = if self.mark(x) { x } else { last };
            self.mark(x);
            self.chosen.push(x);
        }
        for (k, &x) in self.chosen.iter().enumerate() {
            self.marks[x as usize / 64] = 0;
            with(k as u32, x + u32::from(skip.is_some_and(|own| x >= own)));
        }
    }
    /// Marks x; false if it was marked.
    fn mark(&mut self, x: u32) -> bool {
        let (word, bit) = (&mut self.marks[x as usize / 64], 1 << (x % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

/// A permutation of 0..n: eight Feistel rounds over the next even number of bits, walked until back in range.
struct Permutation {
    seed: u64,
    owner: u32,
    n: u64,
    half: u32,
}

impl Permutation {
    fn new(seed: u64, owner: u32, n: u64) -> Self {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        Self { seed, owner, n, half: bits.div_ceil(2).max(1) }
    }
    fn at(&self, k: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let mut x = k;
        loop {
            let (mut left, mut right) = (x >> self.half, x & mask);
            for round in 0..8u64 {
                let f = draw(self.seed, Purpose::Permutation, self.owner, right | round << 56);
                (left, right) = (right, left ^ (u64::from(f[0]) & mask));
            }
            x = left << self.half | right;
            if x < self.n {
                return x;
            }
        }
    }
}
