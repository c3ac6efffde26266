//! Checkpoints: one file with everything the rest of a run follows from.
//!
//! ```text
//! 8 bytes "chrxspk4" | u64 where the body begins | u64 its length | zeros up to byte 4096 |
//! strengths, each u32 | zeros up to a page of 4096 bytes | eligibilities, each i32 | zeros up to a page | body |
//! 32 bytes SHA-256 of the first 24 bytes and the body
//! body: fingerprint (32) | step u64 | spikes hashed (u32 length, bytes: of all, then of each replica) | spikes logged u64 |
//!       spikes counted (u32, then u64 a population) |
//!       populations u32, each: variables u32, cells u32, values f32 | recent spikes u64, each u64 step, u32 cell |
//!       synapses that change (u32: 0 or 1; then): strengths u64, their sum u64 |
//!       as a GPU has them (u32: 0 or 1; then): up to date as of u32 | cells u64, of each a group u32, spikes u32 and their steps u32 |
//!       entries u64, numbers of one u32, each u32 |
//!       under way u64, each u32 ahead, u64 slot, i32 units | eligibilities u64, their sum u64 |
//!       windows u32, each: cells u64, each u32 | levels u32, each u32 step, u32 level
//! ```
//! The fingerprint is that of the resolved configuration; connectivity is not stored, since it follows from that. Random
//! numbers have no state. Inputs that are under way follow from the recent spikes, but for those of synapses that change. Sums are those
//! of `snapshot.rs`: what is large comes first, from devices and by several threads, and what is said of it after it.

use super::learned::Behind;
use super::snapshot::{self, PAGE, Section, Snapshot, Stored};
use super::{Learned, Spike, State};
use crate::files::write_aside;
use crate::spiking::record::SpikeHash;
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

const MAGIC: &[u8; 8] = b"chrxspk4";
/// What the checksum has of the first page.
const HEAD: usize = 24;
const CHECKSUM: u64 = 32;

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

/// What a checkpoint has beside a state.
#[derive(Debug, Clone)]
pub struct Around {
    /// As of [`Checkpoint`].
    pub fingerprint: [u8; 32],
    /// Likewise.
    pub hash: SpikeHash,
    /// Likewise.
    pub replicas: Vec<SpikeHash>,
    /// Likewise.
    pub logged: u64,
    /// Likewise.
    pub counts: Vec<u64>,
}

impl Around {
    /// Writes a checkpoint of `snapshot` aside, and renames.
    ///
    /// # Errors
    /// `Io`, and what the device refuses; then the file that was there is what it was.
    pub fn write(self, snapshot: Box<dyn Snapshot>, path: &Path) -> Result<()> {
        let Self { fingerprint, hash, replicas, logged, counts } = self;
        write_aside(path, |file| {
            let (state, sections) = snapshot.write(file, path, PAGE)?;
            let checkpoint = Checkpoint { fingerprint, state, hash, replicas, logged, counts };
            let body = checkpoint.body(sections);
            let at = sections[1].next().max(PAGE);
            let head = head(at, &body);
            let mut file = file;
            let mut put = |offset: u64, bytes: &[u8]| {
                file.seek(SeekFrom::Start(offset))?;
                file.write_all(bytes)
            };
            let done = put(at, &body).and_then(|()| put(at + body.len() as u64, &checksum(&head, &body)));
            done.and_then(|()| put(0, &head)).map_err(|e| Error::io("write", path, &e))
        })
    }
}

/// The first bytes of a file whose body begins at `at`.
fn head(at: u64, body: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..16].copy_from_slice(&at.to_le_bytes());
    head[16..].copy_from_slice(&(body.len() as u64).to_le_bytes());
    head
}

fn checksum(head: &[u8], body: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new_with_prefix(head);
    hash.update(body);
    hash.finalize().into()
}

/// Where the body lies of a file of `len` bytes that begins with `head`, and its length; or what is wrong.
fn body_at(head: &[u8], len: u64) -> std::result::Result<(u64, usize), &'static str> {
    if !head.starts_with(MAGIC) {
        let other = head.starts_with(&MAGIC[..7]);
        return Err(if other {
            "it is a checkpoint of another version"
        } else {
            "it is no checkpoint of a simulation"
        });
    }
    const CUT: &str = "it is cut off, or more than a checkpoint";
    let number = |at: usize| head.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
    let (at, body) = number(8).zip(number(16)).ok_or(CUT)?;
    let end = at.checked_add(body).and_then(|end| end.checked_add(CHECKSUM));
    let fits = end == Some(len) && at >= PAGE && at.is_multiple_of(PAGE);
    let body = usize::try_from(body).ok().filter(|_| fits).ok_or(CUT)?;
    Ok((at, body))
}

impl Checkpoint {
    /// What a file begins with.
    pub const MAGIC: &[u8; 8] = MAGIC;

