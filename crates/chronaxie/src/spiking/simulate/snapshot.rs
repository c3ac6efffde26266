//! What an engine was in at a step, on its way to a file while the engine goes on; and the numbers of synapses in such a file.

use super::parts::Keys;
use super::{Engine, State};
use crate::{Error, Result, pool};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Numbers that are read, written and summed at a time.
const PIECE: usize = 1 << 20;
/// What numbers in a file begin at a multiple of, bytes: devices read whole pages.
pub const PAGE: u64 = 4096;

/// Where an engine was between two steps. It holds all of it, so that the engine may go on.
pub trait Snapshot: Send {
    /// The step.
    fn step(&self) -> u64;
    /// All of it, in the host's memory.
    ///
    /// # Errors
    /// What the device refuses.
    fn collect(self: Box<Self>) -> Result<State>;
    /// Writes the strengths and eligibilities of synapses that change to `file` from byte `from` on, each from a whole page on. The state
    /// without them, and where they lie.
    ///
    /// # Errors
    /// `Io`, and what the device refuses.
    fn write(self: Box<Self>, file: &File, path: &Path, from: u64) -> Result<(State, [Section; 2])> {
        write_state(self.collect()?, file, path, from)
    }
}

/// A state in the host's memory.
pub(super) struct Captured(pub State);

impl Snapshot for Captured {
    fn step(&self) -> u64 {
        self.0.step
    }
    fn collect(self: Box<Self>) -> Result<State> {
        Ok(self.0)
    }
}

/// As [`Snapshot::write`].
fn write_state(mut state: State, file: &File, path: &Path, from: u64) -> Result<(State, [Section; 2])> {
    let mut sections = [Section { offset: from, ..Section::default() }; 2];
    if let Some(learned) = &mut state.learned {
        sections[0] = write_numbers(file, path, from, &std::mem::take(&mut learned.strengths))?;
        let eligible: Vec<u32> = std::mem::take(&mut learned.eligible).into_iter().map(|x| x as u32).collect();
        sections[1] = write_numbers(file, path, sections[0].next(), &eligible)?;
    }
    Ok((state, sections))
}

/// Numbers of four bytes in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Section {
    /// The first byte.
    pub offset: u64,
    /// How many numbers.
    pub count: u64,
    /// Their [`sum`].
    pub sum: u64,
}

impl Section {
    /// One after the last byte, or nothing where no file has as many.
    pub fn end(&self) -> Option<u64> {
        self.count.checked_mul(4)?.checked_add(self.offset)
    }
    /// Where the page after it begins.
    pub fn next(&self) -> u64 {
        self.end().unwrap_or(u64::MAX - PAGE).next_multiple_of(PAGE)
    }
}

/// What a number adds to a sum, by its place: a product that any change of either changes. `mixed` of snapshot.cu is the same.
fn mixed(index: u64, number: u32) -> u64 {
    let place = (index as u32).wrapping_add(1);
    let a = number ^ place.wrapping_mul(0x9E37_79B1);
    let b = number.wrapping_mul(0x85EB_CA6B).wrapping_add(place.wrapping_mul(0xC2B2_AE35));
    u64::from(a) * u64::from(b)
}

/// The sum by which damaged numbers are found, of those from number `first` on: of each a product with its place, modulo 2^64, so that
/// any thread may add any of them, on a device too, where it is to take no time.
pub fn sum(first: u64, numbers: &[u32]) -> u64 {
    numbers.iter().enumerate().fold(0, |sum, (i, x)| sum.wrapping_add(mixed(first + i as u64, *x)))
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}
#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}
#[cfg(not(unix))]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    use std::io::{Seek as _, SeekFrom, Write as _};
    let mut own = file.try_clone()?;
    own.seek(SeekFrom::Start(offset))?;
    own.write_all(bytes)
}
#[cfg(not(unix))]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut own = file.try_clone()?;
    own.seek(SeekFrom::Start(offset))?;
    own.read_exact(bytes)
}

