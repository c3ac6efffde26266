//! What of a plan lies on the device, in the layout of `network.cuh`.

use super::super::lane::Constants;
use super::config::Config;
use crate::Result;
use crate::cuda::DeviceBuffer;
use crate::spiking::connect::Subset;
use crate::spiking::device::{Fields, Memory};
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;

/// Bytes of a drive's guide, as many as `kGuideBits` bits have numbers.
const GUIDE: u32 = 1 << 10;

/// The cells: parts, drives, states.
pub(super) struct Cells {
    pub parts: DeviceBuffer,
    pub drives: DeviceBuffer,
    pub tasks: DeviceBuffer,
    pub first_task: DeviceBuffer,
    pub states: DeviceBuffer,
    /// Where each population's states begin in `states`, in numbers.
    pub first_state: Vec<usize>,
    /// Of each row its cell's number in its population, where a layout has an order of its own.
    pub numbers: Option<DeviceBuffer>,
    /// Of each replica its seed.
    seeds: DeviceBuffer,
    /// What the parts and drives point to.
    _held: Vec<DeviceBuffer>,
}

impl Cells {
    /// Of all cards; what is by cell stands in the layout's order.
    pub fn new(plan: &Plan, config: &Config, layout: &Layout, memory: &Memory) -> Result<Self> {
        let n = &plan.network;
        let mut held = Vec::new();
        let (mut coefficients, mut states, mut chances, mut replays) = (vec![], vec![], vec![], vec![]);
        // Of each population: where its numbers begin.
        let (mut first, mut first_state) = (Vec::new(), Vec::new());
        for (p, population) in n.populations.iter().enumerate() {
            let order = layout.order(p);
            let all = Subset { low: 0, high: population.size, order };
            let own = Constants::new(plan, p, all, population.size as usize)?;
            first.push((coefficients.len(), own.stride, chances.len(), own.chances.len(), replays.len()));
            first_state.push(states.len());
            coefficients.extend(own.coefficients);
            chances.extend(own.chances);
            states.extend(own.states.into_iter().flatten());
            let list = population.replay.as_deref().map_or(&[][..], Vec::as_slice);
            // Steps beyond 2^32 are refused before they come.
            let begun = replays.len();
            replays.extend(
                list.iter()
                    .filter(|(step, _)| *step < 1 << 32)
                    .map(|(step, cell)| step << 32 | u64::from(order.map_or(*cell, |o| o.places()[*cell as usize]))),
            );
            if order.is_some() {
                replays[begun..].sort_unstable();
            }
        }
        let ends: Vec<usize> = (1..=first.len()).map(|p| first.get(p).map_or(replays.len(), |f| f.4)).collect();
        let states = memory.upload(&states)?;
        let (coefficients, chances, replays) =
            (memory.upload(&coefficients)?, memory.upload(&chances)?, memory.upload(&replays)?);
        let mut drives = Fields::default();
        let mut ranges = vec![(0, 0); n.populations.len()];
        let (mut count, mut before) = (0, 0);
        for (p, range) in ranges.iter_mut().enumerate() {
            let start = count;
            for table in plan.poisson.iter().filter(|t| t.target == p) {
                let thresholds = memory.upload(&table.thresholds)?;
                drives = drives
                    .u64(thresholds.address())
                    .u64(table.start)
                    .u64(table.stop)
                    .u32(table.thresholds.len() as u32)
                    .u32(table.key.owner)
                    .u32(table.port as u32)
                    .u32(table.code as u32)
                    .u32(before)
                    .u32(if config.guides { GUIDE * count } else { u32::MAX });
                held.push(thresholds);
                before += table.thresholds.len() as u32;
                count += 1;
            }
            *range = (start, count - start);
        }
        let (mut parts, mut tasks, mut first_task) = (Fields::default(), Vec::<[u32; 2]>::new(), vec![0u32]);
        // Two words a cell and drive.
        let words: usize =
            n.populations.iter().zip(&ranges).map(|(p, (_, drives))| 2 * p.size as usize * *drives as usize).sum();
        let arrivals = memory.room(4 * words)?;
        let mut words = 0;
        let mut numbers = vec![0u32; config.shards * config.cells];
        for k in 0..config.shards {
            let (mut local, mut near, mut near_arrivals) = (0, 0, 0);
            for (p, part) in config.shard(plan, layout, k).0.iter().enumerate() {
                let variables = plan.models[p].variables().len() as u32;
                let (coefficient, stride, chance, chances_here, replay) = first[p];
                let low = part.low as usize;
                let each = usize::from(stride > 0);
                let unit = |port: usize| plan.units[p].get(port).copied().unwrap_or(0.0) as f32;
                tasks.extend((0..part.count()).step_by(32).map(|i| [(k * n.populations.len() + p) as u32, i]));
                parts = parts
                    .u64(states.address() + 4 * (first_state[p] + low) as u64)
                    .u64(coefficients.address() + 4 * (coefficient + each * low) as u64)
                    .u64(chances.address() + 4 * (chance + usize::from(chances_here > 1) * low) as u64)
                    .u64(replays.address() + 8 * replay as u64)
                    .u64(arrivals.address() + 4 * words as u64)
                    .u32((ends[p] - replay) as u32)
                    .u32(plan.models[p].twin() as u32)
                    .u32(part.count())
                    .u32(part.low)
                    .u32(local)
                    .u32(part.slot)
                    .u32(n.populations[p].size)
                    .u32(stride as u32)
                    .u32(u32::from(chances_here > 1))
                    .u32(n.population_key(p).owner)
                    .u32(ranges[p].0)
                    .u32(ranges[p].1)
                    .f32(unit(0))
                    .f32(unit(1))
                    .u32(near)
                    .u32(near_arrivals)
                    .u32(variables)
                    .u32(n.replica_of(p) as u32);
                let here = &mut numbers[k * config.cells + local as usize..][..part.count() as usize];
                here.iter_mut().zip(part.cells().iter()).for_each(|(number, cell)| *number = cell);
                near += variables * part.count();
                near_arrivals += 2 * part.count() * ranges[p].1;
                local += part.count();
                words += 2 * part.count() as usize * ranges[p].1 as usize;
            }
            first_task.push(tasks.len() as u32);
        }
        held.extend([coefficients, chances, replays, arrivals]);
        let ordered = (0..n.populations.len()).any(|p| layout.order(p).is_some());
        Ok(Self {
            parts: memory.upload(&parts.0)?,
            drives: memory.upload(&drives.0)?,
            tasks: memory.upload(&tasks)?,
            first_task: memory.upload(&first_task)?,
            states,
            first_state,
            numbers: ordered.then(|| memory.upload(&numbers)).transpose()?,
            seeds: seeds(plan, memory)?,
            _held: held,
        })
    }

    /// What `Net` of network.cuh says of seeds.
    pub fn seeds(&self, plan: &Plan) -> u64 {
        seed_or_seeds(plan, &self.seeds)
    }
}

/// Of each replica its seed.
pub(super) fn seeds(plan: &Plan, memory: &Memory) -> Result<DeviceBuffer> {
    memory.upload(&plan.network.replicas.iter().map(|r| r.seed).collect::<Vec<_>>())
}

/// The seed of all draws, or, of kSeeds, where those of the replicas lie.
pub(super) fn seed_or_seeds(plan: &Plan, seeds: &DeviceBuffer) -> u64 {
    if plan.network.has_one_seed() { plan.network.seed } else { seeds.address() }
}
