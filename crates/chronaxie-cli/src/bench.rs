//! `chronaxie bench`: every implementation that passes its check, timed.

use crate::args::{Bench, Common};
use crate::output::{Out, count, is_stdout, json_can_be_written, write_json};
use crate::progress::Terminal;
use crate::{Outcome, Stop, provenance, select};
use chronaxie::Error;
use chronaxie::bench::{Event, Family, Options, Record, run_families as bench};
use chronaxie::op::CaseSet;
use std::sync::atomic::Ordering;

fn heading() -> String {
    format!(
        "{:<14} {:<32} {:<16} {:<7} {:<5} {:<8} {:>10} {:>10} {:>10} {:>6} {:>8} {:>9} {:>9} {:>6} {:>10} {:<8} {:<8} {:>9}",
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
        "floors ms",
        "bound",
        "cache",
        "max error"
    )
}

fn line(r: &Record) -> String {
    let special = if r.special > 0 { count(r.special_per_s) } else { "-".to_owned() };
    format!(
        "{:<14} {:<32} {:<16} {:<7} {:<5} {:<8} {:>10.4} {:>10.4} {:>10.4} {:>6} {:>8.1} {:>9} {special:>9} {:>5.0}% {:>10.4} {:<8} {:<8} {:>9}",
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
        r.floors_ms,
        r.bound,
        r.cache,
        r.max_error.map_or("-".to_owned(), |e| format!("{e:.1e}"))
    )
}

/// Refuses a precision that a simulation has not; what operations have, their problems say.
fn precision(families: &[Family<'static>], options: &Options) -> Result<(), Error> {
    let Some(precision) = options.precision else { return Ok(()) };
    for family in families.iter().filter(|f| matches!(f, Family::Whole(_))) {
        let cases = options.cases.clone().unwrap_or_else(|| family.cases(CaseSet::Cpu));
        cases.into_iter().try_for_each(|case| family.allow(&case.with("precision", precision.name())))?;
    }
    Ok(())
}

/// What the record of a network has besides its times.
fn network(r: &Record) -> Option<String> {
    let n = r.network.as_ref()?;
    let what = match (n.real_time_factor, n.rate_hz, &n.spikes_sha256) {
        (Some(factor), Some(rate), Some(hash)) => {
            let range = match n.rate_in_range {
                Some(false) => ", which is not what the case is meant to have",
                _ => "",
            };
            let each = match (n.replicas, n.real_time_factor_per_replica) {
                (replicas @ 2.., Some(each)) => format!(" of {replicas} replicas, {each:.5} for each"),
                _ => String::new(),
            };
            format!("real-time factor {factor:.4}{each}; {rate:.2} Hz{range}; spikes {}", &hash[..8])
        }
        _ => format!("{}; {:.1} spikes and {} deliveries a step", n.timed, n.spikes_per_step, count(n.events_per_step)),
    };
    let checked = if r.max_error_case == r.case { String::new() } else { format!("; checked on {}", r.max_error_case) };
    Some(format!(
        "{:<14} {:<32} {} cells, {} synapses, made in {:.0} ms; {what}{checked}",
        "",
        "",
        n.cells,
        count(n.synapses as f64),
        n.build_ms
    ))
}

pub(crate) fn run(args: &Bench, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    if !(args.seconds.is_finite() && args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(Error::config(format!("--seconds {} must lie between 0 and 3600", args.seconds)).into());
    }
    let families = select::timed(&args.families)?;
    let mut options = Options::default();
    options.cases = select::cases(&families, &args.cases)?;
    options.precision = args.precision;
    if !args.families.is_empty() {
        precision(&families, &options)?;
    }
    options.seconds = args.seconds;
    options.warm = args.warm;
    options.provenance = provenance();
    let targets = select::targets(&args.backend, common.quiet)?;
    let progress = Terminal::new(common.quiet);
    let stop = progress.stop.clone();

    let table = !is_stdout(json);
    let mut printed = if table { out.line(heading()) } else { Ok(()) };
    let mut records: Vec<Record> = Vec::new();
    let mut ceilings: Vec<String> = Vec::new();
    let mut refused: Vec<String> = Vec::new();
    let summary = bench(&families, &targets, &options, &progress, &mut |event| {
        let text = match event {
            Event::Timed(r) => {
                records.push((**r).clone());
                let from = format!("{} ({}): {}", r.backend, r.device, r.ceilings);
                if !ceilings.contains(&from) {
                    ceilings.push(from);
                }
                network(r).map_or_else(|| line(r), |more| format!("{}\n{more}", line(r)))
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