/// Calls `with(piece, first)` for pieces of numbers, on all threads where files have places to read and write at; the sum of what
/// they say, or the first error.
fn each_piece<T: Send>(
    numbers: impl Iterator<Item = T>,
    with: impl Fn(T, u64) -> std::io::Result<u64> + Sync,
) -> std::io::Result<u64> {
    let pieces: Vec<_> = numbers.map(|piece| Mutex::new(Some(piece))).collect();
    let all = Mutex::new(Ok(0u64));
    let one = |k: usize| {
        let piece = pieces[k].lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(piece) = piece else { return };
        let own = with(piece, (k * PIECE) as u64);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        *all = match (std::mem::replace(&mut *all, Ok(0)), own) {
            (Ok(all), Ok(own)) => Ok(all.wrapping_add(own)),
            (Err(e), _) | (_, Err(e)) => Err(e),
        };
    };
    if cfg!(unix) {
        pool::for_each(pieces.len(), one);
    } else {
        (0..pieces.len()).for_each(one);
    }
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Writes numbers to a file.
///
/// # Errors
/// `Io`.
pub(super) fn write_numbers(file: &File, path: &Path, offset: u64, numbers: &[u32]) -> Result<Section> {
    let sum = each_piece(numbers.chunks(PIECE), |piece, first| {
        let bytes: Vec<u8> = piece.iter().flat_map(|x| x.to_le_bytes()).collect();
        write_at(file, &bytes, offset + 4 * first)?;
        Ok(sum(first, piece))
    });
    let sum = sum.map_err(|e| Error::io("write", path, &e))?;
    Ok(Section { offset, count: numbers.len() as u64, sum })
}

/// Strengths and eligibilities that lie in a checkpoint's file.
#[derive(Debug)]
pub struct Stored {
    /// The file.
    pub file: File,
    /// What it is called.
    pub path: PathBuf,
    /// The strengths.
    pub strengths: Section,
    /// The eligibilities.
    pub eligible: Section,
}

impl Stored {
    /// Says that numbers are not those that were written.
    pub(super) fn damaged(&self) -> Error {
        Error::checkpoint(format!("{}: the sum of its synapses does not fit: it is damaged", self.path.display()))
    }

    fn read(&self, section: Section) -> Result<Vec<u32>> {
        // The file was found to be as long.
        let mut numbers = vec![0u32; section.count as usize];
        let all = each_piece(numbers.chunks_mut(PIECE), |piece, first| {
            let mut bytes = vec![0; 4 * piece.len()];
            read_at(&self.file, &mut bytes, section.offset + 4 * first)?;
            let read = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            piece.iter_mut().zip(read).for_each(|(to, x)| *to = x);
            Ok(sum(first, piece))
        });
        let all = all.map_err(|e| Error::io("read", &self.path, &e))?;
        if all == section.sum { Ok(numbers) } else { Err(self.damaged()) }
    }

    /// Brings them into a state.
    ///
    /// # Errors
    /// `Io`; `Checkpoint`, where they are damaged.
    pub fn fill(&self, state: &mut State) -> Result<()> {
        let Some(learned) = &mut state.learned else { return Ok(()) };
        learned.strengths = self.read(self.strengths)?;
        learned.eligible = self.read(self.eligible)?.into_iter().map(|x| x as i32).collect();
        Ok(())
    }
}

/// Goes to the state of a checkpoint, whose synapses may lie in its file still.
pub(super) fn resume<E: Engine + ?Sized>(engine: &mut E, mut state: State, stored: Option<&Stored>) -> Result<()> {
    if let Some(stored) = stored {
        stored.fill(&mut state)?;
    }
    let state = in_order(state, || engine.order())?;
    engine.restore(&state)
}

/// A state whose strengths are in the order of [`Learned`](super::Learned), from one that may have them by groups; `keys` says what the
/// synapses of the network are known by.
///
/// # Errors
/// `Checkpoint`, where they are not those of the network.
pub fn in_order(mut state: State, keys: impl FnOnce() -> Result<Option<Keys>>) -> Result<State> {
    let Some(learned) = state.learned.as_mut().filter(|l| !l.groups.is_empty()) else { return Ok(state) };
    let misfit = || Error::checkpoint("the synapses of the state are not those of this network");
    let keys = keys()?.ok_or_else(misfit)?;
    let groups = std::mem::take(&mut learned.groups);
    let ordered = ordered(&groups, &learned.strengths, &keys).ok_or_else(misfit)?;
    learned.strengths = ordered;
    Ok(state)
}

/// Strengths that lie by the group of their target first, in the order of their keys.
fn ordered(groups: &[u32], strengths: &[u32], keys: &Keys) -> Option<Vec<u32>> {
    let group = |key: u64| groups.get(key as u32 as usize).map(|g| *g as usize);
    if keys.keys.len() != strengths.len() {
        return None;
    }
    // Where each group begins; a group's synapses come in the order in which the keys have them.
    let mut at = vec![0usize; groups.iter().max().map_or(0, |g| *g as usize + 1)];
    for key in &keys.keys {
        at[group(*key)?] += 1;
    }
    let mut sum = 0;
    at.iter_mut().for_each(|at| sum += std::mem::replace(at, sum));
    let mut all = Vec::with_capacity(strengths.len());
    for key in &keys.keys {
        let at = &mut at[group(*key)?];
        all.push(strengths[*at]);
        *at += 1;
    }
    // Those that are alike are in the order of their strengths.
    let mut from = 0;
    for row in &keys.rows {
        let end = from + *row as usize;
        let (own, strengths) = (keys.keys.get(from..end)?, all.get_mut(from..end)?);
        let mut i = 0;
        for alike in own.chunk_by(|a, b| a == b) {
            if alike.len() > 1 {
                strengths[i..i + alike.len()].sort_unstable();
            }
            i += alike.len();
        }
        from = end;
    }
    (from == all.len()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_depend_on_who_adds_and_find_what_changed() {
        let numbers: Vec<u32> = (0..5000u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let all = sum(0, &numbers);
        assert_eq!(all, sum(0, &numbers[..777]).wrapping_add(sum(777, &numbers[777..])));
        for at in [0, 1, 4999] {
            let mut other = numbers.clone();
            other[at] ^= 1 << (at % 32);
            assert_ne!(all, sum(0, &other), "{at}");
        }
        let mut other = numbers.clone();
        other.swap(3, 4);
        assert_ne!(all, sum(0, &other));
        assert_ne!(sum(0, &[0]), sum(0, &[0, 0]));
        // What snapshot.cu is held to.
        assert_eq!(mixed(0, 0), 0x9E37_79B1 * 0xC2B2_AE35);
    }

    #[test]
    fn groups_are_put_in_order() {
        // Two sources; targets 0, 1, 2 in the groups 1, 0, 1; a key is delay << 41 | rule << 32 | target.
        let key = |delay: u64, target: u64| delay << 41 | target;
        let keys =
            Keys { rows: vec![4, 2], keys: vec![key(1, 0), key(1, 1), key(2, 0), key(2, 0), key(1, 1), key(3, 2)] };
        // Group 0: source 0 target 1, source 1 target 1; group 1: source 0 target 0 at 1, 2 and 2, source 1 target 2.
        let strengths = [10, 11, 20, 22, 21, 23];
        let all = ordered(&[1, 0, 1], &strengths, &keys).unwrap();
        assert_eq!(all, [20, 10, 21, 22, 11, 23]);
        assert_eq!(ordered(&[1, 0], &strengths, &keys), None);
        assert_eq!(ordered(&[1, 0, 1], &strengths[1..], &keys), None);
        let short = Keys { rows: vec![4], ..keys.clone() };
        assert_eq!(ordered(&[1, 0, 1], &strengths, &short), None);
        let long = Keys { rows: vec![4, 3], ..keys };
        assert_eq!(ordered(&[1, 0, 1], &strengths, &long), None);
    }
}
