//! What of rules beyond the timing of pairs lies on the device, in the layout of `events.cuh`.

use super::Config;
use super::layout::Rows;
use crate::Result;
use crate::cuda::DeviceBuffer;
use crate::spiking::connect::Shard;
use crate::spiking::device::{Fields, Memory};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Kind, Learning, NEVER};
use crate::spiking::simulate::State;
use crate::spiking::simulate::learned::Learned;

/// Synapses of one delay that a warp takes of a row, before there are more warps.
const AXON: u64 = 128;
/// The most warps.
const MOST_PARTS: u64 = 32;
/// Numbers of a modulator in `jumps`, as `Jumps`.
const JUMPS: usize = 4;

/// The lists that synapses go through.
pub(super) struct Wide {
    /// Of each list of rows that changes; empty where there is no modulator.
    pub eligible: Vec<DeviceBuffer>,
    spikes: DeviceBuffer,
    factors: DeviceBuffer,
    levels: DeviceBuffer,
    jumps: DeviceBuffer,
    /// The longest delay before a synapse that changes; 0 where there is none.
    pub farthest: u32,
    /// `Wide` of events.cuh.
    pub fields: Vec<u8>,
    /// What it points to beside the above.
    _held: Vec<DeviceBuffer>,
}

/// `Wide` of events.cuh where nothing is.
pub(super) const NONE: [u8; 104] = [0; 104];

impl Wide {
    pub fn new(
        plan: &Plan,
        learning: &Learning,
        config: &Config,
        memory: &Memory,
        rows: &[Rows],
        shards: &[Shard],
    ) -> Result<Self> {
        let mut held = Vec::new();
        let mut keep = |buffer: DeviceBuffer| {
            let address = buffer.address();
            held.push(buffer);
            address
        };
        let (scalings, modulators) = (learning.scalings.len(), learning.modulators.len());
        let mut kinds = Fields::default();
        for rule in &learning.rules {
            let pair = rule.stdp.as_ref();
            let none = u32::MAX;
            let (what, pre, post, modulator, threshold) = match pair.map(|p| &p.kind) {
                None | Some(Kind::Timing) => (0, 0, 0, none, None),
                Some(Kind::Hebb { pre, post }) => (1, *pre, *post, none, None),
                Some(Kind::Bcm(threshold)) => (2, 0, 0, none, Some(threshold)),
                Some(Kind::Modulated(k)) => (3, 0, 0, *k as u32, None),
            };
            kinds = kinds.u32(what).u32(pre).u32(post);
            kinds = kinds.u32(rule.scaling.map_or(none, |k| k as u32)).u32(modulator);
            kinds = kinds.u32(threshold.map_or(none, |t| t.z as u32));
            kinds = kinds.u32(u32::from(pair.is_some_and(|p| p.axonal))).u32(u32::from(rule.together.is_some()));
            kinds = kinds.u64(threshold.map_or(0, |t| t.rate)).u64(threshold.map_or(0, |t| t.square));
            kinds = kinds.u64(rule.decay).u32(rule.together.map_or(0, |t| t.plus));
            kinds = kinds.u32(rule.together.map_or(0, |t| t.minus));
        }
        let scales =
            learning.scalings.iter().fold(Fields::default(), |f, s| f.u64(s.spike).u32(s.window).u32(s.silent));
        let mut carriers = Fields::default();
        for m in &learning.modulators {
            for decay in &m.decays {
                carriers = carriers.u64(keep(memory.upload(decay)?));
            }
            carriers = m.decays.iter().fold(carriers.u64(m.baseline), |f, d| f.u32(d.len() as u32));
            carriers = carriers.u32(m.population as u32).u32(m.delay).u32(m.gain);
        }
        let count = |r: &Rows| r.strengths.as_ref().map(|(_, count)| *count);
        let (mut eligible, mut addresses) = (Vec::new(), Vec::new());
        for rows in rows.iter().filter(|_| modulators > 0) {
            addresses.push(match count(rows) {
                None => 0,
                Some(count) => {
                    let own = memory.zeros(4 * count)?;
                    let address = own.address();
                    eligible.push(own);
                    address
                }
            });
        }
        let cells = plan.cells() as usize;
        let spikes = memory.zeros(4 * scalings * cells)?;
        let factors = memory.zeros(4 * scalings * config.windows * cells)?;
        let levels = memory.zeros(8 * modulators * config.jumps)?;
        let jumps = memory.zeros(4 * modulators * JUMPS)?;
        let axonal = |rule: u16| learning.rules[usize::from(rule)].stdp.as_ref().is_some_and(|p| p.axonal);
        let (mut dendritic, mut most, mut farthest) = (false, 0, 0);
        let mut axons = Fields::default();
        for synapses in shards.iter().filter_map(|s| s.changing.as_ref()) {
            let (mut first, mut groups) = (vec![0u64], Vec::<u64>::new());
            for cell in 0..cells as u32 {
                let begun = groups.len();
                for (group, places) in synapses.groups(cell) {
                    if !axonal(group.rule) {
                        dendritic = true;
                        continue;
                    }
                    let delay = u64::from(group.delay);
                    if groups[begun..].last().is_none_or(|last| last >> 48 != delay) {
                        groups.push(delay << 48 | places.start);
                    }
                    let from = groups.last().map_or(0, |last| last & ((1 << 48) - 1));
                    (most, farthest) = (most.max(places.end - from), farthest.max(group.delay));
                }
                first.push(groups.len() as u64);
            }
            axons = axons.u64(keep(memory.upload(&first)?)).u64(keep(memory.upload(&groups)?));
        }
        let fields = Fields::default()
            .u64(keep(memory.upload(&kinds.0)?))
            .u64(keep(memory.upload(&scales.0)?))
            .u64(keep(memory.upload(&carriers.0)?))
            .u64(keep(memory.upload(&addresses)?))
            .u64(keep(memory.upload(&axons.0)?))
            .u64(spikes.address())
            .u64(factors.address())
            .u64(levels.address())
            .u64(jumps.address())
            .u32(scalings as u32)
            .u32(modulators as u32)
            .u32(config.windows as u32)
            .u32(config.jumps as u32)
            .u32(rows.iter().filter(|r| r.strengths.is_none()).count() as u32)
            .u32(u32::from(dendritic))
            .u32(most.div_ceil(AXON).min(MOST_PARTS) as u32)
            .u32(farthest.into());
        Ok(Self { eligible, spikes, factors, levels, jumps, farthest: farthest.into(), fields: fields.0, _held: held })
    }

