//! One simulation, from a configuration to a folder.

use super::gpus::{check_method, devices, energy_j, engine, part_devices, words};
use super::kept::{Kept, book_each, go_on_hashing, load, require_logged};
use super::parts::{PartsOptions, Team};
use super::replicas::{Described, One};
use super::saver::{Save, Saver};
use super::told::{PopulationReport, ReplicaReport, Report, WeightReport};
use crate::bench::Provenance;
use crate::config::Config;
use crate::cuda::CudaDevice;
use crate::data::sha256_hex;
use crate::progress::Progress;
use crate::report::{RunFolder, RunRecord, RunStatus, utc};
use crate::spiking::network::read::{Settings, read};
use crate::spiking::record::{SpikeHash, SpikeLog};
use crate::spiking::simulate::{Around, Engine, Snapshot, Spike, Weights, pace};
use crate::spiking::{Network, Plan};
use crate::{Backend, Device, Error, ErrorKind, Result};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// The checkpoint in a run's folder.
pub(super) const STATE: &str = "checkpoint/state.bin";
/// Snapshots at a time: one that is written, and one that waits.
const SNAPSHOTS: usize = 2;

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
    /// What each of several networks side by side overrides, as of `simulation.seed=5` ([`grid`](super::grid)); nothing for one
    /// network.
    pub replicas: Vec<Vec<String>>,
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
        let (replicas, arguments) = (Vec::new(), Vec::new());
        Self { out, backend, gpus, method, resume: false, parts, replicas, arguments, provenance }
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
    let described = Described::new(config, &options.replicas, &read)?;
    let settings = &described.settings;
    settings.notes.iter().for_each(|note| progress.log(note));
    let (device, cards, why) = match &options.parts {
        Some(_) => part_devices(options.backend, options.gpus)?,
        None => devices(options.backend, options.gpus)?,
    };
    why.iter().for_each(|why| progress.log(why));
    if options.parts.is_none() {
        check_method(&options.method, &device)?;
    }
    if options.parts.is_some() && !described.replicas.is_empty() {
        let count = described.replicas.len();
        return Err(Error::config(format!("{count} networks side by side are one process, which has no parts")));
    }
    let folder = RunFolder::open(&options.out, options.resume)?;
    let plan = Plan::new(settings.network.clone())?;
    if options.parts.is_some() {
        plan.refuse_life("a network in parts")?;
    }
    let mut checkpoint = if options.resume { Some(load(&folder, &plan.network)?) } else { None };
    let since = Instant::now();
    progress.start("build", 0);
    let several = match described.replicas.len() {
        0 => String::new(),
        n => format!("{n} replicas, "),
    };
    let note = format!("{several}{} cells, {:.3e} synapses", plan.cells(), plan.expected_synapses());
    progress.advance(0, &note);
    let built = |done: usize, of: usize| progress.advance(done as u64, &format!("{note}: {done} of {of} parts"));
    let mut team = options.parts.as_ref().map(|parts| Team::gather(parts, &plan, &cards, progress)).transpose()?;
    let (mut engine, method): (Box<dyn Engine + '_>, _) = match &mut team {
        Some(team) => (team.engine(&plan, &built)?, None),
        None => engine(&plan, (&device, &cards, &options.method), &built)?,
    };
    progress.finish();
    let build_ms = since.elapsed().as_secs_f64() * 1e3;
    progress.log(&format!(
        "built {several}{} cells and {} synapses in {:.2} s; {}",
        plan.cells(),
        engine.synapses(),
        build_ms / 1e3,
        words(&*engine, method)
    ));

    let begun = engine.weights()?;
    folder.create()?;
    if let Some((c, stored)) = &mut checkpoint {
        engine.resume(std::mem::take(&mut c.state), Some(stored))?;
        go_on_hashing(settings.hash, c)?;
        require_logged(settings.record, c.hash.spikes(), c.logged)?;
        progress.log(&format!("resumed at {:.1} ms", engine.step() as f64 * plan.network.dt_ms));
    }
    let checkpoint = checkpoint.map(|(c, _)| c);
    let none = || if settings.hash { SpikeHash::default() } else { SpikeHash::none() };
    let mut kept = Vec::new();
    let from = [engine.step(), (settings.discard_ms / plan.network.dt_ms).round() as u64];
    if described.replicas.is_empty() {
        let all = plan.network.populations.len();
        let before = checkpoint.as_ref().map_or_else(|| (none(), vec![0; all]), |c| (c.hash.clone(), c.counts.clone()));
        kept.push(Kept::open(settings, folder.clone(), 0, from, before)?);
    }
    for (k, one) in described.replicas.iter().enumerate() {
        let own = plan.network.populations_of(k);
        let before = match &checkpoint {
            Some(c) => (c.replicas[k].clone(), c.counts[own.clone()].to_vec()),
            None => (none(), vec![0; own.len()]),
        };
        let folder = RunFolder::open(folder.file(&one.name), true)?;
        kept.push(Kept::open(&one.settings, folder, own.start, from, before)?);
        kept[k].folder.write("config.toml", &one.text)?;
    }
    let mut run = Run {
        settings,
        replicas: &described.replicas,
        plan: &plan,
        folder: &folder,
        hash: checkpoint.as_ref().map_or_else(none, |c| c.hash.clone()),
        lists: vec![Vec::new(); kept.len()],
        kept,
        cards: &cards,
        method,
        begun,
        saver: Saver::new()?,
        taken: 0,
        taking: None,
        reached: 0,
        wall: 0.0,
        energy_j: None,
    };
    folder.write("config.toml", &described.text)?;
    let mut record = RunRecord::new("simulate", options.arguments.clone(), &options.provenance, &device);
    record.config_sha256 = sha256_hex(described.text.as_bytes());
    record.seed = plan.network.seed;
    record.start = utc(SystemTime::now());
    run.write_records(&record, None)?;
    let first = engine.step();
    let result = run.all(&mut *engine, progress).and_then(|()| run.finish(&*engine, first, build_ms, &device));
    run.kept.iter().filter_map(Kept::note).for_each(|note| progress.log(&note));
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
    run.write_records(&record, result.as_ref().ok())?;
    result
}

