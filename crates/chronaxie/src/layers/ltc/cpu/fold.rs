//! What is made of the parameters before a pass: constants of each synapse, target by target, in packs of two.

use super::layout::{Shared, for_each_free};
use crate::layers::ltc::spec::Constraint;
use crate::simd_math::{Lanes, softplus};
use crate::{Error, Result};

/// `mu, mu, a, a, p, p, q, q` of two synapses onto one target, with `a = -sigma log2(e)`, so that the gate is
/// `1 / (1 + 2^(a (v - mu)))`; `p` is the constrained weight and `q = p erev`. The empty half of a pack is all zero.
pub(super) type Pack = [f32; 8];
/// Synapses in a pack.
pub(super) const PACK: usize = 2;

/// One side's parameters, `[I, H]`, and its lists.
#[derive(Clone, Copy)]
pub(super) struct SideInputs<'a> {
    pub name: &'static str,
    pub sources: usize,
    pub w: &'a [f32],
    pub mu: &'a [f32],
    pub sigma: &'a [f32],
    pub erev: &'a [f32],
    pub target_offsets: &'a [i32],
    pub source_of: &'a [i32],
}

/// One side, folded. Only [`fold`] makes it, so every source is below I, or I for the empty half of a pack, and
/// `first` ascends from 0 to the number of packs.
pub(super) struct Side<'a> {
    pub sources: usize,
    pub packs: &'a [Pack],
    pub source_of: &'a [[i32; PACK]],
    pub first: &'a [i32],
}

impl Side<'_> {
    /// The packs of a target.
    #[inline(always)]
    pub fn packs_of(&self, target: usize) -> std::ops::Range<usize> {
        self.first[target] as usize..self.first[target + 1] as usize
    }
}

/// Refuses lists that [`prepare`](crate::layers::ltc::prepare) cannot have made: the kernels index by them unchecked.
fn check(s: &SideInputs<'_>) -> Result<()> {
    let (name, count) = (s.name, s.source_of.len());
    let bad = |list: &str, at: usize, value: i32, want: String| {
        Err(Error::value(format!("ltc: {name}_{list}[{at}] = {value} is not {want}")))
    };
    let mut start = 0;
    for (at, &end) in s.target_offsets.iter().enumerate() {
        let ordered = if at == 0 { end == 0 } else { end >= start && end as usize <= count };
        if !ordered {
            return bad("target_offsets", at, end, format!("in {start} ..= {count}, where offsets ascend from 0"));
        }
        let mut least = 0;
        for (k, &source) in s.source_of.iter().enumerate().take(end as usize).skip(start as usize) {
            if source < least || source as usize >= s.sources {
                return bad("source_of", k, source, format!("in {least} .. {}, where sources ascend", s.sources));
            }
            least = source + 1;
        }
        start = end;
    }
    if start as usize != count {
        return bad("target_offsets", s.target_offsets.len() - 1, start, format!("{count}, the number of synapses"));
    }
    Ok(())
}

/// Targets that one thread folds at a time.
pub(super) const TARGETS: usize = 16;

/// Folds one side into `packs`, `source_of` and `first`, which may be longer than needed.
pub(super) fn fold<'a>(
    s: &SideInputs<'_>,
    constraint: Constraint,
    packs: &'a mut [Pack],
    source_of: &'a mut [[i32; PACK]],
    first: &'a mut [i32],
) -> Result<Side<'a>> {
    check(s)?;
    let hidden = first.len() - 1;
    first[0] = 0;
    for j in 0..hidden {
        let degree = s.target_offsets[j + 1] - s.target_offsets[j];
        first[j + 1] = first[j] + (degree + 1) / 2;
    }
    let (out_packs, out_sources) = (Shared::new(packs), Shared::new(source_of));
    for_each_free(hidden.div_ceil(TARGETS), |chunk| {
        for j in chunk * TARGETS..hidden.min((chunk + 1) * TARGETS) {
            let (start, end) = (first[j] as usize, first[j + 1] as usize);
            // SAFETY: the packs of one target belong to one task.
            let (packs, sources) =
                unsafe { (out_packs.part(start, end - start), out_sources.part(start, end - start)) };
            fold_target(s, constraint == Constraint::Softplus, j, packs, sources);
        }
    });
    let used = first[hidden] as usize;
    Ok(Side { sources: s.sources, packs: &packs[..used], source_of: &source_of[..used], first })
}

