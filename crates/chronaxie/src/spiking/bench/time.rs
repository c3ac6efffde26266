//! The clock around simulations and around the parts of their steps.

use super::Spiking;
use super::compare;
use super::networks::{Section, Workload};
use crate::bench::{self, Found, NetworkRecord, Options, Record, StepPart, Timing, Whole};
use crate::cuda::{CudaDevice, nvml};
use crate::op::{Case, Cost, Precision};
use crate::progress::{Progress, stop_if_interrupted};
use crate::spiking::Plan;
use crate::spiking::connect::Redraw;
use crate::spiking::models::Kind;
use crate::spiking::record::SpikeHash;
use crate::spiking::simulate::measure::{LEARNING_BYTES, Moved, Part, Runner};
use crate::spiking::simulate::reckon::{Load, Rates, reckoned};
use crate::spiking::simulate::{Spike, cuda, runs};
use crate::{Device, Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Runs that are timed at the least and at the most.
const RUNS: [usize; 2] = [3, 100];
/// Of a part of a step: a run is as many steps as take this long, seconds.
const RUN_SECONDS: f64 = 0.02;
/// Steps of such a run, at the least and at the most.
const RUN_STEPS: [u64; 2] = [64, 1 << 16];

pub(super) enum Outcome {
    /// What differs from the engine that it is held against.
    Differs(String),
    Timed(Box<Measured>),
}

/// What was found of a case.
pub(super) struct Measured {
    family: &'static str,
    pub variant: &'static str,
    pub pass: &'static str,
    pub cost: Cost,
    pub ms: Vec<f64>,
    /// Bytes that are moved, and those of the memory that they lie in: of synapses, and of states.
    memory: [(u64, u64); 2],
    pub peak_bytes: u64,
    pub launches: u64,
    /// What was held against another engine.
    pub checked: Case,
    pub network: NetworkRecord,
}

impl Measured {
    pub fn record(self, case: &Case, device: &Device, options: &Options) -> Result<Record> {
        let sensors = match device {
            Device::Cpu => None,
            Device::Cuda(d) => nvml::read(d),
        };
        let timing = Timing {
            ms: self.ms,
            clock: "call",
            cache: "warm",
            sm_clock_mhz: sensors.and_then(|s| s.sm_clock_mhz),
            power_w: sensors.and_then(|s| s.power_w),
        };
        let found = Found {
            family: self.family,
            case,
            pass: self.pass,
            dtype: "f32".to_owned(),
            precision: Precision::Exact,
            variant: self.variant.to_owned(),
            cost: self.cost,
            timing,
            workspace_bytes: 0,
            peak_bytes: self.peak_bytes,
            launches: self.launches,
            max_error: Some(0.0),
            max_error_case: &self.checked,
            network: Some(self.network),
        };
        let mut ceilings = bench::ceilings(device, false, self.memory[0].1)?;
        // States may lie in nearer caches than synapses do.
        let mut seconds = 0.0;
        for (bytes, touched) in self.memory.iter().filter(|(bytes, _)| *bytes > 0) {
            seconds += *bytes as f64 / bench::ceilings(device, false, *touched)?.bytes_per_s;
        }
        if seconds > 0.0 {
            ceilings.bytes_per_s = self.memory.iter().map(|(bytes, _)| *bytes as f64).sum::<f64>() / seconds;
        }
        Ok(found.record(ceilings, device, &options.provenance))
    }
}

/// The GPUs beside `device`, of `gpus` in all.
pub(crate) fn others(what: impl std::fmt::Display, device: &Device, gpus: usize) -> Result<Vec<Arc<CudaDevice>>> {
    match device {
        _ if gpus <= 1 => Ok(Vec::new()),
        Device::Cpu => Err(Error::config(format!("{what}: gpus={gpus} is of GPUs, not of the CPU"))),
        Device::Cuda(d) => (1..gpus).map(|k| CudaDevice::open(d.index() + k)).collect(),
    }
}

/// Bytes free on a GPU, but for what is kept for later.
fn free(device: &Device) -> Result<Option<u64>> {
    let Device::Cuda(d) = device else { return Ok(None) };
    d.release_cached_memory()?;
    Ok(Some(d.memory_info()?.free))
}

/// Checks a case and times it for about `seconds`.
pub(super) fn measure(
    family: &Spiking,
    case: &Case,
    device: &Device,
    seconds: f64,
    progress: &dyn Progress,
) -> Result<Outcome> {
    let work = (family.workload)(case)?;
    let others = others(format_args!("case `{case}`"), device, work.gpus)?;
    let plan = Plan::new(work.network.clone())?;
    if let Device::Cuda(d) = device {
        // Before minutes are spent on a check.
        let all: Vec<_> = std::iter::once(d).chain(&others).cloned().collect();
        cuda::require_room(&plan, &all)?;
    }
    let refused = |case: &Case, what: String| Outcome::Differs(format!("its check fails on {case}: {what}"));
    let checked = compare::smaller_case(family, case, &plan, device)?;
    if let Some((small, plan)) = &checked {
        let mut runner = Runner::new(plan, device, &[])?;
        if let Some(what) = compare::differs(&mut runner, plan, &mut Vec::new())? {
            return Ok(refused(small, what));
        }
    }
    let before = free(device)?;
    let since = Instant::now();
    let mut runner = Runner::new(&plan, device, &others)?;
    let build_ms = since.elapsed().as_secs_f64() * 1e3;
    let peak_bytes = match (before, device) {
        (Some(before), Device::Cuda(d)) => before.saturating_sub(d.memory_info()?.free),
        _ => plan.bytes(1.0, Redraw::Asked),
    };
    let mut begun = Vec::new();
    let checked = match checked {
        Some((small, _)) => small,
        // The engine that is timed has its first steps checked.
        None => {
            if let Some(what) = compare::differs(&mut runner, &plan, &mut begun)? {
                return Ok(refused(case, what));
            }
            case.clone()
        }
    };
    let mut rig =
        Rig { plan: &plan, work: &work, runner, progress, hash: SpikeHash::default(), moved: Moved::default() };
    rig.discard(begun)?;
    let timed = match work.section {
        Section::All => rig.simulations(seconds)?,
        section => rig.parts(section, seconds)?,
    };
    let Timed { ms, what, run_steps, runs, spikes, events, launches, rates_hz, rate_hz } = timed;
    let steps = (run_steps * runs) as f64;
    let whole = work.section == Section::All;
    let parts = if whole { Vec::new() } else { rig.parts_of_a_step(run_steps, device)? };
    let (memory, flops) = rig.cost(work.section, what == WHOLE_STEP, events, steps);
    let dt = plan.network.dt_ms;
    // Of a second of model time, or of a step.
    let per = if whole { 1e3 / dt } else { 1.0 };
    let times = |x: u64| (x as f64 * per / steps).round() as u64;
    let bytes = times(memory.iter().map(|(bytes, _)| bytes).sum());
    let cost = Cost { bytes, flops: times(flops), special: 0, serial_steps: per.round() as u64 };
    let median = bench::spread(ms.clone()).0;
    let network = NetworkRecord {
        cells: plan.cells(),
        synapses: rig.runner.engine().synapses(),
        dt_ms: dt,
        seed: plan.network.seed,
        timed: what,
        run_ms: run_steps as f64 * dt,
        discard_ms: work.discard_ms,
        build_ms,
        spikes_per_step: spikes as f64 / steps,
        events_per_step: events as f64 / steps,
        spikes: whole.then(|| rig.hash.spikes()),
        spikes_sha256: rig.hash.hex().filter(|_| whole),
        rate_hz,
        rate_in_range: work.rate_hz.zip(rate_hz).map(|([low, high], rate)| (low..=high).contains(&rate)),
        rates_hz,
        real_time_factor: whole.then_some(median * 1e-3),
        replicas: plan.network.replicas.len().max(1),
        real_time_factor_per_replica: whole.then(|| median * 1e-3 / plan.network.replicas.len().max(1) as f64),
        parts,
    };
    Ok(Outcome::Timed(Box::new(Measured {
        family: family.name(),
        variant: rig.runner.engine().variant(),
        pass: if whole { "simulate" } else { "step" },
        cost,
        ms,
        memory,
        peak_bytes,
        launches: if whole { times(launches) } else { 0 },
        checked,
        network,
    })))
}

/// What is timed where an engine has no clocks between the parts of a step.
const WHOLE_STEP: &str = "a whole step";

/// The timed runs.
struct Timed {
    ms: Vec<f64>,
    what: String,
    run_steps: u64,
    runs: u64,
    spikes: u64,
    events: u64,
    launches: u64,
    rates_hz: BTreeMap<String, f64>,
    rate_hz: Option<f64>,
}

struct Rig<'a> {
    plan: &'a Plan,
    work: &'a Workload,
    runner: Runner<'a>,
    progress: &'a dyn Progress,
    hash: SpikeHash,
    /// By the timed runs, on the CPU.
    moved: Moved,
}

