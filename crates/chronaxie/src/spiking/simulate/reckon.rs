//! What the parts of a step on GPUs should take: by the bytes that they move, by their instructions, and by the trips that follow each other.

use super::Engine;
use crate::bench::{self, StepPart};
use crate::cuda::CudaDevice;
use crate::{Device, Result};
use std::sync::Arc;

/// Below this share of the measured time, nothing that was reckoned explains it.
pub(crate) const EXPLAINS: f64 = 0.5;
/// Instructions of lanes that a multiprocessor begins in a clock: of four warps.
const LANES: f64 = 128.0;

/// What fires in a step and is delivered, on the average.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    /// Spikes, by population.
    pub spikes: Vec<f64>,
    /// Synapses that they go through.
    pub events: f64,
}

/// What a part of a step on GPUs works on and moves, as far as it can be reckoned: of all GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct PartCost {
    /// How many there are a step of what the part works on.
    pub count: f64,
    /// What those are.
    pub of: &'static str,
    /// Bytes that it moves, at the least; none where they are not reckoned, or it moves none.
    pub bytes: Option<f64>,
    /// Those of them that no cache holds.
    pub from_memory: f64,
    /// Instructions of all lanes; none where nobody counted them. Where some were not, those that were.
    pub instructions: Option<f64>,
    /// Microseconds of the trips that follow each other.
    pub latency_us: Option<f64>,
    /// What binds it where nothing of this explains its time.
    pub otherwise: &'static str,
}

impl PartCost {
    pub(super) fn of(count: f64, of: &'static str, otherwise: &'static str) -> Self {
        Self { count, of, otherwise, ..Self::default() }
    }
    /// So many more, of `touched` bytes, which come from memory where a cache of `cache` does not hold them.
    pub(super) fn bytes(self, bytes: f64, touched: f64, cache: f64) -> Self {
        if bytes <= 0.0 {
            return self;
        }
        let from_memory = self.from_memory + if touched > cache { bytes } else { 0.0 };
        Self { bytes: Some(self.bytes.unwrap_or(0.0) + bytes), from_memory, ..self }
    }
    /// So many more, if there are any.
    pub(super) fn instructions(self, more: f64) -> Self {
        let all = self.instructions.unwrap_or(0.0) + more;
        Self { instructions: (all > 0.0).then_some(all), ..self }
    }
    pub(super) fn latency(self, us: f64) -> Self {
        Self { latency_us: (us > 0.0).then_some(us), ..self }
    }
}

/// What GPUs do in a second, all together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rates {
    pub bytes: f64,
    pub instructions: f64,
    /// Where these come from.
    pub source: String,
}

impl Rates {
    /// Of `gpus` alike.
    pub fn of(device: &Arc<CudaDevice>, gpus: usize) -> Result<Self> {
        let memory = bench::ceilings(&Device::Cuda(device.clone()), false, 1 << 30)?;
        let props = device.props();
        let instructions = f64::from(props.sm_count) * LANES * f64::from(props.clock_khz.max(1)) * 1e3;
        Ok(Self {
            bytes: gpus as f64 * memory.bytes_per_s,
            instructions: gpus as f64 * instructions,
            source: format!(
                "{}, where no cache holds the bytes; four warps a clock and multiprocessor at {:.2} GHz, where instructions were counted; two \
                 trips to the second cache a meeting. An empty ceiling is not reckoned",
                memory.source,
                f64::from(props.clock_khz) * 1e-6
            ),
        })
    }
}

