//! What a step of a network costs, part by part where the engine has clocks between them, on a GPU else as a whole.
//!
//! Windows of steps run in turn in three ways, so that what else a machine does falls on all alike: alone, with the spikes of
//! the window before being hashed and written by a thread beside, as `simulate` does it, and with clocks between the parts of a
//! step.

use super::run::fingerprint;
use crate::bench::{self, StepPart, Whole};
use crate::config::Config;
use crate::op::Case;
use crate::spiking::bench::{Spiking, others};
use crate::spiking::network::read::read;
use crate::spiking::record::{SpikeHash, SpikeLog};
use crate::spiking::simulate::measure::{LEARNING_BYTES, Moved, Part, Parts, Runner, addition_ns};
use crate::spiking::simulate::reckon::{EXPLAINS, Load, Rates, reckoned};
use crate::spiking::simulate::{CpuEngine, Engine, Spike, runs};
use crate::spiking::{Network, Plan};
use crate::{Device, Error, Result};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Whether a configuration describes a network, and no training.
pub fn is_network(config: &Config) -> bool {
    let root = config.root();
    ["population", "simulation", "lattice_shape"].iter().any(|key| root.contains(key))
}

/// What a step of a network costs on a device. Times are medians of windows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NetworkReport {
    /// The configuration's file, or the family and its case.
    pub config: String,
    /// `cpu`, `cuda:0`, ...
    pub backend: String,
    /// How the network was cut for it.
    pub engine: String,
    /// How many cells.
    pub cells: u64,
    /// How many synapses.
    pub synapses: u64,
    /// A step, ms.
    pub dt_ms: f64,
    /// Threads that step the network on the CPU.
    pub threads: Option<usize>,
    /// The windows that were timed in each way.
    pub windows: usize,
    /// Steps of a window.
    pub window_steps: u64,
    /// The windows begin after this model time, ms.
    pub from_ms: f64,
    /// What fires in a step.
    pub spikes_per_step: f64,
    /// Synapses that are delivered in a step.
    pub events_per_step: f64,
    /// Making the network, ms, once.
    pub build_ms: f64,
    /// Reading the whole state from the device, ms, once, as a checkpoint does.
    pub state_ms: f64,
    /// Bytes of states.
    pub state_bytes: u64,
    /// A step by the wall clock, with nothing recorded. On a GPU this is the whole kernel with its launches, and the spikes' way to
    /// the host and their ordering as far as the next chunk does not hide them.
    pub step_us: f64,
    /// Likewise while the spikes of the window before are hashed and written to a file on a thread beside.
    pub recorded_us: f64,
    /// On one GPU a step of a graph of launches of one step each, without the spikes' way to the host; none elsewhere, and where synapses
    /// change.
    pub replayed_us: Option<f64>,
    /// Wall time over model time, of `step_us`.
    pub real_time_factor: f64,
    /// The parts of a step, which follow each other; on a GPU those of every fourth warp of each block, as shares of `step_us`, and none
    /// where there is no compiler for the kernel with clocks.
    pub parts: Vec<StepPart>,
    /// Their sum: a step with the clock between its parts.
    pub parts_us: f64,
    /// What is done beside the steps: spikes are hashed and written; on a GPU, copied to the host.
    pub beside: Vec<StepPart>,
    /// What a step cannot fall below on this device, us, where that is known.
    pub floor_us: Option<f64>,
    /// The part that takes longest, or the kernel, and what binds it.
    pub binds: String,
    /// The verdict in a sentence, with its figures.
    pub verdict: String,
    /// Where the ceilings come from.
    pub ceilings: String,
}

/// How long the windows of each way take together, about.
const SECONDS: f64 = 1.0;
/// Windows of each way.
const WINDOWS: usize = 11;

