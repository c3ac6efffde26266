//! `chronaxie check`: every implementation against its float64 reference.

use crate::args::{Check, Common};
use crate::output::{Out, is_stdout, json_can_be_written, write_json};
use crate::progress::Terminal;
use crate::{Outcome, Stop, select};
use chronaxie::bench::Family;
use chronaxie::check::{Options, Record, Status, run as check};
use std::sync::atomic::Ordering;

/// One line of the table.
fn line(r: &Record, out: &Out) -> String {
    let number = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.2e}"));
    let status = match r.status {
        Status::Passed => "passed".to_owned(),
        Status::Failed => out.red("FAILED"),
        Status::Skipped => "skipped".to_owned(),
    };
    let reason = if r.status == Status::Passed { "" } else { r.reason.as_str() };
    let text = format!(
        "{:<14} {:<44} {:<7} {:<5} {:<5} {:<24} {:>9} {:>9}  {status}  {reason}",
        r.family,
        r.case,
        r.backend,
        r.dtype,
        r.precision,
        r.quantity,
        number(r.error),
        number(r.tolerance)
    );
    text.trim_end().to_owned()
}

/// What a case comes to where not every quantity is shown: the comparison nearest to its bound.
#[derive(Default)]
struct Digest {
    name: Option<(String, String, String)>,
    passed: usize,
    worst: Option<(f64, String)>,
    seconds: f64,
}

impl Digest {
    fn add(&mut self, r: &Record) {
        self.name = Some((r.family.clone(), r.case.clone(), r.backend.clone()));
        self.seconds += r.seconds;
        self.passed += usize::from(r.status == Status::Passed);
        if let (Some(e), Some(t)) = (r.error, r.tolerance.filter(|t| *t > 0.0))
            && self.worst.as_ref().is_none_or(|(w, _)| e / t > *w)
        {
            self.worst = Some((e / t, format!("{} {e:.2e} of {t:.0e}", r.quantity)));
        }
    }
    fn is_of(&self, r: &Record) -> bool {
        self.name.as_ref().is_none_or(|(f, c, b)| *f == r.family && *c == r.case && *b == r.backend)
    }
    fn line(&self) -> Option<String> {
        let (family, case, backend) = self.name.as_ref().filter(|_| self.passed > 0)?;
        let worst = self.worst.as_ref().filter(|(ratio, _)| *ratio > 0.0);
        let worst = worst.map_or(String::new(), |(_, w)| format!("closest to its bound: {w}"));
        let text =
            format!("{family:<14} {case:<44} {backend:<7} {:>3} passed {:>6.2} s  {worst}", self.passed, self.seconds);
        Some(text.trim_end().to_owned())
    }
}

pub(crate) fn run(args: &Check, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let entries = select::families(&args.families)?;
    let families: Vec<Family<'static>> = entries.iter().map(|op| Family::Op(*op)).collect();
    let mut options = Options::default();
    options.cases = select::cases(&families, &args.cases)?;
    options.repeats = args.repeats as usize;
    options.seed = args.seed;
    options.part = args.part;
    options.fall_back = args.backend == "auto";
    let targets = select::targets(&args.backend, common.quiet)?;
    let progress = Terminal::new(common.quiet);
    let stop = progress.stop.clone();

    let table = !is_stdout(json);
    let mut records: Vec<Record> = Vec::new();
    let mut digest = Digest::default();
    // A backend that is missing is missing for every case: its reason is told once.
    let mut missing: Vec<(String, usize, String)> = Vec::new();
    let mut printed: Outcome = Ok(());
    let summary = check(&entries, &targets, &options, &progress, &mut |r| {
        if table && printed.is_ok() {
            printed = progress.suspend(|| {
                if !digest.is_of(r) {
                    let done = std::mem::take(&mut digest);
                    done.line().map_or(Ok(()), |l| if common.verbose == 0 { out.line(l) } else { Ok(()) })?;
                }
                digest.add(r);
                if common.verbose == 0 && r.status == Status::Skipped {
                    match missing.iter_mut().find(|(b, _, reason)| *b == r.backend && *reason == r.reason) {
                        Some((_, count, _)) => *count += 1,
                        None => missing.push((r.backend.clone(), 1, r.reason.clone())),
                    }
                    return Ok(());
                }
                if common.verbose > 0 || r.status != Status::Passed { out.line(line(r, out)) } else { Ok(()) }
            });
            if printed.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
        }
        records.push(r.clone());
    });
    printed?;
    let summary = summary?;
    if let Some(l) = digest.line().filter(|_| table && common.verbose == 0) {
        out.line(l)?;
    }
    for (backend, count, reason) in &missing {
        out.line(format_args!("{count} skipped on {backend}: {reason}"))?;
    }
    write_json(json, &records, out)?;
    if table {
        out.line(summary)?;
    }
    if summary.failed > 0 { Err(Stop::Failed) } else { Ok(()) }
}
