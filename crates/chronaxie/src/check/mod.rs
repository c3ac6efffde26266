//! Holds every implementation against its float64 reference. It ships, so that a user can run it on the machine that
//! matters.
//!
//! For each entry, conformance case and backend: inputs are sampled and rounded to what is stored, the law runs in
//! f64, the backend runs with its outputs poisoned with NaN and its scratch poisoned and set apart by canaries, what
//! its forward pass saved goes into its backward pass, and every output is compared within the tolerance that the
//! operation's spec declares. Beyond values: every element is written, nothing else is, inputs stay as they are, the
//! bits are those of every repeat and of any number of threads, strided inputs give the same results; on a GPU also a
//! replayed graph, a second stream, a second device, and that other lengths compile nothing new.

mod case;
mod compare;
mod cuda;
#[cfg(test)]
pub(crate) mod gpu;
mod record;
mod rig;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod toy;

pub(crate) use case::{Compared, data_dtype, measure, precision, sample};
pub use record::{Record, Status, Summary};

use crate::op::{Case, CaseSet, Op};
use crate::progress::{Progress, stop_if_interrupted};
use crate::{Backend, Device, Error, Result};
use std::time::Instant;

/// What is checked beside the declared cases, and how often.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// These cases instead of the declared ones.
    pub cases: Option<Vec<Case>>,
    /// Runs whose bits must be equal, at least 2.
    pub repeats: usize,
    /// The seed of the inputs.
    pub seed: u64,
    /// Only values, writes, canaries and repeats: what must be green before anything is timed.
    pub values_only: bool,
    /// Runs on the CPU what a GPU does not offer, and says so: what `--backend auto` means.
    pub fall_back: bool,
    /// `(i, n)`: of all cases only every `n`-th, from the `i`-th on (from 1).
    pub part: Option<(usize, usize)>,
}

impl Default for Options {
    fn default() -> Self {
        Self { cases: None, repeats: 3, seed: 1, values_only: false, fall_back: false, part: None }
    }
}

/// A backend that was asked for: there, or missing for a reason.
#[derive(Debug, Clone)]
pub enum Target {
    /// It can run.
    Ready(Device),
    /// It cannot; its cases are skipped.
    Missing {
        /// `cuda:0`.
        backend: String,
        /// A sentence.
        reason: String,
    },
}

impl Target {
    /// The targets that `selection` names: `cpu`, `cuda`, `cuda:N`, `auto`, or `all` for the CPU and the first GPU; and
    /// for `auto` a sentence that says which was taken and why.
    ///
    /// # Errors
    /// A backend that was named and is not there; under `all` it is a [`Target::Missing`].
    pub fn select(selection: &str) -> Result<(Vec<Self>, Option<String>)> {
        if selection != "all" {
            let backend: Backend = selection.parse().map_err(|_| {
                Error::config(format!("backend `{selection}` is not one of all, auto, cpu, cuda, cuda:N (N from 0)"))
            })?;
            let (device, why) = open(backend)?;
            return Ok((vec![Self::Ready(device)], why));
        }
        let cuda = match open(Backend::Cuda(0)) {
            Ok((device, _)) => Self::Ready(device),
            Err(e) => Self::Missing { backend: Backend::Cuda(0).to_string(), reason: e.to_string() },
        };
        Ok((vec![Self::Ready(Device::Cpu), cuda], None))
    }
    fn name(&self) -> String {
        match self {
            Self::Ready(device) => device.place().to_string(),
            Self::Missing { backend, .. } => backend.clone(),
        }
    }
}

fn open(backend: Backend) -> Result<(Device, Option<String>)> {
    let (device, why) = Device::open(backend)?;
    if let Device::Cuda(d) = &device {
        d.require_compiler()?;
    }
    Ok((device, why))
}

/// Checks `entries` on `targets`; each record goes to `sink` as soon as it is known.
///
/// # Errors
/// Only an interruption: everything else is a record.
pub fn run(
    entries: &[&dyn Op],
    targets: &[Target],
    options: &Options,
    progress: &dyn Progress,
    sink: &mut dyn FnMut(&Record),
) -> Result<Summary> {
    let cases = &|op: &dyn Op| options.cases.clone().unwrap_or_else(|| op.cases(CaseSet::Check));
    let all = targets.iter().flat_map(|target| {
        entries.iter().flat_map(move |op| cases(*op).into_iter().map(move |case| (target, *op, case)))
    });
    let (first, every) = options.part.unwrap_or((1, 1));
    let all: Vec<_> = all.skip(first.saturating_sub(1)).step_by(every.max(1)).collect();
    progress.start("check", all.len() as u64);
    let mut summary = Summary::default();
    for (done, (target, op, case)) in all.into_iter().enumerate() {
        stop_if_interrupted(progress, "check")?;
        progress.advance(done as u64, &format!("{} {case} on {}", op.name(), target.name()));
        let mut count = |r: Record| {
            summary.add(r.status);
            sink(&r);
        };
        let mut to = case::Collector {
            family: op.name(),
            case: case.to_string(),
            backend: target.name(),
            dtype: "none".to_owned(),
            precision: "exact",
            since: Instant::now(),
            sink: &mut count,
        };
        match target {
            Target::Ready(device) => case::run(op, &case, device, options, &mut to),
            Target::Missing { reason, .. } => {
                if let Ok(problem) = crate::op::problem(op, &case) {
                    to.dtype = data_dtype(&*problem);
                    to.precision = precision(&case).map_or("exact", |p| p.name());
                }
                to.skip("all", reason);
            }
        }
    }
    progress.finish();
    Ok(summary)
}