/// A log of spikes that is gone when the profile ends.
struct Scratch(PathBuf);
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What the windows took, seconds a step each.
#[derive(Default)]
struct Windows {
    alone: Vec<f64>,
    recorded: Vec<f64>,
    hashed: Vec<f64>,
    written: Vec<f64>,
    parts: Vec<Parts>,
    /// Of the resident kernel: what a warp of each block does, and the share of each.
    shares: Vec<Vec<(&'static str, f64)>>,
    spikes: u64,
    /// Of each population, on a GPU.
    fired: Vec<u64>,
    moved: Moved,
    steps: u64,
}

/// Profiles a step of the network of `config` on `device`, or on `gpus` GPUs from it on, after the time that the configuration discards.
///
/// # Errors
/// What [`run`](super::run()) refuses of the configuration; `Io`, where spikes cannot be written to the folder of temporary files.
pub fn profile(config: &Config, device: &Device, gpus: usize) -> Result<NetworkReport> {
    let settings = read(config)?;
    profile_of(config.path().display().to_string(), settings.network, settings.discard_ms, (device, gpus))
}

/// Likewise, of a case of a family of `bench`.
///
/// # Errors
/// What the family refuses of the case; of the network and the device as [`profile`].
pub fn profile_case(family: &Spiking, case: &Case, device: &Device) -> Result<NetworkReport> {
    let (network, discard_ms, gpus) = family.network(case)?;
    profile_of(format!("{} {case}", family.name()), network, discard_ms, (device, gpus))
}

fn profile_of(
    config: String,
    network: Network,
    discard_ms: f64,
    (device, gpus): (&Device, usize),
) -> Result<NetworkReport> {
    if let Device::Cuda(d) = device {
        d.require_compiler()?;
    }
    // Steps between two deaths are those of cells that do not die.
    let plan = Plan::new(Network { lifecycle: None, ..network })?;
    let since = Instant::now();
    let mut runner = Runner::new(&plan, device, &others(&config, device, gpus)?)?;
    let build_ms = since.elapsed().as_secs_f64() * 1e3;
    let dt = plan.network.dt_ms;
    let discard = (discard_ms / dt).round().clamp(0.0, 1e9) as u64;
    let window = warm(&mut runner, &plan, discard)?;
    let from_ms = runner.engine().step() as f64 * dt;
    let name = format!("chronaxie-profile-{}-{:02x?}.log", std::process::id(), &fingerprint(&plan.network)[..4]);
    let file = Scratch(std::env::temp_dir().join(name.replace(['[', ']', ',', ' '], "")));
    let (events, found) = timed(&mut runner, &plan, window, &file)?;
    let since = Instant::now();
    let variables = runner.engine().variables()?;
    let state_ms = since.elapsed().as_secs_f64() * 1e3;
    let state_bytes: usize = variables.iter().flatten().map(|v| 4 * v.len()).sum();
    let steps = found.steps as f64;
    let (spikes, events) = (found.spikes as f64 / steps, events as f64 / steps);
    let replayed_us = replayed(&mut runner, window)?;
    let step_us = 1e6 * bench::spread(found.alone.clone()).0;
    let floor_us = runner.engine().floor_us();
    let mut beside = vec![
        of_spikes("hashing them (beside the steps)", &found.hashed, spikes, 16.0, "compute"),
        of_spikes("writing them (beside the steps)", &found.written, spikes, 12.0, "files"),
    ];
    if let Device::Cuda(d) = device {
        let (bytes, rate) = (8.0 * spikes, bench::transfer_bytes_per_s(d)?);
        let seconds = [bytes / rate];
        let mut copy = of_spikes("copying them to the host (computed)", &seconds, spikes, 8.0, "transfers");
        copy.memory_us = Some(copy.us);
        beside.push(copy);
    }
    let (parts, ceilings) = match &runner {
        Runner::Cpu(engine) => parts(engine, &plan, &found, device)?,
        Runner::Cuda(engine) => {
            let Device::Cuda(d) = device else { return Err(Error::value("a GPU's engine without one")) };
            let load = Load { spikes: found.fired.iter().map(|n| *n as f64 / steps).collect(), events };
            let rates = Rates::of(d, gpus)?;
            (reckoned(&**engine, &found.shares, step_us, &load, &rates), rates.source)
        }
    };
    let parts_us = parts.iter().map(|p| p.us).sum();
    let (binds, verdict) = judge(&parts, parts_us, step_us, floor_us);
    let threads = match &runner {
        Runner::Cpu(engine) => Some(engine.threads()),
        Runner::Cuda(_) => None,
    };
    let engine = runner.engine();
    Ok(NetworkReport {
        config,
        backend: device.place().to_string(),
        engine: engine.config(),
        cells: plan.cells(),
        synapses: engine.synapses(),
        dt_ms: dt,
        threads,
        windows: found.alone.len(),
        window_steps: window,
        from_ms,
        spikes_per_step: spikes,
        events_per_step: events,
        build_ms,
        state_ms,
        state_bytes: state_bytes as u64,
        step_us,
        recorded_us: 1e6 * bench::spread(found.recorded.clone()).0,
        replayed_us,
        real_time_factor: step_us * 1e-3 / dt,
        parts,
        parts_us,
        beside,
        floor_us,
        binds,
        verdict,
        ceilings,
    })
}

/// Runs until `discard`, or for a second, and says how many steps a window has: draws are made for four steps at a time, and
/// threads meet once every shortest delay, so windows hold whole ones of both.
fn warm(runner: &mut Runner<'_>, plan: &Plan, discard: u64) -> Result<u64> {
    let unit = 4 * u64::from(plan.min_delay).clamp(1, 64);
    let mut spikes = Vec::new();
    let mut steps = unit;
    let since = Instant::now();
    loop {
        let begun = Instant::now();
        runner.engine().advance(steps, &mut spikes)?;
        spikes.clear();
        let (took, all) = (begun.elapsed().as_secs_f64(), since.elapsed().as_secs_f64());
        let enough = took > 0.4 * SECONDS / WINDOWS as f64 || steps >= 1 << 20;
        if enough && (runner.engine().step() >= discard || all > SECONDS) || all > 4.0 * SECONDS {
            return Ok(steps);
        }
        if !enough {
            steps *= 2;
        }
    }
}

/// The windows, and the deliveries of all of them.
fn timed(runner: &mut Runner<'_>, plan: &Plan, window: u64, file: &Scratch) -> Result<(u64, Windows)> {
    let (mut found, mut spikes, mut waiting) = (Windows::default(), Vec::new(), Vec::new());
    found.fired = vec![0; plan.models.len()];
    let (mut hash, mut log) = (SpikeHash::default(), SpikeLog::open(&file.0, 0)?);
    let events = runner.engine().events();
    let per_step = |seconds: f64| seconds / window as f64;
    let since = Instant::now();
    let count = |spikes: &[Spike], runner: &Runner<'_>, found: &mut Windows| {
        found.spikes += spikes.len() as u64;
        found.steps += window;
        match runner {
            Runner::Cpu(engine) => {
                let m = engine.moved(spikes);
                let all = &mut found.moved;
                (all.fixed, all.rows, all.groups) = (all.fixed + m.fixed, all.rows + m.rows, all.groups + m.groups);
            }
            Runner::Cuda(_) => {
                runs(spikes, &plan.first[..plan.models.len()]).for_each(|(p, run)| found.fired[p] += run.len() as u64);
            }
        }
    };
    for round in 0..WINDOWS {
        if round >= 3 && since.elapsed().as_secs_f64() > 6.0 * SECONDS {
            break;
        }
        let begun = Instant::now();
        runner.engine().advance(window, &mut spikes)?;
        found.alone.push(per_step(begun.elapsed().as_secs_f64()));
        count(&spikes, runner, &mut found);
        std::mem::swap(&mut spikes, &mut waiting);
        spikes.clear();
        // Of the spikes of the window before, as a run does it.
        let begun = Instant::now();
        let booked = std::thread::scope(|scope| {
            let mut hash = || {
                let begun = Instant::now();
                hash.add(&waiting);
                begun.elapsed().as_secs_f64()
            };
            let mut write = || {
                let begun = Instant::now();
                log.add(&waiting).map(|()| begun.elapsed().as_secs_f64())
            };
            // Beside a GPU on a thread each.
            let two = matches!(runner, Runner::Cuda(_));
            let book = scope.spawn(move || {
                if !two {
                    return Ok((hash(), write()?));
                }
                std::thread::scope(|scope| {
                    let written = scope.spawn(write);
                    let hashed = hash();
                    let written = written.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    written.map(|written| (hashed, written))
                })
            });
            let ran = runner.engine().advance(window, &mut spikes);
            let booked = book.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ran.and(booked)
        });
        let (hashed, written) = booked?;
        found.recorded.push(per_step(begun.elapsed().as_secs_f64()));
        found.hashed.push(per_step(hashed));
        found.written.push(per_step(written));
        count(&spikes, runner, &mut found);
        spikes.clear();
        match runner {
            Runner::Cpu(engine) => found.parts.push(engine.advance_timed(window, &mut spikes)?),
            Runner::Cuda(engine) => match engine.advance_in_parts(window, &mut spikes)? {
                Some(shares) => found.shares.push(shares),
                None => continue,
            },
        }
        count(&spikes, runner, &mut found);
        spikes.clear();
    }
    let events = runner.engine().events() - events;
    found.moved.changing = events.saturating_sub(found.moved.fixed);
    Ok((events, found))
}

