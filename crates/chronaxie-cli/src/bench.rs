//! `chronaxie bench`: every implementation that passes its check, timed.

use crate::args::{Bench, Common};
use crate::output::{Out, count, is_stdout, json_can_be_written, write_json};
use crate::progress::Terminal;
use crate::{Outcome, Stop, provenance, select};
use chronaxie::Error;
use chronaxie::bench::{Event, Options, Record, run as bench};
use std::sync::atomic::Ordering;

fn heading() -> String {
    format!(
        "{:<14} {:<32} {:<16} {:<7} {:<5} {:<8} {:>10} {:>10} {:>10} {:>6} {:>8} {:>9} {:>9} {:>6} {:<8} {:<8} {:>9}",
        "family",
        "case",
        "pass",
        "backend",
        "dtype",
        "variant",
        "median ms",
        "min ms",
        "max ms",
        "runs",
        "GB/s",
        "flop/s",
        "special/s",
        "roof",
        "bound",
        "cache",
        "max error"
    )
}

fn line(r: &Record) -> String {
    let special = if r.special > 0 { count(r.special_per_s) } else { "-".to_owned() };
    format!(
        "{:<14} {:<32} {:<16} {:<7} {:<5} {:<8} {:>10.4} {:>10.4} {:>10.4} {:>6} {:>8.1} {:>9} {special:>9} {:>5.0}% {:<8} {:<8} {:>9}",
        r.family,
        r.case,
        r.pass,
        r.backend,
        r.dtype,
        r.variant,
        r.median_ms,
        r.min_ms,
        r.max_ms,
        r.runs,
        r.gb_per_s,
        count(r.tflop_per_s * 1e12),
        r.roofline_fraction * 100.0,
        r.bound,
        r.cache,
        r.max_error.map_or("-".to_owned(), |e| format!("{e:.1e}"))
    )
}

pub(crate) fn run(args: &Bench, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    if !(args.seconds.is_finite() && args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(Error::config(format!("--seconds {} must lie between 0 and 3600", args.seconds)).into());
    }
    let entries = select::families(&args.families)?;
    let mut options = Options::default();
    options.cases = select::cases(&entries, &args.cases)?;
    options.precision = args.precision;
    options.seconds = args.seconds;
    options.provenance = provenance();
    let targets = select::targets(&args.backend, common.quiet)?;
    let progress = Terminal::new(common.quiet);
    let stop = progress.stop.clone();

    let table = !is_stdout(json);
    let mut printed = if table { out.line(heading()) } else { Ok(()) };
    let mut records: Vec<Record> = Vec::new();
    let mut ceilings: Vec<String> = Vec::new();
    let mut refused: Vec<String> = Vec::new();
    let summary = bench(&entries, &targets, &options, &progress, &mut |event| {
        let text = match event {
            Event::Timed(r) => {
                records.push((**r).clone());
                let from = format!("{} ({}): {}", r.backend, r.device, r.ceilings);
                if !ceilings.contains(&from) {
                    ceilings.push(from);
                }
                line(r)
            }
            Event::Refused { family, case, backend, reason } => {
                refused.push(format!("{family} {case} on {backend}: {reason}"));
                format!("{family:<14} {case:<32} {} on {backend}: {reason}", out.red("NOT TIMED"))
            }
            Event::Skipped { family, backend, reason } => format!("{family:<14} skipped on {backend}: {reason}"),
        };
        if table && printed.is_ok() {
            printed = progress.suspend(|| out.line(text));
            if printed.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
        }
    });
    printed?;
    let summary = summary?;
    write_json(json, &records, out)?;
    if table {
        for c in ceilings {
            out.line(format_args!("roofline of {c}"))?;
        }
        out.line(summary)?;
    } else if !refused.is_empty() {
        // The records hold times only; what has none must still be seen.
        return Err(Error::new(chronaxie::ErrorKind::Cuda, format!("not timed: {}", refused.join("; "))).into());
    }
    if summary.refused > 0 { Err(Stop::Failed) } else { Ok(()) }
}
