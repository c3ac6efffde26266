//! Everything that `check` measures of one case on one device.

use super::compare::compare;
use super::record::{Record, Status};
use super::rig::{Outcome, Rig};
use super::{Options, cuda};
use crate::call::{Arrangement, default_stream};
use crate::op::{Case, Op, Pass, Precision, Problem, Role, Tensors};
use crate::{Device, Dtype, Error, ErrorKind, Result, pool};
use std::sync::Arc;
use std::time::Instant;

/// Names of a case's records, and where they go.
pub(super) struct Collector<'a> {
    pub family: &'a str,
    pub case: String,
    pub backend: String,
    pub dtype: String,
    pub precision: &'static str,
    pub since: Instant,
    pub sink: &'a mut dyn FnMut(Record),
}

impl Collector<'_> {
    #[allow(clippy::too_many_arguments)]
    fn put(
        &mut self,
        quantity: &str,
        metric: &str,
        error: Option<f64>,
        tolerance: Option<f64>,
        status: Status,
        reason: String,
    ) {
        let seconds = self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
        (self.sink)(Record {
            family: self.family.to_owned(),
            case: self.case.clone(),
            backend: self.backend.clone(),
            dtype: self.dtype.clone(),
            precision: self.precision.to_owned(),
            quantity: quantity.to_owned(),
            metric: metric.to_owned(),
            error: error.filter(|e| e.is_finite()),
            tolerance,
            status,
            reason,
            seconds,
        });
    }
    /// A count that must be zero; each complaint is one sentence.
    pub(super) fn count(&mut self, quantity: &str, metric: &str, count: usize, complaints: &[String]) {
        let status = if count == 0 { Status::Passed } else { Status::Failed };
        self.put(quantity, metric, Some(count as f64), Some(0.0), status, complaints.join("; "));
    }
    /// Something that ended with an error.
    pub(super) fn error(&mut self, quantity: &str, e: &Error) {
        // What a backend does not offer is not a failure of what it offers.
        let skipped = *e.kind() == ErrorKind::Unavailable;
        let status = if skipped { Status::Skipped } else { Status::Failed };
        self.put(quantity, "error", None, None, status, e.to_string());
    }
    fn on_a_gpu(&self) -> bool {
        self.backend != Device::Cpu.place().to_string()
    }
    /// The same collector for what runs on the CPU instead.
    fn on_the_cpu(&mut self) -> Collector<'_> {
        Collector {
            family: self.family,
            case: self.case.clone(),
            backend: Device::Cpu.place().to_string(),
            dtype: self.dtype.clone(),
            precision: self.precision,
            since: Instant::now(),
            sink: &mut *self.sink,
        }
    }
    pub(super) fn skip(&mut self, quantity: &str, reason: &str) {
        self.put(quantity, "none", None, None, Status::Skipped, reason.to_owned());
    }
}

/// The passes of an entry that run after each other on one memory.
fn groups(op: &dyn Op) -> Vec<Vec<Pass>> {
    let has = |p| op.passes().contains(&p);
    let mut groups = Vec::new();
    if has(Pass::Forward) {
        groups.push(if has(Pass::Backward) { vec![Pass::Forward, Pass::Backward] } else { vec![Pass::Forward] });
    }
    if has(Pass::Step) {
        groups.push(vec![Pass::Step]);
    }
    groups
}

/// The element type of the data: that of the first floating-point input.
pub(crate) fn data_dtype(problem: &dyn Problem) -> String {
    let signature = [Pass::Forward, Pass::Step].into_iter().find_map(|p| problem.signature(p).ok());
    let float = |d: Dtype| matches!(d, Dtype::F64 | Dtype::F32 | Dtype::Bf16 | Dtype::F16 | Dtype::C64);
    signature
        .and_then(|s| {
            let data = s.inputs.iter().find(|t| t.role == Role::Input && float(t.dtype));
            data.or(s.inputs.first()).map(|t| t.dtype.to_string())
        })
        .unwrap_or_else(|| "none".to_owned())
}

/// The accuracy that a case asks for.
pub(crate) fn precision(case: &Case) -> Result<Precision> {
    case.get("precision", Precision::Exact)
}

/// Runs a case on a device. What it finds goes into the collector.
pub(super) fn run(op: &dyn Op, case: &Case, device: &Device, options: &Options, to: &mut Collector<'_>) {
    let problem = match crate::op::problem(op, case).and_then(|p| Ok((p, precision(case)?))) {
        Ok((problem, precision)) => {
            to.dtype = data_dtype(&*problem);
            to.precision = precision.name();
            problem
        }
        Err(e) => return to.error("problem", &e),
    };
    for passes in groups(op) {
        // A problem may refuse a pass that its entry has (no gradient was wanted).
        let passes: Vec<Pass> = passes.into_iter().filter(|&p| problem.signature(p).is_ok()).collect();
        if passes.is_empty() {
            continue;
        }
        // A panic of an operation is a finding too.
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            group(op, &problem, case, device, &passes, options, to)
        }));
        match caught {
            Ok(Ok(())) => {}
            Ok(Err(e)) if options.fall_back && to.on_a_gpu() && *e.kind() == ErrorKind::Unavailable => {
                to.skip("run", &format!("backend auto takes the CPU: {e}"));
                return run(op, case, &Device::Cpu, options, &mut to.on_the_cpu());
            }
            Ok(Err(e)) => to.error("run", &e),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                to.error("run", &Error::new(ErrorKind::Cuda, format!("panicked: {text}")));
            }
        }
    }
}

