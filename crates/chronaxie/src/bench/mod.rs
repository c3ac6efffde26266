//! Times every entry, after holding it against its law: nothing that fails its check is timed.
//!
//! On a GPU a pass is captured in a graph and timed between two events on its stream. A pass that streams eight times
//! the L2 cache or more is run again and again (`cache` says `exceeded`); before any other, twice the L2 cache is
//! overwritten, outside the events (`flushed`); passes shorter than 20 us are timed 32 to a pair of events (`warm`). On
//! the CPU it is the wall clock around the call, with warm caches. Ceilings are measured in the same process.

mod ceiling;
mod cpu;
mod cuda;
mod inputs;
mod record;

pub use ceiling::{Bound, Ceilings};
pub use record::{Provenance, Record, SCHEMA, date_utc};

use ceiling::add;
pub(crate) use cuda::transfer_bytes_per_s;
pub(crate) use record::spread;

use crate::call::Workspace;
use crate::check::{self, Status, Target};
use crate::op::{Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Precision, Problem};
use crate::progress::{Progress, Silent, stop_if_interrupted};
use crate::{Device, Result};
use std::sync::Arc;

/// What is timed, and how long.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// These cases instead of the entry's own.
    pub cases: Option<Vec<Case>>,
    /// Sets the option `precision` of every case.
    pub precision: Option<Precision>,
    /// About how long the timed runs of one pass take together.
    pub seconds: f64,
    /// What does not change within a run.
    pub provenance: Provenance,
}

impl Default for Options {
    fn default() -> Self {
        Self { cases: None, precision: None, seconds: 1.0, provenance: Provenance::default() }
    }
}

/// What `bench` has to say.
#[derive(Debug, Clone)]
pub enum Event {
    /// A pass was timed.
    Timed(Box<Record>),
    /// It was not: its check failed, or the case could not be run.
    Refused {
        /// The entry.
        family: String,
        /// The case.
        case: String,
        /// The device.
        backend: String,
        /// A sentence.
        reason: String,
    },
    /// The backend is missing, or the entry has no path on it.
    Skipped {
        /// The entry.
        family: String,
        /// The device.
        backend: String,
        /// A sentence.
        reason: String,
    },
}

/// How many events were of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Passes with a time.
    pub timed: usize,
    /// Cases without one because something is wrong.
    pub refused: usize,
    /// Cases without one because something is missing.
    pub skipped: usize,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} timed, {} refused, {} skipped", self.timed, self.refused, self.skipped)
    }
}

/// A verb of a benchmark: one pass, or two after each other.
type Verb = (&'static str, &'static [Pass]);

/// What can be timed of an entry.
fn verbs(op: &dyn Op, problem: &dyn Problem) -> Vec<Verb> {
    let has = |p| op.passes().contains(&p) && problem.signature(p).is_ok();
    let mut all: Vec<Verb> = Vec::new();
    if has(Pass::Forward) {
        all.push(("forward", &[Pass::Forward]));
    }
    if has(Pass::Forward) && has(Pass::Backward) {
        all.push(("backward", &[Pass::Backward]));
        all.push(("forward_backward", &[Pass::Forward, Pass::Backward]));
    }
    if has(Pass::Step) {
        all.push(("step", &[Pass::Step]));
    }
    all
}

