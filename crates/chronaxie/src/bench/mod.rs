//! Times every entry, after holding it against its law: nothing that fails its check is timed.
//!
//! On a GPU a pass is captured in a graph and timed between two events on its stream. A pass that streams eight times
//! the L2 cache or more is run again and again (`cache` says `exceeded`); before any other, twice the L2 cache is
//! overwritten, outside the events (`flushed`); passes shorter than 20 us, or all if asked, are timed 32 to a pair of events,
//! or follow each other where that takes long (`warm`). On the CPU it is the wall clock around the call, with warm caches.
//! Ceilings are measured in the same process.

mod ceiling;
mod cpu;
mod cuda;
mod inputs;
mod record;

pub use ceiling::{Bound, Ceilings};
pub use record::{NetworkRecord, Provenance, Record, SCHEMA, StepPart, date_utc};

use ceiling::add;
#[cfg(feature = "train")]
pub(crate) use cuda::transfer_ms;
pub(crate) use cuda::{Work, transfer_bytes_per_s};
pub(crate) use record::spread;

use crate::call::Workspace;
use crate::check::{self, Status, Target};
use crate::op::{Case, CaseSet, Cost, Op, Pass, Plan, PlanOptions, Precision, Problem};
use crate::progress::{Progress, Silent, stop_if_interrupted};
use crate::{Device, ErrorKind, Result};
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
    /// On a GPU: passes follow each other and find the caches as the last one left them, whatever they take. Otherwise
    /// only those shorter than 20 us do.
    pub warm: bool,
    /// What does not change within a run.
    pub provenance: Provenance,
}

impl Default for Options {
    fn default() -> Self {
        Self { cases: None, precision: None, seconds: 1.0, warm: false, provenance: Provenance::default() }
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

/// Times of the emulated device of the tests (tests/emulated-gpu) say nothing.
fn refuse_emulated(target: &Target) -> Result<()> {
    match target {
        Target::Ready(Device::Cuda(d)) if d.name().starts_with("emulated ") => Err(crate::Error::unavailable(format!(
            "bench: cuda:{} is no GPU but the {}: nothing is timed on it",
            d.index(),
            d.name()
        ))),
        _ => Ok(()),
    }
}

/// What is run, checked and timed as a whole, and is no operation: simulations.
pub trait Whole: Send + Sync {
    /// The name users type.
    fn name(&self) -> &'static str;
    /// Its own cases: those that are compared, or smaller ones.
    fn cases(&self, set: CaseSet) -> Vec<Case>;
    /// Refuses a case that is none of this family.
    ///
    /// # Errors
    /// `Config`, with a sentence.
    fn allow(&self, case: &Case) -> Result<()>;
    /// Times a case for about `options.seconds`, after checking it; a sentence if it must not be timed.
    ///
    /// # Errors
    /// What the case or the device refuses.
    fn time(
        &self,
        case: &Case,
        device: &Device,
        options: &Options,
        progress: &dyn Progress,
        sink: &mut dyn FnMut(Record),
    ) -> Result<Option<String>>;
}

/// What `bench` times under one name.
#[derive(Clone, Copy)]
pub enum Family<'a> {
    /// An operation.
    Op(&'a dyn Op),
    /// What is none.
    Whole(&'a dyn Whole),
}

impl Family<'_> {
    /// The name users type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Op(op) => op.name(),
            Self::Whole(whole) => whole.name(),
        }
    }
    /// Its own cases: those that are compared, or smaller ones.
    pub fn cases(&self, set: CaseSet) -> Vec<Case> {
        match self {
            Self::Op(op) => op.cases(set),
            Self::Whole(whole) => whole.cases(set),
        }
    }
    /// Refuses a case that is none of this family.
    ///
    /// # Errors
    /// `Config`, with a sentence that begins with the family's name.
    pub fn allow(&self, case: &Case) -> Result<()> {
        let allowed = match self {
            Self::Op(op) => crate::op::problem(*op, case).map(drop),
            Self::Whole(whole) => whole.allow(case),
        };
        allowed.map_err(|e| e.context(self.name()))
    }
}