    /// Of each scaling, the spikes of each cell in this window; of each modulator, its last jump by a spike before `oldest`;
    /// the rest of a state is empty.
    pub fn read(
        &self,
        plan: &Plan,
        learning: &Learning,
        config: &Config,
        memory: &Memory,
        oldest: i64,
    ) -> Result<Learned> {
        let cells = plan.cells() as usize;
        let mut counts: Vec<Vec<u32>> = Vec::new();
        for k in 0..learning.scalings.len() {
            let mut own = memory.download::<u32>(&self.spikes, 4 * k * cells, cells)?;
            // Nothing comes to a cell without ports.
            for (p, first) in plan.first.iter().enumerate().take(plan.models.len()) {
                if plan.models[p].ports().is_empty() {
                    own[*first as usize..][..plan.network.populations[p].size as usize].fill(0);
                }
            }
            counts.push(own);
        }
        let jumps = memory.download::<u32>(&self.jumps, 0, JUMPS * learning.modulators.len())?;
        let mut levels = Vec::new();
        for (k, m) in learning.modulators.iter().enumerate() {
            let own: Vec<[u32; 2]> = memory.download(&self.levels, 8 * k * config.jumps, config.jumps)?;
            let (total, kept) = (jumps[JUMPS * k + 2], jumps[JUMPS * k + 3]);
            let at = |i: u32| own[i as usize % config.jumps];
            let old = |i: &u32| i64::from(at(*i)[0]) - i64::from(m.delay) < oldest;
            levels.push((kept..total).rev().find(old).map_or([NEVER, 0], at));
        }
        Ok(Learned { counts, levels, ..Learned::default() })
    }

    /// Goes to a state; `eligible` is by shard.
    pub fn restore(
        &mut self,
        (plan, learning, config): (&Plan, &Learning, &Config),
        memory: &Memory,
        (state, learned): (&State, &Learned),
        eligible: &[Vec<i32>],
    ) -> Result<()> {
        for (buffer, own) in self.eligible.iter_mut().zip(eligible) {
            memory.write(buffer, own)?;
        }
        let cells = plan.cells() as usize;
        let mut factors = vec![0; learning.scalings.len() * config.windows * cells];
        for (k, s) in learning.scalings.iter().enumerate() {
            // A window that ends now has not been applied.
            let window = (state.step / u64::from(s.window)) as usize % config.windows;
            let own = &mut factors[(k * config.windows + window) * cells..][..cells];
            own.iter_mut().zip(&learned.counts[k]).for_each(|(factor, count)| *factor = s.factor(*count));
        }
        memory.write(&mut self.factors, &factors)?;
        memory.write(&mut self.spikes, &learned.counts.concat())?;
        let mut levels = vec![[0u32; 2]; learning.modulators.len() * config.jumps];
        let mut jumps = vec![0; JUMPS * learning.modulators.len()];
        for (k, (m, last)) in learning.modulators.iter().zip(&learned.levels).enumerate() {
            let mut own: Vec<[u32; 2]> = if last[0] == NEVER { Vec::new() } else { vec![*last] };
            let first = plan.first[m.population];
            let carriers = first..first + u64::from(plan.network.populations[m.population].size);
            let spikes: Vec<u64> =
                state.recent.iter().filter(|s| carriers.contains(&u64::from(s.cell))).map(|s| s.step).collect();
            for same in spikes.chunk_by(|a, b| a == b) {
                let when = (same[0] + u64::from(m.delay)) as u32;
                let before = own.last().map_or(0, |[last, after]| m.later(*after, when - last));
                own.push([when, m.after(before, same.len() as u32)]);
            }
            levels[k * config.jumps..][..own.len()].copy_from_slice(&own);
            jumps[JUMPS * k + 2] = own.len() as u32;
        }
        memory.write(&mut self.levels, &levels)?;
        memory.write(&mut self.jumps, &jumps)
    }
}