struct Run<'a> {
    settings: &'a Settings,
    /// Nothing for one network.
    replicas: &'a [One],
    plan: &'a Plan,
    folder: &'a RunFolder,
    /// Of all spikes of several networks.
    hash: SpikeHash,
    /// Of the network, or of each of several, and the spikes of each that are not booked yet.
    kept: Vec<Kept<'a>>,
    lists: Vec<Vec<Spike>>,
    cards: &'a [Arc<CudaDevice>],
    /// How they share the network, where there are several.
    method: Option<&'static str>,
    /// The weights that change, at the start.
    begun: Vec<Weights>,
    /// What writes checkpoints, how many snapshots were taken for it, and one whose spikes are not booked yet.
    saver: Saver,
    taken: u64,
    taking: Option<Box<dyn Snapshot>>,
    /// The engine's next step.
    reached: u64,
    wall: f64,
    energy_j: Option<f64>,
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

impl Run<'_> {
    fn steps(&self, ms: f64) -> u64 {
        (ms / self.plan.network.dt_ms).round() as u64
    }

    fn all(&mut self, engine: &mut dyn Engine, progress: &dyn Progress) -> Result<()> {
        let dt = self.plan.network.dt_ms;
        let end = self.steps(self.settings.duration_ms);
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
        if every.is_some() {
            engine.prepare(SNAPSHOTS)?;
        }
        progress.start("simulate", self.settings.duration_ms.round() as u64);
        let (mut spikes, mut waiting) = (Vec::new(), Vec::new());
        let before = energy_j(self.cards);
        while engine.step() < end {
            let asked = engine.asked_to_stop();
            if progress.interrupted() || asked.is_some() {
                self.book(&mut waiting)?;
                self.save(engine)?;
                self.saver.wait()?;
                self.export()?;
                let at = engine.step() as f64 * dt;
                let folder = self.folder.path().display();
                let by = asked.map_or(String::new(), |part| format!(" at part {part}"));
                let what = format!(
                    "simulate: interrupted{by} at {at:.1} of {} ms; go on with --resume {folder}",
                    self.settings.duration_ms
                );
                return Err(Error::new(ErrorKind::Interrupted, what));
            }
            let until = every.map_or(end, |every| (engine.step() / every + 1) * every).min(end);
            let until = self.kept.iter().filter_map(|kept| kept.next_sample(engine.step())).fold(until, u64::min);
            let since = Instant::now();
            let steps = pace::next(chunk, until - engine.step(), until == end, least);
            // The spikes of the chunk before are booked while this one runs.
            let (ran, booked) = std::thread::scope(|scope| {
                let books = scope.spawn(|| {
                    self.book(&mut waiting)?;
                    self.offer()
                });
                let ran = engine.advance(steps, &mut spikes);
                (ran, books.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            });
            booked?;
            ran?;
            self.reached = engine.step();
            self.kept.iter_mut().try_for_each(|kept| kept.sample(self.plan, engine))?;
            let fired = spikes.len();
            std::mem::swap(&mut spikes, &mut waiting);
            let saves = every.is_some_and(|every| engine.step().is_multiple_of(every)) && engine.step() < end;
            if saves {
                // Its spikes are booked while the next chunk runs.
                self.take(engine)?;
            }
            if engine.step() >= end {
                self.book(&mut waiting)?;
            }
            let took = since.elapsed().as_secs_f64();
            self.wall += took;
            chunk = pace::adapt(chunk, steps, took);
            let ms = engine.step() as f64 * dt;
            let done = (engine.step() - begun) as f64 * dt;
            let several = match self.replicas.len() {
                0 => String::new(),
                n => format!("{n} replicas, "),
            };
            let factor = self.wall * 1e3 / done;
            let note = format!("{several}real-time factor {factor:.3}, {:.0} spikes/s", fired as f64 / took);
            progress.advance(ms as u64, &note);
        }
        self.energy_j = before.and_then(|before| Some(energy_j(self.cards)? - before));
        progress.finish();
        self.save(engine)?;
        self.saver.wait()
    }

    /// Hashes, counts and records spikes, in order, and forgets them.
    fn book(&mut self, spikes: &mut Vec<Spike>) -> Result<()> {
        // Beside a GPU's steps the cores are free.
        let beside = !self.cards.is_empty();
        let logged = if self.replicas.is_empty() {
            self.kept[0].books.add(spikes, beside)
        } else {
            let (network, hash, spikes) = (&self.plan.network, &mut self.hash, &spikes[..]);
            let (kept, lists) = (&mut self.kept, &mut self.lists);
            if beside {
                std::thread::scope(|scope| {
                    scope.spawn(|| hash.add(spikes));
                    book_each(network, spikes, kept, lists, beside)
                })
            } else {
                hash.add(spikes);
                book_each(network, spikes, kept, lists, beside)
            }
        };
        spikes.clear();
        // What was there before the chunk is whole; the checkpoint before it still fits.
        logged.inspect_err(|_| {
            let _ = self.export();
        })
    }

    /// Takes a snapshot, to be written once its spikes are booked.
    fn take(&mut self, engine: &mut dyn Engine) -> Result<()> {
        let since = Instant::now();
        self.saver.make_way()?;
        self.taking = Some(engine.snapshot()?);
        self.taken += 1;
        let took = since.elapsed().as_secs_f64() * 1e3;
        crate::log::debug(format_args!("a snapshot of step {} was taken in {took:.2} ms", engine.step()));
        Ok(())
    }

    /// Has the snapshot written that was taken, if one was; its spikes are booked, and no later ones.
    fn offer(&mut self) -> Result<()> {
        let Some(snapshot) = self.taking.take() else { return Ok(()) };
        let hashes = self.kept.iter().map(|kept| kept.books.hash.clone());
        let replicas = if self.replicas.is_empty() { Vec::new() } else { hashes.collect() };
        let around = Around {
            fingerprint: fingerprint(&self.plan.network),
            hash: self.all_hash().clone(),
            replicas,
            logged: self.kept.iter().map(Kept::logged).sum(),
            counts: self.kept.iter().flat_map(|kept| &kept.books.counts).copied().collect(),
        };
        let logs = self.kept.iter().filter_map(|kept| kept.books.log()).map(SpikeLog::handle).collect::<Result<_>>()?;
        self.saver.offer(Save { snapshot, around, logs, path: self.folder.file(STATE) });
        Ok(())
    }

    /// Likewise both, where all spikes are booked.
    fn save(&mut self, engine: &mut dyn Engine) -> Result<()> {
        self.take(engine)?;
        self.offer()
    }

    /// The hash of all spikes.
    fn all_hash(&self) -> &SpikeHash {
        if self.replicas.is_empty() { &self.kept[0].books.hash } else { &self.hash }
    }

    fn export(&self) -> Result<()> {
        self.kept.iter().map(|kept| kept.export(self.plan, self.reached)).fold(Ok(()), Result::and)
    }

    /// `run.json` of the run, and of each of several networks, whose reports are those of `report`.
    fn write_records(&self, record: &RunRecord, report: Option<&Report>) -> Result<()> {
        for (k, (one, kept)) in self.replicas.iter().zip(&self.kept).enumerate() {
            let mut own = record.clone();
            own.config_sha256 = sha256_hex(one.text.as_bytes());
            own.seed = one.settings.network.seed;
            own.result = report.and_then(|r| r.replicas.get(k)).and_then(|r| serde_json::to_value(r).ok());
            kept.folder.write("run.json", own.to_json()?)?;
        }
        self.folder.write("run.json", record.to_json()?)
    }

    fn finish(&self, engine: &dyn Engine, first: u64, build_ms: f64, device: &Device) -> Result<Report> {
        self.export()?;
        let n = &self.plan.network;
        let (end, discard) = (engine.step(), self.steps(self.settings.discard_ms));
        let weights = self.begun.iter().zip(engine.weights()?);
        let weights = weights.map(|(before, after)| WeightReport {
            projection: after.projection.clone(),
            before: before.clone(),
            after,
        });
        let weights: Vec<WeightReport> = weights.collect();
        let mut populations = Vec::new();
        let mut replicas = Vec::new();
        for (k, kept) in self.kept.iter().enumerate() {
            let own = kept.populations([discard, end])?;
            let Some(one) = self.replicas.get(k) else {
                populations = own;
                break;
            };
            let all = n.populations[n.populations_of(k)].iter().zip(&own);
            populations.extend(all.map(|(p, own)| PopulationReport { name: p.name.clone(), ..own.clone() }));
            replicas.push(ReplicaReport {
                set: one.set.clone(),
                seed: one.settings.network.seed,
                model_ms: end as f64 * n.dt_ms,
                spikes: kept.books.hash.spikes(),
                spikes_sha256: kept.books.hash.hex(),
                rates_hz: own.iter().map(|p| (p.name.clone(), p.rate_hz)).collect(),
                discard_ms: self.settings.discard_ms,
                cells: kept.network.cells(),
                populations: own,
                weights: weights.iter().filter_map(|w| w.of_replica(k)).collect(),
                out: kept.folder.path().to_path_buf(),
            });
        }
        let lives = engine.lives()?;
        let steps = (end - first).max(1) as f64;
        let wall_ms = self.wall * 1e3;
        Ok(Report {
            model_ms: end as f64 * n.dt_ms,
            wall_ms,
            real_time_factor: wall_ms / (steps * n.dt_ms),
            spikes: self.all_hash().spikes(),
            spikes_sha256: self.all_hash().hex(),
            energy_j: self.energy_j,
            build_ms,
            backend: device.place().to_string(),
            gpus: self.cards.len(),
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
            checkpoints_taken: self.taken,
            checkpoints_written: self.saver.written(),
            died: lives.as_ref().map(|lives| lives.died),
            born: lives.as_ref().map(|lives| lives.born),
            replicas,
            out: self.folder.path().to_path_buf(),
        })
    }
}
