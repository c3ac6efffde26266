//! One simulation, from a configuration to a folder.

use super::gpus::{check_method, devices, on_gpus, words};
use super::parts::{PartsOptions, Team};
use super::pictures;
use crate::bench::Provenance;
use crate::config::Config;
use crate::data::sha256_hex;
use crate::progress::Progress;
use crate::report::{RunFolder, RunRecord, RunStatus, utc};
use crate::spiking::metrics::{Gatherer, Statistics};
use crate::spiking::network::read::{Settings, read};
use crate::spiking::record::{SpikeHash, SpikeLog, TraceLog, traces};
use crate::spiking::simulate::{Checkpoint, CpuEngine, Engine, Spike, Weights, pace};
use crate::spiking::{Network, Plan};
use crate::{Backend, Device, Error, ErrorKind, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// The checkpoint in a run's folder.
const STATE: &str = "checkpoint/state.bin";
/// The spikes so far, in a run's folder.
const LOG: &str = "checkpoint/spikes.log";

/// Where and how to run a configuration.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunOptions {
    /// The folder that the run is written to: new or empty, or that of the checkpoint.
    pub out: PathBuf,
    /// What to run on.
    pub backend: Backend,
    /// GPUs to share the network among, from 0 on; `None` for the one of the backend.
    pub gpus: Option<usize>,
    /// How GPUs share it: `auto`, or the name of a partitioner.
    pub method: String,
    /// Whether to go on from the checkpoint in `out`.
    pub resume: bool,
    /// How the network is shared out among processes, if it is.
    pub parts: Option<PartsOptions>,
    /// The program's arguments, for `run.json`.
    pub arguments: Vec<String>,
    /// What is known of the build, for `run.json`.
    pub provenance: Provenance,
}

impl RunOptions {
    /// A new run into `out`.
    pub fn new(out: impl Into<PathBuf>) -> Self {
        let provenance = Provenance::default();
        let (out, backend) = (out.into(), Backend::Auto);
        let (gpus, method, parts) = (None, "auto".into(), None);
        Self { out, backend, gpus, method, resume: false, parts, arguments: Vec::new(), provenance }
    }
    /// From the checkpoint at `path`: the file, or the folder of its run.
    ///
    /// # Errors
    /// `Checkpoint`, where there is none.
    pub fn resume_from(path: &Path) -> Result<Self> {
        let folder = if path.is_dir() { Some(path) } else { path.parent().and_then(Path::parent) };
        let folder = match folder {
            Some(folder) if folder.as_os_str().is_empty() => Some(Path::new(".")),
            other => other,
        };
        let Some(folder) = folder.filter(|f| f.join(STATE).is_file()) else {
            return Err(Error::checkpoint(format!("{} is no run with a {STATE} to go on from", path.display())));
        };
        Ok(Self { resume: true, ..Self::new(folder) })
    }
}

/// What a run came to; `Serialize` gives the JSON object that `simulate` ends with.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Model time, ms.
    pub model_ms: f64,
    /// Wall time of the steps of this process, ms; building and files are not in it.
    pub wall_ms: f64,
    /// Wall time over model time, of the steps of this process.
    pub real_time_factor: f64,
    /// All spikes.
    pub spikes: u64,
    /// SHA-256 over u64 step and u64 cell of all spikes, sorted.
    pub spikes_sha256: String,
    /// Wall time of making the network, ms.
    pub build_ms: f64,
    /// `cpu` or `cuda:N`.
    pub backend: String,
    /// How many GPUs share the network, from that one on; 0 on the CPU.
    pub gpus: usize,
    /// How the network was cut for it.
    pub engine: String,
    /// What the real-time factor cannot fall below on this device, by the bytes of the run's events and the trips between its
    /// multiprocessors; nothing where that is not known.
    pub floor_real_time_factor: Option<f64>,
    /// Mean rate of each population after `discard_ms`.
    pub rates_hz: BTreeMap<String, f64>,
    /// Left out of rates and statistics, ms.
    pub discard_ms: f64,
    /// The seed.
    pub seed: u64,
    /// How many cells.
    pub cells: u64,
    /// How many synapses.
    pub synapses: u64,
    /// Deliveries in the steps of this process, a step.
    pub events_per_step: f64,
    /// Threads.
    pub threads: usize,
    /// The largest error of a projection's weights as whole numbers, over their mean.
    pub quantisation: f64,
    /// What was measured of each population, with what others measured beside it.
    pub populations: Vec<PopulationReport>,
    /// The weights that change, from population to population, at the start of the run and now; empty where none does.
    pub weights: Vec<WeightReport>,
    /// The folder of the run.
    pub out: PathBuf,
}