/// Samples what `passes` read, rounded to what is stored.
pub(crate) fn sample(problem: &dyn Problem, passes: &[Pass], seed: u64) -> Result<Tensors> {
    let mut all = Tensors::new();
    for &pass in passes {
        for (name, values) in problem.sample(pass, seed)?.iter() {
            all.insert(name, values.clone());
        }
    }
    for &pass in passes {
        let signature = problem.signature(pass)?;
        for t in signature.inputs.iter().chain(signature.outputs.iter().filter(|t| t.role == Role::State)) {
            if let Some(v) = all.get_mut(&t.name) {
                *v = std::mem::replace(v, crate::op::Values::zeros([0])).rounded(t.dtype);
            }
        }
    }
    Ok(all)
}

fn group(
    op: &dyn Op,
    problem: &Arc<dyn Problem>,
    case: &Case,
    device: &Device,
    passes: &[Pass],
    options: &Options,
    to: &mut Collector<'_>,
) -> Result<()> {
    let problem = &**problem;
    let values = sample(problem, passes, options.seed)?;
    let stream = default_stream(device);
    let mut rig = Rig::new(problem, device, passes, &values, Arrangement::Contiguous)?;
    let first = rig.run(stream, 0)?;
    let laws = laws(problem, passes, &values)?;
    for c in against_law(problem, &rig, &laws)? {
        to.put(&c.quantity, c.metric, Some(c.error), Some(c.tolerance), c.status(), c.reason());
    }

    let second = rig.run(stream, 1)?;
    let unwritten = rig.unwritten(&first, &second)?;
    let complaints: Vec<String> = rig
        .outputs()
        .iter()
        .zip(&unwritten)
        .filter(|(_, n)| **n > 0)
        .map(|((pass, name), n)| format!("{}: {n} elements of {name} were never written", pass.name()))
        .collect();
    to.count(&label("written", passes), "elements", unwritten.iter().sum(), &complaints);
    let trampled = [&first.trampled[..], &second.trampled[..]].concat();
    to.count(&label("canaries", passes), "places", trampled.len(), &trampled);

    repeats(&mut rig, device, &first, &second, passes, options, to)?;
    if !options.values_only {
        if problem_is_strided(problem, passes) {
            strided(problem, device, passes, &values, &laws, to)?;
        }
        if let Device::Cuda(d) = device {
            cuda::streams_and_graphs(d, &mut rig, &first, passes, to)?;
            if case_is_first(op, case) {
                cuda::second_device(d, problem, passes, &values, &laws, to)?;
                cuda::compiles_once(op, case, d, to)?;
            }
        }
    }
    let changed = rig.changed_inputs()?;
    to.count(&label("inputs_untouched", passes), "inputs", changed.len(), &changed);
    Ok(())
}

fn case_is_first(op: &dyn Op, case: &Case) -> bool {
    op.cases(crate::op::CaseSet::Check).first() == Some(case)
}

/// A quantity of the whole group: `canaries`, and `step.canaries` for the step.
pub(super) fn label(quantity: &str, passes: &[Pass]) -> String {
    if passes == [Pass::Step] { format!("step.{quantity}") } else { quantity.to_owned() }
}

/// One output against the law.
pub(crate) struct Compared {
    pub quantity: String,
    pub metric: &'static str,
    pub error: f64,
    pub tolerance: f64,
    worst: String,
    why: &'static str,
}

impl Compared {
    pub(crate) fn status(&self) -> Status {
        if self.error <= self.tolerance { Status::Passed } else { Status::Failed }
    }
    pub(crate) fn reason(&self) -> String {
        if self.status() == Status::Passed { self.why.to_owned() } else { self.worst.clone() }
    }
    /// Above 1 is a failure; NaN is above everything.
    fn ratio(&self) -> f64 {
        match self.error / self.tolerance {
            r if r.is_nan() && self.error == 0.0 => 0.0,
            r if r.is_nan() => f64::INFINITY,
            r => r,
        }
    }
}

/// What the law says of each pass; nothing where it would take too long.
fn laws(problem: &dyn Problem, passes: &[Pass], values: &Tensors) -> Result<Vec<(Pass, Tensors)>> {
    let law = |p: Pass| if problem.probes(p) { Ok(Tensors::new()) } else { problem.reference(p, values, false) };
    passes.iter().map(|&p| Ok((p, law(p)?))).collect()
}

