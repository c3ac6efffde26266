//! What is made of the parameters before a pass: constants of each synapse, target by target, in packs of two.

use crate::layers::ltc::spec::Constraint;
use crate::shared::Shared;
use crate::simd_math::{Lanes, softplus};
use crate::{Error, Result, pool};

/// `mu, a, p, q` of each of two synapses onto one target, with `a = -sigma log2(e)`, so that the gate is
/// `1 / (1 + 2^(a (v - mu)))`; `p` is the constrained weight and `q = p erev`. The empty half of a pack is all zero.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Pack(pub [f32; 8]);
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
    /// `[H]`: the largest |a| and the largest |a mu| of a target's synapses.
    pub reach: &'a [[f32; 2]],
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

/// Where a side is folded to. Constants and sources may be longer than needed.
pub(super) struct Room<'a> {
    /// `[packs, 8]`.
    pub constants: &'a mut [f32],
    /// `[packs, 2]`.
    pub source_of: &'a mut [[i32; PACK]],
    /// `[H + 1]`.
    pub first: &'a mut [i32],
    /// `[H, 2]`.
    pub reach: &'a mut [[f32; 2]],
}

/// Checks a side's lists and finds the place of each target's packs.
fn start<'a>(s: &SideInputs<'_>, room: Room<'a>) -> Result<(&'a mut [Pack], Room<'a>)> {
    check(s)?;
    let Room { constants, source_of, first, reach } = room;
    first[0] = 0;
    for j in 0..first.len() - 1 {
        let degree = s.target_offsets[j + 1] - s.target_offsets[j];
        first[j + 1] = first[j] + (degree + 1) / 2;
    }
    // SAFETY: any bits are f32.
    let (before, packs, _) = unsafe { constants.align_to_mut::<Pack>() };
    if !before.is_empty() {
        return Err(Error::value("ltc: the scratch block is not aligned to 32 bytes"));
    }
    Ok((packs, Room { constants: &mut [], source_of, first, reach }))
}

/// Folds both sides.
pub(super) fn fold<'a>(s: &[SideInputs<'_>; 2], constraint: Constraint, rooms: [Room<'a>; 2]) -> Result<[Side<'a>; 2]> {
    let [a, b] = rooms;
    let mut rooms = [start(&s[0], a)?, start(&s[1], b)?];
    let hidden = rooms[0].1.first.len() - 1;
    let shared = rooms
        .each_mut()
        .map(|(packs, room)| (Shared::new(packs), Shared::new(room.source_of), Shared::new(room.reach), &*room.first));
    pool::for_each(2 * hidden.div_ceil(TARGETS), |task| {
        let (side, chunk) = (task % 2, task / 2);
        let (packs, sources, reach, first) = shared[side];
        for j in chunk * TARGETS..hidden.min((chunk + 1) * TARGETS) {
            let (start, count) = (first[j] as usize, (first[j + 1] - first[j]) as usize);
            // SAFETY: what is one target's belongs to one task.
            let (packs, sources, reach) =
                unsafe { (packs.part(start, count), sources.part(start, count), reach.part(j, 1)) };
            fold_target(&s[side], constraint == Constraint::Softplus, j, packs, sources, &mut reach[0]);
        }
    });
    let mut sources = s.iter().map(|s| s.sources);
    Ok(rooms.map(|(packs, room)| {
        let used = room.first[hidden] as usize;
        Side {
            sources: sources.next().unwrap_or_default(),
            packs: &packs[..used],
            source_of: &room.source_of[..used],
            first: room.first,
            reach: room.reach,
        }
    }))
}

crate::levels!(fn fold_target(s: &SideInputs<'_>, softplus: bool, j: usize, packs: &mut [Pack], sources: &mut [[i32; PACK]], reach: &mut [f32; 2]) = fold_body, 8, [8, 8, 8]);

#[inline(always)]
fn fold_body<const FMA: bool, const R: usize, const N: usize>(
    s: &SideInputs<'_>,
    positive: bool,
    j: usize,
    packs: &mut [Pack],
    sources: &mut [[i32; PACK]],
    reach: &mut [f32; 2],
) {
    let hidden = s.target_offsets.len() - 1;
    let list = &s.source_of[s.target_offsets[j] as usize..s.target_offsets[j + 1] as usize];
    let matrices = [s.mu, s.sigma, s.w, s.erev];
    assert!(j < hidden && matrices.iter().all(|m| m.len() == s.sources * hidden));
    let (mut most, mut odd) = ([Lanes([0.0; 8]); 2], Lanes([0.0; 8]));
    for ((packs, sources), list) in packs.chunks_mut(4).zip(sources.chunks_mut(4)).zip(list.chunks(8)) {
        let mut x = [Lanes([0.0; 8]); 4];
        for (l, &i) in list.iter().enumerate() {
            for (x, matrix) in x.iter_mut().zip(matrices) {
                // SAFETY: `check` refused every source that is not below I.
                x.0[l] = unsafe { *matrix.get_unchecked(i as usize * hidden + j) };
            }
        }
        let [mu, sigma, w, erev] = x;
        let a = sigma.map(|x| -x) * Lanes::splat(std::f32::consts::LOG2_E);
        let p = if positive { softplus::<FMA, 8>(w) } else { w };
        let q = p * erev;
        for (most, x) in most.iter_mut().zip([a, a * mu]) {
            *most = most.zip(x.map(f32::abs), |most, x| if x > most { x } else { most });
            // Zero, but NaN where one is not finite: such a target must not count as bounded.
            odd = odd + x * Lanes::splat(0.0);
        }
        for (at, (pack, source)) in packs.iter_mut().zip(sources).enumerate() {
            (*pack, *source) = (Pack([0.0; 8]), [s.sources as i32; PACK]);
            for half in 0..PACK.min(list.len() - 2 * at) {
                let l = 2 * at + half;
                pack.0[4 * half..4 * (half + 1)].copy_from_slice(&[mu.0[l], a.0[l], p.0[l], q.0[l]]);
                source[half] = list[l];
            }
        }
    }
    let odd: f32 = odd.0.iter().sum();
    *reach = most.map(|most| most.0.into_iter().fold(0.0, f32::max) + odd);
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