/// The weights of the synapses that change from one population to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WeightReport {
    /// `source -> target`.
    pub projection: String,
    /// At the start of the run.
    pub before: Weights,
    /// At its end.
    pub after: Weights,
}

/// One population of a [`Report`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PopulationReport {
    /// Its name.
    pub name: String,
    /// Its cells.
    pub size: u32,
    /// Mean rate.
    pub rate_hz: f64,
    /// Published.
    pub reference_rate_hz: Option<f64>,
    /// Mean coefficient of variation of interspike intervals, of cells with at least 6 spikes.
    pub cv: Option<f64>,
    /// Published.
    pub reference_cv: Option<f64>,
    /// Mean pairwise correlation of counts in 2 ms, of the first 250 cells.
    pub correlation: Option<f64>,
    /// Published.
    pub reference_correlation: Option<f64>,
}

/// The configuration with its defaults and overrides.
///
/// # Errors
/// As [`read`].
pub fn resolved(config: &Config) -> Result<String> {
    read(config)?;
    Ok(config.resolved())
}

/// Simulates as `config` says.
///
/// Nothing is written before the configuration was read and the network built. Ctrl-C stops at a chunk's end with a
/// checkpoint and whatever was recorded; a resumed run ends with the same spikes as one that was never stopped.
///
/// # Errors
/// `Config` and `Data` with file and line, `Checkpoint` for one that does not fit, `OutOfMemory` before anything is
/// allocated, `Io` where recording fails (what was recorded before is intact), `Interrupted`.
pub fn run(config: &Config, options: &RunOptions, progress: &dyn Progress) -> Result<Report> {
    let settings = read(config)?;
    settings.notes.iter().for_each(|note| progress.log(note));
    let (device, cards, why) = devices(options.backend, options.gpus)?;
    why.iter().for_each(|why| progress.log(why));
    if options.parts.is_none() {
        check_method(&options.method, &device)?;
    }
    if options.parts.is_some() && !matches!(device, Device::Cpu) {
        return Err(Error::config(format!("parts are processes on CPUs, not on {}; --backend cpu", device.place())));
    }
    let folder = RunFolder::open(&options.out, options.resume)?;
    let config_text = config.resolved();
    let plan = Plan::new(settings.network.clone())?;
    let checkpoint = if options.resume { Some(load(&folder, &plan.network)?) } else { None };
    let since = Instant::now();
    progress.start("build", 0);
    let note = format!("{} cells, {:.3e} synapses", plan.cells(), plan.expected_synapses());
    progress.advance(0, &note);
    let built = |done: usize, of: usize| progress.advance(done as u64, &format!("{note}: {done} of {of} parts"));
    let mut team = options.parts.as_ref().map(|parts| Team::gather(parts, &plan, progress)).transpose()?;
    let mut method = None;
    let mut engine: Box<dyn Engine + '_> = match (&device, &mut team) {
        (_, Some(team)) => team.engine(&plan, &built)?,
        (Device::Cpu, None) => Box::new(CpuEngine::new(&plan, &built)?),
        (Device::Cuda(_), None) => {
            let (engine, by) = on_gpus(&plan, &cards, &options.method, &built)?;
            method = by;
            engine
        }
    };
    progress.finish();
    let build_ms = since.elapsed().as_secs_f64() * 1e3;
    progress.log(&format!(
        "built {} cells and {} synapses in {:.2} s; {}",
        plan.cells(),
        engine.synapses(),
        build_ms / 1e3,
        words(&*engine, method)
    ));

    let begun = engine.weights()?;
    folder.create()?;
    let mut run = Run {
        settings: &settings,
        plan: &plan,
        folder: &folder,
        hash: SpikeHash::default(),
        log: None,
        traces: Vec::new(),
        counts: vec![0; plan.network.populations.len()],
        gpus: cards.len(),
        method,
        begun,
        reached: 0,
        wall: 0.0,
    };
    if let Some(c) = &checkpoint {
        engine.restore(&c.state)?;
        run.hash = c.hash.clone();
        run.counts.clone_from(&c.counts);
        progress.log(&format!("resumed at {:.1} ms", c.state.step as f64 * plan.network.dt_ms));
    }
    if settings.record {
        let keep = checkpoint.as_ref().map_or(0, |c| c.logged);
        if run.hash.spikes() != keep {
            return Err(Error::checkpoint(
                "the run was begun with --record none, so its spikes cannot be recorded now",
            ));
        }
        run.log = Some(SpikeLog::open(&folder.file(LOG), keep)?);
    }
    for (i, recorder) in settings.recorders.iter().enumerate() {
        run.traces.push(TraceLog::open(&folder.file(&format!("checkpoint/traces-{i}.log")), recorder, engine.step())?);
    }
    folder.write("config.toml", &config_text)?;
    let mut record = RunRecord::new("simulate", options.arguments.clone(), &options.provenance, &device);
    record.config_sha256 = sha256_hex(config_text.as_bytes());
    record.seed = plan.network.seed;
    record.start = utc(SystemTime::now());
    folder.write("run.json", record.to_json()?)?;
    let first = engine.step();
    let result = run.all(&mut *engine, progress).and_then(|()| run.finish(&*engine, first, build_ms, &device));
    if let Some(log) = run.log.as_ref().filter(|log| !log.fits_npz()) {
        let count = log.count();
        progress.log(&format!("{count} spikes are beyond the 4 GiB of an .npz file: they are in spikes.parquet alone"));
    }
    record.end = Some(utc(SystemTime::now()));
    match &result {
        Ok(report) => {
            record.status = RunStatus::Finished;
            record.result = serde_json::to_value(report).ok();
        }
        Err(e) => {
            let stopped = e.kind() == &ErrorKind::Interrupted;
            record.status = if stopped { RunStatus::Interrupted } else { RunStatus::Failed };
            record.error = Some(e.to_string());
        }
    }
    folder.write("run.json", record.to_json()?)?;
    result
}

