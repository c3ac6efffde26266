//! The kinds of neurons of a wiring that is nearly acyclic, and the lists of synapses between them (levels.cuh).

use super::{Entry, Lists, NONE};
use crate::layers::ltc::Synapses;
use std::ops::Range;

/// Neurons by kind. Sources are columns of a matrix: lone neurons, which have no synapses from others, and then the chain's; those that
/// sinks read lie side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Levels {
    pub(in super::super) sources: Vec<u32>,
    /// How many of the sources are lone.
    pub(in super::super) lone: usize,
    /// The sources that sinks read.
    pub(in super::super) read: Range<usize>,
    /// Neurons that nobody reads.
    pub(in super::super) sinks: Vec<u32>,
}

/// Between which neurons synapses are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Between {
    /// From lone neurons to the chain.
    Far,
    /// Within the chain.
    Near,
    /// From all sources to the chain.
    Chain,
    /// To sinks, from the sources that they read.
    Sinks,
}

impl Levels {
    /// None where there is no lone neuron that a chain's neuron reads.
    pub(in super::super) fn of(s: &Synapses) -> Option<Self> {
        let n = s.targets();
        if s.sources() != n || n.checked_mul(n).is_none_or(|n| n >= NONE as usize) {
            return None;
        }
        let degree = |offsets: &[i32], j: usize| offsets[j + 1] - offsets[j];
        let lone = |j: usize| degree(&s.target_offsets, j) == 0;
        let sink = |j: usize| !lone(j) && degree(&s.source_offsets, j) == 0;
        let targets = |i: usize| &s.target_of[s.source_offsets[i] as usize..s.source_offsets[i + 1] as usize];
        let read = |i: usize| targets(i).iter().any(|&j| sink(j as usize));
        let some = |kind: &dyn Fn(usize) -> bool| (0..n).filter(|&j| kind(j)).map(|j| j as u32).collect::<Vec<_>>();
        let chain = |j: usize| !lone(j) && !sink(j);
        let parts = [
            some(&|j| lone(j) && !read(j)),
            some(&|j| lone(j) && read(j)),
            some(&|j| chain(j) && read(j)),
            some(&|j| chain(j) && !read(j)),
        ];
        let [a, b, c, _] = parts.each_ref().map(Vec::len);
        let all = Self { sources: parts.concat(), lone: a + b, read: a..a + b + c, sinks: some(&sink) };
        let reads = (0..n).any(|i| lone(i) && targets(i).iter().any(|&j| chain(j as usize)));
        (all.chain() > 0 && reads).then_some(all)
    }

    /// Neurons of the chain.
    pub(in super::super) fn chain(&self) -> usize {
        self.sources.len() - self.lone
    }

    /// Those synapses by target or by source, with their places in the dense matrices of `s`; neurons are counted within their kinds.
    pub(in super::super) fn lists(&self, s: &Synapses, between: Between, by_source: bool) -> Lists {
        let n = s.targets();
        let from = match between {
            Between::Far => 0..self.lone,
            Between::Near => self.lone..self.sources.len(),
            Between::Chain => 0..self.sources.len(),
            Between::Sinks => self.read.clone(),
        };
        let from = &self.sources[from];
        let to = if between == Between::Sinks { &self.sinks[..] } else { &self.sources[self.lone..] };
        let mut place = vec![NONE; n];
        for (k, &j) in to.iter().enumerate() {
            place[j as usize] = k as u32;
        }
        let mut of = vec![Vec::new(); if by_source { from.len() } else { to.len() }];
        for (k, &i) in from.iter().enumerate() {
            let i = i as usize;
            for &j in &s.target_of[s.source_offsets[i] as usize..s.source_offsets[i + 1] as usize] {
                let at = (i * n + j as usize) as u32;
                match place[j as usize] {
                    NONE => {}
                    target if by_source => of[k].push(Entry { other: target, at }),
                    target => of[target as usize].push(Entry { other: k as u32, at }),
                }
            }
        }
        Lists { others: if by_source { to.len() } else { from.len() }, of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::ltc::wirings::Rule;
    use std::collections::BTreeSet;

    /// Every synapse is in one of the lists to the chain or to sinks, and far and near ones are those to the chain.
    #[test]
    fn every_synapse_is_of_one_level() {
        let s = Rule::auto_ncp(64, 8).build(5).unwrap().connectivity().unwrap().recurrent.clone();
        let levels = Levels::of(&s).unwrap();
        let at = |between, by_source| -> Vec<u32> {
            levels.lists(&s, between, by_source).of.iter().flatten().map(|e| e.at).collect()
        };
        for by_source in [false, true] {
            let (chain, sinks) = (at(Between::Chain, by_source), at(Between::Sinks, by_source));
            let all: BTreeSet<u32> = chain.iter().chain(&sinks).copied().collect();
            assert_eq!((all.len(), chain.len() + sinks.len()), (s.len(), s.len()));
            let parts: BTreeSet<u32> =
                at(Between::Far, by_source).into_iter().chain(at(Between::Near, by_source)).collect();
            assert_eq!(parts, chain.into_iter().collect());
        }
        // Inter neurons are lone, motor neurons are sinks, which read command neurons alone.
        assert_eq!(levels.sinks, (0..8).collect::<Vec<u32>>());
        assert!(levels.read.start >= levels.lone && at(Between::Near, false).len() * 20 < s.len());
        // Others are counted within their kinds.
        let near = levels.lists(&s, Between::Near, true);
        for (i, e) in near.of.iter().enumerate().flat_map(|(i, list)| list.iter().map(move |e| (i, e))) {
            let neuron = |k: usize| levels.sources[levels.lone + k];
            assert_eq!(e.at, neuron(i) * 64 + neuron(e.other as usize));
        }
    }

    #[test]
    fn wirings_without_lone_neurons_have_no_levels() {
        assert_eq!(Levels::of(&Synapses::full(5, 5).unwrap()), None);
        assert_eq!(Levels::of(&Synapses::from_fn(5, 5, |_, _| false).unwrap()), None);
        // Two levels alone: nobody is between them.
        assert_eq!(Levels::of(&Synapses::from_fn(4, 4, |i, j| i < 2 && j >= 2).unwrap()), None);
        let three = Levels::of(&Synapses::from_fn(3, 3, |i, j| j == i + 1).unwrap()).unwrap();
        assert_eq!((three.sources, three.lone, three.read, three.sinks), (vec![0, 1], 1, 1..2, vec![2]));
    }
}