/// The parts of a step, by the shares that an engine's clocks gave in each of some windows.
pub(crate) fn reckoned(
    engine: &dyn Engine,
    shares: &[Vec<(&'static str, f64)>],
    step_us: f64,
    load: &Load,
    rates: &Rates,
) -> Vec<StepPart> {
    let Some(first) = shares.first() else { return Vec::new() };
    let medians: Vec<f64> =
        (0..first.len()).map(|k| bench::spread(shares.iter().map(|s| s[k].1).collect()).0).collect();
    // Medians of shares are none that add up.
    let all = medians.iter().sum::<f64>().max(1e-12);
    let part = |((what, _), share): (&(&'static str, f64), f64)| {
        let (share, cost) = (share / all, engine.part_cost(what, load));
        let us = share * step_us;
        let memory_us = (cost.from_memory > 0.0).then_some(1e6 * cost.from_memory / rates.bytes);
        let compute_us = cost.instructions.map(|n| 1e6 * n / rates.instructions);
        let floors = [("memory", memory_us), ("compute", compute_us), ("latency", cost.latency_us)];
        let longest = floors.into_iter().filter_map(|(name, us)| Some((name, us?))).max_by(|a, b| a.1.total_cmp(&b.1));
        let bound = longest.filter(|(_, floor)| *floor >= EXPLAINS * us).map_or(cost.otherwise, |(name, _)| name);
        StepPart {
            what: (*what).to_owned(),
            us,
            share: Some(share),
            bytes: cost.bytes,
            memory_us,
            compute_us,
            latency_us: cost.latency_us,
            count: cost.count,
            of: cost.of.to_owned(),
            bound: bound.to_owned(),
        }
    };
    first.iter().zip(medians).map(part).filter(|p| p.us > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spiking::simulate::{Spike, State, Weights};

    /// An engine that knows what its parts cost.
    struct Known(Vec<(&'static str, PartCost)>);

    impl Engine for Known {
        fn step(&self) -> u64 {
            0
        }
        fn advance(&mut self, _: u64, _: &mut Vec<Spike>) -> Result<()> {
            Ok(())
        }
        fn part_cost(&self, part: &str, _: &Load) -> PartCost {
            self.0.iter().find(|(name, _)| *name == part).map_or_else(PartCost::default, |(_, cost)| *cost)
        }
        fn state(&self) -> Result<State> {
            Err(crate::Error::value("none"))
        }
        fn restore(&mut self, _: &State) -> Result<()> {
            Ok(())
        }
        fn cell(&self, _: usize, _: u32) -> Result<Vec<f32>> {
            Ok(Vec::new())
        }
        fn synapses(&self) -> u64 {
            0
        }
        fn weights(&self) -> Result<Vec<Weights>> {
            Ok(Vec::new())
        }
        fn table(&self, _: usize) -> Result<crate::spiking::connect::Synapses> {
            Err(crate::Error::value("none"))
        }
        fn events(&self) -> u64 {
            0
        }
        fn config(&self) -> String {
            String::new()
        }
        fn variant(&self) -> &'static str {
            "known"
        }
    }

    /// The longest of what was reckoned binds, if it explains half of the time; else what the part says.
    #[test]
    fn a_part_is_bound_by_what_explains_its_time() {
        let cost = |otherwise| PartCost::of(3.0, "cells", otherwise);
        let engine = Known(vec![
            ("bytes", cost("latency").bytes(100.0, 10.0, 9.0).instructions(10.0).latency(1.0)),
            ("cached", cost("latency").bytes(100.0, 10.0, 10.0)),
            ("instructions", cost("not reckoned").bytes(10.0, 10.0, 9.0).instructions(100.0)),
            ("trips", cost("host").latency(100.0)),
            ("few", cost("not reckoned").bytes(10.0, 10.0, 9.0)),
        ]);
        // A byte and an instruction a microsecond.
        let rates = Rates { bytes: 1e6, instructions: 1e6, source: String::new() };
        let names = ["bytes", "cached", "instructions", "trips", "few", "nothing"];
        let share = |name: &'static str| (name, if name == "nothing" { 0.0 } else { 0.2 });
        let window = names.map(share).to_vec();
        let parts = reckoned(&engine, &[window.clone(), window], 750.0, &Load::default(), &rates);
        let bounds: Vec<_> = parts.iter().map(|p| (p.what.as_str(), p.bound.as_str())).collect();
        let want = [("bytes", "memory"), ("cached", "latency"), ("instructions", "compute"), ("trips", "latency")];
        assert_eq!((&bounds[..4], bounds[4..].to_vec()), (&want[..], vec![("few", "not reckoned")]));
        assert!(parts.iter().all(|p| (p.us - 150.0).abs() < 1e-9 && p.count == 3.0), "{parts:?}");
        let reckoned = |k: usize| (parts[k].bytes, parts[k].memory_us, parts[k].compute_us, parts[k].latency_us);
        assert_eq!(reckoned(0), (Some(100.0), Some(100.0), Some(10.0), Some(1.0)));
        assert_eq!(reckoned(1), (Some(100.0), None, None, None));
        assert!((parts.iter().filter_map(|p| p.share).sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