struct Run<'a> {
    settings: &'a Settings,
    plan: &'a Plan,
    folder: &'a RunFolder,
    hash: SpikeHash,
    log: Option<SpikeLog>,
    traces: Vec<TraceLog>,
    gpus: usize,
    /// How they share the network, where there are several.
    method: Option<&'static str>,
    counts: Vec<u64>,
    /// The weights that change, at the start.
    begun: Vec<Weights>,
    /// The engine's next step.
    reached: u64,
    wall: f64,
}

/// SHA-256 of all that spikes follow from.
pub(super) fn fingerprint(network: &Network) -> [u8; 32] {
    struct Sink(Sha256);
    impl std::fmt::Write for Sink {
        fn write_str(&mut self, s: &str) -> std::fmt::Result {
            self.0.update(s);
            Ok(())
        }
    }
    let mut sink = Sink(Sha256::new_with_prefix("chronaxie network 1"));
    // Floats are written with as many digits as they have, so other networks have other texts.
    let _ = write!(sink, "{network:?}");
    sink.0.finalize().into()
}

fn load(folder: &RunFolder, network: &Network) -> Result<Checkpoint> {
    let path = folder.file(STATE);
    let bytes = std::fs::read(&path).map_err(|e| Error::checkpoint(format!("cannot read {}: {e}", path.display())))?;
    let c = Checkpoint::from_bytes(&bytes, &path)?;
    if c.fingerprint != fingerprint(network) || c.counts.len() != network.populations.len() {
        return Err(Error::checkpoint(format!(
            "{}: it is of another network; compare config.toml beside it with --print-config",
            path.display()
        )));
    }
    Ok(c)
}

