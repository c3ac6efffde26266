//! Checkpoints: one file with everything the rest of a run follows from.
//!
//! ```text
//! 8 bytes "chrxspk3" | u64 length of the rest without the checksum | body | 32 bytes SHA-256 of all before
//! body: fingerprint (32) | step u64 | spikes hashed (u32 length, bytes: of all, then of each replica) | spikes logged u64 |
//!       spikes counted (u32, then u64 a population) |
//!       populations u32, each: variables u32, cells u32, values f32 | recent spikes u64, each u64 step, u32 cell |
//!       synapses that change (u32: 0 or 1; then): strengths u64, each u32 | entries u64, numbers of one u32, each u32 |
//!       under way u64, each u32 ahead, u64 slot, i32 units | eligibilities u64, each i32 |
//!       windows u32, each: cells u64, each u32 | levels u32, each u32 step, u32 level
//! ```
//! The fingerprint is that of the resolved configuration; connectivity is not stored, since it follows from that. Random
//! numbers have no state. Inputs that are under way follow from the recent spikes, but for those of synapses that change.

use super::{Learned, Spike, State};
use crate::spiking::record::SpikeHash;
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::path::Path;

const MAGIC: &[u8; 8] = b"chrxspk3";

/// A run between two steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// SHA-256 of what the network was made from.
    pub fingerprint: [u8; 32],
    /// The engine's state.
    pub state: State,
    /// The hash of all spikes so far.
    pub hash: SpikeHash,
    /// Likewise of each of several networks side by side, by its own numbers of its cells.
    pub replicas: Vec<SpikeHash>,
    /// How many spikes the log holds.
    pub logged: u64,
    /// Spikes of each population after the discarded time.
    pub counts: Vec<u64>,
}