/// The most steps of a graph.
const GRAPH_STEPS: u64 = 512;

/// Microseconds a step as a graph of launches: the median of some windows.
fn replayed(runner: &mut Runner<'_>, window: u64) -> Result<Option<f64>> {
    let steps = window.min(GRAPH_STEPS);
    let mut took = Vec::new();
    for _ in 0..WINDOWS {
        let Some(seconds) = runner.engine().replay(steps)? else { return Ok(None) };
        took.push(1e6 * seconds / steps as f64);
    }
    Ok(Some(bench::spread(took).0))
}

fn of_spikes(what: &str, seconds: &[f64], spikes: f64, bytes: f64, bound: &str) -> StepPart {
    StepPart {
        what: what.to_owned(),
        us: 1e6 * bench::spread(seconds.to_vec()).0,
        share: None,
        bytes: Some(bytes * spikes),
        memory_us: None,
        compute_us: None,
        latency_us: None,
        count: spikes,
        of: "spikes".to_owned(),
        bound: bound.to_owned(),
    }
}

/// The parts of a step on the CPU, with what they move and what binds them; and where the ceilings come from.
fn parts(engine: &CpuEngine<'_>, plan: &Plan, found: &Windows, device: &Device) -> Result<(Vec<StepPart>, String)> {
    let steps = found.steps as f64;
    let [fixed, changing, rows, groups] =
        [found.moved.fixed, found.moved.changing, found.moved.rows, found.moved.groups].map(|n| n as f64 / steps);
    let spikes = found.spikes as f64 / steps;
    let [update, drives] = engine.resident_bytes();
    let threads = engine.threads() as f64;
    // What is stored of synapses, of which a step reads rows from anywhere.
    let word = engine.word();
    let store = word * engine.synapses();
    let heads = 16 * plan.cells() * engine.shards().count() as u64;
    let addition = addition_ns(engine.slots(), fixed / groups.max(1e-9));
    let window = found.steps as f64 / (3 * found.alone.len()).max(1) as f64;
    let mut source = String::new();
    let mut list = Vec::new();
    let sum: f64 = Part::ALL.iter().map(|p| median(found, *p)).sum();
    for part in Part::ALL {
        let us = 1e6 * median(found, part) / window;
        // Bytes, the memory that they lie in, and what is counted.
        let (bytes, touched, count, of) = match part {
            // A synapse is a word; one that changes has left one in a bucket. A group of them is a word of the calendar.
            Part::Delivery => {
                (word as f64 * fixed + 4.0 * changing + 8.0 * groups, store, fixed + changing, "synapses")
            }
            Part::Learning => (LEARNING_BYTES as f64 * changing, store, changing, "synapses"),
            Part::Drives => (drives as f64, drives, engine.draws() as f64, "draws"),
            Part::Update => (update as f64, update, plan.cells() as f64, "cells"),
            // A spike in the mail, the heads of its rows, and their groups, noted in the calendar.
            Part::Exchange => (16.0 * spikes + 32.0 * rows + 12.0 * groups, heads, groups, "groups"),
            Part::Ordering => (32.0 * spikes, 32 * (spikes * window) as u64, spikes, "spikes"),
            _ => (0.0, 0, threads, "threads"),
        };
        let mut memory_us = None;
        if bytes > 0.0 {
            let ceilings = bench::ceilings(device, false, touched)?;
            memory_us = Some(1e6 * bytes / ceilings.bytes_per_s);
            source = ceilings.source;
        }
        let explained = memory_us.is_some_and(|m| m >= EXPLAINS * us);
        let bound = match part {
            Part::Waiting | Part::Threads => "threads",
            _ if explained => "memory",
            Part::Delivery if addition * 1e-3 * fixed / threads >= EXPLAINS * us => "additions",
            Part::Delivery | Part::Exchange | Part::Learning => "latency",
            _ => "compute",
        };
        list.push(StepPart {
            what: part.name().to_owned(),
            us,
            share: Some(1e6 * median(found, part) / (1e6 * sum).max(1e-12)),
            bytes: (bytes > 0.0).then_some(bytes),
            memory_us,
            compute_us: None,
            latency_us: None,
            count,
            of: of.to_owned(),
            bound: bound.to_owned(),
        });
    }
    // What no network of this kind has is left out.
    list.retain(|p| p.us > 0.0 || p.count > 0.0);
    Ok((list, format!("{source}; an addition to sums in the caches takes {addition:.2} ns")))
}