/// Every output that has a tolerance against the law, or what a probe says of it.
pub(super) fn against_law(problem: &dyn Problem, rig: &Rig, laws: &[(Pass, Tensors)]) -> Result<Vec<Compared>> {
    let mut all = Vec::new();
    for (pass, law) in laws {
        let after = |name: &str| rig.values(name);
        let probes = problem.probes(*pass);
        let mut found = problem.beside(*pass, &|name| rig.before(name), &after)?;
        if probes {
            found.extend(problem.probe(*pass, &after)?);
        }
        all.extend(found.into_iter().map(|p| Compared {
            quantity: format!("{}.{}", pass.name(), p.output),
            metric: p.metric,
            error: p.error,
            tolerance: p.tolerance,
            worst: p.worst,
            why: p.reason,
        }));
        if probes {
            continue;
        }
        for (_, name) in rig.outputs().iter().filter(|(p, _)| p == pass) {
            let Some(tolerance) = problem.tolerance(*pass, name) else { continue };
            let c = compare(&rig.values(name)?, law.get(name)?, tolerance.metric, problem.has_no_result());
            all.push(Compared {
                quantity: format!("{}.{name}", pass.name()),
                metric: tolerance.metric.name(),
                error: c.error,
                tolerance: tolerance.value,
                worst: c.worst,
                why: tolerance.reason,
            });
        }
    }
    Ok(all)
}

/// The outputs whose bits differ between two runs.
pub(super) fn differing(rig: &Rig, a: &Outcome, b: &Outcome) -> Vec<String> {
    let mut names = Vec::new();
    for (i, (pass, name)) in rig.outputs().iter().enumerate() {
        let n = a.bytes[i].iter().zip(&b.bytes[i]).filter(|(x, y)| x != y).count();
        if n > 0 {
            names.push(format!("{}.{name} in {n} of {} bytes", pass.name(), a.bytes[i].len()));
        }
    }
    names
}

fn repeats(
    rig: &mut Rig,
    device: &Device,
    first: &Outcome,
    second: &Outcome,
    passes: &[Pass],
    options: &Options,
    to: &mut Collector<'_>,
) -> Result<()> {
    let stream = default_stream(device);
    let mut complaints = Vec::new();
    let mut different = 0;
    let mut judge = |rig: &Rig, run: &Outcome, what: &str| {
        let names = differing(rig, first, run);
        if !names.is_empty() {
            different += 1;
            complaints.push(format!("{what} differs from the first: {}", names.join(", ")));
        }
    };
    judge(rig, second, "run 2");
    for i in 2..options.repeats.max(2) {
        let run = rig.run(stream, i % 2)?;
        judge(rig, &run, &format!("run {}", i + 1));
    }
    complaints.truncate(3);
    to.count(&label("bits_repeat", passes), "runs", different, &complaints);

    if matches!(device, Device::Cpu) && !options.values_only {
        let before = pool::num_threads();
        let mut complaints = Vec::new();
        for threads in 1..=3 {
            pool::set_num_threads(threads);
            let run = rig.run(stream, 0);
            pool::set_num_threads(before);
            let names = differing(rig, first, &run?);
            if !names.is_empty() {
                complaints.push(format!("{threads} threads differ from {before}: {}", names.join(", ")));
            }
        }
        to.count(&label("bits_threads", passes), "runs", complaints.len(), &complaints);
    }
    Ok(())
}

fn problem_is_strided(problem: &dyn Problem, passes: &[Pass]) -> bool {
    passes.iter().filter_map(|&p| problem.signature(p).ok()).any(|s| s.inputs.iter().any(|t| t.strided))
}

/// The same values as strided inputs, held against the same law.
fn strided(
    problem: &dyn Problem,
    device: &Device,
    passes: &[Pass],
    values: &Tensors,
    laws: &[(Pass, Tensors)],
    to: &mut Collector<'_>,
) -> Result<()> {
    let mut worst: Option<Compared> = None;
    let mut trouble = Vec::new();
    for arrangement in [Arrangement::Padded, Arrangement::Transposed] {
        let mut rig = Rig::new(problem, device, passes, values, arrangement)?;
        let outcome = rig.run(default_stream(device), 0)?;
        trouble.extend(outcome.trampled);
        trouble.extend(rig.changed_inputs()?);
        for c in against_law(problem, &rig, laws)? {
            if worst.as_ref().is_none_or(|w| c.ratio() > w.ratio()) {
                worst = Some(c);
            }
        }
    }
    let quantity = label("strided", passes);
    match worst {
        Some(w) if trouble.is_empty() => {
            let reason = format!("{}: {}", w.quantity, w.reason());
            to.put(&quantity, w.metric, Some(w.error), Some(w.tolerance), w.status(), reason);
        }
        _ => to.count(&quantity, "places", trouble.len(), &trouble),
    }
    Ok(())
}

/// The errors of `passes` on `device`, each with its bound, without records.
pub(crate) fn measure(problem: &dyn Problem, passes: &[Pass], device: &Device, seed: u64) -> Result<Vec<Compared>> {
    let values = sample(problem, passes, seed)?;
    let mut rig = Rig::new(problem, device, passes, &values, Arrangement::Contiguous)?;
    rig.run(default_stream(device), 0)?;
    against_law(problem, &rig, &laws(problem, passes, &values)?)
}
