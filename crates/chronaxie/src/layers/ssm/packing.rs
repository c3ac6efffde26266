//! What lies along the time axis of a scan: one sequence a batch row, one that is cut by a mask, or several end to end.

use crate::op::{Role, TensorSpec, Tensors};
use crate::rng::Rng;
use crate::{Dtype, Error, Result, View};
use std::ops::Range;

/// How sequences lie along the time axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Packing {
    /// One sequence a batch row.
    #[default]
    Whole,
    /// `reset` `[B, T]`, one byte a step: where it is not 0, everything before that step is forgotten, h0 too.
    Reset,
    /// `cu_seqlens` `[S + 1]`, i32: this many sequences (S) end to end along T, with a batch of 1. Sequence s has the
    /// times from `cu_seqlens[s]` to before `cu_seqlens[s + 1]`, and its own initial and last state.
    Sequences(usize),
}

impl Packing {
    /// How many initial and last states there are for `batch` rows.
    pub fn states(self, batch: usize) -> usize {
        match self {
            Self::Sequences(count) => count,
            _ => batch,
        }
    }
    /// The letter of the states' first axis.
    pub(super) fn letter(self) -> &'static str {
        if matches!(self, Self::Sequences(_)) { "S" } else { "B" }
    }
    /// Refuses what cannot be packed so.
    pub(super) fn validate(self, entry: &str, batch: usize, steps: usize) -> Result<Self> {
        match self {
            Self::Sequences(_) if batch != 1 => {
                Err(Error::shape(format!("{entry}: cu_seqlens packs sequences along T, so B must be 1, not {batch}")))
            }
            Self::Sequences(0) => Err(Error::shape(format!("{entry}: cu_seqlens must name at least one sequence"))),
            Self::Sequences(_) if i32::try_from(steps).is_err() => {
                Err(Error::shape(format!("{entry}: T = {steps} is more than cu_seqlens, which holds i32, can count")))
            }
            other => Ok(other),
        }
    }
    /// What `tensor`, the one of [`Packing::tensor`], marks.
    pub(super) fn marks<'a>(
        self,
        entry: &str,
        batch: usize,
        steps: usize,
        tensor: Option<&View<'a>>,
    ) -> Result<Marks<'a>> {
        let missing = || Error::shape(format!("{entry}: the tensor that packs the sequences is missing"));
        Ok(match self {
            Self::Whole => Marks::whole(batch, steps),
            Self::Reset => Marks::reset(batch, steps, tensor.ok_or_else(missing)?.as_slice()?),
            Self::Sequences(_) => Marks::sequences(entry, steps, tensor.ok_or_else(missing)?.as_slice()?)?,
        })
    }
    /// The tensor that says where sequences begin.
    pub(super) fn tensor(self, batch: usize, steps: usize) -> Option<TensorSpec> {
        match self {
            Self::Whole => None,
            Self::Reset => Some(TensorSpec::new("reset", "[B, T]", [batch, steps], Dtype::U8, Role::Input)),
            Self::Sequences(n) => Some(TensorSpec::new("cu_seqlens", "[S + 1]", [n + 1], Dtype::I32, Role::Input)),
        }
    }
    /// What a sample of that tensor holds: resets at one step in eight, or sequences of all lengths, empty ones too.
    pub(super) fn sample(self, batch: usize, steps: usize, rng: &mut Rng) -> Vec<f64> {
        match self {
            Self::Whole => Vec::new(),
            Self::Reset => (0..batch * steps).map(|_| if rng.below(8) == 0 { 1.0 } else { 0.0 }).collect(),
            Self::Sequences(n) => {
                let mut ends: Vec<u64> = (1..n).map(|_| rng.below(steps as u64 + 1)).collect();
                ends.extend([0, steps as u64]);
                ends.sort_unstable();
                ends.into_iter().map(|x| x as f64).collect()
            }
        }
    }
}

