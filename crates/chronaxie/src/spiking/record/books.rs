//! What a run does with its spikes as they come.

use super::{SpikeHash, SpikeLog};
use crate::Result;
use crate::spiking::network::Network;
use crate::spiking::simulate::{Spike, runs};

/// Spikes from which on a thread is worth its start: their hash takes 0.5 ms, and to start one may take a tenth of that.
const SHARED: usize = if cfg!(test) { 64 } else { 1 << 16 };

/// The hash of a network's spikes, their counts and their log.
///
/// The hash is one chain, a step of which begins when the one before has ended: of each four spikes 32 instructions of 4 cycles that
/// wait for each other (`sha256rnds2`), 7.5 ns a spike at 4.3 GHz, whatever else a core could do meanwhile. Nothing makes it
/// shorter, so all else is done beside it.
#[derive(Debug)]
pub struct Books {
    /// Of all spikes.
    pub hash: SpikeHash,
    /// Spikes of each population from step `from` on.
    pub counts: Vec<u64>,
    first: Vec<u64>,
    from: u64,
    log: Option<SpikeLog>,
}

impl Books {
    /// Goes on from a hash and counts (of spikes from step `from` on), in a log if there is one.
    pub fn new(network: &Network, from: u64, hash: SpikeHash, counts: Vec<u64>, log: Option<SpikeLog>) -> Self {
        Self { hash, counts, first: network.first_cells(), from, log }
    }