/// Times `entries` on `targets`; each event goes to `sink` as soon as it is known.
///
/// # Errors
/// Only an interruption: everything else is an event.
pub fn run(
    entries: &[&dyn Op],
    targets: &[Target],
    options: &Options,
    progress: &dyn Progress,
    sink: &mut dyn FnMut(&Event),
) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut tell = |event: Event| {
        match event {
            Event::Timed(_) => summary.timed += 1,
            Event::Refused { .. } => summary.refused += 1,
            Event::Skipped { .. } => summary.skipped += 1,
        }
        sink(&event);
    };
    progress.start("bench", 0);
    let mut done = 0;
    for target in targets {
        for &op in entries {
            let family = op.name().to_owned();
            let device = match target {
                Target::Ready(device) => device,
                Target::Missing { backend, reason } => {
                    tell(Event::Skipped { family, backend: backend.clone(), reason: reason.clone() });
                    continue;
                }
            };
            let backend = device.place().to_string();
            progress.advance(done, &format!("checking {family} on {backend}"));
            match green(op, target, progress)? {
                Verdict::Green => {}
                Verdict::Red(reason) => {
                    tell(Event::Refused { family, case: "all".to_owned(), backend, reason });
                    continue;
                }
                Verdict::Missing(reason) => {
                    tell(Event::Skipped { family, backend, reason });
                    continue;
                }
            }
            let set = if matches!(device, Device::Cpu) { CaseSet::Cpu } else { CaseSet::Compared };
            for case in options.cases.clone().unwrap_or_else(|| op.cases(set)) {
                let case = match options.precision {
                    Some(p) => case.with("precision", p.name()),
                    None => case,
                };
                stop_if_interrupted(progress, "bench")?;
                progress.advance(done, &format!("timing {family} {case} on {backend}"));
                done += 1;
                let refused = |reason: String| Event::Refused {
                    family: family.clone(),
                    case: case.to_string(),
                    backend: backend.clone(),
                    reason,
                };
                match time_case(op, &case, device, options, &mut |r| tell(Event::Timed(Box::new(r)))) {
                    Ok(None) => {}
                    Ok(Some(red)) => tell(refused(red)),
                    Err(e) => tell(refused(e.to_string())),
                }
            }
        }
    }
    progress.finish();
    Ok(summary)
}

enum Verdict {
    Green,
    Red(String),
    Missing(String),
}

/// Whether an entry passes its conformance cases on a device.
fn green(op: &dyn Op, target: &Target, progress: &dyn Progress) -> Result<Verdict> {
    stop_if_interrupted(progress, "bench")?;
    let options = check::Options { values_only: true, repeats: 2, ..check::Options::default() };
    let (mut failed, mut skipped) = (None, None);
    let summary = check::run(&[op], std::slice::from_ref(target), &options, &Silent, &mut |r| match r.status {
        Status::Failed if failed.is_none() => {
            failed = Some(format!("its check fails: {} {}: {}", r.case, r.quantity, r.reason));
        }
        Status::Skipped if skipped.is_none() => skipped = Some(r.reason.clone()),
        _ => {}
    })?;
    Ok(match (failed, skipped) {
        (Some(reason), _) => Verdict::Red(reason),
        (None, Some(reason)) if summary.passed == 0 => Verdict::Missing(reason),
        _ => Verdict::Green,
    })
}

/// What a verb costs at the least.
pub(crate) fn cost(problem: &dyn Problem, passes: &[Pass]) -> Cost {
    passes.iter().map(|&p| problem.cost(p)).fold(Cost::default(), add)
}

/// The ceilings of a device for a variant.
pub(crate) fn ceilings(device: &Device, variant: &str) -> Result<Ceilings> {
    match device {
        Device::Cpu => Ok(cpu::ceilings()),
        Device::Cuda(d) => cuda::ceilings(d, variant),
    }
}

/// How the runs of a verb were timed.
pub(crate) struct Timing {
    pub ms: Vec<f64>,
    pub clock: &'static str,
    pub cache: &'static str,
    pub sm_clock_mhz: Option<u32>,
    pub power_w: Option<f64>,
}

/// Times some passes, which move `bytes` at the least, on memory that is filled.
pub(crate) fn time(
    plan: &dyn Plan,
    passes: &[Pass],
    workspace: &mut Workspace,
    device: &Device,
    bytes: u64,
    seconds: f64,
) -> Result<Timing> {
    match device {
        Device::Cuda(d) => cuda::time(d, plan, passes, workspace, bytes, seconds),
        Device::Cpu => {
            let stream = crate::call::default_stream(device);
            let ms = if let [pass] = passes {
                let mut bound = workspace.bind(plan, *pass, stream)?;
                cpu::time(seconds, &mut || bound.run())?
            } else {
                // Two passes share tensors, so their views are made anew: under a microsecond.
                cpu::time(seconds, &mut || passes.iter().try_for_each(|&p| workspace.bind(plan, p, stream)?.run()))?
            };
            Ok(Timing { ms, clock: "call", cache: "warm", sm_clock_mhz: None, power_w: None })
        }
    }
}