impl Run<'_> {
    fn steps(&self, ms: f64) -> u64 {
        (ms / self.plan.network.dt_ms).round() as u64
    }

    fn all(&mut self, engine: &mut dyn Engine, progress: &dyn Progress) -> Result<()> {
        let dt = self.plan.network.dt_ms;
        let end = self.steps(self.settings.duration_ms);
        let discard = self.steps(self.settings.discard_ms);
        let every = self.settings.checkpoint_every_ms.map(|ms| self.steps(ms).max(1));
        if engine.step() > end {
            return Err(Error::config(format!(
                "the run is at {:.1} ms already, after its duration of {:.1} ms",
                engine.step() as f64 * dt,
                self.settings.duration_ms
            )));
        }
        let least = self.steps(10.0).max(1);
        let mut chunk = least;
        let begun = engine.step();
        self.reached = begun;
        progress.start("simulate", self.settings.duration_ms.round() as u64);
        let (mut spikes, mut waiting) = (Vec::new(), Vec::new());
        while engine.step() < end {
            if progress.interrupted() {
                self.book(&mut waiting, discard)?;
                self.save(engine)?;
                self.export()?;
                let at = engine.step() as f64 * dt;
                let folder = self.folder.path().display();
                let what = format!(
                    "simulate: interrupted at {at:.1} of {} ms; go on with --resume {folder}",
                    self.settings.duration_ms
                );
                return Err(Error::new(ErrorKind::Interrupted, what));
            }
            let until = every.map_or(end, |every| (engine.step() / every + 1) * every).min(end);
            let until = self.traces.iter().map(|t| t.next(engine.step())).fold(until, u64::min);
            let since = Instant::now();
            let steps = pace::next(chunk, until - engine.step(), until == end, least);
            // The spikes of the chunk before are booked while this one runs.
            let (ran, booked) = std::thread::scope(|scope| {
                let books = scope.spawn(|| self.book(&mut waiting, discard));
                let ran = engine.advance(steps, &mut spikes);
                (ran, books.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            });
            booked?;
            ran?;
            self.reached = engine.step();
            for trace in &mut self.traces {
                trace.sample(self.plan, engine)?;
            }
            let fired = spikes.len();
            std::mem::swap(&mut spikes, &mut waiting);
            let saves = every.is_some_and(|every| engine.step().is_multiple_of(every)) && engine.step() < end;
            if saves || engine.step() >= end {
                self.book(&mut waiting, discard)?;
            }
            let took = since.elapsed().as_secs_f64();
            self.wall += took;
            chunk = pace::adapt(chunk, steps, took);
            let ms = engine.step() as f64 * dt;
            let done = (engine.step() - begun) as f64 * dt;
            let note = format!("real-time factor {:.3}, {:.0} spikes/s", self.wall * 1e3 / done, fired as f64 / took);
            progress.advance(ms as u64, &note);
            if saves {
                self.save(engine)?;
            }
        }
        progress.finish();
        self.save(engine)
    }

    /// Hashes, counts and records spikes, in order, and forgets them.
    fn book(&mut self, spikes: &mut Vec<Spike>, discard: u64) -> Result<()> {
        self.hash.add(spikes);
        for spike in spikes.iter().filter(|s| s.step >= discard) {
            let p = self.plan.first.partition_point(|first| *first <= u64::from(spike.cell)) - 1;
            self.counts[p] += 1;
        }
        let logged = self.log.as_mut().map_or(Ok(()), |log| log.add(spikes));
        spikes.clear();
        // What was there before the chunk is whole; the checkpoint before it still fits.
        logged.inspect_err(|_| {
            let _ = self.export();
        })
    }

    fn save(&self, engine: &dyn Engine) -> Result<()> {
        if let Some(log) = &self.log {
            log.sync()?;
        }
        let checkpoint = Checkpoint {
            fingerprint: fingerprint(&self.plan.network),
            state: engine.state()?,
            hash: self.hash.clone(),
            logged: self.log.as_ref().map_or(0, SpikeLog::count),
            counts: self.counts.clone(),
        };
        self.folder.write(STATE, checkpoint.to_bytes())
    }

    fn export(&self) -> Result<()> {
        let n = &self.plan.network;
        // Each is tried: the disk may have room for one and not for another.
        let traces = match self.traces.is_empty() {
            true => Ok(()),
            false => traces::export(&self.traces, &self.folder.file("traces.npz"), self.plan),
        };
        let Some(log) = &self.log else { return traces };
        let parquet = log.export_parquet(&self.folder.file("spikes.parquet"), n, self.reached);
        let npz = match log.fits_npz() {
            true => log.export(&self.folder.file("spikes.npz"), n, self.reached),
            false => Ok(()),
        };
        traces.and(parquet).and(npz)
    }

    fn finish(&self, engine: &dyn Engine, first: u64, build_ms: f64, device: &Device) -> Result<Report> {
        self.export()?;
        let n = &self.plan.network;
        let (end, discard) = (engine.step(), self.steps(self.settings.discard_ms));
        let seconds = end.saturating_sub(discard) as f64 * n.dt_ms * 1e-3;
        let statistics = match &self.log {
            Some(log) => {
                let mut gatherer = Gatherer::new(n, discard);
                log.read(|spikes| {
                    gatherer.add(spikes);
                    Ok(())
                })?;
                gatherer.finish(end)
            }
            None => {
                let rate = |i: usize| self.counts[i] as f64 / f64::from(n.populations[i].size) / seconds.max(1e-12);
                (0..self.counts.len()).map(|i| Statistics { rate_hz: rate(i), ..Default::default() }).collect()
            }
        };
        if let Some(log) = &self.log {
            pictures::write(self.folder, n, log, &statistics, discard, end)?;
        }
        let populations: Vec<PopulationReport> = n
            .populations
            .iter()
            .zip(&statistics)
            .map(|(p, s)| PopulationReport {
                name: p.name.clone(),
                size: p.size,
                rate_hz: s.rate_hz,
                reference_rate_hz: p.reference.rate_hz,
                cv: s.cv(),
                reference_cv: p.reference.cv,
                correlation: s.correlation(),
                reference_correlation: p.reference.correlation,
            })
            .collect();
        let weights = self.begun.iter().zip(engine.weights()?);
        let weights = weights.map(|(before, after)| WeightReport {
            projection: after.projection.clone(),
            before: before.clone(),
            after,
        });
        let weights = weights.collect();
        let steps = (end - first).max(1) as f64;
        let wall_ms = self.wall * 1e3;
        Ok(Report {
            model_ms: end as f64 * n.dt_ms,
            wall_ms,
            real_time_factor: wall_ms / (steps * n.dt_ms),
            spikes: self.hash.spikes(),
            spikes_sha256: self.hash.hex(),
            build_ms,
            backend: device.place().to_string(),
            gpus: self.gpus,
            engine: words(engine, self.method),
            floor_real_time_factor: engine.floor_us().map(|us| us * 1e-3 / n.dt_ms),
            rates_hz: populations.iter().map(|p| (p.name.clone(), p.rate_hz)).collect(),
            discard_ms: self.settings.discard_ms,
            seed: n.seed,
            cells: self.plan.cells(),
            synapses: engine.synapses(),
            events_per_step: engine.events() as f64 / steps,
            threads: crate::pool::num_threads(),
            quantisation: self.plan.quantisation().iter().map(|q| q.relative_error).fold(0.0, f64::max),
            populations,
            weights,
            out: self.folder.path().to_path_buf(),
        })
    }
}
