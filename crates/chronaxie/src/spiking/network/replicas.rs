//! Replicas: networks side by side in one, so that small ones fill a device together. Nothing joins one to another, and each draws by
//! its own seed and its own numbers, so that its spikes are those of a run of its own, bit for bit.

use super::Network;
use crate::{Error, Result};

/// Where a replica begins; it ends where the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    /// Names its random numbers.
    pub seed: u64,
    /// Its first population.
    pub population: usize,
    /// Its first projection.
    pub projection: usize,
    /// Its first drive.
    pub drive: usize,
}

/// By what something is drawn: a seed, and its number in the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The replica's seed.
    pub seed: u64,
    /// The number of the population, projection or drive.
    pub owner: u32,
}

impl Network {
    /// These networks side by side. Populations are called `NAME#K` in replica `K`, from 0; seeds may be equal.
    ///
    /// # Errors
    /// `Config` for none, for steps that differ, for networks without a population, and for such as are several themselves.
    pub fn together(networks: &[Self]) -> Result<Self> {
        let Some(first) = networks.first() else {
            return Err(Error::config("0 networks cannot run side by side; at least 1"));
        };
        let mut all = Self::new(first.dt_ms, first.seed)?;
        for (k, n) in networks.iter().enumerate() {
            if n.dt_ms.to_bits() != first.dt_ms.to_bits() {
                return Err(Error::config(format!(
                    "replica {k} has steps of {} ms and replica 0 of {} ms; networks side by side have the same",
                    n.dt_ms, first.dt_ms
                )));
            }
            if !n.replicas.is_empty() {
                return Err(Error::config(format!("replica {k} is {} networks already", n.replicas.len())));
            }
            if n.populations.is_empty() {
                return Err(Error::config(format!("replica {k} has no population")));
            }
            if n.lifecycle.is_some() {
                return Err(Error::config(format!(
                    "replica {k} has a life cycle, whose cells die and are born in a network that runs alone; lifecycle.death = false \
                     (cell_lifecycle.enable_death in a file of the original) leaves it"
                )));
            }
            let (population, projection, drive) = (all.populations.len(), all.projections.len(), all.drives.len());
            all.replicas.push(Replica { seed: n.seed, population, projection, drive });
            all.populations.extend(n.populations.iter().cloned().map(|mut p| {
                p.name = format!("{}#{k}", p.name);
                p
            }));
            all.projections.extend(n.projections.iter().cloned().map(|mut p| {
                (p.source, p.target) = (p.source + population, p.target + population);
                if let Some(m) = p.plasticity.as_mut().and_then(|x| x.modulation.as_mut()) {
                    m.population += population;
                }
                p
            }));
            all.drives.extend(n.drives.iter().map(|d| super::Drive { target: d.target + population, ..*d }));
        }
        Ok(all)
    }

    /// The populations of replica `k`; of a network that is one, all of them.
    pub fn populations_of(&self, k: usize) -> std::ops::Range<usize> {
        let at = |k: usize| self.replicas.get(k).map_or(self.populations.len(), |r| r.population);
        if self.replicas.is_empty() { 0..self.populations.len() } else { at(k)..at(k + 1) }
    }

    /// The cells of replica `k`, by their numbers.
    pub fn cells_of(&self, k: usize) -> std::ops::Range<u64> {
        let own = self.populations_of(k);
        let size = |of: &[super::Population]| of.iter().map(|p| u64::from(p.size)).sum::<u64>();
        let first = size(&self.populations[..own.start]);
        first..first + size(&self.populations[own])
    }

    /// Whether the seed of every draw is the network's.
    pub fn has_one_seed(&self) -> bool {
        self.replicas.iter().all(|r| r.seed == self.seed)
    }

    /// Which replica has this population.
    pub fn replica_of(&self, population: usize) -> usize {
        self.replicas.partition_point(|r| r.population <= population).saturating_sub(1)
    }

    /// What it is called in its replica, or in a network that is one.
    pub fn own_name(&self, population: usize) -> &str {
        let name = self.populations[population].name.as_str();
        let own = if self.replicas.is_empty() { None } else { name.rsplit_once('#') };
        own.map_or(name, |(own, _)| own)
    }

    /// By what the cells of a population are drawn.
    pub fn population_key(&self, population: usize) -> Key {
        self.key(population, |r| r.population)
    }

    /// By what the synapses of a projection are drawn.
    pub fn projection_key(&self, projection: usize) -> Key {
        self.key(projection, |r| r.projection)
    }

    /// By what the arrivals of a drive are drawn.
    pub fn drive_key(&self, drive: usize) -> Key {
        self.key(drive, |r| r.drive)
    }

    fn key(&self, index: usize, first: impl Fn(&Replica) -> usize) -> Key {
        // Of replicas that begin alike, since they have none, the last.
        let replica = self.replicas.partition_point(|r| first(r) <= index).checked_sub(1).map(|k| self.replicas[k]);
        let (seed, first) = replica.map_or((self.seed, 0), |r| (r.seed, first(&r)));
        Key { seed, owner: (index - first) as u32 }
    }
}
