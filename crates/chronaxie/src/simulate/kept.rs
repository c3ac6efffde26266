//! What a run keeps of a network, or of each of several that run side by side: spikes, traces, statistics, pictures.

use super::pictures;
use super::run::{STATE, fingerprint};
use super::told::PopulationReport;
use crate::report::RunFolder;
use crate::spiking::metrics::{Gatherer, Statistics};
use crate::spiking::network::read::Settings;
use crate::spiking::record::{Books, SpikeHash, SpikeLog, TraceLog, traces};
use crate::spiking::simulate::{Checkpoint, Engine, Spike, Stored, by_replica};
use crate::spiking::{Network, Plan};
use crate::{Error, Result, pool};
use std::sync::{Mutex, PoisonError};

/// The spikes so far, in a run's folder.
const LOG: &str = "checkpoint/spikes.log";

/// What is kept of one network.
pub(super) struct Kept<'a> {
    /// As it is by itself.
    pub network: &'a Network,
    pub folder: RunFolder,
    /// Counts are of spikes after the discarded time.
    pub books: Books,
    traces: Vec<TraceLog>,
}

impl<'a> Kept<'a> {
    /// Of `settings`, whose populations are those from `first` on of what runs; from step `step` on, with these spikes before it, and
    /// counted from step `discard` on.
    ///
    /// # Errors
    /// `Io`; `Checkpoint`, where the folder does not have what was kept before.
    pub fn open(
        settings: &'a Settings,
        folder: RunFolder,
        first: usize,
        [step, discard]: [u64; 2],
        (hash, counts): (SpikeHash, Vec<u64>),
    ) -> Result<Self> {
        folder.create()?;
        let log = settings.record.then(|| SpikeLog::open(&folder.file(LOG), hash.spikes())).transpose()?;
        let mut logs = Vec::new();
        for (i, recorder) in settings.recorders.iter().enumerate() {
            let mut recorder = recorder.clone();
            recorder.population += first;
            logs.push(TraceLog::open(&folder.file(&format!("checkpoint/traces-{i}.log")), &recorder, step)?);
        }
        let books = Books::new(&settings.network, discard, hash, counts, log);
        Ok(Self { network: &settings.network, folder, books, traces: logs })
    }

    /// How many spikes are recorded.
    pub fn logged(&self) -> u64 {
        self.books.log().map_or(0, SpikeLog::count)
    }

    /// Why there is no `.npz` of its spikes, if there is none.
    pub fn note(&self) -> Option<String> {
        let log = self.books.log().filter(|log| !log.fits_npz())?;
        let count = log.count();
        Some(format!("{count} spikes are beyond the 4 GiB of an .npz file: they are in spikes.parquet alone"))
    }

    /// The first step after `step` at whose end something is sampled.
    pub fn next_sample(&self, step: u64) -> Option<u64> {
        self.traces.iter().map(|t| t.next(step)).min()
    }

    pub fn sample(&mut self, plan: &Plan, engine: &dyn Engine) -> Result<()> {
        self.traces.iter_mut().try_for_each(|trace| trace.sample(plan, engine))
    }

    /// Writes what was recorded up to step `reached`.
    pub fn export(&self, plan: &Plan, reached: u64) -> Result<()> {
        let n = self.network;
        // Each is tried: the disk may have room for one and not for another.
        let traces = match self.traces.is_empty() {
            true => Ok(()),
            false => traces::export(&self.traces, &self.folder.file("traces.npz"), plan),
        };
        let Some(log) = self.books.log() else { return traces };
        let parquet = log.export_parquet(&self.folder.file("spikes.parquet"), n, reached);
        let npz = match log.fits_npz() {
            true => log.export(&self.folder.file("spikes.npz"), n, reached),
            false => Ok(()),
        };
        traces.and(parquet).and(npz)
    }