impl std::fmt::Debug for Family<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Times operations on `targets`, as [`run_families`] does.
///
/// # Errors
/// As there.
pub fn run(
    entries: &[&dyn Op],
    targets: &[Target],
    options: &Options,
    progress: &dyn Progress,
    sink: &mut dyn FnMut(&Event),
) -> Result<Summary> {
    let families: Vec<Family<'_>> = entries.iter().map(|op| Family::Op(*op)).collect();
    run_families(&families, targets, options, progress, sink)
}

/// Times `families` on `targets`; each event goes to `sink` as soon as it is known.
///
/// # Errors
/// An interruption, and the emulated device of the tests; everything else is an event.
pub fn run_families(
    families: &[Family<'_>],
    targets: &[Target],
    options: &Options,
    progress: &dyn Progress,
    sink: &mut dyn FnMut(&Event),
) -> Result<Summary> {
    for target in targets {
        refuse_emulated(target)?;
    }
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
        for &one in families {
            let family = one.name().to_owned();
            let device = match target {
                Target::Ready(device) => device,
                Target::Missing { backend, reason } => {
                    tell(Event::Skipped { family, backend: backend.clone(), reason: reason.clone() });
                    continue;
                }
            };
            let backend = device.place().to_string();
            progress.advance(done, &format!("checking {family} on {backend}"));
            let verdict = match one {
                Family::Op(op) => green(op, target, progress)?,
                // Each of its cases is checked by itself.
                Family::Whole(_) => Verdict::Green,
            };
            match verdict {
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
            for case in options.cases.clone().unwrap_or_else(|| one.cases(set)) {
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
                let mut timed = |r| tell(Event::Timed(Box::new(r)));
                let found = match one {
                    Family::Op(op) => time_case(op, &case, device, options, &mut timed),
                    Family::Whole(whole) => whole.time(&case, device, options, progress, &mut timed),
                };
                match found {
                    Ok(None) => {}
                    Ok(Some(red)) => tell(refused(red)),
                    Err(e) if e.kind() == &ErrorKind::Interrupted => return Err(e),
                    // A case of the family's own that no such device has room for is missing, not wrong.
                    Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) && options.cases.is_none() => {
                        let reason = format!("{case}: {e}");
                        tell(Event::Skipped { family: family.clone(), backend: backend.clone(), reason });
                    }
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

/// The ceilings of a device, with its tensor cores or without, for what works on `bytes`.
pub(crate) fn ceilings(device: &Device, tensor_cores: bool, bytes: u64) -> Result<Ceilings> {
    match device {
        Device::Cpu => Ok(cpu::ceilings(bytes)),
        Device::Cuda(d) => cuda::ceilings(d, tensor_cores),
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

/// How long is timed, and how runs follow each other on a GPU ([`Options`]).
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub seconds: f64,
    pub warm: bool,
}

impl Pace {
    /// With caches as [`Options`] has them by default.
    pub const fn new(seconds: f64) -> Self {
        Self { seconds, warm: false }
    }
}

/// Times some passes, which move `bytes` at the least, on memory that is filled.
pub(crate) fn time(
    plan: &dyn Plan,
    passes: &[Pass],
    workspace: &mut Workspace,
    device: &Device,
    bytes: u64,
    pace: Pace,
) -> Result<Timing> {
    if let (Device::Cpu, [pass]) = (device, passes) {
        let mut bound = workspace.bind(plan, *pass, crate::call::default_stream(device))?;
        return time_on_host(pace.seconds, &mut || bound.run());
    }
    time_work(&mut cuda::Passes { plan, passes, workspace }, device, bytes, pace)
}

/// Times work that moves `bytes` at the least.
pub(crate) fn time_work(work: &mut dyn Work, device: &Device, bytes: u64, pace: Pace) -> Result<Timing> {
    match device {
        Device::Cuda(d) => cuda::time(d, work, bytes, pace),
        Device::Cpu => time_on_host(pace.seconds, &mut || work.run(crate::call::default_stream(device))),
    }
}

/// Times `run` by the wall clock.
pub(crate) fn time_on_host(seconds: f64, run: &mut dyn FnMut() -> Result<()>) -> Result<Timing> {
    Ok(Timing { ms: cpu::time(seconds, run)?, clock: "call", cache: "warm", sm_clock_mhz: None, power_w: None })
}

/// A workspace for some passes and those that come before them, with everything written that they read.
pub(crate) fn ready(op: &dyn Op, case: &Case, plan: &dyn Plan, passes: &[Pass], device: &Device) -> Result<Workspace> {
    let all = with_forward(passes);
    let mut workspace = inputs::workspace(op, case, plan, all, device)?;
    if all.contains(&Pass::Backward) {
        workspace.bind(plan, Pass::Forward, crate::call::default_stream(device))?.run()?;
        device.synchronize()?;
    }
    Ok(workspace)
}

/// A backward pass needs the forward pass before it.
fn with_forward(passes: &[Pass]) -> &[Pass] {
    if passes.contains(&Pass::Backward) { &[Pass::Forward, Pass::Backward] } else { passes }
}

/// Bytes of every tensor and of the scratch that `passes` need together, and of the scratch alone.
fn memory(plan: &dyn Plan, passes: &[Pass]) -> (u64, u64) {
    let mut names: Vec<&str> = Vec::new();
    let (mut bytes, mut scratch) = (0, 0);
    for &pass in passes {
        let Some(signature) = plan.signature(pass) else { continue };
        for t in signature.inputs.iter().chain(&signature.outputs) {
            if !names.contains(&t.name.as_ref()) {
                names.push(&t.name);
                bytes += t.bytes() as u64;
            }
        }
        scratch = scratch.max(plan.scratch(pass).bytes() as u64);
    }
    (bytes + scratch, scratch)
}

/// The errors of a case, or of a smaller one of its kind, and that case.
fn errors(op: &dyn Op, case: &Case, passes: &[Pass], device: &Device) -> Result<(Case, Vec<check::Compared>)> {
    // The law runs on one core: well below a second for as much arithmetic.
    const ARITHMETIC: u64 = 20_000_000;
    let small = inputs::reduce(op, case, |p| {
        let c = cost(p, passes);
        Ok(c.flops.max(c.bytes / 4) + 20 * c.special > ARITHMETIC)
    })?;
    let all = check::measure(&*crate::op::problem(op, &small)?, passes, device, 1)?;
    Ok((small, all))
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
    let verbs = verbs(op, &*problem);
    // Forward and backward share their errors and their memory; a step has its own.
    let (steps, rest): (Vec<Verb>, Vec<Verb>) = verbs.into_iter().partition(|(_, p)| *p == [Pass::Step]);
    for group in [rest, steps] {
        let Some((_, widest)) = group.iter().max_by_key(|(_, passes)| passes.len()) else { continue };
        let (error_case, compared) = errors(op, case, widest, device)?;
        if let Some(c) = compared.iter().find(|c| c.status() == Status::Failed) {
            return Ok(Some(format!(
                "its check fails on {error_case}: {}: {} {:e}, at most {:e}: {}",
                c.quantity,
                c.metric,
                c.error,
                c.tolerance,
                c.reason()
            )));
        }
        let mut workspace = ready(op, case, &*plan, widest, device)?;
        let pace = Pace { seconds: options.seconds, warm: options.warm };
        for (verb, passes) in group {
            let cost = passes.iter().map(|&p| plan.cost(p, problem.cost(p))).fold(Cost::default(), add);
            let timing = time(&*plan, passes, &mut workspace, device, cost.bytes, pace)?;
            let of_verb = |c: &&check::Compared| passes.iter().any(|p| c.quantity.starts_with(p.name()));
            let max_error = compared.iter().filter(of_verb).map(|c| c.error).reduce(f64::max);
            let measured = Measured { case, verb, passes, cost, timing, max_error, error_case: &error_case };
            sink(record(&*problem, &*plan, device, options, measured)?);
        }
    }
    Ok(None)
}

/// What was found of one verb.
struct Measured<'a> {
    case: &'a Case,
    verb: &'a str,
    passes: &'a [Pass],
    cost: Cost,
    timing: Timing,
    max_error: Option<f64>,
    error_case: &'a Case,
}

fn record(
    problem: &dyn Problem,
    plan: &dyn Plan,
    device: &Device,
    options: &Options,
    m: Measured<'_>,
) -> Result<Record> {
    let (peak_bytes, workspace_bytes) = memory(plan, m.passes);
    let mut launches = 0;
    for &pass in m.passes {
        launches += plan.launches(pass)?.iter().map(|l| l.launches).sum::<u64>();
    }
    let found = Found {
        family: problem.entry(),
        case: m.case,
        pass: m.verb,
        dtype: check::data_dtype(problem),
        precision: check::precision(m.case)?,
        variant: plan.variant().to_owned(),
        cost: m.cost,
        timing: m.timing,
        workspace_bytes,
        peak_bytes,
        launches,
        max_error: m.max_error,
        max_error_case: m.error_case,
        network: None,
    };
    let ceilings = ceilings(device, plan.tensor_cores(), peak_bytes)?;
    Ok(found.record(ceilings, device, &options.provenance))
}

/// What a record says, as it was found.
pub(crate) struct Found<'a> {
    pub family: &'a str,
    pub case: &'a Case,
    pub pass: &'a str,
    pub dtype: String,
    pub precision: Precision,
    pub variant: String,
    pub cost: Cost,
    pub timing: Timing,
    pub workspace_bytes: u64,
    pub peak_bytes: u64,
    pub launches: u64,
    pub max_error: Option<f64>,
    pub max_error_case: &'a Case,
    pub network: Option<NetworkRecord>,
}

impl Found<'_> {
    pub(crate) fn record(self, ceilings: Ceilings, device: &Device, provenance: &Provenance) -> Record {
        let runs = self.timing.ms.len();
        let mean_ms = self.timing.ms.iter().sum::<f64>() / runs as f64;
        let (median_ms, min_ms, max_ms) = spread(self.timing.ms);
        let (bound, shortest_ms) = ceilings.roofline(&self.cost);
        let (device_name, is_gpu) = match device {
            Device::Cpu => (cpu::name(), false),
            Device::Cuda(d) => (d.name().to_owned(), true),
        };
        Record {
            family: self.family.to_owned(),
            case: self.case.to_string(),
            pass: self.pass.to_owned(),
            backend: device.place().to_string(),
            device: device_name,
            dtype: self.dtype,
            precision: self.precision.name().to_owned(),
            variant: self.variant,
            clock: self.timing.clock.to_owned(),
            median_ms,
            mean_ms,
            min_ms,
            max_ms,
            runs,
            bytes: self.cost.bytes,
            flops: self.cost.flops,
            special: self.cost.special,
            gb_per_s: self.cost.bytes as f64 / median_ms / 1e6,
            tflop_per_s: self.cost.flops as f64 / median_ms / 1e9,
            special_per_s: self.cost.special as f64 / median_ms * 1e3,
            roofline_fraction: shortest_ms / median_ms,
            floors_ms: ceilings.times_ms(&self.cost).iter().map(|(_, ms)| ms).sum(),
            bound: bound.name().to_owned(),
            ceilings: ceilings.source,
            cache: self.timing.cache.to_owned(),
            workspace_bytes: self.workspace_bytes,
            peak_bytes: self.peak_bytes,
            launches: self.launches,
            max_error: self.max_error,
            max_error_case: self.max_error_case.to_string(),
            schema: SCHEMA,
            date: provenance.date.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: provenance.commit.clone(),
            driver: provenance.driver.clone().filter(|_| is_gpu),
            nvrtc: provenance.nvrtc.clone().filter(|_| is_gpu),
            sm_clock_mhz: self.timing.sm_clock_mhz,
            power_w: self.timing.power_w,
            network: self.network,
        }
    }
}

#[cfg(test)]
mod tests;