crate::levels!(fn fold_target(s: &SideInputs<'_>, softplus: bool, j: usize, packs: &mut [Pack], sources: &mut [[i32; PACK]]) = fold_body, 8, [8, 8, 8]);

#[inline(always)]
fn fold_body<const FMA: bool, const R: usize, const N: usize>(
    s: &SideInputs<'_>,
    positive: bool,
    j: usize,
    packs: &mut [Pack],
    sources: &mut [[i32; PACK]],
) {
    let hidden = s.target_offsets.len() - 1;
    let list = &s.source_of[s.target_offsets[j] as usize..s.target_offsets[j + 1] as usize];
    for ((packs, sources), list) in packs.chunks_mut(4).zip(sources.chunks_mut(4)).zip(list.chunks(8)) {
        let mut w = Lanes([0.0; 8]);
        for (l, &i) in list.iter().enumerate() {
            w.0[l] = s.w[i as usize * hidden + j];
        }
        let p = if positive { softplus::<FMA, 8>(w) } else { w };
        for (at, (pack, source)) in packs.iter_mut().zip(sources).enumerate() {
            (*pack, *source) = ([0.0; 8], [s.sources as i32; PACK]);
            for half in 0..PACK.min(list.len() - 2 * at) {
                let i = list[2 * at + half];
                let from = i as usize * hidden + j;
                let p = p.0[2 * at + half];
                pack[half] = s.mu[from];
                pack[2 + half] = -s.sigma[from] * std::f32::consts::LOG2_E;
                pack[4 + half] = p;
                pack[6 + half] = p * s.erev[from];
                source[half] = i;
            }
        }
    }
}

/// Constants of a neuron.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Neuron {
    /// The constrained membrane capacitance: `c = cm K / dt`.
    pub cm: f32,
    /// The constrained leak conductance, plus epsilon.
    pub leak: f32,
    /// The leak conductance times vleak.
    pub pull: f32,
    /// Its resting potential.
    pub vleak: f32,
}

crate::levels!(pub(super) fn fold_neurons(cm: &[f32], gleak: &[f32], vleak: &[f32], softplus: bool, epsilon: f32, out: &mut [[f32; 4]]) = neurons_body, 8, [8, 8, 8]);

#[inline(always)]
fn neurons_body<const FMA: bool, const R: usize, const N: usize>(
    cm: &[f32],
    gleak: &[f32],
    vleak: &[f32],
    positive: bool,
    epsilon: f32,
    out: &mut [[f32; 4]],
) {
    for (at, out) in out.chunks_mut(8).enumerate() {
        let mut lanes = [Lanes([0.0; 8]); 2];
        for l in 0..out.len() {
            (lanes[0].0[l], lanes[1].0[l]) = (cm[at * 8 + l], gleak[at * 8 + l]);
        }
        if positive {
            lanes = lanes.map(softplus::<FMA, 8>);
        }
        for (l, out) in out.iter_mut().enumerate() {
            let (leak, rest) = (lanes[1].0[l], vleak[at * 8 + l]);
            *out = [lanes[0].0[l], leak + epsilon, leak * rest, rest];
        }
    }
}

impl From<[f32; 4]> for Neuron {
    #[inline(always)]
    fn from([cm, leak, pull, vleak]: [f32; 4]) -> Self {
        Self { cm, leak, pull, vleak }
    }
}