/// A stretch of time that one initial state belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// The batch row.
    pub row: usize,
    /// The first time.
    pub begin: usize,
    /// The time behind the last.
    pub end: usize,
    /// Which of the initial and last states is its own.
    pub state: usize,
}

/// A packing with its tensor: where states begin, end and are forgotten.
#[derive(Debug, Clone, Copy)]
pub struct Marks<'a> {
    batch: usize,
    steps: usize,
    reset: Option<&'a [u8]>,
    offsets: Option<&'a [i32]>,
}

impl<'a> Marks<'a> {
    /// One sequence a row.
    pub fn whole(batch: usize, steps: usize) -> Self {
        Self { batch, steps, reset: None, offsets: None }
    }
    /// Rows cut where `reset` `[B, T]` is not 0.
    pub fn reset(batch: usize, steps: usize, reset: &'a [u8]) -> Self {
        Self { batch, steps, reset: Some(reset), offsets: None }
    }
    /// One row of sequences end to end.
    ///
    /// # Errors
    /// Offsets that do not start at 0, do not end at `steps`, or decrease.
    pub fn sequences(entry: &str, steps: usize, offsets: &'a [i32]) -> Result<Self> {
        let wrong = |what: String| Err(Error::value(format!("{entry}: cu_seqlens {what}")));
        match offsets.first() {
            Some(0) => {}
            Some(first) => return wrong(format!("must start at 0, not at {first}")),
            None => return wrong("must hold at least one offset".to_owned()),
        }
        if let Some(i) = offsets.windows(2).position(|w| w[1] < w[0]) {
            return wrong(format!("must not decrease, but holds {} and then {} at {i}", offsets[i], offsets[i + 1]));
        }
        let last = offsets[offsets.len() - 1];
        if last as usize != steps {
            return wrong(format!("must end at T = {steps}, not at {last}"));
        }
        Ok(Self { batch: 1, steps, reset: None, offsets: Some(offsets) })
    }
    /// How many units there are.
    pub fn units(&self) -> usize {
        self.offsets.map_or(self.batch, |o| o.len() - 1)
    }
    /// The `i`-th unit.
    pub fn unit(&self, i: usize) -> Unit {
        match self.offsets {
            Some(o) => Unit { row: 0, begin: o[i] as usize, end: o[i + 1] as usize, state: i },
            None => Unit { row: i, begin: 0, end: self.steps, state: i },
        }
    }
    /// Whether everything before a step is forgotten.
    pub fn fresh(&self, row: usize, t: usize) -> bool {
        self.reset.is_some_and(|r| r[row * self.steps + t] != 0)
    }
    /// The same of a tile's times, N at the most.
    pub(super) fn fresh_of<const N: usize>(&self, row: usize, times: Range<usize>) -> [bool; N] {
        let mut fresh = [false; N];
        fresh.iter_mut().zip(times).for_each(|(f, t)| *f = self.fresh(row, t));
        fresh
    }
}

/// The tensor of a packing as a law's input holds it.
#[derive(Debug, Default)]
pub(super) struct OwnedMarks {
    reset: Vec<u8>,
    offsets: Vec<i32>,
}

impl OwnedMarks {
    pub(super) fn read(packing: Packing, inputs: &Tensors) -> Result<Self> {
        let mut marks = Self::default();
        match packing {
            Packing::Whole => {}
            Packing::Reset => marks.reset = inputs.get("reset")?.data.iter().map(|&x| x as u8).collect(),
            Packing::Sequences(_) => {
                marks.offsets = inputs.get("cu_seqlens")?.data.iter().map(|&x| x as i32).collect();
            }
        }
        Ok(marks)
    }
    pub(super) fn marks(&self, entry: &str, packing: Packing, batch: usize, steps: usize) -> Result<Marks<'_>> {
        match packing {
            Packing::Whole => Ok(Marks::whole(batch, steps)),
            Packing::Reset => Ok(Marks::reset(batch, steps, &self.reset)),
            Packing::Sequences(_) => Marks::sequences(entry, steps, &self.offsets),
        }
    }
}