/// Seconds of a part in a window.
fn median(found: &Windows, part: Part) -> f64 {
    bench::spread(found.parts.iter().map(|p| p.of(part).max(0.0)).collect()).0
}

fn judge(parts: &[StepPart], parts_us: f64, step_us: f64, floor_us: Option<f64>) -> (String, String) {
    if let Some(p) = parts.iter().max_by(|a, b| a.us.total_cmp(&b.us)) {
        let alone = match (p.bytes, p.memory_us) {
            (Some(bytes), Some(us)) => format!("; its {bytes:.0} bytes alone would take {us:.2} us"),
            _ => String::new(),
        };
        let share = 100.0 * p.us / parts_us.max(1e-12);
        let verdict = format!(
            "the longest part is {}, {:.2} us of {parts_us:.2} ({share:.0} %); {} binds it{alone}",
            p.what, p.us, p.bound
        );
        return (format!("{}: {}", p.what, p.bound), verdict);
    }
    let Some(floor) = floor_us else { return ("latency".into(), format!("a step takes {step_us:.2} us")) };
    let binds = if floor >= EXPLAINS * step_us { "memory" } else { "latency" };
    let share = 100.0 * floor / step_us.max(1e-12);
    let verdict = format!(
        "{binds} binds: the bytes of its synapses and two trips to the second cache alone take {floor:.2} us of {step_us:.2} ({share:.0} %)"
    );
    (binds.into(), verdict)
}

/// Refuses sizes of a case, which a network has none of.
///
/// # Errors
/// `Config`.
pub fn refuse_case(case: &crate::op::Case) -> Result<()> {
    Err(Error::config(format!("case `{case}`: a network has no cases; --set simulation.scale=0.1 makes a smaller one")))
}
