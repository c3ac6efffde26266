//! What an engine was in at a step, on its way to a file while the engine goes on; and the numbers of synapses in such a file.

use super::learned::Behind;
use super::parts::Keys;
use super::{Engine, Spike, State};
use crate::positioned::{read_to_end_at, write_all_at};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::{Learning, NEVER, Rule};
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

/// Calls `with(piece, first)` for pieces of numbers, on all threads; the sum of what
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
    pool::for_each(pieces.len(), one);
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Writes numbers to a file.
///
/// # Errors
/// `Io`.
pub(super) fn write_numbers(file: &File, path: &Path, offset: u64, numbers: &[u32]) -> Result<Section> {
    let sum = each_piece(numbers.chunks(PIECE), |piece, first| {
        let bytes: Vec<u8> = piece.iter().flat_map(|x| x.to_le_bytes()).collect();
        write_all_at(file, &bytes, offset + 4 * first)?;
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
            // The file may have been cut off since it was opened.
            if read_to_end_at(&self.file, &mut bytes, section.offset + 4 * first)? < bytes.len() {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
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

/// A state whose strengths are as [`Learned`](super::Learned) has them, from one that may have them as a GPU has; `keys` says what the
/// synapses of the network are known by.
///
/// # Errors
/// `Checkpoint`, where they are not those of the network.
pub fn in_order<'p>(mut state: State, keys: impl FnOnce() -> Result<Option<(&'p Plan, Keys)>>) -> Result<State> {
    let Some(behind) = state.learned.as_mut().and_then(|l| l.behind.take()) else { return Ok(state) };
    let misfit = || Error::checkpoint("the synapses of the state are not those of this network");
    let (plan, keys) = keys()?.ok_or_else(misfit)?;
    let ordered = plan.learning.as_ref().and_then(|l| ordered(l, &state, &behind, &keys)).ok_or_else(misfit)?;
    if let Some(learned) = &mut state.learned {
        learned.strengths = ordered;
    }
    Ok(state)
}

/// The strengths of a state that is `behind`, up to date and in the order of their keys.
fn ordered(learning: &Learning, state: &State, behind: &Behind, keys: &Keys) -> Option<Vec<u32>> {
    let learned = state.learned.as_ref()?;
    let (cells, width) = (keys.rows.len(), learning.width());
    let entries = learned.entries.len() == cells && learned.entries.iter().all(|e| e.len() == width);
    let groups = behind.groups.len() == cells && behind.past.len() == cells;
    let targets = keys.keys.iter().all(|key| (*key as u32 as usize) < cells);
    if !entries || !groups || !targets || keys.keys.len() != learned.strengths.len() {
        return None;
    }
    // Of each cell, its last entry, and the steps of its spikes.
    let (mut last, mut past) = (learned.entries.clone(), behind.past.clone());
    let mut next = vec![0; width];
    for Spike { step, cell } in &state.recent {
        let last = last.get_mut(*cell as usize)?;
        learning.entry((last[0] != NEVER).then_some(&last[..]), *step as u32, &mut next);
        last.copy_from_slice(&next);
        past[*cell as usize].push(*step as u32);
    }
    // Pieces of the sources, and where each finds its strengths: a group's synapses come in the order in which the keys have them.
    let pieces = (4 * pool::num_threads()).clamp(1, cells.max(1));
    let mut firsts = vec![0usize; pieces + 1];
    for (k, first) in firsts.iter_mut().enumerate() {
        *first = keys.rows[..cells * k / pieces].iter().map(|n| *n as usize).sum();
    }
    if firsts[pieces] != keys.keys.len() {
        return None;
    }
    let many = behind.groups.iter().max().map_or(0, |g| *g as usize + 1);
    if many > cells {
        return None;
    }
    let of = |key: u64| behind.groups[key as u32 as usize] as usize;
    let mut at = vec![vec![0usize; many]; pieces];
    for (at, ends) in at.iter_mut().zip(firsts.windows(2)) {
        keys.keys[ends[0]..ends[1]].iter().for_each(|key| at[of(*key)] += 1);
    }
    let mut sum = 0;
    for group in 0..many {
        at.iter_mut().for_each(|at| sum += std::mem::replace(&mut at[group], sum));
    }
    let mut all = vec![0u32; keys.keys.len()];
    let mut rest = &mut all[..];
    let mut work = Vec::with_capacity(pieces);
    for (at, ends) in at.into_iter().zip(firsts.windows(2)) {
        let (own, more) = rest.split_at_mut(ends[1] - ends[0]);
        rest = more;
        work.push(Mutex::new((own, at)));
    }
    let now = state.step as i64;
    pool::for_each(pieces, |k| {
        let mut work = work[k].lock().unwrap_or_else(PoisonError::into_inner);
        let (own, at) = &mut *work;
        let (mut from, first) = (0, firsts[k]);
        for source in cells * k / pieces..cells * (k + 1) / pieces {
            let keys = &keys.keys[first + from..][..keys.rows[source] as usize];
            let strengths = &mut own[from..][..keys.len()];
            for (key, strength) in keys.iter().zip(&mut *strengths) {
                let at = &mut at[of(*key)];
                let rule = learning.rules.get((key >> 32) as usize & 511);
                let spikes = &past[*key as u32 as usize];
                let raw = learned.strengths[*at];
                *strength = rule.map_or(raw, |rule| {
                    let delay = (key >> 41) as i64;
                    caught_up(learning, rule, raw, (&last[source], behind.settled.into()), (spikes, delay), now)
                });
                *at += 1;
            }
            // Those that are alike are in the order of their strengths.
            let mut i = 0;
            for alike in keys.chunk_by(|a, b| a == b) {
                strengths[i..i + alike.len()].sort_unstable();
                i += alike.len();
            }
            from += keys.len();
        }
    });
    drop(work);
    Some(all)
}

/// A strength that is up to date as of its source's `last` entry or step `settled`, as of step `now`: grown by what its target, whose
/// spikes these are, has done meanwhile. Of synapses of resident kernels, whose delay lies behind them.
fn caught_up(
    learning: &Learning,
    rule: &Rule,
    mut strength: u32,
    (last, settled): (&[u32], i64),
    (spikes, delay): (&[u32], i64),
    now: i64,
) -> u32 {
    let Some(pair) = rule.stdp.as_ref().filter(|_| last[0] != NEVER) else { return strength };
    let (trace, before) = (&learning.traces[pair.x], last[1 + pair.x]);
    let (passed, after) = (i64::from(last[0]), trace.after(before));
    let begin = passed.max(settled) - delay;
    for spike in &spikes[spikes.partition_point(|step| i64::from(*step) < begin)..] {
        let spike = i64::from(*spike);
        if spike >= now - delay {
            break;
        }
        // The spike of the same time counts nothing, but those before it do.
        let steps = spike + delay - passed;
        let x = if steps == 0 { before } else { trace.later(after, steps.clamp(0, NEVER.into()) as u32) };
        strength = rule.grown(pair, strength, x, trace.bits);
    }
    strength
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
}
