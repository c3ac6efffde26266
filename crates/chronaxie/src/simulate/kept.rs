//! What a run keeps of a network, or of each of several that run side by side: spikes, traces, statistics, pictures.

use super::pictures;
use super::run::PopulationReport;
use crate::report::RunFolder;
use crate::spiking::metrics::{Gatherer, Statistics};
use crate::spiking::network::read::Settings;
use crate::spiking::record::{SpikeHash, SpikeLog, TraceLog, traces};
use crate::spiking::simulate::{Engine, Spike};
use crate::spiking::{Network, Plan};
use crate::{Error, Result};

/// The spikes so far, in a run's folder.
const LOG: &str = "checkpoint/spikes.log";

/// What is kept of one network.
pub(super) struct Kept<'a> {
    /// As it is by itself.
    pub network: &'a Network,
    pub folder: RunFolder,
    pub hash: SpikeHash,
    /// Spikes of each population after the discarded time.
    pub counts: Vec<u64>,
    log: Option<SpikeLog>,
    traces: Vec<TraceLog>,
}

impl<'a> Kept<'a> {
    /// Of `settings`, whose populations are those from `first` on of what runs; from step `step` on, with these spikes before it.
    ///
    /// # Errors
    /// `Io`; `Checkpoint`, where the folder does not have what was kept before.
    pub fn open(
        settings: &'a Settings,
        folder: RunFolder,
        first: usize,
        step: u64,
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
        Ok(Self { network: &settings.network, folder, hash, counts, log, traces: logs })
    }

    /// Hashes, counts and records spikes, in order and by the network's own numbers of its cells.
    pub fn book(&mut self, spikes: &[Spike], first: &[u64], discard: u64) -> Result<()> {
        self.hash.add(spikes);
        for spike in spikes.iter().filter(|s| s.step >= discard) {
            let p = first.partition_point(|first| *first <= u64::from(spike.cell)) - 1;
            self.counts[p] += 1;
        }
        self.log.as_mut().map_or(Ok(()), |log| log.add(spikes))
    }

    pub fn sync(&self) -> Result<()> {
        self.log.as_ref().map_or(Ok(()), SpikeLog::sync)
    }

    /// How many spikes are recorded.
    pub fn logged(&self) -> u64 {
        self.log.as_ref().map_or(0, SpikeLog::count)
    }

    /// Why there is no `.npz` of its spikes, if there is none.
    pub fn note(&self) -> Option<String> {
        let log = self.log.as_ref().filter(|log| !log.fits_npz())?;
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
        let Some(log) = &self.log else { return traces };
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

/// Refuses to record from here on where what came before was not.
pub(super) fn require_logged(record: bool, spikes: u64, logged: u64) -> Result<()> {
    if record && spikes != logged {
        return Err(Error::checkpoint("the run was begun with --record none, so its spikes cannot be recorded now"));
    }
    Ok(())
}