impl Checkpoint {
    /// What a file begins with.
    pub const MAGIC: &[u8; 8] = MAGIC;
    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = MAGIC.to_vec();
        b.extend([0; 8]);
        b.extend(self.fingerprint);
        b.extend(self.state.step.to_le_bytes());
        let hash: Vec<u8> = std::iter::once(&self.hash).chain(&self.replicas).flat_map(SpikeHash::to_bytes).collect();
        b.extend((hash.len() as u32).to_le_bytes());
        b.extend(hash);
        b.extend(self.logged.to_le_bytes());
        b.extend((self.counts.len() as u32).to_le_bytes());
        b.extend(self.counts.iter().flat_map(|n| n.to_le_bytes()));
        b.extend((self.state.variables.len() as u32).to_le_bytes());
        for population in &self.state.variables {
            let cells = population.first().map_or(0, Vec::len);
            b.extend((population.len() as u32).to_le_bytes());
            b.extend((cells as u32).to_le_bytes());
            b.extend(population.iter().flatten().flat_map(|x| x.to_le_bytes()));
        }
        b.extend((self.state.recent.len() as u64).to_le_bytes());
        for spike in &self.state.recent {
            b.extend(spike.step.to_le_bytes());
            b.extend(spike.cell.to_le_bytes());
        }
        b.extend(u32::from(self.state.learned.is_some()).to_le_bytes());
        if let Some(learned) = &self.state.learned {
            b.extend((learned.strengths.len() as u64).to_le_bytes());
            b.extend(learned.strengths.iter().flat_map(|x| x.to_le_bytes()));
            b.extend((learned.entries.len() as u64).to_le_bytes());
            b.extend((learned.entries.first().map_or(0, Vec::len) as u32).to_le_bytes());
            b.extend(learned.entries.iter().flatten().flat_map(|x| x.to_le_bytes()));
            b.extend((learned.under_way.len() as u64).to_le_bytes());
            for (ahead, slot, units) in &learned.under_way {
                b.extend(ahead.to_le_bytes());
                b.extend(slot.to_le_bytes());
                b.extend(units.to_le_bytes());
            }
            b.extend((learned.eligible.len() as u64).to_le_bytes());
            b.extend(learned.eligible.iter().flat_map(|x| x.to_le_bytes()));
            b.extend((learned.counts.len() as u32).to_le_bytes());
            for counts in &learned.counts {
                b.extend((counts.len() as u64).to_le_bytes());
                b.extend(counts.iter().flat_map(|x| x.to_le_bytes()));
            }
            b.extend((learned.levels.len() as u32).to_le_bytes());
            b.extend(learned.levels.iter().flatten().flat_map(|x| x.to_le_bytes()));
        }
        let len = (b.len() - 16) as u64;
        b[8..16].copy_from_slice(&len.to_le_bytes());
        let sum = Sha256::digest(&b);
        b.extend(sum);
        b
    }

    /// Reads a file; `path` is what messages call it.
    ///
    /// # Errors
    /// `Checkpoint`, where the bytes are not a whole and undamaged checkpoint of this format.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self> {
        let refuse = |what: &str| Error::checkpoint(format!("{}: {what}", path.display()));
        if !bytes.starts_with(MAGIC) {
            let newer = bytes.starts_with(&MAGIC[..7]);
            let what =
                if newer { "it is a checkpoint of another version" } else { "it is no checkpoint of a simulation" };
            return Err(refuse(what));
        }
        let told = bytes.get(8..16).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
        let Some(body) = bytes.len().checked_sub(48).filter(|len| Some(*len as u64) == told) else {
            return Err(refuse("it is cut off, or more than a checkpoint"));
        };
        let (content, sum) = bytes.split_at(16 + body);
        if Sha256::digest(content).as_slice() != sum {
            return Err(refuse("its checksum does not fit: it is damaged"));
        }
        let mut reader = Reader { bytes: &content[16..] };
        reader.checkpoint().filter(|_| reader.bytes.is_empty()).ok_or_else(|| refuse("its parts do not fit together"))
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(head)
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
    fn checkpoint(&mut self) -> Option<Checkpoint> {
        let fingerprint = self.take(32)?.try_into().ok()?;
        let step = self.u64()?;
        let len = self.u32()? as usize;
        let mut hashes = SpikeHash::list_from_bytes(self.take(len)?)?.into_iter();
        let (hash, replicas) = (hashes.next()?, hashes.collect());
        let logged = self.u64()?;
        let mut counts = Vec::new();
        for _ in 0..self.u32()? {
            counts.push(self.u64()?);
        }
        let mut variables = Vec::new();
        for _ in 0..self.u32()? {
            let (count, cells) = (self.u32()? as usize, self.u32()? as usize);
            // No model has as many; without cells, nothing else would bound the loop.
            if count > 64 {
                return None;
            }
            let mut population = Vec::new();
            for _ in 0..count {
                let raw = self.take(cells.checked_mul(4)?)?;
                population.push(raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect());
            }
            variables.push(population);
        }
        let mut recent = Vec::new();
        for _ in 0..self.u64()? {
            recent.push(Spike { step: self.u64()?, cell: self.u32()? });
        }
        let learned = match self.u32()? {
            0 => None,
            1 => Some(self.learned()?),
            _ => return None,
        };
        let state = State { step, variables, recent, learned };
        Some(Checkpoint { fingerprint, state, hash, replicas, logged, counts })
    }
    fn u32s(&mut self, count: usize) -> Option<impl Iterator<Item = u32> + 'a> {
        let raw = self.take(count.checked_mul(4)?)?;
        Some(raw.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
    }
    fn learned(&mut self) -> Option<Learned> {
        let count = usize::try_from(self.u64()?).ok()?;
        let strengths = self.u32s(count)?.collect();
        let cells = usize::try_from(self.u64()?).ok()?;
        let width = self.u32()? as usize;
        // An entry has at least its step.
        if width == 0 && cells > 0 {
            return None;
        }
        let numbers: Vec<u32> = self.u32s(cells.checked_mul(width)?)?.collect();
        let entries = numbers.chunks_exact(width.max(1)).map(<[u32]>::to_vec).collect();
        let mut under_way = Vec::new();
        for _ in 0..self.u64()? {
            under_way.push((self.u32()?, self.u64()?, self.u32()? as i32));
        }
        let count = usize::try_from(self.u64()?).ok()?;
        let eligible = self.u32s(count)?.map(|x| x as i32).collect();
        let mut counts = Vec::new();
        for _ in 0..self.u32()? {
            let cells = usize::try_from(self.u64()?).ok()?;
            counts.push(self.u32s(cells)?.collect());
        }
        let mut levels = Vec::new();
        for _ in 0..self.u32()? {
            levels.push([self.u32()?, self.u32()?]);
        }
        Some(Learned { strengths, entries, under_way, eligible, counts, levels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Checkpoint {
        let mut hash = SpikeHash::default();
        let recent = vec![Spike { step: 5, cell: 1 }, Spike { step: 6, cell: 0 }];
        hash.add(&recent);
        let variables = vec![vec![vec![1.5, -2.0], vec![0.0, f32::MIN]], vec![], vec![vec![3.0]]];
        Checkpoint {
            fingerprint: [7; 32],
            state: State { step: 9, variables, recent, learned: None },
            replicas: vec![SpikeHash::default(), hash.clone()],
            hash,
            logged: 2,
            counts: vec![3, 4],
        }
    }

    fn learned() -> Checkpoint {
        let mut c = sample();
        c.state.learned = Some(Learned {
            strengths: vec![1, 70_000, u32::MAX],
            entries: vec![vec![3, 9], vec![u32::MAX, 0]],
            under_way: vec![(0, 5, -7), (2, 1 << 40, 3)],
            eligible: vec![0, -5, i32::MIN],
            counts: vec![vec![1, 2], vec![3, 4]],
            levels: vec![[7, 8], [u32::MAX, 0]],
        });
        c
    }

    #[test]
    fn a_checkpoint_reads_back() {
        for c in [sample(), learned()] {
            assert_eq!(Checkpoint::from_bytes(&c.to_bytes(), Path::new("c")).unwrap(), c);
        }
    }

    #[test]
    fn cut_damaged_and_foreign_files_are_refused() {
        let good = learned().to_bytes();
        for end in 0..good.len() {
            let e = Checkpoint::from_bytes(&good[..end], Path::new("c")).unwrap_err();
            assert_eq!(e.kind(), &crate::ErrorKind::Checkpoint);
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(Checkpoint::from_bytes(&bad, Path::new("c")).is_err(), "byte {at}");
        }
        let says = |bytes: &[u8]| Checkpoint::from_bytes(bytes, Path::new("c")).unwrap_err().to_string();
        assert!(says(b"PNG").contains("no checkpoint"));
        assert!(says(b"chrxspk1").contains("another version"));
        assert!(says(&good[..good.len() - 1]).contains("cut off"));
    }

    /// Bytes whose checksum fits, so that the reader itself is attacked.
    #[test]
    fn no_bytes_make_it_panic() {
        let good = learned().to_bytes();
        let mut rng = crate::rng::Rng::new(6, 0);
        for _ in 0..20_000 {
            let mut body = good[16..good.len() - 32].to_vec();
            body.truncate(rng.below(body.len() as u64 + 1) as usize);
            for _ in 0..rng.below(4).min(body.len() as u64) {
                let at = rng.below(body.len() as u64) as usize;
                body[at] = rng.next_u32() as u8;
            }
            let mut bytes = MAGIC.to_vec();
            bytes.extend((body.len() as u64).to_le_bytes());
            bytes.extend(body);
            let sum = Sha256::digest(&bytes);
            bytes.extend(sum);
            let _ = Checkpoint::from_bytes(&bytes, Path::new("c"));
        }
    }
}