/// A workspace for the passes of a verb, with everything written that they read.
pub(crate) fn ready(op: &dyn Op, case: &Case, plan: &dyn Plan, passes: &[Pass], device: &Device) -> Result<Workspace> {
    let with_forward: &[Pass] =
        if passes.contains(&Pass::Backward) { &[Pass::Forward, Pass::Backward] } else { passes };
    let mut workspace = inputs::workspace(op, case, plan, with_forward, device)?;
    if with_forward.len() > passes.len() {
        workspace.bind(plan, Pass::Forward, crate::call::default_stream(device))?.run()?;
        device.synchronize()?;
    }
    Ok(workspace)
}

/// The largest error of a case, or of a smaller one of its kind; a sentence if it is out of bounds.
fn largest_error(
    op: &dyn Op,
    case: &Case,
    passes: &[Pass],
    device: &Device,
) -> Result<(Case, Option<f64>, Option<String>)> {
    // The law runs on one core: about a second for as much arithmetic.
    const ARITHMETIC: u64 = 50_000_000;
    let small = inputs::reduce(op, case, |p| {
        let c = cost(p, passes);
        Ok(c.flops.max(c.bytes / 4) + 20 * c.special > ARITHMETIC)
    })?;
    let all = check::measure(&*crate::op::problem(op, &small)?, passes, device, 1)?;
    let red = all.iter().find(|c| c.status() == Status::Failed);
    let red = red.map(|c| {
        format!(
            "its check fails on {small}: {}: {} {:e}, at most {:e}: {}",
            c.quantity,
            c.metric,
            c.error,
            c.tolerance,
            c.reason()
        )
    });
    Ok((small, all.iter().map(|c| c.error).reduce(f64::max), red))
}