impl Rig<'_> {
    fn steps(&self, ms: f64) -> u64 {
        (ms / self.plan.network.dt_ms).round().max(1.0) as u64
    }

    /// Goes on to where timing begins; `begun` are the spikes so far.
    fn discard(&mut self, begun: Vec<Spike>) -> Result<()> {
        let end = self.steps(self.work.discard_ms);
        let mut spikes = begun;
        // A tenth at a time, so that an interruption is heard.
        let piece = end.div_ceil(10);
        loop {
            self.hash.add(&spikes);
            spikes.clear();
            stop_if_interrupted(self.progress, "bench")?;
            let left = end.saturating_sub(self.runner.engine().step()).min(piece);
            if left == 0 {
                return Ok(());
            }
            self.runner.engine().advance(left, &mut spikes)?;
        }
    }

    /// Notes what a timed run moved.
    fn count(&mut self, spikes: &[Spike]) {
        if let Runner::Cpu(engine) = &self.runner {
            let m = engine.moved(spikes);
            self.moved.fixed += m.fixed;
            self.moved.groups += m.groups;
        }
    }

    /// Runs of the same model time, as milliseconds of a second of it.
    fn simulations(&mut self, seconds: f64) -> Result<Timed> {
        let run_steps = self.steps(self.work.run_ms.unwrap_or(1000.0));
        let run_ms = run_steps as f64 * self.plan.network.dt_ms;
        let (events, launches) = (self.runner.engine().events(), self.runner.engine().launches());
        let (mut ms, mut spikes, mut fired) = (Vec::new(), Vec::new(), 0);
        let (mut rates_hz, mut rate_hz) = (BTreeMap::new(), None);
        let mut all = 0.0;
        while ms.len() < RUNS[0] || (all < seconds && ms.len() < RUNS[1]) {
            stop_if_interrupted(self.progress, "bench")?;
            let since = Instant::now();
            self.runner.engine().advance(run_steps, &mut spikes)?;
            let took = since.elapsed().as_secs_f64();
            all += took;
            ms.push(took * 1e6 / run_ms);
            if rate_hz.is_none() {
                self.hash.add(&spikes);
                rates_hz = self.rates(&spikes, run_ms);
                rate_hz = Some(spikes.len() as f64 * 1e3 / run_ms / self.plan.cells() as f64);
            }
            fired += spikes.len() as u64;
            self.count(&spikes);
            spikes.clear();
        }
        let engine = self.runner.engine();
        let (events, launches) = (engine.events() - events, engine.launches() - launches);
        let runs = ms.len() as u64;
        let what = "steps, and spikes to the host".to_owned();
        Ok(Timed { ms, what, run_steps, runs, spikes: fired, events, launches, rates_hz, rate_hz })
    }

    /// Of each population in these spikes, Hz.
    fn rates(&self, spikes: &[Spike], ms: f64) -> BTreeMap<String, f64> {
        let mut counts = vec![0u64; self.plan.network.populations.len()];
        for spike in spikes {
            counts[self.plan.first.partition_point(|first| *first <= u64::from(spike.cell)) - 1] += 1;
        }
        let rate = |n: u64, size: u32| n as f64 * 1e3 / ms / f64::from(size);
        let each = self.plan.network.populations.iter().zip(counts);
        each.map(|(p, n)| (p.name.clone(), rate(n, p.size))).collect()
    }

    /// One run of `steps`: seconds of the section, and what they are of.
    fn section(&mut self, section: Section, steps: u64, spikes: &mut Vec<Spike>) -> Result<(f64, String)> {
        let since = Instant::now();
        match &mut self.runner {
            Runner::Cpu(engine) => {
                let which: &[Part] = match section {
                    Section::Update => &[Part::Update],
                    Section::Learning => &[Part::Learning, Part::Delivery],
                    _ => &[Part::Delivery],
                };
                let parts = engine.advance_timed(steps, spikes)?;
                let names: Vec<&str> = which.iter().map(|p| p.name()).collect();
                Ok((which.iter().map(|p| parts.of(*p)).sum(), names.join(" + ")))
            }
            Runner::Cuda(engine) => {
                // Cells and learning are nearly all of a step of their families' networks, which is timed as a whole, so that it stays
                // what it has been held against; its parts are timed beside.
                let clocked = section == Section::Delivery;
                let shares = if clocked { engine.advance_in_parts(steps, spikes)? } else { None };
                if let Some(shares) = shares {
                    let took = since.elapsed().as_secs_f64();
                    // A phase ends when the block's last warp is through.
                    let phase = |name: &str| cuda::parts::OF_DELIVERY.contains(&name);
                    let (names, parts): (Vec<&str>, Vec<f64>) = shares.into_iter().filter(|(n, _)| phase(n)).unzip();
                    return Ok((took * parts.iter().sum::<f64>(), names.join(" + ")));
                }
                let since = Instant::now();
                engine.advance(steps, spikes)?;
                Ok((since.elapsed().as_secs_f64(), WHOLE_STEP.to_owned()))
            }
        }
    }

    /// Runs of a part of the steps, as milliseconds of a step.
    fn parts(&mut self, section: Section, seconds: f64) -> Result<Timed> {
        let mut spikes = Vec::new();
        // Draws are made for four steps at a time, and threads meet once every shortest delay: runs hold whole ones of both.
        let unit = 4 * u64::from(self.plan.min_delay).clamp(1, 64);
        let given = self.work.run_ms.map(|ms| self.steps(ms));
        let mut steps = given.unwrap_or(RUN_STEPS[0].next_multiple_of(unit));
        // What the kernel with clocks needs once is not timed either.
        loop {
            let since = Instant::now();
            self.section(section, steps, &mut spikes)?;
            spikes.clear();
            if given.is_some()
                || since.elapsed().as_secs_f64() > RUN_SECONDS / 2.0 && steps > RUN_STEPS[0].max(unit)
                || steps >= RUN_STEPS[1]
            {
                break;
            }
            steps *= 2;
        }
        let events = self.runner.engine().events();
        let (mut ms, mut fired, mut what) = (Vec::new(), 0, String::new());
        let since = Instant::now();
        while ms.len() < RUNS[0] || (since.elapsed().as_secs_f64() < seconds && ms.len() < RUNS[1]) {
            stop_if_interrupted(self.progress, "bench")?;
            let (took, of) = self.section(section, steps, &mut spikes)?;
            ms.push(took * 1e3 / steps as f64);
            what = of;
            fired += spikes.len() as u64;
            self.count(&spikes);
            spikes.clear();
        }
        let events = self.runner.engine().events() - events;
        let (runs, rates_hz) = (ms.len() as u64, BTreeMap::new());
        Ok(Timed { ms, what, run_steps: steps, runs, spikes: fired, events, launches: 0, rates_hz, rate_hz: None })
    }

    /// All parts of a step on a GPU, of some runs of `steps` with clocks between them, which are not timed otherwise.
    fn parts_of_a_step(&mut self, steps: u64, device: &Device) -> Result<Vec<StepPart>> {
        let (Runner::Cuda(engine), Device::Cuda(device)) = (&mut self.runner, device) else { return Ok(Vec::new()) };
        let firsts = &self.plan.first[..self.plan.models.len()];
        let (mut spikes, mut fired, mut shares) = (Vec::new(), vec![0u64; firsts.len()], Vec::new());
        let (events, since) = (engine.events(), Instant::now());
        for _ in 0..RUNS[0] {
            let Some(here) = engine.advance_in_parts(steps, &mut spikes)? else { return Ok(Vec::new()) };
            shares.push(here);
            runs(&spikes, firsts).for_each(|(p, run)| fired[p] += run.len() as u64);
            spikes.clear();
        }
        let all = (RUNS[0] as u64 * steps) as f64;
        let step_us = since.elapsed().as_secs_f64() * 1e6 / all;
        let spikes = fired.iter().map(|n| *n as f64 / all).collect();
        let load = Load { spikes, events: (engine.events() - events) as f64 / all };
        Ok(reckoned(&**engine, &shares, step_us, &load, &Rates::of(device, self.work.gpus)?))
    }

    /// What all timed steps move at the least, of synapses and of states, with the bytes of the memory that each lie in; and what
    /// they multiply and add.
    fn cost(&mut self, section: Section, whole_step: bool, events: u64, steps: f64) -> ([(u64, u64); 2], u64) {
        let moved = self.moved;
        let engine = self.runner.engine();
        let (synapse, update) = (engine.synapse_bytes(), engine.update_bytes());
        let stored = synapse.unwrap_or(4.0) * engine.synapses() as f64;
        let delivery = match &self.runner {
            Runner::Cpu(engine) => {
                // A synapse is a word, or two where weights have 32 bits; a group of them of one delay is two of the calendar.
                engine.word() * events + LEARNING_BYTES * (events - moved.fixed.min(events)) + 8 * moved.groups
            }
            Runner::Cuda(_) => (events as f64 * synapse.unwrap_or(12.0)) as u64,
        };
        let updates = (self.update_flops() as f64 * steps) as u64;
        let states = (update as f64 * steps) as u64;
        let (delivery, states) = ((delivery, stored as u64), (states, update));
        match section {
            Section::Update if !whole_step => ([states, (0, 0)], updates),
            Section::Delivery | Section::Learning if !whole_step => ([delivery, (0, 0)], events),
            _ => ([delivery, states], events + updates),
        }
    }

    /// Multiplications and additions of a step of all cells: of `lif_exp` two for each of its exponentials and two for its current.
    fn update_flops(&self) -> u64 {
        let each = |(p, m): (usize, &&'static dyn crate::spiking::models::Model)| {
            let cells = u64::from(self.plan.network.populations[p].size);
            if m.kind() == Kind::Dynamics { cells * (2 + 4 * m.ports().len() as u64) } else { 0 }
        };
        self.plan.models.iter().enumerate().map(each).sum()
    }
}