    /// Takes up spikes, in order; `beside` where another thread may count and write them while this one hashes.
    ///
    /// # Errors
    /// `Io`; then the log is what it was.
    pub fn add(&mut self, spikes: &[Spike], beside: bool) -> Result<()> {
        let Self { hash, counts, first, from, log } = self;
        let mut rest = || {
            let counted = &spikes[spikes.partition_point(|s| s.step < *from)..];
            runs(counted, first).for_each(|(p, run)| counts[p] += run.len() as u64);
            log.as_mut().map_or(Ok(()), |log| log.add(spikes))
        };
        if !beside || !hash.hashes() || spikes.len() < SHARED {
            hash.add(spikes);
            return rest();
        }
        std::thread::scope(|scope| {
            let rest = scope.spawn(rest);
            hash.add(spikes);
            rest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Where spikes are recorded.
    pub fn log(&self) -> Option<&SpikeLog> {
        self.log.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sha256_hex;
    use crate::spiking::metrics::Gatherer;
    use crate::spiking::{Population, models};
    use std::path::PathBuf;

    /// Populations of which one has one cell, and spikes that come in steps beyond 2^32, too.
    fn sample() -> (Network, Vec<Spike>) {
        let mut network = Network::new(0.1, 1).unwrap();
        for (name, size) in [("a", 1500), ("b\u{e9}", 1), ("c", 2500)] {
            network.add(Population::new(name, models::find("lif_exp").unwrap(), size));
        }
        let (mut x, mut spikes) = (88_172_645_463_325_252u64, Vec::new());
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        for step in 7..2007u64 {
            let count = next() % 60;
            let mut cells: Vec<u32> = (0..count).map(|_| (next() % 4001) as u32).collect();
            cells.sort_unstable();
            cells.dedup();
            let step = step + u64::from(step > 1000) * (1 << 33);
            spikes.extend(cells.iter().map(|cell| Spike { step, cell: *cell }));
        }
        assert_eq!(spikes.len(), 59_530);
        (network, spikes)
    }

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("chronaxie-books-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    /// The hash (Python's `hashlib` has it too), the files and the statistics of these spikes, as releases before this one had them,
    /// however they come and whoever counts them.
    #[test]
    fn what_is_kept_of_spikes_is_pinned() {
        let (network, spikes) = sample();
        let folder = scratch("pinned");
        for (k, (piece, beside)) in [(1, false), (997, true), (20_000, true), (60_000, true)].into_iter().enumerate() {
            let path = folder.join(k.to_string());
            let log = SpikeLog::open(&path, 0).unwrap();
            let mut books = Books::new(&network, 1000, SpikeHash::default(), vec![0; 3], Some(log));
            spikes.chunks(piece).for_each(|s| books.add(s, beside).unwrap());
            let hash = "3f133a8851c47807adfe931103729acc22ceb52a662a58286513f3cc936fead5";
            assert_eq!(books.hash.hex().as_deref(), Some(hash));
            assert_eq!((books.hash.spikes(), books.log().unwrap().count()), (59_530, 59_530));
            let mut counts = vec![0; 3];
            for s in spikes.iter().filter(|s| s.step >= 1000) {
                counts[usize::from(s.cell >= 1500) + usize::from(s.cell > 1500)] += 1;
            }
            assert_eq!(books.counts, counts);
            let log = sha256_hex(&std::fs::read(&path).unwrap());
            assert_eq!(log, "4671ba604a58c1cd3fcdf7988b9531882b511ce1be38d30d1441c4b05a014856");
            let (npz, parquet) = (folder.join("npz"), folder.join("parquet"));
            books.log().unwrap().export(&npz, &network, 1 << 34).unwrap();
            let bytes = sha256_hex(&std::fs::read(&npz).unwrap());
            assert_eq!(bytes, "62ffe18f4c7c09a23c6e2fd093bee7f8b7fa0c325bc66b3396296e2ff2d866f2");
            books.log().unwrap().export_parquet(&parquet, &network, 1 << 34).unwrap();
            // But for the footer, which names the release.
            let bytes = std::fs::read(&parquet).unwrap();
            let (rest, end) = bytes.split_at(bytes.len() - 8);
            let footer = u32::from_le_bytes(end[..4].try_into().unwrap()) as usize;
            assert_eq!(sha256_hex(&rest[..rest.len() - footer]), PARQUET);
        }
        let early = &spikes[..spikes.partition_point(|s| s.step < 1 << 33)];
        let mut gatherer = Gatherer::new(&network, 100);
        early.chunks(997).for_each(|s| gatherer.add(s));
        let mut bits = Vec::new();
        for s in gatherer.finish(1001) {
            let all = [&[s.rate_hz], &s.rates_hz[..], &s.cvs, &s.correlations].concat();
            bits.extend(all.iter().flat_map(|x| x.to_le_bytes()));
        }
        assert_eq!(sha256_hex(&bits), "e8b7e9b1c793e6e0098800ac21068291dae0a0b4d0e9c032b6d49f0cb2909870");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    const PARQUET: &str = "d334df8b4d3f785890b0fc75d04507f828817cb89aec3620a9a133222475364a";

    /// Ranges of no cell, of one, of all.
    #[test]
    fn runs_are_of_one_range_and_as_long_as_they_can_be() {
        let (_, spikes) = sample();
        let all: Vec<u64> = (0..4001).collect();
        for firsts in [&[0][..], &[0, 0, 4001], &[0, 1500, 1500, 1501], &[0, 3, 4000], &all] {
            let (mut seen, mut before) = (Vec::new(), None);
            for (k, run) in runs(&spikes, firsts) {
                assert!(!run.is_empty() && before.replace(k) != Some(k), "{k} twice");
                let own = |s: &Spike| firsts.partition_point(|f| *f <= u64::from(s.cell)) - 1 == k;
                assert!(run.iter().all(own), "{k} of {} ranges", firsts.len());
                seen.extend_from_slice(run);
            }
            assert!(seen == spikes);
        }
        assert_eq!(runs(&[], &[0]).count(), 0);
    }

    /// Without a hash all else is what it was, also from a checkpoint.
    #[test]
    fn spikes_are_counted_without_a_hash() {
        let (network, spikes) = sample();
        let (a, b) = spikes.split_at(101);
        let mut books = Books::new(&network, 0, SpikeHash::none(), vec![0; 3], None);
        books.add(a, false).unwrap();
        let bytes = [books.hash.to_bytes(), SpikeHash::default().to_bytes()].concat();
        let mut back = SpikeHash::list_from_bytes(&bytes).unwrap();
        assert_eq!((&back[0], &back[1]), (&books.hash, &SpikeHash::default()));
        books.hash = back.swap_remove(0);
        books.add(b, true).unwrap();
        assert_eq!((books.hash.spikes(), books.hash.hex()), (59_530, None));
        assert_eq!(books.counts.iter().sum::<u64>(), 59_530);
        let mut hash = SpikeHash::default();
        hash.add(a);
        hash.stop();
        hash.add(b);
        assert_eq!(hash, books.hash);
    }
}