    fn body(&self, [strengths, eligible]: [Section; 2]) -> Vec<u8> {
        let mut b = self.fingerprint.to_vec();
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
            b.extend(strengths.count.to_le_bytes());
            b.extend(strengths.sum.to_le_bytes());
            b.extend(u32::from(learned.behind.is_some()).to_le_bytes());
            if let Some(behind) = &learned.behind {
                b.extend(behind.settled.to_le_bytes());
                b.extend((behind.groups.len() as u64).to_le_bytes());
                for (group, past) in behind.groups.iter().zip(&behind.past) {
                    b.extend(group.to_le_bytes());
                    b.extend((past.len() as u32).to_le_bytes());
                    b.extend(past.iter().flat_map(|x| x.to_le_bytes()));
                }
            }
            b.extend((learned.entries.len() as u64).to_le_bytes());
            b.extend((learned.entries.first().map_or(0, Vec::len) as u32).to_le_bytes());
            b.extend(learned.entries.iter().flatten().flat_map(|x| x.to_le_bytes()));
            b.extend((learned.under_way.len() as u64).to_le_bytes());
            for (ahead, slot, units) in &learned.under_way {
                b.extend(ahead.to_le_bytes());
                b.extend(slot.to_le_bytes());
                b.extend(units.to_le_bytes());
            }
            b.extend(eligible.count.to_le_bytes());
            b.extend(eligible.sum.to_le_bytes());
            b.extend((learned.counts.len() as u32).to_le_bytes());
            for counts in &learned.counts {
                b.extend((counts.len() as u64).to_le_bytes());
                b.extend(counts.iter().flat_map(|x| x.to_le_bytes()));
            }
            b.extend((learned.levels.len() as u32).to_le_bytes());
            b.extend(learned.levels.iter().flatten().flat_map(|x| x.to_le_bytes()));
        }
        b
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = vec![0; PAGE as usize];
        let mut add = |numbers: &[u32]| {
            b.resize((b.len() as u64).next_multiple_of(PAGE) as usize, 0);
            let section =
                Section { offset: b.len() as u64, count: numbers.len() as u64, sum: snapshot::sum(0, numbers) };
            b.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
            section
        };
        let mut sections = [Section { offset: PAGE, ..Section::default() }; 2];
        if let Some(learned) = &self.state.learned {
            let eligible: Vec<u32> = learned.eligible.iter().map(|x| *x as u32).collect();
            sections = [add(&learned.strengths), add(&eligible)];
        }
        b.resize((b.len() as u64).next_multiple_of(PAGE) as usize, 0);
        let body = self.body(sections);
        let head = head(b.len() as u64, &body);
        b[..HEAD].copy_from_slice(&head);
        b.extend(&body);
        b.extend(checksum(&head, &body));
        b
    }

    /// Reads a file; `path` is what messages call it.
    ///
    /// # Errors
    /// `Checkpoint`, where the bytes are not a whole and undamaged checkpoint of this format.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self> {
        let refuse = |what: &str| Error::checkpoint(format!("{}: {what}", path.display()));
        let (at, len) = body_at(bytes, bytes.len() as u64).map_err(refuse)?;
        let (pages, rest) = bytes.split_at(at as usize);
        let (mut c, sections) = Self::from_body(&pages[..HEAD], rest, len, at).map_err(refuse)?;
        let mut next = HEAD;
        let mut numbers = |section: Section| {
            let zeros = &pages[next..section.offset as usize];
            let own = pages.get(section.offset as usize..section.end()? as usize)?;
            next = section.offset as usize + own.len();
            let numbers: Vec<u32> = own.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            (snapshot::sum(0, &numbers) == section.sum && zeros.iter().all(|x| *x == 0)).then_some(numbers)
        };
        const DAMAGED: &str = "the sum of its synapses does not fit: it is damaged";
        let [strengths, eligible] = sections;
        let both = numbers(strengths).zip(numbers(eligible)).ok_or_else(|| refuse(DAMAGED))?;
        if pages[next..].iter().any(|x| *x != 0) {
            return Err(refuse(DAMAGED));
        }
        if let Some(learned) = &mut c.state.learned {
            learned.strengths = both.0;
            learned.eligible = both.1.into_iter().map(|x| x as i32).collect();
        }
        Ok(c)
    }

    /// Reads a file but for the strengths and eligibilities of synapses, which stay in it.
    ///
    /// # Errors
    /// `Checkpoint`, where it is not a whole checkpoint of this format, or what was read is damaged; `Io`.
    pub fn open(path: &Path) -> Result<(Self, Stored)> {
        let refuse = |what: &str| Error::checkpoint(format!("{}: {what}", path.display()));
        let fail = |e: std::io::Error| Error::checkpoint(format!("cannot read {}: {e}", path.display()));
        let file = File::open(path).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        let mut from = &file;
        let mut head = Vec::new();
        from.take(HEAD as u64).read_to_end(&mut head).map_err(fail)?;
        let (at, body) = body_at(&head, len).map_err(refuse)?;
        from.seek(SeekFrom::Start(at)).map_err(fail)?;
        let mut rest = Vec::new();
        from.take(body as u64 + CHECKSUM).read_to_end(&mut rest).map_err(fail)?;
        let (checkpoint, [strengths, eligible]) = Self::from_body(&head, &rest, body, at).map_err(refuse)?;
        Ok((checkpoint, Stored { file, path: path.to_path_buf(), strengths, eligible }))
    }

    /// From a body of `len` bytes with its checksum, which begins at byte `at`; where its numbers lie before it.
    fn from_body(
        head: &[u8],
        rest: &[u8],
        len: usize,
        at: u64,
    ) -> std::result::Result<(Self, [Section; 2]), &'static str> {
        let (body, sum) = rest.split_at_checked(len).ok_or("it is cut off")?;
        if checksum(head, body).as_slice() != sum {
            return Err("its checksum does not fit: it is damaged");
        }
        let mut reader = Reader { bytes: body, sections: [Section { offset: PAGE, ..Section::default() }; 2] };
        let read = reader.checkpoint().filter(|_| reader.bytes.is_empty());
        let [strengths, mut eligible] = reader.sections;
        eligible.offset = strengths.next();
        // Everything before the body is theirs.
        let fits = strengths.end().is_some() && eligible.end().is_some() && eligible.next() == at;
        read.filter(|_| fits).map(|c| (c, [strengths, eligible])).ok_or("its parts do not fit together")
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    /// Of strengths and eligibilities: how many, and their sums.
    sections: [Section; 2],
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
    fn behind(&mut self) -> Option<Behind> {
        let mut behind = Behind { settled: self.u32()?, ..Behind::default() };
        for _ in 0..self.u64()? {
            behind.groups.push(self.u32()?);
            let count = self.u32()? as usize;
            behind.past.push(self.u32s(count)?.collect());
        }
        Some(behind)
    }
    fn learned(&mut self) -> Option<Learned> {
        (self.sections[0].count, self.sections[0].sum) = (self.u64()?, self.u64()?);
        let behind = match self.u32()? {
            0 => None,
            1 => Some(Box::new(self.behind()?)),
            _ => return None,
        };
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
        (self.sections[1].count, self.sections[1].sum) = (self.u64()?, self.u64()?);
        let mut counts = Vec::new();
        for _ in 0..self.u32()? {
            let cells = usize::try_from(self.u64()?).ok()?;
            counts.push(self.u32s(cells)?.collect());
        }
        let mut levels = Vec::new();
        for _ in 0..self.u32()? {
            levels.push([self.u32()?, self.u32()?]);
        }
        let (strengths, eligible) = Default::default();
        Some(Learned { strengths, behind, entries, under_way, eligible, counts, levels })
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
            behind: Some(Box::new(Behind { groups: vec![1, 0], settled: 7, past: vec![vec![2, 5], vec![]] })),
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

    /// Written to a file from a state, it has the same bytes; its numbers are read from it when they are asked for.
    #[test]
    fn a_file_has_the_same_bytes() {
        let folder = std::env::temp_dir().join(format!("chronaxie-checkpoint-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state.bin");
        for c in [sample(), learned()] {
            let Checkpoint { fingerprint, state, hash, replicas, logged, counts } = c.clone();
            let around = Around { fingerprint, hash, replicas, logged, counts };
            around.write(Box::new(snapshot::Captured(state)), &path).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), c.to_bytes());
            let (mut read, stored) = Checkpoint::open(&path).unwrap();
            stored.fill(&mut read.state).unwrap();
            assert_eq!(read, c);
        }
        let good = learned().to_bytes();
        let says = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let filled = Checkpoint::open(&path).and_then(|(mut c, stored)| stored.fill(&mut c.state));
            filled.unwrap_err().to_string()
        };
        for end in [0, 6, 8, 20, 24, 4096, good.len() - 1] {
            let e = says(&good[..end]);
            assert!(e.contains("no checkpoint") || e.contains("cut off"), "{end}: {e}");
        }
        for at in [4096, 4107, 8192, 8203] {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(says(&bad).contains("the sum of its synapses does not fit"), "{at}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
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
            let at = u64::from_le_bytes(good[8..16].try_into().unwrap()) as usize;
            let mut body = good[at..good.len() - 32].to_vec();
            body.truncate(rng.below(body.len() as u64 + 1) as usize);
            for _ in 0..rng.below(4).min(body.len() as u64) {
                let at = rng.below(body.len() as u64) as usize;
                body[at] = rng.next_u32() as u8;
            }
            let head = head(at as u64, &body);
            let mut bytes = good[..at].to_vec();
            bytes[..HEAD].copy_from_slice(&head);
            bytes.extend(&body);
            bytes.extend(checksum(&head, &body));
            let _ = Checkpoint::from_bytes(&bytes, Path::new("c"));
        }
    }
}