    /// The statistics of each population between two steps, with pictures where spikes are recorded.
    pub fn populations(&self, [discard, end]: [u64; 2]) -> Result<Vec<PopulationReport>> {
        let n = self.network;
        let seconds = end.saturating_sub(discard) as f64 * n.dt_ms * 1e-3;
        let counts = &self.books.counts;
        let statistics = match self.books.log() {
            Some(log) => {
                let mut gatherer = Gatherer::new(n, discard);
                log.read(|spikes| {
                    gatherer.add(spikes);
                    Ok(())
                })?;
                gatherer.finish(end)
            }
            None => {
                let rate = |i: usize| counts[i] as f64 / f64::from(n.populations[i].size) / seconds.max(1e-12);
                (0..counts.len()).map(|i| Statistics { rate_hz: rate(i), ..Default::default() }).collect()
            }
        };
        if let Some(log) = self.books.log() {
            pictures::write(&self.folder, n, log, &statistics, discard, end)?;
        }
        let one = |(p, s): (&crate::spiking::Population, &Statistics)| PopulationReport {
            name: p.name.clone(),
            size: p.size,
            rate_hz: s.rate_hz,
            reference_rate_hz: p.reference.rate_hz,
            cv: s.cv(),
            reference_cv: p.reference.cv,
            correlation: s.correlation(),
            reference_correlation: p.reference.correlation,
        };
        Ok(n.populations.iter().zip(&statistics).map(one).collect())
    }
}

/// Books the spikes of each of several networks, of several at a time where `beside`; the first error, by their order.
pub(super) fn book_each(
    network: &Network,
    spikes: &[Spike],
    kept: &mut [Kept<'_>],
    lists: &mut [Vec<Spike>],
    beside: bool,
) -> Result<()> {
    by_replica(network, spikes, lists);
    let book = |kept: &mut Kept<'_>, list: &mut Vec<Spike>| {
        let booked = kept.books.add(list, false);
        list.clear();
        booked
    };
    let each = kept.iter_mut().zip(lists);
    if !beside {
        return each.map(|(kept, list)| book(kept, list)).fold(Ok(()), Result::and);
    }
    let work: Vec<_> = each.map(|(kept, list)| Mutex::new((kept, list, Ok(())))).collect();
    pool::for_each(work.len(), |k| {
        let mut one = work[k].lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, list, booked) = &mut *one;
        *booked = book(kept, list);
    });
    let booked = work.into_iter().map(|one| one.into_inner().unwrap_or_else(PoisonError::into_inner).2);
    booked.fold(Ok(()), Result::and)
}

/// The checkpoint in a run's folder, which is to be of `network`.
pub(super) fn load(folder: &RunFolder, network: &Network) -> Result<(Checkpoint, Stored)> {
    let path = folder.file(STATE);
    let (c, stored) = Checkpoint::open(&path)?;
    let counts = [c.counts.len(), c.replicas.len()];
    if c.fingerprint != fingerprint(network) || counts != [network.populations.len(), network.replicas.len()] {
        let what = match (network.replicas.len(), c.replicas.len()) {
            (own, other) if own != other => format!("it is of {other} replicas, and these are {own}"),
            (0, _) => "it is of another network".into(),
            _ => "it is of another network, or of other replicas".into(),
        };
        return Err(Error::checkpoint(format!(
            "{}: {what}; compare config.toml beside it with --print-config",
            path.display()
        )));
    }
    Ok((c, stored))
}

/// Refuses to hash from here on where what came before was not hashed; where nothing is to be hashed, nothing is any more.
pub(super) fn go_on_hashing(hash: bool, checkpoint: &mut Checkpoint) -> Result<()> {
    let mut all = std::iter::once(&mut checkpoint.hash).chain(&mut checkpoint.replicas);
    if hash && all.any(|own| !own.hashes()) {
        return Err(Error::checkpoint("the run was begun with --hash none, so its spikes cannot be hashed now"));
    }
    if !hash {
        all.for_each(SpikeHash::stop);
    }
    Ok(())
}

/// Refuses to record from here on where what came before was not.
pub(super) fn require_logged(record: bool, spikes: u64, logged: u64) -> Result<()> {
    if record && spikes != logged {
        return Err(Error::checkpoint("the run was begun with --record none, so its spikes cannot be recorded now"));
    }
    Ok(())
}