/// Times all verbs of a case; a sentence if its values are wrong.
fn time_case(
    op: &dyn Op,
    case: &Case,
    device: &Device,
    options: &Options,
    sink: &mut dyn FnMut(Record),
) -> Result<Option<String>> {
    let problem: Arc<dyn Problem> = crate::op::problem(op, case)?;
    let plan = problem.plan(device, &PlanOptions::default())?;
    let ceilings = ceilings(device, plan.variant())?;
    let device_name = match device {
        Device::Cpu => cpu::name(),
        Device::Cuda(d) => d.name().to_owned(),
    };
    for (verb, passes) in verbs(op, &*problem) {
        let compared: &[Pass] =
            if passes.contains(&Pass::Backward) { &[Pass::Forward, Pass::Backward] } else { passes };
        let (error_case, max_error, red) = largest_error(op, case, compared, device)?;
        if red.is_some() {
            return Ok(red);
        }
        let mut workspace = ready(op, case, &*plan, passes, device)?;
        let (scratch, peak) = (workspace.scratch_bytes() as u64, workspace.bytes() as u64);
        let cost = cost(&*problem, passes);
        let timing = time(&*plan, passes, &mut workspace, device, cost.bytes, options.seconds)?;
        drop(workspace);
        let runs = timing.ms.len();
        let (median_ms, min_ms, max_ms) = spread(timing.ms);
        let (bound, shortest_ms) = ceilings.roofline(&cost);
        let mut launches = 0;
        for &pass in passes {
            launches += plan.launches(pass)?.iter().map(|l| l.launches).sum::<u64>();
        }
        let provenance = &options.provenance;
        let is_gpu = !matches!(device, Device::Cpu);
        sink(Record {
            family: op.name().to_owned(),
            case: case.to_string(),
            pass: verb.to_owned(),
            backend: device.place().to_string(),
            device: device_name.clone(),
            dtype: check::data_dtype(&*problem),
            precision: check::precision(case)?.name().to_owned(),
            variant: plan.variant().to_owned(),
            clock: timing.clock.to_owned(),
            median_ms,
            min_ms,
            max_ms,
            runs,
            bytes: cost.bytes,
            flops: cost.flops,
            special: cost.special,
            gb_per_s: cost.bytes as f64 / median_ms / 1e6,
            tflop_per_s: cost.flops as f64 / median_ms / 1e9,
            special_per_s: cost.special as f64 / median_ms * 1e3,
            roofline_fraction: shortest_ms / median_ms,
            bound: bound.name().to_owned(),
            ceilings: ceilings.source.clone(),
            cache: timing.cache.to_owned(),
            workspace_bytes: scratch,
            peak_bytes: peak,
            launches,
            max_error,
            max_error_case: error_case.to_string(),
            schema: SCHEMA,
            date: provenance.date.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: provenance.commit.clone(),
            driver: provenance.driver.clone().filter(|_| is_gpu),
            nvrtc: provenance.nvrtc.clone().filter(|_| is_gpu),
            sm_clock_mhz: timing.sm_clock_mhz,
            power_w: timing.power_w,
        });
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::toy::{Fault, Toy};

    fn events(fault: Fault, options: &Options) -> (Vec<Event>, Summary) {
        let mut all = Vec::new();
        let target = [Target::Ready(Device::Cpu)];
        let summary = run(&[&Toy(fault)], &target, options, &Silent, &mut |e| all.push(e.clone())).unwrap();
        (all, summary)
    }

    #[test]
    fn every_pass_of_every_case_is_timed() {
        let options = Options {
            cases: Some(vec!["B4_T256".parse().unwrap()]),
            seconds: 0.02,
            provenance: Provenance {
                date: "2026-01-02".to_owned(),
                driver: Some("13.0".to_owned()),
                ..Default::default()
            },
            ..Options::default()
        };
        let (all, summary) = events(Fault::None, &options);
        assert_eq!(summary, Summary { timed: 4, ..Summary::default() }, "{all:?}");
        let records: Vec<Record> =
            all.into_iter().map(|e| if let Event::Timed(r) = e { *r } else { panic!("{e:?}") }).collect();
        let passes: Vec<_> = records.iter().map(|r| r.pass.as_str()).collect();
        assert_eq!(passes, ["forward", "backward", "forward_backward", "step"]);
        for r in &records {
            assert!(r.min_ms <= r.median_ms && r.median_ms <= r.max_ms && r.min_ms > 0.0 && r.runs >= 3, "{r:?}");
            assert!(r.roofline_fraction > 0.0 && r.max_error.is_some_and(|e| e < 1e-5), "{r:?}");
            assert_eq!((r.clock.as_str(), r.backend.as_str(), r.variant.as_str()), ("call", "cpu", "loops"));
            assert_eq!((r.driver.as_ref(), r.date.as_str(), r.dtype.as_str()), (None, "2026-01-02", "f32"));
        }
        let both = &records[2];
        assert_eq!(both.bytes, records[0].bytes + records[1].bytes);
        let gb = both.bytes as f64 / (both.median_ms * 1e-3) / 1e9;
        assert!((both.gb_per_s - gb).abs() <= 1e-9 * gb);
    }

    #[test]
    fn what_fails_its_check_is_not_timed() {
        for (fault, says) in
            [(Fault::Wrong, "forward.y"), (Fault::WrongGradient, "backward.grad_a"), (Fault::Random, "bits_repeat")]
        {
            let (all, summary) = events(fault, &Options { seconds: 0.01, ..Options::default() });
            assert_eq!(summary, Summary { refused: 1, ..Summary::default() }, "{fault:?}: {all:?}");
            let Event::Refused { reason, .. } = &all[0] else { panic!("{all:?}") };
            assert!(reason.contains("its check fails") && reason.contains(says), "{reason}");
        }
        let (_, summary) = events(Fault::Unavailable, &Options::default());
        assert_eq!(summary, Summary { skipped: 1, ..Summary::default() });
    }

    #[test]
    fn a_case_of_the_users_own_may_be_refused_with_a_sentence() {
        let options = Options { cases: Some(vec!["B4_Q1".parse().unwrap()]), ..Options::default() };
        let (all, _) = events(Fault::None, &options);
        let [Event::Refused { reason, case, .. }] = &all[..] else { panic!("{all:?}") };
        assert!(case == "B4_Q1" && reason.contains("axis Q is not one of B, T"), "{reason}");
    }
}
